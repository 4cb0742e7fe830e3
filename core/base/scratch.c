#include "scratch.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Mapped at a time, unless one request needs more. */
#define REGION_BYTES ((size_t)1 << 20)

/* malloc's alignment. */
#define ALIGNMENT _Alignof(max_align_t)

struct region {
    struct region *next;
    size_t bytes, used;
};

/* Stands before each piece of memory, so that scratch_realloc knows how much to copy. */
struct piece {
    _Alignas(ALIGNMENT) size_t bytes;
};

/* The thread that has scratch memory, or 0. The acquire where it is set pairs with the release
 * where it is reset: the regions are as the last owner left them. */
static _Atomic uintptr_t owner;

/* Used by the owner alone. */
static struct region *regions;

bool scratch_is_mine(void)
{
    return atomic_load_explicit(&owner, memory_order_relaxed) == (uintptr_t)pthread_self();
}

bool scratch_begin(void)
{
    uintptr_t nobody = 0;
    return atomic_compare_exchange_strong_explicit(&owner, &nobody, (uintptr_t)pthread_self(),
                                                   memory_order_acquire, memory_order_relaxed);
}

void scratch_end(void)
{
    while (regions != NULL) {
        struct region *region = regions;
        regions = region->next;
        munmap(region, region->bytes);
    }
    atomic_store_explicit(&owner, 0, memory_order_release);
}

static struct region *map_region(size_t bytes)
{
    size_t all = bytes + sizeof(struct region);
    if (all < REGION_BYTES)
        all = REGION_BYTES;
    struct region *region =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED)
        return NULL;
    *region = (struct region){.next = regions, .bytes = all, .used = sizeof *region};
    region->used = (region->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    regions = region;
    return region;
}

static void *take(size_t bytes)
{
    size_t needed = sizeof(struct piece) + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct region *region = regions;
    if (needed < bytes || needed > SIZE_MAX / 2)
        region = NULL;
    else if (region == NULL || needed > region->bytes - region->used)
        region = map_region(needed + ALIGNMENT);
    if (region == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    struct piece *piece = (void *)((char *)region + region->used);
    region->used += needed;
    piece->bytes = bytes;
    return piece + 1;
}

static bool is_in_region(const void *memory)
{
    for (const struct region *r = regions; r != NULL; r = r->next)
        if ((const char *)memory > (const char *)r &&
            (const char *)memory < (const char *)r + r->bytes)
            return true;
    return false;
}

bool scratch_has(const void *memory)
{
    return scratch_is_mine() && is_in_region(memory);
}

void *scratch_malloc(size_t bytes)
{
    return scratch_is_mine() ? take(bytes) : malloc(bytes);
}

void *scratch_calloc(size_t count, size_t bytes)
{
    size_t all;
    if (!scratch_is_mine())
        return calloc(count, bytes);
    return take(__builtin_mul_overflow(count, bytes, &all) ? SIZE_MAX : all);
}

void *scratch_realloc(void *memory, size_t bytes)
{
    if (!scratch_is_mine())
        return realloc(memory, bytes);
    void *longer = take(bytes);
    if (memory != NULL && longer != NULL) {
        size_t before = ((struct piece *)memory)[-1].bytes;
        memcpy(longer, memory, before < bytes ? before : bytes);
    }
    return longer;
}

void scratch_free(void *memory)
{
    if (memory != NULL && !scratch_has(memory))
        free(memory);
}
