/*
 * What is compared. The pool is not in this list: it is "driver" in a process that was started with
 * the preload, and knows nothing of it. Every function is safe from any thread in which
 * thread_starts has run, open and allocator_named excepted.
 */
#include <dlfcn.h>
#include <limits.h>

#include "worker.h"

#include "../peers/peer.h"

static bool always_there(const char *argument, const char **why)
{
    (void)argument;
    (void)why;
    return true;
}

static void context_is_current(void)
{
    CU(cuCtxSetCurrent(bench.context));
}

/* --- the driver, or the pool in front of it ---------------------------------------------------*/

static CUdeviceptr driver_allocate(size_t bytes, CUstream stream)
{
    CUdeviceptr address;
    (void)stream;
    return cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS ? address : 0;
}

static void driver_release(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    CU(cuMemFree_v2(address));
}

/* --- stream-ordered: the driver's pool, which keeps all it has --------------------------------*/

static bool async_open(const char *argument, const char **why)
{
    CUmemoryPool pool;
    cuuint64_t all = UINT64_MAX;
    (void)argument;
    *why = "the driver has no memory pools";
    return cuDeviceGetDefaultMemPool(&pool, bench.device) == CUDA_SUCCESS &&
           cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) == CUDA_SUCCESS;
}

static CUdeviceptr async_allocate(size_t bytes, CUstream stream)
{
    CUdeviceptr address;
    return cuMemAllocAsync(&address, bytes, stream) == CUDA_SUCCESS ? address : 0;
}

static void async_release(CUdeviceptr address, CUstream stream)
{
    CU(cuMemFreeAsync(address, stream));
}

/* --- one buffer for each thread, made once: everything but the allocator's time ---------------*/

static __thread CUdeviceptr made_once;

static CUdeviceptr once_allocate(size_t bytes, CUstream stream)
{
    (void)stream;
    if (made_once == 0)
        CU(cuMemAlloc_v2(&made_once, bytes));
    return made_once;
}

static void once_release(CUdeviceptr address, CUstream stream)
{
    (void)address;
    (void)stream;
}

/* --- mimalloc, on the CPU ---------------------------------------------------------------------*/

static void *(*mi_malloc)(size_t bytes);
static void (*mi_free)(void *memory);

/* Where programs of the build are, first: it may have been brought along to a machine without. */
static void *open_mimalloc(void)
{
    char here[PATH_MAX], path[PATH_MAX + 32];
    ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);
    void *library = NULL;
    if (length > 0) {
        here[length] = '\0';
        *strrchr(here, '/') = '\0';
        snprintf(path, sizeof path, "%s/../libmimalloc.so.2", here);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library != NULL ? library : dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL);
}

static bool mimalloc_open(const char *argument, const char **why)
{
    void *library = open_mimalloc();
    (void)argument;
    *why = "libmimalloc.so.2 (Debian: libmimalloc-dev) is not installed";
    if (library == NULL)
        return false;
    mi_malloc = (void *(*)(size_t))dlsym(library, "mi_malloc");
    mi_free = (void (*)(void *))dlsym(library, "mi_free");
    return mi_malloc != NULL && mi_free != NULL;
}

/* A program writes to memory that it allocates. */
static CUdeviceptr mimalloc_allocate(size_t bytes, CUstream stream)
{
    volatile char *memory = mi_malloc(bytes);
    (void)stream;
    if (memory != NULL)
        *memory = 1;
    return (CUdeviceptr)(uintptr_t)memory;
}

static void mimalloc_release(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    mi_free((void *)(uintptr_t)address); // NOLINT(performance-no-int-to-ptr)
}

/* --- a library (../peers) ---------------------------------------------------------------------*/

static const struct peer_allocator *peer;

static bool library_open(const char *argument, const char **why)
{
    void *library = dlopen(argument, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        *why = dlerror();
        return false;
    }
    peer = (const struct peer_allocator *)dlsym(library, "bench_allocator");
    *why = "it exports no usable bench_allocator";
    return peer != NULL && peer->open() == 0;
}

static void library_thread_starts(void)
{
    context_is_current();
    peer->thread_starts();
}

static CUdeviceptr library_allocate(size_t bytes, CUstream stream)
{
    return peer->allocate(bytes, stream);
}

static void library_release(CUdeviceptr address, CUstream stream)
{
    peer->release(address, stream);
}

static const struct allocator allocators[] = {
    {"driver", always_there, context_is_current, driver_allocate, driver_release, SIZE_MAX, false},
    {"async", async_open, context_is_current, async_allocate, async_release, SIZE_MAX, false},
    {"once", always_there, context_is_current, once_allocate, once_release, SIZE_MAX, false},
    {"mimalloc", mimalloc_open, context_is_current, mimalloc_allocate, mimalloc_release, 256 << 10,
     true},
    {"library", library_open, library_thread_starts, library_allocate, library_release, SIZE_MAX,
     false},
};

const struct allocator *allocator_named(const char *name)
{
    size_t length = strcspn(name, ":");
    const char *argument = name[length] == ':' ? name + length + 1 : "";
    for (size_t i = 0; i < sizeof allocators / sizeof *allocators; i++) {
        const char *why = "";
        if (strlen(allocators[i].name) != length || strncmp(allocators[i].name, name, length) != 0)
            continue;
        if (!allocators[i].open(argument, &why))
            FAIL("%s: %s", name, why);
        return &allocators[i];
    }
    FAIL("%s: must be driver, async, once, mimalloc or library:FILE", name);
}
