#include "lock.h"

#ifdef CUDAPOOL_CHECK_LOCKS

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* At least the number of ranks, since a thread holds at most one lock of each. */
#define HELD_MAX 24

struct held {
    const void *lock;
    enum lock_rank rank;
    const char *place;
};

/* The locks that the thread holds or waits for, in the order in which it took them. A signal
 * handler may interrupt a change. It then finds the old or the new count, and restores that count
 * before it returns. */
static _Thread_local struct {
    volatile unsigned count;
    struct held locks[HELD_MAX];
} held __attribute__((tls_model("initial-exec")));

static const char *const names[] = {
#define LOCK(name, text) text,
    LOCK_RANKS
#undef LOCK
};

_Static_assert(sizeof names / sizeof names[0] <= HELD_MAX, "a thread may hold a lock of each rank");

/* Prints one line and ends the process: continuing would mean to wait for ever, or to read what
 * others write. Writes to no stream, since the thread may hold the stream's lock. */
__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof line)
        length = sizeof line - 1;
    ssize_t written = length > 0 ? write(STDERR_FILENO, line, (size_t)length) : 0;
    (void)written; /* there is nowhere else to report it */
    abort();
}

static const struct held *find(const void *lock)
{
    for (unsigned i = 0; i < held.count; i++)
        if (held.locks[i].lock == lock)
            return &held.locks[i];
    return NULL;
}

/* Returns a held lock whose rank is above this one, or NULL. */
static const struct held *find_behind(int rank)
{
    for (unsigned i = 0; i < held.count; i++)
        if ((int)held.locks[i].rank > rank)
            return &held.locks[i];
    return NULL;
}

void lock_check_take(const void *lock, enum lock_rank rank, const char *place)
{
    const struct held *same = find(lock);
    if (same)
        fail("cudapool: locks: %s: %s is taken twice, first at %s\n", place, names[rank],
             same->place);
    /* Every held lock must have a rank < min(rank, LOCK_FIRST_LEAF). */
    const struct held *behind =
        find_behind((rank < LOCK_FIRST_LEAF ? (int)rank : LOCK_FIRST_LEAF) - 1);
    if (behind)
        fail("cudapool: locks: %s: %s is taken under %s, which is held since %s\n", place,
             names[rank], names[behind->rank], behind->place);
    held.locks[held.count] = (struct held){lock, rank, place};
    atomic_signal_fence(memory_order_seq_cst);
    held.count++;
}

void lock_check_give(const void *lock, const char *place)
{
    const struct held *given = find(lock);
    if (!given)
        fail("cudapool: locks: %s: a lock is given that is not held\n", place);
    for (unsigned i = (unsigned)(given - held.locks); i + 1 < held.count; i++)
        held.locks[i] = held.locks[i + 1];
    atomic_signal_fence(memory_order_seq_cst);
    held.count--;
}

void lock_check_held(const void *lock, const char *place)
{
    if (!find(lock))
        fail("cudapool: locks: %s: a lock is not held that must be\n", place);
}

void lock_check_rank_held(enum lock_rank rank, const char *place)
{
    for (unsigned i = 0; i < held.count; i++)
        if (held.locks[i].rank == rank)
            return;
    fail("cudapool: locks: %s: %s is not held, and must be\n", place, names[rank]);
}

void lock_check_not_held(const void *lock, const char *place)
{
    const struct held *found = find(lock);
    if (found)
        fail("cudapool: locks: %s: %s is held since %s, and must not be\n", place,
             names[found->rank], found->place);
}

void lock_check_none_behind(int rank, const char *place)
{
    const struct held *behind = find_behind(rank);
    if (behind)
        fail("cudapool: locks: %s: %s is held since %s, and must not be\n", place,
             names[behind->rank], behind->place);
}

#endif
