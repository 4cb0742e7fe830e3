/*
 * Work that ends only if the host acts: host functions and callbacks, graphs that hold such nodes,
 * waits for a value in memory, for an external semaphore.
 *
 * The plain cuMemFree waits for such work, too, but inside the free: between the free and the next
 * allocation a program may take a lock that the host function takes, and then no allocation may
 * wait for it. So each piece of such work leaves a mark in its context. A mark tells between which
 * fences the work was submitted:
 *
 *   a fence of an epoch <= before was recorded before the work: it does not wait for it;
 *   a fence of an epoch >= after was recorded behind it: once that is over, so is the work.
 *
 * While a mark is there, allocations wait only for fences of epochs <= before, and put nothing
 * behind a later one (see host_work_limit). Frees wait for the work, as the plain ones do: else the
 * program's own synchronise, under that lock, would find it still to be done. The fences in between
 * may or may not wait for the work: the number `before` is read before the driver is asked to
 * submit, and `after` when it has answered.
 *
 * An allocation that has waited for a second in vain leaves a mark as well: whatever it waited for
 * is taken for such work. But it is unknown: the program may have taken the lock that it needs
 * since an earlier free, in which the driver would have waited for it. So frees wait for that for a
 * second at most, but beside known work as long as it takes: a free that gave up there would let
 * the program take a lock that the known work needs, and the next call that waits would never
 * return. What a free has given up on is unwaited, too.
 *
 * Locking: the marks are guarded by their context's lock. The list of graphs has a lock of its own.
 */
#ifndef CUDAPOOL_CORE_HOST_MARKS_H
#define CUDAPOOL_CORE_HOST_MARKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* More marks than this are one: the fences between them then count for both. */
#define HOST_MARKS 8u

struct host_mark {
    uint64_t before, after; /* epochs, before <= after */
    bool known;             /* it was submitted as such work; else waited for in vain */
};

struct host_work {
    struct host_mark marks[HOST_MARKS];
    unsigned count;
    unsigned freeing; /* threads in a driver call that waits for all of the context's work; it has
                         begun where there was no work of the host's: see host_work_may_free */
    unsigned submitting;        /* threads between host_work_begin and host_work_end */
    uint64_t submitting_before; /* the least `before` of theirs; of use while submitting > 0 */
    uint64_t unwaited; /* an epoch: the newest that was waited for in vain; 0: what that was is over
                        */
    _Atomic uint64_t limit; /* min(marks[].before, submitting_before), UINT64_MAX: no mark. Written
                               under the context's lock; relaxed: who acts on it holds the lock */
};

static inline void host_work_init(struct host_work *work)
{
    atomic_init(&work->limit, UINT64_MAX);
}

/* Fences of later epochs than this may wait for work that only the host ends. */
static inline uint64_t host_work_limit(const struct host_work *work)
{
    return atomic_load_explicit(&work->limit, memory_order_relaxed);
}

/* No lock needed: whoever acts on it looks again. Whether there is any such work. */
static inline bool host_work_goes_on(const struct host_work *work)
{
    return host_work_limit(work) != UINT64_MAX;
}

/* The context's lock is held. A thread is about to submit work that no fence of an epoch up to
 * before can wait for; it has been submitted, which is then marked. */
void host_work_submitting(struct host_work *work, uint64_t before);
void host_work_submitted(struct host_work *work);

/* The context's lock is held. A thread is about to make a driver call that waits for all of the
 * context's work, where the program does not wait for any: false where some of it ends only by the
 * host, or may. Else none is submitted before host_work_has_freed. */
bool host_work_may_free(struct host_work *work);
void host_work_has_freed(struct host_work *work);

/* The context's lock is held. Some work was submitted between the epochs (known), or must be taken
 * for such work. */
void host_work_mark(struct host_work *work, uint64_t before, uint64_t after, bool known);

/* The context's lock is held. What is stamped with this epoch, or what comes before it, was waited
 * for in vain. */
void host_work_note_unwaited(struct host_work *work, uint64_t epoch);

/* The context's lock is held; clean: the newest epoch that is. Whether something was waited for in
 * vain that is still to end; and whether there is work that was submitted as such. */
bool host_work_is_unwaited(const struct host_work *work, uint64_t clean);
bool host_work_is_known(const struct host_work *work);

/* The context's lock is held. The context's own work is over up to the fence of this epoch. */
void host_work_clean(struct host_work *work, uint64_t epoch);

/* The context's lock is held. The context has died, its work with it. */
void host_work_reset(struct host_work *work);

#endif
