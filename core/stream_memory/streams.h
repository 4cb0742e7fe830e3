/*
 * The state of stream-ordered memory: one struct for the pool, with the list of all known streams,
 * and one for each device. The functions below find streams in the list, and limit how often all of
 * them are visited. They also note early launches, and turn new streams away while most end too
 * soon to be of use.
 */
#ifndef CUDAPOOL_CORE_STREAMS_H
#define CUDAPOOL_CORE_STREAMS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/size_class.h"
#include "core/blocks/block.h"
#include "core/contexts/pool_state.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "stream.h"
#include "stream_block.h"

struct mempool;
struct stream_holders;

/* If more streams than this launch early before any stream-ordered memory is in use, every stream
 * counts as one that did. */
#define STREAMS_EARLY 64u

/* At most this many streams are known at a time; the driver answers for the others. A stream that
 * was not used for some time is replaced by one that is. */
#define STREAMS_MAX    1024u
#define STREAMS_HASHES 2048u

#define STREAMS_SIZES 1024u /* lists of sets of holders, by hash: streams.h */

/* At most this many buckets of all streams together. Further sizes are not cached. */
#define STREAM_BUCKETS_MAX 131072u

/* See STREAMS_MANY. */
struct pause {
    _Atomic uint64_t until; /* on the monotonic clock. Relaxed: it only saves looks */
};

/* All of a pool's stream-ordered memory. */
struct streams {
    struct block_table blocks;
    char apart[STREAM_APART]; /* every call reads the fields above, few calls write them */

    /* The list of streams: written by stream_table.c. */
    pthread_mutex_t lock; /* guards making and ending streams, see stream.h */
    /* 0: nobody's. Written under the list's and the stream's lock. The release store pairs with the
     * acquire load in stream_id. */
    _Atomic uint64_t ids[STREAMS_MAX];
    /* Chains of the streams whose ids have the same hash. A link is an index in the list plus 1; 0
     * ends the chain. Threads walk the chains without a lock. A thread that does not find its id
     * and sees another hash_version than before may have been led into another chain. It then looks
     * again with the list's lock. The release stores pair with the acquire loads in
     * walk in stream_table.c. */
    _Atomic uint32_t by_id[STREAMS_HASHES], with_same_hash[STREAMS_MAX];
    _Atomic uint64_t hash_version; /* odd while a stream is being taken out of its chain */
    /* One bit for each stream that belongs to somebody or has something pending: see
     * stream_pending_apply. */
    _Atomic uint64_t busy[STREAMS_MAX / 64];
    /* Records are made once and never freed. The release store pairs with the acquire load in
     * stream_at. */
    _Atomic(struct stream *) list[STREAMS_MAX];
    _Atomic unsigned count;
    /* On the monotonic clock: no further stream can become known before. Relaxed: it only saves
     * looks. */
    _Atomic uint64_t full_until;

    /* What the pool has learned about streams: written by streams.c. */
    _Atomic unsigned short_lived; /* see streams_leave_to_driver. Relaxed: it orders nothing */
    _Atomic unsigned left_to_driver;
    /* Handles of streams that may have launched early before memory was in use. The free places are
     * at the end. Relaxed: such a launch comes before the stream's first use. */
    _Atomic(CUstream) launched_early[STREAMS_EARLY];
    struct pause uses, queries, releases[2], releases_behind[2];

    /* Blocks: each field is written by the file that it names. */
    /* Memory is about to be handed out. From then on the pool follows the program's waits for
     * streams. Relaxed: a wait before says nothing of memory that nobody has. Written by
     * core/pool/pool_stream.c. */
    _Atomic bool in_use;
    _Atomic unsigned bucket_count; /* see STREAM_BUCKETS_MAX; stream_shelf.c */
    _Atomic(struct stream_holders *) holders[STREAMS_SIZES]; /* by their hash; streams.c */
    /* If there are many streams, the next look for blocks to release begins here. Relaxed: any
     * place will do. stream_choice.c. */
    _Atomic unsigned released_from;
    /* Threads that are getting a block from the driver or releasing one to it, and have not counted
     * it yet: see mempool_others. */
    _Atomic unsigned moving;
    /* Threads that are returning parts to their segments. The release of each pairs with the
     * acquire in stream_merge_await_others. stream_merge.c. */
    _Atomic unsigned merging;
    struct stream_block_records records; /* stream_block.c */
    pthread_mutex_t use_lock;            /* guards the uses of all blocks: use.c */

    /* Memory pools: written by mempool_list.c. */
    pthread_mutex_t mempool_lock; /* guards the list and the records, see mempool.h */
    _Atomic(struct mempool *) mempools;
    unsigned mempool_count;
    uint64_t mempool_version; /* changes when the program has chosen a pool */

    /* Threads that are about to begin a capture: see stream_pending_capture_comes, which writes it.
     */
    _Atomic unsigned captures_coming;
};

/* The pool's stream-ordered memory; NULL where it is switched off. */
static inline struct streams *streams_of(const struct pool *pool)
{
    return pool->of_kind[KIND_STREAM_ORDERED];
}

/* Whether memory is handed out, or about to be. No lock needed. */
static inline bool streams_are_in_use(const struct pool *pool)
{
    const struct streams *streams = streams_of(pool);
    return streams && atomic_load_explicit(&streams->in_use, memory_order_relaxed);
}

/* The state of one device. Atomics are relaxed where nothing else is said: they order nothing. */
struct stream_device {
    struct size_classes classes;
    uint64_t cached_cap;    /* bytes */
    uint64_t reserve_floor; /* bytes; 0 where blocks are cut out of larger blocks */
    /* The current one; NULL: the driver must be asked for it. See mempool_list.c. */
    _Atomic(struct mempool *) mempool;
    _Atomic(CUmemoryPool) default_mempool; /* NULL: must be asked for */
    char apart[64];                  /* every call reads the fields above, few calls write them */
    _Atomic uint64_t reserved_bytes; /* of all stream-ordered blocks of the device */
    /* The part of reserved_bytes that the program holds, as it asked for it, and as far as shelves
     * have counted it: see shelf_note_used. */
    _Atomic uint64_t live_bytes;
    _Atomic uint64_t peak_live, peak_reserved; /* bytes, since the last reset: see stream_sums.h */
    struct kind_counters *counters;            /* in the figures */
    /* In the figures: see stream_count_passed_by. NULL: none yet. Relaxed: the counters that it
     * points to exist already. */
    _Atomic(struct bucket_counters *) passed_by;
    /* On the monotonic clock: when a thread last looked for idle blocks. An exchange of it decides
     * which thread looks next. */
    _Atomic uint64_t idle_checked_at;
    /* Bytes of the device that were left when they had last halved or doubled, as stream_reserve.c
     * saw it; 0: never. */
    _Atomic uint64_t left_bytes;
    /* On the monotonic clock: when to give the device time again to tell what has completed, after
     * it told nothing. Relaxed, like looked_at: both only save looks. */
    _Atomic uint64_t look_again_at;
    _Atomic uint64_t looked_at; /* bytes that were pending at that look */
};

/* Valid also where stream-ordered memory is switched off. */
static inline struct stream_device *stream_device(const struct device *device)
{
    return device->of_kind[KIND_STREAM_ORDERED];
}

/* Makes the state with no streams; NULL where memory is short. */
struct streams *streams_make(void);

/* ---- the list ---- */

static inline struct stream *stream_at(const struct streams *streams, unsigned index)
{
    return atomic_load_explicit(&streams->list[index], memory_order_acquire);
}

static inline unsigned stream_count(const struct streams *streams)
{
    return atomic_load_explicit(&streams->count, memory_order_acquire);
}

/* More streams than this are many. A look through all of many streams costs more than it may find.
 * After a failed look there is none for some time, so that looks take only a small share of the
 * time. */
#define STREAMS_MANY 32u

static inline bool streams_are_many(const struct streams *streams)
{
    return stream_count(streams) > STREAMS_MANY;
}

/* The stream's present id; 0: it belongs to nobody. */
static inline uint64_t stream_id(const struct streams *streams, const struct stream *stream)
{
    return atomic_load_explicit(&streams->ids[stream->index], memory_order_acquire);
}

/* The stream's lock is held. streams_note_busy: the stream belongs to somebody. streams_note_idle:
 * it belongs to nobody, and no work on it is known to be unfinished. Relaxed: who acts on the bit
 * looks under the lock. */
static inline void streams_note_busy(struct streams *streams, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_or_explicit(&streams->busy[stream->index / 64], UINT64_C(1) << stream->index % 64,
                             memory_order_relaxed);
}

static inline void streams_note_idle(struct streams *streams, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_and_explicit(&streams->busy[stream->index / 64],
                              ~(UINT64_C(1) << stream->index % 64), memory_order_relaxed);
}

/* ---- looks at all streams ---- */

/* Whether it is too early for such a look. If not, *started is when the look began, or 0 if that
 * time is not needed. */
bool streams_are_paused(const struct streams *streams, const struct pause *pause,
                        uint64_t *started);

/* The look that began at started has failed, or need not be repeated soon: pauses such looks. */
void streams_pause_after(const struct streams *streams, struct pause *pause, uint64_t started);

/* ---- early launches ---- */

/* Notes a launch with programmatic stream serialization on a stream that is not known, and may
 * never be. No lock needed; the handle is not NULL. */
void streams_note_early_launch(struct streams *streams, CUstream handle);

/* Whether such a launch was made on the handle, or may have been: the list may be full, or the
 * handle may have been another stream's. */
bool streams_launched_early(const struct streams *streams, CUstream handle);

/* ---- short-lived streams ---- */

/* Streams that end before anything that they freed can be reused cost more than they save. While
 * most streams do, new streams are turned away to the driver. A few are served all the same, to
 * notice when that changes.
 *
 * streams_served_another notes that a block of a stream that has ended serves another stream. No
 * lock needed. */
void streams_served_another(struct streams *streams);

/* The stream, whose lock is held, ends: counts whether any of its blocks was reused. */
void streams_note_end_of(struct streams *streams, const struct stream *stream);

/* Whether the driver is to serve a new stream. */
bool streams_leave_to_driver(struct streams *streams);

/* ---- which streams may have a block ----
 *
 * Which streams may have free blocks of one memory pool and size: one bit for each stream. A search
 * for such a block visits only streams whose bit is set, however many streams there are.
 *
 * A stream's bit is set before its bucket gets a free block. It stays set when the bucket runs
 * empty, until a search finds the bucket empty. So a stream that reuses what it has just freed
 * changes nothing here. Bits are set and cleared under the stream's lock (shelf_list_bucket,
 * shelf_unlist_if_empty) and read without any lock. A thread that knows of a free finds the bit
 * set, and checks under the lock that a block is still there.
 *
 * Sets are made once and never freed. The key of a set is the memory pool's record and a size. If
 * the record becomes that of another memory pool, its shelves and buckets do too. A set whose key
 * is a device sums up what all streams of the device have of a size.
 */

struct stream_holders {
    /* The release of the thread that sets a bit pairs with the acquire in stream_holders_next,
     * after which the stream is found in the list. */
    _Alignas(STREAM_APART) _Atomic uint64_t bits[STREAMS_MAX / 64];
    const void *of; /* struct mempool, or struct stream_device */
    uint64_t bytes;
    /* Only where the key is a device: bytes of all its blocks of the size, and bytes of those that
     * the program holds, as far as shelves have counted them. peaks: the counters that hold the
     * peaks of all streams. Relaxed. */
    _Atomic uint64_t reserved_bytes, live_bytes;
    _Atomic(struct bucket_counters *) peaks;
    struct stream_holders *next; /* of the same hash; written before this set is listed */
};

/* Returns the set of this memory pool, or device, and size, and makes it if there was none. NULL
 * where memory is short. No lock needed. */
struct stream_holders *stream_holders_get(struct streams *streams, const void *of, uint64_t bytes);

/* stream_holders_add and stream_holders_remove: the stream's lock is held. */
static inline void stream_holders_add(struct stream_holders *holders, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_or_explicit(&holders->bits[stream->index / 64], UINT64_C(1) << stream->index % 64,
                             memory_order_release);
}

static inline void stream_holders_remove(struct stream_holders *holders,
                                         const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    atomic_fetch_and_explicit(&holders->bits[stream->index / 64],
                              ~(UINT64_C(1) << stream->index % 64), memory_order_relaxed);
}

/* The index of the first holder at or after this one; STREAMS_MAX: there is none. */
static inline unsigned stream_holders_next(const struct stream_holders *holders, unsigned from)
{
    for (unsigned i = from; i < STREAMS_MAX; i = (i / 64 + 1) * 64) {
        uint64_t bits =
            atomic_load_explicit(&holders->bits[i / 64], memory_order_acquire) >> i % 64;
        if (bits)
            return i + (unsigned)__builtin_ctzll(bits);
    }
    return STREAMS_MAX;
}

/* The distance from place to the next holder, where indexes wrap around, if it is at_least or more.
 * STREAMS_MAX: there is none. */
static inline unsigned stream_holders_behind(const struct stream_holders *holders, unsigned place,
                                             unsigned at_least)
{
    unsigned from = place + at_least;
    unsigned found = from < STREAMS_MAX ? stream_holders_next(holders, from) : STREAMS_MAX;
    if (found < STREAMS_MAX)
        return found - place;
    found = stream_holders_next(holders, from < STREAMS_MAX ? 0 : from - STREAMS_MAX);
    return found < place ? found + STREAMS_MAX - place : STREAMS_MAX;
}

#endif
