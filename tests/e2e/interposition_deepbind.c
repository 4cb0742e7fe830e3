/*
 * A library that bypasses the preload object frees the program's memory, and the program the
 * library's. Nothing breaks, and a later allocation at the same address is whole.
 *
 * usage: interposition_deepbind LIBRARY
 */
#include "interposition.h"

#include "../sim/simcuda.h"

#define BUFFERS 16
#define ROUNDS  10

typedef CUresult allocate_function(CUdeviceptr *pointer, size_t bytes);
typedef CUresult free_function(CUdeviceptr pointer);

static void write_and_check(const CUdeviceptr *buffers, size_t bytes)
{
    static char out[1 << 16], back[1 << 16];
    for (int i = 0; i < BUFFERS; i++) {
        memset(out, i + 1, bytes);
        CU(cuMemcpyHtoD_v2(buffers[i], out, bytes));
    }
    for (int i = 0; i < BUFFERS; i++) {
        memset(out, i + 1, bytes);
        CU(cuMemcpyDtoH_v2(back, buffers[i], bytes));
        CHECK(memcmp(out, back, bytes) == 0);
    }
}

static void check_sizes(const CUdeviceptr *buffers, size_t bytes)
{
    for (int i = 0; i < BUFFERS; i++) {
        CUdeviceptr base;
        size_t size;
        CU(cuMemGetAddressRange_v2(&base, &size, buffers[i]));
        CHECK(base == buffers[i] && size == bytes);
    }
}

static void cross(allocate_function *allocate, free_function *release, size_t bytes)
{
    CUdeviceptr buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
        CU(allocate(&buffers[i], bytes));
    write_and_check(buffers, bytes);
    check_sizes(buffers, bytes);
    for (int i = 0; i < BUFFERS; i++)
        CU(release(buffers[i]));
    for (int i = 0; i < BUFFERS; i++)
        CHECK(release(buffers[i]) == CUDA_ERROR_INVALID_VALUE);
}

static CUdeviceptr allocate_managed(size_t bytes)
{
    CUdeviceptr address = 0;
    CU(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
    return address;
}

/* What another call gives out at the address of a block that the library has freed is no block of
 * the pool: it goes where it came from. */
static void give_again(free_function *release)
{
    size_t bytes = (size_t)4 << 20;
    CUdeviceptr block, again;
    CU(cuMemAlloc_v2(&block, bytes));
    CU(release(block));
    again = allocate_managed(bytes);
    CHECK(again == block);
    uint64_t live = simcuda_live_allocations();
    CU(cuMemFree_v2(again));
    CHECK(simcuda_live_allocations() == live - 1);
}

int main(int argc, char **argv)
{
    CUcontext context;
    CHECK(argc == 2);
    void *library = open_library(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void *(*function)(void) = (void *(*)(void))function_of(library, "deepbind_function");
    allocate_function *allocate = (allocate_function *)function_of(library, "deepbind_allocate");
    free_function *release = (free_function *)function_of(library, "deepbind_free");
    CHECK(is_the_drivers(function()) && is_ours(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = 1000 + 3000 * (size_t)(round % 3);
        cross(cuMemAlloc_v2, release, bytes);
        cross(allocate, cuMemFree_v2, bytes);
        cross(cuMemAlloc_v2, cuMemFree_v2, bytes);
        cross(allocate, release, bytes);
        give_again(release);
    }
    CU(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}
