/*
 * The driver's memory pools: what the program reads back, and what becomes of blocks.
 */
#include <pthread.h>
#include <unistd.h>

#include "core/stream_shelf.h"
#include "streams_fixture.h"

TestSuite(mempool, .init = set_up_streams, .fini = tear_down, .timeout = 20);

#define STANDARD ((CUmemoryPool)0x100)

static uint64_t read_back(CUmemoryPool memory_pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = *fake_mempool_attribute(memory_pool, attribute);
    pool_mempool_got(pool, memory_pool, attribute, &value);
    return value;
}

static void set_threshold(CUmemoryPool memory_pool, cuuint64_t value)
{
    pool_mempool_setting(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    *fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = value;
    pool_mempool_set(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
}

Test(mempool, the_default_pools_threshold_is_the_settings)
{
    start_streams();
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 512 * MIB);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

Test(mempool, unless_the_settings_leave_it_alone)
{
    settings.stream_ordered.driver_release_threshold.unlimited = true;
    start_streams();
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

Test(mempool, or_the_program_has_set_it)
{
    start_streams();
    set_threshold(STANDARD, 0);
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    set_threshold(STANDARD, 77);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
}

/* Captures forbid some calls, and nobody says which these are. */
Test(mempool, nothing_is_asked_in_a_capture_that_it_might_forbid)
{
    size_t left, total;
    start_streams();
    free_on(one, take_on(one, MIB));
    begin_capture(other);
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    pool_mempool_created(pool, fake_mempool(0), 0);
    end_capture(other);
    cr_assert_eq(fake_misuses(), 0);
}

Test(mempool, other_pools_keep_theirs)
{
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    cr_assert_eq(*fake_mempool_attribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

Test(mempool, used_bytes_are_the_programs)
{
    start_streams();
    CUdeviceptr block = take_on(one, 5000);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5120);
    free_on(one, block);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    take_on(one, 4700);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5120);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) += 7 * MIB;
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5120 + 7 * MIB);
}

Test(mempool, the_most_that_was_used_too)
{
    start_streams();
    CUdeviceptr a = take_on(one, MIB), b = take_on(one, MIB);
    free_on(one, a);
    free_on(one, b);
    b = take_on(one, 2 * MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 4 * MIB);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 2 * MIB);
    free_on(one, b);
    take_on(one, MIB);
    cuuint64_t zero = 0;
    pool_mempool_set(pool, STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB);
}

Test(mempool, a_trim_gives_back_what_is_over)
{
    start_streams();
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) = 32 * MIB;
    free_on(one, take_on(one, MIB));
    synchronise_stream(one);
    pool_mempool_trimming(pool, STANDARD, 32 * MIB);
    cr_assert_eq(bytes_of(one).cached, MIB);
    pool_mempool_trimming(pool, STANDARD, 0);
    cr_assert_eq(bytes_of(one).cached, 0);
}

Test(mempool, a_destroyed_pool_gets_its_blocks_back)
{
    CUdeviceptr live = 0, free = 0;
    CUresult result;
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    pool_allocate_async(pool, &live, MIB, &own, one, &result);
    pool_allocate_async(pool, &free, MIB, &own, one, &result);
    fake_stream_works(one);
    free_on(one, free);
    pool_mempool_destroying(pool, own);
    cr_assert_not(fake_is_allocated(free));
    cr_assert(fake_is_allocated(live));
    pool_mempool_destroyed(pool, own, CUDA_SUCCESS);
    free_on(one, live);
    cr_assert_not(fake_is_allocated(live));
}

Test(mempool, one_that_could_not_be_destroyed_goes_on)
{
    CUdeviceptr block = 0, again = 0;
    CUresult result;
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    pool_mempool_destroying(pool, own);
    pool_mempool_destroyed(pool, own, CUDA_ERROR_INVALID_VALUE);
    cr_assert(pool_allocate_async(pool, &block, MIB, &own, one, &result));
    free_on(one, block);
    cr_assert(pool_allocate_async(pool, &again, MIB, &own, one, &result));
    cr_assert_eq(again, block);
}

Test(mempool, the_current_pool_is_followed)
{
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    CUdeviceptr block = take_on(one, MIB);
    free_on(one, block);
    fake_mempool_set_current(0, own);
    pool_mempool_chosen(pool);
    cr_assert_neq(take_on(one, MIB), block);
}

Test(mempool, unknown_pools_are_not_served)
{
    CUdeviceptr block = 0;
    CUresult result;
    start_streams();
    CUmemoryPool unknown = fake_mempool(0);
    cr_assert_not(pool_allocate_async(pool, &block, MIB, &unknown, one, &result));
}

/* Another thread of the program's, just before or just after the pool's own call. */
static CUresult (*set_attribute)(CUmemoryPool, CUmemPool_attribute, void *);
static bool program_sets_after;

static CUresult overtaken(CUmemoryPool memory_pool, CUmemPool_attribute attribute, void *value)
{
    driver->cuMemPoolSetAttribute = set_attribute;
    if (program_sets_after)
        set_attribute(memory_pool, attribute, value);
    set_threshold(memory_pool, 77);
    return program_sets_after ? CUDA_SUCCESS : set_attribute(memory_pool, attribute, value);
}

static void expect_the_programs(bool after)
{
    start_streams();
    program_sets_after = after;
    set_attribute = driver->cuMemPoolSetAttribute;
    driver->cuMemPoolSetAttribute = overtaken;
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
}

Test(mempool, or_sets_it_just_before_the_settings_are)
{
    expect_the_programs(false);
}

Test(mempool, or_just_after)
{
    expect_the_programs(true);
}

/* Its call begins before the pool's own, and is over after it. */
static CUresult overtaking(CUmemoryPool memory_pool, CUmemPool_attribute attribute, void *value)
{
    cuuint64_t programs = 77;
    driver->cuMemPoolSetAttribute = set_attribute;
    pool_mempool_setting(pool, memory_pool, attribute);
    set_attribute(memory_pool, attribute, &programs);
    return set_attribute(memory_pool, attribute, value);
}

Test(mempool, or_both_do_at_once)
{
    cuuint64_t programs = 77;
    start_streams();
    set_attribute = driver->cuMemPoolSetAttribute;
    driver->cuMemPoolSetAttribute = overtaking;
    take_on(one, MIB);
    pool_mempool_set(pool, STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &programs);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
}

static void *destroy(void *memory_pool)
{
    pool_mempool_destroying(pool, *(CUmemoryPool *)memory_pool);
    return NULL;
}

/* The free has found the pool open, and is not in the shelf yet when the pool is destroyed. */
Test(mempool, what_is_just_being_freed_goes_back_with_its_pool)
{
    CUdeviceptr address = 0;
    CUresult result;
    pthread_t thread;
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    pool_allocate_async(pool, &address, MIB, &own, one, &result);
    free_on(one, address);
    struct stream *stream = stream_called(one);
    struct stream_block *block = stream_block_find(&pool->streams->blocks, address);
    short_lock_take(&stream->lock);
    stream_heap_detach(stream, block);
    cr_assert_eq(pthread_create(&thread, NULL, destroy, &own), 0);
    usleep(50000);
    stream_heap_attach(atomic_load(&block->shelf), block);
    short_lock_give(&stream->lock);
    pthread_join(thread, NULL);
    cr_assert_not(fake_is_allocated(address));
}

Test(mempool, a_default_pool_is_asked_for_once)
{
    start_streams();
    take_on(one, MIB);
    driver->cuDeviceGetDefaultMemPool = NULL;
    CUdeviceptr block = 0;
    CUresult result;
    CUmemoryPool unknown = fake_mempool(0);
    cr_assert_not(pool_allocate_async(pool, &block, MIB, &unknown, one, &result));
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

/* While captures go on, say. */
Test(mempool, what_the_driver_served_was_used_too)
{
    start_streams();
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH) = 100 * MIB;
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 100 * MIB);
    free_on(one, take_on(one, MIB));
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 99 * MIB);
}

/* ---- pools that come and go ---- */

static void create(CUmemoryPool memory_pool)
{
    pool_mempool_created(pool, memory_pool, 0);
}

static void let_go(CUmemoryPool memory_pool, CUresult answer)
{
    pool_mempool_destroying(pool, memory_pool);
    pool_mempool_destroyed(pool, memory_pool, answer);
}

static CUdeviceptr take_from(CUmemoryPool memory_pool)
{
    CUdeviceptr address = 0;
    CUresult result = CUDA_ERROR_UNKNOWN;
    if (pool_allocate_async_at_once(pool, &address, MIB, memory_pool, one))
        return address;
    bool served = pool_allocate_async(pool, &address, MIB, &memory_pool, one, &result);
    return served && result == CUDA_SUCCESS ? address : 0;
}

static unsigned count_records(void)
{
    unsigned count = 0;
    for (struct mempool *m = pool->streams->mempools; m; m = m->next)
        count++;
    return count;
}

static unsigned count_shelves(void)
{
    unsigned count = 0, recent = 0;
    struct stream *stream = stream_called(one);
    for (struct shelf *s = stream->shelves; s; s = s->next)
        count++;
    for (struct shelf *s = stream->recent_shelf; s; s = s->next_recent)
        recent++;
    cr_assert_eq(count, recent);
    return count;
}

Test(mempool, thousands_that_come_and_go_leave_nothing_behind)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    CUmemoryPool handles[2] = {fake_mempool(0), fake_mempool(0)};
    for (unsigned i = 0; i < 5000; i++) {
        CUmemoryPool memory_pool = handles[i % 2];
        *fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) = 0;
        *fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) = 0;
        create(memory_pool);
        CUdeviceptr block = take_from(memory_pool);
        cr_assert_neq(block, 0, "pool %u is not served", i);
        free_on(one, block);
        cr_assert_eq(take_from(memory_pool), block);
        if (i == 0)
            free_on(one, take_from(memory_pool));
        cr_assert_eq(read_back(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), i ? MIB : 2 * MIB);
        free_on(one, block);
        let_go(memory_pool, CUDA_SUCCESS);
        cr_assert_eq(take_from(memory_pool), 0);
    }
    cr_assert_leq(count_records(), 3);
    cr_assert_leq(count_shelves(), 2);
    cr_assert_eq(stream_release_sum(pool, NULL).pending + stream_release_sum(pool, NULL).cached,
                 MIB);
}

/* What the program holds of it, or has not been given back yet, is still that pool's. */
Test(mempool, but_not_while_any_of_its_memory_is_held)
{
    start_streams();
    CUmemoryPool first = fake_mempool(0), second = fake_mempool(0);
    create(first);
    CUdeviceptr held = take_from(first);
    let_go(first, CUDA_SUCCESS);
    create(second);
    CUdeviceptr block = take_from(second);
    free_on(one, held);
    cr_assert_neq(take_from(second), held);
    free_on(one, block);
    cr_assert_eq(take_from(second), block);
    cr_assert_eq(count_records(), 2);
    create(first);
    cr_assert_neq(take_from(first), 0);
    cr_assert_eq(count_records(), 2);
}

Test(mempool, one_that_is_not_destroyed_after_all_is_served_again)
{
    start_streams();
    CUmemoryPool memory_pool = fake_mempool(0);
    create(memory_pool);
    take_from(memory_pool);
    let_go(memory_pool, CUDA_SUCCESS);
    create(memory_pool);
    let_go(memory_pool, CUDA_ERROR_INVALID_VALUE);
    cr_assert_neq(take_from(memory_pool), 0);
    cr_assert_eq(count_records(), 2);
}

Test(mempool, the_one_that_was_used_last_is_found_first)
{
    CUmemoryPool pools[8];
    CUdeviceptr blocks[8];
    start_streams();
    for (unsigned i = 0; i < 8; i++) {
        create(pools[i] = fake_mempool(0));
        free_on(one, blocks[i] = take_from(pools[i]));
    }
    for (unsigned i = 0; i < 8; i++) {
        cr_assert_eq(take_from(pools[i]), blocks[i]);
        cr_assert_eq(stream_called(one)->recent_shelf->mempool->handle, pools[i]);
    }
    cr_assert_eq(count_shelves(), 8);
}
