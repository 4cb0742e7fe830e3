/*
 * Makes text from outside printable on one line.
 *
 * A key, a file name or a command may hold any bytes. A terminal, a log or a page must show it as
 * one line, in its written order, without invisible characters. So these are escaped:
 * - control characters (C0, DEL, C1);
 * - characters that change the direction of text (Bidi_Control);
 * - characters that take no room (Default_Ignorable_Code_Point);
 * - ends of lines and paragraphs;
 * - bytes that are not valid UTF-8.
 * The escapes are C's: \x1b, \u202e, \U000e0041.
 *
 * Part of the preload object: libc only, no dependence on the locale. Any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_ONE_LINE_H
#define CUDAPOOL_CORE_ONE_LINE_H

#include <stddef.h>
#include <stdio.h>

/* Room for one character or its escape, and a zero byte. */
#define PRINTABLE_BYTES 12

/* Takes one character off the text, which must not be empty. piece becomes the character, or its
 * escape. Returns the piece's length. */
size_t take_printable(const char **text, char piece[PRINTABLE_BYTES]);

/* Prints the text with the escapes. */
void print_printable(const char *text, FILE *out);

/* Escapes the text in place, in an array of this many bytes. Cuts off the end that does not fit. */
void make_printable(char *text, size_t bytes);

/* Returns where to cut the text so that no character is split. That is the length of its longest
 * prefix of whole characters, at most `most` bytes. */
size_t whole_characters(const char *text, size_t most);

#endif
