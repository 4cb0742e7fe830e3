/*
 * Allocates, copies and frees device memory and checks what comes back.
 *
 * usage: interposition_roundtrip WAY [FREE_WAY [DIRECTORY]]
 * A way to reach the driver: linked, dlsym, default (dlsym(RTLD_DEFAULT)), lookup
 * (cuGetProcAddress_v2), old_lookup (cuGetProcAddress). Memory is freed by FREE_WAY. The program
 * first goes to the DIRECTORY.
 */
#include "interposition.h"

#define BUFFERS 24
#define ROUNDS  20

typedef CUresult allocate_function(CUdeviceptr *pointer, size_t bytes);
typedef CUresult free_function(CUdeviceptr pointer);

static void *by_lookup(const char *name)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    CU(cuGetProcAddress_v2(name, &found, 3020, 0, &status));
    return found;
}

static void *by_old_lookup(const char *name)
{
    void *found = NULL;
    CU(cuGetProcAddress(name, &found, 3020, 0));
    return found;
}

/* The function of that name; exported is its name without the version that lookups do not take. */
static void *reach(const char *way, const char *base, const char *exported, void *linked)
{
    void *driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    if (strcmp(way, "linked") == 0)
        return linked;
    if (strcmp(way, "dlsym") == 0)
        return function_of(driver, exported);
    if (strcmp(way, "default") == 0)
        return function_of(RTLD_DEFAULT, exported);
    if (strcmp(way, "lookup") == 0)
        return by_lookup(base);
    if (strcmp(way, "old_lookup") == 0)
        return by_old_lookup(base);
    FAIL("no such way: %s", way);
}

static size_t bytes_of(int round, int buffer)
{
    return (size_t)(1000 + 997 * ((round * 7 + buffer * 13) % 61));
}

static void fill(char *text, size_t bytes, int round, int buffer)
{
    for (size_t i = 0; i < bytes; i++)
        text[i] = (char)((size_t)(round * 31 + buffer * 7) + i * 3);
}

static void round_trip(allocate_function *allocate, free_function *release, int round)
{
    static char out[1 << 17], back[1 << 17];
    CUdeviceptr buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        CU(allocate(&buffers[i], bytes_of(round, i)));
        fill(out, bytes_of(round, i), round, i);
        CU(cuMemcpyHtoD_v2(buffers[i], out, bytes_of(round, i)));
    }
    for (int i = 0; i < BUFFERS; i++) {
        fill(out, bytes_of(round, i), round, i);
        CU(cuMemcpyDtoH_v2(back, buffers[i], bytes_of(round, i)));
        if (memcmp(out, back, bytes_of(round, i)) != 0)
            FAIL("round %d, buffer %d came back changed", round, i);
        CU(release(buffers[i]));
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    CHECK(argc > 1);
    const char *free_way = argc > 2 ? argv[2] : argv[1];
    CHECK(argc < 4 || chdir(argv[3]) == 0);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    allocate_function *allocate =
        (allocate_function *)reach(argv[1], "cuMemAlloc", "cuMemAlloc_v2", (void *)cuMemAlloc_v2);
    free_function *release =
        (free_function *)reach(free_way, "cuMemFree", "cuMemFree_v2", (void *)cuMemFree_v2);
    for (int round = 0; round < ROUNDS; round++)
        round_trip(allocate, release, round);
    CU(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}
