/*
 * One of the random processes that share a device: see neighbours.h for the rule that it holds the
 * pool to, and neighbours.c for who starts, stops and kills it.
 */
#include "neighbours.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../driver_api.h"

static struct table *table;
static struct slot *self;
static unsigned int own_number;

__attribute__((noreturn, format(printf, 2, 3))) static void give_up(int status, const char *format,
                                                                    ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->why, sizeof self->why, format, arguments);
    va_end(arguments);
    _exit(status);
}
#define FAIL(...) give_up(4, __VA_ARGS__)

#include "../device_work.h"

enum { BLOCKS = 256, FILLED_WORDS = 256 };
#define PAGE  (2 * MIB)
#define ROW   (16384)    /* bytes of an array's row */
#define CHUNK (32 * MIB) /* what the driver takes at least for stream-ordered memory */

enum kind { PLAIN, ASYNC, MANAGED, PHYSICAL, ARRAY, KINDS };

static const char *const kind_names[] = {"plain", "stream-ordered", "managed", "physical", "array"};

static struct block {
    union {
        CUdeviceptr address;
        CUmemGenericAllocationHandle physical;
        CUarray array;
    };
    size_t bytes;
    uint64_t charged; /* of the sum */
    enum kind kind;
    unsigned int value;
} blocks[BLOCKS];
static unsigned int block_count;
static uint64_t unsynchronised; /* of the sum: freed in the stream's order, not waited for */
static size_t
    stream_ordered_size; /* of all of it: the driver keeps what is larger for what is not */
static uint64_t random_state;
static struct kernels kernels;
static CUstream stream;
static CUdeviceptr mismatches;

/* ---- the model ---- */

/* What the driver takes for such a request, or more; in a group, what counts. */
static uint64_t charge_of(size_t bytes, enum kind kind)
{
    uint64_t unit = kind == ASYNC && bytes < CHUNK && !table->grouped ? CHUNK : PAGE;
    return (bytes + unit - 1) / unit * unit;
}

/* What the slot holds is no more than its part of the sum, whenever the process is killed. */
static void add_to_slot(uint64_t charge)
{
    uint64_t held = atomic_fetch_add(&self->held, charge) + charge;
    if (held > atomic_load(&self->peak))
        atomic_store(&self->peak, held);
}

static void take_off(uint64_t charge)
{
    atomic_fetch_sub(&self->held, charge);
    atomic_fetch_sub(&table->sum, charge);
}

static void hold(uint64_t charge)
{
    atomic_fetch_add(&self->certain, charge);
    int64_t sum = atomic_fetch_add(&table->certain, (int64_t)charge) + (int64_t)charge;
    if (table->grouped && sum > (int64_t)table->limit)
        give_up(3, "all hold %lld of %llu bytes", (long long)sum, (unsigned long long)table->limit);
}

static void hold_no_more(uint64_t charge)
{
    atomic_fetch_sub(&table->certain, (int64_t)charge);
    atomic_fetch_sub(&self->certain, charge);
}

/* False where the device has no room for it: then it is not added. */
static bool add_what_fits(uint64_t charge)
{
    uint64_t sum = atomic_load(&table->sum);
    do {
        if (sum + charge > table->total)
            return false;
    } while (!atomic_compare_exchange_weak(&table->sum, &sum, sum + charge));
    add_to_slot(charge);
    return true;
}

/* Others may fail from now on until exceeded is read again: who reads exceeding and then exceeded
 * has seen one of the two change if the sum has passed the total meanwhile. */
static void add_anyway(uint64_t charge)
{
    atomic_store(&self->exceeding, 1);
    atomic_fetch_add(&table->sum, charge);
    add_to_slot(charge);
    atomic_fetch_add(&table->exceeded, 1);
    atomic_store(&self->exceeding, 0);
}

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether the sum may have passed the total since exceeded was read, or a process that does not
 * answer may cache what is missing. */
static bool may_fail(uint64_t exceeded_before, uint64_t started)
{
    uint64_t unsure = 0;
    for (unsigned int i = 0; i < table->processes; i++) {
        struct slot *other = &table->slots[i];
        if (atomic_load(&other->exceeding) != 0)
            return true;
        if (atomic_load(&other->unsure_until) >= started)
            unsure += (atomic_load(&other->peak) + atomic_load(&other->before)) * 5 / 4 + 8 * MIB;
    }
    return atomic_load(&table->exceeded) != exceeded_before ||
           atomic_load(&table->sum) + unsure > table->total;
}

/* ---- memory ---- */

static void note(const char *doing)
{
    snprintf(self->doing, sizeof self->doing, "%s", doing);
    atomic_fetch_add(&self->steps, 1);
}

static CUresult allocate(struct block *block)
{
    CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUDA_ARRAY_DESCRIPTOR array = {ROW / 4, block->bytes / ROW, CU_AD_FORMAT_FLOAT, 1};
    switch (block->kind) {
    case ASYNC:
        return cuMemAllocAsync(&block->address, block->bytes, stream);
    case MANAGED:
        return cuMemAllocManaged(&block->address, block->bytes, CU_MEM_ATTACH_GLOBAL);
    case PHYSICAL:
        physical.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        return cuMemCreate(&block->physical, block->bytes, &physical, 0);
    case ARRAY:
        return cuArrayCreate_v2(&block->array, &array);
    default:
        return cuMemAlloc_v2(&block->address, block->bytes);
    }
}

static CUresult give_back(const struct block *block)
{
    switch (block->kind) {
    case ASYNC:
        return cuMemFreeAsync(block->address, stream);
    case PHYSICAL:
        return cuMemRelease(block->physical);
    case ARRAY:
        return cuArrayDestroy(block->array);
    default:
        return cuMemFree_v2(block->address);
    }
}

/* What kernels write and verify; 0: they do not reach it. */
static unsigned int words_of(const struct block *block)
{
    if (block->kind == PHYSICAL || block->kind == ARRAY)
        return 0;
    return (unsigned int)(block->bytes / 4 < FILLED_WORDS ? block->bytes / 4 : FILLED_WORDS);
}

/* The block is there, with words of its own, or false. */
static bool request(size_t bytes, enum kind kind)
{
    struct block *block = &blocks[block_count];
    block->bytes = bytes;
    block->kind = kind;
    CUresult result = allocate(block);
    atomic_fetch_add(&self->requests, 1);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    if (result != CUDA_SUCCESS)
        FAIL("an allocation of %zu bytes, %s: CUDA error %u", bytes, kind_names[kind], result);
    hold(block->charged);
    block->value = (unsigned int)next_number(&random_state);
    if (words_of(block) > 0)
        fill(&kernels, stream, block->address, words_of(block), block->value);
    block_count++;
    return true;
}

/* The rule is broken. NEIGHBOURS_LOOK is a command that looks around at that moment. */
__attribute__((noreturn)) static void say_refused(size_t bytes, enum kind kind, uint64_t started)
{
    double ms = (double)(nanoseconds() - started) * 1e-6;
    uint64_t sum = atomic_load(&table->sum);
    const char *look = getenv("NEIGHBOURS_LOOK");
    for (unsigned int i = 0; look != NULL && i < table->processes; i++)
        fprintf(stderr, "process %u, pid %d: %llu KiB at most, in \"%s\"\n", i,
                (int)atomic_load(&table->slots[i].pid),
                (unsigned long long)atomic_load(&table->slots[i].held) / 1024,
                table->slots[i].doing);
    if (look != NULL && unsetenv("LD_PRELOAD") == 0 && system(look) != 0)
        fprintf(stderr, "neighbours: %s fails\n", look);
    give_up(
        3,
        "%zu bytes (%s) are refused after %.1f ms; without the pool all hold %llu of %llu bytes at "
        "most, these included, and this process %llu",
        bytes, kind_names[kind], ms, (unsigned long long)sum, (unsigned long long)table->total,
        (unsigned long long)atomic_load(&self->held));
}

/* A request that the device has room for, which must not fail, or, with anyway, one that may.
 * False: there is no such room, or it has failed. */
static bool take(size_t bytes, enum kind kind, bool anyway)
{
    uint64_t charge = charge_of(bytes, kind), exceeded = atomic_load(&table->exceeded);
    uint64_t started = nanoseconds();
    if (block_count == BLOCKS)
        return false;
    if (anyway)
        add_anyway(charge);
    else if (!add_what_fits(charge))
        return false;
    blocks[block_count].charged = charge;
    if (request(bytes, kind))
        return true;
    atomic_fetch_add(&self->refused, 1);
    if (!may_fail(exceeded, started))
        say_refused(bytes, kind, started);
    take_off(charge);
    return false;
}

static void synchronise(void)
{
    unsigned long long wrong;
    CU(cuStreamSynchronize(stream));
    take_off(unsynchronised);
    unsynchronised = 0;
    CU(cuMemcpyDtoH_v2(&wrong, mismatches, sizeof wrong));
    if (wrong != 0)
        give_up(3, "%llu words of its memory are not what it has written", wrong);
}

/* Without the pool a free waits for the kernel that verifies. */
static void release(unsigned int which)
{
    struct block block = blocks[which];
    blocks[which] = blocks[--block_count];
    if (words_of(&block) > 0)
        verify(&kernels, stream, block.address, words_of(&block), block.value, mismatches);
    hold_no_more(block.charged);
    CU(give_back(&block));
    if (block.kind == ASYNC)
        unsynchronised += block.charged;
    else
        take_off(block.charged);
}

static void release_all(void)
{
    while (block_count > 0)
        release(block_count - 1);
    synchronise();
}

/* ---- what it does ---- */

static size_t random_size(void)
{
    size_t bytes = PAGE << below(&random_state, table->largest_shift + 1);
    if (table->whole_pages)
        return bytes;
    return 1 + below(&random_state, below(&random_state, 4) == 0 ? 64 * 1024 : bytes);
}

static enum kind random_kind(void)
{
    if (below(&random_state, 4) == 0)
        return ASYNC;
    return table->grouped ? (enum kind)below(&random_state, KINDS) : PLAIN;
}

static void do_take(void)
{
    unsigned int many = 1 + (unsigned int)below(&random_state, 6);
    bool anyway = table->greedy || below(&random_state, 40) == 0;
    enum kind kind = random_kind();
    for (unsigned int i = 0; i < many; i++)
        take(kind == ASYNC ? stream_ordered_size : random_size(), kind, anyway);
}

/* As much as there is. */
static void do_take_all(void)
{
    size_t bytes = random_size();
    while (take(bytes, PLAIN, table->greedy))
        continue;
}

static void do_release(void)
{
    for (uint64_t i = below(&random_state, block_count + 1); i > 0; i--)
        release((unsigned int)below(&random_state, block_count));
}

static void do_hit(void)
{
    size_t bytes = random_size();
    for (int i = 0; i < 200; i++)
        if (take(bytes, PLAIN, false))
            release(block_count - 1);
}

static void do_sleep(void)
{
    usleep((useconds_t)below(&random_state, 60000));
}

static void do_long_sleep(void)
{
    release_all();
    usleep((useconds_t)below(&random_state, 400000));
}

/* What is freed next waits for it. */
static void do_kernel(void)
{
    spin(&kernels, stream, below(&random_state, 40) * 1000000);
}

static void do_wait(void)
{
    do_kernel();
    synchronise();
}

/* A child that has nothing to do with the device lives for a while, and ends one way or another. */
static void do_fork(void)
{
    uint64_t how = below(&random_state, 3), for_us = below(&random_state, 300000);
    atomic_fetch_add(&self->forks, 1);
    pid_t child = fork();
    if (child != 0)
        return;
    usleep((useconds_t)for_us);
    if (how == 0)
        execl("/bin/true", "true", (char *)NULL);
    if (how == 1)
        exit(0);
    _exit(0);
}

/* What it holds goes when the new program begins; that one takes it off the sum. */
static void do_execute(void)
{
    char slot[16];
    atomic_fetch_add(&self->executions, 1);
    snprintf(slot, sizeof slot, "%u", own_number);
    hold_no_more(atomic_load(&self->certain));
    if (table->grouped)
        unsure_at_least(self, nanoseconds() + GROUP_LEARNS);
    execl("/proc/self/exe", "neighbours", "--worker", slot, "1000", (char *)NULL);
    FAIL("execl: %s", strerror(errno));
}

/* With or without what it holds. */
static void do_end(void)
{
    if (below(&random_state, 2) == 0)
        release_all();
    hold_no_more(atomic_load(&self->certain));
    exit(0);
}

static const struct step {
    const char *name;
    void (*run)(void);
    unsigned int weight;
} steps[] = {
    {"take", do_take, 300},       {"take all", do_take_all, 20},
    {"release", do_release, 150}, {"release all", release_all, 40},
    {"hit", do_hit, 30},          {"synchronise", synchronise, 60},
    {"sleep", do_sleep, 20},      {"long sleep", do_long_sleep, 6},
    {"kernel", do_kernel, 12},    {"wait", do_wait, 6},
    {"fork", do_fork, 6},         {"execute", do_execute, 2},
    {"end", do_end, 2},
};

static void do_a_step(void)
{
    uint64_t weights = 0, chosen;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        weights += steps[i].weight;
    chosen = below(&random_state, weights);
    const struct step *step = steps;
    for (; chosen >= step->weight; step++)
        chosen -= step->weight;
    note(step->name);
    step->run();
}

/* All others are empty: one gets the whole device, however much they cache. */
static void take_the_device(void)
{
    size_t bytes = PAGE << table->largest_shift;
    note("take the device");
    for (; bytes >= PAGE; bytes /= 2)
        while (take(bytes, PLAIN, false))
            continue;
    note("give the device back");
    release_all();
}

/* What the driver needs for a process of its own is not part of the sum, and there is room for it
 * unless a request that need not be met has taken it: then the call is made again. */
#define CU_ONCE_THERE_IS_ROOM(call)                                                                \
    do {                                                                                           \
        uint64_t exceeded_, started_;                                                              \
        CUresult result_;                                                                          \
        do {                                                                                       \
            exceeded_ = atomic_load(&table->exceeded);                                             \
            started_ = nanoseconds();                                                              \
            result_ = (call);                                                                      \
        } while (result_ == CUDA_ERROR_OUT_OF_MEMORY && may_fail(exceeded_, started_));            \
        if (result_ != CUDA_SUCCESS)                                                               \
            FAIL("%s: CUDA error %u", #call, result_);                                             \
    } while (0)

static void open_device(void)
{
    CUdevice device;
    CUcontext context;
    const unsigned long long zero = 0;
    note("open the device");
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU_ONCE_THERE_IS_ROOM(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU_ONCE_THERE_IS_ROOM(cuModuleLoadData(&kernels.module, KERNELS_PTX));
    find_kernels(&kernels);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_ONCE_THERE_IS_ROOM(cuMemAlloc_v2(&mismatches, PAGE));
    hold(PAGE);
    CU(cuMemcpyHtoD_v2(mismatches, &zero, sizeof zero));
}

/* What to do changes when the starting process says so. */
static void follow_phases(void)
{
    uint32_t phase;
    while ((phase = atomic_load(&table->phase)) != PHASE_LEAVE) {
        if (phase == PHASE_LIVE) {
            do_a_step();
            continue;
        }
        if (phase == PHASE_EMPTY && atomic_load(&self->phase_done) != PHASE_EMPTY)
            release_all();
        if (phase == PHASE_TAKE && atomic_load(&table->taker) == own_number &&
            atomic_load(&self->phase_done) != PHASE_TAKE)
            take_the_device();
        atomic_store(&self->phase_done, phase);
        note("nothing");
        usleep(2000);
    }
}

int run_worker(unsigned int slot, unsigned int start)
{
    void *memory = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, TABLE_FD, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (memory == MAP_FAILED)
        return 4;
    signal(SIGCHLD, SIG_IGN);
    table = memory;
    own_number = slot;
    self = &table->slots[slot];
    atomic_store(&self->pid, getpid());
    random_state = table->seed * 1000003 + slot * 1009 + start + atomic_load(&self->executions);
    stream_ordered_size = random_size();
    /* What the program before it held, if it was the same process. */
    take_off(atomic_load(&self->held));
    atomic_store(&self->before, atomic_exchange(&self->peak, 0));
    open_device();
    follow_phases();
    return 0;
}
