/*
 * Prints the table of several processes: a line for each process, then each device, then the
 * buckets of all devices together.
 */
#include <inttypes.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "core/figures/report_neighbours.h"
#include "core/figures/report_table.h"
#include "formats.h"
#include "tools/advice/advice.h"
#include "tools/command/terminal.h"

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

/* Bytes of a cell. Text from outside is cut to fit. */
#define CELL_BYTES 64

struct row {
    char cells[COLUMNS][CELL_BYTES];
};

static const struct table_column columns[COLUMNS] = {
    [HOST] = {"host", 4},     [PROCESS] = {"process", 0},      [RANK] = {"rank", 1},
    [RAN] = {"ran", 0},       [REQUESTS] = {"requests", 0},    [HITS] = {"hits", 0},
    [MISSES] = {"misses", 2}, [FAILED] = {"failed", 1},        [PEAK] = {"peak", 0},
    [DRIVER] = {"driver", 2}, [SAVED] = {"saved at least", 3},
};

static void fill_text(char cell[CELL_BYTES], const char *text)
{
    snprintf(cell, CELL_BYTES, "%.*s", (int)whole_characters(text, 24), text);
    make_printable(cell, CELL_BYTES);
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

/* The least columns of a short line that the command takes. */
#define COMMAND_LEAST 18

/* Prints how the process ended, and before that the command, cut off to fit the terminal. */
static void print_command(const struct table *table, const struct summary_process *process,
                          FILE *out)
{
    char end[REPORT_END_BYTES];

    report_describe_end(process->ending, process->exit, end);
    int room = table->look->width - table_width(table) - 2;
    room -= end[0] == '\0' ? 0 : 2 + text_width(end);
    fputs("  ", out);
    if (look_is_short(table->look) && text_width(process->command) > room)
        print_cut_off(process->command, room, out);
    else
        report_print_text(out, process->command);
    fprintf(out, "%s%s\n", end[0] == '\0' ? "" : ", ", end);
}

static void print_process(const struct table *table, const struct summary_process *process,
                          FILE *out)
{
    enum text_style styles[COLUMNS] = {[HITS] = report_style_of_hits(&process->totals)};
    struct row row;

    fill_row(&row, process);
    table_print(table, row.cells[0], styles, out);
    print_command(table, process, out);
}

static void print_processes(const struct summary *summary, const struct look *look, FILE *out)
{
    struct table table;
    struct row row;

    table_begin(&table, columns, COLUMNS, CELL_BYTES, look);
    table.beside = 2 + COMMAND_LEAST;
    for (size_t i = 0; i < summary->process_count; i++) {
        fill_row(&row, &summary->processes[i]);
        table_measure(&table, row.cells[0]);
    }
    table_fit(&table);
    table_print_headings(&table, out);
    fprintf(out, "  %scommand%s\n", style_begin(look, STYLE_BOLD), style_end(look, STYLE_BOLD));
    for (size_t i = 0; i < summary->process_count; i++)
        print_process(&table, &summary->processes[i], out);
    table_print_left_out(&table, out);
}

static void print_neighbours(const struct summary_device *device, FILE *out)
{
    char line[REPORT_LINE_BYTES];

    for (unsigned i = 0; i < REPORT_DEVICE_LINES; i++)
        if (report_device_line(&device->device, i, line))
            fprintf(out, "  %s\n", line);
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
    print_neighbours(device, out);
}

/* Prints why processes share no memory with others: each sentence once, with the number of
 * processes that it is about. */
static void print_aloneness(const struct summary *summary, FILE *out)
{
    char line[REPORT_LINE_BYTES], first[REPORT_LINE_BYTES] = "";

    for (unsigned number = 0; number < REPORT_PROCESS_LINES; number++) {
        size_t count = 0;
        for (size_t i = 0; i < summary->process_count; i++) {
            struct report_aloneness of = summary_aloneness(&summary->processes[i]);
            if (report_process_line(&of, number, line) && count++ == 0)
                memcpy(first, line, sizeof(first));
        }
        if (count > 0)
            fprintf(out, "%zu of %zu processes: %s\n", count, summary->process_count, first);
    }
}

static bool shares_a_device(const struct summary *summary)
{
    for (size_t i = 0; i < summary->device_count; i++)
        if (summary->devices[i].processes > 1)
            return true;
    return false;
}

/* Prints the start time and the versions, both of the first process. */
static void print_origin(const struct summary *summary, FILE *out)
{
    char text[REPORT_ORIGIN_BYTES] = "";

    if (summary->process_count > 0)
        report_describe_origin(&summary->processes[0].versions,
                               summary->processes[0].started_nanoseconds, text);
    if (text[0] != '\0')
        fprintf(out, "%s\n", text);
}

static void print_whole(const struct summary *summary, const struct look *look, FILE *out)
{
    struct report_counters totals = summary_totals(summary);
    struct report_graphs graphs = summary_graphs(summary);
    size_t hosts = summary_host_count(summary);
    char wall[READABLE_BYTES];

    readable_seconds(summary_wall_seconds(summary), wall);
    fprintf(out, "cudapool: ran %s: %zu process%s on %zu host%s, %zu device%s\n", wall,
            summary->process_count, summary->process_count == 1 ? "" : "es", hosts,
            hosts == 1 ? "" : "s", summary->device_count, summary->device_count == 1 ? "" : "s");
    print_origin(summary, out);
    print_processes(summary, look, out);
    for (size_t i = 0; i < summary->device_count; i++)
        print_device(&summary->devices[i], out);
    report_print_graphs(&graphs, out);
    print_aloneness(summary, out);
    if (totals.requests == 0) {
        fputs("no memory was asked of the pool\n", out);
        return;
    }
    if (summary->device_count > 1)
        fputs("all devices together; peaks are those of the device with the largest\n", out);
    for (size_t i = 0; i < summary->kind_count; i++)
        if (summary->kinds[i].totals.requests != 0)
            report_print_kind(out, &summary->kinds[i], look);
    report_print_times(out, &totals);
    if (shares_a_device(summary))
        fputs("the peak of a device that processes shared is the sum of their peaks, which need "
              "not have come at one time\n",
              out);
    if (summary->settings_differ)
        fputs("the processes had different settings\n", out);
    print_advice(summary, out);
}

int print_report_table(struct report *report, const struct look *look, FILE *out)
{
    struct summary summary = {0};
    struct folding folding;
    FILE *lines = folding_begin(&folding, look, out);
    int status = report_print_as(report, look, lines);

    if (status == 0)
        status = summary_add(&summary, report);
    if (status == 0)
        status = summary_finish(&summary);
    if (status == 0)
        print_advice(&summary, lines);
    folding_end(&folding);
    summary_free(&summary);
    return status;
}

void print_summary_table(const struct summary *summary, const struct look *look, FILE *out)
{
    struct folding folding;

    print_whole(summary, look, folding_begin(&folding, look, out));
    folding_end(&folding);
}
