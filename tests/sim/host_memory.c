/*
 * Host memory that the device may reach: allocated and registered.
 *
 * Freeing waits for all work of all contexts: any of them may use it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

static CUresult allocate(struct call *call, void **address, size_t bytes, unsigned int flags)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct allocation allocation = {.size = bytes,
                                    .kind = MEMORY_HOST,
                                    .context = call->context->root,
                                    .device = call->context->device,
                                    .flags = flags};
    void *memory;
    if (bytes > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation.extent.bytes = round_up(bytes, page);
    memory = mmap(NULL, allocation.extent.bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation.base = (uintptr_t)memory;
    if (allocation_add(&allocation) == NULL) {
        munmap(memory, allocation.extent.bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = memory;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemHostAlloc, NEEDS_CONTEXT | UNSAFE,
            (void **address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
    if (address == NULL || bytes == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(call, address, bytes, flags);
}

DRIVER_CALL(cuMemAllocHost_v2, NEEDS_CONTEXT | UNSAFE, (void **address, size_t bytes),
            (address, bytes))
{
    if (address == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(call, address, bytes, 0);
}

static void wait_for_all_contexts(void)
{
    uint64_t last = 0;
    for (;;) {
        struct context *next = NULL;
        for (struct context *context = sim.contexts; context != NULL; context = context->next)
            if (context->id > last && (next == NULL || context->id < next->id))
                next = context;
        if (next == NULL)
            return;
        last = next->id;
        context_wait_for_work(next);
    }
}

static struct allocation *host_allocation(const void *address, enum memory_kind kind)
{
    struct allocation *allocation = allocation_at((uintptr_t)address);
    if (allocation == NULL || allocation->kind != kind || allocation->base != (uintptr_t)address)
        return NULL;
    return allocation;
}

DRIVER_CALL(cuMemFreeHost, NEEDS_CONTEXT | UNSAFE, (void *address), (address))
{
    struct allocation *allocation = host_allocation(address, MEMORY_HOST);
    if (address == NULL)
        return CUDA_SUCCESS;
    if (allocation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    wait_for_all_contexts();
    if (host_allocation(address, MEMORY_HOST) != allocation)
        return CUDA_ERROR_INVALID_VALUE;
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

static CUresult register_host(struct call *call, void *address, size_t bytes, unsigned int flags)
{
    struct allocation allocation = {.base = (uintptr_t)address,
                                    .size = bytes,
                                    .kind = MEMORY_REGISTERED,
                                    .context = call->context->root,
                                    .device = call->context->device,
                                    .flags = flags};
    if (address == NULL || bytes == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation_at((uintptr_t)address) != NULL)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return allocation_add(&allocation) != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DRIVER_CALL(cuMemHostRegister, NEEDS_CONTEXT | UNSAFE,
            (void *address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
    return register_host(call, address, bytes, flags);
}

DRIVER_CALL(cuMemHostRegister_v2, NEEDS_CONTEXT | UNSAFE,
            (void *address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
    return register_host(call, address, bytes, flags);
}

DRIVER_CALL(cuMemHostUnregister, NEEDS_CONTEXT | UNSAFE, (void *address), (address))
{
    struct allocation *allocation = host_allocation(address, MEMORY_REGISTERED);
    if (allocation == NULL)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    wait_for_all_contexts();
    if (host_allocation(address, MEMORY_REGISTERED) != allocation)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

static bool is_host(const struct allocation *allocation)
{
    return allocation != NULL &&
           (allocation->kind == MEMORY_HOST || allocation->kind == MEMORY_REGISTERED);
}

DRIVER_CALL(cuMemHostGetDevicePointer_v2, NEEDS_CONTEXT,
            (CUdeviceptr * device, void *host, unsigned int flags), (device, host, flags))
{
    if (device == NULL || flags != 0 || !is_host(allocation_at((uintptr_t)host)))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (uintptr_t)host;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemHostGetFlags, NEEDS_CONTEXT, (unsigned int *flags, void *host), (flags, host))
{
    const struct allocation *allocation = allocation_at((uintptr_t)host);
    unsigned int kept = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    if (flags == NULL || !is_host(allocation))
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation->kind == MEMORY_HOST)
        kept |= CU_MEMHOSTALLOC_WRITECOMBINED;
    *flags = (allocation->flags & kept) | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}
