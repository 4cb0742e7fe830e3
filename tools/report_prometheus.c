/*
 * Prints reports in the text format of Prometheus, as node_exporter's textfile collector reads it.
 *
 * Counters have a sample for each bucket, so that a sum over the buckets counts nothing twice. The
 * label bucket_bytes="0" means requests that the pool does not cache. Peaks have a sample for each
 * kind of memory of a device, because the peaks of its buckets do not add up.
 */
#include <inttypes.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/figures/report_json.h"
#include "formats.h"

enum level { OF_A_BUCKET, OF_A_KIND };

struct metric {
    const char *name;
    const char *type;
    const char *help;
    enum level level;
    bool in_seconds; /* the value is in nanoseconds */
    size_t offset;   /* in struct report_counters */
    const char *label;
};

/* The argument is a member's name, which cannot be put in parentheses. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define AT(field) offsetof(struct report_counters, field)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Metrics of one name are adjacent. */
static const struct metric metrics[] = {
    {"cudapool_requests_total", "counter", "Allocations: hits, misses and failures.", OF_A_BUCKET,
     false, AT(requests), ""},
    {"cudapool_hits_total", "counter",
     "Allocations that the pool answered, by what the block needed.", OF_A_BUCKET, false,
     AT(hits.clean), ",rung=\"clean\""},
    {"cudapool_hits_total", NULL, NULL, OF_A_BUCKET, false, AT(hits.queried), ",rung=\"queried\""},
    {"cudapool_hits_total", NULL, NULL, OF_A_BUCKET, false, AT(hits.barrier), ",rung=\"barrier\""},
    {"cudapool_hits_total", NULL, NULL, OF_A_BUCKET, false, AT(hits.waited), ",rung=\"waited\""},
    {"cudapool_misses_total", "counter", "Allocations that the driver met.", OF_A_BUCKET, false,
     AT(misses), ""},
    {"cudapool_failures_total", "counter", "Allocations that failed, by reason.", OF_A_BUCKET,
     false, AT(failures.memory), ",reason=\"memory\""},
    {"cudapool_failures_total", NULL, NULL, OF_A_BUCKET, false, AT(failures.limit),
     ",reason=\"limit\""},
    {"cudapool_failures_total", NULL, NULL, OF_A_BUCKET, false, AT(failures.group),
     ",reason=\"group\""},
    {"cudapool_failures_total", NULL, NULL, OF_A_BUCKET, false, AT(failures.other),
     ",reason=\"other\""},
    {"cudapool_frees_total", "counter", "Blocks that the program freed.", OF_A_BUCKET, false,
     AT(frees), ""},
    {"cudapool_requested_bytes_total", "counter", "Bytes asked for by all requests.", OF_A_BUCKET,
     false, AT(requested_bytes), ""},
    {"cudapool_rounded_bytes_total", "counter", "The same, rounded up to the blocks' sizes.",
     OF_A_BUCKET, false, AT(rounded_bytes), ""},
    {"cudapool_evictions_total", "counter", "Blocks given back to the driver, by reason.",
     OF_A_BUCKET, false, AT(evictions.cap), ",reason=\"cap\""},
    {"cudapool_evictions_total", NULL, NULL, OF_A_BUCKET, false, AT(evictions.idle),
     ",reason=\"idle\""},
    {"cudapool_evictions_total", NULL, NULL, OF_A_BUCKET, false, AT(evictions.memory),
     ",reason=\"memory\""},
    {"cudapool_evictions_total", NULL, NULL, OF_A_BUCKET, false, AT(evictions.free),
     ",reason=\"free\""},
    {"cudapool_evictions_total", NULL, NULL, OF_A_BUCKET, false, AT(evictions.context),
     ",reason=\"context\""},
    {"cudapool_driver_calls_total", "counter", "Driver calls made for allocations and giving back.",
     OF_A_BUCKET, false, AT(driver.calls), ""},
    {"cudapool_driver_seconds_total", "counter", "Time spent in these calls.", OF_A_BUCKET, true,
     AT(driver.nanoseconds), ""},
    {"cudapool_waiting_seconds_total", "counter",
     "Time that allocations and frees waited for the GPU.", OF_A_BUCKET, true,
     AT(waits.nanoseconds), ""},
    {"cudapool_waiting_frees_total", "counter", "Frees that waited for the GPU.", OF_A_BUCKET,
     false, AT(waits.frees), ""},
    {"cudapool_saved_at_least_seconds_total", "counter",
     "Time that the hits would have taken in the driver, at least.", OF_A_BUCKET, true,
     AT(saved_at_least_nanoseconds), ""},
    {"cudapool_live_blocks", "gauge", "Blocks in the program's hands at the end.", OF_A_BUCKET,
     false, AT(live_blocks), ""},
    {"cudapool_live_bytes", "gauge", "Block bytes in the program's hands at the end.", OF_A_BUCKET,
     false, AT(live_bytes), ""},
    {"cudapool_cached_bytes", "gauge", "Free and reusable bytes at the end.", OF_A_BUCKET, false,
     AT(cached_bytes), ""},
    {"cudapool_pending_bytes", "gauge", "Free bytes that the GPU may still be using at the end.",
     OF_A_BUCKET, false, AT(pending_bytes), ""},
    {"cudapool_peak_live_bytes", "gauge", "The most that the program held at one time.", OF_A_KIND,
     false, AT(peak.live_bytes), ""},
    {"cudapool_peak_reserved_bytes", "gauge",
     "The most that was live, cached and pending at one time.", OF_A_KIND, false,
     AT(peak.reserved_bytes), ""},
};
#define METRICS (sizeof(metrics) / sizeof(metrics[0]))

static void print_label(FILE *out, const char *name, const char *value)
{
    char piece[PRINTABLE_BYTES];

    fprintf(out, "%s=\"", name);
    while (*value != '\0') {
        take_printable(&value, piece);
        if (*piece == '\\' || *piece == '"')
            fputc('\\', out);
        fputs(piece, out);
    }
    fputs("\"", out);
}

static void print_common_labels(FILE *out, const struct summary_device *device,
                                const struct summary_process *process)
{
    print_label(out, "host", device->host);
    fprintf(out, ",device=\"%d\",", device->device.ordinal);
    print_label(out, "uuid", device->device.uuid);
    if (process != NULL) {
        fprintf(out, ",pid=\"%" PRId64 "\",", process->pid);
        print_label(out, "rank", process->rank);
    }
}

static void print_value(FILE *out, const struct metric *metric,
                        const struct report_counters *counters)
{
    uint64_t value = *(const uint64_t *)((const char *)counters + metric->offset);

    if (metric->in_seconds)
        fprintf(out, "} %" PRIu64 ".%09" PRIu64 "\n", value / 1000000000, value % 1000000000);
    else
        fprintf(out, "} %" PRIu64 "\n", value);
}

static void print_kind(FILE *out, const struct metric *metric, const struct summary_device *device,
                       const struct summary_process *process, const struct report_kind *kind)
{
    size_t lines = metric->level == OF_A_KIND ? 1 : kind->bucket_count;

    for (size_t i = 0; i < lines; i++) {
        fprintf(out, "%s{", metric->name);
        print_common_labels(out, device, process);
        fputc(',', out);
        print_label(out, "kind", kind->kind);
        if (metric->level == OF_A_BUCKET)
            fprintf(out, ",bucket_bytes=\"%" PRIu64 "\"%s", kind->buckets[i].bytes, metric->label);
        print_value(out, metric,
                    metric->level == OF_A_KIND ? &kind->totals : &kind->buckets[i].counters);
    }
}

static void print_metric(FILE *out, const struct metric *metric, const struct summary *summary,
                         const struct summary_process *process)
{
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct report_device *device = &summary->devices[i].device;
        for (size_t j = 0; j < device->kind_count; j++)
            print_kind(out, metric, &summary->devices[i], process, &device->kinds[j]);
    }
}

static void print_heading(FILE *out, const char *name, const char *help, const char *type)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Exchanges of memory between processes on a device. */
static const struct neighbour_metric {
    const char *name;
    const char *type;
    const char *help;
    size_t offset; /* in struct report_neighbours */
} neighbour_metrics[] = {
#define OF(field) offsetof(struct report_neighbours, field)
    {"cudapool_neighbours_given_bytes_total", "counter",
     "Bytes given back to the driver because other processes asked.", OF(given.bytes)},
    {"cudapool_neighbours_given_total", "counter", "How often that was.", OF(given.times)},
    {"cudapool_neighbours_got_bytes_total", "counter",
     "Bytes that other processes gave because this one asked.", OF(got.bytes)},
    {"cudapool_neighbours_got_total", "counter", "How often that was.", OF(got.times)},
    {"cudapool_neighbours_left_bytes_total", "counter",
     "Bytes given back so that neighbours.leave_free stays free.", OF(left.bytes)},
    {"cudapool_neighbours_left_total", "counter", "How often that was.", OF(left.times)},
    {"cudapool_neighbours_asked_total", "counter", "How often other processes were asked.",
     OF(asked)},
    {"cudapool_neighbours_silent_total", "counter",
     "Processes that did not answer, of those that were asked.", OF(silent)},
    {"cudapool_neighbours_held_bytes", "gauge",
     "The most that was held when memory ran out, and not by the process's pool.",
     OF(others_held_bytes)},
#undef OF
};
#define NEIGHBOUR_METRICS (sizeof(neighbour_metrics) / sizeof(neighbour_metrics[0]))

static void print_neighbour_metric(FILE *out, const struct neighbour_metric *metric,
                                   const struct summary *summary,
                                   const struct summary_process *process)
{
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct report_neighbours *neighbours = &summary->devices[i].device.neighbours;
        fprintf(out, "%s{", metric->name);
        print_common_labels(out, &summary->devices[i], process);
        fprintf(out, "} %" PRIu64 "\n",
                *(const uint64_t *)((const char *)neighbours + metric->offset));
    }
}

static void print_limit(FILE *out, const struct summary_device *device,
                        const struct summary_process *process, bool of_group)
{
    const struct device_limits *limits = &device->device.limits;
    const char *from = of_group ? limits->group_from : limits->device_from;

    if (from[0] == '\0')
        return;
    fputs("cudapool_limit_bytes{", out);
    print_common_labels(out, device, process);
    fputs(",", out);
    print_label(out, "group", of_group ? limits->group : "");
    fputs(",", out);
    print_label(out, "from", from);
    fprintf(out, "} %" PRIu64 "\n", of_group ? limits->group_bytes : limits->device_bytes);
}

static void print_limits(FILE *out, const struct summary *summary,
                         const struct summary_process *process)
{
    for (size_t i = 0; i < summary->device_count; i++) {
        print_limit(out, &summary->devices[i], process, false);
        print_limit(out, &summary->devices[i], process, true);
    }
}

static void print_device_sizes(FILE *out, const struct summary *summary,
                               const struct summary_process *process)
{
    for (size_t i = 0; i < summary->device_count; i++) {
        fputs("cudapool_device_memory_bytes{", out);
        print_common_labels(out, &summary->devices[i], process);
        fprintf(out, "} %" PRIu64 "\n", summary->devices[i].device.total_bytes);
    }
}

static void print_wall_time(FILE *out, const struct summary *summary,
                            const struct summary_process *process)
{
    fputs("cudapool_wall_seconds{", out);
    if (process != NULL) {
        print_label(out, "host", process->host);
        fprintf(out, ",pid=\"%" PRId64 "\",", process->pid);
        print_label(out, "rank", process->rank);
    }
    double seconds = summary_wall_seconds(summary);
    /* Integers, because a locale may have another decimal point. */
    uint64_t nanoseconds = seconds > 0 && seconds < 1e10 ? (uint64_t)(seconds * 1e9) : 0;
    fprintf(out, "} %" PRIu64 ".%09" PRIu64 "\n", nanoseconds / 1000000000,
            nanoseconds % 1000000000);
}

static const struct summary_process *process_of(const struct summary *summary, bool per_process)
{
    return per_process ? &summary->processes[0] : NULL;
}

static void print_all_neighbours(const struct summary *summaries, size_t count, bool per_process,
                                 FILE *out)
{
    for (size_t i = 0; i < NEIGHBOUR_METRICS; i++) {
        const struct neighbour_metric *metric = &neighbour_metrics[i];
        print_heading(out, metric->name, metric->help, metric->type);
        for (size_t j = 0; j < count; j++)
            print_neighbour_metric(out, metric, &summaries[j],
                                   process_of(&summaries[j], per_process));
    }
    print_heading(out, "cudapool_limit_bytes",
                  "What the process may hold of the device, or all of its group together.",
                  "gauge");
    for (size_t j = 0; j < count; j++)
        print_limits(out, &summaries[j], process_of(&summaries[j], per_process));
}

void print_prometheus(const struct summary *summaries, size_t count, bool per_process, FILE *out)
{
    for (size_t i = 0; i < METRICS; i++) {
        if (metrics[i].type != NULL)
            print_heading(out, metrics[i].name, metrics[i].help, metrics[i].type);
        for (size_t j = 0; j < count; j++)
            print_metric(out, &metrics[i], &summaries[j], process_of(&summaries[j], per_process));
    }
    print_all_neighbours(summaries, count, per_process, out);
    print_heading(out, "cudapool_device_memory_bytes", "The device's memory.", "gauge");
    for (size_t j = 0; j < count; j++)
        print_device_sizes(out, &summaries[j], process_of(&summaries[j], per_process));
    print_heading(out, "cudapool_wall_seconds",
                  "From the first process's start to the last one's end.", "gauge");
    for (size_t j = 0; j < count; j++)
        print_wall_time(out, &summaries[j], process_of(&summaries[j], per_process));
    print_heading(out, "cudapool_processes", "Processes that the figures are of.", "gauge");
    size_t processes = 0;
    for (size_t j = 0; j < count; j++)
        processes += summaries[j].process_count;
    fprintf(out, "cudapool_processes %zu\n", processes);
}
