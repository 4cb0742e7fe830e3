/*
 * Releasing pinned memory to the driver.
 *
 * cuMemFreeHost waits for the context's work and holds the driver's lock meanwhile. So the pool
 * calls it inside the program's own frees, where the driver's free would have waited. Elsewhere it
 * calls it only while the context has no work, and checks that before each block. Where nobody is
 * out of memory, the program must also have launched nothing for a second.
 *
 * Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_HOST_RELEASE_H
#define CUDAPOOL_CORE_HOST_RELEASE_H

#include "host_heap.h"

struct kept_bytes;
struct reclaim;

/* Whether all contexts together have more free bytes than the cap allows. Read without a lock. */
bool host_is_past_cap(struct pool *pool);

/* Whether the reserve ratio has room for a new block of so many bytes. Other threads may change the
 * answer at any time. */
bool host_has_room(const struct pool *pool, struct host_heap *heap, uint64_t bytes);

/* Whether memory is short and could not be released beside the GPU's work. */
bool host_is_wanted(struct pool *pool);

/* Inside a free of a block of this key: releases the bytes that are wanted, and those past the caps
 * and the reserve ratio. */
void host_release_excess(struct pool *pool, struct host_heap *heap, uint64_t key);

/* Inside an allocation, before so many bytes are asked for: releases what the cgroup lacks. */
void host_release_before_growth(struct pool *pool, uint64_t bytes);

/* Inside a free: releases pending blocks to the driver. */
void host_release_pending(struct pool *pool, struct context *context);

/* Sets the time with which frees stamp their blocks, since frees read no clock. After a long gap
 * the ages of the free blocks are unknown: then they count as freed now. */
void host_tell_time(struct host_heap *heap, uint64_t now);

/* Inside a free in a context that the pool no longer serves: releases all free blocks of that
 * context. */
void host_release_stranded(struct pool *pool, struct context *context);

/* Functions for struct kind (kind.h). The memory is the machine's, so releasing it gives no memory
 * to a device. */
uint64_t host_give_back(struct pool *pool, struct device *device, uint64_t bytes,
                        enum release_place place);
bool host_wait_for_the_rest(struct pool *pool, struct device *device,
                            const struct reclaim *progress);
uint64_t host_leave_to_machine(struct pool *pool, uint64_t now);
uint64_t host_release_idle(struct pool *pool, struct device *device, uint64_t now);
bool host_watch(struct pool *pool);
void host_add_kept(struct pool *pool, struct device *device, struct kept_bytes *sum);

#endif
