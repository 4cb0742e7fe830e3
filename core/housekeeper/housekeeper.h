/*
 * The housekeeper: one thread of the pool's own, for what must not wait until the program calls.
 *
 * It gives back what has been idle for release_after_idle, answers what neighbours ask for
 * (core/board/board.h), looks after leave_free, and publishes what the process caches.
 *
 * When it is there: it is made when the pool has taken more than HOUSEKEEPER_BYTES from the driver,
 * or anything of a group's limit, and ends when nothing of that is free (cached or pending); from
 * then on it is made again by the first free. So what may lie idle unnoticed in a process is
 * HOUSEKEEPER_BYTES at most, and frees on the fast path do nothing for it
 * (core/contexts/housekeeping.h says how they come by that).
 * While anything is free it wakes about once a second, and as often as every few milliseconds while
 * a neighbour waits for memory that is pending; while nothing is free there is no thread.
 *
 * What it is: made by the C library (never a bare clone) inside a slow path of the program's own,
 * detached, with a small stack, all signals blocked but those that tell of its own faults, and
 * without a real-time priority. Nobody waits for it, at the end of the process neither; a forked
 * child has none. Where no thread can be made, or the settings say so, there is none, and what is
 * idle goes back on slow paths only.
 *
 * It calls the driver as any other thread of the program does: contexts pinned, queries in the
 * relaxed mode, nothing recorded while captures go on. No lock of ours is held while it waits or
 * sleeps.
 */
#ifndef CUDAPOOL_CORE_HOUSEKEEPER_H
#define CUDAPOOL_CORE_HOUSEKEEPER_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* Bytes that a process without a group's limit may have taken from the driver without a thread. */
#define HOUSEKEEPER_BYTES (UINT64_C(8) << 20)

/* A free of so many bytes is told to neighbours at once. */
#define HOUSEKEEPER_MUCH (UINT64_C(16) << 20)

/* Once, as the pool starts. */
void housekeeper_prepare(struct pool *pool);

/* On slow paths after something was freed, with no lock held but perhaps that of primary contexts,
 * which is held across driver calls: makes the thread where there should
 * be one, and publishes what is new, at once if it was much. bytes: at least so many were freed.
 * Cheap where there is nothing to do. */
void housekeeper_look(struct pool *pool, uint64_t bytes);

/* The same after a miss, which makes nothing free: but what it has taken may be, unseen, before the
 * next slow path. */
void housekeeper_look_after_miss(struct pool *pool);

/* The process comes to its end by itself: it begins nothing more. Async-signal-safe. */
void housekeeper_stop(struct pool *pool);

/* In the child of a fork: it has no such thread. Async-signal-safe. */
void housekeeper_forget(struct pool *pool);

#endif
