/*
 * The functions of cudapool.h.
 */
#include "core/cudapool.h"

#include "shim.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cudapool_is_active(void)
{
    real_driver();
    return the_pool() != NULL;
}

EXPORTED uint64_t cudapool_trim(void)
{
    struct pool *pool = the_pool();
    return pool ? pool_trim(pool) : 0;
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
