/*
 * Makes the report's JSON values (report_json.h).
 *
 * json_object_set_new takes over the reference even when it fails, and refuses NULL. Failures of
 * allocations therefore need no branches: they add up to one status, and json_unless_failed returns
 * the object or NULL.
 */
#include <stdint.h>
#include <stdio.h>

#include "core/settings/document_json.h"
#include "core/settings/settings_json.h"
#include "report_json.h"
#include "report_neighbours_json.h"

int report_add_graphs(json_t *root, const struct report_graphs *graphs)
{
    return graphs->told ? report_add_object_of_counts(root, "graphs", &report_graph_counts, graphs)
                        : 0;
}

int report_add_segments_to_json(json_t *device, const struct report_segments *segments)
{
    return segments->cuts == 0
               ? 0
               : report_add_object_of_counts(device, "segments", &report_segment_counts, segments);
}

int report_add_unpooled_to_json(json_t *device, const struct report_unpooled *unpooled)
{
    return report_has_unpooled(unpooled)
               ? report_add_object_of_counts(device, "unpooled", &report_unpooled_counts, unpooled)
               : 0;
}

static json_t *bucket_to_json(const struct report_bucket *bucket)
{
    json_t *object = json_object();
    int status = json_object_set_new(object, "bytes", report_count_to_json(bucket->bytes));

    status |= report_add_counts_to_json(object, &report_bucket_counts, &bucket->counters);
    return json_unless_failed(object, status);
}

json_t *report_kind_to_json(const struct report_kind *kind)
{
    json_t *object = json_object(), *totals = json_object(), *buckets = json_array();
    int status = report_add_counts_to_json(totals, &report_bucket_counts, &kind->totals);

    for (size_t i = 0; i < kind->bucket_count; i++)
        status |= json_array_append_new(buckets, bucket_to_json(&kind->buckets[i]));
    status |= json_object_set_new(object, "kind",
                                  json_string_of_any_bytes(kind->kind, sizeof(kind->kind)));
    status |= json_object_set_new(object, "totals", totals);
    status |= json_object_set_new(object, "buckets", buckets);
    return json_unless_failed(object, status);
}

static json_t *column_to_json(const struct report_sample *samples, size_t count, size_t offset)
{
    json_t *array = json_array();
    int status = 0;

    for (size_t i = 0; i < count; i++)
        status |= json_array_append_new(
            array, report_count_to_json(*(const uint64_t *)((const char *)&samples[i] + offset)));
    return json_unless_failed(array, status);
}

json_t *report_history_to_json(const struct report_sample *samples, size_t count)
{
    json_t *object = json_object(), *hits = json_object();
    int status = 0;

    for (size_t i = 0; i < report_sample_counts.length; i++) {
        const struct report_count *column = &report_sample_counts.counts[i];
        status |= json_object_set_new(column->group[0] != '\0' ? hits : object, column->name,
                                      column_to_json(samples, count, column->offset));
    }
    status |= json_object_set_new(object, "hits", hits);
    return json_unless_failed(object, status);
}

static json_t *device_to_json(const struct report_device *device)
{
    json_t *object = json_object(), *kinds = json_array();
    int status = json_object_set_new(object, "ordinal", json_integer(device->ordinal));

    status |= json_object_set_new(object, "name",
                                  json_string_of_any_bytes(device->name, sizeof(device->name)));
    status |= json_object_set_new(object, "uuid",
                                  json_string_of_any_bytes(device->uuid, sizeof(device->uuid)));
    status |= report_add_counts_to_json(object, &report_device_counts, device);
    status |= report_add_segments_to_json(object, &device->segments);
    status |= report_add_object_of_counts(object, "neighbours", &report_neighbour_counts,
                                          &device->neighbours);
    status |= report_add_unpooled_to_json(object, &device->unpooled);
    status |= report_add_limits_to_json(object, &device->limits);
    for (size_t i = 0; i < device->kind_count; i++)
        status |= json_array_append_new(kinds, report_kind_to_json(&device->kinds[i]));
    status |= json_object_set_new(object, "kinds", kinds);
    if (device->sample_count > 0)
        status |= json_object_set_new(
            object, "history", report_history_to_json(device->samples, device->sample_count));
    return json_unless_failed(object, status);
}

const char *const report_endings[] = {"exited", "killed", "running", NULL};

int report_add_versions_to_json(json_t *object, const struct report_versions *versions)
{
    int status = 0;

    if (versions->cudapool[0] != '\0')
        status |= json_object_set_new(
            object, "version",
            json_string_of_any_bytes(versions->cudapool, sizeof(versions->cudapool)));
    if (versions->driver[0] != '\0')
        status |= json_object_set_new(
            object, "driver", json_string_of_any_bytes(versions->driver, sizeof(versions->driver)));
    if (versions->cuda != 0)
        status |= json_object_set_new(object, "cuda_version", json_integer(versions->cuda));
    return status;
}

static json_t *process_to_json(const struct report_process *process)
{
    json_t *object = json_object();
    /* A time that is infinite or not a number cannot be written as JSON. */
    double seconds = process->wall_seconds >= 0 && process->wall_seconds <= REPORT_SECONDS_MOST
                         ? process->wall_seconds
                         : 0;
    int status = json_object_set_new(object, "pid", json_integer(process->pid));

    status |= json_object_set_new(object, "host",
                                  json_string_of_any_bytes(process->host, sizeof(process->host)));
    status |= json_object_set_new(object, "rank",
                                  json_string_of_any_bytes(process->rank, sizeof(process->rank)));
    status |= json_object_set_new(
        object, "command", json_string_of_any_bytes(process->command, sizeof(process->command)));
    status |= json_object_set_new(object, "wall_seconds", json_real(seconds));
    if (process->started_nanoseconds > 0)
        status |= json_object_set_new(object, "started_nanoseconds",
                                      report_count_to_json(process->started_nanoseconds));
    status |= report_add_versions_to_json(object, &process->versions);
    if (process->ending != REPORT_EXITED)
        status |=
            json_object_set_new(object, "ending", json_string(report_endings[process->ending]));
    if (process->exit.known && process->exit.signal != 0)
        status |= json_object_set_new(object, "signal", json_integer(process->exit.signal));
    else if (process->exit.known)
        status |= json_object_set_new(object, "exit_status", json_integer(process->exit.status));
    return json_unless_failed(object, status);
}

static json_t *report_to_json(const struct report *report)
{
    json_t *root = json_object(), *devices = json_array();
    int status = json_object_set_new(root, "cudapool_report", json_integer(REPORT_VERSION));

    for (size_t i = 0; i < report->device_count; i++)
        status |= json_array_append_new(devices, device_to_json(&report->devices[i]));
    status |= json_object_set_new(root, "process", process_to_json(&report->process));
    status |= json_object_set_new(root, "settings", settings_to_json(&report->settings));
    status |=
        json_object_set_new(root, "housekeeper", report_housekeeper_to_json(&report->housekeeper));
    status |= report_add_graphs(root, &report->graphs);
    status |= json_object_set_new(root, "devices", devices);
    return json_unless_failed(root, status);
}

json_t *reports_to_json(const struct report *reports, size_t count)
{
    if (count == 1)
        return report_to_json(&reports[0]);
    json_t *root = json_object(), *array = json_array();
    int status = json_object_set_new(root, "cudapool_reports", json_integer(REPORT_VERSION));

    for (size_t i = 0; i < count; i++)
        status |= json_array_append_new(array, report_to_json(&reports[i]));
    status |= json_object_set_new(root, "reports", array);
    return json_unless_failed(root, status);
}
