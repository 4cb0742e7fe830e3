/*
 * Device scalars: when a slot of pinned memory is written again, who waits, and what is refused.
 */
#include "core/base/clock.h"
#include "core/scalars/scalars.h"
#include "streams_fixture.h"

TestSuite(scalars, .init = set_up_streams, .fini = tear_down, .timeout = 20);

/* ---- what the driver was asked to copy ---- */

#define COPIES 4096u

static struct copy {
    CUdeviceptr to;
    const void *from;
    uint64_t value;
    size_t bytes;
    CUstream stream;
} copies[COPIES];
static unsigned copy_count, pieces;
static CUresult copy_result, piece_result;

static CUresult copy_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    if (copy_result != CUDA_SUCCESS)
        return copy_result;
    cr_assert_lt(copy_count, COPIES);
    struct copy *copy = &copies[copy_count++];
    *copy = (struct copy){.to = to, .from = from, .bytes = bytes, .stream = stream};
    memcpy(&copy->value, from, bytes < sizeof copy->value ? bytes : sizeof copy->value);
    fake_stream_works(stream);
    return CUDA_SUCCESS;
}

/* Memory that can be written, where the fake's is a number. */
static CUresult host_alloc(void **memory, size_t bytes, unsigned int flags)
{
    cr_assert_eq(flags, 0);
    cr_assert_eq(bytes, SLOTS_OF_PIECE * SCALAR_BYTES);
    if (piece_result != CUDA_SUCCESS)
        return piece_result;
    pieces++;
    *memory = calloc(1, bytes);
    return CUDA_SUCCESS;
}

static void start_scalars(void)
{
    copy_count = pieces = 0;
    copy_result = piece_result = CUDA_SUCCESS;
    driver->cuMemcpyHtoDAsync_v2 = copy_to_device;
    driver->cuMemHostAlloc = host_alloc;
    start_streams();
}

static uint64_t new_scalar(size_t bytes)
{
    uint64_t scalar = pool_scalar_create(pool, bytes);
    cr_assert_neq(scalar, 0);
    return scalar;
}

static CUresult set(uint64_t scalar, uint64_t value, CUstream stream)
{
    return pool_scalar_set(pool, scalar, &value, stream);
}

static void set_many(uint64_t scalar, unsigned count, CUstream stream)
{
    for (unsigned i = 0; i < count; i++)
        cr_assert_eq(set(scalar, i, stream), CUDA_SUCCESS);
}

static void nothing_is_overwritten(void)
{
    for (unsigned i = 0; i < copy_count; i++)
        cr_assert_eq(memcmp(copies[i].from, &copies[i].value, sizeof copies[i].value), 0,
                     "value %u was overwritten", i);
}

/* ---- what is copied ---- */

Test(scalars, a_value_goes_to_its_address_on_the_stream)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    cr_assert_eq(set(scalar, 4711, one), CUDA_SUCCESS);
    cr_assert_eq(copy_count, 1);
    cr_assert_eq(copies[0].to, pool_scalar_address(pool, scalar));
    cr_assert_eq(copies[0].value, 4711);
    cr_assert_eq(copies[0].bytes, 8);
    cr_assert_eq(copies[0].stream, one);
    cr_assert(fake_is_allocated(copies[0].to));
}

Test(scalars, sizes_are_from_1_to_64_bytes)
{
    start_scalars();
    cr_assert_eq(pool_scalar_create(pool, 0), 0);
    cr_assert_eq(pool_scalar_create(pool, 65), 0);
    char value[64];
    memset(value, 7, sizeof value);
    cr_assert_eq(pool_scalar_set(pool, new_scalar(64), value, one), CUDA_SUCCESS);
    cr_assert_eq(copies[0].bytes, 64);
    cr_assert_eq(memcmp(copies[0].from, value, sizeof value), 0);
}

/* ---- the ring ---- */

Test(scalars, what_is_on_its_way_is_not_overwritten)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    fake_stream_works(one);
    set_many(scalar, SLOTS_AT_MOST, one);
    nothing_is_overwritten();
    cr_assert_eq(pieces, SLOTS_AT_MOST / SLOTS_OF_PIECE);
}

Test(scalars, what_is_over_is_used_again)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    for (unsigned i = 0; i < 3 * SLOTS_OF_PIECE; i++) {
        cr_assert_eq(set(scalar, i, one), CUDA_SUCCESS);
        fake_stream_is_done(one);
    }
    cr_assert_eq(pieces, 1);
}

Test(scalars, only_the_oldest_that_is_over_is_used_again)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    set_many(scalar, 1, one);
    set_many(scalar, SLOTS_OF_PIECE - 1, other);
    fake_stream_is_done(one);
    cr_assert_eq(set(scalar, 99, other), CUDA_SUCCESS);
    cr_assert_eq(copies[SLOTS_OF_PIECE].from, copies[0].from);
    cr_assert_eq(set(scalar, 100, other), CUDA_SUCCESS);
    cr_assert_eq(pieces, 2);
}

Test(scalars, scalars_of_a_context_share_the_ring)
{
    start_scalars();
    uint64_t first = new_scalar(8), second = new_scalar(4);
    set_many(first, SLOTS_OF_PIECE / 2, one);
    set_many(second, SLOTS_OF_PIECE / 2, other);
    cr_assert_eq(pieces, 1);
    nothing_is_overwritten();
}

static void *let_one_go_on(void *unused)
{
    (void)unused;
    struct timespec while_ = {0, 50000000};
    nanosleep(&while_, NULL);
    fake_stream_is_done(one);
    return NULL;
}

Test(scalars, a_full_ring_waits_for_the_oldest)
{
    start_scalars();
    stop_looking_at_locks();
    uint64_t scalar = new_scalar(8);
    set_many(scalar, SLOTS_AT_MOST, one);
    pthread_t thread;
    pthread_create(&thread, NULL, let_one_go_on, NULL);
    cr_assert_eq(set(scalar, 4711, one), CUDA_SUCCESS);
    pthread_join(thread, NULL);
    cr_assert_eq(pieces, SLOTS_AT_MOST / SLOTS_OF_PIECE);
    cr_assert_eq(copies[SLOTS_AT_MOST].from, copies[0].from);
}

Test(scalars, a_wait_in_vain_ends_and_takes_new_memory)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    set_many(scalar, SLOTS_AT_MOST, one);
    uint64_t began = monotonic_now();
    cr_assert_eq(set(scalar, 4711, one), CUDA_SUCCESS);
    cr_assert_geq(monotonic_now() - began, 900000000);
    cr_assert_eq(pieces, SLOTS_AT_MOST / SLOTS_OF_PIECE + 1);
    nothing_is_overwritten();
}

/* ---- what fails ---- */

Test(scalars, a_copy_that_fails_leaves_its_slot)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    copy_result = CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < 2 * SLOTS_OF_PIECE; i++)
        cr_assert_eq(set(scalar, i, one), CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(pieces, 1);
}

Test(scalars, a_copy_that_nobody_can_follow_keeps_its_slot)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    fake_stream_fail_records(1);
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_UNKNOWN);
    fake_stream_is_done(one);
    for (unsigned i = 0; i < 2 * SLOTS_OF_PIECE; i++) {
        cr_assert_eq(set(scalar, 4711, one), CUDA_SUCCESS);
        fake_stream_is_done(one);
        cr_assert_neq(copies[i + 1].from, copies[0].from);
    }
}

static CUevent lost_event;

static CUresult cannot_tell_of_one(CUevent event)
{
    lost_event = lost_event ? lost_event : event;
    return event == lost_event ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

Test(scalars, a_copy_of_which_the_driver_cannot_tell_is_in_nobodys_way)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    lost_event = NULL;
    driver->cuEventQuery = cannot_tell_of_one;
    set_many(scalar, 4 * SLOTS_OF_PIECE, one);
    cr_assert_eq(pieces, 1);
    for (unsigned i = 1; i < copy_count; i++)
        cr_assert_neq(copies[i].from, copies[0].from);
}

Test(scalars, without_pinned_memory_nothing_is_set)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    piece_result = CUDA_ERROR_OUT_OF_MEMORY;
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(copy_count, 0);
    piece_result = CUDA_SUCCESS;
    cr_assert_eq(set(scalar, 1, one), CUDA_SUCCESS);
}

Test(scalars, numbers_that_name_none_are_refused)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    cr_assert_eq(set(0, 1, one), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(set(scalar + SCALAR_LISTS, 1, one), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_scalar_set(pool, scalar, NULL, one), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_scalar_address(pool, scalar + 1), 0);
    cr_assert_eq(pool_scalar_destroy(pool, scalar), CUDA_SUCCESS);
    cr_assert_eq(pool_scalar_destroy(pool, scalar), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_INVALID_VALUE);
    cr_assert_neq(new_scalar(8), scalar);
}

Test(scalars, a_driver_that_lacks_what_it_takes_has_none)
{
    start_scalars();
    driver->cuStreamIsCapturing = NULL;
    cr_assert_eq(pool_scalar_create(pool, 8), 0);
}

/* ---- captures ---- */

Test(scalars, a_captured_stream_is_refused_and_its_capture_goes_on)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    begin_capture(one);
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(copy_count, 0);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(one);
    cr_assert_eq(set(scalar, 1, one), CUDA_SUCCESS);
}

static CUresult a_blocking_stream_is_captured(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream, (void)status;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

Test(scalars, the_legacy_stream_beside_a_captured_blocking_one_is_refused)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    driver->cuStreamIsCapturing = a_blocking_stream_is_captured;
    cr_assert_eq(set(scalar, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(copy_count, 0);
}

Test(scalars, beside_a_capture_others_are_set)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    begin_capture(one);
    for (unsigned i = 0; i < 2 * SLOTS_OF_PIECE; i++) {
        cr_assert_eq(set(scalar, i, other), CUDA_SUCCESS);
        fake_stream_is_done(other);
    }
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(one);
}

Test(scalars, none_is_made_or_destroyed_where_a_capture_would_mind)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    begin_capture(one);
    cr_assert_eq(pool_scalar_create(pool, 8), 0);
    cr_assert_eq(pool_scalar_destroy(pool, scalar), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(one);
    cr_assert_eq(pool_scalar_destroy(pool, scalar), CUDA_SUCCESS);
}

/* ---- ends ---- */

Test(scalars, memory_is_freed_as_by_cuMemFree)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    CUdeviceptr address = pool_scalar_address(pool, scalar);
    fake_launch(context);
    cr_assert_eq(pool_scalar_destroy(pool, scalar), CUDA_SUCCESS);
    cr_assert_eq(pool_ask_pointer(pool, address).kind, POINTER_HIDDEN);
    cr_assert_eq(pool_free(pool, address), CUDA_ERROR_INVALID_VALUE);
}

Test(scalars, another_context_is_refused)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    CUcontext second = fake_context(0);
    pool_context_created(pool, second);
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_INVALID_CONTEXT);
    fake_set_current(context);
    cr_assert_eq(set(scalar, 1, one), CUDA_SUCCESS);
    fake_set_current(NULL);
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_INVALID_CONTEXT);
}

Test(scalars, a_ring_goes_with_its_context)
{
    start_scalars();
    uint64_t scalar = new_scalar(8);
    set_many(scalar, 1, one);
    struct ending ending = pool_context_ending(pool, context);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    context = fake_context_at(context, 0);
    pool_context_created(pool, context);
    one = fake_stream();
    cr_assert_eq(set(scalar, 1, one), CUDA_ERROR_INVALID_CONTEXT);
    uint64_t next = new_scalar(8);
    cr_assert_eq(set(next, 1, one), CUDA_SUCCESS);
    cr_assert_eq(pieces, 2);
    cr_assert_null(pool->scalars->rings.first->next);
    /* Its address is the next one's now, perhaps. */
    uint64_t used = fake_bytes_used(0);
    cr_assert_eq(pool_scalar_destroy(pool, scalar), CUDA_SUCCESS);
    cr_assert_eq(fake_bytes_used(0), used);
    cr_assert_eq(pool_ask_pointer(pool, pool_scalar_address(pool, next)).kind, POINTER_LIVE);
}
