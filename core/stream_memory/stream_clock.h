/*
 * What work comes after, as plain data: see stream_order.h, which says what it means.
 */
#ifndef CUDAPOOL_CORE_STREAM_CLOCK_H
#define CUDAPOOL_CORE_STREAM_CLOCK_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;
struct stream;

/* The first so many streams take part in what streams know of each other through events. */
#define STREAMS_ORDERED 64u

/* What work submitted from now on comes after, as stamps of the streams in their order. */
struct order_clock {
    uint64_t after[STREAMS_ORDERED];
};

/* What is known of work that waits for everything on a stream so far. */
struct order_mark {
    struct stream *stream;   /* NULL: nothing is known */
    struct context *context; /* of the stream; NULL: not known. What is known of it stays where
                                nothing is known of its work */
    uint64_t stamp;
    unsigned count; /* of clock that are in use */
    struct order_clock clock;
};

/* What an event stands for. */
struct event_look {
    uint64_t version;        /* 0: not known */
    struct context *context; /* that it is in; NULL: not known */
    struct order_clock clock;
};

#endif
