/*
 * Keys that are no setting. The error of an unknown key names the nearest known key, and the keys
 * that are allowed in its place. A key that was a setting in the last version is accepted, with a
 * line that says so. No state: any thread.
 */
#ifndef CUDAPOOL_CORE_UNKNOWN_SETTING_JSON_H
#define CUDAPOOL_CORE_UNKNOWN_SETTING_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "document_json.h"

/* Writes the keys of the object at the path parent ("": the whole file), separated by commas. */
void list_known_keys(const char *parent, char *text, size_t bytes);

/* Writes the error of a key in the object at parent; place is the key's place in the document.
 * Returns -1. */
int refuse_unknown_setting(const struct document *document, const char *place, const char *parent,
                           const char *key);

/* Whether the path was a setting in the last version. */
bool setting_is_retired(const char *path);

/* Writes, where errors are written, that the setting has no effect. Returns 0. */
int note_retired_setting(const struct document *document, const char *place);

#endif
