/* The arena of the counters: what is added to it, and what where it is full. */
#include "pool_fixture.h"

#include "core/base/clock.h"
#include "core/contexts/device.h"
#include "core/figures/figures.h"
#include "core/figures/figures_report.h"

static struct figures figures;

static void start_figures(void)
{
    figures_init(&figures);
    figures_start(&figures);
    cr_assert_not_null(figures_header(&figures));
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
    const struct figures_bucket *bucket = (const void *)first_record(figures_header(&figures));
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
    while (figures.room - counter_get(&figures_header(&figures)->used) >=
           sizeof(struct figures_bucket));
    cr_assert(is_in(figures_header(&figures), in));
    uint64_t used = counter_get(&figures_header(&figures)->used);
    out = figures_bucket(&figures, KIND_DEVICE, 0, 0, 1024);
    cr_assert_not_null(out);
    cr_assert_not(is_in(figures_header(&figures), out));
    cr_assert_eq(bucket_requests(out), 0);
    cr_assert_eq(counter_get(&figures_header(&figures)->used), used);
    cr_assert_eq(counter_get(&figures_header(&figures)->lost), 1);
}

/* ---- the history ---- */

static void add_samples(struct history *history, uint64_t count)
{
    for (uint64_t i = 1; i <= count; i++) {
        struct history_sample sample = {.at = 0};
        counter_set(&sample.at, 1000 * i);
        counter_set(&sample.live_bytes, i);
        counter_set(&sample.hits[HIT_BARRIER], 2 * i);
        history_add(history, &sample);
    }
}

static struct report_device take_history(const struct history *history)
{
    struct report_device device = {.ordinal = 0};
    cr_assert(report_take_history(&device, history, 500));
    for (size_t i = 0; i < device.sample_count; i++) {
        const struct report_sample *sample = &device.samples[i];
        cr_assert_eq(sample->nanoseconds, 1000 * sample->live_bytes - 500);
        cr_assert_eq(sample->hits.barrier, 2 * sample->live_bytes);
        cr_assert(i == 0 || sample->nanoseconds > sample[-1].nanoseconds);
    }
    return device;
}

Test(figures, a_history_stays_within_its_size)
{
    static struct history history;
    add_samples(&history, HISTORY_SAMPLES);
    cr_assert_eq(take_history(&history).sample_count, HISTORY_SAMPLES);
    cr_assert_eq(history_next(&history, 7), 7 + HISTORY_INTERVAL);
    memset(&history, 0, sizeof history);
    add_samples(&history, 5 * HISTORY_SAMPLES);
    struct report_device device = take_history(&history);
    cr_assert_gt(device.sample_count, HISTORY_SAMPLES / 2);
    cr_assert_leq(device.sample_count, HISTORY_SAMPLES);
    cr_assert_eq(device.samples[0].live_bytes, 1, "the first stays");
    cr_assert_gt(history_next(&history, 0), 4 * HISTORY_INTERVAL);
}

/* Between two samples more may have been held than in either, and one of the two may go. */
Test(figures, no_peak_is_missed)
{
    static struct history history;
    const uint64_t count = 5 * HISTORY_SAMPLES;
    for (uint64_t high = 2; high <= count; high += 13) {
        memset(&history, 0, sizeof history);
        for (uint64_t i = 1; i <= count; i++) {
            struct history_sample sample = {.at = 0};
            counter_set(&sample.at, 1000 * i);
            counter_set(&sample.peak_bytes, i == high ? 12345 : 1);
            history_add(&history, &sample);
        }
        struct report_device device = {.ordinal = 0};
        uint64_t most = 0;
        cr_assert(report_take_history(&device, &history, 0));
        for (size_t i = 0; i < device.sample_count; i++)
            most = device.samples[i].peak_bytes > most ? device.samples[i].peak_bytes : most;
        cr_assert_eq(most, 12345, "%d", (int)high);
        free(device.samples);
    }
}

Test(figures, a_peak_between_two_samples_is_in_the_second, .init = set_up, .fini = tear_down)
{
    start();
    CUdeviceptr block = allocate(MIB);
    figures_sample_now(&pool->figures, monotonic_now());
    CUdeviceptr large = allocate(64 * MIB);
    release(large);
    synchronise();
    pool_trim(pool);
    figures_sample_now(&pool->figures, monotonic_now());
    release(block);
    figures_sample_now(&pool->figures, monotonic_now());
    static struct report report;
    cr_assert_eq(pool_report(pool, &report), 0);
    const struct report_device *device = &report.devices[0];
    cr_assert_geq(device->sample_count, 4);
    const struct report_sample *last = &device->samples[device->sample_count - 1];
    cr_assert_eq(last[-2].live_bytes, MIB);
    cr_assert_eq(last[-2].cached_bytes, 0);
    cr_assert_eq(last[-2].peak_bytes, 65 * MIB);
    cr_assert_eq(last[-1].peak_bytes, MIB);
    report_free(&report);
}

/* Killed while every second sample goes: what was moved, the one that was being moved, and the rest
 * as it was. */
Test(figures, a_history_that_was_being_changed_is_in_order)
{
    static struct history history;
    add_samples(&history, HISTORY_SAMPLES);
    for (unsigned moved = 0; moved < HISTORY_SAMPLES / 2; moved++) {
        history.samples[moved] = history.samples[2 * moved];
        struct history_sample kept = history.samples[moved + 1];
        counter_set(&history.samples[moved + 1].at, 0);
        counter_set(&history.samples[moved + 1].live_bytes, 12345678);
        struct report_device device = take_history(&history);
        cr_assert_geq(device.sample_count, HISTORY_SAMPLES / 2 - 1);
        free(device.samples);
        history.samples[moved + 1] = kept;
    }
}

/* Those that the pool knows, and that have figures of their own. */
static unsigned count_kinds(void)
{
    unsigned count = 0;
    for (unsigned i = 0; pool->kinds[i]; i++)
        count += pool->kinds[i]->number < MEMORY_KINDS;
    return count;
}

Test(figures, a_pool_counts_in_its_arena, .init = set_up, .fini = tear_down)
{
    start_without_context();
    cr_assert_null(figures_header(&pool->figures), "nothing is made before it is needed");
    pool_context_created(pool, fake_context(0));
    allocate(1000);
    const struct figures_header *header = figures_header(&pool->figures);
    cr_assert_eq(count_records(header, FIGURES_DEVICE), 1);
    cr_assert_eq(count_records(header, FIGURES_KIND), count_kinds());
    cr_assert_eq(count_records(header, FIGURES_HEAP), 1);
    cr_assert_eq(count_records(header, FIGURES_BUCKET), 3,
                 "blocks of 1 KiB, and of two kinds those that are not kept");
}

/* ---- neighbours ---- */

static void describe_device(int ordinal)
{
    struct figures_device device = {.ordinal = ordinal, .total_bytes = 1 << 30};
    cr_assert(figures_device(&figures, &device));
}

/* 1 MiB in use, 2 MiB cached and 3 MiB pending in a bucket, 1 MiB more of each in a bin, three hits
 * and a miss. */
static void hold_some(enum memory_kind kind)
{
    struct bucket_counters *bucket = figures_bucket(&figures, kind, 0, 0, MIB);
    struct bin_counters *bin = figures_bin(&figures, kind, 0, 0, MIB);
    struct kind_counters *counters = figures_kind(&figures, kind, 0);
    counter_add(&bucket->reserved_bytes, 8 * MIB);
    counter_add(&bucket->free_bytes, 5 * MIB);
    counter_add(&bucket->clean_bytes, 2 * MIB);
    counter_add(&bucket->hits[HIT_QUERIED], 2);
    counter_add(&bucket->misses, 1);
    counter_add(&bin->hits, 1);
    counter_add(&bin->frees, 2);
    counter_add(&bin->moved, 1);
    counter_add(&bin->not_pending, 1);
    counter_add(&counters->recent_peak, 100 * MIB);
}

/* Requests of every kind count, and bytes where they lie on the device. */
Test(figures, host_memory_is_not_the_devices, .init = start_figures)
{
    struct history_sample device, both;
    hold_some(KIND_DEVICE);
    figures_sum(figures_walk(&figures), 0, 7, &device);
    hold_some(KIND_HOST);
    figures_sum(figures_walk(&figures), 0, 7, &both);
    cr_expect_eq(counter_get(&device.live_bytes), 1 * MIB);
    cr_expect_eq(counter_get(&both.live_bytes), 1 * MIB);
    cr_expect_eq(counter_get(&both.cached_bytes), counter_get(&device.cached_bytes));
    cr_expect_eq(counter_get(&both.cached_bytes), 3 * MIB);
    cr_expect_eq(counter_get(&both.pending_bytes), 4 * MIB);
    cr_expect_eq(counter_get(&both.peak_bytes), 100 * MIB);
    cr_expect_eq(counter_get(&device.misses), 1);
    cr_expect_eq(counter_get(&both.misses), 2);
    cr_expect_eq(counter_get(&both.hits[HIT_QUERIED]), 4);
    cr_expect_eq(counter_get(&device.hits[HIT_CLEAN]), 1);
    cr_expect_eq(counter_get(&both.hits[HIT_CLEAN]), 2);
}

static struct report *report_of_figures(uint64_t started)
{
    static struct report report;
    memset(&report, 0, sizeof report);
    cr_assert_eq(figures_report(figures_walk(&figures), started, &report), 0);
    return &report;
}

Test(figures, what_neighbours_gave_is_counted_by_device, .init = start_figures)
{
    describe_device(0);
    describe_device(1);
    struct neighbour_counters *first = figures_neighbours(&figures, 0);
    struct neighbour_counters *second = figures_neighbours(&figures, 1);
    neighbours_count_given(first, 100, 5000);
    neighbours_count_given(first, 50, 4000);
    neighbours_count_got(second, 70, 6000);
    neighbours_count_left(second, 30, 1000);
    neighbours_count_asked(second, 0);
    neighbours_count_asked(second, 3);
    counter_raise_shared(&second->others_held, 900);
    struct report *report = report_of_figures(2000);
    struct report_neighbours wanted[2] = {
        /* Of two that counted at a time the later one is the last. */
        {.given = {150, 2, 3000}},
        /* What was before the pool's start was at it. */
        {.got = {70, 1, 4000},
         .left = {30, 1, 0},
         .asked = 2,
         .silent = 3,
         .others_held_bytes = 900}};
    for (int i = 0; i < 2; i++)
        cr_expect_arr_eq(&report->devices[i].neighbours, &wanted[i], sizeof wanted[i]);
    report_free(report);
}

Test(figures, samples_have_what_neighbours_gave, .init = start_figures)
{
    describe_device(0);
    describe_device(1);
    neighbours_count_given(figures_neighbours(&figures, 0), 100, 1);
    neighbours_count_got(figures_neighbours(&figures, 1), 70, 1);
    struct history_sample sum;
    figures_sum(figures_walk(&figures), 0, 7, &sum);
    cr_expect_eq(counter_get(&sum.given_bytes), 100);
    cr_expect_eq(counter_get(&sum.got_bytes), 0);
    figures_sum(figures_walk(&figures), 1, 7, &sum);
    cr_expect_eq(counter_get(&sum.given_bytes), 0);
    cr_expect_eq(counter_get(&sum.got_bytes), 70);
    uint64_t now = monotonic_now();
    figures_sample_now(&figures, now);
    struct report *report = report_of_figures(now - 1);
    cr_assert_eq(report->devices[0].sample_count, 1);
    cr_expect_eq(report->devices[0].samples[0].given_bytes, 100);
    cr_expect_eq(report->devices[1].samples[0].got_bytes, 70);
    report_free(report);
}

/* A free that waits for the GPU samples at the time at which its wait began. */
Test(figures, what_a_sample_takes_is_not_how_late_it_is, .init = start_figures)
{
    const uint64_t second = 1000000000;
    uint64_t now = monotonic_now();
    describe_device(0);
    figures_sample_now(&figures, now - second);
    cr_expect_lt(atomic_load(&figures.sample_due), now + 100 * second);
}

Test(figures, the_housekeeper_says_how_it_is, .init = start_figures)
{
    struct housekeeper_counters *counters = figures_housekeeper(&figures);
    struct report *report = report_of_figures(0);
    cr_expect_eq(report->housekeeper.state, HOUSEKEEPER_NEVER);
    cr_expect_eq(report->housekeeper.board, BOARD_NOT_TRIED);
    counter_set(&counters->state, HOUSEKEEPER_CANNOT);
    counter_add(&counters->wakeups, 5);
    figures_note_board(counters, "/dev/shm is full");
    report = report_of_figures(0);
    cr_expect_eq(report->housekeeper.state, HOUSEKEEPER_CANNOT);
    cr_expect_eq(report->housekeeper.wakeups, 5);
    cr_expect_eq(report->housekeeper.board, BOARD_REFUSED);
    cr_expect_str_eq(report->housekeeper.board_why, "/dev/shm is full");
    figures_note_board(counters, NULL);
    report = report_of_figures(0);
    cr_expect_eq(report->housekeeper.board, BOARD_JOINED);
    cr_expect_str_eq(report->housekeeper.board_why, "");
}

/* A text of any length, and what no build writes. */
Test(figures, a_housekeeper_of_nonsense_is_cut_down, .init = start_figures)
{
    struct housekeeper_counters *counters = figures_housekeeper(&figures);
    char longer[300];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    figures_note_board(counters, longer);
    cr_expect_eq(strlen(report_of_figures(0)->housekeeper.board_why), BOARD_WHY_BYTES - 1);
    memset(counters->board_why, 'y', sizeof counters->board_why);
    cr_expect_eq(strlen(report_of_figures(0)->housekeeper.board_why), BOARD_WHY_BYTES - 1);
    counter_set(&counters->state, HOUSEKEEPER_STATES);
    counter_set(&counters->board, BOARD_STATES);
    struct report *report = report_of_figures(0);
    cr_expect_eq(report->housekeeper.state, HOUSEKEEPER_NEVER);
    cr_expect_eq(report->housekeeper.board, BOARD_NOT_TRIED);
}

Test(figures, limits_are_of_their_device, .init = start_figures)
{
    describe_device(0);
    describe_device(1);
    struct device_limits none = {.device_bytes = UINT64_MAX, .group_bytes = UINT64_MAX};
    struct device_limits some = {4096, UINT64_MAX, "GPU_MEMORY_LIMIT", "", ""};
    figures_change_limits(figures_limits(&figures, 0), &none);
    figures_change_limits(figures_limits(&figures, 1), &some);
    struct report *report = report_of_figures(0);
    cr_expect_str_eq(report->devices[0].limits.device_from, "");
    cr_expect_arr_eq(&report->devices[1].limits, &some, sizeof some);
    report_free(report);
}

Test(figures, limits_that_change_for_ever_take_no_room, .init = start_figures)
{
    describe_device(0);
    struct figures_limits *record = figures_limits(&figures, 0);
    uint64_t used = counter_get(&figures_header(&figures)->used);
    struct device_limits limits = {.group_bytes = UINT64_MAX};
    for (uint64_t i = 1; i <= 100001; i++) {
        limits.device_bytes = i;
        figures_change_limits(record, &limits);
    }
    cr_expect_eq(counter_get(&figures_header(&figures)->used), used);
    struct report *report = report_of_figures(0);
    cr_expect_eq(report->devices[0].limits.device_bytes, 100001);
    report_free(report);
}

/* What devices and the pool hold is there before anybody can use the device. */
Test(figures, a_device_has_its_counters, .init = set_up, .fini = tear_down)
{
    start();
    allocate(1000);
    struct device *device = registry_devices(&pool->registry);
    cr_assert_not_null(device);
    cr_assert_not_null(device->neighbours);
    cr_assert_not_null(pool->housekeeper_counters);
    cr_expect_eq(device->limits[BOARD_LIMIT_OF_PROCESS], UINT64_MAX);
    cr_expect_eq(device->limits[BOARD_LIMIT_OF_GROUP], UINT64_MAX);
    neighbours_count_given(device->neighbours, 123, 1);
    static struct report report;
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_expect_eq(report.devices[0].neighbours.given.bytes, 123);
    report_free(&report);
}

/* The container's limit is what the device has. */
Test(figures, a_containers_limit_is_the_devices, .init = set_up, .fini = tear_down)
{
    start_without_context();
    cr_assert_eq(setenv("GPU_MEMORY_LIMIT", "64m", 1), 0);
    pool_read_limits(pool, NULL);
    struct device *device = context_device(pool, 0);
    cr_assert_not_null(device);
    cr_expect_eq(device->limits[BOARD_LIMIT_OF_PROCESS], 64 << 20);
    static struct report report;
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_expect_str_eq(report.devices[0].limits.device_from, "GPU_MEMORY_LIMIT");
    report_free(&report);
}
