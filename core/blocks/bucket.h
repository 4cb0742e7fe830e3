/*
 * Buckets: all blocks of one size in one place of a kind of memory (a heap, a shelf), and the set
 * of a place's buckets, found by that size.
 *
 * The set is a table of open addressing with a power of two of slots, and a list. Buckets are only
 * ever added. One lock of the kind's guards all of it: the one that guards the place.
 */
#ifndef CUDAPOOL_CORE_BUCKET_H
#define CUDAPOOL_CORE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"

/* What a kind knows of its bucket besides is behind this, in a struct that begins with it. */
struct bucket {
    uint64_t bytes; /* of each block; 0: the bucket of blocks that are not kept */
    /* Clean and pending blocks, the oldest first. Of the clean ones the newest is taken, since its
     * memory is the likeliest to be in the GPU's cache. */
    struct block_list clean, pending;
    uint64_t free_blocks;             /* in the two lists */
    struct bucket_counters *counters; /* in the figures */
    struct bucket *next;              /* of the set */
};

/* More buckets than this are never made in one place: further sizes are not kept. */
#define BUCKETS_MAX 16384u

/* Zeroes are an empty one, which has no room. */
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

/* The bucket of this block size in a set that has had room; NULL: there is none yet. */
static inline struct bucket *bucket_set_find(const struct bucket_set *set, uint64_t bytes)
{
    return *bucket_slot(set->slots, set->slot_count, bytes);
}

/* Before a bucket is added: sees to it that there is a slot for it. False where memory is short, or
 * there are as many as there may be. */
bool bucket_set_make_room(struct bucket_set *set);
void bucket_set_add(struct bucket_set *set, struct bucket *bucket);

#endif
