/*
 * cudapool.h: for programs that want to talk to the pool that was preloaded in front of them.
 *
 * The functions are exported by libcudapool_preload.so. A program that also runs without it looks
 * them up: dlsym(RTLD_DEFAULT, "cudapool_trim"), or declares them weak. All may be called by any
 * thread at any time, except from a host function or callback of CUDA, where CUDA allows no calls;
 * none of them holds a lock while the driver works. Sizes are bytes.
 */
#ifndef CUDAPOOL_H
#define CUDAPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one device in the pool's hands, all contexts of the process together. */
struct cudapool_bytes {
    uint64_t live;    /* held by the program, as the sizes of blocks */
    uint64_t cached;  /* free and reusable at once */
    uint64_t pending; /* freed, but the GPU may still be using them */
};

/* 1 where the pool serves this process, 0 where the program runs without it. Starts the pool if
 * nothing has yet. */
int cudapool_is_active(void);

/* Gives all cached memory of all devices back to the driver, and that of the host, as far as its
 * contexts have no work, without waiting for work on the GPU; pending memory stays. Returns the
 * bytes given back. */
uint64_t cudapool_trim(void);

/* Fills *bytes for the memory of the device with this CUDA ordinal. 0, or -1 where there is no pool
 * or bytes is NULL. A device that was never used has zeros. */
int cudapool_get_bytes(int device, struct cudapool_bytes *bytes);

/* The most that a device had since its peaks were begun anew, or since the pool began. */
struct cudapool_peaks {
    uint64_t live;     /* held by the program, as it asked for it: at most, where it used several
                          kinds of memory or contexts, whose peaks are added */
    uint64_t reserved; /* live, cached and pending together, at one time */
};

/* Fills *peaks for this device, and begins them anew with what there is now; neither changes what
 * the report tells. 0, or -1 as above. live is what the pool saw: for each thread, or stream, up to
 * 32 MiB more may have been held. What was asked for and refused is in neither. */
int cudapool_get_peaks(int device, struct cudapool_peaks *peaks);
int cudapool_reset_peaks(int device);

/*
 * Stream-ordered memory: cuMemAllocAsync and its relatives, cudaMallocAsync.
 *
 * A stream is a CUstream or cudaStream_t, named as in the functions without per-thread default
 * streams: NULL is the legacy stream, (void *)2 the calling thread's own. Results are CUresult
 * values; CUDA_SUCCESS is 0.
 */

/* The same bytes for one stream of the current context: live, those allocated on it; cached and
 * pending, those freed on it that its work has passed, or may not have passed yet. 0, or -1 where
 * the pool has not met the stream. */
int cudapool_get_stream_bytes(void *stream, struct cudapool_bytes *bytes);

/* Waits for the streams that have pending frees, so that those are free for all streams: like any
 * synchronise, for all of their work so far. Returns how many streams were waited for; the others
 * keep what they have for the next time. */
unsigned cudapool_reap(void);

/* The generation of the stream-ordered allocation that begins at this address: another one each
 * time that memory is handed out. 0: there is none. */
uint64_t cudapool_generation(uint64_t address);

/* Tells of a use by a stream, before its work is submitted, and puts the stream's later work behind
 * the uses that it must come after: a read behind the last write, a write behind the last write and
 * all reads since. The allocation counts as a write on its stream, and cuMemFreeAsync puts its
 * stream behind all that was told. A use by the same stream is not waited for. generation: as
 * cudapool_generation gave it when the memory was allocated; where it is stale (the memory was
 * freed, or the address given out again) the answer is CUDA_ERROR_INVALID_VALUE, and nothing is
 * changed. CUDA_ERROR_INVALID_HANDLE for a stream that is none, or another device's;
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED where a capture has the stream, or one that it would have
 * to wait for: nothing is changed then either, and so it is with such a free. */
enum cudapool_use { CUDAPOOL_READ = 0, CUDAPOOL_WRITE = 1 };
int cudapool_record_use(uint64_t address, uint64_t generation, void *stream, enum cudapool_use use);

/*
 * Memory of captured graphs, where captures.memory_nodes is "pool": what cuMemAllocAsync hands out
 * on a captured stream comes from a pool of that capture's, and belongs to its graph.
 *
 * Several captures may share one pool, so that the second has what the first has freed again. That
 * is right only for graphs that never run at the same time, and what a graph of the pool leaves in
 * memory lasts until another one is launched. A pool is named by a number, which no other pool ever
 * has; what its graphs use is theirs until they are gone, whatever becomes of the pool. Results are
 * CUresult values: CUDA_ERROR_NOT_SUPPORTED where there is no pool in this process, it serves no
 * captured streams, or the driver does not number streams (cuStreamGetId, CUDA 12);
 * CUDA_ERROR_INVALID_VALUE for a number that names no pool.
 */
typedef uint64_t cudapool_graph_pool;

/* A new pool, which has no memory yet; 0 where there can be none. */
cudapool_graph_pool cudapool_graph_pool_create(void);

/* Captures that begin on the stream from now on use the pool, until another one is named; 0: each
 * has one of its own again, as it has where nothing was said. A stream that a capture comes to by
 * an event uses that capture's. CUDA_ERROR_INVALID_VALUE for a sealed pool;
 * CUDA_ERROR_INVALID_HANDLE for what is no stream that was created;
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for one that is captured. */
int cudapool_graph_pool_use(cudapool_graph_pool pool, void *stream);

/* No capture takes anything from the pool any more: not one that goes on, and none that begins. */
int cudapool_graph_pool_seal(cudapool_graph_pool pool);

/* What is free in the pool now is not handed out again: it goes when its graphs do. */
int cudapool_graph_pool_clear(cudapool_graph_pool pool);

/* Fills *bytes: live, what captures have allocated and nobody has freed; cached, what the next
 * capture may have; pending, what is freed and only kept for graphs. */
int cudapool_graph_pool_get_bytes(cudapool_graph_pool pool, struct cudapool_bytes *bytes);

/* Seals the pool, and its number names nothing any more. */
int cudapool_graph_pool_destroy(cudapool_graph_pool pool);

/*
 * Device scalars: values in device memory, of 1 to 64 bytes, that are set in a stream's order. A
 * graph that was captured with the address reads, at each launch, what was set last before it on
 * the stream.
 *
 * The program may change its own value, or set the next one, as soon as cudapool_scalar_set has
 * returned: each goes to the device from a piece of pinned memory that is written again only when
 * its copy is over. Once 1024 values are on their way in a context, the next one waits until the
 * oldest is there, for a second at most; then it takes more pinned memory. A scalar is named by a
 * number, which no other one ever has. Results are CUresult values.
 */
typedef uint64_t cudapool_scalar;

/* A new one in the current context, whose value is whatever is there; 0 where there can be none:
 * without the pool, without memory, or while a capture goes on and captures.allocate is false. */
cudapool_scalar cudapool_scalar_create(size_t bytes);

/* Where it is in the device's memory; 0: there is none with this number. */
uint64_t cudapool_scalar_address(cudapool_scalar scalar);

/* Sets it to the bytes at value, behind all that the stream was given so far and before what it is
 * given next. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a stream that a capture has, which goes on
 * as it was; CUDA_ERROR_INVALID_CONTEXT where another context is current than when it was made;
 * CUDA_ERROR_INVALID_VALUE for a number that names none; CUDA_ERROR_NOT_SUPPORTED where there is no
 * pool in this process; or an error of the driver's. Nothing is set then. */
int cudapool_scalar_set(cudapool_scalar scalar, const void *value, void *stream);

/* Frees it, as cuMemFree would: work that was submitted before may use it still, and a graph that
 * is launched later must not. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and nothing was done, while a
 * capture goes on and captures.allocate is false; CUDA_ERROR_INVALID_VALUE for a number that names
 * none. */
int cudapool_scalar_destroy(cudapool_scalar scalar);

#ifdef __cplusplus
}
#endif

#endif
