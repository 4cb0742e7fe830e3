/*
 * Finds mistakes in a text that is not JSON: comments, commas after the last element, and a byte
 * order mark (mistake_json.h).
 */
#include "mistake_json.h"

#include <stdbool.h>
#include <string.h>

static const char byte_order_mark[] = "\xef\xbb\xbf";

/* Returns the position after the string that begins here, or the end of the text. */
static const char *skip_string(const char *text, const char *end)
{
    for (text++; text < end && *text != '"' && *text != '\n'; text++)
        if (*text == '\\' && text + 1 < end)
            text++;
    return text < end ? text + 1 : end;
}

static bool is_comment(const char *text, const char *end)
{
    return *text == '#' || (*text == '/' && text + 1 < end && (text[1] == '/' || text[1] == '*'));
}

/* The position of the first mistake, and what it is; NULL where there is none. */
static const char *find(const char *text, const char *end, const char **what)
{
    const char *comma = NULL;

    while (text < end) {
        if (is_comment(text, end)) {
            *what = "a comment, which JSON does not have";
            return text;
        }
        if (comma != NULL && (*text == '}' || *text == ']')) {
            *what = "a comma after the last element, which JSON does not allow";
            return comma;
        }
        if (*text == ',')
            comma = text;
        else if (strchr(" \t\r\n", *text) == NULL)
            comma = NULL;
        text = *text == '"' ? skip_string(text, end) : text + 1;
    }
    return NULL;
}

static struct json_mistake mistake_at(const char *text, const char *place, const char *what)
{
    struct json_mistake mistake = {.what = what, .line = 1, .column = 1};

    for (; text < place; text++) {
        if (*text == '\n') {
            mistake.line++;
            mistake.column = 1;
        } else if (((unsigned char)*text & 0xc0) != 0x80) {
            mistake.column++;
        }
    }
    return mistake;
}

struct json_mistake json_find_mistake(const char *text, size_t bytes)
{
    const char *what = NULL;

    if (bytes >= strlen(byte_order_mark) &&
        memcmp(text, byte_order_mark, strlen(byte_order_mark)) == 0)
        return mistake_at(text, text, "a byte order mark, which JSON does not allow");
    const char *place = find(text, text + bytes, &what);
    return mistake_at(text, place == NULL ? text : place, what);
}
