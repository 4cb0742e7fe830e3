/*
 * Comparing reports, for the targets that read or write them.
 */
#ifndef CUDAPOOL_TESTS_FUZZ_REPORTS_H
#define CUDAPOOL_TESTS_FUZZ_REPORTS_H

#include "core/figures/report.h"
#include "core/figures/report_table.h"
#include "core/settings/settings_json.h"

#include "fuzz.h"

static inline void promise_same_text(const char *one, const char *other)
{
    PROMISE(strcmp(one, other) == 0, "\"%s\" became \"%s\"", one, other);
}

static inline void promise_same_counters(const struct report_counters *one,
                                         const struct report_counters *other)
{
    /* Nothing but 64-bit counters: no padding. */
    PROMISE(memcmp(one, other, sizeof(*one)) == 0, "counters changed");
}

static inline void promise_same_kind(const struct report_kind *one, const struct report_kind *other)
{
    promise_same_text(one->kind, other->kind);
    promise_same_counters(&one->totals, &other->totals);
    PROMISE(one->bucket_count == other->bucket_count, "%zu buckets became %zu", one->bucket_count,
            other->bucket_count);
    for (size_t i = 0; i < one->bucket_count; i++) {
        PROMISE(one->buckets[i].bytes == other->buckets[i].bytes, "bucket %zu", i);
        promise_same_counters(&one->buckets[i].counters, &other->buckets[i].counters);
    }
}

static inline void promise_same_device(const struct report_device *one,
                                       const struct report_device *other)
{
    PROMISE(one->ordinal == other->ordinal && one->total_bytes == other->total_bytes &&
                one->fences == other->fences && one->fence_queries == other->fence_queries &&
                one->barriers == other->barriers && one->kind_count == other->kind_count,
            "device %d changed", one->ordinal);
    promise_same_text(one->name, other->name);
    promise_same_text(one->uuid, other->uuid);
    for (size_t i = 0; i < one->kind_count; i++)
        promise_same_kind(&one->kinds[i], &other->kinds[i]);
    PROMISE(one->sample_count == other->sample_count, "%zu samples became %zu", one->sample_count,
            other->sample_count);
    for (size_t i = 0; i < one->sample_count; i++)
        PROMISE(memcmp(&one->samples[i], &other->samples[i], sizeof(one->samples[i])) == 0,
                "sample %zu", i);
}

static inline void promise_same_settings(const struct settings *one, const struct settings *other)
{
    json_t *first = settings_to_json(one), *second = settings_to_json(other);

    PROMISE(first != NULL && second != NULL && json_equal(first, second), "settings changed");
    json_decref(first);
    json_decref(second);
}

/* seconds: how much of the time writing may lose, it being written to 15 digits. */
static inline void promise_same_report(const struct report *one, const struct report *other)
{
    double difference = one->process.wall_seconds - other->process.wall_seconds;
    double most = one->process.wall_seconds * 1e-14;

    PROMISE(one->process.pid == other->process.pid &&
                one->process.ending == other->process.ending &&
                one->process.started_nanoseconds == other->process.started_nanoseconds,
            "process %lld", (long long)one->process.pid);
    PROMISE(difference <= most && difference >= -most, "%g s became %g s",
            one->process.wall_seconds, other->process.wall_seconds);
    promise_same_text(one->process.host, other->process.host);
    promise_same_text(one->process.rank, other->process.rank);
    promise_same_text(one->process.command, other->process.command);
    promise_same_settings(&one->settings, &other->settings);
    PROMISE(one->device_count == other->device_count, "devices");
    for (size_t i = 0; i < one->device_count; i++)
        promise_same_device(&one->devices[i], &other->devices[i]);
}

/* The table is lines of text: no other control characters, whatever the report holds. */
static inline void promise_table(const struct report *report)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);

    PROMISE(memory != NULL, "no memory");
    PROMISE(report_print_table(report, memory) == 0, "the table");
    fclose(memory);
    PROMISE(bytes > 0 && text[bytes - 1] == '\n' && strlen(text) == bytes, "%s", text);
    for (const char *c = text; *c != '\0'; c++)
        PROMISE((unsigned char)*c >= 0x20 || *c == '\n', "%s", text);
    free(text);
}

typedef int report_reader(const char *path, struct report *report, char *error, size_t error_bytes);

/* False where the reader refuses the file: with an error that names it, and the report left as it
 * was. */
static inline bool promise_read(report_reader *read, const char *path, struct report *report)
{
    static struct report untouched;
    char error[1024];

    memset(&untouched, 0x5a, sizeof(untouched));
    *report = untouched;
    if (read(path, report, error, sizeof(error)) == 0)
        return true;
    promise_error(error, path);
    PROMISE(is_untouched(report, &untouched, sizeof(*report)), "%s", error);
    return false;
}

#endif
