/*
 * A heap: the device memory of one context, in buckets.
 *
 * An allocation climbs a ladder and takes the first of:
 *   1. a clean block of its bucket: no driver call;
 *   2. a pending block whose fence turns out to be over;
 *   3. a new block from the driver, while pending bytes are inside the growth budget;
 *   4. a pending block after the oldest fence that frees one: behind a context barrier (the device
 *      waits) while one thread uses the heap, else after a wait on the host; but not where the host
 *      may have to act before the fence is over, see host_work.h;
 *   5. the driver; if it is out of memory, see release.h.
 *
 * Hits and frees that need none of this take no lock: see thread_cache.h.
 *
 * Locking: the context's lock guards everything in struct heap. Functions that
 * release and retake it say so.
 */
#ifndef CUDAPOOL_CORE_HEAP_H
#define CUDAPOOL_CORE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/size_class.h"
#include "core/blocks/block.h"
#include "core/contexts/context.h"
#include "core/contexts/thread_state.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/figures.h"
#include "core/figures/stats.h"
#include "keep.h"

struct context;
struct pool;
struct thread_cache;
struct cache_bin;
struct cache_pending;

struct bucket {
    uint64_t bytes; /* 0: the bucket of blocks that are not kept */
    /* Clean and pending blocks, the oldest first. Of the clean ones the newest is taken, since its
     * memory is the likeliest to be in the GPU's cache. */
    struct block_list clean, pending;
    uint64_t free_blocks; /* clean and pending */
    uint32_t granted;     /* free blocks that thread caches may hold besides */
    uint16_t bin;         /* in thread caches, or CACHE_NO_BIN */
    uint32_t taken;       /* so often in a row, each soon after the one before */
    uint64_t taken_at; /* when out of all thread caches last: the monotonic clock's nanoseconds */
    uint64_t shared_until, shared_for; /* likewise: thread caches hold none of it meanwhile */
    struct ghosts ghosts;
    struct bucket_counters *counters; /* in the figures */
};

/* Buckets by block size: open addressing, a power of two of slots. Only added to, so that the
 * report may read it without the lock; a full one is kept behind its successor. */
struct bucket_table {
    uint32_t slots;
    struct bucket_table *previous;
    _Atomic(struct bucket *) buckets[];
};

/*
 * Threads that run ahead of the others would take all memory in flight, and their long queues would
 * hold up every fence: the streams of the others would run dry. So each thread that has blocks
 * pending may have its share of the growth budget; one that is over it waits before it takes more.
 * Threads are told apart by slot; two that have the same one share.
 */
#define HEAP_SLOTS 64u

/* Why thread caches may not be used: bits of heap->closed. */
enum closed {
    CLOSED_COLLECTING = 1,     /* another thread empties them */
    CLOSED_ENDING = 2,         /* the context is being ended */
    CLOSED_UNUSABLE = 4,       /* the driver answers in this context */
    CLOSED_FINE = 8,           /* sizes are the driver's own */
    CLOSED_SYNCHRONISING = 16, /* every free waits: the settings say so, or heap->frees_wait */
    CLOSED_WEAKLY = 32,        /* there is no membarrier: entered by an exchange only */
    CLOSED_HOST_WORK = 64,     /* there is work that only the host ends: frees wait for it */
};

/* The caches of the heap's threads, see thread_cache.h. */
struct thread_caches {
    _Atomic(struct thread_cache *)
        all; /* only added to. Release when one is, acquire when walked */
    _Atomic(struct thread_cache *) awake; /* those that may hold something. Likewise; relaxed where
                                             one is taken out, whose next one stays */
    counter listings;                     /* odd: that list is being changed */
    struct thread_cache *spare;
    struct thread_cache *looked_at; /* whether its thread has ended, last; NULL: none was */
    unsigned owned;                 /* by threads */
    _Atomic unsigned count;         /* awake. Written under the lock; relaxed */
    uint32_t level;                 /* its binary logarithm, rounded up */
    counter most;                   /* bytes that one cache may hold */
    uint32_t most_blocks;           /* that one bin may hold */
    uint64_t largest;               /* bytes of a block that there can be a bin for */
    uint64_t looked_for_idle_at;    /* nanoseconds of the monotonic clock */
    counter emptied;                /* so often was one that had any blocks */
};

/* What looking through all caches has shown. Where there are many threads, that is done now and
 * then, see look_around. */
struct lately {
    uint64_t current, clean; /* the epochs' numbers then; 0: look again */
    uint64_t pending_bytes;  /* in caches */
    uint64_t pending_slots;  /* bits: of the threads whose they are */
    uint64_t requested;      /* what the program held */
    unsigned freeing;        /* threads that had freed something in that epoch or the one before */
};

struct heap {
    struct size_classes classes;
    uint64_t blocks_per_bucket;           /* the cap */
    _Atomic(struct bucket_table *) table; /* replaced when it is full; see grow_table */
    uint32_t bucket_count;
    uint16_t bins; /* of thread caches: so many have a bucket */
    struct bucket unkept;
    struct block_records records;
    struct bucket *draining;   /* while blocks are chosen to be given back: the last one's bucket */
    struct block_list pending; /* by ascending stamp */
    struct block *accepted;    /* the last one that came there from a thread's cache; NULL: none */
    counter reserved_bytes;    /* of all blocks; those neither clean nor pending are live */
    counter clean_bytes, pending_bytes;
    counter live_requested; /* as the program asked for */
    uint64_t frees_since_fence, bytes_since_fence;
    uint64_t pending_of[HEAP_SLOTS]; /* bytes, by the slot of the thread that freed them */
    uint64_t pending_slots;          /* bits: slots with any */
    unsigned slots_pending;          /* so many are set */
    struct lately lately;
    _Atomic unsigned freeing; /* as there: for those who have no lock. Relaxed */
    uint64_t idle_checked_at;
    struct keep keep;
    uint64_t user;   /* the id of the thread that used the heap last; 0: none yet */
    uint32_t alone;  /* uses by it in a row, saturating at HEAP_ALONE */
    bool fine;       /* rounding has cost too much of the device: sizes are the driver's own */
    bool ending;     /* the context is being ended: its blocks are not handed out */
    bool unusual;    /* one of these two, which is what an allocation looks at */
    bool crowded;    /* a bucket may have more free blocks than its cap */
    bool wary;       /* of large blocks: caches hold none, since they may not be worth keeping */
    bool frees_wait; /* until frees_wait_until: an allocation has waited in vain */
    uint64_t frees_wait_until, frees_wait_for; /* the monotonic clock's nanoseconds; a span of it */
    counter largest_request;                   /* bytes */
    counter misses;
    counter miss_ns;          /* what they took lately: nanoseconds of the driver's call */
    counter missed_at;        /* when the last one ended: the monotonic clock's nanoseconds */
    _Atomic unsigned missing; /* threads that are in the driver for one. Relaxed: it chooses who
                                 waits */
    struct heap_counters *counters; /* in the figures, like those of the buckets */
    struct figures *figures;
    uint64_t id; /* of this heap in the figures */
    CUdevice device;
    counter now; /* nanoseconds of the monotonic clock at the last slow path */
    struct thread_caches caches;
    /* Looked at by every allocation and free, and seldom written: in a cache line of its own. */
    char before[64];
    _Atomic uint32_t closed; /* bits of enum closed; set under the lock, but for CLOSED_UNUSABLE */
    char after[64];
};

/* Live blocks may be larger than what was asked for by this share of the device in all; more, and
 * a program that fills the device would not fit. */
#define HEAP_WASTE_SHARE 64u

/* After so many uses in a row by one thread it counts as the only one. */
#define HEAP_ALONE 256u

/* More buckets than this are never made: further sizes are not kept. */
#define HEAP_BUCKETS_MAX 16384u

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

/* Prepares the zeroed heap of a context that was just made. False where memory is short. */
bool heap_init(struct pool *pool, struct context *context);

extern const struct kind device_memory;

/* Around the driver call that may end the context: meanwhile every allocation is the driver's to
 * answer, since a block may be gone already. Lock not held. */
void heap_set_ending(struct heap *heap, bool ending);

/* The context's memory is gone with it: forgets all blocks, keeps the counters. Lock not held. */
void heap_reset(struct pool *pool, struct context *context);

/* cuMemAlloc in this context, which is current. No lock held. */
CUresult heap_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                       size_t bytes);

/* The same without the pool's help: straight from the driver, in the caller's capture mode, but
 * known to the pool. */
CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes);

/* Takes note of memory that the driver just gave for the program, as memory that is not kept.
 * generation: the context's before the driver was asked. reserved: as many bytes have been taken
 * into the device's reserved bytes already. */
void heap_adopt(struct pool *pool, struct context *context, uint64_t generation,
                CUdeviceptr address, size_t bytes, size_t reserved);

/* Someone frees this address past the pool: forgets a live block there. False where the block is
 * free, and so nobody's to free. No lock held, and no driver call made. */
bool heap_let_go(struct pool *pool, CUdeviceptr address);

/* The driver's call that the program made to free this address. */
typedef CUresult heap_release(struct pool *pool, CUdeviceptr address, void *argument);

/* The program frees a block. No lock held. waitable: the plain call would have waited for the
 * context. release: that call, where the block is the driver's to free. */
struct free_call {
    bool waitable; /* the plain call would have waited for the context */
    heap_release *release;
    void *argument;
};
CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call);

/* Lets the driver free a live block: the plain call, with the record out of the way. No lock
 * held. */
CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument);

/* In a context that no fence can be had for any more: what is pending goes as it would have gone
 * without the pool, inside the program's own free. No lock held. */
void heap_free_pending(struct pool *pool, struct context *context);

/* Forgets a record of this address, if there is one: the driver has just given the address out,
 * so whoever had it before was freed behind our back. No lock held. */
void heap_forget_address(struct pool *pool, CUdeviceptr address);

/* The most that the program held at a time in the contexts that were this heap's, as it asked for
 * it. No lock needed. */
uint64_t heap_peak_requested(const struct heap *heap);

/* Inside an allocation: waits a moment for the fence of what a thread has in its cache, where it is
 * about to be over, or other threads are there to record it; whether it is over. No lock held, and
 * none taken but to ask the driver, which one thread at a time does. */
bool heap_await_fence(struct pool *pool, struct context *context, struct thread_cache *cache,
                      const struct cache_pending *pending);

/* Counts what this thread has waited for a block of the bin's size. No lock needed. */
void heap_take_wait(const struct cache_bin *bin);

/* The fence of what a thread has freed into its cache is due. Answers for the program's free. No
 * lock held. */
CUresult heap_close_epoch(struct pool *pool, struct context *context);

/* Lock held, perhaps released in between. An allocation has waited for a second in which nothing
 * became clean: the program does something between its frees and its allocations that nobody has
 * thought of. For ten seconds the context's frees wait, as the plain ones do; the next time twice
 * as long, up to ten minutes, and after each such span without a vain wait half as long again. */
void heap_note_vain_wait(struct pool *pool, struct context *context);

/* Bytes that are free, in the heap's lists and in thread caches, and that the program holds, as it
 * asked for them. No lock needed: they are of the moment only where it is held and the caches are
 * closed. */
struct heap_bytes {
    uint64_t clean, pending, requested;
};
struct heap_bytes heap_bytes(const struct heap *heap);

/* The newest stamp of what may be pending; 0: nothing is. Lock held. */
uint64_t heap_newest_pending(const struct heap *heap);

/* Lock held. Takes a free block over from a thread's cache; slot: of that thread. */
void heap_accept(struct heap *heap, struct block *block, uint8_t slot);

/* Lock held. Free blocks of the bucket, in the heap's lists and in thread caches; where those may
 * hold no more than there may be, what they may hold counts. */
uint64_t heap_free_blocks(const struct heap *heap, const struct bucket *bucket);

/* Lock held. What has changed in the heap may open or close thread caches. */
void heap_look_at_caches(struct heap *heap);

/* Lock held. Moves what has become clean from pending to clean. */
void heap_sweep(struct context *context);

/* Lock held. Takes a free block out of its lists and out of the counters of free blocks. */
void heap_detach_free(struct heap *heap, struct block *block);

/* Lock held. The same, for a block on its way to the driver, which its bucket no longer counts as
 * reserved; and one that comes back from there and is free again, in no list yet. */
void heap_begin_leaving(struct heap *heap, struct block *block);
void heap_count_back(struct block *block);

/* Lock held. Puts a block that is in no list among the clean ones of its bucket; the bucket's free
 * blocks and bytes count it already. */
void heap_add_clean(struct heap *heap, struct block *block);

/* Lock held. Counts a block of this state out. */
void heap_forget_block(struct pool *pool, struct heap *heap, struct block *block);

/* Lock held. Calls visit for each bucket, the one of blocks that are not kept last. */
void heap_visit_buckets(struct heap *heap, void (*visit)(struct bucket *, void *), void *argument);

#endif
