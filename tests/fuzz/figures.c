/*
 * Files of figures (tools/figures_reader.h): any file is read, or refused with one line that names
 * it and with the report untouched. A report that was read can be printed, and written as JSON that
 * reads the same.
 */
#include "core/report_json.h"
#include "tools/figures_reader.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct report report, untouched;
    char error[1024];

    memory_file_set(&input, data, bytes);
    memset(&untouched, 0x5a, sizeof(untouched));
    report = untouched;
    if (figures_read_report(input.path, &report, error, sizeof(error)) != 0) {
        promise_error(error, input.path);
        PROMISE(is_untouched(&report, &untouched, sizeof(report)), "%s", error);
        return 0;
    }
    PROMISE(figures_is_file(input.path), "a report out of no figures");
    promise_table(&report);
    write_and_read_again(&report);
    report_free(&report);
    return 0;
}
