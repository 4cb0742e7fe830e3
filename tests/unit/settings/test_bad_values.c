/*
 * Every value of a settings file and of a report, replaced by each kind of JSON value and left out:
 * what is not allowed is refused with an error that names the place, and nothing else is.
 */
#include <criterion/criterion.h>

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/figures/report_json.h"
#include "core/settings/config_json.h"
#include "core/settings/settings_json.h"

static char directory[64], path[96], error[1024];

static void make_directory(void)
{
    snprintf(directory, sizeof(directory), "/tmp/cudapool-test-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/file.json", directory);
}

static void remove_directory(void)
{
    unlink(path);
    rmdir(directory);
}

TestSuite(bad_values, .init = make_directory, .fini = remove_directory);

/* One of each kind, and some that are out of every range. A new reference. */
static json_t *bad_value(size_t index)
{
    static const char *const texts[] = {
        "null",  "true",   "-1",          "1.5",     "99999999999999999",
        "1e300", "\"\"",   "\"no such\"", "[]",      "[[1, 2]]",
        "{}",    "\"%q\"", "\"-1\"",      "\"1MiB\""};

    if (index >= sizeof(texts) / sizeof(texts[0]))
        return NULL;
    return json_loads(texts[index], JSON_DECODE_ANY, NULL);
}

static void write_document(const json_t *root)
{
    cr_assert_eq(json_dump_file(root, path, 0), 0);
}

static void expect_error_names(const char *place)
{
    cr_expect_eq(strncmp(error, path, strlen(path)), 0, "%s", error);
    cr_expect_not_null(strstr(error, place), "\"%s\" is missing in: %s", place, error);
    cr_expect_null(strchr(error, '\n'));
}

/* ---- settings ---- */

/* What each kind of setting takes. */
static bool is_right_kind(const struct setting *setting, const json_t *value)
{
    switch (setting->type) {
    case SETTING_FLAG:
        return json_is_boolean(value);
    case SETTING_WORD:
    case SETTING_TIME:
        return json_is_string(value);
    case SETTING_COUNT32:
    case SETTING_COUNT64:
        return json_is_integer(value);
    case SETTING_BYTES:
        return json_is_integer(value) || json_is_string(value);
    case SETTING_SIZE:
        return json_is_integer(value) || json_is_string(value) ||
               (setting->may_be_null && json_is_null(value));
    case SETTING_RATIO:
        return json_is_number(value);
    case SETTING_FILE:
    case SETTING_NAME:
        return json_is_string(value) || json_is_null(value);
    }
    return false;
}

/* The value, in as many objects as its path has names. A new reference. */
static json_t *document_with(const char *at, const json_t *value)
{
    const char *point = strchr(at, '.');
    char name[64];

    if (point == NULL)
        return json_pack("{s:O}", at, value);
    snprintf(name, sizeof(name), "%.*s", (int)(point - at), at);
    return json_pack("{s:o}", name, document_with(point + 1, value));
}

static unsigned try_setting(const struct setting *setting, const json_t *value)
{
    struct settings read;
    json_t *root = document_with(setting->path, value);
    char *text = json_dumps(root, 0);

    write_document(root);
    int status = config_read_file(path, &read, error, sizeof(error));
    if (status != 0)
        expect_error_names(setting->path);
    else
        cr_expect(is_right_kind(setting, value), "accepted: %s", text);
    free(text);
    json_decref(root);
    return status == 0;
}

Test(bad_values, every_setting)
{
    for (size_t i = 0; i < settings_table_length; i++) {
        unsigned accepted = 0, tried = 0;
        json_t *value;
        for (; (value = bad_value(tried)) != NULL; tried++) {
            accepted += try_setting(&settings_table[i], value);
            json_decref(value);
        }
        cr_expect_lt(accepted, tried / 2, "%s", settings_table[i].path);
    }
}

Test(bad_values, every_group_of_settings)
{
    static const char *const groups[] = {
        "device", "device.buckets", "device.caps", "stream_ordered", "stream_ordered.reuse",
        "host",   "host.caps",      "limits",      "report"};
    struct settings read;

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        json_t *value;
        for (size_t bad = 0; (value = bad_value(bad)) != NULL; bad++) {
            json_t *root = document_with(groups[i], value);
            write_document(root);
            int status = config_read_file(path, &read, error, sizeof(error));
            cr_expect_eq(status, json_is_object(value) ? 0 : -1, "%s, value %zu", groups[i], bad);
            if (status != 0)
                expect_error_names(groups[i]);
            json_decref(root);
            json_decref(value);
        }
    }
}

/* ---- reports ---- */

static json_t *good_report(void)
{
    static struct report report;
    struct report_kind kind = {.kind = "device"};
    struct report_bucket buckets[2] = {{.bytes = 512}, {0}};
    struct report_device device = {.name = "GPU", .uuid = "GPU-0", .kinds = &kind, .kind_count = 1};

    kind.buckets = buckets;
    kind.bucket_count = 2;
    settings_defaults(&report.settings);
    device.limits =
        (struct device_limits){4 << 20, 8 << 20, "GPU_MEMORY_LIMIT", "limits.group_bytes", "job"};
    report.housekeeper =
        (struct report_housekeeper){HOUSEKEEPER_CANNOT, 7, BOARD_REFUSED, "/dev/shm is full"};
    report.devices = &device;
    report.device_count = 1;
    snprintf(report.process.host, sizeof(report.process.host), "node");
    cr_assert_eq(report_write_json(&report, path, error, sizeof(error)), 0, "%s", error);
    json_t *root = json_load_file(path, 0, NULL);
    cr_assert_not_null(root);
    return root;
}

/* The report is read, or refused for what stands at the place. */
static int read_spoilt(const json_t *root, const char *place)
{
    static struct report read;

    write_document(root);
    int status = report_read_json(path, &read, error, sizeof(error));
    if (status == 0)
        report_free(&read);
    else
        expect_error_names(place);
    return status;
}

/* Puts every bad value in the place of the one at key. The kinds that a value of its own kind may
 * be read as: integers and strings, either of which may be a count. */
static void spoil_value(json_t *root, json_t *parent, const char *key, const char *place)
{
    json_t *good = json_incref(json_object_get(parent, key)), *bad;

    for (size_t i = 0; (bad = bad_value(i)) != NULL; i++) {
        bool alike =
            json_typeof(bad) == json_typeof(good) || (json_is_number(bad) && json_is_number(good));
        json_object_set_new(parent, key, bad);
        int status = read_spoilt(root, place);
        cr_expect(status != 0 || alike, "value %zu is accepted at %s", i, place);
    }
    json_object_set_new(parent, key, good);
}

static void spoil_all(json_t *root, json_t *object, const char *place);

static void spoil_items(json_t *root, json_t *array, const char *place)
{
    char item_place[PLACE_BYTES];

    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t *good = json_incref(json_array_get(array, i));
        place_of_item(item_place, place, i);
        json_array_set_new(array, i, json_true());
        cr_expect_eq(read_spoilt(root, item_place), -1);
        json_array_set_new(array, i, good);
        spoil_all(root, good, item_place);
    }
}

/* The settings have a test of their own. */
static void spoil_all(json_t *root, json_t *object, const char *place)
{
    char key_place[PLACE_BYTES];
    const char *keys[64];
    size_t count = 0;
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value) keys[count++] = key;
    for (size_t i = 0; i < count; i++) {
        place_of_key(key_place, place, keys[i]);
        value = json_object_get(object, keys[i]);
        if (strcmp(keys[i], "settings") != 0 && json_is_object(value))
            spoil_all(root, value, key_place);
        else if (json_is_array(value))
            spoil_items(root, value, key_place);
        spoil_value(root, object, keys[i], key_place);
    }
    json_object_set_new(object, "unheard_of", json_null());
    cr_expect_eq(read_spoilt(root, "unheard_of"), -1);
    json_object_del(object, "unheard_of");
}

Test(bad_values, every_value_of_a_report)
{
    json_t *root = good_report();

    cr_assert_eq(read_spoilt(root, ""), 0, "%s", error);
    spoil_all(root, root, "");
    cr_assert_eq(read_spoilt(root, ""), 0, "%s", error);
    json_decref(root);
}

/* Keys without which a report is read as older builds wrote it. */
static bool may_be_left_out(const char *key, const char *group)
{
    static const char *const keys[] = {"captured", "failures",   "live_blocks",
                                       "waits",    "peak_bytes", "stalled_waits"};
    /* Those are whole where they are there. */
    static const char *const objects[] = {"neighbours", "limits", "housekeeper"};
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++)
        if (strcmp(key, objects[i]) == 0 && group[0] == '\0')
            return true;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0 || strcmp(group, keys[i]) == 0)
            return true;
    return strcmp(group, "evictions") == 0 &&
           (strcmp(key, "free") == 0 || strcmp(key, "context") == 0);
}

static unsigned left_out;

static void leave_out_all(json_t *root, json_t *object, const char *group)
{
    char keys[64][32]; /* copies: a key goes with its value */
    size_t count = 0;
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value) snprintf(keys[count++], sizeof(keys[0]), "%s", key);
    for (size_t i = 0; i < count; i++) {
        value = json_incref(json_object_get(object, keys[i]));
        json_object_del(object, keys[i]);
        cr_expect_eq(read_spoilt(root, keys[i]), may_be_left_out(keys[i], group) ? 0 : -1,
                     "%s is left out", keys[i]);
        json_object_set_new(object, keys[i], value);
        left_out++;
        for (size_t item = 0; item < json_array_size(value); item++)
            leave_out_all(root, json_array_get(value, item), "");
        if (json_is_object(value) && strcmp(keys[i], "settings") != 0)
            leave_out_all(root, value, keys[i]);
    }
}

Test(bad_values, every_key_of_a_report_left_out)
{
    json_t *root = good_report();

    leave_out_all(root, root, "");
    cr_expect_gt(left_out, 80);
    json_decref(root);
}
