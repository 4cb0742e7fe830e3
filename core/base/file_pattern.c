/*
 * Expands patterns of file names (file_pattern.h).
 *
 * Part of the preload object: libc only, no dependence on the locale.
 */
#include "file_pattern.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool file_pattern_is_valid(const char *pattern)
{
    if (*pattern == '\0')
        return false;
    for (; *pattern != '\0'; pattern++) {
        if (*pattern != '%')
            continue;
        pattern++;
        if (*pattern == '\0' || strchr("phr%", *pattern) == NULL)
            return false;
    }
    return true;
}

/* Returns what the escape stands for; number is room for the pid. */
static const char *meaning_of_escape(char escape, const struct file_pattern_values *values,
                                     char number[24])
{
    switch (escape) {
    case 'p':
        snprintf(number, 24, "%lld", (long long)values->pid);
        return number;
    case 'h':
        return values->host;
    case 'r':
        return values->rank[0] == '\0' ? "0" : values->rank;
    default:
        return "%";
    }
}

static bool add_value(char *name, size_t bytes, size_t *filled, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*filled + 1 >= bytes)
            return false;
        name[*filled] = *text;
        if (*text == '/')
            name[*filled] = '_';
        ++*filled;
    }
    return true;
}

int file_pattern_expand(const char *pattern, const struct file_pattern_values *values, char *name,
                        size_t bytes)
{
    char number[24];
    size_t filled = 0;
    bool fits = bytes > 0;

    if (!file_pattern_is_valid(pattern)) {
        errno = EINVAL;
        return -1;
    }
    for (; *pattern != '\0' && fits; pattern++) {
        if (*pattern == '%') {
            pattern++;
            fits = add_value(name, bytes, &filled, meaning_of_escape(*pattern, values, number));
        } else if ((fits = filled + 1 < bytes)) {
            name[filled++] = *pattern;
        }
    }
    if (!fits) {
        errno = ENAMETOOLONG;
        return -1;
    }
    name[filled] = '\0';
    return 0;
}
