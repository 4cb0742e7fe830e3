/*
 * What stream-ordered memory keeps for a pool and for each of its devices: all the streams that are
 * known, and what they share.
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

struct event_shard;
struct machine;
struct mempool;
struct stream_holders;

/* Where more streams than this launch early before any memory is in use, all streams count as such.
 */
#define STREAMS_EARLY 64u

/* More streams than this are never known at a time: the driver answers for the others. One that was
 * not used for some time makes way for one that is. */
#define STREAMS_MAX    1024u
#define STREAMS_HASHES 2048u

#define STREAMS_SIZES 1024u /* lists of sets of holders: stream_holders.h */

/* Nor more buckets, of all streams together: sizes beyond are not kept. */
#define STREAM_BUCKETS_MAX 131072u

/* See STREAMS_MANY. */
struct pause {
    _Atomic uint64_t until; /* on the monotonic clock. Relaxed: it only saves looks */
};

/* All of a pool's stream-ordered memory. */
struct streams {
    struct block_table blocks;
    char apart[STREAM_APART]; /* every call reads what is above, few write it */

    /* The list of streams: written by stream_table.c. */
    pthread_mutex_t lock;              /* guards making and ending, see stream.h */
    _Atomic uint64_t ids[STREAMS_MAX]; /* 0: nobody's. Written under the list's and the stream's
                                          lock; the release store pairs with the acquire load in
                                          stream_id */
    /* The streams whose ids have the same hash, chained: a place in the list and 1; 0 is the end.
     * Walked without a lock: whoever does not find his id, and sees another version than before,
     * has perhaps been led into another chain, and looks again with the list's lock. The release
     * stores pair with the acquire loads in stream_table_walk */
    _Atomic uint32_t by_id[STREAMS_HASHES], with_same_hash[STREAMS_MAX];
    _Atomic uint64_t hash_version;              /* odd while a stream is taken out of its chain */
    _Atomic uint64_t busy[STREAMS_MAX / 64];    /* a bit for each stream that is somebody's, or has
                                                   something pending: see order_take_context */
    _Atomic(struct stream *) list[STREAMS_MAX]; /* made once and kept. The release store pairs with
                                                   the acquire load in stream_at */
    _Atomic unsigned count;
    uint64_t next_number;        /* ids where the driver has none */
    _Atomic uint64_t full_until; /* on the monotonic clock: no stream can be made known before.
                                    Relaxed: it only saves looks */

    /* What streams were like: written by streams.c. */
    _Atomic unsigned short_lived; /* see streams_turn_away. Relaxed: it orders nothing */
    _Atomic unsigned turned_away;
    _Atomic(CUstream)
        launched_early[STREAMS_EARLY]; /* handles of streams on which launches may have begun early
                                          before memory was in use; the free places are at the end.
                                          Relaxed: such a launch comes before the stream's first
                                          use */
    struct pause uses, settling, releases[2], releases_behind[2];

    /* Blocks: each field is written by the file that it names. */
    _Atomic bool in_use; /* memory is about to be handed out: from then on the program's events are
                            followed. Relaxed: events recorded before are not known, and not
                            followed. core/pool/pool_stream.c */
    _Atomic unsigned bucket_count; /* see STREAM_BUCKETS_MAX; stream_shelf.c */
    _Atomic(struct stream_holders *) holders[STREAMS_SIZES]; /* by their hash; stream_holders.c */
    _Atomic unsigned released_from; /* where many streams are looked through from for what can
                                       go back. Relaxed: any place will do; stream_choice.c */
    _Atomic unsigned moving; /* threads that ask the driver for a block or hand it some, and have
                                not counted them yet: see mempool_others */
    _Atomic unsigned going_home; /* threads that take parts home. The release of each pairs with the
                                    acquire of who waits for them; stream_aside.c */
    struct stream_block_records records; /* stream_block.c */
    pthread_mutex_t use_lock;            /* guards what use.c keeps with blocks */

    /* Memory pools: written by mempool_list.c. */
    pthread_mutex_t mempool_lock; /* guards the list and the records, see mempool.h */
    _Atomic(struct mempool *) mempools;
    unsigned mempool_count;
    uint64_t mempool_version;      /* changes when the program has chosen a pool */
    _Atomic bool has_unserved;     /* never unset. Relaxed: it only saves looks */
    uint64_t unserved_used_at;     /* on the monotonic clock, as the housekeeper saw it, which alone
                                      uses it: see mempool_unserved.h, also for the next one */
    const struct machine *machine; /* written as the pool starts. NULL: of no use */

    /* Events: written by program_events.c. */
    struct event_shard *events;
    _Atomic bool events_are_lost;     /* somebody records events where we do not see it. Relaxed:
                                         set before the first such record can be waited for */
    _Atomic unsigned captures_coming; /* threads that are about to begin one: see
                                         own_events_capture_comes, which writes it */
};

/* All of the pool's stream-ordered memory; NULL where it is switched off. */
static inline struct streams *streams_of(const struct pool *pool)
{
    return pool->of_kind[KIND_STREAM_ORDERED];
}

/* Of a device. Atomics are relaxed where they say nothing else: they order nothing. */
struct stream_device {
    struct size_classes classes;
    uint64_t cached_cap;    /* bytes */
    uint64_t reserve_floor; /* bytes; 0 where blocks are cut out of larger ones */
    _Atomic(struct mempool *)
        mempool; /* the current one; NULL: to be asked for. See mempool_list.c */
    _Atomic(CUmemoryPool) default_mempool; /* NULL: to be asked for */
    char apart[64];                        /* every call reads what is above, few write it */
    _Atomic uint64_t reserved_bytes;       /* of all stream-ordered blocks of the device */
    _Atomic uint64_t
        live_bytes; /* of these, in the program's hands and as it asked for them, as far
                       as shelves have counted them: see shelf_note_used. Relaxed */
    _Atomic uint64_t peak_live, peak_reserved; /* bytes, since the program began them anew: see
                                                  stream_peaks.h. Relaxed */
    struct kind_counters *counters;            /* in the figures */
    _Atomic(struct bucket_counters *)
        passed_by;                    /* in the figures: see stream_count_passed_by. NULL:
                                         none. Relaxed: what is there has counters */
    _Atomic uint64_t idle_checked_at; /* on the monotonic clock: when idle blocks were last looked
                                         for. It chooses who looks */
    _Atomic uint64_t left_bytes; /* that were left of the device when pending blocks were last given
                                    events; 0: never */
    _Atomic uint64_t look_again_at; /* on the monotonic clock: the device was given time to tell
                                       what is over, and told nothing. Relaxed, like the next one:
                                       they only save looks */
    _Atomic uint64_t looked_at;     /* bytes that were pending then */
};

/* Also where stream-ordered memory is switched off. */
static inline struct stream_device *stream_device(const struct device *device)
{
    return device->of_kind[KIND_STREAM_ORDERED];
}

/* With no streams; NULL where memory is short. */
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

/* Where many streams are known, a look through all of them costs more than what it may find: after
 * one that was in vain there is none for some time, so that they take no more than a small share of
 * it. */
#define STREAMS_MANY 32u

static inline bool streams_are_many(const struct streams *streams)
{
    return stream_count(streams) > STREAMS_MANY;
}

/* The id of a stream now; 0: nobody's. */
static inline uint64_t stream_id(const struct streams *streams, const struct stream *stream)
{
    return atomic_load_explicit(&streams->ids[stream->index], memory_order_acquire);
}

/* The lock held: the stream is somebody's; or it is nobody's any more, and nothing is known to be
 * unfinished on it. Relaxed: who acts on it looks under the lock. */
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

/* ---- looks at all of them ---- */

/* Whether it is too early for such a look; else when it has begun, or 0 where it need not be known.
 */
bool streams_are_paused(const struct streams *streams, const struct pause *pause,
                        uint64_t *started);

/* The look that began then was in vain, or need not be repeated soon. */
void streams_pause_after(const struct streams *streams, struct pause *pause, uint64_t started);

/* ---- early launches ---- */

/* A launch with programmatic stream serialization on a stream that is not known, and may never be.
 * No lock needed; the handle is not NULL. */
void streams_note_early_launch(struct streams *streams, CUstream handle);

/* Whether such a launch was made on the handle; or may have been: the list is full, or the handle
 * was another stream's. */
bool streams_launched_early(const struct streams *streams, CUstream handle);

/* ---- short-lived ones ---- */

/* Streams that end before anything that they have left can be used again cost more than they save.
 * Where that is the rule, new ones are turned away: they are the driver's, but for some by which it
 * is seen when it changes. Told of: a block of a stream that has ended serves another one. No lock
 * needed. */
void streams_served_another(struct streams *streams);

/* The stream ends, whose lock is held: counts whether anything was had from it. */
void streams_note_end_of(struct streams *streams, const struct stream *stream);

/* Whether a new stream is to be the driver's. */
bool streams_turn_away(struct streams *streams);

#endif
