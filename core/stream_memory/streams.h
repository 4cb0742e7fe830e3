/*
 * What stream-ordered memory keeps for a pool and for each of its devices.
 */
#ifndef CUDAPOOL_CORE_STREAMS_H
#define CUDAPOOL_CORE_STREAMS_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"

struct mempool;
struct streams;

/* All of the pool's stream-ordered memory; NULL where it is switched off. */
static inline struct streams *streams_of(const struct pool *pool)
{
    return pool->of_kind[KIND_STREAM_ORDERED];
}

/* Of a device. Atomics are relaxed where they say nothing else: they order nothing. */
struct stream_device {
    struct size_classes classes;
    uint64_t cached_cap;               /* bytes */
    _Atomic(struct mempool *) mempool; /* the current one; NULL: to be asked for. See mempool.c */
    _Atomic(CUmemoryPool) default_mempool; /* NULL: to be asked for */
    char apart[64];                        /* every call reads what is above, few write it */
    _Atomic uint64_t reserved_bytes;       /* of all stream-ordered blocks of the device */
    struct kind_counters *counters;   /* in the figures: peaks as seen when more memory was taken */
    _Atomic uint64_t idle_checked_at; /* on the monotonic clock: when idle blocks were last looked
                                         for. It chooses who looks */
    _Atomic uint64_t left_bytes; /* that were left of the device when pending blocks were last given
                                    events; 0: never */
    _Atomic uint64_t vain_until; /* on the monotonic clock: what is pending was just waited for in
                                    vain. It only saves waits */
};

/* Also where stream-ordered memory is switched off. */
static inline struct stream_device *stream_device(const struct device *device)
{
    return device->of_kind[KIND_STREAM_ORDERED];
}

#endif
