/*
 * Sizes and times as a settings file spells them: "512MiB", "50%", "10s".
 *
 * Nothing here depends on the locale, so that a program with a decimal comma reads and writes the
 * same files. No state, no locks, any thread.
 */
#ifndef CUDAPOOL_CORE_QUANTITY_JSON_H
#define CUDAPOOL_CORE_QUANTITY_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

/* Enough for everything written by this module. */
#define QUANTITY_TEXT_BYTES 64

/* The units, as error messages state them. */
#define SIZE_UNITS "K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB of 1000; B"
#define TIME_UNITS "ns, us, ms, s, min, h"

/* How a quantity was spelled, so that it can be echoed in the same way: unknown, an integer, or
 * SPELLED_IN_UNITS plus the unit's index. */
enum { SPELLED_AS_USUAL, SPELLED_AS_INTEGER, SPELLED_IN_UNITS };

/* The spelling of a text that size_from_text or time_from_text accepts. A share has no unit, so its
 * spelling is SPELLED_AS_USUAL. */
uint8_t size_spelling(const char *text);
uint8_t time_spelling(const char *text);

/* Reads a number of bytes with a unit, such as "512MiB", "1.5 GiB" or "64m". False, with *bytes
 * untouched, where the spelling is wrong, the number needs more than 18 digits, or the bytes are
 * not a whole number of 64 bits. */
bool bytes_from_text(const char *text, uint64_t *bytes);

/* Reads a number of bytes, as bytes_from_text does, or a share from "0%" to "100%". False, with
 * *size untouched, for other text. */
bool size_from_text(const char *text, struct byte_size *size);

/* Reads a time with a unit, such as "10s", into nanoseconds. False as in bytes_from_text. */
bool time_from_text(const char *text, uint64_t *nanoseconds);

/* Writes bytes in the largest of B, KiB, MiB, GiB and TiB that divides them, with separator between
 * number and unit. */
void bytes_to_text(uint64_t bytes, const char *separator, char text[QUANTITY_TEXT_BYTES]);

/* Writes bytes, or a time, in the unit of a spelling. False, with the text undefined, where the
 * spelling names no unit, or the text would not be read as the same value. */
bool bytes_to_text_as(uint64_t bytes, uint8_t spelling, char text[QUANTITY_TEXT_BYTES]);
bool time_to_text_as(uint64_t nanoseconds, uint8_t spelling, char text[QUANTITY_TEXT_BYTES]);

/* Writes bytes for a sentence, in the unit of the spelling: "64 MiB" for 64M, "64 MB (64000000
 * bytes)" for 64MB. Without such a unit, writes them as bytes_to_text does. */
void bytes_in_words(uint64_t bytes, uint8_t spelling, char text[QUANTITY_TEXT_BYTES]);

/* Writes a size that is not unlimited: "128MiB" as bytes_to_text does, or "50%" without the
 * separator. */
void size_to_text(const struct byte_size *size, const char *separator,
                  char text[QUANTITY_TEXT_BYTES]);

/* Writes a time in the largest unit that divides it; 0 is "0s". */
void time_to_text(uint64_t nanoseconds, const char *separator, char text[QUANTITY_TEXT_BYTES]);

/* Writes a number >= 0 with as few decimals as it needs, at most 18. Reading it returns the same
 * number if 18 digits are enough for that. */
void real_to_text(double value, char text[QUANTITY_TEXT_BYTES]);

#endif
