/*
 * Reads files of figures (core/figures/figures.h): those of running processes, of killed ones, and
 * of processes that were asked to keep theirs.
 *
 * A file may contain anything. The reader copies it to private memory and checks all of it before
 * use. Any thread, no lock.
 */
#ifndef CUDAPOOL_TOOLS_FIGURES_READER_H
#define CUDAPOOL_TOOLS_FIGURES_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "core/figures/figures_file.h"
#include "core/figures/report.h"

/* What a file contained at one moment. */
struct figures_copy {
    struct figures_header *header; /* followed by the records; checked, texts terminated */
    struct settings settings;
    enum figures_use use; /* whether a process had the file in use at that moment */
};

/* Whether the file begins like a file of figures, of whatever version. */
bool figures_is_file(const char *path);

/* Reads a file. Returns 0, and the caller calls figures_free. Returns -1, with one line in error
 * and *copy untouched, if the file is cut short, damaged, or of another version or architecture. */
int figures_read(const char *path, struct figures_copy *copy, char *error, size_t error_bytes);
void figures_free(struct figures_copy *copy);

/* Whether the process of the figures exists. A process in another pid namespace of this machine
 * cannot be seen. It counts as alive unless its file says that it is not. */
enum figures_life figures_life(const struct figures_copy *copy);

/* Makes the report that the process would make from what the copy says. The caller calls
 * report_free. Returns 0, or -1 if memory is short. */
int figures_to_report(const struct figures_copy *copy, struct report *report);

/* Reads a file of figures as a report. Returns and errors as of figures_read. */
int figures_read_report(const char *path, struct report *report, char *error, size_t error_bytes);

#endif
