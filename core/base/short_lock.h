/*
 * A lock that is held for a moment: for some twenty nanoseconds that of a stream, for a microsecond
 * or two a heap's. Taking it is one exchange, giving it back a plain store, where a mutex needs two
 * exchanges and two calls, and wakes who sleeps for it: that takes a virtual machine tens of
 * microseconds, in which nobody has the lock.
 *
 * Not to be held across anything that may wait for long: driver calls, other locks than those that
 * lock.h allows, the system's memory beyond what a miss takes. The pool takes it by lock_take of
 * lock.h. Whoever has to wait turns a few times, lets others have the processor, and then sleeps,
 * so that a holder that was descheduled gets on, whatever its priority.
 */
#ifndef CUDAPOOL_CORE_SHORT_LOCK_H
#define CUDAPOOL_CORE_SHORT_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

/* All zero: nobody has it. */
struct short_lock {
    _Atomic bool taken; /* acquire when it is taken, release when it is given back */
};

void short_lock_wait(struct short_lock *lock);

static inline void short_lock_take(struct short_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, true, memory_order_acquire), 0))
        short_lock_wait(lock);
}

/* False where somebody has it. */
static inline bool short_lock_try(struct short_lock *lock)
{
    return !atomic_exchange_explicit(&lock->taken, true, memory_order_acquire);
}

static inline void short_lock_give(struct short_lock *lock)
{
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}

/* Of the moment: for tests. */
static inline bool short_lock_is_taken(const struct short_lock *lock)
{
    return atomic_load_explicit(&lock->taken, memory_order_relaxed);
}

#endif
