/*
 * Out of memory, and the hard limit: what is given back before a call fails.
 *
 * The steps are here and the kinds of memory inside them: first every kind gives back what is
 * clean, then every kind what its fences free, then the driver's own pools are trimmed, then every
 * kind waits for the rest. So what costs nothing goes before what may take long, whichever kind it
 * is of.
 *
 * No lock is held by the callers, nor while a kind is asked.
 */
#ifndef CUDAPOOL_CORE_RECLAIM_H
#define CUDAPOOL_CORE_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct device;
struct pool;

/* Out of memory, for any call: each time does the next thing that may give memory back, and false
 * says that nothing is left to try. After the last step it begins again, for some seconds at most,
 * if this thread has given something back that another may have taken, another thread is still
 * giving back, or others have allocated and freed meanwhile although there would be enough for the
 * request. device NULL: all devices, and that for a second at most, then once more when another
 * thread has given back. */
enum reclaim_step { RECLAIM_CLEAN, RECLAIM_FENCED, RECLAIM_DRIVER, RECLAIM_THE_REST, RECLAIM_DONE };
struct reclaim {
    enum reclaim_step step;
    uint64_t bytes;       /* to give back at first: as many as are wanted, 0 if that is not known */
    uint64_t wanted;      /* at least so many will do; 0 as above */
    bool within_limit;    /* the hard limit is in the way, not the driver */
    uint64_t released;    /* bytes, by the steps since the first */
    uint64_t started;     /* nanoseconds of the monotonic clock; 0: not yet */
    uint64_t seen;        /* of what other threads may change, as the first step began */
    bool in_stream_order; /* for an allocation in a stream's order: what streams have left pending
                             is asked about, but not waited for, as the driver does not */
};
bool reclaim_for_retry(struct pool *pool, struct device *device, struct reclaim *progress);

/* Takes bytes into the device's reserved bytes, inside the hard limit, giving back what is cached
 * if need be. False past the limit. in_stream_order: as in struct reclaim. */
bool reserve_take(struct pool *pool, struct context *context, uint64_t bytes, bool in_stream_order);

/* What all kinds hold of the device (NULL: of all devices), in bytes. Of the moment: threads go on
 * meanwhile. */
struct kept_bytes kept_bytes(struct pool *pool, struct device *device);

/* Bytes of the device that pools of the driver's hold because of what was given back. The driver is
 * asked. */
uint64_t bytes_the_driver_keeps(struct pool *pool, struct device *device);

#endif
