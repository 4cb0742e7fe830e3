/*
 * Stream-ordered memory, a case to a process: every way in which a block is used again, and every
 * one in which it is not. Most cases ask where a block went by its address, so they need the pool;
 * those that say so also run without it.
 */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#pragma weak cudapool_get_stream_bytes
#pragma weak cudapool_reap
#pragma weak cudapool_generation
#pragma weak cudapool_record_use

enum { WORDS = 1024 };

static struct kernels kernels;
static CUstream one, other;

static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
    one = new_stream();
    other = new_stream();
}

static struct cudapool_bytes stream_bytes(CUstream stream)
{
    struct cudapool_bytes bytes;
    CHECK(cudapool_get_stream_bytes(stream, &bytes) == 0);
    return bytes;
}

/* A block that was used and freed on a stream whose work goes on until the gate is opened. */
static CUdeviceptr leave_behind_gate(CUstream stream, size_t bytes, struct gate *gate)
{
    CUdeviceptr block = take_on(stream, bytes);
    *gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    return block;
}

/* ---- how a block is used again ---- */

static void same_stream(void)
{
    struct gate gate;
    furnish();
    CUdeviceptr block = leave_behind_gate(one, MIB, &gate);
    EQUAL(MIB, stream_bytes(one).pending);
    EQUAL(block, take_on(one, MIB - 100));
    EQUAL(0, stream_bytes(one).pending);
    EQUAL(MIB, stream_bytes(one).live);
    open_gate(gate);
    CU(cuStreamSynchronize(one));
}

/* The newest of its own blocks comes before another stream's that is over. */
static void own_first(void)
{
    furnish();
    CUdeviceptr a = take_on(one, MIB), b = take_on(other, MIB);
    CU(cuMemFreeAsync(b, other));
    CU(cuStreamSynchronize(other));
    CU(cuMemFreeAsync(a, one));
    EQUAL(a, take_on(one, MIB));
    EQUAL(b, take_on(one, MIB));
}

static void after_synchronise(CUresult (*synchronise)(void))
{
    furnish();
    CUdeviceptr block = take_on(one, MIB);
    spin(&kernels, one, 200000);
    CU(cuMemFreeAsync(block, one));
    CU(synchronise());
    EQUAL(MIB, stream_bytes(one).cached);
    EQUAL(block, take_on(other, MIB));
}

static CUresult synchronise_stream(void)
{
    return cuStreamSynchronize(one);
}

static CUresult poll_stream(void)
{
    CUresult result;
    while ((result = cuStreamQuery(one)) == CUDA_ERROR_NOT_READY)
        sleep_ms(1);
    return result;
}

static void stream_synchronised(void)
{
    after_synchronise(synchronise_stream);
}

static void stream_polled(void)
{
    after_synchronise(poll_stream);
}

static void context_synchronised(void)
{
    after_synchronise(cuCtxSynchronize);
}

/* What the program does with its events makes no block another stream's. A wait for the stream
 * does. */
static void events_are_not_followed(void)
{
    struct gate gate;
    CUevent event;
    furnish();
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = leave_behind_gate(one, MIB, &gate);
    CU(cuEventRecord(event, one));
    CU(cuStreamWaitEvent(other, event, 0));
    CHECK(take_on(other, MIB) != block);
    open_gate(gate);
    CU(cuEventSynchronize(event));
    CHECK(take_on(other, MIB) != block);
    CU(cuStreamSynchronize(one));
    EQUAL(block, take_on(other, MIB));
}

/* Another stream looks in vain; from then on frees there record events. */
static void let_events_be_wanted(size_t bytes)
{
    struct gate gate;
    CUdeviceptr block = leave_behind_gate(one, bytes, &gate);
    CUdeviceptr instead = take_on(other, bytes);
    CHECK(instead != block);
    CU(cuMemFreeAsync(instead, other));
    open_gate(gate);
    CU(cuCtxSynchronize());
    cudapool_trim();
}

static void opportunistic(void)
{
    furnish();
    let_events_be_wanted(MIB);
    CUdeviceptr block = take_on(one, MIB);
    CU(cuMemFreeAsync(block, one));
    sleep_ms(20); /* the stream gets there, and nobody says so */
    EQUAL(block, take_on(other, MIB));
    CU(cuCtxSynchronize());
}

/* Only where the device has no room for another one is the stream made to wait. */
#define LARGE (40 * MIB)

static void internal(void)
{
    struct gate gate;
    furnish();
    CUdeviceptr wrong = new_counter();
    let_events_be_wanted(MIB);
    CUdeviceptr block = take_on(one, LARGE);
    fill(&kernels, one, block, WORDS, 1);
    gate = close_gate(&kernels, one);
    spin_then_verify(&kernels, one, 2000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, one));
    EQUAL(block, take_on(other, LARGE));
    fill(&kernels, other, block, WORDS, 2);
    open_gate(gate);
    EQUAL(0, read_counter(wrong));
}

/* Work that was submitted after the free is not waited for: it may be the other stream that lets it
 * end. */
static void internal_stays_before_later_work(void)
{
    struct gate gate;
    furnish();
    let_events_be_wanted(MIB);
    CUdeviceptr block = take_on(one, LARGE);
    spin(&kernels, one, 3000000);
    CU(cuMemFreeAsync(block, one));
    gate = close_gate(&kernels, one);
    EQUAL(block, take_on(other, LARGE));
    fill(&kernels, other, block, WORDS, 2);
    CU(cuStreamSynchronize(other));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* With the settings that switch the ways across streams off, or the pool's attributes. */
static void other_streams_get_nothing(void)
{
    struct gate gate;
    for (int i = 0; i < 3; i++) {
        CUdeviceptr block = leave_behind_gate(one, MIB, &gate);
        if (i != 0) {
            open_gate(gate);
            sleep_ms(20); /* the stream gets there, and nobody says so */
        }
        CUdeviceptr instead = take_on(other, MIB);
        CHECK(instead != block);
        if (i == 0)
            open_gate(gate);
        CU(cuCtxSynchronize());
        CU(cuMemFreeAsync(instead, other));
        CU(cuCtxSynchronize());
        cudapool_trim();
    }
}

static void switched_off(void)
{
    furnish();
    other_streams_get_nothing();
}

static void switched_off_by_attributes(void)
{
    CUmemoryPool memory_pool;
    int off = 0;
    furnish();
    CU(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    for (CUmemPool_attribute i = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
         i <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; i++)
        CU(cuMemPoolSetAttribute(memory_pool, i, &off));
    other_streams_get_nothing();
}

/* ---- streams that are the same, and streams that are not ---- */

static void default_streams(void)
{
    furnish();
    CUdeviceptr block = take_on(NULL, MIB);
    CU(cuMemFreeAsync(block, CU_STREAM_LEGACY));
    EQUAL(block, take_on(CU_STREAM_LEGACY, MIB));
    CU(cuMemFreeAsync(block, NULL));
    CUdeviceptr own = take_on(CU_STREAM_PER_THREAD, 2 * MIB), again;
    CU(cuMemFreeAsync_ptsz(own, NULL));
    CU(cuMemAllocAsync_ptsz(&again, 2 * MIB, NULL));
    EQUAL(own, again);
    CHECK(stream_bytes(NULL).cached + stream_bytes(NULL).pending == MIB);
    EQUAL(2 * MIB, stream_bytes(CU_STREAM_PER_THREAD).live);
}

static CUcontext current;

static void *take_on_own_stream(void *block)
{
    CUdeviceptr address;
    CU(cuCtxSetCurrent(current));
    struct gate gate = close_gate(&kernels, CU_STREAM_PER_THREAD);
    CU(cuMemAllocAsync(&address, MIB, CU_STREAM_PER_THREAD));
    CHECK(address != *(CUdeviceptr *)block);
    open_gate(gate);
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    CU(cuMemFreeAsync(address, CU_STREAM_PER_THREAD));
    return NULL;
}

/* The same handle is another stream in another thread. */
static void per_thread_streams(void)
{
    struct gate gate;
    pthread_t thread;
    furnish();
    CU(cuCtxGetCurrent(&current));
    CUdeviceptr block = leave_behind_gate(CU_STREAM_PER_THREAD, MIB, &gate);
    CHECK(pthread_create(&thread, NULL, take_on_own_stream, &block) == 0);
    pthread_join(thread, NULL);
    EQUAL(block, take_on(CU_STREAM_PER_THREAD, MIB));
    open_gate(gate);
    CU(cuCtxSynchronize());
    /* One that is named is the same, however the caller was compiled. */
    block = leave_behind_gate(one, MIB, &gate);
    EQUAL(block, take_on(one, MIB));
    CU(cuMemFreeAsync_ptsz(block, one));
    EQUAL(MIB, stream_bytes(one).pending);
    EQUAL(block, take_on(one, MIB));
    open_gate(gate);
}

/* Many times, so that handles come back: a new stream is never taken for a destroyed one. */
static void destroyed_streams(void)
{
    CUstream former = NULL;
    bool came_back = false;
    furnish();
    for (int i = 0; i < 40; i++) {
        CUstream stream = new_stream();
        came_back = came_back || stream == former;
        CUdeviceptr block = take_on(stream, MIB);
        struct gate gate = close_gate(&kernels, stream);
        CU(cuMemFreeAsync(block, stream));
        CU(cuStreamDestroy_v2(stream));
        former = stream;
        CUstream next = new_stream();
        came_back = came_back || next == former;
        CHECK(take_on(next, MIB) != block);
        open_gate(gate);
        CU(cuCtxSynchronize());
        CU(cuStreamDestroy_v2(next));
    }
    CHECK(came_back || simcuda_calls == NULL);
}

/* What they leave is used again: at once when it is over, of which an event tells. */
static void destroyed_streams_pass_on(void)
{
    furnish();
    CUstream stream = new_stream();
    CUdeviceptr block = take_on(stream, MIB);
    spin(&kernels, stream, 100000);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamDestroy_v2(stream));
    sleep_ms(50);
    EQUAL(block, take_on(one, MIB));
}

/* ---- freeing ---- */

static void frees(void) /* also without the pool */
{
    CUdeviceptr base;
    size_t bytes;
    furnish();
    CUdeviceptr block = take_on(one, 1000);
    ANSWERS(CUDA_SUCCESS, cuMemGetAddressRange_v2(&base, &bytes, block));
    EQUAL(block, base);
    EQUAL(1000, bytes);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block + 8, one));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block + 8));
    ANSWERS(CUDA_SUCCESS, cuMemFreeAsync(0, one));
    ANSWERS(CUDA_SUCCESS, cuMemFreeAsync(block, one));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, one));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block));
    ANSWERS(CUDA_SUCCESS, cuMemAllocAsync(&base, 0, one));
    ANSWERS(CUDA_SUCCESS, cuMemFreeAsync(base, one));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&base, (size_t)1 << 40, one));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(NULL, 1000, one));
    /* A plain free of such memory does not wait. */
    block = take_on(one, MIB);
    struct gate gate = close_gate(&kernels, other);
    ANSWERS(CUDA_SUCCESS, cuMemFree_v2(block));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* Two threads, one block. */
static CUdeviceptr contested;
static int successes;

static void *free_contested(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent(current));
    if (cuMemFreeAsync(contested, CU_STREAM_PER_THREAD) == CUDA_SUCCESS)
        __atomic_fetch_add(&successes, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void freed_twice(void)
{
    furnish();
    CU(cuCtxGetCurrent(&current));
    for (int i = 0; i < 200; i++) {
        pthread_t threads[4];
        successes = 0;
        contested = take_on(one, 4096);
        for (int t = 0; t < 4; t++)
            CHECK(pthread_create(&threads[t], NULL, free_contested, NULL) == 0);
        for (int t = 0; t < 4; t++)
            pthread_join(threads[t], NULL);
        CHECK(successes == 1);
    }
}

/* ---- captures: the same without the pool ---- */

static void captures(void)
{
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr inside, before;
    furnish();
    CUdeviceptr wrong = new_counter();
    before = take_on(one, MIB);
    CUdeviceptr cached = take_on(one, 2 * MIB);
    CU(cuMemFreeAsync(cached, one));
    CU(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_RELAXED));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(before, one));
    CU(cuMemAllocAsync(&inside, 2 * MIB, one));
    CHECK(inside != cached);
    fill(&kernels, one, inside, WORDS, 7);
    spin_then_verify(&kernels, one, 1000, inside, WORDS, 7, wrong);
    CU(cuMemFreeAsync(inside, one));
    /* Beside it, in relaxed mode, another stream may allocate. */
    CUdeviceptr beside = take_on(other, MIB);
    CU(cuMemFreeAsync(beside, other));
    CU(cuStreamEndCapture(one, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; i++)
        CU(cuGraphLaunch(executable, one));
    EQUAL(0, read_counter(wrong));
    CU(cuMemFreeAsync(before, one));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    CU(cuStreamSynchronize(one));
    if (has_pool()) /* what came from the capture is not kept */
        CHECK(take_on(one, 2 * MIB) != inside);
}

/* In global mode an allocation on another stream is the end of the capture. */
static void capture_that_forbids(void)
{
    CUgraph graph = NULL;
    CUdeviceptr block;
    furnish();
    CU(cuMemFreeAsync(take_on(other, MIB), other));
    CU(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAllocAsync(&block, MIB, other));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(one, &graph));
}

/* ---- the program's memory pools ---- */

static CUmemoryPool create_pool(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool memory_pool;
    CU(cuMemPoolCreate(&memory_pool, &properties));
    return memory_pool;
}

static uint64_t attribute(CUmemoryPool memory_pool, CUmemPool_attribute which)
{
    cuuint64_t value = 99;
    CU(cuMemPoolGetAttribute(memory_pool, which, &value));
    return value;
}

static void pools(void) /* also without the pool */
{
    CUdeviceptr block, again;
    CUmemoryPool standard;
    cuuint64_t threshold = 0, zero = 0;
    furnish();
    CU(cuDeviceGetDefaultMemPool(&standard, 0));
    CU(cuMemFreeAsync(take_on(one, MIB), one));
    EQUAL(0, attribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    EQUAL(0, attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    EQUAL(MIB, attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    threshold = 123;
    CU(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    EQUAL(123, attribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    CU(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    EQUAL(0, attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    /* Blocks belong to the pool that they came from. */
    CUmemoryPool own = create_pool();
    CU(cuMemAllocFromPoolAsync(&block, 1000, own, one));
    EQUAL(1000, attribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuMemFreeAsync(block, one));
    EQUAL(0, attribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuStreamSynchronize(one));
    CHECK(take_on(one, 1000) != block);
    CU(cuDeviceSetMemPool(0, own));
    again = take_on(one, 1000);
    if (has_pool())
        EQUAL(block, again);
    CU(cuMemFreeAsync(again, one));
    CU(cuStreamSynchronize(one));
    CU(cuMemPoolTrimTo(own, 0));
    EQUAL(0, attribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    /* What is left of a destroyed pool is the program's until it frees it. */
    block = take_on(one, MIB);
    CU(cuMemFreeAsync(take_on(one, 3 * MIB), one));
    CU(cuMemPoolDestroy(own));
    fill(&kernels, one, block, WORDS, 1);
    CU(cuMemFreeAsync(block, one));
    CU(cuStreamSynchronize(one));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&block, 1000, own, one));
    CU(cuDeviceGetMemPool(&own, 0));
    CHECK(own == standard);
}

/* Another process may reach what was exported: the driver frees it. */
static void shared(void)
{
    furnish();
    CUdeviceptr block = take_on(one, MIB);
    int yes = 1;
    cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block);
    CU(cuMemFreeAsync(block, one));
    EQUAL(0, stream_bytes(one).pending + stream_bytes(one).cached);
}

static void exported(void)
{
    CUresult (*export)(void *, CUdeviceptr) =
        (CUresult(*)(void *, CUdeviceptr))dlsym(RTLD_DEFAULT, "cuMemPoolExportPointer");
    char data[64];
    furnish();
    CUdeviceptr block = take_on(one, MIB), free = take_on(one, 2 * MIB);
    CU(cuMemFreeAsync(free, one));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, export(data, free));
    CU(export(data, block));
    CU(cuMemFreeAsync(block, one));
    EQUAL(2 * MIB, stream_bytes(one).pending + stream_bytes(one).cached);
}

/* ---- uses ---- */

static void uses(void)
{
    struct gate gate;
    furnish();
    CUdeviceptr block = take_on(one, MIB), wrong = new_counter();
    uint64_t generation = cudapool_generation(block);
    CHECK(generation != 0);
    /* The reader waits for the writer. */
    gate = close_gate(&kernels, one);
    fill(&kernels, one, block, WORDS, 5);
    CHECK(cudapool_record_use(block, generation, other, CUDAPOOL_READ) == 0);
    spin_then_verify(&kernels, other, 0, block, WORDS, 5, wrong);
    open_gate(gate);
    /* The next writer waits for the reader, and so does the free. */
    gate = close_gate(&kernels, other);
    spin_then_verify(&kernels, other, 0, block, WORDS, 5, wrong);
    CHECK(cudapool_record_use(block, generation, one, CUDAPOOL_WRITE) == 0);
    fill(&kernels, one, block, WORDS, 6);
    CHECK(cudapool_record_use(block, generation, other, CUDAPOOL_READ) == 0);
    spin_then_verify(&kernels, other, 1000000, block, WORDS, 6, wrong);
    CU(cuMemFreeAsync(block, one));
    EQUAL(block, take_on(one, MIB));
    fill(&kernels, one, block, WORDS, 7);
    open_gate(gate);
    EQUAL(0, read_counter(wrong));
    /* Who still has the old generation is told. */
    CHECK(cudapool_generation(block) != generation);
    EQUAL(CUDA_ERROR_INVALID_VALUE,
          (CUresult)cudapool_record_use(block, generation, other, CUDAPOOL_WRITE));
    EQUAL(CUDA_ERROR_INVALID_VALUE,
          (CUresult)cudapool_record_use(block + 512, generation, other, CUDAPOOL_WRITE));
    EQUAL(0, cudapool_generation(block + 512));
    EQUAL(0, cudapool_generation(wrong));
    EQUAL(CUDA_ERROR_INVALID_VALUE, (CUresult)cudapool_record_use(block, cudapool_generation(block),
                                                                  other, (enum cudapool_use)2));
}

/* ---- keeping and giving back ---- */

static void reaped(void)
{
    furnish();
    CU(cuMemFreeAsync(take_on(one, MIB), one));
    CU(cuMemFreeAsync(take_on(other, MIB), other));
    spin(&kernels, one, 1000000);
    EQUAL(2, cudapool_reap());
    EQUAL(MIB, stream_bytes(one).cached);
    EQUAL(0, stream_bytes(other).pending);
    EQUAL(0, cudapool_reap());
    CHECK(cudapool_get_stream_bytes(one, NULL) != 0);
    struct cudapool_bytes of_unknown;
    CHECK(cudapool_get_stream_bytes(new_stream(), &of_unknown) != 0);
    EQUAL(2 * MIB, cudapool_trim());
    EQUAL(0, pool_bytes().cached);
}

/* The settings keep 4 MiB. */
static void capped(void)
{
    CUdeviceptr blocks[8];
    furnish();
    for (int i = 0; i < 8; i++)
        blocks[i] = take_on(one, MIB);
    for (int i = 0; i < 8; i++) {
        CU(cuMemFreeAsync(blocks[i], one));
        CHECK(pool_bytes().cached + pool_bytes().pending <= 4 * MIB);
    }
    EQUAL(4 * MIB, pool_bytes().cached + pool_bytes().pending);
}

/* The settings allow 8 MiB. */
static void limited(void)
{
    CUdeviceptr blocks[8], more;
    furnish();
    for (int i = 0; i < 4; i++)
        blocks[i] = take_on(one, 2 * MIB);
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&more, MIB, one));
    CU(cuMemFreeAsync(blocks[0], one));
    CU(cuStreamSynchronize(one));
    more = take_on(other, MIB);
    CU(cuMemFreeAsync(more, other));
}

/* After release_after_idle, at the next look. */
static void idle(void)
{
    furnish();
    CU(cuMemFreeAsync(take_on(one, 16 * MIB), one));
    CU(cuStreamSynchronize(one));
    for (int i = 0; i < 200 && pool_bytes().cached >= 16 * MIB; i++) {
        sleep_ms(10);
        for (int j = 0; j < 40; j++)
            CU(cuMemFreeAsync(take_on(other, 4096), other));
    }
    CHECK(pool_bytes().cached < 16 * MIB);
}

/* On a device of 64 MiB: what is kept makes nobody's allocation fail. */
static void out_of_memory(void) /* also without the pool */
{
    CUdeviceptr blocks[3], plain;
    furnish();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            blocks[i] = take_on(one, 8 * MIB);
        for (int i = 0; i < 3; i++)
            CU(cuMemFreeAsync(blocks[i], one));
        CU(cuStreamSynchronize(one));
        CU(cuMemAlloc_v2(&plain, 40 * MIB));
        CU(cuMemFree_v2(plain));
        blocks[0] = take_on(other, 40 * MIB);
        CU(cuMemFreeAsync(blocks[0], other));
        CU(cuStreamSynchronize(other));
    }
}

/* ---- contexts and processes ---- */

static void contexts_end(void) /* also without the pool */
{
    CU(cuInit(0));
    for (int i = 0; i < 8; i++) {
        CUcontext context;
        CU(cuCtxCreate_v2(&context, 0, 0));
        load_kernels(&kernels);
        one = new_stream();
        for (int j = 0; j < 4; j++) {
            CUdeviceptr block = take_on(j & 1 ? one : NULL, MIB);
            fill(&kernels, j & 1 ? one : NULL, block, WORDS, 1);
            CU(cuMemFreeAsync(block, j & 1 ? one : NULL));
        }
        CU(cuCtxDestroy_v2(context));
        if (simcuda_live_allocations != NULL)
            EQUAL(0, simcuda_live_allocations());
        if (has_pool())
            EQUAL(0, pool_bytes().live + pool_bytes().cached + pool_bytes().pending);
    }
}

static void forked(void)
{
    furnish();
    CUdeviceptr block = take_on(one, MIB);
    CU(cuMemFreeAsync(block, one));
    pid_t child = fork();
    if (child == 0)
        _exit(cuMemAllocAsync(&block, MIB, one) == CUDA_SUCCESS);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EQUAL(block, take_on(one, MIB));
}

/* A launch that may begin before the one before it has ended: the order of the stream is then not
 * enough for its memory. */
static void early_launches(void)
{
    unsigned long long none = 0;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, &attribute, 1};
    struct gate gate;
    furnish();
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.hStream = one;
    CU(cuLaunchKernelEx(&config, kernels.spin, (void *[]){&none}, NULL));
    CUdeviceptr block = leave_behind_gate(one, MIB, &gate);
    CHECK(take_on(one, MIB) != block);
    open_gate(gate);
    sleep_ms(50);
    EQUAL(block, take_on(one, MIB));
}

/* 200 frees and 400 allocations, for the report. */
static void counts(void)
{
    furnish();
    for (int i = 0; i < 100; i++)
        CU(cuMemFreeAsync(take_on(one, MIB), one));
    CU(cuStreamSynchronize(one));
    CU(cuMemFreeAsync(take_on(other, MIB), other));
    take_on(other, 3000);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(same_stream),
        CASE(own_first),
        CASE(stream_synchronised),
        CASE(stream_polled),
        CASE(context_synchronised),
        CASE(events_are_not_followed),
        CASE(opportunistic),
        CASE(internal),
        CASE(internal_stays_before_later_work),
        CASE(switched_off),
        CASE(switched_off_by_attributes),
        CASE(default_streams),
        CASE(per_thread_streams),
        CASE(destroyed_streams),
        CASE(destroyed_streams_pass_on),
        CASE(frees),
        CASE(freed_twice),
        CASE(captures),
        CASE(capture_that_forbids),
        CASE(pools),
        CASE(shared),
        CASE(exported),
        CASE(uses),
        CASE(reaped),
        CASE(capped),
        CASE(limited),
        CASE(idle),
        CASE(out_of_memory),
        CASE(contexts_end),
        CASE(forked),
        CASE(early_launches),
        CASE(counts),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
