/*
 * What every kind of memory must do, written once and run for each of them: a struct kind says how
 * its memory is taken and freed, and no scenario knows which one it has.
 *
 * usage: kinds                 lists what there is: a line "KIND SCENARIO VARIABLE=VALUE ..." for
 *                              each run, with what it needs in its environment
 *        kinds KIND SCENARIO   exits 0, or says what is wrong and exits 1
 *
 * Runs without the pool too: what the program sees must be the same. To add a kind, add its struct
 * to `kinds`; to add a scenario, a function and a row to `scenarios`.
 */
#include <inttypes.h>
#include <sys/wait.h>

#include "pool.h"

enum { WORDS = 1024, THREADS = 4, MANY = 8 };

/* Work of this thread goes there: memory that has an order of its own takes it from this stream. */
static _Thread_local CUstream stream;

struct kind {
    const char *name;   /* of its section in the settings */
    const char *memory; /* the variable that bounds it to 64 MiB on the simulated driver */
    CUresult (*allocate)(CUdeviceptr *address, size_t bytes);
    CUresult (*release)(CUdeviceptr address);
    const char
        *driver_release;   /* the driver's function that frees it, for who goes past the pool */
    CUresult double_free;  /* the driver's answer to a second free */
    bool frees_wait;       /* the driver's free returns when the memory is nobody's */
    bool refuses_children; /* the driver fails both in the child of a fork, whatever it has kept */
    bool of_machine; /* the machine's memory: cudapool_get_bytes and limits do not count it, and
                        none goes back while the context has work */
};

static CUresult allocate_device(CUdeviceptr *address, size_t bytes)
{
    return cuMemAlloc_v2(address, bytes);
}

static CUresult release_device(CUdeviceptr address)
{
    return cuMemFree_v2(address);
}

static CUresult allocate_on_stream(CUdeviceptr *address, size_t bytes)
{
    return cuMemAllocAsync(address, bytes, stream);
}

static CUresult release_on_stream(CUdeviceptr address)
{
    return cuMemFreeAsync(address, stream);
}

static CUresult allocate_host(CUdeviceptr *address, size_t bytes)
{
    void *memory = NULL;
    CUresult result = cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
    *address = (uintptr_t)memory;
    return result;
}

static CUresult release_host(CUdeviceptr address)
{
    return cuMemFreeHost((void *)(uintptr_t)address);
}

static const struct kind kinds[] = {
    {"device", "SIMCUDA_MEMORY=64MiB", allocate_device, release_device, "cuMemFree_v2",
     CUDA_ERROR_INVALID_VALUE, true, true, false},
    {"stream_ordered", "SIMCUDA_MEMORY=64MiB", allocate_on_stream, release_on_stream,
     "cuMemFree_v2", CUDA_ERROR_INVALID_VALUE, false, false, false},
    {"host", "SIMCUDA_HOST_MEMORY=64MiB", allocate_host, release_host, "cuMemFreeHost",
     CUDA_ERROR_INVALID_VALUE, true, true, true},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* The one that this process is about. */
static const struct kind *kind;

/* ---- what scenarios are made of ---- */

static struct kernels kernels;
static CUcontext current;
static struct gate the_gate; /* memory of its own, which is pinned too */

/* Whether the pool keeps the kind's memory. The machine's it does only where the driver tells what
 * of a context's work is over (cuCtxRecordEvent). */
static bool is_kept(void)
{
    if (!has_pool() || !kind->of_machine)
        return has_pool();
    void *driver = dlopen(DRIVER_OBJECT, RTLD_NOW | RTLD_NOLOAD);
    CHECK(driver != NULL);
    return glibc_dlsym()(driver, "cuCtxRecordEvent") != NULL;
}

/* What there was of the kind's memory in the driver before the scenario took any. */
static uint64_t bytes_before, allocations_before;

static uint64_t driver_bytes(void)
{
    return kind->of_machine ? simcuda_live_host_bytes() : simcuda_live_bytes();
}

static uint64_t driver_allocations(void)
{
    return kind->of_machine ? simcuda_live_host_allocations() : simcuda_live_allocations();
}

static void count_before(void)
{
    if (simcuda_calls == NULL)
        return;
    bytes_before = driver_bytes();
    allocations_before = driver_allocations();
}

static void furnish(void)
{
    current = open_primary();
    load_kernels(&kernels);
    stream = new_stream();
    the_gate = new_gate();
    count_before();
}

static CUdeviceptr get(size_t bytes)
{
    CUdeviceptr address = 0;
    ANSWERS(CUDA_SUCCESS, kind->allocate(&address, bytes));
    CHECK(address != 0);
    return address;
}

/* The stream is busy until the gate is opened; without the pool a free may wait for that, so that
 * the work ends by itself. */
static struct gate make_busy(void)
{
    if (is_kept()) {
        close_this_gate(the_gate, &kernels, stream);
        return the_gate;
    }
    spin(&kernels, stream, 20000000);
    return (struct gate){NULL};
}

static void freed_outside(struct gate gate)
{
    if (gate.flag)
        open_gate(gate);
    CU(cuCtxSynchronize());
}

static void put(CUdeviceptr address)
{
    ANSWERS(CUDA_SUCCESS, kind->release(address));
}

static void get_many(CUdeviceptr *blocks, size_t bytes)
{
    for (int i = 0; i < MANY; i++)
        blocks[i] = get(bytes);
}

static void put_many(const CUdeviceptr *blocks)
{
    for (int i = 0; i < MANY; i++)
        put(blocks[i]);
}

/* So many blocks are free, and all work is over. */
static void leave_cached(size_t bytes)
{
    CUdeviceptr blocks[MANY];
    get_many(blocks, bytes);
    put_many(blocks);
    CU(cuCtxSynchronize());
}

/* Of all kinds together: a scenario has one in use. What the pool holds of the machine's memory is
 * told in sum, by the driver. */
static void expect_bytes(uint64_t live, uint64_t cached, uint64_t pending)
{
    if (!is_kept())
        return;
    if (kind->of_machine) {
        if (simcuda_calls != NULL)
            EQUAL(live + cached + pending, driver_bytes() - bytes_before);
        return;
    }
    struct cudapool_bytes bytes = pool_bytes();
    if (bytes.live != live || bytes.cached != cached || bytes.pending != pending)
        FAIL("%" PRIu64 " bytes are live, %" PRIu64 " cached and %" PRIu64 " pending, not %" PRIu64
             ", %" PRIu64 " and %" PRIu64,
             bytes.live, bytes.cached, bytes.pending, live, cached, pending);
}

/* With the pool, and nothing in the program's hands: what is free. Stream-ordered memory that a
 * thread is returning to the driver is in no sum. */
static uint64_t kept_bytes(void)
{
    if (kind->of_machine)
        return simcuda_calls != NULL ? driver_bytes() - bytes_before : 0;
    struct cudapool_bytes bytes = pool_bytes();
    return bytes.live + bytes.cached + bytes.pending;
}

static void expect_kept(uint64_t bytes)
{
    if (is_kept() && (!kind->of_machine || simcuda_calls != NULL))
        EQUAL(bytes, kept_bytes());
}

static void expect_allocations(uint64_t count)
{
    if (simcuda_calls != NULL)
        EQUAL(count, driver_allocations() - allocations_before);
}

/* The block is memory: what is written can be read. */
static void use(CUdeviceptr block, unsigned int value)
{
    unsigned int words[WORDS];
    fill(&kernels, stream, block, WORDS, value);
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH_v2(words, block, sizeof words));
    for (int i = 0; i < WORDS; i++)
        EQUAL(value, words[i]);
}

/* ---- scenarios ---- */

/* What is freed may still be in use: nobody else gets it before the work is over, and then
 * somebody does. */
static void reuse(void)
{
    furnish();
    CUdeviceptr block = get(MIB);
    struct gate gate = make_busy();
    put(block);
    expect_bytes(0, 0, MIB);
    CUstream mine = stream;
    stream = new_stream();
    CUdeviceptr other = get(MIB);
    CHECK(!is_kept() || other != block);
    put(other);
    freed_outside(gate);
    expect_bytes(0, 2 * MIB, 0);
    stream = mine;
    CUdeviceptr again[2] = {get(MIB), get(MIB)};
    if (is_kept())
        CHECK((again[0] == block && again[1] == other) || (again[0] == other && again[1] == block));
    use(again[0], 1);
    use(again[1], 2);
}

/* Its context ends while blocks are pending: they end with it, and the next context has its own. */
static void context_ends(void)
{
    CUdeviceptr blocks[MANY];
    CU(cuInit(0));
    for (int round = 0; round < 6; round++) {
        CUcontext context;
        CU(cuCtxCreate_v2(&context, 0, 0));
        load_kernels(&kernels);
        stream = new_stream();
        get_many(blocks, MIB);
        use(blocks[0], 3);
        spin(&kernels, stream, 20000000);
        put_many(blocks); /* pending, unless the machine took that long */
        expect_kept(MANY * MIB);
        CU(cuCtxDestroy_v2(context));
        expect_allocations(0);
        expect_bytes(0, 0, 0);
    }
}

/* A child that uses CUDA, which it may not: whether it got its parent's memory, or freed any. Where
 * the driver itself may serve a child, its parent comes to harm. */
static bool takes_part(CUdeviceptr block)
{
    CUdeviceptr address = 0;
    if (cudapool_is_active != NULL && cudapool_is_active())
        return true;
    if (!kind->refuses_children)
        return false;
    return kind->allocate(&address, MIB) == CUDA_SUCCESS || kind->release(block) == CUDA_SUCCESS;
}

/* A child gets nothing of what the pool keeps. */
static void forked(void)
{
    CUdeviceptr blocks[MANY];
    int status;
    furnish();
    get_many(blocks, MIB);
    put(blocks[0]);
    CU(cuCtxSynchronize());
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(takes_part(blocks[1]));
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    EQUAL(0, (unsigned)WEXITSTATUS(status));
    expect_bytes((MANY - 1) * MIB, MIB, 0);
    CUdeviceptr again = get(MIB);
    if (is_kept())
        EQUAL(blocks[0], again);
    use(again, 4);
    use(blocks[1], 5);
    put(blocks[1]);
}

/* What is kept makes no allocation fail, of whatever kind of the same memory; what cannot be had is
 * the driver's error, and leaves everything as it was. Where there are 64 MiB. */
static void out_of_memory(void)
{
    CUdeviceptr address = 0;
    furnish();
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].memory, kind->memory) != 0)
            continue;
        leave_cached(5 * MIB);
        ANSWERS(CUDA_SUCCESS, kinds[i].allocate(&address, 48 * MIB));
        use(address, 6);
        CUdeviceptr none = 0;
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, kind->allocate(&none, 48 * MIB));
        ANSWERS(CUDA_SUCCESS, kinds[i].release(address));
        CU(cuCtxSynchronize());
    }
    /* What is pending can be had once it is over, for which the driver's free may have waited. */
    CUdeviceptr blocks[MANY];
    get_many(blocks, 5 * MIB);
    spin(&kernels, stream, 20000000);
    put_many(blocks);
    if (!kind->frees_wait)
        CU(cuCtxSynchronize());
    use(get(48 * MIB), 7);
}

/* While a capture goes on nothing disturbs it: what is kept stays, and the driver serves. */
static void captured(void)
{
    CUgraph graph = NULL;
    CUgraphExec executable;
    furnish();
    CUstream captured = new_stream();
    CUdeviceptr kept = get(MIB), before = get(2 * MIB);
    put(kept);
    CU(cuCtxSynchronize());
    CU(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    fill(&kernels, captured, before, WORDS, 8);
    CUdeviceptr inside = get(MIB);
    if (is_kept())
        CHECK(inside != kept);
    put(inside);
    CU(cuStreamEndCapture(captured, &graph));
    CHECK(graph != NULL);
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphLaunch(executable, captured));
    CU(cuStreamSynchronize(captured));
    put(before);
    if (is_kept())
        EQUAL(kept, get(MIB));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
}

static CUdeviceptr contested;
static int successes;

static void *free_contested(void *its_stream)
{
    CU(cuCtxSetCurrent(current));
    stream = its_stream;
    CUresult answer = kind->release(contested);
    if (answer == CUDA_SUCCESS)
        __atomic_fetch_add(&successes, 1, __ATOMIC_RELAXED);
    else
        EQUAL(kind->double_free, answer);
    return NULL;
}

static void free_by_many(void)
{
    pthread_t threads[THREADS];
    successes = 0;
    contested = get(4096);
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, free_contested, stream) == 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    EQUAL(1, (unsigned)successes);
}

/* A second free is refused, pending or cached, and of several threads one frees. Without the pool
 * they do not: a real driver crashes when two threads free one block at a time. */
static void freed_twice(void)
{
    furnish();
    CUdeviceptr block = get(MIB);
    put(block);
    ANSWERS(kind->double_free, kind->release(block));
    CU(cuCtxSynchronize());
    ANSWERS(kind->double_free, kind->release(block));
    CUdeviceptr one = get(MIB), other = get(MIB);
    CHECK(one != other);
    for (int round = 0; round < 100 && is_kept(); round++)
        free_by_many();
}

static CUresult release_past_the_pool(CUdeviceptr address)
{
    void *driver = dlopen(DRIVER_OBJECT, RTLD_NOW | RTLD_NOLOAD);
    CHECK(driver != NULL);
    CUresult (*function)(CUdeviceptr) =
        (CUresult(*)(CUdeviceptr))glibc_dlsym()(driver, kind->driver_release);
    CHECK(function != NULL && is_the_drivers((void *)function));
    return function(address);
}

static void give_again(bool is_free)
{
    CUdeviceptr block = get(16 * MIB);
    if (is_free && is_kept()) {
        put(block);
        CU(cuCtxSynchronize());
    }
    CU(release_past_the_pool(block));
    CU(cuCtxSynchronize());
    CUdeviceptr again = get(14 * MIB);
    if (simcuda_calls != NULL)
        EQUAL(block, again);
    if (block == again)
        expect_bytes(14 * MIB, 0, 0);
    use(again, 9);
    expect_allocations(1);
    put(again);
    ANSWERS(kind->double_free, kind->release(again));
    CU(cuCtxSynchronize());
    if (is_kept())
        cudapool_trim();
    expect_bytes(0, 0, 0);
    expect_allocations(0);
}

/* Somebody frees a block past the pool, and the driver gives its address again: that is another
 * block, whatever the pool knew of the former one, held or free. A GPU may choose another address.
 */
static void address_anew(void)
{
    furnish();
    give_again(false);
    give_again(true);
}

/* A trim gives back what is cached, and waits for nothing that is pending; of the machine's memory
 * nothing as long as there is work. */
static void trimmed(void)
{
    uint64_t first = kind->of_machine ? 0 : MANY * MIB, second = (MANY + 2) * MIB - first;
    furnish();
    CUdeviceptr live = get(MIB), pending = get(2 * MIB);
    leave_cached(MIB);
    struct gate gate = make_busy();
    put(pending);
    expect_bytes(MIB, MANY * MIB, 2 * MIB);
    if (is_kept())
        EQUAL(first, cudapool_trim());
    expect_bytes(MIB, MANY * MIB - first, 2 * MIB);
    freed_outside(gate);
    if (is_kept())
        EQUAL(second, cudapool_trim());
    expect_bytes(MIB, 0, 0);
    expect_allocations(1);
    use(live, 10);
}

/* limits.device_bytes: 8 MiB. What is cached makes room inside of it. */
static void limited(void)
{
    CUdeviceptr blocks[4], none = 0;
    furnish();
    for (int i = 0; i < 4; i++)
        blocks[i] = get(2 * MIB);
    if (is_kept())
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, kind->allocate(&none, 4096));
    for (int i = 0; i < 4; i++)
        put(blocks[i]);
    CU(cuCtxSynchronize());
    CUdeviceptr all = get(8 * MIB);
    use(all, 11);
    if (is_kept())
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, kind->allocate(&none, 4096));
    put(all);
    if (is_kept() && simcuda_peak_bytes != NULL)
        CHECK(simcuda_peak_bytes() <= 8 * MIB);
}

/* caps.cached: 4 MiB, whether the work was over in the frees or not. A free beside which another
 * thread records a fence may leave it to the next one. */
static void capped(void)
{
    CUdeviceptr blocks[MANY];
    furnish();
    for (int busy = 0; busy < 2; busy++) {
        get_many(blocks, MIB);
        if (busy)
            spin(&kernels, stream, 20000000);
        put_many(blocks);
        CU(cuCtxSynchronize());
        for (int i = 0; i < 3 && is_kept() && kept_bytes() > 4 * MIB; i++)
            put(get(4096));
        if (is_kept())
            CHECK(kept_bytes() <= 4 * MIB);
    }
    use(get(MIB), 12);
}

/* release_after_idle: 100 ms. Goes back in somebody's next calls. */
static void idle(void)
{
    furnish();
    leave_cached(2 * MIB);
    for (int i = 0; i < 500 && is_kept() && kept_bytes() >= 2 * MANY * MIB; i++) {
        sleep_ms(10);
        for (int j = 0; j < 40; j++)
            put(get(4096));
    }
    if (is_kept())
        CHECK(kept_bytes() < 2 * MANY * MIB);
}

/* The pool keeps nothing, and the driver has all of it. */
static bool is_all_back(void)
{
    return kept_bytes() == 0 &&
           (simcuda_calls == NULL || driver_allocations() == allocations_before);
}

/* As idle, by the clock, with no call at all. */
static void idle_by_the_clock(void)
{
    furnish();
    leave_cached(2 * MIB);
    for (int i = 0; i < 100 && is_kept() && !is_all_back(); i++)
        sleep_ms(50);
    expect_bytes(0, 0, 0);
    expect_allocations(0);
}

static CUdeviceptr wrong;

/* A block holds what was last written through it, until it is freed, whoever else is at work. */
static void *work(void *number)
{
    static const size_t sizes[] = {4096, 64 << 10, MIB};
    CU(cuCtxSetCurrent(current));
    CUstream streams[] = {new_stream(), new_stream()};
    for (unsigned int i = 0; i < 120; i++) {
        unsigned int value = i * THREADS + *(unsigned int *)number;
        stream = streams[i % 2];
        CUdeviceptr block = get(sizes[i / 2 % 3]); /* the next one is the other stream's */
        fill(&kernels, stream, block, WORDS, value);
        spin_then_verify(&kernels, stream, 100000, block, WORDS, value, wrong);
        put(block);
    }
    CU(cuStreamSynchronize(streams[0]));
    CU(cuStreamSynchronize(streams[1]));
    return NULL;
}

static void several_threads(void)
{
    pthread_t threads[THREADS];
    unsigned int numbers[THREADS];
    furnish();
    wrong = new_counter();
    count_before();
    for (unsigned int t = 0; t < THREADS; t++) {
        numbers[t] = t;
        CHECK(pthread_create(&threads[t], NULL, work, &numbers[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    EQUAL(0, read_counter(wrong));
    if (is_kept()) {
        cudapool_trim();
        if (!kind->of_machine)
            EQUAL(0, pool_bytes().cached + pool_bytes().pending);
        expect_allocations(0);
    }
}

/* ---- the list ---- */

static const struct scenario {
    const char *name;
    void (*run)(void);
    bool little_memory, of_device; /* the second: not where the memory is the machine's */
    const char *settings;          /* members; %s stands for the name of the kind */
} scenarios[] = {
    {"reuse", reuse, false, false, NULL},
    {"context_ends", context_ends, false, false, NULL},
    {"forked", forked, false, false, NULL},
    {"out_of_memory", out_of_memory, true, false, NULL},
    {"captured", captured, false, false, NULL},
    {"freed_twice", freed_twice, false, false, NULL},
    {"address_anew", address_anew, false, false, NULL},
    {"trimmed", trimmed, false, false, NULL},
    {"limited", limited, false, true, "\"limits\":{\"device_bytes\":\"8MiB\"}"},
    {"capped", capped, false, false, "\"%s\":{\"caps\":{\"cached\":\"4MiB\"}}"},
    {"idle", idle, false, false, "\"%s\":{\"release_after_idle\":\"100ms\"}"},
    {"idle_by_the_clock", idle_by_the_clock, false, false,
     "\"%s\":{\"release_after_idle\":\"100ms\"}"},
    {"several_threads", several_threads, false, false, NULL},
};

enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

static void list(void)
{
    for (size_t k = 0; k < KINDS; k++)
        for (size_t s = 0; s < SCENARIOS; s++) {
            /* A GPU's memory is as large as it is. */
            if (scenarios[s].little_memory && simcuda_calls == NULL)
                continue;
            if (scenarios[s].of_device && kinds[k].of_machine)
                continue;
            printf("%s %s", kinds[k].name, scenarios[s].name);
            if (scenarios[s].little_memory)
                printf(" %s", kinds[k].memory);
            if (scenarios[s].settings != NULL) {
                const char *section = strstr(scenarios[s].settings, "%s");
                int before = section ? (int)(section - scenarios[s].settings) : 0;
                printf(" CUDAPOOL_CONFIG={\"version\":1,%.*s%s%s}", before, scenarios[s].settings,
                       section ? kinds[k].name : "", section ? section + 2 : scenarios[s].settings);
            }
            putchar('\n');
        }
}

static const struct scenario *scenario_called(const char *name)
{
    for (size_t s = 0; s < SCENARIOS; s++)
        if (strcmp(scenarios[s].name, name) == 0)
            return &scenarios[s];
    FAIL("no scenario \"%s\"", name);
}

static const struct kind *kind_called(const char *name)
{
    for (size_t k = 0; k < KINDS; k++)
        if (strcmp(kinds[k].name, name) == 0)
            return &kinds[k];
    FAIL("no kind \"%s\"", name);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        list();
        return 0;
    }
    kind = kind_called(argv[1]);
    scenario_called(argv[2])->run();
    return 0;
}
