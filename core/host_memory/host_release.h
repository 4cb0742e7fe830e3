/*
 * Giving pinned memory back.
 *
 * cuMemFreeHost waits for the context's work, and keeps others out of the driver meanwhile. So it
 * is called inside the program's own frees, where the driver's would have waited; and elsewhere
 * only while the context has no work, which is asked before each block, and, where nobody is out of
 * memory, while the program has launched nothing for a second.
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_HOST_RELEASE_H
#define CUDAPOOL_CORE_HOST_RELEASE_H

#include "host_heap.h"

struct kept_bytes;
struct reclaim;

/* Whether more is free than may be, of all contexts. Read without a lock. */
bool host_is_past_cap(struct pool *pool);

/* Whether the reserve ratio leaves room for a new block of so many bytes. Of the moment. */
bool host_has_room(const struct pool *pool, struct host_heap *heap, uint64_t bytes);

/* Whether memory is short and could not go back beside the GPU's work. */
bool host_is_wanted(struct pool *pool);

/* Inside a free of a block of that key: what is wanted, and what is past the caps and the reserve
 * ratio. */
void host_release_excess(struct pool *pool, struct host_heap *heap, uint64_t key);

/* Inside an allocation, before so many bytes are asked for: what the cgroup lacks. */
void host_release_before_growth(struct pool *pool, uint64_t bytes);

/* Inside a free: what is pending goes to the driver. */
void host_release_pending(struct pool *pool, struct context *context);

/* Frees look at no clock: their blocks are stamped with the time that was last told here. Where
 * nobody had told it for long, nobody knows how old those are: then they count as freed just now.
 */
void host_tell_time(struct host_heap *heap, uint64_t now);

/* Inside a free in a context that goes on without the pool: all that is free there. */
void host_release_stranded(struct pool *pool, struct context *context);

/* Of struct kind (kind.h). The memory is the machine's, so that nothing of it helps a device. */
uint64_t host_give_back(struct pool *pool, struct device *device, uint64_t bytes);
bool host_wait_for_the_rest(struct pool *pool, struct device *device,
                            const struct reclaim *progress);
uint64_t host_trim(struct pool *pool);
uint64_t host_leave_to_machine(struct pool *pool, uint64_t now);
uint64_t host_release_idle(struct pool *pool, struct device *device, uint64_t now);
bool host_watch(struct pool *pool);
void host_add_kept(struct pool *pool, struct device *device, struct kept_bytes *sum);

#endif
