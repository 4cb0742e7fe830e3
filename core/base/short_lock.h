/*
 * A lock that is held for a moment: a stream's for some twenty nanoseconds, a heap's for a
 * microsecond or two.
 *
 * Taking it is one atomic exchange, releasing it one atomic store. A mutex needs two exchanges and
 * two calls, and wakes its sleepers. In a virtual machine a wake takes tens of microseconds, in
 * which nobody has the lock.
 *
 * A thread must not hold it across anything that may wait for long. This means driver calls, and
 * locks that lock.h does not allow after it. It also means taking more memory from the system than
 * a miss takes. The pool takes it by lock_take of lock.h. A thread that has to wait spins a few
 * times, yields the processor, and then sleeps. So a holder that was descheduled can continue,
 * whatever its priority.
 */
#ifndef CUDAPOOL_CORE_SHORT_LOCK_H
#define CUDAPOOL_CORE_SHORT_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

/* All zero: the lock is free. */
struct short_lock {
    _Atomic bool taken; /* taken with acquire order, released with release order */
};

void short_lock_wait(struct short_lock *lock);

static inline void short_lock_take(struct short_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, true, memory_order_acquire), 0))
        short_lock_wait(lock);
}

/* Returns false if somebody has the lock. */
static inline bool short_lock_try(struct short_lock *lock)
{
    return !atomic_exchange_explicit(&lock->taken, true, memory_order_acquire);
}

static inline void short_lock_give(struct short_lock *lock)
{
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}

/* For tests: the answer may be outdated at once. */
static inline bool short_lock_is_taken(const struct short_lock *lock)
{
    return atomic_load_explicit(&lock->taken, memory_order_relaxed);
}

#endif
