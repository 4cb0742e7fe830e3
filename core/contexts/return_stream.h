/*
 * The streams on which the pool returns memory to the driver.
 *
 * A block is returned by cuMemFreeAsync on a stream of the pool's own, which is then synchronised.
 * Unlike cuMemFree, this does not wait for the program's kernels, with two exceptions. After the
 * program's own cuCtxWaitEvent, the pool's stream is ordered after that event, too. Then blocks are
 * returned without a wait. Only a thread that is out of memory waits, for LAST_RESORT_NANOSECONDS
 * at most. After a barrier of the pool's own, a thread waits for STALLED_WAIT_NANOSECONDS at most.
 * Memory that was returned so, and that the driver may not have yet, counts as freed in stream
 * order (epoch_note_freed_in_order).
 *
 * The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_RETURN_STREAM_H
#define CUDAPOOL_CORE_RETURN_STREAM_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "epoch.h"
#include "kind.h"

struct context;
struct pool;

/* The context's stream for returning blocks, made on first use; NULL where it cannot be made. */
CUstream return_stream(struct pool *pool, struct context *context);

/* The context's stream for returning memory that running work may still use. It is never waited
 * for. */
CUstream late_return_stream(struct pool *pool, struct context *context);

/* Called after blocks were returned on the return stream, or a stream like it, of the context,
 * which is current and pinned. Waits until the driver has them, where that cannot take long. False:
 * the driver may not have them yet. */
bool return_wait(struct pool *pool, struct context *context, CUstream stream,
                 enum release_place place);

/* Asks the driver whether it has by now all that was returned on the context's return stream. The
 * context may have ended. */
bool return_is_over(struct pool *pool, struct context *context);

#endif
