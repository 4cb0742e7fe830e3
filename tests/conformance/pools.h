/*
 * Rows about the driver's memory pools of managed and of host memory: pools.c.
 */
#ifndef TESTS_CONFORMANCE_POOLS_H
#define TESTS_CONFORMANCE_POOLS_H

#include "conformance.h"

void pools_are_found_by_their_memory(void);
void pools_are_chosen_by_their_memory(void);
void default_pools_are_destroyed(void);
void memory_outlives_the_context_of_its_stream(void);
void events_of_the_primary_context_on_green_streams(void);
void pools_of_other_memory_keep_up_to_their_threshold(void);
void pools_of_other_memory_and_free_memory(void);
void pools_of_other_memory_are_trimmed_beside_a_kernel(void);
void pools_of_other_memory_cost_less_with_a_threshold(void);

#endif
