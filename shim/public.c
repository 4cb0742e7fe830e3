/*
 * The exported functions of cudapool.h, which call the pool if there is one.
 */
#include "core/cudapool.h"

#include "real_driver.h"
#include "start.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cudapool_is_active(void)
{
    real_driver();
    return the_pool() != NULL;
}

EXPORTED uint64_t cudapool_trim(void)
{
    struct pool *pool = the_pool();
    if (!pool)
        return 0;
    pool_graphs_may_be_gone(pool);
    return pool_trim(pool);
}

EXPORTED int cudapool_get_bytes(int device, struct cudapool_bytes *bytes)
{
    struct pool *pool = the_pool();
    if (!pool || !bytes)
        return -1;
    struct kept_bytes found = pool_device_bytes(pool, device);
    *bytes = (struct cudapool_bytes){found.live, found.cached, found.pending};
    return 0;
}

EXPORTED int cudapool_get_peaks(int device, struct cudapool_peaks *peaks)
{
    struct pool *pool = the_pool();
    if (!pool || !peaks)
        return -1;
    struct kept_peaks found = pool_device_peaks(pool, device);
    *peaks = (struct cudapool_peaks){found.live, found.reserved};
    return 0;
}

EXPORTED int cudapool_reset_peaks(int device)
{
    struct pool *pool = the_pool();
    if (!pool)
        return -1;
    pool_start_peaks_again(pool, device);
    return 0;
}

EXPORTED int cudapool_get_stream_bytes(void *stream, struct cudapool_bytes *bytes)
{
    struct pool *pool = the_pool();
    struct kept_bytes found;
    if (!pool || !bytes || !pool_stream_bytes(pool, stream, &found))
        return -1;
    *bytes = (struct cudapool_bytes){found.live, found.cached, found.pending};
    return 0;
}

EXPORTED unsigned cudapool_reap(void)
{
    struct pool *pool = the_pool();
    return pool ? pool_reap(pool) : 0;
}

EXPORTED uint64_t cudapool_generation(uint64_t address)
{
    struct pool *pool = the_pool();
    return pool ? pool_generation(pool, address) : 0;
}

EXPORTED int cudapool_record_use(uint64_t address, uint64_t generation, void *stream,
                                 enum cudapool_use use)
{
    struct pool *pool = the_pool();
    if (!pool)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (use != CUDAPOOL_READ && use != CUDAPOOL_WRITE)
        return CUDA_ERROR_INVALID_VALUE;
    return (int)pool_record_use(pool, address, generation, stream, use == CUDAPOOL_WRITE);
}

EXPORTED cudapool_graph_pool cudapool_graph_pool_create(void)
{
    struct pool *pool = the_pool();
    return pool ? pool_graph_pool_create(pool) : 0;
}

EXPORTED int cudapool_graph_pool_use(cudapool_graph_pool number, void *stream)
{
    struct pool *pool = the_pool();
    return (int)(pool ? pool_graph_pool_use(pool, number, stream) : CUDA_ERROR_NOT_SUPPORTED);
}

EXPORTED int cudapool_graph_pool_seal(cudapool_graph_pool number)
{
    struct pool *pool = the_pool();
    return (int)(pool ? pool_graph_pool_seal(pool, number) : CUDA_ERROR_NOT_SUPPORTED);
}

EXPORTED int cudapool_graph_pool_clear(cudapool_graph_pool number)
{
    struct pool *pool = the_pool();
    return (int)(pool ? pool_graph_pool_clear(pool, number) : CUDA_ERROR_NOT_SUPPORTED);
}

EXPORTED int cudapool_graph_pool_get_bytes(cudapool_graph_pool number, struct cudapool_bytes *bytes)
{
    struct pool *pool = the_pool();
    struct kept_bytes found;
    if (!pool)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result =
        bytes ? pool_graph_pool_bytes(pool, number, &found) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = (struct cudapool_bytes){found.live, found.cached, found.pending};
    return (int)result;
}

EXPORTED int cudapool_graph_pool_destroy(cudapool_graph_pool number)
{
    struct pool *pool = the_pool();
    return (int)(pool ? pool_graph_pool_destroy(pool, number) : CUDA_ERROR_NOT_SUPPORTED);
}

EXPORTED cudapool_scalar cudapool_scalar_create(size_t bytes)
{
    struct pool *pool = the_pool();
    return pool ? pool_scalar_create(pool, bytes) : 0;
}

EXPORTED uint64_t cudapool_scalar_address(cudapool_scalar number)
{
    struct pool *pool = the_pool();
    return pool ? pool_scalar_address(pool, number) : 0;
}

EXPORTED int cudapool_scalar_set(cudapool_scalar number, const void *value, void *stream)
{
    struct pool *pool = the_pool();
    return (int)(pool ? pool_scalar_set(pool, number, value, stream) : CUDA_ERROR_NOT_SUPPORTED);
}

EXPORTED int cudapool_scalar_destroy(cudapool_scalar number)
{
    struct pool *pool = the_pool();
    return (int)(pool ? pool_scalar_destroy(pool, number) : CUDA_ERROR_NOT_SUPPORTED);
}
