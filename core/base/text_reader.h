/*
 * Text files of lines and fields, as the kernel has them below /proc and /sys.
 *
 * A reader belongs to one thread. Nothing here fails, allocates, changes a file's position or is
 * known to anybody else: threads that read one descriptor do so from places of their own.
 */
#ifndef CUDAPOOL_CORE_TEXT_READER_H
#define CUDAPOOL_CORE_TEXT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct reader {
    int fd;
    bool kept;         /* another one closes it */
    off_t from;        /* the next byte of the file */
    size_t at, filled; /* in bytes */
    bool line_is_over; /* the field before was the last of its line */
    bool file_is_over;
    char end; /* what ended the field before; '\n' at the end of the file, too */
    char bytes[512];
};

/* Before the first line. A file that cannot be opened is empty, and so is any in a process that has
 * restricted its system calls (sandbox.h). */
void reader_open(struct reader *reader, const char *path);

/* The same of an open file; below 0: an empty one. kept: reader_close leaves it open. */
void reader_begin(struct reader *reader, int fd, bool kept);

void reader_close(struct reader *reader);

/* Takes the next field of the line, which one of the separators ends, or the line's end. It is ""
 * on a line that is over. False where the text is only the field's beginning, for lack of room. */
bool reader_take_field(struct reader *reader, const char *separators, char *text, size_t room);

void reader_skip_field(struct reader *reader);

/* Goes on to the next line, or to the first one. False at the end of the file. */
bool reader_next_line(struct reader *reader);

#endif
