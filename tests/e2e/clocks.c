/*
 * Waits of the pool, for a program whose clock may be wrong: it looks at none itself.
 */
#include "pool.h"

#define THREADS 4
#define ROUNDS  60

static struct kernels kernels;
static CUcontext context;

static void *work_on_own_stream(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr block = take(8 * MIB);
        spin(&kernels, stream, 100000);
        CU(cuMemFree_v2(block));
    }
    CU(cuStreamSynchronize(stream));
    return unused;
}

/* More is freed than may be pending: threads wait for fences. */
static void fences(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work_on_own_stream, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Without the pool the free waits. Of 512 MiB so much is left when it is made that this one does
 * not, and the last allocation has to. */
static void out_of_memory(void)
{
    CUstream stream = new_stream();
    CUdeviceptr block = take(24 * MIB);
    spin(&kernels, stream, 400000000);
    CU(cuMemFree_v2(block));
    CUdeviceptr most = take(472 * MIB);
    CU(cuMemFree_v2(take(32 * MIB)));
    CU(cuMemFree_v2(most));
}

/* What is idle goes back. */
static void idle(void)
{
    CU(cuMemFree_v2(take(20 * MIB)));
    for (int looks = 0; has_pool() && pool_bytes().cached + pool_bytes().pending; looks++) {
        CHECK(looks < 3000);
        sleep_ms(10);
    }
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"fences", fences}, {"out_of_memory", out_of_memory}, {"idle", idle}, {NULL, NULL}};
    context = open_primary();
    load_kernels(&kernels);
    return run_case(argc, argv, cases);
}
