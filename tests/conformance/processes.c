/*
 * Rows about several threads that call at a time, and several processes on one device.
 *
 * The other process is this program again ("conformance --obey"), without the pool: it reads
 * orders, a word and a number each, and answers each with a number.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../sim/simcuda.h"
#include "conformance.h"
#include "pinned.h"
#include "processes.h"

/* --- a thread that calls without end -----------------------------------------------------------*/

static atomic_bool caller_calls;

/* It takes memory, gives it back on a stream of its own, and asks events, as fast as it can. */
static void *call_without_end(void *unused)
{
    CUstream stream = NULL;
    CUevent event = NULL;
    (void)unused;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    event = new_event();
    for (int i = 0;; i++) {
        CUdeviceptr block = 0;
        cuMemAlloc_v2(&block, (size_t)(i % 5 + 1) * MIB);
        cuEventRecord(event, stream);
        cuEventQuery(event);
        cuMemFreeAsync(block, stream);
        cuEventQuery(event);
        if (i % 3 == 0)
            cuStreamSynchronize(stream);
        atomic_store(&caller_calls, true);
    }
    return NULL;
}

static void start_caller(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_without_end, NULL) == 0);
    while (!atomic_load(&caller_calls))
        sleep_ms(1);
}

/* --- the process that obeys --------------------------------------------------------------------*/

enum { BLOCKS = 8 };

static CUdeviceptr blocks[BLOCKS], filler;
static double given_ms; /* of the thread that gives memory back */

static double hold_blocks(size_t bytes)
{
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = allocate(bytes);
    return has_failed();
}

static double give_blocks(size_t unused)
{
    (void)unused;
    for (int i = 0; i < BLOCKS; i++)
        SUCCEEDS(cuMemFree_v2(blocks[i]));
    return has_failed();
}

/* All that is free but so many bytes; where that is in pieces, up to one and a half times as many
 * more. */
static double leave_only(size_t bytes)
{
    size_t all = free_memory();
    for (size_t less = 0; all > bytes + less && less <= bytes + bytes / 2; less += bytes / 8)
        if (cuMemAlloc_v2(&filler, all - bytes - less) == CUDA_SUCCESS)
            return 0;
    return 1;
}

static void answer(double number)
{
    printf("%.3f\n", number);
    fflush(stdout);
}

static void *give_blocks_back_elsewhere(void *unused)
{
    CUstream stream = NULL;
    double start;
    (void)unused;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    sleep_ms(50);
    start = now_ms();
    for (int i = 0; i < BLOCKS; i++)
        SUCCEEDS(cuMemFreeAsync(blocks[i], stream));
    SUCCEEDS(cuStreamSynchronize(stream));
    given_ms = now_ms() - start;
    answer(has_failed() ? -1 : given_ms);
    return NULL;
}

/* Two answers: how long it took another thread to give all blocks back, and then how long this one
 * has waited for the kernel. */
static double give_beside_a_kernel(size_t kernel_ms)
{
    pthread_t thread;
    double start = now_ms();
    spin(gpu.a, (double)kernel_ms);
    if (pthread_create(&thread, NULL, give_blocks_back_elsewhere, NULL) != 0)
        return -1;
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    start = now_ms() - start;
    pthread_join(thread, NULL);
    return has_failed() ? -1 : start;
}

/* A number made of its UUID, exact in a double. */
static double uuid_number(size_t device)
{
    CUuuid uuid;
    unsigned long long number = 0;
    SUCCEEDS(cuDeviceGetUuid_v2(&uuid, (CUdevice)device));
    for (unsigned int i = 0; i < sizeof uuid.bytes; i++)
        number = (number * 31 + (unsigned char)uuid.bytes[i]) % 1000003;
    return has_failed() ? -1 : (double)number;
}

/* Children that become another program; how many of them did not end well. */
static double fork_beside_caller(size_t count)
{
    unsigned int wrong = 0;
    start_caller();
    for (size_t i = 0; i < count; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            execlp("true", "true", (char *)NULL);
            _exit(127);
        }
        wrong += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    return wrong;
}

/* Several threads free one block at a time: how often it was not exactly one that did. */
enum { RACERS = 4 };

static CUdeviceptr contested;
static atomic_uint frees;
static pthread_barrier_t racers_ready;

static void *free_contested(void *unused)
{
    (void)unused;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    pthread_barrier_wait(&racers_ready);
    if (cuMemFree_v2(contested) == CUDA_SUCCESS)
        atomic_fetch_add(&frees, 1);
    return NULL;
}

static double free_at_a_time(size_t rounds)
{
    unsigned int wrong = 0;
    pthread_barrier_init(&racers_ready, NULL, RACERS);
    for (size_t i = 0; i < rounds; i++) {
        pthread_t threads[RACERS];
        atomic_store(&frees, 0);
        contested = allocate(4096);
        for (int t = 0; t < RACERS; t++)
            pthread_create(&threads[t], NULL, free_contested, NULL);
        for (int t = 0; t < RACERS; t++)
            pthread_join(threads[t], NULL);
        wrong += atomic_load(&frees) != 1;
    }
    return wrong;
}

static double end_by_exit(size_t us)
{
    start_caller();
    sleep_ms((double)us / 1000);
    exit(0);
}

static double end_at_once(size_t us)
{
    start_caller();
    sleep_ms((double)us / 1000);
    _exit(0);
}

static bool returns; /* from main, as soon as the order is over */

static double end_by_return(size_t us)
{
    start_caller();
    sleep_ms((double)us / 1000);
    returns = true;
    return 0;
}

static const struct order {
    const char *name;
    double (*follow)(size_t number);
} known_orders[] = {
    {"hold", hold_blocks},
    {"give", give_blocks},
    {"leave", leave_only},
    {"give_beside_a_kernel", give_beside_a_kernel},
    {"uuid", uuid_number},
    {"fork", fork_beside_caller},
    {"free_at_a_time", free_at_a_time},
    {"pinned", follow_pinned_order},
    {"exit", end_by_exit},
    {"_exit", end_at_once},
    {"return", end_by_return},
};

/* Where a driver hangs, the row sees the process end. */
enum { LASTS_S = 30 };

int obey(void)
{
    char name[32];
    size_t number;
    const char *wrong;
    alarm(LASTS_S);
    wrong = open_gpu();
    if (wrong != NULL) {
        fprintf(stderr, "the other process: %s\n", wrong);
        return 1;
    }
    answer(0);
    while (!returns && scanf("%31s %zu", name, &number) == 2)
        for (size_t i = 0; i < sizeof known_orders / sizeof *known_orders; i++)
            if (strcmp(known_orders[i].name, name) == 0)
                answer(known_orders[i].follow(number));
    return 0;
}

/* --- and who has it ----------------------------------------------------------------------------*/

struct process {
    pid_t pid; /* 0: it could not be started, and the row has said so */
    FILE *orders, *answers;
};

static double next_answer(struct process *process)
{
    double number = -1;
    if (process->pid == 0 || fscanf(process->answers, "%lf", &number) != 1)
        fail("the other process does not answer");
    return number;
}

static double ask(struct process *process, const char *name, size_t number)
{
    fprintf(process->orders, "%s %zu\n", name, number);
    fflush(process->orders);
    return next_answer(process);
}

/* Its exit status as waitpid says it; -1, and killed, if it takes longer than 20 s. */
static int wait_for_end(struct process *process)
{
    double start = now_ms();
    int status = -1;
    while (waitpid(process->pid, &status, WNOHANG) == 0) {
        if (now_ms() - start > 20000) {
            kill(process->pid, SIGKILL);
            waitpid(process->pid, &status, 0);
            status = -1;
            break;
        }
        sleep_ms(0.2);
    }
    fclose(process->orders);
    fclose(process->answers);
    process->pid = 0;
    return status;
}

static void end(struct process *process)
{
    kill(process->pid, SIGKILL);
    wait_for_end(process);
}

/* Without with_pool, the pool that this process may have is not the other's, who shows what the
 * driver does. */
static bool start(struct process *process, bool with_pool)
{
    const char *emulator = getenv("RUN_WITH");
    int to[2], from[2];
    if (!with_pool && simcuda_calls != NULL && getenv("SIMCUDA_SHARED") == NULL) {
        fail("the simulated driver wants SIMCUDA_SHARED=FILE in the environment");
        return false;
    }
    if (emulator != NULL && emulator[0] != '\0') {
        note("an emulator runs no other programs: nothing was checked");
        return false;
    }
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
        fail("no pipe");
        return false;
    }
    process->pid = fork();
    if (process->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        if (!with_pool)
            unsetenv("LD_PRELOAD");
        setenv("CUDAPOOL_REPORT", "none", 1);
        execl("/proc/self/exe", "conformance", "--obey", (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    process->orders = fdopen(to[1], "w");
    process->answers = fdopen(from[0], "r");
    if (fscanf(process->answers, "%*f") == 0 && !feof(process->answers))
        return true;
    fail("the other process ends with status %d", wait_for_end(process));
    return false;
}

static struct process helper;

bool ask_helper(const char *order, size_t number, double *reply)
{
    if (helper.pid == 0 && !start(&helper, true)) {
        helper.pid = 0;
        return false;
    }
    fprintf(helper.orders, "%s %zu\n", order, number);
    fflush(helper.orders);
    if (fscanf(helper.answers, "%lf", reply) != 1) {
        note("%s %zu: the other process ends with status %d", order, number, wait_for_end(&helper));
        *reply = -1;
    }
    return true;
}

void end_helper(void)
{
    if (helper.pid != 0)
        end(&helper);
}

/* --- rows: memory ------------------------------------------------------------------------------*/

/* Of the device, for blocks that a small device has room for and that show on a large one. */
static size_t block_bytes(void)
{
    size_t available, total = 0, bytes;
    SUCCEEDS(cuMemGetInfo_v2(&available, &total));
    bytes = total / 32 / (2 * MIB) * (2 * MIB);
    return bytes > 256 * MIB ? 256 * MIB : bytes;
}

/* What the driver's pools or the pool keep in this process they give back before they fail; it
 * would not be the other process's memory that can be had. */
static void give_back_what_is_kept(void)
{
    size_t available, total = 0;
    CUdeviceptr block;
    SUCCEEDS(cuMemGetInfo_v2(&available, &total));
    EXPECT(cuMemAlloc_v2(&block, total), CUDA_ERROR_OUT_OF_MEMORY);
}

/* How long it takes until so many bytes are free, in ms; 20 s at most. */
static double until_free(size_t bytes)
{
    double start = now_ms();
    while (free_memory() < bytes && now_ms() - start < 20000)
        sleep_ms(0.2);
    return now_ms() - start;
}

void memory_of_other_processes_is_missing(void)
{
    struct process other;
    size_t bytes = block_bytes(), before;
    if (!start(&other, false))
        return;
    before = free_memory();
    CHECK(ask(&other, "hold", bytes) == 0);
    CHECK(free_memory() <= before - BLOCKS * bytes);
    CHECK(free_memory() >= before - (BLOCKS + 1) * bytes);
    CHECK(ask(&other, "give", 0) == 0);
    CHECK(free_memory() >= before - bytes / 2);
    end(&other);
}

void memory_of_killed_processes_comes_back(void)
{
    struct process other;
    size_t bytes = block_bytes(), before;
    double killed_at, ended_after, back_after;
    if (!start(&other, false))
        return;
    before = free_memory();
    CHECK(ask(&other, "hold", bytes) == 0);
    CHECK(free_memory() <= before - BLOCKS * bytes);
    killed_at = now_ms();
    end(&other);
    ended_after = now_ms() - killed_at;
    until_free(before);
    back_after = now_ms() - killed_at;
    note("its parent knows of its end after %.1f ms, its memory is back after %.1f ms", ended_after,
         back_after);
    CHECK(back_after < 10000);
}

/* All but the blocks and two of their size is taken by the other process: six of them can't be had
 * until it gives its blocks back, while it waits for a kernel; then they can, at once. */
void memory_given_beside_a_kernel_can_be_had(void)
{
    struct process other;
    size_t bytes = block_bytes(), before;
    CUdeviceptr block = 0;
    double given, had, waited;
    if (!start(&other, false))
        return;
    before = free_memory();
    SUCCEEDS(cuCtxSynchronize());
    give_back_what_is_kept();
    CHECK(ask(&other, "hold", bytes) == 0);
    CHECK(ask(&other, "leave", 2 * bytes) == 0);
    EXPECT(cuMemAlloc_v2(&block, 6 * bytes), CUDA_ERROR_OUT_OF_MEMORY);
    given = ask(&other, "give_beside_a_kernel", 1000);
    had = now_ms();
    SUCCEEDS(cuMemAlloc_v2(&block, 6 * bytes));
    had = now_ms() - had;
    waited = next_answer(&other);
    note("given back in %.1f ms, had in %.1f ms, while a thread waited %.0f ms", given, had,
         waited);
    TOOK(had, 1000, false);
    CHECK(given >= 0);
    TOOK(given, 1000, false);
    TOOK(waited, 1000, true);
    SUCCEEDS(cuMemFree_v2(block));
    end(&other);
    until_free(before);
}

void devices_have_one_uuid_in_all_processes(void)
{
    struct process other;
    double mine = uuid_number((size_t)gpu.device);
    if (!start(&other, false))
        return;
    CHECK(ask(&other, "uuid", (size_t)gpu.device) == mine);
    end(&other);
}

/* --- rows: threads -----------------------------------------------------------------------------*/

/* What a thread of its own does beside one that waits, and how long each call takes. */
enum beside { PUSH, RECORD, RUNS, FREE_ASYNC, SYNCHRONIZE, INFO, POP, CALLS_BESIDE };

static const char *const beside_names[CALLS_BESIDE] = {
    "cuCtxPushCurrent",    "cuCtxRecordEvent", "cuEventQuery",    "cuMemFreeAsync",
    "cuStreamSynchronize", "cuMemGetInfo",     "cuCtxPopCurrent",
};

static struct {
    CUevent event;
    CUdeviceptr block;
    CUstream stream;
    CUresult answers[CALLS_BESIDE];
    double ms[CALLS_BESIDE];
} beside;

static CUresult call_beside(enum beside call)
{
    size_t available, total;
    CUcontext context;
    switch (call) {
    case PUSH:
        return cuCtxPushCurrent_v2(gpu.context);
    case RECORD:
        return cuCtxRecordEvent(gpu.context, beside.event);
    case RUNS:
        return cuEventQuery(beside.event);
    case FREE_ASYNC:
        return cuMemFreeAsync(beside.block, beside.stream);
    case SYNCHRONIZE:
        return cuStreamSynchronize(beside.stream);
    case INFO:
        return cuMemGetInfo_v2(&available, &total);
    case POP:
        return cuCtxPopCurrent_v2(&context);
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

static void *call_beside_a_wait(void *unused)
{
    (void)unused;
    sleep_ms(20);
    for (unsigned int i = 0; i < CALLS_BESIDE; i++) {
        double start = now_ms();
        beside.answers[i] = call_beside(i);
        beside.ms[i] = now_ms() - start;
    }
    return NULL;
}

/* None of its calls waits for the kernel that the first thread waits for, nor for that thread. */
static void check_calls_beside(CUresult (*wait)(void))
{
    pthread_t thread;
    double start = now_ms(), waited;
    size_t before;
    beside.event = new_event();
    beside.block = allocate(64 * MIB);
    SUCCEEDS(cuStreamCreate(&beside.stream, CU_STREAM_NON_BLOCKING));
    before = free_memory();
    spin(gpu.a, 500);
    if (pthread_create(&thread, NULL, call_beside_a_wait, NULL) != 0)
        fail("no thread");
    SUCCEEDS(wait());
    waited = now_ms() - start;
    pthread_join(thread, NULL);
    TOOK(waited, 500, true);
    for (unsigned int i = 0; i < CALLS_BESIDE; i++) {
        expect_at(__LINE__, beside_names[i], beside.answers[i],
                  i == RUNS ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
        if (beside.ms[i] > 500.0 / 3)
            note("%s took %.1f ms", beside_names[i], beside.ms[i]);
        TOOK(beside.ms[i], 500, false);
    }
    CHECK(free_memory() >= before + 60 * MIB);
    SUCCEEDS(cuEventQuery(beside.event));
    SUCCEEDS(cuEventDestroy_v2(beside.event));
    SUCCEEDS(cuStreamDestroy_v2(beside.stream));
}

static CUresult wait_for_stream(void)
{
    return cuStreamSynchronize(gpu.a);
}

void other_threads_may_call_beside_a_stream_wait(void)
{
    check_calls_beside(wait_for_stream);
}

void other_threads_may_call_beside_a_context_wait(void)
{
    check_calls_beside(cuCtxSynchronize);
}

static void *call_relaxed(void *unused)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    size_t available, total;
    (void)unused;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    SUCCEEDS(cuMemFreeAsync(beside.block, beside.stream));
    SUCCEEDS(cuStreamSynchronize(beside.stream));
    SUCCEEDS(cuEventQuery(beside.event));
    SUCCEEDS(cuMemGetInfo_v2(&available, &total));
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    return NULL;
}

/* A thread that has the relaxed mode disturbs no capture of another thread, whatever that one's. */
void relaxed_threads_spare_others_captures(void)
{
    beside.event = new_event();
    SUCCEEDS(cuStreamCreate(&beside.stream, CU_STREAM_NON_BLOCKING));
    for (unsigned int mode = 0; mode < MODES; mode++) {
        pthread_t thread;
        size_t before;
        beside.block = allocate(64 * MIB);
        SUCCEEDS(cuEventRecord(beside.event, gpu.b));
        SUCCEEDS(cuStreamSynchronize(gpu.b));
        before = free_memory();
        begin(mode);
        spin(gpu.a, 0);
        pthread_create(&thread, NULL, call_relaxed, NULL);
        pthread_join(thread, NULL);
        spin(gpu.a, 0);
        CHECK(free_memory() >= before + 60 * MIB);
        END(true, "calls in another, relaxed thread", mode);
    }
    SUCCEEDS(cuEventDestroy_v2(beside.event));
    SUCCEEDS(cuStreamDestroy_v2(beside.stream));
}

/* --- rows: the end of a process ----------------------------------------------------------------*/

enum { ENDS = 5 };

/* Ends it in the middle of the thread's calls, at another moment each time. */
static bool end_beside_caller(const char *way, unsigned int number)
{
    struct process other;
    int status;
    if (!start(&other, true))
        return false;
    fprintf(other.orders, "%s %u\n", way, 200 * number);
    fflush(other.orders);
    status = wait_for_end(&other);
    if (status != 0)
        fail("%s, with a thread in the driver: status %d, not 0", way, status);
    return true;
}

/* With the pool, the other process has it, too. */
void processes_end_beside_a_calling_thread(void)
{
    static const char *const ways[] = {"exit", "_exit", "return"};
    double start = now_ms();
    for (unsigned int i = 0; i < ENDS * 3; i++)
        if (!end_beside_caller(ways[i % 3], i))
            return;
    note("%u processes of %.0f ms", ENDS * 3, (now_ms() - start) / (ENDS * 3));
}

void processes_fork_beside_a_calling_thread(void)
{
    struct process other;
    if (!start(&other, true))
        return;
    CHECK(ask(&other, "fork", 30) == 0);
    end(&other);
}

/* --- what programs must not do -----------------------------------------------------------------*/

/* A real driver may crash; with the pool one of them frees, and the others are refused. */
void several_threads_free_one_block(void)
{
    struct process other;
    double wrong = -1;
    int status;
    if (!start(&other, true))
        return;
    fprintf(other.orders, "free_at_a_time 100\n");
    fclose(other.orders);
    other.orders = fopen("/dev/null", "w");
    if (fscanf(other.answers, "%lf", &wrong) != 1)
        wrong = -1;
    status = wait_for_end(&other);
    if (WIFSIGNALED(status))
        note("the driver ends the process by signal %d", WTERMSIG(status));
    else
        note("in %.0f of 100 rounds it was not one that freed it", wrong);
    CHECK(!gpu.pool || (wrong == 0 && status == 0));
}

/* A child asks for memory and frees its parent's; not in a stream's order: that a driver may serve
 * from what it shares with the parent (seen on an H200), which then ends with a fault. */
static const char *const forked_calls[] = {"cuMemAlloc", "cuMemFree", "cuMemGetInfo"};

static CUresult call_in_child(unsigned int call, CUdeviceptr parents)
{
    CUdeviceptr address = 0;
    size_t available, total;
    switch (call) {
    case 0:
        return cuMemAlloc_v2(&address, MIB);
    case 1:
        return cuMemFree_v2(parents);
    default:
        return cuMemGetInfo_v2(&available, &total);
    }
}

/* What the child is answered; -1 if it does not come to its end in time, or crashes. */
static int ask_child(unsigned int call, CUdeviceptr parents)
{
    int answers[2], answer_of_child = -1;
    pid_t child;
    if (pipe2(answers, O_CLOEXEC) != 0 || (child = fork()) < 0)
        return -1;
    if (child == 0) {
        int result;
        alarm(5);
        result = (int)call_in_child(call, parents);
        _exit(write(answers[1], &result, sizeof result) != sizeof result);
    }
    close(answers[1]);
    if (read(answers[0], &answer_of_child, sizeof answer_of_child) != sizeof answer_of_child)
        answer_of_child = -1;
    close(answers[0]);
    waitpid(child, NULL, 0);
    return answer_of_child;
}

void children_of_a_fork_have_no_memory(void)
{
    CUdeviceptr parents = allocate(MIB);
    for (unsigned int i = 0; i < sizeof forked_calls / sizeof *forked_calls; i++) {
        int answer_of_child = ask_child(i, parents);
        note("%s in the child of a fork: %s", forked_calls[i],
             answer_of_child < 0 ? "it does not end well" : name_of((CUresult)answer_of_child));
        if (answer_of_child == 0)
            fail("%s in the child of a fork: expected an error", forked_calls[i]);
    }
    SUCCEEDS(cuMemFree_v2(parents));
}
