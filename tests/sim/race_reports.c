/*
 * What the race detector has to say: reports as they arise, a summary when the process ends.
 * Under sim.lock.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "race_detector.h"

/* Findings beyond so many are counted only. */
enum { MOST_REPORTS = 40 };

static struct simcuda_findings findings;
static unsigned int reports;
static char report[2048];
static size_t report_length;

static void start_report(void)
{
    report_length = 0;
    report[0] = '\0';
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list arguments;
    int length;
    va_start(arguments, format);
    length = vsnprintf(report + report_length, sizeof report - report_length, format, arguments);
    va_end(arguments);
    report_length += (size_t)length;
    if (report_length >= sizeof report)
        report_length = sizeof report - 1;
}

static void put(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(sim.settings.races, text, length);
        if (written <= 0)
            return;
        text += written;
        length -= (size_t)written;
    }
}

static void finish_report(void)
{
    if (reports++ < MOST_REPORTS)
        put(report, report_length);
}

static void say_operation(const char *role, const struct origin *origin)
{
    if (origin->host) {
        say("  %s: %s by the host, in thread %llu\n", role, origin->what,
            (unsigned long long)origin->thread);
        return;
    }
    say("  %s: %s, operation %llu%s%s, on %s stream %llu of context %llu, submitted by thread "
        "%llu\n",
        role, origin->what, (unsigned long long)origin->number,
        origin->in_graph ? ", of a graph launched" : "",
        origin->early ? ", launched with programmatic stream serialization" : "",
        origin->legacy       ? "the legacy"
        : origin->per_thread ? "the thread's own"
        : origin->blocking   ? "blocking"
                             : "non-blocking",
        (unsigned long long)origin->stream, (unsigned long long)origin->context,
        (unsigned long long)origin->thread);
}

static void say_allocation(const struct range *range, const struct tenancy *tenancy)
{
    say("    %s [%#llx, %#llx) of allocation %llu (the program's %llu-th): %#llx, %llu bytes, "
        "context %llu\n",
        range->written ? "writes" : "reads", (unsigned long long)range->begin,
        (unsigned long long)range->end, (unsigned long long)tenancy->id,
        (unsigned long long)tenancy->serial, (unsigned long long)tenancy->base,
        (unsigned long long)tenancy->bytes, (unsigned long long)tenancy->context);
}

static void say_missing_edge(const struct origin *first, const struct origin *second)
{
    unsigned long long number = first->number;
    if (first->host) {
        say("  missing: whatever orders thread %llu's access before the second use's submission\n",
            (unsigned long long)first->thread);
        return;
    }
    if (second->early && first->stream == second->stream) {
        say("  missing: the second starts early, beside operation %llu before it in its stream: "
            "a context barrier, or an end of it that the host observed\n",
            number);
        return;
    }
    say("  missing: %s query or synchronise that covers operation %llu and said that it is over",
        second->host ? "a" : "before the second was submitted, a", number);
    if (!second->host)
        say("; or, ahead of the second in stream %llu, a wait for an event recorded after "
            "operation %llu in stream %llu",
            (unsigned long long)second->stream, number, (unsigned long long)first->stream);
    if (!second->host)
        say("; or a barrier over context %llu for a fence over context %llu recorded after it",
            (unsigned long long)second->context, (unsigned long long)first->context);
    say("\n");
}

void report_conflict(const struct tenancy *first, const struct use *use,
                     const struct tenancy *second, const struct range *range,
                     const struct origin *origin)
{
    start_report();
    if (use->left_behind) {
        findings.program_errors++;
        say("simcuda races: the program's error: allocation %llu was freed while it was in use, "
            "and the free does not wait for this use\n",
            (unsigned long long)first->id);
    } else {
        findings.hazards++;
        say("simcuda races: hazard %llu: memory was given out again while it was in use\n",
            (unsigned long long)findings.hazards);
    }
    say_operation("first", &use->origin);
    say_allocation(&use->range, first);
    say_operation("second", origin);
    say_allocation(range, second);
    say_missing_edge(&use->origin, origin);
    finish_report();
}

void report_use_after_free(const struct tenancy *tenancy, const struct range *range,
                           const struct origin *origin)
{
    findings.program_errors++;
    start_report();
    say("simcuda races: the program's error: allocation %llu is used after the program freed it\n",
        (unsigned long long)tenancy->id);
    say_operation("use", origin);
    say_allocation(range, tenancy);
    finish_report();
}

void report_before_allocation(const struct tenancy *tenancy, const struct origin *origin)
{
    findings.program_errors++;
    start_report();
    say("simcuda races: the program's error: allocation %llu is used where nothing orders the use "
        "after the allocation, which is another stream's\n",
        (unsigned long long)tenancy->id);
    say_operation("use", origin);
    finish_report();
}

void report_reached_late(const struct tenancy *live, const struct range *range,
                         const struct origin *origin)
{
    findings.hazards++;
    start_report();
    say("simcuda races: hazard %llu: memory was given out again before a host function that uses "
        "it had run\n",
        (unsigned long long)findings.hazards);
    say_operation("use", origin);
    say_allocation(range, live);
    finish_report();
}

void report_given_to_another(const struct tenancy *live, const struct range *range,
                             const struct origin *origin)
{
    findings.hazards++;
    start_report();
    say("simcuda races: hazard %llu: a graph uses memory that was given to someone else\n",
        (unsigned long long)findings.hazards);
    say_operation("use", origin);
    say_allocation(range, live);
    finish_report();
}

void report_given_out_twice(const struct tenancy *live, uint64_t base, uint64_t bytes, uint64_t id)
{
    findings.hazards++;
    start_report();
    say("simcuda races: hazard %llu: memory was given out twice: allocation %llu at %#llx, %llu "
        "bytes, overlaps the live allocation %llu at %#llx, %llu bytes\n",
        (unsigned long long)findings.hazards, (unsigned long long)id, (unsigned long long)base,
        (unsigned long long)bytes, (unsigned long long)live->id, (unsigned long long)live->base,
        (unsigned long long)live->bytes);
    finish_report();
}

void report_lost_progress(const char *what, const struct op *op)
{
    findings.lost_progress++;
    start_report();
    say("simcuda races: lost progress: in a call of the program in thread %llu %s for work that "
        "the plain driver has not waited for: what is over with operation %llu, of context %llu\n",
        (unsigned long long)this_thread()->id, what, (unsigned long long)op->number,
        (unsigned long long)op->context_id);
    finish_report();
}

void count_operation(void)
{
    findings.operations++;
}

void count_allocation(void)
{
    findings.allocations++;
}

void simcuda_findings(struct simcuda_findings *copy)
{
    pthread_mutex_lock(&sim.lock);
    *copy = findings;
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_last_report(char *text, uint64_t bytes)
{
    pthread_mutex_lock(&sim.lock);
    if (bytes > 0)
        snprintf(text, bytes, "%s", report);
    pthread_mutex_unlock(&sim.lock);
}

__attribute__((destructor)) static void summarise(void)
{
    char line[200];
    int length;
    if (!races_on || sim.forked)
        return;
    length = snprintf(line, sizeof line,
                      "simcuda races: %llu hazards, %llu operations, %llu allocations, %llu errors "
                      "of the program, %llu waits that the plain driver does not make\n",
                      (unsigned long long)findings.hazards, (unsigned long long)findings.operations,
                      (unsigned long long)findings.allocations,
                      (unsigned long long)findings.program_errors,
                      (unsigned long long)findings.lost_progress);
    put(line, (size_t)length);
}
