#include "mempool.h"

#include "core/contexts/capture.h"
#include "core/contexts/pool_state.h"

struct relaxed_mode mempool_call_begin(const struct pool *pool)
{
    struct relaxed_mode none = {false, CU_STREAM_CAPTURE_MODE_RELAXED};
    enter_driver();
    return program_captures(&pool->captures) ? relaxed_mode_begin(pool->driver) : none;
}

void mempool_call_end(const struct pool *pool, struct relaxed_mode mode)
{
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
}

bool mempool_ask(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    const struct driver *driver = pool->driver;
    if (!driver->cuMemPoolGetAttribute)
        return false;
    struct relaxed_mode mode = mempool_call_begin(pool);
    CUresult result = driver->cuMemPoolGetAttribute(handle, attribute, value);
    mempool_call_end(pool, mode);
    return result == CUDA_SUCCESS;
}
