/*
 * The simulated CUDA driver: what its files share.
 *
 * libcuda.so.1 on the CPU. Programs that use the driver's interface (linked, dlsym or
 * cuGetProcAddress) run with it where there is no GPU; programs built on the CUDA runtime do not,
 * since that wants private tables of the real driver. What a real driver does, and how this one is
 * held to it, is in tests/conformance/conformance.c, which runs on both.
 *
 * How it works
 *   Device memory is host memory at reserved addresses (memory.c). Work (kernels, copies, fills,
 *   host functions, event records) is an operation (scheduler.c): it starts when everything before
 *   it in its stream, and everything that an event, a barrier or the legacy stream orders before
 *   it, is done. A kernel's time passes without burning a processor; it reads and writes memory at
 *   its end, so memory that is used again too early shows as wrong data. A module takes any image
 *   and has the kernels of tests/kernels.ptx, by name (kernels.c).
 *
 * Files
 *   calls.c       what every call does first and last: counting, faults, locks, current context
 *   settings.c    the environment; faults.c: SIMCUDA_FAULTS; shared.c: SIMCUDA_SHARED
 *   exports.c     the exported names; lookups.c: cuGetProcAddress
 *   handles.c     handles: a value is used again soon after its object is gone, as the driver's are
 *   devices.c, contexts.c, green_contexts.c, streams.c, events.c
 *   scheduler.c   operations; kernels.c, modules.c, copies.c: what they do
 *   race_*.c      SIMCUDA_RACES: race_detector.h says what is compared with what
 *   captures.c, graphs.c, graph_nodes.c, user_objects.c
 *   memory_operations.c   waits for words in memory, writes to them, external semaphores
 *   memory.c      addresses and cuMemAlloc; pools.c: cuMemAllocAsync; graph_memory.c: that in
 *                 captures; host_memory.c, arrays.c, virtual_memory.c, pointers.c
 *
 * Environment
 *   SIMCUDA_DEVICES=N      how many devices (default 1, at most 16; with 0, cuInit finds none)
 *   SIMCUDA_MEMORY=BYTES   each device's memory, with an optional KiB, MiB, GiB or TiB (default
 *                          1GiB, at least 4MiB); host memory is taken as it is touched
 *   SIMCUDA_HOST_MEMORY=BYTES how much host memory may be allocated and registered in all, in
 *                          pieces of 2 MiB (default: as much as the machine gives)
 *
 *   SIMCUDA_SHARED=FILE    the devices are those of all processes that name the same file, which is
 *                          made where it is missing or empty: what one holds (managed memory that
 *                          can move aside is not held) is missing to the others, and comes back
 *                          when it gives it back, ends or is killed. One FILE, one SIMCUDA_MEMORY.
 *                          build/sim/shared FILE says who holds what, and the most that was ever
 *                          held. Without it, devices are a process's own, and so are their UUIDs.
 *   SIMCUDA_OVERHEAD=BYTES what a created context or stream, a module and an executable graph each
 *                          take of their device's memory (default nothing, but 64 KiB for a
 *                          module; otherwise at least 4MiB)
 *
 *   SIMCUDA_FAULTS=LIST    comma-separated; each NAME=CODE@N: the N-th call of that entry point
 *                          fails; NAME=CODE@N+: every one from the N-th on; NAME=CODE%P:SEED: P
 *                          percent of them, at random. NAME is an exported name (cuMemAlloc_v2),
 *                          CODE a number or a CUDA_ERROR_ name. Codes that stick on a real device
 *                          (700, 702, 710, 714 to 719) stick to the current context here too.
 *   SIMCUDA_TIMING=1       calls take the time they take on an H100 (calls.c), instead of none
 *   SIMCUDA_LOG=FILE       a line for every call: thread, name, main arguments, result
 *   SIMCUDA_STEPPED=1      no threads and no real time: work runs inside the program's calls, by a
 *                          clock that simcuda.h lets a test see and move (scheduler.c)
 *   SIMCUDA_RACES=1        reports uses of memory that nothing orders after the uses of those who
 *                          had it before, on stderr or, with another word than 0 and 1, in that
 *                          file; programs tell of their allocations (simcuda.h, race_detector.h)
 *   SIMCUDA_POISON=1       memory that goes back to the driver is overwritten with 0xDB
 *
 * A value that is not allowed is one line on stderr, and cuInit fails. simcuda.h has what the
 * simulator tells a test beside the driver's own functions.
 *
 * Variants, all of the same sources: as it is, a driver that has everything (13.3);
 * -DSIM_DRIVER_12_4, one before cuCtxRecordEvent; -DSIM_OLD_DRIVER, one like 11.1, before
 * cuMemAllocAsync and cuStreamGetId (visibility.h). What a variant lacks, no lookup finds.
 *
 * What it leaves out
 *   Entry points that no file here defines can be found, and answer CUDA_ERROR_NOT_SUPPORTED:
 *   textures, external memory, opening others' IPC handles, JIT linking, conditional nodes ...
 *   Managed memory takes device memory when it is allocated. A graph's memory is taken when its
 *   node is made. An external semaphore is a counter of the process's own. A node of memory
 *   operations or semaphores has at most MOST_STEPS of them. Kernels run beside each other without
 *   limit, and a copy takes only the time that memcpy takes. Host functions run one at a time.
 *
 * Locks, in the order in which they are taken
 *   sim.driver_lock  the driver's own global lock: held during every call that enters the driver,
 *                    also while cuMemFree waits for the GPU; not by queries, waits of the program's
 *                    own, or what a real driver answers without it.
 *   sim.lock         guards every structure below, operations included. Held for short times only;
 *                    memory is copied and filled without it.
 *   sim.log_lock     keeps lines of the log whole.
 * The static functions that implement a driver function (DRIVER_CALL) hold what their rules say.
 *
 * The simulator never looks its own functions up and never calls an exported name: those belong to
 * whoever is loaded in front of it. Inside, an entry point NAME is sim_NAME.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../driver_api.h"
#include "simcuda.h"
#include "visibility.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define MIB    ((uint64_t)1 << 20)

#pragma GCC visibility push(hidden)

/* Driver functions and callbacks have the parameters they must have, used or not. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* --- entry points ------------------------------------------------------------------------------*/

enum entry {
#define EXPORT(since, base, symbol) ENTRY_##symbol,
#include "exports.def"
#undef EXPORT
    ENTRIES
};

struct entry_point {
    const char *symbol;
    const char *base;
    int since;
    bool per_thread; /* the variant for per-thread default streams */
    CUresult (*address)(void);
};
extern const struct entry_point entry_points[ENTRIES];

/* What a call needs before its function runs. */
enum rules {
    NEEDS_CONTEXT = 1,  /* a current, living context */
    UNSAFE = 2,         /* may not be called during others' captures */
    LIGHT = 4,          /* does not take the driver's lock */
    NEEDS_NOTHING = 8,  /* not even cuInit */
    IGNORES_ERRORS = 16 /* answers although the context has had a sticky error */
};

struct call {
    enum entry entry;
    bool per_thread; /* NULL stands for the calling thread's stream */
    unsigned int rules;
    bool has_driver_lock, has_lock;
    struct context *context; /* the current one, or NULL */
    char note[160];          /* the main arguments, for the log */
};

CUresult call_begin(struct call *call);
CUresult call_end(struct call *call, CUresult result);
/* Adds to the log line. */
void call_note(struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* For calls that wait on the program's behalf: others may enter the driver from now on. */
void call_leave_driver(struct call *call);

#define UNWRAP(...) __VA_ARGS__

#define DEFINE_ENTRY(symbol, body, pt, what, parameters, arguments)                                \
    CUresult sim_##symbol parameters;                                                              \
    CUresult sim_##symbol parameters                                                               \
    {                                                                                              \
        struct call call = {.entry = ENTRY_##symbol, .per_thread = (pt), .rules = (what)};         \
        CUresult result = call_begin(&call);                                                       \
        if (result == CUDA_SUCCESS)                                                                \
            result = body(&call, UNWRAP arguments);                                                \
        return call_end(&call, result);                                                            \
    }                                                                                              \
    extern CUresult symbol parameters __attribute__((alias("sim_" #symbol), visibility("defaul"    \
                                                                                       "t")));

#define DECLARE_BODY(name, parameters)                                                             \
    static CUresult name##_body(__attribute__((unused)) struct call *call, UNWRAP parameters)

/* Defines a driver function; the block that follows is its body, in which call is the call. */
#define DRIVER_CALL(name, what, parameters, arguments)                                             \
    DECLARE_BODY(name, parameters);                                                                \
    DEFINE_ENTRY(name, name##_body, false, what, parameters, arguments)                            \
    DECLARE_BODY(name, parameters)

/* And its variant for per-thread default streams, named with the suffix (_ptsz or _ptds). */
#define DRIVER_CALL_PT(name, suffix, what, parameters, arguments)                                  \
    DECLARE_BODY(name, parameters);                                                                \
    DEFINE_ENTRY(name, name##_body, false, what, parameters, arguments)                            \
    DEFINE_ENTRY(name##suffix, name##_body, true, what, parameters, arguments)                     \
    DECLARE_BODY(name, parameters)

/* A second name for a function that is defined already. */
#define DRIVER_CALL_ALIAS(name, other, what, parameters, arguments)                                \
    DEFINE_ENTRY(name, other##_body, false, what, parameters, arguments)

#define DRIVER_CALL_NO_ARGUMENTS(name, what)                                                       \
    static CUresult name##_body(struct call *call);                                                \
    CUresult sim_##name(void);                                                                     \
    CUresult sim_##name(void)                                                                      \
    {                                                                                              \
        struct call call = {.entry = ENTRY_##name, .rules = (what)};                               \
        CUresult result = call_begin(&call);                                                       \
        if (result == CUDA_SUCCESS)                                                                \
            result = name##_body(&call);                                                           \
        return call_end(&call, result);                                                            \
    }                                                                                              \
    extern CUresult name(void) __attribute__((alias("sim_" #name), visibility("default")));        \
    static CUresult name##_body(__attribute__((unused)) struct call *call)

/* --- settings and faults -----------------------------------------------------------------------*/

struct settings {
    unsigned int devices;
    uint64_t memory, overhead;
    uint64_t host_memory; /* what may be pinned */
    uint64_t devices_id;  /* in their UUIDs */
    bool timing, poison, stepped;
    int log;   /* file descriptor, or -1 */
    int races; /* the same, for the race detector's reports; -1 where it is off */
    bool valid;
};
/* Reads the environment; says on stderr what is wrong. Once, before any other call goes on. */
void settings_read(struct settings *settings);
/* Parses SIMCUDA_FAULTS; false, having said why, if it cannot be understood. */
bool faults_read(const char *text);
/* What the environment wants this call to fail with, or CUDA_SUCCESS. Under sim.lock. */
CUresult fault_for(enum entry entry, uint64_t nth_call);
bool error_sticks(CUresult result);
/* The number of an error's name, or -1. */
int error_of_name(const char *name, size_t length);

/* --- handles -----------------------------------------------------------------------------------*/

enum kind {
    KIND_CONTEXT = 1,
    KIND_GREEN_CONTEXT,
    KIND_RESOURCE,
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_FUNCTION,
    KIND_LIBRARY,
    KIND_GRAPH,
    KIND_NODE,
    KIND_EXEC,
    KIND_USER_OBJECT,
    KIND_POOL,
    KIND_ARRAY,
    KIND_MIPMAPPED_ARRAY,
    KIND_PHYSICAL,
    KIND_SEMAPHORE,
    KINDS
};

/* A handle for an object; the value freed last is the next to be given out. NULL without memory. */
void *handle_new(enum kind kind, void *object);
/* The object, or NULL for a handle that is not, or no longer, one of that kind. */
void *handle_object(enum kind kind, const void *handle);
void handle_free(enum kind kind, void *handle);

/* --- operations: scheduler.c -------------------------------------------------------------------*/

struct context;
struct stream;
struct allocation;
struct event;
struct op;

/* Bytes that an operation reads or writes: all from begin to end, or so many rows of so many bytes
 * between the two. */
struct range {
    uint64_t begin, end;
    bool written;
    uint64_t row, pitch; /* row 0: all bytes */
    uint64_t rows, slice;
    uint64_t
        captured_of; /* the race detector's: the allocation that a capture has seen there; or 0 */
};

struct copy {
    uint64_t target, source;
    size_t width, height, depth;
    size_t target_pitch, source_pitch, target_slice, source_slice;
    void *staged; /* the source's bytes, taken at the call; freed with the operation */
    bool from_pinned, to_pinned;
};

/* A wait until a word compares as its flags say (CU_STREAM_WAIT_VALUE_), or a write to it. */
struct memory_step {
    uint64_t address, value;
    unsigned int flags;
    bool wide, writes; /* wide: 64 bits instead of 32 */
};
enum { MOST_STEPS = 4 };

/* What an operation does. Copied by value into graph nodes. */
struct work {
    enum { TAKES_NO_TIME, TAKES_NS, WAITS_FOR_FLAG, WAITS_FOR_MEMORY, CALLS_HOST } how;
    const char *name;     /* of a kernel; NULL for other work */
    bool early;           /* launched with programmatic stream serialization */
    CUgraphNodeType type; /* as a graph node */
    uint64_t ns;
    uint64_t flag;
    CUhostFn host_function;
    CUstreamCallback callback; /* instead of host_function */
    CUstream callback_stream;
    void *host_argument;
    /* Run without a lock at the operation's end. */
    CUresult (*effect)(const struct work *work);
    /* Run under sim.lock once the effect is over. */
    void (*finish)(struct work *work, struct op *op);
    union {
        struct copy copy;
        struct {
            uint64_t target;
            size_t pitch, width, height; /* in elements */
            unsigned int value, element_bytes;
        } set;
        struct {
            uint64_t target;
            uint32_t words, value;
            uint64_t mismatches;
        } kernel;
        struct {
            struct allocation *allocation;
            uint64_t address;
        } release;
        CUevent event;
        struct graph_memory *memory;
        struct pending *pending;
        struct user_reference *references;
        struct {
            struct memory_step step[MOST_STEPS];
            unsigned int count, done; /* one after the other */
        } memory_steps;
    };
    struct range ranges[3];
    unsigned int range_count;
};

enum op_state { OP_BLOCKED, OP_RUNNING, OP_DONE };

/* One unit of work on a device. Reference-counted, under sim.lock. */
struct op {
    unsigned int references;
    enum op_state state;
    unsigned int blockers; /* operations that it waits for, plus 1 until it is submitted */
    struct op **dependents;
    unsigned int dependent_count, dependent_room;
    uint64_t number;           /* counts up: a later operation's is larger */
    uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC; start_ns is a lower bound until it starts */
    uint64_t context_id;       /* whose error an illegal access becomes */
    struct work work;
    bool waited_for; /* a thread sleeps until it is done */
    struct race_op *race;
    struct op *next; /* in the list of flag waiters or of host functions */
};

uint64_t now_ns(void);
/* A new operation that belongs to the context, held by the caller. */
struct op *op_new(struct context *context, const struct work *work);
/* The operation starts after the earlier one (which may be NULL or done). Before op_submit. */
void op_after(struct op *op, struct op *earlier);
/* The same for the scheduler, while the race detector knows a weaker order. */
void op_follow(struct op *op, struct op *earlier);
/* True if nothing need be ordered after it (or after NULL). */
bool op_is_past(const struct op *op);
/* Lets it start as soon as it may. */
void op_submit(struct op *op);
struct op *op_hold(struct op *op);
/* NULL is allowed. */
void op_drop(struct op *op);
bool op_is_done(const struct op *op); /* NULL is done */
/* Sleeps until it is done, giving up sim.lock meanwhile. */
void op_wait(struct op *op);
/* The same, where a real driver waits only until it begins. */
void op_wait_as_if_to_begin(struct op *op);
/* With SIMCUDA_STEPPED: moves the clock and runs what is due. */
void scheduler_step(uint64_t ns);
/* Replaces what a variable holds. */
void op_set(struct op **variable, struct op *op);
struct range *work_touches(struct work *work, uint64_t begin, uint64_t bytes, bool written);
/* Runs a destructor of the program's in the thread that runs host functions. */
void run_on_host_thread(CUhostFn function, void *argument);

/* --- the race detector: race_order.c, race_memory.c --------------------------------------------*/

extern bool races_on;

void race_op_new(struct op *op);
void race_op_free(struct op *op);
void race_op_after(struct op *op, const struct op *earlier);
/* The operation, ordered but not yet submitted, uses its memory. */
void race_op_in_stream(struct op *op, struct stream *stream);
void race_op_in_graph(struct op *op, const struct stream *stream, const struct op *before);
/* The work has become a node of a graph by a capture. */
void race_captured(struct work *work);
/* Does the launch start beside the kernel before it in its stream? It is then ordered so. */
bool race_starts_early(struct op *op, struct stream *stream);
/* The stream waits for an event. */
void race_stream_waits(struct stream *stream, const struct op *record);
void race_stream_free(struct stream *stream);
/* A query or a wait said that it is over; what it came after is. */
void race_observed(const struct op *op);
void race_observed_before(const struct op *op);
/* Who has waited for the stream knows the program's allocations on it, too: they are taken, held,
 * before the wait, and given back after it. */
struct clock *race_marks_of(const struct stream *stream);
void race_marks_observed(struct clock *marks);
/* Waits on the host and on devices, queries that said no, fences: for lost progress. */
void race_host_waits(const struct op *op);
void race_context_waits(const struct op *op);
void race_polled(const struct op *op);
void race_fence_recorded(void);
/* The driver's own free waits for this as well. */
void race_free_waits(const struct op *op);
/* A host function begins and ends, in the calling thread. */
struct race_callback {
    struct clock *clock; /* of the host function that this one interrupts, if there is one */
    bool within_another;
    const struct race_op *op; /* its, too */
    unsigned int waits;       /* of the program's call */
};
void race_callback_begin(struct race_callback *callback, const struct op *op);
void race_callback_end(struct race_callback *callback, struct op *op);
void race_thread_ended(void);
/* The driver took memory back once the operation was over, gave memory out, lost a context. */
void race_memory_back(uint64_t base, uint64_t bytes, const struct op *op);
void race_memory_given(uint64_t base, uint64_t bytes);
/* A graph's node frees memory for the program. */
void race_memory_freed(uint64_t base);
void race_context_gone(const struct context *context);

/* --- devices, contexts, streams, events --------------------------------------------------------*/

#define MAX_DEVICES 16

/* A range of addresses, given out in units. */
struct space {
    uint64_t base, unit;
    size_t units, used, lowest_free;
    uint64_t *taken; /* a bit for each unit */
    struct {
        size_t unit, count;
    } recent[64]; /* what was given back last: the first to be given out for the same size */
    unsigned int recent_count;
};

struct small_page;

/* Device memory taken from a device; nothing of it if device is NULL. */
struct extent {
    struct device *device;
    uint64_t base, bytes;
    struct small_page *page; /* shared with others below 2 MiB */
    bool managed;            /* takes what others leave */
};

struct device {
    int ordinal;
    uint64_t total, used; /* bytes, in whole pages of 2 MiB; used: by this process */
    uint64_t managed;     /* that move between it and the host; not used ones */
    uint64_t kept;        /* for graphs to come, in whole pages; used ones */
    struct space space;
    struct context *primary; /* NULL while inactive */
    unsigned int primary_references, primary_flags;
    struct pool *default_pool, *current_pool;
};

struct stream {
    CUstream handle; /* NULL for a context's legacy and per-thread streams */
    uint64_t id;
    struct context *context;
    unsigned int flags;
    int priority;
    enum { STREAM_CREATED, STREAM_LEGACY, STREAM_PER_THREAD } type;
    uint64_t thread; /* whose it is, for per-thread streams */
    struct op *last;
    struct op *seen;         /* the last one that queries and waits see: no record of an event */
    struct capture *capture; /* NULL unless capturing */
    struct node **capture_nodes; /* what the next captured node comes after */
    size_t capture_node_count;
    CUgraphNode *capture_handles; /* the same, as last told to the program */
    struct clock *early_start;    /* what an early launch comes after, right after a kernel */
    struct clock *marked; /* the program's allocations on it, as the race detector knows them */
    uint32_t chain;       /* of its uses of memory, for the race detector */
    struct extent overhead;
    struct stream *next; /* of the same context */
};

struct context {
    CUcontext handle;
    CUgreenCtx green_handle; /* of a green context */
    uint64_t id;
    struct device *device;
    struct context *root; /* the primary context of a green one; itself otherwise */
    bool is_primary;
    unsigned int flags, references;
    CUresult error;         /* sticky */
    struct stream *streams; /* first of all of its streams */
    struct stream *legacy;
    struct op *barrier;          /* all later work comes after it */
    struct op *fence;            /* the last fence: work before it need not be looked at again */
    struct op *orphans;          /* the work of destroyed streams */
    struct op *blocking_orphans; /* of those that the legacy stream waits for */
    struct event *events;        /* of this context */
    struct small_page *pages;
    struct module *modules;
    uint32_t peers; /* a bit for every device whose memory it may reach */
    size_t limits[16];
    struct extent overhead;
    struct context *next;
};

struct event {
    CUevent handle;
    struct context *context;
    unsigned int flags;
    struct op *record;        /* NULL before the first */
    struct capture *captured; /* recorded in a capture that is going on */
    struct node **captured_nodes;
    size_t captured_node_count;
    struct event *next, **link;
};

/* What belongs to one thread. */
struct thread {
    uint64_t id;
    CUstreamCaptureMode capture_mode;
    bool in_host_function;
    unsigned int depth;
    struct {
        CUcontext handle;
        uint64_t id;
        CUdevice device; /* and flags: told even after the context has been destroyed */
        unsigned int flags;
    } stack[32]; /* current contexts, the topmost last */
};
struct thread *this_thread(void);

/* Everything there is; guarded by sim.lock. */
struct sim {
    pthread_mutex_t driver_lock, lock, log_lock;
    bool initialised, forked;
    struct settings settings;
    struct device devices[MAX_DEVICES];
    struct context *contexts;
    struct capture *captures;
    uint64_t next_id; /* of contexts, streams, captures, buffers */
};
extern struct sim sim;

struct device *device_of(CUdevice ordinal);

struct context *context_of(CUcontext handle);
struct context *context_with_id(uint64_t id);
struct context *current_context(CUresult *why_not);
/* True if the context is the one given or a green one of it. */
bool context_within(const struct context *inner, const struct context *outer);
struct context *context_new(struct device *device, struct context *root, unsigned int flags);
void context_free(struct context *context);
CUresult primary_retain(struct device *device, struct context **context);
CUresult primary_release(struct device *device);
/* A submitted operation that comes after all the context's work so far; the caller's to drop. */
struct op *context_fence(struct context *context);
void context_add_barrier(struct context *context, struct op *after);
void context_wait_for_work(struct context *context);
/* cuCtxRecordEvent and cuCtxWaitEvent, green contexts' too. */
CUresult context_record(struct context *context, CUevent event);
CUresult context_wait(struct context *context, CUevent event);
/* True if a stream of the context is capturing; the captures are then invalid. */
bool context_capture_spoiled(struct context *context);

/* The stream a handle stands for in this call, made if it is a default stream without one yet. */
struct stream *stream_of(struct call *call, CUstream handle, CUresult *why_not);
struct stream *stream_new(struct context *context, unsigned int flags, int priority);
void stream_free(struct stream *stream);
/* Appends work to a stream or, if that is capturing, to its graph. With op, it is left there, held,
 * or NULL when captured. */
CUresult stream_add(struct stream *stream, const struct work *work, struct op **op);
/* The same for the record of an event, which queries of the stream and waits for it do not see. */
CUresult stream_add_record(struct stream *stream, struct op **op);
/* The stream's later work starts after the operation, of whichever stream. */
void stream_wait(struct stream *stream, struct op *earlier);
/* Makes op come after everything that new work of the stream comes after. */
void stream_order(struct stream *stream, struct op *op);
void thread_streams_free(uint64_t thread);
/* What a query of the stream asks about and a wait for it waits for, as one held operation or NULL.
 */
struct op *stream_tail(struct stream *stream);

struct event *event_of(CUevent handle);
void event_free(struct event *event);
void event_forget_capture(struct event *event);

/* --- captures and graphs -----------------------------------------------------------------------*/

struct capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    uint64_t thread;
    struct stream *origin;
    struct graph *graph;
    bool invalid;
    unsigned int streams;
    struct capture *next;
};

/* May a potentially unsafe call be made now? If not, the captures that forbid it are invalid. */
CUresult captures_allow_unsafe_call(void);
/* May work go to the legacy stream? If not, blocking streams' captures are invalid. */
CUresult captures_allow_legacy(struct context *context);
void capture_invalidate(struct capture *capture);
/* The stream leaves its capture. */
void capture_leave(struct stream *stream);

/* Whether what the stream has captured comes before the next work of another stream of its capture.
 */
bool capture_has_joined(const struct stream *stream);
/* A capture that ends without a graph: the one that it was to become is destroyed, also where the
 * program had given it. */
void capture_discard(struct capture *capture);
CUresult capture_join(struct stream *stream, struct event *event);
CUresult capture_add(struct stream *stream, const struct work *work, struct node **node);

/* The most nodes that a call may name as predecessors. */
enum { MOST_NAMED = 64 };

struct node {
    CUgraphNode handle;
    struct graph *graph;
    struct work work;
    struct node **after;
    size_t after_count;
    struct graph *child; /* of a child graph's node: its own graph */
    CUgraphNode origin;  /* in an executable graph: the node that this one is made from */
    unsigned int part;   /* in an executable graph, of a child graph's node: its part */
    bool disabled;       /* in an executable graph: does nothing */
    struct op *op;       /* while the graph is being launched */
    struct node *clone;  /* while it is being copied */
    bool marked;         /* while joins are looked for */
    struct node *next, *previous;
};

struct graph {
    CUgraph handle;
    CUgraphExec exec_handle; /* of an executable graph */
    bool is_child;           /* of a node, which frees it */
    bool is_moved;           /* to be a child: no more a graph of its own */
    bool frees_on_launch;    /* instantiated to free what the last launch left */
    struct node *nodes, *last;
    /* Of an executable graph: how many graphs it is made of. The outermost is part 0; child graphs
     * follow, in the order of their nodes. */
    unsigned int parts;
    struct user_reference *user_objects;
    struct op *last_launch, *last_upload;
    struct extent overhead; /* of an executable graph */
};

struct graph *graph_new(bool executable);
void graph_free(struct graph *graph);
struct node *graph_add(struct graph *graph, const struct work *work, struct node *const *after,
                       size_t after_count);
/* Copies nodes and references. */
bool graph_copy(struct graph *target, const struct graph *source);
/* A node that runs a copy of the child. */
struct node *graph_add_child(struct graph *graph, const struct graph *child,
                             struct node *const *after, size_t after_count);
/* Appends the source's nodes to an executable graph, with those of child graphs in their place. */
bool graph_flatten(struct graph *exec, const struct graph *source, struct node *const *after,
                   size_t after_count);
struct graph *graph_of(CUgraph handle);
bool graph_is_being_captured(const struct graph *graph);
/* The nodes that handles name, all of the graph; at most MOST_NAMED. */
bool graph_nodes_of(const struct graph *graph, const CUgraphNode *handles, size_t count,
                    struct node **nodes);
/* The work of stream memory operations, of which there are at most MOST_STEPS. */
CUresult memory_operations_work(const CUstreamBatchMemOpParams *parameters, unsigned int count,
                                struct work *work);
CUresult semaphores_wait_work(const CUDA_EXT_SEM_WAIT_NODE_PARAMS *parameters, struct work *work);
CUresult semaphores_signal_work(const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *parameters,
                                struct work *work);
/* Does what can be done; true when all steps are done. */
bool memory_steps_run(struct work *work);
/* Memory of nodes that allocate and free: graph_memory.c. The node's work, and its address. */
CUresult graph_memory_allocate(struct call *call, const struct graph *owner, size_t bytes,
                               struct work *work, CUdeviceptr *address);
CUresult graph_memory_free_node(const struct allocation *allocation, const struct graph *graph,
                                struct work *work);
/* A node of the graph with this work is made, and is gone. */
void graph_memory_hold(const struct graph *graph, const struct work *work);
void graph_memory_drop(const struct graph *graph, const struct work *work);
/* The device keeps that many bytes that a graph no longer needs, if it has them, and gives them
 * back: for another graph, to a trim, and to whoever would find no memory. memory.c */
void device_keep(struct device *device, uint64_t bytes);
void device_give_kept(struct device *device, uint64_t bytes);
/* Such a graph can be neither copied nor instantiated twice at a time. */
bool graph_memory_is_in(const struct graph *graph);
bool graph_memory_is_instantiated(const struct graph *graph);
/* Nothing that the executable graph allocates is live, unless a launch frees it first. */
bool graph_memory_allows_launch(const struct graph *exec);
void graph_memory_launched(const struct graph *exec, struct op *launch);
/* The program frees it; with an operation, in its order. */
bool graph_memory_is_live(const struct allocation *allocation);
void graph_memory_freed(const struct allocation *allocation, struct op *op);
/* References of a graph to the program's objects; an executable graph has them apart for each of
 * its parts, as updates replace them. What an executable graph lets go goes when its last launch
 * and upload are over, what another graph lets go at the end of the call. */
void user_references_copy(struct graph *target, unsigned int part, const struct graph *source);
void user_references_free(struct graph *graph);
/* The part of the executable graph lets its own go and takes the source's. */
void user_references_replace(struct graph *exec, unsigned int part, const struct graph *source);
/* The executable graphs have each other's, as if the other had been launched as this one was. */
void user_references_swap(struct graph *exec, struct graph *other);
/* Runs the destructors of what the calling thread has let go; without locks. */
void user_objects_destroy(void);

/* --- memory ------------------------------------------------------------------------------------*/

enum memory_kind {
    MEMORY_DEVICE, /* cuMemAlloc */
    MEMORY_ASYNC,  /* cuMemAllocAsync */
    MEMORY_GRAPH,  /* of a graph's alloc node */
    MEMORY_MANAGED,
    MEMORY_ARRAY,
    MEMORY_INTERNAL,   /* a module's */
    MEMORY_MAPPED,     /* cuMemMap */
    MEMORY_RESERVED,   /* cuMemAddressReserve */
    MEMORY_HOST,       /* cuMemHostAlloc */
    MEMORY_REGISTERED, /* cuMemHostRegister */
};

struct allocation {
    uint64_t base, size; /* as requested */
    enum memory_kind kind;
    struct context *context; /* NULL where the memory belongs to none */
    uint64_t context_id;
    struct device *device;
    struct extent extent;
    struct pool *pool;
    struct chunk *chunk;
    struct physical *physical;     /* what is mapped */
    struct host_piece *host_piece; /* what it is cut out of */
    uint64_t id;
    unsigned int flags;
    bool sync_memops;
    struct op **foreign; /* copies of it in other contexts' streams that may not be done */
    unsigned int foreign_count;
};

bool device_memory_open(struct device *device, uint64_t bytes);
bool space_open(struct space *space, uint64_t base, uint64_t unit, size_t units);
void space_close(struct space *space);
/* The address of so many bytes, or 0. */
uint64_t space_take(struct space *space, uint64_t bytes);
void space_give(struct space *space, uint64_t address, uint64_t bytes);

/* Device memory for a context (NULL: never shares a page). False: out of memory. */
bool extent_take(struct device *device, struct context *context, uint64_t bytes,
                 struct extent *extent);
void extent_give(struct extent *extent);
/* What an object takes (SIMCUDA_OVERHEAD). False: out of memory. */
bool overhead_take(struct device *device, struct extent *extent);
void small_pages_free(struct context *context);

/* Registers memory, so that pointers into it are known. NULL without host memory. */
struct allocation *allocation_add(const struct allocation *allocation);
/* The allocation that the address lies in, or NULL. */
struct allocation *allocation_at(uint64_t address);
/* Forgets it and gives its device memory back. */
void allocation_free(struct allocation *allocation);
/* Forgets it only: the address is unknown from now on. The record is the caller's to free. */
void allocation_remove(struct allocation *allocation);
/* Gives a removed allocation's device memory back and frees the record. */
void allocation_release(struct allocation *allocation);
/* Waits for what cuMemFree waits for. False if the memory was freed by others meanwhile. */
bool allocation_wait_for_users(struct allocation *allocation);
/* The first allocation for which the function says true, or NULL. */
struct allocation *allocation_find(bool (*matches)(const struct allocation *, const void *),
                                   const void *argument);
bool belongs_to_context(const struct allocation *allocation, const void *context);
/* Frees an allocation when the operation is over; the record has been removed. */
void allocation_release_after(struct allocation *allocation, struct op *op);
/* Notes that work of a context other than the memory's own uses it. */
void allocations_note_use(const struct work *work, struct op *op, struct context *context);
/* May a kernel touch these bytes? Of a device's memory, freed or not, it may touch all. */
bool device_may_access(uint64_t address, uint64_t bytes);
/* May a copy or a fill? It names what is allocated, or ordinary host memory. */
bool copies_may_access(uint64_t address, uint64_t bytes);

/* --- host memory: host_memory.c ----------------------------------------------------------------*/

/* Takes back what lay under an allocation of host memory. */
void host_memory_give(const struct allocation *allocation);
/* The same of memory that was registered, which is the program's own. */
void host_memory_unpin(const struct allocation *allocation);
/* Where the mapping begins that it lies in. */
uint64_t host_mapping_of(const struct allocation *allocation);
/* Whether copies still find something there: also where a freed block was, in a piece with others
 * that live. */
bool host_memory_is_mapped(uint64_t address, uint64_t bytes);
/* Host memory that the driver does not know. */
bool is_pageable(uint64_t address);
CUresult allocate_device(struct call *call, enum memory_kind kind, size_t bytes,
                         CUdeviceptr *address);
uint64_t round_up(uint64_t bytes, uint64_t unit);

CUmemoryPool pool_handle(const struct pool *pool);
CUmemorytype pool_memory_type(const struct pool *pool);
struct pool *pool_new(const CUmemLocation *location, CUmemAllocationType type, bool is_default);
bool pool_is_at(const struct pool *pool, const CUmemLocation *location, CUmemAllocationType type);
void pool_release(struct allocation *allocation);
/* After a synchronisation: pools give back what is above their release thresholds. */
void pools_trim(void);

/* --- pool_locations.c ---*/

/* Whether there may be a pool of such memory. */
CUresult location_check(const CUmemLocation *location, CUmemAllocationType type);
bool location_has_id(const CUmemLocation *location);
/* The pool is being destroyed: it is nobody's current one any more. */
void location_forget(const struct pool *pool);

struct array {
    struct allocation *memory;
    uint64_t address, memory_id;
    size_t width_bytes, height, depth, stored_bytes;
    bool deferred; /* its memory is mapped later */
};
struct array *array_of(CUarray handle);

void modules_free(struct context *context);

struct function {
    CUfunction handle;
    struct module *module;
    const struct kernel *kernel;
    struct function *next;
};
/* The work of launching a kernel with these arguments (one of the two, as cuLaunchKernel). */
CUresult kernel_work(const struct kernel *kernel, void **parameters, void **extra,
                     struct work *work);
const struct kernel *kernel_named(const char *name);

#pragma GCC visibility pop

#endif
