/*
 * Modules, libraries and functions; launches.
 *
 * Any image will do. A module takes device memory, as it does on a real device, so that loading one
 * can run out of it.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

enum { MODULE_BYTES = 64 * 1024, MULTIPROCESSORS = 132, SHARED_BYTES = 48 * 1024 };

struct module {
    CUmodule handle;
    struct context *context;
    struct allocation *code;
    struct function *functions;
    struct module *next;
};

struct library {
    CUlibrary handle;
    CUmodule module; /* in the context that first asked for it */
    uint64_t context_id;
};

static CUresult load(struct context *context, CUmodule *handle)
{
    uint64_t bytes = sim.settings.overhead > MODULE_BYTES ? sim.settings.overhead : MODULE_BYTES;
    struct allocation code = {
        .size = bytes, .kind = MEMORY_INTERNAL, .context = context, .device = context->device};
    struct module *module;
    if (!extent_take(context->device, context, bytes, &code.extent))
        return CUDA_ERROR_OUT_OF_MEMORY;
    code.base = code.extent.base;
    module = calloc(1, sizeof *module);
    if (module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->context = context;
    module->code = allocation_add(&code);
    module->next = context->modules;
    context->modules = module;
    module->handle = handle_new(KIND_MODULE, module);
    *handle = module->handle;
    return CUDA_SUCCESS;
}

static void unload(struct module *module)
{
    struct module **link = &module->context->modules;
    while (*link != module)
        link = &(*link)->next;
    *link = module->next;
    while (module->functions != NULL) {
        struct function *function = module->functions;
        module->functions = function->next;
        handle_free(KIND_FUNCTION, function->handle);
        free(function);
    }
    if (module->code != NULL)
        allocation_free(module->code);
    handle_free(KIND_MODULE, module->handle);
    free(module);
}

void modules_free(struct context *context)
{
    while (context->modules != NULL)
        unload(context->modules);
}

static CUresult load_image(struct call *call, CUmodule *module, const void *image)
{
    if (module == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return load(call->context->root, module);
}

DRIVER_CALL(cuModuleLoadData, NEEDS_CONTEXT, (CUmodule * module, const void *image),
            (module, image))
{
    return load_image(call, module, image);
}

DRIVER_CALL(cuModuleLoadDataEx, NEEDS_CONTEXT,
            (CUmodule * module, const void *image, unsigned int count, CUjit_option *options,
             void **values),
            (module, image, count, options, values))
{
    if (count > 0 && (options == NULL || values == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return load_image(call, module, image);
}

DRIVER_CALL(cuModuleLoadFatBinary, NEEDS_CONTEXT, (CUmodule * module, const void *image),
            (module, image))
{
    return load_image(call, module, image);
}

DRIVER_CALL(cuModuleLoad, NEEDS_CONTEXT, (CUmodule * module, const char *file), (module, file))
{
    if (module == NULL || file == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (access(file, R_OK) != 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    return load(call->context->root, module);
}

/* Waits for the context, as the driver does before it takes code away. */
DRIVER_CALL(cuModuleUnload, NEEDS_CONTEXT, (CUmodule handle), (handle))
{
    struct module *module = handle_object(KIND_MODULE, handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    context_wait_for_work(module->context);
    if (handle_object(KIND_MODULE, handle) != module)
        return CUDA_ERROR_INVALID_HANDLE;
    unload(module);
    return CUDA_SUCCESS;
}

static CUresult get_function(struct module *module, const char *name, CUfunction *handle)
{
    const struct kernel *kernel = kernel_named(name);
    struct function *function = module->functions;
    if (kernel == NULL)
        return CUDA_ERROR_NOT_FOUND;
    while (function != NULL && function->kernel != kernel)
        function = function->next;
    if (function == NULL) {
        function = calloc(1, sizeof *function);
        if (function == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        function->module = module;
        function->kernel = kernel;
        function->next = module->functions;
        module->functions = function;
        function->handle = handle_new(KIND_FUNCTION, function);
    }
    *handle = function->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuModuleGetFunction, NEEDS_CONTEXT,
            (CUfunction * function, CUmodule handle, const char *name), (function, handle, name))
{
    struct module *module = handle_object(KIND_MODULE, handle);
    if (function == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return module != NULL ? get_function(module, name, function) : CUDA_ERROR_INVALID_HANDLE;
}

/* The known kernels come without variables. */
static CUresult get_global(const void *owner, const char *name)
{
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return owner != NULL ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuModuleGetGlobal_v2, NEEDS_CONTEXT,
            (CUdeviceptr * address, size_t *bytes, CUmodule handle, const char *name),
            (address, bytes, handle, name))
{
    return get_global(handle_object(KIND_MODULE, handle), name);
}

DRIVER_CALL(cuModuleGetLoadingMode, LIGHT, (CUmoduleLoadingMode * mode), (mode))
{
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = 2;
    return CUDA_SUCCESS;
}

/* --- libraries ---------------------------------------------------------------------------------*/

static CUresult load_library(CUlibrary *handle)
{
    struct library *library = calloc(1, sizeof *library);
    if (library == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    library->handle = handle_new(KIND_LIBRARY, library);
    *handle = library->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuLibraryLoadData, 0,
            (CUlibrary * library, const void *code, CUjit_option *jit_options, void **jit_values,
             unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count),
            (library, code, jit_options, jit_values, jit_count, options, values, count))
{
    if (library == NULL || code == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return load_library(library);
}

DRIVER_CALL(cuLibraryLoadFromFile, 0,
            (CUlibrary * library, const char *file, CUjit_option *jit_options, void **jit_values,
             unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count),
            (library, file, jit_options, jit_values, jit_count, options, values, count))
{
    if (library == NULL || file == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return access(file, R_OK) == 0 ? load_library(library) : CUDA_ERROR_FILE_NOT_FOUND;
}

DRIVER_CALL(cuLibraryUnload, 0, (CUlibrary handle), (handle))
{
    struct library *library = handle_object(KIND_LIBRARY, handle);
    struct module *module;
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    module = handle_object(KIND_MODULE, library->module);
    if (module != NULL && module->context->id == library->context_id)
        unload(module);
    handle_free(KIND_LIBRARY, handle);
    free(library);
    return CUDA_SUCCESS;
}

/* The library's module in the current context, loaded when it is first asked for there. */
static CUresult library_module(struct call *call, struct library *library, CUmodule *module)
{
    struct context *context = call->context->root;
    CUresult result = CUDA_SUCCESS;
    if (library->module == NULL || library->context_id != context->id) {
        result = load(context, &library->module);
        library->context_id = context->id;
    }
    *module = library->module;
    return result;
}

DRIVER_CALL(cuLibraryGetModule, NEEDS_CONTEXT, (CUmodule * module, CUlibrary handle),
            (module, handle))
{
    struct library *library = handle_object(KIND_LIBRARY, handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return library != NULL ? library_module(call, library, module) : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuLibraryGetGlobal, NEEDS_CONTEXT,
            (CUdeviceptr * address, size_t *bytes, CUlibrary handle, const char *name),
            (address, bytes, handle, name))
{
    return get_global(handle_object(KIND_LIBRARY, handle), name);
}

DRIVER_CALL(cuLibraryGetManaged, NEEDS_CONTEXT,
            (CUdeviceptr * address, size_t *bytes, CUlibrary handle, const char *name),
            (address, bytes, handle, name))
{
    return get_global(handle_object(KIND_LIBRARY, handle), name);
}

/* A kernel's handle is its function's. */
DRIVER_CALL(cuLibraryGetKernel, NEEDS_CONTEXT,
            (CUkernel * kernel, CUlibrary handle, const char *name), (kernel, handle, name))
{
    struct library *library = handle_object(KIND_LIBRARY, handle);
    CUmodule module;
    CUfunction function;
    CUresult result;
    if (kernel == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    result = library_module(call, library, &module);
    if (result == CUDA_SUCCESS)
        result = get_function(handle_object(KIND_MODULE, module), name, &function);
    if (result == CUDA_SUCCESS)
        *kernel = (CUkernel)(void *)function;
    return result;
}

DRIVER_CALL(cuKernelGetFunction, NEEDS_CONTEXT, (CUfunction * function, CUkernel kernel),
            (function, kernel))
{
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle_object(KIND_FUNCTION, kernel) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

/* --- functions ---------------------------------------------------------------------------------*/

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *function)
{
    if (value == NULL || attribute > 15)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle_object(KIND_FUNCTION, function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == 0 ? 1024 : 0;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(const void *function, CUfunction_attribute attribute, int value)
{
    if (attribute > 15 || value < -1)
        return CUDA_ERROR_INVALID_VALUE;
    return handle_object(KIND_FUNCTION, function) != NULL ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuFuncGetAttribute, LIGHT,
            (int *value, CUfunction_attribute attribute, CUfunction function),
            (value, attribute, function))
{
    return get_attribute(value, attribute, function);
}

DRIVER_CALL(cuFuncSetAttribute, LIGHT,
            (CUfunction function, CUfunction_attribute attribute, int value),
            (function, attribute, value))
{
    return set_attribute(function, attribute, value);
}

DRIVER_CALL(cuKernelGetAttribute, LIGHT,
            (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device),
            (value, attribute, kernel, device))
{
    return device_of(device) != NULL ? get_attribute(value, attribute, kernel)
                                     : CUDA_ERROR_INVALID_DEVICE;
}

DRIVER_CALL(cuKernelSetAttribute, LIGHT,
            (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device),
            (attribute, value, kernel, device))
{
    return device_of(device) != NULL ? set_attribute(kernel, attribute, value)
                                     : CUDA_ERROR_INVALID_DEVICE;
}

/* Code is loaded with its module. */
DRIVER_CALL(cuFuncLoad, NEEDS_CONTEXT, (CUfunction function), (function))
{
    return handle_object(KIND_FUNCTION, function) != NULL ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuFuncSetCacheConfig, LIGHT, (CUfunction function, CUfunc_cache config),
            (function, config))
{
    if (config > 3)
        return CUDA_ERROR_INVALID_VALUE;
    return handle_object(KIND_FUNCTION, function) != NULL ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_CALL(cuFuncGetModule, LIGHT, (CUmodule * module, CUfunction handle), (module, handle))
{
    const struct function *function = handle_object(KIND_FUNCTION, handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module->handle;
    return CUDA_SUCCESS;
}

static CUresult occupancy(int *blocks, CUfunction function, int block_size)
{
    if (blocks == NULL || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle_object(KIND_FUNCTION, function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *blocks = block_size > 1024 ? 0 : 2048 / block_size;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, LIGHT,
            (int *blocks, CUfunction function, int block_size, size_t shared_bytes),
            (blocks, function, block_size, shared_bytes))
{
    return occupancy(blocks, function, block_size);
}

DRIVER_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, LIGHT,
            (int *blocks, CUfunction function, int block_size, size_t shared_bytes,
             unsigned int flags),
            (blocks, function, block_size, shared_bytes, flags))
{
    return flags <= 1 ? occupancy(blocks, function, block_size) : CUDA_ERROR_INVALID_VALUE;
}

/* The known kernels run best in the largest blocks. */
static CUresult potential_block(int *grid_size, int *block_size, CUfunction function, int limit)
{
    if (grid_size == NULL || block_size == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle_object(KIND_FUNCTION, function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *block_size = limit > 0 && limit < 1024 ? limit : 1024;
    *grid_size = 2048 / *block_size * MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuOccupancyMaxPotentialBlockSize, LIGHT,
            (int *grid_size, int *block_size, CUfunction function,
             CUoccupancyB2DSize shared_bytes_of, size_t shared_bytes, int limit),
            (grid_size, block_size, function, shared_bytes_of, shared_bytes, limit))
{
    return potential_block(grid_size, block_size, function, limit);
}

DRIVER_CALL(cuOccupancyMaxPotentialBlockSizeWithFlags, LIGHT,
            (int *grid_size, int *block_size, CUfunction function,
             CUoccupancyB2DSize shared_bytes_of, size_t shared_bytes, int limit,
             unsigned int flags),
            (grid_size, block_size, function, shared_bytes_of, shared_bytes, limit, flags))
{
    return flags <= 1 ? potential_block(grid_size, block_size, function, limit)
                      : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL(cuOccupancyAvailableDynamicSMemPerBlock, LIGHT,
            (size_t * shared_bytes, CUfunction function, int blocks, int block_size),
            (shared_bytes, function, blocks, block_size))
{
    if (shared_bytes == NULL || blocks <= 0 || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle_object(KIND_FUNCTION, function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *shared_bytes = (size_t)SHARED_BYTES / (unsigned int)blocks;
    return CUDA_SUCCESS;
}

static CUresult clusters(int *count, CUfunction function, const CUlaunchConfig *config, int answer)
{
    if (count == NULL || config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle_object(KIND_FUNCTION, function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *count = answer;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuOccupancyMaxPotentialClusterSize, LIGHT,
            (int *cluster_size, CUfunction function, const CUlaunchConfig *config),
            (cluster_size, function, config))
{
    return clusters(cluster_size, function, config, 8);
}

DRIVER_CALL(cuOccupancyMaxActiveClusters, LIGHT,
            (int *count, CUfunction function, const CUlaunchConfig *config),
            (count, function, config))
{
    return clusters(count, function, config, MULTIPROCESSORS);
}

/* --- launches ----------------------------------------------------------------------------------*/

/* How many threads a launch has, or 0 where it has too few or too many. */
static uint64_t threads_of(const CUlaunchConfig *config)
{
    uint64_t block = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    uint64_t grid = (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ;
    return block <= 1024 ? block * grid : 0;
}

static bool starts_early(const CUlaunchConfig *config)
{
    for (unsigned int i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return config->attrs[i].value.programmaticStreamSerializationAllowed != 0;
    return false;
}

static CUresult launch(struct call *call, const CUlaunchConfig *config, CUfunction handle,
                       void **parameters, void **extra)
{
    const struct function *function = handle_object(KIND_FUNCTION, handle);
    struct work work;
    CUresult result;
    struct stream *stream = stream_of(call, config->hStream, &result);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream == NULL)
        return result;
    if (threads_of(config) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (function->module->context != stream->context->root)
        return CUDA_ERROR_INVALID_HANDLE;
    result = kernel_work(function->kernel, parameters, extra, &work);
    work.early = starts_early(config);
    return result == CUDA_SUCCESS ? stream_add(stream, &work, NULL) : result;
}

DRIVER_CALL_PT(cuLaunchKernel, _ptsz, NEEDS_CONTEXT,
               (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                unsigned int block_x, unsigned int block_y, unsigned int block_z,
                unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),
               (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                parameters, extra))
{
    CUlaunchConfig config = {.gridDimX = grid_x,
                             .gridDimY = grid_y,
                             .gridDimZ = grid_z,
                             .blockDimX = block_x,
                             .blockDimY = block_y,
                             .blockDimZ = block_z,
                             .sharedMemBytes = shared_bytes,
                             .hStream = stream};
    call_note(call, "stream=%p", (void *)stream);
    return launch(call, &config, function, parameters, extra);
}

DRIVER_CALL_PT(cuLaunchCooperativeKernel, _ptsz, NEEDS_CONTEXT,
               (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                unsigned int block_x, unsigned int block_y, unsigned int block_z,
                unsigned int shared_bytes, CUstream stream, void **parameters),
               (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                parameters))
{
    CUlaunchConfig config = {.gridDimX = grid_x,
                             .gridDimY = grid_y,
                             .gridDimZ = grid_z,
                             .blockDimX = block_x,
                             .blockDimY = block_y,
                             .blockDimZ = block_z,
                             .sharedMemBytes = shared_bytes,
                             .hStream = stream};
    return launch(call, &config, function, parameters, NULL);
}

/* None of the known kernels lets a dependent one start early, so that attribute changes nothing but
 * what the race detector finds. */
DRIVER_CALL_PT(cuLaunchKernelEx, _ptsz, NEEDS_CONTEXT,
               (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
               (config, function, parameters, extra))
{
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return launch(call, config, function, parameters, extra);
}
