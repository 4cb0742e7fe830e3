/*
 * Compares tests/driver_api.h with a CUDA toolkit's <cuda.h>: types of functions, sizes of structs
 * and values of constants. Compiled only where a toolkit is found; never linked.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

#if CUDA_VERSION >= 13000
#define SAME_TYPE(name, parameters)                                                                \
    __builtin_types_compatible_p(__typeof__(name), CUresult parameters)
#define FUNCTION(name, parameters)                                                                 \
    _Static_assert(SAME_TYPE(name, parameters), "the type of " #name " differs from <cuda.h>");
#include "../driver_api.def"
#undef FUNCTION

#define CONSTANT(name, value)                                                                      \
    _Static_assert((long)(name) == (long)(value), "the value of " #name " differs from <cuda.h>");
#include "../driver_api_constants.def"
#undef CONSTANT

#define SIZE(type, bytes)                                                                          \
    _Static_assert(sizeof(type) == (bytes), "the size of " #type " differs from <cuda.h>");
#include "../driver_api_sizes.def"
#undef SIZE
#endif
