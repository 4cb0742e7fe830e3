/*
 * What a text that is no JSON has that other formats allow.
 *
 * Part of libcudapool_config.so and the command. No state.
 */
#ifndef CUDAPOOL_CORE_MISTAKE_JSON_H
#define CUDAPOOL_CORE_MISTAKE_JSON_H

#include <stddef.h>

struct json_mistake {
    const char *what; /* "a comment, which JSON does not have" */
    int line, column; /* from 1 on; columns count characters */
};

/* Finds the first of them in so many bytes at the text's beginning, all that a parser has read when
 * it failed. The mistake's what is NULL where there is none. */
struct json_mistake json_find_mistake(const char *text, size_t bytes);

#endif
