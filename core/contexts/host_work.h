/*
 * Work that ends only if the host acts: host functions and callbacks, graphs that hold such nodes,
 * waits for a value in memory, for an external semaphore.
 *
 * The plain cuMemFree waits for such work, too, but inside the free: between the free and the next
 * allocation a program may take a lock that the host function takes, and then no allocation may
 * wait for it. So each piece of such work leaves a mark in its context. A mark tells between which
 * fences the work was submitted:
 *
 *   a fence of an epoch <= before was recorded before the work: it does not wait for it;
 *   a fence of an epoch >= after was recorded behind it: once that is over, so is the work.
 *
 * While a mark is there, allocations wait only for fences of epochs <= before, and put nothing
 * behind a later one (see host_work_limit). Frees wait for the work, as the plain ones do: else the
 * program's own synchronise, under that lock, would find it still to be done. The fences in between
 * may or may not wait for the work: the number `before` is read before the driver is asked to
 * submit, and `after` when it has answered.
 *
 * An allocation that has waited for a second in vain leaves a mark as well: whatever it waited for
 * is taken for such work.
 *
 * Locking: the marks are guarded by their context's lock. The list of graphs has a lock of its own.
 */
#ifndef CUDAPOOL_CORE_HOST_WORK_H
#define CUDAPOOL_CORE_HOST_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/driver/cuda_abi.h"

struct context;
struct driver;
struct epochs;
struct pool;

/* More marks than this are one: the fences between them then count for both. */
#define HOST_MARKS 8u

struct host_mark {
    uint64_t before, after; /* epochs, before <= after */
};

struct host_work {
    struct host_mark marks[HOST_MARKS];
    unsigned count;
    unsigned submitting;        /* threads between host_work_begin and host_work_end */
    uint64_t submitting_before; /* the least `before` of theirs; of use while submitting > 0 */
    _Atomic uint64_t limit; /* min(marks[].before, submitting_before), UINT64_MAX: no mark. Written
                               under the context's lock; relaxed: who acts on it holds the lock */
};

static inline void host_work_init(struct host_work *work)
{
    atomic_init(&work->limit, UINT64_MAX);
}

/* Fences of later epochs than this may wait for work that only the host ends. */
static inline uint64_t host_work_limit(const struct host_work *work)
{
    return atomic_load_explicit(&work->limit, memory_order_relaxed);
}

/* Heap lock held. Some work was submitted between the epochs, or must be taken for such work. */
void host_work_mark(struct host_work *work, uint64_t before, uint64_t after);

/* Heap lock held. The context's own work is over up to the fence of this epoch. */
void host_work_clean(struct host_work *work, uint64_t epoch);

/* Heap lock held. The context has died, its work with it. */
void host_work_reset(struct host_work *work);

/* Around the driver call that submits such work to the stream. No lock held. The context is the
 * stream's; NULL: the pool does not know it, and has no memory there. */
struct host_submission {
    struct context *context;
    uint64_t generation; /* of the context */
    uint64_t before;
};
struct host_submission host_work_begin(struct pool *pool, CUstream stream);
void host_work_end(const struct host_submission *submission);

/* Executable graphs whose launch is such work. What kinds of nodes an executable holds never
 * changes: an update that would change it fails. */
struct host_graphs {
    pthread_mutex_t lock; /* guards what follows */
    void *executables;    /* a tree, for tsearch */
    bool every;           /* memory was short: every graph counts as one of them */
    _Atomic size_t count; /* of executables, and 1 more with every. Relaxed: whoever launches a
                             graph has it from whoever made it, who counted it before */
};

/* No lock held. The executable was made of the graph; it was destroyed; whether the host has a part
 * in it. Where memory is short, every graph counts as one that has. */
void host_graphs_add(struct pool *pool, CUgraphExec executable, CUgraph graph);
void host_graphs_remove(struct pool *pool, CUgraphExec executable);
bool host_graphs_has(struct pool *pool, CUgraphExec executable);

#endif
