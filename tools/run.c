/*
 * cudapool run: runs a program with the pool.
 *
 * Checks what can be wrong with the settings first, and sets the environment that the preload
 * object reads. Where the processes' reports are to be collected, it waits for the program;
 * otherwise it becomes the program.
 */
#include <errno.h>
#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collection.h"
#include "core/base/file_pattern.h"
#include "core/figures/report.h"
#include "core/settings/config_json.h"
#include "core/settings/shipped_json.h"
#include "own_path.h"
#include "program.h"
#include "run.h"
#include "sanitizer.h"
#include "tool.h"

#define PRELOAD_NAME "libcudapool_preload.so"

/* --- the preload object -------------------------------------------------------------------------
 */

static bool is_readable(const char *path)
{
    return access(path, R_OK) == 0;
}

/* The first file that matches a pattern in a directory whose name is taken literally. */
static bool find_by_pattern(const char *directory, const char *pattern, char path[PATH_MAX])
{
    char full[2 * PATH_MAX];
    size_t length = 0;
    glob_t matches;

    for (const char *c = directory; *c != '\0'; c++) {
        if (strchr("*?[\\", *c) != NULL)
            full[length++] = '\\';
        full[length++] = *c;
    }
    snprintf(full + length, sizeof(full) - length, "/%s", pattern);
    bool found = glob(full, 0, NULL, &matches) == 0;
    if (found)
        found = realpath(matches.gl_pathv[0], path) != NULL;
    globfree(&matches);
    return found;
}

/* Beside this command as in a build, or in a library directory beside its own. */
static bool find_preload(char path[PATH_MAX])
{
    static const char *const patterns[] = {PRELOAD_NAME, "../lib*/" PRELOAD_NAME,
                                           "../lib*/*/" PRELOAD_NAME};
    char directory[PATH_MAX];

    if (own_directory(directory))
        for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
            if (find_by_pattern(directory, patterns[i], path))
                return true;
    snprintf(path, PATH_MAX, "%s/%s", CUDAPOOL_LIBDIR, PRELOAD_NAME);
    return is_readable(path);
}

/* True where LD_PRELOAD's list has the path. */
static bool list_has(const char *list, const char *path)
{
    size_t wanted = strlen(path);

    while (*list != '\0') {
        size_t length = strcspn(list, ": ");
        if (length == wanted && strncmp(list, path, length) == 0)
            return true;
        list += length;
        list += strspn(list, ": ");
    }
    return false;
}

/* What LD_PRELOAD is to be: the run time of the program's sanitizer, which must be the first, the
 * preload object, and what is there already. NULL where memory is short. */
static char *make_list(const char *program, const char *path, const char *present)
{
    size_t first = sanitizers_in_list(present);
    bool is_there = list_has(present, path);
    char *runtime = first > 0 ? NULL : sanitizer_of_program(program), *list;
    const char *between = first > 0 && present[first] == '\0' ? ":" : "";

    if (asprintf(&list, "%s%s%.*s%s%s%s%s", runtime == NULL ? "" : runtime,
                 runtime == NULL ? "" : ":", (int)first, present, between, is_there ? "" : path,
                 is_there || present[first] == '\0' ? "" : ":", present + first) < 0)
        list = NULL;
    free(runtime);
    return list;
}

int run_set_preload(const char *program)
{
    char path[PATH_MAX];
    const char *present = getenv("LD_PRELOAD");

    if (!find_preload(path))
        return complain("%s is neither beside this command, nor in a lib directory beside its own, "
                        "nor in " CUDAPOOL_LIBDIR,
                        PRELOAD_NAME);
    if (strpbrk(path, ": ") != NULL)
        return complain("%s: the path has a space or a colon, which LD_PRELOAD cannot express",
                        path);
    char *list = make_list(program, path, present == NULL ? "" : present);
    int status = list == NULL ? -1 : setenv("LD_PRELOAD", list, 1);
    free(list);
    return status == 0 ? 0 : complain("out of memory");
}

/* --- settings -----------------------------------------------------------------------------------
 */

static int set_variable(const char *name, const char *value)
{
    return setenv(name, value, 1) == 0 ? 0 : complain("out of memory");
}

/* Settings that exist nowhere but on the command line travel in the environment itself: a file
 * would have to outlive the last process of the job. */
static int pass_settings_as_text(const struct settings *settings)
{
    char *text = config_to_text(settings);
    int status = text == NULL ? complain("out of memory") : setenv("CUDAPOOL_CONFIG", text, 1);

    free(text);
    return status;
}

/* Makes the file's name independent of the program's directory. */
static int pass_settings_file(const char *config)
{
    char full[PATH_MAX];

    if (realpath(config, full) == NULL)
        return complain("%s: %s", config, strerror(errno));
    return set_variable("CUDAPOOL_CONFIG", full);
}

/* A file that the program's processes can read, too: a pipe has been read to its end, and where
 * this command's own settings are, they need not look. */
static bool is_theirs_to_read(const char *config)
{
    struct stat status;

    return shipped_config_named(config) == NULL && strcmp(config, "-") != 0 &&
           stat(config, &status) == 0 && S_ISREG(status.st_mode);
}

int run_set_config(const struct run_options *options, struct settings *settings)
{
    const char *config = options->config;
    bool is_given = config != NULL && *config != '\0';

    settings_defaults(settings);
    if (is_given && config_read_patiently(config, settings, complain_of, NULL) != 0)
        return EXIT_BAD_INPUT;
    if (options->assignment_count > 0 && config_set(options->assignments, options->assignment_count,
                                                    settings, complain_of, NULL) != 0)
        return EXIT_BAD_INPUT;
    if (options->assignment_count > 0 ||
        (is_given && config[0] != '{' && !is_theirs_to_read(config)))
        return pass_settings_as_text(settings);
    return is_given && config[0] != '{' ? pass_settings_file(config) : 0;
}

/* --- where the reports go -----------------------------------------------------------------------
 */

/* A percent sign of the current directory is not an escape. */
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

/* The name in full and valid, in memory that the caller frees; NULL after a complaint. */
static char *complete_report_name(const char *report)
{
    char full[3 * PATH_MAX];

    if (!file_pattern_is_valid(report)) {
        complain(
            "--report: found \"%s\", allowed is none, stderr or a file name, in which %%p, %%h, "
            "%%r and %%%% may stand",
            report);
        return NULL;
    }
    if (*report == '/')
        return strdup(report);
    if (full_report_name(report, full, sizeof(full)) && strlen(full) < SETTINGS_PATH_MAX)
        return strdup(full);
    complain("--report: the name is too long, allowed are fewer than %d bytes", SETTINGS_PATH_MAX);
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

/* What the settings say, for want of --report and CUDAPOOL_REPORT. A file that they name is each
 * process's own business. */
static void follow_settings(const struct settings *settings, struct collection *collection)
{
    if (settings->report.at_exit == REPORT_NONE || settings->report.file[0] != '\0')
        return;
    collection->wanted = true;
    collection->as_json = settings->report.at_exit == REPORT_JSON;
}

/* A file that is not named for each process is one file for all of them. */
static int follow_option(const char *report, struct collection *collection)
{
    if (strcmp(report, "none") == 0)
        return set_variable("CUDAPOOL_REPORT", "none");
    if (strcmp(report, "stderr") == 0) {
        collection->wanted = true;
        return 0;
    }
    collection->file = complete_report_name(report);
    if (collection->file == NULL)
        return EXIT_BAD_INPUT;
    collection->wanted = true;
    collection->as_json = true;
    collection->each = names_each_process(collection->file);
    return collection->each ? set_variable("CUDAPOOL_REPORT", collection->file) : 0;
}

/* 0, or the exit status. */
static int choose_report(const struct run_options *options, const struct settings *settings,
                         struct collection *collection)
{
    const char *variable = getenv("CUDAPOOL_REPORT");

    if (options->report != NULL)
        return follow_option(options->report, collection);
    if (variable == NULL || *variable == '\0')
        follow_settings(settings, collection);
    else if (strcmp(variable, "stderr") == 0)
        collection->wanted = true;
    return 0;
}

/* --- the command line ---------------------------------------------------------------------------
 */

static int refuse_option(int option, const char *word)
{
    complain("run: %s %s; allowed are --config FILE, --set SETTING=VALUE, --report FILE and "
             "--all",
             option == ':' ? "a value is missing after" : "unknown option", word);
    return -1;
}

/* Where the program stands in argv, or -1 after an error. */
static int read_options(int argc, char **argv, struct run_options *options)
{
    static const struct option known[] = {{"config", required_argument, NULL, 'c'},
                                          {"report", required_argument, NULL, 'r'},
                                          {"set", required_argument, NULL, 's'},
                                          {"all", no_argument, NULL, 'a'},
                                          {0}};
    int option;

    opterr = 0;
    /* "+": what follows the program's name is the program's; ":" tells a missing argument. */
    while ((option = getopt_long(argc, argv, "+:", known, NULL)) != -1) {
        if (option == 'c')
            options->config = optarg;
        else if (option == 'r')
            options->report = optarg;
        else if (option == 'a')
            options->all = true;
        else if (option == 's')
            options->assignments[options->assignment_count++] = optarg;
        else
            return refuse_option(option, argv[optind - 1]);
    }
    if (optind < argc)
        return optind;
    complain("run: no program given; usage: cudapool run [--config FILE] [--set SETTING=VALUE]... "
             "[--report FILE] [--all] [--] PROGRAM [ARGUMENTS]");
    return -1;
}

/* Without a process of its own the program runs all the same: this one becomes the program, and its
 * report is its own affair. */
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

static int run_with_options(int argc, char **argv, struct run_options *options)
{
    struct settings settings = {0};
    struct collection collection = {0};
    int program = read_options(argc, argv, options);
    int status = program < 0 ? EXIT_BAD_INPUT : 0;

    if (status == 0)
        status = run_set_config(options, &settings);
    if (status == 0)
        status = choose_report(options, &settings, &collection);
    if (status == 0)
        status = run_set_preload(argv[program]);
    collection.all = options->all;
    if (status == 0)
        status = run_program(argv + program, &collection, &settings.figures);
    free(collection.file);
    return status;
}

static int run(int argc, char **argv)
{
    /* A setting that comes by the environment is checked as well. */
    struct run_options options = {.config = getenv("CUDAPOOL_CONFIG"),
                                  .assignments = calloc((size_t)argc, sizeof(char *))};
    int status = options.assignments == NULL ? complain("out of memory")
                                             : run_with_options(argc, argv, &options);

    free(options.assignments);
    return status;
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
        "  --config FILE   settings (see `cudapool check`), or the name of settings that come "
        "along\n"
        "                  (see `cudapool configs`), or - for stdin; otherwise $CUDAPOOL_CONFIG, "
        "or the\n"
        "                  defaults. Settings that are not valid are an error, and nothing is "
        "run.\n"
        "  --set SETTING=VALUE\n"
        "                  changes one setting, as in --set device.growth_budget=64MiB; may be\n"
        "                  given several times.\n"
        "  --report FILE   none; stderr, for the table; or a file for the reports as JSON. With "
        "%p\n"
        "                  in its name, the process's number, each process writes a file of its\n"
        "                  own; without, there is one for all. %h is the host's name, %r the "
        "rank,\n"
        "                  %% a percent sign. Of a process that was killed, the file is written "
        "for it.\n"
        "                  Otherwise $CUDAPOOL_REPORT, or what the settings "
        "say.\n"
        "  --all           all rows and columns of the table, also on a terminal, which otherwise\n"
        "                  has the ten busiest buckets, and what fits it\n"
        "\n"
        "Exit status: the program's; 128 and the signal's number where a signal ended it; 2 for "
        "bad\n"
        "input; 126 where the program cannot be run, 127 where it cannot be found.\n",
    .run = run,
};
