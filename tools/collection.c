/*
 * Collecting the reports of a run (collection.h).
 */
#include "collection.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/report.h"
#include "core/report_json.h"
#include "formats.h"
#include "tool.h"

/* --- the directory ------------------------------------------------------------------------------
 */

static const char *temporary_directory(void)
{
    const char *directory = getenv("TMPDIR");

    return directory != NULL && *directory == '/' ? directory : "/tmp";
}

/* The pattern of the reports' names. A percent sign of the directory is not an escape. */
static bool report_pattern(const char *directory, char *pattern, size_t bytes)
{
    static const char names[] = "/%h-%p-%r.json";
    size_t length = 0;

    for (; *directory != '\0'; directory++) {
        if (length + 2 + sizeof(names) > bytes)
            return false;
        if (*directory == '%')
            pattern[length++] = '%';
        pattern[length++] = *directory;
    }
    memcpy(pattern + length, names, sizeof(names));
    return true;
}

bool collection_start(struct collection *collection)
{
    char pattern[SETTINGS_PATH_MAX];
    int length = snprintf(collection->directory, sizeof(collection->directory),
                          "%s/cudapool-XXXXXX", temporary_directory());

    if (length < 0 || (size_t)length >= sizeof(collection->directory) ||
        mkdtemp(collection->directory) == NULL) {
        complain("%s: the reports cannot be collected: %s", temporary_directory(), strerror(errno));
        return false;
    }
    if (report_pattern(collection->directory, pattern, sizeof(pattern)) &&
        setenv("CUDAPOOL_REPORT", pattern, 1) == 0)
        return true;
    rmdir(collection->directory);
    complain("%s: the reports cannot be collected: the name is too long", temporary_directory());
    return false;
}

/* --- reading and removing -----------------------------------------------------------------------
 */

struct reports {
    struct report *reports;
    size_t count;
};

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

static bool is_a_report(const char *name)
{
    size_t length = strlen(name);

    return length > 5 && strcmp(name + length - 5, ".json") == 0;
}

/* Whatever is in the directory goes; of a process that is still writing, also what it has written.
 */
static void take_file(const char *directory, const char *name, struct reports *all)
{
    char path[2 * PATH_MAX], error[ERROR_BYTES];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (is_a_report(name) && reports_read_json(path, keep_report, all, error, sizeof(error)) != 0)
        complain("a report is left out: %s", error);
    unlink(path);
}

static void take_reports(const char *directory, struct reports *all)
{
    DIR *entries = opendir(directory);
    const struct dirent *entry;

    if (entries == NULL) {
        complain("%s: the reports cannot be read: %s", directory, strerror(errno));
        return;
    }
    while ((entry = readdir(entries)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            take_file(directory, entry->d_name, all);
    closedir(entries);
    rmdir(directory);
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

    if (collection->file != NULL) {
        struct report_process *self = calloc(1, sizeof(*self));
        int status = -1;
        if (self != NULL) {
            report_describe_process(self, getenv);
            status = report_expand_file_name(collection->file, self, path, sizeof(path));
        }
        free(self);
        if (status != 0) {
            complain("%s: %s", collection->file, strerror(errno));
            return;
        }
    }
    if (reports_write_json(all->reports, all->count, path, error, sizeof(error)) != 0)
        complain("%s", error);
}

static int print_table(struct reports *all, FILE *out)
{
    struct summary summary = {0};
    int status = 0;

    if (all->count == 1)
        return report_print_table(&all->reports[0], out);
    for (size_t i = 0; i < all->count && status == 0; i++)
        status = summary_add(&summary, &all->reports[i]);
    if (status == 0)
        status = summary_finish(&summary);
    if (status == 0)
        print_summary_table(&summary, out);
    summary_free(&summary);
    return status;
}

/* In one piece, so that it does not mix with what others write to the same terminal or log. */
static void write_table(struct reports *all)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    int status = memory == NULL ? -1 : print_table(all, memory);

    if (memory != NULL && fclose(memory) != 0)
        status = -1;
    if (status == 0)
        fwrite(text, 1, bytes, stderr);
    else
        complain("the reports do not fit in memory");
    free(text);
}

void collection_deliver(struct collection *collection)
{
    struct reports all = {0};

    /* The exit status is the program's, also where nobody reads stderr any more. */
    signal(SIGPIPE, SIG_IGN);
    take_reports(collection->directory, &all);
    if (all.count > 0) {
        qsort(all.reports, all.count, sizeof(*all.reports), compare_reports);
        if (collection->as_json)
            write_json(collection, &all);
        else
            write_table(&all);
    }
    for (size_t i = 0; i < all.count; i++)
        report_free(&all.reports[i]);
    free(all.reports);
}
