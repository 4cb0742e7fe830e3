/*
 * Streams that the pool knows: who they are, and how long.
 *
 * A CUstream is a name that means different streams in different places: NULL and CU_STREAM_LEGACY
 * are each context's own, CU_STREAM_PER_THREAD each thread's in each context, and the handle of a
 * destroyed stream may be given to the next one. The driver's own number (cuStreamGetId, asked in
 * the calling thread) is never given twice; where the driver has none, a stream is its handle,
 * context and thread, and the hooks say when it ends. A thread remembers the numbers of created
 * streams by their handles: a number that has ended is no stream's any more, and is asked for
 * again.
 *
 * A struct stream is made when a stream first uses stream-ordered memory, or first waits for one
 * that did. When its stream is destroyed it is nobody's, and its free blocks may go to other
 * streams by the ways that are open to those (stream_order.h); once nothing in it is pending, it
 * serves the next new stream of its device. Its stamps go on counting through all of that, so that
 * what was once known of a stamp stays true.
 *
 * Locking: a stream's lock guards everything in it that says nothing else, and its shelves. The
 * list's lock guards making and ending. Numbers (ids) and the list are read without it: whoever has
 * found a stream so looks again under the stream's lock whether it is still the one.
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
#include "stream_clock.h"

struct context;
struct device;
struct stream_device;

/* An event of our own, recorded in a free; see stream_order.h. */
struct own_event {
    CUevent event;
    struct context *context; /* that it was made in, and which of the handle's owners that is */
    uint64_t generation;
    uint64_t stamp; /* of the free that it was recorded in: work before that is over when it is */
    unsigned users; /* threads that look at it: an event in use is never recorded again */
    bool over;      /* no longer outstanding; spare once users is 0 */
    bool in_free; /* recorded in that very free: else it may stand for later work, too, and is only
                     ever asked about */
    struct own_event *next;
};

/* A field that its section's file does not write says who does. With the lock held
 *   done, marked, covered <= stamp
 *   free_bytes == clean_bytes + the bytes of pending
 *   covered_bytes == the bytes of pending with a stamp <= covered
 *   free_bytes + the bytes of live blocks that its shelves count + spare_bytes == reserved_bytes
 *   what is spare has a stamp <= spare_stamp, and so have live parts
 *   id == the list's id at its index
 * and, after own_events_settle, whatever is pending or outstanding has a stamp > done. */
struct stream {
    _Alignas(STREAM_APART) struct short_lock lock;

    /* Who it is: written by stream_table.c, with the list's lock held where it becomes another. */
    uint64_t id;            /* as in the list of them; 0: nobody's */
    unsigned index;         /* in the list */
    CUstream handle;        /* of a created one; else CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
    uint64_t thread;        /* whose own it is; 0 for others */
    bool ordered_by_others; /* what others do comes before a free on it with no operation in it that
                               would tell so: see stream_order.h */
    bool own_order; /* its own order alone lets a block be used again: neither that, nor early
                       launches */
    _Atomic bool early_launches; /* a launch with programmatic stream serialization was made since
                                    memory is in use: the stream's own order is not enough to reuse
                                    it. Written under the lock; relaxed where read without */
    _Atomic unsigned naming_threads; /* threads that name it to the driver, outside of calls on it.
                                        Added to under the lock while it is somebody's; its end
                                        waits for them. The release of each pairs with the acquire
                                        in stream_end */
    struct context *context;
    uint64_t generation; /* of the context */
    struct device *device;
    struct stream_device *on_device; /* what is kept for that device */

    /* What is over, and how that is known (stream_order.h): written by own_events.c. */
    _Atomic uint64_t stamp; /* of the last free on it. Written by stream_shelf.h, under the lock */
    _Atomic uint64_t done;  /* everything stamped up to here is over. Only ever raised: relaxed,
                               since whoever acts on it looks under the lock, which the raising
                               thread takes after it or whose call happened before */
    uint64_t marked;  /* a free with a stamp up to here has an operation behind it in the stream */
    uint64_t covered; /* and one up to here an event of ours, which may be asked about. Written by
                         stream_shelf.c */
    struct order_clock known;          /* what its later work comes after: see stream_learn */
    struct own_event *oldest, *newest; /* outstanding, by ascending stamp */
    struct own_event *spare;
    struct own_event *discarded; /* that nobody will use again: to be destroyed without the lock */
    struct own_event *marker;    /* recorded over and over: see own_event_mark */
    uint64_t vain_stamp, vain_until,
        vain_ns;                    /* see own_events_query_sparingly, which writes them */
    uint64_t waited_for, waited_at; /* stamps: up to the first was waited for without success, when
                                       what was over was up to the second. stream_release.c */
    counter outstanding; /* of those; read without the lock where a look too few does no harm */
    _Atomic unsigned events_wanted; /* so many frees record an event: another stream has looked for
                                       one in vain. Relaxed: it orders nothing */

    /* Free blocks, and what may be free (stream_heap.h): written by stream_shelf.[ch]. */
    _Atomic(struct shelf *) shelves; /* one for each memory pool; only added to. Release when one is
                                        added, acquire when they are walked without the lock */
    struct shelf *recent_shelf;      /* the one that was used last, and through it all */
    struct block_list pending;       /* by ascending stamp, all shelves together */
    counter free_bytes, clean_bytes, reserved_bytes;
    _Atomic unsigned detached; /* blocks that were taken off its shelves, and may come back with the
                                  stamps that they had: until then it is nobody else's. Added to
                                  under the lock; the release of each pairs with the acquire in
                                  lock_to_become */
    uint64_t covered_bytes;    /* of what is pending, up to covered */
    uint64_t may_be_uncovered; /* bytes that may be pending and not covered. Written by
                                  stream_free.c, see uncovered_share there */
    uint64_t unchecked_cap;    /* free bytes up to which the device's cap need not be looked at.
                                  Written by stream_reserve.c */
    int64_t unchecked_bytes;   /* free bytes up to which a free has to look at none of this */
    counter spare_bytes;       /* of segments, in no block's hands: see stream_parts.h */
    counter spare_stamp;       /* the newest of what is spare, or was */
    struct block_list clean_parts; /* clean, and not back in their segments yet: see stream_aside.h.
                                      Through LINK_HEAP, and in no list of a bucket's */
    struct block *waiting;     /* parts of its segments, freed where no stamp tells when they are
                                  over: through links[LINK_HEAP].next. Written by stream_aside.c */
    counter away;              /* parts in these two. Read without the lock as a hint */
    unsigned frees_until_look; /* until the next look at the clock */
    uint64_t now;              /* nanoseconds of the monotonic clock when last looked at */
    uint64_t handed_out;      /* the last block's generation: the stream's index + 1 in the upper 16
                                 bits, and a count of all blocks ever */
    uint64_t handed_before;   /* the same, as its present owner began */
    uint64_t missed, adopted; /* blocks that the driver gave, and other streams: of those that were
                                 handed out. Written by stream_miss.c */
    uint64_t given_before;    /* both, as its present owner began */
    unsigned search_from;     /* behind how many others its next look for a block begins. Written by
                                 stream_search.c */

    /* Whether it pays to keep what is freed: written by stream_payoff.c. */
    unsigned misses_at_bound; /* nearly in a row, each of which cost another block its place */
    unsigned for_driver;      /* so many frees are the driver's because of that */
    uint64_t hits_at_bound;   /* of the stream as these were counted */
    uint64_t missed_at_bound; /* as misses at the bound were counted */

    uint64_t stamp_when_looked; /* of the last free, as the housekeeper last saw it. Written by
                                   own_event_record.c */

    /* Whether it is used: written by stream_table.c, see is_disused. */
    uint64_t seen_stamp, seen_handed_out, seen_at; /* what was done on it up to that time, of the
                                                      monotonic clock */
};

/* A stream as it was found: under its lock, stream_is says whether it still is. */
struct stream_ref {
    struct stream *stream; /* NULL: none */
    uint64_t id;
};

/* Lock held. */
static inline bool stream_is(struct stream_ref ref)
{
    lock_must_be_held(&ref.stream->lock);
    return ref.stream->id == ref.id;
}

/* Everything stamped up to here is over. */
static inline uint64_t stream_done(const struct stream *stream)
{
    return atomic_load_explicit(&stream->done, memory_order_relaxed);
}

/* Whether anything there is not known to be over. Lock not needed where only spare memory was
 * freed.
 */
static inline bool stream_has_unsettled_spare(const struct stream *stream)
{
    return counter_get(&stream->spare_stamp) > stream_done(stream);
}

static inline bool stream_is_unsettled(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream->pending.first || stream_has_unsettled_spare(stream);
}

/* Lock held. What is submitted to the stream from now on comes after that stamp of the one with
 * this place in the list. */
static inline void stream_learn(struct stream *stream, unsigned index, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    if (stream->known.after[index] < stamp)
        stream->known.after[index] = stamp;
}

/* Lock held: a block has left the stream's shelves; no lock needed: it has come back, or will not.
 */
static inline void stream_block_is_detached(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_add_explicit(&stream->detached, 1, memory_order_relaxed);
}

static inline void stream_block_has_a_place(struct stream *stream)
{
    atomic_fetch_sub_explicit(&stream->detached, 1, memory_order_release);
}

/* Lock held, and the stream somebody's; no lock needed. */
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
