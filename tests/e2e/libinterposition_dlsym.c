/*
 * A preload that interposes dlsym as many do: by a call, with an answer of its own to one name, and
 * a wrapper for a driver function, which it is linked with.
 */
#include <dlfcn.h>
#include <string.h>

#include "../driver_api.h"

static const char own_answer;

static CUresult traced_allocation(CUdeviceptr *pointer, size_t bytes)
{
    return cuMemAlloc_v2(pointer, bytes);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*real)(void *, const char *);
#if defined(__aarch64__)
    const char *version = "GLIBC_2.17";
#else
    const char *version = "GLIBC_2.2.5";
#endif
    if (real == NULL)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", version);
    if (strcmp(name, "answered_by_the_other_preload") == 0)
        return (void *)&own_answer;
    if (strcmp(name, "cuMemAlloc_v2") == 0 && handle != RTLD_NEXT)
        return (void *)traced_allocation;
    return real(handle, name);
}
