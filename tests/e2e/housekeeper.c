/*
 * The pool's own thread: what is idle goes back by the clock, and what a program may do meanwhile.
 *
 * usage: housekeeper CASE    with "release_after_idle" of a second in both kinds, unless it says so
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "pool.h"

enum { MANY = 16 };

#define SPAN_MS 1000 /* release_after_idle */

static struct kernels kernels;
static CUcontext current;
static CUstream stream;

static void furnish(void)
{
    current = open_primary();
    load_kernels(&kernels);
    stream = new_stream();
    /* The driver has made its own threads by then. */
    spin(&kernels, stream, 1000);
    CU(cuCtxSynchronize());
}

/* ---- the thread, as the kernel sees it ---- */

/* The number in one of its lines in status. */
static unsigned long number_in_status(const char *task, const char *key)
{
    char path[300], line[256];
    unsigned long number = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            number = strtoul(line + strlen(key), NULL, strncmp(key, "Sig", 3) == 0 ? 16 : 10);
    if (file)
        fclose(file);
    return number;
}

static bool is_named(const char *task, const char *wanted)
{
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
    FILE *file = fopen(path, "r");
    bool is = file && fgets(name, sizeof name, file) &&
              strncmp(name, wanted, strlen(wanted)) == 0 && name[strlen(wanted)] == '\n';
    if (file)
        fclose(file);
    return is;
}

/* Its number, as a word; false: there is none. */
static bool find_thread(char *task, size_t bytes)
{
    DIR *tasks = opendir("/proc/self/task");
    bool found = false;
    CHECK(tasks != NULL);
    for (struct dirent *entry; !found && (entry = readdir(tasks)) != NULL;)
        if (entry->d_name[0] != '.' && is_named(entry->d_name, "cudapool")) {
            snprintf(task, bytes, "%.20s", entry->d_name);
            found = true;
        }
    closedir(tasks);
    return found;
}

static bool has_thread(void)
{
    char task[32];
    return find_thread(task, sizeof task);
}

static bool has_thread_within(long ms, bool wanted)
{
    for (; ms > 0 && has_thread() != wanted; ms -= 10)
        sleep_ms(10);
    return has_thread() == wanted;
}

/* How often it has slept. */
static unsigned long wakes(void)
{
    char task[32];
    CHECK(find_thread(task, sizeof task));
    return number_in_status(task, "voluntary_ctxt_switches:");
}

/* ---- what cases are made of ---- */

static uint64_t kept(void)
{
    struct cudapool_bytes bytes = pool_bytes();
    return bytes.cached + bytes.pending;
}

static void free_many(size_t bytes)
{
    CUdeviceptr blocks[MANY];
    for (int i = 0; i < MANY; i++)
        blocks[i] = take(bytes);
    for (int i = 0; i < MANY; i++)
        CU(cuMemFree_v2(blocks[i]));
}

static void free_many_on_stream(size_t bytes)
{
    CUdeviceptr blocks[MANY];
    for (int i = 0; i < MANY; i++)
        blocks[i] = take_on(stream, bytes);
    for (int i = 0; i < MANY; i++)
        CU(cuMemFreeAsync(blocks[i], stream));
}

/* Nothing is kept that long after, and not much sooner either. */
static void expect_gone(void)
{
    double start = now_ms();
    CHECK(kept() != 0);
    sleep_ms(SPAN_MS / 2);
    bool there = kept() != 0;
    CHECK(there || now_ms() - start > 0.75 * SPAN_MS); /* the machine is slow */
    for (int i = 0; i < 40 && kept() != 0; i++)
        sleep_ms(100);
    EQUAL(0, kept());
}

/* ---- idle by the clock ---- */

static unsigned long long live_allocations(void)
{
    return simcuda_live_allocations != NULL ? simcuda_live_allocations() : 0;
}

/* No call of the program's after the last free. */
static void sleeps(void)
{
    furnish();
    free_many(MIB);
    expect_gone();
    /* What is kept no more may still be on its way to the driver. */
    for (int i = 0; i < 40 && live_allocations() != 0; i++)
        sleep_ms(100);
    EQUAL(0, live_allocations());
}

static void sleeps_stream_ordered(void)
{
    furnish();
    free_many_on_stream(MIB);
    expect_gone();
}

/* Large blocks lie in no thread's cache. */
static void sleeps_large(void)
{
    furnish();
    free_many(40 * MIB);
    expect_gone();
}

static void *take_and_free(void *bytes)
{
    CU(cuCtxSetCurrent(current));
    free_many(*(size_t *)bytes);
    return NULL;
}

/* What a thread leaves that has gone. */
static void thread_goes(void)
{
    static size_t bytes = MIB;
    pthread_t thread;
    furnish();
    CHECK(pthread_create(&thread, NULL, take_and_free, &bytes) == 0);
    pthread_join(thread, NULL);
    expect_gone();
}

static void *synchronise(void *ordered)
{
    CU(cuCtxSetCurrent(current));
    CU(ordered ? cuCtxSynchronize() : cuStreamSynchronize(stream));
    return NULL;
}

/* The program's thread sits in a synchronise, and what it freed before its kernel goes back. */
static void synchronises(void)
{
    pthread_t thread;
    furnish();
    free_many(MIB);
    CU(cuCtxSynchronize());
    struct gate gate = close_gate(&kernels, stream);
    CHECK(pthread_create(&thread, NULL, synchronise, NULL) == 0);
    expect_gone();
    open_gate(gate);
    pthread_join(thread, NULL);
}

/* What is behind a kernel stays until that is over, and goes then, although nobody asks. */
static void pending(void)
{
    furnish();
    struct gate gate = close_gate(&kernels, stream);
    free_many(MIB);
    free_many_on_stream(MIB);
    for (int i = 0; i < 30; i++)
        sleep_ms(100);
    EQUAL(2 * MANY * MIB, kept());
    open_gate(gate);
    for (int i = 0; i < 40 && kept() != 0; i++)
        sleep_ms(100);
    EQUAL(0, kept());
}

static double microseconds_since(const struct timespec *then)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) * 1e6 + (double)(now.tv_nsec - then->tv_nsec) / 1e3;
}

/* A loop on one size: the other sizes go back, and this one's block stays. */
static void loops(void)
{
    struct timespec started;
    uint64_t calls = 0;
    furnish();
    free_many(MIB);
    clock_gettime(CLOCK_MONOTONIC, &started);
    for (double now = 0; now < 4e6; now = microseconds_since(&started)) {
        CU(cuMemFree_v2(take(4 * MIB)));
        CU(cuMemFreeAsync(take_on(stream, 4 * MIB), stream));
        sleep_ms(20);
        if (now < 5e5 && simcuda_calls != NULL)
            calls = simcuda_calls("cuMemAlloc_v2") + simcuda_calls("cuMemAllocFromPoolAsync");
    }
    if (simcuda_live_allocations != NULL)
        EQUAL(kept() / (4 * MIB), simcuda_live_allocations());
    CHECK(kept() >= 8 * MIB);
    if (simcuda_calls != NULL)
        EQUAL(calls, simcuda_calls("cuMemAlloc_v2") + simcuda_calls("cuMemAllocFromPoolAsync"));
}

/* ---- wakes ---- */

/* Default settings, so that nothing goes back meanwhile. */
static void wakes_once_a_second(void)
{
    furnish();
    free_many(MIB);
    CHECK(has_thread_within(1000, true));
    sleep_ms(1500);
    unsigned long before = wakes();
    sleep_ms(4000);
    unsigned long after = wakes();
    CHECK(after - before >= 3 && after - before <= 6);
}

/* While nothing is cached there is none; and there is one again with the next free, of whichever
 * thread and kind. */
static void ends(void)
{
    static size_t bytes = 4096;
    pthread_t thread;
    furnish();
    CUdeviceptr held = take(MANY * MIB), small[4];
    CHECK(has_thread_within(1000, true));
    CHECK(has_thread_within(4000, false));
    CU(cuMemFree_v2(held));
    CHECK(has_thread_within(1000, true));
    for (int i = 0; i < 40 && kept() != 0; i++)
        sleep_ms(100);
    CHECK(has_thread_within(4000, false));
    for (int i = 0; i < 4; i++)
        small[i] = take(65536);
    CU(cuMemFree_v2(small[0]));
    CHECK(has_thread_within(1000, true));
    expect_gone();
    CHECK(has_thread_within(4000, false));
    CU(cuMemFree_v2(small[1]));
    CHECK(has_thread_within(1000, true));
    expect_gone();
    CHECK(has_thread_within(4000, false));
    CHECK(pthread_create(&thread, NULL, take_and_free, &bytes) == 0);
    pthread_join(thread, NULL);
    CHECK(has_thread_within(1000, true));
    CHECK(has_thread_within(6000, false));
    CUdeviceptr on_stream = take_on(stream, MIB);
    CU(cuMemFreeAsync(on_stream, stream));
    CHECK(has_thread_within(1000, true));
}

/* A process that takes little has none, nor one with "neighbours": {"enabled": false}. */
static void has_none(void)
{
    furnish();
    for (int i = 0; i < 100; i++)
        CU(cuMemFree_v2(take(65536)));
    sleep_ms(100);
    CHECK(!has_thread());
}

static void is_switched_off(void)
{
    furnish();
    free_many(MIB);
    free_many(40 * MIB);
    free_many_on_stream(MIB);
    sleep_ms(100);
    CHECK(!has_thread());
}

static void blocks_signals(void)
{
    char task[32];
    furnish();
    free_many(MIB);
    CHECK(has_thread_within(1000, true) && find_thread(task, sizeof task));
    unsigned long blocked = number_in_status(task, "SigBlk:");
    CHECK(blocked >> (SIGUSR1 - 1) & 1 && blocked >> (SIGTERM - 1) & 1);
    CHECK(!(blocked >> (SIGSEGV - 1) & 1) && !(blocked >> (SIGBUS - 1) & 1));
    sigset_t own;
    sigprocmask(SIG_SETMASK, NULL, &own);
    CHECK(!sigismember(&own, SIGUSR1));
}

/* ---- what a program may do meanwhile ---- */

static void wait_for_exit(pid_t child, int expected)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    EQUAL((unsigned)expected, (unsigned)WEXITSTATUS(status));
}

static void forks(void)
{
    furnish();
    free_many(MIB);
    CHECK(has_thread_within(1000, true));
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr address;
        for (int i = 0; i < 100; i++)
            cuMemAlloc_v2(&address, MIB);
        sleep_ms(1500);
        exit(has_thread() ? 1 : 3);
    }
    wait_for_exit(child, 3);
    child = vfork();
    if (child == 0)
        _exit(4);
    wait_for_exit(child, 4);
    free_many(MIB);
    expect_gone();
}

static void executes(void)
{
    furnish();
    free_many(MIB);
    CHECK(has_thread_within(1000, true));
    execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
    FAIL("no exec");
}

static void becomes_a_daemon(void)
{
    pid_t child = fork();
    if (child == 0) {
        if (fork() != 0)
            _exit(0);
        furnish();
        free_many(MIB);
        expect_gone();
        return;
    }
    wait_for_exit(child, 0);
}

static void exit_now(int signal)
{
    (void)signal;
    exit(7); /* NOLINT(bugprone-signal-handler): what is tested */
}

/* In the middle of whatever the housekeeper does, which is busy. */
static void exits_in_a_handler(void)
{
    furnish();
    signal(SIGALRM, exit_now);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct itimerval soon = {{0, 0}, {1, now.tv_nsec % 50000}};
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    for (;;)
        free_many(40 * MIB);
}

static void *ends_contexts(void *unused)
{
    for (int i = 0; i < 200; i++) {
        CUcontext context;
        CU(cuCtxCreate_v2(&context, 0, 0));
        CUdeviceptr block = take(MIB);
        CU(cuMemFree_v2(block));
        sleep_ms(15);
        CU(cuCtxDestroy_v2(context));
    }
    return unused;
}

/* Contexts end while the housekeeper looks at them: it looks often. */
static void contexts_end(void)
{
    pthread_t threads[2];
    furnish();
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, ends_contexts, NULL) == 0);
    for (int i = 0; i < 300; i++) {
        free_many(40 * MIB);
        sleep_ms(10);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* A capture that never ends. What is clean goes back all the same, and the capture lives. */
static void captures(void)
{
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;
    furnish();
    free_many(MIB);
    free_many_on_stream(MIB);
    CU(cuCtxSynchronize());
    CUstream captured = new_stream();
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    expect_gone();
    CU(cuStreamIsCapturing(captured, &status));
    EQUAL(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
    CU(cuStreamEndCapture(captured, &graph));
    CHECK(graph != NULL);
}

static void fills_limit(void)
{
    struct rlimit none = {0, 0};
    furnish();
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    /* Which binds nobody with rights. */
    CHECK(geteuid() != 0 || setuid(65534) == 0);
    free_many(MIB);
    sleep_ms(100);
    CHECK(!has_thread());
    for (int i = 0; i < 400; i++)
        free_many(65536);
}

static void forbid_clone(unsigned int answer)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number of the call */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435, 1, 0), /* clone3 */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, answer),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* From before the pool starts: an error is all that it gets. Entered later: not even tried. */
static void sandboxed_early(void)
{
    forbid_clone(SECCOMP_RET_ERRNO | 1);
    current = open_primary();
    free_many(MIB);
    sleep_ms(100);
    CHECK(!has_thread());
}

static void sandboxed_late(void)
{
    furnish();
    CUdeviceptr small = take(65536);
    CU(cuMemFree_v2(small));
    forbid_clone(0 /* SECCOMP_RET_KILL_THREAD */);
    free_many(MIB);
    sleep_ms(100);
    CHECK(!has_thread());
}

/* A filter is there from the start, which allows all of this: that of a container. */
static void sandboxed_in_a_container(void)
{
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof allow / sizeof allow[0], allow};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return; /* for whoever administers the system */
    sandboxed_late();
}

/* The C library has every thread do it. */
static void changes_user(void)
{
    furnish();
    free_many(MIB);
    CHECK(has_thread_within(1000, true));
    CHECK(setgid(getgid()) == 0 && setuid(getuid()) == 0);
    CHECK(setresuid((uid_t)-1, getuid(), (uid_t)-1) == 0);
    expect_gone();
}

static void *outlives(void *unused)
{
    sleep_ms(200);
    CU(cuCtxSetCurrent(current));
    free_many(MIB);
    expect_gone();
    exit(6);
    return unused;
}

static void main_thread_goes(void)
{
    pthread_t thread;
    furnish();
    free_many(MIB);
    CHECK(pthread_create(&thread, NULL, outlives, NULL) == 0);
    pthread_exit(NULL);
}

/* ---- neighbours, on a device of 256 MiB that all share, or of 2 GiB ---- */

static pid_t start_neighbour(const char *what)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "housekeeper", what, (char *)NULL);
        _exit(9);
    }
    return child;
}

/* Almost all that the device has, in one piece. */
static void takes_it_all(void)
{
    size_t left, total;
    current = open_primary();
    CU(cuMemGetInfo_v2(&left, &total));
    CU(cuMemFree_v2(take(total - 48 * MIB)));
}

/* What one has freed and caches, another gets, whatever the first one's thread does: it sleeps. */
static void gives_asleep(void)
{
    furnish();
    free_many(8 * MIB);
    free_many_on_stream(4 * MIB);
    CU(cuCtxSynchronize());
    CHECK(kept() >= 190 * MIB);
    wait_for_exit(start_neighbour("takes_it_all"), 0);
    CHECK(kept() < 64 * MIB);
}

/* It hits in a loop. */
static void gives_in_a_loop(void)
{
    int status;
    furnish();
    free_many(12 * MIB);
    CU(cuCtxSynchronize());
    pid_t child = start_neighbour("takes_it_all");
    while (waitpid(child, &status, WNOHANG) == 0)
        CU(cuMemFree_v2(take(12 * MIB)));
    CHECK(WIFEXITED(status));
    EQUAL(0, (unsigned)WEXITSTATUS(status));
}

static void *open_soon(void *gate)
{
    sleep_ms(1000);
    open_gate(*(struct gate *)gate);
    return NULL;
}

/* It has freed all behind work that goes on for another second. What it has freed in its stream's
 * order, for which nobody waits, is not among it. */
static void gives_what_is_pending(void)
{
    pthread_t thread;
    furnish();
    struct gate gate = close_gate(&kernels, stream);
    CHECK(pthread_create(&thread, NULL, open_soon, &gate) == 0);
    free_many(6 * MIB);
    CHECK(pool_bytes().pending >= 90 * MIB);
    wait_for_exit(start_neighbour("takes_it_all"), 0);
    pthread_join(thread, NULL);
}

/* A neighbour without the pool cannot ask; while it grows, some is left free for it. */
static void grows(void)
{
    CUdeviceptr block;
    current = open_primary();
    for (int i = 0; i < 4; i++) {
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
        for (int tries = 0; tries < 25 && result == CUDA_ERROR_OUT_OF_MEMORY; tries++) {
            result = cuMemAlloc_v2(&block, 16 * MIB);
            if (result != CUDA_SUCCESS)
                sleep_ms(100);
        }
        CU(result);
    }
}

static void keep_much(size_t live)
{
    furnish();
    take(live);
    /* It has seen by then what others have. */
    CHECK(has_thread_within(1000, true));
    sleep_ms(300);
    free_many(8 * MIB);
    free_many_on_stream(4 * MIB);
    CU(cuCtxSynchronize());
    CHECK(kept() >= 190 * MIB);
}

static void leaves_free(void)
{
    keep_much(24 * MIB);
    sleep_ms(100);
    unsetenv("LD_PRELOAD");
    wait_for_exit(start_neighbour("grows"), 0);
    CHECK(kept() != 0);
}

/* Alone, nothing is given back, however little is left. */
static void fills_it_alone(void)
{
    keep_much(40 * MIB);
    sleep_ms(2500);
    CHECK(kept() >= 190 * MIB);
}

static const struct test_case cases[] = {
    {"takes_it_all", takes_it_all},
    {"gives_asleep", gives_asleep},
    {"gives_in_a_loop", gives_in_a_loop},
    {"gives_what_is_pending", gives_what_is_pending},
    {"grows", grows},
    {"leaves_free", leaves_free},
    {"fills_it_alone", fills_it_alone},
    {"sleeps", sleeps},
    {"sleeps_stream_ordered", sleeps_stream_ordered},
    {"sleeps_large", sleeps_large},
    {"thread_goes", thread_goes},
    {"synchronises", synchronises},
    {"pending", pending},
    {"loops", loops},
    {"wakes_once_a_second", wakes_once_a_second},
    {"ends", ends},
    {"has_none", has_none},
    {"is_switched_off", is_switched_off},
    {"blocks_signals", blocks_signals},
    {"forks", forks},
    {"executes", executes},
    {"becomes_a_daemon", becomes_a_daemon},
    {"exits_in_a_handler", exits_in_a_handler},
    {"contexts_end", contexts_end},
    {"captures", captures},
    {"fills_limit", fills_limit},
    {"sandboxed_early", sandboxed_early},
    {"sandboxed_late", sandboxed_late},
    {"sandboxed_in_a_container", sandboxed_in_a_container},
    {"changes_user", changes_user},
    {"main_thread_goes", main_thread_goes},
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_case(argc, argv, cases);
}
