/*
 * Rows about calls that are out of memory beside memory that is still to come back.
 */
#include "conformance.h"

/* Work of stream a goes on until the flag is set. NULL: there is no memory for the flag. */
static unsigned int *begin_endless_work(void)
{
    unsigned int *flag = NULL;
    CUdeviceptr device = 0;
    SUCCEEDS(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    if (flag == NULL)
        return NULL;
    SUCCEEDS(cuMemHostGetDevicePointer_v2(&device, flag, 0));
    __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
    launch(gpu.wait_flag, gpu.a, (void *[]){&device});
    return flag;
}

static void end_endless_work(unsigned int *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    SUCCEEDS(cuMemFreeHost(flag));
}

static void physical_memory_is_out(size_t bytes)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device}};
    CUmemGenericAllocationHandle handle;
    EXPECT(cuMemCreate(&handle, bytes / (2 * MIB) * (2 * MIB), &properties, 0),
           CUDA_ERROR_OUT_OF_MEMORY);
}

/* As many bytes as layers of 64 MiB have. */
static void array_is_out(size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR cube = {4096, 4096, bytes / (64 * MIB), CU_AD_FORMAT_FLOAT, 1, 0};
    CUarray array;
    EXPECT(cuArray3DCreate_v2(&array, &cube), CUDA_ERROR_OUT_OF_MEMORY);
}

static void plain_memory_is_out(size_t bytes)
{
    CUdeviceptr address;
    size_t pitch;
    EXPECT(cuMemAlloc_v2(&address, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuMemAllocPitch_v2(&address, &pitch, MIB, bytes / MIB, 4), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Whoever waits in them waits for ever: the flag is set after them. */
enum { REFUSALS_AT_ONCE = 3, REFUSED_AFTER_MS = 1000 };

static void others_are_refused_at_once(size_t bytes)
{
    double start = real_ms();
    for (int i = 0; i < REFUSALS_AT_ONCE; i++) {
        plain_memory_is_out(bytes);
        physical_memory_is_out(bytes);
        array_is_out(bytes);
    }
    double each = (real_ms() - start) / (4 * REFUSALS_AT_ONCE);
    note("refused in %.2f ms each", each);
    CHECK_TIME(each < REFUSED_AFTER_MS);
}

static void stream_gets_it_at_once(CUstream stream, size_t bytes)
{
    CUdeviceptr address = 0;
    double start = real_ms();
    SUCCEEDS(cuMemAllocAsync(&address, bytes, stream));
    CHECK_TIME(real_ms() - start < REFUSED_AFTER_MS);
    if (address != 0)
        SUCCEEDS(cuMemFreeAsync(address, stream));
}

/* Three quarters of what is free are freed in stream a's order, behind work that does not end. Half
 * of it, which is more than the rest, can be had in a stream's order, and by no other call. None
 * waits. */
void memory_freed_in_order_is_not_waited_for(void)
{
    size_t free_bytes = free_memory() / (64 * MIB) * (64 * MIB);
    size_t bytes = free_bytes / 4 * 3, wanted = free_bytes / 2;
    CUdeviceptr block = 0;
    SUCCEEDS(cuMemAllocAsync(&block, bytes, gpu.a));
    unsigned int *flag = block != 0 ? begin_endless_work() : NULL;
    if (flag == NULL)
        return;
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    others_are_refused_at_once(wanted);
    stream_gets_it_at_once(gpu.b, wanted);
    stream_gets_it_at_once(gpu.a, wanted);
    end_endless_work(flag);
    CUmemoryPool pool;
    SUCCEEDS(cuDeviceGetDefaultMemPool(&pool, gpu.device));
    SUCCEEDS(cuMemPoolTrimTo(pool, 0));
}
