#include "frees_wait.h"

#include "core/base/lock.h"
#include "core/base/numbers.h"

/* Nanoseconds. */
#define SPAN_FIRST   (UINT64_C(10) * 1000 * 1000 * 1000)
#define SPAN_LONGEST (UINT64_C(600) * 1000 * 1000 * 1000)

static uint64_t next_span(const struct frees_wait *wait, uint64_t now)
{
    uint64_t span = wait->span, quiet_since = wait->until;
    for (; span > SPAN_FIRST && now - quiet_since > span; span /= 2)
        quiet_since += span;
    if (span == 0 || now - quiet_since > span)
        return SPAN_FIRST;
    return smaller_of(2 * span, SPAN_LONGEST);
}

void frees_wait_begin(struct frees_wait *wait, uint64_t now)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (frees_may_wait(wait))
        return;
    wait->span = next_span(wait, now);
    wait->until = now + wait->span;
    atomic_store_explicit(&wait->on, true, memory_order_relaxed);
}

bool frees_wait_goes_on(struct frees_wait *wait, uint64_t now)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (frees_may_wait(wait) && now >= wait->until)
        atomic_store_explicit(&wait->on, false, memory_order_relaxed);
    return frees_may_wait(wait);
}
