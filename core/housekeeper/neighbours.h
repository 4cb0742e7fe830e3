/*
 * What the housekeeper does for other processes: it tells them what is cached here, gives them what
 * they ask for, and leaves some memory free for those that cannot ask.
 *
 * No lock is held by the callers. What says nothing of threads is for the
 * housekeeper's alone.
 */
#ifndef CUDAPOOL_CORE_HOUSEKEEPER_NEIGHBOURS_H
#define CUDAPOOL_CORE_HOUSEKEEPER_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

struct device;
struct pool;

/* Tells the board what is cached and pending on each device. Any thread. */
void neighbours_publish(struct pool *pool);

/* Whether there is a thread that answers. Any thread; async-signal-safe. */
void neighbours_listen(struct pool *pool, bool listens);

/* Gives what was asked for, as far as it is there and the GPU is past it, and says so. True: some
 * of what is wanted is pending, and may be given soon. */
bool neighbours_answer(struct pool *pool);

/* leave_free: where others hold more than they lately did, and less than that is left, gives back
 * what is missing. now: nanoseconds of the monotonic clock. */
void neighbours_leave_free(struct pool *pool, uint64_t now);

#endif
