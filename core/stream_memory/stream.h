/*
 * The record of one CUDA stream that the pool knows: its identity, its lifetime and its free
 * blocks.
 *
 * A CUstream handle does not identify a stream. NULL and CU_STREAM_LEGACY mean another stream in
 * each context, and CU_STREAM_PER_THREAD means another one in each thread and context. The driver
 * may give the handle of a destroyed stream to a new one. The driver's own number of a stream
 * (cuStreamGetId, called in the calling thread) is never reused, so the pool identifies streams by
 * it. Where the driver has no such numbers, the pool serves no stream-ordered memory. Each thread
 * caches the numbers of created streams by their handles. A cached number that belongs to no stream
 * any more is asked for again.
 *
 * A struct stream is made when a stream first uses stream-ordered memory. When the stream is
 * destroyed, the record belongs to no stream (its id is 0). Other streams may then reuse its free
 * blocks, by the rules of stream_order.h. Once nothing in it is pending, the record serves the next
 * new stream of its device. Its stamps are never reset, so whatever is known of a stamp stays true.
 *
 * Locking: a stream's lock guards its shelves and every field for which nothing else is said. The
 * list's lock guards making and ending streams. Ids and the list are read without that lock.
 * Whoever has found a stream this way checks under the stream's lock that the record still serves
 * it (stream_is).
 */
#ifndef CUDAPOOL_CORE_STREAM_H
#define CUDAPOOL_CORE_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/blocks/block.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "stream_block.h"

struct context;
struct device;
struct stream_device;

/* An event of the pool's own, recorded in a free: see stream_order.h. */
struct own_event {
    CUevent event;
    struct context *context; /* it was created in; generation: that context's at the time, since
                                handles are reused */
    uint64_t generation;
    uint64_t stamp; /* of the free it was recorded in. When the event has completed, so has all
                       work submitted before that free */
    unsigned users; /* threads that are using it. It is not recorded again while there are any */
    bool over;      /* no longer outstanding; spare once users is 0 */
    bool in_free;   /* recorded inside the free with this stamp, so a stream may wait for it.
                       Otherwise it may include later work, and is only queried */
    struct own_event *next;
};

/* Each field is written by the file that its section names, unless the field names another one.
 * While the lock is held:
 *   done, marked, covered <= stamp
 *   free_bytes == clean_bytes + the bytes of pending
 *   covered_bytes == the bytes of pending with a stamp <= covered
 *   free_bytes + the bytes of live blocks that its shelves count + spare_bytes == reserved_bytes
 *   the stamps of spare pieces and of live parts <= spare_stamp
 *   id == the list's id at its index
 * After own_events_apply_done, every pending block and every outstanding event has a stamp > done.
 */
struct stream {
    _Alignas(STREAM_APART) struct short_lock lock;

    /* Identity: written by stream_table.c, which holds the list's lock too when the record changes
     * to another stream. */
    uint64_t id;     /* equals the id in the list; 0: the record serves no stream */
    unsigned index;  /* in the list */
    CUstream handle; /* of a created stream; otherwise CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
    uint64_t thread; /* the thread whose CU_STREAM_PER_THREAD it is; 0 for other streams */
    bool ordered_by_others; /* work of other streams may come before a free on it although no
                               operation in this stream shows that: see stream_order.h */
    bool own_order;         /* its own order alone allows reuse of a block: !ordered_by_others &&
                               !early_launches */
    _Atomic bool early_launches;     /* a launch with programmatic stream serialization was made on
                                        it since memory is in use: its own order is not enough for
                                        reuse. Written under the lock, read relaxed without it */
    _Atomic unsigned naming_threads; /* threads that pass its handle to the driver outside of the
                                        program's calls on it. Raised under the lock while the
                                        record serves a stream, whose end waits for them. The
                                        release of each pairs with the acquire in stream_end */
    struct context *context;
    uint64_t generation; /* of the context */
    struct device *device;
    struct stream_device *on_device; /* the stream-ordered state of that device */

    /* What has completed, and how that is known (stream_order.h): written by own_events.c. */
    _Atomic uint64_t stamp; /* of the last free on it. Written under the lock by stream_shelf.h */
    _Atomic uint64_t done;  /* all work before the frees stamped up to here has completed. Never
                               lowered. Relaxed: whoever acts on it reads it under the lock. The
                               raising thread takes the lock afterwards, or its call happened
                               before */
    uint64_t marked;  /* each free with a stamp up to here has an operation ordered after it in
                         the stream */
    uint64_t covered; /* each free with a stamp up to here has an own event ordered after it,
                         which can be queried. Written by stream_shelf.c */
    struct own_event *oldest, *newest; /* outstanding events, by ascending stamp */
    struct own_event *spare;
    struct own_event *discarded; /* to be destroyed without the lock: nobody will use them again */
    struct own_event *marker;    /* an event that is recorded again and again: see own_event_mark */
    uint64_t not_ready_stamp, not_ready_until,
        not_ready_ns;               /* written by own_events_query_sparingly, which explains them */
    uint64_t waited_for, waited_at; /* stamps: a wait for the frees up to waited_for timed out
                                       when done was waited_at. Written by stream_release.c */
    counter outstanding; /* how many events are outstanding. Read without the lock where a missed
                            look is harmless */
    _Atomic unsigned events_requested; /* so many of the next frees record an event, because another
                                       stream looked for one and found none. Relaxed: it orders
                                       nothing */

    /* Blocks that are free or may be (stream_heap.h): written by stream_shelf.[ch]. */
    _Atomic(struct shelf *) shelves; /* one for each memory pool, never removed. Release when one
                                        is added; acquire when they are walked without the lock */
    struct shelf *recent_shelf;      /* used last; the others follow by next_recent */
    struct block_list pending;       /* by ascending stamp, of all shelves */
    counter free_bytes, clean_bytes, reserved_bytes;
    _Atomic unsigned detached; /* blocks that were taken off its shelves and may return with
                                  their old stamps. Until they do, the record serves no other
                                  stream. Raised under the lock; the release of each pairs with
                                  the acquire in lock_to_become */
    uint64_t covered_bytes;    /* of pending blocks with a stamp <= covered */
    uint64_t may_be_uncovered; /* bytes that may be pending with a stamp > covered. Written by
                                  stream_free_event.c, see uncovered_share there */
    uint64_t unchecked_cap;    /* free bytes up to which the device's cap need not be checked.
                                  Written by stream_reserve.c */
    int64_t unchecked_bytes;   /* free bytes up to which a free checks neither the cap nor the
                                  uncovered bytes */
    counter spare_bytes; /* of its segments, in no block that is live or free: see stream_parts.h */
    counter spare_stamp; /* the newest stamp that a spare piece has or had */
    struct block_list clean_parts; /* clean parts that are not merged into their segments yet:
                                      see stream_merge.h. Linked through LINK_HEAP, and in no
                                      bucket's list */
    struct block *waiting; /* parts of its segments that were freed where no stamp tells when
                              they are clean. Linked through links[LINK_HEAP].next. Written by
                              stream_merge.c */
    counter away; /* parts in clean_parts and in waiting. Read without the lock as a hint */
    unsigned frees_until_look; /* frees until the clock is read next */
    uint64_t now;              /* the monotonic clock, in nanoseconds, when last read */
    uint64_t handed_out;      /* the generation of the last block handed out: index + 1 in the upper
                                 16 bits, and a count of all blocks ever handed out below */
    uint64_t handed_before;   /* handed_out when the present stream began to use the record */
    uint64_t missed, adopted; /* blocks handed out that came from the driver, and from other
                                 streams. Written by stream_miss.c */
    uint64_t given_before;    /* missed + adopted when the present stream began to use the record */
    unsigned search_from;     /* its next search for a block skips so many other streams. Written by
                                 stream_search.c */

    /* Whether caching its frees pays: written by stream_bypass.c. */
    unsigned misses_at_bound; /* misses, nearly in a row, each of which evicted another block at
                                 the bound of the reserve */
    unsigned for_driver;      /* so many of the next frees are left to the driver because of that */
    uint64_t hits_at_bound;   /* the stream's hits when misses_at_bound was last updated */
    uint64_t missed_at_bound; /* missed when misses_at_bound was last updated */

    uint64_t stamp_when_looked; /* of the last free when the housekeeper last looked. Written by
                                   own_event_record.c */

    /* Whether it is in use: written by stream_table.c, see is_disused. */
    uint64_t seen_stamp, seen_handed_out, seen_at; /* stamp and handed_out when last seen to
                                                      change, and the time of that on the
                                                      monotonic clock */
};

/* A stream that was found without its lock. Under the lock, stream_is tells whether the record
 * still serves it. */
struct stream_ref {
    struct stream *stream; /* NULL: none */
    uint64_t id;
};

/* The caller holds the stream's lock. */
static inline bool stream_is(struct stream_ref ref)
{
    lock_must_be_held(&ref.stream->lock);
    return ref.stream->id == ref.id;
}

/* All work before the frees stamped up to this has completed. */
static inline uint64_t stream_done(const struct stream *stream)
{
    return atomic_load_explicit(&stream->done, memory_order_relaxed);
}

/* Whether anything on the stream is not known to be clean. stream_has_unclean_spare looks at
 * spare memory alone, and needs no lock. */
static inline bool stream_has_unclean_spare(const struct stream *stream)
{
    return counter_get(&stream->spare_stamp) > stream_done(stream);
}

static inline bool stream_is_unclean(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream->pending.first || stream_has_unclean_spare(stream);
}

/* stream_block_is_detached: a block has left the stream's shelves; the caller holds the lock.
 * stream_block_has_a_place: the block has returned to them, or will not; no lock is needed. */
static inline void stream_block_is_detached(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_add_explicit(&stream->detached, 1, memory_order_relaxed);
}

static inline void stream_block_has_a_place(struct stream *stream)
{
    atomic_fetch_sub_explicit(&stream->detached, 1, memory_order_release);
}

/* The first is called with the lock held, while the record serves a stream. The second needs no
 * lock. */
static inline void stream_is_named_to_driver(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_add_explicit(&stream->naming_threads, 1, memory_order_relaxed);
}

static inline void stream_is_named_no_more(struct stream *stream)
{
    atomic_fetch_sub_explicit(&stream->naming_threads, 1, memory_order_release);
}

#endif
