/*
 * What a heap knows of its buckets beside what all kinds know of theirs.
 */
#ifndef CUDAPOOL_CORE_DEVICE_BUCKET_H
#define CUDAPOOL_CORE_DEVICE_BUCKET_H

#include <stddef.h>
#include <stdint.h>

#include "core/blocks/bucket.h"
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

static inline struct device_bucket *device_bucket(const struct bucket *bucket)
{
    return (struct device_bucket *)((uintptr_t)bucket - offsetof(struct device_bucket, bucket));
}

#endif
