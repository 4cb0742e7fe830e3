/*
 * Prepares the environment of programs that run with the pool (pool_environment.h).
 */
#include "pool_environment.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/settings/config_json.h"
#include "core/settings/shipped_json.h"
#include "tools/command/complaint.h"
#include "tools/command/own_path.h"
#include "tools/command/sanitizer.h"

/* The Makefile defines this. The fallback is for tools that read the sources without the Makefile.
 */
#ifndef CUDAPOOL_LIBDIR
#define CUDAPOOL_LIBDIR "/usr/local/lib"
#endif

/* --- the preload object -------------------------------------------------------------------------
 */

static bool is_readable(const char *path)
{
    return access(path, R_OK) == 0;
}

/* Finds the first file that matches a pattern in a directory. The directory's name is taken
 * literally. */
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

/* Finds the preload object beside this command, as in a build; in a library directory beside the
 * command's own; or in CUDAPOOL_LIBDIR. */
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

/* Whether LD_PRELOAD's list has the path. */
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

/* Returns the new LD_PRELOAD, which the caller frees; NULL if memory is short. Sanitizer libraries
 * stay first where the present list begins with them. Otherwise the one that the program needs is
 * added first. The preload object comes next, unless the list has it already. */
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

int pool_environment_set_preload(const char *program)
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

/* value NULL: there was no memory for it. */
static int set_variable(const char *value)
{
    bool set = value != NULL && setenv("CUDAPOOL_CONFIG", value, 1) == 0;

    return set ? 0 : complain("out of memory");
}

/* Passes the settings on as text in CUDAPOOL_CONFIG, for settings that no file holds as they are. A
 * temporary file would have to outlive the last process of the job. */
static int pass_settings_as_text(const struct settings *settings)
{
    char *text = config_to_text(settings);
    int status = set_variable(text);

    free(text);
    return status;
}

/* Passes on the file's absolute path, which works in whatever directory the program runs. */
static int pass_settings_file(const char *config)
{
    char full[PATH_MAX];

    if (realpath(config, full) == NULL)
        return complain("%s: %s", config, strerror(errno));
    return set_variable(full);
}

/* Whether the program's processes can read the settings from this file themselves. A pipe has been
 * read to its end already. Settings that ship with this command are not looked up by name again:
 * they are passed on as text. */
static bool is_theirs_to_read(const char *config)
{
    struct stat status;

    return shipped_config_named(config) == NULL && strcmp(config, "-") != 0 &&
           stat(config, &status) == 0 && S_ISREG(status.st_mode);
}

/* told: a bool that becomes true when the reader complains. */
static void complain_and_note(const char *line, void *told)
{
    *(bool *)told = true;
    complain("%s", line);
}

int pool_environment_set_config(const struct pool_options *options, struct settings *settings)
{
    const char *config = options->config;
    bool is_given = config != NULL && *config != '\0', told = false;

    settings_defaults(settings);
    if (is_given && config_read_patiently(config, settings, complain_and_note, &told) != 0)
        return EXIT_BAD_INPUT;
    if (options->assignment_count > 0 && config_set(options->assignments, options->assignment_count,
                                                    settings, complain_and_note, &told) != 0)
        return EXIT_BAD_INPUT;
    /* The text omits settings that have no effect any more, so that no process complains again. */
    if (options->assignment_count > 0 || told ||
        (is_given && config[0] != '{' && !is_theirs_to_read(config)))
        return pass_settings_as_text(settings);
    if (!is_given)
        return unsetenv("CUDAPOOL_CONFIG");
    return config[0] == '{' ? set_variable(config) : pass_settings_file(config);
}

/* --- options ------------------------------------------------------------------------------------
 */

bool pool_options_take(struct pool_options *options, int option, const char *argument)
{
    if (option == 'c')
        options->config = argument;
    else if (option == 's')
        options->assignments[options->assignment_count++] = argument;
    else
        return false;
    return true;
}

int run_with_pool_options(int argc, char **argv, pool_options_command *command)
{
    /* The settings that the environment names are checked as well. */
    struct pool_options options = {.config = getenv("CUDAPOOL_CONFIG"),
                                   .assignments = calloc((size_t)argc, sizeof(char *))};
    int status =
        options.assignments == NULL ? complain("out of memory") : command(argc, argv, &options);

    free(options.assignments);
    return status;
}
