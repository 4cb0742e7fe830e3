/*
 * Thread caches: blocks that a thread allocates and frees without a lock.
 *
 * Each thread has a cache of its own in every heap that it uses, and finds it through thread_state
 * without a search. A cache has a bin for each bucket that its thread has used. A bin holds clean
 * blocks, which the GPU no longer uses, the newest on top. It holds pending blocks, which the GPU
 * may still use, in one segment for each epoch. A segment's stamp is its epoch's number, and
 * segments ascend by stamp. A segment becomes clean as a whole.
 *
 * A free on the fast path claims the block (of two racing frees one wins) and then reads the
 * epoch's number. It puts the block into the segment of that number. An allocation on the fast path
 * takes the newest of the bin's clean blocks, or of its segments that have become clean.
 *
 * The slow path does everything else, under the heap lock. It takes a block from the first source
 * that has one (ladder.h). The bin's segments are such a source, beside the bucket's list of
 * pending blocks (place.h). The slow path also makes and refills bins (cache_bin.h), closes epochs
 * (free_fence.h), and moves surplus blocks to the heap's lists.
 *
 * Order: A free is ordered before a fence without a lock, for this reason. The fence of epoch N is
 * recorded after the number was advanced past N (epoch_begin_close). A free reads the number after
 * the program has submitted all work that precedes the free. Submitting work and recording a fence
 * both take the driver's own lock (of the context, or of each of its streams). Take a free that
 * reads N, and suppose that the fence was recorded before the work was submitted. Then the number
 * was advanced before the fence was recorded, and so before the work was submitted (by the driver's
 * lock). The work was submitted before the free read the number (by program order). So the free
 * would have read more than N. Hence the fence was recorded after the work was submitted, and waits
 * for that work.
 *
 * The argument needs only coherence, so all loads and stores of the number are relaxed. Where
 * another thread submitted the work, the program has ordered the submission before the free. The
 * argument also holds where the program itself synchronises the context. The pool then advances the
 * number before the synchronise begins. (On x86-64 it holds without the driver's lock as well. The
 * number is read after the claim, and the fence lock is taken between advancing the number and
 * recording. Both are full barriers.)
 *
 * Since the number is read after the claim, a stamp is never older than the allocation that the
 * free ends. Stamps in a bin ascend, since a thread never reads a smaller number after a larger
 * one. The clean epoch's number never decreases, so a stale value only shows fewer blocks as clean.
 *
 * Who may touch a cache:
 * - its thread while it is inside;
 * - its thread with the heap lock held;
 * - whoever holds the heap lock and has closed the heap's caches.
 *
 * "Inside" is a lock. Its owner takes it by a plain store to inside, then a load of heap->closed. A
 * closer sets a bit in heap->closed with the heap lock held. It makes every processor that runs
 * this process pass a memory barrier (membarrier), and waits until no thread is inside. Either the
 * closer sees the thread inside, or the thread sees the bit. A thread that sees the bit leaves
 * without having looked at anything, and takes the slow path. A thread inside takes no lock and
 * calls nothing that may wait, so the closer's wait is short. Where the kernel has no membarrier,
 * or no longer allows it, the bit CLOSED_WEAKLY is set. A thread that finds this bit enters once
 * more, by a sequentially consistent exchange.
 *
 * heap->closed has a bit for each condition in which the fast path must not be used (enum closed).
 * The end of a context waits until no thread is inside, and so does the emptying of caches. Once
 * the end of a context has waited, no cache hands out a block. Every call reads the other bits.
 * These reads are ordered no more strictly than the slow path's own reads of the conditions. Every
 * call also reads one word of the registry, which tells of captures and of handles that have become
 * invalid. While large blocks may not be worth keeping (keep.h), no cache holds any: they are taken
 * out first.
 *
 * Bounds: A bucket may have at most blocks_per_bucket free blocks, by the settings. Its bins in all
 * caches together may hold three quarters of that. The rest is reserved for the heap's lists. So
 * the cap holds for all threads together. Where several caches are awake, each may hold its share
 * of the growth budget. Sizes of which fewer than CACHE_BIN_LEAST blocks would fit then have no
 * bin. When the epoch's number changes or a fence is due, a cache that holds too much moves the
 * surplus to the heap's lists. Blocks that it has not used lately go first. A full bin moves its
 * older half.
 *
 * Sleep: The cache of a thread that does nothing for CACHE_IDLE falls asleep. It is emptied, has no
 * bins, and leaves the list that sums walk through. The heap then counts the bytes that the thread
 * holds. The thread's next call takes the slow path and wakes the cache. The cache of a thread that
 * has ended is asleep as well, until another thread takes it over.
 *
 * Waiting: A bin may have no block that is known to be clean. Its thread then waits for the fence
 * of the pending blocks (cache_wait.h), if the GPU has kept up so far. It waits without a lock, and
 * watches the clean epoch's number. One of the waiting threads queries the fence for all; a thread
 * that records a fence queries it at once. Such a wait is a short wait of rung 4 (ladder.h), for a
 * waitable fence (epoch.h). A thread that has waited for as long as a new block would have taken
 * gets a new block, where the heap may grow. So each thread gets as many blocks as it needs. While
 * the driver makes a block, every fence waits for that call. Threads that wait for fences would
 * then take new blocks one after the other, and never reuse one. So one thread at a time asks for a
 * new block (policy_growth_is_due), and the others wait for that call, too. While the GPU is busy,
 * threads do not wait here but take the slow path.
 *
 * Taking from other caches: thread_caches_take makes all caches give up those blocks of a bucket
 * that exceed their threads' shares. A thread calls it where it has nothing to wait for and the
 * reserve may not grow. A thread also calls it before it takes a new block, if other caches hold
 * much clean memory or memory is short. Where calls in close succession find too few blocks for
 * useful shares, the bucket becomes shared (CACHE_TAKEN_OFTEN). For a while no cache then has a bin
 * for the bucket, and the heap's lists serve it, under the lock. Buckets of small blocks are never
 * shared for that reason, since there may be more small blocks.
 *
 * Emptying: thread_caches_collect empties all caches of the heap into its lists. That happens when
 * memory runs out, the program trims, or idle blocks are looked for. It also happens when the
 * reserve is about to exceed its ratio, or cached bytes exceed their cap. A cache is also emptied
 * when its thread ends. That takes no driver call, and another thread then uses the cache's record.
 * A thread whose cache was emptied at its end takes the slow path from then on.
 *
 * Ends of threads: The destructor of a pthread key tells that a thread ends. The key's value is set
 * without a lock. Otherwise a thread that first uses the pool might wait for a thread in dlopen,
 * which waits for it. If the first use is in another key's destructor, the pool's destructor runs
 * in the next round of destructors. A thread whose first use is in the last round leaves its cache
 * unemptied. So does a thread that ends without destructors (by the bare system call). Another
 * thread takes that cache over when it needs one.
 *
 * Fences are shared: A cache counts what its thread has freed without a fence. A free that changes
 * the epoch's number records a fence for everything that was freed before. While the
 * GPU keeps up, a fence is due once one thread has freed half as many blocks as a bin may hold. The
 * bin's other half lasts until the fence has completed. The threads of all awake caches together
 * may free as many bytes without a fence as a heap without caches. Threads that have not freed
 * lately have a share, too, since they may begin at any moment. Of threads whose fence is due at
 * the same time, one closes the epoch and the others go on for some microseconds. If that thread
 * has lost its processor by then, the others close the epoch.
 *
 * Counters: Each counter has one writer, the cache's thread or whoever has closed the caches.
 * Readers sum them up. A sum over several caches is no snapshot: a block that moves meanwhile may
 * not count. No block counts twice in the sum of what the program holds, which bounds the reserve.
 * A look through all caches takes one or two of the processor's cache lines from every thread. So
 * with more than SUMS_FEW_THREADS threads, the slow path looks only twice: once in an epoch, and
 * once when the next epoch is clean. Such a look raises the peaks of live bytes. So do a request to
 * the driver and a report. In between, live bytes may exceed the recorded peaks, by at most
 * CACHE_PEAK_STEP for each thread.
 *
 * A signal handler may end the process while its thread is inside or holds a heap lock. A thread
 * that ends in such a handler leaves its caches as they are.
 */
#ifndef CUDAPOOL_CORE_THREAD_CACHE_H
#define CUDAPOOL_CORE_THREAD_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/contexts/context.h"
#include "heap.h"

struct pool;

/* A bin holds at most CACHE_BIN_BLOCKS blocks and CACHE_BIN_BYTES bytes. While several caches are
 * awake, no bin is made that could not hold CACHE_BIN_LEAST blocks. */
#define CACHE_BIN_BLOCKS 256u
#define CACHE_BIN_BYTES  (UINT64_C(128) << 20)
#define CACHE_BIN_LEAST  4u

/* While several threads have a cache, all caches together may hold as many bytes as the growth
 * budget, or CACHES_LEAST_BYTES if that is more. */
#define CACHES_LEAST_BYTES (UINT64_C(16) << 20)

/* A cache that holds too much first empties bins that were not used for this many epochs. */
#define CACHE_UNUSED_EPOCHS 8u

/* The cache of a thread that does nothing for this long falls asleep: nanoseconds. */
#define CACHE_IDLE UINT64_C(10000000)

/* Nanoseconds. A thread in an allocation waits, without a lock, for a fence that is about to
 * complete: for CACHE_WAIT_LONGEST at most. While other threads are in the driver for new blocks,
 * every fence waits for their calls. That time counts separately, and may be CACHE_WAIT_BESIDE at
 * most. After the heap could not grow, a thread waits for CACHE_WAIT_NO_GROWTH in all before it
 * asks for a new block again. */
#define CACHE_WAIT_LONGEST   30000
#define CACHE_WAIT_BESIDE    1000000
#define CACHE_WAIT_NO_GROWTH 1000000

/* Nanoseconds, except CACHE_TAKEN_OFTEN. A bucket becomes shared when thread_caches_take finds too
 * few of its blocks for useful shares for the CACHE_TAKEN_OFTEN-th time. Each time must be less
 * than CACHE_TAKEN_APART after the one before. Caches then hold no block of the bucket for
 * CACHE_SHARED_FIRST. That span is doubled each time that the bucket becomes shared again soon, up
 * to CACHE_SHARED_LONGEST. */
#define CACHE_TAKEN_APART    UINT64_C(2000000)
#define CACHE_TAKEN_OFTEN    16u
#define CACHE_SHARED_FIRST   UINT64_C(50000000)
#define CACHE_SHARED_LONGEST UINT64_C(3200000000)

/* A bucket of blocks of at most growth budget / CACHE_SHARED_SHARE bytes does not become shared,
 * however often its blocks are taken out of caches. */
#define CACHE_SHARED_SHARE 1024u

/* A lone thread may free the device's fence_bytes << CACHE_DOUBLINGS without a fence. */
#define CACHE_DOUBLINGS 1u

/* A fence that is due only because memory is to stay hot (hot_memory.h) is put off until the
 * CACHE_HOT_LAUNCHES-th launch since the last fence. A fence costs about a third of a launch. */
#define CACHE_HOT_LAUNCHES 4u

/* A thread that leaves its due fence to another, or puts the fence off, looks again later. In
 * between it frees 1 / CACHE_AGAIN_SHARE of what may be freed without a fence. */
#define CACHE_AGAIN_SHARE 4u

#define CACHE_SEGMENTS 8u  /* segments of a bin: a power of two */
#define CACHE_EPOCHS   16u /* epochs whose frees a cache remembers: a power of two */

/* Blocks freed in one epoch, chained through LINK_BUCKET's next from the newest to the oldest. */
struct cache_segment {
    counter stamp;        /* number of its epoch; 0: not in use */
    counter frees_before; /* the bin's frees when the segment was opened */
    struct block *newest, *oldest;
    uint64_t opened_at; /* nanoseconds of the monotonic clock, as of the heap's last slow path */
};

/* room + blocks in the bin = capacity
 * blocks in the bin = counters->frees + counters->moved - counters->hits, modulo 2^64 */
struct cache_bin {
    struct size_span requests;       /* request sizes that it serves */
    _Atomic(struct bucket *) bucket; /* NULL: it serves none. Written under the heap lock. Relaxed:
                                        readers only compare it and read counters */
    struct block *clean;             /* the newest clean block; chained like a segment */
    struct cache_segment *open;      /* the newest segment, or one with stamp 0 */
    uint32_t room;                   /* number of blocks that it may still take */
    struct bin_counters *counters;   /* part of struct figures */
    uint64_t bytes;                  /* size of each of its blocks */
    uint32_t capacity;
    uint32_t first, segment_count; /* segments in use: from first % CACHE_SEGMENTS on */
    uint64_t newest_stamp;         /* stamp of the segment that was opened last */
    uint32_t refill_blocks;        /* number of blocks that the next refill brings */
    uint64_t clean_freed_at;       /* opened_at of the segment that became clean last */
    /* How often its thread had used the bin when the housekeeper last saw that number change. When
     * the housekeeper saw it: nanoseconds of the monotonic clock. Written under the heap lock. */
    uint64_t seen_use, seen_at;
    struct cache_segment segments[CACHE_SEGMENTS];
};

/* Bytes that were freed in an epoch, and how many of them the slow path has taken away. */
struct cache_epoch {
    counter stamp;
    counter freed, taken;
};

/* free bytes in the cache = freed_bytes + moved_bytes - handed_out_bytes, modulo 2^64 */
struct thread_cache {
    /* ---- the thread's own, on the fast path; others read the counters ---- */
    _Atomic uint32_t inside; /* 1 while its thread is inside */
    uint32_t frees_left;     /* frees until a fence is due */
    struct heap *heap;
    struct pool *pool;
    counter freed_bytes, handed_out_bytes;  /* bytes of blocks on the fast path, in total */
    uint64_t freed_bytes_at_fence;          /* a fence is due once freed_bytes is this much */
    counter requested_out, requested_freed; /* requested bytes of those handed out, and freed */
    /* Hits raise no peak while requested_out <= out_noted_up_to. live_noted_up_to is that limit for
     * requested_out - requested_freed (signed): see CACHE_PEAK_STEP. Whoever puts the cache to
     * sleep sets both as well, perhaps while the thread reads them. If the thread then sets one too
     * high, it is right again in the next epoch. */
    counter out_noted_up_to, live_noted_up_to;

    /* ---- written with the heap lock held ---- */
    /* Bytes that the slow path has put into bins, less those that it took out. */
    counter moved_bytes;
    pid_t thread; /* the kernel's id of its thread; 0: it has none */
    /* Slot of its thread, see heap.h. Relaxed: it chooses whose share is counted. */
    _Atomic uint8_t slot;
    /* Shift to the right of the device's fence_bytes << CACHE_DOUBLINGS. */
    uint8_t fence_bytes_shift;
    uint32_t frees_to_fence; /* value of frees_left after a fence */
    /* Bytes that may be freed without a fence while memory is to stay hot (policy_keeps_hot). 0: no
     * such limit. */
    uint64_t hot_fence_bytes;
    unsigned sized_for; /* number of awake caches when its bins were sized */

    /* ---- the thread's own, once an epoch or where it waits ---- */
    int64_t waited_ns; /* waits in allocations since the last growth; see CACHE_WAIT_LONGEST */
    counter stamp;     /* the epoch's number that its thread last read in a free */
    counter freed_bytes_before; /* freed_bytes when it first read that number */
    uint32_t launches_before;   /* its thread's launches of work when it last closed an epoch */
    uint64_t left_fence_stamp;  /* the stamp whose fence it last left to another thread */
    uint64_t left_fence_at;     /* when it first did so: nanoseconds of the monotonic clock */

    /* ---- bins, and what was freed when ---- */
    /* by_request has the bin that last served a request size. Only the cache's thread uses it. bins
     * has each bucket's bin, and is written under the heap lock. The release stores to bins pair
     * with the acquire loads in sums.c; the cache's thread loads bins relaxed. */
    struct cache_bin *by_request[CACHE_BINS];
    _Atomic(struct cache_bin *) bins[CACHE_BINS];
    /* The epochs before the epoch `stamp`. In the entry of epoch `stamp`, only taken is current. */
    struct cache_epoch epochs[CACHE_EPOCHS];

    /* ---- lists and sleep: guarded by the heap lock ---- */
    struct thread_cache *next; /* in the list of all caches; written before the cache is listed */
    /* In the list of awake caches. A cache may be listed again. */
    _Atomic(struct thread_cache *) next_awake;
    struct thread_cache *next_spare;
    bool awake;
    bool in_slow_path; /* its thread allocates there, and may wait for long */
    /* Whether the GPU kept up when the limits on frees without a fence were last set. */
    bool fence_set_while_keeping_up;
    /* freed_bytes + handed_out_bytes when its thread was last seen active, and when that was:
     * nanoseconds of the heap's clock. */
    uint64_t seen_use, seen_at;
    struct thread_cache *next_of_thread; /* its thread's next cache, in another heap */
};

/* Hits raise no peak until the thread holds this many bytes more than when peaks were last
 * raised. */
#define CACHE_PEAK_STEP (INT64_C(32) << 20)

/* Stands for the cache of a thread that has none. Its heap is NULL. */
extern struct thread_cache no_thread_cache __attribute__((visibility("hidden")));

/* ---- the fast path: called by the cache's thread, no lock held ---- */

/* The index in by_request of a request of this size. */
static inline unsigned cache_index(uint64_t bytes)
{
    return size_class_place(bytes, CACHE_BINS);
}

static inline struct bucket *cache_bin_bucket(const struct cache_bin *bin)
{
    return atomic_load_explicit(&bin->bucket, memory_order_relaxed);
}

/* Sets the first block of a chain in a bin: of bin->clean or segment->newest. Relaxed, see
 * block_cached_next. */
static inline void cache_set_block(struct block **first, struct block *block)
{
    __atomic_store_n(first, block, __ATOMIC_RELAXED);
}

static inline struct block *cache_first_block(struct block *const *first)
{
    return __atomic_load_n(first, __ATOMIC_RELAXED);
}

/* Enters the cache. True if the fast path is closed. If only CLOSED_WEAKLY closes it,
 * thread_cache_enter_strongly can still enter. cache_leave must follow in every case. */
static inline bool cache_enter(struct thread_cache *cache, const struct heap *heap)
{
    atomic_store_explicit(&cache->inside, 1, memory_order_relaxed);
    /* Orders the compiler only. The closer makes the processor pass a barrier, see
     * thread_caches_wait. */
    atomic_signal_fence(memory_order_seq_cst);
    /* This load is also an acquire load. It pairs with the clearing of a bit by the thread that had
     * closed the caches. */
    return atomic_load_explicit(&heap->closed, memory_order_seq_cst) != 0;
}

/* Inside, after cache_enter found the fast path closed: enters by an exchange. True if
 * CLOSED_WEAKLY is the only bit set. */
bool thread_cache_enter_strongly(struct thread_cache *cache);

static inline void cache_leave(struct thread_cache *cache)
{
    /* Pairs with the load in thread_caches_wait, so that the closer sees what was done inside. */
    atomic_store_explicit(&cache->inside, 0, memory_order_release);
}

/* The bin that may have a block for the request, or NULL. */
static inline struct cache_bin *cache_find_bin(const struct thread_cache *cache, size_t bytes)
{
    struct cache_bin *bin = cache->by_request[cache_index(bytes)];
    return __builtin_expect(size_span_has(&bin->requests, bytes), 1) ? bin : NULL;
}

static inline struct cache_bin *cache_bin_at(const struct thread_cache *cache, unsigned place)
{
    return atomic_load_explicit(&cache->bins[place], memory_order_relaxed);
}

/* Returns what requested_out will be after a hit of this many bytes. If cache_raises_no_peak is
 * false for that value, the hit may raise a peak, and thread_cache_note_peaks must follow. */
static inline uint64_t cache_out_after_hit(const struct thread_cache *cache, size_t bytes)
{
    return counter_get(&cache->requested_out) + bytes;
}

static inline bool cache_raises_no_peak(const struct thread_cache *cache, uint64_t out)
{
    return out <= counter_get(&cache->out_noted_up_to);
}

/* Lowers live_noted_up_to to what the thread holds now plus CACHE_PEAK_STEP, if it is higher. Sets
 * out_noted_up_to to match. So live bytes exceed the peaks by no more than CACHE_PEAK_STEP. */
static inline void cache_follow_live(struct thread_cache *cache)
{
    uint64_t back = counter_get(&cache->requested_freed);
    int64_t most = (int64_t)(counter_get(&cache->requested_out) - back) + CACHE_PEAK_STEP;
    int64_t live = (int64_t)counter_get(&cache->live_noted_up_to);
    live = live > most ? most : live;
    counter_set(&cache->live_noted_up_to, (uint64_t)live);
    counter_set(&cache->out_noted_up_to, (uint64_t)live + back);
}

/* Not inside. Raises the peaks if the program holds more than when they were last raised. */
void thread_cache_note_peaks(struct thread_cache *cache, const struct cache_bin *bin);

/* Inside. Hands out the newest clean block for a request of this many bytes. out: from
 * cache_out_after_hit. */
static inline CUdeviceptr cache_hand_out(struct thread_cache *cache, struct cache_bin *bin,
                                         struct block *block, size_t bytes, uint64_t out)
{
    cache_set_block(&bin->clean, block_cached_next(block));
    bin->room++;
    counter_set(&block->requested, bytes);
    counter_add(&bin->counters->requested_bytes, bytes);
    counter_set(&cache->requested_out, out);
    counter_add(&cache->handed_out_bytes, bin->bytes);
    counter_add(&bin->counters->hits, 1);
    CUdeviceptr address = block_address(block);
    block_set(block, address, BLOCK_LIVE);
    return address;
}

/* Inside. Moves blocks that have become clean to bin->clean. Returns the newest clean block, or
 * NULL. */
struct block *thread_cache_turn_clean(struct thread_cache *cache, struct cache_bin *bin);

/* Inside, where the newest segment has the block's stamp. Puts a claimed block into that segment.
 * True: a fence is due, and the slow path must close the epoch (heap_close_epoch). */
static inline bool cache_push(struct thread_cache *cache, struct cache_bin *bin,
                              struct block *block)
{
    struct cache_segment *open = bin->open;
    block_set_cached_next(block, open->newest);
    cache_set_block(&open->newest, block);
    bin->room--;
    counter_add(&cache->requested_freed, counter_get(&block->requested));
    uint64_t freed = counter_get(&cache->freed_bytes) + bin->bytes;
    counter_set(&cache->freed_bytes, freed);
    counter_add(&bin->counters->frees, 1);
    return --cache->frees_left == 0 || freed >= cache->freed_bytes_at_fence;
}

/* Inside, or with the heap lock held, where the bin is not full. Puts a claimed block into the bin.
 * stamp: the newest segment's or a newer one. Returns what cache_push does. */
bool thread_cache_push(struct thread_cache *cache, struct cache_bin *bin, struct block *block,
                       uint64_t stamp);

/* Whether no block can be put into the bin. */
static inline bool thread_cache_is_full(const struct cache_bin *bin)
{
    return bin->room == 0;
}

/* Inside, where nothing is clean: what the bin holds. */
struct cache_pending {
    uint64_t stamp;  /* stamp of the oldest block; 0: there is none */
    uint32_t blocks; /* number of blocks of all stamps */
    bool full;       /* the bin can take no more */
};
struct cache_pending thread_cache_look(const struct cache_bin *bin);

enum cache_pushed {
    PUSHED,
    PUSHED_FENCE_DUE,
    NOT_PUSHED, /* the caller must take the slow path: heap_free */
};

/* Inside; leaves the cache. Puts a claimed block into its bin where cache_push is not enough: in
 * another epoch, or where the bin may be full. NOT_PUSHED: the block is live again. */
enum cache_pushed thread_cache_push_claimed(struct thread_cache *cache, struct block *block,
                                            CUdeviceptr address, uint64_t stamp);

/* ---- a due fence: by the cache's thread with the heap lock held ---- */

/* Sets both limits on frees without a fence from now on. One is this number of frees. The other is
 * the device's fence_bytes << doublings >> halvings. doublings <= CACHE_DOUBLINGS. */
void thread_cache_set_fence(struct thread_cache *cache, uint32_t frees, unsigned doublings,
                            unsigned halvings);

/* Another thread will make the fence that is due. Until then 1 / CACHE_AGAIN_SHARE of the usual
 * amount may be freed without one. Needs no lock. */
void thread_cache_count_again(struct thread_cache *cache);

/* No fence could be made, so the next free asks for one again. Needs no lock. */
void thread_cache_ask_again(struct thread_cache *cache);

/* Where hot_fence_bytes is not 0: puts the due fence off under two conditions, and returns whether
 * it did. The fence is due only because memory is to stay hot, and the program has launched too
 * little since the last fence (CACHE_HOT_LAUNCHES). Without a launch nothing keeps memory hot, and
 * a lone thread may free twice as much as otherwise. Needs no lock. */
bool thread_cache_puts_fence_off(struct thread_cache *cache);

/* ---- what is in a cache ---- */

/* Stands where a cache has no bin. Never written. */
extern struct cache_bin cache_no_bin __attribute__((visibility("hidden")));

/* Walk through the heap's caches that may hold something. Without the heap lock, a cache that is
 * listed anew meanwhile may lead to caches that were seen before: see heap_bytes. */
static inline struct thread_cache *thread_caches_first(const struct heap *heap)
{
    /* Pairs with the release store in thread_cache_wake. */
    return atomic_load_explicit(&heap->caches.awake, memory_order_acquire);
}

static inline struct thread_cache *thread_cache_next(const struct thread_cache *cache)
{
    /* Pairs with the release stores where caches are listed and taken off the list. */
    return atomic_load_explicit(&cache->next_awake, memory_order_acquire);
}

static inline uint8_t thread_cache_slot(const struct thread_cache *cache)
{
    return atomic_load_explicit(&cache->slot, memory_order_relaxed);
}

/* Bytes that a cache has in all bins, clean and pending. Any thread may call this while the cache's
 * thread changes the counters. On x86-64, blocks that the thread hands out meanwhile still count.
 * Elsewhere stores become visible in any order, and a cache in use may look empty for a moment. */
static inline uint64_t thread_cache_bytes(const struct thread_cache *cache)
{
    uint64_t handed = counter_get(&cache->handed_out_bytes);
    /* Pairs with no other fence: it only keeps the loads in this order. */
    counter_fence(memory_order_acquire);
    uint64_t bytes = counter_get(&cache->freed_bytes) + counter_get(&cache->moved_bytes) - handed;
    return (int64_t)bytes < 0 ? 0 : bytes;
}

/* Bytes that its thread has freed since it last saw the epoch's number change. */
static inline uint64_t cache_freed_in_epoch(const struct thread_cache *cache)
{
    return counter_get(&cache->freed_bytes) - counter_get(&cache->freed_bytes_before);
}

/* The number of blocks in the bin, clean and pending. */
static inline uint64_t cache_bin_blocks(const struct cache_bin *bin)
{
    return counter_get(&bin->counters->frees) + counter_get(&bin->counters->moved) -
           counter_get(&bin->counters->hits);
}

/* The bin's oldest segment. If the bin has none, the place of the next one. */
static inline struct cache_segment *cache_oldest_segment(struct cache_bin *bin)
{
    return &bin->segments[bin->first % CACHE_SEGMENTS];
}

/* Inside, or with the caches closed. Forgets the oldest segment, whose blocks have moved
 * elsewhere. */
void cache_drop_oldest_segment(struct cache_bin *bin);

/* The stamp of the bin's oldest pending blocks; 0: none are pending. */
static inline uint64_t thread_cache_oldest_stamp(const struct cache_bin *bin)
{
    return bin->segment_count ? counter_get(&bin->segments[bin->first % CACHE_SEGMENTS].stamp) : 0;
}

#endif
