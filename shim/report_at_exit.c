/*
 * The report that a process writes when it ends, and the end of its figures.
 *
 * A destructor of this object: it runs in whichever thread calls exit, while others may still be
 * allocating. It makes no driver call, and does nothing in a process that did not use the pool.
 * Nothing here can change how the program ends: a report that cannot be written is one line.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../core/table.h"
#include "start.h"

static bool counted_any_request(const struct report *report)
{
    for (size_t device = 0; device < report->device_count; device++) {
        for (size_t kind = 0; kind < report->devices[device].kind_count; kind++) {
            if (report->devices[device].kinds[kind].totals.requests > 0) {
                return true;
            }
        }
    }
    return false;
}

static double seconds_since(const struct timespec *then)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) / 1e9;
}

static void say_failure(const char *file, const char *error)
{
    char line[2 * PATH_MAX];
    snprintf(line, sizeof line, "report: %s%s%s", file, file[0] != '\0' ? ": " : "", error);
    say(line);
}

/* One call where the file takes it whole, so that the ranks of a job do not mix their lines. */
static int write_all(int file, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(file, text, bytes);
        if (written < 0 && errno != EINTR) {
            return -1;
        }
        if (written > 0) {
            text += written;
            bytes -= (size_t)written;
        }
    }
    return 0;
}

/* As wide as the terminal, where the table goes to one; never in colour, which only a terminal's
 * description could tell of. */
static struct look look_of(const char *file)
{
    struct look look = {.more = "CUDAPOOL_REPORT=FILE and cudapool report --all FILE"};
    struct winsize size = {0};
    if (file[0] == '\0' && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0) {
        look.width = size.ws_col;
    }
    return look;
}

/* The table in memory that the caller frees; NULL with errno. */
static char *print_to_memory(const struct report *report, const struct look *look, size_t *bytes)
{
    char *text = NULL;
    char *folded = NULL;
    FILE *memory = open_memstream(&text, bytes);
    if (memory == NULL) {
        return NULL;
    }
    int failed = report_print_as(report, look, memory);
    failed |= fclose(memory);
    memory = failed == 0 ? open_memstream(&folded, bytes) : NULL;
    if (memory != NULL) {
        print_folded(text, look, memory);
        failed = fclose(memory);
    }
    free(text);
    if (memory == NULL || failed != 0) {
        free(folded);
        return NULL;
    }
    return folded;
}

static int write_table(const struct report *report, const char *file)
{
    size_t bytes;
    struct look look = look_of(file);
    char *text = print_to_memory(report, &look, &bytes);
    if (text == NULL) {
        return -1;
    }
    int to = file[0] == '\0' ? STDERR_FILENO
                             : open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int result = to >= 0 ? write_all(to, text, bytes) : -1;
    if (to >= 0 && to != STDERR_FILENO && close(to) != 0) {
        result = -1;
    }
    free(text);
    return result;
}

/* The report goes where the figures are: who collects them reads either. */
static bool is_collected(const struct run *run)
{
    const char *directory = run->settings.figures.directory;
    const char *file = run->settings.report.file;
    size_t length = strlen(directory);
    return run->collected && strncmp(file, directory, length) == 0 && file[length] == '/';
}

/* The directory is removed once the reports have been collected. */
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

/* Whoever collects did so while the process was still running. */
static bool came_too_late(const struct run *run, const char *file)
{
    return is_collected(run) && (pool_figures_are_taken(run->pool) || directory_is_gone(file));
}

static bool write_report(const struct run *run, const struct report *report, const char *file)
{
    if (report->settings.report.at_exit == REPORT_TABLE) {
        bool written = write_table(report, file) == 0;
        if (!written) {
            say_failure(file, strerror(errno));
        }
        return written;
    }
    char error[2 * PATH_MAX];
    if (run->write_json(report, file[0] != '\0' ? file : "/dev/stderr", error, sizeof error) == 0) {
        return true;
    }
    /* The figures tell the same, to whoever collects them. */
    if (!is_collected(run)) {
        say_failure("", error);
    }
    return false;
}

static bool deliver(const struct run *run, const struct report *report)
{
    const struct report_settings *choice = &report->settings.report;
    char file[PATH_MAX] = "";
    if (choice->file[0] != '\0' &&
        report_expand_file_name(choice->file, &report->process, file, sizeof file) != 0) {
        say_failure(choice->file, strerror(errno));
        return false;
    }
    return came_too_late(run, file) || write_report(run, report, file);
}

/* Whoever reads our stderr may be gone; that shall not turn the program's exit into a SIGPIPE. */
static bool deliver_without_sigpipe(const struct run *run, const struct report *report)
{
    sigset_t pipe_only;
    sigset_t before;
    sigset_t pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, &pipe_only, &before);
    bool delivered = deliver(run, report);
    if (!sigismember(&pending, SIGPIPE)) {
        static const struct timespec at_once = {0, 0};
        while (sigtimedwait(&pipe_only, NULL, &at_once) < 0 && errno == EINTR) {
        }
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return delivered;
}

/* False where there is a report that could not be delivered. */
static bool make_report(const struct run *run, struct report *report)
{
    size_t left, total;
    if (MUTATED(driver_call_at_exit))
        core_driver()->cuMemGetInfo_v2(&left, &total);
    report->settings = run->settings;
    report_describe_process(&report->process, secure_getenv);
    report->process.wall_seconds = seconds_since(&run->started);
    if (pool_report(run->pool, report) != 0) {
        say_failure("", strerror(errno));
        return false;
    }
    return !counted_any_request(report) || deliver_without_sigpipe(run, report);
}

static bool report(const struct run *run)
{
    struct report *filled = calloc(1, sizeof *filled);
    if (filled == NULL) {
        return false;
    }
    bool made = make_report(run, filled);
    report_free(filled);
    free(filled);
    return made;
}

__attribute__((destructor)) static void report_at_exit(void)
{
    int saved_errno = errno;
    const struct run *run = run_of_this_process();
    if (run == NULL) {
        return;
    }
    bool reported = run->settings.report.at_exit == REPORT_NONE || report(run);
    pool_end_figures(run->pool, run->settings.figures.keep || (!reported && is_collected(run)));
    errno = saved_errno;
}
