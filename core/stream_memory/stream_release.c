#include "stream_release.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "mempool_list.h"
#include "stream_events.h"
#include "stream_owner.h"
#include "stream_shelf.h"

/* How long a thread that is out of memory waits for memory that was released after an event, at
 * most. */
#define BEHIND_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* How long it waits for an event that another thread is asking the driver about, at most. */
#define ASKED_NANOSECONDS (UINT64_C(100) * 1000 * 1000)

/* ---- releasing; the context is pinned or ending ---- */

/* Tries cuMemFree after cuMemFreeAsync, since cuMemFree of stream-ordered memory does not wait.
 * ordered: the stream waits for an event. cuMemFree would not, so it is not tried. */
static bool give_to_driver(const struct driver *driver, struct block *block, CUstream stream,
                           bool ordered)
{
    return driver->cuMemFreeAsync(block_address(block), stream) == CUDA_SUCCESS ||
           (!ordered && stream_block_free_plainly(driver, stream_block_of(block)) == CUDA_SUCCESS);
}

/* Returns the context's stream for late returns, if nothing on it is under way, since memory must
 * not wait for other memory's work. Otherwise makes a stream for this one use, and sets *once. */
static CUstream free_stream(struct pool *pool, struct context *context, bool *once)
{
    const struct driver *driver = pool->driver;
    CUstream stream = driver->cuStreamQuery ? late_return_stream(pool, context) : NULL;
    *once = !stream || driver->cuStreamQuery(stream) != CUDA_SUCCESS;
    if (*once && driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    return stream;
}

/* Returns the stream on which blocks are released. return_wait synchronises return_stream, so that
 * stream must not wait for an event of running work. A release after such an event uses another
 * stream. *once: the caller destroys the stream. NULL: there is no stream. */
static CUstream stream_behind(struct pool *pool, struct context *context, const CUevent *after,
                              bool *once)
{
    const struct driver *driver = pool->driver;
    *once = false;
    if (!after)
        return return_stream(pool, context);
    CUstream stream = free_stream(pool, context, once);
    if (!stream || driver->cuStreamWaitEvent(stream, *after, 0) == CUDA_SUCCESS)
        return stream;
    if (*once)
        driver->cuStreamDestroy_v2(stream);
    *once = false;
    return NULL;
}

static void hand_over(struct pool *pool, struct context *context, struct block *chain,
                      const CUevent *after, enum release_place place)
{
    const struct driver *driver = pool->driver;
    bool pushed;
    enter_driver();
    mempool_move_begin(streams_of(pool));
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    bool current = context_push(pool, context, &pushed);
    bool once = false;
    uint64_t bytes = 0;
    CUstream stream = current ? stream_behind(pool, context, after, &once) : NULL;
    for (struct block *b = chain; b; b = b->links[LINK_HEAP].next) {
        b->refused = !stream || (!give_to_driver(driver, b, stream, after) &&
                                 driver_has_block(driver, block_address(b)));
        bytes += b->refused ? 0 : b->bytes;
    }
    /* RELEASE_IN_ALLOCATION: the caller does not need the memory, so it does not wait until the
     * driver has it. Under a group limit it does wait. Otherwise other processes of the group might
     * take as many bytes before the driver has these. */
    bool counts = device_limit(context->device, BOARD_LIMIT_OF_GROUP) != UINT64_MAX;
    if (stream && !after && (place != RELEASE_IN_ALLOCATION || counts) &&
        !return_wait(pool, context, stream, place))
        epoch_note_freed_in_order(context, bytes);
    if (stream && once)
        driver->cuStreamDestroy_v2(stream);
    if (current)
        context_pop(pool, pushed);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
}

bool stream_release_one_behind(struct pool *pool, const struct fence_event *behind,
                               CUdeviceptr address)
{
    struct context *context = behind->context;
    bool pushed, once = false;
    if (!context_pin(context, behind->generation))
        return false;
    bool current = context_push(pool, context, &pushed);
    CUstream stream = current ? stream_behind(pool, context, &behind->event, &once) : NULL;
    bool given = stream && pool->driver->cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
    if (stream && once)
        pool->driver->cuStreamDestroy_v2(stream);
    if (current)
        context_pop(pool, pushed);
    context_unpin(context);
    return given;
}

/* Counts the block as released, or puts it back on its shelf if the driver refused it. Returns the
 * bytes released. */
static uint64_t finish_release(struct pool *pool, struct stream_block *block, enum eviction reason,
                               uint64_t nanoseconds)
{
    struct shelf *shelf = atomic_load_explicit(&block->shelf, memory_order_relaxed);
    struct stream *stream = shelf->stream;
    struct block *b = &block->block;
    uint64_t bytes = b->bytes, released = b->refused ? 0 : bytes;
    bool back = b->refused && block_table_insert(&streams_of(pool)->blocks, block_address(b), b);
    lock_take(&stream->lock, LOCK_STREAM);
    if (back)
        shelf_attach(pool, shelf, block);
    else if (released)
        bucket_count_return(b->bucket->counters, reason, nanoseconds);
    lock_give(&stream->lock);
    if (released)
        stream_block_recycle(pool, block);
    returning_end(stream->device, bytes);
    stream_block_has_a_place(stream);
    return released;
}

/* Calls finish_release for each block of a chain that was passed to the driver since started. Ends
 * the mempool move that the caller, or hand_over, has begun. Returns the bytes released. */
static uint64_t finish_chain(struct pool *pool, struct block *chain, enum eviction reason,
                             uint64_t started)
{
    uint64_t released = 0, count = block_chain_count(chain);
    uint64_t each = count ? (monotonic_now() - started) / count : 0;
    for (struct block *next, *b = chain; b; b = next) {
        next = b->links[LINK_HEAP].next;
        released += finish_release(pool, stream_block_of(b), reason, each);
    }
    mempool_move_end(streams_of(pool));
    return released;
}

/* forget: a block that the driver refuses does not go back on its shelf. */
static uint64_t release_chain(struct pool *pool, struct context *context, struct block *chain,
                              enum eviction reason, const CUevent *after, enum release_place place,
                              bool forget)
{
    if (!chain)
        return 0;
    uint64_t started = monotonic_now();
    hand_over(pool, context, chain, after, place);
    for (struct block *b = chain; b && forget; b = b->links[LINK_HEAP].next)
        b->refused = false;
    return finish_chain(pool, chain, reason, started);
}

uint64_t stream_give_back(const struct choice *choice, uint64_t wanted, enum eviction reason,
                          const CUevent *after, enum release_place place)
{
    struct block *chain = choice_collect(choice, wanted);
    return release_chain(choice->pool, choice->context, chain, reason, after, place, false);
}

void stream_release_chain(struct pool *pool, struct context *context, struct block *chain,
                          enum eviction reason, const CUevent *after)
{
    /* No stamp tells when a refused block's work has completed. */
    release_chain(pool, context, chain, reason, after, RELEASE_IN_ALLOCATION, true);
}

uint64_t stream_release_in(struct pool *pool, struct context *context, struct choice choice,
                           uint64_t wanted, enum eviction reason, enum release_place place)
{
    choice.pool = pool;
    choice.context = context;
    choice.generation = context_generation(context);
    if (!pool->driver->cuMemFreeAsync || !context_pin(context, choice.generation))
        return 0;
    uint64_t released = stream_give_back(&choice, wanted, reason, NULL, place);
    context_unpin(context);
    return released;
}

uint64_t stream_release_chosen(struct pool *pool, const struct device *device, struct choice choice,
                               uint64_t bytes, enum eviction reason, enum release_place place)
{
    uint64_t released = 0;
    struct context *c = streams_of(pool) ? context_next(pool, NULL, changeable(device)) : NULL;
    for (; c && released < bytes; c = context_next(pool, c, changeable(device)))
        released += stream_release_in(pool, c, choice, bytes - released, reason, place);
    return released;
}

uint64_t stream_release_clean(struct pool *pool, const struct device *device, uint64_t bytes,
                              enum eviction reason, enum release_place place)
{
    return stream_release_chosen(pool, device, choice_any(pool), bytes, reason, place);
}

/* ---- in a stream's own order ---- */

/* The chain has the newest block first. Blocks are freed oldest first, as the program freed
 * them. */
static struct block *reverse(struct block *chain)
{
    struct block *turned = NULL;
    for (struct block *next; chain; chain = next) {
        next = chain->links[LINK_HEAP].next;
        chain->links[LINK_HEAP].next = turned;
        turned = chain;
    }
    return turned;
}

static uint64_t hand_over_in_order(struct pool *pool, CUstream handle, struct block *chain,
                                   enum eviction reason)
{
    if (!chain)
        return 0;
    uint64_t started = monotonic_now();
    chain = reverse(chain);
    enter_driver();
    mempool_move_begin(streams_of(pool));
    for (struct block *b = chain; b; b = b->links[LINK_HEAP].next)
        b->refused = pool->driver->cuMemFreeAsync(block_address(b), handle) != CUDA_SUCCESS &&
                     driver_has_block(pool->driver, block_address(b));
    leave_driver();
    return finish_chain(pool, chain, reason, started);
}

static uint64_t release_in_order(struct pool *pool, struct stream_ref ref, CUstream handle,
                                 uint64_t bytes, enum eviction reason, bool at_the_end)
{
    struct block *chain = NULL;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    if (stream_is(ref) && (at_the_end || !ref.stream->ordered_by_others))
        chain = choice_take_pending(pool, ref.stream, UINT64_MAX, bytes);
    lock_give(&ref.stream->lock);
    return hand_over_in_order(pool, handle, chain, reason);
}

uint64_t stream_release_in_order(struct pool *pool, struct stream_ref ref, CUstream handle,
                                 uint64_t bytes, enum eviction reason)
{
    return release_in_order(pool, ref, handle, bytes, reason, false);
}

void stream_release_at_the_end(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    release_in_order(pool, ref, handle, UINT64_MAX, EVICTION_MEMORY, true);
}

/* ---- after an event that was recorded in a free ---- */

/* Takes the first event that stands for the stream's oldest pending block. */
static struct stream_event *take_first_event(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    const struct block *first = stream->pending.first;
    return first ? stream_events_take(stream, counter_get(&first->epoch)) : NULL;
}

/* Releases blocks of the stream after its first event. False where no block can be released
 * there. *missed, if not NULL: set where another thread has the event, to ask about it. */
static bool release_behind_one(struct pool *pool, struct context *context, struct stream *stream,
                               uint64_t bytes, enum eviction reason, uint64_t *released,
                               bool *missed)
{
    struct block *chain = NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    stream_done_apply(stream);
    struct stream_event *event = stream->context == context ? take_first_event(stream) : NULL;
    if (event)
        chain = choice_take_pending(pool, stream, event->stamp, bytes);
    if (missed && !event && stream->pending.first && stream->events.taken)
        *missed = true;
    lock_give(&stream->lock);
    if (!event)
        return false;
    uint64_t before = *released;
    *released += release_chain(pool, context, chain, reason, &event->recorded.event,
                               RELEASE_IN_ALLOCATION, false);
    lock_take(&stream->lock, LOCK_STREAM);
    stream_events_put(stream, event);
    lock_give(&stream->lock);
    return *released > before;
}

/* Lock not needed: the value only chooses streams. */
static uint64_t pending_bytes(const struct stream *stream)
{
    return rest_of(counter_get(&stream->free_bytes), counter_get(&stream->clean_bytes));
}

uint64_t stream_release_behind_events(struct pool *pool, struct context *context, uint64_t bytes,
                                      uint64_t at_least, bool *missed)
{
    struct streams *streams = streams_of(pool);
    uint64_t released = 0;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        while (released < bytes && pending_bytes(stream) >= at_least &&
               release_behind_one(pool, context, stream, bytes - released, EVICTION_CAP, &released,
                                  missed))
            continue;
    }
    return released;
}

uint64_t stream_release_behind_every_event(struct pool *pool, struct context *context)
{
    uint64_t started = monotonic_now();
    for (;;) {
        bool missed = false;
        uint64_t released = stream_release_behind_events(pool, context, UINT64_MAX, 0, &missed);
        if (released || !missed || monotonic_now() - started > ASKED_NANOSECONDS)
            return released;
        patient_nap(started);
    }
}

uint64_t stream_release_behind(struct pool *pool, struct stream_ref ref, struct context *context,
                               uint64_t *stamp)
{
    struct stream *stream = ref.stream;
    uint64_t released = 0;
    lock_take(&stream->lock, LOCK_STREAM);
    bool may = stream_is(ref) && stream->ordered_by_others;
    /* stream_events_newest would leave out an event that another thread has taken. */
    *stamp = may && stream_events_may_tell(stream) ? stream->covered : 0;
    lock_give(&stream->lock);
    if (!*stamp || !context_pin(context, context_generation(context)))
        return 0;
    while (release_behind_one(pool, context, stream, UINT64_MAX, EVICTION_MEMORY, &released, NULL))
        continue;
    context_unpin(context);
    return released;
}

/* Whether a wait for this stamp or a later one has timed out, and none of the stream's work is
 * known to have completed since. */
static bool was_waited_for(struct stream *stream, uint64_t stamp)
{
    lock_take(&stream->lock, LOCK_STREAM);
    bool was = stamp <= stream->waited_for && stream_done(stream) == stream->waited_at;
    lock_give(&stream->lock);
    return was;
}

static void note_wait(struct stream *stream, uint64_t stamp)
{
    lock_take(&stream->lock, LOCK_STREAM);
    stream->waited_for = stamp;
    stream->waited_at = stream_done(stream);
    lock_give(&stream->lock);
}

bool stream_release_wait_behind(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    uint64_t started = monotonic_now();
    uint64_t longest = was_waited_for(stream, stamp) ? 0 : BEHIND_NANOSECONDS;
    CUresult result;
    while ((result = stream_events_ask(pool, stream, stamp)) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < longest)
        patient_nap(started);
    thread_state.waited_ns += monotonic_now() - started;
    if (result == CUDA_ERROR_NOT_READY)
        note_wait(stream, stamp);
    /* Another thread may have taken the event, to ask about it or to release memory behind it. */
    return result == CUDA_SUCCESS || stream_done(stream) >= stamp;
}
