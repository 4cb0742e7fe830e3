/*
 * Cases of a review of stream-ordered memory: the order of reuse. Each case prints how many words
 * were wrong; without the pool none is (use_and_capture needs the pool). With SIMCUDA_RACES=1 the
 * race detector says which order is missing.
 */
#include "pool.h"
#include <unistd.h>
#pragma weak cudapool_reap
enum { WORDS = 1024 };
static struct kernels kernels;
static CUdeviceptr take_on(CUstream stream, size_t bytes)
{
    CUdeviceptr address = 0;
    CU(cuMemAllocAsync(&address, bytes, stream));
    return address;
}
static CUstream new_blocking_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    return stream;
}
static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
}

/* used on the legacy stream, freed on a blocking one, which is then waited for */
static void legacy_use_sync(CUstream s)
{
    CUstream n = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, NULL, b, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CU(cuStreamSynchronize(s));
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
static void a_sync(void)
{
    furnish();
    legacy_use_sync(new_blocking_stream());
}
static void a_perthread(void)
{
    furnish();
    legacy_use_sync(CU_STREAM_PER_THREAD);
}
static void a_query(void)
{
    furnish();
    CUstream s = new_blocking_stream(), n = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, NULL, b, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY)
        usleep(100);
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* own order, then the program waits for the allocation on the host */
static void b_alloc_sync(void)
{
    furnish();
    CUstream s = new_blocking_stream(), n = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, NULL, b, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CUdeviceptr c = take_on(s, MIB);
    fprintf(stderr, "same %d\n", c == b);
    CU(cuStreamSynchronize(s));
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* another blocking stream's kernel; the legacy stream in between; freed elsewhere */
static void a_via_legacy(void)
{
    furnish();
    CUstream t = new_blocking_stream(), s = new_blocking_stream(), n = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(t, MIB);
    fill(&kernels, t, b, WORDS, 1);
    spin_then_verify(&kernels, t, 50000000, b, WORDS, 1, wrong);
    spin(&kernels, NULL, 1);
    CU(cuMemFreeAsync(b, s));
    CU(cuStreamSynchronize(s));
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* previous life still running, new life unused and freed plainly */
static void plain_free_unused(void)
{
    furnish();
    CUstream s = new_stream(), n = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, s, b, WORDS, 1);
    spin_then_verify(&kernels, s, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CUdeviceptr c = take_on(s, MIB);
    CU(cuMemFree_v2(c));
    CUdeviceptr d = take_on(n, MIB);
    fprintf(stderr, "same %d %d\n", c == b, d == b);
    fill(&kernels, n, d, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* destroyed with no context current */
static void destroy_without_context(void)
{
    CUcontext ctx;
    furnish();
    CU(cuCtxGetCurrent(&ctx));
    CUstream s = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, s, b, WORDS, 1);
    spin_then_verify(&kernels, s, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CU(cuCtxSetCurrent(NULL));
    fprintf(stderr, "destroy %d\n", cuStreamDestroy_v2(s));
    CU(cuCtxSetCurrent(ctx));
    CUstream r = new_stream();
    CUdeviceptr c = take_on(r, MIB);
    fprintf(stderr, "handle same %d, same %d\n", r == s, c == b);
    fill(&kernels, r, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
static void *destroyer(void *s)
{
    fprintf(stderr, "destroy %d\n", cuStreamDestroy_v2(s));
    return NULL;
}
static void destroy_in_bare_thread(void)
{
    pthread_t t;
    furnish();
    CUstream s = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, s, b, WORDS, 1);
    spin_then_verify(&kernels, s, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    pthread_create(&t, NULL, destroyer, s);
    pthread_join(t, NULL);
    CUstream r = new_stream();
    CUdeviceptr c = take_on(r, MIB);
    fprintf(stderr, "handle same %d, same %d\n", r == s, c == b);
    fill(&kernels, r, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* the legacy stream waits for an event; freed on a blocking stream that is then waited for */
static void legacy_waits_event(void)
{
    furnish();
    CUstream s = new_blocking_stream(), t = new_stream(), n = new_stream();
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr wrong = new_counter(), b = take_on(t, MIB);
    fill(&kernels, t, b, WORDS, 1);
    spin_then_verify(&kernels, t, 50000000, b, WORDS, 1, wrong);
    CU(cuEventRecord(e, t));
    CU(cuStreamWaitEvent(NULL, e, 0));
    CU(cuMemFreeAsync(b, s));
    CU(cuStreamSynchronize(s));
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* the same by a barrier of the context */
static void ctx_barrier(void)
{
    CUcontext ctx;
    furnish();
    CU(cuCtxGetCurrent(&ctx));
    CUstream s = new_stream(), t = new_stream(), n = new_stream();
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr wrong = new_counter(), b = take_on(t, MIB);
    fill(&kernels, t, b, WORDS, 1);
    spin_then_verify(&kernels, t, 50000000, b, WORDS, 1, wrong);
    CU(cuCtxRecordEvent(ctx, e));
    CU(cuCtxWaitEvent(ctx, e));
    CU(cuMemFreeAsync(b, s));
    CU(cuStreamSynchronize(s));
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* a barrier, and then the host reads: only what the program waited for */
/* reap and a legacy use */
static void reap_legacy(void)
{
    furnish();
    CUstream s = new_blocking_stream(), n = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, NULL, b, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    if (cudapool_reap)
        fprintf(stderr, "reaped %u\n", cudapool_reap());
    else
        CU(cuStreamSynchronize(s));
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* what is clean by it goes back to the driver: trim the pool while the kernel runs */
static void trim_under_kernel(void)
{
    furnish();
    CUmemoryPool mp;
    CU(cuDeviceGetDefaultMemPool(&mp, 0));
    CUstream s = new_blocking_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, NULL, b, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CU(cuStreamSynchronize(s));
    CU(cuMemPoolTrimTo(mp, 0));
    EQUAL(0, read_counter(wrong));
}
/* event recorded on a blocking stream: an operation there */
static void event_sync_ok(void)
{
    furnish();
    CUstream s = new_blocking_stream(), n = new_stream();
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, NULL, b, WORDS, 1);
    spin_then_verify(&kernels, NULL, 50000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CU(cuEventRecord(e, s));
    CU(cuEventSynchronize(e));
    CUdeviceptr c = take_on(n, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, n, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
#pragma weak cudapool_generation
#pragma weak cudapool_record_use
/* a free while a capture goes on elsewhere: does it wait for the reads that were told of? */
static void use_and_capture(void)
{
    CUgraph graph;
    furnish();
    CUstream s = new_stream(), r = new_stream(), cap = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, s, b, WORDS, 1);
    EQUAL(0, (unsigned)cudapool_record_use(b, cudapool_generation(b), r, CUDAPOOL_READ));
    spin_then_verify(&kernels, r, 100000000, b, WORDS, 1, wrong);
    CU(cuStreamBeginCapture_v2(cap, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemFreeAsync(b, s));
    CU(cuStreamEndCapture(cap, &graph));
    CUdeviceptr c = take_on(s, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, s, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
static void use_no_capture(void)
{
    furnish();
    CUstream s = new_stream(), r = new_stream();
    CUdeviceptr wrong = new_counter(), b = take_on(s, MIB);
    fill(&kernels, s, b, WORDS, 1);
    EQUAL(0, (unsigned)cudapool_record_use(b, cudapool_generation(b), r, CUDAPOOL_READ));
    spin_then_verify(&kernels, r, 100000000, b, WORDS, 1, wrong);
    CU(cuMemFreeAsync(b, s));
    CUdeviceptr c = take_on(s, MIB);
    fprintf(stderr, "same %d\n", c == b);
    fill(&kernels, s, c, WORDS, 2);
    EQUAL(0, read_counter(wrong));
}
/* own block handed out behind a barrier of another context's */
static void barrier_then_other_context(void)
{
    CUcontext a, b2;
    furnish();
    CU(cuCtxGetCurrent(&a));
    CU(cuCtxCreate_v2(&b2, 0, 0));
    static struct kernels k2;
    load_kernels(&k2);
    CUstream m = new_stream();
    CU(cuCtxSetCurrent(a));
    CUstream s = new_stream(), t = new_stream();
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr wrong = new_counter(), b = take_on(t, MIB);
    fill(&kernels, t, b, WORDS, 1);
    spin_then_verify(&kernels, t, 50000000, b, WORDS, 1, wrong);
    CU(cuCtxRecordEvent(a, e));
    CU(cuCtxWaitEvent(a, e));
    CU(cuMemFreeAsync(b, s));
    CUdeviceptr c = take_on(s, MIB);
    fprintf(stderr, "same %d\n", c == b);
    CU(cuStreamSynchronize(s));
    CU(cuCtxSetCurrent(b2));
    fill(&k2, m, c, WORDS, 2);
    CU(cuStreamSynchronize(m));
    CU(cuCtxSetCurrent(a));
    EQUAL(0, read_counter(wrong));
}
int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
    static const struct test_case cases[] = {
        CASE(a_sync),
        CASE(a_perthread),
        CASE(a_query),
        CASE(b_alloc_sync),
        CASE(a_via_legacy),
        CASE(plain_free_unused),
        CASE(destroy_without_context),
        CASE(destroy_in_bare_thread),
        CASE(legacy_waits_event),
        CASE(ctx_barrier),
        CASE(reap_legacy),
        CASE(trim_under_kernel),
        CASE(event_sync_ok),
        CASE(use_and_capture),
        CASE(use_no_capture),
        CASE(barrier_then_other_context),
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
