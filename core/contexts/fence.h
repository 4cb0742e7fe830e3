/*
 * Fences and epochs as data: what struct context holds of them. What they mean and who may change
 * them is told in epoch.h. The context's lock guards all of it but for the atomics, which may be
 * read without.
 */
#ifndef CUDAPOOL_CORE_FENCE_H
#define CUDAPOOL_CORE_FENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/driver/cuda_abi.h"
#include "frees_wait.h"
#include "host_marks.h"

struct context;

/* What the driver's answer to a record of a fence, or a wait for one, says. */
enum record_result {
    RECORDED,
    SYNCHRONISED,
    NOT_NOW,  /* a capture or a dying context is in the way */
    FAILED,   /* this time */
    UNUSABLE, /* an error stays in the context */
};

struct fence_event {
    struct context *context;
    uint64_t generation; /* of the context: another one means that it died, and its work with it */
    CUevent event;
    bool done; /* belongs to whoever asks (epochs.querying, rounds.asking), and before that to who
                  records it */
};

struct fence {
    uint64_t own_generation; /* of its own context when its epoch was closed */
    uint64_t epoch;          /* completed: everything stamped up to here is clean */
    bool waitable;           /* recorded inside the program's own free or synchronise */
    uint64_t recorded_at;    /* nanoseconds of the monotonic clock, when that was done */
    bool over;               /* no longer outstanding; spare once users is 0 */
    unsigned users;          /* threads that look at it; an event in use is never recorded again */
    struct fence_event own;  /* in its own context; made under the fence lock */
    uint64_t round;          /* the number of the round that it needs (rounds.h); 0: none */
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
    unsigned raising;      /* threads that are in the driver for a barrier, which may be there */
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
    /* A call that was out of memory has waited for everything stamped up to that stamp, without
     * success; clean was what it says then. See epoch_waited_for. */
    struct {
        uint64_t stamp, clean;
    } waited;
    /* What epoch_note_freed_in_order says; over once that epoch is clean. */
    struct {
        uint64_t epoch, bytes;
    } in_order;
    struct host_work host_work;
    struct frees_wait frees_wait;
};

/* More fences than this are never outstanding: of that many every second one goes, since what it
 * covers the next one covers too. */
#define FENCES_MAX 512u

static inline uint64_t epoch_clean(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->clean, memory_order_acquire);
}

static inline uint64_t epoch_current(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->current, memory_order_relaxed);
}

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
           atomic_load_explicit(&epochs->recording_for_free, memory_order_relaxed);
}

/* What is stamped so or earlier no call waits for again that is out of memory: one has waited for
 * it without success, and no fence has become clean since. 0: there is no such wait. */
static inline uint64_t epoch_waited_for(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return epochs->waited.clean == epoch_clean(epochs) ? epochs->waited.stamp : 0;
}

/* The number of the epoch that this closes. */
static inline uint64_t epoch_advance(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t closed = epoch_current(epochs);
    atomic_store_explicit(&epochs->current, closed + 1, memory_order_relaxed);
    return closed;
}

/* Whether the host may have to act before the fence of this epoch is over. */
static inline bool epoch_may_be_behind_host_work(const struct epochs *epochs, uint64_t epoch)
{
    return epoch > host_work_limit(&epochs->host_work);
}

#endif
