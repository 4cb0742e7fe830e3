/*
 * What `cudapool top` shows, as rows of text: processes, the buckets of one, and devices.
 */
#ifndef CUDAPOOL_TOOLS_TOP_ROWS_H
#define CUDAPOOL_TOOLS_TOP_ROWS_H

#include "core/base/readable.h"
#include "core/base/table.h"
#include "top_watch.h"

enum top_column {
    TOP_NAME,
    TOP_RANK,
    TOP_GROUP,
    TOP_RAN,
    TOP_REQUESTS,
    TOP_HITS,
    TOP_MISSES,
    TOP_LIVE,
    TOP_CACHED,
    TOP_PENDING,
    TOP_NEIGHBOURS,
    TOP_COLUMNS
};

/* By process number, or by bucket as the report has them; or by what is largest first. */
enum top_order {
    ORDER_PROCESS,
    ORDER_REQUESTS,
    ORDER_HITS,
    ORDER_MEMORY,
    ORDER_CACHED,
    ORDER_NAME,
    ORDERS
};

extern const char *const top_order_names[ORDERS]; /* as --sort has them */

struct top_row {
    char cells[TOP_COLUMNS][READABLE_BYTES];
    char text[256];                  /* after the columns: the command, or where the bucket is */
    uint64_t number;                 /* the process, or the bucket's place in the report */
    struct process_identity process; /* of a process */
    struct rates rates;
};

/* What a row's text takes at least of a terminal's columns, with the gap before it. */
#define TOP_TEXT_LEAST 20

struct top_rows {
    struct top_row *rows;
    size_t count, room;
};

/* The headings of processes and of buckets; columns that a bucket does not have are empty. */
extern const struct table_column top_process_columns[TOP_COLUMNS];
extern const struct table_column top_bucket_columns[TOP_COLUMNS];

/* Rows in this order, added to those before. 0, or -1 where memory is short; the caller frees
 * rows->rows in either case. */
int top_add_processes(struct top_rows *rows, const struct view *view, enum top_order order);
int top_add_buckets(struct top_rows *rows, const struct watched *watched, enum top_order order);

/* A device, and what all processes hold there. */
struct top_device {
    const struct report_device *device; /* as one of its processes sees it */
    uint64_t live, cached, pending;
};

/* The devices that processes hold memory on, each once. How many; *devices is the caller's to
 * free. */
size_t top_find_devices(const struct view *view, struct top_device **devices);

#endif
