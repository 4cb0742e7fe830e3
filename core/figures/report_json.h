/*
 * The report as JSON. A process writes it at its end (report_write_json.c, from the values that
 * report_values_json.c makes). `cudapool report` reads it back (report_read_json.c).
 *
 * Needs jansson: part of libcudapool_config.so and of the command. No state; a report belongs to
 * the calling thread.
 *
 * The file is {"cudapool_report": 1, "process": {...}, "settings": {...}, "devices": [...]}, with
 * the names of report.h's fields. "settings" is spelled as in a settings file. Counters past 2^63-1
 * are strings of digits, because JSON readers would round such numbers.
 *
 * A file may also hold the reports of several processes, each spelled as in a file of its own:
 * {"cudapool_reports": 1, "reports": [...]}.
 */
#ifndef CUDAPOOL_CORE_REPORT_JSON_H
#define CUDAPOOL_CORE_REPORT_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "report.h"
#include "report_counts_json.h"

/* Bytes; longer files are not read. */
#define REPORT_FILE_MAX (64 * 1024 * 1024)

/* Writes the report to a file that appears under its name only when it is complete. Its mode is
 * 0666 less the process's umask. A path that is no regular file is written to directly
 * (report_file_json.h). 0, or -1 with one line in error. */
int report_write_json(const struct report *report, const char *path, char *error,
                      size_t error_bytes);

/* Reads what report_write_json wrote. 0, and the caller must call report_free; or -1 with one line
 * in error and *report untouched. Errors are an unknown or missing key, a wrong type, or another
 * version. */
int report_read_json(const char *path, struct report *report, char *error, size_t error_bytes);

/* Writes several reports to one file. A single report is written as report_write_json writes it. */
int reports_write_json(const struct report *reports, size_t count, const char *path, char *error,
                       size_t error_bytes);

/* Receives a report, whose devices it may take. The caller frees the report afterwards. Not 0 where
 * memory is short. */
typedef int report_visitor(struct report *report, void *context);

/* Reads a file of one report or of several, a pipe, or stdin for "-", and calls visit for each
 * report, in order. 0; or -1 with one line in error, when the reports before it have been
 * visited. */
int reports_read_json(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes);

/* Longer runs (30 million years) are not accepted. */
#define REPORT_SECONDS_MOST 1e15

/* The words for enum report_ending in reports; ends with NULL. */
extern const char *const report_endings[];

/* Parts of a report as JSON, for other documents that contain them. New references; NULL, or -1,
 * where memory is short. */
json_t *reports_to_json(const struct report *reports, size_t count);
json_t *report_kind_to_json(const struct report_kind *kind);
json_t *report_history_to_json(const struct report_sample *samples, size_t count);
int report_add_versions_to_json(json_t *object, const struct report_versions *versions);
int report_add_graphs(json_t *root, const struct report_graphs *graphs);
int report_add_segments_to_json(json_t *device, const struct report_segments *segments);
int report_add_unpooled_to_json(json_t *device, const struct report_unpooled *unpooled);

/* As report_write_json, exported by libcudapool_config.so to the preload object, for a process that
 * ends. Takes no memory of malloc's (scratch.h), and gives up at the deadline (writing.h). */
int cudapool_report_write(const struct report *report, const char *path, uint64_t deadline,
                          char *error, size_t error_bytes);

#endif
