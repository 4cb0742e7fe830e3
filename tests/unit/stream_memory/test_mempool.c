/*
 * The driver's memory pools: what the program reads back, and what becomes of blocks.
 */
#include <pthread.h>
#include <unistd.h>

#include "core/stream_memory/mempool_calls.h"
#include "core/stream_memory/stream_shelf.h"
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

/* What it keeps would be beyond the limit, and nobody's. */
Test(mempool, is_left_as_it_is_where_there_is_a_limit)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 64 * MIB};
    start_streams();
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
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
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5000);
    free_on(one, block);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    take_on(one, 4700);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4700);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) += 7 * MIB;
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4700 + 7 * MIB);
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

/* ---- what is on its way between the driver and a list ---- */

static struct driver below;
static uint64_t most_told;

static void look(void)
{
    uint64_t told = read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    most_told = told > most_told ? told : most_told;
}

static CUresult give_and_look(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                              CUstream stream)
{
    CUresult result = below.cuMemAllocFromPoolAsync(address, bytes, memory_pool, stream);
    look();
    return result;
}

/* The driver counts the block until it has it. */
static CUresult look_and_have_back(CUdeviceptr address, CUstream stream)
{
    look();
    CUresult result = below.cuMemFreeAsync(address, stream);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) = 0;
    look();
    return result;
}

static void look_in_calls(void)
{
    below = *driver;
    most_told = 0;
    driver->cuMemAllocFromPoolAsync = give_and_look;
    driver->cuMemFreeAsync = look_and_have_back;
}

Test(mempool, what_the_driver_is_just_giving_is_not_used_yet)
{
    start_streams();
    take_on(one, 5000);
    look_in_calls();
    take_on(one, 700000);
    cr_assert_eq(most_told, 5000);
    look();
    cr_assert_eq(most_told, 705000);
}

Test(mempool, nor_is_what_it_is_just_having_back)
{
    start_streams();
    free_on(one, take_on(one, 700000));
    synchronise_stream(one);
    look_in_calls();
    pool_trim(pool);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(most_told, 0);
}

Test(mempool, also_where_it_has_it_back_in_the_programs_free)
{
    settings.stream_ordered.caps.blocks_per_bucket = 0;
    start_streams();
    CUdeviceptr block = take_on(one, 700000);
    look_in_calls();
    free_on(one, block);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(most_told, 0);
}

static uint64_t used(void)
{
    return read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

static uint64_t most_used_anew(void)
{
    cuuint64_t zero = 0;
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH) =
        *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    pool_mempool_set(pool, STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    return read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
}

/* The driver begins anew with a block that is gone when the pool hears of it. */
Test(mempool, a_block_that_goes_while_the_most_begins_anew_was_ours)
{
    cuuint64_t zero = 0;
    start_streams();
    CUdeviceptr block = take_on(one, 700000);
    pool_mempool_setting(pool, STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH) =
        *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    free_on(one, block);
    fake_finish(context);
    synchronise();
    pool_trim(pool);
    cr_assert_not(fake_is_allocated(block));
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) = 0;
    pool_mempool_set(pool, STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
}

/* By the driver: all of the block stays in its count. */
Test(mempool, what_the_drivers_plain_free_has_freed_stays_used)
{
    start_streams();
    CUdeviceptr block = take_on(one, 700000);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(used(), 700000);
    cr_assert_eq(most_used_anew(), 700000);
    take_on(one, 5000);
    cr_assert_eq(used(), 705000);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 705000);
}

/* Other streams' blocks count besides. */
Test(mempool, also_in_the_most_that_another_stream_has)
{
    start_streams();
    free_on(one, take_on(one, 3 * MIB));
    cr_assert_eq(pool_free(pool, take_on(other, 700000)), CUDA_SUCCESS);
    cr_assert_eq(most_used_anew(), 700000);
    free_on(one, take_on(one, 3 * MIB));
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * MIB + 700000);
}

/* The block stays with the pool, and serves again. */
Test(mempool, and_so_does_what_a_plain_free_has_kept)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, 700000);
    cr_assert_eq(take_on(one, 700000), block);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    cr_assert(fake_is_allocated(block));
    cr_assert_eq(used(), 700000);
    cr_assert_eq(most_used_anew(), 700000);
    take_on(one, 5000);
    cr_assert_eq(used(), 705000);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 705000);
}

Test(mempool, also_once_the_driver_has_had_it_back)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, 700000);
    cr_assert_eq(take_on(one, 700000), block);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    fake_finish(context);
    synchronise();
    look_in_calls();
    pool_trim(pool);
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(used(), 700000);
    cr_assert_eq(most_used_anew(), 700000);
}

Test(mempool, but_not_where_it_has_failed)
{
    start_streams();
    CUdeviceptr block = take_on(one, 700000);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_UNKNOWN, 1);
    cr_assert_neq(pool_free(pool, block), CUDA_SUCCESS);
    cr_assert_eq(used(), 700000);
    free_on(one, block);
    cr_assert_eq(used(), 0);
}

static CUresult refuse(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                       CUstream stream)
{
    (void)address, (void)bytes, (void)memory_pool, (void)stream;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What captures have kept from us, for instance. */
Test(mempool, a_refusal_hides_nothing_that_is_not_ours)
{
    CUdeviceptr none;
    CUresult result;
    start_streams();
    take_on(one, 5000);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) += 7 * MIB;
    driver->cuMemAllocFromPoolAsync = refuse;
    cr_assert(pool_allocate_async(pool, &none, MIB, NULL, one, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5000 + 7 * MIB);
}

static unsigned asked;

/* The driver has had a block back, and nobody has counted it yet. */
static CUresult answer_as_one_goes(CUmemoryPool memory_pool, CUmemPool_attribute attribute,
                                   void *value)
{
    CUresult result = below.cuMemPoolGetAttribute(memory_pool, attribute, value);
    if (++asked == 1)
        *(cuuint64_t *)value -= 3 * MIB;
    if (asked == 2)
        mempool_move_end(streams_of(pool));
    return result;
}

Test(mempool, while_a_block_goes_the_driver_is_asked_again)
{
    start_streams();
    take_on(one, 5000);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) += 7 * MIB;
    below = *driver;
    driver->cuMemPoolGetAttribute = answer_as_one_goes;
    mempool_move_begin(streams_of(pool));
    asked = 0;
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5000 + 7 * MIB);
    cr_assert_eq(asked, 3);
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

static CUmemoryPool asked_about;
static pthread_t destroyer;
static atomic_bool is_destroyed;

static void *destroy_it(void *unused)
{
    (void)unused;
    pool_mempool_destroying(pool, asked_about);
    atomic_store(&is_destroyed, true);
    return NULL;
}

/* Another thread destroys the pool that this one asks about. */
static CUresult answer_while_it_is_destroyed(CUmemoryPool memory_pool,
                                             CUmemPool_attribute attribute, void *value)
{
    if (memory_pool == asked_about && !destroyer) {
        const struct mempool *known = mempool_find_known(pool, memory_pool);
        cr_assert_eq(pthread_create(&destroyer, NULL, destroy_it, NULL), 0);
        while (mempool_is_open(known))
            sched_yield();
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        cr_expect_not(atomic_load(&is_destroyed));
    }
    return below.cuMemPoolGetAttribute(memory_pool, attribute, value);
}

Test(mempool, one_that_is_asked_about_is_destroyed_afterwards)
{
    CUdeviceptr block = 0;
    CUresult result;
    start_streams();
    asked_about = fake_mempool(0);
    pool_mempool_created(pool, asked_about, 0);
    pool_allocate_async(pool, &block, MIB, &asked_about, one, &result);
    free_on(one, block);
    below = *driver;
    driver->cuMemPoolGetAttribute = answer_while_it_is_destroyed;
    mempool_unused(pool, context_find(pool, context)->device);
    cr_assert(destroyer);
    cr_assert_eq(pthread_join(destroyer, NULL), 0);
    cr_assert(atomic_load(&is_destroyed));
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

/* What the driver keeps beyond a limit is counted by nobody. */
Test(mempool, keeps_nothing_of_ours_once_a_tool_has_set_a_limit)
{
    start_streams();
    take_on(one, MIB);
    mempool_trim_ours(pool);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 512 * MIB);
    atomic_store(&device()->limits[BOARD_LIMIT_OF_PROCESS], 64 * MIB);
    mempool_trim_ours(pool);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    set_threshold(STANDARD, 77);
    mempool_trim_ours(pool);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
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
    struct stream_block *block = stream_block_find(&streams_of(pool)->blocks, address);
    lock_take(&stream->lock, LOCK_STREAM);
    shelf_detach(stream, block);
    cr_assert_eq(pthread_create(&thread, NULL, destroy, &own), 0);
    usleep(50000);
    shelf_attach(pool, atomic_load(&block->shelf), block);
    lock_give(&stream->lock);
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

static void freed_outside(CUmemoryPool memory_pool, CUresult answer)
{
    pool_mempool_destroying(pool, memory_pool);
    pool_mempool_destroyed(pool, memory_pool, answer);
}

static CUdeviceptr take_from(CUmemoryPool memory_pool)
{
    CUdeviceptr address = 0;
    CUresult result = CUDA_ERROR_UNKNOWN;
    if (take_at_once(&address, MIB, memory_pool, one))
        return address;
    bool served = pool_allocate_async(pool, &address, MIB, &memory_pool, one, &result);
    return served && result == CUDA_SUCCESS ? address : 0;
}

static unsigned count_records(void)
{
    unsigned count = 0;
    for (struct mempool *m = streams_of(pool)->mempools; m; m = m->next)
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
        freed_outside(memory_pool, CUDA_SUCCESS);
        cr_assert_eq(take_from(memory_pool), 0);
    }
    cr_assert_leq(count_records(), 3);
    cr_assert_leq(count_shelves(), 2);
    cr_assert_eq(stream_sum(pool, NULL).pending + stream_sum(pool, NULL).cached, MIB);
}

/* What the program holds of it, or has not been given back yet, is still that pool's. */
Test(mempool, but_not_while_any_of_its_memory_is_held)
{
    start_streams();
    CUmemoryPool first = fake_mempool(0), second = fake_mempool(0);
    create(first);
    CUdeviceptr held = take_from(first);
    freed_outside(first, CUDA_SUCCESS);
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
    freed_outside(memory_pool, CUDA_SUCCESS);
    create(memory_pool);
    freed_outside(memory_pool, CUDA_ERROR_INVALID_VALUE);
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

/* ---- drivers that do not answer, and threads that are faster ---- */

Test(mempool, where_the_driver_tells_nothing_nothing_is_corrected)
{
    driver->cuMemPoolGetAttribute = NULL;
    start_streams();
    free_on(one, take_on(one, MIB));
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    cr_assert_eq(mempool_unused(pool, device()), 0);
    synchronise_stream(one);
    pool_mempool_trimming(pool, STANDARD, 0);
    cr_assert_eq(bytes_of(one).cached, MIB);
}

Test(mempool, a_threshold_that_is_there_is_left_alone)
{
    start_streams();
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = 5;
    take_on(one, MIB);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 5);
}

static CUresult refuse_attribute(CUmemoryPool memory_pool, CUmemPool_attribute attribute,
                                 void *value)
{
    (void)memory_pool;
    (void)attribute;
    (void)value;
    return CUDA_ERROR_INVALID_VALUE;
}

Test(mempool, one_that_cannot_be_set_is_not_ours)
{
    driver->cuMemPoolSetAttribute = refuse_attribute;
    start_streams();
    take_on(one, MIB);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = 5;
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 5);
}

Test(mempool, what_a_pool_was_made_with_holds)
{
    CUdeviceptr block = 0, another = 0;
    CUresult result;
    start_streams();
    for (int allowed = 0; allowed <= 1; allowed++) {
        CUmemoryPool own = fake_mempool(0);
        *fake_mempool_attribute(own, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) = (uint64_t)allowed;
        pool_mempool_created(pool, own, 0);
        pool_allocate_async(pool, &block, MIB, &own, one, &result);
        stream_called(one)->fences_requested = 1;
        fake_stream_works(one);
        free_on(one, block);
        fake_stream_is_done(one);
        cr_assert(pool_allocate_async(pool, &another, MIB, &own, other, &result));
        cr_assert_eq(another == block, allowed);
    }
}

static CUresult no_pool(CUmemoryPool *memory_pool, CUdevice unused)
{
    (void)memory_pool;
    (void)unused;
    return CUDA_ERROR_INVALID_DEVICE;
}

static void expect_the_driver(void)
{
    CUdeviceptr address;
    CUresult result;
    cr_assert_not(pool_allocate_async(pool, &address, MIB, NULL, one, &result));
}

/* With the driver's function failing, and with it missing. */
static void expect_the_driver_without(CUresult (**function)(CUmemoryPool *, CUdevice))
{
    CUresult (*get)(CUmemoryPool *, CUdevice) = *function;
    *function = no_pool;
    start_streams();
    expect_the_driver();
    *function = NULL;
    expect_the_driver();
    *function = get;
    take_on(one, MIB);
}

Test(mempool, where_the_driver_names_no_pool_it_answers_itself)
{
    expect_the_driver_without(&driver->cuDeviceGetMemPool);
}

Test(mempool, nor_where_it_names_no_default_one)
{
    expect_the_driver_without(&driver->cuDeviceGetDefaultMemPool);
}

/* Chosen by another thread while the pool asks which one it is. */
static CUmemoryPool chosen;
static CUresult (*get_current)(CUmemoryPool *, CUdevice);

static CUresult get_as_another_is_chosen(CUmemoryPool *memory_pool, CUdevice ordinal)
{
    CUresult result = get_current(memory_pool, ordinal);
    driver->cuDeviceGetMemPool = get_current;
    fake_mempool_set_current(ordinal, chosen);
    pool_mempool_chosen(pool);
    return result;
}

Test(mempool, one_that_is_no_longer_current_serves_nothing)
{
    start_streams();
    chosen = fake_mempool(0);
    create(chosen);
    get_current = driver->cuDeviceGetMemPool;
    driver->cuDeviceGetMemPool = get_as_another_is_chosen;
    expect_the_driver();
    CUdeviceptr block = take_on(one, MIB);
    cr_assert_eq(stream_called(one)->recent_shelf->mempool->handle, chosen);
    free_on(one, block);
}

static CUresult no_such_device(size_t *bytes, CUdevice device)
{
    (void)bytes;
    (void)device;
    return CUDA_ERROR_INVALID_DEVICE;
}

Test(mempool, of_unknown_pools_and_devices_nothing_is_known)
{
    cuuint64_t value = 77;
    start_streams();
    take_on(one, MIB);
    CUmemoryPool unknown = fake_mempool(0);
    driver->cuDeviceTotalMem_v2 = no_such_device;
    pool_mempool_created(pool, unknown, 1);
    cr_assert_eq(count_records(), 1);
    pool_mempool_setting(pool, unknown, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    pool_mempool_set(pool, unknown, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    pool_mempool_got(pool, unknown, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    cr_assert_eq(value, 77);
    pool_mempool_trimming(pool, unknown, 0);
    freed_outside(unknown, CUDA_SUCCESS);
    cr_assert_eq(count_records(), 1);
    /* One of the attributes that nobody can set. */
    pool_mempool_set(pool, STANDARD, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB);
}

/* Default pools are there for good. */
Test(mempool, a_default_pool_is_not_destroyed)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    free_on(one, block);
    freed_outside(STANDARD, CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(take_on(one, MIB), block);
}

/* A thread that the driver has called back out of a call of ours may hold what giving back takes.
 */
Test(mempool, one_that_is_destroyed_in_a_nested_call_gets_its_blocks_back_later)
{
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    create(own);
    CUdeviceptr block = take_from(own), held = take_from(own);
    free_on(one, block);
    fake_trace();
    driver_calls.depth++;
    freed_outside(own, CUDA_SUCCESS);
    driver_calls.depth--;
    cr_assert_str_eq(fake_trace(), "");
    cr_assert(fake_is_allocated(block));
    cr_assert_eq(take_from(own), 0);
    free_on(one, held);
    cr_assert_not(fake_is_allocated(held));
    synchronise_stream(one);
    pool_trim(pool);
    cr_assert_not(fake_is_allocated(block));
}

/* Nothing is trimmed; what is cached goes all the same. */
Test(mempool, a_driver_that_cannot_trim_is_not_asked_to)
{
    driver->cuMemPoolTrimTo = NULL;
    start_streams();
    free_on(one, take_on(one, MIB));
    synchronise_stream(one);
    cr_assert_eq(pool_trim(pool), MIB);
}

static CUresult (*get_attribute)(CUmemoryPool, CUmemPool_attribute, void *);

static CUresult get_as_another_comes_upon_it(CUmemoryPool memory_pool,
                                             CUmemPool_attribute attribute, void *value)
{
    driver->cuMemPoolGetAttribute = get_attribute;
    pool_mempool_setting(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    return get_attribute(memory_pool, attribute, value);
}

/* One of the two records goes to the next pool. */
Test(mempool, two_threads_that_come_upon_a_default_pool_know_one)
{
    start_streams();
    get_attribute = driver->cuMemPoolGetAttribute;
    driver->cuMemPoolGetAttribute = get_as_another_comes_upon_it;
    CUdeviceptr block = take_on(one, MIB);
    free_on(one, block);
    cr_assert_eq(take_from(STANDARD), block);
    cr_assert_eq(count_records(), 2);
    CUmemoryPool own = fake_mempool(0);
    create(own);
    cr_assert_neq(take_from(own), 0);
    cr_assert_eq(count_records(), 2);
}
