#include "size_class.h"

#include <stdbool.h>

static uint64_t round_up(uint64_t bytes, uint64_t power_of_two)
{
    return (bytes + power_of_two - 1) & ~(power_of_two - 1);
}

static bool is_power_of_two(uint64_t value)
{
    return (value & (value - 1)) == 0;
}

void size_classes_init(struct size_classes *classes, const struct bucket_settings *settings,
                       uint64_t device_bytes)
{
    classes->policy = settings->policy;
    classes->steps = settings->steps_per_doubling;
    classes->smallest = settings->smallest;
    classes->largest = byte_size_resolve(&settings->largest, device_bytes);
}

/* The power of two that starts the doubling (floor, 2 * floor] in which bytes lies; bytes > 1. */
static uint64_t doubling_of(uint64_t bytes)
{
    return UINT64_C(1) << (63 - __builtin_clzll(bytes - 1));
}

static uint64_t round_geometric(uint64_t bytes, uint32_t steps)
{
    uint64_t floor = doubling_of(bytes);
    uint64_t step = floor / steps;
    if (step <= SIZE_CLASS_GRANULE)
        return round_up(bytes, SIZE_CLASS_GRANULE);
    if (is_power_of_two(steps))
        return round_up(bytes, step);
    /* The last step of a doubling also takes what the division left over. */
    uint64_t rounded = floor + (bytes - floor + step - 1) / step * step;
    rounded = round_up(rounded, SIZE_CLASS_GRANULE);
    return rounded < 2 * floor ? rounded : 2 * floor;
}

uint64_t size_class_round(const struct size_classes *classes, uint64_t bytes)
{
    if (bytes > classes->largest)
        return 0;
    if (bytes <= classes->smallest)
        return classes->smallest;
    if (classes->policy == BUCKETS_EXACT)
        return bytes;
    if (bytes >= SIZE_CLASS_HUGE)
        return round_up(bytes, SIZE_CLASS_PAGE);
    if (classes->policy == BUCKETS_POW2)
        return 2 * doubling_of(bytes);
    return round_geometric(bytes, classes->steps);
}
