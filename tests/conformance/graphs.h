/*
 * What the rows about graphs share (objects.c), user objects that tell when they were destroyed
 * above all, and the rows.
 */
#ifndef TESTS_CONFORMANCE_GRAPHS_H
#define TESTS_CONFORMANCE_GRAPHS_H

#include <pthread.h>

#include "conformance.h"

/* A user object of the driver's, and what its destructor has written down. */
struct object {
    CUuserObject handle;
    pthread_t destroyer;
    int destroyed; /* how often the destructor ran */
};

/* The caller has the one reference. None is ever used again, so a late destructor does no harm. */
struct object *new_object(void);
/* The caller's reference becomes the graph's. */
void give_object(CUgraph graph, struct object *object);
/* A new object that only the graph keeps. */
struct object *object_kept_by(CUgraph graph);

bool is_gone(const struct object *object);
/* Within two seconds: destructors run when the driver gets to them. */
bool goes(const struct object *object);
/* For 15 milliseconds at least, which a destructor that was due would not wait for. */
bool stays(const struct object *object);
/* Whether the destructor ran while the stream had work; returns when the stream has none. */
bool goes_beside_work(const struct object *object, CUstream stream);

/* The graph that the stream captures into. */
CUgraph graph_being_captured(CUstream stream);
/* Ends stream a's capture. */
CUgraph end_capture(void);
/* A captured graph of one kernel, and an object that was given to it during the capture. */
CUgraph capture_with_object(double ms, struct object **object);
CUgraph clone_of(CUgraph graph);
CUresult update(CUgraphExec exec, CUgraph graph);
void destroy_graph(CUgraph graph);
void destroy_exec(CUgraphExec exec);
/* Runs the function in a thread of its own, in which the context is current, until its end. */
void in_another_thread(void (*function)(void *), void *argument);
CUstream new_stream(void);

/* --- objects: graphs.c -------------------------------------------------------------------------*/

void captured_graphs_keep_objects(void);
void captured_graphs_let_objects_go(void);
void retained_references_are_apart_from_the_programs(void);
void clones_keep_objects(void);
void executables_of_clones_keep_objects(void);
void pending_launches_keep_objects(void);
void objects_retained_by_other_threads(void);
void forked_streams_tell_the_same_graph(void);
void destructors_threads(void);
void updates_replace_objects(void);
void updates_beside_launches_keep_objects(void);
void objects_that_were_never_launched(void);
void objects_given_after_instantiating(void);
void failed_updates_and_objects(void);
void updates_by_the_own_graph_keep_objects(void);
void child_graphs_keep_objects(void);
void changed_child_graphs_replace_objects(void);
void updated_child_graphs_and_objects(void);
void captured_launches_and_objects(void);
void moved_child_graphs_keep_objects(void);
void conditional_bodies_and_objects(void);
void uploads_need_no_graph(void);
void pending_uploads_and_objects(void);

/* --- executables that are to have no objects: graph_executables.c ------------------------------*/

void objects_off_their_graph_for_a_while(void);
void objects_off_their_graph_for_an_update(void);
void objects_that_the_graph_does_not_have(void);
void objects_off_their_graph_beside_captures(void);
void objects_need_no_context(void);
void fences_cover_what_destroyed_executables_do(void);
void fences_cover_what_updated_executables_did(void);

/* --- captures that end otherwise, calls beside captures: graph_captures.c ----------------------*/

void captures_to_graphs_keep_objects(void);
void spoiled_captures_to_graphs(void);
void unjoined_captures_to_graphs(void);
void refused_captures_to_graphs(void);
void captures_of_destroyed_streams(void);
void captures_of_ended_threads(void);
void captures_ended_on_the_wrong_stream(void);
void captures_ended_by_the_wrong_thread(void);
void calls_beside_captures(void);
void calls_beside_other_threads_captures(void);
void relaxed_calls_beside_captures(void);
void relaxed_calls_beside_other_threads_captures(void);
void relaxed_allocations_beside_spoiled_captures(void);
void captures_use_memory_allocated_meanwhile(void);
void captures_of_the_threads_own_stream(void);
void objects_that_go_beside_captures(void);
void graphs_that_go_beside_captures(void);

/* --- what captures do not mind, contexts that end: graph_neighbours.c
 * ---------------------------*/

void relaxed_allocations_beside_blocking_captures(void);
void relaxed_allocations_beside_captures_of_the_threads_own(void);
void asking_the_legacy_stream_spares_blocking_captures(void);
void asking_about_captures_spares_them(void);
void questions_about_memory_spare_captures(void);
void interior_frees_beside_captures(void);
void objects_of_graphs_whose_context_ends(void);

/* --- what captured streams come after: graph_order.c -------------------------------------------*/

void captured_streams_tell_their_nodes(void);
void forks_and_joins_tell_their_nodes(void);
void captures_have_numbers(void);
void streams_that_are_set_back_tell_so(void);
void questions_about_pools_spare_captures(void);
void early_launches_in_captures(void);

/* --- nodes that allocate and free: graph_memory.c ----------------------------------------------*/

void captured_allocations_keep_their_address(void);
void captured_allocations_are_freed_once(void);
void unfreed_allocations_forbid_a_launch(void);
void launches_may_free_what_the_last_one_left(void);
void unfreed_allocations_are_freed_in_order(void);
void unfreed_allocations_are_freed_plainly(void);
void allocations_before_a_launch(void);
void unfreed_allocations_outlive_their_graph(void);
void other_graphs_free_allocations(void);
void captured_frees_of_plain_memory(void);
void graphs_with_memory_are_not_copied(void);
void graphs_with_memory_have_one_executable(void);
void graphs_with_memory_in_captures(void);
void graphs_with_memory_are_updated(void);
void moved_child_graphs_with_memory(void);
void spoiled_captures_give_allocations_back(void);
void graph_memory_is_counted(void);
void graph_memory_can_be_asked_about_at_any_time(void);
void graph_memory_is_trimmed_beside_work(void);
void uploads_and_graph_memory(void);

#endif
