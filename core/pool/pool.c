#include "pool.h"

#include <stdlib.h>

#include "core/base/cancellation.h"
#include "core/base/numbers.h"
#include "core/base/sandbox.h"
#include "core/board/board.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/surroundings.h"
#include "core/device_memory/device_memory.h"
#include "core/driver/calls.h"
#include "core/figures/figures_file.h"
#include "core/graph_memory/graph_memory.h"
#include "core/graph_memory/graph_nodes.h"
#include "core/host_memory/host_memory.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/kept.h"
#include "core/reclaim/reclaim.h"
#include "core/scalars/scalars.h"
#include "core/stream_memory/mempool.h"
#include "core/stream_memory/stream_memory.h"
#include "core/unpooled/owned.h"
#include "core/unpooled/unpooled.h"

/* The kinds of memory, in the order in which they are asked. heap_of relies on device memory being
 * the first. */
static const struct kind *const kinds[] = {&device_memory, &host_memory,     &stream_memory,
                                           &graph_memory,  &unpooled_memory, NULL};

/* Numbers the pools of this process from 1. Relaxed: the numbers only have to differ. */
static uint64_t next_number(void)
{
    static _Atomic uint64_t pools;
    return 1 + atomic_fetch_add_explicit(&pools, 1, memory_order_relaxed);
}

struct pool *pool_create(const struct driver *driver, const struct settings *settings,
                         const struct thread_functions *threads)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool || !block_table_init(&pool->blocks)) {
        free(pool);
        return NULL;
    }
    sandbox_note_start();
    pool->driver = driver;
    pool->settings = *settings;
    limits_read(&pool->limits, settings, NULL, NULL);
    pool->kinds = kinds;
    pthread_mutex_init(&pool->primary_lock, NULL);
    pthread_mutex_init(&pool->fence_lock, NULL);
    pthread_mutex_init(&pool->registry.lock, NULL);
    pthread_mutex_init(&pool->pitch_lock, NULL);
    pthread_mutex_init(&pool->host_graphs.lock, NULL);
    figures_init(&pool->figures);
    pool->registry.set_generation = 1;
    counter_set(&pool->lives, 1);
    thread_caches_prepare(pool, threads);
    housekeeper_prepare(pool);
    atomic_init(&pool->registry.generation, next_number() * REGISTRY_POOL);
    /* A pool that is switched off behaves as while captures are under way: the driver answers, and
     * the pool counts the bytes. */
    if (!settings->device.enabled)
        captures_switch_off(pool);
    pool->captures.idle = atomic_load_explicit(&pool->captures.count, memory_order_relaxed);
    bool started = scalars_start(pool);
    for (const struct kind *const *kind = kinds; *kind && started; kind++)
        started = !(*kind)->starts || (*kind)->starts(pool);
    if (started)
        return pool;
    free(pool->scalars);
    free(pool);
    return NULL;
}

void pool_note_graph_launch(struct pool *pool, bool upload)
{
    graph_memory_launched(pool, upload);
    unpooled_follow_graphs(pool);
}

void pool_note_launch(struct pool *pool, CUstream stream)
{
    launches_note(pool, stream);
}

void pool_note_stream(struct pool *pool, CUstream stream)
{
    stream_note_use(pool, stream);
}

void pool_graph_launch_begins(struct pool *pool, CUgraphExec executable)
{
    graph_nodes_note_launch(pool, executable);
}

void pool_fork_coming(struct pool *pool)
{
    surroundings_fork_coming(pool);
}

void pool_fork_over(struct pool *pool)
{
    surroundings_fork_over(pool);
}

void pool_forget(struct pool *pool)
{
    atomic_store_explicit(&pool->forgotten, true, memory_order_relaxed);
    housekeeper_forget(pool);
    board_forget();
    figures_forget(&pool->figures);
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->forget)
            (*kind)->forget(pool);
}

void pool_ends(struct pool *pool)
{
    struct board *board = atomic_load_explicit(&pool->board, memory_order_acquire);
    housekeeper_stop(pool);
    if (board)
        board_leave(board);
}

/* ---- captures ---- */

bool pool_captures_under_way(struct pool *pool)
{
    return captures_under_way(&pool->captures);
}

void pool_capture_about_to_begin(struct pool *pool, CUstream stream)
{
    no_lock_may_be_held();
    graph_memory_process_ended(pool);
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        epoch_fence_the_rest(pool, c);
    TELL_KINDS(pool, capture_is_coming, pool, stream);
}

void pool_capture_has_come(struct pool *pool)
{
    TELL_KINDS(pool, capture_has_come, pool);
}

void pool_captures_lock(struct pool *pool)
{
    captures_lock(pool);
}

void pool_captures_unlock(struct pool *pool)
{
    captures_unlock(pool);
}

void pool_capture_began(struct pool *pool, CUstream stream, bool per_thread)
{
    captures_began(pool, stream, per_thread);
}

void pool_capture_began_again(struct pool *pool, CUstream stream)
{
    captures_began_again(pool, stream);
}

void pool_capture_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph)
{
    captures_perhaps_ended(pool, stream, per_thread, graph);
}

void pool_capture_stream_destroyed(struct pool *pool, CUstream stream)
{
    captures_stream_destroyed(pool, stream);
}

/* ---- out of memory, caches ---- */

bool pool_make_room(struct pool *pool, struct reclaim *progress)
{
    no_lock_may_be_held();
    return reclaim_for_retry(pool, NULL, progress);
}

/* The driver reports free memory of the current context's device only. For any other device the
 * pool cannot tell how much is missing. */
bool pool_make_room_on(struct pool *pool, CUdevice ordinal, uint64_t bytes, bool reserved,
                       struct reclaim *progress)
{
    bool green;
    no_lock_may_be_held();
    const struct context *context = bytes ? context_current(pool, &green) : NULL;
    if (!context || (ordinal != -1 && context->device->ordinal != ordinal))
        return reclaim_for_retry(pool, NULL, progress);
    progress->wanted = bytes;
    progress->unreserved = !reserved;
    if (!progress->started)
        progress->bytes = bytes;
    return reclaim_for_retry(pool, context->device, progress);
}

uint64_t pool_trim(struct pool *pool)
{
    no_lock_may_be_held();
    graph_memory_process_ended(pool);
    return kinds_release(pool, NULL, false, UINT64_MAX, RELEASE_IN_TRIM);
}

void pool_show_figures(struct pool *pool, void (*complain)(const char *line))
{
    figures_show(&pool->figures, &pool->settings, complain);
}

void pool_read_limits(struct pool *pool, void (*complain)(const char *line))
{
    limits_read(&pool->limits, &pool->settings, secure_getenv, complain);
}

bool pool_figures_are_taken(struct pool *pool)
{
    const struct figures_file *file = &pool->figures.file;
    return figures_header(&pool->figures) && file->path[0] != '\0' && !figures_file_is_there(file);
}

bool pool_figures_are_lost(struct pool *pool)
{
    figures_check(&pool->figures);
    return figures_are_lost(&pool->figures);
}

void pool_end_figures(struct pool *pool, bool stay)
{
    figures_end(&pool->figures, stay);
}

static struct device *device_with(struct pool *pool, CUdevice ordinal)
{
    struct device *device = registry_devices(&pool->registry);
    while (device && device->ordinal != ordinal)
        device = device->next;
    return device;
}

struct kept_peaks pool_device_peaks(struct pool *pool, CUdevice ordinal)
{
    struct kept_peaks sum = {0, 0};
    struct device *device = device_with(pool, ordinal);
    if (device)
        TELL_KINDS(pool, add_peaks, pool, device, &sum);
    /* Kinds and contexts may have peaked at different times, so the device's own peak bounds the
     * sum. */
    if (device)
        sum.reserved = smaller_of(sum.reserved, counter_get(&device->given_peak));
    sum.live = smaller_of(sum.live, sum.reserved);
    return sum;
}

void pool_start_peaks_again(struct pool *pool, CUdevice ordinal)
{
    struct device *device = device_with(pool, ordinal);
    if (!device)
        return;
    atomic_store_explicit(&device->given_peak,
                          atomic_load_explicit(&device->given_bytes, memory_order_relaxed),
                          memory_order_relaxed);
    TELL_KINDS(pool, start_peaks_again, pool, device);
}

struct kept_bytes pool_device_bytes(struct pool *pool, CUdevice ordinal)
{
    struct device *device = device_with(pool, ordinal);
    return device ? kept_bytes(pool, device) : (struct kept_bytes){0};
}
