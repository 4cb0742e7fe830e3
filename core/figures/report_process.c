/*
 * The process in a report: its identity, the versions, and how it ended (report_process.h).
 *
 * Part of the preload object, where it runs while someone else's program ends: libc only. It does
 * not depend on the locale, and changes no state of the program.
 */
#include "report_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file_pattern.h"
#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "core/base/sandbox.h"

/* The Makefile defines the version. The fallback lets tools read the sources without it. */
#ifndef CUDAPOOL_VERSION
#define CUDAPOOL_VERSION "unknown"
#endif

/* ---- identity ---- */

/* In the order of trust: first variables of the innermost launcher, which surely mean this process,
 * and last the most general ones. */
static const char *const rank_variables[] = {
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK",      "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID",
    "JSM_NAMESPACE_RANK",   "FLUX_TASK_RANK", "RANK",     "SLURM_PROCID",
};

static bool is_a_number(const char *text)
{
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

void report_find_rank(environment_reader environment, char *rank, size_t bytes)
{
    rank[0] = '\0';
    for (size_t i = 0; i < sizeof(rank_variables) / sizeof(rank_variables[0]); i++) {
        const char *value = environment(rank_variables[i]);
        /* Only digits are accepted, because the rank becomes part of a file name. */
        if (value == NULL || !is_a_number(value) || strlen(value) >= bytes)
            continue;
        memcpy(rank, value, strlen(value) + 1);
        return;
    }
}

/* Replaces the zero bytes that end the arguments by spaces. */
void report_find_command(int64_t pid, char *command, size_t bytes)
{
    char path[64] = "/proc/self/cmdline";
    size_t filled = 0;
    ssize_t got = 0;

    if (pid != 0)
        snprintf(path, sizeof(path), "/proc/%lld/cmdline", (long long)pid);
    int fd = sandbox_was_entered() ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && filled < bytes - 1) {
        got = read(fd, command + filled, bytes - 1 - filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        filled += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    while (filled > 0 && command[filled - 1] == '\0')
        filled--;
    for (size_t i = 0; i < filled; i++)
        if (command[i] == '\0')
            command[i] = ' ';
    command[filled] = '\0';
}

void report_describe_process(struct report_process *process, environment_reader environment)
{
    process->pid = getpid();
    if (gethostname(process->host, sizeof(process->host)) != 0)
        process->host[0] = '\0';
    process->host[sizeof(process->host) - 1] = '\0';
    report_find_rank(environment, process->rank, sizeof(process->rank));
    report_find_command(0, process->command, sizeof(process->command));
}

/* ---- versions and the date ---- */

void report_driver_release(const char *text, char *release, size_t bytes)
{
    size_t length;

    release[0] = '\0';
    for (text += strcspn(text, " \t\n"); *text != '\0'; text += length) {
        text += strspn(text, " \t\n");
        length = strcspn(text, " \t\n");
        size_t digits = strspn(text, "0123456789.");
        if (digits == length && digits > 2 && digits < bytes && memchr(text, '.', length) != NULL) {
            memcpy(release, text, length);
            release[length] = '\0';
            return;
        }
    }
}

void report_find_versions(struct report_versions *versions)
{
    char text[512];
    int fd = open("/proc/driver/nvidia/version", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    report_driver_release(text, versions->driver, sizeof(versions->driver));
    snprintf(versions->cudapool, sizeof(versions->cudapool), "%s", CUDAPOOL_VERSION);
}

static void append(char *text, const char *gap, const char *more)
{
    size_t length = strlen(text);

    snprintf(text + length, REPORT_ORIGIN_BYTES - length, "%s%s", length == 0 ? "" : gap, more);
}

void report_describe_origin(const struct report_versions *versions, uint64_t started_nanoseconds,
                            char text[REPORT_ORIGIN_BYTES])
{
    char part[READABLE_BYTES + 32];

    text[0] = '\0';
    if (versions->cudapool[0] != '\0') {
        snprintf(part, sizeof(part), "cudapool %s", versions->cudapool);
        append(text, "", part);
    }
    if (versions->driver[0] != '\0') {
        snprintf(part, sizeof(part), "driver %s", versions->driver);
        append(text, ", ", part);
    }
    if (versions->cuda != 0) {
        bool in_brackets = versions->driver[0] != '\0';
        snprintf(part, sizeof(part), "%sCUDA %u.%u%s", in_brackets ? "(" : "",
                 versions->cuda / 1000, versions->cuda % 1000 / 10, in_brackets ? ")" : "");
        append(text, in_brackets ? " " : ", ", part);
    }
    if (started_nanoseconds != 0) {
        readable_date(started_nanoseconds, part);
        append(text, ", ", part);
    }
    make_printable(text, REPORT_ORIGIN_BYTES);
}

int report_expand_file_name(const char *name, const struct report_process *process, char *expanded,
                            size_t bytes)
{
    const struct file_pattern_values values = {
        .pid = process->pid, .host = process->host, .rank = process->rank};

    return file_pattern_expand(name, &values, expanded, bytes);
}

/* ---- how it ended ---- */

/* Signals that end processes. The C library has a list of names only from glibc 2.32 on. */
static const struct {
    int number;
    const char *name;
} signals[] = {
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},     {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"},     {SIGSYS, "SIGSYS"},   {SIGIO, "SIGIO"},     {SIGPROF, "SIGPROF"},
    {SIGVTALRM, "SIGVTALRM"},
};

static void describe_signal(int number, char text[REPORT_END_BYTES])
{
    snprintf(text, REPORT_END_BYTES, "killed by signal %d", number);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (signals[i].number == number)
            snprintf(text, REPORT_END_BYTES, "killed by %s", signals[i].name);
}

void report_describe_end(enum report_ending ending, struct report_exit exit,
                         char text[REPORT_END_BYTES])
{
    text[0] = '\0';
    if (exit.known && exit.signal != 0)
        describe_signal(exit.signal, text);
    else if (exit.known && ending == REPORT_KILLED)
        snprintf(text, REPORT_END_BYTES, "ended by _exit(%d)", exit.status);
    else if (exit.known && exit.status != 0)
        snprintf(text, REPORT_END_BYTES, "exited with status %d", exit.status);
    else if (ending == REPORT_KILLED)
        snprintf(text, REPORT_END_BYTES, "killed, or ended without a word");
    else if (ending == REPORT_RUNNING)
        snprintf(text, REPORT_END_BYTES, "still running");
}
