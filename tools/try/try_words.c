/*
 * Prints the result of `cudapool try` in words (try_words.h).
 */
#include "try_words.h"

#include <string.h>

#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "tools/advice/advice.h"
#include "tools/command/complaint.h"
#include "tools/command/no_report.h"

/* --- numbers ------------------------------------------------------------------------------------
 */

/* Writes "14" from 10 on, "2.6" from 1.1 on, and hundredths below 1.1, where they matter. */
static void spell_factor(double factor, char text[READABLE_BYTES])
{
    unsigned long long hundredths = (unsigned long long)(factor * 100 + 0.5);

    if (factor >= 10)
        snprintf(text, READABLE_BYTES, "%llu", (hundredths + 50) / 100);
    else if (factor >= 1.1)
        snprintf(text, READABLE_BYTES, "%llu.%llu", (hundredths + 5) / 100,
                 (hundredths + 5) / 10 % 10);
    else
        snprintf(text, READABLE_BYTES, "%llu.%02llu", hundredths / 100, hundredths % 100);
}

static unsigned percent(double part)
{
    return part < 0 ? 0 : part > 99 ? 9900 : (unsigned)(part * 100 + 0.5);
}

/* --- the table ----------------------------------------------------------------------------------
 */

static void print_row(const char *name, const struct times *times, int runs, const char *memory,
                      FILE *out)
{
    char median[READABLE_BYTES], least[READABLE_BYTES], most[READABLE_BYTES];
    char spread[READABLE_BYTES];

    readable_seconds(times->median, median);
    readable_seconds(times->least, least);
    readable_seconds(times->most, most);
    snprintf(spread, sizeof(spread), "%u %%", percent(times->spread));
    if (runs > 1)
        fprintf(out, "  %-16s  %11s  %5s  %8s  %8s  %18s\n", name, median, spread, least, most,
                memory);
    else
        fprintf(out, "  %-16s  %11s  %18s\n", name, median, memory);
}

static void print_table(const struct try *try, const struct comparison_of_times *times, FILE *out)
{
    char asked[READABLE_BYTES] = "-", taken[READABLE_BYTES] = "-";

    if (try_asked_for_memory(try)) {
        readable_bytes(try_counted(try).peak.live_bytes, asked);
        readable_bytes(try_served(try).peak.reserved_bytes, taken);
    }
    if (try->done > 1)
        fprintf(out, "  %-16s  %11s  %5s  %8s  %8s  %18s\n", "", "median time", "+-", "least",
                "most", "peak device memory");
    else
        fprintf(out, "  %-16s  %11s  %18s\n", "", "wall time", "peak device memory");
    print_row("without the pool", &times->without, try->done, asked, out);
    print_row("with the pool", &times->with, try->done, taken, out);
}

/* --- whether it is faster -----------------------------------------------------------------------
 */

/* Prints the time in the driver without and with the pool. */
static void print_driver_times(const struct try *try, FILE *out)
{
    char without[READABLE_BYTES], with[READABLE_BYTES], waited[READABLE_BYTES];
    struct report_counters off = try_counted(try), on = try_served(try);

    if (off.requests == 0)
        return;
    readable_time(off.driver.nanoseconds, without);
    readable_time(on.driver.nanoseconds, with);
    readable_time(on.waits.nanoseconds, waited);
    fprintf(out,
            "its allocations and frees of device memory took %s in the driver without the pool "
            "(all threads together); with it %s, and %s waiting for the GPU\n",
            without, with, waited);
}

static void print_no_difference(const struct try *try, FILE *out)
{
    char requests[READABLE_BYTES], driver[READABLE_BYTES], reason[NO_REPORT_BYTES];
    struct report_counters served = try_served(try);

    if (!try_asked_for_memory(try)) {
        explain_no_report(try->setup.program[0], reason);
        fprintf(out, "no difference: no process took memory from the pool: %s\n", reason);
        return;
    }
    readable_count(served.requests, requests);
    readable_time(try_counted(try).driver.nanoseconds, driver);
    fprintf(out,
            "no difference in time: it asked for memory %s time%s, which took %s in the driver "
            "without the pool\n",
            requests, served.requests == 1 ? "" : "s", driver);
}

static void print_factor(const struct try *try, const struct comparison_of_times *times, FILE *out)
{
    char factor[READABLE_BYTES];
    bool is_faster = times->speed == SPEED_FASTER;

    spell_factor(is_faster ? times->factor : 1 / times->factor, factor);
    fprintf(out, "%s times as %s", factor, is_faster ? "fast" : "slow");
    if (try->done > 1)
        fprintf(out, " (+-%u %%)\n", percent(times->spread));
    else
        fputs(" (one run of each: -n 3 says how much that is worth)\n", out);
    print_driver_times(try, out);
    if (!is_faster)
        fputs("what to do: leave the pool away here, unless the advice helps\n", out);
}

static void print_uncertainty(const struct try *try, const struct comparison_of_times *times,
                              FILE *out)
{
    double without = times->without.spread, with = times->with.spread;

    fprintf(out,
            "cannot tell: runs of one kind lie up to %u %% from their middle; try again with -n "
            "10, or where less else is going on\n",
            percent(without > with ? without : with));
    print_driver_times(try, out);
}

static void print_speed(const struct try *try, const struct comparison_of_times *times, FILE *out)
{
    if (times->speed == SPEED_NO_DIFFERENCE)
        print_no_difference(try, out);
    else if (times->speed == SPEED_UNCLEAR)
        print_uncertainty(try, times, out);
    else if (times->speed == SPEED_NOT_COMPARED)
        fputs("the times are not compared: the runs did not all end in the same way\n", out);
    else
        print_factor(try, times, out);
}

/* --- whether it does the same -------------------------------------------------------------------
 */

static void spell_end(const struct trial *trial, char text[REPORT_END_BYTES])
{
    struct report_exit exit = {
        .known = true, .status = trial->end.status, .signal = trial->end.signal};

    report_describe_end(REPORT_EXITED, exit, text);
    if (text[0] == '\0')
        snprintf(text, REPORT_END_BYTES, "exited with status 0");
}

/* Prints, for example, "exited with status 0 (2 runs), killed by SIGSEGV (1 run)". */
static void print_ends(const char *name, const struct trial *trials, int count, FILE *out)
{
    char end[REPORT_END_BYTES];
    const char *between = "";

    fprintf(out, "  %-16s  ", name);
    for (int i = 0; i < count; i++) {
        int before = 0, alike = 0;
        for (int j = 0; j < i; j++)
            before += trials_ended_alike(&trials[j], &trials[i]);
        for (int j = i; j < count; j++)
            alike += trials_ended_alike(&trials[j], &trials[i]);
        if (before > 0)
            continue;
        spell_end(&trials[i], end);
        fprintf(out, "%s%s (%d run%s)", between, end, alike, alike == 1 ? "" : "s");
        between = ", ";
    }
    fputc('\n', out);
}

static void print_last_words(const struct trial *trial, FILE *out)
{
    const char *words = trial->last_words;

    if (words == NULL)
        return;
    fputs("its stderr ended so:\n", out);
    while (*words != '\0') {
        const char *end = words + strcspn(words, "\n");
        char piece[PRINTABLE_BYTES];
        fputs("  | ", out);
        while (words < end) {
            take_printable(&words, piece);
            fputs(piece, out);
        }
        fputc('\n', out);
        words += *words == '\n';
    }
}

/* Prints the last words of the first run that failed. Runs with the pool are first. */
static void print_words_of_failure(const struct try *try, FILE *out)
{
    for (int i = 0; i < 2 * try->done; i++) {
        const struct trial *trial = i < try->done ? &try->with[i] : &try->without[i - try->done];
        if (trial->last_words != NULL) {
            print_last_words(trial, out);
            return;
        }
    }
    print_last_words(&try->counting, out);
}

static void print_all_ends(const struct try *try, FILE *out)
{
    print_ends("without the pool", try->without, try->done, out);
    print_ends("switched off", &try->counting, 1, out);
    print_ends("with the pool", try->with, try->done, out);
    print_words_of_failure(try, out);
}

static const char *kind_of(const struct try *try, const struct trial *trial)
{
    if (trial == &try->counting)
        return "switched off";
    return trial >= try->with && trial < try->with + try->done ? "with" : "without";
}

static void print_output_lines(const struct try *try, const struct judgement *judgement, FILE *out)
{
    const struct output_difference *difference = &judgement->difference;
    const struct trial *runs[2] = {judgement->one, judgement->other};

    fprintf(out, "line %zu of its output:\n", difference->line);
    for (int i = 0; i < 2; i++) {
        fprintf(out, "  %-12s  ", kind_of(try, runs[i]));
        print_printable(difference->is_there[i] ? difference->text[i] : "(no such line)", out);
        fputc('\n', out);
    }
}

static void print_differences(const struct try *try, const struct judgement *judgement, FILE *out)
{
    if (judgement->in_end)
        print_all_ends(try, out);
    if (judgement->in_output)
        print_output_lines(try, judgement, out);
}

/* Some programs rely on cudaFree waiting for the GPU. The pool's free usually leaves this wait
 * out. */
static void print_waiting(const struct judgement *judgement, FILE *out)
{
    if (judgement->with_waits == WAITING_SAME)
        fputs("with device.free_synchronizes it is the same: the program leans on cudaFree's wait "
              "for the GPU; use cudapool run --set device.free_synchronizes=true\n",
              out);
    else if (judgement->with_waits == WAITING_DIFFERS)
        fputs("nor is it the same with device.free_synchronizes: run it without the pool\n", out);
}

static void print_difference_with_pool(const struct try *try, const struct judgement *judgement,
                                       FILE *out)
{
    fprintf(out, "it does something else with the pool: %s (%d pairs of runs)\n",
            judgement->in_end ? "it ends in another way" : "its output differs", try->done);
    print_differences(try, judgement, out);
    if (judgement->off_differs)
        fputs("it does not do the same with the pool switched off either: it is not the pool's "
              "memory that makes the difference\n",
              out);
    else if (!try_took_memory(try))
        fputs("no process took memory from the pool: it is not the pool's memory that makes the "
              "difference\n",
              out);
    print_waiting(judgement, out);
}

static void print_difference_from_itself(const struct try *try, const struct judgement *judgement,
                                         FILE *out)
{
    bool may_be_the_pool = judgement->only_with_pool && try_took_memory(try);

    fprintf(out, "the program differs from itself, in its %s%s\n",
            judgement->in_end ? "exit status" : "output",
            may_be_the_pool ? ": with the pool, and not each time"
                            : ": that says nothing about the pool");
    print_differences(try, judgement, out);
    fputs(may_be_the_pool ? "what to do: try again with -n 10, and then with --set "
                            "device.free_synchronizes=true\n"
                          : "what to do: try again with -n 10, and with --warm-up 1 where only a "
                            "first run is different\n",
          out);
}

static void print_failure(const struct try *try)
{
    char end[REPORT_END_BYTES];

    spell_end(&try->without[0], end);
    complain("try: the program failed in each of its %d runs: %s", 2 * try->done + 1, end);
    print_words_of_failure(try, stderr);
}

static void print_result(const struct try *try, const struct judgement *judgement, FILE *out)
{
    if (judgement->result == TRY_SAME)
        fputs("exited with status 0 each time, and the same output\n", out);
    else if (judgement->result == TRY_DIFFERS_WITH_POOL)
        print_difference_with_pool(try, judgement, out);
    else
        print_difference_from_itself(try, judgement, out);
}

void try_print(const struct try *try, const struct judgement *judgement,
               const struct comparison_of_times *times, FILE *out)
{
    if (judgement->result == TRY_FAILS) {
        print_failure(try);
        return;
    }
    print_table(try, times, out);
    print_speed(try, times, out);
    print_result(try, judgement, out);
    print_advice(&try->with[try->done - 1].summary, out);
}
