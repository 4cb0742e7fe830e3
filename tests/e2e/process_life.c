/*
 * Lives and ends of processes, and programs that use the driver as nobody should: no crash, no
 * hang, no wrong result, with the pool as without.
 */
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "pool.h"

enum { THREADS = 4, WORDS = 256, BYTES = WORDS * 4 };

static CUcontext context;
static struct kernels kernels;
static atomic_bool stop;
/* Calls may fail from here on: a context is ending. */
static atomic_bool may_fail;

static void open_device(void)
{
    context = open_primary();
    load_kernels(&kernels);
}

/* --- threads that allocate
 * ----------------------------------------------------------------------*/

/* A block of pinned memory is taken and freed. */
static CUresult churn_pinned(size_t bytes)
{
    void *host;
    CUresult result = cuMemHostAlloc(&host, bytes, 0);
    return result == CUDA_SUCCESS ? cuMemFreeHost(host) : result;
}

static void *churn(void *unused)
{
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        CHECK(atomic_load(&may_fail));
    for (size_t i = 0; !atomic_load(&stop); i++) {
        CUdeviceptr block;
        CUresult result = cuMemAlloc_v2(&block, (size_t)BYTES << (i % 8));
        if (result == CUDA_SUCCESS)
            result = cuMemFree_v2(block);
        if (result == CUDA_SUCCESS && i % 2)
            result = churn_pinned((size_t)BYTES << (i % 13));
        if (result != CUDA_SUCCESS && !atomic_load(&may_fail))
            FAIL("a thread is answered %u", result);
    }
    return unused;
}

static void start_all(pthread_t *threads, void *(*body)(void *))
{
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, body, NULL) == 0);
    sleep_ms(5);
}

static void join_all(pthread_t *threads)
{
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop, false);
}

/* --- ends
 * ---------------------------------------------------------------------------------------*/

static void *exit_here(void *unused)
{
    exit(7);
    return unused;
}

static void exit_in_thread(void)
{
    pthread_t threads[THREADS], last;
    open_device();
    start_all(threads, churn);
    CHECK(pthread_create(&last, NULL, exit_here, NULL) == 0);
    for (;;)
        pause();
}

static void end_by(void (*end)(void))
{
    pthread_t threads[THREADS];
    open_device();
    start_all(threads, churn);
    end();
}

static void leave_at_once(void)
{
    _exit(8);
}

static void end_by_exit(void)
{
    end_by(leave_at_once);
}

static void end_by_abort(void)
{
    end_by(abort);
}

static void kill_myself(void)
{
    raise(SIGKILL);
}

static void end_by_kill(void)
{
    end_by(kill_myself);
}

/* Memory that is freed, and taken, when everything is nearly over. */
static CUdeviceptr late[3];

static void use_late(CUdeviceptr block)
{
    unsigned int word;
    CU(cuMemcpyDtoH_v2(&word, block, sizeof word));
    CHECK(word == 17);
    CU(cuMemFree_v2(block));
    CUdeviceptr other = take(BYTES);
    CU(cuMemsetD32_v2(other, 1, WORDS));
    CU(cuMemFree_v2(other));
    CU(churn_pinned(BYTES));
}

static void free_at_exit(void)
{
    use_late(late[0]);
}

static void free_at_quick_exit(void)
{
    use_late(late[1]);
}

__attribute__((destructor)) static void free_in_destructor(void)
{
    if (late[2] != 0)
        use_late(late[2]);
}

static void fill_late(void)
{
    open_device();
    for (int i = 0; i < 3; i++) {
        late[i] = take(BYTES);
        CU(cuMemsetD32_v2(late[i], 17, WORDS));
    }
}

static void late_frees(void)
{
    CHECK(atexit(free_at_exit) == 0);
    fill_late();
}

static void late_frees_quick(void)
{
    CHECK(at_quick_exit(free_at_quick_exit) == 0);
    fill_late();
    quick_exit(9);
}

/* --- fork
 * ---------------------------------------------------------------------------------------*/

/* The driver does not work in a child; the pool keeps out of its way. */
static void child(void)
{
    CUdeviceptr block = 0;
    void *host;
    size_t free, total;
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemHostAlloc(&host, BYTES, 0));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemAllocHost_v2(&host, BYTES));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemFreeHost(&free));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&block, BYTES));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemFree_v2(4096));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuMemGetInfo_v2(&free, &total));
    ANSWERS(CUDA_ERROR_NOT_INITIALIZED, cuCtxDestroy_v2(context));
    exit(0);
}

/* Forked at any moment of the other threads, locks held included. */
static void fork_under_load(void)
{
    pthread_t threads[THREADS];
    open_device();
    start_all(threads, churn);
    for (int i = 0; i < 20; i++) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            child();
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            FAIL("child %d ends with %#x", i, (unsigned int)status);
    }
    join_all(threads);
}

static atomic_bool giving_back;

static void *give_back(void *unused)
{
    CU(cuCtxSetCurrent(context));
    while (atomic_load(&giving_back)) {
        CU(cuMemFree_v2(take(BYTES)));
        CU(churn_pinned(MIB));
        cudapool_trim();
    }
    return unused;
}

static int count_object(struct dl_phdr_info *info, size_t bytes, void *count)
{
    (void)info, (void)bytes;
    ++*(int *)count;
    return 0;
}

/* A child that loads a library needs a lock of the dynamic linker's, which no thread in the pool
 * may have had as it was made. */
static void fork_and_load(void)
{
    pthread_t threads[THREADS];
    open_device();
    atomic_store(&giving_back, true);
    start_all(threads, give_back);
    for (int i = 0; i < 20; i++) {
        int status, objects = 0;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(10);
            dl_iterate_phdr(count_object, &objects);
            _exit(objects == 0);
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0)
            FAIL("child %d ends with %#x", i, (unsigned int)status);
    }
    atomic_store(&giving_back, false);
    join_all(threads);
}

/* --- the primary context is reset in the middle
 * ---------------------------------------------------*/

static void reset(void)
{
    pthread_t threads[THREADS];
    open_device();
    for (int i = 0; i < 5; i++) {
        start_all(threads, churn);
        atomic_store(&may_fail, true);
        CU(cuDevicePrimaryCtxReset_v2(0));
        sleep_ms(2);
        join_all(threads);
        atomic_store(&may_fail, false);
        CU(cuDevicePrimaryCtxRetain(&context, 0));
        CU(cuCtxSetCurrent(context));
        load_kernels(&kernels);
        CUdeviceptr block = take(BYTES);
        CU(cuMemsetD32_v2(block, (unsigned int)i, WORDS));
        CU(cuMemFree_v2(block));
    }
    CU(cuDevicePrimaryCtxReset_v2(0));
    EQUAL(0, simcuda_live_allocations());
}

/* --- a profiler that allocates in our driver calls
 * ------------------------------------------------*/

static atomic_uint called_back;

static void allocate_meanwhile(const char *name)
{
    CUdeviceptr block;
    CUcontext current;
    (void)name;
    /* The pool's own thread has none. */
    CU(cuCtxGetCurrent(&current));
    if (!current)
        return;
    CU(cuMemAlloc_v2(&block, BYTES));
    CU(cuMemsetD32_v2(block, 5, WORDS));
    CU(cuMemFree_v2(block));
    CU(churn_pinned(BYTES));
    atomic_fetch_add(&called_back, 1);
}

static void work_a_while(CUstream stream, CUdeviceptr counter)
{
    CUdeviceptr blocks[20];
    for (unsigned int round = 0; round < 3; round++) {
        for (unsigned int i = 0; i < 20; i++) {
            blocks[i] = take(MIB);
            fill(&kernels, stream, blocks[i], WORDS, i);
            spin_then_verify(&kernels, stream, 20000, blocks[i], WORDS, i, counter);
        }
        for (unsigned int i = 0; i < 20; i++)
            CU(cuMemFree_v2(blocks[i]));
        CU(cuMemFreeAsync(take(40 * MIB), stream));
        CU(cuMemFree_v2(take(600 * MIB)));
        CUdeviceptr shared = take(MIB);
        unsigned int on = 1;
        CU(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, shared));
        CU(cuMemFree_v2(shared));
        for (size_t i = 0; i < 20; i++)
            CU(churn_pinned((i + 1) * 65536));
    }
    CU(cuCtxSynchronize());
    /* So that the next round asks the driver again. */
    if (has_pool())
        cudapool_trim();
}

static void callbacks(void)
{
    static const char *const names[] = {"cuMemAlloc_v2",
                                        "cuMemFree_v2",
                                        "cuMemFreeAsync",
                                        "cuMemHostAlloc",
                                        "cuMemFreeHost",
                                        "cuCtxRecordEvent",
                                        "cuCtxWaitEvent",
                                        "cuEventQuery",
                                        "cuEventCreate",
                                        "cuStreamCreate",
                                        "cuStreamSynchronize",
                                        "cuCtxSynchronize",
                                        "cuThreadExchangeStreamCaptureMode",
                                        "cuCtxGetCurrent",
                                        "cuCtxDestroy_v2",
                                        "cuStreamBeginCapture_v2",
                                        "cuStreamEndCapture",
                                        "cuStreamDestroy_v2"};
    open_device();
    CUstream stream = new_stream();
    CUdeviceptr counter = new_counter();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CUcontext other;
        CUgraph graph;
        unsigned int before = atomic_load(&called_back);
        CHECK(simcuda_set_callback(names[i], allocate_meanwhile));
        work_a_while(stream, counter);
        CUstream captured = new_stream();
        CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
        CU(cuThreadExchangeStreamCaptureMode(&relaxed));
        CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(cuStreamEndCapture(captured, &graph));
        CU(cuThreadExchangeStreamCaptureMode(&relaxed));
        CU(cuStreamDestroy_v2(captured));
        CU(cuCtxCreate_v2(&other, 0, 0));
        for (int j = 0; j < 40; j++)
            CU(cuMemFree_v2(take(MIB)));
        CU(cuCtxDestroy_v2(other));
        CU(cuCtxSetCurrent(context));
        simcuda_set_callback(names[i], NULL);
        if (has_pool() && atomic_load(&called_back) == before &&
            strcmp(names[i], "cuCtxWaitEvent") != 0)
            FAIL("%s is never called", names[i]);
    }
    EQUAL(0, read_counter(counter));
}

/* The profiler frees a block of the program's in there and takes a smaller one, which the program
 * frees. What the program has freed itself it cannot free. */
static CUdeviceptr given, taken, gone;

static void swap_blocks(const char *name)
{
    (void)name;
    if (given == 0)
        return;
    CU(cuMemFree_v2(given));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(given));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(gone));
    CU(cuMemAlloc_v2(&taken, 2 * MIB));
    given = 0;
}

static void callbacks_swap(void)
{
    unsigned int word;
    open_device();
    gone = take(8 * MIB);
    CU(cuMemFree_v2(gone));
    given = take(4 * MIB);
    CHECK(simcuda_set_callback("cuMemAlloc_v2", swap_blocks));
    CUdeviceptr other = take(16 * MIB);
    simcuda_set_callback("cuMemAlloc_v2", NULL);
    CHECK(taken != 0);
    CU(cuMemFree_v2(taken));
    CU(cuCtxSynchronize());
    CUdeviceptr block = take(4 * MIB), next = take(2 * MIB);
    CU(cuMemsetD32_v2(next, 1, 2 * MIB / 4));
    CU(cuMemsetD32_v2(block, 2, MIB));
    CU(cuMemsetD32_v2(other, 3, 4 * MIB));
    CU(cuMemcpyDtoH_v2(&word, next, sizeof word));
    EQUAL(1, word);
    CU(cuMemFree_v2(block));
    CU(cuMemFree_v2(next));
    CU(cuMemFree_v2(other));
}

/* --- as nobody should
 * ---------------------------------------------------------------------------*/

enum { RACED = 400 };
static CUdeviceptr raced[RACED];
static atomic_uint freed[RACED];
static pthread_barrier_t start;

static void *free_all(void *unused)
{
    CU(cuCtxSetCurrent(context));
    pthread_barrier_wait(&start);
    for (int i = 0; i < RACED; i++) {
        CUresult result = cuMemFree_v2(raced[i]);
        if (result == CUDA_SUCCESS)
            atomic_fetch_add(&freed[i], 1);
        else if (result != CUDA_ERROR_INVALID_VALUE)
            FAIL("a second free answers %u", result);
    }
    return unused;
}

/* Of several frees of a block, exactly one succeeds. */
static void double_frees(void)
{
    pthread_t threads[THREADS];
    open_device();
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < RACED; i++)
        raced[i] = take((size_t)BYTES * (size_t)(1 + i % 3));
    start_all(threads, free_all);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < RACED; i++)
        EQUAL(1, atomic_load(&freed[i]));
}

/* Pointers that are wild, stale, or lead into the middle; nobody's memory suffers. */
static void *free_wildly(void *unused)
{
    CU(cuCtxSetCurrent(context));
    uint64_t random = (uintptr_t)&random;
    while (!atomic_load(&stop)) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        CUdeviceptr wild = raced[random >> 32 & 63] + 256 + (random >> 40 & 0x7ff);
        CUdeviceptr base;
        size_t bytes;
        CHECK(cuMemFree_v2(wild) != CUDA_SUCCESS);
        CHECK(cuMemFree_v2(random | 1) != CUDA_SUCCESS);
        CHECK(cuMemFreeAsync(wild, NULL) != CUDA_SUCCESS);
        CHECK(cuMemFreeHost((void *)(uintptr_t)wild) != CUDA_SUCCESS);
        CHECK(cuMemFreeHost((void *)(uintptr_t)(random | 1)) != CUDA_SUCCESS);
        CHECK(cuMemHostUnregister((void *)(uintptr_t)(random | 1)) != CUDA_SUCCESS);
        cuMemGetAddressRange_v2(&base, &bytes, wild);
        cuMemGetAddressRange_v2(&base, &bytes, random);
    }
    return unused;
}

static void wild_pointers(void)
{
    pthread_t threads[THREADS];
    open_device();
    for (int i = 0; i < 64; i++) {
        raced[i] = take(4096);
        CU(cuMemsetD32_v2(raced[i], (unsigned int)i, 1024));
    }
    start_all(threads, free_wildly);
    sleep_ms(100);
    join_all(threads);
    for (int i = 0; i < 64; i++) {
        unsigned int word;
        CU(cuMemcpyDtoH_v2(&word, raced[i] + 4092, sizeof word));
        EQUAL((unsigned int)i, word);
        CU(cuMemFree_v2(raced[i]));
    }
}

/* The device has 20 GiB. */
static void sizes(void)
{
    static const size_t fit[] = {1, 2, ((size_t)1 << 32) - 1, (size_t)1 << 32,
                                 ((size_t)1 << 32) + 1};
    static const size_t large[] = {
        (size_t)1 << 40, ((size_t)1 << 63) - 1, (size_t)1 << 63, ((size_t)1 << 63) + 1,
        SIZE_MAX - 511,  SIZE_MAX - 1,          SIZE_MAX};
    CUdeviceptr block, base;
    size_t bytes;
    open_device();
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof fit / sizeof *fit; i++) {
            block = take(fit[i]);
            CU(cuMemGetAddressRange_v2(&base, &bytes, block + fit[i] - 1));
            EQUAL(fit[i], bytes);
            EQUAL(block, base);
            CU(cuMemFree_v2(block));
        }
        for (size_t i = 0; i < sizeof large / sizeof *large; i++)
            ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&block, large[i]));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&block, 0));
    }
}

/* Streams that are destroyed with work on blocks that are freed. */
static void *destroy_streams(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUdeviceptr counter = new_counter();
    for (unsigned int i = 0; i < 60; i++) {
        CUstream stream = new_stream();
        CUdeviceptr block = take(BYTES);
        fill(&kernels, stream, block, WORDS, i);
        spin_then_verify(&kernels, stream, 200000, block, WORDS, i, counter);
        if (i % 3 == 0)
            CU(cuMemFreeAsync(block, stream));
        CU(cuStreamDestroy_v2(stream));
        if (i % 3 != 0)
            CU(cuMemFree_v2(block));
    }
    EQUAL(0, read_counter(counter));
    return unused;
}

static void streams(void)
{
    pthread_t threads[THREADS];
    open_device();
    start_all(threads, destroy_streams);
    join_all(threads);
}

/* Contexts that are destroyed while others allocate in them: those are told, and that is all. */
static void contexts(void)
{
    pthread_t threads[THREADS];
    CU(cuInit(0));
    for (int i = 0; i < 8; i++) {
        CU(cuCtxCreate_v2(&context, 0, 0));
        start_all(threads, churn);
        atomic_store(&may_fail, true);
        CU(cuCtxDestroy_v2(context));
        join_all(threads);
        atomic_store(&may_fail, false);
        EQUAL(0, simcuda_live_allocations());
    }
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"exit_in_thread", exit_in_thread},
        {"end_by_exit", end_by_exit},
        {"end_by_abort", end_by_abort},
        {"end_by_kill", end_by_kill},
        {"late_frees", late_frees},
        {"late_frees_quick", late_frees_quick},
        {"fork_under_load", fork_under_load},
        {"fork_and_load", fork_and_load},
        {"reset", reset},
        {"callbacks", callbacks},
        {"callbacks_swap", callbacks_swap},
        {"double_frees", double_frees},
        {"wild_pointers", wild_pointers},
        {"sizes", sizes},
        {"streams", streams},
        {"contexts", contexts},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
