/*
 * What is known of the memory that graphs keep: the data alone. What may be done with it is in
 * graph_blocks.h, graph_owners.h and graph_memory.h.
 */
#ifndef CUDAPOOL_CORE_GRAPH_STATE_H
#define CUDAPOOL_CORE_GRAPH_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "capture_place.h"
#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/driver/cuda_abi.h"

struct block;
struct capture;

/*
 * What captures have allocated in the order of their streams, and given back in the same way: those
 * who use the pool later may have it again. A capture has one of its own, unless the program has
 * made one for several (cudapool.h). It serves until it is sealed: one of a capture's own when that
 * is over. What is in it belongs to graphs like everything else here, and goes with the last.
 */
struct graph_pool {
    uint64_t number; /* the program's name for it; 0: it has none */
    uint64_t users; /* owners whose captures use it, streams that are to, blocks; a number is one */
    bool sealed;
    struct graph_block *free; /* through next_free, the one freed last first */
    struct graph_pool *next;  /* of those with numbers */
};

/* The next captures of a stream use a pool that has a number. */
struct graph_pool_use {
    CUstream stream;
    unsigned long long id; /* the driver's of the stream */
    struct graph_pool *pool;
    struct graph_pool_use *next;
};

struct graph_block {
    CUdeviceptr address;
    struct block *block; /* the heap's record */
    uint64_t bytes;      /* of it */
    uint64_t links;
    uint64_t last_owner; /* the number of the owner that was linked last */
    bool parked;         /* the program has freed it */
    bool forgotten;      /* out of the table: its context has ended, or the address is another's */
    bool astray;         /* found where it must not be, and counted */
    struct graph_block *next; /* in its place of the table */

    /* ---- of those that captured streams have allocated ---- */
    struct graph_pool *pool;        /* NULL: it is none */
    struct capture_place *freed_at; /* while it is free in its pool, else NULL */
    struct graph_block *next_free;
    uint64_t free_number;        /* no two frees have the same */
    uint64_t maker;              /* the number of the owner that allocated it last */
    uint64_t freer;              /* of the one that freed it last; 0: no captured stream has */
    struct graph_owner *made_by; /* the maker, as long as it is there and has a link to it */
    uint64_t made_launches;      /* of the maker's graph, when that went */
    uint64_t launches;           /* that may concern it, when the program freed it last */
};

struct graph_link {
    struct graph_block *block;
    struct graph_link *next;
};

/* Stream-ordered memory of before a capture, which that has freed: claimed from the program, and
 * given back to its kind when the graphs are gone. */
struct graph_held {
    CUdeviceptr address;
    uint64_t generation; /* of that life */
    struct graph_held *next;
};

struct graph_owner {
    struct graph_memory *memory;
    CUuserObject object; /* the graph's, with this for its argument; NULL: no graph has it */
    uint64_t number;     /* from 1; no two owners have the same */
    const struct capture *capture; /* while that is under way, else NULL */
    CUgraph graph;                 /* of the capture */
    bool shares_graph;             /* that was there before it; the capture adds to it */
    cuuint64_t capture_id;         /* the driver's number of that */
    uint64_t launches;             /* of any graph, before it began */
    uint64_t own_launches;         /* of executables that are known to be its graph's alone */
    struct graph_pool *pool;       /* while its capture is under way, once it is needed */
    uint64_t frees;                /* by captured streams, before it began */
    bool had_nodes;                /* its graph may have had, before it began, and uses a pool
                                      with a number */
    uint64_t bytes;                /* of all blocks that it has ever owned */
    uint64_t stream, began;        /* for the report: see graph_counts.def */
    uint64_t thread;               /* that has begun the capture: thread_id */
    struct graph_link *links;
    struct graph_held *held;
    struct graph_owner *next; /* of those whose captures are under way */
    /* Written by the user object's destructor, which takes no lock; release there, acquire where it
     * is looked at. */
    _Atomic bool gone;
    struct graph_owner *next_gone;
    bool failed;   /* its capture has left no graph, as was seen at its end */
    bool spoilt;   /* it will leave none, as was seen before: it owns nothing more */
    bool unused;   /* no graph has retained it. Written before the destructor can run */
    bool taken_up; /* from the list of those that are gone, while its capture was under way */
};

/* By address: chains in places, whose number is a power of two. */
struct graph_blocks {
    struct graph_block **places;
    size_t place_count, count;
};

struct graph_memory {
    pthread_mutex_t lock;
    _Atomic(struct graph_owner *) gone; /* through next_gone: to be taken up. Release when one is
                                           put there, acquire when they are taken */
    struct graph_owner *under_way;      /* whose captures are */
    _Atomic bool unfenced; /* something became pending while no fence could be recorded. Relaxed */
    _Atomic uint64_t unparked; /* bytes that became pending, and the housekeeper has not been told
                                  of. Relaxed */
    struct graph_blocks blocks;
    void *known_graphs, *executables; /* trees of what graph_objects.h says */
    uint64_t owners;                  /* ever made */
    bool serves_nodes;             /* captured streams allocate from pools. Written at the start */
    _Atomic uint64_t launches;     /* of graphs that are nobody's in particular, ever: clones, those
                                      that hold other graphs. Relaxed: a launch and a free that nothing
                                      orders may be counted either way */
    struct graph_owner nobody;     /* whose launches bring nothing to life: of graphs whose captures
                                      have neither allocated nor freed anything */
    _Atomic uint64_t ended_unseen; /* nanoseconds of the monotonic clock: when the program has last
                                      destroyed an executable of which the pool does not know what
                                      it kept. Relaxed: it bounds a wait */
    bool counts_all;               /* the others, too: memory was short to note whose a block is */
    _Atomic bool starts_early;     /* a kernel has begun before the one before it had ended, and
                                      others may. Relaxed: it is never taken back */
    uint64_t frees, pools;         /* by captured streams, and pools with numbers: ever */
    uint64_t parked;               /* blocks, ever, that the program has freed beside captures */
    struct graph_pool *named;      /* those with numbers */
    struct graph_pool_use *uses;
    _Atomic(struct graph_held *) released;     /* whose graphs are gone. Written with the lock held;
                                                  relaxed where it is looked at without */
    _Atomic uint64_t held;                     /* all of those. Relaxed: it keeps the housekeeper */
    _Atomic(struct graph_counters *) counters; /* in the figures, once a device is known; else the
                                                  next. Set under the lock; read without where
                                                  launches are counted */
    struct graph_counters first_counters;
};

/* NULL where the settings do not want it. */
static inline struct graph_memory *graph_memory_of(const struct pool *pool)
{
    return pool->of_kind[KIND_GRAPH];
}

#endif
