/*
 * The driver that the process would use without this object: its functions' addresses, as the hooks
 * and the core call them.
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
 * The real entry points, found on the first call in a process. Never NULL.
 *
 * A function that the driver lacks is replaced by one that returns CUDA_ERROR_NOT_FOUND. Without a
 * driver every function returns CUDA_ERROR_NOT_INITIALIZED. Any thread may call this, also from a
 * constructor that runs inside this very call, which gets the not-found functions.
 */
HIDDEN const struct real_driver *real_driver(void);

/* The core's table, filled together with the real entry points. NULL where there is no driver, or
 * where it lacks a function that the core requires. */
HIDDEN const struct driver *core_driver(void);

/* Whether the process has loaded a driver that has this function. */
HIDDEN bool driver_has(enum entry entry);

/* The function's address in that driver, or NULL. */
HIDDEN void *driver_address(enum entry entry);

/* The replaced function that the driver has at this address, or ENTRY_NONE. To be called only in a
 * program that has called the driver. */
HIDDEN int entry_of_address(const void *address);

#endif
