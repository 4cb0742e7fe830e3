/*
 * Rows about memory that the pool does not serve: virtual_memory.c.
 */
#ifndef TESTS_CONFORMANCE_VIRTUAL_MEMORY_H
#define TESTS_CONFORMANCE_VIRTUAL_MEMORY_H

#include "conformance.h"

void maps_on_a_full_device(void);
void handles_live_as_long_as_their_mappings(void);
void retained_handles_are_the_same(void);
void one_unmap_ends_many_mappings(void);
void physical_memory_outlives_contexts(void);
void managed_memory_is_not_freed_in_order(void);
void arrays_take_what_a_deferred_one_says(void);
void arrays_have_this_layout(void);

#endif
