#include "host_release.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/housekeeping.h"
#include "core/contexts/kind.h"
#include "core/driver/calls.h"
#include "core/reclaim/kept.h"
#include "core/reclaim/progress.h"
#include "core/reclaim/waiting.h"
#include "host_by_driver.h"
#include "host_choice.h"

/* While less than this share of the cgroup's limit is left, the housekeeper looks every
 * NEAR_NANOSECONDS. */
#define NEAR_SHARE       4u
#define NEAR_NANOSECONDS (UINT64_C(100) * 1000 * 1000)

/* While memory is short, the driver is asked whether the context has work no sooner than this:
 * nanoseconds. */
#define LOOK_NANOSECONDS (UINT64_C(100) * 1000)

/* How long to wait for another thread that is recording a fence: nanoseconds. */
#define OTHERS_RECORD_NANOSECONDS (UINT64_C(100) * 1000 * 1000)

/* A program that has launched nothing for so many nanoseconds counts as quiet. */
#define QUIET_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* After so many bytes of misses an allocation checks what the cgroup has left. */
#define LOOK_BYTES (UINT64_C(16) << 20)

struct release {
    struct host_choice choice;
    uint64_t bytes; /* the bytes to release, or all there are */
    uint64_t taken; /* stops once the driver has taken no more than so many bytes for the context */
    enum eviction reason;
    bool stranded;    /* also in a context where the driver answers everything, and no fence can be
                         recorded */
    bool inside_free; /* the program waits, as in the driver's own free; otherwise nobody may
                         wait */
};

/* Begins a fence that is only queried. One thread records at a time, which takes microseconds
 * unless the driver is busy with something else. In that case nobody can tell whether there is
 * work: NULL. Releases and retakes the context's lock. */
static struct fence *begin_question(struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t started = monotonic_now();
    struct fence *fence = epoch_begin_close(context, false);
    while (!fence && epoch_is_recording(&context->epochs) &&
           monotonic_now() - started < OTHERS_RECORD_NANOSECONDS) {
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
        fence = epoch_begin_close(context, false);
    }
    return fence;
}

/* Whether the context has no work: records a fence that is only queried, and queries it at once. */
static bool nothing_runs(struct pool *pool, struct context *context)
{
    context_lock(context);
    struct fence *fence = begin_question(context);
    uint64_t epoch = epoch_current(&context->epochs) - 1;
    context_unlock(context);
    if (!fence)
        return false;
    struct epoch_recorded recorded = epoch_record_and_lock(pool, context, fence, true);
    bool over = epoch_clean(&context->epochs) >= epoch;
    context_unlock(context);
    epoch_settle_record(pool, context, &recorded);
    return over;
}

/* Whether the program has launched nothing for a while. Another thread may launch work between the
 * check for work and the driver's free. The free then waits for that work with the driver's lock
 * held. So where nobody needs the memory, nothing is released beside a program that launches work.
 */
static bool is_quiet(struct pool *pool)
{
    struct host_memory *memory = host_memory_of(pool);
    uint64_t now = monotonic_now();
    if (atomic_exchange_explicit(&pool->launched, false, memory_order_relaxed))
        atomic_store_explicit(&memory->launched_at, now, memory_order_relaxed);
    uint64_t at = atomic_load_explicit(&memory->launched_at, memory_order_relaxed);
    return at == 0 || now - at > QUIET_NANOSECONDS;
}

/* Records the driver's answer. A block that the driver does not know was freed past the pool, and
 * counts as released. Returns the bytes released. */
static uint64_t settle(struct pool *pool, struct host_heap *heap, struct block *block,
                       CUresult result, enum eviction reason, uint64_t nanoseconds)
{
    lock_must_be_held(&heap->context->lock);
    struct host_bin *bin = host_bin_of(block);
    uint64_t bytes = block->bytes;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
        result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
        host_forget(pool, heap, block);
        bucket_count_return(bin->bucket.counters, reason, nanoseconds);
        return bytes;
    }
    host_count_back(block);
    host_lock(bin->shard);
    host_put_back(bin, block, host_clean_epoch(heap));
    host_unlock(bin->shard);
    return 0;
}

static uint64_t give_back(struct pool *pool, struct host_heap *heap, struct block *block,
                          enum eviction reason)
{
    uint64_t started = monotonic_now();
    struct host_leaving leaving = host_leaving(block);
    CUresult result = host_call_to_free(pool, &leaving);
    context_lock(heap->context);
    uint64_t bytes = settle(pool, heap, block, result, reason, monotonic_now() - started);
    context_unlock(heap->context);
    return bytes;
}

/* Releases the deferred blocks or, without any, what host_take_chosen takes. Returns the bytes; 0:
 * there is no block, or the driver refuses. */
static uint64_t release_one(struct pool *pool, struct host_heap *heap, const struct release *what)
{
    uint64_t bytes = host_free_deferred(pool, heap);
    if (bytes)
        return bytes;
    context_lock(heap->context);
    struct block *chain = host_take_chosen(heap, &what->choice);
    /* Relaxed: a thread that finds the heap without these blocks has taken the lock after this. */
    atomic_fetch_add_explicit(&pool->host_returns, 1, memory_order_relaxed);
    context_unlock(heap->context);
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    for (struct block *next; chain; chain = next) {
        next = chain->links[LINK_BUCKET].next;
        bytes += give_back(pool, heap, chain, what->reason);
    }
    atomic_fetch_sub_explicit(&pool->host_returns, 1, memory_order_relaxed);
    relaxed_mode_end(pool->driver, mode);
    return bytes;
}

static bool has_any(const struct host_heap *heap)
{
    return heap->context && (host_sum(heap).free_bytes || host_has_deferred(heap));
}

/* Whether a block may be released now. Outside a free the context must have no work to wait for.
 * From then until end_release no work is submitted that ends only if the host acts. */
static bool begin_release(struct pool *pool, struct context *context, const struct release *what)
{
    if (what->inside_free)
        return true;
    if (!nothing_runs(pool, context))
        return false;
    context_lock(context);
    bool may = host_work_may_free(&context->epochs.host_work);
    context_unlock(context);
    return may;
}

static void end_release(struct context *context, const struct release *what)
{
    if (what->inside_free)
        return;
    context_lock(context);
    host_work_has_freed(&context->epochs.host_work);
    context_unlock(context);
}

/* Releases blocks of the heap. Returns the bytes released. */
static uint64_t release_from(struct pool *pool, struct host_heap *heap, const struct release *what)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct context *context = heap->context;
    uint64_t sum = 0, bytes = 1;
    if (!has_any(heap) || program_captures(&pool->captures) ||
        (!context_is_usable(context) && !what->stranded) ||
        !context_pin(context, context_generation(context)))
        return 0;
    if (what->inside_free && !what->choice.pending && !what->stranded &&
        !host_frees_are_over(pool, context)) {
        context_unpin(context);
        return 0;
    }
    while (sum < what->bytes && counter_get(&heap->pieces.taken) > what->taken && bytes &&
           !housekeeping_is_stopped(&pool->housekeeping)) {
        if (!begin_release(pool, context, what))
            break;
        atomic_store_explicit(&heap->waited_for, 0, memory_order_relaxed);
        /* A query or wait just before this may have made blocks clean. */
        if (sum == 0)
            host_sweep_and_sum(heap);
        sum += bytes = release_one(pool, heap, what);
        end_release(context, what);
    }
    context_unpin(context);
    return sum;
}

static struct release release_of(const struct pool *pool, uint64_t bytes, enum eviction reason,
                                 bool inside_free)
{
    return (struct release){
        .choice = {.lru = pool->settings.host.evict == EVICT_LEAST_RECENTLY_USED,
                   .freed_before = UINT64_MAX},
        .bytes = bytes,
        .reason = reason,
        .inside_free = inside_free,
    };
}

/* ---- caps ---- */

/* Free bytes of all contexts except the heap's; NULL: of all contexts. */
static uint64_t others_free_bytes(struct pool *pool, const struct host_heap *heap)
{
    uint64_t sum = 0;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        if (host_heap_of(c) != heap && host_heap_of(c)->context)
            sum += host_sum(host_heap_of(c)).free_bytes;
    return sum;
}

static uint64_t all_free_bytes(struct pool *pool)
{
    return others_free_bytes(pool, NULL);
}

bool host_is_past_cap(struct pool *pool)
{
    return all_free_bytes(pool) > host_memory_of(pool)->cached_cap;
}

/* The bytes that the reserve ratio lets the driver have taken for the context before it makes a
 * block of `more` bytes. live: the bytes that the program holds. A piece is added to the peak,
 * since the program's own small blocks would not fill their last piece either. */
static uint64_t taken_at_most(const struct pool *pool, struct host_heap *heap, uint64_t live,
                              uint64_t more)
{
    const struct host_settings *settings = &pool->settings.host;
    counter_raise_shared(&heap->peak_requested, live);
    uint64_t peak = larger_of(counter_get(&heap->peak_requested), live + more);
    uint64_t bound = bound_on_taken(settings->caps.reserve_ratio, peak + HOST_PIECE,
                                    host_memory_of(pool)->growth_budget, 0);
    return rest_of(bound, more);
}

bool host_has_room(const struct pool *pool, struct host_heap *heap, uint64_t bytes)
{
    return counter_get(&heap->pieces.taken) <=
           taken_at_most(pool, heap, host_sum(heap).live_requested, bytes);
}

/* sums: the heap's current sums. */
static void release_past_ratio(struct pool *pool, struct host_heap *heap,
                               const struct host_sums *sums)
{
    uint64_t most = taken_at_most(pool, heap, sums->live_requested, 0);
    if (counter_get(&heap->pieces.taken) <= most)
        return;
    struct release what = release_of(pool, UINT64_MAX, EVICTION_CAP, true);
    what.taken = most;
    release_from(pool, heap, &what);
}

/* The number of free blocks of the key above blocks_per_bucket. */
static uint64_t blocks_past_cap(const struct pool *pool, const struct host_heap *heap, uint64_t key)
{
    uint64_t blocks = 0;
    for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next) {
        host_lock(shard);
        const struct host_bin *bin = host_bin_find(shard, key);
        blocks += bin ? bin_free_blocks(bin->counts) : 0;
        host_unlock(shard);
    }
    return rest_of(blocks, pool->settings.host.caps.blocks_per_bucket);
}

static void release_past_caps(struct pool *pool, struct host_heap *heap, uint64_t key,
                              uint64_t bytes)
{
    struct release what = release_of(pool, bytes, EVICTION_CAP, true);
    what.choice.key = key;
    if (bytes)
        release_from(pool, heap, &what);
}

/* Makes the next free release so many bytes of its own context; 0: none. */
static void want(struct pool *pool, uint64_t bytes)
{
    atomic_store_explicit(&host_memory_of(pool)->wanted, bytes, memory_order_relaxed);
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        host_set_closed(host_heap_of(c), HOST_CLOSED_WANTED, bytes != 0);
}

bool host_is_wanted(struct pool *pool)
{
    return atomic_load_explicit(&host_memory_of(pool)->wanted, memory_order_relaxed) != 0;
}

/* Releases the wanted bytes. A thread that still lacks memory afterwards asks again. */
static void release_wanted(struct pool *pool, struct host_heap *heap)
{
    if (!host_is_wanted(pool))
        return;
    uint64_t bytes = atomic_load_explicit(&host_memory_of(pool)->wanted, memory_order_relaxed);
    struct release what = release_of(pool, bytes, EVICTION_MEMORY, true);
    want(pool, 0);
    release_from(pool, heap, &what);
}

void host_release_excess(struct pool *pool, struct host_heap *heap, uint64_t key)
{
    release_wanted(pool, heap);
    struct host_sums sums = host_sum(heap);
    uint64_t all = sums.free_bytes, cap = host_memory_of(pool)->cached_cap;
    if (contexts_were_several(pool))
        all += others_free_bytes(pool, heap);
    if (all > cap) {
        release_past_caps(pool, heap, 0, all - cap);
        sums = host_sum(heap);
    }
    release_past_ratio(pool, heap, &sums);
    /* An upper bound on the free blocks of the key, before they are counted. */
    if (sums.free_bytes / host_key_bytes(key) > pool->settings.host.caps.blocks_per_bucket)
        release_past_caps(pool, heap, key, blocks_past_cap(pool, heap, key) * host_key_bytes(key));
}

/* Bytes that the machine lacks for this growth. It is checked only now and then, since a check
 * opens files. */
static uint64_t missing_for_growth(struct host_memory *memory, uint64_t bytes)
{
    uint64_t unlooked =
        bytes + atomic_fetch_add_explicit(&memory->unlooked, bytes, memory_order_relaxed);
    if (unlooked < LOOK_BYTES)
        return 0;
    atomic_store_explicit(&memory->unlooked, 0, memory_order_relaxed);
    /* A request that can never be met releases nothing. */
    return bytes > memory->machine.memory_bytes ? 0
                                                : machine_memory_missing(&memory->machine, bytes);
}

void host_release_before_growth(struct pool *pool, uint64_t bytes)
{
    uint64_t missing = missing_for_growth(host_memory_of(pool), bytes);
    if (missing)
        host_give_back(pool, NULL, missing, RELEASE_OUT_OF_MEMORY);
}

void host_release_pending(struct pool *pool, struct context *context)
{
    struct host_heap *heap = host_heap_of(context);
    struct release what = release_of(pool, UINT64_MAX, EVICTION_FREE, true);
    what.choice.pending = true;
    if (heap->context)
        release_from(pool, heap, &what);
}

void host_release_stranded(struct pool *pool, struct context *context)
{
    struct host_heap *heap = host_heap_of(context);
    struct release what = release_of(pool, UINT64_MAX, EVICTION_FREE, true);
    what.stranded = true;
    release_from(pool, heap, &what);
    what.choice.pending = true;
    release_from(pool, heap, &what);
}

/* ---- memory is short ---- */

static uint64_t release_everywhere(struct pool *pool, const struct release *what)
{
    struct release rest = *what;
    uint64_t sum = 0;
    for (struct context *c = context_next(pool, NULL, NULL); c && sum < what->bytes;
         c = context_next(pool, c, NULL)) {
        rest.bytes = what->bytes - sum;
        sum += release_from(pool, host_heap_of(c), &rest);
    }
    return sum;
}

uint64_t host_give_back(struct pool *pool, struct device *device, uint64_t bytes,
                        enum release_place place)
{
    struct release what = release_of(pool, bytes, EVICTION_MEMORY, false);
    bool serves = !device && place != RELEASE_FOR_OTHERS;
    return serves && host_memory_of(pool) ? release_everywhere(pool, &what) : 0;
}

/* Free bytes that nobody has waited for without success during the context's present work.
 * UINT64_MAX: there was no such wait. */
static uint64_t unwaited_bytes(struct pool *pool, struct host_heap *heap)
{
    epoch_ask_all(pool, heap->context);
    uint64_t free = host_sum(heap).free_bytes;
    uint64_t waited_for = atomic_load_explicit(&heap->waited_for, memory_order_relaxed);
    bool holds = waited_for && atomic_load_explicit(&heap->waited_at, memory_order_relaxed) ==
                                   epoch_clean(&heap->context->epochs);
    return holds ? rest_of(free, waited_for) : UINT64_MAX;
}

static void note_waited(struct host_heap *heap)
{
    atomic_store_explicit(&heap->waited_at, epoch_clean(&heap->context->epochs),
                          memory_order_relaxed);
    atomic_store_explicit(&heap->waited_for, host_sum(heap).free_bytes, memory_order_relaxed);
}

/* No block can be released while the context works. Waits until that work has completed, another
 * thread's free has released something, or time is up. In a context that the pool no longer serves,
 * nobody can tell whether there is work. True if another thread has released something, so that the
 * driver may have enough now. */
static bool wait_for_quiet(struct pool *pool, struct context *context,
                           const struct reclaim *progress, uint64_t give_up_at)
{
    struct host_heap *heap = host_heap_of(context);
    uint64_t started = monotonic_now(), reserved = counter_get(&heap->reserved_bytes);
    if (!heap->context || unwaited_bytes(pool, heap) < progress->wanted)
        return false;
    while (has_any(heap) && context_is_usable(context) && !program_captures(&pool->captures) &&
           counter_get(&heap->reserved_bytes) >= reserved && monotonic_now() < give_up_at &&
           !nothing_runs(pool, context)) {
        want(pool, progress->bytes);
        seldom_nap(started, LOOK_NANOSECONDS);
    }
    uint64_t now = monotonic_now();
    if (now >= give_up_at && now - started >= STALLED_WAIT_NANOSECONDS / 2)
        note_waited(heap);
    return counter_get(&heap->reserved_bytes) < reserved;
}

/* Releases no memory of a device. But without the pool, the frees of pinned memory would have
 * waited for the context's work. Memory that the program has freed in other ways would then be
 * available. True if that work has completed. */
static bool wait_for_frees(struct pool *pool, struct context *context,
                           const struct reclaim *progress, uint64_t give_up_at)
{
    uint64_t stamp = host_newest_pending(host_heap_of(context));
    if (!stamp)
        return false;
    epoch_fence_the_rest(pool, context);
    context_lock(context);
    bool over = epoch_wait_for_pending(pool, context, stamp, progress->started, give_up_at);
    context_unlock(context);
    return over;
}

bool host_wait_for_the_rest(struct pool *pool, struct device *device,
                            const struct reclaim *progress)
{
    uint64_t patience =
        progress->in_stream_order ? STALLED_WAIT_NANOSECONDS : LAST_RESORT_NANOSECONDS;
    uint64_t give_up_at = smaller_of(progress->give_up_at, monotonic_now() + patience);
    bool over = false;
    if (!host_memory_of(pool))
        return false;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        if (progress->bound == RECLAIM_MACHINE)
            over |= wait_for_quiet(pool, c, progress, give_up_at);
        else if (host_heap_of(c)->context && may_wait_for_frees(pool, device, c, progress))
            over |= wait_for_frees(pool, c, progress, give_up_at);
    if (progress->bound == RECLAIM_MACHINE)
        want(pool, 0);
    return over;
}

/* ---- idle blocks, and the housekeeper ---- */

typedef void visit_bin(struct host_bin *bin, void *argument);

static void visit_bins(const struct host_heap *heap, visit_bin *visit, void *argument)
{
    for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next) {
        host_lock(shard);
        for (struct bucket *b = shard->bins.first; b; b = b->next)
            visit((struct host_bin *)b, argument);
        host_unlock(shard);
    }
}

static void restamp(struct host_bin *bin, void *argument)
{
    const uint64_t *now = argument;
    for (struct block *b = bin->bucket.clean.first; b; b = b->links[LINK_BUCKET].next)
        b->freed_at = *now;
    for (struct block *b = bin->bucket.pending.first; b; b = b->links[LINK_BUCKET].next)
        b->freed_at = *now;
}

void host_tell_time(struct host_heap *heap, uint64_t now)
{
    uint64_t told = counter_get(&heap->now);
    bool stood_still = told < now && now - told > 2 * HOUSEKEEPING_INTERVAL;
    counter_set(&heap->now, now);
    if (stood_still)
        visit_bins(heap, restamp, &now);
}

/* If nothing was freed since the last look, the program's frees may record no fence for what is
 * pending. It then gets one that is only queried. */
static void look_at_pending(struct pool *pool, struct host_heap *heap)
{
    uint64_t newest = host_newest_pending(heap);
    if (newest && newest == heap->pending_when_looked)
        epoch_fence_the_rest(pool, heap->context);
    heap->pending_when_looked = newest;
    if (newest)
        epoch_ask_all(pool, heap->context);
}

static void note_oldest(struct host_bin *bin, void *argument)
{
    uint64_t *oldest = argument;
    if (bin->bucket.clean.first)
        *oldest = smaller_of(*oldest, bin->bucket.clean.first->freed_at);
}

/* Releases idle blocks. Returns when the next block is due. */
static uint64_t release_idle_in(struct pool *pool, struct host_heap *heap, uint64_t now)
{
    uint64_t idle = pool->settings.host.release_after_idle_ns, oldest = UINT64_MAX;
    struct release what = release_of(pool, HOUSEKEEPING_PORTION, EVICTION_IDLE, false);
    what.choice.freed_before = rest_of(now, idle);
    host_tell_time(heap, now);
    look_at_pending(pool, heap);
    if (idle && is_quiet(pool) && release_from(pool, heap, &what) >= HOUSEKEEPING_PORTION)
        return RELEASE_MORE_AT_ONCE;
    if (idle)
        visit_bins(heap, note_oldest, &oldest);
    return oldest < UINT64_MAX - idle ? oldest + idle : UINT64_MAX;
}

/* Releases unused pinned memory before the kernel kills a process of the cgroup for lack of memory.
 */
uint64_t host_leave_to_machine(struct pool *pool, uint64_t now)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    const struct host_memory *memory = host_memory_of(pool);
    if (!memory || all_free_bytes(pool) == 0)
        return UINT64_MAX;
    uint64_t missing = machine_memory_missing(&memory->machine, 0);
    if (missing)
        missing = rest_of(missing, host_give_back(pool, NULL, missing, RELEASE_OUT_OF_MEMORY));
    want(pool, missing);
    bool near =
        machine_memory_missing(&memory->machine, memory->machine.memory_bytes / NEAR_SHARE) != 0;
    return near ? now + NEAR_NANOSECONDS : UINT64_MAX;
}

uint64_t host_release_idle(struct pool *pool, struct device *device, uint64_t now)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (!host_memory_of(pool))
        return UINT64_MAX;
    uint64_t next = UINT64_MAX;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        if (host_heap_of(c)->context)
            next = smaller_of(next, release_idle_in(pool, host_heap_of(c), now));
    return next;
}

bool host_watch(struct pool *pool)
{
    bool any = false;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        any |= host_heap_of(c)->context && (host_sweep_and_sum(host_heap_of(c)).free_bytes ||
                                            host_has_deferred(host_heap_of(c)));
    return any;
}

void host_add_kept(struct pool *pool, struct device *device, struct kept_bytes *sum)
{
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        struct host_heap *heap = host_heap_of(c);
        if (!heap->context)
            continue;
        struct host_sums sums = host_sweep_and_sum(heap);
        sum->live += rest_of(counter_get(&heap->reserved_bytes), sums.free_bytes);
        sum->cached += rest_of(sums.free_bytes, sums.pending_bytes);
        sum->pending += sums.pending_bytes;
    }
}
