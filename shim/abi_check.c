/*
 * Compares this project's declarations of the CUDA driver with a toolkit's <cuda.h>. The file is
 * compiled only where a toolkit is found, and linked with nothing: if it compiles, the check has
 * passed.
 *
 * __CUDA_API_VERSION_INTERNAL makes <cuda.h> declare every version of a function under its exported
 * name, including the _ptsz ones. The lists leave out what a toolkit is too old to declare.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define SAME_TYPE(name, parameters)                                                                \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), CUresult parameters),            \
                   "the type of " #name " differs from <cuda.h>");

/* every replaced function */
#define ENTRY_POINT SAME_TYPE
#include "entry_points.def"
#undef ENTRY_POINT

/* every function that the core calls; <cuda.h> replaces cuda_abi.h */
#if CUDA_VERSION >= 12050
#define CUDAPOOL_CORE_CUDA_ABI_H
#include "core/driver/driver.h"
DRIVER_FUNCTIONS(SAME_TYPE, SAME_TYPE)
#endif

/* every constant; the newest are pointer attributes that came with CUDA 11 */
#if CUDA_VERSION >= 12000
#define CONSTANT(name, value)                                                                      \
    _Static_assert((long long)(name) == (long long)(value),                                        \
                   "the value of " #name " differs from <cuda.h>");
#include "core/driver/cuda_constants.def"
#undef CONSTANT
#endif

/* every type that is passed by value or looked into */
#define SIZE(type, bytes)                                                                          \
    _Static_assert(sizeof(type) == (bytes), "the size of " #type " differs from <cuda.h>");
#include "core/driver/cuda_sizes.def"
#undef SIZE
