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
        known_fact(result, CUDA_ERROR_INVALID_VALUE, "cuMemHostAlloc with flag bit %u", bit);
        if (result == CUDA_SUCCESS)
            free_host(block);
    }
}

void host_alloc_of_nothing(void)
{
    void *block = &block;
    CUresult result = cuMemHostAlloc(&block, 0, 0);
    known_fact(result, CUDA_SUCCESS, "cuMemHostAlloc of 0 bytes");
    CHECK(block == NULL);
    SUCCEEDS(cuMemFreeHost(block));
    block = &block;
    result = cuMemAllocHost_v2(&block, 0);
    known_fact(result, CUDA_SUCCESS, "cuMemAllocHost of 0 bytes");
    CHECK(block == NULL);
}

/* More than there are addresses: a machine may have less than that and still begin to take all
 * that it has. */
void host_alloc_of_too_much_is_out_of_memory(void)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - PAGE, (size_t)1 << 63, (size_t)1 << 57};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *block = NULL;
        EXPECT(cuMemHostAlloc(&block, sizes[i], 0), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT(cuMemAllocHost_v2(&block, sizes[i]), CUDA_ERROR_OUT_OF_MEMORY);
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
        known_fact(told, flags | CU_MEMHOSTALLOC_DEVICEMAP,
                   "cuMemHostGetFlags of memory with flags %u", flags);
        free_host(block);
    }
    SUCCEEDS(cuMemAllocHost_v2((void **)&block, 3 * PAGE));
    SUCCEEDS(cuMemHostGetFlags(&told, block));
    known_fact(told, CU_MEMHOSTALLOC_DEVICEMAP, "cuMemHostGetFlags of memory of cuMemAllocHost");
    SUCCEEDS(cuMemHostGetFlags(&told, block + PAGE));
    EXPECT(cuMemHostGetFlags(NULL, block), CUDA_ERROR_INVALID_VALUE);
    free_host(block);
    EXPECT(cuMemHostGetFlags(&told, block), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemHostGetFlags(&told, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemHostGetFlags(&told, &told), CUDA_ERROR_INVALID_VALUE);
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
    enum { BLOCKS = 8, ALIGNMENT = 512 };
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
        note("the least alignment of blocks of %zu B, to 4 KiB: %llu", sizes[i], all & -all);
        CHECK(all % ALIGNMENT == 0);
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
            known_fact(result, CUDA_SUCCESS, "cuMemGetAddressRange %zu B into %s", offsets[o],
                       kinds[i].name);
            CHECK(base == block);
            known_fact((long long)bytes, (long long)kinds[i].bytes, "its size, %zu B into %s",
                       offsets[o], kinds[i].name);
        }
        note("cuMemGetAddressRange just past %s: %s", kinds[i].name,
             name_of(cuMemGetAddressRange_v2(&(CUdeviceptr){0}, NULL, block + kinds[i].bytes)));
        note("cuMemGetAddressRange to nowhere, just past %s: %s", kinds[i].name,
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
    /* What tell_value makes of it: of host memory, and of what the driver does not know. */
    int known, unknown;
} attributes[] = {
    {"CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT, CONTEXT, 1, 0},
    {"MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NUMBER, CU_MEMORYTYPE_HOST, 0},
    {"DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ADDRESS, 0, -1},
    {"HOST_POINTER", CU_POINTER_ATTRIBUTE_HOST_POINTER, ADDRESS, 0, 0},
    {"SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, NUMBER, 0, 0},
    {"BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID, ANYTHING, 0, 0},
    {"IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, NUMBER, 0, 0},
    {"DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, NUMBER, 0, -2},
    {"IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, NUMBER, 0, 0},
    {"RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ADDRESS, 0, -1},
    {"RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE, NUMBER, 0, 0},
    {"MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, NUMBER, 1, 0},
    {"ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, NUMBER, 0, 0},
    {"IS_GPU_DIRECT_RDMA_CAPABLE", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, NUMBER, 0, 0},
    {"ACCESS_FLAGS", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, NUMBER, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
     0},
    {"MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, NUMBER, 0, 0},
    {"MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ANYTHING, 0, 0},
    {"MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ANYTHING, 0, 0},
    {"MEMORY_BLOCK_ID", CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, ANYTHING, 0, 0},
};
enum { ATTRIBUTES = sizeof attributes / sizeof *attributes, VALUE_WORDS = 4 };

/* What was asked of, and where; of what the driver does not know, bytes is 0. */
struct place {
    CUdeviceptr block;
    size_t bytes, inside;
    const char *where;
};

static long long known_value(const struct attribute *attribute, const struct place *place)
{
    if (place->bytes == 0)
        return attribute->unknown;
    switch (attribute->attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return (long long)place->bytes;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return (long long)place->inside;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return gpu.device;
    default:
        return attribute->known;
    }
}

static void tell_value(const struct attribute *attribute, const unsigned long long *value,
                       const struct place *place)
{
    unsigned long long told = value[0];
    long long known = known_value(attribute, place);
    switch (attribute->what) {
    case NUMBER:
        known_fact((int)told == -2 ? -2 : (long long)told, known, "%s %s", attribute->name,
                   place->where);
        break;
    case ADDRESS:
        known_fact(told == 0 ? -1 : (long long)(told - place->block), known,
                   "%s %s, from its start", attribute->name, place->where);
        break;
    case CONTEXT:
        known_fact(told == 0                        ? 0
                   : told == (uintptr_t)gpu.context ? 1
                                                    : 2,
                   known, "CONTEXT %s is none, the one that allocated, another", place->where);
        break;
    default:
        note("%s %s: %#llx (the block is at %#llx)", attribute->name, place->where, told,
             place->block);
    }
}

/* Each attribute alone. */
static void tell_attributes(const struct place *place)
{
    CUresult known = place->bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < ATTRIBUTES; i++) {
        unsigned long long value[VALUE_WORDS] = {0};
        CUresult result =
            cuPointerGetAttribute(value, attributes[i].attribute, place->block + place->inside);
        known_fact(result, known, "the answer to %s %s", attributes[i].name, place->where);
        if (result == CUDA_SUCCESS)
            tell_value(&attributes[i], value, place);
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
        snprintf(where, sizeof where, "of %s", kinds[i].name);
        tell_attributes(&(struct place){address_of(block), kinds[i].bytes, 0, where});
        snprintf(where, sizeof where, "inside %s", kinds[i].name);
        tell_attributes(&(struct place){address_of(block), kinds[i].bytes, 512, where});
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
static void tell_all_attributes(const struct place *place)
{
    unsigned long long values[ATTRIBUTES][VALUE_WORDS];
    CUresult result = get_all(place->block, values);
    known_fact(result, CUDA_SUCCESS, "cuPointerGetAttributes %s", place->where);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < ATTRIBUTES; i++)
        tell_value(&attributes[i], values[i], place);
}

void host_pointers_have_all_attributes_in_one_call(void)
{
    char *block = allocate_host(70000, 0);
    tell_all_attributes(&(struct place){address_of(block), 70000, 0, "in one call"});
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
    tell_attributes(&(struct place){address_of(block), 0, 0, "of freed memory"});
    tell_all_attributes(&(struct place){address_of(block), 0, 0, "of freed memory in one call"});
    EXPECT(cuMemGetAddressRange_v2(&base, &bytes, address_of(block)), CUDA_ERROR_NOT_FOUND);
    free_host(keeper);
    block = allocate_host(16 * MIB, 0);
    free_host(block);
    tell_attributes(&(struct place){address_of(block), 0, 0, "of a large freed block"});
}

void ordinary_memory_is_told(void)
{
    void *memory = malloc(PAGE);
    CUdeviceptr block = address_of(memory), base;
    size_t bytes;
    tell_attributes(&(struct place){block, 0, 0, "of ordinary memory"});
    tell_all_attributes(&(struct place){block, 0, 0, "of ordinary memory in one call"});
    EXPECT(cuMemGetAddressRange_v2(&base, &bytes, block), CUDA_ERROR_NOT_FOUND);
    free(memory);
}

void host_memory_can_be_told_to_synchronize(void)
{
    void *block = allocate_host(PAGE, 0);
    unsigned int on = 1;
    SUCCEEDS(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address_of(block)));
    CHECK((unsigned int)attribute_of(block, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) == 1);
    free_host(block);
    block = allocate_host(PAGE, 0);
    CHECK((unsigned int)attribute_of(block, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) == 0);
    free_host(block);
}

/* Of memory that the program has registered, which differs from what the driver has allocated. */
void registered_memory_can_be_told_to_synchronize(void)
{
    void *block = aligned_alloc(PAGE, PAGE);
    unsigned int on = 1;
    SUCCEEDS(cuMemHostRegister_v2(block, PAGE, 0));
    SUCCEEDS(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address_of(block)));
    SUCCEEDS(cuMemHostUnregister(block));
    free(block);
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
        EXPECT(device_pointer(block, flags, &device), CUDA_ERROR_INVALID_VALUE);
    free_host(block);
    EXPECT(device_pointer(block, 0, &device), CUDA_ERROR_INVALID_VALUE);
    EXPECT(device_pointer((char *)&device, 0, &device), CUDA_ERROR_INVALID_VALUE);
    EXPECT(device_pointer(NULL, 0, &device), CUDA_ERROR_INVALID_VALUE);
}

/* On another device, no GPU has been asked yet. */
static void tell_in_other(long long number, long long known, const char *what, unsigned int flags)
{
    if (gpu.neighbour == gpu.device)
        known_fact(number, known, "%s in a context of the same device, flags %u", what, flags);
    else
        fact(number, "%s in a context of another device, flags %u", what, flags);
}

void host_device_pointers_in_other_contexts(void)
{
    struct neighbour other = open_neighbour();
    for (unsigned int flags = 0; flags < 2; flags++) {
        char *block = allocate_host(PAGE, flags);
        CUdeviceptr device;
        SUCCEEDS(cuCtxSetCurrent(other.context));
        tell_in_other(device_pointer(block, 0, &device), CUDA_SUCCESS, "cuMemHostGetDevicePointer",
                      flags);
        tell_in_other(device == address_of(block), 1, "is it the host pointer", flags);
        tell_in_other(attribute_of(block, CU_POINTER_ATTRIBUTE_CONTEXT) == (uintptr_t)gpu.context,
                      1, "CONTEXT is the one that allocated", flags);
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
