/*
 * Describes the value of a setting in words (setting_json.h), with the sentences of the settings
 * table (settings_table_json.h).
 *
 * Part of libcudapool_config.so and the cudapool command.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/one_line.h"
#include "quantity_json.h"
#include "setting_json.h"

static bool is_null(const struct setting *setting, const struct settings *settings)
{
    const void *field = setting_field(setting, settings);

    if (setting->type == SETTING_SIZE)
        return ((const struct byte_size *)field)->unlimited;
    return (setting->type == SETTING_FILE || setting->type == SETTING_NAME) &&
           *(const char *)field == '\0';
}

static bool is_zero(const struct setting *setting, const struct settings *settings)
{
    const void *field = setting_field(setting, settings);

    switch (setting->type) {
    case SETTING_COUNT32:
        return *(const uint32_t *)field == 0;
    case SETTING_COUNT64:
    case SETTING_BYTES:
    case SETTING_TIME:
        return *(const uint64_t *)field == 0;
    case SETTING_SIZE:
        return !(((const struct byte_size *)field)->percent > 0) &&
               ((const struct byte_size *)field)->bytes == 0;
    default:
        return false;
    }
}

static void size_in_words(const struct setting *setting, const struct byte_size *size,
                          uint8_t spelling, char *text, size_t bytes)
{
    const char *share = setting->share_of == SHARE_OF_MACHINE ? " of the machine's memory"
                                                              : " of the device's memory";
    char number[QUANTITY_TEXT_BYTES];

    if (size->percent > 0)
        size_to_text(size, " ", number);
    else
        bytes_in_words(size->bytes, spelling, number);
    snprintf(text, bytes, "%s%s", number, size->percent > 0 ? share : "");
}

static void value_in_words(const struct setting *setting, const struct settings *settings,
                           char *text, size_t bytes)
{
    const void *field = setting_field(setting, settings);
    char number[QUANTITY_TEXT_BYTES] = "";

    switch (setting->type) {
    case SETTING_SIZE:
        size_in_words(setting, field, setting_spelling(setting, settings), text, bytes);
        return;
    case SETTING_FILE:
    case SETTING_NAME:
        snprintf(text, bytes, "%s", (const char *)field);
        return;
    case SETTING_COUNT32:
        snprintf(number, sizeof(number), "%u", *(const uint32_t *)field);
        break;
    case SETTING_COUNT64:
        snprintf(number, sizeof(number), "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case SETTING_BYTES:
        bytes_in_words(*(const uint64_t *)field, setting_spelling(setting, settings), number);
        break;
    case SETTING_TIME:
        time_to_text(*(const uint64_t *)field, " ", number);
        break;
    case SETTING_RATIO:
        real_to_text(*(const double *)field, number);
        break;
    case SETTING_FLAG:
    case SETTING_WORD:
        break;
    }
    snprintf(text, bytes, "%s", number);
}

/* Writes the sentence to text, with the value in place of %s. Each sentence of the settings table
 * has %s once. */
static void fill_in(const char *sentence, const char *value, char *text, size_t bytes)
{
    const char *gap = strstr(sentence, "%s");

    snprintf(text, bytes, "%.*s%s%s", (int)(gap - sentence), sentence, value, gap + 2);
}

void setting_to_words(const struct setting *setting, const struct settings *settings,
                      char text[SETTING_TEXT_BYTES])
{
    char value[SETTINGS_PATH_MAX];

    if (setting->values != NULL) {
        snprintf(text, SETTING_TEXT_BYTES, "%s", setting_current_value(setting, settings)->means);
    } else if (is_null(setting, settings)) {
        snprintf(text, SETTING_TEXT_BYTES, "%s", setting->means_if_null);
    } else if (setting->means_if_zero != NULL && is_zero(setting, settings)) {
        snprintf(text, SETTING_TEXT_BYTES, "%s", setting->means_if_zero);
    } else {
        value_in_words(setting, settings, value, sizeof(value));
        fill_in(setting->means, value, text, SETTING_TEXT_BYTES);
    }
    make_printable(text, SETTING_TEXT_BYTES);
}
