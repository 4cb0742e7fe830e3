/*
 * Decides whether a program is faster with the pool (try_times.h). It compares medians. The spread
 * of runs of one kind says how reliable a difference is.
 */
#include "try_times.h"

#include <stdlib.h>

/* Two medians that differ by less cannot be told apart. LEAST_DIFFERENCE_OF_ONE is for one run of
 * each kind. */
#define LEAST_DIFFERENCE        0.01
#define LEAST_DIFFERENCE_OF_ONE 0.1 /* one run shows no spread */

/* Limits for a difference that the cost of memory calls does not explain. The difference must be at
 * least the first. Unless it exceeds the spread, every run of one kind must be faster than all of
 * the other by the second, a factor. */
#define LEAST_DIFFERENCE_UNEXPLAINED 0.1
#define LEAST_GAP_UNEXPLAINED        2

/* With a larger spread, no difference can be ruled out. */
#define MOST_SPREAD 0.1

static int compare_seconds(const void *one, const void *other)
{
    const struct trial *a = *(const struct trial *const *)one;
    const struct trial *b = *(const struct trial *const *)other;

    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

static struct times times_of(const struct trial *trials, int count)
{
    const struct trial **sorted = calloc((size_t)count, sizeof(struct trial *));
    struct times times = {0};

    if (sorted == NULL)
        return times;
    for (int i = 0; i < count; i++)
        sorted[i] = &trials[i];
    qsort(sorted, (size_t)count, sizeof(struct trial *), compare_seconds);
    times.median = (sorted[(count - 1) / 2]->seconds + sorted[count / 2]->seconds) / 2;
    times.least = sorted[0]->seconds;
    times.most = sorted[count - 1]->seconds;
    if (times.median > 0)
        times.spread = (times.most - times.least) / 2 / times.median;
    free(sorted);
    return times;
}

/* Returns the factor by which every run of one kind was faster than every run of the other. It is
 * at most 1 if the two kinds overlap. */
static double gap_between(const struct times *one, const struct times *other)
{
    double there = one->most > 0 ? other->least / one->most : 0;
    double back = other->most > 0 ? one->least / other->most : 0;

    return there > back ? there : back;
}

/* Whether the time of memory calls, without and with the pool, can explain a difference. */
static bool can_matter(const struct try *try, const struct times *without)
{
    struct report_counters off = try_counted(try), on = try_served(try);
    double nanoseconds = (double)off.driver.nanoseconds + (double)on.driver.nanoseconds +
                         (double)on.waits.nanoseconds + (double)on.saved_at_least_nanoseconds;

    return nanoseconds / 1e9 > LEAST_DIFFERENCE * without->median;
}

/* Whether the difference is hardly due to chance. */
static bool is_certain(const struct try *try, const struct comparison_of_times *times, bool matters)
{
    double factor = times->factor, spread = times->spread;
    double gap = gap_between(&times->without, &times->with);
    bool beyond = spread <= 0.5 && (factor > 1 + spread || factor < 1 - spread);

    if (matters)
        return gap > 1 || beyond;
    return try->done > 1 && ((gap > 1 && beyond) || gap >= LEAST_GAP_UNEXPLAINED);
}

static enum try_speed speed_of(const struct try *try, const struct comparison_of_times *times)
{
    double factor = times->factor;
    bool matters = can_matter(try, &times->without);
    double least = !matters         ? LEAST_DIFFERENCE_UNEXPLAINED
                   : try->done == 1 ? LEAST_DIFFERENCE_OF_ONE
                                    : LEAST_DIFFERENCE;

    if (!try_asked_for_memory(try))
        return SPEED_NO_DIFFERENCE;
    if (is_certain(try, times, matters) && (factor >= 1 + least || factor <= 1 - least))
        return factor > 1 ? SPEED_FASTER : SPEED_SLOWER;
    return matters && times->spread > MOST_SPREAD ? SPEED_UNCLEAR : SPEED_NO_DIFFERENCE;
}

void try_compare_times(const struct try *try, const struct judgement *judgement,
                       struct comparison_of_times *times)
{
    *times = (struct comparison_of_times){
        .without = times_of(try->without, try->done),
        .with = times_of(try->with, try->done),
        .factor = 1,
    };
    if (times->with.median > 0)
        times->factor = times->without.median / times->with.median;
    /* The two medians may err in opposite directions, so the spreads add up. */
    times->spread = times->without.spread + times->with.spread;
    if (!judgement->in_end)
        times->speed = speed_of(try, times);
}

/* --- memory -------------------------------------------------------------------------------------
 */

struct report_counters try_counted(const struct try *try)
{
    return summary_totals(&try->counting.summary);
}

struct report_counters try_served(const struct try *try)
{
    struct report_counters served = summary_totals(&try->with[try->done - 1].summary);

    for (int i = 0; i < try->done; i++) {
        struct report_counters totals = summary_totals(&try->with[i].summary);
        if (totals.peak.reserved_bytes > served.peak.reserved_bytes)
            served.peak.reserved_bytes = totals.peak.reserved_bytes;
        if (totals.peak.live_bytes > served.peak.live_bytes)
            served.peak.live_bytes = totals.peak.live_bytes;
    }
    return served;
}
