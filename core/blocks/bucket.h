/*
 * Buckets, and sets of buckets. A bucket is all blocks of one size in one place of a kind of memory
 * (a heap, a shelf). A set is all buckets of a place, found by that size.
 *
 * A set is a table of open addressing with a power of two of slots, and a list. Buckets are only
 * ever added. One lock of the kind's guards all of it: the lock that guards the place.
 */
#ifndef CUDAPOOL_CORE_BUCKET_H
#define CUDAPOOL_CORE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"

/* A kind adds its own fields in a struct that begins with this one. */
struct bucket {
    uint64_t bytes; /* of each block; 0: the bucket of blocks that are not cached */
    /* Clean and pending blocks, the oldest first. The newest clean block is reused first, since its
     * memory is the likeliest to be in the GPU's cache. */
    struct block_list clean, pending;
    uint64_t free_blocks;             /* in the two lists */
    struct bucket_counters *counters; /* in the figures */
    struct bucket *next;              /* in the set's list */
};

/* A place never makes more buckets than this. Blocks of further sizes are not cached. */
#define BUCKETS_MAX 16384u

/* All zero: an empty set, which has no room. */
struct bucket_set {
    struct bucket **slots;
    uint32_t slot_count, count;
    struct bucket *first; /* the one that was added last */
};

static inline struct bucket **bucket_slot(struct bucket **slots, uint32_t count, uint64_t bytes)
{
    /* Fibonacci hashing: the sizes are multiples of large powers of two. */
    uint32_t i = (uint32_t)((bytes * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (count - 1);
    while (slots[i] && slots[i]->bytes != bytes)
        i = (i + 1) & (count - 1);
    return &slots[i];
}

/* Returns the bucket of this block size; NULL if there is none yet. bucket_set_make_room must have
 * succeeded on the set before. */
static inline struct bucket *bucket_set_find(const struct bucket_set *set, uint64_t bytes)
{
    return *bucket_slot(set->slots, set->slot_count, bytes);
}

/* Makes sure that there is a slot for one more bucket, before it is added. Returns false if memory
 * is short, or if there are BUCKETS_MAX buckets. */
bool bucket_set_make_room(struct bucket_set *set);
void bucket_set_add(struct bucket_set *set, struct bucket *bucket);

#endif
