/*
 * Buckets: all blocks of one size, and the set of a heap's buckets, found by that size.
 *
 * The set is a table of open addressing with a power of two of slots, to which buckets are only
 * ever added. It is changed with the heap's lock held. The report reads it without: a table that
 * has become full is kept behind its successor, since somebody may be reading it.
 */
#ifndef CUDAPOOL_CORE_BUCKET_H
#define CUDAPOOL_CORE_BUCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/blocks/block.h"
#include "core/figures/stats.h"
#include "keep.h"

/* Thread caches have a place (a bin) for so many buckets of a heap. The last place is that of all
 * buckets that caches do not hold: those of larger blocks go the slow way, and those that came
 * after all other places were taken. */
#define CACHE_BINS    256u
#define CACHE_NO_BIN  (CACHE_BINS - 1)
#define CACHE_LARGEST (UINT64_C(32) << 20)

struct device_bucket {
    struct bucket bucket;
    uint32_t granted_to_caches; /* free blocks that thread caches may hold besides */
    uint16_t bin;               /* its place in thread caches, or CACHE_NO_BIN */
    /* Sharing, see thread_caches_take. Nanoseconds of the monotonic clock. */
    uint32_t taken_in_a_row; /* so often taken out of caches, each soon after the one before */
    uint64_t taken_from_caches_at; /* when last */
    uint64_t shared_until;         /* caches hold nothing of it until then */
    uint64_t shared_for;           /* how long that span is or was; 0: it was never shared */
    struct ghosts ghosts;
};

/* What the heap knows of its bucket besides. */
static inline struct device_bucket *device_bucket(const struct bucket *bucket)
{
    return (struct device_bucket *)((uintptr_t)bucket - offsetof(struct device_bucket, bucket));
}

struct bucket_table {
    uint32_t slots;
    struct bucket_table *previous;
    _Atomic(struct bucket *) buckets[];
};

struct bucket_set {
    _Atomic(struct bucket_table *) table; /* replaced when it is full */
    uint32_t count;
};

/* False where memory is short. */
bool bucket_set_init(struct bucket_set *set);

/* The bucket of this block size; NULL: there is none yet. Heap lock held. */
struct bucket *bucket_set_find(const struct bucket_set *set, uint64_t bytes);

/* Before a bucket is added: sees to it that there is a slot for it. False where memory is short.
 * Heap lock held. */
bool bucket_set_make_room(struct bucket_set *set);
void bucket_set_add(struct bucket_set *set, struct bucket *bucket);

/* Calls visit for each bucket. No lock needed. */
void bucket_set_visit(const struct bucket_set *set, void (*visit)(struct bucket *, void *),
                      void *argument);

/* Counts what the calling thread has waited lately, for a block of this bucket; and the same for a
 * free. No lock needed. */
void bucket_take_wait(const struct bucket *bucket);
void bucket_count_waiting_free(const struct bucket *bucket);

#endif
