/*
 * Looking for a free block that serves a request beside what its stream's own order gives at once:
 * steps 2 to 4 and 6 of stream_heap.h. No lock is held where a function does not say otherwise.
 *
 * What is found is in no stream's counters any more, and away from the stream that it was found on
 * (stream_block_is_detached) until its finder has counted it elsewhere.
 */
#ifndef CUDAPOOL_CORE_STREAM_SEARCH_H
#define CUDAPOOL_CORE_STREAM_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/figures/stats.h"
#include "own_events.h"
#include "stream_clock.h"
#include "stream_shelf.h"
#include "streams.h"

/* A request on its way through the other streams. */
struct search {
    struct pool *pool;
    struct stream_ref ref;
    CUstream handle;
    struct mempool *mempool;
    struct context *context;
    uint64_t generation;
    uint64_t bytes;  /* of the bucket */
    bool host_only;  /* only what is over will do */
    bool everywhere; /* in all streams, however many have such blocks */
    unsigned from;   /* behind how many other streams it begins */
    struct order_clock known;
    struct bucket *whole; /* where blocks are cut: of blocks that one may be cut out of, of so
                             many bytes; else NULL */
    struct shelf *shelf;  /* in that case: the request's shelf, and bucket */
    struct bucket *bucket;
    bool cut;                   /* the block was cut out of what had become free meanwhile */
    struct stream_block *found; /* where no new memory could be had */
    enum hit found_by;
    struct stream_holders *holders;   /* NULL: sizes that are not kept */
    unsigned count;                   /* of candidates */
    uint16_t candidates[STREAMS_MAX]; /* streams with something pending there, in the order in which
                                         they were looked at */
};

/* False where the stream has ended. */
bool search_begin(struct search *search, struct pool *pool, struct stream_ref ref, CUstream handle,
                  const struct shelf *shelf, struct bucket *bucket);

/* What is looked for is a block that one of the request's may be cut out of, of that bucket of the
 * same shelf. */
void search_for_whole(struct search *search, struct bucket *whole);

/* Whether streams may be asked about, and put behind each other's frees, by the settings and the
 * pool's attributes. */
bool search_asks(const struct search *search);
bool search_may_wait(const struct search *search);

/* Streams that take each other's blocks in turn would do so for ever: one whose block was taken
 * takes a new one in the place of the old one, as long as the reserve has room for it. Whether that
 * is so for this request. */
bool search_replaces_taken(const struct search *search, struct bucket *bucket);

/* A block of another stream, or NULL. Of many streams that have such blocks only some are looked
 * at. */
struct stream_block *search_others(struct search *search, enum hit *hit);

/* A block of the stream's own whose free turns out to be over, or NULL. */
struct stream_block *search_ask_about_own(struct search *search, struct bucket *bucket);

/* Where no new memory can be had: search->found is then the block, and search->found_by how it was
 * found. As the driver does, the stream is put behind another one's free only now: while there is
 * memory, nobody is held up for it. */
bool search_harder(struct search *search);

/* Lock held. What may be handed out in the stream's order, off its lists, or NULL. */
static inline struct stream_block *search_take_own(struct stream *stream, struct bucket *bucket)
{
    lock_must_be_held(&stream->lock);
    if (!stream->own_order)
        own_events_settle(stream);
    struct block *found = shelf_find_own(stream, bucket);
    if (!found)
        return NULL;
    shelf_take(stream, bucket, stream_block_of(found));
    return stream_block_of(found);
}

#endif
