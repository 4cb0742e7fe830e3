/*
 * Builds the merged report and the advice as JSON (configs/report.schema.json), and prints JSON.
 */
#include "core/figures/report_json.h"
#include "core/figures/report_neighbours_json.h"

#include <stdlib.h>

#include "core/settings/settings_json.h"
#include "formats.h"
#include "tools/advice/advice.h"

static json_t *counters_to_json(const struct report_counters *counters)
{
    json_t *object = json_object();

    return json_unless_failed(object,
                              report_add_counts_to_json(object, &report_bucket_counts, counters));
}

static json_t *process_to_json(const struct summary_process *process)
{
    char end[REPORT_END_BYTES];
    json_t *object = json_object();
    int status = json_object_set_new(object, "pid", json_integer(process->pid));

    status |=
        json_object_set_new(object, "host", json_string_of_any_bytes(process->host, SIZE_MAX));
    status |=
        json_object_set_new(object, "rank", json_string_of_any_bytes(process->rank, SIZE_MAX));
    status |= json_object_set_new(object, "command",
                                  json_string_of_any_bytes(process->command, SIZE_MAX));
    status |= json_object_set_new(object, "wall_seconds", json_real(process->wall_seconds));
    report_describe_end(process->ending, process->exit, end);
    if (end[0] != '\0')
        status |= json_object_set_new(object, "end", json_string(end));
    if (process->started_nanoseconds > 0)
        status |= json_object_set_new(object, "started_nanoseconds",
                                      report_count_to_json(process->started_nanoseconds));
    status |= report_add_versions_to_json(object, &process->versions);
    status |= json_object_set_new(object, "housekeeper",
                                  report_housekeeper_to_json(&process->housekeeper));
    status |= report_add_graphs(object, &process->graphs);
    status |= json_object_set_new(object, "totals", counters_to_json(&process->totals));
    return json_unless_failed(object, status);
}

static json_t *kinds_to_json(const struct report_kind *kinds, size_t count)
{
    json_t *array = json_array();
    int status = 0;

    for (size_t i = 0; i < count; i++)
        status |= json_array_append_new(array, report_kind_to_json(&kinds[i]));
    return json_unless_failed(array, status);
}

static json_t *device_to_json(const struct summary_device *one)
{
    const struct report_device *device = &one->device;
    json_t *object = json_object();
    int status = json_object_set_new(object, "host", json_string_of_any_bytes(one->host, SIZE_MAX));

    status |= json_object_set_new(object, "ordinal", json_integer(device->ordinal));
    status |= json_object_set_new(object, "name", json_string_of_any_bytes(device->name, SIZE_MAX));
    status |= json_object_set_new(object, "uuid", json_string_of_any_bytes(device->uuid, SIZE_MAX));
    status |= json_object_set_new(object, "processes", json_integer((json_int_t)one->processes));
    status |= report_add_counts_to_json(object, &report_device_counts, device);
    status |= report_add_segments_to_json(object, &device->segments);
    status |= report_add_object_of_counts(object, "neighbours", &report_neighbour_counts,
                                          &device->neighbours);
    status |= report_add_unpooled_to_json(object, &device->unpooled);
    status |= report_add_limits_to_json(object, &device->limits);
    status |=
        json_object_set_new(object, "kinds", kinds_to_json(device->kinds, device->kind_count));
    if (device->sample_count > 0)
        status |= json_object_set_new(
            object, "history", report_history_to_json(device->samples, device->sample_count));
    return json_unless_failed(object, status);
}

json_t *advice_to_json(const struct summary *summary)
{
    struct advice *advice = calloc(ADVICE_MOST, sizeof(*advice));
    json_t *array = json_array();
    int status = advice == NULL ? -1 : 0;
    size_t count = advice == NULL ? 0 : find_advice(summary, advice);

    for (size_t i = 0; i < count; i++)
        status |= json_array_append_new(
            array, json_pack("{s:s, s:s, s:s, s:s, s:s}", "rule", advice[i].rule, "setting",
                             advice[i].setting, "from", advice[i].from, "to", advice[i].to, "text",
                             advice[i].text));
    free(advice);
    return json_unless_failed(array, status);
}

json_t *summary_to_json(const struct summary *summary)
{
    json_t *root = json_object(), *processes = json_array(), *devices = json_array();
    struct report_counters totals = summary_totals(summary);
    struct report_graphs graphs = summary_graphs(summary);
    int status = json_object_set_new(root, "cudapool_merged", json_integer(REPORT_VERSION));

    for (size_t i = 0; i < summary->process_count; i++)
        status |= json_array_append_new(processes, process_to_json(&summary->processes[i]));
    for (size_t i = 0; i < summary->device_count; i++)
        status |= json_array_append_new(devices, device_to_json(&summary->devices[i]));
    status |= json_object_set_new(root, "wall_seconds", json_real(summary_wall_seconds(summary)));
    status |= json_object_set_new(root, "totals", counters_to_json(&totals));
    status |= report_add_graphs(root, &graphs);
    status |= json_object_set_new(root, "processes", processes);
    status |= json_object_set_new(root, "settings", settings_to_json(&summary->settings));
    status |= json_object_set_new(root, "settings_differ", json_boolean(summary->settings_differ));
    status |=
        json_object_set_new(root, "kinds", kinds_to_json(summary->kinds, summary->kind_count));
    status |= json_object_set_new(root, "devices", devices);
    status |= json_object_set_new(root, "advice", advice_to_json(summary));
    return json_unless_failed(root, status);
}

int print_json(json_t *value, FILE *out)
{
    /* With 15 digits, 1.15 stays 1.15. JSON_ENSURE_ASCII escapes all other characters, so that no
     * name in the report can control a terminal. */
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(15) | JSON_ENSURE_ASCII;
    char *text = value == NULL ? NULL : json_dumps(value, flags);

    json_decref(value);
    if (text == NULL)
        return -1;
    fputs(text, out);
    fputc('\n', out);
    free(text);
    return 0;
}
