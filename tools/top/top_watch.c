/*
 * Observes the processes for `cudapool top` (top_watch.h).
 */
#include "top_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/process.h"
#include "core/base/readable.h"
#include "core/figures/figures_file.h"
#include "tools/command/complaint.h"
#include "tools/summary/figures_reader.h"
#include "tools/summary/figures_search.h"
#include "tools/summary/summary.h"

/* --- processes of a view ------------------------------------------------------------------------
 */

static uint64_t monotonic_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool is_same_identity(const struct process_identity *one, const struct process_identity *other)
{
    return one->pid == other->pid && one->pid_namespace == other->pid_namespace &&
           one->start_ticks == other->start_ticks;
}

static void free_report(struct report *report)
{
    if (report == NULL)
        return;
    report_free(report);
    free(report);
}

static void free_watched(struct view *view)
{
    for (size_t i = 0; i < view->count; i++) {
        free_report(view->watched[i].report);
        free_report(view->watched[i].before);
    }
    free(view->watched);
    view->watched = NULL;
    view->count = view->room = 0;
}

void view_free(struct view *view)
{
    free_watched(view);
    if (view->board != NULL)
        board_leave(view->board);
    view->board = NULL;
}

/* Several files of figures may have the same pid: an earlier process had it, or the process has
 * executed another program. Keeps the report with the latest start and frees the other. Returns
 * false if there is no other report with this pid. */
static bool replaces_another(struct view *view, const struct watched *watched)
{
    for (size_t i = 0; i < view->count; i++) {
        struct watched *other = &view->watched[i];
        if (other->identity.pid != watched->identity.pid ||
            other->identity.pid_namespace != watched->identity.pid_namespace)
            continue;
        bool is_older = other->report->process.started_nanoseconds >
                        watched->report->process.started_nanoseconds;
        free_report(is_older ? watched->report : other->report);
        if (!is_older)
            *other = *watched;
        return true;
    }
    return false;
}

/* Adds a process and takes its report. */
static void watch(struct view *view, const struct watched *watched)
{
    if (view->count == view->room) {
        size_t room = view->room == 0 ? 16 : 2 * view->room;
        struct watched *longer = realloc(view->watched, room * sizeof(*longer));
        if (longer == NULL) {
            view->failed = true;
            free_report(watched->report);
            return;
        }
        view->watched = longer;
        view->room = room;
    }
    view->watched[view->count++] = *watched;
}

/* --- figures ------------------------------------------------------------------------------------
 */

/* Returns false if the file holds no figures or is being removed. Neither is worth a complaint
 * here. */
static bool read_watched(const char *path, struct watched *watched)
{
    char error[ERROR_BYTES];
    struct figures_copy copy;

    if (figures_read(path, &copy, error, sizeof(error)) != 0)
        return false;
    const struct figures_process *process = &copy.header->process;
    watched->identity = (struct process_identity){.pid = (int64_t)process->pid,
                                                  .pid_namespace = process->pid_namespace,
                                                  .start_ticks = process->start_ticks};
    bool is_read = figures_to_report(&copy, watched->report) == 0;
    figures_free(&copy);
    return is_read;
}

static void look_at(const char *path, void *context)
{
    struct view *view = context;
    struct watched watched = {.report = calloc(1, sizeof(*watched.report)),
                              .at = monotonic_nanoseconds(),
                              .has_figures = true};

    if (watched.report == NULL) {
        view->failed = true;
        return;
    }
    if (!read_watched(path, &watched)) {
        free(watched.report);
        return;
    }
    bool wanted = view->pid == 0 || view->pid == watched.identity.pid;
    if (!wanted || watched.report->process.ending != REPORT_RUNNING)
        free_report(watched.report);
    else if (!replaces_another(view, &watched))
        watch(view, &watched);
}

/* --- the board ----------------------------------------------------------------------------------
 */

static void visit_board(struct view *view)
{
    if (view->board != NULL || view->no_board != NULL)
        return;
    view->own_pid_namespace = process_own_pid_namespace();
    view->board = board_visit(&view->no_board);
}

static struct watched *find_watched(const struct view *view,
                                    const struct process_identity *identity)
{
    for (size_t i = 0; i < view->count; i++)
        if (is_same_identity(&view->watched[i].identity, identity))
            return &view->watched[i];
    return NULL;
}

/* Adds a process that has no figures. In another pid namespace its pid means nothing here, so its
 * command is not looked up. */
static void watch_neighbour(struct view *view, const struct process_identity *identity,
                            const struct board_process *shared)
{
    struct watched watched = {.identity = *identity,
                              .report = calloc(1, sizeof(*watched.report)),
                              .at = monotonic_nanoseconds(),
                              .on_board = true,
                              .shared = *shared};

    if (watched.report == NULL) {
        view->failed = true;
        return;
    }
    struct report_process *process = &watched.report->process;
    process->pid = identity->pid;
    process->ending = REPORT_RUNNING;
    if (identity->pid_namespace == view->own_pid_namespace)
        report_find_command(identity->pid, process->command, sizeof(process->command));
    watch(view, &watched);
}

/* Adds what the board says. Tools are on the board, too, but have no device. */
static void look_at_board(struct view *view)
{
    struct board_process shared;
    unsigned slot = 0;

    visit_board(view);
    while (view->board != NULL && board_next_process(view->board, &slot, &shared)) {
        struct process_identity identity = {.pid = shared.pid,
                                            .pid_namespace = shared.pid_namespace,
                                            .start_ticks = shared.start_ticks};
        struct watched *known = find_watched(view, &identity);
        bool wanted = view->directory == NULL && (view->pid == 0 || view->pid == identity.pid);
        if (known != NULL) {
            known->on_board = true;
            known->shared = shared;
        } else if (wanted && shared.device_count > 0) {
            watch_neighbour(view, &identity, &shared);
        }
    }
}

/* --- comparing with the look before -------------------------------------------------------------
 */

static bool is_same_process(const struct watched *one, const struct watched *other)
{
    return is_same_identity(&one->identity, &other->identity) &&
           one->report->process.started_nanoseconds == other->report->process.started_nanoseconds;
}

/* Moves the reports of the look before into the processes that are still there. */
static void take_over(struct view *view, struct watched *before, size_t count)
{
    for (size_t i = 0; i < view->count; i++)
        for (size_t j = 0; j < count; j++)
            if (before[j].report != NULL && is_same_process(&view->watched[i], &before[j])) {
                view->watched[i].before = before[j].report;
                view->watched[i].before_at = before[j].at;
                before[j].report = NULL;
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
    look_at_board(view);
    take_over(view, before.watched, before.count);
    free_watched(&before);
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

/* Returns the seconds since the look before. For a new process, since its start. */
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

uint64_t live_on_board(const struct board_process_device *device)
{
    uint64_t free_bytes = saturating_sum(device->cached, device->pending);

    return device->held > free_bytes ? device->held - free_bytes : 0;
}

static struct rates rates_of_neighbour(const struct board_process *process)
{
    struct rates rates = {.requests = -1, .misses = -1, .is_live_unknown = true};

    for (unsigned i = 0; i < process->device_count; i++) {
        const struct board_process_device *device = &process->devices[i];
        rates.live = saturating_sum(rates.live, live_on_board(device));
        rates.is_live_unknown &= device->held == 0;
        rates.cached = saturating_sum(rates.cached, device->cached);
        rates.pending = saturating_sum(rates.pending, device->pending);
    }
    return rates;
}

struct rates rates_of_process(const struct watched *watched)
{
    if (!watched->has_figures)
        return rates_of_neighbour(&watched->shared);
    struct report_counters now = totals_of(watched->report), before = {0};

    if (watched->before != NULL)
        before = totals_of(watched->before);
    struct rates rates = rates_between(&now, &before, seconds_of(watched));
    for (size_t i = 0; i < watched->report->device_count; i++)
        rates.unpooled = saturating_sum(
            rates.unpooled, report_unpooled_live(&watched->report->devices[i].unpooled));
    return rates;
}

/* Returns the bucket's counters at the look before, or zeroes if the bucket is new. */
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
    return saturating_sum(saturating_sum(rates->live, rates->unpooled),
                          saturating_sum(rates->cached, rates->pending));
}
