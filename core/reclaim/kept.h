/*
 * Sums of what all kinds of memory hold.
 */
#ifndef CUDAPOOL_CORE_KEPT_H
#define CUDAPOOL_CORE_KEPT_H

#include <stdint.h>

#include "core/base/numbers.h"
#include "core/contexts/kind.h"

/* Returns the bytes that all kinds hold of the device (NULL: of all devices), and of host memory.
 * Other threads change them meanwhile. */
struct kept_bytes kept_bytes(struct pool *pool, struct device *device);
struct kept_bytes kept_bytes_of_machine(struct pool *pool);

/* Returns the bytes of the device that the driver's own pools hold because memory was freed to
 * them. Asks the driver. */
uint64_t bytes_the_driver_keeps(struct pool *pool, struct device *device);

/* Returns the bytes of pages and chunks that the driver has taken around small blocks. It frees
 * each with the last block in it. May ask the driver. */
uint64_t bytes_around_blocks(struct pool *pool, struct device *device);

/* ---- the bound ----
 *
 * The bound on the bytes that a kind of memory may have taken from the driver before it releases
 * some:
 *
 *   bound = max(reserve_ratio * peak + growth_budget, floor)
 *
 * peak: the most bytes that the program itself held at once, including its current request. floor:
 * bytes that may stay cached whatever the peak is. It is 0 where memory is short, and for kinds
 * without a floor.
 */

static inline uint64_t bound_on_taken(double reserve_ratio, uint64_t peak, uint64_t growth_budget,
                                      uint64_t floor)
{
    return larger_of((uint64_t)(reserve_ratio * (double)peak) + growth_budget, floor);
}

#endif
