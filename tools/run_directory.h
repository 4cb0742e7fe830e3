/*
 * The directory of a run, which only this user can read: where its processes have their figures and
 * write their reports. It is locked for as long as the run is there; one whose run was killed, and
 * in which no process counts any more, goes when the next is made.
 */
#ifndef CUDAPOOL_TOOLS_RUN_DIRECTORY_H
#define CUDAPOOL_TOOLS_RUN_DIRECTORY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "core/settings/config.h"

struct run_directory {
    char path[PATH_MAX];
    int lock; /* -1: none */
};

/* Makes it below the directory that the settings name for figures, or else in memory, or else below
 * $TMPDIR or /tmp. False after a complaint. */
bool run_directory_make(const struct figures_settings *figures, struct run_directory *directory);

/* Removes it and everything in it. */
void run_directory_remove(struct run_directory *directory);

/* The name that a pattern (core/base/file_pattern.h) means for this process. False after a
 * complaint. */
bool expand_for_self(const char *name, char *path, size_t bytes);

/* True for a name that ends so, and has something before. */
static inline bool name_ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);

    return length > end_length && strcmp(name + length - end_length, end) == 0;
}

#endif
