/*
 * Stream-ordered memory of before a capture that the capture has freed: when it goes back.
 */
#include "fake_streams.h"
#include "graph_fixture.h"

static CUresult (*record_as_ever)(CUcontext, CUevent);
static CUcontext refused;

static CUresult record_elsewhere(CUcontext handle, CUevent event)
{
    return handle == refused ? CUDA_ERROR_OUT_OF_MEMORY : record_as_ever(handle, event);
}

static void set_up_held(void)
{
    set_up_graphs();
    fake_streams(driver);
    settings.captures.memory_nodes = MEMORY_NODES_POOL;
    refused = NULL;
    record_as_ever = driver->cuCtxRecordEvent;
    driver->cuCtxRecordEvent = record_elsewhere;
}

TestSuite(graph_held, .init = set_up_held, .fini = tear_down_graphs, .timeout = 20);

static CUstream stream;

static CUdeviceptr take_on_new_stream(void)
{
    CUdeviceptr block = 0;
    CUresult result = CUDA_ERROR_NOT_READY;
    cr_assert(pool_allocate_async(pool, &block, MIB, NULL, fake_stream(), &result));
    cr_assert_eq(result, CUDA_SUCCESS);
    return block;
}

static uint64_t held(void)
{
    return graph_memory_of(pool)->held;
}

/* What was allocated on a stream is freed in a capture, whose graph is the answer. */
static unsigned free_in_capture(const CUdeviceptr *blocks, unsigned count)
{
    unsigned graph = begin_graph(&stream);
    for (unsigned i = 0; i < count; i++)
        cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, blocks[i], stream),
                     CUDA_SUCCESS);
    cr_assert_eq(held(), count);
    end_capture(stream);
    return graph;
}

/* The destructor runs in a thread of the driver's, which tells the pool nothing. */
static void let_go_unseen(unsigned graph)
{
    user_object_release((CUuserObject)(void *)graphs[graph - 1].object, 1);
}

static unsigned hold_one(void)
{
    start();
    return free_in_capture(&(CUdeviceptr){take_on_new_stream()}, 1);
}

Test(graph_held, it_stays_as_long_as_the_graph)
{
    unsigned graph = hold_one();
    graph_memory_process_ended(pool);
    cr_assert_eq(held(), 1);
    destroy_graph(graph);
    cr_assert_eq(held(), 0);
}

Test(graph_held, a_plain_allocation_takes_it_up)
{
    let_go_unseen(hold_one());
    allocate(3 * MIB);
    cr_assert_eq(held(), 0);
}

Test(graph_held, a_synchronise_takes_it_up)
{
    let_go_unseen(hold_one());
    synchronise();
    cr_assert_eq(held(), 0);
}

Test(graph_held, who_is_out_of_memory_takes_it_up)
{
    let_go_unseen(hold_one());
    graph_memory.ask(pool, device());
    cr_assert_eq(held(), 0);
}

Test(graph_held, the_housekeeper_takes_it_up_without_a_context)
{
    let_go_unseen(hold_one());
    fake_set_current(NULL);
    graph_memory.release_idle(pool, device(), 0);
    cr_assert_eq(held(), 0);
    fake_set_current(context);
}

Test(graph_held, the_housekeeper_stays_while_graphs_hold_anything)
{
    unsigned graph = hold_one();
    cr_assert(graph_memory.watch(pool));
    destroy_graph(graph);
    cr_assert_not(graph_memory.watch(pool));
}

Test(graph_held, it_waits_for_the_end_of_other_captures)
{
    CUstream another;
    unsigned graph = hold_one();
    begin_graph(&another);
    destroy_graph(graph);
    cr_assert_eq(held(), 1);
    end_capture(another);
    graph_memory_process_ended(pool);
    cr_assert_eq(held(), 0);
}

/* Of two contexts, in one of which no event can be recorded. */
static void hold_in_both(CUcontext second, CUcontext refused_one)
{
    CUdeviceptr blocks[2];
    fake_set_current(context);
    blocks[0] = take_on_new_stream();
    fake_set_current(second);
    blocks[1] = take_on_new_stream();
    unsigned graph = free_in_capture(blocks, 2);
    refused = refused_one;
    destroy_graph(graph);
}

Test(graph_held, one_that_cannot_go_back_keeps_no_other_waiting)
{
    start();
    CUcontext second = another_context(0);
    for (unsigned round = 0; round < 2; round++) {
        hold_in_both(second, round ? second : context);
        for (unsigned i = 0; i < 4; i++)
            graph_memory_process_ended(pool);
        cr_assert_eq(held(), 1);
        refused = NULL;
        graph_memory_process_ended(pool);
        cr_assert_eq(held(), 0);
    }
    fake_set_current(context);
}

/* The driver frees it then, which a capture of another pool's, or one that is not known, would
 * mind. */
Test(graph_held, of_a_dead_context_it_is_freed_in_relaxed_mode)
{
    start();
    CUcontext second = another_context(0);
    CUdeviceptr block = take_on_new_stream();
    unsigned graph = free_in_capture(&block, 1);
    end_context(second);
    fake_set_current(context);
    stream = fake_stream();
    fake_capture_begin(stream);
    destroy_graph(graph);
    cr_assert_not(fake_capture_was_invalidated());
    fake_capture_end(stream);
}
