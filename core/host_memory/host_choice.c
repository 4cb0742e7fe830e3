#include "host_choice.h"

#include "host_heap.h"
#include "host_piece.h"

static struct block *first_of(const struct bucket *bucket, const struct host_choice *choice)
{
    struct block *first = choice->pending ? bucket->pending.first : bucket->clean.first;
    bool fits = (!choice->key || bucket->bytes == choice->key) && first &&
                first->freed_at <= choice->freed_before;
    return fits ? first : NULL;
}

static bool is_preferred(const struct host_choice *choice, const struct block *one,
                         const struct block *other)
{
    if (choice->pending || choice->lru)
        return counter_get(&one->epoch) < counter_get(&other->epoch);
    return one->bytes > other->bytes;
}

/* The bin whose oldest block is preferred to that of every other bin, at this moment; NULL: there
 * is none. */
static struct host_bin *choose(const struct host_heap *heap, const struct host_choice *choice)
{
    struct host_bin *chosen = NULL;
    struct block best; /* size and stamp of the best block so far, for use without its lock */
    for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next) {
        host_lock(shard);
        for (struct bucket *b = shard->bins.first; b; b = b->next) {
            const struct block *first = first_of(b, choice);
            if (!first || (chosen && !is_preferred(choice, first, &best)))
                continue;
            best.bytes = first->bytes;
            counter_set(&best.epoch, counter_get(&first->epoch));
            chosen = (struct host_bin *)b;
        }
        host_unlock(shard);
    }
    return chosen;
}

/* Takes the block out of its list, if it still is in this bin and in the chosen state. */
static bool take(struct host_bin *bin, struct block *block, const struct host_choice *choice)
{
    enum block_state wanted = choice->pending ? BLOCK_PENDING : BLOCK_CLEAN;
    host_lock(bin->shard);
    bool is_there = host_bin_of(block) == bin && block_state(block) == wanted;
    if (is_there) {
        host_count_leaving(block);
        host_take_out(bin, block);
    }
    host_unlock(bin->shard);
    return is_there;
}

/* Whether all blocks of the piece are clean. Other threads may change the answer at any time. */
static bool is_unused(const struct host_piece *piece)
{
    const struct block *block = piece->blocks.first;
    while (block && block_state(block) == BLOCK_CLEAN)
        block = block->links[LINK_HEAP].next;
    return !block;
}

/* A piece that can be released as a whole: the block's own or, where blocks are chosen by size,
 * another one. NULL: there is none. */
static struct host_piece *unused_piece(const struct host_pieces *pieces, const struct block *block,
                                       bool lru)
{
    struct host_piece *own = host_piece_of(pieces, block);
    if (!own || is_unused(own))
        return own;
    for (unsigned i = 0; i < HOST_PIECE_HASHES && !lru; i++)
        for (struct host_piece *piece = pieces->by_number[i]; piece; piece = piece->next)
            if (is_unused(piece))
                return piece;
    return NULL;
}

/* Takes blocks of the piece, chained through their bucket links, until one can no longer be taken.
 */
static struct block *take_piece(const struct host_piece *piece, const struct host_choice *choice)
{
    struct block *chain = NULL;
    for (struct block *block = piece->blocks.first; block; block = block->links[LINK_HEAP].next) {
        struct host_bin *bin = host_bin_of(block);
        if (!bin->shard || !take(bin, block, choice))
            break;
        block->links[LINK_BUCKET].next = chain;
        chain = block;
    }
    return chain;
}

struct block *host_take_chosen(const struct host_heap *heap, const struct host_choice *choice)
{
    lock_must_be_held(&heap->context->lock);
    bool any = !choice->pending && !choice->key && choice->freed_before == UINT64_MAX;
    struct host_bin *bin = choose(heap, choice);
    if (!bin)
        return NULL;
    host_lock(bin->shard);
    struct block *first = first_of(&bin->bucket, choice);
    host_unlock(bin->shard);
    const struct host_piece *piece =
        first && any ? unused_piece(&heap->pieces, first, choice->lru) : NULL;
    struct block *chain = piece ? take_piece(piece, choice) : NULL;
    if (chain || !first || !take(bin, first, choice))
        return chain;
    first->links[LINK_BUCKET].next = NULL;
    return first;
}
