/*
 * Two runs side by side: their settings where they differ, and their buckets.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/readable.h"
#include "core/report_json.h"
#include "core/settings_json.h"
#include "formats.h"

static const struct report_counters nothing;

/* --- walking two lists at once ------------------------------------------------------------------
 */

/* One bucket, or all of a kind (bucket NULL), in both runs; counters are never NULL. */
struct pair {
    const char *kind;
    bool is_total;
    uint64_t bytes;
    const struct report_counters *a, *b;
};

typedef void pair_visitor(const struct pair *pair, void *context);

/* By size; what is not kept, with 0 bytes, comes last. */
static bool comes_first(uint64_t bytes, uint64_t other)
{
    return bytes - 1 < other - 1;
}

static void visit_buckets(const struct report_kind *a, const struct report_kind *b,
                          pair_visitor *visit, void *context)
{
    static const struct report_kind none;
    const char *name = a == NULL ? b->kind : a->kind;
    size_t i = 0, j = 0;

    a = a == NULL ? &none : a;
    b = b == NULL ? &none : b;
    while (i < a->bucket_count || j < b->bucket_count) {
        struct pair pair = {.kind = name, .a = &nothing, .b = &nothing};
        bool take_a =
            j == b->bucket_count ||
            (i < a->bucket_count && !comes_first(b->buckets[j].bytes, a->buckets[i].bytes));
        bool take_b =
            i == a->bucket_count ||
            (j < b->bucket_count && !comes_first(a->buckets[i].bytes, b->buckets[j].bytes));
        pair.bytes = take_a ? a->buckets[i].bytes : b->buckets[j].bytes;
        if (take_a)
            pair.a = &a->buckets[i++].counters;
        if (take_b)
            pair.b = &b->buckets[j++].counters;
        visit(&pair, context);
    }
    visit(&(struct pair){.kind = name, .is_total = true, .a = &a->totals, .b = &b->totals},
          context);
}

static const struct report_kind *kind_of(const struct summary *summary, const char *name)
{
    for (size_t i = 0; i < summary->kind_count; i++)
        if (strcmp(summary->kinds[i].kind, name) == 0)
            return &summary->kinds[i];
    return NULL;
}

static void visit_pairs(const struct summary *a, const struct summary *b, pair_visitor *visit,
                        void *context)
{
    for (size_t i = 0; i < a->kind_count; i++)
        visit_buckets(&a->kinds[i], kind_of(b, a->kinds[i].kind), visit, context);
    for (size_t i = 0; i < b->kind_count; i++)
        if (kind_of(a, b->kinds[i].kind) == NULL)
            visit_buckets(NULL, &b->kinds[i], visit, context);
}

/* --- settings -----------------------------------------------------------------------------------
 */

/* Where the reports went is no difference. */
static json_t *settings_that_differ(const struct summary *a, const struct summary *b)
{
    json_t *array = json_array();

    for (size_t i = 0; i < settings_table_length; i++) {
        json_t *one = setting_to_json(&settings_table[i], &a->settings);
        json_t *other = setting_to_json(&settings_table[i], &b->settings);
        if (!json_equal(one, other) && strncmp(settings_table[i].path, "report.", 7) != 0)
            json_array_append_new(array, json_pack("{s:s, s:O, s:O}", "setting",
                                                   settings_table[i].path, "a", one, "b", other));
        json_decref(one);
        json_decref(other);
    }
    return array;
}

static void print_setting(const json_t *setting, FILE *out)
{
    char *a = json_dumps(json_object_get(setting, "a"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    char *b = json_dumps(json_object_get(setting, "b"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    fprintf(out, "  %s: ", json_string_value(json_object_get(setting, "setting")));
    report_print_text(out, a == NULL ? "" : a);
    fputs(" -> ", out);
    report_print_text(out, b == NULL ? "" : b);
    fputc('\n', out);
    free(a);
    free(b);
}

static void print_settings(const struct summary *a, const struct summary *b, FILE *out)
{
    json_t *differing = settings_that_differ(a, b), *setting;
    size_t i;

    if (json_array_size(differing) == 0)
        fputs("the settings are the same\n", out);
    else
        fputs("settings, A -> B\n", out);
    json_array_foreach(differing, i, setting) print_setting(setting, out);
    json_decref(differing);
}

/* --- the table ----------------------------------------------------------------------------------
 */

enum column { BUCKET, REQUESTS, HITS, MISSES, FAILED, PEAK, DRIVER, SAVED, COLUMNS };

#define CELL_BYTES (4 * READABLE_BYTES)

struct row {
    char cells[COLUMNS][CELL_BYTES];
};

static const struct row heading = {
    {"bucket", "requests", "hits", "misses", "failed", "peak", "driver", "saved at least"}};

struct table {
    FILE *out; /* NULL: only measure */
    int widths[COLUMNS];
    const char *kind; /* whose rows come now */
};

typedef void writer(uint64_t value, char cell[READABLE_BYTES]);

/* "12 -> 9 (-3)" */
static void fill_both(char cell[CELL_BYTES], uint64_t a, uint64_t b, writer *write)
{
    char first[READABLE_BYTES], second[READABLE_BYTES], change[READABLE_BYTES];

    write(a, first);
    write(b, second);
    write(a > b ? a - b : b - a, change);
    if (a == b)
        snprintf(cell, CELL_BYTES, "%.30s", first);
    else
        snprintf(cell, CELL_BYTES, "%.30s -> %.30s (%c%.30s)", first, second, a > b ? '-' : '+',
                 change);
}

static void fill_hits(char cell[CELL_BYTES], const struct pair *pair)
{
    char first[READABLE_BYTES], second[READABLE_BYTES];

    readable_hit_rate(pair->a, first);
    readable_hit_rate(pair->b, second);
    if (strcmp(first, second) == 0)
        snprintf(cell, CELL_BYTES, "%.30s", first);
    else
        snprintf(cell, CELL_BYTES, "%.30s -> %.30s", first, second);
}

static void fill_row(struct row *row, const struct pair *pair)
{
    if (pair->is_total)
        snprintf(row->cells[BUCKET], CELL_BYTES, "all");
    else if (pair->bytes == 0)
        snprintf(row->cells[BUCKET], CELL_BYTES, "not kept");
    else
        readable_exact_bytes(pair->bytes, row->cells[BUCKET]);
    fill_both(row->cells[REQUESTS], pair->a->requests, pair->b->requests, readable_count);
    fill_hits(row->cells[HITS], pair);
    fill_both(row->cells[MISSES], pair->a->misses, pair->b->misses, readable_count);
    fill_both(row->cells[FAILED], report_all_failures(pair->a), report_all_failures(pair->b),
              readable_count);
    fill_both(row->cells[PEAK], pair->a->peak.reserved_bytes, pair->b->peak.reserved_bytes,
              readable_bytes);
    fill_both(row->cells[DRIVER], pair->a->driver.nanoseconds, pair->b->driver.nanoseconds,
              readable_time);
    fill_both(row->cells[SAVED], pair->a->saved_at_least_nanoseconds,
              pair->b->saved_at_least_nanoseconds, readable_time);
}

static void put_row(struct table *table, const struct row *row)
{
    for (int column = 0; column < COLUMNS; column++) {
        int width = (int)strlen(row->cells[column]);
        if (table->out != NULL)
            fprintf(table->out, "  %*s", table->widths[column], row->cells[column]);
        else if (width > table->widths[column])
            table->widths[column] = width;
    }
    if (table->out != NULL)
        fputc('\n', table->out);
}

static void put_kind(struct table *table, const char *kind)
{
    if (table->out != NULL) {
        fputs("  ", table->out);
        report_print_text(table->out, kind);
        fputs(" memory, A -> B\n", table->out);
    }
    put_row(table, &heading);
}

static void put_pair(const struct pair *pair, void *context)
{
    struct table *table = context;
    struct row row;

    if (pair->a->requests == 0 && pair->b->requests == 0)
        return;
    if (table->kind == NULL || strcmp(table->kind, pair->kind) != 0)
        put_kind(table, pair->kind);
    table->kind = pair->kind;
    fill_row(&row, pair);
    put_row(table, &row);
}

static void print_run(const char *name, const struct summary *summary, FILE *out)
{
    struct report_counters totals = summary_totals(summary);
    char wall[READABLE_BYTES], rate[READABLE_BYTES], spent[READABLE_BYTES], waited[READABLE_BYTES];

    readable_seconds(summary_wall_seconds(summary), wall);
    readable_hit_rate(&totals, rate);
    readable_time(totals.driver.nanoseconds, spent);
    readable_time(totals.waits.nanoseconds, waited);
    fprintf(
        out,
        "%s: ran %s: %zu process%s, %s from the pool, %s in the driver, waited %s for the GPU: ",
        name, wall, summary->process_count, summary->process_count == 1 ? "" : "es", rate, spent,
        waited);
    report_print_text(out, summary->process_count == 0 ? "" : summary->processes[0].command);
    fputc('\n', out);
}

/* Hundredths, rounded, so that no locale's decimal point gets in. */
static void print_verdict(const struct summary *a, const struct summary *b, FILE *out)
{
    double one = summary_wall_seconds(a), other = summary_wall_seconds(b);

    if (!(one > 0) || !(other > 0) || one / other > 1e6 || other / one > 1e6)
        return;
    unsigned long hundredths = (unsigned long)(one / other * 100 + 0.5);
    fprintf(out, "B ran %lu.%02lu times as fast as A\n", hundredths / 100, hundredths % 100);
}

void print_comparison_table(const struct summary *a, const struct summary *b, FILE *out)
{
    struct table table = {0};

    print_run("A", a, out);
    print_run("B", b, out);
    print_verdict(a, b, out);
    print_settings(a, b, out);
    visit_pairs(a, b, put_pair, &table);
    table.out = out;
    table.kind = NULL;
    visit_pairs(a, b, put_pair, &table);
}

/* --- JSON ---------------------------------------------------------------------------------------
 */

/* Differences past 63 bits stop there. */
static json_int_t difference(uint64_t a, uint64_t b)
{
    uint64_t size = a > b ? a - b : b - a;
    json_int_t most = size > INT64_MAX ? INT64_MAX : (json_int_t)size;

    return a > b ? -most : most;
}

static json_t *differences(const struct pair *pair)
{
    json_t *object = json_object();

    report_add_counters_to_json(object, &nothing);
    for (size_t i = 0; i < report_counter_table_length; i++) {
        const struct report_counter *counter = &report_counter_table[i];
        json_t *parent =
            counter->group[0] == '\0' ? object : json_object_get(object, counter->group);
        json_object_set_new(parent, counter->name,
                            json_integer(difference(report_counter_value(counter, pair->a),
                                                    report_counter_value(counter, pair->b))));
    }
    return object;
}

static void append_pair(const struct pair *pair, void *context)
{
    json_t *array = context;

    json_array_append_new(
        array, json_pack("{s:s, s:o, s:o}", "kind", pair->kind, "bytes",
                         pair->is_total ? json_null() : report_count_to_json(pair->bytes),
                         "difference", differences(pair)));
}

json_t *comparison_to_json(const struct summary *a, const struct summary *b)
{
    json_t *rows = json_array();

    visit_pairs(a, b, append_pair, rows);
    return json_pack("{s:i, s:{s:f, s:f}, s:o, s:o, s:o, s:o}", "cudapool_comparison",
                     REPORT_VERSION, "wall_seconds", "a", summary_wall_seconds(a), "b",
                     summary_wall_seconds(b), "a", summary_to_json(a), "b", summary_to_json(b),
                     "settings", settings_that_differ(a, b), "differences", rows);
}

/* --- CSV ----------------------------------------------------------------------------------------
 */

static void print_pair(const struct pair *pair, void *context)
{
    FILE *out = context;

    for (size_t i = 0; i < report_counter_table_length; i++) {
        const struct report_counter *counter = &report_counter_table[i];
        uint64_t a = report_counter_value(counter, pair->a);
        uint64_t b = report_counter_value(counter, pair->b);
        print_csv_field(out, pair->kind, ",");
        if (pair->is_total)
            fputs("all", out);
        else
            fprintf(out, "%" PRIu64, pair->bytes);
        fprintf(out, ",%s%s%s,%" PRIu64 ",%" PRIu64 ",%lld\r\n", counter->group,
                counter->group[0] == '\0' ? "" : "_", counter->name, a, b,
                (long long)difference(a, b));
    }
}

void print_comparison_csv(const struct summary *a, const struct summary *b, FILE *out)
{
    fputs("kind,bucket_bytes,counter,a,b,difference\r\n", out);
    visit_pairs(a, b, print_pair, out);
}
