#include "graph_owners.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "graph_blocks.h"

static void put_among_gone(struct graph_owner *owner)
{
    struct graph_memory *memory = owner->memory;
    struct graph_owner *first = atomic_load_explicit(&memory->gone, memory_order_relaxed);
    do
        owner->next_gone = first;
    while (!atomic_compare_exchange_weak_explicit(&memory->gone, &first, owner,
                                                  memory_order_release, memory_order_relaxed));
}

/* The graph, its clones and its executables are gone. Any thread, inside the driver, perhaps with
 * locks of the driver's and the fence lock held: no call of CUDA's and no lock. */
static void graphs_are_gone(void *argument)
{
    struct graph_owner *owner = argument;
    atomic_store_explicit(&owner->gone, true, memory_order_release);
    put_among_gone(owner);
}

/* A driver has the one, the other or both. Where edges have data, the older one fails, and so does
 * the newer one where it is not given room for it. */
static CUgraph graph_of(const struct driver *driver, CUstream stream, CUstreamCaptureStatus *status)
{
    CUgraph graph = NULL;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t count;
    cuuint64_t id;
    CUresult result =
        driver->cuStreamGetCaptureInfo_v3
            ? driver->cuStreamGetCaptureInfo_v3(stream, status, &id, &graph, &nodes, &edges, &count)
            : driver->cuStreamGetCaptureInfo_v2(stream, status, &id, &graph, NULL, NULL);
    if (result != CUDA_SUCCESS)
        *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return *status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? graph : NULL;
}

/* Whether the graph keeps the owner from now on. If not, the owner is as good as gone: the
 * destructor runs, and it is freed as all are. */
static bool retain(const struct driver *driver, CUgraph graph, struct graph_owner *owner)
{
    CUuserObject object = NULL;
    if (driver->cuUserObjectCreate(&object, owner, graphs_are_gone, 1,
                                   CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS) {
        free(owner);
        return false;
    }
    if (driver->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) ==
        CUDA_SUCCESS)
        return true;
    owner->unused = true;
    driver->cuUserObjectRelease(object, 1);
    return false;
}

static bool can_retain(const struct driver *driver)
{
    return (driver->cuStreamGetCaptureInfo_v2 || driver->cuStreamGetCaptureInfo_v3) &&
           driver->cuUserObjectCreate && driver->cuUserObjectRelease &&
           driver->cuGraphRetainUserObject;
}

/* Another thread's call has spoilt the capture since it began: it leaves no graph, and minds
 * nothing any more. What it owns until it ends goes back then. */
static struct graph_owner *without_graph(struct graph_owner *owner)
{
    owner->taken_up = true;
    atomic_store_explicit(&owner->gone, true, memory_order_release);
    return owner;
}

/* An owner that the stream's graph keeps, or that of a capture that will leave none; NULL: there
 * can be none. */
static struct graph_owner *make_owner(struct pool *pool, struct graph_memory *memory,
                                      CUstream stream)
{
    const struct driver *driver = pool->driver;
    struct graph_owner *owner = can_retain(driver) ? calloc(1, sizeof *owner) : NULL;
    if (!owner)
        return NULL;
    owner->memory = memory;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(driver);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = graph_of(driver, stream, &status);
    owner->stream = (uintptr_t)stream;
    owner->began = monotonic_now();
    bool retained = graph && retain(driver, graph, owner);
    relaxed_mode_end(driver, mode);
    leave_driver();
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return without_graph(owner);
    if (!graph)
        free(owner);
    return retained ? owner : NULL;
}

void graph_capture_began(struct pool *pool, const struct capture *capture, CUstream stream)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    lock_must_be_held(&pool->fence_lock);
    struct graph_owner *owner = make_owner(pool, memory, stream);
    lock_take(&memory->lock, LOCK_GRAPHS);
    counter_add(owner ? &memory->counters->captures : &memory->counters->without_owner, 1);
    if (owner) {
        owner->number = ++memory->owners;
        owner->capture = capture;
        owner->thread = thread_id(pool);
        owner->next = memory->under_way;
        memory->under_way = owner;
        pool->captures.owned++;
        counter_add(&memory->counters->owners, 1);
    }
    lock_give(&memory->lock);
}

static void finish(struct pool *pool, struct graph_owner *owner)
{
    struct graph_memory *memory = owner->memory;
    lock_must_be_held(&memory->lock);
    graph_blocks_check(owner);
    counter_subtract(&memory->counters->owners, 1);
    uint64_t unparked = graph_owner_finish(pool, owner);
    if (unparked == 0)
        return;
    atomic_fetch_add_explicit(&memory->unparked, unparked, memory_order_relaxed);
    atomic_store_explicit(&memory->unfenced, true, memory_order_relaxed);
}

void graph_capture_ended(struct pool *pool, const struct capture *capture)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    lock_must_be_held(&pool->fence_lock);
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_owner **link = &memory->under_way;
    while (*link && (*link)->capture != capture)
        link = &(*link)->next;
    struct graph_owner *owner = *link;
    if (owner) {
        *link = owner->next;
        owner->capture = NULL;
        pool->captures.owned--;
        counter_add(&memory->counters->failed,
                    atomic_load_explicit(&owner->gone, memory_order_acquire));
        graph_blocks_check(owner);
    }
    if (owner && owner->taken_up)
        finish(pool, owner);
    lock_give(&memory->lock);
}

/* One of those that are gone. Without a number its capture is still being begun, by a thread that
 * needs it: another one has ended that already. */
static void take_up(struct pool *pool, struct graph_owner *owner)
{
    struct graph_memory *memory = owner->memory;
    lock_must_be_held(&memory->lock);
    if (owner->capture)
        owner->taken_up = true;
    else if (owner->unused)
        free(owner);
    else if (owner->number == 0)
        put_among_gone(owner);
    else
        finish(pool, owner);
}

/* What became pending has no fence yet. This is no free: its fence is only ever asked about. On a
 * driver that cannot record one, the next free waits for what it would stand for. Nobody waits for
 * a thread that is recording one: the next slow path tries again. */
static void fence(struct pool *pool, struct graph_memory *memory)
{
    if (captures_are_going_on(&pool->captures) ||
        !atomic_exchange_explicit(&memory->unfenced, false, memory_order_relaxed))
        return;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        if (!epoch_fence_the_rest_at_once(pool, c))
            atomic_store_explicit(&memory->unfenced, true, memory_order_relaxed);
}

/* What became pending was in nobody's hands, and may be the first to go back: a free, as far as the
 * housekeeper is concerned. */
static void tell_housekeeper(struct pool *pool, struct graph_memory *memory)
{
    uint64_t bytes = atomic_exchange_explicit(&memory->unparked, 0, memory_order_relaxed);
    if (bytes)
        housekeeper_look(pool, bytes);
}

void graph_memory_take_up_gone(struct pool *pool)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct graph_memory *memory = graph_memory_of(pool);
    struct graph_owner *gone = atomic_exchange_explicit(&memory->gone, NULL, memory_order_acquire);
    if (gone) {
        lock_take(&memory->lock, LOCK_GRAPHS);
        for (struct graph_owner *next; gone; gone = next) {
            next = gone->next_gone;
            take_up(pool, gone);
        }
        lock_give(&memory->lock);
    }
    fence(pool, memory);
    tell_housekeeper(pool, memory);
}
