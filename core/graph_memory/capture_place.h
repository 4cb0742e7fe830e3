/*
 * Where a captured stream stands: the nodes of the graph that its next work will come after.
 *
 * A capture makes edges out of the order of its streams and events. So whether something that a
 * stream does comes after something that a stream of the same capture did before is a question to
 * the graph: are the nodes that the earlier one came after all among those that the later one comes
 * after, directly or not? It holds whichever streams the two were, whatever has become of them, and
 * where the program has set what a stream comes after.
 *
 * The driver is asked; no lock is held.
 */
#ifndef CUDAPOOL_CORE_CAPTURE_PLACE_H
#define CUDAPOOL_CORE_CAPTURE_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/driver/driver.h"

/* More nodes than these are not kept: what was done there is not known to come before anything. */
#define PLACE_NODES 8u

/* So many nodes before a place are looked at; one that is further back is not found. */
#define PAST_NODES 256u

struct capture_place {
    cuuint64_t capture; /* the driver's number of the capture */
    CUgraph graph;
    bool is_spoilt; /* the capture has failed, and will leave no graph; nothing else is told */
    bool is_known;  /* the nodes are all, and what comes next waits for them to end */
    size_t count;
    CUgraphNode nodes[PLACE_NODES];
};

/* False where the stream is not in a capture, or in one that has failed. */
bool capture_place_ask(const struct driver *driver, CUstream stream, struct capture_place *place);

/* The nodes before a place, found as far as they were needed. */
struct capture_past {
    const struct driver *driver;
    CUgraph graph;
    bool is_known;
    size_t count, looked_behind; /* of so many, those that they come after are in it, too */
    CUgraphNode nodes[PAST_NODES];
};

void capture_past_begin(struct capture_past *past, const struct driver *driver,
                        const struct capture_place *place);

/* Whether all work before the earlier place, in the same graph, is before this one. Several
 * captures may make one graph (cuStreamBeginCaptureToGraph). */
bool capture_past_includes(struct capture_past *past, const struct capture_place *earlier);

#endif
