#include "stream_table.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/lines.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "stream_bypass.h"
#include "stream_events.h"
#include "stream_shelf.h"

/* A stream that was not used for DISUSED_NANOSECONDS may be replaced by another one. If no stream
 * can be, none is looked for again for FULL_NANOSECONDS. */
#define DISUSED_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)
#define FULL_NANOSECONDS    (UINT64_C(10) * 1000 * 1000)

/* What a new record is for. */
struct stream_name {
    CUstream handle;
    struct context *context;
    uint64_t thread;
    bool ordered_by_others;
};

/* ---- numbers ---- */

/* Fibonacci hashing: the driver's numbers follow each other, and handles are addresses. */
static unsigned hash_of(uint64_t id)
{
    return (unsigned)(id * UINT64_C(0x9E3779B97F4A7C15) >> 53);
}
_Static_assert(STREAMS_HASHES == 1u << (64 - 53), "hash_of gives as many");

static uint32_t read_link(const _Atomic uint32_t *link)
{
    return atomic_load_explicit(link, memory_order_acquire);
}

/* Returns the stream with this number, or none. No lock needed. The answer none is final only if
 * the list's lock is held. */
static struct stream_ref walk(const struct streams *streams, uint64_t id)
{
    /* The number of steps is limited, since the chains may change during the walk. */
    uint32_t link = read_link(&streams->by_id[hash_of(id)]);
    for (unsigned steps = 0; link && steps < STREAMS_MAX; steps++) {
        unsigned index = link - 1;
        if (atomic_load_explicit(&streams->ids[index], memory_order_acquire) == id)
            return (struct stream_ref){stream_at(streams, index), id};
        link = read_link(&streams->with_same_hash[index]);
    }
    return (struct stream_ref){NULL, 0};
}

/* Returns the stream with this number, or none. The answer none is final. No lock held. */
static struct stream_ref look_up(struct streams *streams, uint64_t id)
{
    uint64_t version = atomic_load(&streams->hash_version);
    struct stream_ref ref = walk(streams, id);
    if (ref.stream || (version % 2 == 0 && atomic_load(&streams->hash_version) == version))
        return ref;
    lock_take(&streams->lock, LOCK_STREAMS);
    ref = walk(streams, id);
    lock_give(&streams->lock);
    return ref;
}

static void take_out_of_chain(struct streams *streams, unsigned index)
{
    lock_must_be_held(&streams->lock);
    uint64_t id = atomic_load_explicit(&streams->ids[index], memory_order_relaxed);
    if (!id)
        return;
    _Atomic uint32_t *link = &streams->by_id[hash_of(id)];
    while (read_link(link) != index + 1)
        link = &streams->with_same_hash[read_link(link) - 1];
    /* Sequentially consistent, like the two loads of hash_version in look_up. */
    atomic_fetch_add(&streams->hash_version, 1);
    atomic_store_explicit(link, read_link(&streams->with_same_hash[index]), memory_order_release);
    atomic_fetch_add(&streams->hash_version, 1);
}

static void put_into_chain(struct streams *streams, unsigned index, uint64_t id)
{
    lock_must_be_held(&streams->lock);
    _Atomic uint32_t *first = &streams->by_id[hash_of(id)];
    atomic_store_explicit(&streams->with_same_hash[index], read_link(first), memory_order_release);
    atomic_store_explicit(first, index + 1, memory_order_release);
}

static void set_id(struct streams *streams, struct stream *stream, uint64_t id)
{
    lock_must_be_held(&streams->lock);
    lock_must_be_held(&stream->lock);
    take_out_of_chain(streams, stream->index);
    stream->id = id;
    atomic_store_explicit(&streams->ids[stream->index], id, memory_order_release);
    if (id)
        put_into_chain(streams, stream->index, id);
    else
        atomic_store_explicit(&streams->full_until, 0, memory_order_relaxed);
}

static bool is_nobodys(const struct streams *streams, unsigned index)
{
    lock_must_be_held(&streams->lock);
    return atomic_load_explicit(&streams->ids[index], memory_order_relaxed) == 0;
}

/* ---- making one known ---- */

/* Whether the stream's record may become that of a new stream in this context. A record's memory
 * may only be counted for one device, and reused in one context. What is pending, or may become
 * pending again, waits for the work of the present owner. True: the stream's lock is held. */
static bool lock_to_become(struct stream *stream, const struct context *context)
{
    lock_take(&stream->lock, LOCK_STREAM);
    bool same = stream->context == context && stream->generation == context_generation(context);
    stream_done_apply(stream);
    bool idle = stream_newest_unclean(stream) == 0;
    bool may = stream->device == context->device && idle &&
               atomic_load_explicit(&stream->detached, memory_order_acquire) == 0 &&
               (same || (counter_get(&stream->free_bytes) == 0 &&
                         counter_get(&stream->parts.spare_bytes) == 0));
    if (!may)
        lock_give(&stream->lock);
    return may;
}

/* Whether nothing was done on the stream for DISUSED_NANOSECONDS, as far as these looks have
 * seen. */
static bool is_disused(struct stream *stream, uint64_t now)
{
    lock_take(&stream->lock, LOCK_STREAM);
    if (stream->seen.handed_out != stream->given.handed_out ||
        stream->seen.frees_left != stream->frees_until_look) {
        stream->seen.handed_out = stream->given.handed_out;
        stream->seen.frees_left = stream->frees_until_look;
        stream->seen.at = now;
    }
    bool disused = now - stream->seen.at >= DISUSED_NANOSECONDS;
    lock_give(&stream->lock);
    return disused;
}

/* Returns a record whose stream has ended or, if the list is full, one whose stream is not used.
 * Its lock is held. NULL: there is none. */
static struct stream *find_spare(struct streams *streams, const struct context *context)
{
    lock_must_be_held(&streams->lock);
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

/* Whether it is known that no further stream can become known now. No lock needed. */
static bool is_full(const struct streams *streams)
{
    uint64_t until = atomic_load_explicit(&streams->full_until, memory_order_relaxed);
    return until && stream_count(streams) == STREAMS_MAX && monotonic_now() < until;
}

/* Adds a new record to the list. Its lock is held. */
static struct stream *add_stream(struct streams *streams, struct device *device)
{
    lock_must_be_held(&streams->lock);
    unsigned index = stream_count(streams);
    if (index == STREAMS_MAX)
        return NULL;
    struct stream *stream = allocate_apart(STREAM_APART, sizeof *stream);
    if (!stream)
        return NULL;
    stream->index = index;
    shelf_begin(stream);
    stream->device = device;
    stream->on_device = stream_device(device);
    lock_take(&stream->lock, LOCK_STREAM);
    atomic_store_explicit(&streams->list[index], stream, memory_order_release);
    atomic_store_explicit(&streams->count, index + 1, memory_order_release);
    return stream;
}

/* Stamps of different contexts are not comparable. Nothing with a stamp is left. */
static void begin_in_another_context(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream_events_drop_all(stream);
    atomic_store_explicit(&stream->done, 0, memory_order_relaxed);
    counter_set(&stream->parts.spare_stamp, 0);
    stream->covered = stream->waited_for = 0;
}

/* The list's lock is held, and no stream has this number. Returns a record for the stream; NULL if
 * there are too many streams, or memory is short. The record's lock is not held. Puts events before
 * *discarded that the caller must destroy without the lock. */
static struct stream *begin(struct streams *streams, uint64_t id, const struct stream_name *name,
                            struct stream_event **discarded)
{
    lock_must_be_held(&streams->lock);
    struct stream *stream = find_spare(streams, name->context);
    if (!stream)
        stream = add_stream(streams, name->context->device);
    if (!stream) {
        atomic_store_explicit(&streams->full_until, monotonic_now() + FULL_NANOSECONDS,
                              memory_order_relaxed);
        return NULL;
    }
    if (stream->context != name->context || stream->generation != context_generation(name->context))
        begin_in_another_context(stream);
    stream_events_take_discarded(stream, discarded);
    stream->handle = name->handle;
    stream->thread = name->thread;
    stream->ordered_by_others = name->ordered_by_others ||
                                atomic_load_explicit(&name->context->barred, memory_order_relaxed);
    stream->context = name->context;
    stream->generation = context_generation(name->context);
    stream->early_launches = streams_launched_early(streams, name->handle);
    stream->own_order = !stream->ordered_by_others && !stream->early_launches;
    stream->marked = 0;
    shelf_has_new_owner(stream, monotonic_now());
    bypass_has_new_owner(stream);
    set_id(streams, stream, id);
    streams_note_busy(streams, stream);
    lock_give(&stream->lock);
    return stream;
}

/* ---- who else orders them ---- */

void stream_launches_early(struct stream_ref ref)
{
    /* Relaxed: the flag is only ever set while the stream is the same. */
    if (atomic_load_explicit(&ref.stream->early_launches, memory_order_relaxed))
        return;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    if (stream_is(ref)) {
        atomic_store_explicit(&ref.stream->early_launches, true, memory_order_relaxed);
        ref.stream->own_order = false;
    }
    lock_give(&ref.stream->lock);
}

/* Takes the list's lock: a stream that begins meanwhile is either in the list already, or sees the
 * context barred. */
void streams_are_barred(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    if (atomic_load_explicit(&context->barred, memory_order_acquire))
        return;
    lock_take(&streams->lock, LOCK_STREAMS);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        if (stream->context == context) {
            stream->ordered_by_others = true;
            stream->own_order = false;
        }
        lock_give(&stream->lock);
    }
    /* Pairs with the acquire load above: a thread that returns there knows that all streams have
     * been told. */
    atomic_store_explicit(&context->barred, true, memory_order_release);
    lock_give(&streams->lock);
}

/* ---- ending ---- */

void streams_end_handle(struct pool *pool, CUstream handle)
{
    struct streams *streams = streams_of(pool);
    lock_take(&streams->lock, LOCK_STREAMS);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if (is_nobodys(streams, i))
            continue;
        lock_take(&stream->lock, LOCK_STREAM);
        if (stream->handle == handle) {
            streams_note_end_of(streams, stream);
            set_id(streams, stream, 0);
        }
        lock_give(&stream->lock);
    }
    lock_give(&streams->lock);
}

void stream_end(struct pool *pool, struct stream_ref ref)
{
    struct streams *streams = streams_of(pool);
    lock_take(&streams->lock, LOCK_STREAMS);
    lock_take(&ref.stream->lock, LOCK_STREAM);
    if (stream_is(ref)) {
        streams_note_end_of(streams, ref.stream);
        set_id(streams, ref.stream, 0);
    }
    lock_give(&ref.stream->lock);
    lock_give(&streams->lock);
}

/* The context's events died with it. */
static void end_with_context(struct streams *streams, struct stream *stream,
                             struct stream_event **discarded)
{
    lock_must_be_held(&streams->lock);
    lock_take(&stream->lock, LOCK_STREAM);
    set_id(streams, stream, 0);
    stream_done_apply(stream);
    stream_events_drop_all(stream);
    stream_events_take_discarded(stream, discarded);
    lock_give(&stream->lock);
}

void streams_context_died(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    struct stream_event *discarded = NULL;
    lock_take(&streams->lock, LOCK_STREAMS);
    for (unsigned i = 0; i < stream_count(streams); i++)
        if (stream_at(streams, i)->context == context)
            end_with_context(streams, stream_at(streams, i), &discarded);
    lock_give(&streams->lock);
    stream_events_destroy(pool, discarded);
}

_Thread_local struct recent_streams recent_streams;

/* ---- what the driver tells of a stream ---- */

/* Only a created stream's flags can tell that the legacy stream and it do not order each other. */
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

struct context *stream_context_of(struct pool *pool, CUstream handle, struct context *current)
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

/* ---- finding ---- */

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

/* Makes the stream known, unless another thread does so first. */
static struct stream_ref make_known(struct pool *pool, uint64_t id, const struct stream_name *name)
{
    struct streams *streams = streams_of(pool);
    struct stream_event *discarded = NULL;
    lock_take(&streams->lock, LOCK_STREAMS);
    struct stream_ref ref = walk(streams, id);
    if (!ref.stream)
        ref = (struct stream_ref){begin(streams, id, name, &discarded), id};
    lock_give(&streams->lock);
    stream_events_destroy(pool, discarded);
    return ref;
}

/* A number that no stream of the driver's has: of the context's record, and of its present life. */
static uint64_t number_of_plain_frees(struct context *context)
{
    return UINT64_C(1) << 62 | (context_generation(context) & 0x3ffff) << 44 |
           (((uintptr_t)context >> 4) & ((UINT64_C(1) << 44) - 1));
}

struct stream_ref streams_of_plain_frees(struct pool *pool, struct context *context)
{
    struct stream_name name = {NULL, context, PLAIN_FREES_THREAD, true};
    uint64_t id = number_of_plain_frees(context);
    struct stream_ref ref = look_up(streams_of(pool), id);
    return ref.stream ? ref : make_known(pool, id, &name);
}

static struct stream_ref find_by_number(struct pool *pool, uint64_t id, CUstream handle,
                                        struct context *current, bool make)
{
    struct stream_ref ref = stream_look_up(pool, handle, id);
    if (ref.stream || !make || is_full(streams_of(pool)) ||
        streams_leave_to_driver(streams_of(pool)))
        return ref;
    struct stream_name name = {handle, stream_context_of(pool, handle, current), 0, true};
    if (!name.context)
        return ref;
    if (handle == CU_STREAM_PER_THREAD)
        name.thread = thread_id(pool);
    name.ordered_by_others = is_ordered_by_others(pool, handle);
    ref = make_known(pool, id, &name);
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
    if (pool->driver->cuStreamGetId(handle, &id) != CUDA_SUCCESS || id == 0)
        return none;
    return find_by_number(pool, id, handle, current, make);
}

struct stream_ref stream_find_beside_captures(struct pool *pool, CUstream handle, bool make)
{
    if (!program_captures(&pool->captures))
        return stream_find(pool, handle, make);
    if (stream_may_be_captured(pool, handle))
        return (struct stream_ref){NULL, 0};
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    struct stream_ref ref = stream_find(pool, handle, make);
    relaxed_mode_end(pool->driver, mode);
    return ref;
}
