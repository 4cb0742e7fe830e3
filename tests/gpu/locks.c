/*
 * Locks that a program takes between a free and an allocation, while work that it has submitted
 * needs the same lock in order to end. The plain driver's cuMemFree has waited for that work before
 * the lock is taken; so a pool's allocation, under the lock, must not wait for it.
 *
 * In each round every thread fills a block behind which work waits for the thread's lock, frees the
 * block, takes the lock, allocates by the call that is asked for, and gives the lock back.
 *
 * Arguments:
 *   wait=  what waits for the lock: host_function (default), callback, captured_node, added_node,
 *          child_node (a graph's host nodes), value, value64, batch, captured_value, batch_node
 *          (waits for a word of memory that another thread writes under the lock), semaphore,
 *          semaphore_node, kernel (spins until another thread, under the lock, writes its flag),
 *          nothing; host_function_ptsz, callback_ptsz, value_v1, batch_v1: by other entry points
 *   call=  what is called under the lock: alloc (default), pitch, managed, async, from_pool, host,
 *          array, array3d, mipmapped, context, module, library, graph, physical, stream;
 *          or free (of another block), synchronize, stream_synchronize: what would wait for the
 * work if the free before the lock had not threads=1 rounds=20 least_mib=200 most_mib=400
 *   call_mib=0    if not 0, what the call under the lock asks for
 *   leave_mib=0   if not 0, so much of the device's memory is left at the start
 *   kernel_ms=2000 period_ms=10000   of the cases long_kernels and service (of rounds= periods)
 *   seconds=20    one round that takes longer ends the program with status 1
 *   case=  instead, something of its own: see the list at the end
 *
 * A call that the driver does not support is not an error: the program says so, and is done.
 */
#include "gpu.h"

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>

#include "../sim/simcuda.h"

enum { MAX_THREADS = 64, MAX_ROUNDS = 1000, WORDS = 1024 };

static CUcontext context;
static CUdevice device;
static struct kernels kernels;
static CUdeviceptr mismatches;
static unsigned int threads, rounds, seconds_allowed;
static unsigned long long kernel_ns;
static long period_ms;
static size_t least_mib, most_mib, call_mib;
static atomic_bool not_supported;
static atomic_uint rounds_done;

/* --- a thread and what it works with -----------------------------------------------------------*/

struct thread {
    pthread_mutex_t lock;
    unsigned int pushed; /* under the lock: what the work that waits has to do there */
    unsigned int round;
    CUstream stream, other;
    CUgraph graph;
    CUgraphExec exec;
    /* Words that host and device share, one for each round. */
    volatile uint64_t *flags;
    CUdeviceptr flags_on_device;
    CUexternalSemaphore semaphore;
    pthread_t releaser;
    sem_t release; /* the releaser is to do so once */
    bool has_releaser;
    unsigned int random;
};
static struct thread all[MAX_THREADS];

static void push(struct thread *thread)
{
    pthread_mutex_lock(&thread->lock);
    thread->pushed++;
    pthread_mutex_unlock(&thread->lock);
}

static void push_under_lock(void *thread)
{
    push(thread);
}

static void push_in_callback(CUstream stream, CUresult status, void *thread)
{
    (void)stream;
    (void)status;
    push(thread);
}

/* Releases, under the thread's lock, the work of one round after the other. It comes late enough
 * for a thread that did not wait in its free to hold the lock already. */
static void *run_releaser(void *argument)
{
    struct thread *thread = argument;
    for (unsigned int round = 0; round < rounds; round++) {
        struct timespec a_while = {0, 3000000};
        while (sem_wait(&thread->release) != 0)
            continue;
        nanosleep(&a_while, NULL);
        pthread_mutex_lock(&thread->lock);
        thread->pushed++;
        thread->flags[round] = 1;
        pthread_mutex_unlock(&thread->lock);
    }
    return NULL;
}

static CUdeviceptr flag_of(const struct thread *thread)
{
    return thread->flags_on_device + thread->round * sizeof(uint64_t);
}

/* --- what waits for the lock -------------------------------------------------------------------*/

/* The call, unless the driver does not have it. */
#define SUPPORTED(call)                                                                            \
    do {                                                                                           \
        CUresult supported_result = (call);                                                        \
        if (supported_result == CUDA_ERROR_NOT_SUPPORTED)                                          \
            atomic_store(&not_supported, true);                                                    \
        else if (supported_result != CUDA_SUCCESS)                                                 \
            FAIL("%s: CUDA error %u", #call, supported_result);                                    \
    } while (0)

static void wait_in_host_function(struct thread *thread)
{
    CHECK(cuLaunchHostFunc(thread->stream, push_under_lock, thread));
}

static void wait_in_callback(struct thread *thread)
{
    CHECK(cuStreamAddCallback(thread->stream, push_in_callback, thread, 0));
}

static void wait_in_host_function_ptsz(struct thread *thread)
{
    CHECK(cuLaunchHostFunc_ptsz(thread->stream, push_under_lock, thread));
}

static void wait_in_callback_ptsz(struct thread *thread)
{
    CHECK(cuStreamAddCallback_ptsz(thread->stream, push_in_callback, thread, 0));
}

static void capture_node(struct thread *thread)
{
    CHECK(cuStreamBeginCapture_v2(thread->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchHostFunc(thread->stream, push_under_lock, thread));
    CHECK(cuStreamEndCapture(thread->stream, &thread->graph));
}

static void add_node(struct thread *thread)
{
    CUDA_HOST_NODE_PARAMS parameters = {push_under_lock, thread};
    CUgraphNode node;
    CHECK(cuGraphCreate(&thread->graph, 0));
    CHECK(cuGraphAddHostNode(&node, thread->graph, NULL, 0, &parameters));
}

static void add_node_in_child(struct thread *thread)
{
    CUgraph child;
    CUgraphNode node;
    add_node(thread);
    child = thread->graph;
    CHECK(cuGraphCreate(&thread->graph, 0));
    CHECK(cuGraphAddChildGraphNode(&node, thread->graph, NULL, 0, child));
    CHECK(cuGraphDestroy(child));
}

static void wait_in_graph(struct thread *thread)
{
    CHECK(cuGraphLaunch(thread->exec, thread->stream));
}

static CUstreamBatchMemOpParams wait_for_flag(const struct thread *thread)
{
    CUstreamBatchMemOpParams parameters = {
        .waitValue = {.address = flag_of(thread), .value = 1, .flags = CU_STREAM_WAIT_VALUE_EQ}};
    parameters.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    return parameters;
}

static void wait_for_value(struct thread *thread)
{
    SUPPORTED(cuStreamWaitValue32_v2(thread->stream, flag_of(thread), 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void wait_in_batch(struct thread *thread)
{
    CUstreamBatchMemOpParams parameters = wait_for_flag(thread);
    SUPPORTED(cuStreamBatchMemOp_v2(thread->stream, 1, &parameters, 0));
}

/* The older entry points, which drivers may refuse. */
extern CUresult cuStreamWaitValue32(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
extern CUresult cuStreamBatchMemOp(CUstream, unsigned int, CUstreamBatchMemOpParams *,
                                   unsigned int);

static void wait_for_value_v1(struct thread *thread)
{
    SUPPORTED(cuStreamWaitValue32(thread->stream, flag_of(thread), 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void wait_in_batch_v1(struct thread *thread)
{
    CUstreamBatchMemOpParams parameters = wait_for_flag(thread);
    SUPPORTED(cuStreamBatchMemOp(thread->stream, 1, &parameters, 0));
}

static void wait_for_value64(struct thread *thread)
{
    SUPPORTED(cuStreamWaitValue64_v2(thread->stream, flag_of(thread), 1, CU_STREAM_WAIT_VALUE_EQ));
}

/* A graph's wait is for one word: the graph is made anew for each round. */
static void launch_new_graph(struct thread *thread)
{
    if (thread->exec != NULL)
        CHECK(cuGraphExecDestroy(thread->exec));
    CHECK(cuGraphInstantiateWithFlags(&thread->exec, thread->graph, 0));
    CHECK(cuGraphDestroy(thread->graph));
    wait_in_graph(thread);
}

static void wait_for_captured_value(struct thread *thread)
{
    CUresult result;
    CHECK(cuStreamBeginCapture_v2(thread->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    result = cuStreamWaitValue32_v2(thread->stream, flag_of(thread), 1, CU_STREAM_WAIT_VALUE_EQ);
    if (cuStreamEndCapture(thread->stream, &thread->graph) != CUDA_SUCCESS ||
        result != CUDA_SUCCESS)
        atomic_store(&not_supported, true);
    else
        launch_new_graph(thread);
}

static void wait_in_batch_node(struct thread *thread)
{
    CUstreamBatchMemOpParams operation = wait_for_flag(thread);
    CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = {context, 1, &operation, 0};
    CUgraphNode node;
    CHECK(cuGraphCreate(&thread->graph, 0));
    SUPPORTED(cuGraphAddBatchMemOpNode(&node, thread->graph, NULL, 0, &parameters));
    if (!atomic_load(&not_supported))
        launch_new_graph(thread);
}

static void wait_in_kernel(struct thread *thread)
{
    wait_flag(&kernels, thread->stream, flag_of(thread));
}

static void open_semaphore(struct thread *thread)
{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC description = {
        .type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD, .handle = {.fd = -1}};
    /* Needs another interface (Vulkan) to make one: only the simulated driver takes this. */
    if (cuImportExternalSemaphore(&thread->semaphore, &description) != CUDA_SUCCESS)
        atomic_store(&not_supported, true);
}

/* The other stream signals once the releaser has let its kernel go on. */
static void signal_when_released(struct thread *thread)
{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {0};
    signal.params.fence.value = thread->round + 1;
    wait_flag(&kernels, thread->other, flag_of(thread));
    CHECK(cuSignalExternalSemaphoresAsync(&thread->semaphore, &signal, 1, thread->other));
}

static void wait_for_semaphore(struct thread *thread)
{
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    wait.params.fence.value = thread->round + 1;
    signal_when_released(thread);
    CHECK(cuWaitExternalSemaphoresAsync(&thread->semaphore, &wait, 1, thread->stream));
}

static void wait_in_semaphore_node(struct thread *thread)
{
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    CUDA_EXT_SEM_WAIT_NODE_PARAMS parameters = {&thread->semaphore, &wait, 1};
    CUgraphNode node;
    wait.params.fence.value = thread->round + 1;
    signal_when_released(thread);
    CHECK(cuGraphCreate(&thread->graph, 0));
    CHECK(cuGraphAddExternalSemaphoresWaitNode(&node, thread->graph, NULL, 0, &parameters));
    launch_new_graph(thread);
}

static void wait_for_nothing(struct thread *thread)
{
    (void)thread;
}

static const struct wait {
    const char *name;
    void (*prepare)(struct thread *);
    void (*submit)(struct thread *);
    bool released; /* by another thread */
} waits[] = {
    {"host_function", NULL, wait_in_host_function, false},
    {"callback", NULL, wait_in_callback, false},
    {"host_function_ptsz", NULL, wait_in_host_function_ptsz, false},
    {"callback_ptsz", NULL, wait_in_callback_ptsz, false},
    {"captured_node", capture_node, wait_in_graph, false},
    {"added_node", add_node, wait_in_graph, false},
    {"child_node", add_node_in_child, wait_in_graph, false},
    {"value", NULL, wait_for_value, true},
    {"batch", NULL, wait_in_batch, true},
    {"value_v1", NULL, wait_for_value_v1, true},
    {"batch_v1", NULL, wait_in_batch_v1, true},
    {"value64", NULL, wait_for_value64, true},
    {"captured_value", NULL, wait_for_captured_value, true},
    {"batch_node", NULL, wait_in_batch_node, true},
    {"semaphore", open_semaphore, wait_for_semaphore, true},
    {"semaphore_node", open_semaphore, wait_in_semaphore_node, true},
    {"kernel", NULL, wait_in_kernel, true},
    {"nothing", NULL, wait_for_nothing, false},
};
static const struct wait *what_waits = &waits[0];

/* --- what is called under the lock -------------------------------------------------------------*/

/* What a call has made, until it is destroyed. */
union made {
    CUdeviceptr address;
    void *host;
    CUarray array;
    CUmipmappedArray mipmapped;
    CUcontext context;
    CUmodule module;
    CUlibrary library;
    CUgraphExec exec;
    CUstream stream;
    CUmemGenericAllocationHandle physical;
};

static void call_alloc(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    CHECK(cuMemAlloc_v2(&made->address, bytes));
}

static void call_pitch(struct thread *thread, size_t bytes, union made *made)
{
    size_t pitch;
    (void)thread;
    CHECK(cuMemAllocPitch_v2(&made->address, &pitch, 1 << 16, bytes >> 16, 4));
}

static void call_managed(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    CHECK(cuMemAllocManaged(&made->address, bytes, CU_MEM_ATTACH_GLOBAL));
}

static void undo_alloc(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuMemFree_v2(made->address));
}

static void call_async(struct thread *thread, size_t bytes, union made *made)
{
    CHECK(cuMemAllocAsync(&made->address, bytes, thread->other));
}

static void call_from_pool(struct thread *thread, size_t bytes, union made *made)
{
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, device));
    CHECK(cuMemAllocFromPoolAsync(&made->address, bytes, pool, thread->other));
}

static void undo_async(struct thread *thread, union made *made)
{
    CHECK(cuMemFreeAsync(made->address, thread->other));
    CHECK(cuStreamSynchronize(thread->other));
}

static void call_host(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    (void)bytes;
    CHECK(cuMemHostAlloc(&made->host, MIB, CU_MEMHOSTALLOC_PORTABLE));
}

static void undo_host(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuMemFreeHost(made->host));
}

static void call_array(struct thread *thread, size_t bytes, union made *made)
{
    CUDA_ARRAY_DESCRIPTOR description = {4096, bytes / (4096 * 4), CU_AD_FORMAT_UNSIGNED_INT32, 1};
    (void)thread;
    CHECK(cuArrayCreate_v2(&made->array, &description));
}

static void call_array3d(struct thread *thread, size_t bytes, union made *made)
{
    CUDA_ARRAY3D_DESCRIPTOR description = {
        512, 512, bytes / (512 * 512 * 4), CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
    (void)thread;
    CHECK(cuArray3DCreate_v2(&made->array, &description));
}

static void undo_array(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuArrayDestroy(made->array));
}

static void call_mipmapped(struct thread *thread, size_t bytes, union made *made)
{
    CUDA_ARRAY3D_DESCRIPTOR description = {
        4096, bytes / (4096 * 4), 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
    (void)thread;
    CHECK(cuMipmappedArrayCreate(&made->mipmapped, &description, 1));
}

static void undo_mipmapped(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuMipmappedArrayDestroy(made->mipmapped));
}

static void call_context(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    (void)bytes;
    CHECK(cuCtxCreate_v2(&made->context, 0, device));
    CHECK(cuCtxSetCurrent(context));
}

static void undo_context(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuCtxDestroy_v2(made->context));
    CHECK(cuCtxSetCurrent(context));
}

static void call_module(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    (void)bytes;
    CHECK(cuModuleLoadData(&made->module, KERNELS_PTX));
}

static void undo_module(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuModuleUnload(made->module));
}

static void call_library(struct thread *thread, size_t bytes, union made *made)
{
    CUmodule module;
    (void)thread;
    (void)bytes;
    CHECK(cuLibraryLoadData(&made->library, KERNELS_PTX, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetModule(&module, made->library));
}

static void undo_library(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuLibraryUnload(made->library));
}

static void call_graph(struct thread *thread, size_t bytes, union made *made)
{
    CUgraph graph;
    CUgraphNode node;
    (void)thread;
    (void)bytes;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    CHECK(cuGraphInstantiateWithFlags(&made->exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
}

static void undo_graph(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuGraphExecDestroy(made->exec));
}

static void call_physical(struct thread *thread, size_t bytes, union made *made)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    (void)thread;
    CHECK(cuMemCreate(&made->physical, bytes / (2 * MIB) * (2 * MIB), &properties, 0));
}

static void undo_physical(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuMemRelease(made->physical));
}

static void call_stream(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    (void)bytes;
    CHECK(cuStreamCreate(&made->stream, CU_STREAM_NON_BLOCKING));
}

static void undo_stream(struct thread *thread, union made *made)
{
    (void)thread;
    CHECK(cuStreamDestroy_v2(made->stream));
}

static void call_free(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    (void)bytes;
    CHECK(cuMemFree_v2(made->address));
}

static void call_synchronize(struct thread *thread, size_t bytes, union made *made)
{
    (void)thread;
    (void)bytes;
    (void)made;
    CHECK(cuCtxSynchronize());
}

static void call_stream_synchronize(struct thread *thread, size_t bytes, union made *made)
{
    (void)bytes;
    (void)made;
    CHECK(cuStreamSynchronize(thread->stream));
}

static void undo_nothing(struct thread *thread, union made *made)
{
    (void)thread;
    (void)made;
}

static const struct call {
    const char *name;
    void (*make)(struct thread *, size_t bytes, union made *);
    void (*undo)(struct thread *, union made *);
    void (*prepare)(struct thread *, size_t bytes, union made *); /* before the free */
} calls[] = {
    {"alloc", call_alloc, undo_alloc, NULL},
    {"pitch", call_pitch, undo_alloc, NULL},
    {"managed", call_managed, undo_alloc, NULL},
    {"async", call_async, undo_async, NULL},
    {"from_pool", call_from_pool, undo_async, NULL},
    {"host", call_host, undo_host, NULL},
    {"array", call_array, undo_array, NULL},
    {"array3d", call_array3d, undo_array, NULL},
    {"mipmapped", call_mipmapped, undo_mipmapped, NULL},
    {"context", call_context, undo_context, NULL},
    {"module", call_module, undo_module, NULL},
    {"library", call_library, undo_library, NULL},
    {"graph", call_graph, undo_graph, NULL},
    {"physical", call_physical, undo_physical, NULL},
    {"stream", call_stream, undo_stream, NULL},
    {"free", call_free, undo_nothing, call_alloc},
    {"synchronize", call_synchronize, undo_nothing, NULL},
    {"stream_synchronize", call_stream_synchronize, undo_nothing, NULL},
};
static const struct call *what_is_called = &calls[0];

/* --- rounds ------------------------------------------------------------------------------------*/

static const char *volatile doing = "setting up";

static void say_what_hangs(int signal)
{
    static const char text[] = "locks: no progress: ";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 ||
        write(STDERR_FILENO, doing, strlen(doing)) < 0 || write(STDERR_FILENO, "\n", 1) < 0)
        _exit(1);
    _exit(1);
}

static size_t next_size(struct thread *thread)
{
    size_t range = most_mib - least_mib + 1;
    return (least_mib + next_random(&thread->random) % range) * MIB;
}

static void open_thread(struct thread *thread, unsigned int index)
{
    void *memory;
    thread->random = index + 1;
    pthread_mutex_init(&thread->lock, NULL);
    CHECK(cuStreamCreate(&thread->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&thread->other, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemHostAlloc(&memory, MAX_ROUNDS * sizeof(uint64_t),
                         CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cuMemHostGetDevicePointer_v2(&thread->flags_on_device, memory, 0));
    memset(memory, 0, MAX_ROUNDS * sizeof(uint64_t));
    thread->flags = memory;
    if (what_waits->prepare != NULL)
        what_waits->prepare(thread);
    if (thread->graph != NULL) {
        CHECK(cuGraphInstantiateWithFlags(&thread->exec, thread->graph, 0));
        CHECK(cuGraphDestroy(thread->graph));
    }
    thread->has_releaser = what_waits->released && !atomic_load(&not_supported);
    sem_init(&thread->release, 0, 0);
    if (thread->has_releaser && pthread_create(&thread->releaser, NULL, run_releaser, thread) != 0)
        FAIL("no thread could be started");
}

/* A block, its work, and behind that what waits for the lock; then the free. */
static void free_behind_what_waits(struct thread *thread, CUdeviceptr block)
{
    fill(&kernels, thread->stream, block, WORDS, thread->round);
    spin_then_verify(&kernels, thread->stream, 100000, block, WORDS, thread->round, mismatches);
    /* First, since another thread's free may wait for this work with the driver's lock held. */
    if (thread->has_releaser)
        sem_post(&thread->release);
    what_waits->submit(thread);
    CHECK(cuMemFree_v2(block));
}

static void run_round(struct thread *thread)
{
    size_t bytes = next_size(thread);
    union made made = {0};
    CUdeviceptr block;
    if (what_is_called->prepare != NULL)
        what_is_called->prepare(thread, next_size(thread), &made);
    CHECK(cuMemAlloc_v2(&block, bytes));
    free_behind_what_waits(thread, block);
    pthread_mutex_lock(&thread->lock);
    what_is_called->make(thread, call_mib > 0 ? call_mib * MIB : next_size(thread), &made);
    pthread_mutex_unlock(&thread->lock);
    what_is_called->undo(thread, &made);
    alarm(seconds_allowed);
    atomic_fetch_add(&rounds_done, 1);
}

static void run_rounds(unsigned int index)
{
    struct thread *thread = &all[index];
    CHECK(cuCtxSetCurrent(context));
    for (; thread->round < rounds && !atomic_load(&not_supported); thread->round++)
        run_round(thread);
    CHECK(cuStreamSynchronize(thread->stream));
}

/* Leaves so much of the device's memory to the rounds. */
static void leave_only(size_t mib)
{
    size_t left, total;
    CUdeviceptr taken;
    CHECK(cuMemGetInfo_v2(&left, &total));
    if (mib > 0 && left > mib * MIB)
        CHECK(cuMemAlloc_v2(&taken, left - mib * MIB));
}

static void report(double ms)
{
    unsigned int pushed = 0;
    for (unsigned int i = 0; i < threads; i++)
        pushed += all[i].pushed;
    if (atomic_load(&not_supported))
        printf("locks: %.1f ms, not supported here\n", ms);
    else
        printf("locks: %.1f ms, %u rounds, %u let through, %llu wrong words\n", ms,
               atomic_load(&rounds_done), pushed, read_counter(mismatches));
}

static void take_turns(size_t leave_mib)
{
    struct worker workers[MAX_THREADS];
    double start;
    for (unsigned int i = 0; i < threads; i++)
        open_thread(&all[i], i);
    leave_only(leave_mib);
    start = now_ms();
    alarm(seconds_allowed);
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&workers[i], run_rounds, i);
    for (unsigned int i = 0; i < threads; i++) {
        join_worker(&workers[i]);
        if (all[i].has_releaser && !atomic_load(&not_supported))
            pthread_join(all[i].releaser, NULL);
    }
    report(now_ms() - start);
}

/* --- cases of their own ------------------------------------------------------------------------*/

/* A kernel that the releaser, once it has the lock, lets go on; and its stream. */
static void begin_released_kernel(struct thread *thread)
{
    wait_in_kernel(thread);
    sem_post(&thread->release);
}

static CUdeviceptr block_of(size_t bytes)
{
    CUdeviceptr block;
    CHECK(cuMemAlloc_v2(&block, bytes));
    return block;
}

static size_t sixteenths(size_t count)
{
    size_t left, total;
    CHECK(cuMemGetInfo_v2(&left, &total));
    return total / 16 * count / (2 * MIB) * (2 * MIB);
}

/* Of 16 GiB, 7 freed behind a kernel, and 12 wanted under the lock that lets the kernel go on. */
static void case_large_blocks(void)
{
    struct thread *thread = &all[0];
    for (; thread->round < rounds; thread->round++) {
        CUdeviceptr freed = block_of(sixteenths(7)), wanted;
        begin_released_kernel(thread);
        CHECK(cuMemFree_v2(freed));
        pthread_mutex_lock(&thread->lock);
        wanted = block_of(sixteenths(12));
        pthread_mutex_unlock(&thread->lock);
        CHECK(cuMemFree_v2(wanted));
        alarm(seconds_allowed);
    }
    pthread_join(thread->releaser, NULL);
}

/* A block that was freed behind a kernel and is wanted again at once: with a pool it may come back
 * behind a barrier. Then the lock is taken, and something is called. */
static CUdeviceptr block_behind_a_kernel(struct thread *thread)
{
    size_t bytes = least_mib * MIB;
    CUdeviceptr block = block_of(bytes);
    fill(&kernels, thread->stream, block, WORDS, 1);
    begin_released_kernel(thread);
    CHECK(cuMemFree_v2(block));
    return block_of(bytes);
}

static void case_second_device(void)
{
    struct thread *thread = &all[0];
    CUdevice second;
    CUcontext other;
    CHECK(cuDeviceGet(&second, 1));
    for (; thread->round < rounds; thread->round++) {
        CUdeviceptr block = block_behind_a_kernel(thread);
        pthread_mutex_lock(&thread->lock);
        CHECK(cuDevicePrimaryCtxRetain(&other, second));
        pthread_mutex_unlock(&thread->lock);
        CHECK(cuMemFree_v2(block));
        CHECK(cuDevicePrimaryCtxRelease_v2(second));
        alarm(seconds_allowed);
    }
    pthread_join(thread->releaser, NULL);
}

static void push_slowly_under_lock(void *thread)
{
    struct timespec a_while = {1, 500000000};
    nanosleep(&a_while, NULL);
    push(thread);
}

static void *pinned_block(void)
{
    void *block;
    CHECK(cuMemHostAlloc(&block, 64 * MIB, 0));
    return block;
}

/* An allocation of pinned memory waits in vain for a kernel, of which nobody can know what it needs
 * in order to end. Soon after that a host function takes its time before it takes the lock: the
 * free before the lock has to wait for it, or the program's own wait under the lock would never
 * end. */
static void case_slow_host_function(void)
{
    struct thread *thread = &all[0];
    for (; thread->round < rounds; thread->round++) {
        void *first = pinned_block(), *second = pinned_block(), *third;
        begin_released_kernel(thread);
        CHECK(cuMemFreeHost(first));
        pthread_mutex_lock(&thread->lock);
        third = pinned_block();
        pthread_mutex_unlock(&thread->lock);
        CHECK(cuStreamSynchronize(thread->stream));
        CHECK(cuLaunchHostFunc(thread->stream, push_slowly_under_lock, thread));
        CHECK(cuMemFreeHost(second));
        pthread_mutex_lock(&thread->lock);
        CHECK(cuStreamSynchronize(thread->stream));
        pthread_mutex_unlock(&thread->lock);
        CHECK(cuMemFreeHost(third));
        alarm(seconds_allowed);
    }
    pthread_join(thread->releaser, NULL);
}

static void case_exported_memory(void)
{
    struct thread *thread = &all[0];
    for (; thread->round < rounds; thread->round++) {
        CUdeviceptr block = block_behind_a_kernel(thread);
        CUipcMemHandle handle;
        pthread_mutex_lock(&thread->lock);
        CHECK(cuIpcGetMemHandle(&handle, block));
        pthread_mutex_unlock(&thread->lock);
        CHECK(cuMemFree_v2(block));
        alarm(seconds_allowed);
    }
    pthread_join(thread->releaser, NULL);
}

/* A kernel on another device runs all the time, while this one's frees have work before them that
 * waits for the lock: it is none of their business. */
static void case_another_device(void)
{
    struct thread *thread = &all[0];
    struct kernels there;
    CUcontext other;
    CUstream stream;
    CUdevice second;
    volatile uint64_t *flag = thread->flags + MAX_ROUNDS - 1;
    CHECK(cuDeviceGet(&second, 1));
    CHECK(cuDevicePrimaryCtxRetain(&other, second));
    CHECK(cuCtxSetCurrent(other));
    load_kernels(&there);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    *flag = 0;
    wait_flag(&there, stream, thread->flags_on_device + (MAX_ROUNDS - 1) * sizeof(uint64_t));
    CHECK(cuCtxSetCurrent(context));
    run_rounds(0);
    *flag = 1;
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxSetCurrent(context));
}

/* The most bytes of case_long_kernels that were asked for and not freed yet, at one time. */
static atomic_size_t held, most_held;

static void hold(size_t bytes)
{
    size_t now = atomic_fetch_add_explicit(&held, bytes, memory_order_relaxed) + bytes;
    size_t most = atomic_load_explicit(&most_held, memory_order_relaxed);
    while (now > most && !atomic_compare_exchange_weak_explicit(
                             &most_held, &most, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Kernels of seconds in many threads: nothing becomes clean for long, and nobody needs a lock. */
static void run_long_kernels(unsigned int index)
{
    struct thread *thread = &all[index];
    CHECK(cuCtxSetCurrent(context));
    for (; thread->round < rounds; thread->round++) {
        size_t bytes = next_size(thread);
        hold(bytes);
        CUdeviceptr block = block_of(bytes);
        fill(&kernels, thread->stream, block, WORDS, index);
        spin_then_verify(&kernels, thread->stream, kernel_ns, block, WORDS, index, mismatches);
        CHECK(cuMemFree_v2(block));
        atomic_fetch_sub_explicit(&held, bytes, memory_order_relaxed);
        alarm(seconds_allowed);
    }
    CHECK(cuStreamSynchronize(thread->stream));
}

/* When all is over, a block of a new size makes the pool return what is past its bound. */
static void case_long_kernels(void)
{
    struct worker workers[MAX_THREADS];
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&workers[i], run_long_kernels, i);
    for (unsigned int i = 0; i < threads; i++)
        join_worker(&workers[i]);
    CHECK(cuCtxSynchronize());
    CUdeviceptr larger = block_of(2 * most_mib * MIB);
    hold(2 * most_mib * MIB);
    printf("held: %zu MiB\n", atomic_load_explicit(&most_held, memory_order_relaxed) / MIB);
    if (simcuda_live_bytes != NULL)
        printf("taken: %llu MiB\n", (unsigned long long)(simcuda_live_bytes() / MIB));
    CHECK(cuMemFree_v2(larger));
}

/* Starts a long kernel at the beginning of each period. */
static void start_long_kernels(unsigned int index)
{
    struct timespec period = {period_ms / 1000, period_ms % 1000 * 1000000};
    CHECK(cuCtxSetCurrent(context));
    for (unsigned int i = 0; i < rounds; i++) {
        if (i > 0)
            nanosleep(&period, NULL);
        spin(&kernels, all[index].other, kernel_ns);
    }
    CHECK(cuStreamSynchronize(all[index].other));
}

/* One request after the other, for so many periods: how many it serves is its speed. */
static void case_service(void)
{
    struct thread *thread = &all[0];
    struct worker other;
    unsigned long requests = 0;
    double end = now_ms() + (double)rounds * (double)period_ms;
    start_worker(&other, start_long_kernels, 0);
    for (; now_ms() < end; requests++) {
        CUdeviceptr block = block_of(next_size(thread));
        fill(&kernels, thread->stream, block, WORDS, 1);
        spin_then_verify(&kernels, thread->stream, 20000, block, WORDS, 1, mismatches);
        CHECK(cuStreamSynchronize(thread->stream));
        CHECK(cuMemFree_v2(block));
        alarm(seconds_allowed);
    }
    join_worker(&other);
    printf("requests: %lu\n", requests);
}

static const struct special_case {
    const char *name;
    void (*run)(void);
    const char *wait; /* what the rounds of the thread wait for */
} cases[] = {
    {"large_blocks", case_large_blocks, "kernel"},
    {"second_device", case_second_device, "kernel"},
    {"exported_memory", case_exported_memory, "kernel"},
    {"slow_host_function", case_slow_host_function, "kernel"},
    {"another_device", case_another_device, "host_function"},
    {"long_kernels", case_long_kernels, "nothing"},
    {"service", case_service, "nothing"},
};

/* --- the program -------------------------------------------------------------------------------*/

static const char *word(int argc, char **argv, const char *name, const char *otherwise)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
            return argv[i] + length + 1;
    return otherwise;
}

/* The entry with that name, in a table whose entries begin with their names. */
static const void *entry(const void *table, size_t size, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        const void *found = (const char *)table + i * size;
        if (strcmp(*(const char *const *)found, name) == 0)
            return found;
    }
    FAIL("\"%s\" is none of those that the source lists", name);
}
#define ENTRY(table, name) entry(table, sizeof *(table), sizeof(table) / sizeof *(table), name)

static void read_arguments(int argc, char **argv)
{
    threads = (unsigned int)argument(argc, argv, "threads", 1);
    rounds = (unsigned int)argument(argc, argv, "rounds", 20);
    least_mib = argument(argc, argv, "least_mib", 200);
    most_mib = argument(argc, argv, "most_mib", 400);
    call_mib = argument(argc, argv, "call_mib", 0);
    seconds_allowed = (unsigned int)argument(argc, argv, "seconds", 20);
    kernel_ns = argument(argc, argv, "kernel_ms", 2000) * 1000000ull;
    period_ms = (long)argument(argc, argv, "period_ms", 10000);
    what_waits = ENTRY(waits, word(argc, argv, "wait", "host_function"));
    what_is_called = ENTRY(calls, word(argc, argv, "call", "alloc"));
    if (threads < 1 || threads > MAX_THREADS || rounds >= MAX_ROUNDS || least_mib < 1 ||
        most_mib < least_mib)
        FAIL("threads=%u rounds=%u least_mib=%zu most_mib=%zu: must be 1 to %d, below %d, at least "
             "1 and no less than that",
             threads, rounds, least_mib, most_mib, MAX_THREADS, MAX_ROUNDS);
}

static void run_special_case(const struct special_case *special)
{
    double start;
    what_waits = ENTRY(waits, special->wait);
    for (unsigned int i = 0; i < threads; i++)
        open_thread(&all[i], i);
    start = now_ms();
    alarm(seconds_allowed);
    special->run();
    printf("locks: %.1f ms, %s, %llu wrong words\n", now_ms() - start, special->name,
           read_counter(mismatches));
}

int main(int argc, char **argv)
{
    const char *special = word(argc, argv, "case", NULL);
    read_arguments(argc, argv);
    signal(SIGALRM, say_what_hangs);
    context = open_primary();
    CHECK(cuDeviceGet(&device, 0));
    load_kernels(&kernels);
    mismatches = new_counter();
    doing = special != NULL ? special : what_is_called->name;
    if (special != NULL)
        run_special_case(ENTRY(cases, special));
    else
        take_turns(argument(argc, argv, "leave_mib", 0));
    return 0;
}
