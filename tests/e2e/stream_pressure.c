/*
 * Stream-ordered memory where there is little of it: out of memory beside work that goes on, and a
 * reserve that must not grow. A case to a process, with the pool: the simulated driver alone keeps
 * what was freed in pieces of other sizes.
 */
#include <pthread.h>

#include "pool.h"

enum { WORDS = 1024 };

static struct kernels kernels;

static void use_and_free(CUstream stream, CUdeviceptr block)
{
    fill(&kernels, stream, block, WORDS, 1);
    CU(cuMemFreeAsync(block, stream));
}

static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
}

/* ---- out of memory ---- */

/* What is freed on the stream, and over, is to be had at once although a kernel goes on elsewhere.
 * The device has 1 GiB. */
static void freed_beside_a_kernel(CUstream stream, unsigned blocks, size_t bytes,
                                  CUdeviceptr (*take_it)(size_t bytes))
{
    CUdeviceptr freed[16];
    CUstream busy = new_stream();
    struct gate gate = close_gate(&kernels, busy);
    take_on(busy, 200 * MIB);
    for (unsigned i = 0; i < blocks; i++)
        freed[i] = take_on(stream, bytes);
    for (unsigned i = 0; i < blocks; i++)
        use_and_free(stream, freed[i]);
    sleep_ms(50);
    double start = now_ms();
    take_it(600 * MIB);
    CHECK(now_ms() - start < 3000);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static CUdeviceptr take_on_another(size_t bytes)
{
    return take_on(new_stream(), bytes);
}

static void out_of_memory_beside_a_kernel(void)
{
    furnish();
    freed_beside_a_kernel(new_stream(), 1, 500 * MIB, take_on_another);
}

static void out_of_memory_beside_a_kernel_after_small_frees(void)
{
    furnish();
    freed_beside_a_kernel(new_stream(), 15, 20 * MIB, take_on_another);
}

static void out_of_memory_beside_a_kernel_blocking(void)
{
    furnish();
    freed_beside_a_kernel(new_blocking_stream(), 1, 500 * MIB, take_on_another);
}

static void out_of_device_memory_beside_a_kernel(void)
{
    furnish();
    freed_beside_a_kernel(new_stream(), 1, 500 * MIB, take);
}

/* Also after a release of the primary context that ended nothing. */
static void out_of_memory_after_a_release(void)
{
    CUcontext context;
    furnish();
    CUstream stream = new_stream(), busy = new_stream();
    take_on(busy, 100 * MIB);
    CUdeviceptr block = take_on(stream, 500 * MIB);
    struct gate gate = close_gate(&kernels, busy);
    use_and_free(stream, block);
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    double start = now_ms();
    take_on(stream, 500 * MIB);
    CHECK(now_ms() - start < 3000);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* Too little was freed for an event of its own. The device has 64 MiB. */
static void out_of_memory_after_little_was_freed(void)
{
    furnish();
    CUstream stream = new_stream(), busy = new_stream(), other = new_stream();
    use_and_free(stream, take_on(stream, MIB / 2));
    sleep_ms(20);
    struct gate gate = close_gate(&kernels, busy);
    take_on(busy, 30 * MIB);
    take_on(busy, MIB);
    take_on(busy, MIB / 2);
    take_on(busy, 30 * MIB);
    double start = now_ms();
    take_on(other, MIB * 3 / 8);
    CHECK(now_ms() - start < 3000);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* On a stream that others order an allocation is no operation, also where there is no memory but
 * what the stream has freed: nobody who asks about it waits for the legacy stream's later work. The
 * device has 64 MiB. */
static void out_of_memory_puts_nothing_into_the_stream(void)
{
    furnish();
    CUstream stream = new_blocking_stream();
    take_on(stream, 30 * MIB);
    CUdeviceptr block = take_on(stream, 20 * MIB);
    spin(&kernels, stream, 200000000);
    use_and_free(stream, block);
    struct gate gate = close_gate(&kernels, NULL);
    alarm(4);
    take_on(stream, 24 * MIB);
    CU(cuStreamQuery(stream));
    CU(cuStreamSynchronize(stream));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* What the stream has freed is to be had as soon as it is over, of another size, too. The device
 * has 64 MiB. */
static void out_of_memory_behind_own_work_on(CUstream stream)
{
    take_on(stream, 30 * MIB);
    CUdeviceptr block = take_on(stream, 20 * MIB);
    spin(&kernels, stream, 200000000);
    use_and_free(stream, block);
    double start = now_ms();
    take_on(stream, 24 * MIB);
    CHECK(now_ms() - start < 3000);
    CU(cuCtxSynchronize());
}

static void out_of_memory_behind_own_work(void)
{
    furnish();
    out_of_memory_behind_own_work_on(new_blocking_stream());
}

static void out_of_memory_behind_the_legacy_streams_work(void)
{
    furnish();
    out_of_memory_behind_own_work_on(NULL);
}

/* With so many bytes pending on another stream there are fewer than these. */
static void is_told_at_once(size_t pending, size_t wanted)
{
    CUstream stream = new_stream(), other = new_stream();
    CUdeviceptr block = take_on(stream, pending);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    alarm(6);
    double start = now_ms();
    for (int i = 0; i < 10; i++)
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&block, wanted, other));
    CHECK(now_ms() - start < 2000);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* What is pending elsewhere is not waited for: whoever tries how much there is has his answer at
 * once. */
static void out_of_memory_is_told_at_once(void)
{
    size_t left, total;
    furnish();
    CU(cuMemGetInfo_v2(&left, &total));
    is_told_at_once(total / 8, total / 16 * 15);
}

/* Nor for other calls, also where it would be enough in sum. */
static void in_order_is_not_waited_for(void)
{
    size_t left, total;
    furnish();
    CU(cuMemGetInfo_v2(&left, &total));
    CUstream stream = new_stream();
    CUdeviceptr blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = take_on(stream, total / 64);
    struct gate gate = close_gate(&kernels, stream);
    for (int i = 0; i < 8; i++)
        CU(cuMemFreeAsync(blocks[i], stream));
    alarm(6);
    double start = now_ms();
    for (int i = 0; i < 10; i++)
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&blocks[0], left / 16 * 15));
    CHECK(now_ms() - start < 2000);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* Nor is it at the hard limit: here 64 MiB. */
static void the_limit_is_told_at_once(void)
{
    furnish();
    is_told_at_once(16 * MIB, 60 * MIB);
}

/* Where its size is the very one, it is still in use. */
static void at_the_limit_pending_memory_is_in_use(void)
{
    furnish();
    is_told_at_once(40 * MIB, 40 * MIB);
}

/* What many streams have freed, and is over, is to be had although they go on with other work. The
 * device has 1 GiB. */
static void out_of_memory_beside_later_work_of_many(void)
{
    enum { STREAMS = 16 };
    furnish();
    CUstream streams[STREAMS], other = new_stream();
    CUdeviceptr blocks[STREAMS];
    struct gate gates[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = new_stream();
        blocks[i] = take_on(streams[i], 6 * MIB);
    }
    for (int i = 0; i < STREAMS; i++)
        CU(cuMemFreeAsync(blocks[i], streams[i]));
    sleep_ms(30);
    for (int i = 0; i < STREAMS; i++)
        gates[i] = close_gate(&kernels, streams[i]);
    double start = now_ms();
    take_on(other, 940 * MIB);
    CHECK(now_ms() - start < 3000);
    for (int i = 0; i < STREAMS; i++)
        open_gate(gates[i]);
    CU(cuCtxSynchronize());
}

/* What the program has freed is free, whichever memory pool of its it is from, and what is left of
 * the driver's chunk. */
static void freed_memory_is_free(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool memory_pool;
    CUdeviceptr block;
    size_t before, after, total;
    furnish();
    CUstream stream = new_stream();
    CU(cuMemPoolCreate(&memory_pool, &properties));
    CU(cuMemGetInfo_v2(&before, &total));
    CU(cuMemAllocFromPoolAsync(&block, 4 * MIB, memory_pool, stream));
    use_and_free(stream, block);
    CU(cuCtxSynchronize());
    CU(cuMemGetInfo_v2(&after, &total));
    CHECK(after + MIB >= before);
    CHECK(after <= before);
}

/* ---- the reserve; the settings keep to the peak and 128 MiB ---- */

static size_t peak;

static void look_at_reserve(void)
{
    struct cudapool_bytes bytes = pool_bytes();
    uint64_t reserve = bytes.live + bytes.cached + bytes.pending;
    if (reserve > peak + peak / 2 + 128 * MIB)
        FAIL("%llu MiB are reserved, at a peak of %zu MiB", (unsigned long long)reserve / MIB,
             peak / MIB);
}

/* Only a copy tells the program that the stream has got so far. */
static void sizes_come_and_go_on(CUstream stream)
{
    unsigned word;
    furnish();
    CUdeviceptr kept = take_on(stream, 4096);
    peak = 200 * MIB;
    for (unsigned i = 1; i <= 400; i++) {
        use_and_free(stream, take_on(stream, (size_t)(8 + i % 97 * 2) * MIB));
        CU(cuMemcpyDtoH_v2(&word, kept, sizeof word));
        look_at_reserve();
    }
}

static void sizes_come_and_go(void)
{
    furnish();
    sizes_come_and_go_on(new_stream());
}

static void sizes_come_and_go_on_a_blocking_stream(void)
{
    furnish();
    sizes_come_and_go_on(new_blocking_stream());
}

static void sizes_come_and_go_on_the_legacy_stream(void)
{
    sizes_come_and_go_on(NULL);
}

/* The host runs ahead: nothing is over. What is pending goes back in the stream's order. */
static void sizes_come_and_go_unwaited(void)
{
    furnish();
    CUstream stream = new_stream();
    struct gate gate = close_gate(&kernels, stream);
    peak = 40 * MIB;
    for (size_t i = 1; i <= 40; i++) {
        CU(cuMemFreeAsync(take_on(stream, i * MIB), stream));
        look_at_reserve();
    }
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static CUcontext context_of_threads;

static void *use_own_stream_once(void *unused)
{
    CU(cuCtxSetCurrent(context_of_threads));
    use_and_free(CU_STREAM_PER_THREAD, take_on(CU_STREAM_PER_THREAD, 64 * MIB));
    return unused;
}

static void threads_come_and_go(void)
{
    furnish();
    CU(cuCtxGetCurrent(&context_of_threads));
    peak = 64 * MIB;
    for (int i = 0; i < 60; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, use_own_stream_once, NULL) == 0);
        pthread_join(thread, NULL);
        sleep_ms(1);
        look_at_reserve();
    }
}

static void many_streams_once_each(void)
{
    furnish();
    peak = 64 * MIB;
    for (int i = 0; i < 60; i++) {
        CUstream stream = new_stream();
        use_and_free(stream, take_on(stream, 64 * MIB));
        sleep_ms(1);
        look_at_reserve();
    }
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(out_of_memory_beside_a_kernel),
        CASE(out_of_memory_beside_a_kernel_after_small_frees),
        CASE(out_of_memory_beside_a_kernel_blocking),
        CASE(out_of_device_memory_beside_a_kernel),
        CASE(out_of_memory_after_a_release),
        CASE(out_of_memory_after_little_was_freed),
        CASE(out_of_memory_puts_nothing_into_the_stream),
        CASE(the_limit_is_told_at_once),
        CASE(at_the_limit_pending_memory_is_in_use),
        CASE(out_of_memory_behind_own_work),
        CASE(out_of_memory_behind_the_legacy_streams_work),
        CASE(out_of_memory_is_told_at_once),
        CASE(in_order_is_not_waited_for),
        CASE(out_of_memory_beside_later_work_of_many),
        CASE(freed_memory_is_free),
        CASE(sizes_come_and_go),
        CASE(sizes_come_and_go_on_a_blocking_stream),
        CASE(sizes_come_and_go_on_the_legacy_stream),
        CASE(sizes_come_and_go_unwaited),
        CASE(threads_come_and_go),
        CASE(many_streams_once_each),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
