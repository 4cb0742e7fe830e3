/*
 * Counters of what buckets, heaps and kinds of memory did. They live in the figures (figures.h),
 * which may outlive the process.
 *
 * Each counter has one writer at a time: the holder of the heap lock, or a thread for its own
 * cache. Readers take no lock and need only a recent value. Counters are therefore plain loads and
 * stores of a relaxed atomic, which pair with nothing.
 *
 * A process may be killed between any two stores. A reader finds what was stored until then, in
 * program order. The order of the stores therefore determines what a reader can find; volatile
 * keeps the compiler from changing it:
 * - The last store of an allocation counts it, in hits, misses or failures. The number of requests
 *   is their sum and is stored nowhere, so the two cannot disagree. The allocation's other changes
 *   (requested bytes, live bytes, peaks) are stored before. They may be ahead by the one call in
 *   progress in each heap, and are never behind.
 * - The last store of a free counts it, in frees.
 * - live = reserved - free. A block that is being released to the driver leaves reserved_bytes
 *   before it leaves free_bytes. Between the two stores, live may be too small by one block, and is
 *   never more than was asked for. A block that becomes free is added to free_bytes before
 *   clean_bytes. One that is taken leaves clean_bytes first, so that clean_bytes <= free_bytes.
 *
 * In each bucket, and so in every sum of buckets:
 *   requests      = hits + misses + failures
 *   hits + misses = frees + live blocks
 *   misses        = blocks that left (all evictions) + live blocks + free blocks
 * The last equation does not hold with the policy split, whose blocks are also cut out of existing
 * memory and merged into it again.
 */
#ifndef CUDAPOOL_CORE_STATS_H
#define CUDAPOOL_CORE_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "states.h"

typedef volatile _Atomic uint64_t counter;

enum hit { HIT_CLEAN, HIT_QUERIED, HIT_BARRIER, HIT_WAITED, HIT_KINDS };

/* Why a block left the pool: it was over a cap; it was unused for long; memory was short; the
 * driver answered the program's own free; or its context ended. EVICTION_CONTEXT also counts a
 * block that now concerns only the program and the driver. Such a block counts as freed, too. */
enum eviction {
    EVICTION_CAP,
    EVICTION_IDLE,
    EVICTION_MEMORY,
    EVICTION_FREE,
    EVICTION_CONTEXT,
    EVICTION_KINDS
};

/* Why an allocation failed: the driver had no memory; the allocation would exceed the process's
 * limit on the device, or its group's; or the driver returned another error. */
enum failure { FAILURE_MEMORY, FAILURE_LIMIT, FAILURE_GROUP, FAILURE_OTHER, FAILURE_KINDS };

struct bucket_counters {
    counter hits[HIT_KINDS];
    counter misses; /* allocations that the driver served */
    counter frees;
    counter requested_bytes;
    counter reserved_bytes; /* of all blocks: live, clean and pending */
    counter free_bytes;     /* clean and pending */
    counter clean_bytes;
    counter peak_live_bytes;
    counter peak_reserved_bytes;
    counter evictions[EVICTION_KINDS];
    counter failures[FAILURE_KINDS];
    counter allocation_calls; /* driver calls, failed ones included */
    counter allocation_nanoseconds;
    counter allocation_least; /* nanoseconds of the quickest successful call; 0: none */
    counter returned_blocks;  /* blocks released to the driver, and the time of those calls */
    counter return_nanoseconds;
    counter return_least;
    counter wait_nanoseconds; /* of allocations and frees, for fences; several threads add */
    counter waiting_frees;    /* frees that waited for the GPU as the driver's free would */
};

/* A bucket's counters in one thread's cache (thread_cache.h), besides those in the bucket: clean
 * hits and frees that took no lock. The cache's thread writes them, or the thread that has closed
 * the caches. free blocks in the bin = frees + moved - hits, modulo 2^64. The slow path counts a
 * block into the bin before the block stops being free in the bucket. A block that it takes out is
 * free in the bucket before it is counted out of the bin. */
struct bin_counters {
    counter hits;
    counter frees;
    counter requested_bytes; /* by these hits */
    counter moved;           /* blocks put in, less blocks taken out, by the slow path */
    counter not_pending;     /* frees that are pending no longer, as far as the thread has looked */
};

/* Segments, which blocks are cut out of with the policy split (core/segments). */
struct segments_counters {
#define COUNTS_OF_SEGMENTS
#define COUNT(name, merged, since, says) counter name;
#include "report_counts.def"
};

struct heap_counters {
    counter peak_requested; /* bytes, since the context was created; see heap_peak_requested */
    counter earlier_peak;   /* the highest of the heap's earlier contexts */
    counter fences, fence_queries, barriers;
    counter captured;      /* allocations during captures; several threads add */
    counter stalled_waits; /* waits that lasted a second, for work that may need the host in order
                           to complete */
    struct segments_counters segments;
};

/* Counters of one kind of memory on a device. */
struct kind_counters {
    counter peak_requested; /* bytes, where no heap counts them. Several threads raise this and the
                               next two */
    counter peak_reserved;
    counter recent_peak; /* in KIND_DEVICE's record: the most bytes that all kinds on the device had
                            reserved together since the last sample */
    struct segments_counters segments; /* where no heap counts them; several threads add */
};

/* Memory that processes on a device released for each other. Several threads add without a lock.
 * Each *_at is the time of the last release, in nanoseconds of the monotonic clock; 0: never. The
 * *_times are counted last, so that a reader who finds one finds its bytes. */
struct neighbour_counters {
    counter given_bytes, given_times, given_at; /* this process released because others asked */
    counter got_bytes, got_times, got_at;       /* others released because this process asked */
    counter left_bytes, left_times, left_at;    /* released so that leave_free stays free */
    counter asked_times;                        /* demands that this process has made */
    counter silent_times;                       /* processes that did not answer a demand in time */
    counter others_held; /* the most bytes held outside this pool when memory ran out */
};

/* Of one unpooled_kind. Several threads add without a lock. */
struct unpooled_counters {
    counter bytes;      /* that the driver has given, and the program holds */
    counter peak_bytes; /* the most that the driver has given at one time */
    counter refused;    /* requests past a limit */
};

/* The housekeeper and the board of the process. One thread writes at a time; figures_note_board
 * writes the board. */
struct housekeeper_counters {
    counter state; /* enum housekeeper_state */
    counter wakeups;
    counter board; /* enum board_state; stored after board_why */
    char board_why[BOARD_WHY_BYTES];
};

/* The process's graph memory, where captures may allocate. Written under the graphs lock, but for
 * counters that several threads add to (graph_counts.def). */
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

/* These change a counter that several threads write without a lock. Relaxed: they order nothing. */
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

/* Keeps the least of all values. 0 means that there was none, so a value of 0 counts as 1. */
static inline void counter_lower_shared(counter *c, uint64_t value)
{
    uint64_t before = counter_get(c);
    value += value == 0;
    while ((before == 0 || value < before) &&
           !atomic_compare_exchange_weak_explicit(c, &before, value, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

/* A fence between relaxed counters. The thread sanitizer does not know fences, and reports nothing
 * among atomics in any case. */
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

/* Counts a driver call for an allocation. Several threads may miss at once, so these change without
 * the lock. Relaxed, like every counter. */
static inline void bucket_count_call(struct bucket_counters *c, uint64_t nanoseconds, bool met)
{
    atomic_fetch_add_explicit(&c->allocation_nanoseconds, nanoseconds, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->allocation_calls, 1, memory_order_relaxed);
    if (met)
        counter_lower_shared(&c->allocation_least, nanoseconds);
}

/* Counts a block that was released to the driver. */
static inline void bucket_count_return(struct bucket_counters *c, enum eviction reason,
                                       uint64_t nanoseconds)
{
    counter_add(&c->evictions[reason], 1);
    counter_add(&c->returned_blocks, 1);
    counter_add(&c->return_nanoseconds, nanoseconds);
    counter_lower_shared(&c->return_least, nanoseconds);
}

/* Counts a live block that leaves the pool without a driver call by the pool. */
static inline void bucket_count_lost(struct bucket_counters *c)
{
    counter_add(&c->evictions[EVICTION_CONTEXT], 1);
    counter_add(&c->frees, 1);
}

/* Counts the time that an allocation or a free waited. Needs no lock. Relaxed, like every
 * counter. */
static inline void bucket_count_wait(struct bucket_counters *c, uint64_t nanoseconds)
{
    atomic_fetch_add_explicit(&c->wait_nanoseconds, nanoseconds, memory_order_relaxed);
}

/* The most bytes, as requested, that the program held at one time in one context of the heap. */
static inline uint64_t heap_counters_peak(const struct heap_counters *c)
{
    uint64_t peak = counter_get(&c->peak_requested), earlier = counter_get(&c->earlier_peak);
    return peak > earlier ? peak : earlier;
}

/* Free blocks in a bin. The writer may be changing the counters meanwhile; a negative result is
 * taken as 0. */
static inline uint64_t bin_free_blocks(const struct bin_counters *c)
{
    uint64_t hits = counter_get(&c->hits);
    uint64_t blocks = counter_get(&c->frees) + counter_get(&c->moved) - hits;
    return (int64_t)blocks < 0 ? 0 : blocks;
}

/* How many of the bin's free blocks, passed as blocks, are pending. */
static inline uint64_t bin_pending_blocks(const struct bin_counters *c, uint64_t blocks)
{
    uint64_t pending = counter_get(&c->frees) - counter_get(&c->not_pending);
    return (int64_t)pending < 0 ? 0 : pending < blocks ? pending : blocks;
}

/* Counts bytes that one process released for another at the time now. Takes the three counters of
 * given, got or left. Relaxed, like every counter. */
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

/* Counts a demand that has ended, and the processes that did not answer it. */
static inline void neighbours_count_asked(struct neighbour_counters *c, uint64_t silent)
{
    atomic_fetch_add_explicit(&c->silent_times, silent, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->asked_times, 1, memory_order_relaxed);
}

/* The counter for an allocation that was no hit, by its outcome. */
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
