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

static CUdeviceptr take_on(CUstream stream, size_t bytes)
{
    CUdeviceptr address = 0;
    CU(cuMemAllocAsync(&address, bytes, stream));
    CHECK(address != 0);
    return address;
}

static CUstream new_blocking_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    return stream;
}

static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
}

/* Frees and allocations on the legacy stream come after all blocking streams' work, and before all
 * that they are given later: the block of one blocking stream may be another's, without an event.
 */
static void legacy_orders_blocking_streams(void)
{
    furnish();
    CUstream one = new_blocking_stream(), other = new_blocking_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(NULL, MIB);
    fill(&kernels, one, block, WORDS, 1);
    struct gate gate = close_gate(&kernels, one);
    spin_then_verify(&kernels, one, 2000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, NULL));
    block = take_on(NULL, MIB);
    fill(&kernels, other, block, WORDS, 2);
    sleep_ms(20);
    open_gate(gate);
    EQUAL(0, read_counter(wrong));
}

/* The same with the calling thread's own stream, which is a blocking one. */
static void legacy_orders_per_thread_streams(void)
{
    furnish();
    CUstream one = CU_STREAM_PER_THREAD, other = new_blocking_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(NULL, MIB);
    fill(&kernels, one, block, WORDS, 1);
    struct gate gate = close_gate(&kernels, one);
    spin_then_verify(&kernels, one, 2000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, NULL));
    block = take_on(NULL, MIB);
    fill(&kernels, other, block, WORDS, 2);
    sleep_ms(20);
    open_gate(gate);
    EQUAL(0, read_counter(wrong));
}

/* What the legacy stream does with the block comes before a blocking stream's free of it, and a
 * synchronise with that stream waits for both. */
static void blocking_streams_come_after_the_legacy_one(CUresult (*wait)(CUstream), CUstream stream)
{
    CUdeviceptr wrong = new_counter(), block = take_on(stream, MIB);
    CUstream other = new_stream();
    fill(&kernels, NULL, block, WORDS, 1);
    spin_then_verify(&kernels, NULL, 30000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, stream));
    while (wait(stream) == CUDA_ERROR_NOT_READY)
        sleep_ms(1);
    block = take_on(other, MIB);
    fill(&kernels, other, block, WORDS, 2);
    CU(cuCtxSynchronize());
    EQUAL(0, read_counter(wrong));
}

static void synchronise_after_the_legacy_stream(void)
{
    furnish();
    blocking_streams_come_after_the_legacy_one(cuStreamSynchronize, new_blocking_stream());
}

static void query_after_the_legacy_stream(void)
{
    furnish();
    blocking_streams_come_after_the_legacy_one(cuStreamQuery, CU_STREAM_PER_THREAD);
}

/* And so it does for an allocation that the stream's own order gives. */
static void allocation_after_the_legacy_stream(void)
{
    furnish();
    CUstream stream = new_blocking_stream(), other = new_stream();
    CUdeviceptr wrong = new_counter(), block = take_on(stream, MIB);
    fill(&kernels, NULL, block, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, block, WORDS, 1, wrong);
    CU(cuMemFreeAsync(block, stream));
    block = take_on(stream, MIB);
    CU(cuStreamSynchronize(stream));
    fill(&kernels, other, block, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}

/* The program's own barrier in the context orders what comes after it, frees and allocations too.
 */
static void allocation_behind_a_barrier(void)
{
    static struct kernels others;
    CUcontext context, neighbour;
    CUevent event;
    furnish();
    CU(cuCtxGetCurrent(&context));
    CU(cuCtxCreate_v2(&neighbour, 0, 0));
    load_kernels(&others);
    CUstream abroad = new_stream();
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream(), user = new_stream();
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr wrong = new_counter(), block = take_on(user, MIB);
    fill(&kernels, user, block, WORDS, 1);
    spin_then_verify(&kernels, user, 50000000, block, WORDS, 1, wrong);
    CU(cuCtxRecordEvent(context, event));
    CU(cuCtxWaitEvent(context, event));
    CU(cuMemFreeAsync(block, stream));
    block = take_on(stream, MIB);
    CU(cuStreamSynchronize(stream));
    CU(cuCtxSetCurrent(neighbour));
    fill(&others, abroad, block, WORDS, 2);
    CU(cuStreamSynchronize(abroad));
    CU(cuCtxSetCurrent(context));
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

/* Between the look at it and the synchronise the stream is destroyed, and its handle another's. */
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
    CHECK(simcuda_set_callback("cuStreamSynchronize", replace_once));
    cudapool_reap();
    CHECK(simcuda_set_callback("cuStreamSynchronize", NULL));
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

/* A launch may record an event, too: what it stood for is then over with. */
static void event_recorded_by(CUlaunchAttribute *attribute, CUevent *event)
{
    unsigned long long none = 0;
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, attribute, 1};
    furnish();
    CUstream one = new_stream(), other = new_stream(), third = new_stream();
    CU(cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = take_on(one, MIB);
    struct gate gate = close_gate(&kernels, one);
    CU(cuMemFreeAsync(block, one));
    CU(cuEventRecord(*event, one));
    config.hStream = other;
    CU(cuLaunchKernelEx(&config, kernels.spin, (void *[]){&none}, NULL));
    CU(cuStreamWaitEvent(third, *event, 0));
    CHECK(take_on(third, MIB) != block);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

static void programmatic_event(void)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT};
    event_recorded_by(&attribute, &attribute.value.programmaticEvent.event);
}

static void launch_completion_event(void)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT};
    event_recorded_by(&attribute, &attribute.value.launchCompletionEvent.event);
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
static CUstream nested_stream;

static void record_meanwhile(const char *name)
{
    (void)name;
    CU(cuEventRecord(nested_event, nested_stream));
}

/* A library that profiles is called back from a call of the pool's own, and records an event. */
static void nested_calls_are_seen(void)
{
    furnish();
    CUstream one = new_stream(), third = new_stream();
    nested_stream = new_stream();
    CU(cuEventCreate(&nested_event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = take_on(one, MIB);
    struct gate gate = close_gate(&kernels, one);
    CU(cuMemFreeAsync(block, one));
    CU(cuEventRecord(nested_event, one));
    CHECK(simcuda_set_callback("cuMemAllocFromPoolAsync", record_meanwhile));
    take_on(nested_stream, 2 * MIB);
    CHECK(simcuda_set_callback("cuMemAllocFromPoolAsync", NULL));
    CU(cuStreamWaitEvent(third, nested_event, 0));
    CHECK(take_on(third, MIB) != block);
    open_gate(gate);
    CU(cuCtxSynchronize());
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

/* Destroying no stream ends none. */
static void no_stream_is_destroyed(void)
{
    furnish();
    CUdeviceptr block = take_on(NULL, MIB);
    struct gate gate = close_gate(&kernels, NULL);
    CU(cuMemFreeAsync(block, NULL));
    CHECK(cuStreamDestroy_v2(NULL) != CUDA_SUCCESS);
    EQUAL(block, take_on(NULL, MIB));
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
        CASE(allocation_after_the_legacy_stream),
        CASE(allocation_behind_a_barrier),
        CASE(destroyed_in_a_bare_thread),
        CASE(reaped_as_it_ends),
        CASE(legacy_allocation_holds_nobody_up),
        CASE(destroyed_pool_holds_nobody_up),
        CASE(use_after_a_destroyed_stream),
        CASE(use_after_a_stream_that_was_followed),
        CASE(programmatic_event),
        CASE(launch_completion_event),
        CASE(captured_early_launch),
        CASE(nested_calls_are_seen),
        CASE(context_ends_during_a_capture),
        CASE(release_that_ends_nothing),
        CASE(use_before_a_free_in_a_capture),
        CASE(no_stream_is_destroyed),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
