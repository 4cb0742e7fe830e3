/*
 * A heap: the device memory of one context, in buckets. Its state, and its lists of free blocks.
 *
 * A block is live, or free; a free one is pending (freed, and the GPU may still be using it) or
 * clean, in the heap's lists or in a thread's cache:
 *
 *   heap->reserved_bytes = live + clean + pending, in lists and caches, + spare
 *   heap->clean_bytes    = bytes of the blocks in all buckets' lists of clean ones
 *   heap->pending_bytes  = bytes of the blocks in heap->pending
 *                        = sum of heap->pending_by_slot
 *   bucket->free_blocks  = blocks in bucket->clean + blocks in bucket->pending
 *   lists of pending blocks ascend by stamp (block->epoch)
 *
 * What is spare is told in parts.h; what is kept for graphs (parked.h) counts as live.
 *
 * How an allocation finds its block is told in ladder.h, how threads take and free without a lock
 * in thread_cache.h.
 *
 * Locking: the context's lock (heap_lock) guards everything in struct heap but what is atomic
 * there.
 */
#ifndef CUDAPOOL_CORE_HEAP_H
#define CUDAPOOL_CORE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/size_class.h"
#include "core/blocks/block.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/thread_state.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/figures.h"
#include "core/figures/stats.h"
#include "core/segments/segments.h"
#include "device_bucket.h"
#include "keep.h"
#include "page_counts.h"

struct context;
struct pool;
struct thread_cache;

/*
 * Threads that run ahead of the others would take all memory in flight, and their long queues would
 * hold up every fence: the streams of the others would run dry. So each thread that has blocks
 * pending may have its share of the growth budget; one that is over it waits before it takes more.
 * Threads are told apart by slot; two threads that have one slot share what is its.
 */
#define HEAP_SLOTS 64u

/* Why thread caches may not be used: bits of heap->closed. */
enum closed {
    CLOSED_COLLECTING = 1,     /* another thread empties them */
    CLOSED_ENDING = 2,         /* the context is being ended */
    CLOSED_UNUSABLE = 4,       /* the driver answers in this context */
    CLOSED_FINEST_SIZES = 8,   /* sizes are not rounded to buckets: see heap->finest_sizes */
    CLOSED_SYNCHRONISING = 16, /* every free waits: the settings say so, or frees_wait.h */
    CLOSED_WEAKLY = 32,        /* there is no membarrier: entered by an exchange only */
    CLOSED_HOST_WORK = 64,     /* there is work that only the host ends: frees wait for it */
    CLOSED_DRIVER_FREES = 128, /* the driver frees, or is about to: see heap->driver_frees */
};

/* A free of the driver's that is going on. Its thread's, with the heap lock held. */
struct driver_free {
    uint64_t number; /* counted from 1 */
    struct driver_free *next;
};

/* The caches of the heap's threads, see thread_cache.h. Written with the heap lock held. */
struct thread_caches {
    _Atomic(struct thread_cache *) all;   /* every one ever made: only added to, and walked with the
                                             lock held */
    _Atomic(struct thread_cache *) awake; /* those that may hold something. Release when one is
                                             listed, acquire when they are walked; one that is taken
                                             out still leads to the rest */
    counter list_changes;                 /* odd while the list of those awake is being changed */
    struct thread_cache *spare;           /* without a thread */
    struct thread_cache *checked_for_end; /* of which it was last looked whether its thread has
                                             ended; NULL: of none yet */
    unsigned owned;                       /* by threads: not spare */
    _Atomic unsigned count;      /* awake. Relaxed where it is read without the lock: a hint */
    counter most_bytes;          /* that one cache may hold */
    uint32_t most_blocks;        /* that one bin may hold */
    uint64_t largest_block;      /* bytes of the largest block that there can be a bin for */
    uint64_t looked_for_idle_at; /* nanoseconds of the monotonic clock */
    counter emptied;             /* so often was a cache that had any blocks */
};

/* What looking through all caches has shown last. Where there are many threads that is done now and
 * then, see heap_recent_sums. */
struct recent_sums {
    uint64_t current, clean; /* the epochs' numbers then; current 0: look again */
    uint64_t pending_bytes;  /* in caches */
    uint64_t pending_slots;  /* bits: of the threads whose they are */
    uint64_t requested;      /* bytes that the program held */
    unsigned freeing;        /* threads that had freed something in that epoch or the one before */
};

struct heap {
    /* ---- blocks ---- */
    struct size_classes classes;
    uint64_t blocks_per_bucket; /* the most free blocks that a bucket may have */
    struct bucket_set buckets;
    uint16_t bins;               /* places in thread caches that buckets have been given */
    struct device_bucket unkept; /* of blocks that are not kept */
    struct block_records records;
    struct bucket *draining;   /* while blocks are chosen to be given back: the last one's bucket */
    struct block_list pending; /* of all buckets, by ascending stamp */
    struct block *last_accepted; /* the last pending one that came from a thread's cache, or NULL */
    struct segments segments;    /* with the policy split */
    _Atomic bool segment_asked[2]; /* small, large: a thread asks the driver for one. Acquire and
                                      release, by whoever asks */

    /* ---- bytes ---- */
    counter reserved_bytes; /* of all blocks; those neither clean nor pending are live */
    counter clean_bytes, pending_bytes;
    struct page_counts pages;
    counter live_requested; /* as the program asked for, less what caches have counted */
    struct {
        counter live, reserved; /* as the program asked for them; of all blocks */
    } peaks; /* since the program began them anew, as far as slow paths saw. Heap lock */
    uint64_t unseen_bytes; /* handed out by slow paths since one has looked at the peaks */
    uint64_t frees_since_fence, bytes_since_fence; /* that went into the heap's lists */
    uint64_t pending_by_slot[HEAP_SLOTS];          /* by the slot of the thread that freed them */
    uint64_t pending_slots;                        /* bits: slots with any */
    unsigned slots_with_pending;                   /* so many bits are set */
    struct recent_sums recent;

    /* ---- who uses it, and how ---- */
    _Atomic unsigned threads_freeing; /* recent.freeing, for those who have no lock. Relaxed: a
                                         hint */
    uint64_t idle_checked_at;     /* when idle blocks were last looked for: the monotonic clock's
                                     nanoseconds */
    uint64_t pending_when_looked; /* the newest stamp of what was pending when the housekeeper last
                                     looked; 0: nothing was */
    struct keep keep;
    uint64_t last_user;         /* the id of a thread; 0: none yet */
    uint32_t uses_in_a_row;     /* by that thread, saturating at HEAP_USES_ALONE */
    bool finest_sizes;          /* rounding has cost too much of the device: buckets are the finest
                                   that there can be, and caches hold nothing */
    bool ending;                /* the context is being ended: its blocks are not handed out */
    bool ending_or_finest;      /* one of these two, which is what an allocation looks at */
    bool bucket_may_exceed_cap; /* some bucket may have more free blocks than blocks_per_bucket */
    struct driver_free *driver_frees; /* in the driver, or about to be, by ascending number: frees
                                         that come then wait for them (heap_begin_driver_free) */
    uint64_t driver_frees_begun;      /* the newest one's number, or of the last that there was */
    counter oldest_driver_free;       /* the oldest one's number; 0: there is none */
    bool caches_hold_no_large; /* blocks of KEEP_LARGE_BYTES and more, since they may not be worth
                                  keeping: a trial goes on, or may begin soon (keep.h) */

    /* ---- misses ---- */
    counter misses;
    counter miss_cost;                /* nanoseconds of the driver's call, lately */
    counter last_miss_at;             /* when it ended: the monotonic clock's nanoseconds */
    _Atomic unsigned threads_in_miss; /* in the driver for a new block. Relaxed: it chooses who
                                         waits */

    /* ---- its place in the figures ---- */
    struct heap_counters *counters; /* like those of the buckets */
    struct figures *figures;
    uint64_t figures_id;
    CUdevice device;

    counter now; /* nanoseconds of the monotonic clock at the last slow path */
    struct thread_caches caches;
    /* Looked at by every allocation and free, and seldom written: in a cache line of its own. */
    char before[64];
    _Atomic uint32_t closed; /* bits of enum closed; set under the lock, but for CLOSED_UNUSABLE */
    char after[64];
};

/* After so many uses in a row by one thread it counts as the only one that uses the heap. */
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

/* Whether blocks are cut out of larger ones. No lock needed. */
static inline bool heap_splits(const struct heap *heap)
{
    return heap->classes.policy == BUCKETS_SPLIT;
}

/* Whether the GPU's work was over soon after the last fences. No lock needed. */
static inline bool heap_keeps_up(const struct heap *heap)
{
    return epoch_keeps_up(&context_of_heap(heap)->epochs);
}

/* Everything stamped up to here is clean. No lock needed. */
static inline uint64_t heap_clean_epoch(const struct heap *heap)
{
    return epoch_clean(&context_of_heap(heap)->epochs);
}

/* The first statement of a function that relies on the lock (lock.h says where that is checked). */
#define heap_lock_must_be_held(heap) lock_must_be_held(&context_of_heap(heap)->lock)

/* Prepares the zeroed heap of a context that was just made. False where memory is short. */
bool heap_init(struct pool *pool, struct context *context);

/* ---- the heap lock is held from here on ---- */

/* The bucket of this block size; the one of blocks that are not kept where it can't be made. */
struct bucket *heap_bucket(struct heap *heap, uint64_t bytes);

/* Sets or clears a bit of enum closed. */
void heap_set_closed(struct heap *heap, uint32_t bit, bool set);

/* The calling thread uses the heap: whether it is the only one is known from that. */
static inline void heap_note_user(struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t self = thread_id(pool);
    if (__builtin_expect(heap->last_user != self, 0)) {
        /* The very first user is alone from the start. */
        heap->uses_in_a_row = heap->last_user ? 0 : HEAP_USES_ALONE;
        heap->last_user = self;
    } else if (__builtin_expect(heap->uses_in_a_row < HEAP_USES_ALONE, 0)) {
        heap->uses_in_a_row++;
    }
}

/* The slot of the calling thread, after heap_note_user. */
uint8_t heap_slot_of_this_thread(void);

/* Moves what has become clean from pending to clean. */
void heap_sweep(struct context *context);

/* Takes a free block over from a thread's cache; slot: of that thread. */
void heap_accept(struct heap *heap, struct block *block, uint8_t slot);

/* Puts a block that the calling thread has claimed, of this stamp, among the pending ones. */
void heap_add_pending(struct heap *heap, struct block *block, uint64_t stamp);

/* Puts a block that is in no list among the clean ones of its bucket; the bucket's free blocks and
 * bytes count it already. A part goes back to its segment. */
void heap_add_clean(struct heap *heap, struct block *block);

/* So many bytes more are spare (parts.h), or no longer: they count in the row of what is not kept.
 */
void heap_count_spare(struct heap *heap, uint64_t bytes);
void heap_count_no_longer_spare(struct heap *heap, uint64_t bytes);

/* A whole block, whose bytes count as spare, joins the clean ones of its bucket. */
void heap_put_whole(struct heap *heap, struct block *whole);

/* A block that is in no list is found by its address from now on, or no longer: see page_counts.h.
 * False where memory is short. */
bool heap_enter_table(struct pool *pool, struct heap *heap, struct block *block);
void heap_leave_table(struct pool *pool, struct heap *heap, struct block *block);

/* Takes a free block out of its lists and out of the counters of free blocks. */
void heap_detach_free(struct heap *heap, struct block *block);

/* Takes a free block out that goes to the driver: its bucket no longer counts it as reserved. And
 * counts one that comes back from there and is free again, in no list yet. */
void heap_begin_leaving(struct heap *heap, struct block *block);
void heap_count_back(struct block *block);

/* A pending block that the driver has refused to take comes back as the oldest. */
void heap_put_back_pending(struct pool *pool, struct heap *heap, struct block *block);

/* Makes the live block at this address the caller's, in the state given. False where it is not live
 * there (any more): the lock guards lists and counters, and another thread may be claiming it. */
bool heap_claim_live(struct heap *heap, struct block *block, CUdeviceptr address,
                     enum block_state state);

/* Counts a block of any state out, and forgets its record. */
void heap_forget_block(struct pool *pool, struct heap *heap, struct block *block);

#endif
