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

/* How long a call is tried again that may concern any device: nobody knows how much it needs of
 * which, and each time all that is cached goes back. */
#define ANY_DEVICE_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* So long the device may take to tell that a fence is over which has nothing to wait for. */
#define LOOK_NANOSECONDS (UINT64_C(1) * 1000 * 1000)

/* Giving back costs milliseconds however little it is, so it is at least this share of what is
 * cached. */
#define RELEASE_SHARE 8u

/* Whether what the kind gives back may be what is missing. For a call that may concern any device
 * nobody knows. */
static bool may_help(const struct kind *kind, const struct device *device,
                     const struct reclaim *progress)
{
    return kind->is_the_machines ? !device : progress->bound != RECLAIM_MACHINE;
}

/* The kinds in their order, until so many bytes are given back. */
static uint64_t give_back_clean(struct pool *pool, struct device *device,
                                const struct reclaim *progress, uint64_t bytes)
{
    uint64_t released = 0;
    for (const struct kind *const *kind = pool->kinds; *kind && released < bytes; kind++)
        if (may_help(*kind, device, progress))
            released += (*kind)->give_back(pool, device, bytes - released);
    return released;
}

static void trim_pool(struct pool *pool, CUresult (*get)(CUmemoryPool *, CUdevice), CUdevice device)
{
    CUmemoryPool memory_pool;
    if (get && get(&memory_pool, device) == CUDA_SUCCESS)
        pool->driver->cuMemPoolTrimTo(memory_pool, 0);
}

/* The driver's own pools keep memory too. */
static bool trim_driver(struct pool *pool, const struct device *wanted)
{
    const struct driver *driver = pool->driver;
    if (!driver->cuMemPoolTrimTo)
        return false;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    const struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next) {
        if (wanted && device != wanted)
            continue;
        trim_pool(pool, driver->cuDeviceGetDefaultMemPool, device->ordinal);
        trim_pool(pool, driver->cuDeviceGetMemPool, device->ordinal);
    }
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    return true;
}

/* Pools of the driver's that kinds do not serve. */
static bool trim_unserved(struct pool *pool, bool of_machine)
{
    bool any = false;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        any |= (*kind)->trim_unserved && (*kind)->trim_unserved(pool, of_machine);
    return any;
}

/* What is over is clean once somebody has asked. Whoever waits asks about the newest fence alone.
 */
static void ask_about_fences(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        epoch_ask_all_in_turn(pool, c);
}

/* What is missing may be less than all that is cached: first as much as was asked for, then twice
 * that, and so on. */
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
    uint64_t released = give_back_clean(pool, device, progress, bytes);
    progress->bytes = bytes > UINT64_MAX / 2 ? UINT64_MAX : 2 * bytes;
    progress->released += released;
    if (released == 0 || bytes == UINT64_MAX)
        progress->step++;
    return released != 0;
}

/* What went back behind a barrier is the driver's soon after the barrier's fence is over. */
static void wait_for_frees_of(struct pool *pool, struct context *context,
                              const struct reclaim *progress)
{
    uint64_t end = progress->started + LAST_RESORT_NANOSECONDS;
    epoch_wait_for_frees(pool, context, progress->started, end);
    uint64_t started = monotonic_now();
    while (!return_is_over(pool, context) && monotonic_now() - started < TELL_NANOSECONDS)
        patient_nap(started);
}

/* The fences of a context serve all its kinds. */
static void wait_for_fences(struct pool *pool, struct device *device,
                            const struct reclaim *progress)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        if (may_wait_for_frees(pool, device, c, progress))
            wait_for_frees_of(pool, c, progress);
}

/* What has been waited for. Whether there was anything. */
static bool release_waited_for(struct pool *pool, struct device *device, struct reclaim *progress)
{
    ask_about_fences(pool, device);
    uint64_t released = give_back_clean(pool, device, progress, UINT64_MAX);
    progress->released += released;
    return released != 0;
}

/* Whether what the program has freed past the pool may be back. */
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

/* What is pending and has no fence, or one that frees do not wait for. */
static bool release_the_rest(struct pool *pool, struct device *device, struct reclaim *progress,
                             uint64_t give_up_at)
{
    progress->give_up_at = give_up_at;
    bool past_the_pool = wait_for_the_rest(pool, device, progress);
    bool any = release_waited_for(pool, device, progress) || past_the_pool;
    /* What the program freed in a stream's order is back by now, too: in the driver's own pools. */
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

/* Others are not asked for what this process only has to look at. What it has to wait for comes
 * after what they can give at once, and before what they have to wait for. The step is taken again
 * as long as anything is given. */
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

/* After all that this process had pending. */
static bool await_neighbours(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (!progress->others.pend || !neighbours_may_help(pool, device, progress))
        return false;
    bool given = ask_others(pool, device, progress, kept_bytes(pool, device), true);
    progress->step -= given;
    return given;
}

/* From what costs nothing to what may take long. The first step is taken until it has given back
 * all that there is. */
static bool take_step(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (progress->step == RECLAIM_CLEAN)
        return release_some_clean(pool, device, progress);
    switch (progress->step++) {
    case RECLAIM_FENCED:
        /* Nothing of the machine's goes back beside a context's work: that is waited for later. */
        if (progress->bound == RECLAIM_MACHINE)
            return false;
        wait_for_fences(pool, device, progress);
        return release_waited_for(pool, device, progress);
    case RECLAIM_DRIVER:
        if (progress->bound == RECLAIM_MACHINE)
            return trim_unserved(pool, true);
        trim_unserved(pool, !device);
        return trim_driver(pool, device);
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

/* Blocks that are in no heap any more, but not the driver's yet either. */
static bool others_give_back(struct pool *pool, const struct device *wanted)
{
    const struct device *device = registry_devices(&pool->registry);
    if (!wanted && atomic_load_explicit(&pool->returning, memory_order_relaxed))
        return true;
    for (; device; device = device->next)
        if ((!wanted || device == wanted) &&
            atomic_load_explicit(&device->returning, memory_order_relaxed))
            return true;
    return false;
}

/* False where it is not over in a reasonable time. */
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

/* A sum that is another one when threads have allocated, freed or closed an epoch meanwhile, or
 * what they had in their caches has come out. */
static uint64_t sum_of_changes(struct pool *pool, struct device *device,
                               const struct reclaim *progress)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->changes && may_help(*kind, device, progress))
            sum += (*kind)->changes(pool, device);
    return sum;
}

/* Memory that this thread gave back may have gone to another thread, whose own is still on the way,
 * or others may have moved theirs between two looks of this thread's: without the pool there would
 * have been enough for all. */
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

/* What others have just given back is there, however long it took them. */
static bool try_once_more(struct pool *pool, struct device *device, struct reclaim *progress)
{
    begin_again(pool, device, progress);
    return monotonic_now() - progress->started < LAST_RESORT_NANOSECONDS;
}

/* Whoever has taken blocks out of a heap counts them as returning under the same lock. */
static bool others_have_begun_to_give_back(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        context_lock(c);
        context_unlock(c);
    }
    return others_give_back(pool, device);
}

/* Whether there would be enough if all that is kept were given back, or may be. */
static bool could_fit(struct pool *pool, struct device *device, const struct reclaim *progress)
{
    return others_have_begun_to_give_back(pool, device) || request_may_fit(pool, device, progress);
}

static bool others_are_at_it(struct pool *pool, struct device *device,
                             const struct reclaim *progress)
{
    /* In a stream's order the driver would not have waited for what others free, either. */
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
