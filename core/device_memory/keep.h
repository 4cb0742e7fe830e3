/*
 * Whether a large block is worth keeping.
 *
 * Where memory is short and sizes rarely recur, a cache costs more than it saves. Each cached block
 * must be released to the driver before the next allocation, which takes longer than the program's
 * own free would have. So a heap either keeps large blocks or is on trial. On trial, the driver
 * frees large blocks inside the program's own free, as it would without the pool.
 *
 * - A heap stops keeping large blocks when the device turns out to be nearly full. Where memory is
 *   short, it also stops once unused_returns reaches KEEP_UNUSED_MOST. Where memory is left,
 *   releasing an unused block costs less than the driver's free, which waits.
 * - On trial, a freed block leaves a ghost in its bucket for as long as the block could have been
 *   kept. An allocation that finds a ghost would have been a hit. After trial_frees frees, the heap
 *   keeps blocks again if ghost_hits >= trial_frees / 2 or memory is no longer short. Otherwise the
 *   next trial is twice as long.
 *
 * Ghost entries come from the adaptive replacement cache of Megiddo and Modha (2003). A list of
 * recent evictions tells what a larger cache would have been worth.
 *
 * The heap lock guards all state here. Every function is called with it held.
 */
#ifndef CUDAPOOL_CORE_KEEP_H
#define CUDAPOOL_CORE_KEEP_H

#include <stdbool.h>
#include <stdint.h>

/* The smallest large block. The driver allocates and frees smaller ones in a few microseconds. */
#define KEEP_LARGE_BYTES (UINT64_C(2) << 20)

#define KEEP_UNUSED_MOST 32u
#define KEEP_TRIAL_FIRST 32u /* frees */
#define KEEP_TRIAL_MOST  1024u

/* A bucket's ghosts. They are valid only while era equals that of the heap's struct keep. */
struct ghosts {
    uint64_t era;
    uint64_t count;
};

struct keep {
    /* While blocks are kept: large blocks released unused, minus large hits since. */
    uint32_t unused_returns;
    uint32_t frees_left;  /* frees until the trial ends; 0: blocks are kept */
    uint32_t trial_frees; /* frees in the present or last trial; 0: there was none yet */
    uint32_t ghost_hits;  /* misses of the trial that found a ghost */
    uint64_t era; /* a new one drops all ghosts at once, as when there is no room for them */
    uint64_t ghost_bytes;
};

static inline bool keep_is_on_trial(const struct keep *keep)
{
    return __builtin_expect(keep->frees_left != 0, 0);
}

/* Starts a trial: the driver frees large blocks until that turns out to be a loss. */
void keep_begin_trial(struct keep *keep);

/* Notes that a block was released to the driver without having been reused. */
void keep_note_unused(struct keep *keep, uint64_t bytes);

/* Notes a hit on a kept block. Called only while keep->unused_returns is not 0. */
void keep_note_hit(struct keep *keep, uint64_t bytes);

/* Whether the driver should free this block. If so, its bucket gets another ghost. ghosts: those of
 * its bucket. is_short: memory is short, so another trial may follow. */
bool keep_free_is_the_drivers(struct keep *keep, struct ghosts *ghosts, uint64_t bytes,
                              bool is_short);

/* Notes that the driver was asked for a block of this bucket. room: bytes that could be kept. */
void keep_note_miss(struct keep *keep, struct ghosts *ghosts, uint64_t bytes, uint64_t room);

/* Ends any trial, and forgets all counts and ghosts. */
void keep_reset(struct keep *keep);

#endif
