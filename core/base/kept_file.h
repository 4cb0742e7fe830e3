/*
 * Files of the kernel's that are opened once, and read anew each time.
 *
 * Their descriptors have high numbers, so that those that programs count on stay free, and are
 * closed by exec. A program that closes all descriptors, or has a file of its own in such a place,
 * is left alone: each use looks first whether the descriptor is still that file.
 *
 * None of these is a cancellation point or changes errno.
 */
#ifndef CUDAPOOL_CORE_KEPT_FILE_H
#define CUDAPOOL_CORE_KEPT_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct kept_file {
    uint64_t path;          /* a hash of it */
    uint64_t device, inode; /* by which it is told from a file of the program's */
    int fd;
};

/* False where there is none, or the process may open no more. */
bool kept_file_open(struct kept_file *file, const char *path);

/* Among so many; NULL: it is none of them, or the program has closed it. */
const struct kept_file *kept_file_find(const struct kept_file *files, unsigned count,
                                       const char *path);

/* Async-signal-safe. */
void kept_file_close(const struct kept_file *file);

#endif
