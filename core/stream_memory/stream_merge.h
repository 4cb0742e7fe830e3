/*
 * Parts that cannot be merged into their segments yet (stream_parts.h), and segments that must be
 * released to the driver.
 *
 * A part that was pending on a stream and becomes clean waits in the stream's clean_parts, where no
 * request takes it. A part may be freed where no stamp of a known stream tells when it is clean: on
 * a stream that the pool does not serve, or not now, or in another context. It waits in the list
 * `waiting` of its segment's stream, with an event of its own. Both kinds are merged whenever
 * pending memory is queried (stream_pending_query), and before a request for which nothing else can
 * be cut.
 *
 * The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_MERGE_H
#define CUDAPOOL_CORE_STREAM_MERGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* Whether any part of the device (NULL: of any) waits to be merged. */
bool stream_merge_has_waiting(const struct streams *streams, const struct device *device);

/* Merges every waiting part that nothing uses any more into its segment. ending: the context that
 * the calling thread ends, or NULL. Parts of contexts that other threads are ending stay. */
void stream_merge_all(struct pool *pool, const struct device *device, const struct context *ending);

/* If other threads are merging parts, waits for them to finish, but not for long. */
void stream_merge_await_others(const struct streams *streams);

/* Merges a part into its segment. The part is counted nowhere, in no list, and nothing uses it. */
void stream_merge_part(struct pool *pool, struct stream_block *part);

/* Merges such a part once this event has completed. The event is the part's from now on. An event
 * without one of the driver's completes when its context has ended. */
void stream_merge_after(struct pool *pool, struct stream_block *part, struct fence_event *event);

/* The context is about to end, and kept from other threads. Returns the segments of its streams in
 * which nothing is live. Their parts may be pending, or wait for the context's work. The segments
 * are chained through links[LINK_HEAP].next and detached from their streams. The driver is to free
 * them ordered after all of the context's work. */
struct block *stream_merge_collect_segments(struct pool *pool, struct context *context);

/* Releases a segment that must not stay (MERGED_LEAVES) to the driver. handle: in this stream's
 * order; NULL: nothing uses the segment any more. */
void stream_merge_release_segment(struct pool *pool, struct stream_block *whole,
                                  const CUstream *handle);

#endif
