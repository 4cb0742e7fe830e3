/*
 * Writes the report when the process ends, and ends the process's figures, which are counters that
 * other processes can read (core/figures/figures.h).
 *
 * All but report_prepare runs in a destructor of this object, in whichever thread calls exit. Other
 * threads may still be allocating then. A signal handler may even call exit after it has
 * interrupted a malloc of the same thread. So this code takes no lock, does not call malloc
 * (core/base/scratch.h gives it memory), and makes no driver call.
 *
 * Nothing here can change how the program ends. Writing raises no signal, and ends within 100 ms
 * even if nobody reads what is written (core/base/writing.h). A table that is not written by then
 * is cut off. If the report's file cannot be written, one line and the table are written to stderr
 * instead.
 */
#include "report_at_exit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/sandbox.h"
#include "core/base/scratch.h"
#include "core/base/table.h"
#include "core/base/writing.h"
#include "core/figures/report_table.h"
#include "real_driver.h"
#include "standard_error.h"

/* Nanoseconds after which writing gives up. With the rest of the work, a report then delays the
 * program's end by no more than 100 ms. */
#define PATIENCE_NANOSECONDS UINT64_C(90000000)

static bool counted_anything(const struct report *report)
{
    for (size_t i = 0; i < report->device_count; i++)
        if (report_device_was_used(&report->devices[i]))
            return true;
    return false;
}

static double seconds_since(uint64_t then)
{
    return (double)(monotonic_now() - then) / 1e9;
}

static void say_failure(const char *file, const char *error, uint64_t deadline)
{
    char line[2 * PATH_MAX];
    snprintf(line, sizeof line, "report: %s%s%s", file, file[0] != '\0' ? ": " : "", error);
    say_until(line, deadline);
}

/* ---- the table ----
 * report_prepare makes a stream while malloc may still be used. add_to_table collects what is
 * printed to that stream, as text in scratch memory. */

static FILE *table_stream;
static char table_buffer[BUFSIZ];

/* Only the thread that writes the report uses this. */
static struct {
    char *text;
    size_t bytes, room;
} table;

static ssize_t add_to_table(void *nothing, const char *text, size_t bytes)
{
    (void)nothing;
    /* fold_table needs one more byte, for the zero that ends the text. */
    if (bytes + 1 > table.room - table.bytes) {
        size_t room = 2 * (table.bytes + bytes + 1);
        char *longer = scratch_realloc(table.text, room);
        if (longer == NULL)
            return 0;
        table.text = longer;
        table.room = room;
    }
    memcpy(table.text + table.bytes, text, bytes);
    table.bytes += bytes;
    return (ssize_t)bytes;
}

void report_prepare(const struct run *run)
{
    static const cookie_io_functions_t functions = {.write = add_to_table};
    if (run->settings.report.at_exit == REPORT_NONE)
        return;
    table_stream = fopencookie(NULL, "w", functions);
    if (table_stream != NULL)
        setvbuf(table_stream, table_buffer, _IOFBF, sizeof table_buffer);
}

static int write_to_file(const char *file, uint64_t deadline)
{
    /* O_NONBLOCK: a pipe that nobody reads gives an error, where open would otherwise wait. */
    int to = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (to < 0)
        return -1;
    int result = write_until(to, table.text, table.bytes, deadline);
    int error = errno;
    if (close(to) == 0)
        errno = error;
    else
        result = -1;
    return result;
}

/* Returns how to print the table. It is as wide as the terminal, if it is written to one. It has no
 * colour: only terminfo tells whether the terminal has colours, and this code does not read
 * terminfo. */
static struct look look_of(const char *file)
{
    struct look look = {.more = "CUDAPOOL_REPORT=FILE and cudapool report --all FILE"};
    struct winsize size = {0};
    if (file[0] == '\0' && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0)
        look.width = size.ws_col;
    return look;
}

/* Breaks the printed text into lines of the look's width. Returns 0 or -1. */
static int fold_table(const struct look *look)
{
    char *text = table.text;
    if (look->width == 0 || text == NULL)
        return 0;
    text[table.bytes] = '\0';
    memset(&table, 0, sizeof table);
    print_folded(text, look, table_stream);
    int result = fflush(table_stream) != 0 || ferror(table_stream) ? -1 : 0;
    scratch_free(text);
    return result;
}

/* Returns 0, or -1 with errno. */
static int write_table(const struct report *report, const char *file, uint64_t deadline)
{
    struct look look = look_of(file);
    if (table_stream == NULL || report_print_as(report, &look, table_stream) != 0 ||
        fold_table(&look) != 0) {
        errno = ENOMEM;
        return -1;
    }
    return file[0] != '\0' ? write_to_file(file, deadline)
                           : standard_error_write(table.text, table.bytes, deadline);
}

/* ---- where the report is written ---- */

/* Whether somebody collects the figures, and the report's file is in their directory. The collector
 * reads the report or the figures, whichever is there. */
static bool is_collected(const struct run *run)
{
    const char *directory = run->settings.figures.directory;
    const char *file = run->settings.report.file;
    size_t length = strlen(directory);
    return run->collected && strncmp(file, directory, length) == 0 && file[length] == '/';
}

/* Whether the file's directory no longer exists. The collector removes the directory after it has
 * read the reports. */
static bool directory_is_gone(const char *file)
{
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", file);
    char *slash = strrchr(directory, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return access(directory, F_OK) != 0 && errno == ENOENT;
}

/* Whether somebody has collected the figures while this process was still running. A report would
 * then come too late. */
static bool came_too_late(const struct run *run, const char *file)
{
    return is_collected(run) && (pool_figures_are_taken(run->pool) || directory_is_gone(file));
}

/* The buffers of a report. They are not on the stack: a signal handler that calls exit may run on a
 * small stack of its own. */
struct last_report {
    struct report report;
    uint64_t deadline;   /* of write_until: writing gives up then */
    char file[PATH_MAX]; /* empty: stderr */
    char error[2 * PATH_MAX];
};

/* Writes the report to stderr as a table, whatever file and format the settings choose. */
static void write_to_standard_error_instead(const struct last_report *last)
{
    scratch_free(table.text);
    memset(&table, 0, sizeof table);
    (void)write_table(&last->report, "", last->deadline);
}

static bool write_as_table(const struct last_report *last)
{
    char buffer[32];
    bool written = write_table(&last->report, last->file, last->deadline) == 0;
    /* Without a file the table went to stderr, where this message could not be written either. */
    if (!written && last->file[0] != '\0') {
        say_failure(last->file, error_text(errno, buffer), last->deadline);
        write_to_standard_error_instead(last);
    }
    return written;
}

static bool write_as_json(const struct run *run, struct last_report *last)
{
    const char *file = last->file[0] != '\0' ? last->file : "/dev/stderr";
    if (strcmp(file, "/dev/stderr") == 0 && !standard_error_is_ours())
        return true;
    if (run->write_json(&last->report, file, last->deadline, last->error, sizeof last->error) == 0)
        return true;
    /* No message is needed: whoever collects the figures finds the report's numbers in them. */
    if (is_collected(run))
        return false;
    say_failure("", last->error, last->deadline);
    if (strcmp(file, "/dev/stderr") != 0)
        write_to_standard_error_instead(last);
    return false;
}

/* Used after the process has restricted its system calls. Opening a file might then end the
 * process. */
static bool write_to_standard_error_only(const struct last_report *last)
{
    if (last->file[0] != '\0')
        say_failure(last->file, "the process has restricted its system calls since it started",
                    last->deadline);
    write_to_standard_error_instead(last);
    return last->file[0] == '\0';
}

static bool deliver(const struct run *run, struct last_report *last)
{
    const struct report *report = &last->report;
    const struct report_settings *choice = &report->settings.report;
    char buffer[32];
    if (choice->file[0] != '\0' && report_expand_file_name(choice->file, &report->process,
                                                           last->file, sizeof last->file) != 0) {
        say_failure(choice->file, error_text(errno, buffer), last->deadline);
        write_to_standard_error_instead(last);
        return false;
    }
    if (came_too_late(run, last->file))
        return true;
    if (sandbox_was_entered())
        return write_to_standard_error_only(last);
    return choice->at_exit == REPORT_TABLE ? write_as_table(last) : write_as_json(run, last);
}

/* Returns false if the report could not be made, or not be written where the settings say. Returns
 * true if no report is due, and also if the figures are lost. */
static bool make_report(const struct run *run, struct last_report *last)
{
    struct report *report = &last->report;
    char buffer[32];
    if (pool_figures_are_lost(run->pool)) {
        say_until(
            "report: there is none: somebody has truncated the file of this process's figures",
            last->deadline);
        return true;
    }
    report->settings = run->settings;
    report_describe_process(&report->process, secure_getenv);
    report->process.wall_seconds = seconds_since(run->started);
    if (pool_report(run->pool, report) != 0) {
        say_failure("", error_text(errno, buffer), last->deadline);
        return false;
    }
    return !counted_anything(report) || deliver(run, last);
}

static bool report(const struct run *run)
{
    uint64_t deadline = writing_deadline(PATIENCE_NANOSECONDS);
    if (!scratch_begin())
        return false;
    struct last_report *last = scratch_calloc(1, sizeof *last);
    if (last != NULL)
        last->deadline = deadline;
    bool made = last != NULL && make_report(run, last);
    scratch_end();
    return made;
}

void report_at_exit(const struct run *run)
{
    int saved_errno = errno;
    bool reported = run->settings.report.at_exit == REPORT_NONE || report(run);
    /* If the report was not delivered and somebody collects the figures, their file stays. The
     * collector then sees that there was something to report. */
    pool_end_figures(run->pool, run->settings.figures.keep || (!reported && run->collected));
    errno = saved_errno;
}
