/*
 * Rows about pinned host memory: its arguments, and what the driver tells of a pointer into it.
 *
 * What nobody promises is a fact (the pool must imitate it) or a note (it need not).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pinned.h"

enum { PAGE = 4096 };

void *allocate_host(size_t bytes, unsigned int flags)
{
    void *block = NULL;
    SUCCEEDS(cuMemHostAlloc(&block, bytes, flags));
    return block;
}

void free_host(void *block)
{
    SUCCEEDS(cuMemFreeHost(block));
}

/* --- arguments ---------------------------------------------------------------------------------*/

void host_alloc_takes_every_flag(void)
{
    for (unsigned int flags = 0; flags < ALL_HOST_FLAGS; flags++) {
        void *block = NULL;
        expect_at(__LINE__, "cuMemHostAlloc", cuMemHostAlloc(&block, PAGE, flags), CUDA_SUCCESS);
        CHECK(block != NULL);
        free_host(block);
    }
}

void host_alloc_of_unknown_flags(void)
{
    for (unsigned int bit = 3; bit < 32; bit++) {
        void *block = NULL;
        CUresult result = cuMemHostAlloc(&block, PAGE, 1u << bit);
        fact(result, "cuMemHostAlloc with flag bit %u", bit);
        if (result == CUDA_SUCCESS)
            free_host(block);
    }
}

void host_alloc_of_nothing(void)
{
    void *block = &block;
    CUresult result = cuMemHostAlloc(&block, 0, 0);
    fact(result, "cuMemHostAlloc of 0 bytes");
    fact(block == NULL     ? 0
         : block == &block ? 1
                           : 2,
         "the result of cuMemHostAlloc of 0 bytes is NULL, untouched, a pointer");
    if (result == CUDA_SUCCESS)
        cuMemFreeHost(block);
    block = &block;
    result = cuMemAllocHost_v2(&block, 0);
    fact(result, "cuMemAllocHost of 0 bytes");
    if (result == CUDA_SUCCESS)
        cuMemFreeHost(block);
}

/* More than there are addresses: a machine may have less than that and still begin to take all
 * that it has. */
void host_alloc_of_too_much_is_out_of_memory(void)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - PAGE, (size_t)1 << 63, (size_t)1 << 57};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *block = NULL;
        CUresult result = cuMemHostAlloc(&block, sizes[i], 0);
        CHECK(result != CUDA_SUCCESS);
        fact(result, "cuMemHostAlloc of %#zx bytes", sizes[i]);
        result = cuMemAllocHost_v2(&block, sizes[i]);
        CHECK(result != CUDA_SUCCESS);
        fact(result, "cuMemAllocHost of %#zx bytes", sizes[i]);
    }
}

static void *allocate_without_a_context(void *unused)
{
    void *block = NULL;
    (void)unused;
    EXPECT(cuMemHostAlloc(&block, PAGE, CU_MEMHOSTALLOC_PORTABLE), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuMemAllocHost_v2(&block, PAGE), CUDA_ERROR_INVALID_CONTEXT);
    return NULL;
}

void host_alloc_needs_a_context(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, allocate_without_a_context, NULL);
    pthread_join(thread, NULL);
}

/* --- flags -------------------------------------------------------------------------------------*/

void host_flags_are_told(void)
{
    unsigned int told = 0;
    char *block;
    for (unsigned int flags = 0; flags < ALL_HOST_FLAGS; flags++) {
        block = allocate_host(PAGE, flags);
        SUCCEEDS(cuMemHostGetFlags(&told, block));
        CHECK((told & flags) == flags);
        fact(told, "cuMemHostGetFlags of memory with flags %u", flags);
        free_host(block);
    }
    SUCCEEDS(cuMemAllocHost_v2((void **)&block, 3 * PAGE));
    SUCCEEDS(cuMemHostGetFlags(&told, block));
    fact(told, "cuMemHostGetFlags of memory of cuMemAllocHost");
    fact(cuMemHostGetFlags(&told, block + PAGE), "cuMemHostGetFlags inside a block");
    fact(cuMemHostGetFlags(NULL, block), "cuMemHostGetFlags to nowhere");
    free_host(block);
    fact(cuMemHostGetFlags(&told, block), "cuMemHostGetFlags of freed memory");
    fact(cuMemHostGetFlags(&told, NULL), "cuMemHostGetFlags of NULL");
    fact(cuMemHostGetFlags(&told, &told), "cuMemHostGetFlags of ordinary memory");
}

void host_flags_of_registered_memory_are_told(void)
{
    unsigned int allocated = 0, registered = 0;
    void *block = allocate_host(PAGE, CU_MEMHOSTALLOC_PORTABLE);
    void *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SUCCEEDS(cuMemHostRegister_v2(own, PAGE, CU_MEMHOSTALLOC_PORTABLE));
    SUCCEEDS(cuMemHostGetFlags(&allocated, block));
    SUCCEEDS(cuMemHostGetFlags(&registered, own));
    CHECK(allocated == registered);
    SUCCEEDS(cuMemHostUnregister(own));
    munmap(own, PAGE);
    free_host(block);
}

/* --- addresses and ranges ----------------------------------------------------------------------*/

/* No one may count on where the driver puts a block, but on its alignment they do. */
void small_host_blocks_have_an_alignment(void)
{
    enum { BLOCKS = 8 };
    static const size_t sizes[] = {1, 64, 1000, 1024, 4096, 65536, 2 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr blocks[BLOCKS], all = PAGE;
        unsigned int together = 0;
        for (int b = 0; b < BLOCKS; b++) {
            blocks[b] = address_of(allocate_host(sizes[i], 0));
            all |= blocks[b];
            together += blocks[b] / (2 * MIB) == blocks[0] / (2 * MIB);
        }
        note("blocks of %zu B: the second %lld B after the first, %u of %d in one piece of 2 MiB",
             sizes[i], (long long)(blocks[1] - blocks[0]), together, BLOCKS);
        fact((long long)(all & -all), "the least alignment of blocks of %zu B, to 4 KiB", sizes[i]);
        for (int b = 0; b < BLOCKS; b++)
            free_host((void *)(uintptr_t)blocks[b]);
    }
}

static const struct {
    const char *name;
    size_t bytes;
    unsigned int flags;
} kinds[] = {
    {"a small block", 1000, 0},
    {"a portable one of 3 MiB and some", 3 * MIB + 1000, CU_MEMHOSTALLOC_PORTABLE},
    {"a write-combined one of 64 KiB", 65536, CU_MEMHOSTALLOC_WRITECOMBINED},
};
enum { HOST_KINDS = sizeof kinds / sizeof *kinds };

void host_ranges_are_told(void)
{
    for (unsigned int i = 0; i < HOST_KINDS; i++) {
        CUdeviceptr block = address_of(allocate_host(kinds[i].bytes, kinds[i].flags));
        const size_t offsets[] = {0, kinds[i].bytes / 2, kinds[i].bytes - 1};
        for (int o = 0; o < 3; o++) {
            CUdeviceptr base = 0;
            size_t bytes = 0;
            CUresult result = cuMemGetAddressRange_v2(&base, &bytes, block + offsets[o]);
            fact(result, "cuMemGetAddressRange %zu B into %s", offsets[o], kinds[i].name);
            if (result != CUDA_SUCCESS)
                continue;
            fact((long long)(base - block), "its base, %zu B into %s", offsets[o], kinds[i].name);
            fact((long long)bytes, "its size, %zu B into %s", offsets[o], kinds[i].name);
        }
        note("cuMemGetAddressRange just past %s: %s", kinds[i].name,
             name_of(cuMemGetAddressRange_v2(NULL, NULL, block + kinds[i].bytes)));
        note("RANGE_START_ADDR just past %s: %s", kinds[i].name,
             name_of(cuPointerGetAttribute(&(CUdeviceptr){0}, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                           block + kinds[i].bytes)));
        free_host((void *)(uintptr_t)block);
    }
}

/* --- attributes --------------------------------------------------------------------------------*/

static const struct attribute {
    const char *name;
    CUpointer_attribute attribute;
    enum { NUMBER, ADDRESS, CONTEXT, ANYTHING } what; /* ANYTHING: differs from run to run */
} attributes[] = {
    {"CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT, CONTEXT},
    {"MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NUMBER},
    {"DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ADDRESS},
    {"HOST_POINTER", CU_POINTER_ATTRIBUTE_HOST_POINTER, ADDRESS},
    {"SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, NUMBER},
    {"BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID, ANYTHING},
    {"IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, NUMBER},
    {"DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, NUMBER},
    {"IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, NUMBER},
    {"RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ADDRESS},
    {"RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE, NUMBER},
    {"MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, NUMBER},
    {"ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, NUMBER},
    {"IS_GPU_DIRECT_RDMA_CAPABLE", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, NUMBER},
    {"ACCESS_FLAGS", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, NUMBER},
    {"MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, NUMBER},
    {"MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ANYTHING},
    {"MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ANYTHING},
    {"MEMORY_BLOCK_ID", CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, ANYTHING},
};
enum { ATTRIBUTES = sizeof attributes / sizeof *attributes, VALUE_WORDS = 4 };

static void tell_value(const struct attribute *attribute, const unsigned long long *value,
                       CUdeviceptr block, const char *where)
{
    unsigned long long told = value[0];
    switch (attribute->what) {
    case NUMBER:
        fact((int)told == -2 ? -2 : (long long)told, "%s %s", attribute->name, where);
        break;
    case ADDRESS:
        fact(told == 0 ? -1 : (long long)(told - block), "%s %s, from its start", attribute->name,
             where);
        break;
    case CONTEXT:
        fact(told == 0                        ? 0
             : told == (uintptr_t)gpu.context ? 1
                                              : 2,
             "CONTEXT %s is none, the one that allocated, another", where);
        break;
    default:
        note("%s %s: %#llx (the block is at %#llx)", attribute->name, where, told, block);
    }
}

/* Each attribute alone, of a pointer inside the block. */
static void tell_attributes(CUdeviceptr block, size_t inside, const char *where)
{
    for (unsigned int i = 0; i < ATTRIBUTES; i++) {
        unsigned long long value[VALUE_WORDS] = {0};
        CUresult result = cuPointerGetAttribute(value, attributes[i].attribute, block + inside);
        fact(result, "the answer to %s %s", attributes[i].name, where);
        if (result == CUDA_SUCCESS)
            tell_value(&attributes[i], value, block, where);
    }
}

static unsigned long long attribute_of(const void *block, CUpointer_attribute attribute)
{
    unsigned long long value[VALUE_WORDS] = {0};
    SUCCEEDS(cuPointerGetAttribute(value, attribute, address_of(block)));
    return value[0];
}

void host_pointers_have_attributes(void)
{
    char where[100];
    for (unsigned int i = 0; i < HOST_KINDS; i++) {
        char *block = allocate_host(kinds[i].bytes, kinds[i].flags);
        CHECK(attribute_of(block, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_HOST);
        CHECK(attribute_of(block, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 0);
        CHECK(attribute_of(block, CU_POINTER_ATTRIBUTE_DEVICE_POINTER) == address_of(block));
        CHECK(attribute_of(block + 8, CU_POINTER_ATTRIBUTE_HOST_POINTER) == address_of(block) + 8);
        snprintf(where, sizeof where, "of %s", kinds[i].name);
        tell_attributes(address_of(block), 0, where);
        snprintf(where, sizeof where, "inside %s", kinds[i].name);
        tell_attributes(address_of(block), 512, where);
        free_host(block);
    }
}

static CUresult get_all(CUdeviceptr pointer, unsigned long long values[ATTRIBUTES][VALUE_WORDS])
{
    CUpointer_attribute wanted[ATTRIBUTES];
    void *places[ATTRIBUTES];
    memset(values, 0, ATTRIBUTES * sizeof *values);
    for (unsigned int i = 0; i < ATTRIBUTES; i++) {
        wanted[i] = attributes[i].attribute;
        places[i] = values[i];
    }
    return cuPointerGetAttributes(ATTRIBUTES, wanted, places, pointer);
}

/* All in one call, of a pointer that may be no memory of the driver's. */
static void tell_all_attributes(CUdeviceptr block, const char *where)
{
    unsigned long long values[ATTRIBUTES][VALUE_WORDS];
    CUresult result = get_all(block, values);
    fact(result, "cuPointerGetAttributes %s", where);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < ATTRIBUTES; i++)
        tell_value(&attributes[i], values[i], block, where);
}

void host_pointers_have_all_attributes_in_one_call(void)
{
    char *block = allocate_host(70000, 0);
    tell_all_attributes(address_of(block), "in one call");
    free_host(block);
}

/* Also at an address that was another's before. */
void host_buffers_have_ids_of_their_own(void)
{
    char *first = allocate_host(PAGE, 0), *second = allocate_host(PAGE, 0), *third;
    unsigned long long id = attribute_of(first, CU_POINTER_ATTRIBUTE_BUFFER_ID);
    unsigned long long other = attribute_of(second, CU_POINTER_ATTRIBUTE_BUFFER_ID);
    CHECK(id != other);
    CHECK(attribute_of(first + 100, CU_POINTER_ATTRIBUTE_BUFFER_ID) == id);
    free_host(first);
    third = allocate_host(PAGE, 0);
    note("the next block is %s", third == first ? "at the freed one's address" : "elsewhere");
    CHECK(attribute_of(third, CU_POINTER_ATTRIBUTE_BUFFER_ID) != id);
    CHECK(attribute_of(third, CU_POINTER_ATTRIBUTE_BUFFER_ID) != other);
    free_host(second);
    free_host(third);
}

/* While another block keeps the driver's piece of memory, and then without it. */
void freed_host_memory_is_told(void)
{
    char *keeper = allocate_host(1000, 0), *block = allocate_host(1000, 0);
    CUdeviceptr base;
    size_t bytes;
    free_host(block);
    tell_attributes(address_of(block), 0, "of freed memory");
    tell_all_attributes(address_of(block), "of freed memory in one call");
    fact(cuMemGetAddressRange_v2(&base, &bytes, address_of(block)),
         "cuMemGetAddressRange of freed memory");
    free_host(keeper);
    block = allocate_host(16 * MIB, 0);
    free_host(block);
    tell_attributes(address_of(block), 0, "of a large freed block");
}

void ordinary_memory_is_told(void)
{
    void *memory = malloc(PAGE);
    CUdeviceptr base;
    size_t bytes;
    tell_attributes(address_of(memory), 0, "of ordinary memory");
    tell_all_attributes(address_of(memory), "of ordinary memory in one call");
    fact(cuMemGetAddressRange_v2(&base, &bytes, address_of(memory)),
         "cuMemGetAddressRange of ordinary memory");
    free(memory);
}

void host_memory_can_be_told_to_synchronize(void)
{
    void *block = allocate_host(PAGE, 0);
    unsigned int on = 1;
    CUresult result =
        cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address_of(block));
    fact(result, "SYNC_MEMOPS can be set of host memory");
    if (result == CUDA_SUCCESS)
        fact((unsigned int)attribute_of(block, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS),
             "SYNC_MEMOPS of host memory, once set");
    free_host(block);
    block = allocate_host(PAGE, 0);
    fact((unsigned int)attribute_of(block, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS),
         "SYNC_MEMOPS of the next host block");
    free_host(block);
}

/* --- device pointers ---------------------------------------------------------------------------*/

static CUresult device_pointer(const char *host, unsigned int flags, CUdeviceptr *device)
{
    char *pointer = (char *)(uintptr_t)host;
    *device = 0;
    return cuMemHostGetDevicePointer_v2(device, pointer, flags);
}

void host_device_pointers_are_host_pointers(void)
{
    CUdeviceptr device;
    char *block;
    for (unsigned int flags = 0; flags < ALL_HOST_FLAGS; flags++) {
        block = allocate_host(2 * PAGE, flags);
        SUCCEEDS(device_pointer(block, 0, &device));
        CHECK(device == address_of(block));
        SUCCEEDS(device_pointer(block + PAGE + 7, 0, &device));
        CHECK(device == address_of(block) + PAGE + 7);
        free_host(block);
    }
    block = allocate_host(PAGE, 0);
    for (unsigned int flags = 1; flags < 32; flags *= 2)
        fact(device_pointer(block, flags, &device), "cuMemHostGetDevicePointer with flags %u",
             flags);
    free_host(block);
    fact(device_pointer(block, 0, &device), "cuMemHostGetDevicePointer of freed memory");
    fact(device_pointer((char *)&device, 0, &device),
         "cuMemHostGetDevicePointer of ordinary memory");
    fact(device_pointer(NULL, 0, &device), "cuMemHostGetDevicePointer of NULL");
}

void host_device_pointers_in_other_contexts(void)
{
    struct neighbour other = open_neighbour();
    for (unsigned int flags = 0; flags < 2; flags++) {
        char *block = allocate_host(PAGE, flags);
        CUdeviceptr device;
        SUCCEEDS(cuCtxSetCurrent(other.context));
        fact(device_pointer(block, 0, &device),
             "cuMemHostGetDevicePointer in a context of %s, flags %u", where_other_is(), flags);
        fact(device == address_of(block), "is it the host pointer in a context of %s, flags %u",
             where_other_is(), flags);
        fact(attribute_of(block, CU_POINTER_ATTRIBUTE_CONTEXT) == (uintptr_t)gpu.context,
             "CONTEXT told in a context of %s is the one that allocated, flags %u",
             where_other_is(), flags);
        SUCCEEDS(cuCtxSetCurrent(gpu.context));
        free_host(block);
    }
    close_neighbour(&other);
}

/* --- contents ----------------------------------------------------------------------------------*/

/* No call lies between the processor's write and the launch, nor between the end of the stream and
 * the processor's read. */
void host_memory_is_written_by_both(void)
{
    enum { WORDS = 1024 };
    for (unsigned int flags = 0; flags < ALL_HOST_FLAGS; flags++) {
        volatile unsigned int *words = allocate_host(WORDS * 4, flags);
        unsigned int wrong = 0;
        if (words == NULL)
            return;
        for (unsigned int i = 0; i < WORDS; i++)
            words[i] = 11 + flags;
        spin_then_verify(gpu.a, 0, (uintptr_t)words, WORDS, 11 + flags);
        CHECK(wrong_words() == 0);
        fill(gpu.a, (uintptr_t)words, WORDS, 77 + flags);
        SUCCEEDS(cuStreamSynchronize(gpu.a));
        for (unsigned int i = 0; i < WORDS; i++)
            wrong += words[i] != 77 + flags;
        CHECK(wrong == 0);
        free_host((void *)(uintptr_t)words);
    }
}

static size_t count_set_bytes(const unsigned char *bytes, size_t count)
{
    size_t set = 0;
    for (size_t i = 0; i < count; i++)
        set += bytes[i] != 0;
    return set;
}

void fresh_host_memory_has_contents(void)
{
    static const size_t sizes[] = {PAGE, 65536, 8 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *keeper = allocate_host(PAGE, 0), *block = allocate_host(sizes[i], 0), *next;
        size_t fresh;
        if (block == NULL)
            return;
        fresh = count_set_bytes(block, sizes[i]);
        memset(block, 0xA5, sizes[i]);
        free_host(block);
        next = allocate_host(sizes[i], 0);
        if (next == NULL)
            return;
        note("of %zu bytes %zu are not 0 at first, and %zu in the next block, at %s address",
             sizes[i], fresh, count_set_bytes(next, sizes[i]), next == block ? "its" : "another");
        free_host(next);
        free_host(keeper);
    }
}

/* --- the driver's own pools of host memory -----------------------------------------------------*/

/* Newer than some toolkits that the types are checked against. */
enum { LOCATION_HOST = 2, ALLOCATION_MANAGED = 2 };

static void tell_threshold(const char *what, const CUmemPoolProps *properties)
{
    CUmemoryPool pool = NULL;
    cuuint64_t threshold = 0;
    CUdeviceptr block = 0;
    CUresult result = cuMemPoolCreate(&pool, properties);
    if (result != CUDA_SUCCESS) {
        note("%s cannot be made: %s", what, name_of(result));
        return;
    }
    SUCCEEDS(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    fact((long long)threshold, "the release threshold of %s", what);
    result = cuMemAllocFromPoolAsync(&block, MIB, pool, gpu.a);
    fact(result, "cuMemAllocFromPoolAsync from %s", what);
    if (result == CUDA_SUCCESS) {
        fact((long long)(unsigned int)attribute_of((void *)(uintptr_t)block,
                                                   CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
             "MEMORY_TYPE of memory from %s", what);
        SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    }
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemPoolDestroy(pool));
}

void host_pools_have_a_threshold(void)
{
    CUmemPoolProps host = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .location = {.type = LOCATION_HOST, .id = 0}};
    CUmemPoolProps managed = {.allocType = ALLOCATION_MANAGED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu.device}};
    tell_threshold("a pool of host memory", &host);
    tell_threshold("a pool of managed memory", &managed);
}
