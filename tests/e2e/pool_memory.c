/*
 * Device memory under the pool, a case for each setting: what the pool keeps, gives back, refuses
 * and waits for.
 */
#include "pool.h"

static struct kernels kernels;
static CUstream stream;

static void open_device(void)
{
    open_primary();
    load_kernels(&kernels);
    stream = new_stream();
}

static void take_and_free(size_t bytes, int count)
{
    CUdeviceptr blocks[64];
    CHECK(count <= 64);
    for (int i = 0; i < count; i++)
        blocks[i] = take(bytes);
    for (int i = 0; i < count; i++)
        CU(cuMemFree_v2(blocks[i]));
}

/* --- the report: pool.sh knows these numbers
 * -----------------------------------------------------*/

/* 23 requests: 2 clean hits, 1 queried, 20 misses, one of which fails; 18 frees; 4 blocks stay. */
static void counts(void)
{
    CUdeviceptr blocks[16], address;
    open_device();
    CU(cuMemFree_v2(take(1000)));
    CU(cuCtxSynchronize());
    take(900);
    for (int i = 0; i < 16; i++)
        blocks[i] = take(2 * MIB);
    struct gate gate = close_gate(&kernels, stream);
    for (int i = 0; i < 16; i++)
        CU(cuMemFree_v2(blocks[i]));
    take(2 * MIB - 1);
    open_gate(gate);
    CU(cuStreamSynchronize(stream));
    take(2 * MIB);
    take(2 * MIB);
    CU(cuMemFree_v2(take(600 * MIB)));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, (size_t)1 << 40));
}

/* With no growth budget: one hit behind a barrier, then, with a second context, one waited for. */
static void barrier_and_wait(void)
{
    CUcontext first, second;
    open_device();
    CUdeviceptr block = take(MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFree_v2(block));
    CHECK(take(MIB) == block);
    open_gate(gate);
    CU(cuCtxSynchronize());
    CU(cuCtxGetCurrent(&first));
    CU(cuCtxCreate_v2(&second, 0, 0));
    CU(cuCtxSetCurrent(first));
    spin(&kernels, stream, 20000000);
    CU(cuMemFree_v2(block));
    double start = now_ms();
    CHECK(take(MIB) == block);
    CHECK(now_ms() - start > 5);
}

/* --- limits.device_bytes: 8 MiB
 * ------------------------------------------------------------------*/

static size_t free_bytes(void)
{
    size_t free, total;
    CU(cuMemGetInfo_v2(&free, &total));
    CHECK(total >= free &&
          (total == 8 * MIB || total >= 64 * MIB)); /* or the limit: limits.tell_total */
    return free;
}

/* What can be allocated now, in blocks of this size. */
static size_t allocatable(size_t bytes)
{
    CUdeviceptr address;
    size_t sum = 0;
    while (cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS)
        sum += bytes;
    return sum;
}

enum { SCATTERED = 10000, SCATTERED_BYTES = 1000000 };

static CUdeviceptr scattered[SCATTERED];

/* Every second block of those of one of four threads. */
static void *free_scattered(void *first)
{
    CU(cuCtxSetCurrent(*(CUcontext *)first));
    for (size_t i = 1; i < SCATTERED; i += 2)
        if (i / 2 % 4 == 3)
            CU(cuMemFree_v2(scattered[i]));
    return NULL;
}

/* Of blocks that share a page with live ones nothing can be had: what is said to be free is there.
 * SIMCUDA_MEMORY=16GiB */
static void free_memory_can_be_had(void)
{
    pthread_t thread;
    CUcontext context;
    open_device();
    CU(cuCtxGetCurrent(&context));
    for (int i = 0; i < SCATTERED; i++)
        scattered[i] = take(SCATTERED_BYTES);
    size_t before = free_bytes();
    for (size_t i = 1; i < SCATTERED; i += 2)
        if (i / 2 % 4 != 3)
            CU(cuMemFree_v2(scattered[i]));
    CHECK(pthread_create(&thread, NULL, free_scattered, &context) == 0);
    pthread_join(thread, NULL);
    size_t free = free_bytes();
    CHECK(free >= before && free < before + 8 * MIB);
    size_t had = allocatable(64 * MIB);
    if (had + 64 * MIB < free)
        FAIL("%zu MiB are free, and %zu can be had", free / MIB, had / MIB);
}

static void limit(void)
{
    CUdeviceptr address;
    size_t pitch;
    open_device();
    CUdeviceptr a = take(4 * MIB);
    EQUAL(4 * MIB, free_bytes());
    CUdeviceptr b = take(4 * MIB);
    EQUAL(0, free_bytes());
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 1));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitch, 100, 10, 4));
    CU(cuMemFree_v2(a));
    EQUAL(4 * MIB, free_bytes());
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 5 * MIB));
    a = take(4 * MIB);
    CU(cuMemFree_v2(a));
    CU(cuMemFree_v2(b));
    EQUAL(8 * MIB, free_bytes());
    /* What is cached makes room. */
    a = take(8 * MIB);
    EQUAL(0, free_bytes());
    CU(cuMemFree_v2(a));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, 8 * MIB + 1));
    /* Its bucket is 8 MiB and does not fit beside the other; the request does. */
    b = take(600 * 1024);
    a = take(7 * MIB + 300 * 1024);
    CU(cuMemFree_v2(a));
    CU(cuMemFree_v2(b));
    CHECK(simcuda_peak_bytes() <= 8 * MIB);
}

/* --- caps and eviction
 * ---------------------------------------------------------------------------*/

/* caps.cached: 4 MiB */
static void cap_bytes(void)
{
    open_device();
    take_and_free(MIB, 8);
    CU(cuCtxSynchronize());
    EQUAL(4 * MIB, pool_bytes().cached);
    EQUAL(0, pool_bytes().pending);
    EQUAL(4, simcuda_live_allocations());
}

/* caps.blocks_per_bucket: 2 */
static void cap_blocks(void)
{
    open_device();
    take_and_free(1024, 8);
    take_and_free(MIB, 1);
    CU(cuCtxSynchronize());
    EQUAL(2 * 1024 + MIB, pool_bytes().cached);
}

/* caps.cached: 10 MiB; 4 times 1 MiB are freed, later one of 8 MiB. */
static void evict(void)
{
    open_device();
    take_and_free(MIB, 4);
    CU(cuCtxSynchronize());
    take_and_free(8 * MIB, 1);
    CU(cuCtxSynchronize());
}

static void evict_largest(void)
{
    evict();
    EQUAL(4 * MIB, pool_bytes().cached);
}

static void evict_oldest(void)
{
    evict();
    EQUAL(10 * MIB, pool_bytes().cached);
}

/* release_after_idle: 100ms */
static void idle(void)
{
    open_device();
    take_and_free(MIB, 4);
    CU(cuCtxSynchronize());
    EQUAL(4 * MIB, pool_bytes().cached);
    sleep_ms(200);
    /* Looked at when the program comes by. */
    CU(cuCtxSynchronize());
    EQUAL(0, pool_bytes().cached);
    EQUAL(0, simcuda_live_allocations());
}

static void never_idle(void)
{
    open_device();
    take_and_free(MIB, 4);
    CU(cuCtxSynchronize());
    sleep_ms(200);
    CU(cuCtxSynchronize());
    EQUAL(4 * MIB, pool_bytes().cached);
}

/* largest: 1MiB */
static void not_kept(void)
{
    open_device();
    CUdeviceptr block = take(MIB + 1);
    EQUAL(MIB + 1, simcuda_live_bytes());
    CU(cuMemFree_v2(block));
    CU(cuCtxSynchronize());
    EQUAL(0, pool_bytes().cached + pool_bytes().pending);
    EQUAL(0, simcuda_live_allocations());
    /* Not kept does not mean waited for. */
    block = take(4 * MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFree_v2(block));
    EQUAL(4 * MIB, pool_bytes().pending);
    open_gate(gate);
    CU(cuCtxSynchronize());
    EQUAL(0, simcuda_live_allocations());
    take_and_free(MIB, 1);
    CU(cuCtxSynchronize());
    EQUAL(MIB, pool_bytes().cached);
}

/* --- how much is held at most
 * --------------------------------------------------------------------*/

/* Changing sizes, up to 4 blocks at a time, with work on each; returns the most bytes held. */
static uint64_t churn(void)
{
    CUdeviceptr blocks[4] = {0};
    size_t sizes[4] = {0};
    uint64_t held = 0, most = 0;
    unsigned int random = 12345;
    for (int i = 0; i < 300; i++) {
        int slot = i % 4;
        if (blocks[slot] != 0)
            CU(cuMemFree_v2(blocks[slot]));
        held -= sizes[slot];
        random = random * 1664525u + 1013904223u;
        sizes[slot] = (1 + (random >> 8) % 8) * 2 * MIB;
        blocks[slot] = take(sizes[slot]);
        fill(&kernels, stream, blocks[slot], 16, 1);
        spin(&kernels, stream, 20000);
        held += sizes[slot];
        most = held > most ? held : most;
    }
    return most;
}

/* buckets: exact; the driver gives whole pages of 2 MiB. */
static void check_peak(double ratio, uint64_t budget)
{
    open_device();
    uint64_t before = simcuda_peak_device_bytes();
    uint64_t most = churn();
    uint64_t peak = simcuda_peak_device_bytes() - before;
    if ((double)peak > (double)most * ratio + (double)budget)
        FAIL("%llu MiB were taken for %llu MiB", (unsigned long long)(peak / MIB),
             (unsigned long long)(most / MIB));
    CHECK(peak >= most);
}

static void peak_without_budget(void)
{
    check_peak(1.0, 0);
}

static void peak_by_default(void)
{
    check_peak(1.15, 128 * MIB);
}

/* --- what a free waits for
 * -----------------------------------------------------------------------*/

/* Frees behind a copy to the host that takes a while; true if the copy was over then. */
static bool free_waits_for_copy(void)
{
    enum { WORDS = 1024 };
    void *host;
    unsigned int *words;
    CUevent copied;
    open_device();
    CU(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
    CU(cuMemHostAlloc(&host, WORDS * 4, 0));
    words = host;
    words[WORDS - 1] = 0;
    CUdeviceptr block = take(WORDS * 4);
    fill(&kernels, stream, block, WORDS, 42);
    spin(&kernels, stream, 50000000);
    CU(cuMemcpyDtoHAsync_v2(host, block, WORDS * 4, stream));
    CU(cuEventRecord(copied, stream));
    CU(cuMemFree_v2(block));
    return cuEventQuery(copied) == CUDA_SUCCESS && words[WORDS - 1] == 42;
}

static void free_waits(void)
{
    CHECK(free_waits_for_copy());
}

static void free_does_not_wait(void)
{
    CHECK(!free_waits_for_copy());
}

/* --- buckets
 * -------------------------------------------------------------------------------------*/

static void taken_for(size_t bytes, size_t expected)
{
    uint64_t before = simcuda_live_bytes();
    take(bytes);
    uint64_t taken = simcuda_live_bytes() - before;
    if (taken != expected)
        FAIL("%llu bytes taken for %zu, not %zu", (unsigned long long)taken, bytes, expected);
}

static void buckets_geometric(void)
{
    open_device();
    taken_for(1, 512);
    taken_for(513, 1024);
    taken_for(1025, 1536);
    taken_for(MIB + 1, MIB + MIB / 8);
    taken_for(64 * MIB + 1, 66 * MIB);
}

/* steps_per_doubling: 2, smallest: 4KiB */
static void buckets_coarse(void)
{
    open_device();
    taken_for(1, 4096);
    taken_for(4097, 6144);
    taken_for(MIB + 1, MIB + MIB / 2);
}

static void buckets_pow2(void)
{
    open_device();
    taken_for(1, 512);
    taken_for(1025, 2048);
    taken_for(3 * MIB, 4 * MIB);
    taken_for(64 * MIB, 64 * MIB);
}

static void buckets_exact(void)
{
    open_device();
    taken_for(1, 512);
    taken_for(1025, 1025);
    taken_for(3 * MIB - 7, 3 * MIB - 7);
}

/* --- pitched memory
 * ------------------------------------------------------------------------------*/

static CUdeviceptr take_pitched(size_t width, size_t height, size_t expected)
{
    CUdeviceptr address;
    size_t pitch = 0;
    CU(cuMemAllocPitch_v2(&address, &pitch, width, height, 4));
    EQUAL(expected, pitch);
    return address;
}

static void pitch(void)
{
    CUdeviceptr base;
    size_t bytes;
    open_device();
    CUdeviceptr first = take_pitched(600, 100, 1024);
    CU(cuMemGetAddressRange_v2(&base, &bytes, first + 5000));
    CHECK(base == first);
    EQUAL(100 * 1024, bytes);
    CUdeviceptr second = take_pitched(600, 100, 1024);
    CHECK(first != second);
    CU(cuMemFree_v2(first));
    CU(cuMemFree_v2(second));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(second));
    if (!has_pool())
        return;
    CU(cuCtxSynchronize());
    uint64_t asked = simcuda_calls("cuMemAllocPitch_v2") + simcuda_calls("cuMemAlloc_v2");
    take_pitched(600, 100, 1024);
    EQUAL(asked, simcuda_calls("cuMemAllocPitch_v2") + simcuda_calls("cuMemAlloc_v2"));
}

static void pitch_errors(void)
{
    CUdeviceptr address;
    size_t pitched;
    open_device();
    take_pitched(600, 100, 1024);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(NULL, &pitched, 600, 100, 4));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&address, NULL, 600, 100, 4));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&address, &pitched, 0, 100, 4));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&address, &pitched, 600, 0, 4));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&address, &pitched, 600, 100, 5));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitched, 600, SIZE_MAX, 4));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitched, SIZE_MAX, 1, 4));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitched, SIZE_MAX, 100, 4));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY,
            cuMemAllocPitch_v2(&address, &pitched, 600, (size_t)1 << 40, 4));
}

/* --- cuMemFreeAsync of a cuMemAlloc pointer
 * ------------------------------------------------------*/

static void free_async(void)
{
    enum { ROUNDS = 40, WORDS = 1024 };
    open_device();
    CUstream other = new_stream();
    CUdeviceptr counter = new_counter();
    for (unsigned int i = 0; i < ROUNDS; i++) {
        CUdeviceptr block = take(WORDS * 4);
        CUstream used = i % 2 ? stream : other;
        fill(&kernels, used, block, WORDS, i);
        spin_then_verify(&kernels, used, 2000000, block, WORDS, i, counter);
        CU(cuMemFreeAsync(block, used));
    }
    CUdeviceptr block = take(WORDS * 4);
    CU(cuMemFreeAsync(block, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    EQUAL(0, read_counter(counter));
    CU(cuMemFree_v2(counter));
}

/* The call does not wait, nor does the next allocation. */
static void free_async_does_not_wait(void)
{
    open_device();
    CUdeviceptr block = take(MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    CUdeviceptr next = take(MIB);
    CHECK(next != block);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* --- a request that no device can hold, and others meanwhile
 * -----------------------------------------------------------------------------------------------*/

static CUcontext shared_context;

static void *take_a_little(void *address)
{
    CU(cuCtxSetCurrent(shared_context));
    CU(cuMemAlloc_v2(address, 1000));
    return NULL;
}

static CUdeviceptr taken_beside;

static void take_in_another_thread(const char *name)
{
    pthread_t thread;
    simcuda_set_callback(name, NULL);
    CHECK(pthread_create(&thread, NULL, take_a_little, &taken_beside) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void beside_a_huge_request(void)
{
    CUdeviceptr address;
    open_device();
    CU(cuCtxGetCurrent(&shared_context));
    CHECK(simcuda_set_callback("cuMemAlloc_v2", take_in_another_thread));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, SIZE_MAX - 100));
    CHECK(taken_beside != 0);
}

/* --- work that the host ends
 * -----------------------------------------------------------------------*/

static _Atomic bool has_run;

static void run_late(void *unused)
{
    (void)unused;
    sleep_ms(50);
    has_run = true;
}

/* A capture of this thread is in the way of its destruction, which spoils the capture. */
static void destroy_in_vain(CUgraphExec executable)
{
    CUgraph graph;
    CUstream captured = new_stream();
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphExecDestroy(executable));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
}

/* An executable that the driver has not destroyed still holds the host function behind which a free
 * waits. */
static void destroyed_in_vain(void)
{
    CUDA_HOST_NODE_PARAMS parameters = {run_late, NULL};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    open_device();
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddHostNode(&node, graph, NULL, 0, &parameters));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    destroy_in_vain(executable);
    CUdeviceptr block = take(64 * MIB);
    CU(cuGraphLaunch(executable, stream));
    CU(cuMemFree_v2(block));
    CHECK(has_run);
    CU(cuGraphExecDestroy(executable));
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"counts", counts},
        {"barrier_and_wait", barrier_and_wait},
        {"free_memory_can_be_had", free_memory_can_be_had},
        {"limit", limit},
        {"cap_bytes", cap_bytes},
        {"cap_blocks", cap_blocks},
        {"evict_largest", evict_largest},
        {"evict_oldest", evict_oldest},
        {"idle", idle},
        {"never_idle", never_idle},
        {"not_kept", not_kept},
        {"peak_without_budget", peak_without_budget},
        {"peak_by_default", peak_by_default},
        {"free_waits", free_waits},
        {"free_does_not_wait", free_does_not_wait},
        {"buckets_geometric", buckets_geometric},
        {"buckets_coarse", buckets_coarse},
        {"buckets_pow2", buckets_pow2},
        {"buckets_exact", buckets_exact},
        {"beside_a_huge_request", beside_a_huge_request},
        {"pitch", pitch},
        {"pitch_errors", pitch_errors},
        {"free_async", free_async},
        {"free_async_does_not_wait", free_async_does_not_wait},
        {"destroyed_in_vain", destroyed_in_vain},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
