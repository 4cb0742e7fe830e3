/*
 * Captures around cuMemAlloc and cuMemFree (captures.allocate): graphs use memory that was
 * allocated in their capture, and memory of before that was freed in it, and are replayed while
 * other threads allocate, write, verify and free blocks of the same sizes. No word may be wrong,
 * and the memory must be there again once the last executable has gone.
 *
 * A graph's kernels write and verify a block of before, a block that the capture allocates and
 * frees, and one that the program frees after the capture; each graph has words of its own. Further
 * captures come and go while the other threads go on.
 *
 * Arguments: replays=100000 threads=8 captures=300 kept_mib=256
 *   refused    instead: allocations and frees in captures are refused as the driver refuses them
 */
#include "gpu.h"

#include <stdatomic.h>

enum { WORDS = 16384, BYTES = WORDS * 4, MODES = 3, GRAPHS = 6 };

static const CUstreamCaptureMode modes[MODES] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                 CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                 CU_STREAM_CAPTURE_MODE_RELAXED};

static CUcontext context;
static struct kernels kernels;
static atomic_bool stop;
static atomic_ulong blocks_meanwhile, wrong_meanwhile;

/* ---- the other threads ---- */

/* Waiting for a stream would spoil a capture in global mode, with the pool as without: that comes
 * at the end only, while none goes on. */
static void other_thread(unsigned int index)
{
    CUstream stream;
    unsigned int value = 1000 * (index + 1);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr counter = new_counter();
    while (!atomic_load(&stop)) {
        CUdeviceptr block;
        size_t bytes = (size_t)BYTES << (value % 3);
        CHECK(cuMemAlloc_v2(&block, bytes));
        fill(&kernels, stream, block, WORDS, ++value);
        verify(&kernels, stream, block, WORDS, value, counter);
        CHECK(cuMemFree_v2(block));
        atomic_fetch_add(&blocks_meanwhile, 1);
    }
    unsigned long long wrong;
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&wrong, counter, sizeof wrong));
    atomic_fetch_add(&wrong_meanwhile, wrong);
}

/* ---- graphs ---- */

struct made {
    CUgraphExec executable;
    CUdeviceptr before, inside, after;
};

static void write_and_verify(CUstream stream, CUdeviceptr block, unsigned int value,
                             CUdeviceptr counter)
{
    fill(&kernels, stream, block, WORDS, value);
    verify(&kernels, stream, block, WORDS, value, counter);
}

static struct made capture(CUstream stream, CUstreamCaptureMode mode, unsigned int value,
                           CUdeviceptr counter)
{
    struct made made;
    CUgraph graph;
    CHECK(cuMemAlloc_v2(&made.before, BYTES));
    CHECK(cuStreamBeginCapture_v2(stream, mode));
    fill(&kernels, stream, made.before, WORDS, value);
    CHECK(cuMemAlloc_v2(&made.inside, BYTES));
    write_and_verify(stream, made.inside, value + 1, counter);
    verify(&kernels, stream, made.before, WORDS, value, counter);
    CHECK(cuMemFree_v2(made.before));
    CHECK(cuMemFree_v2(made.inside));
    CHECK(cuMemAlloc_v2(&made.after, BYTES));
    write_and_verify(stream, made.after, value + 2, counter);
    CHECK(cuStreamEndCapture(stream, &graph));
    if (made.after == made.inside || made.after == made.before)
        FAIL("a capture was given what was freed in it");
    CHECK(cuMemFree_v2(made.after));
    CHECK(cuGraphInstantiateWithFlags(&made.executable, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return made;
}

static void replay(struct made *graphs, CUstream stream, unsigned long replays)
{
    for (unsigned long i = 0; i < replays; i++) {
        CHECK(cuGraphLaunch(graphs[i % GRAPHS].executable, stream));
        if (i % 1000 == 999)
            CHECK(cuStreamSynchronize(stream));
    }
    CHECK(cuStreamSynchronize(stream));
}

/* ---- memory comes back ---- */

static size_t free_memory(void)
{
    size_t left = 0, total, before;
    int unchanged = 0;
    /* An executable's end is told by a thread of the driver's, a little later. */
    do {
        before = left;
        CHECK(cuCtxSynchronize());
        usleep(20000);
        CHECK(cuMemGetInfo_v2(&left, &total));
        unchanged = left == before ? unchanged + 1 : 0;
    } while (unchanged < 5);
    return left;
}

/* A graph keeps so much of what it has freed; how much of that, in per cent, is not there when the
 * executable has gone. */
static double keep_and_give_back(CUstream stream, size_t bytes)
{
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
    size_t before = free_memory();
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemAlloc_v2(&block, bytes));
    fill(&kernels, stream, block, WORDS, 1);
    CHECK(cuMemFree_v2(block));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphLaunch(executable, stream));
    size_t during = free_memory();
    if (during + bytes > before)
        FAIL("the graph keeps nothing: %zu bytes free before, %zu while it is there", before,
             during);
    CHECK(cuGraphExecDestroy(executable));
    size_t after = free_memory();
    return after >= before ? 0 : 100.0 * (double)(before - after) / (double)bytes;
}

/* ---- as the driver has it ---- */

static void expect(const char *what, CUresult found, CUresult expected, unsigned int mode)
{
    if (found != expected)
        FAIL("capture mode %u: %s answers %u, not %u", mode, what, found, expected);
}

static int refused(CUstream stream)
{
    for (unsigned int i = 0; i < MODES; i++) {
        bool forbids = modes[i] != CU_STREAM_CAPTURE_MODE_RELAXED;
        CUresult call = forbids ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
        CUresult end = forbids ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
        CUdeviceptr before, block = 0;
        CUgraph graph;
        CHECK(cuMemAlloc_v2(&before, BYTES));
        CHECK(cuStreamBeginCapture_v2(stream, modes[i]));
        expect("cuMemAlloc", cuMemAlloc_v2(&block, BYTES), call, modes[i]);
        expect("cuStreamEndCapture", cuStreamEndCapture(stream, &graph), end, modes[i]);
        CHECK(cuStreamBeginCapture_v2(stream, modes[i]));
        expect("cuMemFree", cuMemFree_v2(before), call, modes[i]);
        expect("cuStreamEndCapture", cuStreamEndCapture(stream, &graph), end, modes[i]);
        CHECK(cuMemFree_v2(forbids ? before : block));
    }
    printf("graph_captures: 0.00 ms, refused as by the driver\n");
    return 0;
}

int main(int argc, char **argv)
{
    struct worker others[MAX_WORKERS];
    struct made graphs[GRAPHS];
    CUstream stream;
    unsigned long replays = argument(argc, argv, "replays", 100000);
    unsigned long threads = argument(argc, argv, "threads", 8);
    unsigned long captures = argument(argc, argv, "captures", 300);
    size_t kept = argument(argc, argv, "kept_mib", 256) * MIB;
    if (threads > MAX_WORKERS)
        FAIL("threads=%lu: at most %d", threads, MAX_WORKERS);

    context = open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (asked_for(argc, argv, "refused"))
        return refused(stream);
    CUdeviceptr counter = new_counter();
    /* What is loaded at its first launch is not to be loaded in a capture. */
    CUdeviceptr block;
    CHECK(cuMemAlloc_v2(&block, BYTES));
    write_and_verify(stream, block, 0, counter);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemFree_v2(block));
    double lost = keep_and_give_back(stream, kept);
    double start = now_ms();
    for (unsigned int i = 0; i < GRAPHS; i++)
        graphs[i] = capture(stream, modes[i % MODES], 10 * (i + 1), counter);
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&others[i], other_thread, i);
    replay(graphs, stream, replays);
    for (unsigned long i = 0; i < captures; i++) {
        struct made made = capture(stream, modes[i % MODES], 7, counter);
        CHECK(cuGraphLaunch(made.executable, stream));
        CHECK(cuGraphExecDestroy(made.executable));
    }
    replay(graphs, stream, replays / 10);
    atomic_store(&stop, true);
    for (unsigned int i = 0; i < threads; i++)
        join_worker(&others[i]);
    for (unsigned int i = 0; i < GRAPHS; i++)
        CHECK(cuGraphExecDestroy(graphs[i].executable));
    unsigned long long wrong = read_counter(counter) + atomic_load(&wrong_meanwhile);
    printf("graph_captures: %.2f ms, %lu replays, %lu captures beside %lu blocks of %lu threads, "
           "%llu wrong words, %.2f %% of what a graph kept is lost\n",
           now_ms() - start, replays + replays / 10, captures, atomic_load(&blocks_meanwhile),
           threads, wrong, lost);
    return wrong == 0 && lost <= 1 ? 0 : 1;
}
