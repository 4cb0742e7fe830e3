/*
 * Memory that the pool does not serve: it counts against limits, and is told in the report.
 *
 * unpooled limit KIND     KIND stops at the limit of LIMIT bytes, three times in a row
 * unpooled sum            all kinds together stop there, and what the pool caches makes room
 * unpooled lifetimes      physical memory counts while a handle or a mapping is left
 * unpooled arrays         each array counts as what it takes
 * unpooled contexts       arrays and managed memory end with their context
 * unpooled graphs         what graphs take for their nodes counts from the launch on
 * unpooled failures       what the driver refuses is not counted
 * unpooled threads        16 threads take all kinds at once, and never more than the limit
 * unpooled group NUMBER   one of many processes that do so for a second; killed in the middle if
 * NUMBER is odd unpooled free           without a limit: each kind takes three times as much
 * unpooled faulty         calls of the driver's fail (SIMCUDA_FAULTS), and nothing stays counted
 * unpooled total MIB      the device has so much in all, as cuDeviceTotalMem and cuMemGetInfo tell
 * unpooled told           takes what the report is compared with, and prints that
 */
#include <stdatomic.h>
#include <sys/time.h>

#include "limited.h"

enum { CASE = 2 };

/* ---- cases ---- */

static void stop_at_limit(const struct kind *kind)
{
    union piece pieces[PIECES], more;
    for (int i = 0; i < PIECES; i++) {
        IS_LEFT(LIMIT - (unsigned)i * PIECE);
        CU(kind->take(&pieces[i]));
    }
    EQUAL(0, left());
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, kind->take(&more));
    for (int i = 0; i < PIECES; i++)
        CU(kind->free(&pieces[i]));
    CU(cuStreamSynchronize(stream));
    IS_LEFT(LIMIT);
}

static const char *argument;

static void limit(void)
{
    open_all();
    for (int i = 0; i < 3; i++)
        stop_at_limit(kind_named(argument));
}

static void sum(void)
{
    union piece pieces[PIECES], more;
    open_all();
    for (int first = 0; first < KINDS; first++) {
        for (int i = 0; i < PIECES; i++)
            CU(kinds[(first + i) % KINDS].take(&pieces[i]));
        for (int i = 0; i < KINDS; i++)
            ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, kinds[i].take(&more));
        for (int i = 0; i < PIECES; i++)
            CU(kinds[(first + i) % KINDS].free(&pieces[i]));
        CU(cuStreamSynchronize(stream));
        CU(cuCtxSynchronize());
    }
}

static CUdeviceptr reserve(size_t pieces)
{
    CUdeviceptr range;
    CU(cuMemAddressReserve(&range, pieces * PIECE, 0, 0, 0));
    return range;
}

static void mapped_outlives_its_handle(CUdeviceptr range)
{
    union piece piece;
    CU(take_physical(&piece));
    CU(cuMemMap(range, PIECE, 0, piece.handle, 0));
    CU(cuMemMap(range + PIECE, PIECE, 0, piece.handle, 0));
    CU(free_physical(&piece));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, free_physical(&piece));
    IS_LEFT(LIMIT - PIECE);
    CU(cuMemUnmap(range, PIECE));
    IS_LEFT(LIMIT - PIECE);
    CU(cuMemMap(range, PIECE, 0, piece.handle, 0));
    CU(cuMemUnmap(range, 2 * PIECE));
    IS_LEFT(LIMIT);
}

static void retained_needs_a_release_each(CUdeviceptr range)
{
    union piece piece, retained;
    CU(take_physical(&piece));
    CU(cuMemMap(range, PIECE, 0, piece.handle, 0));
    CU(cuMemRetainAllocationHandle(&retained.handle, (void *)(uintptr_t)(range + 4096)));
    CU(free_physical(&piece));
    CU(cuMemUnmap(range, PIECE));
    IS_LEFT(LIMIT - PIECE);
    CU(free_physical(&retained));
    IS_LEFT(LIMIT);
    ANSWERS(CUDA_ERROR_INVALID_VALUE,
            cuMemRetainAllocationHandle(&retained.handle, (void *)(uintptr_t)range));
}

static void many_are_unmapped_at_once(CUdeviceptr range)
{
    union piece one, other;
    CU(take_physical(&one));
    CU(take_physical(&other));
    CU(cuMemMap(range, PIECE, 0, one.handle, 0));
    CU(cuMemMap(range + PIECE, PIECE, 0, other.handle, 0));
    CU(cuMemMap(range + 3 * PIECE, PIECE, 0, one.handle, 0));
    CU(free_physical(&one));
    CU(free_physical(&other));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(range + PIECE / 2, 2 * PIECE));
    IS_LEFT(LIMIT - 2 * PIECE);
    CU(cuMemUnmap(range, 3 * PIECE));
    IS_LEFT(LIMIT - PIECE);
    CU(cuMemUnmap(range, 4 * PIECE));
    IS_LEFT(LIMIT);
}

static void lifetimes(void)
{
    open_all();
    CUdeviceptr range = reserve(4);
    for (int i = 0; i < 3; i++) {
        mapped_outlives_its_handle(range);
        retained_needs_a_release_each(range);
        many_are_unmapped_at_once(range);
    }
}

/* Small arrays share pages, and each counts as what the driver says of it. */
static void arrays(void)
{
    CUarray small, later, sparse;
    CUmipmappedArray none;
    CUDA_ARRAY3D_DESCRIPTOR tiny = shape;
    open_all();
    tiny.Width = tiny.Height = 64;
    CU(cuArray3DCreate_v2(&small, &tiny));
    unsigned long long taken = LIMIT - left();
    CHECK(taken >= 64 * 64 * 4 && taken <= MIB);
    /* No level is one. */
    CU(cuMipmappedArrayCreate(&none, &shape, 0));
    EQUAL(taken + PIECE, LIMIT - left());
    CU(cuMipmappedArrayDestroy(none));
    tiny.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    CU(cuArray3DCreate_v2(&later, &tiny));
    tiny.Flags = CUDA_ARRAY3D_SPARSE;
    CU(cuArray3DCreate_v2(&sparse, &tiny));
    EQUAL(taken, LIMIT - left());
    CU(cuArrayDestroy(later));
    CU(cuArrayDestroy(sparse));
    CU(cuArrayDestroy(small));
    IS_LEFT(LIMIT);
}

static void contexts(void)
{
    CUcontext first, second;
    union piece physical, array, mipmapped, managed, of_first;
    open_all();
    CU(cuCtxGetCurrent(&first));
    CU(take_array(&of_first));
    for (int i = 0; i < 3; i++) {
        CU(cuCtxCreate_v2(&second, 0, device));
        CU(take_physical(&physical));
        CU(take_array(&array));
        CU(take_mipmapped(&mipmapped));
        CU(take_managed(&managed));
        IS_LEFT(LIMIT - 5 * PIECE);
        CU(cuCtxDestroy_v2(second));
        CU(cuCtxSetCurrent(first));
        IS_LEFT(LIMIT - 2 * PIECE);
        CU(free_physical(&physical));
        IS_LEFT(LIMIT - PIECE);
    }
}

static void failures(void)
{
    union piece piece;
    CUDA_ARRAY3D_DESCRIPTOR bad = shape;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    open_all();
    bad.NumChannels = 3;
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate_v2(&piece.array, &bad));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate_v2(NULL, &shape));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate_v2(&piece.array, NULL));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(&piece.array, NULL));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&piece.address, PIECE, 77));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&piece.address, 0, CU_MEM_ATTACH_GLOBAL));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&piece.handle, PIECE + 1, &properties, 0));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(NULL, PIECE, &properties, 0));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&piece.handle, PIECE, NULL, 0));
    CHECK(cuArrayDestroy((CUarray)&piece) != CUDA_SUCCESS);
    CHECK(cuMemRelease((CUmemGenericAllocationHandle)(uintptr_t)&piece) != CUDA_SUCCESS);
    CHECK(cuMemUnmap(MIB, MIB) != CUDA_SUCCESS);
    IS_LEFT(LIMIT);
}

/* A call that fails is made again. */
#define IN_THE_END(call)                                                                           \
    do {                                                                                           \
        CUresult ended = CUDA_ERROR_UNKNOWN;                                                       \
        for (int tries = 0; tries < 3 && ended != CUDA_SUCCESS; tries++)                           \
            ended = (call);                                                                        \
        CU(ended);                                                                                 \
    } while (0)

static void map_and_unmap(CUdeviceptr range)
{
    union piece piece, retained;
    if (take_physical(&piece) != CUDA_SUCCESS)
        return;
    IN_THE_END(cuMemMap(range, PIECE, 0, piece.handle, 0));
    if (cuMemRetainAllocationHandle(&retained.handle, (void *)(uintptr_t)range) == CUDA_SUCCESS)
        IN_THE_END(free_physical(&retained));
    IS_LEFT(LIMIT - PIECE);
    IN_THE_END(cuMemUnmap(range, PIECE));
    IS_LEFT(LIMIT - PIECE);
    IN_THE_END(free_physical(&piece));
}

static void faulty(void)
{
    union piece piece;
    open_all();
    CUdeviceptr range = reserve(1);
    for (int i = 0; i < 3; i++) {
        map_and_unmap(range);
        for (int k = 0; k < KINDS; k++)
            if (kinds[k].take(&piece) == CUDA_SUCCESS)
                IN_THE_END(kinds[k].free(&piece));
        CU(cuStreamSynchronize(stream));
        IS_LEFT(LIMIT);
    }
}

static _Atomic unsigned long long held;

static void *take_and_free(void *number)
{
    union piece piece;
    unsigned seed = (unsigned)(uintptr_t)number;
    use_primary();
    for (int i = 0; i < 200; i++) {
        const struct kind *kind = &kinds[(unsigned)rand_r(&seed) % KINDS];
        CUresult result = kind->take(&piece);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            continue;
        CU(result);
        CHECK(atomic_fetch_add(&held, PIECE) + PIECE <= LIMIT);
        atomic_fetch_sub(&held, PIECE);
        CU(kind->free(&piece));
        if (kind->take == take_async)
            CU(cuStreamSynchronize(stream));
    }
    return NULL;
}

static void threads(void)
{
    pthread_t threads[THREADS];
    open_all();
    begin_threads(threads, take_and_free);
    end_threads(threads);
}

/* SIGALRM ends the process at whatever moment. */
static void group(void)
{
    enum { MOST = 3 };
    union piece pieces[MOST];
    const struct kind *of[MOST] = {NULL};
    unsigned seed = (unsigned)atoi(argument);
    struct itimerval timer = {.it_value.tv_usec = 100000 + (int)(seed * 53 % 80) * 10000};
    open_all();
    if (seed % 2)
        CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (double end = now_ms() + 1000; now_ms() < end;) {
        unsigned which = (unsigned)rand_r(&seed) % MOST;
        if (of[which] != NULL) {
            CU(of[which]->free(&pieces[which]));
            CU(cuStreamSynchronize(stream));
        }
        of[which] = &kinds[(unsigned)rand_r(&seed) % KINDS];
        CUresult result = of[which]->take(&pieces[which]);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            of[which] = NULL;
        else
            CU(result);
    }
}

static void take_three_times_as_much(void)
{
    union piece pieces[3 * PIECES];
    open_all();
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < 3 * PIECES; i++)
            CU(kinds[k].take(&pieces[i]));
        for (int i = 0; i < 3 * PIECES; i++)
            CU(kinds[k].free(&pieces[i]));
        CU(cuStreamSynchronize(stream));
        CU(cuCtxSynchronize());
        if (cudapool_trim)
            cudapool_trim();
    }
}

static void total(void)
{
    size_t available, all, told = (size_t)atoi(argument) * MIB;
    CU(cuInit(0));
    CU(cuDeviceTotalMem_v2(&all, 0));
    EQUAL(told, all);
    open_all();
    CU(cuMemGetInfo_v2(&available, &all));
    EQUAL(told, all);
    CHECK(available <= all);
    CU(cuMemGetInfo_v2(NULL, &all));
    EQUAL(told, all);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuDeviceTotalMem_v2(NULL, 0));
    ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&all, 77));
}

/* A graph has been launched that has allocated so much. */
struct launched {
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr address;
};

static struct launched launch(size_t bytes)
{
    struct launched made;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemAllocAsync(&made.address, bytes, stream));
    CU(cuStreamEndCapture(stream, &made.graph));
    CU(cuGraphInstantiateWithFlags(&made.executable, made.graph, 0));
    CU(cuGraphLaunch(made.executable, stream));
    CU(cuStreamSynchronize(stream));
    return made;
}

static void drop(const struct launched *made)
{
    CU(cuMemFreeAsync(made->address, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuGraphExecDestroy(made->executable));
    CU(cuGraphDestroy(made->graph));
}

static void told(void)
{
    union piece physical[5], array, managed;
    open_all();
    for (int i = 0; i < 5; i++)
        CU(take_physical(&physical[i]));
    for (int i = 0; i < 3; i++)
        CU(free_physical(&physical[i]));
    CU(take_array(&array));
    CU(take_managed(&managed));
    CU(free_plain(&managed));
    launch(PIECE);
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&managed.address, 2 * LIMIT, 1));
    printf("physical live %zu peak %zu refused 0\n", 2 * PIECE, 5 * PIECE);
    printf("arrays live %zu peak %zu refused 0\n", PIECE, PIECE);
    printf("managed live 0 peak %zu refused 1\n", PIECE);
    printf("graphs live %zu peak %zu refused 0\n", PIECE, PIECE);
}

/* What a graph has left behind makes room. */
static void take_the_whole_limit(void)
{
    union piece pieces[PIECES];
    for (int i = 0; i < PIECES; i++)
        CU(take_physical(&pieces[i]));
    for (int i = 0; i < PIECES; i++)
        CU(free_physical(&pieces[i]));
    IS_LEFT(LIMIT);
}

static void graphs(void)
{
    union piece pieces[PIECES], more;
    open_all();
    for (int i = 0; i < 2; i++) {
        struct launched made = launch(2 * PIECE);
        IS_LEFT(LIMIT - 2 * PIECE);
        for (int k = 0; k < PIECES - 2; k++)
            CU(take_physical(&pieces[k]));
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, take_physical(&more));
        for (int k = 0; k < PIECES - 2; k++)
            CU(free_physical(&pieces[k]));
        drop(&made);
        /* What the program trims is left again at once. */
        if (i == 1)
            CU(cuDeviceGraphMemTrim(device));
        if (i == 1)
            IS_LEFT(LIMIT);
        take_the_whole_limit();
        /* No launch is refused. All that the driver must give then is. */
        made = launch(LIMIT + PIECE);
        EQUAL(0, left());
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, take_plain(&more));
        drop(&made);
        take_the_whole_limit();
    }
}

static const struct test_case cases[] = {
    {"limit", limit},
    {"sum", sum},
    {"lifetimes", lifetimes},
    {"arrays", arrays},
    {"contexts", contexts},
    {"graphs", graphs},
    {"failures", failures},
    {"faulty", faulty},
    {"threads", threads},
    {"group", group},
    {"free", take_three_times_as_much},
    {"total", total},
    {"told", told},
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    argument = argc > CASE ? argv[CASE] : "";
    return run_case(argc, argv, cases);
}
