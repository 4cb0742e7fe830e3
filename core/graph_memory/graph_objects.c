#include "graph_objects.h"

#include <search.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/lock.h"
#include "core/driver/calls.h"
#include "graph_state.h"

/* A reference of the pool's to a user object, for a graph or an executable. */
struct kept_object {
    const void *of;
    CUuserObject object;
    struct graph_owner *owner; /* for a graph: the object's owner. For an executable: the owner for
                                  which its launches count, or NULL. It exists as long as the
                                  object */
};

static const struct kept_object nothing;

static int compare(const void *a, const void *b)
{
    const struct kept_object *one = a, *other = b;
    return ((uintptr_t)one->of > (uintptr_t)other->of) -
           ((uintptr_t)one->of < (uintptr_t)other->of);
}

/* ---- what is known ---- */

static struct kept_object find(struct graph_memory *memory, void *const *tree, const void *of)
{
    const struct kept_object key = {.of = of};
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct kept_object *const *found = tfind(&key, tree, compare);
    struct kept_object kept = found ? **found : nothing;
    lock_give(&memory->lock);
    return kept;
}

/* Removes the entry. Its reference is the caller's from now on. */
static struct kept_object take_out(struct graph_memory *memory, void **tree, const void *of)
{
    const struct kept_object key = {.of = of};
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct kept_object *const *found = tfind(&key, tree, compare);
    struct kept_object *kept = found ? *found : NULL;
    if (kept)
        tdelete(&key, tree, compare);
    lock_give(&memory->lock);
    struct kept_object was = kept ? *kept : nothing;
    free(kept);
    return was;
}

/* Adds an entry, which takes over the caller's reference. If memory is short for the entry, the
 * reference is never released. */
static void put_in(struct graph_memory *memory, void **tree, struct kept_object what)
{
    struct kept_object *kept = malloc(sizeof *kept), **place = NULL;
    if (!kept)
        return;
    *kept = what;
    lock_take(&memory->lock, LOCK_GRAPHS);
    place = tsearch(kept, tree, compare);
    bool is_in = place && *place == kept;
    lock_give(&memory->lock);
    if (!is_in)
        free(kept);
}

/* ---- references ---- */

static struct relaxed_mode ask_relaxed(const struct driver *driver)
{
    enter_driver();
    return relaxed_mode_begin(driver);
}

static void asked(const struct driver *driver, struct relaxed_mode mode)
{
    relaxed_mode_end(driver, mode);
    leave_driver();
}

static bool retain(const struct driver *driver, CUuserObject object)
{
    if (!driver->cuUserObjectRetain)
        return false;
    struct relaxed_mode mode = ask_relaxed(driver);
    bool retained = driver->cuUserObjectRetain(object, 1) == CUDA_SUCCESS;
    asked(driver, mode);
    return retained;
}

/* Releases a reference. The destructor may run inside this call. */
static void release(const struct driver *driver, CUuserObject object)
{
    if (!object)
        return;
    struct relaxed_mode mode = ask_relaxed(driver);
    driver->cuUserObjectRelease(object, 1);
    asked(driver, mode);
}

/* ---- graphs ---- */

void graph_objects_note(struct pool *pool, CUgraph graph, struct graph_owner *owner)
{
    struct graph_memory *memory = graph_memory_of(pool);
    release(pool->driver, take_out(memory, &memory->known_graphs, graph).object);
    if (owner && (!owner->object || retain(pool->driver, owner->object)))
        put_in(memory, &memory->known_graphs, (struct kept_object){graph, owner->object, owner});
}

void graph_objects_share(struct pool *pool, CUgraph graph)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    release(pool->driver, take_out(memory, &memory->known_graphs, graph).object);
    lock_take(&memory->lock, LOCK_GRAPHS);
    for (struct graph_owner *owner = memory->under_way; owner; owner = owner->next)
        owner->shares_graph = owner->shares_graph || owner->graph == graph;
    lock_give(&memory->lock);
}

/* ---- executables ---- */

/* Whether a launch may bring blocks to life that other graphs have allocated: child graphs, bodies
 * of conditional nodes. Nodes of unknown types may hold graphs. */
static bool holds_graphs(const struct driver *driver, CUgraph graph)
{
    size_t count = 0;
    if (!driver->cuGraphGetNodes || !driver->cuGraphNodeGetType ||
        driver->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS)
        return true;
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes);
    bool holds = !nodes || driver->cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS;
    for (size_t i = 0; i < count && !holds; i++) {
        CUgraphNodeType type;
        holds = driver->cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS ||
                type == CU_GRAPH_NODE_TYPE_GRAPH || type > CU_GRAPH_NODE_TYPE_MEM_FREE;
    }
    free(nodes);
    return holds;
}

struct graph_making graph_making_begin(struct pool *pool, CUgraph graph)
{
    const struct driver *driver = pool->driver;
    struct graph_memory *memory = graph_memory_of(pool);
    struct graph_making making = {.graph = graph};
    if (!memory || is_inside_driver())
        return making;
    struct kept_object kept = find(memory, &memory->known_graphs, graph);
    CUuserObject object = kept.object;
    if (!kept.owner)
        return making;
    struct relaxed_mode mode = ask_relaxed(driver);
    if (memory->serves_nodes && !holds_graphs(driver, graph))
        making.owner = kept.owner;
    if (object && driver->cuUserObjectRetain(object, 1) == CUDA_SUCCESS) {
        making.object = object;
        making.is_off = driver->cuGraphReleaseUserObject(graph, object, 1) == CUDA_SUCCESS;
    }
    asked(driver, mode);
    return making;
}

static bool put_back(const struct driver *driver, const struct graph_making *making)
{
    struct relaxed_mode mode = ask_relaxed(driver);
    bool is_on =
        driver->cuGraphRetainUserObject(making->graph, making->object, 1, 0) == CUDA_SUCCESS;
    asked(driver, mode);
    return is_on;
}

void graph_making_end(struct pool *pool, const struct graph_making *making, CUgraphExec executable)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    /* Copies of the graph lack the object from now on. So the pool's reference for the graph is
     * never released. */
    if (making->is_off && !put_back(pool->driver, making))
        take_out(memory, &memory->known_graphs, making->graph);
    CUuserObject unneeded = making->object;
    if (executable) {
        unneeded = take_out(memory, &memory->executables, executable).object;
        if (making->object || making->owner == &memory->nobody)
            put_in(memory, &memory->executables,
                   (struct kept_object){executable, making->object, making->owner});
    }
    release(pool->driver, unneeded);
}

void graph_executable_launched(struct pool *pool, CUgraphExec executable)
{
    const struct kept_object key = {.of = executable};
    struct graph_memory *memory = graph_memory_of(pool);
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct kept_object *const *found = tfind(&key, &memory->executables, compare);
    struct graph_owner *owner = found ? (*found)->owner : NULL;
    if (owner)
        owner->own_launches++;
    if (!owner || memory->counts_all)
        atomic_fetch_add_explicit(&memory->launches, 1, memory_order_relaxed);
    lock_give(&memory->lock);
}

/* ---- ends ---- */

static void **tree_of(struct graph_memory *memory, const struct graph_ending *ending)
{
    return ending->is_executable ? &memory->executables : &memory->known_graphs;
}

static struct graph_ending begin_ending(struct pool *pool, const void *handle, bool is_executable)
{
    struct graph_memory *memory = graph_memory_of(pool);
    struct graph_ending ending = {.handle = handle, .is_executable = is_executable};
    if (!memory)
        return ending;
    struct kept_object kept = take_out(memory, tree_of(memory, &ending), handle);
    ending.object = kept.object;
    ending.owner = kept.owner;
    if (is_executable && !kept.owner)
        atomic_store_explicit(&memory->ended_unseen, monotonic_now(), memory_order_relaxed);
    return ending;
}

struct graph_ending graph_ending_begin(struct pool *pool, CUgraph graph)
{
    return begin_ending(pool, graph, false);
}

struct graph_ending graph_executable_ending_begin(struct pool *pool, CUgraphExec executable)
{
    return begin_ending(pool, executable, true);
}

void graph_ending_end(struct pool *pool, const struct graph_ending *ending, bool is_over)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (is_over)
        release(pool->driver, ending->object);
    else if (ending->object || ending->owner)
        put_in(memory, tree_of(memory, ending),
               (struct kept_object){ending->handle, ending->object, ending->owner});
}
