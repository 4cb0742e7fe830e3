/*
 * The housekeeper's side of the board: finds out what others want of this process, and answers
 * (board.h).
 *
 * Part of the preload object: libc only.
 */
#include "board_file.h"
#include "board_slot.h"
#include "core/base/clock.h"
#include "core/base/futex.h"

/* A sleep lasts no longer than this. If private memory has replaced the file
 * (core/base/bus_guard.h), no other process can wake this one. */
#define SLEEP_MOST UINT64_C(10000000000)

/* Another process may wake this one for nothing this often. After that this process rests after
 * each wake, for 1 ms at first and 32 ms at most. */
#define WAKES_FOR_NOTHING 16u
#define REST_FIRST        UINT64_C(1000000)
#define REST_STEPS        5u

/* No process waits longer for an answer. The bound keeps a demand of a stopped process from
 * emptying the cache for ever. */
#define DEMAND_LASTS UINT64_C(15000000000)

/* ---- sleeping ---- */

/* Rests if a process wakes this one again and again without asking for anything. The rest grows,
 * but stays short enough for others not to take this process for silent. */
static void rest_from_wakes(struct board *board)
{
    if (board->was_asked)
        board->wakes_for_nothing = 0;
    board->was_asked = false;
    if (++board->wakes_for_nothing <= WAKES_FOR_NOTHING)
        return;
    unsigned steps = board->wakes_for_nothing - WAKES_FOR_NOTHING;
    uint64_t until = monotonic_now() + (REST_FIRST << (steps < REST_STEPS ? steps : REST_STEPS));
    while (monotonic_now() < until)
        futex_sleep(until);
}

void board_sleep(struct board *board, uint64_t until)
{
    const struct board_slot *slot = board_own_slot(board);
    uint64_t end = smaller_of(until, monotonic_now() + SLEEP_MOST);
    if (!slot) {
        futex_sleep(end);
        return;
    }
    /* Pairs with the fetch-add in board_wake. */
    if (atomic_load_explicit(&slot->wake, memory_order_acquire) == board->slept)
        futex_wait(&slot->wake, board->slept, end);
    if (monotonic_now() >= until)
        board->wakes_for_nothing = 0;
    else
        rest_from_wakes(board);
    board->slept = atomic_load_explicit(&slot->wake, memory_order_acquire);
}

/* ---- demands of others ---- */

/* Whether the entry, which another process has written, asks this one for memory of the device. */
static bool is_for_me(const struct board *board, const struct board_entry *entry,
                      const uint64_t uuid[2])
{
    static const uint64_t every_device[2];
    /* Pairs with the release store to open in add_entry (board_demand.c). */
    if (atomic_load_explicit(&entry->open, memory_order_acquire) != 1 ||
        !(board_uuid_equals(entry->uuid, uuid) || board_uuid_equals(entry->uuid, every_device)))
        return false;
    uint32_t slot = atomic_load_explicit(&entry->slot, memory_order_relaxed);
    uint64_t token = atomic_load_explicit(&entry->token, memory_order_relaxed);
    return slot == BOARD_EVERYBODY || (slot == board->slot && token == board->token);
}

static uint64_t left_of(const struct board_entry *entry)
{
    uint64_t bytes = atomic_load_explicit(&entry->bytes, memory_order_relaxed);
    uint64_t served = atomic_load_explicit(&entry->served, memory_order_relaxed);
    return rest_of(bytes, served);
}

/* Whether the process that wrote this entry may still be waiting for it. */
static bool is_fresh(struct board *board, uint64_t token, uint32_t number)
{
    uint64_t now = monotonic_now();
    struct board_first_seen *place = &board->first_seen[0];
    for (unsigned i = 0; i < BOARD_FIRST_SEEN; i++) {
        struct board_first_seen *seen = &board->first_seen[i];
        if (seen->token == token && seen->number == number)
            return now - seen->since < DEMAND_LASTS;
        if (seen->since < place->since)
            place = seen;
    }
    *place = (struct board_first_seen){token, number, now};
    return true;
}

static bool is_same(const struct board_seen *one, const struct board_seen *other)
{
    return one->slot == other->slot && one->entry == other->entry && one->token == other->token &&
           one->number == other->number;
}

/* Notes the entry, so that serve counts bytes given from now on for it. Entries beyond BOARD_SEEN
 * are not noted, and may be given their bytes twice. */
static void note_seen(struct board *board, const struct board_seen *seen)
{
    for (unsigned i = 0; i < board->seen_count; i++)
        if (is_same(&board->seen[i], seen))
            return;
    if (board->seen_count < BOARD_SEEN)
        board->seen[board->seen_count++] = *seen;
}

/* Adds to *wish what the slot's owner wants. */
static void add_wishes(struct board *board, unsigned index, uint64_t token, const uint64_t uuid[2],
                       struct board_wish *wish)
{
    const struct board_slot *slot = &board->map->slots[index];
    for (unsigned i = 0; i < BOARD_ENTRIES; i++) {
        const struct board_entry *entry = &slot->entries[i];
        if (!is_for_me(board, entry, uuid))
            continue;
        uint32_t number = atomic_load_explicit(&entry->number, memory_order_relaxed);
        if (!is_fresh(board, token, number))
            continue;
        uint32_t kind = atomic_load_explicit(&entry->kind, memory_order_relaxed);
        wish->tell = wish->tell || kind == BOARD_TELL;
        wish->trim = wish->trim || kind == BOARD_TRIM;
        if (kind == BOARD_TELL)
            continue;
        note_seen(board, &(struct board_seen){index, i, token, number});
        wish->bytes = kind == BOARD_TRIM ? UINT64_MAX : saturating_sum(wish->bytes, left_of(entry));
    }
}

/* Adds to *wish what the slot's owner wants, unless the owner has ended. */
static void take_of(struct board *board, unsigned index, const uint64_t uuid[2],
                    struct board_wish *wish)
{
    struct board_wish its = {0};
    uint64_t token = board_token_of_other(board, index);
    if (token == 0)
        return;
    add_wishes(board, index, token, uuid, &its);
    if (its.bytes == 0 && !its.tell)
        return;
    /* Only a process that was asked reaches this point, and opens the file. */
    struct board_probe probe = board_probe_begin(board);
    bool lives = board_probe_lives(&probe, index);
    board_probe_end(&probe);
    if (!lives)
        return;
    wish->bytes = saturating_sum(wish->bytes, its.bytes);
    wish->trim = wish->trim || its.trim;
    wish->tell = wish->tell || its.tell;
}

struct board_wish board_take(struct board *board, int device)
{
    struct board_wish wish = {0};
    const struct board_slot *slot = board_own_slot(board);
    if (!slot || device < 0)
        return wish;
    if (!board->has_looked) {
        /* Pairs with the fetch-add in board_wake, for the entry that was written
         * before it. */
        board->looked = atomic_load_explicit(&slot->wake, memory_order_acquire);
        board->has_looked = true;
        board->seen_count = 0;
    }
    unsigned slots = board_slots(board);
    for (unsigned i = 0; i < slots; i++)
        take_of(board, i, board->uuids[device], &wish);
    board->was_asked = board->was_asked || wish.bytes > 0 || wish.tell;
    return wish;
}

/* Counts in the entry how many of the bytes were given for it, so that its process is not given
 * more. Returns the remaining bytes. Entries that were written after demands were last looked at
 * get none. */
static uint64_t serve(struct board *board, const struct board_seen *seen, const uint64_t uuid[2],
                      uint64_t bytes)
{
    struct board_slot *slot = &board->map->slots[seen->slot];
    struct board_entry *entry = &slot->entries[seen->entry];
    if (board_token_of_other(board, seen->slot) != seen->token || !is_for_me(board, entry, uuid) ||
        atomic_load_explicit(&entry->number, memory_order_relaxed) != seen->number)
        return bytes;
    uint64_t part = smaller_of(left_of(entry), bytes);
    /* Relaxed: the asking process reads given bytes from this process's slot. */
    atomic_fetch_add_explicit(&entry->served, part, memory_order_relaxed);
    return bytes - part;
}

void board_give(struct board *board, int device, uint64_t bytes)
{
    struct board_slot *slot = board_own_slot(board);
    if (!slot || device < 0)
        return;
    /* Relaxed: the store in board_answered releases this number to the asking process. */
    atomic_fetch_add_explicit(&slot->devices[device].given, bytes, memory_order_relaxed);
    for (unsigned i = 0; i < board->seen_count && bytes > 0; i++)
        bytes = serve(board, &board->seen[i], board->uuids[device], bytes);
}

void board_answered(struct board *board)
{
    struct board_slot *slot = board_own_slot(board);
    if (!slot || !board->has_looked)
        return;
    board->has_looked = false;
    /* Pairs with the acquire load of answered in read_target (board_demand.c). */
    atomic_store_explicit(&slot->answered, board->looked, memory_order_release);
    futex_wake(&slot->answered);
}
