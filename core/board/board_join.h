/*
 * Joins a board below another directory than /dev/shm, for tests.
 */
#ifndef CUDAPOOL_CORE_BOARD_JOIN_H
#define CUDAPOOL_CORE_BOARD_JOIN_H

#include "board_state.h"

/* The directory that contains the board directory of each user (cudapool-UID). */
#define BOARD_BASE "/dev/shm"

/* Work like board_join and board_visit, with base in place of BOARD_BASE. */
struct board *board_join_below(const char *base, const char *group, const char **why);
struct board *board_visit_below(const char *base, const char **why);

/* Unmaps the board and frees struct board, as the end of the process would. No other thread may be
 * using the board. */
void board_discard(struct board *board);

#endif
