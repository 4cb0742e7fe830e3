/*
 * A program that could use CUDA and finds no libcuda. Prints what it finds; the output without and
 * with the preload object must be the same, but for the functions that it binds to weakly.
 */
#include "interposition.h"

#define WEAK __attribute__((weak))
extern CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) WEAK;
extern CUresult cuMemFree_v2(CUdeviceptr pointer) WEAK;
extern CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status) WEAK;

static void look_up(const char *how, void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    const char *error = dlerror();
    bool names_it = error != NULL && strstr(error, name) != NULL;
    printf("%s %s: %s, %s\n", how, name, object_of(found),
           error == NULL ? "no error"
           : names_it    ? "an error about it"
                         : error);
}

/* The one thing that differs: our export is there to bind to. It says that there is no driver. */
static void call_weak_functions(void)
{
    CUdeviceptr pointer = 0;
    void *function = &pointer;
    CUdriverProcAddressQueryResult status;
    if (cuMemAlloc_v2 == NULL)
        return;
    CHECK(cuMemAlloc_v2(&pointer, 1000) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuMemFree_v2(0) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuGetProcAddress_v2("cuMemAlloc", &function, 3020, 0, &status) ==
          CUDA_ERROR_NOT_INITIALIZED);
    CHECK(pointer == 0 && function == &pointer && dlerror() == NULL);
}

int main(void)
{
    static const char *const names[] = {"cuMemAlloc_v2", "cuGetProcAddress_v2", "cuInit"};
    printf("libcuda: %s\n", dlopen(DRIVER_OBJECT, RTLD_NOW) != NULL ? "there" : dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        look_up("default", RTLD_DEFAULT, names[i]);
        look_up("whole program", open_library(NULL, RTLD_NOW), names[i]);
        look_up("libc", open_library("libc.so.6", RTLD_NOW), names[i]);
    }
    look_up("next", RTLD_NEXT, "cuInit");
    call_weak_functions();
    return 0;
}
