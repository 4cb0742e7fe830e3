/*
 * The board's file: how it is opened, made and mapped, and how it is seen who lives.
 *
 * Byte N of the file is the lock of slot N (F_OFD_SETLK), the byte behind them is that of who makes
 * the file. No descriptor is kept: whoever needs one opens the file for a moment. What a fork in
 * that moment would hand to the child is closed there by board_file_forget.
 *
 * Any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_BOARD_FILE_H
#define CUDAPOOL_CORE_BOARD_FILE_H

#include "board_state.h"

/* ---- files that are open for a moment ---- */

/* What a child that is made meanwhile must not keep. */
struct board_passing;

/* Opens the board's file below this directory, for the board's path, device and inode; makes it
 * where there is none. Returns NULL, or why not. To be followed by board_file_close. */
const char *board_file_open(struct board *board, const char *base, int *fd,
                            struct board_passing **passing);
void board_file_close(int fd, struct board_passing *passing);

/* Whether the descriptor still is that file. Another thread of the program may have closed it, with
 * all others that it knows nothing of, or put a file of its own in its place; which is left alone.
 */
bool board_file_is_open(int fd, const struct board_passing *passing);

/* Maps the file, for this process and none of its children. Returns NULL, or why not. */
const char *board_file_map(struct board *board, int fd, struct board_passing *passing);

/* Takes the lock of a byte, without waiting. False with errno. */
bool board_file_lock(int fd, unsigned byte);

/* Whether anybody has it; true where that cannot be known. */
bool board_file_is_locked(int fd, unsigned byte);

/* Whether the path leads to the file that is mapped. */
bool board_file_is_there(const struct board *board);

/* In the child of a fork: closes what was open at that moment. Async-signal-safe. */
void board_file_forget(void);

/* ---- who lives ---- */

/* The file, opened to look at locks; fd is -1 where it cannot be, or the process has restricted its
 * system calls, and everybody counts as alive.
 * Between begin and end the thread cannot be cancelled; end restores errno. */
struct board_probe {
    struct board *board;
    struct board_passing *passing;
    int fd, error, cancellation;
};
struct board_probe board_probe_begin(struct board *board);
void board_probe_end(const struct board_probe *probe);

/* Whether the slot's owner lives. One that does not is cleared. Never asked of the own slot. */
bool board_probe_lives(const struct board_probe *probe, unsigned slot);

/* Clears the slots of those that have ended, unless that was done a moment ago. */
void board_clear_ended(struct board *board);

#endif
