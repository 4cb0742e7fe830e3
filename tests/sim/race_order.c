/*
 * What the race detector knows of order: operations, observations, threads, and the waits that the
 * plain driver would not have made. race_detector.h has the rules. Under sim.lock.
 */
#include <stdlib.h>
#include <string.h>

#include "race_detector.h"

bool races_on;
struct clock *observed;

/* How often a call may ask for the same thing in vain before that counts as a wait. */
enum { PATIENCE = 8 };

/* Host threads. */
struct race_thread {
    struct clock *clock;
    uint32_t chain;
};
static struct race_thread everyone;       /* while threads count as one */
static __thread struct race_thread alone; /* once the program tells how they synchronise */
static bool threads_tell;

/* The call of the program that goes on in this thread. */
static __thread struct {
    enum simcuda_waits waits; /* 0: none that it told of */
    uint64_t argument, context;
    uint64_t polled; /* the operation asked for last, and how often in vain */
    unsigned int polls;
} program_call;

/* What the host function that runs in this thread knows. */
static __thread struct clock *callback_clock;
static __thread bool in_callback;
static __thread const struct race_op *callback_op;

/* What the plain driver has waited for on the host so far; and what it may put stream-ordered
 * allocations behind. */
static struct clock *plainly_waited, *freed_in_order;

/* --- threads -----------------------------------------------------------------------------------*/

static struct race_thread *this_race_thread(void)
{
    return threads_tell ? &alone : &everyone;
}

bool threads_are_told(void)
{
    return threads_tell;
}

struct clock **host_clock(void)
{
    return in_callback ? &callback_clock : &this_race_thread()->clock;
}

void race_thread_ended(void)
{
    clock_drop(alone.clock);
    alone.clock = NULL;
}

void race_callback_begin(struct race_callback *callback, const struct op *op)
{
    callback->clock = callback_clock;
    callback->within_another = in_callback;
    callback->op = callback_op;
    callback_op = op->race;
    callback->waits = program_call.waits;
    callback_clock = NULL;
    in_callback = true;
    program_call.waits = 0;
    clock_join(&callback_clock, op->race->before);
    clock_join(&callback_clock, this_race_thread()->clock);
}

void race_callback_end(struct race_callback *callback, struct op *op)
{
    clock_join(&op->race->beside, callback_clock);
    clock_drop(callback_clock);
    callback_clock = callback->clock;
    in_callback = callback->within_another;
    callback_op = callback->op;
    program_call.waits = callback->waits;
}

static void host_access(uint64_t address, uint64_t bytes, bool written)
{
    struct race_thread *thread = this_race_thread();
    struct range range = {.begin = address, .end = address + bytes, .written = written};
    struct origin origin = {
        .what = written ? "a write" : "a read", .thread = this_thread()->id, .host = true};
    struct clock *clock = clock_hold(observed);
    struct point point;
    clock_join(&clock, *host_clock());
    clock_join(&clock, threads_tell ? NULL : everyone.clock);
    point = next_point(thread->chain, true, clock);
    thread->chain = point.chain;
    if (in_callback) {
        origin.context = callback_op->origin.context;
        origin.frees_before = callback_op->frees;
        origin.callback = true;
        memory_reached_late(&range, callback_op->serial, &origin);
    }
    memory_used(&range, bytes > 0 ? 1 : 0, point, clock, &origin);
    clock_add(host_clock(), point);
    if (!threads_tell)
        clock_add(&everyone.clock, point);
    clock_drop(clock);
}

/* --- operations --------------------------------------------------------------------------------*/

void end_of_op(struct clock **clock, const struct op *op)
{
    if (op == NULL)
        return;
    clock_join(clock, op->race->before);
    clock_join(clock, op->race->beside);
    clock_add(clock, op->race->point);
}

void race_op_new(struct op *op)
{
    op->race = calloc(1, sizeof *op->race);
    if (op->race == NULL)
        abort();
    op->race->before = clock_hold(observed);
    clock_join(&op->race->before, *host_clock());
}

void race_op_free(struct op *op)
{
    clock_drop(op->race->before);
    clock_drop(op->race->beside);
    free(op->race);
}

void race_op_after(struct op *op, const struct op *earlier)
{
    if (earlier != NULL && earlier != op)
        end_of_op(&op->race->before, earlier);
}

bool race_starts_early(struct op *op, struct stream *stream)
{
    if (!op->work.early || stream->early_start == NULL)
        return false;
    clock_join(&op->race->before, stream->early_start);
    end_of_op(&op->race->beside, stream->last);
    op->race->origin.early = true;
    return true;
}

static const char *name_of(const struct work *work)
{
    if (work->name != NULL)
        return work->name;
    return work->type == CU_GRAPH_NODE_TYPE_MEMCPY   ? "a copy"
           : work->type == CU_GRAPH_NODE_TYPE_MEMSET ? "a fill"
                                                     : "an operation";
}

/* An event's record, or the mark of a stream-ordered free: between two kernels, it does not keep
 * the second from starting early. */
static bool is_mark(const struct op *op)
{
    return op->work.how == TAKES_NO_TIME && op->work.effect == NULL && op->work.name == NULL &&
           op->work.type == CU_GRAPH_NODE_TYPE_KERNEL;
}

static void use_memory(struct op *op, const struct stream *stream, uint32_t chain, bool in_graph)
{
    struct race_op *race = op->race;
    race->origin.what = name_of(&op->work);
    race->origin.number = op->number;
    race->origin.stream = stream->id;
    race->origin.context = stream->context->root->id;
    race->origin.thread = this_thread()->id;
    race->origin.legacy = stream->type == STREAM_LEGACY;
    race->origin.per_thread = stream->type == STREAM_PER_THREAD;
    race->origin.blocking = !(stream->flags & CU_STREAM_NON_BLOCKING);
    race->origin.kernel = op->work.name != NULL;
    race->origin.in_graph = in_graph;
    race->serial = last_allocation();
    race->frees = last_free();
    race->chain = chain;
    if (is_mark(op))
        return;
    race->point = next_point(chain, false, race->before);
    race->chain = race->point.chain;
    memory_used(op->work.ranges, op->work.range_count, race->point, race->before, &race->origin);
}

static void set_early_start(struct stream *stream, struct clock *clock)
{
    clock_drop(stream->early_start);
    stream->early_start = clock;
}

void race_op_in_stream(struct op *op, struct stream *stream)
{
    use_memory(op, stream, stream->chain, false);
    stream->chain = op->race->chain;
    if (!is_mark(op))
        set_early_start(stream, op->work.name != NULL ? clock_hold(op->race->before) : NULL);
}

struct point mark_in_stream(struct stream *stream)
{
    struct work work = {.how = TAKES_NO_TIME};
    struct op *op = op_new(stream->context, &work);
    struct point point;
    stream_order(stream, op);
    point = op->race->point = next_point(stream->chain, false, op->race->before);
    stream->chain = point.chain;
    op_submit(op);
    op_set(&stream->last, op);
    op_drop(op);
    clock_add(&stream->marked, point);
    return point;
}

struct clock *race_marks_of(const struct stream *stream)
{
    return stream->marked != NULL ? clock_hold(stream->marked) : NULL;
}

void race_marks_observed(struct clock *marks)
{
    clock_join(&observed, marks);
    clock_drop(marks);
}

void race_op_in_graph(struct op *op, const struct stream *stream, const struct op *before)
{
    use_memory(op, stream, before->race->chain != 0 ? before->race->chain : stream->chain, true);
}

static void must_be_plain(const char *what, const struct op *op, const struct clock *also);

/* What new work of the stream comes after anyway. */
static struct clock *order_of(struct stream *stream)
{
    struct op *op = op_new(stream->context, NULL);
    struct clock *clock;
    stream_order(stream, op);
    clock = clock_hold(op->race->before);
    op_submit(op);
    op_drop(op);
    return clock;
}

void race_stream_waits(struct stream *stream, const struct op *record)
{
    struct clock *own;
    if (program_call.waits != 0) {
        own = order_of(stream);
        if (program_call.waits == SIMCUDA_STREAM_ALLOCATION)
            clock_join(&own, freed_in_order);
        must_be_plain("a stream is made to wait", record, own);
        clock_drop(own);
    }
    if (stream->early_start != NULL && record->race->origin.stream != stream->id)
        end_of_op(&stream->early_start, record);
}

void race_stream_free(struct stream *stream)
{
    clock_drop(stream->marked);
    set_early_start(stream, NULL);
}

/* --- observations ------------------------------------------------------------------------------*/

void race_observed(const struct op *op)
{
    end_of_op(&observed, op);
}

void race_observed_before(const struct op *op)
{
    clock_join(&observed, op->race->before);
}

void end_of_stream(struct clock **clock, struct stream *stream)
{
    struct op *tail = stream_tail(stream);
    end_of_op(clock, tail);
    op_drop(tail);
}

void work_of_context(struct clock **clock, const struct context *context)
{
    for (const struct context *other = sim.contexts; other != NULL; other = other->next) {
        if (context != NULL && !context_within(other, context))
            continue;
        for (const struct stream *stream = other->streams; stream != NULL; stream = stream->next)
            end_of_op(clock, stream->last);
        end_of_op(clock, other->barrier);
        end_of_op(clock, other->orphans);
    }
}

struct stream *stream_named(CUstream handle)
{
    CUresult why_not;
    struct call call = {.context = current_context(&why_not)};
    return stream_of(&call, handle, &why_not);
}

/* --- lost progress -----------------------------------------------------------------------------*/

/* What the program's call waits for in the plain driver is plainly waited for, as of now. */
static void permit(void)
{
    CUresult why_not;
    struct context *context = current_context(&why_not);
    CUstream handle = (CUstream)(uintptr_t)program_call.argument;
    struct stream *stream;
    const struct event *event;
    switch (program_call.waits) {
    case SIMCUDA_WAITS_FOR_OWNER:
        context = context_with_id(program_call.context);
        if (context != NULL)
            work_of_context(&plainly_waited, context);
        break;
    case SIMCUDA_WAITS_FOR_CONTEXT:
        if (context != NULL)
            work_of_context(&plainly_waited, context);
        break;
    case SIMCUDA_WAITS_FOR_STREAM:
        stream = stream_named(handle);
        if (stream != NULL)
            end_of_stream(&plainly_waited, stream);
        break;
    case SIMCUDA_WAITS_FOR_EVENT:
        event = event_of((CUevent)(uintptr_t)program_call.argument);
        if (event != NULL)
            end_of_op(&plainly_waited, event->record);
        break;
    case SIMCUDA_STREAM_FREE:
        stream = stream_named(handle);
        if (stream != NULL)
            end_of_stream(&freed_in_order, stream);
        break;
    case SIMCUDA_WAITS_FOR_NOTHING:
    case SIMCUDA_STREAM_ALLOCATION:
        break;
    }
}

static bool is_plain(const struct op *op, const struct clock *also)
{
    struct clock *end = NULL;
    bool plain;
    end_of_op(&end, op);
    plain = clocks_know(end, observed, plainly_waited, also);
    clock_drop(end);
    return plain;
}

static void must_be_plain(const char *what, const struct op *op, const struct clock *also)
{
    permit();
    if (!is_plain(op, also))
        report_lost_progress(what, op);
}

void race_host_waits(const struct op *op)
{
    if (program_call.waits == 0)
        end_of_op(&plainly_waited, op);
    else
        must_be_plain("the host waits", op, NULL);
}

void race_polled(const struct op *op)
{
    if (program_call.waits == 0 || op == NULL)
        return;
    if (program_call.polled != op->number)
        program_call.polls = 0;
    program_call.polled = op->number;
    if (++program_call.polls == PATIENCE)
        must_be_plain("the host asks again and again", op, NULL);
}

void race_context_waits(const struct op *op)
{
    if (program_call.waits != 0 && op != NULL)
        must_be_plain("the context is made to wait", op, NULL);
}

void race_fence_recorded(void)
{
    if (program_call.waits != 0)
        permit();
}

void race_free_waits(const struct op *op)
{
    if (program_call.waits == 0 || program_call.waits == SIMCUDA_WAITS_FOR_OWNER)
        end_of_op(&plainly_waited, op);
}

/* --- what programs tell ------------------------------------------------------------------------*/

void simcuda_host_reads(const void *address, uint64_t bytes)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    host_access((uintptr_t)address, bytes, false);
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_host_writes(const void *address, uint64_t bytes)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    host_access((uintptr_t)address, bytes, true);
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_threads_tell(void)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    if (!threads_tell)
        alone.clock = clock_hold(everyone.clock);
    threads_tell = true;
    pthread_mutex_unlock(&sim.lock);
}

/* What was released, by object: a table of lists, since objects may be few or many. */
struct released {
    const void *object;
    struct clock *clock;
    struct released *next;
};
static struct released *released[256];

static struct released *released_of(const void *object)
{
    struct released **list = &released[((uintptr_t)object >> 4) % 256], *found = *list;
    while (found != NULL && found->object != object)
        found = found->next;
    if (found != NULL)
        return found;
    found = calloc(1, sizeof *found);
    if (found == NULL)
        abort();
    found->object = object;
    found->next = *list;
    *list = found;
    return found;
}

void simcuda_release(const void *object)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    clock_join(&released_of(object)->clock, *host_clock());
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_acquire(const void *object)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    clock_join(host_clock(), released_of(object)->clock);
    pthread_mutex_unlock(&sim.lock);
}

/* Whose work cuMemFree of the address waits for. */
static uint64_t owner_of(uint64_t address)
{
    const struct tenancy *tenancy = tenancy_at(address);
    const struct allocation *allocation = allocation_at(address);
    CUresult why_not;
    const struct context *context = current_context(&why_not);
    if (tenancy != NULL)
        return tenancy->context;
    if (allocation != NULL && allocation->context_id != 0)
        return allocation->context_id;
    return context != NULL ? context->root->id : 0;
}

void simcuda_program_call_begin(enum simcuda_waits waits, uint64_t argument)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    program_call.waits = waits;
    program_call.argument = argument;
    program_call.context = waits == SIMCUDA_WAITS_FOR_OWNER ? owner_of(argument) : 0;
    program_call.polls = 0;
    program_call.polled = 0;
    permit();
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_program_call_end(void)
{
    program_call.waits = 0;
}
