/*
 * Out of memory: what other processes of the user cache on the device, and have pending there.
 *
 * A process that has nothing more to give back asks the others by the board (core/board/board.h),
 * each of which gives what it caches back to the driver. So the call that is out of memory fails
 * only where it would have failed without the pool. What a rival takes meanwhile is asked for
 * again.
 *
 * No lock is held, so two processes that ask each other both get their answers. All waits are
 * bounded: for an answer by BOARD_SILENCE_NANOSECONDS, for what others have pending until
 * LAST_RESORT_NANOSECONDS after the first step of reclaim, like the process's own fences, and by
 * the same rule (waiting.h).
 */
#ifndef CUDAPOOL_CORE_NEIGHBOURS_H
#define CUDAPOOL_CORE_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

struct device;
struct pool;
struct reclaim;

/* Whether there is anybody to ask: the process is on a board, what is in the way is not its own
 * limit, and there is time left. */
bool neighbours_may_help(struct pool *pool, const struct device *device,
                         const struct reclaim *progress);

/* Then asks others for what the call that progress is of misses on the device (NULL: on any). True:
 * some was given, so the call is worth trying again. own: bytes that this process itself may still
 * give back. wait: also for what others have pending. */
bool neighbours_ask(struct pool *pool, struct device *device, struct reclaim *progress,
                    uint64_t own, bool wait);

/* The driver has given so many bytes of the device: who takes piece by piece, and comes to the end
 * of what is free, asks others for more than the next piece. */
void neighbours_note_taken(struct device *device, uint64_t bytes);

/* The call fails although others were asked: counts what they hold. */
void neighbours_note_failure(const struct device *device, const struct reclaim *progress);

#endif
