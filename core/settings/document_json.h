/*
 * A JSON file being read: loading it, and the error that says what is wrong with it, or all of
 * them.
 *
 * Shared by the readers of settings and of reports. A document belongs to one thread. Every error
 * is one line without control characters that begins with the file's name.
 */
#ifndef CUDAPOOL_CORE_DOCUMENT_JSON_H
#define CUDAPOOL_CORE_DOCUMENT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Room for a place in a document, "devices[0].kinds[1].buckets[12].hits.clean". */
#define PLACE_BYTES 256

/* Is told one error. */
typedef void document_complaint(const char *line, void *context);

struct document {
    const char *file; /* its name, as the user gave it */
    char *error;      /* receives the error; not NULL where error_bytes is not 0 */
    size_t error_bytes;

    /* Where it is not NULL, each error goes there and not to error, and what can be read after an
     * error is looked at as well. The line is valid during the call. */
    document_complaint *each;
    void *each_context;

    const char *hint; /* appended where the file is not there; NULL: nothing */
    bool waits; /* files that are not regular are read as well, to their end, and - is stdin */
};

/* Loads a regular file of at most most_bytes as one JSON value. The caller owns the reference.
 * NULL where that fails, with the error written. Never blocks on a FIFO or a device, unless the
 * document says so. */
json_t *document_load(const struct document *document, size_t most_bytes);

/* document_load of text that is in memory already. */
json_t *document_parse(const struct document *document, const char *text, size_t bytes);

/* Writes the error: file, place in the document (NULL or "": none), and the message. Returns -1. */
int document_fail(const struct document *document, const char *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes the error of a value that is not what is allowed: what was found, then what is allowed.
 * Returns -1. */
int document_refuse(const struct document *document, const char *place, const json_t *found,
                    const char *allowed);

/* The text as a new JSON string. Where it is no UTF-8 it is escaped (core/base/one_line.h), and cut
 * before it has `most` bytes: who reads it has no room for more. NULL where memory is short. */
json_t *json_string_of_any_bytes(const char *text, size_t most);

/* The object where status is 0; otherwise NULL, and the object is gone. */
json_t *json_unless_failed(json_t *object, int status);

/* parent.key, or key where parent is "". Cut off where it is too long. */
void place_of_key(char place[PLACE_BYTES], const char *parent, const char *key);

/* parent[index] */
void place_of_item(char place[PLACE_BYTES], const char *parent, size_t index);

#endif
