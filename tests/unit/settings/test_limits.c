/*
 * Limits: those of the settings, and those that a scheduler has put into the environment.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/settings/limits.h"

#define GIB   (UINT64_C(1) << 30)
#define MIB   (UINT64_C(1) << 20)
#define TOTAL (80 * GIB)

static struct settings settings;
static struct limits limits;
static char complaint[512];
static unsigned complaints;

static void note_complaint(const char *line)
{
    snprintf(complaint, sizeof(complaint), "%s", line);
    complaints++;
}

static void start(void)
{
    settings_defaults(&settings);
    unsetenv("GPU_MEMORY_LIMIT");
    unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
}

TestSuite(limits, .init = start);

static void set(const char *name, const char *value)
{
    cr_assert_eq(setenv(name, value, 1), 0);
}

static struct device_limits on_device(int ordinal)
{
    struct device_limits found;

    complaints = 0;
    limits_read(&limits, &settings, getenv, note_complaint);
    limits_of_device(&limits, &settings, ordinal, TOTAL, &found);
    return found;
}

static uint64_t bytes_of(const char *value)
{
    set("GPU_MEMORY_LIMIT", value);
    return on_device(0).device_bytes;
}

Test(limits, there_are_none_by_default)
{
    struct device_limits found = on_device(0);

    cr_expect_eq(found.device_bytes, UINT64_MAX);
    cr_expect_eq(found.group_bytes, UINT64_MAX);
    cr_expect_str_eq(found.device_from, "");
    cr_expect_str_eq(found.group_from, "");
    cr_expect_str_eq(found.group, "");
    cr_expect_str_eq(limits.group, "");
    cr_expect_eq(complaints, 0);
}

Test(limits, of_the_settings)
{
    settings.limits.device_bytes = (struct byte_size){.percent = 50};
    settings.limits.group_bytes = (struct byte_size){.bytes = 3 * GIB};
    memcpy(settings.limits.group, "job-7", 6);
    struct device_limits found = on_device(3);
    cr_expect_eq(found.device_bytes, TOTAL / 2);
    cr_expect_eq(found.group_bytes, 3 * GIB);
    cr_expect_str_eq(found.device_from, "limits.device_bytes");
    cr_expect_str_eq(found.group_from, "limits.group_bytes");
    cr_expect_str_eq(found.group, "job-7");
}

/* Without an environment the settings' group is the group all the same. */
Test(limits, without_an_environment)
{
    memcpy(settings.limits.group, "job-7", 6);
    set("GPU_MEMORY_LIMIT", "1g");
    limits_read(&limits, &settings, NULL, NULL);
    cr_expect_str_eq(limits.group, "job-7");
    cr_expect_eq(limits.bytes[LIMITS_GPU], 0);
}

Test(limits, sizes_are_spelled_as_schedulers_do)
{
    cr_expect_eq(bytes_of("3221225472"), 3 * GIB);
    cr_expect_eq(bytes_of("3g"), 3 * GIB);
    cr_expect_eq(bytes_of("3G"), 3 * GIB);
    cr_expect_eq(bytes_of("3000m"), 3000 * MIB);
    cr_expect_eq(bytes_of("3000M"), 3000 * MIB);
    cr_expect_eq(bytes_of("1048576k"), GIB);
    cr_expect_eq(bytes_of("3000Mi"), 3000 * MIB);
    cr_expect_eq(bytes_of("3GiB"), 3 * GIB);
    cr_expect_eq(bytes_of("3GB"), 3000000000);
    cr_expect_eq(bytes_of("1t"), 1024 * GIB);
    cr_expect_eq(bytes_of("2097152B"), 2 * MIB);
    cr_expect_eq(bytes_of("1048576"), MIB);
    cr_expect_eq(bytes_of("18446744073709551615"), UINT64_MAX);
    cr_expect_eq(complaints, 0);
}

Test(limits, nothing_and_zero_are_no_limit)
{
    cr_expect_eq(bytes_of(""), UINT64_MAX);
    cr_expect_eq(bytes_of("0"), UINT64_MAX);
    cr_expect_eq(bytes_of("0m"), UINT64_MAX);
    cr_expect_eq(complaints, 0);
    cr_expect_str_eq(limits.group, "");
}

/* Other programs have such variables, too, and count in gigabytes or shares: a limit of 12 bytes is
 * none that anybody means. */
Test(limits, what_cannot_be_read_is_told_and_ignored)
{
    static const char *const values[] = {"12",
                                         "0.8",
                                         "1048575",
                                         "-1g",
                                         "g",
                                         " 3g",
                                         "3 g",
                                         "3gg",
                                         "3x",
                                         "3mib ",
                                         "0x10000000",
                                         "1k",
                                         "3g,4g",
                                         "18446744073709551616",
                                         "17179869184g",
                                         "99999999999999999999999999"};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        cr_expect_eq(bytes_of(values[i]), UINT64_MAX, "%s", values[i]);
        cr_expect_eq(complaints, 1, "%s", values[i]);
        cr_expect_not_null(strstr(complaint, values[i]), "%s", complaint);
    }
    bytes_of("12");
    cr_expect_str_eq(complaint,
                     "GPU_MEMORY_LIMIT: found \"12\", allowed are at least 1 MiB as "
                     "bytes, or a number with k, m, g or t; the program runs without this "
                     "limit");
}

Test(limits, of_many_bad_values_one_is_told_in_one_line)
{
    set("GPU_MEMORY_LIMIT", "a\nb\033[1m");
    set("CUDA_DEVICE_MEMORY_LIMIT", "c");
    set("CUDA_DEVICE_MEMORY_LIMIT_5", "d");
    on_device(0);
    cr_expect_eq(complaints, 1);
    cr_expect_not_null(strstr(complaint, "found \"a\\x0ab\\x1b[1m\""));
    /* A value of any length. */
    char *longer = malloc(100000);
    memset(longer, 'x', 99999);
    longer[99999] = '\0';
    set("GPU_MEMORY_LIMIT", longer);
    on_device(0);
    cr_expect_eq(complaints, 1);
    cr_expect_not_null(strstr(complaint, "\", allowed"));
    free(longer);
    limits_read(&limits, &settings, getenv, NULL);
}

Test(limits, a_device_of_its_own_before_all)
{
    set("CUDA_DEVICE_MEMORY_LIMIT", "4g");
    set("CUDA_DEVICE_MEMORY_LIMIT_1", "2g");
    set("CUDA_DEVICE_MEMORY_LIMIT_2", "8g");
    set("CUDA_DEVICE_MEMORY_LIMIT_3", "bad");
    set("CUDA_DEVICE_MEMORY_LIMIT_63", "5g");
    set("CUDA_DEVICE_MEMORY_LIMIT_64", "6g");
    cr_expect_eq(on_device(0).device_bytes, 4 * GIB);
    cr_expect_str_eq(on_device(0).device_from, "CUDA_DEVICE_MEMORY_LIMIT");
    cr_expect_eq(on_device(1).device_bytes, 2 * GIB);
    cr_expect_str_eq(on_device(1).device_from, "CUDA_DEVICE_MEMORY_LIMIT_1");
    cr_expect_eq(on_device(2).device_bytes, 8 * GIB);
    cr_expect_eq(on_device(3).device_bytes, 4 * GIB);
    cr_expect_eq(on_device(63).device_bytes, 5 * GIB);
    cr_expect_eq(on_device(64).device_bytes, 4 * GIB);
    cr_expect_eq(on_device(-1).device_bytes, 4 * GIB);
}

Test(limits, of_two_schedulers_the_lower_one)
{
    set("CUDA_DEVICE_MEMORY_LIMIT_0", "4g");
    set("GPU_MEMORY_LIMIT", "3g");
    cr_expect_eq(on_device(0).device_bytes, 3 * GIB);
    cr_expect_str_eq(on_device(0).device_from, "GPU_MEMORY_LIMIT");
    set("GPU_MEMORY_LIMIT", "5g");
    cr_expect_eq(on_device(0).device_bytes, 4 * GIB);
    cr_expect_eq(on_device(1).device_bytes, 5 * GIB);
}

/* Its owner says that nothing holds the container. */
Test(limits, hamis_control_can_be_switched_off)
{
    set("CUDA_DEVICE_MEMORY_LIMIT", "4g");
    set("CUDA_DEVICE_MEMORY_LIMIT_1", "bad");
    set("CUDA_DISABLE_CONTROL", "true");
    struct device_limits found = on_device(0);
    cr_expect_eq(found.device_bytes, UINT64_MAX);
    cr_expect_str_eq(found.group, "");
    cr_expect_eq(complaints, 0);
    set("CUDA_DISABLE_CONTROL", "false");
    cr_expect_eq(on_device(0).device_bytes, 4 * GIB);
    set("CUDA_DISABLE_CONTROL", "true");
    set("GPU_MEMORY_LIMIT", "3g");
    cr_expect_eq(on_device(0).device_bytes, 3 * GIB);
}

/* A limit is the container's: all of its processes are a group, unless they are one already. */
Test(limits, a_container_is_a_group)
{
    set("GPU_MEMORY_LIMIT", "3g");
    struct device_limits found = on_device(0);
    cr_expect_eq(found.group_bytes, 3 * GIB);
    cr_expect_str_eq(found.group_from, "GPU_MEMORY_LIMIT");
    /* Processes that see other files are in another container. */
    cr_expect_eq(strncmp(found.group, "container-", 10), 0, "%s", found.group);
    cr_expect_eq(strspn(found.group + 10, "0123456789"), strlen(found.group + 10));
    cr_expect_gt(strlen(found.group), 10);
    cr_expect_str_eq(limits.group, found.group);
}

Test(limits, the_settings_come_before_the_environment)
{
    set("GPU_MEMORY_LIMIT", "3g");
    settings.limits.device_bytes = (struct byte_size){.bytes = 9 * GIB};
    struct device_limits found = on_device(0);
    cr_expect_eq(found.device_bytes, 9 * GIB);
    cr_expect_str_eq(found.device_from, "limits.device_bytes");
    cr_expect_eq(found.group_bytes, 3 * GIB);
    memcpy(settings.limits.group, "mine", 5);
    found = on_device(0);
    cr_expect_str_eq(found.group, "mine");
    cr_expect_eq(found.group_bytes, UINT64_MAX);
    cr_expect_str_eq(found.group_from, "");
}

/* Who does not see the others is no group. */
Test(limits, alone_there_is_no_group)
{
    set("GPU_MEMORY_LIMIT", "3g");
    settings.neighbours.enabled = false;
    struct device_limits found = on_device(0);
    cr_expect_eq(found.device_bytes, 3 * GIB);
    cr_expect_eq(found.group_bytes, UINT64_MAX);
    cr_expect_str_eq(found.group, "");
}

Test(limits, variables_are_listed)
{
    struct limit_variable variable;
    unsigned said = 0, number = 0;

    set("GPU_MEMORY_LIMIT", "3g");
    set("CUDA_DEVICE_MEMORY_LIMIT", "4g");
    set("CUDA_DEVICE_MEMORY_LIMIT_63", "5g");
    on_device(0);
    for (; limits_variable(&limits, number, &variable); number++) {
        if (variable.bytes == 0)
            continue;
        said++;
        cr_expect_eq(variable.bytes, number == 0 ? 3 * GIB : number == 1 ? 4 * GIB : 5 * GIB);
        cr_expect_eq(variable.device, number < 2 ? -1 : 63);
        cr_expect_str_eq(variable.name, number == 0   ? "GPU_MEMORY_LIMIT"
                                        : number == 1 ? "CUDA_DEVICE_MEMORY_LIMIT"
                                                      : "CUDA_DEVICE_MEMORY_LIMIT_63");
    }
    cr_expect_eq(said, 3);
    cr_expect_eq(number, LIMITS_VARIABLES);
}

/* ---- the total that the program is told ---- */

static uint64_t told(enum tell_total tell)
{
    struct device_limits found = on_device(0);
    return limits_told_total(&found, tell, TOTAL);
}

Test(limits, a_schedulers_is_the_total)
{
    set("GPU_MEMORY_LIMIT", "3g");
    cr_expect_eq(told(TELL_TOTAL_SCHEDULER), 3 * GIB);
    cr_expect_eq(told(TELL_TOTAL_ALWAYS), 3 * GIB);
    cr_expect_eq(told(TELL_TOTAL_NEVER), TOTAL);
}

Test(limits, one_of_the_settings_is_the_total_only_where_that_is_wanted)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 5 * GIB};
    cr_expect_eq(told(TELL_TOTAL_SCHEDULER), TOTAL);
    cr_expect_eq(told(TELL_TOTAL_ALWAYS), 5 * GIB);
    cr_expect_eq(told(TELL_TOTAL_NEVER), TOTAL);
}

Test(limits, of_several_the_lowest_is_the_total)
{
    set("GPU_MEMORY_LIMIT", "7g");
    settings.limits.device_bytes = (struct byte_size){.bytes = 5 * GIB};
    cr_expect_eq(told(TELL_TOTAL_SCHEDULER), 7 * GIB, "its group's");
    cr_expect_eq(told(TELL_TOTAL_ALWAYS), 5 * GIB);
}

Test(limits, without_one_the_total_is_the_devices)
{
    cr_expect_eq(told(TELL_TOTAL_SCHEDULER), TOTAL);
    cr_expect_eq(told(TELL_TOTAL_ALWAYS), TOTAL);
    settings.limits.device_bytes = (struct byte_size){.bytes = 2 * TOTAL};
    cr_expect_eq(told(TELL_TOTAL_ALWAYS), TOTAL, "nor is it more");
}
