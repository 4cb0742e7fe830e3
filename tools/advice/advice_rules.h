/*
 * The rules of advice, which advice.c applies.
 *
 * A rule fills setting (without the kind's name), from, to and text of an advice. It returns false
 * if it has nothing to say. Apart from failures, which are always reported, a rule applies only if
 * what it found is at least a tenth of what it is about.
 *
 * The rules in advice_settings.c propose another value of a setting. Those in advice_program.c are
 * about what the program does. Those in advice_neighbours.c are about other processes; they look at
 * all kinds of memory together and write the full name of a setting.
 */
#ifndef CUDAPOOL_TOOLS_ADVICE_RULES_H
#define CUDAPOOL_TOOLS_ADVICE_RULES_H

#include "advice_case.h"

/* All rules, in the order in which their advice is printed. most_requests_miss applies only if no
 * rule before it applied to the same kind. */
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
