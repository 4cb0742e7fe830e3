/*
 * Draws for `cudapool top` on a terminal: begins and ends drawing, and writes text, colours, and a
 * bar for each device.
 *
 * All functions use the one screen that ncurses has. One thread only.
 */
#ifndef CUDAPOOL_TOOLS_TOP_DRAW_H
#define CUDAPOOL_TOOLS_TOP_DRAW_H

#include <stdbool.h>

#include "top_watch.h"

enum colours {
    COLOUR_LIVE = 1,
    COLOUR_CACHED,
    COLOUR_PENDING,
    COLOUR_UNPOOLED,
    COLOUR_BAD,
    COLOUR_CHOSEN
};

/* Takes the terminal over. Returns false and changes nothing if stdin or stdout is no terminal, or
 * the terminal's type is unknown. */
bool top_draw_begin(void);

/* Restores the terminal. */
void top_draw_end(void);

/* Returns the attributes of a colour, or those of plain text if the terminal has no colours. */
int colour(enum colours number);
bool is_in_colour(void);

/* Writes text in at most so many columns. */
void put(const char *text, int columns);

/* Draws bars for devices from the second line on. The number of bars is limited so that most of the
 * screen is left for what follows. Returns the next free line. */
int put_devices(const struct view *view);

#endif
