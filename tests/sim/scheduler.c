/*
 * Operations: work that runs in the background, in real time, when what it comes after is over.
 *
 * One thread runs them. A kernel that takes time ends at its start plus that time, whenever the
 * thread wakes: the start of what follows is the end of what went before, not the moment at which
 * that was noticed, so a queue of short kernels takes as long as it would on a GPU. Host functions
 * run in a second thread, since they may block. All functions are called under sim.lock.
 *
 * SIMCUDA_STEPPED does without threads and without real time: a clock of its own moves with every
 * call and with simcuda_advance, what is due by then runs inside the next call, and a wait moves
 * the clock to the end of what it waits for. So a program that makes its calls in a given order
 * runs the same way every time, and as fast as the processor can.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "sim.h"

enum { FLAG_POLL_NS = 30000, MOST_HELD = 16 };

static struct {
    bool running;
    pthread_cond_t work; /* for the scheduler: the first deadline may have changed */
    pthread_cond_t done; /* for op_wait: something was waited for and is over */
    pthread_cond_t host; /* for the host thread: something to call */
    uint64_t next_number;
    struct op **heap; /* running, by end_ns, then number */
    size_t heap_count, heap_room;
    struct op *flags; /* running, waiting for a flag */
    struct op *host_first, **host_last;
    const void *held[MOST_HELD]; /* arguments of host functions that may not begin */
} scheduler = {.next_number = 1};

static _Atomic uint64_t operations;

uint64_t simcuda_operations(void)
{
    return atomic_load_explicit(&operations, memory_order_relaxed);
}

/* The clock of SIMCUDA_STEPPED. Relaxed: it orders nothing. */
static _Atomic uint64_t stepped_clock = 1000000000u;
static _Atomic(simcuda_stall_handler *) stall_handler;

uint64_t simcuda_now(void)
{
    return atomic_load_explicit(&stepped_clock, memory_order_relaxed);
}

void simcuda_advance(uint64_t ns)
{
    atomic_fetch_add_explicit(&stepped_clock, ns, memory_order_relaxed);
}

void simcuda_on_stall(simcuda_stall_handler *handler)
{
    atomic_store_explicit(&stall_handler, handler, memory_order_relaxed);
}

uint64_t now_ns(void)
{
    struct timespec now;
    if (sim.settings.stepped)
        return simcuda_now();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- the heap of deadlines ---------------------------------------------------------------------*/

static bool ends_before(const struct op *a, const struct op *b)
{
    return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->number < b->number;
}

static void heap_push(struct op *op)
{
    size_t i = scheduler.heap_count;
    if (i == scheduler.heap_room) {
        scheduler.heap_room = i == 0 ? 256 : 2 * i;
        scheduler.heap = realloc(scheduler.heap, scheduler.heap_room * sizeof(struct op *));
        if (scheduler.heap == NULL)
            abort();
    }
    scheduler.heap_count++;
    for (; i > 0 && ends_before(op, scheduler.heap[(i - 1) / 2]); i = (i - 1) / 2)
        scheduler.heap[i] = scheduler.heap[(i - 1) / 2];
    scheduler.heap[i] = op;
}

static struct op *heap_pop(void)
{
    struct op *first = scheduler.heap[0];
    struct op *moved = scheduler.heap[--scheduler.heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < scheduler.heap_count) {
        if (child + 1 < scheduler.heap_count &&
            ends_before(scheduler.heap[child + 1], scheduler.heap[child]))
            child++;
        if (!ends_before(scheduler.heap[child], moved))
            break;
        scheduler.heap[i] = scheduler.heap[child];
        i = child;
    }
    if (scheduler.heap_count > 0)
        scheduler.heap[i] = moved;
    return first;
}

/* --- starting and ending -----------------------------------------------------------------------*/

static void queue_for_host(struct op *op)
{
    op->next = NULL;
    if (scheduler.host_first == NULL)
        scheduler.host_last = &scheduler.host_first;
    *scheduler.host_last = op;
    scheduler.host_last = &op->next;
    pthread_cond_signal(&scheduler.host);
}

static void start(struct op *op)
{
    op->state = OP_RUNNING;
    op->end_ns = op->start_ns;
    switch (op->work.how) {
    case CALLS_HOST:
        queue_for_host(op);
        break;
    case WAITS_FOR_FLAG:
    case WAITS_FOR_MEMORY:
        op->next = scheduler.flags;
        scheduler.flags = op;
        break;
    case TAKES_NS:
        op->end_ns += op->work.ns;
        heap_push(op);
        break;
    case TAKES_NO_TIME:
        heap_push(op);
        break;
    }
}

static void unblock(struct op *op, uint64_t not_before)
{
    if (op->start_ns < not_before)
        op->start_ns = not_before;
    if (--op->blockers == 0)
        start(op);
}

/* The operation is over: what comes after it may start. Drops the scheduler's reference. */
static void complete(struct op *op)
{
    op->state = OP_DONE;
    atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
    if (op->work.finish != NULL)
        op->work.finish(&op->work, op);
    for (unsigned int i = 0; i < op->dependent_count; i++) {
        unblock(op->dependents[i], op->end_ns);
        op_drop(op->dependents[i]);
    }
    free(op->dependents);
    op->dependents = NULL;
    op->dependent_count = 0;
    if (op->waited_for)
        pthread_cond_broadcast(&scheduler.done);
    op_drop(op);
}

static void note_failure(const struct op *op, CUresult result)
{
    struct context *context = context_with_id(op->context_id);
    if (context != NULL && context->root->error == CUDA_SUCCESS)
        context->root->error = result;
}

/* What an operation does to memory, without the lock, so that calls go on meanwhile. */
static void run_effect(struct op *op)
{
    CUresult result;
    if (op->work.effect == NULL)
        return;
    pthread_mutex_unlock(&sim.lock);
    result = op->work.effect(&op->work);
    pthread_mutex_lock(&sim.lock);
    if (result != CUDA_SUCCESS)
        note_failure(op, result);
}

/* The word may be written by the program at any moment, without our knowing. */
__attribute__((no_sanitize("thread"))) static bool flag_is_set(uint64_t address)
{
    return __atomic_load_n((const uint32_t *)(uintptr_t)address, __ATOMIC_ACQUIRE) != 0;
}

static bool has_seen_what_it_waits_for(struct op *op)
{
    return op->work.how == WAITS_FOR_FLAG ? flag_is_set(op->work.flag)
                                          : memory_steps_run(&op->work);
}

/* Ends the operations whose flag is set. */
static void poll_flags(void)
{
    struct op **link = &scheduler.flags;
    while (*link != NULL) {
        struct op *op = *link;
        if (!has_seen_what_it_waits_for(op)) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        op->end_ns = now_ns();
        heap_push(op);
    }
}

static void run_what_is_due(void)
{
    while (scheduler.heap_count > 0 && scheduler.heap[0]->end_ns <= now_ns()) {
        struct op *op = heap_pop();
        run_effect(op);
        complete(op);
    }
}

static void sleep_until(uint64_t deadline)
{
    struct timespec when = {.tv_sec = (time_t)(deadline / 1000000000u),
                            .tv_nsec = (long)(deadline % 1000000000u)};
    pthread_cond_timedwait(&scheduler.work, &sim.lock, &when);
}

static void *scheduler_thread(void *unused)
{
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    prctl(PR_SET_NAME, (unsigned long)"simcuda", 0ul, 0ul, 0ul);
    pthread_mutex_lock(&sim.lock);
    for (;;) {
        uint64_t deadline = UINT64_MAX;
        poll_flags();
        run_what_is_due();
        if (scheduler.heap_count > 0)
            deadline = scheduler.heap[0]->end_ns;
        if (scheduler.flags != NULL && deadline > now_ns() + FLAG_POLL_NS)
            deadline = now_ns() + FLAG_POLL_NS;
        if (deadline == UINT64_MAX)
            pthread_cond_wait(&scheduler.work, &sim.lock);
        else
            sleep_until(deadline);
    }
    return unused;
}

static void call_host_function(const struct work *work)
{
    struct thread *thread = this_thread();
    bool within_another = thread->in_host_function;
    thread->in_host_function = true;
    if (work->callback != NULL)
        work->callback(work->callback_stream, CUDA_SUCCESS, work->host_argument);
    else
        work->host_function(work->host_argument);
    thread->in_host_function = within_another;
}

static void run_host_function(struct op *op)
{
    struct race_callback callback;
    scheduler.host_first = op->next;
    if (races_on)
        race_callback_begin(&callback, op);
    pthread_mutex_unlock(&sim.lock);
    call_host_function(&op->work);
    pthread_mutex_lock(&sim.lock);
    if (races_on)
        race_callback_end(&callback, op);
    op->end_ns = now_ns();
    complete(op);
}

void simcuda_hold_host_functions(const void *argument, int held)
{
    pthread_mutex_lock(&sim.lock);
    for (unsigned int i = 0; i < MOST_HELD; i++)
        if (scheduler.held[i] == (held ? NULL : argument)) {
            scheduler.held[i] = held ? argument : NULL;
            break;
        }
    pthread_cond_signal(&scheduler.host);
    pthread_mutex_unlock(&sim.lock);
}

/* The host function that may begin now. */
static struct op *next_for_host(void)
{
    struct op *op = scheduler.host_first;
    for (unsigned int i = 0; op != NULL && i < MOST_HELD; i++)
        if (scheduler.held[i] != NULL && scheduler.held[i] == op->work.host_argument)
            return NULL;
    return op;
}

static void *host_thread(void *unused)
{
    prctl(PR_SET_NAME, (unsigned long)"simcuda-host", 0ul, 0ul, 0ul);
    pthread_mutex_lock(&sim.lock);
    for (;;) {
        struct op *op = next_for_host();
        if (op == NULL) {
            pthread_cond_wait(&scheduler.host, &sim.lock);
            continue;
        }
        run_host_function(op);
        pthread_cond_signal(&scheduler.work);
    }
    return unused;
}

/* --- without threads (SIMCUDA_STEPPED) ---------------------------------------------------------*/

static bool something_is_due(void)
{
    return scheduler.heap_count > 0 && scheduler.heap[0]->end_ns <= now_ns();
}

static void run_what_can_run(void)
{
    poll_flags();
    do {
        struct op *for_host;
        run_what_is_due();
        while ((for_host = next_for_host()) != NULL)
            run_host_function(for_host);
        /* What waits for a flag that is set already may have started only now. */
        poll_flags();
    } while (something_is_due());
}

void scheduler_step(uint64_t ns)
{
    simcuda_advance(ns);
    run_what_can_run();
}

/* Nothing will ever end but what waits for a flag: the test may set some. */
static void stall(void)
{
    simcuda_stall_handler *handler = atomic_load_explicit(&stall_handler, memory_order_relaxed);
    pthread_mutex_unlock(&sim.lock);
    if (handler != NULL)
        handler();
    else
        sched_yield();
    pthread_mutex_lock(&sim.lock);
}

static void wait_by_stepping(const struct op *op)
{
    run_what_can_run();
    while (op->state != OP_DONE) {
        uint64_t now = now_ns();
        if (scheduler.heap_count == 0)
            stall();
        else if (scheduler.heap[0]->end_ns > now)
            simcuda_advance(scheduler.heap[0]->end_ns - now);
        run_what_can_run();
    }
}

/* --- for the rest of the driver ----------------------------------------------------------------*/

static void start_thread(void *(*function)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, NULL) != 0)
        abort();
    pthread_detach(thread);
}

static void start_threads(void)
{
    pthread_condattr_t monotonic;
    scheduler.running = true;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&scheduler.work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&scheduler.done, NULL);
    pthread_cond_init(&scheduler.host, NULL);
    if (sim.settings.stepped)
        return;
    start_thread(scheduler_thread);
    start_thread(host_thread);
}

struct op *op_new(struct context *context, const struct work *work)
{
    struct op *op = calloc(1, sizeof *op);
    if (op == NULL)
        abort();
    if (!scheduler.running)
        start_threads();
    op->references = 2; /* the caller's, and the scheduler's until it is done */
    op->blockers = 1;
    op->number = scheduler.next_number++;
    op->context_id = context != NULL ? context->id : 0;
    if (work != NULL)
        op->work = *work;
    if (races_on)
        race_op_new(op);
    return op;
}

void op_after(struct op *op, struct op *earlier)
{
    if (races_on)
        race_op_after(op, earlier);
    op_follow(op, earlier);
}

void op_follow(struct op *op, struct op *earlier)
{
    if (earlier == NULL || earlier == op)
        return;
    if (earlier->state == OP_DONE) {
        if (op->start_ns < earlier->end_ns)
            op->start_ns = earlier->end_ns;
        return;
    }
    if (earlier->dependent_count == earlier->dependent_room) {
        unsigned int room = earlier->dependent_room == 0 ? 4 : 2 * earlier->dependent_room;
        struct op **dependents = realloc(earlier->dependents, room * sizeof(struct op *));
        if (dependents == NULL)
            abort();
        earlier->dependents = dependents;
        earlier->dependent_room = room;
    }
    earlier->dependents[earlier->dependent_count++] = op_hold(op);
    op->blockers++;
}

void op_submit(struct op *op)
{
    bool at_once = op->blockers == 1 && op->work.how == TAKES_NO_TIME && op->work.effect == NULL;
    uint64_t now = now_ns();
    if (op->start_ns < now)
        op->start_ns = now;
    if (at_once) {
        op->blockers = 0;
        op->end_ns = op->start_ns;
        complete(op);
        return;
    }
    unblock(op, now);
    if (op->state == OP_RUNNING)
        pthread_cond_signal(&scheduler.work);
}

struct op *op_hold(struct op *op)
{
    op->references++;
    return op;
}

void op_drop(struct op *op)
{
    if (op == NULL || --op->references > 0)
        return;
    if (races_on)
        race_op_free(op);
    free(op->dependents);
    free(op);
}

bool op_is_done(const struct op *op)
{
    return op == NULL || op->state == OP_DONE;
}

bool op_is_past(const struct op *op)
{
    return op == NULL || (op_is_done(op) && !races_on);
}

static void sleep_until_done(struct op *op)
{
    if (races_on)
        race_host_waits(op);
    if (sim.settings.stepped)
        wait_by_stepping(op);
    while (op->state != OP_DONE) {
        op->waited_for = true;
        pthread_cond_wait(&scheduler.done, &sim.lock);
    }
}

void op_wait(struct op *op)
{
    if (op == NULL)
        return;
    op_hold(op);
    sleep_until_done(op);
    if (races_on)
        race_observed(op);
    op_drop(op);
}

void op_wait_as_if_to_begin(struct op *op)
{
    op_hold(op);
    sleep_until_done(op);
    if (races_on)
        race_observed_before(op);
    op_drop(op);
}

void op_set(struct op **variable, struct op *op)
{
    struct op *before = *variable;
    *variable = op != NULL ? op_hold(op) : NULL;
    op_drop(before);
}

struct range *work_touches(struct work *work, uint64_t begin, uint64_t bytes, bool written)
{
    struct range *range = &work->ranges[work->range_count];
    *range = (struct range){.begin = begin, .end = begin + bytes, .written = written};
    if (bytes > 0)
        work->range_count++;
    return range;
}

void run_on_host_thread(CUhostFn function, void *argument)
{
    struct work work = {.how = CALLS_HOST, .host_function = function, .host_argument = argument};
    struct op *op = op_new(NULL, &work);
    op_submit(op);
    /* The second of the two references that op_new gives; what the analyzer does not know is that
     * the race detector leaves the count alone. */
    op_drop(op); /* NOLINT(clang-analyzer-unix.Malloc) */
}
