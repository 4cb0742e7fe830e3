/*
 * Makes a report of counters (figures_report.h).
 *
 * Each bucket or bin of a device becomes a row. Rows of the same kind and size are joined, and
 * become the buckets of the device's kinds.
 *
 * Part of the preload object: libc only.
 */
#include "figures_report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/numbers.h"
#include "core/base/scratch.h"
#include "stats.h"

/* Nanoseconds of the quickest allocation by the driver, and of the quickest release to it; 0: there
 * was none. */
struct costs {
    uint64_t allocation, giving_back;
};

struct row {
    enum memory_kind kind;
    struct report_bucket bucket;
    struct costs costs;
};

/* The rows of a device, of all kinds of memory. */
struct rows {
    struct row *rows;
    size_t count, capacity;
    bool failed;
};

/* ---- a row ---- */

static struct report_counters counters_of(const struct bucket_counters *c, uint64_t bytes)
{
    uint64_t requests = bucket_requests(c), requested = counter_get(&c->requested_bytes);
    uint64_t free = counter_get(&c->free_bytes), clean = counter_get(&c->clean_bytes);
    return (struct report_counters){
        .requests = requests,
        .hits = {.clean = counter_get(&c->hits[HIT_CLEAN]),
                 .queried = counter_get(&c->hits[HIT_QUERIED]),
                 .barrier = counter_get(&c->hits[HIT_BARRIER]),
                 .waited = counter_get(&c->hits[HIT_WAITED])},
        .misses = counter_get(&c->misses),
        .failures = {.memory = counter_get(&c->failures[FAILURE_MEMORY]),
                     .limit = counter_get(&c->failures[FAILURE_LIMIT]),
                     .group = counter_get(&c->failures[FAILURE_GROUP]),
                     .other = counter_get(&c->failures[FAILURE_OTHER])},
        .frees = counter_get(&c->frees),
        .requested_bytes = requested,
        /* Requests that are not cached are not rounded. */
        .rounded_bytes = bytes ? requests * bytes : requested,
        .live_bytes = rest_of(counter_get(&c->reserved_bytes), free),
        .cached_bytes = clean,
        .pending_bytes = rest_of(free, clean),
        .peak = {.live_bytes = counter_get(&c->peak_live_bytes),
                 .reserved_bytes = counter_get(&c->peak_reserved_bytes)},
        .evictions = {.cap = counter_get(&c->evictions[EVICTION_CAP]),
                      .idle = counter_get(&c->evictions[EVICTION_IDLE]),
                      .memory = counter_get(&c->evictions[EVICTION_MEMORY]),
                      .free = counter_get(&c->evictions[EVICTION_FREE]),
                      .context = counter_get(&c->evictions[EVICTION_CONTEXT])},
        .driver = {.calls = counter_get(&c->allocation_calls) + counter_get(&c->returned_blocks),
                   .nanoseconds = counter_get(&c->allocation_nanoseconds) +
                                  counter_get(&c->return_nanoseconds)},
        .waits = {.nanoseconds = counter_get(&c->wait_nanoseconds),
                  .frees = counter_get(&c->waiting_frees)},
    };
}

/* live_bytes is negative, modulo 2^64: it is added to that of the bucket. */
static struct report_counters counters_of_bin(const struct bin_counters *c, uint64_t bytes)
{
    uint64_t hits = counter_get(&c->hits);
    uint64_t free = bin_free_blocks(c), pending = bin_pending_blocks(c, free);
    return (struct report_counters){
        .requests = hits,
        .hits = {.clean = hits},
        .frees = counter_get(&c->frees),
        .requested_bytes = counter_get(&c->requested_bytes),
        .rounded_bytes = hits * bytes,
        .live_bytes = 0 - free * bytes,
        .cached_bytes = (free - pending) * bytes,
        .pending_bytes = pending * bytes,
    };
}

/* The lesser of two values that are not 0; 0 means that there is none. */
static uint64_t least(uint64_t one, uint64_t other)
{
    return one == 0 || (other != 0 && other < one) ? other : one;
}

static void lower_costs(struct costs *into, const struct costs *costs)
{
    into->allocation = least(into->allocation, costs->allocation);
    into->giving_back = least(into->giving_back, costs->giving_back);
}

/* Adds all counters but the peaks. */
static void add_counters(struct report_counters *into, const struct report_counters *c)
{
#define SUM(counter) into->counter += c->counter;
#define NOW          SUM
#define PEAK(counter)
#define COUNTS_OF_BUCKETS
#define COUNT(name, merged, since, says)         merged(name)
#define MEMBER(group, name, merged, since, says) merged(group.name)
#include "report_counts.def"
#undef SUM
#undef NOW
#undef PEAK
}

/* ---- all rows ---- */

static void add_row(struct rows *rows, const struct row *row)
{
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity ? 2 * rows->capacity : 32;
        struct row *longer = scratch_realloc(rows->rows, capacity * sizeof *longer);
        if (!longer) {
            rows->failed = true;
            return;
        }
        rows->rows = longer;
        rows->capacity = capacity;
    }
    rows->rows[rows->count++] = *row;
}

/* A block may be freed in another context or stream than it was allocated in. A bucket may
 * therefore have frees and no requests. */
static bool was_used(const struct bucket_counters *c)
{
    return bucket_requests(c) || counter_get(&c->frees) || counter_get(&c->waiting_frees) ||
           counter_get(&c->peak_reserved_bytes);
}

static void add_bucket(struct rows *rows, const struct figures_bucket *bucket)
{
    if (was_used(&bucket->counters))
        add_row(rows, &(struct row){(enum memory_kind)bucket->kind,
                                    {bucket->bytes, counters_of(&bucket->counters, bucket->bytes)},
                                    {counter_get(&bucket->counters.allocation_least),
                                     counter_get(&bucket->counters.return_least)}});
}

static void add_bin(struct rows *rows, const struct figures_bin *bin)
{
    add_row(rows, &(struct row){(enum memory_kind)bin->kind,
                                {bin->bytes, counters_of_bin(&bin->counters, bin->bytes)},
                                {0, 0}});
}

/* Orders rows by kind, then by size. */
static bool comes_before(const struct row *one, const struct row *other)
{
    /* 0 bytes (blocks that are not cached) wraps to the largest value, and comes last. */
    uint64_t x = one->bucket.bytes - 1, y = other->bucket.bytes - 1;
    return one->kind != other->kind ? one->kind < other->kind : x < y;
}

static void swap_rows(struct row *one, struct row *other)
{
    struct row kept = *one;
    *one = *other;
    *other = kept;
}

/* Restores the order of a heap of count rows in which only the row at top may come before one of
 * its two children. */
static void sift_down(struct row *rows, size_t top, size_t count)
{
    size_t below;
    while ((below = 2 * top + 1) < count) {
        if (below + 1 < count && comes_before(&rows[below], &rows[below + 1]))
            below++;
        if (!comes_before(&rows[top], &rows[below]))
            return;
        swap_rows(&rows[top], &rows[below]);
        top = below;
    }
}

/* A heap sort, since qsort allocates with malloc, which may not be called here (scratch.h). */
static void sort(struct row *rows, size_t count)
{
    for (size_t top = count / 2; top-- > 0;)
        sift_down(rows, top, count);
    for (size_t left = count; left > 1; left--) {
        swap_rows(&rows[0], &rows[left - 1]);
        sift_down(rows, 0, left - 1);
    }
}

/* A bin's counters may have changed while they were read, so live bytes may be negative. The peak
 * is at least the bytes that are live now. */
static void finish_row(struct report_counters *c)
{
    uint64_t hits = c->hits.clean + c->hits.queried + c->hits.barrier + c->hits.waited;
    c->live_blocks = rest_of(hits + c->misses, c->frees);
    if ((int64_t)c->live_bytes < 0)
        c->live_bytes = 0;
    if (c->live_bytes > c->peak.live_bytes)
        c->peak.live_bytes = c->live_bytes;
}

static void join_rows_of_one_size(struct rows *rows)
{
    size_t kept = 0;
    if (rows->count == 0)
        return;
    sort(rows->rows, rows->count);
    for (size_t i = 1; i < rows->count; i++) {
        struct row *last = &rows->rows[kept], *row = &rows->rows[i];
        if (row->kind != last->kind || row->bucket.bytes != last->bucket.bytes) {
            rows->rows[++kept] = *row;
            continue;
        }
        add_counters(&last->bucket.counters, &row->bucket.counters);
        last->bucket.counters.peak.live_bytes += row->bucket.counters.peak.live_bytes;
        last->bucket.counters.peak.reserved_bytes += row->bucket.counters.peak.reserved_bytes;
        lower_costs(&last->costs, &row->costs);
    }
    rows->count = kept + 1;
    for (size_t i = 0; i < rows->count; i++)
        finish_row(&rows->rows[i].bucket.counters);
}

/* Hits times the cost of the quickest allocation and release of this size. The quickest is used
 * because it does not grow when misses get slower. It is a lower bound, because the driver's free
 * would also have waited for the GPU, and nobody knows how long. A cost that was never measured
 * counts as 0. */
static uint64_t saved_at_least(const struct report_counters *c, const struct costs *costs)
{
    uint64_t hits = c->hits.clean + c->hits.queried + c->hits.barrier + c->hits.waited, saved;
    uint64_t each = costs->allocation + costs->giving_back;
    return __builtin_mul_overflow(hits, each, &saved) ? UINT64_MAX : saved;
}

/* Fills a kind's buckets from count rows, and sums them up. */
static bool fill_buckets(const struct row *rows, size_t count, struct report_kind *kind)
{
    struct costs costs = {0, 0};
    kind->buckets = scratch_calloc(count ? count : 1, sizeof *kind->buckets);
    if (!kind->buckets)
        return false;
    kind->bucket_count = count;
    /* Goes from the largest size down. The driver takes no longer for a smaller block than for a
     * larger one, so each size takes over the lower cost of larger ones. Rows of blocks that are
     * not cached do not lower the cost, because such a block may be small. */
    for (size_t i = count; i-- > 0;) {
        struct report_bucket *bucket = &kind->buckets[i];
        *bucket = rows[i].bucket;
        if (bucket->bytes)
            lower_costs(&costs, &rows[i].costs);
        bucket->counters.saved_at_least_nanoseconds = saved_at_least(&bucket->counters, &costs);
        add_counters(&kind->totals, &bucket->counters);
    }
    return true;
}

/* ---- a device ---- */

struct device_records {
    uint64_t started; /* on the monotonic clock */
    const struct figures_history *history;
    const struct figures_kind *kinds[MEMORY_KINDS];
    struct rows rows;
    uint64_t peak_requested; /* bytes, of all heaps together */
};

static void take_segments(const struct segments_counters *from, struct report_segments *into)
{
#define COUNTS_OF_SEGMENTS
#define COUNT(name, merged, since, says) into->name += counter_get(&from->name);
#include "report_counts.def"
}

static void take_heap(const struct figures_heap *heap, struct device_records *records,
                      struct report_device *out)
{
    out->fences += counter_get(&heap->counters.fences);
    out->fence_queries += counter_get(&heap->counters.fence_queries);
    out->barriers += counter_get(&heap->counters.barriers);
    out->captured += counter_get(&heap->counters.captured);
    out->stalled_waits += counter_get(&heap->counters.stalled_waits);
    records->peak_requested += heap_counters_peak(&heap->counters);
    take_segments(&heap->counters.segments, &out->segments);
}

static struct report_exchange exchange_of(const counter *bytes, const counter *times,
                                          const counter *at, uint64_t started)
{
    uint64_t last = counter_get(at);
    return (struct report_exchange){.bytes = counter_get(bytes),
                                    .times = counter_get(times),
                                    .last_nanoseconds = rest_of(last, started)};
}

static void take_neighbours(const struct neighbour_counters *c, uint64_t started,
                            struct report_neighbours *out)
{
    out->given = exchange_of(&c->given_bytes, &c->given_times, &c->given_at, started);
    out->got = exchange_of(&c->got_bytes, &c->got_times, &c->got_at, started);
    out->left = exchange_of(&c->left_bytes, &c->left_times, &c->left_at, started);
    out->asked = counter_get(&c->asked_times);
    out->silent = counter_get(&c->silent_times);
    out->others_held_bytes = counter_get(&c->others_held);
}

static void take_unpooled(const struct unpooled_counters *counters, struct report_unpooled *out)
{
    for (enum unpooled_kind kind = 0; kind < UNPOOLED_KINDS; kind++)
        out->kinds[kind] =
            (struct report_unpooled_kind){.live_bytes = counter_get(&counters[kind].bytes),
                                          .peak_bytes = counter_get(&counters[kind].peak_bytes),
                                          .refused = counter_get(&counters[kind].refused)};
}

/* Takes the records that exist once per device and count none of the pool's memory. */
static void take_surroundings(const struct figures_record *record,
                              const struct device_records *records, struct report_device *out)
{
    const struct figures_neighbours *neighbours = (const void *)record;
    const struct figures_limits *limits = (const void *)record;
    const struct figures_unpooled *unpooled = (const void *)record;
    if (record->type == FIGURES_UNPOOLED && unpooled->device == out->ordinal)
        take_unpooled(unpooled->counters, &out->unpooled);
    if (record->type == FIGURES_NEIGHBOURS && neighbours->device == out->ordinal)
        take_neighbours(&neighbours->counters, records->started, &out->neighbours);
    if (record->type == FIGURES_LIMITS && limits->device == out->ordinal)
        out->limits =
            limits->limits[atomic_load_explicit(&limits->changes, memory_order_acquire) % 2];
}

static void take_record(const struct figures_record *record, struct device_records *records,
                        struct report_device *out)
{
    take_surroundings(record, records, out);
    const struct figures_history *history = (const void *)record;
    const struct figures_kind *kind = (const void *)record;
    const struct figures_heap *heap = (const void *)record;
    const struct figures_bucket *bucket = (const void *)record;
    const struct figures_bin *bin = (const void *)record;
    if (record->type == FIGURES_HISTORY && history->device == out->ordinal)
        records->history = history;
    else if (record->type == FIGURES_KIND && kind->device == out->ordinal &&
             kind->kind < MEMORY_KINDS)
        records->kinds[kind->kind] = kind;
    else if (record->type == FIGURES_HEAP && heap->device == out->ordinal)
        take_heap(heap, records, out);
    else if (record->type == FIGURES_BUCKET && bucket->device == out->ordinal &&
             bucket->kind < MEMORY_KINDS)
        add_bucket(&records->rows, bucket);
    else if (record->type == FIGURES_BIN && bin->device == out->ordinal && bin->kind < MEMORY_KINDS)
        add_bin(&records->rows, bin);
}

/* Contexts and streams may reach their peaks at different times. The sum of their peaks is
 * therefore limited to the device's own peak. */
static void fill_peaks(const struct device_records *records, enum memory_kind kind,
                       struct report_kind *out)
{
    struct report_counters *totals = &out->totals;
    const struct kind_counters *counters = &records->kinds[kind]->counters;
    uint64_t reserved = counter_get(&counters->peak_reserved);
    uint64_t live = counter_get(&counters->peak_requested);
    if (kind == KIND_DEVICE)
        live += records->peak_requested;
    totals->peak.live_bytes = smaller_of(live, reserved);
    totals->peak.reserved_bytes = reserved;
    for (size_t i = 0; i < out->bucket_count; i++) {
        struct report_counters *bucket = &out->buckets[i].counters;
        bucket->peak.reserved_bytes = smaller_of(bucket->peak.reserved_bytes, reserved);
        bucket->peak.live_bytes = smaller_of(bucket->peak.live_bytes, bucket->peak.reserved_bytes);
    }
}

static size_t count_rows_of(const struct rows *rows, size_t first, enum memory_kind kind)
{
    size_t end = first;
    while (end < rows->count && rows->rows[end].kind == kind)
        end++;
    return end - first;
}

static bool fill_kinds(struct device_records *records, struct report_device *out)
{
    struct rows *rows = &records->rows;
    out->kinds = scratch_calloc(MEMORY_KINDS, sizeof *out->kinds);
    if (!out->kinds || rows->failed)
        return false;
    join_rows_of_one_size(rows);
    size_t first = 0, count;
    for (unsigned i = 0; i < MEMORY_KINDS; i++, first += count) {
        count = count_rows_of(rows, first, i);
        /* Kinds other than device memory are left out if nothing was ever requested. */
        if (!records->kinds[i] || (i != KIND_DEVICE && count == 0))
            continue;
        struct report_kind *kind = &out->kinds[out->kind_count++];
        snprintf(kind->kind, sizeof kind->kind, "%s", memory_kind_names[i]);
        if (!fill_buckets(count ? &rows->rows[first] : NULL, count, kind))
            return false;
        fill_peaks(records, i, kind);
        take_segments(&records->kinds[i]->counters.segments, &out->segments);
    }
    return true;
}

void report_write_uuid(const unsigned char *b, char *out, size_t size)
{
    snprintf(out, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static bool fill_device(struct figures_walk walk, const struct figures_device *device,
                        uint64_t started, struct report_device *out)
{
    struct device_records records = {.started = started};
    struct figures_record *record;
    out->ordinal = (int)device->ordinal;
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof device->name, device->name);
    report_write_uuid(device->uuid, out->uuid, sizeof out->uuid);
    out->total_bytes = device->total_bytes;
    while ((record = figures_next(&walk)) != NULL)
        take_record(record, &records, out);
    bool filled =
        fill_kinds(&records, out) &&
        (!records.history || report_take_history(out, &records.history->history, started));
    scratch_free(records.rows.rows);
    return filled;
}

/* ---- all devices ---- */

static bool is_there(const struct report *report, int64_t ordinal)
{
    for (size_t i = 0; i < report->device_count; i++)
        if (report->devices[i].ordinal == ordinal)
            return true;
    return false;
}

static bool add_device(struct figures_walk walk, const struct figures_device *device,
                       uint64_t started, struct report *report)
{
    struct report_device *devices =
        scratch_realloc(report->devices, (report->device_count + 1) * sizeof *devices);
    if (!devices)
        return false;
    report->devices = devices;
    struct report_device *out = &devices[report->device_count++];
    memset(out, 0, sizeof *out);
    return fill_device(walk, device, started, out);
}

/* The value of an enum in a counter; 0 where the value is out of range. */
static uint64_t one_of(const counter *c, uint64_t count)
{
    uint64_t value = counter_get(c);
    return value < count ? value : 0;
}

static void take_housekeeper(const struct housekeeper_counters *c, struct report_housekeeper *out)
{
    out->state = (enum housekeeper_state)one_of(&c->state, HOUSEKEEPER_STATES);
    out->wakeups = counter_get(&c->wakeups);
    out->board = (enum board_state)one_of(&c->board, BOARD_STATES);
    snprintf(out->board_why, sizeof out->board_why, "%.*s", (int)sizeof c->board_why - 1,
             out->board == BOARD_REFUSED ? c->board_why : "");
}

static void take_graphs(const struct graph_counters *c, uint64_t started, struct report_graphs *out)
{
    out->told = true;
#define COUNT(name, merged) out->name = counter_get(&c->name);
#include "graph_counts.def"
#undef COUNT
    out->most_owned_nanoseconds = rest_of(out->most_owned_nanoseconds, started);
}

int figures_report(struct figures_walk walk, uint64_t started, struct report *report)
{
    struct figures_walk devices = walk;
    struct figures_record *record;
    while ((record = figures_next(&devices)) != NULL) {
        const struct figures_device *device = (const void *)record;
        const struct figures_housekeeper *housekeeper = (const void *)record;
        if (record->type == FIGURES_HOUSEKEEPER)
            take_housekeeper(&housekeeper->counters, &report->housekeeper);
        const struct figures_graphs *graphs = (const void *)record;
        if (record->type == FIGURES_GRAPHS)
            take_graphs(&graphs->counters, started, &report->graphs);
        if (record->type != FIGURES_DEVICE || is_there(report, device->ordinal))
            continue;
        if (!add_device(walk, device, started, report)) {
            report_free(report);
            errno = ENOMEM;
            return -1;
        }
    }
    return 0;
}
