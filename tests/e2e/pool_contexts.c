/*
 * Contexts that come and go, several of them, several devices, and captures, without and with the
 * pool.
 */
#include "pool.h"

enum { WORDS = 1024, BYTES = WORDS * 4 };

static struct kernels kernels;
static CUstream stream;

static void furnish(void)
{
    load_kernels(&kernels);
    stream = new_stream();
}

static CUcontext create_context(CUdevice device)
{
    CUcontext context;
    CU(cuCtxCreate_v2(&context, 0, device));
    return context;
}

static unsigned int first_word(CUdeviceptr block)
{
    unsigned int word;
    CU(cuMemcpyDtoH_v2(&word, block, sizeof word));
    return word;
}

static void write_words(CUdeviceptr block, unsigned int value)
{
    CU(cuMemsetD32_v2(block, value, WORDS));
}

/* Leaves live, cached and pending blocks in the current context; a live one is the answer. */
static CUdeviceptr leave_blocks(void)
{
    CUdeviceptr blocks[8];
    furnish();
    for (int i = 0; i < 8; i++)
        blocks[i] = take(MIB);
    for (int i = 0; i < 3; i++)
        CU(cuMemFree_v2(blocks[i]));
    CU(cuCtxSynchronize());
    spin(&kernels, stream, 3000000);
    for (int i = 3; i < 6; i++)
        CU(cuMemFree_v2(blocks[i]));
    return blocks[7];
}

static void nothing_is_left(void)
{
    EQUAL(0, simcuda_live_allocations());
    if (has_pool()) {
        struct cudapool_bytes bytes = pool_bytes();
        EQUAL(0, bytes.live + bytes.cached + bytes.pending);
    }
}

/* --- contexts that end
 * ---------------------------------------------------------------------------*/

/* Eight times, so that the handle's value comes back; what is taken then is new memory. */
static void destroyed(void)
{
    CUcontext former = NULL;
    bool came_back = false;
    CU(cuInit(0));
    for (int i = 0; i < 8; i++) {
        CUcontext context = create_context(0);
        came_back = came_back || context == former;
        former = context;
        CUdeviceptr live = leave_blocks();
        write_words(live, 7);
        CU(cuCtxDestroy_v2(context));
        nothing_is_left();
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(live));
    }
    CHECK(came_back);
}

/* While another context lives: its blocks stay what they were. */
static void destroyed_beside_another(void)
{
    CU(cuInit(0));
    CUcontext first = create_context(0);
    CUdeviceptr kept = take(BYTES);
    write_words(kept, 11);
    for (int i = 0; i < 4; i++) {
        CUcontext second = create_context(0);
        CUdeviceptr live = leave_blocks();
        CU(cuCtxSetCurrent(first));
        CU(cuCtxDestroy_v2(second));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(live));
        EQUAL(11, first_word(kept));
        EQUAL(1, simcuda_live_allocations());
    }
    CU(cuMemFree_v2(kept));
    CU(cuCtxDestroy_v2(first));
    nothing_is_left();
}

static void primary_is(int expected)
{
    unsigned int flags;
    int active = -1;
    CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == expected);
}

static void primary_released(void)
{
    for (int i = 0; i < 3; i++) {
        CUcontext again;
        CUcontext context = open_primary();
        CU(cuDevicePrimaryCtxRetain(&again, 0));
        CHECK(again == context);
        CUdeviceptr live = leave_blocks();
        CU(cuDevicePrimaryCtxRelease_v2(0));
        primary_is(1);
        CU(cuMemFree_v2(live));
        CU(cuDevicePrimaryCtxRelease_v2(0));
        primary_is(0);
        nothing_is_left();
    }
}

static void primary_reset(void)
{
    for (int i = 0; i < 3; i++) {
        CUcontext context = open_primary();
        CUdeviceptr live = leave_blocks();
        CU(cuDevicePrimaryCtxReset_v2(0));
        primary_is(0);
        nothing_is_left();
        CU(cuDevicePrimaryCtxRetain(&context, 0));
        CU(cuCtxSetCurrent(context));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(live));
        CUdeviceptr block = take(BYTES);
        write_words(block, 3);
        EQUAL(3, first_word(block));
        CU(cuDevicePrimaryCtxReset_v2(0));
    }
}

/* --- several
 * -------------------------------------------------------------------------------------*/

/* A block is freed while another context is current; its memory stays with its own. */
static void freed_elsewhere(void)
{
    CU(cuInit(0));
    CUcontext first = create_context(0);
    furnish();
    CUdeviceptr counter = new_counter();
    CUcontext second = create_context(0);
    for (unsigned int i = 0; i < 40; i++) {
        CU(cuCtxSetCurrent(first));
        CUdeviceptr block = take(BYTES);
        fill(&kernels, stream, block, WORDS, i);
        spin_then_verify(&kernels, stream, 500000, block, WORDS, i, counter);
        CU(cuCtxSetCurrent(second));
        CUdeviceptr other = take(BYTES);
        write_words(other, 99);
        CU(cuMemFree_v2(block));
        CU(cuMemFree_v2(other));
    }
    CU(cuCtxSetCurrent(first));
    EQUAL(0, read_counter(counter));
}

/* cuMemFree waits for copies that another context makes of the memory. */
static void copied_by_another(void)
{
    struct kernels of_second;
    CU(cuInit(0));
    CUcontext second = create_context(0);
    load_kernels(&of_second);
    CUstream other = new_stream();
    CUdeviceptr target = take(BYTES);
    CUcontext first = create_context(0);
    furnish();
    for (unsigned int i = 1; i < 20; i++) {
        CU(cuCtxSetCurrent(first));
        CUdeviceptr block = take(BYTES);
        write_words(block, i);
        CU(cuCtxSynchronize());
        CU(cuCtxSetCurrent(second));
        spin(&of_second, other, 3000000);
        CU(cuMemcpyDtoDAsync_v2(target, block, BYTES, other));
        CU(cuCtxSetCurrent(first));
        CU(cuMemFree_v2(block));
        CUdeviceptr next = take(BYTES);
        write_words(next, 1000);
        CU(cuMemFree_v2(next));
        CU(cuCtxSetCurrent(second));
        CU(cuStreamSynchronize(other));
        EQUAL(i, first_word(target));
    }
}

static void end_capture(CUstream capturing)
{
    CUgraph graph;
    CU(cuStreamEndCapture(capturing, &graph));
    CU(cuGraphDestroy(graph));
}

/* So it does where the memory's context is ended right after: the copy must not reach the memory's
 * next owner, in a third context. */
static void copied_at_an_end(CUcontext (*begin)(void), void (*end)(CUcontext), CUstream capturing)
{
    struct kernels of_second;
    CU(cuInit(0));
    CUcontext second = create_context(0);
    load_kernels(&of_second);
    CUstream other = new_stream();
    CUdeviceptr source = take(BYTES);
    write_words(source, 7);
    CU(cuCtxSynchronize());
    for (unsigned int i = 1; i < 5; i++) {
        CUcontext first = begin();
        CUdeviceptr block = take(BYTES);
        CU(cuCtxSetCurrent(second));
        spin(&of_second, other, 3000000);
        CU(cuMemcpyDtoDAsync_v2(block, source, BYTES, other));
        CU(cuCtxSetCurrent(first));
        CU(cuMemFree_v2(block));
        if (capturing)
            CU(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
        end(first);
        CUcontext third = create_context(0);
        if (capturing)
            end_capture(capturing);
        CUdeviceptr next = take(BYTES);
        write_words(next, 1000);
        CU(cuCtxSynchronize());
        CU(cuCtxSetCurrent(second));
        CU(cuStreamSynchronize(other));
        CU(cuCtxSetCurrent(third));
        EQUAL(1000, first_word(next));
        CU(cuCtxDestroy_v2(third));
    }
}

static CUcontext create_on_device_0(void)
{
    return create_context(0);
}

static void destroy(CUcontext context)
{
    CU(cuCtxDestroy_v2(context));
}

static void copied_by_another_at_the_end(void)
{
    copied_at_an_end(create_on_device_0, destroy, NULL);
}

/* Retained by two, as by a program and its runtime. */
static CUcontext retain_twice(void)
{
    CUcontext primary;
    CU(cuDevicePrimaryCtxRetain(&primary, 0));
    return open_primary();
}

static void release_twice(CUcontext primary)
{
    (void)primary;
    CU(cuDevicePrimaryCtxRelease_v2(0));
    CU(cuCtxSetCurrent(NULL));
    CU(cuDevicePrimaryCtxRelease_v2(0));
}

static void copied_by_another_at_the_last_release(void)
{
    copied_at_an_end(retain_twice, release_twice, NULL);
}

static void copied_by_another_at_the_end_in_a_capture(void)
{
    CU(cuInit(0));
    create_context(0);
    copied_at_an_end(retain_twice, release_twice, new_stream());
}

/* A release that is not the last waits for nothing: what the context does may go on for long. */
static void released_while_it_works(void)
{
    CU(cuInit(0));
    create_context(0);
    CU(cuCtxSetCurrent(retain_twice()));
    furnish();
    CUdeviceptr flag = take(BYTES);
    write_words(flag, 0);
    CU(cuMemFree_v2(take(BYTES)));
    wait_flag(&kernels, stream, flag);
    CU(cuDevicePrimaryCtxRelease_v2(0));
    ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CU(cuMemsetD32Async(flag, 1, 1, new_stream()));
    CU(cuCtxSynchronize());
}

/* The program lets all later work of the context wait for a kernel that it releases itself later
 * on: an allocation that gives memory back meanwhile must not wait for that, too. */
static void behind_the_programs_barrier(void)
{
    open_primary();
    furnish();
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (size_t i = 1; i < 5; i++) {
        CU(cuMemFree_v2(take(i * MIB)));
        struct gate gate = close_gate(&kernels, stream);
        CU(cuEventRecord(event, stream));
        CU(cuCtxWaitEvent(NULL, event));
        CUdeviceptr next = take(8 * i * MIB);
        ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        open_gate(gate);
        CU(cuCtxSynchronize());
        CU(cuMemFree_v2(next));
    }
}

static size_t free_bytes(void)
{
    size_t free, total;
    CU(cuMemGetInfo_v2(&free, &total));
    return free;
}

static void two_devices(void)
{
    CUcontext contexts[2];
    CUdeviceptr blocks[2];
    size_t before[2];
    CU(cuInit(0));
    for (int i = 0; i < 2; i++) {
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CU(cuCtxSetCurrent(contexts[i]));
        before[i] = free_bytes();
        blocks[i] = take(8 * MIB);
        EQUAL(before[i] - 8 * MIB, free_bytes());
    }
    for (int i = 0; i < 2; i++) {
        CU(cuCtxSetCurrent(contexts[1 - i]));
        CU(cuMemFree_v2(blocks[i]));
        CU(cuCtxSetCurrent(contexts[i]));
        EQUAL(before[i], free_bytes());
    }
    CUdeviceptr again = take(8 * MIB);
    int ordinal;
    CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, again));
    CHECK(ordinal == 1);
    CU(cuDevicePrimaryCtxRelease_v2(0));
    EQUAL(before[1] - 8 * MIB, free_bytes());
    CU(cuDevicePrimaryCtxRelease_v2(1));
    nothing_is_left();
}

/* --- green contexts
 * ------------------------------------------------------------------------------*/

static void green_contexts(void)
{
    CUdevResource resource;
    CUdevResourceDesc resources;
    CUgreenCtx green;
    CUcontext as_context, primary = open_primary();
    CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevResourceGenerateDesc(&resources, &resource, 1));
    CU(cuGreenCtxCreate(&green, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx(&as_context, green));
    CU(cuCtxSetCurrent(as_context));
    furnish();
    CUdeviceptr counter = new_counter(), kept = take(BYTES);
    write_words(kept, 5);
    for (unsigned int i = 0; i < 30; i++) {
        CUdeviceptr block = take(BYTES);
        fill(&kernels, stream, block, WORDS, i);
        spin_then_verify(&kernels, stream, 300000, block, WORDS, i, counter);
        CU(cuCtxSetCurrent(i % 2 ? primary : as_context));
        CU(cuMemFree_v2(block));
        CU(cuCtxSetCurrent(i % 3 ? primary : as_context));
    }
    CU(cuCtxSetCurrent(primary));
    EQUAL(0, read_counter(counter));
    CU(cuStreamDestroy_v2(stream));
    CU(cuGreenCtxDestroy(green));
    /* The memory was the primary context's. */
    EQUAL(5, first_word(kept));
    CU(cuMemFree_v2(kept));
    CU(cuMemFree_v2(counter));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    primary_is(0);
    nothing_is_left();
}

/* --- threads
 * -------------------------------------------------------------------------------------*/

enum { THREADS = 4 };

/* A context for each of them, created and destroyed several times. */
static void *live_in_contexts(void *unused)
{
    for (int life = 0; life < 3; life++) {
        struct kernels own;
        CUcontext context = create_context(0);
        load_kernels(&own);
        CUstream own_stream = new_stream();
        CUdeviceptr counter = new_counter();
        for (size_t i = 0; i < 60; i++) {
            CUdeviceptr block = take((size_t)BYTES << (i % 4));
            fill(&own, own_stream, block, WORDS, (unsigned int)i);
            spin_then_verify(&own, own_stream, 100000, block, WORDS, (unsigned int)i, counter);
            CU(cuMemFree_v2(block));
        }
        EQUAL(0, read_counter(counter));
        CU(cuCtxDestroy_v2(context));
    }
    return unused;
}

static void threads(void)
{
    pthread_t all[THREADS];
    CU(cuInit(0));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, live_in_contexts, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    nothing_is_left();
}

/* --- captures
 * ------------------------------------------------------------------------------------*/

/* In a relaxed capture memory comes and goes as ever; in the others the attempt ends the capture,
 * as it does without the pool; and what the pool does by itself never does. */
static void captures(void)
{
    open_primary();
    furnish();
    CUdeviceptr held = take(BYTES), block;
    CU(cuMemFree_v2(take(2 * BYTES)));
    CU(cuCtxSynchronize());
    for (CUstreamCaptureMode mode = 0; mode < 3; mode++) {
        CUgraph graph = NULL;
        bool relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        for (int quiet = 0; quiet < 2; quiet++) {
            CUstreamCaptureMode own = mode;
            CU(cuThreadExchangeStreamCaptureMode(&own));
            CU(cuStreamBeginCapture_v2(stream, mode));
            fill(&kernels, stream, held, WORDS, mode);
            if (!quiet) {
                ANSWERS(relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        cuMemAlloc_v2(&block, 2 * BYTES));
                if (relaxed)
                    CU(cuMemFree_v2(block));
            }
            ANSWERS(relaxed || quiet ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                    cuStreamEndCapture(stream, &graph));
            CU(cuThreadExchangeStreamCaptureMode(&own));
            CHECK((graph != NULL) == (relaxed || quiet));
            if (graph != NULL)
                CU(cuGraphDestroy(graph));
        }
    }
    if (!has_pool())
        return;
    /* The pool is at work again. */
    CU(cuMemFree_v2(take(2 * BYTES)));
    CU(cuCtxSynchronize());
    uint64_t asked = simcuda_calls("cuMemAlloc_v2");
    take(2 * BYTES);
    EQUAL(asked, simcuda_calls("cuMemAlloc_v2"));
}

/* A synchronise of the context ends captures without the pool, too; a capture whose stream is
 * destroyed is over. */
static void captures_that_break(void)
{
    CUgraph graph;
    open_primary();
    furnish();
    CUstream other = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS);
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CU(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuStreamDestroy_v2(other));
    CU(cuMemFree_v2(take(BYTES)));
    CU(cuCtxSynchronize());
    if (!has_pool())
        return;
    uint64_t asked = simcuda_calls("cuMemAlloc_v2");
    take(BYTES);
    EQUAL(asked, simcuda_calls("cuMemAlloc_v2"));
}

/* Blocks that are pending when a capture begins, and that are freed in it. */
static void captures_over_pending(void)
{
    open_primary();
    furnish();
    CUdeviceptr counter = new_counter();
    for (unsigned int i = 0; i < 10; i++) {
        CUgraph graph;
        CUdeviceptr pending = take(BYTES), freed_inside = take(BYTES);
        CUstream other = new_stream();
        fill(&kernels, other, pending, WORDS, i);
        spin_then_verify(&kernels, other, 2000000, pending, WORDS, i, counter);
        CU(cuMemFree_v2(pending));
        CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_RELAXED;
        CU(cuThreadExchangeStreamCaptureMode(&own));
        CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(cuMemFree_v2(freed_inside));
        CUdeviceptr inside = take(BYTES);
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuThreadExchangeStreamCaptureMode(&own));
        write_words(inside, 77);
        CUdeviceptr after = take(BYTES);
        write_words(after, 78);
        CU(cuMemFree_v2(inside));
        CU(cuMemFree_v2(after));
        CU(cuGraphDestroy(graph));
        CU(cuStreamDestroy_v2(other));
    }
    EQUAL(0, read_counter(counter));
}

/* --- a free in a context that another thread has destroyed
 * ---------------------------------------------------------------------------------------------*/

static struct {
    CUcontext context;
    CUdeviceptr block;
    pthread_barrier_t destroyed;
} ended;

static void *free_in_destroyed(void *unused)
{
    CU(cuCtxSetCurrent(ended.context));
    CU(cuMemFree_v2(take(MIB)));
    pthread_barrier_wait(&ended.destroyed);
    pthread_barrier_wait(&ended.destroyed);
    ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree_v2(ended.block));
    ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree_v2(ended.block));
    return unused;
}

static void freed_in_a_destroyed_one(void)
{
    CUcontext first = open_primary();
    pthread_t thread;
    ended.block = take(MIB);
    CU(cuCtxCreate_v2(&ended.context, 0, 0));
    pthread_barrier_init(&ended.destroyed, NULL, 2);
    CHECK(pthread_create(&thread, NULL, free_in_destroyed, NULL) == 0);
    pthread_barrier_wait(&ended.destroyed);
    CU(cuCtxDestroy_v2(ended.context));
    pthread_barrier_wait(&ended.destroyed);
    CHECK(pthread_join(thread, NULL) == 0);
    CU(cuCtxSetCurrent(first));
    CU(cuMemFree_v2(ended.block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(ended.block));
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"destroyed", destroyed},
        {"destroyed_beside_another", destroyed_beside_another},
        {"freed_in_a_destroyed_one", freed_in_a_destroyed_one},
        {"primary_released", primary_released},
        {"primary_reset", primary_reset},
        {"freed_elsewhere", freed_elsewhere},
        {"copied_by_another", copied_by_another},
        {"copied_by_another_at_the_end", copied_by_another_at_the_end},
        {"copied_by_another_at_the_last_release", copied_by_another_at_the_last_release},
        {"behind_the_programs_barrier", behind_the_programs_barrier},
        {"copied_by_another_at_the_end_in_a_capture", copied_by_another_at_the_end_in_a_capture},
        {"released_while_it_works", released_while_it_works},
        {"two_devices", two_devices},
        {"green_contexts", green_contexts},
        {"threads", threads},
        {"captures", captures},
        {"captures_that_break", captures_that_break},
        {"captures_over_pending", captures_over_pending},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
