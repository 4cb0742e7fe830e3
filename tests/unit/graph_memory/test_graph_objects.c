/*
 * Executables without a user object: what their graphs keep stays as long as they are there.
 */
#include "graph_fixture.h"

#include "core/base/clock.h"

static void set_up_objects(void)
{
    set_up_graphs();
    let_executables_be_without();
}

TestSuite(graph_objects, .init = set_up_objects, .fini = tear_down_graphs, .timeout = 20);

static CUstream stream;

/* A graph that keeps so many bytes. */
static unsigned graph_with(size_t bytes)
{
    unsigned graph = begin_graph(&stream);
    release(allocate(bytes));
    end_capture_of(graph);
    return graph;
}

static unsigned start_with_graph(void)
{
    start();
    return graph_with(MIB);
}

static struct fake_executable *start_with_executable(void)
{
    unsigned graph = start_with_graph();
    struct fake_executable *executable = executable_of(graph);
    destroy_known_graph(graph, true);
    return executable;
}

/* ---- made ---- */

Test(graph_objects, an_executable_has_none_and_its_graph_has_it_again)
{
    unsigned graph = start_with_graph();
    struct fake_executable *executable = executable_of(graph);
    cr_assert_null(executable->object);
    cr_assert_not_null(graphs[graph - 1].object);
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_executable(executable, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, what_graphs_keep_goes_with_the_last_executable)
{
    unsigned graph = start_with_graph();
    struct fake_executable *first = executable_of(graph), *second = executable_of(graph);
    destroy_executable(first, true);
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_executable(second, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, or_with_the_graph)
{
    unsigned graph = start_with_graph();
    destroy_executable(executable_of(graph), true);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, a_graph_of_which_none_could_be_made_keeps_it_as_before)
{
    unsigned graph = start_with_graph();
    make_of_graph(&executables[0], graph, false);
    cr_assert_eq(graphs[graph - 1].object->references, 2, "the graph's, and the pool's for it");
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* Launches may go on when the executable is gone. */
Test(graph_objects, it_is_used_again_only_behind_a_fence_of_later)
{
    start_with_budget(64 * MIB);
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture_of(graph);
    struct fake_executable *executable = executable_of(graph);
    destroy_known_graph(graph, true);
    synchronise();
    fake_launch(context);
    destroy_executable(executable, true);
    cr_assert_eq(pending_bytes(), MIB);
    let_time_pass();
    cr_assert_neq(allocate(MIB), block);
    fake_finish(context);
    let_time_pass();
    cr_assert_eq(allocate(MIB), block);
}

/* ---- updated ---- */

Test(graph_objects, an_update_gives_up_what_was_kept_before_and_keeps_the_new)
{
    struct fake_executable *executable = start_with_executable();
    unsigned other = graph_with(2 * MIB);
    make_of_graph(executable, other, true);
    cr_assert_null(executable->object);
    cr_assert_eq(kept_for_graphs(), 2 * MIB);
    destroy_known_graph(other, true);
    cr_assert_eq(kept_for_graphs(), 2 * MIB);
    destroy_executable(executable, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, so_does_one_by_a_graph_that_keeps_nothing)
{
    struct fake_executable *executable = start_with_executable();
    unsigned other = begin_graph(&stream);
    end_capture_of(other);
    make_of_graph(executable, other, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, an_update_that_fails_leaves_all_as_it_was)
{
    struct fake_executable *executable = start_with_executable();
    unsigned other = graph_with(2 * MIB);
    make_of_graph(executable, other, false);
    cr_assert_not_null(graphs[other - 1].object);
    cr_assert_eq(kept_for_graphs(), 3 * MIB);
    destroy_known_graph(other, true);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_executable(executable, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* ---- ends that the driver refuses ---- */

Test(graph_objects, an_executable_that_is_not_destroyed_keeps_it)
{
    struct fake_executable *executable = start_with_executable();
    destroy_executable(executable, false);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_executable(executable, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, a_graph_that_is_not_destroyed_is_known_still)
{
    unsigned graph = start_with_graph();
    destroy_known_graph(graph, false);
    cr_assert_null(executable_of(graph)->object);
}

/* ---- graphs that are not known ---- */

static void expect_the_drivers(unsigned graph)
{
    struct fake_executable *executable = executable_of(graph);
    cr_assert_not_null(executable->object);
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_executable(executable, true);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_objects, without_references_of_the_pools_executables_have_it)
{
    driver->cuUserObjectRetain = NULL;
    expect_the_drivers(start_with_graph());
}

/* Its handle may end with the other graph's, unseen. */
Test(graph_objects, those_of_a_graph_that_becomes_part_of_another_have_it)
{
    unsigned graph = start_with_graph();
    graph_objects_share(pool, (CUgraph)(uintptr_t)graph);
    cr_assert_eq(graphs[graph - 1].object->references, 1);
    expect_the_drivers(graph);
}

/* ... or when the capture fails, which takes the graph along. */
Test(graph_objects, those_of_a_graph_that_is_captured_into_have_it)
{
    start();
    unsigned graph = begin_graph(&stream);
    graph_objects_share(pool, (CUgraph)(uintptr_t)graph);
    release(allocate(MIB));
    end_capture_of(graph);
    cr_assert_eq(graphs[graph - 1].object->references, 1);
    expect_the_drivers(graph);
}

/* A profiler's, for instance, called back out of a call of the pool's. */
Test(graph_objects, what_is_made_inside_of_a_call_of_the_pools_has_it)
{
    unsigned graph = start_with_graph();
    enter_driver();
    struct fake_executable *executable = executable_of(graph);
    leave_driver();
    cr_assert_not_null(executable->object);
}

/* ---- behind the pool's back ---- */

/* The object is there as long as the pool may ask for it. */
Test(graph_objects, a_graph_that_was_destroyed_unseen_keeps_its_object_until_its_handle_comes_back)
{
    unsigned graph = start_with_graph();
    release_of(&graphs[graph - 1].object);
    struct fake_executable *executable = executable_of(graph);
    cr_assert_null(executable->object);
    cr_assert_null(graphs[graph - 1].object);
    destroy_executable(executable, true);
    cr_assert_eq(kept_for_graphs(), MIB);
    begin_capture(graphs[graph - 1].stream);
    end_capture_of(graph);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* Copies that the program makes of the graph from now on have none: it is kept for good. */
Test(graph_objects, an_object_that_the_graph_does_not_take_back_stays_for_good)
{
    unsigned graph = start_with_graph();
    retain_result = CUDA_ERROR_OUT_OF_MEMORY;
    struct fake_executable *executable = executable_of(graph);
    retain_result = CUDA_SUCCESS;
    destroy_executable(executable, true);
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), MIB);
}

/* ---- how the driver is asked ---- */

static unsigned strictly; /* calls in a mode that captures mind */

static void look_at_mode(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    strictly += mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

static CUresult watched_retain(CUuserObject object, unsigned int count)
{
    look_at_mode();
    return user_object_retain(object, count);
}

static CUresult watched_release(CUuserObject object, unsigned int count)
{
    look_at_mode();
    return user_object_release(object, count);
}

static CUresult watched_graph_retain(CUgraph graph, CUuserObject object, unsigned int count,
                                     unsigned int flags)
{
    look_at_mode();
    return graph_retain_user_object(graph, object, count, flags);
}

static CUresult watched_graph_release(CUgraph graph, CUuserObject object, unsigned int count)
{
    look_at_mode();
    return graph_release_user_object(graph, object, count);
}

Test(graph_objects, no_capture_minds)
{
    unsigned graph = start_with_graph();
    driver->cuUserObjectRetain = watched_retain;
    driver->cuUserObjectRelease = watched_release;
    driver->cuGraphRetainUserObject = watched_graph_retain;
    driver->cuGraphReleaseUserObject = watched_graph_release;
    strictly = 0;
    struct fake_executable *executable = executable_of(graph);
    make_of_graph(executable, graph_with(MIB), true);
    graph_objects_share(pool, (CUgraph)(uintptr_t)graph);
    struct graph_ending ending =
        graph_executable_ending_begin(pool, (CUgraphExec)(void *)executable);
    graph_ending_end(pool, &ending, true);
    cr_assert_eq(strictly, 0);
}

/* ---- executables that the driver alone knows to keep something ---- */

static void run_destructor_late(void *object)
{
    struct timespec nap = {0, 20000000};
    nanosleep(&nap, NULL);
    user_object_release(object, 1);
}

/* It has a reference of the driver's, as one of a clone has. A thread of the driver's gives that
 * up, a little after the call that destroys it. */
static struct fake_executable *start_with_unknown(void)
{
    static struct fake_executable unknown;
    driver->cuUserObjectRetain = NULL;
    start();
    stop_looking_at_locks();
    return &unknown;
}

static bool has_what_the_destructor_gives_up(struct fake_executable *unknown, uint64_t *took)
{
    struct errand errand;
    CUdeviceptr block = 0;
    unsigned graph = graph_with(40 * GIB);
    uint64_t began = monotonic_now();
    destroy_executable(unknown, true);
    send(&errand, run_destructor_late, graphs[graph - 1].object);
    CUresult result = pool_allocate(pool, &block, 30 * GIB);
    *took = monotonic_now() - began;
    wait_for(&errand);
    if (result == CUDA_SUCCESS)
        release(block);
    return result == CUDA_SUCCESS;
}

Test(graph_objects, who_is_out_of_memory_waits_for_the_destructor)
{
    struct fake_executable *unknown = start_with_unknown();
    unsigned tries = 0;
    uint64_t took;
    bool had;
    do
        had = has_what_the_destructor_gives_up(unknown, &took);
    while (is_tried_again(had, took, &tries));
    cr_assert(had);
}

Test(graph_objects, but_not_for_long)
{
    struct fake_executable *unknown = start_with_unknown();
    graph_with(40 * GIB);
    destroy_executable(unknown, true);
    uint64_t began = monotonic_now();
    cr_assert_eq(try_to_allocate(30 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_lt(monotonic_now() - began, UINT64_C(1000) * 1000 * 1000);
}
