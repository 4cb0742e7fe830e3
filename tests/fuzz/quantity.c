/*
 * Sizes and times in text (core/settings/quantity_json.h): any text is read or refused; what is
 * read reads the same when it is written; what is written can be read. The first eight bytes are a
 * number to write, the rest is the text to read.
 */
#include "core/settings/quantity_json.h"

#include "fuzz.h"

/* A number is read up to here, whatever its unit. */
#define DIGITS_READ UINT64_C(999999999999999999)

static const char *const separators[] = {"", " "};

static void write_and_read_bytes(uint64_t bytes)
{
    char text[QUANTITY_TEXT_BYTES];
    uint64_t again;

    for (int i = 0; i < 2; i++) {
        bytes_to_text(bytes, separators[i], text);
        PROMISE(strlen(text) < sizeof(text), "%s", text);
        bool read = bytes_from_text(text, &again);
        PROMISE(read || bytes > DIGITS_READ, "%s", text);
        PROMISE(!read || again == bytes, "%s", text);
    }
}

static void write_and_read_time(uint64_t nanoseconds)
{
    char text[QUANTITY_TEXT_BYTES];
    uint64_t again;

    for (int i = 0; i < 2; i++) {
        time_to_text(nanoseconds, separators[i], text);
        bool read = time_from_text(text, &again);
        PROMISE(read || nanoseconds > DIGITS_READ, "%s", text);
        PROMISE(!read || again == nanoseconds, "%s", text);
    }
}

/* What was read is written so that it reads the same. */
static void write_and_read_size(const struct byte_size *size)
{
    char text[QUANTITY_TEXT_BYTES];
    struct byte_size again;

    size_to_text(size, "", text);
    PROMISE(size_from_text(text, &again) || size->bytes > DIGITS_READ, "%s", text);
    if (size->percent > 0) {
        double difference = again.percent - size->percent;
        PROMISE(!(difference < 0) && !(difference > 0), "%s", text);
    }
}

static void read_text(const char *text)
{
    struct byte_size size = {.bytes = 17}, untouched = size;
    uint64_t bytes = 17, nanoseconds = 17;
    bool is_bytes = bytes_from_text(text, &bytes);

    PROMISE(is_bytes || bytes == 17, "%s", text);
    if (is_bytes)
        write_and_read_bytes(bytes);
    if (size_from_text(text, &size)) {
        PROMISE(size.percent >= 0 && size.percent <= 100 && !size.unlimited, "%s", text);
        PROMISE((size.bytes == bytes && is_bytes) || (size.bytes == 0 && !is_bytes), "%s", text);
        write_and_read_size(&size);
    } else {
        PROMISE(is_untouched(&size, &untouched, sizeof(size)) && !is_bytes, "%s", text);
    }
    if (time_from_text(text, &nanoseconds))
        write_and_read_time(nanoseconds);
    else
        PROMISE(nanoseconds == 17, "%s", text);
}

/* What a size means on any device is never more than the device, unless it is so by itself. */
static void resolve(uint64_t total, double percent)
{
    struct byte_size size = {.percent = percent};

    if (percent > 0 && percent <= 100)
        PROMISE(byte_size_resolve(&size, total) <= total, "%g%% of %llu", percent,
                (unsigned long long)total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t number = 0;
    double real;
    char text[256];

    if (bytes < sizeof(number))
        return 0;
    memcpy(&number, data, sizeof(number));
    memcpy(&real, data, sizeof(real));
    data += sizeof(number);
    bytes -= sizeof(number);
    write_and_read_bytes(number);
    write_and_read_time(number);
    resolve(number, real);
    resolve(number, (double)(number % 10001) / 100);
    read_text(take_text(&data, &bytes, text, sizeof(text)));
    return 0;
}
