#include "stream_find.h"

#include <string.h>

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/registry.h"
#include "stream_events.h"
#include "stream_table.h"

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
        ref = stream_table_look_up(streams_of(pool), id);
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
    struct stream_ref ref = stream_table_walk(streams, id);
    if (!ref.stream)
        ref = (struct stream_ref){stream_table_begin(streams, id, name, &discarded), id};
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
    struct stream_ref ref = stream_table_look_up(streams_of(pool), id);
    return ref.stream ? ref : make_known(pool, id, &name);
}

static struct stream_ref find_by_number(struct pool *pool, uint64_t id, CUstream handle,
                                        struct context *current, bool make)
{
    struct stream_ref ref = stream_look_up(pool, handle, id);
    if (ref.stream || !make || stream_table_is_full(streams_of(pool)) ||
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
