/*
 * Streams: which handles mean the same one, and how long.
 */
#include "streams_fixture.h"

TestSuite(stream, .init = set_up_streams, .fini = tear_down, .timeout = 20);

static struct stream *found(CUstream handle)
{
    return stream_find(pool, handle, true).stream;
}

Test(stream, the_legacy_stream_has_two_names)
{
    start_streams();
    cr_assert_eq(found(NULL), found(CU_STREAM_LEGACY));
    cr_assert_neq(found(NULL), found(CU_STREAM_PER_THREAD));
    cr_assert_neq(found(NULL), found(one));
    cr_assert_neq(found(one), found(other));
}

Test(stream, it_is_only_made_known_on_request)
{
    start_streams();
    cr_assert_null(stream_find(pool, one, false).stream);
    struct stream *made = found(one);
    cr_assert_eq(stream_find(pool, one, false).stream, made);
}

Test(stream, without_a_context_there_is_none)
{
    start_streams();
    fake_set_current(NULL);
    cr_assert_null(stream_find(pool, one, true).stream);
}

Test(stream, every_context_has_its_own_default_stream)
{
    start_streams();
    struct stream *first = found(NULL);
    another_context(0);
    cr_assert_neq(found(NULL), first);
    fake_set_current(context);
    cr_assert_eq(found(NULL), first);
}

Test(stream, a_handle_that_comes_back_is_another_stream)
{
    start_streams();
    uint64_t id = stream_find(pool, one, true).id;
    destroy_stream(one);
    cr_assert_neq(stream_find(pool, one, true).id, id);
}

Test(stream, a_record_with_pending_blocks_serves_no_new_stream)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_works(one);
    free_on(one, block);
    struct stream *former = stream_called(one);
    destroy_stream(one);
    cr_assert_neq(found(other), former);
}

Test(stream, a_record_without_serves_the_next)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    synchronise_stream(one);
    struct stream *former = stream_called(one);
    destroy_stream(one);
    cr_assert_eq(found(other), former);
}

/* Another stream has taken a block, and may have to put it back. */
Test(stream, a_record_whose_block_is_away_serves_no_new_stream)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_works(one);
    free_on(one, block);
    struct stream *former = stream_called(one);
    lock_take(&former->lock, LOCK_STREAM);
    stream_block_is_detached(former);
    lock_give(&former->lock);
    synchronise_stream(one);
    destroy_stream(one);
    CUstream third = fake_stream(), fourth = fake_stream();
    cr_assert_neq(found(third), former);
    stream_block_has_a_place(former);
    cr_assert_eq(found(fourth), former);
}

/* Whatever becomes of it, nothing is away in the end. */
Test(stream, blocks_that_change_streams_are_not_away_for_good)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    for (unsigned failed = 0; failed < 2; failed++) {
        size_t bytes = (failed + 1) * MIB;
        CUdeviceptr block = take_on(one, bytes);
        fake_stream_works(one);
        free_on(one, block);
        fake_stream_fail_waits(failed);
        fake_stream_refuse_memory(1);
        cr_assert_neq(take_on(other, bytes), block);
        cr_assert_eq(atomic_load(&stream_called(one)->detached), 0);
        cr_assert_eq(atomic_load(&stream_called(other)->detached), 0);
        synchronise_stream(one);
        pool_trim(pool);
        cr_assert_eq(atomic_load(&stream_called(one)->detached), 0);
    }
}

Test(stream, streams_die_with_their_context)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    struct stream_ref ref = stream_find(pool, one, false);
    cr_assert_not_null(ref.stream);
    end_context(context);
    cr_assert_neq(stream_id(streams_of(pool), ref.stream), ref.id);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(pool_device_bytes(pool, 0).cached + pool_device_bytes(pool, 0).pending, 0);
}

/* ---- drivers without cuStreamGetId ---- */

Test(stream, without_numbers_the_driver_serves_all)
{
    CUdeviceptr address;
    CUresult result;
    driver->cuStreamGetId = NULL;
    start_streams();
    cr_assert_null(streams_of(pool));
    cr_assert_not(pool_allocate_async(pool, &address, MIB, NULL, one, &result));
}

/* A library that profiles may destroy one from inside a driver call of the pool's. */
Test(stream, one_that_is_destroyed_in_a_nested_call_has_ended)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    struct stream *stream = stream_called(one);
    driver_calls.depth++;
    pool_stream_ending(pool, one);
    driver_calls.depth--;
    cr_assert_eq(stream->id, 0);
}

static unsigned events_destroyed;
static CUresult (*destroy_event)(CUevent);

static CUresult count_destroyed(CUevent event)
{
    events_destroyed++;
    return destroy_event(event);
}

/* Its events are no use to another context's streams. */
Test(stream, events_of_a_former_owner_are_destroyed)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_works(one);
    let_memory_be_short(true);
    stream_called(one)->unchecked.bytes = 0;
    free_on(one, block);
    synchronise_stream(one);
    pool_trim(pool);
    struct stream *former = stream_called(one);
    lock_take(&former->lock, LOCK_STREAM);
    stream_done_apply(former);
    cr_assert_not_null(former->events.list);
    stream_events_drop_all(former);
    struct stream_event *discarded = NULL;
    stream_events_take_discarded(former, &discarded);
    lock_give(&former->lock);
    cr_assert_not_null(discarded);
    destroy_event = driver->cuEventDestroy_v2;
    driver->cuEventDestroy_v2 = count_destroyed;
    stream_events_destroy(pool, discarded);
    cr_assert_neq(events_destroyed, 0);
}

/* What a thread remembers of a handle ends with the stream. */
Test(stream, a_handle_is_not_remembered_past_the_end)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_works(one);
    free_on(one, block);
    struct stream *former = stream_called(one);
    destroy_stream(one);
    cr_assert_neq(fake_stream(), NULL);
    cr_assert_neq(stream_recall(pool, one).id, former->id);
    cr_assert_not(take_at_once(&block, MIB, NULL, one));
}

/* ---- several threads ---- */

static atomic_bool is_over;

static void look_for_known(void *stream)
{
    *(struct stream **)stream = stream_find(pool, one, false).stream;
    atomic_store(&is_over, true);
}

/* Who is led astray looks again under the lock. */
Test(stream, one_is_found_while_chains_change)
{
    static uint32_t chains[STREAMS_HASHES];
    struct stream *there = NULL;
    struct errand errand;
    start_streams();
    struct stream *here = found(one);
    struct streams *streams = streams_of(pool);
    lock_take(&streams->lock, LOCK_STREAMS);
    atomic_fetch_add(&streams->hash_version, 1);
    for (unsigned i = 0; i < STREAMS_HASHES; i++)
        chains[i] = atomic_exchange(&streams->by_id[i], 0);
    send(&errand, look_for_known, &there);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    cr_assert_not(atomic_load(&is_over));
    for (unsigned i = 0; i < STREAMS_HASHES; i++)
        atomic_store(&streams->by_id[i], chains[i]);
    atomic_fetch_add(&streams->hash_version, 1);
    lock_give(&streams->lock);
    wait_for(&errand);
    cr_assert_eq(there, here);
}

/* Another thread has ended it, and its record is another stream's. */
Test(stream, an_end_is_told_of_once)
{
    start_streams();
    struct stream *stream = found(one);
    struct stream_ref ref = stream_find(pool, one, false);
    destroy_stream(one);
    cr_assert_eq(found(other), stream);
    stream_end(pool, ref);
    cr_assert_eq(stream_find(pool, other, false).stream, stream);
}

/* More of them than are written down: none is left out. */
Test(stream, after_many_early_launches_every_stream_counts_as_such)
{
    start_streams();
    for (unsigned i = 0; i < STREAMS_EARLY; i++)
        pool_early_launch(pool, fake_stream());
    pool_early_launch(pool, one);
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_neq(take_on(one, MIB), block);
    cr_assert(atomic_load(&found(other)->early_launches));
}

/* ---- many streams ---- */

/* Of so many the driver of these tests knows nothing but their numbers. */
static CUstream numbered(unsigned i)
{
    return (CUstream)(uintptr_t)(0x100000 + 64 * i);
}

static CUresult get_number(CUstream handle, unsigned long long *id)
{
    *id = (uintptr_t)handle / 64;
    return CUDA_SUCCESS;
}

static void start_with_numbers(void)
{
    start_without_context();
    context = fake_context(0);
    pool_context_created(pool, context);
    driver->cuStreamGetId = get_number;
    driver->cuStreamGetCtx = NULL;
}

static bool use(CUstream stream)
{
    CUdeviceptr block = 0;
    CUresult result;
    if (!take_at_once(&block, KIB, NULL, stream) &&
        !pool_allocate_async(pool, &block, KIB, NULL, stream, &result))
        return false;
    free_on(stream, block);
    pool_stream_wait_end(pool, pool_stream_wait_begin(pool, stream), CUDA_SUCCESS);
    return true;
}

Test(stream, each_of_many_is_found)
{
    struct stream *streams[1000];
    start_with_numbers();
    for (unsigned i = 0; i < 1000; i++)
        streams[i] = found(numbered(i));
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(found(numbered(i)), streams[i]);
    for (unsigned i = 0; i < 1000; i += 2)
        pool_stream_ending(pool, numbered(i));
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(stream_find(pool, numbered(i), false).stream, i % 2 ? streams[i] : NULL);
    for (unsigned i = 2000; i < 2500; i++)
        cr_assert_not_null(found(numbered(i)));
    for (unsigned i = 1; i < 1000; i += 2)
        cr_assert_eq(found(numbered(i)), streams[i]);
    cr_assert_eq(stream_count(streams_of(pool)), 1000);
}

struct watch {
    _Atomic bool over;
    unsigned long long missed;
};

static void look_for_one(void *argument)
{
    struct watch *watch = argument;
    unsigned long long id;
    get_number(numbered(0), &id);
    while (!watch->over)
        watch->missed += stream_look_up(pool, numbered(0), id).stream == NULL;
}

/* Its neighbours in the table come and go meanwhile. */
/* However little each look costs, all misses together would cost as much as they do. */
Test(stream, a_vain_look_through_many_is_not_repeated_at_once)
{
    start_streams();
    struct streams *streams = streams_of(pool);
    struct pause pause = {0};
    uint64_t started, again;
    cr_assert_not(streams_are_paused(streams, &pause, &started), "few are always looked through");
    for (unsigned i = 0; i <= STREAMS_MANY; i++)
        found(fake_stream());
    cr_assert_not(streams_are_paused(streams, &pause, &started));
    streams_pause_after(streams, &pause, started - 1000000000);
    cr_assert(streams_are_paused(streams, &pause, &again));
}

Test(stream, one_is_found_at_all_times)
{
    struct watch watch = {false, 0};
    struct errand errand;
    start_with_numbers();
    found(numbered(0));
    send(&errand, look_for_one, &watch);
    for (unsigned i = 1; i < 20000; i++) {
        found(numbered(i));
        if (i > 900)
            pool_stream_ending(pool, numbered(i - 900));
    }
    watch.over = true;
    wait_for(&errand);
    cr_assert_eq(watch.missed, 0);
}

static void find_first(void *argument)
{
    struct stream **first = argument;
    *first = found(numbered(0));
}

/* Its record was taken for another one, and another thread has used the stream since. */
Test(stream, one_that_is_known_again_elsewhere_is_found)
{
    struct stream *again;
    struct errand errand;
    start_with_numbers();
    struct stream *before = found(numbered(0));
    stream_end(pool, stream_find(pool, numbered(0), false));
    cr_assert_eq(found(numbered(1)), before);
    send(&errand, find_first, &again);
    wait_for(&errand);
    cr_assert_neq(again, before);
    cr_assert_eq(stream_find(pool, numbered(0), false).stream, again);
}

/* Where there are more than are known at a time. */
Test(stream, those_that_are_used_make_way_for_none)
{
    start_with_numbers();
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        cr_assert(use(numbered(i)));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = STREAMS_MAX; i < STREAMS_MAX + 50; i++)
            cr_assert_not(use(numbered(i)));
        for (unsigned i = 0; i < STREAMS_MAX; i++)
            cr_assert_not_null(stream_find(pool, numbered(i), false).stream);
    }
}

#define UNUSED 8u

static void use_the_first(unsigned count)
{
    for (unsigned k = 0; k < count; k++)
        cr_assert(use(numbered(k)));
}

/* Those that are used are used before each look, however long the looks take. */
Test(stream, those_that_are_not_used_do)
{
    start_with_numbers();
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        cr_assert(use(numbered(i)));
    cr_assert_not(use(numbered(5000)));
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    for (unsigned i = 0; i < UNUSED; i++) {
        use_the_first(STREAMS_MAX - UNUSED);
        cr_assert(use(numbered(5000 + i)));
    }
    use_the_first(STREAMS_MAX - UNUSED);
    cr_assert_not(use(numbered(6000)));
    for (unsigned k = 0; k < STREAMS_MAX - UNUSED; k++)
        cr_assert_not_null(stream_find(pool, numbered(k), false).stream);
}

/* One that ends does at once. */
Test(stream, those_that_end_do)
{
    start_with_numbers();
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        cr_assert(use(numbered(i)));
    cr_assert_not(use(numbered(5000)));
    pool_stream_ending(pool, numbered(7));
    cr_assert(use(numbered(5000)));
    cr_assert_not(use(numbered(5001)));
}

/* Of many streams those that nothing was done on since are not looked at. */
Test(stream, a_synchronise_marks_those_with_something_pending)
{
    start_with_numbers();
    for (unsigned i = 0; i < 1000; i++)
        cr_assert(use(numbered(i)));
    CUdeviceptr block = take_on(numbered(300), MIB);
    free_on(numbered(300), block);
    cr_assert_eq(bytes_of(numbered(300)).pending, MIB);
    synchronise();
    cr_assert_eq(bytes_of(numbered(300)).pending, 0);
    for (unsigned i = 0; i < 1000; i++)
        pool_stream_ending(pool, numbered(i));
    synchronise();
    for (unsigned i = 0; i < STREAMS_MAX / 64; i++)
        cr_assert_eq(streams_of(pool)->busy[i], 0);
    free_on(numbered(2000), take_on(numbered(2000), MIB));
    synchronise();
    cr_assert_eq(bytes_of(numbered(2000)).pending, 0);
}
