#include "return_stream.h"

#include "core/base/clock.h"
#include "core/driver/calls.h"
#include "epoch.h"
#include "pool_state.h"
#include "registry.h"

/* The longest wait, after a barrier of the pool's own, when other processes need the memory:
 * nanoseconds. */
#define FOR_OTHERS_NANOSECONDS (UINT64_C(20) * 1000 * 1000)

/* A stream of the context's own, made when it is first needed. */
static CUstream own_stream(struct pool *pool, struct context *context, _Atomic(CUstream) *place)
{
    /* Relaxed: the handle is only a number to the pool, and the driver knows what it means. */
    CUstream stream = atomic_load_explicit(place, memory_order_relaxed);
    bool pushed;
    if (stream || !context_push(pool, context, &pushed))
        return stream;
    CUstream created = NULL;
    enter_driver();
    CUresult result = pool->driver->cuStreamCreate(&created, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS &&
        atomic_compare_exchange_strong_explicit(place, &stream, created, memory_order_relaxed,
                                                memory_order_relaxed))
        stream = created;
    else if (result == CUDA_SUCCESS)
        pool->driver->cuStreamDestroy_v2(created);
    leave_driver();
    context_pop(pool, pushed);
    return stream;
}

CUstream return_stream(struct pool *pool, struct context *context)
{
    return own_stream(pool, context, &context->return_stream);
}

CUstream late_return_stream(struct pool *pool, struct context *context)
{
    return own_stream(pool, context, &context->late_stream);
}

/* Whether the stream is ordered after a barrier of the pool's own. The pool has allocated a block
 * after one, or is about to. What the barrier waits for may need this thread to go on. *in_vain: a
 * call has waited for that without success. */
static bool is_behind_own_barrier(struct context *context, bool *in_vain)
{
    lock_must_not_be_held(&context->lock);
    const struct epochs *epochs = &context->epochs;
    context_lock(context);
    bool behind = epochs->raising || epochs->barrier > epoch_clean(epochs);
    *in_vain = epochs->barrier > host_work_limit(&epochs->host_work);
    context_unlock(context);
    return behind;
}

/* Whether the stream's work completes within this time. */
static bool wait_at_most(struct pool *pool, CUstream stream, uint64_t nanoseconds)
{
    uint64_t started = monotonic_now();
    CUresult result;
    while ((result = pool->driver->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < nanoseconds)
        patient_nap(started);
    return result != CUDA_ERROR_NOT_READY;
}

/* Waits like an allocation: for a second at most. After that, the work counts as work that the host
 * ends. */
static bool wait_for_own_barrier(struct pool *pool, struct context *context, CUstream stream)
{
    if (wait_at_most(pool, stream, STALLED_WAIT_NANOSECONDS))
        return true;
    context_lock(context);
    epoch_give_up_waiting(pool, context);
    context_unlock(context);
    return false;
}

/* After the program's own cuCtxWaitEvent, only a thread that is out of memory waits. After a
 * barrier of the pool's own, that thread waits elsewhere, for the barrier's fence:
 * core/reclaim/waiting.h. For other processes, which wait for an answer, the wait is short: mostly
 * the barrier's fence has completed, and nobody has asked. */
bool return_wait(struct pool *pool, struct context *context, CUstream stream,
                 enum release_place place)
{
    bool in_vain = false, barred = atomic_load_explicit(&context->barred, memory_order_relaxed);
    if (!barred && !is_behind_own_barrier(context, &in_vain))
        return pool->driver->cuStreamSynchronize(stream) == CUDA_SUCCESS;
    if (!pool->driver->cuStreamQuery)
        return false;
    switch (place) {
    case RELEASE_OUT_OF_MEMORY:
        return wait_at_most(pool, stream, barred ? LAST_RESORT_NANOSECONDS : 0);
    case RELEASE_IN_TRIM:
        return wait_at_most(pool, stream, 0);
    case RELEASE_FOR_OTHERS:
        return !barred && wait_at_most(pool, stream, FOR_OTHERS_NANOSECONDS);
    default:
        return !barred && !in_vain && wait_for_own_barrier(pool, context, stream);
    }
}

bool return_is_over(struct pool *pool, struct context *context)
{
    CUstream stream = atomic_load_explicit(&context->return_stream, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    bool pushed;
    if (!stream || !pool->driver->cuStreamQuery ||
        !context_pin(context, context_generation(context)))
        return true;
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    if (context_push(pool, context, &pushed)) {
        result = pool->driver->cuStreamQuery(stream);
        context_pop(pool, pushed);
    }
    leave_driver_relaxed(pool->driver, mode);
    context_unpin(context);
    return result != CUDA_ERROR_NOT_READY;
}
