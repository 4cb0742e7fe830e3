#include "mempool_sums.h"

#include "core/base/numbers.h"
#include "core/contexts/pool_state.h"
#include "mempool_ask.h"
#include "stream_shelf.h"

struct mempool_sum mempool_sum(struct pool *pool, const struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    uint64_t used = 0, peak = 0, plainly_freed = 0;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        const struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
        for (; s; s = s->next) {
            if (s->mempool != mempool)
                continue;
            used += counter_get(&s->used_bytes);
            peak = larger_of(peak, counter_get(&s->peak_used_bytes));
            plainly_freed += counter_get(&s->plainly_freed);
        }
        lock_give(&stream->lock);
    }
    return (struct mempool_sum){used, used + plainly_freed, peak + plainly_freed};
}

/* ---- what is not ours ---- */

/* How often the driver is asked while blocks are being allocated and released. */
#define LOOKS_MAX 8u

struct look {
    uint64_t others;
    bool is_exact; /* nothing was allocated or released meanwhile */
};

/* Blocks are counted before the driver is asked for them, and counted out after the driver has them
 * back. So come read after the driver's answer, and gone read before it, include every block that
 * the driver counted in between. */
static struct look look_at_driver(struct pool *pool, const struct mempool *mempool,
                                  uint64_t counted)
{
    const struct streams *streams = streams_of(pool);
    bool still = atomic_load(&streams->moving) == 0;
    uint64_t gone = atomic_load(&mempool->gone), come = atomic_load(&mempool->come);
    cuuint64_t now = counted;
    mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now);
    uint64_t come_since = atomic_load(&mempool->come);
    still &= come_since == come && atomic_load(&mempool->gone) == gone &&
             atomic_load(&streams->moving) == 0;
    uint64_t ours = come_since - gone + atomic_load(&mempool->stays);
    return (struct look){rest_of(now, ours), still};
}

uint64_t mempool_others(struct pool *pool, const struct mempool *mempool, uint64_t counted)
{
    uint64_t most = 0;
    /* A pool that is not served has no blocks of ours. */
    if (atomic_load(&mempool->come) == 0)
        return counted;
    for (unsigned i = 0; i < LOOKS_MAX; i++) {
        struct look look = look_at_driver(pool, mempool, counted);
        most = larger_of(most, look.others);
        if (look.is_exact)
            return look.others;
    }
    return most;
}

/* ---- high-water marks ---- */

/* With many streams the sum is only made now and then, so a short peak may be missed. */
void mempool_note_use(struct pool *pool, struct mempool *mempool)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_are_paused(streams, &streams->uses, &started))
        return;
    mempool_raise(&mempool->used_high, mempool_sum(pool, mempool).told);
    streams_pause_after(streams, &streams->uses, started);
}

/* Calls visit with the stream's lock held. */
static void visit_shelves(struct pool *pool, const struct mempool *mempool,
                          void visit(struct shelf *shelf))
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
        for (; s; s = s->next)
            if (s->mempool == mempool)
                visit(s);
        lock_give(&stream->lock);
    }
}

static void start_peak_again(struct shelf *shelf)
{
    counter_set(&shelf->peak_used_bytes, counter_get(&shelf->used_bytes));
    shelf_note_used(shelf, NULL);
}

void mempool_start_shelves_again(struct pool *pool, const struct mempool *mempool)
{
    visit_shelves(pool, mempool, start_peak_again);
}

bool mempool_note_plain_free(struct pool *pool, struct mempool *mempool)
{
    uint64_t started;
    if (streams_are_paused(streams_of(pool), &streams_of(pool)->uses, &started))
        return false;
    struct mempool_sum sum = mempool_sum(pool, mempool);
    mempool_raise(&mempool->used_high, larger_of(sum.told, sum.peak));
    streams_pause_after(streams_of(pool), &streams_of(pool)->uses, started);
    return true;
}

static void forget_plainly_freed(struct shelf *shelf)
{
    counter_set(&shelf->plainly_freed, 0);
}

void mempool_begin(struct pool *pool, struct mempool *mempool)
{
    visit_shelves(pool, mempool, forget_plainly_freed);
    atomic_store(&mempool->come, 0);
    atomic_store(&mempool->gone, 0);
    atomic_store(&mempool->gone_before, 0);
    atomic_store(&mempool->stays, 0);
    mempool_start_high_again(pool, mempool);
}

/* At least what the driver has counted of our blocks at any moment since its high-water mark was
 * last reset. */
static uint64_t counted_since(const struct mempool *mempool)
{
    uint64_t gone = atomic_load(&mempool->gone_before);
    return atomic_load(&mempool->come) - gone + atomic_load(&mempool->stays);
}

void mempool_start_high_again(struct pool *pool, struct mempool *mempool)
{
    mempool_start_shelves_again(pool, mempool);
    /* Set to 0 and then raised, so that no thread that raises them meanwhile is overwritten. */
    atomic_store(&mempool->used_high, 0);
    mempool_raise(&mempool->used_high, mempool_sum(pool, mempool).told);
    atomic_store(&mempool->counted_high, 0);
    mempool_raise(&mempool->counted_high, counted_since(mempool));
}
