/*
 * Reads and clears slots, and notes silent processes (board_slot.h).
 *
 * Part of the preload object: libc only.
 */
#include "board_slot.h"

#include "core/base/clock.h"
#include "core/base/futex.h"

unsigned board_slots(const struct board *board)
{
    /* Pairs with the compare-and-exchange in note_used (board_join.c). So the result covers the
     * slot of every process of the group that raised its bytes before this load. */
    uint32_t used = atomic_load_explicit(&board->map->header.used, memory_order_seq_cst);
    if (used <= board->slot)
        used = board->slot + 1;
    return used < BOARD_SLOTS ? used : BOARD_SLOTS;
}

/* One word of a slot, whichever field lies there. */
typedef _Atomic(uint64_t) __attribute__((may_alias)) any_word;

void board_slot_clear(struct board_slot *slot)
{
    any_word *words = (any_word *)slot;
    /* Token first: a reader that sees another cleared word also sees that the slot is free. */
    atomic_store_explicit(&slot->token, 0, memory_order_seq_cst);
    for (unsigned i = 0; i < sizeof *slot / sizeof *words; i++)
        atomic_store_explicit(&words[i], 0, memory_order_release);
}

uint64_t board_token_of_other(const struct board *board, unsigned slot)
{
    /* Pairs with the store in fill_slot (board_join.c). So this process sees all that the owner has
     * stored before that store. */
    return slot == board->slot
               ? 0
               : atomic_load_explicit(&board->map->slots[slot].token, memory_order_seq_cst);
}

bool board_has_token(const struct board_slot *slot, uint64_t token)
{
    /* Keeps earlier reads of the slot before the load of token. Pairs with the release stores in
     * board_slot_clear, which follow the store of token. */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&slot->token, memory_order_relaxed) == token;
}

uint32_t board_wake(struct board_slot *slot)
{
    /* Pairs with the acquire loads in board_sleep and board_take. */
    uint32_t count = atomic_fetch_add_explicit(&slot->wake, 1, memory_order_acq_rel) + 1;
    futex_wake(&slot->wake);
    return count;
}

bool board_slot_is_of(const struct board_slot *slot, const struct board_process *process)
{
    return atomic_load_explicit(&slot->pid, memory_order_relaxed) == (uint32_t)process->pid &&
           atomic_load_explicit(&slot->pid_namespace, memory_order_relaxed) ==
               process->pid_namespace &&
           atomic_load_explicit(&slot->start_ticks, memory_order_relaxed) == process->start_ticks;
}

int board_find_device(const struct board_slot *slot, const uint64_t uuid[2])
{
    uint32_t count = atomic_load_explicit(&slot->device_count, memory_order_seq_cst);
    for (uint32_t i = 0; i < count && i < BOARD_DEVICES; i++)
        if (board_uuid_equals(slot->devices[i].uuid, uuid))
            return (int)i;
    return -1;
}

struct board_bytes board_bytes_of(const struct board_slot *slot, unsigned place, uint64_t total)
{
    const struct board_slot_device *device = &slot->devices[place];
    struct board_bytes bytes;
    uint64_t cached = atomic_load_explicit(&device->cached, memory_order_relaxed);
    /* Pairs with the release store in board_publish. So this process sees the bytes that the owner
     * had given to others before that store. */
    uint64_t pending = atomic_load_explicit(&device->pending, memory_order_acquire);
    bytes.cached = smaller_of(cached, total);
    uint64_t in_order = atomic_load_explicit(&slot->in_order[place], memory_order_relaxed);
    bytes.pending = smaller_of(pending, total - bytes.cached);
    bytes.in_order = smaller_of(in_order, bytes.pending);
    return bytes;
}

/* Most ending processes have ended after this time. One that takes longer hangs, and its bytes no
 * longer count. */
#define ENDING_NANOSECONDS UINT64_C(1000000000)

/* Returns the bytes that an ending process frees by its end, all as pending. published: the bytes
 * that it published before. */
static struct board_bytes bytes_at_end(const struct board_slot *slot, unsigned place,
                                       uint64_t total, uint64_t published)
{
    uint64_t since = atomic_load_explicit(&slot->ends_since, memory_order_relaxed);
    uint64_t at_end = atomic_load_explicit(&slot->at_end[place], memory_order_relaxed);
    bool hangs = since && rest_of(monotonic_now(), since) > ENDING_NANOSECONDS;
    return (struct board_bytes){.pending =
                                    hangs ? 0 : smaller_of(larger_of(at_end, published), total)};
}

struct board_bytes board_bytes_available(const struct board_slot *slot, unsigned place,
                                         uint64_t total, uint32_t listens)
{
    struct board_bytes bytes = board_bytes_of(slot, place, total);
    if (bytes.cached <= BOARD_NEARLY_NOTHING)
        bytes.cached = 0;
    if (listens == BOARD_ENDS)
        return bytes_at_end(slot, place, total, saturating_sum(bytes.cached, bytes.pending));
    return bytes;
}

bool board_is_of_group(const struct board_slot *slot, const uint64_t group[BOARD_GROUP_BYTES / 8])
{
    for (unsigned i = 0; i < BOARD_GROUP_BYTES / 8; i++)
        if (atomic_load_explicit(&slot->group[i], memory_order_relaxed) != group[i])
            return false;
    return group[0] != 0;
}

static const struct board_silent *find_silent(const struct board_silent silent[BOARD_SILENT],
                                              uint64_t token, uint64_t now)
{
    for (unsigned i = 0; i < BOARD_SILENT; i++)
        if (atomic_load_explicit(&silent[i].token, memory_order_relaxed) == token &&
            atomic_load_explicit(&silent[i].until, memory_order_relaxed) > now)
            return &silent[i];
    return NULL;
}

bool board_was_silent(const struct board_silent silent[BOARD_SILENT], uint64_t token, uint64_t now)
{
    return find_silent(silent, token, now) != NULL;
}

bool board_does_not_answer(const struct board *board, const struct board_slot *slot, uint64_t token,
                           uint64_t now)
{
    const struct board_silent *record = find_silent(board->silent, token, now);
    if (!record)
        return false;
    uint32_t asked = (uint32_t)atomic_load_explicit(&record->asked, memory_order_relaxed);
    uint32_t answered = atomic_load_explicit(&slot->answered, memory_order_relaxed);
    return (int32_t)(answered - asked) < 0;
}

void board_note_silent(struct board_silent silent[BOARD_SILENT], uint64_t token, uint32_t asked,
                       uint64_t now)
{
    struct board_silent *place = &silent[0];
    for (unsigned i = 0; i < BOARD_SILENT; i++) {
        bool is_its = atomic_load_explicit(&silent[i].token, memory_order_relaxed) == token;
        if (is_its || atomic_load_explicit(&silent[i].until, memory_order_relaxed) <
                          atomic_load_explicit(&place->until, memory_order_relaxed))
            place = &silent[i];
        if (is_its)
            break;
    }
    atomic_store_explicit(&place->token, token, memory_order_relaxed);
    atomic_store_explicit(&place->asked, asked, memory_order_relaxed);
    atomic_store_explicit(&place->until, now + BOARD_SILENT_NANOSECONDS, memory_order_relaxed);
}
