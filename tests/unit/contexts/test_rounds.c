/*
 * Rounds: what fences need of the contexts beside their own, and how seldom that is recorded.
 */
#include "pool_fixture.h"

#include "core/contexts/rounds.h"

TestSuite(rounds, .init = set_up, .fini = tear_down, .timeout = 60);

/* A fence in each context, which is current then. */
static void free_in_each(const CUcontext *contexts, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        fake_set_current(contexts[i]);
        release(allocate(MIB));
    }
}

static void make_contexts(CUcontext *contexts, unsigned count)
{
    start_with_budget(0);
    contexts[0] = context;
    for (unsigned i = 1; i < count; i++)
        contexts[i] = another_context(0);
}

/* Records for a free, beside so many contexts. */
static double records_for_a_free(unsigned count)
{
    CUcontext contexts[64];
    const unsigned turns = 10;
    make_contexts(contexts, count);
    free_in_each(contexts, count);
    unsigned before = fake_calls(FAKE_RECORD);
    for (unsigned turn = 0; turn < turns; turn++)
        free_in_each(contexts, count);
    return (double)(fake_calls(FAKE_RECORD) - before) / (turns * count);
}

Test(rounds, a_free_costs_as_many_events_beside_many_contexts_as_beside_few)
{
    double of_many = records_for_a_free(64);
    cr_assert_leq(of_many, 5, "%.1f records for a free", of_many);
}

/* All that is freed becomes clean, with the work of one context in the way until it is over. */
Test(rounds, a_round_serves_fences_of_all_contexts)
{
    CUcontext contexts[3];
    make_contexts(contexts, 3);
    fake_launch(contexts[2]);
    free_in_each(contexts, 2);
    cr_assert_eq(query_oldest(), FENCE_OWN_OVER);
    unsigned recorded = fake_calls(FAKE_RECORD);
    fake_finish(contexts[2]);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(fake_calls(FAKE_RECORD), recorded);
    context = contexts[1];
    unsigned asked = fake_calls(FAKE_EVENT_QUERY);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_leq(fake_calls(FAKE_EVENT_QUERY), asked + 4);
}

Test(rounds, a_round_that_began_before_a_fence_says_nothing_of_it)
{
    CUcontext contexts[2];
    make_contexts(contexts, 2);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    free_in_each(contexts, 1);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    fake_launch(contexts[1]);
    fake_set_current(context);
    release(block);
    cr_assert_eq(query_oldest(), FENCE_OWN_OVER);
    cr_assert_eq(clean_bytes(), MIB, "the first block");
    fake_finish(contexts[1]);
    cr_assert_eq(query_oldest(), FENCE_OVER);
}

/* Others' work goes on for ever: no more rounds than there are places, and each is asked about. */
Test(rounds, there_are_no_more_than_places_for_them)
{
    CUcontext contexts[2];
    make_contexts(contexts, 2);
    fake_launch(contexts[1]);
    for (unsigned i = 0; i < 3 * ROUNDS_MAX; i++)
        free_in_each(contexts, 1);
    cr_assert_eq(atomic_load(&pool->rounds.begun), atomic_load(&pool->rounds.over) + ROUNDS_MAX);
    fake_finish(contexts[1]);
    for (unsigned i = 0; i < 4 * ROUNDS_MAX && pending_bytes(); i++)
        query_oldest();
    cr_assert_eq(pending_bytes(), 0);
}

/* Nobody has asked about those that have begun. */
Test(rounds, those_that_nobody_has_asked_about_keep_no_place)
{
    CUcontext contexts[2];
    make_contexts(contexts, 2);
    struct context *c = context_find(pool, context);
    for (unsigned i = 0; i < 2 * ROUNDS_MAX; i++) {
        heap_lock(heap_of(c));
        struct fence *fence = epoch_begin_close(c, true);
        heap_unlock(heap_of(c));
        epoch_record(pool, c, fence);
    }
    let_time_pass();
    heap_lock(heap_of(c));
    cr_assert_eq(epoch_query(pool, c, c->epochs.newest), FENCE_OVER);
    heap_unlock(heap_of(c));
}

Test(rounds, contexts_that_end_and_new_ones_change_the_next_one)
{
    CUcontext contexts[4];
    make_contexts(contexts, 4);
    fake_launch(contexts[3]);
    free_in_each(contexts, 1);
    cr_assert_eq(query_oldest(), FENCE_OWN_OVER);
    end_context(contexts[3]);
    cr_assert_eq(query_oldest(), FENCE_OVER, "its work has ended with it");
    contexts[3] = another_context(0);
    fake_launch(contexts[3]);
    free_in_each(contexts, 1);
    cr_assert_eq(query_oldest(), FENCE_OWN_OVER);
    fake_finish(contexts[3]);
    cr_assert_eq(query_oldest(), FENCE_OVER);
}
