/*
 * The driver's memory pools of managed and of host memory. No block of ours comes from them, and
 * the driver answers every call on them; but a release threshold of 0, which is what the driver
 * gives them, makes each synchronisation hand all that is free back to the system, and the next
 * allocation take it again.
 *
 * Where the settings have an unserved_release_threshold, such a pool gets it as soon as the program
 * asks for it or creates it, as long as the program has not set one (mempool_list.h). Pools whose
 * memory is the machine's get no more than what may be cached of pinned memory, and none where
 * pinned memory is switched off. Otherwise, and by default, they have no records here, and nothing
 * of this happens: what it does on a GPU has not been measured.
 *
 * What they keep goes back when memory is short, on the device (managed memory) or on the machine
 * (both), and when the program has not used any of them for release_after_idle; the housekeeper
 * sees to the latter. Since frees do not say which pool they concern, that holds for all of them
 * together:
 *
 *   NONE --(a use)--> TOUCHED --(a look)--> WATCHED --(idle: trimmed)--> NONE
 *                     TOUCHED <--(a use)--- WATCHED
 *
 * The program may destroy a pool while another thread trims it: whoever calls the driver counts
 * itself in `callers` first and then finds the pool open, and mempool_destroying closes it first
 * and then waits until there is none.
 *
 * Locking: none is held by the callers.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_UNSERVED_H
#define CUDAPOOL_CORE_MEMPOOL_UNSERVED_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "mempool.h"

struct pool;

/* As the pool starts: reads of the machine what is needed where the settings have a threshold. */
void mempool_unserved_start(struct pool *pool);

/* The program was given this pool, by a call that names what its memory is. Nothing happens where
 * the settings leave such pools alone, for memory that is a device's own, or where the pool is
 * known. */
void mempool_met(struct pool *pool, CUmemoryPool handle, const CUmemLocation *location,
                 CUmemAllocationType type);

/* The driver has answered an allocation from a pool that is not served, or a free of what is no
 * block of ours. */
void mempool_unserved_used(struct pool *pool);

/* Before the program destroys it: waits until no other thread of ours calls the driver for it. */
void mempool_await_callers(struct mempool *mempool);

/* Memory is short, on a device or on the machine: gives back what they keep. False: they are not in
 * use. */
bool mempool_trim_unserved(struct pool *pool, bool of_machine);

/* Does the same. The bytes that came back; *any: what mempool_trim_unserved answers. */
uint64_t mempool_empty_unserved(struct pool *pool, bool of_machine, bool *any);

/* Called by the housekeeper alone, see leave_to_machine of struct kind. */
uint64_t mempool_look_after_unserved(struct pool *pool, uint64_t now);

#endif
