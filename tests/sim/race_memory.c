/*
 * The program's allocations, who uses them, and what conflicts with what. race_detector.h has the
 * rules. Under sim.lock.
 *
 * All allocations that anything is known of, live ones and freed ones, are in one treap, ordered by
 * address and age; each subtree knows how far its allocations reach. Live ones do not overlap.
 */
#include <stdlib.h>

#include "race_detector.h"

static struct tenancy *root;
static uint64_t last_serial, last_free_number;
static __thread uint64_t last_freed; /* what the thread freed last; 0: nothing that was live */

/* --- ranges ------------------------------------------------------------------------------------*/

/* Has the range a byte in [begin, end)? */
static bool touches(const struct range *range, uint64_t begin, uint64_t end)
{
    uint64_t slice = range->begin;
    if (range->begin >= end || range->end <= begin)
        return false;
    if (range->row == 0)
        return true;
    do {
        uint64_t first =
            begin < slice + range->row ? 0 : (begin - slice - range->row) / range->pitch + 1;
        if (first < range->rows && slice + first * range->pitch < end)
            return true;
        slice += range->slice;
    } while (range->slice > 0 && slice < range->end);
    return false;
}

static bool rows_meet(const struct range *rows, const struct range *other)
{
    uint64_t slice = rows->begin;
    do {
        for (uint64_t i = 0; i < rows->rows; i++) {
            uint64_t row = slice + i * rows->pitch;
            if (row < rows->end && touches(other, row, row + rows->row))
                return true;
        }
        slice += rows->slice;
    } while (rows->slice > 0 && slice < rows->end);
    return false;
}

bool ranges_meet(const struct range *a, const struct range *b)
{
    if (!touches(a, b->begin, b->end))
        return false;
    if (b->row == 0)
        return true;
    return a->row == 0 ? touches(b, a->begin, a->end) : rows_meet(a, b);
}

static bool conflict(const struct range *a, const struct range *b)
{
    return (a->written || b->written) && ranges_meet(a, b);
}

/* --- the treap ---------------------------------------------------------------------------------*/

static bool comes_first(const struct tenancy *a, const struct tenancy *b)
{
    return a->base != b->base ? a->base < b->base : a->serial < b->serial;
}

static void set_last_end(struct tenancy *node)
{
    node->last_end = node->end;
    if (node->left != NULL && node->left->last_end > node->last_end)
        node->last_end = node->left->last_end;
    if (node->right != NULL && node->right->last_end > node->last_end)
        node->last_end = node->right->last_end;
}

/* Splits by the tenancy: those before it, those after it. */
static void split(struct tenancy *tree, const struct tenancy *at, struct tenancy **before,
                  struct tenancy **after)
{
    if (tree == NULL) {
        *before = *after = NULL;
    } else if (comes_first(tree, at)) {
        split(tree->right, at, &tree->right, after);
        *before = tree;
        set_last_end(tree);
    } else {
        split(tree->left, at, before, &tree->left);
        *after = tree;
        set_last_end(tree);
    }
}

static struct tenancy *merge(struct tenancy *before, struct tenancy *after)
{
    if (before == NULL || after == NULL)
        return before != NULL ? before : after;
    if (before->priority > after->priority) {
        before->right = merge(before->right, after);
        set_last_end(before);
        return before;
    }
    after->left = merge(before, after->left);
    set_last_end(after);
    return after;
}

static void insert(struct tenancy *tenancy)
{
    struct tenancy *before, *after;
    tenancy->left = tenancy->right = NULL;
    set_last_end(tenancy);
    split(root, tenancy, &before, &after);
    root = merge(merge(before, tenancy), after);
}

static struct tenancy *without(struct tenancy *tree, const struct tenancy *tenancy)
{
    if (tree == tenancy)
        return merge(tree->left, tree->right);
    if (comes_first(tenancy, tree))
        tree->left = without(tree->left, tenancy);
    else
        tree->right = without(tree->right, tenancy);
    set_last_end(tree);
    return tree;
}

static void take_out(struct tenancy *tenancy)
{
    root = without(root, tenancy);
}

/* What overlaps some bytes, by address. */
struct overlaps {
    struct tenancy **all;
    size_t count, room;
};

static void add_overlap(struct overlaps *overlaps, struct tenancy *tenancy)
{
    if (overlaps->count == overlaps->room) {
        overlaps->room = overlaps->room == 0 ? 64 : 2 * overlaps->room;
        overlaps->all = realloc(overlaps->all, overlaps->room * sizeof(struct tenancy *));
        if (overlaps->all == NULL)
            abort();
    }
    overlaps->all[overlaps->count++] = tenancy;
}

static void find_in(struct tenancy *tree, uint64_t begin, uint64_t end, struct overlaps *overlaps)
{
    while (tree != NULL && tree->last_end > begin) {
        find_in(tree->left, begin, end, overlaps);
        if (tree->base >= end)
            return;
        if (tree->end > begin)
            add_overlap(overlaps, tree);
        tree = tree->right;
    }
}

/* Valid until the next call. */
static const struct overlaps *find(uint64_t begin, uint64_t end)
{
    static struct overlaps overlaps;
    overlaps.count = 0;
    find_in(root, begin, end, &overlaps);
    return &overlaps;
}

struct tenancy *tenancy_around(uint64_t address)
{
    const struct overlaps *found = find(address, address + 1);
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i]->live)
            return found->all[i];
    return NULL;
}

struct tenancy *tenancy_at(uint64_t address)
{
    struct tenancy *tenancy = tenancy_around(address);
    return tenancy != NULL && tenancy->base == address ? tenancy : NULL;
}

/* --- uses --------------------------------------------------------------------------------------*/

typedef bool use_matches(const struct use *use, const void *argument);

static void forget_uses(struct tenancy *tenancy, use_matches *matches, const void *argument)
{
    struct use **link = &tenancy->uses;
    while (*link != NULL) {
        struct use *use = *link;
        if (!matches(use, argument)) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        free(use);
    }
}

static bool is_known(const struct use *use, const void *clock)
{
    return clock_knows(clock, use->point);
}

static bool is_succeeded_by(const struct use *use, const void *serial)
{
    return use->succeeded_by == *(const uint64_t *)serial;
}

/* Whatever conflicts with the old use conflicts with the new one, which comes after it. */
static bool stands_for(const struct beginning *beginning, const struct use *use)
{
    const struct range *range = beginning->range;
    return (range->written || !use->range.written) && range->row == 0 &&
           range->begin <= use->range.begin && range->end >= use->range.end &&
           clock_knows(beginning->clock, use->point);
}

static bool is_stood_for(const struct use *use, const void *beginning)
{
    return stands_for(beginning, use);
}

void record_use(struct tenancy *tenancy, const struct beginning *beginning)
{
    struct use *use = calloc(1, sizeof *use);
    if (use == NULL)
        abort();
    forget_uses(tenancy, is_stood_for, beginning);
    use->range = *beginning->range;
    use->point = beginning->point;
    use->origin = *beginning->origin;
    use->next = tenancy->uses;
    tenancy->uses = use;
}

void compare_uses(struct tenancy *earlier, const struct tenancy *live,
                  const struct beginning *beginning)
{
    for (struct use *use = earlier->uses; use != NULL; use = use->next) {
        if (touches(&use->range, live->base, live->end) &&
            conflict(&use->range, beginning->range) && !clock_knows(beginning->clock, use->point))
            report_conflict(earlier, use, live, beginning->range, beginning->origin);
        else if (stands_for(beginning, use))
            use->succeeded_by = live->serial;
    }
}

static void use_live(struct tenancy *live, const struct overlaps *found,
                     const struct beginning *beginning)
{
    /* What it meets then is the program's doing. */
    if (!clock_knows(beginning->clock, live->begin)) {
        report_before_allocation(live, beginning->origin);
        record_use(live, beginning);
        return;
    }
    if (was_given_by_graphs(beginning->range->captured_of))
        report_given_to_another(live, beginning->range, beginning->origin);
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i] != live)
            compare_uses(found->all[i], live, beginning);
    compare_with_captured(live, beginning);
    record_use(live, beginning);
}

/* By a host function for which the free of its context's memory has waited, or would have. */
static bool is_waited_for_by_free(const struct tenancy *freed, const struct origin *origin)
{
    return origin->callback && freed->free_number > origin->frees_before &&
           freed->context == origin->context;
}

/* Bytes of the range that no live allocation has: were they freed? */
static void use_of_none(const struct overlaps *found, uint64_t begin, uint64_t end,
                        const struct beginning *beginning)
{
    struct tenancy *last = NULL;
    for (size_t i = 0; i < found->count; i++) {
        struct tenancy *tenancy = found->all[i];
        uint64_t from = tenancy->base > begin ? tenancy->base : begin;
        uint64_t to = tenancy->end < end ? tenancy->end : end;
        if (!tenancy->live && !tenancy->forgotten && from < to &&
            touches(beginning->range, from, to) && (last == NULL || last->serial < tenancy->serial))
            last = tenancy;
    }
    if (last != NULL && (is_waited_for_by_free(last, beginning->origin) ||
                         graph_may_use_freed(last, beginning->range)))
        record_use(last, beginning);
    else if (last != NULL)
        report_use_after_free(last, beginning->range, beginning->origin);
}

static void use_range(const struct beginning *beginning)
{
    const struct range *range = beginning->range;
    const struct overlaps *found = find(range->begin, range->end);
    uint64_t at = range->begin;
    for (size_t i = 0; i < found->count; i++) {
        struct tenancy *tenancy = found->all[i];
        if (!tenancy->live)
            continue;
        if (at < tenancy->base)
            use_of_none(found, at, tenancy->base, beginning);
        at = tenancy->end;
        if (touches(range, tenancy->base, tenancy->end))
            use_live(tenancy, found, beginning);
    }
    if (at < range->end)
        use_of_none(found, at, range->end, beginning);
}

void memory_used(const struct range *ranges, unsigned int count, struct point point,
                 const struct clock *clock, const struct origin *origin)
{
    count_operation();
    for (unsigned int i = 0; i < count; i++) {
        struct beginning beginning = {&ranges[i], point, clock, origin};
        if (!use_captured(&beginning) && root != NULL)
            use_range(&beginning);
    }
}

void memory_reached_late(const struct range *range, uint64_t serial, const struct origin *origin)
{
    const struct overlaps *found = find(range->begin, range->end);
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i]->live && found->all[i]->serial > serial)
            report_reached_late(found->all[i], range, origin);
}

uint64_t last_allocation(void)
{
    return last_serial;
}

uint64_t last_free(void)
{
    return last_free_number;
}

/* --- allocations -------------------------------------------------------------------------------*/

static uint32_t random_priority(void)
{
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static void destroy(struct tenancy *tenancy)
{
    take_out(tenancy);
    clock_drop(tenancy->freed);
    free(tenancy);
}

/* Someone else has these bytes of a freed allocation now. What is left of it is only good for
 * saying that the rest is used after the free. */
static void hand_over(struct tenancy *freed, uint64_t base, uint64_t end)
{
    memory_of_graphs_given(freed);
    if (threads_are_told())
        clock_join(host_clock(), freed->freed);
    forget_uses(freed, is_known, observed);
    if (freed->uses != NULL)
        return;
    if (base <= freed->base && end >= freed->end) {
        destroy(freed);
    } else if (base <= freed->base || end >= freed->end) {
        take_out(freed);
        if (base <= freed->base)
            freed->base = end;
        else
            freed->end = base;
        insert(freed);
    }
}

/* Whose memory it is to the program. The context of pinned memory that a pool took from the driver
 * may be another than the one that the program allocates in, since all of a process may use it. */
static uint64_t context_of_new(uint64_t address)
{
    const struct allocation *block = allocation_at(address);
    CUresult why_not;
    const struct context *context = current_context(&why_not);
    bool is_blocks = block != NULL && block->context_id != 0;
    if (is_blocks && (context == NULL || block->kind < MEMORY_HOST))
        return block->context_id;
    return context != NULL ? context->root->id : 0;
}

static struct tenancy *allocated(uint64_t address, uint64_t bytes, uint64_t id)
{
    struct tenancy *tenancy = calloc(1, sizeof *tenancy);
    uint64_t end = address + (bytes > 0 ? bytes : 1);
    const struct overlaps *found = find(address, end);
    if (tenancy == NULL)
        abort();
    captured_memory_given(address, end);
    for (size_t i = 0; i < found->count; i++) {
        if (found->all[i]->live)
            report_given_out_twice(found->all[i], address, bytes, id);
        else
            hand_over(found->all[i], address, end);
    }
    *tenancy = (struct tenancy){.base = address,
                                .end = end,
                                .serial = ++last_serial,
                                .id = id,
                                .bytes = bytes,
                                .context = context_of_new(address),
                                .priority = random_priority(),
                                .live = true,
                                .graphs = sim.captures != NULL};
    insert(tenancy);
    count_allocation();
    return tenancy;
}

/* What the plain driver's free of it waits for, or comes after. */
static void what_a_free_covers(const struct tenancy *tenancy, struct clock **covered)
{
    const struct context *context = context_with_id(tenancy->context);
    if (context != NULL)
        work_of_context(covered, context);
    clock_join(covered, *host_clock());
    clock_join(covered, observed);
}

/* A copy in another context is waited for where the driver knows of it: in cuMemFree. */
static bool is_copy_that_counts(const struct use *use, bool copies_count)
{
    return copies_count && !use->origin.kernel && !use->origin.host;
}

static bool is_freed_as_device_memory(uint64_t address)
{
    const struct allocation *block = allocation_at(address);
    return block == NULL || block->kind < MEMORY_HOST;
}

static void freed(struct tenancy *tenancy, const struct clock *covered, bool copies_count)
{
    const struct overlaps *found;
    tenancy->live = false;
    tenancy->graphs = tenancy->graphs || sim.captures != NULL;
    last_freed = tenancy->serial;
    clock_drop(tenancy->freed);
    tenancy->freed = clock_hold(*host_clock());
    forget_uses(tenancy, is_known, observed);
    for (struct use *use = tenancy->uses; use != NULL; use = use->next)
        use->left_behind =
            !clock_knows(covered, use->point) && !is_copy_that_counts(use, copies_count);
    found = find(tenancy->base, tenancy->end);
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i] != tenancy)
            forget_uses(found->all[i], is_succeeded_by, &tenancy->serial);
}

/* --- what the driver does ----------------------------------------------------------------------*/

void race_memory_back(uint64_t base, uint64_t bytes, const struct op *op)
{
    const struct overlaps *found = find(base, base + bytes);
    struct clock *end = clock_hold(observed);
    end_of_op(&end, op);
    for (size_t i = 0; i < found->count; i++)
        if (!found->all[i]->live)
            forget_uses(found->all[i], is_known, end);
    clock_drop(end);
}

void race_memory_freed(uint64_t base)
{
    struct tenancy *tenancy = tenancy_at(base);
    if (tenancy != NULL)
        tenancy->live = false;
}

void race_memory_given(uint64_t base, uint64_t bytes)
{
    forget_captured(base, base + bytes);
    const struct overlaps *found = find(base, base + bytes);
    for (size_t i = 0; i < found->count; i++)
        if (!found->all[i]->live)
            found->all[i]->forgotten = true;
}

static void forget_context(struct tenancy *tree, uint64_t id)
{
    if (tree == NULL)
        return;
    forget_context(tree->left, id);
    forget_context(tree->right, id);
    if (tree->context == id && tree->live) {
        tree->live = false;
        tree->forgotten = true;
    }
}

void race_context_gone(const struct context *context)
{
    if (context->root == context)
        forget_context(root, context->id);
}

/* --- what programs tell ------------------------------------------------------------------------*/

void simcuda_program_allocated(uint64_t address, uint64_t bytes, uint64_t id)
{
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    allocated(address, bytes, id);
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_program_allocated_async(uint64_t address, uint64_t bytes, uint64_t id,
                                     void *stream_handle)
{
    struct stream *stream;
    struct tenancy *tenancy;
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    stream = stream_named(stream_handle);
    if (stream != NULL && stream->capture == NULL) {
        tenancy = allocated(address, bytes, id);
        tenancy->begin = mark_in_stream(stream);
    } else if (stream != NULL) {
        captured_allocated(address, bytes, id, ++last_serial);
    }
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_program_freed(uint64_t address)
{
    struct tenancy *tenancy;
    struct clock *covered = NULL;
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    last_freed = 0;
    tenancy = tenancy_at(address);
    if (tenancy != NULL) {
        what_a_free_covers(tenancy, &covered);
        freed(tenancy, covered, is_freed_as_device_memory(address));
        tenancy->free_number = ++last_free_number;
    }
    captured_freed(address);
    clock_drop(covered);
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_program_freed_async(uint64_t address, void *stream_handle)
{
    struct tenancy *tenancy;
    struct stream *stream;
    struct clock *covered = NULL;
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    last_freed = 0;
    tenancy = tenancy_at(address);
    stream = stream_named(stream_handle);
    if (tenancy != NULL && stream != NULL && stream->capture == NULL) {
        clock_join(&covered, *host_clock());
        clock_join(&covered, observed);
        end_of_stream(&covered, stream);
        freed(tenancy, covered, false);
    }
    captured_freed(address);
    clock_drop(covered);
    pthread_mutex_unlock(&sim.lock);
}

void simcuda_program_free_failed(uint64_t address)
{
    const struct overlaps *found;
    if (!races_on)
        return;
    pthread_mutex_lock(&sim.lock);
    found = find(address, address + 1);
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i]->base == address && found->all[i]->serial == last_freed)
            found->all[i]->live = true;
    last_freed = 0;
    pthread_mutex_unlock(&sim.lock);
}
