/*
 * Processes under a limit that all of them share (limits.group_bytes): they allocate, free, fail,
 * end and are killed at random, and never hold more than the limit together. At the end, what
 * nobody uses can be had by one. For tests/gpu/neighbours.c.
 *
 * What each holds stands in memory that all share: added after an allocation and taken off before a
 * free, so that it is never more than what the process holds. The sum is read twice: where nobody
 * changed anything in between, all of it was held at one moment. A process counts as holding
 * nothing from before it is killed.
 */
#ifndef CUDAPOOL_TESTS_GPU_GROUP_H
#define CUDAPOOL_TESTS_GPU_GROUP_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "neighbour.h"

enum { MOST_MEMBERS = 256, GROUP_FD = 1002, MEMBER_BLOCKS = 12, BLOCK_MIB = 16 };
enum { TAKE_ALL_MS = 15000, MEMBERS_SECONDS = 120 };

/* One writer each: the process itself. */
struct member {
    _Atomic uint64_t held; /* MiB below, and how often they changed above MEMBER_CHANGE */
    _Atomic uint64_t got, refused;
    uint64_t unused[5];
};
#define MEMBER_CHANGE ((uint64_t)1 << 32)

struct group_result {
    double most_percent;
    unsigned long killed, ended;
    uint64_t got, refused, blocks, blocks_allowed;
};

static struct member *map_members(void)
{
    size_t bytes = MOST_MEMBERS * sizeof(struct member);
    void *memory = ftruncate(GROUP_FD, (off_t)bytes) == 0
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, GROUP_FD, 0)
                       : MAP_FAILED;
    if (memory == MAP_FAILED)
        FAIL("the memory that processes share: %s", strerror(errno));
    return memory;
}

/* --- a member ----------------------------------------------------------------------------------*/

static size_t member_sizes[MOST_BLOCKS];

static void member_takes(struct member *self, unsigned int *random)
{
    size_t mib = (size_t)2 << next_random(random) % 5;
    bool async = next_random(random) % 4 == 0;
    member_sizes[own.count] = mib;
    if (take_block(mib * MIB, async) == CUDA_SUCCESS) {
        atomic_fetch_add(&self->held, MEMBER_CHANGE + mib);
        atomic_fetch_add(&self->got, 1);
    } else {
        atomic_fetch_add(&self->refused, 1);
    }
}

static void member_frees(struct member *self, unsigned int which)
{
    atomic_fetch_add(&self->held, MEMBER_CHANGE - member_sizes[which]);
    member_sizes[which] = member_sizes[own.count - 1];
    free_block(which);
}

/* Ends with what it holds, now and then. */
static void member_ends(struct member *self, unsigned int *random)
{
    if (next_random(random) % 20000 != 0)
        return;
    atomic_fetch_and(&self->held, ~(MEMBER_CHANGE - 1));
    exit(0);
}

static struct answer live_at_random(unsigned int number)
{
    struct member *self = &map_members()[number];
    unsigned int random = (unsigned int)getpid();
    while (!order_is_there(0)) {
        unsigned int what = next_random(&random) % 64;
        if (what < 36 && own.count < MEMBER_BLOCKS)
            member_takes(self, &random);
        else if (what < 60 && own.count > 0)
            member_frees(self, next_random(&random) % own.count);
        else if (what == 61)
            while (own.count > 0)
                member_frees(self, own.count - 1);
        else if (what > 61)
            usleep(next_random(&random) % 5000);
        member_ends(self, &random);
    }
    while (own.count > 0)
        member_frees(self, own.count - 1);
    CHECK(cuCtxSynchronize());
    return (struct answer){0};
}

/* --- who steers --------------------------------------------------------------------------------*/

static struct {
    char *program, settings[200];
    unsigned int count;
    struct process processes[MOST_MEMBERS];
    struct member *members;
    uint64_t most_mib;
    struct group_result result;
} group;

/* It opens its device and lives, while nobody waits for it. */
static void start_member(unsigned int number)
{
    struct process *process = &group.processes[number];
    start_process(process, (char *[]){group.program, (char[]){"--child"}, NULL},
                  (const char *[]){group.settings, NULL});
    begin_order(process, (struct order){.what = ORDER_OPEN});
    begin_order(process, (struct order){.what = ORDER_LIVE, .count = number});
}

static void note_sum(void)
{
    uint64_t first[MOST_MEMBERS], sum = 0;
    for (unsigned int i = 0; i < group.count; i++)
        first[i] = atomic_load(&group.members[i].held);
    for (unsigned int i = 0; i < group.count; i++) {
        if (atomic_load(&group.members[i].held) != first[i])
            return;
        sum += first[i] & (MEMBER_CHANGE - 1);
    }
    group.most_mib = sum > group.most_mib ? sum : group.most_mib;
}

/* It may go on for a moment after it was told to hold nothing: it is stopped before. */
static void kill_member(unsigned int number)
{
    struct process *process = &group.processes[number];
    int status;
    kill(process->pid, SIGSTOP);
    waitpid(process->pid, &status, WUNTRACED);
    atomic_fetch_and(&group.members[number].held, ~(MEMBER_CHANGE - 1));
    if (WIFSTOPPED(status)) {
        kill_process(process);
    } else {
        close(process->orders);
        close(process->answers);
    }
    group.result.killed++;
    start_member(number);
}

/* Those that have ended by themselves come back; one that failed is an error of the test. */
static void replace_ended(void)
{
    for (unsigned int i = 0; i < group.count; i++) {
        int status;
        if (waitpid(group.processes[i].pid, &status, WNOHANG) != group.processes[i].pid)
            continue;
        if (status != 0)
            FAIL("member %u has ended with status %#x", i, (unsigned int)status);
        close(group.processes[i].orders);
        close(group.processes[i].answers);
        group.result.ended++;
        start_member(i);
    }
}

/* A device may take a third of a second for each process that opens it, one after the other. */
static void await_members(void)
{
    double end = now_ms() + MEMBERS_SECONDS * 1e3;
    for (unsigned int i = 0; i < group.count; i++)
        while (atomic_load(&group.members[i].got) + atomic_load(&group.members[i].refused) == 0) {
            if (now_ms() > end)
                FAIL("member %u has not begun to live after %d s", i, MEMBERS_SECONDS);
            usleep(1000);
        }
}

static void run_members(double seconds, unsigned int kill_ms)
{
    unsigned int random = 1;
    double end = now_ms() + seconds * 1e3, next_kill = now_ms() + 1000;
    while (now_ms() < end) {
        for (int i = 0; i < 20; i++)
            note_sum();
        replace_ended();
        if (now_ms() > next_kill) {
            kill_member(next_random(&random) % group.count);
            next_kill = now_ms() + kill_ms;
        }
        usleep(200);
    }
}

/* All end their lives, which one may just have done by itself. */
static void settle_members(void)
{
    for (unsigned int i = 0; i < group.count; i++) {
        struct order stop = {.what = ORDER_STOP};
        if (write(group.processes[i].orders, &stop, sizeof stop) < 0 && errno != EPIPE)
            FAIL("member %u takes no orders: %s", i, strerror(errno));
    }
    for (unsigned int i = 0; i < group.count; i++) {
        struct answer answer;
        struct pollfd ready = {.fd = group.processes[i].answers, .events = POLLIN};
        for (int answers = 0; answers < 3; answers++) {
            if (poll(&ready, 1, ANSWER_SECONDS * 1000) != 1)
                FAIL("member %u has not answered for %d s", i, ANSWER_SECONDS);
            if (read(group.processes[i].answers, &answer, sizeof answer) <= 0)
                break;
        }
    }
}

/* All have freed everything, and some cache it; a member that is new wants all that is allowed.
 * What killed ones held is there within a second, and who did not answer in a tenth of one, on a
 * machine that has much to do, is asked again some time later. */
static void take_all(uint64_t limit_mib)
{
    struct process process;
    double end;
    group.result.blocks_allowed = limit_mib / BLOCK_MIB;
    start_process(&process, (char *[]){group.program, (char[]){"--child"}, NULL},
                  (const char *[]){group.settings, NULL});
    give_order(&process, (struct order){.what = ORDER_OPEN});
    end = now_ms() + TAKE_ALL_MS;
    do {
        uint64_t missing = group.result.blocks_allowed - group.result.blocks;
        group.result.blocks += give_order(&process, (struct order){.what = ORDER_TAKE,
                                                                   .count = (uint32_t)missing,
                                                                   .bytes = BLOCK_MIB * MIB})
                                   .count;
    } while (group.result.blocks < group.result.blocks_allowed && now_ms() < end);
    /* Without a limit there would be more. */
    if (group.result.blocks == group.result.blocks_allowed)
        group.result.blocks +=
            give_order(&process,
                       (struct order){.what = ORDER_TAKE, .count = 1, .bytes = BLOCK_MIB * MIB})
                .count;
    end_process(&process);
}

static struct group_result run_group(char *program, unsigned int count, uint64_t limit_mib,
                                     double seconds, unsigned int kill_ms)
{
    int memory = memfd_create("members", 0);
    if (memory < 0 || dup2(memory, GROUP_FD) < 0)
        FAIL("memfd_create: %s", strerror(errno));
    group.program = program;
    group.count = count;
    group.members = map_members();
    snprintf(group.settings, sizeof group.settings,
             "CUDAPOOL_CONFIG={\"version\": 1, \"limits\": {\"group\": \"proof-%d\", "
             "\"group_bytes\": %llu}}",
             (int)getpid(), limit_mib * (unsigned long long)MIB);
    for (unsigned int i = 0; i < count; i++)
        start_member(i);
    await_members();
    run_members(seconds, kill_ms);
    settle_members();
    take_all(limit_mib);
    for (unsigned int i = 0; i < count; i++) {
        group.result.got += atomic_load(&group.members[i].got);
        group.result.refused += atomic_load(&group.members[i].refused);
        end_process(&group.processes[i]);
    }
    group.result.most_percent = 100 * (double)group.most_mib / (double)limit_mib;
    return group.result;
}

#endif
