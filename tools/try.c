/*
 * cudapool try: is a program faster with the pool, and does it do the same?
 *
 * The program runs once with the pool switched off but counting: that warms up the files and the
 * driver's caches, and says what its allocations and frees cost without the pool. Then it runs
 * without and with the pool in turn, so that what else the machine does meets both alike. Medians
 * are compared; how far runs of one kind lie apart says how much a difference is worth.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice.h"
#include "core/base/readable.h"
#include "no_report.h"
#include "pool_environment.h"
#include "progress.h"
#include "tool.h"
#include "trial.h"

#define RUNS_DEFAULT 3
#define RUNS_MOST    1000

/* Of two medians that differ by less nobody can tell which is faster. */
#define LEAST_DIFFERENCE        0.01
#define LEAST_DIFFERENCE_OF_ONE 0.1 /* run of each: nobody knows how far others would lie apart */

/* Where runs of a kind lie farther apart, nobody can say that there is no difference. */
#define MOST_SPREAD 0.1

/* The exit status where the program does something else with the pool. */
#define EXIT_DIFFERS 1

struct
try {
    char **program;
    int runs;
    struct settings settings;
    struct trial_input input;
    struct trial counting;        /* the pool switched off, counting */
    struct trial *without, *with; /* so many runs of each */
    int done;                     /* so many of each are there */
};

/* --- numbers ------------------------------------------------------------------------------------
 */

struct times {
    double median, quickest, slowest;
    double spread; /* half of what lies between the quickest and the slowest, as a part of it */
};

static int compare_seconds(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

static struct times times_of(const struct trial *trials, int count)
{
    double seconds[RUNS_MOST] = {0};

    for (int i = 0; i < count; i++)
        seconds[i] = trials[i].seconds;
    qsort(seconds, (size_t)count, sizeof(seconds[0]), compare_seconds);
    double median = (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
    double half = (seconds[count - 1] - seconds[0]) / 2;
    return (struct times){.median = median,
                          .quickest = seconds[0],
                          .slowest = seconds[count - 1],
                          .spread = median > 0 ? half / median : 0};
}

/* "2.6", and from 10 on "14"; hundredths below 1.1, where they matter. */
static void spell_factor(double factor, char text[READABLE_BYTES])
{
    unsigned long long hundredths = (unsigned long long)(factor * 100 + 0.5);

    if (factor >= 10)
        snprintf(text, READABLE_BYTES, "%llu", (hundredths + 50) / 100);
    else if (factor >= 1.1)
        snprintf(text, READABLE_BYTES, "%llu.%llu", (hundredths + 5) / 100,
                 (hundredths + 5) / 10 % 10);
    else
        snprintf(text, READABLE_BYTES, "%llu.%02llu", hundredths / 100, hundredths % 100);
}

static unsigned percent(double part)
{
    return part < 0 ? 0 : part > 99 ? 9900 : (unsigned)(part * 100 + 0.5);
}

static struct report_counters totals_of(const struct trial *trial)
{
    return summary_totals(&trial->summary);
}

/* Of the runs with the pool, the one that took the most memory. */
static struct report_counters most_memory(const struct try *try)
{
    struct report_counters most = totals_of(&try->with[0]);

    for (int i = 1; i < try->done; i++) {
        struct report_counters totals = totals_of(&try->with[i]);
        if (totals.peak.reserved_bytes > most.peak.reserved_bytes)
            most.peak.reserved_bytes = totals.peak.reserved_bytes;
        if (totals.peak.live_bytes > most.peak.live_bytes)
            most.peak.live_bytes = totals.peak.live_bytes;
    }
    return most;
}

/* --- what is said: the table --------------------------------------------------------------------
 */

static void print_row(const char *name, const struct times *times, int runs, const char *memory)
{
    char wall[READABLE_BYTES], spread[READABLE_BYTES] = "";

    readable_seconds(times->median, wall);
    if (runs > 1)
        snprintf(spread, sizeof(spread), "%u %%", percent(times->spread));
    printf("  %-17s  %16s  %6s  %18s\n", name, wall, spread, memory);
}

static void print_table(const struct try *try, const struct times *without,
                        const struct times *with)
{
    char asked[READABLE_BYTES] = "-", taken[READABLE_BYTES] = "-";
    struct report_counters most = most_memory(try);
    uint64_t counted = totals_of(&try->counting).peak.live_bytes;

    if (most.peak.reserved_bytes != 0) {
        readable_bytes(counted > most.peak.live_bytes ? counted : most.peak.live_bytes, asked);
        readable_bytes(most.peak.reserved_bytes, taken);
    }
    printf("  %-17s  %16s  %6s  %18s\n", "", try->done > 1 ? "wall time, median" : "wall time",
           try->done > 1 ? "+-" : "", "peak device memory");
    print_row("without the pool", without, try->done, asked);
    print_row("with the pool", with, try->done, taken);
}

/* --- what is said: the verdict ------------------------------------------------------------------
 */

static bool took_memory(const struct try *try)
{
    for (int i = 0; i < try->done; i++)
        if (try->with[i].has_report && totals_of(&try->with[i]).requests > 0)
            return true;
    return false;
}

/* What the driver took of the time without the pool, which is the most that can be won. */
static void print_driver_times(const struct try *try)
{
    char without[READABLE_BYTES], with[READABLE_BYTES], waited[READABLE_BYTES];
    struct report_counters off = totals_of(&try->counting);
    struct report_counters on = totals_of(&try->with[try->done - 1]);

    if (off.requests == 0)
        return;
    readable_time(off.driver.nanoseconds, without);
    readable_time(on.driver.nanoseconds, with);
    readable_time(on.waits.nanoseconds, waited);
    printf("its allocations and frees of device memory took %s in the driver without the pool (all "
           "threads together); with it %s, and %s waiting for the GPU\n",
           without, with, waited);
}

static void print_no_difference(const struct try *try)
{
    char requests[READABLE_BYTES], driver[READABLE_BYTES], reason[NO_REPORT_BYTES];
    struct report_counters totals = totals_of(&try->with[try->done - 1]);

    if (!took_memory(try)) {
        explain_no_report(try->program[0], reason);
        printf("no difference: no process took memory from the pool: %s\n", reason);
        return;
    }
    readable_count(totals.requests, requests);
    readable_time(totals_of(&try->counting).driver.nanoseconds, driver);
    printf("no difference: it asked for memory %s time%s, which took %s without the pool; there is "
           "nothing to gain\n",
           requests, totals.requests == 1 ? "" : "s", driver);
}

/* Whether what the pool can change is worth a look: all that memory costs without it and with it.
 */
static bool can_matter(const struct try *try, const struct times *without)
{
    struct report_counters off = totals_of(&try->counting);
    struct report_counters on = totals_of(&try->with[try->done - 1]);
    double nanoseconds = (double)off.driver.nanoseconds + (double)on.driver.nanoseconds +
                         (double)on.waits.nanoseconds + (double)on.saved_at_least_nanoseconds;

    return nanoseconds / 1e9 > LEAST_DIFFERENCE * without->median;
}

/* Whether every run of one kind was quicker than every one of the other. */
static bool lie_apart(const struct times *one, const struct times *other)
{
    return one->slowest < other->quickest || other->slowest < one->quickest;
}

static void print_factor(const struct try *try, double ratio, double spread)
{
    char factor[READABLE_BYTES];

    spell_factor(ratio > 1 ? ratio : 1 / ratio, factor);
    printf("%s times as %s", factor, ratio > 1 ? "fast" : "slow");
    if (try->done > 1)
        printf(" (+-%u %%)\n", percent(spread));
    else
        puts(" (one run of each: -n 3 says how much that is worth)");
    print_driver_times(try);
    if (ratio < 1)
        puts("what to do: leave the pool away here, unless the advice helps");
}

static void print_uncertainty(const struct try *try, double spread)
{
    printf("cannot tell: runs of one kind lie up to %u %% from their middle; try again with -n 10, "
           "or where less else is going on\n",
           percent(spread));
    print_driver_times(try);
}

static void print_verdict(const struct try *try, const struct times *without,
                          const struct times *with)
{
    double ratio = with->median > 0 ? without->median / with->median : 1;
    /* Both may be off to opposite sides. */
    double spread = without->spread + with->spread;
    double least = try->done > 1 ? LEAST_DIFFERENCE : LEAST_DIFFERENCE_OF_ONE;
    bool is_close = ratio < 1 + least && ratio > 1 - least;
    bool is_beyond = spread <= 0.5 && (ratio > 1 + spread || ratio < 1 - spread);

    bool matters = took_memory(try) && can_matter(try, without);

    if (matters && !is_close && (lie_apart(without, with) || is_beyond))
        print_factor(try, ratio, spread);
    else if (!matters || spread <= MOST_SPREAD)
        print_no_difference(try);
    else
        print_uncertainty(try, without->spread > with->spread ? without->spread : with->spread);
}

/* --- what is said: differences ------------------------------------------------------------------
 */

static void spell_end(const struct trial *trial, char text[REPORT_END_BYTES])
{
    struct report_exit exit = {
        .known = true, .status = trial->end.status, .signal = trial->end.signal};

    report_describe_end(REPORT_EXITED, exit, text);
    if (text[0] == '\0')
        snprintf(text, REPORT_END_BYTES, "exited with status 0");
}

static void print_output_line(const char *name, const struct trial_difference *difference,
                              int which)
{
    printf("  %s  %s\n", name,
           difference->is_there[which] ? difference->text[which] : "(no such line)");
}

/* Whether runs without the pool end and write alike: otherwise nothing can be said of the others.
 */
static bool is_steady(const struct try *try)
{
    struct trial_difference difference;

    if (trials_differ(&try->without[0], NULL, &try->counting, &difference))
        return false;
    for (int i = 1; i < try->done; i++)
        if (trials_differ(&try->without[0], &try->counting, &try->without[i], &difference))
            return false;
    return true;
}

static bool differs(const struct try *try, const struct trial *trial, bool steady)
{
    struct trial_difference difference;

    return !trials_ended_alike(&try->without[0], trial) ||
           (steady && trials_differ(&try->without[0], &try->counting, trial, &difference));
}

/* The first run with the pool that does something else. NULL: none does. */
static const struct trial *find_difference(const struct try *try, bool steady)
{
    for (int i = 0; i < try->done; i++)
        if (differs(try, &try->with[i], steady))
            return &try->with[i];
    return NULL;
}

static void print_difference(const struct try *try, const struct trial *trial)
{
    struct trial_difference difference;
    char without[REPORT_END_BYTES], with[REPORT_END_BYTES];

    if (!trials_ended_alike(&try->without[0], trial)) {
        spell_end(&try->without[0], without);
        spell_end(trial, with);
        printf("it does something else with the pool: %s; without the pool: %s\n", with, without);
    } else {
        puts("it does something else with the pool: its output differs");
    }
    if (!trials_differ(&try->without[0], &try->counting, trial, &difference))
        return;
    printf("line %zu of its output:\n", difference.line);
    print_output_line("without", &difference, 0);
    print_output_line("with   ", &difference, 1);
}

/* Some programs lean on a wait that the driver's free makes, and that the pool's leaves out. */
static int try_with_waiting_frees(const struct try *try, bool steady)
{
    struct settings settings = try->settings;
    struct trial trial;

    settings.device.free_synchronizes = true;
    int status = trial_run(try->program, &try->input, &settings, &trial);
    if (status != 0)
        return status;
    if (differs(try, &trial, steady))
        puts("nor is it the same with device.free_synchronizes: run it without the pool");
    else
        puts("with device.free_synchronizes it is the same: the program leans on cudaFree's wait "
             "for "
             "the GPU; use cudapool run --set device.free_synchronizes=true");
    trial_free(&trial);
    return 0;
}

/* 0, or the exit status. */
static int print_results(const struct try *try)
{
    bool steady = is_steady(try);
    const struct trial *other = find_difference(try, steady);
    char end[REPORT_END_BYTES];

    spell_end(&try->without[0], end);
    if (other != NULL) {
        print_difference(try, other);
        fflush(stdout);
        int status =
            try->settings.device.free_synchronizes ? 0 : try_with_waiting_frees(try, steady);
        return status == 0 ? EXIT_DIFFERS : status;
    }
    printf("%s each time, and %s\n", end,
           steady ? "the same output"
                  : "output that differs from run to run without the pool, too");
    return 0;
}

static int print_all(const struct try *try)
{
    struct times without = times_of(try->without, try->done);
    struct times with = times_of(try->with, try->done);

    print_table(try, &without, &with);
    print_verdict(try, &without, &with);
    int status = print_results(try);
    print_advice(&try->with[try->done - 1].summary, stdout);
    return status;
}

/* --- the runs -----------------------------------------------------------------------------------
 */

/* Somebody wants this to end, and not only the program. */
static bool was_stopped(const struct trial *trial)
{
    int signal = trial->end.signal;

    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

static int run_counting(struct try *try)
{
    struct settings settings = try->settings;

    settings.device.enabled = false;
    settings.stream_ordered.enabled = false;
    settings.host.enabled = false;
    settings.limits.device_bytes = (struct byte_size){.unlimited = true};
    return trial_run(try->program, &try->input, &settings, &try->counting);
}

static int run_pair(struct try *try, int i)
{
    int status = trial_run(try->program, &try->input, NULL, &try->without[i]);

    if (status == 0 && !was_stopped(&try->without[i]))
        status = trial_run(try->program, &try->input, &try->settings, &try->with[i]);
    return status;
}

/* 0, or the exit status. */
static int run_all(struct try *try)
{
    struct progress progress;
    int status = run_counting(try);

    progress_start(&progress);
    while (status == 0 && try->done < try->runs && !was_stopped(&try->counting)) {
        progress_step(&progress, (size_t)try->done, (size_t)try->runs);
        int i = try->done;
        status = run_pair(try, i);
        if (status != 0 || was_stopped(&try->without[i]) || was_stopped(&try->with[i]))
            break;
        try->done++;
    }
    progress_end(&progress);
    if (status == 0 && try->done < try->runs)
        return complain("try: a signal ended the program after %d of %d pairs of runs", try->done,
                        try->runs);
    return status;
}

static void free_trials(struct try *try)
{
    for (int i = 0; i < try->runs; i++) {
        if (try->without != NULL)
            trial_free(&try->without[i]);
        if (try->with != NULL)
            trial_free(&try->with[i]);
    }
    trial_free(&try->counting);
    if (try->input.copy != NULL)
        fclose(try->input.copy);
    free(try->without);
    free(try->with);
}

/* 0, or the exit status. */
static int run_and_print(struct try *try)
{
    int status = trial_read_input(&try->input);

    if (status == 0)
        status = run_all(try);
    return status == 0 ? print_all(try) : status;
}

static int try_program(struct try *try)
{
    int status;

    try->without = calloc((size_t)try->runs, sizeof(*try->without));
    try->with = calloc((size_t)try->runs, sizeof(*try->with));
    if (try->without == NULL || try->with == NULL)
        status = complain("out of memory");
    else
        status = run_and_print(try);
    free_trials(try);
    return finish_output(status);
}

/* --- the command line ---------------------------------------------------------------------------
 */

static int read_runs(const char *text, int *runs)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0' || number < 1 || number > RUNS_MOST)
        return complain("try: -n: found \"%s\", allowed is a number from 1 to %d", text, RUNS_MOST);
    *runs = (int)number;
    return 0;
}

/* 0, or the exit status. */
static int read_options(int argc, char **argv, struct pool_options *options, struct try *try)
{
    static const struct option known[] = {POOL_OPTIONS, {0}};
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, "+:n:", known, NULL)) != -1) {
        if (option == 'n')
            status = read_runs(optarg, &try->runs);
        else if (!pool_options_take(options, option, optarg))
            status = complain("try: %s %s; allowed are -n NUMBER, --config FILE and --set "
                              "SETTING=VALUE",
                              option == ':' ? "a value is missing after" : "unknown option",
                              argv[optind - 1]);
    }
    try->program = argv + optind;
    if (status == 0 && optind >= argc)
        status = complain("try: no program given; usage: cudapool try [-n NUMBER] [--config FILE] "
                          "[--set SETTING=VALUE]... [--] PROGRAM [ARGUMENTS]");
    return status;
}

static int try_with_options(int argc, char **argv, struct pool_options *options)
{
    struct try try = {.runs = RUNS_DEFAULT};
    int status = read_options(argc, argv, options, &try);

    if (status == 0)
        status = pool_environment_set_config(options, &try.settings);
    if (status != 0)
        return status;
    /* The reports are this command's. */
    struct settings defaults;
    settings_defaults(&defaults);
    try.settings.report = defaults.report;
    try.settings.figures = defaults.figures;
    return try_program(&try);
}

static int run_try(int argc, char **argv)
{
    return run_with_pool_options(argc, argv, try_with_options);
}

const struct command try_command = {
    .name = "try",
    .summary = "run a program without and with the pool: is it faster, and the same?",
    .help =
        "usage: cudapool try [-n NUMBER] [--config FILE] [--set SETTING=VALUE]... [--]\n"
        "                    PROGRAM [ARGUMENTS]\n"
        "\n"
        "Runs a program once with the pool switched off but counting, and then without and with "
        "the\n"
        "pool in turn. Says how long each took (the median, and half of what lies between the\n"
        "quickest and the slowest run), how much device memory it took, whether it ended in the\n"
        "same way and wrote the same to stdout, and what to do. Where it did something else with\n"
        "the pool, that is shown, and device.free_synchronizes is tried. Each run gets the same\n"
        "input, from stdin; what the program writes is not shown.\n"
        "\n"
        "  -n NUMBER       runs of each kind (3)\n"
        "  --config FILE   settings, as for `cudapool run`\n"
        "  --set SETTING=VALUE\n"
        "                  changes one setting; may be given several times\n"
        "\n"
        "Exit status: 0 where the program did the same; 1 where it did not, or the output cannot "
        "be\n"
        "written; 2 for bad input; 126 where the program cannot be run, 127 where it cannot be "
        "found.\n",
    .run = run_try,
};
