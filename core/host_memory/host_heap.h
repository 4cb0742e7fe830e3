/*
 * Pinned host memory of one context: its state, and the lists of its free blocks.
 *
 * A block is live, free, or held by one thread while it moves between the program, the lists and
 * the driver. A free block is in a bin: the blocks of one key (a size and a sort) that the threads
 * of one shard have freed. There it is pending (the GPU may still be using it) or clean. So a
 * thread usually takes only the lock of its own shard, which is seldom contended, and yet can find
 * every block.
 *
 *   heap->reserved_bytes      = bytes of all blocks
 *   blocks in a bin's pending = counts->frees - counts->not_pending
 *   blocks in the bin         = counts->frees + counts->moved - counts->hits
 *   shard->clean_bytes        = sum over its bins of the bytes of blocks in their clean lists
 *   shard->pending_bytes      = sum over its bins of the bytes of blocks in their pending lists
 *   stamps ascend in each list of pending blocks, except for blocks that the driver refused to free
 *
 * All sums are modulo 2^64. Fences belong to the context (epoch.h). The pool only queries them or
 * waits for them on the host. A barrier on the device would not help: the program writes into a
 * block as soon as it has it. So every block handed out is clean.
 *
 * Locking: a shard's lock guards its bins and the blocks in them. The context's lock, which is
 * taken before a shard's, guards records, buckets and the counters there. A thread claims a live
 * block by one compare-and-exchange, without a lock (block.h). A block taken out of its list
 * belongs to the thread that took it.
 */
#ifndef CUDAPOOL_CORE_HOST_HEAP_H
#define CUDAPOOL_CORE_HOST_HEAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/machine.h"
#include "core/base/size_class.h"
#include "core/blocks/bucket.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "host_piece.h"

/* Shards of a context. A thread uses the shard numbered thread id % HOST_SHARDS; threads of one
 * shard share its lock. */
#define HOST_SHARDS 64u

/* The sort of a block is in the low bits of its bucket's key. The bytes above it are a multiple of
 * the granule. The sort says what the program asked for, since cuMemHostGetFlags reports it, and on
 * which NUMA node the memory lies. */
#define HOST_SORT_FLAGS                                                                            \
    ((unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |                             \
                CU_MEMHOSTALLOC_WRITECOMBINED))
#define HOST_SORT_PLAIN 8u /* allocated by cuMemAllocHost, which has no flags */
#define HOST_SORT_NODE  16u
#define HOST_SORT_MASK  (SIZE_CLASS_GRANULE - 1u)

_Static_assert(HOST_SORT_FLAGS < HOST_SORT_PLAIN, "the flags and the call are told apart");
_Static_assert(HOST_SORT_NODE *MACHINE_NODES <= SIZE_CLASS_GRANULE, "a node fits behind them");

/* How a block's memory was made. Stored in block->slot. */
enum host_origin { HOST_BY_DRIVER, HOST_REGISTERED };

/* A bin of a shard. Or, with no shard, the counters of all blocks of a key in the context: then its
 * lists are empty. */
struct host_bin {
    struct bucket bucket; /* bytes: the key; counters: of all blocks of this key in the context */
    struct bin_counters *counts; /* NULL if the bin has no shard */
    struct host_shard *shard;
    struct host_bin *of_all; /* for a bin of a shard: the bin of its key that has no shard */
    /* The next bin of the same key; in the bin without a shard: the first one. Release store when a
     * bin is listed, acquire load where the first one is read. */
    _Atomic(struct host_bin *) same_key;
    /* Constant once the bin is made. */
    uint64_t bytes;            /* of each of the bin's blocks */
    unsigned sort;             /* of the bin's blocks */
    struct size_span requests; /* the request sizes of this sort that the bin serves */
};

#define HOST_PLACES 128u

struct host_shard {
    struct short_lock lock;
    int32_t frees_left;     /* while this and bytes_left are positive, a free only puts its block
                               into its bin. Both are of the epoch in newest */
    int64_t bytes_left;     /* bytes that may be freed before a fence is due or caps must be
                               checked */
    int64_t noted_up_to;    /* up to this live_requested, hits raise no peak: see HOST_STEP */
    counter pending_bytes;  /* read without the lock, like the next three. Includes blocks that are
                               clean but not yet swept */
    counter clean_bytes;    /* increased before pending_bytes is decreased */
    counter newest;         /* stamp of the last free; 0: no free yet */
    counter live_requested; /* bytes handed out from this shard less the bytes freed into it */
    struct host_heap *heap; /* constant, written before the shard is listed */
    struct host_bin *by_request[HOST_PLACES]; /* the bin that last served such a request; see
                                                 host_place */
    struct host_shard *next;                  /* of the heap's shards; written before the shard is
                                                 listed */
    struct bucket_set bins;
    int64_t bytes_at_first; /* the value at which bytes_left began in this epoch */
    bool fence_next;        /* the next free closes the epoch */
};

/* Why the quick path (host_quick.h) is closed for a heap. */
enum host_closed {
    HOST_CLOSED_ENDING = 1,   /* the context is ending: no block is handed out or taken back */
    HOST_CLOSED_UNUSABLE = 2, /* the driver answers in this context */
    HOST_CLOSED_WAITING = 4,  /* frees may have to wait: see host_update_waiting */
    HOST_CLOSED_WANTED = 8,   /* the next free is to release memory to the driver: see struct
                                 host_memory */
};

struct host_heap {
    struct context *context; /* NULL: the pool does not serve pinned memory */
    _Atomic bool ready;      /* classes, fence_bytes and cap_share are set, which the first
                                allocation does. Release store in host_heap_make_ready, acquire load
                                in host_heap_is_ready */
    struct size_classes classes;
    _Atomic(struct host_shard *) shards[HOST_SHARDS]; /* each is made at its first use and never
                                                         freed. The release store pairs with the
                                                         acquire load in host_shard_at */
    _Atomic(struct host_shard *) first_shard; /* all shards; the list only grows. The release store
                                                 pairs with the acquire load in host_shards */
    _Atomic uint64_t fence_bytes; /* an epoch is closed once one shard has freed so many bytes in
                                     it. Relaxed, like cap_share: both date from the last closed
                                     epoch, see share_among_active */
    _Atomic uint64_t cap_share;   /* one shard's share of the bytes that may be cached */
    _Atomic uint32_t closed; /* bits of enum host_closed. Relaxed. HOST_CLOSED_ENDING is read with a
                                shard's lock held, and its writer takes and releases each of these
                                locks afterwards. The other bits may be read late */
    counter now;             /* nanoseconds of the monotonic clock, updated now and then */
    char apart[64];          /* separate cache lines: every call reads the fields above */

    struct pool *pool;
    struct block_records records;
    struct bucket_set buckets; /* the bins without a shard */
    struct host_bin unkept;    /* the counters of blocks that the driver frees at once, since the
                                  pool does not cache them */
    struct host_pieces pieces; /* of all blocks that the driver made */
    _Atomic(struct block *) aside; /* freed blocks that a later free is to give to the driver,
                                      linked through LINK_BUCKET. Relaxed where the lock is not
                                      held */
    counter reserved_bytes;
    counter peak_requested;       /* the most bytes that the program held, as far as slow paths have
                                     seen */
    uint64_t pending_when_looked; /* the newest pending stamp when the housekeeper last looked; 0:
                                     nothing was pending */
    _Atomic uint64_t waited_for;  /* bytes that were free when a thread that was out of memory had
                                     waited for the context's work without success; 0: no such wait,
                                     or that work has completed since. Relaxed, like waited_at: it
                                     only saves waits */
    _Atomic uint64_t waited_at;   /* the newest clean epoch at that time. If a newer epoch is clean,
                                     that work has completed */
};

/* One for each device. */
struct host_device {
    struct kind_counters *counters; /* in the figures */
};

/* One for the pool. */
struct host_memory {
    struct block_table blocks;
    struct machine machine;    /* this and the next three fields are written as the pool starts */
    uint64_t cached_cap;       /* bytes, for all contexts together */
    uint64_t growth_budget;    /* bytes, for each context */
    bool keeps_any;            /* false: the settings want no free block to be cached */
    _Atomic uint64_t wanted;   /* bytes to release that could not be released beside the contexts'
                                  work. The next free releases them, since a free may wait for that
                                  work. Relaxed, like the next two fields */
    _Atomic uint64_t unlooked; /* bytes of misses since the memory that is left was last checked.
                                  Relaxed */
    _Atomic uint64_t launched_at; /* nanoseconds of the monotonic clock: when the program was last
                                     seen to have launched work; 0: never. Relaxed */
};

/* NULL: the pool does not serve pinned memory. */
static inline struct host_memory *host_memory_of(const struct pool *pool)
{
    return pool->of_kind[KIND_HOST];
}

/* Fills in machine, cached_cap, growth_budget and keeps_any. Called as the pool starts, since the
 * process may later forbid itself to open files. Takes a fraction of a millisecond. */
void host_know_machine(const struct host_settings *settings, struct host_memory *memory);

static inline struct host_heap *host_heap_of(struct context *context)
{
    return context->of_kind[KIND_HOST];
}

/* block->heap is declared as struct heap. For each kind of memory that uses records it points to a
 * struct of that kind. */
static inline struct host_heap *host_heap_of_block(const struct block *block)
{
    return (struct host_heap *)(void *)block->heap;
}

/* The block's owner writes the bin, and once before the block can be found. Other threads read the
 * bin at any time, and what it points to. The acquire load pairs with the release store in
 * host_set_bin. */
static inline struct host_bin *host_bin_of(const struct block *block)
{
    return (struct host_bin *)__atomic_load_n(&block->bucket, __ATOMIC_ACQUIRE);
}

/* How the block's memory was made, enum host_origin. The owner writes it before the block can be
 * found; relaxed. */
static inline uint8_t host_origin_of(const struct block *block)
{
    return __atomic_load_n(&block->slot, __ATOMIC_RELAXED);
}

static inline void host_set_bin(struct block *block, struct host_bin *bin)
{
    __atomic_store_n(&block->bucket, &bin->bucket, __ATOMIC_RELEASE);
}

static inline struct bucket_counters *host_counters_of(const struct block *block)
{
    return host_bin_of(block)->bucket.counters;
}

/* Bytes of the block that serves a request of so many bytes; 0: the pool caches no block for it. */
static inline uint64_t host_block_bytes(const struct size_classes *classes, uint64_t bytes)
{
    return size_class_up(size_class_round(classes, bytes), SIZE_CLASS_GRANULE);
}

/* The index in by_request of a request's bin. */
static inline unsigned host_place(uint64_t bytes, unsigned sort)
{
    return (size_class_place(bytes, HOST_PLACES) ^ sort) % HOST_PLACES;
}

/* Bytes of each block of a key; 0: blocks of this key are not cached. */
static inline uint64_t host_key_bytes(uint64_t key)
{
    return key & ~(uint64_t)HOST_SORT_MASK;
}

static inline uint64_t host_clean_epoch(const struct host_heap *heap)
{
    return epoch_clean(&heap->context->epochs);
}

/* reasons: bits of enum host_closed. */
static inline bool host_is_closed(const struct host_heap *heap, uint32_t reasons)
{
    return (atomic_load_explicit(&heap->closed, memory_order_relaxed) & reasons) != 0;
}

static inline bool host_is_ending(const struct host_heap *heap)
{
    return host_is_closed(heap, HOST_CLOSED_ENDING);
}

/* Whether the context is alive and still has this generation. If not, its memory has ended with it,
 * or is about to. */
static inline bool host_lives_on(const struct host_heap *heap, uint64_t generation)
{
    return (generation & 1) != 0 && context_generation(heap->context) == generation;
}

static inline struct host_shard *host_shard_at(const struct host_heap *heap, unsigned number)
{
    return atomic_load_explicit(&heap->shards[number], memory_order_acquire);
}

static inline struct host_shard *host_shards(const struct host_heap *heap)
{
    return atomic_load_explicit(&heap->first_shard, memory_order_acquire);
}

#define host_lock(shard)     lock_take(&(shard)->lock, LOCK_HOST_SHARD)
#define host_try_lock(shard) lock_try(&(shard)->lock, LOCK_HOST_SHARD)
#define host_unlock(shard)   lock_give(&(shard)->lock)

/* ---- no lock is held ---- */

/* Divides the bytes that may be freed without a fence, and those that may be cached, among so many
 * shards. */
static inline void host_share(const struct host_memory *memory, struct host_heap *heap,
                              unsigned shards)
{
    uint64_t most =
        memory->growth_budget < memory->cached_cap ? memory->growth_budget : memory->cached_cap;
    atomic_store_explicit(&heap->fence_bytes, most / 2 / shards, memory_order_relaxed);
    atomic_store_explicit(&heap->cap_share, memory->cached_cap / shards, memory_order_relaxed);
}

/* Prepares the zeroed heap of a context that was just made. False where memory is short. */
bool host_heap_init(struct pool *pool, struct context *context);

/* Sets what depends on the machine's memory size. Called before each allocation until the heap is
 * ready. */
void host_heap_make_ready(struct pool *pool, struct host_heap *heap);

static inline bool host_heap_is_ready(const struct host_heap *heap)
{
    return atomic_load_explicit(&heap->ready, memory_order_acquire);
}

/* Makes the calling thread's shard, or returns the one that exists. NULL where memory is short. */
struct host_shard *host_shard_make(struct pool *pool, struct host_heap *heap);

static inline struct host_shard *host_shard_of_thread(struct pool *pool, struct host_heap *heap)
{
    struct host_shard *shard = host_shard_at(heap, thread_id(pool) % HOST_SHARDS);
    return __builtin_expect(shard != NULL, 1) ? shard : host_shard_make(pool, heap);
}

/* Free bytes of a shard; other threads may change them at any time. Without the shard's lock some
 * bytes may count twice, but none is missed. */
static inline uint64_t host_free_bytes(const struct host_shard *shard)
{
    uint64_t pending = counter_get(&shard->pending_bytes);
    /* Pairs with the release fence in add_to_clean, after which host_sweep moves blocks from
     * pending to clean. */
    counter_fence(memory_order_acquire);
    return pending + counter_get(&shard->clean_bytes);
}

/* Makes the next free of the shard's threads close the epoch. The shard's lock is held. */
static inline void host_want_fence(struct host_shard *shard)
{
    lock_must_be_held(&shard->lock);
    shard->fence_next = true;
    shard->frees_left = 1;
}

/* The shard's bin of this key, made if there is none yet. NULL where memory is short. */
struct host_bin *host_bin_make(struct pool *pool, struct host_heap *heap, struct host_shard *shard,
                               uint64_t key);

/* Adds bytes (modulo 2^64) to what the program holds, for blocks that no bin hands out or takes
 * back. The context's lock is held, so that the context's end cannot come in between. */
void host_count_live(struct pool *pool, struct host_heap *heap, uint64_t bytes);

/* Functions for struct kind (kind.h): the address was freed past the pool. They take the block
 * there out of its list and forget its record. */
void host_heap_forget_address(struct pool *pool, CUdeviceptr address);
bool host_heap_freed_outside(struct pool *pool, CUdeviceptr address);

void host_set_closed(struct host_heap *heap, uint32_t reason, bool set);

/* Updates HOST_CLOSED_WAITING: frees may have to wait while there is work that ends only if the
 * host acts, or after an allocation has waited without result. The context's lock is held. */
void host_update_waiting(struct context *context);

/* Functions for struct kind: the context has ended; it is about to end, or has not ended. */
void host_heap_reset(struct pool *pool, struct context *context);
void host_heap_set_ending(struct context *context, bool ending);

/* Sums over all shards. Other threads may change them at any time. */
struct host_sums {
    uint64_t free_bytes, pending_bytes, live_requested;
};
struct host_sums host_sum(const struct host_heap *heap);

/* host_sweep for all bins, then host_sum. */
struct host_sums host_sweep_and_sum(struct host_heap *heap);

/* The newest stamp that is not clean yet; 0: nothing is pending. */
uint64_t host_newest_pending(const struct host_heap *heap);

/* ---- the shard's lock is held ---- */

/* NULL: the shard has no bin of this key yet. */
static inline struct host_bin *host_bin_find(const struct host_shard *shard, uint64_t key)
{
    lock_must_be_held(&shard->lock);
    return shard->bins.slots ? (struct host_bin *)bucket_set_find(&shard->bins, key) : NULL;
}

/* Moves the blocks that have become clean from the pending list to the clean list. clean: the
 * newest clean epoch of the context. */
void host_sweep(struct host_bin *bin, uint64_t clean);

/* The newest block of the clean list; else the oldest pending block, if its stamp is clean by now;
 * else NULL. clean: the newest clean epoch of the context. */
static inline struct block *host_unused_block(const struct host_bin *bin, uint64_t clean)
{
    struct block *pending = bin->bucket.pending.first;
    if (bin->bucket.clean.last || !pending)
        return bin->bucket.clean.last;
    return counter_get(&pending->epoch) <= clean ? pending : NULL;
}

/* Takes the block that host_unused_block returned out of its list. */
static inline void host_detach_unused(struct host_shard *shard, struct host_bin *bin,
                                      struct block *block)
{
    lock_must_be_held(&shard->lock);
    if (bin->bucket.clean.last) {
        block_list_remove_last(&bin->bucket.clean, block, LINK_BUCKET);
        counter_subtract(&shard->clean_bytes, bin->bytes);
    } else {
        block_list_remove_first(&bin->bucket.pending, block, LINK_BUCKET);
        counter_subtract(&shard->pending_bytes, bin->bytes);
        counter_add(&bin->counts->not_pending, 1);
    }
}

/* Hits do not update the peaks until the shard's live_requested has grown by so many bytes. It is
 * measured from when peaks were last noted, or from the last host_look_what_is_spent if less was
 * live then. */
#define HOST_STEP (INT64_C(8) << 20)

/* Raises the peaks of the bytes that the program holds: of the kind, and of each of the shard's
 * keys. */
void host_note_peaks(struct host_shard *shard);

/* host_live_with: live_requested after handing out so many more bytes. host_is_noted: whether that
 * needs no update of the peaks. */
static inline uint64_t host_live_with(const struct host_shard *shard, size_t bytes)
{
    lock_must_be_held(&shard->lock);
    return counter_get(&shard->live_requested) + bytes;
}

static inline bool host_is_noted(const struct host_shard *shard, uint64_t live)
{
    return (int64_t)live <= shard->noted_up_to;
}

/* Hands the block out to the program, and counts a hit of the bin. live: the result of
 * host_live_with. Returns the address. */
static inline CUdeviceptr host_hand_out(struct host_shard *shard, struct host_bin *bin,
                                        struct block *block, size_t bytes, uint64_t live)
{
    struct bin_counters *counts = bin->counts;
    host_detach_unused(shard, bin, block);
    counter_set(&block->requested, bytes);
    counter_add(&counts->requested_bytes, bytes);
    counter_add(&counts->hits, 1);
    counter_set(&shard->live_requested, live);
    CUdeviceptr address = block_address(block);
    block_set(block, address, BLOCK_LIVE);
    return address;
}

/* Hands the block out to the program. The caller counts the hit elsewhere, afterwards. */
void host_take_over(struct host_bin *bin, struct block *block, size_t bytes);

/* Takes a free block out of its list. It is then BLOCK_LEAVING and belongs to the calling thread.
 */
void host_take_out(struct host_bin *bin, struct block *block);

/* Puts a block that host_take_out took back into the bin's list, as the oldest. clean: the newest
 * clean epoch of the context. */
void host_put_back(struct host_bin *bin, struct block *block, uint64_t clean);

/* To be called before the first free of the shard's threads in an epoch: restarts the counts of
 * what they may free without a fence. */
void host_begin_epoch(const struct pool *pool, struct host_shard *shard, uint64_t stamp);

/* Looks what a free has used up that left frees_left or bytes_left at 0 or less. */
struct host_spent {
    bool due;        /* a fence is due */
    bool past_share; /* more is free in the shard than its share of the bytes that may be cached */
};
struct host_spent host_look_what_is_spent(const struct pool *pool, struct host_shard *shard);

/* Adds a block that the program has just freed and the calling thread has claimed. */
static inline void host_add_pending(struct host_shard *shard, struct host_bin *bin,
                                    struct block *block, CUdeviceptr address, uint64_t stamp)
{
    const struct host_heap *heap = shard->heap;
    lock_must_be_held(&shard->lock);
    counter_subtract(&shard->live_requested, counter_get(&block->requested));
    counter_set(&block->epoch, stamp);
    block->freed_at = counter_get(&heap->now);
    block_set(block, address, BLOCK_PENDING);
    block_list_append(&bin->bucket.pending, block, LINK_BUCKET);
    counter_add(&shard->pending_bytes, bin->bytes);
    counter_add(&bin->counts->frees, 1);
}

/* ---- the context's lock is held ---- */

/* The bin without a shard of this key, made if there is none yet. For key 0, or where it cannot be
 * made, the one of blocks that are not cached. */
struct host_bin *host_bucket(struct pool *pool, struct host_heap *heap, uint64_t key);

/* Makes a record of a live block. False where memory is short: then the pool does not know the
 * block. */
bool host_record(struct pool *pool, struct host_heap *heap, struct host_bin *bucket,
                 CUdeviceptr address, uint64_t bytes, uint64_t requested, enum host_origin origin);

/* Claims the live block at this address for the calling thread, which gives it to the driver. False
 * if the block is not, or no longer, live at this address. */
bool host_claim(struct block *block, CUdeviceptr address);

/* host_count_leaving: a block is about to be released to the driver and no longer counts as
 * reserved. host_count_back: it counts as reserved again. */
void host_count_leaving(const struct block *block);
void host_count_back(const struct block *block);

/* Forgets the record of a block that was released to the driver. */
void host_forget(struct pool *pool, struct host_heap *heap, struct block *block);

#endif
