#include "epoch.h"

#include "capture.h"
#include "core/base/clock.h"
#include "core/driver/calls.h"
#include "fence_list.h"
#include "registry.h"
#include "rounds.h"

/* A fence that was running is not queried again before this time: nanoseconds. The shorter time
 * applies where epoch_keeps_up, since the fence should then complete any moment. */
#define QUERY_INTERVAL      8000u
#define QUERY_INTERVAL_SOON 1500u

/* The longest that a thread waits for its turn to ask: nanoseconds. */
#define TURN_NANOSECONDS (20u * QUERY_INTERVAL)

/* The most queries that a thread makes at once about a fence that it has just recorded. */
#define ASK_AT_ONCE 3u

/* After so many epochs in a row without a fence, the driver answers every call in the context. */
#define FAILURES_MAX 8u

struct fence *epoch_begin_close(struct context *context, bool waitable)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epochs->outstanding >= FENCES_MAX)
        fences_thin_out(epochs);
    if (epoch_is_recording(epochs) || epochs->outstanding >= FENCES_MAX)
        return NULL;
    struct fence *fence = fence_take_spare(epochs);
    if (!fence)
        return NULL;
    atomic_store_explicit(&epochs->recording, true, memory_order_relaxed);
    atomic_store_explicit(&epochs->recording_for_free, waitable, memory_order_relaxed);
    fence->own_generation = context_generation(context);
    fence->epoch = epoch_advance(epochs);
    if (waitable)
        atomic_store_explicit(&epochs->closed_in_free, fence->epoch, memory_order_relaxed);
    fence->waitable = waitable;
    fence->in_order = false;
    fence->over = false;
    fence->users = 0;
    fence->next = NULL;
    return fence;
}

/* Returns CUDA_ERROR_NOT_PERMITTED if the context cannot be made current here. The record then
 * counts as NOT_NOW (epoch_judge_record), and the program's free does not fail for it. Another
 * context may be current in that free. */
static CUresult make_own_event(struct pool *pool, struct context *context, struct fence *fence)
{
    lock_must_be_held(&pool->fence_lock);
    if (fence->own.context && fence->own.generation == fence->own_generation)
        return CUDA_SUCCESS;
    return fence_event_make(pool, context, CUDA_ERROR_NOT_PERMITTED, &fence->own);
}

/* Replaces the record on a driver without cuCtxRecordEvent. Waits for the context's work, as the
 * plain cuMemFree does. */
static enum record_result synchronise_instead(struct pool *pool, struct context *context,
                                              CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    bool pushed;
    if (contexts_were_several(pool))
        return NOT_NOW;
    if (!context_push(pool, context, &pushed))
        return FAILED;
    *error = pool->driver->cuCtxSynchronize();
    context_pop(pool, pushed);
    enum record_result judged = epoch_judge_record(pool, *error);
    return judged == RECORDED ? SYNCHRONISED : judged;
}

/* Whether a context that the fence has to include may be dying. A fence cannot include a dying
 * context, and what is left of its work is unknown. Without several contexts, only own counts. */
static bool something_is_dying(struct pool *pool, const struct context *own)
{
    lock_must_be_held(&pool->fence_lock);
    return contexts_were_several(pool) ? contexts_are_dying(pool) : atomic_load(&own->dying);
}

/* The round that the fence needs begins after the fence's own event was recorded. */
static enum record_result record_own_event(struct pool *pool, struct context *context,
                                           struct fence *fence, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    fence->round = rounds_needed(pool);
    fence->own.done = false;
    *error = pool->driver->cuCtxRecordEvent(context->handle, fence->own.event);
    enum record_result result = epoch_judge_record(pool, *error);
    return result == RECORDED ? rounds_note_fence(pool, !fence->waitable && !fence->in_order, error)
                              : result;
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
    *error = make_own_event(pool, context, fence);
    if (*error != CUDA_SUCCESS)
        return epoch_judge_record(pool, *error);
    return record_own_event(pool, context, fence, error);
}

static void finish_record(struct context *context, struct fence *fence, enum record_result result)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t epoch = fence->epoch;
    atomic_store_explicit(&epochs->recording, false, memory_order_relaxed);
    /* The epoch needs no fence if it is clean by now: the context has died meanwhile, or another
     * thread's synchronise has closed a later epoch and completed. */
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

bool epoch_lacks_a_fence(const struct epochs *epochs, uint64_t stamp, bool waitable)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return epoch_clean(epochs) < stamp && !epoch_fence_for(epochs, stamp, waitable);
}

void epoch_await_record(struct context *context, uint64_t stamp, bool waitable, uint64_t give_up_at)
{
    lock_must_be_held(&context->lock);
    const struct epochs *epochs = &context->epochs;
    uint64_t started = monotonic_now();
    while (epoch_is_recording(epochs) && !atomic_load(&context->dying) &&
           monotonic_now() < give_up_at &&
           epoch_lacks_a_fence(epochs, stamp ? stamp : epoch_newest_pending(context), waitable)) {
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
    }
}

/* No other thread asks about the fence. Either this thread has set epochs.querying and counts among
 * the fence's users, or no other thread knows the fence yet. */
static enum fence_answer ask_driver(struct pool *pool, struct fence *fence)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    CUresult result = fence->own.done ? CUDA_SUCCESS : fence_event_query(pool, &fence->own);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_READY ? FENCE_RUNNING : FENCE_FAILED;
    fence->own.done = true;
    return fence->round == 0 || rounds_ask(pool, fence->round) ? FENCE_OVER : FENCE_OWN_OVER;
}

bool epoch_may_be_asked(const struct epochs *epochs, uint64_t now)
{
    uint64_t interval = epoch_keeps_up(epochs) ? QUERY_INTERVAL_SOON : QUERY_INTERVAL;
    return !atomic_load_explicit(&epochs->querying, memory_order_relaxed) &&
           now - atomic_load_explicit(&epochs->asked_at, memory_order_relaxed) >= interval;
}

static void raise_own_clean(struct epochs *epochs, uint64_t epoch)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (epoch_own_clean(epochs) < epoch)
        atomic_store_explicit(&epochs->own_clean, epoch, memory_order_release);
}

/* The context's own work has completed up to this epoch's fence. */
__attribute__((noinline)) static void clean_marks(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    host_work_clean(&context->epochs.host_work, epoch);
    TELL_KINDS(context, host_work_changed, context);
}

/* Calls clean_marks only if there are marks: mostly there are none. */
static inline void clean_host_work(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    if (__builtin_expect(host_work_limit(&context->epochs.host_work) != UINT64_MAX, 0))
        clean_marks(context, epoch);
}

/* A fence that has run longer than this does not complete soon: nanoseconds. */
#define FENCE_IS_LATE 30000u

/* A fence's age counts up to when the driver was asked: how long the answer took says nothing of
 * the GPU. */
static void note_answer(struct context *context, const struct fence *fence, uint64_t asked_at,
                        enum fence_answer answer)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    bool over = answer == FENCE_OVER, late = asked_at - fence->recorded_at > FENCE_IS_LATE;
    if (!over)
        atomic_store_explicit(&epochs->asked_at, monotonic_now(), memory_order_relaxed);
    /* Marks are of the context's own work, so another context's endless work must not preserve
     * them. */
    if (over || answer == FENCE_OWN_OVER) {
        raise_own_clean(epochs, fence->epoch);
        clean_host_work(context, fence->epoch);
    }
    /* keeps_up becomes over, with two exceptions. A fence that runs but is not late says nothing.
     * A late fence that is over says nothing if threads share the memory: nobody may have asked
     * sooner. */
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
    atomic_store_explicit(&epochs->querying, true, memory_order_relaxed);
    fence->users++;
    context_unlock(context);

    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    enum fence_answer answer = ask_driver(pool, fence);
    leave_driver_relaxed(pool->driver, mode);
    if (answer == FENCE_FAILED)
        context_disable(context);

    context_lock(context);
    counter_add(&context->counters->fence_queries, 1);
    atomic_store_explicit(&epochs->querying, false, memory_order_relaxed);
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

void epoch_await_turn(const struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    uint64_t started = monotonic_now(), now = started;
    while (!epoch_may_be_asked(&context->epochs, now) && now - started < TURN_NANOSECONDS) {
        patient_nap(started);
        now = monotonic_now();
    }
}

void epoch_ask_all_in_turn(struct pool *pool, struct context *context)
{
    epoch_await_turn(context);
    epoch_ask_all(pool, context);
}

/* ---- recording a fence ---- */

/* Asks about a fence that no other thread knows yet, while *answer is FENCE_RUNNING. Sets *answer.
 * Returns how often it has asked, at most ASK_AT_ONCE times. */
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
        context_disable(context);

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
        context_disable(context);
    /* Blocks without a fence could not be released if memory ran out before the next fence. */
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

CUresult epoch_record_in_free(struct pool *pool, struct context *context, struct fence *fence)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct epochs *epochs = &context->epochs;
    CUresult result = CUDA_SUCCESS;
    for (int i = 1; fence; i++) {
        struct epoch_recorded recorded =
            epoch_record_and_lock(pool, context, fence, epoch_keeps_up(epochs));
        bool again =
            epochs->owed && i < FENCES_IN_A_ROW && epochs->failures == 0 && !recorded.unusable;
        fence = again ? epoch_begin_close(context, true) : NULL;
        /* No other thread is recording, since this one has held the lock since its record ended.
         * So nobody would serve a request that is left in owed. */
        epochs->owed = false;
        context_unlock(context);
        result = epoch_settle_record(pool, context, &recorded);
    }
    return result;
}

/* Records a fence for pending blocks that have none. waits: waits for another thread's record
 * first. Returns false if blocks have no fence because another thread is recording one. */
static bool fence_the_rest(struct pool *pool, struct context *context, bool waits)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct fence *fence = NULL;
    context_lock(context);
    if (waits)
        epoch_await_record(context, 0, false, monotonic_now() + LAST_RESORT_NANOSECONDS);
    bool lacks = epoch_lacks_a_fence(&context->epochs, epoch_newest_pending(context), false);
    bool others_record = lacks && epoch_is_recording(&context->epochs);
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
    /* CUDA_ERROR_INVALID_CONTEXT is about the thread's current context, which may have ended. */
    if (epoch_is_the_end(result) && result != CUDA_ERROR_INVALID_CONTEXT)
        context_disable(context);
}

/* Whether a kind may have memory pending in a stream's order, in whichever context. */
static bool may_pend_in_order(struct pool *pool)
{
    bool may = false;
    for (const struct kind *const *kind = pool->kinds; *kind && !may; kind++)
        may = (*kind)->pends_in_order && (*kind)->pends_in_order(pool);
    return may;
}

uint64_t epoch_synchronise_begin(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    bool in_order = may_pend_in_order(pool);
    struct fence *fence = NULL;
    uint64_t epoch = 0;
    context_lock(context);
    bool pending = epoch_newest_pending(context) != 0;
    /* With several contexts, the synchronise covers only this one's work, which does not make a
     * plain free's block clean. The fence also needs a round, and so covers the other contexts. */
    if (pending && contexts_were_several(pool))
        fence = epoch_begin_close(context, true);
    if (fence)
        epoch = fence->epoch;
    else if (pending || in_order)
        epoch = epoch_advance(&context->epochs);
    context_unlock(context);
    epoch_record_in_free(pool, context, fence);
    return epoch;
}

/* With several contexts, a synchronise of one raises only own_clean. But the fence recorded before
 * it, or a later one, has probably completed. */
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
    bool whole = !contexts_were_several(pool);
    if (epoch) {
        context_lock(context);
        if (whole)
            epoch_complete(context, epoch);
        else
            raise_own_clean(&context->epochs, epoch);
        context_unlock(context);
    }
    if (!whole)
        ask_about_newest(pool, context);
    TELL_KINDS(context, synchronised, pool, context);
}

void epoch_complete(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epoch <= epoch_clean(epochs))
        return;
    atomic_store_explicit(&epochs->clean, epoch, memory_order_release);
    raise_own_clean(epochs, epoch);
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
    uint64_t last = epoch_advance(epochs);
    atomic_store_explicit(&epochs->clean, last, memory_order_release);
    raise_own_clean(epochs, last);
    epochs->barrier = 0;
    epochs->failures = 0;
    epochs->owed = false;
    host_work_reset(&epochs->host_work);
}
