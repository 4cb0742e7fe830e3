/*
 * Reading settings: what is allowed, and the one error for all that is not.
 *
 * Runs in the root of the repository, for configs/.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/settings/config_json.h"
#include "core/settings/quantity_json.h"
#include "core/settings/settings_json.h"
#include "decimal_comma.h"

/* --- reading a text as a file -------------------------------------------------------------------
 */

static struct settings settings;
static char error[1024];
static char path[64];

static void make_path(void)
{
    snprintf(path, sizeof(path), "/tmp/cudapool-test-XXXXXX");
    close(mkstemp(path));
}

static void remove_path(void)
{
    unlink(path);
}

TestSuite(config_json, .init = make_path, .fini = remove_path);

static int read_bytes(const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_TRUNC);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, bytes), (ssize_t)bytes);
    close(fd);
    error[0] = '\0';
    return config_read_file(path, &settings, error, sizeof(error));
}

static int read_text(const char *text)
{
    return read_bytes(text, strlen(text));
}

/* The text must be refused, with *settings untouched, in one line that begins with the file's name
 * and has all the parts (ends with NULL) in this order. */
static void expect_refused(const char *text, size_t bytes, const char *const *parts)
{
    struct settings before;

    memset(&settings, 0x5a, sizeof(settings));
    before = settings;
    cr_assert_eq(read_bytes(text, bytes), -1, "accepted: %s", text);
    cr_expect_arr_eq(&settings, &before, sizeof(settings), "settings were touched by %s", text);
    cr_expect_eq(strncmp(error, path, strlen(path)), 0, "no file name: %s", error);
    for (const char *c = error; *c != '\0'; c++)
        cr_expect((unsigned char)*c >= 0x20, "control character in: %s", error);
    const char *rest = error;
    for (; *parts != NULL; parts++) {
        const char *found = strstr(rest, *parts);
        cr_assert_not_null(found, "\"%s\" is missing in: %s", *parts, error);
        rest = found + strlen(*parts);
    }
}

#define REFUSED(text, ...)                                                                         \
    expect_refused(text, sizeof(text) - 1, (const char *const[]){__VA_ARGS__, NULL})

/* --- what is allowed ----------------------------------------------------------------------------
 */

Test(config_json, an_empty_object_is_the_defaults)
{
    struct settings defaults;

    settings_defaults(&defaults);
    memset(&settings, 0x5a, sizeof(settings));
    cr_assert_eq(read_text("{}"), 0, "%s", error);
    cr_assert_arr_eq(&settings, &defaults, offsetof(struct settings, spelled));
}

Test(config_json, every_setting_reaches_its_field)
{
    cr_assert_eq(
        read_text("{\"$schema\": \"x\", \"version\": 1,"
                  "\"device\": {\"enabled\": false, \"buckets\": {\"policy\": \"pow2\","
                  " \"steps_per_doubling\": 3, \"smallest\": \"1KiB\", \"largest\": \"2GiB\"},"
                  " \"caps\": {\"cached\": 12345, \"blocks_per_bucket\": 7, \"reserve_ratio\": 2},"
                  " \"growth_budget\": 0, \"evict\": \"least_recently_used\","
                  " \"release_after_idle\": \"500ms\", \"barriers\": false,"
                  " \"free_synchronizes\": true},"
                  "\"stream_ordered\": {\"enabled\": false, \"buckets\": {\"policy\": \"exact\","
                  " \"steps_per_doubling\": 64, \"smallest\": 1, \"largest\": \"25%\"},"
                  " \"caps\": {\"cached\": \"12.5%\", \"blocks_per_bucket\": 0,"
                  " \"reserve_ratio\": 1.5}, \"reuse\": {"
                  "\"opportunistic\": false, \"internal_dependencies\": false},"
                  " \"evict\": \"least_recently_used\", \"release_after_idle\": \"2min\","
                  " \"driver_release_threshold\": null},"
                  "\"host\": {\"enabled\": false, \"buckets\": {\"policy\": \"pow2\","
                  " \"steps_per_doubling\": 2, \"smallest\": 64, \"largest\": \"1%\"},"
                  " \"caps\": {\"cached\": \"3GiB\", \"blocks_per_bucket\": 5,"
                  " \"reserve_ratio\": 3}, \"growth_budget\": \"2MiB\","
                  " \"evict\": \"least_recently_used\", \"release_after_idle\": \"3s\","
                  " \"free_synchronizes\": true, \"large\": \"huge_pages\"},"
                  "\"limits\": {\"device_bytes\": \"40GB\"},"
                  "\"report\": {\"at_exit\": \"json\", \"file\": \"/tmp/%h.%p.%r%%.json\"}}"),
        0, "%s", error);
    cr_expect_not(settings.device.enabled);
    cr_expect_eq(settings.device.buckets.policy, BUCKETS_POW2);
    cr_expect_eq(settings.device.buckets.steps_per_doubling, 3);
    cr_expect_eq(settings.device.buckets.smallest, 1024);
    cr_expect_eq(settings.device.buckets.largest.bytes, 2ull << 30);
    cr_expect_float_eq(settings.device.buckets.largest.percent, 0, 0);
    cr_expect_eq(settings.device.caps.cached.bytes, 12345);
    cr_expect_eq(settings.device.caps.blocks_per_bucket, 7);
    cr_expect_float_eq(settings.device.caps.reserve_ratio, 2, 0);
    cr_expect_eq(settings.device.growth_budget.bytes, 0);
    cr_expect_eq(settings.device.evict, EVICT_LEAST_RECENTLY_USED);
    cr_expect_eq(settings.device.release_after_idle_ns, 500000000);
    cr_expect_not(settings.device.barriers);
    cr_expect(settings.device.free_synchronizes);
    cr_expect_not(settings.stream_ordered.enabled);
    cr_expect_eq(settings.stream_ordered.buckets.policy, BUCKETS_EXACT);
    cr_expect_eq(settings.stream_ordered.buckets.steps_per_doubling, 64);
    cr_expect_eq(settings.stream_ordered.buckets.smallest, 1);
    cr_expect_float_eq(settings.stream_ordered.buckets.largest.percent, 25, 0);
    cr_expect_float_eq(settings.stream_ordered.caps.cached.percent, 12.5, 0);
    cr_expect_eq(settings.stream_ordered.caps.blocks_per_bucket, 0);
    cr_expect_float_eq(settings.stream_ordered.caps.reserve_ratio, 1.5, 0);
    cr_expect_not(settings.stream_ordered.reuse.opportunistic);
    cr_expect_not(settings.stream_ordered.reuse.internal_dependencies);
    cr_expect_eq(settings.stream_ordered.evict, EVICT_LEAST_RECENTLY_USED);
    cr_expect_eq(settings.stream_ordered.release_after_idle_ns, 120000000000);
    cr_expect(settings.stream_ordered.driver_release_threshold.unlimited);
    cr_expect_not(settings.host.enabled);
    cr_expect_eq(settings.host.buckets.policy, BUCKETS_POW2);
    cr_expect_eq(settings.host.buckets.steps_per_doubling, 2);
    cr_expect_eq(settings.host.buckets.smallest, 64);
    cr_expect_float_eq(settings.host.buckets.largest.percent, 1, 0);
    cr_expect_eq(settings.host.caps.cached.bytes, 3ull << 30);
    cr_expect_eq(settings.host.caps.blocks_per_bucket, 5);
    cr_expect_float_eq(settings.host.caps.reserve_ratio, 3, 0);
    cr_expect_eq(settings.host.growth_budget.bytes, 2 << 20);
    cr_expect_eq(settings.host.evict, EVICT_LEAST_RECENTLY_USED);
    cr_expect_eq(settings.host.release_after_idle_ns, 3000000000);
    cr_expect(settings.host.free_synchronizes);
    cr_expect_eq(settings.host.large, HOST_LARGE_HUGE_PAGES);
    cr_expect_not(settings.limits.device_bytes.unlimited);
    cr_expect_eq(settings.limits.device_bytes.bytes, 40000000000);
    cr_expect_eq(settings.report.at_exit, REPORT_JSON);
    cr_expect_str_eq(settings.report.file, "/tmp/%h.%p.%r%%.json");
}

Test(config_json, sizes_as_they_may_be_spelled)
{
    static const struct {
        const char *text;
        uint64_t bytes;
        double percent;
    } sizes[] = {
        {"0B", 0, 0},
        {"7B", 7, 0},
        {"512KiB", 512 << 10, 0},
        {"1.5 MiB", 3 << 19, 0},
        {"3GiB", 3ull << 30, 0},
        {"2TiB", 2ull << 40, 0},
        {"4kB", 4000, 0},
        {"0.004kB", 4, 0},
        {"18446744073709551.615kB", 0, -1},
        {"5MB", 5000000, 0},
        {"6GB", 6000000000, 0},
        {"7TB", 7000000000000, 0},
        {"0%", 0, 0},
        {"33.3%", 0, 33.3},
        {"100%", 0, 100},
        {"100.0 %", 0, 100},
        {"", 0, -1},
        {"MiB", 0, -1},
        {"512", 0, -1},
        {"512Mib", 512 << 20, 0},
        {"64M", 64 << 20, 0},
        {"64m", 64 << 20, 0},
        {"64MB", 64000000, 0},
        {"64mb", 64000000, 0},
        {"1.5G", 3ull << 29, 0},
        {"2 k", 2048, 0},
        {"2Ki", 0, -1},
        {"2MBB", 0, -1},
        {"2P", 0, -1},
        {"512MB ", 0, -1},
        {" 512MB", 0, -1},
        {"512  MB", 0, -1},
        {"+1B", 0, -1},
        {"-1B", 0, -1},
        {"0x10B", 0, -1},
        {"1e3B", 0, -1},
        {"1.B", 0, -1},
        {".5KiB", 0, -1},
        {"1,5KiB", 0, -1},
        {"0.3B", 0, -1},
        {"1.0001KiB", 0, -1},
        {"100.1%", 0, -1},
        {"%", 0, -1},
        {"99999999999999999999999999B", 0, -1},
        {"999999999999999999TiB", 0, -1},
        {"0.0000000000000000000000001%", 0, -1},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct byte_size size = {.bytes = 99, .percent = 98, .unlimited = true};
        bool read = size_from_text(sizes[i].text, &size);
        if (sizes[i].percent < 0) {
            cr_expect_not(read, "\"%s\" was accepted", sizes[i].text);
            cr_expect_eq(size.bytes, 99, "\"%s\" touched the result", sizes[i].text);
            continue;
        }
        cr_expect(read, "\"%s\" was refused", sizes[i].text);
        cr_expect_eq(size.bytes, sizes[i].bytes, "\"%s\"", sizes[i].text);
        cr_expect_float_eq(size.percent, sizes[i].percent, 0, "\"%s\"", sizes[i].text);
        cr_expect_not(size.unlimited);
    }
}

Test(config_json, times_as_they_may_be_spelled)
{
    static const struct {
        const char *text;
        int64_t nanoseconds; /* -1: refused */
    } times[] = {
        {"0s", 0},
        {"1ns", 1},
        {"2us", 2000},
        {"500ms", 500000000},
        {"1.5s", 1500000000},
        {"2min", 120000000000},
        {"1h", 3600000000000},
        {"10", -1},
        {"10sec", -1},
        {"-1s", -1},
        {"0.5ns", -1},
        {"s", -1},
        {"10m", -1},
        {"10MiB", -1},
        {"999999999999999999h", -1},
    };

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        uint64_t nanoseconds = 77;
        bool read = time_from_text(times[i].text, &nanoseconds);
        cr_expect_eq(read, times[i].nanoseconds >= 0, "\"%s\"", times[i].text);
        if (read)
            cr_expect_eq(nanoseconds, (uint64_t)times[i].nanoseconds, "\"%s\"", times[i].text);
    }
}

Test(config_json, what_is_written_is_read_back_to_the_same)
{
    static const double shares[] = {50, 33.3, 0.1, 99.999, 12.5, 66.666666666666, 1e-9};
    char text[QUANTITY_TEXT_BYTES];
    struct byte_size size, read;

    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        size = (struct byte_size){.percent = shares[i]};
        size_to_text(&size, "", text);
        cr_assert(size_from_text(text, &read), "%s", text);
        cr_assert_float_eq(read.percent, shares[i], 0, "%s", text);
    }
    for (int shift = 0; shift < 50; shift++) {
        size = (struct byte_size){.bytes = (1ull << shift) + (uint64_t)shift % 3};
        size_to_text(&size, "", text);
        cr_assert(size_from_text(text, &read), "%s", text);
        cr_assert_eq(read.bytes, size.bytes, "%s", text);
    }
    bytes_to_text(128u << 20, "", text);
    cr_assert_str_eq(text, "128MiB");
    time_to_text(90000000000, "", text);
    cr_assert_str_eq(text, "90s");
    time_to_text(0, "", text);
    cr_assert_str_eq(text, "0s");
}

Test(config_json, values_are_echoed_in_the_unit_that_they_came_in)
{
    static const struct {
        const char *setting, *value, *words;
    } values[] = {
        {"device.growth_budget", "64M", "64 MiB;"},
        {"device.growth_budget", "64MB", "64 MB (64000000 bytes);"},
        {"device.growth_budget", "1.5GiB", "1.5 GiB;"},
        {"device.growth_budget", "1536MiB", "1536 MiB;"},
        {"device.growth_budget", "512000B", "500 KiB;"},
        {"device.growth_budget", "512kB", "512 kB (512000 bytes);"},
        {"device.growth_budget", "67108864", "64 MiB;"},
        {"device.buckets.smallest", "2K", "2 KiB,"},
        {"device.release_after_idle", "120s", "2 min "},
        {"device.release_after_idle", "1.5h", "90 min "},
    };
    char text[256], words[SETTING_TEXT_BYTES];

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        bool quoted = strspn(values[i].value, "0123456789") < strlen(values[i].value);
        const char *dot = strrchr(values[i].setting, '.') + 1;
        bool in_buckets = strstr(values[i].setting, "buckets") != NULL;
        snprintf(text, sizeof(text), "{\"device\": {%s\"%s\": %s%s%s%s}}",
                 in_buckets ? "\"buckets\": {" : "", dot, quoted ? "\"" : "", values[i].value,
                 quoted ? "\"" : "", in_buckets ? "}" : "");
        cr_assert_eq(read_text(text), 0, "%s", error);
        for (size_t j = 0; j < settings_table_length; j++) {
            if (strcmp(settings_table[j].path, values[i].setting) != 0)
                continue;
            json_t *json = setting_to_json(&settings_table[j], &settings);
            char *echo = json_dumps(json, JSON_ENCODE_ANY);
            cr_expect(strstr(echo, values[i].value) == echo + quoted, "%s became %s",
                      values[i].value, echo);
            setting_to_words(&settings_table[j], &settings, words);
            cr_expect_not_null(strstr(words, values[i].words), "%s: %s", values[i].value, words);
            free(echo);
            json_decref(json);
        }
    }
}

static const struct setting *setting_named(const char *name)
{
    for (size_t i = 0; i < settings_table_length; i++)
        if (strcmp(settings_table[i].path, name) == 0)
            return &settings_table[i];
    return NULL;
}

Test(config_json, one_value_spelled_in_two_ways_is_one_value)
{
    const struct setting *budget = setting_named("device.growth_budget");
    struct settings one;

    cr_assert_eq(read_text("{\"device\": {\"growth_budget\": \"1G\"}}"), 0);
    one = settings;
    cr_assert_eq(read_text("{\"device\": {\"growth_budget\": 1073741824}}"), 0);
    cr_expect(setting_is_equal(budget, &one, &settings));
    cr_assert_eq(read_text("{\"device\": {\"growth_budget\": \"1GB\"}}"), 0);
    cr_expect_not(setting_is_equal(budget, &one, &settings));
}

/* --- all errors of a file -----------------------------------------------------------------------
 */

static char all_errors[4096];
static size_t error_count;

static void note_error(const char *line, void *context)
{
    (void)context;
    error_count++;
    strncat(all_errors, line, sizeof(all_errors) - strlen(all_errors) - 2);
    strcat(all_errors, "\n");
}

Test(config_json, all_errors_are_told_to_who_wants_them)
{
    static const char *const wanted[] = {
        ": device.bukets: unknown key", ": device.growth_budget: found \"64X\"",
        ": device.caps.reserve_ratio: found 0.5", ": reprt: unknown key", ": version: found 2"};
    struct settings before;

    read_text("{\"version\": 2, \"device\": {\"bukets\": {}, \"growth_budget\": \"64X\", \"caps\": "
              "{\"reserve_ratio\": 0.5}}, \"reprt\": 1}");
    memset(&settings, 0x5a, sizeof(settings));
    before = settings;
    error_count = 0;
    all_errors[0] = '\0';
    cr_assert_eq(config_read_patiently(path, &settings, note_error, NULL), -1);
    cr_expect_arr_eq(&settings, &before, sizeof(settings));
    cr_expect_eq(error_count, sizeof(wanted) / sizeof(wanted[0]), "%s", all_errors);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        cr_expect_not_null(strstr(all_errors, wanted[i]), "%s is missing in %s", wanted[i],
                           all_errors);
}

Test(config_json, a_retired_setting_is_accepted_and_told)
{
    static const char *const assignment = "stream_ordered.reuse.follow_event_dependencies=true";
    static const char *const place =
        "stream_ordered.reuse.follow_event_dependencies: has no effect";

    cr_assert_eq(read_text("{\"stream_ordered\": {\"enabled\": false, \"reuse\": "
                           "{\"follow_event_dependencies\": true, \"opportunistic\": false}}}"),
                 0);
    cr_expect_not_null(strstr(error, place), "%s", error);
    cr_expect_not(settings.stream_ordered.enabled);
    cr_expect_not(settings.stream_ordered.reuse.opportunistic);
    all_errors[0] = '\0';
    cr_assert_eq(config_read_patiently(path, &settings, note_error, NULL), 0);
    cr_expect_not_null(strstr(all_errors, place), "%s", all_errors);
    all_errors[0] = '\0';
    cr_assert_eq(config_set(&assignment, 1, &settings, note_error, NULL), 0);
    cr_expect_not_null(strstr(all_errors, place), "%s", all_errors);
    cr_assert_eq(read_text("{\"device\": {\"follow_event_dependencies\": true}}"), -1);
}

/* --- built-in presets, and pipes ----------------------------------------------------------------
 */

Test(config_json, built_in_presets_are_read_by_name)
{
    struct settings from_file;

    cr_assert_eq(config_read_file("configs/strict.json", &from_file, error, sizeof(error)), 0);
    cr_assert_eq(config_read("strict", &settings, error, sizeof(error)), 0, "%s", error);
    cr_assert_arr_eq(&settings, &from_file, sizeof(settings));
    cr_assert_eq(config_read("./strict", &settings, error, sizeof(error)), -1);
}

Test(config_json, pipes_are_read_by_who_may_wait)
{
    static const char text[] = "{\"device\": {\"barriers\": false}}";
    int ends[2];
    char name[32];

    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
    close(ends[1]);
    snprintf(name, sizeof(name), "/dev/fd/%d", ends[0]);
    cr_assert_eq(config_read(name, &settings, error, sizeof(error)), -1);
    cr_assert_not_null(strstr(error, "is not a file"), "%s", error);
    cr_assert_eq(config_read_patiently(name, &settings, note_error, NULL), 0, "%s", all_errors);
    cr_expect_not(settings.device.barriers);
    close(ends[0]);
}

Test(config_json, a_decimal_comma_changes_nothing)
{
    char text[QUANTITY_TEXT_BYTES];

    if (!use_decimal_comma())
        return;
    real_to_text(1.25, text);
    cr_assert_str_eq(text, "1.25");
    cr_assert_eq(read_text("{\"device\": {\"caps\": {\"reserve_ratio\": 1.25, "
                           "\"cached\": \"12.5%\"}}}"),
                 0);
    cr_assert_float_eq(settings.device.caps.reserve_ratio, 1.25, 0);
    cr_assert_float_eq(settings.device.caps.cached.percent, 12.5, 0);
}

Test(config_json, every_setting_survives_writing_and_reading)
{
    struct document document = {.file = "x", .error = error, .error_bytes = sizeof(error)};
    struct settings written, read;

    cr_assert_eq(read_text("{\"device\": {\"enabled\": false, \"growth_budget\": \"0.1%\","
                           "\"caps\": {\"reserve_ratio\": 1.15, \"cached\": 1000000}},"
                           "\"stream_ordered\": {\"driver_release_threshold\": null},"
                           "\"host\": {\"large\": \"huge_pages\", \"growth_budget\": \"1%\"},"
                           "\"report\": {\"file\": \"a/%p\"}}"),
                 0);
    written = settings;
    json_t *json = settings_to_json(&written);
    cr_assert_not_null(json);
    cr_assert_eq(settings_from_json(&document, "", json, &read), 0, "%s", error);
    cr_assert_arr_eq(&written, &read, offsetof(struct settings, spelled));
    json_decref(json);
}

/* --- what is not --------------------------------------------------------------------------------
 */

Test(config_json, unknown_keys_name_the_nearest_known_one)
{
    REFUSED("{\"device\": {\"caps\": {\"cachd\": 1}}}", "device.caps.cachd: unknown key",
            "device.caps.cached;", "cached, blocks_per_bucket, reserve_ratio");
    REFUSED("{\"growth_budget\": 1}", ": growth_budget: unknown", "device.growth_budget;",
            "$schema, version, device, stream_ordered, host, captures, neighbours, limits, report");
    REFUSED("{\"devise\": {}}", ": devise: ", " device;");
    REFUSED("{\"device\": {\"reuse\": {}}}", "device.reuse: ", "stream_ordered.reuse;");
    REFUSED("{\"stream_ordered\": {\"enable\": 0}}",
            "stream_ordered.enable: ", " stream_ordered.enabled;");
    REFUSED("{\"schema\": \"\"}", ": schema: ", "$schema;");
    REFUSED("{\"Version\": 1}", ": Version: ", " version;");
    REFUSED("{\"device\": {\"Enabled\": true}}", "device.Enabled: ", "device.enabled;");
    REFUSED("{\"stream_ordered\": {\"growth_budget\": 0}}",
            "stream_ordered.growth_budget: ", "device.growth_budget;");
    REFUSED("{\"device\": {\"version\": 1}}", "device.version: unknown key");
    REFUSED("{\"\": 1}", "unknown key");
    REFUSED("{\"device.enabled\": true}", "device.enabled: unknown key");
    REFUSED("{\"device\": {\"a\\nb\\u001b[31m\": true}}", "device.a\\x0ab\\x1b[31m: unknown key");
}

Test(config_json, wrong_types_name_what_was_found_and_what_is_allowed)
{
    REFUSED("{\"device\": 1}", ": device: found 1, allowed is an object");
    REFUSED("{\"device\": null}", ": device: found null, allowed is an object");
    REFUSED("{\"device\": {\"enabled\": \"yes\"}}",
            "device.enabled: found \"yes\", allowed is true or false");
    REFUSED("{\"device\": {\"enabled\": 1}}", "found 1, allowed is true or false");
    REFUSED("{\"device\": {\"caps\": []}}", "device.caps: found an array");
    REFUSED("{\"device\": {\"caps\": {\"cached\": {}}}}", "device.caps.cached: found an object",
            "MiB", "50%");
    REFUSED("{\"device\": {\"caps\": {\"cached\": null}}}", "device.caps.cached: found null");
    REFUSED("{\"device\": {\"caps\": {\"cached\": 1.5}}}", "device.caps.cached: found 1.5");
    REFUSED("{\"device\": {\"caps\": {\"reserve_ratio\": \"1.5\"}}}",
            "device.caps.reserve_ratio: found \"1.5\", allowed is a number from 1 to 100");
    REFUSED("{\"device\": {\"buckets\": {\"policy\": \"geometrik\"}}}",
            "device.buckets.policy: found \"geometrik\", allowed is one of \"geometric\", "
            "\"pow2\", \"exact\"");
    REFUSED("{\"device\": {\"buckets\": {\"policy\": 0}}}", "device.buckets.policy: found 0");
    REFUSED("{\"host\": {\"large\": \"huge\"}}",
            "host.large: found \"huge\", allowed is one of \"driver\", \"huge_pages\"");
    REFUSED("{\"host\": {\"barriers\": true}}", "host.barriers: unknown key", "device.barriers;");
    REFUSED("{\"device\": {\"buckets\": {\"steps_per_doubling\": 8.0}}}",
            "found 8.0, allowed is an integer");
    REFUSED("{\"device\": {\"buckets\": {\"smallest\": \"50%\"}}}",
            "device.buckets.smallest: found \"50%\"");
    REFUSED("{\"device\": {\"release_after_idle\": 10}}",
            "device.release_after_idle: found 10, allowed is a time such as \"10s\"");
    REFUSED("{\"$schema\": 1}", "$schema: found 1, allowed is a string");
    REFUSED("[]", ": found an array, allowed is an object");
    REFUSED("null", ": found null, allowed is an object");
    REFUSED("\"device\"", ": found \"device\", allowed is an object");
}

Test(config_json, values_out_of_range_name_the_range)
{
    REFUSED("{\"device\": {\"buckets\": {\"steps_per_doubling\": 0}}}",
            "device.buckets.steps_per_doubling: found 0, allowed is an integer from 1 to 64");
    REFUSED("{\"device\": {\"buckets\": {\"steps_per_doubling\": 65}}}", "found 65", "1 to 64");
    REFUSED("{\"device\": {\"buckets\": {\"steps_per_doubling\": 4294967297}}}", "1 to 64");
    REFUSED("{\"device\": {\"buckets\": {\"smallest\": 0}}}", "found 0", "1B to 1GiB");
    REFUSED("{\"device\": {\"buckets\": {\"smallest\": \"2GiB\"}}}", "found \"2GiB\"");
    REFUSED("{\"device\": {\"buckets\": {\"largest\": 511}}}",
            "device.buckets.largest: found 511, allowed is 0 or at least buckets.smallest, 512");
    REFUSED("{\"stream_ordered\": {\"buckets\": {\"largest\": 511}}}",
            "stream_ordered.buckets.largest: found 511");
    REFUSED("{\"host\": {\"buckets\": {\"largest\": 511}}}", "host.buckets.largest: found 511");
    REFUSED("{\"device\": {\"caps\": {\"cached\": -1}}}", "device.caps.cached: found -1");
    REFUSED("{\"device\": {\"caps\": {\"cached\": \"1025TiB\"}}}", "0B to 1024TiB");
    REFUSED("{\"device\": {\"caps\": {\"cached\": \"101%\"}}}", "found \"101%\"");
    REFUSED("{\"device\": {\"caps\": {\"cached\": 9223372036854775807}}}", "device.caps.cached");
    REFUSED("{\"device\": {\"caps\": {\"blocks_per_bucket\": -1}}}",
            "found -1, allowed is an "
            "integer from 0 to 4294967295");
    REFUSED("{\"device\": {\"caps\": {\"reserve_ratio\": 0.99}}}", "found 0.99");
    REFUSED("{\"device\": {\"caps\": {\"reserve_ratio\": 101}}}", "found 101");
    REFUSED("{\"device\": {\"release_after_idle\": \"9000h\"}}", "0s to 8760h");
    REFUSED("{\"limits\": {\"device_bytes\": 0}}", "limits.device_bytes: found 0", "or null");
    REFUSED("{\"limits\": {\"device_bytes\": \"0%\"}}", "limits.device_bytes: found \"0%\"");
    REFUSED("{\"version\": 2}", "version: found 2, allowed is the version that this cudapool");
    REFUSED("{\"version\": \"1\"}", "version: found \"1\"");
    REFUSED("{\"report\": {\"file\": \"\"}}", "report.file: found \"\"");
    REFUSED("{\"report\": {\"file\": \"a%d\"}}", "report.file: found \"a%d\"", "%p, %h, %r");
    REFUSED("{\"report\": {\"file\": \"a%\"}}", "report.file: found \"a%\"");
}

#define NAME_OF_63 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789."

Test(config_json, groups_have_names)
{
    static const char allowed[] = "allowed is a name of 1 to 63 letters, digits, '.', '_' and '-', "
                                  "or null";

    cr_assert_eq(read_text("{\"limits\": {\"group\": \"job-7_a.B\", \"group_bytes\": \"50%\"}}"), 0,
                 "%s", error);
    cr_expect_str_eq(settings.limits.group, "job-7_a.B");
    cr_expect_float_eq(settings.limits.group_bytes.percent, 50, 0);
    cr_assert_eq(read_text("{\"limits\": {\"group\": \"" NAME_OF_63 "\"}}"), 0, "%s", error);
    cr_expect_str_eq(settings.limits.group, NAME_OF_63);
    cr_assert_eq(read_text("{\"limits\": {\"group\": null, \"group_bytes\": null}}"), 0, "%s",
                 error);
    cr_expect_str_eq(settings.limits.group, "");
    cr_expect(settings.limits.group_bytes.unlimited);
    REFUSED("{\"limits\": {\"group\": \"\"}}", "limits.group: found \"\"", allowed);
    REFUSED("{\"limits\": {\"group\": \"" NAME_OF_63 "-\"}}", "limits.group: found", allowed);
    REFUSED("{\"limits\": {\"group\": \"a b\"}}", "limits.group: found \"a b\"", allowed);
    REFUSED("{\"limits\": {\"group\": \"a/b\"}}", "limits.group: found \"a/b\"", allowed);
    REFUSED("{\"limits\": {\"group\": \"j\303\266b\"}}", "limits.group: found", allowed);
    REFUSED("{\"limits\": {\"group\": \"a\\nb\"}}", "limits.group: found", allowed);
    REFUSED("{\"limits\": {\"group\": 7}}", "limits.group: found 7", allowed);
    REFUSED("{\"limits\": {\"group\": \"a\", \"group_bytes\": 0}}", "limits.group_bytes: found 0");
}

Test(config_json, memory_nodes_of_the_pool_need_captures_that_allocate)
{
    REFUSED("{\"captures\": {\"memory_nodes\": \"pool\"}}",
            "captures.memory_nodes: found \"pool\" while captures.allocate is false; allowed is "
            "\"driver\", unless captures.allocate is true");
    REFUSED("{\"captures\": {\"memory_nodes\": \"none\"}}",
            "captures.memory_nodes: found \"none\"");
    cr_assert_eq(read_text("{\"captures\": {\"memory_nodes\": \"pool\", \"allocate\": true}}"), 0);
    cr_expect_eq(settings.captures.memory_nodes, MEMORY_NODES_POOL);
}

Test(config_json, a_limit_of_a_group_needs_the_group)
{
    REFUSED("{\"limits\": {\"group_bytes\": \"1GiB\"}}",
            "limits.group_bytes: found a limit of a group, and no group; allowed is null, unless "
            "limits.group names the group");
    REFUSED("{\"limits\": {\"group\": \"a\", \"group_bytes\": \"1GiB\"},"
            "\"neighbours\": {\"enabled\": false}}",
            "limits.group_bytes: found a limit of a group while neighbours.enabled is false; "
            "allowed is null, unless neighbours.enabled is true");
    cr_expect_eq(read_text("{\"limits\": {\"group\": \"a\"},"
                           "\"neighbours\": {\"enabled\": false}}"),
                 0, "%s", error);
}

Test(config_json, neighbours_are_left_bytes_a_share_or_nothing)
{
    cr_assert_eq(read_text("{}"), 0, "%s", error);
    cr_expect(settings.neighbours.enabled);
    cr_expect_float_eq(settings.neighbours.leave_free.percent, 2, 0);
    cr_assert_eq(read_text("{\"neighbours\": {\"enabled\": false, \"leave_free\": 0}}"), 0, "%s",
                 error);
    cr_expect_not(settings.neighbours.enabled);
    cr_expect_eq(byte_size_resolve(&settings.neighbours.leave_free, 1000), 0);
    cr_assert_eq(read_text("{\"neighbours\": {\"leave_free\": \"0%\"}}"), 0, "%s", error);
    cr_expect_eq(byte_size_resolve(&settings.neighbours.leave_free, 1000), 0);
    cr_assert_eq(read_text("{\"neighbours\": {\"leave_free\": \"1GiB\"}}"), 0, "%s", error);
    cr_expect_eq(byte_size_resolve(&settings.neighbours.leave_free, 1000), 1 << 30);
    REFUSED("{\"neighbours\": {\"leave_free\": null}}", "neighbours.leave_free: found null");
    REFUSED("{\"neighbours\": {\"leave_free\": \"101%\"}}", "found \"101%\"");
    REFUSED("{\"neighbours\": {\"enabled\": 1}}", "neighbours.enabled: found 1", "true or false");
}

Test(config_json, ends_of_ranges_are_allowed)
{
    cr_assert_eq(read_text("{\"device\": {\"buckets\": {\"steps_per_doubling\": 64,"
                           "\"smallest\": \"1GiB\", \"largest\": \"1024TiB\"},"
                           "\"caps\": {\"reserve_ratio\": 100, \"blocks_per_bucket\": 4294967295},"
                           "\"release_after_idle\": \"8760h\"}, \"limits\": {\"device_bytes\": 1},"
                           "\"stream_ordered\": {\"buckets\": {\"largest\": 0}}}"),
                 0, "%s", error);
}

Test(config_json, syntax_errors_name_line_and_column)
{
    REFUSED("{\n  \"device\": {,}\n}", "line 2, column 14: ");
    REFUSED("{} x", "line 1, column 4: end of file expected");
    REFUSED("{}{}", "line 1, ");
    REFUSED("{\"version\": 1, \"version\": 1}", "line 1, ", "duplicate", "version");
    REFUSED("{\"device\": {\"enabled\": true,\n\"enabled\": true}}", "line 2, ", "duplicate");
    REFUSED("{\"device\": {\"caps\": {\"reserve_ratio\": NaN}}}", "line 1, ");
    REFUSED("{\"device\": {\"caps\": {\"reserve_ratio\": Infinity}}}", "line 1, ");
    REFUSED("{\"device\": {\"caps\": {\"reserve_ratio\": 1e999}}}", "line 1, ", "overflow");
    REFUSED("{\"device\": {\"caps\": {\"cached\": 18446744073709551616}}}", "line 1, ", "big");
    REFUSED("{\"device\": {\"caps\": {\"cached\": 0x10}}}", "line 1, ");
    REFUSED("{'version': 1}", "line 1, ");
    REFUSED("{\"version\": 1,}", "line 1, ");
    REFUSED("{\"version\": 1", "line 1, ");
    REFUSED("{\"version\":\n1\0}", "line 2, column 2: a NUL byte");
    REFUSED("{\"$schema\": \"a\\u0000b\"}", "line 1, ");
    REFUSED("{\"$schema\": \"\xff\xfe\"}", "line 1, ");
    REFUSED("{\"$schema\": \"a\nb\"}", "line 1, ");
    REFUSED("\x7f"
            "ELF\x02\x01\x01",
            "line 1, ");
}

Test(config_json, empty_files_say_so)
{
    REFUSED("", "is empty");
    REFUSED(" \n\t\r\n", "is empty");
}

Test(config_json, deep_nesting_is_an_error_and_not_a_crash)
{
    static char deep[200000];
    static const char *const parts[] = {"line 1, ", "depth", NULL};

    memset(deep, '[', sizeof(deep));
    expect_refused(deep, sizeof(deep), parts);
    for (size_t i = 0; i < sizeof(deep); i++)
        deep[i] = "{\"a\":"[i % 5];
    expect_refused(deep, sizeof(deep), parts);
}

Test(config_json, long_keys_and_values_are_cut_off)
{
    static char text[100000];
    static const char *const key_parts[] = {"unknown key", NULL};
    static const char *const value_parts[] = {"device.evict: found", "cut off", "allowed", NULL};
    int length;

    length = snprintf(text, sizeof(text), "{\"device\": {\"%080000d\": 1}}", 0);
    expect_refused(text, (size_t)length, key_parts);
    length = snprintf(text, sizeof(text), "{\"device\": {\"evict\": \"%080000d\"}}", 0);
    expect_refused(text, (size_t)length, value_parts);
    length = snprintf(text, sizeof(text), "{\"report\": {\"file\": \"%04096d\"}}", 0);
    expect_refused(text, (size_t)length, (const char *const[]){"report.file: found", NULL});
    length = snprintf(text, sizeof(text), "{\"report\": {\"file\": \"%04095d\"}}", 0);
    cr_assert_eq(read_bytes(text, (size_t)length), 0);
    cr_assert_eq(strlen(settings.report.file), 4095);
}

Test(config_json, files_over_the_limit_are_refused)
{
    static char text[SETTINGS_FILE_MAX + 1];

    memset(text, ' ', sizeof(text));
    text[0] = '{';
    text[1] = '}';
    expect_refused(text, sizeof(text), (const char *const[]){"too long", "1048576", NULL});
    cr_assert_eq(read_bytes(text, sizeof(text) - 1), 0, "%s", error);
}

static void expect_unreadable(const char *name, const char *why)
{
    cr_assert_eq(config_read_file(name, &settings, error, sizeof(error)), -1);
    cr_expect_eq(strncmp(error, name, strlen(name)), 0, "%s", error);
    cr_expect_not_null(strstr(error, why), "%s", error);
}

Test(config_json, what_is_no_readable_file_says_why)
{
    expect_unreadable("/nonexistent/file.json", "No such file");
    expect_unreadable("/tmp", "is a directory");
    expect_unreadable("/dev/null", "is not a file");
    expect_unreadable("", "No such file");
    chmod(path, 0);
    int opened = open(path, O_RDONLY); /* root may, and whoever has its capabilities */
    if (opened < 0)
        expect_unreadable(path, "Permission denied");
    else
        close(opened);
}

Test(config_json, a_fifo_does_not_block, .timeout = 60)
{
    unlink(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_unreadable(path, "is not a file");
}

Test(config_json, errors_fit_the_room_they_have)
{
    char small[8] = "1234567";

    cr_assert_eq(config_read_file("/nonexistent", &settings, small, 5), -1);
    cr_assert_arr_eq(small,
                     "/non\0"
                     "67",
                     8);
    cr_assert_eq(config_read_file("/nonexistent", &settings, NULL, 0), -1);
}

/* --- configs/ -----------------------------------------------------------------------------------
 */

Test(config_json, the_files_in_configs_are_valid)
{
    static const char *const names[] = {"configs/default.json", "configs/low-memory.json",
                                        "configs/throughput.json", "configs/strict.json"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cr_expect_eq(config_read_file(names[i], &settings, error, sizeof(error)), 0, "%s", error);
}

Test(config_json, default_json_is_the_defaults_and_names_every_setting)
{
    struct settings defaults;

    settings_defaults(&defaults);
    cr_assert_eq(config_read_file("configs/default.json", &settings, error, sizeof(error)), 0);
    cr_assert_arr_eq(&settings, &defaults, offsetof(struct settings, spelled));

    json_t *file = json_load_file("configs/default.json", 0, NULL);
    json_object_del(file, "$schema");
    json_t *all = settings_to_json(&defaults);
    cr_assert(json_equal(file, all));
    json_decref(file);
    json_decref(all);
}

/* The schema of what stands at a path such as a.b.c; NULL where there is none. */
static json_t *schema_at(json_t *schema, const char *at)
{
    char name[64];

    while (schema != NULL) {
        size_t length = strcspn(at, ".");
        snprintf(name, sizeof(name), "%.*s", (int)length, at);
        schema = json_object_get(json_object_get(schema, "properties"), name);
        if (at[length] == '\0')
            break;
        at += length + 1;
    }
    return schema;
}

/* Of the alternatives that a schema lists, the one of a type; or itself. */
static json_t *alternative(json_t *schema, const char *type)
{
    json_t *choice, *alternatives = json_object_get(schema, "anyOf");
    size_t i;

    if (alternatives == NULL)
        return schema;
    json_array_foreach(alternatives, i, choice)
    {
        if (strcmp(json_string_value(json_object_get(choice, "type")), type) == 0)
            return choice;
    }
    return NULL;
}

static bool allows_null(json_t *schema)
{
    json_t *type = json_object_get(schema, "type"), *word;
    size_t i;

    if (json_object_get(schema, "anyOf") != NULL)
        return alternative(schema, "null") != NULL;
    json_array_foreach(type, i, word)
    {
        if (strcmp(json_string_value(word), "null") == 0)
            return true;
    }
    return false;
}

static const char *type_in_schema(enum setting_type type)
{
    switch (type) {
    case SETTING_FLAG:
        return "boolean";
    case SETTING_COUNT32:
    case SETTING_COUNT64:
    case SETTING_BYTES:
    case SETTING_SIZE:
        return "integer";
    case SETTING_RATIO:
        return "number";
    default:
        return "string";
    }
}

static void expect_same_words(const struct setting *setting, json_t *schema)
{
    json_t *words = json_object_get(schema, "enum");
    size_t count = 0;

    for (; setting->values[count].word != NULL; count++)
        cr_expect_str_eq(setting->values[count].word,
                         json_string_value(json_array_get(words, count)), "%s", setting->path);
    cr_expect_eq(json_array_size(words), count, "%s", setting->path);
}

static void expect_same_setting(const struct setting *setting, json_t *schema)
{
    struct settings defaults;
    json_t *typed = alternative(schema, type_in_schema(setting->type));

    settings_defaults(&defaults);
    json_t *value = setting_to_json(setting, &defaults);
    cr_assert_not_null(schema, "%s is not in the schema", setting->path);
    cr_assert_not_null(typed, "%s", setting->path);
    cr_expect(json_equal(value, json_object_get(schema, "default")), "%s", setting->path);
    cr_expect_gt(json_string_length(json_object_get(schema, "description")), 10, "%s",
                 setting->path);
    cr_expect_eq(setting->may_be_null, allows_null(schema), "%s", setting->path);
    if (json_is_string(json_object_get(typed, "type")))
        cr_expect_str_eq(json_string_value(json_object_get(typed, "type")),
                         type_in_schema(setting->type), "%s", setting->path);
    if (setting->type == SETTING_WORD)
        expect_same_words(setting, schema);
    if (setting->most != 0 && setting->type != SETTING_TIME) {
        cr_expect_eq((uint64_t)json_integer_value(json_object_get(typed, "minimum")),
                     setting->least, "%s", setting->path);
        cr_expect_eq((uint64_t)json_integer_value(json_object_get(typed, "maximum")), setting->most,
                     "%s", setting->path);
    }
    json_decref(value);
}

/* Settings in a schema, and every object closed. */
static size_t count_settings(json_t *schema)
{
    const char *key;
    json_t *value;
    size_t count = 0;

    if (json_object_get(schema, "properties") == NULL)
        return 1;
    cr_expect(json_is_false(json_object_get(schema, "additionalProperties")));
    json_object_foreach(json_object_get(schema, "properties"), key, value) count +=
        count_settings(value);
    return count;
}

Test(config_json, the_schema_and_the_reader_agree)
{
    json_t *schema = json_load_file("configs/cudapool.schema.json", JSON_REJECT_DUPLICATES, NULL);

    cr_assert_not_null(schema);
    for (size_t i = 0; i < settings_table_length; i++)
        expect_same_setting(&settings_table[i], schema_at(schema, settings_table[i].path));
    /* And $schema and version. */
    cr_assert_eq(count_settings(schema), settings_table_length + 2);
    json_decref(schema);
}

Test(config_json, every_setting_is_explained_in_words)
{
    char words[SETTING_TEXT_BYTES];
    static const char *const names[] = {"configs/default.json", "configs/low-memory.json",
                                        "configs/throughput.json", "configs/strict.json"};

    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        cr_assert_eq(config_read_file(names[n], &settings, error, sizeof(error)), 0);
        for (size_t i = 0; i < settings_table_length; i++) {
            setting_to_words(&settings_table[i], &settings, words);
            cr_expect_gt(strlen(words), 10, "%s", settings_table[i].path);
            cr_expect_null(strstr(words, "%s"), "%s", settings_table[i].path);
        }
    }
}

Test(config_json, words_have_the_values)
{
    char words[SETTING_TEXT_BYTES];

    cr_assert_eq(
        read_text("{\"device\": {\"growth_budget\": \"64MiB\", \"caps\": {\"cached\":"
                  " \"12.5%\"}, \"release_after_idle\": \"0s\"},"
                  "\"host\": {\"growth_budget\": \"1%\", \"buckets\": {\"largest\": \"3%\"}}}"),
        0);
    for (size_t i = 0; i < settings_table_length; i++) {
        const char *expected = NULL;
        if (strcmp(settings_table[i].path, "device.growth_budget") == 0)
            expected = "64 MiB";
        else if (strcmp(settings_table[i].path, "device.caps.cached") == 0)
            expected = "12.5% of the device's memory, on each device";
        else if (strcmp(settings_table[i].path, "host.caps.cached") == 0)
            expected = "6% of the machine's memory, by the process";
        else if (strcmp(settings_table[i].path, "host.growth_budget") == 0)
            expected = "1% of the machine's memory";
        else if (strcmp(settings_table[i].path, "host.buckets.largest") == 0)
            expected = "3% of the machine's memory";
        else if (strcmp(settings_table[i].path, "host.buckets.smallest") == 0)
            expected = "a 64th of the machine's memory";
        else if (strcmp(settings_table[i].path, "device.buckets.smallest") == 0)
            expected = "a 64th of the device where";
        else if (strcmp(settings_table[i].path, "device.release_after_idle") == 0)
            expected = "do not go back";
        else if (strcmp(settings_table[i].path, "device.caps.reserve_ratio") == 0)
            expected = "1.15 times";
        if (expected == NULL)
            continue;
        setting_to_words(&settings_table[i], &settings, words);
        cr_expect_not_null(strstr(words, expected), "%s", words);
    }
}
