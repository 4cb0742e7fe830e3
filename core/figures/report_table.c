/*
 * Prints the report as a readable table (report_table.h). A table goes over its rows twice: it
 * measures them, and then prints them.
 *
 * Part of the preload object, where it runs while someone else's program ends: libc only. It does
 * not depend on the locale, and allocates no memory.
 */
#include "report_table.h"

#include <inttypes.h>
#include <string.h>

#include "core/base/one_line.h"
#include "report_neighbours.h"

/* The rate is rounded down, so that 100.0% means that nothing missed. */
void readable_hit_rate(const struct report_counters *counters, char cell[READABLE_BYTES])
{
    unsigned __int128 hits = report_all_hits(counters);

    if (counters->requests == 0) {
        snprintf(cell, READABLE_BYTES, "-");
        return;
    }
    unsigned long long permille = (unsigned long long)(hits * 1000 / counters->requests);
    snprintf(cell, READABLE_BYTES, "%llu.%llu%%", permille / 10, permille % 10);
}

enum text_style report_style_of_hits(const struct report_counters *counters)
{
    unsigned __int128 hits = report_all_hits(counters);

    if (counters->requests == 0)
        return STYLE_PLAIN;
    if (hits * 10 >= (unsigned __int128)counters->requests * 9)
        return STYLE_GOOD;
    return hits * 2 >= counters->requests ? STYLE_FAIR : STYLE_BAD;
}

enum column {
    BUCKET,
    REQUESTS,
    HIT_RATE,
    CLEAN,
    QUERIED,
    BARRIER,
    WAITED,
    MISSES,
    FAILED,
    GIVEN_BACK,
    LIVE,
    PEAK,
    DRIVER_TIME,
    WAIT_TIME,
    WAITING_FREES,
    SAVED,
    COLUMNS
};

struct row {
    char cells[COLUMNS][READABLE_BYTES];
};

/* Where the width is short, the columns that tell how requests were answered are left out first. */
static const struct table_column columns[COLUMNS] = {
    [BUCKET] = {"bucket", 0},
    [REQUESTS] = {"requests", 0},
    [HIT_RATE] = {"hits", 0},
    [CLEAN] = {"clean", 8},
    [QUERIED] = {"queried", 7},
    [BARRIER] = {"barrier", 6},
    [WAITED] = {"waited", 5},
    [MISSES] = {"misses", 1},
    [FAILED] = {"failed", 1},
    [GIVEN_BACK] = {"given back", 4},
    [LIVE] = {"live", 4},
    [PEAK] = {"peak", 2},
    [DRIVER_TIME] = {"driver", 1},
    [WAIT_TIME] = {"wait", 1},
    [WAITING_FREES] = {"free waits", 3},
    [SAVED] = {"saved at least", 3},
};

/* Writes the counters of one bucket as text; name is the row's first cell. */
static void fill_row(struct row *row, const char *name, const struct report_counters *counters)
{
    snprintf(row->cells[BUCKET], READABLE_BYTES, "%s", name);
    readable_count(counters->requests, row->cells[REQUESTS]);
    readable_hit_rate(counters, row->cells[HIT_RATE]);
    readable_count(counters->hits.clean, row->cells[CLEAN]);
    readable_count(counters->hits.queried, row->cells[QUERIED]);
    readable_count(counters->hits.barrier, row->cells[BARRIER]);
    readable_count(counters->hits.waited, row->cells[WAITED]);
    readable_count(counters->misses, row->cells[MISSES]);
    readable_count(report_all_failures(counters), row->cells[FAILED]);
    readable_count(report_all_given_back(counters), row->cells[GIVEN_BACK]);
    readable_count(counters->live_blocks, row->cells[LIVE]);
    readable_bytes(counters->peak.reserved_bytes, row->cells[PEAK]);
    readable_time(counters->driver.nanoseconds, row->cells[DRIVER_TIME]);
    readable_time(counters->waits.nanoseconds, row->cells[WAIT_TIME]);
    readable_count(counters->waits.frees, row->cells[WAITING_FREES]);
    readable_time(counters->saved_at_least_nanoseconds, row->cells[SAVED]);
}

static void fill_bucket_row(struct row *row, const struct report_bucket *bucket)
{
    char name[READABLE_BYTES] = "not kept";

    if (bucket->bytes != 0)
        readable_exact_bytes(bucket->bytes, name);
    fill_row(row, name, &bucket->counters);
}

static void print_row(const struct table *table, const struct row *row, enum text_style style,
                      const struct report_counters *counters, FILE *out)
{
    enum text_style styles[COLUMNS];

    for (int i = 0; i < COLUMNS; i++)
        styles[i] = style;
    styles[HIT_RATE] = report_style_of_hits(counters);
    table_print(table, row->cells[0], styles, out);
    fputc('\n', out);
}

/* The indices of the busiest buckets, at most LOOK_ROWS. */
struct busiest {
    size_t buckets[LOOK_ROWS];
    size_t count;
    size_t used; /* buckets that are worth a row */
};

/* A bucket that serves no requests may have frees that waited. */
static bool is_worth_a_row(const struct report_counters *counters)
{
    return counters->requests > 0 || counters->waits.frees > 0;
}

/* Buckets with failures weigh most, so that they are never left out. */
static uint64_t weight_of(const struct report_bucket *bucket)
{
    const struct report_counters *counters = &bucket->counters;

    if (report_all_failures(counters) > 0)
        return UINT64_MAX;
    return counters->requests > 0 ? counters->requests : is_worth_a_row(counters);
}

static struct busiest find_busiest(const struct report_kind *kind)
{
    struct busiest busiest = {.count = 0};

    for (size_t i = 0; i < kind->bucket_count; i++) {
        uint64_t weight = weight_of(&kind->buckets[i]);
        if (weight == 0)
            continue;
        busiest.used++;
        size_t at = busiest.count;
        while (at > 0 && weight_of(&kind->buckets[busiest.buckets[at - 1]]) < weight)
            at--;
        if (at == LOOK_ROWS)
            continue;
        if (busiest.count < LOOK_ROWS)
            busiest.count++;
        memmove(&busiest.buckets[at + 1], &busiest.buckets[at],
                (busiest.count - 1 - at) * sizeof(busiest.buckets[0]));
        busiest.buckets[at] = i;
    }
    return busiest;
}

static bool is_printed(const struct report_kind *kind, size_t bucket, const struct busiest *busiest,
                       const struct look *look)
{
    if (!is_worth_a_row(&kind->buckets[bucket].counters))
        return false;
    if (!look_is_short(look) || busiest->used <= LOOK_ROWS)
        return true;
    for (size_t i = 0; i < busiest->count; i++)
        if (busiest->buckets[i] == bucket)
            return true;
    return false;
}

/* Goes over the buckets twice, to measure and to print, since a report may have too many rows to
 * store. */
static void print_rows(FILE *out, const struct report_kind *kind, const struct look *look)
{
    struct busiest busiest = find_busiest(kind);
    struct row row, totals = {0};
    struct table table;

    table_begin(&table, columns, COLUMNS, READABLE_BYTES, look);
    fill_row(&totals, "all", &kind->totals);
    table_measure(&table, totals.cells[0]);
    for (size_t i = 0; i < kind->bucket_count; i++) {
        if (!is_printed(kind, i, &busiest, look))
            continue;
        fill_bucket_row(&row, &kind->buckets[i]);
        table_measure(&table, row.cells[0]);
    }
    table_fit(&table);
    table_print_headings(&table, out);
    fputc('\n', out);
    for (size_t i = 0; i < kind->bucket_count; i++) {
        if (!is_printed(kind, i, &busiest, look))
            continue;
        fill_bucket_row(&row, &kind->buckets[i]);
        print_row(&table, &row, STYLE_PLAIN, &kind->buckets[i].counters, out);
    }
    print_row(&table, &totals, STYLE_BOLD, &kind->totals, out);
    if (look_is_short(look) && busiest.used > LOOK_ROWS)
        fprintf(out, "  %zu more: %s\n", busiest.used - LOOK_ROWS, look->more);
    table_print_left_out(&table, out);
}

/* The most bytes that a line prints of a text from outside. */
#define TEXT_MOST 64

/* Prints text from a file or a command line on one line, cut off after TEXT_MOST. */
void report_print_text(FILE *out, const char *text)
{
    char piece[PRINTABLE_BYTES];

    for (size_t printed = 0; *text != '\0' && printed < TEXT_MOST;) {
        printed += take_printable(&text, piece);
        fputs(piece, out);
    }
    if (*text != '\0')
        fputs("...", out);
}

static void print_reason(FILE *out, uint64_t failures, const char *reason, const char **gap)
{
    char count[READABLE_BYTES];

    if (failures == 0)
        return;
    readable_count(failures, count);
    fprintf(out, "%s%s %s", *gap, count, reason);
    *gap = ", ";
}

static void print_failures(FILE *out, const struct report_kind *kind)
{
    const struct report_counters *totals = &kind->totals;
    bool of_device = report_kind_is_of_device(kind);
    char count[READABLE_BYTES];
    uint64_t all = report_all_failures(totals);
    const char *gap = " failed: ";

    if (all == 0)
        return;
    readable_count(all, count);
    fprintf(out, "  %s request%s", count, all == 1 ? "" : "s");
    print_reason(out, totals->failures.memory,
                 of_device ? "for want of device memory" : "for want of memory", &gap);
    print_reason(out, totals->failures.limit, "at the process's limit", &gap);
    print_reason(out, totals->failures.group, "at its group's limit", &gap);
    print_reason(out, totals->failures.other, "for other reasons", &gap);
    fputc('\n', out);
}

void report_print_kind(FILE *out, const struct report_kind *kind, const struct look *look)
{
    char requests[READABLE_BYTES], rate[READABLE_BYTES], live[READABLE_BYTES],
        reserved[READABLE_BYTES];
    char cached[READABLE_BYTES];
    const struct report_counters *totals = &kind->totals;

    readable_count(totals->requests, requests);
    readable_hit_rate(totals, rate);
    readable_bytes(totals->peak.live_bytes, live);
    readable_bytes(totals->peak.reserved_bytes, reserved);
    readable_bytes(saturating_sum(totals->cached_bytes, totals->pending_bytes), cached);
    fputs("  ", out);
    report_print_text(out, kind->kind);
    fprintf(out, " memory: %s requests, %s from the pool; ", requests, rate);
    fprintf(out, "peak %s in use, %s reserved; %s free at the end\n", live, reserved, cached);
    print_failures(out, kind);
    print_rows(out, kind, look);
}

static void print_device(FILE *out, const struct report_device *device, const struct look *look)
{
    char total[READABLE_BYTES], fences[READABLE_BYTES], queries[READABLE_BYTES],
        barriers[READABLE_BYTES];

    readable_bytes(device->total_bytes, total);
    readable_count(device->fences, fences);
    readable_count(device->fence_queries, queries);
    readable_count(device->barriers, barriers);
    fprintf(out, "device %d: ", device->ordinal);
    report_print_text(out, device->name);
    fprintf(out, ", %s; %s fences, %s queries of fences, %s barriers\n", total, fences, queries,
            barriers);
    for (unsigned i = 0; i < REPORT_DEVICE_LINES; i++) {
        char line[REPORT_LINE_BYTES];
        if (report_device_line(device, i, line))
            fprintf(out, "  %s\n", line);
    }
    for (size_t i = 0; i < device->kind_count; i++)
        if (device->kinds[i].totals.requests != 0)
            report_print_kind(out, &device->kinds[i], look);
}

static void print_process(FILE *out, const struct report_process *process)
{
    char origin[REPORT_ORIGIN_BYTES];
    char seconds[READABLE_BYTES], end[REPORT_END_BYTES];

    readable_seconds(process->wall_seconds, seconds);
    fprintf(out, "cudapool: process %lld", (long long)process->pid);
    if (process->rank[0] != '\0') {
        fputs(", rank ", out);
        report_print_text(out, process->rank);
    }
    if (process->host[0] != '\0') {
        fputs(", on ", out);
        report_print_text(out, process->host);
    }
    fprintf(out, ", ran %s: ", seconds);
    report_print_text(out, process->command);
    fputc('\n', out);
    report_describe_origin(&process->versions, process->started_nanoseconds, origin);
    if (origin[0] != '\0')
        fprintf(out, "%s\n", origin);
    report_describe_end(process->ending, process->exit, end);
    if (end[0] != '\0')
        fprintf(out, "%s%s\n", end,
                process->ending == REPORT_KILLED    ? ": the figures are those of its last moment"
                : process->ending == REPORT_RUNNING ? ": the figures are those of this moment"
                                                    : "");
}

void report_print_times(FILE *out, const struct report_counters *totals)
{
    char saved[READABLE_BYTES], spent[READABLE_BYTES], waited[READABLE_BYTES];

    readable_time(totals->saved_at_least_nanoseconds, saved);
    readable_time(totals->driver.nanoseconds, spent);
    readable_time(totals->waits.nanoseconds, waited);
    fprintf(out,
            "allocations and frees took %s in the driver and waited %s for the GPU; without the "
            "pool they would have taken at least %s more\n",
            spent, waited, saved);
}

/* Sums the times for report_print_times over all kinds of all devices. */
static struct report_counters sum_times(const struct report *report)
{
    struct report_counters sum = {0};

    for (size_t i = 0; i < report->device_count; i++)
        for (size_t j = 0; j < report->devices[i].kind_count; j++) {
            const struct report_counters *c = &report->devices[i].kinds[j].totals;
            sum.requests = saturating_sum(sum.requests, c->requests);
            sum.driver.nanoseconds = saturating_sum(sum.driver.nanoseconds, c->driver.nanoseconds);
            sum.waits.nanoseconds = saturating_sum(sum.waits.nanoseconds, c->waits.nanoseconds);
            sum.saved_at_least_nanoseconds =
                saturating_sum(sum.saved_at_least_nanoseconds, c->saved_at_least_nanoseconds);
        }
    return sum;
}

static void print_nodes(const struct report_graphs *graphs, FILE *out)
{
    if (graphs->memory_nodes != 0 || graphs->in_place_of_nodes != 0)
        fprintf(out,
                "graphs: %" PRIu64 " allocations were captured as memory nodes, and %" PRIu64
                " got a block in the place of one\n",
                graphs->memory_nodes, graphs->in_place_of_nodes);
}

/* Prints what captures allocated and freed, and what graphs keep. */
void report_print_graphs(const struct report_graphs *graphs, FILE *out)
{
    char kept[READABLE_BYTES], most[READABLE_BYTES], when[READABLE_BYTES];

    if (graphs->captures != 0) {
        readable_bytes(graphs->kept_bytes, kept);
        readable_bytes(graphs->peak_kept_bytes, most);
        fprintf(out,
                "graphs: %" PRIu64 " captures that could allocate, of which %" PRIu64
                " left no graph; of what was freed, graphs kept %s at the end and %s at most\n",
                graphs->captures, graphs->failed, kept, most);
        fprintf(out,
                "graphs: with memory of %" PRIu64 " captures at the end; %" PRIu64
                " launches, %" PRIu64 " uploads\n",
                graphs->owners, graphs->launches, graphs->uploads);
    }
    print_nodes(graphs, out);
    if (graphs->bystander_bytes != 0) {
        readable_bytes(graphs->bystander_bytes, kept);
        fprintf(out, "graphs: threads that only ran beside captures freed %s, which those kept\n",
                kept);
    }
    if (graphs->most_owned_bytes != 0) {
        readable_bytes(graphs->most_owned_bytes, most);
        readable_time(graphs->most_owned_nanoseconds, when);
        fprintf(out,
                "graphs: most belonged to capture %" PRIu64 ", begun on stream 0x%" PRIx64
                " after %s: %s\n",
                graphs->most_owned_capture, graphs->most_owned_stream, when, most);
    }
    if (graphs->without_owner != 0)
        fprintf(out, "graphs: in %" PRIu64 " captures the driver answered\n",
                graphs->without_owner);
    if (graphs->astray != 0)
        fprintf(out, "graphs: %" PRIu64 " blocks of theirs could have been handed out\n",
                graphs->astray);
}

/* Prints what prevented the process from sharing memory with other processes. */
static void print_aloneness(const struct report *report, FILE *out)
{
    char line[REPORT_LINE_BYTES];
    const struct report_aloneness of = {
        .housekeeper = &report->housekeeper,
        .enabled = report->settings.neighbours.enabled,
        .kept_much = report_kept_much(report->devices, report->device_count),
        .grouped = report_is_grouped(report->devices, report->device_count)};

    for (unsigned i = 0; i < REPORT_PROCESS_LINES; i++)
        if (report_process_line(&of, i, line))
            fprintf(out, "%s\n", line);
}

static void print_whole(const struct report *report, const struct look *look, FILE *out)
{
    bool used = false;

    print_process(out, &report->process);
    for (size_t i = 0; i < report->device_count; i++) {
        if (!report_device_was_used(&report->devices[i]))
            continue;
        used = true;
        print_device(out, &report->devices[i], look);
    }
    struct report_counters times = sum_times(report);
    if (used) {
        report_print_graphs(&report->graphs, out);
        print_aloneness(report, out);
    }
    if (times.requests != 0)
        report_print_times(out, &times);
    else
        fputs("no memory was asked of the pool\n", out);
}

int report_print_as(const struct report *report, const struct look *look, FILE *out)
{
    print_whole(report, look, out);
    return fflush(out) != 0 || ferror(out) ? -1 : 0;
}

int report_print_table(const struct report *report, FILE *out)
{
    return report_print_as(report, &look_of_files, out);
}
