/*
 * Of which devices processes had memory that have ended (board_slot.h).
 *
 * Whoever finds an end clears the slot, and all others may want the memory: so the time stands in
 * the file. Several may write a record at once, and mix two devices: then somebody waits a moment
 * for nothing, or is refused what was on its way.
 *
 * Part of the preload object: libc only.
 */
#include "board_slot.h"
#include "core/base/clock.h"

/* The device's record, or else the oldest. */
static struct board_ended *find_record(struct board_map *map, const uint64_t uuid[2])
{
    struct board_ended *oldest = &map->header.ended[0];
    for (unsigned i = 0; i < BOARD_ENDED; i++) {
        struct board_ended *ended = &map->header.ended[i];
        if (board_is_uuid(ended->uuid, uuid))
            return ended;
        if (atomic_load_explicit(&ended->at, memory_order_relaxed) <
            atomic_load_explicit(&oldest->at, memory_order_relaxed))
            oldest = ended;
    }
    return oldest;
}

static void note_end(struct board_map *map, const uint64_t uuid[2])
{
    struct board_ended *ended = find_record(map, uuid);
    for (unsigned i = 0; i < 2; i++)
        atomic_store_explicit(&ended->uuid[i], uuid[i], memory_order_relaxed);
    /* Pairs with the load in board_end_of. */
    atomic_store_explicit(&ended->at, monotonic_now(), memory_order_release);
}

void board_slot_end(struct board_map *map, unsigned slot)
{
    struct board_slot *its = &map->slots[slot];
    uint32_t count = atomic_load_explicit(&its->device_count, memory_order_acquire);
    /* How much it had nobody knows: what it freed last it has not told. */
    for (uint32_t i = 0; i < count && i < BOARD_DEVICES; i++) {
        uint64_t uuid[2] = {atomic_load_explicit(&its->devices[i].uuid[0], memory_order_relaxed),
                            atomic_load_explicit(&its->devices[i].uuid[1], memory_order_relaxed)};
        note_end(map, uuid);
    }
    /* After the notes: whoever sees that nobody has the slot sees them. */
    board_slot_clear(its);
}

uint64_t board_end_of(const struct board_map *map, const uint64_t uuid[2])
{
    for (unsigned i = 0; i < BOARD_ENDED; i++) {
        /* Pairs with the store in note_end. */
        uint64_t at = atomic_load_explicit(&map->header.ended[i].at, memory_order_acquire);
        if (at && board_is_uuid(map->header.ended[i].uuid, uuid))
            return at;
    }
    return 0;
}
