/*
 * Blocks of stream-ordered memory: one record per driver allocation, or part of one.
 *
 * A record is in one of three hands. The program's: held_at is the block's address, and nothing in
 * the record changes but held_at. A stream's: the block is free and in lists of that stream, whose
 * lock guards the record (stream_heap.h). A thread's: the one that has taken it out of either,
 * under the lock of the stream that counts the block (shelf), and that will put it into the other.
 *
 * So two threads that free the same address cannot both succeed, and a stale pointer finds a record
 * that either is not held at that address or is the next owner's in good faith. Records are never
 * returned to the system.
 */
#ifndef CUDAPOOL_CORE_STREAM_BLOCK_H
#define CUDAPOOL_CORE_STREAM_BLOCK_H

#include "core/base/lock.h"
#include "core/blocks/bucket.h"

struct context;
struct mempool;
struct own_event;
struct shelf;
struct uses;

/* Bytes that processors take from each other at a time: a cache line and the one fetched with it.
 * What threads that use different streams write lies so far apart. */
#define STREAM_APART 128u

struct stream_block {
    _Alignas(STREAM_APART) struct block block; /* its epoch is the stamp of its last free, in the
                           order of the stream that it was freed on; its heap is NULL */
    _Atomic CUdeviceptr held_at; /* 0: not in the program's hands. Set to it under the lock of the
                                    stream that counts the block; release when the block is handed
                                    out, acquire when it is looked at without the lock */
    _Atomic uint64_t asked; /* bytes that the program asked for, for whoever only looks: relaxed,
                               like the two below */
    _Atomic uint64_t generation; /* another one each time that the block is handed out; never 0 */
    _Atomic bool shared;         /* others than this process's streams may reach it: never reused */
    _Atomic(struct shelf *) shelf; /* that counts it, live or free. Relaxed: looked at again under
                                      its stream's lock */
    _Atomic(struct shelf *) home;  /* of a part: whose segment it is cut out of; NULL: that is lost,
                                      see stream_parts.h. Relaxed: looked at again under the lock of
                                      its stream, which guards it */
    struct mempool *mempool;
    struct context
        *context; /* that it was allocated in, and which of the handle's owners that is */
    uint64_t context_generation;
    struct own_event *event; /* recorded in the free that made it pending, or NULL */
    _Atomic(struct uses *)
        uses; /* that the program told of, or NULL: see use.h. Relaxed: written
                 under the use lock, read there or by who has claimed the block */
};

static inline struct stream_block *stream_block_of(struct block *block)
{
    return (struct stream_block *)((char *)block - offsetof(struct stream_block, block));
}

/* The record at an address of the table of stream-ordered blocks, or NULL. */
static inline struct stream_block *stream_block_find(const struct block_table *table,
                                                     CUdeviceptr address)
{
    struct block *block = block_table_find(table, address);
    return block ? stream_block_of(block) : NULL;
}

static inline bool stream_block_is_held(const struct stream_block *block, CUdeviceptr address)
{
    return atomic_load_explicit(&block->held_at, memory_order_acquire) == address;
}

/* The first of a list of free blocks, from this one on, that is no part of a larger one; NULL:
 * there is none. */
static inline struct block *stream_block_first_whole(struct block *block, enum block_link link)
{
    while (block && block_is_part(block))
        block = block->links[link].next;
    return block;
}

/* Records, made in slabs and taken by any thread: guarded by their own lock, which is a leaf. */
struct stream_block_records {
    pthread_mutex_t lock;
    struct block *unused; /* through links[LINK_HEAP].next */
};

/* A record that nobody else has, zeroed but for held_at and generation; NULL where memory is
 * short. */
struct stream_block *stream_block_take(struct stream_block_records *records);
void stream_block_put(struct stream_block_records *records, struct stream_block *block);

#endif
