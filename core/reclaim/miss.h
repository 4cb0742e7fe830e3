/*
 * The steps of a miss, a request for which the pool has no block and asks the driver.
 *
 * A miss reserves its bytes inside the limits, then asks the driver. While the driver is out of
 * memory, the miss has memory released and asks again. Where only as many bytes as were requested
 * fit, it asks for exactly these. In the end it counts the outcome. A kind of memory calls these
 * steps in this order, does its own work between them, and makes a block of the memory.
 *
 * The callers hold no lock, except the one that guards the counters where something is counted.
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
    struct context *context;        /* which is current */
    uint64_t generation;            /* the context's, read before the driver is asked */
    uint64_t requested;             /* bytes that the program requested */
    uint64_t bytes;                 /* bytes to ask for: the bucket's, or as requested */
    bool in_stream_order;           /* see struct reclaim */
    CUresult (*ask)(struct miss *); /* makes one driver call, which sets *address */
    void *with;                     /* for ask alone */
    struct bucket_counters *cost;   /* where ask counts its calls */
    CUdeviceptr *address;           /* the program's */
    uint64_t reserving_since;       /* see reserve_take; 0: no limit was in the way */
    enum failure refusal;           /* the limit that is in the way, if one is */
    struct reclaim progress;        /* of all that was released for this miss */
    CUresult result;                /* of the last call */
};

/* miss_reserve reserves bytes of the device. miss_reserve_exactly reserves as many as were
 * requested, if that is less. Both return false where the bytes exceed a limit although all that
 * could be released was. */
bool miss_reserve(struct miss *miss);
bool miss_reserve_exactly(struct miss *miss);

/* Asks the driver once. */
void miss_ask(struct miss *miss);

/* Where the driver was out of memory, miss_ask_again asks it again whenever something has been
 * released. miss_ask_exactly then asks for exactly as many bytes as were requested, if that is
 * less. */
void miss_ask_again(struct miss *miss);
void miss_ask_exactly(struct miss *miss);

/* Replaces all of the functions above where the request exceeds the device's memory. Returns false
 * where it does not. Asks once, for the sake of the driver's own error, and releases nothing.
 * Reserves what the driver gave, if anything. */
bool miss_ask_beyond_device(struct miss *miss);

static inline bool miss_is_out_of_memory(const struct miss *miss)
{
    return miss->result == CUDA_ERROR_OUT_OF_MEMORY;
}

/* Notes that the driver has met the request. The largest request so far bounds what frees keep
 * pending. A neighbour is asked for more where requests follow each other (neighbours.h). */
void miss_note_met(const struct miss *miss);

/* miss_count_request counts the request before its outcome is known, and miss_count_outcome counts
 * the outcome. recorded: a block was made of the memory. Without one the memory concerns only the
 * program and the driver. */
void miss_count_request(const struct miss *miss, struct bucket_counters *counters);
void miss_count_outcome(const struct miss *miss, struct bucket_counters *counters, bool recorded);

/* Counts the request and the outcome of a miss that exceeds a limit. The driver was not asked, so
 * this counts no call. */
void miss_count_refusal(struct miss *miss, struct bucket_counters *counters);

#endif
