/*
 * Memory that runs out: the n-th request of the core fails, or every one from the n-th on.
 * jansson's requests count too. The linker sends the core's calls here (--wrap, in the Makefile),
 * so this is for test programs that are linked so, and is included once by each.
 */
#ifndef CUDAPOOL_TESTS_UNIT_FAILING_MEMORY_H
#define CUDAPOOL_TESTS_UNIT_FAILING_MEMORY_H

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Requests that still succeed; negative: all do. One thread at a time. */
static long requests_left = -1;
static bool fails_for_good, has_failed;

static bool fails_now(void)
{
    if (requests_left < 0 || requests_left-- > 0)
        return false;
    has_failed = true;
    if (fails_for_good)
        requests_left = 0;
    errno = ENOMEM;
    return true;
}

/* After so many requests one fails, or all do. */
static inline void memory_fails_after(long requests, bool for_good)
{
    requests_left = requests;
    fails_for_good = for_good;
    has_failed = false;
}

static inline void memory_is_back(void)
{
    requests_left = -1;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return fails_now() ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, fd, offset);
}

static inline void let_json_fail_too(void)
{
    json_set_alloc_funcs(__wrap_malloc, free);
}

#endif
