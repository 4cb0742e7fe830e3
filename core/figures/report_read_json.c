/*
 * Reads files of reports (report_json.h).
 *
 * Each function reads one object of the document. It returns 0, or -1 with the error written.
 * Unknown keys are errors. Arrays belong to the report as soon as they are allocated, so that
 * report_free also frees a report of which only a part was read.
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/scratch.h"
#include "core/settings/document_json.h"
#include "core/settings/settings_json.h"
#include "report_json.h"
#include "report_neighbours_json.h"
#include "report_object_json.h"

static int read_bucket(const struct object *object, struct report_bucket *bucket)
{
    static const char *const also[] = {"bytes", NULL};

    if (report_refuse_unknown_counts(object, &report_bucket_counts, "", also) != 0 ||
        object_read_count(object, "bytes", &bucket->bytes) != 0)
        return -1;
    return report_read_counts(object, &report_bucket_counts, &bucket->counters);
}

static int read_buckets(const struct object *object, struct report_kind *kind)
{
    struct object bucket;
    void *elements = NULL;
    const json_t *array = object_array(object, "buckets", sizeof(*kind->buckets), &elements);

    kind->buckets = elements;
    if (array == NULL)
        return -1;
    for (; kind->bucket_count < json_array_size(array); kind->bucket_count++)
        if (object_enter_item(object, "buckets", array, kind->bucket_count, &bucket) != 0 ||
            read_bucket(&bucket, &kind->buckets[kind->bucket_count]) != 0)
            return -1;
    return 0;
}

static int read_kind(const struct object *object, struct report_kind *kind)
{
    static const char *const known[] = {"kind", "totals", "buckets", NULL};
    struct object totals;

    if (object_refuse_unknown_keys(object, known) != 0 ||
        object_read_text(object, "kind", kind->kind, sizeof(kind->kind)) != 0 ||
        object_enter(object, "totals", &totals) != 0 ||
        report_refuse_unknown_counts(&totals, &report_bucket_counts, "", NULL) != 0 ||
        report_read_counts(&totals, &report_bucket_counts, &kind->totals) != 0)
        return -1;
    return read_buckets(object, kind);
}

static int read_kinds(const struct object *object, struct report_device *device)
{
    struct object kind;
    void *elements = NULL;
    const json_t *array = object_array(object, "kinds", sizeof(*device->kinds), &elements);

    device->kinds = elements;
    if (array == NULL)
        return -1;
    for (size_t i = 0; i < json_array_size(array); i++) {
        /* kind_count is raised first, so that report_free also frees a kind that was read in
         * part. */
        device->kind_count = i + 1;
        if (object_enter_item(object, "kinds", array, i, &kind) != 0 ||
            read_kind(&kind, &device->kinds[i]) != 0)
            return -1;
    }
    return 0;
}

/* The value of a column's key: an array of the same length as that of the times. */
static const json_t *need_column(const struct object *object, const char *key, size_t length)
{
    char allowed[80];
    const json_t *array = object_value(object, key);

    if (array == NULL || (json_is_array(array) && json_array_size(array) == length))
        return array;
    snprintf(allowed, sizeof(allowed), "an array of as many numbers as there are times, %zu",
             length);
    object_refuse(object, key, array, allowed);
    return NULL;
}

static int read_column(const struct object *object, const struct report_count *column,
                       struct report_device *device)
{
    char place[PLACE_BYTES], item_place[PLACE_BYTES];

    if (object_leaves_out(object, column->name, column->later))
        return 0;
    const json_t *array = need_column(object, column->name, device->sample_count);

    if (array == NULL)
        return -1;
    for (size_t i = 0; i < device->sample_count; i++) {
        const json_t *value = json_array_get(array, i);
        if (report_count_from_json(value,
                                   (uint64_t *)((char *)&device->samples[i] + column->offset)) == 0)
            continue;
        place_of_key(place, object->place, column->name);
        place_of_item(item_place, place, i);
        return document_refuse(object->document, item_place, value, REPORT_COUNT_ALLOWED);
    }
    return 0;
}

static int refuse_times_out_of_order(const struct object *object,
                                     const struct report_device *device)
{
    for (size_t i = 1; i < device->sample_count; i++)
        if (device->samples[i].nanoseconds <= device->samples[i - 1].nanoseconds)
            return document_fail(object->document, object->place,
                                 "nanoseconds: each must be later than the one before");
    return 0;
}

static int read_samples(const struct object *history, const struct object *hits,
                        struct report_device *device)
{
    void *elements = NULL;
    const json_t *times = object_array(history, "nanoseconds", sizeof(*device->samples), &elements);

    device->samples = elements;
    if (times == NULL)
        return -1;
    device->sample_count = json_array_size(times);
    for (size_t i = 0; i < report_sample_counts.length; i++) {
        const struct report_count *column = &report_sample_counts.counts[i];
        if (read_column(column->group[0] != '\0' ? hits : history, column, device) != 0)
            return -1;
    }
    return refuse_times_out_of_order(history, device);
}

/* Reads the history, which may be missing. */
static int read_history(const struct object *object, struct report_device *device)
{
    struct object history, hits;

    if (json_object_get(object->value, "history") == NULL)
        return 0;
    if (object_enter(object, "history", &history) != 0 ||
        report_refuse_unknown_counts(&history, &report_sample_counts, "", NULL) != 0 ||
        object_enter(&history, "hits", &hits) != 0 ||
        report_refuse_unknown_counts(&hits, &report_sample_counts, "hits", NULL) != 0)
        return -1;
    return read_samples(&history, &hits, device);
}

static int read_device(const struct object *object, struct report_device *device)
{
    static const char *const also[] = {"ordinal", "name",       "uuid",     "segments", "kinds",
                                       "history", "neighbours", "unpooled", "limits",   NULL};
    int64_t ordinal = 0;

    if (report_refuse_unknown_counts(object, &report_device_counts, "", also) != 0 ||
        object_read_integer(object, "ordinal", 0, INT32_MAX, &ordinal) != 0 ||
        object_read_text(object, "name", device->name, sizeof(device->name)) != 0 ||
        object_read_text(object, "uuid", device->uuid, sizeof(device->uuid)) != 0 ||
        report_read_counts(object, &report_device_counts, device) != 0)
        return -1;
    device->ordinal = (int)ordinal;
    if (report_read_object_of_counts(object, "segments", &report_segment_counts,
                                     &device->segments) != 0 ||
        report_read_object_of_counts(object, "neighbours", &report_neighbour_counts,
                                     &device->neighbours) != 0 ||
        report_read_object_of_counts(object, "unpooled", &report_unpooled_counts,
                                     &device->unpooled) != 0 ||
        report_read_limits(object, &device->limits) != 0)
        return -1;
    return read_kinds(object, device) != 0 ? -1 : read_history(object, device);
}

static int read_devices(const struct object *root, struct report *report)
{
    struct object device;
    void *elements = NULL;
    const json_t *array = object_array(root, "devices", sizeof(*report->devices), &elements);

    report->devices = elements;
    if (array == NULL)
        return -1;
    for (size_t i = 0; i < json_array_size(array); i++) {
        report->device_count = i + 1;
        if (object_enter_item(root, "devices", array, i, &device) != 0 ||
            read_device(&device, &report->devices[i]) != 0)
            return -1;
    }
    return 0;
}

static int read_seconds(const struct object *object, double *seconds)
{
    const json_t *value = object_value(object, "wall_seconds");

    if (value == NULL)
        return -1;
    if (!json_is_number(value) ||
        !(json_number_value(value) >= 0 && json_number_value(value) <= REPORT_SECONDS_MOST))
        return object_refuse(object, "wall_seconds", value, "a number from 0 to 10^15");
    *seconds = json_number_value(value);
    return 0;
}

/* Reads how the process ended; the key may be missing. */
static int read_ending(const struct object *object, struct report_process *process)
{
    const json_t *value = json_object_get(object->value, "ending");
    const char *word = json_string_value(value);

    if (value == NULL)
        return 0;
    for (int i = 0; word != NULL && report_endings[i] != NULL; i++)
        if (strcmp(report_endings[i], word) == 0) {
            process->ending = (enum report_ending)i;
            return 0;
        }
    return object_refuse(object, "ending", value, "exited, killed or running");
}

/* Reads the exit status or the signal. Both keys may be missing: only the parent that waited for
 * the process knows them. */
static int read_exit(const struct object *object, struct report_process *process)
{
    int64_t number = 0;
    bool by_signal = json_object_get(object->value, "signal") != NULL;

    if (!by_signal && json_object_get(object->value, "exit_status") == NULL)
        return 0;
    if (object_read_integer(object, by_signal ? "signal" : "exit_status", by_signal,
                            by_signal ? 127 : 255, &number) != 0)
        return -1;
    process->exit = (struct report_exit){.known = true,
                                         .status = by_signal ? 0 : (int)number,
                                         .signal = by_signal ? (int)number : 0};
    return 0;
}

static int read_start(const struct object *object, struct report_process *process)
{
    if (json_object_get(object->value, "started_nanoseconds") == NULL)
        return 0;
    return object_read_count(object, "started_nanoseconds", &process->started_nanoseconds);
}

/* Reads the versions; what is missing is unknown. */
static int read_versions(const struct object *object, struct report_versions *versions)
{
    int64_t cuda = 0;

    if (json_object_get(object->value, "version") != NULL &&
        object_read_text(object, "version", versions->cudapool, sizeof(versions->cudapool)) != 0)
        return -1;
    if (json_object_get(object->value, "driver") != NULL &&
        object_read_text(object, "driver", versions->driver, sizeof(versions->driver)) != 0)
        return -1;
    if (json_object_get(object->value, "cuda_version") != NULL &&
        object_read_integer(object, "cuda_version", 1, UINT32_MAX, &cuda) != 0)
        return -1;
    versions->cuda = (uint32_t)cuda;
    return 0;
}

static int read_process(const struct object *root, struct report_process *process)
{
    static const char *const known[] = {
        "pid",    "host",   "rank",        "command", "wall_seconds", "started_nanoseconds",
        "ending", "signal", "exit_status", "version", "driver",       "cuda_version",
        NULL};
    struct object object;

    if (object_enter(root, "process", &object) != 0 ||
        object_refuse_unknown_keys(&object, known) != 0 ||
        object_read_integer(&object, "pid", 0, INT64_MAX, &process->pid) != 0 ||
        object_read_text(&object, "host", process->host, sizeof(process->host)) != 0 ||
        object_read_text(&object, "rank", process->rank, sizeof(process->rank)) != 0 ||
        object_read_text(&object, "command", process->command, sizeof(process->command)) != 0)
        return -1;
    if (read_versions(&object, &process->versions) != 0)
        return -1;
    if (read_start(&object, process) != 0 || read_ending(&object, process) != 0 ||
        read_exit(&object, process) != 0)
        return -1;
    return read_seconds(&object, &process->wall_seconds);
}

/* Checks the version. Call this first, since another version may spell everything else
 * differently. */
static int check_version(const struct object *root, const char *key)
{
    const json_t *version = json_object_get(root->value, key);

    if (version == NULL)
        return document_fail(root->document, root->place, "is not a report: the key %s is missing",
                             key);
    if (json_is_integer(version) && json_integer_value(version) == REPORT_VERSION)
        return 0;
    return object_refuse(root, key, version, "the version that this cudapool reads, 1");
}

static int read_report(const struct object *root, struct report *report)
{
    static const char *const known[] = {"cudapool_report", "process", "settings", "housekeeper",
                                        "graphs",          "devices", NULL};
    char place[PLACE_BYTES];

    if (!json_is_object(root->value))
        return document_refuse(root->document, root->place, root->value, "an object");
    if (check_version(root, "cudapool_report") != 0 ||
        object_refuse_unknown_keys(root, known) != 0 || read_process(root, &report->process) != 0)
        return -1;
    const json_t *settings = object_value(root, "settings");
    place_of_key(place, root->place, "settings");
    if (settings == NULL ||
        settings_from_json(root->document, place, settings, &report->settings) != 0)
        return -1;
    if (report_read_housekeeper(root, &report->housekeeper) != 0 ||
        report_read_object_of_counts(root, "graphs", &report_graph_counts, &report->graphs) != 0)
        return -1;
    report->graphs.told = json_object_get(root->value, "graphs") != NULL;
    return read_devices(root, report);
}

int report_read_json(const char *path, struct report *report, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    struct report read = {0};
    struct object root = {.document = &document,
                          .value = document_load(&document, REPORT_FILE_MAX)};

    if (root.value == NULL)
        return -1;
    int status = read_report(&root, &read);
    json_decref((json_t *)root.value);
    if (status == 0)
        *report = read;
    else
        report_free(&read);
    return status;
}

/* Reads one report of a file and passes it to the visitor. */
static int read_and_visit(const struct object *object, report_visitor *visit, void *context)
{
    struct report *report = calloc(1, sizeof(*report));

    if (report == NULL)
        return document_fail(object->document, object->place, "the report does not fit in memory");
    int status = read_report(object, report);
    if (status == 0 && visit(report, context) != 0)
        status = document_fail(object->document, object->place, "memory is short");
    report_free(report);
    free(report);
    return status;
}

static int visit_items(const struct object *root, report_visitor *visit, void *context)
{
    static const char *const known[] = {"cudapool_reports", "reports", NULL};
    struct object item;
    const json_t *array;

    if (check_version(root, "cudapool_reports") != 0 ||
        object_refuse_unknown_keys(root, known) != 0)
        return -1;
    array = object_value(root, "reports");
    if (array == NULL)
        return -1;
    if (!json_is_array(array))
        return object_refuse(root, "reports", array, "an array");
    for (size_t i = 0; i < json_array_size(array); i++)
        if (object_enter_item(root, "reports", array, i, &item) != 0 ||
            read_and_visit(&item, visit, context) != 0)
            return -1;
    return 0;
}

int reports_read_json(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes)
{
    struct document document = {
        .file = path, .error = error, .error_bytes = error_bytes, .waits = true};
    struct object root = {.document = &document,
                          .value = document_load(&document, REPORT_FILE_MAX)};
    int status;

    if (root.value == NULL)
        return -1;
    if (json_object_get(root.value, "cudapool_merged") != NULL)
        status = document_fail(&document, NULL,
                               "is a merged report, which cannot be read again; allowed are the "
                               "reports that it was made of");
    else if (json_object_get(root.value, "cudapool_reports") != NULL)
        status = visit_items(&root, visit, context);
    else
        status = read_and_visit(&root, visit, context);
    json_decref((json_t *)root.value);
    return status;
}
