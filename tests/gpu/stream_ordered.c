/*
 * Stream-ordered memory: what a pair of cuMemAllocAsync and cuMemFreeAsync costs, whether blocks
 * are used again in each of the ways that the CUDA documentation names, and whether any of that
 * ever touches data too early.
 *
 * Arguments: pairs=200000 threads=16 rounds=500 stress=200 [threshold-max] [cases-must-hit]
 *   pairs            of one allocation and one free, by one thread, and by each of the threads
 *   rounds           of allocate, free, synchronise the stream, for 1 MiB and for large=1024 MiB
 *   stress           rounds of each thread that check data
 *   threshold-max    the release threshold of the device's pool is set to its maximum first
 *   cases-must-hit   a way that is never taken is a failure, but for the one behind the program's
 *                    events, where the pool takes nothing
 *   case=1           only the first of the ways, so that a report speaks of it alone; up to 4
 *   facts            only what the driver answers where its documentation leaves it open
 */
#include "gpu.h"

#include <stdatomic.h>

enum { MAX_THREADS = MAX_WORKERS, WORDS = 4096, CASE_ROUNDS = 20, FIRST_VALUE = 1000, SLOTS = 8 };

/* More than a chunk of the driver's, which takes memory for its pools in chunks of 32 MiB. */
#define LARGE_BLOCK (48 * MIB)

static CUcontext context;
static struct kernels kernels;
static unsigned int threads;
static unsigned long pairs, stress;
static CUdeviceptr mismatches;

static CUstream new_stream(void)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUdeviceptr take(CUstream stream, size_t bytes)
{
    CUdeviceptr block;
    CHECK(cuMemAllocAsync(&block, bytes, stream));
    return block;
}

/* ---- what a pair costs ---- */

static const size_t sizes[] = {1 << 10, 5000,    64 << 10, 300000,
                               1 << 20, 3 << 20, 9000000,  24 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void make_pairs(CUstream stream, unsigned long count, size_t bytes)
{
    for (unsigned long i = 0; i < count; i++)
        CHECK(cuMemFreeAsync(take(stream, bytes ? bytes : sizes[i % SIZES]), stream));
}

/* Nanoseconds of a pair of so many bytes, or of all sizes in turn, in one thread. */
static double time_one_thread(CUstream stream, size_t bytes)
{
    make_pairs(stream, 100, bytes);
    CHECK(cuStreamSynchronize(stream));
    double start = now_ms();
    make_pairs(stream, pairs, bytes);
    double ns = (now_ms() - start) * 1e6 / (double)pairs;
    CHECK(cuStreamSynchronize(stream));
    return ns;
}

static void print_one_thread(void)
{
    CUstream stream = new_stream();
    printf("one thread, 1 MiB: %.1f ns a pair\n", time_one_thread(stream, MIB));
    printf("one thread, sizes in turn: %.1f ns a pair\n", time_one_thread(stream, 0));
    printf("one thread, legacy stream, 1 MiB: %.1f ns a pair\n", time_one_thread(NULL, MIB));
    CHECK(cuStreamDestroy_v2(stream));
}

static void pair_in_thread(unsigned int index)
{
    (void)index;
    CHECK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    make_pairs(stream, 100, 0);
    CHECK(cuStreamSynchronize(stream));
    meet();
    make_pairs(stream, pairs, 0);
    meet();
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamDestroy_v2(stream));
}

/* Microseconds that an allocation and a free add to a synchronise of the stream. */
static double time_synchronised(size_t bytes, unsigned long rounds)
{
    CUstream stream = new_stream();
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemFreeAsync(take(stream, bytes), stream));
        CHECK(cuStreamSynchronize(stream));
    }
    double start = now_ms();
    for (unsigned long i = 0; i < rounds; i++)
        CHECK(cuStreamSynchronize(stream));
    double bare = now_ms() - start;
    start = now_ms();
    for (unsigned long i = 0; i < rounds; i++) {
        CHECK(cuMemFreeAsync(take(stream, bytes), stream));
        CHECK(cuStreamSynchronize(stream));
    }
    double all = now_ms() - start;
    CHECK(cuStreamDestroy_v2(stream));
    return (all - bare) * 1e3 / (double)rounds;
}

/* ---- the documented ways ---- */

struct pair_of_streams {
    CUstream first, second;
    CUevent event;
};

/* Nothing that an earlier case left is to serve the next one. */
static void give_everything_back(void)
{
    CUmemoryPool memory_pool;
    CHECK(cuCtxSynchronize());
    CHECK(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    CHECK(cuMemPoolTrimTo(memory_pool, 0));
}

/* A size of its own for each round: no stream has one left from an earlier round. */
static size_t size_of_round(unsigned int value)
{
    return (1 + value % 1000 / 2) * MIB;
}

static size_t size_of_case; /* 0: one of its own for each round */

static size_t size_now(unsigned int value)
{
    return size_of_case ? size_of_case : size_of_round(value);
}

/* Writes a block on the one stream, reads it late, and frees it there. */
static CUdeviceptr use_and_free(CUstream stream, unsigned int value)
{
    CUdeviceptr block = take(stream, size_now(value));
    fill(&kernels, stream, block, WORDS, value);
    spin_then_verify(&kernels, stream, 300000, block, WORDS, value, mismatches);
    CHECK(cuMemFreeAsync(block, stream));
    return block;
}

/* Whether a block that is taken on the stream, and written at once, is that one. */
static bool comes_back(CUstream stream, CUdeviceptr block, unsigned int value)
{
    CUdeviceptr taken = 0;
    /* A driver that does not know this way has no memory then. */
    CUresult result = cuMemAllocAsync(&taken, size_now(value), stream);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && size_of_case)
        return false;
    CHECK(result);
    fill(&kernels, stream, taken, WORDS, value);
    verify(&kernels, stream, taken, WORDS, value, mismatches);
    CHECK(cuMemFreeAsync(taken, stream));
    return taken == block;
}

static bool same_stream(const struct pair_of_streams *streams, unsigned int value)
{
    CUdeviceptr block = use_and_free(streams->first, value);
    return comes_back(streams->first, block, value + 1);
}

static bool event_dependency(const struct pair_of_streams *streams, unsigned int value)
{
    CUdeviceptr block = use_and_free(streams->first, value);
    CHECK(cuEventRecord(streams->event, streams->first));
    CHECK(cuStreamWaitEvent(streams->second, streams->event, 0));
    return comes_back(streams->second, block, value + 1);
}

static bool opportunistic(const struct pair_of_streams *streams, unsigned int value)
{
    CUdeviceptr block = use_and_free(streams->first, value);
    usleep(20000);
    return comes_back(streams->second, block, value + 1);
}

/* A stream is made to wait for another one only where there is no other memory: the device is
 * filled but for one and a half of these blocks. */
static bool internal_dependency(const struct pair_of_streams *streams, unsigned int value)
{
    static CUdeviceptr filling;
    size_t free_bytes, total;
    size_of_case = LARGE_BLOCK;
    give_everything_back();
    if (filling == 0) {
        CHECK(cuMemGetInfo_v2(&free_bytes, &total));
        CHECK(cuMemAlloc_v2(&filling, free_bytes - LARGE_BLOCK - LARGE_BLOCK / 2));
    }
    CUdeviceptr block = use_and_free(streams->first, value);
    bool back = comes_back(streams->second, block, value + 1);
    if (value == FIRST_VALUE + 2 * (CASE_ROUNDS - 1)) {
        CHECK(cuMemFree_v2(filling));
        filling = 0;
        size_of_case = 0;
    }
    return back;
}

typedef bool reuse_case(const struct pair_of_streams *streams, unsigned int value);

/* Rounds of the case in which the block came back. */
static unsigned int count_hits(reuse_case *body)
{
    struct pair_of_streams streams = {new_stream(), new_stream(), NULL};
    unsigned int hits = 0;
    give_everything_back();
    CHECK(cuEventCreate(&streams.event, CU_EVENT_DISABLE_TIMING));
    for (unsigned int i = 0; i < CASE_ROUNDS; i++) {
        hits += body(&streams, FIRST_VALUE + 2 * i);
        CHECK(cuCtxSynchronize());
    }
    CHECK(cuEventDestroy_v2(streams.event));
    CHECK(cuStreamDestroy_v2(streams.first));
    CHECK(cuStreamDestroy_v2(streams.second));
    return hits;
}

/* ---- data under stress: every thread has streams, and blocks go from one to another ---- */

enum { OWN, ANOTHER_OWN, BLOCKING, PER_THREAD, LEGACY, STRESSED };

struct slot {
    CUdeviceptr block;
    unsigned int words, value;
    int stream; /* that used it last */
};

struct stressed {
    CUstream streams[STRESSED];
    CUevent event;
    unsigned int random;
};

static void fill_slot(struct stressed *stressed, struct slot *slot, int stream)
{
    size_t bytes = 512u << next_random(&stressed->random) % 14;
    slot->block = take(stressed->streams[stream], bytes - next_random(&stressed->random) % 100);
    slot->words = (unsigned int)(bytes / 4 - 100 / 4);
    if (slot->words > WORDS)
        slot->words = WORDS;
    slot->value = next_random(&stressed->random);
    slot->stream = stream;
    fill(&kernels, stressed->streams[stream], slot->block, slot->words, slot->value);
}

/* The legacy stream orders blocking streams, and a thread's own. */
static bool are_ordered(int a, int b)
{
    return a == b || (a == LEGACY && (b == BLOCKING || b == PER_THREAD)) ||
           (b == LEGACY && (a == BLOCKING || a == PER_THREAD));
}

/* The slot goes on in that stream, which is put behind the last one where it is not anyway. */
static CUstream pass_on(struct stressed *stressed, struct slot *slot, int stream)
{
    if (!are_ordered(slot->stream, stream) ||
        (slot->stream != stream && next_random(&stressed->random) % 4 == 0)) {
        CHECK(cuEventRecord(stressed->event, stressed->streams[slot->stream]));
        CHECK(cuStreamWaitEvent(stressed->streams[stream], stressed->event, 0));
    }
    slot->stream = stream;
    return stressed->streams[stream];
}

/* Checks it on one stream, and frees it on the same or another. */
static void empty_slot(struct stressed *stressed, struct slot *slot, int stream, int last)
{
    CUstream checked_on = pass_on(stressed, slot, stream);
    spin_then_verify(&kernels, checked_on, next_random(&stressed->random) % 40000, slot->block,
                     slot->words, slot->value, mismatches);
    CHECK(cuMemFreeAsync(slot->block, pass_on(stressed, slot, last)));
    slot->block = 0;
}

static int some_stream(struct stressed *stressed)
{
    return (int)(next_random(&stressed->random) % STRESSED);
}

static void open_stressed(struct stressed *stressed, unsigned int seed)
{
    *stressed = (struct stressed){.random = seed};
    CHECK(cuCtxSetCurrent(context));
    stressed->streams[OWN] = new_stream();
    stressed->streams[ANOTHER_OWN] = new_stream();
    CHECK(cuStreamCreate(&stressed->streams[BLOCKING], CU_STREAM_DEFAULT));
    stressed->streams[PER_THREAD] = CU_STREAM_PER_THREAD;
    stressed->streams[LEGACY] = CU_STREAM_LEGACY;
    CHECK(cuEventCreate(&stressed->event, CU_EVENT_DISABLE_TIMING));
}

static void stress_in_thread(unsigned int index)
{
    struct stressed stressed;
    struct slot slots[SLOTS] = {{0, 0, 0, OWN}};
    open_stressed(&stressed, index + 1);
    meet();
    for (unsigned long i = 0; i < stress * SLOTS; i++) {
        struct slot *slot = &slots[next_random(&stressed.random) % SLOTS];
        int stream = some_stream(&stressed);
        if (slot->block == 0)
            fill_slot(&stressed, slot, stream);
        else
            empty_slot(&stressed, slot, stream,
                       next_random(&stressed.random) % 2 ? stream : some_stream(&stressed));
        if (next_random(&stressed.random) % 64 == 0)
            CHECK(cuStreamSynchronize(stressed.streams[stream]));
        if (next_random(&stressed.random) % 16 == 0)
            cuStreamQuery(stressed.streams[stream]);
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].block != 0)
            empty_slot(&stressed, &slots[i], slots[i].stream, slots[i].stream);
    CHECK(cuCtxSynchronize());
    meet();
    CHECK(cuEventDestroy_v2(stressed.event));
    for (int i = OWN; i <= BLOCKING; i++)
        CHECK(cuStreamDestroy_v2(stressed.streams[i]));
}

/* ---- what the documentation leaves open ---- */

static void nothing_between(void)
{
}

static void record_between(void)
{
    CUevent event;
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventRecord(event, NULL));
    CHECK(cuEventDestroy_v2(event));
}

static CUdeviceptr between;

static void allocation_between(void)
{
    between = take(NULL, MIB);
}

static void free_between(void)
{
    CHECK(cuMemFreeAsync(between, NULL));
}

/* Whether work on a blocking stream comes after that of another one which was submitted before,
 * with only that call on the legacy stream in between. */
static void print_order(const char *name, void (*call)(void))
{
    enum { VALUE = 77 };
    CUstream first, second;
    CUdeviceptr wrong = new_counter(), block;
    CHECK(cuStreamCreate(&first, CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate(&second, CU_STREAM_DEFAULT));
    CHECK(cuMemAlloc_v2(&block, WORDS * 4));
    fill(&kernels, first, block, WORDS, VALUE);
    CHECK(cuCtxSynchronize());
    spin_then_verify(&kernels, first, 20000000, block, WORDS, VALUE, wrong);
    call();
    fill(&kernels, second, block, WORDS, VALUE + 1);
    CHECK(cuCtxSynchronize());
    printf("fact: on the legacy stream, %s: blocking streams are %s\n", name,
           read_counter(wrong) ? "not ordered" : "ordered");
    CHECK(cuMemFree_v2(block));
    CHECK(cuStreamDestroy_v2(first));
    CHECK(cuStreamDestroy_v2(second));
}

/* What calls on a stream answer in a thread that has no context. */
static void print_answers_without_context(void)
{
    CUstream stream = new_stream();
    CUdeviceptr block = take(stream, MIB), other = 0;
    unsigned long long id = 0;
    CHECK(cuCtxSetCurrent(NULL));
    CUresult number = cuStreamGetId(stream, &id);
    CUresult allocated = cuMemAllocAsync(&other, MIB, stream);
    CUresult freed = cuMemFreeAsync(block, stream);
    CHECK(cuCtxSetCurrent(context));
    printf("fact: without a context: cuStreamGetId %u, cuMemAllocAsync %u, cuMemFreeAsync %u\n",
           number, allocated, freed);
    if (allocated == CUDA_SUCCESS)
        CHECK(cuMemFreeAsync(other, stream));
    if (freed != CUDA_SUCCESS)
        CHECK(cuMemFreeAsync(block, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamDestroy_v2(stream));
}

/* Whether work of the legacy stream comes after an event that an idle blocking stream, which has no
 * work besides, was made to wait for. */
static void print_order_behind_a_wait(void)
{
    CUstream busy = new_stream(), blocking;
    CUevent end_of_busy, on_legacy;
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK(cuEventCreate(&end_of_busy, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&on_legacy, CU_EVENT_DISABLE_TIMING));
    CHECK(cuCtxSynchronize());
    spin(&kernels, busy, 20000000);
    CHECK(cuEventRecord(end_of_busy, busy));
    CHECK(cuStreamWaitEvent(blocking, end_of_busy, 0));
    CHECK(cuEventRecord(on_legacy, NULL));
    double start = now_ms();
    CHECK(cuEventSynchronize(on_legacy));
    bool behind = now_ms() - start > 10;
    printf("fact: the legacy stream is %s an event that only an idle blocking stream waits for\n",
           behind ? "behind" : "not behind");
    CHECK(cuCtxSynchronize());
    CHECK(cuEventDestroy_v2(end_of_busy));
    CHECK(cuEventDestroy_v2(on_legacy));
    CHECK(cuStreamDestroy_v2(blocking));
    CHECK(cuStreamDestroy_v2(busy));
}

/* ---- what a query and a wait tell of an operation behind others' work ---- */

enum operation {
    NO_OPERATION,
    RECORD,
    RECORD_TWICE,
    RECORD_AND_WAIT,
    ALLOCATE_AND_FREE,
    SET_MEMORY,
    CALL_HOST,
    OPERATIONS
};

static const char *const operation_names[OPERATIONS] = {
    "nothing", "a record", "two records",    "a record and a wait for it",
    "a pair",  "a memset", "a host function"};

static void do_nothing(void *argument)
{
    (void)argument;
}

static void put(CUstream stream, enum operation operation, CUevent event, CUdeviceptr word)
{
    if (operation == RECORD || operation == RECORD_TWICE || operation == RECORD_AND_WAIT)
        CHECK(cuEventRecord(event, stream));
    if (operation == RECORD_TWICE)
        CHECK(cuEventRecord(event, stream));
    if (operation == RECORD_AND_WAIT)
        CHECK(cuStreamWaitEvent(stream, event, 0));
    if (operation == ALLOCATE_AND_FREE)
        CHECK(cuMemFreeAsync(take(stream, MIB), stream));
    if (operation == SET_MEMORY)
        CHECK(cuMemsetD32Async(word, 1, 1, stream));
    if (operation == CALL_HOST)
        CHECK(cuLaunchHostFunc(stream, do_nothing, NULL));
}

/* A kernel of 20 ms on the one stream; an operation on another that comes after it. */
static void print_what_is_told(const char *name, CUstream busy, CUstream stream, bool barrier)
{
    CUevent event, fence;
    CUdeviceptr word;
    CHECK(cuMemAlloc_v2(&word, 512));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&fence, CU_EVENT_DISABLE_TIMING));
    for (enum operation operation = NO_OPERATION; operation < OPERATIONS; operation++) {
        put(stream, operation, event, word);
        CHECK(cuCtxSynchronize());
        spin(&kernels, busy, 20000000);
        if (barrier) {
            CHECK(cuCtxRecordEvent(context, fence));
            CHECK(cuCtxWaitEvent(context, fence));
        }
        put(stream, operation, event, word);
        CUresult of_stream = cuStreamQuery(stream);
        CUresult of_event = cuEventQuery(event);
        double start = now_ms();
        CHECK(cuStreamSynchronize(stream));
        printf("fact: %s, %s: query %u, of the event %u, synchronise waits %s\n", name,
               operation_names[operation], of_stream, of_event,
               now_ms() - start > 5 ? "yes" : "no");
        CHECK(cuCtxSynchronize());
    }
    CHECK(cuEventDestroy_v2(fence));
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuMemFree_v2(word));
}

static void print_what_is_told_of_all(void)
{
    CUstream blocking, other = new_stream(), another = new_stream();
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    print_what_is_told("blocking behind legacy", NULL, blocking, false);
    print_what_is_told("per-thread behind legacy", NULL, CU_STREAM_PER_THREAD, false);
    print_what_is_told("legacy behind blocking", blocking, NULL, false);
    print_what_is_told("behind a barrier", other, another, true);
    CHECK(cuStreamDestroy_v2(blocking));
    CHECK(cuStreamDestroy_v2(other));
    CHECK(cuStreamDestroy_v2(another));
}

/* ---- frees on streams that others order ---- */

/* A block that a kernel on the busy stream reads is freed on another stream that comes after that
 * one without an operation of its own, and a block of its size is taken on a third one, which
 * nobody orders, and written at once when the driver says that the second one has come to its end.
 * The wrong words; and how often it was that block. */
static unsigned long long reuse_behind(CUstream busy, CUstream stream, bool barrier,
                                       CUresult (*told)(CUstream), unsigned int *came_back)
{
    enum { VALUE = 78, ROUNDS = 3 };
    static size_t bytes = 3 * MIB; /* nobody has any of such a size yet */
    CUstream other = new_stream();
    CUevent fence;
    CUdeviceptr wrong = new_counter();
    CHECK(cuEventCreate(&fence, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < ROUNDS; i++, bytes += MIB) {
        CUdeviceptr block = take(stream, bytes);
        CHECK(cuStreamSynchronize(stream));
        fill(&kernels, busy, block, WORDS, VALUE);
        CHECK(cuCtxSynchronize());
        spin_then_verify(&kernels, busy, 20000000, block, WORDS, VALUE, wrong);
        if (barrier) {
            CHECK(cuCtxRecordEvent(context, fence));
            CHECK(cuCtxWaitEvent(context, fence));
        }
        CHECK(cuMemFreeAsync(block, stream));
        if (told(stream) == CUDA_SUCCESS) {
            CUdeviceptr taken = take(other, bytes);
            fill(&kernels, other, taken, WORDS, VALUE + 1);
            *came_back += taken == block;
            CHECK(cuMemFreeAsync(taken, other));
        }
        CHECK(cuCtxSynchronize());
    }
    unsigned long long count = read_counter(wrong);
    CHECK(cuEventDestroy_v2(fence));
    CHECK(cuStreamDestroy_v2(other));
    return count;
}

static unsigned long long reuse_on_ordered_streams(void)
{
    CUstream blocking, other = new_stream(), another = new_stream();
    unsigned long long wrong = 0;
    unsigned int came_back = 0;
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (int i = 0; i < 2; i++) {
        CUresult (*told)(CUstream) = i ? cuStreamQuery : cuStreamSynchronize;
        wrong += reuse_behind(NULL, blocking, false, told, &came_back);
        wrong += reuse_behind(NULL, CU_STREAM_PER_THREAD, false, told, &came_back);
        wrong += reuse_behind(blocking, NULL, false, told, &came_back);
        wrong += reuse_behind(other, another, true, told, &came_back);
    }
    CHECK(cuStreamDestroy_v2(blocking));
    CHECK(cuStreamDestroy_v2(other));
    CHECK(cuStreamDestroy_v2(another));
    printf("on streams that others order: %u of 24 came back, %llu wrong words\n", came_back,
           wrong);
    return wrong;
}

static int print_facts(void)
{
    double start = now_ms();
    between = take(NULL, MIB);
    CHECK(cuCtxSynchronize());
    print_order("nothing", nothing_between);
    print_order("a record", record_between);
    print_order("a free", free_between);
    print_order("an allocation", allocation_between);
    print_order("a free", free_between);
    print_answers_without_context();
    print_order_behind_a_wait();
    print_what_is_told_of_all();
    printf("stream_ordered: %.0f ms, facts\n", now_ms() - start);
    return 0;
}

static void set_threshold_to_maximum(void)
{
    CUmemoryPool memory_pool;
    cuuint64_t most = UINT64_MAX;
    CHECK(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    CHECK(cuMemPoolSetAttribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most));
}

int main(int argc, char **argv)
{
    enum { CASES = 4 };
    static const struct {
        const char *name;
        reuse_case *body;
    } cases[CASES] = {{"same stream", same_stream},
                      {"event dependency", event_dependency},
                      {"opportunistic", opportunistic},
                      {"internal dependency", internal_dependency}};
    unsigned long rounds = argument(argc, argv, "rounds", 500);
    unsigned long only = argument(argc, argv, "case", 0);
    size_t large = argument(argc, argv, "large", 1024) * MIB;
    bool missed = false;
    threads = (unsigned int)argument(argc, argv, "threads", 16);
    pairs = argument(argc, argv, "pairs", 200000);
    stress = argument(argc, argv, "stress", 200);
    if (threads < 1 || threads > MAX_THREADS)
        FAIL("threads=%u: must be 1 to %d", threads, MAX_THREADS);
    if (only > CASES)
        FAIL("case=%lu: must be 1 to %d, or 0 for all", only, CASES);

    double start = now_ms();
    context = open_primary();
    load_kernels(&kernels);
    mismatches = new_counter();
    if (asked_for(argc, argv, "threshold-max"))
        set_threshold_to_maximum();
    if (asked_for(argc, argv, "facts"))
        return print_facts();
    for (size_t i = 0; i < CASES; i++) {
        if (only != 0 && i + 1 != only)
            continue;
        unsigned int hits = count_hits(cases[i].body);
        printf("%s: %u of %d came back\n", cases[i].name, hits, CASE_ROUNDS);
        missed = missed || (hits == 0 && cases[i].body != event_dependency);
    }
    if (only != 0) {
        printf("stream_ordered: %.0f ms, case %lu\n", now_ms() - start, only);
        return missed && asked_for(argc, argv, "cases-must-hit");
    }
    print_one_thread();
    double ms = time_workers(threads, pair_in_thread);
    printf("%u threads: %.1f ns a pair in each, %.2f million pairs a second in all\n", threads,
           ms * 1e6 / (double)pairs, (double)pairs * threads / ms * 1e-3);
    printf("synchronised each time, 1 MiB: %.2f us more than a bare synchronise\n",
           time_synchronised(MIB, rounds));
    if (large != 0)
        printf("synchronised each time, %zu MiB: %.2f us more than a bare synchronise\n",
               large / MIB, time_synchronised(large, rounds));
    time_workers(threads, stress_in_thread);
    /* Last: after a barrier of the program's no stream of the context is what it was. */
    unsigned long long wrong = read_counter(mismatches) + reuse_on_ordered_streams();
    printf("stream_ordered: %.0f ms, %llu wrong words\n", now_ms() - start, wrong);
    if (wrong != 0)
        FAIL("%llu words are not what was written", wrong);
    if (missed && asked_for(argc, argv, "cases-must-hit"))
        FAIL("a way of using memory again was never taken");
    return 0;
}
