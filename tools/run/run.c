/*
 * cudapool run: runs a program with the pool.
 *
 * The command first checks the settings and the report's file name. It then sets the environment
 * that the preload object reads. If it collects the reports of the program's processes, it waits
 * for the program; otherwise it becomes the program.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file_pattern.h"
#include "core/figures/report_file_json.h"
#include "pool_environment.h"
#include "tools/command/command_line.h"
#include "tools/command/program.h"
#include "tools/command/tool.h"
#include "tools/report/collection.h"

/* What the command line says. */
struct run_options {
    struct pool_options pool;
    const char *report;
    bool all; /* all rows and columns of the table */
};

/* --- where the reports go -----------------------------------------------------------------------
 */

/* Prepends the current directory to the name. A percent sign in the directory is doubled, because
 * it is no escape. */
static bool full_report_name(const char *name, char *full, size_t bytes)
{
    char directory[PATH_MAX];
    size_t length = 0;

    if (getcwd(directory, sizeof(directory)) == NULL || bytes < 2 * strlen(directory) + 2)
        return false;
    for (const char *c = directory; *c != '\0'; c++) {
        if (*c == '%')
            full[length++] = '%';
        full[length++] = *c;
    }
    return (size_t)snprintf(full + length, bytes - length, "/%s", name) < bytes - length;
}

/* Checks the name of --report and completes it. The caller frees the result. Returns NULL after a
 * complaint, and without a complaint if memory is short. */
static char *complete_report_name(const char *report)
{
    char full[3 * PATH_MAX];

    if (!file_pattern_is_valid(report)) {
        complain("--report: found \"%s\", allowed is none, stderr, - for stdout, or a file name, "
                 "in which %%p, %%h, %%r and %%%% may stand",
                 report);
        return NULL;
    }
    if (strcmp(report, "-") == 0)
        return strdup("/dev/stdout");
    if (*report == '/' && strlen(report) < SETTINGS_PATH_MAX)
        return strdup(report);
    errno = ENAMETOOLONG;
    if (full_report_name(report, full, sizeof(full)) && strlen(full) < SETTINGS_PATH_MAX)
        return strdup(full);
    complain(
        "--report: found \"%s\", allowed are fewer than %d bytes with the working directory: %s",
        report, SETTINGS_PATH_MAX, strerror(errno));
    return NULL;
}

static bool names_each_process(const char *name)
{
    for (; *name != '\0'; name++) {
        if (*name != '%')
            continue;
        name++;
        if (*name == 'p')
            return true;
    }
    return false;
}

/* Returns false after a complaint if no report can be written there. A directory with %p in its
 * name is not checked, because the process itself may make it. */
static bool is_writable(const char *name)
{
    char path[SETTINGS_PATH_MAX], directory[SETTINGS_PATH_MAX];
    const char *slash = strrchr(name, '/');

    snprintf(directory, sizeof(directory), "%.*s", slash == NULL ? 0 : (int)(slash - name), name);
    if (names_each_process(directory))
        return true;
    if (!expand_for_self(name, path, sizeof(path)))
        return false;
    if (report_file_check(path) == 0)
        return true;
    complain("%s: the report cannot be written: %s", path, strerror(errno));
    return false;
}

/* Checks the file that each process writes itself. A relative name is not checked, because the
 * process may change its directory before it writes. A name that is no valid pattern is not checked
 * either. Returns 0, or the exit status. */
static int check_own_file(const char *name)
{
    return *name != '/' || !file_pattern_is_valid(name) || is_writable(name) ? 0 : EXIT_BAD_INPUT;
}

static int set_variable(const char *name, const char *value)
{
    return setenv(name, value, 1) == 0 ? 0 : complain("out of memory");
}

/* Whether the name is in the directory of an outer `cudapool run`. That run may have ended and
 * removed its directory. */
static bool is_another_runs(const char *name)
{
    const char *figures = getenv("CUDAPOOL_FIGURES");
    size_t length = figures == NULL ? 0 : strlen(figures);

    return length > 0 && strncmp(name, figures, length) == 0 && name[length] == '/';
}

/* Applies the settings, where neither --report nor CUDAPOOL_REPORT is given. If the settings name a
 * file, each process writes its own. Returns 0, or the exit status. */
static int follow_settings(const struct settings *settings, struct collection *collection)
{
    if (settings->report.at_exit == REPORT_NONE)
        return 0;
    if (settings->report.file[0] != '\0')
        return check_own_file(settings->report.file);
    collection->wanted = true;
    collection->format = settings->report.at_exit == REPORT_JSON ? JSON : TABLE;
    return 0;
}

static enum report_format format_of_name(const char *name)
{
    enum report_format format;

    return format_of_file(name, &format) ? format : JSON;
}

/* Applies --report. If the file's name has no %p, one file is for all processes. Returns 0, or the
 * exit status. */
static int follow_option(const char *report, struct collection *collection)
{
    if (strcmp(report, "none") == 0)
        return set_variable("CUDAPOOL_REPORT", "none");
    if (strcmp(report, "stderr") == 0) {
        collection->wanted = true;
        return 0;
    }
    collection->file = complete_report_name(report);
    if (collection->file == NULL || !is_writable(collection->file))
        return EXIT_BAD_INPUT;
    collection->wanted = true;
    collection->format = format_of_name(collection->file);
    collection->each = names_each_process(collection->file);
    return collection->each && collection->format == JSON
               ? set_variable("CUDAPOOL_REPORT", collection->file)
               : 0;
}

/* Returns 0, or the exit status. */
static int choose_report(const struct run_options *options, const struct settings *settings,
                         struct collection *collection)
{
    const char *variable = getenv("CUDAPOOL_REPORT");

    if (options->report != NULL)
        return follow_option(options->report, collection);
    if (variable == NULL || *variable == '\0')
        return follow_settings(settings, collection);
    collection->wanted = strcmp(variable, "stderr") == 0;
    return collection->wanted || strcmp(variable, "none") == 0 || is_another_runs(variable)
               ? 0
               : check_own_file(variable);
}

/* --- the command line ---------------------------------------------------------------------------
 */

/* Returns the index of the program in argv, or -1 after a complaint. */
static int read_options(int argc, char **argv, struct run_options *options)
{
    static const struct option known[] = {POOL_OPTIONS,
                                          {"report", required_argument, NULL, 'r'},
                                          {"all", no_argument, NULL, 'a'},
                                          {0}};
    int option;

    opterr = 0;
    /* "+" stops at the program's name, because options after it are the program's. ":" makes
     * getopt_long return ':' for a missing argument. */
    while ((option = getopt_long(argc, argv, "+:", known, NULL)) != -1) {
        if (option == 'r')
            options->report = optarg;
        else if (option == 'a')
            options->all = true;
        else if (!pool_options_take(&options->pool, option, optarg)) {
            refuse_option("run", known, option, argv[optind - 1],
                          "allowed are --config FILE, --set SETTING=VALUE, --report FILE and "
                          "--all");
            return -1;
        }
    }
    if (optind < argc)
        return optind;
    complain("run: no program given; usage: cudapool run [--config FILE] [--set SETTING=VALUE]... "
             "[--report FILE] [--all] [--] PROGRAM [ARGUMENTS]");
    return -1;
}

/* Runs the program and delivers the collected reports. If no process can be made for the program,
 * this process becomes the program, which then writes its report itself. */
static int run_program(char **argv, struct collection *collection,
                       const struct figures_settings *figures)
{
    struct program_end end;
    int status;

    if (collection->wanted && collection_start(collection, figures)) {
        if (program_run(argv, NULL, &end, &status)) {
            collection_deliver(collection, argv[0], &end);
            return status;
        }
        complain("the reports cannot be collected: %s", strerror(errno));
        collection_abandon(collection);
    }
    return program_become(argv);
}

static int run_with_options(int argc, char **argv, struct pool_options *pool)
{
    struct run_options options = {.pool = *pool};
    struct settings settings = {0};
    struct collection collection = {0};
    int program = read_options(argc, argv, &options);
    int status = program < 0 ? EXIT_BAD_INPUT : 0;

    if (status == 0)
        status = pool_environment_set_config(&options.pool, &settings);
    if (status == 0)
        status = choose_report(&options, &settings, &collection);
    if (status == 0)
        status = pool_environment_set_preload(argv[program]);
    collection.all = options.all;
    if (status == 0)
        status = run_program(argv + program, &collection, &settings.figures);
    collection_free(&collection);
    return status;
}

static int run(int argc, char **argv)
{
    return run_with_pool_options(argc, argv, run_with_options);
}

const struct command run_command = {
    .name = "run",
    .summary = "run a program with memory from the pool",
    .help =
        "usage: cudapool run [--config FILE] [--set SETTING=VALUE]... [--report FILE] [--all]\n"
        "                    [--] PROGRAM [ARGUMENTS]\n"
        "\n"
        "Runs a program with " PRELOAD_NAME " in LD_PRELOAD, before what is there. When\n"
        "it ends, however it ends, a table says what the pool did; of several processes (those of\n"
        "mpirun, torchrun or make, say) it has a line for each and their sums. Signals go to the\n"
        "program. The run time library of a program that was built with a sanitizer comes first.\n"
        "\n"
        "  --config FILE   settings (see `cudapool check`), or the name of a built-in "
        "preset\n"
        "                  (see `cudapool configs`), or - for stdin; otherwise $CUDAPOOL_CONFIG, "
        "or the\n"
        "                  defaults. Settings that are not valid are an error, and nothing is "
        "run.\n"
        "  --set SETTING=VALUE\n"
        "                  changes one setting, as in --set device.growth_budget=64MiB; may be\n"
        "                  given several times.\n"
        "  --report FILE   none; stderr, for the table; or a file, or - for stdout, in the format\n"
        "                  that the name's end says: .txt, .json, .csv, .html, .prom, .trace (see\n"
        "                  `cudapool help report`), and otherwise as JSON. With %p in its name, "
        "the\n"
        "                  process's number, each process has a file of its own; without, there "
        "is\n"
        "                  one for all. %h is the host's name, %r the rank, %% a percent sign. Of "
        "a\n"
        "                  process that was killed, the file is written for it. A file that cannot "
        "be\n"
        "                  written is an error, and nothing is run; if it fails in the end, the "
        "table\n"
        "                  is on stderr. Without it $CUDAPOOL_REPORT decides, or the settings.\n"
        "  --all           all rows and columns of the table, also on a terminal, which otherwise\n"
        "                  has the ten busiest buckets, and what fits it\n"
        "\n"
        "Exit status: the program's; 128 and the signal's number where a signal ended it; 2 for "
        "bad\n"
        "input; 126 where the program cannot be run, 127 where it cannot be found.\n",
    .run = run,
};
