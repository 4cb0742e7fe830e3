/*
 * The functions of cudapool.h.
 */
#include "../core/cudapool.h"

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
    struct pool_bytes found = pool_device_bytes(pool, device);
    *bytes = (struct cudapool_bytes){found.live, found.cached, found.pending};
    return 0;
}
