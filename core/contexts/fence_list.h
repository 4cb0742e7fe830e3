/*
 * The fences of a context: those that are outstanding, by ascending epoch, and spare ones. The
 * context's lock is held for all of these.
 */
#ifndef CUDAPOOL_CORE_FENCE_LIST_H
#define CUDAPOOL_CORE_FENCE_LIST_H

#include "fence.h"

/* A fence to be recorded, whose events may be used again; NULL where memory is short. */
struct fence *fence_take_spare(struct epochs *epochs);
void fence_put_spare(struct epochs *epochs, struct fence *fence);

/* The fence has been recorded, and is the newest. */
void fence_publish(struct epochs *epochs, struct fence *fence);

/* A thread has ceased to look at the fence. One that is over and that nobody looks at any more may
 * be recorded again. */
void fence_drop_user(struct epochs *epochs, struct fence *fence);

/* There are FENCES_MAX: takes out those that the next one serves as well. */
void fences_thin_out(struct epochs *epochs);

/* Takes the oldest fence off the list; whoever still looks at it makes it spare. */
void fences_retire_oldest(struct epochs *epochs);

/* The oldest outstanding fence that frees what is stamped so, or NULL. */
struct fence *epoch_fence_for(const struct epochs *epochs, uint64_t stamp, bool waitable);

#endif
