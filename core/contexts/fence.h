/*
 * The data of fences and epochs that struct context holds. epoch.h says what they mean and who may
 * change them. The context's lock guards all of it but the atomics, which may be read without the
 * lock.
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

/* What the driver's answer to a record of a fence, or to a wait for one, means. */
enum record_result {
    RECORDED,
    SYNCHRONISED,
    NOT_NOW,  /* a capture or a dying context prevents it */
    FAILED,   /* this time */
    UNUSABLE, /* an error stays in the context */
};

struct fence_event {
    struct context *context;
    /* The generation of the context. If the context has another one now, it died, and its work with
     * it. */
    uint64_t generation;
    CUevent event;
    /* The event has completed. Owned by the thread that asks (epochs.querying, rounds.asking), and
     * before that by the thread that records it. */
    bool done;
};

struct fence {
    uint64_t own_generation; /* of its own context when its epoch was closed */
    uint64_t epoch;          /* once completed, everything stamped up to here is clean */
    bool waitable;           /* recorded inside the program's own free or synchronise */
    bool in_order;           /* recorded for frees in a stream's order: no round begins at once */
    uint64_t recorded_at;    /* when it was recorded: nanoseconds of the monotonic clock */
    bool over;               /* no longer outstanding; spare once users is 0 */
    unsigned users;          /* threads that use it; its event is never recorded again meanwhile */
    struct fence_event own;  /* the event in its own context; made under the fence lock */
    uint64_t round;          /* the number of the round that it needs (rounds.h); 0: none */
    struct fence *next;
};

struct epochs {
    /* ---- own cache line: read by every free and allocation, written once an epoch ---- */
    /* Frees are stamped with it; starts at 1. Written under the lock, before the record. Relaxed:
     * thread_cache.h says what orders it. */
    _Atomic uint64_t current;
    /* Everything stamped up to here is unused; never decreases. Written under the lock with
     * release; read with acquire where blocks are taken without the lock. */
    _Atomic uint64_t clean;
    /* The context's own work before the frees stamped up to here has completed. Other contexts'
     * work may still run. Memory that was freed in a stream's order needs no more. Never decreases.
     * With the lock held, clean <= own_clean < current. Written under the lock with release; the
     * acquire is in epoch_own_clean. */
    _Atomic uint64_t own_clean;
    /* Everything stamped up to here has a waitable fence. Written under the lock. Relaxed: it only
     * says what is worth asking about. */
    _Atomic uint64_t fenced;
    /* The newest epoch that the program's own free or synchronise closed, to record a waitable
     * fence: closed_in_free < current. Written under the lock. Relaxed: it only says when a thread
     * counts its frees anew. */
    _Atomic uint64_t closed_in_free;
    char after[64];
    /* A waiting thread sets this before it takes the lock to query a fence, and clears it after
     * the query. Meanwhile no other waiting thread queries. Acquire and release, though it guards
     * nothing. */
    _Atomic bool asked_for;
    /* A thread whose fence is due sets this before it takes the lock, and clears it once it has
     * closed the epoch. Meanwhile other threads leave the closing to it. Acquire and release,
     * though it guards nothing. */
    _Atomic bool closed_for;
    _Atomic bool keeps_up; /* the GPU completes fences soon. Relaxed: it chooses what is tried */
    uint64_t barrier;      /* all later work of the context is ordered after this epoch's fence */
    /* Threads that are asking the driver for a barrier. Their barrier may be in effect before the
     * field barrier is raised. */
    unsigned raising;
    struct fence *oldest, *newest; /* outstanding fences, by ascending epoch */
    unsigned outstanding;
    struct fence *spare;
    /* Several threads use memory that the fences guard. The kind that counts them writes it. */
    bool shared;
    /* Set when a fence was due while another free was recording one. That free records it next. */
    bool owed;
    unsigned failures; /* epochs in a row for which no fence could be recorded */
    /* A thread is between advancing the number and publishing the fence. recording,
     * recording_for_free and querying are written with the lock held. Relaxed: a thread that waits
     * for them takes the lock afterwards. */
    _Atomic bool recording;
    /* The thread that records, or the last one that did, is in a free or synchronise of the
     * program's own. So its fence is waitable. */
    _Atomic bool recording_for_free;
    _Atomic bool querying; /* a thread is asking the driver about a fence of this context */
    /* When a fence was last seen running, in nanoseconds of the monotonic clock. Written under the
     * lock; relaxed. */
    _Atomic uint64_t asked_at;
    /* A call that was out of memory has waited without success for everything stamped up to stamp.
     * clean is the value of epoch_clean at that time. See epoch_waited_for. */
    struct {
        uint64_t stamp, clean;
    } waited;
    struct {
        /* epoch_note_freed_in_order has noted so many bytes, the last of them in this epoch. bytes
         * counts as 0 once epoch <= clean. */
        uint64_t epoch, bytes;
        /* epoch_ask_in_order asks about no fence before this time, of the monotonic clock; the last
         * pause, in nanoseconds. */
        uint64_t ask_until, pause;
    } in_order;
    struct host_work host_work;
    struct frees_wait frees_wait;
};

/* The most fences outstanding at once. At this number every second one is dropped, since the next
 * fence makes the same blocks clean. */
#define FENCES_MAX 512u

static inline uint64_t epoch_clean(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->clean, memory_order_acquire);
}

static inline uint64_t epoch_own_clean(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->own_clean, memory_order_acquire);
}

static inline uint64_t epoch_current(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->current, memory_order_relaxed);
}

/* Whether the GPU's work completed soon after the last fences. */
static inline bool epoch_keeps_up(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->keeps_up, memory_order_relaxed);
}

/* No lock needed. Whether a thread is recording a fence. */
static inline bool epoch_is_recording(const struct epochs *epochs)
{
    return atomic_load_explicit(&epochs->recording, memory_order_relaxed);
}

/* Whether a thread is recording a fence in a free or synchronise of the program's own. That thread
 * also records what is owed. */
static inline bool epoch_is_recorded_in_free(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return epoch_is_recording(epochs) &&
           atomic_load_explicit(&epochs->recording_for_free, memory_order_relaxed);
}

/* No lock needed. Whether a thread records a fence, or is about to close an epoch. */
static inline bool epoch_fence_is_near(const struct epochs *epochs)
{
    return epoch_is_recording(epochs) ||
           atomic_load_explicit(&epochs->closed_for, memory_order_relaxed);
}

/* No lock needed. Whether stamp <= closed_in_free or stamp <= clean. A thread's next free then
 * begins a new count, since the fence of a closed epoch serves all frees of that epoch. If its
 * record failed, the next fence serves them. */
static inline bool epoch_is_closed(const struct epochs *epochs, uint64_t stamp)
{
    return atomic_load_explicit(&epochs->closed_in_free, memory_order_relaxed) >= stamp ||
           epoch_clean(epochs) >= stamp;
}

/* A call that is out of memory does not wait for blocks stamped up to this epoch. An earlier call
 * has waited for them without success, and nothing has become clean since. 0: no such wait
 * counts. */
static inline uint64_t epoch_waited_for(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return epochs->waited.clean == epoch_clean(epochs) ? epochs->waited.stamp : 0;
}

/* Closes the current epoch and returns its number. */
static inline uint64_t epoch_advance(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t closed = epoch_current(epochs);
    atomic_store_explicit(&epochs->current, closed + 1, memory_order_relaxed);
    return closed;
}

/* Whether the host may have to act before the fence of this epoch completes. */
static inline bool epoch_may_be_behind_host_work(const struct epochs *epochs, uint64_t epoch)
{
    return epoch > host_work_limit(&epochs->host_work);
}

#endif
