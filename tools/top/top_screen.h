/*
 * `cudapool top` on a terminal: a bar for each device, and a list of processes to move in. Enter
 * opens the buckets of the chosen process.
 */
#ifndef CUDAPOOL_TOOLS_TOP_SCREEN_H
#define CUDAPOOL_TOOLS_TOP_SCREEN_H

#include <signal.h>

#include "top_rows.h"

struct top_options {
    double interval;     /* seconds */
    unsigned long count; /* of looks; 0: until the user ends it */
    enum top_order order;
};

/* Shows the processes until the user ends it, or a signal sets *ended. To be called between
 * top_draw_begin and top_draw_end (top_draw.h). Returns 0, the exit status, or -1 if memory is
 * short. The caller complains of short memory after top_draw_end. */
int top_screen_show(const struct top_options *options, struct view *view,
                    const volatile sig_atomic_t *ended);

#endif
