#include "writing.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "numbers.h"
#include "sandbox.h"

/* A pipe takes this many bytes whole or not at all (PIPE_BUF). A page is a multiple of it. */
#define PIECE_BYTES 4096u

/* One call gives a pipe this many pieces, more than the pipe has room for by default. */
#define PIECES_AT_ONCE 64u

uint64_t writing_deadline(uint64_t nanoseconds)
{
    return monotonic_now() + nanoseconds;
}

/* ---- signals ---- */

/* What the thread blocked, and what was pending, before hold_signals. */
struct held_signals {
    sigset_t before, pending;
};

/* Blocks the signals that a write may bring to the thread that makes it. */
static void hold_signals(struct held_signals *signals)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGPIPE);
    sigaddset(&held, SIGXFSZ);
    /* A background process that blocks SIGTTOU may write to its terminal. */
    sigaddset(&held, SIGTTOU);
    sigpending(&signals->pending);
    sigprocmask(SIG_BLOCK, &held, &signals->before);
}

/* Discards the signals that came meanwhile. */
static void let_signals_go(struct held_signals *signals)
{
    static const struct timespec at_once = {0, 0};
    static const int brought[] = {SIGPIPE, SIGXFSZ};
    for (unsigned i = 0; i < sizeof brought / sizeof brought[0]; i++) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, brought[i]);
        if (sigismember(&signals->pending, brought[i]))
            continue;
        while (sigtimedwait(&one, NULL, &at_once) < 0 && errno == EINTR)
            continue;
    }
    sigprocmask(SIG_SETMASK, &signals->before, NULL);
}

/* ---- what can be written without waiting, by what the descriptor is ---- */

enum way {
    PLAINLY,      /* a regular file or a device: a write does not wait for a reader */
    AS_MESSAGE,   /* a socket */
    AS_PAGES,     /* a pipe: vmsplice can be told not to wait, whatever the pipe's own state is */
    NON_BLOCKING, /* the file was opened once more, in non-blocking mode */
    WHEN_READY,   /* poll says when to write, as far as it can tell */
};

struct target {
    int fd;
    int reopened; /* -1: not opened once more */
    enum way way;
};

/* Opens the file once more. This fails for another user's pipe or terminal, even one that can be
 * written to. */
static void reopen(struct target *target)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", target->fd);
    target->reopened =
        sandbox_was_entered() ? -1 : open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    target->way = target->reopened >= 0 ? NON_BLOCKING : WHEN_READY;
}

static bool is_terminal(int fd)
{
    struct termios settings;
    return tcgetattr(fd, &settings) == 0;
}

static struct target find_target(int fd)
{
    struct target target = {fd, -1, WHEN_READY};
    struct stat status;
    if (fstat(fd, &status) != 0)
        return target;
    if (S_ISSOCK(status.st_mode))
        target.way = AS_MESSAGE;
    else if (S_ISFIFO(status.st_mode))
        target.way = AS_PAGES;
    else if (S_ISCHR(status.st_mode) && is_terminal(fd))
        reopen(&target);
    else
        target.way = PLAINLY;
    return target;
}

/* Returns the length of as many whole lines as a piece holds, or a piece of a longer line. */
static size_t piece_of(const char *text, size_t bytes)
{
    if (bytes <= PIECE_BYTES)
        return bytes;
    const char *end = memrchr(text, '\n', PIECE_BYTES);
    return end != NULL ? (size_t)(end - text) + 1 : PIECE_BYTES;
}

/* Gives a pipe as many pieces as it has room for, at most PIECES_AT_ONCE. Returns as write_some
 * does. The pipe keeps the pages until they are read, so nobody may change them. They hold a copy
 * of the text, with a piece at every multiple of PIECE_BYTES. This process unmaps them at once. */
static ssize_t give_pages(int fd, const char *text, size_t bytes)
{
    struct iovec pieces[PIECES_AT_ONCE];
    size_t all = (size_t)PIECES_AT_ONCE * PIECE_BYTES;
    char *pages = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return -1;
    unsigned count = 0;
    for (; bytes > 0 && count < PIECES_AT_ONCE; count++) {
        size_t length = piece_of(text, bytes);
        pieces[count] = (struct iovec){pages + (size_t)count * PIECE_BYTES, length};
        memcpy(pieces[count].iov_base, text, length);
        text += length;
        bytes -= length;
    }
    ssize_t given = vmsplice(fd, pieces, count, SPLICE_F_NONBLOCK);
    int error = errno;
    munmap(pages, all);
    errno = error;
    return given;
}

static int poll_for_room(int fd, int milliseconds)
{
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    return poll(&waiting, 1, milliseconds);
}

/* Writes what has room now. Returns -1 with errno; EAGAIN: there is no room. */
static ssize_t write_some(struct target *target, const char *text, size_t bytes)
{
    switch (target->way) {
    case PLAINLY:
        return write(target->fd, text, bytes);
    case AS_MESSAGE:
        return send(target->fd, text, piece_of(text, bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
    case NON_BLOCKING:
        return write(target->reopened, text, piece_of(text, bytes));
    case AS_PAGES: {
        ssize_t given = give_pages(target->fd, text, bytes);
        if (given >= 0 || errno == EAGAIN || errno == EINTR || errno == EPIPE || errno == EBADF)
            return given;
        /* Some kernels and some filters of system calls do not have vmsplice. EINTR makes the
         * caller try again, in the way that reopen has chosen. */
        reopen(target);
        errno = EINTR;
        return -1;
    }
    default:
        if (poll_for_room(target->fd, 0) == 1)
            return write(target->fd, text, piece_of(text, bytes));
        errno = EAGAIN;
        return -1;
    }
}

/* Waits for room, for a second at most. Returns false with EAGAIN if the deadline has passed. */
static bool wait_for_room(int fd, uint64_t deadline)
{
    uint64_t now = monotonic_now();
    if (now >= deadline) {
        errno = EAGAIN;
        return false;
    }
    uint64_t milliseconds = smaller_of((deadline - now) / 1000000 + 1, 1000);
    struct clock_sleep sleep = clock_sleep_begin();
    bool timed_out = poll_for_room(fd, (int)milliseconds) == 0;
    clock_sleep_end(&sleep, timed_out ? milliseconds * 1000000 : 0);
    return true;
}

static int write_all(struct target *target, const char *text, size_t bytes, uint64_t deadline)
{
    while (bytes > 0) {
        ssize_t written = write_some(target, text, bytes);
        if (written < 0 && errno == EAGAIN && !wait_for_room(target->fd, deadline))
            return -1;
        if (written < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        if (written > 0) {
            text += written;
            bytes -= (size_t)written;
        }
    }
    return 0;
}

int write_until(int fd, const char *text, size_t bytes, uint64_t deadline)
{
    struct held_signals signals;
    hold_signals(&signals);
    struct target target = find_target(fd);
    int status = write_all(&target, text, bytes, deadline);
    int error = errno;
    if (target.reopened >= 0)
        close(target.reopened);
    let_signals_go(&signals);
    errno = error;
    return status;
}

/* ---- errors ---- */

const char *error_text(int error, char buffer[32])
{
    static const struct {
        int error;
        const char *text;
    } known[] = {
        {EPERM, "Operation not permitted"},
        {ENOENT, "No such file or directory"},
        {EIO, "Input/output error"},
        {ENXIO, "No such device or address"},
        {EBADF, "Bad file descriptor"},
        {EAGAIN, "Resource temporarily unavailable"},
        {ENOMEM, "Cannot allocate memory"},
        {EACCES, "Permission denied"},
        {EEXIST, "File exists"},
        {ENOTDIR, "Not a directory"},
        {EISDIR, "Is a directory"},
        {EINVAL, "Invalid argument"},
        {EMFILE, "Too many open files"},
        {ENFILE, "Too many open files in system"},
        {EFBIG, "File too large"},
        {ENOSPC, "No space left on device"},
        {EROFS, "Read-only file system"},
        {EPIPE, "Broken pipe"},
        {ENAMETOOLONG, "File name too long"},
        {ELOOP, "Too many levels of symbolic links"},
        {ESTALE, "Stale file handle"},
        {EDQUOT, "Disk quota exceeded"},
    };
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].error == error)
            return known[i].text;
    snprintf(buffer, 32, "error %d", error);
    return buffer;
}
