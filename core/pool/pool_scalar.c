/*
 * Device scalars: the functions of pool.h that concern them.
 */
#include "core/contexts/capture.h"
#include "core/contexts/pool_state.h"
#include "core/graph_memory/graph_memory.h"
#include "core/scalars/scalars.h"
#include "pool.h"

/* Scalars allocate and free memory as the program does. Where a capture of the program's would
 * refuse that, and fail with it, nothing is done. */
static bool captures_would_mind(struct pool *pool)
{
    return program_captures(&pool->captures) && !graph_memory_serves(pool);
}

uint64_t pool_scalar_create(struct pool *pool, size_t bytes)
{
    CUdeviceptr address;
    if (bytes == 0 || bytes > SCALAR_BYTES || !scalars_are_served(pool) ||
        captures_would_mind(pool) || pool_allocate(pool, &address, bytes) != CUDA_SUCCESS)
        return 0;
    uint64_t number = scalar_add(pool, address, bytes);
    if (!number)
        pool_free(pool, address);
    return number;
}

CUdeviceptr pool_scalar_address(struct pool *pool, uint64_t number)
{
    struct scalar scalar;
    return scalar_find(pool, number, &scalar) ? scalar.address : 0;
}

CUresult pool_scalar_set(struct pool *pool, uint64_t number, const void *value, CUstream stream)
{
    struct scalar scalar;
    if (!value || !scalar_find(pool, number, &scalar))
        return CUDA_ERROR_INVALID_VALUE;
    return scalar_set(pool, &scalar, value, stream);
}

CUresult pool_scalar_destroy(struct pool *pool, uint64_t number)
{
    struct scalar scalar;
    if (captures_would_mind(pool))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!scalar_remove(pool, number, &scalar))
        return CUDA_ERROR_INVALID_VALUE;
    return scalar_has_memory(&scalar) ? pool_free(pool, scalar.address) : CUDA_SUCCESS;
}
