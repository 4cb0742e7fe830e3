/*
 * The rules of advice.
 *
 * A rule fills setting (without the kind's name), from, to and text of an advice; false where there
 * is nothing to say. It speaks only where what it found is at least a tenth of what it is about;
 * only failures are always told. Those that propose another value of a setting are in
 * advice_settings.c, those about what the program does in advice_program.c, those about other
 * processes, which look at all kinds of memory together and name settings in full, in
 * advice_neighbours.c.
 */
#ifndef CUDAPOOL_TOOLS_ADVICE_RULES_H
#define CUDAPOOL_TOOLS_ADVICE_RULES_H

#include "advice_case.h"

/* All of them, in the order in which what they find is printed: most_requests_miss speaks where
 * none before it has found why. */
#define ADVICE_RULES(RULE)                                                                         \
    RULE(requests_fail_at_the_limit)                                                               \
    RULE(requests_fail_at_the_groups_limit)                                                        \
    RULE(requests_fail_for_memory)                                                                 \
    RULE(frees_wait)                                                                               \
    RULE(memory_ran_out)                                                                           \
    RULE(growth_budget_is_short)                                                                   \
    RULE(caps_are_low)                                                                             \
    RULE(idle_blocks_are_missed)                                                                   \
    RULE(large_requests_are_not_kept)                                                              \
    RULE(exact_sizes_do_not_come_back)                                                             \
    RULE(blocks_go_back_before_they_are_wanted)                                                    \
    RULE(sizes_do_not_come_back)                                                                   \
    RULE(captures_go_to_the_driver)                                                                \
    RULE(memory_is_never_freed)                                                                    \
    RULE(blocks_are_on_other_streams)                                                              \
    RULE(most_requests_miss)                                                                       \
    RULE(rounding_wastes_memory)                                                                   \
    RULE(much_is_reserved)

#define NEIGHBOUR_RULES(RULE)                                                                      \
    RULE(neighbours_are_silent)                                                                    \
    RULE(much_is_left_free)

#define DECLARE_OF_NEIGHBOURS(rule)                                                                \
    bool rule(const struct case_of_neighbours *at_hand, struct advice *advice);
NEIGHBOUR_RULES(DECLARE_OF_NEIGHBOURS)
#undef DECLARE_OF_NEIGHBOURS

#define DECLARE(rule) bool rule(const struct case_at_hand *at_hand, struct advice *advice);
ADVICE_RULES(DECLARE)
#undef DECLARE

#endif
