/*
 * stat, lstat and fstat for every glibc from 2.28 on.
 *
 * Before glibc 2.33 they were inline functions. An object that was built against glibc 2.33 or
 * later needs fstat@GLIBC_2.33, and does not load on an earlier system. The functions here call the
 * kernel. On x86-64 and aarch64 its struct stat has the layout of libc's. The functions are hidden:
 * an object that is linked with this file calls them by the usual names, and no other object does.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __GLIBC_PREREQ(2, 33)

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN int stat(const char *restrict path, struct stat *restrict status)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

HIDDEN int lstat(const char *restrict path, struct stat *restrict status)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

HIDDEN int fstat(int fd, struct stat *status)
{
    return (int)syscall(SYS_fstat, fd, status);
}

#endif
