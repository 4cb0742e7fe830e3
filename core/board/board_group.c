/*
 * Keeps each group of processes from holding more of a device together than a limit (board.h).
 *
 * A process takes bytes in three steps:
 * 1. It raises tentative of its slot by the bytes.
 * 2. It sums held and tentative of all slots of the group. Of each slot it reads tentative first.
 * 3. If sum <= limit, it raises held, then lowers tentative. Otherwise it lowers tentative.
 *
 * All these loads and stores are sequentially consistent, so there is one order of all of them.
 * Invariant: held + tentative, as a process reads it from a slot, >= what the slot's process really
 * holds. This is true because a process adds bytes to held before it removes them from tentative,
 * and readers load the two in the opposite order.
 *
 * Never over the limit: Suppose the group holds more than the limit at some moment. Each process
 * raised the bytes that it holds at that moment. From that raise on, its held or tentative has
 * contained these bytes without a break. One of the raises was the last. The process that made the
 * last raise read every slot after it. So that process saw at least the sum of all raises, which is
 * more than the limit. So it did not take its bytes, which contradicts the assumption.
 *
 * One of two rivals wins: The bytes held may leave room for a process, while the raises of its
 * rivals do not. Then the process with the lowest slot keeps its raise and sums again. Each other
 * process lowers its raise, and waits until no lower slot has a raise, or until the next test of
 * liveness. Then it raises again. So the process with the lowest slot succeeds, and the others
 * follow. A rival may make no progress for BOARD_SILENCE_NANOSECONDS. The process that waited then
 * gives up and notes the rival as stopped. For ten seconds that process counts the rival's raise as
 * held and does not wait for it.
 *
 * Ended processes: A process that would exceed the limit first clears the slots of members that
 * have ended.
 *
 * Part of the preload object: libc only.
 */
#include "board_file.h"
#include "board_slot.h"
#include "core/base/clock.h"

/* A process that waits for rivals tests their liveness at intervals of this length. */
#define LOOK_NANOSECONDS UINT64_C(5000000)

/* The sum of the group may change while a process reads it. After this many sums over the limit,
 * the next sum over the limit decides. */
#define LOOKS_MOST 16

struct attempt {
    struct board *board;
    int device;
    uint64_t bytes, limit;
    uint64_t until;     /* when the wait for rivals ends; 0: there was none yet */
    uint64_t look_due;  /* when liveness is to be tested next; 0: at once */
    uint64_t last_seen; /* fingerprint of the last sum that was over the limit */
    unsigned looks;     /* sums over the limit so far */
};

struct sums {
    uint64_t held;        /* held, or raised by stopped processes: no wait frees these bytes */
    uint64_t raised;      /* by rivals that may be waited for */
    uint64_t fingerprint; /* a hash of the held bytes of each slot */
    bool rival_below;     /* one of these rivals has a lower slot */
};

/* ---- the group's numbers ---- */

/* Returns the slot's record of the device; NULL: the slot is not of the group, or does not have the
 * device. */
static const struct board_slot_device *member_device(const struct board *board, unsigned index,
                                                     int device)
{
    const struct board_slot *slot = &board->map->slots[index];
    if (atomic_load_explicit(&slot->token, memory_order_seq_cst) == 0 ||
        !board_is_of_group(slot, board->group))
        return NULL;
    int place = board_find_device(slot, board->uuids[device]);
    return place < 0 ? NULL : &slot->devices[place];
}

static void add_member(struct sums *sums, const struct board *board, unsigned index,
                       const struct board_slot_device *member, uint64_t now)
{
    /* tentative before held: see the file's opening comment. */
    uint64_t raised = atomic_load_explicit(&member->tentative, memory_order_seq_cst);
    uint64_t held = atomic_load_explicit(&member->held, memory_order_seq_cst);
    uint64_t token = atomic_load_explicit(&board->map->slots[index].token, memory_order_relaxed);
    sums->held = saturating_sum(sums->held, held);
    sums->fingerprint = (sums->fingerprint ^ held ^ index) * UINT64_C(0x9e3779b97f4a7c15);
    if (index == board->slot || raised == 0)
        return;
    if (board_was_silent(board->stuck, token, now)) {
        sums->held = saturating_sum(sums->held, raised);
        return;
    }
    sums->raised = saturating_sum(sums->raised, raised);
    sums->rival_below = sums->rival_below || index < board->slot;
}

static struct sums sum_group(const struct board *board, int device, uint64_t now)
{
    struct sums sums = {0};
    unsigned slots = board_slots(board);
    for (unsigned i = 0; i < slots; i++) {
        const struct board_slot_device *member = member_device(board, i, device);
        if (member)
            add_member(&sums, board, i, member, now);
    }
    return sums;
}

/* Clears the slots of those members that have ended. */
static void clear_ended_members(struct board *board, int device)
{
    unsigned slots = board_slots(board);
    struct board_probe probe = board_probe_begin(board);
    for (unsigned i = 0; i < slots; i++)
        if (i != board->slot && member_device(board, i, device))
            board_probe_lives(&probe, i);
    board_probe_end(&probe);
}

/* ---- rivals that have stopped ---- */

static bool has_raised(const struct board *board, unsigned index, int device, uint32_t *raises)
{
    const struct board_slot_device *member =
        index == board->slot ? NULL : member_device(board, index, device);
    if (!member)
        return false;
    *raises = atomic_load_explicit(&member->raises, memory_order_seq_cst);
    return atomic_load_explicit(&member->tentative, memory_order_seq_cst) != 0;
}

static void remember_rivals(struct board *board, int device)
{
    lock_must_be_held(&board->group_lock);
    for (unsigned i = 0; i < BOARD_SLOTS; i++)
        board->is_rival[i] = has_raised(board, i, device, &board->rival_raises[i]);
}

/* Notes a rival as stuck if it has not lowered its raise since the wait began. */
static void note_stuck_rivals(struct board *board, int device, uint64_t now)
{
    lock_must_be_held(&board->group_lock);
    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        uint32_t raises;
        if (board->is_rival[i] && has_raised(board, i, device, &raises) &&
            raises == board->rival_raises[i])
            board_note_silent(board->stuck, board_token_of_other(board, i), 0, now);
    }
}

/* ---- taking ---- */

static struct board_slot_device *own_device(struct board *board, int device)
{
    return &board->map->slots[board->slot].devices[device];
}

static void raise_own(const struct attempt *attempt)
{
    struct board_slot_device *own = own_device(attempt->board, attempt->device);
    atomic_fetch_add_explicit(&own->raises, 1, memory_order_seq_cst);
    atomic_store_explicit(&own->tentative, attempt->bytes, memory_order_seq_cst);
}

static void lower_own(const struct attempt *attempt)
{
    atomic_store_explicit(&own_device(attempt->board, attempt->device)->tentative, 0,
                          memory_order_seq_cst);
}

static void wait_until_none_is_below(const struct attempt *attempt)
{
    uint64_t began = monotonic_now(), now = began;
    while (now < attempt->until && now < attempt->look_due &&
           sum_group(attempt->board, attempt->device, now).rival_below) {
        patient_nap(began);
        now = monotonic_now();
    }
}

enum verdict { WITHIN, OVER, AGAIN };

/* Clears the slots of members that have ended, after the first sum over the limit. Returns true
 * once two successive sums over the limit have equal fingerprints, or after LOOKS_MOST sums. */
static bool is_surely_over(struct attempt *attempt, const struct sums *sums)
{
    if (attempt->looks++ == 0)
        clear_ended_members(attempt->board, attempt->device);
    else if (sums->fingerprint == attempt->last_seen || attempt->looks > LOOKS_MOST)
        return true;
    attempt->last_seen = sums->fingerprint;
    return false;
}

static enum verdict wait_for_rivals(struct attempt *attempt, const struct sums *sums, uint64_t now)
{
    struct board *board = attempt->board;
    if (attempt->until == 0) {
        attempt->until = now + board->silence;
        remember_rivals(board, attempt->device);
    }
    if (now >= attempt->until) {
        note_stuck_rivals(board, attempt->device, now);
        return OVER;
    }
    if (now >= attempt->look_due) {
        clear_ended_members(board, attempt->device);
        attempt->look_due = now + LOOK_NANOSECONDS;
    }
    if (sums->rival_below) {
        lower_own(attempt);
        wait_until_none_is_below(attempt);
        raise_own(attempt);
    } else {
        patient_nap(attempt->until - board->silence);
    }
    return AGAIN;
}

static enum verdict look(struct attempt *attempt)
{
    uint64_t now = monotonic_now();
    struct sums sums = sum_group(attempt->board, attempt->device, now);
    uint64_t certain = saturating_sum(sums.held, attempt->bytes);
    if (saturating_sum(certain, sums.raised) <= attempt->limit)
        return WITHIN;
    if (certain > attempt->limit)
        return is_surely_over(attempt, &sums) ? OVER : AGAIN;
    return wait_for_rivals(attempt, &sums, now);
}

/* Takes bytes for a process that has no group or is no longer on the board. Relaxed: held of this
 * process is the whole sum, and only threads of this process change it. */
static bool take_alone(struct board *board, int device, uint64_t bytes, uint64_t limit)
{
    board_word *held = &board->held[device];
    uint64_t before = atomic_load_explicit(held, memory_order_relaxed);
    do
        if (saturating_sum(before, bytes) > limit)
            return false;
    while (!atomic_compare_exchange_weak_explicit(held, &before, before + bytes,
                                                  memory_order_relaxed, memory_order_relaxed));
    return true;
}

static bool take_of_group(struct attempt *attempt)
{
    struct board *board = attempt->board;
    enum verdict verdict;
    lock_must_be_held(&board->group_lock);
    raise_own(attempt);
    do
        verdict = look(attempt);
    while (verdict == AGAIN && board_member_slot(board));
    /* The file may have been truncated or replaced meanwhile. Then the sums say nothing. */
    bool is_member = board_member_slot(board) != NULL;
    if (verdict == WITHIN && is_member) {
        atomic_fetch_add_explicit(&own_device(board, attempt->device)->held, attempt->bytes,
                                  memory_order_seq_cst);
        atomic_fetch_add_explicit(&board->held[attempt->device], attempt->bytes,
                                  memory_order_relaxed);
    }
    lower_own(attempt);
    if (!is_member)
        return take_alone(board, attempt->device, attempt->bytes, attempt->limit);
    return verdict == WITHIN;
}

bool board_group_take(struct board *board, int device, uint64_t bytes, uint64_t limit)
{
    if (!board || !board->map || device < 0)
        return true;
    if (board->group[0] == 0 || !board_member_slot(board))
        return take_alone(board, device, bytes, limit);
    struct attempt attempt = {.board = board, .device = device, .bytes = bytes, .limit = limit};
    lock_take(&board->group_lock, LOCK_GROUP);
    bool taken = take_of_group(&attempt);
    lock_give(&board->group_lock);
    return taken;
}

/* Lowers the word by the bytes, but not below 0. */
static void lower(board_word *word, uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(word, &before, rest_of(before, bytes),
                                                  memory_order_seq_cst, memory_order_relaxed))
        ;
}

void board_group_give(struct board *board, int device, uint64_t bytes)
{
    if (!board || !board->map || device < 0)
        return;
    lower(&board->held[device], bytes);
    if (board->group[0] != 0 && board_member_slot(board))
        lower(&own_device(board, device)->held, bytes);
}

uint64_t board_group_held(struct board *board, int device)
{
    if (!board || !board->map || device < 0)
        return 0;
    if (board->group[0] == 0 || !board_member_slot(board))
        return atomic_load_explicit(&board->held[device], memory_order_relaxed);
    board_clear_ended(board);
    return sum_group(board, device, monotonic_now()).held;
}
