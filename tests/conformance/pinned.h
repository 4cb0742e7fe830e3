/*
 * Rows about pinned host memory: arguments and what is told of a pointer in pinned.c, who waits for
 * what and captures in pinned_waits.c, what another process does that may not come to a good end
 * in pinned_elsewhere.c, forks and limits in pinned_processes.c.
 */
#ifndef TESTS_CONFORMANCE_PINNED_H
#define TESTS_CONFORMANCE_PINNED_H

#include <stdint.h>

#include "conformance.h"

enum { ALL_HOST_FLAGS = 8, HOST_WORK_MS = 60 /* of what is waited for */ };

void *allocate_host(size_t bytes, unsigned int flags);
void free_host(void *block);

static inline CUdeviceptr address_of(const void *block)
{
    return (uintptr_t)block;
}

/* Where rows about several contexts have the second one. */
static inline const char *where_other_is(void)
{
    return gpu.neighbour == gpu.device ? "the same device" : "another device";
}

/* --- pinned.c ----------------------------------------------------------------------------------*/

void host_alloc_takes_every_flag(void);
void host_alloc_of_unknown_flags(void);
void host_alloc_of_nothing(void);
void host_alloc_of_too_much_is_out_of_memory(void);
void host_alloc_needs_a_context(void);
void host_flags_are_told(void);
void host_flags_of_registered_memory_are_told(void);
void small_host_blocks_have_an_alignment(void);
void host_ranges_are_told(void);
void host_pointers_have_attributes(void);
void host_pointers_have_all_attributes_in_one_call(void);
void host_buffers_have_ids_of_their_own(void);
void freed_host_memory_is_told(void);
void ordinary_memory_is_told(void);
void host_memory_can_be_told_to_synchronize(void);
void registered_memory_can_be_told_to_synchronize(void);
void host_device_pointers_are_host_pointers(void);
void host_device_pointers_in_other_contexts(void);
void host_memory_is_written_by_both(void);
void fresh_host_memory_has_contents(void);
void host_pools_have_a_threshold(void);

/* --- pinned_waits.c ----------------------------------------------------------------------------*/

void host_free_waits_for_its_context(void);
void host_free_beside_kernels_of_other_contexts(void);
void host_free_beside_host_functions(void);
void host_free_without_a_context_beside_a_kernel(void);
void host_unregister_waits_for_its_context(void);
void others_call_while_host_free_waits(void);
void host_alloc_beside_a_kernel(void);
void host_alloc_in_captures(void);
void host_free_in_captures(void);
void host_calls_of_others_in_captures(void);
void relaxed_threads_may_use_host_memory(void);
void relaxed_threads_may_register_memory(void);
void host_free_in_a_host_function(void);
void fences_without_work_are_over_at_once(void);
void fence_covers_reads_of_host_memory(void);
void fence_covers_writes_of_host_memory(void);

/* Probes, which another process makes. */
double kernels_elsewhere_use_it(void);
double kernels_elsewhere_use_portable(void);
double kernels_of_another_device_use_it(void);

/* How long the free takes, in ms, and COPY_REFUSED times what the calls refuse: 1000 times a bit
 * for each call, and the first one's result. */
enum { COPY_REFUSED = 1000000, COPY_CALLS = 6 };
double free_beside_small_copy(void);
double free_beside_large_copy(void);
double free_beside_portable_copy(void);

/* --- pinned_processes.c: more of those probes --------------------------------------------------*/

double child_reads(void);
double child_frees(void);
double parent_writes_after_child_reads(void);
double parent_writes_after_child_frees(void);
double allocates_small_without_locks(void);
double allocates_large_without_locks(void);
double registers_without_locks(void);

/* --- pinned_elsewhere.c ------------------------------------------------------------------------*/

void host_frees_that_nobody_may_make(void);
void freed_host_memory_may_stay(void);
void host_frees_in_other_contexts(void);
void destroyed_contexts_can_be_asked(void);
void host_frees_by_other_calls(void);
void host_memory_of_destroyed_contexts(void);
void host_memory_is_registered(void);
void host_memory_is_unregistered_by_its_address(void);
void host_memory_after_a_fork(void);
void host_memory_needs_no_limit(void);
void other_contexts_use_host_memory(void);
void host_free_beside_copies_of_other_contexts(void);

/* What the process that obeys does for these rows. */
double follow_pinned_order(size_t number);

#endif
