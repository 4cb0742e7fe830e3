/*
 * Memory that graphs go on using although the program has freed it, since captures have seen it: is
 * it still theirs when they are launched?
 */
#include <stdlib.h>

#include "race_detector.h"

/* Allocations that captures may have seen, whose memory someone else was given since. */
static struct {
    uint64_t *serials;
    size_t count, room;
} given;

void race_captured(struct work *work)
{
    for (unsigned int i = 0; i < work->range_count; i++) {
        const struct tenancy *tenancy = tenancy_around(work->ranges[i].begin);
        work->ranges[i].captured_of = tenancy != NULL ? tenancy->serial : 0;
    }
}

bool graph_may_use_freed(const struct tenancy *freed, const struct range *range)
{
    return freed->graphs && range->captured_of == freed->serial &&
           allocation_at(range->begin) != NULL;
}

void memory_of_graphs_given(const struct tenancy *freed)
{
    if (!freed->graphs || was_given_by_graphs(freed->serial))
        return;
    if (given.count == given.room) {
        given.room = given.room > 0 ? 2 * given.room : 16;
        given.serials = realloc(given.serials, given.room * sizeof *given.serials);
        if (given.serials == NULL)
            abort();
    }
    given.serials[given.count++] = freed->serial;
}

bool was_given_by_graphs(uint64_t serial)
{
    for (size_t i = given.count; serial != 0 && i > 0; i--)
        if (given.serials[i - 1] == serial)
            return true;
    return false;
}
