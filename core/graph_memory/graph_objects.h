/*
 * Executables that are launched without a user object.
 *
 * The driver copies the user objects of a graph into each executable that is made of it or updated
 * by it, and launches an executable that has one more slowly. So the object of a capture's owner is
 * off its graph for the time of such a call, and on it again when the program goes on: clones and
 * child graphs have it as ever. In the executable's place the pool has a reference to the object,
 * until the program destroys the executable, or updates it by another graph. Launches may still go
 * on then; what the owner has kept becomes pending after that, like a block that is freed just now,
 * and its fence comes after those launches.
 *
 * This is done for graphs that captures have made, until they are destroyed, become part of another
 * graph or are captured into, since their handles may end unseen after that. As long as a handle is
 * known the pool has a reference to its object, so that the object is there even where the graph
 * was destroyed behind the pool's back. That is the one thing that must not happen: where the
 * handle is another graph's by then, the driver does not say that this one lacks the object, which
 * may then be gone one executable too early (docs/limits.md). Whatever else makes an executable,
 * and whatever fails here, has the driver's own reference, or leaves one of the pool's that nobody
 * gives up: memory is kept for longer, and never for less.
 *
 * CUDA leaves it to the program that no two threads use one graph, or one executable, at a time.
 *
 * Locking: the graphs' lock guards what is known, and is taken inside. The driver is asked in
 * relaxed mode, which no capture minds, with no lock of the pool's but the fence lock.
 */
#ifndef CUDAPOOL_CORE_GRAPH_OBJECTS_H
#define CUDAPOOL_CORE_GRAPH_OBJECTS_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"

struct graph_owner;
struct pool;

/* A capture has left the graph, which has the object of this owner, if any; NULL: it has one that
 * may not be off it, or is not known. What was known of an earlier graph with its handle is known
 * no more. */
void graph_objects_note(struct pool *pool, CUgraph graph, struct graph_owner *owner);

/* A capture into the graph has begun, or it is about to be part of another one: it is known no
 * more, nor will it be by that capture's end. */
void graph_objects_share(struct pool *pool, CUgraph graph);

/* Around the driver call that makes an executable of the graph, or updates one by it. */
struct graph_making {
    CUgraph graph;
    struct graph_owner *owner; /* whose launches those of the executable are; NULL: nobody's in
                                  particular, since the graph holds others, or is not known */
    CUuserObject object;       /* with a reference of the caller's; NULL: the graph is not known */
    bool is_off;               /* the graph does not have it meanwhile */
};
struct graph_making graph_making_begin(struct pool *pool, CUgraph graph);

/* executable: NULL where the call has failed. What an update has left behind may be taken up. */
void graph_making_end(struct pool *pool, const struct graph_making *making, CUgraphExec executable);

/* A launch of the executable begins: its owner's, or nobody's in particular. */
void graph_executable_launched(struct pool *pool, CUgraphExec executable);

/* Around the driver call that destroys a graph or an executable: while it goes on the handle may
 * already be another one's. */
struct graph_ending {
    const void *handle;
    CUuserObject object; /* with the reference of what ends; NULL: nothing is known of it */
    struct graph_owner *owner;
    bool is_executable;
};
struct graph_ending graph_ending_begin(struct pool *pool, CUgraph graph);
struct graph_ending graph_executable_ending_begin(struct pool *pool, CUgraphExec executable);
void graph_ending_end(struct pool *pool, const struct graph_ending *ending, bool is_over);

#endif
