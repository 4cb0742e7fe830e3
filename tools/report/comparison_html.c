/*
 * The HTML page that compares two runs: what changed, first in total, then setting by setting and
 * bucket by bucket. Like the page of one run (report_html.c), it has no script and loads nothing
 * from elsewhere. Every number stands in an attribute as well.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comparison.h"
#include "core/base/readable.h"
#include "core/figures/report_table.h"
#include "formats.h"
#include "html.h"

/* --- two numbers and their difference -----------------------------------------------------------
 */

typedef void writer(uint64_t value, char cell[READABLE_BYTES]);

/* Which change of a number is an improvement. */
enum good { GOOD_LESS, GOOD_MORE, GOOD_NEITHER };

static const char *class_of_change(uint64_t a, uint64_t b, enum good good)
{
    if (a == b || good == GOOD_NEITHER)
        return "";
    return (b < a) == (good == GOOD_LESS) ? " better" : " worse";
}

/* Prints the change, "-12.5 ms"; an empty cell if there is none. */
static void put_change(FILE *out, uint64_t a, uint64_t b, writer *write, enum good good)
{
    char text[READABLE_BYTES];

    write(a > b ? a - b : b - a, text);
    fprintf(out, "<td class=\"n%s\">%s%s</td>", class_of_change(a, b, good),
            a == b  ? ""
            : a > b ? "&minus;"
                    : "+",
            a == b ? "" : text);
}

static void put_both(FILE *out, const struct place *place, const char *name, uint64_t a, uint64_t b,
                     writer *write, enum good good)
{
    char text[READABLE_BYTES], key[96];

    snprintf(key, sizeof(key), "%.80s/a", name);
    write(a, text);
    put_number(out, "td", place, key, a, text);
    snprintf(key, sizeof(key), "%.80s/b", name);
    write(b, text);
    put_number(out, "td", place, key, b, text);
    put_change(out, a, b, write, good);
}

/* --- the two runs -------------------------------------------------------------------------------
 */

static void put_row_head(FILE *out, const char *name)
{
    fprintf(out, "<tr><th scope=\"row\">%s</th>", name);
}

static uint64_t wall_nanoseconds(const struct summary *summary)
{
    double seconds = summary_wall_seconds(summary);

    return seconds > 0 && seconds < 1e10 ? (uint64_t)(seconds * 1e9) : 0;
}

struct sum_row {
    const char *name, *key;
    uint64_t a, b;
    writer *write;
    enum good good;
};

static void put_rows(FILE *out, const struct sum_row *rows, size_t count)
{
    static const struct place place = {"comparison"};

    for (size_t i = 0; i < count; i++) {
        put_row_head(out, rows[i].name);
        put_both(out, &place, rows[i].key, rows[i].a, rows[i].b, rows[i].write, rows[i].good);
        fputs("</tr>\n", out);
    }
}

/* Prints a row, unless both numbers are 0. */
static void put_exchange(FILE *out, const char *name, const char *key, uint64_t a, uint64_t b)
{
    if (a != 0 || b != 0)
        put_rows(out, &(struct sum_row){name, key, a, b, readable_bytes, GOOD_NEITHER}, 1);
}

static void put_exchanges(FILE *out, const struct summary *a, const struct summary *b)
{
    struct report_neighbours one = summary_neighbours(a), other = summary_neighbours(b);

    put_exchange(out, "given to other processes", "given_bytes", one.given.bytes,
                 other.given.bytes);
    put_exchange(out, "got from other processes", "got_bytes", one.got.bytes, other.got.bytes);
    put_exchange(out, "left free for other processes", "left_bytes", one.left.bytes,
                 other.left.bytes);
}

static void put_sums(FILE *out, const struct summary *a, const struct summary *b)
{
    static const char *const head[] = {"", "A", "B", "change", NULL};
    struct report_counters one = summary_totals(a), other = summary_totals(b);
    const struct sum_row rows[] = {
        {"wall time", "wall_nanoseconds", wall_nanoseconds(a), wall_nanoseconds(b), readable_time,
         GOOD_LESS},
        {"requests", "requests", one.requests, other.requests, readable_count, GOOD_NEITHER},
        {"from the pool", "hits", report_all_hits(&one), report_all_hits(&other), readable_count,
         GOOD_MORE},
        {"misses", "misses", one.misses, other.misses, readable_count, GOOD_LESS},
        {"failed", "failures", report_all_failures(&one), report_all_failures(&other),
         readable_count, GOOD_LESS},
        {"in the driver", "driver_nanoseconds", one.driver.nanoseconds, other.driver.nanoseconds,
         readable_time, GOOD_LESS},
        {"waited for the GPU", "waits_nanoseconds", one.waits.nanoseconds, other.waits.nanoseconds,
         readable_time, GOOD_LESS},
        {"frees that waited", "waits_frees", one.waits.frees, other.waits.frees, readable_count,
         GOOD_LESS},
        {"peak of a device", "peak_reserved_bytes", one.peak.reserved_bytes,
         other.peak.reserved_bytes, readable_bytes, GOOD_LESS},
    };

    put_head(out, "Both runs, each with its processes together.", 1, head);
    put_rows(out, rows, sizeof(rows) / sizeof(rows[0]));
    put_exchanges(out, a, b);
    fputs("</tbody></table>\n", out);
}

/* --- settings -----------------------------------------------------------------------------------
 */

static void put_value(FILE *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    fputs("<td><code>", out);
    put_text(out, text == NULL ? "" : text);
    fputs("</code></td>", out);
    free(text);
}

static void put_settings(FILE *out, const struct summary *a, const struct summary *b)
{
    static const char *const head[] = {"setting", "A", "B", NULL};
    json_t *differing = settings_that_differ(a, b), *setting;
    size_t i;

    fputs("<section><h2>Settings</h2>\n", out);
    if (json_array_size(differing) == 0)
        fputs("<p>The settings are the same.</p>\n", out);
    else
        put_head(out, "The settings that differ.", 3, head);
    json_array_foreach(differing, i, setting)
    {
        fputs("<tr><th scope=\"row\"><code>", out);
        put_text(out, json_string_value(json_object_get(setting, "setting")));
        fputs("</code></th>", out);
        put_value(out, json_object_get(setting, "a"));
        put_value(out, json_object_get(setting, "b"));
        fputs("</tr>\n", out);
    }
    fputs(json_array_size(differing) == 0 ? "</section>\n" : "</tbody></table></section>\n", out);
    json_decref(differing);
}

/* --- buckets ------------------------------------------------------------------------------------
 */

struct page {
    FILE *out;
    const char *kind; /* the kind whose table is open; NULL: none */
};

static void open_kind(FILE *out, const char *kind)
{
    static const char *const head[] = {"bucket",    "requests: A", "B",      "hits: A", "B",
                                       "misses: A", "B",           "change", "peak: A", "B",
                                       "change",    "driver: A",   "B",      "change",  NULL};

    fputs("<section><h2>", out);
    put_text(out, kind);
    fputs(" memory</h2>\n", out);
    open_scroller(out, "Buckets");
    put_head(out, "Each bucket in both runs.", 1, head);
}

static void put_rate(FILE *out, const struct report_counters *counters)
{
    char rate[READABLE_BYTES];

    readable_hit_rate(counters, rate);
    fprintf(out, "<td class=\"n\">%s</td>", rate);
}

static void put_counters(FILE *out, const struct pair *pair, const struct place *place)
{
    const struct report_counters *a = pair->a, *b = pair->b;

    put_count(out, place, "requests/a", a->requests);
    put_count(out, place, "requests/b", b->requests);
    put_rate(out, a);
    put_rate(out, b);
    put_both(out, place, "misses", a->misses, b->misses, readable_count, GOOD_LESS);
    put_both(out, place, "peak_reserved_bytes", a->peak.reserved_bytes, b->peak.reserved_bytes,
             readable_bytes, GOOD_LESS);
    put_both(out, place, "driver_nanoseconds", a->driver.nanoseconds, b->driver.nanoseconds,
             readable_time, GOOD_LESS);
    fputs("</tr>\n", out);
}

static void put_pair(const struct pair *pair, void *context)
{
    struct page *page = context;
    struct report_kind kind = {.kind = ""};
    char name[READABLE_BYTES] = "not kept", number[READABLE_BYTES] = "totals";

    if (!pair_says_something(pair))
        return;
    if (page->kind == NULL)
        open_kind(page->out, pair->kind);
    page->kind = pair->kind;
    snprintf(kind.kind, sizeof(kind.kind), "%s", pair->kind);
    if (pair->is_total)
        snprintf(name, sizeof(name), "all");
    else if (pair->bytes != 0)
        readable_exact_bytes(pair->bytes, name);
    if (!pair->is_total)
        snprintf(number, sizeof(number), "%" PRIu64, pair->bytes);
    struct place place = place_of_kind(&kind, number);
    fprintf(page->out, "%s<tr><th scope=\"row\" class=\"n\">%s</th>",
            pair->is_total ? "</tbody><tbody class=\"sum\">" : "", name);
    put_counters(page->out, pair, &place);
    if (pair->is_total) {
        close_scroller(page->out);
        fputs("</section>\n", page->out);
        page->kind = NULL;
    }
}

/* --- the page -----------------------------------------------------------------------------------
 */

static void put_run(FILE *out, const char *name, const struct summary *summary)
{
    char origin[REPORT_ORIGIN_BYTES];

    fprintf(out, "<p><strong>%s</strong>: %zu process%s", name, summary->process_count,
            summary->process_count == 1 ? "" : "es");
    for (size_t i = 0; i < summary->process_count && i < PROCESSES_NAMED; i++) {
        const struct summary_process *process = &summary->processes[i];
        report_describe_origin(&process->versions, process->started_nanoseconds, origin);
        fputs("<br><code>", out);
        put_text(out, process->command);
        fputs("</code> ", out);
        put_text(out, origin);
    }
    if (summary->process_count > PROCESSES_NAMED)
        fprintf(out, "<br>and %zu more", summary->process_count - PROCESSES_NAMED);
    fputs("</p>\n", out);
}

int print_comparison_html(const struct summary *a, const struct summary *b, FILE *out)
{
    struct page page = {.out = out};

    open_page(out, "cudapool: two runs");
    fputs("<header><h1>cudapool: two runs</h1>\n", out);
    put_run(out, "A", a);
    put_run(out, "B", b);
    if (commands_differ(a, b))
        fputs("<p>" COMMANDS_DIFFER "</p>\n", out);
    fputs("</header>\n<main>\n", out);
    put_sums(out, a, b);
    put_settings(out, a, b);
    visit_pairs(a, b, put_pair, &page);
    close_page(out);
    return 0;
}
