/*
 * Hooks of calls that take device memory which the pool does not serve: managed memory, arrays and
 * physical memory. The driver answers them, with more tries where the pool has memory to release.
 * The pool counts what they take, and refuses what a limit has no room for. Memory of others that
 * the program opens is counted for the report alone.
 */
#include "hooks.h"

#include "core/unpooled/array_bytes.h"
#include "core/unpooled/owned.h"
#include "core/unpooled/physical.h"

/* Makes the driver call that frees or closes what the key stands for. */
#define END(kind, key, call)                                                                       \
    ({                                                                                             \
        struct pool *pool_ = pool_to_tell();                                                       \
        struct owned *owned_ = pool_ ? owned_end_begins(pool_, (kind), (key)) : NULL;              \
        CUresult ended_ = call;                                                                    \
        owned_closed(pool_, owned_, ended_ == CUDA_SUCCESS);                                       \
        ended_;                                                                                    \
    })

/* ---- managed memory ---- */

HOOK(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    struct pool *pool = the_pool();
    struct owned_coming coming;
    if (pool && !owned_managed_begins(pool, bytes, &coming))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        tell_of_new(WITH_ROOM(real->cuMemAllocManaged(address, bytes, flags)), address);
    if (pool)
        owned_managed_began(pool, &coming, bytes, result == CUDA_SUCCESS ? *address : 0);
    return result;
}

/* ---- arrays ---- */

static void array_began(struct pool *pool, struct owned_coming *coming, CUresult result,
                        const void *handle)
{
    bool done = result == CUDA_SUCCESS;
    if (pool)
        owned_began(pool, coming, done, done ? *(const uintptr_t *)handle : 0);
}

/* Calls the driver's function, and counts the array. levels: see owned_array_begins. */
#define MAKE_ARRAY(array, descriptor, levels, call)                                                \
    ({                                                                                             \
        struct pool *pool_ = the_pool();                                                           \
        struct owned_coming coming_ = {0};                                                         \
        CUresult made_ = CUDA_ERROR_OUT_OF_MEMORY;                                                 \
        if (!pool_ || owned_array_begins(pool_, (descriptor), (levels), &coming_)) {               \
            made_ = WITH_ROOM_ON(-1, array_bytes((descriptor), (levels)),                          \
                                 coming_.taken.device != NULL, call);                              \
            array_began(pool_, &coming_, made_, (array));                                          \
        }                                                                                          \
        made_;                                                                                     \
    })

HOOK(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor))
{
    const struct real_driver *real = real_driver();
    CUDA_ARRAY3D_DESCRIPTOR same = {0};
    const CUDA_ARRAY3D_DESCRIPTOR *shape = descriptor ? &same : NULL;
    if (descriptor)
        same = (CUDA_ARRAY3D_DESCRIPTOR){.Width = descriptor->Width,
                                         .Height = descriptor->Height,
                                         .Format = descriptor->Format,
                                         .NumChannels = descriptor->NumChannels};
    return MAKE_ARRAY(array, shape, 0, real->cuArrayCreate_v2(array, descriptor));
}

HOOK(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))
{
    const struct real_driver *real = real_driver();
    return MAKE_ARRAY(array, descriptor, 0, real->cuArray3DCreate_v2(array, descriptor));
}

HOOK(cuMipmappedArrayCreate,
     (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels))
{
    const struct real_driver *real = real_driver();
    return MAKE_ARRAY(array, descriptor, levels ? levels : 1,
                      real->cuMipmappedArrayCreate(array, descriptor, levels));
}

HOOK(cuArrayDestroy, (CUarray array))
{
    return END(OWNED_ARRAY, (uintptr_t)array, real_driver()->cuArrayDestroy(array));
}

HOOK(cuMipmappedArrayDestroy, (CUmipmappedArray array))
{
    return END(OWNED_MIPMAPPED_ARRAY, (uintptr_t)array,
               real_driver()->cuMipmappedArrayDestroy(array));
}

/* ---- physical memory ---- */

HOOK(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
                   const CUmemAllocationProp *properties, unsigned long long flags))
{
    const struct real_driver *real = real_driver();
    struct pool *pool = the_pool();
    struct unpooled taken = {.kind = UNPOOLED_PHYSICAL};
    bool on_device = properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    bool counted = pool && on_device && handle;
    if (counted && !physical_create_begins(pool, properties->location.id, bytes, &taken))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        WITH_ROOM_ON(on_device ? properties->location.id : -1, on_device ? bytes : 0,
                     taken.device != NULL, real->cuMemCreate(handle, bytes, properties, flags));
    bool done = result == CUDA_SUCCESS;
    if (counted)
        physical_created(pool, &taken, done, done ? *handle : 0);
    return result;
}

HOOK(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
    struct pool *pool = pool_to_tell();
    struct physical *physical = pool ? physical_release_begins(pool, handle) : NULL;
    CUresult result = real_driver()->cuMemRelease(handle);
    physical_released(pool, physical, result == CUDA_SUCCESS);
    return result;
}

HOOK(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address))
{
    struct pool *pool = pool_to_tell();
    struct physical *physical =
        pool ? physical_retain_begins(pool, (CUdeviceptr)(uintptr_t)address) : NULL;
    CUresult result = real_driver()->cuMemRetainAllocationHandle(handle, address);
    physical_retained(pool, physical, result == CUDA_SUCCESS);
    return result;
}

HOOK(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags))
{
    struct pool *pool = pool_to_tell();
    struct physical *physical = pool ? physical_map_begins(pool, handle) : NULL;
    CUresult result = real_driver()->cuMemMap(address, bytes, offset, handle, flags);
    physical_mapped(pool, physical, result == CUDA_SUCCESS, address, bytes);
    return result;
}

HOOK(cuMemUnmap, (CUdeviceptr address, size_t bytes))
{
    struct pool *pool = pool_to_tell();
    struct mapping *mappings = pool ? physical_unmap_begins(pool, address, bytes) : NULL;
    CUresult result = real_driver()->cuMemUnmap(address, bytes);
    physical_unmapped(pool, mappings, result == CUDA_SUCCESS);
    return result;
}

/* ---- memory of other processes and APIs ---- */

static CUresult opened(CUresult result, const CUdeviceptr *address)
{
    struct pool *pool = the_pool();
    tell_of_new(result, address);
    if (pool && result == CUDA_SUCCESS)
        owned_opened(pool, OWNED_IPC, *address, 0);
    return result;
}

HOOK(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return opened(WITH_ROOM(real->cuIpcOpenMemHandle(address, handle, flags)), address);
}

HOOK(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return opened(WITH_ROOM(real->cuIpcOpenMemHandle_v2(address, handle, flags)), address);
}

HOOK(cuIpcCloseMemHandle, (CUdeviceptr address))
{
    return END(OWNED_IPC, address, real_driver()->cuIpcCloseMemHandle(address));
}

HOOK(cuImportExternalMemory,
     (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle))
{
    const struct real_driver *real = real_driver();
    struct pool *pool = the_pool();
    CUresult result = WITH_ROOM(real->cuImportExternalMemory(memory, handle));
    if (pool && result == CUDA_SUCCESS)
        owned_opened(pool, OWNED_EXTERNAL, (uintptr_t)*memory, handle->size);
    return result;
}

HOOK(cuDestroyExternalMemory, (CUexternalMemory memory))
{
    return END(OWNED_EXTERNAL, (uintptr_t)memory, real_driver()->cuDestroyExternalMemory(memory));
}
