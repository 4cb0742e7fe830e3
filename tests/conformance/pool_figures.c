/*
 * Rows about the bytes that a memory pool of the device says are used: how much a request counts,
 * and what a plain cuMemFree of a pool's memory leaves in that figure.
 */
#include "pool_figures.h"

static cuuint64_t figure(CUmemoryPool pool, unsigned int which)
{
    cuuint64_t value = 0;
    SUCCEEDS(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static cuuint64_t used(CUmemoryPool pool)
{
    return figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

static void start_high_again(CUmemoryPool pool)
{
    cuuint64_t zero = 0;
    SUCCEEDS(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
}

static CUmemoryPool new_pool(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device}};
    CUmemoryPool pool = NULL;
    SUCCEEDS(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static CUdeviceptr take(CUmemoryPool pool, size_t bytes)
{
    CUdeviceptr block = 0;
    SUCCEEDS(cuMemAllocFromPoolAsync(&block, bytes, pool, gpu.a));
    return block;
}

static void give(CUdeviceptr block)
{
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
}

static void wait_and_trim(CUmemoryPool pool)
{
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuMemPoolTrimTo(pool, 0));
}

/* --- requests ----------------------------------------------------------------------------------*/

static void tell_request(CUmemoryPool pool, size_t bytes)
{
    cuuint64_t before = used(pool), with, most;
    CUdeviceptr block;
    start_high_again(pool);
    block = take(pool, bytes);
    with = used(pool) - before;
    give(block);
    most = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) - before;
    CHECK(with == bytes && most == bytes);
    if (has_failed())
        note("of a request of %zu %lld are used, %lld at most", bytes, (long long)with,
             (long long)most);
    CHECK(used(pool) == before);
}

/* A request that is served with what a larger one has left counts as one of a fresh block. */
static void tell_second_request(CUmemoryPool pool, size_t first, size_t second)
{
    cuuint64_t before = used(pool);
    CUdeviceptr block;
    give(take(pool, first));
    block = take(pool, second);
    known_fact((long long)(used(pool) - before), (long long)second,
               "used bytes of %zu after %zu were freed", second, first);
    give(block);
}

static void tell_sum(CUmemoryPool pool)
{
    CUdeviceptr blocks[3];
    cuuint64_t before = used(pool);
    for (size_t i = 0; i < 3; i++)
        blocks[i] = take(pool, 12 + 700 * i);
    known_fact((long long)(used(pool) - before), 2136,
               "used bytes of requests of 12, 712 and 1412");
    for (int i = 0; i < 3; i++)
        give(blocks[i]);
}

void used_bytes_are_what_was_asked_for(void)
{
    static const size_t sizes[] = {0,     1,       12,          512,         513,         1000,
                                   70000, 3 << 19, 2 * MIB + 1, 5 * MIB - 7, 40 * MIB + 7};
    CUmemoryPool pool = new_pool();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        tell_request(pool, sizes[i]);
    tell_second_request(pool, 1000, 12);
    tell_second_request(pool, 1024, 1000);
    tell_second_request(pool, 40 * MIB, 39 * MIB);
    tell_sum(pool);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemPoolDestroy(pool));
}

/* --- plain frees -------------------------------------------------------------------------------*/

/* What it said was used before. */
struct seen {
    CUmemoryPool pool;
    const char *name;
    cuuint64_t used;
};

static void expect_used(const struct seen *seen, long long bytes, const char *when)
{
    known_fact((long long)(used(seen->pool) - seen->used), bytes, "%s: used bytes %s", seen->name,
               when);
}

static void tell_one_free(const struct seen *seen)
{
    CUdeviceptr block = take(seen->pool, MIB + 12);
    expect_used(seen, 1048588, "with a block of 1 MiB and 12 B");
    SUCCEEDS(cuMemFree_v2(block));
    expect_used(seen, 1048588, "after its plain free");
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    expect_used(seen, 1048588, "after its plain free and a wait for its stream");
    wait_and_trim(seen->pool);
    expect_used(seen, 1048588, "after its plain free, a wait for the context and a trim");
}

static void tell_next_blocks(const struct seen *seen)
{
    CUdeviceptr block = take(seen->pool, MIB + 12);
    expect_used(seen, 2097176, "with the next block of that size");
    give(block);
    expect_used(seen, 1048588, "after the next block's free in its stream's order");
    wait_and_trim(seen->pool);
    expect_used(seen, 1048588, "after that, a wait and a trim");
    block = take(seen->pool, 100);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemFree_v2(block));
    wait_and_trim(seen->pool);
    expect_used(seen, 1048688, "after a plain free of 100 B besides, a wait and a trim");
    block = take(seen->pool, 100);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuMemFree_v2(block));
    wait_and_trim(seen->pool);
    expect_used(seen, 1048788, "after a second plain free of 100 B besides, a wait and a trim");
}

static void tell_the_most(const struct seen *seen)
{
    start_high_again(seen->pool);
    known_fact((long long)(figure(seen->pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) - seen->used), 1048788,
               "%s: the most used bytes, started again after plain frees", seen->name);
    give(take(seen->pool, 3 * MIB));
    known_fact((long long)(figure(seen->pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) - seen->used), 4194516,
               "%s: the most used bytes with 3 MiB after plain frees", seen->name);
    wait_and_trim(seen->pool);
}

/* Whether the memory can be had again, however it is counted. */
static void tell_memory(const struct seen *seen)
{
    size_t before, after;
    wait_and_trim(seen->pool);
    before = free_memory();
    for (int i = 0; i < 4; i++)
        SUCCEEDS(cuMemFree_v2(take(seen->pool, 64 * MIB)));
    wait_and_trim(seen->pool);
    after = free_memory();
    CHECK(after >= before);
    expect_used(seen, 269484244, "after four plain frees of 64 MiB besides, a wait and a trim");
}

static void tell_frees_beside_work(const struct seen *seen)
{
    CUdeviceptr block = take(seen->pool, 5 * MIB);
    spin(gpu.a, 20);
    SUCCEEDS(cuMemFree_v2(block));
    expect_used(seen, 274727124, "after a plain free of 5 MiB behind a kernel");
    wait_and_trim(seen->pool);
    expect_used(seen, 274727124, "after a plain free of 5 MiB behind a kernel, a wait and a trim");
}

static void tell_plain_frees(CUmemoryPool pool, const char *name)
{
    struct seen seen;
    wait_and_trim(pool);
    seen = (struct seen){pool, name, used(pool)};
    tell_one_free(&seen);
    tell_next_blocks(&seen);
    tell_the_most(&seen);
    tell_memory(&seen);
    tell_frees_beside_work(&seen);
}

void used_bytes_after_plain_frees(void)
{
    CUmemoryPool pool = new_pool();
    tell_plain_frees(pool, "a created pool");
    SUCCEEDS(cuMemPoolDestroy(pool));
}

void used_bytes_after_plain_frees_of_the_default_pool(void)
{
    CUmemoryPool pool = NULL;
    SUCCEEDS(cuDeviceGetDefaultMemPool(&pool, gpu.device));
    tell_plain_frees(pool, "the default pool");
}
