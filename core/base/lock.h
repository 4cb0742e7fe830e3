/*
 * The locks of the process, and the order in which they are taken.
 *
 * There are two sorts: mutexes, which may be held for as long as a driver call or a look through
 * many streams takes, and short locks (short_lock.h). Both are taken by lock_take and given by
 * lock_give, and each has a rank: a thread that holds a lock takes only locks of a higher rank, and
 * none at all where that lock is a leaf. So no two locks of the same rank are ever held by one
 * thread, and there is no circle of threads that wait for each other.
 *
 * A function that relies on a lock begins with lock_must_be_held, one that may wait, or calls what
 * takes locks, with lock_must_not_be_held or no_lock_may_be_held. These and the order are checked
 * where CUDAPOOL_CHECK_LOCKS is defined (builds with a sanitizer, and `make DEBUG=1`): each thread
 * then keeps a list of what it holds, and a broken rule is told in one line and aborts. Elsewhere
 * they are nothing, and lock_take is the plain call.
 *
 * Any thread, signal handlers and exit handlers included; the child of a fork holds what the thread
 * held that made it.
 */
#ifndef CUDAPOOL_CORE_LOCK_H
#define CUDAPOOL_CORE_LOCK_H

#include <pthread.h>
#include <stddef.h>

#include "short_lock.h"

/* In the order in which they may be taken. LOCK(name, what it is called) */
#define LOCK_RANKS                                                                                 \
    /* Guards no data: while a thread ends a primary context, or retains one for a moment, no      \
     * other thread does either. Held across those driver calls. (struct pool) */                  \
    LOCK(PRIMARY, "the primary lock")                                                              \
    /* Guards the list of captures, and keeps the set of live contexts as it is while a fence is   \
     * recorded. Held across driver calls. (struct pool) */                                        \
    LOCK(FENCE, "the fence lock")                                                                  \
    /* Guards the handles of contexts, the devices and the spare contexts. (struct registry) */    \
    LOCK(REGISTRY, "the registry lock")                                                            \
    /* Guards what graphs keep, and whose captures are under way. (struct graph_memory) */         \
    LOCK(GRAPHS, "the graphs' lock")                                                               \
    /* Guards a context's fences, host work and heap. A short one. (struct context) */             \
    LOCK(CONTEXT, "a context's lock")                                                              \
    /* Guards the list of streams: who is made known, who ends. (struct streams) */                \
    LOCK(STREAMS, "the streams' list lock")                                                        \
    /* Guards what was told of the uses of blocks. (struct streams) */                             \
    LOCK(USES, "the use lock")                                                                     \
    /* Guards a stream, its order and its shelves. A short one. (struct stream) */                 \
    LOCK(STREAM, "a stream's lock")                                                                \
    /* Guards the bins of some threads' free pinned memory. A short one. (struct host_shard) */    \
    LOCK(HOST_SHARD, "a host shard's lock")                                                        \
    /* Guards what is known of a part of the program's events. (struct event_shard) */             \
    LOCK(EVENTS, "an events' lock")                                                                \
    /* Guards the list of memory pools, and their settings. (struct streams) */                    \
    LOCK(MEMPOOLS, "the mempool lock")                                                             \
    /* Guards the unused records of stream-ordered blocks. (struct stream_block_records) */        \
    LOCK(RECORDS, "the records' lock")                                                             \
    /* Guards the changes of a table of blocks. (struct block_table) */                            \
    LOCK(TABLE, "a table's lock")                                                                  \
    /* Guards the widths of rows that the driver has chosen. (struct pool) */                      \
    LOCK(PITCHES, "the pitch lock")                                                                \
    /* Guards the values that programs set, and where they are copied from. (struct scalar_rings)  \
     */                                                                                            \
    LOCK(SCALARS, "the scalars' lock")                                                             \
    /* Guards the executable graphs that have work of the host's. (struct host_graphs) */          \
    LOCK(HOST_GRAPHS, "the host graphs' lock")                                                     \
    /* Guards the making of counters; files are opened and grown under it. (struct figures) */     \
    LOCK(FIGURES, "the figures lock")                                                              \
    /* Guards what the process has and asks for on the board. (struct board) */                    \
    LOCK(BOARD, "the board lock")                                                                  \
    /* One thread at a time takes bytes of its group's limit. Held for BOARD_SILENCE_NANOSECONDS   \
     * at most, where another process is between two steps. (struct board) */                      \
    LOCK(GROUP, "the group lock")

enum lock_rank {
#define LOCK(name, text) LOCK_##name,
    LOCK_RANKS
#undef LOCK
};

/* From this one on nothing is taken under a lock. */
#define LOCK_FIRST_LEAF LOCK_EVENTS

/* The last one that may be held across a driver call: others wait for the locks behind it for a
 * moment only, and what the driver waits for may need them. */
#define LOCK_LAST_ACROSS_DRIVER_CALLS LOCK_FENCE

#ifdef CUDAPOOL_CHECK_LOCKS

/* Where in the sources a lock is taken. */
#define LOCK_PLACE_OF_LINE(line) __FILE__ ":" #line
#define LOCK_PLACE_OF(line)      LOCK_PLACE_OF_LINE(line)
#define LOCK_HERE                LOCK_PLACE_OF(__LINE__)

/* Before a lock is taken, and before it is given. */
void lock_check_take(const void *lock, enum lock_rank rank, const char *place);
void lock_check_give(const void *lock, const char *place);

void lock_check_held(const void *lock, const char *place);
void lock_check_rank_held(enum lock_rank rank, const char *place);
void lock_check_not_held(const void *lock, const char *place);
void lock_check_none_behind(int rank, const char *place);

#else

#define LOCK_HERE ((const char *)NULL)

static inline void lock_check_take(const void *lock, enum lock_rank rank, const char *place)
{
    (void)lock, (void)rank, (void)place;
}

static inline void lock_check_give(const void *lock, const char *place)
{
    (void)lock, (void)place;
}

static inline void lock_check_held(const void *lock, const char *place)
{
    (void)lock, (void)place;
}

static inline void lock_check_rank_held(enum lock_rank rank, const char *place)
{
    (void)rank, (void)place;
}

static inline void lock_check_not_held(const void *lock, const char *place)
{
    (void)lock, (void)place;
}

static inline void lock_check_none_behind(int rank, const char *place)
{
    (void)rank, (void)place;
}

#endif

static inline void lock_take_mutex(pthread_mutex_t *lock, enum lock_rank rank, const char *place)
{
    lock_check_take(lock, rank, place);
    pthread_mutex_lock(lock);
}

static inline void lock_take_short(struct short_lock *lock, enum lock_rank rank, const char *place)
{
    lock_check_take(lock, rank, place);
    short_lock_take(lock);
}

/* False where another thread has it: for a path that is quick, or another one. */
static inline bool lock_try_from(struct short_lock *lock, enum lock_rank rank, const char *place)
{
    lock_check_take(lock, rank, place);
    bool taken = __builtin_expect(short_lock_try(lock), 1);
    if (!taken)
        lock_check_give(lock, place);
    return taken;
}

static inline void lock_give_mutex(pthread_mutex_t *lock, const char *place)
{
    lock_check_give(lock, place);
    pthread_mutex_unlock(lock);
}

static inline void lock_give_short(struct short_lock *lock, const char *place)
{
    lock_check_give(lock, place);
    short_lock_give(lock);
}

/* For functions that take a lock on behalf of another place. */
#define lock_take_from(lock, rank, place)                                                          \
    _Generic((lock), pthread_mutex_t *                                                             \
             : lock_take_mutex, struct short_lock *                                                \
             : lock_take_short)(lock, rank, place)
#define lock_give_from(lock, place)                                                                \
    _Generic((lock), pthread_mutex_t *                                                             \
             : lock_give_mutex, struct short_lock *                                                \
             : lock_give_short)(lock, place)

/* lock: a pthread_mutex_t * or a struct short_lock *. */
#define lock_take(lock, rank) lock_take_from(lock, rank, LOCK_HERE)
#define lock_give(lock)       lock_give_from(lock, LOCK_HERE)

/* lock: a struct short_lock *. */
#define lock_try(lock, rank) lock_try_from(lock, rank, LOCK_HERE)

/* The calling thread holds this very lock; one of this rank, for who does not know whose it is. */
#define lock_must_be_held(lock)         lock_check_held(lock, LOCK_HERE)
#define lock_of_rank_must_be_held(rank) lock_check_rank_held(rank, LOCK_HERE)

/* The calling thread does not hold this lock; holds no lock of a higher rank; holds none. */
#define lock_must_not_be_held(lock)      lock_check_not_held(lock, LOCK_HERE)
#define no_lock_may_be_held_behind(rank) lock_check_none_behind(rank, LOCK_HERE)
#define no_lock_may_be_held()            lock_check_none_behind(-1, LOCK_HERE)

#endif
