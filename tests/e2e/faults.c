/*
 * A program that does everything that the pool has a part in, and says what each driver call has
 * answered it: "NAME RESULT" a line. faults.sh compares what it says while driver calls fail, with
 * what it says when none does.
 *
 * A call whose argument is missing, since another call has failed, is not made: "NAME -". Ends with
 * the state in which it leaves the driver; exits 0 unless it is lost.
 */
#include "pool.h"

enum { WORDS = 256, MANY = 24, NOT_MADE = 100000 };

static CUresult say(const char *name, CUresult result)
{
    const char *end = strchr(name, '(');
    int length = end != NULL ? (int)(end - name) : (int)strlen(name);
    if (result == NOT_MADE)
        printf("%.*s -\n", length, name);
    else
        printf("%.*s %u\n", length, name, result);
    return result;
}
#define SEE(call) say(#call, call)
/* Only if the argument is there. */
#define SEE_IF(there, call) say(#call, (there) ? (call) : NOT_MADE)

static struct kernels kernels;
static CUstream stream, other_stream;
static CUdeviceptr counter;
static bool runs_kernels;

static CUdeviceptr allocate_if(bool there, size_t bytes)
{
    CUdeviceptr address = 0;
    return SEE_IF(there, cuMemAlloc_v2(&address, bytes)) == CUDA_SUCCESS ? address : 0;
}

static CUdeviceptr allocate(size_t bytes)
{
    return allocate_if(true, bytes);
}

static void release(CUdeviceptr address)
{
    SEE_IF(address != 0, cuMemFree_v2(address));
}

/* Work on a block that finds out whether somebody else writes there meanwhile. */
static void use(CUstream on, CUdeviceptr block, unsigned int value, unsigned long long ns)
{
    unsigned int words = WORDS;
    bool can = runs_kernels && block != 0 && on != NULL;
    SEE_IF(can, cuLaunchKernel(kernels.fill, 1, 1, 1, 1, 1, 1, 0, on,
                               (void *[]){&block, &words, &value}, NULL));
    SEE_IF(can, cuLaunchKernel(kernels.spin_then_verify, 1, 1, 1, 1, 1, 1, 0, on,
                               (void *[]){&ns, &block, &words, &value, &counter}, NULL));
}

static void open_kernels(void)
{
    CUmodule module = NULL;
    runs_kernels = SEE(cuModuleLoadData(&module, KERNELS_PTX)) == CUDA_SUCCESS;
    if (SEE_IF(runs_kernels, cuModuleGetFunction(&kernels.fill, module, "fill")) != CUDA_SUCCESS)
        runs_kernels = false;
    if (SEE_IF(runs_kernels, cuModuleGetFunction(&kernels.spin_then_verify, module,
                                                 "spin_then_verify")) != CUDA_SUCCESS)
        runs_kernels = false;
    if (SEE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS)
        stream = NULL;
    if (SEE(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS)
        other_stream = NULL;
    counter = allocate(8);
    runs_kernels = runs_kernels && counter != 0;
    SEE_IF(counter != 0, cuMemsetD32_v2(counter, 0, 2));
}

static void close_kernels(void)
{
    SEE(cuCtxSynchronize());
    release(counter);
    SEE_IF(stream != NULL, cuStreamDestroy_v2(stream));
    SEE_IF(other_stream != NULL, cuStreamDestroy_v2(other_stream));
}

static void say_mismatches(void)
{
    unsigned int words[2] = {0, 0};
    SEE(cuCtxSynchronize());
    SEE_IF(counter != 0, cuMemcpyDtoH_v2(words, counter, sizeof words));
    printf("mismatches %u\n", words[0]);
}

/* --- every rung
 * ----------------------------------------------------------------------------------*/

/* Frees with work going on, more than the budget. */
static void recycle(size_t bytes, unsigned int rounds, unsigned long long ns)
{
    for (unsigned int i = 0; i < rounds; i++) {
        CUdeviceptr block = allocate(bytes);
        use(i % 2 ? stream : other_stream, block, i, ns);
        release(block);
    }
}

static void recycle_many(size_t bytes)
{
    CUdeviceptr blocks[MANY];
    for (int i = 0; i < MANY; i++)
        blocks[i] = allocate(bytes);
    use(stream, blocks[0], 1, 100000);
    for (int i = 0; i < MANY; i++)
        release(blocks[i]);
    SEE(cuCtxSynchronize());
}

static void *recycle_silently(void *context)
{
    unsigned int failed = 0;
    cuCtxSetCurrent(context);
    for (size_t i = 0; i < 40; i++) {
        CUdeviceptr block;
        CUresult result = cuMemAlloc_v2(&block, (size_t)1 << (10 + i % 11));
        if (result == CUDA_SUCCESS)
            result = cuMemFree_v2(block);
        failed += result != CUDA_SUCCESS;
    }
    return (void *)(uintptr_t)failed;
}

static void recycle_on_threads(CUcontext context)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, recycle_silently, context) == 0);
    for (int i = 0; i < 2; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        printf("thread %u\n", (unsigned int)(uintptr_t)failed);
    }
}

static void other_ways(void)
{
    CUdeviceptr pitched = 0;
    size_t pitch;
    for (int i = 0; i < 2; i++) {
        if (SEE(cuMemAllocPitch_v2(&pitched, &pitch, 700, 64, 4)) != CUDA_SUCCESS)
            pitched = 0;
        release(pitched);
    }
    CUdeviceptr block = allocate(MIB);
    use(stream, block, 9, 100000);
    SEE_IF(block != 0, cuMemFreeAsync(block, stream));
    release(allocate(40 * MIB)); /* not kept */
    SEE(cuMemAlloc_v2(&block, 0));
    SEE(cuMemFree_v2(12345));
}

/* --- in streams' order ---------------------------------------------------------------------*/

static CUdeviceptr allocate_on(CUstream on, size_t bytes)
{
    CUdeviceptr address = 0;
    return SEE_IF(on != NULL, cuMemAllocAsync(&address, bytes, on)) == CUDA_SUCCESS ? address : 0;
}

static void release_on(CUstream on, CUdeviceptr address)
{
    SEE_IF(on != NULL && address != 0, cuMemFreeAsync(address, on));
}

/* Blocks go from one stream to another: known to be over, by asking, and by a wait. The program
 * puts one stream behind the other meanwhile. */
static void hand_over(void)
{
    CUevent event = NULL;
    if (SEE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)) != CUDA_SUCCESS)
        event = NULL;
    for (unsigned int i = 0; i < 6; i++) {
        CUdeviceptr block = allocate_on(stream, MIB);
        use(stream, block, i, 100000);
        release_on(stream, block);
        if (i == 1)
            SEE_IF(stream != NULL, cuStreamSynchronize(stream));
        if (i == 2) {
            SEE_IF(event != NULL && stream != NULL, cuEventRecord(event, stream));
            SEE_IF(event != NULL && other_stream != NULL,
                   cuStreamWaitEvent(other_stream, event, 0));
        }
        block = allocate_on(other_stream, MIB);
        use(other_stream, block, 100 + i, 100000);
        release_on(other_stream, block);
    }
    SEE_IF(event != NULL, cuEventDestroy_v2(event));
}

static void recycle_in_order(void)
{
    CUstream third = NULL;
    CUdeviceptr block;
    for (unsigned int i = 0; i < 4; i++) {
        block = allocate_on(stream, (size_t)4096 << i);
        use(stream, block, i, 0);
        release_on(stream, block);
    }
    hand_over();
    if (SEE(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS)
        third = NULL;
    block = allocate_on(third, MIB);
    use(third, block, 3, 100000);
    release_on(third, block);
    SEE_IF(third != NULL, cuStreamDestroy_v2(third));
    block = allocate_on(stream, MIB);
    /* What is not freed now outlives the context. */
    if (SEE_IF(block != 0, cuMemFree_v2(block)) != CUDA_SUCCESS && block != 0)
        cuMemFreeAsync(block, stream);
    SEE(cuCtxSynchronize());
}

/* --- pinned ------------------------------------------------------------------------------------*/

static void *pin(size_t bytes)
{
    void *host = NULL;
    return SEE(cuMemHostAlloc(&host, bytes, 0)) == CUDA_SUCCESS ? host : NULL;
}

static void *pin_plainly(size_t bytes)
{
    void *host = NULL;
    return SEE(cuMemAllocHost_v2(&host, bytes)) == CUDA_SUCCESS ? host : NULL;
}

static void unpin(void *host)
{
    SEE_IF(host != NULL, cuMemFreeHost(host));
}

/* What the host writes is there until it frees the memory, whatever the device does with that; and
 * it writes as soon as it has it. */
static void recycle_pinned(size_t bytes, unsigned int rounds)
{
    for (unsigned int i = 0; i < rounds; i++) {
        unsigned int *host = i % 4 == 3 ? pin_plainly(bytes) : pin(bytes);
        for (int j = 0; host != NULL && j < WORDS; j++)
            host[j] = i;
        use(stream, (CUdeviceptr)(uintptr_t)host, i, 100000);
        unpin(host);
    }
}

static void recycle_many_pinned(size_t bytes)
{
    void *blocks[MANY];
    for (int i = 0; i < MANY; i++)
        blocks[i] = pin(bytes);
    for (int i = 0; i < MANY; i++)
        unpin(blocks[i]);
    SEE(cuCtxSynchronize());
}

/* 64 MiB may be pinned. */
static void run_out_of_host_memory(void)
{
    void *host = NULL;
    recycle_many_pinned(2 * MIB);
    unpin(pin(40 * MIB));
    SEE(cuMemHostAlloc(&host, (size_t)1 << 40, 0));
    unsigned int flags;
    host = pin(MIB);
    SEE_IF(host != NULL, cuMemHostGetFlags(&flags, host));
    unpin(host);
    SEE_IF(host != NULL, cuMemFreeHost(host));
}

static void use_pinned(void)
{
    recycle_pinned(4096, 6);
    recycle_pinned(MIB, 6);
    SEE(cuCtxSynchronize());
    recycle_many_pinned(65536);
    recycle_pinned(3 * MIB, 4);
    run_out_of_host_memory();
}

/* --- memory is short ---------------------------------------------------------------------------*/

/* The device has 64 MiB. */
static void run_out(void)
{
    CUdeviceptr small[20], large, managed = 0;
    for (int i = 0; i < 20; i++)
        small[i] = allocate(2 * MIB);
    for (int i = 0; i < 20; i++)
        release(small[i]);
    large = allocate(44 * MIB);
    SEE(cuMemAlloc_v2(&small[0], (size_t)1 << 40));
    release(large);
    if (SEE(cuMemAllocManaged(&managed, 44 * MIB, CU_MEM_ATTACH_GLOBAL)) != CUDA_SUCCESS)
        managed = 0;
    release(managed);
}

static void ask(void)
{
    CUdeviceptr base, block = allocate(1000);
    size_t bytes = 0, free, total = 0;
    unsigned long long value = 0;
    CUipcMemHandle handle;
    SEE_IF(block != 0, cuMemGetAddressRange_v2(&base, &bytes, block + 10));
    SEE_IF(block != 0, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + 10));
    SEE_IF(block != 0, cuIpcGetMemHandle(&handle, block));
    release(block);
    SEE_IF(block != 0, cuMemFree_v2(block));
    SEE(cuMemGetInfo_v2(&free, &total));
}

static void capture(void)
{
    CUgraph graph = NULL;
    CUdeviceptr held = allocate(4096), block;
    bool capturing =
        SEE_IF(stream != NULL, cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED)) ==
        CUDA_SUCCESS;
    SEE_IF(capturing && held != 0, cuMemsetD32Async(held, 1, 16, stream));
    block = allocate(4096);
    release(block);
    if (SEE_IF(capturing, cuStreamEndCapture(stream, &graph)) != CUDA_SUCCESS)
        graph = NULL;
    SEE_IF(graph != NULL, cuGraphDestroy(graph));
    release(held);
}

static void several_contexts(CUcontext first)
{
    for (int i = 0; i < 2; i++) {
        CUcontext second;
        CUdeviceptr ours = allocate(MIB), theirs;
        bool made = SEE(cuCtxCreate_v2(&second, 0, 0)) == CUDA_SUCCESS;
        theirs = allocate_if(made, MIB);
        SEE_IF(ours != 0 && theirs != 0, cuMemcpyDtoDAsync_v2(theirs, ours, 4096, NULL));
        release(ours);
        release(allocate(MIB));
        allocate_if(made, 2 * MIB); /* dies with the context */
        SEE_IF(made, cuCtxDestroy_v2(second));
        SEE(cuCtxSetCurrent(first));
        recycle(MIB, 4, 100000);
    }
}

/* What the pool has kept goes back, so that what is left is what the program has left. The free of
 * a block that is not kept makes the pool look for all that has become unused. */
static void say_what_is_left(void)
{
    SEE(cuCtxSynchronize());
    for (int i = 0; i < 4 && cudapool_trim != NULL && simcuda_live_allocations() > 0; i++) {
        CUdeviceptr large;
        if (cuMemAlloc_v2(&large, 40 * MIB) == CUDA_SUCCESS)
            cuMemFree_v2(large);
        cudapool_trim();
        sleep_ms(1);
    }
    printf("allocations %llu\n", (unsigned long long)simcuda_live_allocations());
}

int main(void)
{
    CUcontext primary;
    unsigned int flags;
    int active = -1;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (SEE(cuInit(0)) != CUDA_SUCCESS ||
        SEE(cuDevicePrimaryCtxRetain(&primary, 0)) != CUDA_SUCCESS ||
        SEE(cuCtxSetCurrent(primary)) != CUDA_SUCCESS)
        return 0;
    open_kernels();
    recycle(MIB, 12, 100000);
    recycle_many(4096);
    recycle_many(MIB);
    recycle(MIB, 6, 100000);
    other_ways();
    recycle_in_order();
    use_pinned();
    run_out();
    ask();
    capture();
    recycle_on_threads(primary);
    recycle(MIB, 4, 100000);
    several_contexts(primary);
    ask();
    say_mismatches();
    close_kernels();
    say_what_is_left();
    SEE(cuDevicePrimaryCtxRelease_v2(0));
    SEE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    printf("allocations %llu\n", (unsigned long long)simcuda_live_allocations());
    return 0;
}
