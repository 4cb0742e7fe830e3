/*
 * The replaced functions, bound to by a program whose libcuda does not have them. "missing": there
 * is no libcuda, and each of them says that nothing is initialised. "bare": there is one with
 * nothing but cuInit; each says that it was not found, none can be looked up, and no pool is
 * started.
 */
#include "interposition.h"

static const char *const replaced[] = {
#define ENTRY_POINT(name, parameters) #name,
#include "../../shim/entry_points.def"
#undef ENTRY_POINT
};

/* All parameters are pointers and integers, which both machines pass in the same places; but for a
 * handle of 64 bytes, which one of them passes by its address. */
typedef CUresult any_function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                              uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static void answers(void *preload, const char *name, CUresult expected)
{
    any_function *function = (any_function *)glibc_dlsym()(preload, name);
    CHECK(function != NULL && is_ours((void *)function));
    static char nothing[64];
    const uintptr_t any = (uintptr_t)nothing;
    CUresult answer = function(any, any, any, any, any, any, any, any, any, any, any);
    if (answer != expected)
        FAIL("%s answers %u, not %u", name, answer, expected);
}

int main(int argc, char **argv)
{
    void *preload = open_library(PRELOAD_OBJECT, RTLD_NOW | RTLD_NOLOAD), *driver = NULL;
    CHECK(argc == 2);
    bool bare = strcmp(argv[1], "bare") == 0;
    if (bare)
        driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        answers(preload, replaced[i], bare ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NOT_INITIALIZED);
        CHECK(!bare || dlsym(driver, replaced[i]) == NULL);
        CHECK(dlsym(RTLD_DEFAULT, replaced[i]) == NULL);
    }
    int (*is_active)(void) = (int (*)(void))glibc_dlsym()(preload, "cudapool_is_active");
    uint64_t (*trim)(void) = (uint64_t(*)(void))glibc_dlsym()(preload, "cudapool_trim");
    int (*get_bytes)(int, void *) =
        (int (*)(int, void *))glibc_dlsym()(preload, "cudapool_get_bytes");
    int (*get_stream_bytes)(void *, void *) =
        (int (*)(void *, void *))glibc_dlsym()(preload, "cudapool_get_stream_bytes");
    unsigned (*reap)(void) = (unsigned (*)(void))glibc_dlsym()(preload, "cudapool_reap");
    uint64_t (*generation)(uint64_t) =
        (uint64_t(*)(uint64_t))glibc_dlsym()(preload, "cudapool_generation");
    int (*record_use)(uint64_t, uint64_t, void *, int) =
        (int (*)(uint64_t, uint64_t, void *, int))glibc_dlsym()(preload, "cudapool_record_use");
    char bytes[64];
    CHECK(is_active() == 0 && trim() == 0 && get_bytes(0, bytes) == -1);
    CHECK(get_stream_bytes(NULL, bytes) == -1 && reap() == 0 && generation(512) == 0);
    CHECK(record_use(512, 1, NULL, 0) == CUDA_ERROR_NOT_SUPPORTED);
    uint64_t (*create)(void) =
        (uint64_t(*)(void))glibc_dlsym()(preload, "cudapool_graph_pool_create");
    int (*use)(uint64_t, void *) =
        (int (*)(uint64_t, void *))glibc_dlsym()(preload, "cudapool_graph_pool_use");
    int (*graph_bytes)(uint64_t, void *) =
        (int (*)(uint64_t, void *))glibc_dlsym()(preload, "cudapool_graph_pool_get_bytes");
    CHECK(create() == 0 && use(1, &bytes) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(graph_bytes(1, bytes) == CUDA_ERROR_NOT_SUPPORTED);
    static const char *const others[] = {"seal", "clear", "destroy"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char name[64];
        snprintf(name, sizeof name, "cudapool_graph_pool_%s", others[i]);
        int (*other)(uint64_t) = (int (*)(uint64_t))glibc_dlsym()(preload, name);
        CHECK(other(1) == CUDA_ERROR_NOT_SUPPORTED);
    }
    return 0;
}
