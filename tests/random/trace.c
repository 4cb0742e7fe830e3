#include "trace.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../sim/simcuda.h"
#include "virtual_time.h"

struct trace trace;

static __thread bool call_stalls;

/* Called by whoever waits for what only a flag ends. */
static void stalled(void)
{
    call_stalls = true;
    set_all_flags();
}

void trace_fail(const char *format, ...)
{
    va_list arguments;
    if (trace.failed)
        return;
    trace.failed = true;
    va_start(arguments, format);
    vsnprintf(trace.why, sizeof trace.why, format, arguments);
    va_end(arguments);
}

void trace_say(const char *format, ...)
{
    va_list arguments;
    if (!trace.code)
        return;
    va_start(arguments, format);
    vfprintf(trace.code, format, arguments);
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
    virtual_time_new_call();
}

static void append(struct record record)
{
    if (trace.count == trace.room) {
        trace.room = trace.room ? 2 * trace.room : 4096;
        trace.records = realloc(trace.records, trace.room * sizeof *trace.records);
        if (!trace.records)
            abort();
    }
    trace.records[trace.count++] = record;
}

/* The plain run's record of this call; NULL where there is none to compare with. */
static const struct record *plain_record(const char *name, unsigned int place)
{
    if (!trace.compared || trace.failed)
        return NULL;
    if (trace.next == trace.count || trace.records[trace.next].place != place) {
        trace_fail("%s (line %u): the plain run is at line %u", name, place,
                   trace.next == trace.count ? 0 : trace.records[trace.next].place);
        return NULL;
    }
    return &trace.records[trace.next++];
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

CUresult trace_call_ended(const char *name, unsigned int place, CUresult result,
                          enum comparison comparison, bool *undo)
{
    trace.calls++;
    if (trace.compared) {
        const struct record *plain = plain_record(name, place);
        if (!plain)
            return result;
        if (!agree(plain->value, result, comparison, undo))
            trace_fail("%s (line %u): %u without the pool, %u with it", name, place, plain->value,
                       result);
        if (call_stalls && !plain->stalled)
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
    if (!trace.compared) {
        append((struct record){(uint16_t)place, 0, folded});
        return;
    }
    const struct record *plain = plain_record(name, place);
    if (plain && plain->value != folded)
        trace_fail("%s (line %u): %#x without the pool, %#x with it", name, place, plain->value,
                   folded);
}

/* ---- as C ---- */

static struct {
    unsigned int thread;
    bool restarted;
} parts[4096];
static unsigned int part_count;

void trace_new_part(unsigned int thread, bool restarted)
{
    if (part_count == sizeof parts / sizeof *parts)
        return;
    if (part_count > 0)
        trace_say("}\n\n");
    parts[part_count].thread = thread;
    parts[part_count].restarted = restarted;
    trace_say("static void part_%u(void) /* in thread %u */\n{\n", part_count++, thread);
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
    for (unsigned int i = 0; i < part_count; i++)
        trace_say("    in_thread(%u, %d, part_%u);\n", parts[i].thread, parts[i].restarted, i);
    trace_say("    return end();\n}\n");
}
