/*
 * From the size of a request to that of a block.
 */
#include <criterion/criterion.h>

#include "core/base/size_class.h"
#include "core/settings/config.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)

static struct size_classes classes_between(enum bucket_policy policy, uint32_t steps,
                                           uint64_t smallest, struct byte_size largest)
{
    struct bucket_settings settings = {policy, steps, smallest, largest};
    struct size_classes classes;
    bucket_settings_resolve(&settings, 80 * GIB, &classes);
    return classes;
}

static struct size_classes classes_of(enum bucket_policy policy, uint32_t steps)
{
    return classes_between(policy, steps, 512, (struct byte_size){.unlimited = true});
}

/* Sizes around every power of two and inside every doubling, up to 1 TiB. */
static void for_many_sizes(void (*check)(const struct size_classes *, uint64_t),
                           const struct size_classes *classes)
{
    for (uint64_t power = 1; power <= 1024 * GIB; power *= 2)
        for (uint64_t step = 0; step < 16; step++)
            for (uint64_t off = 0; off < 3; off++) {
                uint64_t bytes = power + power / 16 * step + off;
                check(classes, bytes > 1 ? bytes - 1 : 1);
            }
}

static void holds_the_request(const struct size_classes *classes, uint64_t bytes)
{
    uint64_t rounded = size_class_round(classes, bytes);
    cr_assert_geq(rounded, bytes);
    cr_assert_eq(size_class_round(classes, rounded), rounded, "a block's size is its own bucket's");
    cr_assert_geq(size_class_round(classes, bytes + 1), rounded, "larger requests, larger blocks");
}

static void wastes_at_most_one_step(const struct size_classes *classes, uint64_t bytes)
{
    uint64_t rounded = size_class_round(classes, bytes);
    uint64_t allowed = bytes / classes->steps + classes->steps;
    if (allowed < SIZE_CLASS_GRANULE)
        allowed = SIZE_CLASS_GRANULE;
    if (bytes >= SIZE_CLASS_HUGE)
        allowed = SIZE_CLASS_PAGE;
    cr_assert_leq(rounded - bytes, allowed + SIZE_CLASS_GRANULE, "%llu for %llu",
                  (unsigned long long)rounded, (unsigned long long)bytes);
}

static void takes_no_more_pages(const struct size_classes *classes, uint64_t bytes)
{
    if (bytes >= SIZE_CLASS_PAGE)
        cr_assert_eq(size_class_up(size_class_round(classes, bytes), SIZE_CLASS_PAGE),
                     size_class_up(bytes, SIZE_CLASS_PAGE), "%llu", (unsigned long long)bytes);
}

Test(size_class, eight_steps_cost_no_page)
{
    struct size_classes classes = classes_of(BUCKETS_GEOMETRIC, 8);
    for_many_sizes(takes_no_more_pages, &classes);
}

static void is_in_granules(const struct size_classes *classes, uint64_t bytes)
{
    cr_assert_eq(size_class_round(classes, bytes) % SIZE_CLASS_GRANULE, 0);
}

Test(size_class, every_policy_gives_blocks_that_hold_the_request)
{
    for (uint32_t steps = 1; steps <= 64; steps++) {
        struct size_classes classes = classes_of(BUCKETS_GEOMETRIC, steps);
        for_many_sizes(holds_the_request, &classes);
    }
    struct size_classes pow2 = classes_of(BUCKETS_POW2, 8);
    for_many_sizes(holds_the_request, &pow2);
    struct size_classes exact = classes_of(BUCKETS_EXACT, 8);
    for_many_sizes(holds_the_request, &exact);
}

Test(size_class, geometric_blocks_waste_at_most_one_step)
{
    for (uint32_t steps = 1; steps <= 64; steps++) {
        struct size_classes classes = classes_of(BUCKETS_GEOMETRIC, steps);
        for_many_sizes(wastes_at_most_one_step, &classes);
        for_many_sizes(is_in_granules, &classes);
    }
}

static unsigned buckets_between(const struct size_classes *classes, uint64_t low, uint64_t high)
{
    unsigned count = 0;
    for (uint64_t bytes = low; bytes < high; count++)
        bytes = size_class_round(classes, bytes + 1);
    return count;
}

Test(size_class, a_doubling_has_as_many_buckets_as_the_settings_say)
{
    for (uint32_t steps = 1; steps <= 64; steps++) {
        struct size_classes classes = classes_of(BUCKETS_GEOMETRIC, steps);
        unsigned count = buckets_between(&classes, MIB, 2 * MIB);
        cr_assert_leq(count, steps);
        cr_assert_geq(count, steps - steps / 16, "whole granules may leave a few out");
    }
    struct size_classes eight = classes_of(BUCKETS_GEOMETRIC, 8);
    cr_assert_eq(buckets_between(&eight, MIB, 2 * MIB), 8);
    cr_assert_eq(size_class_round(&eight, MIB + 1), MIB + MIB / 8);
}

Test(size_class, a_power_of_two_is_a_bucket_in_every_policy)
{
    for (uint64_t bytes = 512; bytes <= GIB; bytes *= 2) {
        for (uint32_t steps = 1; steps <= 64; steps++) {
            struct size_classes classes = classes_of(BUCKETS_GEOMETRIC, steps);
            cr_assert_eq(size_class_round(&classes, bytes), bytes);
        }
        struct size_classes pow2 = classes_of(BUCKETS_POW2, 8);
        cr_assert_eq(size_class_round(&pow2, bytes), bytes);
    }
}

Test(size_class, pow2_rounds_to_the_next_power_of_two)
{
    struct size_classes classes = classes_of(BUCKETS_POW2, 8);
    cr_assert_eq(size_class_round(&classes, 513), 1024);
    cr_assert_eq(size_class_round(&classes, 17 * MIB), 32 * MIB);
}

Test(size_class, tiny_requests_fill_a_granule_whatever_the_smallest_block)
{
    for (uint32_t steps = 1; steps <= 64; steps++) {
        struct size_classes classes =
            classes_between(BUCKETS_GEOMETRIC, steps, 1, (struct byte_size){.unlimited = true});
        for (uint64_t bytes = 2; bytes <= 512; bytes++)
            cr_assert_eq(size_class_round(&classes, bytes), 512);
    }
}

Test(size_class, exact_rounds_nothing)
{
    struct size_classes classes = classes_of(BUCKETS_EXACT, 8);
    cr_assert_eq(size_class_round(&classes, 513), 513);
    cr_assert_eq(size_class_round(&classes, 100 * MIB + 1), 100 * MIB + 1);
}

Test(size_class, large_requests_round_to_a_page)
{
    enum bucket_policy policies[] = {BUCKETS_GEOMETRIC, BUCKETS_POW2};
    for (int i = 0; i < 2; i++) {
        struct size_classes classes = classes_of(policies[i], 8);
        cr_assert_eq(size_class_round(&classes, 32 * MIB), 32 * MIB);
        cr_assert_eq(size_class_round(&classes, 32 * MIB + 1), 34 * MIB);
        cr_assert_eq(size_class_round(&classes, 3 * GIB + 1), 3 * GIB + 2 * MIB);
    }
}

Test(size_class, small_requests_become_the_smallest_block)
{
    struct size_classes classes =
        classes_between(BUCKETS_EXACT, 8, 4096, (struct byte_size){.unlimited = true});
    cr_assert_eq(size_class_round(&classes, 1), 4096);
    cr_assert_eq(size_class_round(&classes, 4096), 4096);
    cr_assert_eq(size_class_round(&classes, 4097), 4097);
}

Test(size_class, requests_above_the_largest_are_not_kept)
{
    struct size_classes classes =
        classes_between(BUCKETS_GEOMETRIC, 8, 512, (struct byte_size){.bytes = MIB});
    cr_assert_eq(size_class_round(&classes, MIB), MIB);
    cr_assert_eq(size_class_round(&classes, MIB + 1), 0);
}

Test(size_class, the_largest_may_be_a_share_of_the_device)
{
    struct size_classes classes =
        classes_between(BUCKETS_GEOMETRIC, 8, 512, (struct byte_size){.percent = 50});
    cr_assert_neq(size_class_round(&classes, 40 * GIB), 0);
    cr_assert_eq(size_class_round(&classes, 40 * GIB + 1), 0);
}

Test(size_class, sizes_that_no_rounding_can_hold_are_not_kept)
{
    struct size_classes geometric = classes_of(BUCKETS_GEOMETRIC, 8);
    struct size_classes pow2 = classes_of(BUCKETS_POW2, 8);
    cr_assert_eq(size_class_round(&geometric, UINT64_MAX), 0);
    cr_assert_eq(size_class_round(&pow2, UINT64_MAX - MIB), 0);
}

Test(size_class, no_step_is_finer_than_the_granule)
{
    struct size_classes classes =
        classes_between(BUCKETS_GEOMETRIC, 7, 1, (struct byte_size){.unlimited = true});
    cr_expect_eq(size_class_round(&classes, 1), 1);
    for (uint64_t bytes = 2; bytes <= SIZE_CLASS_GRANULE; bytes++)
        cr_expect_eq(size_class_round(&classes, bytes), SIZE_CLASS_GRANULE);
}

Test(size_class, the_smallest_block_is_at_most_a_64th_of_the_device)
{
    struct bucket_settings settings = {
        .policy = BUCKETS_POW2, .steps_per_doubling = 8, .smallest = GIB, .largest.percent = 100};
    struct size_classes classes;

    bucket_settings_resolve(&settings, 64 * GIB, &classes);
    cr_expect_eq(size_class_round(&classes, 1), GIB);
    bucket_settings_resolve(&settings, 32 * GIB, &classes);
    cr_expect_eq(size_class_round(&classes, 1), GIB / 2);
    bucket_settings_resolve(&settings, 1, &classes);
    cr_expect_eq(size_class_round(&classes, 1), SIZE_CLASS_GRANULE);
}
