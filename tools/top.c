/*
 * cudapool top: the processes on the pool, as they are now.
 *
 * It reads their figures, which costs them nothing. On a terminal the screen is drawn anew each
 * time, and q ends it; elsewhere each time is a table of its own.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "core/readable.h"
#include "figures_reader.h"
#include "figures_search.h"
#include "summary.h"
#include "tool.h"

#define INTERVAL_LEAST 0.1
#define INTERVAL_MOST  3600.0

struct options {
    double interval;       /* seconds */
    unsigned long count;   /* 0: until it is ended */
    int64_t pid;           /* 0: all */
    const char *directory; /* NULL: the usual ones */
};

/* A process at one time, and what it had counted the time before. */
struct watched {
    struct report *report;
    struct report *before;  /* NULL: it is new */
    uint64_t at, before_at; /* nanoseconds of the monotonic clock */
};

struct view {
    const struct options *options;
    struct watched *watched;
    size_t count, room;
    bool failed; /* memory is short */
};

/* --- what is there ------------------------------------------------------------------------------
 */

static uint64_t monotonic_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void free_report(struct report *report)
{
    if (report == NULL)
        return;
    report_free(report);
    free(report);
}

static void free_view(struct view *view)
{
    for (size_t i = 0; i < view->count; i++) {
        free_report(view->watched[i].report);
        free_report(view->watched[i].before);
    }
    free(view->watched);
    view->watched = NULL;
    view->count = view->room = 0;
}

/* A program that executes another keeps its number: the figures of the last one are its own. */
static bool replaces_another(struct view *view, struct report *report)
{
    for (size_t i = 0; i < view->count; i++) {
        struct report *other = view->watched[i].report;
        if (other->process.pid != report->process.pid)
            continue;
        if (other->process.started_nanoseconds > report->process.started_nanoseconds) {
            free_report(report);
            return true;
        }
        free_report(other);
        view->watched[i].report = report;
        return true;
    }
    return false;
}

static void watch(struct view *view, struct report *report)
{
    if (replaces_another(view, report))
        return;
    if (view->count == view->room) {
        size_t room = view->room == 0 ? 16 : 2 * view->room;
        struct watched *longer = realloc(view->watched, room * sizeof(*longer));
        if (longer == NULL) {
            view->failed = true;
            free_report(report);
            return;
        }
        view->watched = longer;
        view->room = room;
    }
    view->watched[view->count++] =
        (struct watched){.report = report, .at = monotonic_nanoseconds()};
}

/* Files that are no figures, or just going, are not worth a word here. */
static void look_at(const char *path, void *context)
{
    struct view *view = context;
    char error[ERROR_BYTES];
    struct report *report = calloc(1, sizeof(*report));

    if (report == NULL) {
        view->failed = true;
        return;
    }
    if (figures_read_report(path, report, error, sizeof(error)) != 0) {
        free(report);
        return;
    }
    bool wanted = view->options->pid == 0 || view->options->pid == report->process.pid;
    if (wanted && report->process.ending == REPORT_RUNNING)
        watch(view, report);
    else
        free_report(report);
}

static bool is_same_process(const struct report *one, const struct report *other)
{
    return one->process.pid == other->process.pid &&
           one->process.started_nanoseconds == other->process.started_nanoseconds;
}

/* Each process's report of the time before becomes what it is compared with. */
static void take_over(struct view *view, struct view *before)
{
    for (size_t i = 0; i < view->count; i++)
        for (size_t j = 0; j < before->count; j++)
            if (before->watched[j].report != NULL &&
                is_same_process(view->watched[i].report, before->watched[j].report)) {
                view->watched[i].before = before->watched[j].report;
                view->watched[i].before_at = before->watched[j].at;
                before->watched[j].report = NULL;
            }
}

/* 0, or the exit status. */
static int look(struct view *view)
{
    struct view before = *view;
    const char *directory = view->options->directory;
    int status = 0;

    view->watched = NULL;
    view->count = view->room = 0;
    if (directory == NULL)
        figures_search(look_at, view);
    else if (figures_search_in(directory, look_at, view) != 0)
        status = complain("%s: %s", directory, strerror(errno));
    take_over(view, &before);
    free_view(&before);
    return view->failed ? complain("memory is short") : status;
}

/* --- rates --------------------------------------------------------------------------------------
 */

struct rates {
    double requests, misses; /* a second */
    uint64_t live, cached, pending;
};

static struct report_counters totals_of(const struct report *report)
{
    struct report_counters totals = {0};

    for (size_t i = 0; i < report->device_count; i++) {
        struct report_counters one = device_totals(&report->devices[i]);
        totals.requests = saturating_sum(totals.requests, one.requests);
        totals.misses = saturating_sum(totals.misses, one.misses);
        totals.live_bytes = saturating_sum(totals.live_bytes, one.live_bytes);
        totals.cached_bytes = saturating_sum(totals.cached_bytes, one.cached_bytes);
        totals.pending_bytes = saturating_sum(totals.pending_bytes, one.pending_bytes);
    }
    return totals;
}

/* Of a process that is new, since it started. */
static double seconds_of(const struct watched *watched)
{
    if (watched->before == NULL)
        return watched->report->process.wall_seconds;
    return (double)(watched->at - watched->before_at) / 1e9;
}

static double per_second(uint64_t now, uint64_t before, double seconds)
{
    return now > before && seconds > 0 ? (double)(now - before) / seconds : 0;
}

static struct rates rates_between(const struct report_counters *now,
                                  const struct report_counters *before, double seconds)
{
    return (struct rates){.requests = per_second(now->requests, before->requests, seconds),
                          .misses = per_second(now->misses, before->misses, seconds),
                          .live = now->live_bytes,
                          .cached = now->cached_bytes,
                          .pending = now->pending_bytes};
}

static struct rates rates_of(const struct watched *watched)
{
    struct report_counters now = totals_of(watched->report), before = {0};

    if (watched->before != NULL)
        before = totals_of(watched->before);
    return rates_between(&now, &before, seconds_of(watched));
}

/* The busiest first. */
static int compare_watched(const void *one, const void *other)
{
    const struct watched *a = one, *b = other;
    double x = rates_of(a).requests, y = rates_of(b).requests;

    if (x != y)
        return x > y ? -1 : 1;
    return (a->report->process.pid > b->report->process.pid) -
           (a->report->process.pid < b->report->process.pid);
}

/* --- rows ---------------------------------------------------------------------------------------
 */

enum column { NAME, RANK, RAN, REQUESTS, HITS, MISSES, LIVE, CACHED, PENDING, COLUMNS };

struct row {
    char cells[COLUMNS][READABLE_BYTES];
    char text[80]; /* after the columns */
};

struct rows {
    struct row *rows;
    size_t count, room;
};

/* Zeroed; NULL where memory is short. */
static struct row *add_row(struct rows *rows)
{
    if (rows->count == rows->room) {
        size_t room = rows->room == 0 ? 32 : 2 * rows->room;
        struct row *longer = realloc(rows->rows, room * sizeof(*longer));
        if (longer == NULL)
            return NULL;
        rows->rows = longer;
        rows->room = room;
    }
    struct row *row = &rows->rows[rows->count++];
    memset(row, 0, sizeof(*row));
    return row;
}

static void fill_rate(double rate, char cell[READABLE_BYTES])
{
    readable_count(rate < 1e18 ? (uint64_t)(rate + 0.5) : UINT64_C(1000000000000000000), cell);
}

static void fill_rates(struct row *row, const struct rates *rates)
{
    fill_rate(rates->requests, row->cells[REQUESTS]);
    fill_rate(rates->misses, row->cells[MISSES]);
    if (rates->requests > 0)
        snprintf(row->cells[HITS], READABLE_BYTES, "%d%%",
                 (int)(100 * (rates->requests - rates->misses) / rates->requests));
    else
        snprintf(row->cells[HITS], READABLE_BYTES, "-");
    readable_bytes(rates->live, row->cells[LIVE]);
    readable_bytes(rates->cached, row->cells[CACHED]);
    readable_bytes(rates->pending, row->cells[PENDING]);
}

static int add_heading(struct rows *rows, const char *const *cells, const char *text)
{
    struct row *row = add_row(rows);

    if (row == NULL)
        return -1;
    for (int i = 0; i < COLUMNS; i++)
        snprintf(row->cells[i], READABLE_BYTES, "%s", cells[i]);
    snprintf(row->text, sizeof(row->text), "%s", text);
    return 0;
}

static int add_process(struct rows *rows, const struct watched *watched)
{
    const struct report_process *process = &watched->report->process;
    struct rates rates = rates_of(watched);
    struct row *row = add_row(rows);

    if (row == NULL)
        return -1;
    snprintf(row->cells[NAME], READABLE_BYTES, "%lld", (long long)process->pid);
    snprintf(row->cells[RANK], READABLE_BYTES, "%.16s", process->rank[0] ? process->rank : "-");
    readable_time((uint64_t)(process->wall_seconds * 1e9), row->cells[RAN]);
    fill_rates(row, &rates);
    snprintf(row->text, sizeof(row->text), "%.79s", process->command);
    return 0;
}

/* The same bucket the time before; all zero where it is new. */
static struct report_counters bucket_before(const struct watched *watched, int ordinal,
                                            const char *kind, uint64_t bytes)
{
    const struct report *before = watched->before;

    for (size_t i = 0; before != NULL && i < before->device_count; i++)
        for (size_t j = 0; j < before->devices[i].kind_count; j++) {
            const struct report_kind *other = &before->devices[i].kinds[j];
            if (before->devices[i].ordinal != ordinal || strcmp(other->kind, kind) != 0)
                continue;
            for (size_t k = 0; k < other->bucket_count; k++)
                if (other->buckets[k].bytes == bytes)
                    return other->buckets[k].counters;
        }
    return (struct report_counters){0};
}

static int add_bucket(struct rows *rows, const struct watched *watched, int ordinal,
                      const struct report_kind *kind, const struct report_bucket *bucket)
{
    struct report_counters before = bucket_before(watched, ordinal, kind->kind, bucket->bytes);
    struct rates rates = rates_between(&bucket->counters, &before, seconds_of(watched));
    struct row *row = add_row(rows);

    if (row == NULL)
        return -1;
    if (bucket->bytes != 0)
        readable_exact_bytes(bucket->bytes, row->cells[NAME]);
    else
        snprintf(row->cells[NAME], READABLE_BYTES, "not kept");
    fill_rates(row, &rates);
    snprintf(row->text, sizeof(row->text), "device %d, %s", ordinal, kind->kind);
    return 0;
}

static int add_buckets(struct rows *rows, const struct watched *watched)
{
    static const char *const heading[COLUMNS] = {
        "bucket", "", "", "requests/s", "hits", "misses/s", "in use", "cached", "pending"};
    int status = add_heading(rows, heading, "");

    for (size_t i = 0; i < watched->report->device_count; i++) {
        const struct report_device *device = &watched->report->devices[i];
        for (size_t j = 0; j < device->kind_count; j++)
            for (size_t k = 0; k < device->kinds[j].bucket_count; k++)
                status |= add_bucket(rows, watched, device->ordinal, &device->kinds[j],
                                     &device->kinds[j].buckets[k]);
    }
    return status;
}

/* Buckets of a process that was asked for, or that is the only one. */
static int fill_rows(const struct view *view, struct rows *rows)
{
    static const char *const heading[COLUMNS] = {
        "process", "rank", "ran", "requests/s", "hits", "misses/s", "in use", "cached", "pending"};
    int status = add_heading(rows, heading, "command");

    for (size_t i = 0; i < view->count; i++)
        status |= add_process(rows, &view->watched[i]);
    if (view->count == 1)
        status |= add_buckets(rows, &view->watched[0]);
    return status;
}

/* --- printing -----------------------------------------------------------------------------------
 */

struct screen {
    bool is_terminal;
    bool drawn;
    struct termios before; /* of stdin, where has_keys */
    bool has_keys;
};

static volatile sig_atomic_t ended;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

/* A line, no wider than the screen. */
static void put_line(const struct screen *screen, const char *line, int width)
{
    if (screen->is_terminal)
        printf("%.*s\x1b[K\n", width, line);
    else
        puts(line);
}

static void row_to_text(const struct row *row, const int widths[COLUMNS], char *text, size_t bytes)
{
    FILE *memory = fmemopen(text, bytes, "w");

    text[0] = '\0';
    if (memory == NULL)
        return;
    readable_print_row(memory, widths, COLUMNS, READABLE_BYTES, row->cells[0]);
    fputs("  ", memory);
    report_print_text(memory, row->text);
    fclose(memory);
    text[bytes - 1] = '\0';
}

static void find_size(const struct screen *screen, int *width, int *height)
{
    struct winsize size = {0};

    *width = 160;
    *height = INT32_MAX;
    if (!screen->is_terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return;
    *width = size.ws_col > 0 ? size.ws_col : 80;
    *height = size.ws_row > 0 ? size.ws_row : 24;
}

static void print_rows(const struct screen *screen, const struct view *view,
                       const struct rows *rows)
{
    int widths[COLUMNS] = {0}, width, height;
    char line[512], clock[32];
    time_t now = time(NULL);
    struct tm local;

    find_size(screen, &width, &height);
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
    if (screen->is_terminal)
        fputs(screen->drawn ? "\x1b[H" : "\x1b[H\x1b[2J", stdout);
    snprintf(line, sizeof(line), "cudapool top, %s: %zu process%s on the pool", clock, view->count,
             view->count == 1 ? "" : "es");
    put_line(screen, line, width);
    for (size_t i = 0; i < rows->count; i++)
        readable_widen(widths, COLUMNS, READABLE_BYTES, rows->rows[i].cells[0]);
    for (size_t i = 0; i < rows->count && (int)i < height - 2; i++) {
        row_to_text(&rows->rows[i], widths, line, sizeof(line));
        put_line(screen, line, width);
    }
    if (screen->is_terminal)
        fputs("\x1b[J", stdout);
    fflush(stdout);
}

static int show(struct screen *screen, struct view *view)
{
    struct rows rows = {0};

    if (view->count > 0)
        qsort(view->watched, view->count, sizeof(*view->watched), compare_watched);
    int status = view->count > 0 ? fill_rows(view, &rows) : 0;
    if (status == 0)
        print_rows(screen, view, &rows);
    screen->drawn = true;
    free(rows.rows);
    return status == 0 ? 0 : complain("memory is short");
}

/* --- the terminal -------------------------------------------------------------------------------
 */

static void start_screen(struct screen *screen)
{
    struct sigaction action = {.sa_handler = end};

    screen->is_terminal = isatty(STDOUT_FILENO) == 1;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    if (!screen->is_terminal || tcgetattr(STDIN_FILENO, &screen->before) != 0)
        return;
    struct termios keys = screen->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    screen->has_keys = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
}

static void end_screen(const struct screen *screen)
{
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
}

/* False where it is to end: q, or a signal. */
static bool wait_for_next(const struct screen *screen, double seconds)
{
    struct pollfd keys = {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    char key = '\0';

    if (!ended && poll(&keys, 1, (int)(seconds * 1000)) > 0 && read(STDIN_FILENO, &key, 1) == 1 &&
        (key == 'q' || key == 'Q'))
        return false;
    return !ended;
}

/* --- the command --------------------------------------------------------------------------------
 */

static int watch_processes(const struct options *options)
{
    struct view view = {.options = options};
    struct screen screen = {0};
    int status = look(&view);

    if (status == 0 && options->pid != 0 && view.count == 0)
        status =
            complain("top: there are no figures of process %lld; it does not run, does not use "
                     "the pool, or has no file of them",
                     (long long)options->pid);
    if (status == 0)
        start_screen(&screen);
    for (unsigned long shown = 0; status == 0;) {
        status = show(&screen, &view);
        if (status != 0 || ++shown == options->count || !wait_for_next(&screen, options->interval))
            break;
        if (!screen.is_terminal)
            putchar('\n');
        status = look(&view);
        if (options->pid != 0 && view.count == 0)
            break;
    }
    end_screen(&screen);
    free_view(&view);
    return finish_output(status);
}

static int read_interval(const char *text, double *interval)
{
    char *rest;

    *interval = strtod(text, &rest);
    if (*text != '\0' && *rest == '\0' && *interval >= INTERVAL_LEAST && *interval <= INTERVAL_MOST)
        return 0;
    return complain(
        "top: --interval: found \"%s\", allowed is a number of seconds from 0.1 to 3600", text);
}

static int read_number(const char *name, const char *text, long long most, long long *number)
{
    char *rest;

    errno = 0;
    *number = strtoll(text, &rest, 10);
    if (*text >= '0' && *text <= '9' && *rest == '\0' && errno == 0 && *number > 0 &&
        *number <= most)
        return 0;
    return complain("top: %s: found \"%s\", allowed is a number from 1 to %lld", name, text, most);
}

static int read_operand(const char *operand, struct options *options)
{
    struct stat status;
    long long pid = 0;

    if (stat(operand, &status) == 0 && S_ISDIR(status.st_mode)) {
        options->directory = operand;
        return 0;
    }
    int result = read_number("process", operand, INT32_MAX, &pid);
    options->pid = pid;
    return result;
}

static int read_options(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {
        {"interval", required_argument, NULL, 'i'}, {"count", required_argument, NULL, 'n'}, {0}};
    int option, status = 0;
    long long count = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, ":", known, NULL)) != -1) {
        if (option == 'i') {
            status = read_interval(optarg, &options->interval);
        } else if (option == 'n') {
            status = read_number("--count", optarg, 1000000000, &count);
            options->count = (unsigned long)count;
        } else {
            status = complain("top: %s %s; allowed are --interval SECONDS and --count NUMBER",
                              option == ':' ? "a value is missing after" : "unknown option",
                              argv[optind - 1]);
        }
    }
    if (status == 0 && argc - optind > 1)
        return complain("top: found \"%s\" after \"%s\"; allowed is one process or directory",
                        argv[optind + 1], argv[optind]);
    return status == 0 && argc > optind ? read_operand(argv[optind], options) : status;
}

static int top(int argc, char **argv)
{
    struct options options = {.interval = 1};
    int status = read_options(argc, argv, &options);

    return status == 0 ? watch_processes(&options) : status;
}

const struct command top_command = {
    .name = "top",
    .summary = "show what the pool does in processes that are running",
    .help =
        "usage: cudapool top [--interval SECONDS] [--count NUMBER] [PID | DIRECTORY]\n"
        "\n"
        "Shows the processes of this user that are on the pool, the busiest first, and of the only "
        "one,\n"
        "or the one with the number PID, each bucket. On a terminal the screen is drawn anew, and "
        "q\n"
        "ends it; elsewhere a table is printed each time. The processes are not disturbed.\n"
        "\n"
        "  --interval SECONDS   between two times (1)\n"
        "  --count NUMBER       of times, and then end\n"
        "  DIRECTORY            where the settings put figures, if figures.directory names one\n"
        "\n"
        "  requests/s, misses/s   in the time between; the first time, since the process started\n"
        "  hits                   the share of those requests that the pool answered\n"
        "  in use                 blocks in the program's hands\n"
        "  cached                 free, and reusable at once\n"
        "  pending                free, but the GPU may still be using them\n"
        "\n"
        "Exit status: 0; 1 where the output cannot be written; 2 for bad input.\n",
    .run = top,
};
