#include "stream_merge.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_event.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "mempool_list.h"
#include "stream_owner.h"
#include "stream_parts.h"

/* How long a thread waits for parts that other threads are merging, in nanoseconds. */
#define AWAIT_NANOSECONDS (UINT64_C(10) * 1000 * 1000)

/* ---- merging into segments ---- */

/* Nothing uses the block any more. The calling thread may have no context, or a dead one. So the
 * block is freed in its own context, which may be about to end. If that has ended, it is freed in
 * another context of the device, which is pinned meanwhile. */
static void free_plainly(struct pool *pool, const struct stream_block *whole)
{
    struct context *own = whole->context, *context = own, *pinned = NULL;
    bool pushed = false;
    if (context_generation(own) != whole->context_generation) {
        context = context_next(pool, NULL, own->device);
        while (context && !context_pin(context, context_generation(context)))
            context = context_next(pool, context, own->device);
        pinned = context;
    }
    bool current = context && context_push(pool, context, &pushed);
    stream_block_free_plainly(pool->driver, whole);
    if (current)
        context_pop(pool, pushed);
    if (pinned)
        context_unpin(pinned);
}

void stream_merge_release_segment(struct pool *pool, struct stream_block *whole,
                                  const CUstream *handle)
{
    struct stream *stream = shelf_of(whole)->stream;
    uint64_t started = monotonic_now();
    mempool_move_begin(streams_of(pool));
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    if (handle)
        pool->driver->cuMemFreeAsync(block_address(&whole->block), *handle);
    else
        free_plainly(pool, whole);
    leave_driver_relaxed(pool->driver, mode);
    uint64_t nanoseconds = monotonic_now() - started;
    lock_take(&stream->lock, LOCK_STREAM);
    bucket_count_return(whole->block.bucket->counters, EVICTION_MEMORY, nanoseconds);
    lock_give(&stream->lock);
    stream_block_recycle(pool, whole);
    mempool_move_end(streams_of(pool));
}

/* The part's segment is lost. The part is counted nowhere. */
static void forget(struct pool *pool, struct stream_block *part)
{
    block_table_remove(&streams_of(pool)->blocks, block_address(&part->block), &part->block);
    stream_block_recycle(pool, part);
}

void stream_merge_part(struct pool *pool, struct stream_block *part)
{
    struct shelf *home = shelf_of(part);
    struct stream_block *whole = NULL;
    enum merged merged = MERGED_PART;
    lock_take(&home->stream->lock, LOCK_STREAM);
    bool lost = !stream_part_shelf(part);
    if (!lost)
        merged = stream_parts_merge(home, part, 0, false, &whole);
    lock_give(&home->stream->lock);
    if (lost)
        forget(pool, part);
    else if (merged == MERGED_LEAVES)
        stream_merge_release_segment(pool, whole, NULL);
}

/* ---- waiting ---- */

void stream_merge_after(struct pool *pool, struct stream_block *part, struct fence_event *event)
{
    struct shelf *home = shelf_of(part);
    lock_take(&home->stream->lock, LOCK_STREAM);
    bool lost = !stream_part_shelf(part);
    if (!lost) {
        part->event = event;
        stream_parts_begin_to_wait(home, part);
    }
    lock_give(&home->stream->lock);
    if (lost) {
        if (event)
            fence_event_destroy_pinned(pool, event);
        free(event);
        forget(pool, part);
    }
}

/* Whether the part waits for work of this context. */
static bool waits_for(const struct stream_block *part, const struct context *context)
{
    const struct context *other = part->event ? part->event->context : part->context;
    uint64_t generation = part->event ? part->event->generation : part->context_generation;
    return other == context && generation == context_generation(context);
}

/* The context of the event is pinned, or the calling thread ends it. */
static void drop_event(struct pool *pool, struct stream_block *part)
{
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    pool->driver->cuEventDestroy_v2(part->event->event);
    leave_driver_relaxed(pool->driver, mode);
    free(part->event);
    part->event = NULL;
}

/* Whether the part's event is over. A context that has ended has taken its work with it, and the
 * driver's event. While it is not known whether the context ends, the part counts as not over. Only
 * the thread that ends the context queries its events. */
static bool event_is_over(struct pool *pool, struct stream_block *part,
                          const struct context *ending)
{
    struct context *context = part->event->context;
    uint64_t generation = part->event->generation;
    bool pinned = context_pin(context, generation);
    bool lives = context_generation(context) == generation;
    bool may_ask = lives && (pinned || context == ending);
    bool over = !lives;
    if (may_ask)
        over = event_query_relaxed(pool, part->event->event) == CUDA_SUCCESS;
    if (may_ask && over)
        drop_event(pool, part);
    if (!lives) {
        free(part->event);
        part->event = NULL;
    }
    if (pinned)
        context_unpin(context);
    return over;
}

/* ---- at the end of a context ---- */

static bool add(struct merge_parts *parts, struct stream_block *part)
{
    if (parts->count == parts->room) {
        size_t room = parts->room ? 2 * parts->room : 64;
        struct stream_block **list = realloc(parts->list, room * sizeof *list);
        if (!list)
            return false;
        parts->list = list;
        parts->room = room;
    }
    parts->list[parts->count++] = part;
    return true;
}

/* Takes the parts that wait on the stream for work of this context, as far as there is memory for
 * the list. */
static void take_waiting_parts(struct stream *stream, const struct context *context,
                               struct merge_parts *parts)
{
    lock_take(&stream->lock, LOCK_STREAM);
    struct block *b = stream->context == context ? stream->parts.waiting.first : NULL;
    for (struct block *next; b; b = next) {
        struct stream_block *part = stream_block_of(b);
        next = b->links[LINK_HEAP].next;
        if (!waits_for(part, context) || !add(parts, part))
            continue;
        stream_parts_end_to_wait(stream, part);
        b->refused = true;
        stream_block_is_detached(stream);
    }
    lock_give(&stream->lock);
}

/* Takes all parts of this segment out of the list. The caller then merges the segment, and their
 * records end. */
static void drop_parts_of(struct merge_parts *parts, size_t from, const struct shelf *home,
                          const struct block *head)
{
    lock_must_be_held(&home->stream->lock);
    for (size_t i = from; i < parts->count; i++)
        if (parts->list[i] && stream_part_shelf(parts->list[i]) == home &&
            stream_parts_head(parts->list[i]) == head) {
            stream_block_has_a_place(home->stream);
            parts->list[i] = NULL;
        }
}

static void put_back(struct pool *pool, struct stream_block *part)
{
    struct stream *stream = shelf_of(part)->stream;
    stream_merge_after(pool, part, part->event);
    stream_block_has_a_place(stream);
}

static struct block *merge_segment(struct pool *pool, struct merge_parts *parts, size_t i,
                                   struct block *chain)
{
    struct stream_block *part = parts->list[i], *whole = NULL;
    struct shelf *home = stream_part_shelf(part);
    if (home) {
        lock_take(&home->stream->lock, LOCK_STREAM);
        if (stream_part_shelf(part) == home && stream_parts_may_merge_all(part)) {
            drop_parts_of(parts, i, home, stream_parts_head(part));
            whole = stream_parts_merge_all(home, part);
            stream_block_is_detached(home->stream);
        }
        lock_give(&home->stream->lock);
    }
    if (!whole) {
        put_back(pool, part);
        return chain;
    }
    returning_begin(home->stream->device, whole->block.bytes);
    whole->block.links[LINK_HEAP].next = chain;
    return &whole->block;
}

struct merge_parts stream_merge_take_waiting(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    struct merge_parts parts = {0, 0, NULL};
    for (unsigned i = 0; i < stream_count(streams); i++)
        take_waiting_parts(stream_at(streams, i), context, &parts);
    return parts;
}

void stream_merge_put_back(struct pool *pool, struct merge_parts *parts)
{
    for (size_t i = 0; i < parts->count; i++)
        put_back(pool, parts->list[i]);
    free(parts->list);
}

struct block *stream_merge_collect_segments(struct pool *pool, struct merge_parts *parts)
{
    struct block *chain = NULL;
    for (size_t i = 0; i < parts->count; i++)
        if (parts->list[i]->event) {
            drop_event(pool, parts->list[i]);
            counter_set(&parts->list[i]->block.epoch,
                        epoch_current(&parts->list[i]->context->epochs));
        }
    for (size_t i = 0; i < parts->count; i++)
        if (parts->list[i])
            chain = merge_segment(pool, parts, i, chain);
    free(parts->list);
    return chain;
}

/* ---- all parts ---- */

static bool is_of(const struct stream *stream, const struct device *device)
{
    return !device || stream->device == device;
}

bool stream_merge_has_waiting(const struct streams *streams, const struct device *device)
{
    for (unsigned i = 0; streams && i < stream_count(streams); i++)
        if (stream_has_waiting(stream_at(streams, i)) && is_of(stream_at(streams, i), device))
            return true;
    return false;
}

/* Whether the thread may take parts off the stream's list. *pinned: the stream's context, whose end
 * then waits, and so misses no part that is in no list meanwhile. *pinned is NULL where the caller
 * ends the context, or it has ended. False: another thread ends it, and takes its parts. */
static bool may_visit(const struct stream *stream, const struct context *ending,
                      struct context **pinned)
{
    struct context *context = stream->context;
    uint64_t generation = stream->generation;
    lock_must_be_held(&stream->lock);
    *pinned = NULL;
    if (context == ending || context_generation(context) != generation)
        return true;
    *pinned = context_pin(context, generation) ? context : NULL;
    return *pinned;
}

/* A look asks about so many events, and the next look about others. A context that ends asks about
 * all. */
#define EVENTS_PER_LOOK 16u

/* Takes the parts without an event that are over, and some that have one. The stamps of the others
 * ascend, but for a few that have come back. */
static struct block *take_for_a_look(struct stream *stream, bool all)
{
    lock_must_be_held(&stream->lock);
    struct block *chain = NULL;
    bool behind = false;
    unsigned events = 0;
    for (struct block *next, *b = stream->parts.waiting.first; b; b = next) {
        struct stream_block *part = stream_block_of(b);
        next = b->links[LINK_HEAP].next;
        bool lives = context_generation(part->context) == part->context_generation;
        behind |= !part->event && lives &&
                  counter_get(&b->epoch) > epoch_own_clean(&part->context->epochs);
        if (part->event ? !all && events == EVENTS_PER_LOOK : behind)
            continue;
        events += part->event != NULL;
        stream_parts_end_to_wait(stream, part);
        b->links[LINK_HEAP].next = chain;
        chain = b;
    }
    return chain;
}

static void merge_of_stream(struct pool *pool, struct stream *stream, const struct context *ending)
{
    struct context *pinned;
    lock_take(&stream->lock, LOCK_STREAM);
    struct block *chain =
        may_visit(stream, ending, &pinned) ? take_for_a_look(stream, ending != NULL) : NULL;
    lock_give(&stream->lock);
    for (struct block *next; chain; chain = next) {
        struct stream_block *part = stream_block_of(chain);
        next = chain->links[LINK_HEAP].next;
        if (!part->event || event_is_over(pool, part, ending))
            stream_merge_part(pool, part);
        else
            stream_merge_after(pool, part, part->event);
    }
    if (pinned)
        context_unpin(pinned);
}

void stream_merge_all(struct pool *pool, const struct device *device, const struct context *ending)
{
    struct streams *streams = streams_of(pool);
    if (!stream_merge_has_waiting(streams, device))
        return;
    atomic_fetch_add_explicit(&streams->merging, 1, memory_order_relaxed);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if (stream_has_waiting(stream) && is_of(stream, device))
            merge_of_stream(pool, stream, ending);
    }
    atomic_fetch_sub_explicit(&streams->merging, 1, memory_order_release);
}

bool stream_merge_own(struct pool *pool, struct stream *stream)
{
    struct streams *streams = streams_of(pool);
    if (!stream_has_waiting(stream))
        return false;
    lock_take(&stream->lock, LOCK_STREAM);
    struct context *context = stream->context;
    const struct block *first = stream->parts.waiting.first;
    uint64_t stamp = first && !stream_block_of((struct block *)(uintptr_t)first)->event
                         ? counter_get(&first->epoch)
                         : 0;
    lock_give(&stream->lock);
    if (stamp)
        epoch_ask_in_order(pool, context, stamp);
    atomic_fetch_add_explicit(&streams->merging, 1, memory_order_relaxed);
    merge_of_stream(pool, stream, NULL);
    atomic_fetch_sub_explicit(&streams->merging, 1, memory_order_release);
    return true;
}

void stream_merge_await_others(const struct streams *streams)
{
    uint64_t started = monotonic_now();
    while (atomic_load_explicit(&streams->merging, memory_order_acquire) != 0 &&
           monotonic_now() - started < AWAIT_NANOSECONDS)
        patient_nap(started);
}
