/*
 * Calls that are out of memory beside work that does not end: what they may not wait for they are
 * refused for at once, however often, and what they may wait for they wait for once.
 *
 * usage: refusals CASE [CALL]   exits 0, or says what is wrong and exits 1
 *        refusals obey          a process of a case: it reads orders and answers each with a number
 *
 * The device has 1 GiB. A wait takes 10 s, so a few seconds tell many refusals from one wait.
 */
#include "obeying.h"

enum { TRIES = 20, AT_ONCE_MS = 8000, ONE_WAIT_MS = 18000 };

static struct kernels kernels;
static CUstream stream, other_stream;

/* --- the calls ---------------------------------------------------------------------------------*/

static CUresult by_alloc(size_t mib)
{
    return (CUresult)allocate(mib);
}

static CUresult by_pitch(size_t mib)
{
    CUdeviceptr address;
    size_t pitch;
    return cuMemAllocPitch_v2(&address, &pitch, MIB, mib, 4);
}

static CUresult by_async(size_t mib)
{
    CUdeviceptr address;
    return cuMemAllocAsync(&address, mib * MIB, other_stream);
}

static CUresult by_pool(size_t mib)
{
    CUmemoryPool pool;
    CUdeviceptr address;
    CU(cuDeviceGetMemPool(&pool, 0));
    return cuMemAllocFromPoolAsync(&address, mib * MIB, pool, other_stream);
}

static CUresult by_create(size_t mib)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return cuMemCreate(&handle, mib / 2 * 2 * MIB, &properties, 0);
}

static CUresult by_array(size_t mib)
{
    return (CUresult)allocate_array(mib);
}

static CUresult by_array3d(size_t mib)
{
    CUDA_ARRAY3D_DESCRIPTOR cube = {1024, 256, mib, CU_AD_FORMAT_FLOAT, 1, 0};
    CUarray array;
    return cuArray3DCreate_v2(&array, &cube);
}

static CUresult by_mipmapped(size_t mib)
{
    CUDA_ARRAY3D_DESCRIPTOR cube = {1024, 256, mib, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray array;
    return cuMipmappedArrayCreate(&array, &cube, 1);
}

/* The size of what these take is not known. */
static CUresult by_context(size_t unused)
{
    CUcontext made;
    (void)unused;
    return cuCtxCreate_v2(&made, 0, 0);
}

static CUresult by_module(size_t unused)
{
    CUmodule module;
    (void)unused;
    return cuModuleLoadData(&module, KERNELS_PTX);
}

static const struct way {
    const char *name;
    CUresult (*take)(size_t mib);
} ways[] = {
    {"alloc", by_alloc},
    {"pitch", by_pitch},
    {"async", by_async},
    {"pool", by_pool},
    {"create", by_create},
    {"array", by_array},
    {"array3d", by_array3d},
    {"context", by_context},
    {"module", by_module},
    {"mipmapped", by_mipmapped},
    {NULL, NULL},
};

static const struct way *way = ways;

static void choose_way(const char *name)
{
    for (way = ways; way->name != NULL && strcmp(way->name, name) != 0; way++)
        continue;
    CHECK(way->name != NULL);
}

static void is_refused(size_t mib, double most_ms)
{
    double start = now_ms();
    for (int i = 0; i < TRIES; i++)
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, way->take(mib));
    double took = now_ms() - start;
    if (took > most_ms)
        FAIL("%d refusals take %.0f ms, not %.0f", TRIES, took, most_ms);
}

/* --- one process -------------------------------------------------------------------------------*/

static void furnish(void)
{
    open_device();
    load_kernels(&kernels);
    stream = new_stream();
    other_stream = new_stream();
}

static size_t left_mib(void)
{
    size_t left, total;
    CU(cuMemGetInfo_v2(&left, &total));
    return left / MIB;
}

/* In a stream's order, behind work that does not end. */
static struct gate leave_in_order(size_t mib)
{
    CUdeviceptr block = take_on(stream, mib * MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    return gate;
}

static void freed_in_order(void)
{
    furnish();
    take(128 * MIB);
    size_t left = left_mib();
    struct gate gate = leave_in_order(left / 4);
    /* More than is left without it, and with it. */
    is_refused(left - 2, AT_ONCE_MS);
    is_refused(left + 64, AT_ONCE_MS);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* The plain free has no fence: so nobody knows whether the work behind the large block came before
 * it, and the driver's free has waited for that. One call finds out. */
static void freed_in_order_after_a_plain_free(void)
{
    furnish();
    CUdeviceptr small = take(64 << 10), block = take_on(stream, 256 * MIB);
    CU(cuMemFree_v2(small));
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeAsync(block, stream));
    is_refused(left_mib() - 2, ONE_WAIT_MS);
    choose_way("alloc");
    is_refused(left_mib() - 2, AT_ONCE_MS);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* But a plain free that came after would have waited for the work, and the memory been back. */
static void freed_in_order_before_a_plain_free(void)
{
    furnish();
    CUdeviceptr small = take(64 << 10), block = take_on(stream, 512 * MIB);
    spin(&kernels, stream, 300000000);
    CU(cuMemFreeAsync(block, stream));
    CU(cuMemFree_v2(small));
    CU(way->take(768));
    CU(cuCtxSynchronize());
}

/* The driver's plain free of such memory does not wait either. */
static void stream_ordered_freed_plainly(void)
{
    furnish();
    CUdeviceptr small = take(64 << 10), block = take_on(stream, 512 * MIB);
    spin(&kernels, stream, 300000000);
    CU(cuMemFree_v2(block));
    CU(cuMemFree_v2(small));
    CU(way->take(768));
    CU(cuCtxSynchronize());
}

/* The driver counts managed memory as taken, and takes the room for other memory. */
static void beside_managed_memory(void)
{
    furnish();
    CUdeviceptr managed, block = take(40 * MIB);
    CU(cuMemAllocManaged(&managed, 600 * MIB, CU_MEM_ATTACH_GLOBAL));
    spin(&kernels, stream, 300000000);
    CU(cuMemFree_v2(block));
    CU(way->take(1000));
    CU(cuCtxSynchronize());
}

/* Memory that is clean goes back on a stream which is behind the pool's barrier as well: a plain
 * free has waited for what that waits for. */
static void behind_the_pools_barrier(void)
{
    furnish();
    CUdeviceptr clean = take(200 * MIB), block = take(64 * MIB);
    CU(cuMemFree_v2(clean));
    CU(cuCtxSynchronize());
    spin(&kernels, stream, 300000000);
    CU(cuMemFree_v2(block));
    EQUAL(block, take(64 * MIB));
    CU(way->take(900));
    CU(cuCtxSynchronize());
}

/* Freed plainly behind work that does not end: so little that the free does not wait. */
static struct gate leave_pending(size_t mib)
{
    CUdeviceptr block = take(mib * MIB);
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFree_v2(block));
    return gate;
}

static void never_enough(void)
{
    furnish();
    take(128 * MIB);
    size_t left = left_mib();
    struct gate gate = leave_pending(32);
    is_refused(left + 64, AT_ONCE_MS);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* It may be enough, and is waited for once, by whichever call. */
static void enough_but_never_over(void)
{
    furnish();
    size_t left = left_mib();
    struct gate gate = leave_pending(32);
    is_refused(left - 4, ONE_WAIT_MS);
    choose_way("alloc");
    is_refused(left - 4, AT_ONCE_MS);
    open_gate(gate);
    CU(cuCtxSynchronize());
    CU(way->take(left - 4));
}

static void enough_and_over_soon(void)
{
    furnish();
    size_t left = left_mib();
    CUdeviceptr block = take(32 * MIB);
    spin(&kernels, stream, 300000000);
    CU(cuMemFree_v2(block));
    CU(way->take(left - 4));
    CU(cuCtxSynchronize());
}

/* Calls that need more than is left take whatever size they take: SIMCUDA_OVERHEAD. */
static void of_unknown_size(void)
{
    furnish();
    struct gate gate = leave_pending(16);
    while (by_alloc(8) == CUDA_SUCCESS && left_mib() > 100)
        continue;
    is_refused(0, ONE_WAIT_MS);
    is_refused(0, AT_ONCE_MS);
    open_gate(gate);
    CU(cuCtxSynchronize());
}

/* Pinned memory: what is cached cannot go back beside work. The machine has 64 MiB for it. */
static void pinned(void)
{
    void *block, *none;
    furnish();
    CU(cuMemHostAlloc(&block, 32 * MIB, 0));
    struct gate gate = close_gate(&kernels, stream);
    CU(cuMemFreeHost(block));
    double start = now_ms();
    for (int i = 0; i < TRIES; i++)
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&none, 48 * MIB, 0));
    CHECK(now_ms() - start < ONE_WAIT_MS);
    open_gate(gate);
    CU(cuCtxSynchronize());
    CU(cuMemHostAlloc(&none, 48 * MIB, 0));
}

/* --- a neighbour -------------------------------------------------------------------------------*/

static struct gate the_gate;

static long long give_in_order(size_t mib)
{
    the_gate = leave_in_order(mib);
    return 0;
}

static long long give_plainly(size_t mib)
{
    the_gate = leave_pending(mib);
    return 0;
}

static long long freed_outside(size_t unused)
{
    (void)unused;
    open_gate(the_gate);
    CU(cuCtxSynchronize());
    return 0;
}

static long long let_go_soon(size_t ms)
{
    sleep_ms((long)ms);
    return freed_outside(0);
}

static const struct known_order known_orders[] = {{"in_order", give_in_order},
                                                  {"plainly", give_plainly},
                                                  {"freed_outside", freed_outside},
                                                  {"let_go_soon", let_go_soon},
                                                  {NULL, NULL}};

static void obey(void)
{
    furnish();
    obey_orders(known_orders);
}

static void take_all_but(size_t mib)
{
    take((left_mib() - mib) * MIB);
}

/* What the neighbour has is missing here until it lets go. */
static void beside(const char *order_name, size_t mib, size_t wanted_more, double most_ms)
{
    struct process one = start("obey");
    EQUAL(0, (unsigned)ask(&one, order_name, mib));
    furnish();
    take_all_but(2);
    for (int i = 0; i < 2; i++) {
        is_refused(wanted_more, most_ms);
        most_ms = AT_ONCE_MS;
    }
    EQUAL(0, (unsigned)ask(&one, "freed_outside", 0));
    kill_it(&one);
}

static void neighbours_freed_in_order(void)
{
    beside("in_order", 256, 128, AT_ONCE_MS);
}

static void neighbours_never_enough(void)
{
    beside("plainly", 32, 128, AT_ONCE_MS);
}

static void neighbours_enough_but_never_over(void)
{
    beside("plainly", 32, 24, ONE_WAIT_MS);
}

static void neighbours_enough_and_over_soon(void)
{
    struct process one = start("obey");
    EQUAL(0, (unsigned)ask(&one, "plainly", 64));
    furnish();
    take_all_but(2);
    order(&one, "let_go_soon", 500);
    CU(way->take(32));
    EQUAL(0, (unsigned)answer_of(&one));
    kill_it(&one);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"obey", obey},
        {"freed_in_order", freed_in_order},
        {"freed_in_order_after_a_plain_free", freed_in_order_after_a_plain_free},
        {"freed_in_order_before_a_plain_free", freed_in_order_before_a_plain_free},
        {"stream_ordered_freed_plainly", stream_ordered_freed_plainly},
        {"beside_managed_memory", beside_managed_memory},
        {"behind_the_pools_barrier", behind_the_pools_barrier},
        {"never_enough", never_enough},
        {"enough_but_never_over", enough_but_never_over},
        {"enough_and_over_soon", enough_and_over_soon},
        {"of_unknown_size", of_unknown_size},
        {"pinned", pinned},
        {"neighbours_freed_in_order", neighbours_freed_in_order},
        {"neighbours_never_enough", neighbours_never_enough},
        {"neighbours_enough_but_never_over", neighbours_enough_but_never_over},
        {"neighbours_enough_and_over_soon", neighbours_enough_and_over_soon},
        {NULL, NULL},
    };
    if (argc == 3) {
        choose_way(argv[2]);
        argv[2] = NULL;
        argc = 2;
    }
    return run_case(argc, argv, cases);
}
