/*
 * Publishes this process's numbers, and reads those of other processes (board.h).
 *
 * Part of the preload object: libc only.
 */
#include <string.h>

#include "board_file.h"
#include "board_slot.h"
#include "core/base/clock.h"
#include "core/base/futex.h"

/* ---- what this process has ---- */

static int find_own_device(const struct board *board, const uint64_t uuid[2])
{
    lock_must_be_held(&board->lock);
    for (uint32_t i = 0; i < board->device_count; i++)
        if (memcmp(board->uuids[i], uuid, sizeof board->uuids[i]) == 0)
            return (int)i;
    return -1;
}

static int add_device(struct board *board, const uint64_t uuid[2])
{
    lock_must_be_held(&board->lock);
    struct board_slot *slot = board_own_slot(board);
    uint32_t place = board->device_count;
    if (!slot || place == BOARD_DEVICES)
        return -1;
    memcpy(board->uuids[place], uuid, sizeof board->uuids[place]);
    atomic_store_explicit(&slot->devices[place].uuid[0], uuid[0], memory_order_relaxed);
    atomic_store_explicit(&slot->devices[place].uuid[1], uuid[1], memory_order_relaxed);
    /* Sequentially consistent: a process of the group that raises its bytes after this one must
     * find the device when it sums (board_group.c). */
    atomic_store_explicit(&slot->device_count, place + 1, memory_order_seq_cst);
    board->device_count = place + 1;
    return (int)place;
}

int board_device(struct board *board, const unsigned char uuid[16])
{
    uint64_t words[2];
    if (!board_own_slot(board))
        return -1;
    memcpy(words, uuid, sizeof words);
    lock_take(&board->lock, LOCK_BOARD);
    int place = find_own_device(board, words);
    if (place < 0)
        place = add_device(board, words);
    lock_give(&board->lock);
    return place;
}

void board_publish_in_order(struct board *board, int device, uint64_t in_order)
{
    struct board_slot *slot = board_own_slot(board);
    /* Relaxed: the caller calls board_publish next, whose store of pending releases this number. */
    if (slot && device >= 0)
        atomic_store_explicit(&slot->in_order[device], in_order, memory_order_relaxed);
}

void board_publish(struct board *board, int device, uint64_t cached, uint64_t pending)
{
    struct board_slot *slot = board_own_slot(board);
    if (!slot || device < 0)
        return;
    /* Relaxed: nothing else is read because of this number. The store in board_answered releases it
     * to the asking process. */
    atomic_store_explicit(&slot->devices[device].cached, cached, memory_order_relaxed);
    /* Pairs with the acquire load in board_bytes_of. A reader of this number then also sees the
     * bytes that this process gave to others before. */
    atomic_store_explicit(&slot->devices[device].pending, pending, memory_order_release);
}

/* Whether the diagram of enum board_listens has a step from before to listens. A process may also
 * listen again while it listens. */
static bool may_follow(uint32_t before, enum board_listens listens)
{
    return listens == BOARD_LISTENS  ? before != BOARD_ENDS
           : listens == BOARD_LEAVES ? before == BOARD_LISTENS
                                     : before == BOARD_LEAVES;
}

void board_publish_listening(struct board *board, enum board_listens listens)
{
    struct board_slot *slot = board_own_slot(board);
    /* No step leads from BOARD_ENDS, so nothing happens without a slot. */
    uint32_t before =
        slot ? atomic_load_explicit(&slot->listens, memory_order_relaxed) : (uint32_t)BOARD_ENDS;
    while (may_follow(before, listens) &&
           !atomic_compare_exchange_weak_explicit(&slot->listens, &before, listens,
                                                  memory_order_release, memory_order_relaxed))
        continue;
}

void board_publish_at_end(struct board *board, int device, uint64_t bytes)
{
    struct board_slot *slot = board_own_slot(board);
    /* Relaxed: the store in board_publish_ending releases this number. */
    if (slot && device >= 0)
        atomic_store_explicit(&slot->at_end[device], bytes, memory_order_relaxed);
}

void board_publish_ending(struct board *board)
{
    struct board_slot *slot = board_own_slot(board);
    uint32_t listens =
        slot ? atomic_load_explicit(&slot->listens, memory_order_relaxed) : (uint32_t)BOARD_DEAF;
    if (listens != BOARD_LISTENS && listens != BOARD_LEAVES)
        return;
    atomic_store_explicit(&slot->ends_since, monotonic_now(), memory_order_relaxed);
    /* Pairs with the acquire loads of listens in board_demand.c and bytes_of. */
    atomic_store_explicit(&slot->listens, BOARD_ENDS, memory_order_release);
    futex_wake(&slot->answered);
}

/* ---- what others have ---- */

/* Returns the bytes that others can get from the slot's process. Returns 0 bytes if the slot is
 * free, this process's own, or changes its owner meanwhile. Returns 0 bytes also for a process that
 * is deaf, silent, outside the group (of_group) or not on this device. */
static struct board_bytes bytes_of(const struct board *board, unsigned index,
                                   const uint64_t uuid[2], uint64_t total, bool of_group,
                                   uint64_t now)
{
    const struct board_slot *slot = &board->map->slots[index];
    struct board_bytes nothing = {0};
    uint64_t token = board_token_of_other(board, index);
    uint32_t listens = atomic_load_explicit(&slot->listens, memory_order_acquire);
    if (token == 0 || listens == BOARD_DEAF || (of_group && !board_is_of_group(slot, board->group)))
        return nothing;
    int place = board_find_device(slot, uuid);
    if (place < 0 || board_does_not_answer(board, slot, token, now))
        return nothing;
    struct board_bytes bytes = board_bytes_available(slot, (unsigned)place, total, listens);
    return board_has_token(slot, token) ? bytes : nothing;
}

struct board_bytes board_others(struct board *board, int device, uint64_t device_total,
                                bool of_group)
{
    struct board_bytes sum = {0};
    if (!board_own_slot(board) || device < 0)
        return sum;
    board_clear_ended(board);
    uint64_t now = monotonic_now();
    unsigned slots = board_slots(board);
    for (unsigned i = 0; i < slots; i++) {
        struct board_bytes its =
            bytes_of(board, i, board->uuids[device], device_total, of_group, now);
        sum.cached = saturating_sum(sum.cached, its.cached);
        sum.pending = saturating_sum(sum.pending, its.pending);
        sum.in_order = saturating_sum(sum.in_order, its.in_order);
    }
    return sum;
}

uint64_t board_ended_at(const struct board *board, int device)
{
    return board_own_slot(board) && device >= 0 ? board_uuid_ended(board->map, board->uuids[device])
                                                : 0;
}

/* ---- processes on the board ---- */

static void read_group(const struct board_slot *slot, char text[BOARD_GROUP_BYTES])
{
    for (unsigned i = 0; i < BOARD_GROUP_BYTES / 8; i++) {
        uint64_t word = atomic_load_explicit(&slot->group[i], memory_order_relaxed);
        memcpy(text + sizeof word * i, &word, sizeof word);
    }
    text[BOARD_GROUP_BYTES - 1] = '\0';
    /* Callers may print the text, so it must be printable. */
    for (char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~')
            *c = '?';
}

static bool has_demand(const struct board_slot *slot)
{
    for (unsigned i = 0; i < BOARD_ENTRIES; i++)
        if (atomic_load_explicit(&slot->entries[i].open, memory_order_relaxed) == 1 &&
            atomic_load_explicit(&slot->entries[i].kind, memory_order_relaxed) == BOARD_RECLAIM)
            return true;
    return false;
}

static void read_device(const struct board_slot *slot, unsigned place,
                        struct board_process_device *described)
{
    const struct board_slot_device *device = &slot->devices[place];
    uint64_t uuid[2] = {atomic_load_explicit(&device->uuid[0], memory_order_relaxed),
                        atomic_load_explicit(&device->uuid[1], memory_order_relaxed)};
    /* UINT64_MAX: the device's total is not known here. */
    struct board_bytes bytes = board_bytes_of(slot, place, UINT64_MAX);
    memcpy(described->uuid, uuid, sizeof described->uuid);
    described->held = atomic_load_explicit(&device->held, memory_order_relaxed);
    described->cached = bytes.cached;
    described->pending = bytes.pending;
    described->given = atomic_load_explicit(&device->given, memory_order_relaxed);
}

static void read_process(const struct board_slot *slot, uint64_t token,
                         struct board_process *process)
{
    uint32_t count = atomic_load_explicit(&slot->device_count, memory_order_acquire);
    *process = (struct board_process){
        .pid = (int32_t)atomic_load_explicit(&slot->pid, memory_order_relaxed),
        .pid_namespace = atomic_load_explicit(&slot->pid_namespace, memory_order_relaxed),
        .start_ticks = atomic_load_explicit(&slot->start_ticks, memory_order_relaxed),
        .listens = atomic_load_explicit(&slot->listens, memory_order_relaxed) == BOARD_LISTENS,
        .asks = has_demand(slot),
        .device_count = count < BOARD_DEVICES ? count : BOARD_DEVICES,
    };
    read_group(slot, process->group);
    board_limits_in(slot, token, process->limits);
    for (unsigned i = 0; i < process->device_count; i++)
        read_device(slot, i, &process->devices[i]);
}

/* Reads the slot's process. Returns false if the slot is free, or if its process is a tool, has
 * ended, or ends meanwhile. */
static bool read_living(const struct board_probe *probe, unsigned index,
                        struct board_process *process)
{
    struct board *board = probe->board;
    const struct board_slot *slot = &board->map->slots[index];
    uint64_t token = atomic_load_explicit(&slot->token, memory_order_acquire);
    if (token == 0 || atomic_load_explicit(&slot->visits, memory_order_relaxed) ||
        (index != board->slot && !board_probe_lives(probe, index)))
        return false;
    read_process(slot, token, process);
    return board_has_token(slot, token);
}

bool board_next_process(struct board *board, unsigned *slot, struct board_process *process)
{
    if (!board_own_slot(board))
        return false;
    bool found = false;
    unsigned slots = board_slots(board);
    struct board_probe probe = board_probe_begin(board);
    while (!found && *slot < slots)
        found = read_living(&probe, (*slot)++, process);
    board_probe_end(&probe);
    return found;
}
