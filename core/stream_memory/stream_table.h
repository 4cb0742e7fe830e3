/*
 * The known streams, by their numbers (ids): finding a stream, making one known, ending one.
 *
 * Chains of streams with equal hash lead from a number to its stream. Threads walk the chains
 * without a lock. The chains change under the list's lock (struct streams).
 */
#ifndef CUDAPOOL_CORE_STREAM_TABLE_H
#define CUDAPOOL_CORE_STREAM_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream.h"
#include "streams.h"

/* What a new record is for. */
struct stream_name {
    CUstream handle;
    struct context *context;
    uint64_t thread;
    bool ordered_by_others;
};

/* Returns the stream with this number, or none. No lock needed. The answer none is final only if
 * the list's lock is held. */
struct stream_ref stream_table_walk(const struct streams *streams, uint64_t id);

/* Returns the stream with this number, or none. The answer none is final. No lock held. */
struct stream_ref stream_table_look_up(struct streams *streams, uint64_t id);

/* The list's lock is held, and no stream has this number. Returns a record for the stream; NULL if
 * there are too many streams, or memory is short. The record's lock is not held. Puts events before
 * *discarded that the caller must destroy without the lock. */
struct stream *stream_table_begin(struct streams *streams, uint64_t id,
                                  const struct stream_name *name, struct stream_event **discarded);

/* Whether it is known that no further stream can become known now. No lock needed. */
bool stream_table_is_full(const struct streams *streams);

/* The program is destroying the stream: its record no longer belongs to anyone, and other streams
 * may take its free blocks. No lock held. */
void stream_end(struct pool *pool, struct stream_ref ref);

/* Ends the created stream with this handle, as stream_end does. No driver call is made. */
void streams_end_handle(struct pool *pool, CUstream handle);

/* A launch with programmatic stream serialization was made on the stream. No lock held. */
void stream_launches_early(struct stream_ref ref);

/* The program makes all later work of the context wait (cuCtxWaitEvent). To be called before the
 * driver is. From then on others order all streams of the context. No lock held. */
void streams_are_barred(struct pool *pool, struct context *context);

/* The context has died: its streams belong to nobody, and no work on them is running. Their free
 * blocks have been released or are forgotten. No stream's lock held. */
void streams_context_died(struct pool *pool, struct context *context);

#endif
