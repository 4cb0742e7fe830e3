/*
 * Green contexts: parts of a device's primary context, with streams of their own. Memory, modules
 * and errors are the primary context's; a fence or a barrier over the primary one covers its green
 * ones.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { MULTIPROCESSORS = 132, SMALLEST_GROUP = 8 };

DRIVER_CALL(cuDeviceGetDevResource, 0,
            (CUdevice device, CUdevResource *resource, CUdevResourceType type),
            (device, resource, type))
{
    if (resource == NULL || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = MULTIPROCESSORS;
    resource->sm.minSmPartitionSize = SMALLEST_GROUP;
    resource->sm.smCoscheduledAlignment = SMALLEST_GROUP;
    return CUDA_SUCCESS;
}

static void set_resource(CUdevResource *resource, unsigned int multiprocessors)
{
    memset(resource, 0, sizeof *resource);
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount = multiprocessors;
    resource->sm.minSmPartitionSize = SMALLEST_GROUP;
    resource->sm.smCoscheduledAlignment = SMALLEST_GROUP;
}

DRIVER_CALL(cuDevSmResourceSplitByCount, 0,
            (CUdevResource * groups, unsigned int *count, const CUdevResource *input,
             CUdevResource *rest, unsigned int flags, unsigned int least),
            (groups, count, input, rest, flags, least))
{
    unsigned int size, most;
    if (count == NULL || input == NULL || input->type != CU_DEV_RESOURCE_TYPE_SM ||
        least > input->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    size = (least < SMALLEST_GROUP ? SMALLEST_GROUP : least + 1) / 2 * 2;
    most = input->sm.smCount / size;
    if (groups != NULL) {
        if (*count < most)
            most = *count;
        for (unsigned int i = 0; i < most; i++)
            set_resource(&groups[i], size);
    }
    *count = most;
    if (rest != NULL)
        set_resource(rest, input->sm.smCount - most * size);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDevResourceGenerateDesc, 0,
            (CUdevResourceDesc * description, CUdevResource *resources, unsigned int count),
            (description, resources, count))
{
    static int any;
    if (description == NULL || resources == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *description = handle_new(KIND_RESOURCE, &any);
    return *description != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct context *green_of(CUgreenCtx handle)
{
    return handle_object(KIND_GREEN_CONTEXT, handle);
}

DRIVER_CALL(cuGreenCtxCreate, 0,
            (CUgreenCtx * handle, CUdevResourceDesc description, CUdevice ordinal,
             unsigned int flags),
            (handle, description, ordinal, flags))
{
    struct device *device = device_of(ordinal);
    struct context *root, *context;
    CUresult result;
    if (handle == NULL || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (handle_object(KIND_RESOURCE, description) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = primary_retain(device, &root);
    if (result != CUDA_SUCCESS)
        return result;
    context = context_new(device, root, root->flags);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->green_handle = handle_new(KIND_GREEN_CONTEXT, context);
    *handle = context->green_handle;
    return CUDA_SUCCESS;
}

/* Its unfinished work stays with the primary context. */
DRIVER_CALL(cuGreenCtxDestroy, IGNORES_ERRORS, (CUgreenCtx handle), (handle))
{
    struct context *context = green_of(handle);
    struct device *device;
    struct op *fence, *orphans;
    if (context == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    device = context->device;
    fence = context_fence(context);
    orphans = op_new(context->root, NULL);
    op_after(orphans, fence);
    op_after(orphans, context->root->orphans);
    op_submit(orphans);
    op_set(&context->root->orphans, orphans);
    op_drop(fence);
    op_drop(orphans);
    handle_free(KIND_GREEN_CONTEXT, handle);
    context_free(context);
    return primary_release(device);
}

DRIVER_CALL(cuCtxFromGreenCtx, 0, (CUcontext * context, CUgreenCtx green), (context, green))
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (green_of(green) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *context = green_of(green)->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGreenCtxStreamCreate, 0,
            (CUstream * handle, CUgreenCtx green, unsigned int flags, int priority),
            (handle, green, flags, priority))
{
    struct stream *stream;
    if (handle == NULL || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (green_of(green) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    stream = stream_new(green_of(green), flags, priority);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->handle = handle_new(KIND_STREAM, stream);
    *handle = stream->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGreenCtxRecordEvent, 0, (CUgreenCtx green, CUevent event), (green, event))
{
    struct context *context = green_of(green);
    return context != NULL ? context_record(context, event) : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuGreenCtxWaitEvent, 0, (CUgreenCtx green, CUevent event), (green, event))
{
    struct context *context = green_of(green);
    return context != NULL ? context_wait(context, event) : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuStreamGetGreenCtx, 0, (CUstream handle, CUgreenCtx *green), (handle, green))
{
    CUresult why_not;
    const struct stream *stream = stream_of(call, handle, &why_not);
    if (green == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    *green = stream->context->green_handle;
    return CUDA_SUCCESS;
}
