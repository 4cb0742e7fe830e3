/*
 * One event of a fence, or of a round (rounds.h), and what the driver's answers about it mean.
 */
#ifndef CUDAPOOL_CORE_FENCE_EVENT_H
#define CUDAPOOL_CORE_FENCE_EVENT_H

#include "fence.h"

struct pool;

/* fence_event_make creates an event in the context, which becomes current for that time. no_entry:
 * the result where it cannot be made current. Fence lock held for fence_event_destroy. */
CUresult fence_event_make(struct pool *pool, struct context *context, CUresult no_entry,
                          struct fence_event *made);
void fence_event_destroy(struct pool *pool, const struct fence_event *e);

/* Destroys the event, if there is one, unless its context has ended or may be about to end. Its end
 * destroys the event then. Pins the context meanwhile. */
void fence_event_destroy_pinned(struct pool *pool, const struct fence_event *e);

/* No lock held. The driver's answer about an event, also while a capture goes on. The caller keeps
 * the event's context from its end. */
CUresult event_query_relaxed(struct pool *pool, CUevent event);

/* No lock held. The work of a dead context counts as completed. */
CUresult fence_event_query(struct pool *pool, const struct fence_event *e);

/* Whether a fence may leave out the event of a context that answered with this error. A context
 * that has ended no longer works on anybody's memory. If so, the driver answers every call there
 * from now on. */
bool fence_may_leave_out(struct context *context, CUresult result);

/* Fence lock held. Whether any context is dying. */
bool contexts_are_dying(struct pool *pool);

/* Whether the error stays in its context, all of whose work has ended. */
bool epoch_is_the_end(CUresult result);

/* Fence lock held. What the driver's answer to a record or a wait means. */
enum record_result epoch_judge_record(struct pool *pool, CUresult result);

#endif
