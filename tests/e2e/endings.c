/*
 * Programs that use some memory and end with status 7, after something has happened to their
 * descriptor 2; and the parent that gives them one on which they could wait for ever.
 *
 * usage: endings plain            nothing has happened
 *        endings opens FILE       a file is opened and written to: where 2 was closed, it is 2
 *        endings reopens FILE     2 is closed first
 *        endings moves FILE       the file is put in place of 2 (dup2)
 *        endings sizes            many rows for each of all devices
 *        endings watch KIND MILLISECONDS PROGRAM...   runs a program on a stderr of that kind; what
 *                                 was written there goes to stdout. Exits with the program's
 * status, or 100 where it took longer, 101 where it was stopped. KIND: pipe     nobody reads it
 *       full     a pipe without any room
 *       shared   a full pipe of another user's, which cannot be opened by name
 *       socket   nobody reads it
 *       terminal nobody reads it, and its output is stopped
 *       background  a terminal that stops who writes to it from the background
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>

#include "pool.h"

/* --- the programs -------------------------------------------------------------------------------
 */

static const char own_text[] = "the program's own words\n";

static void write_own_words(int fd)
{
    CHECK(fd >= 0 && write(fd, own_text, sizeof own_text - 1) == (ssize_t)sizeof own_text - 1);
}

static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
}

static void do_to_descriptor_2(const char *what, const char *path)
{
    if (strcmp(what, "opens") == 0) {
        int fd = open_file(path);
        CHECK(fd == STDERR_FILENO);
        write_own_words(fd);
    } else if (strcmp(what, "reopens") == 0) {
        CHECK(close(STDERR_FILENO) == 0 && open_file(path) == STDERR_FILENO);
        write_own_words(STDERR_FILENO);
    } else if (strcmp(what, "moves") == 0) {
        CHECK(dup2(open_file(path), STDERR_FILENO) == STDERR_FILENO);
        write_own_words(STDERR_FILENO);
    }
}

static void use_device(CUdevice device, size_t sizes)
{
    CUcontext context;
    CU(cuCtxCreate_v2(&context, 0, device));
    for (size_t i = 1; i <= sizes; i++)
        CU(cuMemFree_v2(take(i << 12)));
}

static int run_program(const char *what, const char *path)
{
    int devices = 1;
    do_to_descriptor_2(what, path);
    CU(cuInit(0));
    if (strcmp(what, "sizes") == 0)
        CU(cuDeviceGetCount(&devices));
    for (int i = 0; i < devices; i++)
        use_device(i, devices > 1 ? 300 : 3);
    exit(7);
}

/* --- the parent ---------------------------------------------------------------------------------
 */

/* The side that is read, and the program's. */
struct channel {
    int reading, writing;
    bool in_background;
};

static void fill_up(int fd)
{
    char filling[4096];
    memset(filling, '-', sizeof filling);
    filling[sizeof filling - 1] = '\n';
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (write(fd, filling, sizeof filling) > 0)
        continue;
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
}

static struct channel open_pipe(const char *kind)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    if (strcmp(kind, "pipe") != 0)
        fill_up(ends[1]);
    if (strcmp(kind, "shared") == 0)
        CHECK(fchmod(ends[1], 0) == 0 && setuid(65534) == 0);
    return (struct channel){ends[0], ends[1], false};
}

static struct channel open_terminal(bool in_background)
{
    struct termios settings;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    CHECK(slave >= 0 && tcgetattr(slave, &settings) == 0);
    if (!in_background) {
        CHECK(tcflow(slave, TCOOFF) == 0);
        return (struct channel){master, slave, false};
    }
    settings.c_lflag |= TOSTOP;
    CHECK(tcsetattr(slave, TCSANOW, &settings) == 0);
    CHECK(setsid() > 0 && ioctl(slave, TIOCSCTTY, 0) == 0);
    return (struct channel){master, slave, true};
}

static struct channel open_channel(const char *kind)
{
    int ends[2];
    if (strcmp(kind, "socket") == 0) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        return (struct channel){ends[0], ends[1], false};
    }
    if (strcmp(kind, "terminal") == 0 || strcmp(kind, "background") == 0)
        return open_terminal(strcmp(kind, "background") == 0);
    return open_pipe(kind);
}

static pid_t start(const struct channel *channel, char **program)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* A process group that is not orphaned, and not the terminal's. */
        if (channel->in_background)
            CHECK(setpgid(0, 0) == 0);
        CHECK(dup2(channel->writing, STDERR_FILENO) == STDERR_FILENO);
        close(channel->reading);
        execvp(program[0], program);
        _exit(127);
    }
    return child;
}

static void show_what_was_written(int fd, int milliseconds)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    char text[4096];
    ssize_t got;
    while (poll(&waiting, 1, milliseconds) == 1 && (got = read(fd, text, sizeof text)) > 0)
        CHECK(fwrite(text, 1, (size_t)got, stdout) == (size_t)got);
    CHECK(fflush(stdout) == 0);
}

static int wait_for(pid_t child, const struct channel *channel, long milliseconds)
{
    int status;
    for (long waited = 0; waited < milliseconds; waited++) {
        if (channel->in_background)
            show_what_was_written(channel->reading, 0);
        if (waitpid(child, &status, WNOHANG | WUNTRACED) == child)
            return WIFSTOPPED(status)    ? 101
                   : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                         : WEXITSTATUS(status);
        sleep_ms(1);
    }
    return 100;
}

static int watch(const char *kind, long milliseconds, char **program)
{
    struct channel channel = open_channel(kind);
    pid_t child = start(&channel, program);
    int status = wait_for(child, &channel, milliseconds);
    if (status == 100 || status == 101)
        kill(child, SIGKILL);
    show_what_was_written(channel.reading, 20);
    return status;
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (strcmp(argv[1], "watch") == 0 && argc > 4)
        return watch(argv[2], atol(argv[3]), argv + 4);
    return run_program(argv[1], argc > 2 ? argv[2] : "");
}
