/*
 * Blocks: one record per driver allocation, or part of one, and the table that maps a pointer to
 * its record.
 *
 * A record belongs to one heap for good, so a thread that has found it by a stale pointer can
 * always read block->heap. Address and state are one word, the key. A thread frees a live block by
 * claiming it with one compare-and-exchange, with or without the heap's lock. If two threads free
 * one block, only one claim succeeds. From then on the claiming thread owns the block. A live
 * block's fields are written before it becomes live. Whatever guards a thread cache
 * (thread_cache.h) also guards the free blocks in it. The heap's lock guards every other free
 * block. Records are never returned to the system.
 *
 * The table is a radix tree over the address. A lookup takes no lock and never waits. It finds a
 * block by its first address or by an address inside the block. Inserting and removing take a lock
 * of the table's own. The tree only grows.
 */
#ifndef CUDAPOOL_CORE_BLOCK_H
#define CUDAPOOL_CORE_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"

struct bucket;
struct heap;

enum block_state {
    BLOCK_UNUSED,  /* a record without memory */
    BLOCK_LIVE,    /* in use by the program */
    BLOCK_CACHED,  /* freed, and in a thread's cache: pending or clean */
    BLOCK_PENDING, /* freed; the GPU may still be using it */
    BLOCK_CLEAN,   /* freed, and nothing can be using it */
    BLOCK_LEAVING, /* being released to the driver, in no list and not in the table; being moved to
                      another stream, in no list; or a stream's part that waits: stream_merge.h */
    BLOCK_KEPT,    /* freed by the program, but owned by graphs that use it; in no list */
    BLOCK_SPARE,   /* memory of a segment between its parts: see core/segments */
};

/* A block's key holds its address, a multiple of 256. The low 8 bits hold its marks and its state.
 * A life of a block lasts from an allocation to the free of that allocation.
 * Shared: not only this process's streams may access the block, so the pool never reuses it.
 * Named: the program has been told the number of the block's present life, see block_name.
 * Owned: graphs own the block. They may use it until its last owner is gone, even after the program
 * has freed it.
 * A live block with any mark is claimed under its heap's lock only, since the fast path expects no
 * mark. */
#define BLOCK_STATE_MASK   UINT64_C(7)
#define BLOCK_SHARED       UINT64_C(8)
#define BLOCK_NAMED        UINT64_C(16)
#define BLOCK_OWNED        UINT64_C(32)
#define BLOCK_MARKS        (BLOCK_SHARED | BLOCK_NAMED | BLOCK_OWNED)
#define BLOCK_ADDRESS_MASK (~UINT64_C(255))

/* A free block is in a list of its bucket, and a pending block also in a list of its heap. A block
 * in a thread's cache is instead in a chain through links[LINK_BUCKET].next. Memory that may be cut
 * is in a tree (core/segments). LINK_HEAP links a spare piece into its tree; below and above link a
 * whole block. */
enum block_link { LINK_BUCKET, LINK_HEAP, LINK_KINDS };

/* The first cache line holds the fields that the path without a lock touches. */
struct block {
    /* A release store makes the block live. It pairs with the acquire load that claims the block or
     * reads its state. After that load, the fields below belong to this life. */
    _Atomic uint64_t key;
    counter requested; /* what the program asked for, while the block is live */
    struct heap *heap;
    struct bucket *bucket;
    counter epoch;     /* the epoch of its last free; 0: never freed. Until that epoch's fence
                          completes, a barrier orders the live block's work after the fence.
                          Relaxed: a thread that does not own the block may look while the program
                          frees it */
    uint64_t freed_at; /* when it was freed, in nanoseconds of the monotonic clock. The heap's last
                          slow path before the free read the clock */
    _Atomic uint16_t bin; /* its bucket's bin; relaxed, like epoch */
    uint8_t slot;         /* its kind says what this is: see heap.h, host_heap.h */
    bool refused;         /* in state BLOCK_LEAVING: the driver has refused to take it back. Of a
                             stream's part: taken to be merged at its context's end */
    uint8_t part;         /* enum block_part: whether it is cut out of a larger driver allocation.
                             Threads that do not own the block read it by block_is_part */
    struct {
        struct block *next, *previous;
    } links[LINK_KINDS];
    uint64_t bytes; /* of the driver's allocation, or of the part. block_set_bytes writes it.
                       Threads that do not own the block read it by block_bytes */
    counter life;   /* the number of this life, if the live block is named. Guarded by its heap's
                       lock */
    struct block *below, *above; /* of a part: its neighbours in the segment; NULL at the segment's
                                    ends. They link a whole block into a tree: see core/segments */
} __attribute__((aligned(64)));

/* A segment has either small or large parts, never both. */
enum block_part { PART_NONE, PART_SMALL, PART_LARGE };

/* Returns whether the block is a part. The driver does not know parts, so the pool must never ask
 * it to free one. The result is fixed while the block is live. Relaxed: a thread that does not own
 * the block checks the block's key as well. */
static inline bool block_is_part(const struct block *block)
{
    return __atomic_load_n(&block->part, __ATOMIC_RELAXED) != PART_NONE;
}

static inline void block_set_part(struct block *block, enum block_part part)
{
    __atomic_store_n(&block->part, (uint8_t)part, __ATOMIC_RELAXED);
}

/* Relaxed: a thread that does not own the block looks at its key before and after. */
static inline uint64_t block_bytes(const struct block *block)
{
    return __atomic_load_n(&block->bytes, __ATOMIC_RELAXED);
}

/* Returns the sum of the bytes of a chain through links[LINK_HEAP].next; NULL: an empty chain. The
 * caller owns the blocks. */
static inline uint64_t block_chain_bytes(const struct block *chain)
{
    uint64_t bytes = 0;
    for (; chain; chain = chain->links[LINK_HEAP].next)
        bytes += chain->bytes;
    return bytes;
}

static inline uint64_t block_chain_count(const struct block *chain)
{
    uint64_t count = 0;
    for (; chain; chain = chain->links[LINK_HEAP].next)
        count++;
    return count;
}

static inline void block_set_bytes(struct block *block, uint64_t bytes)
{
    __atomic_store_n(&block->bytes, bytes, __ATOMIC_RELAXED);
}

static inline CUdeviceptr block_address(const struct block *block)
{
    return atomic_load_explicit(&block->key, memory_order_relaxed) & BLOCK_ADDRESS_MASK;
}

/* Returns the next block of the chain in a thread's cache. Relaxed: threads that sum up caches look
 * while their owners change them. */
static inline struct block *block_cached_next(const struct block *block)
{
    return __atomic_load_n(&block->links[LINK_BUCKET].next, __ATOMIC_RELAXED);
}

static inline void block_set_cached_next(struct block *block, struct block *next)
{
    __atomic_store_n(&block->links[LINK_BUCKET].next, next, __ATOMIC_RELAXED);
}

static inline enum block_state block_state(const struct block *block)
{
    return (enum block_state)(atomic_load_explicit(&block->key, memory_order_acquire) &
                              BLOCK_STATE_MASK);
}

static inline unsigned block_bin(const struct block *block)
{
    return atomic_load_explicit(&block->bin, memory_order_relaxed);
}

static inline bool block_is_shared(const struct block *block)
{
    return (atomic_load_explicit(&block->key, memory_order_relaxed) & BLOCK_SHARED) != 0;
}

static inline bool block_is_owned(const struct block *block)
{
    return (atomic_load_explicit(&block->key, memory_order_relaxed) & BLOCK_OWNED) != 0;
}

static inline bool block_is_live_at(const struct block *block, CUdeviceptr address)
{
    return (atomic_load_explicit(&block->key, memory_order_acquire) & ~BLOCK_MARKS) ==
           (address | BLOCK_LIVE);
}

/* Sets the key of a new record, or of a block that is the caller's. */
static inline void block_set(struct block *block, CUdeviceptr address, enum block_state state)
{
    atomic_store_explicit(&block->key, address | (uint64_t)state, memory_order_release);
}

/* Sets the state of a block that is the caller's. Its marks stay. */
static inline void block_set_state(struct block *block, enum block_state state)
{
    uint64_t key = atomic_load_explicit(&block->key, memory_order_relaxed);
    atomic_store_explicit(&block->key, (key & ~BLOCK_STATE_MASK) | (uint64_t)state,
                          memory_order_release);
}

/* Claims the live block at this address for the caller, and gives it the state. Returns false if
 * the block is not, or no longer, live there. The mark BLOCK_SHARED stays. The marks BLOCK_NAMED
 * and BLOCK_OWNED end with the life. */
static inline bool block_claim(struct block *block, CUdeviceptr address, enum block_state state)
{
    const uint64_t lost = BLOCK_STATE_MASK | BLOCK_NAMED | BLOCK_OWNED;
    uint64_t key = address | BLOCK_LIVE;
    while (!atomic_compare_exchange_weak_explicit(&block->key, &key,
                                                  (key & ~lost) | (uint64_t)state,
                                                  memory_order_acquire, memory_order_acquire))
        if ((key & ~BLOCK_MARKS) != (address | BLOCK_LIVE))
            return false;
    return true;
}

/* Like block_claim, for a block without marks. */
static inline bool block_claim_at_once(struct block *block, CUdeviceptr address,
                                       enum block_state state)
{
    /* An addition takes one instruction less than an or. The bits are 0 in an address that has a
     * block. */
    uint64_t key = address + BLOCK_LIVE;
    return atomic_compare_exchange_strong_explicit(&block->key, &key, address + (uint64_t)state,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Makes the BLOCK_KEPT block at this address the program's again, with the mark BLOCK_OWNED. */
static inline void block_hand_out_kept(struct block *block, CUdeviceptr address)
{
    atomic_store_explicit(&block->key, address | BLOCK_LIVE | BLOCK_OWNED, memory_order_release);
}

static inline bool block_mark(struct block *block, CUdeviceptr address, uint64_t mark)
{
    uint64_t key = address | BLOCK_LIVE;
    while (!atomic_compare_exchange_weak_explicit(&block->key, &key, key | mark,
                                                  memory_order_acquire, memory_order_acquire))
        if ((key & ~BLOCK_MARKS) != (address | BLOCK_LIVE))
            return false;
    return true;
}

/* Takes the mark from the live block at this address, if the block has it. */
static inline void block_unmark(struct block *block, CUdeviceptr address, uint64_t mark)
{
    uint64_t key = atomic_load_explicit(&block->key, memory_order_relaxed);
    while ((key & ~BLOCK_MARKS) == (address | BLOCK_LIVE) &&
           !atomic_compare_exchange_weak_explicit(&block->key, &key, key & ~mark,
                                                  memory_order_acq_rel, memory_order_relaxed))
        continue;
}

/* Marks the live block at this address as shared. Returns false if it is not live there. */
static inline bool block_share(struct block *block, CUdeviceptr address)
{
    return block_mark(block, address, BLOCK_SHARED);
}

/* Returns the number of the present life of the live block at this address. A life without a number
 * gets *next, which then increases by 1. Returns 0 if the block is not live there. */
static inline uint64_t block_name(struct block *block, CUdeviceptr address, counter *next)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if ((atomic_load_explicit(&block->key, memory_order_relaxed) & BLOCK_NAMED) == 0)
        counter_set(&block->life, atomic_fetch_add_explicit(next, 1, memory_order_relaxed));
    return block_mark(block, address, BLOCK_NAMED) ? counter_get(&block->life) : 0;
}

struct block_list {
    struct block *first, *last;
};

static inline void block_list_append(struct block_list *list, struct block *block,
                                     enum block_link link)
{
    struct block *last = list->last;
    block->links[link].next = NULL;
    block->links[link].previous = last;
    if (last)
        last->links[link].next = block;
    else
        list->first = block;
    list->last = block;
}

static inline void block_list_prepend(struct block_list *list, struct block *block,
                                      enum block_link link)
{
    struct block *first = list->first;
    block->links[link].previous = NULL;
    block->links[link].next = first;
    if (first)
        first->links[link].previous = block;
    else
        list->last = block;
    list->first = block;
}

/* after == NULL: inserts before all others. */
static inline void block_list_insert_after(struct block_list *list, struct block *after,
                                           struct block *block, enum block_link link)
{
    if (!after) {
        block_list_prepend(list, block, link);
    } else if (!after->links[link].next) {
        block_list_append(list, block, link);
    } else {
        struct block *next = after->links[link].next;
        block->links[link].previous = after;
        block->links[link].next = next;
        next->links[link].previous = block;
        after->links[link].next = block;
    }
}

/* block == list->first here, and block == list->last in block_list_remove_last. */
static inline void block_list_remove_first(struct block_list *list, const struct block *block,
                                           enum block_link link)
{
    struct block *next = block->links[link].next;
    list->first = next;
    if (next)
        next->links[link].previous = NULL;
    else
        list->last = NULL;
}

static inline void block_list_remove_last(struct block_list *list, const struct block *block,
                                          enum block_link link)
{
    struct block *previous = block->links[link].previous;
    list->last = previous;
    if (previous)
        previous->links[link].next = NULL;
    else
        list->first = NULL;
}

static inline void block_list_remove(struct block_list *list, struct block *block,
                                     enum block_link link)
{
    struct block *next = block->links[link].next;
    struct block *previous = block->links[link].previous;
    if (next)
        next->links[link].previous = previous;
    else
        list->last = previous;
    if (previous)
        previous->links[link].next = next;
    else
        list->first = next;
}

/*
 * The records of one heap, made in slabs. Guarded by the heap's lock.
 */
struct block_records {
    struct block_slab *slabs;
    struct block *unused; /* through links[LINK_HEAP].next */
};

/* Returns a record in state BLOCK_UNUSED for the heap; NULL if memory is short. */
struct block *block_records_take(struct block_records *records, struct heap *heap);
void block_records_put(struct block_records *records, struct block *block);

/* Calls visit for every record that is not unused. */
void block_records_visit(struct block_records *records, void (*visit)(struct block *, void *),
                         void *argument);

/*
 * The table from pointers to blocks. Three levels take 14, 11 and 16 bits of the address, and 8
 * bits are inside a granule. Addresses from 2^49 on, or not on a granule's boundary, have no place
 * in it. A leaf is for 16 MiB of addresses. Only those pages of its 512 KiB that hold records are
 * ever touched. To keep these pages few, a leaf does not hold its places in the order of addresses.
 * The places of multiples of 4 KiB come first, one after the other.
 *
 * Each kind of memory has a table of its own. With one table for all kinds, a record would have to
 * say its kind. That check would cost a stream-ordered allocation and its free four instructions.
 */
#define GRANULE_BITS 8
#define LEAF_BITS    16
#define MIDDLE_BITS  11
#define ROOT_BITS    14
#define ADDRESS_BITS (GRANULE_BITS + LEAF_BITS + MIDDLE_BITS + ROOT_BITS)

/* The driver's memory comes in pages of 2^PAGE_BITS bytes. Blocks of less than a page share
 * pages. */
#define PAGE_BITS 21

/* What is counted of one page; see core/device_memory/page_counts.h. */
struct block_page {
    _Atomic uint32_t counts;
    _Atomic uint64_t seen;
};

/* 2^GROUP_BITS granules of a leaf form a group, which is 4 KiB of addresses. The granules of a
 * group share one bit in groups. A granule's index in its group is its class. */
#define GROUP_BITS 4
#define LEAF_WORDS (1u << (LEAF_BITS - GROUP_BITS - 6))

struct block_table_leaf {
    _Atomic(struct block *) blocks[1u << LEAF_BITS];
};

struct block_table_middle {
    _Atomic(struct block_table_leaf *) leaves[1u << MIDDLE_BITS];
    /* For the 16 MiB of addresses of each leaf: the block that begins before them and reaches into
     * them, or NULL. The leaf need not exist. */
    _Atomic(struct block *) reaching[1u << MIDDLE_BITS];
    /* For each leaf: a bit for each class that a record was ever in. Lookups need not touch the
     * places of other classes. */
    _Atomic uint32_t classes[1u << MIDDLE_BITS];
    /* For each leaf: a bit for each group of granules, set while the group has a record. */
    _Atomic uint64_t groups[1u << MIDDLE_BITS][LEAF_WORDS];
    struct block_page pages[1u << (MIDDLE_BITS + LEAF_BITS + GRANULE_BITS - PAGE_BITS)];
};

struct block_table {
    _Atomic(struct block_table_middle *) *root;
    pthread_mutex_t lock; /* guards chunk, chunk_left and every change of the tree, except that a
                             record is removed from its place without it */
    char *chunk;
    size_t chunk_left;
};

bool block_table_init(struct block_table *table);

/* Returns the number of an address's granule. The address's bits inside the granule must be 0. They
 * become the top bits, so a number with any of them set has no place in the table. */
static inline uint64_t block_table_granule(CUdeviceptr address)
{
    return address >> GRANULE_BITS | address << (64 - GRANULE_BITS);
}

static inline bool block_table_has_place(CUdeviceptr address)
{
    return block_table_granule(address) >> (LEAF_BITS + MIDDLE_BITS) < 1u << ROOT_BITS;
}

/* Returns the granule's place in its leaf. */
static inline size_t block_table_leaf_place(uint64_t granule)
{
    _Static_assert(LEAF_BITS == 16, "the rotation of a 16-bit number");
    uint16_t in_leaf = (uint16_t)granule;
    return (uint16_t)(in_leaf >> GROUP_BITS | in_leaf << (LEAF_BITS - GROUP_BITS));
}

/* Returns the place of an address that has one; NULL if the tree has no node for it yet. The
 * acquire loads pair with the release stores in grow_middle and grow_leaf. */
static inline _Atomic(struct block *) *block_table_place(const struct block_table *table,
                                                         CUdeviceptr address)
{
    uint64_t granule = block_table_granule(address);
    struct block_table_middle *middle = atomic_load_explicit(
        &table->root[granule >> (LEAF_BITS + MIDDLE_BITS)], memory_order_acquire);
    if (!middle)
        return NULL;
    struct block_table_leaf *leaf = atomic_load_explicit(
        &middle->leaves[granule >> LEAF_BITS & ((1u << MIDDLE_BITS) - 1)], memory_order_acquire);
    return leaf ? &leaf->blocks[block_table_leaf_place(granule)] : NULL;
}

/* Returns the block that begins at the address; NULL: none. Another thread may recycle the record
 * at any moment, so the caller checks its key. */
static inline struct block *block_table_find(const struct block_table *table, CUdeviceptr address)
{
    if (__builtin_expect(!block_table_has_place(address), 0))
        return NULL;
    _Atomic(struct block *) *place = block_table_place(table, address);
    /* Pairs with the release store in add_record, which block_table_insert uses. So the record's
     * heap is readable. */
    return place ? atomic_load_explicit(place, memory_order_acquire) : NULL;
}

/* Sets the record of the address, and of each leaf's 16 MiB of addresses that the block's bytes
 * reach. Returns false if an address has no place, or if memory is short. */
bool block_table_insert(struct block_table *table, CUdeviceptr address, struct block *block);

/* Removes the address's record if it still is this block. Returns false if it is not. */
bool block_table_remove(struct block_table *table, CUdeviceptr address, struct block *block);

/* Returns the page of an address. The address is, or was, inside a block of the table. */
static inline struct block_page *block_table_page(const struct block_table *table,
                                                  CUdeviceptr address)
{
    uint64_t page = address >> PAGE_BITS;
    unsigned bits = MIDDLE_BITS + LEAF_BITS + GRANULE_BITS - PAGE_BITS;
    struct block_table_middle *middle =
        atomic_load_explicit(&table->root[page >> bits], memory_order_acquire);
    return &middle->pages[page & ((UINT64_C(1) << bits) - 1)];
}

/* Returns the block that contains the address, or else one that ends before it. Considers only the
 * blocks that begin at or before the address in its leaf's 16 MiB, and the block that reaches into
 * them. NULL: there is no such block. */
struct block *block_table_find_around(const struct block_table *table, CUdeviceptr address);

#endif
