/*
 * The streams on which memory goes back to the driver.
 *
 * A block is given back by cuMemFreeAsync on a stream of our own, which is then synchronised:
 * unlike cuMemFree that does not wait for the program's kernels, with two exceptions. After the
 * program's own cuCtxWaitEvent our stream is behind that event, too: then blocks are returned
 * without waiting, and only who is out of memory waits, at most LAST_RESORT_NANOSECONDS. And behind
 * a barrier of the pool's own it is waited for VAIN_WAIT_NANOSECONDS at most; what went back so and
 * may not be the driver's yet counts as freed in a stream's order (epoch_note_freed_in_order).
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_RETURN_STREAM_H
#define CUDAPOOL_CORE_RETURN_STREAM_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "epoch.h"

struct context;
struct pool;

/* Inside which call of the program's memory is given back; or for others' sake, in whichever call
 * or in none: then nothing of the program's may be waited for, but the memory is to be there for
 * others at once. */
enum release_place {
    RELEASE_IN_FREE,
    RELEASE_IN_ALLOCATION,
    RELEASE_OUT_OF_MEMORY,
    RELEASE_FOR_OTHERS
};

/* The stream of the context that blocks are given back on, made on first use; NULL where it can't
 * be. */
CUstream return_stream(struct pool *pool, struct context *context);

/* Another one, for memory behind work that is not over: it is never waited for. */
CUstream late_return_stream(struct pool *pool, struct context *context);

/* After blocks were given back on that stream, or one like it, of the context, which is current and
 * pinned: waits until they are the driver's, where that cannot take long. False: they may not be.
 */
bool return_wait(struct pool *pool, struct context *context, CUstream stream,
                 enum release_place place);

/* Asks the driver whether all that was given back on the context's return stream is the driver's by
 * now. The context may have ended. */
bool return_is_over(struct pool *pool, struct context *context);

#endif
