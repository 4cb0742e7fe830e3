/*
 * How much of the device is free: what slow paths have counted and what caches hold, against a look
 * at every block.
 */
#include "pool_fixture.h"

#include <string.h>

#include "core/device_memory/free_pages.h"

#define PAGE (2 * MIB)

TestSuite(free_pages, .init = set_up, .fini = tear_down, .timeout = 60);

static struct heap *the_heap(void)
{
    return heap_of(context_find(pool, context));
}

static uint64_t counted_bytes(void)
{
    return free_pages_bytes(pool, context_find(pool, context)->device);
}

/* ---- a look at every block ---- */

#define MOST_RECORDS 60000

static const struct block *records[MOST_RECORDS];
static unsigned record_count;

static void collect_record(struct block *block, void *unused)
{
    (void)unused;
    cr_assert_lt(record_count, MOST_RECORDS);
    records[record_count++] = block;
}

static int by_address(const void *one, const void *other)
{
    CUdeviceptr a = block_address(*(const struct block *const *)one);
    CUdeviceptr b = block_address(*(const struct block *const *)other);
    return (a > b) - (a < b);
}

static bool may_be_had(const struct block *block)
{
    enum block_state state = block_state(block);
    return state == BLOCK_CACHED || state == BLOCK_PENDING || state == BLOCK_CLEAN ||
           state == BLOCK_SPARE;
}

/* Of blocks of less than a page from this one on that lie in one page: its bytes if all are free.
 */
static uint64_t bytes_of_page(unsigned *i)
{
    CUdeviceptr page = block_address(records[*i]) / PAGE;
    bool all_free = true;
    for (; *i < record_count && block_address(records[*i]) / PAGE == page &&
           !block_is_part(records[*i]);
         ++*i)
        all_free = all_free && may_be_had(records[*i]);
    --*i;
    return all_free ? PAGE : 0;
}

/* Whole pages in a row of free parts. */
static uint64_t bytes_of_run(CUdeviceptr begin, CUdeviceptr end)
{
    CUdeviceptr first = (begin + PAGE - 1) / PAGE, last = end / PAGE;
    return last > first ? (last - first) * PAGE : 0;
}

static uint64_t bytes_of_all_blocks(void)
{
    uint64_t bytes = 0;
    CUdeviceptr run = 0, run_end = 0;
    record_count = 0;
    block_records_visit(&the_heap()->records, collect_record, NULL);
    qsort(records, record_count, sizeof records[0], by_address);
    for (unsigned i = 0; i < record_count; i++) {
        const struct block *block = records[i];
        CUdeviceptr address = block_address(block);
        if (!block_is_part(block) && block->bytes < PAGE) {
            bytes += bytes_of_page(&i);
        } else if (!block_is_part(block)) {
            bytes += may_be_had(block) ? (block->bytes + PAGE - 1) / PAGE * PAGE : 0;
        } else if (may_be_had(block)) {
            bytes += address == run_end ? 0 : bytes_of_run(run, run_end);
            run = address == run_end ? run : address;
            run_end = address + block->bytes;
        }
    }
    return bytes + bytes_of_run(run, run_end);
}

/* ---- programs ---- */

/* The driver's way: blocks of less than a page share one, others begin with one. */
static CUdeviceptr next_small = 1000 * PAGE, next_large = UINT64_C(1000000) * PAGE;

static CUdeviceptr place_in_page(size_t bytes)
{
    if (next_small / PAGE != (next_small + bytes - 1) / PAGE)
        next_small = (next_small + PAGE - 1) / PAGE * PAGE;
    fake_next_address(next_small);
    CUdeviceptr block = allocate(bytes);
    if (block == next_small)
        next_small += (bytes + bytes / 4 + 1023) / 1024 * 1024;
    return block;
}

static CUdeviceptr place_in_pages(size_t bytes)
{
    fake_next_address(next_large);
    CUdeviceptr block = allocate(bytes);
    /* A segment may be larger than what is asked for. */
    if (block / PAGE == next_large / PAGE)
        next_large += 20 * PAGE;
    return block;
}

static CUdeviceptr place(size_t bytes)
{
    bool alone = settings.device.buckets.policy != BUCKETS_SPLIT;
    return bytes < PAGE && alone ? place_in_page(bytes) : place_in_pages(bytes);
}

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)random_state * bound >> 32);
}

/* From 512 bytes to 4 MiB, small ones as often as large ones; multiples of what the device gives.
 */
static size_t random_size(void)
{
    return (size_t)(512 + 64 * random_below(8)) << random_below(14);
}

#define HELD  200
#define STEPS 6000

static CUdeviceptr held[HELD];

static void random_step(void)
{
    unsigned i = random_below(HELD), what = random_below(1000);
    if (what == 0) {
        fake_finish(context);
        cr_assert_eq(synchronise(), CUDA_SUCCESS);
    } else if (what == 1) {
        pool_trim(pool);
    } else if (held[i]) {
        release(held[i]);
        held[i] = 0;
    } else {
        held[i] = place(random_size());
    }
}

static void run_at_random(uint32_t seed)
{
    random_state = seed;
    for (unsigned step = 0; step < STEPS; step++) {
        random_step();
        cr_assert_eq(counted_bytes(), bytes_of_all_blocks(), "seed %u, step %u", seed, step);
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i])
            release(held[i]);
    cr_assert_eq(counted_bytes(), bytes_of_all_blocks());
}

Test(free_pages, what_is_counted_is_what_a_look_at_every_block_finds)
{
    start();
    run_at_random(1);
}

Test(free_pages, also_where_the_reserve_is_small_and_blocks_go_back)
{
    settings.device.caps.reserve_ratio = 100;
    settings.device.growth_budget.bytes = 4 * MIB;
    start();
    run_at_random(2);
}

Test(free_pages, also_of_segments)
{
    settings.device.buckets.policy = BUCKETS_SPLIT;
    start();
    run_at_random(3);
}

Test(free_pages, also_of_the_next_context_that_has_the_same_addresses)
{
    settings.device.buckets.policy = BUCKETS_SPLIT;
    start();
    for (uint32_t seed = 4; seed < 7; seed++) {
        next_small = 1000 * PAGE;
        next_large = UINT64_C(1000000) * PAGE;
        run_at_random(seed);
        held[0] = place(MIB);
        end_context(context);
        memset(held, 0, sizeof held);
        context = another_context(0);
        cr_assert_eq(counted_bytes(), 0);
    }
}

/* ---- caches ---- */

static atomic_bool is_done, may_end;

/* Holds and caches blocks of pages that this thread has to itself, and of others. */
static void hold_and_cache(void *unused)
{
    (void)unused;
    CUdeviceptr blocks[64];
    for (unsigned i = 0; i < 64; i++)
        blocks[i] = place(64 * KIB);
    for (unsigned i = 0; i < 64; i++)
        if (i >= 32 || i % 2)
            release(blocks[i]);
    atomic_store(&is_done, true);
    while (!atomic_load(&may_end))
        let_time_pass();
}

Test(free_pages, what_other_threads_cache_is_looked_at)
{
    struct errand other;
    start();
    place(64 * KIB);
    uint64_t before = counted_bytes();
    send(&other, hold_and_cache, NULL);
    while (!atomic_load(&is_done))
        let_time_pass();
    cr_assert_eq(counted_bytes(), bytes_of_all_blocks());
    cr_assert_gt(counted_bytes(), before);
    atomic_store(&may_end, true);
    wait_for(&other);
    cr_assert_eq(counted_bytes(), bytes_of_all_blocks());
}

static uint64_t small_blocks_cached(void)
{
    uint64_t cached = 0;
    record_count = 0;
    block_records_visit(&the_heap()->records, collect_record, NULL);
    for (unsigned i = 0; i < record_count; i++)
        cached += records[i]->bytes < PAGE && block_state(records[i]) == BLOCK_CACHED;
    return cached;
}

#define SIZES     32
#define OF_A_SIZE 200

/* More than are looked at: the older ones go to the heap's lists, and are counted there. */
Test(free_pages, caches_with_many_small_blocks_are_thinned_out)
{
    static CUdeviceptr blocks[SIZES * OF_A_SIZE];
    start();
    for (unsigned i = 0; i < SIZES * OF_A_SIZE; i++)
        blocks[i] = place((size_t)(4096 + 512 * (i % 8)) << i % SIZES / 8);
    for (unsigned i = 0; i < SIZES * OF_A_SIZE; i++)
        if (i % 100)
            release(blocks[i]);
    cr_assert_gt(small_blocks_cached(), 2 * FREE_PAGES_LOOKS);
    cr_assert_eq(counted_bytes(), bytes_of_all_blocks());
    cr_assert_leq(small_blocks_cached(), FREE_PAGES_LOOKS);
    for (unsigned i = 0; i < SIZES * OF_A_SIZE; i += 100)
        release(blocks[i]);
    cr_assert_eq(counted_bytes(), bytes_of_all_blocks());
}
