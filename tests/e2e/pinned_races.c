/*
 * Pinned host memory that a program frees while the GPU still works on it, as the driver's free,
 * which waits, allows; and that the host writes the moment it gets it again. Run with SIMCUDA_RACES
 * on, without the pool and with it; the data is checked, too.
 *
 * Arguments: a case; "reuse-at-once": the program recycles blocks itself, without any wait, which
 * the race detector must report in all cases but the "safe" ones; "list" prints the cases' names,
 * "list safe" those of the safe ones.
 */
#include "../gpu/gpu.h"

enum { MOST_WORDS = 1 << 14, CARELESS = 64, KERNEL_NS = 300000, THREADS = 4, ROUNDS = 24 };

static CUcontext context, other_context;
static struct kernels kernels, other_kernels;
static CUstream non_blocking, blocking, elsewhere;
static CUdeviceptr device;
static bool reuse_at_once;
static unsigned int last_value;

/* --- blocks ------------------------------------------------------------------------------------*/

/* What the experiment that must fail has been given back. The lock guards the list alone. */
static pthread_mutex_t careless_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *block;
    size_t bytes;
} careless[CARELESS];

static void *take_carelessly(size_t bytes)
{
    void *block = NULL;
    pthread_mutex_lock(&careless_lock);
    for (unsigned int i = 0; i < CARELESS && block == NULL; i++)
        if (careless[i].bytes == bytes) {
            block = careless[i].block;
            careless[i].bytes = 0;
        }
    pthread_mutex_unlock(&careless_lock);
    if (block != NULL)
        tell_allocated(CUDA_SUCCESS, (uintptr_t)block, bytes);
    return block;
}

static bool give_carelessly(void *block, size_t bytes)
{
    unsigned int i = 0;
    tell_freed((uintptr_t)block);
    pthread_mutex_lock(&careless_lock);
    while (i < CARELESS && careless[i].bytes != 0)
        i++;
    if (i < CARELESS) {
        careless[i].block = block;
        careless[i].bytes = bytes;
    }
    pthread_mutex_unlock(&careless_lock);
    return i < CARELESS;
}

static unsigned int *take(size_t bytes)
{
    void *block = reuse_at_once ? take_carelessly(bytes) : NULL;
    if (block == NULL)
        CHECK(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE));
    return block;
}

static void give(unsigned int *block, size_t bytes)
{
    if (!reuse_at_once || !give_carelessly(block, bytes))
        CHECK(cuMemFreeHost(block));
}

static unsigned int *renew(unsigned int *block, size_t bytes)
{
    give(block, bytes);
    return take(bytes);
}

/* What of a block is used. */
static unsigned int words_of(size_t bytes)
{
    return bytes / 4 < MOST_WORDS ? (unsigned int)(bytes / 4) : MOST_WORDS;
}

static unsigned int new_value(void)
{
    return __atomic_add_fetch(&last_value, 1, __ATOMIC_RELAXED);
}

static unsigned int host_writes(unsigned int *block, size_t bytes)
{
    unsigned int words = words_of(bytes), value = new_value();
    tell_host_writes(block, words * sizeof *block);
    for (unsigned int i = 0; i < words; i++)
        block[i] = value;
    return value;
}

static void host_expects(const unsigned int *block, size_t bytes, unsigned int value)
{
    unsigned int words = words_of(bytes);
    tell_host_reads(block, words * sizeof *block);
    for (unsigned int i = 0; i < words && !reuse_at_once; i++)
        if (block[i] != value)
            FAIL("word %u of %zu bytes is %u, not %u", i, bytes, block[i], value);
}

static void device_has_found(CUdeviceptr mismatches)
{
    unsigned long long found = read_counter(mismatches);
    if (found != 0 && !reuse_at_once)
        FAIL("the device found %llu words that are not what was written", found);
    CHECK(cuMemFree_v2(mismatches));
}

/* --- cases: each is run for sizes and streams --------------------------------------------------*/

/* A kernel reads what the next owner writes. */
static void read_by_kernel(CUstream stream, size_t bytes)
{
    CUdeviceptr wrong = new_counter();
    unsigned int *block = take(bytes), value = host_writes(block, bytes);
    spin_then_verify(&kernels, stream, KERNEL_NS, (uintptr_t)block, words_of(bytes), value, wrong);
    block = renew(block, bytes);
    host_writes(block, bytes);
    device_has_found(wrong);
    give(block, bytes);
}

static void filled_by_kernel(CUstream stream, size_t bytes)
{
    unsigned int *block = take(bytes), value;
    spin(&kernels, stream, KERNEL_NS);
    fill(&kernels, stream, (uintptr_t)block, words_of(bytes), new_value());
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
}

static void copied_to_device(CUstream stream, size_t bytes)
{
    CUdeviceptr wrong = new_counter();
    unsigned int *block = take(bytes), words = words_of(bytes), value = host_writes(block, bytes);
    spin(&kernels, stream, KERNEL_NS);
    CHECK(cuMemcpyHtoDAsync_v2(device, block, words * sizeof *block, stream));
    verify(&kernels, stream, device, words, value, wrong);
    block = renew(block, bytes);
    host_writes(block, bytes);
    device_has_found(wrong);
    give(block, bytes);
}

static void copied_to_host(CUstream stream, size_t bytes)
{
    unsigned int *block = take(bytes), words = words_of(bytes), value;
    fill(&kernels, stream, device, words, new_value());
    spin(&kernels, stream, KERNEL_NS);
    CHECK(cuMemcpyDtoHAsync_v2(block, device, words * sizeof *block, stream));
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
}

/* The next owner's kernel, on a stream that nothing orders behind the first. */
static void filled_by_next_kernel(CUstream stream, size_t bytes)
{
    CUdeviceptr wrong = new_counter();
    CUstream next;
    unsigned int *block = take(bytes), words = words_of(bytes), value = host_writes(block, bytes);
    CHECK(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING));
    spin_then_verify(&kernels, stream, KERNEL_NS, (uintptr_t)block, words, value, wrong);
    block = renew(block, bytes);
    value = new_value();
    fill(&kernels, next, (uintptr_t)block, words, value);
    CHECK(cuStreamSynchronize(next));
    host_expects(block, bytes, value);
    device_has_found(wrong);
    give(block, bytes);
    CHECK(cuStreamDestroy_v2(next));
}

static void filled_by_graph(CUstream stream, size_t bytes)
{
    CUgraph graph;
    CUgraphExec executable;
    unsigned int *block = take(bytes), value;
    CHECK(cuStreamBeginCapture_v2(non_blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    spin(&kernels, non_blocking, KERNEL_NS);
    fill(&kernels, non_blocking, (uintptr_t)block, words_of(bytes), new_value());
    CHECK(cuStreamEndCapture(non_blocking, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, stream));
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
}

struct late_write {
    unsigned int *block;
    size_t bytes;
};

static void write_late(void *argument)
{
    const struct late_write *late = argument;
    host_writes(late->block, late->bytes);
}

static void written_by_host_function(CUstream stream, size_t bytes)
{
    struct late_write late = {.block = take(bytes), .bytes = bytes};
    unsigned int *block = late.block, value;
    spin(&kernels, stream, KERNEL_NS);
    CHECK(cuLaunchHostFunc(stream, write_late, &late));
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
}

static void *give_in_thread(void *argument)
{
    const struct late_write *freed = argument;
    give(freed->block, freed->bytes);
    return NULL;
}

/* The thread that frees has no context. */
static void freed_by_bare_thread(CUstream stream, size_t bytes)
{
    struct late_write freed = {.block = take(bytes), .bytes = bytes};
    unsigned int *block, value;
    pthread_t thread;
    spin(&kernels, stream, KERNEL_NS);
    fill(&kernels, stream, (uintptr_t)freed.block, words_of(bytes), new_value());
    if (pthread_create(&thread, NULL, give_in_thread, &freed) != 0)
        FAIL("no thread could be started");
    pthread_join(thread, NULL);
    block = take(bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
}

/* Freed and allocated again where another context is current: its owner's work is in flight. */
static void freed_in_another_context(CUstream stream, size_t bytes)
{
    unsigned int *block = take(bytes), value;
    spin(&kernels, stream, KERNEL_NS);
    fill(&kernels, stream, (uintptr_t)block, words_of(bytes), new_value());
    CHECK(cuCtxSetCurrent(other_context));
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
}

/* Both contexts use it; the program waits for the one that the driver's free would not wait for. */
static void copied_by_another_context(CUstream stream, size_t bytes)
{
    unsigned int *block = take(bytes), words = words_of(bytes), value = host_writes(block, bytes);
    CHECK(cuCtxSetCurrent(other_context));
    spin(&other_kernels, elsewhere, KERNEL_NS);
    CHECK(cuMemcpyHtoDAsync_v2(device, block, words * sizeof *block, elsewhere));
    CHECK(cuStreamSynchronize(elsewhere));
    CHECK(cuCtxSetCurrent(context));
    spin(&kernels, stream, KERNEL_NS);
    fill(&kernels, stream, (uintptr_t)block, words, new_value());
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    CHECK(cuCtxSynchronize());
    host_expects(block, bytes, value);
    give(block, bytes);
}

/* --- cases that are right whoever recycles the blocks ------------------------------------------*/

static void synchronised(CUstream stream, size_t bytes)
{
    unsigned int *block = take(bytes), value = new_value();
    fill(&kernels, stream, (uintptr_t)block, words_of(bytes), value);
    CHECK(cuStreamSynchronize(stream));
    host_expects(block, bytes, value);
    block = renew(block, bytes);
    value = host_writes(block, bytes);
    host_expects(block, bytes, value);
    give(block, bytes);
}

static void copied_by_another_context_only(CUstream stream, size_t bytes)
{
    unsigned int *block = take(bytes);
    (void)stream;
    host_writes(block, bytes);
    CHECK(cuMemcpyHtoDAsync_v2(device, block, words_of(bytes) * sizeof *block, elsewhere));
    CHECK(cuCtxSetCurrent(other_context));
    CHECK(cuStreamSynchronize(elsewhere));
    CHECK(cuCtxSetCurrent(context));
    block = renew(block, bytes);
    host_writes(block, bytes);
    give(block, bytes);
}

/* Neither a free nor an allocation may wait for what the driver's would not: these would not end.
 */
static unsigned int *new_flag(void)
{
    void *flag;
    CHECK(cuMemHostAlloc(&flag, sizeof(unsigned int), CU_MEMHOSTALLOC_PORTABLE));
    tell_host_writes(flag, sizeof(unsigned int));
    *(unsigned int *)flag = 0;
    return flag;
}

static void set(unsigned int *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static void beside_another_contexts_kernel(CUstream stream, size_t bytes)
{
    unsigned int *flag = new_flag(), *block = take(bytes);
    CHECK(cuCtxSetCurrent(other_context));
    wait_flag(&other_kernels, elsewhere, (uintptr_t)flag);
    CHECK(cuCtxSetCurrent(context));
    fill(&kernels, stream, (uintptr_t)block, words_of(bytes), new_value());
    CHECK(cuStreamSynchronize(stream));
    block = renew(block, bytes);
    host_writes(block, bytes);
    give(block, bytes);
    set(flag);
    CHECK(cuCtxSetCurrent(other_context));
    CHECK(cuStreamSynchronize(elsewhere));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemFreeHost(flag));
}

static void allocated_beside_a_kernel(CUstream stream, size_t bytes)
{
    unsigned int *flag = new_flag(), *block = take(bytes);
    fill(&kernels, stream, (uintptr_t)block, words_of(bytes), new_value());
    CHECK(cuStreamSynchronize(stream));
    give(block, bytes);
    wait_flag(&kernels, stream, (uintptr_t)flag);
    block = take(bytes);
    host_writes(block, bytes);
    set(flag);
    CHECK(cuStreamSynchronize(stream));
    give(block, bytes);
    CHECK(cuMemFreeHost(flag));
}

/* --- running them ------------------------------------------------------------------------------*/

typedef void body(CUstream stream, size_t bytes);

/* Pieces of the driver's pieces of 2 MiB, and mappings of their own. */
static const size_t sizes[] = {512, 4096, 65536 + 4, MIB, 2 * MIB, 2 * MIB + 512, 8 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void for_sizes_and_streams(body *run)
{
    CUstream streams[] = {non_blocking, NULL, blocking, CU_STREAM_PER_THREAD};
    for (unsigned int i = 0; i < SIZES; i++)
        for (unsigned int j = 0; j < 4; j++)
            run(streams[j], sizes[i]);
}

/* Threads take each other's blocks. Each uses its own stream. */
static void work(unsigned int index)
{
    unsigned int random = index * 7919u + 1;
    CUdeviceptr wrong;
    CUstream stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    wrong = new_counter();
    for (unsigned int round = 0; round < ROUNDS; round++) {
        size_t bytes = sizes[next_random(&random) % SIZES];
        unsigned int *block = take(bytes), value = host_writes(block, bytes);
        spin_then_verify(&kernels, stream, KERNEL_NS, (uintptr_t)block, words_of(bytes), value,
                         wrong);
        if (next_random(&random) % 2)
            fill(&kernels, stream, (uintptr_t)block, words_of(bytes), new_value());
        give(block, bytes);
    }
    CHECK(cuStreamSynchronize(stream));
    device_has_found(wrong);
}

static void in_threads(body *unused)
{
    struct worker workers[THREADS];
    for (unsigned int i = 0; i < THREADS; i++)
        start_worker(&workers[i], work, i);
    for (unsigned int i = 0; i < THREADS; i++)
        join_worker(&workers[i]);
    (void)unused;
}

static const struct {
    const char *name;
    void (*run)(body *);
    body *body;
    bool safe;
} cases[] = {
    {"read_by_kernel", for_sizes_and_streams, read_by_kernel, false},
    {"filled_by_kernel", for_sizes_and_streams, filled_by_kernel, false},
    {"copied_to_device", for_sizes_and_streams, copied_to_device, false},
    {"copied_to_host", for_sizes_and_streams, copied_to_host, false},
    {"filled_by_next_kernel", for_sizes_and_streams, filled_by_next_kernel, false},
    {"filled_by_graph", for_sizes_and_streams, filled_by_graph, false},
    {"written_by_host_function", for_sizes_and_streams, written_by_host_function, false},
    {"freed_by_bare_thread", for_sizes_and_streams, freed_by_bare_thread, false},
    {"freed_in_another_context", for_sizes_and_streams, freed_in_another_context, false},
    {"copied_by_another_context", for_sizes_and_streams, copied_by_another_context, false},
    {"taken_by_other_threads", in_threads, NULL, false},
    {"synchronised", for_sizes_and_streams, synchronised, true},
    {"copied_by_another_context_only", for_sizes_and_streams, copied_by_another_context_only, true},
    {"beside_another_contexts_kernel", for_sizes_and_streams, beside_another_contexts_kernel, true},
    {"allocated_beside_a_kernel", for_sizes_and_streams, allocated_beside_a_kernel, true},
};
enum { CASES = sizeof cases / sizeof *cases };

static void prepare(void)
{
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&other_context, 0, 0));
    load_kernels(&other_kernels);
    CHECK(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
    context = open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&non_blocking, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&blocking, 0));
    CHECK(cuMemAlloc_v2(&device, MOST_WORDS * sizeof(unsigned int)));
}

static int list(bool safe)
{
    for (unsigned int i = 0; i < CASES; i++)
        if (cases[i].safe == safe)
            puts(cases[i].name);
    return 0;
}

int main(int argc, char **argv)
{
    if (asked_for(argc, argv, "list"))
        return list(asked_for(argc, argv, "safe"));
    reuse_at_once = asked_for(argc, argv, "reuse-at-once");
    prepare();
    for (unsigned int i = 0; i < CASES; i++)
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run(cases[i].body);
            return 0;
        }
    FAIL("no such case");
}
