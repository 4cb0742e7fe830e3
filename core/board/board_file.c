/*
 * Opens, makes and maps the board's file, and tests its locks (board_file.h).
 *
 * Part of the preload object: libc only.
 */
#include "board_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board_slot.h"
#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/mapped_file.h"
#include "core/base/sandbox.h"

#define BYTES        sizeof(struct board_map)
#define MAKING       BOARD_SLOTS /* a process that makes the file locks this byte */
#define DIRECTORY    "cudapool-%u"
#define NAME_OF(n)   "board-" #n
#define NAME_WITH(n) NAME_OF(n)
#define MAKING_LASTS BOARD_SILENCE_NANOSECONDS

/* board_clear_ended takes no more than 1/LIFE_SHARE of the time, even where it must test hundreds
 * of locks. */
#define LIFE_SHARE 100u

/* ---- files that are open briefly ---- */

/* All fields but busy are relaxed. A record belongs to one thread at a time. Only that thread and a
 * forked child read it. The child sees each store entirely or not at all. */
struct board_passing {
    /* A thread has the file open and uses this record. note_open acquires, and board_file_close
     * releases. */
    _Atomic bool busy;
    /* fd + 1; 0: none yet. board_file_close does not reset it, because a fork copies descriptors
     * before memory. After a reset in between, the child would have an open descriptor and no
     * record of it. */
    _Atomic int descriptor;
    board_word device, inode; /* of the board's file; a file of the program has other ones */
    _Atomic(void *) mapping;  /* a mapping that a forked child would inherit; NULL: none */
};

/* At most this many threads have the file open at a time. */
static struct board_passing all_passing[16];
#define PASSING_COUNT (sizeof all_passing / sizeof all_passing[0])

static struct board_passing *note_open(int fd, const struct statx *found)
{
    for (unsigned i = 0; i < PASSING_COUNT; i++) {
        struct board_passing *passing = &all_passing[i];
        if (atomic_exchange_explicit(&passing->busy, true, memory_order_acquire))
            continue;
        atomic_store_explicit(&passing->device, mapped_file_device(found), memory_order_relaxed);
        atomic_store_explicit(&passing->inode, found->stx_ino, memory_order_relaxed);
        atomic_store_explicit(&passing->descriptor, fd + 1, memory_order_relaxed);
        return passing;
    }
    errno = EMFILE;
    return NULL;
}

/* If the program has closed a standard stream, the next file opened gets its number. Whatever
 * another thread still writes to the stream would then reach that file. So this moves fd above the
 * standard streams. Returns -1 with errno. */
static int above_standard_streams(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return above;
}

/* Opens the file and records it in *passing, until board_file_close. Returns its descriptor, or -1
 * with errno. */
static int open_for_a_moment(int directory, const char *path, int flags, struct statx *found,
                             struct board_passing **passing)
{
    flags |= O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = above_standard_streams(openat(directory, path, flags, 0600));
    if (fd < 0)
        return -1;
    *passing = mapped_file_identify(fd, "", found) ? note_open(fd, found) : NULL;
    if (*passing)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

bool board_file_is_open(int fd, const struct board_passing *passing)
{
    struct statx found;
    return mapped_file_identify(fd, "", &found) &&
           mapped_file_is(&found, atomic_load_explicit(&passing->device, memory_order_relaxed),
                          atomic_load_explicit(&passing->inode, memory_order_relaxed));
}

void board_file_close(int fd, struct board_passing *passing)
{
    if (board_file_is_open(fd, passing))
        close(fd);
    atomic_store_explicit(&passing->busy, false, memory_order_release);
}

static void forget(struct board_passing *passing)
{
    int fd = atomic_exchange_explicit(&passing->descriptor, 0, memory_order_relaxed) - 1;
    void *mapping = atomic_exchange_explicit(&passing->mapping, NULL, memory_order_relaxed);
    atomic_store_explicit(&passing->busy, false, memory_order_relaxed);
    if (fd >= 0 && board_file_is_open(fd, passing))
        close(fd);
    if (mapping)
        munmap(mapping, BYTES);
}

void board_file_close_in_child(void)
{
    for (unsigned i = 0; i < PASSING_COUNT; i++)
        forget(&all_passing[i]);
}

/* ---- locks ---- */

static struct flock byte_range(short type, unsigned byte)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

bool board_file_lock(int fd, unsigned byte)
{
    struct flock lock = byte_range(F_WRLCK, byte);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool board_file_is_locked(int fd, unsigned byte)
{
    struct flock lock = byte_range(F_WRLCK, byte);
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void unlock(int fd, unsigned byte)
{
    struct flock lock = byte_range(F_UNLCK, byte);
    fcntl(fd, F_OFD_SETLK, &lock);
}

/* ---- the file ---- */

static const char *explain_directory(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return "there is no /dev/shm, or something else is where its directory should be";
    case EPERM:
    case ELOOP:
        return "its directory in /dev/shm is somebody else's, or others have access to it";
    case EMFILE:
    case ENFILE:
        return "no more files can be opened";
    default:
        return "no directory can be made in /dev/shm";
    }
}

static bool is_made(int fd)
{
    struct statx found;
    uint64_t magic;
    return mapped_file_identify(fd, "", &found) && found.stx_size >= BYTES &&
           pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == BOARD_MAGIC;
}

/* The caller holds the lock on byte MAKING. */
static const char *fill(int fd)
{
    uint64_t magic = BOARD_MAGIC;
    if (!mapped_file_may_have(BYTES))
        return "the limit on the size of files is below the board's two MiB";
    if (!mapped_file_has_plenty(fd, BYTES) || !mapped_file_reserve(fd, 0, BYTES))
        return "/dev/shm has next to no room";
    if (fchmod(fd, 0600) != 0 || pwrite(fd, &magic, sizeof magic, 0) != sizeof magic)
        return "the board's file cannot be written to";
    return NULL;
}

static const char *explain_lock(int error)
{
    return error == EAGAIN || error == EACCES
               ? "another process has begun to make the board's file, and does not go on"
               : "this system has no locks that belong to an open file (F_OFD_SETLK)";
}

/* Makes the file's contents, or waits until another process has made them, for MAKING_LASTS at
 * most. Returns NULL, or the reason for failure. */
static const char *make(int fd)
{
    uint64_t begin = monotonic_now();
    while (!board_file_lock(fd, MAKING)) {
        int error = errno;
        if (is_made(fd))
            return NULL;
        if ((error != EAGAIN && error != EACCES) || monotonic_now() - begin > MAKING_LASTS)
            return explain_lock(error);
        patient_nap(begin);
    }
    const char *why = is_made(fd) ? NULL : fill(fd);
    unlock(fd, MAKING);
    return why;
}

static const char *check_or_make(struct board *board, int fd, const struct statx *found)
{
    if (!S_ISREG(found->stx_mode) || !mapped_file_is_private(found))
        return "the board's file is somebody else's, or others have access to it";
    if (!mapped_file_is_in_memory(fd))
        return "/dev/shm is not in memory";
    board->device = mapped_file_device(found);
    board->inode = found->stx_ino;
    return is_made(fd) ? NULL : make(fd);
}

static const char *open_below(struct board *board, int directory, int *fd,
                              struct board_passing **passing)
{
    struct statx found;
    *fd = open_for_a_moment(directory, NAME_WITH(BOARD_VERSION), O_CREAT, &found, passing);
    if (*fd < 0)
        return errno == EMFILE || errno == ENFILE ? "no more files can be opened"
                                                  : "the board's file cannot be opened";
    const char *why = check_or_make(board, *fd, &found);
    if (why)
        board_file_close(*fd, *passing);
    return why;
}

const char *board_file_open(struct board *board, const char *base, int *fd,
                            struct board_passing **passing)
{
    char directory_path[PATH_MAX - 32];
    int length =
        snprintf(directory_path, sizeof directory_path, "%s/" DIRECTORY, base, (unsigned)geteuid());
    if ((size_t)length >= sizeof directory_path)
        return "the path of its directory is too long";
    snprintf(board->path, sizeof board->path, "%s/" NAME_WITH(BOARD_VERSION), directory_path);
    int directory = mapped_file_open_directory(directory_path);
    if (directory < 0)
        return explain_directory(errno);
    const char *why = open_below(board, directory, fd, passing);
    close(directory);
    return why;
}

const char *board_file_map(struct board *board, int fd, struct board_passing *passing)
{
    const char *why = NULL;
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return "memory is short";
    atomic_store_explicit(&passing->mapping, memory, memory_order_relaxed);
    if (madvise(memory, BYTES, MADV_DONTFORK) != 0) {
        munmap(memory, BYTES);
        why = "this system cannot keep a mapping from children";
    }
    atomic_store_explicit(&passing->mapping, NULL, memory_order_relaxed);
    if (why)
        return why;
    madvise(memory, BYTES, MADV_DONTDUMP);
    board->map = memory;
    return NULL;
}

bool board_file_is_current(const struct board *board)
{
    struct statx found;
    return mapped_file_identify(AT_FDCWD, board->path, &found) &&
           mapped_file_is(&found, board->device, board->inode);
}

/* ---- liveness ---- */

struct board_probe board_probe_begin(struct board *board)
{
    struct board_probe probe = {.board = board, .error = errno};
    struct statx found;
    probe.cancellation = cancellation_off();
    probe.fd = sandbox_was_entered()
                   ? -1
                   : open_for_a_moment(AT_FDCWD, board->path, 0, &found, &probe.passing);
    if (probe.fd >= 0 && !mapped_file_is(&found, board->device, board->inode)) {
        /* Another file has replaced the mapped one. Processes that join from now on use the new
         * file, and locks of the mapped file can't be tested any more. This process's slot would
         * keep its contents for ever, so it is cleared. Other users of the mapped file then see the
         * process as gone. */
        struct board_slot *own = board_member_slot(board);
        if (!atomic_exchange_explicit(&board->moved, true, memory_order_relaxed) && own)
            board_slot_clear(own);
        board_file_close(probe.fd, probe.passing);
        probe.fd = -1;
    }
    return probe;
}

void board_probe_end(const struct board_probe *probe)
{
    if (probe->fd >= 0)
        board_file_close(probe->fd, probe->passing);
    cancellation_restore(probe->cancellation);
    errno = probe->error;
}

bool board_probe_lives(const struct board_probe *probe, unsigned slot)
{
    /* The owner counts as alive where the lock cannot be tested. Another thread may have closed the
     * descriptor, or opened another file under its number. So board_file_is_open comes last. */
    if (probe->fd < 0 || board_file_is_locked(probe->fd, slot) ||
        !board_file_is_open(probe->fd, probe->passing))
        return true;
    /* The former owner has ended in any case. If the lock cannot be taken, another process is just
     * clearing the slot, or has just taken it for itself. */
    bool lives = false;
    if (board_file_lock(probe->fd, slot)) {
        lives = !board_file_is_open(probe->fd, probe->passing);
        if (!lives)
            board_slot_end(probe->board->map, slot);
        unlock(probe->fd, slot);
    }
    return lives;
}

void board_clear_ended(struct board *board)
{
    uint64_t now = monotonic_now();
    if (now < atomic_load_explicit(&board->life_due, memory_order_relaxed) ||
        atomic_exchange_explicit(&board->life_busy, true, memory_order_acquire))
        return;
    unsigned count = board_slots(board), others = 0;
    for (unsigned i = 0; i < count; i++)
        others += board_token_of_other(board, i) != 0;
    if (others > 0) {
        struct board_probe probe = board_probe_begin(board);
        for (unsigned i = 0; i < count; i++)
            if (board_token_of_other(board, i) != 0)
                board_probe_lives(&probe, i);
        board_probe_end(&probe);
    }
    uint64_t end = monotonic_now();
    uint64_t pause = larger_of(LIFE_SHARE * (end - now), BOARD_LIFE_NANOSECONDS);
    atomic_store_explicit(&board->life_due, end + pause, memory_order_relaxed);
    atomic_store_explicit(&board->life_busy, false, memory_order_release);
}
