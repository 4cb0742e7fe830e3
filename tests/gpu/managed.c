/*
 * Managed memory beside much that was freed. The driver gives managed memory out whether or not the
 * device has room for it, and kernels that touch what has none wait for pages from the host. So
 * what the pool keeps has to go back before: touched by kernels, such memory must be there as fast
 * as without the pool.
 *
 * Of the memory that is free at first, one share stays allocated, one is allocated and freed, and
 * one is allocated as managed memory, which has room only where what was freed is the device's
 * again. The first and the last share are less than all together: no more is ever touched than the
 * device has. Where there turns out to be less room, nothing is touched, since a device that is
 * given too much may hang.
 *
 * Arguments: live=53 freed=29 managed=43 (percent) blocks=8
 */
#include <dlfcn.h>

#include "gpu.h"

enum { MOST_BLOCKS = 64, ROUNDS = 2 };

/* The driver takes memory from the device in pages of this size. */
#define PAGE (2 * MIB)

static struct kernels kernels;
static CUstream stream;
static CUdeviceptr counter;

typedef CUresult memory_info(size_t *, size_t *);

/* The driver's own function, past any that is in front of it. */
static memory_info *drivers_memory_info(void)
{
#if defined(__aarch64__)
    const char *version = "GLIBC_2.17";
#else
    const char *version = "GLIBC_2.2.5";
#endif
    void *(*lookup)(void *, const char *) =
        (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", version);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    memory_info *info =
        lookup != NULL && driver != NULL ? (memory_info *)lookup(driver, "cuMemGetInfo_v2") : NULL;
    if (info == NULL)
        FAIL("the driver's cuMemGetInfo is not to be found");
    return info;
}

static size_t share_of(size_t bytes, unsigned long percent)
{
    return bytes / 100 * percent / PAGE * PAGE;
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, bytes));
    return address;
}

static void allocate_and_free(size_t bytes, unsigned long blocks)
{
    CUdeviceptr addresses[MOST_BLOCKS];
    for (unsigned long i = 0; i < blocks; i++)
        addresses[i] = allocate(bytes / blocks / PAGE * PAGE);
    for (unsigned long i = 0; i < blocks; i++)
        CHECK(cuMemFree_v2(addresses[i]));
    CHECK(cuCtxSynchronize());
}

/* The simulated driver gives managed memory its place at once, a real one when it is touched. */
static bool has_room(size_t bytes)
{
    size_t left, total;
    if (simcuda_managed_on_devices != NULL)
        return simcuda_managed_on_devices() >= bytes;
    CHECK(drivers_memory_info()(&left, &total));
    return left >= bytes;
}

static size_t least(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* Enough threads for all that the memory bears. */
static void launch(CUfunction function, void **parameters)
{
    CHECK(cuLaunchKernel(function, 1024, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

/* What runs on each piece of the memory: kernels count words in 32 bits. */
static void on_each_piece(CUdeviceptr address, size_t bytes, unsigned int value, bool checks)
{
    const size_t piece = 1024 * MIB;
    for (size_t offset = 0; offset < bytes; offset += piece) {
        CUdeviceptr begin = address + offset;
        unsigned int words = (unsigned int)(least(piece, bytes - offset) / sizeof words);
        if (checks)
            launch(kernels.verify, (void *[]){&begin, &words, &value, &counter});
        else
            launch(kernels.fill, (void *[]){&begin, &words, &value});
    }
    CHECK(cuStreamSynchronize(stream));
}

static double touch(CUdeviceptr address, size_t bytes, unsigned int value)
{
    double start = now_ms();
    on_each_piece(address, bytes, value, false);
    double ms = now_ms() - start;
    on_each_piece(address, bytes, value, true);
    return ms;
}

int main(int argc, char **argv)
{
    size_t left, total;
    double ms[ROUNDS];
    unsigned long blocks = argument(argc, argv, "blocks", 8);
    open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    counter = new_counter();
    CHECK(cuMemGetInfo_v2(&left, &total));
    unsigned long live = argument(argc, argv, "live", 53),
                  share = argument(argc, argv, "managed", 43);
    if (live + share > 97 || blocks == 0 || blocks > MOST_BLOCKS)
        FAIL("live and managed must be 97 together at most, blocks from 1 to %d", MOST_BLOCKS);
    CUdeviceptr kept = allocate(share_of(left, live));
    allocate_and_free(share_of(left, argument(argc, argv, "freed", 29)), blocks);
    size_t bytes = share_of(left, share);
    CUdeviceptr managed;
    double start = now_ms();
    CHECK(cuMemAllocManaged(&managed, bytes, CU_MEM_ATTACH_GLOBAL));
    double allocation_ms = now_ms() - start;
    if (!has_room(bytes))
        FAIL("%zu MiB of managed memory have no room on the device", bytes / MIB);
    for (unsigned int i = 0; i < ROUNDS; i++)
        ms[i] = touch(managed, bytes, i + 1);
    unsigned long long wrong = read_counter(counter);
    CHECK(cuMemFree_v2(managed));
    CHECK(cuMemFree_v2(kept));
    printf("%zu MiB allocated in %.1f ms, touched in %.1f ms, touched again in %.1f ms\n",
           bytes / MIB, allocation_ms, ms[0], ms[1]);
    printf("managed: %.1f ms, %llu wrong words\n", ms[0], wrong);
    return wrong != 0;
}
