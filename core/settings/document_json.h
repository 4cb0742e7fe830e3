/*
 * Loads a JSON file, and reports what is wrong with it: the first error, or all of them.
 *
 * The readers of settings and of reports share this code. A document belongs to one thread. Every
 * error is one line without control characters that begins with the file's name.
 */
#ifndef CUDAPOOL_CORE_DOCUMENT_JSON_H
#define CUDAPOOL_CORE_DOCUMENT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Room for a place in a document, such as "devices[0].kinds[1].buckets[12].hits.clean". */
#define PLACE_BYTES 256

/* Receives one error. */
typedef void document_complaint(const char *line, void *context);

struct document {
    const char *file; /* its name, as the user gave it */
    char *error;      /* receives the error; not NULL where error_bytes is not 0 */
    size_t error_bytes;

    /* If not NULL, receives each error in place of the field error, and reading goes on after an
     * error. The line is valid during the call. */
    document_complaint *each;
    void *each_context;

    const char *hint; /* appended to the error where the file does not exist; or NULL */
    bool waits;       /* files that are not regular are read to their end, too; "-" is stdin */
};

/* Loads a regular file of at most most_bytes as one JSON value. The caller owns the reference. NULL
 * with the error written. Never blocks on a FIFO or a device, unless the document's waits is
 * true. */
json_t *document_load(const struct document *document, size_t most_bytes);

/* As document_load, for text in memory. */
json_t *document_parse(const struct document *document, const char *text, size_t bytes);

/* Writes an error: the file, the place in the document (NULL or "": none), and the message. Returns
 * -1. */
int document_fail(const struct document *document, const char *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes the error of a value that is not allowed: what was found, then what is allowed. Returns
 * -1. */
int document_refuse(const struct document *document, const char *place, const json_t *found,
                    const char *allowed);

/* The text as a new JSON string. Text that is not UTF-8 is escaped (core/base/one_line.h) and cut
 * to fewer than `most` bytes, because readers have room for no more. NULL where memory is short. */
json_t *json_string_of_any_bytes(const char *text, size_t most);

/* Returns the object if status is 0; otherwise drops its reference and returns NULL. */
json_t *json_unless_failed(json_t *object, int status);

/* Writes parent.key, or key where parent is "", cut off where it is too long. */
void place_of_key(char place[PLACE_BYTES], const char *parent, const char *key);

/* Writes parent[index]. */
void place_of_item(char place[PLACE_BYTES], const char *parent, size_t index);

#endif
