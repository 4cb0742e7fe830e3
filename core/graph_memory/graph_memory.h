/*
 * Memory that captures allocate and graphs keep: `captures.allocate`.
 *
 * Without it cuMemAlloc and cuMemFree are the driver's while captures go on, and fail wherever a
 * capture forbids them. With it they work, in every capture mode and from any thread: the driver is
 * asked in relaxed mode, which no capture minds.
 *
 * What is allocated or freed while captures go on belongs to the graphs of all captures then under
 * way, since any of them may have seen the address: by calls that began after the capture did, and
 * by those that were under way then and did not find a block at once. Each capture has an owner: a
 * user object on its graph, which graph and clones retain, and executables or the pool for them
 * (graph_objects.h), and whose destructor tells that all of them are gone. That may run in any
 * thread, inside the driver, and may call nothing: it puts the owner on a list, and slow paths take
 * it up. A block is kept until the program has freed it and its last owner is gone. Then it is
 * pending in its heap, as if it had been freed just then. Inside a capture nothing is handed out
 * that was freed before: an allocation is a new block of the driver's.
 *
 * There is no cap on what is kept. Memory that a thread frees which only runs beside a capture may
 * be in the graph all the same, since threads hand pointers to each other, and no call tells which
 * addresses a kernel's parameters hold. So past a cap the free could
 *   - give the memory to the driver: a launch would use what is somebody else's, and no call fails;
 *   - fail, as it may without the setting: a limit on memory would be an error of a free, which
 *     programs don't expect, sooner than out of memory is one of an allocation, which they do;
 *   - wait for the captures to end: these may wait for the thread.
 * The same holds of captures in thread-local mode that are all other threads'. Instead the report
 * says how much such threads freed, and to which capture the most belonged.
 *
 * An owner whose destructor never runs (the program leaks the graph, or the driver forgets it)
 * keeps what it owns until the context of each block ends, as the graph would use it; after that
 * what is left is the owner's own record, since the destructor may still run.
 *
 * A capture that fails takes its graph with it, and so gives back what it kept in the same way. One
 * whose graph takes no user object has no owner: while it is under way, the driver answers.
 *
 * It is a kind of memory as far as contexts and captures tell it things; its blocks are the device
 * kind's, in that kind's heaps, buckets and figures (core/device_memory/parked.h).
 *
 * Locking: the graphs' lock guards everything in struct graph_memory but what is atomic. It is
 * taken before a context's lock, and held across no driver call.
 */
#ifndef CUDAPOOL_CORE_GRAPH_MEMORY_H
#define CUDAPOOL_CORE_GRAPH_MEMORY_H

#include <stdbool.h>

#include "graph_owners.h"
#include "graph_state.h"

/* Whether allocations and frees are answered here: captures are under way, and all have owners. */
bool graph_memory_serves(struct pool *pool);

/* A new block, owned by all captures under way. The context is current; no lock held. */
CUresult graph_memory_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                               size_t bytes);

/* The same for a block that the driver has just given the caller, and that the heap knows. */
void graph_memory_own(struct pool *pool, CUdeviceptr address);

/* Whether the free of this block is answered here, by result: captures are under way, or graphs own
 * it. Waits for nothing. No lock held. */
bool graph_memory_free_owned(struct pool *pool, struct block *block, CUdeviceptr address,
                             CUresult *result);

static inline bool graph_memory_free(struct pool *pool, struct block *block, CUdeviceptr address,
                                     CUresult *result)
{
    return graph_memory_of(pool) && graph_memory_free_owned(pool, block, address, result);
}

/* After the driver was asked to free a block that graphs own: it is theirs still, or gone. */
void graph_memory_look_again(struct pool *pool, struct block *block, CUdeviceptr address);

/* An executable was launched, or uploaded for a launch. Any lock may be held. */
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

/* The driver has allocated in the stream's order; where a capture has the stream, that is a memory
 * node. No lock is held. */
void graph_memory_allocated_on(struct pool *pool, CUstream stream);

/* The kind, for the table of kinds (kind.h). */
extern const struct kind graph_memory;

#endif
