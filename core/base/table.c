/*
 * Prints tables of text (table.h).
 */
#include "table.h"

#include <string.h>

#include "one_line.h"

const struct look look_of_files = {0};

/* --- styles -------------------------------------------------------------------------------------
 */

const char *style_begin(const struct look *look, enum text_style style)
{
    static const char *const sequences[] = {
        [STYLE_PLAIN] = "",        [STYLE_BOLD] = "\x1b[1m", [STYLE_GOOD] = "\x1b[32m",
        [STYLE_FAIR] = "\x1b[33m", [STYLE_BAD] = "\x1b[31m",
    };

    return look->colour ? sequences[style] : "";
}

const char *style_end(const struct look *look, enum text_style style)
{
    return look->colour && style != STYLE_PLAIN ? "\x1b[0m" : "";
}

/* --- widths -------------------------------------------------------------------------------------
 */

/* Skips a sequence such as ESC [ 1 m that text begins with. Returns text if there is none. */
static const char *skip_sequence(const char *text)
{
    if (text[0] != '\x1b' || text[1] != '[')
        return text;
    text += 2;
    while (*text != '\0' && *text != 'm')
        text++;
    return *text == 'm' ? text + 1 : text;
}

static bool continues_a_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

int text_width(const char *text)
{
    int width = 0;

    while (*text != '\0') {
        const char *rest = skip_sequence(text);
        if (rest == text)
            width += continues_a_character(*rest++) ? 0 : 1;
        text = rest;
    }
    return width;
}

/* --- the table ----------------------------------------------------------------------------------
 */

void table_begin(struct table *table, const struct table_column *columns, int count,
                 size_t cell_bytes, const struct look *look)
{
    memset(table, 0, sizeof(*table));
    table->columns = columns;
    table->count = count;
    table->cell_bytes = cell_bytes;
    table->look = look;
    for (int i = 0; i < count; i++)
        table->widths[i] = text_width(columns[i].heading);
}

static const char *cell_at(const struct table *table, const char *cells, int column)
{
    return cells + (size_t)column * table->cell_bytes;
}

/* Returns true for "0", "0 B", "0 s", "-" and "". */
static bool is_zero(const char *cell)
{
    return *cell == '\0' || strcmp(cell, "-") == 0 ||
           (cell[0] == '0' && (cell[1] == '\0' || cell[1] == ' '));
}

void table_measure(struct table *table, const char *cells)
{
    for (int i = 0; i < table->count; i++) {
        const char *cell = cell_at(table, cells, i);
        int width = text_width(cell);
        if (width > table->widths[i])
            table->widths[i] = width;
        if (!is_zero(cell))
            table->filled[i] = true;
    }
}

int table_width(const struct table *table)
{
    int width = 0;

    for (int i = 0; i < table->count; i++)
        width += table->shown[i] ? 2 + table->widths[i] : 0;
    return width;
}

/* Returns the column to leave out next, or -1. */
static int most_spare(const struct table *table)
{
    int found = -1;

    for (int i = 0; i < table->count; i++)
        if (table->shown[i] && table->columns[i].spare > 0 &&
            (found < 0 || table->columns[i].spare > table->columns[found].spare))
            found = i;
    return found;
}

void table_fit(struct table *table)
{
    bool is_short = look_is_short(table->look);
    int spare;

    for (int i = 0; i < table->count; i++)
        table->shown[i] = !is_short || table->filled[i] || table->columns[i].spare == 0;
    while (is_short && table_width(table) + table->beside > table->look->width &&
           (spare = most_spare(table)) >= 0)
        table->shown[spare] = false;
}

bool table_left_out(const struct table *table, char *names, size_t bytes)
{
    size_t length = 0;

    names[0] = '\0';
    for (int i = 0; i < table->count && length < bytes; i++)
        if (!table->shown[i] && table->filled[i] && table->columns[i].heading[0] != '\0')
            length += (size_t)snprintf(names + length, bytes - length, "%s%s",
                                       length == 0 ? "" : ", ", table->columns[i].heading);
    return length > 0;
}

void table_print_left_out(const struct table *table, FILE *out)
{
    char names[TABLE_NAMES_BYTES];

    if (table_left_out(table, names, sizeof(names)))
        fprintf(out, "  left out for width: %s: %s\n", names, table->look->more);
}

static void print_cell(const struct table *table, int column, const char *cell,
                       enum text_style style, FILE *out)
{
    fprintf(out, "  %*s%s%s%s", table->widths[column] - text_width(cell), "",
            style_begin(table->look, style), cell, style_end(table->look, style));
}

void table_print(const struct table *table, const char *cells, const enum text_style *styles,
                 FILE *out)
{
    for (int i = 0; i < table->count; i++)
        if (table->shown[i])
            print_cell(table, i, cell_at(table, cells, i), styles == NULL ? STYLE_PLAIN : styles[i],
                       out);
}

void table_print_headings(const struct table *table, FILE *out)
{
    for (int i = 0; i < table->count; i++)
        if (table->shown[i])
            print_cell(table, i, table->columns[i].heading, STYLE_BOLD, out);
}

/* Returns the columns that text from outside takes once it is printed. */
static int printed_width(const char *text)
{
    char piece[PRINTABLE_BYTES];
    int width = 0;

    while (*text != '\0') {
        take_printable(&text, piece);
        width += text_width(piece);
    }
    return width;
}

void print_cut_off(const char *text, int width, FILE *out)
{
    bool fits = printed_width(text) <= width;
    char piece[PRINTABLE_BYTES];
    int room = fits ? width : width - 3;

    while (*text != '\0') {
        take_printable(&text, piece);
        room -= text_width(piece);
        if (room < 0)
            break;
        fputs(piece, out);
    }
    if (!fits && width >= 3)
        fputs("...", out);
}

/* --- folding ------------------------------------------------------------------------------------
 */

/* Returns where to break a line of this many bytes so that at most width columns come before.
 * Returns bytes if the line fits, or if there is no place to break it. */
static size_t place_to_break(const char *line, size_t bytes, size_t indent, int width)
{
    size_t place = bytes;
    int columns = 0;

    for (const char *c = line; c < line + bytes;) {
        const char *rest = skip_sequence(c);
        if (rest != c) {
            c = rest;
            continue;
        }
        /* A line may also be broken at a space just past the width. */
        if (*c == ' ' && (size_t)(c - line) > indent)
            place = (size_t)(c - line);
        if (!continues_a_character(*c) && ++columns > width)
            return place;
        c++;
    }
    return bytes;
}

static void fold_line(const char *line, size_t bytes, int width, FILE *out)
{
    size_t indent = strspn(line, " ");
    int further = (int)indent + 4;

    for (size_t done = 0; done < bytes;) {
        int room = done == 0 ? width : width - further;
        size_t before = done == 0 ? indent : 0;
        size_t part = place_to_break(line + done, bytes - done, before, room);
        fprintf(out, "%*s%.*s\n", done == 0 ? 0 : further, "", (int)part, line + done);
        done += part;
        while (done < bytes && line[done] == ' ')
            done++;
    }
    if (bytes == 0)
        fputc('\n', out);
}

/* Lines are not folded on narrower terminals. */
#define WIDTH_LEAST 20

void print_folded(const char *text, const struct look *look, FILE *out)
{
    if (look->width < WIDTH_LEAST) {
        fputs(text, out);
        return;
    }
    while (*text != '\0') {
        size_t bytes = strcspn(text, "\n");
        fold_line(text, bytes, look->width, out);
        text += bytes + (text[bytes] == '\n');
    }
}
