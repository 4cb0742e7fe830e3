#include "mempool_sums.h"

#include "core/contexts/pool_state.h"
#include "stream_shelf.h"

struct mempool_sum mempool_sum(struct pool *pool, const struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    struct mempool_sum sum = {0, 0, 0};
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_acquire);
        for (; s; s = s->next) {
            if (s->mempool != mempool)
                continue;
            sum.kept += counter_get(&s->kept_bytes);
            sum.used += counter_get(&s->used_bytes);
            if (counter_get(&s->peak_used_bytes) > sum.peak)
                sum.peak = counter_get(&s->peak_used_bytes);
        }
    }
    return sum;
}

void mempool_raise(_Atomic uint64_t *high, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(high, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               high, &seen, value, memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* What is kept only ever grows by a miss. Of many streams the sum is only made now and then: a peak
 * between may not be seen. */
void mempool_note_use(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_are_paused(streams, &streams->uses, &started))
        return;
    struct mempool_sum sum = mempool_sum(pool, mempool);
    mempool_raise(&mempool->used_high, sum.used);
    mempool_raise(&mempool->kept_high, sum.kept);
    if (mempool->device)
        mempool_raise(&stream_device(mempool->device)->peak_live, sum.used);
    streams_pause_after(streams, &streams->uses, started);
}

void mempool_start_shelves_again(struct pool *pool, const struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
        for (; s; s = s->next)
            if (s->mempool == mempool)
                counter_set(&s->peak_used_bytes, counter_get(&s->used_bytes));
        lock_give(&stream->lock);
    }
}

void mempool_start_high_again(struct pool *pool, struct mempool *mempool)
{
    mempool_start_shelves_again(pool, mempool);
    struct mempool_sum sum = mempool_sum(pool, mempool);
    atomic_store_explicit(&mempool->used_high, sum.used, memory_order_relaxed);
    atomic_store_explicit(&mempool->kept_high, sum.kept, memory_order_relaxed);
}
