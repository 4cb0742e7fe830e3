#define _GNU_SOURCE
#include "surroundings.h"

#include <link.h>
#include <string.h>

#include "capture.h"
#include "core/base/clock.h"
#include "pool_state.h"

/* ---- loaded objects ---- */

/* The longest that a fork waits for threads that look, which takes microseconds: nanoseconds. */
#define FORK_NANOSECONDS (UINT64_C(100) * 1000 * 1000)

static bool pins_memory(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    return strncmp(name, "libibverbs.so", 13) == 0 || strncmp(name, "libgdrapi.so", 12) == 0 ||
           strncmp(name, "libcufile.so", 12) == 0;
}

/* Whether the object's names of functions include this one, defined by it or by another object. */
static bool knows_name(const struct dl_phdr_info *info, const char *name)
{
    const ElfW(Dyn) *dynamic = NULL;
    const char *names = NULL;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_STRTAB)
            names = (const char *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_STRSZ)
            bytes = dynamic->d_un.d_val;
    }
    return names && memmem(names, bytes, name, strlen(name) + 1);
}

/* UCX before 1.14, or built for CUDA before 11.2, patches the driver's cuMemFree to learn which
 * memory is freed, and knows no cuMemFreeAsync. */
static bool misses_frees(const struct dl_phdr_info *info)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    return strncmp(name, "libucm_cuda.so", 14) == 0 && !knows_name(info, "ucm_cuMemFreeAsync");
}

struct object_search {
    struct pool *pool;
    uint64_t loaded;
    bool pins, misses;
};

static int look_at_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct object_search *search = argument;
    (void)size;
    search->loaded = info->dlpi_adds;
    /* If nothing was loaded since the last look, the first object shows that, and the others need
     * no look. */
    if (search->loaded == atomic_load_explicit(&search->pool->objects_loaded, memory_order_relaxed))
        return 1;
    search->pins = search->pins || (info->dlpi_name && pins_memory(info->dlpi_name));
    search->misses = search->misses || (info->dlpi_name && misses_frees(info));
    return 0;
}

/* A look and a fork that begin at the same time each add themselves and then look for the other. So
 * one of them at least sees the other. */
bool surroundings_linker_begin(struct pool *pool)
{
    atomic_fetch_add(&pool->looking, 1);
    if (atomic_load(&pool->forking) == 0)
        return true;
    atomic_fetch_sub(&pool->looking, 1);
    return false;
}

void surroundings_linker_end(struct pool *pool)
{
    atomic_fetch_sub(&pool->looking, 1);
}

void surroundings_fork_coming(struct pool *pool)
{
    uint64_t started = monotonic_now();
    atomic_fetch_add(&pool->forking, 1);
    while (atomic_load(&pool->looking) != 0 && monotonic_now() - started < FORK_NANOSECONDS)
        patient_nap(started);
}

void surroundings_fork_over(struct pool *pool)
{
    atomic_fetch_sub(&pool->forking, 1);
}

bool look_at_objects(struct pool *pool)
{
    struct object_search search = {pool, 0, false, false};
    if (!surroundings_linker_begin(pool))
        return false;
    dl_iterate_phdr(look_at_object, &search);
    surroundings_linker_end(pool);
    /* Relaxed: two threads may look at the same time and find the same. */
    if (search.pins)
        atomic_store_explicit(&pool->memory_is_pinned, true, memory_order_relaxed);
    if (search.misses)
        atomic_store_explicit(&pool->frees_are_missed, true, memory_order_relaxed);
    atomic_store_explicit(&pool->objects_loaded, search.loaded, memory_order_relaxed);
    return true;
}

static bool memory_may_be_pinned(struct pool *pool)
{
    return !look_at_objects(pool) ||
           atomic_load_explicit(&pool->memory_is_pinned, memory_order_relaxed);
}

bool barriers_are_open(struct pool *pool)
{
    return pool->settings.device.barriers && pool->driver->cuCtxWaitEvent &&
           !contexts_were_several(pool) && !captures_under_way(&pool->captures) &&
           !memory_may_be_pinned(pool);
}

/* ---- launches ---- */

/* A thread launches alone if no other thread has launched for this time. One stream is used if no
 * other stream has had work for this time. Nanoseconds. */
#define ALTERNATION_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* The legacy stream is named CU_STREAM_LEGACY, since its other name, 0, stands for none here.
 * Handles of other streams are addresses, whose last bits are 0. */
static uint64_t name_of_stream(struct pool *pool, CUstream stream)
{
    if (stream == CU_STREAM_PER_THREAD)
        return thread_id(pool) << 2 | 2;
    return stream ? (uintptr_t)stream : (uintptr_t)CU_STREAM_LEGACY;
}

/* Written seldom: a thread that works on several streams writes once until somebody looks. */
void stream_note_use(struct pool *pool, CUstream stream)
{
    uint64_t name = name_of_stream(pool, stream);
    uint64_t first = atomic_load_explicit(&pool->stream_in_use, memory_order_relaxed);
    if (__builtin_expect(first == name, 1))
        return;
    if (!first)
        atomic_store_explicit(&pool->stream_in_use, name, memory_order_relaxed);
    else if (!atomic_load_explicit(&pool->several_streams, memory_order_relaxed))
        atomic_store_explicit(&pool->several_streams, true, memory_order_relaxed);
}

bool one_stream_is_used(struct pool *pool)
{
    if (atomic_load_explicit(&pool->several_streams, memory_order_relaxed)) {
        atomic_store_explicit(&pool->several_streams_at, monotonic_now(), memory_order_relaxed);
        atomic_store_explicit(&pool->stream_in_use, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->several_streams, false, memory_order_relaxed);
    }
    uint64_t at = atomic_load_explicit(&pool->several_streams_at, memory_order_relaxed);
    return !at || monotonic_now() - at > ALTERNATION_NANOSECONDS;
}

void launches_note(struct pool *pool, CUstream stream)
{
    uint64_t self = thread_id(pool);
    thread_state.launches++;
    stream_note_use(pool, stream);
    uint64_t last = atomic_load_explicit(&pool->launcher, memory_order_relaxed);
    /* Written seldom, since every launch reads it. */
    if (!atomic_load_explicit(&pool->launched, memory_order_relaxed))
        atomic_store_explicit(&pool->launched, true, memory_order_relaxed);
    if (__builtin_expect(last == self, 1))
        return;
    if (last)
        atomic_store_explicit(&pool->alternated_at, monotonic_now(), memory_order_relaxed);
    atomic_store_explicit(&pool->launcher, self, memory_order_relaxed);
}

bool launches_alone(struct pool *pool)
{
    uint64_t last = atomic_load_explicit(&pool->launcher, memory_order_relaxed);
    uint64_t alternated = atomic_load_explicit(&pool->alternated_at, memory_order_relaxed);
    return (!last || last == thread_id(pool)) &&
           (!alternated || monotonic_now() - alternated > ALTERNATION_NANOSECONDS);
}
