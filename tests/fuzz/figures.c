/*
 * Files of figures (tools/summary/figures_reader.h): any file is read, or refused with one line
 * that names it and with the report untouched. A report that was read can be printed, and written
 * as JSON that reads the same.
 */
#include "core/figures/report_json.h"
#include "tools/summary/figures_reader.h"

#include "reports.h"

static struct memory_file input, copy;

/* Bytes that are no UTF-8 don't come back from JSON. */
static void make_ascii(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text >= 0x80)
            *text = '?';
}

static void make_texts_ascii(struct report *report)
{
    make_ascii(report->process.host);
    make_ascii(report->process.rank);
    make_ascii(report->process.command);
    for (size_t i = 0; i < report->device_count; i++)
        make_ascii(report->devices[i].name);
}

static void write_and_read_again(struct report *report)
{
    static struct report again;
    char error[1024];

    memory_file_set(&copy, "", 0);
    PROMISE(report_write_json(report, copy.path, error, sizeof(error)) == 0, "%s", error);
    PROMISE(report_read_json(copy.path, &again, error, sizeof(error)) == 0, "%s", error);
    /* Of a number 15 digits are written. */
    report->settings = again.settings;
    promise_same_report(report, &again);
    report_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct report report;

    memory_file_set(&input, data, bytes);
    if (!promise_read(figures_read_report, input.path, &report))
        return 0;
    PROMISE(figures_is_file(input.path), "a report out of no figures");
    promise_table(&report);
    make_texts_ascii(&report);
    write_and_read_again(&report);
    report_free(&report);
    return 0;
}
