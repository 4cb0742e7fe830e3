#include "epoch.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "pool_state.h"
#include "release.h"

/* A fence that was running is not asked about again sooner: nanoseconds. */
#define QUERY_INTERVAL 8000u

enum record_result { RECORDED, SYNCHRONISED, NOT_NOW, UNUSABLE };

static void put_spare(struct epochs *epochs, struct fence *fence)
{
    fence->next = epochs->spare;
    epochs->spare = fence;
}

static struct fence *take_spare(struct epochs *epochs)
{
    struct fence *fence = epochs->spare;
    if (!fence)
        return calloc(1, sizeof *fence);
    epochs->spare = fence->next;
    return fence;
}

/* Lock held. A fence that is over and that nobody looks at any more may be recorded again. */
static void drop_user(struct epochs *epochs, struct fence *fence)
{
    fence->users--;
    if (fence->users == 0 && fence->over)
        put_spare(epochs, fence);
}

struct fence *epoch_begin_close(struct epochs *epochs, bool waitable)
{
    if (epochs->recording || epochs->outstanding >= FENCES_MAX)
        return NULL;
    struct fence *fence = take_spare(epochs);
    if (!fence)
        return NULL;
    epochs->recording = true;
    fence->epoch = epochs->current++;
    fence->waitable = waitable;
    fence->over = false;
    fence->users = 0;
    fence->next = NULL;
    return fence;
}

/* Fence lock held, as for all functions down to record_fence. */
static void destroy_events(struct pool *pool, struct fence *fence)
{
    for (unsigned i = 0; i < fence->event_count; i++) {
        struct fence_event *e = &fence->events[i];
        if (context_generation(e->context) == e->generation)
            pool->driver->cuEventDestroy_v2(e->event);
    }
    free(fence->events);
    fence->events = NULL;
    fence->event_count = 0;
}

static bool add_event(struct pool *pool, struct fence *fence, struct context *context)
{
    CUevent event;
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return false;
    CUresult result = pool->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    context_pop(pool, pushed);
    if (result != CUDA_SUCCESS)
        return false;
    fence->events[fence->event_count++] =
        (struct fence_event){context, context_generation(context), event, false};
    return true;
}

static size_t count_contexts(struct pool *pool)
{
    size_t count = 0;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        count++;
    return count;
}

/* One event in the fence's own context, or in every live one once there have been several. */
static bool make_events(struct pool *pool, struct context *own, struct fence *fence)
{
    bool several = atomic_load_explicit(&pool->several_contexts, memory_order_acquire);
    destroy_events(pool, fence);
    fence->events = calloc(several ? count_contexts(pool) + 1 : 1, sizeof *fence->events);
    if (!fence->events)
        return false;
    /* Its own comes first: that is the one that may be waited for. */
    bool made = add_event(pool, fence, own);
    for (struct context *c = context_next(pool, NULL, NULL); several && made && c;
         c = context_next(pool, c, NULL))
        made = c == own || add_event(pool, fence, c);
    if (made)
        fence->set_generation = pool->registry.set_generation;
    else
        destroy_events(pool, fence);
    return made;
}

static enum record_result judge_record(struct pool *pool, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return RECORDED;
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return UNUSABLE;
    /* Somebody captures without our seeing it. Relaxed: only ever set, and a late look costs what
     * this look has cost. */
    atomic_store_explicit(&pool->stepped_aside, true, memory_order_relaxed);
    return NOT_NOW;
}

/* Nothing is recorded any more: it might invalidate the captures that are not seen. */
static bool has_stepped_aside(const struct pool *pool)
{
    return atomic_load_explicit(&pool->stepped_aside, memory_order_relaxed);
}

/* What closing an epoch is on a driver without cuCtxRecordEvent: the plain cuMemFree's wait. */
static enum record_result synchronise_instead(struct pool *pool, struct context *context)
{
    bool pushed;
    if (atomic_load_explicit(&pool->several_contexts, memory_order_acquire))
        return NOT_NOW;
    if (!context_push(pool, context, &pushed))
        return UNUSABLE;
    CUresult result = pool->driver->cuCtxSynchronize();
    context_pop(pool, pushed);
    enum record_result judged = judge_record(pool, result);
    return judged == RECORDED ? SYNCHRONISED : judged;
}

static enum record_result record_fence(struct pool *pool, struct context *context,
                                       struct fence *fence)
{
    if (captures_are_going_on(&pool->captures) || has_stepped_aside(pool))
        return NOT_NOW;
    if (!pool->driver->cuCtxRecordEvent)
        return fence->waitable ? synchronise_instead(pool, context) : NOT_NOW;
    if (fence->set_generation != pool->registry.set_generation &&
        !make_events(pool, context, fence))
        return NOT_NOW;
    enum record_result result = RECORDED;
    for (unsigned i = 0; i < fence->event_count && result == RECORDED; i++) {
        struct fence_event *e = &fence->events[i];
        e->done = false;
        result = judge_record(pool, pool->driver->cuCtxRecordEvent(e->context->handle, e->event));
    }
    return result;
}

static void publish(struct epochs *epochs, struct fence *fence)
{
    if (epochs->newest)
        epochs->newest->next = fence;
    else
        epochs->oldest = fence;
    epochs->newest = fence;
    epochs->outstanding++;
}

void epoch_record(struct pool *pool, struct context *context, struct fence *fence)
{
    enter_driver();
    pthread_mutex_lock(&pool->fence_lock);
    enum record_result result = record_fence(pool, context, fence);
    pthread_mutex_unlock(&pool->fence_lock);
    leave_driver();

    struct epochs *epochs = &context->epochs;
    pthread_mutex_lock(&context->heap.lock);
    epochs->recording = false;
    /* An epoch that a death of the context has closed meanwhile needs no fence. */
    if (result == RECORDED && fence->epoch > epoch_clean(epochs)) {
        publish(epochs, fence);
        counter_add(&context->heap.fences, 1);
    } else {
        uint64_t epoch = fence->epoch;
        put_spare(epochs, fence);
        if (result == SYNCHRONISED)
            epoch_complete(context, epoch);
    }
    pthread_mutex_unlock(&context->heap.lock);
    if (result == UNUSABLE)
        context_step_aside(context);
}

struct fence *epoch_fence_for(const struct epochs *epochs, uint64_t stamp, bool waitable)
{
    struct fence *fence = epochs->oldest;
    while (fence && (fence->epoch < stamp || (waitable && !fence->waitable)))
        fence = fence->next;
    return fence;
}

static CUresult query_event(struct pool *pool, struct fence_event *e)
{
    if (!context_pin(e->context, e->generation)) {
        /* Dead, its work with it; or the driver is still asked whether it dies. */
        bool died = context_generation(e->context) != e->generation;
        return died ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }
    CUresult result = pool->driver->cuEventQuery(e->event);
    context_unpin(e->context);
    return result;
}

/* No lock held; epochs.querying is ours, and the fence has us as a user. */
static enum fence_answer ask_driver(struct pool *pool, struct fence *fence)
{
    enum fence_answer answer = FENCE_OVER;
    for (unsigned i = 0; i < fence->event_count; i++) {
        struct fence_event *e = &fence->events[i];
        if (e->done)
            continue;
        CUresult result = query_event(pool, e);
        e->done = result == CUDA_SUCCESS;
        if (result == CUDA_ERROR_NOT_READY && i == 0)
            return FENCE_RUNNING;
        if (result == CUDA_ERROR_NOT_READY)
            answer = FENCE_OWN_OVER;
        else if (result != CUDA_SUCCESS)
            return FENCE_FAILED;
    }
    return answer;
}

enum fence_answer epoch_query(struct pool *pool, struct context *context, struct fence *fence)
{
    struct epochs *epochs = &context->epochs;
    if (epochs->querying || monotonic_now() - epochs->asked_at < QUERY_INTERVAL)
        return FENCE_RUNNING;
    uint64_t epoch = fence->epoch;
    epochs->querying = true;
    fence->users++;
    pthread_mutex_unlock(&context->heap.lock);

    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool);
    enum fence_answer answer = ask_driver(pool, fence);
    relaxed_mode_end(pool, mode);
    leave_driver();
    if (answer == FENCE_FAILED)
        context_step_aside(context);

    pthread_mutex_lock(&context->heap.lock);
    counter_add(&context->heap.fence_queries, 1);
    epochs->querying = false;
    if (answer != FENCE_OVER)
        epochs->asked_at = monotonic_now();
    if (answer == FENCE_OVER)
        epoch_complete(context, epoch);
    drop_user(epochs, fence);
    return answer;
}

static bool wait_for_fence(struct pool *pool, struct context *context, struct fence *fence,
                           uint64_t stamp, uint64_t give_up_at)
{
    struct epochs *epochs = &context->epochs;
    uint64_t started = monotonic_now();
    fence->users++;
    while (epoch_clean(epochs) < stamp) {
        enum fence_answer answer = epoch_query(pool, context, fence);
        if (answer == FENCE_FAILED || epoch_clean(epochs) >= stamp)
            break;
        if (give_up_at ? monotonic_now() >= give_up_at : answer == FENCE_OWN_OVER)
            break;
        pthread_mutex_unlock(&context->heap.lock);
        patient_nap(started);
        pthread_mutex_lock(&context->heap.lock);
    }
    drop_user(epochs, fence);
    return epoch_clean(epochs) >= stamp;
}

/* Lock held, and released in between: another thread may be recording the very fence. */
static struct fence *await_fence_for(struct context *context, uint64_t stamp)
{
    struct epochs *epochs = &context->epochs;
    struct fence *fence = epoch_fence_for(epochs, stamp, true);
    while (!fence && epochs->recording && stamp < epochs->current && epoch_clean(epochs) < stamp) {
        pthread_mutex_unlock(&context->heap.lock);
        sched_yield();
        pthread_mutex_lock(&context->heap.lock);
        fence = epoch_fence_for(epochs, stamp, true);
    }
    return fence;
}

bool epoch_wait(struct pool *pool, struct context *context, uint64_t stamp)
{
    struct fence *fence = await_fence_for(context, stamp);
    if (!fence)
        return epoch_clean(&context->epochs) >= stamp;
    return wait_for_fence(pool, context, fence, stamp, 0);
}

bool epoch_wait_until(struct pool *pool, struct context *context, uint64_t stamp,
                      uint64_t give_up_at)
{
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, false);
    return fence && wait_for_fence(pool, context, fence, stamp, give_up_at);
}

uint64_t epoch_synchronise_begin(struct pool *pool, struct context *context)
{
    struct heap *heap = &context->heap;
    struct fence *fence = NULL;
    uint64_t epoch = 0;
    pthread_mutex_lock(&heap->lock);
    if (heap->pending.first) {
        /* With several contexts this one's synchronise is not enough: the fence knows the rest. */
        if (atomic_load_explicit(&pool->several_contexts, memory_order_acquire))
            fence = epoch_begin_close(&context->epochs, true);
        else
            epoch = context->epochs.current++;
    }
    pthread_mutex_unlock(&heap->lock);
    if (fence)
        epoch_record(pool, context, fence);
    return epoch;
}

/* Errors that tell of the call and not of the context. */
static bool is_passing(CUresult result)
{
    return (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
            result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) ||
           result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_INVALID_CONTEXT ||
           result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_DEINITIALIZED;
}

void epoch_synchronise_end(struct pool *pool, struct context *context, uint64_t epoch,
                           CUresult result)
{
    if (result != CUDA_SUCCESS) {
        if (!is_passing(result))
            context_step_aside(context);
        return;
    }
    if (epoch) {
        pthread_mutex_lock(&context->heap.lock);
        epoch_complete(context, epoch);
        pthread_mutex_unlock(&context->heap.lock);
    }
    release_excess(pool, context, RELEASE_IN_FREE);
}

/* Lock held. Takes the oldest fence off the list; whoever still looks at it makes it spare. */
static void retire_oldest(struct epochs *epochs)
{
    struct fence *fence = epochs->oldest;
    epochs->oldest = fence->next;
    if (!epochs->oldest)
        epochs->newest = NULL;
    epochs->outstanding--;
    fence->over = true;
    if (fence->users == 0)
        put_spare(epochs, fence);
}

void epoch_complete(struct context *context, uint64_t epoch)
{
    struct epochs *epochs = &context->epochs;
    if (epoch <= epoch_clean(epochs))
        return;
    atomic_store_explicit(&epochs->clean, epoch, memory_order_relaxed);
    while (epochs->oldest && epochs->oldest->epoch <= epoch)
        retire_oldest(epochs);
    heap_sweep(context);
}

bool epoch_raise_barrier(struct pool *pool, struct context *context, struct fence *fence)
{
    struct epochs *epochs = &context->epochs;
    uint64_t epoch = fence->epoch;
    CUresult result = CUDA_ERROR_NOT_READY;
    fence->users++;
    pthread_mutex_unlock(&context->heap.lock);

    enter_driver();
    pthread_mutex_lock(&pool->fence_lock);
    if (!captures_are_going_on(&pool->captures) &&
        !atomic_load_explicit(&pool->several_contexts, memory_order_acquire))
        result = pool->driver->cuCtxWaitEvent(context->handle, fence->events[0].event);
    pthread_mutex_unlock(&pool->fence_lock);
    leave_driver();
    if (result != CUDA_ERROR_NOT_READY && judge_record(pool, result) == UNUSABLE)
        context_step_aside(context);

    pthread_mutex_lock(&context->heap.lock);
    if (result == CUDA_SUCCESS) {
        counter_add(&context->heap.barriers, 1);
        if (epoch > epochs->barrier)
            epochs->barrier = epoch;
    }
    drop_user(epochs, fence);
    return result == CUDA_SUCCESS;
}

void epoch_drain_barrier(struct pool *pool, struct context *context)
{
    struct epochs *epochs = &context->epochs;
    pthread_mutex_lock(&context->heap.lock);
    uint64_t started = monotonic_now();
    while (epochs->barrier > epoch_clean(epochs)) {
        struct fence *fence = epoch_fence_for(epochs, epochs->barrier, false);
        if (!fence || epoch_query(pool, context, fence) == FENCE_FAILED)
            break;
        pthread_mutex_unlock(&context->heap.lock);
        patient_nap(started);
        pthread_mutex_lock(&context->heap.lock);
    }
    pthread_mutex_unlock(&context->heap.lock);
}

void epoch_reset(struct epochs *epochs)
{
    while (epochs->oldest)
        retire_oldest(epochs);
    atomic_store_explicit(&epochs->clean, epochs->current++, memory_order_relaxed);
    epochs->barrier = 0;
}

/* At first the wait is for work that ends within microseconds; after that a core is worth more than
 * the last few microseconds of latency. */
void patient_nap(uint64_t started)
{
    uint64_t waited = monotonic_now() - started;
    if (waited < 200000) {
        sched_yield();
        return;
    }
    struct timespec nap = {0, waited < 50000000 ? 20000 : 200000};
    nanosleep(&nap, NULL);
}
