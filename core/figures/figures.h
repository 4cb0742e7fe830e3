/*
 * Figures: the pool's counters, stored so that they survive the process.
 *
 * Each pool has one arena of typed records, which only grows: settings, devices, heaps, buckets,
 * bins, histories. The owner of a heap or a bucket updates the counters in its record in place
 * (stats.h). The arena is a mapped file where the process may have one (figures_file.h). Other
 * processes can then read the counters at any time, and SIGKILL, _exit, abort, exec or the OOM
 * killer lose nothing. Without a file, the arena is the process's own memory. A record that finds
 * no room in the arena is allocated outside it: its counters work, but no other process sees them.
 * None of these cases is an error, and the program is not told.
 *
 * Locking: the figures lock guards the arena's growth. Files are opened and extended, rarely, while
 * it is held. A record is published by the release store to header->used or to outside. The store
 * to header->used pairs with the acquire load in figures_next, that to outside with the one in
 * figures_walk.
 */
#ifndef CUDAPOOL_CORE_FIGURES_H
#define CUDAPOOL_CORE_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "figures_file.h"
#include "figures_layout.h"

/* Bytes that figures_bucket_to_spare leaves free for records that must be separate: about sixteen
 * hundred buckets. */
#define FIGURES_BYTES_TO_SPARE (UINT64_C(512) << 10)

/* ---- the arena of this process ---- */

/* A record that found no room in the arena, in a list of such records. */
struct figures_outside {
    struct figures_outside *next;
    struct figures_record record; /* its head; the rest follows */
};

struct figures {
    pthread_mutex_t lock;            /* the figures lock */
    const struct settings *settings; /* NULL: no file is wanted */
    figures_complaint *complain;
    _Atomic(struct figures_header *) header;   /* NULL: not started, or no memory. The release store
                                                  in begin pairs with the acquire load in
                                                  figures_header */
    uint64_t room;                             /* bytes that the header and the records may take */
    _Atomic(struct figures_outside *) outside; /* the newest record of the list */
    bool started;
    _Atomic uint32_t cuda;    /* the driver's CUDA version; 0: not known yet. Relaxed: every thread
                                 stores the same value */
    struct figures_file file; /* its path is empty where there is no file */
    _Atomic uint64_t sample_due; /* on the monotonic clock. Relaxed: sampling guards all samples */
    _Atomic bool sampling; /* a thread is taking samples; set with acquire, reset with release */
};

static inline struct figures_header *figures_header(const struct figures *figures)
{
    return atomic_load_explicit(&figures->header, memory_order_acquire);
}

/* Initialises figures that the caller has zeroed. */
void figures_init(struct figures *figures);

/* Allows the figures a file, as the settings say. The settings must outlive the figures. Call
 * before figures_start. */
void figures_show(struct figures *figures, const struct settings *settings,
                  figures_complaint *complain);

/* Makes the arena on the first call; later calls do nothing. Call before the first record is added,
 * with no lock held. */
void figures_start(struct figures *figures);

/* Adds a copy of the device's record, whose head need not be filled, and an empty history of the
 * device. False where memory is short. */
bool figures_device(struct figures *figures, const struct figures_device *device);

/* Adds a record for the limits of the process's memory on the device, which says that there are
 * none. NULL where memory is short. */
struct figures_limits *figures_limits(struct figures *figures, int device);

/* One thread at a time changes a record. */
void figures_change_limits(struct figures_limits *record, const struct device_limits *limits);

/* Each of these adds a record and returns its zeroed counters, whose address never changes. NULL
 * only where memory is short. */
struct kind_counters *figures_kind(struct figures *figures, enum memory_kind kind, int device);
struct neighbour_counters *figures_neighbours(struct figures *figures, int device);
struct housekeeper_counters *figures_housekeeper(struct figures *figures);

/* The counters of the device's unpooled memory, one for each unpooled_kind. */
struct unpooled_counters *figures_unpooled(struct figures *figures, int device);

/* The counters of graph memory: one record in each process whose captures may allocate. */
struct graph_counters *figures_graphs(struct figures *figures);
struct heap_counters *figures_heap(struct figures *figures, uint64_t heap, int device);
struct bucket_counters *figures_bucket(struct figures *figures, enum memory_kind kind,
                                       uint64_t owner, int device, uint64_t bytes);
struct bin_counters *figures_bin(struct figures *figures, enum memory_kind kind, uint64_t owner,
                                 int device, uint64_t bytes);

/* As figures_bucket, but NULL where less than FIGURES_BYTES_TO_SPARE of the arena would be left.
 * For a caller that can count elsewhere. */
struct bucket_counters *figures_bucket_to_spare(struct figures *figures, enum memory_kind kind,
                                                uint64_t owner, int device, uint64_t bytes);

/* Notes that the process has joined the board of its user's processes (why is NULL), or why it
 * cannot, in a few words. */
void figures_note_board(struct housekeeper_counters *housekeeper, const char *why);

/* Samples all devices if a sample is due. For slow paths; the caller holds no lock that other
 * threads wait for. now: nanoseconds of the monotonic clock. */
void figures_sample(struct figures *figures, uint64_t now);

/* Samples all devices even if no sample is due, unless another thread is sampling. */
void figures_sample_now(struct figures *figures, uint64_t now);

/* Notes the CUDA version that the driver supports. Call before figures_start, which writes the
 * version into the header. */
void figures_note_cuda(struct figures *figures, uint32_t version);
/* Whether the file was found truncated. Its counters have then restarted from 0 and are wrong. */
bool figures_are_lost(const struct figures *figures);

/* Tests whether the file is truncated, where no access to the mapping has shown it yet. */
void figures_check(struct figures *figures);

/* Call in the child of a fork before anything else. The child then neither counts in its parent's
 * file nor marks the file as in use (figures_file.h). Async-signal-safe. */
void figures_forget(struct figures *figures);

/* Notes that the process has ended by itself, and removes its file unless stay is true. */
void figures_end(struct figures *figures, bool stay);

/* ---- iterating over the records of this process, or of an arena that was validated ---- */

struct figures_walk {
    struct figures_header *header; /* may be NULL */
    struct figures_outside *outside;
    struct figures_record *record; /* NULL before the first */
};

struct figures_walk figures_walk(struct figures *figures);

/* The next record, or NULL after the last one. */
struct figures_record *figures_next(struct figures_walk *walk);

/* Sums the records of a device into one sample at the time now. Requests count for all kinds, bytes
 * only for kinds whose memory lies on the device. */
void figures_sum(struct figures_walk walk, int64_t device, uint64_t now,
                 struct history_sample *sum);

#endif
