/*
 * The report as JSON (report_json.h).
 *
 * One table names the counters, for writing and for reading. Writing goes by json_object_set_new,
 * which takes the reference also when it fails and refuses NULL, so that failures of memory need
 * no branches on the way: they add up to one status.
 */
#include "report_json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/scratch.h"
#include "core/base/writing.h"
#include "core/settings/document_json.h"
#include "core/settings/settings_json.h"

/* --- the names of the counters ------------------------------------------------------------------
 */

/* A member bears no parentheses. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define MEMBER(type, group, name, member, newer)                                                   \
    {                                                                                              \
        group, name, offsetof(struct type, member), newer                                          \
    }
#define COUNTER(name)              MEMBER(report_counters, "", #name, name, false)
#define GROUPED(group, name)       MEMBER(report_counters, #group, #name, group.name, false)
#define NEWER(name)                MEMBER(report_counters, "", #name, name, true)
#define NEWER_GROUPED(group, name) MEMBER(report_counters, #group, #name, group.name, true)
/* NOLINTEND(bugprone-macro-parentheses) */

const struct report_counter report_counter_table[] = {
    COUNTER(requests),
    GROUPED(hits, clean),
    GROUPED(hits, queried),
    GROUPED(hits, barrier),
    GROUPED(hits, waited),
    COUNTER(misses),
    NEWER_GROUPED(failures, memory),
    NEWER_GROUPED(failures, limit),
    NEWER_GROUPED(failures, other),
    COUNTER(frees),
    COUNTER(requested_bytes),
    COUNTER(rounded_bytes),
    NEWER(live_blocks),
    COUNTER(live_bytes),
    COUNTER(cached_bytes),
    COUNTER(pending_bytes),
    GROUPED(peak, live_bytes),
    GROUPED(peak, reserved_bytes),
    GROUPED(evictions, cap),
    GROUPED(evictions, idle),
    GROUPED(evictions, memory),
    NEWER_GROUPED(evictions, free),
    NEWER_GROUPED(evictions, context),
    GROUPED(driver, calls),
    GROUPED(driver, nanoseconds),
    NEWER_GROUPED(waits, nanoseconds),
    NEWER_GROUPED(waits, frees),
    COUNTER(saved_at_least_nanoseconds),
};
#define COUNTERS (sizeof(report_counter_table) / sizeof(report_counter_table[0]))
const size_t report_counter_table_length = COUNTERS;

/* Longer runs, 30 million years, are none. */
#define SECONDS_MOST 1e15

uint64_t *report_counter_field(const struct report_counter *counter,
                               struct report_counters *counters)
{
    return (uint64_t *)((char *)counters + counter->offset);
}

uint64_t report_counter_value(const struct report_counter *counter,
                              const struct report_counters *counters)
{
    return *(const uint64_t *)((const char *)counters + counter->offset);
}

/* --- writing: the JSON value --------------------------------------------------------------------
 */

json_t *report_count_to_json(uint64_t count)
{
    char text[24];

    if (count <= INT64_MAX)
        return json_integer((json_int_t)count);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)count);
    return json_string(text);
}

int report_add_counters_to_json(json_t *object, const struct report_counters *counters)
{
    int status = 0;

    for (size_t i = 0; i < COUNTERS; i++) {
        const struct report_counter *counter = &report_counter_table[i];
        json_t *parent = object;
        if (counter->group[0] != '\0') {
            parent = json_object_get(object, counter->group);
            if (parent == NULL) {
                status |= json_object_set_new(object, counter->group, json_object());
                parent = json_object_get(object, counter->group);
            }
        }
        status |= json_object_set_new(
            parent, counter->name, report_count_to_json(report_counter_value(counter, counters)));
    }
    return status;
}

static json_t *bucket_to_json(const struct report_bucket *bucket)
{
    json_t *object = json_object();
    int status = json_object_set_new(object, "bytes", report_count_to_json(bucket->bytes));

    status |= report_add_counters_to_json(object, &bucket->counters);
    return json_unless_failed(object, status);
}

json_t *report_kind_to_json(const struct report_kind *kind)
{
    json_t *object = json_object(), *totals = json_object(), *buckets = json_array();
    int status = report_add_counters_to_json(totals, &kind->totals);

    for (size_t i = 0; i < kind->bucket_count; i++)
        status |= json_array_append_new(buckets, bucket_to_json(&kind->buckets[i]));
    status |= json_object_set_new(object, "kind", json_string_of_any_bytes(kind->kind));
    status |= json_object_set_new(object, "totals", totals);
    status |= json_object_set_new(object, "buckets", buckets);
    return json_unless_failed(object, status);
}

/* --- the history: a column for each member of a sample ------------------------------------------
 */

#define COLUMN(name)                MEMBER(report_sample, "", #name, name, false)
#define NEWER_COLUMN(name)          MEMBER(report_sample, "", #name, name, true)
#define GROUPED_COLUMN(group, name) MEMBER(report_sample, #group, #name, group.name, false)

static const struct report_counter columns[] = {
    COLUMN(nanoseconds),           COLUMN(live_bytes),
    COLUMN(cached_bytes),          COLUMN(pending_bytes),
    NEWER_COLUMN(peak_bytes),      GROUPED_COLUMN(hits, clean),
    GROUPED_COLUMN(hits, queried), GROUPED_COLUMN(hits, barrier),
    GROUPED_COLUMN(hits, waited),  COLUMN(misses),
};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static json_t *column_to_json(const struct report_sample *samples, size_t count, size_t offset)
{
    json_t *array = json_array();
    int status = 0;

    for (size_t i = 0; i < count; i++)
        status |= json_array_append_new(
            array, report_count_to_json(*(const uint64_t *)((const char *)&samples[i] + offset)));
    return json_unless_failed(array, status);
}

json_t *report_history_to_json(const struct report_sample *samples, size_t count)
{
    json_t *object = json_object(), *hits = json_object();
    int status = 0;

    for (size_t i = 0; i < COLUMNS; i++)
        status |= json_object_set_new(columns[i].group[0] != '\0' ? hits : object, columns[i].name,
                                      column_to_json(samples, count, columns[i].offset));
    status |= json_object_set_new(object, "hits", hits);
    return json_unless_failed(object, status);
}

/* --- the report ---------------------------------------------------------------------------------
 */

static json_t *device_to_json(const struct report_device *device)
{
    json_t *object = json_object(), *kinds = json_array();
    int status = json_object_set_new(object, "ordinal", json_integer(device->ordinal));

    status |= json_object_set_new(object, "name", json_string_of_any_bytes(device->name));
    status |= json_object_set_new(object, "uuid", json_string_of_any_bytes(device->uuid));
    status |= json_object_set_new(object, "total_bytes", report_count_to_json(device->total_bytes));
    status |= json_object_set_new(object, "fences", report_count_to_json(device->fences));
    status |=
        json_object_set_new(object, "fence_queries", report_count_to_json(device->fence_queries));
    status |= json_object_set_new(object, "barriers", report_count_to_json(device->barriers));
    status |= json_object_set_new(object, "captured", report_count_to_json(device->captured));
    for (size_t i = 0; i < device->kind_count; i++)
        status |= json_array_append_new(kinds, report_kind_to_json(&device->kinds[i]));
    status |= json_object_set_new(object, "kinds", kinds);
    if (device->sample_count > 0)
        status |= json_object_set_new(
            object, "history", report_history_to_json(device->samples, device->sample_count));
    return json_unless_failed(object, status);
}

const char *const report_endings[] = {"exited", "killed", "running", NULL};

int report_add_versions_to_json(json_t *object, const struct report_versions *versions)
{
    int status = 0;

    if (versions->cudapool[0] != '\0')
        status |=
            json_object_set_new(object, "version", json_string_of_any_bytes(versions->cudapool));
    if (versions->driver[0] != '\0')
        status |= json_object_set_new(object, "driver", json_string_of_any_bytes(versions->driver));
    if (versions->cuda != 0)
        status |= json_object_set_new(object, "cuda_version", json_integer(versions->cuda));
    return status;
}

static json_t *process_to_json(const struct report_process *process)
{
    json_t *object = json_object();
    /* A time that is no number would be no JSON. */
    double seconds = process->wall_seconds >= 0 && process->wall_seconds <= SECONDS_MOST
                         ? process->wall_seconds
                         : 0;
    int status = json_object_set_new(object, "pid", json_integer(process->pid));

    status |= json_object_set_new(object, "host", json_string_of_any_bytes(process->host));
    status |= json_object_set_new(object, "rank", json_string_of_any_bytes(process->rank));
    status |= json_object_set_new(object, "command", json_string_of_any_bytes(process->command));
    status |= json_object_set_new(object, "wall_seconds", json_real(seconds));
    if (process->started_nanoseconds > 0)
        status |= json_object_set_new(object, "started_nanoseconds",
                                      report_count_to_json(process->started_nanoseconds));
    status |= report_add_versions_to_json(object, &process->versions);
    if (process->ending != REPORT_EXITED)
        status |=
            json_object_set_new(object, "ending", json_string(report_endings[process->ending]));
    if (process->exit.known && process->exit.signal != 0)
        status |= json_object_set_new(object, "signal", json_integer(process->exit.signal));
    else if (process->exit.known)
        status |= json_object_set_new(object, "exit_status", json_integer(process->exit.status));
    return json_unless_failed(object, status);
}

static json_t *report_to_json(const struct report *report)
{
    json_t *root = json_object(), *devices = json_array();
    int status = json_object_set_new(root, "cudapool_report", json_integer(REPORT_VERSION));

    for (size_t i = 0; i < report->device_count; i++)
        status |= json_array_append_new(devices, device_to_json(&report->devices[i]));
    status |= json_object_set_new(root, "process", process_to_json(&report->process));
    status |= json_object_set_new(root, "settings", settings_to_json(&report->settings));
    status |= json_object_set_new(root, "devices", devices);
    return json_unless_failed(root, status);
}

/* --- writing: the file --------------------------------------------------------------------------
 */

/* A pipe, a terminal or /dev/null must not be replaced by a file; and what is behind /dev/stderr
 * may be a log that others write to as well. */
static bool is_written_directly(const char *path)
{
    struct stat status;

    if (strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0)
        return true;
    return stat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

static int open_directly(const char *path)
{
    /* By name they could not be opened where they are sockets, or another user's terminal. */
    if (strcmp(path, "/dev/stdout") == 0)
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (strcmp(path, "/dev/stderr") == 0)
        return fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    /* Non-blocking: a FIFO that nobody reads is an error, not a wait. */
    return open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/* 0, or -1 with errno. */
static int write_directly(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    int fd = open_directly(path);

    if (fd < 0)
        return -1;
    int status = write_until(fd, text, bytes, deadline);
    int why = errno;
    close(fd);
    errno = why;
    return status;
}

/* Creates a file beside path that did not exist, and writes its name. The descriptor, or -1. */
static int create_beside(const char *path, char *name, size_t bytes)
{
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        snprintf(name, bytes, "%s.%ld.%u.tmp", path, (long)getpid(), attempt);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Writes all of the text to name and gives it the name path. 0, or -1 with errno. */
static int write_and_rename(int fd, const char *name, const char *path, const char *text,
                            size_t bytes, uint64_t deadline)
{
    int status = write_until(fd, text, bytes, deadline);

    if (close(fd) != 0)
        status = -1;
    if (status == 0)
        status = rename(name, path);
    if (status == 0)
        return 0;
    int why = errno;
    unlink(name);
    errno = why;
    return -1;
}

/* 0, or -1 with errno. */
static int write_atomically(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    char name[PATH_MAX + 64];

    if (strlen(path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = create_beside(path, name, sizeof(name));
    return fd < 0 ? -1 : write_and_rename(fd, name, path, text, bytes, deadline);
}

/* A link is followed to the file that is to be replaced, which keeps the link. */
static int write_text(const char *path, const char *text, size_t bytes, uint64_t deadline)
{
    char target[PATH_MAX];

    if (is_written_directly(path))
        return write_directly(path, text, bytes, deadline);
    return write_atomically(realpath(path, target) == NULL ? path : target, text, bytes, deadline);
}

json_t *reports_to_json(const struct report *reports, size_t count)
{
    if (count == 1)
        return report_to_json(&reports[0]);
    json_t *root = json_object(), *array = json_array();
    int status = json_object_set_new(root, "cudapool_reports", json_integer(REPORT_VERSION));

    for (size_t i = 0; i < count; i++)
        status |= json_array_append_new(array, report_to_json(&reports[i]));
    status |= json_object_set_new(root, "reports", array);
    return json_unless_failed(root, status);
}

/* The reports as text that the caller gives to scratch_free, ending with a newline; NULL where
 * memory is short. */
static char *reports_to_text(const struct report *reports, size_t count, size_t *bytes)
{
    /* 15 digits: 1.15 stays 1.15. */
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(15);
    json_t *root = reports_to_json(reports, count);
    size_t length = root == NULL ? 0 : json_dumpb(root, NULL, 0, flags);
    char *text = length == 0 ? NULL : scratch_malloc(length + 1);

    if (text != NULL) {
        json_dumpb(root, text, length, flags);
        text[length] = '\n';
        *bytes = length + 1;
    }
    json_decref(root);
    return text;
}

static int write_reports(const struct report *reports, size_t count, const char *path,
                         uint64_t deadline, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    char buffer[32];
    size_t bytes;
    char *text = reports_to_text(reports, count, &bytes);

    if (text == NULL)
        return document_fail(&document, NULL, "the report does not fit in memory");
    int status = write_text(path, text, bytes, deadline);
    if (status != 0)
        document_fail(&document, NULL, "the report cannot be written: %s",
                      error_text(errno, buffer));
    scratch_free(text);
    return status;
}

int reports_write_json(const struct report *reports, size_t count, const char *path, char *error,
                       size_t error_bytes)
{
    return write_reports(reports, count, path, UINT64_MAX, error, error_bytes);
}

int report_write_json(const struct report *report, const char *path, char *error,
                      size_t error_bytes)
{
    return reports_write_json(report, 1, path, error, error_bytes);
}

/* --- reading ------------------------------------------------------------------------------------
 */

/* An object that is being read, and where it stands. */
struct object {
    const struct document *document;
    const json_t *value;
    char place[PLACE_BYTES];
};

/* The value of a key that must be there; NULL with the error written. */
static const json_t *need(const struct object *object, const char *key)
{
    const json_t *value = json_object_get(object->value, key);

    if (value == NULL)
        document_fail(object->document, object->place, "the key %s is missing", key);
    return value;
}

static int refuse(const struct object *object, const char *key, const json_t *found,
                  const char *allowed)
{
    char place[PLACE_BYTES];

    place_of_key(place, object->place, key);
    return document_refuse(object->document, place, found, allowed);
}

/* Makes value, which stands at key, the object to read. 0, or -1 with the error written. */
static int enter(const struct object *parent, const char *key, struct object *object)
{
    const json_t *value = need(parent, key);

    if (value == NULL)
        return -1;
    if (!json_is_object(value)) {
        refuse(parent, key, value, "an object");
        return -1;
    }
    object->document = parent->document;
    object->value = value;
    place_of_key(object->place, parent->place, key);
    return 0;
}

/* Makes an array's item the object to read. */
static int enter_item(const struct object *parent, const char *key, const json_t *array,
                      size_t index, struct object *object)
{
    char place[PLACE_BYTES];

    place_of_key(place, parent->place, key);
    place_of_item(object->place, place, index);
    object->document = parent->document;
    object->value = json_array_get(array, index);
    if (json_is_object(object->value))
        return 0;
    return document_refuse(object->document, object->place, object->value, "an object");
}

static bool digits_to_count(const char *text, uint64_t *count)
{
    uint64_t value = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (unsigned)(*text - '0'), &value))
            return false;
    }
    *count = value;
    return true;
}

#define ALLOWED_COUNT "an integer from 0 to 18446744073709551615"

static int count_from_json(const json_t *value, uint64_t *count)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *count = (uint64_t)json_integer_value(value);
        return 0;
    }
    return json_is_string(value) && digits_to_count(json_string_value(value), count) ? 0 : -1;
}

static int read_count(const struct object *object, const char *key, uint64_t *count)
{
    const json_t *value = need(object, key);

    if (value == NULL)
        return -1;
    return count_from_json(value, count) == 0 ? 0 : refuse(object, key, value, ALLOWED_COUNT);
}

static int read_text(const struct object *object, const char *key, char *text, size_t bytes)
{
    char allowed[64];
    const json_t *value = need(object, key);

    if (value == NULL)
        return -1;
    if (json_is_string(value) && json_string_length(value) < bytes) {
        memcpy(text, json_string_value(value), json_string_length(value) + 1);
        return 0;
    }
    snprintf(allowed, sizeof(allowed), "a string of fewer than %zu bytes", bytes);
    return refuse(object, key, value, allowed);
}

static int read_integer(const struct object *object, const char *key, int64_t least, int64_t most,
                        int64_t *result)
{
    char allowed[80];
    const json_t *value = need(object, key);

    if (value == NULL)
        return -1;
    if (json_is_integer(value) && json_integer_value(value) >= least &&
        json_integer_value(value) <= most) {
        *result = json_integer_value(value);
        return 0;
    }
    snprintf(allowed, sizeof(allowed), "an integer from %lld to %lld", (long long)least,
             (long long)most);
    return refuse(object, key, value, allowed);
}

/* Fails for the first key of the object that none of the given lists has. */
static int refuse_unknown_keys(const struct object *object, const char *const *known)
{
    char place[PLACE_BYTES];
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object->value, key, value)
    {
        const char *const *candidate = known;
        while (*candidate != NULL && strcmp(*candidate, key) != 0)
            candidate++;
        if (*candidate != NULL)
            continue;
        place_of_key(place, object->place, key);
        return document_fail(object->document, place, "unknown key in a report of version %d",
                             REPORT_VERSION);
    }
    return 0;
}

/* The keys of one group of counters; outside of the groups, these include the groups' names, and
 * also, where it is not NULL. */
static int refuse_unknown_counters(const struct object *object, const char *group, const char *also)
{
    const char *known[COUNTERS + 2];
    size_t count = 0;

    if (also != NULL)
        known[count++] = also;
    for (size_t i = 0; i < COUNTERS; i++) {
        if (strcmp(report_counter_table[i].group, group) == 0)
            known[count++] = report_counter_table[i].name;
        else if (group[0] == '\0')
            known[count++] = report_counter_table[i].group;
    }
    known[count] = NULL;
    return refuse_unknown_keys(object, known);
}

/* A key that may be missing, and is. */
static bool is_left_out(const struct object *object, const char *key, bool may)
{
    return may && json_object_get(object->value, key) == NULL;
}

static int read_counter(const struct object *object, const struct report_counter *counter,
                        struct report_counters *counters)
{
    struct object group;

    if (is_left_out(object, counter->group[0] == '\0' ? counter->name : counter->group,
                    counter->newer))
        return 0;
    if (counter->group[0] == '\0')
        return read_count(object, counter->name, report_counter_field(counter, counters));
    if (enter(object, counter->group, &group) != 0 ||
        refuse_unknown_counters(&group, counter->group, NULL) != 0)
        return -1;
    if (is_left_out(&group, counter->name, counter->newer))
        return 0;
    return read_count(&group, counter->name, report_counter_field(counter, counters));
}

static int read_counters(const struct object *object, struct report_counters *counters)
{
    for (size_t i = 0; i < COUNTERS; i++)
        if (read_counter(object, &report_counter_table[i], counters) != 0)
            return -1;
    return 0;
}

/* An array that must be there, and room for as many elements, zeroed, which *elements owns. */
static const json_t *need_array(const struct object *object, const char *key, size_t element_bytes,
                                void **elements)
{
    const json_t *value = need(object, key);

    if (value == NULL)
        return NULL;
    if (!json_is_array(value)) {
        refuse(object, key, value, "an array");
        return NULL;
    }
    *elements = calloc(json_array_size(value) + 1, element_bytes);
    if (*elements != NULL)
        return value;
    document_fail(object->document, object->place, "the report does not fit in memory");
    return NULL;
}

static int read_bucket(const struct object *object, struct report_bucket *bucket)
{
    if (refuse_unknown_counters(object, "", "bytes") != 0 ||
        read_count(object, "bytes", &bucket->bytes) != 0)
        return -1;
    return read_counters(object, &bucket->counters);
}

static int read_buckets(const struct object *object, struct report_kind *kind)
{
    struct object bucket;
    void *elements = NULL;
    const json_t *array = need_array(object, "buckets", sizeof(*kind->buckets), &elements);

    kind->buckets = elements;
    if (array == NULL)
        return -1;
    for (; kind->bucket_count < json_array_size(array); kind->bucket_count++)
        if (enter_item(object, "buckets", array, kind->bucket_count, &bucket) != 0 ||
            read_bucket(&bucket, &kind->buckets[kind->bucket_count]) != 0)
            return -1;
    return 0;
}

static int read_kind(const struct object *object, struct report_kind *kind)
{
    static const char *const known[] = {"kind", "totals", "buckets", NULL};
    struct object totals;

    if (refuse_unknown_keys(object, known) != 0 ||
        read_text(object, "kind", kind->kind, sizeof(kind->kind)) != 0 ||
        enter(object, "totals", &totals) != 0 || refuse_unknown_counters(&totals, "", NULL) != 0 ||
        read_counters(&totals, &kind->totals) != 0)
        return -1;
    return read_buckets(object, kind);
}

static int read_kinds(const struct object *object, struct report_device *device)
{
    struct object kind;
    void *elements = NULL;
    const json_t *array = need_array(object, "kinds", sizeof(*device->kinds), &elements);

    device->kinds = elements;
    if (array == NULL)
        return -1;
    for (size_t i = 0; i < json_array_size(array); i++) {
        /* Counted before it is read, so that report_free sees what a part of it has. */
        device->kind_count = i + 1;
        if (enter_item(object, "kinds", array, i, &kind) != 0 ||
            read_kind(&kind, &device->kinds[i]) != 0)
            return -1;
    }
    return 0;
}

/* Every column is an array, and as long as that of the times. */
static const json_t *need_column(const struct object *object, const char *key, size_t length)
{
    char allowed[80];
    const json_t *array = need(object, key);

    if (array == NULL || (json_is_array(array) && json_array_size(array) == length))
        return array;
    snprintf(allowed, sizeof(allowed), "an array of as many numbers as there are times, %zu",
             length);
    refuse(object, key, array, allowed);
    return NULL;
}

static int read_column(const struct object *object, const struct report_counter *column,
                       struct report_device *device)
{
    char place[PLACE_BYTES], item_place[PLACE_BYTES];

    if (is_left_out(object, column->name, column->newer))
        return 0;
    const json_t *array = need_column(object, column->name, device->sample_count);

    if (array == NULL)
        return -1;
    for (size_t i = 0; i < device->sample_count; i++) {
        const json_t *value = json_array_get(array, i);
        if (count_from_json(value, (uint64_t *)((char *)&device->samples[i] + column->offset)) == 0)
            continue;
        place_of_key(place, object->place, column->name);
        place_of_item(item_place, place, i);
        return document_refuse(object->document, item_place, value, ALLOWED_COUNT);
    }
    return 0;
}

static int refuse_times_out_of_order(const struct object *object,
                                     const struct report_device *device)
{
    for (size_t i = 1; i < device->sample_count; i++)
        if (device->samples[i].nanoseconds <= device->samples[i - 1].nanoseconds)
            return document_fail(object->document, object->place,
                                 "nanoseconds: each must be later than the one before");
    return 0;
}

static int read_samples(const struct object *history, const struct object *hits,
                        struct report_device *device)
{
    void *elements = NULL;
    const json_t *times = need_array(history, "nanoseconds", sizeof(*device->samples), &elements);

    device->samples = elements;
    if (times == NULL)
        return -1;
    device->sample_count = json_array_size(times);
    for (size_t i = 0; i < COLUMNS; i++)
        if (read_column(columns[i].group[0] != '\0' ? hits : history, &columns[i], device) != 0)
            return -1;
    return refuse_times_out_of_order(history, device);
}

/* May be missing. */
static int read_history(const struct object *object, struct report_device *device)
{
    static const char *const known[] = {"nanoseconds",   "live_bytes", "cached_bytes",
                                        "pending_bytes", "peak_bytes", "hits",
                                        "misses",        NULL};
    static const char *const known_hits[] = {"clean", "queried", "barrier", "waited", NULL};
    struct object history, hits;

    if (json_object_get(object->value, "history") == NULL)
        return 0;
    if (enter(object, "history", &history) != 0 || refuse_unknown_keys(&history, known) != 0 ||
        enter(&history, "hits", &hits) != 0 || refuse_unknown_keys(&hits, known_hits) != 0)
        return -1;
    return read_samples(&history, &hits, device);
}

static int read_device(const struct object *object, struct report_device *device)
{
    static const char *const known[] = {"ordinal", "name",          "uuid",     "total_bytes",
                                        "fences",  "fence_queries", "barriers", "captured",
                                        "kinds",   "history",       NULL};
    int64_t ordinal = 0;

    if (refuse_unknown_keys(object, known) != 0 ||
        read_integer(object, "ordinal", 0, INT32_MAX, &ordinal) != 0 ||
        read_text(object, "name", device->name, sizeof(device->name)) != 0 ||
        read_text(object, "uuid", device->uuid, sizeof(device->uuid)) != 0 ||
        read_count(object, "total_bytes", &device->total_bytes) != 0 ||
        read_count(object, "fences", &device->fences) != 0 ||
        read_count(object, "fence_queries", &device->fence_queries) != 0 ||
        read_count(object, "barriers", &device->barriers) != 0)
        return -1;
    if (!is_left_out(object, "captured", true) &&
        read_count(object, "captured", &device->captured) != 0)
        return -1;
    device->ordinal = (int)ordinal;
    return read_kinds(object, device) != 0 ? -1 : read_history(object, device);
}

static int read_devices(const struct object *root, struct report *report)
{
    struct object device;
    void *elements = NULL;
    const json_t *array = need_array(root, "devices", sizeof(*report->devices), &elements);

    report->devices = elements;
    if (array == NULL)
        return -1;
    for (size_t i = 0; i < json_array_size(array); i++) {
        report->device_count = i + 1;
        if (enter_item(root, "devices", array, i, &device) != 0 ||
            read_device(&device, &report->devices[i]) != 0)
            return -1;
    }
    return 0;
}

static int read_seconds(const struct object *object, double *seconds)
{
    const json_t *value = need(object, "wall_seconds");

    if (value == NULL)
        return -1;
    if (!json_is_number(value) ||
        !(json_number_value(value) >= 0 && json_number_value(value) <= SECONDS_MOST))
        return refuse(object, "wall_seconds", value, "a number from 0 to 10^15");
    *seconds = json_number_value(value);
    return 0;
}

/* May be missing. */
static int read_ending(const struct object *object, struct report_process *process)
{
    const json_t *value = json_object_get(object->value, "ending");
    const char *word = json_string_value(value);

    if (value == NULL)
        return 0;
    for (int i = 0; word != NULL && report_endings[i] != NULL; i++)
        if (strcmp(report_endings[i], word) == 0) {
            process->ending = (enum report_ending)i;
            return 0;
        }
    return refuse(object, "ending", value, "exited, killed or running");
}

/* May be missing: how the process ended is known to whoever waited for it. */
static int read_exit(const struct object *object, struct report_process *process)
{
    int64_t number = 0;
    bool by_signal = json_object_get(object->value, "signal") != NULL;

    if (!by_signal && json_object_get(object->value, "exit_status") == NULL)
        return 0;
    if (read_integer(object, by_signal ? "signal" : "exit_status", by_signal, by_signal ? 127 : 255,
                     &number) != 0)
        return -1;
    process->exit = (struct report_exit){.known = true,
                                         .status = by_signal ? 0 : (int)number,
                                         .signal = by_signal ? (int)number : 0};
    return 0;
}

static int read_start(const struct object *object, struct report_process *process)
{
    if (json_object_get(object->value, "started_nanoseconds") == NULL)
        return 0;
    return read_count(object, "started_nanoseconds", &process->started_nanoseconds);
}

/* What a process does not say of itself is unknown. */
static int read_versions(const struct object *object, struct report_versions *versions)
{
    int64_t cuda = 0;

    if (json_object_get(object->value, "version") != NULL &&
        read_text(object, "version", versions->cudapool, sizeof(versions->cudapool)) != 0)
        return -1;
    if (json_object_get(object->value, "driver") != NULL &&
        read_text(object, "driver", versions->driver, sizeof(versions->driver)) != 0)
        return -1;
    if (json_object_get(object->value, "cuda_version") != NULL &&
        read_integer(object, "cuda_version", 1, UINT32_MAX, &cuda) != 0)
        return -1;
    versions->cuda = (uint32_t)cuda;
    return 0;
}

static int read_process(const struct object *root, struct report_process *process)
{
    static const char *const known[] = {
        "pid",    "host",   "rank",        "command", "wall_seconds", "started_nanoseconds",
        "ending", "signal", "exit_status", "version", "driver",       "cuda_version",
        NULL};
    struct object object;

    if (enter(root, "process", &object) != 0 || refuse_unknown_keys(&object, known) != 0 ||
        read_integer(&object, "pid", 0, INT64_MAX, &process->pid) != 0 ||
        read_text(&object, "host", process->host, sizeof(process->host)) != 0 ||
        read_text(&object, "rank", process->rank, sizeof(process->rank)) != 0 ||
        read_text(&object, "command", process->command, sizeof(process->command)) != 0)
        return -1;
    if (read_versions(&object, &process->versions) != 0)
        return -1;
    if (read_start(&object, process) != 0 || read_ending(&object, process) != 0 ||
        read_exit(&object, process) != 0)
        return -1;
    return read_seconds(&object, &process->wall_seconds);
}

/* First of all: what follows may be told differently in another version. */
static int check_version(const struct object *root, const char *key)
{
    const json_t *version = json_object_get(root->value, key);

    if (version == NULL)
        return document_fail(root->document, root->place, "is not a report: the key %s is missing",
                             key);
    if (json_is_integer(version) && json_integer_value(version) == REPORT_VERSION)
        return 0;
    return refuse(root, key, version, "the version that this cudapool reads, 1");
}

static int read_report(const struct object *root, struct report *report)
{
    static const char *const known[] = {"cudapool_report", "process", "settings", "devices", NULL};
    char place[PLACE_BYTES];

    if (!json_is_object(root->value))
        return document_refuse(root->document, root->place, root->value, "an object");
    if (check_version(root, "cudapool_report") != 0 || refuse_unknown_keys(root, known) != 0 ||
        read_process(root, &report->process) != 0)
        return -1;
    const json_t *settings = need(root, "settings");
    place_of_key(place, root->place, "settings");
    if (settings == NULL ||
        settings_from_json(root->document, place, settings, &report->settings) != 0)
        return -1;
    return read_devices(root, report);
}

int report_read_json(const char *path, struct report *report, char *error, size_t error_bytes)
{
    struct document document = {.file = path, .error = error, .error_bytes = error_bytes};
    struct report read = {0};
    struct object root = {.document = &document,
                          .value = document_load(&document, REPORT_FILE_MAX)};

    if (root.value == NULL)
        return -1;
    int status = read_report(&root, &read);
    json_decref((json_t *)root.value);
    if (status == 0)
        *report = read;
    else
        report_free(&read);
    return status;
}

/* One report of a file, which the visitor then owns. */
static int read_and_visit(const struct object *object, report_visitor *visit, void *context)
{
    struct report *report = calloc(1, sizeof(*report));

    if (report == NULL)
        return document_fail(object->document, object->place, "the report does not fit in memory");
    int status = read_report(object, report);
    if (status == 0 && visit(report, context) != 0)
        status = document_fail(object->document, object->place, "memory is short");
    report_free(report);
    free(report);
    return status;
}

static int visit_items(const struct object *root, report_visitor *visit, void *context)
{
    static const char *const known[] = {"cudapool_reports", "reports", NULL};
    struct object item;
    const json_t *array;

    if (check_version(root, "cudapool_reports") != 0 || refuse_unknown_keys(root, known) != 0)
        return -1;
    array = need(root, "reports");
    if (array == NULL)
        return -1;
    if (!json_is_array(array))
        return refuse(root, "reports", array, "an array");
    for (size_t i = 0; i < json_array_size(array); i++)
        if (enter_item(root, "reports", array, i, &item) != 0 ||
            read_and_visit(&item, visit, context) != 0)
            return -1;
    return 0;
}

int reports_read_json(const char *path, report_visitor *visit, void *context, char *error,
                      size_t error_bytes)
{
    struct document document = {
        .file = path, .error = error, .error_bytes = error_bytes, .waits = true};
    struct object root = {.document = &document,
                          .value = document_load(&document, REPORT_FILE_MAX)};
    int status;

    if (root.value == NULL)
        return -1;
    if (json_object_get(root.value, "cudapool_merged") != NULL)
        status = document_fail(&document, NULL,
                               "is a merged report, which cannot be read again; allowed are the "
                               "reports that it was made of");
    else if (json_object_get(root.value, "cudapool_reports") != NULL)
        status = visit_items(&root, visit, context);
    else
        status = read_and_visit(&root, visit, context);
    json_decref((json_t *)root.value);
    return status;
}

__attribute__((visibility("default"))) int cudapool_report_write(const struct report *report,
                                                                 const char *path,
                                                                 uint64_t deadline, char *error,
                                                                 size_t error_bytes)
{
    json_malloc_t malloc_before;
    json_free_t free_before;

    if (!scratch_begin()) {
        snprintf(error, error_bytes, "%s: the report is being written already", path);
        return -1;
    }
    /* The program may have this very jansson. Its other threads get malloc's memory as ever. */
    json_get_alloc_funcs(&malloc_before, &free_before);
    json_set_alloc_funcs(scratch_malloc, scratch_free);
    int status = write_reports(report, 1, path, deadline, error, error_bytes);
    json_set_alloc_funcs(malloc_before, free_before);
    scratch_end();
    return status;
}
