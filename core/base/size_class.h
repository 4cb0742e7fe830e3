/*
 * Maps a request's bytes to a bucket: the block size that serves the request.
 *
 * The functions only compute from a struct that is filled once, so any thread may call them without
 * a lock. Geometric buckets divide every doubling into steps, as jemalloc's size classes do. Each
 * step is a multiple of the driver's granule. All sizes are bytes.
 */
#ifndef CUDAPOOL_CORE_SIZE_CLASS_H
#define CUDAPOOL_CORE_SIZE_CLASS_H

#include <stdbool.h>
#include <stdint.h>

/* The driver allocates device memory in multiples of this, so a finer bucket would save nothing. */
#define SIZE_CLASS_GRANULE 512u

/* Requests of SIZE_CLASS_HUGE or more round up to whole pages of device memory, except with
 * BUCKETS_EXACT. Below it, an eighth of a doubling is at most a page. So with eight steps to a
 * doubling, a block of a page or more takes no more pages than the driver takes for the
 * request. */
#define SIZE_CLASS_HUGE (UINT64_C(32) << 20)
#define SIZE_CLASS_PAGE (UINT64_C(2) << 20)
_Static_assert(SIZE_CLASS_HUGE / 2 / 8 == SIZE_CLASS_PAGE, "an eighth of the last doubling below");

/* One small request takes at most 1 / SIZE_CLASS_SMALLEST_SHARE of the device, whatever the setting
 * of the smallest block. A program that fits without the pool must not run out of memory by
 * rounding. */
#define SIZE_CLASS_SMALLEST_SHARE 64

enum bucket_policy {
    BUCKETS_GEOMETRIC, /* size_classes.steps to a doubling */
    BUCKETS_POW2,      /* powers of two */
    BUCKETS_EXACT,     /* the request's own size, from size_classes.smallest on */
    BUCKETS_SPLIT      /* SIZE_CLASS_SPLIT_STEPS to a doubling; blocks are cut out of larger ones */
};

/* So many steps waste little by rounding. They also leave few enough sizes to count each one. */
#define SIZE_CLASS_SPLIT_STEPS 64u

struct size_classes {
    enum bucket_policy policy;
    uint32_t steps;    /* geometric and split: buckets to a doubling */
    int steps_shift;   /* log2(steps), or -1 if steps is not a power of two */
    uint64_t smallest; /* smaller requests are rounded up to it */
    uint64_t largest;  /* larger requests are not cached */
};

/* Fills the struct for blocks from smallest to largest bytes on a device of device_bytes. steps is
 * at least 1, and only BUCKETS_GEOMETRIC uses this argument. */
void size_classes_init(struct size_classes *classes, enum bucket_policy policy, uint32_t steps,
                       uint64_t smallest, uint64_t largest, uint64_t device_bytes);

/* Returns the index of a request of this many bytes in a table. places, a power of two, is the
 * table's length. The index is made of the leading four bits and of the number of bits that follow.
 *
 * In a table of 512 entries or more, no two powers of two from 16 on share an index. Neither do two
 * geometric block sizes below SIZE_CLASS_HUGE, if a doubling has at most five steps or eight. */
static inline unsigned size_class_place(uint64_t bytes, unsigned places)
{
    uint64_t x = (bytes - 1) | 8;
    unsigned top = 63u ^ (unsigned)__builtin_clzll(x);
    return (top * 8 + (unsigned)(x >> (top - 3))) % places;
}

/* Returns bytes rounded up to a multiple of the power of two; 0 if that is 2^64. */
static inline uint64_t size_class_up(uint64_t bytes, uint64_t power_of_two)
{
    return (bytes + power_of_two - 1) & ~(power_of_two - 1);
}

/* Returns the power of two that starts the doubling (floor, 2 * floor] around bytes; bytes > 1. */
static inline uint64_t size_class_doubling(uint64_t bytes)
{
    return UINT64_C(1) << (63 - __builtin_clzll(bytes - 1));
}

/* Returns the geometric block size for 2 bytes or more. */
static inline uint64_t size_class_geometric(const struct size_classes *classes, uint64_t bytes)
{
    uint64_t floor = size_class_doubling(bytes);
    if (classes->steps_shift >= 0) {
        uint64_t step = floor >> classes->steps_shift;
        return size_class_up(bytes, step > SIZE_CLASS_GRANULE ? step : SIZE_CLASS_GRANULE);
    }
    if (floor < SIZE_CLASS_GRANULE)
        return SIZE_CLASS_GRANULE;
    /* Each step is a whole number of granules. The last step of a doubling is what remains of it.
     * So rounding a block's own size returns that size. */
    uint64_t step = size_class_up(floor / classes->steps, SIZE_CLASS_GRANULE);
    uint64_t rounded = floor + (bytes - floor + step - 1) / step * step;
    return rounded < 2 * floor ? rounded : 2 * floor;
}

/* Returns the smallest block size worth a bucket of its own: whole pages for a page or more, else
 * whole granules. The driver takes no less for the request, so a finer bucket saves nothing. */
static inline uint64_t size_class_finest(uint64_t bytes)
{
    return size_class_up(bytes, bytes >= SIZE_CLASS_PAGE ? SIZE_CLASS_PAGE : SIZE_CLASS_GRANULE);
}

/* Requests from least to least + more bytes. No request: least is UINT64_MAX, and more is 0. */
struct size_span {
    uint64_t least, more;
};

/* Whether least <= bytes <= least + more. With bytes < least, the difference wraps around and
 * exceeds more. */
static inline bool size_span_has(const struct size_span *span, uint64_t bytes)
{
    return bytes - span->least <= span->more;
}

/* Returns the requests that a block of this many bytes serves, if block sizes are also rounded up
 * to multiples of granule. None if the settings round the block's own size to another one. */
struct size_span size_class_span(const struct size_classes *classes, uint64_t bytes,
                                 uint64_t granule);

/* Returns the block size for a request of 1 byte or more, never less than bytes; 0 if the request
 * is not cached. */
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
    return size_class_geometric(classes, bytes);
}

#endif
