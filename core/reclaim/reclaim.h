/*
 * Releases memory before a call fails for want of it, whether the driver or a limit is in the way.
 *
 * Each step asks all kinds of memory before the next step begins. First every kind releases what is
 * clean. Then every kind releases what its fences make clean, and the driver's own pools are
 * trimmed. Then other processes are asked for what they cache (neighbours.h), and last every kind
 * waits for the rest. So steps that cost nothing come before steps that may take long, whichever
 * kind has the memory.
 *
 * The callers hold no lock, and no lock is held while a kind is asked.
 */
#ifndef CUDAPOOL_CORE_RECLAIM_H
#define CUDAPOOL_CORE_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "kept.h"

#include "progress.h"

struct context;
struct device;
struct pool;

/* For any call that is out of memory. Each call does the next thing that may release memory, and
 * returns false where nothing is left to try.
 *
 * After the last step it begins again, for some seconds at most, in three cases:
 * - This thread has released something that another may have taken.
 * - Another thread is still releasing.
 * - Others have allocated and freed meanwhile although there would be enough for the request.
 *
 * device NULL: all devices. Then it begins again for one second at most, and once more when another
 * thread has released something. It does not wait for others' pending memory before all that this
 * process has pending has completed. */
bool reclaim_for_retry(struct pool *pool, struct device *device, struct reclaim *progress);

#endif
