/*
 * The defaults, and what a size means on a given device.
 *
 * Part of both the preload object and libcudapool_config.so: libc only. Any thread may call any of
 * the functions; none takes a lock or touches anything but its arguments.
 */
#include "config.h"

#include <string.h>

#define KIB       1024ull
#define MIB       (1024ull * KIB)
#define SECOND_NS 1000000000ull

static const struct bucket_settings default_buckets = {
    .policy = BUCKETS_GEOMETRIC,
    .steps_per_doubling = 8,
    .smallest = 512,
    .largest = {.percent = 50},
};

static const struct cap_settings default_caps = {
    .cached = {.percent = 50},
    .blocks_per_bucket = 1024,
    .reserve_ratio = 1.15,
};

static void device_defaults(struct device_settings *device)
{
    device->enabled = true;
    device->buckets = default_buckets;
    device->caps = default_caps;
    device->growth_budget.bytes = 128 * MIB;
    device->evict = EVICT_LARGEST_FIRST;
    device->release_after_idle_ns = 10 * SECOND_NS;
    device->barriers = true;
    device->free_synchronizes = false;
}

static void stream_ordered_defaults(struct stream_ordered_settings *stream_ordered)
{
    stream_ordered->enabled = true;
    stream_ordered->buckets = default_buckets;
    stream_ordered->caps = default_caps;
    stream_ordered->reuse.follow_event_dependencies = true;
    stream_ordered->reuse.opportunistic = true;
    stream_ordered->reuse.internal_dependencies = true;
    stream_ordered->evict = EVICT_LARGEST_FIRST;
    stream_ordered->release_after_idle_ns = 10 * SECOND_NS;
    stream_ordered->driver_release_threshold.bytes = 512 * MIB;
}

void settings_defaults(struct settings *settings)
{
    /* Padding and the rest of report.file included, so that two copies compare equal. */
    memset(settings, 0, sizeof(*settings));
    device_defaults(&settings->device);
    stream_ordered_defaults(&settings->stream_ordered);
    settings->limits.device_bytes.unlimited = true;
    settings->report.at_exit = REPORT_TABLE;
    settings->figures.enabled = true;
}

uint64_t byte_size_resolve(const struct byte_size *size, uint64_t total_bytes)
{
    if (size->unlimited)
        return UINT64_MAX;
    if (!(size->percent > 0))
        return size->bytes;
    double share = (double)total_bytes * size->percent / 100;
    /* 100 %, and a total so large that the product rounds up past it. */
    if (size->percent >= 100 || share >= (double)total_bytes)
        return total_bytes;
    return (uint64_t)share;
}

void bucket_settings_resolve(const struct bucket_settings *settings, uint64_t total_bytes,
                             struct size_classes *classes)
{
    size_classes_init(classes, settings->policy, settings->steps_per_doubling, settings->smallest,
                      byte_size_resolve(&settings->largest, total_bytes), total_bytes);
}
