/*
 * The part of a page about other processes: what processes on a device released for each other,
 * which limits were in force, and what prevented processes from sharing memory with others. The
 * part is left out if it has nothing to say.
 */
#include <string.h>

#include "core/base/readable.h"
#include "core/figures/report_neighbours.h"
#include "core/figures/report_neighbours_json.h"
#include "html.h"

static bool has_line(const struct report_device *device)
{
    char line[REPORT_LINE_BYTES];

    for (unsigned i = 0; i < REPORT_DEVICE_LINES; i++)
        if (report_device_line(device, i, line))
            return true;
    return false;
}

static void put_item(FILE *out, const char *text)
{
    fputs("<li>", out);
    put_text(out, text);
    fputs("</li>\n", out);
}

/* Counts the processes that have the line of this number, and writes the first one's line. */
static size_t count_processes(const struct summary *summary, unsigned number,
                              char first[REPORT_LINE_BYTES])
{
    char line[REPORT_LINE_BYTES];
    size_t count = 0;

    for (size_t i = 0; i < summary->process_count; i++) {
        struct report_aloneness of = summary_aloneness(&summary->processes[i]);
        if (report_process_line(&of, number, line) && count++ == 0)
            memcpy(first, line, REPORT_LINE_BYTES);
    }
    return count;
}

static bool has_something(const struct summary *summary)
{
    char line[REPORT_LINE_BYTES];

    for (size_t i = 0; i < summary->device_count; i++)
        if (has_line(&summary->devices[i].device) ||
            report_has_neighbours(&summary->devices[i].device.neighbours))
            return true;
    for (unsigned i = 0; i < REPORT_PROCESS_LINES; i++)
        if (count_processes(summary, i, line) > 0)
            return true;
    return false;
}

static void put_limits(FILE *out, const struct summary_device *device)
{
    char line[REPORT_LINE_BYTES];

    if (!report_device_line(&device->device, 0, line))
        return;
    fprintf(out, "<li>device %d on ", device->device.ordinal);
    put_text(out, device->host);
    fputs(": ", out);
    put_text(out, line);
    fputs("</li>\n", out);
}

static void put_lines(FILE *out, const struct summary *summary)
{
    char line[REPORT_LINE_BYTES], text[REPORT_LINE_BYTES + 64];

    fputs("<ul>\n", out);
    for (size_t i = 0; i < summary->device_count; i++)
        put_limits(out, &summary->devices[i]);
    for (unsigned i = 0; i < REPORT_PROCESS_LINES; i++) {
        size_t count = count_processes(summary, i, line);
        snprintf(text, sizeof(text), "%zu of %zu processes: %s", count, summary->process_count,
                 line);
        if (count > 0)
            put_item(out, text);
    }
    fputs("</ul>\n", out);
}

static void put_device_name(FILE *out, const struct summary_device *device)
{
    fprintf(out, "<tr><th scope=\"row\">device %d on ", device->device.ordinal);
    put_text(out, device->host);
    fputs("</th>", out);
}

static struct place place_of(size_t index)
{
    struct place place;

    snprintf(place.text, sizeof(place.text), "devices/%zu/neighbours", index);
    return place;
}

static void put_exchange(FILE *out, const struct summary_device *device, size_t index,
                         const char *words, const char *name,
                         const struct report_exchange *exchange)
{
    struct place place = place_of(index);
    char key[64];

    put_device_name(out, device);
    fprintf(out, "<td>%s</td>", words);
    snprintf(key, sizeof(key), "%s_bytes", name);
    put_bytes(out, &place, key, exchange->bytes);
    snprintf(key, sizeof(key), "%s_times", name);
    put_count(out, &place, key, exchange->times);
    snprintf(key, sizeof(key), "%s_last_nanoseconds", name);
    put_time(out, &place, key, exchange->last_nanoseconds);
    fputs("</tr>\n", out);
}

static void put_exchanges(FILE *out, const struct summary *summary)
{
    static const char *const head[] = {"device", "what", "bytes", "times", "last", NULL};

    open_scroller(out, "From process to process");
    put_head(out,
             "What processes on a device gave each other, and what they left free for those "
             "without the pool; when last, after the start.",
             2, head);
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct summary_device *device = &summary->devices[i];
        const struct report_neighbours *neighbours = &device->device.neighbours;
        if (!report_has_neighbours(neighbours))
            continue;
        put_exchange(out, device, i, "given to others", "given", &neighbours->given);
        put_exchange(out, device, i, "got from others", "got", &neighbours->got);
        put_exchange(out, device, i, "left free for others", "left", &neighbours->left);
    }
    close_scroller(out);
}

static void put_questions(FILE *out, const struct summary *summary)
{
    static const char *const head[] = {"device", "asked others", "times one did not answer",
                                       "held elsewhere", NULL};

    open_scroller(out, "Asking other processes");
    put_head(out,
             "How often other processes were asked for memory, and the most that was held when it "
             "ran out, not by the process's pool: by others, the driver, or in ways past the "
             "pool.",
             1, head);
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct report_neighbours *neighbours = &summary->devices[i].device.neighbours;
        struct place place = place_of(i);
        if (!report_has_neighbours(neighbours))
            continue;
        put_device_name(out, &summary->devices[i]);
        put_count(out, &place, "asked", neighbours->asked);
        put_count(out, &place, "silent", neighbours->silent);
        put_bytes(out, &place, "others_held_bytes", neighbours->others_held_bytes);
        fputs("</tr>\n", out);
    }
    close_scroller(out);
}

void put_neighbours(FILE *out, const struct summary *summary)
{
    struct report_neighbours all = summary_neighbours(summary);

    if (!has_something(summary))
        return;
    fputs("<section aria-labelledby=\"neighbours\"><h2 id=\"neighbours\">Other processes</h2>\n",
          out);
    put_lines(out, summary);
    if (report_has_neighbours(&all)) {
        put_exchanges(out, summary);
        put_questions(out, summary);
    }
    fputs("</section>\n", out);
}
