/*
 * The board: what the processes of one user tell each other about the memory of the devices that
 * they share.
 *
 * One file for each user, /dev/shm/cudapool-UID/board-N (N: BOARD_VERSION), with a slot for each
 * process: how much it holds, caches and has pending on each device, of which group it is, and what
 * it asks of others. Every process maps the whole file, so that to publish is a store, to look is a
 * load, and to wake somebody is a futex in the file. No descriptor stays open: a program that
 * closes all descriptors, counts them or hands them to its children notices nothing.
 *
 * Who lives: a process locks its slot's byte of the file (F_OFD_SETLK) and maps the file by the
 * same descriptor. The lock belongs to what was opened, which the mapping keeps, so it lasts until
 * the process has ended or executed another program, whichever way, and no child of a fork inherits
 * it (MADV_DONTFORK). Anybody can ask for the lock, from other pid namespaces and containers that
 * share /dev/shm, too. A slot whose lock can be had is nobody's: whoever gets it clears it. Where
 * no file can be opened to ask, everybody counts as alive.
 *
 * A child of a fork, however it was made, finds struct board zeroed (MADV_WIPEONFORK), and is not
 * on the board: all functions are without effect there, as they are where the file was replaced by
 * another, or the slot is somebody else's (after a checkpoint).
 *
 * Whatever stands in another process's slot is input from a stranger: it is copied, clamped and
 * checked, sums are saturated, and no index or length from there is followed. A file that somebody
 * truncates is replaced by private memory (core/base/bus_guard.h); the process is alone from then
 * on.
 *
 * Waiting: only functions that say so do. Locking: the board lock guards the devices and this
 * process's demands; the group lock is held by who takes bytes of a group's limit; both are leaves
 * (core/base/lock.h). A slot's numbers are atomics. No memory is requested after the join, and none
 * of these functions prints. All of them may be called with board == NULL, but for board_sleep and
 * board_wake; a demand belongs to the thread that has asked.
 */
#ifndef CUDAPOOL_CORE_BOARD_H
#define CUDAPOOL_CORE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#define BOARD_DEVICES     16u /* of one process that can be on its slot; others are not known there */
#define BOARD_SLOTS       512u
#define BOARD_DEMANDS     8u  /* that one process can have under way at a time */
#define BOARD_GROUP_BYTES 64u /* of a group's name, its closing zero included */

struct board;

/* Takes a slot on the user's board, for processes of this group (NULL or "": of none). NULL where
 * there is no board: /dev/shm is missing, full or somebody else's, all slots are taken, memory is
 * short, the kernel has no such locks (gVisor); *why is then a static text of less than 96 bytes.
 * Opens files; waits, for BOARD_SILENCE_NANOSECONDS at most, where another process is making the
 * file. Once in a process: a second board of it would be a stranger to the first. Not for programs
 * that run with others' rights. */
struct board *board_join(const char *group, const char **why);

/* A board of a tool, which looks and asks, and has no memory to give. */
struct board *board_visit(const char **why);

/* The process comes to its own end, or a tool does: it has nothing to give any more, answers and
 * asks nobody, and its demands are over. What it holds of its group's limit counts until the
 * process is gone, as its memory does. Async-signal-safe: no lock, no wait, no memory function. */
void board_leave(struct board *board);

/* In the child of a fork, whether or not the parent has joined (then board is NULL, or joining was
 * under way in another thread): what was open for a moment is closed. Async-signal-safe. */
void board_forget(struct board *board);

/* Whether the process is still on the board: not forgotten, file not truncated, slot still its
 * own. */
bool board_is_joined(const struct board *board);

/* The device's place on the slot, below BOARD_DEVICES; -1: it has none. The same UUID (of the MIG
 * instance where there is one) gets the same place again. */
int board_device(struct board *board, const unsigned char uuid[16]);

/* ---- what this process has ---- */

/* Bytes that it could give back at once, and those that the GPU may still be using. */
void board_publish(struct board *board, int device, uint64_t cached, uint64_t pending);

/* So many of those that are published as pending, before that, were freed in a stream's order:
 * nobody waits for them. */
void board_publish_in_order(struct board *board, int device, uint64_t in_order);

/* Published as cached by who listens and knows of nothing: it is asked then, and counts as nothing.
 */
#define BOARD_NEARLY_NOTHING 1u

/* Whether somebody here answers demands: the housekeeper is there. */
void board_publish_listening(struct board *board, bool listening);

/* The process comes to its end: nobody answers any more, and what it had is the driver's soon.
 * Async-signal-safe. */
void board_publish_ending(struct board *board);

/* ---- what others have ---- */

/* Bytes of the device that other living processes cache, and pend, which listen and have not been
 * silent lately: as they last published, of each no more than the device's total. of_group: those
 * of this process's group alone. Cheap enough for every cuMemGetInfo: it takes no lock, and looks
 * every 10 ms at most who has ended. */
struct board_bytes {
    uint64_t cached, pending;
    uint64_t in_order; /* of what is pending */
};
struct board_bytes board_others(struct board *board, int device, uint64_t device_total,
                                bool of_group);

/* When one was last found to have ended that may have cached memory of the device, whoever found
 * it: nanoseconds of the monotonic clock, 0: never. The kernel takes a moment to give that memory
 * back. */
uint64_t board_ended_at(const struct board *board, int device);

/* ---- demands ---- */

/* Asks others for so many bytes of the device: those that cache most first, each for what it has,
 * until all of it is asked for; what they cache before what they have pending. Returns at once.
 * NULL: nobody has anything, or (unless at_least is 0) what all have is less than at_least bytes;
 * or all demands of the process are under way, which *no_place (NULL: nobody wants to know) says.
 * of_group: asks processes of this process's group alone. */
struct board_demand;
struct board_demand *board_ask(struct board *board, int device, uint64_t device_total,
                               uint64_t bytes, uint64_t at_least, bool of_group, bool *no_place);

/* Asks all others that listen to publish what they have of the device now, and for nothing else:
 * what they published before may be a second old. NULL as above. */
struct board_demand *board_ask_to_tell(struct board *board, int device, uint64_t device_total,
                                       bool of_group, bool *no_place);

/* How far it has come. The first time it waits until everybody has answered once, or is silent:
 * BOARD_SILENCE_NANOSECONDS after it was asked, and BOARD_SLOW_SILENCES times as long if it had
 * said that it caches memory and is not stopped, since a busy machine may keep it from its
 * processor. A tool's demand has no such patience. The next times it does not wait. Who has been
 * silent is not asked again for ten seconds, unless it has answered since. */
#define BOARD_SILENCE_NANOSECONDS (UINT64_C(100) * 1000 * 1000)
#define BOARD_SLOW_SILENCES       20u
struct board_progress {
    uint64_t given;    /* bytes that went back to the driver since the demand, as those asked say */
    uint64_t pending;  /* bytes that those who answered may still give, once the GPU is past them */
    uint64_t in_order; /* of these: freed in a stream's order */
    unsigned asked, silent; /* processes */
    unsigned ended;         /* those that did since, with all that they had: it counts as given */
};
struct board_progress board_demand_look(struct board_demand *demand);

/* The demand is over, met or not. */
void board_demand_end(struct board_demand *demand);

/* For a tool: asks a process, which board_next_process has told of (NULL: all of the user's), for
 * all that it caches on the device (NULL: on all). NULL with *why where there is no such process
 * any more, or it does not listen. */
struct board_process;
struct board_demand *board_trim(struct board *board, const struct board_process *process,
                                const unsigned char *uuid, const char **why);

/* ---- the housekeeper's side ---- */

/* For one thread of the process at a time, the housekeeper, like all of this section. Sleeps until
 * somebody asks, or wake is called, or the monotonic clock shows until (UINT64_MAX: for ever), or,
 * rarely, for no reason. Returns at once where one of the first two came since it last returned.
 * Not a cancellation point. The process need not be on the board any more. */
void board_sleep(struct board *board, uint64_t until);
void board_wake(struct board *board);

/* What others want of this process's memory on the device now, in all, beyond what board_give has
 * said; 0: nothing. trim: whether a tool is among them, which takes all. tell: whether somebody
 * wants to know what there is. It stays wanted until the demand is over, so that what is pending
 * can be given later, with another board_give. Who sleeps in board_demand_look waits until
 * board_take was called for all devices, and board_answered. */
struct board_wish {
    uint64_t bytes;
    bool trim, tell;
};
struct board_wish board_take(struct board *board, int device);

/* So many bytes of the device went back to the driver for others' sake; 0 is fine. What is cached
 * and pending now is published before board_answered, which is called once for all devices. */
void board_give(struct board *board, int device, uint64_t bytes);
void board_answered(struct board *board);

/* ---- groups ---- */

/* Takes bytes of the device for this process, if all processes of its group then hold no more than
 * limit; false where they would. Never more than the limit is held, and of two rivals for the last
 * bytes one wins: board_group.c says why. May wait, for BOARD_SILENCE_NANOSECONDS at most, where
 * another process is between two steps. Processes that have ended do not count. A process without a
 * group is a group of its own; so is one that is not on the board any more. True where board is
 * NULL, or device is -1: nothing is known then of what is held, and the caller compares. */
bool board_group_take(struct board *board, int device, uint64_t bytes, uint64_t limit);
void board_group_give(struct board *board, int device, uint64_t bytes);

/* What the group holds on the device, this process included. */
uint64_t board_group_held(struct board *board, int device);

/* ---- looking on ---- */

/* Each living process on the board but tools, this one included. *slot begins at 0. False after the
 * last one. held: of processes that belong to a group, or were given a limit. */
struct board_process {
    int32_t pid;
    uint64_t pid_namespace; /* its inode, 0: unknown; pid is the number there */
    uint64_t start_ticks;
    char group[BOARD_GROUP_BYTES];
    bool listens, asks; /* asks: it is out of memory, and has a demand under way */
    unsigned device_count;
    struct board_process_device {
        unsigned char uuid[16];
        uint64_t held, cached, pending;
        uint64_t given; /* to others, so far */
    } devices[BOARD_DEVICES];
};
bool board_next_process(struct board *board, unsigned *slot, struct board_process *process);

#endif
