/*
 * Asks the user's other processes for memory that they cache or have pending on the device, when
 * this process is out of memory.
 *
 * A process with nothing more to release asks the others through the board (core/board/board.h),
 * and each of them releases what it caches to the driver. So a call that is out of memory fails
 * only where it would have failed without the pool. If a rival takes released memory first, this
 * process asks again.
 *
 * No lock is held, so two processes that ask each other both get answers. All waits are bounded.
 * BOARD_SILENCE_NANOSECONDS bounds a wait for an answer. A wait for others' pending memory ends
 * LAST_RESORT_NANOSECONDS after the first step of reclaim. The process's own fences have the same
 * bound and follow the same rule (waiting.h).
 */
#ifndef CUDAPOOL_CORE_NEIGHBOURS_H
#define CUDAPOOL_CORE_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

struct device;
struct pool;
struct reclaim;

/* Whether other processes can be asked: this process is on a board, the bound in the way is not its
 * own limit, and there is time left. */
bool neighbours_may_help(struct pool *pool, const struct device *device,
                         const struct reclaim *progress);

/* Asks others for what the call of this progress lacks on the device (NULL: on any). To be called
 * after neighbours_may_help. Returns true where something was given, so that the call is worth
 * another try. own: bytes that this process itself may still release. wait: also waits for what
 * others have pending. */
bool neighbours_ask(struct pool *pool, struct device *device, struct reclaim *progress,
                    uint64_t own, bool wait);

/* Notes that the driver has given this many bytes of the device. A process that takes memory piece
 * by piece until none is free asks others for more than its next piece. */
void neighbours_note_taken(struct device *device, uint64_t bytes);

/* Counts what others hold, when the call fails although they were asked. */
void neighbours_note_failure(const struct device *device, const struct reclaim *progress);

#endif
