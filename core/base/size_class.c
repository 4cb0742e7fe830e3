#include "size_class.h"

void size_classes_init(struct size_classes *classes, const struct bucket_settings *settings,
                       uint64_t device_bytes)
{
    classes->policy = settings->policy;
    uint32_t steps = settings->steps_per_doubling;
    classes->steps = steps;
    classes->steps_shift = (steps & (steps - 1)) == 0 ? __builtin_ctz(steps) : -1;
    uint64_t share = device_bytes / SIZE_CLASS_SMALLEST_SHARE;
    uint64_t most = share > SIZE_CLASS_GRANULE ? share : SIZE_CLASS_GRANULE;
    classes->smallest = settings->smallest < most ? settings->smallest : most;
    classes->largest = byte_size_resolve(&settings->largest, device_bytes);
}
