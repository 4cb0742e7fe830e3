/*
 * How long it takes to give memory back to the driver while the GPU is busy: a block is freed in
 * the order of a stream of its own, and that stream is synchronised. Must not wait for the work of
 * other streams, which has nothing to do with the block, however many they are, also where streams
 * share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS=1).
 *
 * Then what a program notices of it: nearly all of the device's memory was in blocks of one size,
 * which are free; a larger one is allocated. With a pool, that one must give some of them back.
 *
 * Arguments: busy=kernels|host_functions|memory_waits|nothing streams=64 ms=1000 mib=256
 */
#include "gpu.h"

enum { MOST_STREAMS = 1024, BLOCKS = 6 };

static struct kernels kernels;
static unsigned int streams, busy_ms;
static size_t bytes;
static CUstream busy[MOST_STREAMS];
static volatile unsigned int *flag;
static CUdeviceptr flag_on_device;

/* --- work on all streams -----------------------------------------------------------------------*/

/* They may run one after the other: together they take the time. */
static void sleep_its_share(void *unused)
{
    (void)unused;
    usleep(busy_ms * 1000 / streams);
}

static void begin_nothing(void)
{
}

static void begin_kernels(void)
{
    for (unsigned int i = 0; i < streams; i++)
        spin(&kernels, busy[i], busy_ms * 1000000ull);
}

static void begin_host_functions(void)
{
    for (unsigned int i = 0; i < streams; i++)
        CHECK(cuLaunchHostFunc(busy[i], sleep_its_share, NULL));
}

/* Released when the time is up, by whoever waits for the streams. */
static void begin_memory_waits(void)
{
    *flag = 0;
    for (unsigned int i = 0; i < streams; i++)
        CHECK(cuStreamWaitValue32_v2(busy[i], flag_on_device, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static const struct work {
    const char *name;
    void (*begin)(void);
} works[] = {
    {"nothing", begin_nothing},
    {"kernels", begin_kernels},
    {"host_functions", begin_host_functions},
    {"memory_waits", begin_memory_waits},
};
static const struct work *work = &works[1];

static void *release_later(void *unused)
{
    usleep(busy_ms * 1000);
    *flag = 1;
    return unused;
}

/* Begins it, and lets a little time pass, so that it is on the device. */
static void begin_work(pthread_t *releaser)
{
    work->begin();
    if (pthread_create(releaser, NULL, release_later, NULL) != 0)
        FAIL("no thread could be started");
    usleep(20000);
}

static void end_work(pthread_t releaser)
{
    CHECK(cuCtxSynchronize());
    pthread_join(releaser, NULL);
}

/* --- as a pool does it -------------------------------------------------------------------------*/

struct way {
    const char *name;
    CUstream stream;
    bool queried; /* its end is asked for over and over, instead of waited for */
};

static size_t free_memory(void)
{
    size_t left, total;
    CHECK(cuMemGetInfo_v2(&left, &total));
    return left;
}

static void wait_for(const struct way *way)
{
    if (!way->queried) {
        CHECK(cuStreamSynchronize(way->stream));
        return;
    }
    for (;;) {
        CUresult result = cuStreamQuery(way->stream);
        if (result == CUDA_SUCCESS)
            return;
        if (result != CUDA_ERROR_NOT_READY)
            FAIL("cuStreamQuery: CUDA error %u", result);
        usleep(50);
    }
}

/* The time of the free, and of free and wait together, in which the memory comes back. */
static void time_way(const struct way *way)
{
    CUdeviceptr block;
    pthread_t releaser;
    double start, freed, waited;
    size_t before;
    CHECK(cuMemAlloc_v2(&block, bytes));
    begin_work(&releaser);
    before = free_memory();
    start = now_ms();
    CHECK(cuMemFreeAsync(block, way->stream));
    freed = now_ms() - start;
    wait_for(way);
    waited = now_ms() - start;
    printf("fact: %s beside %s on %u streams: free %.2f ms, until it is over %.2f ms, %zu MiB "
           "came back\n",
           way->name, work->name, streams, freed, waited, (free_memory() - before) / MIB);
    end_work(releaser);
}

static void time_ways(CUstream early)
{
    struct way ways[4] = {{"own stream made before the others", early, false},
                          {"own stream made last", NULL, false},
                          {"own stream of the highest priority", NULL, false},
                          {"own stream made last, queried", NULL, true}};
    int least, greatest;
    CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
    CHECK(cuStreamCreate(&ways[1].stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreateWithPriority(&ways[2].stream, CU_STREAM_NON_BLOCKING, greatest));
    ways[3].stream = ways[1].stream;
    for (int i = 0; i < 4; i++)
        time_way(&ways[i]);
}

/* --- as a program sees it ----------------------------------------------------------------------*/

static double time_allocation(void)
{
    CUdeviceptr blocks[BLOCKS], filler = 0, large;
    size_t left = free_memory(), wanted = BLOCKS * bytes + 64 * MIB;
    pthread_t releaser;
    double start;
    if (left > wanted)
        CHECK(cuMemAlloc_v2(&filler, left - wanted));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cuMemAlloc_v2(&blocks[i], bytes));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cuMemFree_v2(blocks[i]));
    CHECK(cuCtxSynchronize());
    begin_work(&releaser);
    start = now_ms();
    CHECK(cuMemAlloc_v2(&large, (BLOCKS - 1) * bytes));
    double ms = now_ms() - start;
    end_work(releaser);
    CHECK(cuMemFree_v2(large));
    CHECK(cuMemFree_v2(filler));
    return ms;
}

static void choose_work(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof works / sizeof *works; k++)
            if (strncmp(argv[i], "busy=", 5) == 0 && strcmp(argv[i] + 5, works[k].name) == 0)
                work = &works[k];
}

int main(int argc, char **argv)
{
    CUstream early;
    CUdeviceptr warm;
    void *memory;
    streams = (unsigned int)argument(argc, argv, "streams", 64);
    busy_ms = (unsigned int)argument(argc, argv, "ms", 1000);
    bytes = argument(argc, argv, "mib", 256) * MIB;
    choose_work(argc, argv);
    if (streams < 1 || streams > MOST_STREAMS)
        FAIL("streams=%u: must be 1 to %d", streams, MOST_STREAMS);

    open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&early, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cuMemHostGetDevicePointer_v2(&flag_on_device, memory, 0));
    flag = memory;
    for (unsigned int i = 0; i < streams; i++) {
        CHECK(cuStreamCreate(&busy[i], CU_STREAM_NON_BLOCKING));
        spin(&kernels, busy[i], 1000);
    }
    /* The first such free of a process takes longer. */
    CHECK(cuMemAlloc_v2(&warm, bytes));
    CHECK(cuMemFreeAsync(warm, early));
    CHECK(cuCtxSynchronize());
    double ms = time_allocation();
    time_ways(early);
    printf("give_back: %.2f ms, an allocation of %zu MiB beside %s on %u streams\n", ms,
           (BLOCKS - 1) * bytes / MIB, work->name, streams);
    return 0;
}
