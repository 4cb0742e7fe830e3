#include "mempool_calls.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/base/size_class.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "mempool_list.h"
#include "stream_ends.h"

/* The driver takes device memory in chunks of this size, and keeps a chunk while any of it is used.
 */
#define DRIVER_CHUNK (UINT64_C(32) << 20)

/* ---- destroying and trimming ---- */

void mempool_destroying(struct pool *pool, CUmemoryPool handle)
{
    struct mempool *mempool = mempool_find_known(pool, handle);
    if (!mempool || mempool->is_default)
        return;
    /* From here on freed blocks are released to the driver, and mempool_unused does not ask. */
    lock_take(&streams_of(pool)->mempool_lock, LOCK_MEMPOOLS);
    atomic_store_explicit(&mempool->closed, true, memory_order_relaxed);
    lock_give(&streams_of(pool)->mempool_lock);
    /* If the driver called the program back inside a call of ours, this thread may hold the locks
     * that releasing needs. In a host function the driver refuses the pool's calls. The blocks are
     * then released later, with the idle ones. */
    if (driver_calls.depth || is_in_host_function(pool))
        return;
    uint64_t started = monotonic_now();
    while (atomic_load_explicit(&mempool->asked, memory_order_acquire))
        patient_nap(started);
    stream_ends_mempool(pool, mempool, UINT64_MAX, true);
}

void mempool_trimming(struct pool *pool, CUmemoryPool handle, uint64_t keep)
{
    struct mempool *mempool = mempool_find_known(pool, handle);
    cuuint64_t reserved = 0;
    if (!mempool || !mempool_ask(pool, handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        reserved <= keep)
        return;
    stream_ends_mempool(pool, mempool, UINT64_MAX, false);
}

/* ---- what the driver's pools hold ---- */

/* Returns the next memory pool after `from` (NULL: the first one) that has a threshold of ours and
 * lies on this device (NULL: on any). */
static struct mempool *find_ours(struct pool *pool, struct mempool *from,
                                 const struct device *device)
{
    struct streams *streams = streams_of(pool);
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    struct mempool *m = from ? from->next : mempool_first(streams);
    while (m && (!m->threshold_is_ours || (device && m->device != device)))
        m = m->next;
    lock_give(&streams->mempool_lock);
    return m;
}

void mempool_trim_ours(struct pool *pool)
{
    struct mempool *m = find_ours(pool, NULL, NULL);
    if (!pool->driver->cuMemPoolTrimTo)
        return;
    /* A tool may have set a limit since the threshold was set. */
    for (struct mempool *each = m; each; each = find_ours(pool, each, NULL))
        if (device_is_limited(each->device))
            mempool_drop_our_threshold(pool, each);
    struct relaxed_mode mode = mempool_call_begin(pool);
    for (; m; m = find_ours(pool, m, NULL))
        pool->driver->cuMemPoolTrimTo(mempool_handle(m), 0);
    mempool_call_end(pool, mode);
}

/* Bytes that one of the driver's pools has reserved, and would release without us. Our free blocks
 * are not counted. ours: the threshold was set by us. */
static uint64_t unused_in(struct pool *pool, const struct mempool *mempool, bool ours)
{
    uint64_t kept = rest_of(mempool_kept(mempool), mempool_sum(pool, mempool).used);
    cuuint64_t reserved = 0, used = 0;
    if ((!ours && kept == 0) ||
        !mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                     &reserved) ||
        !mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used))
        return 0;
    /* Without us the driver would keep whole chunks in use, or as much as the program's own
     * threshold says if that is more. */
    used = rest_of(used, atomic_load(&mempool->stays));
    uint64_t held = size_class_up(rest_of(used, kept), DRIVER_CHUNK);
    uint64_t threshold =
        ours ? 0 : atomic_load_explicit(&mempool->release_threshold, memory_order_relaxed);
    held = kept + larger_of(held, threshold);
    return rest_of(reserved, held);
}

uint64_t mempool_unused(struct pool *pool, const struct device *device)
{
    uint64_t unused = 0;
    for (struct mempool *m = mempool_first(streams_of(pool)); m; m = m->next) {
        lock_take(&streams_of(pool)->mempool_lock, LOCK_MEMPOOLS);
        bool is = m->device == device && mempool_is_open(m);
        bool ours = m->threshold_is_ours;
        atomic_fetch_add_explicit(&m->asked, is, memory_order_relaxed);
        lock_give(&streams_of(pool)->mempool_lock);
        unused += is ? unused_in(pool, m, ours) : 0;
        atomic_fetch_sub_explicit(&m->asked, is, memory_order_release);
    }
    return unused;
}

static uint64_t beside_blocks_in(struct pool *pool, const struct mempool *mempool)
{
    cuuint64_t reserved = 0;
    if (!mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                     &reserved))
        return 0;
    return rest_of(reserved, mempool_kept(mempool));
}

uint64_t mempool_beside_blocks(struct pool *pool, const struct device *device)
{
    uint64_t sum = 0;
    /* The program can't destroy a default pool meanwhile. */
    for (struct mempool *m = find_ours(pool, NULL, device); m; m = find_ours(pool, m, device))
        sum += beside_blocks_in(pool, m);
    return sum;
}

/* ---- attributes ---- */

/* Bytes of our blocks and of the driver's that the program uses. */
static uint64_t used_by_program(struct pool *pool, const struct mempool *mempool, uint64_t counted)
{
    uint64_t others = mempool_others(pool, mempool, counted);
    return mempool_sum(pool, mempool).told + others;
}

static uint64_t most_used_by_program(struct pool *pool, struct mempool *mempool,
                                     uint64_t driver_high)
{
    cuuint64_t now = 0;
    if (!mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now))
        return driver_high;
    uint64_t others = mempool_others(pool, mempool, now);
    struct mempool_sum sum = mempool_sum(pool, mempool);
    mempool_raise(&mempool->used_high, larger_of(sum.told, sum.peak));
    uint64_t high = atomic_load_explicit(&mempool->used_high, memory_order_relaxed) + others;
    /* Driver bytes beyond counted_high can't have been our blocks. */
    uint64_t ours = atomic_load_explicit(&mempool->counted_high, memory_order_relaxed);
    high = larger_of(high, rest_of(driver_high, ours));
    /* told - used: bytes that the program's cuMemFree has freed. Without us the driver would still
     * count them. With us it may not, since we may have released them by cuMemFreeAsync. */
    return smaller_of(high, driver_high + (sum.told - sum.used));
}

void mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct mempool *mempool = mempool_find(pool, handle);
    if (!mempool)
        return;
    cuuint64_t *bytes = value;
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        *bytes = used_by_program(pool, mempool, *bytes);
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *bytes = most_used_by_program(pool, mempool, *bytes);
    lock_take(&streams_of(pool)->mempool_lock, LOCK_MEMPOOLS);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && mempool->threshold_is_ours)
        *bytes = 0; /* the driver's default */
    lock_give(&streams_of(pool)->mempool_lock);
}

/* The driver has set the program's threshold, before or after a call of ours. */
static void threshold_was_set(struct pool *pool, struct mempool *mempool, uint64_t value)
{
    atomic_store_explicit(&mempool->release_threshold, value, memory_order_relaxed);
    lock_take(&streams_of(pool)->mempool_lock, LOCK_MEMPOOLS);
    mempool->threshold_is_ours = false;
    mempool->threshold = value;
    mempool->threshold_is_known = true;
    lock_give(&streams_of(pool)->mempool_lock);
    mempool_restore_programs_threshold(pool, mempool);
}

void mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute)
{
    struct mempool *mempool = mempool_find(pool, handle);
    if (mempool && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        atomic_store(&mempool->gone_before, atomic_load(&mempool->gone));
    if (!mempool || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        return;
    lock_take(&streams_of(pool)->mempool_lock, LOCK_MEMPOOLS);
    mempool->program_sets_threshold = true;
    lock_give(&streams_of(pool)->mempool_lock);
}

void mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 const void *value)
{
    struct mempool *mempool = mempool_find(pool, handle);
    if (!mempool)
        return;
    _Atomic bool *flags[] = {
        [CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = &mempool->opportunistic,
        [CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = &mempool->internal,
    };
    if (attribute < sizeof flags / sizeof flags[0] && flags[attribute])
        atomic_store_explicit(flags[attribute], *(const int *)value != 0, memory_order_relaxed);
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        mempool_start_high_again(pool, mempool);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        threshold_was_set(pool, mempool, *(const cuuint64_t *)value);
}
