/*
 * Observes the processes that use the pool, for `cudapool top` and `cudapool trim`. A view has what
 * their figures and the board (core/board/board.h) say now, and what the figures said at the look
 * before. Both are read from outside, so that the processes lose no time.
 */
#ifndef CUDAPOOL_TOOLS_TOP_WATCH_H
#define CUDAPOOL_TOOLS_TOP_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/board/board.h"
#include "core/figures/report.h"

/* Identifies a process on this machine. The pid alone does not: each container may use it. */
struct process_identity {
    int64_t pid;
    uint64_t pid_namespace, start_ticks;
};

bool is_same_identity(const struct process_identity *one, const struct process_identity *other);

/* A process at one look, and its report from the look before. */
struct watched {
    struct process_identity identity;
    struct report *report;       /* without figures it has only pid and command, and no device */
    struct report *before;       /* the report of the look before; NULL: the process is new */
    uint64_t at, before_at;      /* when each was read: nanoseconds of the monotonic clock */
    bool has_figures, on_board;  /* at least one is true */
    struct board_process shared; /* what the board says; valid if on_board */
};

struct view {
    int64_t pid;           /* the only process to watch; 0: all */
    const char *directory; /* that holds the figures; NULL: the usual directories */
    struct board *board;   /* NULL: none */
    const char *no_board;  /* why there is no board; NULL: not looked for yet */
    uint64_t own_pid_namespace;
    struct watched *watched;
    size_t count, room;
    bool failed; /* memory is short */
};

/* Reads the present state of all processes. Returns 0, or the exit status after a complaint. */
int view_look(struct view *view);
void view_free(struct view *view);

/* What a process or bucket did between two looks. For a new process, the time begins at its
 * start. */
struct rates {
    double requests, misses; /* per second; below 0: unknown */
    uint64_t live, cached, pending;
    uint64_t unpooled;    /* held beside the pool, as far as it is counted */
    bool is_live_unknown; /* no figures, and the board counts held bytes only under a limit */
};

struct rates rates_of_process(const struct watched *watched);
struct rates rates_of_bucket(const struct watched *watched, int ordinal,
                             const struct report_kind *kind, const struct report_bucket *bucket);

/* Returns the share of the requests that the pool answered, from 0 to 1, or a value below 0 if
 * there were no requests. */
double hit_share(const struct rates *rates);

/* Returns live + cached + pending + unpooled. */
uint64_t memory_of(const struct rates *rates);

/* Returns the bytes in use of a process without figures: what it says it holds on the device, less
 * what is cached and pending. */
uint64_t live_on_board(const struct board_process_device *device);

#endif
