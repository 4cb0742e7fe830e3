/*
 * Merges the reports of several processes into one summary (summary.h).
 *
 * Devices, kinds and buckets are first appended to arrays. The arrays are then sorted, and each run
 * of equal elements is merged into one. Merging a large or hostile input therefore takes about as
 * long as sorting it.
 */
#include "summary.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/readable.h"
#include "core/figures/report_json.h"
#include "core/figures/report_neighbours.h"
#include "core/settings/settings_json.h"
#include "timeline.h"

/* --- counters -----------------------------------------------------------------------------------
 */

enum peaks { PEAKS_ADD, PEAKS_LARGEST };

static void add_counters(struct report_counters *into, const struct report_counters *from,
                         enum peaks peaks)
{
    struct report_counters before = *into;

    report_counts_merge(&report_bucket_counts, into, from);
    if (peaks == PEAKS_ADD)
        return;
    into->peak.live_bytes = larger_of(before.peak.live_bytes, from->peak.live_bytes);
    into->peak.reserved_bytes = larger_of(before.peak.reserved_bytes, from->peak.reserved_bytes);
}

/* Clears the byte counters of a kind whose memory does not lie on the device. */
static void leave_out_bytes(struct report_counters *counters)
{
    counters->live_bytes = 0;
    counters->cached_bytes = 0;
    counters->pending_bytes = 0;
    counters->peak.live_bytes = 0;
    counters->peak.reserved_bytes = 0;
}

/* Returns the most bytes that all kinds together had reserved at one time, by the device's history.
 * Returns UINT64_MAX if the history has no peak, as in reports of older builds. */
static uint64_t common_peak(const struct report_device *device)
{
    uint64_t peak = 0;

    for (size_t i = 0; i < device->sample_count; i++)
        peak = larger_of(peak, device->samples[i].peak_bytes);
    return peak == 0 ? UINT64_MAX : peak;
}

struct report_counters device_totals(const struct report_device *device)
{
    struct report_counters totals = {0};
    uint64_t largest = 0;

    for (size_t i = 0; i < device->kind_count; i++) {
        struct report_counters one = device->kinds[i].totals;
        if (!report_kind_is_of_device(&device->kinds[i]))
            leave_out_bytes(&one);
        largest = larger_of(largest, one.peak.reserved_bytes);
        add_counters(&totals, &one, PEAKS_ADD);
    }
    totals.peak.reserved_bytes =
        smaller_of(totals.peak.reserved_bytes, larger_of(largest, common_peak(device)));
    totals.peak.live_bytes = smaller_of(totals.peak.live_bytes, totals.peak.reserved_bytes);
    return totals;
}

/* --- arrays -------------------------------------------------------------------------------------
 */

/* Makes room for one more element. Returns 0 or -1. */
static int make_room(void **elements, size_t count, size_t *room, size_t element_bytes)
{
    if (count < *room)
        return 0;
    size_t larger_room = *room == 0 ? 16 : *room * 2;
    void *longer = realloc(*elements, larger_room * element_bytes);
    if (longer == NULL)
        return -1;
    *elements = longer;
    *room = larger_room;
    return 0;
}

/* Appends copies of the buckets of from. Returns 0 or -1. */
static int append_buckets(struct report_kind *into, const struct report_kind *from)
{
    size_t count = into->bucket_count + from->bucket_count;

    if (from->bucket_count == 0)
        return 0;
    struct report_bucket *buckets = realloc(into->buckets, count * sizeof(*buckets));
    if (buckets == NULL)
        return -1;
    memcpy(buckets + into->bucket_count, from->buckets, from->bucket_count * sizeof(*buckets));
    into->buckets = buckets;
    into->bucket_count = count;
    return 0;
}

/* Sorts by size. The bucket of 0 bytes, for requests that are not cached, is last. */
static int compare_buckets(const void *one, const void *other)
{
    uint64_t a = ((const struct report_bucket *)one)->bytes - 1;
    uint64_t b = ((const struct report_bucket *)other)->bytes - 1;

    return (a > b) - (a < b);
}

static void join_buckets(struct report_kind *kind, enum peaks peaks)
{
    size_t kept = 0;

    if (kind->bucket_count == 0)
        return;
    qsort(kind->buckets, kind->bucket_count, sizeof(*kind->buckets), compare_buckets);
    for (size_t i = 1; i < kind->bucket_count; i++) {
        if (kind->buckets[i].bytes == kind->buckets[kept].bytes)
            add_counters(&kind->buckets[kept].counters, &kind->buckets[i].counters, peaks);
        else
            kind->buckets[++kept] = kind->buckets[i];
    }
    kind->bucket_count = kept + 1;
}

static int compare_kinds(const void *one, const void *other)
{
    return strcmp(((const struct report_kind *)one)->kind,
                  ((const struct report_kind *)other)->kind);
}

/* Merges kinds of the same name, and in each kind the buckets of the same size. Returns the number
 * of kinds that are left. If memory is short, sets *failed and frees the buckets that it could not
 * append. */
static size_t join_kinds(struct report_kind *kinds, size_t count, enum peaks peaks, int *failed)
{
    size_t kept = 0;

    if (count == 0)
        return 0;
    qsort(kinds, count, sizeof(*kinds), compare_kinds);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(kinds[i].kind, kinds[kept].kind) != 0) {
            kinds[++kept] = kinds[i];
            continue;
        }
        add_counters(&kinds[kept].totals, &kinds[i].totals, peaks);
        if (append_buckets(&kinds[kept], &kinds[i]) != 0)
            *failed = -1;
        free(kinds[i].buckets);
    }
    for (size_t i = 0; i <= kept; i++)
        join_buckets(&kinds[i], peaks);
    return kept + 1;
}

/* --- adding a report ----------------------------------------------------------------------------
 */

static int add_process(struct summary *summary, const struct report *report)
{
    void *elements = summary->processes;
    struct summary_process process = {.pid = report->process.pid,
                                      .host = strdup(report->process.host),
                                      .rank = strdup(report->process.rank),
                                      .command = strdup(report->process.command),
                                      .wall_seconds = report->process.wall_seconds,
                                      .started_nanoseconds = report->process.started_nanoseconds,
                                      .versions = report->process.versions,
                                      .housekeeper = report->housekeeper,
                                      .graphs = report->graphs,
                                      .has_neighbours = report->settings.neighbours.enabled,
                                      .ending = report->process.ending,
                                      .exit = report->process.exit};
    int status = make_room(&elements, summary->process_count, &summary->process_room,
                           sizeof(*summary->processes));

    summary->processes = elements;
    if (status != 0 || process.host == NULL || process.rank == NULL || process.command == NULL) {
        free(process.host);
        free(process.rank);
        free(process.command);
        return -1;
    }
    process.kept_much = report_kept_much(report->devices, report->device_count);
    process.is_grouped = report_is_grouped(report->devices, report->device_count);
    for (size_t i = 0; i < report->device_count; i++) {
        struct report_counters totals = device_totals(&report->devices[i]);
        add_counters(&process.totals, &totals, PEAKS_LARGEST);
    }
    summary->processes[summary->process_count++] = process;
    return 0;
}

/* Moves the device's kinds and samples into the summary. */
static int add_device(struct summary *summary, const struct report_process *process,
                      struct report_device *device)
{
    void *elements = summary->devices;
    int status = make_room(&elements, summary->device_count, &summary->device_room,
                           sizeof(*summary->devices));
    char *copy = strdup(process->host);

    summary->devices = elements;
    if (status != 0 || copy == NULL) {
        free(copy);
        return -1;
    }
    summary->devices[summary->device_count++] = (struct summary_device){
        .host = copy, .processes = 1, .started = process->started_nanoseconds, .device = *device};
    device->kinds = NULL;
    device->kind_count = 0;
    device->samples = NULL;
    device->sample_count = 0;
    return 0;
}

bool setting_matters(const struct setting *setting)
{
    return strncmp(setting->path, "report.", 7) != 0 && strncmp(setting->path, "figures.", 8) != 0;
}

static bool settings_are_the_same(const struct settings *one, const struct settings *other)
{
    /* A fast path for thousands of processes, most with settings that are equal byte for byte. The
     * sections from report on do not matter (setting_matters). */
    if (memcmp(one, other, offsetof(struct settings, report)) == 0)
        return true;
    for (size_t i = 0; i < settings_table_length; i++)
        if (setting_matters(&settings_table[i]) &&
            !setting_is_equal(&settings_table[i], one, other))
            return false;
    return true;
}

/* Whether the process was added already. One without a start time cannot be recognized, so it
 * counts as new. */
static bool is_there(const struct summary *summary, const struct report_process *process)
{
    for (size_t i = 0; i < summary->process_count && process->started_nanoseconds != 0; i++) {
        const struct summary_process *other = &summary->processes[i];
        if (other->started_nanoseconds == process->started_nanoseconds &&
            other->pid == process->pid && strcmp(other->host, process->host) == 0)
            return true;
    }
    return false;
}

int summary_add(struct summary *summary, struct report *report)
{
    if (is_there(summary, &report->process))
        return 0;
    if (summary->process_count == 0)
        summary->settings = report->settings;
    else if (!summary->settings_differ)
        summary->settings_differ = !settings_are_the_same(&summary->settings, &report->settings);
    if (add_process(summary, report) != 0)
        return -1;
    for (size_t i = 0; i < report->device_count; i++)
        if (add_device(summary, &report->process, &report->devices[i]) != 0)
            return -1;
    return 0;
}

/* --- finishing ----------------------------------------------------------------------------------
 */

static bool is_same_device(const struct summary_device *a, const struct summary_device *b)
{
    if (strcmp(a->host, b->host) != 0 || strcmp(a->device.uuid, b->device.uuid) != 0)
        return false;
    return a->device.uuid[0] != '\0' || a->device.ordinal == b->device.ordinal;
}

static int compare_numbers(int a, int b)
{
    return (a > b) - (a < b);
}

/* Puts equal devices next to each other. A device with a uuid may have another ordinal in each
 * process (CUDA_VISIBLE_DEVICES). */
static int compare_identities(const void *one, const void *other)
{
    const struct summary_device *a = one, *b = other;
    int order = strcmp(a->host, b->host);

    if (order == 0)
        order = strcmp(a->device.uuid, b->device.uuid);
    return order != 0 ? order : compare_numbers(a->device.ordinal, b->device.ordinal);
}

static int compare_places(const void *one, const void *other)
{
    const struct summary_device *a = one, *b = other;
    int order = strcmp(a->host, b->host);

    if (order == 0)
        order = compare_numbers(a->device.ordinal, b->device.ordinal);
    return order != 0 ? order : strcmp(a->device.uuid, b->device.uuid);
}

/* Appends copies of the kinds. The copies share the buckets of from, which the caller then gives up
 * or duplicates. Returns 0 or -1. */
static int append_kinds(struct report_kind **into, size_t *into_count,
                        const struct report_kind *from, size_t from_count)
{
    if (from_count == 0)
        return 0;
    struct report_kind *kinds = realloc(*into, (*into_count + from_count) * sizeof(*kinds));
    if (kinds == NULL)
        return -1;
    memcpy(kinds + *into_count, from, from_count * sizeof(*kinds));
    *into = kinds;
    *into_count += from_count;
    return 0;
}

static void free_kinds(struct report_kind *kinds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(kinds[i].buckets);
    free(kinds);
}

/* If the device's processes have different limits, the summary shows none. */
static void join_limits(struct device_limits *into, const struct device_limits *from)
{
    if (memcmp(into, from, sizeof(*into)) != 0)
        *into = (struct device_limits){.device_bytes = UINT64_MAX, .group_bytes = UINT64_MAX};
}

static int join_devices(struct report_device *into, struct report_device *from)
{
    report_counts_merge(&report_device_counts, into, from);
    report_counts_merge(&report_segment_counts, &into->segments, &from->segments);
    report_counts_merge(&report_neighbour_counts, &into->neighbours, &from->neighbours);
    report_counts_merge(&report_unpooled_counts, &into->unpooled, &from->unpooled);
    join_limits(&into->limits, &from->limits);
    if (append_kinds(&into->kinds, &into->kind_count, from->kinds, from->kind_count) != 0) {
        free_kinds(from->kinds, from->kind_count);
        return -1;
    }
    free(from->kinds);
    return timeline_join(into, from);
}

static void shift_exchange(struct report_exchange *exchange, uint64_t nanoseconds)
{
    if (exchange->last_nanoseconds != 0)
        exchange->last_nanoseconds = saturating_sum(exchange->last_nanoseconds, nanoseconds);
}

static void shift_times(struct report_device *device, uint64_t nanoseconds)
{
    timeline_shift(device, nanoseconds);
    shift_exchange(&device->neighbours.given, nanoseconds);
    shift_exchange(&device->neighbours.got, nanoseconds);
    shift_exchange(&device->neighbours.left, nanoseconds);
}

/* Converts times to nanoseconds since the earliest start. A process without a start time keeps its
 * own. */
static void align_histories(struct summary *summary)
{
    uint64_t first = UINT64_MAX;

    for (size_t i = 0; i < summary->device_count; i++)
        if (summary->devices[i].started != 0 && summary->devices[i].started < first)
            first = summary->devices[i].started;
    for (size_t i = 0; i < summary->device_count; i++)
        if (summary->devices[i].started != 0)
            shift_times(&summary->devices[i].device, summary->devices[i].started - first);
}

static int join_same_devices(struct summary *summary)
{
    struct summary_device *devices = summary->devices;
    size_t kept = 0;
    int failed = 0;

    if (summary->device_count == 0)
        return 0;
    align_histories(summary);
    qsort(devices, summary->device_count, sizeof(*devices), compare_identities);
    for (size_t i = 1; i < summary->device_count; i++) {
        if (!is_same_device(&devices[i], &devices[kept])) {
            devices[++kept] = devices[i];
            continue;
        }
        devices[kept].processes += devices[i].processes;
        failed |= join_devices(&devices[kept].device, &devices[i].device);
        free(devices[i].host);
    }
    summary->device_count = kept + 1;
    for (size_t i = 0; i <= kept; i++)
        devices[i].device.kind_count =
            join_kinds(devices[i].device.kinds, devices[i].device.kind_count, PEAKS_ADD, &failed);
    qsort(devices, summary->device_count, sizeof(*devices), compare_places);
    return failed;
}

/* Copies a kind, with its own copy of the buckets. Returns 0 or -1. */
static int copy_kind(const struct report_kind *from, struct report_kind *copy)
{
    *copy = *from;
    copy->buckets = NULL;
    copy->bucket_count = 0;
    return append_buckets(copy, from);
}

static int gather_kinds(struct summary *summary)
{
    int failed = 0;

    for (size_t i = 0; i < summary->device_count; i++) {
        const struct report_device *device = &summary->devices[i].device;
        size_t first = summary->kind_count;
        if (append_kinds(&summary->kinds, &summary->kind_count, device->kinds,
                         device->kind_count) != 0)
            return -1;
        for (size_t j = 0; j < device->kind_count; j++)
            failed |= copy_kind(&device->kinds[j], &summary->kinds[first + j]);
    }
    summary->kind_count = join_kinds(summary->kinds, summary->kind_count, PEAKS_LARGEST, &failed);
    return failed;
}

int summary_finish(struct summary *summary)
{
    int failed = join_same_devices(summary);

    return failed | gather_kinds(summary);
}

/* --- results ------------------------------------------------------------------------------------
 */

static int compare_texts(const void *one, const void *other)
{
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

size_t summary_host_count(const struct summary *summary)
{
    const char **hosts = calloc(summary->process_count + 1, sizeof(*hosts));
    size_t count = summary->process_count > 0;

    if (hosts == NULL)
        return 0;
    for (size_t i = 0; i < summary->process_count; i++)
        hosts[i] = summary->processes[i].host;
    qsort(hosts, summary->process_count, sizeof(*hosts), compare_texts);
    for (size_t i = 1; i < summary->process_count; i++)
        count += strcmp(hosts[i], hosts[i - 1]) != 0;
    free(hosts);
    return count;
}

double summary_wall_seconds(const struct summary *summary)
{
    uint64_t first = UINT64_MAX;
    double last = 0;

    for (size_t i = 0; i < summary->process_count; i++)
        if (summary->processes[i].started_nanoseconds != 0 &&
            summary->processes[i].started_nanoseconds < first)
            first = summary->processes[i].started_nanoseconds;
    for (size_t i = 0; i < summary->process_count; i++) {
        const struct summary_process *process = &summary->processes[i];
        uint64_t started = process->started_nanoseconds;
        double end = (started != 0 ? (double)(started - first) / 1e9 : 0) + process->wall_seconds;
        last = end > last ? end : last;
    }
    return last;
}

struct report_counters summary_totals(const struct summary *summary)
{
    struct report_counters totals = {0};

    for (size_t i = 0; i < summary->device_count; i++) {
        struct report_counters one = device_totals(&summary->devices[i].device);
        add_counters(&totals, &one, PEAKS_LARGEST);
    }
    return totals;
}

/* Merges each counter as graph_counts.def says. */
static void add_graphs(struct report_graphs *into, const struct report_graphs *from)
{
    bool larger = from->most_owned_bytes > into->most_owned_bytes;
    into->told = into->told || from->told;
#define JOIN_SUM(name)      into->name = saturating_sum(into->name, from->name);
#define JOIN_LARGEST(name)  into->name = larger ? from->name : into->name;
#define COUNT(name, merged) JOIN_##merged(name)
#include "core/figures/graph_counts.def"
#undef COUNT
}

struct report_graphs summary_graphs(const struct summary *summary)
{
    struct report_graphs all = {0};
    for (size_t i = 0; i < summary->process_count; i++)
        add_graphs(&all, &summary->processes[i].graphs);
    return all;
}

struct report_neighbours summary_neighbours(const struct summary *summary)
{
    struct report_neighbours all = {0};

    for (size_t i = 0; i < summary->device_count; i++)
        report_counts_merge(&report_neighbour_counts, &all, &summary->devices[i].device.neighbours);
    return all;
}

struct report_aloneness summary_aloneness(const struct summary_process *process)
{
    return (struct report_aloneness){.housekeeper = &process->housekeeper,
                                     .enabled = process->has_neighbours,
                                     .kept_much = process->kept_much,
                                     .grouped = process->is_grouped};
}

void summary_free(struct summary *summary)
{
    for (size_t i = 0; i < summary->process_count; i++) {
        free(summary->processes[i].host);
        free(summary->processes[i].rank);
        free(summary->processes[i].command);
    }
    for (size_t i = 0; i < summary->device_count; i++) {
        free(summary->devices[i].host);
        free(summary->devices[i].device.samples);
        free_kinds(summary->devices[i].device.kinds, summary->devices[i].device.kind_count);
    }
    free_kinds(summary->kinds, summary->kind_count);
    free(summary->processes);
    free(summary->devices);
    memset(summary, 0, sizeof(*summary));
}
