/*
 * Calls into the driver on the pool's own behalf.
 *
 * A profiler or another preload may call back while the pool is in the driver. Such nested calls
 * must pass through the hooks untouched. So each thread counts how deep it is in the pool's own
 * calls.
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
    unsigned depth;   /* nesting of the pool's own driver calls */
    int cancellation; /* the thread's state outside of them, see cancellation.h */
};

extern _Thread_local struct driver_calls driver_calls __attribute__((visibility("hidden")));

/* Returns true while the calling thread is inside a driver call that the pool makes on its own
 * behalf. */
static inline bool is_inside_driver(void)
{
    return driver_calls.depth != 0;
}

/* These two stand around every driver call of the pool's own that may call back. Nested calls pass
 * through, and the thread is not cancelled there. */
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

/* These two stand around a driver call that a capture of the calling thread would forbid. */
struct relaxed_mode {
    bool exchanged;
    CUstreamCaptureMode mode;
};
struct relaxed_mode relaxed_mode_begin(const struct driver *driver);
void relaxed_mode_end(const struct driver *driver, struct relaxed_mode mode);

/* enter_driver and relaxed_mode_begin, and their ends. */
static inline struct relaxed_mode enter_driver_relaxed(const struct driver *driver)
{
    enter_driver();
    return relaxed_mode_begin(driver);
}

static inline void leave_driver_relaxed(const struct driver *driver, struct relaxed_mode mode)
{
    relaxed_mode_end(driver, mode);
    leave_driver();
}

/* Asks the driver for the free and total bytes of the current context's device, also during
 * captures. */
CUresult driver_memory_info(const struct driver *driver, size_t *left, size_t *total);

/* Returns whether the driver still has a block at the address, as far as it says. Callers ask this
 * after the driver has refused to free a block. The pool has no record of a block while it releases
 * the block to the driver. If the program frees the block twice, its second free then reaches the
 * driver, perhaps before the pool's own. */
bool driver_has_block(const struct driver *driver, CUdeviceptr address);

/* Returns the size of the driver's stream-ordered block at the address, as the program asked for
 * it; 0 if there is none. */
uint64_t driver_stream_ordered_bytes(const struct driver *driver, CUdeviceptr address);

/* Returns whether the block is gone after a free of it has returned result. */
static inline bool driver_is_rid_of(const struct driver *driver, CUdeviceptr address,
                                    CUresult result)
{
    return result == CUDA_SUCCESS ||
           (result == CUDA_ERROR_INVALID_VALUE && !driver_has_block(driver, address));
}

/* Returns whether the driver has made the handle for a stream that was created. All other handles
 * mean a stream of the current context, or of the calling thread. */
static inline bool stream_is_created(CUstream handle)
{
    return (uintptr_t)handle > (uintptr_t)CU_STREAM_PER_THREAD;
}

#endif
