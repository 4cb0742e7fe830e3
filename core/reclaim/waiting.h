/*
 * What a call that is out of memory may wait for: the one home of the rule.
 *
 * - It waits for what the plain program would have waited for earlier, in its free: what plain
 *   frees have left pending, of this process or of another one.
 * - It never waits for what was freed in a stream's order: the driver does not either. It gives the
 *   device a moment to tell what of that is over.
 * - It waits only if the memory could be enough for the request, in sum with what is clean, what
 *   the driver has and what other processes can give, as the board says. Whether that is in one
 *   piece nobody knows before.
 * - It does not wait again for what somebody has waited for without success, until a fence of it
 *   has become clean, or other pending bytes have joined that are enough.
 *
 * So a request that cannot be met is refused at once, however often it is made. Where the size of a
 * request is not known (modules, contexts, graphs), any memory could be enough.
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_WAITING_H
#define CUDAPOOL_CORE_WAITING_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct device;
struct pool;
struct reclaim;

/* So long the device may take to tell of work that is over: nanoseconds. */
#define TELL_NANOSECONDS (UINT64_C(8) * 1000 * 1000)

/* Who has given it so long, and learned nothing, asks again no sooner than so: nanoseconds. */
#define TELL_AGAIN_NANOSECONDS (UINT64_C(200) * 1000 * 1000)

/* Bytes that are there for the request: inside the limit, the group's limit, or in the driver.
 * False where nobody knows. */
bool bytes_left(struct pool *pool, const struct device *device, const struct reclaim *progress,
                uint64_t *left);

/* What the pool has taken of the device's memory, without what the call has reserved for itself. */
uint64_t reserved_before(const struct device *device, const struct reclaim *progress);

/* What all kinds hold of the device (NULL: of all) and the call may hope for, as in struct kind. */
uint64_t returnable_bytes(struct pool *pool, struct device *device);

/* Whether there would be enough if all of that were given back. False where nobody knows; of the
 * machine's memory it is assumed. */
bool request_may_fit(struct pool *pool, struct device *device, const struct reclaim *progress);

/* Whether the call may wait for what plain frees have left in the context. What was freed in a
 * stream's order counts: behind work that a plain free would have waited for it is over as well. */
bool may_wait_for_frees(struct pool *pool, struct device *device, struct context *context,
                        const struct reclaim *progress);

/* Whether it may give the device a moment to tell what is over of what streams have freed. */
bool may_look_at_streams(struct pool *pool, struct device *device, const struct reclaim *progress);

/* Whether it may wait for what the driver has back, or is to have, behind work of the request's own
 * stream: the driver alone would give it to that stream at once. */
bool may_wait_for_the_driver(struct pool *pool, struct device *device,
                             const struct reclaim *progress);

/* ---- a wait for bytes of which only the sum is known ---- */

/* waited: so many bytes were waited for without success; 0: none were. Relaxed: several threads may
 * wait, and one of them may be forgotten. */

/* Of what the plain frees of other processes have left pending, those of the group where its limit
 * is in the way. */
_Atomic uint64_t *waited_for_others(struct device *device, const struct reclaim *progress);

/* Of so many that are pending now those that nobody has waited for without success. */
uint64_t fresh_bytes(_Atomic uint64_t *waited, uint64_t pending);

/* So many were waited for without success. */
void note_waited_bytes(_Atomic uint64_t *waited, uint64_t pending);

#endif
