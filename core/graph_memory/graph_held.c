#include "graph_held.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/driver/calls.h"
#include "core/stream_memory/stream_free.h"

void graph_held_add(struct graph_owner *owner, struct graph_held *held)
{
    lock_must_be_held(&owner->memory->lock);
    held->next = owner->held;
    owner->held = held;
    atomic_fetch_add_explicit(&owner->memory->held, 1, memory_order_relaxed);
}

/* Appends to the list, so that memory which cannot be returned yet does not delay the rest. */
static void put_among_released(struct graph_memory *memory, struct graph_held *held)
{
    lock_must_be_held(&memory->lock);
    struct graph_held *last = atomic_load_explicit(&memory->released, memory_order_relaxed);
    held->next = NULL;
    while (last && last->next)
        last = last->next;
    if (last)
        last->next = held;
    else
        atomic_store_explicit(&memory->released, held, memory_order_relaxed);
}

void graph_held_release(struct graph_memory *memory, struct graph_owner *owner)
{
    for (struct graph_held *next, *held = owner->held; held; held = next) {
        next = held->next;
        put_among_released(memory, held);
    }
    owner->held = NULL;
}

/* Takes the first entry of the list for the caller. NULL: the list is empty. */
static struct graph_held *take(struct graph_memory *memory)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_held *held = atomic_load_explicit(&memory->released, memory_order_relaxed);
    if (held)
        atomic_store_explicit(&memory->released, held->next, memory_order_relaxed);
    lock_give(&memory->lock);
    return held;
}

static void put_back(struct graph_memory *memory, struct graph_held *held)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    put_among_released(memory, held);
    lock_give(&memory->lock);
}

/* Whether memory may be returned now. Captures forbid the driver calls that this takes, and so does
 * the driver inside its own calls and in host functions. A later call then returns the memory. */
static bool may_give_back(const struct pool *pool)
{
    return !program_captures(&pool->captures) && !is_inside_driver() && !is_in_host_function(pool);
}

void graph_held_give_back(struct pool *pool)
{
    bool gone = true;
    struct graph_held *held;
    struct graph_memory *memory = graph_memory_of(pool);
    while (gone && atomic_load_explicit(&memory->released, memory_order_relaxed) &&
           may_give_back(pool) && (held = take(memory))) {
        gone = stream_free_late(pool, held->address, held->generation);
        if (!gone) {
            put_back(memory, held);
            continue;
        }
        free(held);
        atomic_fetch_sub_explicit(&memory->held, 1, memory_order_relaxed);
    }
}
