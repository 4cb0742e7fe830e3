/*
 * Thread caches: what a thread takes and frees without a lock, and how others reach it.
 */
#include "pool_fixture.h"

#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "core/base/clock.h"

TestSuite(thread_cache, .init = set_up, .fini = tear_down, .timeout = 20);

static struct thread_cache *own_cache(void)
{
    struct thread_cache *cache = thread_cache_known(heap());
    cr_assert_not_null(cache);
    return cache;
}

static uint64_t cached_bytes(void)
{
    return thread_caches_sum(heap()).free_bytes;
}

static unsigned count_caches(void)
{
    unsigned count = 0;
    for (struct thread_cache *c = atomic_load(&heap()->caches.all); c; c = c->next)
        count++;
    return count;
}

/* So many blocks that this thread can take at once. */
static void cache_blocks(unsigned count, size_t bytes)
{
    allocate_and_release(count, bytes);
    synchronise();
    fake_trace();
}

/* ---- a thread that does something, and then stays until it is let go ---- */

struct companion {
    struct errand errand;
    void (*body)(void *);
    void *argument;
    atomic_bool ready, freed_outside;
};

static void stay(void *argument)
{
    struct companion *companion = argument;
    companion->body(companion->argument);
    atomic_store(&companion->ready, true);
    while (!atomic_load(&companion->freed_outside))
        let_time_pass();
}

static void join_in(struct companion *companion, void (*body)(void *), void *argument)
{
    atomic_init(&companion->ready, false);
    atomic_init(&companion->freed_outside, false);
    companion->body = body;
    companion->argument = argument;
    send(&companion->errand, stay, companion);
    while (!atomic_load(&companion->ready))
        let_time_pass();
}

static void part(struct companion *companion)
{
    atomic_store(&companion->freed_outside, true);
    wait_for(&companion->errand);
}

static void cache_ten(void *unused)
{
    (void)unused;
    allocate_and_release(10, MIB);
}

/* ---- the fast path ---- */

Test(thread_cache, hits_and_frees_take_no_lock_and_call_nothing)
{
    start();
    cache_blocks(8, MIB);
    stop_looking_at_locks();
    heap_lock(heap());
    CUdeviceptr a = allocate(MIB), b = allocate(MIB - 5), c = allocate(MIB - KIB);
    release(b);
    release(a);
    a = allocate(MIB);
    release(a);
    release(c);
    heap_unlock(heap());
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(counted().hits.clean, 4);
    cr_assert_eq(counted().frees, 12);
    cr_assert_eq(counted().requests, 12);
}

Test(thread_cache, the_newest_clean_block_is_taken)
{
    start();
    CUdeviceptr first = allocate(MIB), second = allocate(MIB), third = allocate(MIB);
    release(first);
    release(second);
    synchronise();
    release(third);
    synchronise();
    cr_assert_eq(allocate(MIB), third);
    cr_assert_eq(allocate(MIB), second);
    cr_assert_eq(allocate(MIB), first);
}

Test(thread_cache, what_no_fence_covers_is_not_taken)
{
    start();
    cache_blocks(2, MIB);
    CUdeviceptr a = allocate(MIB), b = allocate(MIB);
    fake_launch(context);
    release(a);
    release(b);
    CUdeviceptr c = allocate(MIB);
    cr_assert_neq(c, a);
    cr_assert_neq(c, b);
}

Test(thread_cache, of_two_frees_one_succeeds)
{
    start();
    cache_blocks(2, MIB);
    CUdeviceptr a = allocate(MIB);
    release(a);
    cr_assert_eq(pool_free(pool, a), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(counted().frees, 3);
    cr_assert_eq(live_bytes(), 0);
}

Test(thread_cache, every_size_in_between_is_served_by_its_bin)
{
    start();
    for (size_t bytes = 1; bytes <= 40 * MIB; bytes = bytes * 9 / 8 + 1) {
        CUdeviceptr block = allocate(bytes);
        size_t room = heap()->classes.largest ? size_class_round(&heap()->classes, bytes) : 0;
        release(block);
        synchronise();
        CUdeviceptr again = allocate(bytes);
        cr_assert_eq(again, block, "%zu bytes are not served", bytes);
        CUdeviceptr other = allocate(room + 1);
        cr_assert_neq(other, block);
        release(again);
        release(other);
        synchronise();
        cr_assert_neq(allocate(room + 1), block, "%zu bytes are served by fewer", room + 1);
    }
}

Test(thread_cache, many_sizes_of_exact_buckets_find_their_own_blocks)
{
    settings.device.buckets.policy = BUCKETS_EXACT;
    settings.device.growth_budget.bytes = GIB;
    start();
    CUdeviceptr blocks[600];
    for (unsigned round = 0; round < 2; round++) {
        for (size_t i = 0; i < 600; i++)
            blocks[i] = allocate(64 * KIB + 8 * i);
        for (size_t i = 0; i < 600; i++) {
            struct pointer_answer answer = pool_ask_pointer(pool, blocks[i]);
            cr_assert_eq(answer.kind, POINTER_LIVE);
            cr_assert_eq(answer.bytes, 64 * KIB + 8 * i);
            release(blocks[i]);
        }
        synchronise();
    }
    cr_assert_eq(counted().misses, 600);
}

/* ---- bounds ---- */

Test(thread_cache, a_full_bin_gives_its_older_half_to_the_heap)
{
    start();
    CUdeviceptr blocks[400];
    for (int i = 0; i < 400; i++)
        blocks[i] = allocate(64 * KIB);
    for (int i = 0; i < 400; i++)
        release(blocks[i]);
    cr_assert_leq(cached_bytes(), CACHE_BIN_BLOCKS * 64 * KIB);
    cr_assert_geq(cached_bytes(), CACHE_BIN_BLOCKS / 2 * 64 * KIB);
    cr_assert_eq(pending_bytes() + clean_bytes(), 400 * 64 * KIB);
    synchronise();
    cr_assert_eq(clean_bytes(), 400 * 64 * KIB);
    for (int i = 0; i < 400; i++)
        allocate(64 * KIB);
    cr_assert_eq(counted().misses, 400);
    cr_assert_eq(counted().hits.clean, 400);
}

Test(thread_cache, the_cap_on_blocks_holds_for_caches_too)
{
    settings.device.caps.blocks_per_bucket = 20;
    start();
    struct companion companion;
    allocate_and_release(30, MIB);
    join_in(&companion, cache_ten, NULL);
    fake_finish(context);
    synchronise();
    cr_assert_leq(clean_bytes() + pending_bytes(), 20 * MIB);
    part(&companion);
}

Test(thread_cache, where_few_blocks_are_kept_caches_hold_none)
{
    settings.device.caps.blocks_per_bucket = 4;
    start();
    cache_blocks(4, MIB);
    cr_assert_eq(cached_bytes(), 0);
}

Test(thread_cache, large_blocks_are_the_heaps)
{
    start();
    cache_blocks(2, 64 * MIB);
    cr_assert_eq(cached_bytes(), 0);
    cr_assert_eq(clean_bytes(), 128 * MIB);
}

/* ---- other threads ---- */

static void free_all(void *argument)
{
    CUdeviceptr *blocks = argument;
    for (int i = 0; i < 40; i++)
        release(blocks[i]);
}

Test(thread_cache, a_block_may_be_freed_by_another_thread)
{
    struct companion companion;
    CUdeviceptr blocks[40];
    start();
    for (int i = 0; i < 40; i++)
        blocks[i] = allocate(MIB);
    cr_assert_eq(live_bytes(), 40 * MIB);
    join_in(&companion, free_all, blocks);
    cr_assert_eq(live_bytes(), 0);
    cr_assert_eq(heap_bytes(heap()).requested, 0);
    cr_assert_gt(cached_bytes(), 0);
    part(&companion);
}

Test(thread_cache, a_producer_uses_what_its_consumer_frees)
{
    start();
    for (int round = 0; round < 20; round++) {
        CUdeviceptr blocks[40];
        for (int i = 0; i < 40; i++)
            blocks[i] = allocate(MIB);
        in_another_thread(free_all, blocks);
        fake_finish(context);
        synchronise();
    }
    cr_assert_eq(counted().misses, 40);
}

Test(thread_cache, other_threads_caches_are_reached_when_memory_is_wanted)
{
    struct companion companion;
    start();
    join_in(&companion, cache_ten, NULL);
    synchronise();
    cr_assert_eq(cached_bytes(), 10 * MIB);
    pool_trim(pool);
    cr_assert_eq(cached_bytes(), 0);
    cr_assert_eq(fake_bytes_used(0), 0);
    part(&companion);
}

Test(thread_cache, what_other_threads_cache_is_taken_before_the_reserve_grows)
{
    struct companion companion;
    settings.device.growth_budget.bytes = 0;
    settings.device.caps.reserve_ratio = 1;
    start();
    join_in(&companion, cache_ten, NULL);
    synchronise();
    for (int i = 0; i < 10; i++)
        allocate(MIB);
    cr_assert_eq(fake_bytes_used(0), 10 * MIB);
    cr_assert_eq(counted().misses, 10);
    part(&companion);
}

static void cache_forty(void *unused)
{
    (void)unused;
    allocate_and_release(40, MIB);
}

Test(thread_cache, little_in_other_threads_caches_is_left_there)
{
    struct companion companion;
    start();
    join_in(&companion, cache_ten, NULL);
    synchronise();
    allocate(MIB);
    cr_assert_eq(counted().misses, 11);
    cr_assert_eq(cached_bytes(), 10 * MIB);
    part(&companion);
}

Test(thread_cache, much_is_taken_from_there)
{
    struct companion companion;
    start();
    join_in(&companion, cache_forty, NULL);
    synchronise();
    for (int i = 0; i < 20; i++)
        allocate(MIB);
    cr_assert_eq(counted().misses, 40);
    cr_assert_gt(cached_bytes(), 0, "its part stays there");
    part(&companion);
}

static void touch(void *unused)
{
    (void)unused;
    allocate_and_release(1, KIB);
}

/* Whether no cache fell asleep meanwhile: that would leave the others more. */
static bool eight_stay_inside_the_growth_budget(void)
{
    struct companion idle[4], busy[4];
    for (int i = 0; i < 4; i++)
        join_in(&idle[i], touch, NULL);
    for (int i = 0; i < 4; i++)
        join_in(&busy[i], cache_forty, NULL);
    uint64_t cached = cached_bytes();
    bool awake = atomic_load(&heap()->caches.count) >= 8;
    cr_assert(!awake || cached <= 32 * MIB);
    cr_assert(!awake || cached >= 4 * MIB);
    for (int i = 0; i < 4; i++) {
        part(&idle[i]);
        part(&busy[i]);
    }
    return awake;
}

Test(thread_cache, all_caches_together_stay_inside_the_growth_budget)
{
    bool awake = false;
    start_with_budget(32 * MIB);
    for (unsigned tries = 0; !awake && tries < 50; tries++)
        awake = eight_stay_inside_the_growth_budget();
    if (!awake)
        cr_skip_test("in each of 50 tries the machine took so long that caches fell asleep");
}

static void take_out_of_all_caches(struct bucket *bucket)
{
    stop_looking_at_locks();
    heap_lock(heap());
    thread_caches_take(heap(), bucket, true);
    heap_unlock(heap());
}

static void take_again_and_again(struct bucket *bucket, unsigned count, size_t bytes)
{
    for (int i = 0; i < 20 && cached_bytes(); i++) {
        device_bucket(bucket)->taken_from_caches_at =
            monotonic_now(); /* however slow the machine is */
        take_out_of_all_caches(bucket);
        cache_blocks(count, bytes);
    }
}

Test(thread_cache, a_size_that_is_taken_out_of_all_caches_again_and_again_is_shared)
{
    struct timespec a_while = {0, (long)CACHE_SHARED_FIRST + 10000000};
    start();
    cache_blocks(3, MIB);
    struct bucket *bucket = cache_bin_bucket(own_cache()->by_request[cache_index(MIB)]);
    take_out_of_all_caches(bucket);
    cr_assert_eq(cached_bytes(), 0);
    cache_blocks(3, MIB);
    cr_assert_eq(cached_bytes(), 3 * MIB, "once is not again and again");
    take_again_and_again(bucket, 3, MIB);
    cr_assert_eq(cached_bytes(), 0);
    cr_assert_eq(clean_bytes(), 3 * MIB);
    cr_assert_eq(counted().misses, 3);
    nanosleep(&a_while, NULL);
    synchronise();
    cache_blocks(3, MIB);
    synchronise();
    cache_blocks(3, MIB);
    cr_assert_eq(cached_bytes(), 3 * MIB, "that is not for ever");
}

Test(thread_cache, but_not_where_there_is_enough_for_all)
{
    start();
    cache_blocks(CACHE_BIN_LEAST, MIB);
    take_again_and_again(cache_bin_bucket(own_cache()->by_request[cache_index(MIB)]),
                         CACHE_BIN_LEAST, MIB);
    cr_assert_eq(cached_bytes(), CACHE_BIN_LEAST * MIB);
}

Test(thread_cache, nor_where_it_is_little)
{
    start();
    cache_blocks(3, 4096);
    take_again_and_again(cache_bin_bucket(own_cache()->by_request[cache_index(4096)]), 3, 4096);
    cr_assert_eq(cached_bytes(), (uint64_t)3 * 4096);
}

static void expect_in_order(const struct block_list *list, enum block_link link, unsigned count)
{
    uint64_t stamp = 0;
    for (const struct block *b = list->first; b; b = b->links[link].next, count--) {
        cr_assert_geq(counter_get(&b->epoch), stamp);
        stamp = counter_get(&b->epoch);
    }
    cr_assert_eq(count, 0);
}

Test(thread_cache, what_comes_from_caches_is_put_in_order)
{
    CUdeviceptr blocks[30];
    start();
    for (int i = 0; i < 30; i++)
        blocks[i] = allocate(i % 3 == 0 ? 2 * MIB : MIB);
    fake_launch(context);
    for (int i = 0; i < 30; i++) {
        release(blocks[i]);
        if (i % 5 == 4)
            heap_close_epoch(pool, context_find(pool, context));
    }
    stop_looking_at_locks();
    heap_lock(heap());
    thread_caches_collect(heap());
    expect_in_order(&heap()->pending, LINK_HEAP, 30);
    expect_in_order(&heap()->pending.first->bucket->pending, LINK_BUCKET, 10);
    heap_unlock(heap());
}

static unsigned asked;

/* Only the wait of the last rung asks so often: a free asks once, and an allocation that looks out
 * for its cache's fence does so for too short a time. */
static void finish_when_waited_for(void *unused)
{
    (void)unused;
    if (++asked > 1000)
        fake_finish(context);
}

Test(thread_cache, a_thread_that_frees_without_the_lock_is_no_less_another_one)
{
    struct companion companion;
    start_with_budget(0);
    join_in(&companion, touch, NULL);
    release(allocate(KIB));
    synchronise();
    heap()->uses_in_a_row = HEAP_USES_ALONE; /* the other one takes no lock */
    struct thread_cache *other = atomic_load(&heap()->caches.all);
    while (other == own_cache() || other->inside)
        other = other->next;
    counter_set(&other->stamp, epoch_current(epochs()));
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    fake_during(FAKE_EVENT_QUERY, finish_when_waited_for, NULL);
    cr_assert_eq(allocate(MIB), block);
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
    part(&companion);
}

Test(thread_cache, what_a_thread_has_cached_stays_when_it_ends)
{
    start();
    in_another_thread(cache_ten, NULL);
    cr_assert_eq(heap()->caches.owned, 0);
    cr_assert_eq(cached_bytes(), 0);
    synchronise();
    cr_assert_eq(clean_bytes(), 10 * MIB);
    for (int i = 0; i < 10; i++)
        allocate(MIB);
    cr_assert_eq(counted().misses, 10);
    cr_assert_eq(counted().frees, 10);
}

Test(thread_cache, short_lived_threads_use_each_others_records)
{
    size_t bytes = MIB;
    start();
    for (int i = 0; i < 500; i++)
        in_another_thread(allocate_and_free_one, &bytes);
    cr_assert_eq(count_caches(), 1);
    cr_assert_eq(heap()->caches.owned, 0);
    cr_assert_eq(counted().frees, 500);
}

static atomic_bool done;
static pthread_key_t key;

static void use_the_pool_once_more(void *unused)
{
    (void)unused;
    size_t bytes = MIB;
    allocate_and_free_one(&bytes);
}

static void leave_something_to_do(void *unused)
{
    (void)unused;
    cache_ten(NULL);
    pthread_setspecific(key, &key);
}

Test(thread_cache, a_thread_that_is_ending_goes_the_slow_way)
{
    start();
    cr_assert_eq(pthread_key_create(&key, use_the_pool_once_more), 0);
    in_another_thread(leave_something_to_do, NULL);
    cr_assert_eq(heap()->caches.owned, 0);
    cr_assert_eq(cached_bytes(), 0);
    cr_assert_eq(counted().frees, 11);
}

/* Its first use of the pool is in the destructor. */
static void leave_all_to_the_destructor(void *block)
{
    pthread_setspecific(key, block);
}

static void free_late(void *block)
{
    release((CUdeviceptr)(uintptr_t)block);
}

Test(thread_cache, a_thread_that_first_uses_the_pool_at_its_end_keeps_no_cache)
{
    start();
    cr_assert_eq(pthread_key_create(&key, free_late), 0);
    in_another_thread(leave_all_to_the_destructor, (void *)(uintptr_t)allocate(MIB));
    cr_assert_eq(heap()->caches.owned, 1);
    cr_assert_eq(counted().frees, 1);
}

/* After which no destructor is run any more. */
static void free_in_the_last_round(void *block)
{
    static int rounds;
    if (++rounds < PTHREAD_DESTRUCTOR_ITERATIONS)
        pthread_setspecific(key, block);
    else
        release((CUdeviceptr)(uintptr_t)block);
}

/* Whoever joins a thread is told a little before it is. */
static void wait_until_it_is_gone(pid_t thread)
{
    while (syscall(SYS_tgkill, getpid(), thread, 0) == 0)
        let_time_pass();
}

Test(thread_cache, a_cache_whose_thread_has_ended_untold_is_taken_over)
{
#if defined(__SANITIZE_THREAD__)
    cr_skip_test("by the last round the sanitizer has forgotten the thread");
#endif
    start();
    cr_assert_eq(pthread_key_create(&key, free_in_the_last_round), 0);
    in_another_thread(leave_all_to_the_destructor, (void *)(uintptr_t)allocate(MIB));
    cr_assert_eq(heap()->caches.owned, 2);
    wait_until_it_is_gone(atomic_load(&heap()->caches.all)->thread);
    /* The first one looks at one of the two. */
    struct companion companions[2];
    for (unsigned i = 0; i < 2; i++)
        join_in(&companions[i], cache_ten, NULL);
    cr_expect_eq(heap()->caches.owned, 3);
    cr_expect_leq(count_caches(), 3);
    for (unsigned i = 0; i < 2; i++)
        part(&companions[i]);
    cr_expect_eq(heap()->caches.owned, 1);
    cr_expect_eq(cached_bytes(), 0);
}

Test(thread_cache, a_cache_whose_thread_lives_is_not_taken_over)
{
    struct companion companions[3];
    start();
    for (unsigned i = 0; i < 3; i++) {
        join_in(&companions[i], cache_ten, NULL);
        cr_expect_eq(heap()->caches.owned, i + 1);
    }
    for (unsigned i = 0; i < 3; i++)
        part(&companions[i]);
}

Test(thread_cache, where_nobody_is_told_of_a_threads_end_there_are_no_caches)
{
    thread_functions.set_specific = NULL;
    start();
    cache_blocks(10, MIB);
    in_another_thread(cache_ten, NULL);
    cr_assert_eq(count_caches(), 0);
    cr_assert_eq(clean_bytes() + pending_bytes(), 10 * MIB);
}

/* ---- forks ---- */

Test(thread_cache, a_forked_childs_threads_leave_the_caches_alone)
{
    struct companion companion;
    start();
    join_in(&companion, cache_ten, NULL);
    pool_forget(pool);
    heap_lock(heap()); /* by a thread that the child does not have */
    atomic_store(&companion.freed_outside, true);
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += 2;
    cr_assert_eq(pthread_timedjoin_np(companion.errand.thread, NULL, &soon), 0,
                 "the thread waits for a lock");
    cr_assert_eq(heap()->caches.owned, 1);
    heap_unlock(heap());
}

static atomic_bool may_fork;
static _Atomic pid_t child;

/* The child's one thread has a cache, and nobody who would let go of the lock. */
static void fork_and_end_there(void *unused)
{
    cache_ten(unused);
    atomic_store(&done, true);
    while (!atomic_load(&may_fork))
        let_time_pass();
    pid_t forked = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (forked == 0)
        pthread_exit(NULL);
    atomic_store(&child, forked);
}

static bool ends_soon(pid_t process)
{
    for (int i = 0; i < 10000; i++) {
        if (waitpid(process, NULL, WNOHANG) == process)
            return true;
        let_time_pass();
    }
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
    return false;
}

Test(thread_cache, so_does_a_child_that_no_handler_was_run_for)
{
    struct errand errand;
    start();
    send(&errand, fork_and_end_there, NULL);
    while (!atomic_load(&done))
        let_time_pass();
    stop_looking_at_locks();
    heap_lock(heap());
    atomic_store(&may_fork, true);
    while (!atomic_load(&child))
        let_time_pass();
    cr_expect(ends_soon(atomic_load(&child)), "the child waits for a lock");
    heap_unlock(heap());
    wait_for(&errand);
}

Test(thread_cache, a_process_that_ends_in_a_slow_path_waits_for_no_lock, .exit_code = 7)
{
    start();
    cache_ten(NULL);
    stop_looking_at_locks();
    heap_lock(heap()); /* as a signal handler may find it */
    exit(7);
}

/* ---- fences ---- */

Test(thread_cache, an_epoch_that_another_thread_has_just_closed_is_not_closed_again)
{
    start();
    cache_ten(NULL);
    stop_looking_at_locks();
    heap_lock(heap());
    struct fence *fence = epoch_begin_close(context_of_heap(heap()), true);
    heap_unlock(heap());
    epoch_record(pool, context_of_heap(heap()), fence);
    cr_assert_eq(heap_close_epoch(pool, context_of_heap(heap())), CUDA_SUCCESS);
    cr_expect_eq(fake_calls(FAKE_RECORD), 1);
    release(allocate(MIB));
    cr_expect_eq(own_cache()->frees_left, own_cache()->frees_to_fence - 1);
}

Test(thread_cache, frees_count_on_where_an_epoch_was_closed_without_a_fence)
{
    start();
    cache_ten(NULL);
    uint32_t left = own_cache()->frees_left;
    epoch_close(context_find(pool, context));
    release(allocate(MIB));
    cr_expect_eq(own_cache()->frees_left, left - 1);
}

Test(thread_cache, a_count_that_is_spent_begins_anew_in_any_epoch)
{
    start();
    struct context *c = context_find(pool, context);
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    fake_launch(context);
    release(first);
    own_cache()->frees_left = 0;
    epoch_close(c);
    release(second);
    cr_expect_eq(own_cache()->frees_left, own_cache()->frees_to_fence - 1);
}

Test(thread_cache, and_a_free_fences_that_epoch)
{
    start();
    struct context *c = context_find(pool, context);
    cache_ten(NULL);
    heap_close_epoch(pool, c);
    release(allocate(MIB));
    epoch_close(c);
    heap_close_epoch(pool, c);
    cr_expect_eq(fake_calls(FAKE_RECORD), 2);
}

Test(thread_cache, nobody_owes_a_fence_beside_a_record_that_no_free_makes)
{
    start();
    cache_ten(NULL);
    atomic_store(&epochs()->recording, true);
    atomic_store(&epochs()->recording_for_free, false);
    heap_close_epoch(pool, context_find(pool, context));
    cr_expect_not(epochs()->owed);
    atomic_store(&epochs()->recording, false);
}

Test(thread_cache, a_thread_that_may_have_lost_its_processor_is_not_relied_on_for_long)
{
    start();
    struct context *c = context_find(pool, context);
    allocate_and_release(1, MIB);
    atomic_store(&epochs()->closed_for, true);
    unsigned recorded = fake_calls(FAKE_RECORD);
    cr_assert_eq(heap_close_epoch(pool, c), CUDA_SUCCESS);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    cr_assert_eq(heap_close_epoch(pool, c), CUDA_SUCCESS);
    cr_assert_eq(fake_calls(FAKE_RECORD), recorded + 1);
    cr_assert_not(atomic_load(&epochs()->closed_for));
}

static uint64_t bytes_to_fence_with_limit(uint64_t limit)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = limit};
    start();
    return device_fence_bytes(context_find(pool, context)->device);
}

Test(thread_cache, fences_are_closer_where_the_limit_is_narrow)
{
    cr_assert_eq(bytes_to_fence_with_limit(32 * MIB), 2 * MIB);
}

Test(thread_cache, but_not_closer_than_the_growth_budget_asks_for)
{
    cr_assert_eq(bytes_to_fence_with_limit(1024 * MIB), 16 * MIB);
}

/* ---- more epochs than a bin has segments ---- */

Test(thread_cache, blocks_of_many_epochs_wait_for_their_own_fences)
{
    enum { COUNT = CACHE_SEGMENTS + 3 };
    CUdeviceptr blocks[COUNT];
    uint64_t stamps[COUNT];
    start();
    for (int i = 0; i < COUNT; i++)
        blocks[i] = allocate(MIB);
    fake_launch(context);
    for (int i = 0; i < COUNT; i++) {
        stamps[i] = epoch_current(epochs());
        release(blocks[i]);
        heap_close_epoch(pool, context_find(pool, context));
    }
    cr_assert_eq(cached_bytes(), COUNT * MIB);
    stop_looking_at_locks();
    heap_lock(heap());
    epoch_complete(context_record(), stamps[COUNT - 3]);
    heap_unlock(heap());
    for (int i = 0; i < COUNT; i++) {
        CUdeviceptr taken = allocate(MIB);
        cr_assert_neq(taken, blocks[COUNT - 1], "its fence is not over");
        cr_assert_neq(taken, blocks[COUNT - 2], "its fence is not over");
    }
    fake_finish(context);
    synchronise();
    bool again = false;
    for (int i = 0; i < COUNT; i++)
        again = allocate(MIB) == blocks[COUNT - 1] || again;
    cr_assert(again);
}

/* ---- waiting without the lock ---- */

static void finish_now(void *unused)
{
    (void)unused;
    fake_finish(context);
}

/* A block that waits for a fence which is still running, another thread, and a GPU that has kept up
 * so far. */
static CUdeviceptr pending_block(struct companion *companion)
{
    join_in(companion, touch, NULL);
    cache_blocks(1, MIB);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    heap_close_epoch(pool, context_find(pool, context));
    counter_set(&heap()->miss_cost, 30000);
    own_cache()->waited_ns = 0;
    atomic_store(&epochs()->keeps_up, true); /* however slow the machine is */
    return block;
}

Test(thread_cache, a_fence_that_is_nearly_over_is_waited_for)
{
    struct companion companion;
    start();
    CUdeviceptr block = pending_block(&companion);
    fake_during(FAKE_EVENT_QUERY, finish_now, NULL);
    cr_assert_eq(allocate(MIB), block);
    cr_assert_eq(counted().hits.queried, 0, "the slow path has taken it");
    part(&companion);
}

Test(thread_cache, but_not_for_long)
{
    struct companion companion;
    start();
    CUdeviceptr block = pending_block(&companion);
    cr_assert_neq(allocate(MIB), block);
    cr_assert_eq(counted().misses, 3);
    part(&companion);
}

Test(thread_cache, who_has_waited_as_long_as_a_new_block_takes_gets_one)
{
    struct companion companion;
    start();
    CUdeviceptr block = pending_block(&companion);
    own_cache()->waited_ns = 30000;
    fake_trace();
    cr_assert_neq(allocate(MIB), block);
    cr_assert_str_eq(fake_trace(), "alloc");
    cr_assert_eq(own_cache()->waited_ns, 0);
    part(&companion);
}

Test(thread_cache, but_not_while_another_thread_gets_one)
{
    struct companion companion;
    start();
    CUdeviceptr block = pending_block(&companion);
    own_cache()->waited_ns = 30000;
    atomic_store(&heap()->threads_in_miss, 1);
    fake_during(FAKE_EVENT_QUERY, finish_now, NULL);
    nanosleep(&(struct timespec){0, 1000000}, NULL); /* it may be asked again */
    cr_assert_eq(allocate(MIB), block);
    atomic_store(&heap()->threads_in_miss, 0);
    part(&companion);
}

/* The driver serves one at a time, and the launches of all others want its lock. */
Test(thread_cache, beside_a_busy_gpu_one_thread_at_a_time_gets_a_new_block)
{
    struct companion companion;
    start();
    CUdeviceptr block = pending_block(&companion);
    atomic_store(&epochs()->keeps_up, false);
    atomic_store(&heap()->threads_in_miss, 1);
    counter_set(&heap()->miss_cost, 1000000000);
    uint64_t started = monotonic_now();
    cr_assert_neq(allocate(MIB), block);
    uint64_t waited = monotonic_now() - started;
    cr_assert_geq(waited, 2000000, "%lu", waited);
    cr_assert_lt(waited, 500000000, "it does not wait for long for its turn");
    atomic_store(&heap()->threads_in_miss, 0);
    part(&companion);
}

Test(thread_cache, where_memory_is_short_a_wait_is_no_reason_for_a_new_block)
{
    struct companion companion;
    start();
    CUdeviceptr block = pending_block(&companion);
    device_set_short(context_find(pool, context)->device, true);
    own_cache()->waited_ns = 30000;
    fake_during(FAKE_EVENT_QUERY, finish_now, NULL);
    nanosleep(&(struct timespec){0, 1000000}, NULL); /* it may be asked again */
    cr_assert_eq(allocate(MIB), block);
    cr_assert_eq(counted().misses, 2);
    part(&companion);
}

Test(thread_cache, other_contexts_work_is_asked_about_once)
{
    struct companion companion;
    start();
    CUcontext other = another_context(0);
    fake_set_current(context);
    pending_block(&companion);
    fake_launch(other);
    release(allocate(MIB));
    heap_close_epoch(pool, context_find(pool, context));
    fake_finish(context);
    atomic_store(&epochs()->keeps_up, true);
    unsigned asked_before = fake_calls(FAKE_EVENT_QUERY);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    allocate(MIB);
    cr_assert_leq(fake_calls(FAKE_EVENT_QUERY), asked_before + 8);
    part(&companion);
}

/* ---- threads that do nothing ---- */

struct sleeper {
    struct errand errand;
    atomic_uint step, done;
    CUdeviceptr held;
};

static void wait_for_step(struct sleeper *sleeper, unsigned step)
{
    atomic_store(&sleeper->done, step - 1);
    while (atomic_load(&sleeper->step) < step)
        let_time_pass();
}

static void use_and_sleep(void *argument)
{
    struct sleeper *sleeper = argument;
    cache_blocks(10, MIB);
    sleeper->held = allocate(MIB);
    wait_for_step(sleeper, 2);
    release(sleeper->held);
    wait_for_step(sleeper, 3);
}

static void take_step(struct sleeper *sleeper, unsigned step)
{
    atomic_store(&sleeper->step, step);
    while (atomic_load(&sleeper->done) < step)
        let_time_pass();
}

/* So that whoever does nothing meanwhile has done nothing for long. */
static void work_on(void)
{
    struct timespec nap = {0, (long)CACHE_IDLE};
    for (int i = 0; i < 4; i++) {
        release(allocate(KIB));
        heap_close_epoch(pool, context_find(pool, context));
        nanosleep(&nap, NULL);
    }
}

Test(thread_cache, the_cache_of_a_thread_that_does_nothing_falls_asleep)
{
    struct sleeper sleeper = {0};
    start();
    atomic_store(&sleeper.step, 1);
    send(&sleeper.errand, use_and_sleep, &sleeper);
    take_step(&sleeper, 1);
    release(allocate(KIB));
    cr_assert_eq(heap()->caches.count, 2);
    work_on();
    cr_assert_eq(heap()->caches.count, 1);
    cr_assert_eq(heap_bytes(heap()).requested, MIB, "one block is held");
    cr_assert_geq(clean_bytes(), 9 * MIB);
    cr_assert_leq(cached_bytes(), 4 * KIB);
    take_step(&sleeper, 2);
    cr_assert_eq(heap()->caches.count, 2, "its thread has come back");
    cr_assert_eq(heap_bytes(heap()).requested, 0);
    atomic_store(&sleeper.step, 3);
    wait_for(&sleeper.errand);
    cr_assert_eq(heap()->caches.count, 1);
    cr_assert_eq(heap()->caches.owned, 1);
}

Test(thread_cache, a_clock_that_is_behind_puts_nobody_to_sleep)
{
    struct companion companion;
    uint64_t now = monotonic_now();
    start();
    release(allocate(KIB));
    join_in(&companion, touch, NULL);
    stop_looking_at_locks();
    heap_lock(heap());
    heap()->caches.looked_for_idle_at = 0;
    thread_caches_let_sleep(heap(), own_cache(), now);
    heap()->caches.looked_for_idle_at = 0;
    thread_caches_let_sleep(heap(), own_cache(), now - CACHE_IDLE / 2);
    cr_assert_eq(heap()->caches.count, 2);
    heap()->caches.looked_for_idle_at = 0;
    thread_caches_let_sleep(heap(), own_cache(), now + CACHE_IDLE + 1);
    cr_assert_eq(heap()->caches.count, 1);
    heap_unlock(heap());
    part(&companion);
}

Test(thread_cache, threads_that_have_ended_are_not_looked_at)
{
    struct companion companions[20];
    start();
    release(allocate(KIB));
    for (int i = 0; i < 20; i++)
        join_in(&companions[i], touch, NULL);
    cr_assert_eq(heap()->caches.count, 21);
    for (int i = 0; i < 20; i++)
        part(&companions[i]);
    cr_assert_eq(heap()->caches.count, 1);
    cr_assert_eq(atomic_load(&heap()->caches.awake), own_cache());
    cr_assert_null(atomic_load(&own_cache()->next_awake));
    cr_assert_eq(count_caches(), 21);
}

Test(thread_cache, threads_that_live_for_a_moment_have_no_more_fences)
{
    size_t bytes = KIB;
    start();
    for (unsigned i = 0; i < 4 * FREES_TO_A_FENCE; i++)
        in_another_thread(allocate_and_free_one, &bytes);
    cr_assert_leq(fake_calls(FAKE_RECORD), 8);
}

/* ---- near a limit ---- */

static void cache_twenty(void *unused)
{
    (void)unused;
    cache_blocks(20, MIB);
}

Test(thread_cache, at_the_limit_what_others_cache_comes_before_a_new_block)
{
    struct companion companion;
    settings.limits.device_bytes = (struct byte_size){.bytes = 21 * MIB};
    start();
    join_in(&companion, cache_twenty, NULL);
    for (int i = 0; i < 20; i++)
        allocate(MIB);
    cr_assert_leq(counted().misses, 21);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 0);
    part(&companion);
}

/* ---- closing ---- */

static void trim(void *unused)
{
    (void)unused;
    pool_trim(pool);
    atomic_store(&done, true);
}

static void end_the_context(void *unused)
{
    (void)unused;
    struct ending ending = pool_context_ending(pool, context);
    atomic_store(&done, true);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
}

static void wait_a_little(void)
{
    struct timespec nap = {0, 30000000};
    nanosleep(&nap, NULL);
}

static void waits_until_outside(void (*body)(void *))
{
    struct errand errand;
    start();
    cache_blocks(4, MIB);
    struct thread_cache *cache = own_cache();
    atomic_store(&cache->inside, 1);
    send(&errand, body, NULL);
    wait_a_little();
    cr_assert_not(atomic_load(&done), "the thread is still inside its cache");
    atomic_store(&cache->inside, 0);
    wait_for(&errand);
    cr_assert(atomic_load(&done));
}

Test(thread_cache, whoever_empties_a_cache_waits_for_its_thread_to_come_out)
{
    waits_until_outside(trim);
}

Test(thread_cache, whoever_ends_the_context_waits_too)
{
    waits_until_outside(end_the_context);
}

static void take_one(void *unused)
{
    (void)unused;
    CUdeviceptr block = allocate(MIB);
    atomic_store(&done, true);
    release(block);
}

static void take_when_told(void *argument)
{
    atomic_bool *told = argument;
    cache_blocks(4, MIB);
    CUdeviceptr first = allocate(MIB);
    atomic_store(&done, false);
    while (!atomic_load(told))
        let_time_pass();
    take_one(NULL);
    release(first);
}

Test(thread_cache, a_closed_cache_is_not_used)
{
    struct errand errand;
    atomic_bool told = false;
    start();
    atomic_store(&done, true);
    send(&errand, take_when_told, &told);
    while (atomic_load(&done))
        let_time_pass();
    heap_lock(heap());
    atomic_fetch_or(&heap()->closed, CLOSED_COLLECTING);
    atomic_store(&told, true);
    wait_a_little();
    cr_assert_not(atomic_load(&done), "a block was taken out of a cache that is being emptied");
    atomic_fetch_and(&heap()->closed, ~(uint32_t)CLOSED_COLLECTING);
    heap_unlock(heap());
    wait_for(&errand);
}

Test(thread_cache, while_a_context_is_being_ended_its_cached_blocks_are_not_handed_out)
{
    start();
    cache_blocks(4, MIB);
    struct ending ending = pool_context_ending(pool, context);
    driver_calls.depth = 0; /* another thread, so to say */
    fake_trace();
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "alloc");
    driver_calls.depth = 1;
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "");
}

Test(thread_cache, a_context_that_dies_takes_the_cached_blocks_along)
{
    struct companion companion;
    start();
    join_in(&companion, cache_ten, NULL);
    cache_blocks(4, 2 * MIB);
    struct heap *of_both = heap();
    end_context(context);
    cr_assert_eq(thread_caches_sum(of_both).free_bytes, 0);
    cr_assert_eq(heap_bytes(of_both).clean + heap_bytes(of_both).pending, 0);
    context = another_context(0);
    cr_assert_eq(heap(), of_both, "the record is not used again");
    cr_assert(fake_is_allocated(allocate(2 * MIB)));
    part(&companion);
}

Test(thread_cache, in_a_capture_the_driver_frees)
{
    start();
    cache_blocks(4, MIB);
    CUdeviceptr block = allocate(MIB);
    CUstream stream = fake_stream();
    begin_capture(stream);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "free");
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "alloc");
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    end_capture(stream);
    fake_trace();
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "");
}

Test(thread_cache, a_shared_block_is_not_cached)
{
    start();
    cache_blocks(4, MIB);
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    release(block);
    cr_assert_not(fake_is_allocated(block));
}

Test(thread_cache, an_address_that_comes_again_leaves_the_cache)
{
    start();
    cache_blocks(1, MIB);
    CUdeviceptr block = allocate(MIB);
    release(block);
    cr_assert_eq(cached_bytes(), MIB);
    fake_vanish(block);
    fake_next_address(block);
    cr_assert_eq(allocate(4 * MIB), block);
    cr_assert_eq(cached_bytes(), 0);
}

Test(thread_cache, without_membarrier_it_works_as_well)
{
    struct companion companion;
    start();
    pool->expedited = false;
    atomic_fetch_or(&heap()->closed, CLOSED_WEAKLY);
    join_in(&companion, cache_ten, NULL);
    cache_blocks(4, MIB);
    stop_looking_at_locks();
    heap_lock(heap());
    release(allocate(MIB));
    heap_unlock(heap());
    cr_assert_str_eq(fake_trace(), "");
    pool_trim(pool);
    cr_assert_eq(cached_bytes(), 0);
    part(&companion);
}

/* Not under an emulator. */
static bool can_be_forbidden(void)
{
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

/* As a program does that shuts itself in. */
static void forbid_membarrier(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

Test(thread_cache, where_membarrier_is_forbidden_later_threads_enter_by_an_exchange)
{
    struct companion companion;
    start();
    if (!pool->expedited || !can_be_forbidden())
        cr_skip_test("there is no membarrier here, or no seccomp");
    join_in(&companion, cache_ten, NULL);
    cache_blocks(4, MIB);
    forbid_membarrier();
    pool_trim(pool);
    cr_assert_eq(cached_bytes(), 0);
    cr_assert(atomic_load(&heap()->closed) == CLOSED_WEAKLY);
    cache_blocks(4, MIB);
    cr_assert_eq(cached_bytes(), 4 * MIB);
    part(&companion);
}

/* ---- threads that are cancelled ---- */

/* It would end at the next cancellation point, and has none of its own. */
static void trim_when_cancelled(void *forbid)
{
    cache_ten(NULL);
    if (forbid)
        forbid_membarrier();
    pthread_cancel(pthread_self());
    trim(NULL);
}

Test(thread_cache, a_thread_that_is_cancelled_while_it_waits_for_another_goes_on)
{
    struct errand errand;
    start();
    cache_blocks(4, MIB);
    stop_looking_at_locks();
    struct thread_cache *cache = own_cache();
    atomic_store(&cache->inside, 1);
    send(&errand, trim_when_cancelled, NULL);
    wait_a_little();
    atomic_store(&cache->inside, 0);
    wait_for(&errand);
    cr_expect(atomic_load(&done));
    cr_expect_not(short_lock_is_taken(&context_find(pool, context)->lock));
    cr_expect_eq(atomic_load(&heap()->closed), 0);
}

Test(thread_cache, so_does_one_that_waits_until_every_store_is_seen)
{
    struct errand errand;
    start();
    if (!pool->expedited || !can_be_forbidden())
        cr_skip_test("there is no membarrier here, or no seccomp");
    stop_looking_at_locks();
    send(&errand, trim_when_cancelled, &errand);
    wait_for(&errand);
    cr_expect(atomic_load(&done));
    cr_expect_not(short_lock_is_taken(&context_find(pool, context)->lock));
    cr_expect_eq(atomic_load(&heap()->closed), CLOSED_WEAKLY);
}

/* ---- frees that race ---- */

#define RACES 3000

static CUdeviceptr contested[RACES];
static atomic_uint arrived, freed;

static void free_every_one(void *unused)
{
    (void)unused;
    size_t bytes = MIB;
    allocate_and_free_one(&bytes);
    for (unsigned i = 0; i < RACES; i++) {
        atomic_fetch_add(&arrived, 1);
        while (atomic_load(&arrived) < 2 * (i + 1))
            sched_yield();
        if (pool_free(pool, contested[i]) == CUDA_SUCCESS)
            atomic_fetch_add(&freed, 1);
    }
}

Test(thread_cache, of_two_racing_frees_one_succeeds)
{
    struct errand errand;
    start();
    for (int i = 0; i < RACES; i++)
        contested[i] = allocate(4 * KIB);
    send(&errand, free_every_one, NULL);
    free_every_one(NULL);
    wait_for(&errand);
    cr_assert_eq(atomic_load(&freed), RACES);
    cr_assert_eq(counted().frees, RACES + 2);
    cr_assert_eq(heap_bytes(heap()).requested, 0);
}
