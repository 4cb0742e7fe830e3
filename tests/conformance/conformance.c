/*
 * What the CUDA driver does, as far as the pool leans on it: one row for each fact, checked on
 * whatever libcuda.so.1 is there.
 *
 * The simulated driver is held to these rows, a real GPU is asked the same ones (driver 12.5 or
 * newer), and so is either with the pool in front. Where the pool answers otherwise on purpose (its
 * cuMemFree does not wait), the row expects that other answer if CONFORMANCE_WITH_POOL=1 is set.
 *
 * Rows about several contexts run once more with the second context on another device, where there
 * is one, as "NAME@another_device".
 *
 * What nobody knows beforehand, and the pool has to tell as the driver does, is a fact: with
 * CONFORMANCE_FACTS=FILE a run without the pool writes the facts there, and one with it compares.
 *
 * Rows about other processes run this program again. On the simulated driver they want
 * SIMCUDA_SHARED=FILE, so that its devices are the same in all processes.
 *
 * Each row prints "ok NAME" or "FAIL NAME: what was expected and found"; the last line counts them.
 * Facts are printed before, as "fact WHAT: NUMBER".
 * Where drivers may differ, a line "note NAME: what was found" comes before it.
 * Exit status 1 if a row failed. Arguments name the rows to run, all without any.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../kernels.h"
#include "conformance.h"
#include "graphs.h"
#include "pinned.h"
#include "pool_figures.h"
#include "pools.h"
#include "virtual_memory.h"

struct gpu gpu;

/* --- rows --------------------------------------------------------------------------------------*/

static const char *row_name = "";
static char failure[512]; /* of the row that runs; empty while it has none */
static bool took_wrong_time;
static double slower = 1; /* how many times as long as stated the row's work takes in this try */

void fail(const char *format, ...)
{
    va_list arguments;
    if (failure[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
}

bool has_failed(void)
{
    return failure[0] != '\0';
}

const char *failure_of_row(void)
{
    return failure;
}

void note(const char *format, ...)
{
    va_list arguments;
    printf("note %s: ", row_name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

const char *name_of(CUresult result)
{
    const char *name = NULL;
    cuGetErrorName(result, &name);
    return name != NULL ? name : "an unknown error";
}

void expect_at(int line, const char *what, CUresult found, CUresult expected)
{
    if (found != expected)
        fail("line %d: %s: expected %s, got %s", line, what, name_of(expected), name_of(found));
}

void fails_at(int line, const char *what, CUresult found)
{
    if (found == CUDA_SUCCESS)
        fail("line %d: %s: expected an error, got CUDA_SUCCESS", line, what);
}

void check_at(int line, const char *what, bool holds)
{
    if (!holds)
        fail("line %d: expected %s", line, what);
}

/* --- facts */

static FILE *facts; /* NULL: they are only printed */

/* The number that a run without the pool has written, or else this one. */
static long long written_fact(const char *what, long long number)
{
    char line[256];
    rewind(facts);
    while (fgets(line, sizeof line, facts) != NULL) {
        const char *colon = strrchr(line, ':');
        size_t length = colon != NULL ? (size_t)(colon - line) : 0;
        if (length == strlen(what) && memcmp(line, what, length) == 0)
            return strtoll(colon + 1, NULL, 10);
    }
    return number;
}

static void tell_fact(const char *what, long long number)
{
    printf("fact %s: %lld\n", what, number);
    if (facts != NULL && !gpu.pool)
        fprintf(facts, "%s:%lld\n", what, number);
    else if (facts != NULL && written_fact(what, number) != number)
        fail("%s: expected %lld, as without the pool, got %lld", what, written_fact(what, number),
             number);
}

void fact(long long number, const char *format, ...)
{
    char what[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    tell_fact(what, number);
}

void known_fact(long long number, long long known, const char *format, ...)
{
    char what[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    tell_fact(what, number);
    if (number != known)
        fail("%s: expected %lld, got %lld", what, known, number);
}

static bool has_pool(void)
{
    const char *pool = getenv("CONFORMANCE_WITH_POOL");
    return pool != NULL && strcmp(pool, "1") == 0;
}

static void open_facts(const char *mode)
{
    const char *path = getenv("CONFORMANCE_FACTS");
    if (path == NULL || path[0] == '\0')
        return;
    facts = fopen(path, mode);
    if (facts == NULL)
        fail("CONFORMANCE_FACTS: cannot open %s", path);
}

/* Each part of the rows adds its own. */
static void empty_facts(void)
{
    if (!has_pool())
        open_facts("w");
    if (facts != NULL)
        fclose(facts);
    facts = NULL;
}

#define FAIL_FOR_TIME(...)                                                                         \
    do {                                                                                           \
        took_wrong_time = took_wrong_time || failure[0] == '\0';                                   \
        fail(__VA_ARGS__);                                                                         \
    } while (0)

void check_time_at(int line, const char *what, bool holds)
{
    if (!holds)
        FAIL_FOR_TIME("line %d: expected %s", line, what);
}

double real_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

double now_ms(void)
{
    return real_ms() / slower;
}

unsigned long long work_ns(double ms)
{
    return (unsigned long long)(ms * slower * 1e6);
}

void sleep_ms(double ms)
{
    unsigned long long ns = work_ns(ms);
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

/* A pause of a fixed length becomes a small share of longer work. It is no stall of the machine if
 * it takes longer than this. */
static const double LONGEST_STALL_MS = 500;

void took_at(int line, double ms, double work_ms, bool waits)
{
    if (waits && ms < 0.7 * work_ms)
        FAIL_FOR_TIME("line %d: expected a wait for %.0f ms of work, got %.2f ms", line, work_ms,
                      ms);
    bool too_long = ms > work_ms / 3 || (slower > 1 && ms * slower > LONGEST_STALL_MS);
    if (!waits && too_long)
        FAIL_FOR_TIME("line %d: expected no wait for %.0f ms of work, got %.2f ms", line, work_ms,
                      ms);
}

/* --- work --------------------------------------------------------------------------------------*/

void launch(CUfunction function, CUstream stream, void **parameters)
{
    SUCCEEDS(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}

void spin(CUstream stream, double ms)
{
    unsigned long long ns = work_ns(ms);
    launch(gpu.spin, stream, (void *[]){&ns});
}

void fill(CUstream stream, CUdeviceptr address, unsigned int words, unsigned int value)
{
    launch(gpu.fill, stream, (void *[]){&address, &words, &value});
}

void spin_then_verify(CUstream stream, double ms, CUdeviceptr address, unsigned int words,
                      unsigned int value)
{
    unsigned long long ns = work_ns(ms);
    launch(gpu.spin_then_verify, stream,
           (void *[]){&ns, &address, &words, &value, &gpu.mismatches});
}

unsigned long long wrong_words(void)
{
    unsigned long long wrong = 0;
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuMemcpyDtoH_v2(&wrong, gpu.mismatches, sizeof wrong));
    SUCCEEDS(cuMemsetD8_v2(gpu.mismatches, 0, 8));
    SUCCEEDS(cuCtxSynchronize());
    return wrong;
}

CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAlloc_v2(&address, bytes));
    return address;
}

CUevent new_event(void)
{
    CUevent event = NULL;
    SUCCEEDS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static double timed_free(CUdeviceptr address)
{
    double start = now_ms();
    SUCCEEDS(cuMemFree_v2(address));
    return now_ms() - start;
}

size_t free_memory(void)
{
    size_t available = 0, total;
    SUCCEEDS(cuMemGetInfo_v2(&available, &total));
    return available;
}

/* --- arguments and errors ----------------------------------------------------------------------*/

static void alloc_of_nothing_is_invalid(void)
{
    CUdeviceptr address;
    EXPECT(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

static void alloc_to_nowhere_is_invalid(void)
{
    EXPECT(cuMemAlloc_v2(NULL, 1024), CUDA_ERROR_INVALID_VALUE);
}

static void async_alloc_of_nothing_succeeds(void)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAllocAsync(&address, 0, gpu.a));
    SUCCEEDS(cuMemFreeAsync(address, gpu.a));
}

static void free_of_null_succeeds(void)
{
    SUCCEEDS(cuMemFree_v2(0));
    SUCCEEDS(cuMemFreeAsync(0, gpu.a));
}

static void free_twice_is_invalid(void)
{
    CUdeviceptr address = allocate(4096);
    SUCCEEDS(cuMemFree_v2(address));
    EXPECT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

static void free_async_twice_is_invalid(void)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAllocAsync(&address, 4096, gpu.a));
    SUCCEEDS(cuMemFreeAsync(address, gpu.a));
    EXPECT(cuMemFreeAsync(address, gpu.a), CUDA_ERROR_INVALID_VALUE);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

static void free_inside_a_block_is_invalid(void)
{
    CUdeviceptr address = allocate(4096);
    EXPECT(cuMemFree_v2(address + 256), CUDA_ERROR_INVALID_VALUE);
    SUCCEEDS(cuMemFree_v2(address));
}

static void alloc_of_too_much_is_out_of_memory(void)
{
    CUdeviceptr address;
    EXPECT(cuMemAlloc_v2(&address, (size_t)1 << 40), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuMemAllocAsync(&address, (size_t)1 << 40, gpu.a), CUDA_ERROR_OUT_OF_MEMORY);
}

static void range_is_what_was_asked_for(void)
{
    CUdeviceptr address = allocate(1000), base = 0;
    size_t size = 0;
    SUCCEEDS(cuMemGetAddressRange_v2(&base, &size, address));
    CHECK(base == address && size == 1000);
    SUCCEEDS(cuMemGetAddressRange_v2(&base, &size, address + 999));
    CHECK(base == address && size == 1000);
    SUCCEEDS(cuMemFree_v2(address));
    SUCCEEDS(cuMemAllocAsync(&address, 1000, gpu.a));
    SUCCEEDS(cuMemGetAddressRange_v2(&base, &size, address));
    CHECK(base == address && size == 1000);
    SUCCEEDS(cuMemFreeAsync(address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

static void range_attribute_is_what_was_asked_for(void)
{
    CUdeviceptr address = allocate(1000), base = 0;
    size_t size = 0;
    SUCCEEDS(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
    SUCCEEDS(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 10));
    CHECK(size == 1000 && base == address);
    SUCCEEDS(cuMemFree_v2(address));
}

static void freed_memory_is_unknown(void)
{
    CUdeviceptr address = allocate(1000), base;
    size_t size;
    unsigned int type;
    SUCCEEDS(cuMemFree_v2(address));
    EXPECT(cuMemGetAddressRange_v2(&base, &size, address), CUDA_ERROR_NOT_FOUND);
    EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
           CUDA_ERROR_INVALID_VALUE);
}

/* More than the device has free is given out, too; nobody touches it here. */
static void managed_memory_needs_no_room(void)
{
    CUdeviceptr address = 0;
    size_t available, total;
    SUCCEEDS(cuMemGetInfo_v2(&available, &total));
    SUCCEEDS(cuMemAllocManaged(&address, available + 64 * MIB, CU_MEM_ATTACH_GLOBAL));
    if (address != 0)
        SUCCEEDS(cuMemFree_v2(address));
}

static void managed_memory_says_what_it_is(void)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    CUdeviceptr managed, plain = allocate(1000);
    unsigned int is_managed = 2;
    int ordinal = -1;
    size_t size = 0;
    void *values[] = {&is_managed, &ordinal, &size};
    SUCCEEDS(cuMemAllocManaged(&managed, 5 * MIB, CU_MEM_ATTACH_GLOBAL));
    SUCCEEDS(cuPointerGetAttributes(3, attributes, values, managed));
    CHECK(is_managed == 1 && ordinal == gpu.device && size == 5 * MIB);
    SUCCEEDS(cuPointerGetAttributes(3, attributes, values, plain));
    CHECK(is_managed == 0);
    SUCCEEDS(cuMemFree_v2(plain));
    SUCCEEDS(cuMemFree_v2(managed));
    note("cuPointerGetAttributes of a freed managed pointer: %s",
         name_of(cuPointerGetAttributes(3, attributes, values, managed)));
    note("is_managed %u, size %zu", is_managed, size);
}

/* A device that holds managed pages has less free by them. */
static void touched_managed_memory_is_not_free(void)
{
    CUdeviceptr managed;
    size_t before, after, total;
    SUCCEEDS(cuMemGetInfo_v2(&before, &total));
    SUCCEEDS(cuMemAllocManaged(&managed, 256 * MIB, CU_MEM_ATTACH_GLOBAL));
    SUCCEEDS(cuMemsetD8Async(managed, 1, 256 * MIB, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemGetInfo_v2(&after, &total));
    if (after + 200 * MIB > before)
        fail("256 MiB touched, %zu MiB less free", before > after ? (before - after) / MIB : 0);
    SUCCEEDS(cuMemFree_v2(managed));
}

/* Which of the neighbours comes first depends on what was freed before, so several are asked. */
static void small_blocks_are_1_kib_apart(void)
{
    CUdeviceptr addresses[8];
    int neighbours = 0;
    for (int i = 0; i < 8; i++)
        addresses[i] = allocate(1000);
    for (int i = 1; i < 8; i++)
        neighbours += addresses[i] - addresses[i - 1] == 0x400;
    if (!gpu.pool)
        CHECK(neighbours >= 4);
    for (int i = 0; i < 8; i++) {
        CHECK(addresses[i] % 512 == 0);
        SUCCEEDS(cuMemFree_v2(addresses[i]));
    }
}

static void *free_without_a_context(void *address)
{
    CUcontext current = gpu.context;
    SUCCEEDS(cuCtxGetCurrent(&current));
    CHECK(current == NULL);
    SUCCEEDS(cuMemFree_v2(*(CUdeviceptr *)address));
    return NULL;
}

/* In a thread that never had one, and where it was taken away. */
static void free_needs_no_context(void)
{
    for (size_t bytes = 1000; bytes <= 64 * MIB; bytes *= 64) {
        CUdeviceptr address = allocate(bytes);
        size_t before = free_memory();
        pthread_t thread;
        pthread_create(&thread, NULL, free_without_a_context, &address);
        pthread_join(thread, NULL);
        EXPECT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
        CHECK(free_memory() >= before + bytes / (2 * MIB) * (2 * MIB));
        address = allocate(bytes);
        SUCCEEDS(cuCtxSetCurrent(NULL));
        free_without_a_context(&address);
        SUCCEEDS(cuCtxSetCurrent(gpu.context));
        EXPECT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
    }
}

static void free_without_a_context_of_other_pointers(void)
{
    CUdeviceptr async = 0;
    SUCCEEDS(cuMemAllocAsync(&async, 4096, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuCtxSetCurrent(NULL));
    CUresult of_null = cuMemFree_v2(0), of_async = cuMemFree_v2(async);
    CUresult of_nothing = cuMemFree_v2(async + 256);
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    fact(of_null, "cuMemFree of null without a context");
    fact(of_async, "cuMemFree of stream-ordered memory without a context");
    fact(of_nothing, "cuMemFree of what is no block's without a context");
    if (of_async != CUDA_SUCCESS)
        SUCCEEDS(cuMemFree_v2(async));
}

/* Whether it waits for the memory's context. */
static void free_without_a_context_waits(void)
{
    CUdeviceptr address = allocate(MIB);
    spin(gpu.a, 50);
    SUCCEEDS(cuCtxSetCurrent(NULL));
    double ms = timed_free(address);
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    if (!gpu.pool)
        printf("fact cuMemFree without a context waits: %d\n", ms > 35);
    SUCCEEDS(cuCtxSynchronize());
}

static void info_wants_neither_number(void)
{
    size_t available = 1, total = 0, all = 0;
    SUCCEEDS(cuMemGetInfo_v2(NULL, &total));
    SUCCEEDS(cuMemGetInfo_v2(&available, NULL));
    CHECK(available == free_memory());
    SUCCEEDS(cuMemGetInfo_v2(&available, &all));
    CHECK(total == all);
    SUCCEEDS(cuMemGetInfo_v2(NULL, NULL));
}

/* Also of what a pool keeps free. */
static void info_of_freed_memory_needs_no_total(void)
{
    CUdeviceptr address = allocate(64 * MIB);
    size_t available = 0;
    SUCCEEDS(cuMemFree_v2(address));
    SUCCEEDS(cuMemGetInfo_v2(&available, NULL));
    CHECK(available == free_memory());
}

static void info_counts_freed_memory(void)
{
    size_t before = free_memory(), during;
    CUdeviceptr address = allocate(64 * MIB);
    during = free_memory();
    CHECK(during <= before - 64 * MIB);
    SUCCEEDS(cuMemFree_v2(address));
    CHECK(free_memory() == before);
}

/* Small blocks share pages of 2 MiB: one in each keeps it. */
static void info_counts_whole_pages_only(void)
{
    enum { BLOCKS = 400 };
    CUdeviceptr blocks[BLOCKS];
    size_t with_all, with_half;
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = allocate(1000000);
    with_all = free_memory();
    for (int i = 1; i < BLOCKS; i += 2)
        SUCCEEDS(cuMemFree_v2(blocks[i]));
    with_half = free_memory();
    /* Pages that were not shared before: those of the first and the last block, and what a block
     * that came from elsewhere was alone in. */
    CHECK(with_half <= with_all + BLOCKS / 20 * 2 * MIB);
    for (int i = 0; i < BLOCKS; i += 2)
        SUCCEEDS(cuMemFree_v2(blocks[i]));
    CHECK(free_memory() >= with_all + BLOCKS / 2 * 2 * MIB - 4 * MIB);
}

/* --- attributes of pointers --------------------------------------------------------------------*/

static unsigned long long buffer_id(CUdeviceptr pointer)
{
    unsigned long long id = 0;
    SUCCEEDS(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer));
    return id;
}

static CUdeviceptr allocate_async(size_t bytes)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAllocAsync(&address, bytes, gpu.a));
    return address;
}

static void free_async(CUdeviceptr address)
{
    SUCCEEDS(cuMemFreeAsync(address, gpu.a));
}

static void free_at_once(CUdeviceptr address)
{
    SUCCEEDS(cuMemFree_v2(address));
    SUCCEEDS(cuCtxSynchronize());
}

enum { LIVES = 8 };

/* Blocks that come and go at, mostly, the same address. */
static void check_buffer_ids(CUdeviceptr (*take)(size_t), void (*give)(CUdeviceptr), size_t bytes)
{
    unsigned long long ids[LIVES] = {0};
    for (int i = 0; i < LIVES; i++) {
        CUdeviceptr block = take(bytes);
        ids[i] = buffer_id(block);
        CHECK(ids[i] != 0);
        CHECK(buffer_id(block + bytes / 2) == ids[i]);
        CHECK(buffer_id(block) == ids[i]);
        for (int k = 0; k < i; k++)
            CHECK(ids[k] != ids[i]);
        give(block);
    }
}

static const size_t attribute_sizes[] = {1000, 70000, MIB + 100, 3 * MIB + 1000, 40 * MIB + 7};
enum { ATTRIBUTE_SIZES = sizeof attribute_sizes / sizeof *attribute_sizes };

static void buffer_ids_are_never_used_again(void)
{
    for (int i = 0; i < ATTRIBUTE_SIZES; i++)
        check_buffer_ids(allocate, free_at_once, attribute_sizes[i]);
}

static void buffers_of_a_time_have_ids_of_their_own(void)
{
    enum { BLOCKS = 16 };
    CUdeviceptr blocks[BLOCKS];
    unsigned long long ids[BLOCKS + 1];
    void *pinned = NULL;
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = allocate(1000);
    SUCCEEDS(cuMemHostAlloc(&pinned, 4096, 0));
    ids[BLOCKS] = buffer_id((CUdeviceptr)(uintptr_t)pinned);
    for (int i = 0; i < BLOCKS; i++) {
        ids[i] = buffer_id(blocks[i]);
        CHECK(ids[i] != ids[BLOCKS]);
        for (int k = 0; k < i; k++)
            CHECK(ids[k] != ids[i]);
        SUCCEEDS(cuMemFree_v2(blocks[i]));
    }
    SUCCEEDS(cuMemFreeHost(pinned));
}

/* The pool's own numbers have the highest bit. */
static void drivers_buffer_ids_are_small(void)
{
    CUdeviceptr managed = 0;
    SUCCEEDS(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    CHECK(buffer_id(managed) >> 48 == 0);
    SUCCEEDS(cuMemFree_v2(managed));
    managed = allocate(1000);
    if (!gpu.pool)
        CHECK(buffer_id(managed) >> 48 == 0);
    SUCCEEDS(cuMemFree_v2(managed));
}

/* What the driver says of stream-ordered memory is a fact; with the pool ids are never used again.
 */
static void stream_ordered_buffer_ids(void)
{
    CUdeviceptr block = allocate_async(MIB), other = allocate_async(MIB);
    unsigned long long id = buffer_id(block), others = buffer_id(other);
    fact(id != others, "stream-ordered blocks have buffer ids of their own");
    free_async(block);
    free_async(other);
    block = allocate_async(MIB);
    if (!gpu.pool)
        printf("fact stream-ordered memory that is given out again has another buffer id: %d\n",
               buffer_id(block) != id && buffer_id(block) != others);
    free_async(block);
    if (gpu.pool)
        check_buffer_ids(allocate_async, free_async, MIB);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

enum { RANGE_ATTRIBUTES = 4 };

/* Of a pointer so far inside a block of that size: first all at a time, and each as when it is
 * asked for alone. */
static void get_ranges(CUdeviceptr pointer, unsigned long long values[RANGE_ATTRIBUTES])
{
    CUpointer_attribute attributes[RANGE_ATTRIBUTES] = {
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    void *places[RANGE_ATTRIBUTES];
    for (int i = 0; i < RANGE_ATTRIBUTES; i++)
        places[i] = &values[i];
    SUCCEEDS(cuPointerGetAttributes(RANGE_ATTRIBUTES, attributes, places, pointer));
    for (int i = 0; i < RANGE_ATTRIBUTES; i++) {
        unsigned long long alone = 0;
        CUresult result = cuPointerGetAttribute(&alone, attributes[i], pointer);
        CHECK(result != CUDA_SUCCESS || alone == values[i]);
    }
}

/* Where a small block lies in its page is chance, and so is the mapping of stream-ordered memory.
 */
static void tell_ranges(const char *kind, CUdeviceptr block, size_t bytes, size_t inside)
{
    unsigned long long values[RANGE_ATTRIBUTES] = {0};
    get_ranges(block + inside, values);
    CHECK(values[2] == bytes && values[3] == block);
    bool plain = strcmp(kind, "plain") == 0;
    if (plain)
        fact((long long)values[0], "plain, %zu bytes, at %zu, MAPPING_SIZE", bytes, inside);
    if (plain && (bytes >= 2 * MIB || values[1] == block))
        fact((long long)(values[1] - block), "plain, %zu bytes, at %zu, MAPPING_BASE_ADDR", bytes,
             inside);
    else
        printf("fact %s, %zu bytes, at %zu: MAPPING_SIZE %llu, MAPPING_BASE_ADDR %lld\n", kind,
               bytes, inside, values[0], (long long)(values[1] - block));
}

/* A block of the same bucket, where there is a pool, is there to be given out again. */
static void ranges_are_told_as_without_the_pool(void)
{
    for (int i = 0; i < ATTRIBUTE_SIZES; i++) {
        size_t bytes = attribute_sizes[i];
        free_at_once(allocate(bytes + 16));
        CUdeviceptr block = allocate(bytes);
        tell_ranges("plain", block, bytes, 0);
        tell_ranges("plain", block, bytes, bytes - 1);
        free_at_once(block);
        free_async(allocate_async(bytes + 16));
        block = allocate_async(bytes);
        tell_ranges("stream-ordered", block, bytes, 0);
        tell_ranges("stream-ordered", block, bytes, bytes - 1);
        free_async(block);
        SUCCEEDS(cuStreamSynchronize(gpu.a));
    }
}

/* --- freeing, and who waits --------------------------------------------------------------------*/

static void free_waits_for_its_context(void)
{
    CUdeviceptr address = allocate(MIB);
    spin(gpu.a, 50);
    TOOK(timed_free(address), 50, !gpu.pool);
    SUCCEEDS(cuCtxSynchronize());
}

/* What another thread does while cuMemFree waits. */
struct other_thread {
    enum { LAUNCHES, ALLOCATES, QUERIES } call;
    CUevent event;
    double ms;
};

static void *call_while_free_waits(void *argument)
{
    struct other_thread *other = argument;
    CUdeviceptr address = 0;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    sleep_ms(15);
    other->ms = now_ms();
    if (other->call == LAUNCHES)
        spin(gpu.b, 0);
    else if (other->call == ALLOCATES)
        address = allocate(512);
    else
        SUCCEEDS(cuEventQuery(other->event));
    other->ms = now_ms() - other->ms;
    SUCCEEDS(cuMemFree_v2(address));
    return NULL;
}

static void free_holds_the_drivers_lock(void)
{
    struct other_thread other = {.event = new_event()};
    for (other.call = LAUNCHES; other.call <= QUERIES; other.call++) {
        CUdeviceptr address = allocate(MIB);
        pthread_t thread;
        pthread_create(&thread, NULL, call_while_free_waits, &other);
        spin(gpu.a, 100);
        TOOK(timed_free(address), 100, !gpu.pool);
        pthread_join(thread, NULL);
        TOOK(other.ms, 80, !gpu.pool && other.call != QUERIES);
        SUCCEEDS(cuCtxSynchronize());
    }
    SUCCEEDS(cuEventDestroy_v2(other.event));
}

static void alloc_does_not_wait(void)
{
    CUdeviceptr address;
    double start;
    spin(gpu.a, 60);
    start = now_ms();
    address = allocate(4 * MIB);
    TOOK(now_ms() - start, 60, false);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuMemFree_v2(address));
}

static void free_of_async_memory_does_not_wait(void)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAllocAsync(&address, MIB, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    spin(gpu.a, 60);
    TOOK(timed_free(address), 60, false);
    SUCCEEDS(cuCtxSynchronize());
}

static void free_async_gives_plain_memory_back(void)
{
    CUdeviceptr address = allocate(64 * MIB), warm = allocate(MIB);
    size_t before;
    double start;
    SUCCEEDS(cuMemFreeAsync(warm, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    before = free_memory();
    spin(gpu.a, 60);
    start = now_ms();
    SUCCEEDS(cuMemFreeAsync(address, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    TOOK(now_ms() - start, 60, false);
    CHECK(free_memory() >= before + 60 * MIB);
    SUCCEEDS(cuCtxSynchronize());
}

/* Other processes may have it open. */
static void free_async_gives_exported_memory_back(void)
{
    CUdeviceptr address = allocate(64 * MIB);
    CUipcMemHandle handle;
    CUresult exported = cuIpcGetMemHandle(&handle, address);
    size_t before;
    double start;
    if (exported != CUDA_SUCCESS)
        note("cuIpcGetMemHandle: %s", name_of(exported));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    before = free_memory();
    spin(gpu.a, 60);
    start = now_ms();
    SUCCEEDS(cuMemFreeAsync(address, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    TOOK(now_ms() - start, 60, false);
    CHECK(free_memory() >= before + 60 * MIB);
    SUCCEEDS(cuCtxSynchronize());
}

struct neighbour open_neighbour(void)
{
    struct neighbour other = {0};
    SUCCEEDS(cuCtxCreate_v2(&other.context, 0, gpu.neighbour));
    SUCCEEDS(cuStreamCreate(&other.stream, CU_STREAM_NON_BLOCKING));
    SUCCEEDS(cuModuleLoadData(&other.module, KERNELS_PTX));
    SUCCEEDS(cuModuleGetFunction(&other.spin, other.module, "spin"));
    launch(other.spin, other.stream, (void *[]){&(unsigned long long){0}});
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    return other;
}

void spin_in(const struct neighbour *other, double ms)
{
    unsigned long long ns = work_ns(ms);
    SUCCEEDS(cuCtxSetCurrent(other->context));
    launch(other->spin, other->stream, (void *[]){&ns});
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
}

void close_neighbour(const struct neighbour *other)
{
    SUCCEEDS(cuCtxDestroy_v2(other->context));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
}

static void free_ignores_other_contexts_kernels(void)
{
    struct neighbour other = open_neighbour();
    CUdeviceptr address = allocate(MIB);
    spin_in(&other, 60);
    TOOK(timed_free(address), 60, false);
    close_neighbour(&other);
}

static void free_waits_for_copies_in_other_contexts(void)
{
    struct neighbour other = open_neighbour();
    CUdeviceptr address = allocate(MIB);
    void *host = NULL;
    SUCCEEDS(cuMemHostAlloc(&host, MIB, CU_MEMHOSTALLOC_PORTABLE));
    SUCCEEDS(cuCtxSynchronize());
    spin_in(&other, 60);
    SUCCEEDS(cuCtxSetCurrent(other.context));
    SUCCEEDS(cuMemcpyDtoHAsync_v2(host, address, MIB, other.stream));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    TOOK(timed_free(address), 60, !gpu.pool);
    close_neighbour(&other);
    SUCCEEDS(cuMemFreeHost(host));
}

/* --- context fences ----------------------------------------------------------------------------*/

/* How long the context's work so far takes by a fence's account. */
static double fence_ms(void)
{
    CUevent event = new_event();
    double start = now_ms();
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    SUCCEEDS(cuEventSynchronize(event));
    start = now_ms() - start;
    SUCCEEDS(cuEventDestroy_v2(event));
    return start;
}

static void fence_covers_every_kind_of_stream(void)
{
    CUstream blocking = NULL;
    CUstream streams[4];
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    streams[0] = gpu.a;
    streams[1] = blocking;
    streams[2] = CU_STREAM_LEGACY;
    streams[3] = CU_STREAM_PER_THREAD;
    for (int i = 0; i < 4; i++) {
        spin(streams[i], 40);
        TOOK(fence_ms(), 40, true);
    }
    SUCCEEDS(cuStreamDestroy_v2(blocking));
}

/* What may be handed out again while the cache holds it is a part of that. */
static void the_size_of_the_cache_is_known(void)
{
    int bytes = 0;
    SUCCEEDS(cuDeviceGetAttribute(&bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, gpu.device));
    CHECK(bytes >= 1 << 20);
}

static void fence_covers_destroyed_streams(void)
{
    CUstream stream = NULL;
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    spin(stream, 50);
    SUCCEEDS(cuStreamDestroy_v2(stream));
    TOOK(fence_ms(), 50, true);
}

/* Work on the other stream, submitted after the fence, does not wait for the work before it. */
static void fence_between(CUstream busy, CUstream other)
{
    CUevent event = new_event();
    CUdeviceptr block = 0;
    SUCCEEDS(cuMemAllocAsync(&block, MIB, busy));
    spin(busy, 60);
    SUCCEEDS(cuMemFreeAsync(block, busy));
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    double start = now_ms();
    spin(other, 0);
    SUCCEEDS(cuStreamSynchronize(other));
    TOOK(now_ms() - start, 60, false);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void fence_orders_no_streams(void)
{
    CUstream blocking[2];
    for (int i = 0; i < 2; i++)
        SUCCEEDS(cuStreamCreate(&blocking[i], CU_STREAM_DEFAULT));
    fence_between(blocking[0], blocking[1]);
    fence_between(blocking[0], CU_STREAM_PER_THREAD);
    fence_between(CU_STREAM_PER_THREAD, blocking[0]);
    fence_between(blocking[0], gpu.a);
    fence_between(gpu.a, blocking[0]);
    fence_between(gpu.a, CU_STREAM_LEGACY);
    fence_between(CU_STREAM_LEGACY, gpu.a);
    for (int i = 0; i < 2; i++)
        SUCCEEDS(cuStreamDestroy_v2(blocking[i]));
}

static void fence_does_not_cover_later_work(void)
{
    CUevent event = new_event();
    double start;
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    spin(gpu.a, 60);
    start = now_ms();
    SUCCEEDS(cuEventSynchronize(event));
    TOOK(now_ms() - start, 60, false);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void fence_does_not_cover_other_contexts(void)
{
    struct neighbour other = open_neighbour();
    spin_in(&other, 60);
    TOOK(fence_ms(), 60, false);
    close_neighbour(&other);
}

static void fence_wants_an_event_of_its_context(void)
{
    struct neighbour other = open_neighbour();
    CUevent event = new_event();
    EXPECT(cuCtxRecordEvent(other.context, event), CUDA_ERROR_INVALID_HANDLE);
    SUCCEEDS(cuEventDestroy_v2(event));
    close_neighbour(&other);
}

static void unrecorded_events_are_complete(void)
{
    CUevent event = new_event();
    SUCCEEDS(cuEventQuery(event));
    SUCCEEDS(cuEventSynchronize(event));
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void running_events_are_not_ready(void)
{
    CUevent event = new_event();
    spin(gpu.a, 30);
    SUCCEEDS(cuEventRecord(event, gpu.a));
    CHECK_TIME(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK_TIME(cuStreamQuery(gpu.a) == CUDA_ERROR_NOT_READY);
    SUCCEEDS(cuEventSynchronize(event));
    SUCCEEDS(cuEventQuery(event));
    SUCCEEDS(cuEventDestroy_v2(event));
}

/* --- context barriers: checked on the data -----------------------------------------------------*/

/* The ways to write a block; each makes its first words something other than 1. */
enum { BLOCK_BYTES = 1 << 20, BLOCK_WORDS = BLOCK_BYTES / 4 };

static struct {
    CUdeviceptr block, other_block;
    void *pageable, *pinned;
    CUstream blocking;
} target;

static void write_by_kernel_elsewhere(void)
{
    fill(gpu.b, target.block, BLOCK_WORDS, 2);
}

static void write_by_kernel_in_blocking_stream(void)
{
    fill(target.blocking, target.block, BLOCK_WORDS, 2);
}

static void write_by_kernel_in_legacy_stream(void)
{
    fill(CU_STREAM_LEGACY, target.block, BLOCK_WORDS, 2);
}

static void write_by_kernel_in_threads_stream(void)
{
    fill(CU_STREAM_PER_THREAD, target.block, BLOCK_WORDS, 2);
}

static void write_by_kernel_in_new_stream(void)
{
    CUstream stream = NULL;
    SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill(stream, target.block, BLOCK_WORDS, 2);
    SUCCEEDS(cuStreamDestroy_v2(stream));
}

static void write_by_memset(void)
{
    SUCCEEDS(cuMemsetD8_v2(target.block, 2, BLOCK_BYTES));
}

static void write_by_memset_elsewhere(void)
{
    SUCCEEDS(cuMemsetD32Async(target.block, 2, BLOCK_WORDS, gpu.b));
}

static void write_by_device_copy(void)
{
    SUCCEEDS(cuMemcpyDtoD_v2(target.block, target.other_block, BLOCK_BYTES));
}

static void write_from_pageable_64(void)
{
    SUCCEEDS(cuMemcpyHtoD_v2(target.block, target.pageable, 64));
}

static void write_from_pageable(void)
{
    SUCCEEDS(cuMemcpyHtoD_v2(target.block, target.pageable, BLOCK_BYTES));
}

static void write_from_pinned(void)
{
    SUCCEEDS(cuMemcpyHtoD_v2(target.block, target.pinned, BLOCK_BYTES));
}

static void write_from_pinned_elsewhere(void)
{
    SUCCEEDS(cuMemcpyHtoDAsync_v2(target.block, target.pinned, BLOCK_BYTES, gpu.b));
}

static void write_from_pageable_elsewhere(void)
{
    SUCCEEDS(cuMemcpyHtoDAsync_v2(target.block, target.pageable, BLOCK_BYTES, gpu.b));
}

static void write_by_unified_copy(void)
{
    SUCCEEDS(cuMemcpy(target.block, (CUdeviceptr)(uintptr_t)target.pageable, BLOCK_BYTES));
}

static CUgraphExec writing_graph(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    SUCCEEDS(cuStreamBeginCapture_v2(gpu.b, CU_STREAM_CAPTURE_MODE_RELAXED));
    fill(gpu.b, target.block, BLOCK_WORDS, 2);
    SUCCEEDS(cuStreamEndCapture(gpu.b, &graph));
    SUCCEEDS(cuGraphInstantiateWithFlags(&exec, graph, 0));
    SUCCEEDS(cuGraphDestroy(graph));
    return exec;
}

static CUgraphExec graph_to_launch;

static void write_by_graph(void)
{
    SUCCEEDS(cuGraphLaunch(graph_to_launch, gpu.b));
}

static void open_target(void)
{
    target.block = allocate(BLOCK_BYTES);
    target.other_block = allocate(BLOCK_BYTES);
    target.pageable = malloc(BLOCK_BYTES);
    SUCCEEDS(cuMemHostAlloc(&target.pinned, BLOCK_BYTES, 0));
    memset(target.pageable, 2, BLOCK_BYTES);
    memset(target.pinned, 2, BLOCK_BYTES);
    SUCCEEDS(cuMemsetD8_v2(target.other_block, 2, BLOCK_BYTES));
    SUCCEEDS(cuStreamCreate(&target.blocking, CU_STREAM_DEFAULT));
    graph_to_launch = writing_graph();
}

static void close_target(void)
{
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuGraphExecDestroy(graph_to_launch));
    SUCCEEDS(cuStreamDestroy_v2(target.blocking));
    SUCCEEDS(cuMemFreeHost(target.pinned));
    free(target.pageable);
    SUCCEEDS(cuMemFree_v2(target.block));
    SUCCEEDS(cuMemFree_v2(target.other_block));
}

/* Writes the block while a kernel that will read it runs for some time; the words that the kernel
 * finds wrong. */
static unsigned long long race(void (*write)(void), double ms, bool with_barrier)
{
    CUevent event = new_event();
    unsigned long long wrong;
    SUCCEEDS(cuMemsetD32_v2(target.block, 1, BLOCK_WORDS));
    SUCCEEDS(cuCtxSynchronize());
    spin_then_verify(gpu.a, ms, target.block, BLOCK_WORDS, 1);
    if (with_barrier) {
        SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
        SUCCEEDS(cuCtxWaitEvent(gpu.context, event));
    }
    write();
    wrong = wrong_words();
    SUCCEEDS(cuEventDestroy_v2(event));
    return wrong;
}

static void (*const writes[])(void) = {
    write_by_kernel_elsewhere,
    write_by_kernel_in_blocking_stream,
    write_by_kernel_in_legacy_stream,
    write_by_kernel_in_threads_stream,
    write_by_kernel_in_new_stream,
    write_by_memset,
    write_by_memset_elsewhere,
    write_by_device_copy,
    write_from_pageable_64,
    write_from_pageable,
    write_from_pinned,
    write_from_pinned_elsewhere,
    write_from_pageable_elsewhere,
    write_by_unified_copy,
    write_by_graph,
};

/* A busy machine may bring a write late. */
static bool overtakes(void (*write)(void))
{
    bool overtook = false;
    for (double ms = 15; !overtook && ms < 500; ms *= 2)
        overtook = race(write, ms, false) != 0;
    return overtook;
}

static void without_a_barrier_writes_race(void)
{
    open_target();
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++)
        if (!overtakes(writes[i]))
            fail("write %zu: expected it to overtake the kernel, got no wrong word", i);
    close_target();
}

static void barrier_orders_every_write(void)
{
    open_target();
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++) {
        unsigned long long wrong = race(writes[i], 15, true);
        if (wrong != 0)
            fail("write %zu: expected it after the kernel, got %llu wrong words", i, wrong);
    }
    close_target();
}

static void barrier_does_not_block_the_host(void)
{
    CUevent event = new_event();
    double start;
    spin(gpu.a, 300);
    start = now_ms();
    for (int i = 0; i < 2000; i++) {
        SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
        SUCCEEDS(cuCtxWaitEvent(gpu.context, event));
    }
    TOOK(now_ms() - start, 300, false);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void barrier_on_an_old_fence_waits_for_old_work_only(void)
{
    CUevent event = new_event();
    double start;
    spin(gpu.a, 20);
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    spin(gpu.a, 100);
    start = now_ms();
    SUCCEEDS(cuCtxWaitEvent(gpu.context, event));
    spin(gpu.b, 0);
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    start = now_ms() - start;
    CHECK_TIME(start > 12);
    CHECK_TIME(start < 70);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void idle_stream_behind_a_barrier_is_idle(void)
{
    CUevent event = new_event();
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    spin(gpu.a, 40);
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    SUCCEEDS(cuCtxWaitEvent(gpu.context, event));
    SUCCEEDS(cuStreamQuery(gpu.b));
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void barrier_works_across_contexts(void)
{
    struct neighbour other = open_neighbour();
    CUevent event = new_event();
    double start;
    spin(gpu.a, 50);
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    SUCCEEDS(cuCtxWaitEvent(other.context, event));
    start = now_ms();
    spin_in(&other, 0);
    SUCCEEDS(cuStreamSynchronize(other.stream));
    TOOK(now_ms() - start, 50, true);
    SUCCEEDS(cuEventDestroy_v2(event));
    close_neighbour(&other);
}

static void kernels_after_a_barrier_run_beside_each_other(void)
{
    CUevent event = new_event();
    double start = now_ms();
    spin(gpu.a, 10);
    SUCCEEDS(cuCtxRecordEvent(gpu.context, event));
    SUCCEEDS(cuCtxWaitEvent(gpu.context, event));
    spin(gpu.a, 50);
    spin(gpu.b, 50);
    SUCCEEDS(cuCtxSynchronize());
    CHECK_TIME(now_ms() - start < 95);
    SUCCEEDS(cuEventDestroy_v2(event));
}

/* --- streams -----------------------------------------------------------------------------------*/

static void legacy_stream_orders_blocking_streams(void)
{
    CUstream blocking = NULL;
    double start;
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    spin(blocking, 30);
    spin(NULL, 0);
    start = now_ms();
    SUCCEEDS(cuStreamSynchronize(NULL));
    TOOK(now_ms() - start, 30, true);
    spin(NULL, 30);
    spin(blocking, 0);
    start = now_ms();
    SUCCEEDS(cuStreamSynchronize(blocking));
    TOOK(now_ms() - start, 30, true);
    spin(gpu.a, 50);
    spin(NULL, 0);
    start = now_ms();
    SUCCEEDS(cuStreamSynchronize(NULL));
    TOOK(now_ms() - start, 50, false);
    SUCCEEDS(cuStreamDestroy_v2(blocking));
    SUCCEEDS(cuCtxSynchronize());
}

static void idle_stream_behind_a_wait_is_not_idle(void)
{
    CUevent event = new_event();
    double start;
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    spin(gpu.a, 50);
    SUCCEEDS(cuEventRecord(event, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(gpu.b, event, 0));
    EXPECT(cuStreamQuery(gpu.b), CUDA_ERROR_NOT_READY);
    start = now_ms();
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    TOOK(now_ms() - start, 50, true);
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void legacy_queries_cover_blocking_streams(void)
{
    CUstream blocking = NULL;
    double start;
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    SUCCEEDS(cuCtxSynchronize());
    spin(blocking, 50);
    EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    start = now_ms();
    SUCCEEDS(cuStreamSynchronize(NULL));
    TOOK(now_ms() - start, 50, true);
    SUCCEEDS(cuStreamDestroy_v2(blocking));
}

/* What a query of an idle blocking stream behind a kernel of the legacy one says after the call,
 * and whether a wait for that stream waits. */
static void told_behind_legacy(void (*call)(CUstream, CUevent), CUresult expected)
{
    CUstream blocking = NULL;
    CUevent event = NULL;
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    SUCCEEDS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    call(blocking, event);
    SUCCEEDS(cuCtxSynchronize());
    spin(NULL, 50);
    call(blocking, event);
    EXPECT(cuStreamQuery(blocking), expected);
    double start = now_ms();
    SUCCEEDS(cuStreamSynchronize(blocking));
    TOOK(now_ms() - start, 50, expected == CUDA_ERROR_NOT_READY);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventDestroy_v2(event));
    SUCCEEDS(cuStreamDestroy_v2(blocking));
}

static void record_only(CUstream stream, CUevent event)
{
    SUCCEEDS(cuEventRecord(event, stream));
}

static void record_and_wait(CUstream stream, CUevent event)
{
    SUCCEEDS(cuEventRecord(event, stream));
    SUCCEEDS(cuStreamWaitEvent(stream, event, 0));
}

static void allocate_and_free(CUstream stream, CUevent event)
{
    CUdeviceptr block = 0;
    (void)event;
    SUCCEEDS(cuMemAllocAsync(&block, MIB, stream));
    SUCCEEDS(cuMemFreeAsync(block, stream));
}

static void queries_do_not_see_records_of_events(void)
{
    told_behind_legacy(record_only, CUDA_SUCCESS);
}

static void queries_see_waits_for_events(void)
{
    told_behind_legacy(record_and_wait, CUDA_ERROR_NOT_READY);
}

static void queries_see_stream_ordered_frees(void)
{
    told_behind_legacy(allocate_and_free, CUDA_ERROR_NOT_READY);
}

/* How long a kernel on a blocking stream waits for one of 50 ms on another, between which the
 * legacy stream was given that call. */
static double wait_across(void (*call)(CUdeviceptr *), CUdeviceptr *block)
{
    CUstream first = NULL, second = NULL;
    SUCCEEDS(cuStreamCreate(&first, CU_STREAM_DEFAULT));
    SUCCEEDS(cuStreamCreate(&second, CU_STREAM_DEFAULT));
    SUCCEEDS(cuCtxSynchronize());
    spin(first, 50);
    call(block);
    spin(second, 0);
    double start = now_ms();
    SUCCEEDS(cuStreamSynchronize(second));
    double taken = now_ms() - start;
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuStreamDestroy_v2(first));
    SUCCEEDS(cuStreamDestroy_v2(second));
    return taken;
}

static void allocate_on_legacy_stream(CUdeviceptr *block)
{
    SUCCEEDS(cuMemAllocAsync(block, MIB, NULL));
}

static void free_on_legacy_stream(CUdeviceptr *block)
{
    SUCCEEDS(cuMemFreeAsync(*block, NULL));
}

/* Twice: with the pool in front the second allocation hits. */
static void legacy_frees_order_blocking_streams_and_allocations_do_not(void)
{
    CUdeviceptr block = 0;
    for (int i = 0; i < 2; i++) {
        TOOK(wait_across(allocate_on_legacy_stream, &block), 50, false);
        TOOK(wait_across(free_on_legacy_stream, &block), 50, true);
    }
}

static void created_streams_need_no_context(void)
{
    CUdeviceptr block = 0, again = 0;
    unsigned long long id = 0;
    SUCCEEDS(cuMemAllocAsync(&block, MIB, gpu.a));
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuCtxSetCurrent(NULL));
    SUCCEEDS(cuStreamGetId(gpu.a, &id));
    SUCCEEDS(cuMemAllocAsync(&again, MIB, gpu.a));
    SUCCEEDS(cuMemFreeAsync(again, gpu.a));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    CHECK(id != 0);
}

static void thresholds_read_back_as_they_were_set(void)
{
    CUmemoryPool memory_pool = NULL;
    cuuint64_t before = 1, mine = 12345678, found = 0;
    CUdeviceptr block = 0;
    SUCCEEDS(cuDeviceGetDefaultMemPool(&memory_pool, gpu.device));
    SUCCEEDS(cuMemAllocAsync(&block, MIB, gpu.a));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before));
    CHECK(before == 0);
    SUCCEEDS(cuMemPoolSetAttribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &mine));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &found));
    CHECK(found == mine);
    SUCCEEDS(cuMemPoolSetAttribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before));
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

static void freed_blocks_are_not_used_bytes(void)
{
    CUmemoryPool memory_pool = NULL;
    cuuint64_t before = 0, with = 0, after = 0;
    CUdeviceptr block = 0;
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuDeviceGetDefaultMemPool(&memory_pool, gpu.device));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &before));
    SUCCEEDS(cuMemAllocAsync(&block, 4 * MIB, gpu.a));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &with));
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &after));
    CHECK(with == before + 4 * MIB);
    CHECK(after == before);
}

static void most_used_bytes_start_again(void)
{
    CUmemoryPool memory_pool = NULL;
    cuuint64_t zero = 0, with = 0, most = 0;
    CUdeviceptr block = 0;
    SUCCEEDS(cuDeviceGetDefaultMemPool(&memory_pool, gpu.device));
    SUCCEEDS(cuMemAllocAsync(&block, 16 * MIB, gpu.a));
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuMemPoolSetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    SUCCEEDS(cuMemAllocAsync(&block, 4 * MIB, gpu.a));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &with));
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &most));
    if (most != with)
        fail("the most used bytes: expected %llu, got %llu", (unsigned long long)with,
             (unsigned long long)most);
}

/* And the default one is current again. */
static void destroyed_pools_live_as_long_as_their_memory(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device}};
    CUmemoryPool own = NULL, standard = NULL, current = NULL;
    CUdeviceptr block = 0, next = 0;
    unsigned int word = 0;
    SUCCEEDS(cuMemPoolCreate(&own, &properties));
    SUCCEEDS(cuDeviceSetMemPool(gpu.device, own));
    SUCCEEDS(cuMemAllocAsync(&block, MIB, gpu.a));
    SUCCEEDS(cuMemPoolDestroy(own));
    SUCCEEDS(cuDeviceGetDefaultMemPool(&standard, gpu.device));
    SUCCEEDS(cuDeviceGetMemPool(&current, gpu.device));
    CHECK(current == standard);
    SUCCEEDS(cuMemAllocAsync(&next, MIB, gpu.a));
    CHECK(next != block);
    SUCCEEDS(cuMemsetD32Async(block, 7, MIB / 4, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemcpyDtoH_v2(&word, block, sizeof word));
    CHECK(word == 7);
    SUCCEEDS(cuMemFreeAsync(block, gpu.a));
    SUCCEEDS(cuMemFreeAsync(next, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

static void *thread_stream_id(void *id)
{
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuStreamGetId(CU_STREAM_PER_THREAD, id));
    return NULL;
}

static void each_thread_has_its_own_stream(void)
{
    unsigned long long mine = 0, again = 0, other = 0, legacy = 0;
    pthread_t thread;
    thread_stream_id(&mine);
    thread_stream_id(&again);
    pthread_create(&thread, NULL, thread_stream_id, &other);
    pthread_join(thread, NULL);
    SUCCEEDS(cuStreamGetId(CU_STREAM_LEGACY, &legacy));
    CHECK(mine == again);
    CHECK(mine != other && mine != legacy);
}

static void stream_ids_are_never_used_again(void)
{
    unsigned long long ids[4] = {0};
    for (int i = 0; i < 4; i++) {
        CUstream stream = NULL;
        SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        SUCCEEDS(cuStreamGetId(stream, &ids[i]));
        SUCCEEDS(cuStreamDestroy_v2(stream));
        for (int k = 0; k < i; k++)
            CHECK(ids[k] != ids[i]);
    }
}

static void context_ids_are_never_used_again(void)
{
    unsigned long long ids[3] = {0};
    for (int i = 0; i < 3; i++) {
        CUcontext context = NULL;
        SUCCEEDS(cuCtxCreate_v2(&context, 0, gpu.device));
        SUCCEEDS(cuCtxGetId(context, &ids[i]));
        SUCCEEDS(cuCtxDestroy_v2(context));
        for (int k = 0; k < i; k++)
            CHECK(ids[k] != ids[i]);
    }
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
}

static int host_calls;

static void count_host_call(void *unused)
{
    (void)unused;
    __atomic_add_fetch(&host_calls, 1, __ATOMIC_SEQ_CST);
}

static void host_functions_run_in_order(void)
{
    host_calls = 0;
    spin(gpu.a, 30);
    SUCCEEDS(cuLaunchHostFunc(gpu.a, count_host_call, NULL));
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 0);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 1);
}

static void flags_let_kernels_go_on(void)
{
    unsigned int *flag = NULL;
    CUdeviceptr device = 0;
    SUCCEEDS(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    if (flag == NULL)
        return;
    SUCCEEDS(cuMemHostGetDevicePointer_v2(&device, flag, 0));
    __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
    launch(gpu.wait_flag, gpu.a, (void *[]){&device});
    sleep_ms(5);
    EXPECT(cuStreamQuery(gpu.a), CUDA_ERROR_NOT_READY);
    launch(gpu.set_flag, gpu.b, (void *[]){&device});
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
    launch(gpu.wait_flag, gpu.a, (void *[]){&device});
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemFreeHost(flag));
}

/* --- captures ----------------------------------------------------------------------------------*/

void begin(unsigned int mode)
{
    SUCCEEDS(cuStreamBeginCapture_v2(gpu.a, mode));
}

/* Ends the capture; it must have been as expected. */
void end_at(int line, bool valid, const char *what, unsigned int mode)
{
    CUgraph graph = NULL;
    CUresult result = cuStreamEndCapture(gpu.a, &graph);
    CUresult expected = valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (result != expected || (graph != NULL) != valid)
        fail("line %d: ending the capture after %s in mode %u: expected %s, got %s", line, what,
             mode, name_of(expected), name_of(result));
    if (graph != NULL)
        SUCCEEDS(cuGraphDestroy(graph));
}

static void context_calls_spoil_captures(void)
{
    CUevent event = new_event();
    SUCCEEDS(cuEventRecord(event, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    for (unsigned int mode = 0; mode < MODES; mode++) {
        begin(mode);
        EXPECT(cuCtxRecordEvent(gpu.context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        END(false, "cuCtxRecordEvent", mode);
        begin(mode);
        EXPECT(cuCtxWaitEvent(gpu.context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        END(false, "cuCtxWaitEvent", mode);
        begin(mode);
        EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        END(false, "cuCtxSynchronize", mode);
    }
    SUCCEEDS(cuEventDestroy_v2(event));
}

static void events_on_other_streams_spare_captures(void)
{
    CUevent event = new_event();
    for (unsigned int mode = 0; mode < MODES; mode++) {
        begin(mode);
        SUCCEEDS(cuEventRecord(event, gpu.b));
        SUCCEEDS(cuStreamWaitEvent(gpu.b, event, 0));
        END(true, "events on another stream", mode);
    }
    SUCCEEDS(cuEventDestroy_v2(event));
}

/* The potentially unsafe calls; each undoes what it did if it succeeded. */
static CUresult unsafe_alloc(void)
{
    CUdeviceptr address;
    CUresult result = cuMemAlloc_v2(&address, 4096);
    if (result == CUDA_SUCCESS)
        cuMemFree_v2(address);
    return result;
}

static CUdeviceptr to_free;

static CUresult unsafe_free(void)
{
    CUresult result = cuMemFree_v2(to_free);
    if (result == CUDA_SUCCESS)
        to_free = 0;
    return result;
}

static CUevent to_query;

static CUresult unsafe_query(void)
{
    return cuEventQuery(to_query);
}

static CUresult unsafe_host_alloc(void)
{
    void *memory;
    CUresult result = cuMemHostAlloc(&memory, 4096, 0);
    if (result == CUDA_SUCCESS)
        cuMemFreeHost(memory);
    return result;
}

static CUresult unsafe_trim(void)
{
    CUmemoryPool pool;
    CUresult result = cuDeviceGetDefaultMemPool(&pool, gpu.device);
    return result == CUDA_SUCCESS ? cuMemPoolTrimTo(pool, 0) : result;
}

static CUresult unsafe_async_alloc(void)
{
    CUdeviceptr address;
    CUresult result = cuMemAllocAsync(&address, 4096, gpu.b);
    if (result == CUDA_SUCCESS)
        cuMemFreeAsync(address, gpu.b);
    return result;
}

static const struct {
    const char *name;
    CUresult (*call)(void);
} unsafe_calls[] = {
    {"cuMemAlloc", unsafe_alloc},     {"cuMemFree", unsafe_free},
    {"cuEventQuery", unsafe_query},   {"cuMemHostAlloc", unsafe_host_alloc},
    {"cuMemPoolTrimTo", unsafe_trim}, {"cuMemAllocAsync on another stream", unsafe_async_alloc},
};

static void prepare_unsafe_call(void)
{
    if (to_free == 0)
        to_free = allocate(4096);
    if (to_query == NULL)
        to_query = new_event();
}

static void tidy_after_unsafe_calls(void)
{
    SUCCEEDS(cuMemFree_v2(to_free));
    SUCCEEDS(cuEventDestroy_v2(to_query));
    to_free = 0;
    to_query = NULL;
}

static void try_unsafe_call(size_t i, unsigned int mode)
{
    bool allowed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;
    prepare_unsafe_call();
    begin(mode);
    result = unsafe_calls[i].call();
    if ((result == CUDA_SUCCESS) != allowed)
        fail("%s in mode %u: expected %s, got %s", unsafe_calls[i].name, mode,
             allowed ? "CUDA_SUCCESS" : "an error", name_of(result));
    END(allowed, unsafe_calls[i].name, mode);
}

static void unsafe_calls_spoil_strict_captures(void)
{
    for (size_t i = 0; i < sizeof unsafe_calls / sizeof *unsafe_calls; i++)
        for (unsigned int mode = 0; mode < MODES; mode++)
            try_unsafe_call(i, mode);
    tidy_after_unsafe_calls();
}

static void relaxed_threads_may_call_anything(void)
{
    prepare_unsafe_call();
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstreamCaptureMode exchanged = CU_STREAM_CAPTURE_MODE_RELAXED;
        begin(mode);
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        SUCCEEDS(unsafe_alloc());
        SUCCEEDS(unsafe_query());
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        CHECK(exchanged == CU_STREAM_CAPTURE_MODE_RELAXED);
        END(true, "calls in a relaxed thread", mode);
    }
    tidy_after_unsafe_calls();
}

static void harmless_calls_spare_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstream stream = NULL;
        begin(mode);
        free_memory();
        SUCCEEDS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        END(true, "cuMemGetInfo and cuStreamCreate", mode);
        SUCCEEDS(cuStreamDestroy_v2(stream));
    }
}

static void *alloc_in_other_thread(void *argument)
{
    CUresult *result = argument;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    *result = unsafe_alloc();
    return NULL;
}

static void only_global_captures_bind_other_threads(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool allowed = mode != CU_STREAM_CAPTURE_MODE_GLOBAL;
        CUresult result = CUDA_SUCCESS;
        pthread_t thread;
        begin(mode);
        pthread_create(&thread, NULL, alloc_in_other_thread, &result);
        pthread_join(thread, NULL);
        if ((result == CUDA_SUCCESS) != allowed)
            fail("cuMemAlloc in another thread in mode %u: expected %s, got %s", mode,
                 allowed ? "CUDA_SUCCESS" : "an error", name_of(result));
        END(allowed, "cuMemAlloc in another thread", mode);
    }
}

static CUgraphNodeType first_node_type(CUgraph graph)
{
    CUgraphNode nodes[8] = {NULL};
    CUgraphNodeType type = 99;
    size_t count = 8;
    SUCCEEDS(cuGraphGetNodes(graph, nodes, &count));
    CHECK(count >= 1);
    if (count >= 1)
        SUCCEEDS(cuGraphNodeGetType(nodes[0], &type));
    return type;
}

static void captured_async_alloc_is_a_node(void)
{
    CUgraph graph = NULL;
    CUdeviceptr address = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemAllocAsync(&address, 4096, gpu.a));
    CHECK(address != 0);
    SUCCEEDS(cuMemFreeAsync(address, gpu.a));
    SUCCEEDS(cuStreamEndCapture(gpu.a, &graph));
    CHECK(first_node_type(graph) == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    SUCCEEDS(cuGraphDestroy(graph));
}

static void captured_free_of_older_memory(void)
{
    CUdeviceptr async = 0, plain = allocate(4096);
    SUCCEEDS(cuMemAllocAsync(&async, 4096, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(cuMemFreeAsync(async, gpu.a), CUDA_ERROR_INVALID_VALUE);
    END(true, "a refused cuMemFreeAsync", CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    /* Drivers differ; where it is refused, the memory stays. */
    CUresult freed = cuMemFreeAsync(plain, gpu.a);
    CHECK(freed == CUDA_SUCCESS || freed == CUDA_ERROR_INVALID_VALUE);
    END(true, "cuMemFreeAsync of plain memory", CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemFreeAsync(async, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    cuMemFree_v2(plain);
}

static int destroyed;

static void count_destroyed(void *unused)
{
    (void)unused;
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST);
}

static bool destroyed_soon(int count)
{
    for (int i = 0; i < 200; i++) {
        if (__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST) == count)
            return true;
        sleep_ms(5);
    }
    return false;
}

/* Gives the graph of the running capture an object; it keeps the only reference. */
static void retain_object_in_capture(void)
{
    CUstreamCaptureStatus status = 0;
    CUuserObject object = NULL;
    CUgraph graph = NULL;
    SUCCEEDS(cuStreamGetCaptureInfo_v2(gpu.a, &status, NULL, &graph, NULL, NULL));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph != NULL);
    SUCCEEDS(
        cuUserObjectCreate(&object, NULL, count_destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    SUCCEEDS(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
}

static void graphs_keep_user_objects(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    destroyed = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    retain_object_in_capture();
    spin(gpu.a, 1);
    SUCCEEDS(cuStreamEndCapture(gpu.a, &graph));
    SUCCEEDS(cuGraphInstantiateWithFlags(&exec, graph, 0));
    SUCCEEDS(cuGraphDestroy(graph));
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    sleep_ms(20);
    CHECK(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST) == 0);
    SUCCEEDS(cuGraphExecDestroy(exec));
    CHECK(destroyed_soon(1));
}

static void spoiled_captures_drop_user_objects(void)
{
    destroyed = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    retain_object_in_capture();
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    END(false, "cuCtxSynchronize", CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(destroyed_soon(1));
}

CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status = 99;
    SUCCEEDS(cuStreamIsCapturing(stream, &status));
    return status;
}

static void captures_spread_through_events(void)
{
    CUevent fork = new_event(), join = new_event();
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_NONE);
    SUCCEEDS(cuEventRecord(fork, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(gpu.b, fork, 0));
    CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    spin(gpu.b, 1);
    SUCCEEDS(cuEventRecord(join, gpu.b));
    SUCCEEDS(cuStreamWaitEvent(gpu.a, join, 0));
    END(true, "a fork and a join", CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_NONE);
    SUCCEEDS(cuEventDestroy_v2(fork));
    SUCCEEDS(cuEventDestroy_v2(join));
}

static void captures_spread_to_other_contexts(void)
{
    struct neighbour other = open_neighbour();
    CUevent fork = new_event(), fence = NULL;
    SUCCEEDS(cuCtxSetCurrent(other.context));
    fence = new_event();
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    SUCCEEDS(cuEventRecord(fork, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(other.stream, fork, 0));
    EXPECT(cuCtxRecordEvent(other.context, fence), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    END(false, "cuCtxRecordEvent on the other context", CU_STREAM_CAPTURE_MODE_RELAXED);
    SUCCEEDS(cuEventDestroy_v2(fork));
    close_neighbour(&other);
}

static void fences_of_other_contexts_spare_captures(void)
{
    struct neighbour other = open_neighbour();
    CUevent fence = NULL;
    SUCCEEDS(cuCtxSetCurrent(other.context));
    fence = new_event();
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuCtxRecordEvent(other.context, fence));
    END(true, "cuCtxRecordEvent on another context", CU_STREAM_CAPTURE_MODE_GLOBAL);
    close_neighbour(&other);
}

/* A stream that had stream-ordered memory, some of it freed behind a kernel, is forked into the
 * capture, joined again, and destroyed. */
static void joined_streams_may_be_destroyed(void)
{
    CUevent fork = new_event(), join = new_event();
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstream forked = NULL;
        CUdeviceptr block = 0;
        SUCCEEDS(cuStreamCreate(&forked, CU_STREAM_NON_BLOCKING));
        SUCCEEDS(cuMemAllocAsync(&block, MIB, forked));
        spin(forked, 30);
        SUCCEEDS(cuMemFreeAsync(block, forked));
        begin(mode);
        SUCCEEDS(cuEventRecord(fork, gpu.a));
        SUCCEEDS(cuStreamWaitEvent(forked, fork, 0));
        spin(forked, 1);
        SUCCEEDS(cuEventRecord(join, forked));
        SUCCEEDS(cuStreamWaitEvent(gpu.a, join, 0));
        SUCCEEDS(cuStreamDestroy_v2(forked));
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        END(true, "cuStreamDestroy of a stream that has joined", mode);
        SUCCEEDS(cuCtxSynchronize());
    }
    SUCCEEDS(cuEventDestroy_v2(fork));
    SUCCEEDS(cuEventDestroy_v2(join));
}

/* Its number cannot be had in any mode, of the capture or of the thread, and asking spoils it. */
static void capturing_streams_have_no_number(void)
{
    unsigned long long id = 0;
    for (unsigned int mode = 0; mode < 2 * MODES; mode++) {
        CUstreamCaptureMode exchanged =
            mode < MODES ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED;
        begin(mode % MODES);
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        EXPECT(cuStreamGetId(gpu.a, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        fact(cuStreamGetId(gpu.a, &id), "cuStreamGetId again, of a spoilt capture");
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        END(false, "cuStreamGetId", mode % MODES);
    }
}

/* The pool asks such things beside captures. */
static void other_questions_spare_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUcontext context = NULL;
        unsigned long long id = 0;
        unsigned int flags = 0;
        begin(mode);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_NONE);
        SUCCEEDS(cuStreamGetCtx(gpu.a, &context));
        END(true, "questions for a capturing stream", mode);
        CUstreamCaptureMode exchanged = CU_STREAM_CAPTURE_MODE_RELAXED;
        begin(mode);
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        SUCCEEDS(cuStreamGetId(gpu.b, &id));
        SUCCEEDS(cuStreamGetFlags(gpu.b, &flags));
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        END(true, "another stream's number, asked in a relaxed thread", mode);
        begin(mode);
        SUCCEEDS(cuStreamGetId(gpu.b, &id));
        END(true, "another stream's number", mode);
    }
}

static void unjoined_captures_have_no_graph(void)
{
    CUevent fork = new_event();
    CUgraph graph = NULL;
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    SUCCEEDS(cuEventRecord(fork, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(gpu.b, fork, 0));
    spin(gpu.b, 1);
    EXPECT(cuStreamEndCapture(gpu.a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_NONE);
    SUCCEEDS(cuEventDestroy_v2(fork));
}

static void legacy_stream_cannot_capture(void)
{
    FAILS(cuStreamBeginCapture_v2(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static void legacy_stream_beside_a_blocking_capture(void)
{
    CUstreamCaptureStatus status;
    CUstream blocking = NULL;
    CUgraph graph = NULL;
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    SUCCEEDS(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT(cuStreamEndCapture(blocking, &graph), CUDA_SUCCESS);
    SUCCEEDS(cuGraphDestroy(graph));
    SUCCEEDS(cuStreamDestroy_v2(blocking));
}

/* --- work that ends only if somebody acts
 * -------------------------------------------------------*/

enum { HANGS_AFTER_MS = 10000 };

static bool is_set_within(const int *word, int ms)
{
    double end = now_ms() + ms;
    while (!__atomic_load_n(word, __ATOMIC_SEQ_CST) && now_ms() < end)
        sleep_ms(0.5);
    return __atomic_load_n(word, __ATOMIC_SEQ_CST) != 0;
}

static void set(int *word)
{
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

/* A host function that is told when to end. */
struct doorway {
    int entered, open, left;
};

static void pass_doorway(void *argument)
{
    struct doorway *doorway = argument;
    set(&doorway->entered);
    is_set_within(&doorway->open, HANGS_AFTER_MS);
    set(&doorway->left);
}

/* What is called inside a host function, in this order, and what it was answered. */
enum inside_call {
    ASKS_FOR_CONTEXT,
    ALLOCATES_AS_IT_IS,
    SETS_CONTEXT,
    QUERIES_ANOTHER_STREAM,
    QUERIES_ITS_OWN_STREAM,
    QUERIES_AN_EVENT,
    RECORDS_AN_EVENT,
    RECORDS_A_FENCE,
    RAISES_A_BARRIER,
    ALLOCATES_IN_IT,
    FREES_IN_A_STREAMS_ORDER,
    SYNCHRONIZES_ANOTHER_STREAM,
    FREES,
    INSIDE_CALLS
};

static const char *const inside_names[INSIDE_CALLS] = {
    "cuCtxGetCurrent",
    "cuMemAlloc before cuCtxSetCurrent",
    "cuCtxSetCurrent",
    "cuStreamQuery of another stream",
    "cuStreamQuery of its own stream",
    "cuEventQuery",
    "cuEventRecord on another stream",
    "cuCtxRecordEvent",
    "cuCtxWaitEvent",
    "cuMemAlloc",
    "cuMemFreeAsync on another stream",
    "cuStreamSynchronize of another stream",
    "cuMemFree",
};

static struct {
    enum inside_call first, last;
    enum inside_call now; /* whom a hang is to be blamed on */
    int done;
    CUresult answers[INSIDE_CALLS];
    CUcontext context; /* current in the host function at first */
    CUevent complete, recorded, fence;
    CUdeviceptr early, late, to_free;
} inside;

static CUresult call_inside(enum inside_call call)
{
    switch (call) {
    case ASKS_FOR_CONTEXT:
        return cuCtxGetCurrent(&inside.context);
    case ALLOCATES_AS_IT_IS:
        return cuMemAlloc_v2(&inside.early, 3 * MIB);
    case SETS_CONTEXT:
        return cuCtxSetCurrent(gpu.context);
    case QUERIES_ANOTHER_STREAM:
        return cuStreamQuery(gpu.b);
    case QUERIES_ITS_OWN_STREAM:
        return cuStreamQuery(gpu.a);
    case QUERIES_AN_EVENT:
        return cuEventQuery(inside.complete);
    case RECORDS_AN_EVENT:
        return cuEventRecord(inside.recorded, gpu.b);
    case RECORDS_A_FENCE:
        return cuCtxRecordEvent(gpu.context, inside.fence);
    case RAISES_A_BARRIER:
        return cuCtxWaitEvent(gpu.context, inside.complete);
    case ALLOCATES_IN_IT:
        return cuMemAlloc_v2(&inside.late, 3 * MIB);
    case FREES_IN_A_STREAMS_ORDER:
        return cuMemFreeAsync(inside.late, gpu.b);
    case SYNCHRONIZES_ANOTHER_STREAM:
        return cuStreamSynchronize(gpu.b);
    default:
        return cuMemFree_v2(inside.to_free);
    }
}

static void make_calls(void *unused)
{
    (void)unused;
    for (enum inside_call call = inside.first; call <= inside.last; call++) {
        __atomic_store_n(&inside.now, call, __ATOMIC_SEQ_CST);
        inside.answers[call] = call_inside(call);
    }
    set(&inside.done);
}

static void make_calls_in_callback(CUstream stream, CUresult status, void *argument)
{
    (void)stream;
    (void)status;
    make_calls(argument);
}

/* Neither a hang nor an error that sticks: the context must work as before. */
static void host_function_may_have_called(const char *where)
{
    CUdeviceptr address = 0;
    if (!is_set_within(&inside.done, HANGS_AFTER_MS)) {
        printf("FAIL %s: %s hangs inside %s\n", row_name, inside_names[inside.now], where);
        fflush(stdout);
        _exit(1);
    }
    for (enum inside_call call = inside.first; call <= inside.last; call++) {
        CUresult answer = inside.answers[call];
        note("%s inside %s: %s", inside_names[call], where, name_of(answer));
        if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_NOT_READY &&
            answer != CUDA_ERROR_NOT_PERMITTED && call != ALLOCATES_AS_IT_IS)
            fail("%s inside %s: %s", inside_names[call], where, name_of(answer));
    }
    SUCCEEDS(cuCtxSynchronize());
    address = allocate(MIB);
    fill(gpu.a, address, 256, 7);
    spin_then_verify(gpu.a, 0, address, 256, 7);
    CHECK(wrong_words() == 0);
    SUCCEEDS(cuMemFree_v2(address));
}

/* Calls them inside a host function, or a callback of cuStreamAddCallback. */
static void call_in_host_function(enum inside_call first, enum inside_call last, bool callback)
{
    memset(&inside, 0, sizeof inside);
    inside.first = first;
    inside.last = last;
    inside.complete = new_event();
    inside.recorded = new_event();
    inside.fence = new_event();
    inside.to_free = allocate(3 * MIB);
    SUCCEEDS(cuEventRecord(inside.complete, gpu.b));
    SUCCEEDS(cuCtxSynchronize());
    if (callback)
        SUCCEEDS(cuStreamAddCallback(gpu.a, make_calls_in_callback, NULL, 0));
    else
        SUCCEEDS(cuLaunchHostFunc(gpu.a, make_calls, NULL));
    host_function_may_have_called(callback ? "cuStreamAddCallback" : "cuLaunchHostFunc");
    if (first == ASKS_FOR_CONTEXT)
        note("the context current in it is %s", inside.context == NULL          ? "none"
                                                : inside.context == gpu.context ? "the stream's"
                                                                                : "another");
    if (inside.early != 0 && inside.answers[ALLOCATES_AS_IT_IS] == CUDA_SUCCESS)
        SUCCEEDS(cuMemFree_v2(inside.early));
    if (inside.late != 0 && (last < FREES_IN_A_STREAMS_ORDER ||
                             inside.answers[FREES_IN_A_STREAMS_ORDER] != CUDA_SUCCESS))
        SUCCEEDS(cuMemFree_v2(inside.late));
    if (last < FREES || inside.answers[FREES] != CUDA_SUCCESS)
        SUCCEEDS(cuMemFree_v2(inside.to_free));
    SUCCEEDS(cuEventDestroy_v2(inside.complete));
    SUCCEEDS(cuEventDestroy_v2(inside.recorded));
    SUCCEEDS(cuEventDestroy_v2(inside.fence));
}

static void calls_inside_host_functions(void)
{
    call_in_host_function(ASKS_FOR_CONTEXT, FREES_IN_A_STREAMS_ORDER, false);
    call_in_host_function(ASKS_FOR_CONTEXT, FREES_IN_A_STREAMS_ORDER, true);
}

static void waits_inside_host_functions(void)
{
    call_in_host_function(SYNCHRONIZES_ANOTHER_STREAM, SYNCHRONIZES_ANOTHER_STREAM, false);
    call_in_host_function(SYNCHRONIZES_ANOTHER_STREAM, SYNCHRONIZES_ANOTHER_STREAM, true);
}

static void frees_inside_host_functions(void)
{
    call_in_host_function(FREES, FREES, false);
}

static void frees_inside_callbacks(void)
{
    call_in_host_function(FREES, FREES, true);
}

/* A free in another thread, which may wait long. */
struct other_free {
    pthread_t thread;
    CUdeviceptr address;
    double ms;
    int begun, ended;
};

static void *free_elsewhere(void *argument)
{
    struct other_free *other = argument;
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    set(&other->begun);
    other->ms = timed_free(other->address);
    set(&other->ended);
    return NULL;
}

static void begin_free(struct other_free *other)
{
    other->begun = other->ended = 0;
    pthread_create(&other->thread, NULL, free_elsewhere, other);
    CHECK(is_set_within(&other->begun, HANGS_AFTER_MS));
    sleep_ms(30);
}

/* It waited for what has only now come to its end. */
static void expect_free_waited(struct other_free *other, bool waited)
{
    if (!gpu.pool)
        CHECK(waited);
    CHECK(is_set_within(&other->ended, HANGS_AFTER_MS));
    pthread_join(other->thread, NULL);
}

static void free_waits_for_host_functions(void)
{
    struct doorway doorway = {0, 0, 0};
    struct other_free other = {.address = allocate(MIB)};
    bool waited;
    SUCCEEDS(cuLaunchHostFunc(gpu.a, pass_doorway, &doorway));
    CHECK(is_set_within(&doorway.entered, HANGS_AFTER_MS));
    begin_free(&other);
    waited = !__atomic_load_n(&other.ended, __ATOMIC_SEQ_CST);
    set(&doorway.open);
    expect_free_waited(&other, waited);
    SUCCEEDS(cuCtxSynchronize());
}

static void fence_covers_host_functions(void)
{
    struct doorway running = {0, 0, 0}, queued = {0, 0, 0};
    CUevent fence = new_event();
    SUCCEEDS(cuLaunchHostFunc(gpu.a, pass_doorway, &running));
    spin(gpu.b, 20);
    SUCCEEDS(cuLaunchHostFunc(gpu.b, pass_doorway, &queued));
    CHECK(is_set_within(&running.entered, HANGS_AFTER_MS));
    SUCCEEDS(cuCtxRecordEvent(gpu.context, fence));
    EXPECT(cuEventQuery(fence), CUDA_ERROR_NOT_READY);
    set(&running.open);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    CHECK(is_set_within(&queued.entered, HANGS_AFTER_MS));
    EXPECT(cuEventQuery(fence), CUDA_ERROR_NOT_READY);
    set(&queued.open);
    SUCCEEDS(cuEventSynchronize(fence));
    CHECK(running.left && queued.left);
    SUCCEEDS(cuEventDestroy_v2(fence));
}

/* Whether host functions of two streams, or of two contexts, run beside each other. */
static void host_functions_of_two_streams(void)
{
    struct doorway first = {0, 0, 0}, second = {0, 0, 0};
    SUCCEEDS(cuLaunchHostFunc(gpu.a, pass_doorway, &first));
    CHECK(is_set_within(&first.entered, HANGS_AFTER_MS));
    SUCCEEDS(cuLaunchHostFunc(gpu.b, pass_doorway, &second));
    note("a host function %s while one of another stream runs",
         is_set_within(&second.entered, 50) ? "runs" : "waits");
    set(&first.open);
    set(&second.open);
    SUCCEEDS(cuCtxSynchronize());
    CHECK(first.left && second.left);
}

/* A word of pinned memory that starts as 0. */
struct pinned_word {
    unsigned int *host;
    CUdeviceptr device;
};

static struct pinned_word new_word(void)
{
    struct pinned_word word = {NULL, 0};
    SUCCEEDS(cuMemHostAlloc((void **)&word.host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    SUCCEEDS(cuMemHostGetDevicePointer_v2(&word.device, word.host, 0));
    __atomic_store_n(word.host, 0, __ATOMIC_SEQ_CST);
    return word;
}

static void set_word(struct pinned_word word)
{
    __atomic_store_n(word.host, 1, __ATOMIC_SEQ_CST);
}

static CUresult wait_for_word(CUstream stream, struct pinned_word word, bool in_a_batch)
{
    CUstreamBatchMemOpParams parameters = {
        .waitValue = {.address = word.device, .value = 1, .flags = CU_STREAM_WAIT_VALUE_GEQ}};
    parameters.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    return in_a_batch ? cuStreamBatchMemOp_v2(stream, 1, &parameters, 0)
                      : cuStreamWaitValue32_v2(stream, word.device, 1, CU_STREAM_WAIT_VALUE_GEQ);
}

/* A fence covers the wait for a word that the host writes, and cuMemFree waits for it. */
static void check_waits_for_values(bool in_a_batch)
{
    struct pinned_word word = new_word();
    struct other_free other = {.address = allocate(MIB)};
    CUevent fence = new_event();
    bool waited;
    CUresult result = wait_for_word(gpu.a, word, in_a_batch);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        note("not supported: nothing was checked");
        SUCCEEDS(cuMemFree_v2(other.address));
        return;
    }
    SUCCEEDS(result);
    SUCCEEDS(cuCtxRecordEvent(gpu.context, fence));
    sleep_ms(5);
    EXPECT(cuStreamQuery(gpu.a), CUDA_ERROR_NOT_READY);
    EXPECT(cuEventQuery(fence), CUDA_ERROR_NOT_READY);
    EXPECT(cuStreamQuery(gpu.b), CUDA_SUCCESS);
    begin_free(&other);
    waited = !__atomic_load_n(&other.ended, __ATOMIC_SEQ_CST);
    set_word(word);
    expect_free_waited(&other, waited);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuEventQuery(fence));
    SUCCEEDS(cuEventDestroy_v2(fence));
    SUCCEEDS(cuMemFreeHost(word.host));
}

static void waits_for_values_are_work(void)
{
    check_waits_for_values(false);
}

static void batched_waits_for_values_are_work(void)
{
    check_waits_for_values(true);
}

static void writes_of_values_end_waits(void)
{
    struct pinned_word word = new_word();
    CUresult result = wait_for_word(gpu.a, word, false);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        note("not supported: nothing was checked");
        return;
    }
    SUCCEEDS(result);
    SUCCEEDS(cuStreamWriteValue32_v2(gpu.b, word.device, 1, 0));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuStreamWaitValue32_v2(gpu.a, word.device, 1, CU_STREAM_WAIT_VALUE_EQ));
    SUCCEEDS(cuStreamWaitValue32_v2(gpu.a, word.device, 1, CU_STREAM_WAIT_VALUE_AND));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    SUCCEEDS(cuMemFreeHost(word.host));
}

/* --- graphs that hold such work
 * -----------------------------------------------------------------*/

CUgraph new_graph(void)
{
    CUgraph graph = NULL;
    SUCCEEDS(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphNode add_host_node(CUgraph graph, CUhostFn function, void *argument)
{
    CUDA_HOST_NODE_PARAMS parameters = {function, argument};
    CUgraphNode node = NULL;
    SUCCEEDS(cuGraphAddHostNode(&node, graph, NULL, 0, &parameters));
    return node;
}

CUgraphNode add_child(CUgraph graph, CUgraph child)
{
    CUgraphNode node = NULL;
    SUCCEEDS(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    return node;
}

CUgraph kernel_graph(double ms)
{
    CUgraph graph = NULL;
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    spin(gpu.a, ms);
    SUCCEEDS(cuStreamEndCapture(gpu.a, &graph));
    return graph;
}

CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;
    SUCCEEDS(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

void launch_and_wait(CUgraphExec exec)
{
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

enum { MOST_NODES = 8 };

/* How many nodes the graph itself has, and of those, how many of a type. */
static size_t count_nodes(CUgraph graph, CUgraphNode *nodes)
{
    size_t count = MOST_NODES;
    SUCCEEDS(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count <= MOST_NODES);
    if (count > 0 && count <= MOST_NODES)
        SUCCEEDS(cuGraphGetNodes(graph, nodes, &count));
    return count;
}

int count_type(CUgraph graph, CUgraphNodeType type)
{
    CUgraphNode nodes[MOST_NODES] = {NULL};
    size_t count = count_nodes(graph, nodes);
    int found = 0;
    for (size_t i = 0; i < count && i < MOST_NODES; i++) {
        CUgraphNodeType its_type = 99;
        SUCCEEDS(cuGraphNodeGetType(nodes[i], &its_type));
        found += its_type == type;
    }
    return found;
}

CUgraphNode only_node(CUgraph graph)
{
    CUgraphNode nodes[MOST_NODES] = {NULL};
    CHECK(count_nodes(graph, nodes) == 1);
    return nodes[0];
}

static void captured_nodes_are_listed(void)
{
    struct pinned_word word = new_word();
    CUgraph graph = NULL;
    CUresult waits;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    spin(gpu.a, 0);
    SUCCEEDS(cuLaunchHostFunc(gpu.a, count_host_call, NULL));
    SUCCEEDS(cuStreamEndCapture(gpu.a, &graph));
    CHECK(count_type(graph, CU_GRAPH_NODE_TYPE_HOST) == 1);
    CHECK(count_type(graph, CU_GRAPH_NODE_TYPE_KERNEL) == 1);
    SUCCEEDS(cuGraphDestroy(graph));
    graph = NULL;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    waits = wait_for_word(gpu.a, word, false);
    note("cuStreamWaitValue32 in a capture: %s", name_of(waits));
    note("ending that capture: %s", name_of(cuStreamEndCapture(gpu.a, &graph)));
    if (waits == CUDA_SUCCESS && graph != NULL)
        CHECK(count_type(graph, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) == 1);
    if (graph != NULL)
        SUCCEEDS(cuGraphDestroy(graph));
    SUCCEEDS(cuMemFreeHost(word.host));
}

static void child_graphs_nodes_are_listed_there(void)
{
    CUgraph parent = new_graph(), child = new_graph(), inner = NULL, captured = NULL;
    CUgraphExec exec;
    CUgraphNode node;
    host_calls = 0;
    add_host_node(child, count_host_call, NULL);
    node = add_child(parent, child);
    SUCCEEDS(cuGraphDestroy(child));
    CHECK(only_node(parent) == node);
    CHECK(count_type(parent, CU_GRAPH_NODE_TYPE_GRAPH) == 1);
    SUCCEEDS(cuGraphChildGraphNodeGetGraph(node, &inner));
    CHECK(count_type(inner, CU_GRAPH_NODE_TYPE_HOST) == 1);
    exec = instantiate(parent);
    launch_and_wait(exec);
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 1);
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    note("cuGraphLaunch in a capture: %s", name_of(cuGraphLaunch(exec, gpu.a)));
    note("ending that capture: %s", name_of(cuStreamEndCapture(gpu.a, &captured)));
    if (captured && count_type(captured, CU_GRAPH_NODE_TYPE_GRAPH) == 1) {
        SUCCEEDS(cuGraphChildGraphNodeGetGraph(only_node(captured), &inner));
        note("it is a child graph with %d host nodes and %d child graphs",
             count_type(inner, CU_GRAPH_NODE_TYPE_HOST),
             count_type(inner, CU_GRAPH_NODE_TYPE_GRAPH));
    }
    SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(parent));
    if (captured)
        SUCCEEDS(cuGraphDestroy(captured));
}

static void fence_covers_host_nodes(void)
{
    struct doorway doorway = {0, 0, 0};
    CUgraph graph = new_graph();
    CUevent fence = new_event();
    CUgraphExec exec;
    add_host_node(graph, pass_doorway, &doorway);
    exec = instantiate(graph);
    SUCCEEDS(cuGraphLaunch(exec, gpu.a));
    CHECK(is_set_within(&doorway.entered, HANGS_AFTER_MS));
    SUCCEEDS(cuCtxRecordEvent(gpu.context, fence));
    EXPECT(cuEventQuery(fence), CUDA_ERROR_NOT_READY);
    set(&doorway.open);
    SUCCEEDS(cuEventSynchronize(fence));
    CHECK(doorway.left);
    SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(graph));
    SUCCEEDS(cuEventDestroy_v2(fence));
}

/* The update is refused; the executable graph runs on as it was. */
static void refuses_update(CUgraphExec exec, CUgraph graph, const char *to)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    note("cuGraphExecUpdate to %s: %s, result %u", to, name_of(result), info.result);
    if (result == CUDA_SUCCESS)
        fail("cuGraphExecUpdate to %s: expected an error, got CUDA_SUCCESS", to);
    host_calls = 0;
    launch_and_wait(exec);
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 0);
}

static void updates_add_no_host_nodes(void)
{
    CUgraph kernel = kernel_graph(0), host = new_graph(), both = kernel_graph(0), nested;
    CUgraphExec exec = instantiate(kernel);
    CUgraphExecUpdateResultInfo info = {0};
    CUgraph longer = kernel_graph(1);
    add_host_node(host, count_host_call, NULL);
    add_host_node(both, count_host_call, NULL);
    nested = new_graph();
    add_child(nested, host);
    refuses_update(exec, host, "a host node in the kernel's place");
    refuses_update(exec, both, "a graph with a host node more");
    refuses_update(exec, nested, "a child graph in the kernel's place");
    SUCCEEDS(cuGraphExecUpdate_v2(exec, longer, &info));
    SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(kernel));
    SUCCEEDS(cuGraphDestroy(host));
    SUCCEEDS(cuGraphDestroy(both));
    SUCCEEDS(cuGraphDestroy(nested));
    SUCCEEDS(cuGraphDestroy(longer));
}

static void nodes_keep_their_types(void)
{
    CUDA_HOST_NODE_PARAMS host = {count_host_call, NULL};
    struct pinned_word word = new_word();
    CUstreamBatchMemOpParams operation = {.writeValue = {.address = word.device, .value = 1}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {gpu.context, 1, &operation, 0};
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = host};
    CUgraph graph = kernel_graph(0);
    CUgraphNode kernel = only_node(graph);
    CUgraphExec exec = instantiate(graph);
    operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    FAILS(cuGraphExecHostNodeSetParams(exec, kernel, &host));
    FAILS(cuGraphExecBatchMemOpNodeSetParams(exec, kernel, &batch));
    FAILS(cuGraphExecChildGraphNodeSetParams(exec, kernel, graph));
    FAILS(cuGraphExecNodeSetParams(exec, kernel, &any));
    FAILS(cuGraphNodeSetParams(kernel, &any));
    host_calls = 0;
    launch_and_wait(exec);
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 0);
    /* What is added to the graph is not in what was made of it before. */
    add_host_node(graph, count_host_call, NULL);
    launch_and_wait(exec);
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 0);
    SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(graph));
    SUCCEEDS(cuMemFreeHost(word.host));
}

/* Nor does disabling and enabling hide a host node while the graph is instantiated. */
static void which_nodes_can_be_disabled(void)
{
    CUgraph graph = kernel_graph(0);
    CUgraphNode kernel = only_node(graph), host = add_host_node(graph, count_host_call, NULL);
    CUgraphExec exec = instantiate(graph);
    CUresult result = cuGraphNodeSetEnabled(exec, host, 0);
    note("cuGraphNodeSetEnabled of a host node: %s", name_of(result));
    SUCCEEDS(cuGraphNodeSetEnabled(exec, kernel, 0));
    host_calls = 0;
    launch_and_wait(exec);
    note("a launch calls the host function %d times",
         __atomic_load_n(&host_calls, __ATOMIC_SEQ_CST));
    CHECK((result != CUDA_SUCCESS) == (host_calls == 1));
    SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(graph));
}

static void child_graphs_keep_their_types(void)
{
    CUgraph kernel = kernel_graph(0), other_kernel = kernel_graph(1), host = new_graph();
    CUgraph parent = new_graph(), other_parent = new_graph();
    CUgraphNode child = add_child(parent, kernel);
    CUgraphExec exec = instantiate(parent);
    add_host_node(host, count_host_call, NULL);
    add_child(other_parent, host);
    FAILS(cuGraphExecChildGraphNodeSetParams(exec, child, host));
    SUCCEEDS(cuGraphExecChildGraphNodeSetParams(exec, child, other_kernel));
    refuses_update(exec, other_parent, "a host node in the child graph");
    SUCCEEDS(cuGraphExecDestroy(exec));
    exec = instantiate(other_parent);
    host_calls = 0;
    launch_and_wait(exec);
    CHECK(__atomic_load_n(&host_calls, __ATOMIC_SEQ_CST) == 1);
    SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(kernel));
    SUCCEEDS(cuGraphDestroy(other_kernel));
    SUCCEEDS(cuGraphDestroy(host));
    SUCCEEDS(cuGraphDestroy(parent));
    SUCCEEDS(cuGraphDestroy(other_parent));
}

/* A body may hold no host node: a graph that has none outside conditional nodes has none. */
static void conditional_bodies_hold_no_host_nodes(void)
{
    CUDA_HOST_NODE_PARAMS host = {count_host_call, NULL};
    CUgraph graph = new_graph(), body = NULL;
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CUgraphNode node = NULL, inner = NULL;
    CUgraphExec exec = NULL;
    CUresult added, instantiated = CUDA_SUCCESS;
    CUresult result =
        cuGraphConditionalHandleCreate(&parameters.conditional.handle, graph, gpu.context, 1, 1);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        note("the driver has no conditional nodes: nothing was checked");
        SUCCEEDS(cuGraphDestroy(graph));
        return;
    }
    SUCCEEDS(result);
    parameters.conditional.type = CU_GRAPH_COND_TYPE_IF;
    parameters.conditional.size = 1;
    parameters.conditional.ctx = gpu.context;
    SUCCEEDS(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &parameters));
    CHECK(count_type(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL) == 1);
    if (parameters.conditional.phGraph_out != NULL)
        body = parameters.conditional.phGraph_out[0];
    CHECK(body != NULL);
    CHECK(body == NULL || count_type(body, CU_GRAPH_NODE_TYPE_HOST) == 0);
    added = cuGraphAddHostNode(&inner, body, NULL, 0, &host);
    if (added == CUDA_SUCCESS)
        instantiated = cuGraphInstantiateWithFlags(&exec, graph, 0);
    note("a host node in a body: %s, then instantiating: %s", name_of(added),
         name_of(instantiated));
    CHECK(added != CUDA_SUCCESS || instantiated != CUDA_SUCCESS);
    if (exec != NULL)
        SUCCEEDS(cuGraphExecDestroy(exec));
    SUCCEEDS(cuGraphDestroy(graph));
}

/* --- finding the driver ------------------------------------------------------------------------*/

static void both_lookups_give_one_address(void)
{
    static const struct {
        const char *base, *exported;
        int version;
        cuuint64_t flags;
    } names[] = {
        {"cuMemAlloc", "cuMemAlloc_v2", 3020, 0},
        {"cuMemFree", "cuMemFree_v2", 3020, 0},
        {"cuMemGetInfo", "cuMemGetInfo_v2", 3020, 0},
        {"cuMemAllocAsync", "cuMemAllocAsync", 11020, 0},
        {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", 11020, 2},
        {"cuMemFreeAsync", "cuMemFreeAsync", 11020, 0},
        {"cuMemFreeAsync", "cuMemFreeAsync_ptsz", 11020, 2},
        {"cuLaunchKernel", "cuLaunchKernel", 4000, 0},
        {"cuLaunchKernel", "cuLaunchKernel_ptsz", 7000, 2},
        {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010, 0},
        {"cuStreamBeginCapture", "cuStreamBeginCapture_v2_ptsz", 10010, 2},
        {"cuCtxSynchronize", "cuCtxSynchronize", 2000, 0},
        {"cuCtxRecordEvent", "cuCtxRecordEvent", 12050, 0},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020, 0},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", 7000, 2},
        {"cuEventQuery", "cuEventQuery", 2000, 0},
        {"cuCtxCreate", "cuCtxCreate_v2", 3020, 0},
        {"cuGetProcAddress", "cuGetProcAddress_v2", 12000, 0},
    };
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    CHECK(library != NULL);
    for (size_t i = 0; library != NULL && i < sizeof names / sizeof *names; i++) {
        void *address = NULL;
        SUCCEEDS(
            cuGetProcAddress_v2(names[i].base, &address, names[i].version, names[i].flags, NULL));
        if (address == NULL || address != dlsym(library, names[i].exported))
            fail("%s: expected one address from both lookups", names[i].exported);
    }
    if (library != NULL)
        dlclose(library);
}

static void unknown_names_are_not_found(void)
{
    CUdriverProcAddressQueryResult status = 99;
    void *address = &status;
    cuGetProcAddress_v2("cuNoSuchFunction", &address, 12000, 0, &status);
    CHECK(address == NULL);
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

/* --- running the rows --------------------------------------------------------------------------*/

static const struct row {
    const char *name;
    void (*check)(void);
    const char *across; /* its name with the second context on another device; or NULL */
    int part;           /* rows of one part share a process */
} rows[] = {
/* clang-format off */
#define ROW(function) {#function, function, NULL, 0}
#define CONTEXTS_ROW(function) {#function, function, #function "@another_device", 0}
#define HOST_ROW(function) {#function, function, NULL, 1}
#define HOST_CONTEXTS_ROW(function) {#function, function, #function "@another_device", 1}
#define GRAPHS_ROW(function) {#function, function, NULL, 2}
    /* clang-format on */
    ROW(alloc_of_nothing_is_invalid),
    ROW(alloc_to_nowhere_is_invalid),
    ROW(async_alloc_of_nothing_succeeds),
    ROW(free_of_null_succeeds),
    ROW(free_twice_is_invalid),
    ROW(free_async_twice_is_invalid),
    ROW(free_inside_a_block_is_invalid),
    ROW(alloc_of_too_much_is_out_of_memory),
    ROW(memory_freed_in_order_is_not_waited_for),
    ROW(range_is_what_was_asked_for),
    ROW(range_attribute_is_what_was_asked_for),
    ROW(freed_memory_is_unknown),
    ROW(managed_memory_needs_no_room),
    ROW(managed_memory_says_what_it_is),
    ROW(touched_managed_memory_is_not_free),
    ROW(small_blocks_are_1_kib_apart),
    ROW(free_needs_no_context),
    ROW(free_without_a_context_of_other_pointers),
    ROW(free_without_a_context_waits),
    ROW(info_wants_neither_number),
    ROW(info_of_freed_memory_needs_no_total),
    ROW(info_counts_freed_memory),
    ROW(info_counts_whole_pages_only),
    ROW(buffer_ids_are_never_used_again),
    ROW(buffers_of_a_time_have_ids_of_their_own),
    ROW(drivers_buffer_ids_are_small),
    ROW(stream_ordered_buffer_ids),
    ROW(ranges_are_told_as_without_the_pool),
    ROW(free_waits_for_its_context),
    ROW(free_holds_the_drivers_lock),
    ROW(alloc_does_not_wait),
    ROW(free_of_async_memory_does_not_wait),
    ROW(free_async_gives_plain_memory_back),
    ROW(free_async_gives_exported_memory_back),
    CONTEXTS_ROW(free_ignores_other_contexts_kernels),
    CONTEXTS_ROW(free_waits_for_copies_in_other_contexts),
    ROW(fence_covers_every_kind_of_stream),
    ROW(the_size_of_the_cache_is_known),
    ROW(fence_covers_destroyed_streams),
    ROW(fence_does_not_cover_later_work),
    ROW(fence_orders_no_streams),
    CONTEXTS_ROW(fence_does_not_cover_other_contexts),
    CONTEXTS_ROW(fence_wants_an_event_of_its_context),
    ROW(unrecorded_events_are_complete),
    ROW(running_events_are_not_ready),
    ROW(without_a_barrier_writes_race),
    ROW(barrier_orders_every_write),
    ROW(barrier_does_not_block_the_host),
    ROW(barrier_on_an_old_fence_waits_for_old_work_only),
    ROW(idle_stream_behind_a_barrier_is_idle),
    CONTEXTS_ROW(barrier_works_across_contexts),
    ROW(kernels_after_a_barrier_run_beside_each_other),
    ROW(legacy_stream_orders_blocking_streams),
    ROW(idle_stream_behind_a_wait_is_not_idle),
    ROW(legacy_queries_cover_blocking_streams),
    ROW(queries_do_not_see_records_of_events),
    ROW(queries_see_waits_for_events),
    ROW(queries_see_stream_ordered_frees),
    ROW(legacy_frees_order_blocking_streams_and_allocations_do_not),
    ROW(created_streams_need_no_context),
    ROW(thresholds_read_back_as_they_were_set),
    ROW(freed_blocks_are_not_used_bytes),
    ROW(most_used_bytes_start_again),
    ROW(used_bytes_are_what_was_asked_for),
    ROW(used_bytes_after_plain_frees),
    ROW(used_bytes_after_plain_frees_of_the_default_pool),
    ROW(maps_on_a_full_device),
    ROW(handles_live_as_long_as_their_mappings),
    ROW(retained_handles_are_the_same),
    ROW(one_unmap_ends_many_mappings),
    CONTEXTS_ROW(physical_memory_outlives_contexts),
    ROW(managed_memory_is_not_freed_in_order),
    ROW(arrays_take_what_a_deferred_one_says),
    ROW(arrays_have_this_layout),
    ROW(destroyed_pools_live_as_long_as_their_memory),
    ROW(each_thread_has_its_own_stream),
    ROW(stream_ids_are_never_used_again),
    ROW(context_ids_are_never_used_again),
    ROW(host_functions_run_in_order),
    ROW(flags_let_kernels_go_on),
    ROW(context_calls_spoil_captures),
    ROW(events_on_other_streams_spare_captures),
    ROW(unsafe_calls_spoil_strict_captures),
    ROW(relaxed_threads_may_call_anything),
    ROW(harmless_calls_spare_captures),
    ROW(only_global_captures_bind_other_threads),
    ROW(captured_async_alloc_is_a_node),
    ROW(captured_free_of_older_memory),
    ROW(graphs_keep_user_objects),
    ROW(spoiled_captures_drop_user_objects),
    ROW(captures_spread_through_events),
    CONTEXTS_ROW(captures_spread_to_other_contexts),
    CONTEXTS_ROW(fences_of_other_contexts_spare_captures),
    ROW(joined_streams_may_be_destroyed),
    ROW(capturing_streams_have_no_number),
    ROW(other_questions_spare_captures),
    ROW(unjoined_captures_have_no_graph),
    ROW(legacy_stream_cannot_capture),
    ROW(legacy_stream_beside_a_blocking_capture),
    ROW(free_waits_for_host_functions),
    ROW(fence_covers_host_functions),
    ROW(host_functions_of_two_streams),
    ROW(waits_for_values_are_work),
    ROW(batched_waits_for_values_are_work),
    ROW(writes_of_values_end_waits),
    ROW(captured_nodes_are_listed),
    ROW(child_graphs_nodes_are_listed_there),
    ROW(fence_covers_host_nodes),
    ROW(updates_add_no_host_nodes),
    ROW(nodes_keep_their_types),
    ROW(which_nodes_can_be_disabled),
    ROW(child_graphs_keep_their_types),
    ROW(conditional_bodies_hold_no_host_nodes),
    GRAPHS_ROW(captured_graphs_keep_objects),
    GRAPHS_ROW(captured_graphs_let_objects_go),
    GRAPHS_ROW(retained_references_are_apart_from_the_programs),
    GRAPHS_ROW(clones_keep_objects),
    GRAPHS_ROW(executables_of_clones_keep_objects),
    GRAPHS_ROW(pending_launches_keep_objects),
    GRAPHS_ROW(objects_retained_by_other_threads),
    GRAPHS_ROW(forked_streams_tell_the_same_graph),
    GRAPHS_ROW(destructors_threads),
    GRAPHS_ROW(updates_replace_objects),
    GRAPHS_ROW(updates_beside_launches_keep_objects),
    GRAPHS_ROW(objects_that_were_never_launched),
    GRAPHS_ROW(objects_given_after_instantiating),
    GRAPHS_ROW(failed_updates_and_objects),
    GRAPHS_ROW(updates_by_the_own_graph_keep_objects),
    GRAPHS_ROW(objects_off_their_graph_for_a_while),
    GRAPHS_ROW(objects_off_their_graph_for_an_update),
    GRAPHS_ROW(objects_that_the_graph_does_not_have),
    GRAPHS_ROW(objects_off_their_graph_beside_captures),
    GRAPHS_ROW(objects_need_no_context),
    GRAPHS_ROW(fences_cover_what_destroyed_executables_do),
    GRAPHS_ROW(fences_cover_what_updated_executables_did),
    GRAPHS_ROW(child_graphs_keep_objects),
    GRAPHS_ROW(changed_child_graphs_replace_objects),
    GRAPHS_ROW(updated_child_graphs_and_objects),
    GRAPHS_ROW(captured_launches_and_objects),
    GRAPHS_ROW(moved_child_graphs_keep_objects),
    GRAPHS_ROW(conditional_bodies_and_objects),
    GRAPHS_ROW(uploads_need_no_graph),
    GRAPHS_ROW(captures_to_graphs_keep_objects),
    GRAPHS_ROW(spoiled_captures_to_graphs),
    GRAPHS_ROW(unjoined_captures_to_graphs),
    GRAPHS_ROW(refused_captures_to_graphs),
    GRAPHS_ROW(captures_ended_on_the_wrong_stream),
    GRAPHS_ROW(captures_ended_by_the_wrong_thread),
    GRAPHS_ROW(calls_beside_captures),
    GRAPHS_ROW(calls_beside_other_threads_captures),
    GRAPHS_ROW(relaxed_calls_beside_captures),
    GRAPHS_ROW(relaxed_calls_beside_other_threads_captures),
    GRAPHS_ROW(relaxed_allocations_beside_spoiled_captures),
    GRAPHS_ROW(captures_use_memory_allocated_meanwhile),
    GRAPHS_ROW(captures_of_the_threads_own_stream),
    GRAPHS_ROW(objects_that_go_beside_captures),
    GRAPHS_ROW(graphs_that_go_beside_captures),
    GRAPHS_ROW(relaxed_allocations_beside_blocking_captures),
    GRAPHS_ROW(relaxed_allocations_beside_captures_of_the_threads_own),
    GRAPHS_ROW(asking_the_legacy_stream_spares_blocking_captures),
    GRAPHS_ROW(asking_about_captures_spares_them),
    GRAPHS_ROW(questions_about_memory_spare_captures),
    GRAPHS_ROW(interior_frees_beside_captures),
    GRAPHS_ROW(objects_of_graphs_whose_context_ends),
    GRAPHS_ROW(captured_streams_tell_their_nodes),
    GRAPHS_ROW(forks_and_joins_tell_their_nodes),
    GRAPHS_ROW(captures_have_numbers),
    GRAPHS_ROW(streams_that_are_set_back_tell_so),
    GRAPHS_ROW(questions_about_pools_spare_captures),
    GRAPHS_ROW(early_launches_in_captures),
    GRAPHS_ROW(captured_allocations_keep_their_address),
    GRAPHS_ROW(unfreed_allocations_forbid_a_launch),
    GRAPHS_ROW(launches_may_free_what_the_last_one_left),
    GRAPHS_ROW(unfreed_allocations_are_freed_in_order),
    GRAPHS_ROW(unfreed_allocations_are_freed_plainly),
    GRAPHS_ROW(unfreed_allocations_outlive_their_graph),
    GRAPHS_ROW(other_graphs_free_allocations),
    GRAPHS_ROW(graphs_with_memory_are_not_copied),
    GRAPHS_ROW(graphs_with_memory_have_one_executable),
    GRAPHS_ROW(graphs_with_memory_in_captures),
    GRAPHS_ROW(graphs_with_memory_are_updated),
    GRAPHS_ROW(moved_child_graphs_with_memory),
    GRAPHS_ROW(spoiled_captures_give_allocations_back),
    GRAPHS_ROW(graph_memory_is_counted),
    GRAPHS_ROW(graph_memory_can_be_asked_about_at_any_time),
    GRAPHS_ROW(graph_memory_is_trimmed_beside_work),
    ROW(both_lookups_give_one_address),
    ROW(unknown_names_are_not_found),
    ROW(memory_of_other_processes_is_missing),
    ROW(memory_of_killed_processes_comes_back),
    ROW(memory_given_beside_a_kernel_can_be_had),
    ROW(devices_have_one_uuid_in_all_processes),
    ROW(other_threads_may_call_beside_a_stream_wait),
    ROW(other_threads_may_call_beside_a_context_wait),
    ROW(relaxed_threads_spare_others_captures),
    ROW(processes_end_beside_a_calling_thread),
    ROW(processes_fork_beside_a_calling_thread),
    ROW(several_threads_free_one_block),
    ROW(children_of_a_fork_have_no_memory),
    HOST_ROW(host_alloc_takes_every_flag),
    HOST_ROW(host_alloc_of_unknown_flags),
    HOST_ROW(host_alloc_of_nothing),
    HOST_ROW(host_alloc_of_too_much_is_out_of_memory),
    HOST_ROW(host_alloc_needs_a_context),
    HOST_ROW(host_flags_are_told),
    HOST_ROW(host_flags_of_registered_memory_are_told),
    HOST_ROW(small_host_blocks_have_an_alignment),
    HOST_ROW(host_ranges_are_told),
    HOST_ROW(host_pointers_have_attributes),
    HOST_ROW(host_pointers_have_all_attributes_in_one_call),
    HOST_ROW(host_buffers_have_ids_of_their_own),
    HOST_ROW(freed_host_memory_is_told),
    HOST_ROW(ordinary_memory_is_told),
    HOST_ROW(host_memory_can_be_told_to_synchronize),
    HOST_ROW(registered_memory_can_be_told_to_synchronize),
    HOST_ROW(host_device_pointers_are_host_pointers),
    HOST_CONTEXTS_ROW(host_device_pointers_in_other_contexts),
    HOST_ROW(host_memory_is_written_by_both),
    HOST_ROW(fresh_host_memory_has_contents),
    HOST_ROW(host_pools_have_a_threshold),
    HOST_ROW(pools_are_found_by_their_memory),
    HOST_ROW(pools_are_chosen_by_their_memory),
    HOST_ROW(default_pools_are_destroyed),
    HOST_ROW(memory_outlives_the_context_of_its_stream),
    HOST_ROW(events_of_the_primary_context_on_green_streams),
    HOST_ROW(pools_of_other_memory_keep_up_to_their_threshold),
    HOST_ROW(pools_of_other_memory_and_free_memory),
    HOST_ROW(pools_of_other_memory_are_trimmed_beside_a_kernel),
    HOST_ROW(pools_of_other_memory_cost_less_with_a_threshold),
    HOST_ROW(host_free_waits_for_its_context),
    HOST_CONTEXTS_ROW(host_free_beside_kernels_of_other_contexts),
    HOST_ROW(host_free_beside_host_functions),
    HOST_ROW(host_free_without_a_context_beside_a_kernel),
    HOST_ROW(host_unregister_waits_for_its_context),
    HOST_ROW(others_call_while_host_free_waits),
    HOST_ROW(host_alloc_beside_a_kernel),
    HOST_ROW(host_alloc_in_captures),
    HOST_ROW(host_free_in_captures),
    HOST_ROW(host_calls_of_others_in_captures),
    HOST_ROW(relaxed_threads_may_use_host_memory),
    HOST_ROW(relaxed_threads_may_register_memory),
    HOST_ROW(host_free_in_a_host_function),
    HOST_ROW(fences_without_work_are_over_at_once),
    HOST_ROW(fence_covers_reads_of_host_memory),
    HOST_ROW(fence_covers_writes_of_host_memory),
    HOST_ROW(host_frees_that_nobody_may_make),
    HOST_ROW(freed_host_memory_may_stay),
    HOST_ROW(host_frees_in_other_contexts),
    HOST_ROW(destroyed_contexts_can_be_asked),
    HOST_ROW(host_frees_by_other_calls),
    HOST_ROW(host_memory_of_destroyed_contexts),
    HOST_ROW(host_memory_is_registered),
    HOST_ROW(host_memory_is_unregistered_by_its_address),
    HOST_ROW(host_memory_after_a_fork),
    HOST_ROW(host_memory_needs_no_limit),
    HOST_ROW(other_contexts_use_host_memory),
    HOST_ROW(host_free_beside_copies_of_other_contexts),
    /* Late: a capture that such an end does not end would disturb every row after it. */
    GRAPHS_ROW(captures_of_destroyed_streams),
    GRAPHS_ROW(captures_of_ended_threads),
    /* Last, since a call that hangs inside a host function ends the run. */
    ROW(calls_inside_host_functions),
    ROW(waits_inside_host_functions),
    ROW(frees_inside_host_functions),
    ROW(frees_inside_callbacks),
    /* At the very end: nobody says what the driver makes of these, and a fault would stay. */
    GRAPHS_ROW(pending_uploads_and_objects),
    GRAPHS_ROW(captured_allocations_are_freed_once),
    GRAPHS_ROW(allocations_before_a_launch),
    GRAPHS_ROW(uploads_and_graph_memory),
    GRAPHS_ROW(captured_frees_of_plain_memory),
#undef ROW
#undef CONTEXTS_ROW
};

static void get_function(CUfunction *function, const char *name)
{
    SUCCEEDS(cuModuleGetFunction(function, gpu.module, name));
}

static void open_device(void)
{
    gpu.pool = has_pool();
    SUCCEEDS(cuInit(0));
    SUCCEEDS(cuDeviceGet(&gpu.device, 0));
    SUCCEEDS(cuDevicePrimaryCtxRetain(&gpu.context, gpu.device));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    SUCCEEDS(cuModuleLoadData(&gpu.module, KERNELS_PTX));
    get_function(&gpu.spin, "spin");
    get_function(&gpu.fill, "fill");
    get_function(&gpu.verify, "verify");
    get_function(&gpu.spin_then_verify, "spin_then_verify");
    get_function(&gpu.wait_flag, "wait_flag");
    get_function(&gpu.set_flag, "set_flag");
    SUCCEEDS(cuStreamCreate(&gpu.a, CU_STREAM_NON_BLOCKING));
    SUCCEEDS(cuStreamCreate(&gpu.b, CU_STREAM_NON_BLOCKING));
    gpu.mismatches = allocate(8);
    SUCCEEDS(cuMemsetD8_v2(gpu.mismatches, 0, 8));
}

/* Every kernel once, so that no row waits for code to load. */
static void warm_up(void)
{
    CUdeviceptr flag = allocate(8);
    launch(gpu.set_flag, gpu.a, (void *[]){&flag});
    launch(gpu.wait_flag, gpu.a, (void *[]){&flag});
    fill(gpu.a, flag, 1, 0);
    spin(gpu.a, 0);
    spin_then_verify(gpu.a, 0, flag, 1, 0);
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuMemFree_v2(flag));
}

const char *open_gpu(void)
{
    open_device();
    warm_up();
    return has_failed() ? failure : NULL;
}

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc == 1;
}

static const double MOST_SLOWER = 27; /* the fourth try */
enum { PARTS = 3 };

static bool run(const char *name, void (*check)(void))
{
    row_name = name;
    for (slower = 1;; slower *= 3) {
        failure[0] = '\0';
        took_wrong_time = false;
        check();
        if (!took_wrong_time || slower == MOST_SLOWER)
            break;
    }
    if (slower > 1)
        note("work took %g times as long as stated, and so did a millisecond", slower);
    slower = 1;
    if (failure[0] != '\0')
        printf("FAIL %s: %s\n", name, failure);
    else
        printf("ok %s\n", name);
    fflush(stdout);
    return failure[0] == '\0';
}

struct count {
    int passed, failed;
};

static void run_and_count(const char *name, void (*check)(void), struct count *count)
{
    if (run(name, check))
        count->passed++;
    else
        count->failed++;
}

/* All rows of the part with the second context beside the first; then, where there is another
 * device, those about several contexts with it there. */
static struct count run_rows(int part, int argc, char **argv)
{
    struct count count = {0, 0};
    int devices = 0;
    SUCCEEDS(cuDeviceGetCount(&devices));
    gpu.neighbour = gpu.device;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].part == part && is_wanted(rows[i].name, argc, argv))
            run_and_count(rows[i].name, rows[i].check, &count);
    if (devices < 2)
        return count;
    SUCCEEDS(cuDeviceGet(&gpu.neighbour, 1));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].part == part && rows[i].across && is_wanted(rows[i].across, argc, argv))
            run_and_count(rows[i].across, rows[i].check, &count);
    return count;
}

/* --- parts -------------------------------------------------------------------------------------*/

static bool has_wanted_rows(int part, int argc, char **argv)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].part == part && (is_wanted(rows[i].name, argc, argv) ||
                                     (rows[i].across && is_wanted(rows[i].across, argc, argv))))
            return true;
    return false;
}

static struct count run_part(int part, int argc, char **argv)
{
    if (open_gpu() == NULL)
        open_facts(gpu.pool ? "r" : "a");
    if (has_failed()) {
        printf("FAIL opening the device: %s\n", failure);
        return (struct count){0, 1};
    }
    return run_rows(part, argc, argv);
}

/* In a process of its own, so that what one part leaves behind is not the next one's: with memory
 * nodes, after all other rows, an H200's driver ended the process. */
static struct count run_apart(int part, int argc, char **argv)
{
    struct count count = {0, 1};
    int ends[2], status = 0;
    if (pipe(ends) != 0)
        return count;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        count = run_part(part, argc, argv);
        fflush(stdout);
        exit(write(ends[1], &count, sizeof count) != (ssize_t)sizeof count);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &count, sizeof count) != (ssize_t)sizeof count)
        count = (struct count){0, 1};
    close(ends[0]);
    if (child > 0 && waitpid(child, &status, 0) == child && status != 0) {
        printf("FAIL part %d: the process has ended with status %#x\n", part, (unsigned)status);
        count.failed += count.failed == 0;
    }
    return count;
}

int main(int argc, char **argv)
{
    struct count sum = {0, 0};
    if (argc > 1 && strcmp(argv[1], "--obey") == 0)
        return obey();
    empty_facts();
    for (int part = 0; part < PARTS; part++) {
        if (!has_wanted_rows(part, argc, argv))
            continue;
        struct count count = run_apart(part, argc, argv);
        sum.passed += count.passed;
        sum.failed += count.failed;
    }
    printf("%d passed, %d failed\n", sum.passed, sum.failed);
    return sum.failed > 0 || sum.passed == 0;
}
