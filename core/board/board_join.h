/*
 * Joining a board that is not the user's own: for tests.
 */
#ifndef CUDAPOOL_CORE_BOARD_JOIN_H
#define CUDAPOOL_CORE_BOARD_JOIN_H

#include "board_state.h"

/* Below which the user's directory is. */
#define BOARD_BASE "/dev/shm"

/* board_join and board_visit, with the directory below which the user's is. */
struct board *board_join_below(const char *base, const char *group, const char **why);
struct board *board_visit_below(const char *base, const char **why);

/* Gives all back that the process has of the board, as its end would. No other thread may be using
 * it. */
void board_discard(struct board *board);

#endif
