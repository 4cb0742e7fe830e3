/*
 * In compute-sanitizer's place: what its launcher preloads has libsanitizer-collection.so loaded
 * from beside itself, and that one follows the program's allocations by callbacks out of the
 * driver. This is both of them, by its file's name. At the end it tells on stderr how many
 * allocations it has seen.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../sim/simcuda.h"

static unsigned allocations;

static void note_allocation(const char *name)
{
    (void)name;
    __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
}

static void tell(void)
{
    fprintf(stderr, "sanitizer: %u allocations\n", allocations);
}

static void collect(void)
{
    if (simcuda_set_callback == NULL || !simcuda_set_callback("cuMemAlloc_v2", note_allocation))
        abort();
    atexit(tell);
}

__attribute__((constructor)) static void begin(void)
{
    char path[PATH_MAX];
    Dl_info info;

    if (dladdr(&allocations, &info) == 0)
        abort();
    if (strstr(info.dli_fname, "libsanitizer-collection") != NULL) {
        collect();
        return;
    }
    snprintf(path, sizeof path, "%.*slibsanitizer-collection.so",
             (int)(strrchr(info.dli_fname, '/') + 1 - info.dli_fname), info.dli_fname);
    /* Profilers have the launcher alone. */
    if (access(path, F_OK) == 0 && dlopen(path, RTLD_LAZY | RTLD_GLOBAL) == NULL)
        abort();
}
