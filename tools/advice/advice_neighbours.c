/*
 * The rules of advice about other processes on the devices (advice_rules.h).
 */
#include <stdio.h>

#include "advice_rules.h"
#include "core/base/readable.h"

/* A process that does not answer a demand is stopped or stuck. Its cached memory stays with it. */
bool neighbours_are_silent(const struct case_of_neighbours *at_hand, struct advice *advice)
{
    const struct report_neighbours *neighbours = &at_hand->neighbours;

    if (!is_a_tenth(neighbours->silent, neighbours->asked))
        return false;
    snprintf(
        advice->text, sizeof(advice->text),
        "Other processes were asked for memory %llu time%s, and %llu time%s one of them did "
        "not answer: it is stopped, or stuck, and what it caches stays with it. `cudapool top` "
        "shows who caches how much.",
        (unsigned long long)neighbours->asked, neighbours->asked == 1 ? "" : "s",
        (unsigned long long)neighbours->silent, neighbours->silent == 1 ? "" : "s");
    return true;
}

/* Returns half of a size. A number of bytes becomes whole MiB: 0 if it is less than 2 MiB. */
static struct byte_size half_of(const struct byte_size *size)
{
    struct byte_size half = {.bytes = size->bytes / 2 / MIB * MIB, .percent = size->percent / 2};

    return half;
}

/* The pool released memory so that neighbours.leave_free stays free. This program then lacks that
 * memory in its cache. */
bool much_is_left_free(const struct case_of_neighbours *at_hand, struct advice *advice)
{
    const struct report_exchange *left = &at_hand->neighbours.left;
    const struct byte_size *size = &at_hand->settings->neighbours.leave_free;
    struct byte_size half = half_of(size);
    char bytes[READABLE_BYTES];

    if (!is_a_tenth(left->bytes, at_hand->device_bytes))
        return false;
    readable_bytes(left->bytes, bytes);
    snprintf(advice->setting, sizeof(advice->setting), "neighbours.leave_free");
    spell_size(size, advice->from);
    spell_size(&half, advice->to);
    snprintf(advice->text, sizeof(advice->text),
             "%s went back to the driver, %llu time%s, because other processes grew and less than "
             "neighbours.leave_free was free. If they can do with less, lower it from %s to %s: "
             "more stays cached.",
             bytes, (unsigned long long)left->times, left->times == 1 ? "" : "s", advice->from,
             advice->to);
    return true;
}
