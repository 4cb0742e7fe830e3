/*
 * `cudapool top` on a terminal (top_screen.h).
 *
 * ncurses draws the rows of top_rows.h and reads keys. One thread only.
 */
#include "top_screen.h"

/* Without this, curses.h defines many functions with short names as macros. */
#define NCURSES_NOMACROS
#include <curses.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/one_line.h"
#include "core/base/table.h"
#include "top_draw.h"
#include "top_rows.h"
#include "trimming.h"

enum screen_page { PAGE_PROCESSES, PAGE_BUCKETS, PAGE_HELP };

struct screen {
    struct view *view;
    enum top_order order;
    enum screen_page page, behind_help;
    struct process_identity process;  /* the chosen one, or the one whose buckets are shown */
    size_t chosen;                    /* row of the chosen process or bucket */
    size_t first;                     /* the first visible row */
    size_t rows_fit;                  /* how many rows fit on the screen */
    char left_out[TABLE_NAMES_BYTES]; /* columns that do not fit */
    struct top_rows rows;
    struct trimming trimming; /* the last trim, which may still be under way */
    double trimming_until;
    char message[TRIMMING_BYTES]; /* shown in place of the keys until the next key */
    bool ends;
};

/* Bytes for the text about rows and columns that are not shown. */
#define LEFT_OUT_BYTES (TABLE_NAMES_BYTES + 64)

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* --- drawing: the top ---------------------------------------------------------------------------
 */

/* Writes what does not fit, such as "; 3 rows more; no room for rank, group". */
static void describe_left_out(const struct screen *screen, char text[LEFT_OUT_BYTES])
{
    size_t rows = screen->rows.count, length = 0;

    text[0] = '\0';
    if (rows > screen->rows_fit)
        length = (size_t)snprintf(text, LEFT_OUT_BYTES, "; %zu row%s more", rows - screen->rows_fit,
                                  rows - screen->rows_fit == 1 ? "" : "s");
    if (screen->left_out[0] != '\0')
        snprintf(text + length, LEFT_OUT_BYTES - length, "; no room for %s", screen->left_out);
}

/* Draws the title, without its beginning if the whole does not fit. */
static void put_title(const struct screen *screen)
{
    char line[160 + LEFT_OUT_BYTES], clock[16], left_out[LEFT_OUT_BYTES];
    time_t now = time(NULL);
    struct tm local;

    describe_left_out(screen, left_out);
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
    int start = snprintf(line, sizeof(line), "cudapool top, %s: ", clock);
    snprintf(line + start, sizeof(line) - (size_t)start, "%zu process%s on the pool%s",
             screen->view->count, screen->view->count == 1 ? "" : "es", left_out);
    move(0, 0);
    attron(A_BOLD);
    put(text_width(line) <= COLS ? line : line + start, COLS);
    attroff(A_BOLD);
}

/* --- drawing: rows ------------------------------------------------------------------------------
 */

static const struct watched *watched_process(const struct screen *screen)
{
    for (size_t i = 0; i < screen->view->count; i++)
        if (is_same_identity(&screen->view->watched[i].identity, &screen->process))
            return &screen->view->watched[i];
    return NULL;
}

static enum top_column column_of_order(enum top_order order)
{
    static const enum top_column columns[ORDERS] = {
        [ORDER_PROCESS] = TOP_NAME, [ORDER_REQUESTS] = TOP_REQUESTS, [ORDER_HITS] = TOP_HITS,
        [ORDER_MEMORY] = TOP_LIVE,  [ORDER_CACHED] = TOP_CACHED,     [ORDER_NAME] = TOP_COLUMNS,
    };

    return columns[order];
}

/* The style of the column that rows are sorted by. */
#define MARKED ((int)(A_UNDERLINE | A_BOLD))

/* Draws the cells in their columns, and then the text up to the end of the line. */
static void put_cells(const struct table *table, const char *cells, const char *text, int marked)
{
    int mark;

    for (int i = 0; i < table->count; i++) {
        const char *cell =
            cells == NULL ? table->columns[i].heading : cells + (size_t)i * table->cell_bytes;
        if (!table->shown[i])
            continue;
        printw("  %*s", table->widths[i] - text_width(cell), "");
        mark = i == marked ? MARKED : (int)A_NORMAL;
        attron(mark);
        put(cell, COLS - getcurx(stdscr));
        attroff(mark);
    }
    mark = marked == table->count ? MARKED : (int)A_NORMAL;
    put("  ", COLS - getcurx(stdscr) - 1);
    attron(mark);
    put(text, COLS - getcurx(stdscr) - 1);
    attroff(mark);
}

static void put_headings(const struct screen *screen, const struct table *table, int line)
{
    bool is_processes = screen->page == PAGE_PROCESSES;

    move(line, 0);
    attron(A_REVERSE);
    hline(' ', COLS);
    put_cells(table, NULL, is_processes ? "command" : "where", (int)column_of_order(screen->order));
    attroff(A_REVERSE);
}

static void put_row(const struct screen *screen, const struct table *table, size_t index, int line)
{
    const struct top_row *row = &screen->rows.rows[index];
    bool is_chosen = index == screen->chosen;
    int mark = is_in_colour() ? colour(COLOUR_CHOSEN) : (int)A_REVERSE;

    move(line, 0);
    if (is_chosen) {
        attron(mark);
        hline(' ', COLS);
    }
    put_cells(table, row->cells[0], row->text, -1);
    if (is_chosen)
        attroff(mark);
    /* Some terminals do not show text in reverse. */
    if (is_chosen && !is_in_colour())
        mvaddch(line, 0, '>');
}

/* Draws the rows that fit below the line, with the chosen one among them. */
static void put_rows(struct screen *screen, int line)
{
    struct look look = {.width = COLS};
    struct table table;

    table_begin(&table, screen->page == PAGE_PROCESSES ? top_process_columns : top_bucket_columns,
                TOP_COLUMNS, READABLE_BYTES, &look);
    table.beside = TOP_TEXT_LEAST;
    for (size_t i = 0; i < screen->rows.count; i++)
        table_measure(&table, screen->rows.rows[i].cells[0]);
    table_fit(&table);
    table_left_out(&table, screen->left_out, sizeof(screen->left_out));
    put_headings(screen, &table, line++);
    screen->rows_fit = LINES - 1 > line ? (size_t)(LINES - 1 - line) : 1;
    if (screen->chosen < screen->first)
        screen->first = screen->chosen;
    if (screen->chosen >= screen->first + screen->rows_fit)
        screen->first = screen->chosen + 1 - screen->rows_fit;
    for (size_t i = screen->first; i < screen->rows.count && i < screen->first + screen->rows_fit;
         i++)
        put_row(screen, &table, i, line++);
}

/* Draws the process whose buckets are shown. */
static void put_owner(const struct screen *screen, int line)
{
    const struct watched *watched = watched_process(screen);
    char text[4200], ran[READABLE_BYTES];

    if (watched == NULL)
        return;
    const struct report_process *process = &watched->report->process;
    readable_time((uint64_t)(process->wall_seconds * 1e9), ran);
    if (watched->has_figures)
        snprintf(text, sizeof(text), "process %lld%s%s, ran %s: %s", (long long)process->pid,
                 process->rank[0] == '\0' ? "" : ", rank ", process->rank, ran, process->command);
    else
        snprintf(text, sizeof(text), "process %lld, which has no figures: %s",
                 (long long)process->pid, process->command);
    move(line, 0);
    make_printable(text, sizeof(text));
    put(text, COLS);
}

/* --- drawing: help and the last line ------------------------------------------------------------
 */

static const char *const help_lines[] = {
    "cudapool top: the processes on the pool, as they are now",
    "",
    "  Up, Down, j, k      choose a process or a bucket; PageUp, PageDown, Home, End",
    "  Enter               the buckets of the process",
    "  Esc, Backspace      back to the processes",
    "  t                   trim: the process gives back to the driver what it caches",
    "  p                   in order of process numbers (buckets: of sizes)",
    "  r                   the most requests first",
    "  h                   the highest hit rate first",
    "  m                   the most memory first",
    "  c                   the most cached first",
    "  n                   by name",
    "  ?, F1               this help",
    "  q, F10              end",
    "",
    "  requests/s, misses/s  in the last interval; at first, since the process started",
    "  hits                  the share of those requests that the pool answered",
    "  in use                blocks in the program's hands",
    "  cached                free, and reusable at once",
    "  pending               free, but the GPU may still be using them",
    "  unpooled              cuMemCreate, arrays, managed memory and graphs, where counted",
    "  limit                 the lowest that holds for the process on a device",
    "  group                 whose limit the process shares",
    "  neighbours            asks: out of memory, it has asked others for theirs",
    "                        alone: it has no part in that",
};

static void put_help(void)
{
    for (int i = 0; i < (int)(sizeof(help_lines) / sizeof(help_lines[0])) && i < LINES - 1; i++) {
        move(i, 0);
        put(help_lines[i], COLS);
    }
}

static void put_keys(const struct screen *screen)
{
    static const char *const keys[] = {
        [PAGE_PROCESSES] = "Enter buckets  t trim  p/r/h/m/c/n sort  ? help  q quit",
        [PAGE_BUCKETS] = "Esc back  t trim  p/r/h/m/c sort  ? help  q quit",
        [PAGE_HELP] = "any key goes back",
    };

    move(LINES - 1, 0);
    attron(A_REVERSE);
    hline(' ', COLS);
    bool tells = screen->message[0] != '\0' && screen->page != PAGE_HELP;
    put(tells ? screen->message : keys[screen->page], COLS - 1);
    attroff(A_REVERSE);
}

static void draw(struct screen *screen)
{
    erase();
    if (screen->page == PAGE_HELP) {
        put_help();
    } else {
        screen->left_out[0] = '\0';
        int line = put_devices(screen->view);
        if (screen->page == PAGE_BUCKETS)
            put_owner(screen, line++);
        if (screen->view->count > 0) {
            put_rows(screen, line);
        } else {
            move(line, 0);
            put("No process of yours is on the pool: cudapool run PROGRAM starts one.", COLS);
        }
        put_title(screen);
    }
    put_keys(screen);
    refresh();
}

/* --- choosing what is shown ---------------------------------------------------------------------
 */

static void choose(struct screen *screen, size_t row)
{
    screen->chosen = row;
    if (screen->page == PAGE_PROCESSES && row < screen->rows.count)
        screen->process = screen->rows.rows[row].process;
}

/* Finds the row of the chosen process again. If the process has ended, chooses the row that is in
 * its place. */
static void keep_choice(struct screen *screen)
{
    size_t last = screen->rows.count == 0 ? 0 : screen->rows.count - 1;

    if (screen->page == PAGE_PROCESSES)
        for (size_t i = 0; i < screen->rows.count; i++)
            if (is_same_identity(&screen->rows.rows[i].process, &screen->process))
                screen->chosen = i;
    choose(screen, screen->chosen > last ? last : screen->chosen);
}

/* Returns 0, or -1 if memory is short. */
static int fill(struct screen *screen)
{
    const struct watched *watched = watched_process(screen);
    int status = 0;

    if (screen->page == PAGE_BUCKETS && watched == NULL)
        screen->page = PAGE_PROCESSES;
    screen->rows.count = 0;
    if (screen->page == PAGE_BUCKETS)
        status = top_add_buckets(&screen->rows, watched, screen->order);
    else if (screen->page == PAGE_PROCESSES)
        status = top_add_processes(&screen->rows, screen->view, screen->order);
    if (screen->page != PAGE_HELP && status == 0)
        keep_choice(screen);
    return status;
}

static void turn_to(struct screen *screen, enum screen_page page)
{
    screen->behind_help = screen->page == PAGE_HELP ? screen->behind_help : screen->page;
    screen->page = page;
    if (page != PAGE_HELP)
        screen->chosen = screen->first = 0;
}

/* --- trimming -----------------------------------------------------------------------------------
 */

/* Seconds to wait for GPU work on pending memory, and between two looks. */
#define TRIMMING_SECONDS 5.0
#define TRIMMING_PAUSE   0.1

/* Shows how far the trim is. The first call waits for the answer, for BOARD_SILENCE_NANOSECONDS at
 * most. */
static void follow_trimming(struct screen *screen)
{
    if (screen->trimming.demand == NULL)
        return;
    trimming_look(&screen->trimming);
    trimming_describe(&screen->trimming, screen->message);
    if (screen->trimming.outcome != TRIM_UNDER_WAY || seconds_now() > screen->trimming_until)
        trimming_end(&screen->trimming);
}

static void begin_trimming(struct screen *screen)
{
    const struct watched *watched = watched_process(screen);

    /* Continues a trim of this process that is under way, so that the bytes released so far still
     * count. */
    if (watched != NULL && screen->trimming.demand != NULL &&
        is_same_identity(&screen->trimming.process, &watched->identity)) {
        screen->trimming_until = seconds_now() + TRIMMING_SECONDS;
        follow_trimming(screen);
        return;
    }
    trimming_end(&screen->trimming);
    if (screen->view->board == NULL) {
        snprintf(screen->message, sizeof(screen->message), "trim: nobody can be asked: %s",
                 screen->view->no_board);
    } else if (watched != NULL) {
        screen->trimming = trimming_begin(screen->view, watched, NULL);
        screen->trimming_until = seconds_now() + TRIMMING_SECONDS;
        trimming_describe(&screen->trimming, screen->message);
        follow_trimming(screen);
    }
}

/* --- keys ---------------------------------------------------------------------------------------
 */

static void move_by(struct screen *screen, long rows)
{
    long last = (long)screen->rows.count - 1, row = (long)screen->chosen + rows;

    row = row > last ? last : row;
    choose(screen, row < 0 ? 0 : (size_t)row);
}

/* Returns false if the key moves nothing. */
static bool take_move(struct screen *screen, int key)
{
    long page = (long)screen->rows_fit;

    switch (key) {
    case KEY_UP:
    case 'k':
        move_by(screen, -1);
        return true;
    case KEY_DOWN:
    case 'j':
        move_by(screen, 1);
        return true;
    case KEY_PPAGE:
        move_by(screen, -page);
        return true;
    case KEY_NPAGE:
        move_by(screen, page);
        return true;
    case KEY_HOME:
        move_by(screen, -(long)screen->rows.count);
        return true;
    case KEY_END:
        move_by(screen, (long)screen->rows.count);
        return true;
    default:
        return false;
    }
}

static bool take_order(struct screen *screen, int key)
{
    static const char keys[] = "prhmcn"; /* in the order of enum top_order */
    const char *found = key > 0 && key < 128 ? strchr(keys, key | 0x20) : NULL;

    if (found == NULL)
        return false;
    screen->order = (enum top_order)(found - keys);
    return true;
}

static void take_key(struct screen *screen, int key)
{
    bool goes_back = key == 27 || key == KEY_BACKSPACE || key == 127 || key == 8 || key == KEY_LEFT;

    screen->message[0] = '\0';
    if (key == 'q' || key == 'Q' || key == KEY_F(10))
        screen->ends = true;
    else if (screen->page == PAGE_HELP)
        screen->page = screen->behind_help;
    else if (key == '?' || key == KEY_F(1))
        turn_to(screen, PAGE_HELP);
    else if (key == 't' || key == 'T')
        begin_trimming(screen);
    else if (goes_back && screen->page == PAGE_BUCKETS &&
             (screen->view->pid == 0 || screen->view->count > 1))
        turn_to(screen, PAGE_PROCESSES);
    else if ((key == '\n' || key == '\r' || key == KEY_ENTER || key == KEY_RIGHT) &&
             screen->page == PAGE_PROCESSES && screen->view->count > 0)
        turn_to(screen, PAGE_BUCKETS);
    else if (!take_move(screen, key))
        take_order(screen, key);
}

/* Handles keys and redraws until the next look is due. Returns 0, or -1 if memory is short. */
static int wait_for_next(struct screen *screen, double seconds, const volatile sig_atomic_t *ended)
{
    double until = seconds_now() + seconds, left;
    int status = 0;

    while (status == 0 && !*ended && !screen->ends && (left = until - seconds_now()) > 0) {
        bool trims = screen->trimming.demand != NULL;
        timeout((int)((trims && left > TRIMMING_PAUSE ? TRIMMING_PAUSE : left) * 1000) + 1);
        int key = getch();
        if (key == ERR && !trims)
            continue;
        if (key != ERR)
            take_key(screen, key);
        follow_trimming(screen);
        status = fill(screen);
        draw(screen);
    }
    return status;
}

int top_screen_show(const struct top_options *options, struct view *view,
                    const volatile sig_atomic_t *ended)
{
    struct screen screen = {.view = view, .order = options->order};
    int status = 0, memory = 0;

    if (view->pid != 0 && view->count == 1) {
        screen.page = PAGE_BUCKETS;
        screen.process = view->watched[0].identity;
    }
    for (unsigned long shown = 0; status == 0 && memory == 0;) {
        memory = fill(&screen);
        draw(&screen);
        if (++shown == options->count)
            break;
        if (memory == 0)
            memory = wait_for_next(&screen, options->interval, ended);
        if (*ended || screen.ends)
            break;
        status = view_look(view);
        if (view->pid != 0 && view->count == 0)
            break;
    }
    trimming_end(&screen.trimming);
    free(screen.rows.rows);
    return memory != 0 ? -1 : status;
}
