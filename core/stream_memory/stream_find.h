/*
 * From a handle to the stream that it means, and from an address to its stream-ordered block: what
 * every call on stream-ordered memory begins with. No lock held.
 */
#ifndef CUDAPOOL_CORE_STREAM_FIND_H
#define CUDAPOOL_CORE_STREAM_FIND_H

#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "stream.h"
#include "streams.h"

/* The record of stream-ordered memory at the address, or NULL. */
static inline struct stream_block *stream_block_at(const struct pool *pool, CUdeviceptr address)
{
    return streams_of(pool) ? stream_block_find(&streams_of(pool)->blocks, address) : NULL;
}

static inline CUstream stream_spelled_out(CUstream handle)
{
    return handle ? handle : CU_STREAM_LEGACY;
}

/* The stream that the handle means in this thread, by the driver's number, where the thread has
 * found any stream before; it may have ended since. Else none. */
static inline struct stream_ref stream_ask(struct pool *pool, CUstream handle)
{
    unsigned long long id = 0;
    /* Only where the driver has numbers are streams remembered. */
    if (recent_streams.pool == pool &&
        pool->driver->cuStreamGetId(stream_spelled_out(handle), &id) == CUDA_SUCCESS) {
        const struct recent_stream *found =
            &recent_streams.streams[stream_recent_place(stream_key(handle, id))];
        return __builtin_expect(found->ref.id == id, 1) ? found->ref
                                                        : stream_look_up(pool, handle, id);
    }
    return (struct stream_ref){NULL, 0};
}

/* The same without asking the driver, of a created stream that the thread has found lately: one
 * that was destroyed past the hooks, and whose handle another has now, is still found. For frees of
 * what was allocated on that very stream: then nothing will be allocated on it any more. */
static inline struct stream_ref stream_recall(struct pool *pool, CUstream handle)
{
    if (!stream_is_created(handle))
        return stream_ask(pool, handle);
    uint64_t key = stream_key(handle, 0);
    const struct recent_stream *found = &recent_streams.streams[stream_recent_place(key)];
    return __builtin_expect(recent_streams.pool == pool && found->key == key, 1)
               ? found->ref
               : stream_ask(pool, handle);
}

/* The stream that the handle means in this thread, made known if it was not and make says so. None
 * where the driver knows of none, or it cannot be served. No lock held. */
static inline struct stream_ref stream_find(struct pool *pool, CUstream handle, bool make)
{
    struct stream_ref ref = stream_ask(pool, handle);
    if (ref.stream && stream_id(streams_of(pool), ref.stream) == ref.id)
        return ref;
    /* Asked by number, all threads' streams have been looked through; but not where the thread
     * remembers a record that has become another's: it may be known in another one again. */
    if (!make && recent_streams.pool == pool)
        return ref.stream && !MUTATED(stream_known_again_overlooked)
                   ? stream_look_up(pool, handle, ref.id)
                   : (struct stream_ref){NULL, 0};
    return stream_find_slowly(pool, handle, make);
}

/* The same where captures may be going on: none where one may have the stream, since asking for its
 * number would spoil the capture. The driver is asked nothing but whether one has it. */
struct stream_ref stream_find_beside_captures(struct pool *pool, CUstream handle, bool make);

/* Whether a capture has the stream, or may have it. */
bool stream_may_be_captured(const struct pool *pool, CUstream handle);

#endif
