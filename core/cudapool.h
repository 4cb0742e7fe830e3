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

#ifdef __cplusplus
}
#endif

#endif
