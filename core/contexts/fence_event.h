/*
 * One event of a fence, or of a round (rounds.h), and what the driver's answers about it mean.
 */
#ifndef CUDAPOOL_CORE_FENCE_EVENT_H
#define CUDAPOOL_CORE_FENCE_EVENT_H

#include "fence.h"

struct pool;

/* Fence lock held, as where it is destroyed. no_entry: the answer where the context cannot be made
 * current. */
CUresult fence_event_make(struct pool *pool, struct context *context, CUresult no_entry,
                          struct fence_event *made);
void fence_event_destroy(struct pool *pool, const struct fence_event *e);

/* No lock held. A context that has died has done its work. */
CUresult fence_event_query(struct pool *pool, const struct fence_event *e);

/* What another context's error means for a fence of ours: a context that has ended no longer works
 * on anybody's memory, and its event may be left out. */
bool fence_may_leave_out(struct context *context, CUresult result);

/* Fence lock held. */
bool contexts_are_dying(struct pool *pool);

/* Errors that stay in a context, all of its work having ended. */
bool epoch_is_the_end(CUresult result);

/* What the answer to a record or a wait says. Fence lock held. */
enum record_result epoch_judge_record(struct pool *pool, CUresult result);

#endif
