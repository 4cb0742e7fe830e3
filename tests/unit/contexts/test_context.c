/*
 * Contexts: how they become known, what dies with them, and what several of them change.
 */
#include "pool_fixture.h"

#include <stdatomic.h>

#include "core/contexts/context.h"
#include "core/stream_memory/stream_memory.h"

TestSuite(context, .init = set_up, .fini = tear_down, .timeout = 20);

/* ---- becoming known ---- */

Test(context, what_each_kind_keeps_lies_behind_the_record_in_their_order)
{
    start();
    struct context *known = context_find(pool, context);
    const char *first = known->of_kind[KIND_DEVICE];
    const char *second = known->of_kind[KIND_HOST];
    cr_assert_eq(first, (const char *)heap_of(known));
    cr_assert_geq(first, (const char *)(known + 1));
    cr_assert_geq(second, first + sizeof(struct heap));
    cr_assert_lt(second, first + sizeof(struct heap) + 64);
}

Test(context, a_context_that_nobody_announced_is_known_when_it_is_used)
{
    start_without_context();
    context = fake_context(0);
    cr_assert_null(context_find(pool, context));
    CUdeviceptr block = allocate(MIB);
    cr_assert_not_null(context_find(pool, context));
    release(block);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

Test(context, without_a_context_the_driver_answers)
{
    start_without_context();
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_INVALID_CONTEXT);
    cr_assert_eq(pool_free(pool, 4096), CUDA_ERROR_INVALID_VALUE);
}

Test(context, without_a_current_context_a_block_is_freed_as_with_one)
{
    start();
    CUdeviceptr block = allocate(MIB);
    fake_set_current(NULL);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    fake_set_current(context);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

/* The fence of such a free is recorded there and then, in the block's context. */
Test(context, a_free_without_a_context_has_a_fence)
{
    start();
    CUdeviceptr block = allocate(64 * MIB);
    fake_launch(context);
    fake_set_current(NULL);
    fake_trace();
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    cr_assert_not_null(strstr(fake_trace(), "record"));
    fake_set_current(context);
    fake_finish(context);
    cr_assert_eq(allocate(64 * MIB), block);
}

Test(context, a_device_is_asked_about_once)
{
    start();
    struct device *first = device();
    CUcontext other = another_context(0);
    cr_assert_eq(context_find(pool, other)->device, first);
    cr_assert_eq(first->total_bytes, DEVICE_BYTES);
    CUcontext elsewhere = another_context(1);
    cr_assert_neq(context_find(pool, elsewhere)->device, first);
    cr_assert_eq(context_find(pool, elsewhere)->device->ordinal, 1);
}

Test(context, every_context_has_memory_of_its_own)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    another_context(0);
    cr_assert_neq(allocate(MIB), block);
    fake_set_current(context);
}

Test(context, a_block_is_freed_into_the_context_that_it_came_from)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    CUcontext other = another_context(0);
    release(block);
    cr_assert_eq(heap_bytes(heap_of(context_find(pool, context))).pending, MIB);
    cr_assert_eq(counter_get(&heap_of(context_find(pool, other))->pending_bytes), 0);
    /* The current context's synchronise says nothing of the block's own. */
    fake_launch(context);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(counter_get(&heap_of(context_find(pool, context))->clean_bytes), 0);
}

Test(context, learning_of_a_primary_context_leaves_no_retain)
{
    start_without_context();
    context = fake_primary(0);
    allocate(MIB);
    cr_assert_eq(fake_primary_retains(0), 0);
    cr_assert(context_find(pool, context)->primary);
    cr_assert_eq(context_find_primary(pool, 0), context_find(pool, context));
}

Test(context, a_created_context_is_not_the_primary_one)
{
    start();
    cr_assert_not(context_find(pool, context)->primary);
    cr_assert_null(context_find_primary(pool, 0));
}

/* ---- death ---- */

Test(context, a_context_takes_its_blocks_with_it)
{
    start();
    CUdeviceptr live = allocate(MIB), pending = allocate(2 * MIB), clean = allocate(4 * MIB);
    release(clean);
    synchronise();
    release(pending);
    end_context(context);
    struct kept_bytes bytes = pool_device_bytes(pool, 0);
    cr_assert_eq(bytes.live + bytes.cached + bytes.pending, 0);
    context = another_context(0);
    cr_assert_eq(reserved_bytes(), 0);
    CUdeviceptr dead[] = {live, pending, clean};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pool_free(pool, dead[i]), CUDA_ERROR_INVALID_VALUE, "the driver is asked");
}

Test(context, what_it_counted_stays_in_the_report)
{
    start();
    allocate_and_release(4, MIB);
    end_context(context);
    cr_assert_eq(counted().requests, 4);
    cr_assert_eq(counted().frees, 4);
    cr_assert_eq(counted().live_bytes, 0);
    cr_assert_eq(counted().pending_bytes, 0);
}

Test(context, a_context_that_could_not_be_destroyed_lives)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    struct ending ending = pool_context_ending(pool, context);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    cr_assert_eq(allocate(MIB), block);
}

Test(context, a_context_that_is_being_ended_hands_nothing_out)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    struct ending ending = pool_context_ending(pool, context);
    cr_assert_neq(allocate(MIB), block);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    cr_assert_eq(allocate(MIB), block);
}

static unsigned calls_left;

static void end_it_soon(void *unused)
{
    (void)unused;
    if (calls_left > 0 && --calls_left == 0)
        fake_end_context(context);
}

/* What the pool took down of it would otherwise be another context's of that handle. */
Test(context, a_context_that_ends_while_it_becomes_known_is_not_known)
{
    start_without_context();
    for (unsigned calls = 1; calls < 12; calls++) {
        CUdeviceptr block = 0;
        context = calls == 1 ? fake_context(0) : fake_context_at(context, 0);
        calls_left = calls;
        fake_during_all(end_it_soon, NULL);
        pool_allocate(pool, &block, MIB);
        fake_during_all(NULL, NULL);
        for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
            cr_assert_neq(c->id, 0, "nobody, known since call %u", calls);
        if (calls_left > 0)
            fake_end_context(context);
        calls_left = 0;
        for (int i = 0; i < 2; i++) {
            context = fake_context_at(context, 0);
            pool_context_created(pool, context);
            block = allocate(MIB);
            cr_assert(fake_is_allocated(block), "call %u", calls);
            release(block);
            synchronise();
            end_context(context);
        }
    }
}

Test(context, the_current_context_may_be_ended_by_a_null_handle)
{
    start();
    struct ending ending = pool_context_ending(pool, NULL);

    cr_assert_eq(ending.context->handle, context);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
}

Test(context, an_unknown_context_may_end)
{
    start();
    struct ending ending = pool_context_ending(pool, (CUcontext)77);
    cr_assert_null(ending.context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    allocate(MIB);
}

Test(context, calls_from_inside_the_end_pass_through)
{
    start();
    cr_assert_not(is_inside_driver());
    struct ending ending = pool_context_ending(pool, context);
    cr_assert(is_inside_driver());
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    cr_assert_not(is_inside_driver());
}

static void retain_primary(void)
{
    start_without_context();
    context = fake_primary(0);
    pool_primary_retained(pool, context, 0);
}

/* A free block of it is clean. */
static CUdeviceptr retain_primary_with_clean_block(void)
{
    retain_primary();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    return block;
}

Test(context, a_primary_context_lives_until_its_last_release)
{
    retain_primary();
    CUdeviceptr block = allocate(MIB);
    struct ending ending = pool_primary_releasing(pool, 0);
    pool_context_ended(pool, ending, CONTEXT_PRIMARY_MAY_HAVE_DIED);
    cr_assert_eq(live_bytes(), MIB);
    ending = pool_primary_releasing(pool, 0);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_PRIMARY_MAY_HAVE_DIED);
    cr_assert_eq(live_bytes(), 0);
    context = fake_primary(0);
    pool_primary_retained(pool, context, 0);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
}

Test(context, a_reset_takes_a_primary_contexts_memory_although_the_handle_stays)
{
    CUdeviceptr block = retain_primary_with_clean_block();
    struct ending ending = pool_primary_releasing(pool, 0);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    fake_context_at(context, 0);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_neq(allocate(MIB), block);
}

/* ---- handles that come back ---- */

static void reuse_the_handle(void)
{
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    end_context(context);
    cr_assert_eq(fake_context_at(context, 0), context);
    pool_context_created(pool, context);
    fake_trace();
    cr_assert_neq(allocate(MIB), block);
    cr_assert_eq(counted().hits.clean, 0);
    CUdeviceptr again = allocate(2 * MIB);
    fake_launch(context);
    release(again);
    synchronise();
    cr_assert_eq(allocate(2 * MIB), again);
}

Test(context, a_handle_that_comes_back_is_a_new_context)
{
    start_with_budget(0);
    reuse_the_handle();
}

Test(context, a_handle_that_comes_back_is_a_new_context_without_ids_too)
{
    driver->cuCtxGetId = NULL;
    start_with_budget(0);
    reuse_the_handle();
}

Test(context, a_context_that_ended_unseen_is_told_by_its_successors_id)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    fake_end_context(context);
    fake_context_at(context, 0);
    pool_context_created(pool, context);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_neq(allocate(MIB), block);
    cr_assert_not(atomic_load(&pool->several_contexts), "there was one at a time");
}

Test(context, a_dead_contexts_record_serves_the_next_one)
{
    start();
    for (int i = 0; i < 20; i++) {
        allocate_and_release(3, MIB);
        end_context(context);
        context = another_context(0);
    }
    unsigned made = 0;
    for (struct context *c = atomic_load(&pool->registry.contexts); c; c = c->next)
        made++;
    cr_assert_eq(made, 1);
    cr_assert_not(atomic_load(&pool->several_contexts));
}

Test(context, a_new_context_is_usable_whatever_became_of_the_old_one)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert(atomic_load(&context_find(pool, context)->unusable));
    end_context(context);
    context = another_context(0);
    block = allocate(MIB);
    release(block);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

static CUresult (*usual_id)(CUcontext, unsigned long long *);
static struct ending next_ending;
static struct context *shared_record;

static void begin_the_end_of_the_next(void *unused)
{
    (void)unused;
    fake_set_current(context);
    pool_context_created(pool, context);
    next_ending = pool_context_ending(pool, context);
}

static bool was_pinned;
static struct errand end_of_the_next;

static void finish_the_end_of_the_next(void *record)
{
    struct context *c = record;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    was_pinned = context_pin(c, context_generation(c));
    if (was_pinned)
        context_unpin(c);
    fake_end_context(context);
    pool_context_ended(pool, next_ending, CONTEXT_DIED);
}

/* After its first question the thread has looked up what the pool knows. */
static CUresult ask_late(CUcontext handle, unsigned long long *id)
{
    static bool has_looked;
    if (!has_looked) {
        has_looked = true;
        return usual_id(handle, id);
    }
    driver->cuCtxGetId = usual_id;
    CUresult result = usual_id(handle, id);
    in_another_thread(begin_the_end_of_the_next, NULL);
    send(&end_of_the_next, finish_the_end_of_the_next, shared_record);
    return result;
}

/* Two threads find out that a context has ended. The second one is late: the record serves the next
 * context, which is just ending. */
Test(context, who_finds_out_late_leaves_the_end_of_the_next_context_alone)
{
    start();
    allocate_and_release(1, MIB);
    struct context *c = shared_record = context_find(pool, context);
    fake_end_context(context);
    fake_context_at(context, 0);
    usual_id = driver->cuCtxGetId;
    driver->cuCtxGetId = ask_late;
    pool_context_created(pool, context);
    wait_for(&end_of_the_next);
    cr_assert_eq(driver->cuCtxGetId, usual_id);
    cr_assert_not(was_pinned);
    cr_assert_not(context_is_alive(c));
}

/* Only failures of its own make the pool leave it to the driver. */
Test(context, a_new_context_starts_without_the_old_ones_failures)
{
    start_with_budget(0);
    fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_SUPPORTED, 1000);
    for (int i = 0; i < 20; i++)
        allocate_and_release(1, MIB);
    cr_assert_not(context_is_usable(context_find(pool, context)));
    fake_fail(FAKE_RECORD, CUDA_SUCCESS, 0);
    end_context(context);
    context = another_context(0);
    CUdeviceptr block = allocate(MIB);
    cr_assert(context_is_usable(context_find(pool, context)));
    fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_PERMITTED, 1);
    release(block);
    cr_assert(context_is_usable(context_find(pool, context)));
}

/* ---- pins ---- */

Test(context, a_dead_context_can_not_be_pinned)
{
    start();
    struct context *c = context_find(pool, context);
    uint64_t generation = context_generation(c);
    cr_assert(context_pin(c, generation));
    context_unpin(c);
    struct ending ending = pool_context_ending(pool, context);
    cr_assert_not(context_pin(c, generation), "nor one that may be dying");
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    cr_assert_not(context_pin(c, generation));
    cr_assert_not(context_pin(c, context_generation(c)));
    context = another_context(0);
    cr_assert_eq(context_find(pool, context), c);
    cr_assert_not(context_pin(c, generation), "it is another context now");
    cr_assert(context_pin(c, context_generation(c)));
    context_unpin(c);
}

static atomic_bool context_is_gone;

static void end_it(void *unused)
{
    (void)unused;
    struct ending ending = pool_context_ending(pool, context);
    atomic_store(&context_is_gone, true);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
}

Test(context, a_death_waits_for_those_who_use_the_context)
{
    struct errand errand;
    start();
    struct context *c = context_find(pool, context);
    cr_assert(context_pin(c, context_generation(c)));
    send(&errand, end_it, NULL);
    struct timespec nap = {0, 20000000};
    nanosleep(&nap, NULL);
    cr_assert_not(atomic_load(&context_is_gone));
    context_unpin(c);
    wait_for(&errand);
    cr_assert(atomic_load(&context_is_gone));
}

static void end_it_from_another_thread(void *errand)
{
    fake_during(FAKE_MEM_FREE_ASYNC, NULL, NULL);
    send(errand, end_it, NULL);
    struct timespec nap = {0, 20000000};
    nanosleep(&nap, NULL);
    cr_assert_not(atomic_load(&context_is_gone));
}

Test(context, blocks_on_their_way_to_the_driver_hold_a_death_up)
{
    struct errand errand;
    start();
    allocate_and_release(3, MIB);
    synchronise();
    fake_during(FAKE_MEM_FREE_ASYNC, end_it_from_another_thread, &errand);
    cr_assert_eq(pool_trim(pool), 3 * MIB);
    wait_for(&errand);
}

/* ---- green contexts ---- */

static CUcontext alias(CUgreenCtx green)
{
    CUcontext handle = fake_green(0);
    pool_green_context_created(pool, (CUgreenCtx)5, 0);
    pool_green_context_converted(pool, handle, green);
    return handle;
}

Test(context, a_green_contexts_memory_is_its_primary_ones)
{
    CUdeviceptr block = retain_primary_with_clean_block();
    CUcontext handle = alias((CUgreenCtx)5);
    fake_set_current(handle);
    cr_assert_eq(allocate(MIB), block);
    release(block);
    cr_assert_eq(fake_primary_retains(0), 0);
    cr_assert_not(atomic_load(&pool->several_contexts));
}

/* On the green context's own stream, which ends with the primary context. */
Test(context, a_green_contexts_capture_ends_with_the_primary_one)
{
    retain_primary();
    allocate(MIB);
    fake_set_current(alias((CUgreenCtx)5));
    pool_captures_lock(pool);
    pool_capture_began(pool, NULL, true);
    pool_captures_unlock(pool);
    fake_set_current(context);
    cr_assert(pool_captures_under_way(pool));
    end_context(context);
    cr_assert_not(pool_captures_under_way(pool));
}

Test(context, a_fence_of_a_green_context_is_over_the_primary_one)
{
    retain_primary();
    settings.device.growth_budget.bytes = 0;
    CUcontext handle = alias((CUgreenCtx)5);
    fake_set_current(handle);
    for (unsigned i = 0; i < FREES_TO_A_FENCE; i++)
        release(allocate(MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    fake_set_current(context);
}

Test(context, a_green_contexts_synchronise_is_not_the_primary_ones)
{
    retain_primary();
    CUcontext handle = alias((CUgreenCtx)5);
    release(allocate(MIB));
    fake_set_current(handle);
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    pool_synchronise_end(pool, state, CUDA_SUCCESS);
    cr_assert_eq(clean_bytes(), 0);
    state = pool_synchronise_begin(pool, &handle);
    pool_synchronise_end(pool, state, CUDA_SUCCESS);
    cr_assert_eq(clean_bytes(), 0);
}

Test(context, a_green_contexts_end_leaves_the_primary_ones_memory)
{
    retain_primary();
    CUcontext handle = alias((CUgreenCtx)5);
    CUdeviceptr block = allocate(MIB);
    struct ending ending = pool_green_ending(pool, (CUgreenCtx)5);
    fake_end_context(handle);
    pool_green_context_destroyed(pool, (CUgreenCtx)5);
    pool_context_ended(pool, ending, CONTEXT_PRIMARY_MAY_HAVE_DIED);
    fake_set_current(context);
    cr_assert_eq(live_bytes(), MIB);
    release(block);
    cr_assert_eq(pending_bytes(), MIB);
}

Test(context, a_context_at_the_handle_of_a_green_one_is_a_new_one)
{
    retain_primary();
    CUcontext handle = alias((CUgreenCtx)5);
    struct ending ending = pool_green_ending(pool, (CUgreenCtx)5);
    fake_end_context(handle);
    pool_green_context_destroyed(pool, (CUgreenCtx)5);
    pool_context_ended(pool, ending, CONTEXT_PRIMARY_MAY_HAVE_DIED);
    fake_context_at(handle, 0);
    pool_context_created(pool, handle);
    cr_assert_not_null(context_find(pool, handle));
    cr_assert_neq(context_find(pool, handle), context_find(pool, context));
}

/* Another thread does it, until it has to wait. */
static void send_until_it_waits(struct errand *errand, void (*body)(void *), void *argument)
{
    send(errand, body, argument);
    for (unsigned i = 0; i < 500; i++)
        let_time_pass();
}

/* A green context has ended in the driver, and another has its handle. */
static CUcontext hand_on(CUgreenCtx to)
{
    retain_primary();
    CUcontext handle = alias((CUgreenCtx)5);
    fake_end_context(handle);
    fake_green_at(handle, 0);
    pool_green_context_created(pool, to, 0);
    pool_green_context_converted(pool, handle, to);
    return handle;
}

static void expect_primary_memory(CUcontext handle)
{
    fake_set_current(handle);
    allocate(MIB);
    cr_assert_null(context_find(pool, handle), "it is the primary one's still");
}

static void convert(void *handle)
{
    pool_green_context_converted(pool, handle, (CUgreenCtx)5);
}

/* The driver gives a handle away again before the thread that ended its owner comes to tell. */
Test(context, a_green_one_at_the_handle_of_a_context_that_is_being_ended)
{
    CUdeviceptr block = retain_primary_with_clean_block();
    CUcontext other = fake_context(0);
    pool_context_created(pool, other);
    struct ending ending = pool_context_ending(pool, other);
    fake_end_context(other);
    fake_green_at(other, 0);
    pool_green_context_created(pool, (CUgreenCtx)5, 0);
    struct errand errand;
    send_until_it_waits(&errand, convert, other);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    wait_for(&errand);
    fake_set_current(other);
    cr_assert_eq(allocate(MIB), block);
}

Test(context, a_green_one_at_the_handle_of_one_that_has_just_ended)
{
    CUcontext handle = hand_on((CUgreenCtx)6);
    pool_green_context_destroyed(pool, (CUgreenCtx)5);
    expect_primary_memory(handle);
}

Test(context, a_context_at_the_handle_of_a_green_one_that_has_just_ended)
{
    CUdeviceptr block = retain_primary_with_clean_block();
    CUcontext handle = alias((CUgreenCtx)5);
    fake_end_context(handle);
    fake_context_at(handle, 0);
    pool_context_created(pool, handle);
    cr_assert_neq(allocate(MIB), block);
    cr_assert_not_null(context_find(pool, handle));
    pool_green_context_destroyed(pool, (CUgreenCtx)5);
    cr_assert_not_null(context_find(pool, handle));
    cr_assert_eq(clean_bytes(), MIB);
}

static void use_and_synchronise(void *unused)
{
    (void)unused;
    allocate_and_free_one(&(size_t){2 * MIB});
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    pool_synchronise_end(pool, state, CUDA_SUCCESS);
}

/* A thread that first uses it meanwhile finds no context, and asks for the current one. */
Test(context, a_green_context_is_one_too_while_its_primary_one_may_end)
{
    retain_primary();
    CUcontext handle = alias((CUgreenCtx)5), primary = context;
    CUdeviceptr block = allocate(MIB);
    struct ending ending = pool_primary_releasing(pool, 0);
    struct errand errand;
    context = handle;
    send_until_it_waits(&errand, use_and_synchronise, NULL);
    context = primary;
    release(block);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    wait_for(&errand);
    cr_assert_eq(clean_bytes(), 0);
}

/* By the successor's number, before the thread that has ended it comes to tell. */
static void find_it_dead(void *known)
{
    uint64_t generation = context_end_begin(pool, known, false);
    context_end_finish(pool, known, generation, true);
    fake_context_at(context, 0);
    pool_context_created(pool, context);
    allocate(MIB);
}

Test(context, who_ended_a_context_leaves_its_successor_alone)
{
    start();
    struct ending ending = pool_context_ending(pool, context);
    fake_end_context(context);
    in_another_thread(find_it_dead, ending.context);
    cr_assert_eq(live_bytes(), MIB);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    cr_assert_eq(live_bytes(), MIB);
}

/* ---- several contexts ---- */

static void finish_first(void *queries)
{
    if (++*(unsigned *)queries == 5)
        fake_finish(context);
}

Test(context, the_second_contexts_work_is_behind_what_barriers_have_handed_out)
{
    take_behind_a_barrier();
    unsigned queries = fake_calls(FAKE_EVENT_QUERY);
    CUcontext other = another_context(0);
    cr_assert_eq(fake_behind(other, context), 1);
    cr_assert_eq(fake_calls(FAKE_EVENT_QUERY), queries, "nothing is waited for");
    CUcontext third = another_context(0);
    cr_assert_eq(fake_behind(third, context), 1);
}

Test(context, where_it_cannot_be_the_barriers_are_waited_for)
{
    unsigned queries = 0;
    take_behind_a_barrier();
    fake_fail(FAKE_WAIT, CUDA_ERROR_UNKNOWN, 1);
    fake_during(FAKE_EVENT_QUERY, finish_first, &queries);
    another_context(0);
    cr_assert_geq(queries, 5);
    cr_assert_geq(epoch_clean(epochs()), epochs()->barrier);
}

Test(context, without_barriers_the_second_context_waits_for_nothing)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    unsigned queries = fake_calls(FAKE_EVENT_QUERY);
    another_context(0);
    cr_assert_eq(fake_calls(FAKE_EVENT_QUERY), queries);
}

Test(context, an_error_in_one_context_leaves_the_other_ones_blocks_alone)
{
    start();
    CUdeviceptr block = allocate(MIB);
    CUcontext other = another_context(0);
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    pool_synchronise_end(pool, state, CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert(atomic_load(&context_find(pool, other)->unusable));
    fake_set_current(context);
    release(block);
    cr_assert_eq(heap_bytes(heap_of(context_find(pool, context))).pending, MIB);
}

/* ---- sticky errors ---- */

/* The free takes along what is pending, of which no fence will ever tell. */
static void check_that_the_driver_answers(void)
{
    CUdeviceptr block;
    fake_trace();
    cr_assert_eq(pool_allocate(pool, &block, MIB), CUDA_SUCCESS);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    cr_assert_str_eq(fake_trace(), "alloc free free free");
    cr_assert_eq(pending_bytes(), 0);
}

Test(context, after_an_error_that_stays_the_driver_answers)
{
    start();
    CUdeviceptr before = allocate(2 * MIB);
    allocate_and_release(2, MIB);
    fake_fail(FAKE_CTX_SYNCHRONIZE, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(synchronise(), CUDA_ERROR_ILLEGAL_ADDRESS);
    check_that_the_driver_answers();
    fake_trace();
    release(before);
    cr_assert_str_eq(fake_trace(), "free");
}

Test(context, an_error_of_the_call_alone_changes_nothing)
{
    CUresult passing[] = {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_NOT_PERMITTED,
                          CUDA_ERROR_INVALID_CONTEXT};
    start();
    CUdeviceptr block = allocate(MIB);
    for (int i = 0; i < 3; i++) {
        fake_fail(FAKE_CTX_SYNCHRONIZE, passing[i], 1);
        cr_assert_eq(synchronise(), passing[i]);
    }
    release(block);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

/* ---- contexts that end or break while others work ---- */

Test(context, a_new_context_has_no_fence_of_an_old_one)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    cr_assert_eq(epochs()->outstanding, 1);
    end_context(context);
    context = another_context(0);
    cr_assert_eq(epochs()->outstanding, 0);
    cr_assert_null(epochs()->oldest);
    cr_assert_null(epochs()->newest);
}

Test(context, a_new_context_gives_back_on_a_stream_of_its_own)
{
    start();
    for (unsigned i = 1; i <= 2; i++) {
        allocate_and_release(1, MIB);
        synchronise();
        cr_assert_eq(pool_trim(pool), MIB);
        cr_assert_eq(fake_calls(FAKE_STREAM_CREATE), i);
        end_context(context);
        context = another_context(0);
    }
}

Test(context, while_a_context_may_be_dying_nothing_is_fenced)
{
    start_with_budget(0);
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB), second = allocate(MIB);
    struct ending ending = pool_context_ending(pool, other);
    unsigned recorded = fake_calls(FAKE_RECORD);
    release(block);
    cr_assert_eq(fake_calls(FAKE_RECORD), recorded);
    fake_end_context(other);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    fake_set_current(context);
    release(second);
    cr_assert_eq(fake_calls(FAKE_RECORD), recorded + 1, "in the one context that is left");
    let_time_pass();
    cr_assert_neq(allocate(MIB), 0);
    cr_assert_eq(counted().hits.queried, 1);
}

static void fail_the_next_record(void *unused)
{
    (void)unused;
    fake_during(FAKE_RECORD, NULL, NULL);
    fake_fail(FAKE_RECORD, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
}

Test(context, a_broken_context_is_left_out_of_the_others_fences)
{
    start_with_budget(0);
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    fake_during(FAKE_RECORD, fail_the_next_record, NULL);
    release(block);
    cr_assert(atomic_load(&context_find(pool, other)->unusable));
    cr_assert_not(atomic_load(&context_find(pool, context)->unusable));
    let_time_pass();
    cr_assert_eq(allocate(MIB), block);
    cr_assert_eq(counted().hits.queried, 1);
}

Test(context, a_block_from_behind_a_barrier_waits_before_the_driver_frees_it)
{
    unsigned queries = 0;
    CUdeviceptr block = take_behind_a_barrier();
    CUstream stream = fake_stream();
    begin_capture(stream);
    fake_during(FAKE_EVENT_QUERY, finish_at_the_fourth_query, &queries);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_geq(queries, 4);
    end_capture(stream);
}

/* ---- what comes too late ---- */

static CUresult (*real_get_id)(CUcontext, unsigned long long *);
static bool is_overtaken;

static CUresult get_id_and_be_overtaken(CUcontext handle, unsigned long long *id)
{
    CUresult result = real_get_id(handle, id);
    if (is_overtaken)
        return result;
    is_overtaken = true;
    end_context(handle);
    fake_context_at(handle, 0);
    pool_context_created(pool, handle);
    allocate(MIB);
    return result;
}

Test(context, who_knows_an_owner_of_before_leaves_the_handles_new_one_alone)
{
    real_get_id = driver->cuCtxGetId;
    start_without_context();
    context = fake_context(0);
    driver->cuCtxGetId = get_id_and_be_overtaken;
    pool_context_created(pool, context);
    cr_assert(is_overtaken);
    cr_assert_eq(live_bytes(), MIB);
}

Test(context, a_green_context_that_ended_unseen_leaves_nothing_to_its_numbers_next_one)
{
    retain_primary();
    CUcontext handle = alias((CUgreenCtx)5);
    fake_end_context(handle);
    CUcontext second = alias((CUgreenCtx)5);
    fake_context_at(handle, 0);
    pool_context_created(pool, handle);
    cr_assert_not_null(context_named(pool, second));
    cr_assert_null(context_find(pool, second));
    cr_assert_eq(context_green_device(pool, (CUgreenCtx)5), 0);
}

Test(context, nor_to_one_with_its_number_and_its_handle)
{
    expect_primary_memory(hand_on((CUgreenCtx)5));
}

Test(context, a_primary_context_has_ended_where_a_new_one_has_another_handle)
{
    retain_primary_with_clean_block();
    struct ending ending = pool_primary_releasing(pool, 0);
    fake_end_context(context);
    context = fake_primary(0);
    pool_context_ended(pool, ending, CONTEXT_PRIMARY_MAY_HAVE_DIED);
    cr_assert_eq(clean_bytes(), 0);
}
