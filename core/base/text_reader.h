/*
 * Reads text files of lines and fields, as the kernel has them below /proc and /sys.
 *
 * A reader belongs to one thread. No function here returns a read error, allocates, or changes a
 * file's position. Each reader has its own offset, so the readers of several threads may share a
 * descriptor.
 */
#ifndef CUDAPOOL_CORE_TEXT_READER_H
#define CUDAPOOL_CORE_TEXT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct reader {
    int fd;
    bool borrowed;     /* reader_close leaves fd open */
    off_t from;        /* offset in the file of the next byte to fetch */
    size_t at, filled; /* in bytes[]: index of the next byte to take; bytes fetched */
    bool line_is_over; /* the last field taken was the line's last */
    bool file_is_over;
    char end; /* the character that ended the last field; '\n' if the file's end did */
    char bytes[512];
};

/* Opens a file, with the reader before the first line. A file that cannot be opened reads as empty.
 * In a process that has restricted its system calls (sandbox.h), every file reads as empty. */
void reader_open(struct reader *reader, const char *path);

/* Prepares to read an open file from its start; fd < 0 reads as empty. borrowed: reader_close
 * leaves fd open. */
void reader_begin(struct reader *reader, int fd, bool borrowed);

void reader_close(struct reader *reader);

/* Takes the next field of the line. A field ends at one of the separators or at the line's end. The
 * field is "" if the line has no more. Returns false if text has room only for the field's
 * beginning. */
bool reader_take_field(struct reader *reader, const char *separators, char *text, size_t room);

void reader_skip_field(struct reader *reader);

/* Advances to the next line. The first call advances to the first line. Returns false at the end of
 * the file. */
bool reader_next_line(struct reader *reader);

#endif
