/*
 * Thread caches: blocks that a thread takes and frees without a lock.
 *
 * Each thread has a cache of its own in every heap that it uses, found through thread_state without
 * a search. A cache has a bin for each bucket that the thread has used. A bin holds clean blocks,
 * the newest on top, and pending ones in segments, one to an epoch, by ascending stamp. A segment
 * becomes clean as a whole.
 *
 * The fast path of a free: claim the block (of two racing frees one wins), read the epoch's number,
 * put the block into the segment of that number. The fast path of an allocation: the newest of the
 * bin's clean blocks, or of its segments that have become clean. Everything else is the slow
 * path's, under the heap lock: it climbs the ladder (ladder.h), with the bin's segments beside the
 * bucket's list of pending blocks (place.h), makes and refills bins (cache_bin.h), closes epochs
 * (free_fence.h), and takes what is too much into the heap's lists.
 *
 * Why a free needs no lock to be covered by a fence. A fence for epoch N is recorded after the
 * number was advanced past N (epoch_begin_close), and the free reads N after everything that the
 * program has submitted before it. Submitting and recording both take the driver's own lock (of the
 * context, or of each of its streams). Had the record held it before the submission did, then
 * "number advanced" would happen before "record", that before "submission" (by the driver's lock)
 * and that before "number read" (the program's order): so the free would have read more than N. The
 * record came after the submission, and covers it. Coherence alone says so; the loads and stores of
 * the number are relaxed. Where work was submitted by another thread, the program has ordered that
 * before the free. The same goes for the program's own context-wide synchronise, which advances the
 * number before it begins. (On x86-64 it would hold without the driver's lock, too: the claim,
 * after which the number is read, and the fence lock, taken between the advance and the record, are
 * full barriers.) The number is read after the claim, so a stamp is never older than the life that
 * the free ends; stamps in a bin ascend, since a thread never reads a smaller number after a larger
 * one. clean never decreases, so a look at it that comes late only finds less.
 *
 * Who may touch a cache: its thread while it is inside; whoever holds the heap lock and has closed
 * the heap's caches; its thread with the heap lock held. "Inside" is a lock that costs its owner
 * nothing: a plain store, then a look at heap->closed. Whoever closes the caches sets a bit there
 * with the heap lock held, makes every processor that runs this process pass a memory barrier
 * (membarrier), and waits until no thread is inside: it either sees the thread inside, or the
 * thread sees the bit, leaves without having looked at anything, and takes the slow path. Nobody
 * inside takes a lock or calls anything outside this file, so the wait is short. Where the kernel
 * has no membarrier, or no longer allows it, the bit CLOSED_WEAKLY is set, and a thread that finds
 * it enters once more, by a sequentially consistent exchange.
 *
 * heap->closed stands for whatever makes the fast path wrong, see enum closed. The end of a context
 * is waited for like an emptying: when that returns, nothing is handed out any more. The other bits
 * are looked at by every call, with no more order than the slow path's own looks at the same facts.
 * Captures and handles that have become invalid are one word of the registry, which every call
 * looks at, too. While large blocks may not be worth keeping (keep.h), no cache holds any: they are
 * taken out first.
 *
 * Bounded: a bin has a capacity, which is taken out of what the settings allow its bucket
 * (blocks_per_bucket, of which a quarter stays with the heap's lists), so that cap holds for all
 * threads together. Where several caches are awake, each may hold its part of the growth budget,
 * and sizes of which fewer than CACHE_BIN_LEAST blocks would fit have no bin. When a number changes
 * or a fence is due, a cache that holds too much gives the rest to the heap: what it has not used
 * lately first. A full bin gives its older half.
 *
 * The cache of a thread that does nothing for CACHE_IDLE falls asleep: it is emptied, keeps no bin,
 * is out of the list that sums walk through, and what its thread holds is the heap's to count. Its
 * thread's next call takes the slow path, and wakes it. The cache of a thread that has ended is
 * asleep as well, until another thread takes it over.
 *
 * Where nothing in a bin is known to be clean, and the GPU has kept up so far, a thread waits for
 * the fence of what is pending there (cache_wait.h), without a lock: it looks at the number
 * that is clean. One of those who wait asks the driver; who records a fence asks at once. Such a
 * wait is rung 4's, for a fence that may be waited for, and short. A thread that has waited for as
 * long as a new block takes gets one, where the heap may grow: so each gets as many as it needs.
 * But every fence waits for the driver while it makes a block, so that those who wait for fences
 * would take new blocks in turn and never get one: it is done by one thread at a time
 * (policy_growth_is_due); the others wait for that, too. While the GPU is busy threads do not wait
 * here, but go the slow way.
 *
 * Blocks of one thread's cache that another would need: where a thread has nothing to wait for and
 * the reserve may not grow, and before it takes a new block while much lies clean elsewhere or
 * memory is short, all caches give what they have of the bucket beyond their threads' parts
 * (thread_caches_take). Where there is not enough for parts worth having, and that comes to happen
 * CACHE_TAKEN_OFTEN times, each within CACHE_TAKEN_APART after the one before, the bucket is
 * shared: no cache has a bin for it for a while, and the heap's lists serve it, under the lock.
 * Small blocks never are: of those there may be more.
 *
 * Out of memory, when the program trims, before the reserve grows past its ratio, over the cap of
 * cached bytes and when idle blocks are looked for, all caches of the heap are emptied into its
 * lists (thread_caches_collect), and one is when its thread ends, without a driver call; its
 * records are used again by other threads. A thread that is past that point goes the slow way.
 *
 * The end of a thread is told by the destructor of a pthread key, whose value is set without a
 * lock: a thread may use the pool first while another is in dlopen and waits for it. Where the
 * first use is in another key's destructor, ours runs in the next round of them; a thread whose
 * first use is in the last round, or that ends without any (by the bare system call), leaves its
 * cache behind, and another thread takes it over when it needs one.
 *
 * Fences are shared: a cache counts what its thread has freed since the number changed, since
 * somebody's fence covers what came before. While the GPU keeps up, a fence is due where one thread
 * has freed half as many blocks as a bin may hold: the other half lasts until the fence is over.
 * The threads that are awake together may free as many bytes without one as a heap without caches:
 * who has not freed lately may begin at once. Of threads whose fence is due at a time one closes
 * the epoch, and the others go on for some microseconds; by then that one may have lost its
 * processor, and they close it.
 *
 * Counters have one writer, the cache's thread (or whoever has closed the caches), and are summed
 * up by readers. A sum over several caches is of no one moment: a block that changes hands
 * meanwhile may not count; it does not count twice in what the program holds, which the reserve's
 * bound follows. Looking through all caches takes a cache line or two from every thread, so with
 * more than a few the slow path does it once an epoch and once when the next one is clean. Peaks of
 * live bytes are raised then, where the driver is asked, and when they are reported: in between,
 * hits may go higher unseen, by no more than CACHE_PEAK_STEP for each thread.
 *
 * A signal handler may end the process while its thread is inside, or holds a heap lock: a thread
 * that ends like that gives nothing back.
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

/* A bin holds at most so many blocks, and so many bytes. A bin that could not hold CACHE_BIN_LEAST
 * blocks is not made. */
#define CACHE_BIN_BLOCKS 256u
#define CACHE_BIN_BYTES  (UINT64_C(128) << 20)
#define CACHE_BIN_LEAST  4u

/* While several threads have a cache, all caches together may hold as many bytes as the growth
 * budget, and so many in any case. */
#define CACHES_LEAST_BYTES (UINT64_C(16) << 20)

/* A cache that holds too much first gives back what bins hold that were not used for so many
 * epochs.
 */
#define CACHE_UNUSED_EPOCHS 8u

/* The cache of a thread that does nothing for so long falls asleep: nanoseconds. */
#define CACHE_IDLE UINT64_C(10000000)

/* Nanoseconds. A thread waits in an allocation, without a lock, for a fence that is about to be
 * over: for LONGEST at most, and for BESIDE more while other threads are in the driver for new
 * blocks, for which every fence waits. After the heap could not grow, a thread waits for NO_GROWTH
 * in all before it asks for a new block again. */
#define CACHE_WAIT_LONGEST   30000
#define CACHE_WAIT_BESIDE    1000000
#define CACHE_WAIT_NO_GROWTH 1000000

/* Nanoseconds. Threads that take a bucket's blocks out of each other's caches for the OFTEN-th
 * time, each less than APART after the one before, share it: caches hold nothing of it for
 * SHARED_FIRST. That span is doubled each time that it comes to this again soon, to SHARED_LONGEST
 * at most. */
#define CACHE_TAKEN_APART    UINT64_C(2000000)
#define CACHE_TAKEN_OFTEN    16u
#define CACHE_SHARED_FIRST   UINT64_C(50000000)
#define CACHE_SHARED_LONGEST UINT64_C(3200000000)

/* A size of less than budget / CACHE_SHARED_SHARE bytes is not shared for being taken often. */
#define CACHE_SHARED_SHARE 1024u

/* A lone thread may free the device's fence_bytes without a fence, doubled so often. */
#define CACHE_DOUBLINGS 1u

/* Where memory is to stay hot, a fence comes no sooner than with this launch since the last one: it
 * costs about as much as a third of a launch. */
#define CACHE_HOT_LAUNCHES 4u

/* A thread that leaves its due fence to another, or puts it off, looks again after 1 /
 * CACHE_AGAIN_SHARE of what may go without one. */
#define CACHE_AGAIN_SHARE 4u

#define CACHE_SEGMENTS 8u  /* of a bin: a power of two */
#define CACHE_EPOCHS   16u /* that a cache remembers its frees of: a power of two */

/* Freed in one epoch; chained through LINK_BUCKET's next from the newest to the oldest. */
struct cache_segment {
    counter stamp;        /* 0: none */
    counter frees_before; /* of the bin, when the segment was opened */
    struct block *newest, *oldest;
    uint64_t opened_at; /* nanoseconds of the monotonic clock, as of the heap's last slow path */
};

/* room + blocks in the bin = capacity
 * blocks in the bin = counters->frees + counters->moved - counters->hits, modulo 2^64 */
struct cache_bin {
    struct size_span requests;       /* that it serves */
    _Atomic(struct bucket *) bucket; /* NULL: it serves none. Written under the heap lock. Relaxed:
                                        readers compare it, and look at counters besides */
    struct block *clean;             /* the newest; chained like a segment */
    struct cache_segment *open;      /* the newest segment, or one without a stamp */
    uint32_t room;                   /* blocks that it may take */
    struct bin_counters *counters;   /* in the figures */
    uint64_t bytes;                  /* of each of its blocks */
    uint32_t capacity;
    uint32_t first, segment_count; /* the segments in use: from first % CACHE_SEGMENTS on */
    uint64_t newest_stamp;         /* of the segment that was opened last */
    uint32_t refill_blocks;        /* that the next refill brings */
    uint64_t clean_freed_at;       /* when the segment was opened that turned clean last */
    uint64_t seen_use, seen_at;    /* how often its thread had used it when the housekeeper last saw
                                      that change, and when that was: the monotonic clock's
                                      nanoseconds. Written under the heap lock */
    struct cache_segment segments[CACHE_SEGMENTS];
};

/* Bytes freed in an epoch, and how many of them the slow path has taken away. */
struct cache_epoch {
    counter stamp;
    counter freed, taken;
};

/* free bytes in the cache = freed_bytes + moved_bytes - handed_out_bytes, modulo 2^64 */
struct thread_cache {
    /* ---- its thread's, on the fast path; others read the counters ---- */
    _Atomic uint32_t inside; /* 1 while its thread is inside */
    uint32_t frees_left;     /* until a fence is due */
    struct heap *heap;
    struct pool *pool;
    counter freed_bytes, handed_out_bytes; /* of blocks on the fast path, ever */
    uint64_t freed_bytes_at_fence;         /* when freed_bytes is so much, a fence is due */
    counter requested_out, requested_back; /* what the program asked for of those blocks */
    /* requested_out, and requested_out - requested_back (signed), up to which hits raise no peak:
     * see CACHE_PEAK_STEP. Whoever puts the cache to sleep sets them, too, perhaps while the thread
     * looks: what it then sets too high is right again with the next epoch. */
    counter out_noted_up_to, live_noted_up_to;

    /* ---- written with the heap lock held ---- */
    counter moved_bytes; /* that the slow path has put into bins, less those that it took away */
    pid_t thread;        /* whose it is, for the kernel; 0: nobody's */
    _Atomic uint8_t
        slot; /* of its thread, see heap.h. Relaxed: it chooses whose share is counted */
    uint8_t
        fence_bytes_shift;    /* right, of the device's fence_bytes doubled CACHE_DOUBLINGS times */
    uint32_t frees_to_fence;  /* what frees_left begins at in each epoch */
    uint64_t hot_fence_bytes; /* freed without a fence while memory is to stay hot
                                 (policy_keeps_hot); 0: as many as without that */
    unsigned sized_for;       /* so many caches were awake when its bins were sized */

    /* ---- its thread's, once an epoch or where it waits ---- */
    int64_t waited_ns;          /* in allocations since it grew; see CACHE_WAIT_LONGEST */
    counter stamp;              /* the epoch's number that its thread read last in a free */
    counter freed_bytes_before; /* freed_bytes when it read that first */
    uint32_t launches_before;   /* its thread's launches of work when it closed an epoch last */
    uint64_t relied_for;        /* the stamp whose fence it left to another thread last */
    uint64_t relied_since;      /* when it did so first: the monotonic clock's nanoseconds */

    /* ---- bins, and what was freed when ---- */
    /* By request, for its thread: the bin that served it last. By block size: written under the
     * heap lock, release for those who sum up, relaxed for its thread. */
    struct cache_bin *by_request[CACHE_BINS];
    _Atomic(struct cache_bin *) bins[CACHE_BINS];
    struct cache_epoch epochs[CACHE_EPOCHS]; /* before stamp's, and of that what was taken */

    /* ---- lists and sleep: guarded by the heap lock ---- */
    struct thread_cache *next;                 /* of all; written before the cache is listed */
    _Atomic(struct thread_cache *) next_awake; /* of those awake; a cache may be listed again */
    struct thread_cache *next_spare;
    bool awake;
    bool in_slow_path;               /* its thread allocates there; it may wait for long */
    bool fence_set_while_keeping_up; /* the GPU kept up when it was said how much may go without a
                                        fence */
    uint64_t seen_use, seen_at;      /* what its thread had done when it was last seen to have done
                                        something, and when that was */
    struct thread_cache *next_of_thread; /* the one that the same thread has in another heap */
};

/* Hits pass the peaks by until the thread has so many bytes more than when peaks were looked at. */
#define CACHE_PEAK_STEP (INT64_C(32) << 20)

/* Stands for the cache of a thread that has none. Its heap is NULL. */
extern struct thread_cache no_thread_cache __attribute__((visibility("hidden")));

/* ---- the fast path: called by the cache's thread, no lock held ---- */

/* The place in by_request where a request finds its bin. */
static inline unsigned cache_index(uint64_t bytes)
{
    return size_class_place(bytes, CACHE_BINS);
}

static inline struct bucket *cache_bin_bucket(const struct cache_bin *bin)
{
    return atomic_load_explicit(&bin->bucket, memory_order_relaxed);
}

/* A chain of a bin begins with another block: bin->clean, segment->newest. Relaxed, see
 * block_cached_next. */
static inline void cache_set_block(struct block **first, struct block *block)
{
    __atomic_store_n(first, block, __ATOMIC_RELAXED);
}

static inline struct block *cache_first_block(struct block *const *first)
{
    return __atomic_load_n(first, __ATOMIC_RELAXED);
}

/* Whether the fast path is closed, perhaps only to those who enter by a plain store. In either case
 * cache_leave has to follow. */
static inline bool cache_enter(struct thread_cache *cache, const struct heap *heap)
{
    atomic_store_explicit(&cache->inside, 1, memory_order_relaxed);
    /* The processor's part of the fence is the closer's, see thread_caches_wait. */
    atomic_signal_fence(memory_order_seq_cst);
    /* It is an acquire load, too, and pairs with the clearing of a bit by whoever had closed the
     * caches. */
    return atomic_load_explicit(&heap->closed, memory_order_seq_cst) != 0;
}

/* Inside, after finding it closed: enters by an exchange. True if that was all that was missing. */
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

/* What it has handed out with so many bytes more; and whether thread_cache_note_peaks follows. */
static inline uint64_t cache_out_with(const struct thread_cache *cache, size_t bytes)
{
    return counter_get(&cache->requested_out) + bytes;
}

static inline bool cache_is_noted(const struct thread_cache *cache, uint64_t out)
{
    return out <= counter_get(&cache->out_noted_up_to);
}

/* Its thread holds what it does now, and CACHE_PEAK_STEP more of hits go unnoted at most. */
static inline void cache_follow_live(struct thread_cache *cache)
{
    uint64_t back = counter_get(&cache->requested_back);
    int64_t most = (int64_t)(counter_get(&cache->requested_out) - back) + CACHE_PEAK_STEP;
    int64_t live = (int64_t)counter_get(&cache->live_noted_up_to);
    live = live > most ? most : live;
    counter_set(&cache->live_noted_up_to, (uint64_t)live);
    counter_set(&cache->out_noted_up_to, (uint64_t)live + back);
}

/* Not inside. Raises peaks, if more is in the program's hands than when they were raised last. */
void thread_cache_note_peaks(struct thread_cache *cache, const struct cache_bin *bin);

/* Inside. Hands the newest clean block out for a request of so many bytes; out: cache_out_with. */
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

/* Inside. Moves what has become clean to the clean blocks, and returns the newest, or NULL. */
struct block *thread_cache_turn_clean(struct thread_cache *cache, struct cache_bin *bin);

/* Inside, where the newest segment is of the stamp: puts a claimed block into it. True: a fence is
 * due, and the slow path is to close the epoch (heap_close_epoch). */
static inline bool cache_put(struct thread_cache *cache, struct cache_bin *bin, struct block *block)
{
    struct cache_segment *open = bin->open;
    block_set_cached_next(block, open->newest);
    cache_set_block(&open->newest, block);
    bin->room--;
    counter_add(&cache->requested_back, counter_get(&block->requested));
    uint64_t given = counter_get(&cache->freed_bytes) + bin->bytes;
    counter_set(&cache->freed_bytes, given);
    counter_add(&bin->counters->frees, 1);
    return --cache->frees_left == 0 || given >= cache->freed_bytes_at_fence;
}

/* Inside, or with the heap lock held, where the bin is not full: puts a claimed block of any stamp
 * from the newest segment's on into the bin. Answers as cache_put does. */
bool thread_cache_put(struct thread_cache *cache, struct cache_bin *bin, struct block *block,
                      uint64_t stamp);

/* Whether no block can be put into it. */
static inline bool thread_cache_is_full(const struct cache_bin *bin)
{
    return bin->room == 0;
}

/* Inside, where nothing is clean: what the bin has. */
struct cache_pending {
    uint64_t stamp;  /* of the oldest; 0: nothing */
    uint32_t blocks; /* of all stamps */
    bool full;       /* it may have no more */
};
struct cache_pending thread_cache_look(const struct cache_bin *bin);

enum given {
    GIVEN,
    GIVEN_FENCE_DUE,
    NOT_GIVEN, /* the slow path must be taken: heap_free */
};

/* Inside; leaves the cache. Puts a claimed block there where cache_put is not enough: in another
 * epoch, or a bin that may be full. */
enum given thread_cache_give(struct thread_cache *cache, struct block *block, CUdeviceptr address,
                             uint64_t stamp);

/* ---- a due fence: by the cache's thread with the heap lock held ---- */

/* How much may go without a fence from now on: so many frees, and the device's fence_bytes doubled
 * so often, CACHE_DOUBLINGS at most, and halved so often. */
void thread_cache_set_fence(struct thread_cache *cache, uint32_t frees, unsigned doublings,
                            unsigned halvings);

/* Another thread will make the fence that is due: a part of as much again may go without one until
 * then. Needs no lock. */
void thread_cache_count_again(struct thread_cache *cache);

/* No fence could be made: the next free wants one, too. Needs no lock. */
void thread_cache_ask_again(struct thread_cache *cache);

/* Where hot_fence_bytes is not 0: a fence is due only because so much was freed that is to stay
 * hot, and the program has launched too little since the last one for that to matter: it has time.
 * Without a launch there is nothing that keeps memory hot, and a lone thread may free twice as much
 * as otherwise. Needs no lock. */
bool thread_cache_puts_fence_off(struct thread_cache *cache);

/* ---- what is in a cache ---- */

/* Stands where a cache has no bin. Never written. */
extern struct cache_bin cache_no_bin __attribute__((visibility("hidden")));

/* The first of the heap's caches that may hold something, and the next one. Without the heap lock,
 * one that is listed anew meanwhile may lead to caches that were seen before: see heap_bytes. */
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

/* Bytes that a cache has in all bins, clean and pending. Any thread: its own may be changing the
 * counters; what it hands out meanwhile still counts, so that nobody takes a cache that has
 * something for an empty one. */
static inline uint64_t thread_cache_bytes(const struct thread_cache *cache)
{
    uint64_t handed = counter_get(&cache->handed_out_bytes);
    /* This pairs with no other fence: it only keeps the loads in this order. */
    counter_fence(memory_order_acquire);
    uint64_t bytes = counter_get(&cache->freed_bytes) + counter_get(&cache->moved_bytes) - handed;
    return (int64_t)bytes < 0 ? 0 : bytes;
}

/* Bytes that its thread has freed since it last saw the number change. */
static inline uint64_t cache_freed_in_epoch(const struct thread_cache *cache)
{
    return counter_get(&cache->freed_bytes) - counter_get(&cache->freed_bytes_before);
}

/* How many blocks the bin has, clean and pending. */
static inline uint64_t cache_bin_blocks(const struct cache_bin *bin)
{
    return counter_get(&bin->counters->frees) + counter_get(&bin->counters->moved) -
           counter_get(&bin->counters->hits);
}

/* If the bin has no segment, that is the place of the next one. */
static inline struct cache_segment *cache_oldest_segment(struct cache_bin *bin)
{
    return &bin->segments[bin->first % CACHE_SEGMENTS];
}

/* Inside, or with the caches closed: forgets the oldest segment, whose blocks have gone elsewhere.
 */
void cache_drop_oldest_segment(struct cache_bin *bin);

/* The stamp of the bin's oldest pending blocks; 0: none are pending. */
static inline uint64_t thread_cache_oldest_stamp(const struct cache_bin *bin)
{
    return bin->segment_count ? counter_get(&bin->segments[bin->first % CACHE_SEGMENTS].stamp) : 0;
}

#endif
