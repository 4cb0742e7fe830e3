/*
 * Vector clocks and chains of the race detector. Under sim.lock.
 */
#include <stdlib.h>
#include <string.h>

#include "race_detector.h"

/* Chains, from 1 on; a host's chain has only the host's accesses. */
static struct {
    struct chain {
        uint64_t end;
        bool of_host;
    } * all;
    uint32_t count, room;
} chains;

struct clock *clock_hold(struct clock *clock)
{
    if (clock != NULL)
        clock->references++;
    return clock;
}

void clock_drop(struct clock *clock)
{
    if (clock != NULL && --clock->references == 0)
        free(clock);
}

/* Makes the variable's clock its own, with room for so many chains. */
static struct clock *own(struct clock **clock, uint32_t count)
{
    struct clock *before = *clock, *after;
    uint32_t known = before != NULL ? before->count : 0;
    if (before != NULL && before->references == 1 && known >= count)
        return before;
    count = count > known ? (count + 7) / 8 * 8 : known;
    after = calloc(1, sizeof *after + count * sizeof *after->at);
    if (after == NULL)
        abort();
    after->references = 1;
    after->count = count;
    if (known > 0)
        memcpy(after->at, before->at, known * sizeof *after->at);
    clock_drop(before);
    *clock = after;
    return after;
}

static bool is_within(const struct clock *clock, const struct clock *other)
{
    for (uint32_t i = 0; i < clock->count; i++)
        if (clock->at[i] > (i < other->count ? other->at[i] : 0))
            return false;
    return true;
}

void clock_join(struct clock **clock, const struct clock *other)
{
    struct clock *joined;
    if (other == NULL || other == *clock || (*clock != NULL && is_within(other, *clock)))
        return;
    joined = own(clock, other->count);
    for (uint32_t i = 0; i < other->count; i++)
        if (joined->at[i] < other->at[i])
            joined->at[i] = other->at[i];
}

void clock_add(struct clock **clock, struct point point)
{
    if (point.chain == 0 || clock_knows(*clock, point))
        return;
    own(clock, point.chain + 1)->at[point.chain] = point.number;
}

bool clock_knows(const struct clock *clock, struct point point)
{
    return point.number == 0 ||
           (clock != NULL && point.chain < clock->count && clock->at[point.chain] >= point.number);
}

bool clocks_know(const struct clock *clock, const struct clock *a, const struct clock *b,
                 const struct clock *c)
{
    for (uint32_t i = 1; clock != NULL && i < clock->count; i++) {
        struct point point = {.chain = i, .number = clock->at[i]};
        /* A clock may have room for chains that are not there yet. */
        bool counts = point.number != 0 && !chains.all[i].of_host;
        if (counts && !clock_knows(a, point) && !clock_knows(b, point) && !clock_knows(c, point))
            return false;
    }
    return true;
}

static bool can_go_on(uint32_t chain, bool of_host, const struct clock *clock)
{
    return chains.all[chain].of_host == of_host &&
           clock_knows(clock, (struct point){.chain = chain, .number = chains.all[chain].end});
}

static uint32_t new_chain(bool of_host)
{
    if (chains.count == chains.room) {
        chains.room = chains.room == 0 ? 64 : 2 * chains.room;
        chains.all = realloc(chains.all, chains.room * sizeof *chains.all);
        if (chains.all == NULL)
            abort();
    }
    if (chains.count == 0)
        chains.count = 1;
    chains.all[chains.count] = (struct chain){.of_host = of_host};
    return chains.count++;
}

struct point next_point(uint32_t chain, bool of_host, const struct clock *clock)
{
    if (chain == 0 || !can_go_on(chain, of_host, clock)) {
        chain = 1;
        while (chain < chains.count && !can_go_on(chain, of_host, observed))
            chain++;
        if (chain >= chains.count)
            chain = new_chain(of_host);
    }
    return (struct point){.chain = chain, .number = ++chains.all[chain].end};
}
