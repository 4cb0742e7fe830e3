/*
 * One process's view of the board (board.h), for the sources in core/board and their tests.
 *
 * struct board lies in memory that the kernel zeroes in every forked child, however the child was
 * made (MADV_WIPEONFORK). A child does not have the mapping of the file either. So map is NULL in a
 * child, board_own_slot returns NULL, and no function touches the file.
 */
#ifndef CUDAPOOL_CORE_BOARD_STATE_H
#define CUDAPOOL_CORE_BOARD_STATE_H

#include <limits.h>

#include "board_layout.h"
#include "core/base/lock.h"

/* A process that has been silent is not asked again for this long. */
#define BOARD_SILENT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* While other processes' numbers are read, the liveness of these is tested this often. */
#define BOARD_LIFE_NANOSECONDS (UINT64_C(10) * 1000 * 1000)

/* Processes that have been silent, by their tokens, with the wake count that asked them. Several
 * threads may store a record at once, so its fields may come from different threads. Then a process
 * is asked once too often, or once too seldom. */
#define BOARD_SILENT 64u
struct board_silent {
    board_word token, until, asked; /* relaxed */
};

struct board_target {
    uint32_t slot;
    uint32_t asked; /* the value of its wake word when it was asked */
    uint64_t token;
    uint64_t given_before, given, pending, in_order; /* as last read from its slot */
    uint32_t entry; /* index in this process's slot; BOARD_ENTRIES: no entry of its own */
    uint64_t bytes; /* that it is asked for */
    bool had_some;  /* it had published that it has memory to give */
    bool answered, silent, gone; /* gone: it has ended, or stopped listening */
};

/* A demand of another process, and when it was first seen. If there are more than BOARD_FIRST_SEEN,
 * the one seen first is forgotten and counts as new. */
struct board_first_seen {
    uint64_t token; /* of the asking process */
    uint32_t number;
    uint64_t since; /* nanoseconds of the monotonic clock */
};
#define BOARD_FIRST_SEEN 64u

/* Another process's entry that this process has looked at, and gives memory for. */
struct board_seen {
    uint32_t slot, entry;
    uint64_t token;
    uint32_t number;
};
#define BOARD_SEEN 512u

/* An active demand belongs to the thread that asked. The board lock guards under_way and the set of
 * used entries. */
struct board_demand {
    struct board *board;
    bool under_way, has_waited, asked_all;
    uint64_t asked_at; /* on the monotonic clock; silence counts from this time */
    enum board_entry_kind kind;
    uint32_t number;
    uint64_t uuid[2]; /* 0: every device */
    uint64_t device_total;
    uint64_t entries; /* a bit for each entry that it has in this process's slot */
    unsigned count;
    struct board_target targets[BOARD_SLOTS];
};
_Static_assert(BOARD_ENTRIES <= 64, "a bit for each");

/* Bytes that others can have at once, bytes that they can have once GPU work has completed, and
 * pending bytes that were freed in stream order. Nobody waits for the last. */
enum board_sort { BOARD_CACHED, BOARD_PENDING, BOARD_IN_ORDER, BOARD_SORTS };

/* What was read of a process that may be asked. */
struct board_candidate {
    uint32_t slot;
    bool planned[BOARD_SORTS]; /* it is to be asked for its bytes of this sort */
    uint64_t token, has[BOARD_SORTS], asked;
};

struct board {
    struct board_start start;
    struct board_map *map; /* NULL: this is a forked child */
    unsigned slot;
    uint64_t token;
    uint64_t group[BOARD_GROUP_BYTES / 8]; /* text */
    uint64_t pid_namespace;
    uint64_t silence;   /* BOARD_SILENCE_NANOSECONDS, or longer in a test */
    _Atomic bool left;  /* board_leave was called */
    _Atomic bool moved; /* another file has replaced the board's */

    /* The file, for testing its locks. */
    char path[PATH_MAX];
    uint64_t device, inode;
    board_word life_due;    /* when liveness is to be tested next; relaxed */
    _Atomic bool life_busy; /* a thread tests liveness; acquired and released */

    pthread_mutex_t lock; /* the board lock: guards the devices and their number */
    uint32_t device_count;
    uint64_t uuids[BOARD_DEVICES][2];
    /* What the process holds of its group's limit, in memory that no other process can write. */
    board_word held[BOARD_DEVICES];

    /* This process's demands. */
    uint64_t entries;      /* a bit for each in use; guarded by the board lock */
    uint32_t demand_count; /* so far, modulo 2^32; guarded by the board lock */
    struct board_demand demands[BOARD_DEMANDS];
    struct board_candidate candidates[BOARD_SLOTS]; /* guarded by the board lock */
    struct board_silent silent[BOARD_SILENT];

    /* Demands of other processes, for one thread, the housekeeper. slept and looked are values of
     * the wake word. */
    uint32_t slept;  /* when the thread last woke up */
    uint32_t looked; /* before the thread last looked at demands */
    bool has_looked; /* demands were looked at since they were last answered */
    bool was_asked;  /* there were demands when they were last looked at */
    unsigned wakes_for_nothing;
    struct board_first_seen first_seen[BOARD_FIRST_SEEN];
    unsigned seen_count; /* counted since has_looked was set */
    struct board_seen seen[BOARD_SEEN];

    /* Groups. The group lock guards these, and is held while a rival is waited for. */
    pthread_mutex_t group_lock;
    uint32_t rival_raises[BOARD_SLOTS];
    bool is_rival[BOARD_SLOTS];
    struct board_silent stuck[BOARD_SILENT]; /* processes that have stopped between two steps */
};

/* The directory that contains the board directory of each user (cudapool-UID). */
#define BOARD_BASE "/dev/shm"

/* For tests: work like board_join and board_visit, with base in place of BOARD_BASE. */
struct board *board_join_below(const char *base, const char *group, const char **why);
struct board *board_visit_below(const char *base, const char **why);

/* For tests: unmaps the board and frees struct board, as the end of the process would. No other
 * thread may be using the board. */
void board_discard(struct board *board);

/* Returns this process's slot, also after board_leave; NULL where the process is not, or no longer,
 * on the board. */
static inline struct board_slot *board_member_slot(const struct board *board)
{
    if (!board || !board->map || atomic_load_explicit(&board->moved, memory_order_relaxed))
        return NULL;
    struct board_slot *slot = &board->map->slots[board->slot];
    uint64_t token = atomic_load_explicit(&slot->token, memory_order_relaxed);
    return token != 0 && token == board->token ? slot : NULL;
}

/* Returns this process's slot until board_leave is called, and NULL from then on. */
static inline struct board_slot *board_own_slot(const struct board *board)
{
    struct board_slot *slot = board_member_slot(board);
    return slot && !atomic_load_explicit(&board->left, memory_order_relaxed) ? slot : NULL;
}

#endif
