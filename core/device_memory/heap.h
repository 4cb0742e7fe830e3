/*
 * A heap: the device memory of one context, in buckets. This file has its state and its lists of
 * free blocks.
 *
 * A block is live or free. A free block is pending (the GPU may still use it) or clean. It is in
 * the heap's lists or in a thread's cache:
 *
 *   heap->reserved_bytes = live + clean + pending, in lists and caches, + spare
 *   heap->clean_bytes    = bytes of the blocks in all buckets' lists of clean ones
 *   heap->pending_bytes  = bytes of the blocks in heap->pending
 *                        = sum of heap->pending_by_slot
 *   bucket->free_blocks  = blocks in bucket->clean + blocks in bucket->pending
 *   lists of pending blocks ascend by stamp (block->epoch)
 *
 * parts.h describes spare memory. Blocks that are held for graphs (parked.h) count as live.
 *
 * ladder.h describes how an allocation finds its block, and thread_cache.h how threads allocate and
 * free without a lock.
 *
 * Locking: the context's lock (heap_lock) guards all fields of struct heap that are neither atomic
 * nor fixed once heap_init has set them.
 */
#ifndef CUDAPOOL_CORE_HEAP_H
#define CUDAPOOL_CORE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/size_class.h"
#include "core/blocks/block.h"
#include "core/blocks/bucket.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/thread_state.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/figures.h"
#include "core/figures/stats.h"
#include "core/segments/segments.h"
#include "keep.h"
#include "page_counts.h"

/* ---- buckets of device memory ----
 *
 * What a heap stores for each bucket in addition to struct bucket, which all kinds of memory use.
 * device_bucket() leads from a bucket of a heap to this struct.
 */

/* The number of bins in a thread cache. The last place, CACHE_NO_BIN, stands for all buckets that
 * caches do not hold. Those are buckets of blocks larger than CACHE_LARGEST, and buckets made after
 * all other places were taken. Their blocks take the slow path. */
#define CACHE_BINS    256u
#define CACHE_NO_BIN  (CACHE_BINS - 1)
#define CACHE_LARGEST (UINT64_C(32) << 20)

struct device_bucket {
    struct bucket bucket;
    uint32_t granted_to_caches; /* free blocks that thread caches may hold as well */
    uint16_t bin;               /* the bucket's place in thread caches, or CACHE_NO_BIN */
    /* Sharing, see thread_caches_take. Times are in nanoseconds of the monotonic clock. */
    uint32_t taken_in_a_row; /* how often blocks were taken out of caches, each time soon after
                                the last */
    uint64_t taken_from_caches_at; /* when blocks were last taken */
    uint64_t shared_until;         /* caches hold none of its blocks until then */
    uint64_t shared_for;           /* length of the last span of sharing; 0: never shared */
    struct ghosts ghosts;
};

static inline struct device_bucket *device_bucket(const struct bucket *bucket)
{
    return (struct device_bucket *)((uintptr_t)bucket - offsetof(struct device_bucket, bucket));
}

struct context;
struct pool;
struct thread_cache;

/*
 * A thread that runs ahead of the others would hold most of the pending memory. Its long queue
 * would delay every fence, and the streams of other threads would run dry. So each thread with
 * pending blocks has a share of the growth budget, and a thread over its share waits before it
 * takes more. Threads are distinguished by slot, and two threads with the same slot have one share
 * together.
 */
#define HEAP_SLOTS 64u

/* Reasons why thread caches may not be used: bits of heap->closed. */
enum closed {
    CLOSED_COLLECTING = 1,     /* a thread has closed them all to work on them (cache_set.h) */
    CLOSED_ENDING = 2,         /* the context is being ended */
    CLOSED_UNUSABLE = 4,       /* the driver answers all calls in this context */
    CLOSED_FINEST_SIZES = 8,   /* bucket sizes are the finest possible: see heap->finest_sizes */
    CLOSED_SYNCHRONISING = 16, /* every free waits: by the settings, or frees_wait.h */
    CLOSED_WEAKLY = 32,        /* no membarrier: threads enter by atomic exchange */
    CLOSED_HOST_WORK = 64,     /* frees wait for work that only the host ends */
    CLOSED_DRIVER_FREES = 128, /* frees wait for the driver's: see heap->driver_frees */
};

/* A driver free in progress or about to begin. It lies on the stack of the thread that makes it.
 * All threads read and write it with the heap lock held, since their records are linked. */
struct driver_free {
    uint64_t number; /* counted from 1 */
    struct driver_free *next;
};

/* The caches of the heap's threads, see thread_cache.h. Written with the heap lock held. */
struct thread_caches {
    _Atomic(struct thread_cache *) all;   /* every cache ever made: only added to, and walked
                                             with the lock held */
    _Atomic(struct thread_cache *) awake; /* caches that may hold blocks. Release when one is
                                             listed, acquire when they are walked. A cache taken
                                             off the list still leads to the rest */
    counter list_changes;                 /* odd while the list of awake caches is being changed */
    struct thread_cache *spare;           /* caches without a thread */
    struct thread_cache *checked_for_end; /* the cache whose thread was last checked for having
                                             ended; NULL: none was checked yet */
    unsigned owned;                       /* caches that threads own: not spare */
    _Atomic unsigned count;      /* awake caches. Relaxed where read without the lock: a hint */
    counter most_bytes;          /* the most bytes that one cache may hold */
    uint32_t most_blocks;        /* the most blocks that one bin may hold */
    uint64_t largest_block;      /* bytes of the largest block that may have a bin */
    uint64_t looked_for_idle_at; /* nanoseconds of the monotonic clock */
    counter emptied;             /* how often a cache that had any blocks was emptied */
};

/* The result of the last look through all caches. With many threads that look is taken only now and
 * then, see heap_recent_sums. */
struct recent_sums {
    uint64_t current, clean; /* the epochs' numbers at that look; current 0: look again */
    uint64_t pending_bytes;  /* bytes pending in caches */
    uint64_t pending_slots;  /* bits: the slots of the threads that have blocks pending in caches */
    uint64_t requested;      /* requested bytes of all live blocks */
    unsigned freeing;        /* threads that freed something in epoch `current` or the one before */
};

struct heap {
    /* ---- blocks ---- */
    struct size_classes classes;
    uint64_t blocks_per_bucket; /* the most free blocks that a bucket may have */
    struct bucket_set buckets;
    uint16_t bins;               /* the number of places in thread caches given to buckets */
    struct device_bucket unkept; /* blocks that the pool does not cache */
    struct block_records records;
    struct bucket *draining;     /* during release: the bucket of the block chosen last, or NULL */
    struct block_list pending;   /* of all buckets, by ascending stamp */
    struct block *last_accepted; /* the last pending block from a thread's cache, or NULL */
    struct segments segments;    /* used with the policy split */
    _Atomic bool segment_asked[2]; /* [0] small, [1] large: a thread is asking the driver for
                                      such a segment. Acquire when a thread sets it, release when
                                      it clears it */

    /* ---- bytes ---- */
    counter reserved_bytes; /* of all blocks; those neither clean nor pending are live */
    counter clean_bytes, pending_bytes;
    struct page_counts pages;
    counter live_requested; /* requested bytes of live blocks, less what caches have counted */
    struct {
        counter live, reserved; /* requested bytes of live blocks; bytes of all blocks */
    } peaks; /* peaks since the program last reset them, as far as slow paths saw. Guarded by the
                heap lock */
    uint64_t unseen_bytes; /* handed out by slow paths since the peaks were last raised */
    uint64_t frees_since_fence, bytes_since_fence; /* frees into the heap's lists */
    uint64_t pending_by_slot[HEAP_SLOTS];          /* by the slot of the thread that freed them */
    uint64_t pending_slots;                        /* bits: the slots with pending bytes */
    unsigned slots_with_pending;                   /* the number of bits set in pending_slots */
    struct recent_sums recent;

    /* ---- who uses it, and how ---- */
    _Atomic unsigned threads_freeing; /* recent.freeing, for threads without the lock. Relaxed: a
                                         hint */
    uint64_t idle_checked_at;     /* when idle blocks were last looked for, in nanoseconds of the
                                     monotonic clock */
    uint64_t pending_when_looked; /* the newest pending stamp when the housekeeper last looked;
                                     0: nothing was pending */
    struct keep keep;
    uint64_t last_user;         /* the id of the last thread that used the heap; 0: none yet */
    uint32_t uses_in_a_row;     /* uses in a row by that thread, saturating at HEAP_USES_ALONE */
    bool finest_sizes;          /* rounding wastes too much of the device's memory: bucket sizes
                                   are the finest possible, and caches hold nothing */
    bool ending;                /* the context is being ended: its blocks are not handed out */
    bool ending_or_finest;      /* ending || finest_sizes: an allocation checks this one flag */
    bool bucket_may_exceed_cap; /* some bucket may have more free blocks than blocks_per_bucket */
    struct driver_free *driver_frees; /* driver frees in progress or about to begin, by ascending
                                         number. Frees that come later wait for them
                                         (heap_begin_driver_free) */
    uint64_t driver_frees_begun;      /* the number of the newest driver free, present or past */
    counter oldest_driver_free;       /* the number of the oldest driver free in progress; 0:
                                         there is none */
    bool caches_hold_no_large; /* caches hold no block of KEEP_LARGE_BYTES or more, since such
                                  blocks may not be worth caching: a trial is under way, or may
                                  begin soon (keep.h) */

    /* ---- misses ---- */
    counter misses;
    counter miss_cost;                /* mean nanoseconds of the driver's call in the last misses */
    counter last_miss_at;             /* when the last miss ended, in nanoseconds of the
                                         monotonic clock */
    _Atomic unsigned threads_in_miss; /* threads in the driver for a new block. Relaxed: it only
                                         chooses which threads wait */

    /* ---- its entry in the figures ---- */
    struct heap_counters *counters; /* in the figures, like the buckets' counters */
    struct figures *figures;
    uint64_t figures_id;
    CUdevice device;

    counter now; /* nanoseconds of the monotonic clock at the last slow path */
    struct thread_caches caches;
    /* Every allocation and free reads `closed`, and it is seldom written. So it has a cache line of
     * its own. */
    char before[64];
    _Atomic uint32_t closed; /* bits of enum closed; set under the lock, except CLOSED_UNUSABLE */
    char after[64];
};

/* A thread with this many uses in a row counts as the heap's only user. */
#define HEAP_USES_ALONE 256u

/* Device memory is the first kind of the table (kind.h). */
static inline struct heap *heap_of(const struct context *context)
{
    return context_memory_of_first((struct context *)(uintptr_t)context);
}

static inline struct context *context_of_heap(const struct heap *heap)
{
    return context_of_first(heap);
}

#define heap_lock(heap)   heap_lock_from(heap, LOCK_HERE)
#define heap_unlock(heap) heap_unlock_from(heap, LOCK_HERE)

static inline void heap_lock_from(struct heap *heap, const char *place)
{
    context_lock_from(context_of_heap(heap), place);
}

static inline void heap_unlock_from(struct heap *heap, const char *place)
{
    context_unlock_from(context_of_heap(heap), place);
}

/* Whether blocks are cut out of larger ones (policy split). No lock needed. */
static inline bool heap_splits(const struct heap *heap)
{
    return heap->classes.policy == BUCKETS_SPLIT;
}

/* Whether the GPU completed the last fences soon after they were recorded. No lock needed. */
static inline bool heap_keeps_up(const struct heap *heap)
{
    return epoch_keeps_up(&context_of_heap(heap)->epochs);
}

/* The newest clean epoch: every block with this stamp or an older one is clean. No lock needed. */
static inline uint64_t heap_clean_epoch(const struct heap *heap)
{
    return epoch_clean(&context_of_heap(heap)->epochs);
}

/* Must be the first statement of a function that relies on the lock (lock.h says where this is
 * checked). */
#define heap_lock_must_be_held(heap) lock_must_be_held(&context_of_heap(heap)->lock)

/* Prepares the zeroed heap of a new context. False if memory is short. */
bool heap_init(struct pool *pool, struct context *context);

/* ---- the heap lock is held from here on ---- */

/* Returns the bucket of this block size, and makes it if there was none. Returns heap->unkept, the
 * bucket of uncached blocks, if the bucket cannot be made. */
struct bucket *heap_bucket(struct heap *heap, uint64_t bytes);

/* Sets or clears a bit of enum closed. */
void heap_set_closed(struct heap *heap, uint32_t bit, bool set);

/* Notes that the calling thread uses the heap. The heap knows from this whether it has only one
 * user. */
static inline void heap_note_user(struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t self = thread_id(pool);
    if (__builtin_expect(heap->last_user != self, 0)) {
        /* The very first user counts as the only one from the start. */
        heap->uses_in_a_row = heap->last_user ? 0 : HEAP_USES_ALONE;
        heap->last_user = self;
    } else if (__builtin_expect(heap->uses_in_a_row < HEAP_USES_ALONE, 0)) {
        heap->uses_in_a_row++;
    }
}

/* The slot of the calling thread. heap_note_user must have been called before. */
uint8_t heap_slot_of_this_thread(void);

/* Moves blocks that have become clean from the pending lists to the clean ones. */
void heap_sweep(struct context *context);

/* Moves a free block from a thread's cache to the heap's lists. slot: the slot of the cache's
 * thread. */
void heap_accept(struct heap *heap, struct block *block, uint8_t slot);

/* Adds a block that the calling thread has claimed to the pending ones, with this stamp. */
void heap_add_pending(struct heap *heap, struct block *block, uint64_t stamp);

/* Adds a block that is in no list to the clean ones of its bucket. The bucket's counts of free
 * blocks and bytes include it already. A part merges into its segment instead. */
void heap_add_clean(struct heap *heap, struct block *block);

/* Count bytes as spare (parts.h), or as no longer spare. Spare bytes count in the figures' row of
 * uncached blocks. */
void heap_count_spare(struct heap *heap, uint64_t bytes);
void heap_count_no_longer_spare(struct heap *heap, uint64_t bytes);

/* Adds a whole block, whose bytes count as spare, to the clean ones of its bucket. */
void heap_put_whole(struct heap *heap, struct block *whole);

/* Enter a block that is in no list into the table of addresses, or take it out, and count its pages
 * (page_counts.h). heap_enter_table returns false if memory is short. */
bool heap_enter_table(struct pool *pool, struct heap *heap, struct block *block);
void heap_leave_table(struct pool *pool, struct heap *heap, struct block *block);

/* Takes a free block out of its lists and out of the counters of free blocks. */
void heap_detach_free(struct heap *heap, struct block *block);

/* heap_begin_leaving takes a free block out of its lists, because it is released to the driver or
 * becomes a segment. Its bucket no longer counts it as reserved. heap_count_back counts such a
 * block as reserved and free again, and the caller lists it. */
void heap_begin_leaving(struct heap *heap, struct block *block);
void heap_count_back(struct block *block);

/* Puts a pending block that the driver refused to free back into the lists, by its stamp. */
void heap_put_back_pending(struct pool *pool, struct heap *heap, struct block *block);

/* Claims the live block at this address for the caller, and sets its state. False if the block is
 * no longer live there. The heap lock guards only lists and counters, and another thread may claim
 * the block at the same time. */
bool heap_claim_live(struct heap *heap, struct block *block, CUdeviceptr address,
                     enum block_state state);

/* Takes a block of any state out of all counters and lists, and frees its record. */
void heap_forget_block(struct pool *pool, struct heap *heap, struct block *block);

#endif
