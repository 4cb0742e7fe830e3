/*
 * Programs that use the driver wrongly. "hostile pointers|sizes|nulls|handles" make such calls and
 * print every answer, so that two runs, without and with the pool, can be compared line by line.
 * "hostile double_frees|destroyed_streams|destroyed_contexts|destroyed_primary" do it from many
 * threads at once, and hold for both.
 */
#include "pool.h"

enum { BYTES = 1000, THREADS = 8, CAPTURED = 4096 };

static void say_answer(const char *call, const char *with, CUresult answer)
{
    printf("%s(%s): %u\n", call, with, answer);
}

/* --- pointers ----------------------------------------------------------------------------------*/

struct pointer {
    const char *name;
    CUdeviceptr value;
};

static struct {
    CUcontext context;
    CUstream stream;
    CUmemoryPool pool;
    CUdeviceptr live, stale, stale_page, stale_async, managed;
    void *host, *stale_host, *large_host, *stale_large_host;
} have;

static void set_up(void)
{
    have.context = open_primary();
    have.stream = new_stream();
    CU(cuDeviceGetDefaultMemPool(&have.pool, 0));
    have.live = take(BYTES);
    have.stale = take(BYTES);
    have.stale_page = take(4 * MIB);
    CU(cuMemAllocAsync(&have.stale_async, BYTES, have.stream));
    CU(cuMemAllocManaged(&have.managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemHostAlloc(&have.host, BYTES, 0));
    CU(cuMemHostAlloc(&have.stale_host, BYTES, 0));
    CU(cuMemHostAlloc(&have.large_host, 4 * MIB, 0));
    CU(cuMemHostAlloc(&have.stale_large_host, 6 * MIB, 0));
    CU(cuMemFreeHost(have.stale_host));
    CU(cuMemFreeHost(have.stale_large_host));
    CU(cuMemsetD8_v2(have.live, 0x5a, BYTES));
    CU(cuMemFree_v2(have.stale));
    CU(cuMemFree_v2(have.stale_page));
    CU(cuMemFreeAsync(have.stale_async, have.stream));
    CU(cuCtxSynchronize());
}

/* Nothing that was called has harmed what was right. */
static void live_memory_is_unharmed(void)
{
    unsigned char bytes[BYTES];
    CU(cuMemcpyDtoH_v2(bytes, have.live, BYTES));
    for (int i = 0; i < BYTES; i++)
        CHECK(bytes[i] == 0x5a);
    CU(cuMemFree_v2(have.live));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(have.live));
    CUdeviceptr next = take(BYTES);
    CU(cuMemsetD8_v2(next, 1, BYTES));
    CU(cuMemFree_v2(next));
}

static void ask_about(const struct pointer *pointer)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    char line[128];
    CUresult answer = cuMemGetAddressRange_v2(&base, &bytes, pointer->value);
    snprintf(line, sizeof line, "%s -> %lld, %zu", pointer->name,
             answer == CUDA_SUCCESS ? (long long)(pointer->value - base) : 0, bytes);
    say_answer("cuMemGetAddressRange", line, answer);
    for (CUpointer_attribute attribute = 0; attribute < 24; attribute++) {
        char value[256] = {0};
        snprintf(line, sizeof line, "%u, %s", attribute, pointer->name);
        say_answer("cuPointerGetAttribute", line,
                   cuPointerGetAttribute(value, attribute, pointer->value));
        void *values[] = {value};
        say_answer("cuPointerGetAttributes", line,
                   cuPointerGetAttributes(1, &attribute, values, pointer->value));
    }
}

static void change(const struct pointer *pointer)
{
    CUipcMemHandle handle;
    int fd = -1, flag = 1;
    say_answer("cuPointerSetAttribute", pointer->name,
               cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer->value));
    say_answer("cuPointerSetAttribute, unknown", pointer->name,
               cuPointerSetAttribute(&flag, 9999, pointer->value));
    say_answer("cuIpcGetMemHandle", pointer->name, cuIpcGetMemHandle(&handle, pointer->value));
    say_answer("cuMemGetHandleForAddressRange", pointer->name,
               cuMemGetHandleForAddressRange(&fd, pointer->value, 65536, 1, 0));
    say_answer("cuMemGetHandleForAddressRange, all", pointer->name,
               cuMemGetHandleForAddressRange(&fd, pointer->value, SIZE_MAX, 1, 0));
}

static void ask_of_host(const struct pointer *pointer)
{
    CUdeviceptr address = 17;
    unsigned int flags = 77;
    void *host = (void *)(uintptr_t)pointer->value;
    char line[128];
    CUresult answer = cuMemHostGetDevicePointer_v2(&address, host, 0);
    snprintf(line, sizeof line, "%s -> %s", pointer->name,
             address == pointer->value ? "the same"
             : address == 17           ? "untouched"
                                       : "another");
    say_answer("cuMemHostGetDevicePointer", line, answer);
    answer = cuMemHostGetFlags(&flags, host);
    snprintf(line, sizeof line, "%s -> %u", pointer->name, flags);
    say_answer("cuMemHostGetFlags", line, answer);
    if (pointer->value != (uintptr_t)have.large_host + 2 * MIB)
        say_answer("cuMemHostUnregister", pointer->name, cuMemHostUnregister(host));
}

static void free_wrongly(const struct pointer *pointer)
{
    say_answer("cuMemFree", pointer->name, cuMemFree_v2(pointer->value));
    say_answer("cuMemFreeAsync", pointer->name, cuMemFreeAsync(pointer->value, have.stream));
    say_answer("cuMemFreeAsync, legacy", pointer->name, cuMemFreeAsync(pointer->value, NULL));
    say_answer("cuMemFreeAsync_ptsz", pointer->name, cuMemFreeAsync_ptsz(pointer->value, NULL));
}

static void pointers(void)
{
    int on_the_stack = 0;
    set_up();
    /* Offsets that lie in no neighbour, wherever the driver puts one: small blocks are 1 KiB apart.
     */
    const struct pointer all[] = {
        {"1", 1},
        {"255", 255},
        {"256", 256},
        {"4096", 4096},
        {"2^40", (CUdeviceptr)1 << 40},
        {"2^47", (CUdeviceptr)1 << 47},
        {"2^48 - 1", ((CUdeviceptr)1 << 48) - 1},
        {"2^63", (CUdeviceptr)1 << 63},
        {"2^64 - 256", UINT64_MAX - 255},
        {"2^64 - 1", UINT64_MAX},
        {"the stack", (uintptr_t)&on_the_stack},
        {"code", (uintptr_t)&pointers},
        {"live + 1", have.live + 1},
        {"live + 255", have.live + 255},
        {"live + 256", have.live + 256},
        {"live's last byte", have.live + BYTES - 1},
        {"live's end", have.live + BYTES},
        {"managed + 1", have.managed + 1},
        {"pinned + 1", (uintptr_t)have.host + 1},
        {"pinned", (uintptr_t)have.host},
        {"pinned's end", (uintptr_t)have.host + BYTES},
        {"large pinned", (uintptr_t)have.large_host},
        {"large pinned + 2 MiB", (uintptr_t)have.large_host + 2 * MIB},
        {"large pinned's end", (uintptr_t)have.large_host + 4 * MIB},
        {"stale pinned", (uintptr_t)have.stale_host},
        {"stale pinned + 1", (uintptr_t)have.stale_host + 1},
        {"stale large pinned", (uintptr_t)have.stale_large_host},
        {"stale large pinned + 2 MiB", (uintptr_t)have.stale_large_host + 2 * MIB},
        {"stale", have.stale},
        {"stale + 1", have.stale + 1},
        {"stale page", have.stale_page},
        {"stale page + 2 MiB", have.stale_page + 2 * MIB},
        {"stale page's last byte", have.stale_page + 4 * MIB - 1},
        {"stale async", have.stale_async},
        {"stale async + 1", have.stale_async + 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ask_about(&all[i]);
        change(&all[i]);
        free_wrongly(&all[i]);
        ask_of_host(&all[i]);
        if (all[i].value != (uintptr_t)have.host && all[i].value != (uintptr_t)have.large_host)
            say_answer("cuMemFreeHost", all[i].name,
                       cuMemFreeHost((void *)(uintptr_t)all[i].value));
    }
    /* What the program pins itself, inside of what the driver has pinned, and twice. */
    say_answer("cuMemHostRegister", "pinned", cuMemHostRegister_v2(have.host, 4096, 0));
    say_answer("cuMemHostRegister", "large pinned",
               cuMemHostRegister_v2(have.large_host, 4 * MIB, 0));
    say_answer("cuMemHostRegister", "large pinned + 2 MiB",
               cuMemHostRegister_v2((char *)have.large_host + 2 * MIB, MIB, 0));
    CU(cuMemFreeHost(have.large_host));
    /* These are pinned memory's own business. */
    CU(cuMemFreeHost(have.host));
    CU(cuMemFree_v2(have.managed));
    live_memory_is_unharmed();
}

/* --- sizes -------------------------------------------------------------------------------------*/

static const size_t sizes[] = {
    0,
    1,
    511,
    512,
    513,
    ((size_t)1 << 20) - 1,
    ((size_t)1 << 20) + 1,
    ((size_t)1 << 31) - 1,
    (size_t)1 << 31,
    ((size_t)1 << 32) - 1,
    (size_t)1 << 32,
    ((size_t)1 << 32) + 1,
    (size_t)1 << 47,
    (size_t)1 << 48,
    ((size_t)1 << 63) - 1,
    (size_t)1 << 63,
    ((size_t)1 << 63) + 1,
    SIZE_MAX - 2 * MIB,
    SIZE_MAX - 511,
    SIZE_MAX - 1,
    SIZE_MAX,
};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* An address that was given must be asked about and freed; one that was not must be untouched. */
static void end_allocation(const char *call, size_t bytes, CUdeviceptr address, CUresult answer)
{
    CUdeviceptr base;
    size_t found = 0;
    printf("%s(%zu): %u\n", call, bytes, answer);
    if (answer != CUDA_SUCCESS) {
        printf("  the address is %s\n", address == 17 ? "untouched" : "written");
        return;
    }
    CUresult range = cuMemGetAddressRange_v2(&base, &found, address);
    printf("  range: %u, %zu bytes; free: %u\n", range, found, cuMemFree_v2(address));
}

static void sizes_of_addresses(size_t bytes)
{
    CUdeviceptr address = 17;
    CUresult answer = cuMemAlloc_v2(&address, bytes);
    end_allocation("cuMemAlloc", bytes, address, answer);
    address = 17;
    answer = cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
    end_allocation("cuMemAllocManaged", bytes, address, answer);
    address = 17;
    answer = cuMemAllocAsync(&address, bytes, have.stream);
    /* Nothing may be asked of 0 bytes. */
    printf("cuMemAllocAsync(%zu): %u\n", bytes, answer);
    if (answer == CUDA_SUCCESS)
        printf("  free: %u\n", cuMemFreeAsync(address, have.stream));
    answer = cuMemAllocFromPoolAsync(&address, bytes, have.pool, have.stream);
    printf("cuMemAllocFromPoolAsync(%zu): %u\n", bytes, answer);
    if (answer == CUDA_SUCCESS)
        printf("  free: %u\n", cuMemFreeAsync(address, have.stream));
    CU(cuStreamSynchronize(have.stream));
}

static void sizes_of_others(size_t bytes)
{
    void *host = NULL;
    char line[64];
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    const CUDA_ARRAY_DESCRIPTOR plane = {bytes, bytes, CU_AD_FORMAT_FLOAT, 4};
    const CUDA_ARRAY3D_DESCRIPTOR cube = {bytes, bytes, bytes, CU_AD_FORMAT_FLOAT, 4, 0};
    CUarray array;
    CUmipmappedArray mipmapped;
    snprintf(line, sizeof line, "%zu", bytes);
    /* Pinned memory is the machine's: so much of it that it certainly fails, or little. */
    if (bytes < 2 * MIB || bytes > (size_t)1 << 47) {
        CUresult answer = cuMemHostAlloc(&host, bytes, 0);
        say_answer("cuMemHostAlloc", line, answer);
        if (answer == CUDA_SUCCESS)
            CU(cuMemFreeHost(host));
        answer = cuMemAllocHost_v2(&host, bytes);
        say_answer("cuMemAllocHost", line, answer);
        if (answer == CUDA_SUCCESS)
            CU(cuMemFreeHost(host));
    }
    CUresult answer = cuMemCreate(&handle, bytes, &properties, 0);
    say_answer("cuMemCreate", line, answer);
    if (answer == CUDA_SUCCESS)
        CU(cuMemRelease(handle));
    if (bytes <= 1 || bytes > ((size_t)1 << 32)) {
        say_answer("cuArrayCreate", line, cuArrayCreate_v2(&array, &plane));
        say_answer("cuArray3DCreate", line, cuArray3DCreate_v2(&array, &cube));
        say_answer("cuMipmappedArrayCreate", line,
                   cuMipmappedArrayCreate(&mipmapped, &cube, (unsigned int)bytes));
    }
    say_answer("cuCtxSetLimit", line, cuCtxSetLimit(2, bytes));
    say_answer("cuCtxSetLimit, unknown", line, cuCtxSetLimit(9999, bytes));
}

static void sizes_of_pitch(size_t width, size_t height)
{
    static const unsigned int elements[] = {0, 1, 3, 4, 8, 16, 17, UINT32_MAX};
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
        CUdeviceptr address = 17;
        size_t pitch = 17;
        CUresult answer = cuMemAllocPitch_v2(&address, &pitch, width, height, elements[i]);
        printf("cuMemAllocPitch(%zu, %zu, %u): %u\n", width, height, elements[i], answer);
        if (answer != CUDA_SUCCESS)
            continue;
        CHECK(pitch >= width && (height == 0 || pitch <= SIZE_MAX / height));
        /* The rows are all there: the last byte of the last one can be written. */
        CU(cuMemsetD8_v2(address + pitch * (height - 1) + width - 1, 1, 1));
        printf("  pitch %zu, free: %u\n", pitch, cuMemFree_v2(address));
    }
}

static void sizes_case(void)
{
    set_up();
    /* Twice: the second time, the pool may have a block of the size. */
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < SIZES; i++) {
            sizes_of_addresses(sizes[i]);
            sizes_of_others(sizes[i]);
            for (size_t j = 0; j < SIZES; j++)
                sizes_of_pitch(sizes[i], sizes[j]);
        }
    }
    live_memory_is_unharmed();
}

/* --- NULL --------------------------------------------------------------------------------------*/

/* Every replaced function with nothing but zeros. All parameters are pointers and integers, which
 * both machines pass in the same places. */
typedef CUresult any_function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                              uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static const char *const replaced[] = {
#define ENTRY_POINT(name, parameters) #name,
#include "../../shim/entry_points.def"
#undef ENTRY_POINT
};

static void all_zero(void *driver)
{
    for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++) {
        any_function *function = (any_function *)dlsym(driver, replaced[i]);
        if (function == NULL) {
            printf("%s is not there\n", replaced[i]);
            continue;
        }
        say_answer(replaced[i], "0 ...", function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    }
}

static void nulls_of_memory(void)
{
    CUdeviceptr address = 0, block = take(BYTES);
    size_t size = 0;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    unsigned int type = 0;
    void *values[] = {&type}, *nothing[] = {NULL};
    CUmemGenericAllocationHandle handle;
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR plane = {16, 16, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR cube = {16, 16, 16, CU_AD_FORMAT_FLOAT, 1, 0};
#define SAY(call) say_answer("", #call, call)
    SAY(cuMemAlloc_v2(NULL, BYTES));
    SAY(cuMemAlloc_v2(NULL, SIZE_MAX));
    SAY(cuMemAllocPitch_v2(NULL, &size, BYTES, 4, 4));
    SAY(cuMemAllocPitch_v2(&address, NULL, BYTES, 4, 4));
    SAY(cuMemAllocPitch_v2(NULL, NULL, BYTES, 4, 4));
    SAY(cuMemGetInfo_v2(NULL, NULL));
    SAY(cuMemGetInfo_v2(&size, NULL));
    SAY(cuMemGetInfo_v2(NULL, &size));
    SAY(cuMemGetAddressRange_v2(NULL, NULL, block));
    SAY(cuMemGetAddressRange_v2(NULL, NULL, 1));
    SAY(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
    SAY(cuPointerGetAttributes(1, NULL, values, block));
    SAY(cuPointerGetAttributes(1, &attribute, NULL, block));
    SAY(cuPointerGetAttributes(1, &attribute, nothing, block));
    SAY(cuPointerGetAttributes(0, &attribute, values, block));
    SAY(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    SAY(cuIpcGetMemHandle(NULL, block));
    SAY(cuMemGetHandleForAddressRange(NULL, block, BYTES, 1, 0));
    SAY(cuMemAllocAsync(NULL, BYTES, NULL));
    SAY(cuMemAllocFromPoolAsync(NULL, BYTES, have.pool, NULL));
    SAY(cuMemAllocFromPoolAsync(&address, BYTES, NULL, NULL));
    SAY(cuMemAllocManaged(NULL, BYTES, CU_MEM_ATTACH_GLOBAL));
    SAY(cuMemHostAlloc(NULL, BYTES, 0));
    SAY(cuMemAllocHost_v2(NULL, BYTES));
    SAY(cuArrayCreate_v2(NULL, &plane));
    SAY(cuArrayCreate_v2(&array, NULL));
    SAY(cuArray3DCreate_v2(NULL, &cube));
    SAY(cuArray3DCreate_v2(&array, NULL));
    SAY(cuMemCreate(NULL, 2 * MIB, NULL, 0));
    SAY(cuMemCreate(&handle, 2 * MIB, NULL, 0));
#undef SAY
}

static void nulls(void)
{
    void *driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    set_up();
    nulls_of_memory();
    live_memory_is_unharmed();
    all_zero(driver);
    /* That has reset the device; it works again. */
    CU(cuDevicePrimaryCtxRetain(&have.context, 0));
    CU(cuCtxSetCurrent(have.context));
    CU(cuMemFree_v2(take(BYTES)));
}

/* --- handles -----------------------------------------------------------------------------------*/

static CUgraphExec make_graph(CUstream stream)
{
    CUgraph graph;
    CUgraphExec executable;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    return executable;
}

static void wrong_stream(const char *name, CUstream stream)
{
    CUdeviceptr address = 0, block = take(BYTES);
    CUgraph graph = NULL;
    struct kernels kernels;
    load_kernels(&kernels);
    unsigned long long ns = 0;
    void *parameters[] = {&ns};
    say_answer("cuStreamBeginCapture", name,
               cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    say_answer("cuStreamEndCapture", name, cuStreamEndCapture(stream, &graph));
    say_answer("cuMemAllocAsync", name, cuMemAllocAsync(&address, BYTES, stream));
    say_answer("cuMemFreeAsync", name, cuMemFreeAsync(block, stream));
    say_answer("cuMemFree", "of the same", cuMemFree_v2(block));
    say_answer("cuLaunchKernel", name,
               cuLaunchKernel(kernels.spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    say_answer("cuGraphLaunch", name, cuGraphLaunch(make_graph(have.stream), stream));
    say_answer("cuStreamDestroy", name, cuStreamDestroy_v2(stream));
}

static void wrong_context(const char *name, CUcontext context)
{
    say_answer("cuCtxSynchronize_v2", name, cuCtxSynchronize_v2(context));
    say_answer("cuCtxEnablePeerAccess", name, cuCtxEnablePeerAccess(context, 0));
    say_answer("cuCtxWaitEvent", name, cuCtxWaitEvent(context, NULL));
    say_answer("cuCtxDetach", name, cuCtxDetach(context));
    say_answer("cuCtxDestroy", name, cuCtxDestroy_v2(context));
}

/* The pool makes streams of its own, at times that depend on how busy the machine is, and the
 * driver gives the handle out first that was destroyed last: these are before this one. */
static CUstream new_stale_stream(void)
{
    CUstream stale = new_stream(), later[4];
    for (unsigned int i = 0; i < 4; i++)
        later[i] = new_stream();
    CU(cuStreamDestroy_v2(stale));
    for (unsigned int i = 0; i < 4; i++)
        CU(cuStreamDestroy_v2(later[i]));
    return stale;
}

static void handles(void)
{
    CUcontext stale_context;
    set_up();
    CUstream stale_stream = new_stale_stream(), capturing = new_stream();
    CU(cuCtxCreate_v2(&stale_context, 0, 0));
    CUdeviceptr of_stale_context = take(BYTES);
    CU(cuCtxDestroy_v2(stale_context));
    CU(cuCtxSetCurrent(have.context));
    wrong_stream("stale", stale_stream);
    wrong_stream("wild", (CUstream)0x1234560);
    wrong_stream("another kind", (CUstream)have.context);
    wrong_context("stale", stale_context);
    wrong_context("wild", (CUcontext)0x1234560);
    wrong_context("another kind", (CUcontext)have.stream);
    struct pointer pointer = {"of a context that was destroyed", of_stale_context};
    ask_about(&pointer);
    free_wrongly(&pointer);
    say_answer("cuGraphLaunch", "stale", cuGraphLaunch((CUgraphExec)0x1234560, have.stream));
    say_answer("cuGreenCtxDestroy", "wild", cuGreenCtxDestroy((CUgreenCtx)0x1234560));
    say_answer("cuDevicePrimaryCtxRelease", "7", cuDevicePrimaryCtxRelease_v2(7));
    say_answer("cuDevicePrimaryCtxReset", "-1", cuDevicePrimaryCtxReset_v2(-1));
    CUcontext unused;
    say_answer("cuDevicePrimaryCtxRetain", "7", cuDevicePrimaryCtxRetain(&unused, 7));
    say_answer("cuCtxCreate", "-1", cuCtxCreate_v2(&unused, 0, -1));
    /* A capture that is begun twice, ended on another stream, destroyed while it goes on. */
    CUgraph graph = NULL;
    say_answer("begin", "", cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    say_answer("begin", "again",
               cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    say_answer("begin", "no such mode", cuStreamBeginCapture_v2(have.stream, 77));
    say_answer("end", "another", cuStreamEndCapture(have.stream, &graph));
    say_answer("cuMemFree", "stale, in a capture", cuMemFree_v2(have.stale));
    say_answer("cuMemFree", "interior, in a capture", cuMemFree_v2(have.live + 1));
    CU(cuStreamDestroy_v2(capturing));
    live_memory_is_unharmed();
}

/* --- double frees ------------------------------------------------------------------------------*/

static struct {
    pthread_barrier_t barrier;
    CUdeviceptr block;
    CUcontext context;
    _Atomic unsigned int freed, refused;
} race;

enum { ROUNDS = 300 };

static void *free_it_too(void *argument)
{
    size_t index = (uintptr_t)argument;
    CU(cuCtxSetCurrent(race.context));
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&race.barrier);
        CUresult answer = index % 4 == 3 ? cuMemFreeAsync(race.block, CU_STREAM_PER_THREAD)
                                         : cuMemFree_v2(race.block);
        if (answer == CUDA_SUCCESS)
            race.freed++;
        else if (answer == CUDA_ERROR_INVALID_VALUE)
            race.refused++;
        else
            FAIL("a second free answers %u", answer);
        pthread_barrier_wait(&race.barrier);
    }
    return NULL;
}

static void start_threads(pthread_t threads[THREADS], void *(*body)(void *))
{
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
}

static void join_threads(const pthread_t threads[THREADS])
{
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Of all that free a block at once, one has freed it. */
static void double_frees(void)
{
    static const size_t taken[] = {BYTES, 4 * MIB, 65 * MIB};
    pthread_t threads[THREADS];
    race.context = open_primary();
    CHECK(pthread_barrier_init(&race.barrier, NULL, THREADS + 1) == 0);
    start_threads(threads, free_it_too);
    for (unsigned int round = 0; round < ROUNDS; round++) {
        race.block = take(taken[round % 3]);
        pthread_barrier_wait(&race.barrier);
        pthread_barrier_wait(&race.barrier);
        EQUAL(round + 1, race.freed);
        EQUAL((round + 1) * (THREADS - 1), race.refused);
    }
    join_threads(threads);
}

/* --- destruction under load --------------------------------------------------------------------*/

static struct {
    CUcontext context;
    _Atomic(CUstream) stream;
    _Atomic bool stop, alone;
    _Atomic unsigned long calls, successes;
    struct kernels kernels;
} load;

/* What a call may say whose stream or context is being destroyed. */
static bool may_be_gone(CUresult answer)
{
    load.calls++;
    if (answer == CUDA_SUCCESS)
        load.successes++;
    return answer == CUDA_SUCCESS || answer == CUDA_ERROR_INVALID_VALUE ||
           answer == CUDA_ERROR_INVALID_HANDLE || answer == CUDA_ERROR_INVALID_CONTEXT ||
           answer == CUDA_ERROR_CONTEXT_IS_DESTROYED || answer == CUDA_ERROR_DEINITIALIZED;
}

#define MAY_BE_GONE(call)                                                                          \
    do {                                                                                           \
        CUresult gone_answer = (call);                                                             \
        if (!may_be_gone(gone_answer))                                                             \
            FAIL("%s answers %u", #call, gone_answer);                                             \
    } while (0)

/* Allocates, works on it, frees and synchronises, on a stream that may go at any time. */
static void use_stream_once(size_t index)
{
    static const size_t bytes[] = {BYTES, 64 << 10, 3 * MIB};
    CUdeviceptr block, ordered;
    CUstream stream = load.stream;
    unsigned long long ns = 20000;
    void *parameters[] = {&ns};
    if (cuMemAlloc_v2(&block, bytes[index % 3]) != CUDA_SUCCESS)
        FAIL("no memory");
    MAY_BE_GONE(cuMemsetD8Async(block, (unsigned char)index, BYTES, stream));
    MAY_BE_GONE(cuLaunchKernel(load.kernels.spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    CUresult answer = cuMemAllocAsync(&ordered, BYTES, stream);
    MAY_BE_GONE(answer);
    if (answer == CUDA_SUCCESS && cuMemFreeAsync(ordered, stream) != CUDA_SUCCESS)
        CU(cuMemFree_v2(ordered));
    /* A block whose free was refused for its stream is still the program's. */
    if (index % 2 == 0 || cuMemFreeAsync(block, stream) != CUDA_SUCCESS)
        CU(cuMemFree_v2(block));
    if (index % 4 == 1)
        MAY_BE_GONE(cuStreamSynchronize(stream));
    if (index % 4 == 2)
        CU(cuCtxSynchronize());
}

static void *use_streams(void *argument)
{
    CU(cuCtxSetCurrent(load.context));
    for (size_t i = (uintptr_t)argument; !load.stop; i++)
        use_stream_once(i);
    return NULL;
}

static size_t free_memory(void)
{
    size_t free, total;
    CU(cuCtxSynchronize());
    CU(cuMemGetInfo_v2(&free, &total));
    return free;
}

static void destroyed_streams(void)
{
    pthread_t threads[THREADS];
    load.context = open_primary();
    load_kernels(&load.kernels);
    spin(&load.kernels, NULL, 0);
    load.stream = new_stream();
    size_t before = free_memory();
    start_threads(threads, use_streams);
    for (int i = 0; i < 300; i++) {
        CUstream old = load.stream;
        load.stream = new_stream();
        sleep_ms(1);
        CU(cuStreamDestroy_v2(old));
    }
    load.stop = true;
    join_threads(threads);
    CU(cuStreamDestroy_v2(load.stream));
    CU(cuCtxSynchronize());
    if (has_pool()) {
        EQUAL(0, pool_bytes().live);
        cudapool_trim();
    }
    EQUAL(before, free_memory());
    CHECK(load.successes > 1000);
}

/* In a context that may be destroyed in any call: nothing is left to give back then. */
static void *use_context(void *argument)
{
    for (size_t i = (uintptr_t)argument; !load.stop; i++) {
        CUdeviceptr block;
        CUresult answer = cuCtxSetCurrent(load.context);
        MAY_BE_GONE(answer);
        if (answer != CUDA_SUCCESS)
            continue;
        answer = cuMemAlloc_v2(&block, i % 3 == 0 ? 3 * MIB : BYTES);
        MAY_BE_GONE(answer);
        if (answer != CUDA_SUCCESS)
            continue;
        MAY_BE_GONE(cuMemsetD8Async(block, 1, BYTES, CU_STREAM_PER_THREAD));
        if (i % 4 == 0)
            MAY_BE_GONE(cuCtxSynchronize());
        if (i % 4 == 1)
            MAY_BE_GONE(cuMemFreeAsync(block, CU_STREAM_PER_THREAD));
        else
            MAY_BE_GONE(cuMemFree_v2(block));
    }
    return NULL;
}

static void check_context_works(void)
{
    struct kernels kernels;
    load_kernels(&kernels);
    CUdeviceptr block = take(MIB), counter = new_counter();
    fill(&kernels, NULL, block, MIB / 4, 7);
    spin_then_verify(&kernels, NULL, 1000, block, MIB / 4, 7, counter);
    EQUAL(0, read_counter(counter));
    CU(cuMemFree_v2(block));
    CU(cuMemFree_v2(counter));
}

/* The context is in full use: some milliseconds, or more where the machine is busy. */
static void wait_for_successes(void)
{
    enum { SUCCESSES = 60, MOST_MS = 1000 };
    unsigned long before = load.successes;
    sleep_ms(10);
    for (int i = 0; i < MOST_MS && load.successes < before + SUCCESSES; i++)
        sleep_ms(1);
}

static void destroy_rounds(bool primary)
{
    pthread_t threads[THREADS];
    CU(cuInit(0));
    for (int round = 0; round < 20; round++) {
        load.stop = false;
        if (primary)
            CU(cuDevicePrimaryCtxRetain(&load.context, 0));
        else
            CU(cuCtxCreate_v2(&load.context, 0, 0));
        start_threads(threads, use_context);
        wait_for_successes();
        if (primary)
            CU(round % 2 == 0 ? cuDevicePrimaryCtxRelease_v2(0) : cuDevicePrimaryCtxReset_v2(0));
        else
            CU(cuCtxDestroy_v2(load.context));
        sleep_ms(1);
        load.stop = true;
        join_threads(threads);
    }
    CHECK(load.successes > 1000);
    open_primary();
    check_context_works();
}

static void destroyed_contexts(void)
{
    destroy_rounds(false);
}

static void destroyed_primary(void)
{
    destroy_rounds(true);
}

static const struct test_case cases[] = {
    {"pointers", pointers},
    {"sizes", sizes_case},
    {"nulls", nulls},
    {"handles", handles},
    {"double_frees", double_frees},
    {"destroyed_streams", destroyed_streams},
    {"destroyed_contexts", destroyed_contexts},
    {"destroyed_primary", destroyed_primary},
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_case(argc, argv, cases);
}
