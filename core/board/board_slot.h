/*
 * Reading slots, one's own and those of strangers.
 *
 * Any process of the user may write anything into any slot. So what is read is copied once, limited
 * to what is possible, and nothing is found by an index from there that has not been checked. Sums
 * end at UINT64_MAX.
 */
#ifndef CUDAPOOL_CORE_BOARD_SLOT_H
#define CUDAPOOL_CORE_BOARD_SLOT_H

#include "board_state.h"
#include "core/base/numbers.h"

static inline uint64_t board_sum(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

/* How many slots are to be looked at. */
unsigned board_slots(const struct board *board);

/* Makes it nobody's. With the slot's lock. */
void board_slot_clear(struct board_slot *slot);

/* The same, where its owner has ended: notes for all processes of which devices it had memory. */
void board_slot_end(struct board_map *map, unsigned slot);

/* When that was noted of the device: nanoseconds of the monotonic clock; 0: never. */
uint64_t board_end_of(const struct board_map *map, const uint64_t uuid[2]);

/* The token of a slot that is somebody else's; 0: nobody's, or the own one. */
uint64_t board_token_of_other(const struct board *board, unsigned slot);

/* Whether the slot is still of who had this token. */
bool board_is_still(const struct board_slot *slot, uint64_t token);

/* Whether these two words of the board's are the device's uuid. Relaxed: a reader that needs what
 * stands beside them acquires that by another word. */
static inline bool board_is_uuid(const board_word words[2], const uint64_t uuid[2])
{
    return atomic_load_explicit(&words[0], memory_order_relaxed) == uuid[0] &&
           atomic_load_explicit(&words[1], memory_order_relaxed) == uuid[1];
}

/* The place of the device with this uuid on the slot; -1: none. */
int board_find_device(const struct board_slot *slot, const uint64_t uuid[2]);

/* What it caches of the device at this place, and has pending, both together no more than total. */
struct board_bytes board_bytes_of(const struct board_slot *slot, unsigned place, uint64_t total);

/* The same of a process that listens so (enum board_listens): what one has that comes to its end is
 * pending, and who has nearly nothing has nothing. */
struct board_bytes board_bytes_to_have(const struct board_slot *slot, unsigned place,
                                       uint64_t total, uint32_t listens);

bool board_is_of_group(const struct board_slot *slot, const uint64_t group[BOARD_GROUP_BYTES / 8]);

/* ---- who has been silent ---- */

bool board_was_silent(const struct board_silent silent[BOARD_SILENT], uint64_t token, uint64_t now);
void board_note_silent(struct board_silent silent[BOARD_SILENT], uint64_t token, uint32_t asked,
                       uint64_t now);

/* The same of who was asked for memory. Who has answered since was only slow: the driver may have
 * made it wait. */
bool board_does_not_answer(const struct board *board, const struct board_slot *slot, uint64_t token,
                           uint64_t now);

#endif
