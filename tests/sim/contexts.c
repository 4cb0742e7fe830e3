/*
 * Contexts: created, primary, current; waiting for one as a whole; fences and barriers over one.
 * Green contexts are in green_contexts.c.
 */
#include <stdlib.h>

#include "sim.h"

/* --- the objects -------------------------------------------------------------------------------*/

struct context *context_of(CUcontext handle)
{
    return handle_object(KIND_CONTEXT, handle);
}

struct context *context_with_id(uint64_t id)
{
    struct context *context = sim.contexts;
    while (context != NULL && context->id != id)
        context = context->next;
    return context;
}

struct context *current_context(CUresult *why_not)
{
    const struct thread *thread = this_thread();
    struct context *context;
    *why_not = CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth == 0 || thread->stack[thread->depth - 1].handle == NULL)
        return NULL;
    context = context_of(thread->stack[thread->depth - 1].handle);
    if (context != NULL && context->id == thread->stack[thread->depth - 1].id)
        return context;
    *why_not = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return NULL;
}

bool context_within(const struct context *inner, const struct context *outer)
{
    return inner == outer || inner->root == outer;
}

struct context *context_new(struct device *device, struct context *root, unsigned int flags)
{
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->handle = handle_new(KIND_CONTEXT, context);
    context->id = sim.next_id++;
    context->device = device;
    context->root = root != NULL ? root : context;
    context->flags = flags;
    context->references = 1;
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 * MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    context->next = sim.contexts;
    sim.contexts = context;
    context->legacy = stream_new(context, 0, 0);
    if (context->handle == NULL || context->legacy == NULL) {
        context_free(context);
        return NULL;
    }
    context->legacy->type = STREAM_LEGACY;
    return context;
}

static void unlink_context(struct context *context)
{
    struct context **link = &sim.contexts;
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
}

static void leave_captures(struct context *context)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->capture != NULL)
            capture_discard(stream->capture);
}

static void free_allocations(struct context *context)
{
    struct allocation *allocation;
    if (context->root != context)
        return;
    while ((allocation = allocation_find(belongs_to_context, context)) != NULL)
        allocation_free(allocation);
    small_pages_free(context);
}

/* The context's work must be over. */
void context_free(struct context *context)
{
    if (races_on)
        race_context_gone(context);
    leave_captures(context);
    while (context->events != NULL)
        event_free(context->events);
    while (context->streams != NULL)
        stream_free(context->streams);
    modules_free(context);
    free_allocations(context);
    op_drop(context->barrier);
    op_drop(context->fence);
    op_drop(context->orphans);
    op_drop(context->blocking_orphans);
    unlink_context(context);
    extent_give(&context->overhead);
    handle_free(KIND_CONTEXT, context->handle);
    free(context);
}

/* --- fences and barriers -----------------------------------------------------------------------*/

/* Work up to the last fence is covered by it, and need not be looked at again. */
static void come_after(struct op *op, struct op *earlier, const struct op *fence)
{
    if (earlier != NULL && (fence == NULL || earlier->number > fence->number))
        op_after(op, earlier);
}

static void come_after_context(struct op *op, struct context *context, const struct op *fence)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        come_after(op, stream->last, fence);
    come_after(op, context->barrier, fence);
    come_after(op, context->orphans, fence);
}

struct op *context_fence(struct context *context)
{
    struct op *op = op_new(context, NULL);
    op_after(op, context->fence);
    for (struct context *other = sim.contexts; other != NULL; other = other->next)
        if (context_within(other, context))
            come_after_context(op, other, context->fence);
    if (context->root != context)
        come_after(op, context->root->barrier, context->fence);
    op_submit(op);
    op_set(&context->fence, op);
    return op;
}

void context_add_barrier(struct context *context, struct op *after)
{
    struct op *op;
    if (op_is_past(after))
        return;
    op = op_new(context, NULL);
    op_after(op, after);
    op_after(op, context->barrier);
    op_submit(op);
    op_set(&context->barrier, op);
    op_drop(op);
}

void context_wait_for_work(struct context *context)
{
    struct op *fence = context_fence(context);
    op_wait(fence);
    op_drop(fence);
}

bool context_capture_spoiled(struct context *context)
{
    bool spoiled = false;
    for (struct context *other = sim.contexts; other != NULL; other = other->next) {
        if (!context_within(other, context))
            continue;
        for (struct stream *stream = other->streams; stream != NULL; stream = stream->next)
            if (stream->capture != NULL) {
                capture_invalidate(stream->capture);
                spoiled = true;
            }
    }
    return spoiled;
}

static CUresult synchronize(struct call *call, struct context *context)
{
    uint64_t id = context->id;
    if (context_capture_spoiled(context))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    call_leave_driver(call);
    context_wait_for_work(context);
    pools_trim();
    context = context_with_id(id);
    return context != NULL ? context->root->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

DRIVER_CALL_NO_ARGUMENTS(cuCtxSynchronize, NEEDS_CONTEXT | LIGHT)
{
    return synchronize(call, call->context);
}

/* The context that a handle names, the current one for NULL. */
static struct context *named_or_current(struct call *call, CUcontext handle)
{
    return handle != NULL ? context_of(handle) : call->context;
}

DRIVER_CALL(cuCtxSynchronize_v2, LIGHT, (CUcontext handle), (handle))
{
    struct context *context = named_or_current(call, handle);
    return context != NULL ? synchronize(call, context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult context_record(struct context *context, CUevent handle)
{
    struct event *event = event_of(handle);
    struct op *fence;
    if (event == NULL || event->context->root != context->root)
        return CUDA_ERROR_INVALID_HANDLE;
    if (context_capture_spoiled(context))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fence = context_fence(context);
    event_forget_capture(event);
    op_set(&event->record, fence);
    if (races_on)
        race_fence_recorded();
    op_drop(fence);
    return CUDA_SUCCESS;
}

CUresult context_wait(struct context *context, CUevent handle)
{
    struct event *event = event_of(handle);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured != NULL) {
        capture_invalidate(event->captured);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (context_capture_spoiled(context))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (races_on)
        race_context_waits(event->record);
    context_add_barrier(context, event->record);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxRecordEvent, 0, (CUcontext handle, CUevent event), (handle, event))
{
    struct context *context = named_or_current(call, handle);
    return context != NULL ? context_record(context, event) : CUDA_ERROR_INVALID_CONTEXT;
}

DRIVER_CALL(cuCtxWaitEvent, 0, (CUcontext handle, CUevent event), (handle, event))
{
    struct context *context = named_or_current(call, handle);
    return context != NULL ? context_wait(context, event) : CUDA_ERROR_INVALID_CONTEXT;
}

/* --- creating and destroying -------------------------------------------------------------------*/

static CUresult push(CUcontext handle)
{
    struct thread *thread = this_thread();
    struct context *context = context_of(handle);
    if (thread->depth == sizeof thread->stack / sizeof *thread->stack)
        return CUDA_ERROR_INVALID_CONTEXT;
    thread->stack[thread->depth].handle = handle;
    thread->stack[thread->depth].id = context != NULL ? context->id : 0;
    thread->stack[thread->depth].device = context != NULL ? context->device->ordinal : 0;
    thread->stack[thread->depth].flags = context != NULL ? context->flags : 0;
    thread->depth++;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *handle, unsigned int flags, CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    struct context *context;
    if (handle == NULL || flags > 0xff)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    context = context_new(device, NULL, flags);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!overhead_take(device, &context->overhead)) {
        context_free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = context->handle;
    return push(context->handle);
}

DRIVER_CALL(cuCtxCreate, 0, (CUcontext * context, unsigned int flags, CUdevice device),
            (context, flags, device))
{
    return create(context, flags, device);
}

DRIVER_CALL(cuCtxCreate_v2, 0, (CUcontext * context, unsigned int flags, CUdevice device),
            (context, flags, device))
{
    return create(context, flags, device);
}

DRIVER_CALL(cuCtxCreate_v3, 0,
            (CUcontext * context, CUexecAffinityParam *affinities, int count, unsigned int flags,
             CUdevice device),
            (context, affinities, count, flags, device))
{
    if (count < 0 || (count > 0 && affinities == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return create(context, flags, device);
}

DRIVER_CALL(cuCtxCreate_v4, 0,
            (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags,
             CUdevice device),
            (context, parameters, flags, device))
{
    if (parameters != NULL && parameters->cigParams != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

static CUresult destroy(struct call *call, CUcontext handle)
{
    struct context *context = context_of(handle);
    struct thread *thread = this_thread();
    if (context == NULL || context->is_primary || context->root != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_wait_for_work(context);
    if (call->context == context)
        thread->depth--;
    context_free(context);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxDestroy, IGNORES_ERRORS, (CUcontext context), (context))
{
    return destroy(call, context);
}

DRIVER_CALL(cuCtxDestroy_v2, IGNORES_ERRORS, (CUcontext context), (context))
{
    return destroy(call, context);
}

DRIVER_CALL(cuCtxAttach, NEEDS_CONTEXT, (CUcontext * context, unsigned int flags), (context, flags))
{
    if (context == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    call->context->references++;
    *context = call->context->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxDetach, NEEDS_CONTEXT | IGNORES_ERRORS, (CUcontext handle), (handle))
{
    struct context *context = context_of(handle);
    if (context == NULL || context != call->context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context->references > 1) {
        context->references--;
        return CUDA_SUCCESS;
    }
    return destroy(call, handle);
}

/* --- primary contexts --------------------------------------------------------------------------*/

CUresult primary_retain(struct device *device, struct context **context)
{
    if (device->primary == NULL) {
        device->primary = context_new(device, NULL, device->primary_flags);
        if (device->primary == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        device->primary->is_primary = true;
    }
    device->primary_references++;
    *context = device->primary;
    return CUDA_SUCCESS;
}

static void free_green_contexts(struct context *root)
{
    struct context *context = sim.contexts, *next;
    for (; context != NULL; context = next) {
        next = context->next;
        if (context != root && context->root == root) {
            handle_free(KIND_GREEN_CONTEXT, context->green_handle);
            context_free(context);
            next = sim.contexts;
        }
    }
}

static void primary_free(struct device *device)
{
    struct context *context = device->primary;
    context_wait_for_work(context);
    device->primary = NULL;
    device->primary_references = 0;
    free_green_contexts(context);
    context_free(context);
}

CUresult primary_release(struct device *device)
{
    if (device->primary == NULL || device->primary_references == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_references == 0)
        primary_free(device);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDevicePrimaryCtxRetain, 0, (CUcontext * handle, CUdevice ordinal), (handle, ordinal))
{
    struct device *device = device_of(ordinal);
    struct context *context;
    CUresult result;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    result = primary_retain(device, &context);
    if (result == CUDA_SUCCESS)
        *handle = context->handle;
    return result;
}

static CUresult release(CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    return device != NULL ? primary_release(device) : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult reset(CUdevice ordinal)
{
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary != NULL)
        primary_free(device);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDevicePrimaryCtxRelease, IGNORES_ERRORS, (CUdevice device), (device))
{
    return release(device);
}

DRIVER_CALL(cuDevicePrimaryCtxRelease_v2, IGNORES_ERRORS, (CUdevice device), (device))
{
    return release(device);
}

DRIVER_CALL(cuDevicePrimaryCtxReset, IGNORES_ERRORS, (CUdevice device), (device))
{
    return reset(device);
}

DRIVER_CALL(cuDevicePrimaryCtxReset_v2, IGNORES_ERRORS, (CUdevice device), (device))
{
    return reset(device);
}

DRIVER_CALL(cuDevicePrimaryCtxGetState, LIGHT | IGNORES_ERRORS,
            (CUdevice ordinal, unsigned int *flags, int *active), (ordinal, flags, active))
{
    const struct device *device = device_of(ordinal);
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDevicePrimaryCtxSetFlags_v2, 0, (CUdevice ordinal, unsigned int flags),
            (ordinal, flags))
{
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags > 0xff)
        return CUDA_ERROR_INVALID_VALUE;
    device->primary_flags = flags;
    return CUDA_SUCCESS;
}

/* --- the current context -----------------------------------------------------------------------*/

static CUresult push_living(CUcontext handle)
{
    return context_of(handle) != NULL ? push(handle) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult pop(CUcontext *handle)
{
    struct thread *thread = this_thread();
    if (thread->depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    thread->depth--;
    if (handle != NULL)
        *handle = thread->stack[thread->depth].handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxPushCurrent, LIGHT | IGNORES_ERRORS, (CUcontext context), (context))
{
    return push_living(context);
}

DRIVER_CALL(cuCtxPushCurrent_v2, LIGHT | IGNORES_ERRORS, (CUcontext context), (context))
{
    return push_living(context);
}

DRIVER_CALL(cuCtxPopCurrent, LIGHT | IGNORES_ERRORS, (CUcontext * context), (context))
{
    return pop(context);
}

DRIVER_CALL(cuCtxPopCurrent_v2, LIGHT | IGNORES_ERRORS, (CUcontext * context), (context))
{
    return pop(context);
}

DRIVER_CALL(cuCtxSetCurrent, LIGHT | IGNORES_ERRORS, (CUcontext handle), (handle))
{
    struct thread *thread = this_thread();
    if (handle != NULL && context_of(handle) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth > 0)
        thread->depth--;
    return handle != NULL ? push(handle) : CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetCurrent, LIGHT | IGNORES_ERRORS, (CUcontext * handle), (handle))
{
    const struct thread *thread = this_thread();
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = thread->depth > 0 ? thread->stack[thread->depth - 1].handle : NULL;
    return CUDA_SUCCESS;
}

/* What the driver tells of a current context even after another thread has destroyed it; not once
 * its handle is another's. */
static CUresult current_as_it_was(void)
{
    const struct thread *thread = this_thread();
    CUresult why_not;
    CUcontext handle = thread->depth > 0 ? thread->stack[thread->depth - 1].handle : NULL;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    return current_context(&why_not) != NULL || context_of(handle) == NULL ? CUDA_SUCCESS : why_not;
}

DRIVER_CALL(cuCtxGetDevice, LIGHT | IGNORES_ERRORS, (CUdevice * device), (device))
{
    const struct thread *thread = this_thread();
    CUresult result = current_as_it_was();
    if (result != CUDA_SUCCESS)
        return result;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = thread->stack[thread->depth - 1].device;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetDevice_v2, LIGHT | IGNORES_ERRORS, (CUdevice * device, CUcontext handle),
            (device, handle))
{
    const struct context *context = named_or_current(call, handle);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

/* --- what a context is -------------------------------------------------------------------------*/

DRIVER_CALL(cuCtxGetId, LIGHT | IGNORES_ERRORS, (CUcontext handle, unsigned long long *id),
            (handle, id))
{
    const struct context *context = named_or_current(call, handle);
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL)
        return handle != NULL ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetFlags, LIGHT, (unsigned int *flags), (flags))
{
    const struct thread *thread = this_thread();
    CUresult result = current_as_it_was();
    if (result != CUDA_SUCCESS)
        return result;
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = call->context != NULL ? call->context->flags : thread->stack[thread->depth - 1].flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxSetFlags, NEEDS_CONTEXT, (unsigned int flags), (flags))
{
    if (flags > 0xff)
        return CUDA_ERROR_INVALID_VALUE;
    call->context->flags = flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetApiVersion, LIGHT, (CUcontext handle, unsigned int *version), (handle, version))
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (named_or_current(call, handle) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetStreamPriorityRange, LIGHT | NEEDS_CONTEXT, (int *least, int *greatest),
            (least, greatest))
{
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetLimit, NEEDS_CONTEXT, (size_t * value, CUlimit limit), (value, limit))
{
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit >= sizeof call->context->limits / sizeof *call->context->limits)
        return CUDA_ERROR_NOT_SUPPORTED;
    *value = call->context->limits[limit];
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxSetLimit, NEEDS_CONTEXT, (CUlimit limit, size_t value), (limit, value))
{
    if (limit >= sizeof call->context->limits / sizeof *call->context->limits)
        return CUDA_ERROR_NOT_SUPPORTED;
    call->context->limits[limit] = value;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxGetCacheConfig, NEEDS_CONTEXT, (CUfunc_cache * config), (config))
{
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *config = 0;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxSetCacheConfig, NEEDS_CONTEXT, (CUfunc_cache config), (config))
{
    return config <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uint32_t peer_bit(const struct context *peer)
{
    return (uint32_t)1 << (peer->device->ordinal + (peer->is_primary ? 0 : MAX_DEVICES));
}

DRIVER_CALL(cuCtxEnablePeerAccess, NEEDS_CONTEXT, (CUcontext handle, unsigned int flags),
            (handle, flags))
{
    const struct context *peer = context_of(handle);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer == NULL || peer == call->context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (call->context->root->peers & peer_bit(peer))
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    call->context->root->peers |= peer_bit(peer);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuCtxDisablePeerAccess, NEEDS_CONTEXT, (CUcontext handle), (handle))
{
    const struct context *peer = context_of(handle);
    if (peer == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!(call->context->root->peers & peer_bit(peer)))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    call->context->root->peers &= ~peer_bit(peer);
    return CUDA_SUCCESS;
}
