/*
 * What the pool costs where it cannot help: the calls that reach the driver for a pair of
 * allocation and free, on average no more than the two that the program itself makes. A case to a
 * process; without the pool each shows that it is two. Calls that only look up what the driver
 * knows of the calling thread are not counted, nor are the program's own beside the pairs.
 */
#include "pool.h"

enum { WORDS = 64, WARM = 600, PAIRS = 1200 };

static struct kernels kernels;

static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
}

/* ---- counting ---- */

static uint64_t count_calls(void)
{
    static const char *const cheap[] = {"cuStreamGetId",       "cuStreamGetId_ptsz",
                                        "cuCtxGetCurrent",     "cuThreadExchangeStreamCaptureMode",
                                        "cuStreamIsCapturing", "cuStreamGetCtx",
                                        "cuStreamGetFlags",    "cuCtxPushCurrent_v2",
                                        "cuCtxPopCurrent_v2"};
    uint64_t calls = simcuda_calls(NULL);
    for (size_t i = 0; i < sizeof cheap / sizeof cheap[0]; i++) {
        uint64_t of_it = simcuda_calls(cheap[i]);
        if (of_it != UINT64_MAX)
            calls -= of_it;
    }
    return calls;
}

static uint64_t calls_before;
static double counted_from;

static void begin_counting(void)
{
    calls_before = count_calls();
    counted_from = now_ms();
}

/* The driver's own pair is two calls. The program has made so many other calls of its own. How soon
 * the GPU's work is over decides on the rest, a sixth of a call; one call too many for each pair is
 * three. What is not over is asked about twice in a millisecond, however slow the machine. */
static bool are_few(unsigned pairs, unsigned others, double *calls)
{
    *calls = (double)(count_calls() - calls_before - others) / pairs;
    return *calls <= 2.3 + 2 * (now_ms() - counted_from) / pairs;
}

static void end_counting(unsigned pairs, unsigned others)
{
    double calls;
    if (!are_few(pairs, others, &calls))
        FAIL("%.2f calls a pair reach the driver", calls);
}

/* ---- allocated on one stream, freed on another ---- */

static void hand_over(CUstream from, CUstream to, CUevent event, unsigned pairs)
{
    for (unsigned i = 0; i < pairs; i++) {
        CUdeviceptr block = take_on(from, MIB / 4);
        CU(cuEventRecord(event, from));
        CU(cuStreamWaitEvent(to, event, 0));
        CU(cuMemFreeAsync(block, to));
    }
}

static void handed_over(CUstream from, CUstream to, bool busy)
{
    CUevent event;
    struct gate gate;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    if (busy)
        gate = close_gate(&kernels, to);
    hand_over(from, to, event, WARM);
    begin_counting();
    hand_over(from, to, event, PAIRS);
    end_counting(PAIRS, 2 * PAIRS);
    if (busy)
        open_gate(gate);
    CU(cuCtxSynchronize());
}

static void to_another_stream(void)
{
    furnish();
    handed_over(new_stream(), new_stream(), false);
}

static void to_one_that_is_behind(void)
{
    furnish();
    handed_over(new_stream(), new_stream(), true);
}

static void to_the_legacy_stream(void)
{
    furnish();
    handed_over(new_stream(), NULL, false);
}

static void to_the_legacy_stream_that_is_behind(void)
{
    furnish();
    handed_over(new_stream(), NULL, true);
}

static void to_a_blocking_stream_that_is_behind(void)
{
    furnish();
    handed_over(new_blocking_stream(), new_blocking_stream(), true);
}

/* The stream that is behind catches up: what is freed there serves again. */
static void until_it_catches_up(void)
{
    CUevent event;
    furnish();
    CUstream from = new_stream(), to = new_stream();
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    struct gate gate = close_gate(&kernels, to);
    hand_over(from, to, event, WARM);
    open_gate(gate);
    CU(cuCtxSynchronize());
    hand_over(from, to, event, WARM);
    CU(cuCtxSynchronize());
    uint64_t before = simcuda_calls("cuMemAllocFromPoolAsync");
    hand_over(from, to, event, PAIRS);
    CHECK(simcuda_calls("cuMemAllocFromPoolAsync") - before < PAIRS / 4 || !has_pool());
    CU(cuCtxSynchronize());
}

/* ---- many sizes, past the bound on the reserve ---- */

static void cycle(CUstream *streams, unsigned count, unsigned pairs)
{
    for (unsigned i = 0; i < pairs; i++) {
        CUstream stream = streams[i % count];
        CUdeviceptr block = take_on(stream, (size_t)(8 + 2 * ((i / count + i) % 40)) * MIB);
        CU(cuMemFreeAsync(block, stream));
    }
}

static void cycle_on(unsigned known, unsigned used)
{
    static CUstream streams[1000];
    furnish();
    for (unsigned i = 0; i < known; i++) {
        streams[i] = new_stream();
        CU(cuMemFreeAsync(take_on(streams[i], 4096), streams[i]));
    }
    cycle(streams, used, 16 * WARM);
    /* What is looked for, and how often, hangs on the time that it takes: one good round of some.
     */
    bool few = false;
    double calls = 0;
    for (int round = 0; round < 6 && !few; round++) {
        begin_counting();
        cycle(streams, used, PAIRS);
        few = are_few(PAIRS, 0, &calls);
    }
    if (!few)
        FAIL("%.2f calls a pair reach the driver", calls);
    CU(cuCtxSynchronize());
}

static void many_sizes(void)
{
    cycle_on(1, 1);
}

static void many_sizes_on_many_streams(void)
{
    cycle_on(64, 40);
}

static void many_sizes_on_a_thousand_streams(void)
{
    cycle_on(1000, 40);
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* Of this thread's own processor time: what other programs take of the machine does not count. */
static double time_of_cycle(CUstream *streams, unsigned pairs)
{
    struct timespec start, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    cycle(streams, 40, pairs);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    double ns = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    return ns / pairs / 1e3;
}

/* Most of which do nothing: they cost the others little. The best of some rounds, of more where the
 * machine has other things to do: then the device's thread is late, and streams are searched. */
static void time_on_a_thousand_streams(void)
{
    static CUstream streams[1000];
    double few = 1e9, many = 1e9;
    furnish();
    for (unsigned i = 0; i < 1000; i++) {
        if (i == 40)
            for (unsigned round = 0; round < 8; round++)
                few = smaller(few, time_of_cycle(streams, WARM));
        streams[i] = new_stream();
        CU(cuMemFreeAsync(take_on(streams[i], 4096), streams[i]));
    }
    for (unsigned round = 0; round < 8 || (many > 5 * few && round < 200); round++)
        many = smaller(many, time_of_cycle(streams, WARM));
    if (many > 5 * few)
        FAIL("%.1f us a pair, %.1f on few streams", many, few);
}

/* ---- streams that come and go ---- */

static void use_short_streams(unsigned pairs)
{
    for (unsigned i = 0; i < pairs; i++) {
        CUstream stream = new_stream();
        CUdeviceptr block = take_on(stream, MIB / 16);
        spin(&kernels, stream, 3000000);
        CU(cuMemFreeAsync(block, stream));
        CU(cuStreamDestroy_v2(stream));
    }
}

static void streams_come_and_go(void)
{
    furnish();
    take_on(new_stream(), 4096);
    use_short_streams(WARM);
    begin_counting();
    use_short_streams(PAIRS);
    /* They are made, launched on, and destroyed. */
    end_counting(PAIRS, 3 * PAIRS);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(to_another_stream),
        CASE(to_one_that_is_behind),
        CASE(to_the_legacy_stream),
        CASE(to_the_legacy_stream_that_is_behind),
        CASE(to_a_blocking_stream_that_is_behind),
        CASE(until_it_catches_up),
        CASE(many_sizes),
        CASE(many_sizes_on_many_streams),
        CASE(many_sizes_on_a_thousand_streams),
        CASE(time_on_a_thousand_streams),
        CASE(streams_come_and_go),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
