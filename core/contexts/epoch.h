/*
 * GPU epochs: what has the GPU finished with?
 *
 * The idea is RCU's, with fences as grace periods. A freed block is stamped with its context's
 * current epoch and is pending. Closing an epoch is: advance the number, then record a fence over
 * all of the context's work (cuCtxRecordEvent), then publish the fence. When the fence has
 * completed, every block stamped up to that epoch is clean: whatever used it was submitted before
 * its free, which was before the number was advanced, which was before the record.
 *
 * Fences are recorded only inside the program's own cuMemFree or context-wide synchronise. So they
 * cover only work that the plain cuMemFree would have waited for there and then. A free may wait
 * for one as long as it takes. An allocation may not: since its free the program may have taken a
 * lock that this work needs in order to end. So allocations do not wait for work that is known to
 * end only if the host acts (host_work.h), and for nothing longer than a second in which nothing
 * became clean. A fence that was recorded elsewhere is not waitable: it is queried, and waited for
 * only where memory is short, and not for long.
 *
 * Once several contexts have existed, a fence is an event in every live one, because cuMemFree
 * also waits for copies of the memory that other contexts make.
 *
 * Locking: struct epochs is guarded by its context's lock. The fence lock (struct pool) is held
 * while recording, so that no capture begins and no context dies meanwhile.
 */
#ifndef CUDAPOOL_CORE_EPOCH_H
#define CUDAPOOL_CORE_EPOCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/base/mutation.h"
#include "core/driver/cuda_abi.h"
#include "host_work.h"

struct context;
struct pool;

struct fence_event {
    struct context *context;
    uint64_t generation; /* of the context: another one means that it died, and its work with it */
    CUevent event;
    bool done; /* belongs to whoever has set epochs.querying, and before that to who records it */
};

struct fence {
    uint64_t own_generation; /* of its own context when its epoch was closed */
    uint64_t epoch;          /* completed: everything stamped up to here is clean */
    bool waitable;           /* recorded inside the program's own free or synchronise */
    uint64_t recorded_at;    /* nanoseconds of the monotonic clock, when that was done */
    bool over;               /* no longer outstanding; spare once users is 0 */
    unsigned users;          /* threads that look at it; an event in use is never recorded again */
    uint64_t set_generation; /* of the set of contexts that events was made for */
    unsigned event_count;
    struct fence_event *events; /* written under the fence lock, before the fence is published */
    struct fence *next;
};

struct epochs {
    /* Read by every free and allocation, written once an epoch: in a cache line of their own. */
    _Atomic uint64_t current; /* frees are stamped with it; starts at 1. Written under the lock,
                                 before the record; relaxed: thread_cache.h tells what orders it */
    _Atomic uint64_t clean;   /* everything stamped up to here is unused; never less than it was.
                                 Written under the lock, release; acquire where blocks are taken
                                 without it */
    _Atomic uint64_t fenced;  /* everything stamped up to here has a fence that may be waited for.
                                 Written under the lock, relaxed: it only says what is worth asking
                                 about */
    char after[64];
    _Atomic bool asked_for; /* a thread that waits without the lock is about to ask. Acquire and
                               release, though it guards nothing: of those who wait, one asks */
    _Atomic bool
        closed_for; /* likewise: of those whose fence is due at a time, one closes the epoch */
    _Atomic bool keeps_up; /* the GPU: fences are over soon. Relaxed: it chooses what is tried */
    uint64_t barrier;      /* all later work of the context is ordered behind this epoch's fence */
    struct fence *oldest, *newest; /* outstanding fences, by ascending epoch */
    unsigned outstanding;
    struct fence *spare;
    bool shared; /* several threads use memory that the fences guard; written by the kind that
                    counts them */
    bool owed;   /* a fence is, that could not be recorded while another was: by who records */
    unsigned failures; /* epochs in a row that no fence could be recorded for */
    /* Written with the lock held. Relaxed: whoever waits for them takes the lock afterwards. */
    _Atomic bool recording; /* a thread is between advancing the number and publishing the fence */
    _Atomic bool recording_for_free; /* or the last one did so, in a free or synchronise of its own:
                                may be waited for */
    _Atomic bool querying;     /* a thread is asking the driver about a fence of this context */
    _Atomic uint64_t asked_at; /* nanoseconds of the monotonic clock: when a fence was last seen
                                  running. Written under the lock; relaxed */
    struct host_work host_work;
};

/* More fences than this are never outstanding: of that many every second one goes, since what it
 * covers the next one covers too. */
#define FENCES_MAX 512u

enum fence_answer {
    FENCE_OVER,
    FENCE_OWN_OVER, /* its own context's part is over, another context's is not */
    FENCE_RUNNING,
    FENCE_FAILED, /* the context is unusable, or a capture is in the way */
};

/* Lock held. Advances the number and claims the right to record; NULL where another thread has it,
 * too many fences are outstanding or memory is short. A fence that is returned must go to
 * epoch_record. */
struct fence *epoch_begin_close(struct context *context, bool waitable);

/* No lock held. Records the fence that epoch_begin_close gave and publishes it, or drops it. An
 * error that stays in the context is returned, as the plain cuMemFree would. */
CUresult epoch_record(struct pool *pool, struct context *context, struct fence *fence);

/* The same in two steps, for a caller who has more to do under the lock: the first one returns with
 * it held, the second one is called without. ask: whoever records is in the driver anyway, and
 * where the GPU has nothing to do a fence is over as soon as it is recorded; so that nobody else
 * has to ask. */
struct epoch_recorded {
    CUresult error;
    bool unusable; /* an error stays in the context */
    bool hopeless; /* too many epochs have no fence */
    bool unfenced; /* what was freed has none, again */
};
struct epoch_recorded epoch_record_and_lock(struct pool *pool, struct context *context,
                                            struct fence *fence, bool ask);
CUresult epoch_settle_record(struct pool *pool, struct context *context,
                             const struct epoch_recorded *recorded);

/* No lock held. Gives what is pending without a fence one that is only ever queried: this is
 * neither a free nor a synchronise. Where another thread is recording one, it comes first. */
void epoch_fence_the_rest(struct pool *pool, struct context *context);

/* Lock held. The oldest outstanding fence that frees what is stamped so, or NULL. */
struct fence *epoch_fence_for(const struct epochs *epochs, uint64_t stamp, bool waitable);

/* Lock held on entry and return, released in between. Asks the driver whether the fence is over
 * and, if so, makes clean what it covers. FENCE_RUNNING where another thread is asking, or has just
 * been told so: every question takes the driver's lock, for which launches wait. */
enum fence_answer epoch_query(struct pool *pool, struct context *context, struct fence *fence);

/* Lock held on entry and return, released in between. Where the stamp is not clean and another
 * thread is asking the driver, or recording the fence that would cover it, waits until that is
 * done, for a tenth of a millisecond at most: the driver's lock serves one at a time anyway. */
void epoch_await_others(struct context *context, uint64_t stamp);

/* Lock held on entry and return, released in between. Waits patiently on the host, for the oldest
 * waitable fence that covers the stamp, until everything stamped so is clean. Gives up when only
 * other contexts' work is left, which the plain cuMemFree does not wait for. in_free: inside a free
 * of the program's own, as long as it takes; in_allocation: not for what may be behind work that
 * the host ends, and when nothing has become clean for a second, that is taken for such work, and
 * the context's frees wait for a while (waited_in_vain of struct kind). */
bool epoch_wait_in_free(struct pool *pool, struct context *context, uint64_t stamp);
bool epoch_wait_in_allocation(struct pool *pool, struct context *context, uint64_t stamp);

/* An allocation waits for no longer than so while nothing becomes clean: nanoseconds. */
#define VAIN_WAIT_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* How long an allocation that would otherwise fail waits for work that the plain cuMemFree might
 * not have waited for, and anybody for another thread's record that nothing can go on without. */
#define LAST_RESORT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Lock held. An allocation has waited for so long: nobody knows what the fences that are
 * outstanding wait for. All who wait for them in an allocation go on, and those who come later need
 * not find out. */
void epoch_give_up_waiting(struct pool *pool, struct context *context);

/* Where memory is short: for as much as a free would wait for, whatever the host may have to do for
 * it, but not longer than until the monotonic clock shows give_up_at nanoseconds. */
bool epoch_wait_when_short(struct pool *pool, struct context *context, uint64_t stamp,
                           uint64_t give_up_at);

/* No lock held. The same for the newest fence that frees would have waited for, also where nothing
 * of ours is pending: what the program freed in a stream's order, past the pool, would have been
 * back after that. Bounded: the program may have taken a lock since that the work needs. */
void epoch_wait_for_frees(struct pool *pool, struct context *context, uint64_t give_up_at);

/* In an allocation, for some thirty microseconds at most, where the fence has been recorded. */
bool epoch_wait_a_moment(struct pool *pool, struct context *context, uint64_t stamp);

/* The same for any fence that covers the stamp, whatever it may be behind, other contexts' work
 * included, and not longer than until the monotonic clock shows give_up_at nanoseconds. */
bool epoch_wait_until(struct pool *pool, struct context *context, uint64_t stamp,
                      uint64_t give_up_at);

/* Errors that stay in a context, all of its work having ended. */
bool epoch_is_the_end(CUresult result);

/* No lock needed. The program's own wait or query has answered this: after an error that stays in
 * the context the pool steps aside there. */
void epoch_note_error(struct context *context, CUresult result);

/* No lock held. Around the program's own context-wide synchronise: what was pending when it was
 * entered is clean when it has succeeded. begin's answer goes to end. */
uint64_t epoch_synchronise_begin(struct pool *pool, struct context *context);
void epoch_synchronise_end(struct pool *pool, struct context *context, uint64_t epoch,
                           CUresult result);

/* Lock held. Everything stamped up to epoch is unused: known from a fence or a synchronise. */
void epoch_complete(struct context *context, uint64_t epoch);

/* Lock held on entry and return, released in between. Orders all later work of the context behind
 * the fence, on the device. False where that is not possible now. */
bool epoch_raise_barrier(struct pool *pool, struct context *context, struct fence *fence);

/* No lock held; barriers are closed. What this context's barriers have handed out may be reached
 * from outside of it, by the context with that handle: its later work is ordered behind the same
 * fences, on the device. Where that cannot be done, the fences are waited for. */
void epoch_order_behind_barrier(struct pool *pool, struct context *context, CUcontext handle);

/* Lock held, the context has died. Forgets all fences without a driver call. */
void epoch_reset(struct epochs *epochs);

static inline uint64_t epoch_clean(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->clean, memory_order_acquire);
}

static inline uint64_t epoch_current(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->current, memory_order_relaxed);
}

/* Whether a fence may be asked about again. No lock needed. */
bool epoch_may_be_asked(const struct epochs *epochs, uint64_t now);

/* Whether the GPU's work was over soon after the last fences. */
static inline bool epoch_keeps_up(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->keeps_up, memory_order_relaxed);
}

/* Whether a thread is in the driver for this context's fences. */
static inline bool epoch_is_asked_about(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return atomic_load_explicit(&epochs->querying, memory_order_relaxed) ||
           atomic_load_explicit(&epochs->recording, memory_order_relaxed);
}

/* No lock needed. Whether a thread records a fence, or is about to close an epoch. */
static inline bool epoch_fence_is_near(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->recording, memory_order_relaxed) ||
           atomic_load_explicit(&epochs->closed_for, memory_order_relaxed);
}

/* No lock needed. Whether another thread's free or synchronise has closed the epoch that a thread
 * has read the number of: its fence serves that one's frees, too, and its next free counts anew. */
static inline bool epoch_is_closed(const struct epochs *epochs, uint64_t stamp)
{
    return epoch_current(epochs) != stamp &&
           atomic_load_explicit(&epochs->recording_for_free, memory_order_relaxed) &&
           !MUTATED(closed_twice);
}

/* The number of the epoch that this closes. */
static inline uint64_t epoch_advance(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t closed = epoch_current(epochs);
    atomic_store_explicit(&epochs->current, closed + 1, memory_order_relaxed);
    return closed;
}

#endif
