#include "stream_find.h"

#include <string.h>

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/registry.h"
#include "own_events.h"
#include "stream_table.h"

_Thread_local struct recent_streams recent_streams;

/* ---- names of streams that the driver does not number ---- */

static bool has_name(const struct stream *stream, const struct stream_name *name)
{
    return stream->handle == name->handle && stream->context == name->context &&
           stream->generation == context_generation(name->context) &&
           stream->thread == name->thread;
}

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

static struct stream_ref look_up_name(const struct streams *streams, const struct stream_name *name)
{
    lock_must_be_held(&streams->lock);
    unsigned count = stream_count(streams);
    for (unsigned i = 0; i < count; i++) {
        uint64_t id = atomic_load_explicit(&streams->ids[i], memory_order_relaxed);
        if (id != 0 && has_name(stream_at(streams, i), name))
            return (struct stream_ref){stream_at(streams, i), id};
    }
    return (struct stream_ref){NULL, 0};
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
        ref = stream_table_look_up(streams_of(pool), id);
    if (ref.stream)
        remember(pool, handle, ref);
    return ref;
}

static struct stream_ref make_known(struct pool *pool, uint64_t id, CUstream handle,
                                    struct context *current)
{
    struct streams *streams = streams_of(pool);
    struct stream_ref ref = {NULL, 0};
    struct own_event *discarded = NULL;
    struct stream_name name = {handle, stream_context_of(pool, handle, current), 0, true};
    if (!name.context)
        return ref;
    if (handle == CU_STREAM_PER_THREAD)
        name.thread = thread_id(pool);
    name.ordered_by_others = is_ordered_by_others(pool, handle);
    lock_take(&streams->lock, LOCK_STREAMS);
    ref = stream_table_walk(streams, id);
    if (!ref.stream)
        ref = (struct stream_ref){stream_table_begin(streams, id, &name, &discarded), id};
    lock_give(&streams->lock);
    own_events_destroy(pool, discarded);
    return ref;
}

/* For a driver without stream numbers. */
static struct stream_ref find_by_name(struct pool *pool, CUstream handle, struct context *current,
                                      bool make)
{
    struct streams *streams = streams_of(pool);
    struct own_event *discarded = NULL;
    struct stream_name name = {handle, stream_context_of(pool, handle, current), 0, true};
    if (!name.context)
        return (struct stream_ref){NULL, 0};
    if (handle == CU_STREAM_PER_THREAD)
        name.thread = thread_id(pool);
    lock_take(&streams->lock, LOCK_STREAMS);
    struct stream_ref ref = look_up_name(streams, &name);
    lock_give(&streams->lock);
    if (ref.stream || !make || stream_table_is_full(streams) || streams_leave_to_driver(streams))
        return ref;
    name.ordered_by_others = is_ordered_by_others(pool, handle);
    lock_take(&streams->lock, LOCK_STREAMS);
    ref = look_up_name(streams, &name);
    if (!ref.stream) {
        uint64_t id = stream_table_next_number(streams);
        ref = (struct stream_ref){stream_table_begin(streams, id, &name, &discarded), id};
    }
    lock_give(&streams->lock);
    own_events_destroy(pool, discarded);
    return ref;
}

/* No thread has this id, and no stream of the driver's has such a number. */
#define PLAIN_FREES_THREAD UINT64_MAX
#define PLAIN_FREES_NUMBER (UINT64_C(1) << 62)

struct stream_ref streams_of_plain_frees(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    struct own_event *discarded = NULL;
    struct stream_name name = {NULL, context, PLAIN_FREES_THREAD, true};
    lock_take(&streams->lock, LOCK_STREAMS);
    struct stream_ref ref = look_up_name(streams, &name);
    if (!ref.stream) {
        uint64_t id = PLAIN_FREES_NUMBER | stream_table_next_number(streams);
        ref = (struct stream_ref){stream_table_begin(streams, id, &name, &discarded), id};
    }
    lock_give(&streams->lock);
    own_events_destroy(pool, discarded);
    return ref;
}

static struct stream_ref find_by_number(struct pool *pool, uint64_t id, CUstream handle,
                                        struct context *current, bool make)
{
    struct stream_ref ref = stream_look_up(pool, handle, id);
    if (ref.stream || !make || stream_table_is_full(streams_of(pool)) ||
        streams_leave_to_driver(streams_of(pool)))
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
    if (!program_captures(&pool->captures))
        return stream_find(pool, handle, make);
    if (stream_may_be_captured(pool, handle))
        return (struct stream_ref){NULL, 0};
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    struct stream_ref ref = stream_find(pool, handle, make);
    relaxed_mode_end(pool->driver, mode);
    return ref;
}
