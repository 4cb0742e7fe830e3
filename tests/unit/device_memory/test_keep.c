/* Whether large blocks are worth keeping: trials, ghosts, and what ends either. */
#include "core/device_memory/keep.h"

#include <criterion/criterion.h>

static const uint64_t large = KEEP_LARGE_BYTES;

static struct keep keep;
static struct ghosts ghosts, others;

static void free_and_miss(unsigned frees, unsigned misses)
{
    for (unsigned i = 0; i < frees; i++) {
        cr_assert(keep_free_is_the_drivers(&keep, &ghosts, large, true));
        if (i < misses)
            keep_note_miss(&keep, &ghosts, large, UINT64_MAX);
    }
}

Test(keep, blocks_are_kept_from_the_start)
{
    cr_assert_not(keep_free_is_the_drivers(&keep, &ghosts, large, true));
}

Test(keep, on_trial_the_driver_frees_large_blocks_only)
{
    keep_begin_trial(&keep);
    cr_assert_not(keep_free_is_the_drivers(&keep, &ghosts, large - 1, true));
    cr_assert(keep_free_is_the_drivers(&keep, &ghosts, large, true));
}

Test(keep, blocks_kept_in_vain_begin_a_trial)
{
    for (unsigned i = 0; i < KEEP_UNUSED_MOST; i++) {
        keep_note_unused(&keep, large - 1);
        cr_assert_not(keep_is_on_trial(&keep));
    }
    for (unsigned i = 0; i < KEEP_UNUSED_MOST; i++) {
        cr_assert_not(keep_is_on_trial(&keep));
        keep_note_unused(&keep, large);
    }
    cr_assert(keep_is_on_trial(&keep));
}

Test(keep, a_large_hit_makes_up_for_a_block_kept_in_vain)
{
    for (unsigned i = 0; i < 3 * KEEP_UNUSED_MOST; i++) {
        keep_note_unused(&keep, large);
        keep_note_hit(&keep, large - 1);
        keep_note_hit(&keep, large);
    }
    cr_assert_not(keep_is_on_trial(&keep));
}

Test(keep, a_trial_in_which_half_would_have_hit_is_the_end_of_it)
{
    keep_begin_trial(&keep);
    free_and_miss(KEEP_TRIAL_FIRST, KEEP_TRIAL_FIRST / 2);
    cr_assert_not(keep_is_on_trial(&keep));
}

Test(keep, a_trial_in_which_fewer_would_have_hit_is_followed_by_a_longer_one)
{
    keep_begin_trial(&keep);
    free_and_miss(KEEP_TRIAL_FIRST, KEEP_TRIAL_FIRST / 2 - 1);
    cr_assert_eq(keep.frees_left, 2 * KEEP_TRIAL_FIRST);
}

Test(keep, trials_do_not_grow_without_end)
{
    keep_begin_trial(&keep);
    for (unsigned i = 0; i < 20; i++)
        free_and_miss(keep.frees_left, 0);
    cr_assert_eq(keep.frees_left, KEEP_TRIAL_MOST);
}

Test(keep, ghosts_of_one_trial_count_in_the_next)
{
    keep_begin_trial(&keep);
    free_and_miss(KEEP_TRIAL_FIRST, 0);
    for (unsigned i = 0; i < KEEP_TRIAL_FIRST; i++)
        keep_note_miss(&keep, &ghosts, large, UINT64_MAX);
    cr_assert_eq(keep.ghost_hits, KEEP_TRIAL_FIRST);
}

Test(keep, a_miss_takes_one_ghost_of_its_own_bucket)
{
    keep_begin_trial(&keep);
    keep_free_is_the_drivers(&keep, &ghosts, large, true);
    keep_note_miss(&keep, &others, large, UINT64_MAX);
    cr_assert_eq(keep.ghost_hits, 0);
    keep_note_miss(&keep, &ghosts, large, UINT64_MAX);
    keep_note_miss(&keep, &ghosts, large, UINT64_MAX);
    cr_assert_eq(keep.ghost_hits, 1);
    cr_assert_eq(keep.ghost_bytes, 0);
}

Test(keep, ghosts_go_when_there_would_be_no_room_for_what_they_stand_for)
{
    keep_begin_trial(&keep);
    for (unsigned i = 0; i < 4; i++)
        keep_free_is_the_drivers(&keep, &ghosts, large, true);
    keep_note_miss(&keep, &others, large, 4 * large);
    keep_note_miss(&keep, &ghosts, large, 4 * large);
    cr_assert_eq(keep.ghost_hits, 1);
    keep_note_miss(&keep, &others, large, 3 * large - 1);
    keep_note_miss(&keep, &ghosts, large, 4 * large);
    cr_assert_eq(keep.ghost_hits, 1);
}

Test(keep, after_a_reset_nothing_is_left)
{
    keep_begin_trial(&keep);
    keep_free_is_the_drivers(&keep, &ghosts, large, true);
    keep_reset(&keep);
    cr_assert_not(keep_is_on_trial(&keep));
    keep_begin_trial(&keep);
    keep_note_miss(&keep, &ghosts, large, UINT64_MAX);
    cr_assert_eq(keep.ghost_hits, 0);
}
