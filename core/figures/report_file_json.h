/*
 * Files of reports, which appear under their names when they are complete.
 *
 * Part of libcudapool_config.so and of the command, as what makes their text is. Takes no memory of
 * malloc's and no lock: also for a process that ends inside a signal handler.
 */
#ifndef CUDAPOOL_CORE_REPORT_FILE_JSON_H
#define CUDAPOOL_CORE_REPORT_FILE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Writes the text to a new file beside path, which then takes the place of what is there, with the
 * modes that the process's umask leaves of 0666. A link is followed to the file that is replaced,
 * and stays. What report_file_is_direct is written to directly. 0, or -1 with errno: EAGAIN where
 * the file had no room until the deadline (writing.h).
 */
int report_file_write(const char *path, const char *text, size_t bytes, uint64_t deadline);

/* 0, or -1 with errno, where report_file_write could not do so now. A FIFO that nobody reads yet is
 * all right. */
int report_file_check(const char *path);

/* Whether the path leads to what is no regular file, such as a device or a pipe, or to a file that
 * a process has open, such as /dev/fd/3; /dev/stdout and /dev/stderr are the process's own. */
bool report_file_is_direct(const char *path);

/* Opens one for writing. waits: until somebody reads a FIFO, which is an error otherwise. The
 * descriptor, or -1 with errno. */
int report_file_open_direct(const char *path, bool waits);

#endif
