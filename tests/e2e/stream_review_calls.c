/*
 * Cases of a review of stream-ordered memory: waits, errors, captures, contexts that end, and
 * memory that grows without bound. Each case prints what it found; without the pool all of them are
 * well.
 */
#include "pool.h"
#include <unistd.h>
enum { WORDS = 1024 };
static struct kernels kernels;
static CUdeviceptr take_on(CUstream s, size_t b)
{
    CUdeviceptr a = 0;
    CU(cuMemAllocAsync(&a, b, s));
    return a;
}
static CUstream blocking(void)
{
    CUstream s;
    CU(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    return s;
}
static void furnish(void)
{
    open_primary();
    load_kernels(&kernels);
}
static unsigned long long in_use(void)
{
    cuuint64_t v = 0;
    CUmemoryPool p;
    CU(cuDeviceGetDefaultMemPool(&p, 0));
    CU(cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &v));
    return v;
}

/* E1 */
static void legacy_join_hang(void)
{
    furnish();
    CUstream a = blocking(), b = blocking(), x = new_stream();
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr warm = take_on(NULL, MIB);
    CU(cuMemFreeAsync(warm, NULL));
    take_on(NULL, MIB);
    CUdeviceptr p = take_on(x, MIB);
    spin(&kernels, x, 50000000);
    CU(cuMemFreeAsync(p, x));
    CU(cuEventRecord(e, x));
    CU(cuStreamWaitEvent(NULL, e, 0));
    void *memory;
    CUdeviceptr flag;
    CU(cuMemHostAlloc(&memory, 8, CU_MEMHOSTALLOC_DEVICEMAP));
    *(volatile long *)memory = 0;
    CU(cuMemHostGetDevicePointer_v2(&flag, memory, 0));
    wait_flag(&kernels, a, flag);
    CUdeviceptr q = take_on(NULL, MIB);
    printf("p %llx q %llx\n", (unsigned long long)p, (unsigned long long)q);
    fflush(stdout);
    alarm(8);
    void *params[] = {&flag};
    CU(cuLaunchKernel(kernels.set_flag, 1, 1, 1, 1, 1, 1, 0, b, params, NULL));
    CU(cuStreamSynchronize(b));
    CU(cuStreamSynchronize(a));
    puts("finished");
}
/* E2: one stream, growing sizes, waits by cuMemcpyDtoH only */
static void sizes_grow(void)
{
    furnish();
    CUstream s = new_stream();
    char word[4];
    CUdeviceptr keep = take_on(s, 4096);
    for (int i = 1; i <= 200; i++) {
        CUdeviceptr p = take_on(s, (size_t)i * MIB);
        fill(&kernels, s, p, WORDS, 1);
        CU(cuMemFreeAsync(p, s));
        CU(cuMemcpyDtoHAsync_v2(word, keep, 4, s));
        if (i % 10 == 0) {
            CUevent e;
            (void)e;
        }
        if (i % 50 == 0) {
            printf("%d: reserved %llu MiB", i, in_use() >> 20);
            if (has_pool())
                printf(" cached %llu pending %llu", (unsigned long long)pool_bytes().cached >> 20,
                       (unsigned long long)pool_bytes().pending >> 20);
            puts("");
        }
    }
}
/* E3 */
static CUcontext ctx;
static void *one_thread(void *u)
{
    (void)u;
    CU(cuCtxSetCurrent(ctx));
    CUdeviceptr p = take_on(CU_STREAM_PER_THREAD, 64 * MIB);
    fill(&kernels, CU_STREAM_PER_THREAD, p, WORDS, 1);
    CU(cuMemFreeAsync(p, CU_STREAM_PER_THREAD));
    return NULL;
}
static void threads_end(void)
{
    furnish();
    CU(cuCtxGetCurrent(&ctx));
    for (int i = 0; i < 100; i++) {
        pthread_t t;
        pthread_create(&t, NULL, one_thread, NULL);
        pthread_join(t, NULL);
        sleep_ms(2);
        if (i % 20 == 19) {
            printf("%d: reserved %llu MiB", i, in_use() >> 20);
            if (has_pool())
                printf(" cached %llu pending %llu", (unsigned long long)pool_bytes().cached >> 20,
                       (unsigned long long)pool_bytes().pending >> 20);
            puts("");
        }
    }
}
/* many live streams, one round */
static void streams_once(void)
{
    furnish();
    for (int r = 0; r < 3; r++) {
        static CUstream s[100];
        for (int i = 0; i < 100; i++) {
            if (!r)
                s[i] = new_stream();
            CUdeviceptr p = take_on(s[i], 64 * MIB);
            fill(&kernels, s[i], p, WORDS, 1);
            CU(cuMemFreeAsync(p, s[i]));
            sleep_ms(1);
            if (i % 50 == 49) {
                printf("%d: reserved %llu MiB", i, in_use() >> 20);
                if (has_pool())
                    printf(" cached %llu pending %llu",
                           (unsigned long long)pool_bytes().cached >> 20,
                           (unsigned long long)pool_bytes().pending >> 20);
                puts("");
            }
        }
    }
}
/* release during capture */
static void release_in_capture(void)
{
    furnish();
    CUstream s = new_stream(), t = new_stream();
    CUcontext c;
    CUdeviceptr p = take_on(s, MIB);
    struct gate g = close_gate(&kernels, s);
    CU(cuMemFreeAsync(p, s));
    CU(cuStreamDestroy_v2(s));
    CU(cuStreamBeginCapture_v2(t, CU_STREAM_CAPTURE_MODE_RELAXED));
    double start = now_ms();
    CU(cuDevicePrimaryCtxRetain(&c, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    printf("retain, release: %.0f ms\n", now_ms() - start);
    open_gate(g);
}
/* retain/release flushes the cache */
static void release_flushes(void)
{
    furnish();
    CUcontext c;
    CUstream s = new_stream();
    CUdeviceptr p[8];
    for (int i = 0; i < 8; i++)
        p[i] = take_on(s, MIB);
    for (int i = 0; i < 8; i++)
        CU(cuMemFreeAsync(p[i], s));
    printf("cached+pending %llu KiB\n",
           (unsigned long long)(pool_bytes().cached + pool_bytes().pending) >> 10);
    CU(cuDevicePrimaryCtxRetain(&c, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    printf("after %llu KiB\n",
           (unsigned long long)(pool_bytes().cached + pool_bytes().pending) >> 10);
}
static double pair_ns(CUstream s, int n)
{
    double t = now_ms();
    for (int i = 0; i < n; i++)
        CU(cuMemFreeAsync(take_on(s, MIB), s));
    return (now_ms() - t) * 1e6 / n;
}
/* many memory pools over time */
static void many_mempools(void)
{
    furnish();
    CUstream s = new_stream();
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    pair_ns(s, 1000);
    printf("before %.0f ns\n", pair_ns(s, 20000));
    for (int i = 0; i < 1100; i++) {
        CUmemoryPool m;
        CUdeviceptr p;
        CU(cuMemPoolCreate(&m, &properties));
        CU(cuMemAllocFromPoolAsync(&p, MIB, m, s));
        CU(cuMemFreeAsync(p, s));
        CU(cuMemPoolDestroy(m));
    }
    printf("after 1100 pools %.0f ns\n", pair_ns(s, 20000));
}
/* 2000 live streams round robin */
static void many_streams(void)
{
    furnish();
    static CUstream s[2000];
    int counts[] = {10, 100, 1000, 2000};
    for (int i = 0; i < 2000; i++)
        s[i] = new_stream();
    for (int k = 0; k < 4; k++) {
        int n = counts[k];
        for (int i = 0; i < n; i++)
            CU(cuMemFreeAsync(take_on(s[i], MIB), s[i]));
        double t = now_ms();
        for (int r = 0; r < 5; r++)
            for (int i = 0; i < n; i++)
                CU(cuMemFreeAsync(take_on(s[i], MIB), s[i]));
        printf("%d streams: %.0f ns a pair\n", n, (now_ms() - t) * 1e6 / (5 * n));
        fflush(stdout);
    }
}

static void release_old(void)
{
    furnish();
    CUstream s = new_stream();
    CUcontext c;
    CUdeviceptr p = take_on(s, MIB);
    struct gate g = close_gate(&kernels, s);
    CU(cuMemFreeAsync(p, s));
    CU(cuStreamDestroy_v2(s));
    alarm(8);
    double start = now_ms();
    CU(cuDevicePrimaryCtxRetain(&c, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    printf("retain, release: %.0f ms\n", now_ms() - start);
    open_gate(g);
}
static void oom_beside_kernel(void)
{
    furnish();
    CUstream s = new_stream(), x = new_stream(), t = new_stream();
    CUdeviceptr p = 0;
    struct gate g = close_gate(&kernels, x);
    CUdeviceptr keep = take_on(x, 100 * MIB), a = take_on(s, 500 * MIB);
    (void)keep;
    fill(&kernels, s, a, WORDS, 1);
    CU(cuMemFreeAsync(a, s));
    sleep_ms(50);
    double start = now_ms();
    CUresult r = cuMemAllocAsync(&p, 500 * MIB, t);
    printf("alloc answers %d after %.0f ms\n", r, now_ms() - start);
    open_gate(g);
}
static void oom_plain_beside_kernel(void)
{
    furnish();
    CUstream s = new_stream(), x = new_stream();
    CUdeviceptr p = 0;
    struct gate g = close_gate(&kernels, x);
    CUdeviceptr keep = take_on(x, 100 * MIB), a = take_on(s, 500 * MIB);
    (void)keep;
    fill(&kernels, s, a, WORDS, 1);
    CU(cuMemFreeAsync(a, s));
    sleep_ms(50);
    double start = now_ms();
    CUresult r = cuMemAlloc_v2(&p, 500 * MIB);
    printf("alloc answers %d after %.0f ms\n", r, now_ms() - start);
    open_gate(g);
}
static void many_streams_long(void)
{
    furnish();
    static CUstream s[2000];
    int counts[] = {10, 16, 32, 100, 300, 1000, 2000};
    for (int i = 0; i < 2000; i++)
        s[i] = new_stream();
    for (int k = 0; k < 7; k++) {
        int n = counts[k];
        for (int r = 0; r < 20; r++)
            for (int i = 0; i < n; i++)
                CU(cuMemFreeAsync(take_on(s[i], MIB), s[i]));
        int rounds = 40000 / n;
        double t = now_ms();
        for (int r = 0; r < rounds; r++)
            for (int i = 0; i < n; i++)
                CU(cuMemFreeAsync(take_on(s[i], MIB), s[i]));
        printf("%d streams: %.0f ns a pair\n", n, (now_ms() - t) * 1e6 / (rounds * n));
        fflush(stdout);
    }
    unsigned long long id;
    double t = now_ms();
    for (int i = 0; i < 100000; i++)
        CU(cuStreamGetId(s[i % 2000], &id));
    printf("cuStreamGetId here %.0f ns\n", (now_ms() - t) * 10);
}
static void streams_by_the_million(void)
{
    furnish();
    for (int k = 0; k < 12; k++) {
        double t = now_ms();
        for (int i = 0; i < 20000; i++) {
            CUstream s = new_stream();
            CU(cuMemFreeAsync(take_on(s, MIB), s));
            CU(cuStreamDestroy_v2(s));
        }
        printf("%.0f ns each\n", (now_ms() - t) * 50);
        fflush(stdout);
        char line[200];
        FILE *f = fopen("/proc/self/status", "r");
        while (fgets(line, 200, f))
            if (!strncmp(line, "VmRSS", 5))
                fputs(line, stdout);
        fclose(f);
    }
}

#include <dlfcn.h>
static void buried(void)
{
    void *(*rd)(void *, const char *) =
        (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*destroy)(CUcontext) = (CUresult(*)(CUcontext))rd(lib, "cuCtxDestroy_v2");
    CUdevice d;
    CUcontext c1, c2;
    CU(cuInit(0));
    CU(cuDeviceGet(&d, 0));
    CU(cuCtxCreate_v2(&c1, 0, d));
    CUstream s = new_stream();
    CUdeviceptr p = take_on(s, MIB), p2 = take_on(s, 2 * MIB);
    CU(cuMemFreeAsync(p, s));
    CU(cuMemFreeAsync(p2, s));
    CU(cuStreamSynchronize(s));
    cudapool_trim ? cudapool_trim() : 0;
    p = take_on(s, MIB);
    CU(cuMemFreeAsync(p, s));
    CU(cuStreamSynchronize(s));
    CU(destroy(c1));
    CU(cuCtxCreate_v2(&c2, 0, d));
    printf("same handle %d\n", c1 == c2);
    CUstream s2 = new_stream();
    CUdeviceptr q = take_on(s2, MIB);
    printf("p %llx q %llx\n", (unsigned long long)p, (unsigned long long)q);
    CU(cuMemFreeAsync(q, s2));
    CU(cuCtxSynchronize());
    puts("end");
}

static void record_cost(void)
{
    furnish();
    CUstream s = new_stream();
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (int k = 0; k < 3; k++) {
        if (k == 1)
            CU(cuMemFreeAsync(take_on(s, MIB), s));
        if (k == 2)
            for (int i = 0; i < 100; i++) {
                CUstream t = new_stream();
                CU(cuMemFreeAsync(take_on(t, MIB), t));
            }
        CU(cuStreamSynchronize(s));
        double t = now_ms();
        for (int i = 0; i < 20000; i++)
            CU(cuEventRecord(e, s));
        double r = now_ms() - t;
        CU(cuStreamSynchronize(s));
        t = now_ms();
        for (int i = 0; i < 100000; i++)
            CU(cuEventQuery(e));
        double q = now_ms() - t;
        t = now_ms();
        for (int i = 0; i < 100000; i++)
            CU(cuStreamQuery(s));
        double w = now_ms() - t;
        t = now_ms();
        for (int i = 0; i < 2000; i++)
            CU(cuCtxSynchronize());
        double c = now_ms() - t;
        printf("%d: record %.0f ns, event query %.0f, stream query %.0f, context sync %.0f\n", k,
               r * 50, q * 10, w * 10, c * 500);
    }
}
static void *holder(void *u)
{
    (void)u;
    return NULL;
}
static void destroy_null(void)
{
    furnish();
    (void)holder;
    CUdeviceptr p = take_on(NULL, MIB);
    CU(cuMemFreeAsync(p, NULL));
    for (int i = 0; i < 3000; i++) {
        CUresult r = cuStreamDestroy_v2(i % 2 ? NULL : CU_STREAM_PER_THREAD);
        if (i < 2)
            printf("destroy answers %d\n", r);
        p = take_on(NULL, MIB);
        CU(cuMemFreeAsync(p, NULL));
    }
    if (has_pool())
        printf("kept %llu KiB\n",
               (unsigned long long)(pool_bytes().cached + pool_bytes().pending) >> 10);
}

static void sticky(void)
{
    furnish();
    CUstream s = new_stream();
    CUdeviceptr p = take_on(s, MIB);
    CU(cuMemFreeAsync(p, s));
    p = take_on(s, MIB);
    CU(cuMemFreeAsync(p, s));
    printf("sync %d\n", cuCtxSynchronize());
    CUresult r = cuMemAllocAsync(&p, MIB, s);
    CUresult f = cuMemFreeAsync(p, s);
    printf("alloc %d free %d\n", r, f);
}

static void internal_hang(void)
{
    furnish();
    CUstream x = new_stream(), s = new_stream();
    void *memory;
    CUdeviceptr flag;
    CU(cuMemHostAlloc(&memory, 8, CU_MEMHOSTALLOC_DEVICEMAP));
    *(volatile long *)memory = 0;
    CU(cuMemHostGetDevicePointer_v2(&flag, memory, 0));
    CUdeviceptr p, q;
    p = take_on(x, MIB);
    spin(&kernels, x, 20000000);
    CU(cuMemFreeAsync(p, x));
    q = take_on(s, MIB);
    (void)q;
    p = take_on(x, MIB);
    wait_flag(&kernels, x, flag);
    CU(cuMemFreeAsync(p, x));
    q = take_on(s, MIB);
    printf("p %llx q %llx\n", (unsigned long long)p, (unsigned long long)q);
    fflush(stdout);
    alarm(8);
    void *params[] = {&flag};
    CU(cuLaunchKernel(kernels.set_flag, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    CU(cuStreamSynchronize(s));
    CU(cuStreamSynchronize(x));
    puts("finished");
}

static void trim_barred(void)
{
    furnish();
    CUstream x = new_stream(), s = new_stream();
    CUcontext c;
    CU(cuCtxGetCurrent(&c));
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    CUmemoryPool m;
    CU(cuDeviceGetDefaultMemPool(&m, 0));
    CUdeviceptr p = take_on(s, MIB);
    CU(cuMemFreeAsync(p, s));
    CU(cuStreamSynchronize(s));
    struct gate g = close_gate(&kernels, x);
    CU(cuEventRecord(e, x));
    CU(cuCtxWaitEvent(c, e));
    double t = now_ms();
    CU(cuMemPoolTrimTo(m, 0));
    printf("trim %.0f ms\n", now_ms() - t);
    open_gate(g);
}
static void sizes_grow2(void)
{
    furnish();
    CUstream s = new_stream();
    unsigned word;
    CUdeviceptr keep = take_on(s, 4096);
    for (int i = 1; i <= 400; i++) {
        CUdeviceptr p = take_on(s, (size_t)(8 + i % 97 * 2) * MIB);
        fill(&kernels, s, p, WORDS, 1);
        CU(cuMemFreeAsync(p, s));
        CUevent e;
        (void)e;
        CU(cuMemcpyDtoH_v2(&word, keep, 4));
        if (i % 100 == 0) {
            printf("%d: reserved %llu MiB", i, in_use() >> 20);
            if (has_pool())
                printf(" cached %llu pending %llu", (unsigned long long)pool_bytes().cached >> 20,
                       (unsigned long long)pool_bytes().pending >> 20);
            puts("");
        }
    }
}

static CUstream doomed, next_one;
static void *destroy_it(void *u)
{
    (void)u;
    CU(cuCtxSetCurrent(ctx));
    CU(cuStreamDestroy_v2(doomed));
    next_one = new_stream();
    return NULL;
}
static void on_sync(const char *n)
{
    (void)n;
    static int once;
    if (once++)
        return;
    pthread_t t;
    pthread_create(&t, NULL, destroy_it, NULL);
    pthread_join(t, NULL);
}
#pragma weak cudapool_reap
static void reap_race(void)
{
    furnish();
    CU(cuCtxGetCurrent(&ctx));
    doomed = new_stream();
    CUstream other = new_stream();
    CUdeviceptr wrong = new_counter(), p = take_on(doomed, MIB);
    fill(&kernels, doomed, p, WORDS, 1);
    spin_then_verify(&kernels, doomed, 300000000, p, WORDS, 1, wrong);
    CU(cuMemFreeAsync(p, doomed));
    CUstream was = doomed;
    simcuda_set_callback("cuStreamSynchronize", on_sync);
    unsigned n = cudapool_reap();
    printf("reaped %u, same handle %d\n", n, was == next_one);
    CUdeviceptr q = take_on(other, MIB);
    printf("same block %d\n", p == q);
    fill(&kernels, other, q, WORDS, 2);
    CU(cuCtxSynchronize());
    printf("wrong words %llu\n", (unsigned long long)read_counter(wrong));
}

static void release_then_oom(void)
{
    furnish();
    CUcontext c;
    CUstream x = new_stream(), s = new_stream();
    CUdeviceptr keep = take_on(x, 100 * MIB), a = take_on(s, 500 * MIB);
    (void)keep;
    struct gate g = close_gate(&kernels, x);
    fill(&kernels, s, a, WORDS, 1);
    CU(cuMemFreeAsync(a, s));
    CU(cuDevicePrimaryCtxRetain(&c, 0));
    CU(cuDevicePrimaryCtxRelease_v2(0));
    double t = now_ms();
    CUresult r = cuMemAllocAsync(&a, 500 * MIB, s);
    printf("alloc answers %d after %.0f ms\n", r, now_ms() - t);
    open_gate(g);
}
int main(int argc, char **argv)
{
#define CASE(n)                                                                                    \
    {                                                                                              \
#n, n                                                                                      \
    }
    static const struct test_case cases[] = {CASE(legacy_join_hang),
                                             CASE(sizes_grow),
                                             CASE(threads_end),
                                             CASE(streams_once),
                                             CASE(release_in_capture),
                                             CASE(release_flushes),
                                             CASE(many_mempools),
                                             CASE(many_streams),
                                             CASE(release_then_oom),
                                             CASE(reap_race),
                                             CASE(trim_barred),
                                             CASE(sizes_grow2),
                                             CASE(internal_hang),
                                             CASE(sticky),
                                             CASE(record_cost),
                                             CASE(destroy_null),
                                             CASE(buried),
                                             CASE(release_old),
                                             CASE(oom_beside_kernel),
                                             CASE(oom_plain_beside_kernel),
                                             CASE(many_streams_long),
                                             CASE(streams_by_the_million),
                                             {NULL, NULL}};
    return run_case(argc, argv, cases);
}
