/*
 * The host's memory runs out, at each request of the core in turn, while captures allocate and
 * graphs keep: no call fails that the driver would have answered, a graph's memory is handed out to
 * nobody while the graph is there, and what nobody can be told to own stays until its context ends.
 */
#include "graph_fixture.h"

#include "failing_memory.h"

TestSuite(failing_graph_memory, .init = set_up_graphs, .fini = tear_down_graphs, .timeout = 60);

/* More requests than a capture makes. */
#define MANY 60

static CUstream stream;

/* Whether anybody gets the block. */
static bool is_handed_out(CUdeviceptr block)
{
    bool handed_out = false;
    for (int i = 0; i < 40; i++)
        handed_out = allocate(MIB) == block || handed_out;
    return handed_out;
}

/* With a block, so that what is made once is there. */
static unsigned begin_graph_and_end_it(void)
{
    unsigned graph = begin_graph(&stream);
    release(allocate(MIB));
    end_capture(stream);
    return graph;
}

/* One block of before and one of the capture's own, both freed; the capture itself may be without
 * an owner, where the driver then answers in relaxed mode. */
static void capture_and_fail(long requests, bool for_good)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr before = allocate(MIB);
    CUdeviceptr inside;
    CUcontext ended = context;
    stream = fake_stream();
    graphs[graph_count++] = (struct fake_graph){stream, NULL};
    places[place_count++] = (struct fake_place){.stream = stream, .graph = graph_count};
    unsigned graph = graph_count;
    memory_fails_after(requests, for_good);
    begin_capture(stream);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    inside = allocate(MIB);
    release(before);
    release(inside);
    cr_assert_eq(pool_free(pool, before), CUDA_ERROR_INVALID_VALUE);
    end_capture(stream);
    memory_is_back();
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (fake_is_allocated(before) && graphs[graph - 1].object)
        cr_assert_not(is_handed_out(before));
    if (fake_is_allocated(inside) && graphs[graph - 1].object)
        cr_assert_not(is_handed_out(inside));
    if (graphs[graph - 1].object)
        destroy_graph(graph);
    end_context(ended);
    context = another_context(0);
    cr_assert_eq(live_bytes(), 0);
}

static CUresult refuse(CUdeviceptr address, CUstream on)
{
    (void)address, (void)on;
    cr_assert_fail("the driver would make a node of it");
    return CUDA_ERROR_NOT_PERMITTED;
}

/* The same of what a captured stream allocates, and gives back twice; it may be the driver's to
 * answer, or fail for want of memory. */
static void capture_nodes_and_fail(long requests, bool for_good)
{
    CUdeviceptr block = 0;
    CUresult result = CUDA_SUCCESS;
    stream = fake_stream();
    graphs[graph_count++] = (struct fake_graph){stream, NULL};
    places[place_count++] = (struct fake_place){.stream = stream, .graph = graph_count};
    unsigned graph = graph_count;
    memory_fails_after(requests, for_good);
    begin_capture(stream);
    for (int i = 0; i < 3; i++) {
        bool ours = pool_allocate_async(pool, &block, MIB, NULL, stream, &result);
        cr_assert(!ours || result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        if (ours && result == CUDA_SUCCESS)
            cr_assert_eq(pool_free_async(pool, refuse, block, stream), CUDA_SUCCESS);
    }
    end_capture(stream);
    memory_is_back();
    if (block && graphs[graph - 1].object)
        cr_assert_not(is_handed_out(block));
    if (graphs[graph - 1].object)
        destroy_graph(graph);
    end_context(context);
    context = another_context(0);
    cr_assert_eq(live_bytes(), 0);
}

static void fail_each_request(bool for_good)
{
    start();
    stop_looking_at_locks();
    bool any = false;
    for (long requests = 0; requests < MANY && graph_count < GRAPHS; requests++) {
        if (settings.captures.memory_nodes == MEMORY_NODES_POOL)
            capture_nodes_and_fail(requests, for_good);
        else
            capture_and_fail(requests, for_good);
        any = any || has_failed;
    }
    cr_assert(any);
    cr_assert_not(has_failed, "there were more requests than were tried");
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(told().owners, 0);
    pool = NULL; /* what there was no record for is not in the columns */
}

Test(failing_graph_memory, one_request_fails)
{
    fail_each_request(false);
}

Test(failing_graph_memory, all_requests_fail)
{
    fail_each_request(true);
}

Test(failing_graph_memory, one_request_of_a_captured_stream_fails)
{
    settings.captures.memory_nodes = MEMORY_NODES_POOL;
    fail_each_request(false);
}

Test(failing_graph_memory, all_requests_of_a_captured_stream_fail)
{
    settings.captures.memory_nodes = MEMORY_NODES_POOL;
    fail_each_request(true);
}

/* The first capture's ownership could not be noted. The second one owns the block as well, and its
 * end says nothing of the first one's graph. */
Test(failing_graph_memory, an_owner_that_could_not_be_noted_keeps_its_block)
{
    CUstream second;
    start();
    stop_looking_at_locks();
    destroy_graph(begin_graph_and_end_it());
    unsigned first = begin_graph(&stream);
    memory_fails_after(0, false);
    CUdeviceptr inside = allocate(MIB);
    memory_is_back();
    cr_assert(has_failed);
    end_capture(stream);
    unsigned of_second = begin_graph(&second);
    release(inside);
    end_capture(second);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(of_second);
    synchronise();
    cr_assert_not(is_handed_out(inside));
    destroy_graph(first);
    cr_assert(fake_is_allocated(inside));
    end_context(context);
    context = another_context(0);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* The pool has a reference for the executable, and none to note it with: nobody gives it up. */
Test(failing_graph_memory, an_executable_that_could_not_be_noted_keeps_its_memory)
{
    let_executables_be_without();
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = allocate(MIB);
    release(block);
    end_capture_of(graph);
    memory_fails_after(0, true);
    struct fake_executable *executable = executable_of(graph);
    memory_is_back();
    cr_assert_null(executable->object);
    destroy_known_graph(graph, true);
    destroy_executable(executable, true);
    cr_assert_not(is_handed_out(block));
}
