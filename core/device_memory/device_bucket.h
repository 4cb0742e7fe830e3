/*
 * What a heap stores for each bucket in addition to struct bucket, which all kinds of memory use.
 * device_bucket() leads from a bucket of a heap to this struct.
 */
#ifndef CUDAPOOL_CORE_DEVICE_BUCKET_H
#define CUDAPOOL_CORE_DEVICE_BUCKET_H

#include <stddef.h>
#include <stdint.h>

#include "core/blocks/bucket.h"
#include "keep.h"

/* The number of bins in a thread cache. The last place, CACHE_NO_BIN, stands for all buckets that
 * caches do not hold. Those are buckets of blocks larger than CACHE_LARGEST, and buckets made after
 * all other places were taken. Their blocks take the slow path. */
#define CACHE_BINS    256u
#define CACHE_NO_BIN  (CACHE_BINS - 1)
#define CACHE_LARGEST (UINT64_C(32) << 20)

struct device_bucket {
    struct bucket bucket;
    uint32_t granted_to_caches; /* free blocks that thread caches may hold as well */
    uint16_t bin;               /* the bucket's place in thread caches, or CACHE_NO_BIN */
    /* Sharing, see thread_caches_take. Times are in nanoseconds of the monotonic clock. */
    uint32_t taken_in_a_row; /* how often blocks were taken out of caches, each time soon after
                                the last */
    uint64_t taken_from_caches_at; /* when blocks were last taken */
    uint64_t shared_until;         /* caches hold none of its blocks until then */
    uint64_t shared_for;           /* length of the last span of sharing; 0: never shared */
    struct ghosts ghosts;
};

static inline struct device_bucket *device_bucket(const struct bucket *bucket)
{
    return (struct device_bucket *)((uintptr_t)bucket - offsetof(struct device_bucket, bucket));
}

#endif
