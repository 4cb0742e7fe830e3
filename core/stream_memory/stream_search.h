/*
 * Searches for a free block that serves a request, where the stream's own order gives none at once:
 * steps 2 and 3 of stream_heap.h. No lock is held where a function does not say otherwise.
 *
 * A block that is found is in no stream's counters any more. It is detached from the stream that it
 * was found on (stream_block_is_detached) until the caller has counted it elsewhere.
 */
#ifndef CUDAPOOL_CORE_STREAM_SEARCH_H
#define CUDAPOOL_CORE_STREAM_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/figures/stats.h"
#include "stream_events.h"
#include "stream_shelf.h"
#include "streams.h"

/* A request and the state of its search through the other streams. */
struct search {
    struct pool *pool;
    struct stream_ref ref;
    CUstream handle;
    struct mempool *mempool;
    struct context *context;
    uint64_t generation;
    uint64_t bytes;  /* of the bucket */
    bool host_only;  /* only clean blocks will do */
    bool everywhere; /* visit all streams that have such blocks, however many */
    unsigned from;   /* how many streams the search skips first */
    /* Where blocks are cut: the bucket of the larger blocks that are looked for, to cut one out of
     * them; else NULL. */
    struct bucket *whole;
    struct shelf *shelf; /* where whole is set: the request's shelf and bucket */
    struct bucket *bucket;
    bool cut; /* the block was cut out of memory that became free during the miss */
    struct stream_block *found; /* where the driver had no memory: the block found instead */
    enum hit found_by;
    struct stream_holders *holders; /* NULL: the size is not cached */
    unsigned count;                 /* of candidates */
    /* The streams that have a pending block of this size, in the order of the search. */
    uint16_t candidates[STREAMS_MAX];
};

/* Starts a search for a request on this stream. False where the stream has ended. */
bool search_begin(struct search *search, struct pool *pool, struct stream_ref ref, CUstream handle,
                  const struct shelf *shelf, struct bucket *bucket);

/* From now on searches for a block of this bucket of the same shelf, out of which the requested
 * block may be cut. */
void search_for_whole(struct search *search, struct bucket *whole);

/* What the settings and the pool's attributes allow. search_asks: the search may ask about other
 * streams' events. search_may_wait: where the driver has no memory, the stream may be made to wait
 * for other streams' frees. */
bool search_asks(const struct search *search);
bool search_may_wait(const struct search *search);

/* Whether this request must take a new block from the driver. It must if another stream has taken a
 * block of this bucket, and the reserve has room for a replacement. Otherwise streams that take
 * each other's blocks in turn would do so for ever. */
bool search_replaces_taken(const struct search *search, struct bucket *bucket);

/* Returns a block of another stream, or NULL. If many streams have such blocks, it looks only at
 * some of them. */
struct stream_block *search_others(struct search *search, enum hit *hit);

/* Returns a block of the stream itself whose work turns out to have completed, or NULL. */
struct stream_block *search_ask_about_own(struct search *search, struct bucket *bucket);

/* For a request that the driver has no memory for. Looks at all streams that have such blocks
 * (search->found, found_by). */
bool search_harder(struct search *search);

/* Lock held. Takes a block that may be handed out in the stream's order off its lists; NULL: there
 * is none. */
static inline struct stream_block *search_take_own(struct stream *stream, struct bucket *bucket)
{
    lock_must_be_held(&stream->lock);
    if (!stream->own_order)
        stream_done_apply(stream);
    struct block *found = shelf_find_own(stream, bucket);
    if (!found)
        return NULL;
    shelf_take(stream, bucket, stream_block_of(found));
    return stream_block_of(found);
}

#endif
