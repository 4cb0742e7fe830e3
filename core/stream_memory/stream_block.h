/*
 * The record of one block of stream-ordered memory: a driver allocation, or a part of one.
 *
 * A record has one of three owners:
 * - The program: held_at is the block's address, and nothing in the record changes but held_at.
 * - A stream: the block is free and in lists of that stream, whose lock guards the record
 *   (stream_heap.h).
 * - A thread: it has taken the record from one of the other two, and will pass it to the other. It
 *   took the record under the lock of the stream that counts the block (shelf).
 *
 * So two threads that free the same address cannot both succeed. A stale pointer finds a record
 * that is not held at that address, or one that was rightly handed out again there. Records are
 * never returned to the system.
 */
#ifndef CUDAPOOL_CORE_STREAM_BLOCK_H
#define CUDAPOOL_CORE_STREAM_BLOCK_H

#include "core/base/lock.h"
#include "core/blocks/bucket.h"

struct context;
struct mempool;
struct fence_event;
struct shelf;
struct uses;

/* The distance between data that threads on different streams write: a cache line, and the line
 * that processors fetch with it. */
#define STREAM_APART 128u

struct stream_block {
    _Alignas(STREAM_APART) struct block block; /* block.epoch: the stamp of its last free, in the
                                                  order of the stream that it was freed on. Of a
                                                  part that waits without an event: an epoch of
                                                  its context.
                                                  block.heap: NULL */
    _Atomic CUdeviceptr held_at; /* its address while the program owns it, otherwise 0. Set to
                                    the address under the lock of the stream that counts the
                                    block. Release when the block is handed out, acquire when it
                                    is read without the lock */
    _Atomic uint64_t asked;      /* bytes that the program asked for. Relaxed, like generation and
                                    shared: other threads only look at it */
    _Atomic uint64_t generation; /* changes each time that the block is handed out; never 0 */
    _Atomic bool shared;         /* others than this process's streams may access it, so it is never
                                    reused */
    _Atomic(struct shelf *) shelf; /* the shelf that counts it, live or free. Relaxed: checked
                                      again under its stream's lock */
    _Atomic bool lost; /* of a part: its segment was freed past the pool, see stream_parts.h.
                          Guarded by the lock of its shelf's stream. Relaxed: checked again under
                          that lock */
    struct mempool *mempool;
    struct context *context; /* that it was allocated in; context_generation: that context's at
                                the time */
    uint64_t context_generation;
    struct fence_event *event;   /* that a waiting part waits for (stream_merge.h); NULL: it waits
                                    until its context's epoch block.epoch is clean */
    _Atomic(struct uses *) uses; /* that the program told of, or NULL: see use.h. Relaxed:
                                    written under the use lock; read under it or by the thread
                                    that has claimed the block */
};

static inline struct stream_block *stream_block_of(struct block *block)
{
    return (struct stream_block *)((char *)block - offsetof(struct stream_block, block));
}

/* Finds the record at an address of the table of stream-ordered blocks. NULL: there is none. */
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

/* Unused records. They are made in slabs, and any thread may take one. Guarded by their own lock,
 * which is a leaf. */
struct stream_block_records {
    pthread_mutex_t lock;
    struct block *unused; /* linked through links[LINK_HEAP].next */
};

/* stream_block_take: takes a record, zeroed but for held_at and generation. NULL: memory is short.
 * stream_block_put: returns the caller's record. */
struct stream_block *stream_block_take(struct stream_block_records *records);
void stream_block_put(struct stream_block_records *records, struct stream_block *block);

#endif
