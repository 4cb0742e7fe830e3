/*
 * Programs that count for themselves what a report tells of them, for counted.sh.
 *
 * counted CASE prints at its end, of each kind of memory and of each size in it,
 *
 *   KIND BYTES NAME VALUE LESS MORE   BYTES: "all" for the kind as a whole
 *
 * where NAME is a counter's as in CSV, and the report's value may be so much less, or more. Sizes
 * are powers of two, which are buckets' own.
 */
#include "pool.h"

#include <time.h>

#define SLACK (32 * (uint64_t)MIB) /* of a thread, or of a stream: what README and docs promise */

enum kind { DEVICE, STREAMS, PINNED, KINDS };
static const char *const kind_names[] = {"device", "stream_ordered", "host"};

struct count {
    uint64_t requests, failures, frees, requested_bytes, live_blocks, live_bytes, peak_bytes;
};

enum { SIZES = 48 };
static struct count counts[KINDS][SIZES], totals[KINDS];
static uint64_t users = 1; /* threads or streams that take memory of a kind */
static uint64_t more;      /* bytes on the way while another thread counts */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream stream;

static unsigned size_of(uint64_t bytes)
{
    CHECK(bytes != 0 && (bytes & (bytes - 1)) == 0);
    return (unsigned)__builtin_ctzll(bytes);
}

static void add(struct count *count, uint64_t bytes, bool met)
{
    count->requests++;
    count->requested_bytes += bytes;
    count->failures += !met;
    count->live_blocks += met;
    count->live_bytes += met ? bytes : 0;
    if (count->live_bytes > count->peak_bytes)
        count->peak_bytes = count->live_bytes;
}

static void count_taken(enum kind kind, uint64_t bytes, bool met)
{
    pthread_mutex_lock(&lock);
    add(&counts[kind][size_of(bytes)], bytes, met);
    add(&totals[kind], bytes, met);
    pthread_mutex_unlock(&lock);
}

static void subtract(struct count *count, uint64_t bytes)
{
    count->frees++;
    count->live_blocks--;
    count->live_bytes -= bytes;
}

static void count_freed(enum kind kind, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    subtract(&counts[kind][size_of(bytes)], bytes);
    subtract(&totals[kind], bytes);
    pthread_mutex_unlock(&lock);
}

struct taken {
    enum kind kind;
    uint64_t bytes;
    CUdeviceptr address; /* 0: it was refused */
};

static struct taken ask(enum kind kind, uint64_t bytes, CUstream on)
{
    struct taken taken = {kind, bytes, 0};
    void *memory = NULL;
    CUresult result = kind == DEVICE    ? cuMemAlloc_v2(&taken.address, bytes)
                      : kind == STREAMS ? cuMemAllocAsync(&taken.address, bytes, on)
                                        : cuMemHostAlloc(&memory, bytes, 0);
    if (kind == PINNED)
        taken.address = (CUdeviceptr)(uintptr_t)memory;
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result != CUDA_SUCCESS)
        taken.address = 0;
    count_taken(kind, bytes, result == CUDA_SUCCESS);
    return taken;
}

static struct taken have(enum kind kind, uint64_t bytes, CUstream on)
{
    struct taken taken = ask(kind, bytes, on);
    CHECK(taken.address != 0);
    return taken;
}

static void give(struct taken taken, CUstream on)
{
    count_freed(taken.kind, taken.bytes);
    if (taken.kind == DEVICE)
        CU(cuMemFree_v2(taken.address));
    else if (taken.kind == STREAMS)
        CU(cuMemFreeAsync(taken.address, on));
    else
        CU(cuMemFreeHost((void *)(uintptr_t)taken.address));
}

/* ---- what it says ---- */

static void tell(enum kind kind, const char *bytes, const struct count *count)
{
    const struct {
        const char *name;
        uint64_t value, less, more;
    } lines[] = {{"requests", count->requests, 0, 0},
                 {"failures", count->failures, 0, 0},
                 {"frees", count->frees, 0, 0},
                 {"requested_bytes", count->requested_bytes, 0, 0},
                 {"live_blocks", count->live_blocks, 0, 0},
                 {"live_bytes", count->live_bytes, 0, 0},
                 {"peak_live_bytes", count->peak_bytes, users * SLACK, more}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        printf("%s %s %s %llu %llu %llu\n", kind_names[kind], bytes, lines[i].name,
               (unsigned long long)lines[i].value, (unsigned long long)lines[i].less,
               (unsigned long long)lines[i].more);
}

static void tell_all(void)
{
    char text[24];
    for (enum kind kind = DEVICE; kind < KINDS; kind++) {
        if (totals[kind].requests == 0)
            continue;
        for (unsigned size = 0; size < SIZES; size++) {
            snprintf(text, sizeof text, "%llu", 1ULL << size);
            if (counts[kind][size].requests != 0)
                tell(kind, text, &counts[kind][size]);
        }
        tell(kind, "all", &totals[kind]);
    }
    printf("taken - - %llu 0 0\n", (unsigned long long)simcuda_peak_device_bytes());
}

/* ---- cases ---- */

enum { BLOCKS = 64 };

static void take_and_give(enum kind kind, uint64_t bytes, unsigned blocks, CUstream on)
{
    struct taken taken[BLOCKS];
    CHECK(blocks <= BLOCKS);
    for (unsigned i = 0; i < blocks; i++)
        taken[i] = have(kind, bytes, on);
    for (unsigned i = 0; i < blocks; i++)
        give(taken[i], on);
    CU(cuCtxSynchronize());
}

/* Each size by itself first, so that what is held together at last is held by hits. */
static void by_hits(enum kind kind)
{
    struct taken taken[4 + 2 + 2];
    unsigned held = 0;
    take_and_give(kind, 4 * MIB, 4, stream);
    take_and_give(kind, 32 * MIB, 2, stream);
    take_and_give(kind, 16 * MIB, 2, stream);
    for (unsigned i = 0; i < 4; i++)
        taken[held++] = have(kind, 4 * MIB, stream);
    for (unsigned i = 0; i < 2; i++) {
        taken[held++] = have(kind, 32 * MIB, stream);
        taken[held++] = have(kind, 16 * MIB, stream);
    }
    while (held-- > 1)
        give(taken[held], stream);
    take_and_give(kind, MIB, 3, stream);
}

static void device(void)
{
    by_hits(DEVICE);
}

static void streams(void)
{
    by_hits(STREAMS);
}

static void pinned(void)
{
    by_hits(PINNED);
}

static void kinds(void)
{
    by_hits(DEVICE);
    by_hits(STREAMS);
    by_hits(PINNED);
}

/* Of sizes that are no whole pieces of the driver's, each many times. */
static void pinned_pairs(void)
{
    static const size_t sizes[] = {64 << 10, MIB, 3 * MIB};
    for (unsigned i = 0; i < 150; i++) {
        void *memory;
        CU(cuMemHostAlloc(&memory, sizes[i / 50], 0));
        CU(cuMemFreeHost(memory));
    }
}

/* Blocks of a quarter of the device: each free waits for the work before it. */
static void waits(void)
{
    struct kernels kernels;
    uint64_t waited = 0;
    load_kernels(&kernels);
    for (unsigned i = 0; i < 10; i++) {
        struct timespec before, after;
        CUdeviceptr block = take(256 * MIB);
        spin(&kernels, stream, 20000000);
        clock_gettime(CLOCK_MONOTONIC, &before);
        CU(cuMemFree_v2(block));
        clock_gettime(CLOCK_MONOTONIC, &after);
        waited += (uint64_t)(after.tv_sec - before.tv_sec) * 1000000000 + (uint64_t)after.tv_nsec -
                  (uint64_t)before.tv_nsec;
    }
    printf("device 268435456 waits_nanoseconds %llu %llu 0\n", (unsigned long long)waited,
           (unsigned long long)(waited / 2));
    printf("device 268435456 waits_frees 10 0 0\n");
}

/* Two kinds, one after the other: the device never has both. */
static void in_turn(void)
{
    struct cudapool_peaks peaks;
    for (enum kind kind = DEVICE; kind <= STREAMS; kind++) {
        give(have(kind, 256 * MIB, stream), stream);
        CU(cuCtxSynchronize());
        cudapool_trim();
    }
    CHECK(cudapool_get_peaks(0, &peaks) == 0);
    EQUAL(simcuda_peak_device_bytes(), peaks.reserved);
    EQUAL(256 * MIB, peaks.live);
}

/* Nothing was asked of CUDA for most of its time. */
static void late(void)
{
    take_and_give(DEVICE, MIB, 1, stream);
}

/* What one stream frees, the other takes: never more than one such block is held, or two. */
static void two_streams(void)
{
    CUstream both[] = {stream, new_stream()};
    users = 2;
    for (unsigned round = 0; round < 8; round++) {
        take_and_give(STREAMS, 64 * MIB, 1 + round / 4, both[round % 2]);
        take_and_give(STREAMS, 8 * MIB, 4, both[(round + 1) % 2]);
    }
}

/* What is refused was never held, by the program or by the pool. */
static void refused(void)
{
    for (enum kind kind = DEVICE; kind <= STREAMS; kind++) {
        struct taken held = have(kind, 512 * MIB, stream);
        struct taken second = have(kind, 256 * MIB, stream);
        CHECK(ask(kind, 512 * MIB, stream).address == 0);
        give(second, stream);
        give(held, stream);
        CU(cuCtxSynchronize());
        cudapool_trim();
    }
}

static void refused_large(void)
{
    CHECK(ask(DEVICE, 2048 * MIB, stream).address == 0);
    give(have(DEVICE, MIB, stream), stream);
}

/* More than the pool knows at a time: the driver answers for the rest. */
static void many_streams(void)
{
    enum { STREAMS_HERE = 1200 };
    static CUstream many[STREAMS_HERE];
    users = STREAMS_HERE;
    for (unsigned i = 0; i < STREAMS_HERE; i++)
        many[i] = new_stream();
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < STREAMS_HERE; i++)
            give(have(STREAMS, 4096, many[i]), many[i]);
}

static void *take_as_thread(void *argument)
{
    enum kind kind = *(const enum kind *)argument;
    CUstream own;
    CHECK(open_primary() != NULL);
    own = new_stream();
    for (unsigned round = 0; round < 8; round++)
        take_and_give(kind, MIB << round % 4, 8, own);
    return NULL;
}

static void threads(void)
{
    enum { THREADS = 4 };
    pthread_t thread[KINDS][THREADS];
    static const enum kind each[] = {DEVICE, STREAMS, PINNED};
    users = THREADS;
    more = THREADS * 8 * MIB;
    for (unsigned k = 0; k < KINDS; k++)
        for (unsigned i = 0; i < THREADS; i++)
            CHECK(pthread_create(&thread[k][i], NULL, take_as_thread,
                                 (void *)(uintptr_t)&each[k]) == 0);
    for (unsigned k = 0; k < KINDS; k++)
        for (unsigned i = 0; i < THREADS; i++)
            CHECK(pthread_join(thread[k][i], NULL) == 0);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {{"device", device},
                                             {"streams", streams},
                                             {"pinned", pinned},
                                             {"kinds", kinds},
                                             {"two_streams", two_streams},
                                             {"refused", refused},
                                             {"refused_large", refused_large},
                                             {"threads", threads},
                                             {"many_streams", many_streams},
                                             {"in_turn", in_turn},
                                             {"late", late},
                                             {"pinned_pairs", pinned_pairs},
                                             {"waits", waits},
                                             {NULL, NULL}};
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (argc > 1 && strcmp(argv[1], "late") == 0)
        sleep_ms(500);
    CHECK(open_primary() != NULL);
    stream = new_stream();
    int status = run_case(argc, argv, cases);
    tell_all();
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("wall - - %.6f 0 0\n",
           (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
    return status;
}
