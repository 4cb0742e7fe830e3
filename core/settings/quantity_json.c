/*
 * Sizes and times as a settings file spells them (quantity_json.h).
 *
 * Sizes and times are read and written as integers with a count of decimals, so that they are never
 * rounded. Nothing depends on the locale.
 */
#include "quantity_json.h"

#include <stdio.h>
#include <string.h>

/* A number as it stands in the text: its digits without the point, and the number of decimals. */
struct decimal {
    uint64_t digits;
    unsigned decimals;
    bool is_cut; /* digits were left out, because there is no room for more */
};

/* The most digits, without leading and trailing zeros; more could exceed 64 bits. */
#define DIGITS_MAX 18

struct unit {
    const char *name;
    uint64_t worth;
};

/* First the units that are chosen for writing, ascending, and then those that are only read and
 * echoed. A single letter is a power of 1024, as in other tools that take sizes of memory. */
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
    {"K", 1ull << 10},
    {"M", 1ull << 20},
    {"G", 1ull << 30},
    {"T", 1ull << 40},
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

static size_t count_digits(const char *text)
{
    size_t count = 0;

    while (is_digit(text[count]))
        count++;
    return count;
}

static uint64_t power_of_ten(unsigned exponent)
{
    uint64_t power = 1;

    while (exponent-- > 0)
        power *= 10;
    return power;
}

/* Appends digits while there is room. Returns how many. */
static size_t append_digits(struct decimal *number, const char *text, size_t count)
{
    size_t i = 0;

    for (; i < count && number->digits < power_of_ten(DIGITS_MAX - 1); i++)
        number->digits = number->digits * 10 + (uint64_t)(text[i] - '0');
    return i;
}

/* Takes a number such as "12" or "1.25" off the text, with one space after it. */
static bool take_decimal(const char **text, struct decimal *number)
{
    size_t whole = count_digits(*text);
    const char *rest = *text + whole, *decimals = rest + 1;
    size_t count = *rest == '.' ? count_digits(decimals) : 0;

    if (whole == 0 || (*rest == '.' && count == 0))
        return false;
    if (*rest == '.')
        rest = decimals + count;
    while (count > 0 && decimals[count - 1] == '0')
        count--;
    *number = (struct decimal){0};
    if (append_digits(number, *text, whole) < whole)
        return false;
    number->decimals =
        (unsigned)append_digits(number, decimals, count < DIGITS_MAX ? count : DIGITS_MAX);
    number->is_cut = number->decimals < count;
    *text = rest + (*rest == ' ');
    return true;
}

/* Multiplies number by worth. False where the product is not a whole number of 64 bits. */
static bool scale(const struct decimal *number, uint64_t worth, uint64_t *result)
{
    unsigned __int128 product = (unsigned __int128)number->digits * worth;
    uint64_t divisor = power_of_ten(number->decimals);

    if (number->is_cut || product % divisor != 0 || product / divisor > UINT64_MAX)
        return false;
    *result = (uint64_t)(product / divisor);
    return true;
}

/* Replaces strcasecmp, which depends on the locale. */
static char lower(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c;
}

static bool is_same_name(const char *one, const char *other)
{
    while (*one != '\0' && lower(*one) == lower(*other)) {
        one++;
        other++;
    }
    return *one == '\0' && *other == '\0';
}

/* The unit of this name, in upper or lower case; NULL where there is none. */
static const struct unit *unit_named(const char *name, const struct unit *units, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_same_name(units[i].name, name))
            return &units[i];
    return NULL;
}

static const struct unit *size_unit_of(const char *text)
{
    struct decimal number;

    return take_decimal(&text, &number) ? unit_named(text, size_units, SIZE_UNITS_READ) : NULL;
}

static const struct unit *time_unit_of(const char *text)
{
    struct decimal number;

    return take_decimal(&text, &number) ? unit_named(text, time_units, TIME_UNIT_COUNT) : NULL;
}

bool bytes_from_text(const char *text, uint64_t *bytes)
{
    const struct unit *unit = size_unit_of(text);
    struct decimal number;

    return unit != NULL && take_decimal(&text, &number) && scale(&number, unit->worth, bytes);
}

uint8_t size_spelling(const char *text)
{
    const struct unit *unit = size_unit_of(text);

    return unit == NULL ? SPELLED_AS_USUAL : (uint8_t)(unit - size_units + SPELLED_IN_UNITS);
}

uint8_t time_spelling(const char *text)
{
    const struct unit *unit = time_unit_of(text);

    return unit == NULL ? SPELLED_AS_USUAL : (uint8_t)(unit - time_units + SPELLED_IN_UNITS);
}

/* Both operands are exact in a long double, which has 64 bits or more for the digits. */
static double real_from_decimal(const struct decimal *number)
{
    return (double)((long double)number->digits / (long double)power_of_ten(number->decimals));
}

static bool is_more_than_hundred(const struct decimal *number)
{
    unsigned __int128 hundred = (unsigned __int128)100 * power_of_ten(number->decimals);

    return number->digits > hundred || (number->digits == hundred && number->is_cut);
}

static bool share_from_text(const char *text, double *percent)
{
    struct decimal number;

    if (!take_decimal(&text, &number) || strcmp(text, "%") != 0 ||
        (number.is_cut && number.digits == 0) || is_more_than_hundred(&number))
        return false;
    *percent = real_from_decimal(&number);
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
    const struct unit *unit = time_unit_of(text);
    struct decimal number;

    return unit != NULL && take_decimal(&text, &number) && scale(&number, unit->worth, nanoseconds);
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

/* Writes the decimals of rest / worth. Returns their number, or -1 where there are more than
 * DIGITS_MAX. */
static int decimals_of(uint64_t rest, uint64_t worth, uint64_t *decimals)
{
    int count = 0;

    for (*decimals = 0; rest != 0; count++) {
        unsigned __int128 scaled = (unsigned __int128)rest * 10;
        if (count == DIGITS_MAX)
            return -1;
        *decimals = *decimals * 10 + (uint64_t)(scaled / worth);
        rest = (uint64_t)(scaled % worth);
    }
    return count;
}

/* False where the text would not be read as the same value. */
static bool write_decimal(uint64_t value, const struct unit *unit, const char *name,
                          const char *separator, char *text)
{
    uint64_t decimals, whole = value / unit->worth;
    int count = decimals_of(value % unit->worth, unit->worth, &decimals), length;

    if (count < 0 || whole >= power_of_ten((unsigned)(DIGITS_MAX - count)))
        return false;
    length = snprintf(text, QUANTITY_TEXT_BYTES, "%llu", (unsigned long long)whole);
    if (count > 0)
        length += snprintf(text + length, QUANTITY_TEXT_BYTES - (size_t)length, ".%0*llu", count,
                           (unsigned long long)decimals);
    snprintf(text + length, QUANTITY_TEXT_BYTES - (size_t)length, "%s%s", separator, name);
    return true;
}

bool bytes_to_text_as(uint64_t bytes, uint8_t spelling, char text[QUANTITY_TEXT_BYTES])
{
    size_t i = (size_t)spelling - SPELLED_IN_UNITS;

    return spelling >= SPELLED_IN_UNITS && i < SIZE_UNITS_READ &&
           write_decimal(bytes, &size_units[i], size_units[i].name, "", text);
}

bool time_to_text_as(uint64_t nanoseconds, uint8_t spelling, char text[QUANTITY_TEXT_BYTES])
{
    size_t i = (size_t)spelling - SPELLED_IN_UNITS;

    return spelling >= SPELLED_IN_UNITS && i < TIME_UNIT_COUNT &&
           write_decimal(nanoseconds, &time_units[i], time_units[i].name, "", text);
}

void bytes_in_words(uint64_t bytes, uint8_t spelling, char text[QUANTITY_TEXT_BYTES])
{
    size_t i = (size_t)spelling - SPELLED_IN_UNITS;
    const struct unit *unit = &size_units[i < SIZE_UNITS_READ ? i : 0];
    const struct unit *twin = unit;

    /* "64M" is written as 64 MiB. */
    for (size_t j = SIZE_UNITS_WRITTEN; j-- > 0;)
        if (size_units[j].worth == unit->worth)
            twin = &size_units[j];
    if (unit->worth == 1 || !write_decimal(bytes, unit, twin->name, " ", text))
        bytes_to_text(bytes, " ", text);
    else if (twin->worth % 1000 == 0)
        snprintf(text + strlen(text), QUANTITY_TEXT_BYTES - strlen(text), " (%llu bytes)",
                 (unsigned long long)bytes);
}

/* Replaces the locale's decimal sign, which may be several bytes, by a point. */
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

    if (!take_decimal(&text, &number))
        return false;
    double read = real_from_decimal(&number);
    return read >= value && read <= value;
}

void real_to_text(double value, char text[QUANTITY_TEXT_BYTES])
{
    for (int decimals = 0; decimals <= DIGITS_MAX; decimals++) {
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
