#include "fence_event.h"

#include "core/driver/calls.h"
#include "pool_state.h"
#include "registry.h"

CUresult fence_event_make(struct pool *pool, struct context *context, CUresult no_entry,
                          struct fence_event *made)
{
    uint64_t generation = context_generation(context);
    CUevent event;
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return no_entry;
    CUresult result = pool->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    context_pop(pool, pushed);
    if (result == CUDA_SUCCESS)
        *made = (struct fence_event){context, generation, event, false};
    return result;
}

void fence_event_destroy(struct pool *pool, const struct fence_event *e)
{
    lock_must_be_held(&pool->fence_lock);
    if (context_generation(e->context) == e->generation)
        pool->driver->cuEventDestroy_v2(e->event);
}

void fence_event_destroy_pinned(struct pool *pool, const struct fence_event *e)
{
    if (!e->event || !context_pin(e->context, e->generation))
        return;
    enter_driver();
    pool->driver->cuEventDestroy_v2(e->event);
    leave_driver();
    context_unpin(e->context);
}

CUresult event_query_relaxed(struct pool *pool, CUevent event)
{
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    CUresult result = pool->driver->cuEventQuery(event);
    leave_driver_relaxed(pool->driver, mode);
    return result;
}

CUresult fence_event_query(struct pool *pool, const struct fence_event *e)
{
    if (!context_pin(e->context, e->generation)) {
        /* Either the context has died, and its work with it, or a driver call that may end the
         * context has not returned yet. */
        return context_generation(e->context) == e->generation ? CUDA_ERROR_NOT_READY
                                                               : CUDA_SUCCESS;
    }
    CUresult result = pool->driver->cuEventQuery(e->event);
    context_unpin(e->context);
    return result;
}

bool epoch_is_the_end(CUresult result)
{
    return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_UNKNOWN ||
           (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result < CUDA_ERROR_NOT_PERMITTED &&
            result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED &&
            result != CUDA_ERROR_PEER_ACCESS_NOT_ENABLED &&
            result != CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
}

bool fence_may_leave_out(struct context *context, CUresult result)
{
    if (!epoch_is_the_end(result))
        return false;
    context_disable(context);
    return true;
}

enum record_result epoch_judge_record(struct pool *pool, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return RECORDED;
    /* The thread is in a host function, where the driver forbids nearly every call. Or the caller
     * passes this error because the context could not be made current (make_own_event). */
    if (result == CUDA_ERROR_NOT_PERMITTED)
        return NOT_NOW;
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return epoch_is_the_end(result) ? UNUSABLE : FAILED;
    /* Somebody captures a stream without the pool's knowledge. So the driver answers every call in
     * all contexts from now on. */
    context_disable_all(pool);
    return NOT_NOW;
}

bool contexts_are_dying(struct pool *pool)
{
    lock_must_be_held(&pool->fence_lock);
    bool dying = false;
    for (struct context *c = context_next(pool, NULL, NULL); c && !dying;
         c = context_next(pool, c, NULL))
        dying = atomic_load(&c->dying);
    return dying;
}
