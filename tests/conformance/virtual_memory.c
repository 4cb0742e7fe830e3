/*
 * Rows about physical memory and addresses apart: what mapping needs of a device that is full, and
 * how long memory lives. And about arrays: how much they take.
 */
#include "virtual_memory.h"

#include <stdlib.h>

/* One handle is mapped again and again, each time so far from the last that the driver needs
 * further pages for its tables. */
enum { MAPS = 256, FILLERS = 1024, GIB = 1 << 30 };

#define HANDLE_BYTES (2 * MIB)

struct filled {
    CUdeviceptr blocks[FILLERS];
    int count;
};

/* The largest blocks come first, so that a large device takes few calls. */
static void fill_device(struct filled *filled)
{
    filled->count = 0;
    for (size_t bytes = GIB; bytes >= 64 << 10 && filled->count < FILLERS;)
        if (cuMemAlloc_v2(&filled->blocks[filled->count], bytes) == CUDA_SUCCESS)
            filled->count++;
        else
            bytes /= 2;
}

/* What the driver or the pool keeps of them goes back where an allocation would fail. */
static void empty_device(struct filled *filled)
{
    size_t available, total = 0;
    CUdeviceptr block;
    while (filled->count > 0)
        SUCCEEDS(cuMemFree_v2(filled->blocks[--filled->count]));
    SUCCEEDS(cuMemGetInfo_v2(&available, &total));
    EXPECT(cuMemAlloc_v2(&block, total), CUDA_ERROR_OUT_OF_MEMORY);
}

static CUmemGenericAllocationHandle new_handle(size_t bytes)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu.device;
    SUCCEEDS(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

static void map_at(CUdeviceptr address, CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu.device;
    SUCCEEDS(cuMemMap(address, HANDLE_BYTES, 0, handle, 0));
    SUCCEEDS(cuMemSetAccess(address, HANDLE_BYTES, &access, 1));
}

/* What mapping takes is not of the memory that allocations can have: a pool need give none back for
 * it. */
void maps_on_a_full_device(void)
{
    struct filled *filled = calloc(1, sizeof *filled);
    CUmemGenericAllocationHandle handle = new_handle(HANDLE_BYTES);
    CUdeviceptr range = 0;
    SUCCEEDS(cuMemAddressReserve(&range, (size_t)MAPS * GIB, 0, 0, 0));
    SUCCEEDS(cuCtxSynchronize());
    fill_device(filled);
    CHECK(filled->count < FILLERS);
    for (size_t i = 0; i < MAPS && !has_failed(); i++)
        map_at(range + i * GIB, handle);
    empty_device(filled);
    for (size_t i = 0; i < MAPS && !has_failed(); i++)
        SUCCEEDS(cuMemUnmap(range + i * GIB, HANDLE_BYTES));
    SUCCEEDS(cuMemAddressFree(range, (size_t)MAPS * GIB));
    SUCCEEDS(cuMemRelease(handle));
    free(filled);
}

/* --- how long it lives -------------------------------------------------------------------------*/

#define LARGE_BYTES (64 * MIB)

static long long held_since(size_t before)
{
    return (long long)before - (long long)free_memory();
}

static CUdeviceptr new_range(size_t large_ones)
{
    CUdeviceptr range = 0;
    SUCCEEDS(cuMemAddressReserve(&range, large_ones * LARGE_BYTES, 0, 0, 0));
    return range;
}

/* A released handle can still be mapped and retained, as long as something is mapped. */
void handles_live_as_long_as_their_mappings(void)
{
    CUdeviceptr range = new_range(2);
    size_t before = free_memory();
    CUmemGenericAllocationHandle handle = new_handle(LARGE_BYTES);
    CHECK(held_since(before) == LARGE_BYTES);
    SUCCEEDS(cuMemMap(range, LARGE_BYTES, 0, handle, 0));
    SUCCEEDS(cuMemRelease(handle));
    EXPECT(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(held_since(before) == LARGE_BYTES);
    SUCCEEDS(cuMemMap(range + LARGE_BYTES, LARGE_BYTES, 0, handle, 0));
    SUCCEEDS(cuMemUnmap(range, LARGE_BYTES));
    CHECK(held_since(before) == LARGE_BYTES);
    SUCCEEDS(cuMemUnmap(range + LARGE_BYTES, LARGE_BYTES));
    CHECK(held_since(before) == 0);
    SUCCEEDS(cuMemAddressFree(range, 2 * LARGE_BYTES));
}

/* Each retain needs a release of its own. */
void retained_handles_are_the_same(void)
{
    CUdeviceptr range = new_range(1);
    size_t before = free_memory();
    CUmemGenericAllocationHandle handle = new_handle(LARGE_BYTES), retained = 0, again = 0;
    SUCCEEDS(cuMemMap(range, LARGE_BYTES, 0, handle, 0));
    SUCCEEDS(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(range + 4096)));
    CHECK(retained == handle);
    SUCCEEDS(cuMemRelease(handle));
    SUCCEEDS(cuMemRelease(handle));
    SUCCEEDS(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)range));
    CHECK(again == handle);
    SUCCEEDS(cuMemUnmap(range, LARGE_BYTES));
    CHECK(held_since(before) == LARGE_BYTES);
    SUCCEEDS(cuMemRelease(again));
    CHECK(held_since(before) == 0);
    SUCCEEDS(cuMemAddressFree(range, LARGE_BYTES));
}

void one_unmap_ends_many_mappings(void)
{
    CUdeviceptr range = new_range(4);
    size_t before = free_memory();
    CUmemGenericAllocationHandle one = new_handle(LARGE_BYTES), other = new_handle(LARGE_BYTES);
    SUCCEEDS(cuMemMap(range, LARGE_BYTES, 0, one, 0));
    SUCCEEDS(cuMemMap(range + LARGE_BYTES, LARGE_BYTES, 0, other, 0));
    SUCCEEDS(cuMemMap(range + 3 * LARGE_BYTES, LARGE_BYTES, 0, one, 0));
    SUCCEEDS(cuMemRelease(one));
    SUCCEEDS(cuMemRelease(other));
    CHECK(held_since(before) == 2 * LARGE_BYTES);
    EXPECT(cuMemUnmap(range + LARGE_BYTES / 2, LARGE_BYTES), CUDA_ERROR_INVALID_VALUE);
    SUCCEEDS(cuMemUnmap(range, 4 * LARGE_BYTES));
    CHECK(held_since(before) == 0);
    SUCCEEDS(cuMemUnmap(range, 4 * LARGE_BYTES));
    SUCCEEDS(cuMemAddressFree(range, 4 * LARGE_BYTES));
}

void physical_memory_outlives_contexts(void)
{
    CUcontext second = NULL;
    CUdeviceptr range = new_range(1);
    size_t before = free_memory();
    SUCCEEDS(cuCtxCreate_v2(&second, 0, gpu.device));
    CUmemGenericAllocationHandle handle = new_handle(LARGE_BYTES);
    SUCCEEDS(cuMemMap(range, LARGE_BYTES, 0, handle, 0));
    SUCCEEDS(cuCtxDestroy_v2(second));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    CHECK(held_since(before) >= (long long)LARGE_BYTES);
    long long after_it = held_since(before);
    SUCCEEDS(cuMemRelease(handle));
    SUCCEEDS(cuMemUnmap(range, LARGE_BYTES));
    CHECK(held_since(before) == after_it - (long long)LARGE_BYTES);
    SUCCEEDS(cuMemAddressFree(range, LARGE_BYTES));
}

/* The pool counts it until a free that does not wait for a stream. */
void managed_memory_is_not_freed_in_order(void)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAllocManaged(&address, MIB, CU_MEM_ATTACH_GLOBAL));
    EXPECT(cuMemFreeAsync(address, gpu.a), CUDA_ERROR_NOT_SUPPORTED);
    SUCCEEDS(cuMemFree_v2(address));
}

/* --- arrays ------------------------------------------------------------------------------------*/

enum { ARRAYS = 8 };

/* The driver takes pages of 2 MiB, and puts several arrays of up to 1 MiB into one. */
static void check_held_by_arrays(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t needed,
                                 long long held)
{
    size_t each = needed > MIB ? (needed + 2 * MIB - 1) / (2 * MIB) * (2 * MIB) : needed;
    size_t most = ARRAYS * each + 2 * MIB, least = ARRAYS * needed / 2;
    if (held < 0 || (size_t)held > most || (size_t)held + 2 * MIB < least)
        fail("%zu x %zu x %zu: %d take %lld KiB, and one says %zu", shape->Width, shape->Height,
             shape->Depth, ARRAYS, held / 1024, needed >> 10);
}

static void arrays_of(CUDA_ARRAY3D_DESCRIPTOR shape)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {0};
    CUarray arrays[ARRAYS], deferred;
    CUDA_ARRAY3D_DESCRIPTOR later = shape;
    later.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    size_t before = free_memory();
    SUCCEEDS(cuArray3DCreate_v2(&deferred, &later));
    CHECK(held_since(before) == 0);
    SUCCEEDS(cuArrayGetMemoryRequirements(&requirements, deferred, gpu.device));
    SUCCEEDS(cuArrayDestroy(deferred));
    for (int i = 0; i < ARRAYS && !has_failed(); i++)
        SUCCEEDS(cuArray3DCreate_v2(&arrays[i], &shape));
    check_held_by_arrays(&shape, requirements.size, held_since(before));
    EXPECT(cuArrayGetMemoryRequirements(&requirements, arrays[0], gpu.device),
           CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < ARRAYS && !has_failed(); i++)
        SUCCEEDS(cuArrayDestroy(arrays[i]));
}

void arrays_take_what_a_deferred_one_says(void)
{
    static const CUDA_ARRAY3D_DESCRIPTOR shapes[] = {
        {.Width = 100, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1},
        {.Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 4},
        {.Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_HALF, .NumChannels = 2},
        {.Width = 2048, .Height = 2048, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1},
        {.Width = 100, .Height = 100, .Depth = 100, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && !has_failed(); i++)
        arrays_of(shapes[i]);
}

/* A mipmapped array of none has one. */
#define NO_LEVELS (~0u)

/* Of an array that is mapped later; levels 0: no mipmapped array. */
static size_t needs_of(CUDA_ARRAY3D_DESCRIPTOR shape, unsigned levels)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    CUmipmappedArray mipmapped;
    CUarray array;
    shape.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels == 0) {
        SUCCEEDS(cuArray3DCreate_v2(&array, &shape));
        SUCCEEDS(cuArrayGetMemoryRequirements(&needs, array, gpu.device));
        SUCCEEDS(cuArrayDestroy(array));
    } else {
        SUCCEEDS(cuMipmappedArrayCreate(&mipmapped, &shape, levels == NO_LEVELS ? 0 : levels));
        SUCCEEDS(cuMipmappedArrayGetMemoryRequirements(&needs, mipmapped, gpu.device));
        SUCCEEDS(cuMipmappedArrayDestroy(mipmapped));
    }
    return needs.size;
}

/* What an H200 has said, in KiB: the pool computes what it counts of an array after this layout. */
void arrays_have_this_layout(void)
{
    enum { U8 = CU_AD_FORMAT_UNSIGNED_INT8, HALF = CU_AD_FORMAT_HALF, FLOAT = CU_AD_FORMAT_FLOAT };
    static const struct layout {
        CUDA_ARRAY3D_DESCRIPTOR shape;
        unsigned levels;
        long long kib;
    } layouts[] = {
        {{1, 0, 0, FLOAT, 1, 0}, 0, 64},
        {{100000, 0, 0, FLOAT, 1, 0}, 0, 3136},
        {{1000, 1000, 0, U8, 1, 0}, 0, 1024},
        {{1000, 1000, 0, U8, 4, 0}, 0, 4032},
        {{1000, 1000, 0, HALF, 4, 0}, 0, 8000},
        {{513, 513, 0, FLOAT, 1, 0}, 0, 1344},
        {{4097, 33, 0, FLOAT, 1, 0}, 0, 1088},
        {{30000, 30, 0, FLOAT, 1, 0}, 0, 3776},
        {{30, 30000, 0, FLOAT, 1, 0}, 0, 3776},
        {{100, 100, 100, FLOAT, 1, 0}, 0, 5120},
        {{33, 65, 17, FLOAT, 1, 0}, 0, 448},
        {{300, 20, 7, FLOAT, 1, 0}, 0, 256},
        {{1000, 0, 6, FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 0, 192},
        {{300, 300, 6, FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 0, 2752},
        {{300, 300, 6, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}, 0, 2752},
        {{1024, 1024, 0, FLOAT, 1, 0}, 1, 4096},
        {{1024, 1024, 0, FLOAT, 1, 0}, 11, 5504},
        {{1024, 1024, 0, FLOAT, 1, 0}, NO_LEVELS, 4096},
        {{1000, 700, 0, HALF, 4, 0}, 5, 8192},
        {{100, 100, 100, FLOAT, 1, 0}, 7, 6144},
        {{1000, 1000, 0, FLOAT, 1, 0}, 99, 5440},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0] && !has_failed(); i++) {
        const CUDA_ARRAY3D_DESCRIPTOR *shape = &layouts[i].shape;
        known_fact((long long)(needs_of(*shape, layouts[i].levels) >> 10), layouts[i].kib,
                   "KiB of %zu x %zu x %zu, %u channels of format %u, %u levels", shape->Width,
                   shape->Height, shape->Depth, shape->NumChannels, shape->Format,
                   layouts[i].levels);
    }
}
