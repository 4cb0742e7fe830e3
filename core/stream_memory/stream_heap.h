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
 * held up by another one's;
 *   7. the driver again, when memory has been given back: see stream_release.h.
 * A stream whose block another one has taken goes to 5 at once while the reserve has room: else
 * streams with a block too few between them would take each other's for ever.
 * 3, 4 and 6 can be switched off by the settings and by the pool's attributes (stream_order.h tells
 * why each is right), and 3 and 6 are not for streams that others order: those would not wait with
 * it.
 *
 * Events cost more than everything else here. A free records one
 *   - while other streams have lately looked for one in vain;
 *   - where more than the stream's share would be pending with no event behind it (order_share);
 *   - where others order the stream: each does, or else the driver frees (stream_order.h).
 *
 * Where none of this pays, the driver has the free, or the stream: what the pool puts in or asks
 * must cost no more calls than the driver's two for a pair. By what is measured:
 *   - frees on another stream than the allocation's, while the blocks there have been looked at in
 *     vain so often that the stream must be far behind (steps_aside);
 *   - frees that would record something on a stream whose misses cost other blocks their place and
 *     which has few hits (is_for_driver);
 *   - new streams, while most end with something pending and nothing had from it
 *     (streams_served_another).
 * Some are kept all the same, and tell when that changes. Events that were not over are asked about
 * sparingly (stream_order.h), and of many streams looks through all are few (STREAMS_MANY).
 *
 * cuMemFree of a block has no stream. Where the work of the block's last owner in a stream's order
 * may still be under way, of which the driver knows nothing, the block waits for all of the
 * context's work, in a stream record of its own that nobody allocates from; else the driver has it.
 *
 * A shelf holds the free blocks of one stream and one memory pool, and counts its live ones: those
 * that were allocated on the stream, until they are freed, on whichever stream that is.
 *
 * Locking: shelves and blocks on them by their stream's lock (stream.h). Functions that need it
 * held say so; all others are called with no lock held.
 */
#ifndef CUDAPOOL_CORE_STREAM_HEAP_H
#define CUDAPOOL_CORE_STREAM_HEAP_H

#include "core/device_memory/heap.h"
#include "streams.h"

struct mempool;

/* cuMemAllocAsync, or cuMemAllocFromPoolAsync: from this pool, on the stream that the handle means
 * here. False: the driver is to answer, and what it gives is not the pool's. */
bool stream_heap_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes,
                          struct mempool *mempool, struct stream_ref ref, CUstream handle,
                          CUresult *result);

/* Takes a block out of the program's hands: true for one thread, and only while the program holds
 * it at this address. */
bool stream_heap_claim(struct stream_block *block, CUdeviceptr address);

/* cuMemFreeAsync of a claimed block. False: it is now in nobody's hands but the caller's, who lets
 * the driver free it and calls stream_heap_left or stream_heap_came_back. */
bool stream_heap_free(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                      CUstream handle);

/* cuMemFree of a claimed block, in its context, while no captures go on. The driver has seen
 * neither the last free in a stream's order nor the allocation since: where that free is not known
 * to be over, the block stays until all of the context's work is. False: the driver may have it; if
 * *behind is set, which the caller then uses, only behind that event. */
struct plain_free {
    struct stream *stream;
    struct own_event *behind;
};
bool stream_heap_free_plainly(struct pool *pool, struct stream_block *block,
                              struct plain_free *free);

/* A claimed block leaves the table, for the driver to free it; then it was freed, or it was not and
 * is the program's again. nanoseconds: what the driver's free has taken. */
void stream_heap_leave(struct pool *pool, struct stream_block *block);
void stream_heap_left(struct pool *pool, struct stream_block *block, uint64_t nanoseconds);
void stream_heap_came_back(struct pool *pool, struct stream_block *block);

/* Stream's lock held. */
void stream_heap_make_clean(struct stream *stream, struct stream_block *block);

/* Stream's lock held. A free block leaves its shelf, in whose name it stays; and comes back, with
 * the stamp that it had. */
void stream_heap_detach(struct stream *stream, struct stream_block *block);
void stream_heap_attach(struct shelf *shelf, struct stream_block *block);

/* A block that was taken off a shelf has gone back to the driver. */
void stream_heap_forget_free(struct pool *pool, struct stream_block *block);

/* The driver has just given this address out, or someone frees it past the pool: forgets a live
 * block there. False where the block is free, and so nobody's to free. */
bool stream_heap_let_go(struct pool *pool, CUdeviceptr address);
void stream_heap_forget_address(struct pool *pool, CUdeviceptr address);

#endif
