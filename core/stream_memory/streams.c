#include "streams.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/lines.h"

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
    uint64_t blocks = stream->given.handed_out - stream->given.handed_before;
    if (blocks > stream->given.missed + stream->given.adopted - stream->given.before)
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

/* ---- which streams may have a block ---- */

/* Fibonacci hashing, since the low bits of the key tell little. Sizes are multiples of large powers
 * of two, and records lie at multiples of their size. */
static unsigned hash_of(const void *of, uint64_t bytes)
{
    uint64_t key = bytes + (uint64_t)(uintptr_t)of;
    return (unsigned)(key * UINT64_C(0x9E3779B97F4A7C15) >> 54);
}
_Static_assert(STREAMS_SIZES == 1u << (64 - 54), "hash_of gives as many");

static struct stream_holders *find(struct stream_holders *first, const void *of, uint64_t bytes)
{
    while (first && (first->of != of || first->bytes != bytes))
        first = first->next;
    return first;
}

static struct stream_holders *make(const void *of, uint64_t bytes)
{
    struct stream_holders *made = allocate_apart(STREAM_APART, sizeof *made);
    if (made) {
        made->of = of;
        made->bytes = bytes;
    }
    return made;
}

/* A new set is put first in its list, and only if the list still begins with the set where the
 * search began. So no other thread has made the same set meanwhile. */
struct stream_holders *stream_holders_get(struct streams *streams, const void *of, uint64_t bytes)
{
    _Atomic(struct stream_holders *) *list = &streams->holders[hash_of(of, bytes)];
    struct stream_holders *first = atomic_load_explicit(list, memory_order_acquire), *made = NULL;
    for (;;) {
        struct stream_holders *found = find(first, of, bytes);
        if (!found && !made)
            made = make(of, bytes);
        if (found) {
            free_apart(made);
            return found;
        }
        if (!made)
            return NULL;
        made->next = first;
        /* The release pairs with the acquire loads of the list's first set, above. */
        if (atomic_compare_exchange_weak_explicit(list, &first, made, memory_order_acq_rel,
                                                  memory_order_acquire))
            return made;
    }
}
