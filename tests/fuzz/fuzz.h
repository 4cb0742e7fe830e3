/*
 * What the fuzz targets share: a file made of the input, and saying what is wrong.
 *
 * A target is one source beside this: it has LLVMFuzzerTestOneInput, takes any bytes, and holds one
 * reader to what its header promises. libFuzzer calls it with inputs that it makes up (`make
 * fuzz`); replay.c with those of tests/fuzz/corpus (`make test`). Everything runs in one thread.
 */
#ifndef CUDAPOOL_TESTS_FUZZ_FUZZ_H
#define CUDAPOOL_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The promise must hold; if not, the process ends as a crash does. */
#define PROMISE(holds, ...)                                                                        \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: broken: %s: ", __FILE__, __LINE__, #holds);                    \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A regular file in memory, under a name that any reader can open. */
struct memory_file {
    int fd;
    char path[32];
};

static inline void memory_file_open(struct memory_file *file)
{
    if (file->path[0] != '\0')
        return;
    file->fd = memfd_create("fuzz", MFD_CLOEXEC);
    PROMISE(file->fd >= 0, "no file in memory");
    snprintf(file->path, sizeof(file->path), "/proc/self/fd/%d", file->fd);
}

/* Makes the bytes all that the file holds. */
static inline void memory_file_set(struct memory_file *file, const void *data, size_t bytes)
{
    memory_file_open(file);
    PROMISE(ftruncate(file->fd, 0) == 0, "the file in memory stays full");
    PROMISE(pwrite(file->fd, data, bytes, 0) == (ssize_t)bytes, "the file in memory is full");
}

/* A copy of the file's bytes with a NUL after them, which the caller frees. */
static inline char *memory_file_get(const struct memory_file *file, size_t *bytes)
{
    off_t end = lseek(file->fd, 0, SEEK_END);
    PROMISE(end >= 0, "the file in memory has no size");
    char *text = malloc((size_t)end + 1);
    PROMISE(text != NULL, "no memory");
    PROMISE(pread(file->fd, text, (size_t)end, 0) == end, "the file in memory cannot be read");
    text[end] = '\0';
    *bytes = (size_t)end;
    return text;
}

/* Nothing was written to the one that is a copy of the other, padding included. */
static inline bool is_untouched(const void *one, const void *other, size_t bytes)
{
    return memcmp(one, other, bytes) == 0;
}

/* One line: no control character. */
static inline bool is_one_line(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    return true;
}

/* What document_json.h promises of every error. */
static inline void promise_error(const char *error, const char *file)
{
    PROMISE(strncmp(error, file, strlen(file)) == 0, "%s", error);
    PROMISE(strncmp(error + strlen(file), ": ", 2) == 0, "%s", error);
    PROMISE(error[strlen(file) + 2] != '\0', "%s", error);
    PROMISE(is_one_line(error), "%s", error);
}

/* The next part of the input up to a NUL byte, as text of its own, cut off where it is too long. */
static inline const char *take_text(const uint8_t **data, size_t *bytes, char *text, size_t room)
{
    size_t length = strnlen((const char *)*data, *bytes);
    size_t kept = length < room ? length : room - 1;

    if (kept > 0)
        memcpy(text, *data, kept);
    text[kept] = '\0';
    size_t taken = length < *bytes ? length + 1 : length;
    *data += taken;
    *bytes -= taken;
    return text;
}

#endif
