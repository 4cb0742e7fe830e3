/*
 * A preload that answers every cuMemAlloc and cuMemFree from a table, at once: what no pool can be
 * faster than. It is not safe: memory is used again without a look at the GPU's work, which is
 * right only in a program that does all of it on one stream of one device.
 *
 *   LD_PRELOAD=libfloor.so [FLOOR_BYTES=N] [FLOOR_COLD=N] PROGRAM
 *
 * The first allocation takes FLOOR_BYTES (16 GiB) of the driver. Everything else comes out of them,
 * in sizes of four to a doubling; what they have no room for is the driver's. What was freed last
 * is used first. With FLOOR_COLD the program gets new memory until it has had N bytes, and from
 * then on of each size what was freed longest ago: it sees what cold memory costs.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../driver_api.h"

#define REPLACED(F)                                                                                \
    F(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                        \
    F(cuMemFree_v2, (CUdeviceptr address))
#define PRELOAD "floor"
#include "replaced.h"

enum { GRANULE_BITS = 9, CLASSES = 256 };

/* A free block's granule says which comes next in its list; a live one's, its class. 0: none, so
 * the first granule is not given out. */
static struct {
    pthread_mutex_t lock; /* guards all that is here */
    CUdeviceptr start;
    uint64_t granules, used, cold;
    uint32_t *told;
    uint32_t first[CLASSES], last[CLASSES]; /* of each class's list of free blocks */
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The class of that many granules, which become as many as its blocks have: (4 + n) * 2^k. */
static unsigned class_of(uint64_t *granules)
{
    if (*granules < 8)
        return (unsigned)*granules;
    unsigned doubling = 61 - (unsigned)__builtin_clzl(*granules);
    uint64_t step = UINT64_C(1) << doubling;
    *granules = (*granules + step - 1) & ~(step - 1);
    return 4 * doubling + (unsigned)(*granules >> doubling);
}

static size_t told_bytes(const char *variable, size_t otherwise)
{
    const char *told = getenv(variable);
    return told != NULL ? strtoul(told, NULL, 10) : otherwise;
}

/* Takes the arena from the driver, once. */
static bool has_arena(void)
{
    static bool tried;
    if (!tried) {
        size_t bytes = told_bytes("FLOOR_BYTES", UINT64_C(16) << 30);
        uint64_t granules = bytes >> GRANULE_BITS;
        tried = true;
        arena.cold = told_bytes("FLOOR_COLD", 0) >> GRANULE_BITS;
        void *table = mmap(NULL, (granules + 1) * sizeof *arena.told, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (table != MAP_FAILED && real()->cuMemAlloc_v2(&arena.start, bytes) == CUDA_SUCCESS) {
            arena.told = table;
            arena.granules = granules;
            arena.used = 1;
        } else {
            fprintf(stderr, "floor: no %zu bytes: the driver answers everything\n", bytes);
        }
    }
    return arena.granules > 0;
}

/* The first granule of a block of that many; 0: there is no room for it. */
static uint64_t take(uint64_t granules)
{
    unsigned class = class_of(&granules);
    uint64_t at = arena.first[class];
    bool room = granules <= arena.granules - arena.used;
    if (at != 0 && (arena.used >= arena.cold || !room)) {
        arena.first[class] = arena.told[at];
    } else if (room) {
        at = arena.used;
        arena.used += granules;
    }
    if (at != 0)
        arena.told[at] = class;
    return at;
}

/* Puts a block into its class's list: before the others, or behind them where memory is cold. */
static void put(unsigned class, uint32_t at)
{
    if (arena.cold == 0 || arena.first[class] == 0) {
        arena.told[at] = arena.first[class];
        arena.first[class] = at;
    } else {
        arena.told[at] = 0;
        arena.told[arena.last[class]] = at;
    }
    arena.last[class] = at;
}

REPLACE(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))
{
    uint64_t at = 0, granules = (bytes >> GRANULE_BITS) + ((bytes & 511) != 0);
    pthread_mutex_lock(&arena.lock);
    if (bytes > 0 && bytes <= UINT64_C(1) << 40 && has_arena())
        at = take(granules);
    pthread_mutex_unlock(&arena.lock);
    if (at == 0)
        return real()->cuMemAlloc_v2(address, bytes);
    *address = arena.start + (at << GRANULE_BITS);
    return CUDA_SUCCESS;
}

REPLACE(cuMemFree_v2, (CUdeviceptr address))
{
    pthread_mutex_lock(&arena.lock);
    uint64_t at = (address - arena.start) >> GRANULE_BITS;
    bool ours = address > arena.start && at < arena.used;
    if (ours)
        put(arena.told[at], (uint32_t)at);
    pthread_mutex_unlock(&arena.lock);
    return ours ? CUDA_SUCCESS : real()->cuMemFree_v2(address);
}
