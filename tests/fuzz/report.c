/*
 * Report files (core/figures/report_json.h): any file is read, or refused with one line that names
 * it and with the report untouched. A report that was read can be printed, and written to a file
 * that reads the same.
 */
#include "core/figures/report_json.h"

#include "reports.h"

static struct memory_file input, copy;

static void write_and_read_again(const struct report *report)
{
    static struct report again;
    char error[1024];

    memory_file_set(&copy, "", 0);
    PROMISE(report_write_json(report, copy.path, error, sizeof(error)) == 0, "%s", error);
    PROMISE(report_read_json(copy.path, &again, error, sizeof(error)) == 0, "%s", error);
    promise_same_report(report, &again);
    report_free(&again);
}

/* A file may hold several reports: those before a bad one are visited. */
static int visit(struct report *report, void *context)
{
    promise_table(report);
    ++*(unsigned *)context;
    return 0;
}

static void read_several(const char *path, bool is_one)
{
    char error[1024];
    unsigned visited = 0;

    if (reports_read_json(path, visit, &visited, error, sizeof(error)) != 0) {
        promise_error(error, path);
        PROMISE(!is_one, "%s", error);
    }
    PROMISE(!is_one || visited == 1, "%u reports", visited);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct report report;

    memory_file_set(&input, data, bytes);
    if (!promise_read(report_read_json, input.path, &report)) {
        read_several(input.path, false);
        return 0;
    }
    read_several(input.path, true);
    promise_table(&report);
    write_and_read_again(&report);
    report_free(&report);
    return 0;
}
