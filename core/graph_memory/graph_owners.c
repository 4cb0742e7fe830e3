#include "graph_owners.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "graph_blocks.h"
#include "graph_held.h"
#include "graph_objects.h"
#include "graph_pools.h"

static void push_ended(struct graph_owner *owner)
{
    struct graph_memory *memory = owner->memory;
    struct graph_owner *first = atomic_load_explicit(&memory->gone, memory_order_relaxed);
    do
        owner->next_ended = first;
    while (!atomic_compare_exchange_weak_explicit(&memory->gone, &first, owner,
                                                  memory_order_release, memory_order_relaxed));
}

/* The destructor: the graph, its clones and its executables are gone. It may run in any thread,
 * inside the driver, perhaps with locks of the driver's and the fence lock held. So it makes no
 * CUDA call and takes no lock. */
static void graphs_ended(void *argument)
{
    struct graph_owner *owner = argument;
    atomic_store_explicit(&owner->gone, true, memory_order_release);
    push_ended(owner);
}

/* Makes the graph keep the owner. False: the owner is freed, at once or like all owners whose
 * destructor has run. */
static bool retain(const struct driver *driver, CUgraph graph, struct graph_owner *owner)
{
    CUuserObject object = NULL;
    if (driver->cuUserObjectCreate(&object, owner, graphs_ended, 1,
                                   CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS) {
        free(owner);
        return false;
    }
    owner->object = object;
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
           driver->cuGraphRetainUserObject && driver->cuGraphReleaseUserObject;
}

/* For a capture that another thread's call has invalidated since it began: it leaves no graph, and
 * forbids no call any more. */
static struct graph_owner *without_graph(struct graph_owner *owner)
{
    owner->taken_up = owner->spoilt = true;
    atomic_store_explicit(&owner->gone, true, memory_order_release);
    return owner;
}

/* Makes an owner that the stream's graph keeps, or one for a capture that will leave no graph.
 * NULL: there can be none. */
static struct graph_owner *make_owner(struct pool *pool, struct graph_memory *memory,
                                      CUstream stream)
{
    const struct driver *driver = pool->driver;
    struct graph_owner *owner = can_retain(driver) ? calloc(1, sizeof *owner) : NULL;
    if (!owner)
        return NULL;
    owner->memory = memory;
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    struct capture_place place;
    bool told = capture_place_ask(driver, stream, &place) && place.graph;
    owner->capture_id = told ? place.capture : 0;
    owner->graph = told ? place.graph : NULL;
    owner->launches = graph_launches(memory);
    owner->stream = (uintptr_t)stream;
    owner->began = monotonic_now();
    bool retained = told && retain(driver, place.graph, owner);
    leave_driver_relaxed(driver, mode);
    if (!told && place.is_spoilt)
        return without_graph(owner);
    if (!told)
        free(owner);
    return retained ? owner : NULL;
}

/* Whether the graph into which the stream is captured may have nodes. */
static bool has_nodes(const struct pool *pool, CUstream stream)
{
    size_t count = 0;
    struct capture_place place;
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    bool none = pool->driver->cuGraphGetNodes && capture_place_ask(pool->driver, stream, &place) &&
                pool->driver->cuGraphGetNodes(place.graph, NULL, &count) == CUDA_SUCCESS &&
                count == 0;
    relaxed_mode_end(pool->driver, mode);
    return !none;
}

CUresult graph_stream_id(const struct pool *pool, CUstream stream, unsigned long long *id)
{
    if (!pool->driver->cuStreamGetId)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (stream_may_be_captured(pool, stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    /* Captures of other streams do not forbid this call, in any mode. */
    CUresult result = pool->driver->cuStreamGetId(stream, id);
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void graph_capture_is_coming(struct pool *pool, CUstream stream)
{
    struct graph_memory *memory = graph_memory_of(pool);
    unsigned long long id = 0;
    if (memory && graph_pool_is_used(memory, stream) &&
        graph_stream_id(pool, stream, &id) == CUDA_SUCCESS)
        graph_pool_is_used_by(memory, stream, id);
}

void graph_capture_began(struct pool *pool, const struct capture *capture, CUstream stream)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    lock_must_be_held(&pool->fence_lock);
    struct graph_owner *owner = make_owner(pool, memory, stream);
    bool uses_pool = owner && graph_pool_is_used(memory, stream);
    bool had_nodes = uses_pool && has_nodes(pool, stream);
    lock_take(&memory->lock, LOCK_GRAPHS);
    counter_add(owner ? &memory->counters->captures : &memory->counters->without_owner, 1);
    if (owner) {
        owner->number = ++memory->owners;
        owner->capture = capture;
        owner->thread = thread_id(pool);
        owner->frees = memory->frees;
        owner->had_nodes = had_nodes;
        owner->next = memory->under_way;
        memory->under_way = owner;
        if (uses_pool)
            graph_pool_begin(owner, stream);
        pool->captures.owned++;
        counter_add(&memory->counters->owners, 1);
    }
    lock_give(&memory->lock);
}

static void note_unparked(struct graph_memory *memory, uint64_t bytes)
{
    if (bytes == 0)
        return;
    atomic_fetch_add_explicit(&memory->unparked, bytes, memory_order_relaxed);
    atomic_store_explicit(&memory->unfenced, true, memory_order_relaxed);
}

static void finish(struct pool *pool, struct graph_owner *owner)
{
    struct graph_memory *memory = owner->memory;
    lock_must_be_held(&memory->lock);
    graph_blocks_check(owner);
    counter_subtract(&memory->counters->owners, 1);
    graph_held_release(memory, owner);
    note_unparked(memory, graph_owner_finish(pool, owner));
}

void graph_owners_look_for_spoilt(struct pool *pool)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct graph_memory *memory = graph_memory_of(pool);
    if (is_inside_driver())
        return;
    /* Captures begin and end under the fence lock. */
    lock_take(&pool->fence_lock, LOCK_FENCE);
    for (struct graph_owner *owner = memory->under_way; owner; owner = owner->next) {
        if (owner->spoilt || owner->shares_graph || !capture_is_spoilt(pool, owner->capture))
            continue;
        lock_take(&memory->lock, LOCK_GRAPHS);
        graph_held_release(memory, owner);
        note_unparked(memory, graph_owner_spoil(pool, owner));
        lock_give(&memory->lock);
    }
    lock_give(&pool->fence_lock);
}

static bool owns_nothing(const struct graph_owner *owner)
{
    return !owner->links && !owner->held;
}

/* Takes the object off the graph, for a graph whose capture has neither allocated nor freed
 * anything. The driver launches a graph with a user object more slowly. */
static void freed_outside(const struct driver *driver, CUgraph graph, CUuserObject object)
{
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    driver->cuGraphReleaseUserObject(graph, object, 1);
    leave_driver_relaxed(driver, mode);
}

static struct graph_owner *take_from_under_way(struct graph_memory *memory,
                                               const struct capture *capture)
{
    struct graph_owner **link = &memory->under_way;
    while (*link && (*link)->capture != capture)
        link = &(*link)->next;
    struct graph_owner *owner = *link;
    if (owner)
        *link = owner->next;
    return owner;
}

/* Ends the capture of the owner. If the driver says that there is no graph, its destructors may not
 * have run yet. */
static void end_capture(struct pool *pool, struct graph_owner *owner, CUgraph graph)
{
    struct graph_memory *memory = owner->memory;
    lock_must_be_held(&memory->lock);
    owner->capture = NULL;
    graph_pool_end(owner);
    pool->captures.owned--;
    owner->failed = (!graph && !owner->shares_graph) ||
                    atomic_load_explicit(&owner->gone, memory_order_acquire);
    counter_add(&memory->counters->failed, owner->failed);
    graph_blocks_check(owner);
}

/* Whether executables may do without the object. They may not if the capture has freed
 * stream-ordered memory from before it. That memory returns ordered after the work of its own
 * context alone, and the executable may run in another context. So the driver must tell that the
 * executable's launches have completed. */
static bool may_be_off_its_graph(const struct graph_owner *owner)
{
    return !owner->held && !owner->shares_graph;
}

/* The owner for launches that bring nothing to life. NULL: launches are not counted by owner. */
static struct graph_owner *nobody_of(struct graph_memory *memory)
{
    return memory->serves_nodes ? &memory->nobody : NULL;
}

void graph_capture_ended(struct pool *pool, const struct capture *capture, CUgraph graph)
{
    struct graph_memory *memory = graph_memory_of(pool);
    CUuserObject unneeded = NULL;
    struct graph_owner *noted = NULL;
    if (!memory)
        return;
    lock_must_be_held(&pool->fence_lock);
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_owner *owner = take_from_under_way(memory, capture);
    if (owner)
        end_capture(pool, owner, graph);
    bool left = owner && graph && !owner->failed;
    if (left && owns_nothing(owner))
        unneeded = owner->object;
    if (left && may_be_off_its_graph(owner))
        noted = unneeded ? nobody_of(memory) : owner;
    if (owner && owner->taken_up)
        finish(pool, owner);
    lock_give(&memory->lock);
    if (graph)
        graph_objects_note(pool, graph, noted);
    if (unneeded)
        freed_outside(pool->driver, graph, unneeded);
}

/* Processes an owner whose graphs are gone. Without a number, its capture is still being begun, by
 * a thread that needs the owner; another thread has already ended that capture. */
static void take_up(struct pool *pool, struct graph_owner *owner)
{
    struct graph_memory *memory = owner->memory;
    lock_must_be_held(&memory->lock);
    if (owner->capture)
        owner->taken_up = true;
    else if (owner->unused)
        free(owner);
    else if (owner->number == 0)
        push_ended(owner);
    else
        finish(pool, owner);
}

/* Records a fence for what became pending. This is no free of the program's, so the fence is only
 * queried. On a driver that cannot record one, the next free waits for the same work instead. If
 * another thread is recording a fence, this thread does not wait: the next slow path tries again.
 */
static void fence(struct pool *pool, struct graph_memory *memory)
{
    if (captures_under_way(&pool->captures) ||
        !atomic_exchange_explicit(&memory->unfenced, false, memory_order_relaxed))
        return;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        if (!epoch_fence_the_rest_at_once(pool, c))
            atomic_store_explicit(&memory->unfenced, true, memory_order_relaxed);
}

/* Tells the housekeeper of bytes that became pending, as of a free. These blocks were not in use by
 * the program, and may be the first to be released. */
static void tell_housekeeper(struct pool *pool, struct graph_memory *memory)
{
    uint64_t bytes = atomic_exchange_explicit(&memory->unparked, 0, memory_order_relaxed);
    if (bytes)
        housekeeper_look(pool, bytes);
}

void graph_memory_process_all_ended(struct pool *pool)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct graph_memory *memory = graph_memory_of(pool);
    struct graph_owner *gone = atomic_exchange_explicit(&memory->gone, NULL, memory_order_acquire);
    if (gone) {
        lock_take(&memory->lock, LOCK_GRAPHS);
        for (struct graph_owner *next; gone; gone = next) {
            next = gone->next_ended;
            take_up(pool, gone);
        }
        lock_give(&memory->lock);
    }
    fence(pool, memory);
    graph_held_give_back(pool);
    tell_housekeeper(pool, memory);
}
