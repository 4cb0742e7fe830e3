/*
 * What `cudapool top` draws with on a terminal: its beginning and end, text and colours, and a bar
 * for each device. All goes to the one screen that ncurses has; one thread.
 */
#ifndef CUDAPOOL_TOOLS_TOP_DRAW_H
#define CUDAPOOL_TOOLS_TOP_DRAW_H

#include <stdbool.h>

#include "top_watch.h"

enum colours { COLOUR_LIVE = 1, COLOUR_CACHED, COLOUR_PENDING, COLOUR_BAD, COLOUR_CHOSEN };

/* Takes the terminal. False, and nothing has happened, where stdout and stdin are none, or one that
 * nobody knows. */
bool top_draw_begin(void);

/* Leaves the terminal as it was. */
void top_draw_end(void);

/* The attributes of a colour; those of plain text where the terminal has none. */
int colour(enum colours number);
bool is_in_colour(void);

/* Text in at most so many columns. */
void put(const char *text, int columns);

/* From the second line on, bars for as many devices as leave most of the screen to what follows.
 * The next free line. */
int put_devices(const struct view *view);

#endif
