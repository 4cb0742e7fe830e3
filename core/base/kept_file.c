#include "kept_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cancellation.h"
#include "mapped_file.h"
#include "numbers.h"

/* Descriptors get numbers from this one on, or from half of those that the process may have if that
 * is less. */
#define FIRST_DESCRIPTOR 512u

/* FNV-1a. */
static uint64_t hash_of(const char *path)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *path; path++)
        hash = (hash ^ (unsigned char)*path) * UINT64_C(1099511628211);
    return hash;
}

/* Moves the descriptor to a high number. Returns the new number, or -1 if there is none. Closes fd
 * in either case. */
static int raise_number(int fd)
{
    struct rlimit limit = {.rlim_cur = 2 * FIRST_DESCRIPTOR};
    getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t first = smaller_of(FIRST_DESCRIPTOR, limit.rlim_cur / 2);
    int raised = fcntl(fd, F_DUPFD_CLOEXEC, (int)larger_of(first, STDERR_FILENO + 1));
    close(fd);
    return raised;
}

static bool is_open(const struct kept_file *file)
{
    struct statx found;
    return mapped_file_identify(file->fd, "", &found) &&
           mapped_file_is(&found, file->device, file->inode);
}

bool kept_file_open(struct kept_file *file, const char *path)
{
    struct statx found;
    int error = errno, cancellation = cancellation_off();
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    file->fd = fd < 0 ? -1 : raise_number(fd);
    bool opened = file->fd >= 0 && mapped_file_identify(file->fd, "", &found);
    if (opened) {
        file->path = hash_of(path);
        file->device = mapped_file_device(&found);
        file->inode = found.stx_ino;
    } else if (file->fd >= 0) {
        close(file->fd);
    }
    cancellation_restore(cancellation);
    errno = error;
    return opened;
}

const struct kept_file *kept_file_find(const struct kept_file *files, unsigned count,
                                       const char *path)
{
    int error = errno;
    uint64_t hash = count ? hash_of(path) : 0;
    const struct kept_file *found = NULL;
    for (unsigned i = 0; i < count && !found; i++)
        found = files[i].path == hash ? &files[i] : NULL;
    found = found && is_open(found) ? found : NULL;
    errno = error;
    return found;
}

void kept_file_close(const struct kept_file *file)
{
    int error = errno, cancellation = cancellation_off();
    if (is_open(file))
        close(file->fd);
    cancellation_restore(cancellation);
    errno = error;
}
