/*
 * Finds in a text that is not JSON what other formats allow: a comment, a comma after the last
 * element, or a byte order mark. The error can then name the mistake.
 *
 * Part of libcudapool_config.so and the command. No state.
 */
#ifndef CUDAPOOL_CORE_MISTAKE_JSON_H
#define CUDAPOOL_CORE_MISTAKE_JSON_H

#include <stddef.h>

struct json_mistake {
    const char *what; /* "a comment, which JSON does not have" */
    int line, column; /* both from 1; columns count characters */
};

/* Finds the first such mistake in the text's first bytes: those that the parser had read when it
 * failed. what is NULL where there is none. */
struct json_mistake json_find_mistake(const char *text, size_t bytes);

#endif
