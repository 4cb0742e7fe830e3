/*
 * The report's readable table, and what it says of the process.
 *
 * Part of the preload object, where it runs when someone else's program ends: libc only, no
 * dependence on the locale, and nothing of the program's state is changed.
 */
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file_pattern.h"
#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "core/base/scratch.h"
#include "core/base/table.h"
#include "history.h"

/* The Makefile says what it is; whoever reads the sources without it shall get through. */
#ifndef CUDAPOOL_VERSION
#define CUDAPOOL_VERSION "unknown"
#endif

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

/* --- versions and the date ----------------------------------------------------------------------
 */

void report_driver_release(const char *text, char *release, size_t bytes)
{
    size_t length;

    release[0] = '\0';
    for (text += strcspn(text, " \t\n"); *text != '\0'; text += length) {
        text += strspn(text, " \t\n");
        length = strcspn(text, " \t\n");
        size_t digits = strspn(text, "0123456789.");
        if (digits == length && digits > 2 && digits < bytes && memchr(text, '.', length) != NULL) {
            memcpy(release, text, length);
            release[length] = '\0';
            return;
        }
    }
}

void report_find_versions(struct report_versions *versions)
{
    char text[512];
    int fd = open("/proc/driver/nvidia/version", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    report_driver_release(text, versions->driver, sizeof(versions->driver));
    snprintf(versions->cudapool, sizeof(versions->cudapool), "%s", CUDAPOOL_VERSION);
}

static void append(char *text, const char *gap, const char *more)
{
    size_t length = strlen(text);

    snprintf(text + length, REPORT_ORIGIN_BYTES - length, "%s%s", length == 0 ? "" : gap, more);
}

void report_describe_origin(const struct report_versions *versions, uint64_t started_nanoseconds,
                            char text[REPORT_ORIGIN_BYTES])
{
    char part[READABLE_BYTES + 32];

    text[0] = '\0';
    if (versions->cudapool[0] != '\0') {
        snprintf(part, sizeof(part), "cudapool %s", versions->cudapool);
        append(text, "", part);
    }
    if (versions->driver[0] != '\0') {
        snprintf(part, sizeof(part), "driver %s", versions->driver);
        append(text, ", ", part);
    }
    if (versions->cuda != 0) {
        bool in_brackets = versions->driver[0] != '\0';
        snprintf(part, sizeof(part), "%sCUDA %u.%u%s", in_brackets ? "(" : "",
                 versions->cuda / 1000, versions->cuda % 1000 / 10, in_brackets ? ")" : "");
        append(text, in_brackets ? " " : ", ", part);
    }
    if (started_nanoseconds != 0) {
        readable_date(started_nanoseconds, part);
        append(text, ", ", part);
    }
    replace_control_characters(text);
}

int report_expand_file_name(const char *name, const struct report_process *process, char *expanded,
                            size_t bytes)
{
    const struct file_pattern_values values = {
        .pid = process->pid, .host = process->host, .rank = process->rank};

    return file_pattern_expand(name, &values, expanded, bytes);
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
    FAILED,
    GIVEN_BACK,
    LIVE,
    PEAK,
    DRIVER_TIME,
    SAVED,
    COLUMNS
};

struct row {
    char cells[COLUMNS][READABLE_BYTES];
};

/* How requests were answered goes first where there is no room for all of it. */
static const struct table_column columns[COLUMNS] = {
    [BUCKET] = {"bucket", 0},      [REQUESTS] = {"requests", 0},
    [HIT_RATE] = {"hits", 0},      [CLEAN] = {"clean", 8},
    [QUERIED] = {"queried", 7},    [BARRIER] = {"barrier", 6},
    [WAITED] = {"waited", 5},      [MISSES] = {"misses", 1},
    [FAILED] = {"failed", 1},      [GIVEN_BACK] = {"given back", 4},
    [LIVE] = {"live", 4},          [PEAK] = {"peak", 2},
    [DRIVER_TIME] = {"driver", 1}, [SAVED] = {"saved at least", 3},
};

/* The counters of one bucket as text; name is the row's first cell. */
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

/* The busiest buckets, by their index, or as many as there are room for. */
struct busiest {
    size_t buckets[LOOK_ROWS];
    size_t count;
    size_t used; /* buckets that have any requests */
};

/* What failed is never left out. */
static uint64_t weight_of(const struct report_bucket *bucket)
{
    return report_all_failures(&bucket->counters) > 0 ? UINT64_MAX : bucket->counters.requests;
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
    if (kind->buckets[bucket].counters.requests == 0)
        return false;
    if (!look_is_short(look) || busiest->used <= LOOK_ROWS)
        return true;
    for (size_t i = 0; i < busiest->count; i++)
        if (busiest->buckets[i] == bucket)
            return true;
    return false;
}

/* Twice over the buckets, once to measure and once to print: a report may have many. */
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
}

/* What a line takes of a text from outside. */
#define TEXT_MOST 64

static bool continues_a_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Text out of a file or a command line: one line, and not too much of it. */
void report_print_text(FILE *out, const char *text)
{
    size_t printed = 0;

    for (; *text != '\0' && (printed < TEXT_MOST || continues_a_character(*text)); text++) {
        fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
        printed++;
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

static void print_failures(FILE *out, const struct report_counters *totals)
{
    char count[READABLE_BYTES];
    uint64_t all = report_all_failures(totals);
    const char *gap = " failed: ";

    if (all == 0)
        return;
    readable_count(all, count);
    fprintf(out, "  %s request%s", count, all == 1 ? "" : "s");
    print_reason(out, totals->failures.memory, "for want of device memory", &gap);
    print_reason(out, totals->failures.limit, "at limits.device_bytes", &gap);
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
    print_failures(out, totals);
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
    for (size_t i = 0; i < device->kind_count; i++)
        if (device->kinds[i].totals.requests != 0)
            report_print_kind(out, &device->kinds[i], look);
}

static bool device_was_used(const struct report_device *device)
{
    for (size_t i = 0; i < device->kind_count; i++)
        if (device->kinds[i].totals.requests != 0)
            return true;
    return false;
}

/* Those that end processes; the C library's own list of names came with glibc 2.32. */
static const struct {
    int number;
    const char *name;
} signals[] = {
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},     {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"},     {SIGSYS, "SIGSYS"},   {SIGIO, "SIGIO"},     {SIGPROF, "SIGPROF"},
    {SIGVTALRM, "SIGVTALRM"},
};

static void describe_signal(int number, char text[REPORT_END_BYTES])
{
    snprintf(text, REPORT_END_BYTES, "killed by signal %d", number);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (signals[i].number == number)
            snprintf(text, REPORT_END_BYTES, "killed by %s", signals[i].name);
}

void report_describe_end(enum report_ending ending, struct report_exit exit,
                         char text[REPORT_END_BYTES])
{
    text[0] = '\0';
    if (exit.known && exit.signal != 0)
        describe_signal(exit.signal, text);
    else if (exit.known && ending == REPORT_KILLED)
        snprintf(text, REPORT_END_BYTES, "ended by _exit(%d)", exit.status);
    else if (exit.known && exit.status != 0)
        snprintf(text, REPORT_END_BYTES, "exited with status %d", exit.status);
    else if (ending == REPORT_KILLED)
        snprintf(text, REPORT_END_BYTES, "killed, or ended without a word");
    else if (ending == REPORT_RUNNING)
        snprintf(text, REPORT_END_BYTES, "still running");
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

/* Of all kinds of all devices, what report_print_times tells. */
static struct report_counters sum_times(const struct report *report)
{
    struct report_counters sum = {0};

    for (size_t i = 0; i < report->device_count; i++)
        for (size_t j = 0; j < report->devices[i].kind_count; j++) {
            const struct report_counters *c = &report->devices[i].kinds[j].totals;
            sum.driver.nanoseconds = saturating_sum(sum.driver.nanoseconds, c->driver.nanoseconds);
            sum.waits.nanoseconds = saturating_sum(sum.waits.nanoseconds, c->waits.nanoseconds);
            sum.saved_at_least_nanoseconds =
                saturating_sum(sum.saved_at_least_nanoseconds, c->saved_at_least_nanoseconds);
        }
    return sum;
}

static void print_whole(const struct report *report, const struct look *look, FILE *out)
{
    bool used = false;

    print_process(out, &report->process);
    for (size_t i = 0; i < report->device_count; i++) {
        if (!device_was_used(&report->devices[i]))
            continue;
        used = true;
        print_device(out, &report->devices[i], look);
    }
    struct report_counters times = sum_times(report);
    if (used)
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

/* --- the history --------------------------------------------------------------------------------
 */

static struct report_sample plain_sample(const struct history_sample *sample, uint64_t started)
{
    return (struct report_sample){
        .nanoseconds = counter_get(&sample->at) - started,
        .live_bytes = counter_get(&sample->live_bytes),
        .cached_bytes = counter_get(&sample->cached_bytes),
        .pending_bytes = counter_get(&sample->pending_bytes),
        .peak_bytes = counter_get(&sample->peak_bytes),
        .hits = {.clean = counter_get(&sample->hits[HIT_CLEAN]),
                 .queried = counter_get(&sample->hits[HIT_QUERIED]),
                 .barrier = counter_get(&sample->hits[HIT_BARRIER]),
                 .waited = counter_get(&sample->hits[HIT_WAITED])},
        .misses = counter_get(&sample->misses),
    };
}

bool report_take_history(struct report_device *device, const struct history *history,
                         uint64_t started)
{
    uint64_t last = started, count = counter_get(&history->count);

    device->samples = scratch_calloc(HISTORY_SAMPLES, sizeof(*device->samples));
    if (device->samples == NULL)
        return false;
    for (size_t i = 0; i < count && i < HISTORY_SAMPLES; i++) {
        const struct history_sample *sample = &history->samples[i];
        if (counter_get(&sample->at) <= last)
            continue;
        last = counter_get(&sample->at);
        device->samples[device->sample_count++] = plain_sample(sample, started);
    }
    return true;
}

/* --- memory -------------------------------------------------------------------------------------
 */

void report_free(struct report *report)
{
    for (size_t i = 0; i < report->device_count; i++) {
        struct report_device *device = &report->devices[i];
        for (size_t j = 0; j < device->kind_count; j++)
            scratch_free(device->kinds[j].buckets);
        scratch_free(device->kinds);
        scratch_free(device->samples);
    }
    scratch_free(report->devices);
    report->devices = NULL;
    report->device_count = 0;
}
