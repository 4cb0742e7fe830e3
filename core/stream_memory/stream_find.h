/*
 * From a handle to the stream that it means, and from an address to its stream-ordered block: what
 * every call on stream-ordered memory begins with. No lock held.
 */
#ifndef CUDAPOOL_CORE_STREAM_FIND_H
#define CUDAPOOL_CORE_STREAM_FIND_H

#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "stream.h"
#include "stream_block.h"
#include "streams.h"

/* The record of stream-ordered memory at the address, or NULL. */
static inline struct stream_block *stream_block_at(const struct pool *pool, CUdeviceptr address)
{
    return streams_of(pool) ? stream_block_find(&streams_of(pool)->blocks, address) : NULL;
}

/* ---- what the calling thread has found ---- */

/* What a thread has found lately: created streams by their handle, the others, whose handles mean
 * another stream in another context, by the driver's number. */
#define STREAMS_RECENT 64u /* as stream_recent_place has it */

struct recent_stream {
    uint64_t key;
    struct stream_ref ref;
};

struct recent_streams {
    const struct pool *pool;
    struct recent_stream streams[STREAMS_RECENT];
};

extern _Thread_local struct recent_streams recent_streams __attribute__((visibility("hidden")));

static inline uint64_t stream_key(CUstream handle, uint64_t id)
{
    return stream_is_created(handle) ? (uint64_t)(uintptr_t)handle : id | UINT64_C(1) << 63;
}

/* Fibonacci hashing: handles are addresses of the driver's. */
static inline unsigned stream_recent_place(uint64_t key)
{
    return (unsigned)(key * UINT64_C(0x9E3779B97F4A7C15) >> 58);
}

/* ---- from a handle to its stream ---- */

/* The stream with that number, which the handle means here, found whichever thread has found it
 * before; and the calling one remembers it. No lock needed. */
struct stream_ref stream_look_up(struct pool *pool, CUstream handle, uint64_t id);

/* What stream_find does where the thread has not found that stream lately. */
struct stream_ref stream_find_slowly(struct pool *pool, CUstream handle, bool make);

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

/* The same without asking the driver, of a created stream that the thread has found lately, else
 * none: one that was destroyed past the hooks, and whose handle another has now, is still found.
 * For frees of what was allocated on that very stream: then nothing will be allocated on it any
 * more. */
static inline struct stream_ref stream_recall(const struct pool *pool, CUstream handle)
{
    /* As a key, a handle that is no created stream's has a bit besides, and is not found. */
    uint64_t key = (uint64_t)(uintptr_t)handle;
    const struct recent_stream *found = &recent_streams.streams[stream_recent_place(key)];
    return __builtin_expect(recent_streams.pool == pool && found->key == key, 1)
               ? found->ref
               : (struct stream_ref){NULL, 0};
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
        return ref.stream ? stream_look_up(pool, handle, ref.id) : (struct stream_ref){NULL, 0};
    return stream_find_slowly(pool, handle, make);
}

/* The same where captures may be going on: none where one may have the stream, since asking for its
 * number would spoil the capture. The driver is asked nothing but whether one has it. */
struct stream_ref stream_find_beside_captures(struct pool *pool, CUstream handle, bool make);

/* The context that the work of a stream is in, by its handle in a thread with that current context;
 * NULL where the pool does not know it. */
struct context *stream_context_of(struct pool *pool, CUstream handle, struct context *current);

/* What the program frees plainly lies in no stream of its own, but in one that stands for all of
 * the context's work: nothing is allocated on it, and nobody can name it. No lock held. */
struct stream_ref streams_of_plain_frees(struct pool *pool, struct context *context);

#endif
