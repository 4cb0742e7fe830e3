/*
 * Memory that the pool does not serve, where calls of the driver's overlap or fail: what is counted
 * is what the driver has given, and a handle or an address that comes again is told from the old.
 */
#include "core/base/clock.h"
#include "core/contexts/device.h"
#include "core/reclaim/room.h"
#include "core/unpooled/array_bytes.h"
#include "core/unpooled/owned.h"
#include "core/unpooled/physical.h"
#include "pool_fixture.h"

TestSuite(unpooled, .init = set_up, .fini = tear_down, .timeout = 20);

#define HANDLE  ((CUmemGenericAllocationHandle)77)
#define ADDRESS ((CUdeviceptr)0x700000000000)
#define LIMIT   (64 * MIB)

static void start_limited(void)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = LIMIT};
    settings.report.at_exit = REPORT_NONE;
    start();
}

static uint64_t bytes_of(enum unpooled_kind kind)
{
    return atomic_load(&device()->unpooled_bytes[kind]);
}

static void create(CUmemGenericAllocationHandle handle, size_t bytes)
{
    struct unpooled taken;
    cr_assert(physical_create_begins(pool, 0, bytes, &taken));
    physical_created(pool, &taken, true, handle);
}

static void map(CUmemGenericAllocationHandle handle, CUdeviceptr address, size_t bytes)
{
    physical_mapped(pool, physical_map_begins(pool, handle), true, address, bytes);
}

static void unmap(CUdeviceptr address, size_t bytes)
{
    physical_unmapped(pool, physical_unmap_begins(pool, address, bytes), true);
}

static void drop(CUmemGenericAllocationHandle handle)
{
    physical_released(pool, physical_release_begins(pool, handle), true);
}

/* ---- physical memory ---- */

Test(unpooled, past_the_limit_nothing_is_taken)
{
    struct unpooled taken;
    start_limited();
    create(HANDLE, LIMIT - MIB);
    cr_assert_not(physical_create_begins(pool, 0, 2 * MIB, &taken));
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_PHYSICAL].refused), 1);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), LIMIT - MIB);
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_PHYSICAL].peak_bytes), LIMIT - MIB);
    drop(HANDLE);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

Test(unpooled, what_the_driver_refuses_is_not_held)
{
    struct unpooled taken;
    start_limited();
    cr_assert(physical_create_begins(pool, 0, MIB, &taken));
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
    physical_created(pool, &taken, false, 0);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_PHYSICAL].peak_bytes), 0);
}

static uint64_t told_of_physical(void)
{
    return counter_get(&device()->unpooled[UNPOOLED_PHYSICAL].bytes);
}

Test(unpooled, without_limit_and_report_nothing_is_counted)
{
    settings.report.at_exit = REPORT_NONE;
    start();
    create(HANDLE, MIB);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
    cr_expect_eq(told_of_physical(), 0);
    cr_expect_null(physical_release_begins(pool, HANDLE));
}

/* The driver refuses what is too much, in its own words, and no cache goes for that. */
Test(unpooled, without_a_limit_it_is_only_told)
{
    struct unpooled taken;
    start();
    create(HANDLE, MIB);
    cr_expect_eq(told_of_physical(), MIB);
    cr_expect_eq(device_reserved(device()), MIB);
    cr_expect(physical_create_begins(pool, 0, SIZE_MAX, &taken));
    cr_expect_eq(told_of_physical(), MIB);
    physical_created(pool, &taken, false, 0);
    drop(HANDLE);
    cr_expect_eq(told_of_physical(), 0);
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_PHYSICAL].peak_bytes), MIB);
}

/* An import may have the handle before the release has returned. */
Test(unpooled, a_handle_that_is_gone_is_not_mapped)
{
    start_limited();
    create(HANDLE, MIB);
    struct physical *old = physical_release_begins(pool, HANDLE);
    cr_expect_null(physical_map_begins(pool, HANDLE));
    physical_released(pool, old, true);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

static CUresult not_permitted(CUcontext *handle)
{
    (void)handle;
    return CUDA_ERROR_NOT_PERMITTED;
}

Test(unpooled, in_a_host_function_the_driver_answers)
{
    struct unpooled taken;
    start_limited();
    create(HANDLE, LIMIT);
    CUresult (*usual)(CUcontext *) = driver->cuCtxGetCurrent;
    driver->cuCtxGetCurrent = not_permitted;
    cr_expect(physical_create_begins(pool, 0, MIB, &taken));
    cr_expect_null(taken.device);
    driver->cuCtxGetCurrent = usual;
}

/* The driver gives the handle again before the release has returned. */
Test(unpooled, a_handle_that_comes_again_is_other_memory)
{
    start_limited();
    create(HANDLE, MIB);
    struct physical *old = physical_release_begins(pool, HANDLE);
    create(HANDLE, 2 * MIB);
    physical_released(pool, old, true);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 2 * MIB);
    map(HANDLE, ADDRESS, 2 * MIB);
    drop(HANDLE);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 2 * MIB);
    unmap(ADDRESS, 2 * MIB);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

Test(unpooled, a_release_that_fails_leaves_the_handle)
{
    start_limited();
    create(HANDLE, MIB);
    physical_released(pool, physical_release_begins(pool, HANDLE), false);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
    drop(HANDLE);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

Test(unpooled, a_release_too_many_ends_nothing)
{
    start_limited();
    create(HANDLE, MIB);
    map(HANDLE, ADDRESS, MIB);
    drop(HANDLE);
    cr_expect_null(physical_release_begins(pool, HANDLE));
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
}

/* Between its two halves another thread unmaps and releases all else. */
Test(unpooled, a_retain_under_way_keeps_the_memory)
{
    start_limited();
    create(HANDLE, MIB);
    map(HANDLE, ADDRESS, MIB);
    struct physical *retained = physical_retain_begins(pool, ADDRESS + 4096);
    cr_assert_not_null(retained);
    drop(HANDLE);
    unmap(ADDRESS, MIB);
    physical_retained(pool, retained, true);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
    drop(HANDLE);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

Test(unpooled, a_map_that_fails_is_none)
{
    start_limited();
    create(HANDLE, MIB);
    physical_mapped(pool, physical_map_begins(pool, HANDLE), false, ADDRESS, MIB);
    drop(HANDLE);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

Test(unpooled, an_unmap_that_fails_ends_none)
{
    start_limited();
    create(HANDLE, MIB);
    map(HANDLE, ADDRESS, MIB);
    map(HANDLE, ADDRESS + MIB, MIB);
    drop(HANDLE);
    cr_assert_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
    physical_unmapped(pool, physical_unmap_begins(pool, ADDRESS, 2 * MIB), false);
    unmap(ADDRESS, MIB);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
    unmap(ADDRESS + MIB, MIB);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

/* Another thread maps other memory there before the unmap has returned. */
Test(unpooled, an_address_that_is_mapped_again_is_another_mapping)
{
    start_limited();
    create(HANDLE, MIB);
    create(HANDLE + 1, 2 * MIB);
    map(HANDLE, ADDRESS, MIB);
    drop(HANDLE);
    struct mapping *old = physical_unmap_begins(pool, ADDRESS, MIB);
    map(HANDLE + 1, ADDRESS, 2 * MIB);
    physical_unmapped(pool, old, true);
    drop(HANDLE + 1);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 2 * MIB);
    unmap(ADDRESS, 2 * MIB);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), 0);
}

Test(unpooled, what_the_pool_caches_makes_room)
{
    start_limited();
    CUdeviceptr block = allocate(LIMIT);
    release(block);
    create(HANDLE, LIMIT);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), LIMIT);
}

/* Otherwise every slow free of a program that takes much in other ways would look through all
 * caches, and such a program would have a housekeeper. */
Test(unpooled, it_is_none_of_the_pools_own)
{
    start_limited();
    CUdeviceptr block = allocate(MIB);
    create(HANDLE, 16 * MIB);
    cr_expect_eq(device_reserved(device()), 17 * MIB);
    cr_expect_eq(device_pooled(device()), MIB);
    release(block);
}

/* ---- memory that ends with its context ---- */

static void take_managed(CUdeviceptr address, size_t bytes)
{
    struct owned_coming coming;
    cr_assert(owned_managed_begins(pool, bytes, &coming));
    owned_began(pool, &coming, true, address);
}

Test(unpooled, managed_memory_counts_until_it_is_freed)
{
    struct owned_coming coming;
    start_limited();
    take_managed(ADDRESS, LIMIT);
    cr_assert_not(owned_managed_begins(pool, 1, &coming));
    owned_ended(pool, owned_end_begins(pool, OWNED_MANAGED, ADDRESS), false);
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), LIMIT);
    cr_expect_eq(device_resident(device()), 0);
    owned_ended(pool, owned_end_begins(pool, OWNED_MANAGED, ADDRESS), true);
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 0);
}

Test(unpooled, an_address_that_comes_again_is_other_memory)
{
    start_limited();
    take_managed(ADDRESS, MIB);
    struct owned *old = owned_end_begins(pool, OWNED_MANAGED, ADDRESS);
    take_managed(ADDRESS, 2 * MIB);
    owned_ended(pool, old, true);
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 2 * MIB);
}

Test(unpooled, an_array_is_not_managed_memory_of_the_same_number)
{
    start_limited();
    take_managed(ADDRESS, MIB);
    cr_expect_null(owned_end_begins(pool, OWNED_ARRAY, ADDRESS));
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), MIB);
}

static uint64_t opened_bytes(void)
{
    cr_expect_eq(device_reserved(device()), 0);
    cr_expect_eq(device_unpooled(device()), 0);
    return counter_get(&device()->unpooled[UNPOOLED_OPENED].bytes);
}

static void close_once(enum owned_kind kind, uint64_t key, bool done)
{
    owned_closed(pool, owned_end_begins(pool, kind, key), done);
}

Test(unpooled, what_others_have_taken_is_told_until_it_is_closed_as_often_as_opened)
{
    start_limited();
    owned_opened(pool, OWNED_IPC, ADDRESS, 2 * LIMIT);
    owned_opened(pool, OWNED_IPC, ADDRESS, 2 * LIMIT);
    owned_opened(pool, OWNED_EXTERNAL, ADDRESS, MIB);
    cr_expect_eq(opened_bytes(), 2 * LIMIT + MIB);
    close_once(OWNED_IPC, ADDRESS, true);
    close_once(OWNED_IPC, ADDRESS, false);
    cr_expect_eq(opened_bytes(), 2 * LIMIT + MIB);
    close_once(OWNED_IPC, ADDRESS, true);
    cr_expect_eq(opened_bytes(), MIB);
    close_once(OWNED_IPC, ADDRESS, true);
    close_once(OWNED_EXTERNAL, ADDRESS, true);
    cr_expect_eq(opened_bytes(), 0);
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_OPENED].peak_bytes), 2 * LIMIT + MIB);
}

/* The driver gives each import a handle of its own. */
Test(unpooled, an_import_whose_handle_comes_again_is_other_memory)
{
    start_limited();
    owned_opened(pool, OWNED_EXTERNAL, HANDLE, LIMIT);
    struct owned *old = owned_end_begins(pool, OWNED_EXTERNAL, HANDLE);
    owned_opened(pool, OWNED_EXTERNAL, HANDLE, MIB);
    owned_closed(pool, old, true);
    cr_expect_eq(opened_bytes(), MIB);
}

static CUresult range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    *bytes = address == ADDRESS ? 3 * MIB : 0;
    return base ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

Test(unpooled, the_driver_tells_how_much_another_process_has_shared)
{
    start_limited();
    driver->cuMemGetAddressRange_v2 = range;
    owned_opened(pool, OWNED_IPC, ADDRESS, 0);
    owned_opened(pool, OWNED_IPC, ADDRESS + MIB, 0);
    cr_expect_eq(opened_bytes(), 3 * MIB);
}

Test(unpooled, a_context_takes_its_own_with_it)
{
    start_limited();
    struct context *own = context_record();
    struct owned_coming late;
    take_managed(ADDRESS, MIB);
    create(HANDLE, MIB);
    CUcontext first = context;
    context = fake_context(0);
    pool_context_created(pool, context);
    take_managed(ADDRESS + MIB, 2 * MIB);
    fake_set_current(first);
    cr_assert(owned_managed_begins(pool, MIB, &late));
    struct ending ending = pool_context_ending(pool, first);
    fake_end_context(first);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    owned_began(pool, &late, true, ADDRESS + 4 * MIB);
    fake_set_current(context);
    cr_expect_neq(own, context_record());
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 2 * MIB);
    cr_expect_eq(bytes_of(UNPOOLED_PHYSICAL), MIB);
}

Test(unpooled, a_context_that_ends_during_a_free_leaves_nothing)
{
    start_limited();
    take_managed(ADDRESS, MIB);
    struct owned *owned = owned_end_begins(pool, OWNED_MANAGED, ADDRESS);
    CUcontext first = context;
    struct ending ending = pool_context_ending(pool, first);
    fake_end_context(first);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    owned_ended(pool, owned, false);
    context = fake_context(0);
    pool_context_created(pool, context);
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 0);
}

Test(unpooled, what_went_unseen_is_replaced)
{
    start_limited();
    take_managed(ADDRESS, MIB);
    take_managed(ADDRESS, 2 * MIB);
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 2 * MIB);
    cr_expect(pool_freed_outside(pool, ADDRESS));
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 0);
    take_managed(ADDRESS, MIB);
    pool_forget_address(pool, ADDRESS);
    cr_expect_eq(bytes_of(UNPOOLED_MANAGED), 0);
}

/* Its pages may be on the host, where they are in nobody's way. */
Test(unpooled, managed_memory_makes_no_device_short)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = MIB * MIB};
    start();
    take_managed(ADDRESS, device()->total_bytes - MIB);
    release(allocate(4 * KIB));
    cr_expect_not(device_is_short(device()));
    cr_expect_gt(room_left(pool, context_record(), monotonic_now()), 2 * MIB);
}

/* ---- arrays ---- */

enum { U8 = CU_AD_FORMAT_UNSIGNED_INT8, HALF = CU_AD_FORMAT_HALF, FLOAT = CU_AD_FORMAT_FLOAT };
enum { BC1 = 0x91, BC7 = 0x9d, U8X4 = 0xc2, NV12 = 0xb0 };

/* As tests/conformance has them of a GPU, which takes whole pages past 1 MiB. */
Test(unpooled, an_array_counts_as_the_pages_that_it_takes)
{
    static const struct shape {
        CUDA_ARRAY3D_DESCRIPTOR array;
        unsigned levels;
        uint64_t kib;
    } shapes[] = {
        {{1, 0, 0, FLOAT, 1, 0}, 0, 64},
        {{8192, 0, 0, FLOAT, 1, 0}, 0, 256},
        {{100000, 0, 0, FLOAT, 1, 0}, 0, 4096},
        {{1000, 1000, 0, U8, 1, 0}, 0, 1024},
        {{1000, 1000, 0, U8, 2, 0}, 0, 2048},
        {{1000, 1000, 0, HALF, 4, 0}, 0, 8192},
        {{1000, 1000, 0, FLOAT, 4, 0}, 0, 16384},
        {{1000, 1000, 0, U8X4, 4, 0}, 0, 4096},
        {{1024, 1024, 0, BC1, 4, 0}, 0, 512},
        {{1000, 1000, 0, BC7, 4, 0}, 0, 1024},
        {{513, 513, 0, FLOAT, 1, 0}, 0, 2048},
        {{5000, 5000, 0, FLOAT, 1, 0}, 0, 100352},
        {{100, 100, 100, FLOAT, 1, 0}, 0, 6144},
        {{33, 65, 17, FLOAT, 1, 0}, 0, 448},
        {{300, 20, 7, FLOAT, 1, 0}, 0, 256},
        {{1000, 0, 6, FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 0, 192},
        {{300, 300, 6, FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}, 0, 4096},
        {{1024, 1024, 0, FLOAT, 1, 0}, 11, 6144},
        {{1000, 700, 0, HALF, 4, 0}, 5, 8192},
        {{100, 100, 100, FLOAT, 1, 0}, 7, 6144},
        {{1000, 1000, 0, FLOAT, 1, 0}, 99, 6144},
        {{1920, 1080, 0, NV12, 3, 0}, 0, 0},
        {{1000, 1000, 0, FLOAT, 1, CUDA_ARRAY3D_SPARSE}, 0, 0},
        {{1000, 1000, 0, FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING}, 0, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        cr_expect_eq(array_bytes(&shapes[i].array, shapes[i].levels), shapes[i].kib * KIB,
                     "shape %zu", i);
}

Test(unpooled, an_array_past_all_sizes_is_not_a_small_one)
{
    CUDA_ARRAY3D_DESCRIPTOR huge = {SIZE_MAX, SIZE_MAX, SIZE_MAX, FLOAT, 4, 0};
    struct owned_coming coming;
    start_limited();
    cr_expect_gt(array_bytes(&huge, 0), SIZE_MAX / 2);
    cr_expect_gt(array_bytes(&huge, 99), SIZE_MAX / 2);
    cr_expect_not(owned_array_begins(pool, &huge, 0, &coming));
    cr_expect_eq(bytes_of(UNPOOLED_ARRAYS), 0);
}

/* ---- graphs ---- */

static uint64_t reserved_for_graphs;

static CUresult get_reserved(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    (void)ordinal;
    cr_assert_eq(attribute, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    *(uint64_t *)value = reserved_for_graphs;
    return CUDA_SUCCESS;
}

static void launched(uint64_t bytes)
{
    driver->cuDeviceGetGraphMemAttribute = get_reserved;
    reserved_for_graphs = bytes;
    pool_note_graph_launch(pool, false);
}

Test(unpooled, what_graphs_take_counts_after_the_launch_past_the_limit_too)
{
    struct unpooled taken;
    start_limited();
    launched(MIB);
    cr_expect_eq(bytes_of(UNPOOLED_GRAPHS), 0, "no graph has nodes that allocate");
    atomic_store(&pool->graphs_allocate, true);
    launched(LIMIT + MIB);
    cr_expect_eq(bytes_of(UNPOOLED_GRAPHS), LIMIT + MIB);
    cr_expect_eq(device_reserved(device()), LIMIT + MIB);
    cr_expect_not(physical_create_begins(pool, 0, MIB, &taken));
    reserved_for_graphs = MIB;
    pool_graphs_may_be_gone(pool);
    cr_expect_eq(device_reserved(device()), MIB);
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_GRAPHS].bytes), MIB);
    cr_expect_eq(counter_get(&device()->unpooled[UNPOOLED_GRAPHS].peak_bytes), LIMIT + MIB);
}

/* Beside the first answer, another thread launches what takes more, and leaves the question to this
 * one. */
static CUresult answer_beside_a_launch(CUdevice ordinal, CUgraphMem_attribute attribute,
                                       void *value)
{
    CUresult result = get_reserved(ordinal, attribute, value);
    if (reserved_for_graphs == 2 * MIB)
        atomic_fetch_add(&device()->graph_calls, 1);
    reserved_for_graphs = 3 * MIB;
    return result;
}

Test(unpooled, what_graphs_take_while_the_driver_is_asked_counts_too)
{
    start_limited();
    atomic_store(&pool->graphs_allocate, true);
    launched(MIB);
    driver->cuDeviceGetGraphMemAttribute = answer_beside_a_launch;
    reserved_for_graphs = 2 * MIB;
    pool_graphs_may_be_gone(pool);
    cr_expect_eq(bytes_of(UNPOOLED_GRAPHS), 3 * MIB);
    cr_expect_eq(device_reserved(device()), 3 * MIB);
    cr_expect_eq(atomic_load(&device()->graph_calls), 0);
}

static CUresult trim(CUdevice ordinal)
{
    (void)ordinal;
    reserved_for_graphs = MIB;
    return CUDA_SUCCESS;
}

Test(unpooled, past_a_limit_the_memory_of_graphs_makes_room)
{
    start_limited();
    driver->cuDeviceGraphMemTrim = trim;
    atomic_store(&pool->graphs_allocate, true);
    launched(LIMIT);
    create(HANDLE, LIMIT - MIB);
    cr_expect_eq(bytes_of(UNPOOLED_GRAPHS), MIB);
    cr_expect_eq(device_reserved(device()), LIMIT);
}

Test(unpooled, what_graphs_take_is_followed_where_no_limit_holds_any_more)
{
    start_limited();
    atomic_store(&pool->graphs_allocate, true);
    launched(2 * MIB);
    atomic_store(&device()->limits[BOARD_LIMIT_OF_PROCESS], UINT64_MAX);
    launched(MIB);
    cr_expect_eq(device_reserved(device()), MIB);
}

Test(unpooled, without_limit_and_report_nobody_asks_about_graphs)
{
    settings.report.at_exit = REPORT_NONE;
    start();
    atomic_store(&pool->graphs_allocate, true);
    launched(MIB);
    cr_expect_eq(bytes_of(UNPOOLED_GRAPHS), 0);
}
