#include "reclaim.h"

#include "core/base/clock.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"

/* How long a call is tried again that may concern any device: nobody knows how much it needs of
 * which, and each time all that is cached goes back. */
#define ANY_DEVICE_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* Giving back costs milliseconds however little it is, so it is at least this share of what is
 * cached. */
#define RELEASE_SHARE 8u

struct kept_bytes kept_bytes(struct pool *pool, struct device *device)
{
    struct kept_bytes sum = {0, 0, 0};
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        if ((*kind)->add_kept)
            (*kind)->add_kept(pool, device, &sum);
    return sum;
}

uint64_t bytes_the_driver_keeps(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        sum += (*kind)->driver_keeps ? (*kind)->driver_keeps(pool, device) : 0;
    return sum;
}

/* The kinds in their order, until so many bytes are given back. */
static uint64_t give_back_clean(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t released = 0;
    for (const struct kind *const *kind = pool->kinds; *kind && released < bytes; kind++)
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

/* What is missing may be less than all that is cached: first as much as was asked for, then twice
 * that, and so on. */
static bool release_some_clean(struct pool *pool, struct device *device, struct reclaim *progress)
{
    TELL_KINDS(pool, ask, pool, device);
    uint64_t bytes = progress->bytes ? progress->bytes : UINT64_MAX;
    uint64_t share = kept_bytes(pool, device).cached / RELEASE_SHARE;
    if (bytes < share)
        bytes = share;
    uint64_t released = give_back_clean(pool, device, bytes);
    progress->bytes = bytes > UINT64_MAX / 2 ? UINT64_MAX : 2 * bytes;
    progress->released += released;
    if (released == 0 || bytes == UINT64_MAX)
        progress->step++;
    return released != 0;
}

/* The fences of a context serve all its kinds. */
static void wait_for_fences(struct pool *pool, struct device *device, uint64_t give_up_at)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        epoch_wait_for_frees(pool, c, give_up_at);
}

/* What has been waited for. Whether there was anything. */
static bool release_waited_for(struct pool *pool, struct device *device, struct reclaim *progress)
{
    uint64_t released = give_back_clean(pool, device, UINT64_MAX);
    progress->released += released;
    return released != 0;
}

/* From what costs nothing to what may take long. The first step is taken until it has given back
 * all that there is. */
static bool take_step(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (progress->step == RECLAIM_CLEAN)
        return release_some_clean(pool, device, progress);
    switch (progress->step++) {
    case RECLAIM_FENCED:
        wait_for_fences(pool, device, progress->started + LAST_RESORT_NANOSECONDS);
        return release_waited_for(pool, device, progress);
    case RECLAIM_DRIVER:
        return trim_driver(pool, device);
    case RECLAIM_THE_REST:
        TELL_KINDS(pool, wait_for_the_rest, pool, device, progress);
        if (!release_waited_for(pool, device, progress))
            return false;
        /* What the program freed in a stream's order is back by now, too. */
        trim_driver(pool, device);
        return true;
    default:
        return false;
    }
}

/* Blocks that are in no heap any more, but not the driver's yet either. */
static bool others_give_back(struct pool *pool, const struct device *wanted)
{
    const struct device *device = registry_devices(&pool->registry);
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
static uint64_t sum_of_changes(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        sum += (*kind)->changes ? (*kind)->changes(pool, device) : 0;
    return sum;
}

/* Bytes that would be free if everything were given back that who waits may hope for. */
static uint64_t returnable_bytes(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        sum += (*kind)->returnable ? (*kind)->returnable(pool, device) : 0;
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
    progress->seen = sum_of_changes(pool, device);
    return again;
}

/* What others have just given back is there, however long it took them. */
static bool try_once_more(struct pool *pool, struct device *device, struct reclaim *progress)
{
    begin_again(pool, device, progress);
    return monotonic_now() - progress->started < LAST_RESORT_NANOSECONDS;
}

/* What is kept, the most of two looks: memory that has gone back to the driver after the first one
 * may be missing in what the driver said before that. */
static uint64_t most_kept(struct pool *pool, struct device *device, uint64_t before)
{
    uint64_t now = returnable_bytes(pool, device);
    return now > before ? now : before;
}

static bool fits_in_limit(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t before = returnable_bytes(pool, device);
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    uint64_t kept = most_kept(pool, device, before);
    return reserved < kept || reserved - kept <= device->limit - bytes;
}

static bool fits_in_device(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t before = returnable_bytes(pool, device);
    size_t left, total;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    return result == CUDA_SUCCESS && left + most_kept(pool, device, before) >= bytes;
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
    if (others_have_begun_to_give_back(pool, device))
        return true;
    return progress->within_limit ? fits_in_limit(pool, device, progress->wanted)
                                  : fits_in_device(pool, device, progress->wanted);
}

static bool others_are_at_it(struct pool *pool, struct device *device,
                             const struct reclaim *progress)
{
    if (progress->wanted == 0 || sum_of_changes(pool, device) == progress->seen ||
        !could_fit(pool, device, progress))
        return false;
    patient_nap(progress->started);
    return true;
}

bool reclaim_for_retry(struct pool *pool, struct device *device, struct reclaim *progress)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (progress->started == 0) {
        progress->started = monotonic_now();
        progress->seen = sum_of_changes(pool, device);
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
    return false;
}

/* ---- the hard limit ---- */

static bool take_reserve(struct device *device, uint64_t bytes)
{
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    do {
        if (bytes > device->limit || reserved > device->limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&device->reserved_bytes, &reserved,
                                                    reserved + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool reserve_take(struct pool *pool, struct context *context, uint64_t bytes, bool in_stream_order)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct device *device = context->device;
    struct reclaim progress = {
        .bytes = bytes, .wanted = bytes, .within_limit = true, .in_stream_order = in_stream_order};
    bool taken = take_reserve(device, bytes);
    while (!taken && bytes <= device->limit && reclaim_for_retry(pool, device, &progress))
        taken = take_reserve(device, bytes);
    return taken;
}
