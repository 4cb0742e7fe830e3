/*
 * What the command's output goes to (terminal.h).
 */
#include "terminal.h"

/* Short names as macros are too much of a good thing. */
#define NCURSES_NOMACROS
#include <curses.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <term.h>
#include <unistd.h>

bool is_terminal(FILE *out)
{
    int fd = fileno(out);

    return fd >= 0 && isatty(fd) == 1;
}

static int width_of(FILE *out)
{
    struct winsize size = {0};

    if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return 80;
    return size.ws_col;
}

static bool has_colours(FILE *out)
{
    const char *unwanted = getenv("NO_COLOR"), *terminal = getenv("TERM");
    TERMINAL *before = cur_term;
    int failed = 0;

    if ((unwanted != NULL && *unwanted != '\0') || terminal == NULL || *terminal == '\0')
        return false;
    if (setupterm(terminal, fileno(out), &failed) != OK)
        return false;
    bool has_them = tigetnum("colors") >= 8;
    del_curterm(set_curterm(before));
    return has_them;
}

struct look terminal_look(FILE *out, bool all)
{
    struct look look = {.all = all, .more = "--all"};

    if (is_terminal(out)) {
        look.width = width_of(out);
        look.colour = has_colours(out);
    }
    return look;
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
