/*
 * cudapool trim: asks processes to release what they cache to the driver now.
 */
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/base/readable.h"
#include "core/figures/figures_report.h"
#include "tools/command/command_line.h"
#include "tools/command/tool.h"
#include "top_watch.h"
#include "trim_device.h"
#include "trimming.h"

/* In seconds. WAIT_MOST is less than the fifteen seconds after which processes ignore a demand
 * (core/board/board_answer.c). They ignore older demands because a tool may have been stopped. */
#define WAIT_USUALLY 2.0
#define WAIT_MOST    10.0

/* Between two looks at pending memory. */
#define PAUSE_MILLISECONDS 20

struct trim {
    struct view view;
    bool all;
    const char *device; /* as given; NULL: all devices */
    double wait;
    char **pids; /* as given */
    int pid_count;
    struct trim_device chosen;
    const struct watched **asked; /* pointers into view */
    size_t asked_count;
    uint64_t given, pending;
    bool is_unanswered;
};

/* --- asking -------------------------------------------------------------------------------------
 */

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Ends the demand and prints the process's line. */
static void conclude(struct trim *trim, struct trimming *trimming)
{
    char text[TRIMMING_BYTES];

    trimming_end(trimming);
    trimming_describe(trimming, text);
    puts(text);
    fflush(stdout);
    trim->given = saturating_sum(trim->given, trimming->given);
    trim->pending = saturating_sum(trim->pending, trimming->pending);
    trim->is_unanswered |= !trimming_is_answered(trimming);
}

/* Looks at the demands that are under way. Ends those that have an outcome, and all of them after
 * until. Returns how many are left. */
static size_t look_at_all(struct trim *trim, struct trimming *under_way, size_t count, double until)
{
    size_t left = 0;

    for (size_t i = 0; i < count; i++) {
        trimming_look(&under_way[i]);
        if (under_way[i].outcome == TRIM_UNDER_WAY && seconds_now() < until)
            under_way[left++] = under_way[i];
        else
            conclude(trim, &under_way[i]);
    }
    return left;
}

/* Asks every process, at most BOARD_DEMANDS at a time. All together wait for GPU work no longer
 * than trim->wait. */
static void ask_all(struct trim *trim)
{
    struct trimming under_way[BOARD_DEMANDS];
    size_t next = 0, count = 0;
    double until = seconds_now() + trim->wait;

    while (next < trim->asked_count || count > 0) {
        while (count < BOARD_DEMANDS && next < trim->asked_count)
            under_way[count++] =
                trimming_begin(&trim->view, trim->asked[next++], trim_device_uuid(&trim->chosen));
        count = look_at_all(trim, under_way, count, until);
        if (count == BOARD_DEMANDS || (count > 0 && next == trim->asked_count))
            poll(NULL, 0, PAUSE_MILLISECONDS);
    }
}

static int print_sum(const struct trim *trim)
{
    char text[TRIMMING_BYTES];

    if (trim->asked_count > 1) {
        trimming_describe_bytes(trim->given, trim->pending, text, sizeof(text));
        printf("%zu processes: %s\n", trim->asked_count, text);
    }
    return finish_output(trim->is_unanswered ? EXIT_FAILURE : 0);
}

/* --- choosing the processes ---------------------------------------------------------------------
 */

static bool is_named(const struct trim *trim, const struct watched *watched)
{
    for (int i = 0; i < trim->pid_count; i++)
        if (strtoll(trim->pids[i], NULL, 10) == watched->identity.pid)
            return true;
    return trim->pid_count == 0;
}

/* Returns 0, or the exit status after a complaint of a pid that no process has. */
static int check_names(const struct trim *trim)
{
    for (int i = 0; i < trim->pid_count; i++) {
        bool is_there = false;
        for (size_t j = 0; j < trim->view.count; j++)
            is_there |= strtoll(trim->pids[i], NULL, 10) == trim->view.watched[j].identity.pid;
        if (!is_there)
            return complain("trim: no process %s of yours is on the pool", trim->pids[i]);
    }
    return 0;
}

static int compare_numbers(const void *one, const void *other)
{
    int64_t a = (*(const struct watched *const *)one)->identity.pid;
    int64_t b = (*(const struct watched *const *)other)->identity.pid;

    return (a > b) - (a < b);
}

static int choose_processes(struct trim *trim)
{
    trim->asked = calloc(trim->view.count + 1, sizeof(*trim->asked));
    if (trim->asked == NULL)
        return complain("memory is short");
    for (size_t i = 0; i < trim->view.count; i++) {
        const struct watched *watched = &trim->view.watched[i];
        if (is_named(trim, watched) && trim_device_is_of(&trim->chosen, watched))
            trim->asked[trim->asked_count++] = watched;
    }
    qsort(trim->asked, trim->asked_count, sizeof(*trim->asked), compare_numbers);
    return 0;
}

static int trim_processes(struct trim *trim)
{
    int status = view_look(&trim->view);

    if (status == 0)
        status = check_names(trim);
    if (status == 0 && trim->view.count == 0) {
        puts("No process of yours is on the pool.");
        return finish_output(0);
    }
    if (status == 0 && trim->view.board == NULL) {
        complain("trim: nobody can be asked: %s", trim->view.no_board);
        return EXIT_FAILURE;
    }
    if (status == 0 && trim->device != NULL)
        status = trim_device_find(trim->device, &trim->view, &trim->chosen);
    if (status == 0)
        status = choose_processes(trim);
    if (status != 0)
        return status;
    ask_all(trim);
    return print_sum(trim);
}

/* --- the command --------------------------------------------------------------------------------
 */

static int read_wait(const char *text, double *wait)
{
    char *rest;

    *wait = strtod(text, &rest);
    if (*text != '\0' && *rest == '\0' && *wait >= 0 && *wait <= WAIT_MOST)
        return 0;
    return complain("trim: --wait: found \"%s\", allowed is a number of seconds from 0 to 10",
                    text);
}

static const struct option known_options[] = {{"all", no_argument, NULL, 'a'},
                                              {"device", required_argument, NULL, 'd'},
                                              {"wait", required_argument, NULL, 'w'},
                                              {0}};

static int take_option(int option, const char *word, struct trim *trim)
{
    switch (option) {
    case 'a':
        trim->all = true;
        return 0;
    case 'd':
        trim->device = optarg;
        return trim_device_check(optarg);
    case 'w':
        return read_wait(optarg, &trim->wait);
    default:
        return refuse_option("trim", known_options, option, word,
                             "allowed are --all, --device DEVICE and --wait SECONDS");
    }
}

static int read_pids(struct trim *trim)
{
    for (int i = 0; i < trim->pid_count; i++) {
        long long pid;
        int status = read_number("trim", "process", trim->pids[i], 1, INT32_MAX, &pid);
        if (status != 0)
            return status;
    }
    if (trim->all && trim->pid_count > 0)
        return complain("trim: found \"%s\" with --all; allowed is one of them", trim->pids[0]);
    return 0;
}

static int read_options(int argc, char **argv, struct trim *trim)
{
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, ":", known_options, NULL)) != -1)
        status = take_option(option, argv[optind - 1], trim);
    trim->pids = argv + optind;
    trim->pid_count = argc - optind;
    return status == 0 ? read_pids(trim) : status;
}

static int trim(int argc, char **argv)
{
    struct trim trim = {.wait = WAIT_USUALLY};
    int status = read_options(argc, argv, &trim);

    if (status == 0)
        status = trim_processes(&trim);
    view_free(&trim.view);
    free(trim.asked);
    return status;
}

const struct command trim_command = {
    .name = "trim",
    .summary = "have processes give back now what they cache",
    .help =
        "usage: cudapool trim [--device DEVICE] [--wait SECONDS] [--all | PID...]\n"
        "\n"
        "Asks the processes of this user that are on the pool to give back to the driver what "
        "they\n"
        "cache, and says of each how much came back. They go on as before, and cache again what\n"
        "they free from then on. Nothing is lost but the time of the allocations that miss next.\n"
        "\n"
        "  --all              all of them, as without a PID\n"
        "  --device DEVICE    what they cache on that device alone: its number, as top shows it, "
        "or\n"
        "                     the beginning of its UUID (GPU-5fd4f087), as nvidia-smi -L shows it\n"
        "  --wait SECONDS     for memory that the GPU may still be using: up to 10 (2)\n"
        "\n"
        "A process that is stopped, or that was told to leave its neighbours alone\n"
        "(neighbours.enabled = false), cannot be asked, which is said after 100 ms at most.\n"
        "\n"
        "Exit status: 0; 1 where a process that caches something has not answered, or the output\n"
        "cannot be written; 2 for bad input, a process that is not on the pool among it.\n",
    .run = trim,
};
