/*
 * Files of reports, which appear under their names only when they are complete.
 *
 * Part of libcudapool_config.so and of the command, as is the code that makes their text. Takes
 * neither malloc's memory nor a lock, and so also works in a process that ends inside a signal
 * handler.
 */
#ifndef CUDAPOOL_CORE_REPORT_FILE_JSON_H
#define CUDAPOOL_CORE_REPORT_FILE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes the text to a new file beside path and renames it to path. The file's mode is 0666 less
 * the process's umask. A symbolic link is followed: its target is replaced, and the link stays. A
 * path for which report_file_is_direct is true is written to directly. 0, or -1 with errno: EAGAIN
 * where the file had no room until the deadline (writing.h). */
int report_file_write(const char *path, const char *text, size_t bytes, uint64_t deadline);

/* Tests whether report_file_write could write now: 0, or -1 with errno. A FIFO without a reader
 * passes. */
int report_file_check(const char *path);

/* Whether report_file_write writes to the path directly. That holds for anything but a regular
 * file, such as a device or a pipe. It also holds for files that a process has open: /dev/stdout,
 * /dev/stderr, or /dev/fd/3. */
bool report_file_is_direct(const char *path);

/* Opens a path for direct writing. /dev/stdout and /dev/stderr are the process's own. Where a FIFO
 * has no reader, waits for one if waits is true, else fails. The descriptor, or -1 with errno. */
int report_file_open_direct(const char *path, bool waits);

#endif
