/*
 * Loads a JSON file, and says what is wrong with it (document_json.h).
 *
 * The first section writes errors. The others open, read and parse files, and make JSON strings.
 */
#include "document_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/one_line.h"
#include "core/base/scratch.h"
#include "mistake_json.h"

/* Bytes that the description of a value may take in an error line. */
#define FOUND_BYTES 80

/* Room for an error's message, without the file and the place. */
#define MESSAGE_BYTES 640

static void write_error(const struct document *document, const char *place, const char *message,
                        char *error, size_t error_bytes)
{
    bool placed = place != NULL && place[0] != '\0';

    snprintf(error, error_bytes, "%s: %s%s%s", document->file, placed ? place : "",
             placed ? ": " : "", message);
    make_printable(error, error_bytes);
}

int document_fail(const struct document *document, const char *place, const char *format, ...)
{
    char message[MESSAGE_BYTES], line[2 * MESSAGE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    if (document->each != NULL) {
        write_error(document, place, message, line, sizeof(line));
        document->each(line, document->each_context);
    } else if (document->error_bytes > 0) {
        write_error(document, place, message, document->error, document->error_bytes);
    }
    return -1;
}

/* Writes a real number as JSON spells it, with a point, to show that 8.0 is not an integer. */
static void describe_real(const json_t *value, char found[FOUND_BYTES])
{
    size_t bytes =
        json_dumpb(value, found, FOUND_BYTES - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    if (bytes == 0 || bytes >= FOUND_BYTES)
        bytes = (size_t)snprintf(found, FOUND_BYTES, "a number");
    found[bytes] = '\0';
}

/* Describes a value in a few words: numbers and short strings literally, the rest by type. */
static void describe(const json_t *value, char found[FOUND_BYTES])
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        snprintf(found, FOUND_BYTES, "an object");
        break;
    case JSON_ARRAY:
        snprintf(found, FOUND_BYTES, "an array");
        break;
    case JSON_STRING:
        snprintf(found, FOUND_BYTES, "\"%.*s\"%s",
                 (int)whole_characters(json_string_value(value), 48), json_string_value(value),
                 json_string_length(value) > 48 ? " (cut off)" : "");
        break;
    case JSON_INTEGER:
        snprintf(found, FOUND_BYTES, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        describe_real(value, found);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        snprintf(found, FOUND_BYTES, "%s", json_is_true(value) ? "true" : "false");
        break;
    case JSON_NULL:
        snprintf(found, FOUND_BYTES, "null");
        break;
    }
}

int document_refuse(const struct document *document, const char *place, const json_t *found,
                    const char *allowed)
{
    char text[FOUND_BYTES];

    describe(found, text);
    return document_fail(document, place, "found %s, allowed is %s", text, allowed);
}

void place_of_key(char place[PLACE_BYTES], const char *parent, const char *key)
{
    snprintf(place, PLACE_BYTES, "%s%s%.100s", parent, parent[0] != '\0' ? "." : "", key);
}

void place_of_item(char place[PLACE_BYTES], const char *parent, size_t index)
{
    snprintf(place, PLACE_BYTES, "%s[%zu]", parent, index);
}

/* Opens the file. Does not wait for a FIFO's other end where only regular files are allowed. */
static int open_file(const struct document *document)
{
    struct stat status;
    int patience = document->waits ? 0 : O_NONBLOCK;
    int fd = document->waits && strcmp(document->file, "-") == 0
                 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                 : open(document->file, O_RDONLY | O_CLOEXEC | O_NOCTTY | patience);

    if (fd < 0)
        return document_fail(document, NULL, "cannot be opened: %s%s", strerror(errno),
                             errno == ENOENT && document->hint != NULL ? document->hint : "");
    if (fstat(fd, &status) == 0 &&
        (S_ISREG(status.st_mode) || (document->waits && !S_ISDIR(status.st_mode))))
        return fd;
    document_fail(document, NULL, "%s, allowed is a regular file",
                  S_ISDIR(status.st_mode) ? "is a directory" : "is not a file");
    close(fd);
    return -1;
}

/* Reads until the end of the file, or until the buffer is full. The bytes read, or -1 with
 * errno. */
static ssize_t read_fully(int fd, char *buffer, size_t bytes)
{
    size_t filled = 0;

    while (filled < bytes) {
        ssize_t got = read(fd, buffer + filled, bytes - filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        filled += (size_t)got;
    }
    return (ssize_t)filled;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (strchr(" \t\r\n", text[i]) == NULL || text[i] == '\0')
            return false;
    return true;
}

/* Refuses NUL bytes, because the parser skips some of them and takes others for the end. */
static int refuse_nul_bytes(const struct document *document, const char *text, size_t bytes)
{
    int line = 1, column = 1;

    if (memchr(text, '\0', bytes) == NULL)
        return 0;
    for (; *text != '\0'; text++, column++) {
        if (*text != '\n')
            continue;
        line++;
        column = 0;
    }
    return document_fail(document, NULL, "line %d, column %d: a NUL byte", line, column);
}

static void refuse_syntax(const struct document *document, const char *text, size_t bytes,
                          const json_error_t *error)
{
    size_t read = error->position < 0 ? 0 : (size_t)error->position;
    struct json_mistake mistake = json_find_mistake(text, read < bytes ? read + 1 : bytes);

    if (mistake.what != NULL)
        document_fail(document, NULL, "line %d, column %d: %s", mistake.line, mistake.column,
                      mistake.what);
    else
        document_fail(document, NULL, "line %d, column %d: %s", error->line, error->column,
                      error->text);
}

json_t *document_parse(const struct document *document, const char *text, size_t bytes)
{
    json_error_t error;

    if (is_blank(text, bytes)) {
        document_fail(document, NULL, "is empty, allowed is a JSON object");
        return NULL;
    }
    if (refuse_nul_bytes(document, text, bytes) != 0)
        return NULL;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (value == NULL)
        refuse_syntax(document, text, bytes, &error);
    return value;
}

/* Room for the file and one more byte, which shows its end; at most most_room. A file of unknown
 * length gets most_room at once. */
static size_t room_for_file(int fd, size_t most_room)
{
    struct stat status;

    if (fstat(fd, &status) != 0 || status.st_size <= 0 || (size_t)status.st_size >= most_room)
        return most_room;
    return (size_t)status.st_size + 1;
}

/* Reads the file, even if it grows meanwhile, up to most_room bytes. The bytes read, or -1 with
 * errno. *text must be NULL before; the caller frees it in either case. */
static ssize_t read_whole(int fd, size_t most_room, char **text)
{
    size_t room = room_for_file(fd, most_room), filled = 0;

    for (;;) {
        char *longer = realloc(*text, room);
        if (longer == NULL)
            return -1;
        *text = longer;
        ssize_t got = read_fully(fd, longer + filled, room - filled);
        if (got < 0)
            return -1;
        filled += (size_t)got;
        if (filled < room || room == most_room)
            return (ssize_t)filled;
        room = most_room;
    }
}

/* The file's text, which the caller frees; NULL with the error written. */
static char *read_text(const struct document *document, int fd, size_t most_bytes, size_t *bytes)
{
    /* One byte more than allowed distinguishes a file that is too long from one that just fits. */
    char *text = NULL;
    ssize_t got = read_whole(fd, most_bytes + 1, &text);

    if (got < 0) {
        document_fail(document, NULL, "cannot be read: %s", strerror(errno));
    } else if ((size_t)got > most_bytes) {
        document_fail(document, NULL, "is too long, allowed are at most %zu bytes", most_bytes);
    } else {
        *bytes = (size_t)got;
        return text;
    }
    free(text);
    return NULL;
}

json_t *document_load(const struct document *document, size_t most_bytes)
{
    json_t *value = NULL;
    size_t bytes;
    int fd = open_file(document);

    if (fd < 0)
        return NULL;
    char *text = read_text(document, fd, most_bytes, &bytes);
    if (text != NULL)
        value = document_parse(document, text, bytes);
    free(text);
    close(fd);
    return value;
}

json_t *json_string_of_any_bytes(const char *text, size_t most)
{
    json_t *string = json_string(text);
    char *copy = string == NULL ? scratch_malloc(strlen(text) * PRINTABLE_BYTES + 1) : NULL;
    char piece[PRINTABLE_BYTES];

    if (copy == NULL)
        return string;
    for (char *end = copy; *text != '\0';) {
        size_t length = take_printable(&text, piece);
        if ((size_t)(end - copy) + length >= most)
            break;
        memcpy(end, piece, length + 1);
        end += length;
    }
    string = json_string(copy);
    scratch_free(copy);
    return string;
}

json_t *json_unless_failed(json_t *object, int status)
{
    if (status == 0)
        return object;
    json_decref(object);
    return NULL;
}
