/*
 * Writes files of reports, which appear under their names only when they are complete
 * (report_file_json.h).
 *
 * A regular file is written under a temporary name beside its own, and then renamed. A device, a
 * pipe or an open file is written to directly.
 */
#include "report_file_json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "core/base/writing.h"

static bool is_own_output(const char *path)
{
    return strcmp(path, "/dev/stdout") == 0 || strcmp(path, "/dev/stderr") == 0;
}

/* Links such as /dev/fd/3, by which the kernel names open files, lie in procfs. */
static bool is_open_file(const char *path)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    struct statfs system;

    if (slash == NULL || strlen(path) >= sizeof(directory))
        return false;
    snprintf(directory, sizeof(directory), "%.*s", (int)(slash - path + 1), path);
    return statfs(directory, &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

/* A rename would replace a pipe, a terminal or /dev/null by a file. A file that a process has open
 * may be a log that others write to. */
bool report_file_is_direct(const char *path)
{
    struct stat status;

    return is_own_output(path) || is_open_file(path) ||
           (stat(path, &status) == 0 && !S_ISREG(status.st_mode));
}

int report_file_open_direct(const char *path, bool waits)
{
    int patience = waits ? 0 : O_NONBLOCK;

    /* stdout and stderr are duplicated, because open fails where they are a socket or another
     * user's terminal. */
    if (strcmp(path, "/dev/stdout") == 0)
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (strcmp(path, "/dev/stderr") == 0)
        return fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    /* With O_NONBLOCK, opening a FIFO without a reader fails instead of waiting. */
    return open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | patience);
}

/* 0, or -1 with errno. */
static int write_directly(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    int fd = report_file_open_direct(path, false);

    if (fd < 0)
        return -1;
    int status = write_until(fd, text, bytes, deadline);
    int why = errno;
    close(fd);
    errno = why;
    return status;
}

/* Room for a path and the suffix of its temporary file. */
#define NAME_BYTES (PATH_MAX + 64)

/* Creates a new file beside path, and writes its name. The descriptor, or -1 with errno. */
static int create_beside(const char *path, char name[NAME_BYTES])
{
    if (strlen(path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        snprintf(name, NAME_BYTES, "%s.%ld.%u.tmp", path, (long)getpid(), attempt);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Writes the text to the file called name, and renames it to path. 0, or -1 with errno. */
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
    char name[NAME_BYTES];
    int fd = create_beside(path, name);

    return fd < 0 ? -1 : write_and_rename(fd, name, path, text, bytes, deadline);
}

int report_file_write(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    char target[PATH_MAX];

    if (report_file_is_direct(path))
        return write_directly(path, text, bytes, deadline);
    return write_atomically(realpath(path, target) == NULL ? path : target, text, bytes, deadline);
}

/* Does not open a FIFO, since its reader may come later. */
static int check_direct(const char *path)
{
    struct stat status;

    if (is_own_output(path))
        return 0;
    if (stat(path, &status) != 0)
        return -1;
    if (S_ISDIR(status.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS);
}

int report_file_check(const char *path)
{
    char target[PATH_MAX], name[NAME_BYTES];

    if (report_file_is_direct(path))
        return check_direct(path);
    int fd = create_beside(realpath(path, target) == NULL ? path : target, name);
    if (fd < 0)
        return -1;
    close(fd);
    return unlink(name);
}
