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
 * new stream of its device.
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
#include "core/contexts/fence.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "stream_block.h"

struct context;
struct device;
struct stream_device;

/* An event of the pool's own, recorded in a free: see stream_events.h. */
struct stream_event {
    struct fence_event recorded;
    uint64_t stamp; /* it comes after all frees on the stream with stamps up to this */
    unsigned users; /* of a marker: threads that are using it */
    struct stream_event *next;
};

/* The events that were recorded in frees on the stream. */
struct stream_recorded {
    struct stream_event *list;   /* outstanding, by ascending stamp */
    unsigned outstanding, taken; /* how many those are, and how many a thread has taken off */
    struct stream_event *spare;
    struct stream_event
        *discarded;              /* to be destroyed without the lock: nobody will use them again */
    struct stream_event *marker; /* recorded again and again, as an operation: see stream_mark */
};

/* How much may be free before a free has to check more. */
struct stream_unchecked {
    uint64_t may_be_uncovered; /* bytes that may be pending with a stamp > covered. Written by
                                  stream_order.c, see uncovered_share there */
    uint64_t cap;  /* free bytes up to which the device's cap need not be checked. Written by
                      stream_reserve.c */
    int64_t bytes; /* free bytes up to which a free checks neither the cap nor the uncovered bytes.
                      Written by stream_shelf.h */
};

/* The memory of the stream's segments (stream_parts.h) that is in no block, live or free. */
struct stream_parts {
    counter spare_bytes;
    counter spare_stamp;       /* the newest stamp that a spare piece has or had */
    struct block_list waiting; /* parts that were freed where the stream's order is not enough, the
                                  next to be asked about first: see stream_merge.h. Linked through
                                  LINK_HEAP */
    counter waiting_bytes;     /* of the parts in waiting. Read without the lock as a hint */
};

/* What the record has given to the program, for its present stream and for former ones. */
struct stream_given {
    uint64_t handed_out;      /* the generation of the last block handed out: index + 1 in the upper
                                 16 bits, and a count of all blocks ever handed out below */
    uint64_t handed_before;   /* handed_out when the present stream began to use the record */
    uint64_t missed, adopted; /* blocks handed out that came from the driver, and from other
                                 streams. Written by stream_heap.c */
    uint64_t before;          /* missed + adopted when the present stream began */
};

/* Whether caching the stream's frees pays. */
struct stream_bypass {
    unsigned misses_at_bound; /* misses, nearly in a row, each of which evicted another block at
                                 the bound of the reserve */
    unsigned for_driver;      /* so many of the next frees are left to the driver because of that */
    uint64_t hits_at_bound;   /* the stream's hits when misses_at_bound was last updated */
    uint64_t missed_at_bound; /* given.missed when misses_at_bound was last updated */
};

/* Whether the stream is in use: see is_disused. */
struct stream_seen {
    uint64_t handed_out, at; /* given.handed_out when last seen to change, and the time of that on
                                the monotonic clock */
    unsigned frees_left;     /* frees_until_look then */
};

/* Each field is written by the file that its section names, unless the field names another one.
 * While the lock is held:
 *   free_bytes == clean_bytes + the bytes of pending
 *   covered_bytes == the bytes of pending with a stamp <= covered
 *   free_bytes + the bytes of its shelves' live blocks + parts.spare_bytes == reserved_bytes
 *   the stamps of spare pieces and of live parts <= parts.spare_stamp
 *   id == the list's id at its index
 *   every pending block has a stamp > done
 */
struct stream {
    _Alignas(STREAM_APART) struct short_lock lock;

    /* Identity: written by stream_table.c, which holds the list's lock too when the record changes
     * to another stream. */
    uint64_t id;     /* equals the id in the list; 0: the record serves no stream */
    unsigned index;  /* in the list */
    CUstream handle; /* of a created stream; otherwise CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
    uint64_t thread; /* the thread whose CU_STREAM_PER_THREAD it is; 0 for other streams;
                        PLAIN_FREES_THREAD for what the program has freed by cuMemFree */
    bool ordered_by_others; /* work of other streams may come before a free on it although no
                               operation in this stream shows that: see stream_order.h */
    bool own_order;         /* its own order alone allows reuse of a block: !ordered_by_others &&
                               !early_launches */
    _Atomic bool early_launches; /* a launch with programmatic stream serialization was made on
                                    it since memory is in use: its own order is not enough for
                                    reuse. Written under the lock, read relaxed without it */
    struct context *context;
    uint64_t generation; /* of the context */
    struct device *device;
    struct stream_device *on_device; /* the stream-ordered state of that device */

    /* What has completed, and how that is known (stream_order.h). Stamps are epochs of the
     * stream's context. */
    _Atomic uint64_t done; /* all work before the frees stamped up to here has completed. Not
                              lowered while the record serves streams of one context. Written under
                              the lock by stream_events.c and, where another context's stream begins
                              to use the record, by stream_table.c. Relaxed: whoever acts on it
                              reads it under the lock */
    uint64_t marked;       /* each free with a stamp up to here has an operation ordered after it in
                              the stream */
    _Atomic unsigned fences_requested; /* so many of the next frees record a fence, because another
                                          stream looked for one and found none. Relaxed: it orders
                                          nothing */
    uint64_t covered; /* each free with a stamp up to here has an event ordered after it.
                         Written by stream_shelf.c */

    struct stream_recorded events;  /* written by stream_events.c */
    uint64_t waited_for, waited_at; /* stamps: a wait for the frees up to waited_for timed out
                                       when done was waited_at. Written by stream_release.c */

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
    struct stream_unchecked unchecked;
    struct stream_parts parts; /* written by stream_parts.c */
    unsigned frees_until_look; /* frees until the clock is read next */
    uint64_t now;              /* the monotonic clock, in nanoseconds, when last read */
    struct stream_given given;
    unsigned search_from; /* its next search for a block skips so many other streams. Written by
                             stream_search.c */

    struct stream_bypass bypass; /* written by stream_bypass.c */
    struct stream_seen seen;     /* written by stream_table.c */
};

/* No thread has this id. The record stands for all of its context's streams:
 * streams_of_plain_frees.
 */
#define PLAIN_FREES_THREAD UINT64_MAX

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

/* Whether spare memory of the stream is not known to be clean. No lock needed. */
static inline bool stream_has_unclean_spare(const struct stream *stream)
{
    return counter_get(&stream->parts.spare_stamp) > stream_done(stream);
}

/* Whether freed parts of the stream's segments may still be used (stream_merge.h). No lock needed.
 */
static inline bool stream_has_waiting(const struct stream *stream)
{
    return counter_get(&stream->parts.waiting_bytes) != 0;
}

/* Whether anything on the stream seems not to be clean. No lock needed: the answer may be a moment
 * old. */
static inline bool stream_seems_unclean(const struct stream *stream)
{
    return counter_get(&stream->free_bytes) != counter_get(&stream->clean_bytes) ||
           stream_has_unclean_spare(stream) || stream_has_waiting(stream);
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

#endif
