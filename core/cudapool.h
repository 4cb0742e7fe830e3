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

/* Gives all cached memory of all devices back to the driver, without waiting for work on the GPU;
 * pending memory stays. Returns the bytes given back. */
uint64_t cudapool_trim(void);

/* Fills *bytes for the device with this CUDA ordinal. 0, or -1 where there is no pool or bytes is
 * NULL. A device that was never used has zeros. */
int cudapool_get_bytes(int device, struct cudapool_bytes *bytes);

#ifdef __cplusplus
}
#endif

#endif
