#include "size_class.h"

#include <stdbool.h>

void size_classes_init(struct size_classes *classes, enum bucket_policy policy, uint32_t steps,
                       uint64_t smallest, uint64_t largest, uint64_t device_bytes)
{
    bool splits = policy == BUCKETS_SPLIT;
    if (splits)
        steps = SIZE_CLASS_SPLIT_STEPS;
    classes->policy = policy;
    classes->steps = steps;
    classes->steps_shift = (steps & (steps - 1)) == 0 ? __builtin_ctz(steps) : -1;
    uint64_t share = device_bytes / SIZE_CLASS_SMALLEST_SHARE;
    uint64_t most = share > SIZE_CLASS_GRANULE ? share : SIZE_CLASS_GRANULE;
    classes->smallest = smallest < most ? smallest : most;
    if (splits)
        classes->smallest = size_class_up(classes->smallest, SIZE_CLASS_GRANULE);
    classes->largest = largest;
}

struct size_span size_class_span(const struct size_classes *classes, uint64_t bytes,
                                 uint64_t granule)
{
    uint64_t least = 1, fits = bytes;
    if (size_class_up(size_class_round(classes, bytes), granule) != bytes)
        return (struct size_span){UINT64_MAX, 0};
    while (least < fits) {
        uint64_t between = least + (fits - least) / 2;
        if (size_class_up(size_class_round(classes, between), granule) < bytes)
            least = between + 1;
        else
            fits = between;
    }
    return (struct size_span){least, bytes - least};
}
