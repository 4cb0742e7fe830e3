/*
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
#ifndef CUDAPOOL_CORE_STREAM_HOLDERS_H
#define CUDAPOOL_CORE_STREAM_HOLDERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "streams.h"

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
