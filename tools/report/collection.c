/*
 * Collects the reports of a run (collection.h): tells processes where to report, reads what they
 * wrote, and writes the result.
 */
#include "collection.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/writing.h"
#include "core/figures/figures_file.h"
#include "core/figures/report.h"
#include "core/figures/report_file_json.h"
#include "core/figures/report_json.h"
#include "formats.h"
#include "tools/command/complaint.h"
#include "tools/command/no_report.h"
#include "tools/command/terminal.h"
#include "tools/summary/figures_reader.h"
#include "tools/summary/report_files.h"
#include "tools/summary/run_directory.h"

/* --- where processes report ---------------------------------------------------------------------
 */

/* Writes a pattern (core/base/file_pattern.h) for a file in the directory; file is empty or begins
 * with a slash. Doubles percent signs of the directory's name, so that they are not escapes. False
 * if name is too small. */
static bool name_in(const char *directory, const char *file, char *name, size_t bytes)
{
    size_t length = 0;

    for (; *directory != '\0'; directory++) {
        if (length + 3 + strlen(file) > bytes)
            return false;
        if (*directory == '%')
            name[length++] = '%';
        name[length++] = *directory;
    }
    memcpy(name + length, file, strlen(file) + 1);
    return true;
}

/* Whether each process writes its own file. */
static bool write_themselves(const struct collection *collection)
{
    return collection->each && collection->format == JSON;
}

static bool wants_figures(const struct figures_settings *figures)
{
    const char *chosen = getenv("CUDAPOOL_FIGURES");

    return figures->enabled && (chosen == NULL || strcmp(chosen, "none") != 0);
}

/* Sets the environment variables for the processes. False if a name is too long, or if memory is
 * short. */
static bool tell_processes(const struct collection *collection)
{
    char name[SETTINGS_PATH_MAX];

    if (!write_themselves(collection) &&
        (!name_in(collection->directory.path, "/%h-%p-%r.json", name, sizeof(name)) ||
         setenv("CUDAPOOL_REPORT", name, 1) != 0))
        return false;
    return !collection->has_figures ||
           (name_in(collection->directory.path, "", name, sizeof(name)) &&
            setenv("CUDAPOOL_FIGURES", name, 1) == 0);
}

/* The variables that tell processes where to report, in the order of collection->environment. */
static const char *const told[] = {"CUDAPOOL_REPORT", "CUDAPOOL_FIGURES"};

static void remember_environment(struct collection *collection)
{
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        const char *value = getenv(told[i]);
        collection->environment[i] = value == NULL ? NULL : strdup(value);
    }
}

void collection_abandon(struct collection *collection)
{
    char *own;

    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        if (collection->environment[i] == NULL)
            unsetenv(told[i]);
        else
            setenv(told[i], collection->environment[i], 1);
    }
    /* Nothing is collected, so a process of the program writes the file that was meant for all. A
     * process writes only JSON. */
    if (collection->file != NULL &&
        asprintf(&own, "%s%s", collection->file, collection->format == JSON ? "" : ".json") > 0) {
        setenv("CUDAPOOL_REPORT", own, 1);
        free(own);
    }
    run_directory_remove(&collection->directory);
}

bool collection_start(struct collection *collection, const struct figures_settings *figures)
{
    clock_gettime(CLOCK_REALTIME_COARSE, &collection->started);
    if (figures->keep)
        collection->kept = *figures;
    if (!run_directory_make(figures, &collection->directory))
        return false;
    remember_environment(collection);
    collection->has_figures = wants_figures(figures);
    if (tell_processes(collection))
        return true;
    collection_abandon(collection);
    complain("%s: the reports cannot be collected: the name is too long",
             collection->directory.path);
    return false;
}

void collection_free(struct collection *collection)
{
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++)
        free(collection->environment[i]);
    free(collection->file);
}

/* --- keeping figures ----------------------------------------------------------------------------
 */

/* Opens the directory to which figures are copied, and writes its path to path. Returns the
 * descriptor, or -1. */
static int open_kept(const struct figures_settings *kept, char *path, size_t bytes)
{
    if (kept->directory[0] == '\0')
        return figures_file_open_directory(path, bytes);
    return expand_for_self(kept->directory, path, bytes)
               ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
               : -1;
}

static int copy_file(int from, int to)
{
    ssize_t copied = 1;

    while (copied > 0)
        copied = sendfile(to, from, NULL, 1 << 20);
    return (int)copied;
}

/* Copies a file into a new one, which must not exist yet. A copy that fails leaves no file. Returns
 * 0, or -1 with errno. */
static int copy_to(const char *path, int directory, const char *name)
{
    int from = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int to = from < 0 ? -1 : openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int status = to < 0 ? -1 : copy_file(from, to);

    if (to >= 0 && close(to) != 0)
        status = -1;
    if (to >= 0 && status != 0)
        unlinkat(directory, name, 0);
    if (from >= 0)
        close(from);
    return status;
}

static void keep_figures(const struct figures_settings *kept, const char *path, const char *name)
{
    char to[PATH_MAX] = "";
    int directory = open_kept(kept, to, sizeof(to));

    if (directory < 0 || copy_to(path, directory, name) != 0)
        complain("%s/%s: the figures cannot be kept: %s", to, name, strerror(errno));
    if (directory >= 0)
        close(directory);
}

/* --- reading and removing -----------------------------------------------------------------------
 */

static int keep_report(struct report *report, void *context)
{
    struct reports *all = context;
    struct report *longer = realloc(all->reports, (all->count + 1) * sizeof(*longer));

    if (longer == NULL)
        return -1;
    all->reports = longer;
    all->reports[all->count++] = *report;
    report->devices = NULL;
    report->device_count = 0;
    return 0;
}

static bool has_requests(const struct report *report)
{
    for (size_t i = 0; i < report->device_count; i++)
        for (size_t j = 0; j < report->devices[i].kind_count; j++)
            if (report->devices[i].kinds[j].totals.requests > 0)
                return true;
    return false;
}

/* Whether the process has a report among these. A process has a report and figures if it was to
 * keep its figures, or if it was killed before it removed them. */
static bool is_reported(const struct reports *all, const struct report_process *process)
{
    for (size_t i = 0; i < all->count; i++) {
        const struct report_process *other = &all->reports[i].process;
        if (other->pid == process->pid && other->started_nanoseconds != 0 &&
            other->started_nanoseconds == process->started_nanoseconds)
            return true;
    }
    return false;
}

static int keep_unless_reported(struct report *report, void *context)
{
    if (!has_requests(report) || is_reported(context, &report->process))
        return 0;
    return keep_report(report, context);
}

struct collecting {
    struct collection *collection;
    struct reports all;
    unsigned patience; /* milliseconds left to wait for processes that are exiting */
};

/* Whether the figures are those of a process that is exiting. Such a process may still change its
 * figures or write its report. */
static bool is_just_ending(const char *path)
{
    struct figures_copy copy;
    char error[ERROR_BYTES];

    if (figures_read(path, &copy, error, sizeof(error)) != 0)
        return false;
    bool going = figures_life(&copy) == FIGURES_GOING;
    figures_free(&copy);
    return going;
}

static void wait_for_end(struct collecting *to, const char *path)
{
    static const struct timespec millisecond = {0, 1000000};

    for (; to->patience > 0 && is_just_ending(path); to->patience--)
        nanosleep(&millisecond, NULL);
}

/* Reading a FIFO that the program left in the directory would never end. */
static bool is_regular_file(const char *path)
{
    struct stat status;

    return lstat(path, &status) == 0 && S_ISREG(status.st_mode);
}

static void take_file(struct collecting *to, const char *name, const char *path)
{
    char error[ERROR_BYTES];
    bool is_figures = name_ends_with(name, FIGURES_SUFFIX);

    if (!is_regular_file(path)) {
        complain("a report is left out: %s: is not a file, allowed is a regular file", path);
        return;
    }
    if (is_figures)
        wait_for_end(to, path);
    if (report_files_read(path, is_figures ? keep_unless_reported : keep_report, &to->all, error,
                          sizeof(error)) != 0)
        complain("a report is left out: %s", error);
    if (is_figures && to->collection->kept.keep)
        keep_figures(&to->collection->kept, path, name);
}

/* Takes the files in the directory whose names end with `end`. */
static void visit_files(struct collecting *to, const char *end)
{
    const char *directory = to->collection->directory.path;
    DIR *entries = opendir(directory);
    const struct dirent *entry;
    char path[2 * PATH_MAX];

    if (entries == NULL) {
        complain("%s: the reports cannot be read: %s", directory, strerror(errno));
        return;
    }
    while ((entry = readdir(entries)) != NULL) {
        if (!name_ends_with(entry->d_name, end))
            continue;
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        take_file(to, entry->d_name, path);
    }
    closedir(entries);
}

/* Takes the processes' own reports first, because figures are skipped if there is a report. Then
 * removes the directory, including what a running process has written to it. */
static void take_reports(struct collecting *to)
{
    visit_files(to, ".json");
    visit_files(to, FIGURES_SUFFIX);
    run_directory_remove(&to->collection->directory);
}

/* Orders by rank and then by pid. Ranks are compared by length first, which orders them as numbers.
 */
static int compare_reports(const void *one, const void *other)
{
    const struct report_process *a = &((const struct report *)one)->process;
    const struct report_process *b = &((const struct report *)other)->process;
    size_t lengths[] = {strlen(a->rank), strlen(b->rank)};

    if (lengths[0] != lengths[1])
        return lengths[0] < lengths[1] ? -1 : 1;
    int order = strcmp(a->rank, b->rank);
    return order != 0 ? order : (a->pid > b->pid) - (a->pid < b->pid);
}

/* --- delivering ---------------------------------------------------------------------------------
 */

/* Returns the reports as text, which the caller frees. NULL after a complaint. */
static char *make_text(enum report_format format, const struct report *reports, size_t count,
                       const struct look *look, size_t *bytes)
{
    char *text = NULL;
    FILE *memory = open_memstream(&text, bytes);
    int status = memory == NULL ? -1 : print_run_as(format, reports, count, look, memory);

    if (memory != NULL && fclose(memory) != 0)
        status = -1;
    if (status == 0)
        return text;
    complain("the reports do not fit in memory");
    free(text);
    return NULL;
}

/* Writes the table in one piece, so that it does not mix with what others write to the same
 * terminal or log. */
static void write_table(const struct collection *collection, const struct report *reports,
                        size_t count)
{
    struct look look = terminal_look(stderr, collection->all);
    size_t bytes = 0;
    char *text = make_text(TABLE, reports, count, &look, &bytes);

    if (text != NULL)
        fwrite(text, 1, bytes, stderr);
    free(text);
}

/* Writes the reports to one file. False after a complaint. */
static bool write_file(const struct collection *collection, const struct report *reports,
                       size_t count, const char *path)
{
    size_t bytes = 0;
    char *text = make_text(collection->format, reports, count, &look_of_files, &bytes);
    int status = text == NULL
                     ? -1
                     : report_file_write(path, text, bytes, writing_deadline(WRITING_PATIENCE));

    if (text != NULL && status != 0)
        complain("%s: the report cannot be written: %s", path, strerror(errno));
    free(text);
    return status == 0;
}

/* Writes one file for all processes. False if the table on stderr was asked for, or after a
 * complaint. */
static bool write_one_file(const struct collection *collection, const struct reports *all)
{
    char path[SETTINGS_PATH_MAX] = "/dev/stderr";

    if (collection->file == NULL && collection->format == TABLE)
        return false;
    if (collection->file != NULL && !expand_for_self(collection->file, path, sizeof(path)))
        return false;
    if (!write_file(collection, all->reports, all->count, path))
        return false;
    if (!report_file_is_direct(path))
        complain("the report of %zu process%s is in %s", all->count, all->count == 1 ? "" : "es",
                 path);
    return true;
}

/* Writes the report file of one process, unless the process writes its own. */
static void write_for(const struct collection *collection, const struct report *report)
{
    char path[SETTINGS_PATH_MAX];

    /* A process that still runs will write its report. One that exited has written it, or, if it
     * could not, printed it on stderr. */
    if (write_themselves(collection) && report->process.ending != REPORT_KILLED)
        return;
    if (report_expand_file_name(collection->file, &report->process, path, sizeof(path)) != 0)
        complain("%s: %s", collection->file, strerror(errno));
    else if (write_file(collection, report, 1, path))
        return;
    write_table(collection, report, 1);
}

/* Counts the files of this run: their names match collection->file with any values for its escapes,
 * and they were changed after the run started. */
static size_t count_own_files(const struct collection *collection)
{
    char pattern[2 * SETTINGS_PATH_MAX];
    size_t length = 0, count = 0;
    struct stat status;
    glob_t found;

    for (const char *c = collection->file; *c != '\0'; c++) {
        bool is_escape = *c == '%' && *++c != '%';
        if (!is_escape && strchr("*?[\\", *c) != NULL)
            pattern[length++] = '\\';
        pattern[length++] = (char)(is_escape ? '*' : *c);
    }
    pattern[length] = '\0';
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            count += stat(found.gl_pathv[i], &status) == 0 &&
                     (status.st_mtim.tv_sec > collection->started.tv_sec ||
                      (status.st_mtim.tv_sec == collection->started.tv_sec &&
                       status.st_mtim.tv_nsec >= collection->started.tv_nsec));
    globfree(&found);
    return count;
}

/* Writes a file for each process. False if no process had a report. */
static bool write_each(const struct collection *collection, const struct reports *all)
{
    for (size_t i = 0; i < all->count; i++)
        write_for(collection, &all->reports[i]);
    size_t count = count_own_files(collection);
    if (count > 0)
        complain("%zu report%s as %s", count, count == 1 ? " is there," : "s are there, each",
                 collection->file);
    return count > 0 || all->count > 0;
}

/* Writes the reports as was asked for. False if there is none. */
static bool write_reports(const struct collection *collection, const struct reports *all)
{
    if (collection->each)
        return write_each(collection, all);
    if (all->count == 0)
        return false;
    /* If the file cannot be written, the table is printed, so that nothing is lost. */
    if (!write_one_file(collection, all))
        write_table(collection, all->reports, all->count);
    return true;
}

/* Records how the program itself ended. How the processes that it started ended is not known. */
static void tell_end(struct reports *all, const struct program_end *end)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->reports[i].process.pid == end->program)
            all->reports[i].process.exit =
                (struct report_exit){.known = true, .status = end->status, .signal = end->signal};
}

struct reports collection_take(struct collection *collection, const struct program_end *end)
{
    struct collecting collecting = {.collection = collection, .patience = 500};
    struct reports *all = &collecting.all;

    take_reports(&collecting);
    tell_end(all, end);
    if (all->count > 0)
        qsort(all->reports, all->count, sizeof(*all->reports), compare_reports);
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        free(collection->environment[i]);
        collection->environment[i] = NULL;
    }
    return *all;
}

void reports_free(struct reports *reports)
{
    for (size_t i = 0; i < reports->count; i++)
        report_free(&reports->reports[i]);
    free(reports->reports);
    *reports = (struct reports){NULL, 0};
}

/* Whether the program was run, as far as its exit status tells. If it was not run, there has been a
 * complaint already. */
static bool was_run(const struct program_end *end)
{
    return end->program != 0 && end->status != EXIT_CANNOT_RUN && end->status != EXIT_NOT_FOUND;
}

void collection_deliver(struct collection *collection, const char *program,
                        const struct program_end *end)
{
    char reason[NO_REPORT_BYTES];

    /* Without SIGPIPE, the exit status stays the program's even if nobody reads stderr any more. */
    signal(SIGPIPE, SIG_IGN);
    struct reports all = collection_take(collection, end);
    if (!write_reports(collection, &all) && was_run(end)) {
        if (collection->has_figures)
            explain_no_report(program, reason);
        else
            explain_no_report_without_figures(program, end, reason);
        complain("%s: %s",
                 collection->has_figures ? "no process took memory from the pool"
                                         : "there is no report",
                 reason);
    }
    reports_free(&all);
}
