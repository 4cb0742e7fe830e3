#include "capture_place.h"

#include <string.h>

/* A driver has one of the two functions, or both. */
static CUresult ask(const struct driver *driver, CUstream stream, struct capture_place *place,
                    const CUgraphNode **nodes, const CUgraphEdgeData **edges)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result =
        driver->cuStreamGetCaptureInfo_v3
            ? driver->cuStreamGetCaptureInfo_v3(stream, &status, &place->capture, &place->graph,
                                                nodes, edges, &place->count)
            : driver->cuStreamGetCaptureInfo_v2(stream, &status, &place->capture, &place->graph,
                                                nodes, &place->count);
    place->is_spoilt = result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_ERROR_INVALID_VALUE;
    return result;
}

bool capture_place_ask(const struct driver *driver, CUstream stream, struct capture_place *place)
{
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    *place = (struct capture_place){.graph = NULL};
    if (!driver->cuStreamGetCaptureInfo_v2 && !driver->cuStreamGetCaptureInfo_v3)
        return false;
    /* If an edge has data, the next work may begin before the node has completed. The driver then
     * refuses to answer without the edge data, so the place is not known. */
    place->is_known = ask(driver, stream, place, &nodes, NULL) == CUDA_SUCCESS;
    if (!place->is_known && (!driver->cuStreamGetCaptureInfo_v3 ||
                             ask(driver, stream, place, &nodes, &edges) != CUDA_SUCCESS))
        return false;
    place->is_known = place->is_known && place->count <= PLACE_NODES;
    if (place->is_known && place->count)
        memcpy(place->nodes, nodes, place->count * sizeof *nodes);
    return true;
}

static bool has(const struct capture_past *past, CUgraphNode node, size_t from)
{
    size_t i = from;
    while (i < past->count && past->nodes[i] != node)
        i++;
    return i < past->count;
}

static void add(struct capture_past *past, const CUgraphNode *nodes, size_t count)
{
    for (size_t i = 0; i < count && past->count < PAST_NODES; i++)
        if (!has(past, nodes[i], 0))
            past->nodes[past->count++] = nodes[i];
}

/* Adds the predecessors of the next node. False if there is no next node. Where a node may begin
 * before its predecessors have completed, the driver refuses to name them, and the search goes no
 * further. */
static bool look_further(struct capture_past *past)
{
    const struct driver *driver = past->driver;
    CUgraphNode nodes[PLACE_NODES];
    size_t count = PLACE_NODES, all = 0;
    if (!driver->cuGraphNodeGetDependencies || past->looked_behind == past->count)
        return false;
    CUgraphNode node = past->nodes[past->looked_behind++];
    if (driver->cuGraphNodeGetDependencies(node, NULL, &all) == CUDA_SUCCESS && all <= count &&
        driver->cuGraphNodeGetDependencies(node, nodes, &count) == CUDA_SUCCESS)
        add(past, nodes, count <= all ? count : all);
    return true;
}

void capture_past_begin(struct capture_past *past, const struct driver *driver,
                        const struct capture_place *place)
{
    past->driver = driver;
    past->graph = place->graph;
    past->is_known = place->is_known;
    past->count = past->looked_behind = 0;
    if (place->is_known)
        add(past, place->nodes, place->count);
}

static bool includes_node(struct capture_past *past, CUgraphNode node)
{
    size_t looked_at = 0;
    while (!has(past, node, looked_at)) {
        looked_at = past->count;
        if (!look_further(past))
            return false;
    }
    return true;
}

bool capture_past_includes(struct capture_past *past, const struct capture_place *earlier)
{
    bool all = past->is_known && earlier->is_known && earlier->graph == past->graph;
    for (size_t i = 0; all && i < earlier->count; i++)
        all = includes_node(past, earlier->nodes[i]);
    return all;
}
