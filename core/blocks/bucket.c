#include "bucket.h"

#include "core/base/lines.h"

#define SLOTS_AT_FIRST 32u

/* Allocates whole pairs of cache lines, since a line is fetched together with its neighbour. So
 * sets that different threads use share no line. */
static bool grow(struct bucket_set *set)
{
    uint32_t count = set->slot_count ? 2 * set->slot_count : SLOTS_AT_FIRST;
    struct bucket **slots = allocate_apart(2 * LINE_BYTES, count * sizeof(struct bucket *));
    if (!slots)
        return false;
    for (uint32_t i = 0; i < set->slot_count; i++)
        if (set->slots[i])
            *bucket_slot(slots, count, set->slots[i]->bytes) = set->slots[i];
    free_apart(set->slots);
    set->slots = slots;
    set->slot_count = count;
    return true;
}

bool bucket_set_make_room(struct bucket_set *set)
{
    return set->count < BUCKETS_MAX && (2 * set->count < set->slot_count || grow(set));
}

void bucket_set_add(struct bucket_set *set, struct bucket *bucket)
{
    bucket->next = set->first;
    set->first = bucket;
    *bucket_slot(set->slots, set->slot_count, bucket->bytes) = bucket;
    set->count++;
}
