/*
 * Makes the rows of `cudapool top` (top_rows.h).
 */
#include "top_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/figures/figures_report.h"
#include "driver_bytes.h"
#include "tools/summary/summary.h"

const char *const top_order_names[ORDERS] = {"process", "requests", "hits",
                                             "memory",  "cached",   "name"};

#define COLUMNS(first, heading)                                                                    \
    {                                                                                              \
        [TOP_NAME] = {first, 0}, [TOP_RANK] = {heading("rank"), 1},                                \
        [TOP_GROUP] = {heading("group"), 2}, [TOP_RAN] = {heading("ran"), 3},                      \
        [TOP_REQUESTS] = {"requests/s", 0}, [TOP_HITS] = {"hits", 0},                              \
        [TOP_MISSES] = {"misses/s", 5}, [TOP_LIVE] = {"in use", 0}, [TOP_CACHED] = {"cached", 0},  \
        [TOP_PENDING] = {"pending", 4}, [TOP_UNPOOLED] = {heading("unpooled"), 3},                 \
        [TOP_LIMIT] = {heading("limit"), 2}, [TOP_NEIGHBOURS] = {heading("neighbours"), 1},        \
    }
#define OF_PROCESSES(heading) heading
#define OF_NO_BUCKET(heading) ""

const struct table_column top_process_columns[TOP_COLUMNS] = COLUMNS("process", OF_PROCESSES);
const struct table_column top_bucket_columns[TOP_COLUMNS] = COLUMNS("bucket", OF_NO_BUCKET);

/* --- filling ------------------------------------------------------------------------------------
 */

/* Returns a new zeroed row, or NULL if memory is short. */
static struct top_row *add_row(struct top_rows *rows)
{
    if (rows->count == rows->room) {
        size_t room = rows->room == 0 ? 32 : 2 * rows->room;
        struct top_row *longer = realloc(rows->rows, room * sizeof(*longer));
        if (longer == NULL)
            return NULL;
        rows->rows = longer;
        rows->room = room;
    }
    struct top_row *row = &rows->rows[rows->count++];
    memset(row, 0, sizeof(*row));
    return row;
}

/* A cell is "-" where nothing else is known. */
static void fill_with_dashes(struct top_row *row, enum top_column first, enum top_column last)
{
    for (enum top_column column = first; column <= last; column++)
        snprintf(row->cells[column], READABLE_BYTES, "-");
}

static void fill_rate(double rate, char cell[READABLE_BYTES])
{
    if (rate >= 0)
        readable_count(rate < 1e18 ? (uint64_t)(rate + 0.5) : UINT64_C(1000000000000000000), cell);
}

static void fill_rates(struct top_row *row, const struct rates *rates)
{
    double share = hit_share(rates);

    row->rates = *rates;
    fill_rate(rates->requests, row->cells[TOP_REQUESTS]);
    fill_rate(rates->misses, row->cells[TOP_MISSES]);
    if (share >= 0)
        snprintf(row->cells[TOP_HITS], READABLE_BYTES, "%d%%", (int)(100 * share));
    if (!rates->is_live_unknown)
        readable_bytes(rates->live, row->cells[TOP_LIVE]);
    readable_bytes(rates->cached, row->cells[TOP_CACHED]);
    readable_bytes(rates->pending, row->cells[TOP_PENDING]);
}

/* "alone" means that the process neither gives memory to other processes nor gets any. */
static void fill_neighbours(struct top_row *row, const struct watched *watched)
{
    const char *group =
        watched->on_board && watched->shared.group[0] != '\0' ? watched->shared.group : "-";
    const char *state = "-";

    if (!watched->on_board)
        state = "alone";
    else if (watched->shared.asks)
        state = "asks";
    snprintf(row->cells[TOP_GROUP], READABLE_BYTES, "%.*s", READABLE_BYTES - 1, group);
    snprintf(row->cells[TOP_NEIGHBOURS], READABLE_BYTES, "%s", state);
    make_printable(row->cells[TOP_GROUP], READABLE_BYTES);
}

/* What a tool has set stands on the board at once, and in the figures when the process has read it.
 */
static uint64_t lowest_limit(const struct watched *watched, enum board_limit limit)
{
    const struct report *report = watched->report;
    uint64_t least = UINT64_MAX;

    if (watched->on_board && watched->shared.limits[limit] != BOARD_LIMIT_AT_START)
        return watched->shared.limits[limit];
    for (size_t i = 0; i < report->device_count; i++) {
        const struct device_limits *of = &report->devices[i].limits;
        if (limit == BOARD_LIMIT_OF_PROCESS && of->device_from[0] != '\0')
            least = smaller_of(least, of->device_bytes);
        if (limit == BOARD_LIMIT_OF_GROUP && of->group_from[0] != '\0')
            least = smaller_of(least, of->group_bytes);
    }
    return least;
}

static void fill_limit(struct top_row *row, const struct watched *watched)
{
    uint64_t least = smaller_of(lowest_limit(watched, BOARD_LIMIT_OF_PROCESS),
                                lowest_limit(watched, BOARD_LIMIT_OF_GROUP));

    if (least != UINT64_MAX)
        readable_bytes(least, row->cells[TOP_LIMIT]);
}

static int add_process(struct top_rows *rows, const struct watched *watched)
{
    const struct report_process *process = &watched->report->process;
    struct rates rates = rates_of_process(watched);
    struct top_row *row = add_row(rows);

    if (row == NULL)
        return -1;
    fill_with_dashes(row, TOP_RAN, TOP_LIMIT);
    row->number = (uint64_t)process->pid;
    row->process = watched->identity;
    snprintf(row->cells[TOP_NAME], READABLE_BYTES, "%lld", (long long)process->pid);
    snprintf(row->cells[TOP_RANK], READABLE_BYTES, "%.16s", process->rank[0] ? process->rank : "-");
    fill_rates(row, &rates);
    if (watched->has_figures) {
        readable_time((uint64_t)(process->wall_seconds * 1e9), row->cells[TOP_RAN]);
        readable_bytes(rates.unpooled, row->cells[TOP_UNPOOLED]);
    }
    fill_limit(row, watched);
    fill_neighbours(row, watched);
    snprintf(row->text, sizeof(row->text), "%.255s",
             process->command[0] != '\0' ? process->command : "?");
    make_printable(row->cells[TOP_RANK], READABLE_BYTES);
    make_printable(row->text, sizeof(row->text));
    return 0;
}

/* Adds a row of what a process has on a device. */
static int add_part(struct top_rows *rows, const char *name, const struct rates *rates, int ordinal,
                    const char *kind)
{
    size_t place = rows->count;
    struct top_row *row = add_row(rows);

    if (row == NULL)
        return -1;
    fill_with_dashes(row, TOP_REQUESTS, TOP_LIVE);
    row->number = place;
    snprintf(row->cells[TOP_NAME], READABLE_BYTES, "%s", name);
    fill_rates(row, rates);
    snprintf(row->text, sizeof(row->text), "device %d, %s", ordinal, kind);
    return 0;
}

static int add_bucket(struct top_rows *rows, const struct watched *watched, int ordinal,
                      const struct report_kind *kind, const struct report_bucket *bucket)
{
    struct rates rates = rates_of_bucket(watched, ordinal, kind, bucket);
    char name[READABLE_BYTES] = "not kept";

    if (bucket->bytes != 0)
        readable_exact_bytes(bucket->bytes, name);
    return add_part(rows, name, &rates, ordinal, kind->kind);
}

/* Memory beside the pool has no requests that could hit. */
static int add_unpooled(struct top_rows *rows, int ordinal, const char *name,
                        const struct report_unpooled_kind *kind)
{
    struct rates rates = {.requests = -1, .misses = -1, .live = kind->live_bytes};

    return kind->peak_bytes == 0 ? 0 : add_part(rows, "unpooled", &rates, ordinal, name);
}

/* Its number is the same in every Linux: PROC_PID_INIT_INO. */
#define FIRST_PID_NAMESPACE 0xEFFFFFFCu

/* Managed memory is left out, since its pages may be on the host. */
static uint64_t unpooled_on_device(const struct report_device *device)
{
    return rest_of(report_unpooled_live(&device->unpooled), device->unpooled.managed.live_bytes);
}

/* What the driver says that the process holds, beyond all that is counted: contexts and code, for
 * instance. The driver's numbers of processes are those of the first PID namespace. */
static int add_other(struct top_rows *rows, const struct process_identity *process,
                     const struct report_device *device)
{
    struct report_counters totals = device_totals(device);
    struct rates rates = {.requests = -1, .misses = -1};
    struct rates counted = {.live = totals.live_bytes,
                            .cached = totals.cached_bytes,
                            .pending = totals.pending_bytes,
                            .unpooled = unpooled_on_device(device)};
    uint64_t bytes = process->pid_namespace == FIRST_PID_NAMESPACE
                         ? driver_bytes(device->uuid, (uint64_t)process->pid)
                         : 0;

    rates.live = rest_of(bytes, memory_of(&counted));
    return bytes == 0 ? 0 : add_part(rows, "other", &rates, device->ordinal, "not counted");
}

/* --- order --------------------------------------------------------------------------------------
 */

#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

static int compare_by_number(const void *one, const void *other)
{
    return ORDER(((const struct top_row *)one)->number, ((const struct top_row *)other)->number);
}

/* Rows that compare equal are in the order of their numbers, so that they keep their places. */
#define COMPARE(name, expression)                                                                  \
    static int name(const void *one, const void *other)                                            \
    {                                                                                              \
        const struct top_row *a = one, *b = other;                                                 \
        int order = (expression);                                                                  \
        return order != 0 ? order : compare_by_number(one, other);                                 \
    }

COMPARE(compare_by_requests, ORDER(b->rates.requests, a->rates.requests))
COMPARE(compare_by_hits, ORDER(hit_share(&b->rates), hit_share(&a->rates)))
COMPARE(compare_by_memory, ORDER(memory_of(&b->rates), memory_of(&a->rates)))
COMPARE(compare_by_cached, ORDER(b->rates.cached, a->rates.cached))
COMPARE(compare_by_name, strcmp(a->text, b->text))

/* Sorts the rows from first on. */
static void sort_rows(struct top_rows *rows, size_t first, enum top_order order)
{
    static int (*const compare[ORDERS])(const void *, const void *) = {
        [ORDER_PROCESS] = compare_by_number, [ORDER_REQUESTS] = compare_by_requests,
        [ORDER_HITS] = compare_by_hits,      [ORDER_MEMORY] = compare_by_memory,
        [ORDER_CACHED] = compare_by_cached,  [ORDER_NAME] = compare_by_name,
    };

    if (rows->count > first)
        qsort(rows->rows + first, rows->count - first, sizeof(*rows->rows), compare[order]);
}

int top_add_processes(struct top_rows *rows, const struct view *view, enum top_order order)
{
    size_t first = rows->count;
    int status = 0;

    for (size_t i = 0; i < view->count; i++)
        status |= add_process(rows, &view->watched[i]);
    if (status == 0)
        sort_rows(rows, first, order);
    return status;
}

int top_add_buckets(struct top_rows *rows, const struct watched *watched, enum top_order order)
{
    size_t first = rows->count;
    int status = 0;

    for (size_t i = 0; i < watched->report->device_count; i++) {
        const struct report_device *device = &watched->report->devices[i];
        for (size_t j = 0; j < device->kind_count; j++)
            for (size_t k = 0; k < device->kinds[j].bucket_count; k++)
                status |= add_bucket(rows, watched, device->ordinal, &device->kinds[j],
                                     &device->kinds[j].buckets[k]);
        for (int kind = 0; kind < UNPOOLED_KINDS; kind++)
            status |= add_unpooled(rows, device->ordinal, report_unpooled_names[kind],
                                   &device->unpooled.kinds[kind]);
        status |= add_other(rows, &watched->identity, device);
    }
    if (status == 0)
        sort_rows(rows, first, order);
    return status;
}

/* --- devices ------------------------------------------------------------------------------------
 */

/* A process that may see only some of the devices numbers them in its own way, so the uuid
 * decides. */
static bool is_same_device(const struct report_device *one, const struct report_device *other)
{
    if (one->uuid[0] == '\0' || other->uuid[0] == '\0')
        return one->ordinal == other->ordinal;
    return strcmp(one->uuid, other->uuid) == 0;
}

static void add_device(struct top_device *devices, size_t *count,
                       const struct report_device *device)
{
    struct report_counters totals = device_totals(device);
    size_t i = 0;

    while (i < *count && !is_same_device(devices[i].device, device))
        i++;
    if (i == *count)
        devices[(*count)++].device = device;
    devices[i].live = saturating_sum(devices[i].live, totals.live_bytes);
    devices[i].cached = saturating_sum(devices[i].cached, totals.cached_bytes);
    devices[i].pending = saturating_sum(devices[i].pending, totals.pending_bytes);
    devices[i].unpooled = saturating_sum(devices[i].unpooled, unpooled_on_device(device));
}

/* Adds what a process without figures has on each device. A device that is in no figures is left
 * out. */
static void add_neighbour(struct top_device *devices, size_t count,
                          const struct board_process *process)
{
    for (unsigned i = 0; i < process->device_count; i++) {
        const struct board_process_device *shared = &process->devices[i];
        char uuid[sizeof(devices->device->uuid)];
        report_write_uuid(shared->uuid, uuid, sizeof(uuid));
        for (size_t j = 0; j < count; j++) {
            if (strcmp(devices[j].device->uuid, uuid) != 0)
                continue;
            devices[j].live = saturating_sum(devices[j].live, live_on_board(shared));
            devices[j].cached = saturating_sum(devices[j].cached, shared->cached);
            devices[j].pending = saturating_sum(devices[j].pending, shared->pending);
        }
    }
}

static int compare_devices(const void *one, const void *other)
{
    const struct report_device *a = ((const struct top_device *)one)->device;
    const struct report_device *b = ((const struct top_device *)other)->device;
    int order = (a->ordinal > b->ordinal) - (a->ordinal < b->ordinal);

    return order != 0 ? order : strcmp(a->uuid, b->uuid);
}

size_t top_find_devices(const struct view *view, struct top_device **devices)
{
    size_t most = 1, count = 0;

    for (size_t i = 0; i < view->count; i++)
        most += view->watched[i].report->device_count;
    *devices = calloc(most, sizeof(**devices));
    for (size_t i = 0; i < view->count && *devices != NULL; i++) {
        const struct report *report = view->watched[i].report;
        for (size_t j = 0; j < report->device_count; j++)
            add_device(*devices, &count, &report->devices[j]);
    }
    for (size_t i = 0; i < view->count; i++)
        if (!view->watched[i].has_figures)
            add_neighbour(*devices, count, &view->watched[i].shared);
    if (count > 1)
        qsort(*devices, count, sizeof(**devices), compare_devices);
    return count;
}
