/*
 * The defaults, the kinds of memory, and what a size means.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/settings/config.h"

Test(config, defaults_are_those_of_the_documentation)
{
    struct settings settings;

    settings_defaults(&settings);
    cr_assert(settings.device.enabled);
    cr_assert_eq(settings.device.buckets.policy, BUCKETS_GEOMETRIC);
    cr_assert_eq(settings.device.buckets.steps_per_doubling, 8);
    cr_assert_eq(settings.device.buckets.smallest, 512);
    cr_assert_float_eq(settings.device.buckets.largest.percent, 50, 0);
    cr_assert_float_eq(settings.device.caps.cached.percent, 50, 0);
    cr_assert_eq(settings.device.caps.blocks_per_bucket, 1024);
    cr_assert_float_eq(settings.device.caps.reserve_ratio, 1.15, 0);
    cr_assert_eq(settings.device.growth_budget.bytes, 128u << 20);
    cr_assert_eq(settings.device.evict, EVICT_LARGEST_FIRST);
    cr_assert_eq(settings.device.release_after_idle_ns, 10000000000u);
    cr_assert(settings.device.barriers);
    cr_assert_not(settings.device.free_synchronizes);
    cr_assert(settings.stream_ordered.enabled);
    cr_assert(settings.stream_ordered.reuse.internal_dependencies);
    cr_assert_eq(settings.stream_ordered.driver_release_threshold.bytes, 512u << 20);
    cr_assert(settings.host.enabled);
    cr_assert_eq(settings.host.buckets.smallest, 512);
    cr_assert_eq(settings.host.buckets.largest.bytes, 1u << 30);
    cr_assert_float_eq(settings.host.buckets.largest.percent, 0, 0);
    cr_assert_float_eq(settings.host.caps.cached.percent, 6, 0);
    cr_assert_eq(settings.host.caps.blocks_per_bucket, 1024);
    cr_assert_float_eq(settings.host.caps.reserve_ratio, 1.15, 0);
    cr_assert_eq(settings.host.growth_budget.bytes, 32u << 20);
    cr_assert_eq(settings.host.release_after_idle_ns, 10000000000u);
    cr_assert_not(settings.host.free_synchronizes);
    cr_assert_eq(settings.host.large, HOST_LARGE_DRIVER);
    cr_assert(settings.limits.device_bytes.unlimited);
    cr_assert_eq(settings.report.at_exit, REPORT_TABLE);
    cr_assert_str_eq(settings.report.file, "");
}

Test(config, defaults_leave_no_byte_of_what_was_there)
{
    struct settings one, other;

    memset(&one, 0x55, sizeof(one));
    memset(&other, 0xaa, sizeof(other));
    settings_defaults(&one);
    settings_defaults(&other);
    cr_assert_arr_eq(&one, &other, sizeof(one));
}

Test(config, every_kind_is_known_by_its_name_and_has_settings_of_its_own)
{
    static struct settings settings;
    const struct bucket_settings *const buckets[MEMORY_KINDS] = {
        [KIND_DEVICE] = &settings.device.buckets,
        [KIND_STREAM_ORDERED] = &settings.stream_ordered.buckets,
        [KIND_HOST] = &settings.host.buckets,
    };

    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        cr_expect_eq((int)memory_kind_named(memory_kind_names[kind]), kind);
        cr_expect_eq(settings_of_kind(&settings, (enum memory_kind)kind).buckets, buckets[kind]);
    }
    cr_expect_eq(memory_kind_named("host"), KIND_HOST);
    cr_expect_eq(memory_kind_named("hos"), MEMORY_KINDS);
    cr_expect_eq(memory_kind_named(""), MEMORY_KINDS);
}

Test(config, host_memory_alone_is_not_the_devices)
{
    cr_expect(memory_kind_is_of_device(KIND_DEVICE));
    cr_expect(memory_kind_is_of_device(KIND_STREAM_ORDERED));
    cr_expect_not(memory_kind_is_of_device(KIND_HOST));
}

static uint64_t share(double percent, uint64_t total)
{
    return byte_size_resolve(&(struct byte_size){.percent = percent}, total);
}

Test(config, fixed_sizes_do_not_depend_on_the_device)
{
    cr_assert_eq(byte_size_resolve(&(struct byte_size){.bytes = 4096}, 1024), 4096);
    cr_assert_eq(byte_size_resolve(&(struct byte_size){0}, 1024), 0);
}

Test(config, shares_are_of_the_device)
{
    cr_assert_eq(share(50, 1000), 500);
    cr_assert_eq(share(50, 1001), 500);
    cr_assert_eq(share(12.5, 80ull << 30), 10ull << 30);
    cr_assert_eq(share(50, 0), 0);
}

Test(config, all_of_a_device_is_all_of_it)
{
    cr_assert_eq(share(100, 85899345921), 85899345921);
    /* Times 100 and divided by 100, this is one less in doubles. */
    cr_assert_eq(share(100, 511650557285161), 511650557285161);
    cr_assert_eq(share(100, UINT64_MAX), UINT64_MAX);
    cr_assert_leq(share(99.99999999999999, UINT64_MAX), UINT64_MAX);
    cr_assert_geq(share(99.99999999999999, UINT64_MAX), UINT64_MAX / 10 * 9);
}

Test(config, unlimited_is_the_largest_number)
{
    struct byte_size size = {.bytes = 1, .percent = 1, .unlimited = true};

    cr_assert_eq(byte_size_resolve(&size, 1024), UINT64_MAX);
}
