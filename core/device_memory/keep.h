/*
 * Is a large block worth keeping?
 *
 * Where memory is short and sizes hardly come back, a cache costs more than it saves: what it keeps
 * has to be given back before the next allocation, which takes the driver longer than the program's
 * own free would have. So a heap either keeps large blocks, or it is on trial: then the driver
 * frees them, inside the program's own free, as it would without the pool.
 *
 * - Keeping ends when the device turns out to be nearly full, or when blocks were given back unused
 *   there more often than large ones were handed out again, by KEEP_UNUSED_MOST. Where memory is
 *   left, giving back an unused block costs less than the driver's free, which waits.
 * - On trial, a freed block leaves a ghost in its bucket, for as long as it could have been kept.
 * An allocation that finds one would have been a hit. After so many frees the heap keeps blocks
 * again if at least every second of them would have been worth it, or memory is not short any more;
 * else the next trial is twice as long. (Ghost entries as in the adaptive replacement cache of
 * Megiddo and Modha, 2003: a list of what was evicted lately tells what a larger cache would have
 * been worth.)
 *
 * The heap lock guards all of it; every function is called with it held.
 */
#ifndef CUDAPOOL_CORE_KEEP_H
#define CUDAPOOL_CORE_KEEP_H

#include <stdbool.h>
#include <stdint.h>

/* Blocks from this size on; the driver allocates and frees smaller ones in a few microseconds. */
#define KEEP_LARGE_BYTES (UINT64_C(2) << 20)

#define KEEP_UNUSED_MOST 32u
#define KEEP_TRIAL_FIRST 32u /* frees */
#define KEEP_TRIAL_MOST  1024u

/* A bucket's ghosts. They count only if they are of the heap's era. */
struct ghosts {
    uint64_t era;
    uint64_t count;
};

struct keep {
    uint32_t unused_returns; /* while blocks are kept: large ones that were given back unused, less
                                large hits since */
    uint32_t frees_left;     /* that the trial still has; 0: blocks are kept */
    uint32_t trial_frees; /* how many the trial has, or the last one had; 0: there was none yet */
    uint32_t ghost_hits;  /* misses of the trial that found a ghost */
    uint64_t era;         /* all ghosts go at once when there is no room for them */
    uint64_t ghost_bytes;
};

static inline bool keep_is_on_trial(const struct keep *keep)
{
    return __builtin_expect(keep->frees_left != 0, 0);
}

/* Lets the driver free large blocks from now on, until that turns out to be a loss. */
void keep_begin_trial(struct keep *keep);

/* A block was given back without having been handed out again. */
void keep_note_unused(struct keep *keep, uint64_t bytes);

/* A kept block was handed out, while keep->unused_returns was not 0. */
void keep_note_hit(struct keep *keep, uint64_t bytes);

/* Whether the driver is to free this block, whose bucket has these ghosts. is_short: memory is, so
 * that another trial may follow. */
bool keep_free_is_the_drivers(struct keep *keep, struct ghosts *ghosts, uint64_t bytes,
                              bool is_short);

/* The driver was asked for a block of this bucket. room: bytes that could be kept. */
void keep_note_miss(struct keep *keep, struct ghosts *ghosts, uint64_t bytes, uint64_t room);

/* Forgets everything. */
void keep_reset(struct keep *keep);

#endif
