/*
 * The pool of this process, and what report_at_exit.c is told about it.
 */
#ifndef CUDAPOOL_SHIM_START_H
#define CUDAPOOL_SHIM_START_H

#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#include "core/driver/calls.h"
#include "core/figures/report.h"
#include "core/pool/pool.h"
#include "core/settings/config.h"
#include "shim.h"

/*
 * The pool, started on the first call. NULL where the program runs without it: switched off,
 * unreadable settings, no usable driver, a forked child, under compute-sanitizer, or the calling
 * thread is already inside a driver call that the pool made (a profiler calling back).
 */
HIDDEN extern _Atomic(struct pool *) pool_to_use;
HIDDEN struct pool *start_unless_decided(void);
static inline struct pool *the_pool(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    if (__builtin_expect(!pool, 0))
        pool = start_unless_decided();
    return pool && !is_inside_driver() ? pool : NULL;
}

/* The same without starting it. */
static inline struct pool *the_pool_at_once(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    return __builtin_expect(pool && !is_inside_driver(), 1) ? pool : NULL;
}

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
