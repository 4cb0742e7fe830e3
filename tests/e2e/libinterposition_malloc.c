/*
 * A preload that interposes malloc: its first call looks for the next malloc, with dlsym, which may
 * allocate in turn and is then served from a small array.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static void (*next_free)(void *);

static _Alignas(16) char early[65536];
static size_t early_used;
/* volatile: dlsym is declared a leaf, so the compiler thinks that it never calls back into here. */
static volatile int looking;
static unsigned long calls;

static void *take_early(size_t bytes)
{
    void *taken = early + early_used;
    early_used += (bytes + 15) & ~(size_t)15;
    return early_used <= sizeof early ? taken : NULL;
}

static int is_early(const void *memory)
{
    return (uintptr_t)memory - (uintptr_t)early < sizeof early;
}

static void look(void)
{
    looking = 1;
    next_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    looking = 0;
}

void *malloc(size_t bytes)
{
    calls++;
    if (next_malloc == NULL && !looking)
        look();
    return next_malloc != NULL ? next_malloc(bytes) : take_early(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    calls++;
    if (next_malloc == NULL && !looking)
        look();
    return next_calloc != NULL && !looking ? next_calloc(count, bytes) : take_early(count * bytes);
}

void *realloc(void *memory, size_t bytes)
{
    if (next_malloc == NULL && !looking)
        look();
    if (!is_early(memory) && next_realloc != NULL)
        return next_realloc(memory, bytes);
    void *moved = malloc(bytes);
    if (moved != NULL && memory != NULL)
        memcpy(moved, memory, bytes);
    return moved;
}

void free(void *memory)
{
    if (next_malloc == NULL && !looking)
        look();
    if (memory != NULL && !is_early(memory) && next_free != NULL)
        next_free(memory);
}

unsigned long malloc_calls_seen(void)
{
    return calls;
}
