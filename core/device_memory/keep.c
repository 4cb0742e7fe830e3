#include "keep.h"

static void forget_ghosts(struct keep *keep)
{
    keep->era++;
    keep->ghost_bytes = 0;
}

/* Each trial is twice as long as the one before, up to KEEP_TRIAL_MOST. */
static uint32_t next_trial(const struct keep *keep)
{
    if (keep->trial_frees == 0)
        return KEEP_TRIAL_FIRST;
    return keep->trial_frees < KEEP_TRIAL_MOST ? 2 * keep->trial_frees : KEEP_TRIAL_MOST;
}

void keep_begin_trial(struct keep *keep)
{
    if (keep_is_on_trial(keep))
        return;
    keep->trial_frees = next_trial(keep);
    keep->frees_left = keep->trial_frees;
    keep->ghost_hits = 0;
    forget_ghosts(keep);
}

static void end_trial(struct keep *keep, bool is_short)
{
    keep->unused_returns = 0;
    /* The ghosts stay for the next trial: the blocks they stand for would still be cached. */
    if (2 * keep->ghost_hits >= keep->trial_frees || !is_short)
        return;
    keep->trial_frees = next_trial(keep);
    keep->frees_left = keep->trial_frees;
    keep->ghost_hits = 0;
}

void keep_note_unused(struct keep *keep, uint64_t bytes)
{
    if (bytes >= KEEP_LARGE_BYTES && ++keep->unused_returns >= KEEP_UNUSED_MOST)
        keep_begin_trial(keep);
}

void keep_note_hit(struct keep *keep, uint64_t bytes)
{
    if (bytes >= KEEP_LARGE_BYTES)
        keep->unused_returns--;
}

static void add_ghost(struct keep *keep, struct ghosts *ghosts, uint64_t bytes)
{
    if (ghosts->era != keep->era)
        *ghosts = (struct ghosts){.era = keep->era};
    ghosts->count++;
    keep->ghost_bytes += bytes;
}

static bool take_ghost(struct keep *keep, struct ghosts *ghosts, uint64_t bytes)
{
    if (ghosts->era != keep->era || ghosts->count == 0)
        return false;
    ghosts->count--;
    keep->ghost_bytes -= bytes;
    return true;
}

bool keep_free_is_the_drivers(struct keep *keep, struct ghosts *ghosts, uint64_t bytes,
                              bool is_short)
{
    if (!keep_is_on_trial(keep) || bytes < KEEP_LARGE_BYTES)
        return false;
    add_ghost(keep, ghosts, bytes);
    if (--keep->frees_left == 0)
        end_trial(keep, is_short);
    return true;
}

void keep_note_miss(struct keep *keep, struct ghosts *ghosts, uint64_t bytes, uint64_t room)
{
    if (!keep_is_on_trial(keep) || bytes < KEEP_LARGE_BYTES)
        return;
    if (take_ghost(keep, ghosts, bytes))
        keep->ghost_hits++;
    else if (keep->ghost_bytes > room)
        forget_ghosts(keep);
}

void keep_reset(struct keep *keep)
{
    *keep = (struct keep){.era = keep->era + 1};
}
