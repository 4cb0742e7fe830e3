/*
 * cudapool run: runs a program with the pool.
 *
 * Checks what can be wrong with the settings first, sets the environment that the preload object
 * reads, and becomes the program.
 */
#include <errno.h>
#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config_json.h"
#include "core/report.h"
#include "tool.h"

/* Where the build installs libraries, for a command that was copied elsewhere. */
#ifndef CUDAPOOL_LIBDIR
#define CUDAPOOL_LIBDIR "/usr/local/lib"
#endif

#define PRELOAD_NAME "libcudapool_preload.so"

/* --- the preload object -------------------------------------------------------------------------
 */

/* The directory of this command, without a slash at the end. */
static bool find_own_directory(char directory[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", directory, PATH_MAX - 1);

    if (length <= 0)
        return false;
    directory[length] = '\0';
    char *slash = strrchr(directory, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

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

    if (find_own_directory(directory))
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

/* 0, or the exit status. */
static int set_preload(void)
{
    char path[PATH_MAX], *list;
    const char *present = getenv("LD_PRELOAD");

    if (!find_preload(path))
        return complain("%s is neither beside this command, nor in a lib directory beside its own, "
                        "nor in " CUDAPOOL_LIBDIR,
                        PRELOAD_NAME);
    if (strpbrk(path, ": ") != NULL)
        return complain("%s: the path has a space or a colon, which LD_PRELOAD cannot express",
                        path);
    if (present == NULL || *present == '\0')
        present = "";
    else if (list_has(present, path))
        return 0;
    if (asprintf(&list, "%s%s%s", path, *present == '\0' ? "" : ":", present) < 0)
        return complain("out of memory");
    int status = setenv("LD_PRELOAD", list, 1);
    free(list);
    return status == 0 ? 0 : complain("out of memory");
}

/* --- settings and report ------------------------------------------------------------------------
 */

/* Checks the settings file and makes its name independent of the program's directory. */
static int set_config(const char *config)
{
    struct settings settings;
    char error[ERROR_BYTES], full[PATH_MAX];

    if (config_read_file(config, &settings, error, sizeof(error)) != 0)
        return complain("%s", error);
    if (realpath(config, full) == NULL)
        return complain("%s: %s", config, strerror(errno));
    return setenv("CUDAPOOL_CONFIG", full, 1) == 0 ? 0 : complain("out of memory");
}

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

static bool is_report_word(const char *report)
{
    return strcmp(report, "none") == 0 || strcmp(report, "stderr") == 0;
}

static int set_report(const char *report)
{
    char full[3 * PATH_MAX];

    if (!is_report_word(report) && !report_file_name_is_valid(report))
        return complain("--report: found \"%s\", allowed is none, stderr or a file name, in which "
                        "%%p, %%h, %%r and %%%% may stand",
                        report);
    if (!is_report_word(report) && *report != '/') {
        if (!full_report_name(report, full, sizeof(full)) || strlen(full) >= SETTINGS_PATH_MAX)
            return complain("--report: the name is too long, allowed are fewer than %d bytes",
                            SETTINGS_PATH_MAX);
        report = full;
    }
    return setenv("CUDAPOOL_REPORT", report, 1) == 0 ? 0 : complain("out of memory");
}

/* --- the program --------------------------------------------------------------------------------
 */

/* Returns only where the program cannot be run. */
static int become(char **argv)
{
    execvp(argv[0], argv);
    int status = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
    complain("%s: %s", argv[0], strerror(errno));
    return status;
}

struct options {
    const char *config;
    const char *report;
};

/* Where the program stands in argv, or -1 after an error. */
static int read_options(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {
        {"config", required_argument, NULL, 'c'}, {"report", required_argument, NULL, 'r'}, {0}};
    int option;

    opterr = 0;
    /* "+": what follows the program's name is the program's; ":" tells a missing argument. */
    while ((option = getopt_long(argc, argv, "+:", known, NULL)) != -1) {
        if (option == 'c') {
            options->config = optarg;
        } else if (option == 'r') {
            options->report = optarg;
        } else {
            complain("run: %s %s; allowed are --config FILE and --report FILE",
                     option == ':' ? "a value is missing after" : "unknown option",
                     argv[optind - 1]);
            return -1;
        }
    }
    if (optind < argc)
        return optind;
    complain("run: no program given; usage: cudapool run [--config FILE] [--report FILE] [--] "
             "PROGRAM [ARGUMENTS]");
    return -1;
}

static int run(int argc, char **argv)
{
    /* A setting that comes by the environment is checked as well. */
    struct options options = {.config = getenv("CUDAPOOL_CONFIG")};
    int program = read_options(argc, argv, &options);
    int status = program < 0 ? EXIT_BAD_INPUT : 0;

    if (status == 0 && options.config != NULL && *options.config != '\0')
        status = set_config(options.config);
    if (status == 0 && options.report != NULL)
        status = set_report(options.report);
    if (status == 0)
        status = set_preload();
    return status != 0 ? status : become(argv + program);
}

const struct command run_command = {
    .name = "run",
    .summary = "run a program with memory from the pool",
    .help =
        "usage: cudapool run [--config FILE] [--report FILE] [--] PROGRAM [ARGUMENTS]\n"
        "\n"
        "Runs a program with " PRELOAD_NAME " in LD_PRELOAD, before what is there.\n"
        "\n"
        "  --config FILE   settings (see `cudapool check`); otherwise $CUDAPOOL_CONFIG, or the\n"
        "                  defaults. A file that is not valid is an error, and nothing is run.\n"
        "  --report FILE   none; stderr, for a readable table; or a file to write as JSON when\n"
        "                  the program ends. In its name, %p becomes the process's number, %h\n"
        "                  the host's name, %r the rank, and %% a percent sign.\n"
        "\n"
        "Exit status: the program's; 2 for bad input; 126 where the program cannot be run, 127\n"
        "where it cannot be found.\n",
    .run = run,
};
