/*
 * How much of a device is left, and whether memory is short there.
 *
 * No lock is held by the callers. The contexts need not be current.
 */
#ifndef CUDAPOOL_CORE_ROOM_H
#define CUDAPOOL_CORE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct pool;

/* Bytes that the process could still take of the context's device, inside its limit; what is cached
 * does not count. The driver is asked now and then. now: on the monotonic clock, in nanoseconds. */
uint64_t room_left(struct pool *pool, struct context *context, uint64_t now);

/* After a miss in the context, which is current: whether memory is short now, by what the process
 * holds, and (ask) by what the driver says is left. */
void room_look(struct pool *pool, struct context *context, bool ask);

/* After a free in the context that cost more for want of memory: now and then asks whether it still
 * is short, which a program that has no misses would never learn. */
void room_look_again(struct pool *pool, struct context *context);

/* Memory has turned out to be short in the context, if that is new: large blocks are kept only if
 * that turns out to be worth it. */
void room_is_short(struct context *context);

#endif
