/*
 * Pinned host memory of one context: its state, and the lists of its free blocks.
 *
 * A block is live, free, or in a thread's hand on its way between these and the driver. A free one
 * is in a bin: the blocks of one key (a size and a sort) that the threads of one shard have freed.
 * There it is pending (the GPU may still be using it) or clean. So a thread that allocates and
 * frees takes a lock that seldom anybody else wants, and yet each thread can find all blocks.
 *
 *   heap->reserved_bytes      = bytes of all blocks
 *   blocks in a bin's pending = counts->frees - counts->settled
 *   blocks in the bin         = counts->frees + counts->moved - counts->hits
 *   shard->clean_bytes        = sum over its bins of the bytes of blocks in their clean
 *   shard->pending_bytes      = the same of the pending ones
 *   lists of pending blocks ascend by stamp, but for those that the driver has refused to take
 *
 * all of these modulo 2^64. Fences are the context's (epoch.h). They are only asked about, or
 * waited for on the host: the program writes into a block as soon as it has it, which no barrier on
 * the device could hold back. So what is handed out is clean.
 *
 * Locking: a shard's lock guards its bins and what is in them. The context's lock, which is taken
 * before it, guards records, buckets and what is counted there. A live block is claimed by one
 * compare-and-exchange, without a lock (block.h); a block in a thread's hand is that thread's.
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

/* Threads are told apart by their ids; those of one shard share its lock. */
#define HOST_SHARDS 64u

/* The sort of a block, in its bucket's key below the bytes, which are a multiple of the granule:
 * what the program has asked for, since the driver tells of it (cuMemHostGetFlags), and the node
 * that the memory lies on. */
#define HOST_SORT_FLAGS                                                                            \
    ((unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |                             \
                CU_MEMHOSTALLOC_WRITECOMBINED))
#define HOST_SORT_PLAIN 8u /* by cuMemAllocHost, which has no flags */
#define HOST_SORT_NODE  16u
#define HOST_SORT_MASK  (SIZE_CLASS_GRANULE - 1u)

_Static_assert(HOST_SORT_FLAGS < HOST_SORT_PLAIN, "the flags and the call are told apart");
_Static_assert(HOST_SORT_NODE *MACHINE_NODES <= SIZE_CLASS_GRANULE, "a node fits behind them");

/* How a block's memory was made: block->slot. */
enum host_origin { HOST_BY_DRIVER, HOST_REGISTERED };

/* A bin of a shard; or, without one, what is counted of all blocks of a key: then its lists are
 * empty. */
struct host_bin {
    struct bucket bucket; /* bytes: the key; counters: of all blocks of the key in the context */
    struct bin_counters *counts; /* NULL without a shard */
    struct host_shard *shard;
    struct host_bin *of_all; /* of a shard's: the one without a shard */
    /* The next one of the key; without a shard the first. Release as it is listed, acquire where
     * the first is read. */
    _Atomic(struct host_bin *) same_key;
    /* Fixed as it is made. */
    uint64_t bytes;            /* of each of its blocks */
    unsigned sort;             /* of them */
    struct size_span requests; /* of that sort that it serves */
};

#define HOST_PLACES 128u

struct host_shard {
    struct short_lock lock;
    int32_t frees_left;     /* like the next one, in the epoch of newest: while any are left, a free
                               only     puts its block into its bin */
    int64_t bytes_left;     /* before a fence is due, or caps are to be looked at */
    int64_t noted_up_to;    /* live_requested up to which hits raise no peak: see HOST_STEP */
    counter pending_bytes;  /* like the next ones: read without the lock. What is clean, and has not
                               been looked at, included */
    counter clean_bytes;    /* added to before pending_bytes is taken from */
    counter newest;         /* stamp of the last free; 0: there was none */
    counter live_requested; /* what the program was given here less what it freed here */
    struct host_heap *heap; /* fixed, and written before it is listed */
    struct host_bin *by_request[HOST_PLACES]; /* that served such a request last; see
                                                 host_place */
    struct host_shard *next;                  /* of the heap's; written before it is listed */
    struct bucket_set bins;
    int64_t bytes_at_first; /* what bytes_left began at, in that epoch */
    bool fence_next;        /* the next free is to close the epoch */
};

/* Why a heap's hits and frees are not quick (host_quick.h). */
enum host_closed {
    HOST_CLOSED_ENDING = 1,   /* the context is: nothing is handed out or taken back */
    HOST_CLOSED_UNUSABLE = 2, /* the driver answers in this context */
    HOST_CLOSED_WAITING = 4,  /* frees may have to wait: see host_update_waiting */
    HOST_CLOSED_WANTED = 8,   /* the next free is to give memory back: see struct host_memory */
};

struct host_heap {
    struct context *context; /* NULL: the pool does not serve the kind */
    _Atomic bool ready;      /* classes, fence_bytes and cap_share are set: not before the first
                                allocation. Release in host_heap_make_ready, acquire in
                                host_heap_is_ready */
    struct size_classes classes;
    _Atomic(struct host_shard *) shards[HOST_SHARDS]; /* made when first used, and kept. The release
                                                         store pairs with the acquire load in
                                                         host_shard_at */
    _Atomic(struct host_shard *) first_shard; /* all of them: the list only grows. The same pairs
                                                 with that in host_shards */
    _Atomic uint64_t fence_bytes; /* freed by one shard's threads in an epoch, which is then closed.
                                     Relaxed, like the next one: as the last thread that has closed
                                     one saw who frees, see share_among_active */
    _Atomic uint64_t cap_share;   /* of what may be cached: one shard's */
    _Atomic uint32_t closed; /* bits of enum host_closed. Relaxed: that of an end is read with a
                                shard's lock, each of which is taken and given after it was set;
                                the others are as late as what they tell of */
    counter now;             /* nanoseconds of the monotonic clock, lately */
    char apart[64];          /* every call reads what is above */

    struct pool *pool;
    struct block_records records;
    struct bucket_set buckets; /* bins without a shard */
    struct host_bin unkept;    /* the same for blocks that go to the driver when they are freed */
    struct host_pieces pieces; /* of all blocks of the driver's */
    _Atomic(struct block *) aside; /* freed, and left for a later free to give to the driver; linked
                                      like those of a bucket. Relaxed where the lock is not held */
    counter reserved_bytes;
    counter peak_requested;       /* the most that the program held, as far as slow paths saw */
    uint64_t pending_when_looked; /* the newest stamp when the housekeeper last looked; 0: none */
    _Atomic uint64_t waited_for;  /* bytes that were free when who was out of memory had waited for
                                     the context's work without success; 0: nothing was, or that
                                     was over since. Relaxed, like the next one: it only saves
                                     waits */
    _Atomic uint64_t waited_at;   /* the newest epoch that was clean then; where another one is, the
                                     work is over */
};

/* What there is of each device. */
struct host_device {
    struct kind_counters *counters; /* in the figures */
};

/* What there is once. */
struct host_memory {
    struct block_table blocks;
    struct machine machine;  /* it, and the next three, are written as the pool starts */
    uint64_t cached_cap;     /* bytes, of all contexts together */
    uint64_t growth_budget;  /* bytes, of each context */
    bool keeps_any;          /* false: the settings want no free block to be kept */
    _Atomic uint64_t wanted; /* bytes that were to go back, and could not beside the contexts' work:
                                a free may wait for that. Relaxed, like the next ones */
    _Atomic uint64_t unlooked; /* bytes of misses since the machine was last looked at. Relaxed */
    _Atomic uint64_t launched_at; /* nanoseconds of the monotonic clock: when the program was last
                                     seen to have launched work; 0: never. Relaxed */
};

/* NULL: the pool does not serve the kind. */
static inline struct host_memory *host_memory_of(const struct pool *pool)
{
    return pool->of_kind[KIND_HOST];
}

/* As the pool starts, since the process may forbid itself to open files later. Takes a fraction of
 * a millisecond. */
void host_know_machine(const struct host_settings *settings, struct host_memory *memory);

static inline struct host_heap *host_heap_of(struct context *context)
{
    return context->of_kind[KIND_HOST];
}

/* Records are made for a heap, which is another struct in each kind that uses them. */
static inline struct host_heap *host_heap_of_block(const struct block *block)
{
    return (struct host_heap *)(void *)block->heap;
}

/* Written by whoever owns the block, and before it can be found; others look at any time, and at
 * what the bin is: pairs with the release store in host_set_bin. */
static inline struct host_bin *host_bin_of(const struct block *block)
{
    return (struct host_bin *)__atomic_load_n(&block->bucket, __ATOMIC_ACQUIRE);
}

/* How the memory was made, enum host_origin: the same, relaxed. */
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

/* Bytes of the block that serves such a request; 0: none is kept for that. */
static inline uint64_t host_block_bytes(const struct size_classes *classes, uint64_t bytes)
{
    return size_class_up(size_class_round(classes, bytes), SIZE_CLASS_GRANULE);
}

/* Where a request finds its bin in by_request. */
static inline unsigned host_place(uint64_t bytes, unsigned sort)
{
    return (size_class_place(bytes, HOST_PLACES) ^ sort) % HOST_PLACES;
}

/* Bytes of the blocks of a key, 0 where they are not kept. */
static inline uint64_t host_key_bytes(uint64_t key)
{
    return key & ~(uint64_t)HOST_SORT_MASK;
}

static inline uint64_t host_clean_epoch(const struct host_heap *heap)
{
    return epoch_clean(&heap->context->epochs);
}

/* Bits of enum host_closed. */
static inline bool host_is_closed(const struct host_heap *heap, uint32_t reasons)
{
    return (atomic_load_explicit(&heap->closed, memory_order_relaxed) & reasons) != 0;
}

static inline bool host_is_ending(const struct host_heap *heap)
{
    return host_is_closed(heap, HOST_CLOSED_ENDING);
}

/* Whether the context still is the one that was of that generation, alive: else what there was of
 * it has gone with it, or is just going. */
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

/* So many shards' threads share what may be freed without a fence, and what may be cached. */
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

/* Before each allocation: what follows from the machine's memory is known. */
void host_heap_make_ready(struct pool *pool, struct host_heap *heap);

static inline bool host_heap_is_ready(const struct host_heap *heap)
{
    return atomic_load_explicit(&heap->ready, memory_order_acquire);
}

/* The calling thread's shard, made if there is none yet; NULL where memory is short. */
struct host_shard *host_shard_make(struct pool *pool, struct host_heap *heap);

static inline struct host_shard *host_shard_of_thread(struct pool *pool, struct host_heap *heap)
{
    struct host_shard *shard = host_shard_at(heap, thread_id(pool) % HOST_SHARDS);
    return __builtin_expect(shard != NULL, 1) ? shard : host_shard_make(pool, heap);
}

/* Free bytes of a shard, of the moment. Without its lock some may count twice, but none is missed.
 */
static inline uint64_t host_free_bytes(const struct host_shard *shard)
{
    uint64_t pending = counter_get(&shard->pending_bytes);
    /* This pairs with the one in host_sweep, where blocks go from the one to the other. */
    counter_fence(memory_order_acquire);
    return pending + counter_get(&shard->clean_bytes);
}

/* The next free of the shard's threads closes the epoch. Its lock is held. */
static inline void host_want_fence(struct host_shard *shard)
{
    lock_must_be_held(&shard->lock);
    shard->fence_next = true;
    shard->frees_left = 1;
}

/* The shard's bin of that key, made if there is none yet; NULL where memory is short. */
struct host_bin *host_bin_make(struct pool *pool, struct host_heap *heap, struct host_shard *shard,
                               uint64_t key);

/* The program holds so many bytes more, modulo 2^64, by another way than a hit or a free of a bin.
 * The context's lock is held, so that no end of it comes in between. */
void host_count_live(struct pool *pool, struct host_heap *heap, uint64_t bytes);

/* Takes the block out of whatever it is in, after someone gave its address back past the pool. */
void host_heap_forget_address(struct pool *pool, CUdeviceptr address);
bool host_heap_let_go(struct pool *pool, CUdeviceptr address);

void host_set_closed(struct host_heap *heap, uint32_t reason, bool set);

/* The context's lock is held. Whether frees may have to wait has changed: there is work that only
 * the host ends, or an allocation has waited in vain. */
void host_update_waiting(struct context *context);

/* The context has ended. */
void host_heap_reset(struct pool *pool, struct context *context);
void host_heap_set_ending(struct context *context, bool ending);

/* Of all shards together; of the moment. */
struct host_sums {
    uint64_t free_bytes, pending_bytes, live_requested;
};
struct host_sums host_sum(const struct host_heap *heap);

/* Moves what has become clean from pending to clean in all bins, and then sums. */
struct host_sums host_sweep_and_sum(struct host_heap *heap);

/* The newest stamp that is not clean yet; 0: nothing is pending. */
uint64_t host_newest_pending(const struct host_heap *heap);

/* ---- the shard's lock is held ---- */

/* NULL: there is none yet. */
static inline struct host_bin *host_bin_find(const struct host_shard *shard, uint64_t key)
{
    lock_must_be_held(&shard->lock);
    return shard->bins.slots ? (struct host_bin *)bucket_set_find(&shard->bins, key) : NULL;
}

/* Moves what has become clean from pending to clean. */
void host_sweep(struct host_bin *bin, uint64_t clean);

/* An unused block, NULL where there is none: the newest that is known to be clean, else the oldest
 * pending one, if it is clean by now. clean: what the context's fences say. */
static inline struct block *host_unused_block(const struct host_bin *bin, uint64_t clean)
{
    struct block *pending = bin->bucket.pending.first;
    if (bin->bucket.clean.last || !pending)
        return bin->bucket.clean.last;
    return counter_get(&pending->epoch) <= clean ? pending : NULL;
}

/* Takes what host_unused_block answers out of its list. */
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
        counter_add(&bin->counts->settled, 1);
    }
}

/* A shard's hits pass the peaks by until its threads hold so many bytes more than when peaks were
 * noted last, or than after a free that has looked what is spent. */
#define HOST_STEP (INT64_C(8) << 20)

/* Raises the peaks of what the program holds of the kind, and of each key of the shard. */
void host_note_peaks(struct host_shard *shard);

/* What is live with so many bytes more; and whether peaks are to be noted then. */
static inline uint64_t host_live_with(const struct host_shard *shard, size_t bytes)
{
    lock_must_be_held(&shard->lock);
    return counter_get(&shard->live_requested) + bytes;
}

static inline bool host_is_noted(const struct host_shard *shard, uint64_t live)
{
    return (int64_t)live <= shard->noted_up_to;
}

/* It goes into the program's hands, by a hit of the bin's. live: what is so then. Its address. */
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

/* The same where the hit is counted elsewhere, afterwards. */
void host_take_over(struct host_bin *bin, struct block *block, size_t bytes);

/* A free block into the calling thread's hand: it is BLOCK_LEAVING then. */
void host_take_out(struct host_bin *bin, struct block *block);

/* A block in the calling thread's hand into the bin's list where it was, as the oldest. clean: what
 * the context's fences say. */
void host_put_back(struct host_bin *bin, struct block *block, uint64_t clean);

/* The shard's threads have freed nothing in the epoch yet: what they may free without a fence is
 * counted anew. */
void host_begin_epoch(const struct pool *pool, struct host_shard *shard, uint64_t stamp);

/* After a free that has left no frees or no bytes. */
struct host_spent {
    bool due;        /* a fence is */
    bool past_share; /* the shard has more than its share of what may be cached */
};
struct host_spent host_look_what_is_spent(const struct pool *pool, struct host_shard *shard);

/* One that the program has freed just now, and the calling thread claimed. */
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

/* What is counted of that key; of blocks that are not kept where it can't be made. */
struct host_bin *host_bucket(struct pool *pool, struct host_heap *heap, uint64_t key);

/* Makes a record of a live block. False where memory is short: then the pool does not know it. */
bool host_record(struct pool *pool, struct host_heap *heap, struct host_bin *bucket,
                 CUdeviceptr address, uint64_t bytes, uint64_t requested, enum host_origin origin);

/* The live block at this address becomes the calling thread's, to leave for the driver. False where
 * it is not live there (any more). */
bool host_claim(struct block *block, CUdeviceptr address);

/* A block is about to leave for the driver: it counts as reserved no more. And: it does again. */
void host_count_leaving(const struct block *block);
void host_count_back(const struct block *block);

/* Forgets the record of one that has left. */
void host_forget(struct pool *pool, struct host_heap *heap, struct block *block);

#endif
