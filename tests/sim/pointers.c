/*
 * What the driver tells about a pointer, and handles that take memory out of its hands.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

/* What the driver tells of. Of a graph's memory that is only what a launch has allocated and nobody
 * has freed. */
static const struct allocation *known_at(CUdeviceptr address)
{
    const struct allocation *allocation = allocation_at(address);
    if (allocation == NULL || allocation->kind == MEMORY_INTERNAL ||
        allocation->kind == MEMORY_RESERVED ||
        (allocation->kind == MEMORY_GRAPH && !graph_memory_is_live(allocation)))
        return NULL;
    return allocation;
}

DRIVER_CALL(cuMemGetAddressRange_v2, NEEDS_CONTEXT,
            (CUdeviceptr * base, size_t *size, CUdeviceptr address), (base, size, address))
{
    const struct allocation *allocation = known_at(address);
    if (base == NULL && size == NULL)
        return CUDA_SUCCESS;
    if (allocation == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = allocation->base;
    if (size != NULL)
        *size = allocation->size;
    return CUDA_SUCCESS;
}

static bool is_host(const struct allocation *allocation)
{
    return allocation->kind == MEMORY_HOST || allocation->kind == MEMORY_REGISTERED;
}

static CUcontext context_handle(const struct allocation *allocation)
{
    const struct context *context = context_with_id(allocation->context_id);
    return context != NULL ? context->handle : NULL;
}

/* How large the value of an attribute is; 0 for one that is not known. */
static size_t value_size(CUpointer_attribute attribute)
{
    static const unsigned char sizes[] = {
        [CU_POINTER_ATTRIBUTE_CONTEXT] = sizeof(CUcontext),
        [CU_POINTER_ATTRIBUTE_MEMORY_TYPE] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_DEVICE_POINTER] = sizeof(CUdeviceptr),
        [CU_POINTER_ATTRIBUTE_HOST_POINTER] = sizeof(void *),
        [CU_POINTER_ATTRIBUTE_P2P_TOKENS] = 16,
        [CU_POINTER_ATTRIBUTE_SYNC_MEMOPS] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_BUFFER_ID] = sizeof(unsigned long long),
        [CU_POINTER_ATTRIBUTE_IS_MANAGED] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL] = sizeof(int),
        [CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_RANGE_START_ADDR] = sizeof(CUdeviceptr),
        [CU_POINTER_ATTRIBUTE_RANGE_SIZE] = sizeof(size_t),
        [CU_POINTER_ATTRIBUTE_MAPPED] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES] = sizeof(unsigned long long),
        [CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_ACCESS_FLAGS] = sizeof(unsigned int),
        [CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE] = sizeof(CUmemoryPool),
        [CU_POINTER_ATTRIBUTE_MAPPING_SIZE] = sizeof(size_t),
        [CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR] = sizeof(CUdeviceptr),
        [CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID] = sizeof(unsigned long long),
    };
    return attribute < sizeof sizes ? sizes[attribute] : 0;
}

/* Whole pages; of memory pools the piece that blocks are cut out of. */
static uint64_t mapping_of(const struct allocation *allocation)
{
    uint64_t page = 2 * MIB;
    return allocation->pool != NULL ? 32 * MIB : (allocation->size + page - 1) / page * page;
}

/* The value as bytes, small ones in the low end; false where the memory has no such attribute. */
static bool value_of(const struct allocation *allocation, CUpointer_attribute attribute,
                     CUdeviceptr address, uint64_t value[2])
{
    bool device_memory = !is_host(allocation);
    value[0] = value[1] = 0;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        value[0] = (uintptr_t)context_handle(allocation);
        return allocation->kind != MEMORY_MAPPED && allocation->kind != MEMORY_ASYNC;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        value[0] = allocation->pool != NULL ? pool_memory_type(allocation->pool)
                   : device_memory          ? CU_MEMORYTYPE_DEVICE
                                            : CU_MEMORYTYPE_HOST;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        value[0] = address;
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        value[0] = address;
        return !device_memory || allocation->kind == MEMORY_MANAGED;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        value[0] = allocation->id;
        return allocation->kind == MEMORY_DEVICE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        value[0] = allocation->sync_memops;
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        value[0] = allocation->id;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        value[0] = allocation->kind == MEMORY_MANAGED;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        value[0] = (uint64_t)allocation->device->ordinal;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        value[0] = allocation->kind == MEMORY_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        value[0] = allocation->base;
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        value[0] = host_mapping_of(allocation);
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        value[0] = allocation->size;
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        value[0] = mapping_of(allocation);
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        value[0] = 1;
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        value[0] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        value[0] = (uintptr_t)(allocation->pool != NULL ? pool_handle(allocation->pool) : NULL);
        return true;
    default:
        return false;
    }
}

/* Little-endian, so a short value is the first bytes of the long one. */
static CUresult get_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    const struct allocation *allocation = known_at(address);
    uint64_t bytes[2];
    if (allocation == NULL || !value_of(allocation, attribute, address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, bytes, value_size(attribute));
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuPointerGetAttribute, NEEDS_CONTEXT,
            (void *value, CUpointer_attribute attribute, CUdeviceptr address),
            (value, attribute, address))
{
    if (value == NULL || value_size(attribute) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return get_attribute(value, attribute, address);
}

/* For memory that the driver does not know, and attributes that it does not have, the answer is 0
 * (-2 for the device; an unknown address is its own host pointer). */
static void get_or_clear(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    int no_device = -2;
    if (get_attribute(value, attribute, address) == CUDA_SUCCESS)
        return;
    memset(value, 0, value_size(attribute));
    if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && is_pageable(address))
        memcpy(value, &address, sizeof address);
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        memcpy(value, &no_device, sizeof no_device);
}

DRIVER_CALL(cuPointerGetAttributes, NEEDS_CONTEXT,
            (unsigned int count, CUpointer_attribute *attributes, void **values,
             CUdeviceptr address),
            (count, attributes, values, address))
{
    if (count == 0 || attributes == NULL || values == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        if (value_size(attributes[i]) == 0 || values[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        get_or_clear(values[i], attributes[i], address);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuPointerSetAttribute, NEEDS_CONTEXT,
            (const void *value, CUpointer_attribute attribute, CUdeviceptr address),
            (value, attribute, address))
{
    struct allocation *allocation = allocation_at(address);
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || allocation == NULL ||
        (allocation->kind != MEMORY_DEVICE && allocation->kind != MEMORY_HOST &&
         allocation->kind != MEMORY_REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    allocation->sync_memops = *(const unsigned int *)value != 0;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuIpcGetMemHandle, NEEDS_CONTEXT, (CUipcMemHandle * handle, CUdeviceptr address),
            (handle, address))
{
    const struct allocation *allocation = allocation_at(address);
    if (handle == NULL || allocation == NULL || allocation->kind != MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &allocation->id, sizeof allocation->id);
    return CUDA_SUCCESS;
}

/* As if every memory pool could be shared. */
DRIVER_CALL(cuMemPoolExportPointer, NEEDS_CONTEXT,
            (CUmemPoolPtrExportData * data, CUdeviceptr address), (data, address))
{
    const struct allocation *allocation = allocation_at(address);
    return data == NULL || allocation == NULL || allocation->pool == NULL ? CUDA_ERROR_INVALID_VALUE
                                                                          : CUDA_SUCCESS;
}

DRIVER_CALL(cuMemGetHandleForAddressRange, NEEDS_CONTEXT,
            (void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
             unsigned long long flags),
            (handle, address, bytes, type, flags))
{
    const struct allocation *allocation = allocation_at(address);
    int file;
    if (handle == NULL || bytes == 0 || flags > 1 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
        allocation == NULL || is_host(allocation) ||
        address + bytes > allocation->base + round_up(allocation->size, 4096))
        return CUDA_ERROR_INVALID_VALUE;
    file = memfd_create("simcuda-dma-buf", MFD_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)handle = file;
    return CUDA_SUCCESS;
}

/* Multicast objects are not simulated: what is bound to one says whether the memory could be. */
static CUresult bind_address(CUdeviceptr address, size_t bytes, unsigned long long flags)
{
    const struct allocation *allocation = allocation_at(address);
    if (bytes == 0 || flags != 0 || allocation == NULL || allocation->kind != MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return address + bytes <= allocation->base + allocation->extent.bytes
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL(cuMulticastBindAddr, 0,
            (CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address,
             size_t bytes, unsigned long long flags),
            (multicast, offset, address, bytes, flags))
{
    return bind_address(address, bytes, flags);
}

DRIVER_CALL(cuMulticastBindAddr_v2, 0,
            (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
             CUdeviceptr address, size_t bytes, unsigned long long flags),
            (multicast, device, offset, address, bytes, flags))
{
    return device_of(device) != NULL ? bind_address(address, bytes, flags)
                                     : CUDA_ERROR_INVALID_DEVICE;
}
