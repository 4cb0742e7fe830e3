/*
 * Pinned host memory: what it costs a program to take and free it, how much of it there is at most,
 * and whether any of it is ever given out too early. The first argument is a mode:
 *   pairs    cuMemHostAlloc and cuMemFreeHost at once, three sizes, 1, 4 and 16 threads
 *            (most_threads=16 pair_ms=60), while another small block of the process lives
 *   staging  a block for each round: the CPU fills it, a copy to the device, a kernel, a copy back,
 *            the stream's end, the CPU reads; 1 stream and as many as threads=8 says, a thread for
 *            each (mib=16 rounds=40). staging_once: the same with blocks made once
 *   large    first uses of 256 MiB and 1 GiB (count=2 of each, most_mib=1024)
 *   mixed    cuMemAllocHost, fill, both copies, cuMemFreeHost, 64 KiB to 8 MiB (rounds=400).
 *            mixed_once: the same in one block
 *   peak     sizes that change from phase to phase, live_mib=512 at a time at most
 *   hazard   see pinned_hazard.h
 *
 * What was measured is told in lines "row NAME: NUMBER UNIT". All but pairs check their data.
 */
#include "gpu.h"

static CUcontext context;
static struct kernels kernels;

#include "pinned_hazard.h"

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count == 0 ? 0 : values[count / 2];
}

static void *allocate_pageable(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL)
        FAIL("no memory for %zu bytes", bytes);
    return memory;
}

/* ---- pairs ---- */

enum { MOST_THREADS = 16, SAMPLES = 4096, MOST_PAIRS = 256, LEAST_NS = 20000 };

static struct {
    size_t bytes;
    double ms;
    size_t counts[MOST_THREADS];
    double ns[MOST_THREADS * SAMPLES];
} pairs;

static double time_pairs(unsigned int count)
{
    double start = now_ms();
    for (unsigned int i = 0; i < count; i++) {
        void *block;
        CHECK(cuMemHostAlloc(&block, pairs.bytes, 0));
        CHECK(cuMemFreeHost(block));
    }
    return (now_ms() - start) * 1e6 / count;
}

/* The clock is read once for so many pairs that its cost does not show. */
static void make_pairs(unsigned int thread)
{
    unsigned int at_once = 1;
    size_t count = 0;
    CHECK(cuCtxSetCurrent(context));
    time_pairs(2);
    meet();
    for (double end = now_ms() + pairs.ms; count < SAMPLES && now_ms() < end;) {
        double ns = time_pairs(at_once);
        if (ns * at_once < LEAST_NS && at_once < MOST_PAIRS)
            at_once *= 2;
        else
            pairs.ns[thread * SAMPLES + count++] = ns;
    }
    pairs.counts[thread] = count;
    meet();
}

static void measure_pairs(size_t bytes, unsigned int threads)
{
    double sum = 0;
    size_t count = 0;
    pairs.bytes = bytes;
    time_workers(threads, make_pairs);
    for (unsigned int t = 0; t < threads; t++)
        for (size_t i = 0; i < pairs.counts[t]; i++)
            sum += pairs.ns[count++] = pairs.ns[t * SAMPLES + i];
    printf("row pair of %zu KiB, %u threads: %.4f us (mean %.4f of %zu samples)\n", bytes >> 10,
           threads, median(pairs.ns, count) * 1e-3, sum * 1e-3 / (double)(count + (count == 0)),
           count);
}

/* The block that lives on is what most programs have: without it the driver's pairs of small blocks
 * are two orders slower. */
static void run_pairs(int argc, char **argv)
{
    static const size_t sizes[] = {4096, 65536, MIB};
    unsigned long most_threads = argument(argc, argv, "most_threads", MOST_THREADS);
    void *keeper;
    pairs.ms = (double)argument(argc, argv, "pair_ms", 60);
    CHECK(cuMemHostAlloc(&keeper, 4096, 0));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (unsigned int threads = 1; threads <= MOST_THREADS && threads <= most_threads;
             threads *= 4)
            measure_pairs(sizes[s], threads);
    CHECK(cuMemFreeHost(keeper));
}

/* ---- staging ---- */

static struct {
    bool once;
    size_t bytes;
    unsigned long rounds;
    unsigned long long wrong[MAX_WORKERS];
} staging;

/* What a thread has from its first round to its last; value[i] stands in all of source[i]. */
struct stage {
    CUstream stream;
    CUdeviceptr device, counter;
    unsigned int *block, *source[2], value[2];
};

/* Wide enough that a kernel takes no longer than the copies do. */
static void launch_whole(CUfunction function, CUstream stream, void **parameters)
{
    CHECK(cuLaunchKernel(function, 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

static unsigned long long count_others(const unsigned int *words, size_t count, unsigned int value)
{
    unsigned long long others = 0;
    tell_host_reads(words, count * sizeof *words);
    for (size_t i = 0; i < count; i++)
        others += words[i] != value;
    return others;
}

static void copy_in(void *block, const void *source, size_t bytes)
{
    tell_host_writes(block, bytes);
    memcpy(block, source, bytes);
}

/* The words that come back wrong. */
static unsigned long long stage_once(struct stage *stage, unsigned long round)
{
    unsigned int words = (unsigned int)(staging.bytes / sizeof(unsigned int));
    unsigned int result = (unsigned int)round * 2 + 1;
    unsigned long long wrong;
    if (!staging.once)
        CHECK(cuMemHostAlloc((void **)&stage->block, staging.bytes, 0));
    copy_in(stage->block, stage->source[round % 2], staging.bytes);
    CHECK(cuMemcpyHtoDAsync_v2(stage->device, stage->block, staging.bytes, stage->stream));
    launch_whole(kernels.verify, stage->stream,
                 (void *[]){&stage->device, &words, &stage->value[round % 2], &stage->counter});
    launch_whole(kernels.fill, stage->stream, (void *[]){&stage->device, &words, &result});
    CHECK(cuMemcpyDtoHAsync_v2(stage->block, stage->device, staging.bytes, stage->stream));
    CHECK(cuStreamSynchronize(stage->stream));
    wrong = count_others(stage->block, words, result);
    if (!staging.once)
        CHECK(cuMemFreeHost(stage->block));
    return wrong;
}

static void open_stage(struct stage *stage, unsigned int index)
{
    CHECK(cuStreamCreate(&stage->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&stage->device, staging.bytes));
    stage->counter = new_counter();
    for (unsigned int i = 0; i < 2; i++) {
        stage->source[i] = allocate_pageable(staging.bytes);
        stage->value[i] = 0x10000u * (index + 1) + i * 2;
        for (size_t word = 0; word < staging.bytes / sizeof(unsigned int); word++)
            stage->source[i][word] = stage->value[i];
    }
    if (staging.once)
        CHECK(cuMemHostAlloc((void **)&stage->block, staging.bytes, 0));
}

/* The first rounds are not timed: they make the kernels' and the pool's first steps. */
static void stage_all(unsigned int index)
{
    enum { WARM_ROUNDS = 3 };
    struct stage stage = {0};
    unsigned long long wrong = 0;
    CHECK(cuCtxSetCurrent(context));
    open_stage(&stage, index);
    for (unsigned long i = 0; i < WARM_ROUNDS; i++)
        wrong += stage_once(&stage, i);
    meet();
    for (unsigned long i = 0; i < staging.rounds; i++)
        wrong += stage_once(&stage, i);
    meet();
    staging.wrong[index] = wrong + read_counter(stage.counter);
    if (staging.once)
        CHECK(cuMemFreeHost(stage.block));
    for (unsigned int i = 0; i < 2; i++)
        free(stage.source[i]);
    CHECK(cuMemFree_v2(stage.device));
    CHECK(cuMemFree_v2(stage.counter));
    CHECK(cuStreamDestroy_v2(stage.stream));
}

static unsigned long long run_staging(int argc, char **argv)
{
    unsigned int most = (unsigned int)argument(argc, argv, "threads", 8), last = 0;
    unsigned long long wrong = 0;
    staging.once = asked_for(argc, argv, "staging_once");
    staging.bytes = argument(argc, argv, "mib", 16) * MIB;
    staging.rounds = argument(argc, argv, "rounds", 40);
    for (unsigned int threads = 1; last < most; threads = most) {
        double ms = time_workers(threads, stage_all) / (double)staging.rounds;
        printf("row staging %zu MiB, %u streams, a round: %.4f ms\n", staging.bytes / MIB, threads,
               ms);
        for (unsigned int i = 0; i < threads; i++)
            wrong += staging.wrong[i];
        last = threads;
    }
    return wrong;
}

/* ---- large blocks ---- */

enum { MOST_LARGE = 8, PAGE_WORDS = 1024 };
static const size_t CHUNK = 64 * MIB;

/* Each page's first word is its number, and the device gets all of it; the pages that come back
 * wrong from the last piece. */
static unsigned long long use_first(unsigned int *block, size_t bytes, CUdeviceptr device,
                                    double *until_copied, double start)
{
    size_t pages = bytes / (PAGE_WORDS * sizeof *block), last = (bytes - 1) / CHUNK * CHUNK;
    unsigned long long wrong = 0;
    tell_host_writes(block, bytes);
    for (size_t i = 0; i < pages; i++)
        block[i * PAGE_WORDS] = (unsigned int)i;
    for (size_t done = 0; done < bytes; done += CHUNK)
        CHECK(cuMemcpyHtoDAsync_v2(device, (char *)block + done,
                                   bytes - done < CHUNK ? bytes - done : CHUNK, NULL));
    CHECK(cuCtxSynchronize());
    *until_copied = now_ms() - start;
    for (size_t i = last / (PAGE_WORDS * sizeof *block); i < pages; i += 509) {
        unsigned int word;
        CHECK(cuMemcpyDtoH_v2(&word, device + i * PAGE_WORDS * sizeof word - last, sizeof word));
        wrong += word != (unsigned int)i;
    }
    return wrong;
}

/* A virtual machine may have to get its memory first, which whoever comes first would pay for. */
static void have_memory_ready(size_t bytes)
{
    char *memory = allocate_pageable(bytes);
    for (size_t i = 0; i < bytes; i += PAGE_WORDS * sizeof(unsigned int))
        ((volatile char *)memory)[i] = 1;
    free(memory);
}

/* All are first uses, since none is freed before all have been made; the last is had again. */
static unsigned long long measure_large(size_t mib, unsigned int count)
{
    double made[MOST_LARGE], copied[MOST_LARGE], freed[MOST_LARGE], again;
    void *blocks[MOST_LARGE];
    unsigned long long wrong = 0;
    size_t bytes = mib * MIB;
    CUdeviceptr device;
    CHECK(cuMemAlloc_v2(&device, CHUNK));
    have_memory_ready(bytes * count);
    for (unsigned int i = 0; i < count; i++) {
        double start = now_ms();
        CHECK(cuMemHostAlloc(&blocks[i], bytes, 0));
        made[i] = now_ms() - start;
        wrong += use_first(blocks[i], bytes, device, &copied[i], start);
    }
    for (unsigned int i = 0; i < count; i++) {
        double start = now_ms();
        CHECK(cuMemFreeHost(blocks[i]));
        freed[i] = now_ms() - start;
    }
    again = now_ms();
    CHECK(cuMemHostAlloc(&blocks[0], bytes, 0));
    again = now_ms() - again;
    CHECK(cuMemFreeHost(blocks[0]));
    CHECK(cuMemFree_v2(device));
    printf("row large %zu MiB, cuMemHostAlloc: %.4f ms\n", mib, median(made, count));
    printf("row large %zu MiB, until copied: %.4f ms\n", mib, median(copied, count));
    printf("row large %zu MiB, cuMemFreeHost: %.4f ms\n", mib, median(freed, count));
    printf("row large %zu MiB, had again: %.4f ms\n", mib, again);
    return wrong;
}

static unsigned long long run_large(int argc, char **argv)
{
    size_t most_mib = argument(argc, argv, "most_mib", 1024);
    unsigned int count = (unsigned int)argument(argc, argv, "count", 2);
    void *first;
    if (count < 1 || count > MOST_LARGE)
        FAIL("count=%u: must be 1 to %d", count, MOST_LARGE);
    CHECK(cuMemHostAlloc(&first, 4096, 0));
    unsigned long long wrong = measure_large(most_mib < 256 ? most_mib : 256, count);
    if (most_mib > 256)
        wrong += measure_large(most_mib, count);
    CHECK(cuMemFreeHost(first));
    return wrong;
}

/* ---- mixed sizes ---- */

enum { LEAST_MIXED = 65536, MOST_MIXED = 8 << 20 };

/* As many small as large ones: below 64 KiB << 7. */
static size_t mixed_bytes(unsigned int *state)
{
    size_t least = (size_t)LEAST_MIXED << next_random(state) % 7;
    return (least + next_random(state) % (least + 1)) / 4 * 4;
}

static unsigned long long run_mixed(int argc, char **argv)
{
    unsigned long rounds = argument(argc, argv, "rounds", 400);
    bool once = asked_for(argc, argv, "mixed_once");
    unsigned long long wrong = 0;
    unsigned int state = 1;
    unsigned int *block = NULL;
    CUdeviceptr device;
    CHECK(cuMemAlloc_v2(&device, MOST_MIXED));
    CHECK(cuMemAllocHost_v2((void **)&block, MOST_MIXED));
    double start = now_ms();
    for (unsigned int i = 1; i <= rounds; i++) {
        size_t bytes = mixed_bytes(&state), words = bytes / sizeof *block;
        unsigned int *used = block;
        if (!once)
            CHECK(cuMemAllocHost_v2((void **)&used, bytes));
        fill_words(used, (unsigned int)words, i);
        CHECK(cuMemcpyHtoD_v2(device, used, bytes));
        fill_words(used, (unsigned int)words, 0);
        CHECK(cuMemcpyDtoH_v2(used, device, bytes));
        wrong += count_others(used, words, i);
        if (!once)
            CHECK(cuMemFreeHost(used));
    }
    printf("row mixed sizes, a block: %.4f ms\n", (now_ms() - start) / (double)rounds);
    CHECK(cuMemFreeHost(block));
    CHECK(cuMemFree_v2(device));
    return wrong;
}

/* ---- the most memory ---- */

/* Kinds of figures that may say how much host memory is in use; which of them sees pinned memory
 * depends on the driver. */
enum figure { MACHINE, RESIDENT, PINNED, CGROUP, FIGURES };
static const char *const figure_names[FIGURES] = {"machine's use", "VmRSS", "VmPin",
                                                  "cgroup's use"};

/* The KiB that a line "NAME: NUMBER kB" of the file tells; 0 without one. */
static double read_kib(const char *path, const char *name)
{
    char line[256];
    size_t length = strlen(name);
    double kib = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            kib = strtod(line + length + 1, NULL);
    if (file != NULL)
        fclose(file);
    return kib;
}

static double read_number(const char *path)
{
    double number = 0;
    FILE *file = fopen(path, "r");
    if (file != NULL && fscanf(file, "%lf", &number) != 1)
        number = 0;
    if (file != NULL)
        fclose(file);
    return number;
}

/* In MiB. A virtual machine's total may grow as it is used. */
static void read_figures(double *mib)
{
    static const char *const cgroup[] = {"/sys/fs/cgroup/memory.current",
                                         "/sys/fs/cgroup/memory/memory.usage_in_bytes"};
    double bytes = read_number(cgroup[0]);
    mib[MACHINE] =
        (read_kib("/proc/meminfo", "MemTotal") - read_kib("/proc/meminfo", "MemAvailable")) / 1024;
    mib[RESIDENT] = read_kib("/proc/self/status", "VmRSS") / 1024;
    mib[PINNED] = read_kib("/proc/self/status", "VmPin") / 1024;
    mib[CGROUP] = (bytes > 0 ? bytes : read_number(cgroup[1])) / (double)MIB;
}

enum { MOST_BLOCKS = 1 << 15 };

static struct {
    size_t most_live, live, peak_live, count;
    double before[FIGURES], peak[FIGURES];
    struct {
        unsigned int *start;
        size_t bytes;
    } blocks[MOST_BLOCKS];
    unsigned int state;
    unsigned long long wrong;
} held;

static void note_figures(void)
{
    double now[FIGURES];
    read_figures(now);
    for (unsigned int i = 0; i < FIGURES; i++)
        held.peak[i] = now[i] > held.peak[i] ? now[i] : held.peak[i];
}

/* A block's pages begin with its size. */
static void free_any(void)
{
    size_t i = next_random(&held.state) % held.count;
    held.wrong += *held.blocks[i].start != (unsigned int)held.blocks[i].bytes;
    CHECK(cuMemFreeHost(held.blocks[i].start));
    held.live -= held.blocks[i].bytes;
    held.blocks[i] = held.blocks[--held.count];
}

static void hold_another(size_t bytes)
{
    void *block;
    while (held.count > 0 && (held.live + bytes > held.most_live || held.count == MOST_BLOCKS))
        free_any();
    CHECK(cuMemHostAlloc(&block, bytes, 0));
    tell_host_writes(block, bytes);
    for (size_t i = 0; i < bytes; i += PAGE_WORDS * sizeof(unsigned int))
        *(unsigned int *)((char *)block + i) = (unsigned int)bytes;
    held.blocks[held.count].start = block;
    held.blocks[held.count++].bytes = bytes;
    held.live += bytes;
    held.peak_live = held.live > held.peak_live ? held.live : held.peak_live;
    note_figures();
}

/* Twice as much as lives, of sizes that no other phase has, or of all of them. Every other phase
 * begins with nothing: what is cached then is of other sizes than what is wanted. */
static void run_phase(unsigned int phase)
{
    static const size_t least[] = {1 << 16, 1 << 20, 1 << 23, 1 << 16},
                        most[] = {1 << 20, 1 << 23, 1 << 26, 1 << 26};
    while (phase % 2 == 1 && held.count > 0)
        free_any();
    for (size_t done = 0; done < 2 * held.most_live;) {
        size_t cap = most[phase] < held.most_live / 4 ? most[phase] : held.most_live / 4;
        size_t bytes = least[phase];
        if (cap > bytes)
            bytes += (size_t)next_random(&held.state) * 16 % (cap - bytes);
        hold_another(bytes);
        done += bytes;
    }
}

/* VmHWM starts anew where the kernel can do that. */
static void forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL)
        return;
    fputs("5", file);
    fclose(file);
}

static unsigned long long run_peak(int argc, char **argv)
{
    held.state = 1;
    held.most_live = argument(argc, argv, "live_mib", 512) * MIB;
    have_memory_ready(held.most_live * 2);
    forget_peak();
    read_figures(held.before);
    for (unsigned int phase = 0; phase < 4; phase++)
        run_phase(phase);
    printf("row peak asked for: %.1f MiB\n", (double)held.peak_live / (double)MIB);
    for (unsigned int i = 0; i < FIGURES; i++)
        printf("row peak %s: %.1f MiB\n", figure_names[i],
               held.peak[i] > held.before[i] ? held.peak[i] - held.before[i] : 0);
    printf("row peak VmHWM: %.1f MiB\n",
           read_kib("/proc/self/status", "VmHWM") / 1024 - held.before[RESIDENT]);
    while (held.count > 0)
        free_any();
    return held.wrong;
}

/* ---- all modes ---- */

static unsigned long long pairs_mode(int argc, char **argv)
{
    run_pairs(argc, argv);
    return 0;
}

static const struct {
    const char *name;
    unsigned long long (*run)(int argc, char **argv);
} modes[] = {
    {"pairs", pairs_mode}, {"staging", run_staging},   {"staging_once", run_staging},
    {"large", run_large},  {"mixed", run_mixed},       {"mixed_once", run_mixed},
    {"peak", run_peak},    {"hazard", hazard_threads},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) != 0)
            continue;
        context = open_primary();
        load_kernels(&kernels);
        double start = now_ms();
        unsigned long long wrong = modes[i].run(argc, argv);
        printf("pinned: %.3f ms, %s, %llu wrong words\n", now_ms() - start, modes[i].name, wrong);
        return wrong == 0 ? 0 : 1;
    }
    fprintf(stderr, "usage: pinned pairs|staging|staging_once|large|mixed|mixed_once|peak|hazard"
                    " [NAME=NUMBER...]\n");
    return 2;
}
