/*
 * What the program is told of its stream-ordered memory while other threads allocate, free and
 * capture: the bytes that a memory pool says are used, and a pointer's size. A case to a process;
 * so many looks, however long they take. Runs without the pool too.
 */
#include <stdatomic.h>

#include "pool.h"

enum { LOOKS = 20000, ROUNDS = 300, BLOCKS = 64 };

#define LARGE ((size_t)700001) /* no bucket's size */

static CUcontext context;
static CUmemoryPool memory_pool;
static _Atomic bool stop;

static uint64_t told(CUmemPool_attribute attribute)
{
    cuuint64_t bytes = 0;
    CU(cuMemPoolGetAttribute(memory_pool, attribute, &bytes));
    return bytes;
}

static pthread_t begin(void *(*work)(void *))
{
    pthread_t thread;
    context = open_primary();
    CU(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    return thread;
}

static void end(pthread_t thread)
{
    atomic_store(&stop, true);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* No more than one block is ever held, of so many bytes. */
static void look(size_t bytes)
{
    cuuint64_t zero = 0;
    for (int i = 0; i < LOOKS; i++) {
        uint64_t used = told(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        if (used != 0 && used != bytes)
            FAIL("look %d: %llu bytes are used", i, (unsigned long long)used);
        if (i % 16 == 0)
            CU(cuMemPoolSetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
        used = told(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
        if (used > bytes)
            FAIL("look %d: %llu bytes are used at most", i, (unsigned long long)used);
    }
}

static void *make_pairs(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop))
        CU(cuMemFreeAsync(take_on(stream, 512), stream));
    return unused;
}

static void beside_pairs(void)
{
    pthread_t thread = begin(make_pairs);
    look(512);
    end(thread);
}

/* Each block comes from the driver, and goes back. */
static void *make_misses(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop)) {
        CU(cuMemFreeAsync(take_on(stream, LARGE), stream));
        CU(cuStreamSynchronize(stream));
        CU(cuMemPoolTrimTo(memory_pool, 0));
    }
    return unused;
}

static void beside_misses(void)
{
    pthread_t thread = begin(make_misses);
    look(LARGE);
    end(thread);
}

static void *make_captures(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop)) {
        CUgraph graph;
        CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphDestroy(graph));
        sched_yield();
    }
    return unused;
}

static void take_and_look(CUstream stream, size_t first)
{
    CUdeviceptr blocks[BLOCKS], base;
    size_t sum = 0, size;
    for (size_t i = 0; i < BLOCKS; i++) {
        size_t bytes = 1000 + (first + i * 7919) % 900000;
        blocks[i] = take_on(stream, bytes);
        sum += bytes;
        CU(cuMemGetAddressRange_v2(&base, &size, blocks[i]));
        EQUAL(bytes, size);
    }
    EQUAL(sum, told(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    for (size_t i = 0; i < BLOCKS; i++)
        CU(cuMemFreeAsync(blocks[i], stream));
    EQUAL(0, told(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuStreamSynchronize(stream));
    CU(cuMemPoolTrimTo(memory_pool, 0));
}

static void beside_captures(void)
{
    pthread_t thread = begin(make_captures);
    CUstream stream = new_stream();
    for (size_t i = 0; i < ROUNDS; i++)
        take_and_look(stream, i * 104729);
    end(thread);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"beside_pairs", beside_pairs},
        {"beside_misses", beside_misses},
        {"beside_captures", beside_captures},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
