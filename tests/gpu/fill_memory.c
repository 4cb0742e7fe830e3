/*
 * Filling the device. What is cached must never make a program run out of memory that would not
 * have run out without the pool.
 *
 * First: blocks of changing sizes up to a share of the device's free memory, half of them freed in
 * a different order and replaced by other sizes, over and over. Second: a quarter of the memory is
 * freed, a long kernel starts, and seven eighths are allocated in one piece while it runs.
 *
 * Arguments: percent=98 cycles=12 largest_mib=2048 kernel_ms=500
 */
#include "gpu.h"

enum { MAX_BLOCKS = 65536, CHECKED_WORDS = 1024 };

/* The driver takes memory from the device in pages of this size; so do the sums here. */
#define PAGE (2 * MIB)

struct block {
    CUdeviceptr address;
    size_t bytes;
    unsigned int value; /* in its first and last words */
};

static struct kernels kernels;
static CUstream stream;
static CUdeviceptr counter;
static struct block blocks[MAX_BLOCKS];
static unsigned int block_count, next_value;
static size_t bytes_in_use;

static CUdeviceptr last_words(const struct block *block)
{
    return block->address + block->bytes - CHECKED_WORDS * sizeof(unsigned int);
}

static void add_block(size_t bytes)
{
    struct block *block = &blocks[block_count];
    CUresult result = cuMemAlloc_v2(&block->address, bytes);
    if (result != CUDA_SUCCESS)
        FAIL("%zu bytes on top of %zu: CUDA error %u", bytes, bytes_in_use, result);
    block->bytes = bytes;
    block->value = ++next_value;
    fill(&kernels, stream, block->address, CHECKED_WORDS, block->value);
    fill(&kernels, stream, last_words(block), CHECKED_WORDS, block->value);
    bytes_in_use += bytes;
    block_count++;
}

static void remove_block(unsigned int i)
{
    const struct block *block = &blocks[i];
    verify(&kernels, stream, block->address, CHECKED_WORDS, block->value, counter);
    verify(&kernels, stream, last_words(block), CHECKED_WORDS, block->value, counter);
    CHECK(cuMemFree_v2(block->address));
    bytes_in_use -= block->bytes;
    blocks[i] = blocks[--block_count];
}

/* Whole pages: mostly a few, sometimes many. */
static size_t changing_size(unsigned int *random, size_t largest)
{
    size_t limit = largest >> (next_random(random) % 8);
    size_t pages = limit / PAGE > 1 ? 1 + next_random(random) % (limit / PAGE) : 1;
    return pages * PAGE;
}

static void fill_up(unsigned int *random, size_t target, size_t largest)
{
    while (block_count < MAX_BLOCKS && target - bytes_in_use >= PAGE) {
        size_t bytes = changing_size(random, largest);
        size_t room = (target - bytes_in_use) / PAGE * PAGE;
        add_block(bytes < room ? bytes : room);
    }
}

static void cycle(unsigned long cycles, size_t target, size_t largest)
{
    unsigned int random = 12345;
    for (unsigned long i = 0; i < cycles; i++) {
        fill_up(&random, target, largest);
        unsigned int keep = i % 4 == 3 ? 0 : block_count / 2;
        while (block_count > keep)
            remove_block(next_random(&random) % block_count);
    }
    while (block_count > 0)
        remove_block(0);
}

/* Returns how long the large allocation took, in milliseconds. */
static double large_allocation_beside_a_kernel(size_t free_bytes, unsigned long kernel_ms)
{
    size_t small = free_bytes / 32 / PAGE * PAGE, large = free_bytes / 8 * 7 / PAGE * PAGE;
    for (int i = 0; i < 8; i++)
        add_block(small);
    while (block_count > 0)
        remove_block(0);
    spin(&kernels, stream, kernel_ms * 1000000);
    double start = now_ms();
    add_block(large);
    double elapsed = now_ms() - start;
    CHECK(cuStreamSynchronize(stream));
    remove_block(0);
    return elapsed;
}

int main(int argc, char **argv)
{
    size_t free_bytes, total_bytes;
    unsigned long percent = argument(argc, argv, "percent", 98);
    unsigned long cycles = argument(argc, argv, "cycles", 12);
    size_t largest = argument(argc, argv, "largest_mib", 2048) * MIB;
    unsigned long kernel_ms = argument(argc, argv, "kernel_ms", 500);

    open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    counter = new_counter();
    CHECK(cuMemGetInfo_v2(&free_bytes, &total_bytes));

    double start = now_ms();
    cycle(cycles, free_bytes / 100 * percent, largest);
    double filled = now_ms();
    double large_ms = large_allocation_beside_a_kernel(free_bytes, kernel_ms);
    unsigned long long wrong = read_counter(counter);
    printf("fill_memory: %.2f ms, %lu times %lu %% of %zu MiB, then a large block beside a %lu ms "
           "kernel in %.2f ms, %llu wrong words\n",
           filled - start, cycles, percent, free_bytes / MIB, kernel_ms, large_ms, wrong);
    return wrong == 0 ? 0 : 1;
}
