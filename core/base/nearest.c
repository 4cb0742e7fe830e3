/*
 * Finds the known word that a misspelt one was meant to be (nearest.h).
 */
#include "nearest.h"

#include <stdint.h>
#include <string.h>

#define LENGTH_MOST 63

static size_t least(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* A table holds the distance between each prefix of from and each prefix of to. A row depends
 * only on the two rows before it, so three rows are enough. */
size_t edit_distance(const char *from, const char *to)
{
    size_t rows[3][LENGTH_MOST + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    size_t from_length = strnlen(from, LENGTH_MOST), to_length = strnlen(to, LENGTH_MOST);

    for (size_t j = 0; j <= to_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= from_length; i++) {
        size_t *oldest = before;
        before = last;
        last = row;
        row = oldest;
        row[0] = i;
        for (size_t j = 1; j <= to_length; j++) {
            size_t replaced = last[j - 1] + (from[i - 1] != to[j - 1]);
            row[j] = least(replaced, least(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return row[to_length];
}

const char *nearest_word(const char *word, const char *const *known, size_t count)
{
    size_t length = strlen(word), nearest = SIZE_MAX;
    const char *found = NULL;

    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, known[i]);
        if (length > 1 && strncmp(word, known[i], length) == 0)
            distance = 0;
        if (distance < nearest) {
            nearest = distance;
            found = known[i];
        }
    }
    size_t most = length / 3 > 0 ? length / 3 : 1;
    return nearest <= most && length > 1 ? found : NULL;
}
