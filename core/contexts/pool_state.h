/*
 * This file holds the data of a pool: its devices, contexts and captures, and what all kinds of
 * memory share. The functions on this data are in device.h, registry.h, context.h, capture.h and
 * epoch.h. No file outside core/ includes this one.
 *
 * A struct context lives as long as the driver's context. The pool then keeps the record for the
 * next context of the same device, so its address is always readable.
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
    uint64_t cached_cap;    /* bytes */
    uint64_t reserve_floor; /* bytes of device memory */
    uint64_t growth_budget; /* bytes */
    uint64_t hot_bytes;     /* see policy_reuses_hot; 0: off */
    uint64_t limit;         /* bytes, limit <= group_limit; UINT64_MAX: no limit */
    uint64_t
        /* Bytes of all processes of the pool's group together; UINT64_MAX: no limit. */
        group_limit;
    struct board *board;          /* the pool's board if the device has a place on it, else NULL */
    int board_place;              /* see board_device */
    void *of_kind[KINDS_OF_POOL]; /* each kind's data, stored after this record; or NULL */
    char apart[64];               /* padding: every call reads the fields above, few write them */

    /* ---- what is counted and written ---- */

    /* Bytes taken from the driver. device_reserve and device_unreserve write it, and reserve_take
     * does within the limit. */
    _Atomic uint64_t reserved_bytes;
    /* The part of reserved_bytes that the driver has given. Relaxed: it is only reported. */
    _Atomic uint64_t given_bytes;
    /* The peak of given_bytes since the program last reset its peaks. Relaxed, like given_bytes. */
    _Atomic uint64_t given_peak;
    /* Bytes of managed memory that the process holds, see managed.h. Relaxed: it orders nothing. */
    _Atomic uint64_t managed_bytes;
    /* Bytes of managed memory requested since the pool last looked for room. Relaxed. */
    _Atomic uint64_t managed_due;
    struct kind_counters *memory;          /* in the figures; set before the device is listed */
    struct neighbour_counters *neighbours; /* in the figures; set before the device is listed */
    /* Bytes that threads are returning to the driver. A thread adds them before they leave the sums
     * of free bytes, and subtracts them once the driver has them. A release fence follows the
     * addition and pairs with the acquire fence in kept_or_returning
     * (core/housekeeper/neighbours.c). */
    _Atomic uint64_t returning;
    /* Bytes that may be freed before a fence is due. 0 while memory is short: every free then
     * records a fence. Relaxed: it orders nothing. */
    _Atomic uint64_t fence_bytes;
    _Atomic bool is_short; /* the device is short of memory. Relaxed: it orders nothing */
    /* Bytes that this process could have reserved when the driver was last asked: the driver's free
     * bytes + reserved_bytes. Relaxed, like could_hold_at. */
    _Atomic uint64_t could_hold;
    counter largest_request; /* bytes of the largest request of any kind that the driver met */
    _Atomic uint64_t could_hold_at; /* nanoseconds of the monotonic clock; 0: never asked */
    /* Frees made while memory was short, never reset. It decides which of them looks at the room
     * again. */
    _Atomic uint32_t frees_while_short;
    /* The program's retains of the primary context, as far as the pool saw them. Relaxed: a retain
     * that is only just being made need not count. */
    _Atomic uint32_t retains;
    /* Bytes of the last demand to other processes, or of the first block of a series of requests
     * that the driver met. Relaxed, like series_at: they choose how much to ask other processes
     * for. */
    _Atomic uint64_t series_bytes;
    _Atomic uint64_t
        /* When the series last went on, in nanoseconds of the monotonic clock; 0: never. */
        series_at;
    /* Bytes that other processes had pending when this process had waited for them without success:
     * [0] of all processes, [1] of the group. See fresh_bytes. */
    _Atomic uint64_t waited_for_others[2];
    /* Other processes were given time to report which stream work has completed, and reported
     * nothing. No look is made before this time, in nanoseconds of the monotonic clock. Relaxed: it
     * only saves looks. */
    _Atomic uint64_t look_again_at;
    struct watermark watermark; /* used by the housekeeper alone */
    /* Bytes that were cached and that the housekeeper is releasing to the driver. Relaxed: it is
     * only published to other processes. */
    _Atomic uint64_t promised;
    /* Bytes released for other processes that may not have reached the driver, since the return
     * stream may be ordered after a barrier. Relaxed: the housekeeper writes it, other threads
     * publish it. */
    _Atomic uint64_t on_the_way;
    struct device *next; /* in the list of the pool's devices */
};

struct context {
    struct short_lock lock; /* guards epochs, and the data that each kind says it guards */
    char after_lock[64];    /* padding: threads that wait for the lock read no other cache line */
    CUcontext handle;
    /* The driver's id of the context, 0 where it has none. It tells apart contexts that had the
     * same handle. Written under the registry lock. Relaxed: whoever reads it without the lock
     * reads it again with the lock. */
    _Atomic unsigned long long id;
    bool primary;
    struct device *device;
    const struct kind *const *kinds;
    struct heap_counters *counters; /* in the figures */
    uint64_t figures_id;            /* identifies counters in the figures */
    struct epochs epochs;
    _Atomic(CUstream) return_stream;
    _Atomic(CUstream)
        /* Returns memory that running work may still use. The pool never waits for it. */
        late_stream;
    _Atomic uint32_t pins; /* pairs with dying, sequentially consistent: see context_pin */
    char apart[64];        /* padding: every call reads the fields below, few write them */
    /* The driver answers every call in this context: an error stays in it, or no fence can be
     * recorded. */
    _Atomic bool unusable;
    /* The program has called cuCtxWaitEvent. Work submitted from now on, the pool's own included,
     * may wait for work that no free would have waited for. */
    _Atomic bool barred;
    _Atomic bool
        /* True from before the driver is asked to end it until the driver has answered. */
        dying;
    _Atomic uint64_t generation; /* even: dead or spare; odd: alive */
    struct context *next; /* in the list of all contexts ever made; written before it is listed */
    void *of_kind[KINDS_OF_POOL]; /* each kind's data; fixed before the context is listed */
    char apart_behind[64];
    _Alignas(64) char memory[]; /* each kind's data, in the order of the table; whole cache lines */
};

/* Convert between a context and the data of the first kind of the table. The compiler knows this
 * offset, since that kind's hits take this path. Other kinds use of_kind. */
static inline void *context_memory_of_first(struct context *context)
{
    return context->memory;
}

static inline struct context *context_of_first(const void *memory)
{
    return (struct context *)((uintptr_t)memory - offsetof(struct context, memory));
}

/* Each thread counts the context locks that it holds. If a signal handler ends the process inside a
 * slow path, the exit path sees that count and takes no lock. */
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

/* A handle that a program may make current, and the context that it stands for. */
struct context_handle {
    CUcontext handle;
    /* NULL: the handle is the context's own. Else handle may be NULL: the green context was not
     * converted yet. */
    CUgreenCtx green;
    struct context *context;
    unsigned long long id; /* the driver's id of the green context; 0: it has none */
    uint64_t generation;   /* set in a looked-up copy only: the context's generation at that time */
};

struct registry {
    pthread_mutex_t lock;
    struct context_handle *handles;
    size_t handle_count, handle_capacity;
    /* The list only grows, and threads walk it without the lock. The release store in list_device
     * pairs with the acquire load in registry_devices. */
    _Atomic(struct device *) devices;
    /* All contexts ever made, dead ones included. The release store in bring_to_life pairs with the
     * acquire load in context_next. */
    _Atomic(struct context *) contexts;
    /* Even, plus REGISTRY_CAPTURING while captures are under way. It changes when a handle becomes
     * invalid, since threads cache handles. The release store pairs with the acquire load in
     * context_current. */
    _Atomic uint64_t generation;
    /* Contexts ever made: the next figures_id. Relaxed: the numbers only have to differ. */
    _Atomic uint64_t records;
    uint64_t set_generation; /* changes with the set of live contexts; guarded by the fence lock */
};

/* The generation and this bit share one word, so that a thread reads one word for both. The bit is
 * written under the fence lock, relaxed like captures.count. */
#define REGISTRY_CAPTURING UINT64_C(1)
#define REGISTRY_STEP      UINT64_C(2)
#define REGISTRY_POOL      (UINT64_C(1) << 48) /* pools start at different multiples */

static inline uint64_t registry_generation(const struct registry *registry)
{
    return atomic_load_explicit(&registry->generation, memory_order_acquire) & ~REGISTRY_CAPTURING;
}

/* Whether any handle of this pool has ever become invalid. */
static inline bool registry_has_forgotten(const struct registry *registry)
{
    return registry_generation(registry) % REGISTRY_POOL != 0;
}

static inline struct device *registry_devices(const struct registry *registry)
{
    return atomic_load_explicit(&registry->devices, memory_order_acquire);
}

struct capture;
struct scalars;

struct captures {
    /* The value of count while the program captures nothing: 1 in a pool that is switched off, else
     * 0. Written before the pool is in use. */
    unsigned idle;
    /* The length of list, plus 1 in a pool that is switched off. Written under the fence lock, read
     * without it. Relaxed: whoever records a fence reads it again under the lock. */
    _Atomic unsigned count;
    /* Captures whose graph keeps the memory that is allocated and freed during the capture
     * (captures.allocate). Guarded by the fence lock. */
    unsigned owned;
    /* Captures that are not owned. It has its own counter because count and owned cannot be read at
     * one moment. It is raised before count is, and lowered after count is. Relaxed: a thread knows
     * its own captures, and learns of another thread's from whoever made that capture known to
     * it. */
    _Atomic unsigned unowned;
    struct capture *list;
};

/* Executable graphs whose launch submits work that only the host can end (host_marks.h). The node
 * types of an executable never change: an update that would change them fails. */
struct host_graphs {
    pthread_mutex_t lock; /* guards the fields below */
    void *executables;    /* a tree, for tsearch */
    bool every;           /* memory was short: every graph counts as one of these */
    /* The number of executables, plus 1 where every is set. Relaxed: a thread that launches a graph
     * has it from the thread that made the graph, which counted it before. */
    _Atomic size_t count;
};

struct pitch {
    CUdevice device;
    unsigned int element_bytes;
    size_t width, pitch;
};

#define PITCHES 64u

/* State of joining the board. One thread joins it; threads that make other devices known meanwhile
 * wait for that thread. */
enum joining { JOINING_NOT_YET, JOINING_NOW, JOINING_OVER };

struct pool {
    /* ---- fixed as the pool starts, and locks that are taken seldom ---- */

    const struct driver *driver;
    struct settings settings;
    /* Limits from the settings and the environment, and the process's group. */
    struct limits limits;
    const struct kind *const *kinds; /* ends with NULL */
    struct block_table blocks;
    /* Guards no data. While a thread ends a context, or retains a primary context for a moment, no
     * other thread does either. */
    pthread_mutex_t primary_lock;
    /* Guards captures.list and the set of live contexts while a fence is recorded. */
    pthread_mutex_t fence_lock;

    /* ---- every call reads this, and few write it ---- */

    char apart[64]; /* padding after the fields above */
    struct captures captures;
    void *of_kind[KINDS_OF_POOL]; /* each kind's data, set as the pool starts; or NULL */
    struct registry registry;
    struct figures figures;
    struct host_graphs host_graphs;
    struct rounds rounds;
    /* Two contexts have been alive at a time; never reset. The release store in context_register
     * pairs with the acquire load in contexts_were_several. */
    _Atomic bool several_contexts;
    _Atomic bool disabled; /* the driver answers in all contexts, since work happens that the
                                   pool does not see */

    /* ---- what is looked up or counted now and then ---- */

    pthread_mutex_t pitch_lock; /* guards pitches */
    struct pitch pitches[PITCHES];
    unsigned pitch_count;
    struct scalars *scalars; /* see core/scalars; set as the pool starts */
    counter free_page_looks; /* see core/device_memory/free_pages.c */
    counter lives;           /* the next number that block_name gives */
    /* Bytes of host memory that kinds have taken from the driver. Relaxed: it decides whether there
     * is a housekeeper. */
    _Atomic uint64_t machine_bytes;
    _Atomic uint64_t returning; /* threads that are returning host memory to the driver */

    /* ---- what launches write, and what surroundings.h observes around the pool ---- */

    char launches_apart[64];   /* padding after the fields above */
    _Atomic uint64_t threads;  /* the number of ids given out, see thread_id */
    _Atomic uint64_t launcher; /* the id of the thread that launched last; 0: none has. Relaxed */
    /* When launcher last changed from one thread to another, in nanoseconds of the monotonic clock.
     * Relaxed, like launcher: both only choose between two safe ways. */
    _Atomic uint64_t alternated_at;
    /* The first stream that the program has used since a look found several, named as in
     * stream_note_use; 0: none yet. Relaxed, like several_streams and several_streams_at. */
    _Atomic uint64_t stream_in_use;
    /* The program has used another stream, and nobody has looked since. */
    _Atomic bool several_streams;
    /* When a look last found several streams, in nanoseconds of the monotonic clock; 0: never. */
    _Atomic uint64_t several_streams_at;
    _Atomic bool launched; /* the program has launched work since somebody last looked. Relaxed */
    /* Threads that look through the shared objects, and threads that fork: see
     * surroundings_fork_coming. Sequentially consistent. */
    _Atomic uint32_t looking, forking;
    /* Shared objects ever loaded as of the last look_at_objects. Relaxed, like memory_is_pinned and
     * frees_are_missed. */
    _Atomic uint64_t objects_loaded;
    /* A library is loaded that lets devices reach GPU memory, or an export had to wait long for a
     * barrier. */
    _Atomic bool memory_is_pinned;
    /* A library is loaded that follows the driver's frees, but not cuMemFreeAsync. */
    _Atomic bool frees_are_missed;

    /* ---- the process and its threads ---- */

    /* In the figures. Set before the first device is listed, NULL until then. */
    struct housekeeper_counters *housekeeper_counters;
    bool expedited;                           /* membarrier works, see thread_cache.h */
    struct thread_functions thread_functions; /* used by thread_cache.h and housekeeper.h */
    pid_t process;                            /* the process that owns the pool */
    struct housekeeping housekeeping;
    /* NULL: the pool has not joined a board, or cannot. A release store sets it; an acquire load
     * reads it where it is not read from a device. */
    _Atomic(struct board *) board;
    _Atomic uint32_t joining; /* enum joining; release and acquire */
    /* Why there is no board; NULL: there is one. Written before JOINING_OVER. */
    const char *alone_because;
    /* This is the child of a fork. Relaxed: set before the child has threads. */
    _Atomic bool forgotten;
};

/* No lock needed. Whether a fence may be incomplete because of other contexts' work only. The plain
 * driver does not wait for that work, so the pool queries such a fence but never waits for it. */
static inline bool contexts_were_several(const struct pool *pool)
{
    return atomic_load_explicit(&pool->several_contexts, memory_order_acquire);
}

/* The calling thread's id. No other thread ever gets it, unlike the thread's address. */
static inline uint64_t thread_id(struct pool *pool)
{
    /* Relaxed: the ids only have to differ. */
    if (__builtin_expect(!thread_state.id, 0))
        thread_state.id = 1 + atomic_fetch_add_explicit(&pool->threads, 1, memory_order_relaxed);
    return thread_state.id;
}

static inline uint64_t context_generation(const struct context *context)
{
    /* Relaxed: the caller compares it again under a pin, or the context is current in its
     * thread. */
    return atomic_load_explicit(&context->generation, memory_order_relaxed);
}

/* Whether the calling thread runs a host function or a callback. The driver refuses to allocate and
 * to free there, and the pool refuses too by asking the driver. */
static inline bool is_in_host_function(const struct pool *pool)
{
    CUcontext handle;
    return pool->driver->cuCtxGetCurrent(&handle) == CUDA_ERROR_NOT_PERMITTED;
}

#endif
