/*
 * Joins the board and leaves it (board.h).
 *
 * Part of the preload object: libc only.
 */
#include "board_state.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "board_file.h"
#include "board_slot.h"
#include "core/base/bus_guard.h"
#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/base/process.h"

/* The join is tried this often at most: another process may remove or replace the file just when it
 * is opened. */
#define TRIES 3

/* A mapping of its own, since the kernel zeroes whole pages in a child (MADV_WIPEONFORK). */
static struct board *make_board(const char *group)
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (board == MAP_FAILED)
        return NULL;
    pthread_mutex_init(&board->lock, NULL);
    pthread_mutex_init(&board->group_lock, NULL);
    board->silence = BOARD_SILENCE_NANOSECONDS;
    if (group)
        memcpy(board->group, group, strnlen(group, BOARD_GROUP_BYTES - 1));
    return board;
}

/* Returns a token that is not 0 and, almost surely, not another process's. Where the kernel has no
 * random bytes yet, the clock, the process id and an address replace them. */
static uint64_t random_token(void)
{
    uint64_t token = 0;
    if (getrandom(&token, sizeof token, GRND_NONBLOCK) != sizeof token)
        token = monotonic_now() << 20 ^ (uint64_t)getpid() ^ (uintptr_t)&token << 40;
    return token ? token : 1;
}

/* Takes the lowest free slot, so that readers have few slots to look at. Returns NULL, or the
 * reason for failure. */
static const char *take_slot(struct board *board, int fd)
{
    for (board->slot = 0; board->slot < BOARD_SLOTS; board->slot++) {
        if (board_file_lock(fd, board->slot))
            return NULL;
        if (errno != EAGAIN && errno != EACCES)
            return "this system has no locks that belong to an open file (F_OFD_SETLK)";
    }
    return "all slots of the board are taken";
}

/* Makes readers look at this process's slot. Afterwards header.used > board->slot. Pairs with the
 * load in board_slots. */
static void note_used(struct board *board)
{
    board_half *used = &board->map->header.used;
    uint32_t before = atomic_load_explicit(used, memory_order_relaxed);
    while (before <= board->slot &&
           !atomic_compare_exchange_weak_explicit(used, &before, board->slot + 1,
                                                  memory_order_seq_cst, memory_order_relaxed))
        ;
}

/* The token comes last: from then on the slot counts as taken, and other processes read it. */
static void fill_slot(struct board *board, bool visits)
{
    struct board_slot *slot = &board->map->slots[board->slot];
    /* The slot may have what a process left in it that has ended since. */
    board_slot_end(board->map, board->slot);
    note_used(board);
    board->pid_namespace = process_own_pid_namespace();
    atomic_store_explicit(&slot->pid, (uint32_t)getpid(), memory_order_relaxed);
    atomic_store_explicit(&slot->visits, visits, memory_order_relaxed);
    atomic_store_explicit(&slot->pid_namespace, board->pid_namespace, memory_order_relaxed);
    atomic_store_explicit(&slot->start_ticks, process_own_start_ticks(), memory_order_relaxed);
    for (unsigned i = 0; i < BOARD_GROUP_BYTES / 8; i++)
        atomic_store_explicit(&slot->group[i], board->group[i], memory_order_relaxed);
    board->token = random_token();
    atomic_store_explicit(&slot->token, board->token, memory_order_seq_cst);
    board_limits_take_over(board, (int32_t)getppid());
    board->start.limit_changes = &slot->limit_changes;
}

/* Tests that the lock outlasts the descriptor: it may not on a file system with locks of its own.
 */
static const char *check_lock(struct board *board)
{
    struct board_probe probe = board_probe_begin(board);
    bool lasts = probe.fd >= 0 && board_file_is_locked(probe.fd, board->slot);
    board_probe_end(&probe);
    return lasts ? NULL : "this system's locks end before what is mapped does";
}

static void unmap(struct board *board)
{
    if (!board->map)
        return;
    bus_guard_end(board->map);
    munmap(board->map, sizeof *board->map);
    board->map = NULL;
}

static const char *map_and_take_slot(struct board *board, int fd, struct board_passing *passing)
{
    const char *why = board_file_map(board, fd, passing);
    if (!why && !bus_guard(board->map, sizeof *board->map, BUS_GUARD_CHILDREN_LACK_IT))
        why = "no handler of SIGBUS can be had";
    return why ? why : take_slot(board, fd);
}

/* Returns NULL, or the reason for failure. *again: another try may succeed. */
static const char *join(struct board *board, const char *base, bool *again)
{
    struct board_passing *passing;
    int fd;
    *again = false;
    const char *why = board_file_open(board, base, &fd, &passing);
    if (why)
        return why;
    why = map_and_take_slot(board, fd, passing);
    if (!why && !board_file_is_open(fd, passing))
        why = "the program has closed the board's file";
    board_file_close(fd, passing);
    if (!why && !board_file_is_current(board)) {
        *again = true;
        why = "the board's file was removed";
    }
    if (!why)
        why = check_lock(board);
    if (why)
        unmap(board);
    return why;
}

static const char *join_and_fill_slot(struct board *board, const char *base, bool visits)
{
    bool again = true;
    const char *why = NULL;
    for (int i = 0; i < TRIES && again; i++)
        why = join(board, base, &again);
    if (why)
        return why;
    /* From here on struct board is zeroed in a child, which tells it that it is one. */
    if (madvise(board, sizeof *board, MADV_WIPEONFORK) != 0) {
        unmap(board);
        return "this system cannot keep memory from children";
    }
    fill_slot(board, visits);
    return NULL;
}

static struct board *join_below(const char *base, const char *group, bool visits, const char **why)
{
    if (getauxval(AT_SECURE)) {
        *why = "the program runs with other rights than its user's";
        return NULL;
    }
    struct board *board = make_board(group);
    *why = board ? join_and_fill_slot(board, base, visits) : "memory is short";
    if (board && *why) {
        munmap(board, sizeof *board);
        board = NULL;
    }
    return board;
}

static struct board *join_quietly(const char *base, const char *group, bool visits,
                                  const char **why)
{
    int error = errno, cancellation = cancellation_off();
    struct board *board = join_below(base, group, visits, why);
    cancellation_restore(cancellation);
    errno = error;
    return board;
}

struct board *board_join_below(const char *base, const char *group, const char **why)
{
    return join_quietly(base, group, false, why);
}

struct board *board_visit_below(const char *base, const char **why)
{
    return join_quietly(base, NULL, true, why);
}

struct board *board_join(const char *group, const char **why)
{
    return join_quietly(BOARD_BASE, group, false, why);
}

struct board *board_visit(const char **why)
{
    return join_quietly(BOARD_BASE, NULL, true, why);
}

/* ---- the end ---- */

void board_leave(struct board *board)
{
    struct board_slot *slot = board_own_slot(board);
    if (!slot)
        return;
    board_publish_ending(board);
    /* Relaxed: another thread may miss it and still store into the slot. Nobody reads what that
     * thread has stored once the process has ended. */
    atomic_store_explicit(&board->left, true, memory_order_relaxed);
    for (unsigned i = 0; i < BOARD_ENTRIES; i++)
        atomic_store_explicit(&slot->entries[i].open, 0, memory_order_relaxed);
}

void board_forget(void)
{
    /* The kernel has zeroed the child's copy of struct board (board_state.h), and the child lacks
     * the mapping. */
    board_file_close_in_child();
}

void board_discard(struct board *board)
{
    unmap(board);
    munmap(board, sizeof *board);
}
