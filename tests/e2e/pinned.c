/*
 * Pinned host memory as programs use it: one case for each thing that may happen to them meanwhile.
 *
 * usage: pinned CASE    pinned.sh says with which settings. Cases that need the pool say so by what
 *                       they expect of it.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "pool.h"

enum { WORDS = 1024, THREADS = 4, MANY = 10, ENDED = 40 };

static CUcontext context;
static struct kernels kernels;
static CUstream stream;
/* Relaxed: it carries no other word; joining the threads orders what they did. */
static atomic_int stop;

static void furnish(void)
{
    context = open_primary();
    load_kernels(&kernels);
    stream = new_stream();
    /* The driver has made its own threads by then. */
    spin(&kernels, stream, 1000);
    CU(cuCtxSynchronize());
}

static unsigned int *pin(size_t bytes)
{
    void *block = NULL;
    CU(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE));
    CHECK(block != NULL);
    return block;
}

static void unpin(void *block)
{
    CU(cuMemFreeHost(block));
}

static void fill_on_device(unsigned int *block, unsigned int value)
{
    fill(&kernels, stream, (uintptr_t)block, WORDS, value);
}

static void expect_words(const unsigned int *block, unsigned int value)
{
    for (int i = 0; i < WORDS; i++)
        EQUAL(value, block[i]);
}

/* Both sides can write it, and read what the other one has written. */
static void use(unsigned int *block, unsigned int value)
{
    CUdeviceptr wrong = new_counter();
    for (int i = 0; i < WORDS; i++)
        block[i] = value;
    spin_then_verify(&kernels, stream, 1000, (uintptr_t)block, WORDS, value, wrong);
    fill_on_device(block, value + 1);
    CU(cuStreamSynchronize(stream));
    EQUAL(0, read_counter(wrong));
    expect_words(block, value + 1);
    CU(cuMemFree_v2(wrong));
}

/* So many blocks are free, and all work is over. Each was written, so that it is memory. */
static void leave_cached(size_t bytes)
{
    unsigned int *blocks[MANY];
    for (int i = 0; i < MANY; i++)
        memset(blocks[i] = pin(bytes), i, bytes);
    for (int i = 0; i < MANY; i++)
        unpin(blocks[i]);
    CU(cuCtxSynchronize());
}

static void *in_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}

/* --- what is counted ---------------------------------------------------------------------------*/

/* 100 requests of 64 KiB, of which the first one misses, and one of 3 MiB that is not freed. */
static void counts(void)
{
    furnish();
    for (int i = 0; i < 100; i++) {
        unpin(pin(65536));
        CU(cuCtxSynchronize());
    }
    void *block;
    CU(cuMemAllocHost_v2(&block, 3 * MIB));
    use(block, 1);
}

/* For those who look from outside, until they end it. */
static void counts_and_waits(void)
{
    counts();
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    for (;;)
        pause();
}

/* What a block holds is the last owner's or nothing, and all of it can be read and written. */
static void contents(void)
{
    static const size_t sizes[] = {1, 513, 4096, 100000, MIB, 5 * MIB};
    furnish();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *block = (unsigned char *)pin(sizes[i]);
        memset(block, 0x5a, sizes[i]);
        unpin(block);
        CU(cuCtxSynchronize());
        unsigned char *again = (unsigned char *)pin(sizes[i]);
        if (has_pool())
            CHECK(again == block);
        for (size_t j = 0; j < sizes[i]; j++)
            CHECK(again[j] == 0x5a || again[j] == 0);
        memset(again, 1, sizes[i]);
        unpin(again);
    }
}

/* --- out of memory, with 64 MiB to pin
 * -----------------------------------------------------------*/

/* What is cached goes first, and so much as is missing; what a device has does not go. */
static void makes_room(void)
{
    furnish();
    CUdeviceptr block = take(40 * MIB);
    CU(cuMemFree_v2(block));
    leave_cached(5 * MIB);
    EQUAL(40 * MIB, pool_bytes().cached);
    unsigned int *large = pin(40 * MIB);
    use(large, 1);
    CHECK(pool_bytes().cached >= 40 * MIB);
    void *none = NULL;
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&none, 40 * MIB, 0));
    CHECK(pool_bytes().cached >= 40 * MIB);
    unpin(large);
    CU(cuCtxSynchronize());
    use(pin(50 * MIB), 3);
}

/* For memory that the program registers itself as well. */
static void makes_room_to_register(void)
{
    size_t bytes = 48 * MIB;
    void *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    furnish();
    leave_cached(5 * MIB);
    CU(cuMemHostRegister_v2(own, bytes, 0));
    use(own, 5);
    CU(cuMemHostUnregister(own));
}

/* Threads that each have room without the pool, since no more is in use at any time. */
static void *take_a_quarter(void *unused)
{
    CU(cuCtxSetCurrent(context));
    for (size_t i = 0; i < 60; i++) {
        unsigned int *block = pin((2 + 2 * (i % 6)) * MIB);
        block[0] = 1;
        unpin(block);
    }
    return unused;
}

static void makes_room_for_threads(void)
{
    pthread_t threads[THREADS];
    furnish();
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, take_a_quarter, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* --- idle blocks, with "release_after_idle" of a second
 * ------------------------------------------*/

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t gone_within(long ms, uint64_t before)
{
    for (; ms > 0 && simcuda_live_host_allocations() > before; ms -= 50)
        sleep_ms(50);
    return simcuda_live_host_allocations();
}

/* Nothing goes back while a kernel runs, and no launch waits for anything. */
static void idle(void)
{
    double longest = 0, until;
    furnish();
    CUstream other = new_stream();
    struct gate gate = new_gate();
    uint64_t before = simcuda_live_host_allocations();
    leave_cached(3 * MIB);
    EQUAL(before + MANY, simcuda_live_host_allocations());
    close_this_gate(gate, &kernels, stream);
    until = seconds_now() + 2.5;
    for (double now = seconds_now(); now < until;) {
        spin(&kernels, other, 1000);
        double then = seconds_now();
        longest = then - now > longest ? then - now : longest;
        sleep_ms(2);
        now = seconds_now();
    }
    EQUAL(before + MANY, simcuda_live_host_allocations());
    /* Not for as long as the kernel runs, which is longer than a slow machine takes. */
    CHECK(longest < 2);
    open_gate(gate);
    EQUAL(before, gone_within(4000, before));
}

/* --- a control group that is nearly full
 * -----------------------------------------------------------
 */

/* 10 blocks of 20 MiB, in a group that may have 256 MiB, beside which the program itself grows to
 * 180 MiB, and by 8 MiB in the time in which the pool is to look. */
static void grow(void)
{
    for (int i = 0; i < 45; i++) {
        char *more =
            mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(more != MAP_FAILED);
        memset(more, 1, 4 * MIB);
        sleep_ms(50);
    }
}

static void grows_beside_cached(void)
{
    furnish();
    leave_cached(20 * MIB);
    CHECK(simcuda_live_host_allocations() >= MANY);
    /* The housekeeper looks once a second as long as there is more than a quarter left. */
    sleep_ms(1500);
    grow();
    use(pin(MIB), 1);
}

/* Which the kernel ends, as the limit binds. */
static void grows_beside_live(void)
{
    furnish();
    for (int i = 0; i < MANY; i++)
        memset(pin(20 * MIB), 1, 20 * MIB);
    grow();
}

/* --- other processes -----------------------------------------------------------------------------
 */

static void wait_for(pid_t child, int status)
{
    int ended;
    CHECK(waitpid(child, &ended, 0) == child && WIFEXITED(ended));
    EQUAL((unsigned)status, (unsigned)WEXITSTATUS(ended));
}

/* The driver refuses a child, and so does the pool, which touches nothing. */
static void be_a_child(void *live)
{
    void *block;
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemHostAlloc(&block, MIB, 0));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemAllocHost_v2(&block, 4 * MIB));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemFreeHost(live));
    exit(3);
}

/* While the device writes to the parent's blocks, which stay where the device finds them. */
static void forks(void)
{
    static const size_t sizes[] = {8192, MIB, 4 * MIB, 20 * MIB};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    unsigned int *blocks[SIZES];
    furnish();
    leave_cached(4 * MIB);
    for (size_t i = 0; i < SIZES; i++)
        blocks[i] = pin(sizes[i]);
    for (unsigned int round = 0; round < 5; round++) {
        for (size_t i = 0; i < SIZES; i++) {
            memset(blocks[i], 0, sizes[i]);
            spin(&kernels, stream, 5000000);
            fill_on_device(blocks[i], 10 * round + 1);
        }
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            be_a_child(blocks[round % SIZES]);
        for (size_t i = 0; i < SIZES; i++)
            blocks[i][WORDS] = round; /* of a page that the device writes to */
        wait_for(child, 3);
        CU(cuCtxSynchronize());
        for (size_t i = 0; i < SIZES; i++) {
            expect_words(blocks[i], 10 * round + 1);
            use(blocks[i], 99);
        }
    }
    for (size_t i = 0; i < SIZES; i++)
        unpin(blocks[i]);
    CU(cuCtxSynchronize());
    for (size_t i = 0; i < SIZES; i++)
        use(pin(sizes[i]), 5);
}

/* --- threads that allocate meanwhile
 * ---------------------------------------------------------------
 */

static void churn_once(size_t i)
{
    static const size_t sizes[] = {4096, 65536, MIB, 3 * MIB};
    unsigned int *block = pin(sizes[i % 4]);
    block[0] = (unsigned int)i;
    if (i % 8 == 0)
        fill_on_device(block, 1);
    unpin(block);
}

static void *churn(void *unused)
{
    CU(cuCtxSetCurrent(context));
    for (size_t i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++)
        churn_once(i);
    return unused;
}

static pthread_t workers[THREADS];

static void start_all(void)
{
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i], NULL, churn, NULL) == 0);
    sleep_ms(5);
}

static void join_all(void)
{
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
}

static void exits_under_load(void)
{
    furnish();
    start_all();
    sleep_ms(20);
    exit(7);
}

static void executes_under_load(void)
{
    furnish();
    start_all();
    execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
    FAIL("no exec");
}

static void spawns_under_load(void)
{
    char *arguments[] = {"sh", "-c", "exit 3", NULL};
    furnish();
    start_all();
    for (int i = 0; i < 20; i++) {
        pid_t child;
        CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, NULL) == 0);
        wait_for(child, 3);
        child = vfork();
        if (child == 0) {
            execv("/bin/sh", arguments);
            _exit(9);
        }
        wait_for(child, 3);
    }
    join_all();
}

/* Relaxed: a count, which any thread's handler raises. */
static atomic_int signals;

static void count_signal(int number)
{
    int caller_errno = errno;
    (void)number;
    atomic_fetch_add_explicit(&signals, 1, memory_order_relaxed);
    errno = caller_errno;
}

/* Signals without SA_RESTART arrive in the middle of everything, and no call is the worse for it.
 */
static void is_interrupted(void)
{
    struct sigaction action = {.sa_handler = count_signal};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    furnish();
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    start_all();
    for (size_t i = 0; atomic_load_explicit(&signals, memory_order_relaxed) < 500; i++) {
        unpin(pin((1 + i % 9) * MIB));
        if (i % 16 == 0 && cudapool_trim != NULL)
            cudapool_trim();
    }
    join_all();
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    use(pin(4 * MIB), 1);
}

static void exit_now(int number)
{
    (void)number;
    exit(7); /* NOLINT(bugprone-signal-handler): what is tested */
}

static void exits_in_a_handler(void)
{
    struct timespec now;
    furnish();
    clock_gettime(CLOCK_MONOTONIC, &now);
    signal(SIGALRM, exit_now);
    struct itimerval soon = {{0, 0}, {0, 20000 + now.tv_nsec % 30000}};
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    for (size_t i = 0;; i++)
        churn_once(i);
}

/* --- threads that end
 * ------------------------------------------------------------------------------
 */

static void *take_one(void *bytes)
{
    CU(cuCtxSetCurrent(context));
    return pin(*(size_t *)bytes);
}

static void *give_one(void *block)
{
    CU(cuCtxSetCurrent(context));
    unpin(block);
    return NULL;
}

/* What ended threads have freed, others get; and what they have not freed stays. */
static void threads_end(void)
{
    size_t bytes = MIB;
    void *blocks[ENDED];
    furnish();
    uint64_t before = simcuda_live_host_allocations();
    for (int i = 0; i < ENDED; i++)
        use(blocks[i] = in_thread(take_one, &bytes), (unsigned int)i);
    for (int i = 0; i < ENDED; i++)
        in_thread(give_one, blocks[i]);
    CU(cuCtxSynchronize());
    EQUAL(before + (has_pool() ? ENDED : 0), simcuda_live_host_allocations());
    for (int i = 0; i < ENDED; i++)
        use(blocks[i] = pin(bytes), 7);
    EQUAL(before + ENDED, simcuda_live_host_allocations());
    for (int i = 0; i < ENDED; i++)
        unpin(blocks[i]);
    CU(cuCtxSynchronize());
    if (has_pool())
        CHECK(cudapool_trim() >= ENDED * MIB);
    EQUAL(before, simcuda_live_host_allocations());
}

static void *give_without_a_context(void *block)
{
    CUcontext none = NULL;
    CU(cuCtxGetCurrent(&none));
    CHECK(none == NULL);
    unpin(block);
    return NULL;
}

static void *give_in_another_context(void *block)
{
    CUcontext other;
    CU(cuCtxCreate_v2(&other, 0, 0));
    unpin(block);
    CU(cuCtxDestroy_v2(other));
    return NULL;
}

/* A free needs no context, and minds no other one. */
static void freed_elsewhere(void)
{
    furnish();
    uint64_t before = simcuda_live_host_allocations();
    for (unsigned int i = 0; i < 4; i++) {
        in_thread(give_without_a_context, pin((1 + i) * MIB));
        in_thread(give_in_another_context, pin((1 + i) * MIB));
    }
    CU(cuCtxSynchronize());
    if (has_pool())
        cudapool_trim();
    EQUAL(before, simcuda_live_host_allocations());
}

static volatile sig_atomic_t calls_made;

static pthread_mutex_t not_cancelled_yet = PTHREAD_MUTEX_INITIALIZER;

/* The calls in which the pool waits, maps and opens files: none is a place to be cancelled at. */
static void *churn_and_be_cancelled(void *unused)
{
    CU(cuCtxSetCurrent(context));
    pthread_mutex_lock(&not_cancelled_yet);
    pthread_mutex_unlock(&not_cancelled_yet);
    for (size_t i = 0; i < 40; i++) {
        unpin(pin((1 + i % 12) * MIB));
        if (i % 8 == 0 && cudapool_trim != NULL)
            cudapool_trim();
        calls_made++;
    }
    pthread_testcancel();
    return unused;
}

/* ThreadSanitizer makes each of these threads take seconds. */
#ifdef __SANITIZE_THREAD__
#define CANCELLED_THREADS 6
#else
#define CANCELLED_THREADS 20
#endif

/* A thread that is cancelled from the start ends where it says so itself: nothing stays locked, and
 * nothing gets lost. */
static void is_cancelled(void)
{
    furnish();
    uint64_t before = simcuda_live_host_allocations();
    for (int i = 0; i < CANCELLED_THREADS; i++) {
        pthread_t thread;
        void *result;
        calls_made = 0;
        pthread_mutex_lock(&not_cancelled_yet);
        CHECK(pthread_create(&thread, NULL, churn_and_be_cancelled, NULL) == 0);
        CHECK(pthread_cancel(thread) == 0);
        pthread_mutex_unlock(&not_cancelled_yet);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        EQUAL(40, (unsigned)calls_made);
    }
    CU(cuCtxSynchronize());
    if (has_pool())
        cudapool_trim();
    EQUAL(before, simcuda_live_host_allocations());
}

/* --- where no thread may be made
 * -------------------------------------------------------------------
 */

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

static void use_large_ones(void)
{
    for (unsigned int i = 0; i < 4; i++) {
        unsigned int *block = pin((64 + i) * MIB);
        use(block, i);
        unpin(block);
    }
    leave_cached(4 * MIB);
    use(pin(4 * MIB), 1);
}

static void sandboxed(void)
{
    furnish();
    forbid_clone(SECCOMP_RET_ERRNO | 1);
    use_large_ones();
}

/* Whoever tried would be killed. */
static void sandboxed_strictly(void)
{
    furnish();
    unpin(pin(4096));
    forbid_clone(0 /* SECCOMP_RET_KILL_THREAD */);
    use_large_ones();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"counts", counts},
        {"counts_and_waits", counts_and_waits},
        {"contents", contents},
        {"makes_room", makes_room},
        {"makes_room_to_register", makes_room_to_register},
        {"makes_room_for_threads", makes_room_for_threads},
        {"idle", idle},
        {"grows_beside_cached", grows_beside_cached},
        {"grows_beside_live", grows_beside_live},
        {"forks", forks},
        {"exits_under_load", exits_under_load},
        {"executes_under_load", executes_under_load},
        {"spawns_under_load", spawns_under_load},
        {"is_interrupted", is_interrupted},
        {"exits_in_a_handler", exits_in_a_handler},
        {"threads_end", threads_end},
        {"freed_elsewhere", freed_elsewhere},
        {"is_cancelled", is_cancelled},
        {"sandboxed", sandboxed},
        {"sandboxed_strictly", sandboxed_strictly},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
