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

/* The groups of counters. With a label, a group's counters are samples of one metric. */
static const struct metric_group {
    const char *group, *metric, *label, *says;
} groups[] = {
#define COUNTS_OF_BUCKETS
#define COUNT(name, merged, since, says)
#define MEMBER(group, name, merged, since, says)
#define GROUP(group, metric, label, says) {#group, metric, label, says},
#define END(group)
#include "core/figures/report_counts.def"
};
#define GROUPS (sizeof(groups) / sizeof(groups[0]))

#define METRIC_BYTES 80

static const struct metric_group *group_of(const struct report_count *count)
{
    static const struct metric_group none = {"", "", "", ""};

    for (size_t i = 0; i < GROUPS; i++)
        if (strcmp(groups[i].group, count->group) == 0)
            return &groups[i];
    return &none;
}

static bool is_in_seconds(const struct report_count *count)
{
    return strstr(count->name, "nanoseconds") != NULL;
}

/* A peak is a kind's, since the peaks of its buckets do not add up. */
static bool is_of_a_kind(const struct report_count *count)
{
    return count->merged == MERGE_PEAK;
}

static bool is_gauge(const struct report_count *count)
{
    return count->merged == MERGE_NOW || count->merged == MERGE_PEAK;
}

static void name_metric(const struct report_count *count, char name[METRIC_BYTES])
{
    const struct metric_group *group = group_of(count);
    const char *unit = strstr(count->name, "nanoseconds");
    int stem = (int)(unit == NULL ? strlen(count->name) : (size_t)(unit - count->name));

    snprintf(name, METRIC_BYTES, "cudapool_%s%s%.*s%s%s", group->metric,
             group->metric[0] != '\0' && group->label[0] == '\0' ? "_" : "",
             group->label[0] == '\0' ? stem : 0, count->name, unit == NULL ? "" : "seconds",
             is_gauge(count) ? "" : "_total");
}

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

static void print_value(FILE *out, const struct report_count *count,
                        const struct report_counters *counters)
{
    uint64_t value = report_count_value(count, counters);

    if (is_in_seconds(count))
        fprintf(out, "} %" PRIu64 ".%09" PRIu64 "\n", value / 1000000000, value % 1000000000);
    else
        fprintf(out, "} %" PRIu64 "\n", value);
}

static void print_kind(FILE *out, const struct report_count *count,
                       const struct summary_device *device, const struct summary_process *process,
                       const struct report_kind *kind)
{
    size_t lines = is_of_a_kind(count) ? 1 : kind->bucket_count;
    const char *label = group_of(count)->label;
    char name[METRIC_BYTES];

    name_metric(count, name);
    for (size_t i = 0; i < lines; i++) {
        fprintf(out, "%s{", name);
        print_common_labels(out, device, process);
        fputc(',', out);
        print_label(out, "kind", kind->kind);
        if (!is_of_a_kind(count))
            fprintf(out, ",bucket_bytes=\"%" PRIu64 "\"", kind->buckets[i].bytes);
        if (label[0] != '\0')
            fprintf(out, ",%s=\"%s\"", label, count->name);
        print_value(out, count, is_of_a_kind(count) ? &kind->totals : &kind->buckets[i].counters);
    }
}

static void print_metric(FILE *out, const struct report_count *count, const struct summary *summary,
                         const struct summary_process *process)
{
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct report_device *device = &summary->devices[i].device;
        for (size_t j = 0; j < device->kind_count; j++)
            print_kind(out, count, &summary->devices[i], process, &device->kinds[j]);
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

/* Prints one counter of all kinds of memory that the pool does not serve: a metric. */
static void print_unpooled(FILE *out, const struct summary_device *device,
                           const struct summary_process *process, const char *name,
                           const char *metric)
{
    for (size_t i = 0; i < report_unpooled_counts.length; i++) {
        const struct report_count *count = &report_unpooled_counts.counts[i];
        if (strcmp(count->name, name) != 0)
            continue;
        fprintf(out, "%s{", metric);
        print_common_labels(out, device, process);
        fputc(',', out);
        print_label(out, "memory", count->group);
        fprintf(out, "} %" PRIu64 "\n", report_count_value(count, &device->device.unpooled));
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

/* Each kind of memory has the counters that the first one has. */
static void print_all_unpooled(const struct summary *summaries, size_t count, bool per_process,
                               FILE *out)
{
    const struct report_count *first = report_unpooled_counts.counts;
    for (size_t i = 0; strcmp(first[i].group, first[0].group) == 0; i++) {
        char metric[METRIC_BYTES];
        snprintf(metric, METRIC_BYTES, "cudapool_unpooled_%s%s", first[i].name,
                 is_gauge(&first[i]) ? "" : "_total");
        print_heading(out, metric, first[i].says, is_gauge(&first[i]) ? "gauge" : "counter");
        for (size_t j = 0; j < count; j++)
            for (size_t k = 0; k < summaries[j].device_count; k++)
                print_unpooled(out, &summaries[j].devices[k],
                               process_of(&summaries[j], per_process), first[i].name, metric);
    }
}

/* Heads the metric with its first counter. */
static void print_heading_of(FILE *out, const struct report_count *count, bool first_of_group)
{
    const struct metric_group *group = group_of(count);
    char name[METRIC_BYTES];

    name_metric(count, name);
    if (group->label[0] == '\0' || first_of_group)
        print_heading(out, name, group->label[0] == '\0' ? count->says : group->says,
                      is_gauge(count) ? "gauge" : "counter");
}

void print_prometheus(const struct summary *summaries, size_t count, bool per_process, FILE *out)
{
    for (size_t i = 0; i < report_bucket_counts.length; i++) {
        const struct report_count *counter = &report_bucket_counts.counts[i];
        print_heading_of(out, counter, i == 0 || strcmp(counter[-1].group, counter->group) != 0);
        for (size_t j = 0; j < count; j++)
            print_metric(out, counter, &summaries[j], process_of(&summaries[j], per_process));
    }
    print_all_unpooled(summaries, count, per_process, out);
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
