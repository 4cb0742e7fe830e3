/*
 * Decides when the housekeeper's thread is made. own_thread.c makes it, and house.c is what it
 * does.
 */
#include "housekeeper.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/board/board.h"
#include "core/contexts/device.h"
#include "core/contexts/housekeeping.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/surroundings.h"
#include "house.h"
#include "neighbours.h"
#include "own_thread.h"

/* After a thread could not be made, the next try comes after this time: nanoseconds. */
#define RETRY_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Slow paths publish what is cached at most once in PUBLISH_NANOSECONDS, unless UNTOLD_BYTES were
 * freed. Summing up all threads' caches costs each thread a cache line or two. */
#define PUBLISH_NANOSECONDS (UINT64_C(1) * 1000 * 1000)
#define UNTOLD_BYTES        (UINT64_C(64) << 20)

/* One of this many slow paths of a thread reads the clock for that. */
#define LOOKS_PER_CLOCK 16u

/* ---- the process ---- */

/* The pool for process_ends, since exit handlers get no argument. Of several pools, which only
 * tests have, it is the last one. */
static _Atomic(struct pool *) pool_of_process;

static void process_ends(void)
{
    struct pool *pool = atomic_load_explicit(&pool_of_process, memory_order_acquire);
    /* A vfork child that calls exit shares the memory, but must not stop the housekeeper. */
    if (pool && pool->process == getpid())
        housekeeper_stop(pool);
}

/* Registers process_ends with atexit. The driver has registered its handlers earlier, so
 * process_ends runs before these. Returns false while a thread forks: its child could never exit.
 */
static bool be_told_of_exit(struct pool *pool)
{
    if (atomic_load_explicit(&pool_of_process, memory_order_acquire) == pool)
        return true;
    if (!surroundings_linker_begin(pool))
        return false;
    if (!atomic_exchange_explicit(&pool_of_process, pool, memory_order_acq_rel))
        atexit(process_ends);
    surroundings_linker_end(pool);
    return true;
}

void housekeeper_prepare(struct pool *pool)
{
    struct housekeeping *keeping = &pool->housekeeping;
    if (!pool->settings.neighbours.enabled)
        atomic_store_explicit(&keeping->phase, HOUSEKEEPING_OFF, memory_order_relaxed);
}

void housekeeper_stop(struct pool *pool)
{
    struct board *board = atomic_load_explicit(&pool->board, memory_order_acquire);
    atomic_store_explicit(&pool->housekeeping.stopped, true, memory_order_relaxed);
    if (!board)
        return;
    for (struct device *device = registry_devices(&pool->registry); device; device = device->next)
        board_publish_at_end(board, device->board_place, device_resident(device));
    board_publish_ending(board);
}

void housekeeper_forget(struct pool *pool)
{
    atomic_store_explicit(&pool->housekeeping.phase, HOUSEKEEPING_OFF, memory_order_relaxed);
    atomic_store_explicit(&pool->housekeeping.stopped, true, memory_order_relaxed);
}

/* False in a forked child. A vfork child runs in the parent's memory, so the process id tells. */
static bool is_in_the_pools_process(const struct pool *pool)
{
    return !atomic_load_explicit(&pool->forgotten, memory_order_relaxed) &&
           pool->process == getpid();
}

/* Makes the thread, if the phase still is the one that this thread has read. */
__attribute__((noinline)) static void make(struct pool *pool, uint32_t phase)
{
    struct housekeeping *keeping = &pool->housekeeping;
    uint64_t now = monotonic_now();
    if (phase == HOUSEKEEPING_CANNOT &&
        now < atomic_load_explicit(&keeping->retry_at, memory_order_relaxed))
        return;
    if (atomic_load_explicit(&keeping->stopped, memory_order_relaxed) ||
        !is_in_the_pools_process(pool) || !be_told_of_exit(pool))
        return;
    /* A process that asks before the thread first runs is answered when it runs. This comes before
     * the phase: other threads' frees rely on whoever changes the phase. */
    neighbours_publish(pool);
    neighbours_listen(pool, BOARD_LISTENS);
    if (!atomic_compare_exchange_strong(&keeping->phase, &phase, HOUSEKEEPING_MADE))
        return;
    house_count_state(pool, HOUSEKEEPER_RUNS);
    if (own_thread_make(pool, house_keep, pool))
        return;
    neighbours_listen(pool, BOARD_LEAVES);
    neighbours_listen(pool, BOARD_DEAF);
    house_count_state(pool, HOUSEKEEPER_CANNOT);
    atomic_store_explicit(&keeping->retry_at, now + RETRY_NANOSECONDS, memory_order_relaxed);
    atomic_store_explicit(&keeping->phase, HOUSEKEEPING_CANNOT, memory_order_release);
}

/* Whether the pool has taken enough for a thread to be worth it. In a group with a limit any byte
 * is enough, since the group lacks it. */
static bool has_taken_much(struct pool *pool)
{
    uint64_t bytes = atomic_load_explicit(&pool->machine_bytes, memory_order_relaxed);
    bool of_limited_group = false;
    const struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next) {
        uint64_t taken = device_reserved(device);
        if (taken > HOUSEKEEPER_BYTES || device_limit(device, BOARD_LIMIT_OF_GROUP) != UINT64_MAX)
            taken = device_pooled(device);
        bytes += taken;
        of_limited_group |= device_limit(device, BOARD_LIMIT_OF_GROUP) != UINT64_MAX && taken;
    }
    return bytes > HOUSEKEEPER_BYTES || of_limited_group;
}

/* Publishes what is cached, if much was freed or some time has passed. Otherwise the thread
 * publishes soon enough. Relaxed: it only chooses which thread publishes. */
static void publish_now_and_then(struct pool *pool, uint64_t bytes)
{
    struct housekeeping *keeping = &pool->housekeeping;
    if (bytes < HOUSEKEEPER_MUCH && ++thread_state.looks % LOOKS_PER_CLOCK != 0)
        return;
    uint64_t untold =
        bytes + atomic_fetch_add_explicit(&keeping->untold, bytes, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&keeping->published_at, memory_order_relaxed);
    uint64_t now = monotonic_now();
    if (untold < UNTOLD_BYTES && now < last + PUBLISH_NANOSECONDS)
        return;
    atomic_store_explicit(&keeping->untold, 0, memory_order_relaxed);
    atomic_store_explicit(&keeping->published_at, now, memory_order_relaxed);
    neighbours_publish(pool);
}

void housekeeper_look(struct pool *pool, uint64_t bytes)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    uint32_t phase = atomic_load_explicit(&pool->housekeeping.phase, memory_order_relaxed);
    if (phase == HOUSEKEEPING_OFF)
        return;
    if (phase == HOUSEKEEPING_MADE && atomic_load_explicit(&pool->board, memory_order_acquire))
        publish_now_and_then(pool, bytes);
    else if (phase == HOUSEKEEPING_WATCHED || (phase != HOUSEKEEPING_MADE && has_taken_much(pool)))
        make(pool, phase);
}

void housekeeper_look_after_miss(struct pool *pool)
{
    uint32_t phase = atomic_load_explicit(&pool->housekeeping.phase, memory_order_relaxed);
    if (phase == HOUSEKEEPING_NONE && has_taken_much(pool))
        make(pool, phase);
}
