/*
 * Forward progress: a program may start a kernel that waits for the host, or for another stream,
 * thread or context, and allocate in between. The driver's cuMemAlloc waits for no kernel, so
 * nothing that stands in for it may.
 *
 * Every scenario finishes on the plain driver. One that does not finish in time ends the program
 * with status 1 and its name.
 *
 * Arguments: blocks=200 rounds=20 seconds=20
 */
#include "gpu.h"

#include <signal.h>
#include <stdatomic.h>

static CUcontext context;
static struct kernels kernels;
static unsigned long blocks_per_round, rounds;
static CUstream stream_a, stream_b;

/* A word that host and device share, in every context at the same address. */
static volatile unsigned int *flag_on_host;
static CUdeviceptr flag;

static const char *volatile scenario = "setting up";
static unsigned int seconds_allowed;

static void say_what_hangs(int signal)
{
    static const char text[] = "progress: no progress: ";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 ||
        write(STDERR_FILENO, scenario, strlen(scenario)) < 0 || write(STDERR_FILENO, "\n", 1) < 0)
        _exit(1);
    _exit(1);
}

static void begin(const char *name)
{
    scenario = name;
    *flag_on_host = 0;
    alarm(seconds_allowed);
}

static size_t block_bytes(unsigned long i)
{
    static const size_t sizes[] = {512, 64 << 10, 1 << 20, 3 << 20};
    return sizes[i % 4];
}

static void allocate_blocks(CUdeviceptr *blocks)
{
    for (unsigned long i = 0; i < blocks_per_round; i++)
        CHECK(cuMemAlloc_v2(&blocks[i], block_bytes(i)));
}

/* Frees with work in flight before each, so that the blocks are not simply idle. */
static void free_blocks_behind_work(CUdeviceptr *blocks, CUstream stream,
                                    const struct kernels *loaded)
{
    for (unsigned long i = 0; i < blocks_per_round; i++) {
        if (i % 16 == 0)
            spin(loaded, stream, 20000);
        CHECK(cuMemFree_v2(blocks[i]));
    }
}

/* The host sets the flag after a free and many later allocations. */
static void released_by_the_host(CUdeviceptr *blocks)
{
    begin("released by the host after a free and an allocation");
    allocate_blocks(blocks);
    free_blocks_behind_work(blocks, stream_a, &kernels);
    wait_flag(&kernels, stream_a, flag);
    allocate_blocks(blocks);
    *flag_on_host = 1;
    CHECK(cuStreamSynchronize(stream_a));
    free_blocks_behind_work(blocks, stream_a, &kernels);
}

/* The release comes from a kernel on another stream, launched after the allocations. */
static void released_by_another_stream(CUdeviceptr *blocks)
{
    begin("released by another stream");
    allocate_blocks(blocks);
    free_blocks_behind_work(blocks, stream_b, &kernels);
    wait_flag(&kernels, stream_a, flag);
    allocate_blocks(blocks);
    spin(&kernels, stream_b, 1000);
    set_flag(&kernels, stream_b, flag);
    CHECK(cuStreamSynchronize(stream_a));
    free_blocks_behind_work(blocks, stream_b, &kernels);
}

/* The waiting kernel stands before the memory's next use on its own stream. */
static void waiting_before_the_next_use(CUdeviceptr *blocks)
{
    begin("waiting kernel before the memory's next use");
    allocate_blocks(blocks);
    free_blocks_behind_work(blocks, stream_a, &kernels);
    wait_flag(&kernels, stream_a, flag);
    allocate_blocks(blocks);
    for (unsigned long i = 0; i < blocks_per_round; i++)
        fill(&kernels, i % 2 == 0 ? stream_a : stream_b, blocks[i], 128, (unsigned int)i);
    CHECK(cuStreamSynchronize(stream_b));
    *flag_on_host = 1;
    CHECK(cuStreamSynchronize(stream_a));
    free_blocks_behind_work(blocks, stream_a, &kernels);
}

static void allocate_and_release(unsigned int index)
{
    CUdeviceptr *blocks = calloc(blocks_per_round, sizeof *blocks);
    (void)index;
    if (blocks == NULL)
        FAIL("out of memory");
    CHECK(cuCtxSetCurrent(context));
    allocate_blocks(blocks);
    *flag_on_host = 1;
    CHECK(cuCtxSynchronize());
    free_blocks_behind_work(blocks, stream_b, &kernels);
    free(blocks);
}

/* Another thread allocates, and releases the kernel only then. */
static void released_by_another_thread(CUdeviceptr *blocks)
{
    struct worker other;
    begin("released by another thread, after its allocations");
    allocate_blocks(blocks);
    free_blocks_behind_work(blocks, stream_a, &kernels);
    wait_flag(&kernels, stream_a, flag);
    start_worker(&other, allocate_and_release, 0);
    allocate_blocks(blocks);
    CHECK(cuStreamSynchronize(stream_a));
    join_worker(&other);
    free_blocks_behind_work(blocks, stream_a, &kernels);
}

/* A second context on the same device, with its own kernels and stream. */
static CUcontext second_context;
static struct kernels second_kernels;
static CUstream second_stream;

static void open_second_context(void)
{
    CUdevice device;
    CHECK(cuCtxGetDevice(&device));
    CHECK(cuCtxCreate_v2(&second_context, 0, device));
    load_kernels(&second_kernels);
    CHECK(cuStreamCreate(&second_stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuCtxSetCurrent(context));
}

static void close_second_context(void)
{
    CHECK(cuCtxDestroy_v2(second_context));
    CHECK(cuCtxSetCurrent(context));
}

/* A kernel of the first context waits for one of the second, which frees and allocates before it
 * launches that one: the free of a context waits for its own work only. */
static void one_context_waits_for_the_other(CUdeviceptr *blocks)
{
    begin("a context's kernel waits for another context");
    wait_flag(&kernels, stream_a, flag);
    CHECK(cuCtxSetCurrent(second_context));
    allocate_blocks(blocks);
    free_blocks_behind_work(blocks, second_stream, &second_kernels);
    allocate_blocks(blocks);
    set_flag(&second_kernels, second_stream, flag);
    CHECK(cuStreamSynchronize(second_stream));
    free_blocks_behind_work(blocks, second_stream, &second_kernels);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamSynchronize(stream_a));
}

static void the_other_context_waits(CUdeviceptr *blocks)
{
    begin("the other context's kernel waits for the first");
    CHECK(cuCtxSetCurrent(second_context));
    wait_flag(&second_kernels, second_stream, flag);
    CHECK(cuCtxSetCurrent(context));
    allocate_blocks(blocks);
    free_blocks_behind_work(blocks, stream_b, &kernels);
    allocate_blocks(blocks);
    set_flag(&kernels, stream_b, flag);
    CHECK(cuCtxSynchronize());
    free_blocks_behind_work(blocks, stream_b, &kernels);
    CHECK(cuCtxSetCurrent(second_context));
    CHECK(cuStreamSynchronize(second_stream));
    CHECK(cuCtxSetCurrent(context));
}

int main(int argc, char **argv)
{
    void *host;
    blocks_per_round = argument(argc, argv, "blocks", 200);
    rounds = argument(argc, argv, "rounds", 20);
    seconds_allowed = (unsigned int)argument(argc, argv, "seconds", 20);
    CUdeviceptr *blocks = calloc(blocks_per_round, sizeof *blocks);
    if (blocks == NULL)
        FAIL("out of memory");

    signal(SIGALRM, say_what_hangs);
    alarm(seconds_allowed);
    context = open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream_a, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&stream_b, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cuMemHostGetDevicePointer_v2(&flag, host, 0));
    flag_on_host = host;
    /* Each kernel once, so that no launch below has to load code. */
    *flag_on_host = 1;
    wait_flag(&kernels, stream_a, flag);
    set_flag(&kernels, stream_b, flag);
    CHECK(cuCtxSynchronize());

    double start = now_ms();
    for (unsigned long i = 0; i < rounds; i++) {
        released_by_the_host(blocks);
        released_by_another_stream(blocks);
        waiting_before_the_next_use(blocks);
        released_by_another_thread(blocks);
    }
    open_second_context();
    *flag_on_host = 1;
    CHECK(cuCtxSetCurrent(second_context));
    wait_flag(&second_kernels, second_stream, flag);
    set_flag(&second_kernels, second_stream, flag);
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context));
    for (unsigned long i = 0; i < rounds; i++) {
        one_context_waits_for_the_other(blocks);
        the_other_context_waits(blocks);
        released_by_the_host(blocks);
        released_by_another_stream(blocks);
    }
    close_second_context();
    printf("progress: %.2f ms, %lu rounds of 8 scenarios, all finished\n", now_ms() - start,
           rounds);
    free(blocks);
    return 0;
}
