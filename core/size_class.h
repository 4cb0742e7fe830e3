/*
 * Bytes -> bucket: the block size that serves a request.
 *
 * Pure arithmetic on a struct that is filled once; any thread may call it without a lock.
 * Geometric buckets divide every doubling into equal steps (the size classes of jemalloc's
 * design), but never finer than the driver's own granule. All sizes are bytes.
 */
#ifndef CUDAPOOL_CORE_SIZE_CLASS_H
#define CUDAPOOL_CORE_SIZE_CLASS_H

#include <stdint.h>

#include "config.h"

/* The driver hands out device memory in multiples of this: a finer bucket would save nothing. */
#define SIZE_CLASS_GRANULE 512u

/* From here on a bucket's step would waste more than reuse brings: requests round up to 2 MiB,
 * the page of device memory. */
#define SIZE_CLASS_HUGE (UINT64_C(64) << 20)
#define SIZE_CLASS_PAGE (UINT64_C(2) << 20)

struct size_classes {
    enum bucket_policy policy;
    uint32_t steps;    /* geometric: buckets to a doubling */
    uint64_t smallest; /* requests below it are rounded up to it */
    uint64_t largest;  /* requests above it are not kept */
};

void size_classes_init(struct size_classes *classes, const struct bucket_settings *settings,
                       uint64_t device_bytes);

/* The block size for a request of 1 byte or more; 0 where the request is not kept. Never less
 * than bytes. */
uint64_t size_class_round(const struct size_classes *classes, uint64_t bytes);

#endif
