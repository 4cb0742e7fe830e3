/*
 * Physical memory and addresses apart: cuMemCreate, cuMemAddressReserve, cuMemMap.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define GRANULARITY (2 * MIB)

/* Its handle is good as long as it is there: once released and still mapped, too. */
struct physical {
    struct extent extent; /* what it takes of the device; its addresses are not used */
    int file;             /* its bytes */
    unsigned int mappings;
    unsigned int holds; /* by cuMemCreate and cuMemRetainAllocationHandle */
    CUmemGenericAllocationHandle handle;
};

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    return handle_object(KIND_PHYSICAL, (void *)(uintptr_t)handle);
}

static void free_if_unused(struct physical *physical)
{
    if (physical->holds > 0 || physical->mappings > 0)
        return;
    if (physical->handle != 0)
        handle_free(KIND_PHYSICAL, (void *)(uintptr_t)physical->handle);
    close(physical->file);
    extent_give(&physical->extent);
    free(physical);
}

DRIVER_CALL(cuMemGetAllocationGranularity, 0,
            (size_t * granularity, const CUmemAllocationProp *properties,
             CUmemAllocationGranularity_flags option),
            (granularity, properties, option))
{
    if (granularity == NULL || properties == NULL || option > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemCreate, UNSAFE,
            (CUmemGenericAllocationHandle * handle, size_t bytes,
             const CUmemAllocationProp *properties, unsigned long long flags),
            (handle, bytes, properties, flags))
{
    struct physical *physical;
    struct device *device;
    if (handle == NULL || properties == NULL || flags != 0 || bytes == 0 ||
        bytes % GRANULARITY != 0 || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    device = device_of(properties->location.id);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    physical = calloc(1, sizeof *physical);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!extent_take(device, NULL, bytes, &physical->extent)) {
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->file = memfd_create("simcuda-memory", MFD_CLOEXEC);
    if (physical->file < 0 || ftruncate(physical->file, (off_t)bytes) != 0) {
        free_if_unused(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->holds = 1;
    physical->handle = (CUmemGenericAllocationHandle)(uintptr_t)handle_new(KIND_PHYSICAL, physical);
    *handle = physical->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemRelease, UNSAFE, (CUmemGenericAllocationHandle handle), (handle))
{
    struct physical *physical = physical_of(handle);
    if (physical == NULL || physical->holds == 0)
        return CUDA_ERROR_INVALID_VALUE;
    physical->holds--;
    free_if_unused(physical);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemRetainAllocationHandle, 0, (CUmemGenericAllocationHandle * handle, void *address),
            (handle, address))
{
    struct allocation *mapped = allocation_at((uintptr_t)address);
    if (handle == NULL || mapped == NULL || mapped->kind != MEMORY_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    mapped->physical->holds++;
    *handle = mapped->physical->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemAddressReserve, 0,
            (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr hint,
             unsigned long long flags),
            (address, bytes, alignment, hint, flags))
{
    struct allocation reserved = {.size = bytes, .kind = MEMORY_RESERVED};
    size_t align = alignment < GRANULARITY ? GRANULARITY : alignment;
    char *memory;
    if (address == NULL || bytes == 0 || bytes % 4096 != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memory =
        mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    reserved.base = round_up((uintptr_t)memory, align);
    if (reserved.base > (uintptr_t)memory)
        munmap(memory, reserved.base - (uintptr_t)memory);
    munmap((void *)(uintptr_t)(reserved.base + bytes), align - (reserved.base - (uintptr_t)memory));
    if (allocation_add(&reserved) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reserved.base;
    return CUDA_SUCCESS;
}

struct place {
    uint64_t begin, bytes;
    enum memory_kind kind;
};

static bool is_at(const struct allocation *allocation, const void *argument)
{
    const struct place *place = argument;
    return allocation->kind == place->kind && allocation->base == place->begin &&
           allocation->size == place->bytes;
}

static bool is_mapped_within(const struct allocation *allocation, const void *argument)
{
    const struct place *place = argument;
    return allocation->kind == MEMORY_MAPPED && allocation->base < place->begin + place->bytes &&
           place->begin < allocation->base + allocation->size;
}

static bool is_reserved_around(const struct allocation *allocation, const void *argument)
{
    const struct place *place = argument;
    return allocation->kind == MEMORY_RESERVED && allocation->base <= place->begin &&
           place->begin + place->bytes <= allocation->base + allocation->size;
}

DRIVER_CALL(cuMemAddressFree, 0, (CUdeviceptr address, size_t bytes), (address, bytes))
{
    struct place place = {address, bytes, MEMORY_RESERVED};
    struct allocation *reserved = allocation_find(is_at, &place);
    if (reserved == NULL || allocation_find(is_mapped_within, &place) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)address, bytes);
    allocation_free(reserved);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemMap, 0,
            (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags),
            (address, bytes, offset, handle, flags))
{
    struct physical *physical = physical_of(handle);
    struct place place = {address, bytes, MEMORY_RESERVED};
    struct allocation mapped = {.base = address, .size = bytes, .kind = MEMORY_MAPPED};
    if (physical == NULL || flags != 0 || offset != 0 || bytes == 0 ||
        bytes > physical->extent.bytes || allocation_find(is_reserved_around, &place) == NULL ||
        allocation_find(is_mapped_within, &place) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             physical->file, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapped.device = physical->extent.device;
    mapped.physical = physical;
    if (allocation_add(&mapped) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->mappings++;
    return CUDA_SUCCESS;
}

static void wait_for_device(const struct device *device)
{
    uint64_t last = 0;
    for (;;) {
        struct context *next = NULL;
        for (struct context *context = sim.contexts; context != NULL; context = context->next)
            if (context->device == device && context->id > last &&
                (next == NULL || context->id < next->id))
                next = context;
        if (next == NULL)
            return;
        last = next->id;
        context_wait_for_work(next);
    }
}

static bool is_mapped_across(const struct allocation *allocation, const void *argument)
{
    const struct place *place = argument;
    return is_mapped_within(allocation, argument) &&
           (allocation->base < place->begin ||
            allocation->base + allocation->size > place->begin + place->bytes);
}

static void unmap(struct allocation *mapped)
{
    struct physical *physical = mapped->physical;
    allocation_free(mapped);
    physical->mappings--;
    free_if_unused(physical);
}

/* Any number of mappings may lie in the range, and none. */
DRIVER_CALL(cuMemUnmap, UNSAFE, (CUdeviceptr address, size_t bytes), (address, bytes))
{
    struct place place = {address, bytes, MEMORY_RESERVED};
    struct allocation *mapped = allocation_find(is_mapped_within, &place);
    if (allocation_find(is_reserved_around, &place) == NULL ||
        allocation_find(is_mapped_across, &place) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (mapped != NULL)
        wait_for_device(mapped->device);
    if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    while ((mapped = allocation_find(is_mapped_within, &place)) != NULL)
        unmap(mapped);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemSetAccess, 0,
            (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count),
            (address, bytes, access, count))
{
    struct place place = {address, bytes, MEMORY_MAPPED};
    if (access == NULL || count == 0 || allocation_find(is_mapped_within, &place) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
