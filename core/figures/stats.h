/*
 * Counters: what a bucket, a heap and a kind of memory did. They live in the figures (figures.h),
 * which may outlive the process.
 *
 * Each counter has one writer at a time (whoever holds the heap lock, or a thread for its cache),
 * and readers that take no lock and only want a number that was true a moment ago: plain loads and
 * stores of a relaxed atomic, which pair with nothing.
 *
 * A process may be killed between any two stores. What it had stored until then, in the order of
 * its instructions, is what a reader finds, so the order of the stores says what can be found
 * (volatile keeps the compiler from changing it):
 * - An allocation counts by one store, the last one: to hits, misses or failures. The number of
 *   requests is their sum and stored nowhere, so it cannot disagree. All else that the allocation
 *   changes (requested bytes, what is live, peaks) is stored before: those may be ahead by the one
 *   call that each heap was in the middle of, and are never behind.
 * - A free likewise counts by its last store, to frees.
 * - What is live is reserved and not free. A block on its way back to the driver is neither, and
 *   stops being reserved before it stops being free: between two stores there may seem to be less
 *   live than there is, by one block, and never more than was asked for. A block that becomes free
 *   is counted in free_bytes before clean_bytes, and one that is taken the other way round, so that
 *   clean_bytes <= free_bytes.
 *
 * In each bucket, and so in every sum of buckets, the counters of blocks add up:
 *   requests = hits + misses + failures, hits + misses = frees + live blocks, and
 *   misses = blocks that left (all evictions) + live blocks + free blocks.
 * The last one does not hold with the policy split, whose blocks also come out of memory that is
 * there, and go back to it.
 */
#ifndef CUDAPOOL_CORE_STATS_H
#define CUDAPOOL_CORE_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "states.h"

typedef volatile _Atomic uint64_t counter;

enum hit { HIT_CLEAN, HIT_QUERIED, HIT_BARRIER, HIT_WAITED, HIT_KINDS };

/* Why a block left the pool: over a cap; unused for long; memory was short; the program's own free
 * was the driver's to answer; or its context ended, or it became the program's and the driver's
 * business alone, which counts as freed, too. */
enum eviction {
    EVICTION_CAP,
    EVICTION_IDLE,
    EVICTION_MEMORY,
    EVICTION_FREE,
    EVICTION_CONTEXT,
    EVICTION_KINDS
};

/* Why an allocation failed: the driver had no memory; it would have passed the process's limit on
 * the device, or that of its group; the driver said something else. */
enum failure { FAILURE_MEMORY, FAILURE_LIMIT, FAILURE_GROUP, FAILURE_OTHER, FAILURE_KINDS };

struct bucket_counters {
    counter hits[HIT_KINDS];
    counter misses; /* allocations that the driver met */
    counter frees;
    counter requested_bytes;
    counter reserved_bytes; /* of all blocks: live, clean and pending */
    counter free_bytes;     /* clean and pending */
    counter clean_bytes;
    counter peak_live_bytes;
    counter peak_reserved_bytes;
    counter evictions[EVICTION_KINDS];
    counter failures[FAILURE_KINDS];
    counter allocation_calls; /* to the driver, failed ones included */
    counter allocation_nanoseconds;
    counter allocation_least; /* nanoseconds of the quickest that succeeded; 0: none has */
    counter returned_blocks;  /* blocks given back to the driver, and what that took */
    counter return_nanoseconds;
    counter return_least;
    counter wait_nanoseconds; /* allocations and frees waited for fences; several threads add */
    counter waiting_frees;    /* frees that waited for the GPU as the driver's would have */
};

/* Of a bucket in one thread's cache (thread_cache.h), besides what is counted in the bucket: clean
 * hits and frees that took no lock. The cache's thread writes them, or whoever has closed the
 * caches. What is there, free, is frees + moved - hits, modulo 2^64. A block that the slow path
 * puts there is counted here before it stops being free in the bucket, and one that it takes away
 * is free in the bucket before it is counted out here. */
struct bin_counters {
    counter hits;
    counter frees;
    counter requested_bytes; /* by those hits */
    counter moved;           /* blocks put there less those taken away, by the slow path */
    counter settled; /* frees that are pending there no more, as far as the thread has looked */
};

/* With the policy split; see core/segments. */
struct segments_counters {
    counter count, bytes;    /* of segments that there are now */
    counter spare_bytes;     /* of these, in no block's hands */
    counter cuts;            /* blocks that were cut out of them, ever */
    counter refused_exports; /* of such blocks */
};

struct heap_counters {
    counter peak_requested; /* since the context was made; see heap_peak_requested */
    counter earlier_peak;   /* the highest of contexts that were this heap's before */
    counter fences, fence_queries, barriers;
    counter captured;   /* allocations while captures went on; several threads add */
    counter vain_waits; /* that lasted a second for work that may need the host in order to end */
    struct segments_counters segments;
};

/* Of one kind of memory of a device. */
struct kind_counters {
    counter
        peak_requested; /* where no heap counts it. Several threads raise it, like the next two */
    counter peak_reserved;
    counter recent_peak; /* of KIND_DEVICE: the most that all kinds on the device had reserved
                            together since the last sample */
    struct segments_counters segments; /* where no heap counts them. Several threads add */
};

/* What processes on a device gave each other. Several threads write: they add without a lock, and
 * each *_at, nanoseconds of the monotonic clock, is that of the last one; 0: never. The times are
 * counted last, so that a reader who finds one finds its bytes. */
struct neighbour_counters {
    counter given_bytes, given_times, given_at; /* went back to the driver because others asked */
    counter got_bytes, got_times, got_at;       /* others gave because this process asked */
    counter left_bytes, left_times, left_at;    /* went back so that leave_free stays free */
    counter asked_times;                        /* demands that this process has made */
    counter silent_times; /* processes that one of these asked, and that did not answer in time */
    counter others_held;  /* the most that was held when memory ran out, and not by this pool */
};

/* Of the process. One thread writes at a time; see figures_note_board for the board. */
struct housekeeper_counters {
    counter state; /* enum housekeeper_state */
    counter wakeups;
    counter board; /* enum board_state; stored after board_why */
    char board_why[BOARD_WHY_BYTES];
};

/* What graphs keep, where captures may allocate. Of the process; written under the graphs' lock. */
struct graph_counters {
#define COUNT(name, merged) counter name;
#include "graph_counts.def"
#undef COUNT
};

static inline uint64_t counter_get(const counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void counter_set(counter *c, uint64_t value)
{
    atomic_store_explicit(c, value, memory_order_relaxed);
}

static inline void counter_add(counter *c, uint64_t value)
{
    counter_set(c, counter_get(c) + value);
}

static inline void counter_subtract(counter *c, uint64_t value)
{
    counter_set(c, counter_get(c) - value);
}

static inline void counter_raise_to(counter *c, uint64_t value)
{
    if (value > counter_get(c))
        counter_set(c, value);
}

static inline void graph_counters_copy(struct graph_counters *to, const struct graph_counters *from)
{
#define COUNT(name, merged) counter_set(&to->name, counter_get(&from->name));
#include "graph_counts.def"
#undef COUNT
}

/* For a counter that several threads raise, or lower, without a lock. Relaxed: it orders nothing.
 */
static inline void counter_add_shared(counter *c, uint64_t value)
{
    atomic_fetch_add_explicit(c, value, memory_order_relaxed);
}

static inline void counter_subtract_shared(counter *c, uint64_t value)
{
    atomic_fetch_sub_explicit(c, value, memory_order_relaxed);
}

static inline void counter_raise_shared(counter *c, uint64_t value)
{
    uint64_t before = counter_get(c);
    while (value > before && !atomic_compare_exchange_weak_explicit(
                                 c, &before, value, memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* The least of all values, and never 0, which means that there was none. */
static inline void counter_lower_shared(counter *c, uint64_t value)
{
    uint64_t before = counter_get(c);
    value += value == 0;
    while ((before == 0 || value < before) &&
           !atomic_compare_exchange_weak_explicit(c, &before, value, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

/* A fence between relaxed counters. The thread sanitizer knows no fences; where there is nothing
 * but atomics it would find nothing either. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COUNTER_FENCES_LEFT_OUT 1
#endif
#endif
static inline void counter_fence(memory_order order)
{
#if defined(__SANITIZE_THREAD__) || defined(COUNTER_FENCES_LEFT_OUT)
    atomic_signal_fence(order);
#else
    atomic_thread_fence(order);
#endif
}

/* An allocation that the driver was asked for. Several threads may miss at once: these are changed
 * without the lock. Relaxed, like every counter. */
static inline void bucket_count_call(struct bucket_counters *c, uint64_t nanoseconds, bool met)
{
    atomic_fetch_add_explicit(&c->allocation_nanoseconds, nanoseconds, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->allocation_calls, 1, memory_order_relaxed);
    if (met)
        counter_lower_shared(&c->allocation_least, nanoseconds);
}

/* A block that was given back to the driver. */
static inline void bucket_count_return(struct bucket_counters *c, enum eviction reason,
                                       uint64_t nanoseconds)
{
    counter_add(&c->evictions[reason], 1);
    counter_add(&c->returned_blocks, 1);
    counter_add(&c->return_nanoseconds, nanoseconds);
    counter_lower_shared(&c->return_least, nanoseconds);
}

/* A live block that is no longer the pool's business, without a driver call of the pool's. */
static inline void bucket_count_lost(struct bucket_counters *c)
{
    counter_add(&c->evictions[EVICTION_CONTEXT], 1);
    counter_add(&c->frees, 1);
}

/* Without a lock, too. Relaxed, like every counter. */
static inline void bucket_count_wait(struct bucket_counters *c, uint64_t nanoseconds)
{
    atomic_fetch_add_explicit(&c->wait_nanoseconds, nanoseconds, memory_order_relaxed);
}

/* The most that the program held at a time in one context of the heap, as it asked for it. */
static inline uint64_t heap_counters_peak(const struct heap_counters *c)
{
    uint64_t peak = counter_get(&c->peak_requested), earlier = counter_get(&c->earlier_peak);
    return peak > earlier ? peak : earlier;
}

/* Free blocks in a bin. Of counters that their writer may be changing: less than none is none. */
static inline uint64_t bin_free_blocks(const struct bin_counters *c)
{
    uint64_t hits = counter_get(&c->hits);
    uint64_t blocks = counter_get(&c->frees) + counter_get(&c->moved) - hits;
    return (int64_t)blocks < 0 ? 0 : blocks;
}

/* How many of so many are pending. */
static inline uint64_t bin_pending_blocks(const struct bin_counters *c, uint64_t blocks)
{
    uint64_t pending = counter_get(&c->frees) - counter_get(&c->settled);
    return (int64_t)pending < 0 ? 0 : pending < blocks ? pending : blocks;
}

/* Bytes that went from one process to another at this time: to be called with the three counters
 * of what was given, got or left. Relaxed, like every counter. */
static inline void neighbours_count(counter *bytes, counter *times, counter *at, uint64_t count,
                                    uint64_t now)
{
    atomic_fetch_add_explicit(bytes, count, memory_order_relaxed);
    counter_raise_shared(at, now);
    atomic_fetch_add_explicit(times, 1, memory_order_relaxed);
}

static inline void neighbours_count_given(struct neighbour_counters *c, uint64_t bytes,
                                          uint64_t now)
{
    neighbours_count(&c->given_bytes, &c->given_times, &c->given_at, bytes, now);
}

static inline void neighbours_count_got(struct neighbour_counters *c, uint64_t bytes, uint64_t now)
{
    neighbours_count(&c->got_bytes, &c->got_times, &c->got_at, bytes, now);
}

static inline void neighbours_count_left(struct neighbour_counters *c, uint64_t bytes, uint64_t now)
{
    neighbours_count(&c->left_bytes, &c->left_times, &c->left_at, bytes, now);
}

/* A demand that has come to its end, of which so many processes said nothing. */
static inline void neighbours_count_asked(struct neighbour_counters *c, uint64_t silent)
{
    atomic_fetch_add_explicit(&c->silent_times, silent, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->asked_times, 1, memory_order_relaxed);
}

/* What counts an allocation that was no hit, by its outcome. */
static inline counter *bucket_outcome(struct bucket_counters *c, bool met, bool out_of_memory)
{
    return met ? &c->misses : &c->failures[out_of_memory ? FAILURE_MEMORY : FAILURE_OTHER];
}

static inline uint64_t bucket_requests(const struct bucket_counters *c)
{
    uint64_t requests = counter_get(&c->misses);
    for (int i = 0; i < HIT_KINDS; i++)
        requests += counter_get(&c->hits[i]);
    for (int i = 0; i < FAILURE_KINDS; i++)
        requests += counter_get(&c->failures[i]);
    return requests;
}

#endif
