/*
 * Host memory that the device may reach: allocated and registered.
 *
 * As on an H200: blocks below 2 MiB are cut out of pieces of 2 MiB, which the context keeps while
 * one of their blocks lives; larger ones are mappings of their own. A free waits for all work of
 * the context that the memory belongs to, whichever is current, and for no other context's: not
 * even for a copy of that very memory, which fails if the memory is gone when it runs.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "sim.h"

#define PIECE      (2 * MIB)
#define PIECE_UNIT ((uint64_t)512)

/* What small blocks of one context with the same flags are cut out of. */
struct host_piece {
    struct space space;
    struct context *context;
    unsigned int flags;
    struct host_piece *next;
};

static struct host_piece *pieces;

/* What was unmapped last is given again where it is large enough, so that whoever keeps something
 * by its address finds another block there. */
static struct {
    uint64_t base, bytes;
} unmapped;

/* Of what may be pinned, in all: SIMCUDA_HOST_MEMORY. */
static uint64_t pinned_bytes;

/* --- pieces and mappings -----------------------------------------------------------------------*/

static uint64_t pinned_size(uint64_t bytes)
{
    return round_up(bytes, PIECE);
}

static bool pin(uint64_t bytes)
{
    if (pinned_size(bytes) > sim.settings.host_memory - pinned_bytes)
        return false;
    pinned_bytes += pinned_size(bytes);
    return true;
}

static void unpin(uint64_t bytes)
{
    pinned_bytes -= pinned_size(bytes);
}

void host_memory_unpin(const struct allocation *allocation)
{
    unpin(allocation->size);
}

/* 0: somebody else has it by now. */
static uint64_t map_again(uint64_t bytes)
{
    void *wanted = (void *)(uintptr_t)unmapped.base;
    if (bytes > unmapped.bytes)
        return 0;
    unmapped.bytes = 0;
    void *memory = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != MAP_FAILED && memory != wanted)
        munmap(memory, bytes);
    return memory == wanted ? (uintptr_t)memory : 0;
}

static uint64_t map_anywhere(uint64_t bytes)
{
    uint64_t begin, base;
    void *memory = mmap(NULL, bytes + PIECE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    begin = (uintptr_t)memory;
    base = round_up(begin, PIECE);
    if (base > begin)
        munmap(memory, base - begin);
    if (begin + PIECE > base)
        munmap((void *)(uintptr_t)(base + bytes), begin + PIECE - base);
    return base;
}

/* Aligned to PIECE, as the driver's are; 0 without memory. */
static uint64_t map_aligned(uint64_t bytes)
{
    if (!pin(bytes))
        return 0;
    uint64_t base = map_again(bytes);
    if (base == 0)
        base = map_anywhere(bytes);
    if (base == 0)
        unpin(bytes);
    return base;
}

/* Whatever lies there from now on, a thread's stack perhaps, is none of the program's memory of
 * before. */
static void unmap(uint64_t base, uint64_t bytes)
{
    if (races_on)
        race_memory_given(base, bytes);
    munmap((void *)(uintptr_t)base, bytes);
    unmapped.base = base;
    unmapped.bytes = bytes;
    unpin(bytes);
}

static struct host_piece *add_piece(struct context *context, unsigned int flags)
{
    struct host_piece *piece = calloc(1, sizeof *piece);
    uint64_t base = piece != NULL ? map_aligned(PIECE) : 0;
    if (base == 0 || !space_open(&piece->space, base, PIECE_UNIT, PIECE / PIECE_UNIT)) {
        if (base != 0)
            unmap(base, PIECE);
        free(piece);
        return NULL;
    }
    piece->context = context;
    piece->flags = flags;
    piece->next = pieces;
    pieces = piece;
    return piece;
}

static void free_piece(struct host_piece *piece)
{
    struct host_piece **link = &pieces;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    unmap(piece->space.base, PIECE);
    space_close(&piece->space);
    free(piece);
}

static bool take_small(struct allocation *allocation)
{
    struct host_piece *piece;
    for (piece = pieces; piece != NULL; piece = piece->next) {
        if (piece->context != allocation->context || piece->flags != allocation->flags)
            continue;
        allocation->base = space_take(&piece->space, allocation->size);
        if (allocation->base != 0)
            break;
    }
    if (piece == NULL) {
        piece = add_piece(allocation->context, allocation->flags);
        if (piece == NULL)
            return false;
        allocation->base = space_take(&piece->space, allocation->size);
    }
    allocation->host_piece = piece;
    allocation->extent.bytes = round_up(allocation->size, PIECE_UNIT);
    return true;
}

static bool take_large(struct allocation *allocation)
{
    allocation->extent.bytes = round_up(allocation->size, PIECE);
    allocation->base = map_aligned(allocation->extent.bytes);
    return allocation->base != 0;
}

void host_memory_give(const struct allocation *allocation)
{
    struct host_piece *piece = allocation->host_piece;
    if (piece == NULL) {
        unmap(allocation->base, allocation->extent.bytes);
        return;
    }
    space_give(&piece->space, allocation->base, allocation->extent.bytes);
    if (piece->space.used == 0)
        free_piece(piece);
}

uint64_t host_mapping_of(const struct allocation *allocation)
{
    return allocation->host_piece != NULL ? allocation->host_piece->space.base : allocation->base;
}

bool host_memory_is_mapped(uint64_t address, uint64_t bytes)
{
    const struct allocation *allocation = allocation_at(address);
    for (const struct host_piece *piece = pieces; piece != NULL; piece = piece->next)
        if (address >= piece->space.base && address + bytes <= piece->space.base + PIECE)
            return true;
    return allocation != NULL &&
           (allocation->kind == MEMORY_HOST || allocation->kind == MEMORY_REGISTERED) &&
           address + bytes <= allocation->base + allocation->size;
}

/* --- allocated memory --------------------------------------------------------------------------*/

/* Of nothing there is nothing, which is no error. */
static CUresult allocate(struct call *call, void **address, size_t bytes, unsigned int flags)
{
    struct allocation allocation = {.size = bytes,
                                    .kind = MEMORY_HOST,
                                    .context = call->context->root,
                                    .device = call->context->device,
                                    .flags = flags};
    if (bytes == 0) {
        *address = NULL;
        return CUDA_SUCCESS;
    }
    if (bytes > (size_t)1 << 46 ||
        !(bytes < PIECE ? take_small(&allocation) : take_large(&allocation)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (allocation_add(&allocation) == NULL) {
        host_memory_give(&allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = (void *)(uintptr_t)allocation.base;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemHostAlloc, NEEDS_CONTEXT | UNSAFE,
            (void **address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
    if (address == NULL || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(call, address, bytes, flags);
}

DRIVER_CALL(cuMemAllocHost_v2, NEEDS_CONTEXT | UNSAFE, (void **address, size_t bytes),
            (address, bytes))
{
    if (address == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(call, address, bytes, 0);
}

static struct allocation *host_allocation(const void *address, enum memory_kind kind)
{
    struct allocation *allocation = allocation_at((uintptr_t)address);
    if (allocation == NULL || allocation->kind != kind || allocation->base != (uintptr_t)address)
        return NULL;
    return allocation;
}

/* Waits for its context's work; false if somebody else has freed it meanwhile. */
static bool wait_for_own_context(const struct allocation *allocation)
{
    uint64_t base = allocation->base, id = allocation->id;
    context_wait_for_work(allocation->context);
    allocation = allocation_at(base);
    return allocation != NULL && allocation->id == id;
}

/* It needs no current context, as cuMemFree does not. */
DRIVER_CALL(cuMemFreeHost, UNSAFE, (void *address), (address))
{
    struct allocation *allocation = host_allocation(address, MEMORY_HOST);
    CUresult why_not;
    if (current_context(&why_not) == NULL && why_not == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return why_not;
    if (address == NULL)
        return CUDA_SUCCESS;
    if (allocation == NULL || !wait_for_own_context(allocation))
        return CUDA_ERROR_INVALID_VALUE;
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

/* --- registered memory -------------------------------------------------------------------------*/

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
        return allocation_at((uintptr_t)address)->kind == MEMORY_HOST
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!pin(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (allocation_add(&allocation) != NULL)
        return CUDA_SUCCESS;
    unpin(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
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
    /* Also inside of registered memory. */
    if (address == NULL || (allocation == NULL && allocation_at((uintptr_t)address) != NULL))
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation == NULL || !wait_for_own_context(allocation))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    /* It may be unmapped next. */
    if (races_on)
        race_memory_given(allocation->base, allocation->size);
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

/* --- what is told of both ----------------------------------------------------------------------*/

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
