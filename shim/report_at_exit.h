/*
 * The report that a process writes when it ends, and the end of its figures file.
 */
#ifndef CUDAPOOL_SHIM_REPORT_AT_EXIT_H
#define CUDAPOOL_SHIM_REPORT_AT_EXIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "core/figures/report.h"
#include "core/pool/pool.h"
#include "core/settings/config.h"
#include "shim.h"

/* libcudapool_config.so's cudapool_report_write: see report_json.h. */
typedef int report_writer(const struct report *report, const char *path, uint64_t deadline,
                          char *error, size_t error_bytes);

struct run {
    struct pool *pool;
    pid_t pid;        /* the process that started it */
    uint64_t started; /* when the process itself started: nanoseconds of CLOCK_MONOTONIC */
    struct settings settings;
    bool collected;            /* whoever started the process collects its figures or its report */
    report_writer *write_json; /* set when settings.report.at_exit is REPORT_JSON */
};

/* Prepares what a report at the process's end needs and cannot obtain then. */
HIDDEN void report_prepare(const struct run *run);

/* Writes the report and ends the figures. Called once, in the process that started the pool. */
HIDDEN void report_at_exit(const struct run *run);

#endif
