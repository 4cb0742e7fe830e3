// PyTorch's caching allocator, as a peer of the pool: its C++ functions, so that no interpreter's
// lock is measured.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "peer.h"

static void thread_starts()
{
    c10::cuda::set_device(0);
}

static int open_allocator()
{
    c10::cuda::CUDACachingAllocator::init(1);
    thread_starts();
    return 0;
}

static uint64_t allocate(size_t bytes, void *stream)
{
    try {
        return (uint64_t)c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(
            bytes, (cudaStream_t)stream);
    } catch (const std::exception &) {
        return 0;
    }
}

static void release(uint64_t address, void *)
{
    c10::cuda::CUDACachingAllocator::raw_delete((void *)address);
}

extern "C" const peer_allocator bench_allocator = {open_allocator, thread_starts, allocate,
                                                   release};
