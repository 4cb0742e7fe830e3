/*
 * Prints the reports of a run in each format (report_formats.h).
 *
 * print_report_table and summary_add take the devices of a report, so they get copies of the
 * reports.
 */
#include "report_formats.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/scratch.h"
#include "core/figures/report_json.h"
#include "formats.h"

const char *const format_names[FORMATS] = {"table", "json", "csv", "html", "prometheus", "trace"};

/* The first suffix that fits is used. */
static const struct {
    const char *suffix;
    enum report_format format;
} suffixes[] = {
    {".trace.json", TRACE}, {".trace", TRACE}, {".json", JSON}, {".csv", CSV},
    {".html", HTML},        {".htm", HTML},    {".txt", TABLE}, {".prom", PROMETHEUS},
};
#define SUFFIXES (sizeof(suffixes) / sizeof(suffixes[0]))

bool format_of_file(const char *name, enum report_format *format)
{
    size_t length = strlen(name);

    for (size_t i = 0; i < SUFFIXES; i++) {
        size_t end = strlen(suffixes[i].suffix);
        if (length <= end || strcmp(name + length - end, suffixes[i].suffix) != 0)
            continue;
        *format = suffixes[i].format;
        return true;
    }
    return false;
}

/* --- copies -------------------------------------------------------------------------------------
 */

/* Returns NULL if count is 0 or memory is short. */
static void *copy_array(const void *array, size_t count, size_t size)
{
    void *copy = count == 0 ? NULL : scratch_calloc(count, size);

    if (copy != NULL)
        memcpy(copy, array, count * size);
    return copy;
}

static bool copy_kind(struct report_kind *kind)
{
    kind->buckets = copy_array(kind->buckets, kind->bucket_count, sizeof(*kind->buckets));
    if (kind->buckets == NULL && kind->bucket_count > 0)
        kind->bucket_count = 0;
    return kind->buckets != NULL || kind->bucket_count == 0;
}

/* Replaces the arrays that the device points to by copies. Returns false if memory is short; the
 * device then has what could be copied. */
static bool copy_device(struct report_device *device)
{
    size_t kinds = device->kind_count, samples = device->sample_count;
    bool copied = true;

    device->kinds = copy_array(device->kinds, kinds, sizeof(*device->kinds));
    device->kind_count = device->kinds == NULL ? 0 : kinds;
    for (size_t i = 0; i < device->kind_count; i++)
        copied &= copy_kind(&device->kinds[i]);
    device->samples = copy_array(device->samples, samples, sizeof(*device->samples));
    device->sample_count = device->samples == NULL ? 0 : samples;
    return copied && device->kind_count == kinds && device->sample_count == samples;
}

/* Copies a report. Returns false if memory is short. The caller must call report_free in either
 * case. */
static bool copy_report(const struct report *report, struct report *copy)
{
    size_t devices = report->device_count;
    bool copied = true;

    *copy = *report;
    copy->devices = copy_array(report->devices, devices, sizeof(*copy->devices));
    copy->device_count = copy->devices == NULL ? 0 : devices;
    for (size_t i = 0; i < copy->device_count; i++)
        copied &= copy_device(&copy->devices[i]);
    return copied && copy->device_count == devices;
}

static int add_copy(struct summary *summary, const struct report *report)
{
    struct report *copy = calloc(1, sizeof(*copy));
    int status = -1;

    if (copy != NULL && copy_report(report, copy))
        status = summary_add(summary, copy);
    if (copy != NULL)
        report_free(copy);
    free(copy);
    return status;
}

/* --- printing a run -----------------------------------------------------------------------------
 */

static int print_sum(enum report_format format, const struct summary *summary,
                     const struct look *look, FILE *out)
{
    if (format == HTML)
        return print_html(summary, out);
    if (format == PROMETHEUS)
        print_prometheus(summary, 1, false, out);
    else
        print_summary_table(summary, look, out);
    return 0;
}

static int print_together(enum report_format format, const struct report *reports, size_t count,
                          const struct look *look, FILE *out)
{
    struct summary summary = {0};
    int status = 0;

    for (size_t i = 0; i < count && status == 0; i++)
        status = add_copy(&summary, &reports[i]);
    if (status == 0)
        status = summary_finish(&summary);
    if (status == 0)
        status = print_sum(format, &summary, look, out);
    summary_free(&summary);
    return status;
}

static int print_one_by_one(enum report_format format, const struct report *reports, size_t count,
                            FILE *out)
{
    struct summary *summaries = calloc(count, sizeof(*summaries));
    int status = summaries == NULL ? -1 : 0;

    for (size_t i = 0; i < count && status == 0; i++) {
        status = add_copy(&summaries[i], &reports[i]);
        if (status == 0)
            status = summary_finish(&summaries[i]);
    }
    if (status == 0 && format == CSV)
        print_csv(summaries, count, true, out);
    else if (status == 0)
        print_prometheus(summaries, count, true, out);
    for (size_t i = 0; i < count && summaries != NULL; i++)
        summary_free(&summaries[i]);
    free(summaries);
    return status;
}

/* The table of a single process says more than a summary's table does. */
static int print_only_table(const struct report *report, const struct look *look, FILE *out)
{
    struct report *copy = calloc(1, sizeof(*copy));
    int status = -1;

    if (copy != NULL && copy_report(report, copy))
        status = print_report_table(copy, look, out);
    if (copy != NULL)
        report_free(copy);
    free(copy);
    return status;
}

/* Whether two reports have the same pid. A process that executed another program leaves a report of
 * each. */
static bool any_number_twice(const struct report *reports, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (reports[i].process.pid == reports[j].process.pid)
                return true;
    return false;
}

int print_run_as(enum report_format format, const struct report *reports, size_t count,
                 const struct look *look, FILE *out)
{
    switch (format) {
    case JSON:
        return print_json(reports_to_json(reports, count), out);
    case TRACE:
        return print_trace(reports, count, out);
    case CSV:
        return print_one_by_one(CSV, reports, count, out);
    case PROMETHEUS:
        if (!any_number_twice(reports, count))
            return print_one_by_one(PROMETHEUS, reports, count, out);
        break;
    case TABLE:
        if (count == 1)
            return print_only_table(&reports[0], look, out);
        break;
    default:
        break;
    }
    return print_together(format, reports, count, look, out);
}
