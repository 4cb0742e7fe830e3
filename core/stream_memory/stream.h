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
 * Locking: a stream's lock guards everything in it that says nothing else, and its shelves. No two
 * streams' locks are held at a time, no other lock is taken under one but the records' and the
 * table's, and none is held across a driver call. The list's lock guards making and ending; a
 * stream's lock may be taken under it. Numbers (ids) and the list are read without it: whoever has
 * found a stream so looks again under the stream's lock whether it is still the one.
 */
#ifndef CUDAPOOL_CORE_STREAM_H
#define CUDAPOOL_CORE_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/short_lock.h"
#include "core/blocks/block.h"
#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "stream_block.h"
#include "stream_clock.h"

struct context;
struct device;
struct pool;
struct stream_device;

/* Where more streams than this launch early before any memory is in use, all streams count as such.
 */
#define STREAMS_EARLY 64u

/* More streams than this are never known at a time: the driver answers for the others. One that was
 * not used for some time makes way for one that is. */
#define STREAMS_MAX    1024u
#define STREAMS_HASHES 2048u

/* Nor more buckets, of all streams together: sizes beyond are not kept. */
#define STREAM_BUCKETS_MAX 131072u

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

struct stream {
    _Alignas(STREAM_APART) struct short_lock lock;
    uint64_t id;            /* as in the list of them; 0: nobody's */
    unsigned index;         /* in the list */
    CUstream handle;        /* of a created one; else CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
    uint64_t thread;        /* whose own it is; 0 for others */
    bool ordered_by_others; /* what others do comes before a free on it with no operation in it that
                               would tell so: see stream_order.h */
    bool own_order; /* its own order alone lets a block be used again: neither that, nor early
                       launches */
    struct context *context;
    uint64_t generation; /* of the context */
    struct device *device;
    struct stream_device *on_device; /* what is kept for that device */

    /* order: see stream_order.h */
    _Atomic uint64_t stamp; /* of the last free on it; written under the lock */
    _Atomic uint64_t done;  /* everything stamped up to here is over. Only ever raised: relaxed,
                               since whoever acts on it looks under the lock, which the raising
                               thread takes after it or whose call happened before */
    uint64_t joined;  /* a free with a stamp up to here has an operation behind it in the stream */
    uint64_t covered; /* and one up to here an event of ours, which may be asked about */
    struct order_clock known;
    struct own_event *oldest, *newest; /* outstanding, by ascending stamp */
    struct own_event *spare;
    struct own_event *discarded; /* that nobody will use again: to be destroyed without the lock */
    struct own_event *marker;    /* recorded over and over: see order_join */
    uint64_t vain_stamp, vain_until, vain_ns; /* see order_query_sparingly */
    counter outstanding; /* of those; read without the lock where a look too few does no harm */
    _Atomic bool early_launches; /* a launch with programmatic stream serialization was made since
                                    memory is in use: the stream's own order is not enough to reuse
                                    it. Written under the lock; relaxed where read without */
    _Atomic unsigned wanted; /* so many frees record an event: another stream has looked for one in
                                vain. Relaxed: it orders nothing */

    /* memory: see stream_heap.h */
    _Atomic(struct shelf *) shelves; /* one for each memory pool; only added to. Release when one is
                                        added, acquire when they are walked without the lock */
    struct shelf *recent_shelf;      /* the one that was used last, and through it all */
    struct block_list pending;       /* by ascending stamp, all shelves together */
    counter free_bytes, clean_bytes, reserved_bytes;
    _Atomic unsigned away;  /* blocks that were taken off its shelves, and may come back with the
                               stamps that they had: until then it is nobody else's. Added to under
                               the lock; the release of each pairs with the acquire in
                               lock_to_become */
    uint64_t covered_bytes; /* of what is pending, up to covered */
    uint64_t share;         /* bytes that may be pending and not covered: see order_share */
    _Atomic unsigned names; /* threads that name it to the driver, outside of calls on it. Added to
                               under the lock while it is somebody's; its end waits for them. The
                               release of each pairs with the acquire in stream_end */
    uint64_t may_keep;      /* free bytes up to which the device's cap need not be looked at */
    int64_t quiet_bytes;    /* free bytes up to which a free has to look at none of this */
    unsigned frees_to_look; /* until the next look at the clock */
    uint64_t now;           /* nanoseconds of the monotonic clock when last looked at */
    uint64_t handed_out;    /* the last block's generation: the stream's index + 1 in the upper 16
                               bits, and a count of all blocks ever */
    uint64_t handed_before; /* the same, as its present owner began */
    unsigned misses_at_bound; /* nearly in a row, each of which cost another block its place */
    unsigned for_driver;      /* so many frees are the driver's because of that */
    uint64_t hits_at_bound;   /* of the stream as these were counted */
    uint64_t missed, adopted; /* blocks that the driver gave, and other streams */
    uint64_t given_before;    /* both, as its present owner began */
    uint64_t missed_at_bound; /* as misses at the bound were counted */
    unsigned searched;        /* streams that were looked through for blocks, so far */
    uint64_t seen_stamp, seen_handed_out, seen_at; /* what was done on it up to that time, of the
                                                      monotonic clock: see is_disused */
};

/* Where many streams are known, a look through all of them costs more than what it may find: after
 * one that was in vain there is none for some time, so that they take no more than a small share of
 * it. The time is on the monotonic clock. Relaxed: it only saves looks. */
#define STREAMS_MANY 32u

struct pause {
    _Atomic uint64_t until;
};

struct event_shard;

/* All of a pool's stream-ordered memory. */
struct streams {
    struct block_table blocks;
    char apart[STREAM_APART];          /* every call reads what is above, few write it */
    pthread_mutex_t lock;              /* the list's */
    _Atomic uint64_t ids[STREAMS_MAX]; /* 0: nobody's. Written under the list's and the stream's
                                          lock; the release store pairs with the acquire load in
                                          stream_id */
    /* The streams whose ids have the same hash, chained: a place in the list and 1; 0 is the end.
     * Walked without a lock: whoever does not find his id, and sees another version than before,
     * has perhaps been led into another chain, and looks again with the list's lock. The release
     * stores pair with the acquire loads in stream_look_up */
    _Atomic uint32_t by_id[STREAMS_HASHES], with_same_hash[STREAMS_MAX];
    _Atomic uint64_t hash_version;           /* odd while a stream is taken out of its chain */
    _Atomic uint64_t busy[STREAMS_MAX / 64]; /* a bit for each stream that is somebody's, or has
                                                something pending: see order_take_context */
    _Atomic unsigned captures_coming;        /* threads that are about to begin one: see
                                                order_record_the_rest */
    _Atomic unsigned short_lived;            /* see streams_turn_away. Relaxed: it orders nothing */
    _Atomic unsigned turned_away;
    struct pause looks, far_looks, sums, uses, settling, releases, releases_behind;
    _Atomic unsigned released_from; /* where many streams are looked through from for what can go
                                       back. Relaxed: any place will do */
    _Atomic uint64_t full_until;    /* on the monotonic clock: no stream can be made known before.
                                       Relaxed: it only saves looks */
    _Atomic(struct stream *) list[STREAMS_MAX]; /* made once and kept. The release store pairs with
                                                   the acquire load in stream_at */
    _Atomic unsigned count;
    _Atomic bool
        in_use; /* memory is about to be handed out: from then on the program's events are followed.
                   Relaxed: events recorded before are not known, and not followed */
    uint64_t next_number;          /* ids where the driver has none */
    _Atomic unsigned bucket_count; /* see STREAM_BUCKETS_MAX */
    struct stream_block_records records;
    pthread_mutex_t use_lock;     /* see use.h; a stream's lock may be taken under it */
    pthread_mutex_t mempool_lock; /* see mempool.h */
    _Atomic(struct mempool *) mempools;
    unsigned mempool_count;
    uint64_t mempool_version;
    struct event_shard *events; /* see stream_order.h */
    _Atomic(CUstream)
        launched_early[STREAMS_EARLY]; /* handles of streams on which launches may have
                                          begun early before memory was in use; the
                                          free places are at the end. Relaxed: such a
                                          launch comes before the stream's first use */
    _Atomic bool events_are_lost; /* somebody records events where we do not see it. Relaxed: set
                                     before the first such record can be waited for */
};

bool streams_init(struct pool *pool);

/* A launch with programmatic stream serialization on a stream that is not known, and may never be.
 * No lock needed; the handle is not NULL. */
void streams_note_early_launch(struct streams *streams, CUstream handle);

/* A stream as it was found: under its lock, stream_is says whether it still is. */
struct stream_ref {
    struct stream *stream; /* NULL: none */
    uint64_t id;
};

/* What a thread has found lately: created streams by their handle, the others, whose handles mean
 * another stream in another context, by the driver's number. */
#define STREAMS_RECENT 64u /* as stream_recent_place has it */

struct recent_stream {
    uint64_t key;
    struct stream_ref ref;
};

struct recent_streams {
    const struct pool *pool;
    struct recent_stream streams[STREAMS_RECENT];
};

extern _Thread_local struct recent_streams recent_streams __attribute__((visibility("hidden")));

static inline uint64_t stream_key(CUstream handle, uint64_t id)
{
    return stream_is_created(handle) ? (uint64_t)(uintptr_t)handle : id | UINT64_C(1) << 63;
}

/* Fibonacci hashing: handles are addresses of the driver's. */
static inline unsigned stream_recent_place(uint64_t key)
{
    return (unsigned)(key * UINT64_C(0x9E3779B97F4A7C15) >> 58);
}

/* What the program frees plainly lies in no stream of its own, but in one that stands for all of
 * the context's work: nothing is allocated on it, and nobody can name it. No lock held. */
struct stream_ref streams_of_plain_frees(struct pool *pool, struct context *context);

/* The stream with that number, which the handle means here, found whichever thread has found it
 * before; and the calling one remembers it. No lock needed. */
struct stream_ref stream_look_up(struct pool *pool, CUstream handle, uint64_t id);

/* What stream_find does where the thread has not found that stream lately. */
struct stream_ref stream_find_slowly(struct pool *pool, CUstream handle, bool make);

static inline struct stream *stream_at(const struct streams *streams, unsigned index)
{
    return atomic_load_explicit(&streams->list[index], memory_order_acquire);
}

static inline unsigned stream_count(const struct streams *streams)
{
    return atomic_load_explicit(&streams->count, memory_order_acquire);
}

static inline bool streams_are_many(const struct streams *streams)
{
    return stream_count(streams) > STREAMS_MANY;
}

/* Streams that end before anything that they have left can be used again cost more than they save.
 * Where that is the rule, new ones are turned away: they are the driver's, but for some by which it
 * is seen when it changes. Told of: a block of a stream that has ended serves another one. No lock
 * needed. */
void streams_served_another(struct streams *streams);

bool streams_pause(const struct streams *streams, const struct pause *pause, uint64_t *started);
void streams_rest(const struct streams *streams, struct pause *pause, uint64_t started);

/* The lock held: the stream is somebody's; or it is nobody's any more, and nothing is known to be
 * unfinished on it. Relaxed: who acts on it looks under the lock. */
static inline void streams_note_busy(struct streams *streams, const struct stream *stream)
{
    atomic_fetch_or_explicit(&streams->busy[stream->index / 64], UINT64_C(1) << stream->index % 64,
                             memory_order_relaxed);
}

static inline void streams_note_idle(struct streams *streams, const struct stream *stream)
{
    atomic_fetch_and_explicit(&streams->busy[stream->index / 64],
                              ~(UINT64_C(1) << stream->index % 64), memory_order_relaxed);
}

/* Lock held: a block has left the stream's shelves; no lock needed: it has come back, or will not.
 */
static inline void stream_block_is_away(struct stream *stream)
{
    atomic_fetch_add_explicit(&stream->away, 1, memory_order_relaxed);
}

static inline void stream_block_is_settled(struct stream *stream)
{
    atomic_fetch_sub_explicit(&stream->away, 1, memory_order_release);
}

/* Lock held, and the stream somebody's; no lock needed. */
static inline void stream_is_named(struct stream *stream)
{
    atomic_fetch_add_explicit(&stream->names, 1, memory_order_relaxed);
}

static inline void stream_is_not_named(struct stream *stream)
{
    atomic_fetch_sub_explicit(&stream->names, 1, memory_order_release);
}

/* The id of a stream now; 0: nobody's. */
static inline uint64_t stream_id(const struct streams *streams, const struct stream *stream)
{
    return atomic_load_explicit(&streams->ids[stream->index], memory_order_acquire);
}

/* Lock held. */
static inline bool stream_is(struct stream_ref ref)
{
    return ref.stream->id == ref.id;
}

/* The stream is being destroyed: what is free in it is passed on. Waits for other threads' calls
 * that name it. No lock held. */
void stream_end(struct pool *pool, struct stream_ref ref);

/* The same for the created stream with that handle; no driver call is made. */
void streams_end_handle(struct pool *pool, CUstream handle);

/* The program makes the context's later work wait: from before the driver is told, all streams
 * there are ordered by others. No lock held. */
void streams_are_barred(struct pool *pool, struct context *context);

/* The context has died: its streams are nobody's, and nothing on them is running. What was free on
 * them has been given back or is forgotten. No stream's lock held. */
void streams_context_died(struct pool *pool, struct context *context);

#endif
