/*
 * An example: a graph that reads a number from the device's memory, which the program sets before
 * each launch. It is the one of docs/device_scalars.md, which shows the part between the lines of
 * dashes.
 *
 * device_scalars example    with the pool
 * device_scalars without    the same where there is none
 * device_scalars ahead      many more values are set than pinned memory is taken for
 * device_scalars beside     a thread sets values while another one captures
 * device_scalars captured   what captures refuse, and that they go on
 * device_scalars green      a green context comes and goes, in which values were set
 * device_scalars answers    what the functions answer to what they cannot do
 */
#include <dlfcn.h>

#include "pool.h"

static struct kernels kernels;
static CUdeviceptr wrong, seen;
static CUstream stream;

/* The graph has read this number. */
static void check(unsigned int number)
{
    verify(&kernels, stream, seen, 1, number, wrong);
}

static void open_device(void)
{
    open_primary();
    load_kernels(&kernels);
    wrong = new_counter();
    seen = new_counter();
    stream = new_stream();
    /* What is loaded at its first launch is not to be loaded beside a capture. */
    check(0);
    CU(cuStreamSynchronize(stream));
}

/* -------------------------------------------------------------------------------------------------
 */

/* Looked up, so that the program runs without the pool, too: then there are no functions. */
struct scalars {
    cudapool_scalar (*create)(size_t bytes);
    uint64_t (*address)(cudapool_scalar scalar);
    int (*set)(cudapool_scalar scalar, const void *value, void *stream);
    int (*destroy)(cudapool_scalar scalar);
};

static struct scalars find_scalars(void)
{
    return (struct scalars){
        (cudapool_scalar(*)(size_t))dlsym(RTLD_DEFAULT, "cudapool_scalar_create"),
        (uint64_t(*)(cudapool_scalar))dlsym(RTLD_DEFAULT, "cudapool_scalar_address"),
        (int (*)(cudapool_scalar, const void *, void *))dlsym(RTLD_DEFAULT, "cudapool_scalar_set"),
        (int (*)(cudapool_scalar))dlsym(RTLD_DEFAULT, "cudapool_scalar_destroy")};
}

/* A step of a program, which reads its number from the device's memory. */
static CUgraphExec capture(CUdeviceptr number)
{
    CUgraph graph;
    CUgraphExec executable;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemcpyDtoDAsync_v2(seen, number, sizeof(unsigned int), stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    return executable;
}

static void run(unsigned int steps)
{
    struct scalars scalars = find_scalars();
    cudapool_scalar scalar = scalars.create ? scalars.create(sizeof steps) : 0;
    CUdeviceptr number = scalar ? scalars.address(scalar) : take(sizeof steps);
    CUgraphExec executable = capture(number);
    for (unsigned int i = 0; i < steps; i++) {
        /* i may change while the copy is still to come. */
        if (scalar)
            CU((CUresult)scalars.set(scalar, &i, stream));
        else
            CU(cuMemsetD32Async(number, i, 1, stream));
        CU(cuGraphLaunch(executable, stream));
        check(i);
    }
    CU(cuGraphExecDestroy(executable));
    if (scalar)
        CU((CUresult)scalars.destroy(scalar));
    else
        CU(cuMemFree_v2(number));
}

/* -------------------------------------------------------------------------------------------------
 */

static void example(void)
{
    open_device();
    CHECK(find_scalars().create != NULL);
    run(3000);
    EQUAL(0, read_counter(wrong));
}

static void without(void)
{
    open_device();
    run(100);
    EQUAL(0, read_counter(wrong));
    struct scalars scalars = find_scalars();
    if (!scalars.create)
        return;
    unsigned int value = 0;
    EQUAL(0, scalars.create(4));
    EQUAL(0, scalars.address(1));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)scalars.set(1, &value, stream));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)scalars.destroy(1));
}

/* All of them are on their way before the first is there. */
static void ahead(void)
{
    open_device();
    struct scalars scalars = find_scalars();
    cudapool_scalar scalar = scalars.create(sizeof(unsigned int));
    spin(&kernels, stream, 300000000);
    for (unsigned int i = 0; i < 1500; i++) {
        CU((CUresult)scalars.set(scalar, &i, stream));
        verify(&kernels, stream, scalars.address(scalar), 1, i, wrong);
    }
    EQUAL(0, read_counter(wrong));
    CU((CUresult)scalars.destroy(scalar));
}

static _Atomic bool is_over, is_setting;
static CUcontext context;

static void *set_on_and_on(void *unused)
{
    struct scalars scalars = find_scalars();
    (void)unused;
    CU(cuCtxSetCurrent(context));
    CUstream own = new_stream();
    cudapool_scalar scalar = scalars.create(sizeof(unsigned int));
    is_setting = true;
    for (unsigned int i = 0; !is_over; i++) {
        CU((CUresult)scalars.set(scalar, &i, own));
        verify(&kernels, own, scalars.address(scalar), 1, i, wrong);
    }
    return NULL;
}

static void beside(void)
{
    pthread_t thread;
    open_device();
    CU(cuCtxGetCurrent(&context));
    pthread_create(&thread, NULL, set_on_and_on, NULL);
    /* Memory is taken before the first capture, which taking it would spoil. */
    while (!is_setting)
        sleep_ms(1);
    for (int i = 0; i < 200; i++) {
        CUgraphExec executable = capture(wrong);
        CU(cuGraphExecDestroy(executable));
        sleep_ms(1);
    }
    is_over = true;
    pthread_join(thread, NULL);
    EQUAL(0, read_counter(wrong));
}

static void captured(void)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    open_device();
    struct scalars scalars = find_scalars();
    cudapool_scalar scalar = scalars.create(8);
    CUstream other = new_stream(), blocking = new_blocking_stream();
    uint64_t value = 1;
    for (unsigned int i = 0; i < 3; i++) {
        CUgraph graph;
        size_t nodes;
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                (CUresult)scalars.set(scalar, &value, stream));
        CU((CUresult)scalars.set(scalar, &value, other));
        EQUAL(0, scalars.create(8));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, (CUresult)scalars.destroy(scalar));
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphGetNodes(graph, NULL, &nodes));
        EQUAL(0, nodes);
        CU(cuGraphDestroy(graph));
        CU(cuStreamBeginCapture_v2(blocking, modes[i]));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, (CUresult)scalars.set(scalar, &value, NULL));
        CU(cuStreamEndCapture(blocking, &graph));
        CU(cuGraphDestroy(graph));
    }
    CU((CUresult)scalars.set(scalar, &value, NULL));
    CU((CUresult)scalars.destroy(scalar));
}

static void green(void)
{
    CUdevResource resource;
    CUdevResourceDesc resources;
    CUgreenCtx partition;
    CUcontext primary, as_context;
    open_device();
    struct scalars scalars = find_scalars();
    cudapool_scalar scalar = scalars.create(sizeof(unsigned int));
    CU(cuCtxGetCurrent(&primary));
    CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevResourceGenerateDesc(&resources, &resource, 1));
    CU(cuGreenCtxCreate(&partition, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx(&as_context, partition));
    uint64_t pieces = simcuda_calls("cuMemHostAlloc");
    for (unsigned int i = 0; i < 300; i++) {
        if (i == 150)
            CU(cuGreenCtxDestroy(partition));
        CU(cuCtxSetCurrent(i < 150 ? as_context : primary));
        CU((CUresult)scalars.set(scalar, &i, stream));
        CU(cuCtxSetCurrent(primary));
        verify(&kernels, stream, scalars.address(scalar), 1, i, wrong);
        CU(cuStreamSynchronize(stream));
    }
    EQUAL(pieces + 1, simcuda_calls("cuMemHostAlloc"));
    EQUAL(0, read_counter(wrong));
    CU((CUresult)scalars.destroy(scalar));
}

static void answers(void)
{
    open_device();
    struct scalars scalars = find_scalars();
    char value[64] = {0};
    EQUAL(0, scalars.create(0));
    EQUAL(0, scalars.create(65));
    cudapool_scalar scalar = scalars.create(64), small = scalars.create(1);
    CHECK(scalar != 0 && small != 0 && scalar != small);
    CU((CUresult)scalars.set(scalar, value, stream));
    CU((CUresult)scalars.set(small, value, (void *)2));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)scalars.set(4711, value, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)scalars.set(scalar, NULL, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)scalars.destroy(4711));
    CUcontext own, second;
    CU(cuCtxGetCurrent(&own));
    CU(cuCtxCreate_v2(&second, 0, 0));
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, (CUresult)scalars.set(scalar, value, NULL));
    cudapool_scalar there = scalars.create(4);
    CU((CUresult)scalars.set(there, value, NULL));
    CU(cuCtxDestroy_v2(second));
    CU(cuCtxSetCurrent(own));
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, (CUresult)scalars.set(there, value, stream));
    CU((CUresult)scalars.destroy(there));
    CU((CUresult)scalars.destroy(scalar));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)scalars.destroy(scalar));
    EQUAL(0, scalars.address(scalar));
    CU(cuCtxSynchronize());
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"example", example},   {"without", without}, {"ahead", ahead},     {"beside", beside},
        {"captured", captured}, {"green", green},     {"answers", answers}, {NULL, NULL}};
    return run_case(argc, argv, cases);
}
