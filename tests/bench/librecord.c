/*
 * A preload that writes down what a program asks of device memory, for worker/replay.c:
 * allocations, frees, launches, waits for a stream or a context, and in which thread and stream
 * each happened. It changes nothing and pools nothing. trace.h has the format.
 *
 *   LD_PRELOAD=librecord.so BENCH_RECORD=FILE [BENCH_RECORD_LIMIT=EVENTS] PROGRAM
 *
 * The first process that allocates makes FILE, and is the one that is recorded. Recording ends with
 * the process, or after so many events (30000). A program may call bench_record_mark(), which it
 * looks up, where one of its steps begins: what lies between the first and the last mark is what a
 * replay repeats.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../driver_api.h"

enum { FIRST_SLOTS = 1024, MAX_STREAMS = 4096, DEFAULT_LIMIT = 30000 };

/* name, parameters, arguments. */
#define LAUNCH_PARAMETERS                                                                          \
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,             \
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,    \
     void **extra)
#define LAUNCH_ARGUMENTS (f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
#define COOPERATIVE_PARAMETERS                                                                     \
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,             \
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters)
#define COOPERATIVE_ARGUMENTS (f, gx, gy, gz, bx, by, bz, shared, stream, parameters)
#define LAUNCH_EX_PARAMETERS                                                                       \
    (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
#define LAUNCH_EX_ARGUMENTS (config, f, parameters, extra)

#define REPLACED(F)                                                                                \
    F(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                        \
    F(cuMemAllocPitch_v2,                                                                          \
      (CUdeviceptr * address, size_t * pitch, size_t width, size_t height, unsigned int element))  \
    F(cuMemFree_v2, (CUdeviceptr address))                                                         \
    F(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))                     \
    F(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream))                \
    F(cuMemFreeAsync, (CUdeviceptr address, CUstream stream))                                      \
    F(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream))                                 \
    F(cuLaunchKernel, LAUNCH_PARAMETERS)                                                           \
    F(cuLaunchKernel_ptsz, LAUNCH_PARAMETERS)                                                      \
    F(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS)                                           \
    F(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS)                                      \
    F(cuLaunchKernelEx, LAUNCH_EX_PARAMETERS)                                                      \
    F(cuLaunchKernelEx_ptsz, LAUNCH_EX_PARAMETERS)                                                 \
    F(cuStreamSynchronize, (CUstream stream))                                                      \
    F(cuStreamSynchronize_ptsz, (CUstream stream))                                                 \
    F(cuCtxSynchronize, (void))

#define PRELOAD "record"
#include "replaced.h"

/* --- the trace --------------------------------------------------------------------------------*/

struct block {
    CUdeviceptr address;
    unsigned int slot;
    bool used;
};

/* A stream by its handle; the calling thread's own by its thread too. */
struct stream {
    CUstream handle;
    int thread;
};

/* All of it under lock, which guards nothing else; no driver call is made under it. */
static struct {
    pthread_mutex_t lock;
    enum { NOT_YET, OPEN, CLOSED } state;
    FILE *file;
    unsigned long events, limit;
    int threads, thread; /* seen so far; of the last event */
    struct stream streams[MAX_STREAMS];
    unsigned int stream_count;
    unsigned int launches, launch_stream; /* in a row, not written yet */
    struct block *blocks;                 /* open addressing; capacity is a power of two */
    size_t capacity, live;
    unsigned int *free_slots;
    size_t free_slot_count, slot_count;
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER, .thread = -1};

static __thread int this_thread = -1;

static void open_trace(void)
{
    const char *path = getenv("BENCH_RECORD"), *limit = getenv("BENCH_RECORD_LIMIT");
    trace.state = CLOSED;
    if (path == NULL)
        return;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) {
        if (errno != EEXIST)
            fprintf(stderr, "record: %s: %s\n", path, strerror(errno));
        return;
    }
    trace.file = fdopen(file, "w");
    trace.limit = limit != NULL ? strtoul(limit, NULL, 10) : DEFAULT_LIMIT;
    trace.state = OPEN;
    fprintf(trace.file, "cudapool-trace 1\n");
}

static void write_launches(void)
{
    if (trace.launches > 0)
        fprintf(trace.file, "l %u %u\n", trace.launch_stream, trace.launches);
    trace.launches = 0;
}

static void close_trace(void)
{
    write_launches();
    fclose(trace.file);
    trace.state = CLOSED;
}

/* True, with the lock taken and the thread named, where the event is to be written. */
static bool begin_event(void)
{
    pthread_mutex_lock(&trace.lock);
    if (trace.state == NOT_YET)
        open_trace();
    if (trace.state == OPEN && trace.events++ >= trace.limit)
        close_trace();
    if (trace.state != OPEN) {
        pthread_mutex_unlock(&trace.lock);
        return false;
    }
    if (this_thread < 0)
        this_thread = trace.threads++;
    if (this_thread != trace.thread) {
        write_launches();
        fprintf(trace.file, "t %d\n", this_thread);
        trace.thread = this_thread;
    }
    return true;
}

static void end_event(void)
{
    pthread_mutex_unlock(&trace.lock);
}

static unsigned int number_of_stream(CUstream handle)
{
    bool own = handle == CU_STREAM_PER_THREAD;
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return 0;
    for (unsigned int i = 0; i < trace.stream_count; i++)
        if (trace.streams[i].handle == handle && (!own || trace.streams[i].thread == this_thread))
            return i + 1;
    if (trace.stream_count == MAX_STREAMS)
        return MAX_STREAMS;
    trace.streams[trace.stream_count] = (struct stream){handle, this_thread};
    return ++trace.stream_count;
}

static CUstream of_this_thread(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

static size_t first_place(CUdeviceptr address)
{
    return (size_t)((address * 0x9e3779b97f4a7c15u) >> 32) & (trace.capacity - 1);
}

static void put_block(struct block block)
{
    size_t place = first_place(block.address);
    while (trace.blocks[place].used)
        place = (place + 1) & (trace.capacity - 1);
    trace.blocks[place] = block;
}

static void grow(void)
{
    struct block *old = trace.blocks;
    size_t count = trace.capacity;
    trace.capacity = count > 0 ? 2 * count : FIRST_SLOTS;
    trace.blocks = calloc(trace.capacity, sizeof *trace.blocks);
    trace.free_slots = realloc(trace.free_slots, trace.capacity * sizeof *trace.free_slots);
    if (trace.blocks == NULL || trace.free_slots == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        if (old[i].used)
            put_block(old[i]);
    free(old);
}

static unsigned int remember(CUdeviceptr address)
{
    if (2 * trace.live >= trace.capacity)
        grow();
    unsigned int slot = trace.free_slot_count > 0 ? trace.free_slots[--trace.free_slot_count]
                                                  : (unsigned int)trace.slot_count++;
    put_block((struct block){address, slot, true});
    trace.live++;
    return slot;
}

/* Takes the block out, and moves up what came after it in its place's row. */
static bool forget(CUdeviceptr address, unsigned int *slot)
{
    if (trace.live == 0)
        return false;
    size_t place = first_place(address);
    while (trace.blocks[place].used && trace.blocks[place].address != address)
        place = (place + 1) & (trace.capacity - 1);
    if (!trace.blocks[place].used)
        return false;
    *slot = trace.blocks[place].slot;
    trace.free_slots[trace.free_slot_count++] = *slot;
    trace.blocks[place].used = false;
    trace.live--;
    for (place = (place + 1) & (trace.capacity - 1); trace.blocks[place].used;
         place = (place + 1) & (trace.capacity - 1)) {
        struct block moved = trace.blocks[place];
        trace.blocks[place].used = false;
        put_block(moved);
    }
    return true;
}

static void allocated(CUresult result, CUdeviceptr address, size_t bytes)
{
    if (result != CUDA_SUCCESS || address == 0 || !begin_event())
        return;
    write_launches();
    fprintf(trace.file, "a %u %zu\n", remember(address), bytes);
    end_event();
}

static void allocated_in_stream(CUresult result, CUdeviceptr address, size_t bytes, CUstream stream)
{
    if (result != CUDA_SUCCESS || address == 0 || !begin_event())
        return;
    write_launches();
    fprintf(trace.file, "A %u %zu %u\n", remember(address), bytes, number_of_stream(stream));
    end_event();
}

/* Before the free: afterwards another thread may get the address. */
static void frees(CUdeviceptr address)
{
    unsigned int slot;
    if (!begin_event())
        return;
    write_launches();
    if (forget(address, &slot))
        fprintf(trace.file, "f %u\n", slot);
    end_event();
}

static void frees_in_stream(CUdeviceptr address, CUstream stream)
{
    unsigned int slot;
    if (!begin_event())
        return;
    write_launches();
    if (forget(address, &slot))
        fprintf(trace.file, "F %u %u\n", slot, number_of_stream(stream));
    end_event();
}

static void launches(CUstream stream)
{
    if (!begin_event())
        return;
    unsigned int number = number_of_stream(stream);
    if (trace.launches > 0 && trace.launch_stream != number)
        write_launches();
    trace.launch_stream = number;
    trace.launches++;
    end_event();
}

static void waits_for_stream(CUstream stream)
{
    if (!begin_event())
        return;
    write_launches();
    fprintf(trace.file, "s %u\n", number_of_stream(stream));
    end_event();
}

static void writes_line(const char *line)
{
    if (!begin_event())
        return;
    write_launches();
    fputs(line, trace.file);
    end_event();
}

__attribute__((visibility("default"))) void bench_record_mark(void);
void bench_record_mark(void)
{
    writes_line("m\n");
}

__attribute__((destructor)) static void the_process_ends(void)
{
    pthread_mutex_lock(&trace.lock);
    if (trace.state == OPEN)
        close_trace();
    pthread_mutex_unlock(&trace.lock);
}

/* --- the functions ----------------------------------------------------------------------------*/

REPLACE(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))
{
    CUresult result = real()->cuMemAlloc_v2(address, bytes);
    allocated(result, result == CUDA_SUCCESS ? *address : 0, bytes);
    return result;
}

REPLACE(cuMemAllocPitch_v2,
        (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned int element))
{
    CUresult result = real()->cuMemAllocPitch_v2(address, pitch, width, height, element);
    allocated(result, result == CUDA_SUCCESS ? *address : 0,
              result == CUDA_SUCCESS ? *pitch * height : 0);
    return result;
}

REPLACE(cuMemFree_v2, (CUdeviceptr address))
{
    frees(address);
    return real()->cuMemFree_v2(address);
}

REPLACE(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    CUresult result = real()->cuMemAllocAsync(address, bytes, stream);
    allocated_in_stream(result, result == CUDA_SUCCESS ? *address : 0, bytes, stream);
    return result;
}

REPLACE(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    CUresult result = real()->cuMemAllocAsync_ptsz(address, bytes, stream);
    allocated_in_stream(result, result == CUDA_SUCCESS ? *address : 0, bytes,
                        of_this_thread(stream));
    return result;
}

REPLACE(cuMemFreeAsync, (CUdeviceptr address, CUstream stream))
{
    frees_in_stream(address, stream);
    return real()->cuMemFreeAsync(address, stream);
}

REPLACE(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream))
{
    frees_in_stream(address, of_this_thread(stream));
    return real()->cuMemFreeAsync_ptsz(address, stream);
}

REPLACE(cuLaunchKernel, LAUNCH_PARAMETERS)
{
    launches(stream);
    return real()->cuLaunchKernel LAUNCH_ARGUMENTS;
}

REPLACE(cuLaunchKernel_ptsz, LAUNCH_PARAMETERS)
{
    launches(of_this_thread(stream));
    return real()->cuLaunchKernel_ptsz LAUNCH_ARGUMENTS;
}

REPLACE(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS)
{
    launches(stream);
    return real()->cuLaunchCooperativeKernel COOPERATIVE_ARGUMENTS;
}

REPLACE(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS)
{
    launches(of_this_thread(stream));
    return real()->cuLaunchCooperativeKernel_ptsz COOPERATIVE_ARGUMENTS;
}

REPLACE(cuLaunchKernelEx, LAUNCH_EX_PARAMETERS)
{
    launches(config->hStream);
    return real()->cuLaunchKernelEx LAUNCH_EX_ARGUMENTS;
}

REPLACE(cuLaunchKernelEx_ptsz, LAUNCH_EX_PARAMETERS)
{
    launches(of_this_thread(config->hStream));
    return real()->cuLaunchKernelEx_ptsz LAUNCH_EX_ARGUMENTS;
}

REPLACE(cuStreamSynchronize, (CUstream stream))
{
    waits_for_stream(stream);
    return real()->cuStreamSynchronize(stream);
}

REPLACE(cuStreamSynchronize_ptsz, (CUstream stream))
{
    waits_for_stream(of_this_thread(stream));
    return real()->cuStreamSynchronize_ptsz(stream);
}

REPLACE(cuCtxSynchronize, (void))
{
    writes_line("c\n");
    return real()->cuCtxSynchronize();
}
