/*
 * Device memory: addresses, pages, and the records of what was allocated; cuMemAlloc and cuMemFree.
 *
 * Each device has many times its memory's size of addresses, backed by host memory as it is
 * touched, so that fragments do not make an allocation fail: like a real device it is out of memory
 * when its pages are. A request of 2 MiB or more takes whole pages; a smaller one shares a page
 * with others of its context, 1 KiB apart. Addresses that were freed last are given out first.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shared.h"
#include "sim.h"

#define PAGE       (2 * MIB)
#define SMALL_UNIT ((uint64_t)1024)

/* A page that small allocations of one context share. */
struct small_page {
    struct space space;
    struct device *device;
    struct context *context;
    struct small_page *next;
};

uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* --- spaces ------------------------------------------------------------------------------------*/

bool space_open(struct space *space, uint64_t base, uint64_t unit, size_t units)
{
    memset(space, 0, sizeof *space);
    space->base = base;
    space->unit = unit;
    space->units = units;
    space->taken = calloc((units + 63) / 64, sizeof *space->taken);
    return space->taken != NULL;
}

void space_close(struct space *space)
{
    free(space->taken);
    space->taken = NULL;
}

static bool is_taken(const struct space *space, size_t unit)
{
    return (space->taken[unit / 64] >> (unit % 64)) & 1;
}

/* How many units from this one on are free, up to most. */
static size_t free_run(const struct space *space, size_t unit, size_t most)
{
    size_t run = 0;
    while (run < most && unit + run < space->units && !is_taken(space, unit + run))
        run++;
    return run;
}

static bool is_free(const struct space *space, size_t unit, size_t count)
{
    return free_run(space, unit, count) == count;
}

static void mark(struct space *space, size_t unit, size_t count, bool taken)
{
    for (size_t i = unit; i < unit + count; i++) {
        uint64_t bit = (uint64_t)1 << (i % 64);
        space->taken[i / 64] = taken ? space->taken[i / 64] | bit : space->taken[i / 64] & ~bit;
    }
    space->used = taken ? space->used + count : space->used - count;
}

/* The place of that size that was given back last, if it is still free. */
static bool take_recent(struct space *space, size_t count, size_t *unit)
{
    for (unsigned int i = space->recent_count; i-- > 0;) {
        if (space->recent[i].count != count)
            continue;
        *unit = space->recent[i].unit;
        space->recent_count--;
        memmove(&space->recent[i], &space->recent[i + 1],
                (space->recent_count - i) * sizeof *space->recent);
        if (is_free(space, *unit, count))
            return true;
    }
    return false;
}

static bool first_fit(struct space *space, size_t count, size_t *unit)
{
    size_t i = space->lowest_free;
    while (i < space->units && is_taken(space, i))
        i++;
    space->lowest_free = i;
    while (i + count <= space->units) {
        size_t run = free_run(space, i, count);
        if (run == count) {
            *unit = i;
            return true;
        }
        i += run + 1;
    }
    return false;
}

uint64_t space_take(struct space *space, uint64_t bytes)
{
    size_t count = (size_t)(round_up(bytes, space->unit) / space->unit), unit;
    if (count > space->units - space->used)
        return 0;
    if (!take_recent(space, count, &unit) && !first_fit(space, count, &unit))
        return 0;
    mark(space, unit, count, true);
    return space->base + unit * space->unit;
}

void space_give(struct space *space, uint64_t address, uint64_t bytes)
{
    size_t count = (size_t)(round_up(bytes, space->unit) / space->unit);
    size_t unit = (size_t)((address - space->base) / space->unit);
    const unsigned int room = sizeof space->recent / sizeof *space->recent;
    mark(space, unit, count, false);
    if (unit < space->lowest_free)
        space->lowest_free = unit;
    if (space->recent_count == room) {
        memmove(&space->recent[0], &space->recent[1], (room - 1) * sizeof *space->recent);
        space->recent_count--;
    }
    space->recent[space->recent_count].unit = unit;
    space->recent[space->recent_count].count = count;
    space->recent_count++;
}

/* --- a device's memory -------------------------------------------------------------------------*/

static uint64_t peak_device_bytes;

bool device_memory_open(struct device *device, uint64_t bytes)
{
    uint64_t times = bytes <= (uint64_t)16 << 30 ? 16 : 2;
    size_t reserved = times * bytes + PAGE;
    void *base = mmap(NULL, reserved, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return false;
    madvise(base, reserved, MADV_NOHUGEPAGE);
    madvise(base, reserved, MADV_DONTDUMP);
    return space_open(&device->space, round_up((uintptr_t)base, PAGE), PAGE, times * bytes / PAGE);
}

/* What all processes leave of it that have it. */
static uint64_t left_of(const struct device *device)
{
    return device->total -
           (shared_on() ? shared_look((unsigned int)device->ordinal).held : device->used);
}

/* Of managed memory, as if all of it were touched all the time: what the device has room for. */
static uint64_t managed_here(const struct device *device)
{
    uint64_t left = device->managed > 0 ? left_of(device) : 0;
    return device->managed < left ? device->managed : left;
}

static void note_peak(void)
{
    uint64_t used = 0;
    for (unsigned int i = 0; i < sim.settings.devices; i++)
        used += sim.devices[i].used + managed_here(&sim.devices[i]);
    if (used > peak_device_bytes)
        peak_device_bytes = used;
}

void device_keep(struct device *device, uint64_t bytes)
{
    bytes = round_up(bytes, PAGE);
    if (bytes > device->total - device->used ||
        (shared_on() && !shared_take((unsigned int)device->ordinal, bytes)))
        return;
    device->used += bytes;
    device->kept += bytes;
}

void device_give_kept(struct device *device, uint64_t bytes)
{
    bytes = bytes < device->kept ? round_up(bytes, PAGE) : device->kept;
    if (shared_on())
        shared_give((unsigned int)device->ordinal, bytes);
    device->used -= bytes;
    device->kept -= bytes;
}

static uint64_t take_pages(struct device *device, uint64_t bytes)
{
    uint64_t address;
    if (bytes > left_of(device))
        device_give_kept(device, device->kept);
    if (bytes > device->total - device->used)
        return 0;
    address = space_take(&device->space, bytes);
    if (address != 0 && shared_on() && !shared_take((unsigned int)device->ordinal, bytes)) {
        space_give(&device->space, address, bytes);
        address = 0;
    }
    if (address != 0)
        device->used += bytes;
    note_peak();
    return address;
}

static void give_pages(struct device *device, uint64_t address, uint64_t bytes)
{
    space_give(&device->space, address, bytes);
    if (shared_on())
        shared_give((unsigned int)device->ordinal, bytes);
    device->used -= bytes;
}

static uint64_t take_small(struct context *context, uint64_t bytes, struct small_page **page)
{
    uint64_t address;
    for (*page = context->pages; *page != NULL; *page = (*page)->next) {
        address = space_take(&(*page)->space, bytes);
        if (address != 0)
            return address;
    }
    address = take_pages(context->device, PAGE);
    if (address == 0)
        return 0;
    *page = calloc(1, sizeof **page);
    if (*page == NULL || !space_open(&(*page)->space, address, SMALL_UNIT, PAGE / SMALL_UNIT))
        abort();
    (*page)->device = context->device;
    (*page)->context = context;
    (*page)->next = context->pages;
    context->pages = *page;
    return space_take(&(*page)->space, bytes);
}

static void unlink_page(struct small_page *page)
{
    struct small_page **link = &page->context->pages;
    while (*link != page)
        link = &(*link)->next;
    *link = page->next;
    page->context = NULL;
}

static void free_page(struct small_page *page)
{
    if (page->context != NULL)
        unlink_page(page);
    give_pages(page->device, page->space.base, PAGE);
    space_close(&page->space);
    free(page);
}

bool extent_take(struct device *device, struct context *context, uint64_t bytes,
                 struct extent *extent)
{
    extent->device = device;
    extent->page = NULL;
    extent->managed = false;
    if (bytes > device->total)
        return false;
    if (bytes < PAGE && context != NULL) {
        extent->bytes = round_up(bytes, SMALL_UNIT);
        extent->base = take_small(context, bytes, &extent->page);
    } else {
        extent->bytes = round_up(bytes, PAGE);
        extent->base = take_pages(device, extent->bytes);
    }
    return extent->base != 0;
}

/* Managed memory is given out whether or not the device has room. */
static bool extent_take_managed(struct device *device, struct context *context, uint64_t bytes,
                                struct extent *extent)
{
    if (bytes < PAGE)
        return extent_take(device, context, bytes, extent);
    *extent = (struct extent){.device = device, .bytes = round_up(bytes, PAGE), .managed = true};
    extent->base = bytes <= UINT64_MAX / 2 ? space_take(&device->space, extent->bytes) : 0;
    if (extent->base == 0)
        return false;
    device->managed += extent->bytes;
    note_peak();
    return true;
}

void extent_give(struct extent *extent)
{
    if (extent->base == 0)
        return;
    if (sim.settings.poison)
        memset((void *)(uintptr_t)extent->base, 0xDB, extent->bytes);
    if (extent->managed) {
        space_give(&extent->device->space, extent->base, extent->bytes);
        extent->device->managed -= extent->bytes;
    } else if (extent->page == NULL) {
        give_pages(extent->device, extent->base, extent->bytes);
    } else {
        space_give(&extent->page->space, extent->base, extent->bytes);
        if (extent->page->space.used == 0)
            free_page(extent->page);
    }
    extent->base = 0;
}

bool overhead_take(struct device *device, struct extent *extent)
{
    uint64_t bytes = sim.settings.overhead;
    return bytes == 0 || extent_take(device, NULL, bytes, extent);
}

/* A page with memory that other contexts' work frees, once it gets there, goes with that. */
void small_pages_free(struct context *context)
{
    struct small_page *page = context->pages;
    context->pages = NULL;
    while (page != NULL) {
        struct small_page *next = page->next;
        page->context = NULL;
        if (page->space.used == 0)
            free_page(page);
        page = next;
    }
}

/* --- records of allocations --------------------------------------------------------------------*/

/* All of them, by address. */
static struct {
    struct allocation **sorted;
    size_t count, room;
    size_t reservations; /* of them, addresses without memory */
    uint64_t live_bytes, live_count, peak_bytes;
    uint64_t host_bytes, host_count; /* of host memory that devices may reach */
} all;

/* How many begin at or below the address. */
static size_t count_up_to(uint64_t address)
{
    size_t low = 0, high = all.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all.sorted[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_counted(const struct allocation *allocation)
{
    return allocation->kind <= MEMORY_ARRAY && allocation->kind != MEMORY_GRAPH;
}

static void count_in(const struct allocation *allocation, bool added)
{
    if (allocation->kind == MEMORY_RESERVED)
        all.reservations = added ? all.reservations + 1 : all.reservations - 1;
    if (allocation->kind == MEMORY_HOST || allocation->kind == MEMORY_REGISTERED) {
        all.host_bytes += added ? allocation->size : 0 - allocation->size;
        all.host_count += added ? 1 : UINT64_MAX;
    }
    if (!is_counted(allocation))
        return;
    all.live_bytes = added ? all.live_bytes + allocation->size : all.live_bytes - allocation->size;
    all.live_count = added ? all.live_count + 1 : all.live_count - 1;
    if (all.live_bytes > all.peak_bytes)
        all.peak_bytes = all.live_bytes;
}

struct allocation *allocation_add(const struct allocation *allocation)
{
    struct allocation *added = malloc(sizeof *added);
    size_t place = count_up_to(allocation->base);
    if (added == NULL)
        return NULL;
    if (all.count == all.room) {
        size_t room = all.room == 0 ? 256 : 2 * all.room;
        struct allocation **sorted = realloc(all.sorted, room * sizeof(struct allocation *));
        if (sorted == NULL) {
            free(added);
            return NULL;
        }
        all.sorted = sorted;
        all.room = room;
    }
    *added = *allocation;
    added->id = sim.next_id++;
    if (added->context != NULL)
        added->context_id = added->context->id;
    memmove(&all.sorted[place + 1], &all.sorted[place],
            (all.count - place) * sizeof(struct allocation *));
    all.sorted[place] = added;
    all.count++;
    count_in(added, true);
    if (races_on)
        race_memory_given(added->base, added->size);
    return added;
}

struct allocation *allocation_at(uint64_t address)
{
    size_t place = count_up_to(address);
    struct allocation *allocation;
    if (place == 0)
        return NULL;
    allocation = all.sorted[place - 1];
    if (address - allocation->base < allocation->size || address == allocation->base)
        return allocation;
    /* A mapping lies inside a reservation, which begins before it or where it does. */
    for (place--; all.reservations > 0 && place-- > 0;)
        if (all.sorted[place]->kind == MEMORY_RESERVED &&
            address - all.sorted[place]->base < all.sorted[place]->size)
            return all.sorted[place];
    return NULL;
}

struct allocation *allocation_find(bool (*matches)(const struct allocation *, const void *),
                                   const void *argument)
{
    for (size_t i = 0; i < all.count; i++)
        if (matches(all.sorted[i], argument))
            return all.sorted[i];
    return NULL;
}

bool belongs_to_context(const struct allocation *allocation, const void *context)
{
    return allocation->context == context;
}

void allocation_remove(struct allocation *allocation)
{
    size_t place = count_up_to(allocation->base);
    while (all.sorted[place - 1] != allocation)
        place--;
    memmove(&all.sorted[place - 1], &all.sorted[place],
            (all.count - place) * sizeof(struct allocation *));
    all.count--;
    count_in(allocation, false);
}

void allocation_release(struct allocation *allocation)
{
    if (allocation->pool != NULL)
        pool_release(allocation);
    else if (allocation->kind == MEMORY_HOST)
        host_memory_give(allocation);
    else if (allocation->kind == MEMORY_REGISTERED)
        host_memory_unpin(allocation);
    else
        extent_give(&allocation->extent);
    for (unsigned int i = 0; i < allocation->foreign_count; i++)
        op_drop(allocation->foreign[i]);
    free(allocation->foreign);
    free(allocation);
}

void allocation_free(struct allocation *allocation)
{
    allocation_remove(allocation);
    allocation_release(allocation);
}

static void release_finished(struct work *work, struct op *op)
{
    if (races_on)
        race_memory_back(work->release.allocation->base, work->release.allocation->size, op);
    allocation_release(work->release.allocation);
}

void allocation_release_after(struct allocation *allocation, struct op *op)
{
    struct work work = {.finish = release_finished, .release = {.allocation = allocation}};
    struct op *release = op_new(NULL, &work);
    op_after(release, op);
    op_submit(release);
    op_drop(release);
}

uint64_t simcuda_live_bytes(void)
{
    uint64_t bytes;
    pthread_mutex_lock(&sim.lock);
    bytes = all.live_bytes;
    pthread_mutex_unlock(&sim.lock);
    return bytes;
}

uint64_t simcuda_live_allocations(void)
{
    uint64_t count;
    pthread_mutex_lock(&sim.lock);
    count = all.live_count;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

uint64_t simcuda_live_host_bytes(void)
{
    uint64_t bytes;
    pthread_mutex_lock(&sim.lock);
    bytes = all.host_bytes;
    pthread_mutex_unlock(&sim.lock);
    return bytes;
}

uint64_t simcuda_live_host_allocations(void)
{
    uint64_t count;
    pthread_mutex_lock(&sim.lock);
    count = all.host_count;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

uint64_t simcuda_peak_bytes(void)
{
    uint64_t bytes;
    pthread_mutex_lock(&sim.lock);
    bytes = all.peak_bytes;
    pthread_mutex_unlock(&sim.lock);
    return bytes;
}

uint64_t simcuda_managed_on_devices(void)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&sim.lock);
    for (unsigned int i = 0; i < sim.settings.devices; i++)
        bytes += managed_here(&sim.devices[i]);
    pthread_mutex_unlock(&sim.lock);
    return bytes;
}

uint64_t simcuda_peak_device_bytes(void)
{
    uint64_t bytes;
    pthread_mutex_lock(&sim.lock);
    bytes = peak_device_bytes;
    pthread_mutex_unlock(&sim.lock);
    return bytes;
}

/* --- who uses it -------------------------------------------------------------------------------*/

static void drop_user(struct allocation *allocation, unsigned int i)
{
    op_drop(allocation->foreign[i]);
    allocation->foreign[i] = allocation->foreign[--allocation->foreign_count];
}

/* The race detector wants to be told, in the free, that they are over. */
static void drop_finished_users(struct allocation *allocation)
{
    for (unsigned int i = allocation->foreign_count; i-- > 0;)
        if (op_is_past(allocation->foreign[i]))
            drop_user(allocation, i);
}

static void note_user(struct allocation *allocation, struct op *op)
{
    struct op **foreign;
    drop_finished_users(allocation);
    foreign = realloc(allocation->foreign, (allocation->foreign_count + 1) * sizeof(struct op *));
    if (foreign == NULL)
        abort();
    allocation->foreign = foreign;
    foreign[allocation->foreign_count++] = op_hold(op);
}

/* The driver knows this of copies and fills; of kernels it cannot. */
void allocations_note_use(const struct work *work, struct op *op, struct context *context)
{
    if (work->type == CU_GRAPH_NODE_TYPE_KERNEL)
        return;
    for (unsigned int i = 0; i < work->range_count; i++) {
        struct allocation *allocation = allocation_at(work->ranges[i].begin);
        if (allocation != NULL && allocation->context != NULL &&
            allocation->context != context->root)
            note_user(allocation, op);
    }
}

static struct allocation *allocation_with_id(uint64_t address, uint64_t id)
{
    struct allocation *allocation = allocation_at(address);
    return allocation != NULL && allocation->id == id ? allocation : NULL;
}

bool allocation_wait_for_users(struct allocation *allocation)
{
    uint64_t address = allocation->base, id = allocation->id;
    if (allocation->context != NULL)
        context_wait_for_work(allocation->context);
    while ((allocation = allocation_with_id(address, id)) != NULL) {
        struct op *user;
        if (allocation->foreign_count == 0)
            return true;
        user = op_hold(allocation->foreign[0]);
        drop_user(allocation, 0);
        if (races_on)
            race_free_waits(user);
        op_wait(user);
        op_drop(user);
    }
    return false;
}

bool device_may_access(uint64_t address, uint64_t bytes)
{
    const struct allocation *allocation;
    if (bytes == 0)
        return true;
    for (unsigned int i = 0; i < sim.settings.devices; i++) {
        const struct space *space = &sim.devices[i].space;
        if (address >= space->base && address + bytes <= space->base + space->units * space->unit)
            return true;
    }
    allocation = allocation_at(address);
    return allocation != NULL && allocation->kind != MEMORY_RESERVED &&
           address + bytes <= allocation->base + allocation->size;
}

static bool is_device_address(uint64_t address)
{
    for (unsigned int i = 0; i < sim.settings.devices; i++) {
        const struct space *space = &sim.devices[i].space;
        if (address >= space->base && address < space->base + space->units * space->unit)
            return true;
    }
    return false;
}

bool is_pageable(uint64_t address)
{
    return !is_device_address(address) && allocation_at(address) == NULL;
}

bool copies_may_access(uint64_t address, uint64_t bytes)
{
    const struct allocation *allocation = allocation_at(address);
    uint64_t size;
    if (allocation == NULL)
        return !is_device_address(address) && address >= 4096;
    size =
        allocation->extent.bytes > allocation->size ? allocation->extent.bytes : allocation->size;
    return allocation->kind != MEMORY_RESERVED && allocation->kind != MEMORY_INTERNAL &&
           address + bytes <= allocation->base + size;
}

/* --- the driver's functions --------------------------------------------------------------------*/

CUresult allocate_device(struct call *call, enum memory_kind kind, size_t bytes,
                         CUdeviceptr *address)
{
    struct context *context = call->context->root;
    struct allocation allocation = {
        .size = bytes, .kind = kind, .context = context, .device = context->device};
    bool (*take)(struct device *, struct context *, uint64_t, struct extent *) =
        kind == MEMORY_MANAGED ? extent_take_managed : extent_take;
    if (!take(context->device, context, bytes, &allocation.extent))
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation.base = allocation.extent.base;
    if (allocation_add(&allocation) == NULL) {
        extent_give(&allocation.extent);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = allocation.base;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemAlloc_v2, NEEDS_CONTEXT | UNSAFE, (CUdeviceptr * address, size_t bytes),
            (address, bytes))
{
    CUresult result;
    if (address == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = allocate_device(call, MEMORY_DEVICE, bytes, address);
    call_note(call, "bytes=%zu address=%#llx", bytes, result == CUDA_SUCCESS ? *address : 0);
    return result;
}

DRIVER_CALL(cuMemAllocPitch_v2, NEEDS_CONTEXT | UNSAFE,
            (CUdeviceptr * address, size_t *pitch, size_t width, size_t height,
             unsigned int element_bytes),
            (address, pitch, width, height, element_bytes))
{
    size_t row = round_up(width, 512), bytes;
    if (address == NULL || pitch == NULL || width == 0 || height == 0 ||
        (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (row < width || __builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = row;
    return allocate_device(call, MEMORY_DEVICE, bytes, address);
}

DRIVER_CALL(cuMemAllocManaged, NEEDS_CONTEXT | UNSAFE,
            (CUdeviceptr * address, size_t bytes, unsigned int flags), (address, bytes, flags))
{
    if (address == NULL || bytes == 0 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return allocate_device(call, MEMORY_MANAGED, bytes, address);
}

/* Stream-ordered memory is freed without a wait, when the work so far is over. */
static CUresult free_stream_ordered(struct allocation *allocation)
{
    struct context *context = context_with_id(allocation->context_id);
    struct op *fence = context != NULL ? context_fence(context) : NULL;
    allocation_remove(allocation);
    allocation_release_after(allocation, fence);
    op_drop(fence);
    return CUDA_SUCCESS;
}

/* What a launch has allocated and left to the program; without a wait as well. */
static CUresult free_graphs(const struct allocation *allocation)
{
    struct op *fence;
    if (!graph_memory_is_live(allocation))
        return CUDA_ERROR_INVALID_VALUE;
    fence = context_fence(allocation->context);
    graph_memory_freed(allocation, fence);
    op_drop(fence);
    return CUDA_SUCCESS;
}

/* It needs no current context: the memory's own is what it waits for. */
DRIVER_CALL(cuMemFree_v2, UNSAFE, (CUdeviceptr address), (address))
{
    struct allocation *allocation = allocation_at(address);
    CUresult why_not;
    call_note(call, "address=%#llx", address);
    if (current_context(&why_not) == NULL && why_not == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return why_not;
    if (address == 0)
        return CUDA_SUCCESS;
    if (allocation == NULL || allocation->base != address || allocation->kind == MEMORY_HOST ||
        allocation->kind >= MEMORY_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation->kind == MEMORY_ASYNC)
        return free_stream_ordered(allocation);
    if (allocation->kind == MEMORY_GRAPH)
        return free_graphs(allocation);
    if (!allocation_wait_for_users(allocation))
        return CUDA_ERROR_INVALID_VALUE;
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuMemGetInfo_v2, NEEDS_CONTEXT, (size_t * available, size_t *total), (available, total))
{
    const struct device *device = call->context->device;
    if (available != NULL)
        *available = left_of(device) - managed_here(device);
    if (total != NULL)
        *total = device->total;
    return CUDA_SUCCESS;
}
