/*
 * One value of a setting: read from JSON, and written as JSON (setting_json.h). Each type of
 * setting has a function that reads it and checks its range, and one that writes it.
 *
 * Part of libcudapool_config.so and the command.
 */
#include "setting_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file_pattern.h"
#include "quantity_json.h"

/* Copies the value rather than casts the pointer, since an enum's type may differ from int. */
static int word_value(const struct setting *setting, const struct settings *settings)
{
    const void *field = setting_field(setting, settings);
    int value;

    if (setting->type == SETTING_FLAG)
        return *(const bool *)field ? 1 : 0;
    _Static_assert(sizeof(enum bucket_policy) == sizeof(value), "enums are as wide as int");
    memcpy(&value, field, sizeof(value));
    return value;
}

static void list_words(const struct setting *setting, char *text, size_t bytes)
{
    size_t length = (size_t)snprintf(text, bytes, "one of");

    for (const struct setting_value *value = setting->values; value->word != NULL; value++) {
        if (length >= bytes)
            return;
        length += (size_t)snprintf(text + length, bytes - length, "%s \"%s\"",
                                   value == setting->values ? "" : ",", value->word);
    }
}

/* Writes a bound in the setting's unit, such as "1GiB" for a number of bytes. */
static void bound_to_text(const struct setting *setting, uint64_t bound, char *text)
{
    if (setting->type == SETTING_BYTES || setting->type == SETTING_SIZE)
        bytes_to_text(bound, "", text);
    else if (setting->type == SETTING_TIME)
        time_to_text(bound, "", text);
    else
        snprintf(text, QUANTITY_TEXT_BYTES, "%llu", (unsigned long long)bound);
}

static const char *kind_of_value(enum setting_type type)
{
    switch (type) {
    case SETTING_COUNT32:
    case SETTING_COUNT64:
        return "an integer";
    case SETTING_BYTES:
        return "a size such as 512 or \"2MiB\" (" SIZE_UNITS ")";
    case SETTING_SIZE:
        return "a size such as 512 or \"2MiB\" (" SIZE_UNITS ") or a share such as \"50%\"";
    case SETTING_RATIO:
        return "a number";
    case SETTING_TIME:
        return "a time such as \"10s\" (" TIME_UNITS ")";
    case SETTING_FLAG:
        return "true or false";
    case SETTING_FILE:
        return "a file name, in which %p, %h, %r and %% may stand";
    case SETTING_NAME:
        return "a name of 1 to 63 letters, digits, '.', '_' and '-'";
    case SETTING_WORD:
        break;
    }
    return "";
}

void setting_allowed(const struct setting *setting, char *text, size_t bytes)
{
    const char *or_null = setting->may_be_null ? ", or null" : "";
    char least[QUANTITY_TEXT_BYTES], most[QUANTITY_TEXT_BYTES];

    switch (setting->type) {
    case SETTING_WORD:
        list_words(setting, text, bytes);
        return;
    case SETTING_FLAG:
    case SETTING_FILE:
    case SETTING_NAME:
        snprintf(text, bytes, "%s%s", kind_of_value(setting->type), or_null);
        return;
    default:
        bound_to_text(setting, setting->least, least);
        bound_to_text(setting, setting->most, most);
        snprintf(text, bytes, "%s from %s to %s%s", kind_of_value(setting->type), least, most,
                 or_null);
    }
}

static bool in_range(const struct setting *setting, uint64_t value)
{
    return value >= setting->least && value <= setting->most;
}

static bool count_from_json(const json_t *value, uint64_t *count)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *count = (uint64_t)json_integer_value(value);
    return true;
}

static bool size_from_json(const struct setting *setting, const json_t *value,
                           struct byte_size *result)
{
    struct byte_size size = {0};

    if (json_is_string(value)) {
        if (!size_from_text(json_string_value(value), &size))
            return false;
    } else if (!count_from_json(value, &size.bytes)) {
        return false;
    }
    /* A share > 0 is within every range. */
    if (!(size.percent > 0) && !in_range(setting, size.bytes))
        return false;
    *result = size;
    return true;
}

static bool bytes_from_json(const struct setting *setting, const json_t *value, uint64_t *result)
{
    uint64_t bytes;
    bool read = json_is_string(value) ? bytes_from_text(json_string_value(value), &bytes)
                                      : count_from_json(value, &bytes);

    if (!read || !in_range(setting, bytes))
        return false;
    *result = bytes;
    return true;
}

static bool time_from_json(const struct setting *setting, const json_t *value, uint64_t *result)
{
    uint64_t nanoseconds;

    if (!json_is_string(value) || !time_from_text(json_string_value(value), &nanoseconds) ||
        !in_range(setting, nanoseconds))
        return false;
    *result = nanoseconds;
    return true;
}

static bool ratio_from_json(const struct setting *setting, const json_t *value, double *result)
{
    double ratio = json_number_value(value);

    if (!json_is_number(value) ||
        !(ratio >= (double)setting->least && ratio <= (double)setting->most))
        return false;
    *result = ratio;
    return true;
}

static bool word_from_json(const struct setting *setting, const json_t *value, void *field)
{
    if (!json_is_string(value))
        return false;
    for (const struct setting_value *known = setting->values; known->word != NULL; known++) {
        if (strcmp(known->word, json_string_value(value)) != 0)
            continue;
        memcpy(field, &known->value, sizeof(known->value));
        return true;
    }
    return false;
}

static bool file_from_json(const json_t *value, char *field)
{
    if (!json_is_string(value) || json_string_length(value) >= SETTINGS_PATH_MAX ||
        !file_pattern_is_valid(json_string_value(value)))
        return false;
    memset(field, 0, SETTINGS_PATH_MAX);
    memcpy(field, json_string_value(value), json_string_length(value));
    return true;
}

/* Zeroes the rest of the field, so that two copies compare equal. */
static bool name_from_json(const json_t *value, char *field)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = json_string_length(value);

    if (!json_is_string(value) || length == 0 || length >= SETTINGS_NAME_BYTES ||
        strspn(json_string_value(value), allowed) != length)
        return false;
    memset(field, 0, SETTINGS_NAME_BYTES);
    memcpy(field, json_string_value(value), length);
    return true;
}

static void set_null(const struct setting *setting, void *field)
{
    if (setting->type == SETTING_SIZE)
        *(struct byte_size *)field = (struct byte_size){.unlimited = true};
    else
        memset(field, 0, setting->type == SETTING_NAME ? SETTINGS_NAME_BYTES : SETTINGS_PATH_MAX);
}

static bool value_from_json(const struct setting *setting, const json_t *value, void *field)
{
    uint64_t count;

    if (setting->may_be_null && json_is_null(value)) {
        set_null(setting, field);
        return true;
    }
    switch (setting->type) {
    case SETTING_FLAG:
        if (json_is_boolean(value))
            *(bool *)field = json_is_true(value);
        return json_is_boolean(value);
    case SETTING_WORD:
        return word_from_json(setting, value, field);
    case SETTING_COUNT32:
    case SETTING_COUNT64:
        if (!count_from_json(value, &count) || !in_range(setting, count))
            return false;
        if (setting->type == SETTING_COUNT32)
            *(uint32_t *)field = (uint32_t)count;
        else
            *(uint64_t *)field = count;
        return true;
    case SETTING_BYTES:
        return bytes_from_json(setting, value, field);
    case SETTING_SIZE:
        return size_from_json(setting, value, field);
    case SETTING_RATIO:
        return ratio_from_json(setting, value, field);
    case SETTING_TIME:
        return time_from_json(setting, value, field);
    case SETTING_FILE:
        return file_from_json(value, field);
    case SETTING_NAME:
        return name_from_json(value, field);
    }
    return false;
}

static uint8_t spelling_of_json(const struct setting *setting, const json_t *value)
{
    if (setting->type != SETTING_BYTES && setting->type != SETTING_SIZE &&
        setting->type != SETTING_TIME)
        return SPELLED_AS_USUAL;
    if (!json_is_string(value))
        return json_is_integer(value) ? SPELLED_AS_INTEGER : SPELLED_AS_USUAL;
    const char *text = json_string_value(value);
    return setting->type == SETTING_TIME ? time_spelling(text) : size_spelling(text);
}

int setting_from_json(const struct document *document, const char *place,
                      const struct setting *setting, const json_t *value, struct settings *settings)
{
    char allowed[SETTING_ALLOWED_BYTES];

    if (value_from_json(setting, value, (char *)settings + setting->offset)) {
        settings->spelled[setting - settings_table] = spelling_of_json(setting, value);
        return 0;
    }
    setting_allowed(setting, allowed, sizeof(allowed));
    return document_refuse(document, place, value, allowed);
}

/* Writes bytes as they were spelled. Otherwise writes an integer where 1024 does not divide them,
 * as in "smallest": 512. */
static json_t *bytes_to_json(uint64_t bytes, uint8_t spelling)
{
    char text[QUANTITY_TEXT_BYTES];

    if (bytes_to_text_as(bytes, spelling, text))
        return json_string(text);
    if (spelling == SPELLED_AS_INTEGER || bytes == 0 || bytes % 1024 != 0)
        return json_integer((json_int_t)bytes);
    bytes_to_text(bytes, "", text);
    return json_string(text);
}

static json_t *size_to_json(const struct byte_size *size, uint8_t spelling)
{
    char text[QUANTITY_TEXT_BYTES];

    if (size->unlimited)
        return json_null();
    if (!(size->percent > 0))
        return bytes_to_json(size->bytes, spelling);
    size_to_text(size, "", text);
    return json_string(text);
}

static json_t *time_to_json(uint64_t nanoseconds, uint8_t spelling)
{
    char text[QUANTITY_TEXT_BYTES];

    if (!time_to_text_as(nanoseconds, spelling, text))
        time_to_text(nanoseconds, "", text);
    return json_string(text);
}

static json_t *name_to_json(const char *name, size_t bytes)
{
    return *name == '\0' ? json_null() : json_string_of_any_bytes(name, bytes);
}

const struct setting_value *setting_current_value(const struct setting *setting,
                                                  const struct settings *settings)
{
    const struct setting_value *value = setting->values;

    while (value->word != NULL && value->value != word_value(setting, settings))
        value++;
    return value;
}

json_t *setting_to_json(const struct setting *setting, const struct settings *settings)
{
    const void *field = setting_field(setting, settings);

    switch (setting->type) {
    case SETTING_FLAG:
        return json_boolean(*(const bool *)field);
    case SETTING_WORD:
        return json_string(setting_current_value(setting, settings)->word);
    case SETTING_COUNT32:
        return json_integer(*(const uint32_t *)field);
    case SETTING_COUNT64:
        return json_integer((json_int_t) * (const uint64_t *)field);
    case SETTING_BYTES:
        return bytes_to_json(*(const uint64_t *)field, setting_spelling(setting, settings));
    case SETTING_SIZE:
        return size_to_json(field, setting_spelling(setting, settings));
    case SETTING_RATIO:
        return json_real(*(const double *)field);
    case SETTING_TIME:
        return time_to_json(*(const uint64_t *)field, setting_spelling(setting, settings));
    case SETTING_FILE:
        return name_to_json(field, SETTINGS_PATH_MAX);
    case SETTING_NAME:
        return name_to_json(field, SETTINGS_NAME_BYTES);
    }
    return NULL;
}

/* Values are equal if they have the same text when spelled in the same way. */
bool setting_is_equal(const struct setting *setting, const struct settings *one,
                      const struct settings *other)
{
    size_t place = (size_t)(setting - settings_table);
    struct settings *same = malloc(sizeof(*same));
    bool equal = false;

    if (same == NULL)
        return false;
    *same = *other;
    same->spelled[place] = one->spelled[place];
    json_t *first = setting_to_json(setting, one), *second = setting_to_json(setting, same);
    equal = first != NULL && second != NULL && json_equal(first, second);
    json_decref(first);
    json_decref(second);
    free(same);
    return equal;
}
