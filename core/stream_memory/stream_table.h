/*
 * The streams that are known, by their numbers: finding one, making one known, ending one.
 *
 * A number leads to its stream by chains of equal hash, which are walked without a lock. They
 * change under the list's lock (struct streams), under which a stream's lock may be taken.
 */
#ifndef CUDAPOOL_CORE_STREAM_TABLE_H
#define CUDAPOOL_CORE_STREAM_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream.h"
#include "streams.h"

/* What identifies a stream where the driver does not. */
struct stream_name {
    CUstream handle;
    struct context *context;
    uint64_t thread;
    bool ordered_by_others; /* told of, but no part of the name */
};

/* The stream with that number, or none. No lock needed; with the list's lock held a none is final.
 */
struct stream_ref stream_table_walk(const struct streams *streams, uint64_t id);

/* The same, and a none is final. No lock held. */
struct stream_ref stream_table_look_up(struct streams *streams, uint64_t id);

/* The list's lock is held. A number for a stream that has none of the driver's. */
uint64_t stream_table_next_number(struct streams *streams);

/* The list's lock is held, and no stream has that number. A record for the stream; NULL where there
 * are too many, or memory is short. Events to be destroyed without the lock are put before
 * *discarded. */
struct stream *stream_table_begin(struct streams *streams, uint64_t id,
                                  const struct stream_name *name, struct own_event **discarded);

/* Lock not needed. Whether it is known that no stream can be made known now. */
bool stream_table_is_full(const struct streams *streams);

/* The stream is being destroyed: what is free in it is passed on. Waits for other threads' calls
 * that name it. No lock held. */
void stream_end(struct pool *pool, struct stream_ref ref);

/* The same for the created stream with that handle; no driver call is made. */
void streams_end_handle(struct pool *pool, CUstream handle);

/* A launch with programmatic stream serialization was made on the stream. No lock held. */
void stream_launches_early(struct stream_ref ref);

/* The program makes the context's later work wait: from before the driver is told, all streams
 * there are ordered by others. No lock held. */
void streams_are_barred(struct pool *pool, struct context *context);

/* The context has died: its streams are nobody's, and nothing on them is running. What was free on
 * them has been given back or is forgotten. No stream's lock held. */
void streams_context_died(struct pool *pool, struct context *context);

#endif
