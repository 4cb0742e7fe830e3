/*
 * The host's memory runs out, at each request of the core in turn: the pool passes a call on to the
 * driver rather than fail it, loses nothing of the device's memory, and what cannot be reported is
 * one error. A reader or writer of JSON fails with one error, or not at all.
 */
#include "pool_fixture.h"

#include <unistd.h>

#include "core/figures/report_json.h"
#include "core/settings/config_json.h"
#include "failing_memory.h"

TestSuite(failing_memory, .init = set_up, .fini = tear_down);

/* More requests than anything here makes. */
#define MANY 400

/* ---- the pool ---- */

enum { BLOCKS = 48 };

/* From 1 B to 9 MiB, each in a bucket of its own. */
static size_t size_of_block(size_t i)
{
    return i < 24 ? ((size_t)1 << i) + i : (i - 23) * 380 * KIB;
}

/* Two contexts, sizes of many buckets, fences: what takes records. */
static void use_the_pool(void)
{
    CUdeviceptr blocks[BLOCKS];
    CUcontext other = another_context(0);
    for (int round = 0; round < 2; round++) {
        fake_set_current(round == 0 ? other : context);
        for (size_t i = 0; i < BLOCKS; i++)
            blocks[i] = allocate(size_of_block(i));
        fake_launch(round == 0 ? other : context);
        for (size_t i = 0; i < BLOCKS; i++)
            release(blocks[i]);
        fake_finish(other);
        fake_finish(context);
        cr_assert_eq(synchronise(), CUDA_SUCCESS);
    }
    fake_set_current(other);
    end_context(other);
    fake_set_current(context);
}

/* What the driver has given out is in the pool's books, and can be given back. */
static void nothing_is_lost(long request)
{
    cr_expect_eq(live_bytes(), 0, "request %ld", request);
    cr_expect_eq(fake_bytes_used(0), pending_bytes() + clean_bytes(), "request %ld", request);
    allocate_and_release(2 * FREES_TO_A_FENCE, KIB);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    pool_trim(pool);
    cr_expect_eq(fake_bytes_used(0), 0, "%llu bytes stay pending after request %ld",
                 (unsigned long long)pending_bytes(), request);
}

static void run_out_everywhere(enum bucket_policy policy, bool for_good)
{
    long tried = 0;
    for (has_failed = true; has_failed && tried < MANY; tried++) {
        set_up();
        settings.device.buckets.policy = policy;
        pool = pool_create(driver, &settings, &thread_functions);
        context = fake_context(0);
        memory_fails_after(tried, for_good);
        pool_context_created(pool, context);
        use_the_pool();
        memory_is_back();
        use_the_pool();
        nothing_is_lost(tried);
        cr_assert_eq(fake_misuses(), 0, "%s, request %ld", fake_last_misuse(), tried);
    }
    cr_expect_gt(tried, 20, "it takes but %ld requests", tried);
    cr_expect_lt(tried, MANY);
}

Test(failing_memory, one_request_of_the_pool_fails)
{
    run_out_everywhere(BUCKETS_GEOMETRIC, false);
}

Test(failing_memory, no_request_of_the_pool_succeeds_any_more)
{
    run_out_everywhere(BUCKETS_GEOMETRIC, true);
}

Test(failing_memory, one_request_of_a_pool_that_cuts_fails)
{
    run_out_everywhere(BUCKETS_SPLIT, false);
}

Test(failing_memory, no_request_of_a_pool_that_cuts_succeeds_any_more)
{
    run_out_everywhere(BUCKETS_SPLIT, true);
}

/* It cannot be known when it ends. */
Test(failing_memory, after_a_capture_without_a_record_the_driver_answers)
{
    start();
    CUstream stream = fake_stream();
    memory_fails_after(0, true);
    begin_capture(stream);
    memory_is_back();
    end_capture(stream);
    cr_expect(pool_captures_under_way(pool));
    unsigned records = fake_calls(FAKE_RECORD);
    for (unsigned i = 1; i <= 2 * FREES_TO_A_FENCE; i++) {
        release(allocate(MIB));
        cr_expect_eq(fake_calls(FAKE_MEM_FREE), i);
    }
    cr_expect_eq(fake_calls(FAKE_RECORD), records);
    cr_expect_not(fake_capture_was_invalidated());
}

Test(failing_memory, a_pool_that_cannot_start_says_so)
{
    memory_fails_after(0, true);
    errno = 0;
    cr_expect_null(pool_create(driver, &settings, &thread_functions));
    cr_expect_eq(errno, ENOMEM);
    memory_is_back();
}

Test(failing_memory, a_report_that_does_not_fit_is_an_error)
{
    static struct report report;
    long tried = 0;
    start();
    allocate_and_release(3, MIB);
    allocate_and_release(3, 3 * MIB);
    for (has_failed = true; has_failed && tried < MANY; tried++) {
        memory_fails_after(tried, true);
        report = (struct report){0};
        int status = pool_report(pool, &report);
        memory_is_back();
        cr_expect_eq(status, has_failed ? -1 : 0, "request %ld", tried);
        cr_expect(!has_failed || report.device_count == 0, "a part of a report is left");
        report_free(&report);
    }
    cr_expect_gt(tried, 2);
}

/* ---- JSON ---- */

static char directory[64], path[96], error[1024];

static void make_file(const char *text)
{
    snprintf(directory, sizeof(directory), "/tmp/cudapool-test-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/file.json", directory);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(void)
{
    unlink(path);
    rmdir(directory);
}

static void expect_one_line(int status, long request)
{
    cr_expect(status == 0 || status == -1);
    if (status == 0)
        return;
    cr_expect_eq(strncmp(error, path, strlen(path)), 0, "request %ld: %s", request, error);
    cr_expect_null(strchr(error, '\n'));
}

Test(failing_memory, settings_are_read_or_refused)
{
    static struct settings read;
    long tried = 0;
    int status = -1;
    let_json_fail_too();
    make_file("{\"version\": 1, \"device\": {\"growth_budget\": \"1MiB\", \"enabled\": false}}");
    for (has_failed = true; has_failed && tried < MANY; tried++) {
        memory_fails_after(tried, true);
        error[0] = '\0';
        status = config_read_file(path, &read, error, sizeof(error));
        memory_is_back();
        expect_one_line(status, tried);
    }
    cr_expect_eq(status, 0);
    cr_expect_eq(read.device.growth_budget.bytes, MIB);
    cr_expect_gt(tried, 5);
    remove_file();
}

/* The process's report, written at its end. */
static struct report *report_to_write(void)
{
    static struct report report;
    start();
    allocate_and_release(3, MIB);
    report.settings = settings;
    snprintf(report.process.command, sizeof(report.process.command), "./caf\xe9");
    cr_assert_eq(pool_report(pool, &report), 0);
    return &report;
}

Test(failing_memory, reports_are_written_and_read_or_it_is_said_why)
{
    static struct report read;
    struct report *report = report_to_write();
    long tried = 0;
    int status = -1;
    let_json_fail_too();
    make_file("");
    for (has_failed = true; has_failed && tried < 10 * MANY; tried++) {
        memory_fails_after(tried, true);
        status = report_write_json(report, path, error, sizeof(error));
        memory_is_back();
        expect_one_line(status, tried);
    }
    cr_expect_eq(status, 0);
    cr_expect_gt(tried, 100);
    tried = 0;
    for (has_failed = true; has_failed && tried < 10 * MANY; tried++) {
        memory_fails_after(tried, true);
        status = report_read_json(path, &read, error, sizeof(error));
        memory_is_back();
        expect_one_line(status, tried);
    }
    cr_assert_eq(status, 0);
    cr_expect_str_eq(read.process.command, "./caf\\xe9");
    report_free(&read);
    report_free(report);
    remove_file();
}
