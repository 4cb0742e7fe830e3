/*
 * Calls that can run out of memory while the pool holds some: what is cached never makes one fail.
 *
 * "pool_room full NAME FILE" fills the device with cached blocks and makes the call, which succeeds
 * as it does without the pool. "pool_room faults NAME FILE" caches one block and makes the call,
 * which the environment has fail: exit status 0 if it succeeded after more than one try, 2 if it
 * answered out of memory, 3 if the driver does not have it, 4 if it was not tried again. FILE is a
 * module.
 */
#include "pool.h"

enum { NOT_THERE = 3, NOT_TRIED_AGAIN = 4, STILL_OUT_OF_MEMORY = 2 };

/* What the calls work on, made before memory is short. */
static struct {
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    CUgraph graph;
    CUgraphExec executable;
    CUstream stream;
    CUmemoryPool pool;
    CUcontext other_device;
    CUgreenCtx green;
    CUdevResourceDesc resources;
    CUdeviceptr block;
    const char *file;
} use;

static const CUDA_ARRAY_DESCRIPTOR plane = {1024, 1024, CU_AD_FORMAT_FLOAT, 1};
static const CUDA_ARRAY3D_DESCRIPTOR cube = {256, 256, 16, CU_AD_FORMAT_FLOAT, 1, 0};

static CUresult call_array(void)
{
    CUarray array;
    return cuArrayCreate_v2(&array, &plane);
}

static CUresult call_array3d(void)
{
    CUarray array;
    return cuArray3DCreate_v2(&array, &cube);
}

static CUresult call_mipmapped(void)
{
    CUmipmappedArray array;
    return cuMipmappedArrayCreate(&array, &cube, 1);
}

static CUresult call_create(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return cuMemCreate(&handle, 4 * MIB, &properties, 0);
}

static CUresult call_instantiate(void)
{
    CUgraphExec executable;
    return cuGraphInstantiate(&executable, use.graph, NULL, NULL, 0);
}

static CUresult call_instantiate_v2(void)
{
    CUgraphExec executable;
    return cuGraphInstantiate_v2(&executable, use.graph, NULL, NULL, 0);
}

static CUresult call_instantiate_flags(void)
{
    CUgraphExec executable;
    return cuGraphInstantiateWithFlags(&executable, use.graph, 0);
}

static CUresult call_instantiate_params(void)
{
    CUgraphExec executable;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {0};
    return cuGraphInstantiateWithParams(&executable, use.graph, &parameters);
}

static CUresult call_instantiate_params_ptsz(void)
{
    CUgraphExec executable;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {0};
    return cuGraphInstantiateWithParams_ptsz(&executable, use.graph, &parameters);
}

static unsigned long long no_time;
static void *arguments[] = {&no_time};
#define ONE 1, 1, 1, 1, 1, 1, 0

static CUresult call_launch_ex(void)
{
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, use.stream, NULL, 0};
    return cuLaunchKernelEx(&config, use.function, arguments, NULL);
}

static CUresult call_launch_ex_ptsz(void)
{
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, use.stream, NULL, 0};
    return cuLaunchKernelEx_ptsz(&config, use.function, arguments, NULL);
}

static const CUlaunchConfig one_thread = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
static const CUipcMemHandle nobodys;
static char page[4096] __attribute__((aligned(4096)));
static int number, other_number;
static CUdeviceptr address;
static CUmodule module;
static CUlibrary library;
static CUfunction function;
static CUstream stream;
static CUcontext context;
static CUgreenCtx green;
static void *host;
static size_t pitch, size;

/* How each call is made; one line for each, so that the list can be read as one. */
#define CALLS                                                                                      \
    CALL(cuMemAlloc_v2, cuMemAlloc_v2(&address, 4 * MIB))                                          \
    CALL(cuMemAllocPitch_v2, cuMemAllocPitch_v2(&address, &pitch, 4096, 1024, 4))                  \
    CALL(cuMemAllocManaged, cuMemAllocManaged(&address, 4 * MIB, CU_MEM_ATTACH_GLOBAL))            \
    CALL(cuMemHostAlloc, cuMemHostAlloc(&host, MIB, 0))                                            \
    CALL(cuMemAllocHost_v2, cuMemAllocHost_v2(&host, MIB))                                         \
    CALL(cuMemHostRegister, cuMemHostRegister(page, sizeof page, 0))                               \
    CALL(cuMemHostRegister_v2, cuMemHostRegister_v2(page, sizeof page, 0))                         \
    CALL(cuMulticastBindAddr, cuMulticastBindAddr(1, 0, use.block, MIB, 0))                        \
    CALL(cuMulticastBindAddr_v2, cuMulticastBindAddr_v2(1, 0, 0, use.block, MIB, 0))               \
    CALL(cuIpcOpenMemHandle, cuIpcOpenMemHandle(&address, nobodys, 1))                             \
    CALL(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle_v2(&address, nobodys, 1))                       \
    CALL(cuGraphicsMapResources, cuGraphicsMapResources(0, NULL, use.stream))                      \
    CALL(cuGraphicsMapResources_ptsz, cuGraphicsMapResources_ptsz(0, NULL, NULL))                  \
    CALL(cuImportExternalMemory, cuImportExternalMemory(NULL, NULL))                               \
    CALL(cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer(&address, NULL, NULL))   \
    CALL(cuExternalMemoryGetMappedMipmappedArray,                                                  \
         cuExternalMemoryGetMappedMipmappedArray(NULL, NULL, NULL))                                \
    CALL(cuArrayCreate_v2, call_array())                                                           \
    CALL(cuArray3DCreate_v2, call_array3d())                                                       \
    CALL(cuMipmappedArrayCreate, call_mipmapped())                                                 \
    CALL(cuMemCreate, call_create())                                                               \
    CALL(cuMemAllocAsync, cuMemAllocAsync(&address, 40 * MIB, use.stream))                         \
    CALL(cuMemAllocAsync_ptsz, cuMemAllocAsync_ptsz(&address, 40 * MIB, NULL))                     \
    CALL(cuMemAllocFromPoolAsync,                                                                  \
         cuMemAllocFromPoolAsync(&address, 40 * MIB, use.pool, use.stream))                        \
    CALL(cuMemAllocFromPoolAsync_ptsz,                                                             \
         cuMemAllocFromPoolAsync_ptsz(&address, 40 * MIB, use.pool, NULL))                         \
    CALL(cuModuleLoad, cuModuleLoad(&module, use.file))                                            \
    CALL(cuModuleLoadData, cuModuleLoadData(&module, KERNELS_PTX))                                 \
    CALL(cuModuleLoadDataEx, cuModuleLoadDataEx(&module, KERNELS_PTX, 0, NULL, NULL))              \
    CALL(cuModuleLoadFatBinary, cuModuleLoadFatBinary(&module, KERNELS_PTX))                       \
    CALL(cuModuleGetFunction, cuModuleGetFunction(&function, use.module, "fill"))                  \
    CALL(cuLibraryLoadData,                                                                        \
         cuLibraryLoadData(&library, KERNELS_PTX, NULL, NULL, 0, NULL, NULL, 0))                   \
    CALL(cuLibraryLoadFromFile,                                                                    \
         cuLibraryLoadFromFile(&library, use.file, NULL, NULL, 0, NULL, NULL, 0))                  \
    CALL(cuLibraryGetModule, cuLibraryGetModule(&module, use.library))                             \
    CALL(cuKernelGetFunction, cuKernelGetFunction(&function, use.kernel))                          \
    CALL(cuModuleGetGlobal_v2, cuModuleGetGlobal_v2(&address, &size, use.module, "variable"))      \
    CALL(cuLibraryGetGlobal, cuLibraryGetGlobal(&address, &size, use.library, "variable"))         \
    CALL(cuLibraryGetManaged, cuLibraryGetManaged(&address, &size, use.library, "variable"))       \
    CALL(cuLibraryGetUnifiedFunction, cuLibraryGetUnifiedFunction(&host, use.library, "name"))     \
    CALL(cuKernelGetAttribute, cuKernelGetAttribute(&number, 0, use.kernel, 0))                    \
    CALL(cuKernelSetAttribute, cuKernelSetAttribute(8, 0, use.kernel, 0))                          \
    CALL(cuFuncLoad, cuFuncLoad(use.function))                                                     \
    CALL(cuFuncGetAttribute, cuFuncGetAttribute(&number, 0, use.function))                         \
    CALL(cuFuncSetAttribute, cuFuncSetAttribute(use.function, 8, 0))                               \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                              \
         cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, use.function, 64, 0))                \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,                                     \
         cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&number, use.function, 64, 0, 0))    \
    CALL(cuOccupancyMaxPotentialBlockSize,                                                         \
         cuOccupancyMaxPotentialBlockSize(&number, &other_number, use.function, NULL, 0, 0))       \
    CALL(cuOccupancyMaxPotentialBlockSizeWithFlags,                                                \
         cuOccupancyMaxPotentialBlockSizeWithFlags(&number, &other_number, use.function, NULL, 0,  \
                                                   0, 0))                                          \
    CALL(cuOccupancyAvailableDynamicSMemPerBlock,                                                  \
         cuOccupancyAvailableDynamicSMemPerBlock(&size, use.function, 1, 64))                      \
    CALL(cuOccupancyMaxPotentialClusterSize,                                                       \
         cuOccupancyMaxPotentialClusterSize(&number, use.function, &one_thread))                   \
    CALL(cuOccupancyMaxActiveClusters,                                                             \
         cuOccupancyMaxActiveClusters(&number, use.function, &one_thread))                         \
    CALL(cuCtxSetLimit, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB))                         \
    CALL(cuStreamCreate, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))                          \
    CALL(cuStreamCreateWithPriority, cuStreamCreateWithPriority(&stream, 0, 0))                    \
    CALL(cuGreenCtxStreamCreate,                                                                   \
         cuGreenCtxStreamCreate(&stream, use.green, CU_STREAM_NON_BLOCKING, 0))                    \
    CALL(cuGraphInstantiate, call_instantiate())                                                   \
    CALL(cuGraphInstantiate_v2, call_instantiate_v2())                                             \
    CALL(cuGraphInstantiateWithFlags, call_instantiate_flags())                                    \
    CALL(cuGraphInstantiateWithParams, call_instantiate_params())                                  \
    CALL(cuGraphInstantiateWithParams_ptsz, call_instantiate_params_ptsz())                        \
    CALL(cuGraphUpload, cuGraphUpload(use.executable, use.stream))                                 \
    CALL(cuGraphUpload_ptsz, cuGraphUpload_ptsz(use.executable, NULL))                             \
    CALL(cuGraphLaunch, cuGraphLaunch(use.executable, use.stream))                                 \
    CALL(cuGraphLaunch_ptsz, cuGraphLaunch_ptsz(use.executable, NULL))                             \
    CALL(cuLaunchKernel, cuLaunchKernel(use.function, ONE, use.stream, arguments, NULL))           \
    CALL(cuLaunchKernel_ptsz, cuLaunchKernel_ptsz(use.function, ONE, NULL, arguments, NULL))       \
    CALL(cuLaunchKernelEx, call_launch_ex())                                                       \
    CALL(cuLaunchKernelEx_ptsz, call_launch_ex_ptsz())                                             \
    CALL(cuLaunchCooperativeKernel,                                                                \
         cuLaunchCooperativeKernel(use.function, ONE, use.stream, arguments))                      \
    CALL(cuLaunchCooperativeKernel_ptsz,                                                           \
         cuLaunchCooperativeKernel_ptsz(use.function, ONE, NULL, arguments))                       \
    CALL(cuCtxCreate, cuCtxCreate(&context, 0, 0))                                                 \
    CALL(cuCtxCreate_v2, cuCtxCreate_v2(&context, 0, 0))                                           \
    CALL(cuCtxCreate_v3, cuCtxCreate_v3(&context, NULL, 0, 0, 0))                                  \
    CALL(cuCtxCreate_v4, cuCtxCreate_v4(&context, NULL, 0, 0))                                     \
    CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&context, 0))                          \
    CALL(cuGreenCtxCreate,                                                                         \
         cuGreenCtxCreate(&green, use.resources, 0, CU_GREEN_CTX_DEFAULT_STREAM))                  \
    CALL(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess(use.other_device, 0))

/* Declared nowhere else and not implemented by the simulated driver: they only are to be tried
 * again. */
#define BARE_CALLS                                                                                 \
    BARE(cuLaunch)                                                                                 \
    BARE(cuLaunchGrid)                                                                             \
    BARE(cuLaunchGridAsync)                                                                        \
    BARE(cuLaunchCooperativeKernelMultiDevice)                                                     \
    BARE(cuGLCtxCreate)                                                                            \
    BARE(cuGLCtxCreate_v2)

static CUresult call_bare(const char *name)
{
    CUresult (*bare)(void *, void *, void *) =
        (CUresult(*)(void *, void *, void *))function_of(RTLD_DEFAULT, name);
    return bare(NULL, NULL, NULL);
}

static CUresult make_call(const char *name)
{
#define CALL(called, call)                                                                         \
    if (strcmp(name, #called) == 0)                                                                \
        return call;
#define BARE(called)                                                                               \
    if (strcmp(name, #called) == 0)                                                                \
        return call_bare(name);
    CALLS
    BARE_CALLS
#undef CALL
#undef BARE
    FAIL("no call \"%s\"", name);
}

static void list(void)
{
#define CALL(called, call) puts(#called);
#define BARE(called)       puts(#called);
    CALLS
    BARE_CALLS
}

/* --- what a call works on
 * ------------------------------------------------------------------------*/

static bool is(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static void prepare_graph(void)
{
    CUgraphNode node;
    CU(cuGraphCreate(&use.graph, 0));
    CU(cuGraphAddEmptyNode(&node, use.graph, NULL, 0));
}

static void prepare_green(void)
{
    CUdevResource resource;
    CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CU(cuDevResourceGenerateDesc(&use.resources, &resource, 1));
}

/* By other functions than the one to be called. */
static void prepare(const char *name)
{
    if (is(name, "cuStreamCreate") || is(name, "cuGreen"))
        use.stream = NULL;
    else
        CU(cuStreamCreate(&use.stream, CU_STREAM_NON_BLOCKING));
    if (is(name, "cuModuleGet"))
        CU(cuModuleLoadData(&use.module, KERNELS_PTX));
    if (is(name, "cuLaunchKernel") || is(name, "cuLaunchCooperativeKernel") || is(name, "cuFunc") ||
        is(name, "cuOccupancy")) {
        CU(cuModuleLoadData(&use.module, KERNELS_PTX));
        CU(cuModuleGetFunction(&use.function, use.module, "spin"));
    }
    if (is(name, "cuLibraryGet") || is(name, "cuKernel")) {
        CU(cuLibraryLoadData(&use.library, KERNELS_PTX, NULL, NULL, 0, NULL, NULL, 0));
        CU(cuLibraryGetKernel(&use.kernel, use.library, "fill"));
    }
    if (is(name, "cuMulticast"))
        use.block = take(MIB);
    if (is(name, "cuGraph"))
        prepare_graph();
    if (is(name, "cuGraphUpload") || is(name, "cuGraphLaunch"))
        CU(cuGraphInstantiateWithFlags(&use.executable, use.graph, 0));
    if (is(name, "cuMemAllocFromPool"))
        CU(cuDeviceGetDefaultMemPool(&use.pool, 0));
    if (is(name, "cuGreen"))
        prepare_green();
    if (is(name, "cuGreenCtxStream"))
        CU(cuGreenCtxCreate(&use.green, use.resources, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}

static void open_device(const char *name)
{
    CUcontext own;
    CU(cuInit(0));
    if (is(name, "cuDevicePrimary")) {
        CU(cuCtxCreate_v2(&own, 0, 0));
        return;
    }
    CU(cuDevicePrimaryCtxRetain(&own, 0));
    CU(cuCtxSetCurrent(own));
    if (is(name, "cuCtxEnablePeer")) {
        CU(cuDevicePrimaryCtxRetain(&use.other_device, 1));
        CU(cuCtxSetCurrent(own));
    }
}

/* --- memory is short
 * -----------------------------------------------------------------------------*/

/* The whole device in free blocks that are kept even when it is full. */
static void fill_with_cached(void)
{
    CUdeviceptr blocks[512];
    int count = 0;
    while (count < 512 && cuMemAlloc_v2(&blocks[count], MIB) == CUDA_SUCCESS)
        count++;
    CHECK(count > 10 && count < 512);
    for (int i = 0; i < count; i++)
        CU(cuMemFree_v2(blocks[i]));
    CU(cuCtxSynchronize());
    if (has_pool())
        EQUAL((uint64_t)count * MIB, pool_bytes().cached + pool_bytes().pending);
}

/* What the driver answers where there is memory. */
static CUresult plain_answer(const char *name)
{
    bool variable = strcmp(name, "cuModuleGetGlobal_v2") == 0 ||
                    strcmp(name, "cuLibraryGetGlobal") == 0 ||
                    strcmp(name, "cuLibraryGetManaged") == 0;
    return variable ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

static int full(const char *name)
{
    CUresult result = make_call(name);
    if (result != plain_answer(name))
        FAIL("%s answers %u", name, result);
    return 0;
}

/* What the pool asks the driver for in this call. */
static const char *asked_for(const char *name)
{
    bool stream_ordered = strncmp(name, "cuMemAllocAsync", 15) == 0 ||
                          strncmp(name, "cuMemAllocFromPoolAsync", 23) == 0;
    return stream_ordered && has_pool() ? "cuMemAllocFromPoolAsync" : name;
}

/* Something of that memory is cached. For pinned memory it is the machine's, by the other call. */
static void leave_cached(const char *name)
{
    void *block;
    if (is(name, "cuMemHostAlloc"))
        CU(cuMemAllocHost_v2(&block, 2 * MIB));
    else if (is(name, "cuMemAllocHost"))
        CU(cuMemHostAlloc(&block, 2 * MIB, 0));
    else {
        CU(cuMemFree_v2(take(2 * MIB)));
        return;
    }
    CU(cuMemFreeHost(block));
}

static int faults(const char *name)
{
    const char *asked = asked_for(name);
    leave_cached(name);
    CU(cuCtxSynchronize());
    /* The allocation above was a call of it too; the fault is for the next one. */
    uint64_t before = simcuda_calls(asked);
    CUresult result = make_call(name);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return STILL_OUT_OF_MEMORY;
    if (simcuda_calls(asked) < before + 2)
        return NOT_TRIED_AGAIN;
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return NOT_THERE;
    if (result != plain_answer(name))
        FAIL("%s answers %u", name, result);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        list();
        return 0;
    }
    CHECK(argc == 4);
    use.file = argv[3];
    open_device(argv[2]);
    prepare(argv[2]);
    if (strcmp(argv[1], "full") == 0) {
        fill_with_cached();
        return full(argv[2]);
    }
    return faults(argv[2]);
}
