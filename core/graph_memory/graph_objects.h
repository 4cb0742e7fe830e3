/*
 * Executables that are launched without a user object.
 *
 * The driver copies the user objects of a graph into each executable that is made of the graph or
 * updated by it. It launches an executable with one more object more slowly. So the object of a
 * capture's owner is taken off its graph during such a call, and put back before the program
 * continues. Clones and child graphs therefore have the object as usual. In the executable's place
 * the pool holds a reference to the object, until the program destroys the executable or updates it
 * by another graph. Launches may still be running then. What the owner kept becomes pending after
 * that, like a block freed just now, and its fence is ordered after those launches.
 *
 * The pool does this for graphs that captures have made, until they are destroyed, become part of
 * another graph or are captured into. After that the handle may end without a call that the pool
 * sees. As long as a handle is known, the pool holds a reference to its object. So the object
 * exists even if the graph was destroyed behind the pool's back.
 *
 * A destruction behind the pool's back must not happen all the same. If the handle then belongs to
 * another graph, the driver does not say that this graph lacks the object. The object may then be
 * released one executable too early (docs/limits.md). Every other way of making an executable, and
 * every failure here, is safe: the driver has its own reference, or one of the pool's references is
 * never released. Memory is then kept for longer, never for less.
 *
 * CUDA requires of the program that no two threads use one graph, or one executable, at the same
 * time.
 *
 * Locking: the graphs' lock guards what is known here. The functions take it. The driver is asked
 * in relaxed mode, which no capture forbids, while no lock of the pool's but the fence lock may be
 * held.
 */
#ifndef CUDAPOOL_CORE_GRAPH_OBJECTS_H
#define CUDAPOOL_CORE_GRAPH_OBJECTS_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"

struct graph_owner;
struct pool;

/* Notes the graph that a capture has left, which has the object of this owner. owner NULL: its
 * object may not be taken off, or it has none that is known. Forgets what was known of an earlier
 * graph with this handle. */
void graph_objects_note(struct pool *pool, CUgraph graph, struct graph_owner *owner);

/* Forgets the graph: a capture into it has begun, or it is about to become part of another graph.
 * It does not become known again by the end of that capture. */
void graph_objects_share(struct pool *pool, CUgraph graph);

/* graph_making_begin and graph_making_end: around the driver call that makes an executable of the
 * graph, or updates one by it. */
struct graph_making {
    CUgraph graph;
    struct graph_owner *owner; /* the owner for which launches of the executable count; NULL: no
                                  known owner, since the graph holds other graphs or is not known */
    CUuserObject object;       /* with a reference of the caller's; NULL: the graph is not known */
    bool is_off;               /* the object is off the graph during the call */
};
struct graph_making graph_making_begin(struct pool *pool, CUgraph graph);

/* executable: NULL if the call has failed. An update releases the reference for the graph used
 * before, whose owner may then be gone. */
void graph_making_end(struct pool *pool, const struct graph_making *making, CUgraphExec executable);

/* Counts a launch of the executable: for its owner, or for no known owner. */
void graph_executable_launched(struct pool *pool, CUgraphExec executable);

/* graph_ending_begin and graph_ending_end: around the driver call that destroys a graph or an
 * executable. During the call the handle may already belong to a new one. is_over: it was
 * destroyed. */
struct graph_ending {
    const void *handle;
    CUuserObject object; /* with the reference held for what is destroyed; NULL: nothing is known of
                            it */
    struct graph_owner *owner;
    bool is_executable;
};
struct graph_ending graph_ending_begin(struct pool *pool, CUgraph graph);
struct graph_ending graph_executable_ending_begin(struct pool *pool, CUgraphExec executable);
void graph_ending_end(struct pool *pool, const struct graph_ending *ending, bool is_over);

#endif
