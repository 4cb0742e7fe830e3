#include "mempool_list.h"

#include <stdlib.h>

#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "mempool.h"
#include "stream_shelf.h"

/* ---- the list ---- */

struct mempool *mempool_first(const struct streams *streams)
{
    return atomic_load_explicit(&streams->mempools, memory_order_acquire);
}

struct mempool *mempool_find_known(struct pool *pool, CUmemoryPool handle)
{
    struct mempool *m = mempool_first(streams_of(pool));
    while (m && (mempool_handle(m) != handle || !mempool_is_open(m)))
        m = m->next;
    return m;
}

/* Takes a record of the device whose pool is gone and that has no users. Clears the handle before
 * it reads the users, so that mempool_take rejects the record. NULL: there is no such record. */
static struct mempool *take_spare(struct streams *streams, const struct device *device)
{
    lock_must_be_held(&streams->mempool_lock);
    for (struct mempool *m = mempool_first(streams); m; m = m->next) {
        if (!m->is_gone || m->device != device)
            continue;
        atomic_store(&m->handle, NULL);
        if (atomic_load(&m->users) == 0) {
            m->is_gone = false;
            return m;
        }
    }
    return NULL;
}

/* A new, closed record; NULL if there are too many, or memory is short. */
static struct mempool *add_record(struct streams *streams, struct device *device)
{
    lock_must_be_held(&streams->mempool_lock);
    struct mempool *added = NULL;
    if (streams->mempool_count < MEMPOOLS_MAX)
        added = calloc(1, sizeof *added);
    if (!added)
        return NULL;
    added->device = device;
    added->closed = true;
    added->next = mempool_first(streams);
    streams->mempool_count++;
    atomic_store_explicit(&streams->mempools, added, memory_order_release);
    return added;
}

static void reset_threshold_state(struct mempool *mempool)
{
    lock_of_rank_must_be_held(LOCK_MEMPOOLS);
    mempool->threshold_is_ours = false;
    mempool->program_sets_threshold = false;
    mempool->must_restore_programs = false;
    mempool->threshold_is_known = false;
}

static void open_record(struct mempool *mempool, CUmemoryPool handle)
{
    lock_of_rank_must_be_held(LOCK_MEMPOOLS);
    atomic_store(&mempool->handle, handle);
    atomic_store_explicit(&mempool->closed, false, memory_order_release);
}

static bool is_allowed(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute)
{
    int value = 1;
    return !mempool_ask(pool, handle, attribute, &value) || value;
}

/* ---- the release threshold ---- */

static bool set_driver_threshold(struct pool *pool, struct mempool *mempool, uint64_t bytes)
{
    cuuint64_t value = bytes;
    struct relaxed_mode mode = mempool_call_begin(pool);
    CUresult result = pool->driver->cuMemPoolSetAttribute(
        mempool_handle(mempool), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    mempool_call_end(pool, mode);
    if (result == CUDA_SUCCESS)
        atomic_store_explicit(&mempool->release_threshold, bytes, memory_order_relaxed);
    return result == CUDA_SUCCESS;
}

/* False: the program is setting its own threshold, or has set it. */
static bool program_has_not_set(struct streams *streams, const struct mempool *mempool)
{
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    bool may = !mempool->program_sets_threshold;
    lock_give(&streams->mempool_lock);
    return may;
}

/* set: this library has set the driver's threshold. Returns true if it has, and the program has
 * set its own meanwhile or is setting it. */
static bool note_threshold_set(struct streams *streams, struct mempool *mempool, bool set)
{
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    bool overtaken = set && mempool->program_sets_threshold;
    mempool->threshold_is_ours = set && !overtaken;
    mempool->must_restore_programs = overtaken;
    lock_give(&streams->mempool_lock);
    return overtaken;
}

void mempool_restore_programs_threshold(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    bool now = mempool->must_restore_programs && mempool->threshold_is_known;
    uint64_t value = mempool->threshold;
    if (now)
        mempool->must_restore_programs = false;
    lock_give(&streams->mempool_lock);
    if (now)
        set_driver_threshold(pool, mempool, value);
}

/* Sets the driver's threshold to this many bytes, unless the program has set one. A threshold that
 * is not 0 counts as set by the program. */
static void set_threshold(struct pool *pool, struct mempool *mempool, uint64_t bytes)
{
    cuuint64_t value = 0;
    if (!pool->driver->cuMemPoolSetAttribute || !program_has_not_set(streams_of(pool), mempool))
        return;
    bool set =
        mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value) &&
        value == 0 && set_driver_threshold(pool, mempool, bytes);
    if (note_threshold_set(streams_of(pool), mempool, set))
        mempool_restore_programs_threshold(pool, mempool);
}

void mempool_drop_our_threshold(struct pool *pool, struct mempool *mempool)
{
    if (atomic_load_explicit(&mempool->release_threshold, memory_order_relaxed) != 0 &&
        note_threshold_set(streams_of(pool), mempool, set_driver_threshold(pool, mempool, 0)))
        mempool_restore_programs_threshold(pool, mempool);
}

static uint64_t threshold_of(struct pool *pool, CUmemoryPool handle)
{
    cuuint64_t value = 0;
    return mempool_ask(pool, handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value) ? value : 0;
}

/* ---- becoming known ---- */

/* Fills in the record from the driver's answers. The record is closed, so no other thread finds it
 * by its handle yet. */
static void describe(struct pool *pool, struct mempool *mempool, CUmemoryPool handle)
{
    mempool->release_threshold = threshold_of(pool, handle);
    mempool->opportunistic = is_allowed(pool, handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
    mempool->internal = is_allowed(pool, handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
    mempool_begin(pool, mempool);
}

/* Returns the open record of this handle, and makes it if there is none. NULL: none can be made. A
 * default pool never takes a spare record, because several threads may make it known at once. */
static struct mempool *make_known(struct pool *pool, CUmemoryPool handle, struct device *device,
                                  bool is_default)
{
    struct streams *streams = streams_of(pool);
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    struct mempool *made = is_default ? NULL : take_spare(streams, device);
    if (!made)
        made = add_record(streams, device);
    lock_give(&streams->mempool_lock);
    if (!made)
        return mempool_find_known(pool, handle);
    describe(pool, made, handle);
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    struct mempool *listed = mempool_find_known(pool, handle);
    if (listed) {
        /* Another thread has opened a record of the pool meanwhile. */
        made->is_gone = true;
    } else {
        made->is_default = is_default;
        reset_threshold_state(made);
        open_record(made, handle);
    }
    lock_give(&streams->mempool_lock);
    const struct byte_size *threshold = &pool->settings.stream_ordered.driver_release_threshold;
    /* What the driver keeps beyond a limit is counted by nobody. */
    if (!listed && is_default && !threshold->unlimited && !device_is_limited(device))
        set_threshold(pool, made, byte_size_resolve(threshold, device->total_bytes));
    return listed ? listed : made;
}

static CUmemoryPool default_of(struct pool *pool, const struct device *device)
{
    CUmemoryPool handle = NULL;
    if (!pool->driver->cuDeviceGetDefaultMemPool)
        return NULL;
    struct relaxed_mode mode = mempool_call_begin(pool);
    CUresult result = pool->driver->cuDeviceGetDefaultMemPool(&handle, device->ordinal);
    mempool_call_end(pool, mode);
    return result == CUDA_SUCCESS ? handle : NULL;
}

CUmemoryPool mempool_default_of(struct pool *pool, struct device *device)
{
    /* Relaxed: the handle is only compared and passed on. */
    CUmemoryPool handle =
        atomic_load_explicit(&stream_device(device)->default_mempool, memory_order_relaxed);
    if (!handle) {
        handle = default_of(pool, device);
        atomic_store_explicit(&stream_device(device)->default_mempool, handle,
                              memory_order_relaxed);
    }
    return handle;
}

/* Makes a device's default pool known when its handle is first looked up. NULL: no device in use
 * has this default pool. */
static struct mempool *find_default(struct pool *pool, CUmemoryPool handle)
{
    for (struct device *d = registry_devices(&pool->registry); d; d = d->next)
        if (mempool_default_of(pool, d) == handle)
            return make_known(pool, handle, d, true);
    return NULL;
}

struct mempool *mempool_find(struct pool *pool, CUmemoryPool handle)
{
    struct mempool *found = handle ? mempool_find_known(pool, handle) : NULL;
    return found || !handle ? found : find_default(pool, handle);
}

struct mempool *mempool_take(struct pool *pool, const CUmemoryPool *named, struct device *device)
{
    struct mempool *found = named ? mempool_find(pool, *named) : mempool_current(pool, device);
    if (!found)
        return NULL;
    mempool_use(found);
    bool is = found->device == device && mempool_is_open(found) &&
              (named ? atomic_load(&found->handle) == *named
                     : atomic_load(&stream_device(device)->mempool) == found);
    if (!is)
        mempool_drop(found);
    return is ? found : NULL;
}

/* If another thread has set a current pool since the driver was asked, the answer is not stored. */
struct mempool *mempool_ask_for_current(struct pool *pool, struct device *device)
{
    struct streams *streams = streams_of(pool);
    CUmemoryPool handle = NULL;
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    uint64_t version = streams->mempool_version;
    lock_give(&streams->mempool_lock);
    if (!pool->driver->cuDeviceGetMemPool)
        return NULL;
    struct relaxed_mode mode = mempool_call_begin(pool);
    CUresult result = pool->driver->cuDeviceGetMemPool(&handle, device->ordinal);
    mempool_call_end(pool, mode);
    struct mempool *found = result == CUDA_SUCCESS ? mempool_find(pool, handle) : NULL;
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    if (version == streams->mempool_version)
        atomic_store_explicit(&stream_device(device)->mempool, found, memory_order_release);
    lock_give(&streams->mempool_lock);
    return found;
}

void mempool_chosen(struct pool *pool)
{
    struct streams *streams = streams_of(pool);
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    streams->mempool_version++;
    for (struct device *d = registry_devices(&pool->registry); d; d = d->next)
        atomic_store_explicit(&stream_device(d)->mempool, NULL, memory_order_release);
    lock_give(&streams->mempool_lock);
}

void mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice ordinal)
{
    struct device *device = context_device(pool, ordinal);
    if (device)
        make_known(pool, handle, device, false);
}

/* ---- ending ---- */

static struct mempool *find_closed(const struct streams *streams, CUmemoryPool handle)
{
    lock_must_be_held(&streams->mempool_lock);
    struct mempool *m = mempool_first(streams);
    while (m && (mempool_handle(m) != handle || mempool_is_open(m) || m->is_gone))
        m = m->next;
    return m;
}

void mempool_destroyed(struct pool *pool, CUmemoryPool handle, bool is_gone)
{
    struct streams *streams = streams_of(pool);
    /* Makes all devices forget their current pools, before the record may serve another pool. */
    mempool_chosen(pool);
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    struct mempool *m = find_closed(streams, handle);
    if (m && is_gone)
        m->is_gone = true;
    else if (m && !mempool_find_known(pool, handle))
        open_record(m, handle);
    lock_give(&streams->mempool_lock);
}

/* ---- how much of a memory pool is in use ---- */

struct mempool_sum mempool_sum(struct pool *pool, const struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    uint64_t used = 0, peak = 0, plainly_freed = 0;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        const struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
        for (; s; s = s->next) {
            if (s->mempool != mempool)
                continue;
            used += counter_get(&s->used_bytes);
            peak = larger_of(peak, counter_get(&s->peak_used_bytes));
            plainly_freed += counter_get(&s->plainly_freed);
        }
        lock_give(&stream->lock);
    }
    return (struct mempool_sum){used, used + plainly_freed, peak + plainly_freed};
}

/* ---- what is not ours ---- */

/* How often the driver is asked while blocks are being allocated and released. */
#define LOOKS_MAX 8u

struct look {
    uint64_t others;
    bool is_exact; /* nothing was allocated or released meanwhile */
};

/* Blocks are counted before the driver is asked for them, and counted out after the driver has them
 * back. So come read after the driver's answer, and gone read before it, include every block that
 * the driver counted in between. */
static struct look look_at_driver(struct pool *pool, const struct mempool *mempool,
                                  uint64_t counted)
{
    const struct streams *streams = streams_of(pool);
    bool still = atomic_load(&streams->moving) == 0;
    uint64_t gone = atomic_load(&mempool->gone), come = atomic_load(&mempool->come);
    cuuint64_t now = counted;
    mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now);
    uint64_t come_since = atomic_load(&mempool->come);
    still &= come_since == come && atomic_load(&mempool->gone) == gone &&
             atomic_load(&streams->moving) == 0;
    uint64_t ours = come_since - gone + atomic_load(&mempool->stays);
    return (struct look){rest_of(now, ours), still};
}

uint64_t mempool_others(struct pool *pool, const struct mempool *mempool, uint64_t counted)
{
    uint64_t most = 0;
    /* A pool that is not served has no blocks of ours. */
    if (atomic_load(&mempool->come) == 0)
        return counted;
    for (unsigned i = 0; i < LOOKS_MAX; i++) {
        struct look look = look_at_driver(pool, mempool, counted);
        most = larger_of(most, look.others);
        if (look.is_exact)
            return look.others;
    }
    return most;
}

/* ---- high-water marks ---- */

/* With many streams the sum is only made now and then, so a short peak may be missed. */
void mempool_note_use(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_are_paused(streams, &streams->uses, &started))
        return;
    mempool_raise(&mempool->used_high, mempool_sum(pool, mempool).told);
    streams_pause_after(streams, &streams->uses, started);
}

/* Calls visit with the stream's lock held. */
static void visit_shelves(struct pool *pool, const struct mempool *mempool,
                          void visit(struct shelf *shelf))
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
        for (; s; s = s->next)
            if (s->mempool == mempool)
                visit(s);
        lock_give(&stream->lock);
    }
}

static void start_peak_again(struct shelf *shelf)
{
    counter_set(&shelf->peak_used_bytes, counter_get(&shelf->used_bytes));
    shelf_note_used(shelf, NULL);
}

void mempool_start_shelves_again(struct pool *pool, const struct mempool *mempool)
{
    visit_shelves(pool, mempool, start_peak_again);
}

bool mempool_note_plain_free(struct pool *pool, struct mempool *mempool)
{
    uint64_t started;
    if (streams_are_paused(streams_of(pool), &streams_of(pool)->uses, &started))
        return false;
    struct mempool_sum sum = mempool_sum(pool, mempool);
    mempool_raise(&mempool->used_high, larger_of(sum.told, sum.peak));
    streams_pause_after(streams_of(pool), &streams_of(pool)->uses, started);
    return true;
}

static void forget_plainly_freed(struct shelf *shelf)
{
    counter_set(&shelf->plainly_freed, 0);
}

void mempool_begin(struct pool *pool, struct mempool *mempool)
{
    visit_shelves(pool, mempool, forget_plainly_freed);
    atomic_store(&mempool->come, 0);
    atomic_store(&mempool->gone, 0);
    atomic_store(&mempool->gone_before, 0);
    atomic_store(&mempool->stays, 0);
    mempool_start_high_again(pool, mempool);
}

/* At least what the driver has counted of our blocks at any moment since its high-water mark was
 * last reset. */
static uint64_t counted_since(const struct mempool *mempool)
{
    uint64_t gone = atomic_load(&mempool->gone_before);
    return atomic_load(&mempool->come) - gone + atomic_load(&mempool->stays);
}

void mempool_start_high_again(struct pool *pool, struct mempool *mempool)
{
    mempool_start_shelves_again(pool, mempool);
    /* Set to 0 and then raised, so that no thread that raises them meanwhile is overwritten. */
    atomic_store(&mempool->used_high, 0);
    mempool_raise(&mempool->used_high, mempool_sum(pool, mempool).told);
    atomic_store(&mempool->counted_high, 0);
    mempool_raise(&mempool->counted_high, counted_since(mempool));
}
