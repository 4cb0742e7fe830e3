/*
 * Makes text from outside printable on one line (one_line.h).
 */
#include "one_line.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* In ascending order. */
static const struct range {
    uint32_t first, last;
} hidden[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},     {0x61c, 0x61c},
    {0x115f, 0x1160}, {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},
    {0x2060, 0x206f}, {0x3164, 0x3164},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
    {0xfff0, 0xfffb}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
};

static bool is_hidden(uint32_t character)
{
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
        if (character <= hidden[i].last)
            return character >= hidden[i].first;
    return false;
}

/* Returns the bytes of a character that begins with this byte; 0 if none does. */
static size_t length_by_first(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* Reads the character that the text begins with. Returns its bytes; 0 if it is not UTF-8. */
static size_t decode(const char *text, uint32_t *character)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = length_by_first((unsigned char)*text);

    if (length == 0)
        return 0;
    *character = (unsigned char)*text & (length == 1 ? 0x7fu : 0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if ((byte & 0xc0) != 0x80)
            return 0;
        *character = *character << 6 | (byte & 0x3f);
    }
    bool is_surrogate = *character >= 0xd800 && *character <= 0xdfff;
    return *character < least[length] || *character > 0x10ffff || is_surrogate ? 0 : length;
}

static int escape(uint32_t character, char piece[PRINTABLE_BYTES])
{
    if (character < 0x80)
        return snprintf(piece, PRINTABLE_BYTES, "\\x%02x", character);
    if (character < 0x10000)
        return snprintf(piece, PRINTABLE_BYTES, "\\u%04x", character);
    return snprintf(piece, PRINTABLE_BYTES, "\\U%08x", character);
}

size_t take_printable(const char **text, char piece[PRINTABLE_BYTES])
{
    uint32_t character;
    size_t length = decode(*text, &character);

    if (length == 0) {
        snprintf(piece, PRINTABLE_BYTES, "\\x%02x", (unsigned char)*(*text)++);
        return strlen(piece);
    }
    const char *start = *text;
    *text += length;
    if (is_hidden(character))
        return (size_t)escape(character, piece);
    memcpy(piece, start, length);
    piece[length] = '\0';
    return length;
}

void print_printable(const char *text, FILE *out)
{
    char piece[PRINTABLE_BYTES];

    while (*text != '\0') {
        take_printable(&text, piece);
        fputs(piece, out);
    }
}

void make_printable(char *text, size_t bytes)
{
    const char *rest;
    char piece[PRINTABLE_BYTES];

    for (char *place = text; *place != '\0';) {
        rest = place;
        size_t length = take_printable(&rest, piece);
        size_t room = bytes - 1 - (size_t)(place - text);
        /* Equal lengths mean that nothing was escaped: an escape is longer than its character. */
        if (length == (size_t)(rest - place)) {
            place += length;
            continue;
        }
        if (length > room) {
            *place = '\0';
            return;
        }
        size_t left = whole_characters(rest, room - length);
        memmove(place + length, rest, left);
        memcpy(place, piece, length);
        place += length;
        place[left] = '\0';
    }
}

size_t whole_characters(const char *text, size_t most)
{
    size_t length = strnlen(text, most + 1);

    if (length <= most)
        return length;
    for (length = most; length > 0 && most - length < 3; length--)
        if (((unsigned char)text[length] & 0xc0) != 0x80)
            return length;
    return most;
}
