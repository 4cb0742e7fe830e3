/*
 * A program that other run times are tried with: sanitizers', memcheck's, an allocator's, a
 * clock's. It allocates device memory 40 times, checks what it copies there and back, and frees
 * it.
 *
 * usage: loaders linked|dlopen [STATUS]      how it reaches the driver, and how it exits
 *
 * Exits 7 when all is well, unless a status is given: so no other one can be taken for its own.
 */
#include "interposition.h"

#define ROUNDS 40
#define BYTES  4000

typedef CUresult allocate_function(CUdeviceptr *pointer, size_t bytes);
typedef CUresult free_function(CUdeviceptr pointer);

static void copy_there_and_back(CUdeviceptr memory, int round)
{
    char *out = malloc(BYTES), *back = malloc(BYTES);
    CHECK(out != NULL && back != NULL);
    memset(out, round, BYTES);
    memset(back, 0, BYTES);
    CU(cuMemcpyHtoD_v2(memory, out, BYTES));
    CU(cuMemcpyDtoH_v2(back, memory, BYTES));
    CHECK(memcmp(out, back, BYTES) == 0);
    free(out);
    free(back);
}

int main(int argc, char **argv)
{
    CUcontext context;
    allocate_function *allocate = cuMemAlloc_v2;
    free_function *release = cuMemFree_v2;
    CHECK(argc > 1);
    if (strcmp(argv[1], "dlopen") == 0) {
        void *driver = open_library(DRIVER_OBJECT, RTLD_NOW);
        allocate = (allocate_function *)function_of(driver, "cuMemAlloc_v2");
        release = (free_function *)function_of(driver, "cuMemFree_v2");
    }
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    for (int round = 1; round <= ROUNDS; round++) {
        CUdeviceptr memory;
        CU(allocate(&memory, BYTES));
        copy_there_and_back(memory, round);
        CU(release(memory));
    }
    CU(cuDevicePrimaryCtxRelease_v2(0));
    return argc > 2 ? atoi(argv[2]) : 7;
}
