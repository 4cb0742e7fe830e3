#include "return_stream.h"

#include "core/base/clock.h"
#include "core/driver/calls.h"
#include "epoch.h"
#include "pool_state.h"
#include "registry.h"

/* Behind a barrier of our own, so long in other processes' place: nanoseconds. */
#define FOR_OTHERS_NANOSECONDS (UINT64_C(20) * 1000 * 1000)

/* A stream of the context's own, made when it is first needed. */
static CUstream own_stream(struct pool *pool, struct context *context, _Atomic(CUstream) *place)
{
    /* Relaxed: the handle is a number to us, and the driver knows what it means. */
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

/* The pool has handed out a block behind a barrier, or is about to, behind which the stream comes
 * as well: what that waits for may need this thread to go on. *in_vain: that was waited for in
 * vain. */
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

/* Like any other wait in an allocation: for a second at most, and then as if such work were known.
 */
static void wait_for_own_barrier(struct pool *pool, struct context *context, CUstream stream,
                                 enum release_place place)
{
    uint64_t started = monotonic_now();
    uint64_t longest =
        place == RELEASE_OUT_OF_MEMORY ? LAST_RESORT_NANOSECONDS : VAIN_WAIT_NANOSECONDS;
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY && monotonic_now() - started < longest) {
        patient_nap(started);
        result = pool->driver->cuStreamQuery(stream);
    }
    if (result != CUDA_ERROR_NOT_READY || place == RELEASE_OUT_OF_MEMORY)
        return;
    context_lock(context);
    epoch_give_up_waiting(pool, context);
    context_unlock(context);
}

/* Behind a barrier of the program's own the memory comes back when the barrier lets it, and only
 * who is out of memory waits for that, and not for long. */
static void wait_patiently(struct pool *pool, CUstream stream, enum release_place place)
{
    uint64_t started = monotonic_now();
    if (place != RELEASE_OUT_OF_MEMORY || !pool->driver->cuStreamQuery)
        return;
    while (pool->driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < LAST_RESORT_NANOSECONDS)
        patient_nap(started);
}

/* Nobody waits in the program's place, but others wait for an answer. Mostly the barrier is over,
 * and nobody has asked. */
static void wait_a_little(struct pool *pool, CUstream stream)
{
    uint64_t started = monotonic_now();
    while (pool->driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < FOR_OTHERS_NANOSECONDS)
        patient_nap(started);
}

void return_wait(struct pool *pool, struct context *context, CUstream stream,
                 enum release_place place)
{
    bool in_vain;
    if (atomic_load_explicit(&context->barred, memory_order_relaxed))
        wait_patiently(pool, stream, place);
    else if (is_behind_own_barrier(context, &in_vain)) {
        if (pool->driver->cuStreamQuery && place == RELEASE_FOR_OTHERS)
            wait_a_little(pool, stream);
        else if (pool->driver->cuStreamQuery && (!in_vain || place == RELEASE_OUT_OF_MEMORY))
            wait_for_own_barrier(pool, context, stream, place);
    } else
        pool->driver->cuStreamSynchronize(stream);
}

bool return_is_over(struct pool *pool, struct context *context)
{
    CUstream stream = atomic_load_explicit(&context->return_stream, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    bool pushed;
    if (!stream || !pool->driver->cuStreamQuery ||
        !context_pin(context, context_generation(context)))
        return true;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    if (context_push(pool, context, &pushed)) {
        result = pool->driver->cuStreamQuery(stream);
        context_pop(pool, pushed);
    }
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    context_unpin(context);
    return result != CUDA_ERROR_NOT_READY;
}
