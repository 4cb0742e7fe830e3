/*
 * Stream-ordered memory where an order that the program relies on is easily lost, a case to a
 * process. All cases but those that ask for addresses also run without the pool.
 */
#include <pthread.h>
#include <unistd.h>

#include "pool.h"

#pragma weak cudapool_generation
#pragma weak cudapool_reap
#pragma weak cudapool_record_use

enum { WORDS = 1024 };

static struct kernels kernels;

static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
}

/* On a stream that others order, each free puts an operation there: of the second size an event
 * that can be asked about. */
static const size_t sizes[] = {MIB, 16 * MIB};

/* Runs the case with blocks of both. */
static void with_both(void (*run)(size_t bytes))
{
    furnish();
    for (unsigned i = 0; i < 2; i++) {
        run(sizes[i]);
        CU(cuCtxSynchronize());
    }
}

/* Frees and allocations on the legacy stream come after all blocking streams' work, and before all
 * that they are given later: the block of one blocking stream may be another's, without an event.
 */
static void legacy_orders(CUstream one, size_t bytes)
{
    CUstream other = new_blocking_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(NULL, bytes);
    fill(&kernels, one, block, WORDS, 1);
    struct gate gate = close_gate(&kernels, one);
    spin_then_verify(&kernels, one, 2000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, NULL));
    CUdeviceptr again = take_on(NULL, bytes);
    CHECK(!has_pool() || again == block);
    fill(&kernels, other, again, WORDS, 2);
    sleep_ms(20);
    open_gate(gate);
    EQUAL(0, read_counter(wrong));
}

static void legacy_orders_a_blocking_stream(size_t bytes)
{
    legacy_orders(new_blocking_stream(), bytes);
}

static void legacy_orders_blocking_streams(void)
{
    with_both(legacy_orders_a_blocking_stream);
}

/* The same with the calling thread's own stream, which is a blocking one. */
static void legacy_orders_own_stream(size_t bytes)
{
    legacy_orders(CU_STREAM_PER_THREAD, bytes);
}

static void legacy_orders_per_thread_streams(void)
{
    with_both(legacy_orders_own_stream);
}

typedef CUresult wait_for_stream(CUstream stream);

static CUresult poll(CUstream stream)
{
    CUresult result;
    while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
        sleep_ms(1);
    return result;
}

static CUresult synchronise_event(CUstream stream)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, stream));
    return cuEventSynchronize(event);
}

static CUresult reap(CUstream stream)
{
    (void)stream;
    cudapool_reap();
    return CUDA_SUCCESS;
}

/* Nothing is waited for: what the pool keeps goes back, as far as it is over. */
static CUresult trim(CUstream stream)
{
    CUmemoryPool memory_pool;
    CU(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    CU(cuStreamSynchronize(stream));
    return cuMemPoolTrimTo(memory_pool, 0);
}

static void use_for(CUstream stream, CUdeviceptr block, CUdeviceptr wrong)
{
    fill(&kernels, stream, block, WORDS, 1);
    spin_then_verify(&kernels, stream, 30000000, block, WORDS, 1, wrong);
}

/* What the legacy stream does with the block comes before a blocking stream's free of it, and a
 * wait for that stream waits for both. */
static void waited_for_after_legacy(wait_for_stream *wait, CUstream stream, size_t bytes)
{
    CUdeviceptr wrong = new_counter(), block = take_on(stream, bytes);
    CUstream other = new_stream();
    use_for(NULL, block, wrong);
    CU(cuMemFreeAsync(block, stream));
    CU(wait(stream));
    block = take_on(other, bytes);
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static void synchronised(size_t bytes)
{
    waited_for_after_legacy(cuStreamSynchronize, new_blocking_stream(), bytes);
    waited_for_after_legacy(cuStreamSynchronize, CU_STREAM_PER_THREAD, bytes);
}

static void synchronise_after_the_legacy_stream(void)
{
    with_both(synchronised);
}

static void polled(size_t bytes)
{
    waited_for_after_legacy(poll, new_blocking_stream(), bytes);
    waited_for_after_legacy(poll, CU_STREAM_PER_THREAD, bytes);
}

static void query_after_the_legacy_stream(void)
{
    with_both(polled);
}

static void event_synchronised(size_t bytes)
{
    waited_for_after_legacy(synchronise_event, new_blocking_stream(), bytes);
}

static void event_after_the_legacy_stream(void)
{
    with_both(event_synchronised);
}

static void reaped(size_t bytes)
{
    waited_for_after_legacy(reap, new_blocking_stream(), bytes);
}

static void reaped_after_the_legacy_stream(void)
{
    with_both(reaped);
}

static void trimmed(size_t bytes)
{
    waited_for_after_legacy(trim, new_blocking_stream(), bytes);
}

static void trimmed_after_the_legacy_stream(void)
{
    with_both(trimmed);
}

/* And so it does for an allocation that the stream's own order gives. */
static void allocated(size_t bytes)
{
    CUstream stream = new_blocking_stream(), other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(stream, bytes);
    use_for(NULL, block, wrong);
    CU(cuMemFreeAsync(block, stream));
    block = take_on(stream, bytes);
    CU(cuStreamSynchronize(stream));
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static void allocation_after_the_legacy_stream(void)
{
    with_both(allocated);
}

/* The legacy stream's operation stands between two blocking streams. */
static void freed_on_another(size_t bytes)
{
    CUstream user = new_blocking_stream(), stream = new_blocking_stream(), other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(user, bytes);
    use_for(user, block, wrong);
    spin(&kernels, NULL, 1);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    block = take_on(other, bytes);
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static void freed_on_another_blocking_stream(void)
{
    with_both(freed_on_another);
}

/* The legacy stream only waits for an event. */
static void event_on_legacy(size_t bytes)
{
    CUevent event;
    CUstream user = new_stream(), stream = new_blocking_stream(), other = new_stream();
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr wrong = new_counter(), block = take_on(user, bytes);
    use_for(user, block, wrong);
    CU(cuEventRecord(event, user));
    CU(cuStreamWaitEvent(NULL, event, 0));
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    block = take_on(other, bytes);
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static void event_that_the_legacy_stream_waits_for(void)
{
    with_both(event_on_legacy);
}

/* ---- a free is an operation of its stream ---- */

static volatile unsigned long long *told;
static CUdeviceptr told_at;

static void make_flag(void)
{
    void *memory;
    CU(cuMemHostAlloc(&memory, sizeof *told, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer_v2(&told_at, memory, 0));
    told = memory;
}

static void tell_later(CUstream stream)
{
    *told = 0;
    spin(&kernels, stream, 30000000);
    CU(cuLaunchKernel(kernels.set_flag, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&told_at}, NULL));
}

static void close_barrier(CUstream behind)
{
    CUcontext context;
    CUevent event;
    CU(cuCtxGetCurrent(&context));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, behind));
    CU(cuCtxWaitEvent(context, event));
}

/* The host waits for a stream that has nothing but the free, which others' work comes before: also
 * of blocks of which nobody has used anything. */
static void wait_for_frees(CUstream worker, CUstream stream, wait_for_stream *wait)
{
    for (int i = 0; i < 12; i++) {
        CUdeviceptr block = take_on(stream, sizes[i % 4 == 3]);
        tell_later(worker);
        CU(cuMemFreeAsync(block, stream));
        CU(wait(stream));
        EQUAL(1, (unsigned)*told);
    }
}

static void frees_are_waited_for(void)
{
    furnish();
    make_flag();
    CUstream blocking = new_blocking_stream();
    wait_for_frees(NULL, blocking, cuStreamSynchronize);
    wait_for_frees(NULL, CU_STREAM_PER_THREAD, poll);
    wait_for_frees(blocking, NULL, cuStreamSynchronize);
}

/* The barrier before it comes before its stream's free. */
static void frees_behind_a_barrier_are_waited_for(void)
{
    furnish();
    make_flag();
    CUstream worker = new_stream(), stream = new_stream();
    for (int i = 0; i < 12; i++) {
        CUdeviceptr block = take_on(stream, MIB);
        tell_later(worker);
        close_barrier(worker);
        CU(cuMemFreeAsync(block, stream));
        CU(cuStreamSynchronize(stream));
        EQUAL(1, (unsigned)*told);
    }
}

/* On the legacy stream it stands between two blocking streams. */
static void frees_stand_between_blocking_streams(void)
{
    furnish();
    make_flag();
    CUstream before = new_blocking_stream(), after = new_blocking_stream();
    for (int i = 0; i < 12; i++) {
        CUdeviceptr block = take_on(NULL, sizes[i % 4 == 3]);
        tell_later(before);
        CU(cuMemFreeAsync(block, NULL));
        spin(&kernels, after, 1);
        CU(cuStreamSynchronize(after));
        EQUAL(1, (unsigned)*told);
    }
}

/* What is submitted after the free, a wait for the stream does not wait for: a free is an operation
 * there, an allocation and the wait are none. */
static void frees_end_what_is_waited_for(CUstream stream, wait_for_stream *wait, bool allocates,
                                         size_t bytes)
{
    CUdeviceptr block = take_on(stream, bytes);
    CU(cuMemFreeAsync(block, stream));
    struct gate gate = close_gate(&kernels, NULL);
    if (allocates)
        take_on(stream, bytes);
    alarm(10);
    CU(wait(stream));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static void later_work_on_legacy(size_t bytes)
{
    CUstream streams[] = {new_blocking_stream(), CU_STREAM_PER_THREAD};
    for (unsigned i = 0; i < 4; i++) {
        frees_end_what_is_waited_for(streams[i % 2], cuStreamSynchronize, i / 2, bytes);
        frees_end_what_is_waited_for(streams[i % 2], poll, i / 2, bytes);
    }
}

static void waits_end_before_the_legacy_streams_later_work(void)
{
    with_both(later_work_on_legacy);
}

/* The same with a barrier of the program's in the context. */
static void later_barrier(size_t bytes)
{
    CUcontext context;
    CUevent event;
    CU(cuCtxGetCurrent(&context));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUstream stream = new_stream(), other = new_stream();
    CUdeviceptr block = take_on(stream, bytes);
    CU(cuMemFreeAsync(block, stream));
    struct gate gate = close_gate(&kernels, other);
    CU(cuEventRecord(event, other));
    CU(cuCtxWaitEvent(context, event));
    take_on(stream, bytes);
    alarm(10);
    CU(poll(stream));
    CU(cuStreamSynchronize(stream));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static void waits_end_before_a_later_barrier(void)
{
    with_both(later_barrier);
}

/* The program's own barrier in the context orders what comes after it, frees and allocations too.
 */
static CUcontext neighbour;
static struct kernels others;

static CUstream stream_of_a_neighbour(void)
{
    CUcontext context;
    CU(cuCtxGetCurrent(&context));
    CU(cuCtxCreate_v2(&neighbour, 0, 0));
    load_kernels(&others);
    CUstream stream = new_stream();
    CU(cuCtxSetCurrent(context));
    return stream;
}

static void allocated_behind_a_barrier(size_t bytes)
{
    CUcontext context;
    CU(cuCtxGetCurrent(&context));
    CUstream abroad = stream_of_a_neighbour(), stream = new_stream(), user = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(user, bytes);
    use_for(user, block, wrong);
    close_barrier(user);
    CU(cuMemFreeAsync(block, stream));
    block = take_on(stream, bytes);
    CU(cuStreamSynchronize(stream));
    CU(cuCtxSetCurrent(neighbour));
    fill(&others, abroad, block, WORDS, 2);
    CU(cuStreamSynchronize(abroad));
    CU(cuCtxSetCurrent(context));
    EQUAL(0, read_counter(wrong));
}

static void allocation_behind_a_barrier(void)
{
    with_both(allocated_behind_a_barrier);
}

static void synchronised_behind_a_barrier(size_t bytes)
{
    CUstream stream = new_stream(), user = new_stream(), other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(user, bytes);
    use_for(user, block, wrong);
    close_barrier(user);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    block = take_on(other, bytes);
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static void synchronise_behind_a_barrier(void)
{
    with_both(synchronised_behind_a_barrier);
}

/* The barrier of a green context is one of its device's. */
static void allocation_behind_a_green_barrier(void)
{
    CUcontext context, of_green;
    CUevent event;
    CUgreenCtx green;
    CUdevResource resource;
    CUdevResourceDesc description;
    furnish();
    CU(cuCtxGetCurrent(&context));
    CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevResourceGenerateDesc(&description, &resource, 1));
    CU(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx(&of_green, green));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUstream stream, user = new_stream(), other = new_stream();
    CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    CUdeviceptr wrong = new_counter(), block = take_on(user, MIB);
    use_for(user, block, wrong);
    CU(cuEventRecord(event, user));
    CU(cuGreenCtxWaitEvent(green, event));
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    block = take_on(other, MIB);
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static void *destroy_stream(void *stream)
{
    CU(cuStreamDestroy_v2(stream));
    return NULL;
}

/* A thread without a context destroys it, and another one gets its handle. */
static void destroyed_in_a_bare_thread(void)
{
    pthread_t thread;
    furnish();
    CUstream stream = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(stream, MIB);
    fill(&kernels, stream, block, WORDS, 1);
    spin_then_verify(&kernels, stream, 50000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, stream));
    CHECK(pthread_create(&thread, NULL, destroy_stream, stream) == 0);
    pthread_join(thread, NULL);
    CUstream next = new_stream();
    block = take_on(next, MIB);
    fill(&kernels, next, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

static CUstream doomed;
static CUcontext context_of_doomed;

static void *replace_doomed(void *unused)
{
    CU(cuCtxSetCurrent(context_of_doomed));
    CU(cuStreamDestroy_v2(doomed));
    new_stream();
    return unused;
}

static void replace_once(const char *name)
{
    static bool replaced;
    pthread_t thread;
    (void)name;
    if (replaced)
        return;
    replaced = true;
    CHECK(pthread_create(&thread, NULL, replace_doomed, NULL) == 0);
    pthread_join(thread, NULL);
}

/* While it is waited for the stream is destroyed, and its handle another's. */
static void reaped_as_it_ends(void)
{
    furnish();
    CU(cuCtxGetCurrent(&context_of_doomed));
    doomed = new_stream();
    CUstream other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(doomed, MIB);
    fill(&kernels, doomed, block, WORDS, 1);
    spin_then_verify(&kernels, doomed, 300000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, doomed));
    CHECK(simcuda_set_callback("cuEventQuery", replace_once));
    cudapool_reap();
    CHECK(simcuda_set_callback("cuEventQuery", NULL));
    block = take_on(other, MIB);
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

/* An allocation on the legacy stream is no operation there: blocking streams do not wait for it. */
static void legacy_allocation_holds_nobody_up(void)
{
    CUevent event;
    furnish();
    CUstream first = new_blocking_stream(), second = new_blocking_stream(), other = new_stream();
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    take_on(NULL, MIB);
    CUdeviceptr block = take_on(other, MIB);
    spin(&kernels, other, 50000000);
    CU(cuMemFreeAsync(block, other));
    CU(cuEventRecord(event, other));
    CU(cuStreamWaitEvent(NULL, event, 0));
    struct gate gate = close_gate(&kernels, first);
    take_on(NULL, MIB);
    alarm(10);
    spin(&kernels, second, 1000);
    CU(cuStreamSynchronize(second));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* Destroying a memory pool with work under way makes nobody wait for that work. */
static void destroyed_pool_holds_nobody_up(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool memory_pool, standard;
    CUdeviceptr block;
    furnish();
    CUstream one = new_stream(), other = new_stream();
    CU(cuDeviceGetDefaultMemPool(&standard, 0));
    CU(cuMemPoolCreate(&memory_pool, &properties));
    CU(cuMemAllocFromPoolAsync(&block, MIB, memory_pool, one));
    struct gate gate = close_gate(&kernels, one);
    CU(cuMemFreeAsync(block, one));
    alarm(10);
    CU(cuMemPoolDestroy(memory_pool));
    CU(cuMemFreeAsync(take_on(other, MIB), other));
    CU(cuStreamSynchronize(other));
    CU(cuMemPoolTrimTo(standard, 0));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* An allocation whose stream is gone was still a write there. */
static void use_after_a_destroyed_stream(void)
{
    furnish();
    CUstream one = new_stream(), other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(one, MIB);
    uint64_t generation = cudapool_generation(block);
    CUdeviceptr copy = take_on(other, MIB);
    (void)copy;
    spin(&kernels, one, 50000000);
    fill(&kernels, one, block, WORDS, 1);
    CU(cuStreamDestroy_v2(one));
    EQUAL(0, (unsigned)cudapool_record_use(block, generation, other, CUDAPOOL_READ));
    spin_then_verify(&kernels, other, 0, block, WORDS, 1, wrong);
    EQUAL(0, read_counter(wrong));
}

/* Nor is it the next stream's, which the pool knows by the same record. */
static void use_after_a_stream_that_was_followed(void)
{
    furnish();
    CUstream one = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(one, MIB);
    uint64_t generation = cudapool_generation(block);
    spin(&kernels, one, 50000000);
    fill(&kernels, one, block, WORDS, 1);
    CU(cuStreamDestroy_v2(one));
    CUstream next = new_stream();
    take_on(next, 2 * MIB);
    EQUAL(0, (unsigned)cudapool_record_use(block, generation, next, CUDAPOOL_READ));
    spin_then_verify(&kernels, next, 0, block, WORDS, 1, wrong);
    EQUAL(0, read_counter(wrong));
}

/* A launch that may start early, as a node of a graph, is no reason to distrust its stream. */
static void captured_early_launch(void)
{
    unsigned long long none = 0;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, &attribute, 1};
    CUgraph graph;
    furnish();
    CUstream one = new_stream();
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.hStream = one;
    CU(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuLaunchKernelEx(&config, kernels.spin, (void *[]){&none}, NULL));
    CU(cuStreamEndCapture(one, &graph));
    CUdeviceptr block = take_on(one, MIB);
    struct gate gate = close_gate(&kernels, one);
    CU(cuMemFreeAsync(block, one));
    EQUAL(block, take_on(one, MIB));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static CUevent nested_event;
static CUcontext nested_context;

static void wait_meanwhile(const char *name)
{
    (void)name;
    CU(cuCtxWaitEvent(nested_context, nested_event));
}

/* It puts all of the context behind another stream's work. */
static void nested_barrier_is_seen(void)
{
    furnish();
    CU(cuCtxGetCurrent(&nested_context));
    CUstream abroad = stream_of_a_neighbour();
    CUstream stream = new_stream(), other = new_stream(), user = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(user, MIB);
    CU(cuEventCreate(&nested_event, CU_EVENT_DISABLE_TIMING));
    use_for(user, block, wrong);
    CU(cuEventRecord(nested_event, user));
    if (simcuda_set_callback("cuMemAllocFromPoolAsync", wait_meanwhile))
        take_on(stream, 3 * MIB);
    CHECK(simcuda_set_callback("cuMemAllocFromPoolAsync", NULL));
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    block = take_on(other, MIB);
    CU(cuStreamSynchronize(other));
    CU(cuCtxSetCurrent(neighbour));
    fill(&others, abroad, block, WORDS, 2);
    CU(cuStreamSynchronize(abroad));
    CU(cuCtxSetCurrent(nested_context));
    EQUAL(0, read_counter(wrong));
}

/* A use that was told of comes before the free also where the driver makes it, in a capture. */
static void use_before_a_free_in_a_capture(void)
{
    CUgraph graph;
    furnish();
    CUstream stream = new_stream(), reader = new_stream(), captured = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(stream, MIB);
    fill(&kernels, stream, block, WORDS, 1);
    EQUAL(0,
          (unsigned)cudapool_record_use(block, cudapool_generation(block), reader, CUDAPOOL_READ));
    spin_then_verify(&kernels, reader, 100000000, block, WORDS, 1, wrong);
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamEndCapture(captured, &graph));
    block = take_on(stream, MIB);
    fill(&kernels, stream, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

/* A plain free of a block that was in its last owner's use: that one's work comes first. */
static void plain_free_of_what_was_used_again(void)
{
    furnish();
    CUstream stream = new_stream(), other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(stream, MIB);
    use_for(stream, block, wrong);
    CU(cuMemFreeAsync(block, stream));
    block = take_on(stream, MIB);
    double start = now_ms();
    CU(cuMemFree_v2(block));
    CHECK(now_ms() - start < 20);
    block = take_on(other, MIB);
    fill(&kernels, other, block, WORDS, 2);
    block = take_on(stream, MIB);
    fill(&kernels, stream, block, WORDS, 3);
    EQUAL(0, read_counter(wrong));
    CU(cuCtxSynchronize());
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(1));
}

/* A thread without a context of its own destroys a stream of another one's. */
static void destroyed_without_a_context(void)
{
    CUcontext context;
    furnish();
    CU(cuCtxGetCurrent(&context));
    CUstream stream = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(stream, MIB);
    use_for(stream, block, wrong);
    CU(cuMemFreeAsync(block, stream));
    CU(cuCtxSetCurrent(NULL));
    CU(cuStreamDestroy_v2(stream));
    CU(cuCtxSetCurrent(context));
    CUstream next = new_stream();
    block = take_on(next, MIB);
    fill(&kernels, next, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

/* The stream of a use is captured: nothing can stand for its work now, and nobody may come to be a
 * part of the capture by waiting for it. */
static void use_on_a_stream_that_is_captured(void)
{
    CUgraph graph;
    size_t nodes = 1;
    furnish();
    CUstream stream = new_stream(), reader = new_stream();
    CUdeviceptr block = take_on(stream, MIB);
    uint64_t generation = cudapool_generation(block);
    EQUAL(0, (unsigned)cudapool_record_use(block, generation, reader, CUDAPOOL_READ));
    CU(cuStreamBeginCapture_v2(reader, CU_STREAM_CAPTURE_MODE_RELAXED));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFreeAsync(block, stream));
    EQUAL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          (unsigned)cudapool_record_use(block, generation, stream, CUDAPOOL_WRITE));
    EQUAL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          (unsigned)cudapool_record_use(block, generation, reader, CUDAPOOL_WRITE));
    CU(cuStreamEndCapture(reader, &graph));
    CU(cuGraphGetNodes(graph, NULL, &nodes));
    EQUAL(0, nodes);
    CU(cuMemFreeAsync(block, stream));
    CU(cuCtxSynchronize());
}

/* Where an older driver would have to wait for the context, a capture that goes on is let be. */
static void use_on_a_lost_stream_in_a_capture(void)
{
    CUgraph graph;
    furnish();
    CUstream stream = new_stream(), reader = new_stream(), captured = new_stream();
    CUdeviceptr block = take_on(stream, MIB);
    uint64_t generation = cudapool_generation(block);
    EQUAL(0, (unsigned)cudapool_record_use(block, generation, reader, CUDAPOOL_READ));
    CU(cuStreamDestroy_v2(reader));
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFreeAsync(block, stream));
    CU(cuStreamEndCapture(captured, &graph));
    CU(cuMemFreeAsync(block, stream));
    CU(cuCtxSynchronize());
}

static CUmemoryPool new_memory_pool(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool memory_pool;
    CU(cuMemPoolCreate(&memory_pool, &properties));
    return memory_pool;
}

/* More memory pools than are known at a time, one after the other. */
static void memory_pools_come_and_go(void)
{
    furnish();
    CUstream stream = new_stream();
    for (int i = 0; i < 1500; i++) {
        CUmemoryPool memory_pool = new_memory_pool();
        CUdeviceptr block;
        CU(cuMemAllocFromPoolAsync(&block, MIB, memory_pool, stream));
        CHECK(cudapool_generation(block) != 0);
        CU(cuMemFreeAsync(block, stream));
        CU(cuMemPoolDestroy(memory_pool));
    }
    CU(cuCtxSynchronize());
    EQUAL(0, simcuda_live_allocations());
}

static _Atomic bool finished;

static void *change_memory_pools(void *context)
{
    CU(cuCtxSetCurrent(context));
    for (int i = 0; i < 300; i++) {
        CUmemoryPool memory_pool = new_memory_pool();
        CU(cuDeviceSetMemPool(0, memory_pool));
        CU(cuMemPoolDestroy(memory_pool));
    }
    finished = true;
    return NULL;
}

/* The current pool is destroyed, and another one made, while a thread allocates from it. */
static void current_pool_is_destroyed(void)
{
    pthread_t thread;
    CUcontext context;
    furnish();
    CU(cuCtxGetCurrent(&context));
    CUstream stream = new_stream();
    CHECK(pthread_create(&thread, NULL, change_memory_pools, context) == 0);
    while (!finished) {
        CUdeviceptr block = take_on(stream, MIB);
        fill(&kernels, stream, block, WORDS, 1);
        CU(cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}));
        CU(cuMemFreeAsync(block, stream));
    }
    pthread_join(thread, NULL);
    CU(cuCtxSynchronize());
}

/* What a destroyed stream's handle is answered, and that nothing is freed by it. */
static void handle_of_a_destroyed_stream(void)
{
    furnish();
    CUstream stream = new_stream(), other = new_stream();
    CUdeviceptr block = take_on(stream, MIB), more = 0;
    CU(cuMemFreeAsync(block, stream));
    block = take_on(stream, MIB);
    CU(cuStreamDestroy_v2(stream));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuMemAllocAsync(&more, MIB, stream));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuMemFreeAsync(block, stream));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
    CU(cuMemsetD32Async(block, 1, WORDS, other));
    CU(cuMemFreeAsync(block, other));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, other));
}

/* Memory belongs to the pool that it came from, whichever is current as it is freed. */
static void current_pool_changes_before_the_free(void)
{
    CUmemoryPool own, standard;
    CUdeviceptr again;
    furnish();
    CUstream stream = new_stream();
    CU(cuDeviceGetDefaultMemPool(&standard, 0));
    own = new_memory_pool();
    CU(cuDeviceSetMemPool(0, own));
    CUdeviceptr block = take_on(stream, MIB);
    CU(cuDeviceSetMemPool(0, standard));
    CU(cuMemFreeAsync(block, stream));
    CUdeviceptr other = take_on(stream, MIB);
    CHECK(other != block);
    CU(cuMemAllocFromPoolAsync(&again, MIB, own, stream));
    EQUAL(block, again);
    CU(cuMemFreeAsync(other, stream));
    CU(cuDeviceSetMemPool(0, own));
    CHECK(take_on(stream, MIB) != other);
    CU(cuMemFreeAsync(again, stream));
    CU(cuCtxSynchronize());
}

/* Memory is the stream's device's, whichever context is current; also where it is freed. */
static void stream_of_another_device(void)
{
    CUcontext here, there;
    CUdevice device;
    furnish();
    CU(cuCtxGetCurrent(&here));
    CU(cuDeviceGet(&device, 1));
    CU(cuDevicePrimaryCtxRetain(&there, device));
    CU(cuCtxSetCurrent(there));
    CUstream stream = new_stream(), second = new_stream();
    CU(cuCtxSetCurrent(here));
    for (int i = 0; i < 3; i++) {
        int ordinal = -1;
        CUdeviceptr block = take_on(stream, MIB);
        CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
        EQUAL(1, (unsigned)ordinal);
        CU(cuMemsetD32Async(block, 1, WORDS, stream));
        CU(cuMemFreeAsync(block, stream));
        if (i == 0)
            CU(cuStreamSynchronize(stream));
        CUdeviceptr other = take_on(second, MIB);
        if (has_pool() && i == 0)
            EQUAL(block, other);
        CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, other));
        EQUAL(1, (unsigned)ordinal);
        CU(cuMemsetD32Async(other, 2, WORDS, second));
        CU(cuMemFreeAsync(other, second));
        CUdeviceptr local = take_on(NULL, MIB);
        CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, local));
        EQUAL(0, (unsigned)ordinal);
        CU(cuMemFreeAsync(local, NULL));
    }
    CU(cuCtxSynchronize());
    CU(cuStreamSynchronize(stream));
}

/* Destroying no stream ends none. */
static void no_stream_is_destroyed(void)
{
    furnish();
    CUdeviceptr block = take_on(NULL, sizes[1]);
    struct gate gate = close_gate(&kernels, NULL);
    CU(cuMemFreeAsync(block, NULL));
    CHECK(cuStreamDestroy_v2(NULL) != CUDA_SUCCESS);
    EQUAL(block, take_on(NULL, sizes[1]));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* A release that is not the last one ends nothing: what is kept stays, and nobody waits. */
static void release_that_ends_nothing(void)
{
    CUcontext context;
    furnish();
    CUstream stream = new_stream(), destroyed = new_stream();
    CUdeviceptr block = take_on(stream, MIB), other = take_on(destroyed, MIB);
    struct gate gate = close_gate(&kernels, destroyed);
    CU(cuMemFreeAsync(block, stream));
    CU(cuMemFreeAsync(other, destroyed));
    CU(cuStreamDestroy_v2(destroyed));
    double start = now_ms();
    alarm(10);
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(now_ms() - start < 3000);
    EQUAL(block, take_on(stream, MIB));
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static CUcontext shared_context;

static void *reap_all(void *unused)
{
    CU(cuCtxSetCurrent(shared_context));
    cudapool_reap();
    return unused;
}

static void *run_out_of_memory(void *unused)
{
    CUdeviceptr block;
    CU(cuCtxSetCurrent(shared_context));
    CUstream stream = new_stream();
    cuMemAllocAsync(&block, (size_t)990 * MIB, stream);
    return unused;
}

/* Beside a thread that waits, in a call of the pool's, for work that is told to end afterwards. */
static void release_beside(void *(*waiting)(void *))
{
    pthread_t thread;
    CUcontext context;
    furnish();
    CU(cuCtxGetCurrent(&shared_context));
    CUstream stream = new_stream();
    CUdeviceptr block = take_on(stream, 100 * MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(pthread_create(&thread, NULL, waiting, NULL) == 0);
    sleep_ms(50);
    double start = now_ms();
    alarm(15);
    CU(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(now_ms() - start < 3000);
    open_gate(gate);
    pthread_join(thread, NULL);
    CU(cuCtxSynchronize());
}

static void release_beside_a_reap(void)
{
    release_beside(reap_all);
}

static void release_beside_out_of_memory(void)
{
    release_beside(run_out_of_memory);
}

/* Nor does anybody wait for it while a capture goes on. */
static void release_that_ends_nothing_in_a_capture(void)
{
    CUcontext context;
    furnish();
    CUstream stream = new_stream(), captured = new_stream();
    CUdeviceptr block = take_on(stream, MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamDestroy_v2(stream));
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    double start = now_ms();
    alarm(10);
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(now_ms() - start < 3000);
    open_gate(gate);
}

/* A trim waits for nothing behind the program's own barrier. */
static void trim_behind_a_barrier(void)
{
    CUmemoryPool memory_pool;
    furnish();
    CUstream stream = new_stream(), other = new_stream();
    CU(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    CUdeviceptr block = take_on(stream, MIB);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamSynchronize(stream));
    struct gate gate = close_gate(&kernels, other);
    close_barrier(other);
    double start = now_ms();
    alarm(10);
    CU(cuMemPoolTrimTo(memory_pool, 0));
    CHECK(now_ms() - start < 3000);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* Streams that wait for each other by flags in memory: none is put behind another while there is
 * memory. */
static void flags_between_streams(void)
{
    void *memory;
    CUdeviceptr flag, block;
    furnish();
    CUstream waiting = new_stream(), telling = new_stream();
    CU(cuMemHostAlloc(&memory, sizeof(unsigned long long), CU_MEMHOSTALLOC_DEVICEMAP));
    *(volatile unsigned long long *)memory = 0;
    CU(cuMemHostGetDevicePointer_v2(&flag, memory, 0));
    for (int i = 0; i < 2; i++) {
        block = take_on(waiting, MIB);
        if (i == 0)
            spin(&kernels, waiting, 20000000);
        else
            wait_flag(&kernels, waiting, flag);
        CU(cuMemFreeAsync(block, waiting));
        take_on(telling, MIB);
    }
    alarm(10);
    CU(cuLaunchKernel(kernels.set_flag, 1, 1, 1, 1, 1, 1, 0, telling, (void *[]){&flag}, NULL));
    CU(cuStreamSynchronize(telling));
    CU(cuStreamSynchronize(waiting));
}

/* No event can be recorded over the context's work then, and nothing may be left behind. */
static void context_ends_during_a_capture(void)
{
    CUcontext context;
    CUdevice device;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuCtxCreate_v2(&context, 0, device));
    load_kernels(&kernels);
    CUstream captured = new_stream(), stream = new_stream();
    CUdeviceptr block = take_on(stream, MIB);
    spin(&kernels, stream, 50000000);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    double start = now_ms();
    CU(cuCtxDestroy_v2(context));
    CHECK(now_ms() - start < 3000);
    EQUAL(0, simcuda_live_allocations());
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(legacy_orders_blocking_streams),
        CASE(legacy_orders_per_thread_streams),
        CASE(synchronise_after_the_legacy_stream),
        CASE(query_after_the_legacy_stream),
        CASE(event_after_the_legacy_stream),
        CASE(reaped_after_the_legacy_stream),
        CASE(trimmed_after_the_legacy_stream),
        CASE(allocation_after_the_legacy_stream),
        CASE(freed_on_another_blocking_stream),
        CASE(event_that_the_legacy_stream_waits_for),
        CASE(waits_end_before_the_legacy_streams_later_work),
        CASE(frees_are_waited_for),
        CASE(frees_behind_a_barrier_are_waited_for),
        CASE(frees_stand_between_blocking_streams),
        CASE(waits_end_before_a_later_barrier),
        CASE(allocation_behind_a_barrier),
        CASE(synchronise_behind_a_barrier),
        CASE(allocation_behind_a_green_barrier),
        CASE(plain_free_of_what_was_used_again),
        CASE(destroyed_without_a_context),
        CASE(destroyed_in_a_bare_thread),
        CASE(reaped_as_it_ends),
        CASE(legacy_allocation_holds_nobody_up),
        CASE(destroyed_pool_holds_nobody_up),
        CASE(use_after_a_destroyed_stream),
        CASE(use_after_a_stream_that_was_followed),
        CASE(captured_early_launch),
        CASE(nested_barrier_is_seen),
        CASE(context_ends_during_a_capture),
        CASE(release_that_ends_nothing),
        CASE(release_that_ends_nothing_in_a_capture),
        CASE(release_beside_a_reap),
        CASE(release_beside_out_of_memory),
        CASE(trim_behind_a_barrier),
        CASE(flags_between_streams),
        CASE(use_before_a_free_in_a_capture),
        CASE(use_on_a_stream_that_is_captured),
        CASE(use_on_a_lost_stream_in_a_capture),
        CASE(memory_pools_come_and_go),
        CASE(current_pool_is_destroyed),
        CASE(handle_of_a_destroyed_stream),
        CASE(current_pool_changes_before_the_free),
        CASE(stream_of_another_device),
        CASE(no_stream_is_destroyed),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
