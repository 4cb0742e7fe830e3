/*
 * The settings that are shipped in configs/, by name. They are embedded in the code that reads
 * settings, so that a name needs no file. Constant: any thread.
 */
#ifndef CUDAPOOL_CORE_SHIPPED_JSON_H
#define CUDAPOOL_CORE_SHIPPED_JSON_H

#include <stddef.h>

struct shipped_config {
    const char *name; /* such as "strict" */
    const char *purpose;
    const char *text, *end; /* the file's bytes */
};

/* The number of shipped settings, and one of them. */
size_t shipped_config_count(void);
const struct shipped_config *shipped_config_at(size_t index);

/* The shipped settings with this name, or NULL. A path, such as ./strict, is no name. */
const struct shipped_config *shipped_config_named(const char *name);

/* The shipped name that is most like a misspelt one; NULL where none is like it. */
const char *shipped_config_nearest(const char *name);

/* The JSON Schema of settings files. */
const struct shipped_config *shipped_schema(void);

#endif
