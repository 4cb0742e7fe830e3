/*
 * Merges the reports of several processes into one summary. `cudapool run`, and `cudapool report`
 * in every format but the plain table, show summaries.
 *
 * Counters are summed. Peaks of processes that share a device cannot be merged exactly, because
 * nobody knows whether they occurred at the same time. A device's peak is therefore the sum of its
 * processes' peaks, which is an upper bound. The peak of all devices together is that of the device
 * with the largest peak. Two reports mean the same device if host and uuid are equal (host and
 * ordinal, if it has no uuid).
 *
 * Histories are aligned to the start of the first process, and those of one device are added up.
 * What a process held counts until its own history ends. Its hits, misses and exchanged bytes stay
 * in the sums afterwards. If a process does not say when it started, all histories begin at their
 * own process's start.
 *
 * A process counts once. If both its report and its figures are given, the first of them counts.
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
    struct report_counters totals; /* sums over its devices; peaks of the largest device */
};

struct summary_device {
    char *host;       /* owned */
    size_t processes; /* how many processes reported it */
    uint64_t started; /* start of its process, in nanoseconds since 1970; 0: unknown */
    struct report_device device;
};

struct summary {
    struct summary_process *processes;
    size_t process_count, process_room;
    struct summary_device *devices; /* after summary_finish sorted by host, ordinal and uuid */
    size_t device_count, device_room;
    struct report_kind *kinds; /* of all devices together; set by summary_finish */
    size_t kind_count;
    struct settings settings; /* of the first report */
    bool settings_differ;     /* another report has different ones */
};

/* Adds a report to a summary, which must be zeroed before the first call. Takes the report's
 * devices. Returns 0, or -1 if memory is short. */
int summary_add(struct summary *summary, struct report *report);

/* Merges the entries of each device into one, and the kinds of all devices. To be called once,
 * after the last report. Returns 0, or -1 if memory is short. */
int summary_finish(struct summary *summary);

/* Returns the number of different hosts of a finished summary. */
size_t summary_host_count(const struct summary *summary);

/* Returns the seconds from the first process's start to the last process's end. If a process does
 * not say when it started, returns the longest process's time. */
double summary_wall_seconds(const struct summary *summary);

/* Returns the counters of all kinds together. Held bytes and peaks count only kinds whose memory
 * lies on devices, and peaks are those of the largest device. */
struct report_counters summary_totals(const struct summary *summary);

/* Returns the counters of one device, all kinds together. The peak of reserved bytes is the largest
 * value at one time, as far as the history tells. The peak of bytes in use is only an upper
 * bound. */
struct report_counters device_totals(const struct report_device *device);

/* Returns what report_process_line needs to say why the process shares no memory with other
 * processes. */
struct report_aloneness;
struct report_aloneness summary_aloneness(const struct summary_process *process);

/* Returns the exchanges between processes, summed over all devices. Times of the last exchange and
 * the bytes held by others are the largest of all devices. */
struct report_neighbours summary_neighbours(const struct summary *summary);

/* Returns the counters of graph memory, summed over all processes. The fields of the capture that
 * owned the most memory come from the one process where it was largest. */
struct report_graphs summary_graphs(const struct summary *summary);

/* Returns whether the setting changes how the pool works. Settings that only say where reports and
 * figures are written do not. */
struct setting;
bool setting_matters(const struct setting *setting);

void summary_free(struct summary *summary);

#endif
