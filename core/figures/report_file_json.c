/*
 * Files of reports, which appear under their names when they are complete (report_file_json.h).
 */
#include "report_file_json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/writing.h"

/* A pipe, a terminal or /dev/null must not be replaced by a file; and what is behind /dev/stderr
 * may be a log that others write to as well. */
static bool is_written_directly(const char *path)
{
    struct stat status;

    if (strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0)
        return true;
    return stat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

static int open_directly(const char *path)
{
    /* By name they could not be opened where they are sockets, or another user's terminal. */
    if (strcmp(path, "/dev/stdout") == 0)
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (strcmp(path, "/dev/stderr") == 0)
        return fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    /* Non-blocking: a FIFO that nobody reads is an error, not a wait. */
    return open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/* 0, or -1 with errno. */
static int write_directly(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    int fd = open_directly(path);

    if (fd < 0)
        return -1;
    int status = write_until(fd, text, bytes, deadline);
    int why = errno;
    close(fd);
    errno = why;
    return status;
}

/* Creates a file beside path that did not exist, and writes its name. The descriptor, or -1. */
static int create_beside(const char *path, char *name, size_t bytes)
{
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        snprintf(name, bytes, "%s.%ld.%u.tmp", path, (long)getpid(), attempt);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Writes all of the text to name and gives it the name path. 0, or -1 with errno. */
static int write_and_rename(int fd, const char *name, const char *path, const char *text,
                            size_t bytes, uint64_t deadline)
{
    int status = write_until(fd, text, bytes, deadline);

    if (close(fd) != 0)
        status = -1;
    if (status == 0)
        status = rename(name, path);
    if (status == 0)
        return 0;
    int why = errno;
    unlink(name);
    errno = why;
    return -1;
}

/* 0, or -1 with errno. */
static int write_atomically(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    char name[PATH_MAX + 64];

    if (strlen(path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = create_beside(path, name, sizeof(name));
    return fd < 0 ? -1 : write_and_rename(fd, name, path, text, bytes, deadline);
}

int report_file_write(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    char target[PATH_MAX];

    if (is_written_directly(path))
        return write_directly(path, text, bytes, deadline);
    return write_atomically(realpath(path, target) == NULL ? path : target, text, bytes, deadline);
}
