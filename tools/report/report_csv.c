/*
 * Prints reports as comma-separated values (RFC 4180). Each bucket of each device has a line. Times
 * are in nanoseconds, sizes in bytes.
 *
 * The bucket of 0 bytes counts requests whose blocks the pool does not cache. A device whose
 * processes exchanged memory has one more line, of the kind "neighbours" and without a bucket.
 */
#include <inttypes.h>
#include <string.h>

#include "core/base/one_line.h"
#include "core/figures/report_json.h"
#include "core/figures/report_neighbours_json.h"
#include "formats.h"

void print_csv_field(FILE *out, const char *text, const char *end)
{
    const char *quote = strpbrk(text, ",\"") == NULL ? "" : "\"";
    char piece[PRINTABLE_BYTES];

    fputs(quote, out);
    while (*text != '\0') {
        take_printable(&text, piece);
        if (*piece == '"')
            fputc('"', out);
        fputs(piece, out);
    }
    fputs(quote, out);
    fputs(end, out);
}

static void print_heading(FILE *out)
{
    fputs("host,pid,rank,device,uuid,kind,bucket_bytes", out);
    for (size_t i = 0; i < report_bucket_counts.length; i++) {
        const struct report_count *counter = &report_bucket_counts.counts[i];
        fprintf(out, ",%s%s%s", counter->group, counter->group[0] == '\0' ? "" : "_",
                counter->name);
    }
    for (size_t i = 0; i < report_neighbour_counts.length; i++) {
        const struct report_count *counter = &report_neighbour_counts.counts[i];
        fprintf(out, ",neighbours_%s%s%s", counter->group, counter->group[0] == '\0' ? "" : "_",
                counter->name);
    }
    fputs("\r\n", out);
}

static void print_bucket(FILE *out, const struct report_bucket *bucket)
{
    fprintf(out, "%" PRIu64, bucket->bytes);
    for (size_t i = 0; i < report_bucket_counts.length; i++)
        fprintf(out, ",%" PRIu64,
                report_count_value(&report_bucket_counts.counts[i], &bucket->counters));
    for (size_t i = 0; i < report_neighbour_counts.length; i++)
        fputc(',', out);
    fputs("\r\n", out);
}

/* Prints the fields that identify host, process, device and kind. */
static void print_place(FILE *out, const struct summary_device *device,
                        const struct summary_process *process, const char *kind)
{
    print_csv_field(out, device->host, ",");
    if (process != NULL)
        fprintf(out, "%" PRId64, process->pid);
    fputc(',', out);
    print_csv_field(out, process == NULL ? "" : process->rank, ",");
    fprintf(out, "%d,", device->device.ordinal);
    print_csv_field(out, device->device.uuid, ",");
    print_csv_field(out, kind, ",");
}

/* Prints the line about the whole device, if there is anything to tell. */
static void print_neighbours(FILE *out, const struct summary_device *device,
                             const struct summary_process *process)
{
    const struct report_neighbours *neighbours = &device->device.neighbours;

    if (!report_has_neighbours(neighbours))
        return;
    print_place(out, device, process, "neighbours");
    for (size_t i = 0; i < report_bucket_counts.length; i++)
        fputc(',', out);
    for (size_t i = 0; i < report_neighbour_counts.length; i++)
        fprintf(out, ",%" PRIu64,
                report_count_value(&report_neighbour_counts.counts[i], neighbours));
    fputs("\r\n", out);
}

/* Prints a line for a kind of memory that the pool does not serve, in the columns of a bucket. */
static void print_unpooled(FILE *out, const struct summary_device *device,
                           const struct summary_process *process, const char *kind,
                           uint64_t live_bytes, uint64_t peak_bytes, uint64_t refused)
{
    struct report_bucket bucket = {.counters = {.live_bytes = live_bytes,
                                                .peak.live_bytes = peak_bytes,
                                                .failures.limit = refused}};

    if (peak_bytes == 0 && refused == 0)
        return;
    print_place(out, device, process, kind);
    print_bucket(out, &bucket);
}

static void print_device(FILE *out, const struct summary_device *device,
                         const struct summary_process *process)
{
    const struct report_unpooled *unpooled = &device->device.unpooled;
#define PRINT_UNPOOLED(kind)                                                                       \
    print_unpooled(out, device, process, #kind, unpooled->kind.live_bytes,                         \
                   unpooled->kind.peak_bytes, unpooled->kind.refused)

    for (size_t i = 0; i < device->device.kind_count; i++) {
        const struct report_kind *kind = &device->device.kinds[i];
        for (size_t j = 0; j < kind->bucket_count; j++) {
            print_place(out, device, process, kind->kind);
            print_bucket(out, &kind->buckets[j]);
        }
    }
    PRINT_UNPOOLED(physical);
    PRINT_UNPOOLED(arrays);
    PRINT_UNPOOLED(managed);
    PRINT_UNPOOLED(graphs);
    PRINT_UNPOOLED(opened);
#undef PRINT_UNPOOLED
    print_neighbours(out, device, process);
}

void print_csv(const struct summary *summaries, size_t count, bool per_process, FILE *out)
{
    print_heading(out);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < summaries[i].device_count; j++)
            print_device(out, &summaries[i].devices[j],
                         per_process ? &summaries[i].processes[0] : NULL);
}
