/*
 * Misses: what the pool has no block for, the driver is asked for.
 *
 * A miss reserves its bytes inside the limits, asks the driver, has memory given back and asks
 * again while the driver has none, falls back to exactly as many bytes as were requested where only
 * those fit, and counts how it ended. These are the steps; a kind of memory takes them in this
 * order, does between them what it alone can do, and makes a block of what came.
 *
 * No lock is held by the callers, but the one that guards the counters where something is counted.
 */
#ifndef CUDAPOOL_CORE_RECLAIM_MISS_H
#define CUDAPOOL_CORE_RECLAIM_MISS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"
#include "reclaim.h"

struct context;
struct pool;

struct miss {
    struct pool *pool;
    struct context *context;        /* is current */
    uint64_t generation;            /* the context's, before the driver is asked */
    uint64_t requested;             /* bytes, by the program */
    uint64_t bytes;                 /* to ask for: the bucket's, or as requested */
    bool in_stream_order;           /* as in struct reclaim */
    CUresult (*ask)(struct miss *); /* one call of the driver's, which sets *address */
    void *with;                     /* for ask alone */
    struct bucket_counters *cost;   /* where that counts its calls */
    CUdeviceptr *address;           /* the program's */
    uint64_t reserving_since;       /* see reserve_take; 0: nothing was in the way */
    enum failure refusal;           /* which limit is in the way, where one is */
    struct reclaim progress;        /* of all that was given back for this miss */
    CUresult result;                /* of the last call */
};

/* Takes the bytes into the device's reserved bytes; or else as many as were requested, if that is
 * less. False where they are past a limit, with all given back that could be. */
bool miss_reserve(struct miss *miss);
bool miss_reserve_exactly(struct miss *miss);

/* Asks once. */
void miss_ask(struct miss *miss);

/* Where the driver was out of memory: asks again whenever something has been given back; and then
 * for exactly as many bytes as were requested, if that is less. */
void miss_ask_again(struct miss *miss);
void miss_ask_exactly(struct miss *miss);

/* In the place of all of the above where more than the device has is requested, which it returns:
 * asks once, for the sake of the driver's own error, and gives nothing back for it. What comes of
 * it is reserved, be it nothing. */
bool miss_ask_in_vain(struct miss *miss);

static inline bool miss_is_out_of_memory(const struct miss *miss)
{
    return miss->result == CUDA_ERROR_OUT_OF_MEMORY;
}

/* What a request counts before its outcome, by which it counts as one; and that. recorded: a block
 * was made of it, without which the memory is the program's and the driver's business alone. */
void miss_count_request(const struct miss *miss, struct bucket_counters *counters);
void miss_count_outcome(const struct miss *miss, struct bucket_counters *counters, bool recorded);

/* Both, for one past a limit. The driver was not asked, so no call is counted. */
void miss_count_refusal(struct miss *miss, struct bucket_counters *counters);

#endif
