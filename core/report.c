/*
 * The report's readable table, its file name, and what it says of the process.
 *
 * Part of the preload object, where it runs when someone else's program ends: libc only, no
 * dependence on the locale, and nothing of the program's state is changed.
 */
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the process --------------------------------------------------------------------------------
 */

/* From the innermost launcher that is sure to mean this very process to the most general. */
static const char *const rank_variables[] = {
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK",      "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID",
    "JSM_NAMESPACE_RANK",   "FLUX_TASK_RANK", "RANK",     "SLURM_PROCID",
};

static bool is_a_number(const char *text)
{
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

void report_find_rank(environment_reader environment, char *rank, size_t bytes)
{
    rank[0] = '\0';
    for (size_t i = 0; i < sizeof(rank_variables) / sizeof(rank_variables[0]); i++) {
        const char *value = environment(rank_variables[i]);
        /* It becomes part of a file name: digits only. */
        if (value == NULL || !is_a_number(value) || strlen(value) >= bytes)
            continue;
        memcpy(rank, value, strlen(value) + 1);
        return;
    }
}

/* The command line with spaces for the bytes that end its arguments. */
static void find_command(char *command, size_t bytes)
{
    size_t filled = 0;
    ssize_t got = 0;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && filled < bytes - 1) {
        got = read(fd, command + filled, bytes - 1 - filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        filled += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    while (filled > 0 && command[filled - 1] == '\0')
        filled--;
    for (size_t i = 0; i < filled; i++)
        if (command[i] == '\0')
            command[i] = ' ';
    command[filled] = '\0';
}

void report_describe_process(struct report_process *process, environment_reader environment)
{
    process->pid = getpid();
    if (gethostname(process->host, sizeof(process->host)) != 0)
        process->host[0] = '\0';
    process->host[sizeof(process->host) - 1] = '\0';
    report_find_rank(environment, process->rank, sizeof(process->rank));
    find_command(process->command, sizeof(process->command));
}

/* --- the file name ------------------------------------------------------------------------------
 */

bool report_file_name_is_valid(const char *name)
{
    if (*name == '\0')
        return false;
    for (; *name != '\0'; name++) {
        if (*name != '%')
            continue;
        name++;
        if (*name == '\0' || strchr("phr%", *name) == NULL)
            return false;
    }
    return true;
}

/* What the escape stands for; number is room for the pid. */
static const char *meaning_of_escape(char escape, const struct report_process *process,
                                     char number[24])
{
    switch (escape) {
    case 'p':
        snprintf(number, 24, "%lld", (long long)process->pid);
        return number;
    case 'h':
        return process->host;
    case 'r':
        return process->rank[0] == '\0' ? "0" : process->rank;
    default:
        return "%";
    }
}

/* Adds text to a name, without slashes: a host's name must not choose a directory. */
static bool add_part(char *expanded, size_t bytes, size_t *filled, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*filled + 1 >= bytes)
            return false;
        expanded[*filled] = *text;
        if (*text == '/')
            expanded[*filled] = '_';
        ++*filled;
    }
    return true;
}

int report_expand_file_name(const char *name, const struct report_process *process, char *expanded,
                            size_t bytes)
{
    char number[24];
    size_t filled = 0;
    bool fits = bytes > 0;

    if (!report_file_name_is_valid(name)) {
        errno = EINVAL;
        return -1;
    }
    for (; *name != '\0' && fits; name++) {
        if (*name == '%') {
            name++;
            fits = add_part(expanded, bytes, &filled, meaning_of_escape(*name, process, number));
        } else if ((fits = filled + 1 < bytes)) {
            expanded[filled++] = *name;
        }
    }
    if (!fits) {
        errno = ENAMETOOLONG;
        return -1;
    }
    expanded[filled] = '\0';
    return 0;
}

/* --- numbers for people -------------------------------------------------------------------------
 */

#define CELL_BYTES 32

struct unit {
    const char *name;
    uint64_t worth;
};

static const struct unit byte_units[] = {
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"PiB", 1ull << 50},
    {"EiB", 1ull << 60},
};
#define BYTE_UNITS (sizeof(byte_units) / sizeof(byte_units[0]))

static const struct unit time_units[] = {
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000000},
    {"s", 1000000000},
};
#define TIME_UNITS (sizeof(time_units) / sizeof(time_units[0]))

static const struct unit count_units[] = {
    {"", 1},
    {"M", 1000000},
    {"G", 1000000000},
    {"T", 1000000000000},
    {"P", 1000000000000000},
    {"E", 1000000000000000000},
};
#define COUNT_UNITS (sizeof(count_units) / sizeof(count_units[0]))

/* Counters of a hostile file, or of a very long run, stop at the largest number. */
static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* value in unit with one decimal, rounded down; integers, because the locale's point may differ. */
static void write_tenths(uint64_t value, const struct unit *unit, char cell[CELL_BYTES])
{
    uint64_t tenths = value % unit->worth / (unit->worth / 10 == 0 ? 1 : unit->worth / 10);

    /* A binary unit's tenth is rounded down, so that ten of them fit. */
    snprintf(cell, CELL_BYTES, "%llu.%llu %s", (unsigned long long)(value / unit->worth),
             (unsigned long long)(tenths > 9 ? 9 : tenths), unit->name);
}

static const struct unit *largest_unit_within(uint64_t value, const struct unit *units,
                                              size_t count)
{
    size_t i = count - 1;

    while (i > 0 && units[i].worth > value)
        i--;
    return &units[i];
}

/* "1.5 GiB" */
static void write_bytes(uint64_t bytes, char cell[CELL_BYTES])
{
    const struct unit *unit = largest_unit_within(bytes, byte_units, BYTE_UNITS);

    if (unit->worth == 1)
        snprintf(cell, CELL_BYTES, "%llu B", (unsigned long long)bytes);
    else
        write_tenths(bytes, unit, cell);
}

/* Thousandths of a unit, where the value is a whole number of them. */
static bool in_thousandths(uint64_t value, const struct unit *unit, unsigned *thousandths)
{
    unsigned __int128 scaled = (unsigned __int128)(value % unit->worth) * 1000;

    *thousandths = (unsigned)(scaled / unit->worth);
    return scaled % unit->worth == 0;
}

/* A bucket's size exactly, so that no two look alike: "1.125 MiB", "1040 KiB", "1048577 B". */
static void write_bytes_exactly(uint64_t bytes, char cell[CELL_BYTES])
{
    const struct unit *unit = largest_unit_within(bytes, byte_units, BYTE_UNITS);
    unsigned thousandths;

    while (!in_thousandths(bytes, unit, &thousandths))
        unit--;
    int length = snprintf(cell, CELL_BYTES, "%llu.%03u", (unsigned long long)(bytes / unit->worth),
                          thousandths);
    while (cell[length - 1] == '0')
        length--;
    if (cell[length - 1] == '.')
        length--;
    snprintf(cell + length, CELL_BYTES - (size_t)length, " %s", unit->name);
}

/* "3.2 s" */
static void write_time(uint64_t nanoseconds, char cell[CELL_BYTES])
{
    const struct unit *unit = largest_unit_within(nanoseconds, time_units, TIME_UNITS);

    if (nanoseconds == 0)
        snprintf(cell, CELL_BYTES, "0 s");
    else if (unit->worth == 1)
        snprintf(cell, CELL_BYTES, "%llu ns", (unsigned long long)nanoseconds);
    else
        write_tenths(nanoseconds, unit, cell);
}

/* Up to seven digits as they are, then "12.3 M". */
static void write_count(uint64_t count, char cell[CELL_BYTES])
{
    if (count < 10000000)
        snprintf(cell, CELL_BYTES, "%llu", (unsigned long long)count);
    else
        write_tenths(count, largest_unit_within(count, count_units, COUNT_UNITS), cell);
}

static uint64_t all_hits(const struct report_counters *counters)
{
    return sum(sum(counters->hits.clean, counters->hits.queried),
               sum(counters->hits.barrier, counters->hits.waited));
}

/* Rounded down: 100.0% means that nothing missed. */
static void write_hit_rate(const struct report_counters *counters, char cell[CELL_BYTES])
{
    unsigned __int128 hits = all_hits(counters);

    if (counters->requests == 0) {
        snprintf(cell, CELL_BYTES, "-");
        return;
    }
    unsigned long long permille = (unsigned long long)(hits * 1000 / counters->requests);
    snprintf(cell, CELL_BYTES, "%llu.%llu%%", permille / 10, permille % 10);
}

/* --- the table ----------------------------------------------------------------------------------
 */

enum column {
    BUCKET,
    REQUESTS,
    HIT_RATE,
    CLEAN,
    QUERIED,
    BARRIER,
    WAITED,
    MISSES,
    PEAK,
    EVICTED,
    DRIVER_TIME,
    SAVED,
    COLUMNS
};

struct row {
    char cells[COLUMNS][CELL_BYTES];
};

static const struct row heading = {{"bucket", "requests", "hits", "clean", "queried", "barrier",
                                    "waited", "misses", "peak", "evicted", "driver", "saved"}};

/* The counters of one bucket as text; name is the row's first cell. */
static void fill_row(struct row *row, const char *name, const struct report_counters *counters)
{
    snprintf(row->cells[BUCKET], CELL_BYTES, "%s", name);
    write_count(counters->requests, row->cells[REQUESTS]);
    write_hit_rate(counters, row->cells[HIT_RATE]);
    write_count(counters->hits.clean, row->cells[CLEAN]);
    write_count(counters->hits.queried, row->cells[QUERIED]);
    write_count(counters->hits.barrier, row->cells[BARRIER]);
    write_count(counters->hits.waited, row->cells[WAITED]);
    write_count(counters->misses, row->cells[MISSES]);
    write_bytes(counters->peak.reserved_bytes, row->cells[PEAK]);
    write_count(
        sum(counters->evictions.cap, sum(counters->evictions.idle, counters->evictions.memory)),
        row->cells[EVICTED]);
    write_time(counters->driver.nanoseconds, row->cells[DRIVER_TIME]);
    write_time(counters->saved_nanoseconds, row->cells[SAVED]);
}

static void fill_bucket_row(struct row *row, const struct report_bucket *bucket)
{
    char name[CELL_BYTES] = "not kept";

    if (bucket->bytes != 0)
        write_bytes_exactly(bucket->bytes, name);
    fill_row(row, name, &bucket->counters);
}

static void widen(int widths[COLUMNS], const struct row *row)
{
    for (int column = 0; column < COLUMNS; column++) {
        int width = (int)strlen(row->cells[column]);
        if (width > widths[column])
            widths[column] = width;
    }
}

static void print_row(FILE *out, const int widths[COLUMNS], const struct row *row)
{
    for (int column = 0; column < COLUMNS; column++)
        fprintf(out, "  %*s", widths[column], row->cells[column]);
    fputc('\n', out);
}

/* Twice over the buckets, once to measure and once to print: a report may have many. */
static void print_rows(FILE *out, const struct report_kind *kind)
{
    struct row row, totals = {0};
    int widths[COLUMNS] = {0};

    fill_row(&totals, "all", &kind->totals);
    widen(widths, &heading);
    widen(widths, &totals);
    for (size_t i = 0; i < kind->bucket_count; i++) {
        if (kind->buckets[i].counters.requests == 0)
            continue;
        fill_bucket_row(&row, &kind->buckets[i]);
        widen(widths, &row);
    }
    print_row(out, widths, &heading);
    for (size_t i = 0; i < kind->bucket_count; i++) {
        if (kind->buckets[i].counters.requests == 0)
            continue;
        fill_bucket_row(&row, &kind->buckets[i]);
        print_row(out, widths, &row);
    }
    print_row(out, widths, &totals);
}

/* What a line takes of a text from outside. */
#define TEXT_MOST 64

static bool continues_a_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Text out of a file or a command line: one line, and not too much of it. */
static void print_text(FILE *out, const char *text)
{
    size_t printed = 0;

    for (; *text != '\0' && (printed < TEXT_MOST || continues_a_character(*text)); text++) {
        fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
        printed++;
    }
    if (*text != '\0')
        fputs("...", out);
}

static void print_kind(FILE *out, const struct report_kind *kind)
{
    char requests[CELL_BYTES], rate[CELL_BYTES], live[CELL_BYTES], reserved[CELL_BYTES];
    char cached[CELL_BYTES];
    const struct report_counters *totals = &kind->totals;

    write_count(totals->requests, requests);
    write_hit_rate(totals, rate);
    write_bytes(totals->peak.live_bytes, live);
    write_bytes(totals->peak.reserved_bytes, reserved);
    write_bytes(sum(totals->cached_bytes, totals->pending_bytes), cached);
    fputs("  ", out);
    print_text(out, kind->kind);
    fprintf(out, " memory: %s requests, %s from the pool; ", requests, rate);
    fprintf(out, "peak %s in use, %s reserved; %s free at the end\n", live, reserved, cached);
    print_rows(out, kind);
}

static void print_device(FILE *out, const struct report_device *device)
{
    char total[CELL_BYTES], fences[CELL_BYTES], queries[CELL_BYTES], barriers[CELL_BYTES];

    write_bytes(device->total_bytes, total);
    write_count(device->fences, fences);
    write_count(device->fence_queries, queries);
    write_count(device->barriers, barriers);
    fprintf(out, "device %d: ", device->ordinal);
    print_text(out, device->name);
    fprintf(out, ", %s; %s fences, %s queries of fences, %s barriers\n", total, fences, queries,
            barriers);
    for (size_t i = 0; i < device->kind_count; i++)
        if (device->kinds[i].totals.requests != 0)
            print_kind(out, &device->kinds[i]);
}

static bool device_was_used(const struct report_device *device)
{
    for (size_t i = 0; i < device->kind_count; i++)
        if (device->kinds[i].totals.requests != 0)
            return true;
    return false;
}

static void print_process(FILE *out, const struct report_process *process)
{
    char seconds[CELL_BYTES];
    double wall = process->wall_seconds;

    /* Within 64 bits of nanoseconds, and not NaN. */
    write_time(wall > 0 && wall < 1e10 ? (uint64_t)(wall * 1e9) : 0, seconds);
    fprintf(out, "cudapool: process %lld", (long long)process->pid);
    if (process->rank[0] != '\0') {
        fputs(", rank ", out);
        print_text(out, process->rank);
    }
    if (process->host[0] != '\0') {
        fputs(", on ", out);
        print_text(out, process->host);
    }
    fprintf(out, ", ran %s: ", seconds);
    print_text(out, process->command);
    fputc('\n', out);
}

static void print_summary(FILE *out, const struct report *report)
{
    char saved[CELL_BYTES], spent[CELL_BYTES];
    uint64_t saved_ns = 0, spent_ns = 0;

    for (size_t i = 0; i < report->device_count; i++) {
        for (size_t j = 0; j < report->devices[i].kind_count; j++) {
            const struct report_counters *totals = &report->devices[i].kinds[j].totals;
            saved_ns = sum(saved_ns, totals->saved_nanoseconds);
            spent_ns = sum(spent_ns, totals->driver.nanoseconds);
        }
    }
    write_time(saved_ns, saved);
    write_time(spent_ns, spent);
    fprintf(out, "saved about %s of driver time; driver calls took %s\n", saved, spent);
}

int report_print_table(const struct report *report, FILE *out)
{
    bool used = false;

    print_process(out, &report->process);
    for (size_t i = 0; i < report->device_count; i++) {
        if (!device_was_used(&report->devices[i]))
            continue;
        used = true;
        print_device(out, &report->devices[i]);
    }
    if (used)
        print_summary(out, report);
    else
        fputs("no memory was asked of the pool\n", out);
    return fflush(out) != 0 || ferror(out) ? -1 : 0;
}

/* --- memory -------------------------------------------------------------------------------------
 */

void report_free(struct report *report)
{
    for (size_t i = 0; i < report->device_count; i++) {
        struct report_device *device = &report->devices[i];
        for (size_t j = 0; j < device->kind_count; j++)
            free(device->kinds[j].buckets);
        free(device->kinds);
    }
    free(report->devices);
    report->devices = NULL;
    report->device_count = 0;
}
