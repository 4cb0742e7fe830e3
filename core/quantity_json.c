/*
 * Sizes and times as a settings file spells them (quantity_json.h).
 */
#include "quantity_json.h"

#include <stdio.h>
#include <string.h>

/* A number as it stands in the text: digits without the point, and how many came after it. */
struct decimal {
    uint64_t digits;
    unsigned decimals;
};

/* Longer numbers would leave 64 bits. */
#define DIGITS_MAX 18

/* Integers up to here are exact in a double. */
#define EXACT_IN_DOUBLE (1ull << 53)

struct unit {
    const char *name;
    uint64_t worth;
};

/* Ascending, and those that are written before those that are only read. */
static const struct unit size_units[] = {
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"kB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
};
#define SIZE_UNITS_WRITTEN 5
#define SIZE_UNITS_READ    (sizeof(size_units) / sizeof(size_units[0]))

static const struct unit time_units[] = {
    {"ns", 1},         {"us", 1000},         {"ms", 1000000},
    {"s", 1000000000}, {"min", 60000000000}, {"h", 3600000000000},
};
#define TIME_UNIT_COUNT (sizeof(time_units) / sizeof(time_units[0]))

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Takes digits off the text; their number, or -1 where there are too many. */
static int take_digits(const char **text, uint64_t *digits, int taken)
{
    int count = 0;

    while (is_digit(**text)) {
        if (++count + taken > DIGITS_MAX)
            return -1;
        *digits = *digits * 10 + (uint64_t)(**text - '0');
        ++*text;
    }
    return count;
}

/* Takes "12" or "1.25" and one space that may follow it off the text. */
static bool take_decimal(const char **text, struct decimal *number)
{
    number->digits = 0;
    number->decimals = 0;
    int whole = take_digits(text, &number->digits, 0);
    if (whole <= 0)
        return false;
    if (**text == '.') {
        ++*text;
        int decimals = take_digits(text, &number->digits, whole);
        if (decimals <= 0)
            return false;
        number->decimals = (unsigned)decimals;
    }
    if (**text == ' ')
        ++*text;
    return true;
}

static uint64_t power_of_ten(unsigned exponent)
{
    uint64_t power = 1;

    while (exponent-- > 0)
        power *= 10;
    return power;
}

/* number times worth, where that is a whole number of 64 bits. */
static bool scale(const struct decimal *number, uint64_t worth, uint64_t *result)
{
    unsigned __int128 product = (unsigned __int128)number->digits * worth;
    uint64_t divisor = power_of_ten(number->decimals);

    if (product % divisor != 0 || product / divisor > UINT64_MAX)
        return false;
    *result = (uint64_t)(product / divisor);
    return true;
}

static bool scale_by_unit(const struct decimal *number, const char *name, const struct unit *units,
                          size_t count, uint64_t *result)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(units[i].name, name) == 0)
            return scale(number, units[i].worth, result);
    return false;
}

bool bytes_from_text(const char *text, uint64_t *bytes)
{
    struct decimal number;

    return take_decimal(&text, &number) &&
           scale_by_unit(&number, text, size_units, SIZE_UNITS_READ, bytes);
}

static bool real_from_decimal(const struct decimal *number, double *value)
{
    if (number->digits > EXACT_IN_DOUBLE)
        return false;
    /* Both are exact (10 to the 18th is), so the quotient is the nearest double. */
    *value = (double)number->digits / (double)power_of_ten(number->decimals);
    return true;
}

static bool share_from_text(const char *text, double *percent)
{
    struct decimal number;
    double value;

    if (!take_decimal(&text, &number) || strcmp(text, "%") != 0 ||
        !real_from_decimal(&number, &value) || value > 100)
        return false;
    *percent = value;
    return true;
}

bool size_from_text(const char *text, struct byte_size *size)
{
    struct byte_size read = {0};

    if (!share_from_text(text, &read.percent) && !bytes_from_text(text, &read.bytes))
        return false;
    *size = read;
    return true;
}

bool time_from_text(const char *text, uint64_t *nanoseconds)
{
    struct decimal number;

    return take_decimal(&text, &number) &&
           scale_by_unit(&number, text, time_units, TIME_UNIT_COUNT, nanoseconds);
}

static const struct unit *largest_unit_that_divides(uint64_t value, const struct unit *units,
                                                    size_t count)
{
    size_t i = count - 1;

    while (i > 0 && value % units[i].worth != 0)
        i--;
    return &units[i];
}

static void write_in_unit(uint64_t value, const struct unit *unit, const char *separator,
                          char *text)
{
    snprintf(text, QUANTITY_TEXT_BYTES, "%llu%s%s", (unsigned long long)(value / unit->worth),
             separator, unit->name);
}

void bytes_to_text(uint64_t bytes, const char *separator, char text[QUANTITY_TEXT_BYTES])
{
    const struct unit *unit = &size_units[0];

    if (bytes != 0)
        unit = largest_unit_that_divides(bytes, size_units, SIZE_UNITS_WRITTEN);
    write_in_unit(bytes, unit, separator, text);
}

void time_to_text(uint64_t nanoseconds, const char *separator, char text[QUANTITY_TEXT_BYTES])
{
    const struct unit *unit = &time_units[3];

    if (nanoseconds != 0)
        unit = largest_unit_that_divides(nanoseconds, time_units, TIME_UNIT_COUNT);
    write_in_unit(nanoseconds, unit, separator, text);
}

/* The locale's decimal sign, which may be several bytes, becomes a point. */
static void point_for_locale_sign(char *text)
{
    char *sign = text;

    while (is_digit(*sign))
        sign++;
    if (*sign == '\0')
        return;
    char *decimals = sign;
    while (*decimals != '\0' && !is_digit(*decimals))
        decimals++;
    *sign = '.';
    memmove(sign + 1, decimals, strlen(decimals) + 1);
}

static bool reads_as(const char *text, double value)
{
    struct decimal number;
    double read;

    return take_decimal(&text, &number) && real_from_decimal(&number, &read) && read >= value &&
           read <= value;
}

void real_to_text(double value, char text[QUANTITY_TEXT_BYTES])
{
    for (int decimals = 0; decimals < DIGITS_MAX; decimals++) {
        snprintf(text, QUANTITY_TEXT_BYTES, "%.*f", decimals, value);
        point_for_locale_sign(text);
        if (reads_as(text, value))
            return;
    }
}

void size_to_text(const struct byte_size *size, const char *separator,
                  char text[QUANTITY_TEXT_BYTES])
{
    if (!(size->percent > 0)) {
        bytes_to_text(size->bytes, separator, text);
        return;
    }
    real_to_text(size->percent, text);
    strncat(text, "%", QUANTITY_TEXT_BYTES - strlen(text) - 1);
}
