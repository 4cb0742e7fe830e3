/*
 * Reading and writing whole objects of settings, by the table of settings. No state: any thread.
 */
#ifndef CUDAPOOL_CORE_SETTINGS_JSON_H
#define CUDAPOOL_CORE_SETTINGS_JSON_H

#include <jansson.h>

#include "document_json.h"
#include "setting_json.h"

/* Reads a whole settings object: what it does not name is the default. place is where it stands in
 * its document, "" for a file of its own. 0, or -1 with the error written and *settings untouched.
 */
int settings_from_json(const struct document *document, const char *place, const json_t *object,
                       struct settings *settings);

/* Sets the one setting at a path such as device.caps.cached. 0, or -1 with the error written, for
 * an unknown path as well, and *settings untouched. Whoever is done with a few of these calls owes
 * a settings_check. */
int settings_assign(const struct document *document, const char *path, const json_t *value,
                    struct settings *settings);

/* Whether the settings agree with each other. 0, or -1 with the error written. */
int settings_check(const struct document *document, const char *place,
                   const struct settings *settings);

/* The whole settings object, a new reference; settings_from_json reads it back to the same. NULL
 * where memory is short. */
json_t *settings_to_json(const struct settings *settings);

#endif
