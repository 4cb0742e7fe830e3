/*
 * What the pool remembers of its own thread, the housekeeper, whether or not the thread exists
 * (core/housekeeper/housekeeper.h). It is in this directory because kinds of memory read the phase.
 *
 *   NONE ----> MADE <----> WATCHED         a thread is made, ends, and is made again
 *              MADE <----> CANNOT          none could be made; tried again after some time
 *   OFF                                    there will be none
 *
 * A thread that changes the phase from NONE, WATCHED or CANNOT to MADE, by a compare-and-exchange,
 * makes the housekeeper. So there is one at a time. The housekeeper itself changes MADE to WATCHED,
 * and ends.
 *
 * WATCHED: nothing was free, and nothing can become free without a slow path, which reads the
 * phase. A free on the fast path of a thread's cache takes no slow path unless its fence is due. So
 * before it ends, the housekeeper makes the fence of each cache due at the next free. The first
 * free in an epoch begins a new count, so the cache reads the phase there (note_epoch in
 * core/device_memory/thread_cache.c). Caches that are made later do that, too. Streams count down
 * to their next look, and the housekeeper brings that look forward.
 *
 * The housekeeper stores WATCHED first. Then it looks through each heap and each stream under its
 * lock, with the caches closed. It sees a free that came before that look, and stays. A later free
 * has taken the lock, or was inside its cache, after the housekeeper. So that free sees WATCHED,
 * and makes a housekeeper.
 */
#ifndef CUDAPOOL_CORE_HOUSEKEEPING_H
#define CUDAPOOL_CORE_HOUSEKEEPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum housekeeping_phase {
    HOUSEKEEPING_NONE, /* too little memory was taken for a thread to be worth it */
    HOUSEKEEPING_MADE, /* the thread exists, or is being made */
    /* The thread has ended. Slow paths make it again when something is freed. */
    HOUSEKEEPING_WATCHED,
    HOUSEKEEPING_CANNOT, /* no thread could be made, see retry_at */
    HOUSEKEEPING_OFF,    /* the settings want none, or this is the child of a fork */
};

struct housekeeping {
    _Atomic uint32_t phase;    /* relaxed where a lock orders it, see above */
    _Atomic bool stopped;      /* the process is ending: no more driver calls begin. Relaxed */
    _Atomic uint64_t retry_at; /* nanoseconds of the monotonic clock */
    /* When the cached bytes were last published to other processes, in nanoseconds of the monotonic
     * clock. Relaxed: it chooses who publishes next. */
    _Atomic uint64_t published_at;
    /* Bytes freed since published_at, as far as slow paths know. Relaxed. */
    _Atomic uint64_t untold;
    /* When the present thread began, in nanoseconds of the monotonic clock. */
    _Atomic uint64_t began_at;
};

/* The least that other processes had of a device in each of the last two spans. Only the
 * housekeeper uses it. */
struct watermark {
    uint64_t least, least_before; /* bytes, of this span and of the one before */
    uint64_t span_began;          /* nanoseconds of the monotonic clock; 0: never */
};

/* While anything is free, the housekeeper looks for idle memory this often: nanoseconds. So the
 * times that slow paths have noted for frees are at most this old. */
#define HOUSEKEEPING_INTERVAL (UINT64_C(1) * 1000 * 1000 * 1000)

/* The most bytes of idle memory released to the driver at a time. The driver takes about a
 * millisecond for each GiB. In between, the housekeeper looks for demands, which it must answer in
 * a tenth of a second. */
#define HOUSEKEEPING_PORTION (UINT64_C(8) << 30)
#define RELEASE_MORE_AT_ONCE UINT64_C(0)

/* Whether the process is ending. */
static inline bool housekeeping_is_stopped(const struct housekeeping *housekeeping)
{
    return atomic_load_explicit(&housekeeping->stopped, memory_order_relaxed);
}

/* Whether the next free of a thread's cache must take its slow path. */
static inline bool housekeeping_is_watched(const struct housekeeping *housekeeping)
{
    return atomic_load_explicit(&housekeeping->phase, memory_order_relaxed) == HOUSEKEEPING_WATCHED;
}

#endif
