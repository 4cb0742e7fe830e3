/*
 * Finds out what the command's output goes to (terminal.h).
 */
#include "terminal.h"

/* Without this, curses.h defines many functions with short names as macros. */
#define NCURSES_NOMACROS
#include <curses.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <term.h>
#include <unistd.h>

static bool leads_to_terminal(int fd)
{
    return fd >= 0 && isatty(fd) == 1;
}

bool is_terminal(FILE *out)
{
    return leads_to_terminal(fileno(out));
}

static int width_of(int fd)
{
    struct winsize size = {0};

    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return 80;
    return size.ws_col;
}

/* Returns what the description of the terminal says (terminfo). Returns false if the terminal is
 * unknown. */
static bool describes(int fd, bool (*has)(void))
{
    const char *name = getenv("TERM");
    TERMINAL *before = cur_term;
    int failed = 0;

    if (name == NULL || *name == '\0' || setupterm(name, fd, &failed) != OK)
        return false;
    bool has_it = has();
    del_curterm(set_curterm(before));
    return has_it;
}

static bool has_eight_colours(void)
{
    return tigetnum("colors") >= 8;
}

static bool has_colours(int fd)
{
    const char *unwanted = getenv("NO_COLOR");

    return (unwanted == NULL || *unwanted == '\0') && describes(fd, has_eight_colours);
}

static bool has_cursor_addresses(void)
{
    const char *sequence = tigetstr("cup");

    return sequence != NULL && sequence != (const char *)-1;
}

bool terminal_is_drawn_on(FILE *out)
{
    return is_terminal(out) && describes(fileno(out), has_cursor_addresses);
}

struct look terminal_look_of(int fd, bool all)
{
    struct look look = {.all = all, .more = "--all"};

    if (leads_to_terminal(fd)) {
        look.width = width_of(fd);
        look.colour = has_colours(fd);
    }
    return look;
}

struct look terminal_look(FILE *out, bool all)
{
    return terminal_look_of(fileno(out), all);
}

FILE *folding_begin(struct folding *folding, const struct look *look, FILE *out)
{
    *folding = (struct folding){.look = look, .out = out};
    if (look->width > 0)
        folding->memory = open_memstream(&folding->text, &folding->bytes);
    return folding->memory != NULL ? folding->memory : out;
}

void folding_end(struct folding *folding)
{
    if (folding->memory != NULL && fclose(folding->memory) == 0)
        print_folded(folding->text, folding->look, folding->out);
    free(folding->text);
}
