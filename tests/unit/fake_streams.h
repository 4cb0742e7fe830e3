/*
 * Streams with work of their own, events on them, and memory pools, over the driver of
 * fake_driver.h: what stream-ordered memory needs beside that. A stream's work is a number, which
 * stands still until the test lets it go on. One thread at a time may call anything but what
 * fake_driver.h allows.
 */
#ifndef CUDAPOOL_TESTS_UNIT_FAKE_STREAMS_H
#define CUDAPOOL_TESTS_UNIT_FAKE_STREAMS_H

#include "fake_driver.h"

/* Adds them to the table of fake_driver. */
void fake_streams(struct driver *driver);

/* Gives a stream (NULL: the current context's legacy one) work; lets all of it be done. */
void fake_stream_works(CUstream stream);
void fake_stream_is_done(CUstream stream);

/* How much of the one's work the other's next work comes after. */
uint64_t fake_stream_after(CUstream waiting, CUstream other);
uint64_t fake_stream_work(CUstream stream);

/* The driver destroys it; its handle may come back. */
void fake_stream_destroyed(CUstream stream);

/* Calls so far. */
struct fake_stream_calls {
    unsigned allocations, records, waits, queries;
};
struct fake_stream_calls fake_stream_calls(void);

/* Called in the next record of an event, once it has been made. */
void fake_stream_during_record(void (*call)(void));

/* The next so many fail. */
void fake_stream_fail_records(unsigned times);
void fake_stream_fail_waits(unsigned times);

/* The next so many stream-ordered allocations are out of memory. */
void fake_stream_refuse_memory(unsigned times);

/* A memory pool, and one of its attributes. */
CUmemoryPool fake_mempool(CUdevice device);
void fake_mempool_set_current(CUdevice device, CUmemoryPool memory_pool);
uint64_t *fake_mempool_attribute(CUmemoryPool memory_pool, CUmemPool_attribute attribute);

#endif
