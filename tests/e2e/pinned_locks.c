/*
 * Pinned host memory in programs that hold a lock which the GPU's work needs, and beside a GPU that
 * always has work: without the pool each case ends at once, or as soon as the driver answers.
 *
 * usage: pinned_locks CASE    pinned.sh says with which settings.
 */
#include <stdatomic.h>

#include "pool.h"

enum { BLOCKS = 8, LOCKED_MS = 5000, VAIN_WAIT_MS = 1000 /* of the pool's */ };

static CUcontext context;
static struct kernels kernels;
static CUstream stream;
static pthread_mutex_t needed = PTHREAD_MUTEX_INITIALIZER;
/* Relaxed: joining the threads orders what they did. */
static atomic_int stop, is_busy;

static void furnish(void)
{
    context = open_primary();
    load_kernels(&kernels);
    stream = new_stream();
    spin(&kernels, stream, 1000);
    CU(cuCtxSynchronize());
}

static void *pin(size_t bytes)
{
    void *block = NULL;
    CU(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE));
    return block;
}

static void unpin(void *block)
{
    CU(cuMemFreeHost(block));
}

/* --- host functions that take the lock -------------------------------------------------------*/

static void take_the_lock(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&needed);
    pthread_mutex_unlock(&needed);
}

static void *submit(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUstream own = new_stream();
    while (!stop) {
        CU(cuLaunchHostFunc(own, take_the_lock, NULL));
        CU(cuStreamSynchronize(own));
        struct timespec nap = {0, 20000};
        nanosleep(&nap, NULL);
    }
    return unused;
}

static void allocates_beside_host_functions(void)
{
    pthread_t thread;
    unsigned int seed = 1;
    furnish();
    sleep_ms(1200); /* so that it counts as a program that is not at work */
    CHECK(pthread_create(&thread, NULL, submit, NULL) == 0);
    for (double end = now_ms() + LOCKED_MS; now_ms() < end;) {
        size_t bytes =
            (2 + (size_t)rand_r(&seed) % 60) * MIB + (size_t)(rand_r(&seed) % 16) * 65536;
        pthread_mutex_lock(&needed);
        void *block = pin(bytes);
        pthread_mutex_unlock(&needed);
        unpin(block);
    }
    stop = 1;
    pthread_join(thread, NULL);
}

/* --- work that another thread ends, once it has the lock -------------------------------------*/

static void *open_with_the_lock(void *gate)
{
    sleep_ms(100);
    pthread_mutex_lock(&needed);
    open_gate(*(struct gate *)gate);
    pthread_mutex_unlock(&needed);
    return NULL;
}

/* Frees the first block beside work, which the plain free waits for, and then the others with the
 * lock. */
static void free_with_the_lock(void **blocks, unsigned int count)
{
    pthread_t thread;
    struct gate gate = new_gate();
    close_this_gate(gate, &kernels, stream);
    CHECK(pthread_create(&thread, NULL, open_with_the_lock, &gate) == 0);
    unpin(blocks[0]);
    pthread_mutex_lock(&needed);
    double started = now_ms();
    for (unsigned int i = 1; i < count; i++)
        unpin(blocks[i]);
    CHECK(now_ms() - started < 2 * VAIN_WAIT_MS);
    pthread_mutex_unlock(&needed);
    pthread_join(thread, NULL);
    CU(cuCtxSynchronize());
}

static void frees_with_a_lock(void)
{
    void *blocks[BLOCKS];
    furnish();
    for (unsigned int i = 0; i < BLOCKS; i++)
        blocks[i] = pin(3 * MIB);
    free_with_the_lock(blocks, BLOCKS);
}

static void frees_a_large_one_with_a_lock(void)
{
    furnish();
    free_with_the_lock((void *[]){pin(64 << 10), pin((size_t)1100 * MIB)}, 2);
}

/* --- a GPU that always has work --------------------------------------------------------------*/

static void *keep_busy(void *unused)
{
    CU(cuCtxSetCurrent(context));
    CUstream streams[2] = {new_stream(), new_stream()};
    spin(&kernels, streams[0], 100000000);
    for (int i = 1; !stop; i++) {
        spin(&kernels, streams[i % 2], 200000000);
        is_busy = 1;
        sleep_ms(100);
    }
    return unused;
}

static void *free_often(void *unused)
{
    CU(cuCtxSetCurrent(context));
    while (!stop) {
        unpin(pin(65536));
        sleep_ms(1);
    }
    return unused;
}

/* What is cached is in the way. */
static void makes_room_beside_work(void)
{
    pthread_t threads[2];
    furnish();
    CHECK(pthread_create(&threads[0], NULL, keep_busy, NULL) == 0);
    while (!is_busy)
        sleep_ms(1);
    unpin(pin(40 * MIB));
    CHECK(pthread_create(&threads[1], NULL, free_often, NULL) == 0);
    sleep_ms(50);
    unpin(pin(30 * MIB));
    stop = 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"allocates_beside_host_functions", allocates_beside_host_functions},
        {"frees_with_a_lock", frees_with_a_lock},
        {"frees_a_large_one_with_a_lock", frees_a_large_one_with_a_lock},
        {"makes_room_beside_work", makes_room_beside_work},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
