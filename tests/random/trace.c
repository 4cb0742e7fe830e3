#include "trace.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../sim/simcuda.h"
#include "virtual_time.h"

struct trace traces[THREADS];
__thread struct trace *trace = &traces[0];
struct leniency leniency;

static struct {
    pthread_mutex_t lock; /* guards why; the only lock of this file */
    _Atomic bool failed;  /* release, after why was written; acquire in trace_failed */
    char why[400];
} failure = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread bool call_stalls;
static __thread unsigned int stalls_of_call;

/* Threads that run freely stall for nothing, too: while another one runs what they wait for, or
 * waits for the simulator's lock, which those who only yield can keep from it for minutes: that
 * lock is not a fair one. */
enum { MOST_STALLS_OF_FREE_THREADS = 20000, STALLS_OF_YIELDS = 1000 };

/* In real time; the clocks of this program are virtual. */
static void make_way(void)
{
    struct timespec rest = {0, 50000};
    if (stalls_of_call < STALLS_OF_YIELDS)
        syscall(SYS_sched_yield);
    else
        syscall(SYS_nanosleep, &rest, NULL);
}

/* Called by whoever waits for what only a flag ends; or, where all flags are set, a lock. */
static void stalled(void)
{
    unsigned int most = leniency.stalls ? MOST_STALLS_OF_FREE_THREADS : 1;
    call_stalls = true;
    set_all_flags();
    if (leniency.stalls)
        make_way();
    if (++stalls_of_call > most && let_go_of_lock())
        trace_fail("a call under a lock waits for work that needs the lock");
}

void trace_fail(const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&failure.lock);
    if (!trace_failed()) {
        va_start(arguments, format);
        vsnprintf(failure.why, sizeof failure.why, format, arguments);
        va_end(arguments);
        atomic_store_explicit(&failure.failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&failure.lock);
}

bool trace_failed(void)
{
    return atomic_load_explicit(&failure.failed, memory_order_acquire);
}

const char *trace_why(void)
{
    return failure.why;
}

void trace_say(const char *format, ...)
{
    va_list arguments;
    if (!trace->code)
        return;
    va_start(arguments, format);
    vfprintf(trace->code, format, arguments);
    va_end(arguments);
}

void trace_open(void)
{
    simcuda_on_stall(stalled);
    virtual_time_on_stall(stalled);
}

void trace_call_begins(void)
{
    call_stalls = false;
    stalls_of_call = 0;
    virtual_time_new_call();
}

static void append(struct record record)
{
    if (trace->count == trace->room) {
        trace->room = trace->room ? 2 * trace->room : 4096;
        trace->records = realloc(trace->records, trace->room * sizeof *trace->records);
        if (!trace->records)
            abort();
    }
    trace->records[trace->count++] = record;
}

/* The plain run's record of this call; NULL where there is none to compare with. */
static const struct record *plain_record(const char *name, unsigned int place)
{
    if (!trace->compared || trace_failed())
        return NULL;
    if (trace->next == trace->count || trace->records[trace->next].place != place) {
        trace_fail("%s (line %u): the plain run is at line %u", name, place,
                   trace->next == trace->count ? 0 : trace->records[trace->next].place);
        return NULL;
    }
    return &trace->records[trace->next++];
}

static bool says_readiness(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY;
}

static bool agree(CUresult plain, CUresult result, enum comparison comparison, bool *undo)
{
    if (comparison == ANY_READINESS && says_readiness(plain) && says_readiness(result))
        return true;
    if (comparison == MAY_HAVE_MEMORY && plain == CUDA_ERROR_OUT_OF_MEMORY &&
        result == CUDA_SUCCESS)
        return *undo = true;
    return plain == result;
}

/* Errors that a call may have because of what other threads do. */
static bool may_happen(CUresult result, enum comparison comparison)
{
    switch (result) {
    case CUDA_SUCCESS:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_ILLEGAL_STATE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
        return true;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return comparison != MAY_HAVE_MEMORY || leniency.memory;
    default:
        return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
               result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
}

unsigned int trace_shown(enum comparison comparison, CUresult result)
{
    return comparison == ANY_READINESS || leniency.errors ? 999u : result;
}

CUresult trace_call_ended(const char *name, unsigned int place, CUresult result,
                          enum comparison comparison, bool *undo)
{
    trace->calls++;
    if (leniency.errors && !may_happen(result, comparison))
        trace_fail("%s (line %u): %u", name, place, result);
    if (trace->compared) {
        const struct record *plain = plain_record(name, place);
        if (!plain)
            return result;
        if (!agree(plain->value, result, comparison, undo))
            trace_fail("%s (line %u): %u without the pool, %u with it", name, place, plain->value,
                       result);
        if (call_stalls && !plain->stalled && !leniency.stalls)
            trace_fail("%s (line %u) waits for work that it does not wait for without the pool",
                       name, place);
        if (plain->stalled && !call_stalls)
            set_all_flags();
        result = plain->value;
    } else {
        append((struct record){(uint16_t)place, call_stalls, result});
    }
    return comparison == ANY_READINESS && says_readiness(result) ? CUDA_SUCCESS : result;
}

void trace_note(const char *name, unsigned int place, uint64_t value)
{
    uint32_t folded = (uint32_t)(value ^ (value >> 32));
    if (!trace->compared) {
        append((struct record){(uint16_t)place, 0, folded});
        return;
    }
    const struct record *plain = plain_record(name, place);
    if (plain && plain->value != folded)
        trace_fail("%s (line %u): %#x without the pool, %#x with it", name, place, plain->value,
                   folded);
}

/* ---- as C ---- */

/* How a part is run: in a thread that takes its turn, in one that runs freely beside others, or in
 * the main thread when those are over. */
enum part_kind { IN_TURN, BESIDE_OTHERS, AFTER_ALL };
static struct {
    unsigned int thread;
    enum part_kind kind;
    bool restarted;
} parts[4096];
static unsigned int part_count;

static void begin_part(unsigned int thread, bool restarted, enum part_kind kind)
{
    if (part_count == sizeof parts / sizeof *parts)
        return;
    if (part_count > 0)
        trace_say("}\n\n");
    parts[part_count].thread = thread;
    parts[part_count].kind = kind;
    parts[part_count].restarted = restarted;
    trace_say("static void part_%u(void) /* in thread %u */\n{\n", part_count++, thread);
}

void trace_new_part(unsigned int thread, bool restarted)
{
    begin_part(thread, restarted, IN_TURN);
}

void trace_new_threads(char *const *texts)
{
    for (unsigned int i = 0; i < THREADS; i++) {
        begin_part(i, false, BESIDE_OTHERS);
        trace_say("    self = %u;\n%s", i, texts[i] ? texts[i] : "");
    }
    begin_part(0, false, AFTER_ALL);
}

void trace_print_begin(void)
{
    trace_say(
        "%s",
        "/* cc -I. -Itests THIS.c tests/random/virtual_time.c build/sim/libcuda.so.1 -pthread\n"
        " * -rdynamic, from the root of the sources; run with SIMCUDA_STEPPED=1. */\n"
        "#include \"tests/random/printed.h\"\n\n");
}

void trace_print_end(void)
{
    trace_say("}\n\nint main(void)\n{\n    cuInit(0);\n    simcuda_on_stall(set_all_flags);\n");
    for (unsigned int i = 0; i < part_count; i++) {
        if (parts[i].kind == IN_TURN)
            trace_say("    in_thread(%u, %d, part_%u);\n", parts[i].thread, parts[i].restarted, i);
        else if (parts[i].kind == BESIDE_OTHERS)
            trace_say("    start_thread(part_%u);\n", i);
        else
            trace_say("    join_threads();\n    part_%u();\n", i);
    }
    trace_say("    return end();\n}\n");
}
