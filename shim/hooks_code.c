/*
 * Hooks of code: modules, libraries, kernels and their variables. The driver loads code lazily, so
 * even a question about a kernel (its registers, how many blocks of it fit) may take device memory.
 * The calls pass through, and are retried when memory is short and the pool has some to release.
 * Some programs ask before every launch, so a call that succeeds costs only one comparison more.
 */
#include "hooks.h"

HOOK(cuModuleLoad, (CUmodule * module, const char *file))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuModuleLoad(module, file));
}

HOOK(cuModuleLoadData, (CUmodule * module, const void *image))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuModuleLoadData(module, image));
}

HOOK(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned int count,
                          CUjit_option *options, void **values))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuModuleLoadDataEx(module, image, count, options, values));
}

HOOK(cuModuleLoadFatBinary, (CUmodule * module, const void *image))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuModuleLoadFatBinary(module, image));
}

HOOK(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuModuleGetFunction(function, module, name));
}

HOOK(cuModuleGetGlobal_v2,
     (CUdeviceptr * address, size_t *bytes, CUmodule module, const char *name))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuModuleGetGlobal_v2(address, bytes, module, name));
}

HOOK(cuLibraryLoadData,
     (CUlibrary * library, const void *code, CUjit_option *jit_options, void **jit_values,
      unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLibraryLoadData(library, code, jit_options, jit_values, jit_count,
                                             options, values, count));
}

HOOK(cuLibraryLoadFromFile,
     (CUlibrary * library, const char *file, CUjit_option *jit_options, void **jit_values,
      unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLibraryLoadFromFile(library, file, jit_options, jit_values, jit_count,
                                                 options, values, count));
}

HOOK(cuLibraryGetModule, (CUmodule * module, CUlibrary library))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLibraryGetModule(module, library));
}

HOOK(cuLibraryGetGlobal,
     (CUdeviceptr * address, size_t *bytes, CUlibrary library, const char *name))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLibraryGetGlobal(address, bytes, library, name));
}

HOOK(cuLibraryGetManaged,
     (CUdeviceptr * address, size_t *bytes, CUlibrary library, const char *name))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLibraryGetManaged(address, bytes, library, name));
}

HOOK(cuLibraryGetUnifiedFunction, (void **function, CUlibrary library, const char *name))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLibraryGetUnifiedFunction(function, library, name));
}

HOOK(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuKernelGetFunction(function, kernel));
}

HOOK(cuKernelGetAttribute,
     (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuKernelGetAttribute(value, attribute, kernel, device));
}

HOOK(cuKernelSetAttribute,
     (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuKernelSetAttribute(attribute, value, kernel, device));
}

HOOK(cuFuncLoad, (CUfunction function))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuFuncLoad(function));
}

HOOK(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuFuncGetAttribute(value, attribute, function));
}

HOOK(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuFuncSetAttribute(function, attribute, value));
}

/* ---- how many blocks of a kernel fit: the driver loads the code to answer ---- */

HOOK(cuOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *blocks, CUfunction function, int block_size, size_t shared_bytes))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size,
                                                                       shared_bytes));
}

HOOK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *blocks, CUfunction function, int block_size, size_t shared_bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, function, block_size, shared_bytes, flags));
}

HOOK(cuOccupancyMaxPotentialBlockSize,
     (int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_bytes_of,
      size_t shared_bytes, int limit))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuOccupancyMaxPotentialBlockSize(grid_size, block_size, function,
                                                            shared_bytes_of, shared_bytes, limit));
}

HOOK(cuOccupancyMaxPotentialBlockSizeWithFlags,
     (int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_bytes_of,
      size_t shared_bytes, int limit, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid_size, block_size, function, shared_bytes_of, shared_bytes, limit, flags));
}

HOOK(cuOccupancyAvailableDynamicSMemPerBlock,
     (size_t * shared_bytes, CUfunction function, int blocks, int block_size))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(
        real->cuOccupancyAvailableDynamicSMemPerBlock(shared_bytes, function, blocks, block_size));
}

HOOK(cuOccupancyMaxPotentialClusterSize,
     (int *cluster_size, CUfunction function, const CUlaunchConfig *config))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuOccupancyMaxPotentialClusterSize(cluster_size, function, config));
}

HOOK(cuOccupancyMaxActiveClusters,
     (int *clusters, CUfunction function, const CUlaunchConfig *config))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuOccupancyMaxActiveClusters(clusters, function, config));
}
