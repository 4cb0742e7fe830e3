/*
 * The processes that `cudapool top` shows: what their figures say now, and what they said the time
 * before. They are read from outside, which costs the processes nothing.
 */
#ifndef CUDAPOOL_TOOLS_TOP_WATCH_H
#define CUDAPOOL_TOOLS_TOP_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/figures/report.h"

/* A process at one time, and what it had counted the time before. */
struct watched {
    struct report *report;
    struct report *before;  /* NULL: it is new */
    uint64_t at, before_at; /* nanoseconds of the monotonic clock */
};

struct view {
    int64_t pid;           /* 0: all */
    const char *directory; /* NULL: the usual ones */
    struct watched *watched;
    size_t count, room;
    bool failed; /* memory is short */
};

/* Looks at what there is now. 0, or the exit status after a complaint. */
int view_look(struct view *view);
void view_free(struct view *view);

/* What was counted in the time between two looks; of a process that is new, since it started. */
struct rates {
    double requests, misses; /* a second */
    uint64_t live, cached, pending;
};

struct rates rates_of_process(const struct watched *watched);
struct rates rates_of_bucket(const struct watched *watched, int ordinal,
                             const struct report_kind *kind, const struct report_bucket *bucket);

/* The share of the requests that the pool answered, from 0 to 1; below 0 where there were none. */
double hit_share(const struct rates *rates);

/* All three together. */
uint64_t memory_of(const struct rates *rates);

#endif
