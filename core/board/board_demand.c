/*
 * Asks other processes for memory (board.h).
 *
 * A demand writes an entry for each process that it asks into this process's slot, and raises the
 * wake word of each. A process that has looked at its demands stores in answered the value of its
 * wake word that it had read before. So it has seen the entry of every process whose count is not
 * after answered, modulo 2^32.
 *
 * Part of the preload object: libc only.
 */
#include <errno.h>
#include <string.h>

#include "board_file.h"
#include "board_slot.h"
#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/base/process.h"

/* While a process is waited for, its liveness is tested this often. */
#define LOOK_NANOSECONDS UINT64_C(2000000)

static bool is_every_device(const uint64_t uuid[2])
{
    return uuid[0] == 0 && uuid[1] == 0;
}

/* ---- whom to ask ---- */

/* Reads what the slot's owner could give of the device. Returns false where the owner can't be
 * asked. */
static bool read_candidate(const struct board *board, unsigned index, const uint64_t uuid[2],
                           uint64_t total, bool of_group, struct board_candidate *candidate)
{
    const struct board_slot *slot = &board->map->slots[index];
    *candidate =
        (struct board_candidate){.slot = index, .token = board_token_of_other(board, index)};
    uint32_t listens = atomic_load_explicit(&slot->listens, memory_order_acquire);
    if (candidate->token == 0 || listens == BOARD_DEAF ||
        (of_group && !board_is_of_group(slot, board->group)))
        return false;
    int place = board_find_device(slot, uuid);
    if (place < 0)
        return false;
    struct board_bytes bytes = board_bytes_available(slot, (unsigned)place, total, listens);
    candidate->has[BOARD_CACHED] = bytes.cached;
    candidate->has[BOARD_PENDING] = bytes.pending - bytes.in_order;
    candidate->has[BOARD_IN_ORDER] = bytes.in_order;
    return board_has_token(slot, candidate->token);
}

/* Fills board->candidates with the processes that are alive and answer. Returns their number. */
static unsigned find_candidates(struct board *board, const uint64_t uuid[2], uint64_t total,
                                bool of_group)
{
    lock_must_be_held(&board->lock);
    uint64_t now = monotonic_now();
    unsigned count = 0, slots = board_slots(board);
    struct board_probe probe = board_probe_begin(board);
    for (unsigned i = 0; i < slots; i++) {
        struct board_candidate *candidate = &board->candidates[count];
        if (read_candidate(board, i, uuid, total, of_group, candidate) &&
            !board_does_not_answer(board, &board->map->slots[i], candidate->token, now) &&
            board_probe_lives(&probe, i))
            count++;
    }
    board_probe_end(&probe);
    return count;
}

static uint64_t all_of(const struct board_candidate *candidate)
{
    uint64_t sum = 0;
    for (int sort = 0; sort < BOARD_SORTS; sort++)
        sum = saturating_sum(sum, candidate->has[sort]);
    return sum;
}

static uint64_t sum_of_all(const struct board_candidate *candidates, unsigned count)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < count; i++)
        sum = saturating_sum(sum, all_of(&candidates[i]));
    return sum;
}

/* Returns the candidate with most bytes of this sort that is not yet planned for it; NULL: none has
 * any. fresh: the candidate may be one that is asked for nothing yet. */
static struct board_candidate *find_largest(struct board_candidate *candidates, unsigned count,
                                            int what, bool fresh)
{
    struct board_candidate *found = NULL;
    uint64_t most = 0;
    for (unsigned i = 0; i < count; i++) {
        struct board_candidate *candidate = &candidates[i];
        if (candidate->planned[what] || candidate->has[what] <= most ||
            (candidate->asked == 0 && !fresh))
            continue;
        most = candidate->has[what];
        found = candidate;
    }
    return found;
}

/* What candidates have published is not enough. Asks every candidate for the rest, since those with
 * nothing published may have freed something since. */
static void ask_the_others(struct board_candidate *candidates, unsigned count, uint64_t bytes,
                           unsigned room)
{
    for (unsigned i = 0; i < count && bytes > 0 && room > 0; i++) {
        room -= candidates[i].asked == 0;
        candidates[i].asked = saturating_sum(candidates[i].asked, bytes);
    }
}

/* Sets for how many bytes each candidate is asked. Candidates with most bytes come first, until all
 * bytes are asked for or room processes are asked. */
static void plan(struct board_candidate *candidates, unsigned count, uint64_t bytes, unsigned room)
{
    for (int what = 0; what < BOARD_SORTS; what++) {
        struct board_candidate *next;
        while (bytes > 0 && (next = find_largest(candidates, count, what, room > 0)) != NULL) {
            uint64_t more = smaller_of(next->has[what], bytes);
            room -= next->asked == 0;
            next->planned[what] = true;
            next->asked += more;
            bytes -= more;
        }
    }
    ask_the_others(candidates, count, bytes, room);
}

/* ---- demands of this process; the board lock is held ---- */

static struct board_demand *find_unused(struct board *board)
{
    lock_must_be_held(&board->lock);
    for (unsigned i = 0; i < BOARD_DEMANDS; i++)
        if (!board->demands[i].under_way)
            return &board->demands[i];
    return NULL;
}

static void begin(struct board *board, struct board_demand *demand, enum board_entry_kind kind,
                  const uint64_t uuid[2], uint64_t total)
{
    demand->board = board;
    demand->under_way = true;
    demand->has_waited = demand->asked_all = false;
    demand->asked_at = monotonic_now();
    demand->kind = kind;
    demand->number = ++board->demand_count;
    memcpy(demand->uuid, uuid, sizeof demand->uuid);
    demand->device_total = total;
    demand->entries = 0;
    demand->count = 0;
}

/* Writes an entry into this process's slot, and returns its index; BOARD_ENTRIES: all are in use.
 */
static uint32_t add_entry(struct board_demand *demand, uint32_t slot, uint64_t token,
                          uint64_t bytes)
{
    struct board *board = demand->board;
    lock_must_be_held(&board->lock);
    uint32_t index = 0;
    while (index < BOARD_ENTRIES && (board->entries >> index & 1) != 0)
        index++;
    if (index == BOARD_ENTRIES)
        return index;
    board->entries |= UINT64_C(1) << index;
    demand->entries |= UINT64_C(1) << index;
    struct board_entry *entry = &board->map->slots[board->slot].entries[index];
    atomic_store_explicit(&entry->kind, demand->kind, memory_order_relaxed);
    atomic_store_explicit(&entry->number, demand->number, memory_order_relaxed);
    atomic_store_explicit(&entry->slot, slot, memory_order_relaxed);
    atomic_store_explicit(&entry->token, token, memory_order_relaxed);
    atomic_store_explicit(&entry->uuid[0], demand->uuid[0], memory_order_relaxed);
    atomic_store_explicit(&entry->uuid[1], demand->uuid[1], memory_order_relaxed);
    atomic_store_explicit(&entry->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&entry->served, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->open, 1, memory_order_release);
    return index;
}

/* Returns the bytes that the slot's process says it has given so far, of the demand's devices. */
static uint64_t given_by(const struct board_slot *slot, const uint64_t uuid[2])
{
    uint64_t given = 0;
    uint32_t count = atomic_load_explicit(&slot->device_count, memory_order_acquire);
    for (uint32_t i = 0; i < count && i < BOARD_DEVICES; i++) {
        const struct board_slot_device *device = &slot->devices[i];
        if (is_every_device(uuid) || board_uuid_equals(device->uuid, uuid))
            given =
                saturating_sum(given, atomic_load_explicit(&device->given, memory_order_relaxed));
    }
    return given;
}

static void add_target(struct board_demand *demand, uint32_t slot, uint64_t token, uint32_t entry,
                       uint64_t bytes, bool had_some)
{
    const struct board_slot *of = &demand->board->map->slots[slot];
    demand->targets[demand->count++] = (struct board_target){
        .slot = slot,
        .token = token,
        .entry = entry,
        .bytes = bytes,
        .had_some = had_some,
        .given_before = given_by(of, demand->uuid),
    };
}

/* Wakes all targets. To be called after all entries were written. */
static void wake_targets(struct board_demand *demand)
{
    for (unsigned i = 0; i < demand->count; i++) {
        struct board_target *target = &demand->targets[i];
        target->asked = board_wake(&demand->board->map->slots[target->slot]);
    }
}

static unsigned unused_entries(const struct board *board)
{
    lock_must_be_held(&board->lock);
    return BOARD_ENTRIES - (unsigned)__builtin_popcountll(board->entries);
}

static void ask_candidates(struct board_demand *demand, unsigned count)
{
    struct board *board = demand->board;
    for (unsigned i = 0; i < count; i++) {
        const struct board_candidate *candidate = &board->candidates[i];
        if (candidate->asked == 0)
            continue;
        uint32_t entry = add_entry(demand, candidate->slot, candidate->token, candidate->asked);
        if (entry < BOARD_ENTRIES)
            add_target(demand, candidate->slot, candidate->token, entry, candidate->asked,
                       all_of(candidate) > 0);
    }
    wake_targets(demand);
}

/* Returns an unused demand; NULL with *no_place set: all demands, or all entries, are in use. */
static struct board_demand *find_place(struct board *board, bool *no_place)
{
    struct board_demand *demand = find_unused(board);
    *no_place = !demand || unused_entries(board) == 0;
    return *no_place ? NULL : demand;
}

static struct board_demand *ask(struct board *board, const uint64_t uuid[2], uint64_t device_total,
                                uint64_t bytes, uint64_t at_least, bool of_group, bool *no_place)
{
    struct board_demand *demand = find_place(board, no_place);
    if (!demand)
        return NULL;
    unsigned count = find_candidates(board, uuid, device_total, of_group);
    if (count == 0 || sum_of_all(board->candidates, count) < at_least)
        return NULL;
    begin(board, demand, BOARD_RECLAIM, uuid, device_total);
    plan(board->candidates, count, bytes, unused_entries(board));
    ask_candidates(demand, count);
    demand->asked_all = demand->count == count;
    return demand;
}

struct board_demand *board_ask(struct board *board, int device, uint64_t device_total,
                               uint64_t bytes, uint64_t at_least, bool of_group, bool *no_place)
{
    bool unused;
    if (!no_place)
        no_place = &unused;
    *no_place = false;
    if (!board_own_slot(board) || device < 0 || bytes == 0)
        return NULL;
    lock_take(&board->lock, LOCK_BOARD);
    struct board_demand *demand =
        ask(board, board->uuids[device], device_total, bytes, at_least, of_group, no_place);
    lock_give(&board->lock);
    return demand;
}

/* Writes one entry, which is addressed to everybody. */
static struct board_demand *ask_to_tell(struct board *board, const uint64_t uuid[2],
                                        uint64_t device_total, bool of_group, bool *no_place)
{
    struct board_demand *demand = find_place(board, no_place);
    unsigned count = demand ? find_candidates(board, uuid, device_total, of_group) : 0;
    if (count == 0)
        return NULL;
    begin(board, demand, BOARD_TELL, uuid, device_total);
    add_entry(demand, BOARD_EVERYBODY, 0, 0);
    for (unsigned i = 0; i < count; i++) {
        const struct board_candidate *candidate = &board->candidates[i];
        add_target(demand, candidate->slot, candidate->token, BOARD_ENTRIES, 0,
                   all_of(candidate) > 0);
    }
    wake_targets(demand);
    return demand;
}

struct board_demand *board_ask_to_tell(struct board *board, int device, uint64_t device_total,
                                       bool of_group, bool *no_place)
{
    *no_place = false;
    if (!board_own_slot(board) || device < 0)
        return NULL;
    lock_take(&board->lock, LOCK_BOARD);
    struct board_demand *demand =
        ask_to_tell(board, board->uuids[device], device_total, of_group, no_place);
    lock_give(&board->lock);
    return demand;
}

/* ---- progress of a demand ---- */

/* Reads what the target has published, and whether the slot still belongs to the process that was
 * asked. */
static void read_target(const struct board_demand *demand, struct board_target *target)
{
    const struct board_slot *slot = &demand->board->map->slots[target->slot];
    /* Pairs with the release store in board_answered, for what the process has given and published.
     */
    uint32_t answered = atomic_load_explicit(&slot->answered, memory_order_acquire);
    uint32_t listens = atomic_load_explicit(&slot->listens, memory_order_acquire);
    uint64_t pending = 0, in_order = 0;
    for (unsigned i = 0; i < BOARD_DEVICES; i++) {
        if (!is_every_device(demand->uuid) && board_find_device(slot, demand->uuid) != (int)i)
            continue;
        struct board_bytes bytes = board_bytes_available(slot, i, demand->device_total, listens);
        pending = saturating_sum(pending, bytes.pending);
        in_order = saturating_sum(in_order, bytes.in_order);
    }
    /* A giving process counts bytes as given before it stops publishing them as pending. So this
     * reads pending first. */
    uint64_t given = given_by(slot, demand->uuid);
    if (!board_has_token(slot, target->token)) {
        /* The process has ended, and the driver has all its memory. */
        target->gone = true;
        target->given = target->bytes;
        target->pending = target->in_order = 0;
        return;
    }
    target->given = rest_of(given, target->given_before);
    target->answered =
        target->answered || listens == BOARD_ENDS || (int32_t)(answered - target->asked) >= 0;
    bool counts = target->answered && listens != BOARD_DEAF;
    target->pending = counts ? pending : 0;
    target->in_order = counts ? in_order : 0;
    target->gone = listens == BOARD_DEAF && !target->answered;
}

static bool is_waited_for(const struct board_target *target)
{
    return !target->answered && !target->gone && !target->silent;
}

/* Reads all targets. Returns the first that has not answered yet; NULL: all have, or never will. */
static struct board_target *read_targets(struct board_demand *demand)
{
    struct board_target *waited_for = NULL;
    for (unsigned i = 0; i < demand->count; i++) {
        struct board_target *target = &demand->targets[i];
        if (!target->gone)
            read_target(demand, target);
        if (!waited_for && is_waited_for(target))
            waited_for = target;
    }
    return waited_for;
}

/* Clears the slots of targets that have ended, so that nobody waits for their answers or their
 * pending bytes. */
static void look_who_lives(struct board_demand *demand)
{
    struct board_probe probe = board_probe_begin(demand->board);
    for (unsigned i = 0; i < demand->count; i++) {
        const struct board_target *target = &demand->targets[i];
        if (is_waited_for(target) || (target->pending && !target->gone))
            board_probe_lives(&probe, target->slot);
    }
    board_probe_end(&probe);
}

/* False for a process in another pid namespace, where this can't be known. */
static bool is_stopped(const struct board *board, const struct board_target *target)
{
    const struct board_slot *slot = &board->map->slots[target->slot];
    uint64_t space = atomic_load_explicit(&slot->pid_namespace, memory_order_relaxed);
    uint32_t pid = atomic_load_explicit(&slot->pid, memory_order_relaxed);
    int error = errno;
    bool stopped = space != 0 && space == board->pid_namespace && process_is_stopped(pid);
    errno = error;
    return stopped;
}

/* Whether a target that has not answered in time may still answer. */
static bool deserves_patience(const struct board_demand *demand, const struct board_target *target)
{
    return demand->kind != BOARD_TRIM && target->had_some && !is_stopped(demand->board, target);
}

/* Marks targets that have not answered as silent. is_last: the wait ends now, so this includes
 * those that deserve patience. */
static void note_silent_ones(struct board_demand *demand, uint64_t now, bool is_last)
{
    for (unsigned i = 0; i < demand->count; i++) {
        struct board_target *target = &demand->targets[i];
        if (!is_waited_for(target) || (!is_last && deserves_patience(demand, target)))
            continue;
        target->silent = true;
        board_note_silent(demand->board->silent, target->token, target->asked, now);
    }
}

static void wait_for_answers(struct board_demand *demand)
{
    uint64_t silence = demand->board->silence,
             end = demand->asked_at + BOARD_SLOW_SILENCES * silence;
    uint64_t now = monotonic_now(), look = demand->asked_at + silence;
    const struct board_target *next;
    while ((next = read_targets(demand)) != NULL && now < end && board_own_slot(demand->board)) {
        const struct board_slot *slot = &demand->board->map->slots[next->slot];
        uint32_t answered = atomic_load_explicit(&slot->answered, memory_order_relaxed);
        if ((int32_t)(answered - next->asked) < 0)
            futex_wait(&slot->answered, answered, smaller_of(end, now + LOOK_NANOSECONDS));
        now = monotonic_now();
        look_who_lives(demand);
        if (now < look)
            continue;
        read_targets(demand);
        note_silent_ones(demand, now, false);
        look = now + silence;
    }
    note_silent_ones(demand, now, true);
}

struct board_progress board_demand_look(struct board_demand *demand)
{
    struct board_progress progress = {0};
    if (!demand->board || !board_own_slot(demand->board))
        return progress;
    if (!demand->has_waited)
        wait_for_answers(demand);
    else {
        look_who_lives(demand);
        read_targets(demand);
    }
    demand->has_waited = true;
    for (unsigned i = 0; i < demand->count; i++) {
        const struct board_target *target = &demand->targets[i];
        progress.given = saturating_sum(progress.given, target->given);
        progress.pending = saturating_sum(progress.pending, target->pending);
        progress.in_order = saturating_sum(progress.in_order, target->in_order);
        progress.silent += target->silent && !target->answered;
    }
    progress.asked = demand->count;
    progress.asked_all = demand->asked_all;
    return progress;
}

void board_demand_end(struct board_demand *demand)
{
    struct board *board = demand->board;
    if (!board || !board->map)
        return;
    lock_take(&board->lock, LOCK_BOARD);
    for (unsigned i = 0; i < BOARD_ENTRIES; i++)
        if ((demand->entries >> i & 1) != 0 && board_member_slot(board))
            atomic_store_explicit(&board->map->slots[board->slot].entries[i].open, 0,
                                  memory_order_release);
    board->entries &= ~demand->entries;
    demand->under_way = false;
    lock_give(&board->lock);
}

/* ---- demands of a tool ---- */

/* Adds the living processes that are meant and listen as targets. Returns the number of those that
 * are meant, listening or not. */
static unsigned add_trim_targets(struct board_demand *demand, const struct board_process *process)
{
    struct board *board = demand->board;
    unsigned meant = 0, slots = board_slots(board);
    struct board_probe probe = board_probe_begin(board);
    for (unsigned i = 0; i < slots; i++) {
        const struct board_slot *slot = &board->map->slots[i];
        uint64_t token = board_token_of_other(board, i);
        if (token == 0 || (process && !board_slot_is_of(slot, process)) ||
            !board_probe_lives(&probe, i) || !board_has_token(slot, token))
            continue;
        meant += !atomic_load_explicit(&slot->visits, memory_order_relaxed);
        if (atomic_load_explicit(&slot->listens, memory_order_relaxed) == BOARD_LISTENS)
            add_target(demand, i, token, BOARD_ENTRIES, 0, false);
    }
    board_probe_end(&probe);
    return meant;
}

static void add_trim_entries(struct board_demand *demand, bool everybody)
{
    if (everybody)
        add_entry(demand, BOARD_EVERYBODY, 0, UINT64_MAX);
    for (unsigned i = 0; !everybody && i < demand->count; i++)
        add_entry(demand, demand->targets[i].slot, demand->targets[i].token, UINT64_MAX);
    wake_targets(demand);
}

static struct board_demand *trim(struct board *board, const struct board_process *process,
                                 const uint64_t uuid[2], const char **why)
{
    bool no_place;
    struct board_demand *demand = find_place(board, &no_place);
    *why = "too many demands are under way";
    if (!demand)
        return NULL;
    begin(board, demand, BOARD_TRIM, uuid, UINT64_MAX);
    unsigned meant = add_trim_targets(demand, process);
    *why = meant == 0 ? "there is no such process on the board"
                      : "it caches next to nothing, or has no housekeeper";
    if (demand->count == 0) {
        demand->under_way = false;
        return NULL;
    }
    add_trim_entries(demand, process == NULL);
    *why = NULL;
    return demand;
}

struct board_demand *board_trim(struct board *board, const struct board_process *process,
                                const unsigned char *uuid, const char **why)
{
    uint64_t words[2] = {0, 0};
    *why = "this process is not on the board";
    if (!board_own_slot(board))
        return NULL;
    if (uuid)
        memcpy(words, uuid, sizeof words);
    lock_take(&board->lock, LOCK_BOARD);
    struct board_demand *demand = trim(board, process, words, why);
    lock_give(&board->lock);
    return demand;
}
