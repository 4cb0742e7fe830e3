/*
 * Segments: what is cut and merged, held against a model that looks at every extent.
 */
#include <criterion/criterion.h>

#include "core/segments/segments.h"

#define KIB   UINT64_C(1024)
#define MIB   (UINT64_C(1) << 20)
#define FIRST (UINT64_C(1) << 40)

static struct block_table table;
static struct block_records records;
static struct segments segments;
static CUdeviceptr next_address;
static struct short_lock lock_of_heap;

static struct block *take_record(struct segments *of, const struct block *like)
{
    (void)of;
    (void)like;
    return block_records_take(&records, NULL);
}

static void put_record(struct segments *of, struct block *record)
{
    (void)of;
    block_records_put(&records, record);
}

static const struct block *forbidden; /* may not be cut now */

static bool is_allowed(const struct segments *of, const struct block *block)
{
    (void)of;
    return block != forbidden;
}

static const struct segments_kind kind = {.lock = LOCK_CONTEXT,
                                          .take_record = take_record,
                                          .put_record = put_record,
                                          .may_be_cut = is_allowed};

static void begin_anew(void)
{
    cr_assert(block_table_init(&table));
    records = (struct block_records){0};
    segments =
        (struct segments){.kind = &kind, .table = &table, .small = 2 * MIB, .large = 20 * MIB};
    next_address = FIRST;
}

static void set_up(void)
{
    lock_take(&lock_of_heap, LOCK_CONTEXT);
    begin_anew();
}

TestSuite(segments, .init = set_up, .timeout = 120);

/* What the driver gives lies without a gap, so that parts of two segments might seem neighbours. */
static struct block *make_whole(uint64_t bytes)
{
    struct block *whole = block_records_take(&records, NULL);
    cr_assert_not_null(whole);
    block_set_bytes(whole, bytes);
    block_set(whole, next_address, BLOCK_CLEAN);
    cr_assert(block_table_insert(&table, next_address, whole));
    next_address += bytes;
    return whole;
}

static struct block *cut(uint64_t bytes)
{
    struct block *from = segments_find(&segments, bytes, false);
    if (!from)
        from = make_whole(segment_bytes_for(&segments, bytes));
    else if (!block_is_part(from))
        segments_unlist(&segments, from);
    if (from->bytes == bytes)
        return from;
    struct block *part = segments_cut(&segments, from, bytes);
    cr_assert_not_null(part);
    cr_assert_eq(part->bytes, bytes);
    block_set_state(part, BLOCK_LIVE);
    return part;
}

/* ---- rules ---- */

Test(segments, two_blocks_fit_into_a_segment_that_is_made_for_them)
{
    cr_assert_eq(segment_bytes_for(&segments, 512), 2 * MIB);
    cr_assert_eq(segment_bytes_for(&segments, MIB - 512), 2 * MIB);
    cr_assert_eq(segment_bytes_for(&segments, MIB), 20 * MIB);
    cr_assert_eq(segment_bytes_for(&segments, 10 * MIB - 512), 20 * MIB);
    cr_assert_eq(segment_bytes_for(&segments, 10 * MIB), 10 * MIB);
    cr_assert_eq(segment_bytes_for(&segments, 11 * MIB), 12 * MIB);
}

Test(segments, no_part_begins_where_the_drivers_block_does)
{
    struct block *part = cut(4 * KIB);
    cr_assert_eq(block_address(part), FIRST + SEGMENT_HEAD);
    cr_assert(block_is_part(part));
    cr_assert_eq(block_state(block_table_find(&table, FIRST)), BLOCK_SPARE);
    /* Not even one that takes all the rest. */
    struct block *all = cut(4 * MIB - SEGMENT_HEAD);
    cr_assert_neq(block_address(all) % (2 * MIB), 0);
}

Test(segments, the_best_fit_is_taken_and_of_those_the_first)
{
    struct block *parts[9];
    for (int i = 0; i < 9; i++)
        parts[i] = cut((i % 2 ? 8 : 4) * KIB);
    CUdeviceptr small = block_address(parts[2]), large = block_address(parts[5]);
    segments_merge(&segments, parts[7]);
    segments_merge(&segments, parts[5]);
    segments_merge(&segments, parts[4 - 2]);
    cr_assert_eq(block_address(cut(4 * KIB)), small);
    cr_assert_eq(block_address(cut(8 * KIB)), large);
}

Test(segments, small_and_large_are_apart)
{
    struct block *large = cut(2 * MIB);
    struct block *small = cut(4 * KIB);
    cr_assert_eq(block_address(small), FIRST + 20 * MIB + SEGMENT_HEAD);
    cr_assert_eq(segments_merge(&segments, small)->bytes, 2 * MIB);
    cr_assert_eq(segments_merge(&segments, large)->bytes, 20 * MIB);
}

Test(segments, one_sort_lies_among_the_other_where_that_is_asked_for)
{
    struct block *large = cut(2 * MIB), *small = cut(4 * KIB);
    cr_assert_eq(segments_find(&segments, 3 * MIB / 2, true), large->above);
    cr_assert_eq(segments_find(&segments, MIB / 2, true), small->above);
    struct block *rest = cut(17 * MIB);
    cr_assert_null(segments_find(&segments, 3 * MIB / 2, false));
    cr_assert_eq(segments_find(&segments, 3 * MIB / 2, true), small->above);
    cut(MIB - SEGMENT_HEAD);
    cr_assert_null(segments_merge(&segments, rest));
    cr_assert_null(segments_find(&segments, MIB - SEGMENT_HEAD, false));
    cr_assert_eq(segments_find(&segments, MIB - SEGMENT_HEAD, true), large->above);
}

Test(segments, a_part_in_use_keeps_its_neighbours_apart)
{
    struct block *one = cut(MIB / 4), *two = cut(MIB / 4), *three = cut(MIB / 4);
    cr_assert_null(segments_merge(&segments, one));
    cr_assert_null(segments_merge(&segments, three));
    block_set_state(two, BLOCK_PENDING);
    cr_assert_eq(two->below->bytes, MIB / 4);
    cr_assert_eq(block_state(two->below), BLOCK_SPARE);
    struct block *whole = segments_merge(&segments, two);
    cr_assert_not_null(whole);
    cr_assert_eq(block_address(whole), FIRST);
    cr_assert_not(block_is_part(whole));
}

Test(segments, what_the_kind_forbids_is_not_cut)
{
    struct block *one = cut(MIB / 4), *between = cut(MIB / 4), *two = cut(MIB / 2);
    segments_merge(&segments, one);
    segments_merge(&segments, two);
    cr_assert_eq(block_state(between), BLOCK_LIVE);
    cr_assert_eq(segments_find(&segments, MIB / 8, false), one);
    forbidden = one;
    cr_assert_neq(segments_find(&segments, MIB / 8, false), one);
    cr_assert_not_null(segments_find(&segments, MIB / 8, false));
}

Test(segments, what_merges_bears_the_newest_stamp)
{
    struct block *parts[3];
    for (uint64_t i = 0; i < 3; i++) {
        parts[i] = cut(MIB / 4);
        counter_set(&parts[i]->epoch, i == 1 ? 7 : i + 1);
    }
    segments_merge(&segments, parts[0]);
    segments_merge(&segments, parts[1]);
    struct block *again = cut(MIB / 4);
    cr_assert_eq(counter_get(&again->epoch), 7);
    segments_merge(&segments, again);
    struct block *whole = segments_merge(&segments, parts[2]);
    cr_assert_not_null(whole);
    cr_assert_eq(counter_get(&whole->epoch), 7);
}

/* ---- the model: extents of all segments, in an array ---- */

enum { MOST_EXTENTS = 4096 };

static struct extent {
    CUdeviceptr address;
    uint64_t bytes;
    unsigned segment;
    bool large, spare, head;
} extents[MOST_EXTENTS];
static unsigned extent_count, segment_count;

static void model_insert(unsigned at, struct extent extent)
{
    cr_assert_lt(extent_count, MOST_EXTENTS);
    for (unsigned i = extent_count++; i > at; i--)
        extents[i] = extents[i - 1];
    extents[at] = extent;
}

static void model_remove(unsigned at)
{
    extent_count--;
    for (unsigned i = at; i < extent_count; i++)
        extents[i] = extents[i + 1];
}

static bool is_large(uint64_t bytes)
{
    return bytes > (segments.small - SEGMENT_HEAD) / 2;
}

/* The place of the best fit; extent_count: there is none. */
static unsigned model_find(uint64_t bytes)
{
    unsigned best = extent_count;
    for (unsigned i = 0; i < extent_count; i++) {
        const struct extent *e = &extents[i];
        if (e->spare && !e->head && e->large == is_large(bytes) && e->bytes >= bytes &&
            (best == extent_count || e->bytes < extents[best].bytes))
            best = i;
    }
    return best;
}

/* A whole block is one extent without a head. */
static CUdeviceptr model_cut(unsigned at, uint64_t bytes)
{
    struct extent from = extents[at];
    bool whole = (at == 0 || extents[at - 1].segment != from.segment) &&
                 (at + 1 == extent_count || extents[at + 1].segment != from.segment);
    if (whole && from.bytes > bytes) {
        struct extent head = from;
        head.bytes = SEGMENT_HEAD;
        head.head = true;
        model_insert(at++, head);
        from.address += SEGMENT_HEAD;
        from.bytes -= SEGMENT_HEAD;
    }
    struct extent part = from;
    part.bytes = bytes;
    part.spare = false;
    extents[at] = part;
    if (from.bytes > bytes) {
        from.address += bytes;
        from.bytes -= bytes;
        model_insert(at + 1, from);
    }
    return part.address;
}

/* The bytes of the whole block that it becomes; 0: none. */
static uint64_t model_merge(unsigned at)
{
    struct extent *e = extents;
    e[at].spare = true;
    if (at + 1 < extent_count && e[at + 1].spare && e[at + 1].segment == e[at].segment) {
        e[at].bytes += e[at + 1].bytes;
        model_remove(at + 1);
    }
    if (at > 0 && e[at - 1].spare && !e[at - 1].head && e[at - 1].segment == e[at].segment) {
        e[at - 1].bytes += e[at].bytes;
        model_remove(at--);
    }
    bool last = at + 1 == extent_count || e[at + 1].segment != e[at].segment;
    if (at == 0 || !e[at - 1].head || e[at - 1].segment != e[at].segment || !last)
        return 0;
    e[at - 1].bytes += e[at].bytes;
    e[at - 1].head = false;
    model_remove(at);
    return e[at - 1].bytes;
}

static void compare(void)
{
    uint64_t spare[2] = {0, 0};
    for (unsigned i = 0; i < extent_count; i++) {
        const struct extent *e = &extents[i];
        struct block *block = block_table_find_around(&table, e->address + e->bytes - 1);
        cr_assert_not_null(block);
        cr_assert_eq(block_address(block), e->address);
        cr_assert_eq(block->bytes, e->bytes);
        bool whole = !block_is_part(block);
        cr_assert_eq(e->spare, block_state(block) == BLOCK_SPARE || (whole && e->spare));
        if (e->spare && !whole && block->below)
            spare[e->large] += e->bytes;
        if (!whole && i + 1 < extent_count && extents[i + 1].segment == e->segment)
            cr_assert_eq(block_address(block->above), extents[i + 1].address);
        else
            cr_assert_null(whole ? NULL : block->above);
    }
    cr_assert_eq(segments.spare[0], spare[0]);
    cr_assert_eq(segments.spare[1], spare[1]);
}

static uint32_t random_below(uint64_t *state, uint32_t count)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % count);
}

static void request(uint64_t bytes)
{
    unsigned at = model_find(bytes);
    struct block *from = segments_find(&segments, bytes, false);
    cr_assert_eq(at == extent_count, from == NULL);
    if (!from) {
        from = make_whole(segment_bytes_for(&segments, bytes));
        at = extent_count;
        model_insert(at, (struct extent){.address = block_address(from),
                                         .bytes = from->bytes,
                                         .segment = ++segment_count,
                                         .large = is_large(bytes),
                                         .spare = true});
    } else if (!block_is_part(from)) {
        segments_unlist(&segments, from);
    }
    CUdeviceptr address = model_cut(at, bytes);
    struct block *part =
        from->bytes == bytes && !block_is_part(from) ? from : segments_cut(&segments, from, bytes);
    cr_assert_eq(block_address(part), address);
    block_set_state(part, BLOCK_LIVE);
}

static void give_back(unsigned at)
{
    struct block *block = block_table_find(&table, extents[at].address);
    cr_assert_eq(block_state(block), BLOCK_LIVE);
    if (!block_is_part(block)) {
        extents[at].spare = true;
        block_set_state(block, BLOCK_CLEAN);
        segments_list(&segments, block);
        return;
    }
    uint64_t bytes = model_merge(at);
    struct block *whole = segments_merge(&segments, block);
    cr_assert_eq(whole ? whole->bytes : 0, bytes);
    if (!whole)
        return;
    block_set_state(whole, BLOCK_CLEAN);
    segments_list(&segments, whole);
}

Test(segments, random_requests_and_frees_do_what_the_model_does)
{
    static const uint64_t most[] = {2 * KIB, 64 * KIB, MIB, 4 * MIB, 12 * MIB, 40 * MIB};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        uint64_t state = seed;
        begin_anew();
        extent_count = segment_count = 0;
        for (unsigned step = 0; step < 4000; step++) {
            uint64_t bound = most[random_below(&state, 6)] / SEGMENT_GRANULE;
            uint64_t granules = 1 + random_below(&state, (uint32_t)bound);
            unsigned at = extent_count ? random_below(&state, extent_count) : 0;
            if (extent_count && !extents[at].spare)
                give_back(at);
            else if (extent_count < 300 || random_below(&state, 8) == 0)
                request(granules * SEGMENT_GRANULE);
            if (step % 16 == 0)
                compare();
        }
    }
}
