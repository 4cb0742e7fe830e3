/*
 * `cudapool top` on a terminal: devices as bars, processes as a list to move in, and the buckets of
 * the one that is chosen.
 */
#ifndef CUDAPOOL_TOOLS_TOP_SCREEN_H
#define CUDAPOOL_TOOLS_TOP_SCREEN_H

#include <signal.h>
#include <stdbool.h>

#include "top_rows.h"

struct top_options {
    double interval;     /* seconds */
    unsigned long count; /* 0: until it is ended */
    enum top_order order;
};

/* Whether the whole screen can be had: stdin and stdout are one terminal whose kind is known. The
 * caller then owes a top_screen_end. */
bool top_screen_begin(void);
void top_screen_end(void);

/* Shows the processes until the user or a signal, which sets *ended, ends it. 0, or the exit
 * status; what there is to complain of is to be said after top_screen_end. */
int top_screen_show(const struct top_options *options, struct view *view,
                    const volatile sig_atomic_t *ended);

#endif
