/*
 * The report: its table, its file name, what it says of the process, and its JSON both ways.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file_pattern.h"
#include "core/figures/report.h"
#include "core/figures/report_json.h"
#include "core/figures/report_neighbours.h"
#include "core/figures/report_table.h"
#include "decimal_comma.h"

/* --- a report to work with ----------------------------------------------------------------------
 */

static char error[1024];
static char directory[64];
static char path[128];

static void make_directory(void)
{
    snprintf(directory, sizeof(directory), "/tmp/cudapool-test-XXXXXX");
    if (mkdtemp(directory) == NULL)
        abort();
    snprintf(path, sizeof(path), "%s/report.json", directory);
}

static void remove_directory(void)
{
    unlink(path);
    rmdir(directory);
}

TestSuite(report, .init = make_directory, .fini = remove_directory);

/* Counters that all differ, so that none can stand in for another. */
static void fill_counters(struct report_counters *counters, uint64_t from)
{
    uint64_t *fields = (uint64_t *)counters;

    for (size_t i = 0; i < sizeof(*counters) / sizeof(*fields); i++)
        fields[i] = from + i;
}

static void fill_kind(struct report_kind *kind)
{
    snprintf(kind->kind, sizeof(kind->kind), "device");
    fill_counters(&kind->totals, 1000);
    kind->bucket_count = 3;
    kind->buckets = calloc(3, sizeof(*kind->buckets));
    kind->buckets[0].bytes = 1152 << 10;
    fill_counters(&kind->buckets[0].counters, 100);
    kind->buckets[1].bytes = 3 << 20; /* never asked for */
    kind->buckets[2].bytes = 0;
    fill_counters(&kind->buckets[2].counters, 500);
}

static void fill_device(struct report_device *device, int ordinal)
{
    device->ordinal = ordinal;
    snprintf(device->name, sizeof(device->name), "Test GPU");
    snprintf(device->uuid, sizeof(device->uuid), "GPU-00000000-0000-0000-0000-00000000000%d",
             ordinal);
    device->total_bytes = 80ull << 30;
    device->fences = 11;
    device->fence_queries = 22;
    device->barriers = 33;
    device->captured = 44;
    for (size_t i = 0; i < sizeof(device->neighbours) / sizeof(uint64_t); i++)
        ((uint64_t *)&device->neighbours)[i] = 2000000000 * (uint64_t)(ordinal + 1) + i;
    for (size_t i = 0; i < sizeof(device->unpooled) / sizeof(uint64_t); i++)
        ((uint64_t *)&device->unpooled)[i] = 3000000000 * (uint64_t)(ordinal + 1) + i;
    device->limits = (struct device_limits){.device_bytes = 3ull << 30,
                                            .group_bytes = 8ull << 30,
                                            .device_from = "GPU_MEMORY_LIMIT",
                                            .group_from = "limits.group_bytes",
                                            .group = "trainers"};
    device->kind_count = 1;
    device->kinds = calloc(1, sizeof(*device->kinds));
    fill_kind(&device->kinds[0]);
    device->sample_count = 3;
    device->samples = calloc(3, sizeof(*device->samples));
    for (size_t i = 0; i < 3 * sizeof(*device->samples) / sizeof(uint64_t); i++)
        ((uint64_t *)device->samples)[i] = 10 * (uint64_t)(ordinal + 1) + i;
}

static void fill_report(struct report *report)
{
    memset(report, 0, sizeof(*report));
    report->process.pid = 4711;
    snprintf(report->process.host, sizeof(report->process.host), "node7");
    snprintf(report->process.rank, sizeof(report->process.rank), "3");
    snprintf(report->process.command, sizeof(report->process.command), "./a.out --fast");
    report->process.wall_seconds = 12.5;
    report->process.started_nanoseconds = 1790000000123456789;
    report->process.ending = REPORT_KILLED;
    report->process.exit = (struct report_exit){.known = true, .signal = SIGSEGV};
    report->process.versions =
        (struct report_versions){.cudapool = "1.2.3", .driver = "580.1", .cuda = 13010};
    settings_defaults(&report->settings);
    report->settings.device.growth_budget.bytes = 7;
    report->housekeeper = (struct report_housekeeper){.state = HOUSEKEEPER_CANNOT,
                                                      .wakeups = 77,
                                                      .board = BOARD_REFUSED,
                                                      .board_why = "/dev/shm is full"};
    report->graphs = (struct report_graphs){true, 11, 12, 13, 14, 15, 16, 17, 18,
                                            19,   20, 21, 22, 23, 24, 25, 26, 27};
    report->device_count = 2;
    report->devices = calloc(2, sizeof(*report->devices));
    fill_device(&report->devices[0], 0);
    fill_device(&report->devices[1], 1);
}

static void expect_same_kinds(const struct report_kind *one, const struct report_kind *other)
{
    cr_expect_str_eq(one->kind, other->kind);
    cr_expect_arr_eq(&one->totals, &other->totals, sizeof(one->totals));
    cr_assert_eq(one->bucket_count, other->bucket_count);
    cr_expect_arr_eq(one->buckets, other->buckets, one->bucket_count * sizeof(*one->buckets));
}

static void expect_same_devices(const struct report_device *one, const struct report_device *other)
{
    cr_expect_eq(one->ordinal, other->ordinal);
    cr_expect_str_eq(one->name, other->name);
    cr_expect_str_eq(one->uuid, other->uuid);
    cr_expect_eq(one->total_bytes, other->total_bytes);
    cr_expect_eq(one->fences, other->fences);
    cr_expect_eq(one->fence_queries, other->fence_queries);
    cr_expect_eq(one->barriers, other->barriers);
    cr_expect_eq(one->captured, other->captured);
    cr_expect_arr_eq(&one->neighbours, &other->neighbours, sizeof(one->neighbours));
    cr_expect_arr_eq(&one->unpooled, &other->unpooled, sizeof(one->unpooled));
    cr_expect_arr_eq(&one->limits, &other->limits, sizeof(one->limits));
    cr_assert_eq(one->kind_count, other->kind_count);
    cr_assert_not_null(one->kinds);
    cr_assert_not_null(other->kinds);
    for (size_t i = 0; i < one->kind_count; i++)
        expect_same_kinds(&one->kinds[i], &other->kinds[i]);
    cr_assert_eq(one->sample_count, other->sample_count);
    cr_expect_arr_eq(one->samples, other->samples, one->sample_count * sizeof(*one->samples));
}

static void expect_same(const struct report *one, const struct report *other)
{
    cr_expect_eq(one->process.pid, other->process.pid);
    cr_expect_eq(one->process.started_nanoseconds, other->process.started_nanoseconds);
    cr_expect_eq(one->process.ending, other->process.ending);
    cr_expect_eq(one->process.exit.known, other->process.exit.known);
    cr_expect_eq(one->process.exit.status, other->process.exit.status);
    cr_expect_eq(one->process.exit.signal, other->process.exit.signal);
    cr_expect_str_eq(one->process.versions.cudapool, other->process.versions.cudapool);
    cr_expect_str_eq(one->process.versions.driver, other->process.versions.driver);
    cr_expect_eq(one->process.versions.cuda, other->process.versions.cuda);
    cr_expect_str_eq(one->process.host, other->process.host);
    cr_expect_str_eq(one->process.rank, other->process.rank);
    cr_expect_str_eq(one->process.command, other->process.command);
    cr_expect_float_eq(one->process.wall_seconds, other->process.wall_seconds, 0);
    cr_expect_arr_eq(&one->settings, &other->settings, offsetof(struct settings, spelled));
    cr_expect_arr_eq(&one->housekeeper, &other->housekeeper, sizeof(one->housekeeper));
    cr_expect_arr_eq(&one->graphs, &other->graphs, sizeof(one->graphs));
    cr_assert_eq(one->device_count, other->device_count);
    for (size_t i = 0; i < one->device_count; i++)
        expect_same_devices(&one->devices[i], &other->devices[i]);
}

/* --- the table ----------------------------------------------------------------------------------
 */

static char table[65536];

static const char *print(const struct report *report)
{
    FILE *out = fmemopen(table, sizeof(table), "w");

    cr_assert_eq(report_print_table(report, out), 0);
    fclose(out);
    return table;
}

/* The first line of the table that begins with a word, without the spaces around. */
static const char *line_of(const char *word)
{
    static char line[512];

    for (const char *start = table; *start != '\0'; start += strcspn(start, "\n") + 1) {
        const char *text = start + strspn(start, " ");
        if (strncmp(text, word, strlen(word)) != 0)
            continue;
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(text, "\n"), text);
        return line;
    }
    cr_assert_fail("no line \"%s\" in: %s", word, table);
    return NULL;
}

static void expect_cells(const char *word, const char *expected)
{
    char cells[512];
    size_t length = 0;

    /* Columns are two or more spaces apart. */
    for (const char *c = line_of(word); *c != '\0'; c++) {
        if (c[0] == ' ' && c[1] == ' ')
            continue;
        cells[length] = *c;
        if (*c == ' ' && c[-1] == ' ')
            cells[length] = '|';
        length++;
    }
    cells[length] = '\0';
    cr_expect_str_eq(cells, expected, "%s", cells);
}

Test(report, the_table_has_a_row_for_each_bucket_that_was_used)
{
    struct report report;

    fill_report(&report);
    print(&report);
    cr_expect_str_eq(line_of("cudapool:"),
                     "cudapool: process 4711, rank 3, on node7, ran 12.5 s: ./a.out --fast");
    cr_expect_str_eq(line_of("device 0"),
                     "device 0: Test GPU, 80.0 GiB; 11 fences, 22 queries of fences, 33 barriers");
    /* Three headings have a space in them. */
    cr_expect_str_eq(line_of("cudapool 1"),
                     "cudapool 1.2.3, driver 580.1 (CUDA 13.1), 2026-09-21 14:13:20 UTC");
    expect_cells("bucket", "bucket|requests|hits|clean|queried|barrier|waited|misses|failed|"
                           "given back|live|peak|driver|wait|free waits|saved at least");
    expect_cells(
        "1.125 MiB",
        "1.125 MiB|100|410.0%|101|102|103|104|105|430|605|113|118 B|125 ns|126 ns|127|128 ns");
    expect_cells(
        "not kept",
        "not kept|500|402.0%|501|502|503|504|505|2030|2605|513|518 B|525 ns|526 ns|527|528 ns");
    expect_cells(
        "all",
        "all|1000|401.0%|1001|1002|1003|1004|1005|4030|5105|1013|1018 B|1.0 us|1.0 us|1027|1.0 us");
    cr_expect_null(strstr(table, "3 MiB"));
    cr_expect_str_eq(line_of("allocations"),
                     "allocations and frees took 2.0 us in the driver and waited 2.0 us for the "
                     "GPU; without the pool they would have taken at least 2.0 us more");
    cr_expect_str_eq(line_of("4030 requests"),
                     "4030 requests failed: 1006 for want of device memory, 1007 at the process's "
                     "limit, 1008 at its group's limit, 1009 for other reasons");
    report_free(&report);
}

static void rename_kinds(struct report *report, const char *name)
{
    for (size_t i = 0; i < report->device_count; i++)
        for (size_t j = 0; j < report->devices[i].kind_count; j++)
            snprintf(report->devices[i].kinds[j].kind, sizeof(report->devices[i].kinds[j].kind),
                     "%s", name);
}

/* It is the machine's, which the device's words are not true of. */
Test(report, host_memory_fails_for_want_of_memory)
{
    struct report report;

    fill_report(&report);
    rename_kinds(&report, "host");
    print(&report);
    cr_expect_not_null(strstr(line_of("host memory:"), " requests, "), "%s", table);
    cr_expect_str_eq(line_of("4030 requests"),
                     "4030 requests failed: 1006 for want of memory, 1007 at the process's limit, "
                     "1008 at its group's limit, 1009 for other reasons");
    report_free(&report);
}

/* What the process keeps of the machine's memory, nobody misses on the device. */
Test(report, cached_host_memory_is_kept_from_no_neighbour)
{
    struct report report;

    fill_report(&report);
    for (size_t i = 0; i < report.device_count; i++)
        report.devices[i].sample_count = 0;
    cr_expect_not(report_kept_much(report.devices, report.device_count));
    report.devices[0].kinds[0].totals.cached_bytes = 9 << 20;
    cr_expect(report_kept_much(report.devices, report.device_count));
    rename_kinds(&report, "host");
    cr_expect_not(report_kept_much(report.devices, report.device_count));
    rename_kinds(&report, "of another cudapool");
    cr_expect(report_kept_much(report.devices, report.device_count));
    report_free(&report);
}

Test(report, the_table_says_what_went_from_process_to_process)
{
    struct report report;

    fill_report(&report);
    print(&report);
    cr_expect_str_eq(line_of("limits:"),
                     "limits: 3 GiB for the process (GPU_MEMORY_LIMIT), 8 GiB for all of the group "
                     "trainers (limits.group_bytes)");
    cr_expect_str_eq(line_of("gave"), "gave 1.8 GiB to other processes, 2.0 G times, the last "
                                      "2.0 s after the start");
    cr_expect_str_eq(line_of("got"), "got 1.8 GiB from other processes, 2.0 G times, the last "
                                     "2.0 s after the start");
    cr_expect_str_eq(line_of("left"), "left 1.8 GiB free for processes without the pool, 2.0 G "
                                      "times, the last 2.0 s after the start");
    cr_expect_str_eq(line_of("asked"), "asked other processes for memory 2.0 G times; 2.0 G "
                                       "times one did not answer");
    cr_expect_str_eq(line_of("no thread"),
                     "no thread of the pool's own could be made: what was idle went back only when "
                     "the program called, and other processes got nothing of it");
    cr_expect_str_eq(line_of("other processes"),
                     "other processes were neither asked nor heard, and a limit of a group held "
                     "for this one alone: /dev/shm is full");
    report_free(&report);
}

Test(report, one_time_is_no_times)
{
    struct report report;

    fill_report(&report);
    report.devices[0].neighbours.given.times = 1;
    report.devices[0].neighbours.asked = 1;
    report.devices[0].neighbours.silent = 1;
    print(&report);
    cr_expect_not_null(strstr(line_of("gave"), ", 1 time, the last"));
    cr_expect_str_eq(line_of("asked"),
                     "asked other processes for memory 1 time; 1 time one did not answer");
    report_free(&report);
}

static void expect_no_line(const char *word)
{
    for (const char *line = table; *line != '\0'; line += strcspn(line, "\n") + 1)
        cr_expect_neq(strncmp(line + strspn(line, " "), word, strlen(word)), 0, "%s", table);
}

/* What has happened to nobody, or mattered to nobody, is not told. */
Test(report, who_is_alone_is_told_nothing_of_others)
{
    static const char *const words[] = {"limits:", "gave",  "got",      "left",
                                        "asked",   "other", "no thread"};
    struct report report;

    fill_report(&report);
    for (size_t i = 0; i < 2; i++) {
        memset(&report.devices[i].neighbours, 0, sizeof(report.devices[i].neighbours));
        memset(&report.devices[i].limits, 0, sizeof(report.devices[i].limits));
    }
    report.housekeeper.state = HOUSEKEEPER_WENT;
    print(&report);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        expect_no_line(words[i]);
    report.settings.neighbours.enabled = false;
    print(&report);
    expect_no_line("other");
    /* Much was cached at some time: others may have missed it. */
    report.devices[1].samples[1].cached_bytes = 9 << 20;
    print(&report);
    cr_expect_str_eq(line_of("other"), "other processes were neither asked nor heard, and what was "
                                       "idle went back only when the program called: "
                                       "neighbours.enabled is false");
    report.settings.neighbours.enabled = true;
    print(&report);
    cr_expect_str_eq(line_of("other"),
                     "other processes were neither asked nor heard: /dev/shm is full");
    report.housekeeper.board = BOARD_JOINED;
    print(&report);
    expect_no_line("other");
    report_free(&report);
}

Test(report, the_table_says_how_the_program_ended)
{
    static const struct {
        enum report_ending ending;
        struct report_exit exit;
        const char *text;
    } ends[] = {
        {REPORT_EXITED, {.known = false}, ""},
        {REPORT_EXITED, {.known = true}, ""},
        {REPORT_EXITED, {.known = true, .status = 3}, "exited with status 3"},
        {REPORT_EXITED, {.known = true, .signal = SIGABRT}, "killed by SIGABRT"},
        {REPORT_KILLED, {.known = true, .signal = SIGSEGV}, "killed by SIGSEGV"},
        {REPORT_KILLED, {.known = true, .signal = 42}, "killed by signal 42"},
        {REPORT_KILLED, {.known = true, .status = 7}, "ended by _exit(7)"},
        {REPORT_KILLED, {.known = false}, "killed, or ended without a word"},
        {REPORT_RUNNING, {.known = false}, "still running"},
    };
    char text[REPORT_END_BYTES];
    struct report report;

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        report_describe_end(ends[i].ending, ends[i].exit, text);
        cr_expect_str_eq(text, ends[i].text);
    }
    fill_report(&report);
    print(&report);
    cr_expect_str_eq(line_of("killed"),
                     "killed by SIGSEGV: the figures are those of its last moment");
    report_free(&report);
}

Test(report, columns_are_aligned_and_lines_not_too_long)
{
    struct report report;
    size_t length = 0, widths = 0, rows = 0;

    fill_report(&report);
    memset(&report.devices[0].kinds[0].totals, 0xff, sizeof(struct report_counters));
    memset(&report.devices[0].kinds[0].buckets[0].counters, 0x1f, sizeof(struct report_counters));
    memset(&report.devices[0].kinds[0].buckets[2].counters, 0xff, sizeof(struct report_counters));
    report.devices[0].kinds[0].buckets[0].bytes = 8589934593;
    memset(report.process.command, 'x', sizeof(report.process.command) - 1);
    memset(report.devices[0].name, 'y', sizeof(report.devices[0].name) - 1);
    print(&report);
    for (const char *line = table; *line != '\0'; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), 170, "%.*s", (int)strcspn(line, "\n"), line);
    const char *heading = strstr(table, "bucket");
    while (heading[-1] != '\n')
        heading--;
    for (const char *line = heading; strncmp(line, "  ", 2) == 0; line += length + 1) {
        length = strcspn(line, "\n");
        widths += length;
        rows++;
    }
    cr_expect_geq(rows, 4);
    cr_expect_eq(widths, rows * length);
    report_free(&report);
}

Test(report, a_unit_has_ten_tenths)
{
    struct report report;

    fill_report(&report);
    report.devices[0].kinds[0].buckets[0].counters.peak.reserved_bytes = 2047;
    report.devices[0].kinds[0].buckets[0].counters.driver.nanoseconds = 1999999;
    print(&report);
    expect_cells(
        "1.125 MiB",
        "1.125 MiB|100|410.0%|101|102|103|104|105|430|605|113|1.9 KiB|1.9 ms|126 ns|127|128 ns");
    report_free(&report);
}

Test(report, sums_past_64_bits_stop_at_the_largest_number)
{
    struct report report;

    fill_report(&report);
    memset(&report.devices[0].kinds[0].totals, 0xff, sizeof(struct report_counters));
    print(&report);
    cr_expect_not_null(strstr(line_of("device memory"), "18.4 E requests, 100.0% from the pool"));
    cr_expect_not_null(strstr(line_of("allocations"), "at least 213503d 23h more"));
    report_free(&report);
}

Test(report, no_two_buckets_look_alike)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {{512, "512 B "},          {1000, "1000 B "},         {1536, "1.5 KiB "},
                 {1064960, "1040 KiB "},   {1048577, "1048577 B "},   {10ull << 20, "10 MiB "},
                 {3ull << 29, "1.5 GiB "}, {100ull << 30, "100 GiB "}};
    struct report report;

    fill_report(&report);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        report.devices[0].kinds[0].buckets[0].bytes = sizes[i].bytes;
        print(&report);
        cr_expect_not_null(strstr(line_of(sizes[i].text), "410.0%"));
    }
    report_free(&report);
}

Test(report, a_report_of_nothing_says_so)
{
    struct report report;

    fill_report(&report);
    for (size_t i = 0; i < 2; i++)
        report.devices[i].kinds[0].totals.requests = 0;
    print(&report);
    cr_expect_not_null(strstr(table, "no memory was asked of the pool"));
    cr_expect_not_null(strstr(table, "device 0"), "it has memory beside the pool");
    for (size_t i = 0; i < 2; i++)
        memset(&report.devices[i].unpooled, 0, sizeof(report.devices[i].unpooled));
    print(&report);
    cr_expect_not_null(strstr(table, "no memory was asked of the pool"));
    cr_expect_null(strstr(table, "device 0"));
    report_free(&report);
    cr_expect_eq(report.device_count, 0);
    print(&report);
    cr_expect_not_null(strstr(table, "no memory was asked of the pool"));
}

Test(report, control_characters_do_not_reach_the_terminal)
{
    struct report report;

    fill_report(&report);
    snprintf(report.process.command, sizeof(report.process.command), "a\nb\033[2J\x7f");
    snprintf(report.devices[0].name, sizeof(report.devices[0].name), "GPU\r\n");
    snprintf(report.devices[0].kinds[0].kind, sizeof(report.devices[0].kinds[0].kind), "k\n");
    print(&report);
    cr_expect_not_null(strstr(table, "a\\x0ab\\x1b[2J\\x7f\n"));
    cr_expect_not_null(strstr(table, "GPU\\x0d\\x0a,"));
    cr_expect_not_null(strstr(table, "k\\x0a memory"));
    report_free(&report);
}

Test(report, the_table_does_not_depend_on_the_locale)
{
    struct report report;

    if (!use_decimal_comma())
        return;
    fill_report(&report);
    print(&report);
    cr_expect_not_null(strstr(table, "ran 12.5 s"));
    cr_expect_not_null(strstr(table, "1.125 MiB"));
    cr_expect_not_null(strstr(table, "410.0%"));
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    report_free(&report);
    cr_assert_eq(report_read_json(path, &report, error, sizeof(error)), 0, "%s", error);
    cr_expect_float_eq(report.process.wall_seconds, 12.5, 0);
    cr_expect_float_eq(report.settings.device.caps.reserve_ratio, 1.15, 0);
    report_free(&report);
}

Test(report, a_table_that_cannot_be_written_is_an_error)
{
    struct report report;
    FILE *full = fopen("/dev/full", "w");

    fill_report(&report);
    cr_assert_eq(report_print_table(&report, full), -1);
    cr_assert_eq(errno, ENOSPC);
    report_free(&report);
    fclose(full);
}

/* --- the file name and the process --------------------------------------------------------------
 */

static void expect_expanded(const char *name, const char *expected)
{
    struct report_process process = {.pid = 42, .host = "a/b", .rank = "7"};
    char expanded[64];

    cr_assert_eq(report_expand_file_name(name, &process, expanded, sizeof(expanded)), 0);
    cr_expect_str_eq(expanded, expected);
}

Test(report, file_names_are_expanded)
{
    expect_expanded("plain", "plain");
    expect_expanded("/tmp/%h/%p-%r.json", "/tmp/a_b/42-7.json");
    expect_expanded("100%%p", "100%p");
    expect_expanded("%p%p", "4242");
}

Test(report, a_process_without_rank_is_rank_0)
{
    struct report_process process = {.pid = 42};
    char expanded[16];

    cr_assert_eq(report_expand_file_name("x%r", &process, expanded, sizeof(expanded)), 0);
    cr_assert_str_eq(expanded, "x0");
}

Test(report, file_names_with_other_escapes_are_refused)
{
    static const char *const wrong[] = {"", "%", "a%", "%d", "%%%", "% p", "%P"};
    struct report_process process = {.pid = 42};
    char expanded[64];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        errno = 0;
        cr_expect_not(file_pattern_is_valid(wrong[i]), "%s", wrong[i]);
        cr_expect_eq(report_expand_file_name(wrong[i], &process, expanded, sizeof(expanded)), -1);
        cr_expect_eq(errno, EINVAL);
    }
}

Test(report, file_names_that_do_not_fit_are_refused)
{
    struct report_process process = {.pid = 4242};
    char expanded[8];

    cr_expect_eq(report_expand_file_name("abc%p", &process, expanded, 8), 0);
    cr_expect_str_eq(expanded, "abc4242");
    cr_expect_eq(report_expand_file_name("abc%p", &process, expanded, 7), -1);
    cr_expect_eq(errno, ENAMETOOLONG);
    cr_expect_eq(report_expand_file_name("abcdefg", &process, expanded, 7), -1);
    cr_expect_eq(report_expand_file_name("a", &process, expanded, 0), -1);
}

/* The environment of a process: name, value, name, value, NULL. */
static const char *const *variables;

static char *environment(const char *name)
{
    for (size_t i = 0; variables[i] != NULL; i += 2)
        if (strcmp(variables[i], name) == 0)
            return (char *)variables[i + 1];
    return NULL;
}

static void expect_rank(const char *expected, const char *const *given)
{
    char rank[8];

    variables = given;
    report_find_rank(environment, rank, sizeof(rank));
    cr_expect_str_eq(rank, expected);
}

#define RANK(expected, ...) expect_rank(expected, (const char *const[]){__VA_ARGS__, NULL})

Test(report, the_rank_is_that_of_the_launcher)
{
    RANK("", "HOME", "1");
    RANK("1", "OMPI_COMM_WORLD_RANK", "1");
    RANK("2", "PMIX_RANK", "2");
    RANK("3", "PMI_RANK", "3");
    RANK("4", "MV2_COMM_WORLD_RANK", "4");
    RANK("5", "RANK", "5");
    RANK("6", "SLURM_PROCID", "6");
    /* mpirun or torchrun inside a Slurm job: every process has the job's SLURM_PROCID. */
    RANK("7", "SLURM_PROCID", "0", "OMPI_COMM_WORLD_RANK", "7");
    RANK("8", "SLURM_PROCID", "0", "RANK", "8");
}

Test(report, a_rank_is_digits)
{
    RANK("", "RANK", "");
    RANK("", "RANK", "-1");
    RANK("", "RANK", "../../etc");
    RANK("", "RANK", "12345678");
    RANK("3", "RANK", "1 ", "SLURM_PROCID", "3");
}

Test(report, this_process_is_described)
{
    struct report_process process;
    const char *const none[] = {NULL};
    char argument[256] = "";
    FILE *command_line = fopen("/proc/self/cmdline", "r");

    memset(&process, 0x55, sizeof(process));
    variables = none;
    report_describe_process(&process, environment);
    cr_expect_eq(process.pid, getpid());
    cr_expect_gt(strlen(process.host), 0);
    cr_expect_str_eq(process.rank, "");
    cr_assert_gt(fread(argument, 1, sizeof(argument) - 1, command_line), 0);
    fclose(command_line);
    cr_expect_eq(strncmp(process.command, argument, strlen(argument)), 0, "%s", process.command);
}

/* --- JSON ---------------------------------------------------------------------------------------
 */

Test(report, what_is_written_is_read_back_to_the_same)
{
    struct report written, read;

    fill_report(&written);
    cr_assert_eq(report_write_json(&written, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(report_read_json(path, &read, error, sizeof(error)), 0, "%s", error);
    expect_same(&written, &read);
    report_free(&written);
    report_free(&read);
}

Test(report, the_largest_counters_survive)
{
    struct report written, read;

    fill_report(&written);
    memset(&written.devices[0].kinds[0].totals, 0xff, sizeof(struct report_counters));
    written.devices[1].kinds[0].totals.requests = 1ull << 63;
    written.devices[1].kinds[0].totals.misses = (1ull << 63) - 1;
    cr_assert_eq(report_write_json(&written, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(report_read_json(path, &read, error, sizeof(error)), 0, "%s", error);
    expect_same(&written, &read);
    print(&read);
    report_free(&written);
    report_free(&read);
}

Test(report, the_json_has_the_documented_keys)
{
    struct report report;
    const char *kind;
    int version, clean;
    json_int_t pid, bytes;
    json_t *settings;

    fill_report(&report);
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    json_t *root = json_load_file(path, 0, NULL);
    cr_assert_eq(json_unpack(root,
                             "{s:i, s:{s:I, s:s, s:s, s:s, s:f}, s:o, s:[{s:i, s:s, s:s, s:I, "
                             "s:[{s:s, s:{s:i}, s:[{s:I, s:{s:i}}]}]}]}",
                             "cudapool_report", &version, "process", "pid", &pid, "host", &kind,
                             "rank", &kind, "command", &kind, "wall_seconds", &(double){0},
                             "settings", &settings, "devices", "ordinal", &clean, "name", &kind,
                             "uuid", &kind, "total_bytes", &bytes, "kinds", "kind", &kind, "totals",
                             "requests", &clean, "buckets", "bytes", &bytes, "hits", "clean",
                             &clean),
                 0);
    cr_expect_eq(version, 1);
    cr_expect_eq(pid, 4711);
    cr_expect_str_eq(kind, "device");
    cr_expect_eq(bytes, 1152 << 10);
    cr_expect_eq(clean, 101);
    cr_expect_eq(
        json_integer_value(json_object_get(json_object_get(settings, "device"), "growth_budget")),
        7);
    json_decref(root);
    report_free(&report);
}

Test(report, text_that_is_no_utf8_is_made_so)
{
    struct report written, read;

    fill_report(&written);
    snprintf(written.process.command, sizeof(written.process.command),
             "a\xff"
             "b\xc3\xa4\xe2\x82");
    cr_assert_eq(report_write_json(&written, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(report_read_json(path, &read, error, sizeof(error)), 0, "%s", error);
    cr_expect_str_eq(read.process.command, "a\\xffb\xc3\xa4\\xe2\\x82");
    report_free(&written);
    report_free(&read);
}

Test(report, a_time_that_is_no_number_is_0)
{
    struct report written, read;

    fill_report(&written);
    written.process.wall_seconds = __builtin_nan("");
    print(&written);
    cr_assert_eq(report_write_json(&written, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(report_read_json(path, &read, error, sizeof(error)), 0, "%s", error);
    cr_expect_float_eq(read.process.wall_seconds, 0, 0);
    report_free(&written);
    report_free(&read);
}

Test(report, the_file_respects_the_umask_and_replaces_the_old_one)
{
    struct report report;
    struct stat status;

    fill_report(&report);
    umask(027);
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(stat(path, &status), 0);
    cr_expect_eq(status.st_mode & 07777, 0640);
    report_free(&report);
    /* No temporary file is left beside it. */
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(rmdir(directory), 0);
}

Test(report, what_is_no_regular_file_is_not_replaced)
{
    struct report report;
    struct stat status;

    fill_report(&report);
    cr_assert_eq(report_write_json(&report, "/dev/null", error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(stat("/dev/null", &status), 0);
    cr_expect(S_ISCHR(status.st_mode));
    cr_expect_eq(report_write_json(&report, "/dev/full", error, sizeof(error)), -1);
    cr_expect_not_null(strstr(error, "/dev/full: the report cannot be written: No space"));
    /* A FIFO that nobody reads. */
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(report_write_json(&report, path, error, sizeof(error)), -1);
    cr_assert_eq(stat(path, &status), 0);
    cr_expect(S_ISFIFO(status.st_mode));
    cr_expect_eq(report_write_json(&report, directory, error, sizeof(error)), -1);
    report_free(&report);
}

/* Standard error may be something that cannot be opened by name. */
Test(report, dev_stderr_is_the_process_own)
{
    struct report report;
    int ends[2], saved = dup(STDERR_FILENO);

    fill_report(&report);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    dup2(ends[0], STDERR_FILENO);
    int status = report_write_json(&report, "/dev/stderr", error, sizeof(error));
    dup2(saved, STDERR_FILENO);
    cr_expect_eq(status, 0, "%s", error);
    close(ends[0]);
    cr_expect_gt(read(ends[1], table, sizeof(table)), 1000);
    cr_expect_eq(strncmp(table, "{\n  \"cudapool_report\": 1,", 25), 0);
    report_free(&report);
}

Test(report, a_link_is_kept_and_its_target_replaced)
{
    struct report report;
    struct stat status;
    char target[160];

    fill_report(&report);
    snprintf(target, sizeof(target), "%s/target", directory);
    fclose(fopen(target, "w"));
    cr_assert_eq(symlink(target, path), 0);
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(lstat(path, &status), 0);
    cr_expect(S_ISLNK(status.st_mode));
    cr_assert_eq(lstat(target, &status), 0);
    cr_expect(S_ISREG(status.st_mode));
    cr_expect_gt(status.st_size, 100);
    unlink(target);
    report_free(&report);
}

Test(report, a_report_that_cannot_be_written_is_an_error)
{
    struct report report;

    fill_report(&report);
    cr_assert_eq(report_write_json(&report, "/nonexistent/x", error, sizeof(error)), -1);
    cr_expect_str_eq(error,
                     "/nonexistent/x: the report cannot be written: No such file or directory");
    report_free(&report);
}

Test(report, a_file_that_cannot_be_finished_leaves_nothing_behind)
{
    struct report report;
    struct rlimit before, limit;

    fill_report(&report);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(report_write_json(&report, path, error, sizeof(error)), -1);
    /* What the process itself writes when it ends is not limited. */
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    cr_expect_not_null(strstr(error, "the report cannot be written: File too large"), "%s", error);
    cr_expect_eq(rmdir(directory), 0);
    report_free(&report);
}

/* --- bad reports --------------------------------------------------------------------------------
 */

static void expect_refused(const char *name, const char *part)
{
    struct report read, before;

    memset(&read, 0x5a, sizeof(read));
    before = read;
    cr_assert_eq(report_read_json(name, &read, error, sizeof(error)), -1, "accepted, not %s", part);
    cr_expect_arr_eq(&read, &before, sizeof(read));
    cr_expect_eq(strncmp(error, name, strlen(name)), 0, "%s", error);
    cr_expect_not_null(strstr(error, part), "\"%s\" is missing in: %s", part, error);
    cr_expect_null(strchr(error, '\n'));
}

/* A good report as JSON, for a test to spoil. */
static json_t *good_report(void)
{
    struct report report;

    fill_report(&report);
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    report_free(&report);
    return json_load_file(path, 0, NULL);
}

/* The value at a path such as devices.0.kinds. */
static json_t *value_at(json_t *value, const char *at)
{
    char name[64];

    while (*at != '\0') {
        size_t length = strcspn(at, ".");
        snprintf(name, sizeof(name), "%.*s", (int)length, at);
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(name))
                                     : json_object_get(value, name);
        at += length + (at[length] == '.');
    }
    return value;
}

/* Sets, or with NULL deletes, what the key in the object at a path has; the result is refused. */
static void spoil(const char *at, const char *key, json_t *value, const char *part)
{
    json_t *root = good_report(), *object = value_at(root, at);

    cr_assert(json_is_object(object), "%s", at);
    if (value == NULL)
        cr_assert_eq(json_object_del(object, key), 0, "%s.%s", at, key);
    else
        json_object_set_new(object, key, value);
    json_dump_file(root, path, 0);
    expect_refused(path, part);
    json_decref(root);
}

Test(report, wrong_values_are_refused)
{
    const char *bucket = "devices.0.kinds.0.buckets.1";

    spoil("", "devices", json_integer(1), "devices: found 1, allowed is an array");
    spoil("", "process", json_null(), "process: found null, allowed is an object");
    spoil("process", "pid", json_string("1"), "process.pid: found \"1\"");
    spoil("process", "pid", json_integer(-1), "process.pid: found -1");
    spoil("process", "host", json_integer(1), "process.host: found 1");
    spoil("process", "wall_seconds", json_integer(-1), "process.wall_seconds: found -1");
    spoil("devices.1", "ordinal", json_integer(1ll << 40), "devices[1].ordinal: found");
    spoil("devices.1", "kinds", json_object(), "devices[1].kinds: found an object");
    spoil("devices.0.kinds.0", "totals", json_array(), "devices[0].kinds[0].totals: found");
    spoil(bucket, "bytes", json_real(1.5), "devices[0].kinds[0].buckets[1].bytes: found 1.5");
    spoil(bucket, "misses", json_integer(-1),
          "buckets[1].misses: found -1, allowed is an integer "
          "from 0 to 18446744073709551615");
    spoil(bucket, "misses", json_string("18446744073709551616"), "buckets[1].misses: found");
    spoil(bucket, "misses", json_string("20000000000000000000"), "buckets[1].misses: found");
    spoil(bucket, "misses", json_string(""), "buckets[1].misses: found");
    spoil(bucket, "misses", json_string("1x"), "buckets[1].misses: found");
    spoil(bucket, "hits", json_integer(3), "buckets[1].hits: found 3, allowed is an object");
    spoil("settings.device", "evict", json_string("x"), "settings.device.evict: found \"x\"");
    spoil("settings.device.buckets", "largest", json_integer(1),
          "settings.device.buckets.largest: found 1");
    spoil("", "settings", json_array(), "settings: found an array");
    spoil("", "cudapool_report", json_integer(2),
          "cudapool_report: found 2, allowed is the version");
    spoil("", "cudapool_report", json_string("1"), "cudapool_report: found \"1\"");
}

Test(report, missing_and_unknown_keys_are_refused)
{
    spoil("", "cudapool_report", NULL, "is not a report");
    spoil("", "settings", NULL, "the key settings is missing");
    spoil("process", "command", NULL, "process: the key command is missing");
    spoil("devices.0", "barriers", NULL, "devices[0]: the key barriers is missing");
    spoil("devices.0.kinds.0", "buckets", NULL, "devices[0].kinds[0]: the key buckets is missing");
    spoil("devices.0.kinds.0.totals.evictions", "idle", NULL,
          "totals.evictions: the key idle is missing");
    spoil("", "more", json_null(), "more: unknown key");
    spoil("devices.0", "more", json_null(), "devices[0].more: unknown key");
    spoil("devices.0.kinds.0.totals", "bytes", json_integer(1), "totals.bytes: unknown key");
    spoil("devices.0.kinds.0.buckets.0.hits", "warm", json_integer(1),
          "buckets[0].hits.warm: unknown key");
    spoil("settings.device", "more", json_null(), "settings.device.more: unknown key");
}

Test(report, texts_longer_than_their_field_are_refused)
{
    static char text[100000];

    memset(text, 'x', sizeof(text) - 1);
    spoil("process", "command", json_string(text), "process.command: found");
    spoil("devices.0", "uuid", json_string(text), "devices[0].uuid: found");
    spoil("devices.0.kinds.0", "kind", json_string(text), "devices[0].kinds[0].kind: found");
}

static void write_text(const char *text, size_t bytes)
{
    FILE *out = fopen(path, "w");

    cr_assert_eq(fwrite(text, 1, bytes, out), bytes);
    cr_assert_eq(fclose(out), 0);
}

Test(report, truncated_files_are_refused_wherever_they_end)
{
    json_decref(good_report());
    FILE *in = fopen(path, "r");
    size_t bytes = fread(table, 1, sizeof(table), in);
    fclose(in);
    cr_assert_lt(bytes, sizeof(table));
    /* The last bytes are a brace and a newline. */
    for (size_t length = 0; length < bytes - 1; length += 97) {
        write_text(table, length);
        expect_refused(path, length == 0 ? "is empty" : "line ");
    }
    write_text(table, bytes - 2);
    expect_refused(path, "line ");
}

Test(report, other_files_are_refused)
{
    static char deep[1000000];

    write_text("[]", 2);
    expect_refused(path, "found an array, allowed is an object");
    write_text("{}", 2);
    expect_refused(path, "is not a report");
    write_text("{\"version\": 1, \"device\": {}}", 28);
    expect_refused(path, "is not a report");
    memset(deep, '[', sizeof(deep));
    write_text(deep, sizeof(deep));
    expect_refused(path, "depth");
    expect_refused("/nonexistent", "No such file");
    expect_refused("/tmp", "is a directory");
    cr_assert_eq(truncate(path, REPORT_FILE_MAX + 1), 0);
    expect_refused(path, "too long");
}
