/*
 * These functions track work that ends only if the host acts, as the program submits it. Each piece
 * leaves a mark in its context (host_marks.h). Graphs that hold such work are known by their
 * executables.
 */
#ifndef CUDAPOOL_CORE_HOST_WORK_H
#define CUDAPOOL_CORE_HOST_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;
struct pool;

/* No lock held. Called around the driver call that submits such work to the stream. context is the
 * stream's context; NULL: the pool does not know it, and has no memory there. */
struct host_submission {
    struct context *context;
    uint64_t generation; /* of the context */
    uint64_t before;
};
struct host_submission host_work_begin(struct pool *pool, CUstream stream);
void host_work_end(const struct host_submission *submission);

/* No lock held. host_graphs_add: the executable was made from the graph. host_graphs_remove: it is
 * about to be destroyed. host_graphs_has: whether the graph holds work that only the host can end.
 * Where memory is short, every graph counts as one that does. */
void host_graphs_add(struct pool *pool, CUgraphExec executable, CUgraph graph);
bool host_graphs_remove(struct pool *pool, CUgraphExec executable);
bool host_graphs_has(struct pool *pool, CUgraphExec executable);

/* No lock held. An executable that host_graphs_remove has removed was not destroyed, since the
 * driver refuses that while captures forbid it. The pool cannot wait for the driver's answer before
 * it removes the executable: the handle may be another thread's new executable by then. */
void host_graphs_put_back(struct pool *pool, CUgraphExec executable);

#endif
