/*
 * Captures around plain cuMemAlloc and cuMemFree: which work, what their graphs keep, and when it
 * comes back. With the pool and captures.allocate they work; without either (case "refused") the
 * driver refuses them and spoils the capture.
 */
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#define WORDS 4096u
#define BYTES (WORDS * 4u)

static struct kernels kernels;
static CUdeviceptr wrong;
static CUcontext context;

static void open_device(void)
{
    context = open_primary();
    load_kernels(&kernels);
    wrong = new_counter();
}

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};
#define MODES (sizeof modes / sizeof *modes)

/* Settles what destructors in threads of the driver's have still to tell. */
static void settle(void)
{
    for (int i = 0; i < 100; i++) {
        size_t left, total;
        CU(cuCtxSynchronize());
        CU(cuMemGetInfo_v2(&left, &total));
        sleep_ms(1);
    }
}

/* --- one graph ---------------------------------------------------------------------------------*/

struct made {
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr before, inside;
};

/* before = 1; inside = 2; both are checked; and both are freed before the capture ends. */
static struct made capture_on(CUstream stream, CUstreamCaptureMode mode)
{
    struct made made = {.before = take(BYTES)};
    CU(cuStreamBeginCapture_v2(stream, mode));
    fill(&kernels, stream, made.before, WORDS, 1);
    CU(cuMemAlloc_v2(&made.inside, BYTES));
    CHECK(made.inside != made.before);
    fill(&kernels, stream, made.inside, WORDS, 2);
    verify(&kernels, stream, made.before, WORDS, 1, wrong);
    CU(cuMemFree_v2(made.before));
    verify(&kernels, stream, made.inside, WORDS, 2, wrong);
    CU(cuMemFree_v2(made.inside));
    CU(cuStreamEndCapture(stream, &made.graph));
    CU(cuGraphInstantiateWithFlags(&made.executable, made.graph, 0));
    return made;
}

/* Other blocks of the same size come, are written, and go. */
static void churn(CUstream stream)
{
    CUdeviceptr blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = take(BYTES);
        fill(&kernels, stream, blocks[i], WORDS, 99);
    }
    for (int i = 0; i < 8; i++)
        CU(cuMemFree_v2(blocks[i]));
}

static void replays(void)
{
    open_device();
    CUstream stream = new_stream(), other = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        struct made made = capture_on(stream, modes[i]);
        for (int n = 0; n < 50; n++) {
            churn(other);
            CU(cuGraphLaunch(made.executable, stream));
        }
        EQUAL(0, read_counter(wrong));
        CU(cuGraphExecDestroy(made.executable));
        CU(cuGraphDestroy(made.graph));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(made.before));
    }
}

/* Memory is back once the last executable has gone, and not before. */
static void comes_back(void)
{
    size_t before, during, after, total;
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
    open_device();
    CUstream stream = new_stream();
    settle();
    CU(cuMemGetInfo_v2(&before, &total));
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAlloc_v2(&block, 16 * MIB));
    fill(&kernels, stream, block, WORDS, 2);
    CU(cuMemFree_v2(block));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    CU(cuGraphLaunch(executable, stream));
    settle();
    CU(cuMemGetInfo_v2(&during, &total));
    CHECK(during + 16 * MIB <= before);
    CU(cuGraphExecDestroy(executable));
    settle();
    CU(cuMemGetInfo_v2(&after, &total));
    CHECK(after == before);
}

/* What a capture allocates and the program keeps is the program's when the graph is gone. */
static void outlives(void)
{
    CUgraph graph;
    CUdeviceptr block;
    open_device();
    CUstream stream = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAlloc_v2(&block, BYTES));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    settle();
    fill(&kernels, stream, block, WORDS, 3);
    verify(&kernels, stream, block, WORDS, 3, wrong);
    CU(cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    EQUAL(0, read_counter(wrong));
}

/* --- captures that leave no graph --------------------------------------------------------------*/

static void fails(void)
{
    open_device();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CUgraph graph = NULL;
        CUdeviceptr before = take(BYTES), inside, held;
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        CU(cuMemAlloc_v2(&inside, BYTES));
        CU(cuMemAlloc_v2(&held, BYTES));
        CU(cuMemFree_v2(before));
        CU(cuMemFree_v2(inside));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
        /* A capture that is spoiled goes on until its end, and minds these no more than before. */
        CU(cuMemAlloc_v2(&inside, BYTES));
        CU(cuMemFree_v2(inside));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
        CHECK(graph == NULL);
        CU(cuMemFree_v2(held));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(before));
        spin(&kernels, stream, 1000);
        CU(cuStreamSynchronize(stream));
    }
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

static void abandoned(void)
{
    open_device();
    for (unsigned i = 0; i < MODES; i++) {
        CUstream stream = new_stream();
        CUdeviceptr block;
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        CU(cuMemAlloc_v2(&block, BYTES));
        fill(&kernels, stream, block, WORDS, 1);
        CU(cuMemFree_v2(block));
        CU(cuStreamDestroy_v2(stream));
        CU(cuMemFree_v2(take(BYTES)));
        CU(cuCtxSynchronize());
    }
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

/* --- rows, pointers, errors --------------------------------------------------------------------*/

static void rows(void)
{
    CUgraph graph;
    CUdeviceptr first, second;
    size_t pitch;
    open_device();
    CUstream stream = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAllocPitch_v2(&first, &pitch, 1000, 16, 4));
    CU(cuMemAllocPitch_v2(&second, &pitch, 1000, 16, 4));
    CHECK(pitch >= 1000 && first != second);
    CU(cuMemFree_v2(first));
    CU(cuMemFree_v2(second));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
}

static void pointers(void)
{
    CUgraph graph;
    CUdeviceptr block, held, base;
    size_t bytes;
    open_device();
    CUstream stream = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAlloc_v2(&block, 1000));
    CU(cuMemAlloc_v2(&held, 4096));
    CU(cuMemFree_v2(0));
    CU(cuMemGetAddressRange_v2(&base, &bytes, block + 500));
    EQUAL(block, base);
    EQUAL(1000, bytes);
    CU(cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&block, 0));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&block, (size_t)1 << 45));
    CU(cuStreamEndCapture(stream, &graph));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(held + 256));
    CU(cuMemFree_v2(held));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(held));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block));
    CU(cuGraphDestroy(graph));
}

/* As without the pool, where captures.allocate is false. */
static void refused(void)
{
    open_device();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        bool relaxed = modes[i] == CU_STREAM_CAPTURE_MODE_RELAXED;
        CUresult expected = relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        CUgraph graph = NULL;
        CUdeviceptr before = take(BYTES), block = 0;
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        ANSWERS(expected, cuMemAlloc_v2(&block, BYTES));
        ANSWERS(relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                cuStreamEndCapture(stream, &graph));
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        ANSWERS(expected, cuMemFree_v2(before));
        ANSWERS(relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                cuStreamEndCapture(stream, &graph));
        CU(cuMemFree_v2(relaxed ? block : before));
    }
}

/* --- threads -----------------------------------------------------------------------------------*/

static atomic_bool stop;

static void *allocate_and_free(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    while (!atomic_load(&stop)) {
        CUdeviceptr block = take(BYTES);
        fill(&kernels, stream, block, WORDS, 77);
        verify(&kernels, stream, block, WORDS, 77, wrong);
        CU(cuStreamSynchronize(stream));
        CU(cuMemFree_v2(block));
    }
    return NULL;
}

/* Replays beside threads that allocate and free. A thread that waits for its stream while another
 * captures in global mode would spoil that: captures come first. */
static void threads(void)
{
    pthread_t others[3];
    struct made made[MODES];
    open_device();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < MODES; i++)
        made[i] = capture_on(stream, modes[i]);
    for (int i = 0; i < 3; i++)
        pthread_create(&others[i], NULL, allocate_and_free, NULL);
    for (int n = 0; n < 300; n++)
        CU(cuGraphLaunch(made[n % (int)MODES].executable, stream));
    CU(cuStreamSynchronize(stream));
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    EQUAL(0, read_counter(wrong));
    for (unsigned i = 0; i < MODES; i++) {
        CU(cuGraphExecDestroy(made[i].executable));
        CU(cuGraphDestroy(made[i].graph));
    }
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

static void *only_allocate_and_free(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent(context));
    while (!atomic_load(&stop)) {
        CUdeviceptr blocks[4];
        for (int i = 0; i < 4; i++)
            blocks[i] = take(BYTES << i);
        for (int i = 0; i < 4; i++)
            CU(cuMemFree_v2(blocks[i]));
    }
    return NULL;
}

/* Captures that come and go while others allocate and free: none is spoiled. */
static void beside(void)
{
    pthread_t others[3];
    open_device();
    CUstream stream = new_stream();
    for (int i = 0; i < 3; i++)
        pthread_create(&others[i], NULL, only_allocate_and_free, NULL);
    for (int n = 0; n < 200; n++) {
        struct made made = capture_on(stream, modes[n % (int)MODES]);
        CU(cuGraphLaunch(made.executable, stream));
        CU(cuGraphExecDestroy(made.executable));
        CU(cuGraphDestroy(made.graph));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    EQUAL(0, read_counter(wrong));
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

/* The context dies, and comes again, while an executable of before is there. */
static void context_ends(void)
{
    CUcontext made_context;
    CUdeviceptr block;
    open_device();
    CU(cuCtxCreate_v2(&made_context, 0, 0));
    CUstream stream = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAlloc_v2(&block, BYTES));
    CU(cuMemFree_v2(block));
    CU(cuCtxDestroy_v2(made_context));
    CU(cuCtxSetCurrent(context));
    CU(cuMemFree_v2(take(BYTES)));
    CU(cuCtxSynchronize());
}

/* What the pool has cached goes back for what a capture allocates, beside the capture; what graphs
 * keep does not, and comes back with them. SIMCUDA_MEMORY=64MiB. */
static void short_memory(void)
{
    CUgraph graph;
    CUdeviceptr block;
    open_device();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CU(cuMemFree_v2(take(40 * MIB)));
        CU(cuCtxSynchronize());
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        CU(cuMemAlloc_v2(&block, 44 * MIB));
        fill(&kernels, stream, block, WORDS, 1);
        CU(cuMemFree_v2(block));
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&block, 44 * MIB));
        CU(cuStreamEndCapture(stream, &graph));
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&block, 40 * MIB));
        CU(cuGraphDestroy(graph));
    }
}

/* A graph that goes while another capture is under way, which must be relaxed for that, and whose
 * memory is needed at once. SIMCUDA_MEMORY=64MiB. */
static void gone_beside(void)
{
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
    open_device();
    CUstream stream = new_stream(), other = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CU(cuStreamBeginCapture_v2(stream, modes[i]));
        CU(cuMemAlloc_v2(&block, 40 * MIB));
        fill(&kernels, stream, block, WORDS, 1);
        CU(cuMemFree_v2(block));
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
        CU(cuGraphDestroy(graph));
        CU(cuGraphLaunch(executable, stream));
        CU(cuStreamSynchronize(stream));
        CU(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(cuGraphExecDestroy(executable));
        CU(cuMemAlloc_v2(&block, 40 * MIB));
        CU(cuMemFree_v2(block));
        CU(cuStreamEndCapture(other, &graph));
        CU(cuGraphDestroy(graph));
    }
}

/* A graph is captured, launched and destroyed, again and again. SIMCUDA_MEMORY=64MiB. */
static void capture_again(bool clones)
{
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
    open_device();
    CUstream stream = new_stream();
    for (int i = 0; i < 60; i++) {
        CU(cuStreamBeginCapture_v2(stream, modes[i % (int)MODES]));
        CU(cuMemAlloc_v2(&block, 40 * MIB));
        fill(&kernels, stream, block, WORDS, 1);
        CU(cuMemFree_v2(block));
        CU(cuStreamEndCapture(stream, &graph));
        CUgraph of = graph;
        if (clones)
            CU(cuGraphClone(&of, graph));
        CU(cuGraphInstantiateWithFlags(&executable, of, 0));
        CU(cuGraphDestroy(graph));
        if (clones)
            CU(cuGraphDestroy(of));
        CU(cuGraphLaunch(executable, stream));
        CU(cuStreamSynchronize(stream));
        CU(cuGraphExecDestroy(executable));
    }
}

static void again(void)
{
    capture_again(false);
}

static void again_by_clones(void)
{
    capture_again(true);
}

/* Captures and memory in two contexts; one of them ends while a graph uses memory of the other. */
static void two_contexts(void)
{
    CUcontext second;
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr here, there;
    open_device();
    CUstream stream = new_stream();
    CU(cuCtxCreate_v2(&second, 0, 0));
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAlloc_v2(&there, BYTES));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc_v2(&here, BYTES));
    fill(&kernels, stream, here, WORDS, 5);
    CU(cuMemFree_v2(there));
    CU(cuMemFree_v2(here));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(there));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    CU(cuCtxDestroy_v2(second));
    for (int i = 0; i < 20; i++) {
        CUdeviceptr other = take(BYTES);
        CHECK(other != here);
        CU(cuMemFree_v2(other));
        CU(cuGraphLaunch(executable, stream));
    }
    CU(cuStreamSynchronize(stream));
    CU(cuGraphExecDestroy(executable));
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

/* A child of a fork during a capture has no part in it; its parent goes on. */
static void forks(void)
{
    CUgraph graph;
    CUdeviceptr block;
    int status;
    open_device();
    CUstream stream = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAlloc_v2(&block, BYTES));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr none;
        bool refused = cuMemAlloc_v2(&none, BYTES) != CUDA_SUCCESS;
        refused = cuMemFree_v2(block) != CUDA_SUCCESS && refused;
        _exit(refused ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CU(cuMemFree_v2(block));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"replays", replays},
        {"comes_back", comes_back},
        {"outlives", outlives},
        {"fails", fails},
        {"abandoned", abandoned},
        {"rows", rows},
        {"pointers", pointers},
        {"refused", refused},
        {"threads", threads},
        {"beside", beside},
        {"context_ends", context_ends},
        {"forks", forks},
        {"short_memory", short_memory},
        {"gone_beside", gone_beside},
        {"again", again},
        {"again_by_clones", again_by_clones},
        {"two_contexts", two_contexts},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
