/*
 * The processes that `cudapool top` shows (top_watch.h).
 */
#include "top_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "complaint.h"
#include "core/base/readable.h"
#include "figures_reader.h"
#include "figures_search.h"
#include "summary.h"

/* --- what is there ------------------------------------------------------------------------------
 */

static uint64_t monotonic_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void free_report(struct report *report)
{
    if (report == NULL)
        return;
    report_free(report);
    free(report);
}

void view_free(struct view *view)
{
    for (size_t i = 0; i < view->count; i++) {
        free_report(view->watched[i].report);
        free_report(view->watched[i].before);
    }
    free(view->watched);
    view->watched = NULL;
    view->count = view->room = 0;
}

/* A program that executes another keeps its number: the figures of the last one are its own. */
static bool replaces_another(struct view *view, struct report *report)
{
    for (size_t i = 0; i < view->count; i++) {
        struct report *other = view->watched[i].report;
        if (other->process.pid != report->process.pid)
            continue;
        if (other->process.started_nanoseconds > report->process.started_nanoseconds) {
            free_report(report);
            return true;
        }
        free_report(other);
        view->watched[i].report = report;
        return true;
    }
    return false;
}

static void watch(struct view *view, struct report *report)
{
    if (replaces_another(view, report))
        return;
    if (view->count == view->room) {
        size_t room = view->room == 0 ? 16 : 2 * view->room;
        struct watched *longer = realloc(view->watched, room * sizeof(*longer));
        if (longer == NULL) {
            view->failed = true;
            free_report(report);
            return;
        }
        view->watched = longer;
        view->room = room;
    }
    view->watched[view->count++] =
        (struct watched){.report = report, .at = monotonic_nanoseconds()};
}

/* Files that are no figures, or just going, are not worth a word here. */
static void look_at(const char *path, void *context)
{
    struct view *view = context;
    char error[ERROR_BYTES];
    struct report *report = calloc(1, sizeof(*report));

    if (report == NULL) {
        view->failed = true;
        return;
    }
    if (figures_read_report(path, report, error, sizeof(error)) != 0) {
        free(report);
        return;
    }
    bool wanted = view->pid == 0 || view->pid == report->process.pid;
    if (wanted && report->process.ending == REPORT_RUNNING)
        watch(view, report);
    else
        free_report(report);
}

static bool is_same_process(const struct report *one, const struct report *other)
{
    return one->process.pid == other->process.pid &&
           one->process.started_nanoseconds == other->process.started_nanoseconds;
}

/* Each process's report of the time before becomes what it is compared with. */
static void take_over(struct view *view, struct view *before)
{
    for (size_t i = 0; i < view->count; i++)
        for (size_t j = 0; j < before->count; j++)
            if (before->watched[j].report != NULL &&
                is_same_process(view->watched[i].report, before->watched[j].report)) {
                view->watched[i].before = before->watched[j].report;
                view->watched[i].before_at = before->watched[j].at;
                before->watched[j].report = NULL;
            }
}

int view_look(struct view *view)
{
    struct view before = *view;
    const char *directory = view->directory;
    int status = 0;

    view->watched = NULL;
    view->count = view->room = 0;
    if (directory == NULL)
        figures_search(look_at, view);
    else if (figures_search_in(directory, look_at, view) != 0)
        status = complain("%s: %s", directory, strerror(errno));
    take_over(view, &before);
    view_free(&before);
    return view->failed ? complain("memory is short") : status;
}

/* --- rates --------------------------------------------------------------------------------------
 */

static struct report_counters totals_of(const struct report *report)
{
    struct report_counters totals = {0};

    for (size_t i = 0; i < report->device_count; i++) {
        struct report_counters one = device_totals(&report->devices[i]);
        totals.requests = saturating_sum(totals.requests, one.requests);
        totals.misses = saturating_sum(totals.misses, one.misses);
        totals.live_bytes = saturating_sum(totals.live_bytes, one.live_bytes);
        totals.cached_bytes = saturating_sum(totals.cached_bytes, one.cached_bytes);
        totals.pending_bytes = saturating_sum(totals.pending_bytes, one.pending_bytes);
    }
    return totals;
}

/* Of a process that is new, since it started. */
static double seconds_of(const struct watched *watched)
{
    if (watched->before == NULL)
        return watched->report->process.wall_seconds;
    return (double)(watched->at - watched->before_at) / 1e9;
}

static double per_second(uint64_t now, uint64_t before, double seconds)
{
    return now > before && seconds > 0 ? (double)(now - before) / seconds : 0;
}

static struct rates rates_between(const struct report_counters *now,
                                  const struct report_counters *before, double seconds)
{
    return (struct rates){.requests = per_second(now->requests, before->requests, seconds),
                          .misses = per_second(now->misses, before->misses, seconds),
                          .live = now->live_bytes,
                          .cached = now->cached_bytes,
                          .pending = now->pending_bytes};
}

struct rates rates_of_process(const struct watched *watched)
{
    struct report_counters now = totals_of(watched->report), before = {0};

    if (watched->before != NULL)
        before = totals_of(watched->before);
    return rates_between(&now, &before, seconds_of(watched));
}

/* The same bucket the time before; all zero where it is new. */
static struct report_counters bucket_before(const struct watched *watched, int ordinal,
                                            const char *kind, uint64_t bytes)
{
    const struct report *before = watched->before;

    for (size_t i = 0; before != NULL && i < before->device_count; i++)
        for (size_t j = 0; j < before->devices[i].kind_count; j++) {
            const struct report_kind *other = &before->devices[i].kinds[j];
            if (before->devices[i].ordinal != ordinal || strcmp(other->kind, kind) != 0)
                continue;
            for (size_t k = 0; k < other->bucket_count; k++)
                if (other->buckets[k].bytes == bytes)
                    return other->buckets[k].counters;
        }
    return (struct report_counters){0};
}

struct rates rates_of_bucket(const struct watched *watched, int ordinal,
                             const struct report_kind *kind, const struct report_bucket *bucket)
{
    struct report_counters before = bucket_before(watched, ordinal, kind->kind, bucket->bytes);

    return rates_between(&bucket->counters, &before, seconds_of(watched));
}

double hit_share(const struct rates *rates)
{
    return rates->requests > 0 ? (rates->requests - rates->misses) / rates->requests : -1;
}

uint64_t memory_of(const struct rates *rates)
{
    return saturating_sum(rates->live, saturating_sum(rates->cached, rates->pending));
}
