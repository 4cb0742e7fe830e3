/*
 * The error of an unknown key: it names the nearest known key, and the keys that are allowed in its
 * place. No state: any thread.
 */
#ifndef CUDAPOOL_CORE_UNKNOWN_SETTING_JSON_H
#define CUDAPOOL_CORE_UNKNOWN_SETTING_JSON_H

#include <stddef.h>

#include "document_json.h"

/* Writes the keys of the object at the path parent ("": the whole file), separated by commas. */
void list_known_keys(const char *parent, char *text, size_t bytes);

/* Writes the error of a key in the object at parent; place is the key's place in the document.
 * Returns -1. */
int refuse_unknown_setting(const struct document *document, const char *place, const char *parent,
                           const char *key);

#endif
