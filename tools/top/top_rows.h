/*
 * The contents of `cudapool top` as rows of text: processes, the buckets of one process, and
 * devices.
 */
#ifndef CUDAPOOL_TOOLS_TOP_ROWS_H
#define CUDAPOOL_TOOLS_TOP_ROWS_H

#include "core/base/readable.h"
#include "core/base/table.h"
#include "top_watch.h"

enum top_column {
    TOP_NAME, /* the pid, or the bucket's size */
    TOP_RANK,
    TOP_GROUP,
    TOP_RAN, /* how long the process has used the pool */
    TOP_REQUESTS,
    TOP_HITS,
    TOP_MISSES,
    TOP_LIVE,
    TOP_CACHED,
    TOP_PENDING,
    TOP_UNPOOLED,
    TOP_LIMIT, /* the lowest of its own and its group's, of any device */
    TOP_NEIGHBOURS,
    TOP_COLUMNS
};

/* ORDER_PROCESS sorts processes by pid, and leaves buckets in the report's order. ORDER_NAME sorts
 * by text of struct top_row, and not by the column TOP_NAME. ORDER_MEMORY sorts by the bytes in
 * use, cached, pending and unpooled together. The other orders put the largest value first. */
enum top_order {
    ORDER_PROCESS,
    ORDER_REQUESTS,
    ORDER_HITS,
    ORDER_MEMORY,
    ORDER_CACHED,
    ORDER_NAME,
    ORDERS
};

extern const char *const top_order_names[ORDERS]; /* the words for --sort */

struct top_row {
    char cells[TOP_COLUMNS][READABLE_BYTES];
    char text[256];  /* after the columns: the command, or the bucket's device and kind */
    uint64_t number; /* the pid, or the bucket's place in the report */
    struct process_identity process; /* only in rows of processes */
    struct rates rates;
};

/* The text of a row takes at least this many terminal columns, with the gap before it. */
#define TOP_TEXT_LEAST 20

struct top_rows {
    struct top_row *rows;
    size_t count, room;
};

/* The headings for processes and for buckets. Columns that buckets do not have are empty. */
extern const struct table_column top_process_columns[TOP_COLUMNS];
extern const struct table_column top_bucket_columns[TOP_COLUMNS];

/* Append rows, sorted by order. Return 0, or -1 if memory is short. The caller frees rows->rows in
 * either case. */
int top_add_processes(struct top_rows *rows, const struct view *view, enum top_order order);
int top_add_buckets(struct top_rows *rows, const struct watched *watched, enum top_order order);

/* A device, and the bytes that all processes hold on it. */
struct top_device {
    const struct report_device *device; /* as one of its processes reports it */
    uint64_t live, cached, pending;
    uint64_t unpooled; /* without managed memory, whose pages may be on the host */
};

/* Finds the devices that are in the figures of processes, each once. Leaves out a device that is in
 * no figures, even if a process holds memory there. Returns how many, and 0 where memory is short.
 * The caller frees *devices. */
size_t top_find_devices(const struct view *view, struct top_device **devices);

#endif
