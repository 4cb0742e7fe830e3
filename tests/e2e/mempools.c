/*
 * The driver's memory pools of managed and of host memory, a case to a process. "kept" and "left"
 * say whether the case expects the pool to keep what is free in them; "read" also runs without it.
 */
#include <dlfcn.h>
#include <time.h>

#include "pool.h"

typedef CUresult get_pool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);

/* What the simulated driver takes at a time. */
#define CHUNK (32 * MIB)

enum { POOLS = 5 };

static CUstream one;

/* Memory pools of every sort that is not served, the default ones first. */
static CUmemoryPool pools[POOLS];
static const CUmemPoolProps sorts[POOLS] = {
    {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
    {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_NONE, 0}},
    {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}},
    {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
    {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}},
};
enum { CREATED = 3, MANAGED = 0, HOST = 2 };

static CUmemoryPool default_pool(const char *by, const CUmemPoolProps *sort)
{
    get_pool *get = (get_pool *)(uintptr_t)dlsym(RTLD_DEFAULT, by);
    CUmemLocation location = sort->location;
    CUmemoryPool found;
    CHECK(get != NULL);
    CU(get(&found, &location, sort->allocType));
    return found;
}

static void furnish(void)
{
    open_primary();
    one = new_stream();
    for (int i = 0; i < CREATED; i++)
        pools[i] = default_pool(i == 1 ? "cuMemGetMemPool" : "cuMemGetDefaultMemPool", &sorts[i]);
    for (int i = CREATED; i < POOLS; i++)
        CU(cuMemPoolCreate(&pools[i], &sorts[i]));
}

static uint64_t attribute(CUmemoryPool memory_pool, CUmemPool_attribute which)
{
    cuuint64_t value = 99;
    CU(cuMemPoolGetAttribute(memory_pool, which, &value));
    return value;
}

static void set_threshold(CUmemoryPool memory_pool, cuuint64_t value)
{
    CU(cuMemPoolSetAttribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    EQUAL(value, attribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
}

static void use(CUmemoryPool memory_pool)
{
    CUdeviceptr block;
    CU(cuMemAllocFromPoolAsync(&block, MIB, memory_pool, one));
    CU(cuMemFreeAsync(block, one));
    CU(cuStreamSynchronize(one));
}

/* What the driver's pool holds after a block was used, freed and waited for. */
static uint64_t kept_by(CUmemoryPool memory_pool)
{
    use(memory_pool);
    EQUAL(0, attribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    return attribute(memory_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

/* ---- what the program reads, sets and gets ---- */

static void reads(void) /* also without the pool */
{
    furnish();
    for (int i = 0; i < POOLS; i++) {
        EQUAL(0, attribute(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
        use(pools[i]);
        EQUAL(0, attribute(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
        EQUAL(MIB, attribute(pools[i], CU_MEMPOOL_ATTR_USED_MEM_HIGH));
        set_threshold(pools[i], 0);
        EQUAL(0, kept_by(pools[i]));
        set_threshold(pools[i], CHUNK);
        EQUAL(CHUNK, kept_by(pools[i]));
        CU(cuMemPoolTrimTo(pools[i], 0));
        EQUAL(0, attribute(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    }
    for (int i = 0; i < CREATED; i++)
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pools[i]));
    for (int i = CREATED; i < POOLS; i++) {
        CU(cuMemPoolDestroy(pools[i]));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pools[i]));
    }
    /* Of the default ones the threshold is still the program's. */
    EQUAL(CHUNK, attribute(pools[0], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    EQUAL(CHUNK, kept_by(pools[0]));
}

static void kept(void)
{
    furnish();
    for (int i = 0; i < POOLS; i++)
        EQUAL(CHUNK, kept_by(pools[i]));
}

static void left(void) /* also without the pool */
{
    furnish();
    for (int i = 0; i < POOLS; i++)
        EQUAL(0, kept_by(pools[i]));
}

/* No more of the machine's memory than may be cached of pinned memory. */
static void host_memory_left(void)
{
    furnish();
    EQUAL(CHUNK, kept_by(pools[MANAGED]));
    EQUAL(0, kept_by(pools[HOST]));
}

/* A program that was set up before it asks for the pool: what it set stays. */
static void set_before(void) /* also without the pool */
{
    CUmemoryPool own;
    cuuint64_t value = 77;
    open_primary();
    one = new_stream();
    CU(cuMemPoolCreate(&own, &sorts[CREATED]));
    CU(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    EQUAL(0, kept_by(own));
    EQUAL(77, attribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
}

/* A question starts nothing: before its first context a program is given pools as they are. */
static void asks_early(void)
{
    CU(cuInit(0));
    CUmemoryPool early = default_pool("cuMemGetDefaultMemPool", &sorts[HOST]);
    EQUAL(early == default_pool("cuMemGetMemPool", &sorts[HOST]), true);
}

static void knows_when_asked_again(void)
{
    asks_early();
    open_primary();
    one = new_stream();
    CUmemoryPool host = default_pool("cuMemGetDefaultMemPool", &sorts[HOST]);
    EQUAL(CHUNK, kept_by(host));
}

/* Every answer to what no program should ask; a pool that there is gives memory. */
static void ask_wildly(const char *by, CUmemLocation location, unsigned int type)
{
    get_pool *get = (get_pool *)(uintptr_t)dlsym(RTLD_DEFAULT, by);
    CUmemoryPool found = NULL;
    CUresult answer = get(&found, &location, type);
    printf("%s(%u, %d, %u): %u\n", by, location.type, location.id, type, answer);
    if (answer == CUDA_SUCCESS)
        printf("  threshold %llu\n",
               (unsigned long long)attribute(found, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    printf("  without a place: %u, to nowhere: %u\n", get(&found, NULL, type),
           get(NULL, &location, type));
}

static void wild(void) /* also without the pool */
{
    static const int ids[] = {0, 1, 99, -1, INT32_MIN};
    open_primary();
    for (unsigned int type = 0; type < 4; type++)
        for (unsigned int location = 0; location < 7; location++)
            for (unsigned int i = 0; i < sizeof ids / sizeof *ids; i++) {
                ask_wildly("cuMemGetDefaultMemPool", (CUmemLocation){location, ids[i]}, type);
                ask_wildly("cuMemGetMemPool", (CUmemLocation){location, ids[i]}, type);
            }
}

/* ---- what is kept goes back ---- */

static void device_memory_is_short(void) /* also without the pool; of 64 MiB */
{
    furnish();
    use(pools[MANAGED]);
    take(48 * MIB);
    EQUAL(0, attribute(pools[MANAGED], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

/* The driver has no host memory for the second call. */
static void host_memory_is_short(void)
{
    void *memory;
    furnish();
    EQUAL(CHUNK, kept_by(pools[HOST]));
    CU(cuMemHostAlloc(&memory, 4 * MIB, 0));
    CU(cuMemHostAlloc(&memory, 4 * MIB, 0));
    EQUAL(0, attribute(pools[HOST], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

static void trimmed(void)
{
    furnish();
    EQUAL(CHUNK, kept_by(pools[HOST]));
    EQUAL(CHUNK, cudapool_trim());
    EQUAL(0, attribute(pools[HOST], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

/* Within seconds, and again after it was used anew; but not while it is used. */
static void goes_back_when_idle(CUmemoryPool memory_pool)
{
    double started = now_ms();
    while (attribute(memory_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != 0) {
        CHECK(now_ms() - started < 4000);
        sleep_ms(20);
    }
}

static void idle(void)
{
    furnish();
    EQUAL(CHUNK, kept_by(pools[HOST]));
    EQUAL(CHUNK, kept_by(pools[MANAGED]));
    for (double started = now_ms(); now_ms() - started < 3000; sleep_ms(20))
        EQUAL(CHUNK, kept_by(pools[HOST]));
    goes_back_when_idle(pools[HOST]);
    goes_back_when_idle(pools[MANAGED]);
    EQUAL(CHUNK, kept_by(pools[HOST]));
    goes_back_when_idle(pools[HOST]);
}

static void idle_once(void)
{
    furnish();
    EQUAL(CHUNK, kept_by(pools[HOST]));
    goes_back_when_idle(pools[HOST]);
}

/* Pools come and go beside a thread that gives everything back. */
static void *trim_all_the_time(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
        cudapool_trim();
    return NULL;
}

static void come_and_go(void)
{
    pthread_t thread;
    int stop = 0;
    furnish();
    CHECK(pthread_create(&thread, NULL, trim_all_the_time, &stop) == 0);
    for (int i = 0; i < 2000; i++) {
        CUmemoryPool own;
        CU(cuMemPoolCreate(&own, &sorts[CREATED + i % 2]));
        use(own);
        EQUAL(0, attribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
        CU(cuMemPoolDestroy(own));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(thread, NULL) == 0);
    CUmemoryPool last;
    CU(cuMemPoolCreate(&last, &sorts[HOST]));
    EQUAL(CHUNK, kept_by(last));
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(reads),
        CASE(kept),
        CASE(left),
        CASE(host_memory_left),
        CASE(set_before),
        CASE(asks_early),
        CASE(knows_when_asked_again),
        CASE(wild),
        CASE(device_memory_is_short),
        CASE(host_memory_is_short),
        CASE(trimmed),
        CASE(idle),
        CASE(idle_once),
        CASE(come_and_go),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
