// cub's caching allocator, as a peer of the pool: powers of two from 512 bytes to 64 MiB, as much
// cached as it likes.
#include <cub/util_allocator.cuh>
#include <cuda_runtime.h>

#include "peer.h"

static cub::CachingDeviceAllocator *allocator;

static void thread_starts()
{
    cudaSetDevice(0);
}

static int open_allocator()
{
    thread_starts();
    allocator = new cub::CachingDeviceAllocator(2, 9, 26, (size_t)16 << 30);
    return 0;
}

static uint64_t allocate(size_t bytes, void *stream)
{
    void *memory = nullptr;
    cudaError_t error = allocator->DeviceAllocate(&memory, bytes, (cudaStream_t)stream);
    return error == cudaSuccess ? (uint64_t)memory : 0;
}

static void release(uint64_t address, void *)
{
    allocator->DeviceFree((void *)address);
}

extern "C" const peer_allocator bench_allocator = {open_allocator, thread_starts, allocate,
                                                   release};
