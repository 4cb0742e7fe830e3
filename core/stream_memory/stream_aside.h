/*
 * Parts that are away from their segments, until they go home (stream_parts.h); and segments that
 * the driver gets, since they must not stay.
 *
 * Where a part is clean on a stream whose order is not its own's, it is put aside there
 * (stream->clean_parts): nobody gets it. A part that was freed where no stamp of a known stream
 * tells when that is over waits aside at its home, with an event of its own (stream->waiting): on a
 * stream that the pool does not serve, or not now, or in another context. Both go home whenever
 * what is pending is asked about (stream_settle), and before a request for which nothing else can
 * be cut.
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_ASIDE_H
#define CUDAPOOL_CORE_STREAM_ASIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* Whether any part of the device (NULL: all) is aside. */
bool stream_aside_has_any(const struct streams *streams, const struct device *device);

/* Everything there of which nothing is unfinished any more goes home. ending: the context that the
 * calling thread ends, or NULL; of others that are being ended nothing goes. */
void stream_aside_go_home(struct pool *pool, const struct device *device,
                          const struct context *ending);

/* Where other threads are just doing so: lets them come to an end, but waits for no one long. */
void stream_aside_await_others(const struct streams *streams);

/* A part that is counted nowhere and in no list, and that nothing uses any more, goes home. */
void stream_aside_take_home(struct pool *pool, struct stream_block *part);

/* The same once this event is over, which is the part's from now on; one with no event of the
 * driver's is over when its context has ended. */
void stream_aside_wait(struct pool *pool, struct stream_block *part, struct own_event *event);

/* The context is about to end, and kept from others: the segments of its streams of which nothing
 * is live, though what is pending there, or waits for its work, may not be over. Chained through
 * links[LINK_HEAP].next, and away from their streams, for the driver to have them behind all of the
 * context's work. */
struct block *stream_aside_collect(struct pool *pool, struct context *context);

/* A segment that must not stay, MERGED_LEAVES, goes to the driver: in the stream's order, or (NULL)
 * since nothing uses it any more. */
void stream_aside_give(struct pool *pool, struct stream_block *whole, const CUstream *handle);

#endif
