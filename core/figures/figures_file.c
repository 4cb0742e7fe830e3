/*
 * The file of figures (figures_file.h): whether its process lives, which directory it is in, the
 * removal of files of dead processes, its creation, and its growth.
 *
 * Part of the preload object: libc only.
 */
#include "figures_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/mapped_file.h"
#include "core/base/process.h"
#include "core/base/sandbox.h"
#include "report_process.h"

#define FIRST_BYTES (UINT64_C(64) << 10)

/* If a usual directory has FILES_ENOUGH entries or more, the files of dead processes are removed,
 * except the DEAD_KEPT newest. */
#define FILES_ENOUGH 64u
#define DEAD_KEPT    32u

/* ---- the process ---- */

/* The kernel's flag PF_EXITING of a thread that is exiting. */
#define IS_EXITING 4u

enum figures_life figures_file_life(uint64_t pid, uint64_t start_ticks)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    if (read_text(path, text, sizeof text) == 0 ||
        process_number(text, PROCESS_START_TICKS) != start_ticks)
        return FIGURES_GONE;
    char state = *process_field(text, PROCESS_STATE);
    bool ended = state == 'Z' || state == 'X';
    bool killed =
        (process_number(text, PROCESS_PENDING_SIGNALS) & UINT64_C(1) << (SIGKILL - 1)) != 0;
    bool exiting = (process_number(text, PROCESS_FLAGS) & IS_EXITING) != 0;
    if (!ended && !killed && !exiting)
        return FIGURES_ALIVE;
    /* The main thread may have ended while other threads run or are still exiting. */
    return ended && process_number(text, PROCESS_THREADS) <= 1 ? FIGURES_GONE : FIGURES_GOING;
}

enum figures_use figures_file_use(int fd)
{
    if (!mapped_file_is_in_memory(fd))
        return FIGURES_USE_UNKNOWN;
    /* If another process opens the file for writing meanwhile, the kernel signals the lease's
     * holder. SIGURG is ignored by default; the default SIGIO would end the process. */
    if (fcntl(fd, F_SETSIG, SIGURG) != 0)
        return FIGURES_USE_UNKNOWN;
    if (fcntl(fd, F_SETLEASE, F_RDLCK) != 0)
        return errno == EAGAIN ? FIGURES_USED : FIGURES_USE_UNKNOWN;
    fcntl(fd, F_SETLEASE, F_UNLCK);
    return FIGURES_UNUSED;
}

static uint64_t wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void figures_file_identify_process(struct figures_process *process)
{
    process->pid = (uint64_t)getpid();
    process->pid_namespace = process_own_pid_namespace();
    process->start_ticks = process_own_start_ticks();
    size_t length =
        read_text("/proc/sys/kernel/random/boot_id", process->boot, sizeof process->boot);
    if (length > 0 && process->boot[length - 1] == '\n')
        process->boot[length - 1] = '\0';
}

void figures_file_describe_process(struct figures_process *process)
{
    process->started = process_own_start();
    process->started_at = wall_clock() - (monotonic_now() - process->started);
    figures_file_identify_process(process);
    struct report_process *described = calloc(1, sizeof *described);
    if (!described)
        return;
    report_describe_process(described, secure_getenv);
    memcpy(process->host, described->host, sizeof process->host);
    memcpy(process->rank, described->rank, sizeof process->rank);
    memcpy(process->command, described->command, sizeof process->command);
    free(described);
}

/* ---- the directory ---- */

const char *figures_file_base(unsigned index)
{
    const char *const bases[FIGURES_DIRECTORIES] = {secure_getenv("XDG_RUNTIME_DIR"), "/dev/shm",
                                                    secure_getenv("TMPDIR"), "/tmp"};
    return bases[index] && bases[index][0] == '/' ? bases[index] : NULL;
}

bool figures_file_memory(uint64_t bytes, char *path, size_t path_bytes)
{
    bool found = false;
    for (unsigned i = 0; i < FIGURES_DIRECTORIES && !found; i++) {
        int base = figures_file_base(i)
                       ? open(figures_file_base(i), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                       : -1;
        if (base < 0)
            continue;
        found = mapped_file_has_plenty(base, bytes) &&
                access(figures_file_base(i), W_OK | X_OK) == 0 &&
                (size_t)snprintf(path, path_bytes, "%s", figures_file_base(i)) < path_bytes;
        close(base);
    }
    return found;
}

bool figures_file_directory(unsigned index, char *path, size_t bytes)
{
    const char *base = figures_file_base(index);
    if (!base)
        return false;
    int length = snprintf(path, bytes, "%s/cudapool-%u", base, (unsigned)geteuid());
    return length > 0 && (size_t)length < bytes;
}

/* Returns a descriptor; -1 if the directory cannot be used, is not in memory, or has too little
 * room. */
static int open_usual_directory(unsigned index, char *path, size_t bytes)
{
    if (!figures_file_directory(index, path, bytes))
        return -1;
    int directory = mapped_file_open_directory(path);
    if (directory < 0 || mapped_file_has_plenty(directory, FIRST_BYTES))
        return directory;
    close(directory);
    return -1;
}

int figures_file_open_directory(char *path, size_t bytes)
{
    int directory = -1;
    for (unsigned i = 0; i < FIGURES_DIRECTORIES && directory < 0; i++)
        directory = open_usual_directory(i, path, bytes);
    return directory;
}

/* ---- files of dead processes ---- */

struct left_behind {
    uint64_t start_ticks;
    char name[100];
};

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const struct left_behind *)a)->start_ticks;
    uint64_t y = ((const struct left_behind *)b)->start_ticks;
    return (x > y) - (x < y);
}

/* Reads the four numbers of a file's name, as create writes them: pid, start, pid namespace, count.
 * Returns false if the name has another form. */
static bool parse_name(const char *name, uint64_t numbers[4])
{
    for (int i = 0; i < 4; i++) {
        const char *digits = name;
        numbers[i] = take_number(&name);
        if (name == digits || (i < 3 && *name++ != '-'))
            return false;
    }
    return strcmp(name, FIGURES_SUFFIX) == 0;
}

/* Whether the file's process is dead. If use is unknown, the pid decides. A process of another pid
 * namespace then counts as alive, and so does a pid that another process has by now. */
static bool is_dead(enum figures_use use, const uint64_t numbers[4], uint64_t pid_namespace)
{
    if (use != FIGURES_USE_UNKNOWN)
        return use == FIGURES_UNUSED;
    return pid_namespace != 0 && numbers[2] == pid_namespace && numbers[0] != 0 &&
           numbers[0] <= INT32_MAX && kill((pid_t)numbers[0], 0) != 0 && errno == ESRCH;
}

static bool is_left_behind(int directory, const char *name, uint64_t pid_namespace,
                           struct left_behind *left)
{
    uint64_t numbers[4];
    if (strlen(name) >= sizeof left->name || !parse_name(name, numbers))
        return false;
    memcpy(left->name, name, strlen(name) + 1);
    left->start_ticks = numbers[1];
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    enum figures_use use = fd < 0 ? FIGURES_USE_UNKNOWN : figures_file_use(fd);
    if (fd >= 0)
        close(fd);
    return is_dead(use, numbers, pid_namespace);
}

static void remove_oldest(int directory, DIR *entries)
{
    const size_t MOST = 256;
    struct left_behind *dead = malloc(MOST * sizeof *dead);
    uint64_t pid_namespace = process_own_pid_namespace();
    size_t count = 0;
    const struct dirent *entry;
    rewinddir(entries);
    while (dead && count < MOST && (entry = readdir(entries)) != NULL)
        count += is_left_behind(directory, entry->d_name, pid_namespace, &dead[count]);
    if (count > DEAD_KEPT) {
        qsort(dead, count, sizeof *dead, by_start);
        for (size_t i = 0; i + DEAD_KEPT < count; i++)
            unlinkat(directory, dead[i].name, 0);
    }
    free(dead);
}

static void tidy(int directory)
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    unsigned count = 0;
    if (!entries) {
        if (copy >= 0)
            close(copy);
        return;
    }
    while (count < FILES_ENOUGH && readdir(entries))
        count++;
    if (count >= FILES_ENOUGH)
        remove_oldest(directory, entries);
    closedir(entries);
}

/* ---- the file ---- */

/* Creates a file of a new name. Programs that one process runs one after another (exec) have the
 * same pid and start, so a number tells their names apart. */
static int create(int directory, char *name, size_t bytes)
{
    unsigned long long pid = (unsigned long long)getpid();
    unsigned long long start = process_own_start_ticks(), space = process_own_pid_namespace();
    for (unsigned number = 0; number < 1000; number++) {
        snprintf(name, bytes, "%llu-%llu-%llu-%u" FIGURES_SUFFIX, pid, start, space, number);
        int fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Reserves the file's first bytes and maps it. Returns NULL with errno on failure. */
static void *reserve_and_map(int fd, struct figures_file *file)
{
    struct statx found;
    if (!mapped_file_may_have(FIRST_BYTES)) {
        errno = EFBIG;
        return NULL;
    }
    if (!mapped_file_identify(fd, "", &found) || !mapped_file_reserve(fd, 0, FIRST_BYTES))
        return NULL;
    file->device = mapped_file_device(&found);
    file->inode = found.stx_ino;
    file->bytes = FIRST_BYTES;
    void *memory = mmap(NULL, FIGURES_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Makes the file in the directory and maps it. Returns NULL with errno on failure, and then leaves
 * no file. */
static void *make_in(int directory, const char *path, struct figures_file *file)
{
    char name[128];
    int fd = create(directory, name, sizeof name);
    if (fd < 0)
        return NULL;
    int length = snprintf(file->path, sizeof file->path, "%s/%s", path, name);
    void *memory = NULL;
    if ((size_t)length < sizeof file->path)
        memory = reserve_and_map(fd, file);
    else
        errno = ENAMETOOLONG;
    int error = errno;
    close(fd);
    if (!memory) {
        unlinkat(directory, name, 0);
        file->path[0] = '\0';
    }
    errno = error;
    return memory;
}

static void *make_in_usual_directory(struct figures_file *file)
{
    char path[PATH_MAX - 128];
    void *memory = NULL;
    for (unsigned i = 0; i < FIGURES_DIRECTORIES && !memory; i++) {
        int directory = open_usual_directory(i, path, sizeof path);
        if (directory < 0)
            continue;
        tidy(directory);
        memory = make_in(directory, path, file);
        close(directory);
    }
    return memory;
}

/* Expands the escapes of the name into path. False with errno. */
static bool expand(const char *name, char *path, size_t bytes)
{
    struct report_process *process = calloc(1, sizeof *process);
    if (!process)
        return false;
    report_describe_process(process, secure_getenv);
    bool expanded = report_expand_file_name(name, process, path, bytes) == 0;
    int error = errno;
    free(process);
    errno = error;
    return expanded;
}

static void *make_in_named_directory(struct figures_file *file, const char *name,
                                     figures_complaint *complain)
{
    char path[PATH_MAX], line[PATH_MAX + 256];
    void *memory = NULL;
    int directory =
        expand(name, path, sizeof path) ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (directory >= 0)
        memory = make_in(directory, path, file);
    if (!memory && complain) {
        snprintf(line, sizeof line, "figures: %s: %s; the program runs without a file of them",
                 name, strerror(errno));
        complain(line);
    }
    if (directory >= 0)
        close(directory);
    return memory;
}

void *figures_file_make(struct figures_file *file, const struct figures_settings *settings,
                        figures_complaint *complain)
{
    if (!settings->enabled || getauxval(AT_SECURE) || sandbox_was_entered())
        return NULL;
    if (settings->directory[0] != '\0')
        return make_in_named_directory(file, settings->directory, complain);
    return make_in_usual_directory(file);
}

/* ---- after creation ---- */

static int open_again(const struct figures_file *file)
{
    struct statx found;
    int fd = open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -1;
    if (mapped_file_identify(fd, "", &found) && mapped_file_is(&found, file->device, file->inode))
        return fd;
    close(fd);
    return -1;
}

static uint64_t doubled_until(uint64_t bytes, uint64_t wanted)
{
    while (bytes < wanted)
        bytes *= 2;
    return bytes;
}

bool figures_file_grow(struct figures_file *file, uint64_t bytes)
{
    if (bytes > FIGURES_BYTES_MAX)
        return false;
    uint64_t larger = doubled_until(file->bytes, bytes);
    int fd = mapped_file_may_have(larger) && !sandbox_was_entered() ? open_again(file) : -1;
    if (fd < 0)
        return false;
    bool has_room = !mapped_file_is_in_memory(fd) || mapped_file_has_plenty(fd, larger);
    bool grown = has_room && mapped_file_reserve(fd, file->bytes, larger);
    close(fd);
    if (grown)
        file->bytes = larger;
    return grown;
}

bool figures_file_is_there(const struct figures_file *file)
{
    struct statx found;
    return file->path[0] != '\0' && mapped_file_identify(AT_FDCWD, file->path, &found) &&
           mapped_file_is(&found, file->device, file->inode);
}

bool figures_file_is_cut(const struct figures_file *file)
{
    struct statx found;
    return file->path[0] != '\0' && mapped_file_identify(AT_FDCWD, file->path, &found) &&
           mapped_file_is(&found, file->device, file->inode) && found.stx_size < file->bytes;
}

void figures_file_remove(const struct figures_file *file)
{
    if (figures_file_is_there(file))
        unlink(file->path);
}
