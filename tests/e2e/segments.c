/*
 * Blocks that are cut out of larger ones (the policy split): what a program may notice, and what
 * must not happen to their neighbours. Each case runs with that policy.
 */
#include "pool.h"

enum { BLOCKS = 64, WORDS = 128 };

static struct kernels kernels;

static void furnish(void)
{
    CHECK(has_pool());
    open_primary();
    load_kernels(&kernels);
}

static uint64_t kept(void)
{
    struct cudapool_bytes bytes = pool_bytes();
    return bytes.live + bytes.cached + bytes.pending;
}

/* The pool's own thread may be giving something back just then. Or it has recorded a fence beside
 * the program's synchronise, and asks about that when it next looks, in a second. */
static void expect_all_back(void)
{
    for (int tries = 0; (cudapool_trim(), kept() != 0) && tries < 300; tries++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    EQUAL(0, kept());
}

/* What a library calls that goes past the pool. */
static CUresult free_past_the_pool(CUdeviceptr address)
{
    void *driver = dlopen(DRIVER_OBJECT, RTLD_NOW | RTLD_NOLOAD);
    CHECK(driver != NULL);
    CUresult (*release)(CUdeviceptr) =
        (CUresult(*)(CUdeviceptr))glibc_dlsym()(driver, "cuMemFree_v2");
    CHECK(release != NULL);
    return release(address);
}

static CUresult attribute_of(CUpointer_attribute attribute, CUdeviceptr pointer,
                             unsigned long long *value)
{
    unsigned long long found[2] = {0};
    CUresult result = cuPointerGetAttribute(found, attribute, pointer);
    *value = found[0];
    return result;
}

/* ---- what is told of a pointer ---- */

static void check_range(CUdeviceptr block, size_t bytes, size_t offset)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned long long value;
    CU(cuMemGetAddressRange_v2(&base, &size, block + offset));
    EQUAL(block, base);
    EQUAL(bytes, size);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + offset, &value));
    EQUAL(block, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + offset, &value));
    EQUAL(bytes, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, block + offset, &value));
    CHECK(value <= block);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, block + offset, &value));
    EQUAL((bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block + offset, &value));
    EQUAL(0, value);
}

static void pointers(void)
{
    static const size_t sizes[] = {1, 1000, 70000, MIB, 3 * MIB + 5, 9 * MIB};
    CUdeviceptr blocks[6], base;
    size_t size;
    unsigned long long first, second;
    furnish();
    for (int i = 0; i < 6; i++) {
        blocks[i] = take(sizes[i]);
        EQUAL(0, blocks[i] % 512);
    }
    for (int i = 0; i < 6; i++) {
        check_range(blocks[i], sizes[i], 0);
        check_range(blocks[i], sizes[i], sizes[i] - 1);
    }
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, blocks[1] + 1000));
    CU(attribute_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, blocks[2], &first));
    CU(attribute_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, blocks[3], &second));
    CHECK(first != second);
    for (int i = 0; i < 6; i++) {
        CU(cuMemFree_v2(blocks[i]));
        ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, blocks[i]));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(blocks[i]));
    }
    /* What is merged again, and the beginning of what is cut, are nobody's either. */
    CU(cuCtxSynchronize());
    CUdeviceptr again = take(1000);
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, again - 1));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, again + 4096));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(again + 512));
}

/* ---- nobody beyond the process, and no attribute ---- */

static void exports(void)
{
    CUipcMemHandle handle;
    unsigned int one = 1;
    int file = -1;
    unsigned long long tokens[2];
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_P2P_TOKENS};
    void *data[] = {tokens, tokens};
    furnish();
    CUdeviceptr block = take(4096);
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuIpcGetMemHandle(&handle, block));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemGetHandleForAddressRange(&file, block, 4096, 1, 0));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuPointerGetAttribute(tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, block));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuPointerGetAttributes(2, attributes, data, block));
    EQUAL(0, simcuda_calls("cuIpcGetMemHandle"));
    EQUAL(0, simcuda_calls("cuPointerSetAttribute"));
    CU(cuMemFree_v2(block));
    /* What takes its block of the driver's alone is exported like any other. */
    CUdeviceptr whole = take(12 * MIB);
    CU(cuIpcGetMemHandle(&handle, whole));
    CU(cuMemFree_v2(whole));
}

/* ---- frees ---- */

/* The driver refuses an address that is inside a block of its own, and the neighbours live on. */
static void past_the_pool(void)
{
    CUdeviceptr blocks[BLOCKS], counter;
    CUstream stream;
    furnish();
    stream = new_stream();
    counter = new_counter();
    uint64_t frees = simcuda_calls("cuMemFree_v2");
    for (unsigned int i = 0; i < BLOCKS; i++) {
        blocks[i] = take(i % 2 ? 64 * 1024 : 2 * MIB);
        fill(&kernels, stream, blocks[i], WORDS, i);
    }
    CU(cuStreamSynchronize(stream));
    for (int i = 0; i < BLOCKS; i++)
        ANSWERS(CUDA_ERROR_INVALID_VALUE, free_past_the_pool(blocks[i]));
    for (unsigned int i = 0; i < BLOCKS; i++)
        verify(&kernels, stream, blocks[i], WORDS, i, counter);
    CU(cuStreamSynchronize(stream));
    EQUAL(0, read_counter(counter));
    EQUAL(frees + BLOCKS, simcuda_calls("cuMemFree_v2"));
    for (int i = 0; i < BLOCKS; i++)
        CU(cuMemFree_v2(blocks[i]));
    EQUAL(frees + BLOCKS, simcuda_calls("cuMemFree_v2"));
}

static void in_stream_order(void)
{
    furnish();
    CUstream stream = new_stream();
    CUdeviceptr block = take(4096), neighbour = take(4096);
    CU(cuMemFreeAsync(block, stream));
    EQUAL(0, simcuda_calls("cuMemFreeAsync"));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    CU(cuMemFree_v2(neighbour));
}

/* As in the driver's own free: a capture that forbids it is spoilt by it, and the block lives; one
 * that allows it is not. */
static void captured(void)
{
    CUgraph graph;
    furnish();
    CUstream stream = new_stream();
    CUdeviceptr block = take(4096);
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
    EQUAL(0, simcuda_calls("cuMemFreeAsync"));
    CU(cuMemFree_v2(block));
    CU(cuStreamEndCapture(stream, &graph));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
}

/* ---- memory is short ---- */

/* SIMCUDA_MEMORY=16MiB: there is no room for a large segment, but for the block. */
static void no_room_for_a_segment(void)
{
    furnish();
    CUdeviceptr block = take(3 * MIB), other = take(4096);
    CU(cuMemFree_v2(block));
    CU(cuMemFree_v2(other));
}

/* SIMCUDA_MEMORY=64MiB: what segments have is given back where the whole of it is wanted. */
static void segments_go_back(void)
{
    CUdeviceptr blocks[BLOCKS];
    furnish();
    for (int i = 0; i < BLOCKS / 2; i++)
        blocks[i] = take(MIB);
    for (int i = 0; i < BLOCKS / 2; i++)
        CU(cuMemFree_v2(blocks[i]));
    CUdeviceptr large = take(50 * MIB);
    CU(cuMemFree_v2(large));
    CU(cuCtxSynchronize());
    cudapool_trim();
    EQUAL(0, pool_bytes().live);
    EQUAL(0, pool_bytes().cached);
}

/* limits.device_bytes: 8MiB: no segment passes the limit, and the limit can be used up. */
static void limited(void)
{
    CUdeviceptr block, other, none;
    furnish();
    block = take(3 * MIB);
    other = take(3 * MIB);
    CHECK(simcuda_live_bytes() <= 8 * MIB);
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&none, 3 * MIB));
    CU(cuMemFree_v2(block));
    CU(cuMemFree_v2(other));
}

/* One segment serves many, and all goes back whole. */
static void few_calls(void)
{
    CUdeviceptr blocks[BLOCKS];
    furnish();
    uint64_t calls = simcuda_calls("cuMemAlloc_v2");
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = take(MIB);
    CHECK(simcuda_calls("cuMemAlloc_v2") - calls <= BLOCKS / 19 + 1);
    for (int i = 0; i < BLOCKS; i++)
        CU(cuMemFree_v2(blocks[i]));
    CU(cuCtxSynchronize());
    CHECK(cudapool_trim() >= BLOCKS * MIB);
    EQUAL(0, pool_bytes().cached + pool_bytes().pending);
}

/* A context takes its segments with it. */
static void context_ends(void)
{
    CUcontext context;
    furnish();
    for (int round = 0; round < 3; round++) {
        CU(cuCtxCreate_v2(&context, 0, 0));
        CUdeviceptr block = take(4096), other = take(3 * MIB);
        CU(cuMemFree_v2(block));
        CHECK(other != 0);
        CU(cuCtxDestroy_v2(context));
        EQUAL(0, pool_bytes().live + pool_bytes().cached + pool_bytes().pending);
    }
}

/* ---- in a stream's order: those parts are a stream's ---- */

static void async_pointers(void)
{
    static const size_t sizes[] = {1, 1000, 70000, MIB, 3 * MIB + 5, 9 * MIB};
    CUdeviceptr blocks[6], base;
    CUmemoryPool memory_pool, found;
    size_t size;
    furnish();
    CUstream stream = new_stream();
    CU(cuDeviceGetDefaultMemPool(&memory_pool, 0));
    for (int i = 0; i < 6; i++)
        blocks[i] = take_on(stream, sizes[i]);
    for (int i = 0; i < 6; i++) {
        check_range(blocks[i], sizes[i], 0);
        check_range(blocks[i], sizes[i], sizes[i] - 1);
        CU(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, blocks[i]));
        CHECK(found == memory_pool);
    }
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, blocks[1] + 1000));
    for (int i = 0; i < 6; i++) {
        CU(cuMemFreeAsync(blocks[i], stream));
        ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, blocks[i]));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(blocks[i], stream));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(blocks[i]));
    }
    CUdeviceptr again = take_on(stream, 1000);
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, again - 1));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(again + 512, stream));
    CU(cuMemFreeAsync(again, stream));
}

static void async_exports(void)
{
    CUipcMemHandle handle;
    CUresult (*export)(void *, CUdeviceptr) =
        (CUresult(*)(void *, CUdeviceptr))dlsym(RTLD_DEFAULT, "cuMemPoolExportPointer");
    char data[64];
    unsigned int one = 1;
    int file = -1;
    unsigned long long tokens[2];
    furnish();
    CUstream stream = new_stream();
    CUdeviceptr block = take_on(stream, 4096);
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuIpcGetMemHandle(&handle, block));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, export(data, block));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuMemGetHandleForAddressRange(&file, block, 4096, 1, 0));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
            cuPointerGetAttribute(tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, block));
    EQUAL(0, simcuda_calls("cuMemPoolExportPointer"));
    CU(cuMemFreeAsync(block, stream));
}

static void async_few_calls(void)
{
    CUdeviceptr blocks[BLOCKS];
    furnish();
    CUstream stream = new_stream();
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = take_on(stream, MIB);
    CHECK(simcuda_calls("cuMemAllocFromPoolAsync") <= BLOCKS / 19 + 1);
    for (int i = 0; i < BLOCKS; i++)
        CU(cuMemFreeAsync(blocks[i], stream));
    EQUAL(0, simcuda_calls("cuMemFreeAsync"));
    CU(cuStreamSynchronize(stream));
    CHECK(cudapool_trim() >= BLOCKS * MIB);
    EQUAL(0, pool_bytes().cached + pool_bytes().pending);
}

static void async_captured(void)
{
    CUgraph graph;
    furnish();
    CUstream stream = new_stream(), other = new_stream();
    CUdeviceptr block = take_on(stream, 4096), second = take_on(stream, 4096);
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
    CU(cuMemFreeAsync(second, other));
    CU(cuMemFree_v2(block));
    CU(cuStreamEndCapture(stream, &graph));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(second, stream));
    CU(cuCtxSynchronize());
    expect_all_back();
}

/* SIMCUDA_MEMORY=64MiB. */
static void async_segments_go_back(void)
{
    CUdeviceptr blocks[BLOCKS];
    furnish();
    CUstream stream = new_stream();
    for (int i = 0; i < BLOCKS / 2; i++)
        blocks[i] = take_on(stream, MIB);
    for (int i = 0; i < BLOCKS / 2; i++)
        CU(cuMemFreeAsync(blocks[i], stream));
    CUdeviceptr large = take(50 * MIB);
    CU(cuMemFree_v2(large));
    large = take_on(new_stream(), 50 * MIB);
    CU(cuMemFree_v2(large));
    CU(cuCtxSynchronize());
    cudapool_trim();
    EQUAL(0, pool_bytes().live + pool_bytes().cached);
}

/* A part lives on where its stream and its context have ended, and so does what it is cut out of.
 */
static void async_outlives(void)
{
    CUcontext primary, context;
    CUdeviceptr first, second, third, counter;
    furnish();
    CU(cuCtxGetCurrent(&primary));
    CUstream stream = new_stream();
    counter = new_counter();
    CU(cuMemFreeAsync(take_on(stream, 4096), stream));
    CU(cuCtxCreate_v2(&context, 0, 0));
    CUstream theirs = new_stream();
    first = take_on(theirs, 3 * MIB);
    second = take_on(theirs, 3 * MIB);
    third = take_on(theirs, 3 * MIB);
    CU(cuMemFreeAsync(third, theirs));
    CU(cuStreamDestroy_v2(theirs));
    CU(cuCtxDestroy_v2(context));
    CU(cuCtxSetCurrent(primary));
    fill(&kernels, stream, first, WORDS, 7);
    fill(&kernels, stream, second, WORDS, 8);
    CU(cuMemFreeAsync(first, stream));
    CUdeviceptr own = take_on(stream, 3 * MIB);
    fill(&kernels, stream, own, WORDS, 9);
    verify(&kernels, stream, second, WORDS, 8, counter);
    CU(cuMemFreeAsync(own, stream));
    CU(cuStreamSynchronize(stream));
    EQUAL(0, read_counter(counter));
    CU(cuMemFree_v2(second));
    cudapool_trim();
    CU(cuMemFree_v2(counter));
    CU(cuCtxSynchronize());
    expect_all_back();
    CHECK(simcuda_live_bytes() < MIB);
}

/* Freed by another context's stream, it goes home after that one's work. */
static void async_in_another_context(void)
{
    CUcontext context;
    furnish();
    CUstream stream = new_stream();
    CUdeviceptr first = take_on(stream, 3 * MIB), second = take_on(stream, 3 * MIB);
    CU(cuCtxCreate_v2(&context, 0, 0));
    CUstream theirs = new_stream();
    CU(cuMemFreeAsync(first, theirs));
    CU(cuStreamSynchronize(theirs));
    CU(cuCtxDestroy_v2(context));
    CU(cuMemFreeAsync(second, stream));
    CU(cuStreamSynchronize(stream));
    CHECK(cudapool_trim() >= 20 * MIB);
    expect_all_back();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"pointers", pointers},
        {"exports", exports},
        {"past_the_pool", past_the_pool},
        {"in_stream_order", in_stream_order},
        {"captured", captured},
        {"no_room_for_a_segment", no_room_for_a_segment},
        {"segments_go_back", segments_go_back},
        {"limited", limited},
        {"few_calls", few_calls},
        {"context_ends", context_ends},
        {"async_pointers", async_pointers},
        {"async_exports", async_exports},
        {"async_few_calls", async_few_calls},
        {"async_captured", async_captured},
        {"async_segments_go_back", async_segments_go_back},
        {"async_outlives", async_outlives},
        {"async_in_another_context", async_in_another_context},
        {0},
    };
    return run_case(argc, argv, cases);
}
