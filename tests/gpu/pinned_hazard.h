/*
 * Part of pinned.c: is pinned memory that was freed under running work ever given out too early?
 * The data answers.
 *
 * In each round a thread allocates a block, the CPU writes a value of its own into all of it at
 * once, work that reads or writes the block is put on a stream, and the block is freed without
 * waiting for it, as a program may: cuMemFreeHost waits for the work of the block's context. A
 * block that is given out too early shows in one of three ways: a kernel or a copy finds what the
 * CPU has written for the next owner, the next owner's kernels find what the work has written late,
 * or the CPU does. One block in four is freed by the next thread that leaves one.
 *
 * With "contexts" a second context of the device takes part: blocks are portable, are freed while
 * either is current, and may be used by the other one's streams if an event orders the block's own
 * context behind them. With "beside" nothing orders that use: the driver's free does not wait for
 * it, so it asks for what a pool promises beyond that, and must not run without one.
 *
 * With "reuse-at-once" the program recycles blocks itself, without any wait: that must be seen to
 * fail, or this test sees nothing.
 *
 * Arguments: threads=1 rounds=2000 streams=4 us=200 [contexts] [beside] [reuse-at-once]
 */
#ifndef CUDAPOOL_TESTS_GPU_PINNED_HAZARD_H
#define CUDAPOOL_TESTS_GPU_PINNED_HAZARD_H

#include <stdatomic.h>

enum { HAZARD_STREAMS = 16, HAZARD_CONTEXTS = 2, LARGEST_WORDS = 5 << 17, SEEN = 4096 };

static const unsigned int block_words[] = {1024, 5000, 65536, 262144, LARGEST_WORDS};
enum { SIZES = sizeof block_words / sizeof block_words[0] };

/* How a block is had; the last is cuMemAllocHost. */
static const unsigned int block_flags[] = {0, CU_MEMHOSTALLOC_PORTABLE,
                                           CU_MEMHOSTALLOC_WRITECOMBINED, 0};
enum { WAYS = sizeof block_flags / sizeof block_flags[0] };

static struct {
    unsigned long streams, rounds, kernel_us;
    bool contexts, beside, reuse_at_once;
    CUcontext handles[HAZARD_CONTEXTS];
    struct kernels kernels[HAZARD_CONTEXTS];
    unsigned long long mismatches[MAX_WORKERS];
    /* Addresses that have been freed, and how many blocks were at one of them. */
    atomic_uintptr_t freed[SEEN];
    atomic_ulong seen_before;
    /* One free block of each kind for reuse-at-once. */
    _Atomic(void *) careless[SIZES][WAYS];
    /* A block that its thread has left for whichever thread comes next to free. */
    _Atomic(void *) left;
} hazard;

/* What a thread has in a context. */
struct hazard_place {
    CUcontext context;
    const struct kernels *kernels;
    CUevent event;
    CUstream streams[HAZARD_STREAMS];
    CUdeviceptr buffers[HAZARD_STREAMS]; /* each is used in the order of its stream */
    CUdeviceptr counter;
};

struct hazard_block {
    unsigned int *start, words, size, way;
    unsigned int value; /* no other block's */
    CUdeviceptr device;
};

static void fill_words(unsigned int *words, unsigned int count, unsigned int value)
{
    tell_host_writes(words, count * sizeof value);
    for (unsigned int i = 0; i < count; i++)
        words[i] = value;
}

static void note_address(void *start, bool freed)
{
    uintptr_t address = (uintptr_t)start;
    atomic_uintptr_t *place = &hazard.freed[address / 512 % SEEN];
    if (freed)
        atomic_store(place, address);
    else if (atomic_load(place) == address)
        atomic_fetch_add(&hazard.seen_before, 1);
}

static void take_pinned(struct hazard_block *block)
{
    size_t bytes = block->words * sizeof *block->start;
    unsigned int flags = block_flags[block->way];
    void *start = NULL;
    if (hazard.reuse_at_once)
        start = atomic_exchange(&hazard.careless[block->size][block->way], NULL);
    if (start != NULL)
        tell_allocated(CUDA_SUCCESS, (uintptr_t)start, bytes);
    else if (block->way == WAYS - 1 && !hazard.contexts)
        CHECK(cuMemAllocHost_v2(&start, bytes));
    else
        CHECK(cuMemHostAlloc(&start, bytes,
                             hazard.contexts ? flags | CU_MEMHOSTALLOC_PORTABLE : flags));
    note_address(start, false);
    block->start = start;
    CHECK(cuMemHostGetDevicePointer_v2(&block->device, start, 0));
}

static void give_pinned(const struct hazard_block *block)
{
    void *start = block->start;
    note_address(start, true);
    if (hazard.reuse_at_once) {
        tell_freed((uintptr_t)start);
        start = atomic_exchange(&hazard.careless[block->size][block->way], start);
        if (start != NULL)
            tell_allocated(CUDA_SUCCESS, (uintptr_t)start, block->words * sizeof *block->start);
    }
    if (start != NULL)
        CHECK(cuMemFreeHost(start));
}

/* Another thread may free what this one has used, with the work still running. */
static void leave_pinned(const struct hazard_block *block)
{
    void *start = atomic_exchange(&hazard.left, block->start);
    if (start == NULL)
        return;
    note_address(start, true);
    CHECK(cuMemFreeHost(start));
}

/* The block's value is looked for while nothing that was started for it writes there. */
static void watch_by_host(struct hazard_place *place, const struct hazard_block *block)
{
    unsigned long long wrong = 0, counter;
    double end = now_ms() + 2e-3 * (double)hazard.kernel_us;
    while (now_ms() < end)
        ;
    tell_host_reads(block->start, block->words * sizeof *block->start);
    for (unsigned int i = 0; i < block->words; i++)
        wrong += ((volatile unsigned int *)block->start)[i] != block->value;
    if (wrong == 0)
        return;
    counter = read_counter(place->counter) + wrong;
    CHECK(cuMemcpyHtoD_v2(place->counter, &counter, sizeof counter));
}

enum use { READ_BY_KERNEL, READ_BY_COPY, WRITTEN_BY_KERNEL, WRITTEN_BY_COPY, USES };

/* Puts work on the block on a stream of the place, whose context is current. What the work writes
 * is no block's value. */
static void use_pinned(struct hazard_place *place, unsigned int stream_index,
                       const struct hazard_block *block, enum use use)
{
    CUstream stream = place->streams[stream_index];
    CUdeviceptr buffer = place->buffers[stream_index];
    size_t bytes = block->words * sizeof *block->start;
    unsigned long long ns = hazard.kernel_us * 1000;
    if (use == READ_BY_COPY) {
        spin(place->kernels, stream, ns);
        CHECK(cuMemcpyHtoDAsync_v2(buffer, block->start, bytes, stream));
        verify(place->kernels, stream, buffer, block->words, block->value, place->counter);
        return;
    }
    spin_then_verify(place->kernels, stream, ns, block->device, block->words, block->value,
                     place->counter);
    if (use == WRITTEN_BY_KERNEL)
        fill(place->kernels, stream, block->device, block->words, ~block->value);
    if (use == WRITTEN_BY_COPY) {
        fill(place->kernels, stream, buffer, block->words, ~block->value);
        CHECK(cuMemcpyDtoHAsync_v2(block->start, buffer, bytes, stream));
    }
}

/* The other context uses the block of the place; unless that is to be beside it, what follows in
 * the place comes after. */
static void use_elsewhere(struct hazard_place *place, struct hazard_place *other,
                          const struct hazard_block *block, unsigned int random)
{
    unsigned int stream = random % (unsigned int)hazard.streams;
    CHECK(cuCtxSetCurrent(other->context));
    use_pinned(other, stream, block, random / 16 % USES);
    CHECK(cuEventRecord(other->event, other->streams[stream]));
    CHECK(cuCtxSetCurrent(place->context));
    if (!hazard.beside)
        CHECK(cuStreamWaitEvent(place->streams[stream], other->event, 0));
}

static void hazard_round(struct hazard_place *places, unsigned int value, unsigned int *random)
{
    unsigned int here = hazard.contexts ? next_random(random) % HAZARD_CONTEXTS : 0;
    unsigned int kind = next_random(random) % (USES + 2);
    unsigned int stream = next_random(random) % (unsigned int)hazard.streams;
    struct hazard_place *place = &places[here], *other = &places[!here];
    struct hazard_block block = {
        .size = next_random(random) % SIZES, .way = next_random(random) % WAYS, .value = value};
    block.words = block_words[block.size];
    /* A CPU reads write-combined memory at a hundredth of the speed. */
    if (kind == USES && block_flags[block.way] & CU_MEMHOSTALLOC_WRITECOMBINED)
        block.way = 0;
    CHECK(cuCtxSetCurrent(place->context));
    take_pinned(&block);
    fill_words(block.start, block.words, block.value);
    if (kind == USES)
        watch_by_host(place, &block);
    else if (kind > USES && hazard.contexts)
        use_elsewhere(place, other, &block, next_random(random));
    else
        use_pinned(place, stream, &block, kind % USES);
    if (hazard.contexts && next_random(random) % 2 == 0)
        CHECK(cuCtxSetCurrent(other->context));
    if (!hazard.reuse_at_once && next_random(random) % 4 == 0)
        leave_pinned(&block);
    else
        give_pinned(&block);
}

static void open_hazard_place(struct hazard_place *place, unsigned int index)
{
    place->context = hazard.handles[index];
    place->kernels = &hazard.kernels[index];
    CHECK(cuCtxSetCurrent(place->context));
    CHECK(cuEventCreate(&place->event, CU_EVENT_DISABLE_TIMING));
    for (unsigned long i = 0; i < hazard.streams; i++) {
        CHECK(cuStreamCreate(&place->streams[i], CU_STREAM_NON_BLOCKING));
        CHECK(cuMemAlloc_v2(&place->buffers[i], LARGEST_WORDS * sizeof(unsigned int)));
    }
    place->counter = new_counter();
}

static unsigned long long close_hazard_place(struct hazard_place *place)
{
    CHECK(cuCtxSetCurrent(place->context));
    unsigned long long wrong = read_counter(place->counter);
    for (unsigned long i = 0; i < hazard.streams; i++) {
        CHECK(cuMemFree_v2(place->buffers[i]));
        CHECK(cuStreamDestroy_v2(place->streams[i]));
    }
    CHECK(cuMemFree_v2(place->counter));
    CHECK(cuEventDestroy_v2(place->event));
    return wrong;
}

static void hazard_work(unsigned int index)
{
    struct hazard_place places[HAZARD_CONTEXTS] = {0};
    unsigned int count = hazard.contexts ? HAZARD_CONTEXTS : 1, random = index * 7919u + 1;
    for (unsigned int i = 0; i < count; i++)
        open_hazard_place(&places[i], i);
    meet();
    for (unsigned int round = 0; round < hazard.rounds; round++)
        hazard_round(places, (index << 20 | round) + 1, &random);
    meet();
    for (unsigned int i = 0; i < count; i++)
        hazard.mismatches[index] += close_hazard_place(&places[i]);
}

static void open_second_context(void)
{
    CUdevice device;
    CHECK(cuCtxGetDevice(&device));
    CHECK(cuCtxCreate_v2(&hazard.handles[1], 0, device));
    load_kernels(&hazard.kernels[1]);
}

/* The mode's: how many words were wrong. */
static unsigned long long hazard_threads(int argc, char **argv)
{
    unsigned int threads = (unsigned int)argument(argc, argv, "threads", 1);
    unsigned long long wrong = 0;
    hazard.streams = argument(argc, argv, "streams", 4);
    hazard.rounds = argument(argc, argv, "rounds", 2000);
    hazard.kernel_us = argument(argc, argv, "us", 200);
    hazard.beside = asked_for(argc, argv, "beside");
    hazard.contexts = hazard.beside || asked_for(argc, argv, "contexts");
    hazard.reuse_at_once = asked_for(argc, argv, "reuse-at-once");
    if (hazard.streams < 1 || hazard.streams > HAZARD_STREAMS || hazard.rounds >= 1 << 20)
        FAIL("streams=%lu must be 1 to %d, rounds=%lu less than %d", hazard.streams, HAZARD_STREAMS,
             hazard.rounds, 1 << 20);
    hazard.handles[0] = context;
    hazard.kernels[0] = kernels;
    if (hazard.contexts)
        open_second_context();
    double ms = time_workers(threads, hazard_work);
    CHECK(cuMemFreeHost(atomic_load(&hazard.left)));
    for (unsigned int i = 0; i < threads; i++)
        wrong += hazard.mismatches[i];
    printf("row hazard, a round: %.4f ms\n", ms / (double)hazard.rounds);
    printf("hazard: %u threads, %lu rounds each, %lu blocks where one was freed before\n", threads,
           hazard.rounds, atomic_load(&hazard.seen_before));
    return wrong;
}

#endif
