/*
 * The layout of figures (figures.h), in memory and in their file: a header, then records that begin
 * with their type and length.
 *
 * Integers have a fixed size and natural alignment. Text ends with a zero unless it fills its
 * array. Whoever changes the layout changes FIGURES_VERSION.
 */
#ifndef CUDAPOOL_CORE_FIGURES_LAYOUT_H
#define CUDAPOOL_CORE_FIGURES_LAYOUT_H

#include <stdint.h>

#include "core/settings/config.h"
#include "core/settings/limits.h"
#include "history.h"
#include "report_process.h"
#include "stats.h"

#define FIGURES_MAGIC     UINT64_C(0x6c6f6f7061647563) /* "cudapool", the lowest byte first */
#define FIGURES_VERSION   15u
#define FIGURES_ALIGNMENT 64u /* of records: those of different heaps share no cache line */

/* The process that owns the figures. Times are nanoseconds. */
struct figures_process {
    uint64_t pid;
    uint64_t pid_namespace; /* its inode; 0: unknown */
    uint64_t start_ticks; /* of the process, since boot, from /proc; with the pid it identifies the
                             process */
    char boot[40];        /* the kernel's boot id */
    uint64_t started;     /* on the monotonic clock */
    uint64_t started_at;  /* the same moment, since 1970 */
    char host[256];
    char rank[32];
    char command[4096];
    struct report_versions versions;
};

struct figures_header {
    counter magic;    /* FIGURES_MAGIC; stored last when the arena is made */
    uint64_t version; /* FIGURES_VERSION of the writer */
    uint64_t first;   /* offset of the first record; a multiple of FIGURES_ALIGNMENT */
    counter used;     /* bytes of the header and all records */
    counter lost;     /* records that found no room */
    counter ended;    /* 1 once the process has ended by itself */
    counter seen;     /* the monotonic clock as of the last slow path; several threads store it */
    struct figures_process process;
};

enum figures_type {
    FIGURES_SETTINGS = 1,
    FIGURES_DEVICE,
    FIGURES_HISTORY,
    FIGURES_KIND,
    FIGURES_HEAP,
    FIGURES_BUCKET,
    FIGURES_BIN,
    FIGURES_NEIGHBOURS,
    FIGURES_HOUSEKEEPER,
    FIGURES_LIMITS,
    FIGURES_GRAPHS,
    FIGURES_UNPOOLED,
};

/* The head of each record. A reader skips types that it does not know. */
struct figures_record {
    uint32_t type;
    uint32_t bytes; /* of the whole record; a multiple of FIGURES_ALIGNMENT */
};

struct figures_settings_record {
    struct figures_record record;
    struct settings settings;
};

struct figures_device {
    struct figures_record record;
    int64_t ordinal;
    uint64_t total_bytes;
    char name[256];
    unsigned char uuid[16];
};

struct figures_history {
    struct figures_record record;
    int64_t device; /* its ordinal */
    struct history history;
};

struct figures_kind {
    struct figures_record record;
    int64_t device;
    uint64_t kind; /* enum memory_kind */
    struct kind_counters counters;
};

struct figures_heap {
    struct figures_record record;
    int64_t device;
    uint64_t heap; /* identifies the heap in its process */
    struct heap_counters counters;
};

struct figures_bucket {
    struct figures_record record;
    int64_t device;
    uint64_t kind;
    uint64_t owner; /* identifies the heap, or for other kinds the context or stream */
    uint64_t bytes; /* of each of its blocks; 0: blocks that are not cached */
    struct bucket_counters counters;
};

/* A bucket's bin in a per-thread cache. The record is never removed: it serves one thread after
 * another. */
struct figures_bin {
    struct figures_record record;
    int64_t device;
    uint64_t kind;
    uint64_t owner;
    uint64_t bytes;
    struct bin_counters counters;
};

struct figures_neighbours {
    struct figures_record record;
    int64_t device;
    struct neighbour_counters counters;
};

struct figures_unpooled {
    struct figures_record record;
    int64_t device;
    struct unpooled_counters counters[UNPOOLED_KINDS];
};

/* One in each process. */
struct figures_housekeeper {
    struct figures_record record;
    struct housekeeper_counters counters;
};

/* One in each process whose captures may allocate. */
struct figures_graphs {
    struct figures_record record;
    struct graph_counters counters;
};

/* The limits of the process's memory on a device: those in force are limits[changes % 2]. The
 * release store of changes follows the stores of its limits. A reader that two changes overtake
 * may find a mix. */
struct figures_limits {
    struct figures_record record;
    int64_t device;
    counter changes;
    struct device_limits limits[2];
};

/* Room for about thirteen thousand buckets. Pages that are never used take no memory. */
#define FIGURES_BYTES_MAX (UINT64_C(4) << 20)

#endif
