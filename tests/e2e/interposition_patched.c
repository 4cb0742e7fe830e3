/*
 * A process in which somebody else patches the driver's functions, too, to follow what memory comes
 * and goes. Each way of reaching a function is followed, and the pool goes on serving.
 *
 * usage: interposition_patched CASE LIBRARY
 * entries: every function that the pool replaces can be patched. The others patch, and allocate and
 * free. relocations_past_the_pool and next: as former versions of such libraries did, which find
 * the driver's own functions: they see what the pool asks for and gives back.
 */
#include "../sim/simcuda.h"
#include "interposition.h"
#include "libinterposition_patch.h"

#pragma weak cudapool_trim
extern uint64_t cudapool_trim(void);
#pragma weak cudapool_is_active
extern int cudapool_is_active(void);

enum { ROUNDS = 10, BYTES = 300000 };

static struct {
    bool (*code)(enum patch_lookup);
    bool (*code_for_calls)(enum patch_lookup);
    bool (*relocations)(enum patch_lookup);
    size_t (*known_bytes)(const void *);
    const struct patched *(*seen)(void);
} patch;

static void open_patcher(const char *path)
{
    void *library = open_library(path, RTLD_NOW | RTLD_LOCAL);
    patch.code = (bool (*)(enum patch_lookup))function_of(library, "patch_code");
    patch.code_for_calls =
        (bool (*)(enum patch_lookup))function_of(library, "patch_code_for_calls");
    patch.relocations = (bool (*)(enum patch_lookup))function_of(library, "patch_relocations");
    patch.known_bytes = (size_t(*)(const void *))function_of(library, "patch_known_bytes");
    patch.seen = (const struct patched *(*)(void))function_of(library, "patch_seen");
}

static bool has_pool(void)
{
    return cudapool_is_active != NULL && cudapool_is_active();
}

/* ---- ways to the functions ---- */

struct way {
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*release)(CUdeviceptr);
};

static struct way linked(void)
{
    return (struct way){cuMemAlloc_v2, cuMemFree_v2};
}

static struct way looked_up_by_name(void)
{
    void *driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    return (struct way){(CUresult(*)(CUdeviceptr *, size_t))function_of(driver, "cuMemAlloc_v2"),
                        (CUresult(*)(CUdeviceptr))function_of(driver, "cuMemFree_v2")};
}

static struct way looked_up_in_the_driver(void)
{
    CUdriverProcAddressQueryResult status;
    void *allocate, *release;
    CU(cuGetProcAddress_v2("cuMemAlloc", &allocate, 3020, 0, &status));
    CU(cuGetProcAddress_v2("cuMemFree", &release, 3020, 0, &status));
    return (struct way){(CUresult(*)(CUdeviceptr *, size_t))allocate,
                        (CUresult(*)(CUdeviceptr))release};
}

/* Sizes alternate, so that not every block is found at once. */
static void round_trips(struct way way)
{
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr block;
        CU(way.allocate(&block, BYTES + (size_t)(i % 3) * 1000000));
        CU(cuMemsetD8_v2(block, 1, BYTES));
        CU(way.release(block));
        if (way.release(block) != CUDA_ERROR_INVALID_VALUE)
            FAIL("freed twice");
        CU(cuCtxSynchronize());
    }
}

/* Whether each of the calls was seen: ROUNDS allocations, and two frees for each, one of which is
 * of memory that nobody knows any more. */
static void all_seen(const char *way, const struct patched *before)
{
    const struct patched *now = patch.seen();
    if (now->allocations != before->allocations + ROUNDS ||
        now->frees != before->frees + 2 * ROUNDS || now->unknown != before->unknown + ROUNDS)
        FAIL("%s: of %d rounds, %u allocations, %u frees and %u unknown ones were seen", way,
             ROUNDS, now->allocations - before->allocations, now->frees - before->frees,
             now->unknown - before->unknown);
}

static void pool_serves(uint64_t calls_before)
{
    uint64_t calls = simcuda_calls("cuMemAlloc_v2") - calls_before;
    if (has_pool() && calls > ROUNDS)
        FAIL("the driver was asked %llu times", (unsigned long long)calls);
}

static void every_way_is_seen(void)
{
    struct way ways[] = {linked(), looked_up_by_name(), looked_up_in_the_driver()};
    static const char *const names[] = {"linked", "dlsym", "cuGetProcAddress"};
    uint64_t calls = simcuda_calls("cuMemAlloc_v2");
    for (int i = 0; i < 3; i++) {
        struct patched before = *patch.seen();
        round_trips(ways[i]);
        all_seen(names[i], &before);
    }
    pool_serves(calls);
    CUdeviceptr block;
    CU(cuMemAlloc_v2(&block, BYTES));
    CU(cuMemFree_v2(block));
    if (patch.seen()->last_freed_bytes != BYTES)
        FAIL("a block of %d is one of %zu", BYTES, patch.seen()->last_freed_bytes);
}

/* ---- cases ---- */

static void entries(void)
{
    void *driver = open_library(DRIVER_OBJECT, RTLD_NOW);
    unsigned count = 0;
#define ENTRY_POINT(name, parameters)                                                              \
    if (dlsym(driver, #name) != NULL) {                                                            \
        CHECK(is_ours(dlsym(driver, #name)));                                                      \
        CHECK(dlsym(driver, #name) == dlsym(RTLD_DEFAULT, #name));                                 \
        if (patch.known_bytes(dlsym(driver, #name)) < PATCHABLE_BYTES)                             \
            FAIL("%s cannot be patched", #name);                                                   \
        count++;                                                                                   \
    }
#include "../../shim/entry_points.def"
#undef ENTRY_POINT
    CHECK(count > 80);
}

static void code(void)
{
    CHECK(patch.code(PATCH_OWN));
    CHECK(is_ours(patch.seen()->allocate) && is_ours(patch.seen()->release));
    every_way_is_seen();
}

static void code_for_calls(void)
{
    CHECK(patch.code_for_calls(PATCH_OWN));
    CHECK(is_ours(patch.seen()->allocate) == has_pool());
    every_way_is_seen();
}

/* Only calls of one object by another go through relocations: looked up, a function is what it was,
 * and so is what the library calls on its replacements' behalf. */
static void relocations(void)
{
    CHECK(patch.relocations(PATCH_OWN));
    CHECK(is_ours(patch.seen()->allocate) == has_pool());
    CHECK(patch.seen()->places >= 2 && patch.seen()->places_in_preload == 0);
    struct patched before = *patch.seen();
    uint64_t calls = simcuda_calls("cuMemAlloc_v2");
    CHECK((void *)looked_up_by_name().allocate == patch.seen()->allocate);
    CHECK((void *)looked_up_in_the_driver().allocate == patch.seen()->allocate);
    round_trips(linked());
    all_seen("linked", &before);
    round_trips(looked_up_by_name());
    round_trips(looked_up_in_the_driver());
    all_seen("looked up, which nobody sees", &before);
    pool_serves(calls);
}

/* Calls through relocations pass the pool by from then on, and may free what it has given out. */
static void relocations_past_the_pool(void)
{
    CUdeviceptr early[ROUNDS], late;
    struct way direct = looked_up_by_name();
    for (int i = 0; i < ROUNDS; i++)
        CU(cuMemAlloc_v2(&early[i], BYTES));
    CHECK(patch.relocations(PATCH_NEXT));
    CHECK(is_the_drivers(patch.seen()->allocate));
    for (int i = 0; i < ROUNDS; i++) {
        CU(i % 2 == 0 ? cuMemFree_v2(early[i]) : direct.release(early[i]));
        CU(direct.allocate(&late, BYTES));
        CU(cuMemsetD8_v2(late, 1, BYTES));
        CU(cuMemFree_v2(late));
        CU(cuMemAlloc_v2(&late, BYTES));
        CU(cuMemsetD8_v2(late, 1, BYTES));
        CU(direct.release(late));
        CU(cuCtxSynchronize());
    }
    round_trips(direct);
    CHECK(patch.seen()->allocations == ROUNDS && patch.seen()->unknown == 0);
}

/* What is seen is what the driver is asked for, and what it gets back. */
static void next(void)
{
    CHECK(patch.code_for_calls(PATCH_NEXT));
    CHECK(is_the_drivers(patch.seen()->allocate) && is_the_drivers(patch.seen()->release));
    uint64_t calls = simcuda_calls("cuMemAlloc_v2");
    for (int i = 0; i < 100; i++) {
        CUdeviceptr block;
        CU(cuMemAlloc_v2(&block, BYTES));
        CU(cuMemFree_v2(block));
        CU(cuCtxSynchronize());
    }
    const struct patched *seen = patch.seen();
    CHECK(seen->allocations == simcuda_calls("cuMemAlloc_v2") - calls && seen->allocations >= 1);
    CHECK(seen->allocations <= (has_pool() ? 10u : 100u));
    CHECK(seen->unknown == 0);
}

/* Memory that goes back to the driver goes by the call that the library follows. */
static void given_back(uint64_t plain, uint64_t in_stream_order)
{
    CUdeviceptr blocks[3];
    uint64_t frees = simcuda_calls("cuMemFree_v2"), async = simcuda_calls("cuMemFreeAsync");
    for (int i = 0; i < 3; i++)
        CU(cuMemAlloc_v2(&blocks[i], 1000000));
    for (int i = 0; i < 3; i++)
        CU(cuMemFree_v2(blocks[i]));
    CU(cuCtxSynchronize());
    CHECK(simcuda_calls("cuMemFree_v2") == frees);
    CHECK(cudapool_trim() >= 3 * 1000000);
    CHECK(simcuda_calls("cuMemFree_v2") == frees + plain);
    CHECK(simcuda_calls("cuMemFreeAsync") == async + in_stream_order);
}

int main(int argc, char **argv)
{
    CUcontext context;
    CHECK(argc == 3);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    if (strncmp(argv[1], "given_back_", 11) == 0) {
        open_library(argv[2], RTLD_NOW | RTLD_LOCAL);
        if (strcmp(argv[1], "given_back_plainly") == 0)
            given_back(3, 0);
        else
            given_back(0, 3);
        return 0;
    }
    open_patcher(argv[2]);
    if (strcmp(argv[1], "entries") == 0)
        entries();
    else if (strcmp(argv[1], "code") == 0)
        code();
    else if (strcmp(argv[1], "code_for_calls") == 0)
        code_for_calls();
    else if (strcmp(argv[1], "relocations") == 0)
        relocations();
    else if (strcmp(argv[1], "relocations_past_the_pool") == 0)
        relocations_past_the_pool();
    else if (strcmp(argv[1], "next") == 0)
        next();
    else
        FAIL("no case \"%s\"", argv[1]);
    return 0;
}
