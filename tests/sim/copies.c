/*
 * Copies and fills.
 *
 * As with the driver: a copy from pageable host memory has taken its source when the call returns,
 * one to pageable host memory is over then, and one between pinned and device memory that names a
 * stream goes on in the background. Fills and copies inside devices never wait.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* --- the work itself ---------------------------------------------------------------------------*/

static CUresult copy_bytes(const struct work *work)
{
    const struct copy *copy = &work->copy;
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++) {
            uint64_t target = copy->target + z * copy->target_slice + y * copy->target_pitch;
            uint64_t source = copy->source + z * copy->source_slice + y * copy->source_pitch;
            memmove((void *)(uintptr_t)target, (const void *)(uintptr_t)source, copy->width);
        }
    return CUDA_SUCCESS;
}

/* How many bytes lie between a copy's first and last. */
static uint64_t extent_of(const struct copy *copy, size_t pitch, size_t slice)
{
    return (copy->depth - 1) * slice + (copy->height - 1) * pitch + copy->width;
}

static uint64_t source_extent(const struct copy *copy)
{
    return extent_of(copy, copy->source_pitch, copy->source_slice);
}

static uint64_t target_extent(const struct copy *copy)
{
    return extent_of(copy, copy->target_pitch, copy->target_slice);
}

/* Pinned memory may have been freed since: only its own context's work is waited for. */
static CUresult copy_what_is_there(const struct work *work)
{
    const struct copy *copy = &work->copy;
    bool there;
    pthread_mutex_lock(&sim.lock);
    there = (!copy->from_pinned || host_memory_is_mapped(copy->source, source_extent(copy))) &&
            (!copy->to_pinned || host_memory_is_mapped(copy->target, target_extent(copy)));
    pthread_mutex_unlock(&sim.lock);
    return there ? copy_bytes(work) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void free_staged(struct work *work, struct op *op)
{
    free(work->copy.staged);
    work->copy.staged = NULL;
}

static CUresult set_elements(const struct work *work)
{
    for (size_t y = 0; y < work->set.height; y++) {
        char *row = (char *)(uintptr_t)(work->set.target + y * work->set.pitch);
        if (work->set.element_bytes == 1) {
            memset(row, (int)work->set.value, work->set.width);
            continue;
        }
        for (size_t x = 0; x < work->set.width; x++)
            memcpy(row + x * work->set.element_bytes, &work->set.value, work->set.element_bytes);
    }
    return CUDA_SUCCESS;
}

static bool is_empty(const struct copy *copy)
{
    return copy->width == 0 || copy->height == 0 || copy->depth == 0;
}

/* Packs the source now, so that the program may change it as soon as the call returns. */
static bool stage(struct copy *copy)
{
    struct work packing = {.copy = *copy};
    copy->staged = malloc(copy->width * copy->height * copy->depth);
    if (copy->staged == NULL)
        return false;
    packing.copy.target = (uintptr_t)copy->staged;
    packing.copy.target_pitch = copy->width;
    packing.copy.target_slice = copy->width * copy->height;
    copy_bytes(&packing);
    copy->from_pinned = false;
    copy->source = packing.copy.target;
    copy->source_pitch = packing.copy.target_pitch;
    copy->source_slice = packing.copy.target_slice;
    return true;
}

static void touch(struct work *work, const struct copy *copy, uint64_t address, size_t pitch,
                  size_t slice, bool written)
{
    struct range *range = work_touches(work, address, extent_of(copy, pitch, slice), written);
    if (copy->height == 1 && copy->depth == 1)
        return;
    range->row = copy->width;
    range->pitch = pitch;
    range->rows = copy->height;
    range->slice = slice;
}

static void describe(struct work *work, const struct copy *copy)
{
    *work = (struct work){.how = TAKES_NO_TIME,
                          .type = CU_GRAPH_NODE_TYPE_MEMCPY,
                          .effect = copy_what_is_there,
                          .finish = free_staged,
                          .copy = *copy};
    work->copy.from_pinned = host_memory_is_mapped(copy->source, 1);
    work->copy.to_pinned = host_memory_is_mapped(copy->target, 1);
    touch(work, copy, copy->target, copy->target_pitch, copy->target_slice, true);
    touch(work, copy, copy->source, copy->source_pitch, copy->source_slice, false);
}

/* Does a copy's source or target lie in an allocation that wants its copies synchronous? */
static bool wants_sync(uint64_t address)
{
    const struct allocation *allocation = allocation_at(address);
    return allocation != NULL && allocation->sync_memops;
}

/* Waits, for a copy that is over when its call returns. */
static CUresult wait_for(struct call *call, struct op *op, uint64_t context_id, bool to_end)
{
    struct context *context;
    call_leave_driver(call);
    if (to_end)
        op_wait(op);
    else
        op_wait_as_if_to_begin(op);
    op_drop(op);
    context = context_with_id(context_id);
    return context != NULL ? context->root->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult submit(struct call *call, struct copy *copy, CUstream stream_handle, bool async)
{
    struct work work;
    struct op *op;
    CUresult result;
    struct stream *stream = stream_of(call, stream_handle, &result);
    bool from_pageable, to_pageable, from_host, to_host, waits, to_end;
    if (stream == NULL)
        return result;
    if (is_empty(copy))
        return CUDA_SUCCESS;
    if (!copies_may_access(copy->target, target_extent(copy)) ||
        !copies_may_access(copy->source, source_extent(copy)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!async) {
        result = captures_allow_unsafe_call();
        if (result != CUDA_SUCCESS)
            return result;
    }
    from_pageable = is_pageable(copy->source);
    to_pageable = is_pageable(copy->target);
    from_host = from_pageable || allocation_at(copy->source) == NULL ||
                allocation_at(copy->source)->kind >= MEMORY_HOST;
    to_host = to_pageable || allocation_at(copy->target) == NULL ||
              allocation_at(copy->target)->kind >= MEMORY_HOST;
    describe(&work, copy);
    if (from_pageable && stream->capture == NULL && !stage(&work.copy))
        return CUDA_ERROR_OUT_OF_MEMORY;
    waits = stream->capture == NULL && (async ? to_pageable : from_host || to_host);
    to_end = !from_pageable || to_host || wants_sync(copy->target);
    waits = waits ||
            (stream->capture == NULL && (wants_sync(copy->target) || wants_sync(copy->source)));
    result = stream_add(stream, &work, &op);
    if (result != CUDA_SUCCESS) {
        free(work.copy.staged);
        return result;
    }
    if (waits)
        return wait_for(call, op, stream->context->id, to_end);
    op_drop(op);
    return CUDA_SUCCESS;
}

static CUresult copy_line(struct call *call, uint64_t target, uint64_t source, size_t bytes,
                          CUstream stream, bool async)
{
    struct copy copy = {
        .target = target, .source = source, .width = bytes, .height = 1, .depth = 1};
    call_note(call, "target=%#llx source=%#llx bytes=%zu", (unsigned long long)target,
              (unsigned long long)source, bytes);
    return submit(call, &copy, stream, async);
}

/* --- one dimension -----------------------------------------------------------------------------*/

DRIVER_CALL_PT(cuMemcpy, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, CUdeviceptr source, size_t bytes), (target, source, bytes))
{
    return copy_line(call, target, source, bytes, NULL, false);
}

DRIVER_CALL_PT(cuMemcpyAsync, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),
               (target, source, bytes, stream))
{
    return copy_line(call, target, source, bytes, stream, true);
}

DRIVER_CALL_PT(cuMemcpyHtoD_v2, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, const void *source, size_t bytes), (target, source, bytes))
{
    return copy_line(call, target, (uintptr_t)source, bytes, NULL, false);
}

DRIVER_CALL_PT(cuMemcpyHtoDAsync_v2, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, const void *source, size_t bytes, CUstream stream),
               (target, source, bytes, stream))
{
    return copy_line(call, target, (uintptr_t)source, bytes, stream, true);
}

DRIVER_CALL_PT(cuMemcpyDtoH_v2, _ptds, NEEDS_CONTEXT,
               (void *target, CUdeviceptr source, size_t bytes), (target, source, bytes))
{
    return copy_line(call, (uintptr_t)target, source, bytes, NULL, false);
}

DRIVER_CALL_PT(cuMemcpyDtoHAsync_v2, _ptsz, NEEDS_CONTEXT,
               (void *target, CUdeviceptr source, size_t bytes, CUstream stream),
               (target, source, bytes, stream))
{
    return copy_line(call, (uintptr_t)target, source, bytes, stream, true);
}

DRIVER_CALL_PT(cuMemcpyDtoD_v2, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, CUdeviceptr source, size_t bytes), (target, source, bytes))
{
    return copy_line(call, target, source, bytes, NULL, false);
}

DRIVER_CALL_PT(cuMemcpyDtoDAsync_v2, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),
               (target, source, bytes, stream))
{
    return copy_line(call, target, source, bytes, stream, true);
}

static bool are_contexts(CUcontext target, CUcontext source)
{
    return context_of(target) != NULL && context_of(source) != NULL;
}

DRIVER_CALL_PT(cuMemcpyPeer, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                CUcontext source_context, size_t bytes),
               (target, target_context, source, source_context, bytes))
{
    if (!are_contexts(target_context, source_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy_line(call, target, source, bytes, NULL, false);
}

DRIVER_CALL_PT(cuMemcpyPeerAsync, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                CUcontext source_context, size_t bytes, CUstream stream),
               (target, target_context, source, source_context, bytes, stream))
{
    if (!are_contexts(target_context, source_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy_line(call, target, source, bytes, stream, true);
}

/* --- two and three dimensions ------------------------------------------------------------------*/

/* One side of a copy. */
struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

static bool resolve(struct side side, size_t width, uint64_t *address, size_t *pitch, size_t *slice)
{
    const struct array *array;
    uint64_t base;
    *pitch = side.pitch != 0 ? side.pitch : side.x + width;
    switch (side.type) {
    case CU_MEMORYTYPE_HOST:
        base = (uintptr_t)side.host;
        break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        base = side.device;
        break;
    case CU_MEMORYTYPE_ARRAY:
        array = array_of(side.array);
        if (array == NULL || array->memory == NULL)
            return false;
        base = array->memory->base;
        *pitch = array->width_bytes;
        side.height = array->height;
        break;
    default:
        return false;
    }
    *slice = *pitch * (side.height != 0 ? side.height : 1);
    *address = base + side.z * *slice + side.y * *pitch + side.x;
    return *pitch >= side.x + width;
}

static CUresult copy_box(struct call *call, const CUDA_MEMCPY3D *box, CUstream stream, bool async)
{
    struct copy copy = {.width = box->WidthInBytes, .height = box->Height, .depth = box->Depth};
    struct side source = {box->srcMemoryType, box->srcHost,     box->srcDevice,
                          box->srcArray,      box->srcXInBytes, box->srcY,
                          box->srcZ,          box->srcPitch,    box->srcHeight};
    struct side target = {box->dstMemoryType, box->dstHost,     box->dstDevice,
                          box->dstArray,      box->dstXInBytes, box->dstY,
                          box->dstZ,          box->dstPitch,    box->dstHeight};
    if (is_empty(&copy))
        return CUDA_SUCCESS;
    if (!resolve(source, copy.width, &copy.source, &copy.source_pitch, &copy.source_slice) ||
        !resolve(target, copy.width, &copy.target, &copy.target_pitch, &copy.target_slice))
        return CUDA_ERROR_INVALID_VALUE;
    return submit(call, &copy, stream, async);
}

static CUresult copy_rectangle(struct call *call, const CUDA_MEMCPY2D *flat, CUstream stream,
                               bool async)
{
    CUDA_MEMCPY3D box;
    if (flat == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    box = (CUDA_MEMCPY3D){.srcXInBytes = flat->srcXInBytes,
                          .srcY = flat->srcY,
                          .srcMemoryType = flat->srcMemoryType,
                          .srcHost = flat->srcHost,
                          .srcDevice = flat->srcDevice,
                          .srcArray = flat->srcArray,
                          .srcPitch = flat->srcPitch,
                          .dstXInBytes = flat->dstXInBytes,
                          .dstY = flat->dstY,
                          .dstMemoryType = flat->dstMemoryType,
                          .dstHost = flat->dstHost,
                          .dstDevice = flat->dstDevice,
                          .dstArray = flat->dstArray,
                          .dstPitch = flat->dstPitch,
                          .WidthInBytes = flat->WidthInBytes,
                          .Height = flat->Height,
                          .Depth = 1};
    return copy_box(call, &box, stream, async);
}

DRIVER_CALL_PT(cuMemcpy2D_v2, _ptds, NEEDS_CONTEXT, (const CUDA_MEMCPY2D *copy), (copy))
{
    return copy_rectangle(call, copy, NULL, false);
}

DRIVER_CALL_PT(cuMemcpy2DUnaligned_v2, _ptds, NEEDS_CONTEXT, (const CUDA_MEMCPY2D *copy), (copy))
{
    return copy_rectangle(call, copy, NULL, false);
}

DRIVER_CALL_PT(cuMemcpy2DAsync_v2, _ptsz, NEEDS_CONTEXT,
               (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
{
    return copy_rectangle(call, copy, stream, true);
}

DRIVER_CALL_PT(cuMemcpy3D_v2, _ptds, NEEDS_CONTEXT, (const CUDA_MEMCPY3D *copy), (copy))
{
    return copy != NULL ? copy_box(call, copy, NULL, false) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL_PT(cuMemcpy3DAsync_v2, _ptsz, NEEDS_CONTEXT,
               (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
{
    return copy != NULL ? copy_box(call, copy, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

/* --- fills -------------------------------------------------------------------------------------*/

struct fill {
    uint64_t target;
    size_t pitch, width, height;
    unsigned int value, element_bytes;
};

static CUresult fill(struct call *call, struct fill what, CUstream stream_handle)
{
    struct work work = {.how = TAKES_NO_TIME,
                        .type = CU_GRAPH_NODE_TYPE_MEMSET,
                        .effect = set_elements,
                        .set = {.target = what.target,
                                .pitch = what.pitch,
                                .width = what.width,
                                .height = what.height,
                                .value = what.value,
                                .element_bytes = what.element_bytes}};
    CUresult result;
    struct stream *stream = stream_of(call, stream_handle, &result);
    struct range *range;
    uint64_t bytes;
    if (stream == NULL)
        return result;
    if (what.width == 0 || what.height == 0)
        return CUDA_SUCCESS;
    bytes = (what.height - 1) * what.pitch + what.width * what.element_bytes;
    if (what.target % what.element_bytes != 0 || is_pageable(what.target) ||
        !copies_may_access(what.target, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    range = work_touches(&work, what.target, bytes, true);
    if (what.height > 1) {
        range->row = what.width * what.element_bytes;
        range->pitch = what.pitch;
        range->rows = what.height;
    }
    return stream_add(stream, &work, NULL);
}

static CUresult fill_line(struct call *call, uint64_t target, unsigned int value,
                          unsigned int element_bytes, size_t count, CUstream stream)
{
    struct fill what = {.target = target,
                        .width = count,
                        .height = 1,
                        .value = value,
                        .element_bytes = element_bytes};
    return fill(call, what, stream);
}

DRIVER_CALL_PT(cuMemsetD8_v2, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, unsigned char value, size_t count), (target, value, count))
{
    return fill_line(call, target, value, 1, count, NULL);
}

DRIVER_CALL_PT(cuMemsetD16_v2, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, unsigned short value, size_t count), (target, value, count))
{
    return fill_line(call, target, value, 2, count, NULL);
}

DRIVER_CALL_PT(cuMemsetD32_v2, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, unsigned int value, size_t count), (target, value, count))
{
    return fill_line(call, target, value, 4, count, NULL);
}

DRIVER_CALL_PT(cuMemsetD8Async, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, unsigned char value, size_t count, CUstream stream),
               (target, value, count, stream))
{
    return fill_line(call, target, value, 1, count, stream);
}

DRIVER_CALL_PT(cuMemsetD16Async, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, unsigned short value, size_t count, CUstream stream),
               (target, value, count, stream))
{
    return fill_line(call, target, value, 2, count, stream);
}

DRIVER_CALL_PT(cuMemsetD32Async, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, unsigned int value, size_t count, CUstream stream),
               (target, value, count, stream))
{
    return fill_line(call, target, value, 4, count, stream);
}

DRIVER_CALL_PT(cuMemsetD2D8_v2, _ptds, NEEDS_CONTEXT,
               (CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t height),
               (target, pitch, value, width, height))
{
    return fill(call, (struct fill){target, pitch, width, height, value, 1}, NULL);
}

DRIVER_CALL_PT(cuMemsetD2D8Async, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t height,
                CUstream stream),
               (target, pitch, value, width, height, stream))
{
    return fill(call, (struct fill){target, pitch, width, height, value, 1}, stream);
}

/* Managed memory is where the host sees it; moving it changes nothing. */
DRIVER_CALL_PT(cuMemPrefetchAsync, _ptsz, NEEDS_CONTEXT,
               (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
               (address, bytes, device, stream))
{
    const struct allocation *allocation = allocation_at(address);
    CUresult why_not;
    if (stream_of(call, stream, &why_not) == NULL)
        return why_not;
    if (device != -1 && device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (allocation == NULL || allocation->kind != MEMORY_MANAGED ||
        address + bytes > allocation->base + allocation->size)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
