/*
 * Parts that cannot be merged into their segments yet (stream_parts.h), and segments that must be
 * released to the driver.
 *
 * A part that was freed where the order of its segment's stream is not enough waits in that
 * stream's list `waiting`. No request takes it there. It waits until a fence of its context shows
 * its epoch as clean. If no fence can be had, or the free was in another context, it waits for an
 * event of its own.
 *
 * Parts are merged whenever pending memory is queried (stream_pending_query), and before a request
 * for which nothing else can be cut.
 *
 * The callers hold no stream's lock. stream_ends_forget holds the fence lock, all others hold none.
 */
#ifndef CUDAPOOL_CORE_STREAM_MERGE_H
#define CUDAPOOL_CORE_STREAM_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* Whether any part of the device (NULL: of any) waits to be merged. */
bool stream_merge_has_waiting(const struct streams *streams, const struct device *device);

/* Merges waiting parts that nothing uses any more into their segments. It asks about a few of each
 * stream's events, and about all where a context ends. ending: the context that the calling thread
 * ends, or NULL. Parts of contexts that other threads are ending stay. */
void stream_merge_all(struct pool *pool, const struct device *device, const struct context *ending);

/* Merges parts of this stream's segments. Asks about a fence first that would show some as clean.
 * False: none waits. */
bool stream_merge_own(struct pool *pool, struct stream *stream);

/* If other threads are merging parts, waits for them to finish, but not for long. */
void stream_merge_await_others(const struct streams *streams);

/* Merges a part into its segment. The part is counted nowhere, in no list, and nothing uses it. */
void stream_merge_part(struct pool *pool, struct stream_block *part);

/* Puts a part that is counted nowhere and in no list into `waiting`. A later look merges it once
 * this event has completed, or its context has ended. The event is the part's from now on. NULL:
 * the part waits until epoch_own_clean of its context is >= block.epoch. */
void stream_merge_after(struct pool *pool, struct stream_block *part, struct fence_event *event);

/* Parts that a thread has taken: marked as refused, and in no other list. */
struct merge_parts {
    size_t count, room;
    struct stream_block **list; /* NULL: an entry that has been dealt with */
};

/* For a context that is about to end, and kept from other threads. stream_merge_take_waiting takes
 * the parts of its streams that wait for its work, as far as there is memory for the list. Then the
 * caller records an event after all of the context's work. stream_merge_collect_segments returns
 * the segments in which nothing is live, chained through links[LINK_HEAP].next and detached from
 * their streams. The driver is to free them ordered after that event. Without an event the caller
 * calls stream_merge_put_back instead. Both end the list. */
struct merge_parts stream_merge_take_waiting(struct pool *pool, const struct context *context);
struct block *stream_merge_collect_segments(struct pool *pool, struct merge_parts *parts);
void stream_merge_put_back(struct pool *pool, struct merge_parts *parts);

/* Releases a segment that must not stay (MERGED_LEAVES) to the driver. handle: in this stream's
 * order; NULL: nothing uses the segment any more. */
void stream_merge_release_segment(struct pool *pool, struct stream_block *whole,
                                  const CUstream *handle);

#endif
