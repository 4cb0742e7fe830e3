/*
 * Writes the JSON of `cudapool try --json` (try_json.h); docs/report.md describes it.
 */
#include "try_json.h"

#include "core/figures/report_json.h"
#include "core/settings/settings_json.h"
#include "tools/command/complaint.h"
#include "tools/report/formats.h"

/* The version of the format. */
#define TRY_VERSION 1

/* The words for the values of each enum, in its order. */
static const char *const results[] = {"same", "fails", "differs_with_pool", "differs_from_itself"};
static const char *const speeds[] = {"not_compared", "no_difference", "unclear", "faster",
                                     "slower"};
static const char *const waits[] = {NULL, "same", "differs"};

static json_t *text_or_null(const char *text)
{
    return text == NULL ? json_null() : json_string(text);
}

static json_t *signal_to_json(int number)
{
    return number == 0 ? json_null() : json_integer(number);
}

static json_t *run_to_json(const struct trial *trial)
{
    json_t *object = json_object();
    int status = json_object_set_new(object, "seconds", json_real(trial->seconds));

    status |=
        json_object_set_new(object, "exit_status",
                            trial->end.signal != 0 ? json_null() : json_integer(trial->end.status));
    status |= json_object_set_new(object, "signal", signal_to_json(trial->end.signal));
    status |=
        json_object_set_new(object, "output_bytes", report_count_to_json(trial->output.bytes));
    return json_unless_failed(object, status);
}

static json_t *runs_to_json(const struct trial *trials, int count)
{
    json_t *array = json_array();
    int status = 0;

    for (int i = 0; i < count; i++)
        status |= json_array_append_new(array, run_to_json(&trials[i]));
    return json_unless_failed(array, status);
}

/* Writes runs of one kind. peak, in bytes, is written under the key peak_name. */
static json_t *kind_to_json(const struct trial *trials, int count, const struct times *times,
                            const char *peak_name, uint64_t peak)
{
    json_t *object = json_object();
    int status = json_object_set_new(object, "runs", runs_to_json(trials, count));

    status |= json_object_set_new(object, "median_seconds", json_real(times->median));
    status |= json_object_set_new(object, "least_seconds", json_real(times->least));
    status |= json_object_set_new(object, "most_seconds", json_real(times->most));
    status |= json_object_set_new(object, "spread", json_real(times->spread));
    status |= json_object_set_new(object, peak_name, report_count_to_json(peak));
    return json_unless_failed(object, status);
}

static json_t *switched_off_to_json(const struct try *try)
{
    struct report_counters counted = try_counted(try);
    json_t *object = run_to_json(&try->counting);
    int status = json_object_set_new(object, "requests", report_count_to_json(counted.requests));

    status |= json_object_set_new(object, "driver_nanoseconds",
                                  report_count_to_json(counted.driver.nanoseconds));
    return json_unless_failed(object, status);
}

static json_t *command_to_json(char *const *words)
{
    json_t *array = json_array();
    int status = 0;

    for (; *words != NULL; words++)
        status |= json_array_append_new(array, json_string_of_any_bytes(*words, SIZE_MAX));
    return json_unless_failed(array, status);
}

static json_t *differs_in(const struct judgement *judgement)
{
    json_t *array = json_array();
    int status = 0;

    if (judgement->in_end)
        status |= json_array_append_new(array, json_string("end"));
    if (judgement->in_output)
        status |= json_array_append_new(array, json_string("output"));
    return json_unless_failed(array, status);
}

static int add_verdict(json_t *root, const struct try *try, const struct judgement *judgement,
                       const struct comparison_of_times *times)
{
    const struct trial *last = &try->with[try->done - 1];
    int status = json_object_set_new(root, "result", json_string(results[judgement->result]));

    status |= json_object_set_new(root, "differs_in", differs_in(judgement));
    status |=
        json_object_set_new(root, "free_synchronizes", text_or_null(waits[judgement->with_waits]));
    status |= json_object_set_new(root, "took_memory", json_boolean(try_took_memory(try)));
    status |= json_object_set_new(root, "speed", json_string(speeds[times->speed]));
    status |= json_object_set_new(root, "factor", json_real(times->factor));
    status |= json_object_set_new(root, "spread", json_real(times->spread));
    status |= json_object_set_new(root, "advice", advice_to_json(&last->summary));
    return status;
}

static int add_runs(json_t *root, const struct try *try, const struct comparison_of_times *times)
{
    int status =
        json_object_set_new(root, "without_pool",
                            kind_to_json(try->without, try->done, &times->without,
                                         "peak_requested_bytes", try_counted(try).peak.live_bytes));

    status |=
        json_object_set_new(root, "with_pool",
                            kind_to_json(try->with, try->done, &times->with, "peak_reserved_bytes",
                                         try_served(try).peak.reserved_bytes));
    status |= json_object_set_new(root, "switched_off", switched_off_to_json(try));
    return status;
}

int try_print_json(const struct try *try, const struct judgement *judgement,
                   const struct comparison_of_times *times, FILE *out)
{
    json_t *root = json_object();
    int status = json_object_set_new(root, "cudapool_try", json_integer(TRY_VERSION));

    status |= json_object_set_new(root, "command", command_to_json(try->setup.program));
    status |= json_object_set_new(root, "settings", settings_to_json(&try->settings));
    status |= json_object_set_new(root, "stopped_by", signal_to_json(try->setup.ended_by));
    status |= json_object_set_new(root, "pairs", json_integer(try->done));
    if (judgement != NULL)
        status |= add_runs(root, try, times) | add_verdict(root, try, judgement, times);
    return print_json(json_unless_failed(root, status), out) == 0 ? 0 : complain("memory is short");
}
