/*
 * What start.c tells report_at_exit.c about the pool that it started.
 */
#ifndef CUDAPOOL_SHIM_START_H
#define CUDAPOOL_SHIM_START_H

#include <sys/types.h>
#include <time.h>

#include "core/figures/report.h"
#include "core/settings/config.h"
#include "shim.h"

/* libcudapool_config.so's cudapool_report_write: see report_json.h. */
typedef int report_writer(const struct report *report, const char *path, uint64_t deadline,
                          char *error, size_t error_bytes);

struct run {
    struct pool *pool;
    pid_t pid;               /* the process that started it */
    struct timespec started; /* CLOCK_MONOTONIC */
    struct settings settings;
    bool collected;            /* whoever started the process takes its figures, or its report */
    report_writer *write_json; /* there when settings.report.at_exit is REPORT_JSON */
};

/* The pool that this very process started, or NULL: none, or it is the parent's. Any thread. */
HIDDEN const struct run *run_of_this_process(void);

/* Gets ready what a report at the process's end needs and cannot get then. */
HIDDEN void report_prepare(const struct run *run);

#endif
