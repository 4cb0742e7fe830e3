/*
 * Reads files of reports and of figures (report_files.h).
 */
#include "report_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures_reader.h"

static int visit_figures(const char *path, report_visitor *visit, void *context, char *error,
                         size_t error_bytes)
{
    struct report *report = calloc(1, sizeof(*report));

    if (report == NULL) {
        snprintf(error, error_bytes, "%s: the report does not fit in memory", path);
        return -1;
    }
    int status = figures_read_report(path, report, error, error_bytes);
    if (status == 0 && visit(report, context) != 0) {
        snprintf(error, error_bytes, "%s: memory is short", path);
        status = -1;
    }
    report_free(report);
    free(report);
    return status;
}

/* --- paths made by cudapool run -----------------------------------------------------------------
 */

/* Whether the directory has a path like those that `cudapool run` makes to collect reports:
 * BASE/cudapool-XXXXXX. */
static bool is_of_a_run(const char *directory)
{
    static const char prefix[] = "cudapool-";
    const char *name = strrchr(directory, '/');

    if (name == NULL || strncmp(name + 1, prefix, sizeof(prefix) - 1) != 0)
        return false;
    return strlen(name + sizeof(prefix)) == 6;
}

/* Removes from the settings the paths that `cudapool run` chose: the directory of figures, and a
 * report file below it. No user chose them. With such a file, all settings of the report become the
 * defaults. */
static void forget_own_paths(struct settings *settings)
{
    struct settings defaults;
    const char *directory = settings->figures.directory;
    size_t length = strlen(directory);

    if (!is_of_a_run(directory))
        return;
    settings_defaults(&defaults);
    if (strncmp(settings->report.file, directory, length) == 0 &&
        settings->report.file[length] == '/')
        settings->report = defaults.report;
    memset(settings->figures.directory, 0, sizeof(settings->figures.directory));
}

struct visitor {
    report_visitor *visit;
    void *context;
};

static int visit_as_chosen(struct report *report, void *context)
{
    const struct visitor *visitor = context;

    forget_own_paths(&report->settings);
    return visitor->visit(report, visitor->context);
}

int report_files_read(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes)
{
    struct visitor visitor = {visit, context};

    if (figures_is_file(path))
        return visit_figures(path, visit_as_chosen, &visitor, error, error_bytes);
    return reports_read_json(path, visit_as_chosen, &visitor, error, error_bytes);
}
