/*
 * What tests of stream-ordered memory start from: pool_fixture.h's pool and context, and two
 * streams. Included once by a test program.
 */
#ifndef CUDAPOOL_TESTS_UNIT_STREAMS_FIXTURE_H
#define CUDAPOOL_TESTS_UNIT_STREAMS_FIXTURE_H

#include "core/stream_memory/mempool.h"
#include "core/stream_memory/own_event_query.h"
#include "core/stream_memory/own_event_record.h"
#include "core/stream_memory/own_events.h"
#include "core/stream_memory/program_events.h"
#include "core/stream_memory/stream_find.h"
#include "core/stream_memory/stream_heap.h"
#include "core/stream_memory/stream_order.h"
#include "core/stream_memory/stream_release.h"
#include "core/stream_memory/stream_table.h"
#include "core/stream_memory/use.h"
#include "fake_streams.h"
#include "pool_fixture.h"

#define EVENT ((CUevent)0x500)

static CUstream one, other;

static inline void set_up_streams(void)
{
    set_up();
    fake_streams(driver);
}

static inline void start_streams(void)
{
    start();
    one = fake_stream();
    other = fake_stream();
}

static CUresult not_at_once(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                            CUstream stream)
{
    (void)address, (void)bytes, (void)memory_pool, (void)stream;
    return CUDA_ERROR_NOT_READY;
}

static inline bool take_at_once(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                                CUstream stream)
{
    return pool_allocate_async_at_once(pool, address, bytes, memory_pool, stream, not_at_once) ==
           CUDA_SUCCESS;
}

static inline CUdeviceptr take_on(CUstream stream, size_t bytes)
{
    CUdeviceptr address = 0;
    CUresult result = CUDA_SUCCESS;
    cr_assert(take_at_once(&address, bytes, NULL, stream) ||
              pool_allocate_async(pool, &address, bytes, NULL, stream, &result));
    cr_assert_eq(result, CUDA_SUCCESS);
    return address;
}

static CUresult free_otherwise(CUdeviceptr address, CUstream stream)
{
    return pool_free_async(pool, driver->cuMemFreeAsync, address, stream);
}

static inline CUresult try_to_free_on(CUstream stream, CUdeviceptr address)
{
    return pool_free_async_at_once(pool, address, stream, free_otherwise);
}

static inline void free_on(CUstream stream, CUdeviceptr address)
{
    cr_assert_eq(try_to_free_on(stream, address), CUDA_SUCCESS);
}

/* A block that is pending on the stream. */
static inline CUdeviceptr leave_pending(CUstream stream, size_t bytes)
{
    CUdeviceptr block = take_on(stream, bytes);
    fake_stream_works(stream);
    free_on(stream, block);
    return block;
}

/* So many of them, the oldest first. */
static inline void leave_many(CUstream stream, unsigned count, size_t bytes, CUdeviceptr *blocks)
{
    for (unsigned i = 0; i < count; i++)
        blocks[i] = take_on(stream, bytes);
    fake_stream_works(stream);
    for (unsigned i = 0; i < count; i++)
        free_on(stream, blocks[i]);
}

/* The program's own calls, as the hooks make them. */
static inline void synchronise_stream(CUstream stream)
{
    struct order_mark mark;
    pool_stream_wait_begin(pool, stream, &mark);
    fake_stream_is_done(stream);
    pool_stream_wait_end(pool, &mark, CUDA_SUCCESS);
}

static inline void record(CUevent event, CUstream stream)
{
    struct recording recording;
    pool_record_begin(pool, event, &stream, &recording);
    pool_record_end(pool, event, &recording, CUDA_SUCCESS);
}

static inline void wait_on(CUstream stream, CUevent event)
{
    struct event_look look;
    pool_event_wait_begin(pool, event, &look);
    pool_event_wait_queued(pool, event, &look, stream, CUDA_SUCCESS);
}

static inline void synchronise_event(CUevent event)
{
    struct event_look look;
    pool_event_wait_begin(pool, event, &look);
    pool_event_wait_end(pool, event, &look, CUDA_SUCCESS);
}

static inline void destroy_stream(CUstream stream)
{
    pool_stream_ending(pool, stream);
    fake_stream_destroyed(stream);
}

static inline struct stream *stream_called(CUstream stream)
{
    struct stream_ref ref = stream_find(pool, stream, false);
    cr_assert_not_null(ref.stream);
    return ref.stream;
}

static inline struct pool_bytes bytes_of(CUstream stream)
{
    struct pool_bytes bytes = {0, 0, 0};
    cr_assert(pool_stream_bytes(pool, stream, &bytes));
    return bytes;
}

/* The totals of stream-ordered memory on the first device. */
static inline struct report_counters counted_streams(void)
{
    static struct report streams_report;
    struct report_counters totals = {0};
    streams_report = (struct report){0};
    cr_assert_eq(pool_report(pool, &streams_report), 0);
    for (size_t i = 0; i < streams_report.device_count; i++)
        if (streams_report.devices[i].ordinal == 0 && streams_report.devices[i].kind_count == 2)
            totals = streams_report.devices[i].kinds[1].totals;
    report_free(&streams_report);
    return totals;
}

/* From now on frees on the stream record events: the other one has looked in vain. */
static inline void let_events_be_wanted(CUstream stream, CUstream looking, size_t bytes)
{
    CUdeviceptr block = leave_pending(stream, bytes);
    CUdeviceptr instead = take_on(looking, bytes);
    cr_assert_neq(instead, block);
    synchronise_stream(stream);
    free_on(looking, instead);
    synchronise_stream(looking);
    pool_trim(pool);
}

#endif
