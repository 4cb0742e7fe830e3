/*
 * What all kinds of memory hold together, and its release.
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

/* Whether the kind's memory may be what a call lacks. of_machine: it lacks host memory. Otherwise
 * it lacks memory of the device; NULL: it may concern any device, and it is not known what it
 * lacks. */
static inline bool kind_may_help(const struct kind *kind, const struct device *device,
                                 bool of_machine)
{
    return kind->is_the_machines ? !device : !of_machine;
}

/* Releases clean blocks of the kinds that may help, kind after kind in their order, until that many
 * bytes are released. Returns the bytes. The callers hold no lock. place: see release in struct
 * kind. */
uint64_t kinds_release(struct pool *pool, struct device *device, bool of_machine, uint64_t bytes,
                       enum release_place place);

/* Makes room for other processes, or for managed memory. */
static inline uint64_t kinds_make_room(struct pool *pool, struct device *device, uint64_t bytes)
{
    return kinds_release(pool, device, false, bytes, RELEASE_FOR_OTHERS);
}

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
