/*
 * cudapool top: shows the processes that use the pool, as they are now.
 *
 * On a terminal top_screen.c shows them. Elsewhere this file prints a table at each interval.
 */
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/base/readable.h"
#include "core/figures/report_table.h"
#include "tools/command/command_line.h"
#include "tools/command/terminal.h"
#include "tools/command/tool.h"
#include "top_draw.h"
#include "top_rows.h"
#include "top_screen.h"
#include "top_watch.h"

#define INTERVAL_LEAST 0.1
#define INTERVAL_MOST  3600.0

static volatile sig_atomic_t ended;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

/* --- as plain lines -----------------------------------------------------------------------------
 */

static void print_rows(const struct table_column *columns, const char *heading,
                       const struct top_row *rows, size_t count)
{
    struct look look = terminal_look(stdout, false);
    char left_out[TABLE_NAMES_BYTES];
    struct table table;

    look.colour = false;
    table_begin(&table, columns, TOP_COLUMNS, READABLE_BYTES, &look);
    table.beside = TOP_TEXT_LEAST;
    for (size_t i = 0; i < count; i++)
        table_measure(&table, rows[i].cells[0]);
    table_fit(&table);
    table_print_headings(&table, stdout);
    printf("  %s\n", heading);
    for (size_t i = 0; i < count; i++) {
        table_print(&table, rows[i].cells[0], NULL, stdout);
        fputs("  ", stdout);
        if (look.width > 0)
            print_cut_off(rows[i].text, look.width - table_width(&table) - 2, stdout);
        else
            report_print_text(stdout, rows[i].text);
        putchar('\n');
    }
    if (table_left_out(&table, left_out, sizeof(left_out)))
        printf("  left out for width: %s\n", left_out);
}

static void print_title(const struct view *view)
{
    char clock[32];
    time_t now = time(NULL);
    struct tm local;

    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
    printf("cudapool top, %s: %zu process%s on the pool\n", clock, view->count,
           view->count == 1 ? "" : "es");
}

/* Prints the processes. If there is only one, prints its buckets, too. */
static int print_view(const struct view *view, enum top_order order)
{
    struct top_rows processes = {0}, buckets = {0};
    int status = top_add_processes(&processes, view, order);

    if (view->count == 1 && view->watched[0].has_figures)
        status |= top_add_buckets(&buckets, &view->watched[0], order);
    print_title(view);
    if (status == 0 && view->count > 0)
        print_rows(top_process_columns, "command", processes.rows, processes.count);
    if (status == 0 && buckets.count > 0)
        print_rows(top_bucket_columns, "", buckets.rows, buckets.count);
    free(processes.rows);
    free(buckets.rows);
    fflush(stdout);
    return status == 0 ? 0 : complain("memory is short");
}

static int print_again_and_again(const struct top_options *options, struct view *view)
{
    for (unsigned long shown = 0;;) {
        int status = print_view(view, options->order);
        if (status != 0 || ++shown == options->count || ended)
            return status;
        poll(NULL, 0, (int)(options->interval * 1000));
        if (ended)
            return 0;
        putchar('\n');
        status = view_look(view);
        if (status != 0 || (view->pid != 0 && view->count == 0))
            return status;
    }
}

/* --- the command --------------------------------------------------------------------------------
 */

static void end_on_signals(void)
{
    struct sigaction action = {.sa_handler = end};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static int show_on_screen(const struct top_options *options, struct view *view)
{
    int status = top_screen_show(options, view, &ended);

    top_draw_end();
    return status >= 0 ? status : complain("memory is short");
}

static int watch_processes(const struct top_options *options, struct view *view)
{
    int status = view_look(view);

    if (status == 0 && view->pid != 0 && view->count == 0)
        status =
            complain("top: there are no figures of process %lld; it does not run, does not use "
                     "the pool, or has neither a file of them nor neighbours",
                     (long long)view->pid);
    if (status == 0) {
        end_on_signals();
        status =
            top_draw_begin() ? show_on_screen(options, view) : print_again_and_again(options, view);
    }
    view_free(view);
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

static int read_order(const char *text, enum top_order *order)
{
    for (*order = 0; *order < ORDERS; ++*order)
        if (strcmp(top_order_names[*order], text) == 0)
            return 0;
    return complain("top: --sort: found \"%s\", allowed is process, requests, hits, memory, cached "
                    "or name",
                    text);
}

static int read_operand(const char *operand, struct view *view)
{
    struct stat status;
    long long pid = 0;

    if (stat(operand, &status) == 0 && S_ISDIR(status.st_mode)) {
        view->directory = operand;
        return 0;
    }
    int result = read_number("top", "process", operand, 1, INT32_MAX, &pid);
    view->pid = pid;
    return result;
}

static const struct option known_options[] = {{"interval", required_argument, NULL, 'i'},
                                              {"count", required_argument, NULL, 'n'},
                                              {"sort", required_argument, NULL, 's'},
                                              {0}};

static int take_option(int option, const char *word, struct top_options *options)
{
    long long count = 0;
    int status;

    switch (option) {
    case 'i':
        return read_interval(optarg, &options->interval);
    case 's':
        return read_order(optarg, &options->order);
    case 'n':
        status = read_number("top", "--count", optarg, 1, 1000000000, &count);
        options->count = (unsigned long)count;
        return status;
    default:
        return refuse_option("top", known_options, option, word,
                             "allowed are --interval SECONDS, --count NUMBER and --sort KEY");
    }
}

static int read_options(int argc, char **argv, struct top_options *options, struct view *view)
{
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, ":", known_options, NULL)) != -1)
        status = take_option(option, argv[optind - 1], options);
    if (status == 0 && argc - optind > 1)
        return complain("top: found \"%s\" after \"%s\"; allowed is one process or directory",
                        argv[optind + 1], argv[optind]);
    return status == 0 && argc > optind ? read_operand(argv[optind], view) : status;
}

static int top(int argc, char **argv)
{
    struct top_options options = {.interval = 1};
    struct view view = {0};
    int status = read_options(argc, argv, &options, &view);

    return status == 0 ? watch_processes(&options, &view) : status;
}

const struct command top_command = {
    .name = "top",
    .summary = "show what the pool does in processes that are running",
    .help =
        "usage: cudapool top [--interval SECONDS] [--count NUMBER] [--sort KEY] [PID | DIRECTORY]\n"
        "\n"
        "Shows the processes of this user that are on the pool, and on a terminal each device's\n"
        "memory as a bar. There, arrows choose a process, Enter shows its buckets, t has it give "
        "back\n"
        "what it caches, as cudapool trim does, p, r, h, m, c and n sort, ? shows all keys, and q\n"
        "ends it. Elsewhere a table is printed each time, with the buckets of the only process, "
        "or\n"
        "of the one with the number PID. The processes are not disturbed.\n"
        "\n"
        "  --interval SECONDS   between two times (1)\n"
        "  --count NUMBER       of times, and then end\n"
        "  --sort KEY           process (the default: by number), requests, hits, memory,\n"
        "                       cached or name\n"
        "  DIRECTORY            where the settings put figures, if figures.directory names one\n"
        "\n"
        "  requests/s, misses/s   in the time between; the first time, since the process started\n"
        "  hits                   the share of those requests that the pool answered\n"
        "  in use                 blocks in the program's hands\n"
        "  cached                 free, and reusable at once\n"
        "  pending                free, but the GPU may still be using them\n"
        "  unpooled               cuMemCreate, arrays, managed memory and graphs, where counted:\n"
        "                         under a limit, or for a report\n"
        "  other                  among the buckets: what the driver holds beyond what is "
        "counted,\n"
        "                         such as contexts and code\n"
        "  limit                  the lowest on a device, of the process or its group; without\n"
        "                         figures, what cudapool limit has set\n"
        "  group                  whose limit the process shares (limits.group)\n"
        "  neighbours             asks: out of memory, it has asked others for theirs; alone: it "
        "has\n"
        "                         no part in that (neighbours.enabled = false, or no /dev/shm)\n"
        "\n"
        "Exit status: 0; 1 where the output cannot be written; 2 for bad input.\n",
    .run = top,
};
