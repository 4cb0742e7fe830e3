/*
 * The rule on what a call that is out of memory may wait for. All of the rule is here.
 *
 * - It waits for memory that plain frees have left pending, in this process or another. The plain
 *   program would have waited for it earlier, in its free.
 * - It never waits for memory that was freed in stream order, since the driver does not either. It
 *   only gives the device a moment to tell which of this work has completed.
 * - It waits only if the memory could be enough for the request. The sum includes clean memory,
 *   what the driver has, and what other processes can give, as the board says. Whether it is in one
 *   piece is not known beforehand.
 * - It does not repeat a wait that did not help another thread. It waits again once a fence of that
 *   memory has completed, or other pending bytes that are enough have been added.
 *
 * So a request that cannot be met is refused at once, however often it is made. Where a request's
 * size is not known (modules, contexts, graphs), any memory could be enough.
 *
 * The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_WAITING_H
#define CUDAPOOL_CORE_WAITING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/board/board.h"

struct context;
struct device;
struct pool;
struct reclaim;

/* How long the device may take to tell of completed work: nanoseconds. */
#define TELL_NANOSECONDS (UINT64_C(8) * 1000 * 1000)

/* A thread that has given it this time and learned nothing asks again after this pause at the
 * soonest: nanoseconds. */
#define TELL_AGAIN_NANOSECONDS (UINT64_C(200) * 1000 * 1000)

/* Sets *left to the bytes left for the request: inside the limit, inside the group's limit, or with
 * the driver. Returns false where that is not known. */
bool bytes_left(struct pool *pool, const struct device *device, const struct reclaim *progress,
                uint64_t *left);

/* Returns what the pool has taken of the device's memory, without what the call has reserved for
 * itself. */
uint64_t reserved_before(const struct device *device, const struct reclaim *progress);

/* Returns what all kinds hold of the device (NULL: of all devices) and the call may hope for, see
 * returnable in struct kind. */
uint64_t returnable_bytes(struct pool *pool, struct device *device);

/* Whether there would be enough for the request if all of returnable_bytes were released. False
 * where that is not known. Always true of host memory. */
bool request_may_fit(struct pool *pool, struct device *device, const struct reclaim *progress);

/* Whether the call may wait for what plain frees have left pending in the context. Memory that was
 * freed in stream order counts towards the request: it is clean once the work that a plain free
 * would have waited for has completed. */
bool may_wait_for_frees(struct pool *pool, struct device *device, struct context *context,
                        const struct reclaim *progress);

/* Whether the call may give the device a moment to tell which stream-ordered frees have completed.
 */
bool may_look_at_streams(struct pool *pool, struct device *device, const struct reclaim *progress);

/* Whether the call may wait for memory that the driver has or will get back in order of the
 * request's own stream. The driver alone would give it to that stream at once. */
bool may_wait_for_the_driver(struct pool *pool, struct device *device,
                             const struct reclaim *progress);

/* Returns what other processes have now, of what the request may come from. */
struct board_bytes ask_board(const struct device *device, const struct reclaim *progress);

/* Returns what other processes cache, and what their plain frees have left pending, less what was
 * waited for without success. */
uint64_t bytes_of_others(struct device *device, const struct reclaim *progress);

/* ---- a wait for bytes of which only the sum is known ---- */

/* waited: the number of bytes that were waited for without success; 0: none. Relaxed: of several
 * threads that wait, one's number may be lost. */

/* Returns the counter for what plain frees of other processes have left pending. Where the group's
 * limit is in the way, it counts only the group's processes. */
_Atomic uint64_t *waited_for_others(struct device *device, const struct reclaim *progress);

/* Returns those of the pending bytes that nobody has waited for without success. */
uint64_t fresh_bytes(_Atomic uint64_t *waited, uint64_t pending);

/* Notes that this many pending bytes were waited for without success. */
void note_waited_bytes(_Atomic uint64_t *waited, uint64_t pending);

#endif
