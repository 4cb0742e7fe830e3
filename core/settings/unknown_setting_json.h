/*
 * The error of a key that no setting has: it names the nearest key that one has, and those that are
 * allowed at its place. No state: any thread.
 */
#ifndef CUDAPOOL_CORE_UNKNOWN_SETTING_JSON_H
#define CUDAPOOL_CORE_UNKNOWN_SETTING_JSON_H

#include <stddef.h>

#include "document_json.h"

/* Writes the keys of the object at the path parent, "" for the whole file, with commas between. */
void list_known_keys(const char *parent, char *text, size_t bytes);

/* Writes the error of a key in that object; place is where the key stands in the document. Returns
 * -1. */
int refuse_unknown_setting(const struct document *document, const char *place, const char *parent,
                           const char *key);

#endif
