/*
 * cudapool try: finds out whether a program is faster with the pool, and whether it does the same.
 *
 * The program first runs once with the pool switched off but counting. That run warms up the files
 * and the driver's caches, and measures what allocations and frees cost without the pool. Then runs
 * without and with the pool alternate, so that other load on the machine affects both alike. If
 * runs with the pool differ from those without, more pairs confirm the difference, and runs with
 * frees that wait are tried.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/readable.h"
#include "tools/command/command_line.h"
#include "tools/command/output.h"
#include "tools/command/progress.h"
#include "tools/command/tool.h"
#include "tools/run/pool_environment.h"
#include "try_json.h"
#include "try_judgement.h"
#include "try_runs.h"
#include "try_times.h"
#include "try_words.h"

#define RUNS_DEFAULT 3
#define RUNS_MOST    1000

/* The exit status if the program fails, or does not do the same with the pool. */
#define EXIT_DIFFERS 1

/* --- progress -----------------------------------------------------------------------------------
 */

struct run_progress {
    struct progress progress;
    const char *what; /* the run that is under way */
    int number, count;
    struct timespec started;
};

static void show_progress(void *context)
{
    struct run_progress *run = context;
    struct timespec now;
    char elapsed[READABLE_BYTES], line[160];

    clock_gettime(CLOCK_MONOTONIC, &now);
    readable_seconds((double)(now.tv_sec - run->started.tv_sec), elapsed);
    snprintf(line, sizeof(line), "run %d of %d, %s: %s", run->number, run->count, run->what,
             elapsed);
    progress_say(&run->progress, line);
}

/* --- the runs -----------------------------------------------------------------------------------
 */

/* The runs, and what is needed to make them and to tell their results. */
struct session {
    struct try try;
    struct run_progress progress;
    const char *json; /* file name of --json; NULL: none */
};

static bool was_ended(const struct session *session)
{
    return session->try.setup.ended_by != 0;
}

static int run_once(struct session *session, const char *what, const struct settings *settings,
                    struct trial *trial)
{
    session->progress.what = what;
    session->progress.number++;
    clock_gettime(CLOCK_MONOTONIC, &session->progress.started);
    int status = trial_run(&session->try.setup, settings, trial);
    progress_end(&session->progress.progress);
    return status;
}

/* If the first run shows that the program cannot be run, returns its exit status. */
static int check_first_run(const struct session *session, const struct trial *trial)
{
    if (session->progress.number > 1 || was_ended(session) || !trial_was_not_run(trial))
        return 0;
    fputs(trial->last_words == NULL ? "" : trial->last_words, stderr);
    return trial->end.status;
}

static int warm_up(struct session *session)
{
    int status = 0;

    for (int i = 0; i < session->try.warm_up && status == 0 && !was_ended(session); i++) {
        struct trial trial;
        status = run_once(session, "to warm up", NULL, &trial);
        if (status == 0)
            status = check_first_run(session, &trial);
        outputs_free(&session->try.setup.kept);
        trial_free(&trial);
    }
    return status;
}

static int run_counting(struct session *session)
{
    struct settings settings = session->try.settings;
    struct trial *counting = &session->try.counting;

    settings.device.enabled = false;
    settings.stream_ordered.enabled = false;
    settings.host.enabled = false;
    settings.limits.device_bytes = (struct byte_size){.unlimited = true};
    int status = run_once(session, "with the pool switched off", &settings, counting);
    return status == 0 ? check_first_run(session, counting) : status;
}

static int run_without(struct session *session)
{
    struct try *try = &session->try;

    return run_once(session, "without the pool", NULL, &try->without[try->done]);
}

static int run_with(struct session *session)
{
    struct try *try = &session->try;

    return run_once(session, "with the pool", &try->settings, &try->with[try->done]);
}

/* Every second pair is run in reverse order, so that what changes from run to run affects both
 * kinds. */
static int run_pair(struct session *session)
{
    bool pool_first = session->try.done % 2 == 1;
    int status = pool_first ? run_with(session) : run_without(session);

    if (status == 0 && !was_ended(session))
        status = pool_first ? run_without(session) : run_with(session);
    if (status == 0 && !was_ended(session))
        session->try.done++;
    return status;
}

/* Sets *more if another pair is needed. Returns 0, or the exit status. */
static int look_for_more(struct session *session, bool *more)
{
    struct try *try = &session->try;
    struct judgement judgement;

    *more = true;
    if (try->done < try->runs)
        return 0;
    int status = try_judge(try, &judgement);
    *more = judgement.result == TRY_DIFFERS_WITH_POOL && try->done < PAIRS_TO_CONFIRM;
    if (*more)
        session->progress.count = session->progress.number + 2 * (PAIRS_TO_CONFIRM - try->done);
    return status;
}

static int run_pairs(struct session *session)
{
    bool more = true;
    int status = 0;

    while (status == 0 && more && !was_ended(session)) {
        status = run_pair(session);
        if (status == 0 && !was_ended(session))
            status = look_for_more(session, &more);
    }
    return status;
}

/* Some programs rely on cudaFree waiting for the GPU. The pool's free usually leaves this wait
 * out. */
static int run_waiting(struct session *session)
{
    struct try *try = &session->try;
    struct settings settings = try->settings;
    int status = 0;

    settings.device.free_synchronizes = true;
    session->progress.count = session->progress.number + try->done;
    for (int i = 0; i < try->done && status == 0; i++) {
        status = run_once(session, "with frees that wait", &settings, &try->waiting[i]);
        if (was_ended(session))
            break;
        try->waiting_done++;
    }
    /* Fewer runs prove nothing. */
    if (was_ended(session))
        try->waiting_done = 0;
    return status;
}

/* Returns 0, or the exit status. */
static int run_all(struct session *session)
{
    struct try *try = &session->try;
    struct judgement judgement = {.result = TRY_SAME};
    int status = warm_up(session);

    if (status == 0 && !was_ended(session))
        status = run_counting(session);
    if (status == 0 && !was_ended(session))
        status = run_pairs(session);
    if (status == 0 && try->done > 0)
        status = try_judge(try, &judgement);
    if (status == 0 && !was_ended(session) && judgement.result == TRY_DIFFERS_WITH_POOL &&
        try_took_memory(try) && !judgement.off_differs && !try->settings.device.free_synchronizes)
        status = run_waiting(session);
    return status;
}

/* Signals stay blocked also between two runs. One that arrives there ends the next run, or is taken
 * here after the last run. Complete pairs are still shown. */
static int run_with_signals_blocked(struct session *session)
{
    struct trial_setup *setup = &session->try.setup;

    program_block_ends(&setup->mask);
    int status = run_all(session);
    int late = program_take_end();
    if (setup->ended_by == 0)
        setup->ended_by = late;
    sigprocmask(SIG_SETMASK, &setup->mask, NULL);
    return status;
}

static void start_progress(struct session *session)
{
    struct run_progress *progress = &session->progress;

    progress->count = session->try.warm_up + 1 + 2 * session->try.runs;
    progress_start(&progress->progress);
    /* If no progress is shown, no timer wakes this process up beside the program. */
    session->try.setup.look = progress->progress.shown ? show_progress : NULL;
    session->try.setup.context = progress;
}

/* --- results ------------------------------------------------------------------------------------
 */

static int status_of(const struct judgement *judgement)
{
    return judgement->in_end || judgement->only_with_pool || judgement->result == TRY_FAILS ||
                   judgement->result == TRY_DIFFERS_WITH_POOL
               ? EXIT_DIFFERS
               : 0;
}

/* Prints the result of at least one pair. Returns the exit status. */
static int judge_and_print(const struct session *session, struct output *json)
{
    const struct try *try = &session->try;
    struct judgement judgement;
    struct comparison_of_times times;
    int status = try_judge(try, &judgement);

    if (status != 0)
        return status;
    try_compare_times(try, &judgement, &times);
    try_print(try, &judgement, &times, json != NULL && json->path == NULL ? stderr : stdout);
    if (json != NULL)
        status = try_print_json(try, &judgement, &times, json->out);
    return status == 0 ? status_of(&judgement) : status;
}

static void tell_of_the_end(const struct try *try)
{
    int signal = try->setup.ended_by;

    complain("try: %s ended it after %d of %d pairs of runs",
             signal == SIGHUP    ? "SIGHUP"
             : signal == SIGINT  ? "SIGINT"
             : signal == SIGQUIT ? "SIGQUIT"
                                 : "SIGTERM",
             try->done, try->runs > try->done ? try->runs : try->done);
}

static int print_all(const struct session *session, struct output *json)
{
    const struct try *try = &session->try;
    int status = 0;

    if (was_ended(session))
        tell_of_the_end(try);
    if (try->done > 0)
        status = judge_and_print(session, json);
    else if (json != NULL)
        status = try_print_json(try, NULL, NULL, json->out);
    return was_ended(session) ? 128 + try->setup.ended_by : status;
}

static int run_and_print(struct session *session, struct output *json)
{
    int status = run_with_signals_blocked(session);

    return status == 0 ? print_all(session, json) : status;
}

/* Writes the file of --json whatever the program did. There is no file if no pair is complete and
 * no signal ended this command. */
static int run_for_json(struct session *session)
{
    struct output json;

    if (session->json == NULL)
        return run_and_print(session, NULL);
    if (output_open(&json, session->json) != 0)
        return EXIT_BAD_INPUT;
    int status = run_and_print(session, &json);
    bool is_there = session->try.done > 0 || was_ended(session);
    int closed = output_close(&json, is_there ? 0 : EXIT_FAILURE);
    return status == 0 ? closed : status;
}

static void free_trials(struct trial *trials, int count)
{
    for (int i = 0; trials != NULL && i < count; i++)
        trial_free(&trials[i]);
    free(trials);
}

static int try_program(struct session *session)
{
    struct try *try = &session->try;
    int room = try->runs > PAIRS_TO_CONFIRM ? try->runs : PAIRS_TO_CONFIRM;
    int status = 0;

    try->without = calloc((size_t)room, sizeof(struct trial));
    try->with = calloc((size_t)room, sizeof(struct trial));
    try->waiting = calloc((size_t)room, sizeof(struct trial));
    if (try->without == NULL || try->with == NULL || try->waiting == NULL)
        status = complain("out of memory");
    if (status == 0)
        status = trial_read_input(&try->setup);
    start_progress(session);
    if (status == 0)
        status = run_for_json(session);
    free_trials(try->without, room);
    free_trials(try->with, room);
    free_trials(try->waiting, room);
    trial_free(&try->counting);
    outputs_free(&try->setup.kept);
    if (try->setup.input != NULL)
        fclose(try->setup.input);
    return finish_output(status);
}

/* --- the command line ---------------------------------------------------------------------------
 */

/* Returns 0, or the exit status. */
static int read_options(int argc, char **argv, struct pool_options *options,
                        struct session *session)
{
    static const struct option known[] = {POOL_OPTIONS,
                                          {"warm-up", required_argument, NULL, 'w'},
                                          {"json", required_argument, NULL, 'j'},
                                          {0}};
    struct try *try = &session->try;
    long long runs = try->runs, warming = try->warm_up;
    int option, status = 0;

    opterr = 0;
    while (status == 0 && (option = getopt_long(argc, argv, "+:n:", known, NULL)) != -1) {
        if (option == 'n')
            status = read_number("try", "-n", optarg, 1, RUNS_MOST, &runs);
        else if (option == 'w')
            status = read_number("try", "--warm-up", optarg, 0, RUNS_MOST, &warming);
        else if (option == 'j')
            session->json = optarg;
        else if (!pool_options_take(options, option, optarg))
            status = refuse_option("try", known, option, argv[optind - 1],
                                   "allowed are -n NUMBER, --warm-up NUMBER, --json FILE, --config "
                                   "FILE and --set SETTING=VALUE");
    }
    try->runs = (int)runs;
    try->warm_up = (int)warming;
    try->setup.program = argv + optind;
    if (status == 0 && optind >= argc)
        status = complain("try: no program given; usage: cudapool try [OPTIONS] [--] PROGRAM "
                          "[ARGUMENTS]; `cudapool help try` lists the options");
    return status;
}

static int try_with_options(int argc, char **argv, struct pool_options *options)
{
    struct session session = {.try = {.runs = RUNS_DEFAULT}};
    struct settings *settings = &session.try.settings, defaults;
    int status = read_options(argc, argv, options, &session);

    if (status == 0)
        status = pool_environment_set_config(options, settings);
    if (status != 0)
        return status;
    /* This command collects the reports itself, so the settings must not redirect them. */
    settings_defaults(&defaults);
    settings->report = defaults.report;
    settings->figures = defaults.figures;
    return try_program(&session);
}

static int run_try(int argc, char **argv)
{
    return run_with_pool_options(argc, argv, try_with_options);
}

const struct command try_command = {
    .name = "try",
    .summary = "run a program without and with the pool: is it faster, and the same?",
    .help =
        "usage: cudapool try [-n NUMBER] [--warm-up NUMBER] [--json FILE]\n"
        "                    [--config FILE] [--set SETTING=VALUE]... [--] PROGRAM [ARGUMENTS]\n"
        "\n"
        "Runs a program once with the pool switched off but counting, and then without and with\n"
        "the pool in turn. Says how long runs took (the median, half of what lies between the\n"
        "least and the most, and these two), how much device memory the program took, whether it\n"
        "ended in the same way and wrote the same to stdout, and what to do. Where all runs with\n"
        "the pool differ from those without, which agree, there are up to five pairs, and\n"
        "device.free_synchronizes is tried. Each run gets the same input, from stdin; what the\n"
        "program writes is not shown. A signal ends the run that is under way, and shows the\n"
        "pairs that are done.\n"
        "\n"
        "  -n NUMBER         runs of each kind (3)\n"
        "  --warm-up NUMBER  runs before these, without the pool, that nobody looks at (0)\n"
        "  --json FILE       writes all that is found as JSON, too; - is stdout, and what is\n"
        "                    otherwise printed there then goes to stderr\n"
        "  --config FILE     settings, as for `cudapool run`\n"
        "  --set SETTING=VALUE\n"
        "                    changes one setting; may be given several times\n"
        "\n"
        "Exit status: 0 where the program did the same, or writes something else each time "
        "without\n"
        "the pool, too; 1 where it did not do the same, or failed, or the output cannot be\n"
        "written; 2 for bad input, or a file that cannot be written; 126 where the program cannot\n"
        "be run, 127 where it cannot be found; 128 and the number of the signal that ended it "
        "all.\n",
    .run = run_try,
};
