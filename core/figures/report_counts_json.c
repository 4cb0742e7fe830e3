/*
 * Tables of counters, and counters as JSON (report_counts_json.h): first the tables, then merging,
 * writing and reading.
 */
#include "report_counts_json.h"

#include <stdio.h>
#include <string.h>

#include "core/base/numbers.h"
#include "core/settings/document_json.h"

#define SINCE_FIRST false
#define SINCE_LATER true

static const struct report_count bucket_counts[] = {
#define COUNTS_OF_BUCKETS
#define COUNTS_AS_ENTRIES
#include "report_counts.def"
};

static const struct report_count sample_counts[] = {
#define COUNTS_OF_SAMPLES
#define COUNTS_AS_ENTRIES
#include "report_counts.def"
};

static const struct report_count neighbour_counts[] = {
#define COUNTS_OF_NEIGHBOURS
#define COUNTS_AS_ENTRIES
#include "report_counts.def"
};

static const struct report_count segment_counts[] = {
#define COUNTS_OF_SEGMENTS
#define COUNTS_AS_ENTRIES
#include "report_counts.def"
};

static const struct report_count unpooled_counts[] = {
#define COUNTS_OF_UNPOOLED
#define COUNTS_AS_ENTRIES
#include "report_counts.def"
};

static const struct report_count device_counts[] = {
#define COUNTS_OF_DEVICES
#define COUNTS_AS_ENTRIES
#include "report_counts.def"
};

static const struct report_count graph_counts[] = {
#define COUNT(name, merged)                                                                        \
    {"", #name, offsetof(struct report_graphs, name), MERGE_NONE, false, ""},
#include "graph_counts.def"
#undef COUNT
};

#define COUNTS_OF(table)                                                                           \
    {                                                                                              \
        table, sizeof(table) / sizeof((table)[0])                                                  \
    }
const struct report_counts report_bucket_counts = COUNTS_OF(bucket_counts);
const struct report_counts report_sample_counts = COUNTS_OF(sample_counts);
const struct report_counts report_neighbour_counts = COUNTS_OF(neighbour_counts);
const struct report_counts report_segment_counts = COUNTS_OF(segment_counts);
const struct report_counts report_unpooled_counts = COUNTS_OF(unpooled_counts);
const struct report_counts report_device_counts = COUNTS_OF(device_counts);
const struct report_counts report_graph_counts = COUNTS_OF(graph_counts);

static uint64_t *field(const struct report_count *count, void *counters)
{
    return (uint64_t *)(void *)((char *)counters + count->offset);
}

uint64_t report_count_value(const struct report_count *count, const void *counters)
{
    return *(const uint64_t *)(const void *)((const char *)counters + count->offset);
}

void report_counts_merge(const struct report_counts *counts, void *into, const void *from)
{
    for (size_t i = 0; i < counts->length; i++) {
        const struct report_count *count = &counts->counts[i];
        uint64_t *sum = field(count, into), more = report_count_value(count, from);
        if (count->merged == MERGE_LARGEST)
            *sum = larger_of(*sum, more);
        else if (count->merged != MERGE_NONE)
            *sum = saturating_sum(*sum, more);
    }
}

/* ---- writing ---- */

json_t *report_count_to_json(uint64_t count)
{
    char text[24];

    if (count <= INT64_MAX)
        return json_integer((json_int_t)count);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)count);
    return json_string(text);
}

int report_add_counts_to_json(json_t *object, const struct report_counts *counts,
                              const void *counters)
{
    int status = 0;

    for (size_t i = 0; i < counts->length; i++) {
        const struct report_count *count = &counts->counts[i];
        json_t *parent = object;
        if (count->group[0] != '\0') {
            if (json_object_get(object, count->group) == NULL)
                status |= json_object_set_new(object, count->group, json_object());
            parent = json_object_get(object, count->group);
        }
        status |= json_object_set_new(parent, count->name,
                                      report_count_to_json(report_count_value(count, counters)));
    }
    return status;
}

int report_add_object_of_counts(json_t *parent, const char *key, const struct report_counts *counts,
                                const void *counters)
{
    json_t *object = json_object();
    int status = report_add_counts_to_json(object, counts, counters);

    return json_object_set_new(parent, key, json_unless_failed(object, status));
}

/* ---- reading ---- */

/* More than a struct has counters, and an object other keys. */
#define KEYS_MOST 64
_Static_assert(sizeof(bucket_counts) / sizeof(bucket_counts[0]) < KEYS_MOST / 2, "there is room");

int report_refuse_unknown_counts(const struct object *object, const struct report_counts *counts,
                                 const char *group, const char *const *also)
{
    const char *known[KEYS_MOST + 1];
    size_t count = 0;

    for (; also != NULL && *also != NULL; also++)
        known[count++] = *also;
    for (size_t i = 0; i < counts->length && count < KEYS_MOST; i++) {
        if (strcmp(counts->counts[i].group, group) == 0)
            known[count++] = counts->counts[i].name;
        else if (group[0] == '\0')
            known[count++] = counts->counts[i].group;
    }
    known[count] = NULL;
    return object_refuse_unknown_keys(object, known);
}

static int read_count(const struct object *object, const struct report_counts *counts,
                      const struct report_count *count, void *counters)
{
    struct object group;

    if (object_leaves_out(object, count->group[0] == '\0' ? count->name : count->group,
                          count->later))
        return 0;
    if (count->group[0] == '\0')
        return object_read_count(object, count->name, field(count, counters));
    if (object_enter(object, count->group, &group) != 0 ||
        report_refuse_unknown_counts(&group, counts, count->group, NULL) != 0)
        return -1;
    if (object_leaves_out(&group, count->name, count->later))
        return 0;
    return object_read_count(&group, count->name, field(count, counters));
}

int report_read_counts(const struct object *object, const struct report_counts *counts,
                       void *counters)
{
    for (size_t i = 0; i < counts->length; i++)
        if (read_count(object, counts, &counts->counts[i], counters) != 0)
            return -1;
    return 0;
}

int report_read_object_of_counts(const struct object *parent, const char *key,
                                 const struct report_counts *counts, void *counters)
{
    struct object object;

    if (object_leaves_out(parent, key, true))
        return 0;
    if (object_enter(parent, key, &object) != 0 ||
        report_refuse_unknown_counts(&object, counts, "", NULL) != 0)
        return -1;
    return report_read_counts(&object, counts, counters);
}
