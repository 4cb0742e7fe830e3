/*
 * A soak: threads that allocate, write, verify and free blocks of 1 byte to 1 GiB for minutes, on
 * streams of their own, with the device's memory kept nearly full and graphs captured and replayed
 * all the while. Every block holds a value of its own from its first use to the kernel that is
 * still in front of its free; whoever gets it too early overwrites that.
 *
 * With "unordered" the program recycles blocks itself, at once and without any wait: that must be
 * seen to fail, or this test sees nothing. (It needs memory of its own: give it percent=50.)
 *
 * Arguments: seconds=480 threads=16 streams=2 percent=96 largest_mib=1024 [unordered]
 */
#include "gpu.h"

#include <stdatomic.h>

enum { MAX_THREADS = 64, MAX_STREAMS = 8, BLOCKS_PER_THREAD = 400, USUAL_SIZES = 48 };

/* Of a large block so many words are written and verified at each end and in the middle. */
#define WINDOW_WORDS ((unsigned int)1 << 17)

/* Blocks of this size and more take whole pages of the device's memory. */
#define PAGE (2 * MIB)

struct block {
    CUdeviceptr address;
    size_t bytes;
    CUstream stream; /* that it was written on; it is verified there */
    unsigned int value;
};

/* What a thread of the soak owns. */
struct soaker {
    CUstream streams[MAX_STREAMS];
    CUdeviceptr counter; /* of wrong words, on the device */
    struct block blocks[BLOCKS_PER_THREAD];
    unsigned int count, random, next_value;
    unsigned long long wrong, allocations, graphs, replays;
};

static CUcontext context;
static struct kernels kernels;
static unsigned long streams_per_thread;
static double deadline;
static size_t target_bytes;
static unsigned int doublings; /* from 1 byte to the largest block */
static bool unordered;
static size_t usual_sizes[USUAL_SIZES];
static struct soaker soakers[MAX_THREADS];
static atomic_size_t held_bytes, peak_held;

/* ---- blocks that are recycled at once, for the experiment that must fail ---- */

enum { CARELESS_CLASSES = 40, CARELESS_BLOCKS = 8 };
#define CARELESS_LARGEST (64 * MIB)

/* The lock guards the two arrays and nothing else. */
static pthread_mutex_t careless_lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr careless_blocks[CARELESS_CLASSES][CARELESS_BLOCKS];
static unsigned int careless_counts[CARELESS_CLASSES];

static unsigned int class_of(size_t bytes)
{
    return bytes > 1 ? (unsigned int)(64 - __builtin_clzl(bytes - 1)) : 0;
}

static CUdeviceptr take_careless(size_t bytes)
{
    unsigned int class = class_of(bytes);
    CUdeviceptr block = 0;
    pthread_mutex_lock(&careless_lock);
    if (careless_counts[class])
        block = careless_blocks[class][--careless_counts[class]];
    pthread_mutex_unlock(&careless_lock);
    if (block)
        tell_allocated(CUDA_SUCCESS, block, (size_t)1 << class);
    return block;
}

static bool give_careless(CUdeviceptr block, size_t bytes)
{
    unsigned int class = class_of(bytes);
    pthread_mutex_lock(&careless_lock);
    bool kept = careless_counts[class] < CARELESS_BLOCKS && bytes <= CARELESS_LARGEST;
    if (kept) {
        tell_freed(block);
        careless_blocks[class][careless_counts[class]++] = block;
    }
    pthread_mutex_unlock(&careless_lock);
    return kept;
}

/* ---- sizes, and the memory that they may take ---- */

/* As likely in each doubling from 1 byte to the largest. */
static size_t any_size(unsigned int *random)
{
    size_t base = (size_t)1 << (next_random(random) % doublings);
    return base + ((size_t)next_random(random) << 8 | next_random(random) % 256) % base;
}

/* Programs mostly ask for sizes that they have asked for before. */
static size_t next_size(unsigned int *random)
{
    if (next_random(random) % 3)
        return usual_sizes[next_random(random) % USUAL_SIZES];
    return any_size(random);
}

static size_t weight(size_t bytes)
{
    size_t unit = bytes < PAGE / 2 ? (size_t)1 << 16 : PAGE;
    return (bytes + unit - 1) / unit * unit;
}

static void note_peak(size_t held)
{
    size_t peak = atomic_load(&peak_held);
    while (held > peak && !atomic_compare_exchange_weak(&peak_held, &peak, held))
        continue;
}

static bool take_room(size_t bytes)
{
    size_t held = atomic_load(&held_bytes);
    do {
        if (held + weight(bytes) > target_bytes)
            return false;
    } while (!atomic_compare_exchange_weak(&held_bytes, &held, held + weight(bytes)));
    note_peak(held + weight(bytes));
    return true;
}

static void give_room(size_t bytes)
{
    atomic_fetch_sub(&held_bytes, weight(bytes));
}

/* ---- a block's life ---- */

/* A part of a block that is written and verified, in words. */
struct window {
    size_t first;
    unsigned int words;
};

static unsigned int windows_of(size_t bytes, struct window *windows)
{
    size_t words = bytes / sizeof(unsigned int);
    if (words <= 3 * (size_t)WINDOW_WORDS) {
        windows[0] = (struct window){0, (unsigned int)words};
        return words > 0;
    }
    windows[0] = (struct window){0, WINDOW_WORDS};
    windows[1] = (struct window){words / 2, WINDOW_WORDS};
    windows[2] = (struct window){words - WINDOW_WORDS, WINDOW_WORDS};
    return 3;
}

static CUdeviceptr address_of(const struct block *block, const struct window *window)
{
    return block->address + window->first * sizeof(unsigned int);
}

static void write_block(struct soaker *soaker, struct block *block)
{
    struct window windows[3];
    unsigned int count = windows_of(block->bytes, windows);
    block->value = ++soaker->next_value;
    block->stream = soaker->streams[next_random(&soaker->random) % streams_per_thread];
    for (unsigned int i = 0; i < count; i++)
        fill(&kernels, block->stream, address_of(block, &windows[i]), windows[i].words,
             block->value);
    if (count == 0)
        CHECK(cuMemsetD8Async(block->address, (unsigned char)block->value, block->bytes,
                              block->stream));
}

/* Less than a word: the host looks. */
static void verify_bytes(struct soaker *soaker, const struct block *block)
{
    unsigned char bytes[sizeof(unsigned int)];
    CHECK(cuMemcpyDtoHAsync_v2(bytes, block->address, block->bytes, block->stream));
    CHECK(cuStreamSynchronize(block->stream));
    for (size_t i = 0; i < block->bytes; i++)
        soaker->wrong += bytes[i] != (unsigned char)block->value;
}

/* spin_us: how long the first look takes to come. */
static void verify_block(struct soaker *soaker, const struct block *block, unsigned int spin_us)
{
    struct window windows[3];
    unsigned int count = windows_of(block->bytes, windows);
    for (unsigned int i = 0; i < count; i++)
        spin_then_verify(&kernels, block->stream, i ? 0 : spin_us * 1000ull,
                         address_of(block, &windows[i]), windows[i].words, block->value,
                         soaker->counter);
    if (count == 0)
        verify_bytes(soaker, block);
}

/* Frees a block while the kernel that looks at it is still to come. */
static void free_block(struct soaker *soaker, unsigned int i)
{
    struct block block = soaker->blocks[i];
    verify_block(soaker, &block, next_random(&soaker->random) % 200);
    if (!unordered || !give_careless(block.address, block.bytes))
        CHECK(cuMemFree_v2(block.address));
    give_room(block.bytes);
    soaker->blocks[i] = soaker->blocks[--soaker->count];
}

static void free_any_block(struct soaker *soaker)
{
    free_block(soaker, next_random(&soaker->random) % soaker->count);
}

static void allocate_block(struct soaker *soaker)
{
    size_t bytes = next_size(&soaker->random);
    size_t asked = unordered ? (size_t)1 << class_of(bytes) : bytes;
    while (soaker->count == BLOCKS_PER_THREAD || (soaker->count && !take_room(asked)))
        free_any_block(soaker);
    if (soaker->count == 0 && !take_room(asked))
        return;
    struct block *block = &soaker->blocks[soaker->count];
    block->address = unordered ? take_careless(asked) : 0;
    CUresult result = block->address ? CUDA_SUCCESS : cuMemAlloc_v2(&block->address, asked);
    if (result != CUDA_SUCCESS)
        FAIL("%zu bytes with %zu of %zu in use: CUDA error %u", asked, atomic_load(&held_bytes),
             target_bytes, result);
    block->bytes = asked;
    soaker->count++;
    soaker->allocations++;
    write_block(soaker, block);
}

/* ---- graphs ---- */

/* Captures a graph that fills and verifies a block, and replays it among other work. */
static void capture_and_replay(struct soaker *soaker)
{
    enum { WORDS = 1 << 14, REPLAYS = 4 };
    CUstream stream = soaker->streams[next_random(&soaker->random) % streams_per_thread];
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block;
    CHECK(cuMemAlloc_v2(&block, WORDS * sizeof(unsigned int)));
    CHECK(cuStreamBeginCapture_v2(stream, next_random(&soaker->random) % 3));
    fill(&kernels, stream, block, WORDS, ++soaker->next_value);
    spin_then_verify(&kernels, stream, 50000, block, WORDS, soaker->next_value, soaker->counter);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (unsigned int i = 0; i < REPLAYS; i++) {
        CHECK(cuGraphLaunch(executable, stream));
        allocate_block(soaker);
    }
    /* The last replay is still running. */
    CHECK(cuMemFree_v2(block));
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
    soaker->graphs++;
    soaker->replays += REPLAYS;
}

/* ---- threads ---- */

static void take_a_step(struct soaker *soaker)
{
    unsigned int choice = next_random(&soaker->random) % 1000;
    if (choice < 5)
        capture_and_replay(soaker);
    else if (choice < 10)
        CHECK(cuStreamSynchronize(soaker->streams[0]));
    else if (choice < 550 || soaker->count == 0)
        allocate_block(soaker);
    else if (choice < 800)
        free_any_block(soaker);
    else
        verify_block(soaker, &soaker->blocks[next_random(&soaker->random) % soaker->count], 0);
}

/* Captures of other threads forbid cuMemAlloc to those that do not say they know. */
static void allow_calls_during_captures(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
}

static void soak(unsigned int index)
{
    struct soaker *soaker = &soakers[index];
    soaker->random = index * 7919u + 1;
    soaker->next_value = index << 26;
    CHECK(cuCtxSetCurrent(context));
    allow_calls_during_captures();
    for (unsigned long i = 0; i < streams_per_thread; i++)
        CHECK(cuStreamCreate(&soaker->streams[i], CU_STREAM_NON_BLOCKING));
    soaker->counter = new_counter();
    while (now_ms() < deadline)
        take_a_step(soaker);
    while (soaker->count)
        free_any_block(soaker);
    for (unsigned long i = 0; i < streams_per_thread; i++) {
        CHECK(cuStreamSynchronize(soaker->streams[i]));
        CHECK(cuStreamDestroy_v2(soaker->streams[i]));
    }
    unsigned long long words;
    CHECK(cuMemcpyDtoH_v2(&words, soaker->counter, sizeof words));
    soaker->wrong += words;
    CHECK(cuMemFree_v2(soaker->counter));
}

int main(int argc, char **argv)
{
    unsigned int threads = (unsigned int)argument(argc, argv, "threads", 16), random = 99;
    unsigned long seconds = argument(argc, argv, "seconds", 480);
    unsigned long percent = argument(argc, argv, "percent", 96);
    struct worker workers[MAX_THREADS];
    struct soaker sum = {.wrong = 0};
    size_t free_bytes, total_bytes;
    streams_per_thread = argument(argc, argv, "streams", 2);
    doublings = class_of(argument(argc, argv, "largest_mib", 1024) * MIB);
    unordered = asked_for(argc, argv, "unordered");
    if (threads < 1 || threads > MAX_THREADS || streams_per_thread < 1 ||
        streams_per_thread > MAX_STREAMS)
        FAIL("threads=%u must be 1 to %d, streams=%lu 1 to %d", threads, MAX_THREADS,
             streams_per_thread, MAX_STREAMS);

    context = open_primary();
    load_kernels(&kernels);
    for (unsigned int i = 0; i < USUAL_SIZES; i++)
        usual_sizes[i] = any_size(&random);
    CHECK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    target_bytes = free_bytes / 100 * percent;
    double start = now_ms();
    deadline = start + (double)seconds * 1e3;
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&workers[i], soak, i);
    for (unsigned int i = 0; i < threads; i++) {
        join_worker(&workers[i]);
        sum.wrong += soakers[i].wrong;
        sum.allocations += soakers[i].allocations;
        sum.graphs += soakers[i].graphs;
        sum.replays += soakers[i].replays;
    }
    printf("soak: %.2f ms, %u threads, %lu streams, %llu blocks, up to %zu %% of the free memory, "
           "%llu graphs replayed %llu times, %llu wrong words\n",
           now_ms() - start, threads, threads * streams_per_thread, sum.allocations,
           atomic_load(&peak_held) / (free_bytes / 100), sum.graphs, sum.replays, sum.wrong);
    return sum.wrong == 0 ? 0 : 1;
}
