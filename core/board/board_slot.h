/*
 * Reads and clears the board's slots: this process's slot and those of other processes. Also notes
 * processes that do not answer.
 *
 * Any process of the user may write anything into any slot. So a reader copies each value once and
 * clamps the copy to the possible range. No index from a slot is used unchecked. Sums saturate at
 * UINT64_MAX.
 */
#ifndef CUDAPOOL_CORE_BOARD_SLOT_H
#define CUDAPOOL_CORE_BOARD_SLOT_H

#include "board_state.h"
#include "core/base/numbers.h"

/* Returns the number of slots that a reader must look at. */
unsigned board_slots(const struct board *board);

/* Clears the slot and makes it free. The caller holds the slot's file lock (board_file.h). */
void board_slot_clear(struct board_slot *slot);

/* Clears the slot of a process that has ended. Before that, notes in the map on which devices
 * the process had memory, for all processes to read. The caller holds the slot's file lock. */
void board_slot_end(struct board_map *map, unsigned slot);

/* Returns when board_slot_end last noted the device: nanoseconds of the monotonic clock; 0: never.
 */
uint64_t board_uuid_ended(const struct board_map *map, const uint64_t uuid[2]);

/* Returns the token of another process's slot; 0: the slot is free, or this process's own. */
uint64_t board_token_of_other(const struct board *board, unsigned slot);

/* Whether the slot still belongs to the process that had this token. */
bool board_has_token(const struct board_slot *slot, uint64_t token);

/* Whether these two words of the board are the device's uuid. The loads are relaxed. A reader that
 * also needs fields beside the uuid first loads device_count, or at of struct board_ended, with
 * acquire. */
static inline bool board_uuid_equals(const board_word words[2], const uint64_t uuid[2])
{
    return atomic_load_explicit(&words[0], memory_order_relaxed) == uuid[0] &&
           atomic_load_explicit(&words[1], memory_order_relaxed) == uuid[1];
}

/* Wakes the housekeeper of the slot's process. It sees all that was stored before. Returns the new
 * wake count. */
uint32_t board_wake(struct board_slot *slot);

/* Whether the slot's owner is this process, as board_next_process describes it. */
bool board_slot_is_of(const struct board_slot *slot, const struct board_process *process);

/* In a join, once the slot has its token: takes over the limits of the parent and of the group. */
void board_limits_take_over(struct board *board, int32_t parent);

/* Returns the index of the device with this uuid in the slot's devices; -1: none. */
int board_find_device(const struct board_slot *slot, const uint64_t uuid[2]);

/* Returns the bytes that the slot's process has published of the device at index place.
 * cached + pending <= total, and in_order <= pending. */
struct board_bytes board_bytes_of(const struct board_slot *slot, unsigned place, uint64_t total);

/* Returns the bytes that other processes can get from the slot's process. BOARD_NEARLY_NOTHING or
 * fewer cached bytes count as none. listens is the slot's enum board_listens. BOARD_ENDS: all bytes
 * are pending, and none count once the process has been ending for a second. */
struct board_bytes board_bytes_available(const struct board_slot *slot, unsigned place,
                                         uint64_t total, uint32_t listens);

/* Whether the slot's process belongs to this group. False if the group is "" (no group). */
bool board_is_of_group(const struct board_slot *slot, const uint64_t group[BOARD_GROUP_BYTES / 8]);

/* Reads the limits that tools have set for the slot's owner with this token (board_limit.c). */
void board_limits_in(const struct board_slot *slot, uint64_t token, uint64_t bytes[BOARD_LIMITS]);

/* ---- silent processes: silent is board->silent or board->stuck ---- */

/* Whether the process was noted within the last BOARD_SILENT_NANOSECONDS. */
bool board_was_silent(const struct board_silent silent[BOARD_SILENT], uint64_t token, uint64_t now);
/* Notes the process; replaces the oldest record if there are BOARD_SILENT. asked: the value of its
 * wake word when it was asked. */
void board_note_silent(struct board_silent silent[BOARD_SILENT], uint64_t token, uint32_t asked,
                       uint64_t now);

/* Whether the process counts as silent after it was asked for memory. A process that has answered
 * since then was only slow: the driver may have made it wait. */
bool board_does_not_answer(const struct board *board, const struct board_slot *slot, uint64_t token,
                           uint64_t now);

#endif
