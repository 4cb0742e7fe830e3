/*
 * Arrays: device memory without an address that the program knows. Stored row by row.
 */
#include <stdlib.h>

#include "sim.h"

#define REQUIREMENT_UNIT ((size_t)64 << 10)

struct array *array_of(CUarray handle)
{
    return handle_object(KIND_ARRAY, handle);
}

/* Bytes in one channel of an element; 0 for a format that is not known. */
static size_t channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static size_t at_least_one(size_t number)
{
    return number != 0 ? number : 1;
}

/* The layout that conformance rows have found on a GPU: rows of whole 64 bytes, in blocks of 8 to
 * 128 rows; with depth in blocks of 8 rows and up to 16 slices. */
static size_t block(size_t number, size_t least, size_t most)
{
    size_t unit = least;
    while (unit < number && unit < most)
        unit <<= 1;
    return round_up(number, unit);
}

static size_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *description, size_t element,
                          unsigned level)
{
    bool layers = description->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    bool deep = !layers && description->Depth > 0;
    size_t row = round_up(at_least_one(description->Width >> level) * element, 64);
    size_t rows = at_least_one(description->Height >> level);
    size_t slices = at_least_one(layers ? description->Depth : description->Depth >> level);
    rows = deep ? round_up(rows, 8) : block(rows, 8, 128);
    return row * rows * (deep ? block(slices, 1, 16) : slices);
}

static size_t stored_bytes(const CUDA_ARRAY3D_DESCRIPTOR *description, size_t element,
                           unsigned levels)
{
    size_t bytes = level_bytes(description, element, 0);
    size_t largest = description->Width | description->Height | description->Depth;
    for (unsigned level = 1; level < levels && level < 32 && largest >> level != 0; level++)
        bytes += level_bytes(description, element, level);
    return round_up(bytes, REQUIREMENT_UNIT);
}

static CUresult create(struct call *call, void **handle, enum kind kind,
                       const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned levels)
{
    size_t element = channel_bytes(description->Format) * description->NumChannels;
    size_t height = at_least_one(description->Height), depth = at_least_one(description->Depth);
    bool unmapped = description->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    struct array *array;
    CUdeviceptr address = 0;
    size_t stored;
    CUresult result = CUDA_SUCCESS;
    if (handle == NULL || element == 0 || description->Width == 0 ||
        (description->NumChannels != 1 && description->NumChannels != 2 &&
         description->NumChannels != 4) ||
        description->Width > 1 << 20 || height > 1 << 20 || depth > 1 << 14)
        return CUDA_ERROR_INVALID_VALUE;
    stored = stored_bytes(description, element, levels);
    if (!unmapped)
        result = allocate_device(call, MEMORY_ARRAY, stored, &address);
    if (result != CUDA_SUCCESS)
        return result;
    array = calloc(1, sizeof *array);
    if (array == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->stored_bytes = stored;
    array->deferred = description->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
    array->memory = unmapped ? NULL : allocation_at(address);
    array->address = address;
    array->memory_id = unmapped ? 0 : array->memory->id;
    array->width_bytes = description->Width * element;
    array->height = height;
    array->depth = depth;
    *handle = handle_new(kind, array);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuArrayCreate_v2, NEEDS_CONTEXT | UNSAFE,
            (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *flat), (array, flat))
{
    CUDA_ARRAY3D_DESCRIPTOR description;
    if (flat == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    description = (CUDA_ARRAY3D_DESCRIPTOR){.Width = flat->Width,
                                            .Height = flat->Height,
                                            .Format = flat->Format,
                                            .NumChannels = flat->NumChannels};
    return create(call, (void **)array, KIND_ARRAY, &description, 1);
}

DRIVER_CALL(cuArray3DCreate_v2, NEEDS_CONTEXT | UNSAFE,
            (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *description), (array, description))
{
    if (description == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return create(call, (void **)array, KIND_ARRAY, description, 1);
}

DRIVER_CALL(cuMipmappedArrayCreate, NEEDS_CONTEXT | UNSAFE,
            (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *description,
             unsigned int levels),
            (array, description, levels))
{
    if (description == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return create(call, (void **)array, KIND_MIPMAPPED_ARRAY, description, levels);
}

/* Only arrays whose memory is mapped later tell what they need. */
static CUresult tell_requirements(const struct array *array, CUdevice device,
                                  CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements)
{
    if (requirements == NULL || array == NULL || !array->deferred || device_of(device) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->stored_bytes,
                                                     .alignment = REQUIREMENT_UNIT};
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuArrayGetMemoryRequirements, NEEDS_CONTEXT,
            (CUDA_ARRAY_MEMORY_REQUIREMENTS * requirements, CUarray array, CUdevice device),
            (requirements, array, device))
{
    return tell_requirements(array_of(array), device, requirements);
}

DRIVER_CALL(cuMipmappedArrayGetMemoryRequirements, NEEDS_CONTEXT,
            (CUDA_ARRAY_MEMORY_REQUIREMENTS * requirements, CUmipmappedArray array,
             CUdevice device),
            (requirements, array, device))
{
    return tell_requirements(handle_object(KIND_MIPMAPPED_ARRAY, array), device, requirements);
}

/* The memory may be gone already, with its context. */
static bool still_has_memory(const struct array *array)
{
    const struct allocation *allocation = allocation_at(array->address);
    return allocation != NULL && allocation->id == array->memory_id;
}

static CUresult destroy(enum kind kind, void *handle)
{
    struct array *array = handle_object(kind, handle);
    if (array == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (still_has_memory(array))
        allocation_wait_for_users(array->memory);
    if (handle_object(kind, handle) != array)
        return CUDA_ERROR_INVALID_HANDLE;
    if (still_has_memory(array))
        allocation_free(array->memory);
    handle_free(kind, handle);
    free(array);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuArrayDestroy, NEEDS_CONTEXT | UNSAFE, (CUarray array), (array))
{
    return destroy(KIND_ARRAY, array);
}

DRIVER_CALL(cuMipmappedArrayDestroy, NEEDS_CONTEXT | UNSAFE, (CUmipmappedArray array), (array))
{
    return destroy(KIND_MIPMAPPED_ARRAY, array);
}
