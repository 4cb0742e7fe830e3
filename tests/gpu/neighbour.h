/*
 * What a process that another one steers (processes.h) does with a device: it takes memory, frees
 * it and waits, as a program would. For tests/gpu/neighbours.c.
 */
#ifndef CUDAPOOL_TESTS_GPU_NEIGHBOUR_H
#define CUDAPOOL_TESTS_GPU_NEIGHBOUR_H

#include "processes.h"

enum {
    ORDER_OPEN, /* the device; bytes: all of its memory */
    ORDER_TAKE, /* count blocks of so many bytes, until one is refused; count: of those taken */
    ORDER_TAKE_ASYNC,         /* the same, of stream-ordered memory */
    ORDER_FREE,               /* all that is held */
    ORDER_FREE_BEHIND_KERNEL, /* of so many ms, which is not waited for */
    ORDER_WAIT_FOR_KERNEL,    /* of so many ms */
    ORDER_HIT,                /* pairs of one size until the next order; count: of pairs */
    ORDER_STOP,               /* nothing: the next order after ORDER_HIT and its like */
    ORDER_PAIRS,              /* count pairs of sizes to 24 MiB */
    ORDER_INFO,               /* bytes: free by cuMemGetInfo */
    ORDER_LIVE,               /* group.h */
};

enum { MOST_BLOCKS = 4096 };

static struct {
    struct {
        CUdeviceptr address;
        bool async;
    } blocks[MOST_BLOCKS];
    unsigned int count;
    struct kernels kernels;
    CUstream stream;
} own;

/* CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY. */
static inline CUresult take_block(size_t bytes, bool async)
{
    CUdeviceptr address;
    if (own.count == MOST_BLOCKS)
        FAIL("more than %d blocks", MOST_BLOCKS);
    CUresult result =
        async ? cuMemAllocAsync(&address, bytes, own.stream) : cuMemAlloc_v2(&address, bytes);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        FAIL("an allocation of %zu bytes: CUDA error %u", bytes, result);
    if (result == CUDA_SUCCESS) {
        own.blocks[own.count].address = address;
        own.blocks[own.count++].async = async;
    }
    return result;
}

static inline void free_block(unsigned int which)
{
    CUdeviceptr address = own.blocks[which].address;
    if (own.blocks[which].async)
        CHECK(cuMemFreeAsync(address, own.stream));
    else
        CHECK(cuMemFree_v2(address));
    own.blocks[which] = own.blocks[--own.count];
}

static inline void free_all(void)
{
    bool async = own.count > 0 && own.blocks[0].async;
    while (own.count > 0)
        free_block(own.count - 1);
    if (async)
        CHECK(cuStreamSynchronize(own.stream));
}

static inline struct answer open_own(void)
{
    size_t left, total;
    open_primary();
    load_kernels(&own.kernels);
    CHECK(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
    spin(&own.kernels, own.stream, 1000);
    CHECK(cuStreamSynchronize(own.stream));
    CHECK(cuMemGetInfo_v2(&left, &total));
    return (struct answer){.bytes = total};
}

static inline struct answer take_blocks(const struct order *order)
{
    struct answer answer = {0};
    double start = now_ms(), before = start;
    CUresult result = CUDA_SUCCESS;
    while (answer.count < order->count && result == CUDA_SUCCESS) {
        result = take_block(order->bytes, order->what == ORDER_TAKE_ASYNC);
        double now = now_ms();
        answer.longest_ms = now - before > answer.longest_ms ? now - before : answer.longest_ms;
        answer.count += result == CUDA_SUCCESS;
        before = now;
    }
    answer.ms = before - start;
    return answer;
}

/* Until the next order is there. */
static inline struct answer hit(size_t bytes)
{
    enum { PAIRS_BETWEEN = 256 };
    struct answer answer = {0};
    double start = now_ms(), before = start;
    while (!order_is_there(0)) {
        for (int i = 0; i < PAIRS_BETWEEN; i++) {
            CUdeviceptr block;
            CHECK(cuMemAlloc_v2(&block, bytes));
            CHECK(cuMemFree_v2(block));
        }
        double now = now_ms();
        answer.longest_ms = now - before > answer.longest_ms ? now - before : answer.longest_ms;
        answer.count += PAIRS_BETWEEN;
        before = now;
    }
    answer.ms = before - start;
    return answer;
}

/* A program's blocks come and go; the first tenth of them warms up. */
static inline struct answer run_pairs(unsigned int count)
{
    enum { SLOTS = 64, SIZES = 128 };
    CUdeviceptr slots[SLOTS] = {0};
    size_t sizes[SIZES];
    unsigned int random = 1, warm = count / 10;
    double start = 0;
    for (int i = 0; i < SIZES; i++)
        sizes[i] = 1024 + ((size_t)next_random(&random) % (24 * MIB - 1024) >> i % 12);
    for (unsigned int i = 0; i < count + warm; i++) {
        unsigned int slot = next_random(&random) % SLOTS;
        if (i == warm)
            start = now_ms();
        if (slots[slot] != 0)
            CHECK(cuMemFree_v2(slots[slot]));
        CHECK(cuMemAlloc_v2(&slots[slot], sizes[next_random(&random) % SIZES]));
    }
    struct answer answer = {.count = count, .ms = now_ms() - start};
    for (int i = 0; i < SLOTS; i++)
        if (slots[i] != 0)
            CHECK(cuMemFree_v2(slots[i]));
    return answer;
}

static inline struct answer free_own(const struct order *order)
{
    double start = now_ms();
    if (order->what == ORDER_FREE_BEHIND_KERNEL)
        spin(&own.kernels, own.stream, order->ms * 1000000);
    if (order->what == ORDER_FREE_BEHIND_KERNEL)
        while (own.count > 0)
            free_block(own.count - 1);
    else
        free_all();
    return (struct answer){.ms = now_ms() - start};
}

static inline struct answer wait_for_kernel(uint64_t ms)
{
    double start = now_ms();
    spin(&own.kernels, own.stream, ms * 1000000);
    CHECK(cuStreamSynchronize(own.stream));
    return (struct answer){.ms = now_ms() - start};
}

static inline struct answer ask_for_free(void)
{
    size_t left, total;
    CHECK(cuMemGetInfo_v2(&left, &total));
    return (struct answer){.bytes = left, .count = total};
}

static struct answer live_at_random(unsigned int member);

static inline struct answer follow(const struct order *order)
{
    switch (order->what) {
    case ORDER_OPEN:
        return open_own();
    case ORDER_TAKE:
    case ORDER_TAKE_ASYNC:
        return take_blocks(order);
    case ORDER_FREE:
    case ORDER_FREE_BEHIND_KERNEL:
        return free_own(order);
    case ORDER_WAIT_FOR_KERNEL:
        return wait_for_kernel(order->ms);
    case ORDER_HIT:
        return hit(order->bytes);
    case ORDER_PAIRS:
        return run_pairs(order->count);
    case ORDER_INFO:
        return ask_for_free();
    case ORDER_LIVE:
        return live_at_random(order->count);
    default:
        return (struct answer){0};
    }
}

/* All that a process does that was started; its exit status. */
static inline int follow_orders(void)
{
    struct order order;
    while (next_order(&order))
        give_answer(follow(&order));
    return 0;
}

#endif
