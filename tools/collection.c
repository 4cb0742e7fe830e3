/*
 * Collecting the reports of a run (collection.h).
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

#include "complaint.h"
#include "core/figures/figures_file.h"
#include "core/figures/report.h"
#include "core/figures/report_json.h"
#include "figures_reader.h"
#include "formats.h"
#include "no_report.h"
#include "report_files.h"
#include "run_directory.h"
#include "terminal.h"

/* --- where processes report ---------------------------------------------------------------------
 */

/* The name of a file in the directory, or the directory's with an empty one; a percent sign of the
 * directory is not an escape. */
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

/* False where a name is too long. */
static bool tell_processes(const struct collection *collection,
                           const struct figures_settings *figures)
{
    const char *chosen = getenv("CUDAPOOL_FIGURES");
    bool wanted = figures->enabled && (chosen == NULL || strcmp(chosen, "none") != 0);
    char name[SETTINGS_PATH_MAX];

    if (!collection->each &&
        (!name_in(collection->directory.path, "/%h-%p-%r.json", name, sizeof(name)) ||
         setenv("CUDAPOOL_REPORT", name, 1) != 0))
        return false;
    return !wanted || (name_in(collection->directory.path, "", name, sizeof(name)) &&
                       setenv("CUDAPOOL_FIGURES", name, 1) == 0);
}

/* What processes are told, in the order of collection->environment. */
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
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        if (collection->environment[i] == NULL)
            unsetenv(told[i]);
        else
            setenv(told[i], collection->environment[i], 1);
    }
    /* One process then writes the file that was for all of them. */
    if (collection->file != NULL)
        setenv("CUDAPOOL_REPORT", collection->file, 1);
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
    if (tell_processes(collection, figures))
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

/* Where kept figures go, and its descriptor, or -1. */
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
    ssize_t copied;

    do
        copied = sendfile(to, from, NULL, 1 << 20);
    while (copied > 0);
    return (int)copied;
}

/* Into a file that did not exist. 0, or -1 with errno. */
static int copy_to(const char *path, int directory, const char *name)
{
    int from = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int to = from < 0 ? -1 : openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int status = to < 0 ? -1 : copy_file(from, to);

    if (to >= 0 && close(to) != 0)
        status = -1;
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

/* A process that wrote its report and kept its figures, or was killed between the two. */
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
    unsigned patience; /* milliseconds left to wait for processes that are just ending */
};

/* One that is still counting, or writing its report. */
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

static void take_file(struct collecting *to, const char *name, const char *path)
{
    char error[ERROR_BYTES];
    bool is_figures = name_ends_with(name, FIGURES_SUFFIX);

    if (is_figures)
        wait_for_end(to, path);
    if (report_files_read(path, is_figures ? keep_unless_reported : keep_report, &to->all, error,
                          sizeof(error)) != 0)
        complain("a report is left out: %s", error);
    if (is_figures && to->collection->kept.keep)
        keep_figures(&to->collection->kept, path, name);
}

/* The files whose names end so. */
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

/* First what processes said themselves. Then all goes, of a process that is still writing also what
 * it has written. */
static void take_reports(struct collecting *to)
{
    visit_files(to, ".json");
    visit_files(to, FIGURES_SUFFIX);
    run_directory_remove(&to->collection->directory);
}

/* By rank as a number, where there are ranks, and then by process. */
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

static void write_json(const struct collection *collection, const struct reports *all)
{
    char path[SETTINGS_PATH_MAX] = "/dev/stderr", error[ERROR_BYTES];

    if (collection->file != NULL && !expand_for_self(collection->file, path, sizeof(path)))
        return;
    if (reports_write_json(all->reports, all->count, path, error, sizeof(error)) != 0)
        complain("%s", error);
    else if (collection->file != NULL)
        complain("the report of %zu process%s is in %s", all->count, all->count == 1 ? "" : "es",
                 path);
}

static int print_table(struct reports *all, const struct look *look, FILE *out)
{
    struct summary summary = {0};
    int status = 0;

    if (all->count == 1)
        return print_report_table(&all->reports[0], look, out);
    for (size_t i = 0; i < all->count && status == 0; i++)
        status = summary_add(&summary, &all->reports[i]);
    if (status == 0)
        status = summary_finish(&summary);
    if (status == 0)
        print_summary_table(&summary, look, out);
    summary_free(&summary);
    return status;
}

/* In one piece, so that it does not mix with what others write to the same terminal or log. */
static void write_table(const struct collection *collection, struct reports *all)
{
    struct look look = terminal_look(stderr, collection->all);
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    int status = memory == NULL ? -1 : print_table(all, &look, memory);

    if (memory != NULL && fclose(memory) != 0)
        status = -1;
    if (status == 0)
        fwrite(text, 1, bytes, stderr);
    else
        complain("the reports do not fit in memory");
    free(text);
}

/* In place of a process that could not; one that still runs will. */
static void write_for(const struct collection *collection, const struct report *report)
{
    char path[SETTINGS_PATH_MAX], error[ERROR_BYTES];

    if (report->process.ending != REPORT_KILLED)
        return;
    if (report_expand_file_name(collection->file, &report->process, path, sizeof(path)) != 0)
        complain("%s: %s", collection->file, strerror(errno));
    else if (reports_write_json(report, 1, path, error, sizeof(error)) != 0)
        complain("%s", error);
}

/* How many files of this run have names that the file's may become. */
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

/* False where no process wrote one. */
static bool write_each(const struct collection *collection, struct reports *all)
{
    for (size_t i = 0; i < all->count; i++)
        write_for(collection, &all->reports[i]);
    size_t count = count_own_files(collection);
    if (count > 0)
        complain("%zu report%s as %s", count, count == 1 ? " is there," : "s are there, each",
                 collection->file);
    return count > 0;
}

/* False where there is none. */
static bool write_reports(const struct collection *collection, struct reports *all)
{
    if (collection->each)
        return write_each(collection, all);
    if (all->count == 0)
        return false;
    if (collection->as_json)
        write_json(collection, all);
    else
        write_table(collection, all);
    return true;
}

/* What became of the program itself; of what it started nobody knows. */
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

/* A program that could not be run has had its line. */
static bool was_run(const struct program_end *end)
{
    return end->program != 0 && end->status != EXIT_CANNOT_RUN && end->status != EXIT_NOT_FOUND;
}

void collection_deliver(struct collection *collection, const char *program,
                        const struct program_end *end)
{
    char reason[NO_REPORT_BYTES];

    /* The exit status is the program's, also where nobody reads stderr any more. */
    signal(SIGPIPE, SIG_IGN);
    struct reports all = collection_take(collection, end);
    if (!write_reports(collection, &all) && was_run(end)) {
        explain_no_report(program, reason);
        complain("no process took memory from the pool: %s", reason);
    }
    reports_free(&all);
}
