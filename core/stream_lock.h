/*
 * A lock that is held for some twenty nanoseconds at a time, and hardly ever waited for: that of a
 * stream. Taking it is one exchange, giving it back a plain store, where a mutex needs two
 * exchanges and two calls; that is a fifth of what a pair of an allocation and a free takes.
 *
 * Not to be held across anything that may wait: driver calls, other locks than those that stream.h
 * names, the system's memory beyond what a miss takes. Whoever has to wait turns a few times, and
 * then sleeps, so that a holder that was descheduled gets on, whatever its priority.
 */
#ifndef CUDAPOOL_CORE_STREAM_LOCK_H
#define CUDAPOOL_CORE_STREAM_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

/* All zero: nobody has it. */
struct stream_lock {
    _Atomic bool taken; /* acquire when it is taken, release when it is given back */
};

void stream_lock_wait(struct stream_lock *lock);

static inline void stream_lock_take(struct stream_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, true, memory_order_acquire), 0))
        stream_lock_wait(lock);
}

static inline void stream_lock_give(struct stream_lock *lock)
{
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}

#endif
