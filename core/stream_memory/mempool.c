#include "mempool.h"

#include <stdlib.h>

#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "stream_find.h"
#include "stream_release.h"
#include "stream_shelf.h"

/* The driver takes device memory in chunks of so many bytes, and keeps one while any of it is used.
 */
#define DRIVER_CHUNK (UINT64_C(32) << 20)

/* ---- the list ---- */

static struct mempool *first(const struct streams *streams)
{
    return atomic_load_explicit(&streams->mempools, memory_order_acquire);
}

static bool is_open(const struct mempool *mempool)
{
    return !atomic_load_explicit(&mempool->closed, memory_order_acquire);
}

static CUmemoryPool handle_of(const struct mempool *mempool)
{
    return atomic_load_explicit(&mempool->handle, memory_order_relaxed);
}

static struct mempool *find_open(const struct streams *streams, CUmemoryPool handle)
{
    struct mempool *m = first(streams);
    while (m && (handle_of(m) != handle || !is_open(m)))
        m = m->next;
    return m;
}

/* Lock held. A record that nobody uses any more and that nobody can find; NULL: none. */
static struct mempool *take_spare(struct streams *streams, const struct device *device)
{
    for (struct mempool *m = first(streams); m; m = m->next) {
        if (!m->is_gone || m->device != device)
            continue;
        atomic_store(&m->handle, NULL);
        if (atomic_load(&m->users) == 0 || MUTATED(pools_record_taken_in_use)) {
            m->is_gone = false;
            return m;
        }
    }
    return NULL;
}

/* Lock held. A new one, which is closed; NULL where there are too many. */
static struct mempool *add_record(struct streams *streams, struct device *device)
{
    struct mempool *added = NULL;
    if (streams->mempool_count < MEMPOOLS_MAX)
        added = calloc(1, sizeof *added);
    if (!added)
        return NULL;
    added->device = device;
    added->closed = true;
    added->next = first(streams);
    streams->mempool_count++;
    atomic_store_explicit(&streams->mempools, added, memory_order_release);
    return added;
}

/* Lock held. */
static void forget_threshold(struct mempool *mempool)
{
    mempool->threshold_is_ours = false;
    mempool->program_sets_threshold = false;
    mempool->program_was_overtaken = false;
    mempool->threshold_is_known = false;
}

/* Lock held. */
static void open_record(struct mempool *mempool, CUmemoryPool handle)
{
    atomic_store(&mempool->handle, handle);
    atomic_store_explicit(&mempool->closed, false, memory_order_release);
}

/* ---- becoming known ---- */

/* Around calls of our own, which the program may not have been free to make: a capture of the
 * thread's may forbid them. */
static struct relaxed_mode begin_call(const struct pool *pool)
{
    struct relaxed_mode none = {false, CU_STREAM_CAPTURE_MODE_RELAXED};
    enter_driver();
    return program_captures(&pool->captures) && !MUTATED(pools_asked_in_callers_mode)
               ? relaxed_mode_begin(pool->driver)
               : none;
}

static void end_call(const struct pool *pool, struct relaxed_mode mode)
{
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
}

static bool ask(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    const struct driver *driver = pool->driver;
    if (!driver->cuMemPoolGetAttribute)
        return false;
    struct relaxed_mode mode = begin_call(pool);
    CUresult result = driver->cuMemPoolGetAttribute(handle, attribute, value);
    end_call(pool, mode);
    return result == CUDA_SUCCESS;
}

static bool is_allowed(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute)
{
    int value = 1;
    return !ask(pool, handle, attribute, &value) || value;
}

static bool set_driver_threshold(struct pool *pool, struct mempool *mempool, uint64_t bytes)
{
    cuuint64_t value = bytes;
    struct relaxed_mode mode = begin_call(pool);
    CUresult result = pool->driver->cuMemPoolSetAttribute(
        handle_of(mempool), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    end_call(pool, mode);
    if (result == CUDA_SUCCESS)
        atomic_store_explicit(&mempool->kept, bytes, memory_order_relaxed);
    return result == CUDA_SUCCESS;
}

/* A program that is about to set it, or has, is left alone. */
static bool may_be_set(struct streams *streams, const struct mempool *mempool)
{
    pthread_mutex_lock(&streams->mempool_lock);
    bool may = !mempool->program_sets_threshold;
    pthread_mutex_unlock(&streams->mempool_lock);
    return may;
}

/* Whether the program has set its own meanwhile. */
static bool end_setting(struct streams *streams, struct mempool *mempool, bool set)
{
    pthread_mutex_lock(&streams->mempool_lock);
    bool overtaken = set && mempool->program_sets_threshold;
    mempool->threshold_is_ours = set && !overtaken;
    mempool->program_was_overtaken = overtaken;
    pthread_mutex_unlock(&streams->mempool_lock);
    return overtaken;
}

static void give_way(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    pthread_mutex_lock(&streams->mempool_lock);
    bool now = mempool->program_was_overtaken && mempool->threshold_is_known &&
               !MUTATED(program_overtaken);
    uint64_t value = mempool->threshold;
    if (now)
        mempool->program_was_overtaken = false;
    pthread_mutex_unlock(&streams->mempool_lock);
    if (now)
        set_driver_threshold(pool, mempool, value);
}

/* What the driver keeps over synchronisations is what the settings say, as long as the program has
 * said nothing. */
static void set_threshold(struct pool *pool, struct mempool *mempool)
{
    const struct byte_size *wanted = &pool->settings.stream_ordered.driver_release_threshold;
    cuuint64_t value = 0;
    if (wanted->unlimited || !pool->driver->cuMemPoolSetAttribute ||
        !may_be_set(streams_of(pool), mempool))
        return;
    bool set = ask(pool, handle_of(mempool), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value) &&
               value == 0 &&
               set_driver_threshold(pool, mempool,
                                    byte_size_resolve(wanted, mempool->device->total_bytes));
    if (end_setting(streams_of(pool), mempool, set))
        give_way(pool, mempool);
}

static uint64_t threshold_of(struct pool *pool, CUmemoryPool handle)
{
    cuuint64_t value = 0;
    return ask(pool, handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value) ? value : 0;
}

static void start_high_again(struct pool *pool, struct mempool *mempool);

/* The record is the calling thread's alone. */
static void describe(struct pool *pool, struct mempool *mempool, CUmemoryPool handle)
{
    mempool->kept = threshold_of(pool, handle);
    mempool->follow = is_allowed(pool, handle, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
    mempool->opportunistic = is_allowed(pool, handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
    mempool->internal = is_allowed(pool, handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
    start_high_again(pool, mempool);
}

/* Default pools, which several threads may come upon at once, have records of their own. */
static struct mempool *make_known(struct pool *pool, CUmemoryPool handle, struct device *device,
                                  bool is_default)
{
    struct streams *streams = streams_of(pool);
    pthread_mutex_lock(&streams->mempool_lock);
    struct mempool *made = is_default ? NULL : take_spare(streams, device);
    if (!made)
        made = add_record(streams, device);
    pthread_mutex_unlock(&streams->mempool_lock);
    if (!made)
        return find_open(streams, handle);
    describe(pool, made, handle);
    pthread_mutex_lock(&streams->mempool_lock);
    struct mempool *listed = find_open(streams, handle);
    if (listed) {
        /* By another thread, meanwhile. */
        made->is_gone = true;
    } else {
        made->is_default = is_default;
        forget_threshold(made);
        open_record(made, handle);
    }
    pthread_mutex_unlock(&streams->mempool_lock);
    if (!listed && is_default)
        set_threshold(pool, made);
    return listed ? listed : made;
}

static CUmemoryPool default_of(struct pool *pool, const struct device *device)
{
    CUmemoryPool handle = NULL;
    if (!pool->driver->cuDeviceGetDefaultMemPool)
        return NULL;
    struct relaxed_mode mode = begin_call(pool);
    CUresult result = pool->driver->cuDeviceGetDefaultMemPool(&handle, device->ordinal);
    end_call(pool, mode);
    return result == CUDA_SUCCESS ? handle : NULL;
}

/* A device's default pool is one and the same for good: the driver is asked once. */
static CUmemoryPool known_default_of(struct pool *pool, struct device *device)
{
    /* Relaxed: a handle is a number to us. */
    CUmemoryPool handle =
        atomic_load_explicit(&stream_device(device)->default_mempool, memory_order_relaxed);
    if (!handle) {
        handle = default_of(pool, device);
        atomic_store_explicit(&stream_device(device)->default_mempool, handle,
                              memory_order_relaxed);
    }
    return handle;
}

/* The default pools of the devices that are in use are made known when they are first named. */
static struct mempool *find_default(struct pool *pool, CUmemoryPool handle)
{
    for (struct device *d = registry_devices(&pool->registry); d; d = d->next)
        if (known_default_of(pool, d) == handle)
            return make_known(pool, handle, d, true);
    return NULL;
}

struct mempool *mempool_find(struct pool *pool, CUmemoryPool handle)
{
    struct mempool *found = handle ? find_open(streams_of(pool), handle) : NULL;
    return found || !handle ? found : find_default(pool, handle);
}

struct mempool *mempool_find_known(struct pool *pool, CUmemoryPool handle)
{
    return find_open(streams_of(pool), handle);
}

struct mempool *mempool_take(struct pool *pool, const CUmemoryPool *named, struct device *device)
{
    struct mempool *found = named ? mempool_find(pool, *named) : mempool_current(pool, device);
    if (!found)
        return NULL;
    mempool_use(found);
    bool is = found->device == device && is_open(found) &&
              (named ? atomic_load(&found->handle) == *named
                     : atomic_load(&stream_device(device)->mempool) == found);
    if (!is)
        mempool_drop(found);
    return is ? found : NULL;
}

/* What was asked before another thread chose a pool is not kept. */
struct mempool *mempool_ask_for_current(struct pool *pool, struct device *device)
{
    struct streams *streams = streams_of(pool);
    CUmemoryPool handle = NULL;
    pthread_mutex_lock(&streams->mempool_lock);
    uint64_t version = streams->mempool_version;
    pthread_mutex_unlock(&streams->mempool_lock);
    if (!pool->driver->cuDeviceGetMemPool)
        return NULL;
    struct relaxed_mode mode = begin_call(pool);
    CUresult result = pool->driver->cuDeviceGetMemPool(&handle, device->ordinal);
    end_call(pool, mode);
    struct mempool *found = result == CUDA_SUCCESS ? mempool_find(pool, handle) : NULL;
    pthread_mutex_lock(&streams->mempool_lock);
    if (version == streams->mempool_version)
        atomic_store_explicit(&stream_device(device)->mempool, found, memory_order_release);
    pthread_mutex_unlock(&streams->mempool_lock);
    return found;
}

void mempool_chosen(struct pool *pool)
{
    struct streams *streams = streams_of(pool);
    pthread_mutex_lock(&streams->mempool_lock);
    streams->mempool_version++;
    for (struct device *d = registry_devices(&pool->registry); d; d = d->next)
        atomic_store_explicit(&stream_device(d)->mempool, NULL, memory_order_release);
    pthread_mutex_unlock(&streams->mempool_lock);
}

void mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice ordinal)
{
    struct device *device = context_device(pool, ordinal);
    if (device)
        make_known(pool, handle, device, false);
}

/* ---- ending ---- */

void mempool_destroying(struct pool *pool, CUmemoryPool handle)
{
    struct mempool *mempool = find_open(streams_of(pool), handle);
    if (!mempool || mempool->is_default)
        return;
    /* From here on what is freed goes to the driver. */
    atomic_store_explicit(&mempool->closed, true, memory_order_relaxed);
    /* Called back out of a call of ours, the thread may hold what giving back takes: the blocks go
     * back with those that nobody uses. */
    if (driver_calls.depth)
        return;
    stream_release_mempool(pool, mempool, UINT64_MAX, true);
}

/* Lock held. */
static struct mempool *find_closed(const struct streams *streams, CUmemoryPool handle)
{
    struct mempool *m = first(streams);
    while (m && (handle_of(m) != handle || is_open(m) || m->is_gone))
        m = m->next;
    return m;
}

void mempool_destroyed(struct pool *pool, CUmemoryPool handle, bool is_gone)
{
    struct streams *streams = streams_of(pool);
    /* Before the record may be another pool's. */
    mempool_chosen(pool);
    pthread_mutex_lock(&streams->mempool_lock);
    struct mempool *m = find_closed(streams, handle);
    if (m && is_gone)
        m->is_gone = true;
    else if (m && !find_open(streams, handle))
        open_record(m, handle);
    pthread_mutex_unlock(&streams->mempool_lock);
}

void mempool_trimming(struct pool *pool, CUmemoryPool handle, uint64_t keep)
{
    struct mempool *mempool = find_open(streams_of(pool), handle);
    cuuint64_t reserved = 0;
    if (!mempool || !ask(pool, handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        reserved <= keep)
        return;
    stream_release_mempool(pool, mempool, UINT64_MAX, false);
}

/* The default pool of the device (NULL: the next one of any) whose threshold we have set. */
static struct mempool *find_ours(struct pool *pool, struct mempool *from,
                                 const struct device *device)
{
    struct streams *streams = streams_of(pool);
    pthread_mutex_lock(&streams->mempool_lock);
    struct mempool *m = from ? from->next : first(streams);
    while (m && (!m->threshold_is_ours || (device && m->device != device)))
        m = m->next;
    pthread_mutex_unlock(&streams->mempool_lock);
    return m;
}

void mempool_trim_ours(struct pool *pool)
{
    struct mempool *m = find_ours(pool, NULL, NULL);
    if (!pool->driver->cuMemPoolTrimTo)
        return;
    struct relaxed_mode mode = begin_call(pool);
    for (; m; m = find_ours(pool, m, NULL))
        pool->driver->cuMemPoolTrimTo(handle_of(m), 0);
    end_call(pool, mode);
}

/* ---- attributes ---- */

struct use_of_pool {
    uint64_t kept, used, peak; /* bytes: all blocks; those that the program holds; the most that it
                                  held on one stream */
};

static struct use_of_pool sum_up(struct pool *pool, const struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    struct use_of_pool sum = {0, 0, 0};
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_acquire);
        for (; s; s = s->next) {
            if (s->mempool != mempool)
                continue;
            sum.kept += counter_get(&s->kept_bytes);
            sum.used += counter_get(&s->used_bytes);
            if (counter_get(&s->peak_used_bytes) > sum.peak)
                sum.peak = counter_get(&s->peak_used_bytes);
        }
    }
    return sum;
}

/* Of one pool: what the driver would give back, or has free, without what is kept free. */
static uint64_t unused_in(struct pool *pool, const struct mempool *mempool, bool ours)
{
    struct use_of_pool sum = sum_up(pool, mempool);
    uint64_t kept = sum.kept > sum.used ? sum.kept - sum.used : 0;
    cuuint64_t reserved = 0, used = 0;
    if ((!ours && kept == 0) ||
        !ask(pool, handle_of(mempool), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        !ask(pool, handle_of(mempool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used))
        return 0;
    /* Without us the driver would keep what is left of the chunks that are used, and what the
     * program has told it to hold on to. */
    uint64_t held = size_class_up(used > kept ? used - kept : 0, DRIVER_CHUNK);
    uint64_t threshold = ours ? 0 : atomic_load_explicit(&mempool->kept, memory_order_relaxed);
    held = kept + (held > threshold ? held : threshold);
    return reserved > held ? reserved - held : 0;
}

uint64_t mempool_unused(struct pool *pool, const struct device *device)
{
    uint64_t unused = 0;
    for (struct mempool *m = first(streams_of(pool)); m; m = m->next) {
        pthread_mutex_lock(&streams_of(pool)->mempool_lock);
        bool is = m->device == device && is_open(m);
        bool ours = m->threshold_is_ours;
        pthread_mutex_unlock(&streams_of(pool)->mempool_lock);
        if (is)
            unused += unused_in(pool, m, ours);
    }
    return unused;
}

static void raise_to(_Atomic uint64_t *high, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(high, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               high, &seen, value, memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* What is kept only ever grows by a miss. Of many streams the sum is only made now and then: a peak
 * between may not be seen. */
void mempool_note_use(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_pause(streams, &streams->uses, &started))
        return;
    struct use_of_pool sum = sum_up(pool, mempool);
    raise_to(&mempool->used_high, sum.used);
    raise_to(&mempool->kept_high, sum.kept);
    streams_rest(streams, &streams->uses, started);
}

/* What the driver counts, less what is kept free and what blocks are larger than asked for. */
static uint64_t without_ours(const struct use_of_pool *sum, uint64_t used)
{
    uint64_t extra = sum->kept > sum->used ? sum->kept - sum->used : 0;
    return used > extra ? used - extra : 0;
}

static uint64_t correct_high(struct pool *pool, struct mempool *mempool,
                             const struct use_of_pool *sum, uint64_t driver_high)
{
    cuuint64_t now = 0;
    if (!ask(pool, handle_of(mempool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now))
        return driver_high;
    uint64_t others = now > sum->kept ? now - sum->kept : 0;
    raise_to(&mempool->used_high, sum->used);
    raise_to(&mempool->used_high, sum->peak);
    uint64_t high = atomic_load_explicit(&mempool->used_high, memory_order_relaxed) + others;
    /* No less than what cannot have been our blocks. */
    uint64_t ours = atomic_load_explicit(&mempool->kept_high, memory_order_relaxed);
    uint64_t least = driver_high > ours ? driver_high - ours : 0;
    high = high > least ? high : least;
    return high < driver_high ? high : driver_high;
}

void mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct mempool *mempool = mempool_find(pool, handle);
    if (!mempool)
        return;
    struct use_of_pool sum = sum_up(pool, mempool);
    cuuint64_t *bytes = value;
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        *bytes = without_ours(&sum, *bytes);
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *bytes = correct_high(pool, mempool, &sum, *bytes);
    pthread_mutex_lock(&streams_of(pool)->mempool_lock);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && mempool->threshold_is_ours)
        *bytes = 0; /* as the driver has it unless somebody sets it */
    pthread_mutex_unlock(&streams_of(pool)->mempool_lock);
}

static void start_high_again(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        short_lock_take(&stream->lock);
        struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
        for (; s; s = s->next)
            if (s->mempool == mempool)
                counter_set(&s->peak_used_bytes, counter_get(&s->used_bytes));
        short_lock_give(&stream->lock);
    }
    struct use_of_pool sum = sum_up(pool, mempool);
    atomic_store_explicit(&mempool->used_high, sum.used, memory_order_relaxed);
    atomic_store_explicit(&mempool->kept_high, sum.kept, memory_order_relaxed);
}

/* The driver has carried out the program's call, before or after one of ours. */
static void threshold_was_set(struct pool *pool, struct mempool *mempool, uint64_t value)
{
    atomic_store_explicit(&mempool->kept, value, memory_order_relaxed);
    pthread_mutex_lock(&streams_of(pool)->mempool_lock);
    mempool->threshold_is_ours = false;
    mempool->threshold = value;
    mempool->threshold_is_known = true;
    pthread_mutex_unlock(&streams_of(pool)->mempool_lock);
    give_way(pool, mempool);
}

void mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute)
{
    struct mempool *mempool = mempool_find(pool, handle);
    if (!mempool || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        return;
    pthread_mutex_lock(&streams_of(pool)->mempool_lock);
    mempool->program_sets_threshold = true;
    pthread_mutex_unlock(&streams_of(pool)->mempool_lock);
}

void mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 const void *value)
{
    struct mempool *mempool = mempool_find(pool, handle);
    if (!mempool)
        return;
    _Atomic bool *flags[] = {
        [CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = &mempool->follow,
        [CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = &mempool->opportunistic,
        [CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = &mempool->internal,
    };
    if (attribute < sizeof flags / sizeof flags[0] && flags[attribute])
        atomic_store_explicit(flags[attribute], *(const int *)value != 0, memory_order_relaxed);
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        start_high_again(pool, mempool);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        threshold_was_set(pool, mempool, *(const cuuint64_t *)value);
}
