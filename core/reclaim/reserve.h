/*
 * The limits: what the process may hold of a device, and what its group may hold there together.
 *
 * A block's bytes are reserved before the driver is asked for it, so neither limit is passed at any
 * moment, and unreserved when it has gone back (device_reserve in core/contexts/device.h). What the
 * process caches goes back before a request is refused, and for the group's sake what its other
 * processes cache. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_RESERVE_H
#define CUDAPOOL_CORE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/figures/stats.h"

struct context;
struct pool;

/* Reserves bytes of the context's device, inside the limits. False past one of them, after all that
 * could be given back was; *failure says which. in_stream_order: as in struct reclaim. *since: when
 * the first such try for the request began to wait, 0 before it, on the monotonic clock: what one
 * has waited for in vain the next one does not. */
bool reserve_take(struct pool *pool, struct context *context, uint64_t bytes, bool in_stream_order,
                  uint64_t *since, enum failure *failure);

#endif
