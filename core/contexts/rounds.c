#include "rounds.h"

#include <stdlib.h>

#include "capture.h"
#include "core/driver/calls.h"
#include "pool_state.h"
#include "registry.h"

/* Whether several contexts live now. The work of contexts that have ended has completed. */
static bool has_several(struct pool *pool)
{
    lock_must_be_held(&pool->fence_lock);
    struct context *first = contexts_were_several(pool) ? context_next(pool, NULL, NULL) : NULL;
    return first && context_next(pool, first, NULL);
}

uint64_t rounds_needed(struct pool *pool)
{
    lock_must_be_held(&pool->fence_lock);
    return has_several(pool) ? atomic_load_explicit(&pool->rounds.begun, memory_order_relaxed) + 1
                             : 0;
}

/* ---- events ---- */

static size_t count_contexts(struct pool *pool)
{
    size_t count = 0;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        count++;
    return count;
}

/* This context's event among those made for an earlier set of contexts, or NULL. from: where to
 * begin. */
static struct fence_event *find_event(const struct round *round, const struct context *context,
                                      unsigned from)
{
    for (unsigned i = 0; i < round->event_count; i++) {
        struct fence_event *e = &round->events[(from + i) % round->event_count];
        if (e->context == context && e->generation == context_generation(context))
            return e;
    }
    return NULL;
}

/* Makes an event for each live context, or takes the one that the round has. Contexts are listed in
 * one order, so the next context's event is most often the next one. Contexts that have ended took
 * their events with them. */
static CUresult make_events(struct pool *pool, struct round *round)
{
    lock_must_be_held(&pool->fence_lock);
    struct round made = {.set_generation = pool->registry.set_generation};
    made.events = calloc(count_contexts(pool) + 1, sizeof *made.events);
    CUresult result = made.events ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    unsigned from = 0;
    for (struct context *c = context_next(pool, NULL, NULL); c && !result;
         c = context_next(pool, c, NULL)) {
        const struct fence_event *old = find_event(round, c, from);
        struct fence_event *e = &made.events[made.event_count];
        from = old ? (unsigned)(old - round->events) + 1 : from;
        if (old)
            *e = *old;
        else if (context_is_usable(c))
            result = fence_event_make(pool, c, CUDA_ERROR_INVALID_CONTEXT, e);
        else
            continue;
        made.event_count += result == CUDA_SUCCESS;
        if (result != CUDA_SUCCESS && fence_may_leave_out(c, result))
            result = CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        /* Events that the round had before stay the round's. */
        for (unsigned i = 0; i < made.event_count; i++)
            if (!find_event(round, made.events[i].context, 0))
                fence_event_destroy(pool, &made.events[i]);
        free(made.events);
        return result;
    }
    free(round->events);
    *round = made;
    return CUDA_SUCCESS;
}

static enum record_result record_events(struct pool *pool, struct round *round, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    enum record_result result = RECORDED;
    for (unsigned i = 0; i < round->event_count && result == RECORDED; i++) {
        struct fence_event *e = &round->events[i];
        e->done = !context_is_usable(e->context);
        if (e->done)
            continue;
        *error = pool->driver->cuCtxRecordEvent(e->context->handle, e->event);
        e->done = *error != CUDA_SUCCESS && fence_may_leave_out(e->context, *error);
        if (e->done)
            *error = CUDA_SUCCESS;
        result = epoch_judge_record(pool, *error);
    }
    return result;
}

/* ---- asking ---- */

static bool is_over(struct pool *pool, struct round *round)
{
    for (unsigned i = 0; i < round->event_count; i++) {
        struct fence_event *e = &round->events[i];
        CUresult result = e->done ? CUDA_SUCCESS : fence_event_query(pool, e);
        if (result != CUDA_SUCCESS && !fence_may_leave_out(e->context, result))
            return false;
        e->done = true;
    }
    return true;
}

/* Asks about a round that has begun. False also where another thread is asking. */
static bool ask_about(struct pool *pool, uint64_t number)
{
    struct rounds *rounds = &pool->rounds;
    if (atomic_exchange_explicit(&rounds->asking, true, memory_order_acquire))
        return false;
    if (atomic_load_explicit(&rounds->over, memory_order_relaxed) < number &&
        is_over(pool, &rounds->slots[number % ROUNDS_MAX]))
        atomic_store_explicit(&rounds->over, number, memory_order_release);
    bool over = atomic_load_explicit(&rounds->over, memory_order_relaxed) >= number;
    atomic_store_explicit(&rounds->asking, false, memory_order_release);
    return over;
}

/* Whether there is a slot for the next round. It asks about rounds that have begun, since nobody
 * may have asked yet. */
static bool has_place(struct pool *pool, uint64_t begun)
{
    uint64_t over = atomic_load_explicit(&pool->rounds.over, memory_order_acquire);
    return begun - over < ROUNDS_MAX || ask_about(pool, begun) || ask_about(pool, over + 1);
}

/* ---- beginning ---- */

/* Begins the next round. No other thread uses its slot, since threads that ask look only at rounds
 * that have begun. */
static enum record_result begin(struct pool *pool, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    struct rounds *rounds = &pool->rounds;
    uint64_t number = atomic_load_explicit(&rounds->begun, memory_order_relaxed) + 1;
    if (!has_place(pool, number - 1))
        return RECORDED;
    struct round *round = &rounds->slots[number % ROUNDS_MAX];
    *error = round->set_generation == pool->registry.set_generation ? CUDA_SUCCESS
                                                                    : make_events(pool, round);
    if (*error != CUDA_SUCCESS)
        return epoch_judge_record(pool, *error);
    enum record_result result = record_events(pool, round, error);
    if (result != RECORDED)
        return result;
    atomic_store_explicit(&rounds->fences, 0, memory_order_relaxed);
    atomic_store_explicit(&rounds->contexts, round->event_count, memory_order_relaxed);
    atomic_store_explicit(&rounds->begun, number, memory_order_release);
    return RECORDED;
}

/* share: how many events of a round one fence is worth. */
static bool is_worth_it(const struct rounds *rounds, uint64_t share)
{
    return atomic_load_explicit(&rounds->fences, memory_order_relaxed) * share >=
           atomic_load_explicit(&rounds->contexts, memory_order_relaxed);
}

enum record_result rounds_note_fence(struct pool *pool, bool at_once, CUresult *error)
{
    lock_must_be_held(&pool->fence_lock);
    if (!has_several(pool))
        return RECORDED;
    atomic_fetch_add_explicit(&pool->rounds.fences, 1, memory_order_relaxed);
    return at_once || is_worth_it(&pool->rounds, ROUND_SHARE) ? begin(pool, error) : RECORDED;
}

static void begin_if_may(struct pool *pool, uint64_t number)
{
    CUresult error;
    enter_driver();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (atomic_load_explicit(&pool->rounds.begun, memory_order_relaxed) < number &&
        !program_captures(&pool->captures) && !contexts_are_dying(pool))
        begin(pool, &error);
    lock_give(&pool->fence_lock);
    leave_driver();
}

void rounds_demand(struct pool *pool, uint64_t number)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (atomic_load_explicit(&pool->rounds.begun, memory_order_acquire) < number)
        begin_if_may(pool, number);
}

bool rounds_ask(struct pool *pool, uint64_t number)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct rounds *rounds = &pool->rounds;
    if (atomic_load_explicit(&rounds->over, memory_order_acquire) >= number)
        return true;
    if (atomic_load_explicit(&rounds->begun, memory_order_acquire) < number &&
        is_worth_it(rounds, 4 * (uint64_t)ROUND_SHARE))
        begin_if_may(pool, number);
    return round_has_begun(rounds, number) && ask_about(pool, number);
}
