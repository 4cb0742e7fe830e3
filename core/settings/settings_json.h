/*
 * Reads and writes whole objects of settings by means of the table of settings. No state: any
 * thread.
 */
#ifndef CUDAPOOL_CORE_SETTINGS_JSON_H
#define CUDAPOOL_CORE_SETTINGS_JSON_H

#include <jansson.h>

#include "document_json.h"
#include "setting_json.h"

/* Reads a whole settings object; settings that it does not name get their defaults. place is the
 * object's place in its document, "" for a file of its own. 0, or -1 with the error written and
 * *settings untouched. */
int settings_from_json(const struct document *document, const char *place, const json_t *object,
                       struct settings *settings);

/* Sets one setting at a path such as device.caps.cached. 0, or -1 with the error written and
 * *settings untouched; an unknown path is an error. Callers must call settings_check after their
 * last call of settings_assign. */
int settings_assign(const struct document *document, const char *path, const json_t *value,
                    struct settings *settings);

/* Checks that the settings agree with each other. 0, or -1 with the error written. */
int settings_check(const struct document *document, const char *place,
                   const struct settings *settings);

/* The whole settings object, which settings_from_json reads back to the same settings. A new
 * reference; NULL where memory is short. */
json_t *settings_to_json(const struct settings *settings);

#endif
