/*
 * What programs under a limit of device memory share: pieces of every kind that counts, the pool's
 * and others, and how much cuMemGetInfo says is left.
 */
#ifndef CUDAPOOL_TESTS_LIMITED_H
#define CUDAPOOL_TESTS_LIMITED_H

#include "pool.h"

enum { PIECES = 8 };

#define PIECE (32 * MIB)
#define LIMIT (PIECES * PIECE)

static CUdevice device;
static CUstream stream;

union piece {
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUmipmappedArray mipmapped;
};

static CUresult take_physical(union piece *piece)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return cuMemCreate(&piece->handle, PIECE, &properties, 0);
}

static CUresult free_physical(union piece *piece)
{
    return cuMemRelease(piece->handle);
}

static const CUDA_ARRAY3D_DESCRIPTOR shape = {
    .Width = 4096, .Height = 2048, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

static CUresult take_array(union piece *piece)
{
    CUDA_ARRAY_DESCRIPTOR flat = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
    return cuArrayCreate_v2(&piece->array, &flat);
}

static CUresult take_array3d(union piece *piece)
{
    CUDA_ARRAY3D_DESCRIPTOR deep = shape;
    deep.Height /= 16;
    deep.Depth = 16;
    return cuArray3DCreate_v2(&piece->array, &deep);
}

static CUresult free_array(union piece *piece)
{
    return cuArrayDestroy(piece->array);
}

static CUresult take_mipmapped(union piece *piece)
{
    return cuMipmappedArrayCreate(&piece->mipmapped, &shape, 1);
}

static CUresult free_mipmapped(union piece *piece)
{
    return cuMipmappedArrayDestroy(piece->mipmapped);
}

static CUresult take_managed(union piece *piece)
{
    return cuMemAllocManaged(&piece->address, PIECE, CU_MEM_ATTACH_GLOBAL);
}

static CUresult take_plain(union piece *piece)
{
    return cuMemAlloc_v2(&piece->address, PIECE);
}

static CUresult free_plain(union piece *piece)
{
    return cuMemFree_v2(piece->address);
}

static CUresult take_async(union piece *piece)
{
    return cuMemAllocAsync(&piece->address, PIECE, stream);
}

static CUresult free_async(union piece *piece)
{
    return cuMemFreeAsync(piece->address, stream);
}

static const struct kind {
    const char *name;
    CUresult (*take)(union piece *piece);
    CUresult (*free)(union piece *piece);
} kinds[] = {
    {"physical", take_physical, free_physical}, {"array", take_array, free_array},
    {"array3d", take_array3d, free_array},      {"mipmapped", take_mipmapped, free_mipmapped},
    {"managed", take_managed, free_plain},      {"plain", take_plain, free_plain},
    {"async", take_async, free_async},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static unsigned long long left(void)
{
    size_t available, total;
    CU(cuMemGetInfo_v2(&available, &total));
    return available;
}

/* Waits until so much is left, 5 s at most, and returns what is. Memory that the pool is giving
 * back is not left until the driver has it. */
static unsigned long long left_at_last(unsigned long long expected)
{
    unsigned long long now;
    for (int i = 0; (now = left()) != expected && i < 500; i++)
        sleep_ms(10);
    return now;
}

#define IS_LEFT(bytes) EQUAL(bytes, left_at_last(bytes))

static void open_all(void)
{
    (void)open_primary();
    CU(cuCtxGetDevice(&device));
    stream = new_stream();
}

enum { THREADS = 16 };

static void begin_threads(pthread_t threads[THREADS], void *(*run)(void *number))
{
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
}

/* They have freed what they took. */
static void end_threads(const pthread_t threads[THREADS])
{
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CU(cuCtxSynchronize());
    IS_LEFT(LIMIT);
}

static void use_primary(void)
{
    CUcontext primary;
    CU(cuDevicePrimaryCtxRetain(&primary, device));
    CU(cuCtxSetCurrent(primary));
}

static const struct kind *kind_named(const char *name)
{
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    FAIL("no kind \"%s\"", name);
}

#endif
