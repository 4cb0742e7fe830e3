/*
 * One run of a program (trial.h).
 *
 * What it writes goes to files without names, so that a program that writes much is not held up and
 * nothing is left behind.
 */
#include "trial.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collection.h"
#include "complaint.h"
#include "core/settings/config_json.h"
#include "pool_environment.h"

/* --- files --------------------------------------------------------------------------------------
 */

int trial_read_input(struct trial_input *input)
{
    char buffer[65536];
    ssize_t got = 0;

    input->copy = NULL;
    if (isatty(STDIN_FILENO) == 1)
        return 0;
    input->copy = tmpfile();
    if (input->copy == NULL)
        return complain("the program's input cannot be kept: %s", strerror(errno));
    while ((got = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0 || (got < 0 && errno == EINTR))
        if (got > 0)
            fwrite(buffer, 1, (size_t)got, input->copy);
    if (fflush(input->copy) != 0)
        return complain("the program's input cannot be kept: %s", strerror(errno));
    return 0;
}

/* A descriptor of the input from its start, or -1. */
static int open_input(const struct trial_input *input)
{
    char name[64];

    if (input->copy == NULL)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fileno(input->copy));
    return open(name, O_RDONLY | O_CLOEXEC);
}

/* --- with the pool, and without -----------------------------------------------------------------
 */

/* What the environment says of the pool, to be put back afterwards. */
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

/* Has the processes to come use the pool under these settings. 0, or the exit status. */
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

/* program_run leaves signals blocked, which the next program would inherit. */
static int run_with_signals(char **argv, const struct program_files *files, struct trial *trial)
{
    sigset_t mask;

    sigprocmask(SIG_SETMASK, NULL, &mask);
    double started = now();
    int status = EXIT_CANNOT_RUN;
    if (!program_run(argv, files, &trial->end, &status))
        complain("%s: %s", argv[0], strerror(errno));
    trial->seconds = now() - started;
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return status;
}

/* What its program and dynamic linker would have said on stderr is shown. */
static int show_why(const struct trial *trial)
{
    int c;

    rewind(trial->error);
    while ((c = fgetc(trial->error)) != EOF)
        fputc(c, stderr);
    return trial->end.program == 0 ? EXIT_CANNOT_RUN : trial->end.status;
}

static int run_in_files(char **argv, const struct trial_input *input, struct trial *trial)
{
    trial->out = tmpfile();
    trial->error = tmpfile();
    struct program_files files = {.in = open_input(input)};

    if (trial->out == NULL || trial->error == NULL || files.in < 0) {
        if (files.in >= 0)
            close(files.in);
        return complain("a file for the program's output cannot be made: %s", strerror(errno));
    }
    files.out = fileno(trial->out);
    files.error = fileno(trial->error);
    int status = run_with_signals(argv, &files, trial);
    close(files.in);
    return trial->end.program == 0 || status == EXIT_CANNOT_RUN || status == EXIT_NOT_FOUND
               ? show_why(trial)
               : 0;
}

/* The reports of all its processes as one. */
static int summarize(struct reports *reports, struct trial *trial)
{
    for (size_t i = 0; i < reports->count; i++)
        if (summary_add(&trial->summary, &reports->reports[i]) != 0)
            return complain("memory is short");
    if (summary_finish(&trial->summary) != 0)
        return complain("memory is short");
    trial->has_report = reports->count > 0;
    return 0;
}

static int run_with_pool(char **argv, const struct trial_input *input,
                         const struct settings *settings, struct trial *trial)
{
    struct collection collection = {.wanted = true};
    int status = prepare_pool(argv[0], settings);

    if (status != 0)
        return status;
    if (!collection_start(&collection, &settings->figures))
        return EXIT_BAD_INPUT;
    status = run_in_files(argv, input, trial);
    struct reports reports = collection_take(&collection, &trial->end);
    if (status == 0)
        status = summarize(&reports, trial);
    reports_free(&reports);
    return status;
}

static int run_without_pool(char **argv, const struct trial_input *input, struct trial *trial)
{
    const char *preload = getenv("LD_PRELOAD");

    if (preload != NULL && strstr(preload, "libcudapool_preload.so") != NULL)
        setenv("CUDAPOOL_DISABLE", "1", 1);
    unsetenv("CUDAPOOL_CONFIG");
    return run_in_files(argv, input, trial);
}

int trial_run(char **argv, const struct trial_input *input, const struct settings *settings,
              struct trial *trial)
{
    struct environment saved = save_environment();
    int status;

    memset(trial, 0, sizeof(*trial));
    status = settings == NULL ? run_without_pool(argv, input, trial)
                              : run_with_pool(argv, input, settings, trial);
    restore_environment(&saved);
    return status;
}

/* --- comparing ----------------------------------------------------------------------------------
 */

bool trials_ended_alike(const struct trial *one, const struct trial *other)
{
    return one->end.signal == other->end.signal && one->end.status == other->end.status;
}

/* A line of a file, in memory that getline has grown. */
struct line {
    FILE *file;
    char *text;
    size_t room, length;
    bool is_there;
};

static void read_line(struct line *line)
{
    ssize_t got = getline(&line->text, &line->room, line->file);

    line->is_there = got >= 0;
    line->length = got < 0 ? 0 : (size_t)got;
}

static bool is_same(const struct line *one, const struct line *other)
{
    return one->is_there == other->is_there && one->length == other->length &&
           (one->length == 0 || memcmp(one->text, other->text, one->length) == 0);
}

/* Past the digits and points of a number. */
static size_t skip_number(const struct line *line, size_t i)
{
    while (i < line->length && strchr("0123456789.", line->text[i]) != NULL &&
           line->text[i] != '\0')
        i++;
    return i;
}

static bool is_digit(const struct line *line, size_t i)
{
    return i < line->length && line->text[i] >= '0' && line->text[i] <= '9';
}

/* The same but for its numbers, and the spaces that put them into columns. */
static bool is_same_without_numbers(const struct line *one, const struct line *other)
{
    size_t i = 0, j = 0;

    if (one->is_there != other->is_there)
        return false;
    while (i < one->length || j < other->length) {
        while (i < one->length && one->text[i] == ' ')
            i++;
        while (j < other->length && other->text[j] == ' ')
            j++;
        bool digits = is_digit(one, i) && is_digit(other, j);
        if (!digits && (i >= one->length || j >= other->length || one->text[i] != other->text[j]))
            return i >= one->length && j >= other->length;
        i = digits ? skip_number(one, i) : i + 1;
        j = digits ? skip_number(other, j) : j + 1;
    }
    return true;
}

static void cut_line(const struct line *line, char text[TRIAL_LINE_BYTES])
{
    size_t kept = line->length < TRIAL_LINE_BYTES - 4 ? line->length : TRIAL_LINE_BYTES - 4;

    for (size_t i = 0; i < kept; i++) {
        unsigned char c = (unsigned char)line->text[i];
        text[i] = (char)(c < 0x20 || c == 0x7f ? ' ' : c);
    }
    while (kept > 0 && text[kept - 1] == ' ')
        kept--;
    snprintf(text + kept, TRIAL_LINE_BYTES - kept, "%s", line->length > kept + 4 ? "..." : "");
}

/* Whether the lines tell that the runs differ; again: of a run that should be as the first. */
static bool tell_apart(const struct line *one, const struct line *other, const struct line *again)
{
    bool varies = again->file == NULL || !is_same(one, again);

    return !is_same(one, other) && !(varies && is_same_without_numbers(one, other));
}

bool trials_differ(const struct trial *one, const struct trial *again, const struct trial *other,
                   struct trial_difference *difference)
{
    struct line lines[3] = {
        {.file = one->out}, {.file = other->out}, {.file = again == NULL ? NULL : again->out}};
    bool differ;

    for (int i = 0; i < 3; i++)
        if (lines[i].file != NULL)
            rewind(lines[i].file);
    difference->line = 0;
    do {
        for (int i = 0; i < 3; i++)
            if (lines[i].file != NULL)
                read_line(&lines[i]);
        difference->line++;
        differ = tell_apart(&lines[0], &lines[1], &lines[2]);
    } while (!differ && (lines[0].is_there || lines[1].is_there));
    for (int i = 0; i < 3; i++) {
        if (i < 2) {
            difference->is_there[i] = lines[i].is_there;
            cut_line(&lines[i], difference->text[i]);
        }
        free(lines[i].text);
    }
    return differ;
}

void trial_free(struct trial *trial)
{
    if (trial->out != NULL)
        fclose(trial->out);
    if (trial->error != NULL)
        fclose(trial->error);
    summary_free(&trial->summary);
    memset(trial, 0, sizeof(*trial));
}
