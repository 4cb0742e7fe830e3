/*
 * The pool: what the hooks ask for memory.
 *
 * One struct pool serves the process. Inside it every context has its own heap of device memory;
 * the design of reuse (epochs, fences, the ladder) is told in heap.h and epoch.h.
 *
 * Every function may be called by any thread at any time, with any context current, and answers as
 * the driver function that it stands for would. None is called with a lock held.
 */
#ifndef CUDAPOOL_CORE_POOL_H
#define CUDAPOOL_CORE_POOL_H

#include <stdbool.h>

#include "config.h"
#include "cuda_abi.h"
#include "driver.h"
#include "report.h"

struct pool;

/* Starts a pool on a driver. Both arguments are copied or outlive it; no driver call is made.
 * NULL with errno where memory is short. A pool is never destroyed: it lives as long as the
 * process, because threads may be inside it until the last moment. */
struct pool *pool_create(const struct driver *driver, const struct settings *settings);

/* True while the calling thread is inside a driver call that a pool makes on its own behalf. */
bool pool_thread_is_inside_driver(void);

/* Fills the devices of a report (the caller has filled process and settings), without a driver
 * call and without waiting for any lock for long. 0, or -1 with errno. */
int pool_report(struct pool *pool, struct report *report);

#endif
