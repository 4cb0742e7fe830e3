/*
 * What the housekeeper's thread does. Called by housekeeper.c, which makes the thread.
 */
#ifndef CUDAPOOL_CORE_HOUSE_H
#define CUDAPOOL_CORE_HOUSE_H

#include "core/figures/states.h"

struct pool;

/* What the figures say of the thread. */
void house_count_state(const struct pool *pool, enum housekeeper_state state);

/* The thread; pool: a struct pool. Returns when nothing is free any more, or the process ends. */
void *house_keep(void *pool);

#endif
