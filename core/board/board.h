/*
 * The board: a shared file by which one user's processes tell each other about the memory of shared
 * devices, and ask each other for it.
 *
 * Each user has one file, /dev/shm/cudapool-UID/board-N (N: BOARD_VERSION), with one slot per
 * process. A slot says how much its process holds, caches and has pending on each device. It also
 * says which group the process belongs to, and what it asks of others. Every process maps the whole
 * file: publishing is a store, reading is a load, and waking a process is a futex in the file. No
 * descriptor stays open, so a program that closes or counts all its descriptors, or passes them to
 * children, notices nothing.
 *
 * Liveness: A process locks its slot's byte of the file (F_OFD_SETLK) and maps the file through the
 * same descriptor. The lock belongs to the open file description, which the mapping keeps alive. So
 * the lock lasts until the process has ended, in whatever way, or has executed another program. No
 * child of a fork inherits it (MADV_DONTFORK). Any process that shares /dev/shm can test the lock,
 * also from another pid namespace or container. A slot whose lock can be taken is free, and the
 * process that takes the lock clears the slot. Where a process cannot open the file to test locks,
 * it takes every process for alive.
 *
 * Fork: A forked child, however it was made, finds struct board zeroed (MADV_WIPEONFORK) and is not
 * on the board. All functions have no effect there. They also have no effect once another file has
 * replaced this one, or once the slot is another process's (after a checkpoint).
 *
 * Trust: Another process's slot is untrusted input. Its contents are copied, clamped and checked,
 * sums saturate, and no index or length from it is followed. If somebody truncates the file,
 * private memory replaces it (core/base/bus_guard.h). The process is alone from then on.
 *
 * Waiting: Only functions that say so wait. Locking: The board lock guards the devices and this
 * process's demands. A thread that takes bytes of a group's limit holds the group lock. Both are
 * leaf locks (core/base/lock.h). A slot's numbers are atomics. After the join these functions
 * allocate no memory, and they never print. All of them accept board == NULL, except
 * board_sleep. A demand belongs to the thread that asked.
 */
#ifndef CUDAPOOL_CORE_BOARD_H
#define CUDAPOOL_CORE_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BOARD_DEVICES     16u /* most devices on one slot; further ones are not on the board */
#define BOARD_SLOTS       512u
#define BOARD_DEMANDS     8u  /* that one process can have active at a time */
#define BOARD_GROUP_BYTES 64u /* of a group's name, with its closing zero */

struct board;

/* Takes a slot on the user's board for this process, as a member of this group (NULL or "": of
 * none).
 *
 * Returns NULL where there is no board, and sets *why to a static text of less than 96 bytes.
 * Reasons: /dev/shm is missing, full or another user's; all slots are taken; memory is short; the
 * kernel lacks such locks (gVisor). Opens files. Waits, for BOARD_SILENCE_NANOSECONDS at most,
 * where another process is making the file. To be called once in a process: a second board would
 * count as another process. Not for programs that run with other rights than their user's. */
struct board *board_join(const char *group, const char **why);

/* Joins the board as a tool, which reads the board and asks others, and has no memory to give. */
struct board *board_visit(const char **why);

/* To be called where the process or tool is about to end. The process gives nothing from then on,
 * answers and asks nobody, and its demands end. What it holds of its group's limit counts until the
 * process has ended, as its memory does. Async-signal-safe: no lock, no wait, no memory function.
 */
void board_leave(struct board *board);

/* To be called in the child of a fork: closes descriptors that were open briefly when the process
 * forked. Async-signal-safe. */
void board_forget(void);

/* Returns the device's place on the slot, below BOARD_DEVICES, or -1 where it has none. The same
 * UUID (of the MIG instance where there is one) always gets the same place. */
int board_device(struct board *board, const unsigned char uuid[16]);

/* ---- what this process has ---- */

/* Publishes the bytes that this process could release to the driver at once, and those that the GPU
 * may still be using. */
void board_publish(struct board *board, int device, uint64_t cached, uint64_t pending);

/* Publishes how many of the pending bytes were freed in stream order: nobody waits for these. To be
 * called before board_publish. */
void board_publish_in_order(struct board *board, int device, uint64_t in_order);

/* A listening process publishes this as cached when it knows of no cached memory. So others still
 * ask it, but count it as nothing. */
#define BOARD_NEARLY_NOTHING 1u

/* Whether a process answers demands, that is, whether its housekeeper runs.
 *
 *   DEAF ----> LISTENS <----> LEAVES ----> DEAF
 *
 * A housekeeper that is about to end leaves: it still counts as listening, looks whether anything
 * is free, and turns deaf if nothing is. If another thread has listened since, it does not turn
 * deaf. An ending process answers no more, but the driver has its memory once it has ended. So all
 * that it had counts as pending until then. */
enum board_listens { BOARD_DEAF, BOARD_LISTENS, BOARD_ENDS, BOARD_LEAVES };

/* Publishes DEAF, LISTENS or LEAVES, where the diagram has such a step. */
void board_publish_listening(struct board *board, enum board_listens listens);

/* Publishes how many bytes of the device the driver has once this process has ended: all that the
 * process has taken, since its last frees may not be published. To be called before
 * board_publish_ending. Async-signal-safe. */
void board_publish_at_end(struct board *board, int device, uint64_t bytes);

/* Publishes that the process is ending: it answers no more, and the driver soon has all its memory.
 * Async-signal-safe. */
void board_publish_ending(struct board *board);

/* ---- what others have ---- */

/* Returns the bytes of the device that other living processes cache and have pending, as they last
 * published. Only processes count that listen and have not been silent lately, each with no more
 * than the device's total. of_group: only processes of this process's group count. Cheap enough for
 * every cuMemGetInfo: it takes no lock, and looks every 10 ms at most which processes have ended.
 */
struct board_bytes {
    uint64_t cached, pending;
    uint64_t in_order; /* part of pending */
};
struct board_bytes board_others(struct board *board, int device, uint64_t device_total,
                                bool of_group);

/* Returns when any process last found that a process with memory of the device had ended:
 * nanoseconds of the monotonic clock, 0: never. The kernel takes a moment to free that memory. */
uint64_t board_ended_at(const struct board *board, int device);

/* ---- demands ---- */

/* Asks other processes to release this many bytes of the device to the driver, and returns at once.
 * Processes that cache most are asked first, each for what it has, until all bytes are asked for.
 * Cached bytes are asked for before pending ones.
 *
 * Returns NULL where nobody has anything, or where all together have less than at_least bytes
 * (unless at_least is 0). Also returns NULL, with *no_place set, where all demands of the process
 * are active; no_place may be NULL. of_group: asks only processes of this process's group. */
struct board_demand;
struct board_demand *board_ask(struct board *board, int device, uint64_t device_total,
                               uint64_t bytes, uint64_t at_least, bool of_group, bool *no_place);

/* Asks all other listening processes only to publish now what they have of the device: what they
 * published before may be a second old. Returns NULL as board_ask does. */
struct board_demand *board_ask_to_tell(struct board *board, int device, uint64_t device_total,
                                       bool of_group, bool *no_place);

/* Returns the progress of a demand. The first call waits until every process that was asked has
 * answered once or counts as silent. Later calls do not wait.
 *
 * A process is silent if it has not answered BOARD_SILENCE_NANOSECONDS after it was asked. A
 * process that published cached memory and is not stopped has BOARD_SLOW_SILENCES times as long. A
 * busy machine may keep it from its processor. A tool's demand allows no such extra time. A silent
 * process is not asked again for ten seconds, unless it has answered since. */
#define BOARD_SILENCE_NANOSECONDS (UINT64_C(100) * 1000 * 1000)
#define BOARD_SLOW_SILENCES       20u
struct board_progress {
    /* Bytes released to the driver since the demand, as those asked say. A process that has ended
     * since counts as if it had given all that it was asked for. */
    uint64_t given;
    uint64_t pending; /* bytes that those who answered may still give once GPU work has completed */
    uint64_t in_order;      /* part of pending: freed in stream order */
    unsigned asked, silent; /* processes */
    bool asked_all;         /* that listen; false: others may have more than they have published */
};
struct board_progress board_demand_look(struct board_demand *demand);

/* Ends the demand, met or not. */
void board_demand_end(struct board_demand *demand);

/* For a tool: asks a process to release all that it caches on the device to the driver. process:
 * one that board_next_process has returned, or NULL for all of the user's processes. uuid: NULL for
 * all devices. Returns NULL, with *why, where the process has ended or does not listen. */
struct board_process;
struct board_demand *board_trim(struct board *board, const struct board_process *process,
                                const unsigned char *uuid, const char **why);

/* ---- the housekeeper's side ---- */

/* All functions of this section are for one thread of the process at a time, the housekeeper.
 *
 * Sleeps until another process asks, or the monotonic clock shows until (UINT64_MAX: never).
 * Rarely, it returns for no reason. Returns at once where another process has asked since it last
 * returned. Not a cancellation point. Also works once the process is no longer on the board. */
void board_sleep(struct board *board, uint64_t until);

/* Returns what others now want of this process's memory on the device, less what board_give has
 * reported; 0: nothing. trim: a tool is among them, which wants everything. tell: a process wants
 * to know what there is. A wish lasts until its demand ends, so that pending memory can be given
 * later, with another board_give. A process that sleeps in board_demand_look waits until board_take
 * was called for all devices, and then board_answered. */
struct board_wish {
    uint64_t bytes;
    bool trim, tell;
};
struct board_wish board_take(struct board *board, int device);

/* board_give reports that this many bytes of the device were released to the driver for others; 0
 * is allowed. board_answered tells others that all demands were looked at. It is called once for
 * all devices, after what is cached and pending now was published. */
void board_give(struct board *board, int device, uint64_t bytes);
void board_answered(struct board *board);

/* ---- groups ---- */

/* Takes bytes of the device for this process if all processes of its group then hold no more than
 * limit, and returns false otherwise. The group never holds more than the limit. If two processes
 * compete for the last bytes, one of them gets them (board_group.c says why). May wait, for
 * BOARD_SILENCE_NANOSECONDS at most, where another process is between two steps. Processes that
 * have ended do not count.
 *
 * A process without a group is a group of its own, and so is one that is no longer on the board.
 * Returns true where board is NULL or device is -1: nothing is known then of what is held, and the
 * caller compares. */
bool board_group_take(struct board *board, int device, uint64_t bytes, uint64_t limit);
void board_group_give(struct board *board, int device, uint64_t bytes);

/* Returns the bytes that the group holds on the device, with this process's. */
uint64_t board_group_held(struct board *board, int device);

/* ---- limits that a tool changes ---- */

/* The limits of a running process: the bytes of each device that it may take, and that its group
 * may. */
enum board_limit { BOARD_LIMIT_OF_PROCESS, BOARD_LIMIT_OF_GROUP, BOARD_LIMITS };

/* A limit is a multiple of BOARD_LIMIT_STEP bytes; others are rounded down. BOARD_LIMIT_AT_START
 * stands for the limit that the process began with. */
#define BOARD_LIMIT_STEP     4096u
#define BOARD_LIMIT_AT_START UINT64_MAX

/* Reads the limits in bytes that tools have set for this process. False where it is not, or no
 * longer, on the board. */
bool board_read_limits(const struct board *board, uint64_t bytes[BOARD_LIMITS]);

/* struct board begins with these. limit_changes counts up whenever a tool has set a limit of this
 * process; NULL in a forked child. */
struct board_start {
    const _Atomic(uint64_t) *limit_changes;
};

/* For a tool: sets a limit of this process, or of all processes of its group, and returns of how
 * many. process: one that board_next_process has returned. For a group only its group need be
 * filled in. A process that joins the board later has the limit of its group while one process of
 * the group is on the board. It has its parent's limit if the parent is there. */
struct board_process;
unsigned board_set_limit(struct board *board, const struct board_process *process,
                         enum board_limit limit, uint64_t bytes);

/* ---- processes on the board ---- */

/* Returns one living process after the other, with this one but without tools. *slot begins at 0.
 * Returns false after the last process. held: counted only for processes that belong to a group, or
 * were given a limit. */
struct board_process {
    int32_t pid;
    uint64_t pid_namespace; /* the namespace's inode, 0: unknown; pid is the number in it */
    uint64_t start_ticks;
    char group[BOARD_GROUP_BYTES];
    uint64_t limits[BOARD_LIMITS]; /* that a tool has set; BOARD_LIMIT_AT_START: none */
    bool listens, asks;            /* asks: it is out of memory, and has an active demand */
    unsigned device_count;
    struct board_process_device {
        unsigned char uuid[16];
        uint64_t held, cached, pending;
        uint64_t given; /* to other processes, so far */
    } devices[BOARD_DEVICES];
};
bool board_next_process(struct board *board, unsigned *slot, struct board_process *process);

#endif
