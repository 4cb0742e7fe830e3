/*
 * Files that reports come from (report_files.h).
 */
#include "report_files.h"

#include <stdio.h>
#include <stdlib.h>

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

int report_files_read(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes)
{
    if (figures_is_file(path))
        return visit_figures(path, visit, context, error, error_bytes);
    return reports_read_json(path, visit, context, error, error_bytes);
}
