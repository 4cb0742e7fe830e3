/*
 * A program that uses device memory, and opens and closes a library whose constructor and
 * destructor have a thread use some, too, and wait for it.
 *
 * usage: process_life_plugin LIBRARY
 */
#include "interposition.h"

int main(int argc, char **argv)
{
    CUcontext context;
    CUdeviceptr block;
    CHECK(argc == 2);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc_v2(&block, 4096));
    CU(cuMemFree_v2(block));
    for (int i = 0; i < 3; i++) {
        void *library = open_library(argv[1], RTLD_NOW | RTLD_LOCAL);
        const int *failures = dlsym(library, "plugin_failures");
        CHECK(failures != NULL && *failures == 0);
        CHECK(dlclose(library) == 0);
    }
    return 0;
}
