/*
 * Pinned host memory: large blocks by hand, in huge pages.
 */
#include "host_fixture.h"

#include <errno.h>
#include <sys/mman.h>

static void set_up_with_huge_pages(void)
{
    host_set_up();
    settings.host.large = HOST_LARGE_HUGE_PAGES;
}

TestSuite(host_large, .init = set_up_with_huge_pages, .fini = host_tear_down, .timeout = 60);

static bool is_mapped(void *memory)
{
    unsigned char in_memory;
    return mincore(memory, 4096, &in_memory) == 0 || errno != ENOMEM;
}

static bool is_registered(void *memory)
{
    return pool_has_registered(pool, memory);
}

Test(host_large, a_large_block_is_mapped_and_registered)
{
    host_start();
    char *block = allocate_host(5 * MIB);
    cr_assert_str_eq(fake_trace(), "host-register");
    cr_assert_eq((uintptr_t)block % (2 * MIB), 0);
    cr_assert_eq(fake_host_registered(), 6 * MIB);
    cr_assert_eq(fake_host_bytes(), 0);
    memset(block, 1, 5 * MIB);
    struct pointer_answer answer = ask(block, 5 * MIB - 1);
    cr_assert_eq(answer.kind, POINTER_LIVE);
    cr_assert_eq(answer.bytes, 5 * MIB);
    cr_assert(is_registered(block));
    cr_assert(is_registered(block + 5 * MIB - 1));
    cr_assert_not(is_registered(block + 6 * MIB));
}

Test(host_large, every_page_is_there_before_it_is_registered)
{
    unsigned char in_memory[MIB / 1024];
    host_start();
    char *block = allocate_host(4 * MIB);
    cr_assert_eq(mincore(block, 4 * MIB, in_memory), 0);
    for (size_t i = 0; i < 4 * MIB / 4096; i++)
        cr_assert(in_memory[i] & 1);
}

static CUresult (*register_it)(void *, size_t, unsigned int);
static unsigned flags_seen;

static CUresult register_and_note(void *address, size_t bytes, unsigned int flags)
{
    flags_seen = flags;
    return register_it(address, bytes, flags);
}

Test(host_large, the_registration_has_the_flags_of_the_request)
{
    register_it = driver->cuMemHostRegister_v2;
    driver->cuMemHostRegister_v2 = register_and_note;
    host_start();
    allocate_flags(2 * MIB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    cr_assert_eq(flags_seen, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    void *plain = NULL;
    cr_assert_eq(pool_allocate_host_plainly(pool, &plain, 2 * MIB), CUDA_SUCCESS);
    cr_assert_eq(flags_seen, 0);
    cr_assert_eq(fake_calls(FAKE_HOST_REGISTER), 2);
}

Test(host_large, a_small_block_is_the_drivers)
{
    host_start();
    void *block = allocate_host(MIB + 512 * KIB);
    cr_assert_str_eq(fake_trace(), "host-alloc");
    cr_assert_not(is_registered(block));
}

Test(host_large, a_write_combined_block_is_the_drivers)
{
    host_start();
    allocate_flags(4 * MIB, CU_MEMHOSTALLOC_WRITECOMBINED);
    cr_assert_str_eq(fake_trace(), "host-alloc");
}

Test(host_large, without_the_settings_a_large_block_is_the_drivers)
{
    settings.host.large = HOST_LARGE_DRIVER;
    host_start();
    allocate_host(4 * MIB);
    cr_assert_str_eq(fake_trace(), "host-alloc");
}

Test(host_large, without_the_functions_a_large_block_is_the_drivers)
{
    driver->cuMemHostUnregister = NULL;
    host_start();
    allocate_host(4 * MIB);
    cr_assert_str_eq(fake_trace(), "host-alloc");
}

static void *mapped;

static CUresult refuse_and_note(void *address, size_t bytes, unsigned int flags)
{
    (void)bytes, (void)flags;
    mapped = address;
    return CUDA_ERROR_NOT_PERMITTED;
}

static void look_whether_it_is_mapped(void *is)
{
    *(bool *)is = is_mapped(mapped);
}

Test(host_large, where_it_cannot_be_registered_the_driver_makes_it)
{
    /* As the driver is asked: later others may be where it was. */
    bool is_there = true;
    fake_during(FAKE_HOST_ALLOC, look_whether_it_is_mapped, &is_there);
    driver->cuMemHostRegister_v2 = refuse_and_note;
    host_start();
    void *block = allocate_host(4 * MIB);
    cr_assert(fake_is_host_allocated(block));
    cr_assert_not(is_registered(block));
    cr_assert_not(is_there, "what was mapped is gone");
    release_host(block);
    cr_assert_eq(pool_trim(pool), 4 * MIB);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 1);
}

Test(host_large, where_neither_works_the_drivers_error_is_handed_on)
{
    host_start();
    fake_fail(FAKE_HOST_REGISTER, CUDA_ERROR_NOT_PERMITTED, 1);
    fake_fail(FAKE_HOST_ALLOC, CUDA_ERROR_LAUNCH_FAILED, 1);
    cr_assert_eq(try_to_allocate_host(4 * MIB), CUDA_ERROR_LAUNCH_FAILED);
}

Test(host_large, it_is_reused_like_any_other)
{
    host_start();
    void *block = allocate_host(4 * MIB);
    release_host(block);
    synchronise();
    fake_trace();
    cr_assert_eq(allocate_host(4 * MIB), block);
    cr_assert_str_eq(fake_trace(), "");
}

Test(host_large, it_goes_back_by_the_end_of_its_registration_and_is_unmapped)
{
    host_start();
    void *block = allocate_host(4 * MIB);
    release_host(block);
    synchronise();
    cr_assert_eq(pool_trim(pool), 4 * MIB);
    cr_assert_eq(fake_calls(FAKE_HOST_UNREGISTER), 1);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    cr_assert_eq(fake_host_registered(), 0);
    cr_assert_not(is_mapped(block));
}

Test(host_large, one_that_the_driver_does_not_give_up_stays_mapped)
{
    host_start();
    void *block = allocate_host(4 * MIB);
    release_host(block);
    synchronise();
    fake_fail(FAKE_HOST_UNREGISTER, CUDA_ERROR_NOT_PERMITTED, 1);
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert(is_mapped(block));
    cr_assert_eq(allocate_host(4 * MIB), block);
}

Test(host_large, one_whose_registration_the_program_has_ended_is_forgotten)
{
    host_start();
    void *block = allocate_host(4 * MIB);
    release_host(block);
    synchronise();
    cr_assert_eq(driver->cuMemHostUnregister(block), CUDA_SUCCESS);
    cr_assert_eq(pool_trim(pool), 4 * MIB);
    cr_assert_eq(host_kept().cached, 0);
}

Test(host_large, a_context_that_ends_leaves_no_mapping)
{
    host_start();
    void *live = allocate_host(4 * MIB), *freed = allocate_host(8 * MIB);
    release_host(freed);
    end_context(context);
    cr_assert_not(is_mapped(live));
    cr_assert_not(is_mapped(freed));
    cr_assert_eq(fake_calls(FAKE_HOST_UNREGISTER), 0);
    context = another_context(0);
}

Test(host_large, it_is_freed_without_a_current_context)
{
    settings.host.buckets.largest = (struct byte_size){.bytes = MIB};
    host_start();
    void *block = allocate_host(4 * MIB);
    fake_set_current(NULL);
    release_host(block);
    fake_set_current(context);
    cr_assert_not(is_mapped(block));
}

Test(host_large, a_thread_without_a_current_context_gives_it_back)
{
    host_start();
    void *block = allocate_host(4 * MIB);
    release_host(block);
    synchronise();
    fake_set_current(NULL);
    cr_assert_eq(pool_trim(pool), 4 * MIB);
    fake_set_current(context);
    cr_assert_not(is_mapped(block));
}

Test(host_large, out_of_memory_what_is_cached_goes_back)
{
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(2, 4 * MIB);
    synchronise();
    allocate_host(8 * MIB);
    cr_assert_eq(host_counted().evictions.memory, 2);
    cr_assert_eq(fake_host_registered(), 8 * MIB);
}

Test(host_large, one_that_is_not_kept_is_given_back_in_its_free)
{
    settings.host.buckets.largest = (struct byte_size){.bytes = MIB};
    host_start();
    void *block = allocate_host(3 * MIB);
    fake_launch(context);
    release_host(block);
    cr_assert_eq(fake_host_waits(), 1);
    cr_assert_not(is_mapped(block));
}
