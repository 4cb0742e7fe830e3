/*
 * Rows about pinned host memory whose calls a driver may not survive, or that leave a process
 * changed: another process makes them, with the pool where this one has it.
 *
 * That process follows orders (processes.c): an order's number is the place of a probe in the table
 * below. Where it ends instead of answering, the answer is -1, and the next order starts another.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "pinned.h"
#include "processes.h"

enum { PAGE = 4096, SMALL = 65536, LARGE = 4 << 20 };

/* --- frees -------------------------------------------------------------------------------------*/

static double frees_null(void)
{
    return cuMemFreeHost(NULL);
}

static double frees_twice(void)
{
    void *block = allocate_host(SMALL, 0);
    free_host(block);
    return cuMemFreeHost(block);
}

static double frees_large_twice(void)
{
    void *block = allocate_host(16 * MIB, 0);
    free_host(block);
    return cuMemFreeHost(block);
}

static double frees_inside(void)
{
    char *block = allocate_host(SMALL, 0);
    return cuMemFreeHost(block + PAGE);
}

/* The block is as good as before. */
static double frees_inside_and_then_it(void)
{
    char *block = allocate_host(SMALL, 0);
    cuMemFreeHost(block + PAGE);
    memset(block, 1, SMALL);
    return cuMemFreeHost(block);
}

static double frees_ordinary(void)
{
    return cuMemFreeHost(malloc(SMALL));
}

static double frees_device_memory(void)
{
    return cuMemFreeHost((void *)(uintptr_t)allocate(SMALL));
}

static double frees_device_memory_and_then_rightly(void)
{
    CUdeviceptr block = allocate(SMALL);
    cuMemFreeHost((void *)(uintptr_t)block);
    return cuMemFree_v2(block);
}

static double frees_managed_memory(void)
{
    CUdeviceptr block = 0;
    SUCCEEDS(cuMemAllocManaged(&block, SMALL, CU_MEM_ATTACH_GLOBAL));
    return cuMemFreeHost((void *)(uintptr_t)block);
}

static void *map(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static double frees_registered(void)
{
    void *own = map(SMALL);
    SUCCEEDS(cuMemHostRegister_v2(own, SMALL, 0));
    return cuMemFreeHost(own);
}

static double frees_registered_and_then_unregisters(void)
{
    void *own = map(SMALL);
    SUCCEEDS(cuMemHostRegister_v2(own, SMALL, 0));
    cuMemFreeHost(own);
    return cuMemHostUnregister(own);
}

static double allocates_to_nowhere(void)
{
    return cuMemHostAlloc(NULL, PAGE, 0);
}

static double allocates_to_nowhere_v2(void)
{
    return cuMemAllocHost_v2(NULL, PAGE);
}

/* --- contexts ----------------------------------------------------------------------------------*/

static CUcontext second_context(void)
{
    CUcontext context = NULL;
    SUCCEEDS(cuCtxCreate_v2(&context, 0, gpu.device));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    return context;
}

static double free_in_second_context(unsigned int flags)
{
    void *block = allocate_host(SMALL, flags);
    SUCCEEDS(cuCtxSetCurrent(second_context()));
    double result = cuMemFreeHost(block);
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    return result;
}

static double frees_elsewhere(void)
{
    return free_in_second_context(0);
}

static double frees_portable_elsewhere(void)
{
    return free_in_second_context(CU_MEMHOSTALLOC_PORTABLE);
}

static void *destroy_context(void *context)
{
    SUCCEEDS(cuCtxDestroy_v2(context));
    return NULL;
}

static double frees_in_a_destroyed_context(void)
{
    void *block = allocate_host(SMALL, 0);
    CUcontext context = second_context();
    pthread_t thread;
    SUCCEEDS(cuCtxSetCurrent(context));
    pthread_create(&thread, NULL, destroy_context, context);
    pthread_join(thread, NULL);
    double result = cuMemFreeHost(block);
    cuCtxSetCurrent(gpu.context);
    return result;
}

struct free_in_thread {
    CUcontext context;
    void *block;
    CUresult result;
};

static void *free_in_thread(void *argument)
{
    struct free_in_thread *call = argument;
    SUCCEEDS(cuCtxSetCurrent(call->context));
    call->result = cuMemFreeHost(call->block);
    return NULL;
}

static double freed_in_thread(CUcontext context)
{
    struct free_in_thread call = {.context = context, .block = allocate_host(SMALL, 0)};
    pthread_t thread;
    pthread_create(&thread, NULL, free_in_thread, &call);
    pthread_join(thread, NULL);
    return call.result;
}

static double frees_in_another_thread(void)
{
    return freed_in_thread(gpu.context);
}

static double frees_without_context(void)
{
    return freed_in_thread(NULL);
}

/* --- other calls -------------------------------------------------------------------------------*/

static double frees_as_device_memory(void)
{
    return cuMemFree_v2(address_of(allocate_host(SMALL, 0)));
}

static double frees_as_device_memory_and_then_rightly(void)
{
    void *block = allocate_host(SMALL, 0);
    cuMemFree_v2(address_of(block));
    return cuMemFreeHost(block);
}

static double frees_in_a_streams_order(void)
{
    CUresult result = cuMemFreeAsync(address_of(allocate_host(SMALL, 0)), gpu.a);
    cuStreamSynchronize(gpu.a);
    return result;
}

static double frees_in_a_streams_order_and_then_rightly(void)
{
    void *block = allocate_host(SMALL, 0);
    cuMemFreeAsync(address_of(block), gpu.a);
    cuStreamSynchronize(gpu.a);
    return cuMemFreeHost(block);
}

/* --- destroyed contexts ------------------------------------------------------------------------*/

/* What was allocated in a context that is gone. */
static void *widowed_block(unsigned int flags)
{
    CUcontext context = second_context();
    void *block;
    SUCCEEDS(cuCtxSetCurrent(context));
    block = allocate_host(SMALL, flags);
    memset(block, 1, SMALL);
    SUCCEEDS(cuCtxDestroy_v2(context));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    return block;
}

/* Without a fault where there is nothing. */
static bool is_readable(const void *block)
{
    int ends[2];
    bool readable;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    readable = write(ends[1], block, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return readable;
}

static double widow_is_freed(void)
{
    return cuMemFreeHost(widowed_block(0));
}

static double portable_widow_is_freed(void)
{
    return cuMemFreeHost(widowed_block(CU_MEMHOSTALLOC_PORTABLE));
}

static double widow_is_known(void)
{
    unsigned int flags;
    return cuMemHostGetFlags(&flags, widowed_block(0));
}

static double portable_widow_is_known(void)
{
    unsigned int flags;
    return cuMemHostGetFlags(&flags, widowed_block(CU_MEMHOSTALLOC_PORTABLE));
}

static double widow_is_readable(void)
{
    return is_readable(widowed_block(0));
}

static double portable_widow_is_readable(void)
{
    return is_readable(widowed_block(CU_MEMHOSTALLOC_PORTABLE));
}

static double freed_is_readable(void)
{
    char *keeper = allocate_host(PAGE, 0), *block = allocate_host(SMALL, 0);
    free_host(block);
    double readable = is_readable(block);
    free_host(keeper);
    return readable;
}

static double freed_large_is_readable(void)
{
    void *block = allocate_host(16 * MIB, 0);
    free_host(block);
    return is_readable(block);
}

/* The process needs another context afterwards. */
static double reset_leaves_readable(void)
{
    void *block = allocate_host(SMALL, 0);
    SUCCEEDS(cuDevicePrimaryCtxReset_v2(gpu.device));
    return is_readable(block);
}

static double frees_after_a_reset(void)
{
    void *block = allocate_host(SMALL, 0);
    SUCCEEDS(cuDevicePrimaryCtxReset_v2(gpu.device));
    SUCCEEDS(cuDevicePrimaryCtxRetain(&gpu.context, gpu.device));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    return cuMemFreeHost(block);
}

/* --- registering -------------------------------------------------------------------------------*/

static double register_part(size_t offset, size_t bytes)
{
    char *block = allocate_host(SMALL, 0);
    return cuMemHostRegister_v2(block + offset, bytes, CU_MEMHOSTALLOC_PORTABLE);
}

static double registers_block(void)
{
    return register_part(0, SMALL);
}

static double registers_its_start(void)
{
    return register_part(0, PAGE);
}

static double registers_its_middle(void)
{
    return register_part((size_t)2 * PAGE, PAGE);
}

static double unregisters(void)
{
    return cuMemHostUnregister(allocate_host(SMALL, 0));
}

static double unregisters_and_then_frees(void)
{
    void *block = allocate_host(SMALL, 0);
    cuMemHostUnregister(block);
    return cuMemFreeHost(block);
}

static double registers_and_then_frees(void)
{
    void *block = allocate_host(SMALL, 0);
    cuMemHostRegister_v2(block, SMALL, CU_MEMHOSTALLOC_PORTABLE);
    return cuMemFreeHost(block);
}

/* --- unregistering an address inside -----------------------------------------------------------*/

static void *map_and_register(void)
{
    void *own = map(SMALL);
    SUCCEEDS(cuMemHostRegister_v2(own, SMALL, 0));
    return own;
}

static double unregisters_from(size_t offset)
{
    return cuMemHostUnregister((char *)map_and_register() + offset);
}

static double unregisters_one_byte_inside(void)
{
    return unregisters_from(1);
}

static double unregisters_one_page_inside(void)
{
    return unregisters_from(PAGE);
}

static double unregisters_the_last_byte(void)
{
    return unregisters_from(SMALL - 1);
}

static double unregisters_after_an_address_inside(void)
{
    char *own = map_and_register();
    cuMemHostUnregister(own + PAGE);
    return cuMemHostUnregister(own);
}

static double asks_for_flags_after_an_address_inside(void)
{
    char *own = map_and_register();
    unsigned int flags;
    cuMemHostUnregister(own + PAGE);
    return cuMemHostGetFlags(&flags, own);
}

static double unregisters_inside_a_block(void)
{
    return cuMemHostUnregister((char *)allocate_host(SMALL, 0) + PAGE);
}

static double unregisters_inside_a_large_block(void)
{
    return cuMemHostUnregister((char *)allocate_host(LARGE, 0) + LARGE / 2);
}

static double unregisters_inside_a_block_and_then_frees(void)
{
    char *block = allocate_host(LARGE, 0);
    cuMemHostUnregister(block + LARGE / 2);
    return cuMemFreeHost(block);
}

static double unregisters_ordinary(void)
{
    return cuMemHostUnregister(map(SMALL));
}

static double unregisters_null(void)
{
    return cuMemHostUnregister(NULL);
}

/* --- the table ---------------------------------------------------------------------------------*/

enum topic {
    MISUSE,
    LEFT,
    CONTEXTS,
    OTHER_CALLS,
    DESTROYED,
    REGISTERED,
    UNREGISTERED,
    FORK_NOTES,
    FORK_FACTS,
    LIMITS,
    KERNELS,
    COPIES
};

/* What a GPU has answered; ANY: none has, or nobody need know. */
enum known {
    ANY = -100,
    OK = CUDA_SUCCESS,
    INVALID = CUDA_ERROR_INVALID_VALUE,
    GONE = CUDA_ERROR_CONTEXT_IS_DESTROYED
};

static const struct probe {
    enum topic topic;
    int known; /* one of those, or how many words are wrong */
    const char *name;
    double (*answer)(void);
} probes[] = {
    {MISUSE, OK, "cuMemFreeHost of NULL", frees_null},
    {MISUSE, INVALID, "cuMemFreeHost a second time", frees_twice},
    {MISUSE, INVALID, "cuMemFreeHost of a large block a second time", frees_large_twice},
    {MISUSE, INVALID, "cuMemFreeHost inside a block", frees_inside},
    {MISUSE, OK, "cuMemFreeHost of a block after one inside it", frees_inside_and_then_it},
    {MISUSE, INVALID, "cuMemFreeHost of ordinary memory", frees_ordinary},
    {MISUSE, INVALID, "cuMemFreeHost of device memory", frees_device_memory},
    {MISUSE, OK, "cuMemFree of device memory after that", frees_device_memory_and_then_rightly},
    {MISUSE, INVALID, "cuMemFreeHost of managed memory", frees_managed_memory},
    {MISUSE, INVALID, "cuMemFreeHost of registered memory", frees_registered},
    {MISUSE, OK, "cuMemHostUnregister after that", frees_registered_and_then_unregisters},
    {MISUSE, INVALID, "cuMemHostAlloc to nowhere", allocates_to_nowhere},
    {MISUSE, INVALID, "cuMemAllocHost to nowhere", allocates_to_nowhere_v2},
    {LEFT, ANY, "freed host memory is readable, 1 for yes", freed_is_readable},
    {LEFT, ANY, "a large freed host block is readable, 1 for yes", freed_large_is_readable},
    {CONTEXTS, OK, "cuMemFreeHost in another context", frees_elsewhere},
    {CONTEXTS, OK, "cuMemFreeHost of portable memory in another context", frees_portable_elsewhere},
    {CONTEXTS, OK, "cuMemFreeHost in no context", frees_without_context},
    {CONTEXTS, GONE, "cuMemFreeHost in a destroyed context", frees_in_a_destroyed_context},
    {CONTEXTS, OK, "cuMemFreeHost in another thread", frees_in_another_thread},
    {OTHER_CALLS, INVALID, "cuMemFree of host memory", frees_as_device_memory},
    {OTHER_CALLS, OK, "cuMemFreeHost after that", frees_as_device_memory_and_then_rightly},
    {OTHER_CALLS, INVALID, "cuMemFreeAsync of host memory", frees_in_a_streams_order},
    {OTHER_CALLS, OK, "cuMemFreeHost after cuMemFreeAsync",
     frees_in_a_streams_order_and_then_rightly},
    {DESTROYED, INVALID, "cuMemFreeHost after the end of its context", widow_is_freed},
    {DESTROYED, INVALID, "cuMemFreeHost after the end of its context, portable",
     portable_widow_is_freed},
    {DESTROYED, INVALID, "cuMemHostGetFlags after the end of its context", widow_is_known},
    {DESTROYED, INVALID, "cuMemHostGetFlags after the end of its context, portable",
     portable_widow_is_known},
    {DESTROYED, ANY, "it is readable after the end of its context", widow_is_readable},
    {DESTROYED, ANY, "it is readable after the end of its context, portable",
     portable_widow_is_readable},
    {REGISTERED, INVALID, "cuMemHostRegister of a block", registers_block},
    {REGISTERED, INVALID, "cuMemHostRegister of a block's start", registers_its_start},
    {REGISTERED, INVALID, "cuMemHostRegister of a block's middle", registers_its_middle},
    {REGISTERED, INVALID, "cuMemHostUnregister of a block", unregisters},
    {REGISTERED, OK, "cuMemFreeHost of a block after that", unregisters_and_then_frees},
    {REGISTERED, OK, "cuMemFreeHost of a block that was to be registered",
     registers_and_then_frees},
    {UNREGISTERED, INVALID, "cuMemHostUnregister one byte inside registered memory",
     unregisters_one_byte_inside},
    {UNREGISTERED, INVALID, "cuMemHostUnregister one page inside registered memory",
     unregisters_one_page_inside},
    {UNREGISTERED, INVALID, "cuMemHostUnregister of registered memory's last byte",
     unregisters_the_last_byte},
    {UNREGISTERED, OK, "cuMemHostUnregister of the start, after an address inside",
     unregisters_after_an_address_inside},
    {UNREGISTERED, OK, "cuMemHostGetFlags of the start, after cuMemHostUnregister inside",
     asks_for_flags_after_an_address_inside},
    {UNREGISTERED, INVALID, "cuMemHostUnregister inside a block", unregisters_inside_a_block},
    {UNREGISTERED, INVALID, "cuMemHostUnregister inside a large block",
     unregisters_inside_a_large_block},
    {UNREGISTERED, OK, "cuMemFreeHost of a large block, after cuMemHostUnregister inside",
     unregisters_inside_a_block_and_then_frees},
    {UNREGISTERED, INVALID, "cuMemHostUnregister of NULL", unregisters_null},
    {UNREGISTERED, ANY, "cuMemHostUnregister of ordinary memory", unregisters_ordinary},
    {FORK_NOTES, ANY,
     "a child reads its parent's memory (0: sees it, 1: other bytes, -10 and less: a signal)",
     child_reads},
    {FORK_NOTES, ANY, "cuMemFreeHost in a child (126: a large number, -10 and less: a signal)",
     child_frees},
    {FORK_FACTS, 0, "words wrong that the parent wrote after a child had read",
     parent_writes_after_child_reads},
    {FORK_FACTS, 0, "words wrong that the parent wrote after a child had called cuMemFreeHost",
     parent_writes_after_child_frees},
    {LIMITS, OK, "cuMemHostAlloc of 4 KiB with RLIMIT_MEMLOCK 0", allocates_small_without_locks},
    {LIMITS, OK, "cuMemHostAlloc of 16 MiB with RLIMIT_MEMLOCK 0", allocates_large_without_locks},
    {LIMITS, OK, "cuMemHostRegister with RLIMIT_MEMLOCK 0", registers_without_locks},
    {KERNELS, 0, "words that another context's kernels got wrong", kernels_elsewhere_use_it},
    {KERNELS, 0, "words that another context's kernels got wrong, portable",
     kernels_elsewhere_use_portable},
    {KERNELS, ANY, "words that another device's kernels got wrong (-3: there is none)",
     kernels_of_another_device_use_it},
    {COPIES, ANY, "cuMemFreeHost beside another context's copy of 64 KiB of it",
     free_beside_small_copy},
    {COPIES, ANY, "cuMemFreeHost beside another context's copy of 16 MiB of it",
     free_beside_large_copy},
    {COPIES, ANY, "cuMemFreeHost beside another context's copy of portable 16 MiB",
     free_beside_portable_copy},
    /* Last, since the first loses the process's context. */
    {DESTROYED, INVALID, "cuMemFreeHost after a reset of the primary context", frees_after_a_reset},
    {DESTROYED, ANY, "it is readable after a reset of the primary context", reset_leaves_readable},
};
enum { PROBES = sizeof probes / sizeof *probes };

/* Each order has its time; between orders the process lives as long as who gives them. */
enum { ORDER_LASTS_S = 20 };

double follow_pinned_order(size_t number)
{
    const struct rlimit no_core = {0, 0};
    double answer;
    alarm(ORDER_LASTS_S);
    setrlimit(RLIMIT_CORE, &no_core);
    answer = number < PROBES ? probes[number].answer() : -2;
    if (has_failed())
        fprintf(stderr, "%s: its preparation has failed: %s\n", probes[number].name,
                failure_of_row());
    alarm(0);
    return has_failed() ? -2 : answer;
}

/* What the copy of a freed block comes to is noted, since nobody may count on it. A free that gives
 * nothing back to the system does not wait for the copy. */
static void tell_copy(const struct probe *probe, double answer)
{
    const char *name = probe->name;
    static const char *const calls[COPY_CALLS] = {
        "the copy",          "cuMemFreeHost", "the other context's end of work",
        "its own context's", "the next free", "cuCtxDestroy",
    };
    unsigned int code = answer > 0 ? (unsigned int)(answer / COPY_REFUSED) : 0;
    double ms = answer - (double)code * COPY_REFUSED;
    note("%s: %.1f ms behind work of %d ms", name, ms, HOST_WORK_MS);
    for (unsigned int i = 0; i < COPY_CALLS; i++)
        if ((code / 1000) >> i & 1)
            note("%s: %s fails; the first answer is %s", name, calls[i], name_of(code % 1000));
    if (probe->answer == free_beside_small_copy && code == 0 && answer >= 0)
        TOOK(answer, HOST_WORK_MS, false);
}

/* The process stays for the next row, since starting one takes a GPU a second; the rows that spoil
 * it, and the last, end it. */
static void tell_topic(enum topic topic)
{
    for (size_t i = 0; i < PROBES; i++) {
        double answer;
        if (probes[i].topic != topic)
            continue;
        if (!ask_helper("pinned", i, &answer))
            break;
        if (answer == -2) {
            fail("%s: its preparation has failed in the other process", probes[i].name);
            end_helper();
        }
        if (topic == COPIES) {
            tell_copy(&probes[i], answer);
            end_helper();
        } else if (topic == LEFT || topic == FORK_NOTES)
            note("%s: %.0f", probes[i].name, answer);
        else if (probes[i].known == ANY)
            fact((long long)answer, "%s", probes[i].name);
        else
            known_fact((long long)answer, probes[i].known, "%s", probes[i].name);
    }
}

/* --- rows --------------------------------------------------------------------------------------*/

void host_frees_that_nobody_may_make(void)
{
    tell_topic(MISUSE);
}

/* Whether a mapping stays: a pool may keep one. */
void freed_host_memory_may_stay(void)
{
    tell_topic(LEFT);
}

/* What a thread can ask about its current context, which another has destroyed, and what it can
 * free there. */
void destroyed_contexts_can_be_asked(void)
{
    CUcontext context = second_context(), current;
    CUdeviceptr memory = 0;
    CUdevice device;
    unsigned int flags;
    unsigned long long id;
    void *block = allocate_host(SMALL, 0);
    pthread_t thread;
    SUCCEEDS(cuMemAlloc_v2(&memory, SMALL));
    SUCCEEDS(cuCtxSetCurrent(context));
    pthread_create(&thread, NULL, destroy_context, context);
    pthread_join(thread, NULL);
    EXPECT(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT(cuCtxGetDevice(&device), CUDA_SUCCESS);
    EXPECT(cuCtxGetFlags(&flags), CUDA_SUCCESS);
    EXPECT(cuCtxGetId(context, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuMemFree_v2(0), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuMemFree_v2(memory), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuMemFreeHost(block), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    EXPECT(cuMemFree_v2(memory), CUDA_SUCCESS);
    EXPECT(cuMemFreeHost(block), CUDA_SUCCESS);
}

void host_frees_in_other_contexts(void)
{
    tell_topic(CONTEXTS);
}

void host_frees_by_other_calls(void)
{
    tell_topic(OTHER_CALLS);
}

void host_memory_of_destroyed_contexts(void)
{
    tell_topic(DESTROYED);
    end_helper();
}

void host_memory_is_registered(void)
{
    tell_topic(REGISTERED);
}

void host_memory_is_unregistered_by_its_address(void)
{
    tell_topic(UNREGISTERED);
}

void host_memory_after_a_fork(void)
{
    tell_topic(FORK_NOTES);
    tell_topic(FORK_FACTS);
}

void host_memory_needs_no_limit(void)
{
    tell_topic(LIMITS);
    end_helper();
}

void other_contexts_use_host_memory(void)
{
    tell_topic(KERNELS);
}

void host_free_beside_copies_of_other_contexts(void)
{
    tell_topic(COPIES);
    end_helper();
}
