/*
 * Allocates and frees as many times as the first argument says, in a few sizes, so that with the
 * pool every pair after the first ones hits. The second argument says what:
 *
 *   hit_pair PAIRS                                   cuMemAlloc and cuMemFree
 *   hit_pair PAIRS pinned                            cuMemHostAlloc and cuMemFreeHost
 *   hit_pair PAIRS async [STREAMS | legacy | own]    cuMemAllocAsync and cuMemFreeAsync: on so many
 *                                                    streams in turn (1), the legacy stream, or the
 *                                                    thread's own
 *   hit_pair PAIRS crowded STREAMS                   the same in sizes up to 24 MiB, one to each
 *                                                    stream: more than is kept of 1000 streams
 *
 * Checks that each address is one of its own by writing to the memory at the end. For
 * scripts/instructions_per_pair.sh.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver_api.h"
#include "../random/virtual_time.h"

static const size_t sizes[] = {1000, 65536, 300000, 1 << 20, 5 << 20};
static const size_t crowding_sizes[] = {1 << 10, 4 << 10, 64 << 10, 256 << 10,
                                        1 << 20, 3 << 20, 8 << 20,  24 << 20};
enum {
    SIZES = sizeof sizes / sizeof sizes[0],
    CROWDING_SIZES = sizeof crowding_sizes / sizeof crowding_sizes[0],
    STREAMS = 1000
};

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "hit_pair: %s: CUDA error %u\n", call, result);
        exit(1);
    }
}

static void allocate_and_free(size_t bytes)
{
    CUdeviceptr block;
    check(cuMemAlloc_v2(&block, bytes), "cuMemAlloc_v2");
    check(cuMemFree_v2(block), "cuMemFree_v2");
}

static void pin_and_unpin(size_t bytes)
{
    void *block;
    check(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    check(cuMemFreeHost(block), "cuMemFreeHost");
}

static void allocate_and_free_on(CUstream stream, size_t bytes)
{
    CUdeviceptr block;
    check(cuMemAllocAsync(&block, bytes, stream), "cuMemAllocAsync");
    check(cuMemFreeAsync(block, stream), "cuMemFreeAsync");
}

static CUstream streams[STREAMS];
static unsigned long stream_count = 1;

static void choose_streams(const char *which)
{
    if (strcmp(which, "legacy") == 0) {
        streams[0] = CU_STREAM_LEGACY;
        return;
    }
    if (strcmp(which, "own") == 0) {
        streams[0] = CU_STREAM_PER_THREAD;
        return;
    }
    stream_count = strtoul(which, NULL, 10);
    stream_count = stream_count > STREAMS ? STREAMS : stream_count > 0 ? stream_count : 1;
    for (unsigned long i = 0; i < stream_count; i++)
        check(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

/* As programs do that count on the driver's pool. */
static void keep_all(CUdevice device)
{
    CUmemoryPool pool;
    uint64_t all = UINT64_MAX;
    check(cuDeviceGetDefaultMemPool(&pool, device), "cuDeviceGetDefaultMemPool");
    check(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
          "cuMemPoolSetAttribute");
}

static void run_pairs(unsigned long pairs, const char *what)
{
    /* What many streams keep must not be more than is kept at all. */
    unsigned long used = stream_count > 1 ? 3 : SIZES;
    bool async = strcmp(what, "async") == 0, crowded = strcmp(what, "crowded") == 0;
    bool pinned = strcmp(what, "pinned") == 0;
    for (unsigned long i = 0; i < pairs && !async && !crowded && !pinned; i++)
        allocate_and_free(sizes[i % SIZES]);
    for (unsigned long i = 0; i < pairs && pinned; i++)
        pin_and_unpin(sizes[i % SIZES]);
    for (unsigned long i = 0; i < pairs && async; i++)
        allocate_and_free_on(streams[i / used % stream_count], sizes[i % used]);
    for (unsigned long i = 0; i < pairs && crowded; i++)
        allocate_and_free_on(streams[i % stream_count], crowding_sizes[i % CROWDING_SIZES]);
}

int main(int argc, char **argv)
{
    unsigned long pairs = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    const char *what = argc > 2 ? argv[2] : "";
    CUdevice device;
    CUcontext context;
    virtual_time_moves();
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    choose_streams(argc > 3 ? argv[3] : "1");
    if (strcmp(what, "crowded") == 0)
        keep_all(device);
    run_pairs(pairs, what);

    CUdeviceptr block;
    unsigned int written = 12345, read = 0;
    check(cuMemAlloc_v2(&block, sizes[0]), "cuMemAlloc_v2");
    check(cuMemcpyHtoD_v2(block, &written, sizeof written), "cuMemcpyHtoD_v2");
    check(cuMemcpyDtoH_v2(&read, block, sizeof read), "cuMemcpyDtoH_v2");
    check(cuMemFree_v2(block), "cuMemFree_v2");
    if (read != written) {
        fprintf(stderr, "hit_pair: the memory does not hold what was written\n");
        return 1;
    }
    printf("%lu pairs\n", pairs);
    return 0;
}
