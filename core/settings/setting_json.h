/*
 * One value of a setting: read from JSON, written as JSON, and described in words.
 *
 * Nothing here has state, so any thread may call it.
 */
#ifndef CUDAPOOL_CORE_SETTING_JSON_H
#define CUDAPOOL_CORE_SETTING_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "document_json.h"
#include "settings_table_json.h"

/* Room for a setting's value as JSON, or its meaning in words. */
#define SETTING_TEXT_BYTES (SETTINGS_PATH_MAX + 256)

/* Reads one value into *settings. 0, or -1 with the error written and *settings untouched. */
int setting_from_json(const struct document *document, const char *place,
                      const struct setting *setting, const json_t *value,
                      struct settings *settings);

/* The value as a settings file spells it. A new reference; NULL where memory is short. */
json_t *setting_to_json(const struct setting *setting, const struct settings *settings);

/* Whether the setting has the same value in both, whatever its spelling. False where memory is
 * short. */
bool setting_is_equal(const struct setting *setting, const struct settings *one,
                      const struct settings *other);

/* Writes what the value means, in words, on one line. */
void setting_to_words(const struct setting *setting, const struct settings *settings,
                      char text[SETTING_TEXT_BYTES]);

/* setting_allowed writes which values are allowed, for an error message. */
#define SETTING_ALLOWED_BYTES 384
void setting_allowed(const struct setting *setting, char *text, size_t bytes);

static inline const void *setting_field(const struct setting *setting,
                                        const struct settings *settings)
{
    return (const char *)settings + setting->offset;
}

/* How the settings file spells the setting's value (quantity_json.h). */
static inline uint8_t setting_spelling(const struct setting *setting,
                                       const struct settings *settings)
{
    return settings->spelled[setting - settings_table];
}

/* The entry of the setting's current value. The setting must be a word or a flag. */
const struct setting_value *setting_current_value(const struct setting *setting,
                                                  const struct settings *settings);

#endif
