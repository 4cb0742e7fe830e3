/*
 * The readable table of several processes: a line for each, then each device, then the buckets of
 * all devices together.
 */
#include <inttypes.h>
#include <string.h>

#include "advice.h"
#include "core/one_line.h"
#include "core/readable.h"
#include "formats.h"

enum column {
    HOST,
    PROCESS,
    RANK,
    RAN,
    REQUESTS,
    HITS,
    MISSES,
    FAILED,
    PEAK,
    DRIVER,
    SAVED,
    COLUMNS
};

/* What a column takes of a text from outside. */
#define CELL_BYTES 64

struct row {
    char cells[COLUMNS][CELL_BYTES];
};

static const struct row heading = {{"host", "process", "rank", "ran", "requests", "hits", "misses",
                                    "failed", "peak", "driver", "saved at least"}};

static void fill_text(char cell[CELL_BYTES], const char *text)
{
    snprintf(cell, CELL_BYTES, "%.24s", text);
    replace_control_characters(cell);
}

static void fill_row(struct row *row, const struct summary_process *process)
{
    const struct report_counters *totals = &process->totals;

    memset(row, 0, sizeof(*row));
    fill_text(row->cells[HOST], process->host);
    snprintf(row->cells[PROCESS], CELL_BYTES, "%" PRId64, process->pid);
    fill_text(row->cells[RANK], process->rank[0] == '\0' ? "-" : process->rank);
    readable_seconds(process->wall_seconds, row->cells[RAN]);
    readable_count(totals->requests, row->cells[REQUESTS]);
    readable_hit_rate(totals, row->cells[HITS]);
    readable_count(totals->misses, row->cells[MISSES]);
    readable_count(report_all_failures(totals), row->cells[FAILED]);
    readable_bytes(totals->peak.reserved_bytes, row->cells[PEAK]);
    readable_time(totals->driver.nanoseconds, row->cells[DRIVER]);
    readable_time(totals->saved_at_least_nanoseconds, row->cells[SAVED]);
}

static void print_processes(const struct summary *summary, FILE *out)
{
    int widths[COLUMNS] = {0};
    char end[REPORT_END_BYTES];
    struct row row;

    readable_widen(widths, COLUMNS, CELL_BYTES, heading.cells[0]);
    for (size_t i = 0; i < summary->process_count; i++) {
        fill_row(&row, &summary->processes[i]);
        readable_widen(widths, COLUMNS, CELL_BYTES, row.cells[0]);
    }
    readable_print_row(out, widths, COLUMNS, CELL_BYTES, heading.cells[0]);
    fputs("  command\n", out);
    for (size_t i = 0; i < summary->process_count; i++) {
        fill_row(&row, &summary->processes[i]);
        readable_print_row(out, widths, COLUMNS, CELL_BYTES, row.cells[0]);
        fputs("  ", out);
        report_print_text(out, summary->processes[i].command);
        report_describe_end(summary->processes[i].ending, summary->processes[i].exit, end);
        fprintf(out, "%s%s\n", end[0] == '\0' ? "" : ", ", end);
    }
}

static void print_device(const struct summary_device *device, FILE *out)
{
    char total[READABLE_BYTES], live[READABLE_BYTES], reserved[READABLE_BYTES];
    struct report_counters totals = device_totals(&device->device);

    readable_bytes(device->device.total_bytes, total);
    readable_bytes(totals.peak.live_bytes, live);
    readable_bytes(totals.peak.reserved_bytes, reserved);
    fprintf(out, "device %d on ", device->device.ordinal);
    report_print_text(out, device->host);
    fputs(": ", out);
    report_print_text(out, device->device.name);
    fprintf(out, ", %s; %zu process%s, peak %s%s in use, %s reserved\n", total, device->processes,
            device->processes == 1 ? "" : "es", device->processes == 1 ? "" : "at most ", live,
            reserved);
}

static bool shares_a_device(const struct summary *summary)
{
    for (size_t i = 0; i < summary->device_count; i++)
        if (summary->devices[i].processes > 1)
            return true;
    return false;
}

void print_summary_table(const struct summary *summary, FILE *out)
{
    struct report_counters totals = summary_totals(summary);
    size_t hosts = summary_host_count(summary);
    char wall[READABLE_BYTES];

    readable_seconds(summary_wall_seconds(summary), wall);
    fprintf(out, "cudapool: ran %s: %zu process%s on %zu host%s, %zu device%s\n", wall,
            summary->process_count, summary->process_count == 1 ? "" : "es", hosts,
            hosts == 1 ? "" : "s", summary->device_count, summary->device_count == 1 ? "" : "s");
    print_processes(summary, out);
    for (size_t i = 0; i < summary->device_count; i++)
        print_device(&summary->devices[i], out);
    if (totals.requests == 0) {
        fputs("no memory was asked of the pool\n", out);
        return;
    }
    if (summary->device_count > 1)
        fputs("all devices together; peaks are those of the device with the largest\n", out);
    for (size_t i = 0; i < summary->kind_count; i++)
        if (summary->kinds[i].totals.requests != 0)
            report_print_kind(out, &summary->kinds[i]);
    report_print_times(out, &totals);
    if (shares_a_device(summary))
        fputs("the peak of a device that processes shared is the sum of their peaks, which need "
              "not have come at one time\n",
              out);
    if (summary->settings_differ)
        fputs("the processes had different settings\n", out);
    print_advice(summary, out);
}

int print_report_table(struct report *report, FILE *out)
{
    struct summary summary = {0};
    int status = report_print_table(report, out);

    if (status == 0)
        status = summary_add(&summary, report);
    if (status == 0)
        status = summary_finish(&summary);
    if (status == 0)
        print_advice(&summary, out);
    summary_free(&summary);
    return status;
}
