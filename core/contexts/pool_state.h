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
#include "core/board/board.h"
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
    uint64_t told_bytes;    /* of total_bytes, what the program is told: limits_told_total */
    uint64_t cached_cap;    /* the most bytes that may be free, pending ones included */
    uint64_t reserve_floor; /* up to this many bytes taken, caps.reserve_ratio releases none */
    uint64_t growth_budget; /* up to this many pending bytes, a miss takes a new block */
    uint64_t hot_bytes;     /* see policy_reuses_hot; 0: off */
    /* The bytes that the process may take, and that its group may; UINT64_MAX: no limit.
     * limits[BOARD_LIMIT_OF_PROCESS] <= limits[BOARD_LIMIT_OF_GROUP]. Written under the registry's
     * lock. Relaxed: they are compared with what is reserved, and no other data is read because of
     * them. */
    _Atomic uint64_t limits[BOARD_LIMITS];
    _Atomic uint64_t limit_changes; /* the board's number when limits were written; as limits */
    struct board *board;          /* the pool's board if the device has a place on it, else NULL */
    int board_place;              /* see board_device */
    void *of_kind[KINDS_OF_POOL]; /* each kind's data, stored after this record; or NULL */
    char apart[64];               /* padding: every call reads the fields above, few write them */

    /* ---- what is counted and written ---- */

    /* Bytes taken from the driver, or about to be taken: see device_reserved. */
    _Atomic uint64_t reserved_bytes;
    /* The part of reserved_bytes that is unpooled memory (core/unpooled), by its kind. Relaxed, as
     * reserved_bytes. */
    _Atomic uint64_t unpooled_bytes[UNPOOLED_KINDS];
    /* Calls since the driver was last asked what it reserves for graphs. The thread that raises it
     * from 0 asks until it is 0 again, and alone writes that sum. Sequentially consistent: a later
     * call's change is in the answer, or that call has raised the number. */
    _Atomic unsigned graph_calls;
    /* The part of reserved_bytes that the driver has given. Relaxed: it is only reported. */
    _Atomic uint64_t given_bytes;
    /* The peak of given_bytes since the program last reset its peaks. Relaxed, like given_bytes. */
    _Atomic uint64_t given_peak;
    /* Bytes of managed memory that the process holds, see managed.h. Relaxed: a late reading makes
     * a little too much room, or too little. */
    _Atomic uint64_t managed_bytes;
    /* Bytes of managed memory requested since the pool last looked for room. Relaxed: it only
     * chooses which thread looks. */
    _Atomic uint64_t managed_due;

    /* ---- in the figures; set before the device is listed ---- */

    struct kind_counters *memory;
    struct neighbour_counters *neighbours;
    struct unpooled_counters *unpooled; /* one for each unpooled_kind */
    struct figures_limits *limits_told; /* changed under the registry's lock */

    /* ---- what is on its way, short, or asked of other processes ---- */

    /* Bytes that threads are returning to the driver. A thread adds them before they leave the sums
     * of free bytes, and subtracts them once the driver has them. A release fence follows the
     * addition and pairs with the acquire fence in kept_or_returning
     * (core/housekeeper/neighbours.c). */
    _Atomic uint64_t returning;
    /* Bytes that may be freed before a fence is due. 0 while memory is short: every free then
     * records a fence. Relaxed: a free that reads it late records a fence early or late. */
    _Atomic uint64_t fence_bytes;
    /* The device is short of memory. Relaxed: a late reading chooses the other of two safe ways. */
    _Atomic bool is_short;
    /* could_hold = the driver's free bytes + device_resident, when the driver was last asked.
     * Relaxed: it is an estimate in any case. */
    _Atomic uint64_t could_hold;
    counter largest_request; /* bytes of the largest request of any kind that the driver met */
    /* When could_hold was read, in nanoseconds of the monotonic clock; 0: never. Relaxed: two
     * threads may both ask the driver. */
    _Atomic uint64_t could_hold_at;
    /* Frees made while memory was short, never reset. The number chooses the frees that ask how
     * much room is left (room_look_again). Relaxed: it only chooses. */
    _Atomic uint32_t frees_while_short;
    /* The program's retains of the primary context, as far as the pool saw them. Relaxed: a retain
     * that is only just being made need not count. */
    _Atomic uint32_t retains;
    /* A series is a row of requests with short pauses between them. series_bytes: what the last
     * demand to other processes asked for, or the size of the series' first block if none was made.
     * series_at: when the series last went on, in nanoseconds of the monotonic clock; 0: never.
     * Both are relaxed: they only choose how much to ask other processes for. */
    _Atomic uint64_t series_bytes;
    _Atomic uint64_t series_at;
    /* Bytes that other processes had pending when this process had waited for them without success:
     * [0] of all processes, [1] of the group. See fresh_bytes. */
    _Atomic uint64_t waited_for_others[2];
    /* The time before which other processes are not asked again which stream work has completed, in
     * nanoseconds of the monotonic clock. They had time to report some, and reported none. Relaxed:
     * it only saves looks. */
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
    /* These three never change: a record serves contexts of one device, all primary or none. */
    bool primary;
    struct device *device;
    const struct kind *const *kinds; /* the pool's, for callers that have only the context */
    struct heap_counters *counters;  /* in the figures */
    uint64_t figures_id;             /* identifies counters in the figures */
    struct epochs epochs;
    /* return_stream: see return_stream.h. late_stream returns memory that running work may still
     * use, and the pool never waits for it. */
    _Atomic(CUstream) return_stream;
    _Atomic(CUstream) late_stream;
    _Atomic uint32_t pins; /* pairs with dying, sequentially consistent: see context_pin */
    char apart[64];        /* padding: every call reads the fields below, few write them */
    /* The driver answers every call in this context: an error stays in it, or no fence can be
     * recorded. */
    _Atomic bool unusable;
    /* The program has called cuCtxWaitEvent. Work submitted from now on, the pool's own included,
     * may wait for work that no free would have waited for. */
    _Atomic bool barred;
    /* dying = enders > 0: from before the driver is asked to end the context until it has answered.
     * Sequentially consistent with pins: see context_pin. */
    _Atomic bool dying;
    unsigned enders; /* threads that are ending the context. Guarded by the fence lock */
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
    /* Guards the handles, and all additions to the lists of devices and contexts. */
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
 * set while captures.count != 0. It is written under the fence lock. Relaxed: whoever records a
 * fence reads captures.count again under that lock. */
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
    /* count = idle + the length of list + the captures for whose record memory was short. Written
     * under the fence lock, read without it. Relaxed: whoever records a fence reads it again under
     * the lock. */
    _Atomic unsigned count;
    /* Captures whose graph keeps the memory that is allocated and freed during the capture
     * (captures.allocate). Guarded by the fence lock. */
    unsigned owned;
    /* unowned = count - owned, or more for a moment: it is raised before count, and lowered after.
     * A counter of its own, since count and owned cannot be read at one moment. Relaxed: a thread
     * knows its own captures, and learns of another thread's from whoever made that capture known
     * to it. */
    _Atomic unsigned unowned;
    struct capture *list;
};

/* Executable graphs whose launch submits work that only the host can end (host_marks.h). The node
 * types of an executable never change: an update that would change them fails. */
struct host_graphs {
    pthread_mutex_t lock; /* guards the fields below */
    void *executables;    /* a tree, for tsearch */
    bool every;           /* memory was short: every graph counts as one of these */
    /* count == 0 if and only if there is no executable and every is false. Relaxed: a thread that
     * launches a graph has it from the thread that made the graph, which counted it before. */
    _Atomic size_t count;
};

/* An answer of cuMemAllocPitch: the pitch for rows of this width, in bytes. */
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
    /* Guards no data. A thread holds it while it ends a primary context, or retains and releases
     * one for a moment. So of these calls only one is made at a time. */
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
    /* An executable has been made whose nodes allocate; never reset. Relaxed: see host_graphs. */
    _Atomic bool graphs_allocate;
    struct rounds rounds;
    /* Two contexts have been alive at a time, or were about to be; never reset. The release store
     * in close_barriers (context.c) pairs with the acquire load in contexts_were_several. */
    _Atomic bool several_contexts;
    /* The driver answers in all contexts, since work happens that the pool does not see. */
    _Atomic bool disabled;

    /* ---- what is looked up or counted now and then ---- */

    pthread_mutex_t pitch_lock; /* guards pitches */
    struct pitch pitches[PITCHES];
    unsigned pitch_count;
    struct scalars *scalars; /* see core/scalars; set as the pool starts */
    counter free_page_looks; /* numbers the looks of core/device_memory/free_pages.c */
    counter lives;           /* the next number that block_name gives to a block's life */
    /* Bytes of host memory that kinds have taken from the driver. Relaxed: it decides whether there
     * is a housekeeper. */
    _Atomic uint64_t machine_bytes;
    _Atomic uint64_t host_returns; /* threads that are returning host memory to the driver */

    /* ---- what launches write, and what surroundings.h observes around the pool ---- */

    char launches_apart[64];  /* padding after the fields above */
    _Atomic uint64_t threads; /* the number of ids given out, see thread_id */
    /* The six fields below are relaxed: they only choose between two safe ways. */
    _Atomic uint64_t launcher; /* the id of the thread that launched last; 0: none has */
    /* When launcher last changed from one thread to another, in nanoseconds of the monotonic
     * clock. */
    _Atomic uint64_t alternated_at;
    /* The first stream that the program has used since one_stream_is_used last found several, by
     * its name (name_of_stream in surroundings.c); 0: none yet. */
    _Atomic uint64_t stream_in_use;
    /* The program has used another stream, and one_stream_is_used has not been called since. */
    _Atomic bool several_streams;
    /* When one_stream_is_used last found several, in nanoseconds of the monotonic clock; 0:
     * never. */
    _Atomic uint64_t several_streams_at;
    /* The program has launched work since a release of host memory last asked. */
    _Atomic bool launched;
    /* Threads that look through the shared objects, and threads that fork: see
     * surroundings_fork_coming. Sequentially consistent. */
    _Atomic uint32_t looking, forking;
    /* Shared objects ever loaded as of the last look_at_objects. This field and the next two are
     * relaxed: two threads that look at once find the same. */
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

/* Whether two contexts have ever been alive at a time. A fence is then complete only when other
 * contexts' work is, too (rounds.h). A plain free would not wait for that work. So the pool queries
 * such a fence, but never waits for it. No lock is needed. */
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
 * to free there. So callers leave such a call to the driver. */
static inline bool is_in_host_function(const struct pool *pool)
{
    CUcontext handle;
    return pool->driver->cuCtxGetCurrent(&handle) == CUDA_ERROR_NOT_PERMITTED;
}

#endif
