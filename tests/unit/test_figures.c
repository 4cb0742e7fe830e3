/* The arena of the counters: what is added to it, and what where it is full. */
#include "pool_fixture.h"

#include "core/figures.h"

static struct figures figures;

static void start_figures(void)
{
    figures_init(&figures);
    figures_start(&figures);
    cr_assert_not_null(figures.header);
}

static const struct figures_record *first_record(const struct figures_header *header)
{
    return (const void *)((const char *)header + header->first);
}

static const struct figures_record *after(const struct figures_record *record)
{
    return (const void *)((const char *)record + record->bytes);
}

static bool is_in(const struct figures_header *header, const void *place)
{
    return (const char *)place > (const char *)header &&
           (const char *)place < (const char *)header + counter_get(&header->used);
}

static unsigned count_records(const struct figures_header *header, enum figures_type type)
{
    unsigned count = 0;
    for (const struct figures_record *r = first_record(header); is_in(header, r); r = after(r)) {
        cr_assert_eq((uintptr_t)r % FIGURES_ALIGNMENT, 0);
        count += r->type == type;
    }
    return count;
}

Test(figures, records_are_published_as_they_are_made, .init = start_figures)
{
    struct bucket_counters *counters = figures_bucket(&figures, KIND_DEVICE, 7, 1, 4096);
    const struct figures_bucket *bucket = (const void *)first_record(figures.header);
    cr_assert_eq(bucket->record.type, FIGURES_BUCKET);
    cr_assert_eq(bucket->device, 1);
    cr_assert_eq(bucket->owner, 7);
    cr_assert_eq(bucket->bytes, 4096);
    cr_assert_eq(counters, &bucket->counters);
    counter_add(&counters->hits[HIT_WAITED], 3);
    counter_add(&counters->misses, 2);
    cr_assert_eq(bucket_requests(&bucket->counters), 5);
}

Test(figures, a_full_arena_loses_nothing_that_is_counted, .init = start_figures)
{
    struct bucket_counters *in, *out;
    do
        in = figures_bucket(&figures, KIND_DEVICE, 0, 0, 512);
    while (figures.room - counter_get(&figures.header->used) >= sizeof(struct figures_bucket));
    cr_assert(is_in(figures.header, in));
    uint64_t used = counter_get(&figures.header->used);
    out = figures_bucket(&figures, KIND_DEVICE, 0, 0, 1024);
    cr_assert_not_null(out);
    cr_assert_not(is_in(figures.header, out));
    cr_assert_eq(bucket_requests(out), 0);
    cr_assert_eq(counter_get(&figures.header->used), used);
    cr_assert_eq(counter_get(&figures.header->lost), 1);
}

Test(figures, a_pool_counts_in_its_arena, .init = set_up, .fini = tear_down)
{
    start_without_context();
    cr_assert_null(pool->figures.header, "nothing is made before it is needed");
    pool_context_created(pool, fake_context(0));
    allocate(1000);
    const struct figures_header *header = pool->figures.header;
    cr_assert_eq(count_records(header, FIGURES_DEVICE), 1);
    cr_assert_eq(count_records(header, FIGURES_KIND), MEMORY_KINDS);
    cr_assert_eq(count_records(header, FIGURES_HEAP), 1);
    cr_assert_eq(count_records(header, FIGURES_BUCKET), 2, "blocks of 1 KiB, and those not kept");
}
