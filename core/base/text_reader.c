/*
 * Reads text files of lines and fields (text_reader.h). A reader takes single bytes out of a small
 * buffer, because the kernel's files may have any length. For example, a container's host may have
 * thousands of mounts.
 */
#include "text_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "sandbox.h"

void reader_begin(struct reader *reader, int fd, bool borrowed)
{
    reader->fd = fd;
    reader->borrowed = borrowed;
    reader->from = 0;
    reader->at = reader->filled = 0;
    reader->line_is_over = true;
    reader->file_is_over = fd < 0;
    reader->end = '\n';
}

void reader_open(struct reader *reader, const char *path)
{
    reader_begin(reader, sandbox_was_entered() ? -1 : open(path, O_RDONLY | O_CLOEXEC), false);
}

void reader_close(struct reader *reader)
{
    if (reader->fd >= 0 && !reader->borrowed)
        close(reader->fd);
}

/* Fetches the next bytes of the file into the buffer. Returns false at the file's end, or after an
 * error. Uses pread, because other threads may read this descriptor at their own offsets. */
static bool fill(struct reader *reader)
{
    ssize_t got;
    do
        got = pread(reader->fd, reader->bytes, sizeof reader->bytes, reader->from);
    while (got < 0 && errno == EINTR);
    reader->at = 0;
    reader->filled = got > 0 ? (size_t)got : 0;
    reader->from += (off_t)reader->filled;
    return got > 0;
}

/* Returns the next byte; '\n' at the end of the file. */
static char next_byte(struct reader *reader)
{
    if (reader->file_is_over || (reader->at == reader->filled && !fill(reader))) {
        reader->file_is_over = true;
        return '\n';
    }
    return reader->bytes[reader->at++];
}

bool reader_take_field(struct reader *reader, const char *separators, char *text, size_t room)
{
    size_t length = 0, taken = 0;
    reader->end = '\n';
    while (!reader->line_is_over) {
        char byte = next_byte(reader);
        reader->end = byte;
        reader->line_is_over = byte == '\n';
        /* strchr would find a zero byte at the end of separators. */
        if (reader->line_is_over || (byte != '\0' && strchr(separators, byte)))
            break;
        taken++;
        if (length + 1 < room)
            text[length++] = byte;
    }
    text[length] = '\0';
    return taken == length;
}

void reader_skip_field(struct reader *reader)
{
    char ignored[1];
    reader_take_field(reader, " ", ignored, sizeof ignored);
}

bool reader_next_line(struct reader *reader)
{
    while (!reader->line_is_over)
        reader_skip_field(reader);
    /* Only a read tells whether another line follows the one that has just ended. */
    if (!reader->file_is_over && reader->at == reader->filled)
        reader->file_is_over = !fill(reader);
    reader->line_is_over = reader->file_is_over;
    return !reader->file_is_over;
}
