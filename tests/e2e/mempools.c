/*
 * The driver's memory pools of managed and of host memory, which are as without the pool. A case to
 * a process.
 */
#include <dlfcn.h>

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

static void reads(void)
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

static void left(void)
{
    furnish();
    for (int i = 0; i < POOLS; i++)
        EQUAL(0, kept_by(pools[i]));
}

/* A program that was set up before it asks for the pool: what it set stays. */
static void set_before(void)
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

static void wild(void)
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

static void device_memory_is_short(void) /* of 64 MiB */
{
    furnish();
    use(pools[MANAGED]);
    take(48 * MIB);
    EQUAL(0, attribute(pools[MANAGED], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(reads),      CASE(left), CASE(set_before),
        CASE(asks_early), CASE(wild), CASE(device_memory_is_short),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
