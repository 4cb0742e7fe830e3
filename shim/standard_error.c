#include "standard_error.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/one_line.h"
#include "core/base/writing.h"

/* Nanoseconds that one line may take at most, if its reader does not read. */
#define PATIENCE_NANOSECONDS UINT64_C(100000000)

/* What descriptor 2 was. Written before the program starts, and only read since. */
static struct {
    bool known;
    dev_t device;
    ino_t inode;
    dev_t special; /* the device that a device file stands for */
} at_start;

__attribute__((constructor)) static void remember(void)
{
    struct stat status;
    if (fstat(STDERR_FILENO, &status) != 0)
        return;
    at_start.device = status.st_dev;
    at_start.inode = status.st_ino;
    at_start.special = status.st_rdev;
    at_start.known = true;
}

bool standard_error_is_ours(void)
{
    struct stat status;
    return at_start.known && fstat(STDERR_FILENO, &status) == 0 &&
           status.st_dev == at_start.device && status.st_ino == at_start.inode &&
           status.st_rdev == at_start.special;
}

int standard_error_write(const char *text, size_t bytes, uint64_t deadline)
{
    return standard_error_is_ours() ? write_until(STDERR_FILENO, text, bytes, deadline) : 0;
}

void say_until(const char *message, uint64_t deadline)
{
    char line[2 * PATH_MAX + 32];
    snprintf(line, sizeof line - 1, "cudapool: %s", message);
    make_printable(line, sizeof line - 1);
    size_t bytes = strlen(line);
    line[bytes++] = '\n';
    /* If this fails, there is nowhere left to say so. */
    (void)standard_error_write(line, bytes, deadline);
}

void say(const char *message)
{
    say_until(message, writing_deadline(PATIENCE_NANOSECONDS));
}
