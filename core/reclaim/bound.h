/*
 * The bound on the bytes that a kind of memory may have taken from the driver before it releases
 * some:
 *
 *   bound = max(reserve_ratio * peak + growth_budget, floor)
 *
 * peak: the most bytes that the program itself held at once, including its current request. floor:
 * bytes that may stay cached whatever the peak is. It is 0 where memory is short, and for kinds
 * without a floor.
 */
#ifndef CUDAPOOL_CORE_BOUND_H
#define CUDAPOOL_CORE_BOUND_H

#include <stdint.h>

#include "core/base/numbers.h"

static inline uint64_t bound_on_taken(double reserve_ratio, uint64_t peak, uint64_t growth_budget,
                                      uint64_t floor)
{
    return larger_of((uint64_t)(reserve_ratio * (double)peak) + growth_budget, floor);
}

#endif
