/*
 * Memory that captures allocate and graphs keep: `captures.allocate`.
 *
 * Without this setting the driver answers cuMemAlloc and cuMemFree while captures are under way.
 * They fail wherever a capture forbids them. With the setting they work, in every capture mode and
 * from any thread: the pool calls the driver in relaxed mode, which no capture forbids.
 *
 * A block that is allocated or freed while captures are under way belongs to the graphs of all
 * these captures. Any of them may have seen the address: by a call that began after the capture
 * did, or by one that was in progress when it began and found no block at once.
 *
 * Each capture has an owner: a user object on its graph. The graph and its clones retain it, and so
 * do executables, or the pool for them (graph_objects.h). Its destructor tells that all of them are
 * gone. The destructor may run in any thread, inside the driver, and may call nothing. So it puts
 * the owner on a list, which slow paths process. A block is kept until the program has freed it and
 * its last owner is gone. Then it is pending in its heap, as if it had been freed just then. A
 * capture gets no block that was freed before: each allocation is a new block of the driver's.
 *
 * There is no cap on what is kept. Threads hand pointers to each other, and no call tells which
 * addresses a kernel's parameters hold. So a graph may use even memory that is freed by a thread
 * that only runs beside the capture. The same holds of captures in thread-local mode that all
 * belong to other threads. Past a cap, a free could
 *   - give the memory to the driver: a launch would use somebody else's memory, and no call would
 *     report an error;
 *   - fail, as it may without the setting. But programs do not expect a free to fail because of
 *     a limit on memory. They do expect an allocation to run out of memory;
 *   - wait for the captures to end: these may wait for the thread.
 * Instead, the report says how much such threads freed, and to which capture the most belonged.
 *
 * An owner's destructor may never run, because the program leaks the graph or the driver forgets
 * it. Then each of its blocks stays until the block's context ends, since the graph may use it.
 * After that, only the owner's record is left, since the destructor may still run.
 *
 * A capture that fails takes its graph with it, and so ends its ownership in the same way. A
 * capture whose graph takes no user object has no owner: while it is under way, the driver answers.
 *
 * This is a kind of memory only as far as contexts and captures notify it. Its blocks are the
 * device kind's, in that kind's heaps, buckets and figures (core/device_memory/parked.h).
 *
 * Locking: the graphs' lock guards everything in struct graph_memory except the atomics. It is
 * taken before a context's lock, and held across no driver call.
 */
#ifndef CUDAPOOL_CORE_GRAPH_MEMORY_H
#define CUDAPOOL_CORE_GRAPH_MEMORY_H

#include <stdbool.h>

#include "graph_owners.h"
#include "graph_state.h"

/* Whether the pool answers allocations and frees: captures are under way, and all of them have
 * owners. */
bool graph_memory_serves(struct pool *pool);

/* Allocates a new block, owned by all captures under way. The context is current; no lock is held.
 */
CUresult graph_memory_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                               size_t bytes);

/* Makes all captures under way own a block that the driver has just given the caller and that the
 * heap has a record of. No lock is held. */
void graph_memory_own(struct pool *pool, CUdeviceptr address);

/* Whether the pool answers the free of this block, with *result: captures are under way, or graphs
 * own it. Waits for nothing. The caller holds no lock except that of primary contexts. */
bool graph_memory_free_owned(struct pool *pool, struct block *block, CUdeviceptr address,
                             CUresult *result);

static inline bool graph_memory_free(struct pool *pool, struct block *block, CUdeviceptr address,
                                     CUresult *result)
{
    return graph_memory_of(pool) && graph_memory_free_owned(pool, block, address, result);
}

/* After the driver was asked to free a block that graphs own: forgets its record if the block is no
 * longer live. No lock is held. */
void graph_memory_look_again(struct pool *pool, struct block *block, CUdeviceptr address);

/* Counts a launch of an executable, or its upload for a launch. Any lock may be held. */
static inline void graph_memory_launched(struct pool *pool, bool upload)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (__builtin_expect(!memory, 1))
        return;
    struct graph_counters *counters = memory->counters;
    /* Relaxed, like every counter. */
    atomic_fetch_add_explicit(upload ? &counters->uploads : &counters->launches, 1,
                              memory_order_relaxed);
}

/* Counts a stream-ordered allocation of the driver's if a capture has the stream: it then is a
 * memory node. No lock is held. */
void graph_memory_allocated_on(struct pool *pool, CUstream stream);

/* For the table of kinds (kind.h). */
extern const struct kind graph_memory;

#endif
