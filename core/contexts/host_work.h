/*
 * Work that ends only if the host acts, as the program submits it: each piece leaves a mark in its
 * context (host_marks.h), and graphs that hold such work are known by their executables.
 */
#ifndef CUDAPOOL_CORE_HOST_WORK_H
#define CUDAPOOL_CORE_HOST_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;
struct pool;

/* Around the driver call that submits such work to the stream. No lock held. The context is the
 * stream's; NULL: the pool does not know it, and has no memory there. */
struct host_submission {
    struct context *context;
    uint64_t generation; /* of the context */
    uint64_t before;
};
struct host_submission host_work_begin(struct pool *pool, CUstream stream);
void host_work_end(const struct host_submission *submission);

/* No lock held. The executable was made of the graph; it is about to be destroyed; whether the host
 * has a part in it. Where memory is short, every graph counts as one that has. */
void host_graphs_add(struct pool *pool, CUgraphExec executable, CUgraph graph);
bool host_graphs_remove(struct pool *pool, CUgraphExec executable);
bool host_graphs_has(struct pool *pool, CUgraphExec executable);

/* No lock held. One that was removed, host_graphs_remove having said so, was not destroyed: the
 * driver refuses while captures forbid it. It cannot be removed after the driver's answer, when its
 * handle may be another thread's new one. */
void host_graphs_put_back(struct pool *pool, CUgraphExec executable);

#endif
