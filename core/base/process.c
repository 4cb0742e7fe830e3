/*
 * Reads what the kernel says of processes (process.h).
 *
 * This file is part of the preload object, so it calls only libc.
 */
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "sandbox.h"

#define NANOSECONDS UINT64_C(1000000000)

/* Parses the digits without strtoull or sscanf. Newer libcs give these functions new symbols, and
 * an object that uses the new symbols does not load with an older libc. */
uint64_t take_number(const char **text)
{
    uint64_t number = 0;
    while (**text >= '0' && **text <= '9')
        number = 10 * number + (uint64_t)(*(*text)++ - '0');
    return number;
}

size_t read_text(const char *path, char *text, size_t bytes)
{
    int fd = sandbox_was_entered() ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, bytes - 1);
    if (fd >= 0)
        close(fd);
    size_t length = got < 0 ? 0 : (size_t)got;
    text[length] = '\0';
    return length;
}

/* The second field is a name in parentheses that may hold anything, so fields are counted from the
 * last parenthesis. */
const char *process_field(const char *stat, enum process_field field)
{
    const char *place = strrchr(stat, ')');
    for (unsigned i = 2; place && i < field; i++)
        place = strchr(place + 1, ' ');
    return place ? place + 1 : "";
}

uint64_t process_number(const char *stat, enum process_field field)
{
    const char *digits = process_field(stat, field);
    return take_number(&digits);
}

uint64_t process_own_start_ticks(void)
{
    char text[1024];
    read_text("/proc/self/stat", text, sizeof text);
    return process_number(text, PROCESS_START_TICKS);
}

bool process_is_stopped(int64_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    read_text(path, text, sizeof text);
    char state = *process_field(text, PROCESS_STATE);
    return state == 'T' || state == 't';
}

/* Written when this object is loaded, and only read afterwards. at: nanoseconds of
 * CLOCK_MONOTONIC. */
static struct {
    pid_t pid;
    uint64_t at;
} loaded;

static uint64_t nanoseconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS + (uint64_t)now.tv_nsec;
}

__attribute__((constructor)) static void note_start(void)
{
    loaded.pid = getpid();
    loaded.at = nanoseconds_of(CLOCK_MONOTONIC);
}

/* A forked child gets its start from the kernel, in ticks. Ticks are compared with CLOCK_BOOTTIME,
 * since both advance while the machine sleeps. Where the ticks are missing, or show a start before
 * this object was loaded, the result is now. */
uint64_t process_own_start(void)
{
    if (getpid() == loaded.pid)
        return loaded.at;
    uint64_t now = nanoseconds_of(CLOCK_MONOTONIC), boot = nanoseconds_of(CLOCK_BOOTTIME);
    long hertz = sysconf(_SC_CLK_TCK);
    uint64_t ticks = process_own_start_ticks();
    uint64_t start = hertz > 0 ? ticks * (NANOSECONDS / (uint64_t)hertz) : 0;
    return ticks && start <= boot && boot - start <= now - loaded.at ? now - (boot - start) : now;
}

uint64_t process_own_pid_namespace(void)
{
    char link[64];
    ssize_t length = readlink("/proc/self/ns/pid", link, sizeof link - 1);
    if (length <= 0)
        return 0;
    link[length] = '\0';
    const char *number = strchr(link, '[');
    return number++ ? take_number(&number) : 0;
}
