#include "stream_heap.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "core/device_memory/heap.h"
#include "core/device_memory/release.h"
#include "core/driver/calls.h"
#include "core/reclaim/reclaim.h"
#include "core/reclaim/room.h"
#include "mempool.h"
#include "stream_find.h"
#include "stream_order.h"
#include "stream_release.h"
#include "stream_shelf.h"
#include "use.h"

/* After a stream has looked in vain for a block with an event, so many frees on the stream that
 * could have had one record one. */
#define WANTED_FREES 32u

/* After so many looks in vain at what other streams' frees left pending on a stream, the driver has
 * what they free there, but for one in so many. */
#define VAIN_LOOKS      32u
#define FREES_PER_TRIAL 32u

/* A miss that costs another block its place is vain where the stream has had fewer hits since the
 * last one than FEW_HITS, or than misses. After so many of them in a row the next frees on it that
 * would put something into it are the driver's: so many, then four and sixteen times as many. */
#define VAIN_MISSES      4u
#define FEW_HITS         2u
#define FREES_FOR_DRIVER 64u

/* Streams that are looked through and that are asked about, and blocks of a bucket that are looked
 * at, before the driver is the faster answer. */
#define SEARCH_MAX  64u
#define QUERIES_MAX 8u
#define LOOKS_MAX   8u

/* The stamp of a live block's last free was another stream's, and may not be over. */
#define STAMP_OF_ANOTHER UINT64_MAX

void stream_heap_make_clean(struct stream *stream, struct stream_block *block)
{
    struct bucket *bucket = block->block.bucket;
    block_list_remove(&bucket->pending, &block->block, LINK_BUCKET);
    block_list_remove(&stream->pending, &block->block, LINK_HEAP);
    block_set_state(&block->block, BLOCK_CLEAN);
    block->event = NULL;
    block_list_append(&bucket->clean, &block->block, LINK_BUCKET);
    shelf_count_clean(stream, bucket, block->block.bytes);
    if (shelf_is_covered(stream, &block->block))
        stream->covered_bytes -= block->block.bytes;
    shelf_set_quiet(stream);
}

void stream_heap_detach(struct stream *stream, struct stream_block *block)
{
    shelf_take(stream, block->block.bucket, block);
    shelf_count_out(shelf_of(block), block->block.bucket, block);
    block_set_state(&block->block, BLOCK_LEAVING);
}

void stream_heap_attach(struct shelf *shelf, struct stream_block *block)
{
    shelf_count_in(shelf, block->block.bucket, block);
    shelf_put_back(shelf->stream, block);
}

/* ---- blocks of other streams; no lock is held ---- */

/* A request on its way through the other streams. */
struct search {
    struct pool *pool;
    struct stream_ref ref;
    CUstream handle;
    struct mempool *mempool;
    struct context *context;
    uint64_t generation;
    uint64_t bytes; /* of the bucket */
    bool host_only; /* only what is over will do */
    bool everywhere;
    unsigned from; /* where among many streams it begins, if not everywhere */
    struct order_clock known;
    struct stream_block *found; /* where no new memory could be had */
    enum hit found_by;
    uint64_t candidates[STREAMS_MAX / 64]; /* streams with something pending, a bit for each */
};

static bool follows(const struct search *search)
{
    return !search->host_only &&
           search->pool->settings.stream_ordered.reuse.follow_event_dependencies &&
           atomic_load_explicit(&search->mempool->follow, memory_order_relaxed);
}

static bool asks(const struct search *search)
{
    return search->pool->settings.stream_ordered.reuse.opportunistic &&
           atomic_load_explicit(&search->mempool->opportunistic, memory_order_relaxed);
}

static bool may_wait(const struct search *search)
{
    return !search->host_only &&
           search->pool->settings.stream_ordered.reuse.internal_dependencies &&
           atomic_load_explicit(&search->mempool->internal, memory_order_relaxed);
}

/* Lock of that stream held. Its bucket of that size, if it is in the same context. */
static struct bucket *bucket_of(const struct search *search, const struct stream *stream)
{
    if (stream->context != search->context || stream->generation != search->generation)
        return NULL;
    const struct shelf *shelf = shelf_find(stream, search->mempool);
    return shelf ? shelf_find_bucket(shelf, search->bytes) : NULL;
}

static bool comes_after(const struct search *search, const struct stream *stream, uint64_t stamp)
{
    return stream->index < STREAMS_ORDERED && search->known.after[stream->index] >= stamp;
}

/* Lock of that stream held. Off its shelf, and out of its counters. */
static struct stream_block *take_from(struct stream *stream, struct block *found)
{
    stream_heap_detach(stream, stream_block_of(found));
    return stream_block_of(found);
}

/* For another stream. */
static struct stream_block *rob(struct stream *stream, struct block *found)
{
    shelf_bucket_of(found->bucket)->robbed += stream->id != 0;
    shelf_bucket_of(found->bucket)->vain = 0;
    return take_from(stream, found);
}

static struct stream_block *look_at(struct search *search, struct stream *stream, enum hit *hit)
{
    struct stream_block *block = NULL;
    if (stream == search->ref.stream || counter_get(&stream->free_bytes) == 0)
        return NULL;
    short_lock_take(&stream->lock);
    order_settle(stream);
    struct bucket *bucket = bucket_of(search, stream);
    struct block *first = bucket ? bucket->pending.first : NULL;
    if (bucket && bucket->clean.last) {
        *hit = HIT_CLEAN;
        block = rob(stream, bucket->clean.last);
    } else if (first &&
               ((follows(search) && comes_after(search, stream, counter_get(&first->epoch))) ||
                MUTATED(stream_order_ignored))) {
        *hit = HIT_WAITED;
        block = rob(stream, first);
    } else if (first) {
        search->candidates[stream->index / 64] |= UINT64_C(1) << stream->index % 64;
        shelf_bucket_of(bucket)->vain++;
    }
    if (block)
        stream_block_is_away(stream);
    short_lock_give(&stream->lock);
    return block;
}

static struct stream_block *ask_about(struct search *search, struct stream *stream, enum hit *hit)
{
    short_lock_take(&stream->lock);
    const struct bucket *bucket = bucket_of(search, stream);
    uint64_t stamp =
        bucket && bucket->pending.first ? counter_get(&bucket->pending.first->epoch) : 0;
    bool may_know = stamp != 0 && stream->newest && stream->newest->stamp >= stamp;
    short_lock_give(&stream->lock);
    if (!may_know || !order_query_sparingly(search->pool, stream, stamp))
        return NULL;
    struct stream_block *block = look_at(search, stream, hit);
    *hit = HIT_QUERIED;
    if (block && !stream_id(streams_of(search->pool), stream))
        streams_served_another(streams_of(search->pool));
    return block;
}

/* Lock of that stream held. */
static struct stream_block *find_with_event(const struct bucket *bucket)
{
    struct block *b = bucket ? bucket->pending.first : NULL;
    for (unsigned looks = 0; b && looks < LOOKS_MAX; looks++, b = b->links[LINK_BUCKET].next)
        if (stream_block_of(b)->event)
            return stream_block_of(b);
    return NULL;
}

static void learn_order(struct search *search, const struct stream *other, uint64_t stamp)
{
    struct stream *stream = search->ref.stream;
    if (other->index >= STREAMS_ORDERED)
        return;
    short_lock_take(&stream->lock);
    if (stream_is(search->ref) && stream->known.after[other->index] < stamp)
        stream->known.after[other->index] = stamp;
    short_lock_give(&stream->lock);
}

/* A block has come back to its shelf. The memory pool may have been destroyed meanwhile. */
static void send_after_its_pool(struct pool *pool, struct mempool *mempool)
{
    if (atomic_load_explicit(&mempool->closed, memory_order_relaxed))
        stream_release_mempool(pool, mempool, UINT64_MAX, true);
}

static struct stream_block *wait_for(struct search *search, struct stream *stream, enum hit *hit)
{
    short_lock_take(&stream->lock);
    struct stream_block *block = find_with_event(bucket_of(search, stream));
    struct own_event *event = block ? block->event : NULL;
    if (block && MUTATED(later_event_taken))
        event = stream->newest;
    if (block) {
        event->users++;
        rob(stream, &block->block);
        stream_block_is_away(stream);
    }
    short_lock_give(&stream->lock);
    if (!block)
        return NULL;
    bool ordered = MUTATED(stream_wait_left_out) || order_wait(search->pool, search->handle, event);
    short_lock_take(&stream->lock);
    order_drop_user(stream, event);
    if (!ordered)
        stream_heap_attach(shelf_of(block), block);
    short_lock_give(&stream->lock);
    if (!ordered) {
        stream_block_is_settled(stream);
        send_after_its_pool(search->pool, search->mempool);
        return NULL;
    }
    atomic_store_explicit(&stream->wanted, WANTED_FREES, memory_order_relaxed);
    learn_order(search, stream, counter_get(&block->block.epoch));
    *hit = HIT_BARRIER;
    return block;
}

/* The next candidate from there on, or STREAMS_MAX. */
static unsigned next_candidate(const struct search *search, unsigned from)
{
    for (unsigned i = from; i < STREAMS_MAX; i = (i / 64 + 1) * 64) {
        uint64_t bits = search->candidates[i / 64] >> i % 64;
        if (bits)
            return i + (unsigned)__builtin_ctzll(bits);
    }
    return STREAMS_MAX;
}

typedef struct stream_block *visitor(struct search *search, struct stream *stream, enum hit *hit);

static struct stream_block *visit_candidates(struct search *search, visitor *visit, enum hit *hit)
{
    struct stream_block *block = NULL;
    unsigned i = next_candidate(search, 0);
    for (unsigned visits = 0; i < STREAMS_MAX && !block && visits < QUERIES_MAX; visits++) {
        block = visit(search, stream_at(streams_of(search->pool), i), hit);
        i = next_candidate(search, i + 1);
    }
    return block;
}

/* What is pending there without an event would have served: the next frees there record one. */
static void ask_for_events(const struct search *search)
{
    for (unsigned i = next_candidate(search, 0); i < STREAMS_MAX; i = next_candidate(search, i + 1))
        atomic_store_explicit(&stream_at(streams_of(search->pool), i)->wanted, WANTED_FREES,
                              memory_order_relaxed);
}

static bool are_few(const struct search *search)
{
    return stream_count(streams_of(search->pool)) <= SEARCH_MAX;
}

/* A block that is in no stream's counters, or NULL. */
static struct stream_block *search_elsewhere(struct search *search, enum hit *hit)
{
    struct streams *streams = streams_of(search->pool);
    unsigned others = stream_count(streams) - 1, index = search->ref.stream->index;
    bool few = are_few(search) || search->everywhere;
    unsigned first = few ? 0 : search->from, most = few ? others : SEARCH_MAX;
    struct stream_block *block = NULL;
    for (unsigned i = 0; i < most && !block; i++)
        block = look_at(search,
                        stream_at(streams, (index + 1 + (first + i) % others) % (others + 1)), hit);
    if (!block && asks(search))
        block = visit_candidates(search, ask_about, hit);
    if (!block && MUTATED(made_to_wait_early) && may_wait(search))
        block = visit_candidates(search, wait_for, hit);
    if (!block && (asks(search) || may_wait(search)))
        ask_for_events(search);
    return block;
}

/* The same where no new memory can be had: as the driver does, the stream is put behind another
 * one's free only now. While there is memory, nobody is held up for it. */
static bool find_harder(struct search *search)
{
    if (!search->bytes)
        return false;
    search->everywhere = true;
    search->found = search_elsewhere(search, &search->found_by);
    if (!search->found && may_wait(search))
        search->found = visit_candidates(search, wait_for, &search->found_by);
    return search->found;
}

/* ---- misses ---- */

static CUresult ask_driver(struct pool *pool, struct bucket_counters *cost, CUdeviceptr *address,
                           uint64_t bytes, const struct search *search)
{
    uint64_t started = monotonic_now();
    enter_driver();
    CUresult result = pool->driver->cuMemAllocFromPoolAsync(
        address, bytes, atomic_load_explicit(&search->mempool->handle, memory_order_relaxed),
        search->handle);
    leave_driver();
    bucket_count_call(cost, monotonic_now() - started, result == CUDA_SUCCESS);
    return result;
}

/* What helps on all streams alike. */
static CUresult ask_driver_again(struct pool *pool, struct bucket_counters *cost,
                                 CUdeviceptr *address, uint64_t bytes, struct search *search)
{
    struct reclaim progress = {.bytes = bytes, .in_stream_order = true};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    while (result == CUDA_ERROR_OUT_OF_MEMORY &&
           reclaim_for_retry(pool, search->context->device, &progress))
        result = ask_driver(pool, cost, address, bytes, search);
    return result;
}

/* The driver, and everything that may help when it is out of memory. *bytes falls back to what was
 * requested where only that fits. A block of another stream's may be found instead. */
static CUresult ask_driver_hard(struct pool *pool, struct bucket_counters *cost,
                                CUdeviceptr *address, uint64_t *bytes, size_t requested,
                                struct search *search)
{
    struct device *device = search->context->device;
    CUresult result = ask_driver(pool, cost, address, *bytes, search);
    uint64_t behind = 0;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    /* In the stream's own order nothing has to be waited for. */
    if (stream_release_in_order(pool, search->ref, search->handle) != 0 ||
        stream_release_behind(pool, search->ref, search->context, &behind) != 0)
        result = ask_driver(pool, cost, address, *bytes, search);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && find_harder(search))
        return CUDA_SUCCESS;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = ask_driver_again(pool, cost, address, *bytes, search);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && behind &&
        stream_release_wait_behind(pool, search->ref.stream, behind))
        result = ask_driver_again(pool, cost, address, *bytes, search);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && *bytes != requested) {
        atomic_fetch_sub_explicit(&device->reserved_bytes, *bytes - requested,
                                  memory_order_relaxed);
        *bytes = requested;
        result = ask_driver(pool, cost, address, requested, search);
    }
    return result;
}

/* Lock held. */
static bool record_block(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                         CUdeviceptr address, uint64_t bytes, const struct search *search)
{
    struct stream_block *block = stream_block_take(&streams_of(pool)->records);
    if (block) {
        block_set(&block->block, address, BLOCK_UNUSED);
        block_set_bytes(&block->block, bytes);
    }
    if (!block || !block_table_insert(&streams_of(pool)->blocks, address, &block->block)) {
        /* Without a record the memory is the program's and the driver's business alone. */
        if (block)
            stream_block_put(&streams_of(pool)->records, block);
        return false;
    }
    block->block.bucket = bucket;
    block->mempool = search->mempool;
    mempool_use(block->mempool);
    block->context = search->context;
    block->context_generation = search->generation;
    atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
    shelf_count_in(shelf, bucket, block);
    atomic_fetch_add_explicit(&stream_device(search->context->device)->reserved_bytes, bytes,
                              memory_order_relaxed);
    return true;
}

static void forget_reserved(struct device *device, uint64_t bytes)
{
    /* Relaxed: a number that is compared with limits, and orders nothing. */
    atomic_fetch_sub_explicit(&device->reserved_bytes, bytes, memory_order_relaxed);
}

static void forget_block(const struct stream_block *block)
{
    struct device *device = block->context->device;
    forget_reserved(device, block->block.bytes);
    atomic_fetch_sub_explicit(&stream_device(device)->reserved_bytes, block->block.bytes,
                              memory_order_relaxed);
}

/* What this thread has waited lately, for a block of this bucket. */
static void take_wait(const struct bucket *bucket)
{
    bucket_count_wait(bucket->counters, thread_state.waited_ns);
    thread_state.waited_ns = 0;
}

static void finish_miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                        CUdeviceptr address, uint64_t bytes, size_t requested,
                        const struct search *search, CUresult result)
{
    bool recorded = false;
    /* A capture that began meanwhile may have the stream, and the memory is the graph's. */
    bool may_record = result == CUDA_SUCCESS &&
                      (!program_captures(&pool->captures) || MUTATED(memory_of_graph_recorded));
    if (result == CUDA_SUCCESS) {
        /* Whoever freed this address did so behind our back. */
        stream_heap_forget_address(pool, address);
        heap_forget_address(pool, address);
    }
    short_lock_take(&shelf->stream->lock);
    counter_add(&bucket->counters->requested_bytes, requested);
    if (may_record)
        recorded = record_block(pool, shelf, bucket, address, bytes, search);
    shelf->stream->missed += recorded;
    if (recorded)
        shelf_hand_out(shelf, bucket, stream_block_find(&streams_of(pool)->blocks, address),
                       requested);
    take_wait(bucket);
    bool met = result == CUDA_SUCCESS, short_of = result == CUDA_ERROR_OUT_OF_MEMORY;
    counter_add(bucket_outcome(bucket->counters, met, short_of), 1);
    if (met && !recorded)
        bucket_count_lost(bucket->counters);
    short_lock_give(&shelf->stream->lock);
    if (!recorded)
        forget_reserved(search->context->device, bytes);
}

/* A block from elsewhere is this shelf's from now on. */
static void adopt(struct shelf *shelf, struct bucket *bucket, struct stream_block *block,
                  size_t bytes, enum hit hit)
{
    struct stream *former = shelf_of(block)->stream;
    short_lock_take(&shelf->stream->lock);
    counter_set(&block->block.epoch,
                hit == HIT_WAITED || hit == HIT_BARRIER ? STAMP_OF_ANOTHER : 0);
    block->block.bucket = bucket;
    atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
    shelf_count_in(shelf, bucket, block);
    take_wait(bucket);
    shelf_hand_out_hit(shelf, bucket, block, bytes, hit);
    shelf->stream->adopted++;
    short_lock_give(&shelf->stream->lock);
    stream_block_is_settled(former);
}

static CUresult hand_out_found(const struct search *search, struct shelf *shelf,
                               struct bucket *bucket, CUdeviceptr *address, size_t requested)
{
    adopt(shelf, bucket, search->found, requested, search->found_by);
    *address = block_address(&search->found->block);
    return CUDA_SUCCESS;
}

static CUresult refuse(struct shelf *shelf, struct bucket *bucket, size_t requested)
{
    short_lock_take(&shelf->stream->lock);
    counter_add(&bucket->counters->requested_bytes, requested);
    take_wait(bucket);
    counter_add(&bucket->counters->failures[FAILURE_LIMIT], 1);
    short_lock_give(&shelf->stream->lock);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t hits_of(const struct bucket *bucket)
{
    uint64_t hits = 0;
    for (unsigned i = 0; i < HIT_KINDS; i++)
        hits += counter_get(&bucket->counters->hits[i]);
    return hits;
}

/* Lock held. Whether the stream itself has found a block there since it was last asked. */
static bool has_hit_since(struct bucket *bucket)
{
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    uint64_t hits = hits_of(bucket);
    bool has = of->hits != hits;
    of->hits = hits;
    return has;
}

/* Another block had to go for this one. */
static void note_at_bound(struct stream *stream)
{
    short_lock_take(&stream->lock);
    uint64_t hits = stream->handed_out - stream->missed - stream->hits_at_bound;
    bool few = hits < FEW_HITS || hits < stream->missed - stream->missed_at_bound;
    stream->misses_at_bound = few ? stream->misses_at_bound + 1 : 0;
    stream->hits_at_bound += hits;
    stream->missed_at_bound = stream->missed;
    unsigned more = stream->misses_at_bound - VAIN_MISSES;
    if (stream->misses_at_bound >= VAIN_MISSES)
        stream->for_driver = FREES_FOR_DRIVER << (more < 2 ? 2 * more : 4);
    short_lock_give(&stream->lock);
}

static CUresult miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                     CUdeviceptr *address, size_t requested, struct search *search)
{
    struct context *context = search->context;
    uint64_t bytes = bucket->bytes ? bucket->bytes : requested;
    bool possible = requested <= context->device->total_bytes;
    CUresult result;
    /* What no device can hold is not worth giving anything back for. */
    if (possible && stream_release_before_growth(pool, context, search->mempool, bytes, search->ref,
                                                 search->handle))
        note_at_bound(shelf->stream);
    if (possible && !reserve_take(pool, context, bytes, true)) {
        if (find_harder(search))
            return hand_out_found(search, shelf, bucket, address, requested);
        if (bytes == requested || !reserve_take(pool, context, requested, true))
            return refuse(shelf, bucket, requested);
        bytes = requested;
    }
    if (possible) {
        result = ask_driver_hard(pool, bucket->counters, address, &bytes, requested, search);
        if (search->found) {
            forget_reserved(context->device, bytes);
            return hand_out_found(search, shelf, bucket, address, requested);
        }
    } else {
        atomic_fetch_add_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
        result = ask_driver(pool, bucket->counters, address, bytes, search);
    }
    /* A block that is smaller than its bucket must not serve it again. A failure is the bucket's.
     */
    bool fits = bytes == bucket->bytes || result != CUDA_SUCCESS;
    finish_miss(pool, shelf, fits ? bucket : &shelf->unkept, result == CUDA_SUCCESS ? *address : 0,
                bytes, requested, search, result);
    mempool_note_use(pool, search->mempool);
    return result;
}

/* ---- allocating ---- */

/* False where the stream has ended. */
static bool begin_search(struct search *search, struct pool *pool, struct stream_ref ref,
                         CUstream handle, const struct shelf *shelf, uint64_t bytes)
{
    struct stream *stream = ref.stream;
    search->pool = pool;
    search->ref = ref;
    search->handle = handle;
    search->mempool = shelf->mempool;
    search->bytes = bytes;
    search->found = NULL;
    search->everywhere = false;
    memset(search->candidates, 0, sizeof search->candidates);
    short_lock_take(&stream->lock);
    bool is = stream_is(ref);
    search->context = stream->context;
    search->generation = stream->generation;
    /* What a stream waits for, others that it orders need not; and a wait in it might hold them up,
     * which an allocation does not. */
    search->host_only = !stream->own_order;
    search->known = stream->known;
    search->from = stream->searched;
    stream->searched += SEARCH_MAX;
    short_lock_give(&stream->lock);
    return is;
}

/* On a stream with early launches its own blocks need to be over, too. */
static struct stream_block *ask_about_own(struct search *search, struct bucket *bucket)
{
    struct stream *stream = search->ref.stream;
    struct stream_block *block = NULL;
    short_lock_take(&stream->lock);
    uint64_t stamp = bucket->pending.first ? counter_get(&bucket->pending.first->epoch) : 0;
    short_lock_give(&stream->lock);
    if (!stamp || !order_query_sparingly(search->pool, stream, stamp))
        return NULL;
    short_lock_take(&stream->lock);
    if (stream_is(search->ref))
        block = shelf_take_own(stream, bucket);
    if (block) {
        shelf_count_out(shelf_of(block), bucket, block);
        block_set_state(&block->block, BLOCK_LEAVING);
        stream_block_is_away(stream);
    }
    short_lock_give(&stream->lock);
    return block;
}

/* Streams that take each other's blocks in turn would do so for ever: one that was robbed takes a
 * new block in the place of the old one, as long as the reserve has room for it. */
static bool takes_new_one(const struct search *search, struct bucket *bucket)
{
    struct stream *stream = search->ref.stream;
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    short_lock_take(&stream->lock);
    bool robbed = of->robbed != 0;
    short_lock_give(&stream->lock);
    if (!robbed || MUTATED(robbed_in_turn) ||
        !stream_release_has_room(search->pool, search->context, search->mempool, search->bytes))
        return false;
    short_lock_take(&stream->lock);
    if (of->robbed)
        of->robbed--;
    short_lock_give(&stream->lock);
    return true;
}

static struct stream_block *search_now_and_then(struct search *search, struct pause *pause,
                                                enum hit *hit)
{
    const struct streams *streams = streams_of(search->pool);
    uint64_t started;
    if (streams_pause(streams, pause, &started))
        return NULL;
    struct stream_block *block = search_elsewhere(search, hit);
    if (!block)
        streams_rest(streams, pause, started);
    return block;
}

/* Of many streams only some are looked through while a new block costs no other one its place. */
static struct stream_block *search_as_far_as_it_pays(struct search *search, enum hit *hit)
{
    struct streams *streams = streams_of(search->pool);
    struct stream_block *block = search_now_and_then(search, &streams->looks, hit);
    if (block || are_few(search) ||
        stream_release_has_room(search->pool, search->context, search->mempool, search->bytes))
        return block;
    search->everywhere = true;
    return search_now_and_then(search, &streams->far_looks, hit);
}

/* What the stream's own order does not give at once. */
static bool allocate_slowly(struct pool *pool, struct stream_ref ref, CUstream handle,
                            struct shelf *shelf, struct bucket *bucket, CUdeviceptr *address,
                            size_t bytes, CUresult *result)
{
    struct search search;
    struct stream_block *block = NULL;
    enum hit hit = HIT_CLEAN;
    if (!begin_search(&search, pool, ref, handle, shelf, bucket->bytes))
        return false;
    if (bucket->bytes && !takes_new_one(&search, bucket))
        block = search_as_far_as_it_pays(&search, &hit);
    if (!block && bucket->bytes && search.host_only && asks(&search)) {
        block = ask_about_own(&search, bucket);
        hit = HIT_QUERIED;
    }
    *result = CUDA_SUCCESS;
    if (block) {
        adopt(shelf, bucket, block, bytes, hit);
        *address = block_address(&block->block);
    } else {
        *result = miss(pool, shelf, bucket, address, bytes, &search);
    }
    /* What is wrong beside want of memory the driver shall say of the program's own call. */
    return *result == CUDA_SUCCESS || *result == CUDA_ERROR_OUT_OF_MEMORY;
}

bool stream_heap_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes,
                          struct mempool *mempool, struct stream_ref ref, CUstream handle,
                          CUresult *result)
{
    struct stream *stream = ref.stream;
    struct stream_block *block = NULL;
    uint64_t rounded = size_class_round(&stream->on_device->classes, bytes);
    short_lock_take(&stream->lock);
    bool served = stream_is(ref) && shelf_is_usable(stream->context);
    struct shelf *shelf = served ? shelf_get(pool, stream, mempool) : NULL;
    if (!shelf) {
        short_lock_give(&stream->lock);
        return false;
    }
    struct bucket *bucket = rounded ? shelf_get_bucket(pool, shelf, rounded) : NULL;
    if (bucket)
        block = shelf_take_own(stream, bucket);
    else
        bucket = &shelf->unkept;
    if (block)
        shelf_hand_out_hit(shelf, bucket, block, bytes, HIT_CLEAN);
    short_lock_give(&stream->lock);
    if (!block)
        return allocate_slowly(pool, ref, handle, shelf, bucket, address, bytes, result);
    *address = block_address(&block->block);
    *result = CUDA_SUCCESS;
    return true;
}

/* ---- freeing ---- */

static void leave_shelf(struct stream_block *block)
{
    struct shelf *shelf = shelf_of(block);
    short_lock_take(&shelf->stream->lock);
    shelf_count_not_live(shelf, block);
    shelf_count_out(shelf, block->block.bucket, block);
    short_lock_give(&shelf->stream->lock);
}

static void return_to_shelf(struct stream_block *block)
{
    struct shelf *shelf = shelf_of(block);
    short_lock_take(&shelf->stream->lock);
    shelf_count_in(shelf, block->block.bucket, block);
    shelf_count_live(shelf, block->block.bucket, shelf_asked(block));
    short_lock_give(&shelf->stream->lock);
}

/* What a free puts into its stream. */
struct put {
    bool event;  /* one of its own, so that it can be asked about */
    bool marker; /* or at least an operation: others order the stream */
};

/* Lock held. */
static struct put what_to_put(const struct pool *pool, struct stream *stream,
                              const struct stream_block *block)
{
    uint64_t pending = counter_get(&stream->free_bytes) - counter_get(&stream->clean_bytes);
    stream->share = order_share(pool, stream, block->mempool);
    bool due = shelf_events_are_wanted(stream) || shelf_launches_early(stream) ||
               (pending - stream->covered_bytes + block->block.bytes > stream->share &&
                !MUTATED(much_freed_without_event));
    bool marker = stream->ordered_by_others && !MUTATED(frees_put_nothing) &&
                  !(MUTATED(frees_between_put_nothing) && stream->handle == CU_STREAM_LEGACY);
    return (struct put){due, marker};
}

static void count_event_use(struct stream *stream)
{
    unsigned wanted = atomic_load_explicit(&stream->wanted, memory_order_relaxed);
    if (wanted)
        atomic_store_explicit(&stream->wanted, wanted - 1, memory_order_relaxed);
}

/* Of the free with this stamp. False where an operation cannot be made that has to be. */
static bool put_in_free(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp,
                        struct put put, struct own_event **event)
{
    *event = NULL;
    if (put.event) {
        *event = order_record(pool, ref, handle, stamp, put.marker);
        count_event_use(ref.stream);
    }
    return *event || !put.marker || order_join(pool, ref, handle, stamp);
}

/* Lock held. */
static void lie_down(struct shelf *shelf, struct bucket *bucket, struct stream_block *block,
                     bool moved, struct own_event *event, uint64_t stamp)
{
    struct stream *stream = shelf->stream;
    if (moved) {
        atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
        block->block.bucket = bucket;
        shelf_count_in(shelf, bucket, block);
    } else {
        shelf_count_not_live(shelf, block);
    }
    block->event = event;
    shelf_make_pending(stream, bucket, block, stamp);
    if (shelf_is_covered(stream, &block->block))
        stream->covered_bytes += block->block.bytes;
}

/* A free on another stream than that of the allocation, or one that puts something into the stream.
 * The stamp is taken, and the block away. False: the driver frees it, and is itself the operation
 * that others wait for. */
static bool free_slowly(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                        CUstream handle, uint64_t stamp, struct put put)
{
    struct stream *stream = ref.stream;
    bool moved = shelf_of(block)->stream != stream;
    struct own_event *event;
    bool may = put_in_free(pool, ref, handle, stamp, put, &event);
    if (moved)
        leave_shelf(block);
    short_lock_take(&stream->lock);
    /* The context may have begun to end since: what comes to lie here now is given back by nobody.
     */
    bool stays = may && stream_is(ref) && shelf_may_keep(stream, block) &&
                 (event || !put.marker || !order_capture_is_coming(pool));
    struct shelf *shelf = stays ? shelf_get(pool, stream, block->mempool) : NULL;
    struct bucket *bucket = shelf ? shelf_get_bucket(pool, shelf, block->block.bytes) : NULL;
    stays = bucket && !(moved && shelf_is_full(pool, bucket));
    if (stays)
        lie_down(shelf, bucket, block, moved, event, stamp);
    if (event)
        order_drop_user(stream, event);
    order_settle(stream);
    shelf_set_quiet(stream);
    /* Where nothing can be put there, not each free tries again. */
    if (put.event && !event && !put.marker)
        stream->quiet_bytes = (int64_t)(counter_get(&stream->free_bytes) + stream->share);
    struct context *context = stays ? stream->context : NULL;
    short_lock_give(&stream->lock);
    stream_block_is_settled(stream);
    if (context && put.event)
        room_look_again(pool, context);
    if (!stays && moved)
        return_to_shelf(block);
    return stays;
}

/* Lock held. Where blocks of other streams are freed on a stream that is far behind them, they come
 * back to nobody in time: while that is so the driver has them, for the price of one call, but for
 * some by which it is seen when that has changed. */
static bool steps_aside(struct stream *stream, const struct stream_block *block)
{
    if (shelf_of(block)->stream == stream)
        return false;
    const struct shelf *shelf = shelf_find(stream, block->mempool);
    struct bucket *bucket = shelf ? shelf_find_bucket(shelf, block->block.bytes) : NULL;
    if (!bucket || bucket == &shelf->unkept || shelf_bucket_of(bucket)->vain < VAIN_LOOKS)
        return false;
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    if (has_hit_since(bucket)) {
        of->vain = 0;
        return false;
    }
    return of->aside++ % FREES_PER_TRIAL != 0 && !MUTATED(vain_frees_kept);
}

/* Lock held. What is freed on the stream goes back before it is asked for again, and other blocks
 * for it: to put an operation into the stream for each costs as much as the driver's free. */
static bool is_for_driver(struct stream *stream)
{
    if (stream->for_driver == 0 || MUTATED(kept_at_bound))
        return false;
    stream->for_driver--;
    return true;
}

bool stream_heap_claim(struct stream_block *block, CUdeviceptr address)
{
    for (;;) {
        struct shelf *shelf = shelf_of(block);
        if (!shelf || !stream_block_is_held(block, address))
            return false;
        short_lock_take(&shelf->stream->lock);
        bool same = shelf_of(block) == shelf;
        bool held = same && stream_block_is_held(block, address);
        if (held)
            atomic_store_explicit(&block->held_at, 0, memory_order_relaxed);
        short_lock_give(&shelf->stream->lock);
        if (same)
            return held;
    }
}

bool stream_heap_free(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                      CUstream handle)
{
    struct stream *stream = ref.stream;
    bool looked = false;
    short_lock_take(&stream->lock);
    for (;;) {
        if (!stream_is(ref) || !shelf_may_keep(stream, block) ||
            (!looked && steps_aside(stream, block))) {
            short_lock_give(&stream->lock);
            return false;
        }
        /* Another stream's bucket is looked at later. */
        if (shelf_is_within_cap(stream, block) &&
            (shelf_of(block)->stream != stream || !shelf_is_full(pool, block->block.bucket)))
            break;
        short_lock_give(&stream->lock);
        if (looked || !stream_release_room(pool, stream, block))
            return false;
        looked = true;
        short_lock_take(&stream->lock);
    }
    struct put put = what_to_put(pool, stream, block);
    if ((put.event || put.marker) && is_for_driver(stream)) {
        short_lock_give(&stream->lock);
        return false;
    }
    uint64_t stamp = shelf_next_stamp(stream);
    bool look = shelf_look_is_due(stream);
    stream_block_is_away(stream);
    short_lock_give(&stream->lock);
    if (!free_slowly(pool, block, ref, handle, stamp, put))
        return false;
    if (look)
        stream_release_look(pool, stream);
    return true;
}

/* ---- plain frees ---- */

/* What was handed out by the stream record's former owner carries a stamp of his: that later ones
 * of the same record are over says nothing of it, since his work goes on beside the new owner's. */
static bool last_free_is_over(const struct stream_block *block)
{
    struct stream *stream = shelf_of(block)->stream;
    short_lock_take(&stream->lock);
    bool own =
        atomic_load_explicit(&block->generation, memory_order_relaxed) > stream->handed_before ||
        counter_get(&block->block.epoch) == 0 || MUTATED(former_owners_stamp_believed);
    bool over = (own && counter_get(&block->block.epoch) <= order_done(stream)) ||
                MUTATED(plain_free_of_unfinished);
    short_lock_give(&stream->lock);
    return over;
}

/* The context is pinned. The event is not the block's: no stream is made to wait for all of its
 * context's work. */
static bool free_in_context(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                            struct plain_free *free)
{
    struct stream *stream = ref.stream;
    short_lock_take(&stream->lock);
    uint64_t stamp = shelf_next_stamp(stream);
    stream_block_is_away(stream);
    short_lock_give(&stream->lock);
    struct own_event *event = order_record_context(pool, stream, stamp);
    leave_shelf(block);
    short_lock_take(&stream->lock);
    /* Without an event it would lie there for good. The driver's own free relies on the program to
     * have waited for all uses. */
    bool may = (event || MUTATED(plain_free_without_event)) && stream_is(ref) &&
               shelf_may_keep(stream, block);
    struct shelf *shelf = may ? shelf_get(pool, stream, block->mempool) : NULL;
    struct bucket *bucket = shelf ? shelf_get_bucket(pool, shelf, block->block.bytes) : NULL;
    if (bucket)
        lie_down(shelf, bucket, block, true, NULL, stamp);
    if (bucket && event)
        order_drop_user(stream, event);
    order_settle(stream);
    short_lock_give(&stream->lock);
    stream_block_is_settled(stream);
    if (!bucket) {
        return_to_shelf(block);
        *free = (struct plain_free){stream, event};
    }
    return bucket;
}

bool stream_heap_free_plainly(struct pool *pool, struct stream_block *block,
                              struct plain_free *free)
{
    struct context *context = block->context;
    *free = (struct plain_free){NULL, NULL};
    if (last_free_is_over(block) || !context_pin(context, block->context_generation))
        return false;
    struct stream_ref ref = streams_of_plain_frees(pool, context);
    bool kept = ref.stream && free_in_context(pool, block, ref, free);
    context_unpin(context);
    return kept;
}

/* ---- blocks that leave ---- */

void stream_heap_leave(struct pool *pool, struct stream_block *block)
{
    leave_shelf(block);
    block_set_state(&block->block, BLOCK_LEAVING);
    block_table_remove(&streams_of(pool)->blocks, block_address(&block->block), &block->block);
}

static void forget_left(struct pool *pool, struct stream_block *block)
{
    forget_block(block);
    stream_block_put(&streams_of(pool)->records, block);
}

void stream_heap_left(struct pool *pool, struct stream_block *block, uint64_t nanoseconds)
{
    struct shelf *shelf = shelf_of(block);
    struct bucket_counters *counters = block->block.bucket->counters;
    short_lock_take(&shelf->stream->lock);
    bucket_count_return(counters, EVICTION_FREE, nanoseconds);
    counter_add(&counters->frees, 1);
    short_lock_give(&shelf->stream->lock);
    forget_left(pool, block);
}

/* The same without the driver. */
static void lose(struct pool *pool, struct stream_block *block)
{
    struct shelf *shelf = shelf_of(block);
    short_lock_take(&shelf->stream->lock);
    bucket_count_lost(block->block.bucket->counters);
    short_lock_give(&shelf->stream->lock);
    forget_left(pool, block);
}

void stream_heap_came_back(struct pool *pool, struct stream_block *block)
{
    if (!block_table_insert(&streams_of(pool)->blocks, block_address(&block->block), &block->block))
        return;
    block_set_state(&block->block, BLOCK_LIVE);
    return_to_shelf(block);
    atomic_store_explicit(&block->held_at, block_address(&block->block), memory_order_release);
}

void stream_heap_forget_free(struct pool *pool, struct stream_block *block)
{
    forget_left(pool, block);
}

static bool forget_held(struct pool *pool, struct stream_block *block, CUdeviceptr address)
{
    if (!stream_heap_claim(block, address))
        return false;
    use_forget(pool, block);
    stream_heap_leave(pool, block);
    lose(pool, block);
    return true;
}

bool stream_heap_let_go(struct pool *pool, CUdeviceptr address)
{
    struct stream_block *block = stream_block_find(&streams_of(pool)->blocks, address);
    return !block || forget_held(pool, block, address);
}

/* A block that is free with us was freed behind our back, since the driver gave it out again. */
static void forget_stale(struct pool *pool, struct stream_block *block, CUdeviceptr address)
{
    struct shelf *shelf = shelf_of(block);
    if (!shelf)
        return;
    short_lock_take(&shelf->stream->lock);
    bool stale =
        shelf_of(block) == shelf && block_address(&block->block) == address &&
        (block_state(&block->block) == BLOCK_CLEAN || block_state(&block->block) == BLOCK_PENDING);
    if (stale) {
        take_from(shelf->stream, &block->block);
        counter_add(&block->block.bucket->counters->evictions[EVICTION_CONTEXT], 1);
        block_table_remove(&streams_of(pool)->blocks, address, &block->block);
    }
    short_lock_give(&shelf->stream->lock);
    if (stale)
        stream_heap_forget_free(pool, block);
}

void stream_heap_forget_address(struct pool *pool, CUdeviceptr address)
{
    struct stream_block *block = stream_block_at(pool, address);
    if (block && !forget_held(pool, block, address))
        forget_stale(pool, block, address);
}
