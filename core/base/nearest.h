/*
 * Finds the known word that a misspelt one was meant to be.
 *
 * libc only, no state: any thread.
 */
#ifndef CUDAPOOL_CORE_NEAREST_H
#define CUDAPOOL_CORE_NEAREST_H

#include <stddef.h>

/* Returns how many characters must be deleted, inserted, replaced or swapped with the next to make
 * one text of the other. Only the first 63 bytes of each text count. */
size_t edit_distance(const char *from, const char *to);

/* Returns the nearest known word; NULL if none is so near that it was meant. */
const char *nearest_word(const char *word, const char *const *known, size_t count);

#endif
