/*
 * Calls into the driver on the pool's own behalf.
 *
 * A profiler or another preload may call back while the pool is in the driver: such nested calls
 * pass through the hooks untouched, so each thread counts how deep it is in calls of ours.
 */
#ifndef CUDAPOOL_CORE_CALLS_H
#define CUDAPOOL_CORE_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/cancellation.h"
#include "core/base/lock.h"
#include "driver.h"

/* Each thread reads and writes its own. */
struct driver_calls {
    unsigned depth;   /* of our own driver calls */
    int cancellation; /* what it was outside of them, see cancellation.h */
};

extern _Thread_local struct driver_calls driver_calls __attribute__((visibility("hidden")));

/* True while the calling thread is inside a driver call that a pool makes on its own behalf. */
static inline bool is_inside_driver(void)
{
    return driver_calls.depth != 0;
}

/* Around every driver call of our own that may call back: nested calls pass through, and the thread
 * is not cancelled there. */
static inline void enter_driver(void)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    if (driver_calls.depth == 0)
        driver_calls.cancellation = cancellation_off();
    driver_calls.depth++;
}

static inline void leave_driver(void)
{
    driver_calls.depth--;
    if (driver_calls.depth == 0)
        cancellation_restore(driver_calls.cancellation);
}

/* Around a driver call that a capture of the calling thread would forbid. */
struct relaxed_mode {
    bool exchanged;
    CUstreamCaptureMode mode;
};
struct relaxed_mode relaxed_mode_begin(const struct driver *driver);
void relaxed_mode_end(const struct driver *driver, struct relaxed_mode mode);

/* What the driver says of the current context's device, beside whatever capture. */
CUresult driver_memory_info(const struct driver *driver, size_t *left, size_t *total);

/* Whether the driver still has a block at the address, as far as it says. Asked where it has
 * refused to take one back: while a block is on its way to the driver the pool has no record of it,
 * so the second free of a program that frees twice reaches the driver, perhaps as the first. */
bool driver_has_block(const struct driver *driver, CUdeviceptr address);

/* The size of the driver's stream-ordered block at the address, as the program asked for it; 0:
 * there is none. */
uint64_t driver_stream_ordered_bytes(const struct driver *driver, CUdeviceptr address);

/* Whether the block is gone after a free of it has answered so. */
static inline bool driver_is_rid_of(const struct driver *driver, CUdeviceptr address,
                                    CUresult result)
{
    return result == CUDA_SUCCESS ||
           (result == CUDA_ERROR_INVALID_VALUE && !driver_has_block(driver, address));
}

/* Whether the handle is one that the driver has given out for a stream that was created: the others
 * mean a stream of the current context, or of the calling thread. */
static inline bool stream_is_created(CUstream handle)
{
    return (uintptr_t)handle > (uintptr_t)CU_STREAM_PER_THREAD;
}

#endif
