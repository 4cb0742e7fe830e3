/*
 * For test programs: the driver's calls that allocate, free and wait, with what the race detector
 * of the simulated driver wants to be told (simcuda.h). A program that includes this after
 * driver_api.h, and calls the driver by name, tells all of it; on a real driver nothing is told.
 *
 * RACES_PLAIN_NAMES, defined before, leaves the driver's names alone. Calls through pointers, and
 * per-thread variants by name (_ptsz), tell nothing by themselves.
 */
#ifndef TESTS_SIM_RACES_H
#define TESTS_SIM_RACES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../driver_api.h"
#include "simcuda.h"

/* Allocations are numbered from 1 on, in the order in which they were made. */
static inline void tell_allocated(CUresult result, CUdeviceptr address, size_t bytes)
{
    static atomic_ullong last;
    if (result == CUDA_SUCCESS && simcuda_program_allocated != NULL)
        simcuda_program_allocated(address, bytes,
                                  atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1);
}

static inline void tell_allocated_async(CUresult result, CUdeviceptr address, size_t bytes,
                                        CUstream stream)
{
    static atomic_ullong last = 1000000000;
    if (result == CUDA_SUCCESS && address != 0 && simcuda_program_allocated_async != NULL)
        simcuda_program_allocated_async(
            address, bytes, atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1, stream);
}

static inline void tell_freed(CUdeviceptr address)
{
    if (simcuda_program_freed != NULL)
        simcuda_program_freed(address);
}

static inline void tell_freed_async(CUdeviceptr address, CUstream stream)
{
    if (simcuda_program_freed_async != NULL)
        simcuda_program_freed_async(address, stream);
}

static inline CUresult tell_free_result(CUresult result, CUdeviceptr address)
{
    if (result != CUDA_SUCCESS && simcuda_program_free_failed != NULL)
        simcuda_program_free_failed(address);
    return result;
}

static inline void tell_host_reads(const void *address, size_t bytes)
{
    if (simcuda_host_reads != NULL)
        simcuda_host_reads(address, bytes);
}

static inline void tell_host_writes(const void *address, size_t bytes)
{
    if (simcuda_host_writes != NULL)
        simcuda_host_writes(address, bytes);
}

static inline void tell_call(enum simcuda_waits waits, uint64_t argument)
{
    if (simcuda_program_call_begin != NULL)
        simcuda_program_call_begin(waits, argument);
}

static inline CUresult tell_result(CUresult result)
{
    if (simcuda_program_call_end != NULL)
        simcuda_program_call_end();
    return result;
}

static inline CUresult told_cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_NOTHING, 0);
    result = tell_result(cuMemAlloc_v2(address, bytes));
    tell_allocated(result, result == CUDA_SUCCESS ? *address : 0, bytes);
    return result;
}

static inline CUresult told_cuMemAllocManaged(CUdeviceptr *address, size_t bytes,
                                              unsigned int flags)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_NOTHING, 0);
    result = tell_result(cuMemAllocManaged(address, bytes, flags));
    tell_allocated(result, result == CUDA_SUCCESS ? *address : 0, bytes);
    return result;
}

static inline CUresult told_cuMemAllocPitch(CUdeviceptr *address, size_t *pitch, size_t width,
                                            size_t height, unsigned int element_bytes)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_NOTHING, 0);
    result = tell_result(cuMemAllocPitch_v2(address, pitch, width, height, element_bytes));
    if (result == CUDA_SUCCESS)
        tell_allocated(result, *address, *pitch * height);
    return result;
}

static inline CUresult told_cuMemFree(CUdeviceptr address)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_OWNER, address);
    tell_freed(address);
    result = tell_result(cuMemFree_v2(address));
    return tell_free_result(result, address);
}

static inline CUresult told_cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_NOTHING, 0);
    result = tell_result(cuMemHostAlloc(address, bytes, flags));
    tell_allocated(result, result == CUDA_SUCCESS ? (uintptr_t)*address : 0, bytes);
    return result;
}

static inline CUresult told_cuMemAllocHost(void **address, size_t bytes)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_NOTHING, 0);
    result = tell_result(cuMemAllocHost_v2(address, bytes));
    tell_allocated(result, result == CUDA_SUCCESS ? (uintptr_t)*address : 0, bytes);
    return result;
}

static inline CUresult told_cuMemFreeHost(void *address)
{
    CUresult result;
    tell_call(SIMCUDA_WAITS_FOR_OWNER, (uintptr_t)address);
    tell_freed((uintptr_t)address);
    result = tell_result(cuMemFreeHost(address));
    return tell_free_result(result, (uintptr_t)address);
}

static inline CUresult told_cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    CUresult result;
    tell_call(SIMCUDA_STREAM_ALLOCATION, 0);
    result = tell_result(cuMemAllocAsync(address, bytes, stream));
    tell_allocated_async(result, result == CUDA_SUCCESS ? *address : 0, bytes, stream);
    return result;
}

static inline CUresult told_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes,
                                                    CUmemoryPool pool, CUstream stream)
{
    CUresult result;
    tell_call(SIMCUDA_STREAM_ALLOCATION, 0);
    result = tell_result(cuMemAllocFromPoolAsync(address, bytes, pool, stream));
    tell_allocated_async(result, result == CUDA_SUCCESS ? *address : 0, bytes, stream);
    return result;
}

static inline CUresult told_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUresult result;
    tell_call(SIMCUDA_STREAM_FREE, (uintptr_t)stream);
    tell_freed_async(address, stream);
    result = tell_result(cuMemFreeAsync(address, stream));
    return tell_free_result(result, address);
}

static inline CUresult told_cuCtxSynchronize(void)
{
    tell_call(SIMCUDA_WAITS_FOR_CONTEXT, 0);
    return tell_result(cuCtxSynchronize());
}

static inline CUresult told_cuStreamSynchronize(CUstream stream)
{
    tell_call(SIMCUDA_WAITS_FOR_STREAM, (uintptr_t)stream);
    return tell_result(cuStreamSynchronize(stream));
}

static inline CUresult told_cuEventSynchronize(CUevent event)
{
    tell_call(SIMCUDA_WAITS_FOR_EVENT, (uintptr_t)event);
    return tell_result(cuEventSynchronize(event));
}

/* pthread_create and pthread_join for programs that tell how their threads synchronise. */
struct told_thread {
    void *(*body)(void *);
    void *argument;
    pthread_t thread;
};

static inline void *told_thread_body(void *argument)
{
    struct told_thread *thread = argument;
    void *result;
    if (simcuda_acquire != NULL)
        simcuda_acquire(&thread->body);
    result = thread->body(thread->argument);
    if (simcuda_release != NULL)
        simcuda_release(&thread->argument);
    return result;
}

/* The struct must live until the thread has been joined. */
static inline int told_thread_start(struct told_thread *thread, void *(*body)(void *),
                                    void *argument)
{
    thread->body = body;
    thread->argument = argument;
    if (simcuda_release != NULL)
        simcuda_release(&thread->body);
    return pthread_create(&thread->thread, NULL, told_thread_body, thread);
}

static inline void told_thread_join(struct told_thread *thread)
{
    pthread_join(thread->thread, NULL);
    if (simcuda_acquire != NULL)
        simcuda_acquire(&thread->argument);
}

#ifndef RACES_PLAIN_NAMES
#define cuMemAlloc_v2           told_cuMemAlloc
#define cuMemAllocManaged       told_cuMemAllocManaged
#define cuMemAllocPitch_v2      told_cuMemAllocPitch
#define cuMemFree_v2            told_cuMemFree
#define cuMemHostAlloc          told_cuMemHostAlloc
#define cuMemAllocHost_v2       told_cuMemAllocHost
#define cuMemFreeHost           told_cuMemFreeHost
#define cuMemAllocAsync         told_cuMemAllocAsync
#define cuMemAllocFromPoolAsync told_cuMemAllocFromPoolAsync
#define cuMemFreeAsync          told_cuMemFreeAsync
#define cuCtxSynchronize        told_cuCtxSynchronize
#define cuStreamSynchronize     told_cuStreamSynchronize
#define cuEventSynchronize      told_cuEventSynchronize
#endif

#endif
