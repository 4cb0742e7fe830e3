/*
 * The functions of pool.h for graphs that end, and for the pools from which captured streams
 * allocate.
 */
#include "core/driver/calls.h"
#include "core/graph_memory/graph_memory.h"
#include "core/graph_memory/graph_nodes.h"
#include "core/graph_memory/graph_owners.h"
#include "core/graph_memory/graph_pools.h"
#include "core/unpooled/unpooled.h"
#include "pool.h"
#include "pool_stream.h"

void pool_graphs_may_be_gone(struct pool *pool)
{
    if (is_inside_driver())
        return;
    graph_memory_process_ended(pool);
    unpooled_follow_graphs(pool);
}

uint64_t pool_graph_pool_create(struct pool *pool)
{
    return graph_nodes_are_served(pool) ? graph_pool_create(graph_memory_of(pool)) : 0;
}

/* Calls a function of graph_pools.h that returns false where the number names no pool. */
static CUresult answer(struct pool *pool, uint64_t number,
                       bool (*function)(struct graph_memory *, uint64_t))
{
    if (!graph_nodes_are_served(pool))
        return CUDA_ERROR_NOT_SUPPORTED;
    return function(graph_memory_of(pool), number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult pool_graph_pool_use(struct pool *pool, uint64_t number, CUstream stream)
{
    /* Without stream numbers, a later stream with the same handle would use the pool as well. */
    unsigned long long id = 0;
    if (!graph_nodes_are_served(pool) || !pool->driver->cuStreamGetId)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!stream_is_created(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = graph_stream_id(pool, stream, &id);
    if (result != CUDA_SUCCESS)
        return result;
    return graph_pool_use(graph_memory_of(pool), number, stream, id) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_INVALID_VALUE;
}

CUresult pool_graph_pool_seal(struct pool *pool, uint64_t number)
{
    return answer(pool, number, graph_pool_seal);
}

CUresult pool_graph_pool_clear(struct pool *pool, uint64_t number)
{
    return answer(pool, number, graph_pool_clear);
}

CUresult pool_graph_pool_bytes(struct pool *pool, uint64_t number, struct kept_bytes *bytes)
{
    if (!graph_nodes_are_served(pool))
        return CUDA_ERROR_NOT_SUPPORTED;
    return graph_pool_bytes(graph_memory_of(pool), number, bytes) ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_VALUE;
}

CUresult pool_graph_pool_destroy(struct pool *pool, uint64_t number)
{
    return answer(pool, number, graph_pool_destroy);
}
