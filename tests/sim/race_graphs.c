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

/* --- what captured streams allocate ------------------------------------------------------------*/

static struct tenancy *captured; /* through right */

static bool overlap(const struct tenancy *tenancy, uint64_t begin, uint64_t end)
{
    return tenancy->base < end && tenancy->end > begin;
}

static struct tenancy *captured_around(uint64_t address)
{
    struct tenancy *tenancy = captured;
    while (tenancy != NULL && !(tenancy->live && overlap(tenancy, address, address + 1)))
        tenancy = tenancy->right;
    return tenancy;
}

void captured_allocated(uint64_t address, uint64_t bytes, uint64_t id, uint64_t serial)
{
    const struct allocation *block = allocation_at(address);
    struct tenancy *tenancy;
    if (block == NULL || block->kind != MEMORY_DEVICE)
        return;
    tenancy = captured_around(address);
    if (tenancy != NULL)
        report_given_out_twice(tenancy, address, bytes, id);
    tenancy = calloc(1, sizeof *tenancy);
    if (tenancy == NULL)
        abort();
    *tenancy = (struct tenancy){.base = address,
                                .end = address + bytes,
                                .bytes = bytes,
                                .serial = serial,
                                .id = id,
                                .live = true,
                                .right = captured};
    captured = tenancy;
    count_allocation();
}

void captured_freed(uint64_t address)
{
    struct tenancy *tenancy = captured_around(address);
    if (tenancy != NULL)
        tenancy->live = false;
}

void compare_with_captured(const struct tenancy *live, const struct beginning *beginning)
{
    for (struct tenancy *other = captured; other != NULL; other = other->right)
        if (other != live && overlap(other, live->base, live->end))
            compare_uses(other, live, beginning);
}

bool use_captured(const struct beginning *beginning)
{
    uint64_t serial = beginning->range->captured_of;
    struct tenancy *tenancy = serial != 0 ? captured : NULL;
    while (tenancy != NULL && tenancy->serial != serial)
        tenancy = tenancy->right;
    if (tenancy == NULL)
        return false;
    if (tenancy->forgotten)
        report_given_to_another(tenancy, beginning->range, beginning->origin);
    compare_with_captured(tenancy, beginning);
    record_use(tenancy, beginning);
    return true;
}

void captured_memory_given(uint64_t begin, uint64_t end)
{
    for (struct tenancy *tenancy = captured; tenancy != NULL; tenancy = tenancy->right)
        if (overlap(tenancy, begin, end))
            tenancy->forgotten = true;
}

void forget_captured(uint64_t begin, uint64_t end)
{
    struct tenancy **link = &captured;
    while (*link != NULL) {
        struct tenancy *tenancy = *link;
        if (!overlap(tenancy, begin, end)) {
            link = &tenancy->right;
            continue;
        }
        *link = tenancy->right;
        while (tenancy->uses != NULL) {
            struct use *use = tenancy->uses;
            tenancy->uses = use->next;
            free(use);
        }
        free(tenancy);
    }
}

/* --- what captures have seen -------------------------------------------------------------------*/

void race_captured(struct work *work)
{
    for (unsigned int i = 0; i < work->range_count; i++) {
        const struct tenancy *own = captured_around(work->ranges[i].begin);
        if (own != NULL) {
            work->ranges[i].captured_of = own->serial;
            continue;
        }
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
