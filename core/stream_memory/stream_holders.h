/*
 * Which streams may have free blocks of one memory pool and size: a bit for each, so that a look
 * for such a block visits no others, however many streams there are.
 *
 * A stream's bit is set before its bucket has a free block, and stays when the bucket is empty,
 * until somebody's look finds it so: a stream that takes what it has just freed changes nothing
 * here. Bits are set and taken back under the stream's lock (shelf_list_bucket,
 * shelf_unlist_if_empty), and read with no lock at all: who has been told of a free finds its bit,
 * and looks under the lock whether there still is something.
 *
 * Sets are made once and never end. Their key is the memory pool's record, as it is the shelf's:
 * where that becomes another pool's, so do the buckets. What all streams of a device have of a size
 * is summed up in one whose key is the device.
 */
#ifndef CUDAPOOL_CORE_STREAM_HOLDERS_H
#define CUDAPOOL_CORE_STREAM_HOLDERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "streams.h"

struct stream_holders {
    _Alignas(STREAM_APART) _Atomic uint64_t bits[STREAMS_MAX / 64]; /* the release of who sets one
                                                pairs with the acquire of who finds it: then the
                                                stream is in the list */
    const void *of; /* struct mempool, or struct stream_device */
    uint64_t bytes;
    /* Of a device: bytes of all its blocks of the size, and of those in the program's hands as far
     * as shelves have counted them; and the counters that have the peaks of all. Relaxed. */
    _Atomic uint64_t reserved_bytes, live_bytes;
    _Atomic(struct bucket_counters *) peaks;
    struct stream_holders *next; /* of the same hash; written before it is listed */
};

/* The set of that memory pool, or device, and size, made if there was none; NULL where memory is
 * short. No lock needed. */
struct stream_holders *stream_holders_get(struct streams *streams, const void *of, uint64_t bytes);

/* The stream's lock is held. */
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

/* The place in the list of the next holder from there on; STREAMS_MAX: there is none. */
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

/* The same in a circle: how far behind that place, and no nearer than so far. STREAMS_MAX: nowhere.
 */
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
