/*
 * A program that brings a JSON library whose names are also jansson's: neither the preload object's
 * settings reader nor the program ever gets the other's.
 *
 * usage: interposition_json LIBRARY      (libinterposition_json.so or libjson-c.so.5)
 */
#include "interposition.h"

int main(int argc, char **argv)
{
    CUcontext context;
    CUdeviceptr pointer;
    CHECK(argc == 2);
    void *library = open_library(argv[1], RTLD_NOW | RTLD_GLOBAL);
    void *own = function_of(library, "json_object_get");
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc_v2(&pointer, 1000));
    CU(cuMemFree_v2(pointer));
    CHECK(dlsym(RTLD_DEFAULT, "json_object_get") == own);
    CHECK(dlsym(RTLD_DEFAULT, "json_loads") == NULL); /* jansson's alone */
    CHECK(dlsym(RTLD_DEFAULT, "cudapool_config_read") == NULL);
    unsigned long (*calls_seen)(void) = (unsigned long (*)(void))dlsym(library, "json_calls_seen");
    CHECK(calls_seen == NULL || calls_seen() == 0);
    return 0;
}
