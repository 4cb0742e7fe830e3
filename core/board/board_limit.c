/*
 * Limits that a tool sets while processes run (board.h).
 *
 * A limit is one word in the slot of the process that it is for. 0: none was set.
 *
 *   word = the highest 16 bits of the slot's token, then bytes / BOARD_LIMIT_STEP in 48 bits
 *
 * So a process ignores a word that was meant for an earlier owner of its slot. A tool may store one
 * where that owner has ended meanwhile.
 *
 * Joining: A process stores its token, then reads the words of its parent and its group. It takes
 * one over where its own word is 0. A tool stores the words of a group until it has found all of
 * them right. All these accesses are sequentially consistent. If the tool does not find the slot,
 * the process reads the words that the tool has stored. If it does, its store comes first, or
 * follows.
 *
 * Part of the preload object: libc only.
 */
#include <string.h>

#include "board_file.h"
#include "board_slot.h"

#define STEPS_BITS 48u
#define STEPS_MASK ((UINT64_C(1) << STEPS_BITS) - 1)

/* Passes over a group, at most. Each pass but the last has met a new process. */
#define PASSES_MOST 100

static uint64_t word_of(uint64_t token, uint64_t steps)
{
    return (token & ~STEPS_MASK) | steps;
}

/* Returns the limit that is set for the process with this token; 0: none. */
static uint64_t steps_in(const struct board_slot *slot, enum board_limit limit, uint64_t token)
{
    uint64_t word = atomic_load_explicit(&slot->limits[limit], memory_order_seq_cst);
    return (word & ~STEPS_MASK) == (token & ~STEPS_MASK) ? word & STEPS_MASK : 0;
}

static uint64_t bytes_of(uint64_t steps)
{
    return steps == 0 || steps == STEPS_MASK ? BOARD_LIMIT_AT_START : steps * BOARD_LIMIT_STEP;
}

void board_limits_in(const struct board_slot *slot, uint64_t token, uint64_t bytes[BOARD_LIMITS])
{
    for (enum board_limit limit = 0; limit < BOARD_LIMITS; limit++)
        bytes[limit] = bytes_of(steps_in(slot, limit, token));
}

bool board_read_limits(const struct board *board, uint64_t bytes[BOARD_LIMITS])
{
    const struct board_slot *slot = board_own_slot(board);
    if (slot)
        board_limits_in(slot, board->token, bytes);
    return slot != NULL;
}

/* ---- the tool's side ---- */

static bool is_meant(const struct board_slot *slot, const struct board_process *process,
                     enum board_limit limit)
{
    uint64_t group[BOARD_GROUP_BYTES / 8] = {0};
    if (limit == BOARD_LIMIT_OF_PROCESS)
        return board_slot_is_of(slot, process);
    memcpy(group, process->group, strnlen(process->group, BOARD_GROUP_BYTES - 1));
    return board_is_of_group(slot, group);
}

/* Replaces the word, if it still is the one before, and tells its process. */
static void replace(struct board_slot *slot, enum board_limit limit, uint64_t before, uint64_t word)
{
    if (atomic_compare_exchange_strong(&slot->limits[limit], &before, word))
        atomic_fetch_add(&slot->limit_changes, 1);
}

/* Returns how many living processes are meant. *changed: whether one had another word. */
static unsigned set_once(const struct board_probe *probe, const struct board_process *process,
                         enum board_limit limit, uint64_t steps, bool *changed)
{
    struct board *board = probe->board;
    unsigned meant = 0, slots = board_slots(board);
    *changed = false;
    for (unsigned i = 0; i < slots; i++) {
        struct board_slot *slot = &board->map->slots[i];
        uint64_t token = board_token_of_other(board, i);
        if (token == 0 || !is_meant(slot, process, limit) || !board_probe_lives(probe, i) ||
            !board_has_token(slot, token))
            continue;
        meant++;
        uint64_t word = word_of(token, steps);
        uint64_t before = atomic_load_explicit(&slot->limits[limit], memory_order_seq_cst);
        if (before == word)
            continue;
        replace(slot, limit, before, word);
        *changed = true;
        board_wake(slot);
    }
    return meant;
}

unsigned board_set_limit(struct board *board, const struct board_process *process,
                         enum board_limit limit, uint64_t bytes)
{
    if (!board_own_slot(board))
        return 0;
    uint64_t steps = bytes == BOARD_LIMIT_AT_START
                         ? STEPS_MASK
                         : smaller_of(bytes / BOARD_LIMIT_STEP, STEPS_MASK - 1);
    struct board_probe probe = board_probe_begin(board);
    bool changed = true;
    unsigned meant = 0;
    for (int i = 0; i < PASSES_MOST && changed; i++)
        meant = set_once(&probe, process, limit, larger_of(steps, 1), &changed);
    board_probe_end(&probe);
    return meant;
}

/* ---- joining ---- */

static bool is_parent(const struct board *board, const struct board_slot *slot, int32_t parent)
{
    return atomic_load_explicit(&slot->pid, memory_order_relaxed) == (uint32_t)parent &&
           atomic_load_explicit(&slot->pid_namespace, memory_order_relaxed) == board->pid_namespace;
}

void board_limits_take_over(struct board *board, int32_t parent)
{
    struct board_slot *own = &board->map->slots[board->slot];
    struct board_probe probe = board_probe_begin(board);
    unsigned slots = board_slots(board);
    for (unsigned i = 0; i < slots; i++) {
        const struct board_slot *slot = &board->map->slots[i];
        uint64_t token = board_token_of_other(board, i);
        bool from[BOARD_LIMITS] = {[BOARD_LIMIT_OF_PROCESS] = is_parent(board, slot, parent),
                                   [BOARD_LIMIT_OF_GROUP] = board_is_of_group(slot, board->group)};
        for (enum board_limit limit = 0; limit < BOARD_LIMITS && token; limit++) {
            uint64_t steps = from[limit] ? steps_in(slot, limit, token) : 0;
            if (steps && board_probe_lives(&probe, i))
                replace(own, limit, 0, word_of(board->token, steps));
        }
    }
    board_probe_end(&probe);
}
