/*
 * The driver that the process would use without us.
 */
#ifndef CUDAPOOL_SHIM_REAL_DRIVER_H
#define CUDAPOOL_SHIM_REAL_DRIVER_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "core/driver/driver.h"
#include "lookup.h"
#include "shim.h"

/* The driver's own address of every replaced function. */
struct real_driver {
#define ENTRY_POINT(name, parameters) CUresult(*name) parameters;
#include "entry_points.def"
#undef ENTRY_POINT
};

/*
 * The real entry points, found on the first call in a process. Never NULL; a function that the
 * driver lacks is a function that returns CUDA_ERROR_NOT_FOUND, and all of them are
 * CUDA_ERROR_NOT_INITIALIZED ones where there is no driver. Safe from any thread, also from one
 * that is inside this very call (a constructor run by it): that one gets the not-found functions.
 */
HIDDEN const struct real_driver *real_driver(void);

/* The core's table, filled together with the real entry points. NULL where there is no driver or
 * it lacks a function that the core requires. */
HIDDEN const struct driver *core_driver(void);

/* Whether the process has loaded a driver that has this function. */
HIDDEN bool driver_has(enum entry entry);

/* Its address there, or NULL. */
HIDDEN void *driver_address(enum entry entry);

/* The replaced function that the driver has at this address, or ENTRY_NONE. For a program that has
 * called the driver. */
HIDDEN int entry_of_address(const void *address);

#endif
