/*
 * Files of reports, which appear under their names when they are complete.
 *
 * Part of libcudapool_config.so and of the command, as what makes their text is. Takes no memory of
 * malloc's and no lock: also for a process that ends inside a signal handler.
 */
#ifndef CUDAPOOL_CORE_REPORT_FILE_JSON_H
#define CUDAPOOL_CORE_REPORT_FILE_JSON_H

#include <stddef.h>
#include <stdint.h>

/*
 * Writes the text to a new file beside path, which then takes the place of what is there, with the
 * modes that the process's umask leaves of 0666. A link is followed to the file that is replaced,
 * and stays. A name under /dev or /proc, and what is no regular file, is written to directly;
 * /dev/stdout and /dev/stderr are the process's own. 0, or -1 with errno: EAGAIN where the file had
 * no room until the deadline (writing.h).
 */
int report_file_write(const char *path, const char *text, size_t bytes, uint64_t deadline);

#endif
