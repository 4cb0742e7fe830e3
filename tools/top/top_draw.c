/*
 * Draws for `cudapool top` (top_draw.h).
 */
#include "top_draw.h"

/* Without this, curses.h defines many functions with short names as macros. */
#define NCURSES_NOMACROS
#include <curses.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "core/base/table.h"
#include "tools/command/terminal.h"
#include "top_rows.h"

static SCREEN *terminal;
static bool in_colour;

/* --- beginning and end --------------------------------------------------------------------------
 */

static void begin_colours(void)
{
    start_color();
    use_default_colors();
    init_pair(COLOUR_LIVE, COLOR_GREEN, -1);
    init_pair(COLOUR_CACHED, COLOR_BLUE, -1);
    init_pair(COLOUR_PENDING, COLOR_YELLOW, -1);
    init_pair(COLOUR_UNPOOLED, COLOR_MAGENTA, -1);
    init_pair(COLOUR_BAD, COLOR_RED, -1);
    init_pair(COLOUR_CHOSEN, COLOR_BLACK, COLOR_CYAN);
}

bool top_draw_begin(void)
{
    if (!terminal_is_drawn_on(stdout) || !is_terminal(stdin))
        return false;
    struct look look = terminal_look(stdout, false);
    /* LC_CTYPE only: numbers are still read and written with a decimal point. */
    setlocale(LC_CTYPE, "");
    terminal = newterm(NULL, stdout, stdin);
    if (terminal == NULL)
        return false;
    in_colour = look.colour && has_colors();
    if (in_colour)
        begin_colours();
    cbreak();
    noecho();
    keypad(stdscr, true);
    set_escdelay(25);
    curs_set(0);
    return true;
}

void top_draw_end(void)
{
    endwin();
    delscreen(terminal);
    terminal = NULL;
}

/* --- text and colours ---------------------------------------------------------------------------
 */

bool is_in_colour(void)
{
    return in_colour;
}

int colour(enum colours number)
{
    return in_colour ? (int)COLOR_PAIR((int)number) : (int)A_NORMAL;
}

static bool continues_a_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

void put(const char *text, int columns)
{
    const char *end = text;

    while (*end != '\0' && (continues_a_character(*end) || columns-- > 0))
        end++;
    addnstr(text, (int)(end - text));
}

/* --- devices ------------------------------------------------------------------------------------
 */

/* Bytes for a device's number and name. */
#define DEVICE_TEXT_BYTES 640

/* Returns the columns of a bar for a part of the whole. A part that is not 0 has at least one. */
static int columns_of(uint64_t part, uint64_t whole, int columns)
{
    if (whole == 0 || part == 0)
        return 0;
    part = part > whole ? whole : part;
    int share = (int)((unsigned __int128)part * (unsigned)columns / whole);
    return share > 0 ? share : 1;
}

/* Returns the character for a part of a bar. In colour all parts have the same one. */
static int mark_of(enum colours number)
{
    static const int marks[] = {[COLOUR_LIVE] = '#',
                                [COLOUR_CACHED] = '+',
                                [COLOUR_PENDING] = '-',
                                [COLOUR_UNPOOLED] = '='};

    return in_colour ? '|' : marks[number];
}

static int put_part(uint64_t part, uint64_t whole, int columns, int left, enum colours number)
{
    int share = columns_of(part, whole, columns);

    share = share > left ? left : share;
    attron(colour(number));
    for (int i = 0; i < share; i++)
        addch((chtype)mark_of(number));
    attroff(colour(number));
    return share;
}

static void describe_device(const struct report_device *device, char text[DEVICE_TEXT_BYTES])
{
    snprintf(text, DEVICE_TEXT_BYTES, "device %d, %s", device->ordinal, device->name);
    make_printable(text, DEVICE_TEXT_BYTES);
}

/* Draws a line such as "device 0, NVIDIA H200 [|||||     1.2 GiB of 139.8 GiB]". */
static void put_device(const struct top_device *device, int line, int name_width)
{
    char name[DEVICE_TEXT_BYTES], amount[3 * READABLE_BYTES], used[READABLE_BYTES],
        size[READABLE_BYTES];
    uint64_t whole = device->device->total_bytes;
    uint64_t held = saturating_sum(saturating_sum(device->live, device->unpooled),
                                   saturating_sum(device->cached, device->pending));

    describe_device(device->device, name);
    readable_bytes(held, used);
    readable_bytes(whole, size);
    snprintf(amount, sizeof(amount), "%s of %s", used, size);
    move(line, 0);
    put(name, name_width);
    mvaddstr(line, name_width + 1, "[");
    int columns = COLS - name_width - 3, room = columns - (int)strlen(amount) - 1, left = room;
    if (room < 4) {
        put(amount, columns);
    } else {
        left -= put_part(device->live, whole, room, left, COLOUR_LIVE);
        left -= put_part(device->cached, whole, room, left, COLOUR_CACHED);
        left -= put_part(device->pending, whole, room, left, COLOUR_PENDING);
        put_part(device->unpooled, whole, room, left, COLOUR_UNPOOLED);
        mvaddstr(line, COLS - 1 - (int)strlen(amount), amount);
    }
    mvaddstr(line, COLS - 1, "]");
}

/* Explains the parts of the bars. */
static void put_legend(int line)
{
    static const struct {
        enum colours number;
        const char *name;
    } parts[] = {{COLOUR_LIVE, "in use"},
                 {COLOUR_CACHED, "cached"},
                 {COLOUR_PENDING, "pending"},
                 {COLOUR_UNPOOLED, "unpooled"}};
    char text[32];

    move(line, 0);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(text, sizeof(text), "%c %s  ", mark_of(parts[i].number), parts[i].name);
        attron(colour(parts[i].number));
        put(text, COLS - getcurx(stdscr) - 1);
        attroff(colour(parts[i].number));
    }
}

int put_devices(const struct view *view)
{
    char name[DEVICE_TEXT_BYTES];
    struct top_device *devices;
    size_t count = top_find_devices(view, &devices), most = LINES > 9 ? (size_t)LINES / 3 : 1;
    int widest = 0, line = 1;

    count = count > most ? most : count;
    for (size_t i = 0; i < count; i++) {
        describe_device(devices[i].device, name);
        int width = text_width(name);
        widest = width > widest ? width : widest;
    }
    widest = widest > COLS / 3 ? COLS / 3 : widest;
    for (size_t i = 0; i < count; i++)
        put_device(&devices[i], line++, widest);
    if (count > 0 && LINES > 12)
        put_legend(line++);
    free(devices);
    return LINES > 12 ? line + 1 : line;
}
