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

#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "stream.h"
#include "stream_block.h"
#include "streams.h"

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

/* ---- finding a stream ----
 *
 * Finds the stream that a handle means, and the stream-ordered block at an address. Every call on
 * stream-ordered memory begins with this. The callers hold no lock.
 */

/* The record of the stream-ordered block at the address, or NULL. */
static inline struct stream_block *stream_block_at(const struct pool *pool, CUdeviceptr address)
{
    return streams_of(pool) ? stream_block_find(&streams_of(pool)->blocks, address) : NULL;
}

/* ---- what the calling thread has found ---- */

/* The streams that a thread has found lately. Created streams are found by their handle. The
 * others, whose handles mean another stream in another context, are found by the driver's number.
 */
#define STREAMS_RECENT 64u /* places that stream_recent_place returns */

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

/* Fibonacci hashing, since handles are addresses in the driver. */
static inline unsigned stream_recent_place(uint64_t key)
{
    return (unsigned)(key * UINT64_C(0x9E3779B97F4A7C15) >> 58);
}

/* ---- from a handle to its stream ---- */

/* The stream with this number, which handle means here, whichever thread has found it first. The
 * calling thread remembers it. No lock needed. */
struct stream_ref stream_look_up(struct pool *pool, CUstream handle, uint64_t id);

/* Does what stream_find does if the thread has not found the stream lately. */
struct stream_ref stream_find_slowly(struct pool *pool, CUstream handle, bool make);

static inline CUstream stream_spelled_out(CUstream handle)
{
    return handle ? handle : CU_STREAM_LEGACY;
}

/* Returns the stream that the handle means in this thread, by the number that the driver tells. The
 * stream may have ended since it was found. None if the thread has not found any stream before. */
static inline struct stream_ref stream_ask(struct pool *pool, CUstream handle)
{
    unsigned long long id = 0;
    if (recent_streams.pool == pool &&
        pool->driver->cuStreamGetId(stream_spelled_out(handle), &id) == CUDA_SUCCESS) {
        const struct recent_stream *found =
            &recent_streams.streams[stream_recent_place(stream_key(handle, id))];
        return __builtin_expect(found->ref.id == id, 1) ? found->ref
                                                        : stream_look_up(pool, handle, id);
    }
    return (struct stream_ref){NULL, 0};
}

/* Finds a created stream that the thread has found lately, without asking the driver; otherwise
 * none. A stream that was destroyed past the hooks is still found when another stream has its
 * handle. So only frees of blocks that were allocated on this very stream may use it: nothing will
 * be allocated on a destroyed stream. */
static inline struct stream_ref stream_recall(const struct pool *pool, CUstream handle)
{
    /* The key of a stream that was not created has one bit more, so such a handle is not found. */
    uint64_t key = (uint64_t)(uintptr_t)handle;
    const struct recent_stream *found = &recent_streams.streams[stream_recent_place(key)];
    return __builtin_expect(recent_streams.pool == pool && found->key == key, 1)
               ? found->ref
               : (struct stream_ref){NULL, 0};
}

/* The stream that the handle means in this thread. make: makes the stream known if it was not. None
 * if the driver knows no such stream, or the pool cannot serve it. No lock held. */
static inline struct stream_ref stream_find(struct pool *pool, CUstream handle, bool make)
{
    struct stream_ref ref = stream_ask(pool, handle);
    if (ref.stream && stream_id(streams_of(pool), ref.stream) == ref.id)
        return ref;
    /* stream_ask has looked through the streams that all threads have found. But if the thread
     * remembered a record that serves another stream now, the stream may be known in another
     * record. */
    if (!make && recent_streams.pool == pool)
        return ref.stream ? stream_look_up(pool, handle, ref.id) : (struct stream_ref){NULL, 0};
    return stream_find_slowly(pool, handle, make);
}

/* Does what stream_find does while captures may be under way. None if a capture may have the
 * stream, because asking for its number would invalidate the capture. The driver is only asked
 * whether a capture has the stream. */
struct stream_ref stream_find_beside_captures(struct pool *pool, CUstream handle, bool make);

/* The context that a stream's work is in, from its handle in a thread with this current context.
 * NULL: the pool does not know that context. */
struct context *stream_context_of(struct pool *pool, CUstream handle, struct context *current);

/* The record that holds the blocks that the program freed by cuMemFree in this context. It stands
 * for all of the context's work: nothing is allocated on it, and nobody can name it. No lock held.
 */
struct stream_ref streams_of_plain_frees(struct pool *pool, struct context *context);

#endif
