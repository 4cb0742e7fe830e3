/*
 * Records the devices on which processes had memory when they ended (board_slot.h).
 *
 * The process that detects an end clears the slot of the ended process. All other processes may
 * want the memory too. So the shared file records each device with the time of the end. Several
 * processes may write a record at once and mix two devices. A reader of such a record waits a
 * moment needlessly, or is refused memory that was about to become free.
 *
 * Part of the preload object: libc only.
 */
#include "board_slot.h"
#include "core/base/clock.h"

/* Returns the device's record, or the oldest record if the device has none. */
static struct board_ended *find_record(struct board_map *map, const uint64_t uuid[2])
{
    struct board_ended *oldest = &map->header.ended[0];
    for (unsigned i = 0; i < BOARD_ENDED; i++) {
        struct board_ended *ended = &map->header.ended[i];
        if (board_uuid_equals(ended->uuid, uuid))
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
    /* Pairs with the acquire load in board_uuid_ended. */
    atomic_store_explicit(&ended->at, monotonic_now(), memory_order_release);
}

void board_slot_end(struct board_map *map, unsigned slot)
{
    struct board_slot *its = &map->slots[slot];
    uint32_t count = atomic_load_explicit(&its->device_count, memory_order_acquire);
    /* Notes every device of the slot, even one without published cached bytes. The ended process
     * may not have published its last frees. */
    for (uint32_t i = 0; i < count && i < BOARD_DEVICES; i++) {
        uint64_t uuid[2] = {atomic_load_explicit(&its->devices[i].uuid[0], memory_order_relaxed),
                            atomic_load_explicit(&its->devices[i].uuid[1], memory_order_relaxed)};
        note_end(map, uuid);
    }
    /* After the notes: a process that sees the free slot also sees the notes. */
    board_slot_clear(its);
}

uint64_t board_uuid_ended(const struct board_map *map, const uint64_t uuid[2])
{
    for (unsigned i = 0; i < BOARD_ENDED; i++) {
        /* Pairs with the release store in note_end. */
        uint64_t at = atomic_load_explicit(&map->header.ended[i].at, memory_order_acquire);
        if (at && board_uuid_equals(map->header.ended[i].uuid, uuid))
            return at;
    }
    return 0;
}
