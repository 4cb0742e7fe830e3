/*
 * Bytes -> bucket: the block size that serves a request.
 *
 * Pure arithmetic on a struct that is filled once; any thread may call it without a lock.
 * Geometric buckets divide every doubling into equal steps (the size classes of jemalloc's
 * design), but never finer than the driver's own granule. All sizes are bytes.
 */
#ifndef CUDAPOOL_CORE_SIZE_CLASS_H
#define CUDAPOOL_CORE_SIZE_CLASS_H

#include <stdbool.h>
#include <stdint.h>

/* The driver hands out device memory in multiples of this: a finer bucket would save nothing. */
#define SIZE_CLASS_GRANULE 512u

/* From here on an eighth of a doubling is more than a page of device memory: requests round up to
 * pages. So with eight steps to a doubling no block of a page or more takes more pages than the
 * driver would have taken for the request. */
#define SIZE_CLASS_HUGE (UINT64_C(32) << 20)
#define SIZE_CLASS_PAGE (UINT64_C(2) << 20)

/* One small request takes at most this part of the device, whatever the setting of the smallest
 * block: a program that fits without the pool must not run out of memory for rounding. */
#define SIZE_CLASS_SMALLEST_SHARE 64

enum bucket_policy { BUCKETS_GEOMETRIC, BUCKETS_POW2, BUCKETS_EXACT, BUCKETS_SPLIT };

/* Blocks that are cut out of larger ones waste nothing but what they are rounded by: so little that
 * it does not matter, and not so little that there would be more sizes than can be counted. */
#define SIZE_CLASS_SPLIT_STEPS 64u

struct size_classes {
    enum bucket_policy policy;
    uint32_t steps;    /* geometric: buckets to a doubling */
    int steps_shift;   /* its binary logarithm, or -1 */
    uint64_t smallest; /* requests below it are rounded up to it */
    uint64_t largest;  /* requests above it are not kept */
};

/* Blocks from smallest to largest bytes on a device of device_bytes; steps, from 1 on, counts for
 * BUCKETS_GEOMETRIC alone. */
void size_classes_init(struct size_classes *classes, enum bucket_policy policy, uint32_t steps,
                       uint64_t smallest, uint64_t largest, uint64_t device_bytes);

/* The place of a request of so many bytes in a table of as many (a power of two): made of its
 * leading four bits and of how many bits follow. Requests of geometric buckets with up to eight
 * steps, or of powers of two, have places of their own. */
static inline unsigned size_class_place(uint64_t bytes, unsigned places)
{
    uint64_t x = (bytes - 1) | 8;
    unsigned top = 63u ^ (unsigned)__builtin_clzll(x);
    return (top * 8 + (unsigned)(x >> (top - 3))) % places;
}

static inline uint64_t size_class_up(uint64_t bytes, uint64_t power_of_two)
{
    return (bytes + power_of_two - 1) & ~(power_of_two - 1);
}

/* The power of two that starts the doubling (floor, 2 * floor] in which bytes lies; bytes > 1. */
static inline uint64_t size_class_doubling(uint64_t bytes)
{
    return UINT64_C(1) << (63 - __builtin_clzll(bytes - 1));
}

static inline uint64_t size_class_geometric(uint64_t bytes, uint32_t steps, int steps_shift)
{
    uint64_t floor = size_class_doubling(bytes);
    if (steps_shift >= 0) {
        uint64_t step = floor >> steps_shift;
        return size_class_up(bytes, step > SIZE_CLASS_GRANULE ? step : SIZE_CLASS_GRANULE);
    }
    if (floor < SIZE_CLASS_GRANULE)
        return SIZE_CLASS_GRANULE;
    /* Steps of whole granules, the last one of a doubling being what is left of it: a block's own
     * size is then in its own bucket. */
    uint64_t step = size_class_up(floor / steps, SIZE_CLASS_GRANULE);
    uint64_t rounded = floor + (bytes - floor + step - 1) / step * step;
    return rounded < 2 * floor ? rounded : 2 * floor;
}

/* What the driver takes from the device for so many bytes: whole pages, or for less than one at
 * least whole granules. No bucket is finer. */
static inline uint64_t size_class_finest(uint64_t bytes)
{
    return size_class_up(bytes, bytes >= SIZE_CLASS_PAGE ? SIZE_CLASS_PAGE : SIZE_CLASS_GRANULE);
}

/* Requests from least bytes to so many more. UINT64_MAX and 0: none. */
struct size_span {
    uint64_t least, more;
};

static inline bool size_span_has(const struct size_span *span, uint64_t bytes)
{
    return bytes - span->least <= span->more;
}

/* The requests that a block of so many bytes serves, where block sizes are rounded up to multiples
 * of granule besides. None where the settings are such that its own size would be rounded to
 * another one. */
struct size_span size_class_span(const struct size_classes *classes, uint64_t bytes,
                                 uint64_t granule);

/* The block size for a request of 1 byte or more; 0 where the request is not kept. Never less
 * than bytes. */
static inline uint64_t size_class_round(const struct size_classes *classes, uint64_t bytes)
{
    if (bytes > classes->largest)
        return 0;
    if (bytes <= classes->smallest)
        return classes->smallest;
    if (classes->policy == BUCKETS_EXACT)
        return bytes;
    if (bytes >= SIZE_CLASS_HUGE)
        return size_class_up(bytes, SIZE_CLASS_PAGE);
    if (classes->policy == BUCKETS_POW2)
        return 2 * size_class_doubling(bytes);
    return size_class_geometric(bytes, classes->steps, classes->steps_shift);
}

#endif
