/*
 * After an allocation has waited in vain, a context's frees wait as the driver's own do, for a
 * while: then whatever the program leans on is as it would be without the pool.
 *
 * The context's lock is held for all of this, but for frees_may_wait.
 */
#ifndef CUDAPOOL_CORE_FREES_WAIT_H
#define CUDAPOOL_CORE_FREES_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct frees_wait {
    _Atomic bool on; /* as far as anybody has looked. Relaxed: whoever acts on it looks again */
    uint64_t until, span; /* its end, and its length: nanoseconds of the monotonic clock */
};

/* No lock needed: a hint. */
static inline bool frees_may_wait(const struct frees_wait *wait)
{
    return atomic_load_explicit(&wait->on, memory_order_relaxed);
}

/* It comes to this at that time. The span is twice as long as the last one, up to ten minutes, and
 * half as long for each span of quiet since; ten seconds at least. */
void frees_wait_begin(struct frees_wait *wait, uint64_t now);

/* Whether frees wait. */
bool frees_wait_goes_on(struct frees_wait *wait, uint64_t now);

#endif
