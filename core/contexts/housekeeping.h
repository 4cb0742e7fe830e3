/*
 * What the pool remembers of its own thread, the housekeeper, while there is one and while there is
 * none (core/housekeeper/housekeeper.h). It is here since kinds of memory look at the phase.
 *
 *   NONE ----> MADE <----> WATCHED         a thread is made, ends, and is made again
 *              MADE <----> CANNOT          none could be made; tried again after some time
 *   OFF                                    there will be none
 *
 * Whoever changes the phase from NONE, WATCHED or CANNOT to MADE, by a compare-and-exchange, makes
 * the thread; so there is one at a time. The thread itself changes MADE to WATCHED, and ends.
 *
 * WATCHED: nothing was free, and nothing can become free without a slow path, which looks at the
 * phase. A free on the fast path of a thread's cache takes none unless its fence is due; so the
 * thread, before it ends, makes that of each cache due with the next free. Where that free is the
 * first in an epoch, which counts anew, the cache asks the phase (note_epoch in
 * core/device_memory/thread_cache.c), and so do caches that come later. Streams count down to their
 * next look, which is brought forward.
 *
 * The thread stores WATCHED first, then looks through each heap and each stream under its lock,
 * with the caches closed. A free that came before that look is seen by it, and the thread stays;
 * one that comes after it has taken the lock, or was inside its cache, later than the thread: so it
 * sees WATCHED, and makes a thread.
 */
#ifndef CUDAPOOL_CORE_HOUSEKEEPING_H
#define CUDAPOOL_CORE_HOUSEKEEPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum housekeeping_phase {
    HOUSEKEEPING_NONE,    /* too little memory was taken for a thread to be worth it */
    HOUSEKEEPING_MADE,    /* the thread is there, or just being made */
    HOUSEKEEPING_WATCHED, /* it has ended: slow paths make it again when something is freed */
    HOUSEKEEPING_CANNOT,  /* no thread could be made, see retry_at */
    HOUSEKEEPING_OFF,     /* the settings want none, or this is the child of a fork */
};

struct housekeeping {
    _Atomic uint32_t phase; /* relaxed where a lock orders it, see above */
    _Atomic bool stopped;   /* the process is ending: no driver call is begun any more. Relaxed */
    _Atomic uint64_t retry_at;     /* nanoseconds of the monotonic clock */
    _Atomic uint64_t published_at; /* likewise: when what is cached was last told to neighbours.
                                      Relaxed: it chooses who does */
    _Atomic uint64_t untold;   /* bytes that were freed since, as far as slow paths know. Relaxed */
    _Atomic uint64_t began_at; /* likewise: when the thread that is there began */
};

/* What others had of a device lately, the least of two spans; the thread's own. */
struct watermark {
    uint64_t least, least_before; /* bytes; of this span and the one before */
    uint64_t span_began;          /* nanoseconds of the monotonic clock; 0: never */
};

/* The thread looks so often for what has become idle, while there is anything free: nanoseconds.
 * So times that a slow path has noted for a free are at most so old. */
#define HOUSEKEEPING_INTERVAL (UINT64_C(1) * 1000 * 1000 * 1000)

/* So many bytes are given back at a time for being idle: that takes the driver a millisecond for
 * each GiB or so, and neighbours' demands, which are to be answered in a tenth of a second, are
 * looked at in between. */
#define HOUSEKEEPING_PORTION (UINT64_C(8) << 30)
#define RELEASE_MORE_AT_ONCE UINT64_C(0)

/* Whether the process is ending. */
static inline bool housekeeping_is_stopped(const struct housekeeping *housekeeping)
{
    return atomic_load_explicit(&housekeeping->stopped, memory_order_relaxed);
}

/* Whether the next free of a thread's cache is to take its slow path. */
static inline bool housekeeping_is_watched(const struct housekeeping *housekeeping)
{
    return atomic_load_explicit(&housekeeping->phase, memory_order_relaxed) == HOUSEKEEPING_WATCHED;
}

#endif
