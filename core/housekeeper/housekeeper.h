/*
 * The housekeeper: one background thread of the pool, for work that must not wait for the program's
 * next call.
 *
 * It releases memory that has been idle for release_after_idle, and publishes what the process
 * caches. It answers other processes' demands (core/board/board.h) and enforces leave_free.
 *
 * Lifetime: The thread is made once the pool has taken more than HOUSEKEEPER_BYTES from the driver,
 * or any bytes of a group's limit. It ends when nothing of that is free (cached or pending). From
 * then on the first free makes it again. So at most HOUSEKEEPER_BYTES may lie idle unnoticed in a
 * process, and frees on the fast path do no work for the thread (core/contexts/housekeeping.h says
 * how). While anything is free, the thread wakes about once a second. While another process waits
 * for pending memory, it wakes as often as every few milliseconds. While nothing is free there is
 * no thread.
 *
 * Thread: The C library makes the thread (never a bare clone), inside a slow path of the program's.
 * It is detached and has a small stack. It blocks all signals except those of its own faults, and
 * has no real-time priority. Nothing waits for it, not even at the end of the process, and a forked
 * child has none. Where no thread can be made, or the settings forbid one, only slow paths release
 * idle memory.
 *
 * The thread calls the driver as any other thread of the program does: contexts are pinned, queries
 * use the relaxed mode, and nothing is recorded while captures go on. It holds no lock of the pool
 * while it waits or sleeps.
 */
#ifndef CUDAPOOL_CORE_HOUSEKEEPER_H
#define CUDAPOOL_CORE_HOUSEKEEPER_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* Bytes that a process without a group's limit may have taken from the driver before the thread is
 * made. */
#define HOUSEKEEPER_BYTES (UINT64_C(8) << 20)

/* A free of this many bytes is published at once. */
#define HOUSEKEEPER_MUCH (UINT64_C(16) << 20)

/* To be called once, when the pool starts. */
void housekeeper_prepare(struct pool *pool);

/* To be called on slow paths after something was freed. Makes the thread where there should be one,
 * and publishes what is new, at once if it was much. bytes: at least this many were freed. The
 * caller may hold the lock of primary contexts, which is held across driver calls, and no other
 * lock. Cheap where there is nothing to do. */
void housekeeper_look(struct pool *pool, uint64_t bytes);

/* As housekeeper_look, after a miss. A miss frees nothing, but a fast path may free what it has
 * taken, unseen before the next slow path. */
void housekeeper_look_after_miss(struct pool *pool);

/* To be called when the process exits by itself: the housekeeper begins nothing more.
 * Async-signal-safe. */
void housekeeper_stop(struct pool *pool);

/* To be called in the child of a fork, which has no such thread. Async-signal-safe. */
void housekeeper_forget(struct pool *pool);

#endif
