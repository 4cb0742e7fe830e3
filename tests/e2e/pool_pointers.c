/*
 * What the driver says of a pointer, and what makes others know of one, without and with the pool.
 */
#include "pool.h"

enum { BYTES = 1000 };

/* The size is the requested one, from the first byte to the last, and nothing is known beyond. */
static void address_range(void)
{
    CUdeviceptr base;
    size_t bytes;
    open_primary();
    CUdeviceptr block = take(BYTES);
    for (size_t offset = 0; offset < BYTES; offset += 111) {
        base = bytes = 0;
        CU(cuMemGetAddressRange_v2(&base, &bytes, block + offset));
        CHECK(base == block);
        EQUAL(BYTES, bytes);
    }
    CU(cuMemGetAddressRange_v2(NULL, &bytes, block));
    CU(cuMemGetAddressRange_v2(&base, NULL, block));
    CU(cuMemGetAddressRange_v2(NULL, NULL, block));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block + BYTES));
    CU(cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block + 10));
    /* A smaller one in the same block. */
    block = take(BYTES - 200);
    CU(cuMemGetAddressRange_v2(&base, &bytes, block + 799));
    EQUAL(BYTES - 200, bytes);
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block + 800));
}

static CUresult attribute_of(CUpointer_attribute attribute, CUdeviceptr pointer,
                             unsigned long long *value)
{
    unsigned long long found[2] = {0};
    CUresult result = cuPointerGetAttribute(found, attribute, pointer);
    *value = found[0];
    return result;
}

static void attribute(void)
{
    unsigned long long value;
    CUcontext context = open_primary();
    CUdeviceptr block = take(BYTES);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + 5, &value));
    EQUAL(BYTES, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, block + 5, &value));
    EQUAL(2 * MIB, value);
    CUdeviceptr large = take(17 * MIB);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, large + 5, &value));
    EQUAL(18 * MIB, value);
    CU(cuMemFree_v2(large));
    CU(attribute_of(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + 5, &value));
    EQUAL(block, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_CONTEXT, block, &value));
    EQUAL((uintptr_t)context, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block, &value));
    EQUAL(CU_MEMORYTYPE_DEVICE, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, block + 7, &value));
    EQUAL(block + 7, value);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(NULL, 2, block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, attribute_of(9999, block, &value));
    CU(cuMemFree_v2(block));
    for (CUpointer_attribute a = 1; a <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID; a++)
        ANSWERS(CUDA_ERROR_INVALID_VALUE, attribute_of(a, block, &value));
}

static void ask_all(CUdeviceptr pointer, unsigned long long *size, int *ordinal, unsigned int *type)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *values[] = {size, ordinal, type};
    CU(cuPointerGetAttributes(3, attributes, values, pointer));
}

static void attributes(void)
{
    unsigned long long size = 1;
    int ordinal = 1;
    unsigned int type = 1;
    open_primary();
    CUdeviceptr block = take(BYTES);
    ask_all(block + 999, &size, &ordinal, &type);
    EQUAL(BYTES, size);
    CHECK(ordinal == 0);
    EQUAL(CU_MEMORYTYPE_DEVICE, type);
    ask_all(block + BYTES, &size, &ordinal, &type);
    EQUAL(0, size);
    EQUAL(0, type);
    CHECK(ordinal == -2);
    CU(cuMemFree_v2(block));
    size = 1;
    ask_all(block, &size, &ordinal, &type);
    EQUAL(0, size);
    EQUAL(0, type);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttributes(0, NULL, NULL, block));
}

/* Memory that is not the pool's. */
static void others(void)
{
    CUdeviceptr managed, base;
    unsigned long long value;
    size_t bytes;
    void *host;
    open_primary();
    CU(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemHostAlloc(&host, BYTES, 0));
    CU(cuMemGetAddressRange_v2(&base, &bytes, managed + 5));
    EQUAL(BYTES, bytes);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed, &value));
    EQUAL(1, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host, &value));
    EQUAL(CU_MEMORYTYPE_HOST, value);
    ANSWERS(CUDA_ERROR_INVALID_VALUE,
            attribute_of(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&base, &value));
    CU(cuMemFree_v2(managed));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(managed));
    CU(cuMemFreeHost(host));
}

/* Wrong pointers are answered as the driver does, and leave the right ones alone. */
static void wrong_frees(void)
{
    open_primary();
    CUdeviceptr block = take(BYTES);
    CU(cuMemFree_v2(0));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block + 1));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block + 256));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(1));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(UINT64_MAX));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((CUdeviceptr)1 << 49));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((uintptr_t)&block & ~(CUdeviceptr)255));
    CU(cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&block, 0));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, BYTES));
    CU(cuCtxSetCurrent(NULL));
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&block, BYTES));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
}

static unsigned long long buffer_id(CUdeviceptr pointer)
{
    unsigned long long alone = 0, together = 0;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    CU(attribute_of(attribute, pointer, &alone));
    CU(cuPointerGetAttributes(1, &attribute, (void *[]){&together}, pointer));
    EQUAL(alone, together);
    return alone;
}

/* Blocks that are given out again are other buffers, whoever has freed them, and how: libraries
 * that remember what they have registered by its buffer's number would take the new one for the
 * old. */
static void buffer_ids(void)
{
    enum { LIVES = 200 };
    static unsigned long long ids[3 * LIVES];
    unsigned count = 0;
    open_primary();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < LIVES; i++) {
        CUdeviceptr block = take(i % 3 == 0   ? 3 * MIB
                                 : i % 3 == 1 ? BYTES
                                              : 40 * MIB),
                    async = take_on(stream, MIB);
        CUdeviceptr unasked = take(BYTES);
        ids[count++] = buffer_id(block);
        ids[count++] = buffer_id(async);
        EQUAL(buffer_id(block), buffer_id(block + BYTES - 1));
        EQUAL(buffer_id(async), buffer_id(async + MIB - 1));
        if (i % 3 == 0)
            ids[count++] = buffer_id(unasked);
        CU(cuMemFree_v2(block));
        CU(cuMemFree_v2(unasked));
        CU(cuMemFreeAsync(async, stream));
        if (i % 16 == 0)
            CU(cuCtxSynchronize());
    }
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < i; k++)
            CHECK(ids[i] != ids[k]);
}

/* A free that fails leaves the buffer what it was, and one that was asked about is freed once. */
static void buffer_ids_and_frees(void)
{
    open_primary();
    CUdeviceptr block = take(BYTES);
    unsigned long long id = buffer_id(block);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block + 256));
    EQUAL(id, buffer_id(block));
    CU(cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    CHECK(buffer_id(take(BYTES)) != id);
}

static uint64_t calls_for(CUdeviceptr pointer)
{
    unsigned long long value[2];
    uint64_t least = UINT64_MAX;
    /* The pool's own thread calls now and then. */
    for (int i = 0; i < 3; i++) {
        uint64_t before = simcuda_calls(NULL);
        cuPointerGetAttribute(value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
        uint64_t calls = simcuda_calls(NULL) - before;
        least = calls < least ? calls : least;
    }
    return least;
}

/* The program's own call of the driver is the only one, whatever the pointer points to. */
static void one_call_each(void)
{
    CUdeviceptr managed;
    void *host, *own = malloc(BYTES);
    open_primary();
    CUstream stream = new_stream();
    CUdeviceptr small = take(BYTES), large = take(300 * MIB), async = take_on(stream, 100 * MIB);
    CU(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemHostAlloc(&host, BYTES, 0));
    const CUdeviceptr pointers[] = {small,
                                    small + 300,
                                    large + 256,
                                    large + 300 * MIB - 1,
                                    large + 150 * MIB,
                                    async + 99 * MIB,
                                    managed + 5,
                                    (uintptr_t)host,
                                    (uintptr_t)own};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        EQUAL(1, calls_for(pointers[i]));
    unsigned long long value;
    CU(attribute_of(CU_POINTER_ATTRIBUTE_RANGE_SIZE, large + 299 * MIB, &value));
    EQUAL(300 * MIB, value);
    CU(attribute_of(CU_POINTER_ATTRIBUTE_RANGE_SIZE, async + 99 * MIB, &value));
    EQUAL(100 * MIB, value);
    free(own);
}

static void *destroy(void *context)
{
    CU(cuCtxDestroy_v2(*(CUcontext *)context));
    return NULL;
}

/* A thread frees without a context, but not where its own has ended. */
static void frees_without_a_context(void)
{
    CUcontext primary = open_primary(), other;
    CUdeviceptr block = take(BYTES), large = take(8 * MIB);
    uint64_t calls = simcuda_calls("cuMemFree_v2");
    CU(cuCtxSetCurrent(NULL));
    CU(cuMemFree_v2(block));
    CU(cuMemFree_v2(large));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    if (cudapool_is_active && cudapool_is_active())
        EQUAL(calls, simcuda_calls("cuMemFree_v2"));
    CU(cuCtxSetCurrent(primary));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(large));
    block = take(BYTES);
    CU(cuCtxCreate_v2(&other, 0, 0));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, destroy, &other) == 0);
    pthread_join(thread, NULL);
    ANSWERS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree_v2(block));
    CU(cuCtxSetCurrent(primary));
    CU(cuMemFree_v2(block));
}

/* --- sharing
 * -------------------------------------------------------------------------------------*/

static CUresult share_by_ipc(CUdeviceptr block)
{
    CUipcMemHandle handle;
    return cuIpcGetMemHandle(&handle, block);
}

static CUresult share_by_range(CUdeviceptr block)
{
    int file = -1;
    CUresult result =
        cuMemGetHandleForAddressRange(&file, block, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (file >= 0)
        close(file);
    return result;
}

static CUresult share_by_setting(CUdeviceptr block)
{
    unsigned int on = 1;
    return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block);
}

static CUresult share_by_token(CUdeviceptr block)
{
    unsigned long long tokens[2] = {0};
    return cuPointerGetAttribute(tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, block);
}

static CUresult share_by_tokens(CUdeviceptr block)
{
    unsigned long long tokens[2] = {0};
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_P2P_TOKENS;
    return cuPointerGetAttributes(1, &attribute, (void *[]){tokens}, block);
}

static CUresult share_by_multicast(CUdeviceptr block)
{
    return cuMulticastBindAddr(1, 0, block, 4096, 0);
}

static CUresult share_by_multicast_v2(CUdeviceptr block)
{
    return cuMulticastBindAddr_v2(1, 0, 0, block, 4096, 0);
}

/* A shared block's free goes to the driver, so that nobody outside sees its next user. */
static void shared_one(CUresult (*share)(CUdeviceptr))
{
    CUdeviceptr block = take(MIB);
    CU(share(block));
    uint64_t live = simcuda_live_allocations(), frees = simcuda_calls("cuMemFree_v2");
    CU(cuMemFree_v2(block));
    EQUAL(live - 1, simcuda_live_allocations());
    EQUAL(frees + 1, simcuda_calls("cuMemFree_v2"));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
}

static void sharing(void)
{
    open_primary();
    shared_one(share_by_ipc);
    shared_one(share_by_range);
    shared_one(share_by_setting);
    shared_one(share_by_token);
    shared_one(share_by_tokens);
    shared_one(share_by_multicast);
    shared_one(share_by_multicast_v2);
}

/* Freed memory cannot be shared, and the attempt does not change what becomes of it. */
static void sharing_freed(void)
{
    open_primary();
    CUdeviceptr block = take(MIB);
    CU(cuMemFree_v2(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, share_by_ipc(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, share_by_range(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, share_by_setting(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, share_by_token(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, share_by_multicast(block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, share_by_multicast_v2(block));
}

/* A block from behind a barrier is not told to others before its former user is done. */
static void sharing_behind_barrier(void)
{
    struct kernels kernels;
    open_primary();
    load_kernels(&kernels);
    CUstream stream = new_stream();
    CUdeviceptr block = take(MIB);
    spin(&kernels, stream, 30000000);
    CU(cuMemFree_v2(block));
    if (take(MIB) != block)
        FAIL("the block was not reused behind a barrier");
    double start = now_ms();
    CU(share_by_ipc(block));
    CHECK(now_ms() - start > 5);
    CU(cuStreamQuery(stream));
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"address_range", address_range},
        {"attribute", attribute},
        {"attributes", attributes},
        {"others", others},
        {"wrong_frees", wrong_frees},
        {"buffer_ids", buffer_ids},
        {"buffer_ids_and_frees", buffer_ids_and_frees},
        {"one_call_each", one_call_each},
        {"frees_without_a_context", frees_without_a_context},
        {"sharing", sharing},
        {"sharing_freed", sharing_freed},
        {"sharing_behind_barrier", sharing_behind_barrier},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
