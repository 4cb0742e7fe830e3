/*
 * The machine's memory, and what control groups leave of it, as files of the kernel tell it
 * (core/base/machine.h): each test writes the files that it is about into a directory of its own.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/machine.h"
#include "core/base/sandbox.h"
#include "machine_fixture.h"

#define MIB         ((uint64_t)1 << 20)
#define GIB         ((uint64_t)1 << 30)
#define V1_NO_LIMIT "9223372036854771712\n"

static void number_file(const char *directory_path, const char *name, uint64_t number)
{
    char path[TREE_PATH_BYTES + 32], text[32];
    snprintf(path, sizeof path, "%s/%s", directory_path, name);
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)number);
    file(path, text);
}

static void v2_level(const char *path, const char *max, const char *high, uint64_t usage)
{
    char name[TREE_PATH_BYTES];
    snprintf(name, sizeof name, "%s/memory.max", path);
    file(name, max);
    snprintf(name, sizeof name, "%s/memory.high", path);
    file(name, high);
    number_file(path, "memory.current", usage);
}

static void v1_level(const char *path, const char *limit, uint64_t usage)
{
    char name[TREE_PATH_BYTES];
    snprintf(name, sizeof name, "%s/memory.limit_in_bytes", path);
    file(name, limit);
    number_file(path, "memory.usage_in_bytes", usage);
}

/* 64 GiB. */
static void memory_of_machine(void)
{
    file("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1024 kB\n");
}

#define V2_MOUNT                                                                                   \
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"                                              \
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 master:2 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                   \
    "32 31 0:29 / /cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"               \
    "35 31 0:32 / /cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"

static void v2_machine(const char *process_path)
{
    char text[4096];
    snprintf(text, sizeof text, "0::%s\n", process_path);
    memory_of_machine();
    file("/proc/self/mountinfo", V2_MOUNT);
    file("/proc/self/cgroup", text);
}

static void v1_machine(void)
{
    memory_of_machine();
    file("/proc/self/mountinfo", V1_MOUNT);
    file("/proc/self/cgroup",
         "3:cpu,cpuacct:/jobs/cpu\n2:hugetlb,memory:/jobs/7\n1:name=systemd:/x\n");
    file("/cgroup/cpu/jobs/7/tasks", "");
}

static void expect(uint64_t memory_bytes, uint64_t left)
{
    machine_read(&machine, root);
    cr_expect_eq(machine.memory_bytes, memory_bytes, "memory %llu MiB",
                 (unsigned long long)(machine.memory_bytes / MIB));
    uint64_t found = machine_memory_left(&machine);
    cr_expect_eq(found, left, "left %llu MiB", (unsigned long long)(found / MIB));
}

TestSuite(machine, .init = make_root, .fini = remove_root);

/* --- memory ----------------------------------------------------------------------------------- */

Test(machine, without_cgroups_memory_is_the_machines)
{
    memory_of_machine();
    expect(64 * GIB, UINT64_MAX);
}

Test(machine, where_nothing_can_be_read_nothing_is_known)
{
    expect(0, UINT64_MAX);
    file("/proc/self/cgroup", "4:memory:/jobs/7\n0::/jobs/8\n");
    expect(0, UINT64_MAX);
    cr_expect_str_eq(machine.v1.path, "");
    cr_expect_str_eq(machine.v2.path, "");
}

Test(machine, the_least_of_the_v2_limits_counts_for_each_question)
{
    v2_machine("/slice/job");
    v2_level("/sys/fs", "1073741824\n", "max\n", 1 * GIB); /* above the mount point */
    v2_level("/sys/fs/cgroup/slice", "8589934592\n", "max\n", 7 * GIB + 512 * MIB);
    v2_level("/sys/fs/cgroup/slice/job", "4294967296\n", "max\n", 1 * GIB);
    expect(4 * GIB, 512 * MIB);
    number_file("/sys/fs/cgroup/slice", "memory.current", 2 * GIB);
    expect(4 * GIB, 3 * GIB);
}

Test(machine, levels_that_say_max_have_no_limit)
{
    v2_machine("/slice/job");
    v2_level("/sys/fs/cgroup/slice", "max\n", "max\n", 7 * GIB);
    v2_level("/sys/fs/cgroup/slice/job", "max\n", "max\n", 1 * GIB);
    expect(64 * GIB, UINT64_MAX);
}

Test(machine, memory_high_is_a_limit)
{
    v2_machine("/slice/job");
    v2_level("/sys/fs/cgroup/slice/job", "4294967296\n", "3221225472\n", 1 * GIB);
    expect(3 * GIB, 2 * GIB);
    v2_level("/sys/fs/cgroup/slice/job", "max\n", "3221225472\n", 1 * GIB);
    expect(3 * GIB, 2 * GIB);
    v2_level("/sys/fs/cgroup/slice/job", "2147483648\n", "3221225472\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
}

Test(machine, a_limit_above_the_machines_memory_bounds_what_is_left_only)
{
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "137438953472\n", "max\n", 1 * GIB);
    expect(64 * GIB, 127 * GIB);
}

Test(machine, the_limit_is_known_where_the_machines_memory_is_not)
{
    v2_machine("/job");
    file("/proc/meminfo", "MemTotal: plenty\n");
    v2_level("/sys/fs/cgroup/job", "1073741824\n", "max\n", 0);
    expect(1 * GIB, 1 * GIB);
}

Test(machine, nothing_is_left_of_a_limit_below_the_usage)
{
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "1073741824\n", "max\n", 3 * GIB);
    expect(1 * GIB, 0);
    v2_level("/sys/fs/cgroup/job", "0\n", "max\n", 3 * GIB);
    expect(0, 0);
}

Test(machine, files_that_were_not_used_lately_count_as_free)
{
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "4294967296\n", "max\n", 3 * GIB);
    file("/sys/fs/cgroup/job/memory.stat",
         "anon 1\ninactive_anon 5\nactive_file 2147483648\ninactive_file "
         "1073741824\ninactive_file_x 5\n");
    expect(4 * GIB, 2 * GIB);
    /* More than the usage, as sums may be that are made at different times. */
    file("/sys/fs/cgroup/job/memory.stat", "inactive_file 5368709120\n");
    expect(4 * GIB, 4 * GIB);
    file("/sys/fs/cgroup/job/memory.stat", "inactive_file\n1073741824\n");
    expect(4 * GIB, 1 * GIB);
}

Test(machine, what_is_unused_counts_at_its_own_level)
{
    v2_machine("/slice/job");
    v2_level("/sys/fs/cgroup/slice", "8589934592\n", "max\n", 8 * GIB);
    v2_level("/sys/fs/cgroup/slice/job", "4294967296\n", "max\n", 2 * GIB);
    file("/sys/fs/cgroup/slice/memory.stat", "inactive_file 1073741824\n");
    file("/sys/fs/cgroup/slice/job/memory.stat", "inactive_file 1048576\n");
    expect(4 * GIB, 1 * GIB);
}

Test(machine, usage_that_cannot_be_read_leaves_the_limit)
{
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "4294967296\n", "max\n", 3 * GIB);
    file("/sys/fs/cgroup/job/memory.current", "much\n");
    expect(4 * GIB, 4 * GIB);
}

Test(machine, v1_limits_count_at_every_level)
{
    v1_machine();
    v1_level("/cgroup/memory", V1_NO_LIMIT, 60 * GIB);
    v1_level("/cgroup/memory/jobs", "8589934592\n", 6 * GIB);
    v1_level("/cgroup/memory/jobs/7", "9223372036854710272\n", 1 * GIB);
    expect(8 * GIB, 2 * GIB);
    v1_level("/cgroup/memory/jobs/7", "2147483648\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
    /* Of the level alone, and with those below it, as the usage is. */
    file("/cgroup/memory/jobs/7/memory.stat",
         "inactive_file 1048576\ntotal_inactive_file 536870912\n");
    expect(2 * GIB, 1 * GIB + 512 * MIB);
}

Test(machine, huge_v1_limits_are_none)
{
    v1_machine();
    v1_level("/cgroup/memory/jobs/7", V1_NO_LIMIT, 1 * GIB);
    v1_level("/cgroup/memory/jobs", "9223372036854710272\n", 1 * GIB);
    expect(64 * GIB, UINT64_MAX);
}

Test(machine, v1_groups_without_hierarchy_do_not_bound_those_below)
{
    v1_machine();
    v1_level("/cgroup/memory/jobs", "1073741824\n", 0);
    v1_level("/cgroup/memory/jobs/7", "2147483648\n", 0);
    file("/cgroup/memory/jobs/memory.use_hierarchy", "0\n");
    expect(2 * GIB, 2 * GIB);
    file("/cgroup/memory/jobs/memory.use_hierarchy", "1\n");
    expect(1 * GIB, 1 * GIB);
}

Test(machine, both_kinds_count_on_a_hybrid_machine)
{
    memory_of_machine();
    file("/proc/self/mountinfo",
         V1_MOUNT "36 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
    file("/proc/self/cgroup", "4:memory:/jobs/7\n0::/jobs/8\n");
    v1_level("/cgroup/memory/jobs/7", "2147483648\n", 1 * GIB);
    file("/sys/fs/cgroup/unified/jobs/8/cgroup.procs", "");
    expect(2 * GIB, 1 * GIB);
    v2_level("/sys/fs/cgroup/unified/jobs/8", "1073741824\n", "max\n", 0);
    v1_level("/cgroup/memory/jobs/7", "2147483648\n", 2 * GIB);
    expect(1 * GIB, 0);
}

Test(machine, a_container_without_the_path_has_the_mounts_root)
{
    v2_machine("/system.slice/docker-1.scope");
    v2_level("/sys/fs/cgroup", "2147483648\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
    /* A directory of the path's beginning is another one: the container's own. */
    v2_level("/sys/fs/cgroup/system.slice", "1073741824\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
}

Test(machine, a_bind_mount_shows_the_path_below_its_root)
{
    v2_machine("/docker/1/inner");
    file("/proc/self/mountinfo", "31 23 0:28 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    v2_level("/sys/fs/cgroup", "4294967296\n", "max\n", 1 * GIB);
    v2_level("/sys/fs/cgroup/inner", "2147483648\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
    /* The group of that root itself, and one whose name only begins alike. */
    file("/proc/self/cgroup", "0::/docker/1\n");
    expect(4 * GIB, 3 * GIB);
    v2_level("/sys/fs/cgroup2", "1073741824\n", "max\n", 0);
    file("/proc/self/cgroup", "0::/docker/12\n");
    expect(4 * GIB, 3 * GIB);
}

Test(machine, paths_out_of_the_namespace_mean_the_mounts_root)
{
    v2_machine("/../job");
    v2_level("/sys/fs/cgroup", "2147483648\n", "max\n", 1 * GIB);
    v2_level("/sys/fs/job", "1073741824\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
    file("/proc/self/mountinfo", "31 23 0:28 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    v2_level("/sys/fs/cgroup/job", "1073741824\n", "max\n", 1 * GIB);
    expect(1 * GIB, 0);
    file("/proc/self/cgroup", "0::/job\n");
    expect(2 * GIB, 1 * GIB);
}

Test(machine, of_several_mounts_the_one_that_shows_the_group_counts)
{
    v2_machine("/host/job");
    file("/proc/self/mountinfo", "30 23 0:28 / /gone rw - cgroup2 cgroup2 rw\n"
                                 "31 23 0:28 /othr /part rw - cgroup2 cgroup2 rw\n"
                                 "32 23 0:28 / /whole rw - cgroup2 cgroup2 rw\n");
    v2_level("/part", "1073741824\n", "max\n", 0);
    v2_level("/part/job", "536870912\n", "max\n", 0); /* its path only ends alike */
    v2_level("/whole/host/job", "2147483648\n", "max\n", 0);
    expect(2 * GIB, 2 * GIB);
    file("/proc/self/cgroup", "0::/host/moved\n");
    expect(1 * GIB, 1 * GIB);
}

Test(machine, names_with_spaces_colons_and_backslashes_are_found)
{
    v2_machine("/a\\x2db.slice/job: 1");
    file("/proc/self/mountinfo", "31 23 0:28 /a\\134x2db.slice /sys/my\\040groups\\12a rw - "
                                 "cgroup2 cgroup2 rw\n");
    v2_level("/sys/my groups\\12a/job: 1", "2147483648\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
}

Test(machine, without_mountinfo_the_usual_places_are_looked_at)
{
    memory_of_machine();
    file("/proc/self/cgroup", "4:memory:/jobs/7\n0::/jobs/8\n");
    v1_level("/sys/fs/cgroup/memory/jobs/7", "8589934592\n", 1 * GIB);
    v2_level("/sys/fs/cgroup/jobs/8", "4294967296\n", "max\n", 1 * GIB);
    expect(4 * GIB, 3 * GIB);
    v2_level("/sys/fs/cgroup/unified/jobs/8", "2147483648\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
    v1_level("/sys/fs/cgroup/memory", "1073741824\n", 1 * GIB);
    file("/proc/self/cgroup", "4:memory:/gone\n");
    expect(1 * GIB, 0);
}

Test(machine, limits_are_read_anew)
{
    v2_machine("/slice/job");
    v2_level("/sys/fs/cgroup/slice", "max\n", "max\n", 1 * GIB);
    v2_level("/sys/fs/cgroup/slice/job", "4294967296\n", "max\n", 1 * GIB);
    expect(4 * GIB, 3 * GIB);
    file("/sys/fs/cgroup/slice/job/memory.max", "2147483648\n");
    cr_expect_eq(machine_memory_left(&machine), 1 * GIB);
    /* Also one that was not there. */
    file("/sys/fs/cgroup/slice/memory.high", "1610612736\n");
    cr_expect_eq(machine_memory_left(&machine), 512 * MIB);
    file("/sys/fs/cgroup/slice/job/memory.max", "max\n");
    file("/sys/fs/cgroup/slice/memory.high", "max\n");
    cr_expect_eq(machine_memory_left(&machine), UINT64_MAX);
    /* And where the group is gone. */
    file("/sys/fs/cgroup/slice/job/memory.max", "2147483648\n");
    remove_root();
    cr_expect_eq(machine_memory_left(&machine), UINT64_MAX);
}

/* --- what nobody would write ---------------------------------------------------------------------
 */

Test(machine, garbage_is_no_limit)
{
    static const char *const words[] = {"",
                                        "\n",
                                        "-1\n",
                                        "12 GiB\n",
                                        "0x1000\n",
                                        " 4096\n",
                                        "4096 \n",
                                        "maxi\n",
                                        "1.5\n",
                                        "18446744073709551616\n",
                                        "18446744073709555712\n",
                                        "9999999999999999999999999999999999999999\n"};
    v2_machine("/job");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        v2_level("/sys/fs/cgroup/job", words[i], words[i], 1 * GIB);
        expect(64 * GIB, UINT64_MAX);
    }
    v2_level("/sys/fs/cgroup/job", "2147483648", "max", 1 * GIB); /* no end of the line */
    expect(2 * GIB, 1 * GIB);
}

Test(machine, garbage_in_the_lists_of_groups_and_mounts_is_passed_over)
{
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    file("/proc/self/cgroup", "\n:\n0\n0:\nmemory\n1:memory\n::\n");
    file("/proc/self/mountinfo", "\n \n- cgroup2\n1 2 3 / / rw - cgroup2\n1 2 3\n" V2_MOUNT);
    machine_read(&machine, root);
    file("/proc/self/cgroup", "\n:\n0\n0:\nmemory\n1:memory\n0::/job\n");
    expect(2 * GIB, 1 * GIB);
    file("/proc/meminfo", "MemTotal\nMemTotal:\n");
    file("/proc/self/mountinfo", "- - - - -\n31 23 0:28 / /sys/fs/cgroup rw -\n");
    file("/proc/self/cgroup", "0::job\n");
    machine_read(&machine, root);
    cr_expect_eq(machine.memory_bytes, 0);
}

Test(machine, long_lines_are_passed_over)
{
    char *mounts = long_text("1 2 3 /", 'r', " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n" V2_MOUNT);
    char *points = long_text("1 2 3 / /", 'p', " rw - cgroup2 cgroup2 rw\n" V2_MOUNT);
    char *options = long_text("1 2 3 / / ", 'o', " - ext4 /dev/sda rw\n" V2_MOUNT);
    char *groups = long_text("", 'g', "\n0::/job\n");
    char *numbers = long_text("", '0', "\n");
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    file("/proc/self/cgroup", groups);
    file("/proc/self/mountinfo", mounts);
    expect(2 * GIB, 1 * GIB);
    /* What is mounted there has too long a name to be compared. */
    *strchr(mounts, '\n') = '\0';
    v2_level("/sys/fs/cgroup", "3221225472\n", "max\n", 1 * GIB);
    file("/proc/self/mountinfo", mounts);
    expect(3 * GIB, 2 * GIB);
    v2_level("/sys/fs/cgroup", "max\n", "max\n", 1 * GIB);
    file("/proc/self/mountinfo", points);
    expect(2 * GIB, 1 * GIB);
    file("/proc/self/mountinfo", options);
    expect(2 * GIB, 1 * GIB);
    file("/sys/fs/cgroup/job/memory.max", numbers);
    expect(64 * GIB, UINT64_MAX);
    file("/proc/meminfo", "MemTotal\nMem: 1 MemTotal: 3 kB\nMemTotal: 67108864 kB\n");
    expect(64 * GIB, UINT64_MAX);
    free(mounts), free(points), free(options), free(groups), free(numbers);
}

/* Of a path that is too long, an ancestor that fits is the deepest level. */
Test(machine, long_paths_are_cut_to_an_ancestor)
{
    char path[3000] = "/job";
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    for (int i = 0; i < 4; i++) {
        char name[TREE_PATH_BYTES];
        snprintf(name, sizeof name, "/%0199d", i);
        strcat(path, name);
        snprintf(name, sizeof name, "/sys/fs/cgroup%s", path);
        v2_level(name, "4294967296\n", "max\n", 1 * GIB);
    }
    char deepest[TREE_PATH_BYTES];
    snprintf(deepest, sizeof deepest, "/sys/fs/cgroup%s", path);
    number_file(deepest, "memory.current", 4 * GIB);
    /* Too long beside the mount point, in one name; and too long for itself, in many. */
    for (size_t more = 200; more <= 1400; more += 1200) {
        char text[4096];
        memset(text, 0, sizeof text);
        snprintf(text, sizeof text, "0::%s/", path);
        for (size_t i = 0; i < more; i++)
            strcat(text, more > 200 && i % 2 ? "/" : "z");
        strcat(text, "\n");
        file("/proc/self/cgroup", text);
        machine_read(&machine, root);
        cr_expect_lt(strlen(machine.v2.path), MACHINE_PATH_BYTES);
        cr_expect_eq(machine.v2.top, strlen(root) + strlen("/sys/fs/cgroup"));
        if (more == 200)
            expect(2 * GIB, 0);
    }
}

/* A path that is too long as the kernel writes it, and not below a mount's root. */
Test(machine, long_paths_are_cut_before_they_are_compared)
{
    char text[4096];
    v2_machine("/");
    snprintf(text, sizeof text, "0::/%0600d/job/%0600d\n", 1, 2);
    file("/proc/self/cgroup", text);
    snprintf(text, sizeof text, "1 2 3 /%0600d /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", 1);
    file("/proc/self/mountinfo", text);
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    expect(2 * GIB, 1 * GIB);
}

Test(machine, a_mount_point_that_does_not_fit_is_none)
{
    char text[4096], point[2048] = "";
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    /* Of all lengths for which the root and the mount point just fit, or just do not. */
    for (size_t length = MACHINE_PATH_BYTES - 40; length < MACHINE_PATH_BYTES; length++) {
        memset(point, 'p', length);
        point[0] = '/';
        snprintf(text, sizeof text, "1 2 3 / %s rw - cgroup2 cgroup2 rw\n%s", point, V2_MOUNT);
        file("/proc/self/mountinfo", text);
        expect(2 * GIB, 1 * GIB);
    }
}

Test(machine, a_long_machine_of_many_files_is_read_to_its_end)
{
    enum { MOUNTS = 3000 };
    char *text = malloc(MOUNTS * 80 + sizeof V2_MOUNT), *end = text;
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    for (int i = 0; i < MOUNTS; i++)
        end += sprintf(end, "%d 23 0:28 / /overlay/%d rw - overlay overlay rw\n", i, i);
    strcpy(end, V2_MOUNT);
    file("/proc/self/mountinfo", text);
    end = text;
    for (int i = 0; i < MOUNTS; i++)
        end += sprintf(end, "counter_%d %d\n", i, i);
    strcpy(end, "inactive_file 536870912\n");
    file("/sys/fs/cgroup/job/memory.stat", text);
    expect(2 * GIB, 1 * GIB + 512 * MIB);
    free(text);
}

/* --- what the caller keeps -------------------------------------------------------------------- */

Test(machine, errno_is_kept)
{
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    errno = EXDEV;
    machine_read(&machine, root);
    cr_expect_eq(errno, EXDEV);
    machine_memory_left(&machine); /* there is no memory.stat */
    cr_expect_eq(errno, EXDEV);
}

static void *keep_open_and_close(void *done)
{
    pthread_cancel(pthread_self());
    errno = EXDEV;
    machine_keep_open(&machine);
    cr_expect_eq(errno, EXDEV);
    machine_close(&machine);
    cr_expect_eq(errno, EXDEV);
    *(bool *)done = true;
    return NULL;
}

Test(machine, a_thread_that_is_being_cancelled_ends_in_none_of_these)
{
    pthread_t thread;
    bool done = false;
    v1_machine();
    v1_level("/cgroup/memory/jobs", "1073741824\n", 0);
    v1_level("/cgroup/memory/jobs/7", "2147483648\n", 0);
    machine_read(&machine, root);
    cr_assert_eq(pthread_create(&thread, NULL, keep_open_and_close, &done), 0);
    pthread_join(thread, NULL);
    cr_assert(done);
}

Test(machine, descriptors_are_given_back_and_their_lack_is_borne)
{
    struct rlimit limit;
    v2_machine("/job");
    v2_level("/sys/fs/cgroup/job", "2147483648\n", "max\n", 1 * GIB);
    int before = dup(0);
    close(before);
    expect(2 * GIB, 1 * GIB);
    int after = dup(0);
    cr_expect_eq(after, before);
    close(after);
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t allowed = limit.rlim_cur;
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    uint64_t left = machine_memory_left(&machine);
    machine_read(&machine, root);
    limit.rlim_cur = allowed;
    setrlimit(RLIMIT_NOFILE, &limit);
    cr_expect_eq(left, UINT64_MAX);
    cr_expect_eq(machine.memory_bytes, 0);
}

Test(machine, the_real_one_can_be_read)
{
    machine_read(&machine, "");
    cr_expect_gt(machine.memory_bytes, 0);
    cr_expect_geq(machine.nodes, 1);
    cr_expect_lt(machine_node(&machine), machine.nodes);
    machine_memory_left(&machine);
}

/* ---- files that are kept open ---- */

static void enter_a_sandbox(void)
{
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof allow / sizeof allow[0], allow};
    sandbox_note_start();
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        cr_skip_test("system calls cannot be filtered here");
}

static void level_of_one_gib(uint64_t usage)
{
    v2_level("/sys/fs/cgroup/job", "1073741824\n", "max\n", usage);
}

static void read_and_keep(void)
{
    v2_machine("/job");
    level_of_one_gib(100 * MIB);
    machine_read(&machine, root);
    machine_keep_open(&machine);
    for (unsigned i = 0; i < machine.kept_count; i++)
        cr_assert_gt(machine.kept[i].fd, STDERR_FILENO);
}

Test(machine, in_a_sandbox_only_what_is_kept_open_is_read)
{
    struct machine lacking;
    read_and_keep();
    machine_read(&lacking, root);
    enter_a_sandbox();
    level_of_one_gib(300 * MIB);
    cr_assert_eq(machine_memory_left(&machine), 724 * MIB);
    cr_assert_eq(machine_memory_left(&lacking), UINT64_MAX);
}

Test(machine, what_the_program_has_closed_is_opened_for_a_moment)
{
    read_and_keep();
    machine_close(&machine);
    level_of_one_gib(300 * MIB);
    cr_assert_eq(machine_memory_left(&machine), 724 * MIB);
}

Test(machine, a_file_of_the_programs_in_the_place_of_a_kept_one_is_left_alone)
{
    char name[64];
    read_and_keep();
    file("/own", "5\n");
    snprintf(name, sizeof name, "%s/own", root);
    int own = open(name, O_RDONLY);
    for (unsigned i = 0; i < machine.kept_count; i++)
        cr_assert_geq(dup2(own, machine.kept[i].fd), 0);
    cr_assert_eq(machine_memory_left(&machine), 924 * MIB);
    machine_close(&machine);
    cr_assert_geq(fcntl(machine.kept[0].fd, F_GETFD), 0);
}
