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
    BLOCK_LEAVING, /* on its way to the driver; in no list and not in the table */
};

/* A free block is in two lists: its bucket's and its heap's. */
enum block_link { LINK_BUCKET, LINK_HEAP, LINK_KINDS };

struct block {
    CUdeviceptr address;
    uint64_t bytes;     /* of the driver's allocation */
    uint64_t requested; /* what the program asked for, while it is live */
    struct heap *heap;
    struct bucket *bucket;
    uint64_t epoch;    /* free: stamped so. Live: ordered behind this epoch's fence by a barrier,
                          or 0 */
    uint64_t freed_at; /* nanoseconds of the monotonic clock, as of the heap's last slow path */
    enum block_state state;
    uint8_t slot; /* pending: of the thread that freed it, see heap.h */
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

/* Pointer -> block. Addresses from 2^49 on, or not on a 256-byte boundary, have no place in it. */
struct block_table {
    _Atomic(struct block_table_middle *) *root;
    pthread_mutex_t grow_lock; /* guards chunk and chunk_left; a leaf lock: nothing is taken
                                  under it */
    char *chunk;
    size_t chunk_left;
};

bool block_table_init(struct block_table *table);

/* NULL where the address is not a block's first. The record may be recycled at any moment by
 * another thread: check state and address under its heap's lock. */
struct block *block_table_find(const struct block_table *table, CUdeviceptr address);

/* Sets the address's record. False where the address has no place or memory is short. */
bool block_table_insert(struct block_table *table, CUdeviceptr address, struct block *block);

/* Removes the address's record if it still is this block. */
void block_table_remove(struct block_table *table, CUdeviceptr address, struct block *block);

#endif
