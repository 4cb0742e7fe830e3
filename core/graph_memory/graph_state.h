/*
 * The data structures for memory that captured graphs own. A launched graph uses every address that
 * its capture has seen. So a block that was allocated or freed during a capture stays out of the
 * heap until all its graphs are gone. struct graph_owner stands for the graph of one capture, and
 * struct graph_link for one block that the owner owns. The functions on this data are in the other
 * files of this directory. The lock of struct graph_memory guards all fields, except those that are
 * atomic or say otherwise.
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
 * A pool of blocks that captured streams allocate from. A block that its own capture has freed is
 * available to later allocations from the pool. Each capture has a pool of its own, unless the
 * program has set a pool for several captures (cudapool_graph_pool_use). A sealed pool hands out no
 * more blocks. A capture's own pool is sealed when the capture ends. Graphs own the pool's blocks
 * like all other blocks here. The struct is freed with its last user.
 *
 *   users = captures that use the pool + streams for which it is set + its blocks
 *           + 1 while graph_memory.named lists it
 */
struct graph_pool {
    uint64_t number; /* the program's name for the pool; 0: a capture's own pool */
    uint64_t users;
    bool sealed;
    struct graph_block *free; /* the free blocks, linked by next_free, the last freed first */
    struct graph_pool *next;  /* the next pool with a number: graph_memory.named */
};

/* Records that the program has set a pool with a number for captures that begin on a stream. */
struct graph_pool_use {
    CUstream stream;
    unsigned long long id; /* the driver's id of the stream (cuStreamGetId) */
    struct graph_pool *pool;
    struct graph_pool_use *next;
};

struct graph_block {
    CUdeviceptr address;
    struct block *block; /* the heap's record */
    uint64_t bytes;      /* the block's size */
    uint64_t links;
    uint64_t last_owner; /* number of the owner that was linked last */
    bool parked;    /* the heap has parked the block (parked.h): it is free, but graphs own it */
    bool forgotten; /* no longer in graph_memory.blocks: the address does not stand for this block
                       any more */
    bool astray;    /* already counted in the counter astray (graph_counts.def) */
    struct graph_block *next; /* the next block in the same chain of the table */

    /* ---- only for blocks that captured streams have allocated ---- */
    struct graph_pool *pool;        /* NULL: no captured stream has allocated the block */
    struct capture_place *freed_at; /* where in its graph the block was freed, while it is free in
                                       its pool; else NULL */
    struct graph_block *next_free;
    uint64_t free_number; /* unique to each free into a pool */
    uint64_t maker;       /* number of the owner whose capture last allocated the block */
    uint64_t freer; /* number of the owner whose capture last freed the block; 0: a capture has
                       allocated it since, or the last free was outside of captures */
    struct graph_owner *made_by; /* the maker, as long as it exists and has a link to the block */
    uint64_t made_launches;      /* the maker's own_launches when the maker's link was removed */
    uint64_t launches; /* result of graph_block_launches when the program last freed the block */
};

struct graph_link {
    struct graph_block *block;
    struct graph_link *next;
};

/* Stream-ordered memory that was allocated before a capture and freed by the capture. The program
 * no longer has it. It returns to the stream-ordered kind when the capture's graphs are gone. */
struct graph_held {
    CUdeviceptr address;
    uint64_t generation; /* tells this allocation from earlier and later ones of the block */
    struct graph_held *next;
};

struct graph_owner {
    struct graph_memory *memory;
    CUuserObject object; /* the user object whose destructor gets this owner, and which the graph
                            retains; NULL: there is none */
    uint64_t number;     /* unique, from 1; 0: the capture is only just beginning */
    const struct capture *capture; /* the capture while it is under way, else NULL */
    CUgraph graph;                 /* the graph that the capture makes */
    bool shares_graph; /* the capture adds to a graph that the program has (graph_objects_share) */
    cuuint64_t capture_id; /* the driver's number of the capture */
    uint64_t launches;     /* graph_memory.launches when the capture began */
    /* Launches of executables that are known to be of this owner's graph alone. */
    uint64_t own_launches;
    struct graph_pool *pool; /* the pool that the capture allocates from; NULL before it is needed,
                                and after the capture */
    uint64_t frees;          /* graph_memory.frees when the capture began */
    bool had_nodes; /* the graph may have had nodes before the capture began; set only if the
                       capture uses a pool with a number */
    uint64_t bytes; /* sum over all blocks that the owner has ever owned */
    /* The stream's handle and the start of the capture, for the report: see graph_counts.def. */
    uint64_t stream, began;
    uint64_t thread; /* thread_id of the thread that began the capture */
    struct graph_link *links;
    struct graph_held *held;
    struct graph_owner *next; /* the next owner whose capture is under way */
    /* Set by the user object's destructor, which takes no lock: release store there, acquire load
     * in end_capture. */
    _Atomic bool gone;
    struct graph_owner *next_ended;
    bool failed;   /* the capture has left no graph; set when the capture ends */
    bool spoilt;   /* the capture will leave no graph, as was seen before its end. So the owner gets
                      no blocks any more */
    bool unused;   /* the graph has refused the object. Written before the destructor can run */
    bool taken_up; /* the owner was taken from the list of gone owners while its capture was under
                      way. The end of the capture frees it */
};

/* A hash table of blocks by address, with chains. place_count is a power of two, or 0 at first. */
struct graph_blocks {
    struct graph_block **places;
    size_t place_count, count;
};

struct graph_memory {
    pthread_mutex_t lock;
    /* Owners whose graphs are gone and that were not processed yet, linked by next_ended. Release
     * store when one is added, acquire load when they are taken. */
    _Atomic(struct graph_owner *) gone;
    struct graph_owner *under_way; /* the owners whose captures are under way */
    /* Some blocks became pending, and no fence was recorded for them yet. Relaxed. */
    _Atomic bool unfenced;
    /* Bytes that became pending and that the housekeeper was not told of. Relaxed. */
    _Atomic uint64_t unparked;
    struct graph_blocks blocks;
    /* Trees of struct kept_object (graph_objects.c), for tsearch. */
    void *known_graphs, *executables;
    uint64_t owners;   /* number of owners ever made */
    bool serves_nodes; /* captured streams allocate as graph_nodes.h says. Written as the process's
                          pool starts */
    _Atomic uint64_t launches; /* launches, ever, of executables without a known owner (clones,
                                  graphs that hold other graphs). Relaxed: a launch and a free that
                                  nothing orders may be counted either way */
    struct graph_owner nobody; /* the owner of graphs whose captures neither allocated nor freed
                                  anything. A launch of such a graph makes no block live */
    /* When the program last destroyed an executable without a known owner, in nanoseconds of the
     * monotonic clock. Relaxed: it only bounds a wait. */
    _Atomic uint64_t ended_unseen;
    bool counts_all; /* the field launches counts all launches, since memory was short to note which
                        owner allocated some block */
    _Atomic bool starts_early; /* the program has launched a kernel that may start before earlier
                                  work has completed. Relaxed: never reset */
    /* Frees into pools by captured streams, and pools with numbers made, ever. */
    uint64_t frees, pools;
    uint64_t parked; /* blocks, ever, that the program has freed while captures were under way */
    struct graph_pool *named; /* the pools with numbers */
    struct graph_pool_use *uses;
    /* Stream-ordered memory whose graphs are gone, and which is to return to its kind. Written with
     * the lock held; relaxed where it is read without the lock. */
    _Atomic(struct graph_held *) released;
    _Atomic uint64_t held; /* number of struct graph_held, of owners and in released. The
                              housekeeper keeps running while it is not 0. Relaxed */
    /* Points to first_counters until a device is known, then to a record in the figures. Set under
     * the lock; read without it where launches are counted. */
    _Atomic(struct graph_counters *) counters;
    struct graph_counters first_counters;
};

/* Returns NULL if the settings do not enable memory of graphs (captures.allocate). */
static inline struct graph_memory *graph_memory_of(const struct pool *pool)
{
    return pool->of_kind[KIND_GRAPH];
}

#endif
