/*
 * Finds out how much of a device is left, and whether memory is short there.
 *
 * The callers hold no lock. The contexts need not be current.
 */
#ifndef CUDAPOOL_CORE_ROOM_H
#define CUDAPOOL_CORE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct pool;

/* Returns the bytes that the process could still take of the context's device, inside its limit.
 * Cached bytes do not count as left. Asks the driver now and then. now: on the monotonic clock, in
 * nanoseconds. */
uint64_t room_left(struct pool *pool, struct context *context, uint64_t now);

/* To be called after a miss in the context, which is current. Finds out whether memory is short, by
 * what the process holds and (ask) by what the driver says is left. */
void room_look(struct pool *pool, struct context *context, bool ask);

/* To be called after a free in the context that cost more because memory is short. Asks the driver
 * now and then whether memory still is short: a program without misses would never learn it
 * otherwise. */
void room_look_again(struct pool *pool, struct context *context);

/* Notes that memory has become short in the context. From then on large blocks are cached only if
 * that turns out to be worth it. */
void room_is_short(struct context *context);

#endif
