/*
 * A place in a capture: the nodes of the graph after which the next work of a captured stream will
 * run.
 *
 * A capture turns the order of its streams and events into edges of the graph. So the graph tells
 * whether something that one stream does comes after what another stream of the same capture did
 * before. It does if every node of the earlier place is among the nodes of the later place and
 * their direct or indirect predecessors. The answer does not depend on which streams these were or
 * what has become of them. It also holds where the program itself has set what a stream comes
 * after.
 *
 * The driver is asked; callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_CAPTURE_PLACE_H
#define CUDAPOOL_CORE_CAPTURE_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/driver/driver.h"

/* A place with more nodes than these is not known: work done there is not known to come before any
 * other. */
#define PLACE_NODES 8u

/* So many nodes before a place are looked at. A node that is further back is not found. */
#define PAST_NODES 256u

struct capture_place {
    cuuint64_t capture; /* the driver's number of the capture */
    CUgraph graph;
    bool is_spoilt; /* the capture has failed and will leave no graph; the other fields are unset */
    bool is_known;  /* nodes has all nodes, and the next work waits until each of them has
                       completed */
    size_t count;
    CUgraphNode nodes[PLACE_NODES];
};

/* Asks the driver for the stream's place. False if the stream is not in a capture, or in one that
 * has failed. */
bool capture_place_ask(const struct driver *driver, CUstream stream, struct capture_place *place);

/* The nodes before a place, searched only as far as they were needed. */
struct capture_past {
    const struct driver *driver;
    CUgraph graph;
    bool is_known;
    size_t count, looked_behind; /* the predecessors of the first looked_behind nodes are in nodes
                                    as well */
    CUgraphNode nodes[PAST_NODES];
};

void capture_past_begin(struct capture_past *past, const struct driver *driver,
                        const struct capture_place *place);

/* Whether all work before the earlier place is also before this one. Both must be in the same
 * graph. Several captures may make one graph (cuStreamBeginCaptureToGraph). */
bool capture_past_includes(struct capture_past *past, const struct capture_place *earlier);

#endif
