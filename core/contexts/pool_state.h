/*
 * What a pool consists of: devices, contexts, captures and what all kinds of memory share. The data
 * alone: what may be done with it is in the headers named after each (device.h, registry.h,
 * context.h, capture.h, epoch.h). Nobody outside core/ includes this.
 *
 * A struct context lives as long as the driver's context and is then kept for the next context of
 * its device, so its address is always readable.
 */
#ifndef CUDAPOOL_CORE_POOL_STATE_H
#define CUDAPOOL_CORE_POOL_STATE_H

#include <stdatomic.h>

#include "core/base/lock.h"
#include "core/base/threads.h"
#include "core/blocks/block.h"
#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "core/driver/driver.h"
#include "core/figures/figures.h"
#include "core/settings/limits.h"
#include "fence.h"
#include "housekeeping.h"
#include "kind.h"
#include "round.h"
#include "thread_state.h"

struct device {
    /* ---- what every call reads ---- */

    CUdevice ordinal;
    char name[256];
    CUuuid uuid;
    uint64_t total_bytes;
    uint64_t cached_cap;          /* bytes */
    uint64_t reserve_floor;       /* bytes of device memory */
    uint64_t growth_budget;       /* bytes */
    uint64_t hot_bytes;           /* see policy_reuses_hot; 0: off */
    uint64_t limit;               /* bytes, UINT64_MAX: none; no more than group_limit */
    uint64_t group_limit;         /* of all processes of the pool's group together, likewise */
    struct board *board;          /* the pool's, if the device has a place there; else NULL */
    int board_place;              /* see board_device */
    void *of_kind[KINDS_OF_POOL]; /* what each kind keeps, behind the record; or NULL */
    char apart[64];               /* every call reads what is above, few write it */

    /* ---- what is counted and written ---- */

    _Atomic uint64_t reserved_bytes; /* taken from the driver; written by device_reserve and
                                        device_unreserve, and inside the limit by reserve_take */
    _Atomic uint64_t given_bytes;   /* of these, all that the driver has given. Relaxed: the figures
                                       tell of it */
    _Atomic uint64_t given_peak;    /* the most of these since the program began its peaks anew.
                                       Relaxed, like them */
    _Atomic uint64_t managed_bytes; /* of managed memory that the process holds, see managed.h.
                                       Relaxed: it orders nothing */
    _Atomic uint64_t managed_due;   /* of these, since room was last looked for. Relaxed */
    struct kind_counters *memory;   /* in the figures; set before the device is listed */
    struct neighbour_counters *neighbours; /* in the figures, like these */
    _Atomic uint64_t returning; /* bytes that threads give back: counted before they leave the sums
                                   of what is free, until they are the driver's. A release fence
                                   comes after that, and pairs with the one in kept_or_returning
                                   (core/housekeeper/neighbours.c) */
    _Atomic uint64_t fence_bytes; /* freed without a fence of their own, at most; 0 while memory is
                                     short: every free records one. Relaxed: it orders nothing */
    _Atomic bool is_short;        /* of memory. Relaxed: it orders nothing */
    _Atomic uint64_t could_hold;  /* bytes that this process could have reserved when the driver was
                                     last asked: what was left, and reserved_bytes. Relaxed, like
                                     the next one */
    counter largest_request;      /* bytes, of those that the driver has met, of any kind */
    _Atomic uint64_t could_hold_at;     /* nanoseconds of the monotonic clock; 0: never asked */
    _Atomic uint32_t frees_while_short; /* since it became so at first, as a clock for looks */
    _Atomic uint32_t retains; /* of the primary context, by the program, as far as they were seen.
                                 Relaxed: one that is only just coming is not counted on */
    _Atomic uint64_t series_bytes; /* of the last demand to neighbours, or of the first block of a
                                      series that the driver gave. Relaxed, like the next one: they
                                      choose how many to ask neighbours for */
    _Atomic uint64_t series_at;    /* when that was; nanoseconds of the monotonic clock; 0: never */
    /* Bytes that other processes had pending, all of them or those of the group, when this one had
     * waited for them without success: see fresh_bytes. */
    _Atomic uint64_t waited_for_others[2];
    _Atomic uint64_t look_again_at; /* nanoseconds of the monotonic clock: others were given time to
                                       tell what is over on their streams, and told nothing.
                                       Relaxed: it only saves looks */
    struct watermark watermark;     /* the housekeeper's own, like the next one */
    _Atomic uint64_t promised;   /* bytes that were cached, and are just given back. Relaxed: it is
                                    published for others */
    _Atomic uint64_t on_the_way; /* bytes that go back for others' sake, but only behind a barrier.
                                    Relaxed: the housekeeper writes it, others publish it */
    struct device *next;         /* of the pool's devices */
};

struct context {
    struct short_lock lock; /* guards epochs, and what each kind says that it guards */
    char after_lock[64];    /* those who wait for it look at no other line */
    CUcontext handle;
    _Atomic unsigned long long id; /* the driver's, 0 where it has none: tells a handle's next
                                      owner. Written under the registry lock; relaxed: whoever
                                      looks without it looks again with it */
    bool primary;
    struct device *device;
    const struct kind *const *kinds;
    struct heap_counters *counters; /* in the figures */
    uint64_t figures_id;            /* of these */
    struct epochs epochs;
    _Atomic(CUstream) return_stream;
    _Atomic(CUstream) late_stream; /* for memory behind work that is not over: never waited for */
    _Atomic uint32_t pins;         /* pairs with dying, sequentially consistent: see context_pin */
    char apart[64];                /* every call reads what follows, and few write it */
    _Atomic bool unusable; /* the driver answers, the pool does not: an error stays in it, or no
                              fence can be had */
    _Atomic bool barred; /* the program has made its work wait for an event: what is submitted from
                            now on, by us too, may wait for what no free would have waited for */
    _Atomic bool dying;  /* from before the driver is told until it has answered */
    _Atomic uint64_t generation;  /* even: dead or spare; odd: alive */
    struct context *next;         /* of all contexts ever made; written before it is listed */
    void *of_kind[KINDS_OF_POOL]; /* what each kind keeps; fixed before it is listed */
    char apart_behind[64];
    _Alignas(64) char memory[]; /* what each kind keeps, in the order of the table; whole lines */
};

/* What the first kind of the table keeps for the context, and back from there: an offset that the
 * compiler knows, since its hits take this way. Other kinds find theirs in of_kind. */
static inline void *context_memory_of_first(struct context *context)
{
    return context->memory;
}

static inline struct context *context_of_first(const void *memory)
{
    return (struct context *)((uintptr_t)memory - offsetof(struct context, memory));
}

/* A thread knows how many context locks it holds: where a signal handler ends the process in the
 * middle of a slow path, no lock is taken on the way out. */
#define context_lock(context)   context_lock_from(context, LOCK_HERE)
#define context_unlock(context) context_unlock_from(context, LOCK_HERE)

static inline void context_lock_from(struct context *context, const char *place)
{
    thread_state.context_locks++;
    lock_take_from(&context->lock, LOCK_CONTEXT, place);
}

static inline void context_unlock_from(struct context *context, const char *place)
{
    lock_give_from(&context->lock, place);
    thread_state.context_locks--;
}

/* A handle that a program may make current, and what it stands for. */
struct context_handle {
    CUcontext handle;
    CUgreenCtx green; /* NULL: the context itself; else handle may be NULL: not converted yet */
    struct context *context;
    unsigned long long id; /* of the green context, by the driver; 0: it has none */
    uint64_t generation;   /* in a copy that was looked up: the context's at that time */
};

struct registry {
    pthread_mutex_t lock;
    struct context_handle *handles;
    size_t handle_count, handle_capacity;
    _Atomic(struct device *) devices;   /* the list only grows, and is walked without the lock. The
                                           release store pairs with the acquire load in
                                           registry_devices */
    _Atomic(struct context *) contexts; /* all ever made, dead ones included. The release store
                                           pairs with the acquire load in context_next */
    _Atomic uint64_t generation; /* even, and REGISTRY_CAPTURING besides while captures go on.
                                    Changes when a handle stops being valid: threads cache handles.
                                    The release store pairs with the acquire load in
                                    context_current */
    _Atomic uint64_t records;    /* of contexts ever made. Relaxed: only that they differ matters */
    uint64_t set_generation;     /* changes with the set of live contexts; guarded by the fence
                                    lock */
};

/* So that a thread looks at one word for both. Written under the fence lock, relaxed like the count
 * of captures. */
#define REGISTRY_CAPTURING UINT64_C(1)
#define REGISTRY_STEP      UINT64_C(2)
#define REGISTRY_POOL      (UINT64_C(1) << 48) /* no two pools of a process have the same */

static inline uint64_t registry_generation(const struct registry *registry)
{
    return atomic_load_explicit(&registry->generation, memory_order_acquire) & ~REGISTRY_CAPTURING;
}

/* A handle has stopped being valid. */
static inline bool registry_has_forgotten(const struct registry *registry)
{
    return registry_generation(registry) % REGISTRY_POOL != 0;
}

/* The first of all devices ever seen. */
static inline struct device *registry_devices(const struct registry *registry)
{
    return atomic_load_explicit(&registry->devices, memory_order_acquire);
}

struct capture;
struct scalars;

struct captures {
    unsigned idle; /* what count is while the program captures nothing: 1 in a pool that is switched
                      off. Written before the pool is in use */
    _Atomic unsigned count;   /* the length of list, and 1 more in a pool that is switched off;
                                 written under the fence lock, read without. Relaxed: whoever records
                                 a fence looks again under the lock */
    unsigned owned;           /* of those, whose graph keeps what is allocated and freed meanwhile
                                 (captures.allocate). Fence lock */
    _Atomic unsigned unowned; /* the others of them: a number of its own, since two that are read
                                 one after the other may be of different moments. Added to before
                                 the capture is counted, and taken from after. Relaxed: a thread
                                 knows its own captures, and is told of others' by whoever made them
                                 known to it */
    struct capture *list;
};

/* Executable graphs whose launch is such work. What kinds of nodes an executable holds never
 * changes: an update that would change it fails. */
struct host_graphs {
    pthread_mutex_t lock; /* guards what follows */
    void *executables;    /* a tree, for tsearch */
    bool every;           /* memory was short: every graph counts as one of them */
    _Atomic size_t count; /* of executables, and 1 more with every. Relaxed: whoever launches a
                             graph has it from whoever made it, who counted it before */
};

struct pitch {
    CUdevice device;
    unsigned int element_bytes;
    size_t width, pitch;
};

#define PITCHES 64u

/* Of the board: one thread does it, those that make other devices known meanwhile wait. */
enum joining { JOINING_NOT_YET, JOINING_NOW, JOINING_OVER };

/* Memory pools of the driver's that no kind serves, and that keep free memory because of the pool:
 * the program has used none, or was idle since; has used one since the last look; has used none
 * since that. */
enum drivers_pools { DRIVERS_POOLS_NONE, DRIVERS_POOLS_TOUCHED, DRIVERS_POOLS_WATCHED };

struct pool {
    /* ---- fixed as the pool starts, and locks that are taken seldom ---- */

    const struct driver *driver;
    struct settings settings;
    struct limits limits; /* and what the environment says besides, with the process's group */
    const struct kind *const *kinds; /* NULL behind the last one */
    struct block_table blocks;
    pthread_mutex_t primary_lock; /* guards nothing of ours: no context ends, and no primary context
                                     is retained for a moment, while another thread does either */
    pthread_mutex_t fence_lock;   /* guards captures.list and the set of live contexts against our
                                     recording of fences */

    /* ---- every call reads this, and few write it ---- */

    char apart[64]; /* from what is above */
    struct captures captures;
    void *of_kind[KINDS_OF_POOL]; /* what each kind keeps, set as the pool starts; or NULL */
    struct registry registry;
    struct figures figures;
    struct host_graphs host_graphs;
    struct rounds rounds;
    _Atomic bool several_contexts; /* two contexts have been alive at a time; never reset. Release
                                      store in context_register, acquire load in
                                      barriers_are_open */
    _Atomic bool stepped_aside;    /* something is going on that the pool does not see */

    /* ---- what is looked up or counted now and then ---- */

    pthread_mutex_t pitch_lock; /* guards pitches */
    struct pitch pitches[PITCHES];
    unsigned pitch_count;
    struct scalars *scalars;        /* see core/scalars; set as the pool starts */
    counter free_page_looks;        /* see core/device_memory/free_pages.c */
    counter lives;                  /* the next number that block_name gives */
    _Atomic uint64_t machine_bytes; /* of the machine's memory that kinds have taken from the
                                       driver. Relaxed: it chooses whether there is a housekeeper */
    _Atomic uint64_t returning;     /* threads that give such memory back */
    _Atomic uint32_t drivers_pools; /* enum drivers_pools; see
                                       core/stream_memory/mempool_unserved.h. The housekeeper stays
                                       while it is not NONE. Sequentially consistent where it
                                       changes */

    /* ---- what launches write, and what goes on around the pool: see surroundings.h ---- */

    char launches_apart[64];        /* from what is above */
    _Atomic uint64_t threads;       /* that were given an id, see thread_id */
    _Atomic uint64_t launcher;      /* the id of the thread that launched last; 0: none has */
    _Atomic uint64_t alternated_at; /* nanoseconds of the monotonic clock: when that last changed.
                                       Relaxed, both: they only choose between two safe ways */
    _Atomic uint64_t stream_in_use; /* named as in stream_note_use: the first one that the program
                                       has used since somebody found several; 0: none yet. Relaxed,
                                       like the next two */
    _Atomic bool several_streams;   /* it has used another one, and nobody has looked since */
    _Atomic uint64_t several_streams_at; /* nanoseconds of the monotonic clock: when somebody found
                                            that; 0: never */
    _Atomic bool launched; /* the program has launched something since somebody last looked.
                              Relaxed, like these */
    _Atomic uint32_t looking, forking; /* threads that look through the shared objects, or fork:
                                          see surroundings_fork_coming. Sequentially consistent */
    _Atomic uint64_t objects_loaded;   /* shared objects ever loaded when last looked through, see
                                          look_at_objects. Relaxed, like the next two */
    _Atomic bool memory_is_pinned;     /* a library that lets devices reach GPU memory is loaded, or
                                          an export had to wait long for a barrier */
    _Atomic bool frees_are_missed; /* one that follows the driver's frees, but not cuMemFreeAsync */

    /* ---- the process and its threads ---- */

    struct housekeeper_counters *housekeeper_counters; /* in the figures; set before the first
                                                          device is listed, NULL until then */
    bool expedited;                                    /* membarrier works, see thread_cache.h */
    struct thread_functions thread_functions;          /* for thread_cache.h, like the next one;
                                                          and for housekeeper.h */
    pid_t process;                                     /* whose pool it is */
    struct housekeeping housekeeping;
    _Atomic(struct board *) board; /* NULL: it has not joined, or cannot. Release when it has,
                                      acquire where it is not read from a device */
    _Atomic uint32_t joining;      /* enum joining; release and acquire */
    const char *alone_because;     /* why there is no board; NULL: there is one. Written before
                                      joining is over */
    _Atomic bool forgotten; /* this is the child of a fork. Relaxed: set before it has threads */
};

/* Whether such pools may keep anything. Sequentially consistent, like its writers. */
static inline bool drivers_pools_keep(const struct pool *pool)
{
    return atomic_load(&pool->drivers_pools) != DRIVERS_POOLS_NONE;
}

/* The calling thread's id: never given to another, unlike its address. */
static inline uint64_t thread_id(struct pool *pool)
{
    /* Relaxed: only that they differ matters. */
    if (__builtin_expect(!thread_state.id, 0))
        thread_state.id = 1 + atomic_fetch_add_explicit(&pool->threads, 1, memory_order_relaxed);
    return thread_state.id;
}

static inline uint64_t context_generation(const struct context *context)
{
    /* Relaxed: compared again under a pin, or read by a thread in which the context is current. */
    return atomic_load_explicit(&context->generation, memory_order_relaxed);
}

/* Whether the calling thread runs a host function or a callback, where the driver refuses to
 * allocate and to free: so does the pool, by asking it. */
static inline bool is_in_host_function(const struct pool *pool)
{
    CUcontext handle;
    return pool->driver->cuCtxGetCurrent(&handle) == CUDA_ERROR_NOT_PERMITTED;
}

#endif
