/*
 * Stream-ordered memory (cuMemAllocAsync) as a kind of memory: what contexts tell it.
 */
#include "stream_memory.h"
#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "stream.h"
#include "stream_release.h"

static void before_end(struct pool *pool, struct context *context)
{
    if (pool->streams)
        stream_release_before_end(pool, context);
}

static void give_back_at_end(struct pool *pool, struct context *context)
{
    if (pool->streams)
        stream_release_context(pool, context);
}

static void ended(struct pool *pool, struct context *context)
{
    if (!pool->streams)
        return;
    stream_release_forget(pool, context);
    streams_context_died(pool, context);
}

const struct kind stream_memory = {
    .name = "stream_ordered",
    .before_end = before_end,
    .give_back_at_end = give_back_at_end,
    .ended = ended,
};
