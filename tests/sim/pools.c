/*
 * Stream-ordered memory: pools, cuMemAllocAsync and cuMemFreeAsync.
 *
 * A pool takes chunks of device memory and gives them out in pieces. A piece freed on a stream may
 * be given out again on that stream at once, on others when the free has been reached. Whole chunks
 * above the release threshold go back to the device when the program synchronises.
 */
#include <stdlib.h>

#include "sim.h"

#define CHUNK (32 * MIB)
#define PIECE ((uint64_t)512)

struct chunk {
    struct extent extent;
    struct space space;
    struct chunk *next;
};

/* A piece that was freed on a stream which has not got there yet. */
struct pending {
    struct pool *pool;
    struct chunk *chunk;
    uint64_t base, bytes, stream_id;
    bool taken;    /* given out again before the stream got there */
    bool over;     /* the stream has got there */
    struct op *op; /* when it gets there */
    struct pending *next;
};

struct pool {
    CUmemoryPool handle;
    struct device *device;
    bool is_default, destroyed;
    CUmemAllocationType type;
    CUmemLocation location;
    struct chunk *chunks;
    struct pending *pending;
    unsigned int pieces;      /* in the program's hands */
    uint64_t used, used_high; /* bytes of these, as the program asked for them; and of all that
                                 cuMemFree has ever freed */
    uint64_t threshold, reserved, reserved_high;
    int reuse[3]; /* the three reuse attributes */
    struct pool *next;
};

static struct pool *pools;

struct pool *pool_new(const CUmemLocation *location, CUmemAllocationType type, bool is_default)
{
    struct pool *pool = calloc(1, sizeof *pool);
    bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (pool == NULL)
        return NULL;
    pool->device = &sim.devices[on_device ? location->id : 0];
    pool->is_default = is_default;
    pool->type = type;
    pool->location = *location;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->handle = handle_new(KIND_POOL, pool);
    pool->next = pools;
    pools = pool;
    return pool;
}

CUmemoryPool pool_handle(const struct pool *pool)
{
    return pool->handle;
}

CUmemorytype pool_memory_type(const struct pool *pool)
{
    bool on_host = pool->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                   pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    return on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

bool pool_is_at(const struct pool *pool, const CUmemLocation *location, CUmemAllocationType type)
{
    return pool->type == type && pool->location.type == location->type &&
           (pool->location.id == location->id || !location_has_id(location));
}

/* --- chunks ------------------------------------------------------------------------------------*/

static void free_chunk(struct pool *pool, struct chunk *chunk)
{
    struct chunk **link = &pool->chunks;
    while (*link != chunk)
        link = &(*link)->next;
    *link = chunk->next;
    pool->reserved -= chunk->extent.bytes;
    space_close(&chunk->space);
    extent_give(&chunk->extent);
    free(chunk);
}

static void trim(struct pool *pool, uint64_t keep)
{
    for (struct chunk *chunk = pool->chunks, *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        if (pool->reserved <= keep)
            return;
        if (chunk->space.used == 0)
            free_chunk(pool, chunk);
    }
}

static void free_if_unused(struct pool *pool)
{
    struct pool **link = &pools;
    if (!pool->destroyed || pool->pieces > 0 || pool->pending != NULL)
        return;
    trim(pool, 0);
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void pools_trim(void)
{
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        trim(pool, pool->threshold);
}

/* A chunk of this size, smaller where the device has no more. */
static struct chunk *add_chunk(struct pool *pool, uint64_t bytes)
{
    uint64_t usual = bytes > CHUNK ? bytes : CHUNK;
    uint64_t unit = bytes > CHUNK ? 2 * MIB : PIECE;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL)
        return NULL;
    if (!extent_take(pool->device, NULL, usual, &chunk->extent) &&
        !extent_take(pool->device, NULL, bytes, &chunk->extent)) {
        free(chunk);
        return NULL;
    }
    if (!space_open(&chunk->space, chunk->extent.base, unit, chunk->extent.bytes / unit))
        abort();
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->reserved += chunk->extent.bytes;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return chunk;
}

/* --- pieces ------------------------------------------------------------------------------------*/

static void count_used(struct pool *pool, uint64_t bytes)
{
    pool->pieces++;
    pool->used += bytes;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
}

/* A piece of that size freed earlier on the same stream. */
static bool take_pending(struct pool *pool, uint64_t bytes, const struct stream *stream,
                         struct allocation *allocation)
{
    for (struct pending *pending = pool->pending; pending != NULL; pending = pending->next) {
        if (pending->taken || pending->stream_id != stream->id || pending->bytes != bytes)
            continue;
        pending->taken = true;
        allocation->base = pending->base;
        allocation->chunk = pending->chunk;
        return true;
    }
    return false;
}

/* The smallest piece that will do and is pending, of whichever stream: where the device has no
 * memory left, the stream comes after the free (reuse[2]: internal dependencies). */
static bool take_pending_when_short(struct pool *pool, uint64_t bytes, struct stream *stream,
                                    struct allocation *allocation)
{
    struct pending *found = NULL;
    for (struct pending *pending = pool->pending; pending != NULL; pending = pending->next)
        if (!pending->taken && pending->bytes >= bytes &&
            (found == NULL || pending->bytes < found->bytes) &&
            (pending->stream_id == stream->id || pool->reuse[2]))
            found = pending;
    if (found == NULL)
        return false;
    if (found->stream_id != stream->id)
        stream_wait(stream, found->op);
    found->taken = true;
    allocation->base = found->base;
    allocation->chunk = found->chunk;
    allocation->extent.bytes = found->bytes;
    return true;
}

static bool take_piece(struct pool *pool, uint64_t bytes, struct stream *stream,
                       struct allocation *allocation)
{
    struct chunk *chunk;
    if (take_pending(pool, bytes, stream, allocation))
        return true;
    for (chunk = pool->chunks; chunk != NULL; chunk = chunk->next) {
        allocation->base = space_take(&chunk->space, bytes);
        if (allocation->base != 0)
            break;
    }
    if (chunk == NULL) {
        chunk = add_chunk(pool, bytes);
        if (chunk == NULL)
            return take_pending_when_short(pool, bytes, stream, allocation);
        allocation->base = space_take(&chunk->space, bytes);
    }
    allocation->chunk = chunk;
    return true;
}

static uint64_t piece_bytes(uint64_t bytes)
{
    return bytes == 0 ? PIECE : bytes > CHUNK ? round_up(bytes, 2 * MIB) : round_up(bytes, PIECE);
}

/* Everybody may have the piece from now on. A GPU goes on counting it as used. */
void pool_release(struct allocation *allocation)
{
    struct pool *pool = allocation->pool;
    space_give(&allocation->chunk->space, allocation->base, allocation->extent.bytes);
    pool->pieces--;
    free_if_unused(pool);
}

static void forget_pending(struct pending *pending)
{
    op_drop(pending->op);
    free(pending);
}

/* Where the stream has nothing to do, before free_piece knows the operation. */
static void stream_got_there(struct work *work, struct op *op)
{
    struct pending *pending = work->pending;
    struct pool *pool = pending->pool;
    struct pending **link = &pool->pending;
    while (*link != pending)
        link = &(*link)->next;
    *link = pending->next;
    if (races_on)
        race_memory_back(pending->base, pending->bytes, op);
    if (!pending->taken)
        space_give(&pending->chunk->space, pending->base, pending->bytes);
    pending->over = true;
    if (pending->op != NULL)
        forget_pending(pending);
    free_if_unused(pool);
}

static CUresult free_piece(struct allocation *allocation, struct stream *stream)
{
    struct pending *pending = calloc(1, sizeof *pending);
    struct work work = {.finish = stream_got_there, .pending = pending};
    if (pending == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pending->pool = allocation->pool;
    pending->chunk = allocation->chunk;
    pending->base = allocation->base;
    pending->bytes = allocation->extent.bytes;
    pending->stream_id = stream->id;
    pending->next = pending->pool->pending;
    pending->pool->pending = pending;
    pending->pool->pieces--;
    pending->pool->used -= allocation->size;
    allocation_remove(allocation);
    allocation->pool = NULL;
    allocation->extent.base = 0;
    allocation_release(allocation);
    struct op *op;
    CUresult result = stream_add(stream, &work, &op);
    pending->op = op;
    if (pending->over)
        forget_pending(pending);
    return result;
}

/* --- in captures -------------------------------------------------------------------------------*/

static CUresult allocate_in_capture(struct call *call, CUdeviceptr *address, size_t bytes,
                                    struct stream *stream)
{
    struct work work;
    CUresult result;
    if (call->context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    result = graph_memory_allocate(call, stream->capture->graph, bytes, &work, address);
    return result == CUDA_SUCCESS ? capture_add(stream, &work, NULL) : result;
}

/* Only what a graph allocates may be freed by one; another free is refused and spares the capture.
 */
static CUresult free_in_capture(struct allocation *allocation, struct stream *stream)
{
    struct work work;
    CUresult result;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (allocation->kind != MEMORY_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    result = graph_memory_free_node(allocation, stream->capture->graph, &work);
    return result == CUDA_SUCCESS ? capture_add(stream, &work, NULL) : result;
}

/* --- the driver's functions: memory ------------------------------------------------------------*/

static CUresult allocate(struct call *call, CUdeviceptr *address, size_t bytes, struct pool *pool,
                         struct stream *stream)
{
    struct allocation allocation = {
        .size = bytes, .kind = MEMORY_ASYNC, .device = pool->device, .pool = pool};
    CUresult result = stream->context->root->error;
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture != NULL)
        return allocate_in_capture(call, address, bytes, stream);
    result = stream->type == STREAM_LEGACY ? captures_allow_legacy(stream->context) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = captures_allow_unsafe_call();
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes > pool->device->total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation.extent.bytes = piece_bytes(bytes);
    allocation.context_id = stream->context->root->id;
    if (!take_piece(pool, allocation.extent.bytes, stream, &allocation))
        return CUDA_ERROR_OUT_OF_MEMORY;
    count_used(pool, bytes);
    if (allocation_add(&allocation) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = allocation.base;
    return CUDA_SUCCESS;
}

/* On a created stream these need no current context. */

DRIVER_CALL_PT(cuMemAllocAsync, _ptsz, 0, (CUdeviceptr * address, size_t bytes, CUstream handle),
               (address, bytes, handle))
{
    CUresult result;
    struct stream *stream = stream_of(call, handle, &result);
    if (address == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return result;
    result = allocate(call, address, bytes, stream->context->device->current_pool, stream);
    call_note(call, "bytes=%zu stream=%p address=%#llx", bytes, (void *)handle,
              result == CUDA_SUCCESS ? *address : 0);
    return result;
}

DRIVER_CALL_PT(cuMemAllocFromPoolAsync, _ptsz, 0,
               (CUdeviceptr * address, size_t bytes, CUmemoryPool pool_handle, CUstream handle),
               (address, bytes, pool_handle, handle))
{
    struct pool *pool = handle_object(KIND_POOL, pool_handle);
    CUresult result;
    struct stream *stream = stream_of(call, handle, &result);
    if (address == NULL || pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return stream != NULL ? allocate(call, address, bytes, pool, stream) : result;
}

/* Plain memory, or a graph's. */
static CUresult free_in_order(struct allocation *allocation, struct stream *stream)
{
    bool of_graph = allocation->kind == MEMORY_GRAPH;
    struct op *op;
    CUresult result;
    if (of_graph && !graph_memory_is_live(allocation))
        return CUDA_ERROR_INVALID_VALUE;
    result = stream_add(stream, &(struct work){.how = TAKES_NO_TIME}, &op);
    if (result != CUDA_SUCCESS)
        return result;
    if (of_graph) {
        graph_memory_freed(allocation, op);
    } else {
        allocation_remove(allocation);
        allocation_release_after(allocation, op);
    }
    op_drop(op);
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuMemFreeAsync, _ptsz, 0, (CUdeviceptr address, CUstream handle), (address, handle))
{
    struct allocation *allocation = allocation_at(address);
    CUresult result;
    struct stream *stream = stream_of(call, handle, &result);
    call_note(call, "address=%#llx stream=%p", address, (void *)handle);
    if (stream == NULL)
        return result;
    if (address == 0)
        return CUDA_SUCCESS;
    if (allocation != NULL && allocation->base == address && allocation->kind == MEMORY_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (allocation == NULL || allocation->base != address ||
        (allocation->kind != MEMORY_DEVICE && allocation->kind != MEMORY_ASYNC &&
         allocation->kind != MEMORY_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    if (call->context == NULL && allocation->kind == MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->context->root->error != CUDA_SUCCESS)
        return stream->context->root->error;
    if (stream->capture != NULL)
        return free_in_capture(allocation, stream);
    result = stream->type == STREAM_LEGACY ? captures_allow_legacy(stream->context) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = captures_allow_unsafe_call();
    if (result != CUDA_SUCCESS)
        return result;
    return allocation->kind == MEMORY_ASYNC ? free_piece(allocation, stream)
                                            : free_in_order(allocation, stream);
}

/* --- the driver's functions: pools -------------------------------------------------------------*/

static struct pool *pool_of(CUmemoryPool handle)
{
    return handle_object(KIND_POOL, handle);
}

DRIVER_CALL(cuDeviceGetDefaultMemPool, 0, (CUmemoryPool * pool, CUdevice device), (pool, device))
{
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = device_of(device)->default_pool->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceGetMemPool, 0, (CUmemoryPool * pool, CUdevice device), (pool, device))
{
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = device_of(device)->current_pool->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuDeviceSetMemPool, 0, (CUdevice device, CUmemoryPool handle), (device, handle))
{
    struct pool *pool = pool_of(handle);
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (pool == NULL || pool->device != device_of(device) ||
        !pool_is_at(pool, &device_of(device)->default_pool->location,
                    CU_MEM_ALLOCATION_TYPE_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    device_of(device)->current_pool = pool;
    return CUDA_SUCCESS;
}

/* Pools of host and of managed memory are made and say what they are, but for the rest their memory
 * is a device's, and counts as such. */
DRIVER_CALL(cuMemPoolCreate, 0, (CUmemoryPool * handle, const CUmemPoolProps *properties),
            (handle, properties))
{
    struct pool *pool;
    CUresult result;
    if (handle == NULL || properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = location_check(&properties->location, properties->allocType);
    if (result != CUDA_SUCCESS)
        return result;
    pool = pool_new(&properties->location, properties->allocType, false);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = pool->handle;
    return CUDA_SUCCESS;
}

/* Memory that is still in use stays until it is freed. */
DRIVER_CALL(cuMemPoolDestroy, 0, (CUmemoryPool handle), (handle))
{
    struct pool *pool = pool_of(handle);
    if (pool == NULL || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->device->current_pool == pool)
        pool->device->current_pool = pool->device->default_pool;
    location_forget(pool);
    handle_free(KIND_POOL, handle);
    pool->destroyed = true;
    free_if_unused(pool);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemPoolTrimTo, UNSAFE, (CUmemoryPool handle, size_t keep), (handle, keep))
{
    struct pool *pool = pool_of(handle);
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    trim(pool, keep);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemPoolGetAttribute, 0,
            (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
            (handle, attribute, value))
{
    const struct pool *pool = pool_of(handle);
    if (pool == NULL || value == NULL || attribute == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
        *(int *)value = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

DRIVER_CALL(cuMemPoolSetAttribute, 0,
            (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
            (handle, attribute, value))
{
    struct pool *pool = pool_of(handle);
    if (pool == NULL || value == NULL || attribute == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
        pool->reuse[attribute - 1] = *(const int *)value != 0;
        return CUDA_SUCCESS;
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(const cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        pool->reserved_high = pool->reserved;
        return *(const cuuint64_t *)value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        pool->used_high = pool->used;
        return *(const cuuint64_t *)value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

DRIVER_CALL(cuMemPoolSetAccess, 0,
            (CUmemoryPool handle, const CUmemAccessDesc *access, size_t count),
            (handle, access, count))
{
    if (pool_of(handle) == NULL || (count > 0 && access == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
