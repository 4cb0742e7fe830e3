/*
 * Reads the values of a JSON object in a report. An error names the place of the value, what is
 * wrong with it, and what is allowed. Unless stated otherwise, a function returns 0, or -1 with the
 * error written. No state: an object belongs to one thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_OBJECT_JSON_H
#define CUDAPOOL_CORE_REPORT_OBJECT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/settings/document_json.h"
#include "report.h"

/* An object that is being read, and its place in the document. */
struct object {
    const struct document *document;
    const json_t *value;
    char place[PLACE_BYTES];
};

/* The value of a required key; NULL with the error written. */
const json_t *object_value(const struct object *object, const char *key);

/* The value of a required key, an array. *elements receives zeroed room for its elements, of
 * element_bytes each, which the caller frees. NULL with the error written. */
const json_t *object_array(const struct object *object, const char *key, size_t element_bytes,
                           void **elements);

/* Writes the error of a key's value. Returns -1. */
int object_refuse(const struct object *object, const char *key, const json_t *found,
                  const char *allowed);

/* Sets *object to the object under the parent's key. */
int object_enter(const struct object *parent, const char *key, struct object *object);

/* Sets *object to the object at an index of the array under the parent's key. */
int object_enter_item(const struct object *parent, const char *key, const json_t *array,
                      size_t index, struct object *object);

int object_read_count(const struct object *object, const char *key, uint64_t *count);
int object_read_text(const struct object *object, const char *key, char *text, size_t bytes);
int object_read_integer(const struct object *object, const char *key, int64_t least, int64_t most,
                        int64_t *result);

/* Reads a counter, which past 2^63-1 is a string of digits. 0, or -1 with no error written. */
#define REPORT_COUNT_ALLOWED "an integer from 0 to 18446744073709551615"
int report_count_from_json(const json_t *value, uint64_t *count);

/* Fails for the first key of the object that is not in known, which ends with NULL. */
int object_refuse_unknown_keys(const struct object *object, const char *const *known);

/* Whether the key is missing, and may be. */
bool object_leaves_out(const struct object *object, const char *key, bool may);
#endif
