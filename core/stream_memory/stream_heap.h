/*
 * Stream-ordered memory: blocks in buckets, kept by the stream that they were freed on.
 *
 * An allocation on a stream takes the first of:
 *   1. a block that was freed on the same stream: its order is all that is needed, the newest
 *      first; where others order the stream, one that has an operation behind its free (see
 *      stream_order.h);
 *   2. a block of another stream of the context whose last use is known to be over;
 *   3. one that the program itself ordered before the stream's later work, by an event;
 *   4. one whose stream turns out, when asked, to have passed the free;
 *   5. the driver;
 *   6. where that is out of memory, one with an event of its own, recorded in its free, which the
 *      stream is made to wait for: like the driver's own pool, only now, for the stream's work is
 *      held up by another one's;
 *   7. the driver again, when memory has been given back: see core/reclaim/reclaim.h.
 * The first is in stream_shelf.h, 2 to 4 and 6 are in stream_search.c, the rest in stream_miss.c.
 * A stream whose block another one has taken goes to 5 at once while the reserve has room: else
 * streams with a block too few between them would take each other's for ever.
 * 3, 4 and 6 can be switched off by the settings and by the pool's attributes (stream_order.h tells
 * why each is right), and 3 and 6 are not for streams that others order: those would not wait with
 * it.
 *
 * Events cost more than everything else here. A free records one
 *   - while other streams have lately looked for one in vain;
 *   - where more than the stream's share would be pending with no event behind it (stream_free.c);
 *   - where others order the stream: each does, or else the driver frees (stream_order.h).
 *
 * Where none of this pays, the driver has the free, or the stream: what the pool puts in or asks
 * must cost no more calls than the driver's two for a pair. By what is measured:
 *   - frees on another stream than the allocation's, while the blocks there have been looked at in
 *     vain so often that the stream must be far behind (payoff_comes_too_late);
 *   - frees that would record something on a stream whose misses cost other blocks their place and
 *     which has few hits (payoff_is_for_driver);
 *   - new streams, while most end with something pending and nothing had from it
 *     (streams_served_another).
 * Some are kept all the same, and tell when that changes. Events that were not over are asked about
 * sparingly (own_event_query.h). A look for a block visits only streams that may have one
 * (stream_holders.h), and of those no more than a number; of many streams what has to look through
 * all does so now and then (STREAMS_MANY).
 *
 * cuMemFree of a block has no stream. Where the work of the block's last owner in a stream's order
 * may still be under way, of which the driver knows nothing, the block waits for all of the
 * context's work, in a stream record of its own that nobody allocates from; else the driver has it.
 *
 * With the policy split blocks are cut out of larger ones of the stream's own (stream_parts.h): on
 * the first step, where no block is there as it is wanted. On the steps 2 to 6 a block is then
 * looked for, or asked for, that the wanted one is cut out of (stream_cut.h).
 *
 * A shelf holds the free blocks of one stream and one memory pool, and counts its live ones: those
 * that were allocated on the stream, until they are freed, on whichever stream that is.
 *
 * How much is kept is the reserve's business (stream_reserve.h), and how it goes back that of
 * stream_release.h.
 *
 * Locking: shelves and blocks on them by their stream's lock (stream.h). No lock is held by the
 * callers of what is below.
 */
#ifndef CUDAPOOL_CORE_STREAM_HEAP_H
#define CUDAPOOL_CORE_STREAM_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "streams.h"

/* cuMemAllocAsync, or cuMemAllocFromPoolAsync: from this pool, on the stream that the handle means
 * here. False: the driver is to answer, and what it gives is not the pool's. */
bool stream_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes, struct mempool *mempool,
                     struct stream_ref ref, CUstream handle, CUresult *result);

/* The driver has answered such a request, and the pool knows nothing of the memory. Counted among
 * what is not kept; a block is lost at once, see bucket_count_lost. Needs no lock. */
void stream_count_passed_by(struct pool *pool, struct device *device, uint64_t bytes,
                            CUresult result);

#endif
