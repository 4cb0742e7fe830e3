/*
 * Rows about pinned host memory: who waits for what, captures, and what a fence covers.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "pinned.h"

static double timed_host_free(void *block)
{
    double start = now_ms();
    free_host(block);
    return now_ms() - start;
}

/* With the pool, a call may do without a wait of the driver's, but has none that the driver has
 * not. */
static void tell_wait(double ms, bool waits, const char *what, size_t bytes)
{
    note("%s, %zu KiB: %s (%.2f ms beside work of %d ms)", what, bytes >> 10,
         ms > HOST_WORK_MS / 2.0 ? "waits" : "does not wait", ms, HOST_WORK_MS);
    if (!waits || !gpu.pool)
        TOOK(ms, HOST_WORK_MS, waits);
}

/* A small block beside another, so that the driver has nothing to give back, and a large one. */
static const size_t waiting_sizes[] = {4096, 16 * MIB};
enum { WAITING_SIZES = 2 };

/* --- waits -------------------------------------------------------------------------------------*/

/* Whether or not the kernel has touched it. */
void host_free_waits_for_its_context(void)
{
    void *keeper = allocate_host(4096, 0);
    for (int i = 0; i < WAITING_SIZES; i++) {
        void *block = allocate_host(waiting_sizes[i], 0);
        double ms;
        spin(gpu.a, HOST_WORK_MS);
        ms = timed_host_free(block);
        tell_wait(ms, true, "cuMemFreeHost beside a kernel that does not use the block",
                  waiting_sizes[i]);
        SUCCEEDS(cuCtxSynchronize());
    }
    free_host(keeper);
}

void host_free_beside_kernels_of_other_contexts(void)
{
    struct neighbour other = open_neighbour();
    void *keepers[2] = {allocate_host(4096, 0), allocate_host(4096, CU_MEMHOSTALLOC_PORTABLE)};
    for (int i = 0; i < WAITING_SIZES; i++)
        for (unsigned int flags = 0; flags < 2; flags++) {
            void *block = allocate_host(waiting_sizes[i], flags);
            spin_in(&other, HOST_WORK_MS);
            tell_wait(timed_host_free(block), false,
                      flags == CU_MEMHOSTALLOC_PORTABLE
                          ? "cuMemFreeHost of portable memory beside another context's kernel"
                          : "cuMemFreeHost beside another context's kernel",
                      waiting_sizes[i]);
            SUCCEEDS(cuCtxSetCurrent(other.context));
            SUCCEEDS(cuCtxSynchronize());
            SUCCEEDS(cuCtxSetCurrent(gpu.context));
        }
    free_host(keepers[0]);
    free_host(keepers[1]);
    close_neighbour(&other);
}

static void pass_time(void *unused)
{
    (void)unused;
    sleep_ms(HOST_WORK_MS);
}

void host_free_beside_host_functions(void)
{
    void *keeper = allocate_host(4096, 0);
    for (int i = 0; i < WAITING_SIZES; i++) {
        void *block = allocate_host(waiting_sizes[i], 0);
        SUCCEEDS(cuLaunchHostFunc(gpu.a, pass_time, NULL));
        tell_wait(timed_host_free(block), true, "cuMemFreeHost beside a host function",
                  waiting_sizes[i]);
        SUCCEEDS(cuCtxSynchronize());
    }
    free_host(keeper);
}

struct call_elsewhere {
    void *block;
    CUstream stream;
    CUresult result;
    double ms;
};

static void *free_without_a_context(void *argument)
{
    struct call_elsewhere *call = argument;
    double start = now_ms();
    call->result = cuMemFreeHost(call->block);
    call->ms = now_ms() - start;
    return NULL;
}

void host_free_without_a_context_beside_a_kernel(void)
{
    struct call_elsewhere call = {.block = allocate_host(4096, 0)};
    pthread_t thread;
    spin(gpu.a, HOST_WORK_MS);
    pthread_create(&thread, NULL, free_without_a_context, &call);
    pthread_join(thread, NULL);
    EXPECT(call.result, CUDA_SUCCESS);
    tell_wait(call.ms, true, "cuMemFreeHost in a thread without a context", 4096);
    SUCCEEDS(cuCtxSynchronize());
}

void host_unregister_waits_for_its_context(void)
{
    void *own = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double start;
    SUCCEEDS(cuMemHostRegister_v2(own, MIB, CU_MEMHOSTALLOC_PORTABLE));
    spin(gpu.a, HOST_WORK_MS);
    start = now_ms();
    SUCCEEDS(cuMemHostUnregister(own));
    TOOK(now_ms() - start, HOST_WORK_MS, true);
    SUCCEEDS(cuCtxSynchronize());
    munmap(own, MIB);
}

static void *launch_elsewhere(void *argument)
{
    struct call_elsewhere *call = argument;
    double start;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    sleep_ms(10);
    start = now_ms();
    spin(gpu.b, 0);
    call->ms = now_ms() - start;
    return NULL;
}

/* If it holds the driver's lock meanwhile, no program can launch what it waits for. */
void others_call_while_host_free_waits(void)
{
    void *block = allocate_host(4096, 0);
    struct call_elsewhere call = {.ms = 0};
    pthread_t thread;
    pthread_create(&thread, NULL, launch_elsewhere, &call);
    spin(gpu.a, HOST_WORK_MS);
    free_host(block);
    pthread_join(thread, NULL);
    SUCCEEDS(cuCtxSynchronize());
    tell_wait(call.ms, true, "a launch of another thread while cuMemFreeHost waits", 4096);
}

void host_alloc_beside_a_kernel(void)
{
    void *keeper = allocate_host(4096, 0);
    for (int i = 0; i < WAITING_SIZES; i++) {
        void *block;
        double start;
        spin(gpu.a, HOST_WORK_MS);
        start = now_ms();
        block = allocate_host(waiting_sizes[i], 0);
        tell_wait(now_ms() - start, false, "cuMemHostAlloc beside a kernel", waiting_sizes[i]);
        SUCCEEDS(cuCtxSynchronize());
        free_host(block);
    }
    free_host(keeper);
}

/* --- captures ----------------------------------------------------------------------------------*/

static void *host_block; /* which the calls allocate and free */

static CUresult call_alloc(void)
{
    return cuMemHostAlloc(&host_block, 4096, 0);
}

static CUresult call_alloc_v2(void)
{
    return cuMemAllocHost_v2(&host_block, 4096);
}

static CUresult call_free(void)
{
    CUresult result = cuMemFreeHost(host_block);
    if (result == CUDA_SUCCESS)
        host_block = NULL;
    return result;
}

static CUresult call_free_again(void)
{
    void *block = host_block;
    CUresult result = call_free();
    return result == CUDA_SUCCESS ? cuMemFreeHost(block) : result;
}

static const struct host_call {
    const char *name;
    CUresult (*call)(void);
    bool frees;
    CUresult answer; /* where no capture forbids it */
} host_calls[] = {
    {"cuMemHostAlloc", call_alloc, false, CUDA_SUCCESS},
    {"cuMemAllocHost", call_alloc_v2, false, CUDA_SUCCESS},
    {"cuMemFreeHost", call_free, true, CUDA_SUCCESS},
    {"cuMemFreeHost twice", call_free_again, true, CUDA_ERROR_INVALID_VALUE},
};
enum { HOST_CALLS = sizeof host_calls / sizeof *host_calls };

/* Whether the capture is still valid at its end. */
static bool end_of_capture(void)
{
    CUgraph graph = NULL;
    CUresult result = cuStreamEndCapture(gpu.a, &graph);
    if (graph != NULL)
        SUCCEEDS(cuGraphDestroy(graph));
    return result == CUDA_SUCCESS;
}

static void tidy_host_block(void)
{
    if (host_block != NULL)
        free_host(host_block);
    host_block = NULL;
}

/* A capture with a kernel in it and the call by whoever makes it. A call that the capture forbids
 * ends it; one that is only wrong does not. */
static void call_in_capture(const struct host_call *call, unsigned int mode, bool allowed,
                            CUresult (*make)(const struct host_call *), const char *who)
{
    CUresult result;
    bool valid;
    if (call->frees)
        host_block = allocate_host(4096, 0);
    begin(mode);
    spin(gpu.a, 0);
    result = make(call);
    valid = end_of_capture();
    known_fact(result, allowed ? call->answer : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               "%s in a capture of mode %u, %s", call->name, mode, who);
    known_fact(valid, allowed, "the capture of mode %u lives after %s, %s", mode, call->name, who);
    tidy_host_block();
}

static CUresult make_here(const struct host_call *call)
{
    return call->call();
}

void host_alloc_in_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool allowed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        call_in_capture(&host_calls[0], mode, allowed, make_here, "by who captures");
        call_in_capture(&host_calls[1], mode, allowed, make_here, "by who captures");
    }
}

void host_free_in_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool allowed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        call_in_capture(&host_calls[2], mode, allowed, make_here, "by who captures");
        call_in_capture(&host_calls[3], mode, allowed, make_here, "by who captures");
    }
}

static CUresult answer_elsewhere;
static CUstreamCaptureMode mode_elsewhere;

static void *make_in_thread(void *call)
{
    CUstreamCaptureMode mode = mode_elsewhere;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    answer_elsewhere = ((const struct host_call *)call)->call();
    return NULL;
}

static CUresult make_elsewhere(const struct host_call *call)
{
    pthread_t thread;
    struct host_call copy = *call;
    pthread_create(&thread, NULL, make_in_thread, &copy);
    pthread_join(thread, NULL);
    return answer_elsewhere;
}

void host_calls_of_others_in_captures(void)
{
    for (unsigned int i = 0; i < HOST_CALLS; i++)
        for (unsigned int mode = 0; mode < MODES; mode++) {
            mode_elsewhere = CU_STREAM_CAPTURE_MODE_GLOBAL;
            call_in_capture(&host_calls[i], mode, mode != CU_STREAM_CAPTURE_MODE_GLOBAL,
                            make_elsewhere, "by another thread");
            mode_elsewhere = CU_STREAM_CAPTURE_MODE_RELAXED;
            call_in_capture(&host_calls[i], mode, true, make_elsewhere,
                            "by another, relaxed thread");
        }
}

static CUresult make_relaxed(const struct host_call *call)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    result = call->call();
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    return result;
}

void relaxed_threads_may_use_host_memory(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        for (unsigned int i = 0; i < HOST_CALLS; i++)
            call_in_capture(&host_calls[i], mode, true, make_relaxed, "in a relaxed bracket");
    }
}

static CUresult call_register(void)
{
    static char area[2 * MIB] __attribute__((aligned(4096)));
    CUresult result = cuMemHostRegister_v2(area, sizeof area, 0);
    return result == CUDA_SUCCESS ? cuMemHostUnregister(area) : result;
}

void relaxed_threads_may_register_memory(void)
{
    static const struct host_call call = {"cuMemHostRegister and cuMemHostUnregister",
                                          call_register, false, CUDA_SUCCESS};
    for (unsigned int mode = 0; mode < MODES; mode++)
        call_in_capture(&call, mode, true, make_relaxed, "in a relaxed bracket");
}

/* --- host functions ----------------------------------------------------------------------------*/

static CUresult answer_inside;

static void free_inside(void *block)
{
    answer_inside = cuMemFreeHost(block);
}

void host_free_in_a_host_function(void)
{
    void *block = allocate_host(4096, 0);
    SUCCEEDS(cuLaunchHostFunc(gpu.a, free_inside, block));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    known_fact(answer_inside, CUDA_ERROR_NOT_PERMITTED, "cuMemFreeHost in a host function");
    if (answer_inside != CUDA_SUCCESS)
        free_host(block);
}

/* --- what a fence covers -----------------------------------------------------------------------*/

/* So that whoever asks for the context's work seldom takes it for busy. */
void fences_without_work_are_over_at_once(void)
{
    enum { ROUNDS = 100, QUERIES = 3 };
    CUevent fence = new_event();
    int late = 0;
    SUCCEEDS(cuCtxSynchronize());
    for (int i = 0; i < ROUNDS; i++) {
        CUresult result = CUDA_ERROR_NOT_READY;
        SUCCEEDS(cuCtxRecordEvent(gpu.context, fence));
        for (int query = 0; query < QUERIES && result == CUDA_ERROR_NOT_READY; query++)
            result = cuEventQuery(fence);
        late += result != CUDA_SUCCESS;
    }
    SUCCEEDS(cuEventDestroy_v2(fence));
    note("%d of %d fences without work were not over at the third question", late, ROUNDS);
    CHECK_TIME(late <= ROUNDS / 10);
}

enum { WORDS = 4096, STREAMS = 5 };

static void open_streams(CUstream streams[STREAMS])
{
    streams[0] = gpu.a;
    streams[1] = gpu.b;
    SUCCEEDS(cuStreamCreate(&streams[2], CU_STREAM_DEFAULT));
    streams[3] = CU_STREAM_LEGACY;
    streams[4] = CU_STREAM_PER_THREAD;
}

static void wait_for_fence(void)
{
    CUevent fence = new_event();
    SUCCEEDS(cuCtxRecordEvent(gpu.context, fence));
    SUCCEEDS(cuEventSynchronize(fence));
    SUCCEEDS(cuEventDestroy_v2(fence));
}

static void set_words(unsigned int *words, unsigned int value)
{
    for (unsigned int i = 0; words != NULL && i < WORDS; i++)
        __atomic_store_n(&words[i], value, __ATOMIC_RELAXED);
}

/* Every stream waits a while, and then a copy and a kernel read a block of theirs. Once the fence
 * is over the processor writes to the blocks, and neither may have seen that. */
void fence_covers_reads_of_host_memory(void)
{
    unsigned int *read_by_copy[STREAMS], *read_by_kernel[STREAMS];
    CUstream streams[STREAMS];
    CUdeviceptr copy[STREAMS];
    open_streams(streams);
    for (unsigned int i = 0; i < STREAMS; i++) {
        read_by_copy[i] = allocate_host(WORDS * 4, 0);
        read_by_kernel[i] = allocate_host(WORDS * 4, 0);
        set_words(read_by_copy[i], 50 + i);
        set_words(read_by_kernel[i], 80 + i);
        copy[i] = allocate(WORDS * 4);
    }
    for (unsigned int i = 0; !has_failed() && i < STREAMS; i++) {
        spin(streams[i], 20);
        SUCCEEDS(cuMemcpyHtoDAsync_v2(copy[i], read_by_copy[i], WORDS * 4, streams[i]));
        spin_then_verify(streams[i], 5, address_of(read_by_kernel[i]), WORDS, 80 + i);
    }
    wait_for_fence();
    for (unsigned int i = 0; i < STREAMS; i++) {
        set_words(read_by_copy[i], 0);
        set_words(read_by_kernel[i], 0);
    }
    CHECK(wrong_words() == 0);
    for (unsigned int i = 0; i < STREAMS; i++)
        spin_then_verify(gpu.a, 0, copy[i], WORDS, 50 + i);
    CHECK(wrong_words() == 0);
    for (unsigned int i = 0; i < STREAMS; i++) {
        free_host(read_by_copy[i]);
        free_host(read_by_kernel[i]);
        SUCCEEDS(cuMemFree_v2(copy[i]));
    }
    SUCCEEDS(cuStreamDestroy_v2(streams[2]));
}

static unsigned int count_other_words(const unsigned int *words, unsigned int value)
{
    unsigned int others = 0;
    for (unsigned int i = 0; words != NULL && i < WORDS; i++)
        others += __atomic_load_n(&words[i], __ATOMIC_RELAXED) != value;
    return others;
}

/* Once the fence is over, the processor sees what copies and kernels wrote. */
void fence_covers_writes_of_host_memory(void)
{
    unsigned int *by_copy[STREAMS], *by_kernel[STREAMS];
    CUdeviceptr source = allocate(WORDS * 4);
    CUstream streams[STREAMS];
    open_streams(streams);
    fill(gpu.a, source, WORDS, 41);
    SUCCEEDS(cuCtxSynchronize());
    for (unsigned int i = 0; i < STREAMS; i++) {
        by_copy[i] = allocate_host(WORDS * 4, 0);
        by_kernel[i] = allocate_host(WORDS * 4, 0);
        set_words(by_copy[i], 0);
        set_words(by_kernel[i], 0);
    }
    for (unsigned int i = 0; !has_failed() && i < STREAMS; i++) {
        spin(streams[i], 20);
        SUCCEEDS(cuMemcpyDtoHAsync_v2(by_copy[i], source, WORDS * 4, streams[i]));
        fill(streams[i], address_of(by_kernel[i]), WORDS, 60 + i);
    }
    wait_for_fence();
    for (unsigned int i = 0; i < STREAMS; i++) {
        CHECK(count_other_words(by_copy[i], 41) == 0);
        CHECK(count_other_words(by_kernel[i], 60 + i) == 0);
    }
    SUCCEEDS(cuCtxSynchronize());
    for (unsigned int i = 0; i < STREAMS; i++) {
        free_host(by_copy[i]);
        free_host(by_kernel[i]);
    }
    SUCCEEDS(cuMemFree_v2(source));
    SUCCEEDS(cuStreamDestroy_v2(streams[2]));
}

/* --- probes: other contexts' work --------------------------------------------------------------*/

/* A second context's kernel reads the block, and writes to it: how many words are wrong, or what
 * error the driver has for it, as a negative number. */
static double used_by_kernels_elsewhere(unsigned int flags)
{
    unsigned int *words = allocate_host(WORDS * 4, flags), count = WORDS, old = 5, new = 9;
    CUdeviceptr block = address_of(words);
    struct neighbour other = open_neighbour();
    CUfunction verify, fill_words;
    unsigned long long *wrong = allocate_host(8, CU_MEMHOSTALLOC_PORTABLE);
    CUdeviceptr counter = address_of(wrong);
    CUresult result;
    *wrong = 0;
    for (unsigned int i = 0; i < WORDS; i++)
        words[i] = old;
    SUCCEEDS(cuCtxSetCurrent(other.context));
    SUCCEEDS(cuModuleGetFunction(&verify, other.module, "verify"));
    SUCCEEDS(cuModuleGetFunction(&fill_words, other.module, "fill"));
    launch(verify, NULL, (void *[]){&block, &count, &old, &counter});
    launch(fill_words, NULL, (void *[]){&block, &count, &new});
    result = cuCtxSynchronize();
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    for (unsigned int i = 0; i < WORDS; i++)
        *wrong += words[i] != new;
    return result != CUDA_SUCCESS ? -(double)result : (double)*wrong;
}

double kernels_elsewhere_use_it(void)
{
    return used_by_kernels_elsewhere(0);
}

double kernels_elsewhere_use_portable(void)
{
    return used_by_kernels_elsewhere(CU_MEMHOSTALLOC_PORTABLE);
}

/* -3 where there is none. */
double kernels_of_another_device_use_it(void)
{
    double answer;
    int devices = 0;
    SUCCEEDS(cuDeviceGetCount(&devices));
    if (devices < 2)
        return -3;
    SUCCEEDS(cuDeviceGet(&gpu.neighbour, 1));
    answer = used_by_kernels_elsewhere(0);
    gpu.neighbour = gpu.device;
    return answer;
}

/* --- probes: frees beside another context's copy -----------------------------------------------*/

/* The driver may take the memory away under the copy (seen on an H200, of a large block), which is
 * then an error of the copy's context, and nobody promises of which calls: so those that refuse
 * are the answer, and the process is not used for more. */

static CUresult copy_behind_a_kernel(const struct neighbour *other, CUdeviceptr target, void *block,
                                     size_t bytes)
{
    CUresult result;
    spin_in(other, HOST_WORK_MS);
    SUCCEEDS(cuCtxSetCurrent(other->context));
    result = cuMemcpyHtoDAsync_v2(target, block, bytes, other->stream);
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    return result;
}

static CUresult end_of_work_in(CUcontext context)
{
    CUresult result = cuCtxSetCurrent(context);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

/* Which calls refuse, a bit for each, and what the first of them answers. */
static double refusals(const CUresult results[COPY_CALLS])
{
    unsigned int bits = 0, first = 0;
    for (unsigned int i = COPY_CALLS; i-- > 0;)
        if (results[i] != CUDA_SUCCESS) {
            bits |= 1u << i;
            first = results[i];
        }
    return bits * 1000.0 + first;
}

static double free_beside_copy(size_t bytes, unsigned int flags)
{
    CUresult results[COPY_CALLS];
    struct neighbour other = open_neighbour();
    void *keeper = allocate_host(4096, flags), *block = allocate_host(bytes, flags);
    CUdeviceptr target;
    double ms;
    memset(block, 1, bytes);
    SUCCEEDS(cuCtxSetCurrent(other.context));
    target = allocate(bytes);
    results[0] = copy_behind_a_kernel(&other, target, block, bytes);
    ms = now_ms();
    results[1] = cuMemFreeHost(block);
    ms = now_ms() - ms;
    results[2] = end_of_work_in(other.context);
    results[3] = end_of_work_in(gpu.context);
    results[4] = cuMemFreeHost(keeper);
    results[5] = cuCtxDestroy_v2(other.context);
    return ms + COPY_REFUSED * refusals(results);
}

double free_beside_small_copy(void)
{
    return free_beside_copy(65536, 0);
}

double free_beside_large_copy(void)
{
    return free_beside_copy(16 * MIB, 0);
}

double free_beside_portable_copy(void)
{
    return free_beside_copy(16 * MIB, CU_MEMHOSTALLOC_PORTABLE);
}
