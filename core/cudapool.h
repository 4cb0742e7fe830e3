/*
 * cudapool.h: for programs that want to talk to the preloaded pool.
 *
 * libcudapool_preload.so exports these functions. A program that also runs without the library
 * looks each one up, as dlsym(RTLD_DEFAULT, "cudapool_trim"), or declares it weak. Any thread may
 * call any function at any time, except from a CUDA host function or callback, where CUDA allows no
 * calls. No function holds a lock while the driver works. All sizes are bytes.
 */
#ifndef CUDAPOOL_H
#define CUDAPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The pool's bytes on one device, summed over all contexts of the process. */
struct cudapool_bytes {
    uint64_t live;    /* allocated by the program, counted in block sizes */
    uint64_t cached;  /* free and reusable at once */
    uint64_t pending; /* freed, but the GPU may still be using them */
};

/* Returns 1 where the pool serves this process, 0 where the program runs without it. Starts the
 * pool if nothing has started it yet. */
int cudapool_is_active(void);

/* Releases the cached memory of all devices to the driver and returns the number of bytes released.
 * Cached pinned host memory is released only from contexts that have no work. The call waits for no
 * GPU work; pending memory stays. */
uint64_t cudapool_trim(void);

/* Fills *bytes for the device with this CUDA ordinal. Returns 0, or -1 where there is no pool or
 * bytes is NULL. A device that was never used has zeros. */
int cudapool_get_bytes(int device, struct cudapool_bytes *bytes);

/* A device's peaks since the last reset, or since the pool started. */
struct cudapool_peaks {
    uint64_t live;     /* allocated by the program, in requested bytes. An upper bound where the
                          program used several kinds of memory or contexts, whose separate peaks are
                          added */
    uint64_t reserved; /* live + cached + pending, at one moment */
};

/* cudapool_get_peaks fills *peaks for this device; cudapool_reset_peaks sets the peaks to the
 * current values. Neither changes the numbers in the report. Both return 0, or -1 where there is no
 * pool (or peaks is NULL). The true live peak may be up to 32 MiB higher for each thread or stream.
 * Requests that failed count in neither peak. */
int cudapool_get_peaks(int device, struct cudapool_peaks *peaks);
int cudapool_reset_peaks(int device);

/*
 * Stream-ordered memory: cuMemAllocAsync and its relatives, cudaMallocAsync.
 *
 * A stream is a CUstream or cudaStream_t, named as in the functions without per-thread default
 * streams: NULL is the legacy stream, (void *)2 the calling thread's own. Results are CUresult
 * values; CUDA_SUCCESS is 0.
 */

/* Fills *bytes for one stream of the current context. live: allocated on the stream. cached: freed
 * on the stream, and its work has passed the free. pending: freed on the stream, and its work may
 * not have passed the free yet. Returns 0, or -1 where there is no pool, bytes is NULL or the pool
 * does not know the stream. */
int cudapool_get_stream_bytes(void *stream, struct cudapool_bytes *bytes);

/* Waits, for ten seconds at most, for the work so far of every context with pending frees in a
 * stream's order, so that all streams can reuse the freed memory. Returns the number of streams
 * whose frees are not pending any more; the others keep their pending memory. */
unsigned cudapool_reap(void);

/* Returns the generation of the stream-ordered allocation that begins at this address. Each time
 * the memory is handed out it has a new generation. Returns 0 where there is no such allocation. */
uint64_t cudapool_generation(uint64_t address);

/* Announces that work on a stream will use an allocation. Call it before that work is submitted.
 * The call orders the stream's later work after the earlier uses:
 *
 *   read:  after the last write
 *   write: after the last write and all reads since
 *
 * The allocation itself counts as a write on its stream. cuMemFreeAsync orders its stream after all
 * announced uses. A stream does not wait for its own earlier uses.
 *
 * generation is the value that cudapool_generation returned when the memory was allocated.
 *
 * CUDA_ERROR_INVALID_VALUE: the generation is stale, because the memory was freed or the address
 *   handed out again; nothing has changed.
 * CUDA_ERROR_INVALID_HANDLE: the stream does not exist, or belongs to another device.
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the stream, or one that it would have to wait for, is
 *   being captured; nothing has changed, and cuMemFreeAsync fails in the same way. */
enum cudapool_use { CUDAPOOL_READ = 0, CUDAPOOL_WRITE = 1 };
int cudapool_record_use(uint64_t address, uint64_t generation, void *stream, enum cudapool_use use);

/*
 * Memory of captured graphs, where captures.memory_nodes is "pool". cuMemAllocAsync on a captured
 * stream then takes memory from a pool that belongs to the capture. The memory belongs to the
 * capture's graph.
 *
 * Several captures may share one pool: a later capture reuses memory that an earlier one has freed.
 * That is correct only for graphs that never run at the same time. Whatever a graph of the pool
 * leaves in memory lasts only until another graph of the pool is launched.
 *
 * A pool is named by a number that no other pool ever has. Memory that its graphs use stays theirs
 * until they are destroyed, whatever happens to the pool. Results are CUresult values.
 *
 * CUDA_ERROR_NOT_SUPPORTED: there is no pool in this process, it does not serve captured streams,
 *   or the driver does not number streams (cuStreamGetId, CUDA 12).
 * CUDA_ERROR_INVALID_VALUE: the number names no pool.
 */
typedef uint64_t cudapool_graph_pool;

/* Creates a pool without memory. Returns 0 where none can be created. */
cudapool_graph_pool cudapool_graph_pool_create(void);

/* Captures that begin on the stream from now on use this pool, until another one is named. With
 * pool 0 each capture has a pool of its own, which is the default. A stream that joins a capture
 * through an event uses the pool of that capture.
 *
 * CUDA_ERROR_INVALID_VALUE: the pool is sealed.
 * CUDA_ERROR_INVALID_HANDLE: the handle is not that of a created stream.
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the stream is being captured. */
int cudapool_graph_pool_use(cudapool_graph_pool pool, void *stream);

/* From now on no capture takes memory from the pool, neither one under way nor a later one. */
int cudapool_graph_pool_seal(cudapool_graph_pool pool);

/* Memory that is free in the pool now is not handed out again. It is released when its graphs are
 * destroyed. */
int cudapool_graph_pool_clear(cudapool_graph_pool pool);

/* Fills *bytes. live: allocated by captures and not freed. cached: available to the next capture.
 * pending: freed, and kept only because graphs use it. */
int cudapool_graph_pool_get_bytes(cudapool_graph_pool pool, struct cudapool_bytes *bytes);

/* Seals the pool and invalidates its number. */
int cudapool_graph_pool_destroy(cudapool_graph_pool pool);

/*
 * Device scalars: values in device memory, of 1 to 64 bytes, that are set in stream order. A graph
 * that captured the address reads, at each launch, the value that was last set before the launch on
 * the stream.
 *
 * The program may change its own copy, or set the next value, as soon as cudapool_scalar_set has
 * returned. Each value is copied to the device from a slot of pinned memory, which is reused only
 * after that copy has completed. Once 1024 copies are outstanding in a context, the next call waits
 * for the oldest, for one second at most. Then it takes more pinned memory.
 *
 * A scalar is named by a number that no other scalar ever has. Results are CUresult values.
 */
typedef uint64_t cudapool_scalar;

/* Creates a scalar in the current context; its initial value is undefined. Returns 0 where none can
 * be created: there is no pool or no memory, or a capture is under way and captures.allocate is
 * false. */
cudapool_scalar cudapool_scalar_create(size_t bytes);

/* Returns the scalar's device address, or 0 where the number names no scalar. */
uint64_t cudapool_scalar_address(cudapool_scalar scalar);

/* Sets the scalar to the bytes at value, after all work that the stream has been given so far and
 * before its later work. Where one of these errors is returned, nothing was set:
 *
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the stream is being captured; the capture is not
 *   disturbed.
 * CUDA_ERROR_INVALID_CONTEXT: the current context is not the one in which the scalar was created.
 * CUDA_ERROR_INVALID_VALUE: the number names no scalar.
 * CUDA_ERROR_NOT_SUPPORTED: there is no pool in this process.
 *
 * Any error of the driver's is returned as it is. The value may have been set even so. */
int cudapool_scalar_set(cudapool_scalar scalar, const void *value, void *stream);

/* Frees the scalar, as cuMemFree would. Work that was submitted before may still use it; a graph
 * that is launched later must not.
 *
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a capture is under way and captures.allocate is false;
 *   nothing was done.
 * CUDA_ERROR_INVALID_VALUE: the number names no scalar. */
int cudapool_scalar_destroy(cudapool_scalar scalar);

#ifdef __cplusplus
}
#endif

#endif
