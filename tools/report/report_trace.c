/*
 * Prints counters over time as a trace: the JSON that Perfetto (https://ui.perfetto.dev) and
 * chrome://tracing read.
 *
 * Each process is a process of the trace. All processes are on a common clock if their reports have
 * start times. Each device of a process has a counter of bytes and one of requests per second. It
 * also has one of bytes exchanged with other processes, if there are any.
 */
#include <inttypes.h>
#include <jansson.h>

#include "core/base/readable.h"
#include "core/figures/report_json.h"
#include "core/settings/document_json.h"
#include "formats.h"

/* Converts to microseconds, the unit of the format, without rounding to an integer. */
static json_t *microseconds(uint64_t nanoseconds)
{
    return json_real((double)nanoseconds / 1000);
}

/* A process of the trace. It has a number of its own, because processes of several hosts may have
 * the same pid. */
struct track {
    json_t *events;
    json_int_t number;
    const struct report *report;
    uint64_t shift; /* nanoseconds from the process's clock to the common one */
};

/* Adds an event and takes the reference to args. */
static int add_event(const struct track *track, const char *phase, const char *name, uint64_t at,
                     json_t *args)
{
    json_t *event = json_object();
    int status = json_object_set_new(event, "ph", json_string(phase));

    status |= json_object_set_new(event, "name", json_string_of_any_bytes(name, SIZE_MAX));
    status |= json_object_set_new(event, "pid", json_integer(track->number));
    status |= json_object_set_new(event, "ts", microseconds(at));
    status |= json_object_set_new(event, "args", args);
    return json_array_append_new(track->events, json_unless_failed(event, status));
}

static int add_name(const struct track *track)
{
    const struct report_process *process = &track->report->process;
    char name[sizeof(process->command) + sizeof(process->host) + sizeof(process->rank) + 64];

    snprintf(name, sizeof(name), "%s%s%sprocess %" PRId64 " on %s: %s",
             process->rank[0] != '\0' ? "rank " : "", process->rank,
             process->rank[0] != '\0' ? ", " : "", process->pid, process->host, process->command);
    return add_event(track, "M", "process_name", 0,
                     json_pack("{s:o}", "name", json_string_of_any_bytes(name, SIZE_MAX)));
}

static int add_memory(const struct track *track, const char *name,
                      const struct report_sample *sample)
{
    json_t *args = json_object();
    int status = json_object_set_new(args, "in use", report_count_to_json(sample->live_bytes));

    status |= json_object_set_new(args, "cached", report_count_to_json(sample->cached_bytes));
    status |= json_object_set_new(args, "pending", report_count_to_json(sample->pending_bytes));
    return add_event(track, "C", name, saturating_sum(sample->nanoseconds, track->shift),
                     json_unless_failed(args, status));
}

static uint64_t hits_of(const struct report_sample *sample)
{
    return saturating_sum(saturating_sum(sample->hits.clean, sample->hits.queried),
                          saturating_sum(sample->hits.barrier, sample->hits.waited));
}

static double rate(uint64_t now, uint64_t before, uint64_t nanoseconds)
{
    return now > before && nanoseconds > 0 ? (double)(now - before) * 1e9 / (double)nanoseconds : 0;
}

/* Adds the rates of the time until the next sample. In this format a counter holds from its event
 * on. */
static int add_rates(const struct track *track, const char *name,
                     const struct report_sample *sample, const struct report_sample *next)
{
    uint64_t nanoseconds = next->nanoseconds - sample->nanoseconds;
    json_t *args = json_object();
    int status = json_object_set_new(args, "hits",
                                     json_real(rate(hits_of(next), hits_of(sample), nanoseconds)));

    status |= json_object_set_new(args, "misses",
                                  json_real(rate(next->misses, sample->misses, nanoseconds)));
    return add_event(track, "C", name, saturating_sum(sample->nanoseconds, track->shift),
                     json_unless_failed(args, status));
}

/* Adds the bytes exchanged since the start, if the device has any. */
static int add_exchanges(const struct track *track, const struct report_device *device)
{
    const struct report_sample *samples = device->samples;
    size_t count = device->sample_count;
    char name[64];
    int status = 0;

    if (count == 0 || (samples[count - 1].given_bytes == 0 && samples[count - 1].got_bytes == 0))
        return 0;
    snprintf(name, sizeof(name), "device %d: bytes from process to process", device->ordinal);
    for (size_t i = 0; i < count; i++) {
        json_t *args = json_object();
        status |= json_object_set_new(args, "given", report_count_to_json(samples[i].given_bytes));
        status |= json_object_set_new(args, "got", report_count_to_json(samples[i].got_bytes));
        status |= add_event(track, "C", name, saturating_sum(samples[i].nanoseconds, track->shift),
                            json_unless_failed(args, status));
    }
    return status;
}

static int add_device(const struct track *track, const struct report_device *device)
{
    static const struct report_sample nothing;
    char memory[64], requests[64];
    int status = 0;

    snprintf(memory, sizeof(memory), "device %d: bytes", device->ordinal);
    snprintf(requests, sizeof(requests), "device %d: requests a second", device->ordinal);
    if (device->sample_count > 0) {
        status |= add_memory(track, memory, &nothing);
        status |= add_rates(track, requests, &nothing, &device->samples[0]);
    }
    for (size_t i = 0; i < device->sample_count; i++) {
        const struct report_sample *sample = &device->samples[i];
        bool is_last = i + 1 == device->sample_count;
        status |= add_memory(track, memory, sample);
        status |= add_rates(track, requests, sample, is_last ? sample : sample + 1);
    }
    return status | add_exchanges(track, device);
}

/* Returns the earliest start of all reports that have one, or UINT64_MAX if none has. */
static uint64_t first_start(const struct report *reports, size_t count)
{
    uint64_t first = UINT64_MAX;

    for (size_t i = 0; i < count; i++)
        if (reports[i].process.started_nanoseconds != 0 &&
            reports[i].process.started_nanoseconds < first)
            first = reports[i].process.started_nanoseconds;
    return first;
}

int print_trace(const struct report *reports, size_t count, FILE *out)
{
    uint64_t first = first_start(reports, count);
    json_t *events = json_array(), *root = json_object();
    int status = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t started = reports[i].process.started_nanoseconds;
        struct track track = {.events = events,
                              .number = (json_int_t)i + 1,
                              .report = &reports[i],
                              .shift = started != 0 ? started - first : 0};
        status |= add_name(&track);
        for (size_t j = 0; j < reports[i].device_count; j++)
            status |= add_device(&track, &reports[i].devices[j]);
    }
    status |= json_object_set_new(root, "displayTimeUnit", json_string("ms"));
    status |= json_object_set_new(root, "traceEvents", events);
    return print_json(json_unless_failed(root, status), out);
}
