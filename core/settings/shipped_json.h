/*
 * The settings that come along (configs/), by name: part of whoever reads settings, so that a name
 * needs no file. Constant: any thread.
 */
#ifndef CUDAPOOL_CORE_SHIPPED_JSON_H
#define CUDAPOOL_CORE_SHIPPED_JSON_H

#include <stddef.h>

struct shipped_config {
    const char *name; /* "strict" */
    const char *purpose;
    const char *text, *end; /* the file */
};

/* Their number, and one of them. */
size_t shipped_config_count(void);
const struct shipped_config *shipped_config_at(size_t index);

/* NULL where there is none of this name. A path, such as ./strict, is no name. */
const struct shipped_config *shipped_config_named(const char *name);

/* The name that a misspelt one was meant to be; NULL where it is like none. */
const char *shipped_config_nearest(const char *name);

/* The JSON Schema of settings files. */
const struct shipped_config *shipped_schema(void);

#endif
