/*
 * What the steps of a random program do.
 *
 * A program must be right: with the pool, as without it, its result may not depend on timing. So
 * this keeps a model of what the program may count on: every buffer has a home, the stream in which
 * it was used last, and moves to another stream by an event, unless the host has waited meanwhile.
 * The one thing it is free to do at any time is to free a buffer: cuMemFree takes care of the work
 * that is left. What the program could not know to be ordered it does not touch.
 *
 * Decisions depend on the model and on results that are the same in every run, never on queries,
 * addresses or handles' values.
 *
 * Threads that run freely have a model each, and handles each of its own; what they share is the
 * devices' primary contexts, which live until all are done, the driver and the pool. Buffers go
 * from one to another by steps that are paired before anything runs: the giver's comes first in the
 * program, so nobody waits in vain.
 */
#include "run.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../kernels.h"
#include "../sim/simcuda.h"
#include "core/cudapool.h"

/* There where the pool is. */
#pragma weak cudapool_get_bytes

/* A context that ends while a stream of its captures, or unforeseen (a primary one with its last
 * green one), leaves what was freed in its streams' order with the driver: docs/limits.md. */
static _Atomic bool blocks_may_stay;
static uint64_t blocks_that_stayed; /* of programs before this one */

/* What nobody took out of a box, and shared memory that graphs have kept, stays until its context
 * ends; and so does what a capture has kept that ends with a green context. */
static _Atomic bool blocks_stay_with_context;

enum {
    PRIMARY = 0, /* contexts: the devices' primary ones, created ones, green ones */
    CREATED = PRIMARY + DEVICES,
    GREEN = CREATED + 3,
    CONTEXTS = GREEN + 2,
    STREAMS = 10,
    EVENTS = 6,
    BUFFERS = 24,
    KEPT_BUFFERS = 32, /* which the program has freed, and graphs go on using */
    ALL_BUFFERS = BUFFERS + KEPT_BUFFERS,
    GRAPHS = 4,
    CAPTURES = 3,
    FAMILIES = 256,
    FLAGS = 512,
    WORDS = 64, /* of a buffer that are written and read: its first */
    NOWHERE = CONTEXTS
};

/* The driver's pools of stream-ordered memory take at least so much at a time. */
#define CHUNK (UINT64_C(32) << 20)

enum kernel { SPIN, FILL, VERIFY, SPIN_THEN_VERIFY, WAIT_FLAG, SET_FLAG, KERNELS };
static const char *const kernel_names[KERNELS] = {
    "spin", "fill", "verify", "spin_then_verify", "wait_flag", "set_flag"};

struct context {
    CUcontext handle;
    CUgreenCtx green;
    bool alive;
    unsigned int root; /* whose memory and kernels it has: itself, or the primary one */
    unsigned int retains;
    CUdevice device;
    CUfunction kernels[KERNELS];
    bool equipped;  /* kernels may count mismatches in it */
    CUevent helper; /* orders one stream behind another */
};

enum stream_kind { NO_STREAM, MADE, LEGACY, PER_THREAD };

/* A stream, as the program names it. */
struct stream {
    enum stream_kind kind;
    CUstream handle;
    bool ptsz;            /* named by 0 in a call with per-thread default streams */
    unsigned int context; /* CONTEXTS: none is current */
    unsigned int slot;    /* of made ones */
    uint64_t id;          /* no other stream of the program has it */
};

enum buffer_kind { NO_BUFFER, PLAIN, PITCHED, MANAGED, ASYNC, PINNED };

struct buffer {
    CUdeviceptr address;
    uint64_t bytes;
    enum buffer_kind kind;
    unsigned int context; /* whose memory it is */
    uint32_t words, value;
    bool written;
    bool lost;          /* used by work that nothing can be ordered behind: only to be freed */
    struct stream home; /* NO_STREAM: all work on it is over or was ordered before the host */
    CUevent done;       /* after the last use in a thread's own stream */
    unsigned int done_context;
    uint32_t owner; /* counts up: tells the slot's next buffer */
    uint32_t made;  /* that number when it was allocated; 0: in another thread */
};

struct use {
    unsigned int buffer;
    uint32_t owner, value;
    bool inside; /* of memory that was allocated while the capture went on */
};

struct graph {
    CUgraph graph; /* or NULL: only the executable is left */
    CUgraphExec exec;
    unsigned int context, use_count;
    unsigned int family; /* a number for the graph, its clones and executables: they share memory */
    bool once, launched, has_memory;
    struct use uses[16];
};

struct capture {
    struct stream origin;
    unsigned int use_count;
    bool once, active, has_memory;
    uint32_t first_owner; /* what is allocated in it has a higher number */
    struct use uses[16];
};

/* What a buffer goes from one free thread to another in. */
struct box {
    sem_t given;
    bool full; /* written by the giver before the post, read after it */
    struct buffer buffer;
};

struct worker {
    pthread_t thread;
    sem_t turn;
    bool started, leave;
    unsigned int depth; /* of its stack of contexts, at most */
    CUstreamCaptureMode mode;
    uint64_t id;
    const struct step *steps;
    size_t count, done;
};

/* What the program may count on. Threads that take turns share it; threads that run freely have
 * each their own. */
struct run {
    const struct profile *profile;
    struct context contexts[CONTEXTS];
    struct stream streams[STREAMS];
    struct {
        CUevent event;
        unsigned int context;
    } events[EVENTS];
    struct buffer buffers[ALL_BUFFERS];
    struct graph graphs[GRAPHS];
    struct capture captures[CAPTURES];
    unsigned int families; /* so many there have been */
    struct {
        CUgraphExec exec;
        struct stream stream;
    } last_launch[FAMILIES]; /* of the family with that number, modulo FAMILIES */
    bool may_be_capturing;
    uint64_t next_id;
    uint32_t next_owner;
    uint32_t flags_used, flags_end; /* its share of the flags */
    /* That the driver's pools may have taken: how long they keep what was freed depends on when
     * work ends and on who waits for it. */
    uint64_t stream_ordered_bytes;
    bool current_pool_is_in_use;
    struct worker workers[THREADS];
    sem_t back;
    struct box *box; /* of the step that is being done, if it has one */
    unsigned int box_number;
    /* What kernels write for the host to see, and what they wait for: registered with the contexts
     * that launch them. A thread's lock is 1 while it is free. */
    struct {
        _Alignas(4096) uint64_t mismatches[128];
        uint32_t locks[THREADS];
        uint32_t flags[FLAGS];
    } counters[CONTEXTS];
    /* Work that needs a lock may be in flight there: the driver has not waited for it since. */
    bool waiters[CONTEXTS];
    unsigned int locked_context; /* the last lock was taken when the driver had waited for its work
                                  */
    struct {
        _Alignas(4096) uint32_t words[1024];
    } landing;
};

static struct run runs[THREADS];
static __thread struct run *run = &runs[0];
static __thread unsigned int self;

void set_all_flags(void)
{
    for (unsigned int i = 0; i < THREADS; i++)
        for (unsigned int j = 0; j < CONTEXTS; j++)
            for (unsigned int k = 0; k < FLAGS; k++)
                __atomic_store_n(&runs[i].counters[j].flags[k], 1, __ATOMIC_RELEASE);
}

/* ---- locks ---- */

/* Every thread has one. What needs it, in order to end, is that thread's work: so no other thread's
 * call can keep the holder from what it is about to do. Their addresses are the host functions'
 * arguments. */
static char lock_names[THREADS];
static __thread bool holds_lock;

static void set_lock(bool free)
{
    for (unsigned int i = 0; i < CONTEXTS; i++)
        __atomic_store_n(&run->counters[i].locks[self], free, __ATOMIC_RELEASE);
    simcuda_hold_host_functions(&lock_names[self], !free);
    holds_lock = !free;
}

bool let_go_of_lock(void)
{
    bool held = holds_lock;
    if (held)
        set_lock(true);
    return held;
}

static void needs_lock(void *unused)
{
    (void)unused;
}

static void callback_needs_lock(CUstream stream, CUresult status, void *unused)
{
    (void)stream;
    (void)status;
    (void)unused;
}

/* The driver has waited for all that the context had to do. */
static void no_waiters(unsigned int context)
{
    if (context < CONTEXTS && run->contexts[context].root == context)
        run->waiters[context] = false;
}

/* ---- contexts ---- */

/* The slot of the context that is current in this thread, or CONTEXTS. */
static unsigned int current(void)
{
    CUcontext handle = NULL;
    unsigned int slot = 0;
    if (cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle)
        return CONTEXTS;
    while (slot < CONTEXTS && !(run->contexts[slot].alive && run->contexts[slot].handle == handle))
        slot++;
    return slot;
}

static bool push(unsigned int slot)
{
    if (run->workers[self].depth >= 24 || !run->contexts[slot].alive)
        return false;
    bool pushed = CALL(cuCtxPushCurrent_v2, (run->contexts[slot].handle), "(context[%u])", slot) ==
                  CUDA_SUCCESS;
    run->workers[self].depth += pushed;
    return pushed;
}

static void pop(void)
{
    CUcontext popped;
    if (CALL(cuCtxPopCurrent_v2, (&popped), "(&popped)") == CUDA_SUCCESS)
        run->workers[self].depth -= run->workers[self].depth > 0;
}

/* The context is there and current: gives it what the program needs. */
static void equip(unsigned int slot)
{
    struct context *context = &run->contexts[slot];
    CUmodule module = NULL;
    bool more = false;
    CALL_AS(MAY_HAVE_MEMORY, &more, cuModuleLoadData, (&module, KERNELS_PTX),
            "(&module, KERNELS_PTX)");
    if (more) {
        cuModuleUnload(module);
        module = NULL;
    }
    for (unsigned int i = 0; i < KERNELS; i++)
        CALL(cuModuleGetFunction, (&context->kernels[i], module, kernel_names[i]),
             "(&kernel[%u][%u], module, \"%s\")", slot, i, kernel_names[i]);
    context->equipped =
        CALL(cuMemHostRegister_v2, (&run->counters[slot], sizeof run->counters[slot], 0),
             "(&counters[%u], sizeof counters[%u], 0)", slot, slot) == CUDA_SUCCESS;
    if (CALL(cuEventCreate, (&context->helper, CU_EVENT_DISABLE_TIMING), "(&helper[%u], 2)",
             slot) != CUDA_SUCCESS)
        context->helper = NULL;
}

static void begin_context(unsigned int slot, CUcontext handle, CUdevice device)
{
    run->contexts[slot] =
        (struct context){.handle = handle, .alive = true, .root = slot, .device = device};
}

static bool is_within(unsigned int inner, unsigned int outer)
{
    return inner < CONTEXTS && run->contexts[inner].alive &&
           (inner == outer || run->contexts[inner].root == outer);
}

/* The host has waited for all work of the context. */
static void context_is_idle(unsigned int context)
{
    no_waiters(context);
    for (unsigned int i = 0; i < ALL_BUFFERS; i++)
        if (run->buffers[i].home.kind != NO_STREAM &&
            is_within(run->buffers[i].home.context, context))
            run->buffers[i].home.kind = NO_STREAM;
}

static void drop_captures_from(unsigned int context)
{
    for (unsigned int i = 0; i < CAPTURES; i++)
        if (run->captures[i].active && is_within(run->captures[i].origin.context, context)) {
            run->captures[i].active = false;
            blocks_stay_with_context = true;
        }
}

/* A context's end does not wait for what others' streams do to its memory, as cuMemFree does: the
 * program waits. */
static bool wait_for_others_uses(unsigned int context)
{
    for (unsigned int i = 0; i < ALL_BUFFERS; i++) {
        const struct buffer *buffer = &run->buffers[i];
        unsigned int user = buffer->home.context;
        /* The end of a user's context has ended its work. */
        if (buffer->kind == NO_BUFFER || buffer->home.kind == NO_STREAM ||
            !run->contexts[user].alive || !is_within(buffer->context, context) ||
            is_within(user, context))
            continue;
        if (CALL(cuCtxSynchronize_v2, (run->contexts[user].handle), "(context[%u])", user) !=
            CUDA_SUCCESS)
            return false;
        context_is_idle(user);
    }
    return true;
}

/* The context's memory goes with it. False: it has to stay. */
static bool tell_of_memory_that_goes(unsigned int context)
{
    if (!wait_for_others_uses(context))
        return false;
    for (unsigned int i = 0; i < BUFFERS; i++)
        if (run->buffers[i].kind != NO_BUFFER && run->buffers[i].kind != ASYNC &&
            is_within(run->buffers[i].context, context))
            simcuda_program_freed(run->buffers[i].address);
    return true;
}

static void *host_address(const struct buffer *buffer)
{
    return (void *)(uintptr_t)buffer->address;
}

/* Pinned memory goes with its context, and is nobody's then. Other threads that run freely may have
 * the address at once. */
static void free_what_is_gone(const struct buffer *buffer)
{
    if (buffer->kind == PINNED && buffer->owner % 4 == 0 && !run->profile->free)
        CALL(cuMemFreeHost, (host_address(buffer)), "((void *)buffer[%u])",
             (unsigned int)(buffer - run->buffers));
}

static void drop_buffer(struct buffer *buffer)
{
    uint32_t owner = buffer->owner;
    if (buffer->done && buffer->done_context < CONTEXTS &&
        run->contexts[buffer->done_context].alive)
        CALL(cuEventDestroy_v2, (buffer->done), "(done[%u])",
             (unsigned int)(buffer - run->buffers));
    memset(buffer, 0, sizeof *buffer);
    buffer->owner = owner;
}

/* In any other mode it would be refused beside a capture, and end that. */
static void destroy_exec(unsigned int i)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CALL(cuThreadExchangeStreamCaptureMode, (&mode), "(&(CUstreamCaptureMode){2})");
    CALL(cuGraphExecDestroy, (run->graphs[i].exec), "(exec[%u])", i);
    CALL(cuThreadExchangeStreamCaptureMode, (&mode), "(&(CUstreamCaptureMode){%u})",
         (unsigned int)mode);
    run->graphs[i].exec = NULL;
}

static void destroy_graph(unsigned int i)
{
    if (run->graphs[i].exec)
        destroy_exec(i);
    if (run->graphs[i].graph)
        CALL(cuGraphDestroy, (run->graphs[i].graph), "(kept[%u])", i);
    memset(&run->graphs[i], 0, sizeof run->graphs[i]);
}

/* The context is no more, and took what it had with it. */
static void context_died(unsigned int slot)
{
    no_waiters(slot);
    drop_captures_from(slot);
    for (unsigned int i = 0; i < STREAMS; i++)
        if (is_within(run->streams[i].context, slot))
            run->streams[i].kind = NO_STREAM;
    for (unsigned int i = 0; i < EVENTS; i++)
        if (run->events[i].event && is_within(run->events[i].context, slot))
            run->events[i].event = NULL;
    for (unsigned int i = 0; i < ALL_BUFFERS; i++) {
        struct buffer *buffer = &run->buffers[i];
        if (buffer->done && is_within(buffer->done_context, slot))
            buffer->done = NULL;
        if (buffer->kind != NO_BUFFER && buffer->kind != ASYNC &&
            is_within(buffer->context, slot)) {
            free_what_is_gone(buffer);
            drop_buffer(buffer);
        }
        /* Stream-ordered memory that could not be freed before outlives its context, unused. */
        else if (buffer->kind == ASYNC && is_within(buffer->context, slot))
            buffer->lost = true;
        else if (buffer->home.kind != NO_STREAM && is_within(buffer->home.context, slot)) {
            buffer->home.kind = NO_STREAM;
            buffer->lost = buffer->lost || buffer->context != slot;
        }
    }
    for (unsigned int i = 0; i < GRAPHS; i++)
        if ((run->graphs[i].exec || run->graphs[i].graph) &&
            is_within(run->graphs[i].context, slot))
            destroy_graph(i);
    for (unsigned int i = 0; i < CONTEXTS; i++)
        if (i != slot && is_within(i, slot))
            run->contexts[i].alive = false;
    run->contexts[slot].alive = false;
}

/* ---- streams ---- */

static uint64_t id_of_default(enum stream_kind kind, unsigned int context)
{
    uint64_t id = ((uint64_t)kind << 56) | ((uint64_t)context << 48);
    return kind == PER_THREAD ? id | run->workers[self].id : id;
}

static struct stream default_stream(enum stream_kind kind, unsigned int how)
{
    unsigned int context = current();
    struct stream stream = {.kind = kind, .context = context, .id = id_of_default(kind, context)};
    if (kind == LEGACY)
        stream.handle = how & 1 ? CU_STREAM_LEGACY : NULL;
    else if (how & 1)
        stream.handle = CU_STREAM_PER_THREAD;
    else
        stream.ptsz = true;
    return stream;
}

/* The stream that a number of a step names: mostly a made one. */
static struct stream stream_named(unsigned int number)
{
    unsigned int slot = number % (STREAMS + 4);
    if (slot < STREAMS && run->streams[slot].kind == MADE)
        return run->streams[slot];
    return default_stream((number >> 4) % 3 == 0 ? PER_THREAD : LEGACY, number >> 6);
}

/* How the stream is spelled in C. */
static const char *spelled(const struct stream *stream)
{
    static _Thread_local char text[4][32];
    static _Thread_local unsigned int next;
    char *spelling = text[next++ % 4];
    if (stream->kind == MADE)
        snprintf(spelling, sizeof text[0], "stream[%u]", stream->slot);
    else
        snprintf(spelling, sizeof text[0], "%s",
                 stream->handle == CU_STREAM_LEGACY       ? "CU_STREAM_LEGACY"
                 : stream->handle == CU_STREAM_PER_THREAD ? "CU_STREAM_PER_THREAD"
                                                          : "NULL");
    return spelling;
}

/* A call that takes a stream, by the name that its kind of default stream has. */
#define ON_AS(comparison, undo, name, suffix, stream, arguments, ...)                              \
    ((stream).ptsz ? CALL_AS(comparison, undo, name##suffix, arguments, __VA_ARGS__)               \
                   : CALL_AS(comparison, undo, name, arguments, __VA_ARGS__))
#define ON(name, suffix, stream, arguments, ...)                                                   \
    ON_AS(SAME_RESULT, NULL, name, suffix, stream, arguments, __VA_ARGS__)

static bool is_same_stream(const struct stream *a, const struct stream *b)
{
    return a->kind == b->kind && a->id == b->id;
}

static bool captures(const struct stream *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!run->may_be_capturing)
        return false;
    CUresult result = stream->ptsz ? cuStreamIsCapturing_ptsz(stream->handle, &status)
                                   : cuStreamIsCapturing(stream->handle, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult record(CUevent event, const char *name, unsigned int number,
                       const struct stream *stream)
{
    return ON(cuEventRecord, _ptsz, *stream, (event, stream->handle), "(%s[%u], %s)", name, number,
              spelled(stream));
}

static CUresult wait_event(const struct stream *stream, CUevent event, const char *name,
                           unsigned int number)
{
    return ON(cuStreamWaitEvent, _ptsz, *stream, (stream->handle, event, 0), "(%s, %s[%u], 0)",
              spelled(stream), name, number);
}

/* Records the helper event of the buffer's home there. */
static bool record_home(const struct stream *home)
{
    unsigned int context = run->contexts[home->context].root;
    CUevent helper = run->contexts[context].helper;
    if (!helper || captures(home))
        return false;
    bool legacy = home->kind == LEGACY && current() != home->context;
    struct stream named = *home;
    if (legacy && !push(home->context))
        return false;
    if (home->kind == LEGACY)
        named.handle = CU_STREAM_LEGACY;
    bool recorded = record(helper, "helper", context, &named) == CUDA_SUCCESS;
    if (legacy)
        pop();
    return recorded;
}

/* ---- buffers ---- */

static bool order_behind_home(struct buffer *buffer, const struct stream *stream)
{
    const struct stream *home = &buffer->home;
    if (home->kind == PER_THREAD)
        return buffer->done && wait_event(stream, buffer->done, "done",
                                          (unsigned int)(buffer - run->buffers)) == CUDA_SUCCESS;
    unsigned int context = run->contexts[home->context].root;
    return record_home(home) &&
           wait_event(stream, run->contexts[context].helper, "helper", context) == CUDA_SUCCESS;
}

/* Makes the buffer usable by the stream's next work, unless nothing can. Stream-ordered memory
 * stays in its context: cuMemFree does not wait for what others do to it. */
static bool reach(struct buffer *buffer, const struct stream *stream)
{
    if (buffer->kind == NO_BUFFER || buffer->lost || stream->context == CONTEXTS ||
        ((buffer->kind == ASYNC || run->may_be_capturing) &&
         !is_within(stream->context, buffer->context)) ||
        captures(stream))
        return false;
    if (buffer->home.kind == NO_STREAM || is_same_stream(&buffer->home, stream))
        return true;
    return order_behind_home(buffer, stream);
}

/* The stream has used the buffer. */
static void settle(struct buffer *buffer, const struct stream *stream)
{
    unsigned int number = (unsigned int)(buffer - run->buffers);
    unsigned int context = stream->context;
    buffer->home = *stream;
    if (stream->kind != PER_THREAD)
        return;
    if (buffer->done && buffer->done_context != context) {
        CALL(cuEventDestroy_v2, (buffer->done), "(done[%u])", number);
        buffer->done = NULL;
    }
    if (!buffer->done && CALL(cuEventCreate, (&buffer->done, CU_EVENT_DISABLE_TIMING),
                              "(&done[%u], 2)", number) != CUDA_SUCCESS)
        buffer->done = NULL;
    buffer->done_context = context;
    buffer->lost = !buffer->done || record(buffer->done, "done", number, stream) != CUDA_SUCCESS;
}

/* Work of unknown fate may use it: it may not be touched any more. */
static void lose(struct buffer *buffer)
{
    buffer->lost = true;
}

/* The same for a stream. */
static void stream_is_idle(const struct stream *stream)
{
    for (unsigned int i = 0; i < ALL_BUFFERS; i++)
        if (is_same_stream(&run->buffers[i].home, stream))
            run->buffers[i].home.kind = NO_STREAM;
}

static struct buffer *buffer_named(unsigned int number)
{
    return &run->buffers[number % BUFFERS];
}

static unsigned int number_of(const struct buffer *buffer)
{
    return (unsigned int)(buffer - run->buffers);
}

/* What the race detector is told of a stream. */
static CUstream spelled_out(const struct stream *stream)
{
    return stream->ptsz ? CU_STREAM_PER_THREAD : stream->handle;
}

/* The buffer is the program's from now on; stream: in whose order, or NULL. */
static void own(struct buffer *buffer, enum buffer_kind kind, uint64_t bytes,
                const struct stream *stream)
{
    unsigned int context = current();
    *buffer =
        (struct buffer){.address = buffer->address,
                        .bytes = bytes,
                        .kind = kind,
                        .context = context < CONTEXTS ? run->contexts[context].root : CONTEXTS,
                        .words = bytes / 4 < WORDS ? (uint32_t)(bytes / 4) : WORDS,
                        .owner = run->next_owner + 1,
                        .made = run->next_owner + 1};
    run->next_owner++;
    if (stream)
        simcuda_program_allocated_async(buffer->address, bytes, buffer->owner, spelled_out(stream));
    else
        simcuda_program_allocated(buffer->address, bytes, buffer->owner);
}

/* Around a call that allocates or frees: the race detector is to judge the waits in it. Where
 * memory may run out it is not, since the pool waits then instead of failing. */
static void waits_are_judged_from_here(enum simcuda_waits plainly, uint64_t argument)
{
    if (run->profile->judged_waits)
        simcuda_program_call_begin(plainly, argument);
}

static void to_here(void)
{
    if (run->profile->judged_waits)
        simcuda_program_call_end();
}

/* cuMemFreeHost waits for the memory's own context alone: the program waits for what others do. */
static bool others_are_done_with(const struct buffer *buffer)
{
    unsigned int user = buffer->home.context;
    if (buffer->kind != PINNED || buffer->home.kind == NO_STREAM || !run->contexts[user].alive ||
        is_within(user, buffer->context))
        return true;
    if (CALL(cuCtxSynchronize_v2, (run->contexts[user].handle), "(context[%u])", user) !=
        CUDA_SUCCESS)
        return false;
    context_is_idle(user);
    return true;
}

/* ---- what graphs keep ---- */

static bool is_use_of(const struct use *use, const struct buffer *buffer)
{
    return use->buffer == number_of(buffer) && use->owner == buffer->owner;
}

static bool any_uses(const struct use *uses, unsigned int count, const struct buffer *buffer)
{
    while (count > 0 && !is_use_of(&uses[count - 1], buffer))
        count--;
    return count > 0;
}

static bool is_wanted_by_graphs(const struct buffer *buffer)
{
    for (unsigned int i = 0; i < CAPTURES; i++)
        if (run->captures[i].active &&
            any_uses(run->captures[i].uses, run->captures[i].use_count, buffer))
            return true;
    for (unsigned int i = 0; i < GRAPHS; i++)
        if (any_uses(run->graphs[i].uses, run->graphs[i].use_count, buffer))
            return true;
    return false;
}

/* The uses that may go on after the free are of the kept buffer from now on. Others are of the
 * slot, in which there is another buffer, and their graph is launched no more. */
static void move_uses(struct use *uses, unsigned int count, const struct buffer *freed,
                      const struct buffer *kept, bool freed_inside)
{
    for (unsigned int i = 0; i < count; i++)
        if (is_use_of(&uses[i], freed) && (freed_inside || uses[i].inside))
            uses[i].buffer = number_of(kept);
}

/* What is freed while a capture goes on, or was allocated then, may be used by its graph as long as
 * that is there. The uses stay in their streams' order: such a free waits for nothing. */
static void keep_for_graphs(struct buffer *freed)
{
    if (!run->profile->allocates || (freed->kind != PLAIN && freed->kind != PITCHED) ||
        !is_wanted_by_graphs(freed))
        return;
    struct buffer *kept = &run->buffers[BUFFERS];
    while (kept < run->buffers + ALL_BUFFERS && is_wanted_by_graphs(kept))
        kept++;
    if (kept == run->buffers + ALL_BUFFERS)
        return;
    drop_buffer(kept);
    *kept = *freed;
    freed->done = NULL;
    trace_say("    buffer[%u] = buffer[%u]; done[%u] = done[%u];\n", number_of(kept),
              number_of(freed), number_of(kept), number_of(freed));
    for (unsigned int i = 0; i < CAPTURES; i++)
        if (run->captures[i].active)
            move_uses(run->captures[i].uses, run->captures[i].use_count, freed, kept, true);
    for (unsigned int i = 0; i < GRAPHS; i++)
        move_uses(run->graphs[i].uses, run->graphs[i].use_count, freed, kept, false);
}

/* Captures may allocate: no call that allocates or frees plain memory is one that they mind. */
static void expect_unminded(const char *call, CUresult result)
{
    if (run->profile->allocates && result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
        result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        trace_fail("%s: %u, although captures may allocate", call, result);
}

static CUresult call_free(const struct buffer *buffer)
{
    unsigned int number = number_of(buffer);
    if (buffer->kind == PINNED)
        return CALL(cuMemFreeHost, (host_address(buffer)), "((void *)buffer[%u])", number);
    return CALL(cuMemFree_v2, (buffer->address), "(buffer[%u])", number);
}

static bool free_buffer(struct buffer *buffer)
{
    if (buffer->kind == NO_BUFFER || !others_are_done_with(buffer))
        return false;
    waits_are_judged_from_here(SIMCUDA_WAITS_FOR_OWNER, buffer->address);
    simcuda_program_freed(buffer->address);
    CUresult result = call_free(buffer);
    to_here();
    /* The wait of free_synchronizes meets a capture that another thread begins meanwhile. */
    bool may_meet_captures = run->profile->free && run->profile->free_synchronizes;
    if ((buffer->kind == PLAIN || buffer->kind == PITCHED) && !may_meet_captures)
        expect_unminded("cuMemFree", result);
    if (result == CUDA_SUCCESS && buffer->kind != ASYNC && !run->profile->allocates)
        no_waiters(buffer->context);
    if (result == CUDA_SUCCESS) {
        keep_for_graphs(buffer);
        drop_buffer(buffer);
    } else {
        simcuda_program_free_failed(buffer->address);
    }
    return result == CUDA_SUCCESS;
}

static void undo(struct buffer *buffer)
{
    cuMemFree_v2(buffer->address);
}

/*
 * Blocks that are larger than what was asked for, and small ones that come to lie in more pages,
 * may be what is missing when memory is nearly full; so a program stays away from that, unless its
 * allocations are whole pages and are not rounded.
 */
static uint64_t taken_by(uint64_t bytes)
{
    const uint64_t page = (uint64_t)2 << 20;
    uint64_t rounded = bytes + bytes / run->profile->rounding;
    return (rounded + page - 1) / page * page;
}

static bool has_room(uint64_t bytes)
{
    uint64_t taken = taken_by(bytes) + ((uint64_t)8 << 20) + run->stream_ordered_bytes;
    if (run->profile->full)
        return true;
    for (unsigned int i = 0; i < BUFFERS; i++)
        if (run->buffers[i].kind != NO_BUFFER && run->buffers[i].kind != ASYNC &&
            run->buffers[i].kind != PINNED)
            taken += taken_by(run->buffers[i].bytes);
    /* Other threads have as much, and some of it is on its way from one to another. */
    uint64_t share = run->profile->device_bytes / (run->profile->free ? 2 * THREADS : 1);
    return taken <= share;
}

/* The slot is empty, and there is memory to fill it. */
static bool make_way(struct buffer *buffer, uint64_t bytes)
{
    return (buffer->kind == NO_BUFFER || free_buffer(buffer)) && has_room(bytes);
}

static bool allocate(struct buffer *buffer, uint64_t bytes)
{
    bool more = false;
    if (!make_way(buffer, bytes))
        return false;
    waits_are_judged_from_here(SIMCUDA_WAITS_FOR_NOTHING, 0);
    CUresult result = CALL_AS(MAY_HAVE_MEMORY, &more, cuMemAlloc_v2, (&buffer->address, bytes),
                              "(&buffer[%u], %llu)", number_of(buffer), (unsigned long long)bytes);
    to_here();
    if (more)
        undo(buffer);
    expect_unminded("cuMemAlloc", result);
    if (result == CUDA_SUCCESS)
        own(buffer, PLAIN, bytes, NULL);
    return result == CUDA_SUCCESS;
}

/* ---- kernels ---- */

static CUresult launch(unsigned int context, enum kernel kernel, const struct stream *stream,
                       void **parameters)
{
    CUfunction function = run->contexts[context].kernels[kernel];
    return ON(cuLaunchKernel, _ptsz, *stream,
              (function, 1, 1, 1, 32, 1, 1, 0, stream->handle, parameters, NULL),
              "(kernel[%u][%u], 1, 1, 1, 32, 1, 1, 0, %s, arguments, NULL)", context, kernel,
              spelled(stream));
}

/* Prints the arguments of the launch that follows. */
#define ARGUMENTS(...) (trace->code ? trace_say(__VA_ARGS__) : (void)0)

static CUresult launch_spin(unsigned int context, const struct stream *stream, uint64_t ns)
{
    ARGUMENTS("    ns = %llu; arguments[0] = &ns;\n", (unsigned long long)ns);
    return launch(context, SPIN, stream, (void *[]){&ns});
}

static CUresult launch_fill(const struct buffer *buffer, const struct stream *stream,
                            uint32_t value)
{
    CUdeviceptr target = buffer->address;
    uint32_t words = buffer->words;
    ARGUMENTS(
        "    target = buffer[%u]; words = %u; value = %u; arguments[0] = &target; arguments[1] "
        "= &words; arguments[2] = &value;\n",
        number_of(buffer), words, value);
    return launch(buffer->context, FILL, stream, (void *[]){&target, &words, &value});
}

static CUresult launch_verify(const struct buffer *buffer, const struct stream *stream,
                              uint32_t value, uint64_t ns)
{
    CUdeviceptr target = buffer->address;
    CUdeviceptr mismatches = (uintptr_t)&run->counters[buffer->context].mismatches;
    uint32_t words = buffer->words;
    ARGUMENTS(
        "    ns = %llu; target = buffer[%u]; words = %u; value = %u; mismatches = "
        "(CUdeviceptr)&counters[%u]; arguments[0] = &ns; arguments[1] = &target; arguments[2] = "
        "&words; arguments[3] = &value; arguments[4] = &mismatches;\n",
        (unsigned long long)ns, number_of(buffer), words, value, buffer->context);
    return launch(buffer->context, SPIN_THEN_VERIFY, stream,
                  (void *[]){&ns, &target, &words, &value, &mismatches});
}

/* Kernels of the buffer's context only: what others do to it, cuMemFree could not know. */
static bool may_run_kernels_on(const struct buffer *buffer, const struct stream *stream)
{
    return stream->context < CONTEXTS && buffer->context < CONTEXTS &&
           run->contexts[stream->context].root == buffer->context &&
           run->contexts[buffer->context].equipped;
}

static bool fill(struct buffer *buffer, const struct stream *stream, uint32_t value)
{
    if (!may_run_kernels_on(buffer, stream) || !reach(buffer, stream))
        return false;
    if (launch_fill(buffer, stream, value) != CUDA_SUCCESS)
        return false;
    buffer->written = true;
    buffer->value = value;
    settle(buffer, stream);
    return true;
}

static bool verify(struct buffer *buffer, const struct stream *stream, uint64_t ns)
{
    if (!buffer->written || !may_run_kernels_on(buffer, stream) || !reach(buffer, stream))
        return false;
    if (launch_verify(buffer, stream, buffer->value, ns) != CUDA_SUCCESS)
        return false;
    settle(buffer, stream);
    return true;
}

/* ---- captured work ---- */

static struct capture *capture_from(const struct stream *stream)
{
    for (unsigned int i = 0; i < CAPTURES; i++)
        if (run->captures[i].active && is_same_stream(&run->captures[i].origin, stream))
            return &run->captures[i];
    return NULL;
}

/* Work in a graph writes a buffer before it reads it, so that it may be launched at any time. */
static void capture_work(struct buffer *buffer, const struct stream *stream, uint32_t value)
{
    struct capture *capture = capture_from(stream);
    if (!capture || capture->use_count == 16 || buffer->kind == NO_BUFFER || buffer->lost ||
        !may_run_kernels_on(buffer, stream) || launch_fill(buffer, stream, value) != CUDA_SUCCESS)
        return;
    capture->uses[capture->use_count++] =
        (struct use){number_of(buffer), buffer->owner, value, buffer->made > capture->first_owner};
    if (value % 2)
        launch_spin(buffer->context, stream, value % 9000);
    launch_verify(buffer, stream, value, value % 5000);
}

static bool can_be_launched(const struct graph *graph)
{
    for (unsigned int i = 0; i < graph->use_count; i++) {
        const struct buffer *buffer = &run->buffers[graph->uses[i].buffer];
        if (buffer->kind == NO_BUFFER || buffer->owner != graph->uses[i].owner || buffer->lost)
            return false;
    }
    return !(graph->once && graph->launched);
}

/* Executables that share memory must not run at the same time: the driver orders the launches of
 * one alone. */
static bool may_run_beside_its_family(const struct graph *graph, const struct stream *stream)
{
    unsigned int family = graph->family % FAMILIES;
    CUgraphExec last = run->last_launch[family].exec;
    return !graph->has_memory || !last || last == graph->exec ||
           is_same_stream(&run->last_launch[family].stream, stream);
}

static void note_launch(const struct graph *graph, const struct stream *stream)
{
    unsigned int family = graph->family % FAMILIES;
    if (!graph->has_memory)
        return;
    run->last_launch[family].exec = graph->exec;
    run->last_launch[family].stream = *stream;
}

static void graph_launch(unsigned int number, const struct stream *stream)
{
    struct graph *graph = &run->graphs[number];
    if (!graph->exec || stream->context == CONTEXTS || !can_be_launched(graph) ||
        captures(stream) || run->contexts[stream->context].root != graph->context ||
        !may_run_beside_its_family(graph, stream))
        return;
    for (unsigned int i = 0; i < graph->use_count; i++)
        if (!reach(&run->buffers[graph->uses[i].buffer], stream))
            return;
    if (ON(cuGraphLaunch, _ptsz, *stream, (graph->exec, stream->handle), "(exec[%u], %s)", number,
           spelled(stream)) != CUDA_SUCCESS)
        return;
    graph->launched = true;
    note_launch(graph, stream);
    for (unsigned int i = 0; i < graph->use_count; i++) {
        struct buffer *buffer = &run->buffers[graph->uses[i].buffer];
        buffer->written = true;
        buffer->value = graph->uses[i].value;
        settle(buffer, stream);
    }
}

static void keep_graph(unsigned int number, const struct capture *capture, CUgraph graph)
{
    struct graph *kept = &run->graphs[number];
    destroy_graph(number);
    CUresult result =
        CALL(cuGraphInstantiateWithFlags, (&kept->exec, graph, 0), "(&exec[%u], graph, 0)", number);
    bool whole =
        run->profile->allocates && result == CUDA_SUCCESS && (number + capture->use_count) % 2 == 0;
    if (whole)
        trace_say("    kept[%u] = graph;\n", number);
    else
        CALL(cuGraphDestroy, (graph), "(graph)");
    if (result != CUDA_SUCCESS) {
        kept->exec = NULL;
        return;
    }
    kept->graph = whole ? graph : NULL;
    kept->context = run->contexts[capture->origin.context].root;
    kept->once = capture->once;
    kept->has_memory = capture->has_memory;
    kept->family = run->families++;
    kept->use_count = capture->use_count;
    memcpy(kept->uses, capture->uses, sizeof kept->uses);
}

static void any_capture_left(void)
{
    run->may_be_capturing = false;
    for (unsigned int i = 0; i < CAPTURES; i++)
        run->may_be_capturing = run->may_be_capturing || run->captures[i].active;
}

static bool any_is_used_elsewhere(void)
{
    for (unsigned int i = 0; i < ALL_BUFFERS; i++)
        if (run->buffers[i].home.kind != NO_STREAM &&
            !is_within(run->buffers[i].home.context, run->buffers[i].context))
            return true;
    return false;
}

static void capture_begin(const struct stream *stream, CUstreamCaptureMode mode)
{
    unsigned int free_one = 0;
    /* One that only the context's end ends would forbid the wait that this end needs. */
    if (stream->kind != MADE && any_is_used_elsewhere())
        return;
    while (free_one < CAPTURES && run->captures[free_one].active)
        free_one++;
    if (free_one == CAPTURES)
        return;
    if (ON(cuStreamBeginCapture_v2, _ptsz, *stream, (stream->handle, mode), "(%s, %u)",
           spelled(stream), mode) != CUDA_SUCCESS)
        return;
    run->captures[free_one] =
        (struct capture){.origin = *stream, .active = true, .first_owner = run->next_owner};
    run->may_be_capturing = true;
}

static void capture_end(const struct stream *stream, unsigned int number)
{
    struct capture *capture = capture_from(stream);
    CUgraph graph = NULL;
    CUresult result = ON(cuStreamEndCapture, _ptsz, *stream, (stream->handle, &graph),
                         "(%s, &graph)", spelled(stream));
    if (!capture)
        return;
    if (result == CUDA_SUCCESS)
        keep_graph(number, capture, graph);
    /* Ended by another thread it leaves no graph, but is over. */
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED || result == CUDA_ERROR_INVALID_CONTEXT ||
        result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return;
    capture->active = false;
    any_capture_left();
}

/* What the graph writes into its own memory, it finds there. */
static void use_spare(const struct buffer *spare, const struct stream *stream, uint32_t value)
{
    CUdeviceptr target = spare->address;
    CUdeviceptr mismatches = (uintptr_t)&run->counters[spare->context].mismatches;
    uint32_t words = spare->words;
    uint64_t ns = value % 5000;
    ARGUMENTS("    ns = %llu; target = spare; words = %u; value = %u; mismatches = "
              "(CUdeviceptr)&counters[%u]; arguments[0] = &target; arguments[1] = &words; "
              "arguments[2] = &value;\n",
              (unsigned long long)ns, words, value, spare->context);
    if (launch(spare->context, FILL, stream, (void *[]){&target, &words, &value}) != CUDA_SUCCESS)
        return;
    ARGUMENTS("    arguments[0] = &ns; arguments[1] = &target; arguments[2] = &words; "
              "arguments[3] = &value; arguments[4] = &mismatches;\n");
    launch(spare->context, SPIN_THEN_VERIFY, stream,
           (void *[]){&ns, &target, &words, &value, &mismatches});
}

/* Memory that lives in the graph, or that its launch frees. */
static void capture_allocation(const struct stream *stream, struct buffer *buffer,
                               const struct step *step)
{
    struct capture *capture = capture_from(stream);
    if (!capture || run->profile->largest >= run->profile->device_bytes / 4)
        return;
    /* What is cut out of a larger block is refused there, also where the capture is spoilt. */
    if (step->d % 4 == 0 && !run->profile->races && buffer->kind == PLAIN &&
        !run->profile->splits && may_run_kernels_on(buffer, stream) &&
        (buffer->home.kind == NO_STREAM)) {
        if (ON(cuMemFreeAsync, _ptsz, *stream, (buffer->address, stream->handle),
               "(buffer[%u], %s)", number_of(buffer), spelled(stream)) == CUDA_SUCCESS) {
            capture->once = true;
            drop_buffer(buffer);
        }
        return;
    }
    /* Whether the memory goes with the current context or with the stream's, nobody has seen. */
    unsigned int here = current();
    if (here == CONTEXTS || run->contexts[here].root != run->contexts[stream->context].root)
        return;
    for (unsigned int i = 0; i <= step->c % 4u; i++) {
        struct buffer spare = {.words = WORDS, .context = run->contexts[stream->context].root};
        if (ON(cuMemAllocAsync, _ptsz, *stream, (&spare.address, WORDS * 4, stream->handle),
               "(&spare, %u, %s)", WORDS * 4, spelled(stream)) != CUDA_SUCCESS)
            return;
        capture->has_memory = true;
        if (may_run_kernels_on(&spare, stream))
            use_spare(&spare, stream, step->y + i);
        ON(cuMemFreeAsync, _ptsz, *stream, (spare.address, stream->handle), "(spare, %s)",
           spelled(stream));
    }
}

/* ---- steps: memory ---- */

static void step_alloc(const struct step *step)
{
    allocate(buffer_named(step->a), step->x);
}

static void step_alloc_pitch(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    size_t pitch = 0, width = 1 + step->y % 3000, height = 1 + step->x / 4096 % 200;
    unsigned int element = 4u << step->d % 3;
    bool more = false;
    if (buffer->kind != NO_BUFFER && !free_buffer(buffer))
        return;
    CUresult result =
        CALL_AS(MAY_HAVE_MEMORY, &more, cuMemAllocPitch_v2,
                (&buffer->address, &pitch, width, height, element),
                "(&buffer[%u], &pitch, %zu, %zu, %u)", number_of(buffer), width, height, element);
    if (more)
        undo(buffer);
    expect_unminded("cuMemAllocPitch", result);
    if (result != CUDA_SUCCESS)
        return;
    NOTE(pitch);
    own(buffer, PITCHED, pitch * height, NULL);
}

/* From a memory pool of the program's, or (NULL) the current one. */
static bool allocate_async(struct buffer *buffer, uint32_t wanted, const struct stream *stream,
                           CUmemoryPool memory_pool)
{
    bool more = false;
    /* Where memory is full, always one size, and a chunk for each. */
    uint32_t bytes = run->profile->full ? (uint32_t)CHUNK + (2u << 20) : wanted;
    uint64_t chunk = bytes < CHUNK ? CHUNK : taken_by(bytes);
    /* Each memory pool takes chunks of its own. */
    bool first = memory_pool || !run->current_pool_is_in_use;
    uint64_t more_chunks = bytes >= CHUNK || first ? chunk : bytes;
    if (captures(stream) || !make_way(buffer, more_chunks))
        return false;
    waits_are_judged_from_here(SIMCUDA_STREAM_ALLOCATION, 0);
    CUresult result =
        memory_pool
            ? ON_AS(MAY_HAVE_MEMORY, &more, cuMemAllocFromPoolAsync, _ptsz, *stream,
                    (&buffer->address, bytes, memory_pool, stream->handle),
                    "(&buffer[%u], %u, memory_pool, %s)", number_of(buffer), bytes, spelled(stream))
            : ON_AS(MAY_HAVE_MEMORY, &more, cuMemAllocAsync, _ptsz, *stream,
                    (&buffer->address, bytes, stream->handle), "(&buffer[%u], %u, %s)",
                    number_of(buffer), bytes, spelled(stream));
    to_here();
    if (more)
        undo(buffer);
    if (result != CUDA_SUCCESS)
        return false;
    run->stream_ordered_bytes += more_chunks;
    run->current_pool_is_in_use |= !memory_pool;
    own(buffer, ASYNC, bytes, stream);
    buffer->context = run->contexts[stream->context].root;
    settle(buffer, stream);
    return true;
}

static void step_alloc_async(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    allocate_async(buffer_named(step->a), step->x, &stream, NULL);
}

static void step_alloc_managed(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    bool more = false;
    if (!make_way(buffer, step->x))
        return;
    CUresult result =
        CALL_AS(MAY_HAVE_MEMORY, &more, cuMemAllocManaged, (&buffer->address, step->x, 1),
                "(&buffer[%u], %u, 1)", number_of(buffer), step->x);
    if (more)
        undo(buffer);
    if (result == CUDA_SUCCESS)
        own(buffer, MANAGED, step->x, NULL);
}

/* Frees of pinned memory that the driver refuses, after which it is as good as before. */
static void free_pinned_wrongly(const struct buffer *buffer, unsigned int how)
{
    unsigned int number = number_of(buffer);
    switch (how % 5) {
    case 0:
        CALL(cuMemFreeHost, ((char *)host_address(buffer) + 64), "((char *)buffer[%u] + 64)",
             number);
        break;
    case 1:
        CALL(cuMemFree_v2, (buffer->address), "(buffer[%u])", number);
        break;
    case 2:
        CALL(cuMemHostUnregister, (host_address(buffer)), "((void *)buffer[%u])", number);
        break;
    case 3:
        CALL(cuMemHostRegister_v2, (host_address(buffer), 4096, 0), "((void *)buffer[%u], 4096, 0)",
             number);
        break;
    default:
        CALL(cuMemFreeAsync, (buffer->address, NULL), "(buffer[%u], NULL)", number);
        break;
    }
}

/* The address may be another thread's at once. */
static void ask_for_freed_pinned(CUdeviceptr address)
{
    void *host = (void *)(uintptr_t)address;
    CUdeviceptr base;
    size_t size;
    unsigned int flags;
    CALL(cuMemFreeHost, (host), "((void *)spare)");
    CALL(cuMemHostGetFlags, (&flags, host), "(&value, (void *)spare)");
    CALL(cuMemHostGetDevicePointer_v2, (&base, host, 0), "(&base, (void *)spare, 0)");
    CALL(cuMemGetAddressRange_v2, (&base, &size, address), "(&base, &size, spare)");
    CALL(cuPointerGetAttribute, (&base, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
         "(&base, 2, spare)");
}

static void free_pinned(struct buffer *buffer, const struct step *step)
{
    CUdeviceptr address = buffer->address;
    if (step->b % 8 == 0)
        free_pinned_wrongly(buffer, step->c);
    trace_say("    spare = buffer[%u];\n", number_of(buffer));
    if (free_buffer(buffer) && step->b % 16 >= 12 && !run->profile->free)
        ask_for_freed_pinned(address);
}

/* What is wrong about a free is tried while the buffer is there, and right after. */
static void step_free(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    CUdeviceptr address = buffer->address;
    uint64_t bytes = buffer->bytes;
    if (buffer->kind == NO_BUFFER)
        return;
    if (buffer->kind == PINNED) {
        free_pinned(buffer, step);
        return;
    }
    if (step->b % 16 == 0 && bytes > 8)
        CALL(cuMemFree_v2, (address + 4), "(buffer[%u] + 4)", number_of(buffer));
    trace_say("    spare = buffer[%u];\n", number_of(buffer));
    /* The address may be another thread's at once. */
    if (!free_buffer(buffer) || step->b % 16 < 12 || run->profile->free)
        return;
    CUdeviceptr base;
    size_t size;
    CALL(cuMemFree_v2, (address), "(spare)");
    CALL(cuMemGetAddressRange_v2, (&base, &size, address), "(&base, &size, spare)");
    CALL(cuPointerGetAttribute, (&base, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address),
         "(&base, 3, spare)");
}

static bool free_async(struct buffer *buffer, const struct stream *stream)
{
    if (buffer->kind == MANAGED || buffer->kind == PINNED || !reach(buffer, stream))
        return false;
    waits_are_judged_from_here(SIMCUDA_STREAM_FREE, (uintptr_t)spelled_out(stream));
    simcuda_program_freed_async(buffer->address, spelled_out(stream));
    CUresult result = ON(cuMemFreeAsync, _ptsz, *stream, (buffer->address, stream->handle),
                         "(buffer[%u], %s)", number_of(buffer), spelled(stream));
    to_here();
    if (result == CUDA_SUCCESS) {
        drop_buffer(buffer);
        return true;
    }
    simcuda_program_free_failed(buffer->address);
    lose(buffer);
    return false;
}

static void step_free_async(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    free_async(buffer_named(step->a), &stream);
}

/* The pattern that pools are for: allocate, use, free, over and over. */
static void step_burst(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    for (unsigned int i = 0; i < 2 + step->d % 12u; i++) {
        struct stream stream = stream_named(step->b + (step->c & 1 ? i * 7 : 0));
        if (!allocate(buffer, step->x))
            return;
        if (captures(&stream)) {
            free_buffer(buffer);
            continue;
        }
        fill(buffer, &stream, step->y + i);
        verify(buffer, &stream, step->y % 3 ? (step->y + i * 977) % 20000 : 0);
        free_buffer(buffer);
    }
}

/* The same in streams' order, on one stream or several, and freed on another now and then. */
static void step_burst_async(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    for (unsigned int i = 0; i < 2 + step->d % 12u; i++) {
        struct stream stream = stream_named(step->b + (step->c & 1 ? i * 7 : 0));
        if (!allocate_async(buffer, step->x, &stream, NULL))
            return;
        fill(buffer, &stream, step->y + i);
        verify(buffer, &stream, step->y % 3 ? (step->y + i * 977) % 20000 : 0);
        if (step->c & 2)
            stream = stream_named(step->b + i * 5);
        free_async(buffer, &stream);
    }
}

static void ask_for_used_bytes(CUmemoryPool memory_pool)
{
    cuuint64_t used = 0;
    if (CALL(cuMemPoolGetAttribute, (memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
             "(memory_pool, 7, &size)") == CUDA_SUCCESS)
        NOTE(used);
}

/* The most that was used since this was last forgotten. Threads that run freely see each other's.
 */
static void ask_for_most_used_bytes(CUmemoryPool memory_pool, bool forget)
{
    cuuint64_t used = 0;
    if (CALL(cuMemPoolGetAttribute, (memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used),
             "(memory_pool, 8, &size)") == CUDA_SUCCESS)
        NOTE(used);
    used = 0;
    if (forget)
        CALL(cuMemPoolSetAttribute, (memory_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used),
             "(memory_pool, 8, &(cuuint64_t){0})");
}

static void choose_threshold(CUmemoryPool memory_pool, cuuint64_t threshold)
{
    cuuint64_t found = 0;
    CALL(cuMemPoolSetAttribute, (memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
         "(memory_pool, 4, &(cuuint64_t){%llu})", (unsigned long long)threshold);
    if (CALL(cuMemPoolGetAttribute, (memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &found),
             "(memory_pool, 4, &size)") == CUDA_SUCCESS)
        NOTE(found);
}

/* Other devices may reach it. */
static void open_to_all(CUmemoryPool memory_pool)
{
    for (unsigned int i = 0; i < run->profile->devices; i++) {
        CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, (int)i},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CALL(cuMemPoolSetAccess, (memory_pool, &access, 1),
             "(memory_pool, &(CUmemAccessDesc){{1, %u}, 3}, 1)", i);
    }
}

/* A memory pool of the program's, for a while: what is left of it is used on. */
static void step_mempool(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    struct stream stream = stream_named(step->b);
    unsigned int context = stream.context < CONTEXTS ? run->contexts[stream.context].root : 0;
    CUdevice device = run->contexts[context].device;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool memory_pool;
    bool chosen = step->c & 4 && !run->profile->free, keep = step->d & 8;
    bool other_is_in_use = run->current_pool_is_in_use;
    int off = 0;
    if (stream.context == CONTEXTS || step->x > 8u << 20 ||
        CALL(cuMemPoolCreate, (&memory_pool, &properties),
             "(&memory_pool, &(CUmemPoolProps){.allocType = 1, .location = {1, %d}})",
             device) != CUDA_SUCCESS)
        return;
    if (step->c & 3)
        CALL(cuMemPoolSetAttribute, (memory_pool, step->c & 3u, &off), "(memory_pool, %u, &zero)",
             step->c & 3u);
    if (step->c & 8)
        choose_threshold(memory_pool, (cuuint64_t)step->y << 10);
    if (step->c & 16)
        open_to_all(memory_pool);
    if (chosen) {
        CALL(cuDeviceSetMemPool, (device, memory_pool), "(%d, memory_pool)", device);
        run->current_pool_is_in_use = false;
    }
    for (unsigned int i = 0; i <= step->d % 4u; i++) {
        if (!allocate_async(buffer, step->x, &stream, chosen ? NULL : memory_pool))
            break;
        fill(buffer, &stream, step->y + i);
        verify(buffer, &stream, (step->y + i * 977) % 20000);
        ask_for_used_bytes(memory_pool);
        if (!keep || i < step->d % 4u)
            free_async(buffer, &stream);
    }
    ask_for_used_bytes(memory_pool);
    if (step->d & 32)
        ask_for_most_used_bytes(memory_pool, step->d & 64);
    if (step->d & 16)
        CALL(cuMemPoolTrimTo, (memory_pool, 0), "(memory_pool, 0)");
    CALL(cuMemPoolDestroy, (memory_pool), "(memory_pool)");
    run->current_pool_is_in_use = other_is_in_use;
}

static void step_memory_info(const struct step *step)
{
    size_t available = 0, total = 0;
    (void)step;
    if (CALL(cuMemGetInfo_v2, (&available, &total), "(&size, &total)") != CUDA_SUCCESS)
        return;
    NOTE(total);
    if (available > total)
        trace_fail("cuMemGetInfo says %zu of %zu bytes are free", available, total);
}

static void step_range(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    CUdeviceptr base = 0;
    size_t size = 0;
    uint64_t offset = step->y % (buffer->bytes + 1);
    if (buffer->kind == NO_BUFFER || offset == buffer->bytes)
        return;
    if (CALL(cuMemGetAddressRange_v2, (&base, &size, buffer->address + offset),
             "(&base, &size, buffer[%u] + %llu)", number_of(buffer),
             (unsigned long long)offset) != CUDA_SUCCESS)
        return;
    NOTE(base - buffer->address);
    NOTE(size);
    /* What lies between the end of an allocation and the next place for one is nobody's; parts of
     * larger blocks lie without a gap. */
    if (buffer->kind == PLAIN && buffer->bytes % 1024 && buffer->bytes < (1 << 20) &&
        !run->profile->splits)
        CALL(cuMemGetAddressRange_v2, (&base, &size, buffer->address + buffer->bytes),
             "(&base, &size, buffer[%u] + %llu)", number_of(buffer),
             (unsigned long long)buffer->bytes);
}

/* A context's handle as something that is the same in every run. */
static uint64_t slot_of(CUcontext handle)
{
    uint64_t slot = 0;
    while (slot < CONTEXTS && !(run->contexts[slot].alive && run->contexts[slot].handle == handle))
        slot++;
    return slot;
}

static void step_attribute(const struct step *step)
{
    static const CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_MAPPED,         CU_POINTER_ATTRIBUTE_SYNC_MEMOPS};
    struct buffer *buffer = buffer_named(step->a);
    CUpointer_attribute attribute = attributes[step->b % 10];
    uint64_t value = 0, offset = buffer->bytes ? step->y % buffer->bytes : 0;
    if (buffer->kind == NO_BUFFER || buffer->bytes == 0)
        return;
    CUresult result;
    if (step->c & 1) {
        result = CALL(cuPointerGetAttributes,
                      (1, &attribute, (void *[]){&value}, buffer->address + offset),
                      "(1, (CUpointer_attribute[]){%u}, (void *[]){&base}, buffer[%u] + %llu)",
                      attribute, number_of(buffer), (unsigned long long)offset);
    } else {
        result = CALL(cuPointerGetAttribute, (&value, attribute, buffer->address + offset),
                      "(&base, %u, buffer[%u] + %llu)", attribute, number_of(buffer),
                      (unsigned long long)offset);
    }
    if (result != CUDA_SUCCESS)
        return;
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        value = slot_of((CUcontext)value);
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
        attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
        (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && value != 0))
        value -= buffer->address;
    NOTE(value);
}

static void step_share(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    CUipcMemHandle handle;
    unsigned int one = 1;
    uint64_t tokens[2];
    int file = -1;
    if (buffer->kind == NO_BUFFER || buffer->bytes == 0 || run->profile->splits)
        return;
    blocks_stay_with_context = true;
    switch (step->b % 4) {
    case 0:
        CALL(cuIpcGetMemHandle, (&handle, buffer->address), "(&handle, buffer[%u])",
             number_of(buffer));
        break;
    case 1:
        if (CALL(cuMemGetHandleForAddressRange, (&file, buffer->address, buffer->bytes, 1, 0),
                 "(&file, buffer[%u], %llu, 1, 0)", number_of(buffer),
                 (unsigned long long)buffer->bytes) == CUDA_SUCCESS)
            close(file);
        break;
    case 2:
        CALL(cuPointerSetAttribute, (&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer->address),
             "(&one, 6, buffer[%u])", number_of(buffer));
        break;
    default:
        CALL(cuPointerGetAttribute, (tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, buffer->address),
             "(tokens, 5, buffer[%u])", number_of(buffer));
        break;
    }
}

static void step_wrong(const struct step *step)
{
    CUdeviceptr address;
    size_t pitch;
    switch (step->b % 8) {
    case 0:
        CALL(cuMemAlloc_v2, (&address, 0), "(&spare, 0)");
        break;
    case 1:
        CALL(cuMemAlloc_v2, (&address, (size_t)1 << 40), "(&spare, (size_t)1 << 40)");
        break;
    case 2:
        CALL(cuMemFree_v2, (0), "(0)");
        break;
    case 3:
        CALL(cuMemFree_v2, (0x1000 + step->y), "(0x1000 + %u)", step->y);
        break;
    case 4:
        CALL(cuMemAlloc_v2, (&address, SIZE_MAX - step->y % 4096), "(&spare, SIZE_MAX - %u)",
             step->y % 4096);
        break;
    case 5:
        CALL(cuMemAllocPitch_v2, (&address, &pitch, step->y, (size_t)1 << 40, 4),
             "(&spare, &pitch, %u, (size_t)1 << 40, 4)", step->y);
        break;
    case 6:
        CALL(cuMemAllocPitch_v2, (&address, &pitch, 100, 100, step->d % 4),
             "(&spare, &pitch, 100, 100, %u)", step->d % 4);
        break;
    default:
        CALL(cuMemAlloc_v2, (NULL, 100), "(NULL, 100)");
        break;
    }
}

static void step_host_memory(const struct step *step)
{
    void *memory;
    size_t bytes = 1 + step->x % 100000;
    if (CALL(cuMemHostAlloc, (&memory, bytes, 0), "(&memory, %zu, 0)", bytes) != CUDA_SUCCESS)
        return;
    uint64_t address = (uintptr_t)memory;
    simcuda_program_allocated(address, bytes, ++run->next_owner);
    waits_are_judged_from_here(SIMCUDA_WAITS_FOR_OWNER, address);
    simcuda_program_freed(address);
    if (CALL(cuMemFreeHost, (memory), "(memory)") != CUDA_SUCCESS)
        simcuda_program_free_failed(address);
    to_here();
}

static void step_array(const struct step *step)
{
    CUDA_ARRAY_DESCRIPTOR description = {1 + step->x % 5000, 1 + step->y % 300,
                                         CU_AD_FORMAT_UNSIGNED_INT8, 4};
    CUarray array;
    bool more = false;
    CUresult result = CALL_AS(MAY_HAVE_MEMORY, &more, cuArrayCreate_v2, (&array, &description),
                              "(&array, &(CUDA_ARRAY_DESCRIPTOR){%zu, %zu, 1, 4})",
                              description.Width, description.Height);
    if (more)
        cuArrayDestroy(array);
    if (result == CUDA_SUCCESS)
        CALL(cuArrayDestroy, (array), "(array)");
}

static void step_physical(const struct step *step)
{
    CUmemAllocationProp properties = {.type = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle handle;
    bool more = false;
    size_t bytes = (size_t)(1 + step->x % 4) << 21;
    CUresult result = CALL_AS(
        MAY_HAVE_MEMORY, &more, cuMemCreate, (&handle, bytes, &properties, 0),
        "(&physical, %zu, &(CUmemAllocationProp){.type = 1, .location = {1, 0}}, 0)", bytes);
    if (more)
        cuMemRelease(handle);
    if (result == CUDA_SUCCESS)
        CALL(cuMemRelease, (handle), "(physical)");
}

static void step_trim(const struct step *step)
{
    CUmemoryPool memory_pool;
    CUdevice device = (CUdevice)(step->a % run->profile->devices);
    if (CALL(cuDeviceGetDefaultMemPool, (&memory_pool, device), "(&memory_pool, %d)", device) ==
        CUDA_SUCCESS)
        CALL(cuMemPoolTrimTo, (memory_pool, 0), "(memory_pool, 0)");
}

/* ---- steps: work ---- */

static void step_fill(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    struct stream stream = stream_named(step->b);
    if (captures(&stream))
        capture_work(buffer, &stream, step->y);
    else
        fill(buffer, &stream, step->y);
}

static void step_verify(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    if (!captures(&stream))
        verify(buffer_named(step->a), &stream, 0);
}

static void step_spin_verify(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    if (!captures(&stream))
        verify(buffer_named(step->a), &stream, step->y % 50000);
}

static void step_memset(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    struct stream stream = stream_named(step->b);
    if (!may_run_kernels_on(buffer, &stream) || !reach(buffer, &stream))
        return;
    if (ON(cuMemsetD32Async, _ptsz, stream,
           (buffer->address, step->y, buffer->words, stream.handle), "(buffer[%u], %u, %u, %s)",
           number_of(buffer), step->y, buffer->words, spelled(&stream)) != CUDA_SUCCESS)
        return;
    buffer->written = buffer->words > 0;
    buffer->value = step->y;
    settle(buffer, &stream);
}

static CUresult call_copy(const struct buffer *to, const struct buffer *from,
                          const struct stream *stream)
{
    size_t bytes = (size_t)to->words * 4;
    if (to->kind == PINNED && from->kind == PINNED)
        return ON(cuMemcpyAsync, _ptsz, *stream,
                  (to->address, from->address, bytes, stream->handle),
                  "(buffer[%u], buffer[%u], %zu, %s)", number_of(to), number_of(from), bytes,
                  spelled(stream));
    if (to->kind == PINNED)
        return ON(cuMemcpyDtoHAsync_v2, _ptsz, *stream,
                  (host_address(to), from->address, bytes, stream->handle),
                  "((void *)buffer[%u], buffer[%u], %zu, %s)", number_of(to), number_of(from),
                  bytes, spelled(stream));
    if (from->kind == PINNED)
        return ON(cuMemcpyHtoDAsync_v2, _ptsz, *stream,
                  (to->address, host_address(from), bytes, stream->handle),
                  "(buffer[%u], (void *)buffer[%u], %zu, %s)", number_of(to), number_of(from),
                  bytes, spelled(stream));
    return ON(cuMemcpyDtoDAsync_v2, _ptsz, *stream,
              (to->address, from->address, bytes, stream->handle),
              "(buffer[%u], buffer[%u], %zu, %s)", number_of(to), number_of(from), bytes,
              spelled(stream));
}

static bool copy(struct buffer *to, struct buffer *from, const struct stream *stream)
{
    if (from == to || !from->written || to->words > from->words || !reach(from, stream) ||
        !reach(to, stream))
        return false;
    if (call_copy(to, from, stream) != CUDA_SUCCESS)
        return false;
    to->written = to->words > 0;
    to->value = from->value;
    settle(from, stream);
    settle(to, stream);
    return true;
}

static void step_copy(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    copy(buffer_named(step->c), buffer_named(step->a), &stream);
}

static const struct stream *stream_outside(unsigned int root, unsigned int number)
{
    for (unsigned int i = 0; i < STREAMS; i++) {
        const struct stream *stream = &run->streams[(number + i) % STREAMS];
        if (stream->kind == MADE && run->contexts[stream->context].root != root &&
            run->contexts[run->contexts[stream->context].root].equipped)
            return stream;
    }
    return NULL;
}

static struct buffer *plain_buffer_in(unsigned int root, unsigned int number)
{
    for (unsigned int i = 0; i < BUFFERS; i++) {
        struct buffer *buffer = &run->buffers[(number + i) % BUFFERS];
        if (buffer->kind == PLAIN && buffer->context == root && !buffer->lost)
            return buffer;
    }
    return NULL;
}

static bool renew(struct buffer *buffer)
{
    uint64_t bytes = buffer->bytes;
    return free_buffer(buffer) && allocate(buffer, bytes);
}

/* Two contexts and their streams: copies are what cuMemFree waits for beyond its own context. One
 * that is still to come reads what was freed; or one at once writes what work was freed under. */
static void step_copy_abroad(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    unsigned int home = buffer->context;
    const struct stream *abroad =
        buffer->kind == PLAIN && home < CONTEXTS ? stream_outside(home, step->b) : NULL;
    unsigned int root = abroad ? run->contexts[abroad->context].root : CONTEXTS;
    struct buffer *other = abroad ? plain_buffer_in(root, step->c) : NULL;
    if (!other || !push(home))
        return;
    struct stream stream = *abroad, own = default_stream(LEGACY, step->d);
    if (step->d % 4 < 2) {
        if (fill(buffer, &own, step->y) && !captures(&stream) &&
            launch_spin(root, &stream, step->y % 200000) == CUDA_SUCCESS &&
            copy(other, buffer, &stream) && renew(buffer))
            fill(buffer, &own, step->y + 1);
    } else if (fill(buffer, &own, step->y) && verify(buffer, &own, step->y % 200000) &&
               renew(buffer)) {
        copy(buffer, other, &stream);
    }
    pop();
}

static void step_upload(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    struct stream stream = stream_named(step->b);
    uint32_t words[WORDS];
    for (unsigned int i = 0; i < WORDS; i++)
        words[i] = step->y;
    if (buffer->kind == PINNED || !reach(buffer, &stream))
        return;
    trace_say("    set_words(%u);\n", step->y);
    if (ON(cuMemcpyHtoDAsync_v2, _ptsz, stream,
           (buffer->address, words, (size_t)buffer->words * 4, stream.handle),
           "(buffer[%u], landing, %u, %s)", number_of(buffer), buffer->words * 4,
           spelled(&stream)) != CUDA_SUCCESS)
        return;
    buffer->written = buffer->words > 0;
    buffer->value = step->y;
    settle(buffer, &stream);
}

static void check_words(const uint32_t *words, uint32_t count, uint32_t value, const char *how)
{
    trace_say("    expect_words(%u, %u, \"%s\");\n", count, value, how);
    for (unsigned int i = 0; i < count; i++)
        if (words[i] != value) {
            trace_fail("%s: word %u is %#x, not %#x", how, i, words[i], value);
            return;
        }
}

static void step_download(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    struct stream stream = stream_named(step->b);
    uint32_t words[WORDS] = {0};
    if (buffer->kind == PINNED || !buffer->written || !reach(buffer, &stream))
        return;
    if (ON(cuMemcpyDtoHAsync_v2, _ptsz, stream,
           (words, buffer->address, (size_t)buffer->words * 4, stream.handle),
           "(landing, buffer[%u], %u, %s)", number_of(buffer), buffer->words * 4,
           spelled(&stream)) != CUDA_SUCCESS)
        return;
    check_words(words, buffer->words, buffer->value, "a copy to the host");
    settle(buffer, &stream);
}

/* ---- steps: pinned memory ---- */

/* Few sizes come often, so that blocks are used again. */
static size_t pinned_bytes(const struct step *step)
{
    static const size_t often[] = {512, 4096, 65536, 1 << 20};
    uint32_t bits = 9 + step->x % 15, rest = step->y >> 8;
    if (step->y % 32 == 0)
        return ((size_t)8 << 20) + ((size_t)rest << 2) % ((size_t)32 << 20);
    if (step->y % 2)
        return often[step->x % 4];
    return ((size_t)1 << bits) - (step->y % 4 ? 0 : rest % ((size_t)1 << (bits - 1)));
}

static unsigned int pinned_flags(const struct step *step)
{
    return step->c % 4 ? step->c & 1 : step->c / 4 % 8;
}

static bool allocate_pinned(struct buffer *buffer, const struct step *step)
{
    size_t bytes = pinned_bytes(step);
    unsigned int number = number_of(buffer), flags = pinned_flags(step);
    void *address = NULL;
    CUresult result;
    if (buffer->kind != NO_BUFFER && !free_buffer(buffer))
        return false;
    waits_are_judged_from_here(SIMCUDA_WAITS_FOR_NOTHING, 0);
    if (flags == 0 && step->y % 3 == 0)
        result = CALL(cuMemAllocHost_v2, (&address, bytes), "((void **)&buffer[%u], %zu)", number,
                      bytes);
    else
        result = CALL(cuMemHostAlloc, (&address, bytes, flags), "((void **)&buffer[%u], %zu, %u)",
                      number, bytes, flags);
    to_here();
    if (result != CUDA_SUCCESS)
        return false;
    buffer->address = (uintptr_t)address;
    own(buffer, PINNED, bytes, NULL);
    return true;
}

/* The host waits until nobody works on the buffer any more; false: it cannot. */
static bool host_may_use(const struct buffer *buffer)
{
    struct stream home = buffer->home;
    if (buffer->kind != PINNED || buffer->lost)
        return false;
    if (home.kind == NO_STREAM)
        return true;
    if (!run->contexts[home.context].alive || captures(&home))
        return false;
    if (home.kind == PER_THREAD && buffer->done)
        return CALL(cuEventSynchronize, (buffer->done), "(done[%u])", number_of(buffer)) ==
               CUDA_SUCCESS;
    if (home.kind == PER_THREAD || (home.kind == LEGACY && current() != home.context) ||
        ON(cuStreamSynchronize, _ptsz, home, (home.handle), "(%s)", spelled(&home)) != CUDA_SUCCESS)
        return false;
    stream_is_idle(&home);
    return true;
}

static void host_writes(struct buffer *buffer, uint32_t value)
{
    uint32_t *words = host_address(buffer);
    trace_say("    write_words(buffer[%u], %u, %u);\n", number_of(buffer), buffer->words, value);
    simcuda_host_writes(words, (uint64_t)buffer->words * 4);
    for (uint32_t i = 0; i < buffer->words; i++)
        words[i] = value;
    buffer->written = buffer->words > 0;
    buffer->value = value;
}

static void host_reads(const struct buffer *buffer)
{
    const uint32_t *words = host_address(buffer);
    trace_say("    read_words(buffer[%u], %u, %u);\n", number_of(buffer), buffer->words,
              buffer->value);
    simcuda_host_reads(words, (uint64_t)buffer->words * 4);
    for (uint32_t i = 0; i < buffer->words; i++)
        if (words[i] != buffer->value) {
            trace_fail("pinned memory: word %u is %#x, not %#x", i, words[i], buffer->value);
            return;
        }
}

/* Whoever had the memory before, the host may write it at once. */
static void step_alloc_pinned(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    if (allocate_pinned(buffer, step) && step->d % 4)
        host_writes(buffer, step->y);
}

static void step_host_write(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    if (host_may_use(buffer))
        host_writes(buffer, step->y);
}

static void step_host_read(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    if (buffer->written && host_may_use(buffer))
        host_reads(buffer);
}

static struct buffer *buffer_to_copy_with(const struct buffer *pinned, unsigned int number)
{
    for (unsigned int i = 0; i < BUFFERS; i++) {
        struct buffer *buffer = &run->buffers[(number + i) % BUFFERS];
        if (buffer != pinned && buffer->kind == PLAIN && buffer->words == WORDS && !buffer->lost)
            return buffer;
    }
    return NULL;
}

/* Work of one kind on the block, of which the program then waits for nothing. */
static void work_on_pinned(struct buffer *buffer, const struct stream *stream, uint32_t how)
{
    unsigned int root = stream->context < CONTEXTS ? run->contexts[stream->context].root : CONTEXTS;
    struct buffer *other = buffer_to_copy_with(buffer, how >> 8);
    if (root < CONTEXTS && how % 3)
        launch_spin(root, stream, how % 40000);
    switch (how % 5) {
    case 0:
        verify(buffer, stream, how % 20000);
        break;
    case 1:
        if (other)
            copy(other, buffer, stream);
        break;
    case 2:
        if (other)
            copy(buffer, other, stream);
        break;
    default:
        fill(buffer, stream, how);
    }
}

/* Allocate, write, submit work, free: the next turn's writes come at once. */
static void step_burst_pinned(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    for (unsigned int i = 0; i < 2 + step->d % 8u; i++) {
        struct stream stream = stream_named(step->b + (step->c & 16 ? i * 7 : 0));
        if (!allocate_pinned(buffer, step))
            return;
        host_writes(buffer, step->y + i);
        if (!captures(&stream)) {
            work_on_pinned(buffer, &stream, step->y * (2 * i + 1));
            if ((step->y >> i) % 4 == 0)
                work_on_pinned(buffer, &stream, step->y * (2 * i + 3));
        }
        free_buffer(buffer);
    }
}

/* What the driver tells of the host's memory, at its beginning and inside. */
static void step_pinned_facts(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    uint64_t offset = buffer->bytes ? step->y % buffer->bytes : 0;
    char *address = (char *)((uintptr_t)host_address(buffer) + offset); /* also of no buffer */
    unsigned int flags = 0, number = number_of(buffer);
    CUdeviceptr device = 0;
    if (buffer->kind == NO_BUFFER || (buffer->kind != PINNED && step->c % 4))
        return;
    if (CALL(cuMemHostGetFlags, (&flags, address), "(&value, (char *)buffer[%u] + %llu)", number,
             (unsigned long long)offset) == CUDA_SUCCESS)
        NOTE(flags);
    if (CALL(cuMemHostGetDevicePointer_v2, (&device, address, step->d % 8 == 0),
             "(&base, (char *)buffer[%u] + %llu, %u)", number, (unsigned long long)offset,
             step->d % 8 == 0) == CUDA_SUCCESS)
        NOTE(device - buffer->address);
}

/* The host's own memory, registered: not what cuMemFreeHost takes. */
static void free_registered(void)
{
    uint32_t *landing = run->landing.words;
    if (CALL(cuMemHostRegister_v2, (landing, sizeof run->landing, 0),
             "(landing, sizeof landing, 0)") != CUDA_SUCCESS)
        return;
    CALL(cuMemFreeHost, (landing), "(landing)");
    CALL(cuMemHostUnregister, (landing), "(landing)");
}

static void step_pinned_wrong(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    void *address = NULL;
    switch (step->b % 8) {
    case 0:
        CALL(cuMemHostAlloc, (&address, 0, 0), "(&memory, 0, 0)");
        break;
    case 1:
        CALL(cuMemHostAlloc, (&address, (size_t)1 << 57, 0), "(&memory, (size_t)1 << 57, 0)");
        break;
    case 2:
        CALL(cuMemHostAlloc, (&address, 4096, 8u << step->c % 16), "(&memory, 4096, %u)",
             8u << step->c % 16);
        break;
    case 3:
        CALL(cuMemAllocHost_v2, (NULL, 4096), "(NULL, 4096)");
        break;
    case 4:
        CALL(cuMemFreeHost, (NULL), "(NULL)");
        break;
    case 5:
        free_registered();
        break;
    case 6:
        if (buffer->kind == PINNED)
            free_pinned_wrongly(buffer, step->c);
        break;
    default:
        if (buffer->kind != NO_BUFFER && buffer->kind != PINNED)
            CALL(cuMemFreeHost, (host_address(buffer)), "((void *)buffer[%u])", number_of(buffer));
    }
}

/* A program that leans on cuMemFree's wait: it must have been waited for the copy. */
static void step_free_then_read(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    uint32_t count = buffer->words, value = buffer->value, *landing = run->landing.words;
    struct stream stream = stream_named(step->b);
    if (buffer->kind != PLAIN || !buffer->written || run->may_be_capturing ||
        !may_run_kernels_on(buffer, &stream) || !reach(buffer, &stream))
        return;
    if (CALL(cuMemHostRegister_v2, (landing, sizeof run->landing, 0),
             "(landing, sizeof landing, 0)") != CUDA_SUCCESS)
        return;
    memset(landing, 0, sizeof run->landing);
    launch_spin(buffer->context, &stream, step->y % 30000);
    CUresult result =
        ON(cuMemcpyDtoHAsync_v2, _ptsz, stream,
           (landing, buffer->address, (size_t)buffer->words * 4, stream.handle),
           "(landing, buffer[%u], %u, %s)", number_of(buffer), buffer->words * 4, spelled(&stream));
    settle(buffer, &stream);
    if (free_buffer(buffer) && result == CUDA_SUCCESS)
        check_words(landing, count, value, "read after cuMemFree");
    CALL(cuCtxSynchronize, (), "()");
    CALL(cuMemHostUnregister, (landing), "(landing)");
}

static void step_spin(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    unsigned int context = stream.context < CONTEXTS ? run->contexts[stream.context].root : 0;
    launch_spin(context, &stream, step->y % 50000);
}

static void step_wait_flag(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    unsigned int context = stream.context < CONTEXTS ? run->contexts[stream.context].root : 0;
    if (run->flags_used == run->flags_end || captures(&stream))
        return;
    unsigned int number = run->flags_used++;
    uint32_t *word = &run->counters[context].flags[number];
    CUdeviceptr flag = (uintptr_t)word;
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    ARGUMENTS("    counters[%u].flags[%u] = 0; target = (CUdeviceptr)&counters[%u].flags[%u]; "
              "arguments[0] = &target;\n",
              context, number, context, number);
    launch(context, WAIT_FLAG, &stream, (void *[]){&flag});
}

static void step_set_flags(const struct step *step)
{
    (void)step;
    trace_say("    set_all_flags();\n");
    set_all_flags();
}

static void do_nothing(void *unused)
{
    (void)unused;
}

static void step_host_function(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    ON(cuLaunchHostFunc, _ptsz, stream, (stream.handle, do_nothing, NULL), "(%s, do_nothing, NULL)",
       spelled(&stream));
}

/* ---- steps: streams and events ---- */

static void stream_goes(struct stream *stream)
{
    struct capture *capture = capture_from(stream);
    for (unsigned int i = 0; i < ALL_BUFFERS; i++)
        if (is_same_stream(&run->buffers[i].home, stream))
            lose(&run->buffers[i]);
    if (CALL(cuStreamDestroy_v2, (stream->handle), "(stream[%u])", stream->slot) != CUDA_SUCCESS)
        return;
    stream->kind = NO_STREAM;
    if (capture) {
        capture->active = false;
        any_capture_left();
    }
}

static void step_stream_create(const struct step *step)
{
    unsigned int slot = step->a % STREAMS, context = current();
    struct stream *stream = &run->streams[slot];
    if (stream->kind == MADE)
        return;
    CUresult result;
    if (context >= GREEN && context < CONTEXTS && step->c & 1)
        result = CALL(cuGreenCtxStreamCreate,
                      (&stream->handle, run->contexts[context].green, CU_STREAM_NON_BLOCKING, 0),
                      "(&stream[%u], green[%u], 1, 0)", slot, context);
    else
        result = CALL(cuStreamCreate, (&stream->handle, step->b & 1), "(&stream[%u], %u)", slot,
                      step->b & 1u);
    if (result == CUDA_SUCCESS)
        *stream = (struct stream){.kind = MADE,
                                  .handle = stream->handle,
                                  .context = context,
                                  .slot = slot,
                                  .id = ++run->next_id};
}

static void step_stream_destroy(const struct step *step)
{
    struct stream *stream = &run->streams[step->a % STREAMS];
    if (stream->kind == MADE)
        stream_goes(stream);
}

static void step_stream_synchronize(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    if (ON(cuStreamSynchronize, _ptsz, stream, (stream.handle), "(%s)", spelled(&stream)) ==
        CUDA_SUCCESS)
        stream_is_idle(&stream);
}

static void step_stream_query(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    ON_AS(ANY_READINESS, NULL, cuStreamQuery, _ptsz, stream, (stream.handle), "(%s)",
          spelled(&stream));
}

static bool have_event(unsigned int slot)
{
    if (run->events[slot].event)
        return true;
    unsigned int context = current();
    if (CALL(cuEventCreate, (&run->events[slot].event, CU_EVENT_DISABLE_TIMING), "(&event[%u], 2)",
             slot) != CUDA_SUCCESS) {
        run->events[slot].event = NULL;
        return false;
    }
    run->events[slot].context = context;
    return true;
}

static void step_event_record(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    unsigned int slot = step->a % EVENTS;
    if (have_event(slot))
        record(run->events[slot].event, "event", slot, &stream);
}

static void step_event_wait(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    unsigned int slot = step->a % EVENTS;
    if (have_event(slot))
        wait_event(&stream, run->events[slot].event, "event", slot);
}

static void step_event_query(const struct step *step)
{
    unsigned int slot = step->a % EVENTS;
    if (have_event(slot))
        QUERY(cuEventQuery, (run->events[slot].event), "(event[%u])", slot);
}

static void step_event_synchronize(const struct step *step)
{
    unsigned int slot = step->a % EVENTS;
    if (have_event(slot))
        CALL(cuEventSynchronize, (run->events[slot].event), "(event[%u])", slot);
}

static void step_event_destroy(const struct step *step)
{
    unsigned int slot = step->a % EVENTS;
    if (run->events[slot].event)
        CALL(cuEventDestroy_v2, (run->events[slot].event), "(event[%u])", slot);
    run->events[slot].event = NULL;
}

/* ---- steps: locks ---- */

enum waiter { HOST_FUNCTION, CALLBACK, HOST_NODE, VALUE, BATCH, KERNEL, WAITERS };

static CUresult launch_host_node(const struct stream *stream)
{
    CUDA_HOST_NODE_PARAMS parameters = {needs_lock, &lock_names[self]};
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUresult result = CALL(cuGraphCreate, (&graph, 0), "(&graph, 0)");
    if (result != CUDA_SUCCESS)
        return result;
    CALL(cuGraphAddHostNode, (&node, graph, NULL, 0, &parameters),
         "(&node, graph, NULL, 0, &(CUDA_HOST_NODE_PARAMS){needs_lock, &lock_names[self]})");
    result = CALL(cuGraphInstantiateWithFlags, (&exec, graph, 0), "(&locked_exec, graph, 0)");
    CALL(cuGraphDestroy, (graph), "(graph)");
    if (result != CUDA_SUCCESS)
        return result;
    result = ON(cuGraphLaunch, _ptsz, *stream, (exec, stream->handle), "(locked_exec, %s)",
                spelled(stream));
    CALL(cuGraphExecDestroy, (exec), "(locked_exec)");
    return result;
}

static CUresult launch_batch(const struct stream *stream, CUdeviceptr word, unsigned int context)
{
    CUstreamBatchMemOpParams operation = {
        .waitValue = {.address = word, .value = 1, .flags = CU_STREAM_WAIT_VALUE_EQ}};
    operation.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ARGUMENTS("    operation.waitValue.operation = 1; operation.waitValue.address = "
              "(CUdeviceptr)&counters[%u].locks[self]; operation.waitValue.value = 1; "
              "operation.waitValue.flags = 1;\n",
              context);
    return ON(cuStreamBatchMemOp_v2, _ptsz, *stream, (stream->handle, 1, &operation, 0),
              "(%s, 1, &operation, 0)", spelled(stream));
}

/* Work of the context that ends only when this thread's lock is free. */
static CUresult launch_waiter(enum waiter waiter, const struct stream *stream, unsigned int context)
{
    CUdeviceptr word = (uintptr_t)&run->counters[context].locks[self];
    switch (waiter) {
    case HOST_FUNCTION:
        return ON(cuLaunchHostFunc, _ptsz, *stream, (stream->handle, needs_lock, &lock_names[self]),
                  "(%s, needs_lock, &lock_names[self])", spelled(stream));
    case CALLBACK:
        return ON(cuStreamAddCallback, _ptsz, *stream,
                  (stream->handle, callback_needs_lock, &lock_names[self], 0),
                  "(%s, callback_needs_lock, &lock_names[self], 0)", spelled(stream));
    case HOST_NODE:
        return launch_host_node(stream);
    case VALUE:
        return ON(cuStreamWaitValue32_v2, _ptsz, *stream,
                  (stream->handle, word, 1, CU_STREAM_WAIT_VALUE_EQ),
                  "(%s, (CUdeviceptr)&counters[%u].locks[self], 1, 1)", spelled(stream), context);
    case BATCH:
        return launch_batch(stream, word, context);
    default:
        ARGUMENTS("    target = (CUdeviceptr)&counters[%u].locks[self]; arguments[0] = &target;\n",
                  context);
        return launch(context, WAIT_FLAG, stream, (void *[]){&word});
    }
}

static bool any_waiters(void)
{
    for (unsigned int i = 0; i < CONTEXTS; i++)
        if (run->waiters[i])
            return true;
    return false;
}

static bool may_be_freed_under_lock(const struct buffer *buffer)
{
    /* Others' use of pinned memory is the program's to wait for; and its free waits for kernels
     * that spin until the program stands still, with the pool for a second. So may a free of plain
     * memory, but for that of the context whose work the driver has just waited for. */
    return (buffer->kind == PLAIN &&
            (!run->profile->flags || buffer->context == run->locked_context)) ||
           (buffer->kind == PINNED && !run->profile->flags &&
            (buffer->home.kind == NO_STREAM || is_within(buffer->home.context, buffer->context)));
}

/* A slot that a call under the lock may fill: whatever is freed there, the pool must be able to
 * free without a wait. That is out of the question behind a kernel: nothing tells that from one
 * which ends by itself. */
static struct buffer *slot_under_lock(unsigned int number, bool may_free)
{
    struct buffer *buffer = buffer_named(number);
    bool may = buffer->kind == NO_BUFFER || (may_free && may_be_freed_under_lock(buffer));
    return may ? buffer : NULL;
}

static void call_under_lock(const struct step *step, bool may_free)
{
    struct buffer *buffer = slot_under_lock(step->a, may_free);
    struct stream stream = stream_named(step->b);
    if (step->d % 16 < 2) {
        step_stream_create(step);
        return;
    }
    if (step->d % 16 < 4) {
        step_physical(step);
        return;
    }
    if (buffer == NULL)
        return;
    switch (step->d % 16) {
    case 4:
    case 5:
        if (!run->profile->full)
            step_alloc_pitch(step);
        break;
    case 6:
    case 7:
        if (!run->profile->full || run->profile->full_of_streams)
            allocate_async(buffer, step->x, &stream, NULL);
        break;
    case 8:
        step_alloc_managed(step);
        break;
    case 9:
    case 10:
        free_buffer(buffer);
        break;
    case 11:
    case 12:
        if (allocate_pinned(buffer, step))
            host_writes(buffer, step->y);
        break;
    default:
        if (allocate(buffer, step->x))
            fill(buffer, &stream, step->y);
    }
}

/* Time as the program's clock has it: a second for work that nothing is known of, in a wait or two;
 * nothing for what is known to need somebody who acts. At a limit, what was freed beside another
 * context's kernel is waited for as well. Others' steps move the clock of threads that run freely.
 */
static void check_time_under_lock(uint64_t ns, enum waiter waiter)
{
    bool behind_kernel = waiter == KERNEL || (run->profile->limited && run->profile->flags);
    uint64_t most = behind_kernel ? UINT64_C(15000000000) : UINT64_C(200000000);
    if (!run->profile->free && ns > most)
        trace_fail("a call under a lock took %llu ms", (unsigned long long)(ns / 1000000));
}

static void calls_under_lock(const struct step *step, enum waiter waiter)
{
    for (unsigned int i = 0; i < 1 + step->d % 4u && !trace_failed(); i++) {
        uint32_t random = step->y * (2 * i + 3);
        struct step call = {.a = (uint8_t)(i == 0 ? step->a : random >> 8),
                            .b = (uint8_t)(random >> 16),
                            .c = step->c,
                            .d = (uint8_t)(random >> 24),
                            .x = i % 2 || run->profile->full ? step->x : step->x / 2 + 1,
                            .y = random};
        uint64_t start = simcuda_now();
        call_under_lock(&call, waiter != KERNEL);
        check_time_under_lock(simcuda_now() - start, waiter);
    }
}

/* The buffer is freed behind that work, and the lock is taken. */
static void free_and_lock(const struct step *step, struct buffer *buffer, enum waiter waiter)
{
    run->locked_context = buffer->context;
    if (!free_buffer(buffer) || any_waiters())
        return;
    trace_say("    take_lock();\n");
    set_lock(false);
    calls_under_lock(step, waiter);
    set_lock(true);
    trace_say("    give_lock_back();\n");
}

/* Work behind which a buffer is freed needs a lock, and the lock is taken: the driver's free has
 * waited for that work, so what is called under the lock waits for nothing. The program takes the
 * lock only where it may count on that. A kernel beside other threads' frees, which would wait for
 * it with the driver's lock held, is more than any pool can see; and so is one that another step's
 * free has not waited for, which is why the program lets it end before it takes the lock again. */
static void step_locked(const struct step *step)
{
    enum waiter waiter = step->c % (run->profile->free ? KERNEL : WAITERS);
    struct buffer *buffer = buffer_named(step->a);
    struct stream stream = stream_named(step->b);
    unsigned int context;
    /* Behind a kernel that nobody knows to need the lock, the pool's free of pinned memory does not
     * wait, so that what is freed in a stream's order may be missing where memory is nearly full.
     */
    bool pinned = !run->profile->full && !run->profile->full_of_streams;
    if (run->may_be_capturing || (buffer->kind == PINNED && !pinned) ||
        (buffer->kind == NO_BUFFER &&
         !(step->d & 128 && pinned ? allocate_pinned(buffer, step) : allocate(buffer, step->x))))
        return;
    context = buffer->context;
    if ((buffer->kind != PLAIN && buffer->kind != PINNED) || !fill(buffer, &stream, step->y))
        return;
    if (step->y % 3 == 0)
        verify(buffer, &stream, step->y % 50000);
    run->waiters[context] = true;
    if (launch_waiter(waiter, &stream, context) != CUDA_SUCCESS)
        return;
    free_and_lock(step, buffer, waiter);
    if (waiter == KERNEL)
        ON(cuStreamSynchronize, _ptsz, stream, (stream.handle), "(%s)", spelled(&stream));
}

/* ---- steps: contexts ---- */

static void step_synchronize(const struct step *step)
{
    unsigned int context = current();
    (void)step;
    if (CALL(cuCtxSynchronize, (), "()") == CUDA_SUCCESS && context < CONTEXTS)
        context_is_idle(context);
}

static void step_synchronize_other(const struct step *step)
{
    unsigned int slot = step->a % CONTEXTS;
    if (run->contexts[slot].alive && CALL(cuCtxSynchronize_v2, (run->contexts[slot].handle),
                                          "(context[%u])", slot) == CUDA_SUCCESS)
        context_is_idle(slot);
}

static void step_context_event(const struct step *step)
{
    unsigned int slot = step->a % EVENTS, context = current();
    if (context == CONTEXTS || !have_event(slot))
        return;
    CUcontext handle = run->contexts[context].handle;
    if (step->b & 1)
        CALL(cuCtxRecordEvent, (handle, run->events[slot].event), "(context[%u], event[%u])",
             context, slot);
    else
        CALL(cuCtxWaitEvent, (handle, run->events[slot].event), "(context[%u], event[%u])", context,
             slot);
}

static void step_context_create(const struct step *step)
{
    unsigned int slot = CREATED + step->a % (GREEN - CREATED);
    CUdevice device = (CUdevice)(step->b % run->profile->devices);
    CUcontext handle;
    if (run->contexts[slot].alive || run->workers[self].depth >= 24)
        return;
    if (CALL(cuCtxCreate_v2, (&handle, 0, device), "(&context[%u], 0, %d)", slot, device) !=
        CUDA_SUCCESS)
        return;
    run->workers[self].depth++;
    begin_context(slot, handle, device);
    equip(slot);
}

/* Stream-ordered memory outlives contexts; the program does not let it. */
static void free_stream_ordered(unsigned int context)
{
    for (unsigned int i = 0; i < BUFFERS; i++)
        if (run->buffers[i].kind == ASYNC && is_within(run->buffers[i].context, context))
            free_buffer(&run->buffers[i]);
}

static void step_context_destroy(const struct step *step)
{
    unsigned int slot = CREATED + step->a % (GREEN - CREATED);
    if (!run->contexts[slot].alive)
        return;
    free_stream_ordered(slot);
    if (!tell_of_memory_that_goes(slot))
        return;
    unsigned int depth = current() == slot;
    if (CALL(cuCtxDestroy_v2, (run->contexts[slot].handle), "(context[%u])", slot) != CUDA_SUCCESS)
        return;
    run->workers[self].depth -= depth && run->workers[self].depth > 0;
    context_died(slot);
}

static void step_context_detach(const struct step *step)
{
    unsigned int slot = current();
    (void)step;
    if (slot < CREATED || slot >= GREEN)
        return;
    free_stream_ordered(slot);
    if (!tell_of_memory_that_goes(slot))
        return;
    if (CALL(cuCtxDetach, (run->contexts[slot].handle), "(context[%u])", slot) != CUDA_SUCCESS)
        return;
    run->workers[self].depth -= run->workers[self].depth > 0;
    context_died(slot);
}

static void step_context_push(const struct step *step)
{
    push(step->a % CONTEXTS);
}

static void step_context_pop(const struct step *step)
{
    (void)step;
    pop();
}

static void set_current(unsigned int slot)
{
    if (!run->contexts[slot].alive)
        return;
    if (CALL(cuCtxSetCurrent, (run->contexts[slot].handle), "(context[%u])", slot) ==
            CUDA_SUCCESS &&
        run->workers[self].depth == 0)
        run->workers[self].depth = 1;
}

static void step_context_set(const struct step *step)
{
    set_current(step->a % CONTEXTS);
}

static void retain(unsigned int slot)
{
    CUcontext handle;
    if (CALL(cuDevicePrimaryCtxRetain, (&handle, (CUdevice)slot), "(&context[%u], %u)", slot,
             slot) != CUDA_SUCCESS)
        return;
    if (!run->contexts[slot].alive) {
        begin_context(slot, handle, (CUdevice)slot);
        if (push(slot)) {
            equip(slot);
            pop();
        }
    }
    run->contexts[slot].retains++;
}

static unsigned int primary_named(const struct step *step)
{
    return step->a % run->profile->devices;
}

static void step_primary_retain(const struct step *step)
{
    if (run->contexts[primary_named(step)].retains < 3)
        retain(primary_named(step));
}

static void released(unsigned int slot)
{
    if (--run->contexts[slot].retains == 0)
        context_died(slot);
}

/* Other threads that run freely use it, too. */
static bool must_keep_primary(unsigned int slot)
{
    return run->profile->free && run->contexts[slot].retains <= 1;
}

static void step_primary_release(const struct step *step)
{
    unsigned int slot = primary_named(step);
    if (!run->contexts[slot].alive || run->contexts[slot].retains == 0 || must_keep_primary(slot))
        return;
    if (run->contexts[slot].retains == 1) {
        free_stream_ordered(slot);
        if (!tell_of_memory_that_goes(slot))
            return;
    }
    if (CALL(cuDevicePrimaryCtxRelease_v2, ((CUdevice)slot), "(%u)", slot) == CUDA_SUCCESS)
        released(slot);
}

static void step_primary_reset(const struct step *step)
{
    unsigned int slot = primary_named(step);
    if (!run->contexts[slot].alive)
        return;
    free_stream_ordered(slot);
    if (!tell_of_memory_that_goes(slot))
        return;
    if (CALL(cuDevicePrimaryCtxReset_v2, ((CUdevice)slot), "(%u)", slot) == CUDA_SUCCESS)
        context_died(slot);
}

static void step_green_create(const struct step *step)
{
    blocks_may_stay = true;
    unsigned int slot = GREEN + step->a % (CONTEXTS - GREEN);
    unsigned int primary = step->b % run->profile->devices;
    CUdevResource all, part;
    CUdevResourceDesc description;
    unsigned int count = 1;
    CUgreenCtx green;
    CUcontext handle;
    if (run->contexts[slot].alive || !run->contexts[primary].alive)
        return;
    cuDeviceGetDevResource((CUdevice)primary, &all, CU_DEV_RESOURCE_TYPE_SM);
    cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 8);
    cuDevResourceGenerateDesc(&description, &part, 1);
    trace_say("    make_description(%u);\n", primary);
    if (CALL(cuGreenCtxCreate,
             (&green, description, (CUdevice)primary, CU_GREEN_CTX_DEFAULT_STREAM),
             "(&green[%u], description, %u, 1)", slot, primary) != CUDA_SUCCESS)
        return;
    run->contexts[primary].retains++;
    CALL(cuCtxFromGreenCtx, (&handle, green), "(&context[%u], green[%u])", slot, slot);
    begin_context(slot, handle, (CUdevice)primary);
    run->contexts[slot].green = green;
    run->contexts[slot].root = primary;
}

static void step_green_destroy(const struct step *step)
{
    unsigned int slot = GREEN + step->a % (CONTEXTS - GREEN);
    unsigned int primary = run->contexts[slot].root;
    if (!run->contexts[slot].alive || must_keep_primary(primary))
        return;
    if (run->contexts[primary].retains == 1) {
        free_stream_ordered(primary);
        if (!tell_of_memory_that_goes(primary))
            return;
    }
    for (unsigned int i = 0; i < ALL_BUFFERS; i++)
        if (run->buffers[i].home.kind != NO_STREAM && run->buffers[i].home.context == slot)
            lose(&run->buffers[i]);
    if (CALL(cuGreenCtxDestroy, (run->contexts[slot].green), "(green[%u])", slot) != CUDA_SUCCESS)
        return;
    context_died(slot);
    released(primary);
}

/* ---- steps: captures, the process ---- */

static void step_capture_begin(const struct step *step)
{
    blocks_may_stay = true;
    struct stream stream = stream_named(step->b);
    capture_begin(&stream, step->c % 3);
}

static void step_capture_end(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    unsigned int number = step->c % CAPTURES;
    /* Mostly where one goes on. */
    if (step->d % 8 && run->captures[number].active && run->captures[number].origin.kind == MADE)
        stream = run->captures[number].origin;
    capture_end(&stream, step->a % GRAPHS);
}

static void step_capture_alloc(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    if (captures(&stream))
        capture_allocation(&stream, buffer_named(step->a), step);
}

static void step_capture_mode(const struct step *step)
{
    CUstreamCaptureMode mode = step->a % 3;
    run->workers[self].mode = mode;
    CALL(cuThreadExchangeStreamCaptureMode, (&mode), "(&(CUstreamCaptureMode){%u})", step->a % 3u);
}

static void step_graph_launch(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    graph_launch(step->a % GRAPHS, &stream);
}

/* The graph or its executable, or both. */
static void step_graph_destroy(const struct step *step)
{
    unsigned int number = step->a % GRAPHS;
    struct graph *graph = &run->graphs[number];
    if (graph->exec && graph->graph && step->d % 3 == 0) {
        destroy_exec(number);
    } else if (graph->exec && graph->graph && step->d % 3 == 1) {
        CALL(cuGraphDestroy, (graph->graph), "(kept[%u])", number);
        graph->graph = NULL;
    } else {
        destroy_graph(number);
    }
}

/* A capture that fails: its stream is asked what only finished work could answer. */
static void spoil_capture(const struct stream *stream)
{
    QUERY(cuStreamQuery, (stream->handle), "(%s)", spelled(stream));
}

/* Memory of before and of its own is used in a capture, and freed in it or not. */
static void step_capture_whole(const struct step *step)
{
    struct stream stream = stream_named(step->b);
    if (stream.kind != MADE || captures(&stream))
        return;
    blocks_may_stay = true;
    capture_begin(&stream, step->c % 3);
    for (unsigned int i = 0; i <= step->d % 5u && captures(&stream); i++) {
        struct buffer *buffer = buffer_named(step->a + i);
        unsigned int how = step->y >> (3 * i);
        if (how & 1)
            allocate(buffer, step->x);
        capture_work(buffer, &stream, step->y + 2 * i);
        if (how & 4)
            capture_allocation(&stream, buffer, step);
        if (how & 2 && buffer->kind != NO_BUFFER)
            free_buffer(buffer);
    }
    unsigned int end = step->c / 3 % 10;
    if (end == 0 || !capture_from(&stream))
        return; /* it goes on */
    if (end == 1 && stream.kind == MADE) {
        stream_goes(&run->streams[stream.slot]);
        return;
    }
    if (end == 2)
        spoil_capture(&stream);
    capture_end(&stream, step->c % GRAPHS);
}

/* Launches beside allocations and frees of others, on one stream or several. */
static void step_graph_replay(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->c);
    for (unsigned int i = 0; i <= step->d % 6u; i++) {
        struct stream stream = stream_named(step->b + (step->d & 64 ? i * 7 : 0));
        graph_launch(step->a % GRAPHS, &stream);
        if (step->d & 128 && allocate(buffer, step->x)) {
            struct stream other = stream_named(step->b + 3);
            fill(buffer, &other, step->y + i);
        }
    }
}

/* Another executable of a graph, or of a clone of it. */
static void step_graph_copy(const struct step *step)
{
    unsigned int from = step->a % GRAPHS, to = step->b % GRAPHS;
    const struct graph *source = &run->graphs[from];
    struct graph *copy = &run->graphs[to];
    CUgraph clone = NULL;
    if (from == to || !source->graph)
        return;
    destroy_graph(to);
    if (step->c & 1 && CALL(cuGraphClone, (&clone, source->graph), "(&kept[%u], kept[%u])", to,
                            from) != CUDA_SUCCESS)
        return;
    if (CALL(cuGraphInstantiateWithFlags, (&copy->exec, clone ? clone : source->graph, 0),
             "(&exec[%u], kept[%u], 0)", to, clone ? to : from) != CUDA_SUCCESS)
        copy->exec = NULL;
    CUgraphExec exec = copy->exec;
    *copy = *source;
    copy->graph = clone;
    copy->exec = exec;
    copy->launched = false;
}

/* An executable does from now on what another graph does, and keeps what that keeps. But for memory
 * nodes, which keep their own addresses, while kernels have those of the other graph's. */
static void step_graph_update(const struct step *step)
{
    unsigned int to = step->a % GRAPHS, from = step->b % GRAPHS;
    struct graph *updated = &run->graphs[to];
    const struct graph *source = &run->graphs[from];
    CUgraphExecUpdateResultInfo result_info = {0};
    if (!updated->exec || !source->graph || updated->context != source->context ||
        updated->has_memory || source->has_memory ||
        CALL(cuGraphExecUpdate_v2, (updated->exec, source->graph, &result_info),
             "(exec[%u], kept[%u], &result_info)", to, from) != CUDA_SUCCESS)
        return;
    updated->once = updated->once || source->once;
    updated->use_count = source->use_count;
    memcpy(updated->uses, source->uses, sizeof updated->uses);
}

/* ---- steps: from one free thread to another ---- */

/* Makes the end of what was done to the buffer something that another thread can wait for. */
static bool pack(struct buffer *buffer)
{
    const struct stream *home = &buffer->home;
    unsigned int number = number_of(buffer);
    if (home->kind == NO_STREAM || (home->kind == PER_THREAD && buffer->done))
        return true;
    if (home->context >= DEVICES || current() != home->context || captures(home) || buffer->done)
        return false;
    if (CALL(cuEventCreate, (&buffer->done, CU_EVENT_DISABLE_TIMING), "(&done[%u], 2)", number) !=
        CUDA_SUCCESS) {
        buffer->done = NULL;
        return false;
    }
    buffer->done_context = home->context;
    if (record(buffer->done, "done", number, home) != CUDA_SUCCESS)
        return false;
    buffer->home.kind = PER_THREAD;
    buffer->home.id = 0;
    return true;
}

/* Memory that stays as long as the primary contexts, all uses of which the others can wait for. */
static bool may_be_given(const struct buffer *buffer)
{
    return (buffer->kind == PLAIN || buffer->kind == PITCHED || buffer->kind == PINNED) &&
           !buffer->lost &&
           (run->profile->full || buffer->bytes <= run->profile->device_bytes / 1024) &&
           buffer->context < DEVICES &&
           (buffer->home.kind == NO_STREAM || buffer->home.context < DEVICES) &&
           (!buffer->done || buffer->done_context < DEVICES);
}

static void step_give(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    unsigned int number = number_of(buffer);
    if (!run->box)
        return;
    if (!trace_failed() && may_be_given(buffer) && pack(buffer)) {
        trace_say("    give(%u, buffer[%u], done[%u]);\n", run->box_number, number, number);
        run->box->full = true;
        run->box->buffer = *buffer;
        memset(buffer, 0, sizeof *buffer);
    } else {
        trace_say("    give(%u, 0, 0);\n", run->box_number);
    }
    simcuda_release(run->box);
    sem_post(&run->box->given);
}

static void step_take(const struct step *step)
{
    struct buffer *buffer = buffer_named(step->a);
    unsigned int number = number_of(buffer);
    if (!run->box)
        return;
    while (sem_wait(&run->box->given) != 0)
        continue;
    simcuda_acquire(run->box);
    if (trace_failed())
        return;
    if (!run->box->full || (buffer->kind != NO_BUFFER && !free_buffer(buffer))) {
        trace_say("    take(%u, NULL, NULL);\n", run->box_number);
        return;
    }
    trace_say("    take(%u, &buffer[%u], &done[%u]);\n", run->box_number, number, number);
    *buffer = run->box->buffer;
    buffer->owner = ++run->next_owner;
    buffer->made = 0;
    run->box->full = false;
}

static void step_time(const struct step *step)
{
    uint64_t ns = step->a % 16 == 0 ? 2000000000u : step->y % 40000;
    trace_say("    simcuda_advance(%llu);\n", (unsigned long long)ns);
    simcuda_advance(ns);
}

static void step_nothing(const struct step *step)
{
    (void)step;
}

/* ---- the end of a program ---- */

static void clear_thread(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUcontext popped;
    if (run->workers[self].mode != mode)
        CALL(cuThreadExchangeStreamCaptureMode, (&mode), "(&(CUstreamCaptureMode){0})");
    run->workers[self].mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    while (cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS)
        trace_say("    cuCtxPopCurrent_v2(&popped);\n");
    run->workers[self].depth = 0;
}

static void destroy_created_contexts(void)
{
    for (unsigned int i = CREATED; i < GREEN; i++)
        if (run->contexts[i].alive)
            step_context_destroy(&(struct step){.a = (uint8_t)(i - CREATED)});
}

static void destroy_all_contexts(void)
{
    destroy_created_contexts();
    for (unsigned int i = 0; i < run->profile->devices; i++)
        if (run->contexts[i].alive)
            step_primary_reset(&(struct step){.a = (uint8_t)i});
}

/* Captures go with their streams. One of a thread's own stream ends with its context, beside which
 * nothing can be freed. */
static void end_captures(void)
{
    if (!run->may_be_capturing)
        return;
    for (unsigned int i = 0; i < STREAMS; i++)
        if (run->streams[i].kind == MADE)
            stream_goes(&run->streams[i]);
    destroy_created_contexts();
}

static void free_all_buffers(void)
{
    if (!run->contexts[0].alive)
        retain(0);
    if (!push(0))
        return;
    for (unsigned int i = 0; i < BUFFERS; i++)
        free_buffer(&run->buffers[i]);
    pop();
}

/* One that has only its context to end it goes on. */
static bool any_captures(void)
{
    for (unsigned int i = 0; i < THREADS; i++)
        for (unsigned int j = 0; j < CAPTURES; j++)
            if (runs[i].captures[j].active)
                return true;
    return false;
}

/* The program has freed all and no graph is left: whatever graphs kept comes back, for which the
 * last launches may still have to end. */
static void graphs_keep_nothing(void)
{
    struct cudapool_bytes bytes = {0};
    size_t available, total;
    if (!run->profile->allocates || any_captures() || blocks_stay_with_context ||
        !cudapool_get_bytes)
        return;
    for (unsigned int i = 0; i < run->profile->devices; i++) {
        for (unsigned int tries = 0; tries < 100000; tries++) {
            struct timespec moment = {0, 100000};
            cuMemGetInfo_v2(&available, &total);
            if (cudapool_get_bytes((int)i, &bytes) != 0 || bytes.live == 0)
                break;
            simcuda_advance(1000000);
            syscall(SYS_nanosleep, &moment, NULL);
        }
        if (bytes.live)
            trace_fail("%llu bytes are kept on device %u, although every graph is gone",
                       (unsigned long long)bytes.live, i);
    }
}

static void destroy_everything(void)
{
    for (unsigned int i = 0; i < GRAPHS; i++)
        destroy_graph(i);
    if (run->profile->allocates && !run->profile->free) {
        free_all_buffers();
        graphs_keep_nothing();
    }
    destroy_all_contexts();
    retain(0);
    if (push(0)) {
        for (unsigned int i = 0; i < BUFFERS; i++)
            free_buffer(&run->buffers[i]);
        for (unsigned int i = 0; i < run->profile->devices; i++)
            step_trim(&(struct step){.a = (uint8_t)i});
        pop();
    }
    destroy_all_contexts();
    for (unsigned int i = 0; i < BUFFERS; i++)
        if (run->buffers[i].kind != NO_BUFFER)
            trace_fail("buffer %u could not be freed", i);
    memset(run->captures, 0, sizeof run->captures);
    run->may_be_capturing = false;
    run->stream_ordered_bytes = 0;
    run->current_pool_is_in_use = false;
    run->flags_used = (unsigned int)(run - runs) * (FLAGS / THREADS);
}

/* The primary contexts of one model are those of all, and are gone. So is what lay in one that this
 * model did not have, but another. */
static void forget_primary_contexts(void)
{
    for (unsigned int i = 0; i < ALL_BUFFERS; i++) {
        struct buffer *buffer = &run->buffers[i];
        if (buffer->done && buffer->done_context < DEVICES)
            buffer->done = NULL;
        if (buffer->kind != NO_BUFFER && buffer->kind != ASYNC && buffer->context < DEVICES)
            drop_buffer(buffer);
    }
    for (unsigned int i = 0; i < DEVICES; i++)
        if (run->contexts[i].alive)
            context_died(i);
}

static void retain_all_that_any_has(void)
{
    for (unsigned int i = 0; i < THREADS; i++)
        for (unsigned int j = 0; j < DEVICES; j++)
            if (runs[i].contexts[j].alive && !run->contexts[j].alive)
                retain(j);
}

/* Their memory goes with the first one's. */
static void give_up_all_memory(void)
{
    for (unsigned int i = 0; i < THREADS; i++) {
        run = &runs[i];
        for (unsigned int j = 0; j < DEVICES; j++)
            if (run->contexts[j].alive) {
                free_stream_ordered(j);
                tell_of_memory_that_goes(j);
            }
    }
}

static void become(unsigned int thread)
{
    run = &runs[thread];
    self = thread;
    trace_say("    self = %u;\n", thread);
}

/* What free threads left, in the main thread. */
static void end_of_free_threads(void)
{
    for (unsigned int i = 0; i < THREADS; i++) {
        become(i);
        end_captures();
    }
    for (unsigned int i = 0; i < THREADS; i++) {
        become(i);
        for (unsigned int j = 0; j < GRAPHS; j++)
            destroy_graph(j);
        if (run->profile->allocates)
            free_all_buffers();
    }
    become(0);
    graphs_keep_nothing();
    for (unsigned int i = 0; i < THREADS; i++) {
        become(i);
        destroy_created_contexts();
    }
    become(0);
    retain_all_that_any_has();
    give_up_all_memory();
    for (unsigned int i = 0; i < THREADS; i++) {
        become(i);
        if (i > 0)
            forget_primary_contexts();
        destroy_everything();
    }
    become(0);
}

static void nothing_is_left(void)
{
    struct cudapool_bytes bytes = {0};
    if (blocks_may_stay)
        blocks_that_stayed = simcuda_live_allocations();
    if (simcuda_live_allocations() > blocks_that_stayed)
        trace_fail("%llu allocations (%llu bytes) are left at the end of the program",
                   (unsigned long long)simcuda_live_allocations(),
                   (unsigned long long)simcuda_live_bytes());
    for (unsigned int i = 0; i < run->profile->devices && cudapool_get_bytes; i++)
        if (cudapool_get_bytes((int)i, &bytes) == 0 && bytes.live + bytes.cached + bytes.pending)
            trace_fail("the pool still counts %llu live, %llu cached, %llu pending bytes",
                       (unsigned long long)bytes.live, (unsigned long long)bytes.cached,
                       (unsigned long long)bytes.pending);
}

static void step_end(const struct step *step)
{
    step_set_flags(step);
    if (run->profile->free) {
        end_of_free_threads();
    } else {
        end_captures();
        destroy_everything();
    }
    nothing_is_left();
    blocks_may_stay = blocks_stay_with_context = false;
}

static void (*const do_step[STEP_KINDS])(const struct step *) = {
    [STEP_NOTHING] = step_nothing,
    [STEP_END] = step_end,
    [STEP_ALLOC] = step_alloc,
    [STEP_ALLOC_PITCH] = step_alloc_pitch,
    [STEP_ALLOC_ASYNC] = step_alloc_async,
    [STEP_ALLOC_MANAGED] = step_alloc_managed,
    [STEP_FREE] = step_free,
    [STEP_FREE_ASYNC] = step_free_async,
    [STEP_BURST] = step_burst,
    [STEP_BURST_ASYNC] = step_burst_async,
    [STEP_MEMPOOL] = step_mempool,
    [STEP_MEMORY_INFO] = step_memory_info,
    [STEP_RANGE] = step_range,
    [STEP_ATTRIBUTE] = step_attribute,
    [STEP_SHARE] = step_share,
    [STEP_WRONG] = step_wrong,
    [STEP_HOST_MEMORY] = step_host_memory,
    [STEP_ALLOC_PINNED] = step_alloc_pinned,
    [STEP_HOST_WRITE] = step_host_write,
    [STEP_HOST_READ] = step_host_read,
    [STEP_BURST_PINNED] = step_burst_pinned,
    [STEP_PINNED_FACTS] = step_pinned_facts,
    [STEP_PINNED_WRONG] = step_pinned_wrong,
    [STEP_ARRAY] = step_array,
    [STEP_PHYSICAL] = step_physical,
    [STEP_TRIM] = step_trim,
    [STEP_FILL] = step_fill,
    [STEP_VERIFY] = step_verify,
    [STEP_SPIN_VERIFY] = step_spin_verify,
    [STEP_MEMSET] = step_memset,
    [STEP_COPY] = step_copy,
    [STEP_COPY_ABROAD] = step_copy_abroad,
    [STEP_UPLOAD] = step_upload,
    [STEP_DOWNLOAD] = step_download,
    [STEP_FREE_THEN_READ] = step_free_then_read,
    [STEP_SPIN] = step_spin,
    [STEP_WAIT_FLAG] = step_wait_flag,
    [STEP_SET_FLAGS] = step_set_flags,
    [STEP_HOST_FUNCTION] = step_host_function,
    [STEP_LOCKED] = step_locked,
    [STEP_STREAM_CREATE] = step_stream_create,
    [STEP_STREAM_DESTROY] = step_stream_destroy,
    [STEP_STREAM_SYNCHRONIZE] = step_stream_synchronize,
    [STEP_STREAM_QUERY] = step_stream_query,
    [STEP_EVENT_RECORD] = step_event_record,
    [STEP_EVENT_WAIT] = step_event_wait,
    [STEP_EVENT_QUERY] = step_event_query,
    [STEP_EVENT_SYNCHRONIZE] = step_event_synchronize,
    [STEP_EVENT_DESTROY] = step_event_destroy,
    [STEP_SYNCHRONIZE] = step_synchronize,
    [STEP_SYNCHRONIZE_OTHER] = step_synchronize_other,
    [STEP_CONTEXT_EVENT] = step_context_event,
    [STEP_CONTEXT_CREATE] = step_context_create,
    [STEP_CONTEXT_DESTROY] = step_context_destroy,
    [STEP_CONTEXT_DETACH] = step_context_detach,
    [STEP_CONTEXT_PUSH] = step_context_push,
    [STEP_CONTEXT_POP] = step_context_pop,
    [STEP_CONTEXT_SET] = step_context_set,
    [STEP_PRIMARY_RETAIN] = step_primary_retain,
    [STEP_PRIMARY_RELEASE] = step_primary_release,
    [STEP_PRIMARY_RESET] = step_primary_reset,
    [STEP_GREEN_CREATE] = step_green_create,
    [STEP_GREEN_DESTROY] = step_green_destroy,
    [STEP_CAPTURE_BEGIN] = step_capture_begin,
    [STEP_CAPTURE_END] = step_capture_end,
    [STEP_CAPTURE_ALLOC] = step_capture_alloc,
    [STEP_CAPTURE_MODE] = step_capture_mode,
    [STEP_GRAPH_LAUNCH] = step_graph_launch,
    [STEP_GRAPH_DESTROY] = step_graph_destroy,
    [STEP_CAPTURE_WHOLE] = step_capture_whole,
    [STEP_GRAPH_REPLAY] = step_graph_replay,
    [STEP_GRAPH_COPY] = step_graph_copy,
    [STEP_GRAPH_UPDATE] = step_graph_update,
    [STEP_GIVE] = step_give,
    [STEP_TAKE] = step_take,
    [STEP_TIME] = step_time,
    [STEP_THREAD_RESTART] = step_nothing,
};

/* ---- threads take turns ---- */

static bool data_is_right(void)
{
    for (unsigned int i = 0; i < CONTEXTS; i++)
        if (run->counters[i].mismatches[0] != 0) {
            trace_fail("a kernel found %llu words that are not what was written (context %u)",
                       (unsigned long long)run->counters[i].mismatches[0], i);
            return false;
        }
    return true;
}

/* A context that another thread has destroyed is no longer current: what the driver makes of a
 * handle whose value is another context's by now is nobody's business. */
static void leave_destroyed_contexts(void)
{
    CUdevice device;
    while (run->workers[self].depth > 0 &&
           cuCtxGetDevice(&device) == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        pop();
}

static void ask_race_detector(void)
{
    static _Atomic uint64_t seen;
    struct simcuda_findings findings = {0};
    char report[300] = "";
    simcuda_findings(&findings);
    uint64_t found = findings.hazards + findings.program_errors + findings.lost_progress;
    /* Relaxed: whoever sees it first says so. */
    if (atomic_exchange_explicit(&seen, found, memory_order_relaxed) == found)
        return;
    simcuda_last_report(report, sizeof report);
    for (char *c = report; *c; c++)
        if (*c == '\n')
            *c = ' ';
    trace_fail("race detector: %s", report);
}

static void do_one_step(const struct step *step)
{
    leave_destroyed_contexts();
    /* A program's threads begin with a context. */
    if (run->workers[self].depth == 0 && step->kind != STEP_END && step->d % 32) {
        if (!run->contexts[0].alive)
            retain(0);
        set_current(0);
    }
    do_step[step->kind](step);
    data_is_right();
    if (run->profile->races)
        ask_race_detector();
}

static size_t do_steps(const struct step *steps, size_t count)
{
    size_t i = 0;
    for (; i < count && !trace_failed(); i++)
        do_one_step(&steps[i]);
    return i;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    self = (unsigned int)(worker - run->workers);
    for (;;) {
        while (sem_wait(&worker->turn) != 0)
            continue;
        if (worker->leave)
            return NULL;
        if (worker->steps)
            worker->done = do_steps(worker->steps, worker->count);
        else
            clear_thread();
        sem_post(&run->back);
    }
}

static void start_worker(struct worker *worker)
{
    memset(worker, 0, sizeof *worker);
    worker->id = ++run->next_id;
    sem_init(&worker->turn, 0, 0);
    if (pthread_create(&worker->thread, NULL, work, worker) != 0)
        abort();
    worker->started = true;
}

/* Hands the worker its steps (NULL: to clear its thread) and waits until it has done them. */
static size_t let(unsigned int number, const struct step *steps, size_t count)
{
    struct worker *worker = &run->workers[number];
    if (number == 0) {
        self = 0;
        if (steps)
            return do_steps(steps, count);
        clear_thread();
        return 0;
    }
    if (!worker->started && !steps)
        return 0;
    if (!worker->started)
        start_worker(worker);
    worker->steps = steps;
    worker->count = count;
    sem_post(&worker->turn);
    while (sem_wait(&run->back) != 0)
        continue;
    return worker->done;
}

/* Its own streams go with it: what they did last is ordered by nothing but events. */
static void stop_worker(unsigned int number)
{
    struct worker *worker = &run->workers[number];
    if (!worker->started)
        return;
    for (unsigned int i = 0; i < CONTEXTS; i++)
        for (unsigned int j = 0; j < CAPTURES; j++)
            if (run->captures[j].active && run->captures[j].origin.kind == PER_THREAD &&
                run->captures[j].origin.id ==
                    (((uint64_t)PER_THREAD << 56) | ((uint64_t)i << 48) | worker->id))
                return; /* an application's bug, and the driver's business */
    let(number, NULL, 0);
    worker->leave = true;
    sem_post(&worker->turn);
    pthread_join(worker->thread, NULL);
    sem_destroy(&worker->turn);
    worker->started = false;
}

static size_t run_length(const struct step *steps, size_t count)
{
    size_t length = 1;
    while (length < count && steps[length].thread == steps[0].thread &&
           steps[length].kind != STEP_THREAD_RESTART && steps[length].kind != STEP_END)
        length++;
    return length;
}

static size_t run_in_turns(const struct step *steps, size_t count)
{
    size_t done = 0;
    while (done < count && !trace_failed()) {
        const struct step *first = &steps[done];
        size_t length = run_length(first, count - done);
        if (trace->code)
            trace_new_part(first->kind == STEP_END ? 0 : first->thread % THREADS,
                           first->kind == STEP_THREAD_RESTART);
        if (first->kind == STEP_THREAD_RESTART && first->thread % THREADS)
            stop_worker(first->thread % THREADS);
        if (first->kind == STEP_END)
            for (unsigned int i = THREADS; i-- > 0;)
                let(i, NULL, 0);
        done += let(first->kind == STEP_END ? 0 : first->thread % THREADS, first, length);
    }
    return done;
}

/* ---- threads that run freely ---- */

struct free_program {
    const struct step *steps;
    size_t count;      /* without END */
    uint32_t *box_of;  /* each step's box, from 1 on; 0: none */
    struct box *boxes; /* as many as steps */
    bool printed;
};

/* Each TAKE has the oldest GIVE of another thread's before it that has no TAKE yet. */
static void pair(struct free_program *program)
{
    uint32_t boxes = 0;
    memset(program->box_of, 0, program->count * sizeof *program->box_of);
    for (size_t i = 0; i < program->count; i++) {
        if (program->steps[i].kind != STEP_TAKE)
            continue;
        size_t j = 0;
        while (j < i && (program->steps[j].kind != STEP_GIVE || program->box_of[j] != 0 ||
                         program->steps[j].thread == program->steps[i].thread))
            j++;
        if (j < i)
            program->box_of[i] = program->box_of[j] = ++boxes;
    }
}

struct free_worker {
    struct free_program *program;
    unsigned int number;
    char *text; /* what it printed */
};

static void *work_freely(void *argument)
{
    struct free_worker *worker = argument;
    const struct free_program *program = worker->program;
    size_t length;
    run = &runs[worker->number];
    trace = &traces[worker->number];
    self = worker->number;
    simcuda_acquire(program);
    if (program->printed)
        trace->code = open_memstream(&worker->text, &length);
    for (size_t i = 0; i < program->count; i++) {
        if (program->steps[i].thread % THREADS != self)
            continue;
        run->box_number = program->box_of[i];
        run->box = run->box_number ? &program->boxes[run->box_number] : NULL;
        /* Others wait for what is given, even if it is nothing any more. */
        if (!trace_failed())
            do_one_step(&program->steps[i]);
        else if (program->steps[i].kind == STEP_GIVE)
            step_give(&program->steps[i]);
    }
    clear_thread();
    if (trace->code)
        fclose(trace->code);
    simcuda_release(worker);
    return NULL;
}

static void run_threads(struct free_program *program)
{
    struct free_worker workers[THREADS];
    pthread_t threads[THREADS];
    char *texts[THREADS];
    FILE *code = trace->code;
    simcuda_release(program);
    for (unsigned int i = 0; i < THREADS; i++) {
        workers[i] = (struct free_worker){.program = program, .number = i};
        if (pthread_create(&threads[i], NULL, work_freely, &workers[i]) != 0)
            abort();
    }
    for (unsigned int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        simcuda_acquire(&workers[i]);
        texts[i] = workers[i].text;
    }
    trace->code = code;
    if (code)
        trace_new_threads(texts);
    for (unsigned int i = 0; i < THREADS; i++)
        free(texts[i]);
}

/* What nobody took goes with the contexts. */
static void empty_boxes(struct free_program *program)
{
    for (size_t i = 0; i <= program->count; i++) {
        if (program->boxes[i].full) {
            simcuda_program_freed(program->boxes[i].buffer.address);
            blocks_stay_with_context = true;
        }
        sem_destroy(&program->boxes[i].given);
    }
}

static void run_one_freely(const struct step *steps, size_t count)
{
    struct free_program program = {.steps = steps,
                                   .count = count,
                                   .printed = trace->code != NULL,
                                   .box_of = calloc(count + 1, sizeof(uint32_t)),
                                   .boxes = calloc(count + 1, sizeof(struct box))};
    if (!program.box_of || !program.boxes)
        abort();
    for (size_t i = 0; i <= count; i++)
        sem_init(&program.boxes[i].given, 0, 0);
    pair(&program);
    run_threads(&program);
    empty_boxes(&program);
    if (!trace_failed())
        do_one_step(&(struct step){.kind = STEP_END});
    for (unsigned int i = 0; i < THREADS; i++) {
        run = &runs[i];
        data_is_right();
    }
    run = &runs[0];
    free(program.box_of);
    free(program.boxes);
}

static size_t run_freely(const struct step *steps, size_t count)
{
    size_t done = 0;
    while (done < count && !trace_failed()) {
        size_t length = 0;
        while (done + length < count && steps[done + length].kind != STEP_END)
            length++;
        run_one_freely(steps + done, length);
        done += length + 1;
    }
    return done < count ? done : count;
}

size_t run_steps(const struct step *steps, size_t count)
{
    return run->profile->free ? run_freely(steps, count) : run_in_turns(steps, count);
}

void run_open(const struct profile *profile)
{
    for (unsigned int i = 0; i < THREADS; i++) {
        unsigned int share = profile->free ? FLAGS / THREADS : 0;
        runs[i].profile = profile;
        for (unsigned int j = 0; j < CONTEXTS; j++)
            for (unsigned int k = 0; k < THREADS; k++)
                runs[i].counters[j].locks[k] = 1;
        runs[i].next_id = 1 + ((uint64_t)i << 32);
        runs[i].flags_used = i * share;
        runs[i].flags_end = profile->free ? (i + 1) * share : FLAGS;
        runs[i].workers[i].id = ++runs[i].next_id;
        sem_init(&runs[i].back, 0, 0);
    }
    if (profile->free) {
        simcuda_keep_contexts();
        simcuda_threads_tell();
    }
    trace_open();
    CALL(cuInit, (0), "(0)");
}
