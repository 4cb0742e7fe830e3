#include "stream_bypass.h"

#include "stream_shelf.h"

/* After FAILED_LOOKS failed looks at the pending blocks of a bucket, the driver frees other
 * streams' blocks that are freed there, except one in FREES_PER_TRIAL. */
#define FAILED_LOOKS    32u
#define FREES_PER_TRIAL 32u

/* A miss that evicts other blocks counts as a failure if the stream has had too few hits since the
 * last such miss: fewer than FEW_HITS, or fewer than misses. After MISSES_AT_BOUND of these in a
 * row the driver gets the next frees on the stream that would put something into it. The first time
 * it gets FREES_FOR_DRIVER frees, then 4 times, then 16 times as many. */
#define MISSES_AT_BOUND  4u
#define FEW_HITS         2u
#define FREES_FOR_DRIVER 64u

static uint64_t hits_of(const struct bucket *bucket)
{
    uint64_t hits = 0;
    for (unsigned i = 0; i < HIT_KINDS; i++)
        hits += counter_get(&bucket->counters->hits[i]);
    return hits;
}

/* Whether the bucket has had a hit since the last call. */
static bool has_hit_since(struct bucket *bucket)
{
    lock_of_rank_must_be_held(LOCK_STREAM);
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    uint64_t hits = hits_of(bucket);
    bool has = of->hits != hits;
    of->hits = hits;
    return has;
}

bool bypass_is_too_far_behind(struct stream *stream, const struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    if (shelf_of(block)->stream == stream)
        return false;
    const struct shelf *shelf = shelf_find(stream, block->mempool);
    struct bucket *bucket = shelf ? bucket_set_find(&shelf->buckets, block->block.bytes) : NULL;
    if (!bucket || bucket == &shelf->unkept.bucket ||
        shelf_bucket_of(bucket)->failed_looks < FAILED_LOOKS)
        return false;
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    if (has_hit_since(bucket)) {
        of->failed_looks = 0;
        return false;
    }
    return of->not_kept++ % FREES_PER_TRIAL != 0;
}

void bypass_note_at_bound(struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    uint64_t hits = stream->given.handed_out - stream->given.missed - stream->bypass.hits_at_bound;
    bool few = hits < FEW_HITS || hits < stream->given.missed - stream->bypass.missed_at_bound;
    stream->bypass.misses_at_bound = few ? stream->bypass.misses_at_bound + 1 : 0;
    stream->bypass.hits_at_bound += hits;
    stream->bypass.missed_at_bound = stream->given.missed;
    unsigned more = stream->bypass.misses_at_bound - MISSES_AT_BOUND;
    if (stream->bypass.misses_at_bound >= MISSES_AT_BOUND)
        stream->bypass.for_driver = FREES_FOR_DRIVER << (more < 2 ? 2 * more : 4);
    lock_give(&stream->lock);
}

bool bypass_is_for_driver(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    if (stream->bypass.for_driver == 0)
        return false;
    stream->bypass.for_driver--;
    return true;
}

void bypass_has_new_owner(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream->bypass.misses_at_bound = stream->bypass.for_driver = 0;
}
