/*
 * What the kernel says of processes (process.h).
 *
 * Part of the preload object: libc only.
 */
#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* libc's own functions for this have other names in newer versions, which older ones don't have. */
uint64_t take_number(const char **text)
{
    uint64_t number = 0;
    while (**text >= '0' && **text <= '9')
        number = 10 * number + (uint64_t)(*(*text)++ - '0');
    return number;
}

size_t read_text(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, bytes - 1);
    if (fd >= 0)
        close(fd);
    size_t length = got < 0 ? 0 : (size_t)got;
    text[length] = '\0';
    return length;
}

/* The second field is a name in parentheses, which may hold anything. */
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
