/*
 * Reports as a process writes them (core/figures/report_json.h): whatever the counters, and
 * whatever bytes a host name, a command line or a driver brings in, the file reads again, with the
 * same report but for bytes that are no UTF-8.
 *
 * The input fills the report: texts up to a NUL byte each, then counters of eight bytes.
 */
#include "core/figures/report_json.h"

#include "reports.h"

#define DEVICES 2
#define BUCKETS 3

static struct memory_file file, second;

static uint64_t take_count(const uint8_t **data, size_t *bytes)
{
    uint64_t count = 0;
    size_t taken = *bytes < sizeof(count) ? *bytes : sizeof(count);

    if (taken > 0)
        memcpy(&count, *data, taken);
    *data += taken;
    *bytes -= taken;
    return count;
}

static void take_counters(const uint8_t **data, size_t *bytes, struct report_counters *counters)
{
    uint64_t counts[sizeof(*counters) / sizeof(uint64_t)] = {0};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        counts[i] = take_count(data, bytes);
    memcpy(counters, counts, sizeof(*counters));
}

static void take_device(const uint8_t **data, size_t *bytes, struct report_device *device)
{
    struct report_kind *kind = calloc(1, sizeof(*kind));

    PROMISE(kind != NULL, "no memory");
    device->kinds = kind;
    device->kind_count = 1;
    device->ordinal = (int)(take_count(data, bytes) & INT32_MAX);
    take_text(data, bytes, device->name, sizeof(device->name));
    take_text(data, bytes, device->uuid, sizeof(device->uuid));
    take_text(data, bytes, kind->kind, sizeof(kind->kind));
    device->total_bytes = take_count(data, bytes);
    device->fences = take_count(data, bytes);
    device->fence_queries = take_count(data, bytes);
    device->barriers = take_count(data, bytes);
    take_counters(data, bytes, &kind->totals);
    kind->buckets = calloc(BUCKETS, sizeof(*kind->buckets));
    PROMISE(kind->buckets != NULL, "no memory");
    for (; kind->bucket_count<BUCKETS && * bytes> 0; kind->bucket_count++) {
        kind->buckets[kind->bucket_count].bytes = take_count(data, bytes);
        take_counters(data, bytes, &kind->buckets[kind->bucket_count].counters);
    }
}

static void take_report(const uint8_t *data, size_t bytes, struct report *report)
{
    struct report_process *process = &report->process;

    memset(report, 0, sizeof(*report));
    settings_defaults(&report->settings);
    process->pid = (int64_t)(take_count(&data, &bytes) & INT64_MAX);
    uint64_t seconds = take_count(&data, &bytes);
    memcpy(&process->wall_seconds, &seconds, sizeof(seconds));
    take_text(&data, &bytes, process->host, sizeof(process->host));
    take_text(&data, &bytes, process->rank, sizeof(process->rank));
    take_text(&data, &bytes, process->command, sizeof(process->command));
    report->devices = calloc(DEVICES, sizeof(*report->devices));
    PROMISE(report->devices != NULL, "no memory");
    for (; report->device_count < DEVICES && bytes > 0; report->device_count++)
        take_device(&data, &bytes, &report->devices[report->device_count]);
}

static void write_and_read(const struct report *report, struct memory_file *to, struct report *read)
{
    char error[1024];

    memory_file_set(to, "", 0);
    PROMISE(report_write_json(report, to->path, error, sizeof(error)) == 0, "%s", error);
    PROMISE(report_read_json(to->path, read, error, sizeof(error)) == 0, "%s", error);
}

/* The texts that could be written as they are, are; what could not is escaped. */
static void promise_texts(const struct report *report, const struct report *read)
{
    json_t *valid = json_string(report->process.command);
    json_t *escaped = json_string(read->process.command);
    if (valid != NULL)
        promise_same_text(report->process.command, read->process.command);
    PROMISE(escaped != NULL, "%s", read->process.command);
    json_decref(valid);
    json_decref(escaped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct report report, read, again;

    take_report(data, bytes, &report);
    promise_table(&report);
    write_and_read(&report, &file, &read);
    promise_texts(&report, &read);
    PROMISE(report.device_count == read.device_count, "devices");
    for (size_t i = 0; i < report.device_count; i++)
        promise_same_counters(&report.devices[i].kinds[0].totals, &read.devices[i].kinds[0].totals);
    write_and_read(&read, &second, &again);
    promise_same_report(&read, &again);
    report_free(&again);
    report_free(&read);
    report_free(&report);
    return 0;
}
