/*
 * The report: what the pool did, as plain data that counting code fills and printing code reads.
 *
 * The pool fills a struct report when the process ends; `cudapool report` fills one from JSON. Both
 * print it with report_print_table (report_table.h). The report owns its arrays (report_free). No
 * locking: a report belongs to one thread. Sizes are bytes and times are nanoseconds, unless a name
 * says otherwise.
 */
#ifndef CUDAPOOL_CORE_REPORT_H
#define CUDAPOOL_CORE_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/settings/config.h"
#include "core/settings/limits.h"
#include "report_process.h"
#include "states.h"

#define REPORT_VERSION    1
#define REPORT_UUID_BYTES 48

struct report_counters {
    uint64_t requests; /* hits, misses and failures */
    struct {
        uint64_t clean;   /* a block that no GPU work can still be using */
        uint64_t queried; /* a block whose fence a query found completed */
        uint64_t barrier; /* a block ordered after a context barrier */
        uint64_t waited;  /* a block whose fence was waited for */
    } hits;
    uint64_t misses; /* allocations that the driver served */
    struct {
        uint64_t memory; /* the driver had none, even after the pool released what it could */
        uint64_t limit;  /* past the process's limit on the device */
        uint64_t group;  /* past its group's limit */
        uint64_t other;  /* the driver returned another error */
    } failures;
    uint64_t frees;           /* by the program, singly or with their context */
    uint64_t requested_bytes; /* of all requests, as asked for */
    uint64_t rounded_bytes;   /* of all requests, rounded to block sizes */
    uint64_t live_blocks;     /* in use by the program: hits + misses - frees */
    uint64_t live_bytes;      /* of these blocks */
    uint64_t cached_bytes;    /* free and reusable at once */
    uint64_t pending_bytes;   /* free, but the GPU may still be using them */
    struct {
        uint64_t live_bytes;     /* of the totals: in use, as asked for */
        uint64_t reserved_bytes; /* live, cached and pending together */
    } peak;                      /* of the totals: of all buckets together at one time */
    struct {
        uint64_t cap;     /* blocks released to the driver: over a cap or the reserve ratio */
        uint64_t idle;    /* unused for release_after_idle */
        uint64_t memory;  /* this or another process ran out of memory */
        uint64_t free;    /* the driver answered the program's own free */
        uint64_t context; /* their context ended, or they were freed without the pool */
    } evictions;
    struct {
        uint64_t calls; /* driver calls for this bucket: allocations and releases of blocks */
        uint64_t nanoseconds;
    } driver;
    struct {
        uint64_t nanoseconds; /* that allocations and frees waited for the GPU */
        uint64_t frees;       /* frees that waited */
    } waits;
    uint64_t saved_at_least_nanoseconds; /* hits times the quickest driver allocation and free */
};

struct report_bucket {
    uint64_t bytes; /* the bucket's block size; 0: requests that are not cached */
    struct report_counters counters;
};

struct report_kind {
    char kind[24]; /* its name, such as "device" */
    struct report_counters totals;
    struct report_bucket *buckets; /* ascending by bytes, the one with 0 last */
    size_t bucket_count;
};

/* One moment of a device: the use of its memory, of all kinds that lie on it together, and how
 * requests of all kinds were answered. */
struct report_sample {
    uint64_t nanoseconds; /* since the process started; each later than the one before */
    uint64_t live_bytes, cached_bytes, pending_bytes;
    uint64_t peak_bytes; /* the most that these three came to since the sample before */
    struct {
        uint64_t clean, queried, barrier, waited;
    } hits; /* since the start, as are the misses */
    uint64_t misses;
    uint64_t given_bytes, got_bytes; /* to and from other processes, since the start */
};

/* Memory that went from process to process. */
struct report_exchange {
    uint64_t bytes, times;
    uint64_t last_nanoseconds; /* the time of the last, since the process started; 0: never */
};

/* Memory that processes on the device released for each other. Every member is a counter
 * (uint64_t). */
struct report_neighbours {
    struct report_exchange given; /* to others, because they asked */
    struct report_exchange got;   /* from others */
    struct report_exchange left;  /* released so that neighbours.leave_free stays free */
    uint64_t asked;               /* demands made to others */
    uint64_t silent;              /* processes that did not answer a demand */
    uint64_t others_held_bytes;   /* the most held outside the pool when memory ran out */
};

/* The housekeeper thread, and the board of the user's processes. */
struct report_housekeeper {
    enum housekeeper_state state;
    uint64_t wakeups;
    enum board_state board;
    char board_why[BOARD_WHY_BYTES]; /* why it could not be joined; else empty */
};

/* Memory that graphs keep, where captures may allocate (captures.allocate); else all zero. */
struct report_graphs {
    bool told; /* captures may allocate */
#define COUNT(name, merged) uint64_t name;
#include "graph_counts.def"
#undef COUNT
};

/* Segments, which blocks are cut out of with the policy split; else all zero. */
struct report_segments {
    uint64_t count, bytes;    /* segments that exist now */
    uint64_t spare_bytes;     /* of these bytes, in no block */
    uint64_t cuts;            /* blocks ever cut out of segments */
    uint64_t refused_exports; /* exports of cut blocks that were refused */
};

struct report_device {
    int ordinal;
    char name[256];
    char uuid[REPORT_UUID_BYTES]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    uint64_t total_bytes;
    uint64_t fences;        /* context fences recorded */
    uint64_t fence_queries; /* queries whether a fence has completed */
    uint64_t barriers;      /* context barriers */
    uint64_t captured;      /* allocations that the driver answered because of a capture */
    struct report_segments segments;
    struct report_neighbours neighbours;
    struct device_limits limits; /* in force; none where its *_from is empty */
    struct report_kind *kinds;
    size_t kind_count;
    struct report_sample *samples; /* over time; none if no history was stored */
    size_t sample_count;
};

struct report {
    struct report_process process;
    struct settings settings;
    struct report_housekeeper housekeeper;
    struct report_graphs graphs;
    struct report_device *devices;
    size_t device_count;
};

/* The sum of all hits. */
uint64_t report_all_hits(const struct report_counters *counters);

/* Whether the kind's memory lies on the device (memory_kind_is_of_device). True for a kind that is
 * not known here. */
bool report_kind_is_of_device(const struct report_kind *kind);

/* The sums of all failures, and of all blocks released to the driver. */
uint64_t report_all_failures(const struct report_counters *counters);
uint64_t report_all_given_back(const struct report_counters *counters);

/* Fills the device's samples from a history, which may have been left in the middle of a change.
 * started: when the process started, on the history's clock. False where memory is short. */
struct history;
bool report_take_history(struct report_device *device, const struct history *history,
                         uint64_t started);

/* Frees the report's arrays (not the struct itself) and leaves it without devices. */
void report_free(struct report *report);

#endif
