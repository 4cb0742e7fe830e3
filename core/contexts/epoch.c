#include "epoch.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "capture.h"
#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/driver/calls.h"
#include "fence_list.h"
#include "registry.h"

/* A fence that was running is not asked about again sooner, and not much later where it should be
 * over any moment. Nanoseconds. */
#define QUERY_INTERVAL      8000u
#define QUERY_INTERVAL_SOON 1500u

/* So often whoever has recorded a fence asks at once whether it is over. */
#define ASK_AT_ONCE 3u

/* So many epochs in a row without a fence, and the context goes on without the pool. */
#define FAILURES_MAX 8u

struct fence *epoch_begin_close(struct context *context, bool waitable)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epochs->outstanding >= FENCES_MAX)
        fences_thin_out(epochs);
    if (epochs->recording || epochs->outstanding >= FENCES_MAX)
        return NULL;
    struct fence *fence = fence_take_spare(epochs);
    if (!fence)
        return NULL;
    epochs->recording = true;
    epochs->recording_for_free = waitable;
    fence->own_generation = context_generation(context);
    fence->epoch = epoch_advance(epochs);
    fence->waitable = waitable;
    fence->over = false;
    fence->users = 0;
    fence->next = NULL;
    return fence;
}

static void destroy_events(struct pool *pool, struct fence *fence)
{
    lock_must_be_held(&pool->fence_lock);
    for (unsigned i = 0; i < fence->event_count; i++) {
        struct fence_event *e = &fence->events[i];
        if (context_generation(e->context) == e->generation)
            pool->driver->cuEventDestroy_v2(e->event);
    }
    free(fence->events);
    fence->events = NULL;
    fence->event_count = 0;
}

/* no_entry: the answer where the context cannot be made current. */
static CUresult add_event(struct pool *pool, struct fence *fence, struct context *context,
                          CUresult no_entry)
{
    lock_must_be_held(&pool->fence_lock);
    CUevent event;
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return no_entry;
    CUresult result = pool->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    context_pop(pool, pushed);
    if (result == CUDA_SUCCESS)
        fence->events[fence->event_count++] =
            (struct fence_event){context, context_generation(context), event, false};
    return result;
}

static size_t count_contexts(struct pool *pool)
{
    size_t count = 0;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        count++;
    return count;
}

bool epoch_is_the_end(CUresult result)
{
    return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_UNKNOWN ||
           (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result < CUDA_ERROR_NOT_PERMITTED &&
            result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED &&
            result != CUDA_ERROR_PEER_ACCESS_NOT_ENABLED &&
            result != CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
}

/* What another context's error means for a fence of ours: a context that has ended no longer works
 * on anybody's memory, and its event may be left out. */
static bool may_be_left_out(struct context *context, CUresult result)
{
    if (!epoch_is_the_end(result))
        return false;
    context_step_aside(context);
    return true;
}

/* One event in the fence's own context, or in every live one once there have been several. */
static CUresult make_events(struct pool *pool, struct context *own, struct fence *fence)
{
    lock_must_be_held(&pool->fence_lock);
    bool several = atomic_load_explicit(&pool->several_contexts, memory_order_acquire);
    destroy_events(pool, fence);
    fence->events = calloc(several ? count_contexts(pool) + 1 : 1, sizeof *fence->events);
    if (!fence->events)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Its own comes first: that is the one that may be waited for. That it cannot be entered from
     * here says nothing of the program's free, which another context may be current for. */
    CUresult result = add_event(pool, fence, own, CUDA_ERROR_NOT_PERMITTED);
    for (struct context *c = context_next(pool, NULL, NULL); several && c && !result;
         c = context_next(pool, c, NULL)) {
        if (c != own && context_is_usable(c))
            result = add_event(pool, fence, c, CUDA_ERROR_INVALID_CONTEXT);
        if (result != CUDA_SUCCESS && may_be_left_out(c, result))
            result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS)
        fence->set_generation = pool->registry.set_generation;
    else
        destroy_events(pool, fence);
    return result;
}

enum record_result epoch_judge_record(struct pool *pool, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return RECORDED;
    /* The thread is in a host function, where the driver forbids nearly everything. */
    if (result == CUDA_ERROR_NOT_PERMITTED)
        return NOT_NOW;
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return epoch_is_the_end(result) ? UNUSABLE : FAILED;
    /* Somebody captures without our seeing it. */
    context_step_aside_everywhere(pool);
    return NOT_NOW;
}

/* What closing an epoch is on a driver without cuCtxRecordEvent: the plain cuMemFree's wait. */
static enum record_result synchronise_instead(struct pool *pool, struct context *context,
                                              CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    bool pushed;
    if (atomic_load_explicit(&pool->several_contexts, memory_order_acquire))
        return NOT_NOW;
    if (!context_push(pool, context, &pushed))
        return FAILED;
    *error = pool->driver->cuCtxSynchronize();
    context_pop(pool, pushed);
    enum record_result judged = epoch_judge_record(pool, *error);
    return judged == RECORDED ? SYNCHRONISED : judged;
}

/* A context that may be dying is in nobody's fence; the work that it still does is unknown. */
static bool something_is_dying(struct pool *pool, const struct context *own)
{
    lock_must_be_held(&pool->fence_lock);
    bool dying = atomic_load(&own->dying);
    if (!atomic_load_explicit(&pool->several_contexts, memory_order_acquire))
        return dying;
    for (struct context *c = context_next(pool, NULL, NULL); c && !dying;
         c = context_next(pool, c, NULL))
        dying = atomic_load(&c->dying);
    return dying;
}

static enum record_result record_events(struct pool *pool, struct fence *fence, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    enum record_result result = RECORDED;
    for (unsigned i = 0; i < fence->event_count && result == RECORDED; i++) {
        struct fence_event *e = &fence->events[i];
        *error = pool->driver->cuCtxRecordEvent(e->context->handle, e->event);
        e->done = i > 0 && *error != CUDA_SUCCESS && may_be_left_out(e->context, *error);
        if (e->done)
            *error = CUDA_SUCCESS;
        result = epoch_judge_record(pool, *error);
    }
    return result;
}

static enum record_result record_fence(struct pool *pool, struct context *context,
                                       struct fence *fence, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    if (program_captures(&pool->captures) || !context_is_usable(context) ||
        context_generation(context) != fence->own_generation || something_is_dying(pool, context))
        return NOT_NOW;
    if (!pool->driver->cuCtxRecordEvent)
        return fence->waitable ? synchronise_instead(pool, context, error) : NOT_NOW;
    if (fence->set_generation != pool->registry.set_generation) {
        *error = make_events(pool, context, fence);
        if (*error != CUDA_SUCCESS)
            return epoch_judge_record(pool, *error);
    }
    return record_events(pool, fence, error);
}

static void finish_record(struct context *context, struct fence *fence, enum record_result result)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t epoch = fence->epoch;
    epochs->recording = false;
    /* An epoch that a death of the context has closed meanwhile needs no fence. */
    if (result == RECORDED && epoch > epoch_clean(epochs)) {
        fence_publish(epochs, fence);
        counter_add(&context->counters->fences, 1);
    } else {
        fence_put_spare(epochs, fence);
    }
    if (result == SYNCHRONISED)
        epoch_complete(context, epoch);
    if (result != NOT_NOW)
        epochs->failures = result == FAILED ? epochs->failures + 1 : 0;
}

uint64_t epoch_newest_pending(const struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t newest = 0;
    for (const struct kind *const *kind = context->kinds; *kind; kind++) {
        uint64_t of_one = (*kind)->newest_pending ? (*kind)->newest_pending(context) : 0;
        newest = of_one > newest ? of_one : newest;
    }
    return newest;
}

static bool lacks_a_fence(const struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t newest = epoch_newest_pending(context);
    return newest && !epoch_fence_for(&context->epochs, newest, false);
}

/* Releases and retakes the lock. */
static void await_record(struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t started = monotonic_now();
    while (context->epochs.recording && lacks_a_fence(context) && !atomic_load(&context->dying) &&
           monotonic_now() - started < LAST_RESORT_NANOSECONDS) {
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
    }
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

/* Nobody else asks: epochs.querying is ours, and the fence has us as a user; or nobody else knows
 * it yet. */
static enum fence_answer ask_driver(struct pool *pool, struct fence *fence)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    enum fence_answer answer = FENCE_OVER;
    for (unsigned i = 0; i < fence->event_count; i++) {
        struct fence_event *e = &fence->events[i];
        if (e->done)
            continue;
        CUresult result = query_event(pool, e);
        if (i > 0 && result != CUDA_SUCCESS && may_be_left_out(e->context, result))
            result = CUDA_SUCCESS;
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

bool epoch_may_be_asked(const struct epochs *epochs, uint64_t now)
{
    uint64_t interval = epoch_keeps_up(epochs) ? QUERY_INTERVAL_SOON : QUERY_INTERVAL;
    return !atomic_load_explicit(&epochs->querying, memory_order_relaxed) &&
           now - atomic_load_explicit(&epochs->asked_at, memory_order_relaxed) >= interval;
}

/* The context's own work is over up to there. */
__attribute__((noinline)) static void clean_marks(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    host_work_clean(&context->epochs.host_work, epoch);
    TELL_KINDS(context, host_work_changed, context);
}

/* The same where there may be none. */
static inline void clean_host_work(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    if (__builtin_expect(host_work_limit(&context->epochs.host_work) != UINT64_MAX, 0))
        clean_marks(context, epoch);
}

/* A fence that is older, in nanoseconds, is not over soon. */
#define FENCE_IS_LATE 30000u

/* Late is what was not over when the driver was asked: how long its answer has taken says nothing
 * of the GPU. */
static void note_answer(struct context *context, const struct fence *fence, uint64_t asked_at,
                        enum fence_answer answer)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    bool over = answer == FENCE_OVER, late = asked_at - fence->recorded_at > FENCE_IS_LATE;
    if (!over)
        atomic_store_explicit(&epochs->asked_at, monotonic_now(), memory_order_relaxed);
    /* The work is of its own context: another's that goes on for ever does not keep it. */
    if (over || answer == FENCE_OWN_OVER)
        clean_host_work(context, fence->epoch);
    /* One that is over, and that none of several threads has needed until now, says nothing. */
    if (over ? !late || !epochs->shared : late)
        atomic_store_explicit(&epochs->keeps_up, over, memory_order_relaxed);
}

enum fence_answer epoch_query(struct pool *pool, struct context *context, struct fence *fence)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t asked_at = monotonic_now(), epoch = fence->epoch;
    if (!epoch_may_be_asked(epochs, asked_at))
        return FENCE_RUNNING;
    epochs->querying = true;
    fence->users++;
    context_unlock(context);

    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    enum fence_answer answer = ask_driver(pool, fence);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    if (answer == FENCE_FAILED)
        context_step_aside(context);

    context_lock(context);
    counter_add(&context->counters->fence_queries, 1);
    epochs->querying = false;
    note_answer(context, fence, asked_at, answer);
    if (answer == FENCE_OVER)
        epoch_complete(context, epoch);
    fence_drop_user(epochs, fence);
    return answer;
}

void epoch_ask_all(struct pool *pool, struct context *context)
{
    context_lock(context);
    while (context->epochs.oldest &&
           epoch_query(pool, context, context->epochs.oldest) == FENCE_OVER)
        continue;
    context_unlock(context);
}

/* ---- recording one ---- */

/* Nobody else knows the fence yet. Answers how often the driver was asked. */
static unsigned ask_at_once(struct pool *pool, struct fence *fence, enum fence_answer *answer)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    unsigned tries = 0;
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    while (tries < ASK_AT_ONCE && *answer == FENCE_RUNNING) {
        *answer = ask_driver(pool, fence);
        tries++;
    }
    relaxed_mode_end(pool->driver, mode);
    return tries;
}

static void finish_asking(struct context *context, const struct fence *fence, unsigned asked,
                          enum fence_answer answer)
{
    lock_must_be_held(&context->lock);
    uint64_t epoch = fence->epoch;
    counter_add(&context->counters->fence_queries, asked);
    note_answer(context, fence, fence->recorded_at, answer);
    if (answer == FENCE_OVER)
        epoch_complete(context, epoch);
}

struct epoch_recorded epoch_record_and_lock(struct pool *pool, struct context *context,
                                            struct fence *fence, bool ask)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    bool waitable = fence->waitable;
    CUresult error = CUDA_SUCCESS;
    enum fence_answer answer = FENCE_RUNNING;
    unsigned asked = 0;
    enter_driver();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    enum record_result result = record_fence(pool, context, fence, &error);
    lock_give(&pool->fence_lock);
    fence->recorded_at = monotonic_now();
    if (ask && result == RECORDED)
        asked = ask_at_once(pool, fence, &answer);
    leave_driver();
    if (answer == FENCE_FAILED)
        context_step_aside(context);

    context_lock(context);
    finish_record(context, fence, result);
    if (asked)
        finish_asking(context, fence, asked, answer);
    unsigned failures = context->epochs.failures;
    return (struct epoch_recorded){
        .error = error,
        .unusable = result == UNUSABLE,
        .hopeless = failures >= FAILURES_MAX,
        .unfenced = result == FAILED && waitable && failures > 1,
    };
}

CUresult epoch_settle_record(struct pool *pool, struct context *context,
                             const struct epoch_recorded *recorded)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (recorded->unusable || recorded->hopeless)
        context_step_aside(context);
    /* What no fence covers could not be given back if memory ran out before the next one. */
    if (recorded->unfenced)
        TELL_KINDS(context, is_unfenced, pool, context);
    return recorded->unusable ? recorded->error : CUDA_SUCCESS;
}

CUresult epoch_record(struct pool *pool, struct context *context, struct fence *fence)
{
    struct epoch_recorded recorded = epoch_record_and_lock(pool, context, fence, false);
    context_unlock(context);
    return epoch_settle_record(pool, context, &recorded);
}

static bool fence_the_rest(struct pool *pool, struct context *context, bool waits)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct fence *fence = NULL;
    context_lock(context);
    if (waits)
        await_record(context);
    bool lacks = lacks_a_fence(context);
    bool others_record = lacks && context->epochs.recording;
    if (lacks)
        fence = epoch_begin_close(context, false);
    context_unlock(context);
    if (fence)
        epoch_record(pool, context, fence);
    return !others_record;
}

void epoch_fence_the_rest(struct pool *pool, struct context *context)
{
    fence_the_rest(pool, context, true);
}

bool epoch_fence_the_rest_at_once(struct pool *pool, struct context *context)
{
    return fence_the_rest(pool, context, false);
}

void epoch_note_error(struct context *context, CUresult result)
{
    /* That one tells of the thread's context, which may be gone. */
    if (epoch_is_the_end(result) && result != CUDA_ERROR_INVALID_CONTEXT)
        context_step_aside(context);
}

uint64_t epoch_synchronise_begin(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct fence *fence = NULL;
    uint64_t epoch = 0;
    context_lock(context);
    if (epoch_newest_pending(context)) {
        /* With several contexts this one's synchronise is not enough: the fence knows the rest. */
        if (atomic_load_explicit(&pool->several_contexts, memory_order_acquire))
            fence = epoch_begin_close(context, true);
        else
            epoch = epoch_advance(&context->epochs);
    }
    context_unlock(context);
    if (fence)
        epoch_record(pool, context, fence);
    return epoch;
}

/* Where several contexts work, a synchronise of one proves nothing by itself; but its fence, or a
 * later one, is likely to be over. */
static void ask_about_newest(struct pool *pool, struct context *context)
{
    context_lock(context);
    if (epoch_newest_pending(context) && context->epochs.newest)
        epoch_query(pool, context, context->epochs.newest);
    context_unlock(context);
}

void epoch_synchronise_end(struct pool *pool, struct context *context, uint64_t epoch,
                           CUresult result)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (result != CUDA_SUCCESS) {
        epoch_note_error(context, result);
        return;
    }
    if (epoch) {
        context_lock(context);
        epoch_complete(context, epoch);
        context_unlock(context);
    } else {
        ask_about_newest(pool, context);
    }
    TELL_KINDS(context, synchronised, pool, context);
}

void epoch_complete(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epoch <= epoch_clean(epochs))
        return;
    atomic_store_explicit(&epochs->clean, epoch, memory_order_release);
    while (epochs->oldest && epochs->oldest->epoch <= epoch)
        fences_retire_oldest(epochs);
    clean_host_work(context, epoch);
    TELL_KINDS(context, became_clean, context);
}

void epoch_reset(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    while (epochs->oldest)
        fences_retire_oldest(epochs);
    atomic_store_explicit(&epochs->clean, epoch_advance(epochs), memory_order_release);
    epochs->barrier = 0;
    host_work_reset(&epochs->host_work);
}
