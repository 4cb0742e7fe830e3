/*
 * Threads that race into the first call of the process, each by its own way.
 *
 * usage: interposition_race [exit]
 * exit: one thread ends the process with exit(0) while the others go on.
 */
#include <pthread.h>
#include <stdint.h>

#include "interposition.h"

#define THREADS 16
#define ROUNDS  50

typedef CUresult allocate_function(CUdeviceptr *pointer, size_t bytes);

static pthread_barrier_t all_are_ready;
static CUcontext context;
static bool ends_early;

static allocate_function *allocate_by(uintptr_t way)
{
    void *found = (void *)cuMemAlloc_v2;
    CUdriverProcAddressQueryResult status;
    if (way % 3 == 1)
        found = function_of(open_library(DRIVER_OBJECT, RTLD_NOW), "cuMemAlloc_v2");
    if (way % 3 == 2)
        CU(cuGetProcAddress_v2("cuMemAlloc", &found, 3020, 0, &status));
    CHECK(is_ours(found));
    return (allocate_function *)found;
}

static void *work(void *number)
{
    pthread_barrier_wait(&all_are_ready);
    allocate_function *allocate = allocate_by((uintptr_t)number);
    CU(cuCtxSetCurrent(context));
    for (int round = 0; round < ROUNDS || ends_early; round++) {
        CUdeviceptr pointer;
        CU(allocate(&pointer, 4096));
        CU(cuMemsetD8_v2(pointer, 1, 4096));
        CU(cuMemFree_v2(pointer));
        if (ends_early && (uintptr_t)number == 0 && round == ROUNDS)
            exit(0);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    ends_early = argc > 1 && strcmp(argv[1], "exit") == 0;
    lookup_function *real = glibc_dlsym();
    void *driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    CUresult (*retain)(CUcontext *, CUdevice) =
        (CUresult(*)(CUcontext *, CUdevice))real(driver, "cuDevicePrimaryCtxRetain");
    CU(cuInit(0));
    CU(retain(&context, 0)); /* past the preload object: the threads' calls are its first */
    pthread_barrier_init(&all_are_ready, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
