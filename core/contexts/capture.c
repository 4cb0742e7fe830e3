#include "capture.h"

#include <stdlib.h>

#include "core/driver/calls.h"
#include "pool_state.h"
#include "registry.h"

struct capture {
    CUstream stream;
    CUcontext context;
    uint64_t thread; /* the thread whose own stream it is (CU_STREAM_PER_THREAD), else 0 */
    /* The capture ends with this context: the stream's own, or the primary one of its green
     * context; NULL: not known. */
    struct context *root;
    struct capture *next;
};

void captures_lock(struct pool *pool)
{
    no_lock_may_be_held();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    enter_driver();
}

void captures_unlock(struct pool *pool)
{
    leave_driver();
    lock_give(&pool->fence_lock);
}

struct relaxed_mode relaxed_mode_where_captures_allocate(const struct pool *pool)
{
    if (!pool->settings.captures.allocate || !captures_are_all_owned(&pool->captures))
        return (struct relaxed_mode){.exchanged = false};
    return relaxed_mode_begin(pool->driver);
}

static CUstream spelled_out(CUstream stream, bool per_thread)
{
    return per_thread && !stream ? CU_STREAM_PER_THREAD : stream;
}

static uint64_t thread_of(struct pool *pool, CUstream stream)
{
    return stream == CU_STREAM_PER_THREAD ? thread_id(pool) : 0;
}

static CUcontext context_of_stream(const struct driver *driver, CUstream stream)
{
    CUcontext context = NULL;
    if (!driver->cuStreamGetCtx || driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
        driver->cuCtxGetCurrent(&context);
    return context;
}

/* The context is compared only for a thread's own stream, since a thread has one in every
 * context. */
static struct capture **find(struct pool *pool, CUstream stream)
{
    lock_must_be_held(&pool->fence_lock);
    struct capture **link = &pool->captures.list;
    uint64_t thread = thread_of(pool, stream);
    CUcontext context = thread ? context_of_stream(pool->driver, stream) : NULL;
    while (*link && ((*link)->stream != stream || (*link)->thread != thread ||
                     (thread && (*link)->context != context)))
        link = &(*link)->next;
    return link;
}

/* Changes the number of captures, and the capturing bit of the registry's generation with it. */
static void add(struct pool *pool, int change)
{
    struct captures *captures = &pool->captures;
    unsigned count = atomic_load_explicit(&captures->count, memory_order_relaxed);
    count += (unsigned)change;
    atomic_store_explicit(&captures->count, count, memory_order_relaxed);
    if (count)
        atomic_fetch_or_explicit(&pool->registry.generation, REGISTRY_CAPTURING,
                                 memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&pool->registry.generation, ~REGISTRY_CAPTURING,
                                  memory_order_relaxed);
}

/* Relaxed: see struct captures. */
static void add_unowned(struct pool *pool, int change)
{
    atomic_fetch_add_explicit(&pool->captures.unowned, (unsigned)change, memory_order_relaxed);
}

void captures_switch_off(struct pool *pool)
{
    add_unowned(pool, 1);
    add(pool, 1);
}

static void drop(struct pool *pool, struct capture **link, CUgraph graph)
{
    lock_must_be_held(&pool->fence_lock);
    struct capture *capture = *link;
    unsigned owned = pool->captures.owned;
    *link = capture->next;
    add(pool, -1);
    TELL_KINDS(pool, capture_ended, pool, capture, graph);
    if (pool->captures.owned == owned)
        add_unowned(pool, -1);
    free(capture);
}

static struct capture *make_known(struct pool *pool, CUstream stream)
{
    struct capture *capture = malloc(sizeof *capture);
    if (!capture)
        return NULL;
    CUcontext handle = context_of_stream(pool->driver, stream);
    *capture = (struct capture){.stream = stream,
                                .context = handle,
                                .thread = thread_of(pool, stream),
                                .root = context_named(pool, handle),
                                .next = pool->captures.list};
    pool->captures.list = capture;
    return capture;
}

void captures_began(struct pool *pool, CUstream stream, bool per_thread)
{
    lock_must_be_held(&pool->fence_lock);
    unsigned owned = pool->captures.owned;
    stream = spelled_out(stream, per_thread);
    struct capture *capture = make_known(pool, stream);
    if (capture)
        TELL_KINDS(pool, capture_began, pool, capture, stream);
    /* Without a record, the count never falls back to 0: the driver answers every call from now
     * on. */
    if (pool->captures.owned == owned)
        add_unowned(pool, 1);
    add(pool, 1);
}

void captures_began_again(struct pool *pool, CUstream stream)
{
    lock_must_be_held(&pool->fence_lock);
    make_known(pool, stream);
    add_unowned(pool, 1);
    add(pool, 1);
}

bool stream_may_be_captured(const struct pool *pool, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return program_captures(&pool->captures) &&
           (!pool->driver->cuStreamIsCapturing ||
            pool->driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool capture_is_spoilt(struct pool *pool, const struct capture *capture)
{
    lock_must_be_held(&pool->fence_lock);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    struct context *root = capture->root;
    /* The stream exists: streams are destroyed under the fence lock, or with their context, pinned
     * here. */
    if (!pool->driver->cuStreamIsCapturing || !stream_is_created(capture->stream) || !root ||
        !context_pin(root, context_generation(root)))
        return false;
    enter_driver();
    bool told = pool->driver->cuStreamIsCapturing(capture->stream, &status) == CUDA_SUCCESS;
    leave_driver();
    context_unpin(root);
    return told && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

void captures_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph)
{
    lock_must_be_held(&pool->fence_lock);
    stream = spelled_out(stream, per_thread);
    struct capture **link = find(pool, stream);
    if (!*link)
        return;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (pool->driver->cuStreamIsCapturing)
        pool->driver->cuStreamIsCapturing(stream, &status);
    if (status == CU_STREAM_CAPTURE_STATUS_NONE)
        drop(pool, link, graph);
}

void captures_stream_destroyed(struct pool *pool, CUstream stream)
{
    lock_must_be_held(&pool->fence_lock);
    struct capture **link = find(pool, stream);
    if (*link)
        drop(pool, link, NULL);
}

void captures_context_died(struct pool *pool, const struct context *context)
{
    lock_must_be_held(&pool->fence_lock);
    struct capture **link = &pool->captures.list;
    while (*link) {
        if ((*link)->context == context->handle || (*link)->root == context)
            drop(pool, link, NULL);
        else
            link = &(*link)->next;
    }
}
