/*
 * Many threads at once on the fake driver: they allocate, free, synchronise, run out of memory,
 * capture, create contexts and destroy them, while reports are made.
 *
 * Each block carries what its holder last gave the GPU to do. When it is handed out again, that
 * work must be done, or ordered before all later work; nobody else may hold it; and in the end the
 * counters must add up and every byte be returned.
 */
#include "pool_fixture.h"

#include <stdatomic.h>
#include <stdlib.h>

#define THREADS 6
#define HELD    24
#define BLOCKS  (1u << 22)
#define BASE    UINT64_C(0x7f0000000000)

/* By the address of a block, in granules. The fake driver gives every address out once. */
static struct {
    atomic_int holder;
    _Atomic uint64_t used_until; /* launched in the block's context when it was freed */
} blocks[BLOCKS];

static atomic_uint errors;
static atomic_bool over;
static bool program_synchronises = true;
static atomic_uint successes;

static void check(bool condition, const char *what)
{
    if (!condition && atomic_fetch_add(&errors, 1) < 5)
        fprintf(stderr, "stress: %s\n", what);
}

static size_t index_of(CUdeviceptr address)
{
    size_t index = (size_t)(address - BASE) / 4096;
    if (index >= BLOCKS)
        abort();
    return index;
}

static unsigned random_below(unsigned *seed, unsigned bound)
{
    return (unsigned)rand_r(seed) % bound;
}

/* Sizes of 4 KiB and more, so that every block has an index of its own. */
static size_t random_size(unsigned *seed)
{
    return (size_t)4096 << random_below(seed, 6);
}

struct worker {
    unsigned seed;
    int number;
    CUcontext home;
    CUdeviceptr held[HELD];
    unsigned rounds;
    pthread_t thread;
};

static void take(struct worker *worker, unsigned slot)
{
    CUdeviceptr address = 0;
    if (pool_allocate(pool, &address, random_size(&worker->seed)) != CUDA_SUCCESS)
        return;
    size_t index = index_of(address);
    check(atomic_exchange(&blocks[index].holder, worker->number) == 0, "handed out twice");
    check(fake_ordered(worker->home) >= atomic_load(&blocks[index].used_until),
          "handed out while the GPU may be using it");
    worker->held[slot] = address;
    atomic_fetch_add(&successes, 1);
}

static void give(struct worker *worker, unsigned slot, CUstream stream)
{
    CUdeviceptr address = worker->held[slot];
    size_t index = index_of(address);
    if (random_below(&worker->seed, 2))
        fake_launch(worker->home);
    atomic_store(&blocks[index].used_until, fake_launched(worker->home));
    check(atomic_exchange(&blocks[index].holder, 0) == worker->number, "held by another thread");
    CUresult result = stream ? pool_free_async(pool, driver->cuMemFreeAsync, address, stream)
                             : pool_free(pool, address);
    check(result == CUDA_SUCCESS, "a free fails");
    worker->held[slot] = 0;
}

static void end_work(struct worker *worker)
{
    fake_finish_some(worker->home, random_below(&worker->seed, 4));
}

/* What this thread holds is inside of nothing else; what others hold may go any moment. */
static void ask(struct worker *worker, unsigned slot)
{
    size_t left, total;
    CUdeviceptr own = worker->held[slot];
    CUdeviceptr any = BASE + (CUdeviceptr)random_below(&worker->seed, BLOCKS) * 4096 + 300;
    struct pointer_answer answer = pool_ask_pointer(pool, any);
    if (answer.kind == POINTER_LIVE)
        pool_buffer_id(pool, &answer);
    check(pool_memory_info(pool, &left, &total) == CUDA_SUCCESS && left <= total,
          "more is free than there is");
    if (!own)
        return;
    answer = pool_ask_pointer(pool, own + 4095);
    check(answer.kind == POINTER_LIVE && answer.base == own, "a held block is not known");
    uint64_t id = pool_buffer_id(pool, &answer);
    check(id != 0 && pool_buffer_id(pool, &answer) == id, "a buffer has two numbers");
}

static void act(struct worker *worker, CUstream stream)
{
    unsigned slot = random_below(&worker->seed, HELD), what = random_below(&worker->seed, 64);
    if (what == 0 && program_synchronises)
        synchronise();
    else if (what == 1)
        pool_trim(pool);
    else if (what == 2)
        ask(worker, slot);
    else if (what < 16)
        end_work(worker);
    else if (!worker->held[slot])
        take(worker, slot);
    else
        give(worker, slot, what < 20 ? stream : NULL);
}

/* What this thread allocates and frees in the program's name succeeds while others capture. */
static void relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    fake_set_current(worker->home);
    relax();
    CUstream stream = fake_stream();
    for (unsigned i = 0; i < worker->rounds; i++)
        act(worker, stream);
    for (unsigned slot = 0; slot < HELD; slot++)
        if (worker->held[slot])
            give(worker, slot, NULL);
    return NULL;
}

/* What ends the GPU's work while everybody waits for it. */
static void *end_all_work(void *unused)
{
    struct timespec nap = {0, 100000};
    (void)unused;
    while (!atomic_load(&over)) {
        fake_finish_some(context, 3);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

static void *make_reports(void *unused)
{
    struct timespec nap = {0, 300000};
    (void)unused;
    while (!atomic_load(&over)) {
        struct report *report = calloc(1, sizeof *report);
        if (report && pool_report(pool, report) == 0)
            report_free(report);
        free(report);
        size_t left, total;
        fake_set_current(context);
        pool_memory_info(pool, &left, &total);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

/* Contexts come and go, with blocks of their own. */
static void *make_contexts(void *unused)
{
    unsigned seed = 99;
    (void)unused;
    while (!atomic_load(&over)) {
        CUcontext handle = fake_context(0);
        pool_context_created(pool, handle);
        for (int i = 0; i < 40; i++) {
            CUdeviceptr address;
            if (pool_allocate(pool, &address, 4096u << (i % 4)) != CUDA_SUCCESS)
                continue;
            fake_launch(handle);
            if (random_below(&seed, 4))
                check(pool_free(pool, address) == CUDA_SUCCESS, "a free fails");
        }
        if (random_below(&seed, 2))
            synchronise();
        end_context(handle);
        fake_set_current(NULL);
    }
    return NULL;
}

static void *make_captures(void *unused)
{
    struct timespec nap = {0, 200000};
    (void)unused;
    fake_set_current(context);
    relax();
    CUstream stream = fake_stream();
    while (!atomic_load(&over)) {
        begin_capture(stream);
        nanosleep(&nap, NULL);
        end_capture(stream);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

static void run_workers(int count, unsigned rounds)
{
    static struct worker workers[THREADS];
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){
            .seed = (unsigned)i + 1, .number = i + 1, .home = context, .rounds = rounds};
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
}

static void check_the_end(void)
{
    fake_finish(context);
    fake_set_current(context);
    let_time_pass();
    synchronise();
    struct reclaim progress = {0};
    while (pool_make_room(pool, &progress))
        continue;
    struct report_counters c = counted();
    cr_assert_eq(atomic_load(&errors), 0);
    cr_assert_gt(atomic_load(&successes), 100);
    check_columns();
    cr_assert_eq(c.live_bytes, 0);
    cr_assert_eq(c.cached_bytes, 0);
    cr_assert_eq(c.pending_bytes, 0);
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_not(fake_capture_was_invalidated());
}

typedef void *background(void *);

static void run(int workers, unsigned rounds, background *other, background *another)
{
    pthread_t threads[3];
    background *bodies[3] = {end_all_work, other, another};
    start();
    stop_looking_at_locks();
    for (int i = 0; i < 3; i++)
        if (bodies[i])
            cr_assert_eq(pthread_create(&threads[i], NULL, bodies[i], NULL), 0);
    run_workers(workers, rounds);
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        if (bodies[i])
            pthread_join(threads[i], NULL);
    check_the_end();
}

static void set_up_small(void)
{
    set_up_on(GIB);
    settings.device.caps.cached.percent = 100;
}

TestSuite(stress, .init = set_up_small, .fini = tear_down, .timeout = 100);

Test(stress, threads_share_a_heap)
{
    run(THREADS, 12000, make_reports, NULL);
}

Test(stress, threads_share_a_heap_without_a_growth_budget)
{
    settings.device.growth_budget.bytes = 0;
    run(THREADS, 5000, make_reports, NULL);
}

Test(stress, threads_share_a_heap_with_tight_caps)
{
    settings.device.growth_budget.bytes = 256 * KIB;
    settings.device.caps.reserve_ratio = 1;
    settings.device.caps.blocks_per_bucket = 2;
    settings.device.evict = EVICT_LEAST_RECENTLY_USED;
    settings.limits.device_bytes = (struct byte_size){.bytes = 2 * MIB};
    run(THREADS, 5000, NULL, NULL);
}

Test(stress, contexts_come_and_go)
{
    settings.device.growth_budget.bytes = MIB;
    run(THREADS, 5000, make_contexts, make_reports);
}

Test(stress, captures_begin_and_end)
{
    /* That would invalidate them, with or without the pool. */
    program_synchronises = false;
    settings.device.growth_budget.bytes = MIB;
    run(THREADS, 5000, make_captures, make_reports);
}

Test(stress, one_thread_alone_has_barriers)
{
    settings.device.growth_budget.bytes = 0;
    run(1, 20000, NULL, NULL);
    cr_assert_gt(counted().hits.barrier, 0);
}
