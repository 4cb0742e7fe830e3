/*
 * NUMA nodes, as files of the kernel tell them (core/base/machine.h): each test writes the files
 * that it is about into a directory of its own. Where threads run, and may run, is the test's to
 * say, because the linker turns sched_getaffinity and sched_getcpu to it (Makefile).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/machine.h"
#include "machine_fixture.h"

static unsigned first_processor, last_processor; /* of the process's affinity */
static unsigned callers_processor;               /* one more, of the calling thread's affinity */
static size_t smallest_mask;                     /* the kernel refuses smaller ones */
static int running_on;
static unsigned getcpu_calls;

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *mask);
int __wrap_sched_getcpu(void);

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *mask)
{
    if (bytes < smallest_mask) {
        memset(mask, 0xff, bytes); /* means nothing */
        errno = EINVAL;
        return -1;
    }
    memset(mask, 0, bytes);
    if (pid == 0)
        CPU_SET_S(callers_processor, bytes, mask);
    else
        for (unsigned i = first_processor; i <= last_processor; i++)
            CPU_SET_S(i, bytes, mask);
    return 0;
}

int __wrap_sched_getcpu(void)
{
    getcpu_calls++;
    if (running_on < 0)
        errno = ENOSYS;
    return running_on;
}

static void may_run_on(unsigned first, unsigned last)
{
    first_processor = callers_processor = first;
    last_processor = last;
}

static unsigned node_on(int processor)
{
    running_on = processor;
    return machine_node(&machine);
}

TestSuite(machine_nodes, .init = make_root, .fini = remove_root);

static void two_nodes(void)
{
    file("/sys/devices/system/node/online", "0-1\n");
    file("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    file("/sys/devices/system/node/node1/cpulist", "4-7,12-14,15\n");
}

Test(machine_nodes, an_affinity_that_spans_two_nodes_numbers_both)
{
    static const int node0[] = {0, 3, 8, 11}, node1[] = {4, 7, 12, 14, 15};
    two_nodes();
    may_run_on(2, 5);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
    for (size_t i = 0; i < sizeof node0 / sizeof node0[0]; i++)
        cr_expect_eq(node_on(node0[i]), 0, "processor %d", node0[i]);
    for (size_t i = 0; i < sizeof node1 / sizeof node1[0]; i++)
        cr_expect_eq(node_on(node1[i]), 1, "processor %d", node1[i]);
    cr_expect_eq(node_on(16), 0, "a processor of no node");
    cr_expect_eq(machine_node_of(&machine, 13), 1);
}

Test(machine_nodes, an_affinity_within_one_node_asks_nothing)
{
    two_nodes();
    may_run_on(12, 15);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 1);
    cr_expect_eq(node_on(12), 0);
    cr_expect_eq(machine_node_of(&machine, 12), 0);
    cr_expect_eq(getcpu_calls, 0);
    may_run_on(0, 15);
    machine_read(&machine, root);
    node_on(12);
    cr_expect_eq(getcpu_calls, 1);
}

Test(machine_nodes, the_first_threads_affinity_and_the_callers_count)
{
    two_nodes();
    may_run_on(0, 1);
    callers_processor = 4;
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
    cr_expect_eq(node_on(4), 1);
}

Test(machine_nodes, nodes_that_are_not_spanned_have_no_number)
{
    file("/sys/devices/system/node/online", "0,2-3,250-255\n");
    file("/sys/devices/system/node/node0/cpulist", "0-3\n");
    file("/sys/devices/system/node/node1/cpulist", "4-7\n"); /* not online */
    file("/sys/devices/system/node/node2/cpulist", "8-11\n");
    file("/sys/devices/system/node/node3/cpulist", "\n"); /* memory alone */
    file("/sys/devices/system/node/node255/cpulist", "12\n");
    may_run_on(4, 12);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
    cr_expect_eq(node_on(0), 0);
    cr_expect_eq(node_on(4), 0);
    cr_expect_eq(node_on(8), 0);
    cr_expect_eq(node_on(12), 1);
}

Test(machine_nodes, what_was_known_is_forgotten_by_another_reading)
{
    two_nodes();
    may_run_on(0, 15);
    machine_read(&machine, root);
    cr_expect_eq(machine_node_of(&machine, 4), 1);
    remove_root();
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 1);
    cr_expect_eq(machine_node_of(&machine, 4), 0);
}

Test(machine_nodes, processors_past_the_table_are_on_the_first_node)
{
    file("/sys/devices/system/node/online", "0-1\n");
    file("/sys/devices/system/node/node0/cpulist", "0-99\n");
    file("/sys/devices/system/node/node1/cpulist", "100-4294967295,5000\n");
    may_run_on(0, MACHINE_PROCESSORS - 1);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
    cr_expect_eq(node_on(MACHINE_PROCESSORS - 1), 1);
    cr_expect_eq(node_on(MACHINE_PROCESSORS), 0);
    cr_expect_eq(node_on(5000), 0);
    cr_expect_eq(node_on(INT32_MAX), 0);
    cr_expect_eq(node_on(-1), 0);
}

Test(machine_nodes, a_machine_with_more_processors_counts_as_one_node)
{
    two_nodes();
    may_run_on(0, 15);
    smallest_mask = MACHINE_PROCESSORS / 8 + 8;
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 1);
    cr_expect_eq(machine_node_of(&machine, 4), 0);
    smallest_mask = MACHINE_PROCESSORS / 8;
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
}

Test(machine_nodes, garbage_in_lists_of_processors_ends_them)
{
    static const char *const lists[] = {"",    "\n",   "x\n",   "4-\n",    "-7\n", "7-4\n",
                                        "4,5", ",4\n", "4 5\n", "4-7-9\n", "4:2\n"};
    two_nodes();
    may_run_on(0, 15);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        file("/sys/devices/system/node/node1/cpulist", lists[i]);
        machine_read(&machine, root);
        cr_expect_eq(machine.nodes, strcmp(lists[i], "4,5") == 0 ? 2 : 1, "%s", lists[i]);
        cr_expect_eq(machine_node_of(&machine, 7), 0);
    }
    char *text = long_text("4,", '5', "\n");
    file("/sys/devices/system/node/node1/cpulist", text);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
    free(text);
}

Test(machine_nodes, a_long_list_is_read_to_its_end)
{
    char odd[16384], even[16384], *odd_end = odd, *even_end = even;
    file("/sys/devices/system/node/online", "0-1\n");
    for (int i = 0; i < MACHINE_PROCESSORS; i += 2) {
        even_end += sprintf(even_end, "%s%d", i ? "," : "", i);
        odd_end += sprintf(odd_end, "%s%d", i ? "," : "", i + 1);
    }
    file("/sys/devices/system/node/node0/cpulist", even);
    file("/sys/devices/system/node/node1/cpulist", odd);
    may_run_on(4094, 4095);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 2);
    for (unsigned i = 0; i < MACHINE_PROCESSORS; i++)
        cr_assert_eq(machine_node_of(&machine, i), i % 2);
}

Test(machine_nodes, more_nodes_than_numbers_share_them)
{
    file("/sys/devices/system/node/online", "0-99\n");
    for (int i = 0; i < 40; i++) {
        char path[100], list[32];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", i);
        snprintf(list, sizeof list, "%d\n", i);
        file(path, list);
    }
    may_run_on(0, 99);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, MACHINE_NODES);
    for (int i = 0; i < 40; i++)
        cr_expect_eq(node_on(i), (unsigned)i % MACHINE_NODES);
}

Test(machine_nodes, where_nothing_can_be_read_there_is_one)
{
    may_run_on(0, 3);
    machine_read(&machine, root);
    cr_expect_eq(machine.nodes, 1);
    cr_expect_eq(node_on(3), 0);
}

Test(machine_nodes, errno_is_kept)
{
    two_nodes();
    may_run_on(0, 15);
    errno = EXDEV;
    machine_read(&machine, root);
    cr_expect_eq(errno, EXDEV);
    node_on(-1);
    cr_expect_eq(errno, EXDEV);
}
