/*
 * Compares two runs (comparison.h) and prints the comparison as a table, as JSON and as CSV: the
 * settings that differ, and the buckets of both runs. The HTML page is in comparison_html.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comparison.h"
#include "core/base/readable.h"
#include "core/figures/report_json.h"
#include "core/figures/report_neighbours_json.h"
#include "core/figures/report_table.h"
#include "core/settings/settings_json.h"
#include "formats.h"
#include "tools/command/terminal.h"

static const struct report_counters nothing;

/* --- walking two lists at once ------------------------------------------------------------------
 */

/* Orders buckets by size. The bucket of requests that are not cached, with 0 bytes, comes last: 0 -
 * 1 is the largest number. */
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

void visit_pairs(const struct summary *a, const struct summary *b, pair_visitor *visit,
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

json_t *settings_that_differ(const struct summary *a, const struct summary *b)
{
    json_t *array = json_array();

    for (size_t i = 0; i < settings_table_length; i++) {
        const struct setting *setting = &settings_table[i];
        if (!setting_matters(setting) || setting_is_equal(setting, &a->settings, &b->settings))
            continue;
        json_array_append_new(array, json_pack("{s:s, s:o, s:o}", "setting", setting->path, "a",
                                               setting_to_json(setting, &a->settings), "b",
                                               setting_to_json(setting, &b->settings)));
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

enum column { BUCKET, REQUESTS, HITS, MISSES, FAILED, PEAK, DRIVER, WAITING_FREES, SAVED, COLUMNS };

#define CELL_BYTES (4 * READABLE_BYTES)

struct row {
    char cells[COLUMNS][CELL_BYTES];
};

static const struct table_column columns[COLUMNS] = {
    [BUCKET] = {"bucket", 0},
    [REQUESTS] = {"requests", 3},
    [HITS] = {"hits", 0},
    [MISSES] = {"misses", 2},
    [FAILED] = {"failed", 1},
    [PEAK] = {"peak", 1},
    [DRIVER] = {"driver", 1},
    [WAITING_FREES] = {"free waits", 3},
    [SAVED] = {"saved at least", 4},
};

typedef void writer(uint64_t value, char cell[READABLE_BYTES]);

/* Fills a cell with both values: "12 -> 9 (-3)". */
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
    fill_both(row->cells[WAITING_FREES], pair->a->waits.frees, pair->b->waits.frees,
              readable_count);
    fill_both(row->cells[SAVED], pair->a->saved_at_least_nanoseconds,
              pair->b->saved_at_least_nanoseconds, readable_time);
}

/* The pairs of both runs in the table's order. Each kind ends with its total. */
struct pairs {
    struct pair *pairs;
    size_t count, room;
    bool failed; /* memory is short */
};

static void keep_pair(const struct pair *pair, void *context)
{
    struct pairs *all = context;

    if (!pair_says_something(pair))
        return;
    if (all->count == all->room) {
        size_t room = all->room == 0 ? 64 : 2 * all->room;
        struct pair *longer = realloc(all->pairs, room * sizeof(*longer));
        if (longer == NULL) {
            all->failed = true;
            return;
        }
        all->pairs = longer;
        all->room = room;
    }
    all->pairs[all->count++] = *pair;
}

/* The weight by which buckets are chosen: failures come first, and then many requests. */
static uint64_t weight_of(const struct pair *pair)
{
    if (report_all_failures(pair->a) > 0 || report_all_failures(pair->b) > 0)
        return UINT64_MAX;
    return saturating_sum(pair->a->requests, pair->b->requests);
}

/* Chooses which of a kind's buckets are shown: the LOOK_ROWS busiest if the look is short, else
 * all. */
static void choose_pairs(struct pair *pairs, size_t count, const struct look *look)
{
    bool is_short = look_is_short(look) && count > LOOK_ROWS;

    for (size_t i = 0; i < count; i++)
        pairs[i].shown = !is_short;
    for (unsigned chosen = 0; is_short && chosen < LOOK_ROWS; chosen++) {
        size_t most = count;
        for (size_t i = 0; i < count; i++)
            if (!pairs[i].shown &&
                (most == count || weight_of(&pairs[i]) > weight_of(&pairs[most])))
                most = i;
        pairs[most].shown = true;
    }
}

static void print_pair(const struct table *table, const struct pair *pair, FILE *out)
{
    enum text_style styles[COLUMNS];
    struct row row;

    for (int i = 0; i < COLUMNS; i++)
        styles[i] = pair->is_total ? STYLE_BOLD : STYLE_PLAIN;
    styles[HITS] = report_style_of_hits(pair->b);
    fill_row(&row, pair);
    table_print(table, row.cells[0], styles, out);
    fputc('\n', out);
}

/* Prints a kind: its count buckets, and then its total, which is pairs[count]. */
static void print_kind(struct pair *pairs, size_t count, const struct look *look, FILE *out)
{
    struct table table;
    struct row row;

    choose_pairs(pairs, count, look);
    pairs[count].shown = true;
    table_begin(&table, columns, COLUMNS, CELL_BYTES, look);
    for (size_t i = 0; i <= count; i++) {
        if (!pairs[i].shown)
            continue;
        fill_row(&row, &pairs[i]);
        table_measure(&table, row.cells[0]);
    }
    table_fit(&table);
    fputs("  ", out);
    report_print_text(out, pairs[count].kind);
    fputs(" memory, A -> B\n", out);
    table_print_headings(&table, out);
    fputc('\n', out);
    for (size_t i = 0; i <= count; i++)
        if (pairs[i].shown)
            print_pair(&table, &pairs[i], out);
    if (look_is_short(look) && count > LOOK_ROWS)
        fprintf(out, "  %zu more: %s\n", count - LOOK_ROWS, look->more);
    table_print_left_out(&table, out);
}

static int print_kinds(const struct summary *a, const struct summary *b, const struct look *look,
                       FILE *out)
{
    struct pairs all = {0};
    size_t first = 0;

    visit_pairs(a, b, keep_pair, &all);
    for (size_t i = 0; i < all.count && !all.failed; i++) {
        if (!all.pairs[i].is_total)
            continue;
        print_kind(&all.pairs[first], i - first, look, out);
        first = i + 1;
    }
    free(all.pairs);
    return all.failed ? -1 : 0;
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

static bool has_command(const struct summary *summary, const char *command)
{
    for (size_t i = 0; i < summary->process_count; i++)
        if (strcmp(summary->processes[i].command, command) == 0)
            return true;
    return false;
}

static bool has_all_commands(const struct summary *summary, const struct summary *of)
{
    for (size_t i = 0; i < of->process_count; i++)
        if (!has_command(summary, of->processes[i].command))
            return false;
    return true;
}

bool commands_differ(const struct summary *a, const struct summary *b)
{
    return !has_all_commands(a, b) || !has_all_commands(b, a);
}

static void print_exchange(const char *what, uint64_t a, uint64_t b, FILE *out)
{
    char one[READABLE_BYTES], other[READABLE_BYTES];

    if (a == 0 && b == 0)
        return;
    readable_bytes(a, one);
    readable_bytes(b, other);
    fprintf(out, "%s other processes, A -> B: %s -> %s\n", what, one, other);
}

static void print_neighbours(const struct summary *a, const struct summary *b, FILE *out)
{
    struct report_neighbours one = summary_neighbours(a), other = summary_neighbours(b);

    print_exchange("given to", one.given.bytes, other.given.bytes, out);
    print_exchange("got from", one.got.bytes, other.got.bytes, out);
    print_exchange("left free for", one.left.bytes, other.left.bytes, out);
}

/* Prints how many times as fast B was. Formats rounded hundredths as integers, so that no locale's
 * decimal point gets in. */
static void print_verdict(const struct summary *a, const struct summary *b, FILE *out)
{
    double one = summary_wall_seconds(a), other = summary_wall_seconds(b);

    if (!(one > 0) || !(other > 0) || one / other > 1e6 || other / one > 1e6)
        return;
    unsigned long hundredths = (unsigned long)(one / other * 100 + 0.5);
    fprintf(out, "B ran %lu.%02lu times as fast as A\n", hundredths / 100, hundredths % 100);
}

int print_comparison_table(const struct summary *a, const struct summary *b,
                           const struct look *look, FILE *out)
{
    struct folding folding;
    FILE *lines = folding_begin(&folding, look, out);

    print_run("A", a, lines);
    print_run("B", b, lines);
    if (commands_differ(a, b))
        fputs(COMMANDS_DIFFER "\n", lines);
    print_verdict(a, b, lines);
    print_settings(a, b, lines);
    print_neighbours(a, b, lines);
    int status = print_kinds(a, b, look, lines);
    folding_end(&folding);
    return status;
}

/* --- JSON ---------------------------------------------------------------------------------------
 */

/* Returns b - a. A difference that does not fit in 63 bits becomes the largest or smallest that
 * does. */
static json_int_t difference(uint64_t a, uint64_t b)
{
    uint64_t size = a > b ? a - b : b - a;
    json_int_t most = size > INT64_MAX ? INT64_MAX : (json_int_t)size;

    return a > b ? -most : most;
}

static json_t *differences(const struct pair *pair)
{
    json_t *object = json_object();

    report_add_counts_to_json(object, &report_bucket_counts, &nothing);
    for (size_t i = 0; i < report_bucket_counts.length; i++) {
        const struct report_count *counter = &report_bucket_counts.counts[i];
        json_t *parent =
            counter->group[0] == '\0' ? object : json_object_get(object, counter->group);
        json_object_set_new(parent, counter->name,
                            json_integer(difference(report_count_value(counter, pair->a),
                                                    report_count_value(counter, pair->b))));
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
    return json_pack("{s:i, s:b, s:{s:f, s:f}, s:o, s:o, s:o, s:o}", "cudapool_comparison",
                     REPORT_VERSION, "commands_differ", commands_differ(a, b), "wall_seconds", "a",
                     summary_wall_seconds(a), "b", summary_wall_seconds(b), "a", summary_to_json(a),
                     "b", summary_to_json(b), "settings", settings_that_differ(a, b), "differences",
                     rows);
}

/* --- CSV ----------------------------------------------------------------------------------------
 */

static void print_csv_pair(const struct pair *pair, void *context)
{
    FILE *out = context;

    for (size_t i = 0; i < report_bucket_counts.length; i++) {
        const struct report_count *counter = &report_bucket_counts.counts[i];
        uint64_t a = report_count_value(counter, pair->a);
        uint64_t b = report_count_value(counter, pair->b);
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

/* Prints what went from process to process. Prints nothing if neither run had any. */
static void print_csv_neighbours(const struct summary *a, const struct summary *b, FILE *out)
{
    struct report_neighbours one = summary_neighbours(a), other = summary_neighbours(b);

    if (!report_has_neighbours(&one) && !report_has_neighbours(&other))
        return;
    for (size_t i = 0; i < report_neighbour_counts.length; i++) {
        const struct report_count *counter = &report_neighbour_counts.counts[i];
        uint64_t was = report_count_value(counter, &one);
        uint64_t is = report_count_value(counter, &other);
        fprintf(out, "neighbours,,%s%s%s,%" PRIu64 ",%" PRIu64 ",%lld\r\n", counter->group,
                counter->group[0] == '\0' ? "" : "_", counter->name, was, is,
                (long long)difference(was, is));
    }
}

void print_comparison_csv(const struct summary *a, const struct summary *b, FILE *out)
{
    fputs("kind,bucket_bytes,counter,a,b,difference\r\n", out);
    visit_pairs(a, b, print_csv_pair, out);
    print_csv_neighbours(a, b, out);
}
