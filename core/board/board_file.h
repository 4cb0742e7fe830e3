/*
 * Opens, makes and maps the board's file, and finds out which processes are alive.
 *
 * Byte N of the file is the lock of slot N (F_OFD_SETLK). The byte after the last slot's byte is
 * the lock that a process holds while it makes the file. No descriptor stays open: a thread that
 * needs one opens the file briefly. A child that is forked meanwhile inherits the descriptor, and
 * board_file_close_in_child closes it there. It misses a descriptor if the fork came between the
 * opening and its record. Such a child keeps the slot's lock until it executes another program or
 * ends.
 *
 * Any thread may call these functions. They take no locks but those on bytes of the file.
 */
#ifndef CUDAPOOL_CORE_BOARD_FILE_H
#define CUDAPOOL_CORE_BOARD_FILE_H

#include "board_state.h"

/* ---- files that are open briefly ---- */

/* Records a file that is open briefly. A child that is forked meanwhile must close its copy. */
struct board_passing;

/* Opens the board's file below this directory, or makes it where there is none. Sets the board's
 * path, device and inode. Returns NULL, or the reason for failure. The caller must call
 * board_file_close after success. */
const char *board_file_open(struct board *board, const char *base, int *fd,
                            struct board_passing **passing);
void board_file_close(int fd, struct board_passing *passing);

/* Whether the descriptor still refers to the file that passing records. Another thread of the
 * program may have closed all descriptors that it does not know. It may also have opened a file of
 * its own under this number. The pool leaves the program's file alone. */
bool board_file_is_open(int fd, const struct board_passing *passing);

/* Maps the file for this process and none of its children. Returns NULL, or the reason for failure.
 */
const char *board_file_map(struct board *board, int fd, struct board_passing *passing);

/* Takes the lock of a byte, without waiting. Returns false with errno. */
bool board_file_lock(int fd, unsigned byte);

/* Whether any process holds the byte's lock; true where that cannot be known. */
bool board_file_is_locked(int fd, unsigned byte);

/* Whether the path leads to the file that is mapped. */
bool board_file_is_current(const struct board *board);

/* To be called in the child of a fork: closes descriptors that were open at the fork.
 * Async-signal-safe. */
void board_file_close_in_child(void);

/* ---- liveness ---- */

/* The board's file, opened to test locks. fd is -1 where it cannot be opened, or where the process
 * has restricted its system calls. Then every process counts as alive. Between board_probe_begin
 * and board_probe_end the thread cannot be cancelled. board_probe_end restores errno. */
struct board_probe {
    struct board *board;
    struct board_passing *passing;
    int fd, error, cancellation;
};
struct board_probe board_probe_begin(struct board *board);
void board_probe_end(const struct board_probe *probe);

/* Whether the slot's owner is alive. Clears the slot if its owner has ended. Must not be called for
 * this process's own slot. */
bool board_probe_lives(const struct board_probe *probe, unsigned slot);

/* Clears the slots of processes that have ended, unless that was done a moment ago. */
void board_clear_ended(struct board *board);

#endif
