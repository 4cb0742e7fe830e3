/*
 * Names of report files (core/base/file_pattern.h): a pattern is valid or refused; what a valid one
 * becomes is what its escapes stand for, in exactly the room that it needs; a host or a rank
 * chooses no directory. And the ranks that launchers leave in the environment: digits, or none.
 *
 * The input is the pattern, the host, the rank and the values of rank variables, each up to a NUL.
 */
#include <errno.h>

#include "core/base/file_pattern.h"
#include "core/figures/report.h"

#include "fuzz.h"

/* The longest pattern, and what it becomes where all of it is the host. */
#define PATTERN  512
#define EXPANDED (256 * PATTERN)

/* What the pattern stands for, spelled out; false where it is not valid. */
static bool expand(const char *pattern, const struct report_process *process, char *expanded)
{
    static const char *const escapes[] = {"p", "h", "r", "%"};
    char pid[24];

    snprintf(pid, sizeof(pid), "%lld", (long long)process->pid);
    const char *const meanings[] = {pid, process->host, process->rank[0] ? process->rank : "0",
                                    "%"};
    for (*expanded = '\0'; *pattern != '\0'; pattern++) {
        int escape = 0;
        if (*pattern != '%') {
            strncat(expanded, pattern, 1);
            continue;
        }
        pattern++;
        while (escape < 4 && escapes[escape][0] != *pattern)
            escape++;
        if (escape == 4)
            return false;
        char *part = expanded + strlen(expanded);
        snprintf(part, EXPANDED - (size_t)(part - expanded), "%s", meanings[escape]);
        for (; (part = strchr(part, '/')) != NULL; part++)
            *part = '_';
    }
    return true;
}

static void promise_expansion(const char *pattern, const struct report_process *process)
{
    static char expected[EXPANDED];
    char name[EXPANDED];
    bool valid = *pattern != '\0' && expand(pattern, process, expected);

    PROMISE(file_pattern_is_valid(pattern) == valid, "%s", pattern);
    errno = 0;
    int status = report_expand_file_name(pattern, process, name, sizeof(name));
    PROMISE(status == (valid ? 0 : -1) && (valid || errno == EINVAL), "%s", pattern);
    if (!valid)
        return;
    PROMISE(strcmp(name, expected) == 0, "%s became %s, not %s", pattern, name, expected);
    size_t needed = strlen(expected) + 1;
    name[needed] = 'x';
    PROMISE(report_expand_file_name(pattern, process, name, needed) == 0, "%s", pattern);
    name[needed - 1] = 'x';
    PROMISE(report_expand_file_name(pattern, process, name, needed - 1) == -1, "%s", pattern);
    PROMISE(errno == ENAMETOOLONG && name[needed - 1] == 'x', "%s", pattern);
}

/* What the environment says: the launchers' variables in turn, from the input. */
static char variables[3][64];
static unsigned asked;

static char *read_environment(const char *name)
{
    (void)name;
    asked++;
    return asked <= 6 && asked % 2 == 0 ? variables[asked / 2 - 1] : NULL;
}

static void promise_rank(size_t room)
{
    char rank[32];

    asked = 0;
    rank[room] = 'x';
    report_find_rank(read_environment, rank, room);
    PROMISE(rank[room] == 'x' && strlen(rank) < room, "a rank of %zu bytes", strlen(rank));
    PROMISE(rank[strspn(rank, "0123456789")] == '\0', "%s", rank);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct report_process process;
    char pattern[PATTERN];

    process.pid = (int64_t)bytes;
    take_text(&data, &bytes, pattern, sizeof(pattern));
    take_text(&data, &bytes, process.host, sizeof(process.host));
    take_text(&data, &bytes, process.rank, sizeof(process.rank));
    for (int i = 0; i < 3; i++)
        take_text(&data, &bytes, variables[i], sizeof(variables[i]));
    promise_expansion(pattern, &process);
    promise_rank(1 + bytes % 31);
    return 0;
}
