/*
 * Memory that captures allocate and graphs keep: who owns what, and until when.
 */
#include "graph_fixture.h"

#include "core/contexts/host_work.h"
#include "core/device_memory/driver_free.h"

#include "core/base/clock.h"
#include "core/contexts/epoch.h"
#include "core/contexts/housekeeping.h"
#include "core/housekeeper/own_thread.h"

TestSuite(graph_memory, .init = set_up_graphs, .fini = tear_down_graphs, .timeout = 20);

static CUstream stream;

/* ---- while a capture goes on ---- */

Test(graph_memory, allocations_and_frees_are_answered_in_relaxed_mode)
{
    start();
    begin_graph(&stream);
    fake_trace();
    CUdeviceptr block = allocate(MIB);
    release(block);
    cr_assert_str_eq(fake_trace(), "alloc info");
    cr_assert_not(fake_capture_was_invalidated());
    cr_assert(fake_is_allocated(block));
    end_capture(stream);
}

Test(graph_memory, without_the_setting_they_are_the_drivers)
{
    settings.captures.allocate = false;
    start();
    CUdeviceptr before = allocate(MIB);
    begin_graph(&stream);
    cr_assert_null(graphs[0].object);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, before), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream);
    cr_assert_not(told().told);
}

static void expect_the_driver(void)
{
    start();
    CUdeviceptr before = allocate(MIB);
    begin_graph(&stream);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, before), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(told().without_owner, 1);
    cr_assert_eq(told().captures, 0);
    end_capture(stream);
    release(before);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, a_capture_whose_graph_takes_no_object_is_the_drivers)
{
    retain_result = CUDA_ERROR_INVALID_VALUE;
    expect_the_driver();
}

Test(graph_memory, so_is_one_where_no_object_can_be_made)
{
    create_result = CUDA_ERROR_OUT_OF_MEMORY;
    expect_the_driver();
}

Test(graph_memory, so_is_one_that_tells_no_graph)
{
    info_result = CUDA_ERROR_INVALID_VALUE;
    expect_the_driver();
}

Test(graph_memory, so_is_one_on_a_driver_without_user_objects)
{
    driver->cuUserObjectCreate = NULL;
    expect_the_driver();
}

Test(graph_memory, so_is_one_on_a_driver_that_tells_of_no_graph)
{
    driver->cuStreamGetCaptureInfo_v2 = NULL;
    expect_the_driver();
}

static CUresult get_capture_info_with_edges(CUstream of, CUstreamCaptureStatus *status,
                                            cuuint64_t *id, CUgraph *graph,
                                            const CUgraphNode **nodes,
                                            const CUgraphEdgeData **edges, size_t *count)
{
    cr_assert(nodes && count);
    if (!edges)
        return CUDA_ERROR_INVALID_VALUE;
    return get_capture_info(of, status, id, graph, nodes, count);
}

static CUresult fail_for_edges(CUstream of, CUstreamCaptureStatus *status, cuuint64_t *id,
                               CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    (void)of, (void)status, (void)id, (void)graph, (void)nodes, (void)count;
    return CUDA_ERROR_INVALID_VALUE;
}

/* It is asked for the edges, and nothing that would fail for their sake. */
/* The driver launches graphs with objects more slowly. */
Test(graph_memory, a_graph_whose_capture_took_nothing_has_no_object)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture_of(graph);
    cr_assert_not_null(graphs[graph - 1].object, "it owns what was allocated meanwhile");
    release(block);
    graph = begin_graph(&stream);
    end_capture_of(graph);
    cr_assert_null(graphs[graph - 1].object);
    cr_assert(told().captures == 2 && told().failed == 0 && told().owners == 1);
}

Test(graph_memory, a_driver_that_tells_of_edges_is_asked_for_them)
{
    driver->cuStreamGetCaptureInfo_v2 = fail_for_edges;
    driver->cuStreamGetCaptureInfo_v3 = get_capture_info_with_edges;
    start();
    begin_graph(&stream);
    release(allocate(MIB));
    cr_assert_eq(kept_for_graphs(), MIB);
    end_capture(stream);
}

Test(graph_memory, one_capture_without_an_owner_is_enough)
{
    CUstream other;
    start();
    CUdeviceptr before = allocate(MIB);
    begin_graph(&stream);
    retain_result = CUDA_ERROR_INVALID_VALUE;
    begin_graph(&other);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, before), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(other);
    allocate(MIB);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(stream);
}

/* It minds nothing any more, and leaves no graph: it owns nothing. */
Test(graph_memory, a_capture_that_is_spoilt_as_it_begins_spoils_no_other)
{
    CUstream spoilt;
    start();
    CUdeviceptr before = allocate(MIB);
    begin_graph(&stream);
    info_status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    begin_graph(&spoilt);
    CUdeviceptr inside = allocate(MIB);
    release(before);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture_of(1);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(1);
    release(inside);
    cr_assert_eq(kept_for_graphs(), 0);
    end_capture(spoilt);
    cr_assert_eq(told().without_owner, 0);
    cr_assert_eq(told().failed, 1);
    cr_assert_eq(told().owners, 0);
}

static CUresult tell_of_no_context(CUcontext *unused)
{
    (void)unused;
    return CUDA_ERROR_NOT_PERMITTED;
}

static bool minded; /* some call was made in a mode that captures mind */

static void look_at_mode(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    minded = minded || mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

static CUresult refuse_free(CUdeviceptr unused)
{
    (void)unused;
    look_at_mode();
    return CUDA_ERROR_NOT_PERMITTED;
}

static CUresult refuse_allocation(CUdeviceptr *unused, size_t bytes)
{
    (void)unused, (void)bytes;
    look_at_mode();
    return CUDA_ERROR_NOT_PERMITTED;
}

static CUresult refuse_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                             unsigned int element_bytes)
{
    (void)address, (void)pitch, (void)width, (void)height, (void)element_bytes;
    look_at_mode();
    return CUDA_ERROR_INVALID_VALUE;
}

Test(graph_memory, a_pitch_that_makes_no_sense_spoils_no_capture)
{
    CUdeviceptr block;
    size_t pitch;
    start();
    begin_graph(&stream);
    minded = false;
    cr_assert_eq(pool_allocate_pitch(pool, refuse_pitch, &block, &pitch, 0, 4, 4),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate_pitch(pool, refuse_pitch, &block, &pitch, 64, 0, 4),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate_pitch(pool, refuse_pitch, &block, NULL, 64, 4, 4),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_not(minded);
}

/* In a host function, for instance, the driver frees and gives nothing, and says so. */
Test(graph_memory, where_no_context_is_current_no_capture_minds)
{
    start();
    CUdeviceptr block = allocate(MIB);
    begin_graph(&stream);
    struct driver before = *driver;
    driver->cuCtxGetCurrent = tell_of_no_context;
    driver->cuMemFree_v2 = refuse_free;
    driver->cuMemAlloc_v2 = refuse_allocation;
    minded = false;
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_NOT_PERMITTED);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_NOT_PERMITTED);
    cr_assert_not(minded);
    *driver = before;
    release(block);
    end_capture(stream);
    cr_assert_eq(kept_for_graphs(), MIB);
}

Test(graph_memory, the_report_names_the_capture_to_which_most_belonged)
{
    start();
    uint64_t before = monotonic_now();
    for (unsigned i = 1; i <= 3; i++) {
        begin_graph(&stream);
        CUdeviceptr block = allocate(i == 2 ? 4 * MIB : MIB);
        release(block);
        end_capture(stream);
    }
    cr_assert_eq(told().most_owned_capture, 2);
    cr_assert_eq(told().most_owned_bytes, 4 * MIB);
    cr_assert_neq(told().most_owned_stream, 0);
    cr_assert_leq(told().most_owned_nanoseconds, monotonic_now());
    cr_assert_gt(monotonic_now(), before);
    for (unsigned i = 1; i <= 3; i++)
        destroy_graph(i);
    pool_note_graph_launch(pool, false);
    pool_note_graph_launch(pool, false);
    pool_note_graph_launch(pool, true);
    cr_assert_eq(told().most_owned_bytes, 4 * MIB);
    cr_assert_eq(told().launches, 2);
    cr_assert_eq(told().uploads, 1);
    cr_assert_eq(told().owners, 0);
}

Test(graph_memory, a_free_twice_is_refused)
{
    start();
    CUdeviceptr before = allocate(MIB);
    begin_graph(&stream);
    CUdeviceptr inside = allocate(MIB);
    release(before);
    release(inside);
    cr_assert_eq(pool_free(pool, before), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, inside), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(kept_for_graphs(), 2 * MIB);
    end_capture(stream);
    cr_assert_eq(pool_free(pool, before), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, inside), CUDA_ERROR_INVALID_VALUE);
}

Test(graph_memory, nothing_is_fenced_or_asked_about)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(64 * MIB);
    begin_graph(&stream);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "");
    end_capture(stream);
}

Test(graph_memory, a_capture_is_given_nothing_that_was_freed_before)
{
    start();
    CUdeviceptr clean = allocate(MIB), freed = allocate(MIB);
    release(clean);
    synchronise();
    begin_graph(&stream);
    release(freed);
    CUdeviceptr first = allocate(MIB);
    release(first);
    CUdeviceptr second = allocate(MIB);
    cr_assert_neq(first, clean);
    cr_assert_neq(first, freed);
    cr_assert_neq(second, freed);
    cr_assert_neq(second, first);
    end_capture(stream);
}

Test(graph_memory, what_the_driver_refuses_is_refused)
{
    start();
    begin_graph(&stream);
    cr_assert_eq(try_to_allocate(128 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(try_to_allocate(0), CUDA_ERROR_INVALID_VALUE);
    end_capture(stream);
}

Test(graph_memory, rows_are_owned_too)
{
    start();
    size_t pitch = 0;
    CUdeviceptr rows = 0;
    begin_graph(&stream);
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &rows, &pitch, 1000, 10, 4),
                 CUDA_SUCCESS);
    cr_assert_not(fake_capture_was_invalidated());
    cr_assert_eq(pitch, 1024);
    end_capture(stream);
    release(rows);
    cr_assert_eq(kept_for_graphs(), 10 * 1024);
    destroy_graph(1);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, another_thread_allocates_and_frees_too)
{
    static size_t bytes = MIB;
    start();
    begin_graph(&stream);
    in_another_thread(allocate_and_free_one, &bytes);
    cr_assert_not(fake_capture_was_invalidated());
    cr_assert_eq(kept_for_graphs(), MIB);
    cr_assert_eq(told().bystander_bytes, MIB);
    release(allocate(2 * MIB));
    cr_assert_eq(told().bystander_bytes, MIB);
    end_capture(stream);
}

static void allocate_as_a_capture_begins(void *unused)
{
    (void)unused;
    fake_during(FAKE_MEM_ALLOC, NULL, NULL);
    begin_graph(&stream);
}

/* Its driver call is made after the capture has begun, though it came before; and what comes of it
 * is the capture's, too. */
Test(graph_memory, a_miss_that_is_on_its_way_as_a_capture_begins_spares_it)
{
    start();
    stop_looking_at_locks();
    fake_during(FAKE_MEM_ALLOC, allocate_as_a_capture_begins, NULL);
    CUdeviceptr block = allocate(MIB);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(stream);
    release(block);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(1);
    cr_assert_eq(kept_for_graphs(), 0);
}

static void ask_as_a_capture_begins(void *unused)
{
    (void)unused;
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    begin_graph(&stream);
    fake_finish(context);
}

/* In the thread's own cache, where nothing but the fence is asked about. */
Test(graph_memory, so_is_a_block_whose_fence_is_over_as_a_capture_begins)
{
    start_with_budget(64 * MIB);
    stop_looking_at_locks();
    for (unsigned i = 0; i < 8; i++)
        release(allocate(16 * MIB));
    CUdeviceptr block = allocate(16 * MIB);
    fake_launch(context);
    release(block);
    let_time_pass();
    fake_during(FAKE_EVENT_QUERY, ask_as_a_capture_begins, NULL);
    cr_assert_eq(allocate(16 * MIB), block);
    cr_assert(captures_under_way(&pool->captures));
    end_capture(stream);
    release(block);
    cr_assert_eq(kept_for_graphs(), 16 * MIB);
    destroy_graph(1);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* ---- pointers ---- */

Test(graph_memory, a_live_block_is_told_as_it_was_asked_for_and_a_freed_one_is_unknown)
{
    start();
    begin_graph(&stream);
    CUdeviceptr block = allocate(1000);
    struct pointer_answer answer = pool_ask_pointer(pool, block + 10);
    cr_assert_eq(answer.kind, POINTER_LIVE);
    cr_assert_eq(answer.base, block);
    cr_assert_eq(answer.bytes, 1000);
    release(block);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_HIDDEN);
    end_capture(stream);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_HIDDEN);
}

Test(graph_memory, what_is_kept_is_not_free)
{
    size_t left = 0, total = 0;
    start();
    CUdeviceptr block = allocate(4 * MIB);
    begin_graph(&stream);
    release(block);
    end_capture(stream);
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    cr_assert_eq(left, DEVICE_BYTES - 4 * MIB);
    user_object_release((CUuserObject)(void *)graphs[0].object, 1);
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    cr_assert_eq(left, DEVICE_BYTES);
}

/* ---- until when ---- */

Test(graph_memory, what_was_freed_in_a_capture_is_kept_until_its_graph_is_gone)
{
    start();
    CUdeviceptr before = allocate(MIB);
    unsigned graph = begin_graph(&stream);
    CUdeviceptr inside = allocate(MIB);
    release(before);
    release(inside);
    end_capture(stream);
    synchronise();
    CUdeviceptr third = allocate(MIB), fourth = allocate(MIB);
    cr_assert(third != before && third != inside && fourth != before && fourth != inside);
    cr_assert_eq(kept_for_graphs(), 2 * MIB);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
    synchronise();
    CUdeviceptr fifth = allocate(MIB), sixth = allocate(MIB);
    cr_assert(fifth == before || fifth == inside);
    cr_assert(sixth == before || sixth == inside);
}

Test(graph_memory, what_a_capture_allocated_is_kept_whenever_it_is_freed)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    release(block);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    synchronise();
    cr_assert_neq(allocate(MIB), block);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(graph);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

Test(graph_memory, a_free_in_a_streams_order_is_kept_too)
{
    start();
    begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    CUstream other = fake_stream();
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, other), CUDA_SUCCESS);
    cr_assert_eq(kept_for_graphs(), MIB);
    cr_assert(fake_is_allocated(block));
    destroy_graph(1);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, a_free_that_is_captured_is_the_drivers)
{
    start();
    begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(reserved_bytes(), 0);
    end_capture(stream);
    destroy_graph(1);
}

Test(graph_memory, one_that_the_driver_refuses_leaves_the_block_to_its_graphs)
{
    start();
    begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream),
                 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream);
    release(block);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(1);
}

Test(graph_memory, an_executable_keeps_it_as_well)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(stream);
    struct fake_object *executable = instantiate(graph);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), MIB);
    synchronise();
    cr_assert_neq(allocate(MIB), block);
    let_object_go(executable);
    cr_assert_eq(kept_for_graphs(), 0);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

Test(graph_memory, every_capture_under_way_owns_it)
{
    CUstream other;
    start();
    unsigned first = begin_graph(&stream), second = begin_graph(&other);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(other);
    end_capture(stream);
    destroy_graph(second);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(first);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, a_capture_owns_what_is_freed_in_it_and_belonged_to_another)
{
    CUstream other;
    start();
    unsigned first = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    unsigned second = begin_graph(&other);
    release(block);
    end_capture(other);
    destroy_graph(first);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(second);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, a_capture_that_is_over_owns_nothing_more)
{
    start();
    CUdeviceptr block = allocate(MIB);
    unsigned graph = begin_graph(&stream);
    end_capture(stream);
    release(block);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(pending_bytes() + clean_bytes(), MIB);
    destroy_graph(graph);
}

Test(graph_memory, a_block_that_outlives_its_graphs_is_like_any_other)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    destroy_graph(graph);
    cr_assert_eq(live_bytes(), MIB);
    release(block);
    cr_assert_eq(kept_for_graphs(), 0);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

/* Graphs that are gone may have been launched just before. */
Test(graph_memory, it_is_used_again_only_behind_a_fence_of_later)
{
    start_with_budget(64 * MIB);
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(stream);
    synchronise();
    fake_launch(context);
    destroy_graph(graph);
    cr_assert_eq(pending_bytes(), MIB);
    let_time_pass();
    cr_assert_neq(allocate(MIB), block);
    fake_finish(context);
    let_time_pass();
    cr_assert_eq(allocate(MIB), block);
}

Test(graph_memory, it_has_a_fence_at_once_where_there_can_be_one)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(stream);
    fake_trace();
    destroy_graph(graph);
    cr_assert_str_eq(fake_trace(), "create record");
}

Test(graph_memory, a_thread_that_records_one_is_not_waited_for)
{
    start();
    unsigned graph = begin_graph(&stream);
    release(allocate(MIB));
    end_capture(stream);
    atomic_store(&context_record()->epochs.recording, true);
    fake_trace();
    uint64_t began = monotonic_now();
    destroy_graph(graph);
    cr_assert_lt(monotonic_now() - began, LAST_RESORT_NANOSECONDS / 2);
    cr_assert_str_eq(fake_trace(), "");
    atomic_store(&context_record()->epochs.recording, false);
    pool_graphs_may_be_gone(pool);
    cr_assert_str_eq(fake_trace(), "create record");
}

Test(graph_memory, where_there_can_be_none_nothing_is_waited_for)
{
    driver->cuCtxRecordEvent = NULL;
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(stream);
    fake_launch(context);
    fake_trace();
    destroy_graph(graph);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(pending_bytes(), MIB);
    cr_assert_neq(allocate(MIB), block);
}

Test(graph_memory, it_waits_for_the_end_of_the_next_capture_for_one)
{
    CUstream other;
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(stream);
    begin_graph(&other);
    fake_trace();
    destroy_graph(graph);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(pending_bytes(), MIB);
    end_capture(other);
    pool_graphs_may_be_gone(pool);
    cr_assert_str_eq(fake_trace(), "create record");
    cr_assert_not(fake_capture_was_invalidated());
}

/* ---- captures that fail ---- */

Test(graph_memory, a_capture_that_fails_gives_everything_back)
{
    start();
    CUdeviceptr before = allocate(MIB);
    unsigned graph = begin_graph(&stream);
    CUdeviceptr inside = allocate(MIB), held = allocate(MIB);
    release(before);
    release(inside);
    fail_capture(graph);
    cr_assert_eq(told().failed, 1);
    cr_assert_eq(told().owners, 0);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(live_bytes(), MIB);
    release(held);
    synchronise();
    cr_assert_eq(clean_bytes(), 3 * MIB);
}

/* Another thread takes the graph up before the end of the capture is known. */
Test(graph_memory, a_graph_that_goes_before_the_end_is_known_waits_for_that)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    let_object_go(graphs[graph - 1].object);
    cr_assert_eq(kept_for_graphs(), MIB);
    allocate(MIB);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(stream);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(told().failed, 1);
}

Test(graph_memory, a_destroyed_stream_takes_its_capture_with_it)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    pool_captures_lock(pool);
    driver->cuStreamDestroy_v2(stream);
    user_object_release((CUuserObject)(void *)graphs[graph - 1].object, 1);
    pool_capture_stream_destroyed(pool, stream);
    pool_captures_unlock(pool);
    pool_graphs_may_be_gone(pool);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(told().failed, 1);
}

/* ---- where it is taken up ---- */

static void let_go_behind_its_back(unsigned graph)
{
    user_object_release((CUuserObject)(void *)graphs[graph - 1].object, 1);
    cr_assert_eq(kept_for_graphs(), MIB);
}

static unsigned keep_a_block(void)
{
    start();
    unsigned graph = begin_graph(&stream);
    release(allocate(MIB));
    end_capture(stream);
    return graph;
}

Test(graph_memory, a_slow_allocation_takes_it_up)
{
    let_go_behind_its_back(keep_a_block());
    allocate(3 * MIB);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, a_synchronise_takes_it_up_and_cleans_it)
{
    let_go_behind_its_back(keep_a_block());
    synchronise();
    cr_assert_eq(clean_bytes(), MIB);
}

Test(graph_memory, a_trim_takes_it_up)
{
    let_go_behind_its_back(keep_a_block());
    pool_trim(pool);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, the_housekeeper_takes_it_up)
{
    let_go_behind_its_back(keep_a_block());
    graph_memory.release_idle(pool, device(), 0);
    cr_assert_eq(kept_for_graphs(), 0);
}

static unsigned housekeepers;

static int count_a_thread(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument)
{
    (void)thread, (void)attributes, (void)body, (void)argument;
    housekeepers++;
    return 0;
}

static unsigned keep_a_block_without_a_housekeeper(void)
{
    settings.neighbours.enabled = true;
    thread_functions.create = count_a_thread;
    thread_functions.set_stack_size = pthread_attr_setstacksize;
    housekeepers = 0;
    unsigned graph = keep_a_block();
    atomic_store(&pool->housekeeping.phase, HOUSEKEEPING_WATCHED);
    return graph;
}

Test(graph_memory, what_becomes_free_makes_the_housekeeper_again)
{
    unsigned graph = keep_a_block_without_a_housekeeper();
    cr_assert_eq(housekeepers, 0);
    destroy_graph(graph);
    cr_assert_eq(pending_bytes(), MIB);
    cr_assert_eq(housekeepers, 1);
    cr_assert_eq(atomic_load(&pool->housekeeping.phase), HOUSEKEEPING_MADE);
}

Test(graph_memory, the_housekeeper_stays_while_graphs_keep_anything)
{
    unsigned graph = keep_a_block_without_a_housekeeper();
    cr_assert(graph_memory.watch(pool));
    let_go_behind_its_back(graph);
    cr_assert(graph_memory.watch(pool));
    graph_memory.release_idle(pool, device(), 0);
    cr_assert_not(graph_memory.watch(pool));
}

static void let_the_graph_go(void *graph)
{
    fake_during(FAKE_MEM_ALLOC, NULL, NULL);
    user_object_release((CUuserObject)(void *)graphs[*(unsigned *)graph - 1].object, 1);
}

Test(graph_memory, who_is_out_of_memory_takes_it_up)
{
    start();
    stop_looking_at_locks();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr large = allocate(40 * GIB);
    release(large);
    end_capture(stream);
    cr_assert_eq(try_to_allocate(30 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    fake_during(FAKE_MEM_ALLOC, let_the_graph_go, &graph);
    allocate(30 * GIB);
}

/* ---- contexts ---- */

Test(graph_memory, a_context_takes_what_is_kept_with_it)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr kept = allocate(MIB), held = allocate(MIB);
    release(kept);
    end_capture(stream);
    end_context(context);
    cr_assert_eq(kept_for_graphs(), 0);
    context = another_context(0);
    CUdeviceptr next = allocate(MIB);
    cr_assert(next != 0 && held != 0);
    destroy_graph(graph);
    cr_assert_eq(live_bytes(), MIB);
    cr_assert_eq(pending_bytes(), 0);
}

/* The same record, perhaps, and the same address: but another block. */
Test(graph_memory, a_graph_of_a_dead_context_lets_nothing_of_the_next_one_go)
{
    CUstream other;
    start();
    unsigned first = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture(stream);
    end_context(context);
    context = another_context(0);
    unsigned second = begin_graph(&other);
    fake_next_address(block);
    cr_assert_eq(allocate(MIB), block);
    release(block);
    end_capture(other);
    destroy_graph(first);
    cr_assert_eq(kept_for_graphs(), MIB);
    cr_assert_eq(pending_bytes(), 0);
    destroy_graph(second);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(pending_bytes(), MIB);
}

Test(graph_memory, in_an_unusable_context_it_is_kept_as_well)
{
    start();
    begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    context_disable(context_record());
    release(block);
    cr_assert(fake_is_allocated(block));
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(1);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(graph_memory, where_the_pool_steps_aside_everywhere_it_is_kept_as_well)
{
    start();
    begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    context_disable_all(pool);
    release(block);
    cr_assert(fake_is_allocated(block));
    destroy_graph(1);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* No graph owns it yet, and none that the pool knows of will. */
Test(graph_memory, in_an_unusable_context_the_driver_frees_what_no_graph_owns)
{
    start();
    CUdeviceptr block = allocate(MIB);
    begin_graph(&stream);
    context_disable(context_record());
    release(block);
    cr_assert_not(fake_is_allocated(block));
    end_capture(stream);
}

/* ---- others ---- */

Test(graph_memory, memory_that_others_reach_is_not_reused)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    release(block);
    end_capture(stream);
    destroy_graph(graph);
    synchronise();
    cr_assert_neq(allocate(MIB), block);
}

Test(graph_memory, an_address_that_comes_again_is_another_block)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    fake_vanish(block);
    fake_next_address(block);
    cr_assert_eq(allocate(MIB), block);
    release(block);
    cr_assert_eq(kept_for_graphs(), 0);
    destroy_graph(graph);
    cr_assert_eq(pending_bytes() + clean_bytes(), MIB);
}

Test(graph_memory, the_check_sees_a_block_that_could_be_handed_out)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    struct graph_memory *memory = graph_memory_of(pool);
    struct graph_block *owned = graph_blocks_find(&memory->blocks, block);
    cr_assert(heap_unpark(pool, owned->block, block));
    end_capture(stream);
    cr_assert_eq(told().astray, 1);
    counter_set(&memory->counters->astray, 0);
    destroy_graph(graph);
}

Test(graph_memory, many_blocks_are_kept_and_come_back)
{
    static CUdeviceptr blocks[1000];
    start();
    unsigned graph = begin_graph(&stream);
    for (unsigned i = 0; i < 1000; i++)
        blocks[i] = allocate(4 * KIB);
    for (unsigned i = 0; i < 1000; i += 2)
        release(blocks[i]);
    end_capture(stream);
    for (unsigned i = 1; i < 1000; i += 2)
        release(blocks[i]);
    cr_assert_eq(told().kept_blocks, 1000);
    cr_assert_eq(told().peak_kept_bytes, 1000 * 4 * KIB);
    destroy_graph(graph);
    cr_assert_eq(told().kept_blocks, 0);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(pending_bytes() + clean_bytes(), 1000 * 4 * KIB);
}

/* Another thread takes the graph up while the begin has not come to its end. */
Test(graph_memory, a_graph_that_goes_before_its_capture_has_begun_is_waited_for)
{
    start();
    goes_at_once = true;
    unsigned graph = begin_graph(&stream);
    cr_assert_eq(told().captures, 1);
    release(allocate(MIB));
    pool_graphs_may_be_gone(pool);
    cr_assert_eq(kept_for_graphs(), MIB);
    fake_capture_end(stream);
    tell_of_an_end(stream);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(told().failed, 1);
    cr_assert_eq(graph, 1);
}

/* ---- threads ---- */

static void allocate_and_free_many(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < 2000; i++) {
        CUdeviceptr address = 0;
        if (pool_allocate(pool, &address, MIB) == CUDA_SUCCESS)
            pool_free(pool, address);
    }
}

Test(graph_memory, threads_allocate_beside_captures_that_come_and_go)
{
    struct errand errands[3];
    start();
    stop_looking_at_locks();
    for (unsigned i = 0; i < 3; i++)
        send(&errands[i], allocate_and_free_many, NULL);
    for (unsigned i = 0; i < GRAPHS; i++) {
        unsigned graph = begin_graph(&stream);
        CUdeviceptr block = allocate(MIB);
        release(block);
        end_capture(stream);
        destroy_graph(graph);
    }
    for (unsigned i = 0; i < 3; i++)
        wait_for(&errands[i]);
    pool_graphs_may_be_gone(pool);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(told().owners, 0);
    cr_assert_eq(told().captures, GRAPHS);
    cr_assert_not(fake_capture_was_invalidated());
}

static _Atomic bool over;
static _Atomic uint64_t found_unowned;

static void look_for_unowned(void *unused)
{
    (void)unused;
    while (!over)
        found_unowned += !captures_are_all_owned(&pool->captures);
}

/* Who sees a capture and not its owner asks the driver in its own mode, and spoils the capture. */
Test(graph_memory, captures_that_come_and_go_are_never_without_owners)
{
    struct errand errand;
    CUstream others[2];
    over = false;
    found_unowned = 0;
    start();
    stop_looking_at_locks();
    begin_graph(&others[0]);
    info_status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    begin_graph(&others[1]);
    end_capture(others[1]);
    send(&errand, look_for_unowned, NULL);
    /* Long enough for the two threads to meet on a machine that is busy. */
    for (uint64_t ends = monotonic_now() + 2 * UINT64_C(1000000000); monotonic_now() < ends;) {
        begin_capture(others[1]);
        end_capture(others[1]);
    }
    over = true;
    wait_for(&errand);
    end_capture(others[0]);
    cr_assert_eq(found_unowned, 0);
}

/* ---- graphs that come and go while others are captured ---- */

/* What a graph has kept goes while another capture is under way: no fence can stand for it. */
static void let_go_beside_a_capture(size_t bytes)
{
    CUstream other;
    unsigned graph = begin_graph(&stream);
    release(allocate(bytes));
    end_capture(stream);
    begin_graph(&other);
    destroy_graph(graph);
    cr_assert_eq(pending_bytes(), bytes);
}

Test(graph_memory, who_is_out_of_memory_beside_a_capture_has_what_is_pending)
{
    start();
    stop_looking_at_locks();
    let_go_beside_a_capture(40 * GIB);
    allocate(30 * GIB);
    cr_assert_eq(pending_bytes(), 0);
    cr_assert_not(fake_capture_was_invalidated());
}

Test(graph_memory, but_waits_for_nothing_that_the_host_ends)
{
    start();
    stop_looking_at_locks();
    struct host_submission submission = host_work_begin(pool, NULL);
    let_go_beside_a_capture(40 * GIB);
    cr_assert_eq(try_to_allocate(30 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    host_work_end(&submission);
}

static atomic_bool is_submitting;

static void submit(void *unused)
{
    struct host_submission submission = host_work_begin(pool, NULL);
    (void)unused;
    atomic_store(&is_submitting, true);
    host_work_end(&submission);
}

static void submit_in_another_thread(void *errand)
{
    struct timespec nap = {.tv_nsec = 50 * 1000 * 1000};
    send(errand, submit, NULL);
    nanosleep(&nap, NULL);
    cr_assert_not(is_submitting, "the driver's free would wait for it");
}

Test(graph_memory, and_none_such_is_submitted_meanwhile)
{
    struct errand errand;
    start();
    stop_looking_at_locks();
    let_go_beside_a_capture(40 * GIB);
    fake_during(FAKE_MEM_FREE, submit_in_another_thread, &errand);
    allocate(30 * GIB);
    fake_during(FAKE_MEM_FREE, NULL, NULL);
    wait_for(&errand);
    cr_assert(is_submitting);
}

Test(graph_memory, nor_where_a_capture_would_mind)
{
    CUstream other;
    start();
    stop_looking_at_locks();
    let_go_beside_a_capture(40 * GIB);
    retain_result = CUDA_ERROR_INVALID_VALUE;
    begin_graph(&other);
    heap_free_pending(pool, context_record());
    cr_assert_eq(pending_bytes(), 40 * GIB);
}

Test(graph_memory, captures_that_follow_each_other_hoard_nothing)
{
    start_with_budget(64 * MIB);
    for (unsigned i = 0; i < 32; i++) {
        unsigned graph = begin_graph(&stream);
        release(allocate(40 * MIB));
        end_capture(stream);
        fake_launch(context);
        destroy_graph(graph);
        fake_finish(context);
        let_time_pass();
    }
    cr_assert_leq(pending_bytes() + clean_bytes(), 200 * MIB);
}

/* ---- captures that are spoilt, and that nobody ends ---- */

static CUresult (*is_capturing_as_ever)(CUstream, CUstreamCaptureStatus *);
static CUstream spoilt_stream;
static unsigned asked_about_spoilt;

static CUresult tell_of_spoilt(CUstream of, CUstreamCaptureStatus *status)
{
    CUresult result = is_capturing_as_ever(of, status);
    if (of == spoilt_stream && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        asked_about_spoilt++;
    }
    return result;
}

static unsigned begin_spoilt(void)
{
    asked_about_spoilt = 0;
    is_capturing_as_ever = driver->cuStreamIsCapturing;
    driver->cuStreamIsCapturing = tell_of_spoilt;
    start();
    stop_looking_at_locks();
    unsigned graph = begin_graph(&stream);
    spoilt_stream = stream;
    return graph;
}

Test(graph_memory, a_spoilt_capture_that_nobody_ends_keeps_nothing_for_long)
{
    unsigned graph = begin_spoilt();
    for (unsigned i = 0; i < 300; i++)
        release(allocate(MIB));
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_leq(reserved_bytes(), 64 * MIB);
    cr_assert_not(fake_capture_was_invalidated());
    fail_capture(graph);
    cr_assert_eq(told().failed, 1);
    cr_assert_eq(told().owners, 0);
}

Test(graph_memory, others_beside_it_do)
{
    CUstream other;
    begin_spoilt();
    unsigned graph = begin_graph(&other);
    for (unsigned i = 0; i < 300; i++)
        release(allocate(MIB));
    cr_assert_eq(kept_for_graphs(), 300 * MIB);
    cr_assert_eq(asked_about_spoilt, 1);
    end_capture(other);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
    end_capture(stream);
}

Test(graph_memory, who_is_out_of_memory_asks_for_it)
{
    begin_spoilt();
    release(allocate(40 * GIB));
    allocate(30 * GIB);
    cr_assert_eq(kept_for_graphs(), 0);
    end_capture(stream);
}

/* The program has the graph, whatever becomes of the capture. */
Test(graph_memory, a_spoilt_capture_into_a_graph_keeps_what_it_has)
{
    unsigned graph = begin_spoilt();
    graph_objects_share(pool, (CUgraph)(uintptr_t)graph);
    for (unsigned i = 0; i < 300; i++)
        release(allocate(MIB));
    cr_assert_eq(kept_for_graphs(), 300 * MIB);
    end_capture(stream);
}

/* ---- what is cut out of larger blocks ---- */

static CUresult nobody_tells(CUstream asked, CUstreamCaptureStatus *status)
{
    (void)asked, (void)status;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* A part that was handed out as a capture began. */
Test(graph_memory, a_part_that_a_graph_owns_is_kept_however_it_is_freed)
{
    settings.device.buckets.policy = BUCKETS_SPLIT;
    start();
    CUdeviceptr block = allocate(MIB);
    unsigned graph = begin_graph(&stream);
    graph_memory_own(pool, block);
    end_capture(stream);
    driver->cuStreamIsCapturing = nobody_tells;
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(told().astray, 0);
}

/* ---- graphs that are captured again ---- */

/* Each time they would get another owner, and none would go before the graph does. */
Test(graph_memory, a_graph_that_is_captured_anew_gets_no_other_owner)
{
    start();
    unsigned graph = begin_graph(&stream);
    end_capture_of(graph);
    pool_captures_lock(pool);
    fake_capture_begin(stream);
    pool_capture_began_again(pool, stream);
    pool_captures_unlock(pool);
    cr_assert_eq(told().captures, 1);
    cr_assert(captures_under_way(&pool->captures));
    cr_assert_not(captures_are_all_owned(&pool->captures));
    end_capture(stream);
    cr_assert_not(captures_under_way(&pool->captures));
    cr_assert(captures_are_all_owned(&pool->captures));
    graph = begin_graph(&stream);
    release(allocate(MIB));
    cr_assert_eq(kept_for_graphs(), MIB);
    end_capture(stream);
    destroy_graph(graph);
}
