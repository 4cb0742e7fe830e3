/*
 * Rows about physical memory and addresses apart: what mapping needs of a device that is full.
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

static CUmemGenericAllocationHandle new_handle(void)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu.device;
    SUCCEEDS(cuMemCreate(&handle, HANDLE_BYTES, &properties, 0));
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
    CUmemGenericAllocationHandle handle = new_handle();
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
