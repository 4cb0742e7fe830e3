/*
 * Rows about the driver's memory pools of managed and of host memory. Functions and constants are
 * newer than some drivers and toolkits: what a driver lacks is noted, and no failure.
 */
#include "pools.h"

#include <dlfcn.h>
#include <stdint.h>

/* Newer than some toolkits that the types are checked against. */
enum { LOCATION_NONE = 0, LOCATION_HOST = 2, LOCATION_NODE = 3, LOCATION_THIS_NODE = 4 };
enum { ALLOCATION_MANAGED = 2 };

enum { SORTS = 4, WORK_MS = 200, PAIRS = 50 };

typedef CUresult get_pool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
typedef CUresult set_pool(CUmemLocation *, CUmemAllocationType, CUmemoryPool);

static const struct sort {
    const char *name;
    unsigned int type, location;
} sorts[SORTS] = {
    {"managed memory on the device", ALLOCATION_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE},
    {"managed memory of nowhere", ALLOCATION_MANAGED, LOCATION_NONE},
    {"host memory", CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_HOST},
    {"host memory of node 0", CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_NODE},
};

static CUmemLocation location_of(unsigned int type)
{
    CUmemLocation location = {.id = type == CU_MEM_LOCATION_TYPE_DEVICE ? gpu.device : 0};
    location.type = type;
    return location;
}

static void *function_of(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (found == NULL)
        note("the driver has no %s", name);
    return found;
}

static CUresult get(const char *by, CUmemoryPool *pool, unsigned int location, unsigned int type)
{
    get_pool *function = (get_pool *)(uintptr_t)function_of(by);
    CUmemLocation place = location_of(location);
    *pool = NULL;
    return function != NULL ? function(pool, &place, (CUmemAllocationType)type)
                            : CUDA_ERROR_NOT_FOUND;
}

/* NULL where there is none. */
static CUmemoryPool create(const struct sort *sort)
{
    CUmemPoolProps properties = {.location = location_of(sort->location)};
    CUmemoryPool pool = NULL;
    CUresult result;
    properties.allocType = sort->type;
    result = cuMemPoolCreate(&pool, &properties);
    if (result != CUDA_SUCCESS)
        note("a pool of %s cannot be made: %s", sort->name, name_of(result));
    return result == CUDA_SUCCESS ? pool : NULL;
}

static cuuint64_t attribute(CUmemoryPool pool, unsigned int which)
{
    cuuint64_t value = 0;
    SUCCEEDS(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static void set_threshold(CUmemoryPool pool, cuuint64_t bytes)
{
    SUCCEEDS(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

/* --- which pool --------------------------------------------------------------------------------*/

static void tell_default_of(const struct sort *sort)
{
    CUmemoryPool first, again, current;
    CUresult result = get("cuMemGetDefaultMemPool", &first, sort->location, sort->type);
    fact(result, "cuMemGetDefaultMemPool for %s", sort->name);
    if (result != CUDA_SUCCESS)
        return;
    SUCCEEDS(get("cuMemGetDefaultMemPool", &again, sort->location, sort->type));
    SUCCEEDS(get("cuMemGetMemPool", &current, sort->location, sort->type));
    CHECK(first != NULL && again == first);
    fact(current == first, "the current pool of %s is its default one", sort->name);
    fact((long long)attribute(first, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
         "the release threshold of the default pool of %s", sort->name);
}

void pools_are_found_by_their_memory(void)
{
    CUmemoryPool device, found;
    if (function_of("cuMemGetDefaultMemPool") == NULL)
        return;
    SUCCEEDS(cuDeviceGetDefaultMemPool(&device, gpu.device));
    SUCCEEDS(get("cuMemGetDefaultMemPool", &found, CU_MEM_LOCATION_TYPE_DEVICE,
                 CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(found == device);
    for (int i = 0; i < SORTS; i++)
        tell_default_of(&sorts[i]);
    EXPECT(get("cuMemGetDefaultMemPool", &found, LOCATION_NONE, CU_MEM_ALLOCATION_TYPE_PINNED),
           CUDA_ERROR_INVALID_VALUE);
    EXPECT(get("cuMemGetMemPool", &found, LOCATION_THIS_NODE, CU_MEM_ALLOCATION_TYPE_PINNED),
           CUDA_ERROR_NOT_SUPPORTED);
    fact(get("cuMemGetDefaultMemPool", &found, LOCATION_HOST, ALLOCATION_MANAGED),
         "cuMemGetDefaultMemPool for managed memory on the host");
}

static void choose(const struct sort *sort, set_pool *set)
{
    CUmemLocation place = location_of(sort->location), device = location_of(1);
    CUmemoryPool standard, own = create(sort), found;
    if (own == NULL)
        return;
    if (get("cuMemGetDefaultMemPool", &standard, sort->location, sort->type) == CUDA_SUCCESS) {
        SUCCEEDS(set(&place, sort->type, own));
        SUCCEEDS(get("cuMemGetMemPool", &found, sort->location, sort->type));
        CHECK(found == own);
        EXPECT(set(&device, CU_MEM_ALLOCATION_TYPE_PINNED, own), CUDA_ERROR_INVALID_VALUE);
        SUCCEEDS(cuMemPoolDestroy(own));
        SUCCEEDS(get("cuMemGetMemPool", &found, sort->location, sort->type));
        fact(found == standard, "after its end the default pool of %s is the current one",
             sort->name);
        SUCCEEDS(set(&place, sort->type, standard));
    } else {
        SUCCEEDS(cuMemPoolDestroy(own));
    }
}

void pools_are_chosen_by_their_memory(void)
{
    set_pool *set = (set_pool *)(uintptr_t)function_of("cuMemSetMemPool");
    for (int i = 0; set != NULL && i < SORTS; i++)
        choose(&sorts[i], set);
}

void default_pools_are_destroyed(void)
{
    CUmemoryPool standard;
    if (function_of("cuMemGetDefaultMemPool") == NULL)
        return;
    for (int i = 0; i < SORTS; i++)
        if (get("cuMemGetDefaultMemPool", &standard, sorts[i].location, sorts[i].type) ==
            CUDA_SUCCESS)
            fact(cuMemPoolDestroy(standard), "cuMemPoolDestroy of the default pool of %s",
                 sorts[i].name);
}

/* --- what they keep ----------------------------------------------------------------------------*/

/* False where the pool gives no memory. Kernels may not reach what is not the device's by default,
 * and a fault would end the run: so only that is written to. */
static bool use(CUmemoryPool pool, const struct sort *sort, size_t bytes)
{
    CUdeviceptr block = 0;
    CUresult result = cuMemAllocFromPoolAsync(&block, bytes, pool, gpu.a);
    if (result != CUDA_SUCCESS)
        return false;
    if (sort->location == CU_MEM_LOCATION_TYPE_DEVICE)
        fill(gpu.a, block, (unsigned int)(bytes / 4), 1);
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    return true;
}

static void keep(CUmemoryPool pool, const struct sort *sort)
{
    const char *name = sort->name;
    set_threshold(pool, 0);
    if (!use(pool, sort, MIB)) {
        note("a pool of %s gives no memory", name);
        return;
    }
    fact(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != 0,
         "with threshold 0 a pool of %s keeps something", name);
    set_threshold(pool, UINT64_MAX);
    use(pool, sort, MIB);
    fact(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != 0,
         "with the highest threshold a pool of %s keeps something", name);
    fact(cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo of a pool of %s", name);
    fact(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != 0,
         "after a trim a pool of %s keeps something", name);
}

static void with_each_pool(void (*check)(CUmemoryPool pool, const struct sort *sort))
{
    for (int i = 0; i < SORTS; i++) {
        CUmemoryPool pool = create(&sorts[i]);
        if (pool == NULL)
            continue;
        check(pool, &sorts[i]);
        SUCCEEDS(cuMemPoolDestroy(pool));
    }
}

void pools_of_other_memory_keep_up_to_their_threshold(void)
{
    with_each_pool(keep);
}

static void tell_free_memory(CUmemoryPool pool, const struct sort *sort)
{
    size_t before = free_memory();
    set_threshold(pool, UINT64_MAX);
    if (!use(pool, sort, 256 * MIB))
        return;
    size_t kept = free_memory();
    SUCCEEDS(cuMemPoolTrimTo(pool, 0));
    note("256 MiB that a pool of %s keeps: the device has %lld MiB less, and %lld MiB less once "
         "they are trimmed",
         sort->name, (long long)(before - kept) >> 20, (long long)(before - free_memory()) >> 20);
}

void pools_of_other_memory_and_free_memory(void)
{
    with_each_pool(tell_free_memory);
}

static void trim_beside_a_kernel(CUmemoryPool pool, const struct sort *sort)
{
    double started;
    set_threshold(pool, UINT64_MAX);
    if (!use(pool, sort, 64 * MIB))
        return;
    spin(gpu.b, WORK_MS);
    started = now_ms();
    SUCCEEDS(cuMemPoolTrimTo(pool, 0));
    note("64 MiB of %s are trimmed beside a kernel of %d ms in %.2f ms", sort->name, WORK_MS,
         now_ms() - started);
    SUCCEEDS(cuStreamSynchronize(gpu.b));
}

void pools_of_other_memory_are_trimmed_beside_a_kernel(void)
{
    with_each_pool(trim_beside_a_kernel);
}

static double pair_us(CUmemoryPool pool, const struct sort *sort, cuuint64_t threshold)
{
    double started;
    set_threshold(pool, threshold);
    if (!use(pool, sort, 16 * MIB))
        return 0;
    started = now_ms();
    for (int i = 0; i < PAIRS; i++)
        use(pool, sort, 16 * MIB);
    return (now_ms() - started) * 1000 / PAIRS;
}

static void tell_cost(CUmemoryPool pool, const struct sort *sort)
{
    double without = pair_us(pool, sort, 0), with = pair_us(pool, sort, UINT64_MAX);
    note("16 MiB of %s, allocated, freed and waited for: %.1f us with threshold 0, %.1f "
         "with the highest",
         sort->name, without, with);
}

void pools_of_other_memory_cost_less_with_a_threshold(void)
{
    with_each_pool(tell_cost);
}

/* ---- stream-ordered memory and contexts ---- */

/* It is the device's pool's: another context frees it, plainly or in the order of a stream of its
 * own, and what is freed is there again. */
void memory_outlives_the_context_of_its_stream(void)
{
    CUcontext context = NULL;
    CUstream stream = NULL;
    CUdeviceptr first = 0, second = 0, again = 0;
    SUCCEEDS(cuCtxCreate_v2(&context, 0, gpu.device));
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SUCCEEDS(cuMemAllocAsync(&first, 64 * MIB, stream));
    SUCCEEDS(cuMemAllocAsync(&second, 64 * MIB, stream));
    SUCCEEDS(cuStreamSynchronize(stream));
    SUCCEEDS(cuCtxDestroy_v2(context));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuMemsetD8_v2(first, 1, 64 * MIB));
    SUCCEEDS(cuCtxSynchronize()); /* the plain free of such memory does not wait */
    SUCCEEDS(cuMemFree_v2(first));
    EXPECT(cuMemFree_v2(first), CUDA_ERROR_INVALID_VALUE);
    SUCCEEDS(cuMemFreeAsync(second, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemAllocAsync(&again, 64 * MIB, gpu.a));
    SUCCEEDS(cuMemFreeAsync(again, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

/* A green context's streams take events that were made in the primary one, whichever is current. */
void events_of_the_primary_context_on_green_streams(void)
{
    CUdevResource resource;
    CUdevResourceDesc resources;
    CUgreenCtx green;
    CUcontext as_context = NULL;
    CUstream stream = NULL;
    CUevent event = NULL;
    if (cuDeviceGetDevResource(gpu.device, &resource, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) {
        note("no green contexts here");
        return;
    }
    SUCCEEDS(cuDevResourceGenerateDesc(&resources, &resource, 1));
    SUCCEEDS(cuGreenCtxCreate(&green, resources, gpu.device, CU_GREEN_CTX_DEFAULT_STREAM));
    SUCCEEDS(cuCtxFromGreenCtx(&as_context, green));
    SUCCEEDS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    SUCCEEDS(cuCtxSetCurrent(as_context));
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SUCCEEDS(cuEventRecord(event, stream));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuEventRecord(event, stream));
    SUCCEEDS(cuStreamWaitEvent(stream, event, 0));
    SUCCEEDS(cuStreamSynchronize(stream));
    SUCCEEDS(cuEventQuery(event));
    SUCCEEDS(cuStreamDestroy_v2(stream));
    SUCCEEDS(cuEventDestroy_v2(event));
    SUCCEEDS(cuGreenCtxDestroy(green));
}
