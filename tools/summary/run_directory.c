/*
 * Makes and removes the directory of a run (run_directory.h).
 */
#include "run_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/figures/figures_file.h"
#include "core/figures/report_process.h"
#include "tools/command/complaint.h"

/* --- choosing the base directory ----------------------------------------------------------------
 */

static const char *temporary_directory(void)
{
    const char *directory = getenv("TMPDIR");

    return directory != NULL && *directory == '/' ? directory : "/tmp";
}

bool expand_for_self(const char *name, char *path, size_t bytes)
{
    struct report_process *self = calloc(1, sizeof(*self));
    int status = -1;

    if (self != NULL) {
        report_describe_process(self, getenv);
        status = report_expand_file_name(name, self, path, bytes);
    }
    free(self);
    if (status != 0)
        complain("%s: %s", name, strerror(errno));
    return status == 0;
}

/* The bytes of figures for which a directory in memory must have plenty of room
 * (figures_file_memory). */
#define ROOM_FOR_FIGURES (UINT64_C(4) << 20)

/* Writes to base the path of the directory that is to contain the run's directory. Returns false
 * after a complaint. */
static bool choose_base(const struct figures_settings *figures, char *base, size_t bytes)
{
    if (figures->directory[0] != '\0')
        return expand_for_self(figures->directory, base, bytes);
    if (!figures_file_memory(ROOM_FOR_FIGURES, base, bytes))
        snprintf(base, bytes, "%s", temporary_directory());
    return true;
}

/* --- the lock in a directory, and directories of killed runs -------------------------------------
 */

#define LOCK_FILE  "lock"
#define NAME_START "cudapool-"
#define NAME_END   6u /* random characters, from mkdtemp */

/* Locks the directory until the lock file is closed. The lock file gets its final name only once it
 * is locked. So no other run finds it unlocked while its owner lives. Without a file of that name,
 * other runs never remove the directory. Returns the lock file's descriptor, even if the locking or
 * renaming failed; -1: the file cannot be made. */
static int lock_directory(const char *directory)
{
    char fresh[PATH_MAX + 32], name[PATH_MAX + 32];

    snprintf(fresh, sizeof(fresh), "%s/" LOCK_FILE ".new", directory);
    snprintf(name, sizeof(name), "%s/" LOCK_FILE, directory);
    int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) != 0 || rename(fresh, name) != 0))
        unlink(fresh);
    return fd;
}

/* Returns true if the run that locked the directory has ended. This process then holds the lock
 * until *lock is closed, so that no third process removes the directory as well. */
static bool is_left_behind(int directory, int *lock)
{
    *lock = openat(directory, LOCK_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*lock < 0)
        return false;
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0)
        return true;
    close(*lock);
    return false;
}

/* Whether a process is known to use this file of figures. Such a process still runs after its run
 * was killed. */
static bool is_counted_in(int directory, const char *name)
{
    int fd = name_ends_with(name, FIGURES_SUFFIX)
                 ? openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
                 : -1;
    bool used = fd >= 0 && figures_file_use(fd) == FIGURES_USED;

    if (fd >= 0)
        close(fd);
    return used;
}

static bool any_is_counted_in(DIR *entries)
{
    const struct dirent *entry;

    while ((entry = readdir(entries)) != NULL)
        if (is_counted_in(dirfd(entries), entry->d_name))
            return true;
    return false;
}

static void remove_files(DIR *entries)
{
    const struct dirent *entry;

    rewinddir(entries);
    while ((entry = readdir(entries)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(entries), entry->d_name, 0);
}

/* Removes a directory of this user if its run has ended and no process is known to keep figures
 * there any more. */
static void tidy_directory(int base, const char *name)
{
    int directory = openat(base, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), lock;
    struct stat status;

    if (directory < 0)
        return;
    DIR *entries = fdopendir(directory);
    if (entries == NULL) {
        close(directory);
        return;
    }
    if (fstat(directory, &status) == 0 && status.st_uid == geteuid() &&
        is_left_behind(directory, &lock)) {
        if (!any_is_counted_in(entries)) {
            remove_files(entries);
            unlinkat(base, name, AT_REMOVEDIR);
        }
        close(lock);
    }
    closedir(entries);
}

static void tidy(const char *base)
{
    DIR *entries = opendir(base);
    const struct dirent *entry;

    if (entries == NULL)
        return;
    while ((entry = readdir(entries)) != NULL)
        if (strncmp(entry->d_name, NAME_START, strlen(NAME_START)) == 0 &&
            strlen(entry->d_name) == strlen(NAME_START) + NAME_END)
            tidy_directory(dirfd(entries), entry->d_name);
    closedir(entries);
}

/* --- making and removing a directory ------------------------------------------------------------
 */

bool run_directory_make(const struct figures_settings *figures, struct run_directory *directory)
{
    char base[PATH_MAX];

    if (!choose_base(figures, base, sizeof(base)))
        return false;
    tidy(base);
    int length =
        snprintf(directory->path, sizeof(directory->path), "%s/" NAME_START "XXXXXX", base);
    errno = ENAMETOOLONG;
    if (length > 0 && (size_t)length < sizeof(directory->path) &&
        mkdtemp(directory->path) != NULL) {
        directory->lock = lock_directory(directory->path);
        return true;
    }
    complain("%s: the reports cannot be collected: %s", base, strerror(errno));
    return false;
}

void run_directory_remove(struct run_directory *directory)
{
    DIR *entries = opendir(directory->path);

    if (entries != NULL) {
        remove_files(entries);
        closedir(entries);
    }
    rmdir(directory->path);
    if (directory->lock >= 0)
        close(directory->lock);
}
