/*
 * Arrays: device memory without an address that the program knows. Stored row by row.
 */
#include <stdlib.h>

#include "sim.h"

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

static CUresult create(struct call *call, void **handle, enum kind kind,
                       const CUDA_ARRAY3D_DESCRIPTOR *description)
{
    size_t element = channel_bytes(description->Format) * description->NumChannels;
    size_t height = at_least_one(description->Height), depth = at_least_one(description->Depth);
    struct array *array;
    CUdeviceptr address;
    CUresult result;
    if (handle == NULL || element == 0 || description->Width == 0 ||
        (description->NumChannels != 1 && description->NumChannels != 2 &&
         description->NumChannels != 4) ||
        description->Width > 1 << 20 || height > 1 << 20 || depth > 1 << 14)
        return CUDA_ERROR_INVALID_VALUE;
    result = allocate_device(call, MEMORY_ARRAY, description->Width * element * height * depth,
                             &address);
    if (result != CUDA_SUCCESS)
        return result;
    array = calloc(1, sizeof *array);
    if (array == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->memory = allocation_at(address);
    array->address = address;
    array->memory_id = array->memory->id;
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
    return create(call, (void **)array, KIND_ARRAY, &description);
}

DRIVER_CALL(cuArray3DCreate_v2, NEEDS_CONTEXT | UNSAFE,
            (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *description), (array, description))
{
    if (description == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return create(call, (void **)array, KIND_ARRAY, description);
}

DRIVER_CALL(cuMipmappedArrayCreate, NEEDS_CONTEXT | UNSAFE,
            (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *description,
             unsigned int levels),
            (array, description, levels))
{
    CUDA_ARRAY3D_DESCRIPTOR all_levels;
    if (description == NULL || levels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    all_levels = *description;
    if (levels > 1)
        all_levels.Width += description->Width / 2;
    return create(call, (void **)array, KIND_MIPMAPPED_ARRAY, &all_levels);
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
