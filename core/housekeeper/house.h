/*
 * What the housekeeper's thread does. housekeeper.c makes the thread and calls this.
 */
#ifndef CUDAPOOL_CORE_HOUSE_H
#define CUDAPOOL_CORE_HOUSE_H

#include "core/figures/states.h"

struct pool;

/* Sets the thread's state in the figures. */
void house_count_state(const struct pool *pool, enum housekeeper_state state);

/* Runs the thread; pool: a struct pool. Returns when nothing is free any more, or the process ends.
 */
void *house_keep(void *pool);

#endif
