/*
 * Hooks of streams and events, as the program orders its work with them. The calls pass through,
 * and the pool learns which streams have work, and which work has completed. While no
 * stream-ordered memory is in use, the pool follows no waits.
 */
#include "core/driver/calls.h"
#include "hooks.h"

/* The pool, if stream-ordered memory is in use. Does not start the pool: a pool that is not running
 * has handed nothing out. */
static struct pool *pool_that_follows(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    bool follows = pool && !is_inside_driver() && pool_follows_streams(pool);
    return __builtin_expect(follows, 0) ? pool : NULL;
}

/* Notes that the stream has work. The pool does not see copies and the like. But the program waits
 * for them sooner or later, or records an event after them. */
static void note_use(CUstream stream)
{
    struct pool *pool = pool_to_tell();
    if (pool)
        pool_note_stream(pool, stream);
}

/* ---- waits and queries ---- */

#define WAIT_FOR_STREAM(call, stream)                                                              \
    ({                                                                                             \
        struct pool *pool_ = pool_that_follows();                                                  \
        struct order_mark mark_;                                                                   \
        if (pool_)                                                                                 \
            mark_ = pool_stream_wait_begin(pool_, stream);                                         \
        CUresult result_ = (call);                                                                 \
        if (pool_)                                                                                 \
            pool_stream_wait_end(pool_, mark_, result_);                                           \
        result_;                                                                                   \
    })

/* A wait for one stream says nothing about the other streams of its context. */
HOOK(cuStreamSynchronize, (CUstream stream))
{
    note_use(stream);
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamSynchronize(stream), stream);
}

HOOK(cuStreamSynchronize_ptsz, (CUstream stream))
{
    note_use(per_thread(stream));
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamSynchronize_ptsz(stream), per_thread(stream));
}

HOOK(cuStreamQuery, (CUstream stream))
{
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamQuery(stream), stream);
}

HOOK(cuStreamQuery_ptsz, (CUstream stream))
{
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamQuery_ptsz(stream), per_thread(stream));
}

static CUresult wait_for_event(CUresult (*driver)(CUevent), CUevent event)
{
    struct pool *pool = pool_that_follows();
    CUresult result = driver(event);
    if (pool)
        pool_event_wait_ended(pool, result);
    return result;
}

HOOK(cuEventQuery, (CUevent event))
{
    return wait_for_event(real_driver()->cuEventQuery, event);
}

HOOK(cuEventSynchronize, (CUevent event))
{
    return wait_for_event(real_driver()->cuEventSynchronize, event);
}

/* ---- streams that have work ---- */

HOOK(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))
{
    note_use(stream);
    return real_driver()->cuStreamWaitEvent(stream, event, flags);
}

HOOK(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags))
{
    note_use(per_thread(stream));
    return real_driver()->cuStreamWaitEvent_ptsz(stream, event, flags);
}

HOOK(cuEventRecord, (CUevent event, CUstream stream))
{
    note_use(stream);
    return real_driver()->cuEventRecord(event, stream);
}

HOOK(cuEventRecord_ptsz, (CUevent event, CUstream stream))
{
    note_use(per_thread(stream));
    return real_driver()->cuEventRecord_ptsz(event, stream);
}

HOOK(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags))
{
    note_use(stream);
    return real_driver()->cuEventRecordWithFlags(event, stream, flags);
}

HOOK(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags))
{
    note_use(per_thread(stream));
    return real_driver()->cuEventRecordWithFlags_ptsz(event, stream, flags);
}
