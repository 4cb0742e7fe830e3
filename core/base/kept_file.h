/*
 * Files of the kernel's that are opened once and read many times.
 *
 * Their descriptors have high numbers, so that the numbers which programs count on stay free. exec
 * closes them. A program may close all descriptors, or open a file of its own under such a number.
 * So each use first checks whether the descriptor still is the kernel's file, and else leaves it
 * alone.
 *
 * None of these is a cancellation point or changes errno.
 */
#ifndef CUDAPOOL_CORE_KEPT_FILE_H
#define CUDAPOOL_CORE_KEPT_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct kept_file {
    uint64_t path;          /* a hash of the path */
    uint64_t device, inode; /* tell it from a file of the program's */
    int fd;
};

/* Opens the file. Returns false if there is none, or if the process may open no more files. */
bool kept_file_open(struct kept_file *file, const char *path);

/* Returns the one of count files that has this path. NULL: none has it, or the program has closed
 * the file. */
const struct kept_file *kept_file_find(const struct kept_file *files, unsigned count,
                                       const char *path);

/* Closes the file, unless the program has closed it. Async-signal-safe. */
void kept_file_close(const struct kept_file *file);

#endif
