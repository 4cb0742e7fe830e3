/*
 * Calls of the driver as a random program makes them: recorded, compared, and printed as C.
 *
 * Every call is a record of its place in the source, its result, and whether it waited for
 * something that only a flag ends (a stall: the flags are then set, so that the program goes on).
 * The plain run writes its records, the pooled run reads them and compares call by call:
 *   - results are equal, except that a query may answer "not ready" or not as time has it;
 *   - where the plain driver is out of memory the pool may have some: the program frees it at once
 *     and goes on as if there had been none;
 *   - the pooled run stalls only where the plain one does. Where the plain one alone does, the
 * flags are set for the pooled one too.
 */
#ifndef TESTS_RANDOM_TRACE_H
#define TESTS_RANDOM_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../driver_api.h"
#include "program.h"

struct record {
    uint16_t place, stalled;
    uint32_t value; /* a CUresult, or what note was told */
};

struct trace {
    struct record *records;
    uint32_t count, room;
    bool compared;  /* records are the plain run's, to be compared with */
    uint32_t next;  /* the next of them */
    FILE *code;     /* where the program is printed as C, or NULL */
    uint64_t calls; /* made so far */
};

/* Threads that take turns have one, threads that run freely one each. */
extern struct trace traces[THREADS];
extern __thread struct trace *trace;

/* What may depend on what other threads do, or on how long things take. */
extern struct leniency {
    bool stalls; /* calls wait as it happens */
    bool errors; /* captures of other threads and full memory: nothing is compared, and every error
                  * that these bring about is allowed */
    bool memory; /* with errors: memory may run out */
} leniency;

enum comparison { SAME_RESULT, ANY_READINESS, MAY_HAVE_MEMORY };

/* Once, before the first call. */
void trace_open(void);

void trace_call_begins(void);

/* The result as the program shall take it: the plain run's. *undo: the call has succeeded and must
 * be undone. */
CUresult trace_call_ended(const char *name, unsigned int place, CUresult result,
                          enum comparison comparison, bool *undo);

/* A value that must be the same. */
void trace_note(const char *name, unsigned int place, uint64_t value);

/* The first difference: what it is. Any thread. */
__attribute__((format(printf, 1, 2))) void trace_fail(const char *format, ...);
bool trace_failed(void);
const char *trace_why(void);

/* Prints a line of C. */
__attribute__((format(printf, 1, 2))) void trace_say(const char *format, ...);

/* What is printed from now on is what this thread does next, in a thread that was joined and
 * started again if restarted. */
void trace_new_part(unsigned int thread, bool restarted);

/* What the threads that run freely have printed, by thread; what is printed from now on is what the
 * main thread does when they are over. */
void trace_new_threads(char *const *texts);

/* The printed program's beginning and end. */
void trace_print_begin(void);
void trace_print_end(void);

/* All flags are set from now on; run.c's. */
void set_all_flags(void);
/* The lock that the calling thread holds is free from now on. False: it holds none. run.c's. */
bool let_go_of_lock(void);

/* The result that the printed program expects; 999: any. */
unsigned int trace_shown(enum comparison comparison, CUresult result);

/* A call that is compared, in its spelling as C too. */
#ifdef __cppcheck__ /* it does not parse statements in expressions */
#define CALL_AS(comparison, undo, name, arguments, ...) (name arguments)
#else
#define CALL_AS(comparison, undo, name, arguments, ...)                                            \
    ({                                                                                             \
        trace_call_begins();                                                                       \
        CUresult result_ = name arguments;                                                         \
        CUresult shown_ = trace_call_ended(#name, __LINE__, result_, comparison, undo);            \
        if (trace->code) {                                                                         \
            trace_say("    expect(%u, " #name, trace_shown(comparison, shown_));                   \
            trace_say(__VA_ARGS__);                                                                \
            trace_say(");\n");                                                                     \
        }                                                                                          \
        shown_;                                                                                    \
    })
#endif
#define CALL(name, arguments, ...)  CALL_AS(SAME_RESULT, NULL, name, arguments, __VA_ARGS__)
#define QUERY(name, arguments, ...) CALL_AS(ANY_READINESS, NULL, name, arguments, __VA_ARGS__)
#define NOTE(value)                 trace_note(#value, __LINE__, value)

#endif
