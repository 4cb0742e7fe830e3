#include "size_class.h"

void size_classes_init(struct size_classes *classes, enum bucket_policy policy, uint32_t steps,
                       uint64_t smallest, uint64_t largest, uint64_t device_bytes)
{
    classes->policy = policy;
    classes->steps = steps;
    classes->steps_shift = (steps & (steps - 1)) == 0 ? __builtin_ctz(steps) : -1;
    uint64_t share = device_bytes / SIZE_CLASS_SMALLEST_SHARE;
    uint64_t most = share > SIZE_CLASS_GRANULE ? share : SIZE_CLASS_GRANULE;
    classes->smallest = smallest < most ? smallest : most;
    classes->largest = largest;
}
