/*
 * Enforces the limits on what the process may hold of a device, and on what its group may hold
 * there together.
 *
 * A block's bytes are reserved before the driver is asked for them, so neither limit is exceeded at
 * any moment. They are unreserved once the block has been released (device_reserve in
 * core/contexts/device.h). Before a request is refused, the process releases what it caches. For
 * the group's limit, the group's other processes do so too. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_RESERVE_H
#define CUDAPOOL_CORE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/figures/stats.h"

struct device;
struct pool;

/* Reserves bytes of the device, inside the limits. Returns false where they exceed a
 * limit although all that could be released was; *failure says which limit. in_stream_order: see
 * struct reclaim. *since: when the first such try for the request began to wait, on the monotonic
 * clock; 0 before it. So a later try does not repeat a wait that did not help. */
bool reserve_take(struct pool *pool, struct device *device, uint64_t bytes, bool in_stream_order,
                  uint64_t *since, enum failure *failure);

#endif
