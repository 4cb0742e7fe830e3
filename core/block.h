/*
 * Blocks: one record per driver allocation, and the table that leads from a pointer to its record.
 *
 * A record belongs to one heap for good, so that a thread that has found it by a stale pointer can
 * always read block->heap; everything else in it is guarded by that heap's lock. Records are never
 * returned to the system.
 *
 * The table is a radix tree over the address. Looking up takes no lock and never waits; inserting
 * and removing are single atomic stores. The tree only grows.
 */
#ifndef CUDAPOOL_CORE_BLOCK_H
#define CUDAPOOL_CORE_BLOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct bucket;
struct heap;

enum block_state {
    BLOCK_UNUSED,  /* a record without memory */
    BLOCK_LIVE,    /* in the program's hands */
    BLOCK_PENDING, /* freed; the GPU may still be using it */
    BLOCK_CLEAN,   /* freed, and nothing can be using it */
    BLOCK_LEAVING, /* on its way to the driver, in no list and not in the table; or to another
                      stream, in no list */
};

/* A free block is in a list of its bucket, and a pending one in its heap's as well. */
enum block_link { LINK_BUCKET, LINK_HEAP, LINK_KINDS };

struct block {
    CUdeviceptr address;
    uint64_t bytes;     /* of the driver's allocation */
    uint64_t requested; /* what the program asked for, while it is live */
    struct heap *heap;
    struct bucket *bucket;
    uint64_t epoch;    /* that its last free was stamped with; 0: none yet. A live block whose
                          stamp is not clean is behind a barrier */
    uint64_t freed_at; /* nanoseconds of the monotonic clock, as of the heap's last slow path */
    enum block_state state;
    uint8_t slot; /* pending: of the thread that freed it, see heap.h */
    bool refused; /* leaving: by the driver */
    bool shared;  /* others than this process's streams may reach it: never reused */
    struct {
        struct block *next, *previous;
    } links[LINK_KINDS];
};

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
 * Records of one heap, made in slabs. Guarded by the heap's lock.
 */
struct block_records {
    struct block_slab *slabs;
    struct block *unused; /* through links[LINK_HEAP].next */
};

/* A record in state BLOCK_UNUSED, for the heap; NULL where memory is short. */
struct block *block_records_take(struct block_records *records, struct heap *heap);
void block_records_put(struct block_records *records, struct block *block);

/* Calls visit for every record that is not unused. */
void block_records_visit(struct block_records *records, void (*visit)(struct block *, void *),
                         void *argument);

/*
 * Pointer -> block. Three levels over the address: 14 bits, 13 bits, 14 bits, and 8 bits inside a
 * granule; addresses from 2^49 on, or not on a granule's boundary, have no place in it. A leaf
 * covers 4 MiB of device memory; of its 128 KiB only the pages that hold records are ever touched.
 */
#define GRANULE_BITS 8
#define LEAF_BITS    14
#define MIDDLE_BITS  13
#define ROOT_BITS    14
#define ADDRESS_BITS (GRANULE_BITS + LEAF_BITS + MIDDLE_BITS + ROOT_BITS)

struct block_table_leaf {
    _Atomic(struct block *) blocks[1u << LEAF_BITS];
};

struct block_table_middle {
    _Atomic(struct block_table_leaf *) leaves[1u << MIDDLE_BITS];
};

struct block_table {
    _Atomic(struct block_table_middle *) *root;
    pthread_mutex_t grow_lock; /* guards chunk and chunk_left; a leaf lock: nothing is taken
                                  under it */
    char *chunk;
    size_t chunk_left;
};

bool block_table_init(struct block_table *table);

static inline bool block_table_has_place(CUdeviceptr address)
{
    return (address >> ADDRESS_BITS) == 0 && (address & ((1u << GRANULE_BITS) - 1)) == 0;
}

static inline size_t block_table_index(CUdeviceptr address, int shift, int bits)
{
    return (size_t)(address >> shift) & (((size_t)1 << bits) - 1);
}

/* The place of an address that has one, or NULL where the tree has no node for it yet. The acquire
 * loads pair with the release stores where the tree grows. */
static inline _Atomic(struct block *) *block_table_place(const struct block_table *table,
                                                         CUdeviceptr address)
{
    struct block_table_middle *middle = atomic_load_explicit(
        &table->root[address >> (GRANULE_BITS + LEAF_BITS + MIDDLE_BITS)], memory_order_acquire);
    if (!middle)
        return NULL;
    struct block_table_leaf *leaf = atomic_load_explicit(
        &middle->leaves[block_table_index(address, GRANULE_BITS + LEAF_BITS, MIDDLE_BITS)],
        memory_order_acquire);
    return leaf ? &leaf->blocks[block_table_index(address, GRANULE_BITS, LEAF_BITS)] : NULL;
}

/* NULL where the address is not a block's first. The record may be recycled at any moment by
 * another thread: check state and address under its heap's lock. */
static inline struct block *block_table_find(const struct block_table *table, CUdeviceptr address)
{
    if (!block_table_has_place(address))
        return NULL;
    _Atomic(struct block *) *place = block_table_place(table, address);
    /* Pairs with the release store in block_table_insert: the record's heap is readable. */
    return place ? atomic_load_explicit(place, memory_order_acquire) : NULL;
}

/* Sets the address's record. False where the address has no place or memory is short. */
bool block_table_insert(struct block_table *table, CUdeviceptr address, struct block *block);

/* Removes the address's record if it still is this block. */
void block_table_remove(struct block_table *table, CUdeviceptr address, struct block *block);

#endif
