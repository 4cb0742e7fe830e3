#include "segments.h"

#include "core/base/numbers.h"

/* ---- the trees ---- */

static struct block **smaller(struct block *block)
{
    return block_is_part(block) ? &block->links[LINK_HEAP].previous : &block->below;
}

static struct block **larger(struct block *block)
{
    return block_is_part(block) ? &block->links[LINK_HEAP].next : &block->above;
}

static uint64_t priority(const struct block *block)
{
    return (uint64_t)(uintptr_t)block * UINT64_C(0x9E3779B97F4A7C15);
}

static bool comes_before(const struct block *one, const struct block *other)
{
    return one->bytes != other->bytes ? one->bytes < other->bytes
                                      : block_address(one) < block_address(other);
}

/* Splits the tree into the blocks that come before this one and those that come after it. */
static void divide(struct block *tree, const struct block *block, struct block **before,
                   struct block **after)
{
    while (tree) {
        if (comes_before(tree, block)) {
            *before = tree;
            before = larger(tree);
            tree = *before;
        } else {
            *after = tree;
            after = smaller(tree);
            tree = *after;
        }
    }
    *before = NULL;
    *after = NULL;
}

/* Joins two trees. Every block of before comes before every block of after. */
static struct block *join(struct block *before, struct block *after)
{
    struct block *tree = NULL, **link = &tree;
    while (before && after) {
        bool first = priority(before) > priority(after);
        *link = first ? before : after;
        if (first) {
            link = larger(before);
            before = *link;
        } else {
            link = smaller(after);
            after = *link;
        }
    }
    *link = before ? before : after;
    return tree;
}

static void insert(struct block **link, struct block *block)
{
    while (*link && priority(*link) > priority(block))
        link = comes_before(*link, block) ? larger(*link) : smaller(*link);
    divide(*link, block, smaller(block), larger(block));
    *link = block;
}

static void take_out(struct block **link, struct block *block)
{
    while (*link && *link != block)
        link = comes_before(*link, block) ? larger(*link) : smaller(*link);
    if (*link)
        *link = join(*smaller(block), *larger(block));
}

static struct block *find(struct block *tree, uint64_t bytes)
{
    struct block *found = NULL;
    while (tree)
        if (tree->bytes >= bytes) {
            found = tree;
            tree = *smaller(tree);
        } else {
            tree = *larger(tree);
        }
    return found;
}

static bool may_be_cut(const struct segments *segments, const struct block *block, bool parts_only)
{
    const struct segments_kind *kind = segments->kind;
    return (!parts_only || block_is_part(block)) &&
           (!kind->may_be_cut || kind->may_be_cut(segments, block));
}

/* The best fit that may be cut. Where the first block of a size may not be cut, the others of that
 * size are not looked at. */
static struct block *find_for(const struct segments *segments, bool large, uint64_t bytes,
                              bool parts_only)
{
    struct block *tree = segments->may_be_cut[large];
    struct block *found = find(tree, bytes);
    while (found && !may_be_cut(segments, found, parts_only))
        found = find(tree, found->bytes + 1);
    return found;
}

static inline void lock_of_kind_must_be_held(const struct segments *segments)
{
    lock_of_rank_must_be_held(segments->kind->lock);
}

/* ---- small and large ---- */

static bool two_fit(uint64_t bytes, uint64_t segment)
{
    return bytes <= (segment - SEGMENT_HEAD) / 2;
}

static enum block_part sort_of_part(const struct segments *segments, uint64_t bytes)
{
    return two_fit(bytes, segments->small) ? PART_SMALL : PART_LARGE;
}

static enum block_part sort_of(const struct segments *segments, const struct block *block)
{
    if (block_is_part(block))
        return (enum block_part)block->part;
    return block->bytes <= segments->small ? PART_SMALL : PART_LARGE;
}

uint64_t segments_spare_bytes(const struct segments *segments, uint64_t bytes)
{
    lock_of_kind_must_be_held(segments);
    return segments->spare[sort_of_part(segments, bytes) == PART_LARGE];
}

uint64_t segment_bytes_of_one(uint64_t bytes)
{
    return bytes < SEGMENT_PAGE ? bytes : (bytes + SEGMENT_PAGE - 1) / SEGMENT_PAGE * SEGMENT_PAGE;
}

uint64_t segment_bytes_for(const struct segments *segments, uint64_t bytes)
{
    if (two_fit(bytes, segments->small))
        return segments->small;
    if (two_fit(bytes, segments->large))
        return segments->large;
    return segment_bytes_of_one(bytes);
}

bool segment_is_for_several(const struct segments *segments, uint64_t bytes)
{
    return two_fit(bytes, segments->small) || two_fit(bytes, segments->large);
}

void segments_list(struct segments *segments, struct block *block)
{
    lock_of_kind_must_be_held(segments);
    bool large = sort_of(segments, block) == PART_LARGE;
    insert(&segments->may_be_cut[large], block);
    segments->spare[large] += block_is_part(block) ? block->bytes : 0;
}

void segments_unlist(struct segments *segments, struct block *block)
{
    lock_of_kind_must_be_held(segments);
    bool large = sort_of(segments, block) == PART_LARGE;
    take_out(&segments->may_be_cut[large], block);
    segments->spare[large] -= block_is_part(block) ? block->bytes : 0;
}

struct block *segments_find(const struct segments *segments, uint64_t bytes, bool anywhere)
{
    lock_of_kind_must_be_held(segments);
    bool large = sort_of_part(segments, bytes) == PART_LARGE;
    struct block *found = find_for(segments, large, bytes, false);
    return found || !anywhere ? found : find_for(segments, !large, bytes, true);
}

/* ---- cutting ---- */

static void link_above(struct block *below, struct block *above)
{
    below->above = above;
    if (above)
        above->below = below;
}

/* Changes the bytes of a record, which the table finds by any address inside. */
static void change_bytes(struct segments *segments, struct block *block, uint64_t bytes)
{
    block_table_remove(segments->table, block_address(block), block);
    block_set_bytes(block, bytes);
    /* The insertion cannot fail: the table only grows, and has had a place for this address
     * before. */
    block_table_insert(segments->table, block_address(block), block);
}

/* Splits a spare record: it keeps its first bytes, and a new record gets the rest. Returns the new
 * record, NULL where memory is short. */
static struct block *divide_record(struct segments *segments, struct block *block, uint64_t bytes)
{
    struct block *rest = segments->kind->take_record(segments, block);
    if (!rest)
        return NULL;
    CUdeviceptr address = block_address(block) + bytes;
    block_set_part(rest, (enum block_part)block->part);
    block_set_bytes(rest, block->bytes - bytes);
    rest->bucket = block->bucket;
    rest->freed_at = block->freed_at;
    counter_set(&rest->epoch, counter_get(&block->epoch));
    block_set(rest, address, BLOCK_SPARE);
    if (!block_table_insert(segments->table, address, rest)) {
        segments->kind->put_record(segments, rest);
        return NULL;
    }
    change_bytes(segments, block, bytes);
    link_above(rest, block->above);
    link_above(block, rest);
    return rest;
}

/* Makes a whole block a segment. Returns its spare piece, which is in no tree; NULL where memory is
 * short. */
static struct block *open_segment(struct segments *segments, struct block *whole,
                                  enum block_part sort)
{
    block_set_state(whole, BLOCK_SPARE);
    block_set_part(whole, sort);
    whole->below = whole->above = NULL;
    struct block *rest = divide_record(segments, whole, SEGMENT_HEAD);
    if (!rest)
        block_set_part(whole, PART_NONE);
    return rest;
}

/* Makes a segment a whole block again. Its only piece is spare and in no tree. */
static struct block *close_segment(struct segments *segments, struct block *rest)
{
    struct block *whole = rest->below;
    uint64_t bytes = whole->bytes + rest->bytes;
    whole->freed_at = rest->freed_at;
    counter_set(&whole->epoch, counter_get(&rest->epoch));
    block_table_remove(segments->table, block_address(rest), rest);
    segments->kind->put_record(segments, rest);
    change_bytes(segments, whole, bytes);
    whole->below = whole->above = NULL;
    block_set_part(whole, PART_NONE);
    return whole;
}

struct block *segments_cut(struct segments *segments, struct block *from, uint64_t bytes)
{
    lock_of_kind_must_be_held(segments);
    bool whole = !block_is_part(from);
    struct block *spare =
        whole ? open_segment(segments, from, sort_of_part(segments, bytes)) : from;
    if (!spare)
        return NULL;
    if (!whole)
        segments_unlist(segments, spare);
    struct block *rest = spare->bytes > bytes ? divide_record(segments, spare, bytes) : NULL;
    if (rest)
        segments_list(segments, rest);
    if (spare->bytes == bytes)
        return spare;
    if (whole)
        close_segment(segments, spare);
    else
        segments_list(segments, spare);
    return NULL;
}

/* ---- merging ---- */

static bool is_head(const struct block *part)
{
    return !part->below;
}

static bool is_spare(const struct block *part)
{
    return part && block_state(part) == BLOCK_SPARE && !is_head(part);
}

/* Merges two spare neighbours, neither in a tree, into the lower one. */
static void absorb(struct segments *segments, struct block *lower, struct block *upper)
{
    uint64_t bytes = lower->bytes + upper->bytes;
    lower->freed_at = larger_of(lower->freed_at, upper->freed_at);
    counter_raise_to(&lower->epoch, counter_get(&upper->epoch));
    link_above(lower, upper->above);
    block_table_remove(segments->table, block_address(upper), upper);
    segments->kind->put_record(segments, upper);
    change_bytes(segments, lower, bytes);
}

struct block *segments_merge(struct segments *segments, struct block *part)
{
    lock_of_kind_must_be_held(segments);
    struct block *above = part->above, *below = part->below;
    block_set_state(part, BLOCK_SPARE);
    if (is_spare(above)) {
        segments_unlist(segments, above);
        absorb(segments, part, above);
    }
    if (is_spare(below)) {
        segments_unlist(segments, below);
        absorb(segments, below, part);
        part = below;
    }
    if (is_head(part->below) && !part->above)
        return close_segment(segments, part);
    segments_list(segments, part);
    return NULL;
}
