/* What a process needs at its end: memory that is not malloc's, and writing that does not wait. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "core/base/scratch.h"
#include "core/base/writing.h"

/* ---- scratch ---- */

Test(ends, scratch_memory_is_zero_and_keeps_what_is_made_longer)
{
    cr_assert(scratch_begin());
    char *text = scratch_calloc(3, 100);
    for (int i = 0; i < 300; i++)
        cr_assert_eq(text[i], 0);
    memset(text, 'x', 300);
    for (size_t bytes = 600; bytes < 10000000; bytes *= 3) {
        text = scratch_realloc(text, bytes);
        cr_assert_not_null(text);
        cr_assert_eq((uintptr_t)text % _Alignof(max_align_t), 0);
        cr_assert_eq(text[0], 'x');
        cr_assert_eq(text[299], 'x');
        memset(text + 300, 'y', bytes - 300);
    }
    scratch_free(text);
    cr_assert_null(scratch_malloc(SIZE_MAX));
    cr_assert_null(scratch_malloc(SIZE_MAX - 8));
    cr_assert_null(scratch_calloc(SIZE_MAX / 2, 4));
    scratch_end();
}

static void *take_and_free(void *nothing)
{
    (void)nothing;
    cr_assert_not(scratch_begin(), "another thread has it");
    void *memory = scratch_realloc(scratch_malloc(10), 100000);
    free(memory); /* malloc's: a tool that watches malloc would complain */
    return NULL;
}

Test(ends, other_threads_get_mallocs_memory)
{
    pthread_t thread;
    void *before = malloc(10);
    cr_assert(scratch_begin());
    cr_assert_eq(pthread_create(&thread, NULL, take_and_free, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    scratch_free(before);
    scratch_free(NULL);
    scratch_end();
    free(scratch_calloc(1, 10));
}

/* ---- writing ---- */

#define LINE "a line of the text that is written until there is no room for it\n"

static char text[4000 * (sizeof LINE - 1)];

static void fill_text(void)
{
    for (size_t at = 0; at < sizeof text; at += sizeof LINE - 1)
        memcpy(text + at, LINE, sizeof LINE - 1);
}

static uint64_t milliseconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Writes more than there is room for; returns what came. */
static size_t write_past_the_room(int writing, int reading, char *last)
{
    static char read_text[sizeof text];
    uint64_t started = milliseconds_now();
    cr_assert_eq(write_until(writing, text, sizeof text, writing_deadline(50000000)), -1);
    cr_assert_eq(errno, EAGAIN);
    cr_assert_geq(milliseconds_now() - started, 49);
    close(writing);
    size_t all = 0;
    ssize_t got;
    while ((got = read(reading, read_text + all, sizeof read_text - all)) > 0)
        all += (size_t)got;
    cr_assert_eq(memcmp(read_text, text, all), 0);
    *last = '\n';
    if (all)
        *last = read_text[all - 1];
    return all;
}

Test(ends, a_pipe_that_is_full_has_whole_lines, .init = fill_text)
{
    int ends[2];
    char last;
    cr_assert_eq(pipe(ends), 0);
    cr_assert_gt(write_past_the_room(ends[1], ends[0], &last), 50000);
    cr_assert_eq(last, '\n');
}

Test(ends, a_socket_that_is_full_is_given_up, .init = fill_text)
{
    int ends[2];
    char last;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    cr_assert_gt(write_past_the_room(ends[1], ends[0], &last), 1000);
}

static void *read_slowly(void *argument)
{
    static char read_text[100];
    int fd = *(int *)argument;
    size_t all = 0;
    ssize_t got;
    while ((got = read(fd, read_text, sizeof read_text)) > 0)
        all += (size_t)got;
    return (void *)all;
}

Test(ends, who_reads_gets_all_of_it, .init = fill_text)
{
    int ends[2];
    pthread_t reader;
    void *all;
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(pthread_create(&reader, NULL, read_slowly, &ends[0]), 0);
    cr_assert_eq(write_until(ends[1], text, sizeof text, UINT64_MAX), 0);
    /* What a pipe was given is not the writer's memory any more. */
    memset(text, 0, sizeof text);
    close(ends[1]);
    pthread_join(reader, &all);
    cr_assert_eq((size_t)all, sizeof text);
}

Test(ends, nobody_reads_and_no_signal_comes)
{
    int ends[2];
    sigset_t pending;
    cr_assert_eq(pipe(ends), 0);
    close(ends[0]);
    cr_assert_eq(write_until(ends[1], LINE, sizeof LINE - 1, UINT64_MAX), -1);
    cr_assert_eq(errno, EPIPE);
    cr_assert_eq(sigpending(&pending), 0);
    cr_assert_not(sigismember(&pending, SIGPIPE));
    cr_assert_eq(write_until(-1, LINE, sizeof LINE - 1, writing_deadline(0)), -1);
}

Test(ends, errors_have_names)
{
    char buffer[32];
    cr_assert_str_eq(error_text(ENOSPC, buffer), "No space left on device");
    cr_assert_str_eq(error_text(12345, buffer), "error 12345");
}
