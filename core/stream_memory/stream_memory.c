/*
 * Stream-ordered memory (cuMemAllocAsync) as a kind of memory: what contexts tell it.
 */
#include "stream_memory.h"
#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "program_events.h"
#include "stream_pool.h"
#include "stream_release.h"
#include "stream_table.h"
#include "streams.h"

static bool made_device(struct pool *pool, struct device *device)
{
    const struct stream_ordered_settings *settings = &pool->settings.stream_ordered;
    struct stream_device *made = stream_device(device);
    size_classes_init(&made->classes, &settings->buckets, device->total_bytes);
    made->cached_cap = byte_size_resolve(&settings->caps.cached, device->total_bytes);
    made->counters = figures_kind(&pool->figures, KIND_STREAM_ORDERED, device->ordinal);
    return made->counters;
}

static void before_end(struct pool *pool, struct context *context)
{
    if (streams_of(pool))
        stream_release_before_end(pool, context);
}

static void give_back_at_end(struct pool *pool, struct context *context)
{
    if (streams_of(pool))
        stream_release_context(pool, context);
}

static void ended(struct pool *pool, struct context *context)
{
    if (!streams_of(pool))
        return;
    stream_release_forget(pool, context);
    streams_context_died(pool, context);
    order_context_died(pool, context);
}

const struct kind stream_memory = {
    .name = "stream_ordered",
    .number = KIND_STREAM_ORDERED,
    .device_bytes = sizeof(struct stream_device),
    .starts = stream_pool_start,
    .made_device = made_device,
    .before_end = before_end,
    .give_back_at_end = give_back_at_end,
    .ended = ended,
};
