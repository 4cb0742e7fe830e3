/*
 * The limits that settings and containers set (limits.h). limits_read reads the environment once.
 * limits_of_device then combines the environment's limits with the settings, which take precedence.
 * But for a container's group, the container's limit replaces limits.group_bytes.
 *
 * Part of both the preload object and the command: libc only.
 */
#include "limits.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/numbers.h"
#include "core/base/one_line.h"

struct reader {
    char *(*environment)(const char *name);
    limits_complaint *complain; /* NULL after the first complaint */
};

/* ---- one variable ---- */

/* Reads decimal digits and moves *text past them. Returns false if there are none, or if the number
 * exceeds 64 bits. */
static bool take_number(const char **text, uint64_t *number)
{
    const char *start = *text;
    *number = 0;
    for (; **text >= '0' && **text <= '9'; ++*text)
        if (__builtin_mul_overflow(*number, UINT64_C(10), number) ||
            __builtin_add_overflow(*number, (uint64_t)(**text - '0'), number))
            return false;
    return *text != start;
}

/* Replaces tolower, which depends on the locale. */
static char lower(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c;
}

static bool is_word(const char *text, const char *word)
{
    while (*text && lower(*text) == *word) {
        text++;
        word++;
    }
    return *text == *word;
}

/* Returns the bytes of a unit: k, Ki and KiB are 1024, kB is 1000, none and B are 1. Settings spell
 * units so, and Kubernetes spells Ki so. Returns 0 for text that is not a unit. */
static uint64_t worth_of(const char *unit)
{
    static const char letters[] = "kmgt";
    if (unit[0] == '\0' || is_word(unit, "b"))
        return 1;
    const char *power = strchr(letters, lower(unit[0]));
    bool decimal = is_word(unit + 1, "b");
    bool binary = unit[1] == '\0' || is_word(unit + 1, "i") || is_word(unit + 1, "ib");
    if (!power || (!decimal && !binary))
        return 0;
    uint64_t worth = 1;
    for (const char *step = letters; step <= power; step++)
        worth *= decimal ? 1000 : 1024;
    return worth;
}

/* Reads a number of bytes. Returns false if the text is no such number, or if the number is neither
 * 0 nor at least LIMIT_LEAST. */
static bool read_bytes(const char *text, uint64_t *bytes)
{
    uint64_t number;
    if (!take_number(&text, &number))
        return false;
    uint64_t worth = worth_of(text);
    return worth && !__builtin_mul_overflow(number, worth, bytes) &&
           (*bytes == 0 || *bytes >= LIMIT_LEAST);
}

static void complain_of(struct reader *reader, const char *name, const char *value)
{
    char line[512];
    if (!reader->complain)
        return;
    snprintf(
        line, sizeof line,
        "%s: found \"%.64s\", allowed are at least 1 MiB as bytes, or a number with k, m, g or t; "
        "the program runs without this limit",
        name, value);
    make_printable(line, sizeof line);
    reader->complain(line);
    reader->complain = NULL;
}

/* Returns the variable's bytes; 0 if it is unset, cannot be read, or means no limit. */
static uint64_t read_variable(struct reader *reader, const char *name)
{
    const char *value = reader->environment ? reader->environment(name) : NULL;
    uint64_t bytes = 0;
    if (!value || value[0] == '\0' || read_bytes(value, &bytes))
        return bytes;
    complain_of(reader, name, value);
    return 0;
}

/* ---- all of them ---- */

static void name_variable(unsigned number, char name[LIMIT_NAME_BYTES])
{
    if (number < LIMITS_OF_EACH)
        snprintf(name, LIMIT_NAME_BYTES, "%s",
                 number == LIMITS_GPU ? "GPU_MEMORY_LIMIT" : "CUDA_DEVICE_MEMORY_LIMIT");
    else
        snprintf(name, LIMIT_NAME_BYTES, "CUDA_DEVICE_MEMORY_LIMIT_%u", number - LIMITS_OF_EACH);
}

/* Whether the container's owner has switched HAMi's control off. */
static bool is_switched_off(const struct reader *reader)
{
    const char *value = reader->environment ? reader->environment("CUDA_DISABLE_CONTROL") : NULL;
    return value && is_word(value, "true");
}

/* Names the group of a container. Containers of one pod share /dev/shm, and other containers of one
 * user may share it, too. The mount namespace tells the processes of one container from others. */
static void name_container(char group[SETTINGS_NAME_BYTES])
{
    char link[64];
    ssize_t length = readlink("/proc/self/ns/mnt", link, sizeof link - 1);
    link[length > 0 ? length : 0] = '\0';
    const char *number = strchr(link, '[');
    int digits = number ? (int)strspn(number + 1, "0123456789") : 0;
    snprintf(group, SETTINGS_NAME_BYTES, "container%s%.*s", digits ? "-" : "", digits,
             digits ? number + 1 : "");
}

bool limits_variable(const struct limits *limits, unsigned number, struct limit_variable *variable)
{
    *variable = (struct limit_variable){.device = -1};
    if (number >= LIMITS_VARIABLES)
        return false;
    name_variable(number, variable->name);
    variable->bytes = limits->bytes[number];
    if (number >= LIMITS_OF_EACH)
        variable->device = (int)(number - LIMITS_OF_EACH);
    return true;
}

void limits_read(struct limits *limits, const struct settings *settings,
                 char *(*environment)(const char *name), limits_complaint *complain)
{
    struct reader reader = {environment, complain};
    bool limited = false;
    unsigned count = is_switched_off(&reader) ? LIMITS_EVERY : LIMITS_VARIABLES;
    memset(limits, 0, sizeof *limits);
    for (unsigned number = 0; number < count; number++) {
        char name[LIMIT_NAME_BYTES];
        name_variable(number, name);
        limits->bytes[number] = read_variable(&reader, name);
        limited |= limits->bytes[number] != 0;
    }
    if (settings->limits.group[0] != '\0')
        memcpy(limits->group, settings->limits.group, sizeof limits->group);
    else if (limited && settings->neighbours.enabled)
        name_container(limits->group);
}

/* The container's limit on a device, and the variable that sets it; UINT64_MAX where none does.
 * Where two schedulers set a limit, the lower one satisfies both. */
static uint64_t limit_of_container(const struct limits *limits, int ordinal,
                                   char name[LIMIT_NAME_BYTES])
{
    const uint64_t *bytes = limits->bytes;
    unsigned number = LIMITS_EVERY, own = LIMITS_OF_EACH + (unsigned)ordinal;
    if (ordinal >= 0 && own < LIMITS_VARIABLES && bytes[own])
        number = own;
    if (bytes[LIMITS_GPU] && (!bytes[number] || bytes[LIMITS_GPU] < bytes[number]))
        number = LIMITS_GPU;
    name_variable(number, name);
    return bytes[number] ? bytes[number] : UINT64_MAX;
}

/* Settings have a dot in their names, and variables have none. */
static bool is_told(const char *from, enum tell_total tell)
{
    bool by_scheduler = strchr(from, '.') == NULL;
    return tell == TELL_TOTAL_ALWAYS || (tell == TELL_TOTAL_SCHEDULER && by_scheduler);
}

uint64_t limits_told_total(const struct device_limits *limits, enum tell_total tell,
                           uint64_t total_bytes)
{
    uint64_t told = total_bytes;
    if (is_told(limits->device_from, tell))
        told = smaller_of(told, limits->device_bytes);
    if (is_told(limits->group_from, tell))
        told = smaller_of(told, limits->group_bytes);
    return told;
}

void limits_of_device(const struct limits *limits, const struct settings *settings, int ordinal,
                      uint64_t total_bytes, struct device_limits *found)
{
    const struct limits_settings *said = &settings->limits;
    char variable[LIMIT_NAME_BYTES];
    uint64_t container = limit_of_container(limits, ordinal, variable);
    memset(found, 0, sizeof *found);
    memcpy(found->group, limits->group, sizeof found->group);
    found->device_bytes = byte_size_resolve(&said->device_bytes, total_bytes);
    found->group_bytes = byte_size_resolve(&said->group_bytes, total_bytes);
    if (!said->device_bytes.unlimited)
        snprintf(found->device_from, sizeof found->device_from, "limits.device_bytes");
    if (!said->group_bytes.unlimited)
        snprintf(found->group_from, sizeof found->group_from, "limits.group_bytes");
    if (container == UINT64_MAX)
        return;
    if (said->device_bytes.unlimited) {
        found->device_bytes = container;
        memcpy(found->device_from, variable, sizeof found->device_from);
    }
    if (said->group[0] == '\0' && found->group[0] != '\0') {
        found->group_bytes = container;
        memcpy(found->group_from, variable, sizeof found->group_from);
    }
}
