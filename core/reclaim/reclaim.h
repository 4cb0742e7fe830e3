/*
 * Out of memory, and the limits: what is given back before a call fails.
 *
 * The steps are here and the kinds of memory inside them: first every kind gives back what is
 * clean, then every kind what its fences free, then the driver's own pools are trimmed, then other
 * processes are asked for what they cache (neighbours.h), then every kind waits for the rest. So
 * what costs nothing goes before what may take long, whichever kind it is of.
 *
 * No lock is held by the callers, nor while a kind is asked.
 */
#ifndef CUDAPOOL_CORE_RECLAIM_H
#define CUDAPOOL_CORE_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "kept.h"

#include "progress.h"

struct context;
struct device;
struct pool;

/* Out of memory, for any call: each time does the next thing that may give memory back, and false
 * says that nothing is left to try. After the last step it begins again, for some seconds at most,
 * if this thread has given something back that another may have taken, another thread is still
 * giving back, or others have allocated and freed meanwhile although there would be enough for the
 * request. device NULL: all devices, and that for a second at most, then once more when another
 * thread has given back. Of what others have pending nothing is waited for before all that this
 * process has pending is over. */
bool reclaim_for_retry(struct pool *pool, struct device *device, struct reclaim *progress);

#endif
