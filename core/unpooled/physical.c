#include "physical.h"

#include <search.h>
#include <stdlib.h>

#include "core/contexts/device.h"

struct physical {
    CUmemGenericAllocationHandle handle;
    struct unpooled taken;
    /* A pin stands for a driver call that is under way and may end, or begin, a hold or a mapping.
     * The record is there while holds + mappings + pins > 0. */
    unsigned holds, mappings, pins;
    bool replaced; /* the driver has given the handle to other memory, while pinned */
};

struct mapping {
    CUdeviceptr address;
    uint64_t bytes;
    struct physical *of;
    struct mapping *next; /* of one unmap */
};

/* ---- the records; the unpooled lock is held ---- */

static int by_handle(const void *one, const void *other)
{
    const struct physical *a = one, *b = other;
    return (a->handle > b->handle) - (a->handle < b->handle);
}

/* Ranges that overlap are equal. Those in the tree do not overlap. */
static int by_range(const void *one, const void *other)
{
    const struct mapping *a = one, *b = other;
    if (a->address + a->bytes <= b->address)
        return -1;
    return b->address + b->bytes <= a->address;
}

static struct physical *find(struct unpooled_memory *memory, CUmemGenericAllocationHandle handle)
{
    lock_must_be_held(&memory->lock);
    struct physical key = {.handle = handle};
    void *found = tfind(&key, &memory->physical, by_handle);
    return found ? *(struct physical **)found : NULL;
}

/* A mapping that overlaps the range. */
static struct mapping *find_mapping(struct unpooled_memory *memory, CUdeviceptr address,
                                    uint64_t bytes)
{
    lock_must_be_held(&memory->lock);
    struct mapping key = {.address = address, .bytes = bytes};
    void *found = bytes ? tfind(&key, &memory->mappings, by_range) : NULL;
    return found ? *(struct mapping **)found : NULL;
}

static bool is_there(const struct physical *physical)
{
    return physical->holds + physical->mappings > 0;
}

/* Returns whether the caller must return the bytes and free the record, with no lock held. */
static bool unpin(struct unpooled_memory *memory, struct physical *physical)
{
    lock_must_be_held(&memory->lock);
    physical->pins--;
    if (physical->pins > 0 || is_there(physical))
        return false;
    if (!physical->replaced)
        tdelete(physical, &memory->physical, by_handle);
    return true;
}

static void forget(struct physical *physical)
{
    unpooled_return(&physical->taken);
    free(physical);
}

/* Memory that is gone from the driver may still have a record, whose call has not returned yet. */
static bool add(struct unpooled_memory *memory, struct physical *physical)
{
    lock_must_be_held(&memory->lock);
    struct physical *old = find(memory, physical->handle);
    if (old && is_there(old))
        return false;
    if (old) {
        tdelete(old, &memory->physical, by_handle);
        old->replaced = true;
    }
    return tsearch(physical, &memory->physical, by_handle) != NULL;
}

/* ---- pairs around driver calls ---- */

static struct physical *pin(struct unpooled_memory *memory, struct physical *physical)
{
    lock_must_be_held(&memory->lock);
    if (physical)
        physical->pins++;
    return physical;
}

bool physical_create_begins(struct pool *pool, CUdevice ordinal, size_t bytes,
                            struct unpooled *taken)
{
    return unpooled_take(pool, context_device(pool, ordinal), UNPOOLED_PHYSICAL, bytes, taken);
}

void physical_created(struct pool *pool, struct unpooled *taken, bool done,
                      CUmemGenericAllocationHandle handle)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    struct physical *physical = done && taken->device ? calloc(1, sizeof *physical) : NULL;
    bool added = false;
    if (physical) {
        unpooled_given(taken);
        *physical = (struct physical){.handle = handle, .taken = *taken, .holds = 1};
        lock_take(&memory->lock, LOCK_UNPOOLED);
        added = add(memory, physical);
        lock_give(&memory->lock);
    }
    if (added)
        return;
    free(physical);
    unpooled_return(taken);
}

struct physical *physical_release_begins(struct pool *pool, CUmemGenericAllocationHandle handle)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    struct physical *physical = find(memory, handle);
    if (physical && physical->holds == 0)
        physical = NULL; /* the driver refuses */
    if (pin(memory, physical))
        physical->holds--;
    lock_give(&memory->lock);
    return physical;
}

/* Ends a pair for memory whose holds or mappings have changed by so many, if any. */
static void end(struct pool *pool, struct physical *physical, unsigned holds)
{
    if (!physical)
        return;
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    physical->holds += holds;
    bool gone = unpin(memory, physical);
    lock_give(&memory->lock);
    if (gone)
        forget(physical);
}

void physical_released(struct pool *pool, struct physical *physical, bool done)
{
    end(pool, physical, !done);
}

struct physical *physical_retain_begins(struct pool *pool, CUdeviceptr address)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    struct mapping *mapping = find_mapping(memory, address, 1);
    struct physical *physical = pin(memory, mapping ? mapping->of : NULL);
    lock_give(&memory->lock);
    return physical;
}

void physical_retained(struct pool *pool, struct physical *physical, bool done)
{
    end(pool, physical, done);
}

/* Memory that is gone from the driver may still have a record. The handle is another one's then,
 * perhaps an import's. */
struct physical *physical_map_begins(struct pool *pool, CUmemGenericAllocationHandle handle)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    struct physical *physical = find(memory, handle);
    physical = pin(memory, physical && is_there(physical) ? physical : NULL);
    lock_give(&memory->lock);
    return physical;
}

/* Adds the mapping, whose memory is pinned, or frees it where there is no room for the record. */
static void add_mapping(struct pool *pool, struct mapping *mapping)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    void *found = tsearch(mapping, &memory->mappings, by_range);
    bool added = found && *(struct mapping **)found == mapping;
    mapping->of->mappings += added;
    lock_give(&memory->lock);
    if (!added)
        free(mapping);
}

void physical_mapped(struct pool *pool, struct physical *physical, bool done, CUdeviceptr address,
                     size_t bytes)
{
    struct mapping *mapping = physical && done ? malloc(sizeof *mapping) : NULL;
    if (mapping) {
        *mapping = (struct mapping){address, bytes, physical, NULL};
        add_mapping(pool, mapping);
    }
    end(pool, physical, 0);
}

static bool is_inside(const struct mapping *mapping, CUdeviceptr address, uint64_t bytes)
{
    return mapping->address >= address && mapping->address + mapping->bytes <= address + bytes;
}

/* Takes the mappings in the range out of the tree, so that another thread's at the same addresses
 * are told from them. */
struct mapping *physical_unmap_begins(struct pool *pool, CUdeviceptr address, size_t bytes)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    struct mapping *taken = NULL, *mapping;
    lock_take(&memory->lock, LOCK_UNPOOLED);
    /* The driver refuses a range that ends inside a mapping. */
    while ((mapping = find_mapping(memory, address, bytes)) && is_inside(mapping, address, bytes)) {
        tdelete(mapping, &memory->mappings, by_range);
        pin(memory, mapping->of);
        mapping->of->mappings--;
        mapping->next = taken;
        taken = mapping;
    }
    lock_give(&memory->lock);
    return taken;
}

void physical_unmapped(struct pool *pool, struct mapping *mappings, bool done)
{
    while (mappings) {
        struct mapping *mapping = mappings;
        struct physical *physical = mapping->of;
        mappings = mapping->next;
        if (done)
            free(mapping);
        else
            add_mapping(pool, mapping);
        end(pool, physical, 0);
    }
}
