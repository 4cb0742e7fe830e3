/*
 * Decides whether a program does the same with the pool (try_judgement.h).
 *
 * A program may differ from itself. Its behaviour with the pool then says nothing about the pool.
 * So the runs of each kind are compared with each other first, and the two kinds only if those runs
 * agree.
 */
#include "try_judgement.h"

static bool ended_alike(const struct trial *trials, int count)
{
    for (int i = 1; i < count; i++)
        if (!trials_ended_alike(&trials[0], &trials[i]))
            return false;
    return true;
}

static bool none_ended_like(const struct trial *one, const struct trial *trials, int count)
{
    for (int i = 0; i < count; i++)
        if (trials_ended_alike(one, &trials[i]))
            return false;
    return true;
}

static void judge_ends(const struct try *try, struct judgement *judgement)
{
    const struct trial *first = &try->without[0];
    bool plain_alike = ended_alike(try->without, try->done);
    bool off_alike = trials_ended_alike(first, &try->counting);
    bool pool_alike = ended_alike(try->with, try->done) && trials_ended_alike(first, &try->with[0]);

    judgement->off_differs = !off_alike;
    judgement->in_end = !plain_alike || !off_alike || !pool_alike;
    judgement->only_with_pool = plain_alike && off_alike && !pool_alike;
    if (plain_alike && none_ended_like(first, try->with, try->done))
        judgement->result = TRY_DIFFERS_WITH_POOL;
    else if (judgement->in_end)
        judgement->result = TRY_DIFFERS_FROM_ITSELF;
    else if (trial_failed(first))
        judgement->result = TRY_FAILS;
}

/* Only the first difference is reported. */
static void note_difference(const struct try *try, struct judgement *judgement,
                            const struct trial *other, const struct output_difference *difference)
{
    if (judgement->in_output)
        return;
    judgement->in_output = true;
    judgement->difference = *difference;
    judgement->one = &try->without[0];
    judgement->other = other;
}

/* Compares the outputs of the runs without the pool. This also finds the lines that vary by
 * themselves. */
static void judge_plain_outputs(const struct try *try, struct output_reference *reference,
                                struct judgement *judgement)
{
    struct output_difference difference;

    for (int i = 1; i < try->done; i++)
        if (output_differs(reference, &try->without[i].output, true, &difference)) {
            judgement->output_varies = true;
            note_difference(try, judgement, &try->without[i], &difference);
        }
}

/* Notes the output of a run with the pool that ended in another way. */
static void look_at_its_output(const struct try *try, struct output_reference *reference,
                               struct judgement *judgement)
{
    struct output_difference difference;

    if (output_differs(reference, &try->with[0].output, false, &difference))
        note_difference(try, judgement, &try->with[0], &difference);
}

/* Compares the outputs of runs that all ended well and wrote the same without the pool. */
static void judge_pool_outputs(const struct try *try, struct output_reference *reference,
                               struct judgement *judgement)
{
    struct output_difference difference, off;
    bool off_differs = output_differs(reference, &try->counting.output, true, &off);
    int others = 0;

    for (int i = 0; i < try->done; i++)
        if (output_differs(reference, &try->with[i].output, false, &difference)) {
            others++;
            note_difference(try, judgement, &try->with[i], &difference);
        }
    if (off_differs)
        note_difference(try, judgement, &try->counting, &off);
    judgement->off_differs = off_differs;
    judgement->only_with_pool = others > 0 && !off_differs;
    if (others == try->done)
        judgement->result = TRY_DIFFERS_WITH_POOL;
    else if (others > 0 || off_differs)
        judgement->result = TRY_DIFFERS_FROM_ITSELF;
}

/* Compares the runs with frees that wait with those without the pool. */
static void judge_waiting(const struct try *try, struct output_reference *reference,
                          struct judgement *judgement)
{
    struct output_difference ignored;

    if (try->waiting_done == 0)
        return;
    judgement->with_waits = WAITING_SAME;
    for (int i = 0; i < try->waiting_done; i++)
        if (!trials_ended_alike(&try->without[0], &try->waiting[i]) ||
            output_differs(reference, &try->waiting[i].output, false, &ignored))
            judgement->with_waits = WAITING_DIFFERS;
}

static void judge(const struct try *try, struct output_reference *reference,
                  struct judgement *judgement)
{
    judge_ends(try, judgement);
    judge_plain_outputs(try, reference, judgement);
    if (judgement->result == TRY_SAME && judgement->output_varies)
        judgement->result = TRY_DIFFERS_FROM_ITSELF;
    else if (judgement->result == TRY_SAME)
        judge_pool_outputs(try, reference, judgement);
    else if (judgement->result == TRY_DIFFERS_WITH_POOL)
        look_at_its_output(try, reference, judgement);
    judge_waiting(try, reference, judgement);
}

int try_judge(const struct try *try, struct judgement *judgement)
{
    struct output_reference reference;
    int status = output_reference_make(&try->setup.kept, &try->without[0].output, &reference);

    *judgement = (struct judgement){.result = TRY_SAME};
    if (status == 0)
        judge(try, &reference, judgement);
    output_reference_free(&reference);
    return status;
}

/* --- whether the pool was used -----------------------------------------------------------------
 */

bool try_asked_for_memory(const struct try *try)
{
    for (int i = 0; i < try->done; i++)
        if (summary_totals(&try->with[i].summary).requests > 0)
            return true;
    return false;
}

bool try_took_memory(const struct try *try)
{
    for (int i = 0; i < try->done; i++) {
        struct report_counters totals = summary_totals(&try->with[i].summary);
        if (report_all_hits(&totals) + totals.misses > 0)
            return true;
    }
    return false;
}
