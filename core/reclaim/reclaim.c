#include "reclaim.h"

#include "core/base/clock.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "neighbours.h"
#include "waiting.h"

/* How long a call that may concern any device is tried again. Its need on each device is not known,
 * and each try releases all that is cached. */
#define ANY_DEVICE_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* How long the device may take to tell that a fence without unfinished work has completed. */
#define LOOK_NANOSECONDS (UINT64_C(1) * 1000 * 1000)

/* A release takes milliseconds however little it releases, so it releases at least 1/RELEASE_SHARE
 * of what is cached. */
#define RELEASE_SHARE 8u

static uint64_t release_clean(struct pool *pool, struct device *device,
                              const struct reclaim *progress, uint64_t bytes)
{
    return kinds_release(pool, device, progress->bound == RECLAIM_MACHINE, bytes,
                         RELEASE_OUT_OF_MEMORY);
}

static void trim_pool(struct pool *pool, CUresult (*get)(CUmemoryPool *, CUdevice), CUdevice device)
{
    CUmemoryPool memory_pool;
    if (get && get(&memory_pool, device) == CUDA_SUCCESS)
        pool->driver->cuMemPoolTrimTo(memory_pool, 0);
}

/* At a limit, the driver releases what it reserves for graphs that no work uses, once for each
 * call, and waits for no work (conformance: graph_memory_is_trimmed_beside_work). Where it has no
 * memory itself, it does so by itself. Returns whether it has released any. */
static bool trim_graphs(struct pool *pool, struct device *device, struct reclaim *progress)
{
    bool at_limit = progress->bound == RECLAIM_LIMIT || progress->bound == RECLAIM_GROUP;
    uint64_t before = device ? device_graph_bytes(device) : 0;
    if (!at_limit || progress->trimmed || !before || !pool->driver->cuDeviceGraphMemTrim)
        return false;
    progress->trimmed = true;
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    pool->driver->cuDeviceGraphMemTrim(device->ordinal);
    leave_driver_relaxed(pool->driver, mode);
    TELL_KINDS(pool, ask, pool, device);
    return device_graph_bytes(device) < before;
}

/* Trims the driver's own pools of the device (NULL: of all), which cache memory too. */
static bool trim_driver(struct pool *pool, const struct device *wanted)
{
    const struct driver *driver = pool->driver;
    if (!driver->cuMemPoolTrimTo)
        return false;
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    const struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next) {
        if (wanted && device != wanted)
            continue;
        trim_pool(pool, driver->cuDeviceGetDefaultMemPool, device->ordinal);
        trim_pool(pool, driver->cuDeviceGetMemPool, device->ordinal);
    }
    leave_driver_relaxed(pool->driver, mode);
    return true;
}

/* Asks the driver about every fence: pending memory becomes clean only after a query. Threads that
 * wait query the newest fence alone. */
static void ask_about_fences(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        epoch_ask_all_in_turn(pool, c);
}

/* Releases some clean memory: first as many bytes as were asked for, then twice as many, and so on.
 * The call may need less than all that is cached. */
static bool release_some_clean(struct pool *pool, struct device *device, struct reclaim *progress)
{
    ask_about_fences(pool, device);
    TELL_KINDS(pool, ask, pool, device);
    uint64_t bytes = progress->bytes ? progress->bytes : UINT64_MAX;
    bool of_machine = progress->bound == RECLAIM_MACHINE;
    struct kept_bytes kept = of_machine ? kept_bytes_of_machine(pool) : kept_bytes(pool, device);
    uint64_t share = kept.cached / RELEASE_SHARE;
    if (bytes < share)
        bytes = share;
    uint64_t released = release_clean(pool, device, progress, bytes);
    progress->bytes = bytes > UINT64_MAX / 2 ? UINT64_MAX : 2 * bytes;
    progress->released += released;
    if (released == 0 || bytes == UINT64_MAX)
        progress->step++;
    return released != 0;
}

/* Waits for fences that frees of the context have recorded. Memory whose release is ordered after a
 * barrier reaches the driver soon after the barrier's fence has completed. */
static void wait_for_frees_of(struct pool *pool, struct context *context,
                              const struct reclaim *progress)
{
    uint64_t end = progress->started + LAST_RESORT_NANOSECONDS;
    epoch_wait_for_frees(pool, context, progress->started, end);
    uint64_t started = monotonic_now();
    while (!return_is_over(pool, context) && monotonic_now() - started < TELL_NANOSECONDS)
        patient_nap(started);
}

/* Waits for the fences of the device's contexts, which serve all kinds. */
static void wait_for_fences(struct pool *pool, struct device *device,
                            const struct reclaim *progress)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        if (may_wait_for_frees(pool, device, c, progress))
            wait_for_frees_of(pool, c, progress);
}

/* Releases all memory that is clean after a wait. Returns whether there was any. */
static bool release_waited_for(struct pool *pool, struct device *device, struct reclaim *progress)
{
    ask_about_fences(pool, device);
    uint64_t released = release_clean(pool, device, progress, UINT64_MAX);
    progress->released += released;
    return released != 0;
}

/* Lets every kind wait for its pending memory. Returns whether memory that the program freed
 * without the pool may be free by now. */
static bool wait_for_the_rest(struct pool *pool, struct device *device,
                              const struct reclaim *progress)
{
    bool past_the_pool = false;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->wait_for_the_rest &&
            ((*kind)->is_the_machines || progress->bound != RECLAIM_MACHINE))
            past_the_pool |= (*kind)->wait_for_the_rest(pool, device, progress);
    return past_the_pool;
}

/* Waits for and releases pending memory that has no fence, or a fence that frees do not wait for.
 */
static bool release_the_rest(struct pool *pool, struct device *device, struct reclaim *progress,
                             uint64_t give_up_at)
{
    progress->give_up_at = give_up_at;
    bool past_the_pool = wait_for_the_rest(pool, device, progress);
    bool any = release_waited_for(pool, device, progress) || past_the_pool;
    /* Memory that the program freed in stream order is free by now too, in the driver's own pools.
     */
    if (any && progress->bound != RECLAIM_MACHINE)
        trim_driver(pool, device);
    return any;
}

static bool ask_others(struct pool *pool, struct device *device, struct reclaim *progress,
                       struct kept_bytes own, bool wait)
{
    bool given = neighbours_ask(pool, device, progress, own.cached + own.pending, wait);
    progress->released += given;
    return given;
}

/* Asks other processes, unless this process has pending memory that it only needs to query. Memory
 * that this process must wait for comes after what others can give at once, and before what others
 * must wait for. The step repeats as long as it obtains memory. */
static bool ask_neighbours(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (!neighbours_may_help(pool, device, progress))
        return false;
    struct kept_bytes own = kept_bytes(pool, device);
    bool pending = own.pending != 0;
    bool given =
        pending && release_the_rest(pool, device, progress, monotonic_now() + LOOK_NANOSECONDS);
    if (!given)
        given = ask_others(pool, device, progress, own, !pending);
    progress->step -= given;
    return given;
}

/* Waits for what others have pending, after all that this process had pending. */
static bool await_neighbours(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (!progress->others.pend || !neighbours_may_help(pool, device, progress))
        return false;
    bool given = ask_others(pool, device, progress, kept_bytes(pool, device), true);
    progress->step -= given;
    return given;
}

/* Takes the next step, from what costs nothing to what may take long. The first step repeats until
 * it has released all that there is. */
static bool take_step(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (progress->step == RECLAIM_CLEAN)
        return release_some_clean(pool, device, progress);
    switch (progress->step++) {
    case RECLAIM_FENCED:
        /* The driver does not free host memory while a context has work. RECLAIM_THE_REST waits for
         * that work. */
        if (progress->bound == RECLAIM_MACHINE)
            return false;
        if (trim_graphs(pool, device, progress)) {
            progress->step--;
            return true;
        }
        wait_for_fences(pool, device, progress);
        return release_waited_for(pool, device, progress);
    case RECLAIM_DRIVER:
        return progress->bound != RECLAIM_MACHINE && trim_driver(pool, device);
    case RECLAIM_NEIGHBOURS:
        return progress->bound != RECLAIM_MACHINE && ask_neighbours(pool, device, progress);
    case RECLAIM_THE_REST:
        return release_the_rest(pool, device, progress,
                                progress->started + LAST_RESORT_NANOSECONDS);
    case RECLAIM_NEIGHBOURS_REST:
        return await_neighbours(pool, device, progress);
    default:
        return false;
    }
}

/* Whether threads are releasing blocks, which are no longer in a heap but not with the driver yet.
 */
static bool others_give_back(struct pool *pool, const struct device *wanted)
{
    const struct device *device = registry_devices(&pool->registry);
    if (!wanted && atomic_load_explicit(&pool->host_returns, memory_order_relaxed))
        return true;
    for (; device; device = device->next)
        if ((!wanted || device == wanted) &&
            atomic_load_explicit(&device->returning, memory_order_relaxed))
            return true;
    return false;
}

/* Waits until other threads have released their blocks. Returns false after
 * LAST_RESORT_NANOSECONDS. */
static bool wait_while_others_give_back(struct pool *pool, const struct device *device,
                                        uint64_t started)
{
    while (others_give_back(pool, device)) {
        if (monotonic_now() - started > LAST_RESORT_NANOSECONDS)
            return false;
        patient_nap(started);
    }
    return true;
}

/* Returns a sum that changes when threads allocate, free or close an epoch, or when blocks leave a
 * thread's cache. */
static uint64_t sum_of_changes(struct pool *pool, struct device *device,
                               const struct reclaim *progress)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->changes && kind_may_help(*kind, device, progress->bound == RECLAIM_MACHINE))
            sum += (*kind)->changes(pool, device);
    return sum;
}

/* Begins again with the first step, while there is time. Another thread may have taken what this
 * thread released, before its own memory was free. Or others may have moved memory between two
 * looks of this thread. Without the pool there would have been enough for all. */
static bool begin_again(struct pool *pool, struct device *device, struct reclaim *progress)
{
    uint64_t patience = device ? LAST_RESORT_NANOSECONDS : ANY_DEVICE_NANOSECONDS;
    bool again = monotonic_now() - progress->started < patience;
    progress->step = again ? RECLAIM_CLEAN : RECLAIM_DONE;
    progress->bytes = 0;
    progress->released = 0;
    progress->seen = sum_of_changes(pool, device, progress);
    return again;
}

/* Tries once more after other threads have released memory, however long that took. */
static bool try_once_more(struct pool *pool, struct device *device, struct reclaim *progress)
{
    begin_again(pool, device, progress);
    return monotonic_now() - progress->started < LAST_RESORT_NANOSECONDS;
}

/* Whether other threads release blocks, or have just begun to. A thread that takes blocks out of a
 * heap counts them as returning under the context's lock. So this takes each lock once. */
static bool others_have_begun_to_give_back(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        context_lock(c);
        context_unlock(c);
    }
    return others_give_back(pool, device);
}

/* Whether there would, or may, be enough for the request if all kept memory were released. */
static bool could_fit(struct pool *pool, struct device *device, const struct reclaim *progress)
{
    return others_have_begun_to_give_back(pool, device) || request_may_fit(pool, device, progress);
}

static bool others_are_at_it(struct pool *pool, struct device *device,
                             const struct reclaim *progress)
{
    /* For a stream-ordered allocation the driver would not have waited for what others free either.
     */
    bool hopeless = progress->in_stream_order && progress->bound == RECLAIM_DEVICE;
    if (progress->wanted == 0 || hopeless ||
        sum_of_changes(pool, device, progress) == progress->seen ||
        !could_fit(pool, device, progress))
        return false;
    patient_nap(progress->started);
    return true;
}

bool reclaim_for_retry(struct pool *pool, struct device *device, struct reclaim *progress)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (progress->started == 0)
        progress->started = monotonic_now();
    if (progress->rounded == 0) {
        progress->rounded = progress->bytes > progress->wanted ? progress->bytes : progress->wanted;
        progress->seen = sum_of_changes(pool, device, progress);
    }
    do {
        while (progress->step < RECLAIM_DONE)
            if (take_step(pool, device, progress))
                return true;
        if (others_give_back(pool, device))
            return wait_while_others_give_back(pool, device, progress->started) &&
                   try_once_more(pool, device, progress);
    } while ((progress->released || others_are_at_it(pool, device, progress)) &&
             begin_again(pool, device, progress));
    if (device)
        neighbours_note_failure(device, progress);
    return false;
}
