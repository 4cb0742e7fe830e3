/*
 * Reports of several processes as one: what `run`, and `report` in every format but the plain
 * table, show.
 *
 * Counters are summed. Peaks cannot be: of processes that share a device nobody knows whether they
 * peaked at one time, so a device's peak is the sum of its processes' peaks, which is the most that
 * it can have been; and the peak of all devices together is that of the device with the largest.
 * A device is the same where host and uuid are (host and ordinal, where it has no uuid).
 *
 * Histories are laid side by side from the start of the first process on, and those of one device
 * are added up: what a process held counts until its own history ends, what it counted for good.
 * Where a process doesn't say when it started, all count from their own starts.
 *
 * A process counts once: where its report and its figures are both given, by the first of them.
 *
 * A summary belongs to one thread and owns what it points to (summary_free).
 */
#ifndef CUDAPOOL_TOOLS_SUMMARY_H
#define CUDAPOOL_TOOLS_SUMMARY_H

#include "core/figures/report.h"

struct summary_process {
    int64_t pid;
    char *host, *rank, *command;
    double wall_seconds;
    uint64_t started_nanoseconds;
    struct report_versions versions;
    enum report_ending ending;
    struct report_exit exit;
    struct report_housekeeper housekeeper;
    struct report_graphs graphs;
    bool has_neighbours;           /* neighbours.enabled */
    bool kept_much, is_grouped;    /* see report_neighbours.h */
    struct report_counters totals; /* over its devices; its largest device's peaks */
};

struct summary_device {
    char *host;       /* its own copy */
    size_t processes; /* how many reported it */
    uint64_t started; /* its process, in nanoseconds since 1970; 0: unknown */
    struct report_device device;
};

struct summary {
    struct summary_process *processes;
    size_t process_count, process_room;
    struct summary_device *devices; /* by host, ordinal and uuid once it is finished */
    size_t device_count, device_room;
    struct report_kind *kinds; /* of all devices together, once it is finished */
    size_t kind_count;
    struct settings settings; /* the first report's */
    bool settings_differ;     /* another report's are different */
};

/* Adds a report to a summary that was zeroed before the first. Takes its devices away from it. 0,
 * or -1 where memory is short. */
int summary_add(struct summary *summary, struct report *report);

/* Makes one device of those that are the same, and the kinds of all of them. To be called once,
 * after the last report. 0, or -1 where memory is short. */
int summary_finish(struct summary *summary);

/* The distinct hosts of a finished summary. */
size_t summary_host_count(const struct summary *summary);

/* How long it took, from the first process's start to the last one's end; where one doesn't say
 * when it started, as long as the process that ran longest. */
double summary_wall_seconds(const struct summary *summary);

/* All kinds together; what is held, and the largest device's peaks, of those that lie on devices.
 */
struct report_counters summary_totals(const struct summary *summary);

/* The same of one device. The peak of what its kinds had reserved is of one time, as far as its
 * history tells; that of what was in use is at most their sum. */
struct report_counters device_totals(const struct report_device *device);

/* What has kept the process from its neighbours, see report_process_line. */
struct report_aloneness;
struct report_aloneness summary_aloneness(const struct summary_process *process);

/* What all devices' processes gave each other; the latest times, and the most that was held. */
struct report_neighbours summary_neighbours(const struct summary *summary);

/* What graphs kept in all processes; the capture to which the most belonged is that of one. */
struct report_graphs summary_graphs(const struct summary *summary);

/* Whether two runs with other values of the setting are two ways to run the pool: not of where
 * reports and figures go. */
struct setting;
bool setting_matters(const struct setting *setting);

void summary_free(struct summary *summary);

#endif
