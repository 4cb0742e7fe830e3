/*
 * What tests of the pool start from: a pool on the fake driver, with one context. A test changes
 * the settings or the driver, then calls start. Included once by a test program.
 *
 * While one thread uses the pool, every driver call is made with no lock of the pool held; that is
 * looked at in each of them.
 */
#ifndef CUDAPOOL_TESTS_UNIT_POOL_FIXTURE_H
#define CUDAPOOL_TESTS_UNIT_POOL_FIXTURE_H

#include <criterion/criterion.h>
#include <stdatomic.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/contexts/pool_state.h"
#include "core/device_memory/device_memory.h"
#include "core/pool/pool.h"
#include "fake_driver.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)
#define TIB (KIB * GIB)

/* At most so many frees of a lone thread go without a fence of their own. */
#define FREES_TO_A_FENCE 32u

#define DEVICE_BYTES (64 * GIB)

static struct driver *driver;
static struct settings settings;
static struct pool *pool;
static CUcontext context;
static struct thread_functions thread_functions = {pthread_key_create, pthread_setspecific};

/* ---- no lock is held across a driver call ---- */

static bool is_held(pthread_mutex_t *lock)
{
    if (pthread_mutex_trylock(lock) != 0)
        return true;
    pthread_mutex_unlock(lock);
    return false;
}

static void look_at_locks(void *unused)
{
    (void)unused;
    cr_assert_not(is_held(&pool->registry.lock), "the registry lock is held in a driver call");
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        cr_assert_not(short_lock_is_taken(&c->lock), "a heap lock is held in a driver call");
}

static inline void stop_looking_at_locks(void)
{
    fake_during_all(NULL, NULL);
}

/* ---- before and after each test ---- */

static inline void set_up_on(uint64_t device_bytes)
{
    driver = fake_driver(device_bytes);
    settings_defaults(&settings);
}

static inline void set_up(void)
{
    set_up_on(DEVICE_BYTES);
}

/* ---- what must hold after every test ---- */

/* Criterion counts no assertion that fails in a test's end: this ends the process, which counts. */
static void must_hold(bool holds, const char *what, const char *more)
{
    if (holds)
        return;
    fprintf(stderr, "at the test's end: %s: %s\n", what, more);
    abort();
}

static uint64_t hits_of(const struct report_counters *c)
{
    return c->hits.clean + c->hits.queried + c->hits.barrier + c->hits.waited;
}

static void check_bucket(const struct report_bucket *bucket)
{
    const struct report_counters *c = &bucket->counters;
    uint64_t failures = c->failures.memory + c->failures.limit + c->failures.other;
    uint64_t gone = c->evictions.cap + c->evictions.idle + c->evictions.memory + c->evictions.free +
                    c->evictions.context;
    uint64_t free_bytes = c->cached_bytes + c->pending_bytes;
    char numbers[256];
    snprintf(numbers, sizeof numbers,
             "bucket of %" PRIu64 ": %" PRIu64 " requests, %" PRIu64 " hits, %" PRIu64
             " misses, %" PRIu64 " frees, %" PRIu64 " live blocks, %" PRIu64 " gone, %" PRIu64
             " bytes live, %" PRIu64 " free",
             bucket->bytes, c->requests, hits_of(c), c->misses, c->frees, c->live_blocks, gone,
             c->live_bytes, free_bytes);
    must_hold(c->requests == hits_of(c) + c->misses + failures, "requests", numbers);
    must_hold(hits_of(c) + c->misses == c->frees + c->live_blocks, "live blocks", numbers);
    /* Of blocks that are not kept sizes differ, so that bytes don't tell how many there are. */
    if (bucket->bytes == 0)
        return;
    must_hold(c->live_bytes == c->live_blocks * bucket->bytes, "live bytes", numbers);
    must_hold(c->misses == gone + c->live_blocks + free_bytes / bucket->bytes, "misses", numbers);
}

/* In every bucket, requests, hits, misses, blocks given back and live blocks add up. */
static void check_columns(void)
{
    struct report *report = calloc(1, sizeof *report);
    must_hold(pool_report(pool, report) == 0, "the report", "cannot be made");
    for (size_t i = 0; i < report->device_count; i++)
        for (size_t j = 0; j < report->devices[i].kind_count; j++) {
            const struct report_kind *kind = &report->devices[i].kinds[j];
            for (size_t k = 0; k < kind->bucket_count; k++)
                check_bucket(&kind->buckets[k]);
        }
    report_free(report);
    free(report);
}

/* Where the figures are full, sizes count as what is not kept, and blocks that change hands between
 * streams go from one row to another. */
static bool figures_are_full;

static void tear_down(void)
{
    stop_looking_at_locks();
    if (pool && !figures_are_full)
        check_columns();
    must_hold(fake_misuses() == 0, "the driver was misused", fake_last_misuse());
    must_hold(fake_primary_retains(0) == 0, "a primary context", "is retained");
}

static inline void start_without_context(void)
{
    pool = pool_create(driver, &settings, &thread_functions);
    cr_assert_not_null(pool);
    fake_during_all(look_at_locks, NULL);
}

static inline void start(void)
{
    start_without_context();
    context = fake_context(0);
    pool_context_created(pool, context);
    fake_trace();
}

static inline void start_with_budget(uint64_t bytes)
{
    settings.device.growth_budget.bytes = bytes;
    start();
}

/* ---- what a program does ---- */

static inline CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    cr_assert_eq(pool_allocate(pool, &address, bytes), CUDA_SUCCESS);
    return address;
}

static inline CUresult try_to_allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    return pool_allocate(pool, &address, bytes);
}

static inline void release(CUdeviceptr address)
{
    cr_assert_eq(pool_free(pool, address), CUDA_SUCCESS);
}

/* Allocates so many blocks, then frees them all. */
static inline void allocate_and_release(unsigned count, size_t bytes)
{
    CUdeviceptr addresses[1100];
    cr_assert_leq(count, 1100);
    for (unsigned i = 0; i < count; i++)
        addresses[i] = allocate(bytes);
    for (unsigned i = 0; i < count; i++)
        release(addresses[i]);
}

static inline CUresult synchronise(void)
{
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    CUresult result = driver->cuCtxSynchronize();
    pool_synchronise_end(pool, state, result);
    return result;
}

static inline void end_context(CUcontext handle)
{
    struct ending ending = pool_context_ending(pool, handle);
    fake_end_context(handle);
    pool_context_ended(pool, ending, CONTEXT_DIED);
}

static inline CUcontext another_context(CUdevice device)
{
    CUcontext handle = fake_context(device);
    pool_context_created(pool, handle);
    return handle;
}

static inline void begin_capture(CUstream stream)
{
    pool_captures_lock(pool);
    fake_capture_begin(stream);
    pool_capture_began(pool, stream, false);
    pool_captures_unlock(pool);
}

static inline void end_capture(CUstream stream)
{
    fake_capture_end(stream);
    pool_captures_lock(pool);
    pool_capture_perhaps_ended(pool, stream, false);
    pool_captures_unlock(pool);
}

/* A fence that was just seen running is not asked about again for some microseconds. */
static inline void let_time_pass(void)
{
    struct timespec nap = {0, 50000};
    nanosleep(&nap, NULL);
}

/* ---- threads ---- */

struct errand {
    void (*body)(void *);
    void *argument;
    CUcontext context;
    pthread_t thread;
};

static void *run_errand(void *argument)
{
    const struct errand *errand = argument;
    fake_set_current(errand->context);
    errand->body(errand->argument);
    return NULL;
}

/* Another thread, in the same context, does it from now on. Locks are no longer looked at. */
static inline void send(struct errand *errand, void (*body)(void *), void *argument)
{
    stop_looking_at_locks();
    *errand = (struct errand){.body = body, .argument = argument, .context = context};
    cr_assert_eq(pthread_create(&errand->thread, NULL, run_errand, errand), 0);
}

static inline void wait_for(struct errand *errand)
{
    cr_assert_eq(pthread_join(errand->thread, NULL), 0);
}

static inline void in_another_thread(void (*body)(void *), void *argument)
{
    struct errand errand;
    send(&errand, body, argument);
    wait_for(&errand);
}

static inline void allocate_and_free_one(void *bytes)
{
    CUdeviceptr address = 0;
    if (pool_allocate(pool, &address, *(size_t *)bytes) == CUDA_SUCCESS)
        pool_free(pool, address);
}

/* ---- a record that takes long ---- */

static atomic_bool is_recording, let_go_of_the_record;

static inline void stay_in_the_record(void *unused)
{
    (void)unused;
    fake_during(FAKE_RECORD, NULL, NULL);
    atomic_store(&is_recording, true);
    while (!atomic_load(&let_go_of_the_record))
        let_time_pass();
}

/* Another thread frees a large block, and is in the middle of recording its fence from now on,
 * until let_go_of_the_record. */
static inline void hold_a_record(struct errand *recorder)
{
    static size_t bytes = 32 * MIB;
    fake_during(FAKE_RECORD, stay_in_the_record, NULL);
    send(recorder, allocate_and_free_one, &bytes);
    while (!atomic_load(&is_recording))
        let_time_pass();
}

static inline void let_go_soon(void *unused)
{
    struct timespec soon = {0, 30000000};
    (void)unused;
    nanosleep(&soon, NULL);
    atomic_store(&let_go_of_the_record, true);
}

/* From now on the heap has had two users: barriers are closed for a while. */
static inline void let_another_thread_use_the_pool(void)
{
    size_t bytes = 3 * KIB;
    in_another_thread(allocate_and_free_one, &bytes);
}

/* ---- what was counted ---- */

static inline struct heap *heap(void)
{
    return heap_of(context_find(pool, context));
}

static inline struct epochs *epochs(void)
{
    return &context_find(pool, context)->epochs;
}

static inline struct device *device(void)
{
    return context_find(pool, context)->device;
}

static inline uint64_t live_bytes(void)
{
    return pool_device_bytes(pool, 0).live;
}

static inline uint64_t clean_bytes(void)
{
    return pool_device_bytes(pool, 0).cached;
}

static inline uint64_t pending_bytes(void)
{
    return pool_device_bytes(pool, 0).pending;
}

static inline uint64_t reserved_bytes(void)
{
    return atomic_load(&device()->reserved_bytes);
}

/* The totals of the first device. */
static inline struct report_counters counted(void)
{
    static struct report report;
    struct report_counters totals = {0};
    report = (struct report){0};
    cr_assert_eq(pool_report(pool, &report), 0);
    for (size_t i = 0; i < report.device_count; i++)
        if (report.devices[i].ordinal == 0)
            totals = report.devices[i].kinds[0].totals;
    report_free(&report);
    return totals;
}

#endif
