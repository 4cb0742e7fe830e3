/*
 * The processes that are on the pool, for `cudapool top` and `trim`: what their figures and the
 * board (core/board/board.h) say now, and what the figures said the time before. They are read from
 * outside, which costs the processes nothing.
 */
#ifndef CUDAPOOL_TOOLS_TOP_WATCH_H
#define CUDAPOOL_TOOLS_TOP_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/board/board.h"
#include "core/figures/report.h"

/* What tells processes of this machine apart: a number alone may be there once in each container.
 */
struct process_identity {
    int64_t pid;
    uint64_t pid_namespace, start_ticks;
};

bool is_same_identity(const struct process_identity *one, const struct process_identity *other);

/* A process at one time, and what it had counted the time before. */
struct watched {
    struct process_identity identity;
    struct report *report;       /* without figures: number and command, and no device */
    struct report *before;       /* NULL: it is new */
    uint64_t at, before_at;      /* nanoseconds of the monotonic clock */
    bool has_figures, on_board;  /* one of them at least */
    struct board_process shared; /* what the board says of it, if it is there */
};

struct view {
    int64_t pid;           /* 0: all */
    const char *directory; /* where the figures are; NULL: the usual ones */
    struct board *board;   /* NULL: there is none */
    const char *no_board;  /* why; NULL: not looked for yet */
    uint64_t own_pid_namespace;
    struct watched *watched;
    size_t count, room;
    bool failed; /* memory is short */
};

/* Looks at what there is now. 0, or the exit status after a complaint. */
int view_look(struct view *view);
void view_free(struct view *view);

/* What was counted in the time between two looks; of a process that is new, since it started. */
struct rates {
    double requests, misses; /* a second; below 0: unknown */
    uint64_t live, cached, pending;
    bool is_live_unknown; /* the board knows what a process holds where it has a limit */
};

struct rates rates_of_process(const struct watched *watched);
struct rates rates_of_bucket(const struct watched *watched, int ordinal,
                             const struct report_kind *kind, const struct report_bucket *bucket);

/* The share of the requests that the pool answered, from 0 to 1; below 0 where there were none. */
double hit_share(const struct rates *rates);

/* All three together. */
uint64_t memory_of(const struct rates *rates);

/* What a process without figures holds on a device, as far as it says so, and what of it is in use.
 */
uint64_t live_on_board(const struct board_process_device *device);

#endif
