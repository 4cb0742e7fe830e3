/*
 * Stream-ordered memory: free blocks lie in buckets of the stream that they were freed on.
 *
 * An allocation on a stream takes the first of:
 *   1. A block that was freed on the same stream, the newest first. The stream's own order is
 *      enough. Only where others order the stream must an operation follow the free
 *      (stream_order.h).
 *   2. A block of another stream of the context whose last use is known to have completed.
 *   3. A block whose last use turns out to have completed when the pool asks the driver about it.
 *   4. Memory from the driver.
 *   5. If the driver is out of memory, memory from the driver again. First the pool releases what
 *      other streams have pending, behind events that were recorded in their frees. The driver then
 *      makes the stream wait for those frees. It does so late, because another stream's work then
 *      holds up this stream.
 *   6. Memory from the driver again, after cached memory has been released
 *      (core/reclaim/reclaim.h).
 * Step 1 is in stream_shelf.h, steps 2 and 3 are in stream_search.c, the others in stream_heap.c.
 * If another stream has taken a block of this stream, the stream's next request goes to step 4 at
 * once while the reserve has room. Otherwise streams that have one block too few between them would
 * take each other's blocks for ever. Settings and the pool's attributes can switch off steps 3 and
 * 5; stream_order.h explains why each is correct. Step 5 is not for streams that others order,
 * because those others would not wait as well.
 *
 * Fences and events cost more than everything else here. A free records
 *   - a fence, where other streams have lately looked for a block with a fence and found none;
 *   - an event, where more than the stream's share would otherwise be pending with none
 *     (stream_order.c);
 *   - a marker, where others order the stream and no event is due (stream_events.h).
 *
 * Where caching does not pay, the driver gets the free, or all calls on the stream. The pool's
 * operations and queries must not cost more calls than the driver's two for an allocation and its
 * free. The pool measures three such cases:
 *   - A free on another stream than the allocation's. Looks at the blocks pending there have failed
 *     so often that the stream must be far behind (bypass_is_too_far_behind).
 *   - A free that would record something, on a stream with few hits whose misses evict other blocks
 *     (bypass_is_for_driver).
 *   - A new stream, while most streams end with something pending and without a reused block
 *     (streams_served_another).
 * The pool still takes some of these, to notice when the case no longer holds. A fence that had not
 * completed is asked about again only after a pause (epoch_query). A search for a block visits only
 * streams that may have one (streams.h), and at most a fixed number of those.
 * Where many streams exist, work that visits all of them is done only now and then (STREAMS_MANY).
 *
 * cuMemFree of a block has no stream. The work that used the block before its last stream-ordered
 * free may still run, and the driver does not know of that free. In this case the block waits for
 * all of the context's work, in a stream record that nobody allocates from. Otherwise the driver
 * frees it.
 *
 * With the policy split, blocks are cut out of larger blocks of the same stream (stream_parts.h).
 * Step 1 cuts one where no block of the wanted size is free. Steps 2 to 5 then look for, or ask
 * for, a block that the wanted one is cut from (stream_cut.h).
 *
 * A shelf holds the free blocks of one stream and one memory pool. It also counts their live
 * blocks: those that were allocated on the stream, until they are freed on any stream.
 *
 * stream_reserve.h decides how much is cached, and stream_release.h releases it.
 *
 * Locking: the lock of a stream guards its shelves and the blocks on them (stream.h). The callers
 * of the functions below hold no lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_HEAP_H
#define CUDAPOOL_CORE_STREAM_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "streams.h"

/* cuMemAllocAsync, or cuMemAllocFromPoolAsync from this memory pool, on the stream that the handle
 * means in this thread. False: the driver must answer, and its memory does not belong to the
 * pool. */
bool stream_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes, struct mempool *mempool,
                     struct stream_ref ref, CUstream handle, CUresult *result);

/* The driver has answered such a request, and the pool knows nothing of the memory. Counts it among
 * the sizes that are not cached, as a block that is lost at once (bucket_count_lost). Needs no
 * lock. */
void stream_count_passed_by(struct pool *pool, struct device *device, uint64_t bytes,
                            CUresult result);

#endif
