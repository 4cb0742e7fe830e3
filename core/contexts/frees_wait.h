/*
 * After an allocation has waited without success, the context's frees wait for a while as the
 * driver's own do. Then everything that the program relies on is as it would be without the pool.
 *
 * The caller of every function but frees_may_wait holds the context's lock.
 */
#ifndef CUDAPOOL_CORE_FREES_WAIT_H
#define CUDAPOOL_CORE_FREES_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct frees_wait {
    _Atomic bool on; /* as of the last look. Relaxed: whoever acts on it looks again */
    /* The end of the span, and its length: nanoseconds of the monotonic clock. */
    uint64_t until, span;
};

/* No lock needed: a hint. */
static inline bool frees_may_wait(const struct frees_wait *wait)
{
    return atomic_load_explicit(&wait->on, memory_order_relaxed);
}

/* Frees wait from now on. The span is twice the last one, and half as long for each span in which
 * frees did not have to wait. It is 10 seconds at least and 10 minutes at most. */
void frees_wait_begin(struct frees_wait *wait, uint64_t now);

/* Whether frees wait at the time now. */
bool frees_wait_goes_on(struct frees_wait *wait, uint64_t now);

#endif
