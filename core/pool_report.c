/*
 * What a pool reports when the process ends: its figures.
 */
#include "figures_report.h"
#include "pool_state.h"

int pool_report(struct pool *pool, struct report *report)
{
    struct figures *figures = &pool->figures;
    figures_sample_now(figures, monotonic_now());
    const struct figures_header *header = figures_header(figures);
    if (header)
        report->process.started_nanoseconds = header->process.started_at;
    return figures_report(figures_walk(figures), header ? header->process.started : 0, report);
}
