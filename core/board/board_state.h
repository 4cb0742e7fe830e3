/*
 * The board as one process has it (board.h): for core/board's own sources, and their tests.
 *
 * struct board lies in memory that the kernel hands zeroed to every child of a fork
 * (MADV_WIPEONFORK), however the child was made. The mapping of the file is not there in a child at
 * all. So in a child map is NULL, and board_own_slot gives NULL: no function touches the file.
 */
#ifndef CUDAPOOL_CORE_BOARD_STATE_H
#define CUDAPOOL_CORE_BOARD_STATE_H

#include <limits.h>

#include "board_layout.h"
#include "core/base/lock.h"

/* Who has been silent is left alone for so long. */
#define BOARD_SILENT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* While numbers of others are read, it is looked this often which of them have ended. */
#define BOARD_LIFE_NANOSECONDS (UINT64_C(10) * 1000 * 1000)

/* Processes that have been silent, by their tokens, and the count that asked them. Several threads
 * may store, each a whole record whose parts belong together only by chance: then one is asked once
 * more, or once less. */
#define BOARD_SILENT 64u
struct board_silent {
    board_word token, until, asked; /* relaxed */
};

struct board_target {
    uint32_t slot;
    uint32_t asked; /* the count of its wake word that asked it */
    uint64_t token;
    uint64_t given_before, given, pending, in_order; /* as last read from its slot */
    uint32_t entry;              /* in the own slot; BOARD_ENTRIES: none of its own */
    uint64_t bytes;              /* it is asked for so many */
    bool had_some;               /* it had said that it has memory to give */
    bool answered, silent, gone; /* gone: it has ended, or stopped to listen */
};

/* A demand of another process, since when it was first seen. Of more than so many the one that was
 * seen first is forgotten, and counts as new. */
struct board_first_seen {
    uint64_t token; /* of who asks */
    uint32_t number;
    uint64_t since; /* nanoseconds of the monotonic clock */
};
#define BOARD_FIRST_SEEN 64u

/* An entry of another process that this one has looked at, and gives for. */
struct board_seen {
    uint32_t slot, entry;
    uint64_t token;
    uint32_t number;
};
#define BOARD_SEEN 512u

/* While it is under way it belongs to the thread that has asked; the lock guards under_way and
 * which entries are taken. */
struct board_demand {
    struct board *board;
    bool under_way, has_waited;
    uint64_t asked_at; /* on the monotonic clock: silence counts from there */
    enum board_entry_kind kind;
    uint32_t number;
    uint64_t uuid[2]; /* 0: every device */
    uint64_t device_total;
    uint64_t entries; /* a bit for each that it has in the own slot */
    unsigned count;
    struct board_target targets[BOARD_SLOTS];
};
_Static_assert(BOARD_ENTRIES <= 64, "a bit for each");

/* What can be had at once, when the GPU is past it, and the same of what was freed in a stream's
 * order, for which nobody waits. */
enum board_sort { BOARD_CACHED, BOARD_PENDING, BOARD_IN_ORDER, BOARD_SORTS };

/* Of a process that may be asked, when it was looked at. */
struct board_candidate {
    uint32_t slot;
    bool planned[BOARD_SORTS]; /* to be asked for its bytes of this sort */
    uint64_t token, has[BOARD_SORTS], asked;
};

struct board {
    struct board_map *map; /* NULL: this is a forked child */
    unsigned slot;
    uint64_t token;
    uint64_t group[BOARD_GROUP_BYTES / 8]; /* text */
    uint64_t pid_namespace;
    uint64_t silence;   /* BOARD_SILENCE_NANOSECONDS, or what a test has more patience for */
    _Atomic bool left;  /* board_leave was called */
    _Atomic bool moved; /* another file is where this one was */

    /* The file, for looking at its locks. */
    char path[PATH_MAX];
    uint64_t device, inode;
    board_word life_due;    /* when it is looked again who has ended; relaxed */
    _Atomic bool life_busy; /* a thread looks: acquired, and released */

    /* The devices. Guarded by the board lock where they are added; the release store to
     * device_count pairs with the acquire loads of all others. */
    pthread_mutex_t lock; /* the board lock */
    board_half device_count;
    uint64_t uuids[BOARD_DEVICES][2];
    /* What the process holds of its group's limit, which nobody else can write. */
    board_word held[BOARD_DEVICES];

    /* Demands of this process. */
    uint64_t entries;      /* a bit for each in use; guarded by the board lock */
    uint32_t demand_count; /* so far, modulo 2^32; guarded by the board lock */
    struct board_demand demands[BOARD_DEMANDS];
    struct board_candidate candidates[BOARD_SLOTS]; /* guarded by the board lock */
    struct board_silent silent[BOARD_SILENT];

    /* Demands of others; for one thread, the housekeeper. Counts of the wake word. */
    uint32_t slept;  /* when it last came back from its sleep */
    uint32_t looked; /* before demands were last looked at */
    bool has_looked; /* since they were last answered */
    bool was_asked;  /* when demands were last looked at, there were some */
    unsigned wakes_for_nothing;
    struct board_first_seen first_seen[BOARD_FIRST_SEEN];
    unsigned seen_count; /* since has_looked was set */
    struct board_seen seen[BOARD_SEEN];
    board_half calls;  /* of board_wake; a futex for a process that has no slot any more */
    uint32_t calls_of; /* when it last came back */

    /* Groups: guarded by the group lock, which is held while a rival is waited for. */
    pthread_mutex_t group_lock;
    uint32_t rival_raises[BOARD_SLOTS];
    bool is_rival[BOARD_SLOTS];
    struct board_silent stuck[BOARD_SILENT]; /* processes between two steps that do not go on */
};

/* The own slot, also at the process's end; NULL where the process is not on the board (any more).
 */
static inline struct board_slot *board_member_slot(const struct board *board)
{
    if (!board || !board->map || atomic_load_explicit(&board->moved, memory_order_relaxed))
        return NULL;
    struct board_slot *slot = &board->map->slots[board->slot];
    uint64_t token = atomic_load_explicit(&slot->token, memory_order_relaxed);
    return token != 0 && token == board->token ? slot : NULL;
}

/* The same, until board_leave. */
static inline struct board_slot *board_own_slot(const struct board *board)
{
    struct board_slot *slot = board_member_slot(board);
    return slot && !atomic_load_explicit(&board->left, memory_order_relaxed) ? slot : NULL;
}

#endif
