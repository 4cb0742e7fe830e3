/*
 * The report: what the pool did, as plain data between whoever counted and whoever prints.
 *
 * The pool fills a struct report when the process ends; `cudapool report` fills one from JSON. Both
 * print it with report_print_table (report_table.h). The report owns its arrays (report_free). No
 * locking: a report belongs to one thread. Sizes are bytes, times nanoseconds unless the name says
 * otherwise.
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
        uint64_t clean;   /* a block that nothing on the GPU can still be using */
        uint64_t queried; /* a block whose fence turned out to be completed */
        uint64_t barrier; /* a block behind a context barrier */
        uint64_t waited;  /* a block whose fence was waited for */
    } hits;
    uint64_t misses; /* allocations that the driver met */
    struct {
        uint64_t memory; /* the driver was out of memory, after all that the pool could give back */
        uint64_t limit;  /* past the process's limit on the device */
        uint64_t group;  /* past that of its group */
        uint64_t other;  /* the driver said something else */
    } failures;
    uint64_t frees;           /* by the program, one by one or with their context */
    uint64_t requested_bytes; /* all requests together, as asked for */
    uint64_t rounded_bytes;   /* the same, as the blocks' sizes */
    uint64_t live_blocks;     /* in the program's hands: hits + misses - frees */
    uint64_t live_bytes;      /* the same in bytes */
    uint64_t cached_bytes;    /* free and reusable at once */
    uint64_t pending_bytes;   /* free, but the GPU may still be using them */
    struct {
        uint64_t live_bytes;     /* of the totals: as the program asked for them */
        uint64_t reserved_bytes; /* live, cached and pending together */
    } peak;                      /* of the totals: of all buckets together at one time */
    struct {
        uint64_t cap;     /* blocks given back: over a cap or the reserve ratio */
        uint64_t idle;    /* unused for release_after_idle */
        uint64_t memory;  /* someone ran out of memory */
        uint64_t free;    /* the program's own free was the driver's to answer */
        uint64_t context; /* their context ended, or they were freed behind the pool's back */
    } evictions;
    struct {
        uint64_t calls; /* driver calls for this bucket: allocations and blocks given back */
        uint64_t nanoseconds;
    } driver;
    struct {
        uint64_t nanoseconds; /* that allocations and frees waited for the GPU */
        uint64_t frees;       /* frees that did */
    } waits;
    uint64_t saved_at_least_nanoseconds; /* hits times what an undisturbed pair costs here */
};

struct report_bucket {
    uint64_t bytes; /* the bucket's block size; 0: requests that are not kept */
    struct report_counters counters;
};

struct report_kind {
    char kind[24]; /* "device" */
    struct report_counters totals;
    struct report_bucket *buckets; /* ascending by bytes, the one with 0 last */
    size_t bucket_count;
};

/* What a device's memory was used for at one moment, of all kinds that lie on it together, and how
 * requests of all kinds were answered. */
struct report_sample {
    uint64_t nanoseconds; /* since the process started; each later than the one before */
    uint64_t live_bytes, cached_bytes, pending_bytes;
    uint64_t peak_bytes; /* the most that these were together since the sample before */
    struct {
        uint64_t clean, queried, barrier, waited;
    } hits; /* since the start, like the misses */
    uint64_t misses;
    uint64_t given_bytes, got_bytes; /* to and from neighbours since the start */
};

/* What went from process to process. */
struct report_exchange {
    uint64_t bytes, times;
    uint64_t last_nanoseconds; /* when, since the process started; 0: never */
};

/* What processes on the device gave each other. Nothing but counters. */
struct report_neighbours {
    struct report_exchange given; /* to others, because they asked */
    struct report_exchange got;   /* from others */
    struct report_exchange left;  /* given back so that neighbours.leave_free stays free */
    uint64_t asked;               /* how often others were asked */
    uint64_t silent;              /* processes that did not answer then */
    uint64_t others_held_bytes;   /* the most that was held when memory ran out, not by the pool */
};

/* The thread of the pool's own, and the board of the user's processes. */
struct report_housekeeper {
    enum housekeeper_state state;
    uint64_t wakeups;
    enum board_state board;
    char board_why[BOARD_WHY_BYTES]; /* where it could not be joined */
};

/* What graphs kept, where captures may allocate (captures.allocate); else nothing but zeroes. */
struct report_graphs {
    bool told; /* captures may allocate */
#define COUNT(name, merged) uint64_t name;
#include "graph_counts.def"
#undef COUNT
};

/* Blocks that were cut out of larger ones, with the policy split; else nothing but zeroes. */
struct report_segments {
    uint64_t count, bytes;    /* larger ones that are cut now */
    uint64_t spare_bytes;     /* of these, in no block */
    uint64_t cuts;            /* blocks that were cut out */
    uint64_t refused_exports; /* of such blocks */
};

struct report_device {
    int ordinal;
    char name[256];
    char uuid[REPORT_UUID_BYTES]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    uint64_t total_bytes;
    uint64_t fences;        /* context fences recorded */
    uint64_t fence_queries; /* and queries of them */
    uint64_t barriers;      /* context barriers */
    uint64_t captured; /* allocations that the driver answered because a capture was going on */
    struct report_segments segments;
    struct report_neighbours neighbours;
    struct device_limits limits; /* in force; none where no limit is named */
    struct report_kind *kinds;
    size_t kind_count;
    struct report_sample *samples; /* over time; none where no history was kept */
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

/* The hits of all rungs. */
uint64_t report_all_hits(const struct report_counters *counters);

/* Whether its bytes are the device's (memory_kind_is_of_device); of a kind that is not known here
 * they are. */
bool report_kind_is_of_device(const struct report_kind *kind);

/* The failures for all reasons, and the blocks given back for all reasons. */
uint64_t report_all_failures(const struct report_counters *counters);
uint64_t report_all_given_back(const struct report_counters *counters);

/* The device's samples out of a history that may have been left in the middle of a change; started:
 * the time of the history's clock when the process started. False where memory is short.
 */
struct history;
bool report_take_history(struct report_device *device, const struct history *history,
                         uint64_t started);

/* Frees the report's arrays (not the struct itself) and leaves it without devices. */
void report_free(struct report *report);

#endif
