/*
 * The housekeeper's work for other processes: it publishes what is cached here, gives them what
 * they ask for, and leaves some memory free for processes that cannot ask.
 *
 * The callers hold no lock. Only the housekeeper's thread may call these functions, except where a
 * comment says "any thread".
 */
#ifndef CUDAPOOL_CORE_HOUSEKEEPER_NEIGHBOURS_H
#define CUDAPOOL_CORE_HOUSEKEEPER_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/board/board.h"

struct device;
struct pool;

/* Publishes on the board what is cached and pending on each device. Any thread. */
void neighbours_publish(struct pool *pool);

/* Publishes whether there is a thread that answers demands. Any thread; async-signal-safe. */
void neighbours_listen(struct pool *pool, enum board_listens listens);

/* Releases what others asked for, as far as it is here and GPU work on it has completed, and
 * reports it on the board. Also releases what is cached beyond the limits. Returns true where some
 * of what is wanted is pending, and may be given soon. */
bool neighbours_answer(struct pool *pool);

/* Applies leave_free: where others hold more than they lately did and less than leave_free is left,
 * releases what is missing. now: nanoseconds of the monotonic clock. */
void neighbours_leave_free(struct pool *pool, uint64_t now);

#endif
