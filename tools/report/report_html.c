/*
 * Prints a merged report as one HTML page, without scripts, network access or other files.
 *
 * Every chart is a column of the table that has its numbers. Readers who cannot see the chart
 * therefore need no other form of it. Every number of the report also stands unrounded in
 * attributes: data-key names the number, and data-value is its value.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/readable.h"
#include "core/figures/report_json.h"
#include "core/figures/report_table.h"
#include "core/settings/settings_json.h"
#include "formats.h"
#include "html.h"
#include "tools/advice/advice.h"

/* --- header and totals --------------------------------------------------------------------------
 */

static void put_tile(FILE *out, const char *name, const char *label, uint64_t value,
                     const char *readable)
{
    static const struct place place = {"totals"};

    fprintf(out, "<div><dt>%s</dt>", label);
    put_number(out, "dd", &place, name, value, readable);
    fputs("</div>\n", out);
}

static void put_tiles(FILE *out, const struct summary *summary)
{
    struct report_counters totals = summary_totals(summary);
    char text[READABLE_BYTES];

    fputs("<dl class=\"tiles\">\n", out);
    readable_seconds(summary_wall_seconds(summary), text);
    fprintf(out, "<div><dt>wall time</dt><dd class=\"n\">%s</dd></div>\n", text);
    readable_hit_rate(&totals, text);
    fprintf(out, "<div><dt>from the pool</dt><dd class=\"n\">%s</dd></div>\n", text);
    readable_count(totals.requests, text);
    put_tile(out, "requests", "requests", totals.requests, text);
    readable_time(totals.driver.nanoseconds, text);
    put_tile(out, "driver_nanoseconds", "in the driver", totals.driver.nanoseconds, text);
    readable_time(totals.waits.nanoseconds, text);
    put_tile(out, "waits_nanoseconds", "waited for the GPU", totals.waits.nanoseconds, text);
    readable_time(totals.saved_at_least_nanoseconds, text);
    put_tile(out, "saved_at_least_nanoseconds", "saved in the driver, at least",
             totals.saved_at_least_nanoseconds, text);
    readable_count(report_all_failures(&totals), text);
    put_tile(out, "failures", "failed requests", report_all_failures(&totals), text);
    readable_bytes(totals.peak.reserved_bytes, text);
    put_tile(out, "peak_reserved_bytes", "peak of a device", totals.peak.reserved_bytes, text);
    fputs("</dl>\n", out);
}

/* Writes the start time and the versions, both of the first process. */
static void put_origin(FILE *out, const struct summary *summary)
{
    char text[REPORT_ORIGIN_BYTES] = "";

    if (summary->process_count > 0)
        report_describe_origin(&summary->processes[0].versions,
                               summary->processes[0].started_nanoseconds, text);
    if (text[0] == '\0')
        return;
    fputs("<br>", out);
    put_text(out, text);
}

static void put_header(FILE *out, const struct summary *summary)
{
    size_t hosts = summary_host_count(summary);

    fputs("<header><h1>cudapool report</h1>\n<p>", out);
    fprintf(out, "%zu process%s on %zu host%s", summary->process_count,
            summary->process_count == 1 ? "" : "es", hosts, hosts == 1 ? "" : "s");
    for (size_t i = 0; i < summary->process_count && i < PROCESSES_NAMED; i++) {
        fputs("<br><code>", out);
        put_text(out, summary->processes[i].command);
        fputs("</code>", out);
    }
    if (summary->process_count > PROCESSES_NAMED)
        fprintf(out, "<br>and %zu more", summary->process_count - PROCESSES_NAMED);
    put_origin(out, summary);
    fputs("</p></header>\n<main>\n", out);
}

/* --- advice -------------------------------------------------------------------------------------
 */

static void put_no_advice(FILE *out, const struct summary *summary)
{
    char text[ADVICE_TEXT_BYTES];

    explain_no_advice(summary, text);
    fputs("<p>", out);
    put_text(out, text);
    fputs("</p>\n", out);
}

static int put_advice(FILE *out, const struct summary *summary)
{
    struct advice *advice = calloc(ADVICE_MOST, sizeof(*advice));

    if (advice == NULL)
        return -1;
    size_t count = find_advice(summary, advice);
    fputs("<section aria-labelledby=\"advice\"><h2 id=\"advice\">Advice</h2>\n", out);
    if (count == 0)
        put_no_advice(out, summary);
    else
        fputs("<ul>\n", out);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "<li data-rule=\"%s\">", advice[i].rule);
        put_text(out, advice[i].text);
        if (advice[i].setting[0] != '\0') {
            fputs(" To try it: <code>cudapool run --set ", out);
            put_text(out, advice[i].setting);
            fputs("=", out);
            put_text(out, advice[i].to);
            fputs("</code>", out);
        }
        fputs("</li>\n", out);
    }
    fputs(count == 0 ? "</section>\n" : "</ul></section>\n", out);
    free(advice);
    return 0;
}

/* --- memory -------------------------------------------------------------------------------------
 */

static void put_device(FILE *out, const struct summary_device *device, size_t index)
{
    struct report_counters totals = device_totals(&device->device);
    uint64_t whole = device->device.total_bytes, used = 0;
    struct place place;

    snprintf(place.text, sizeof(place.text), "devices/%zu", index);
    fprintf(out, "<tr><th scope=\"row\">device %d on ", device->device.ordinal);
    put_text(out, device->host);
    fputs(", ", out);
    put_text(out, device->device.name);
    fputs("</th>", out);
    open_bar(out);
    put_part(out, "live", totals.live_bytes, whole);
    put_part(out, "cached", totals.cached_bytes, whole);
    put_part(out, "pending", totals.pending_bytes, whole);
    used = saturating_sum(totals.live_bytes,
                          saturating_sum(totals.cached_bytes, totals.pending_bytes));
    put_part(out, "peak", totals.peak.reserved_bytes > used ? totals.peak.reserved_bytes - used : 0,
             whole);
    close_bar(out);
    put_bytes(out, &place, "live_bytes", totals.live_bytes);
    put_bytes(out, &place, "cached_bytes", totals.cached_bytes);
    put_bytes(out, &place, "pending_bytes", totals.pending_bytes);
    put_bytes(out, &place, "peak_live_bytes", totals.peak.live_bytes);
    put_bytes(out, &place, "peak_reserved_bytes", totals.peak.reserved_bytes);
    put_bytes(out, &place, "total_bytes", whole);
    put_count(out, &place, "processes", device->processes);
    fputs("</tr>\n", out);
}

static void put_memory(FILE *out, const struct summary *summary)
{
    static const char *const head[] = {
        "device",      "share of the device", "in use at the end", "cached",    "pending",
        "peak in use", "peak reserved",       "device's size",     "processes", NULL};
    static const char *const classes[] = {"live", "cached", "pending", "peak", NULL};
    static const char *const names[] = {"in use at the end", "cached", "pending",
                                        "more at the peak", NULL};

    fputs("<section aria-labelledby=\"memory\"><h2 id=\"memory\">Memory</h2>\n", out);
    put_legend(out, classes, names);
    open_scroller(out, "Memory of each device");
    put_head(out,
             "What the program held and the pool kept, of each device. Where processes share a "
             "device, its peak is the sum of theirs, which is the most it can have been.",
             2, head);
    for (size_t i = 0; i < summary->device_count; i++)
        put_device(out, &summary->devices[i], i);
    close_scroller(out);
    fputs("</section>\n", out);
}

/* --- buckets ------------------------------------------------------------------------------------
 */

static uint64_t most_requests(const struct report_kind *kind)
{
    uint64_t most = 0;

    for (size_t i = 0; i < kind->bucket_count; i++)
        if (kind->buckets[i].counters.requests > most)
            most = kind->buckets[i].counters.requests;
    return most;
}

/* Writes how the requests were answered. */
static void put_answers(FILE *out, const struct place *place,
                        const struct report_counters *counters)
{
    char rate[READABLE_BYTES];

    put_count(out, place, "requests", counters->requests);
    readable_hit_rate(counters, rate);
    fprintf(out, "<td class=\"n\">%s</td>", rate);
    put_count(out, place, "hits_clean", counters->hits.clean);
    put_count(out, place, "hits_queried", counters->hits.queried);
    put_count(out, place, "hits_barrier", counters->hits.barrier);
    put_count(out, place, "hits_waited", counters->hits.waited);
    put_count(out, place, "misses", counters->misses);
    put_count(out, place, "failures_memory", counters->failures.memory);
    put_count(out, place, "failures_limit", counters->failures.limit);
    put_count(out, place, "failures_group", counters->failures.group);
    put_count(out, place, "failures_other", counters->failures.other);
    fputs("</tr>\n", out);
}

/* Writes what became of the blocks, and the time that they cost. */
static void put_costs(FILE *out, const struct place *place, const struct report_counters *counters)
{
    put_count(out, place, "frees", counters->frees);
    put_count(out, place, "live_blocks", counters->live_blocks);
    put_bytes(out, place, "peak_reserved_bytes", counters->peak.reserved_bytes);
    put_count(out, place, "evictions_cap", counters->evictions.cap);
    put_count(out, place, "evictions_idle", counters->evictions.idle);
    put_count(out, place, "evictions_memory", counters->evictions.memory);
    put_count(out, place, "evictions_free", counters->evictions.free);
    put_count(out, place, "evictions_context", counters->evictions.context);
    put_time(out, place, "driver_nanoseconds", counters->driver.nanoseconds);
    put_time(out, place, "waits_nanoseconds", counters->waits.nanoseconds);
    put_count(out, place, "waits_frees", counters->waits.frees);
    put_time(out, place, "saved_at_least_nanoseconds", counters->saved_at_least_nanoseconds);
    fputs("</tr>\n", out);
}

static void put_rungs(FILE *out, const struct report_counters *counters, uint64_t whole)
{
    open_bar(out);
    put_part(out, "clean", counters->hits.clean, whole);
    put_part(out, "queried", counters->hits.queried, whole);
    put_part(out, "barrier", counters->hits.barrier, whole);
    put_part(out, "waited", counters->hits.waited, whole);
    put_part(out, "missed", saturating_sum(counters->misses, report_all_failures(counters)), whole);
    close_bar(out);
}

static struct place put_bucket_name(FILE *out, const struct report_kind *kind,
                                    const struct report_bucket *bucket)
{
    char name[READABLE_BYTES] = "not kept", number[READABLE_BYTES];

    if (bucket->bytes != 0)
        readable_exact_bytes(bucket->bytes, name);
    snprintf(number, sizeof(number), "%" PRIu64, bucket->bytes);
    fprintf(out, "<tr><th scope=\"row\" class=\"n\">%s</th>", name);
    return place_of_kind(kind, number);
}

static void open_sum(FILE *out)
{
    fputs("</tbody><tbody class=\"sum\"><tr><th scope=\"row\" class=\"n\">all</th>", out);
}

static void put_all_answers(FILE *out, const struct report_kind *kind)
{
    static const char *const head[] = {"bucket",   "hits by rung, and misses",
                                       "requests", "hits",
                                       "clean",    "queried",
                                       "barrier",  "waited",
                                       "misses",   "failed: memory",
                                       "limit",    "group's limit",
                                       "other",    NULL};
    struct place place = place_of_kind(kind, "totals");
    uint64_t most = most_requests(kind);

    open_scroller(out, "Buckets: requests");
    put_head(out, "Each bucket: how its requests were answered.", 2, head);
    for (size_t i = 0; i < kind->bucket_count; i++) {
        struct place row = put_bucket_name(out, kind, &kind->buckets[i]);
        put_rungs(out, &kind->buckets[i].counters, most);
        put_answers(out, &row, &kind->buckets[i].counters);
    }
    open_sum(out);
    fputs("<td></td>", out);
    put_answers(out, &place, &kind->totals);
    close_scroller(out);
}

static void put_all_costs(FILE *out, const struct report_kind *kind)
{
    static const char *const head[] = {
        "bucket", "frees",   "live",   "peak",    "given back: cap", "idle",           "memory",
        "free",   "context", "driver", "waiting", "free waits",      "saved at least", NULL};
    struct place place = place_of_kind(kind, "totals");

    open_scroller(out, "Buckets: blocks and time");
    put_head(out, "Each bucket: what became of its blocks, and the time that they took.", 1, head);
    for (size_t i = 0; i < kind->bucket_count; i++) {
        struct place row = put_bucket_name(out, kind, &kind->buckets[i]);
        put_costs(out, &row, &kind->buckets[i].counters);
    }
    open_sum(out);
    put_costs(out, &place, &kind->totals);
    close_scroller(out);
}

/* --- sizes --------------------------------------------------------------------------------------
 */

/* Returns floor(log2(bytes)). */
static unsigned doubling_of(uint64_t bytes)
{
    return 63 - (unsigned)__builtin_clzll(bytes);
}

static void put_doubling(FILE *out, const struct report_kind *kind, unsigned doubling,
                         uint64_t requests, uint64_t most)
{
    char from[READABLE_BYTES], number[READABLE_BYTES];

    readable_exact_bytes(UINT64_C(1) << doubling, from);
    snprintf(number, sizeof(number), "sizes/%u", doubling);
    struct place place = place_of_kind(kind, number);
    fprintf(out, "<tr><th scope=\"row\" class=\"n\">%s</th>", from);
    open_bar(out);
    put_part(out, "size", requests, most);
    close_bar(out);
    put_count(out, &place, "requests", requests);
    fputs("</tr>\n", out);
}

static void put_sizes(FILE *out, const struct report_kind *kind)
{
    static const char *const head[] = {"block size from", "requests", "requests", NULL};
    uint64_t requests[64] = {0}, most = 0;

    for (size_t i = 0; i < kind->bucket_count; i++) {
        const struct report_bucket *bucket = &kind->buckets[i];
        if (bucket->bytes == 0)
            continue;
        uint64_t *sum = &requests[doubling_of(bucket->bytes)];
        *sum = saturating_sum(*sum, bucket->counters.requests);
        most = *sum > most ? *sum : most;
    }
    open_scroller(out, "Sizes");
    put_head(out, "Requests by the size of their blocks, from one power of two to the next.", 2,
             head);
    for (unsigned i = 0; i < 64; i++)
        if (requests[i] != 0)
            put_doubling(out, kind, i, requests[i], most);
    close_scroller(out);
}

static void put_kind(FILE *out, const struct report_kind *kind)
{
    static const char *const classes[] = {"clean", "queried", "barrier", "waited", "missed", NULL};
    static const char *const names[] = {"clean: known to be unused",
                                        "queried: its fence was over",
                                        "barrier: the GPU waits",
                                        "waited: the program waited",
                                        "missed: the driver answered, or it failed",
                                        NULL};

    fputs("<section><h2>", out);
    put_text(out, kind->kind);
    fputs(" memory</h2>\n", out);
    put_legend(out, classes, names);
    put_all_answers(out, kind);
    put_all_costs(out, kind);
    put_sizes(out, kind);
    fputs("</section>\n", out);
}

/* --- settings and processes ---------------------------------------------------------------------
 */

static void put_setting(FILE *out, const struct setting *setting, const struct settings *settings,
                        const struct settings *defaults)
{
    char words[SETTING_TEXT_BYTES];
    json_t *value = setting_to_json(setting, settings);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    setting_to_words(setting, settings, words);
    fprintf(out, "<tr><th scope=\"row\"><code>%s</code></th><td data-setting=\"%s\">",
            setting->path, setting->path);
    put_text(out, text == NULL ? "" : text);
    fprintf(out, "</td><td>%s</td><td>",
            setting_is_equal(setting, settings, defaults) ? "" : "changed");
    put_text(out, words);
    fputs("</td></tr>\n", out);
    free(text);
    json_decref(value);
}

static void put_settings(FILE *out, const struct summary *summary)
{
    static const char *const head[] = {"setting", "value", "from the default", "meaning", NULL};
    struct settings defaults;

    settings_defaults(&defaults);
    fputs("<section><h2 id=\"settings\">Settings</h2>\n", out);
    if (summary->settings_differ)
        fputs("<p>The processes had different settings. These are the first one's.</p>\n", out);
    open_scroller(out, "Settings");
    put_head(out, "The settings in force.", 4, head);
    for (size_t i = 0; i < settings_table_length; i++)
        put_setting(out, &settings_table[i], &summary->settings, &defaults);
    close_scroller(out);
    fputs("</section>\n", out);
}

static void put_process(FILE *out, const struct summary_process *process, size_t index)
{
    struct place place;
    char rate[READABLE_BYTES], ran[READABLE_BYTES], end[REPORT_END_BYTES];

    snprintf(place.text, sizeof(place.text), "processes/%zu", index);
    fputs("<tr><th scope=\"row\">", out);
    put_text(out, process->host);
    fprintf(out, "</th><td class=\"n\">%" PRId64 "</td><td class=\"n\">", process->pid);
    put_text(out, process->rank[0] == '\0' ? "-" : process->rank);
    fputs("</td>", out);
    readable_seconds(process->wall_seconds, ran);
    fprintf(out, "<td class=\"n\">%s</td>", ran);
    put_count(out, &place, "requests", process->totals.requests);
    readable_hit_rate(&process->totals, rate);
    fprintf(out, "<td class=\"n\">%s</td>", rate);
    put_count(out, &place, "misses", process->totals.misses);
    put_count(out, &place, "failures", report_all_failures(&process->totals));
    put_bytes(out, &place, "peak_reserved_bytes", process->totals.peak.reserved_bytes);
    put_time(out, &place, "driver_nanoseconds", process->totals.driver.nanoseconds);
    put_time(out, &place, "saved_at_least_nanoseconds", process->totals.saved_at_least_nanoseconds);
    fputs("<td><code>", out);
    put_text(out, process->command);
    report_describe_end(process->ending, process->exit, end);
    fprintf(out, "</code>%s%s</td></tr>\n", end[0] == '\0' ? "" : ", ", end);
}

static void put_processes(FILE *out, const struct summary *summary)
{
    static const char *const head[] = {"host",           "process", "rank",   "ran",  "requests",
                                       "hits",           "misses",  "failed", "peak", "driver",
                                       "saved at least", "command", NULL};

    fputs("<section><h2>Processes</h2>\n<details", out);
    fprintf(out, "%s><summary>%zu process%s</summary>\n",
            summary->process_count <= 16 ? " open" : "", summary->process_count,
            summary->process_count == 1 ? "" : "es");
    open_scroller(out, "Processes");
    put_head(out, "Each process.", 1, head);
    for (size_t i = 0; i < summary->process_count; i++)
        put_process(out, &summary->processes[i], i);
    close_scroller(out);
    fputs("</details></section>\n", out);
}

/* --- the page -----------------------------------------------------------------------------------
 */

int print_html(const struct summary *summary, FILE *out)
{
    open_page(out, "cudapool report");
    put_header(out, summary);
    put_tiles(out, summary);
    if (put_advice(out, summary) != 0)
        return -1;
    put_memory(out, summary);
    put_neighbours(out, summary);
    put_history(out, summary);
    for (size_t i = 0; i < summary->kind_count; i++)
        put_kind(out, &summary->kinds[i]);
    put_settings(out, summary);
    put_processes(out, summary);
    close_page(out);
    return 0;
}
