/*
 * The directory of a run. The run's processes keep their figures and write their reports there, and
 * only this user can read it.
 *
 * The run holds a lock in the directory while it lives. If a run is killed, its directory stays.
 * The next run_directory_make removes it, once no process keeps figures there any more.
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
    int lock; /* descriptor of the lock; -1: none */
};

/* Makes the directory below the first of these: the directory that the settings name for figures,
 * one in memory, $TMPDIR, and /tmp. Returns false after a complaint. */
bool run_directory_make(const struct figures_settings *figures, struct run_directory *directory);

/* Removes the directory and everything in it. */
void run_directory_remove(struct run_directory *directory);

/* Expands a file name pattern (core/base/file_pattern.h) for this process. Returns false after a
 * complaint. */
bool expand_for_self(const char *name, char *path, size_t bytes);

/* Returns true if the name ends with end and has at least one character before it. */
static inline bool name_ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);

    return length > end_length && strcmp(name + length - end_length, end) == 0;
}

#endif
