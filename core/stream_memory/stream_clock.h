/*
 * What work is ordered after, as plain data: stream_order.h says what it means.
 */
#ifndef CUDAPOOL_CORE_STREAM_CLOCK_H
#define CUDAPOOL_CORE_STREAM_CLOCK_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;
struct stream;

/* Only streams with an index below this take part in what streams know of each other through
 * events. */
#define STREAMS_ORDERED 64u

/* For each stream by its index: work submitted from now on is ordered after the frees stamped up to
 * this. */
struct order_clock {
    uint64_t after[STREAMS_ORDERED];
};

/* What is known of work that waits for everything submitted to a stream so far. */
struct order_mark {
    struct stream *stream;   /* NULL: nothing is known */
    struct context *context; /* of the stream; NULL: not known. It may be set where stream is
                                NULL */
    uint64_t stamp;
    unsigned count; /* how many entries of clock are in use */
    struct order_clock clock;
};

/* What an event stood for when it was looked up. */
struct event_look {
    uint64_t version;        /* 0: not known */
    struct context *context; /* of the event; NULL: not known */
    struct order_clock clock;
};

#endif
