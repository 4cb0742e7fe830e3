/*
 * The report as JSON: writing it when a process ends, and reading it back for `cudapool report`.
 *
 * Needs jansson: part of libcudapool_config.so and of the command. No state; a report belongs to
 * the calling thread.
 *
 * The file is {"cudapool_report": 1, "process": {...}, "settings": {...}, "devices": [...]}, with
 * the names of report.h's fields. "settings" is spelled as a settings file is. Counters past
 * 2^63-1, which JSON readers would round, are strings of digits.
 */
#ifndef CUDAPOOL_CORE_REPORT_JSON_H
#define CUDAPOOL_CORE_REPORT_JSON_H

#include <stddef.h>

#include "report.h"

/* Longer files are not read. */
#define REPORT_FILE_MAX (64 * 1024 * 1024)

/*
 * Writes the report to a file that appears under its name only when it is complete, with the modes
 * that the process's umask leaves of 0666. A name under /dev or /proc, and a file that exists and
 * is not a regular one, is written to directly; /dev/stdout and /dev/stderr are the process's own.
 * 0, or -1 with one line in error.
 */
int report_write_json(const struct report *report, const char *path, char *error,
                      size_t error_bytes);

/*
 * Reads what report_write_json wrote. 0, and the caller owes a report_free; or -1 with one line in
 * error and *report untouched: an unknown or missing key, a wrong type, another version.
 */
int report_read_json(const char *path, struct report *report, char *error, size_t error_bytes);

/* report_write_json, as libcudapool_config.so exports it to the preload object. */
int cudapool_report_write(const struct report *report, const char *path, char *error,
                          size_t error_bytes);

#endif
