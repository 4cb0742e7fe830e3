/*
 * The tables of counters (report_counters_json.h): an entry holds a counter's group, name and
 * offset.
 */
#include "report_counters_json.h"

#include <stdio.h>

/* The macros' arguments are members, which cannot stand in parentheses. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define MEMBER(type, group, name, member, newer)                                                   \
    {                                                                                              \
        group, name, offsetof(struct type, member), newer                                          \
    }
#define COUNTER(name)               MEMBER(report_counters, "", #name, name, false)
#define GROUPED(group, name)        MEMBER(report_counters, #group, #name, group.name, false)
#define NEWER(name)                 MEMBER(report_counters, "", #name, name, true)
#define NEWER_GROUPED(group, name)  MEMBER(report_counters, #group, #name, group.name, true)
#define COLUMN(name)                MEMBER(report_sample, "", #name, name, false)
#define NEWER_COLUMN(name)          MEMBER(report_sample, "", #name, name, true)
#define GROUPED_COLUMN(group, name) MEMBER(report_sample, #group, #name, group.name, false)
/* NOLINTEND(bugprone-macro-parentheses) */

const struct report_counter report_counter_table[] = {
    COUNTER(requests),
    GROUPED(hits, clean),
    GROUPED(hits, queried),
    GROUPED(hits, barrier),
    GROUPED(hits, waited),
    COUNTER(misses),
    NEWER_GROUPED(failures, memory),
    NEWER_GROUPED(failures, limit),
    NEWER_GROUPED(failures, group),
    NEWER_GROUPED(failures, other),
    COUNTER(frees),
    COUNTER(requested_bytes),
    COUNTER(rounded_bytes),
    NEWER(live_blocks),
    COUNTER(live_bytes),
    COUNTER(cached_bytes),
    COUNTER(pending_bytes),
    GROUPED(peak, live_bytes),
    GROUPED(peak, reserved_bytes),
    GROUPED(evictions, cap),
    GROUPED(evictions, idle),
    GROUPED(evictions, memory),
    NEWER_GROUPED(evictions, free),
    NEWER_GROUPED(evictions, context),
    GROUPED(driver, calls),
    GROUPED(driver, nanoseconds),
    NEWER_GROUPED(waits, nanoseconds),
    NEWER_GROUPED(waits, frees),
    COUNTER(saved_at_least_nanoseconds),
};
const size_t report_counter_table_length =
    sizeof(report_counter_table) / sizeof(report_counter_table[0]);
_Static_assert(sizeof(report_counter_table) / sizeof(report_counter_table[0]) == REPORT_COUNTERS,
               "every counter has a name");

const struct report_counter report_column_table[] = {
    COLUMN(nanoseconds),           COLUMN(live_bytes),
    COLUMN(cached_bytes),          COLUMN(pending_bytes),
    NEWER_COLUMN(peak_bytes),      GROUPED_COLUMN(hits, clean),
    GROUPED_COLUMN(hits, queried), GROUPED_COLUMN(hits, barrier),
    GROUPED_COLUMN(hits, waited),  COLUMN(misses),
    NEWER_COLUMN(given_bytes),     NEWER_COLUMN(got_bytes),
};
const size_t report_column_table_length =
    sizeof(report_column_table) / sizeof(report_column_table[0]);

uint64_t *report_counter_field(const struct report_counter *counter,
                               struct report_counters *counters)
{
    return (uint64_t *)((char *)counters + counter->offset);
}

uint64_t report_counter_value(const struct report_counter *counter,
                              const struct report_counters *counters)
{
    return *(const uint64_t *)((const char *)counters + counter->offset);
}

json_t *report_count_to_json(uint64_t count)
{
    char text[24];

    if (count <= INT64_MAX)
        return json_integer((json_int_t)count);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)count);
    return json_string(text);
}
