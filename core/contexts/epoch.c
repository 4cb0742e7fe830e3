#include "epoch.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/driver/calls.h"
#include "pool_state.h"

/* A fence that was running is not asked about again sooner, and not much later where it should be
 * over any moment. Nanoseconds. */
#define QUERY_INTERVAL      8000u
#define QUERY_INTERVAL_SOON 1500u

/* So often whoever has recorded a fence asks at once whether it is over. */
#define ASK_AT_ONCE 3u

/* A fence that is older, in nanoseconds, is not over soon. */
#define FENCE_IS_LATE 30000u

/* How long a thread waits for another's question or record, and how often it looks between two
 * yields; and how long the thread that has recorded may take until it begins the next one that it
 * was asked for. */
#define AWAIT_NANOSECONDS 100000u
#define AWAIT_LOOKS       64u

/* So many naps without a look at what the lock guards. */
#define NAPS_UNLOCKED 64u

/* So many epochs in a row without a fence, and the context goes on without the pool. */
#define FAILURES_MAX 8u

enum record_result {
    RECORDED,
    SYNCHRONISED,
    NOT_NOW,  /* a capture or a dying context is in the way */
    FAILED,   /* this time */
    UNUSABLE, /* an error stays in the context */
};

static void put_spare(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    fence->next = epochs->spare;
    epochs->spare = fence;
}

static struct fence *take_spare(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->spare;
    if (!fence)
        return calloc(1, sizeof *fence);
    epochs->spare = fence->next;
    return fence;
}

static void publish(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (epochs->newest)
        epochs->newest->next = fence;
    else
        epochs->oldest = fence;
    epochs->newest = fence;
    epochs->outstanding++;
    if (fence->waitable)
        atomic_store_explicit(&epochs->fenced, fence->epoch, memory_order_relaxed);
}

/* A fence that is over and that nobody looks at any more may be recorded again. */
static void drop_user(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    fence->users--;
    if (fence->users == 0 && fence->over && !MUTATED(watched_event_recorded))
        put_spare(epochs, fence);
}

static bool next_serves_as_well(const struct fence *fence)
{
    return fence->users == 0 && fence->next && (fence->next->waitable || !fence->waitable);
}

static void thin_out(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence **place = &epochs->oldest;
    while (*place) {
        struct fence *fence = *place;
        if (next_serves_as_well(fence)) {
            *place = fence->next;
            epochs->outstanding--;
            put_spare(epochs, fence);
        }
        place = &(*place)->next;
    }
}

struct fence *epoch_begin_close(struct context *context, bool waitable)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epochs->outstanding >= FENCES_MAX && !MUTATED(fences_not_thinned))
        thin_out(epochs);
    if (epochs->recording || epochs->outstanding >= FENCES_MAX)
        return NULL;
    struct fence *fence = take_spare(epochs);
    if (!fence)
        return NULL;
    epochs->recording = true;
    epochs->recording_for_free = waitable;
    fence->own_generation = context_generation(context);
    fence->epoch = MUTATED(number_after_record) ? epoch_current(epochs) : epoch_advance(epochs);
    fence->waitable = waitable;
    fence->over = false;
    fence->users = 0;
    fence->next = NULL;
    if (MUTATED(published_before_recorded))
        publish(epochs, fence);
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

static bool is_usable(const struct context *context)
{
    return !atomic_load_explicit(&context->unusable, memory_order_relaxed);
}

/* One event in the fence's own context, or in every live one once there have been several. */
static CUresult make_events(struct pool *pool, struct context *own, struct fence *fence)
{
    lock_must_be_held(&pool->fence_lock);
    bool several = atomic_load_explicit(&pool->several_contexts, memory_order_acquire) &&
                   !MUTATED(fence_of_own_context_only);
    destroy_events(pool, fence);
    fence->events = calloc(several ? count_contexts(pool) + 1 : 1, sizeof *fence->events);
    if (!fence->events)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Its own comes first: that is the one that may be waited for. That it cannot be entered from
     * here says nothing of the program's free, which another context may be current for. */
    CUresult result = add_event(pool, fence, own, CUDA_ERROR_NOT_PERMITTED);
    for (struct context *c = context_next(pool, NULL, NULL); several && c && !result;
         c = context_next(pool, c, NULL)) {
        if (c != own && is_usable(c))
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

static enum record_result judge_record(struct pool *pool, CUresult result)
{
    if (result == CUDA_SUCCESS || MUTATED(failed_record_counts))
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
    if (!MUTATED(old_driver_synchronise_left_out))
        *error = pool->driver->cuCtxSynchronize();
    context_pop(pool, pushed);
    enum record_result judged = judge_record(pool, *error);
    return judged == RECORDED ? SYNCHRONISED : judged;
}

/* A context that may be dying is in nobody's fence; the work that it still does is unknown. */
static bool something_is_dying(struct pool *pool, const struct context *own)
{
    lock_must_be_held(&pool->fence_lock);
    bool several = atomic_load_explicit(&pool->several_contexts, memory_order_acquire);
    bool dying = atomic_load(&own->dying);
    for (struct context *c = context_next(pool, NULL, NULL); several && c && !dying;
         c = context_next(pool, c, NULL))
        dying = atomic_load(&c->dying);
    return dying && !MUTATED(dying_context_fenced);
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
        result = judge_record(pool, *error);
    }
    return result;
}

static enum record_result record_fence(struct pool *pool, struct context *context,
                                       struct fence *fence, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    if ((captures_are_going_on(&pool->captures) && !MUTATED(fence_in_capture)) ||
        !is_usable(context) || context_generation(context) != fence->own_generation ||
        something_is_dying(pool, context))
        return NOT_NOW;
    if (!pool->driver->cuCtxRecordEvent)
        return fence->waitable || MUTATED(old_driver_synchronises_anywhere)
                   ? synchronise_instead(pool, context, error)
                   : NOT_NOW;
    if (fence->set_generation != pool->registry.set_generation) {
        *error = make_events(pool, context, fence);
        if (*error != CUDA_SUCCESS)
            return judge_record(pool, *error);
    }
    return record_events(pool, fence, error);
}

static void finish_record(struct context *context, struct fence *fence, enum record_result result)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t epoch = fence->epoch;
    epochs->recording = false;
    if (MUTATED(number_after_record))
        epoch_advance(epochs);
    if (MUTATED(published_before_recorded))
        return;
    /* An epoch that a death of the context has closed meanwhile needs no fence. */
    if (result == RECORDED && epoch > epoch_clean(epochs)) {
        publish(epochs, fence);
        counter_add(&context->counters->fences, 1);
    } else {
        put_spare(epochs, fence);
    }
    if (result == SYNCHRONISED)
        epoch_complete(context, epoch);
    if (result != NOT_NOW)
        epochs->failures = result == FAILED ? epochs->failures + 1 : 0;
}

struct fence *epoch_fence_for(const struct epochs *epochs, uint64_t stamp, bool waitable)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->oldest;
    waitable = waitable && !MUTATED(wait_for_any_fence);
    while (fence && (fence->epoch < stamp || (waitable && !fence->waitable)))
        fence = fence->next;
    return fence && MUTATED(newest_fence_taken) ? epochs->newest : fence;
}

/* What any kind has pending; 0: nothing. */
static uint64_t newest_pending(const struct context *context)
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
    uint64_t newest = newest_pending(context);
    return newest && !epoch_fence_for(&context->epochs, newest, false);
}

/* Releases and retakes the lock. */
static void await_record(struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t started = monotonic_now();
    while (context->epochs.recording && lacks_a_fence(context) && !atomic_load(&context->dying) &&
           !MUTATED(record_in_the_way) && monotonic_now() - started < LAST_RESORT_NANOSECONDS) {
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
        if ((MUTATED(query_ignored) && result == CUDA_ERROR_NOT_READY) ||
            (MUTATED(failed_query_counts) && result != CUDA_ERROR_NOT_READY))
            result = CUDA_SUCCESS;
        e->done = result == CUDA_SUCCESS;
        if (result == CUDA_ERROR_NOT_READY && i == 0)
            return FENCE_RUNNING;
        if (result == CUDA_ERROR_NOT_READY && !MUTATED(other_contexts_not_asked))
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
    if (over || (answer == FENCE_OWN_OVER && !MUTATED(host_work_of_others_counts)))
        clean_host_work(context, fence->epoch);
    /* One that is over, and that none of several threads has needed until now, says nothing. */
    if (over ? !late || !epochs->shared : late)
        atomic_store_explicit(&epochs->keeps_up, over, memory_order_relaxed);
}

static void complete_by_fence(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    epoch_complete(context,
                   MUTATED(fence_cleans_later_frees) ? epoch_current(&context->epochs) - 1 : epoch);
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
    if (MUTATED(clean_before_the_answer))
        epoch_complete(context, epoch);
    if (!MUTATED(lock_held_in_query))
        context_unlock(context);

    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    enum fence_answer answer = ask_driver(pool, fence);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    if (answer == FENCE_FAILED)
        context_step_aside(context);

    if (!MUTATED(lock_held_in_query))
        context_lock(context);
    counter_add(&context->counters->fence_queries, 1);
    epochs->querying = false;
    note_answer(context, fence, asked_at, answer);
    if (answer == FENCE_OVER)
        complete_by_fence(context, epoch);
    drop_user(epochs, fence);
    return answer;
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
        complete_by_fence(context, epoch);
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
    return recorded->unusable && !MUTATED(lasting_error_hidden) ? recorded->error : CUDA_SUCCESS;
}

CUresult epoch_record(struct pool *pool, struct context *context, struct fence *fence)
{
    struct epoch_recorded recorded = epoch_record_and_lock(pool, context, fence, false);
    context_unlock(context);
    return epoch_settle_record(pool, context, &recorded);
}

void epoch_fence_the_rest(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct fence *fence = NULL;
    context_lock(context);
    await_record(context);
    if (lacks_a_fence(context))
        fence = epoch_begin_close(context, MUTATED(fence_in_allocation));
    context_unlock(context);
    if (fence)
        epoch_record(pool, context, fence);
}

/* ---- waiting ---- */

/* Whether another thread is about to know more of a stamp. fenced: a fence covers it already. */
static bool is_in_the_driver(const struct epochs *epochs, uint64_t stamp, bool fenced)
{
    return atomic_load_explicit(&epochs->querying, memory_order_relaxed) ||
           (!fenced && stamp < epoch_current(epochs) &&
            atomic_load_explicit(&epochs->recording, memory_order_relaxed));
}

void epoch_await_others(struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    const struct epochs *epochs = &context->epochs;
    bool fenced = epoch_fence_for(epochs, stamp, false) != NULL;
    if (epoch_clean(epochs) >= stamp || !is_in_the_driver(epochs, stamp, fenced))
        return;
    uint64_t started = monotonic_now();
    context_unlock(context);
    for (unsigned looks = 1; epoch_clean(epochs) < stamp && is_in_the_driver(epochs, stamp, fenced);
         looks++) {
        let_the_processor_rest();
        if (looks % AWAIT_LOOKS != 0)
            continue;
        sched_yield();
        if (monotonic_now() - started > AWAIT_NANOSECONDS)
            break;
    }
    thread_state.waited_ns += monotonic_now() - started;
    context_lock(context);
}

/* Whoever waits takes it as seldom as can be. Returns when there may be something to do for this
 * thread. */
static void nap_beside_others(const struct epochs *epochs, uint64_t stamp, uint64_t started,
                              uint64_t give_up_at)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    for (unsigned naps = 0; naps < NAPS_UNLOCKED; naps++) {
        patient_nap(started);
        uint64_t now = monotonic_now();
        if (epoch_clean(epochs) >= stamp || epoch_may_be_asked(epochs, now) ||
            (give_up_at && now >= give_up_at))
            return;
    }
}

struct fence_wait {
    uint64_t stamp;      /* until everything stamped so is clean */
    uint64_t give_up_at; /* nanoseconds of the monotonic clock; 0: never */
    bool others;         /* other contexts' work is waited for as well */
    bool in_allocation;  /* see epoch_wait_in_allocation */
    /* What was clean when that last changed, and when the wait began or that was seen. */
    uint64_t clean, clean_since;
};

/* Whether the host may have to act before the fence is over. */
static bool may_be_behind_host_work(const struct epochs *epochs, uint64_t epoch)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return epoch > host_work_limit(&epochs->host_work);
}

static bool is_in_vain(const struct epochs *epochs, struct fence_wait *wait)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t now = monotonic_now(), clean = epoch_clean(epochs);
    if (clean != wait->clean) {
        wait->clean = clean;
        wait->clean_since = now;
    }
    return now - wait->clean_since > VAIN_WAIT_NANOSECONDS && !MUTATED(waits_on_in_vain);
}

void epoch_give_up_waiting(struct pool *pool, struct context *context)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epochs->newest)
        host_work_mark(&epochs->host_work, epoch_clean(epochs), epochs->newest->epoch);
    TELL_KINDS(context, waited_in_vain, pool, context);
}

/* Whether an answer, or the time, ends the wait. */
static bool ends_wait(struct pool *pool, struct context *context, struct fence_wait *wait,
                      enum fence_answer answer)
{
    lock_must_be_held(&context->lock);
    if (answer == FENCE_FAILED ||
        (answer == FENCE_OWN_OVER && !wait->others && !MUTATED(other_contexts_waited_for)) ||
        (wait->give_up_at && monotonic_now() >= wait->give_up_at))
        return true;
    if (!wait->in_allocation || !is_in_vain(&context->epochs, wait))
        return false;
    epoch_give_up_waiting(pool, context);
    return true;
}

static bool wait_for_fence(struct pool *pool, struct context *context, struct fence *fence,
                           struct fence_wait wait)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t started = monotonic_now(), epoch = fence->epoch;
    wait.clean = epoch_clean(epochs);
    wait.clean_since = started;
    fence->users++;
    while (epoch_clean(epochs) < wait.stamp &&
           !(wait.in_allocation && may_be_behind_host_work(epochs, epoch))) {
        enum fence_answer answer = epoch_query(pool, context, fence);
        if (epoch_clean(epochs) >= wait.stamp || ends_wait(pool, context, &wait, answer))
            break;
        context_unlock(context);
        nap_beside_others(epochs, wait.stamp, started, wait.give_up_at);
        context_lock(context);
    }
    drop_user(epochs, fence);
    thread_state.waited_ns += monotonic_now() - started;
    return epoch_clean(epochs) >= wait.stamp;
}

/* Whether the thread that records, or has just recorded, will make a fence that covers the stamp:
 * this one, or the one that it is asked for here. It is in a free or a synchronise of its own, so
 * that the plain calls would have waited for as much. */
static bool a_fence_is_coming(struct context *context, uint64_t stamp, uint64_t *idle_since)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (!epochs->recording) {
        /* Between two records, about to begin one, or it may have given up. */
        bool comes =
            context->epochs.owed || atomic_load_explicit(&epochs->closed_for, memory_order_relaxed);
        *idle_since = *idle_since ? *idle_since : monotonic_now();
        return comes && monotonic_now() - *idle_since < AWAIT_NANOSECONDS;
    }
    if (!epochs->recording_for_free)
        return false;
    *idle_since = 0;
    if (stamp >= epoch_current(epochs))
        context->epochs.owed = true;
    return true;
}

static void nap_beside_record(const struct epochs *epochs, uint64_t stamp, uint64_t started)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    for (unsigned naps = 0; naps < NAPS_UNLOCKED; naps++) {
        patient_nap(started);
        if (epoch_clean(epochs) >= stamp ||
            atomic_load_explicit(&epochs->fenced, memory_order_relaxed) >= stamp ||
            !atomic_load_explicit(&epochs->recording, memory_order_relaxed))
            return;
    }
}

/* Releases and retakes the lock: another thread may be recording. However long that takes,
 * whoever went on without the fence would take new memory for all that time. */
static struct fence *await_fence_for(struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t idle_since = 0, started = monotonic_now();
    struct fence *fence = epoch_fence_for(epochs, stamp, true);
    while (!fence && epoch_clean(epochs) < stamp && !atomic_load(&context->dying) &&
           !MUTATED(record_not_waited_for) && a_fence_is_coming(context, stamp, &idle_since)) {
        context_unlock(context);
        nap_beside_record(epochs, stamp, started);
        context_lock(context);
        fence = epoch_fence_for(epochs, stamp, true);
    }
    thread_state.waited_ns += monotonic_now() - started;
    return fence;
}

static bool wait_for(struct pool *pool, struct context *context, struct fence_wait wait)
{
    lock_must_be_held(&context->lock);
    struct fence *fence = await_fence_for(context, wait.stamp);
    if (!fence)
        return epoch_clean(&context->epochs) >= wait.stamp;
    return wait_for_fence(pool, context, fence, wait);
}

bool epoch_wait_in_free(struct pool *pool, struct context *context, uint64_t stamp)
{
    return wait_for(pool, context, (struct fence_wait){.stamp = stamp});
}

bool epoch_wait_when_short(struct pool *pool, struct context *context, uint64_t stamp,
                           uint64_t give_up_at)
{
    return wait_for(pool, context, (struct fence_wait){.stamp = stamp, .give_up_at = give_up_at});
}

static uint64_t newest_waitable(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t newest = 0;
    for (const struct fence *f = epochs->oldest; f; f = f->next)
        if (f->waitable)
            newest = f->epoch;
    return newest;
}

void epoch_wait_for_frees(struct pool *pool, struct context *context, uint64_t give_up_at)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    context_lock(context);
    uint64_t stamp = newest_waitable(&context->epochs);
    if (stamp)
        epoch_wait_when_short(pool, context, stamp,
                              MUTATED(shortage_waits_for_ever) ? 0 : give_up_at);
    context_unlock(context);
}

bool epoch_wait_in_allocation(struct pool *pool, struct context *context, uint64_t stamp)
{
    const struct epochs *epochs = &context->epochs;
    if (may_be_behind_host_work(epochs, stamp))
        return epoch_clean(epochs) >= stamp;
    return wait_for(pool, context, (struct fence_wait){.stamp = stamp, .in_allocation = true});
}

bool epoch_wait_a_moment(struct pool *pool, struct context *context, uint64_t stamp)
{
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, true);
    struct fence_wait wait = {
        .stamp = stamp, .give_up_at = monotonic_now() + FENCE_IS_LATE, .in_allocation = true};
    return fence && wait_for_fence(pool, context, fence, wait);
}

bool epoch_wait_until(struct pool *pool, struct context *context, uint64_t stamp,
                      uint64_t give_up_at)
{
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, false);
    struct fence_wait wait = {.stamp = stamp, .give_up_at = give_up_at, .others = true};
    return fence && wait_for_fence(pool, context, fence, wait);
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
    if (newest_pending(context)) {
        /* With several contexts this one's synchronise is not enough: the fence knows the rest. */
        if (atomic_load_explicit(&pool->several_contexts, memory_order_acquire) &&
            !MUTATED(synchronise_of_one_is_enough))
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
    if (newest_pending(context) && context->epochs.newest)
        epoch_query(pool, context, context->epochs.newest);
    context_unlock(context);
}

void epoch_synchronise_end(struct pool *pool, struct context *context, uint64_t epoch,
                           CUresult result)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (result != CUDA_SUCCESS && !MUTATED(failed_synchronise_counts)) {
        epoch_note_error(context, result);
        return;
    }
    if (epoch) {
        context_lock(context);
        epoch_complete(
            context, MUTATED(synchronise_cleans_at_exit) ? epoch_advance(&context->epochs) : epoch);
        context_unlock(context);
    } else {
        ask_about_newest(pool, context);
    }
    TELL_KINDS(context, synchronised, pool, context);
}

/* Takes the oldest fence off the list; whoever still looks at it makes it spare. */
static void retire_oldest(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->oldest;
    epochs->oldest = fence->next;
    if (!epochs->oldest)
        epochs->newest = NULL;
    epochs->outstanding--;
    fence->over = true;
    if (fence->users == 0 || MUTATED(watched_event_recorded))
        put_spare(epochs, fence);
}

void epoch_complete(struct context *context, uint64_t epoch)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epoch <= epoch_clean(epochs))
        return;
    atomic_store_explicit(&epochs->clean, epoch, memory_order_release);
    while (epochs->oldest && epochs->oldest->epoch <= epoch)
        retire_oldest(epochs);
    clean_host_work(context, epoch);
    TELL_KINDS(context, became_clean, context);
}

bool epoch_raise_barrier(struct pool *pool, struct context *context, struct fence *fence)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t epoch = fence->epoch;
    CUresult result = CUDA_ERROR_NOT_READY;
    if (MUTATED(barrier_behind_oldest_fence))
        fence = epochs->oldest;
    if (may_be_behind_host_work(epochs, epoch) && !MUTATED(barrier_behind_host_work))
        return false;
    fence->users++;
    context_unlock(context);

    enter_driver();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (!captures_are_going_on(&pool->captures) && is_usable(context) &&
        !atomic_load(&context->dying) &&
        (!atomic_load_explicit(&pool->several_contexts, memory_order_acquire) ||
         MUTATED(barriers_beside_contexts)))
        result = MUTATED(barrier_left_out)
                     ? CUDA_SUCCESS
                     : pool->driver->cuCtxWaitEvent(context->handle, fence->events[0].event);
    if (MUTATED(failed_barrier_counts))
        result = CUDA_SUCCESS;
    if (result != CUDA_ERROR_NOT_READY && judge_record(pool, result) == UNUSABLE)
        context_step_aside(context);

    /* Whoever closes barriers finds this one under the fence lock. */
    context_lock(context);
    lock_give(&pool->fence_lock);
    leave_driver();
    if (result == CUDA_SUCCESS) {
        counter_add(&context->counters->barriers, 1);
        if (epoch > epochs->barrier)
            epochs->barrier = epoch;
    }
    drop_user(epochs, fence);
    return result == CUDA_SUCCESS;
}

/* Waits until everything that barriers have handed out in this context is behind fences that are
 * over. */
static void drain_barrier(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct epochs *epochs = &context->epochs;
    context_lock(context);
    uint64_t started = monotonic_now();
    while (epochs->barrier > epoch_clean(epochs)) {
        struct fence *fence = epoch_fence_for(epochs, epochs->barrier, false);
        if (!fence || epoch_query(pool, context, fence) == FENCE_FAILED)
            break;
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
    }
    context_unlock(context);
}

/* The context with the handle is not known to the pool yet: it has no fence of ours, and perhaps a
 * capture. */
static bool order_behind(struct pool *pool, const struct fence *fence, CUcontext handle)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    enter_driver();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (!captures_are_going_on(&pool->captures))
        result = pool->driver->cuCtxWaitEvent(handle, fence->events[0].event);
    lock_give(&pool->fence_lock);
    leave_driver();
    return result == CUDA_SUCCESS;
}

void epoch_order_behind_barrier(struct pool *pool, struct context *context, CUcontext handle)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct epochs *epochs = &context->epochs;
    struct fence *fence = NULL;
    context_lock(context);
    if (epochs->barrier > epoch_clean(epochs))
        fence = epoch_fence_for(epochs, epochs->barrier, false);
    if (fence)
        fence->users++;
    context_unlock(context);
    if (!fence)
        return;
    bool ordered = order_behind(pool, fence, handle);
    context_lock(context);
    drop_user(epochs, fence);
    context_unlock(context);
    if (!ordered)
        drain_barrier(pool, context);
}

void epoch_reset(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    while (epochs->oldest)
        retire_oldest(epochs);
    atomic_store_explicit(&epochs->clean, epoch_advance(epochs), memory_order_release);
    epochs->barrier = 0;
    host_work_reset(&epochs->host_work);
}
