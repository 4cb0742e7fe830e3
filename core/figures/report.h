/*
 * The report: what the pool did, as plain data that counting code fills and printing code reads.
 *
 * The pool fills a struct report when the process ends. Tools fill one from JSON, or from a file of
 * figures. Both print it with report_print_as (report_table.h). The report owns its arrays
 * (report_free). No locking: a report belongs to one thread. Sizes are bytes and times are
 * nanoseconds, unless a name says otherwise.
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
#define COUNTS_OF_BUCKETS
#define COUNTS_AS_MEMBERS
#include "report_counts.def"
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

/* One moment of a device. Its bytes are sums over the kinds whose memory lies on the device. Its
 * hits and misses are sums over all kinds, pinned host memory included. */
struct report_sample {
#define COUNTS_OF_SAMPLES
#define COUNTS_AS_MEMBERS
#include "report_counts.def"
};

/* Memory that went from process to process. */
struct report_exchange {
    uint64_t bytes, times;
    uint64_t last_nanoseconds; /* the time of the last, since the process started; 0: never */
};

/* Memory that processes on the device released for each other. The members are counters (uint64_t)
 * and struct report_exchange. */
struct report_neighbours {
#define COUNTS_OF_NEIGHBOURS
#define COUNTS_AS_MEMBERS
#include "report_counts.def"
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
#define COUNTS_OF_SEGMENTS
#define COUNTS_AS_MEMBERS
#include "report_counts.def"
};

/* Memory of a device that the program takes by calls which the pool does not serve: each kind by
 * its name, and by its number. */
struct report_unpooled_kind {
    uint64_t live_bytes, peak_bytes, refused;
};
struct report_unpooled {
    union {
        struct {
#define COUNTS_OF_UNPOOLED
#define COUNTS_AS_MEMBERS
#include "report_counts.def"
        };
        struct report_unpooled_kind kinds[UNPOOLED_KINDS];
    };
};
#define UNPOOLED_IS_AT(kind, name)                                                                 \
    _Static_assert(offsetof(struct report_unpooled, name.refused) ==                               \
                       offsetof(struct report_unpooled, kinds[kind].refused),                      \
                   "the kinds' order in report_counts.def differs")
UNPOOLED_IS_AT(UNPOOLED_PHYSICAL, physical);
UNPOOLED_IS_AT(UNPOOLED_ARRAYS, arrays);
UNPOOLED_IS_AT(UNPOOLED_MANAGED, managed);
UNPOOLED_IS_AT(UNPOOLED_GRAPHS, graphs);
UNPOOLED_IS_AT(UNPOOLED_OPENED, opened);
#undef UNPOOLED_IS_AT

struct report_device {
    int ordinal;
    char name[256];
    char uuid[REPORT_UUID_BYTES]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
#define COUNTS_OF_DEVICES
#define COUNTS_AS_MEMBERS
#include "report_counts.def"
    struct report_segments segments;
    struct report_neighbours neighbours;
    struct report_unpooled unpooled;
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

/* Whether the program has taken memory that the pool does not serve, or was refused any. */
bool report_has_unpooled(const struct report_unpooled *unpooled);

extern const char *const report_unpooled_names[UNPOOLED_KINDS]; /* as users know them */

/* Returns the bytes that the program holds of all these kinds. */
uint64_t report_unpooled_live(const struct report_unpooled *unpooled);

/* Whether the program has asked for memory of the device, by whichever calls. */
bool report_device_was_used(const struct report_device *device);

/* The sums of all failures, and of all evictions. Those include blocks that ended with their
 * context, or were freed without the pool. */
uint64_t report_all_failures(const struct report_counters *counters);
uint64_t report_all_given_back(const struct report_counters *counters);

/* Fills the device's samples from a history. Skips samples that a killed writer left unfinished.
 * started: when the process started, on the history's clock. False where memory is short. */
struct history;
bool report_take_history(struct report_device *device, const struct history *history,
                         uint64_t started);

/* Frees the report's arrays (not the struct itself) and leaves it without devices. */
void report_free(struct report *report);

#endif
