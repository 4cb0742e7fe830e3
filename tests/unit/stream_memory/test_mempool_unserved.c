/*
 * The driver's memory pools of managed and of host memory: their release thresholds, and when what
 * they keep goes back.
 */
#include <pthread.h>
#include <unistd.h>

#include "core/stream_memory/mempool_unserved.h"
#include "machine_fixture.h"
#include "streams_fixture.h"

#define SECOND (UINT64_C(1000) * 1000 * 1000)

static _Atomic unsigned trims;
static _Atomic bool trim_is_held, trim_is_inside;

static CUresult trim_to(CUmemoryPool memory_pool, size_t bytes)
{
    /* The devices' default pools come first. */
    bool is_unserved = (uintptr_t)memory_pool >= 0x102;
    cr_assert_eq(bytes, 0);
    trims += is_unserved;
    trim_is_inside = true;
    while (trim_is_held)
        usleep(1000);
    return CUDA_SUCCESS;
}

static void set_up_unserved(void)
{
    set_up_streams();
    driver->cuMemPoolTrimTo = trim_to;
    settings.host.caps.cached = (struct byte_size){.bytes = 64 * MIB};
    settings.stream_ordered.unserved_release_threshold = (struct byte_size){.bytes = 512 * MIB};
    settings.stream_ordered.release_after_idle_ns = 10 * SECOND;
    trims = 0;
    trim_is_held = trim_is_inside = false;
}

TestSuite(mempool_unserved, .init = set_up_unserved, .fini = tear_down, .timeout = 20);

static const CUmemLocation on_device = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                           on_host = {CU_MEM_LOCATION_TYPE_HOST, 0},
                           on_node = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                           nowhere = {CU_MEM_LOCATION_TYPE_NONE, 0};

static CUmemoryPool meet(const CUmemLocation *location, CUmemAllocationType type)
{
    CUmemoryPool met = fake_mempool(0);
    pool_mempool_met(pool, met, location, type);
    return met;
}

static CUmemoryPool meet_managed(void)
{
    return meet(&on_device, CU_MEM_ALLOCATION_TYPE_MANAGED);
}

static CUmemoryPool meet_host(void)
{
    return meet(&on_host, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static uint64_t threshold_of(CUmemoryPool memory_pool)
{
    return *fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
}

static uint64_t read_back(CUmemoryPool memory_pool)
{
    cuuint64_t value = threshold_of(memory_pool);
    pool_mempool_got(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    return value;
}

static void set_threshold(CUmemoryPool memory_pool, cuuint64_t value)
{
    pool_mempool_setting(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    *fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = value;
    pool_mempool_set(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
}

/* The program uses some pool. */
static void use_one(void)
{
    pool_mempool_passed_by(pool);
}

/* ---- the threshold ---- */

Test(mempool_unserved, managed_memory_has_that_of_the_settings)
{
    start_streams();
    CUmemoryPool managed = meet_managed();
    cr_assert_eq(threshold_of(managed), 512 * MIB);
    cr_assert_eq(read_back(managed), 0);
}

Test(mempool_unserved, the_machines_memory_is_kept_up_to_the_cap_of_pinned_memory)
{
    start_streams();
    cr_assert_eq(threshold_of(meet_host()), 64 * MIB);
    cr_assert_eq(threshold_of(meet(&on_node, CU_MEM_ALLOCATION_TYPE_PINNED)), 64 * MIB);
    cr_assert_eq(threshold_of(meet(&nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED)), 64 * MIB);
    cr_assert_eq(threshold_of(meet(&on_host, CU_MEM_ALLOCATION_TYPE_MANAGED)), 64 * MIB);
}

Test(mempool_unserved, or_up_to_the_threshold_of_the_settings_if_that_is_less)
{
    settings.stream_ordered.unserved_release_threshold.bytes = 3 * MIB;
    start_streams();
    cr_assert_eq(threshold_of(meet_host()), 3 * MIB);
}

Test(mempool_unserved, and_not_at_all_where_pinned_memory_is_switched_off)
{
    settings.host.enabled = false;
    start_streams();
    cr_assert_eq(threshold_of(meet_host()), 0);
    cr_assert_eq(threshold_of(meet_managed()), 512 * MIB);
}

Test(mempool_unserved, a_share_is_one_of_the_device_or_of_the_machine)
{
    const struct byte_size share = {.percent = 1};
    settings.stream_ordered.unserved_release_threshold = share;
    settings.host.caps.cached.percent = 50;
    start_streams();
    cr_assert_eq(threshold_of(meet_managed()),
                 byte_size_resolve(&share, context_device(pool, 0)->total_bytes));
    uint64_t of_machine = threshold_of(meet_host());
    const struct machine *read = streams_of(pool)->machine;
    cr_assert_eq(of_machine, byte_size_resolve(&share, read->memory_bytes));
}

Test(mempool_unserved, the_threshold_of_the_devices_own_pool_is_none_of_theirs)
{
    settings.stream_ordered.driver_release_threshold.unlimited = true;
    start_streams();
    cr_assert_eq(threshold_of(meet_host()), 64 * MIB);
    cr_assert_eq(threshold_of(meet_managed()), 512 * MIB);
}

/* ---- unless the settings have one ---- */

/* Each in turn is met, used, and given every occasion to be trimmed. */
static void use_left_one(CUmemoryPool left)
{
    cr_assert_eq(threshold_of(left), 0);
    cr_assert_null(mempool_find_known(pool, left));
    use_one();
    cr_assert_eq(atomic_load(&pool->drivers_pools), DRIVERS_POOLS_NONE);
    cr_assert_not(mempool_trim_unserved(pool, true));
    cr_assert_eq(mempool_look_after_unserved(pool, 100 * SECOND), UINT64_MAX);
    cr_assert_eq(mempool_look_after_unserved(pool, 200 * SECOND), UINT64_MAX);
    pool_trim(pool);
}

Test(mempool_unserved, by_default_they_are_left_as_they_are)
{
    struct settings defaults;
    settings_defaults(&defaults);
    settings.stream_ordered.unserved_release_threshold =
        defaults.stream_ordered.unserved_release_threshold;
    start_streams();
    use_left_one(meet_managed());
    use_left_one(meet_host());
    use_left_one(meet(&on_node, CU_MEM_ALLOCATION_TYPE_PINNED));
    use_left_one(meet(&nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
    cr_assert_eq(trims, 0);
    cr_assert_null(mempool_first(streams_of(pool)));
    cr_assert_null(streams_of(pool)->machine);
}

/* ---- what else they are ---- */

Test(mempool_unserved, a_devices_own_memory_is_none_of_theirs)
{
    start_streams();
    CUmemoryPool own = meet(&on_device, CU_MEM_ALLOCATION_TYPE_PINNED);
    cr_assert_eq(threshold_of(own), 0);
    use_one();
    pool_trim(pool);
    cr_assert_eq(trims, 0);
}

Test(mempool_unserved, what_the_program_sets_stays)
{
    start_streams();
    CUmemoryPool managed = meet_managed();
    set_threshold(managed, 77);
    cr_assert_eq(read_back(managed), 77);
    pool_mempool_met(pool, managed, &on_device, CU_MEM_ALLOCATION_TYPE_MANAGED);
    cr_assert_eq(read_back(managed), 77);
    set_threshold(managed, 0);
    cr_assert_eq(read_back(managed), 0);
    use_one();
    pool_trim(pool);
    cr_assert_eq(trims, 0);
}

Test(mempool_unserved, and_what_it_has_set_before)
{
    start_streams();
    CUmemoryPool managed = fake_mempool(0);
    *fake_mempool_attribute(managed, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = 77;
    pool_mempool_met(pool, managed, &on_device, CU_MEM_ALLOCATION_TYPE_MANAGED);
    cr_assert_eq(threshold_of(managed), 77);
    cr_assert_eq(read_back(managed), 77);
}

Test(mempool_unserved, nothing_is_served_from_them)
{
    start_streams();
    CUmemoryPool managed = meet_managed();
    CUdeviceptr address = 0;
    CUresult result = CUDA_SUCCESS;
    cr_assert_not(take_at_once(&address, MIB, managed, one));
    cr_assert_not(pool_allocate_async(pool, &address, MIB, &managed, one, &result));
    cr_assert_not(take_at_once(&address, MIB, managed, one));
}

Test(mempool_unserved, used_bytes_are_the_drivers)
{
    start_streams();
    CUmemoryPool managed = meet_managed();
    cuuint64_t used = 5 * MIB;
    pool_mempool_got(pool, managed, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    cr_assert_eq(used, 5 * MIB);
    pool_mempool_got(pool, managed, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used);
    cr_assert_eq(used, 5 * MIB);
}

Test(mempool_unserved, a_capture_forbids_nothing_of_it)
{
    start_streams();
    begin_capture(other);
    cr_assert_eq(threshold_of(meet_managed()), 512 * MIB);
    use_one();
    pool_trim(pool);
    end_capture(other);
    cr_assert_eq(fake_misuses(), 0);
}

Test(mempool_unserved, a_driver_that_cannot_trim_is_asked_for_nothing)
{
    driver->cuMemPoolTrimTo = NULL;
    start_streams();
    meet_host();
    use_one();
    cr_assert_not(mempool_trim_unserved(pool, true));
    cr_assert_eq(mempool_look_after_unserved(pool, 100 * SECOND), UINT64_MAX);
}

/* ---- giving back ---- */

Test(mempool_unserved, they_are_trimmed_where_memory_is_short)
{
    start_streams();
    meet_managed();
    meet_host();
    cr_assert_not(mempool_trim_unserved(pool, true));
    use_one();
    cr_assert(mempool_trim_unserved(pool, false));
    cr_assert_eq(trims, 1, "on a device managed memory alone");
    cr_assert(mempool_trim_unserved(pool, true));
    cr_assert_eq(trims, 3);
}

Test(mempool_unserved, an_allocation_that_fails_gets_it)
{
    start_streams();
    meet_managed();
    use_one();
    struct reclaim progress = {.bytes = MIB};
    while (pool_make_room(pool, &progress))
        continue;
    cr_assert_eq(trims, 1);
}

Test(mempool_unserved, idle_ones_are_trimmed_once)
{
    start_streams();
    meet_managed();
    use_one();
    mempool_look_after_unserved(pool, 100 * SECOND);
    mempool_look_after_unserved(pool, 109 * SECOND);
    cr_assert_eq(trims, 0);
    mempool_look_after_unserved(pool, 110 * SECOND);
    cr_assert_eq(trims, 1);
    mempool_look_after_unserved(pool, 130 * SECOND);
    cr_assert_eq(trims, 1);
}

Test(mempool_unserved, each_use_begins_the_time_anew)
{
    start_streams();
    meet_managed();
    use_one();
    mempool_look_after_unserved(pool, 100 * SECOND);
    use_one();
    mempool_look_after_unserved(pool, 109 * SECOND);
    mempool_look_after_unserved(pool, 118 * SECOND);
    cr_assert_eq(trims, 0);
    mempool_look_after_unserved(pool, 119 * SECOND);
    cr_assert_eq(trims, 1);
    use_one();
    mempool_look_after_unserved(pool, 120 * SECOND);
    mempool_look_after_unserved(pool, 130 * SECOND);
    cr_assert_eq(trims, 2);
}

Test(mempool_unserved, not_for_being_idle_where_the_settings_say_so)
{
    settings.stream_ordered.release_after_idle_ns = 0;
    start_streams();
    meet_managed();
    use_one();
    mempool_look_after_unserved(pool, 100 * SECOND);
    mempool_look_after_unserved(pool, 1000 * SECOND);
    cr_assert_eq(trims, 0);
}

/* A machine whose cgroup has 1 GiB, a sixteenth of which is to be left. */
static void live_in_a_cgroup(uint64_t mib_used)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)mib_used * MIB);
    file("/sys/fs/cgroup/job/memory.current", text);
    file("/sys/fs/cgroup/job/memory.stat", "inactive_file 0\n");
}

Test(mempool_unserved, what_they_keep_is_left_to_the_cgroup)
{
    make_root();
    file("/proc/self/cgroup", "0::/job\n");
    file("/proc/self/mountinfo",
         "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    file("/sys/fs/cgroup/job/memory.max", "1073741824\n");
    live_in_a_cgroup(100);
    start_streams();
    machine_read(&machine, root);
    streams_of(pool)->machine = &machine;
    meet_host();
    use_one();
    mempool_look_after_unserved(pool, 100 * SECOND);
    mempool_look_after_unserved(pool, 101 * SECOND);
    cr_assert_eq(trims, 0);
    live_in_a_cgroup(1000);
    mempool_look_after_unserved(pool, 102 * SECOND);
    cr_assert_eq(trims, 1);
    remove_root();
}

/* ---- the end of one ---- */

static void *give_back_all(void *unused)
{
    pool_trim(pool);
    return unused;
}

static _Atomic bool is_destroyed;

static void *destroy(void *memory_pool)
{
    pool_mempool_destroying(pool, memory_pool);
    is_destroyed = true;
    pool_mempool_destroyed(pool, memory_pool, CUDA_SUCCESS);
    return NULL;
}

Test(mempool_unserved, destroying_waits_for_who_trims)
{
    pthread_t trimming, destroying;
    start_streams();
    CUmemoryPool managed = meet_managed();
    use_one();
    trim_is_held = true;
    cr_assert_eq(pthread_create(&trimming, NULL, give_back_all, NULL), 0);
    while (!trim_is_inside)
        usleep(1000);
    cr_assert_eq(pthread_create(&destroying, NULL, destroy, managed), 0);
    usleep(100 * 1000);
    cr_assert_not(is_destroyed);
    trim_is_held = false;
    pthread_join(destroying, NULL);
    pthread_join(trimming, NULL);
    cr_assert(is_destroyed);
    pool_trim(pool);
    cr_assert_eq(trims, 1);
}

Test(mempool_unserved, one_that_is_being_destroyed_is_not_trimmed)
{
    start_streams();
    CUmemoryPool managed = meet_managed();
    use_one();
    pool_mempool_destroying(pool, managed);
    pool_trim(pool);
    cr_assert_eq(trims, 0);
    pool_mempool_destroyed(pool, managed, CUDA_ERROR_INVALID_VALUE);
    pool_trim(pool);
    cr_assert_eq(trims, 1);
}

Test(mempool_unserved, records_serve_the_next_one)
{
    start_streams();
    CUmemoryPool managed = meet_managed();
    struct mempool *record = mempool_find_known(pool, managed);
    destroy(managed);
    cr_assert_null(mempool_find_known(pool, managed));
    CUmemoryPool host = meet_host();
    cr_assert_eq(mempool_find_known(pool, host), record);
    use_one();
    cr_assert_not(mempool_trim_unserved(pool, false));
    cr_assert(mempool_trim_unserved(pool, true));
}
