#include "stream.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "stream_find.h"
#include "stream_order.h"
#include "stream_shelf.h"

/* A stream that was not used for so long makes way for another one; and where none can, so long
 * none is looked for. */
#define DISUSED_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)
#define FULL_NANOSECONDS    (UINT64_C(10) * 1000 * 1000)

_Thread_local struct recent_streams recent_streams;

bool streams_init(struct pool *pool)
{
    struct streams *streams = calloc(1, sizeof *streams);
    if (!streams || !block_table_init(&streams->blocks) || !order_init(streams)) {
        free(streams);
        return false;
    }
    pthread_mutex_init(&streams->lock, NULL);
    pthread_mutex_init(&streams->records.lock, NULL);
    pthread_mutex_init(&streams->use_lock, NULL);
    pthread_mutex_init(&streams->mempool_lock, NULL);
    pool->of_kind[KIND_STREAM_ORDERED] = streams;
    return true;
}

/* ---- looks at all of them ---- */

/* For how many times as long as it took a look is not repeated. */
#define REST_FACTOR 16u

/* Whether it is too early for such a look; else when it has begun, or 0 where it need not be known.
 */
bool streams_pause(const struct streams *streams, const struct pause *pause, uint64_t *started)
{
    *started = 0;
    if (!streams_are_many(streams))
        return false;
    *started = monotonic_now();
    return *started < atomic_load_explicit(&pause->until, memory_order_relaxed) &&
           !MUTATED(vain_looks_repeated);
}

/* The look that began then was in vain, or need not be repeated soon. */
void streams_rest(const struct streams *streams, struct pause *pause, uint64_t started)
{
    if (!streams_are_many(streams) || !started)
        return;
    uint64_t now = monotonic_now();
    atomic_store_explicit(&pause->until, now + REST_FACTOR * (now - started), memory_order_relaxed);
}

/* ---- early launches ---- */

void streams_note_early_launch(struct streams *streams, CUstream handle)
{
    for (unsigned i = 0; i < STREAMS_EARLY; i++) {
        CUstream found = atomic_load_explicit(&streams->launched_early[i], memory_order_relaxed);
        if (!found)
            atomic_compare_exchange_strong_explicit(&streams->launched_early[i], &found, handle,
                                                    memory_order_relaxed, memory_order_relaxed);
        if (!found || found == handle)
            return;
    }
}

/* Or may have: the list is full, or the handle was another stream's. */
static bool has_launched_early(const struct streams *streams, CUstream handle)
{
    for (unsigned i = 0; i < STREAMS_EARLY; i++) {
        CUstream found = atomic_load_explicit(&streams->launched_early[i], memory_order_relaxed);
        if (!found || found == handle)
            return found != NULL;
    }
    return true;
}

/* ---- short-lived ones ---- */

/* So many streams that end with something pending, and from which nothing was had, are the rule;
 * one that something was had from makes up for one. */
#define SHORT_LIVED_RULE    64u
#define SHORT_LIVED_AT_MOST 128u
#define STREAMS_PER_TRIAL   64u

/* Threads may lose each other's steps. */
static void count_short_lived(struct streams *streams, bool more)
{
    unsigned count = atomic_load_explicit(&streams->short_lived, memory_order_relaxed);
    if (more)
        count += count < SHORT_LIVED_AT_MOST;
    else
        count -= count != 0;
    atomic_store_explicit(&streams->short_lived, count, memory_order_relaxed);
}

void streams_served_another(struct streams *streams)
{
    if (atomic_load_explicit(&streams->short_lived, memory_order_relaxed))
        count_short_lived(streams, false);
}

/* Lock held; the stream ends. */
static void count_its_use(struct streams *streams, const struct stream *stream)
{
    uint64_t blocks = stream->handed_out - stream->handed_before;
    if (blocks > stream->missed + stream->adopted - stream->given_before)
        streams_served_another(streams);
    else if (stream->pending.first)
        count_short_lived(streams, true);
}

static bool streams_turn_away(struct streams *streams)
{
    return atomic_load_explicit(&streams->short_lived, memory_order_relaxed) >= SHORT_LIVED_RULE &&
           atomic_fetch_add_explicit(&streams->turned_away, 1, memory_order_relaxed) %
                   STREAMS_PER_TRIAL !=
               0;
}

/* ---- names ---- */

/* What identifies a stream where the driver does not. */
struct name {
    CUstream handle;
    struct context *context;
    uint64_t thread;
    bool ordered_by_others; /* told of, but no part of the name */
};

static bool has_name(const struct stream *stream, const struct name *name)
{
    return stream->handle == name->handle && stream->context == name->context &&
           stream->generation == context_generation(name->context) &&
           stream->thread == name->thread;
}

/* Only of a created stream can it be told that the legacy stream and it do not order each other. */
static bool is_ordered_by_others(struct pool *pool, CUstream handle)
{
    unsigned int flags = 0;
    if (!stream_is_created(handle) || !pool->driver->cuStreamGetFlags)
        return true;
    enter_driver();
    CUresult result = pool->driver->cuStreamGetFlags(handle, &flags);
    leave_driver();
    return result != CUDA_SUCCESS || !(flags & CU_STREAM_NON_BLOCKING);
}

/* The context that a stream's work is in; NULL where the pool does not know it. */
static struct context *context_of_handle(struct pool *pool, CUstream handle,
                                         struct context *current)
{
    CUcontext own = NULL;
    if (!stream_is_created(handle) || !pool->driver->cuStreamGetCtx)
        return current;
    enter_driver();
    CUresult result = pool->driver->cuStreamGetCtx(handle, &own);
    leave_driver();
    if (result != CUDA_SUCCESS || !own)
        return NULL;
    return own == current->handle ? current : context_find(pool, own);
}

bool stream_may_be_captured(const struct pool *pool, CUstream handle)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return program_captures(&pool->captures) &&
           (!pool->driver->cuStreamIsCapturing ||
            pool->driver->cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* ---- the list; its lock is held ---- */

/* Numbers are given one after the other, and handles are addresses. */
static unsigned hash_of(uint64_t id)
{
    return (unsigned)(id * UINT64_C(0x9E3779B97F4A7C15) >> 53);
}
_Static_assert(STREAMS_HASHES == 1u << (64 - 53), "hash_of gives as many");

static uint32_t read_link(const _Atomic uint32_t *link)
{
    return atomic_load_explicit(link, memory_order_acquire);
}

/* No lock needed; with the list's lock held the answer is final. */
static struct stream_ref walk_chain(const struct streams *streams, uint64_t id)
{
    /* However the chains change meanwhile, it comes to an end. */
    uint32_t link = read_link(&streams->by_id[hash_of(id)]);
    for (unsigned steps = 0; link && steps < STREAMS_MAX; steps++) {
        unsigned index = link - 1;
        if (atomic_load_explicit(&streams->ids[index], memory_order_acquire) == id)
            return (struct stream_ref){stream_at(streams, index), id};
        link = read_link(&streams->with_same_hash[index]);
    }
    return (struct stream_ref){NULL, 0};
}

static void take_out_of_chain(struct streams *streams, unsigned index)
{
    uint64_t id = atomic_load_explicit(&streams->ids[index], memory_order_relaxed);
    if (!id)
        return;
    _Atomic uint32_t *link = &streams->by_id[hash_of(id)];
    while (read_link(link) != index + 1)
        link = &streams->with_same_hash[read_link(link) - 1];
    /* Sequentially consistent, like the reader's two looks at it. */
    atomic_fetch_add(&streams->hash_version, 1);
    atomic_store_explicit(link, read_link(&streams->with_same_hash[index]), memory_order_release);
    atomic_fetch_add(&streams->hash_version, 1);
}

static void put_into_chain(struct streams *streams, unsigned index, uint64_t id)
{
    _Atomic uint32_t *first = &streams->by_id[hash_of(id)];
    atomic_store_explicit(&streams->with_same_hash[index], read_link(first), memory_order_release);
    atomic_store_explicit(first, index + 1, memory_order_release);
}

/* The stream's lock is held, too. */
static void set_id(struct streams *streams, struct stream *stream, uint64_t id)
{
    take_out_of_chain(streams, stream->index);
    stream->id = id || !MUTATED(stream_recalled_past_its_end) ? id : stream->id;
    atomic_store_explicit(&streams->ids[stream->index], id, memory_order_release);
    if (id)
        put_into_chain(streams, stream->index, id);
    else
        atomic_store_explicit(&streams->full_until, 0, memory_order_relaxed);
}

static bool is_nobodys(const struct streams *streams, unsigned index)
{
    return atomic_load_explicit(&streams->ids[index], memory_order_relaxed) == 0;
}

/* A stream's memory may only ever be counted for one device, and reused in one context; and what is
 * pending, or may be so again, waits for work of the owner that it has. True: its lock is held. */
static bool lock_to_become(struct stream *stream, const struct context *context)
{
    short_lock_take(&stream->lock);
    bool same = stream->context == context && stream->generation == context_generation(context);
    order_settle(stream);
    bool idle = !stream->pending.first || MUTATED(pending_passed_on_as_own);
    bool may = stream->device == context->device && idle &&
               atomic_load_explicit(&stream->away, memory_order_acquire) == 0 &&
               atomic_load_explicit(&stream->names, memory_order_acquire) == 0 &&
               (same || counter_get(&stream->free_bytes) == 0);
    if (!may)
        short_lock_give(&stream->lock);
    return may;
}

/* Nothing was done on it since the last look but one, and that is some time ago. */
static bool is_disused(struct stream *stream, uint64_t now)
{
    short_lock_take(&stream->lock);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    if (stream->seen_stamp != stamp || stream->seen_handed_out != stream->handed_out) {
        stream->seen_stamp = stamp;
        stream->seen_handed_out = stream->handed_out;
        stream->seen_at = now;
    }
    bool disused = now - stream->seen_at >= DISUSED_NANOSECONDS || MUTATED(streams_in_use_taken);
    short_lock_give(&stream->lock);
    return disused;
}

/* Locked: one that was ended; or, where the list is full, one that is not used. */
static struct stream *find_spare(struct streams *streams, const struct context *context)
{
    unsigned count = stream_count(streams);
    uint64_t now = count == STREAMS_MAX ? monotonic_now() : 0;
    for (unsigned i = 0; i < count; i++)
        if (is_nobodys(streams, i) && lock_to_become(stream_at(streams, i), context))
            return stream_at(streams, i);
    for (unsigned i = 0; i < count && count == STREAMS_MAX; i++)
        if (is_disused(stream_at(streams, i), now) &&
            lock_to_become(stream_at(streams, i), context))
            return stream_at(streams, i);
    return NULL;
}

/* Lock not needed. Whether it is known that no stream can be made known now. */
static bool is_full(const struct streams *streams)
{
    uint64_t until = atomic_load_explicit(&streams->full_until, memory_order_relaxed);
    return until && stream_count(streams) == STREAMS_MAX && monotonic_now() < until;
}

/* Locked. */
static struct stream *add_stream(struct streams *streams, struct device *device)
{
    unsigned index = stream_count(streams);
    if (index == STREAMS_MAX)
        return NULL;
    struct stream *stream = aligned_alloc(STREAM_APART, sizeof *stream);
    if (!stream)
        return NULL;
    memset(stream, 0, sizeof *stream);
    stream->index = index;
    stream->handed_out = (uint64_t)(index + 1) << 48;
    stream->device = device;
    stream->on_device = stream_device(device);
    short_lock_take(&stream->lock);
    atomic_store_explicit(&streams->list[index], stream, memory_order_release);
    atomic_store_explicit(&streams->count, index + 1, memory_order_release);
    return stream;
}

static struct stream *begin_stream(struct streams *streams, uint64_t id, const struct name *name,
                                   struct own_event **discarded)
{
    struct stream *stream = find_spare(streams, name->context);
    if (!stream)
        stream = add_stream(streams, name->context->device);
    if (!stream) {
        atomic_store_explicit(&streams->full_until, monotonic_now() + FULL_NANOSECONDS,
                              memory_order_relaxed);
        return NULL;
    }
    if (stream->context != name->context || stream->generation != context_generation(name->context))
        order_drop_events(stream);
    order_take_discarded(stream, discarded);
    stream->handle = name->handle;
    stream->thread = name->thread;
    stream->ordered_by_others = name->ordered_by_others ||
                                atomic_load_explicit(&name->context->barred, memory_order_relaxed);
    stream->joined = 0;
    stream->context = name->context;
    stream->generation = context_generation(name->context);
    stream->early_launches = has_launched_early(streams, name->handle);
    stream->own_order = !stream->ordered_by_others && !stream->early_launches;
    stream->now = monotonic_now();
    stream->handed_before = stream->handed_out;
    stream->given_before = stream->missed + stream->adopted;
    stream->misses_at_bound = stream->for_driver = 0;
    if (!MUTATED(former_streams_order_kept))
        memset(&stream->known, 0, sizeof stream->known);
    shelf_forgive(stream);
    set_id(streams, stream, id);
    streams_note_busy(streams, stream);
    short_lock_give(&stream->lock);
    return stream;
}

/* ---- finding ---- */

static struct stream_ref look_up(struct streams *streams, uint64_t id)
{
    uint64_t version = atomic_load(&streams->hash_version);
    struct stream_ref ref = walk_chain(streams, id);
    if (ref.stream || (version % 2 == 0 && atomic_load(&streams->hash_version) == version))
        return ref;
    pthread_mutex_lock(&streams->lock);
    ref = walk_chain(streams, id);
    pthread_mutex_unlock(&streams->lock);
    return ref;
}

static void remember(const struct pool *pool, CUstream handle, struct stream_ref ref)
{
    uint64_t key = stream_key(handle, ref.id);
    if (recent_streams.pool != pool)
        memset(&recent_streams, 0, sizeof recent_streams);
    recent_streams.pool = pool;
    recent_streams.streams[stream_recent_place(key)] = (struct recent_stream){key, ref};
}

struct stream_ref stream_look_up(struct pool *pool, CUstream handle, uint64_t id)
{
    struct stream_ref ref = {NULL, 0};
    if (id)
        ref = look_up(streams_of(pool), id);
    if (ref.stream)
        remember(pool, handle, ref);
    return ref;
}

/* The list's lock is held. */
static struct stream_ref look_up_name(const struct streams *streams, const struct name *name)
{
    unsigned count = stream_count(streams);
    for (unsigned i = 0; i < count; i++) {
        uint64_t id = atomic_load_explicit(&streams->ids[i], memory_order_relaxed);
        if (id != 0 && has_name(stream_at(streams, i), name))
            return (struct stream_ref){stream_at(streams, i), id};
    }
    return (struct stream_ref){NULL, 0};
}

static struct stream_ref make_known(struct pool *pool, uint64_t id, CUstream handle,
                                    struct context *current)
{
    struct streams *streams = streams_of(pool);
    struct stream_ref ref = {NULL, 0};
    struct own_event *discarded = NULL;
    struct name name = {handle, context_of_handle(pool, handle, current), 0, true};
    if (!name.context)
        return ref;
    if (handle == CU_STREAM_PER_THREAD)
        name.thread = thread_id(pool);
    name.ordered_by_others = is_ordered_by_others(pool, handle);
    pthread_mutex_lock(&streams->lock);
    ref = walk_chain(streams, id);
    if (!ref.stream)
        ref = (struct stream_ref){begin_stream(streams, id, &name, &discarded), id};
    pthread_mutex_unlock(&streams->lock);
    order_destroy_events(pool, discarded);
    return ref;
}

/* On a driver that has no numbers. */
static struct stream_ref find_by_name(struct pool *pool, CUstream handle, struct context *current,
                                      bool make)
{
    struct streams *streams = streams_of(pool);
    struct own_event *discarded = NULL;
    struct name name = {handle, context_of_handle(pool, handle, current), 0, true};
    if (!name.context)
        return (struct stream_ref){NULL, 0};
    if (handle == CU_STREAM_PER_THREAD)
        name.thread = thread_id(pool);
    pthread_mutex_lock(&streams->lock);
    struct stream_ref ref = look_up_name(streams, &name);
    pthread_mutex_unlock(&streams->lock);
    if (ref.stream || !make || is_full(streams) || streams_turn_away(streams))
        return ref;
    name.ordered_by_others = is_ordered_by_others(pool, handle);
    pthread_mutex_lock(&streams->lock);
    ref = look_up_name(streams, &name);
    if (!ref.stream) {
        uint64_t id = ++streams->next_number;
        ref = (struct stream_ref){begin_stream(streams, id, &name, &discarded), id};
    }
    pthread_mutex_unlock(&streams->lock);
    order_destroy_events(pool, discarded);
    return ref;
}

/* Neither is any thread's, nor any driver's number. */
#define PLAIN_FREES_THREAD UINT64_MAX
#define PLAIN_FREES_NUMBER (UINT64_C(1) << 62)

struct stream_ref streams_of_plain_frees(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    struct own_event *discarded = NULL;
    struct name name = {NULL, context, PLAIN_FREES_THREAD, true};
    pthread_mutex_lock(&streams->lock);
    struct stream_ref ref = look_up_name(streams, &name);
    if (!ref.stream) {
        uint64_t id = PLAIN_FREES_NUMBER | ++streams->next_number;
        ref = (struct stream_ref){begin_stream(streams, id, &name, &discarded), id};
    }
    pthread_mutex_unlock(&streams->lock);
    order_destroy_events(pool, discarded);
    return ref;
}

static struct stream_ref find_by_number(struct pool *pool, uint64_t id, CUstream handle,
                                        struct context *current, bool make)
{
    struct stream_ref ref = stream_look_up(pool, handle, id);
    if (ref.stream || !make || is_full(streams_of(pool)) || streams_turn_away(streams_of(pool)))
        return ref;
    ref = make_known(pool, id, handle, current);
    if (ref.stream)
        remember(pool, handle, ref);
    return ref;
}

struct stream_ref stream_find_slowly(struct pool *pool, CUstream handle, bool make)
{
    static const struct stream_ref none = {NULL, 0};
    bool green;
    struct context *current = context_current(pool, &green);
    unsigned long long id = 0;
    if (!current)
        return none;
    handle = stream_spelled_out(handle);
    if (!pool->driver->cuStreamGetId)
        return find_by_name(pool, handle, current, make);
    if (pool->driver->cuStreamGetId(handle, &id) != CUDA_SUCCESS || id == 0)
        return none;
    return find_by_number(pool, id, handle, current, make);
}

struct stream_ref stream_find_beside_captures(struct pool *pool, CUstream handle, bool make)
{
    if (!program_captures(&pool->captures) || MUTATED(number_asked_in_capture))
        return stream_find(pool, handle, make);
    if (stream_may_be_captured(pool, handle))
        return (struct stream_ref){NULL, 0};
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    struct stream_ref ref = stream_find(pool, handle, make);
    relaxed_mode_end(pool->driver, mode);
    return ref;
}

/* ---- barriers ---- */

/* Under the list's lock: a stream that begins meanwhile does so before or sees it. */
void streams_are_barred(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    if (atomic_load_explicit(&context->barred, memory_order_acquire))
        return;
    pthread_mutex_lock(&streams->lock);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        short_lock_take(&stream->lock);
        if (stream->context == context) {
            stream->ordered_by_others = true;
            stream->own_order = false;
        }
        short_lock_give(&stream->lock);
    }
    /* Pairs with the load above: who does not look has been told of all. */
    atomic_store_explicit(&context->barred, true, memory_order_release);
    pthread_mutex_unlock(&streams->lock);
}

/* ---- ending ---- */

/* No lock held. Nobody begins to name it any more. */
static void wait_for_names(const struct stream *stream)
{
    while (atomic_load_explicit(&stream->names, memory_order_acquire) != 0)
        sched_yield();
}

void streams_end_handle(struct pool *pool, CUstream handle)
{
    struct streams *streams = streams_of(pool);
    struct stream *ended = NULL;
    pthread_mutex_lock(&streams->lock);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if (is_nobodys(streams, i))
            continue;
        short_lock_take(&stream->lock);
        if (stream->handle == handle) {
            count_its_use(streams, stream);
            set_id(streams, stream, 0);
            ended = stream;
        }
        short_lock_give(&stream->lock);
    }
    pthread_mutex_unlock(&streams->lock);
    /* Unless the thread itself names it, called back out of the driver. */
    if (ended && !driver_calls.depth)
        wait_for_names(ended);
}

void stream_end(struct pool *pool, struct stream_ref ref)
{
    struct streams *streams = streams_of(pool);
    pthread_mutex_lock(&streams->lock);
    short_lock_take(&ref.stream->lock);
    if (stream_is(ref)) {
        count_its_use(streams, ref.stream);
        set_id(streams, ref.stream, 0);
    }
    short_lock_give(&ref.stream->lock);
    pthread_mutex_unlock(&streams->lock);
    wait_for_names(ref.stream);
}

/* The context's events died with it. */
static void end_with_context(struct streams *streams, struct stream *stream,
                             struct own_event **discarded)
{
    short_lock_take(&stream->lock);
    set_id(streams, stream, 0);
    order_complete(stream, atomic_load_explicit(&stream->stamp, memory_order_relaxed));
    order_settle(stream);
    order_drop_events(stream);
    order_take_discarded(stream, discarded);
    short_lock_give(&stream->lock);
}

void streams_context_died(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    struct own_event *discarded = NULL;
    pthread_mutex_lock(&streams->lock);
    for (unsigned i = 0; i < stream_count(streams); i++)
        if (stream_at(streams, i)->context == context)
            end_with_context(streams, stream_at(streams, i), &discarded);
    pthread_mutex_unlock(&streams->lock);
    order_context_died(pool, context);
    order_destroy_events(pool, discarded);
}
