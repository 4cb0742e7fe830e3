#include "owned.h"

#include <search.h>
#include <stdlib.h>

#include "array_bytes.h"
#include "core/contexts/context.h"
#include "core/driver/calls.h"
#include "core/reclaim/managed.h"

struct owned {
    struct owned_coming of;
    uint64_t key;
    unsigned opened_again; /* times */
    struct owned *next, *before;
};

/* ---- the records; the unpooled lock is held ---- */

static int by_key(const void *one, const void *other)
{
    const struct owned *a = one, *b = other;
    if (a->of.kind != b->of.kind)
        return a->of.kind < b->of.kind ? -1 : 1;
    return (a->key > b->key) - (a->key < b->key);
}

static struct owned *find(struct unpooled_memory *memory, enum owned_kind kind, uint64_t key)
{
    lock_must_be_held(&memory->lock);
    struct owned wanted = {.of.kind = kind, .key = key};
    void *found = tfind(&wanted, &memory->owned_by_key, by_key);
    return found ? *(struct owned **)found : NULL;
}

static void take_out(struct unpooled_memory *memory, struct owned *owned)
{
    lock_must_be_held(&memory->lock);
    tdelete(owned, &memory->owned_by_key, by_key);
    *(owned->before ? &owned->before->next : &memory->owned) = owned->next;
    if (owned->next)
        owned->next->before = owned->before;
}

static bool put_in(struct unpooled_memory *memory, struct owned *owned)
{
    lock_must_be_held(&memory->lock);
    void *found = tsearch(owned, &memory->owned_by_key, by_key);
    if (!found || *(struct owned **)found != owned)
        return false;
    owned->before = NULL;
    owned->next = memory->owned;
    if (owned->next)
        owned->next->before = owned;
    memory->owned = owned;
    return true;
}

static void forget(struct owned *owned)
{
    unpooled_return(&owned->of.taken);
    free(owned);
}

/* ---- pairs around driver calls ---- */

/* The current context, if its memory is counted. */
static struct context *counted_context(struct pool *pool)
{
    bool green;
    struct context *context = context_current(pool, &green);
    return context && unpooled_is_counted(pool, context->device) ? context : NULL;
}

static bool begin(struct pool *pool, enum unpooled_kind kind, uint64_t bytes,
                  struct owned_coming *coming)
{
    coming->generation = context_generation(coming->context);
    return unpooled_take(pool, coming->context->device, kind, bytes, &coming->taken);
}

bool owned_array_begins(struct pool *pool, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels,
                        struct owned_coming *coming)
{
    *coming = (struct owned_coming){.kind = levels ? OWNED_MIPMAPPED_ARRAY : OWNED_ARRAY,
                                    .context = array ? counted_context(pool) : NULL};
    if (!coming->context)
        return true;
    return begin(pool, UNPOOLED_ARRAYS, array_bytes(array, levels), coming);
}

bool owned_managed_begins(struct pool *pool, size_t bytes, struct owned_coming *coming)
{
    *coming = (struct owned_coming){.kind = OWNED_MANAGED, .context = counted_context(pool)};
    if (coming->context && !begin(pool, UNPOOLED_MANAGED, bytes, coming))
        return false;
    managed_about_to_allocate(pool, bytes);
    return true;
}

/* The context may have ended meanwhile, and its memory with it. Its generation changes before the
 * records are looked through. */
static bool add(struct pool *pool, struct owned *owned)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    bool added =
        context_generation(owned->of.context) == owned->of.generation && put_in(memory, owned);
    lock_give(&memory->lock);
    return added;
}

/* The driver has just given what the key stands for. So a record of the key is of memory that went
 * unseen. */
static void forget_key(struct pool *pool, enum owned_kind kind, uint64_t key)
{
    owned_ended(pool, owned_end_begins(pool, kind, key), true);
}

void owned_began(struct pool *pool, struct owned_coming *coming, bool done, uint64_t key)
{
    struct owned *owned = done && coming->taken.device ? calloc(1, sizeof *owned) : NULL;
    if (owned) {
        unpooled_given(&coming->taken);
        forget_key(pool, coming->kind, key);
        *owned = (struct owned){.of = *coming, .key = key};
    }
    if (owned && add(pool, owned))
        return;
    free(owned);
    unpooled_return(&coming->taken);
}

void owned_managed_began(struct pool *pool, struct owned_coming *coming, size_t bytes,
                         CUdeviceptr address)
{
    owned_began(pool, coming, address != 0, address);
    if (address)
        managed_allocated(pool, bytes);
}

struct owned *owned_end_begins(struct pool *pool, enum owned_kind kind, uint64_t key)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    struct owned *owned = find(memory, kind, key);
    if (owned)
        take_out(memory, owned);
    lock_give(&memory->lock);
    return owned;
}

void owned_ended(struct pool *pool, struct owned *owned, bool done)
{
    if (owned && (done || !add(pool, owned)))
        forget(owned);
}

/* ---- memory of others ---- */

/* A record of another context is of memory that has gone unseen. */
static bool is_opened_again(struct pool *pool, const struct owned_coming *coming, uint64_t key)
{
    struct unpooled_memory *memory = unpooled_of(pool);
    lock_take(&memory->lock, LOCK_UNPOOLED);
    struct owned *owned = find(memory, coming->kind, key);
    bool again = owned && owned->of.context == coming->context &&
                 owned->of.generation == context_generation(coming->context);
    if (again)
        owned->opened_again++;
    lock_give(&memory->lock);
    return again;
}

static uint64_t bytes_at(const struct pool *pool, CUdeviceptr address)
{
    size_t bytes = 0;
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    CUresult result = pool->driver->cuMemGetAddressRange_v2(NULL, &bytes, address);
    leave_driver_relaxed(pool->driver, mode);
    return result == CUDA_SUCCESS ? bytes : 0;
}

void owned_opened(struct pool *pool, enum owned_kind kind, uint64_t key, uint64_t bytes)
{
    struct owned_coming coming = {.kind = kind, .context = counted_context(pool)};
    if (!coming.context || (kind == OWNED_IPC && is_opened_again(pool, &coming, key)))
        return;
    if (begin(pool, UNPOOLED_OPENED, bytes ? bytes : bytes_at(pool, key), &coming))
        owned_began(pool, &coming, true, key);
}

void owned_closed(struct pool *pool, struct owned *owned, bool done)
{
    bool last = owned && done && owned->opened_again == 0;
    if (owned && done && !last)
        owned->opened_again--;
    owned_ended(pool, owned, last);
}

/* ---- the kind ---- */

static void forget_address(struct pool *pool, CUdeviceptr address)
{
    forget_key(pool, OWNED_MANAGED, address);
}

static bool freed_outside(struct pool *pool, CUdeviceptr address)
{
    forget_address(pool, address);
    return true;
}

static void ended(struct pool *pool, struct context *context)
{
    struct unpooled_memory *memory = pool->of_kind[KIND_UNPOOLED];
    struct owned *gone = NULL;
    lock_take(&memory->lock, LOCK_UNPOOLED);
    for (struct owned *owned = memory->owned, *next; owned; owned = next) {
        next = owned->next;
        if (owned->of.context != context)
            continue;
        take_out(memory, owned);
        owned->next = gone;
        gone = owned;
    }
    lock_give(&memory->lock);
    while (gone) {
        struct owned *owned = gone;
        gone = owned->next;
        forget(owned);
    }
}

static void ask(struct pool *pool, struct device *device)
{
    (void)device;
    unpooled_follow_graphs(pool);
}

static bool starts(struct pool *pool)
{
    struct unpooled_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return false;
    pthread_mutex_init(&memory->lock, NULL);
    pool->of_kind[KIND_UNPOOLED] = memory;
    return true;
}

const struct kind unpooled_memory = {
    .name = "unpooled",
    .number = KIND_UNPOOLED,
    .starts = starts,
    .ended = ended,
    .freed_outside = freed_outside,
    .forget_address = forget_address,
    .ask = ask,
};
