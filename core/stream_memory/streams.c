#include "streams.h"

#include <stdlib.h>

#include "core/base/clock.h"

struct streams *streams_make(void)
{
    struct streams *streams = calloc(1, sizeof *streams);
    if (!streams || !block_table_init(&streams->blocks)) {
        free(streams);
        return NULL;
    }
    pthread_mutex_init(&streams->lock, NULL);
    pthread_mutex_init(&streams->records.lock, NULL);
    pthread_mutex_init(&streams->use_lock, NULL);
    pthread_mutex_init(&streams->mempool_lock, NULL);
    return streams;
}

/* ---- looks at all of them ---- */

/* A look is not repeated for this many times as long as it took. */
#define REST_FACTOR 16u

bool streams_are_paused(const struct streams *streams, const struct pause *pause, uint64_t *started)
{
    *started = 0;
    if (!streams_are_many(streams))
        return false;
    *started = monotonic_now();
    return *started < atomic_load_explicit(&pause->until, memory_order_relaxed);
}

void streams_pause_after(const struct streams *streams, struct pause *pause, uint64_t started)
{
    if (!streams_are_many(streams) || !started)
        return;
    uint64_t now = monotonic_now();
    atomic_store_explicit(&pause->until, now + REST_FACTOR * (now - started), memory_order_relaxed);
}

/* ---- early launches ---- */

void streams_note_early_launch(struct streams *streams, CUstream handle)
{
    for (unsigned i = 0; i < STREAMS_EARLY; i++) {
        CUstream found = atomic_load_explicit(&streams->launched_early[i], memory_order_relaxed);
        if (!found)
            atomic_compare_exchange_strong_explicit(&streams->launched_early[i], &found, handle,
                                                    memory_order_relaxed, memory_order_relaxed);
        if (!found || found == handle)
            return;
    }
}

bool streams_launched_early(const struct streams *streams, CUstream handle)
{
    for (unsigned i = 0; i < STREAMS_EARLY; i++) {
        CUstream found = atomic_load_explicit(&streams->launched_early[i], memory_order_relaxed);
        if (!found || found == handle)
            return found != NULL;
    }
    return true;
}

/* ---- short-lived ones ---- */

/* Streams that end with something pending, and of which no block was reused, count as short-lived.
 * A stream with a reused block takes one off the count. From SHORT_LIVED_RULE on, new streams are
 * turned away, except one in STREAMS_PER_TRIAL. */
#define SHORT_LIVED_RULE    64u
#define SHORT_LIVED_AT_MOST 128u
#define STREAMS_PER_TRIAL   64u

/* Threads may overwrite each other's counts; that does no harm. */
static void count_short_lived(struct streams *streams, bool more)
{
    unsigned count = atomic_load_explicit(&streams->short_lived, memory_order_relaxed);
    if (more)
        count += count < SHORT_LIVED_AT_MOST;
    else
        count -= count != 0;
    atomic_store_explicit(&streams->short_lived, count, memory_order_relaxed);
}

void streams_served_another(struct streams *streams)
{
    if (atomic_load_explicit(&streams->short_lived, memory_order_relaxed))
        count_short_lived(streams, false);
}

void streams_note_end_of(struct streams *streams, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    uint64_t blocks = stream->handed_out - stream->handed_before;
    if (blocks > stream->missed + stream->adopted - stream->given_before)
        streams_served_another(streams);
    else if (stream->pending.first)
        count_short_lived(streams, true);
}

bool streams_leave_to_driver(struct streams *streams)
{
    return atomic_load_explicit(&streams->short_lived, memory_order_relaxed) >= SHORT_LIVED_RULE &&
           atomic_fetch_add_explicit(&streams->left_to_driver, 1, memory_order_relaxed) %
                   STREAMS_PER_TRIAL !=
               0;
}
