/*
 * Runs a program once (trial.h).
 *
 * The program's output goes to unnamed files. A program that writes much is therefore not held up,
 * and no file is left afterwards.
 */
#include "trial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/settings/config_json.h"
#include "tools/command/complaint.h"
#include "tools/report/collection.h"
#include "tools/run/pool_environment.h"

/* How much of the program's stderr is in its last words. */
#define LAST_BYTES 4096
#define LAST_LINES 10

/* --- its input ----------------------------------------------------------------------------------
 */

static int complain_of_input(void)
{
    return complain("the program's input cannot be kept: %s", strerror(errno));
}

/* Tells the user what the command waits for, if stdin has no input for a second. */
static void tell_of_waiting(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    if (poll(&input, 1, 1000) == 0)
        fputs("cudapool: try: each run gets the same input: reading stdin to its end; with "
              "</dev/null there is none\n",
              stderr);
}

int trial_read_input(struct trial_setup *setup)
{
    char buffer[65536];
    ssize_t got = 0;

    setup->input = NULL;
    if (isatty(STDIN_FILENO) == 1)
        return 0;
    setup->input = tmpfile();
    if (setup->input == NULL)
        return complain_of_input();
    tell_of_waiting();
    while ((got = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0 || (got < 0 && errno == EINTR))
        if (got > 0)
            fwrite(buffer, 1, (size_t)got, setup->input);
    return fflush(setup->input) == 0 ? 0 : complain_of_input();
}

/* Returns a new descriptor of the input, at its start, or -1. */
static int open_input(const struct trial_setup *setup)
{
    char name[64];

    if (setup->input == NULL)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fileno(setup->input));
    return open(name, O_RDONLY | O_CLOEXEC);
}

/* --- the environment ----------------------------------------------------------------------------
 */

/* The variables of the environment that a trial changes, as they were before. */
struct environment {
    char *preload, *config, *report, *figures, *disable;
};

static char *copy_of_variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL ? NULL : strdup(value);
}

static struct environment save_environment(void)
{
    return (struct environment){copy_of_variable("LD_PRELOAD"), copy_of_variable("CUDAPOOL_CONFIG"),
                                copy_of_variable("CUDAPOOL_REPORT"),
                                copy_of_variable("CUDAPOOL_FIGURES"),
                                copy_of_variable("CUDAPOOL_DISABLE")};
}

static void put_back(const char *name, char *value)
{
    if (value == NULL)
        unsetenv(name);
    else
        setenv(name, value, 1);
    free(value);
}

static void restore_environment(struct environment *saved)
{
    put_back("LD_PRELOAD", saved->preload);
    put_back("CUDAPOOL_CONFIG", saved->config);
    put_back("CUDAPOOL_REPORT", saved->report);
    put_back("CUDAPOOL_FIGURES", saved->figures);
    put_back("CUDAPOOL_DISABLE", saved->disable);
}

/* Sets the environment so that the program uses the pool under these settings. Returns 0, or the
 * exit status. */
static int prepare_pool(const char *program, const struct settings *settings)
{
    char *text = config_to_text(settings);
    int status = text == NULL || setenv("CUDAPOOL_CONFIG", text, 1) != 0
                     ? complain("out of memory")
                     : pool_environment_set_preload(program);

    free(text);
    return status;
}

/* --- a run --------------------------------------------------------------------------------------
 */

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Returns the last LAST_LINES lines of the text. */
static const char *last_lines(const char *text)
{
    const char *start = text + strlen(text);

    for (int lines = 0; start > text; start--)
        if (start[-1] == '\n' && start[0] != '\0' && ++lines == LAST_LINES)
            break;
    return start;
}

/* Makes each \r a new line, because progress bars return to the start of their line. Other control
 * characters are escaped when the text is shown. */
static void divide_into_lines(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '\r')
            text[i] = '\n';
        else if (text[i] == '\t' || text[i] == '\0')
            text[i] = ' ';
}

/* Returns NULL if nothing was written or memory is short. */
static char *last_words_of(FILE *error)
{
    char text[LAST_BYTES + 1];
    long bytes = fseek(error, 0, SEEK_END) == 0 ? ftell(error) : 0;

    if (bytes <= 0 || fseek(error, bytes > LAST_BYTES ? bytes - LAST_BYTES : 0, SEEK_SET) != 0)
        return NULL;
    size_t got = fread(text, 1, LAST_BYTES, error);
    text[got] = '\0';
    divide_into_lines(text, got);
    return strdup(last_lines(text));
}

/* Runs the program with the files of apart. Returns 0, or the exit status. */
static int run_apart(struct trial_setup *setup, struct program_apart *apart, struct trial *trial)
{
    int ignored;
    double started = now();

    if (!program_run(setup->program, apart, &trial->end, &ignored)) {
        complain("%s: %s", setup->program[0], strerror(errno));
        return EXIT_CANNOT_RUN;
    }
    trial->seconds = now() - started;
    if (apart->ended_by != 0)
        setup->ended_by = apart->ended_by;
    return 0;
}

static int run_on_files(struct trial_setup *setup, FILE *out, FILE *error, struct trial *trial)
{
    struct program_apart apart = {.in = open_input(setup),
                                  .out = fileno(out),
                                  .error = fileno(error),
                                  .mask = &setup->mask,
                                  .look = setup->look,
                                  .context = setup->context};

    if (apart.in < 0)
        return complain_of_input();
    int status = run_apart(setup, &apart, trial);
    close(apart.in);
    if (status == 0)
        status = outputs_append(&setup->kept, out, &trial->output);
    if (status == 0 && trial_failed(trial))
        trial->last_words = last_words_of(error);
    return status;
}

static int run_in_files(struct trial_setup *setup, struct trial *trial)
{
    FILE *out = tmpfile(), *error = tmpfile();
    int status =
        out == NULL || error == NULL
            ? complain("a file for the program's output cannot be made: %s", strerror(errno))
            : run_on_files(setup, out, error, trial);

    if (out != NULL)
        fclose(out);
    if (error != NULL)
        fclose(error);
    return status;
}

/* Merges the reports of all processes into the trial's summary. */
static int summarize(struct reports *reports, struct trial *trial)
{
    for (size_t i = 0; i < reports->count; i++)
        if (summary_add(&trial->summary, &reports->reports[i]) != 0)
            return complain("memory is short");
    return summary_finish(&trial->summary) == 0 ? 0 : complain("memory is short");
}

static int run_with_pool(struct trial_setup *setup, const struct settings *settings,
                         struct trial *trial)
{
    struct collection collection = {.wanted = true};
    int status = prepare_pool(setup->program[0], settings);

    if (status != 0)
        return status;
    if (!collection_start(&collection, &settings->figures))
        return EXIT_BAD_INPUT;
    status = run_in_files(setup, trial);
    struct reports reports = collection_take(&collection, &trial->end);
    if (status == 0)
        status = summarize(&reports, trial);
    reports_free(&reports);
    collection_free(&collection);
    return status;
}

static int run_without_pool(struct trial_setup *setup, struct trial *trial)
{
    const char *preload = getenv("LD_PRELOAD");

    if (preload != NULL && strstr(preload, "libcudapool_preload.so") != NULL)
        setenv("CUDAPOOL_DISABLE", "1", 1);
    unsetenv("CUDAPOOL_CONFIG");
    return run_in_files(setup, trial);
}

int trial_run(struct trial_setup *setup, const struct settings *settings, struct trial *trial)
{
    struct environment saved = save_environment();
    sigset_t mask;

    memset(trial, 0, sizeof(*trial));
    /* program_run leaves signals blocked, so the mask is restored below. */
    sigprocmask(SIG_SETMASK, NULL, &mask);
    int status =
        settings == NULL ? run_without_pool(setup, trial) : run_with_pool(setup, settings, trial);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    restore_environment(&saved);
    return status;
}

bool trial_was_not_run(const struct trial *trial)
{
    return trial->end.signal == 0 &&
           (trial->end.status == EXIT_CANNOT_RUN || trial->end.status == EXIT_NOT_FOUND);
}

bool trial_failed(const struct trial *trial)
{
    return trial->end.signal != 0 || trial->end.status != 0;
}

bool trials_ended_alike(const struct trial *one, const struct trial *other)
{
    return one->end.signal == other->end.signal && one->end.status == other->end.status;
}

void trial_free(struct trial *trial)
{
    free(trial->last_words);
    summary_free(&trial->summary);
    memset(trial, 0, sizeof(*trial));
}
