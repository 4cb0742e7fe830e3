/*
 * What captured streams allocate in place of memory nodes: captures.memory_nodes.
 */
#include "graph_fixture.h"

#include "core/graph_memory/graph_pools.h"

static void set_up_nodes(void)
{
    set_up_graphs();
    settings.captures.memory_nodes = MEMORY_NODES_POOL;
}

TestSuite(memory_nodes, .init = set_up_nodes, .fini = tear_down_graphs, .timeout = 20);

static CUstream stream, other;

static bool try_captured(CUdeviceptr *block, size_t bytes, CUstream on, CUresult *result)
{
    return pool_allocate_async(pool, block, bytes, NULL, on, result);
}

static CUdeviceptr take(size_t bytes, CUstream on)
{
    CUdeviceptr block = 0;
    CUresult result = CUDA_ERROR_NOT_INITIALIZED;
    cr_assert(try_captured(&block, bytes, on, &result));
    cr_assert_eq(result, CUDA_SUCCESS);
    return block;
}

static CUresult refuse(CUdeviceptr address, CUstream on)
{
    (void)address, (void)on;
    return CUDA_ERROR_NOT_PERMITTED; /* the driver's answer */
}

static CUresult give(CUdeviceptr block, CUstream on)
{
    return pool_free_async(pool, refuse, block, on);
}

static void expect_the_driver(CUstream on)
{
    CUdeviceptr block = 0;
    CUresult result;
    cr_assert_not(try_captured(&block, MIB, on, &result));
}

static struct graph_memory *memory(void)
{
    return graph_memory_of(pool);
}

/* ---- who is served ---- */

Test(memory_nodes, a_captured_stream_gets_a_block_that_its_graph_owns)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = take(1000, stream);
    cr_assert(fake_is_allocated(block));
    cr_assert_not(fake_capture_was_invalidated());
    cr_assert_eq(pool_ask_pointer(pool, block + 999).kind, POINTER_LIVE);
    cr_assert_eq(give(block, stream), CUDA_SUCCESS);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_HIDDEN);
    cr_assert_eq(give(block, stream), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    end_capture(stream);
    cr_assert_eq(kept_for_graphs(), 1024);
    cr_assert(fake_is_allocated(block));
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(memory_nodes, without_the_setting_it_is_a_node)
{
    settings.captures.memory_nodes = MEMORY_NODES_DRIVER;
    start();
    begin_graph(&stream);
    expect_the_driver(stream);
    end_capture(stream);
}

Test(memory_nodes, a_stream_that_is_not_captured_is_the_drivers)
{
    start();
    other = fake_stream();
    begin_graph(&stream);
    expect_the_driver(other);
    end_capture(stream);
}

Test(memory_nodes, a_capture_without_an_owner_is_the_drivers)
{
    start();
    retain_result = CUDA_ERROR_INVALID_VALUE;
    begin_graph(&stream);
    expect_the_driver(stream);
    end_capture(stream);
}

Test(memory_nodes, beside_one_a_capture_frees_what_it_has_allocated_all_the_same)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = take(MIB, stream);
    retain_result = CUDA_ERROR_INVALID_VALUE;
    begin_graph(&other);
    cr_assert_eq(give(block, stream), CUDA_SUCCESS);
    cr_assert_eq(kept_for_graphs(), MIB);
    end_capture(other);
    end_capture_of(graph);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(memory_nodes, another_contexts_stream_is_the_drivers)
{
    start();
    begin_graph(&stream);
    another_context(0);
    expect_the_driver(stream);
    fake_set_current(context);
    end_capture(stream);
}

static CUresult get_other_pool(CUmemoryPool *memory_pool, CUdevice device)
{
    *memory_pool = (CUmemoryPool)(uintptr_t)(8192 + device);
    return CUDA_SUCCESS;
}

Test(memory_nodes, a_memory_pool_of_the_programs_is_the_drivers)
{
    CUdeviceptr block;
    CUresult result;
    CUmemoryPool named = (CUmemoryPool)(uintptr_t)8192, standard;
    start();
    begin_graph(&stream);
    cr_assert_not(pool_allocate_async(pool, &block, MIB, &named, stream, &result));
    driver->cuDeviceGetDefaultMemPool(&standard, 0);
    cr_assert(pool_allocate_async(pool, &block, MIB, &standard, stream, &result));
    driver->cuDeviceGetMemPool = get_other_pool;
    end_capture(stream);
}

Test(memory_nodes, so_is_one_that_the_device_has_been_given)
{
    driver->cuDeviceGetMemPool = get_other_pool;
    start();
    begin_graph(&stream);
    expect_the_driver(stream);
    end_capture(stream);
}

Test(memory_nodes, nothing_asked_for_and_nowhere_to_put_it_are_the_drivers)
{
    CUdeviceptr block;
    CUresult result;
    start();
    begin_graph(&stream);
    cr_assert_not(try_captured(&block, 0, stream, &result));
    cr_assert_not(try_captured(NULL, MIB, stream, &result));
    cr_assert(try_captured(&block, 128 * GIB, stream, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    end_capture(stream);
}

/* ---- what may be had again ---- */

Test(memory_nodes, what_the_capture_has_freed_serves_it_again)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_eq(take(MIB, stream), first);
    add_node(stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    add_node(stream);
    CUdeviceptr smaller = take(MIB - 100, stream);
    cr_assert_eq(smaller, first);
    cr_assert_eq(pool_ask_pointer(pool, first).bytes, MIB - 100);
    cr_assert_neq(take(MIB, stream), first);
    cr_assert_eq(kept_for_graphs(), 0);
    end_capture(stream);
}

Test(memory_nodes, another_size_does_not)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(take(2 * MIB, stream), first);
    cr_assert_neq(take(MIB / 2, stream), first);
    end_capture(stream);
}

Test(memory_nodes, a_stream_beside_the_free_gets_another_block)
{
    start();
    other = fake_stream();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    wait_for_stream(other, stream);
    add_node(stream);
    add_node(other);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(take(MIB, other), first);
    end_capture(stream);
}

Test(memory_nodes, one_that_has_been_put_behind_it_gets_it)
{
    start();
    other = fake_stream();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    wait_for_stream(other, stream);
    add_node(other);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    add_node(stream);
    wait_for_stream(other, stream);
    cr_assert_eq(take(MIB, other), first);
    end_capture(stream);
}

/* The free comes after both streams' work, the next use after that of one. */
Test(memory_nodes, all_that_came_before_the_free_must_come_before_the_next_use)
{
    start();
    other = fake_stream();
    begin_graph(&stream);
    add_node(stream);
    wait_for_stream(other, stream);
    add_node(stream);
    add_node(other);
    CUdeviceptr first = take(MIB, stream);
    CUstream third = fake_stream();
    wait_for_stream(third, other);
    wait_for_stream(stream, other);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(take(MIB, third), first);
    cr_assert_eq(take(MIB, stream), first);
    end_capture(stream);
}

/* The program has set what the stream comes after: it stands where it stood before. */
Test(memory_nodes, a_stream_that_was_set_back_gets_another_block)
{
    start();
    begin_graph(&stream);
    add_node(stream);
    struct fake_edges before = place_of_stream(stream)->after;
    CUdeviceptr first = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    place_of_stream(stream)->after = before;
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

Test(memory_nodes, what_is_too_far_back_is_not_found)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    for (unsigned i = 0; i < PAST_NODES / 2; i++)
        add_node(stream);
    cr_assert_eq(take(MIB, stream), first);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    for (unsigned i = 0; i < PAST_NODES + 1; i++)
        add_node(stream);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

Test(memory_nodes, a_place_with_too_many_nodes_is_not_known)
{
    start();
    begin_graph(&stream);
    for (unsigned i = 0; i < PLACE_NODES + 1; i++) {
        other = fake_stream();
        places[place_count] = *place_of_stream(stream);
        places[place_count].after.count = 0;
        places[place_count++].stream = other;
        add_node(other);
        wait_for_stream(stream, other);
    }
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

Test(memory_nodes, a_driver_that_tells_no_dependencies_is_taken_at_its_word)
{
    driver->cuGraphNodeGetDependencies = NULL;
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_eq(take(MIB, stream), first);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    add_node(stream);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

static CUresult get_info_with_data(CUstream of, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **nodes,
                                   const CUgraphEdgeData **edges, size_t *count)
{
    if (place_of_stream(of)->has_data && !edges)
        return CUDA_ERROR_INVALID_VALUE;
    bool has_data = place_of_stream(of)->has_data;
    place_of_stream(of)->has_data = false;
    CUresult result = get_capture_info(of, status, id, graph, nodes, count);
    place_of_stream(of)->has_data = has_data;
    return result;
}

/* The next work may begin before the work that the edge comes from has ended. */
Test(memory_nodes, edges_with_data_order_nothing)
{
    driver->cuStreamGetCaptureInfo_v3 = get_info_with_data;
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream), second = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    place_of_stream(stream)->has_data = true;
    CUdeviceptr third = take(MIB, stream);
    cr_assert(third != first && third != second);
    cr_assert_eq(give(second, stream), CUDA_SUCCESS);
    place_of_stream(stream)->has_data = false;
    cr_assert_eq(take(MIB, stream), first);
    cr_assert_neq(take(MIB, stream), second);
    end_capture(stream);
}

Test(memory_nodes, once_kernels_start_early_nothing_is_had_again)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    pool_early_launch(pool, stream);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

Test(memory_nodes, a_plain_free_leaves_a_block_to_nobody)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    release(first);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
    cr_assert_eq(kept_for_graphs(), MIB);
}

Test(memory_nodes, and_plain_allocations_get_nothing_of_the_pools)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(allocate(MIB), first);
    end_capture(stream);
}

Test(memory_nodes, memory_that_others_reach_serves_nobody_again)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    pool_share(pool, first);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

/* ---- other captures ---- */

Test(memory_nodes, a_capture_has_nothing_of_another_ones)
{
    start();
    begin_graph(&stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    begin_graph(&other);
    CUdeviceptr second = take(MIB, other);
    cr_assert_neq(second, first);
    cr_assert_eq(give(second, other), CUDA_SUCCESS);
    end_capture(other);
    end_capture(stream);
    begin_graph_on(stream);
    CUdeviceptr third = take(MIB, stream);
    cr_assert(third != first && third != second);
    end_capture(stream);
}

Test(memory_nodes, its_graph_alone_owns_it)
{
    start();
    unsigned graph = begin_graph(&stream);
    begin_graph(&other);
    CUdeviceptr block = take(MIB, stream);
    cr_assert_eq(give(block, stream), CUDA_SUCCESS);
    end_capture(stream);
    end_capture(other);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(memory_nodes, another_capture_may_free_it_and_keeps_it_then)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = take(MIB, stream);
    end_capture(stream);
    unsigned second = begin_graph(&other);
    cr_assert_eq(give(block, other), CUDA_SUCCESS);
    cr_assert_eq(give(block, other), CUDA_ERROR_INVALID_VALUE);
    cr_assert_neq(take(MIB, other), block);
    end_capture(other);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), MIB);
    begin_graph_on(stream);
    cr_assert_eq(give(block, stream), CUDA_SUCCESS);
    end_capture(stream);
    destroy_graph(second);
    cr_assert_eq(kept_for_graphs(), MIB);
    pool_graph_launch_begins(pool, NULL);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_LIVE);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    destroy_graph(3);
    cr_assert_eq(kept_for_graphs(), 0);
}

/* ---- what a capture leaves to the program ---- */

Test(memory_nodes, it_may_be_freed_once_a_launch)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = take(MIB, stream);
    end_capture(stream);
    other = fake_stream();
    for (unsigned i = 0; i < 6; i++) {
        pool_graph_launch_begins(pool, NULL);
        cr_assert_eq(pool_ask_pointer(pool, block + 5).kind, POINTER_LIVE);
        cr_assert_eq(i % 2 ? give(block, other) : pool_free(pool, block), CUDA_SUCCESS);
        cr_assert_eq(pool_ask_pointer(pool, block + 5).kind, POINTER_HIDDEN);
        cr_assert_eq(give(block, other), CUDA_ERROR_INVALID_VALUE);
        cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
        cr_assert_eq(kept_for_graphs(), MIB);
    }
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), 0);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

Test(memory_nodes, what_the_last_launch_brought_to_life_outlives_the_graph)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr freed = take(MIB, stream), held = take(MIB, stream);
    end_capture_of(graph);
    pool_graph_launch_begins(pool, NULL);
    release(freed);
    pool_graph_launch_begins(pool, NULL);
    destroy_graph(graph);
    synchronise();
    CUdeviceptr next = allocate(MIB);
    cr_assert(next != freed && next != held);
    cr_assert_eq(pool_ask_pointer(pool, freed).kind, POINTER_LIVE);
    release(freed);
    release(held);
    cr_assert_eq(pool_free(pool, freed), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, held), CUDA_ERROR_INVALID_VALUE);
}

Test(memory_nodes, what_no_launch_brought_to_life_goes_with_the_graph)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr block = take(MIB, stream);
    end_capture(stream);
    destroy_graph(graph);
    cr_assert_eq(live_bytes(), 0);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
}

Test(memory_nodes, a_capture_that_fails_gives_everything_back)
{
    start();
    unsigned graph = begin_graph(&stream);
    CUdeviceptr held = take(MIB, stream), freed = take(2 * MIB, stream);
    cr_assert_eq(give(freed, stream), CUDA_SUCCESS);
    pool_graph_launch_begins(pool, NULL); /* of another graph */
    fail_capture(graph);
    cr_assert_eq(told().failed, 1);
    cr_assert_eq(live_bytes(), 0);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(pool_free(pool, held), CUDA_ERROR_INVALID_VALUE);
    begin_graph(&other);
    take(MIB, other);
    end_capture(other);
}

Test(memory_nodes, a_context_takes_its_blocks_with_it)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    struct kept_bytes bytes;
    stream = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    unsigned graph = begin_graph_on(stream);
    CUdeviceptr freed = take(MIB, stream), held = take(MIB, stream);
    cr_assert_neq(held, freed);
    cr_assert_eq(give(freed, stream), CUDA_SUCCESS);
    end_capture(stream);
    end_context(context);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert(graph_pool_bytes(memory(), shared, &bytes));
    cr_assert(bytes.live == 0 && bytes.cached == 0 && bytes.pending == 0);
    context = another_context(0);
    destroy_graph(graph);
    cr_assert_eq(live_bytes(), 0);
}

/* ---- pools for several captures ---- */

Test(memory_nodes, captures_with_one_pool_have_each_others_blocks)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    struct kept_bytes bytes;
    stream = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    unsigned graph = begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream), held = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    end_capture(stream);
    cr_assert(graph_pool_bytes(memory(), shared, &bytes));
    cr_assert(bytes.live == MIB && bytes.cached == MIB && bytes.pending == 0);
    unsigned second = begin_graph_on(stream);
    cr_assert_eq(take(MIB, stream), first);
    CUdeviceptr third = take(MIB, stream);
    cr_assert(third != first && third != held);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    end_capture(stream);
    destroy_graph(graph);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_graph(second);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert(graph_pool_bytes(memory(), shared, &bytes));
    cr_assert(bytes.live == 0 && bytes.cached == 0 && bytes.pending == 0);
    cr_assert(graph_pool_destroy(memory(), shared));
    cr_assert_not(graph_pool_destroy(memory(), shared));
}

static unsigned long long number_of_stream;

/* No question for a stream that is captured. */
static CUresult get_number(CUstream asked, unsigned long long *id)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cr_assert_eq(driver->cuStreamIsCapturing(asked, &status), CUDA_SUCCESS);
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    *id = number_of_stream;
    return CUDA_SUCCESS;
}

/* Whether a capture on the stream, begun as a program does, has the block again. */
static bool has_again(CUdeviceptr block)
{
    pool_capture_about_to_begin(pool, stream);
    begin_graph_on(stream);
    pool_capture_has_come(pool);
    CUdeviceptr taken = take(MIB, stream);
    cr_assert_eq(give(taken, stream), CUDA_SUCCESS);
    end_capture(stream);
    return taken == block;
}

Test(memory_nodes, a_stream_uses_a_pool_and_another_one_with_its_handle_does_not)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    driver->cuStreamGetId = get_number;
    number_of_stream = 1;
    cr_assert_eq(pool_graph_pool_use(pool, shared, stream), CUDA_SUCCESS);
    begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_eq(pool_graph_pool_use(pool, shared, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream);
    cr_assert(has_again(first));
    number_of_stream = 2;
    cr_assert_not(has_again(first));
}

/* Two captures in turns, the second one into a graph with the first one's handle. */
static void begin_second_capture(unsigned graph)
{
    begin_graph_on(stream);
    *place_of_stream(stream) =
        (struct fake_place){.stream = stream, .graph = graph, .capture = 4711};
    end_capture(stream);
    begin_capture(stream);
}

Test(memory_nodes, captures_into_one_graph_have_them_behind_their_free_alone)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    unsigned graph = begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    add_node(stream);
    struct fake_edges after_use = place_of_stream(stream)->after;
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    end_capture(stream);
    begin_second_capture(graph);
    CUdeviceptr beside = take(MIB, stream);
    cr_assert_neq(beside, first);
    place_of_stream(stream)->after = after_use;
    cr_assert_eq(take(MIB, stream), first);
    end_capture(stream);
}

static CUresult get_no_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    (void)graph, (void)nodes;
    *count = 0;
    return CUDA_SUCCESS;
}

Test(memory_nodes, a_graph_with_the_handle_of_one_that_is_gone_is_another)
{
    start();
    driver->cuGraphGetNodes = get_no_nodes;
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    other = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    cr_assert(graph_pool_use(memory(), shared, other, 0));
    unsigned graph = begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    end_capture(stream);
    begin_second_capture(graph);
    cr_assert_eq(take(MIB, stream), first);
    /* But not while this one makes it. */
    begin_graph_on(other);
    *place_of_stream(other) = (struct fake_place){.stream = other, .graph = graph, .capture = 4712};
    end_capture(other);
    begin_capture(other);
    add_node(stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert_neq(take(MIB, other), first);
    end_capture(other);
    end_capture(stream);
}

Test(memory_nodes, what_was_never_launched_goes_though_another_graph_keeps_it)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    unsigned graph = begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    end_capture(stream);
    unsigned second = begin_graph_on(stream);
    cr_assert_eq(take(MIB, stream), first);
    end_capture(stream);
    destroy_graph(second);
    cr_assert_eq(kept_for_graphs(), MIB);
    cr_assert_eq(pool_free(pool, first), CUDA_ERROR_INVALID_VALUE);
    pool_graph_launch_begins(pool, NULL);
    cr_assert_eq(pool_free(pool, first), CUDA_ERROR_INVALID_VALUE);
    destroy_graph(graph);
    cr_assert_eq(live_bytes(), 0);
    cr_assert_eq(kept_for_graphs(), 0);
}

Test(memory_nodes, a_stream_has_its_own_again)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    end_capture(stream);
    cr_assert(graph_pool_use(memory(), 0, stream, 0));
    begin_graph_on(stream);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
}

Test(memory_nodes, a_sealed_pool_serves_no_capture)
{
    start();
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    other = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert(graph_pool_seal(memory(), shared));
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
    cr_assert_not(graph_pool_use(memory(), shared, other, 0));
    cr_assert_not(graph_pool_use(memory(), 77, other, 0));
    begin_graph_on(stream);
    CUdeviceptr third = take(MIB, stream);
    cr_assert_neq(third, first);
    cr_assert_eq(give(third, stream), CUDA_SUCCESS);
    cr_assert_eq(take(MIB, stream), third);
    end_capture(stream);
}

Test(memory_nodes, a_stream_whose_pool_is_sealed_uses_no_other_streams)
{
    start();
    uint64_t of_other = graph_pool_create(memory()), sealed = graph_pool_create(memory());
    stream = fake_stream();
    other = fake_stream();
    cr_assert(graph_pool_use(memory(), of_other, other, 0));
    cr_assert(graph_pool_use(memory(), sealed, stream, 0));
    begin_graph_on(other);
    CUdeviceptr first = take(MIB, other);
    cr_assert_eq(give(first, other), CUDA_SUCCESS);
    end_capture(other);
    cr_assert(graph_pool_seal(memory(), sealed));
    begin_graph_on(stream);
    cr_assert_neq(take(MIB, stream), first);
    end_capture(stream);
    begin_graph_on(other);
    cr_assert_eq(take(MIB, other), first);
    end_capture(other);
}

Test(memory_nodes, what_is_cleared_is_had_by_nobody)
{
    struct kept_bytes bytes;
    start();
    uint64_t shared = graph_pool_create(memory());
    stream = fake_stream();
    cr_assert(graph_pool_use(memory(), shared, stream, 0));
    begin_graph_on(stream);
    CUdeviceptr first = take(MIB, stream);
    cr_assert_eq(give(first, stream), CUDA_SUCCESS);
    cr_assert(graph_pool_clear(memory(), shared));
    cr_assert(graph_pool_bytes(memory(), shared, &bytes));
    cr_assert(bytes.cached == 0 && bytes.pending == MIB);
    CUdeviceptr second = take(MIB, stream);
    cr_assert_neq(second, first);
    cr_assert_eq(give(second, stream), CUDA_SUCCESS);
    cr_assert(graph_pool_destroy(memory(), shared));
    CUdeviceptr third = take(MIB, stream);
    cr_assert(third != first && third != second);
    end_capture(stream);
    cr_assert_not(graph_pool_clear(memory(), shared));
    cr_assert_not(graph_pool_bytes(memory(), shared, &bytes));
    cr_assert_not(graph_pool_seal(memory(), shared));
}

/* ---- captures that are spoilt, and that nobody ends ---- */

static CUresult all_are_spoilt(CUstream of, CUstreamCaptureStatus *status)
{
    (void)of;
    *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
}

/* What it has allocated and not freed is still refused as a capture's, and no second free. */
Test(memory_nodes, what_a_spoilt_capture_has_allocated_stays_until_its_end)
{
    CUresult (*as_ever)(CUstream, CUstreamCaptureStatus *) = driver->cuStreamIsCapturing;
    start();
    unsigned graph = begin_graph(&stream);
    take(MIB, stream);
    CUdeviceptr plain = allocate(MIB);
    driver->cuStreamIsCapturing = all_are_spoilt;
    graph_owners_look_for_spoilt(pool);
    cr_assert_eq(live_bytes(), 2 * MIB);
    release(plain);
    cr_assert_eq(live_bytes(), MIB);
    driver->cuStreamIsCapturing = as_ever;
    fail_capture(graph);
    cr_assert_eq(live_bytes(), 0);
}

/* The driver's thread runs the destructor after the end of the capture is known. */
Test(memory_nodes, what_a_failed_capture_has_allocated_goes_however_late_its_graph_does)
{
    start();
    unsigned graph = begin_graph(&stream);
    take(MIB, stream);
    pool_graph_launch_begins(pool, NULL);
    end_capture(stream);
    cr_assert_eq(told().failed, 1);
    destroy_graph(graph);
    cr_assert_eq(live_bytes(), 0);
}

/* ---- which graph is launched ---- */

struct output {
    unsigned graph;
    CUdeviceptr block;
    struct fake_executable *executable;
};

/* A graph whose capture has allocated a block, and not freed it. */
static struct output capture_output(void)
{
    struct output output = {.graph = begin_graph(&stream)};
    output.block = take(MIB, stream);
    end_capture_of(output.graph);
    output.executable = executable_of(output.graph);
    return output;
}

static void launch(const struct output *output)
{
    pool_graph_launch_begins(pool, (CUgraphExec)(void *)output->executable);
}

static void destroy_output(const struct output *output)
{
    destroy_executable(output->executable, true);
    destroy_known_graph(output->graph, true);
}

static void start_with_executables(void)
{
    let_executables_be_without();
    start();
    other = fake_stream();
}

Test(memory_nodes, a_launch_brings_its_own_graphs_memory_to_life_alone)
{
    start_with_executables();
    struct output first = capture_output(), second = capture_output();
    for (unsigned i = 0; i < 3; i++) {
        launch(&first);
        cr_assert_eq(give(first.block, other), CUDA_SUCCESS);
        launch(&second);
        cr_assert_eq(give(first.block, other), CUDA_ERROR_INVALID_VALUE);
        cr_assert_eq(give(second.block, other), CUDA_SUCCESS);
    }
    destroy_output(&first);
    destroy_output(&second);
    cr_assert_eq(live_bytes(), 0);
}

Test(memory_nodes, and_none_of_a_graph_that_was_never_launched)
{
    start_with_executables();
    struct output first = capture_output(), second = capture_output();
    launch(&first);
    destroy_output(&second);
    cr_assert_eq(live_bytes(), MIB);
    launch(&first);
    destroy_output(&first);
    cr_assert_eq(pool_ask_pointer(pool, first.block).kind, POINTER_LIVE);
}

Test(memory_nodes, nor_does_the_launch_of_a_graph_that_has_no_memory)
{
    start_with_executables();
    struct output first = capture_output(), none = {.graph = begin_graph(&stream)};
    end_capture_of(none.graph);
    none.executable = executable_of(none.graph);
    launch(&none);
    cr_assert_eq(give(first.block, other), CUDA_SUCCESS);
    launch(&none);
    cr_assert_eq(give(first.block, other), CUDA_ERROR_INVALID_VALUE);
    destroy_executable(none.executable, false);
    launch(&none);
    cr_assert_eq(give(first.block, other), CUDA_ERROR_INVALID_VALUE);
    destroy_output(&none);
    destroy_output(&first);
    cr_assert_eq(live_bytes(), 0);
}

Test(memory_nodes, a_graph_that_holds_others_may_bring_anything_to_life)
{
    start_with_executables();
    struct output first = capture_output();
    node_type = CU_GRAPH_NODE_TYPE_GRAPH;
    struct output second = capture_output();
    launch(&first);
    cr_assert_eq(give(first.block, other), CUDA_SUCCESS);
    launch(&second);
    cr_assert_eq(give(first.block, other), CUDA_SUCCESS);
    destroy_output(&first);
    destroy_output(&second);
}

/* A capture that goes on owns what is freed beside it. */
Test(memory_nodes, what_was_freed_after_the_last_launch_is_not_live_though_another_graph_keeps_it)
{
    start_with_executables();
    struct output first = capture_output();
    launch(&first);
    unsigned graph = begin_graph(&stream);
    release(first.block);
    end_capture_of(graph);
    destroy_output(&first);
    cr_assert_eq(kept_for_graphs(), MIB);
    destroy_known_graph(graph, true);
    cr_assert_eq(kept_for_graphs(), 0);
    cr_assert_eq(live_bytes(), 0);
}

Test(memory_nodes, where_a_maker_could_not_be_noted_all_launches_count)
{
    start_with_executables();
    struct output first = capture_output();
    struct graph_owner owner = {.memory = memory(), .number = 1000};
    struct graph_block block = {.parked = true};
    lock_take(&memory()->lock, LOCK_GRAPHS);
    graph_block_made(&block, &owner);
    uint64_t before = graph_block_launches(memory(), &block);
    lock_give(&memory()->lock);
    launch(&first);
    lock_take(&memory()->lock, LOCK_GRAPHS);
    cr_assert_neq(graph_block_launches(memory(), &block), before);
    lock_give(&memory()->lock);
    cr_assert_eq(give(first.block, other), CUDA_SUCCESS);
    destroy_output(&first);
}
