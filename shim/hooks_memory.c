/*
 * Hooks of device memory: the calls that the pool serves, and the calls that describe or share a
 * pointer. The program must see the sizes that it requested, and must not see memory that is free
 * in the pool.
 */
#include <string.h>

#include "core/base/size_class.h"
#include "hooks.h"

/* Out of line, so that the hook leaves by a jump where the pool serves the call. */
__attribute__((noinline)) static CUresult allocate_without(CUdeviceptr *address, size_t bytes)
{
    return tell_of_new(real_driver()->cuMemAlloc_v2(address, bytes), address);
}

__attribute__((noinline)) static CUresult free_without(CUdeviceptr address)
{
    return may_pass_by(address) ? real_driver()->cuMemFree_v2(address) : CUDA_ERROR_INVALID_VALUE;
}

/* The first call in a process, and a call without the pool. */
__attribute__((noinline)) static CUresult allocate_at_first(CUdeviceptr *address, size_t bytes)
{
    struct pool *pool = the_pool();
    return pool ? pool_allocate(pool, address, bytes) : allocate_without(address, bytes);
}

__attribute__((noinline)) static CUresult free_at_first(CUdeviceptr address)
{
    struct pool *pool = the_pool();
    return pool ? pool_free(pool, address) : free_without(address);
}

HOOK(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_allocate(pool, address, bytes) : allocate_at_first(address, bytes);
}

HOOK(cuMemAllocPitch_v2, (CUdeviceptr * address, size_t *pitch, size_t width, size_t height,
                          unsigned int element_bytes))
{
    const struct real_driver *real = real_driver();
    struct pool *pool = the_pool();
    return pool
               ? pool_allocate_pitch(pool, real->cuMemAllocPitch_v2, address, pitch, width, height,
                                     element_bytes)
               : tell_of_new(real->cuMemAllocPitch_v2(address, pitch, width, height, element_bytes),
                             address);
}

HOOK(cuMemFree_v2, (CUdeviceptr address))
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_free(pool, address) : free_at_first(address);
}

HOOK(cuMemGetInfo_v2, (size_t * free, size_t *total))
{
    struct pool *pool = the_pool();
    return pool ? pool_memory_info(pool, free, total) : real_driver()->cuMemGetInfo_v2(free, total);
}

HOOK(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))
{
    CUresult result = real_driver()->cuDeviceTotalMem_v2(bytes, device);
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        *bytes = pool_told_total(pool, device, *bytes);
    return result;
}

/* ---- questions about a pointer: sizes are as requested, free memory is unknown ---- */

static struct pointer_answer ask_pointer(CUdeviceptr pointer)
{
    struct pool *pool = the_pool();
    return pool ? pool_ask_pointer(pool, pointer)
                : (struct pointer_answer){.kind = POINTER_FOREIGN};
}

/* The pointer to ask the driver about. */
static CUdeviceptr shown(const struct pointer_answer *answer, CUdeviceptr pointer)
{
    return answer->kind == POINTER_HIDDEN ? NOBODYS_POINTER : pointer;
}

/* Whether the live memory is cut out of a larger block of the driver's. The driver could show or
 * change only that whole block, so the request is counted as refused. */
static bool is_part(const struct pointer_answer *answer)
{
    if (answer->kind != POINTER_LIVE || !answer->part)
        return false;
    pool_refused_export(the_pool(), answer);
    return true;
}

/* Called before something outside this process's streams learns of the memory. Sets *pointer to the
 * pointer to ask the driver with. False where the request is refused. */
static bool share(CUdeviceptr *pointer)
{
    struct pointer_answer answer = ask_pointer(*pointer);
    if (is_part(&answer))
        return false;
    if (answer.kind == POINTER_LIVE)
        pool_share(the_pool(), *pointer);
    *pointer = shown(&answer, *pointer);
    return true;
}

HOOK(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *bytes, CUdeviceptr pointer))
{
    struct pointer_answer answer = ask_pointer(pointer);
    CUresult result = real_driver()->cuMemGetAddressRange_v2(base, bytes, shown(&answer, pointer));
    if (result == CUDA_SUCCESS && answer.kind == POINTER_LIVE && bytes)
        *bytes = answer.bytes;
    if (result == CUDA_SUCCESS && answer.kind == POINTER_LIVE && answer.part && base)
        *base = answer.base;
    return result;
}

/* Changes an attribute that describes what the pool asked the driver for into what the program
 * asked the pool for. */
static void tell_of_request(void *data, CUpointer_attribute attribute,
                            const struct pointer_answer *answer)
{
    size_t *size = data;
    uint64_t id;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        if (answer->part)
            *(CUdeviceptr *)data = answer->base;
        return;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        if (answer->part)
            *(unsigned int *)data = 0;
        return;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *size = answer->bytes;
        return;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        if (answer->part || *size == size_class_up(answer->block_bytes, SIZE_CLASS_PAGE))
            *size = size_class_up(answer->bytes, SIZE_CLASS_PAGE);
        return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        id = pool_buffer_id(the_pool(), answer);
        if (id)
            *(unsigned long long *)data = id;
        return;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        pool_share(the_pool(), answer->base);
        return;
    default:
        return;
    }
}

/* For a pointer to freed host memory the driver was asked about NOBODYS_POINTER, which it takes for
 * ordinary memory. The host pointer of ordinary memory is the pointer itself. */
static void tell_as_of_ordinary(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    CUdeviceptr *host = data;
    if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && *host == NOBODYS_POINTER)
        *host = pointer;
}

/* Whether the attribute is refused: tokens would cover all of the driver's block. */
#define P2P_TOKENS_BYTES 16
static bool is_refused(CUpointer_attribute attribute, const struct pointer_answer *answer)
{
    return attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS && is_part(answer);
}

HOOK(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr pointer))
{
    const struct real_driver *real = real_driver();
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
        struct pointer_answer first = ask_pointer(pointer);
        if (is_refused(attribute, &first))
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = real->cuPointerGetAttribute(data, attribute, pointer);
    if (result != CUDA_SUCCESS)
        return result;
    struct pointer_answer answer = ask_pointer(pointer);
    if (answer.kind == POINTER_HIDDEN)
        return real->cuPointerGetAttribute(data, attribute, NOBODYS_POINTER);
    if (answer.kind == POINTER_LIVE)
        tell_of_request(data, attribute, &answer);
    return result;
}

HOOK(cuPointerGetAttributes,
     (unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer))
{
    struct pointer_answer answer = ask_pointer(pointer);
    CUresult result =
        real_driver()->cuPointerGetAttributes(count, attributes, data, shown(&answer, pointer));
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (is_refused(attributes[i], &answer)) {
            memset(data[i], 0, P2P_TOKENS_BYTES);
            result = CUDA_ERROR_NOT_SUPPORTED;
        } else if (answer.kind == POINTER_LIVE)
            tell_of_request(data[i], attributes[i], &answer);
        else if (answer.kind == POINTER_HIDDEN && answer.of_host)
            tell_as_of_ordinary(data[i], attributes[i], pointer);
    return result;
}

HOOK(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr pointer))
{
    return share(&pointer) ? real_driver()->cuPointerSetAttribute(value, attribute, pointer)
                           : CUDA_ERROR_NOT_SUPPORTED;
}

HOOK(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr pointer))
{
    return share(&pointer) ? real_driver()->cuIpcGetMemHandle(handle, pointer)
                           : CUDA_ERROR_NOT_SUPPORTED;
}

HOOK(cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr pointer, size_t bytes,
                                     CUmemRangeHandleType type, unsigned long long flags))
{
    return share(&pointer)
               ? real_driver()->cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags)
               : CUDA_ERROR_NOT_SUPPORTED;
}

/* Other devices reach what a multicast object maps. */
HOOK(cuMulticastBindAddr, (CUmemGenericAllocationHandle multicast, size_t offset,
                           CUdeviceptr pointer, size_t bytes, unsigned long long flags))
{
    const struct real_driver *real = real_driver();
    if (!share(&pointer))
        return CUDA_ERROR_NOT_SUPPORTED;
    return WITH_ROOM(real->cuMulticastBindAddr(multicast, offset, pointer, bytes, flags));
}

HOOK(cuMulticastBindAddr_v2,
     (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, CUdeviceptr pointer,
      size_t bytes, unsigned long long flags))
{
    const struct real_driver *real = real_driver();
    if (!share(&pointer))
        return CUDA_ERROR_NOT_SUPPORTED;
    return WITH_ROOM(
        real->cuMulticastBindAddr_v2(multicast, device, offset, pointer, bytes, flags));
}
