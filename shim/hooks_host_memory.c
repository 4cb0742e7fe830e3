/*
 * Calls that take memory from the driver and that the pool does not serve: they pass through, and
 * are tried again when memory is short and the pool has some to give back.
 */
#include "hooks.h"

HOOK(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuMemAllocManaged(address, bytes, flags)), address);
}

HOOK(cuMemHostAlloc, (void **host, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemHostAlloc(host, bytes, flags));
}

HOOK(cuMemAllocHost_v2, (void **host, size_t bytes))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemAllocHost_v2(host, bytes));
}

HOOK(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuArrayCreate_v2(array, descriptor));
}

HOOK(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuArray3DCreate_v2(array, descriptor));
}

HOOK(cuMipmappedArrayCreate,
     (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMipmappedArrayCreate(array, descriptor, levels));
}

HOOK(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
                   const CUmemAllocationProp *properties, unsigned long long flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemCreate(handle, bytes, properties, flags));
}

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

HOOK(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuKernelGetFunction(function, kernel));
}

HOOK(cuCtxSetLimit, (CUlimit limit, size_t value))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuCtxSetLimit(limit, value));
}
