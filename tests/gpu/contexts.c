/*
 * Several contexts on one device: blocks freed while another context is current, contexts that die
 * with blocks in them, the primary context released and reset, green contexts where the driver has
 * them. Memory of one context works in spite of what happens to the others, what a context held is
 * back on the device after its end, and nothing keeps the primary context alive.
 *
 * Arguments: rounds=10 block_kib=1024
 */
#include "gpu.h"

#include <dlfcn.h>

enum { BLOCKS = 24, WORDS = 1024 };

static CUdevice device;
static size_t block_bytes;
static unsigned long long wrong;
static unsigned int next_value;

/* A context, what is loaded into it, and blocks that live in it. */
struct place {
    CUcontext context;
    struct kernels kernels;
    CUstream stream;
    CUdeviceptr counter;
    CUdeviceptr blocks[BLOCKS];
    unsigned int first_value;
};

/* The context is current, here and after. */
static void furnish(struct place *place)
{
    load_kernels(&place->kernels);
    CHECK(cuStreamCreate(&place->stream, CU_STREAM_NON_BLOCKING));
    place->counter = new_counter();
}

static void put_blocks(struct place *place)
{
    CHECK(cuCtxSetCurrent(place->context));
    place->first_value = next_value += BLOCKS;
    for (unsigned int i = 0; i < BLOCKS; i++) {
        CHECK(cuMemAlloc_v2(&place->blocks[i], block_bytes));
        fill(&place->kernels, place->stream, place->blocks[i], WORDS, place->first_value + i);
        spin_then_verify(&place->kernels, place->stream, 50000, place->blocks[i], WORDS,
                         place->first_value + i, place->counter);
    }
}

/* Frees the blocks with their kernels still running and with another context current: the free
 * waits for the block's own context. */
static void take_blocks_from(struct place *place, CUcontext current)
{
    CHECK(cuCtxSetCurrent(current));
    for (unsigned int i = 0; i < BLOCKS; i++)
        CHECK(cuMemFree_v2(place->blocks[i]));
}

static void settle(struct place *place)
{
    CHECK(cuCtxSetCurrent(place->context));
    wrong += read_counter(place->counter);
}

static void recycle_across_contexts(struct place *a, struct place *b, unsigned long rounds)
{
    for (unsigned long i = 0; i < rounds; i++) {
        put_blocks(a);
        put_blocks(b);
        take_blocks_from(a, b->context);
        put_blocks(a);
        take_blocks_from(b, a->context);
        take_blocks_from(a, a->context);
    }
    settle(a);
    settle(b);
}

static void create_context(struct place *place)
{
    CHECK(cuCtxCreate_v2(&place->context, 0, device));
    furnish(place);
}

/* Contexts that end with live and with recycled blocks in them; the next one may get the handle. */
static void contexts_that_die(struct place *primary, unsigned long rounds)
{
    size_t before, after, total;
    CHECK(cuCtxSetCurrent(primary->context));
    CHECK(cuMemGetInfo_v2(&before, &total));
    for (unsigned long i = 0; i < rounds; i++) {
        struct place shortlived;
        create_context(&shortlived);
        put_blocks(&shortlived);
        take_blocks_from(&shortlived, primary->context);
        put_blocks(&shortlived);
        put_blocks(primary);
        settle(&shortlived);
        CHECK(cuCtxDestroy_v2(shortlived.context));
        CHECK(cuCtxSetCurrent(primary->context));
        if (cuMemFree_v2(shortlived.blocks[0]) == CUDA_SUCCESS)
            FAIL("a block of a destroyed context could be freed");
        take_blocks_from(primary, primary->context);
    }
    CHECK(cuMemGetInfo_v2(&after, &total));
    if (after + 64 * MIB < before)
        FAIL("%zu MiB are missing after the contexts' end", (before - after) / MIB);
    settle(primary);
}

/* Green contexts share the primary context's memory. NULL functions: the driver has none. */
struct green_api {
    CUresult (*get_resource)(CUdevice, CUdevResource *, CUdevResourceType);
    CUresult (*make_description)(CUdevResourceDesc *, CUdevResource *, unsigned int);
    CUresult (*create)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int);
    CUresult (*destroy)(CUgreenCtx);
    CUresult (*as_context)(CUcontext *, CUgreenCtx);
};

static bool find_green_api(struct green_api *api)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL)
        return false;
    *(void **)&api->get_resource = dlsym(driver, "cuDeviceGetDevResource");
    *(void **)&api->make_description = dlsym(driver, "cuDevResourceGenerateDesc");
    *(void **)&api->create = dlsym(driver, "cuGreenCtxCreate");
    *(void **)&api->destroy = dlsym(driver, "cuGreenCtxDestroy");
    *(void **)&api->as_context = dlsym(driver, "cuCtxFromGreenCtx");
    return api->get_resource && api->make_description && api->create && api->destroy &&
           api->as_context;
}

/* Returns how many green contexts were used. The primary context need not be retained. */
static unsigned long green_contexts(unsigned long rounds)
{
    struct green_api api = {0};
    CUdevResourceDesc description;
    CUgreenCtx green;
    struct place place;
    CUdevResource resource;
    if (!find_green_api(&api) ||
        api.get_resource(device, &resource, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS)
        return 0;
    for (unsigned long i = 0; i < rounds; i++) {
        CHECK(api.make_description(&description, &resource, 1));
        CHECK(api.create(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
        CHECK(api.as_context(&place.context, green));
        CHECK(cuCtxSetCurrent(place.context));
        furnish(&place);
        put_blocks(&place);
        take_blocks_from(&place, place.context);
        put_blocks(&place);
        settle(&place);
        take_blocks_from(&place, place.context);
        CHECK(cuMemFree_v2(place.counter));
        CHECK(cuStreamDestroy_v2(place.stream));
        CHECK(cuModuleUnload(place.kernels.module));
        CHECK(cuCtxSetCurrent(NULL));
        CHECK(api.destroy(green));
    }
    return rounds;
}

static void primary_must_be(int expected, const char *when)
{
    unsigned int flags;
    int active;
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    if (active != expected)
        FAIL("%s the primary context is %s", when, active ? "active" : "inactive");
}

static void open_primary_of(struct place *place)
{
    CHECK(cuDevicePrimaryCtxRetain(&place->context, device));
    CHECK(cuCtxSetCurrent(place->context));
    furnish(place);
}

/* Ends the primary context with blocks in it, by its last release and by a reset. Returns what a
 * release after a reset answers: that it is allowed is documented, that it succeeds is not. */
static CUresult primary_ends(unsigned long rounds)
{
    struct place primary;
    CUresult release_after_reset = CUDA_SUCCESS;
    for (unsigned long i = 0; i < rounds; i++) {
        open_primary_of(&primary);
        put_blocks(&primary);
        take_blocks_from(&primary, primary.context);
        put_blocks(&primary);
        settle(&primary);
        if (i % 2 == 1) {
            CHECK(cuDevicePrimaryCtxReset_v2(device));
            release_after_reset = cuDevicePrimaryCtxRelease_v2(device);
        } else {
            CHECK(cuDevicePrimaryCtxRelease_v2(device));
        }
        primary_must_be(0, "after the last release");
    }
    CHECK(cuCtxSetCurrent(NULL));
    return release_after_reset;
}

int main(int argc, char **argv)
{
    unsigned long rounds = argument(argc, argv, "rounds", 10);
    struct place primary, second;
    block_bytes = argument(argc, argv, "block_kib", 1024) * 1024;

    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    double start = now_ms();
    open_primary_of(&primary);
    create_context(&second);
    recycle_across_contexts(&primary, &second, rounds);
    CHECK(cuCtxDestroy_v2(second.context));
    contexts_that_die(&primary, rounds);
    CHECK(cuCtxSetCurrent(NULL));
    CHECK(cuDevicePrimaryCtxRelease_v2(device));
    primary_must_be(0, "after its only release");
    unsigned long green = green_contexts(rounds);
    primary_must_be(0, "after the green contexts");
    CUresult release_after_reset = primary_ends(rounds);
    printf("contexts: %.2f ms, %lu rounds, %lu green contexts, release after reset answers %u, "
           "%llu wrong words\n",
           now_ms() - start, rounds, green, release_after_reset, wrong);
    return wrong == 0 ? 0 : 1;
}
