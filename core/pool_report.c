/*
 * From counters to a report: buckets of the same size in all contexts of a device become one row.
 * Called once, when the process ends, by a thread that may not wait for others: nothing is locked,
 * and what another thread is counting meanwhile is counted or not.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool_state.h"
#include "stream_heap.h"

/* Sums over a device, from which a bucket without a measurement of its own takes its costs. */
struct costs {
    uint64_t allocations, allocation_nanoseconds;
    uint64_t returns, return_nanoseconds;
};

struct rows {
    struct report_kind *kind;
    struct costs *costs; /* of the rows, in their order before sorting */
    struct costs all;
    size_t capacity;
    bool failed;
};

/* Of two counters that others may be changing. */
static uint64_t difference(uint64_t larger, uint64_t smaller)
{
    return larger > smaller ? larger - smaller : 0;
}

static void merge_counters(struct report_counters *into, const struct bucket_counters *c,
                           uint64_t bytes)
{
    uint64_t requests = bucket_requests(c);
    into->requests += requests;
    into->hits.clean += counter_get(&c->hits[HIT_CLEAN]);
    into->hits.queried += counter_get(&c->hits[HIT_QUERIED]);
    into->hits.barrier += counter_get(&c->hits[HIT_BARRIER]);
    into->hits.waited += counter_get(&c->hits[HIT_WAITED]);
    into->misses += counter_get(&c->misses);
    into->frees += counter_get(&c->frees);
    into->requested_bytes += counter_get(&c->requested_bytes);
    /* What is not kept is not rounded. */
    into->rounded_bytes += bytes ? requests * bytes : counter_get(&c->requested_bytes);
    uint64_t free = counter_get(&c->free_bytes), clean = counter_get(&c->clean_bytes);
    into->live_bytes += difference(counter_get(&c->reserved_bytes), free);
    into->cached_bytes += clean;
    into->pending_bytes += difference(free, clean);
    into->peak.live_bytes += counter_get(&c->peak_live_bytes);
    into->peak.reserved_bytes += counter_get(&c->peak_reserved_bytes);
    into->evictions.cap += counter_get(&c->evictions[EVICTION_CAP]);
    into->evictions.idle += counter_get(&c->evictions[EVICTION_IDLE]);
    into->evictions.memory += counter_get(&c->evictions[EVICTION_MEMORY]);
    into->driver.calls += counter_get(&c->allocation_calls) + counter_get(&c->returned_blocks);
    into->driver.nanoseconds +=
        counter_get(&c->allocation_nanoseconds) + counter_get(&c->return_nanoseconds);
}

/* All but the peaks: those of buckets are not of the same moment. */
static void add_counters(struct report_counters *into, const struct report_counters *c)
{
    into->requests += c->requests;
    into->hits.clean += c->hits.clean;
    into->hits.queried += c->hits.queried;
    into->hits.barrier += c->hits.barrier;
    into->hits.waited += c->hits.waited;
    into->misses += c->misses;
    into->frees += c->frees;
    into->requested_bytes += c->requested_bytes;
    into->rounded_bytes += c->rounded_bytes;
    into->live_bytes += c->live_bytes;
    into->cached_bytes += c->cached_bytes;
    into->pending_bytes += c->pending_bytes;
    into->evictions.cap += c->evictions.cap;
    into->evictions.idle += c->evictions.idle;
    into->evictions.memory += c->evictions.memory;
    into->driver.calls += c->driver.calls;
    into->driver.nanoseconds += c->driver.nanoseconds;
    into->saved_nanoseconds += c->saved_nanoseconds;
}

static bool make_room_for_row(struct rows *rows)
{
    if (rows->kind->bucket_count < rows->capacity)
        return true;
    size_t capacity = rows->capacity ? 2 * rows->capacity : 32;
    struct report_bucket *buckets =
        realloc(rows->kind->buckets, capacity * sizeof *rows->kind->buckets);
    if (buckets)
        rows->kind->buckets = buckets;
    struct costs *costs = realloc(rows->costs, capacity * sizeof *rows->costs);
    if (costs)
        rows->costs = costs;
    if (!buckets || !costs)
        return false;
    rows->capacity = capacity;
    return true;
}

static size_t find_row(struct rows *rows, uint64_t bytes)
{
    size_t i = 0;
    while (i < rows->kind->bucket_count && rows->kind->buckets[i].bytes != bytes)
        i++;
    return i;
}

static void add_bucket(struct bucket *bucket, void *argument)
{
    struct rows *rows = argument;
    const struct bucket_counters *c = bucket->counters;
    if (rows->failed || bucket_requests(c) == 0)
        return;
    size_t i = find_row(rows, bucket->bytes);
    if (i == rows->kind->bucket_count) {
        if (!make_room_for_row(rows)) {
            rows->failed = true;
            return;
        }
        rows->kind->buckets[i] = (struct report_bucket){.bytes = bucket->bytes};
        rows->costs[i] = (struct costs){0, 0, 0, 0};
        rows->kind->bucket_count++;
    }
    merge_counters(&rows->kind->buckets[i].counters, c, bucket->bytes);
    struct costs *costs[] = {&rows->costs[i], &rows->all};
    for (int k = 0; k < 2; k++) {
        costs[k]->allocations += counter_get(&c->allocation_calls);
        costs[k]->allocation_nanoseconds += counter_get(&c->allocation_nanoseconds);
        costs[k]->returns += counter_get(&c->returned_blocks);
        costs[k]->return_nanoseconds += counter_get(&c->return_nanoseconds);
    }
}

static double average(uint64_t sum, uint64_t count, uint64_t other_sum, uint64_t other_count)
{
    if (count)
        return (double)sum / (double)count;
    return other_count ? (double)other_sum / (double)other_count : 0;
}

/* Hits times what a miss of the bucket and giving a block back have cost here. What was never
 * measured counts as nothing. */
static uint64_t saved(const struct report_counters *c, const struct costs *own,
                      const struct costs *all)
{
    uint64_t hits = c->hits.clean + c->hits.queried + c->hits.barrier + c->hits.waited;
    double each =
        average(own->allocation_nanoseconds, own->allocations, all->allocation_nanoseconds,
                all->allocations) +
        average(own->return_nanoseconds, own->returns, all->return_nanoseconds, all->returns);
    return (uint64_t)((double)hits * each);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = ((const struct report_bucket *)a)->bytes;
    uint64_t y = ((const struct report_bucket *)b)->bytes;
    /* Blocks that are not kept, with 0 bytes, come last. */
    return (x - 1 > y - 1) - (x - 1 < y - 1);
}

/* Contexts that were never there together are not added up past what the device has seen. */
static void fill_heap_peaks(struct pool *pool, const struct device *device,
                            struct report_counters *totals)
{
    uint64_t live = 0, reserved = counter_get(&device->memory->peak_reserved);
    struct context *c = atomic_load_explicit(&pool->registry.contexts, memory_order_acquire);
    for (; c; c = c->next)
        live += c->device == device ? heap_peak_requested(&c->heap) : 0;
    totals->peak.live_bytes = live < reserved ? live : reserved;
    totals->peak.reserved_bytes = reserved;
}

static void add_heaps(struct pool *pool, const struct device *device, struct rows *rows)
{
    struct context *c = atomic_load_explicit(&pool->registry.contexts, memory_order_acquire);
    for (; c; c = c->next)
        if (c->device == device)
            heap_visit_buckets(&c->heap, add_bucket, rows);
    fill_heap_peaks(pool, device, &rows->kind->totals);
}

/* As of the misses, which are when more was taken than ever before. */
static void fill_stream_peaks(const struct device *device, struct report_counters *totals)
{
    totals->peak.live_bytes = counter_get(&device->stream_memory->peak_requested);
    totals->peak.reserved_bytes = counter_get(&device->stream_memory->peak_reserved);
}

static void add_streams(struct pool *pool, const struct device *device, struct rows *rows)
{
    for (unsigned i = 0; pool->streams && i < stream_count(pool->streams); i++)
        if (stream_at(pool->streams, i)->device == device)
            stream_heap_visit(stream_at(pool->streams, i), add_bucket, rows);
    fill_stream_peaks(device, &rows->kind->totals);
}

static bool fill_kind(struct pool *pool, const struct device *device, struct report_kind *kind,
                      const char *name,
                      void (*add)(struct pool *, const struct device *, struct rows *))
{
    struct rows rows = {.kind = kind};
    snprintf(kind->kind, sizeof kind->kind, "%s", name);
    add(pool, device, &rows);
    for (size_t i = 0; rows.costs && i < kind->bucket_count; i++) {
        struct report_counters *counters = &kind->buckets[i].counters;
        counters->saved_nanoseconds = saved(counters, &rows.costs[i], &rows.all);
        add_counters(&kind->totals, counters);
    }
    free(rows.costs);
    if (kind->bucket_count)
        qsort(kind->buckets, kind->bucket_count, sizeof *kind->buckets, by_size);
    return !rows.failed;
}

static void format_uuid(char *out, size_t size, const CUuuid *uuid)
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(out, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static bool fill_device(struct pool *pool, struct device *device, struct report_device *out)
{
    out->ordinal = device->ordinal;
    snprintf(out->name, sizeof out->name, "%s", device->name);
    format_uuid(out->uuid, sizeof out->uuid, &device->uuid);
    out->total_bytes = device->total_bytes;
    struct context *c = atomic_load_explicit(&pool->registry.contexts, memory_order_acquire);
    for (; c; c = c->next) {
        if (c->device != device)
            continue;
        out->fences += counter_get(&c->heap.counters->fences);
        out->fence_queries += counter_get(&c->heap.counters->fence_queries);
        out->barriers += counter_get(&c->heap.counters->barriers);
    }
    out->kinds = calloc(2, sizeof *out->kinds);
    if (!out->kinds)
        return false;
    out->kind_count = 1;
    if (!fill_kind(pool, device, &out->kinds[0], "device", add_heaps))
        return false;
    /* Where stream-ordered memory was never asked for, there is nothing to say of it. */
    out->kind_count = 2;
    bool filled = fill_kind(pool, device, &out->kinds[1], "stream_ordered", add_streams);
    if (filled && out->kinds[1].bucket_count == 0)
        out->kind_count = 1;
    return filled;
}

static size_t count_devices(const struct pool *pool)
{
    size_t count = 0;
    for (const struct device *d = registry_devices(&pool->registry); d; d = d->next)
        count++;
    return count;
}

int pool_report(struct pool *pool, struct report *report)
{
    size_t count = count_devices(pool);
    report->devices = calloc(count ? count : 1, sizeof *report->devices);
    if (!report->devices)
        return -1;
    struct device *d = registry_devices(&pool->registry);
    for (; d && report->device_count < count; d = d->next)
        if (!fill_device(pool, d, &report->devices[report->device_count++])) {
            report_free(report);
            errno = ENOMEM;
            return -1;
        }
    return 0;
}
