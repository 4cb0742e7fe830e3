/*
 * The driver's memory pools of managed and of host memory. The pool has no blocks in them, and the
 * driver answers every call on them. The driver gives them a release threshold of 0. So each
 * synchronisation returns all their free memory to the system, and the next allocation takes it
 * again.
 *
 * If the settings have an unserved_release_threshold, such a pool gets it when the program creates
 * it or asks for it (mempool_list.h). A threshold that the program has set itself stays. Pools of
 * host memory get at most what may be cached of pinned memory, and nothing if pinned memory is
 * switched off. By default these pools have no records and nothing of this happens, because its
 * effect on a GPU has not been measured.
 *
 * What they hold is released when memory is short, on the device (managed memory) or on the machine
 * (both). The housekeeper also releases it when the program has used none of them for
 * release_after_idle. A free does not say which pool it concerns, so the idle time is one for all
 * of them:
 *
 *   NONE --(a use)--> TOUCHED --(a look)--> WATCHED --(idle: trimmed)--> NONE
 *                     TOUCHED <--(a use)--- WATCHED
 *
 * The program may destroy a pool while another thread trims it. A thread that calls the driver
 * raises `callers` first and then checks that the pool is open. mempool_destroying closes the pool
 * first and then waits until callers is 0.
 *
 * Locking: the callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_UNSERVED_H
#define CUDAPOOL_CORE_MEMPOOL_UNSERVED_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "mempool.h"

struct pool;

/* Called when the pool starts. If the settings have a threshold, reads the machine's memory, which
 * it depends on. */
void mempool_unserved_start(struct pool *pool);

/* The program was given this pool by a call that says what its memory is. Does nothing if the
 * settings leave such pools alone, if the memory is a device's own, or if the pool is known. */
void mempool_met(struct pool *pool, CUmemoryPool handle, const CUmemLocation *location,
                 CUmemAllocationType type);

/* The driver has answered an allocation from a pool that is not served, or a free of an address
 * that is no block of ours. */
void mempool_unserved_used(struct pool *pool);

/* Called before the program destroys the pool. Waits until no other thread is in a driver call of
 * ours on it. */
void mempool_await_callers(struct mempool *mempool);

/* Memory is short, on a device or on the machine: releases what these pools hold. False: no pool
 * was trimmed. */
bool mempool_trim_unserved(struct pool *pool, bool of_machine);

/* Does what mempool_trim_unserved does, and sets *any to its answer. Returns the bytes released. */
uint64_t mempool_empty_unserved(struct pool *pool, bool of_machine, bool *any);

/* Called by the housekeeper alone: see leave_to_machine in struct kind. */
uint64_t mempool_look_after_unserved(struct pool *pool, uint64_t now);

#endif
