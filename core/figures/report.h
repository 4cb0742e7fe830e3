/*
 * The report: what the pool did, as plain data between whoever counted and whoever prints.
 *
 * The pool fills a struct report when the process ends; `cudapool report` fills one from JSON. Both
 * print it with report_print_table. The report owns its arrays (report_free). No locking: a report
 * belongs to one thread. Sizes are bytes, times nanoseconds unless the name says otherwise.
 */
#ifndef CUDAPOOL_CORE_REPORT_H
#define CUDAPOOL_CORE_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/settings/config.h"

#define REPORT_VERSION 1

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
        uint64_t limit;  /* past limits.device_bytes */
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

/* What a device's memory was used for at one moment, of all kinds together. */
struct report_sample {
    uint64_t nanoseconds; /* since the process started its pool; each later than the one before */
    uint64_t live_bytes, cached_bytes, pending_bytes;
    uint64_t peak_bytes; /* the most that these were together since the sample before */
    struct {
        uint64_t clean, queried, barrier, waited;
    } hits; /* since the start, like the misses */
    uint64_t misses;
};

struct report_device {
    int ordinal;
    char name[256];
    char uuid[48]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    uint64_t total_bytes;
    uint64_t fences;        /* context fences recorded */
    uint64_t fence_queries; /* and queries of them */
    uint64_t barriers;      /* context barriers */
    uint64_t captured; /* allocations that the driver answered because a capture was going on */
    struct report_kind *kinds;
    size_t kind_count;
    struct report_sample *samples; /* over time; none where no history was kept */
    size_t sample_count;
};

/* How a process came to be reported. */
enum report_ending {
    REPORT_EXITED,  /* it said so itself when it ended */
    REPORT_KILLED,  /* it ended without a word: what its figures said then */
    REPORT_RUNNING, /* what its figures said while it was running */
};

/* What became of a process, as whoever waited for it knows. */
struct report_exit {
    bool known;
    int status; /* where no signal ended it */
    int signal; /* 0: none */
};

/* What ran in the process; empty or 0: unknown. */
struct report_versions {
    char cudapool[24];
    char driver[32]; /* the driver's release, "580.159.04" */
    uint32_t cuda;   /* what the driver speaks, 12040 for CUDA 12.4 */
};

struct report_process {
    int64_t pid;
    char host[256];
    char rank[32]; /* empty where no launcher's variable is set */
    char command[4096];
    double wall_seconds;
    uint64_t started_nanoseconds; /* since 1970, when its pool was started; 0: unknown */
    enum report_ending ending;
    struct report_exit exit;
    struct report_versions versions;
};

struct report {
    struct report_process process;
    struct settings settings;
    struct report_device *devices;
    size_t device_count;
};

/* How the environment is read: getenv, or secure_getenv inside someone else's program. */
typedef char *(*environment_reader)(const char *name);

/* Fills pid, host, rank and command of this process; what cannot be found out is left empty.
 * wall_seconds is the caller's. */
void report_describe_process(struct report_process *process, environment_reader environment);

/* This cudapool's own version, and the driver's release where the kernel tells it. */
void report_find_versions(struct report_versions *versions);

/* The release out of what /proc/driver/nvidia/version says; empty where there is none. */
void report_driver_release(const char *text, char *release, size_t bytes);

/* "cudapool 0.1.0, driver 580.159.04 (CUDA 13.0), 2026-11-22 11:54:13 UTC", as far as it is known.
 */
#define REPORT_ORIGIN_BYTES 160
void report_describe_origin(const struct report_versions *versions, uint64_t started_nanoseconds,
                            char text[REPORT_ORIGIN_BYTES]);

/* The rank that an MPI launcher, torchrun or Slurm gave this process, in digits; empty where none
 * did. */
void report_find_rank(environment_reader environment, char *rank, size_t bytes);

/* The name that a pattern means for the process (core/base/file_pattern.h). 0, or -1 with errno:
 * EINVAL for another escape, ENAMETOOLONG where it does not fit. */
int report_expand_file_name(const char *name, const struct report_process *process, char *expanded,
                            size_t bytes);

/* The readable table, to out, which is flushed: whole, or as it is to look, in lines that are still
 * to be folded. Takes no memory. Returns 0, or -1 with
 * errno where writing failed. */
struct look;
int report_print_table(const struct report *report, FILE *out);
int report_print_as(const struct report *report, const struct look *look, FILE *out);

/* Parts of the table, for tables of several processes: a kind's line and its buckets; the last
 * line; text out of a file, on one line and not too much of it. */
void report_print_kind(FILE *out, const struct report_kind *kind, const struct look *look);
void report_print_times(FILE *out, const struct report_counters *totals);
void report_print_text(FILE *out, const char *text);

/* The device's samples out of a history that may have been left in the middle of a change; started:
 * the time of the history's clock when the process started its pool. False where memory is short.
 */
struct history;
bool report_take_history(struct report_device *device, const struct history *history,
                         uint64_t started);

/* How a process ended, in words that follow its name: "killed by SIGSEGV"; empty where there is
 * nothing to say. */
#define REPORT_END_BYTES 80
void report_describe_end(enum report_ending ending, struct report_exit exit,
                         char text[REPORT_END_BYTES]);

/* Frees the report's arrays (not the struct itself) and leaves it without devices. */
void report_free(struct report *report);

#endif
