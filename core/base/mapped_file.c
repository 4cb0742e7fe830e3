/*
 * Checks files that a process maps, and the directories of these files (mapped_file.h).
 *
 * This file is part of the preload object, so it uses libc only.
 */
#include "mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A memory file system has plenty of room for N bytes if more than PLENTY * N bytes are free. */
#define PLENTY 16u

#define TMPFS_TYPE 0x01021994

bool mapped_file_identify(int fd, const char *name, struct statx *found)
{
    return statx(fd, name, AT_SYMLINK_NOFOLLOW | (name[0] ? 0 : AT_EMPTY_PATH),
                 STATX_TYPE | STATX_MODE | STATX_UID | STATX_INO | STATX_SIZE, found) == 0;
}

uint64_t mapped_file_device(const struct statx *found)
{
    return (uint64_t)found->stx_dev_major << 32 | found->stx_dev_minor;
}

bool mapped_file_is(const struct statx *found, uint64_t device, uint64_t inode)
{
    return mapped_file_device(found) == device && found->stx_ino == inode;
}

bool mapped_file_is_private(const struct statx *found)
{
    return found->stx_uid == geteuid() && (found->stx_mode & 077) == 0;
}

bool mapped_file_is_in_memory(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) == 0 && (uint64_t)system.f_type == TMPFS_TYPE;
}

bool mapped_file_has_plenty(int fd, uint64_t bytes)
{
    struct statfs system;
    if (fstatfs(fd, &system) != 0 || (uint64_t)system.f_type != TMPFS_TYPE)
        return false;
    /* f_blocks is 0 in a file system without a limit. */
    return system.f_blocks == 0 ||
           (uint64_t)system.f_bavail > PLENTY * bytes / (uint64_t)system.f_bsize;
}

bool mapped_file_may_have(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

/* Tries again if a signal interrupts the call, since an interrupted call has reserved nothing. */
bool mapped_file_reserve(int fd, uint64_t from, uint64_t to)
{
    int error = EINTR;
    for (int tries = 0; tries < 10 && error == EINTR; tries++)
        error = posix_fallocate(fd, (off_t)from, (off_t)(to - from));
    errno = error;
    return error == 0;
}

static int open_directory(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

int mapped_file_open_directory(const char *path)
{
    struct statx found;
    int directory = open_directory(path);
    /* Another process may make the directory at the same time. */
    if (directory < 0 && errno == ENOENT && (mkdir(path, 0700) == 0 || errno == EEXIST))
        directory = open_directory(path);
    if (directory < 0)
        return -1;
    if (mapped_file_identify(directory, "", &found) && mapped_file_is_private(&found))
        return directory;
    close(directory);
    errno = EPERM;
    return -1;
}
