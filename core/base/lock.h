/*
 * The locks of the process, and the order in which they are taken.
 *
 * There are two sorts: mutexes and short locks (short_lock.h). A mutex may be held for as long as a
 * look through many streams takes. Mutexes up to LOCK_LAST_ACROSS_DRIVER_CALLS may also be held
 * across driver calls. lock_take takes both sorts, and lock_give releases both. Each lock has a
 * rank. A thread that holds a lock takes only locks of a higher rank, and none at all if that lock
 * is a leaf. So no thread ever holds two locks of the same rank, and threads never wait for each
 * other in a circle.
 *
 * A function that relies on a lock begins with lock_must_be_held. A function that may wait, or that
 * takes locks indirectly, begins with lock_must_not_be_held, no_lock_may_be_held or
 * no_lock_may_be_held_behind. Builds that define CUDAPOOL_CHECK_LOCKS (builds with a sanitizer, and
 * `make DEBUG=1`) check these and the order. Each thread then keeps a list of the locks it holds,
 * and a broken rule prints one line and aborts. In other builds the checks do nothing, and
 * lock_take is the plain call.
 *
 * Any thread may take locks, also in an exit handler. A signal handler may take one only if the
 * interrupted thread holds none. The child of a fork inherits the locks of the thread that forked.
 */
#ifndef CUDAPOOL_CORE_LOCK_H
#define CUDAPOOL_CORE_LOCK_H

#include <pthread.h>
#include <stddef.h>

#include "short_lock.h"

/* The ranks, in the order in which locks may be taken. LOCK(name, what messages call it) */
#define LOCK_RANKS                                                                                 \
    /* Guards no data. Lets one thread at a time end a primary context, or retain one for a        \
     * moment. Held across those driver calls. (struct pool) */                                    \
    LOCK(PRIMARY, "the primary lock")                                                              \
    /* Guards the list of captures, and keeps the set of live contexts unchanged while a fence is  \
     * recorded. Held across driver calls. (struct pool) */                                        \
    LOCK(FENCE, "the fence lock")                                                                  \
    /* Guards the handles of contexts, the devices and the spare contexts. (struct registry) */    \
    LOCK(REGISTRY, "the registry lock")                                                            \
    /* Guards which blocks graphs own, and which captures are under way. (struct graph_memory) */  \
    LOCK(GRAPHS, "the graphs' lock")                                                               \
    /* Guards a context's fences, host work and heap. A short lock. (struct context) */            \
    LOCK(CONTEXT, "a context's lock")                                                              \
    /* Guards the list of streams, as streams are added and end. (struct streams) */               \
    LOCK(STREAMS, "the streams' list lock")                                                        \
    /* Guards the uses of blocks that the program has reported. (struct streams) */                \
    LOCK(USES, "the use lock")                                                                     \
    /* Guards a stream, its order and its shelves. A short lock. (struct stream) */                \
    LOCK(STREAM, "a stream's lock")                                                                \
    /* Guards the bins of some threads' free pinned memory. A short lock. (struct host_shard) */   \
    LOCK(HOST_SHARD, "a host shard's lock")                                                        \
    /* Guards the list of memory pools, and their settings. (struct streams) */                    \
    LOCK(MEMPOOLS, "the mempool lock")                                                             \
    /* Guards the unused records of stream-ordered blocks. (struct stream_block_records) */        \
    LOCK(RECORDS, "the records' lock")                                                             \
    /* Guards the changes of a table of blocks. (struct block_table) */                            \
    LOCK(TABLE, "a table's lock")                                                                  \
    /* Guards the pitches that the driver has chosen for rows. (struct pool) */                    \
    LOCK(PITCHES, "the pitch lock")                                                                \
    /* Guards programs' scalars, and the rings they are copied from. (struct scalar_rings) */      \
    LOCK(SCALARS, "the scalars' lock")                                                             \
    /* Guards the list of executable graphs that contain host work. (struct host_graphs) */        \
    LOCK(HOST_GRAPHS, "the host graphs' lock")                                                     \
    /* Guards the records of unpooled memory. (struct unpooled_memory) */                          \
    LOCK(UNPOOLED, "the unpooled lock")                                                            \
    /* Guards the creation of counters; files are opened and grown under it. (struct figures) */   \
    LOCK(FIGURES, "the figures lock")                                                              \
    /* Guards what the process has, and what it asks for, on the board. (struct board) */          \
    LOCK(BOARD, "the board lock")                                                                  \
    /* Lets one thread at a time take bytes of its group's limit. Held for                         \
     * BOARD_SILENCE_NANOSECONDS at most, while another process is between two steps.              \
     * (struct board) */                                                                           \
    LOCK(GROUP, "the group lock")

enum lock_rank {
#define LOCK(name, text) LOCK_##name,
    LOCK_RANKS
#undef LOCK
};

/* The first leaf. A thread that holds a lock of this rank or a higher one takes no other lock. */
#define LOCK_FIRST_LEAF LOCK_MEMPOOLS

/* The last rank that may be held across a driver call. Threads wait for locks of a higher rank for
 * a moment only, and what the driver waits for may need such locks. */
#define LOCK_LAST_ACROSS_DRIVER_CALLS LOCK_FENCE

#ifdef CUDAPOOL_CHECK_LOCKS

/* The place in the sources where a lock is taken, as "file:line". */
#define LOCK_PLACE_OF_LINE(line) __FILE__ ":" #line
#define LOCK_PLACE_OF(line)      LOCK_PLACE_OF_LINE(line)
#define LOCK_HERE                LOCK_PLACE_OF(__LINE__)

/* Called before a lock is taken, and before it is released. */
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

/* Returns false if another thread has the lock. For fast paths that have a fallback. */
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

/* For functions that take or release a lock on behalf of a caller; place: the caller's. */
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

/* Check that the calling thread holds this very lock, or one of this rank if the function does not
 * know whose lock it is. */
#define lock_must_be_held(lock)         lock_check_held(lock, LOCK_HERE)
#define lock_of_rank_must_be_held(rank) lock_check_rank_held(rank, LOCK_HERE)

/* Check that the calling thread does not hold this lock, holds no lock of a rank above this one, or
 * holds no lock at all. */
#define lock_must_not_be_held(lock)      lock_check_not_held(lock, LOCK_HERE)
#define no_lock_may_be_held_behind(rank) lock_check_none_behind(rank, LOCK_HERE)
#define no_lock_may_be_held()            lock_check_none_behind(-1, LOCK_HERE)

#endif
