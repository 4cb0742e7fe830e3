/*
 * Figures: where the counters are kept.
 *
 * One arena for each pool, to which typed records are only ever added: devices, heaps, buckets. The
 * counters in them are used in place, by whoever owns the heap or the bucket (stats.h). Where the
 * arena has no room, a record is made in ordinary memory instead: it counts, and no one else sees
 * it.
 *
 * Locking: the figures lock guards the arena's growth. It is a leaf lock: nothing is taken under
 * it, and no driver call is made. A record is published by the release store to header->used; it
 * pairs with the acquire load of whoever reads the arena.
 */
#ifndef CUDAPOOL_CORE_FIGURES_H
#define CUDAPOOL_CORE_FIGURES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "stats.h"

/* ---- the layout: only integers of fixed size, at their natural places ---- */

#define FIGURES_MAGIC      "cudapool"
#define FIGURES_VERSION    1u
#define FIGURES_BYTE_ORDER 0x01020304u
#define FIGURES_ALIGNMENT  64u /* of records: those of different heaps share no cache line */

struct figures_header {
    char magic[8];       /* FIGURES_MAGIC, without an end */
    uint32_t version;    /* of all that follows */
    uint32_t byte_order; /* FIGURES_BYTE_ORDER as the process stores it */
    uint64_t first;      /* where the first record is; a multiple of FIGURES_ALIGNMENT */
    counter used;        /* bytes of the header and all records */
    counter lost;        /* records that found no room */
};

enum figures_type { FIGURES_DEVICE = 1, FIGURES_KIND, FIGURES_HEAP, FIGURES_BUCKET };

/* What each record begins with. */
struct figures_record {
    uint32_t type;
    uint32_t bytes; /* of the whole record; a multiple of FIGURES_ALIGNMENT */
};

struct figures_device {
    struct figures_record record;
    int64_t ordinal;
    uint64_t total_bytes;
    char name[256];
    unsigned char uuid[16];
};

struct figures_kind {
    struct figures_record record;
    int64_t device; /* its ordinal */
    uint64_t kind;  /* enum memory_kind */
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

/* ---- the arena of this process ---- */

struct figures {
    pthread_mutex_t lock;          /* the figures lock */
    struct figures_header *header; /* NULL: not started, or there is no memory */
    uint64_t room;                 /* bytes that records may take, the header's included */
    bool started;
};

/* Prepares zeroed figures. */
void figures_init(struct figures *figures);

/* Makes the arena, the first time: before the first record is added. No lock held. */
void figures_start(struct figures *figures);

/* A device, described by the given record but for its head. */
void figures_device(struct figures *figures, const struct figures_device *device);

/* Zeroed counters, which stay where they are for good. NULL only where memory is short. */
struct kind_counters *figures_kind(struct figures *figures, enum memory_kind kind, int device);
struct heap_counters *figures_heap(struct figures *figures, uint64_t heap, int device);
struct bucket_counters *figures_bucket(struct figures *figures, enum memory_kind kind,
                                       uint64_t owner, int device, uint64_t bytes);

#endif
