/*
 * Figures: where the counters are kept, so that they survive the process.
 *
 * One arena for each pool, to which typed records are only ever added: settings, devices, heaps,
 * buckets, bins, histories. The counters in them are used in place, by whoever owns the heap or the
 * bucket (stats.h). The arena is a mapped file where the program's owner can have one
 * (figures_file.h), so that whoever looks on sees the counters as they are, and SIGKILL, _exit,
 * abort, exec or the OOM killer lose nothing. Where there is no file it is the process's own
 * memory; where it has no room, a record is made outside, in ordinary memory: it counts, and nobody
 * else sees it. None of that is an error, and nothing of it is told to the program.
 *
 * Locking: the figures lock guards the arena's growth. It is a leaf lock: nothing is taken under
 * it, and no driver call is made; files are opened and extended, rarely. A record is published by
 * the release store to header->used or outside; it pairs with the acquire load in figures_next.
 */
#ifndef CUDAPOOL_CORE_FIGURES_H
#define CUDAPOOL_CORE_FIGURES_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/settings/config.h"
#include "history.h"
#include "report.h"
#include "stats.h"

/* ---- the layout ----
 * Integers of fixed size at their natural places, and text that ends with a zero where it does not
 * fill its array. Whoever changes any of it changes FIGURES_VERSION. */

#define FIGURES_MAGIC     UINT64_C(0x6c6f6f7061647563) /* "cudapool", the lowest byte first */
#define FIGURES_VERSION   3u
#define FIGURES_ALIGNMENT 64u /* of records: those of different heaps share no cache line */

/* Who counts here. Times are nanoseconds. */
struct figures_process {
    uint64_t pid;
    uint64_t pid_namespace; /* its inode; 0: unknown */
    uint64_t start_ticks;   /* since the machine started, from /proc: with the pid, who it is */
    char boot[40];          /* the id of the machine's start */
    uint64_t started;       /* on the monotonic clock, when the pool was started */
    uint64_t started_at;    /* the same moment since 1970 */
    char host[256];
    char rank[32];
    char command[4096];
    struct report_versions versions;
};

struct figures_header {
    counter magic;    /* FIGURES_MAGIC; stored last of all that the arena begins with */
    uint64_t version; /* of all that follows */
    uint64_t first;   /* where the first record is; a multiple of FIGURES_ALIGNMENT */
    counter used;     /* bytes of the header and all records */
    counter lost;     /* records that found no room */
    counter ended;    /* 1 once the process has come to its end by itself */
    counter seen;     /* the monotonic clock when a slow path last looked at it; several threads
                         store it */
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
};

/* What each record begins with. A reader steps over types that it does not know. */
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
    uint64_t heap; /* tells heaps of a process apart */
    struct heap_counters counters;
};

struct figures_bucket {
    struct figures_record record;
    int64_t device;
    uint64_t kind;
    uint64_t owner; /* of KIND_DEVICE: the heap */
    uint64_t bytes; /* of its blocks; 0: blocks that are not kept */
    struct bucket_counters counters;
};

/* A bucket's bin in a thread's cache, for good: it serves one thread after the other. */
struct figures_bin {
    struct figures_record record;
    int64_t device;
    uint64_t kind;
    uint64_t owner;
    uint64_t bytes;
    struct bin_counters counters;
};

/* Room for some thirteen thousand buckets. Memory that is not used is not taken. */
#define FIGURES_BYTES_MAX (UINT64_C(4) << 20)

/* Kept for what has to be counted by itself: some sixteen hundred buckets. */
#define FIGURES_BYTES_TO_SPARE (UINT64_C(512) << 10)

/* ---- the arena of this process ---- */

/* Where its file is, while there is one. */
struct figures_file {
    char path[PATH_MAX];
    uint64_t device, inode; /* that the path must lead to, or the file is somebody else's */
    uint64_t bytes;         /* so many are reserved on the disk */
};

/* A record that found no room in the arena, and those before it. */
struct figures_outside {
    struct figures_outside *next;
    struct figures_record record; /* and the rest of it */
};

/* Tells the user one line. */
typedef void figures_complaint(const char *line);

struct figures {
    pthread_mutex_t lock;            /* the figures lock */
    const struct settings *settings; /* NULL: no file is wanted */
    figures_complaint *complain;
    _Atomic(struct figures_header *) header; /* NULL: not started, or there is no memory. The
                                                release store in begin pairs with the acquire load
                                                in figures_header */
    uint64_t room; /* bytes that records may take, the header's included */
    _Atomic(struct figures_outside *) outside; /* the newest */
    bool started;
    _Atomic uint32_t cuda; /* the driver's version, 0: not known yet. Relaxed: any thread stores the
                              same */
    struct figures_file file;    /* the path is empty: none */
    _Atomic uint64_t sample_due; /* on the monotonic clock. Relaxed: sampling guards the rest */
    _Atomic bool sampling; /* a thread is; acquired where it is set, released where it is reset */
};

static inline struct figures_header *figures_header(const struct figures *figures)
{
    return atomic_load_explicit(&figures->header, memory_order_acquire);
}

/* Prepares zeroed figures. */
void figures_init(struct figures *figures);

/* From now on the figures may have a file, as these settings say, which outlive the figures. To be
 * called before figures_start. */
void figures_show(struct figures *figures, const struct settings *settings,
                  figures_complaint *complain);

/* Makes the arena, the first time: before the first record is added. No lock held. */
void figures_start(struct figures *figures);

/* A device, described by the given record but for its head, and its history. False where memory is
 * short. */
bool figures_device(struct figures *figures, const struct figures_device *device);

/* Zeroed counters, which stay where they are for good. NULL only where memory is short. */
struct kind_counters *figures_kind(struct figures *figures, enum memory_kind kind, int device);
struct heap_counters *figures_heap(struct figures *figures, uint64_t heap, int device);
struct bucket_counters *figures_bucket(struct figures *figures, enum memory_kind kind,
                                       uint64_t owner, int device, uint64_t bytes);
struct bin_counters *figures_bin(struct figures *figures, enum memory_kind kind, uint64_t owner,
                                 int device, uint64_t bytes);

/* The same where there is room to spare, else NULL: for a caller that can count elsewhere. */
struct bucket_counters *figures_bucket_to_spare(struct figures *figures, enum memory_kind kind,
                                                uint64_t owner, int device, uint64_t bytes);

/* On slow paths, with no lock that others wait for: samples what is due. now: of the monotonic
 * clock. */
void figures_sample(struct figures *figures, uint64_t now);

/* The same whether or not it is due. */
void figures_sample_now(struct figures *figures, uint64_t now);

/* The CUDA version that the driver speaks; of the first call before figures_start. */
void figures_note_cuda(struct figures *figures, uint32_t version);
/* Whether somebody has truncated the file: then the counters start again, and say nothing that is
 * right. */
bool figures_are_lost(const struct figures *figures);

/* Looks whether somebody has, where nobody has come across it yet. */
void figures_check(struct figures *figures);

/* In the child of a fork, before anything else: it does not count in its parent's file, and does
 * not keep it in use (figures_file.h). Async-signal-safe. */
void figures_forget(struct figures *figures);

/* The process ends by itself: its file goes, unless it is to stay. */
void figures_end(struct figures *figures, bool stay);

/* ---- going through records: this process's, or those of an arena that has been checked ---- */

struct figures_walk {
    struct figures_header *header; /* may be NULL */
    struct figures_outside *outside;
    struct figures_record *record; /* NULL before the first */
};

struct figures_walk figures_walk(struct figures *figures);

/* The next record, or NULL after the last one. */
struct figures_record *figures_next(struct figures_walk *walk);

/* What the records say of a device at this time. */
void figures_sum(struct figures_walk walk, int64_t device, uint64_t now,
                 struct history_sample *sum);

#endif
