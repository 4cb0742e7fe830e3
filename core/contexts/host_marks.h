/*
 * This file keeps marks of work that ends only if the host acts. Such work is a host function or
 * callback, a graph with such nodes, or a wait for memory or an external semaphore to get a value.
 *
 * The plain cuMemFree waits for such work too, but inside the free. Between the free and the next
 * allocation a program may take a lock that the host function takes. Then no allocation may wait
 * for that work. So each piece of such work leaves a mark in its context, which says between which
 * fences the work was submitted:
 *
 *   epoch of a fence <= before: recorded before the work; the fence does not wait for the work;
 *   epoch of a fence >= after:  recorded after the work; once it has completed, the work has, too.
 *
 * While there is a mark, allocations wait only for fences of epochs <= before, and order nothing
 * after a later fence (see host_work_limit). Frees wait for the work, as the plain ones do.
 * Otherwise the program's own synchronise, under that lock, would find the work unfinished. Fences
 * in between may or may not wait for the work: `before` is read before the driver is asked to
 * submit, and `after` when the driver has answered.
 *
 * An allocation that has waited for a second without success leaves a mark as well, since what it
 * waited for is taken for such work. But that work is not known to need the host. Since an earlier
 * free, in which the driver would have waited, the program may have taken a lock that the work
 * needs. So frees wait for that work for a second at most. If known work is there as well, they
 * wait as long as it takes. A free that gave up there would let the program take a lock that the
 * known work needs. The next call that waits would then never return. Work that a free has given up
 * on is unwaited, too.
 *
 * Locking: the context's lock guards its marks. The list of graphs has a lock of its own.
 */
#ifndef CUDAPOOL_CORE_HOST_MARKS_H
#define CUDAPOOL_CORE_HOST_MARKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The most marks of a context. Further work is merged into the last mark: the fences between the
 * two then count for both. */
#define HOST_MARKS 8u

struct host_mark {
    uint64_t before, after; /* epochs, before <= after */
    bool known; /* the work was submitted as such; else a call waited for it without success */
};

struct host_work {
    struct host_mark marks[HOST_MARKS];
    unsigned count;
    /* Threads in a driver call that waits for all of the context's work. The call began while only
     * the GPU had work: see host_work_may_free. */
    unsigned freeing;
    unsigned submitting;        /* threads between host_work_begin and host_work_end */
    uint64_t submitting_before; /* their least `before`; valid while submitting > 0 */
    /* The newest epoch that was waited for without success; 0: none, or that work has completed. */
    uint64_t unwaited;
    /* min(marks[].before, submitting_before), UINT64_MAX: no mark. Written under the context's
     * lock. Relaxed: whoever acts on it holds the lock. */
    _Atomic uint64_t limit;
};

static inline void host_work_init(struct host_work *work)
{
    atomic_init(&work->limit, UINT64_MAX);
}

/* Fences of later epochs than this may wait for work that only the host can end. */
static inline uint64_t host_work_limit(const struct host_work *work)
{
    return atomic_load_explicit(&work->limit, memory_order_relaxed);
}

/* No lock needed: whoever acts on the answer looks again. Whether only the host can end some
 * work. */
static inline bool host_work_goes_on(const struct host_work *work)
{
    return host_work_limit(work) != UINT64_MAX;
}

/* The context's lock is held. host_work_submitting: a thread is about to submit work that no fence
 * of an epoch up to before can wait for. host_work_submitted: the work was submitted, and the
 * caller marks it next. */
void host_work_submitting(struct host_work *work, uint64_t before);
void host_work_submitted(struct host_work *work);

/* The context's lock is held. A thread is about to make a driver call that waits for all of the
 * context's work, where the program itself does not wait. False where some of that work ends, or
 * may end, only by the host. True: no such work is submitted before host_work_has_freed. */
bool host_work_may_free(struct host_work *work);
void host_work_has_freed(struct host_work *work);

/* The context's lock is held. Work was submitted between the two epochs. It needs the host (known),
 * or must be treated so. */
void host_work_mark(struct host_work *work, uint64_t before, uint64_t after, bool known);

/* The context's lock is held. Work up to the fence of this epoch was waited for without success. */
void host_work_note_unwaited(struct host_work *work, uint64_t epoch);

/* The context's lock is held; clean: the newest clean epoch. host_work_is_unwaited: whether work
 * that was waited for without success may still run. host_work_is_known: whether work was submitted
 * as work of the host. */
bool host_work_is_unwaited(const struct host_work *work, uint64_t clean);
bool host_work_is_known(const struct host_work *work);

/* The context's lock is held. The context's own work up to this epoch's fence has completed. */
void host_work_clean(struct host_work *work, uint64_t epoch);

/* The context's lock is held. The context has died, and its work with it. */
void host_work_reset(struct host_work *work);

#endif
