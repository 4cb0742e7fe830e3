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
 * Locking: the figures lock guards the arena's growth; files are opened and extended under it,
 * rarely. A record is published by the release store to header->used or outside; it pairs with the
 * acquire load in figures_next.
 */
#ifndef CUDAPOOL_CORE_FIGURES_H
#define CUDAPOOL_CORE_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "figures_file.h"
#include "figures_layout.h"

/* Kept for what has to be counted by itself: some sixteen hundred buckets. */
#define FIGURES_BYTES_TO_SPARE (UINT64_C(512) << 10)

/* ---- the arena of this process ---- */

/* A record that found no room in the arena, and those before it. */
struct figures_outside {
    struct figures_outside *next;
    struct figures_record record; /* and the rest of it */
};

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

/* What bounds the process's memory on the device. False where memory is short. */
bool figures_limits(struct figures *figures, int device, const struct device_limits *limits);

/* Zeroed counters, which stay where they are for good. NULL only where memory is short. */
struct kind_counters *figures_kind(struct figures *figures, enum memory_kind kind, int device);
struct neighbour_counters *figures_neighbours(struct figures *figures, int device);
struct housekeeper_counters *figures_housekeeper(struct figures *figures);

/* Those of what graphs keep, once for each process whose captures may allocate. */
struct graph_counters *figures_graphs(struct figures *figures);
struct heap_counters *figures_heap(struct figures *figures, uint64_t heap, int device);
struct bucket_counters *figures_bucket(struct figures *figures, enum memory_kind kind,
                                       uint64_t owner, int device, uint64_t bytes);
struct bin_counters *figures_bin(struct figures *figures, enum memory_kind kind, uint64_t owner,
                                 int device, uint64_t bytes);

/* figures_bucket where there is room to spare, else NULL: for a caller that can count elsewhere. */
struct bucket_counters *figures_bucket_to_spare(struct figures *figures, enum memory_kind kind,
                                                uint64_t owner, int device, uint64_t bytes);

/* The process has joined the board of its user's processes (why: NULL), or cannot, and why, in a
 * few words. */
void figures_note_board(struct housekeeper_counters *housekeeper, const char *why);

/* On slow paths, with no lock that others wait for: samples what is due. now: of the monotonic
 * clock. */
void figures_sample(struct figures *figures, uint64_t now);

/* Samples whether or not it is due. */
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

/* What the records say of a device at this time. Requests of all kinds count; what is held, where
 * it lies on the device. */
void figures_sum(struct figures_walk walk, int64_t device, uint64_t now,
                 struct history_sample *sum);

#endif
