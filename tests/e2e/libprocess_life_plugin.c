/*
 * A library that has device memory used by a thread of its own before its constructor returns: the
 * dynamic linker's lock is held meanwhile, by the thread that waits for that one. Its destructor
 * does the same.
 */
#include <pthread.h>
#include <stddef.h>

#include "../driver_api.h"

int plugin_failures;

static void *use_memory(void *unused)
{
    CUcontext context;
    CUdeviceptr block;
    CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    for (int i = 0; i < 40 && result == CUDA_SUCCESS; i++) {
        result = cuMemAlloc_v2(&block, 1 << 20);
        if (result == CUDA_SUCCESS)
            result = cuMemFree_v2(block);
    }
    plugin_failures += result != CUDA_SUCCESS;
    return unused;
}

static void use_memory_in_a_thread(void)
{
    pthread_t thread;
    plugin_failures +=
        pthread_create(&thread, NULL, use_memory, NULL) != 0 || pthread_join(thread, NULL) != 0;
}

__attribute__((constructor)) static void begin(void)
{
    use_memory_in_a_thread();
}

__attribute__((destructor)) static void end(void)
{
    use_memory_in_a_thread();
}
