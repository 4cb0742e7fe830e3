#include "stream_search.h"

#include "core/contexts/pool_state.h"
#include "mempool.h"
#include "stream_events.h"
#include "stream_order.h"
#include "stream_reserve.h"

/* How many streams a search looks at and asks about. Beyond that the driver is the faster answer.
 */
#define SEARCH_MAX  64u
#define QUERIES_MAX 8u

bool search_asks(const struct search *search)
{
    return search->pool->settings.stream_ordered.reuse.opportunistic &&
           atomic_load_explicit(&search->mempool->opportunistic, memory_order_relaxed);
}

bool search_may_wait(const struct search *search)
{
    return !search->host_only &&
           search->pool->settings.stream_ordered.reuse.internal_dependencies &&
           atomic_load_explicit(&search->mempool->internal, memory_order_relaxed);
}

bool search_begin(struct search *search, struct pool *pool, struct stream_ref ref, CUstream handle,
                  const struct shelf *shelf, struct bucket *bucket)
{
    struct stream *stream = ref.stream;
    search->pool = pool;
    search->ref = ref;
    search->handle = handle;
    search->mempool = shelf->mempool;
    search->bytes = bucket->bytes;
    search->holders = bucket->bytes ? shelf_bucket_of(bucket)->holders : NULL;
    search->whole = NULL;
    search->shelf = NULL;
    search->bucket = NULL;
    search->cut = false;
    search->found = NULL;
    search->everywhere = false;
    search->count = 0;
    lock_take(&stream->lock, LOCK_STREAM);
    bool is = stream_is(ref);
    search->context = stream->context;
    search->generation = stream->generation;
    /* If this stream waited for another one, the streams that it orders would not wait as well. And
     * a wait in it might hold them up, which an allocation does not. */
    search->host_only = !stream->own_order;
    search->from = stream->search_from;
    lock_give(&stream->lock);
    return is;
}

void search_for_whole(struct search *search, struct bucket *whole)
{
    search->whole = whole;
    search->bytes = whole->bytes;
    search->holders = shelf_bucket_of(whole)->holders;
}

/* ---- one stream ---- */

/* Returns the stream's bucket of the searched size, if the stream is in the same context. */
static struct bucket *bucket_of(const struct search *search, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    const struct shelf *shelf = shelf_find(stream, search->mempool);
    struct bucket *bucket = shelf ? bucket_set_find(&shelf->buckets, search->bytes) : NULL;
    if (bucket)
        shelf_unlist_if_empty(stream, bucket);
    bool same = stream->context == search->context && stream->generation == search->generation;
    return same ? bucket : NULL;
}

/* Takes the block off its shelf and out of the stream's counters. */
static struct stream_block *take_for_another(struct stream *stream, struct block *found)
{
    lock_must_be_held(&stream->lock);
    struct stream_block *block = stream_block_of(found);
    struct shelf_bucket *of = shelf_bucket_of(found->bucket);
    of->taken_by_others += stream->id != 0;
    of->failed_looks = 0;
    shelf_detach(stream, block);
    shelf_unlist_if_empty(stream, found->bucket);
    return block;
}

/* Returns a block of this stream that can be taken at once, or NULL. *pending: whether it has a
 * pending block, which may be clean by now. */
static struct stream_block *look_at(const struct search *search, struct stream *stream,
                                    enum hit *hit, bool *pending)
{
    struct stream_block *block = NULL;
    *pending = false;
    if (stream == search->ref.stream)
        return NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    stream_done_apply(stream);
    struct bucket *bucket = bucket_of(search, stream);
    if (bucket && bucket->clean.last) {
        *hit = HIT_CLEAN;
        block = take_for_another(stream, bucket->clean.last);
    } else if (bucket && bucket->pending.first) {
        *pending = true;
        shelf_bucket_of(bucket)->failed_looks++;
    }
    if (block)
        stream_block_is_detached(stream);
    lock_give(&stream->lock);
    return block;
}

static struct stream_block *ask_about(struct search *search, struct stream *stream, enum hit *hit)
{
    lock_take(&stream->lock, LOCK_STREAM);
    const struct bucket *bucket = bucket_of(search, stream);
    uint64_t stamp =
        bucket && bucket->pending.first ? counter_get(&bucket->pending.first->epoch) : 0;
    lock_give(&stream->lock);
    if (!stamp || !order_ask(search->pool, stream, stamp))
        return NULL;
    bool pending;
    struct stream_block *block = look_at(search, stream, hit, &pending);
    *hit = HIT_QUERIED;
    if (block && !stream_id(streams_of(search->pool), stream))
        streams_served_another(streams_of(search->pool));
    return block;
}

/* On a stream with early launches, its own blocks too must be clean before they are reused. */
struct stream_block *search_ask_about_own(struct search *search, struct bucket *bucket)
{
    struct stream *stream = search->ref.stream;
    struct stream_block *block = NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    uint64_t stamp = bucket->pending.first ? counter_get(&bucket->pending.first->epoch) : 0;
    lock_give(&stream->lock);
    if (!stamp || !order_ask(search->pool, stream, stamp))
        return NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    if (stream_is(search->ref))
        block = search_take_own(stream, bucket);
    if (block) {
        shelf_count_out(shelf_of(block), bucket, block);
        block_set_state(&block->block, BLOCK_LEAVING);
        stream_block_is_detached(stream);
    }
    lock_give(&stream->lock);
    return block;
}

/* ---- all streams that have such blocks ---- */

static struct stream_block *ask_candidates(struct search *search, enum hit *hit)
{
    struct stream_block *block = NULL;
    unsigned most = search->count < QUERIES_MAX ? search->count : QUERIES_MAX;
    for (unsigned i = 0; i < most && !block; i++)
        block = ask_about(search, stream_at(streams_of(search->pool), search->candidates[i]), hit);
    return block;
}

/* Pending blocks of these streams would have served if a fence had shown them to be clean. The next
 * frees on these streams record one. */
static void request_fences(const struct search *search)
{
    for (unsigned i = 0; i < search->count; i++)
        order_request_fences(stream_at(streams_of(search->pool), search->candidates[i]));
}

static void begin_next_behind(const struct search *search, unsigned others)
{
    struct stream *stream = search->ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    stream->search_from = others % STREAMS_MAX;
    lock_give(&stream->lock);
}

/* Looks at each stream that has such blocks. Starts at the stream's index plus 1, or where the
 * stream's last search stopped because it had looked at too many. */
static struct stream_block *look_at_holders(struct search *search, enum hit *hit)
{
    const struct streams *streams = streams_of(search->pool);
    unsigned most = search->everywhere ? STREAMS_MAX : SEARCH_MAX;
    unsigned start = (search->ref.stream->index + 1 + search->from) % STREAMS_MAX;
    struct stream_block *block = NULL;
    unsigned looks = 0, i = stream_holders_behind(search->holders, start, 0);
    for (; i < STREAMS_MAX && !block && looks < most; looks++) {
        unsigned index = (start + i) % STREAMS_MAX;
        bool pending;
        block = look_at(search, stream_at(streams, index), hit, &pending);
        if (pending)
            search->candidates[search->count++] = (uint16_t)index;
        i = stream_holders_behind(search->holders, start, i + 1);
    }
    if (!block && i < STREAMS_MAX)
        begin_next_behind(search, search->from + i);
    return block;
}

struct stream_block *search_others(struct search *search, enum hit *hit)
{
    search->count = 0;
    struct stream_block *block = look_at_holders(search, hit);
    if (!block && search_asks(search))
        block = ask_candidates(search, hit);
    if (!block && (search_asks(search) || search_may_wait(search)))
        request_fences(search);
    return block;
}

bool search_harder(struct search *search)
{
    if (!search->holders)
        return false;
    search->everywhere = true;
    search->found = search_others(search, &search->found_by);
    return search->found;
}

bool search_replaces_taken(const struct search *search, struct bucket *bucket)
{
    struct stream *stream = search->ref.stream;
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    lock_take(&stream->lock, LOCK_STREAM);
    bool taken = of->taken_by_others != 0;
    lock_give(&stream->lock);
    if (!taken ||
        !stream_reserve_has_room(search->pool, search->context, search->mempool, search->bytes))
        return false;
    lock_take(&stream->lock, LOCK_STREAM);
    if (of->taken_by_others)
        of->taken_by_others--;
    lock_give(&stream->lock);
    return true;
}
