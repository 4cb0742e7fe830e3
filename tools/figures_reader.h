/*
 * Reading files of figures (core/figures/figures.h): those of processes that run, that were killed,
 * or that were asked to keep theirs.
 *
 * The file may be anything: all that is in it is checked before it is used, in a private copy. Any
 * thread, no lock.
 */
#ifndef CUDAPOOL_TOOLS_FIGURES_READER_H
#define CUDAPOOL_TOOLS_FIGURES_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "core/figures/figures_file.h"
#include "core/figures/report.h"

/* What a file said at one moment. */
struct figures_copy {
    struct figures_header *header; /* and the records after it: checked, texts terminated */
    struct settings settings;
    enum figures_use use; /* whether the file was in use then */
};

/* Whether the file begins as one of figures, of whatever version. */
bool figures_is_file(const char *path);

/* 0, and the caller owes a figures_free; or -1 with one line in error and *copy untouched: cut
 * short, of another version or architecture, or damaged. */
int figures_read(const char *path, struct figures_copy *copy, char *error, size_t error_bytes);
void figures_free(struct figures_copy *copy);

/* Whether the process is there. One in another pid namespace of this machine cannot be seen: it is
 * taken to be alive unless its file says that it is not. */
enum figures_life figures_life(const struct figures_copy *copy);

/* The report that the process would make of what the copy says; the caller owes a report_free. 0,
 * or -1 where memory is short. */
int figures_to_report(const struct figures_copy *copy, struct report *report);

/* Reads a file of figures as a report. As figures_read. */
int figures_read_report(const char *path, struct report *report, char *error, size_t error_bytes);

#endif
