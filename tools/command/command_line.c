/*
 * Complaints about a command line (command_line.h).
 */
#include "command_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "complaint.h"
#include "core/base/nearest.h"

#define OPTIONS_MOST 16

/* The option that a misspelt word was probably meant to be; NULL if it resembles none. */
static const char *nearest_option(const struct option *known, const char *word)
{
    const char *names[OPTIONS_MOST];
    char name[64];
    size_t count = 0;

    if (strncmp(word, "--", 2) != 0)
        return NULL;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    while (count < OPTIONS_MOST && known[count].name != NULL) {
        names[count] = known[count].name;
        count++;
    }
    return nearest_word(name, names, count);
}

int refuse_option(const char *command, const struct option *known, int option, const char *word,
                  const char *allowed)
{
    const char *nearest = option == ':' ? NULL : nearest_option(known, word);

    return complain("%s: %s %s; %s%s%s%s", command,
                    option == ':' ? "a value is missing after" : "unknown option", word, allowed,
                    nearest == NULL ? "" : "; did you mean --", nearest == NULL ? "" : nearest,
                    nearest == NULL ? "" : "?");
}

int read_number(const char *command, const char *name, const char *text, long long least,
                long long most, long long *number)
{
    char *rest;

    errno = 0;
    *number = strtoll(text, &rest, 10);
    if (*text >= '0' && *text <= '9' && *rest == '\0' && errno == 0 && *number >= least &&
        *number <= most)
        return 0;
    return complain("%s: %s: found \"%s\", allowed is a number from %lld to %lld", command, name,
                    text, least, most);
}
