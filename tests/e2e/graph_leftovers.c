/*
 * What graphs leave behind, where nobody looks at the right moment: memory that comes back, or is
 * not kept in the first place.
 */
#include "pool.h"

#define WORDS 4096u

static struct kernels kernels;
static CUdeviceptr wrong;
static CUcontext context;
static CUstream stream;

static void open_device(void)
{
    context = open_primary();
    load_kernels(&kernels);
    wrong = new_counter();
    stream = new_stream();
}

/* ---- stream-ordered memory of before a capture, which that has freed ---- */

/* 40 MiB of before that a capture has freed, and whose graph was launched and is gone. */
static void have_held(void)
{
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
    CU(cuMemAllocAsync(&block, 40 * MIB, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(&kernels, stream, block, WORDS, 1);
    spin(&kernels, stream, 20000000);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphLaunch(executable, stream));
    CU(cuGraphDestroy(graph));
    CU(cuGraphExecDestroy(executable));
    CU(cuStreamSynchronize(stream));
}

/* The driver's thread may not have run the destructor yet where the machine is slow. */
static CUdeviceptr take_in_the_end(size_t bytes)
{
    CUdeviceptr block = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < 5 && result == CUDA_ERROR_OUT_OF_MEMORY; i++) {
        sleep_ms(100);
        result = cuMemAlloc_v2(&block, bytes);
    }
    CU(result);
    return block;
}

/* The driver's thread has run the destructor by the time that memory is needed, and nothing has
 * told the pool. SIMCUDA_MEMORY=64MiB, memory_nodes "pool". */
static void held(void)
{
    open_device();
    for (int i = 0; i < 3; i++) {
        have_held();
        CU(cuMemFree_v2(take_in_the_end(40 * MIB)));
    }
    EQUAL(0, read_counter(wrong));
}

/* The same in a process that does nothing any more: the housekeeper gives it back. */
static void held_and_idle(void)
{
    open_device();
    have_held();
    for (int i = 0; i < 50 && pool_bytes().live >= 40 * MIB; i++)
        sleep_ms(100);
    CHECK(pool_bytes().live < 40 * MIB);
}

/* ---- memory that graphs leave to the program, memory_nodes "pool" ---- */

struct output {
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
};

static struct output capture_output(void)
{
    struct output output;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAllocAsync(&output.block, MIB, stream));
    fill(&kernels, stream, output.block, WORDS, 1);
    CU(cuStreamEndCapture(stream, &output.graph));
    CU(cuGraphInstantiateWithFlags(&output.executable, output.graph, 0));
    return output;
}

/* Two graphs are launched in turn, and one of each pair never. */
static void outputs(void)
{
    open_device();
    for (int round = 0; round < 10; round++) {
        struct output first = capture_output(), second = capture_output();
        struct output never = capture_output();
        for (int i = 0; i < 3; i++) {
            CU(cuGraphLaunch(first.executable, stream));
            CU(cuMemFreeAsync(first.block, stream));
            CU(cuGraphLaunch(second.executable, stream));
            CU(cuMemFreeAsync(second.block, stream));
        }
        CU(cuStreamSynchronize(stream));
        const struct output *all[] = {&first, &second, &never};
        for (int i = 0; i < 3; i++) {
            CU(cuGraphExecDestroy(all[i]->executable));
            CU(cuGraphDestroy(all[i]->graph));
        }
    }
    CU(cuCtxSynchronize());
    CHECK(pool_bytes().live <= 4096);
}

/* ---- a capture that is spoilt, and that nobody ends ---- */

static void *allocate_and_free(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent(context));
    for (int i = 0; i < 1000; i++)
        CU(cuMemFree_v2(take(MIB)));
    return NULL;
}

/* Others go on. SIMCUDA_MEMORY=256MiB. */
static void spoilt(void)
{
    pthread_t other;
    open_device();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
    allocate_and_free(NULL);
    pthread_create(&other, NULL, allocate_and_free, NULL);
    pthread_join(other, NULL);
    /* All but what is pending for want of a fence. */
    CU(cuMemFree_v2(take(180 * MIB)));
    CU(cuMemFree_v2(take(240 * MIB)));
    CHECK(pool_bytes().live <= 4096);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"held", held}, {"held_and_idle", held_and_idle}, {"outputs", outputs}, {"spoilt", spoilt},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
