/*
 * The same as test_failing_memory.c for stream-ordered memory: the host's memory runs out at each
 * request in turn, and the driver answers, nothing of the device's memory is lost, and no event is
 * believed that could not be written down.
 */
#include "failing_memory.h"
#include "streams_fixture.h"

TestSuite(failing_stream_memory, .init = set_up_streams, .fini = tear_down, .timeout = 60);

/* More requests than anything here makes. */
#define MANY 1000

#define STANDARD ((CUmemoryPool)0x100)

/* Sizes: more than a shelf has room for at first. Readers: more than a block's record of them has.
 */
enum { BLOCKS = 24, READERS = 6 };

static CUmemoryPool own;
static CUcontext neighbour;
static CUstream theirs, readers[READERS];

/* Blocks whose free was refused: the program's still. */
static struct {
    CUdeviceptr address;
    CUstream stream;
} refused[64];
static unsigned refused_count;

/* As the hooks do: what the pool does not answer, the driver does. */
static CUresult take_slowly(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                            CUstream stream)
{
    CUresult result;
    if (pool_allocate_async(pool, address, bytes, memory_pool ? &memory_pool : NULL, stream,
                            &result))
        return result;
    return driver->cuMemAllocFromPoolAsync(address, bytes, memory_pool ? own : STANDARD, stream);
}

static CUresult try_to_take(CUstream stream, size_t bytes, CUmemoryPool memory_pool,
                            CUdeviceptr *address)
{
    return pool_allocate_async_at_once(pool, address, bytes, memory_pool, stream, take_slowly);
}

static CUdeviceptr take_anyhow(CUstream stream, size_t bytes, CUmemoryPool memory_pool)
{
    CUdeviceptr address = 0;
    cr_assert_eq(try_to_take(stream, bytes, memory_pool, &address), CUDA_SUCCESS);
    return address;
}

/* The driver of these tests knows no legacy stream. */
static CUresult free_in_driver(CUdeviceptr address, CUstream stream)
{
    return stream ? driver->cuMemFreeAsync(address, stream) : driver->cuMemFree_v2(address);
}

static CUresult free_slowly(CUdeviceptr address, CUstream stream)
{
    return pool_free_async(pool, free_in_driver, address, stream);
}

/* Only where it cannot be written down what the free has to wait for is it refused. */
static void free_anyhow(CUstream stream, CUdeviceptr address)
{
    CUresult result = pool_free_async_at_once(pool, address, stream, free_slowly);
    if (result == CUDA_SUCCESS)
        return;
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert(has_failed);
    refused[refused_count].address = address;
    refused[refused_count++].stream = stream;
}

static size_t size_of_block(unsigned i)
{
    return (i + 1) * 3 * MIB;
}

static void tell_uses_and_free(void)
{
    CUdeviceptr block = take_anyhow(one, MIB, NULL);
    uint64_t generation = pool_generation(pool, block);
    for (unsigned i = 0; generation && i < READERS; i++) {
        CUresult result = pool_record_use(pool, block, generation, readers[i], false);
        cr_assert(result == CUDA_SUCCESS || (has_failed && result == CUDA_ERROR_OUT_OF_MEMORY) ||
                  (has_failed && result == CUDA_ERROR_INVALID_HANDLE));
    }
    free_anyhow(one, block);
}

static void take_and_free(CUstream stream, CUstream freeing, CUmemoryPool memory_pool)
{
    CUdeviceptr blocks[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = take_anyhow(stream, size_of_block(i), memory_pool);
    fake_stream_works(stream);
    fake_stream_works(freeing);
    for (unsigned i = 0; i < BLOCKS; i++)
        free_anyhow(freeing, blocks[i]);
}

/* Where a stream has looked in vain, frees record events; and the driver is out of memory. */
static void pass_blocks_on(void)
{
    free_anyhow(other, take_anyhow(other, MIB, NULL));
    take_and_free(one, one, NULL);
    for (unsigned i = 0; i < 3; i++) {
        CUdeviceptr block = 0;
        fake_stream_refuse_memory(2);
        if (try_to_take(other, size_of_block(i), NULL, &block) == CUDA_SUCCESS)
            free_anyhow(other, block);
    }
    fake_stream_refuse_memory(0);
}

static void use_another_context(void)
{
    neighbour = another_context(0);
    theirs = fake_stream();
    take_and_free(theirs, theirs, NULL);
    take_and_free(NULL, NULL, NULL);
    end_context(neighbour);
    fake_set_current(context);
}

static void free_plainly(CUdeviceptr block)
{
    fake_launch(context);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
}

static void use_streams(void)
{
    CUstream short_lived = fake_stream();
    own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    take_and_free(one, one, NULL);
    take_and_free(one, other, own);
    tell_uses_and_free();
    pass_blocks_on();
    take_and_free(NULL, NULL, NULL);
    take_and_free(short_lived, short_lived, NULL);
    free_plainly(take_anyhow(short_lived, size_of_block(1), NULL));
    destroy_stream(short_lived);
    use_another_context();
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    pool_mempool_destroying(pool, own);
    pool_mempool_destroyed(pool, own, CUDA_SUCCESS);
}

static void free_what_was_refused(void)
{
    for (unsigned i = 0; i < refused_count; i++)
        cr_assert_eq(try_to_free_on(refused[i].stream, refused[i].address), CUDA_SUCCESS);
    refused_count = 0;
}

static void nothing_is_lost(long request)
{
    fake_stream_is_done(one);
    fake_stream_is_done(other);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    pool_trim(pool);
    struct stream_bytes left = stream_sum(pool, NULL);
    cr_expect_eq(left.live + left.cached + left.pending, 0, "request %ld", request);
    cr_expect_eq(fake_bytes_used(0), 0, "%lu bytes stay after request %ld", fake_bytes_used(0),
                 request);
    cr_expect_eq(reserved_bytes(), 0, "request %ld", request);
}

static void start_with_readers(void)
{
    start_streams();
    for (unsigned i = 0; i < READERS; i++)
        readers[i] = fake_stream();
}

static void run_out_everywhere(bool for_good)
{
    long tried = 0;
    for (has_failed = true; has_failed && tried < MANY; tried++) {
        set_up_streams();
        start_with_readers();
        memory_fails_after(tried, for_good);
        use_streams();
        memory_is_back();
        free_what_was_refused();
        use_streams();
        nothing_is_lost(tried);
        cr_assert_eq(fake_misuses(), 0, "%s, request %ld", fake_last_misuse(), tried);
    }
    cr_expect_gt(tried, 100, "it takes but %ld requests", tried);
    cr_expect_lt(tried, MANY);
}

Test(failing_stream_memory, one_request_fails)
{
    run_out_everywhere(false);
}

Test(failing_stream_memory, no_request_succeeds_any_more)
{
    run_out_everywhere(true);
}

Test(failing_stream_memory, a_pool_that_cannot_start_says_so)
{
    long tried = 0;
    for (has_failed = true; has_failed && tried < MANY; tried++) {
        memory_fails_after(tried, true);
        pool = pool_create(driver, &settings, &thread_functions);
        memory_is_back();
        cr_assert_eq(pool == NULL, has_failed, "request %ld", tried);
    }
    cr_expect_geq(tried, 4);
}

/* Else the use would be forgotten, and the block another's before it is over. */
Test(failing_stream_memory, a_use_that_cannot_be_written_down_is_refused)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    uint64_t generation = pool_generation(pool, block);
    fake_stream_works(one);
    cr_assert_eq(pool_record_use(pool, block, generation, other, false), CUDA_SUCCESS);
    fake_stream_works(other);
    memory_fails_after(0, true);
    cr_assert_eq(pool_record_use(pool, block, generation, one, true), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(try_to_free_on(one, block), CUDA_ERROR_OUT_OF_MEMORY);
    memory_is_back();
    cr_assert_eq(fake_stream_after(one, other), 0);
    free_on(one, block);
    cr_assert_eq(fake_stream_after(one, other), 1);
}
