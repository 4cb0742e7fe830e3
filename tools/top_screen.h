/*
 * `cudapool top` on a terminal: devices as bars, processes as a list to move in, and the buckets of
 * the one that is chosen.
 */
#ifndef CUDAPOOL_TOOLS_TOP_SCREEN_H
#define CUDAPOOL_TOOLS_TOP_SCREEN_H

#include <signal.h>

#include "top_rows.h"

struct top_options {
    double interval;     /* seconds */
    unsigned long count; /* 0: until it is ended */
    enum top_order order;
};

/* Between top_draw_begin and top_draw_end (top_draw.h): shows the processes until the user or a
 * signal, which sets *ended, ends it. 0, or the exit status; what there is to complain of is to be
 * said after the end. */
int top_screen_show(const struct top_options *options, struct view *view,
                    const volatile sig_atomic_t *ended);

#endif
