// What the programs in CUDA C++ of this directory share.
#ifndef CUDAPOOL_TESTS_GPU_CHECK_CUH
#define CUDAPOOL_TESTS_GPU_CHECK_CUH

#include <cstdio>
#include <cstdlib>

// A call of the runtime that must succeed.
#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
