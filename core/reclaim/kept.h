/*
 * What all kinds of memory hold, in sum.
 */
#ifndef CUDAPOOL_CORE_KEPT_H
#define CUDAPOOL_CORE_KEPT_H

#include "core/contexts/kind.h"

/* What all kinds hold of the device (NULL: of all devices), and what they hold of the machine's
 * memory, in bytes. Of the moment: threads go on meanwhile. */
struct kept_bytes kept_bytes(struct pool *pool, struct device *device);
struct kept_bytes kept_bytes_of_machine(struct pool *pool);

/* Bytes of the device that pools of the driver's hold because of what was given back. The driver is
 * asked. */
uint64_t bytes_the_driver_keeps(struct pool *pool, struct device *device);

#endif
