/*
 * Fills the report that a process writes when it ends, from the pool's figures.
 */
#include "core/base/clock.h"
#include "core/contexts/pool_state.h"
#include "core/device_memory/sums.h"
#include "core/figures/figures_report.h"

int pool_report(struct pool *pool, struct report *report)
{
    struct figures *figures = &pool->figures;
    struct context *c = atomic_load_explicit(&pool->registry.contexts, memory_order_acquire);
    for (; c; c = c->next)
        thread_caches_count_clean(heap_of(c));
    figures_sample_now(figures, monotonic_now());
    const struct figures_header *header = figures_header(figures);
    if (header) {
        report->process.started_nanoseconds = header->process.started_at;
        report->process.versions = header->process.versions;
    }
    return figures_report(figures_walk(figures), header ? header->process.started : 0, report);
}
