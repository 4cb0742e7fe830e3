/*
 * Lines about a device, and about the housekeeper (report_neighbours.h).
 *
 * Each line is a function that returns whether there is anything to say.
 */
#include "report_neighbours.h"

#include <stddef.h>
#include <stdio.h>

#include "core/base/one_line.h"
#include "core/base/readable.h"
#include "stats.h"

/* Bytes. A process that caches no more than this is no obstacle to others. */
#define MUCH (UINT64_C(8) << 20)

/* ---- of a device ---- */

/* "GPU_MEMORY_LIMIT: 3.0 GiB for the process, 3.0 GiB for its group job-7" */
static bool limit_line(const struct report_device *device, char text[REPORT_LINE_BYTES])
{
    const struct device_limits *limits = &device->limits;
    char bytes[READABLE_BYTES], own[128] = "", group[160] = "";
    if (limits->device_from[0] != '\0') {
        readable_exact_bytes(limits->device_bytes, bytes);
        snprintf(own, sizeof own, "%s for the process (%s)", bytes, limits->device_from);
    }
    if (limits->group_from[0] != '\0') {
        readable_exact_bytes(limits->group_bytes, bytes);
        snprintf(group, sizeof group, "%s for all of the group %s (%s)", bytes, limits->group,
                 limits->group_from);
    }
    snprintf(text, REPORT_LINE_BYTES, "limits: %s%s%s", own, own[0] && group[0] ? ", " : "", group);
    return own[0] != '\0' || group[0] != '\0';
}

/* "gave other processes 3.0 GiB, twice, the last 2.0 s after the start" */
static bool exchange_line(const struct report_exchange *exchange, const char *did,
                          const char *with_whom, char text[REPORT_LINE_BYTES])
{
    char bytes[READABLE_BYTES], times[READABLE_BYTES], last[READABLE_BYTES];
    if (exchange->times == 0)
        return false;
    readable_bytes(exchange->bytes, bytes);
    readable_count(exchange->times, times);
    readable_time(exchange->last_nanoseconds, last);
    snprintf(text, REPORT_LINE_BYTES, "%s %s %s, %s time%s, the last %s after the start", did,
             bytes, with_whom, times, exchange->times == 1 ? "" : "s", last);
    return true;
}

static bool silence_line(const struct report_neighbours *neighbours, char text[REPORT_LINE_BYTES])
{
    char asked[READABLE_BYTES], silent[READABLE_BYTES];
    if (neighbours->silent == 0)
        return false;
    readable_count(neighbours->asked, asked);
    readable_count(neighbours->silent, silent);
    snprintf(text, REPORT_LINE_BYTES,
             "asked other processes for memory %s time%s; %s time%s one did not answer", asked,
             neighbours->asked == 1 ? "" : "s", silent, neighbours->silent == 1 ? "" : "s");
    return true;
}

static bool segments_line(const struct report_segments *segments, char text[REPORT_LINE_BYTES])
{
    char cuts[READABLE_BYTES], bytes[READABLE_BYTES], spare[READABLE_BYTES];
    readable_count(segments->cuts, cuts);
    readable_bytes(segments->bytes, bytes);
    readable_bytes(segments->spare_bytes, spare);
    snprintf(text, REPORT_LINE_BYTES,
             "%s blocks were cut out of larger ones; %s was cut at the end, %s of it spare", cuts,
             bytes, spare);
    return segments->cuts != 0;
}

static bool refused_exports_line(const struct report_segments *segments,
                                 char text[REPORT_LINE_BYTES])
{
    char times[READABLE_BYTES];
    readable_count(segments->refused_exports, times);
    snprintf(text, REPORT_LINE_BYTES,
             "refused to export such a block %s time%s: device.buckets.policy is split", times,
             segments->refused_exports == 1 ? "" : "s");
    return segments->refused_exports != 0;
}

static bool stalled_line(const struct report_device *device, char text[REPORT_LINE_BYTES])
{
    char times[READABLE_BYTES];
    readable_count(device->stalled_waits, times);
    snprintf(text, REPORT_LINE_BYTES,
             "waited a second for the GPU without result, %s time%s; frees wait for a while after "
             "that, or barriers stay off",
             times, device->stalled_waits == 1 ? "" : "s");
    return device->stalled_waits != 0;
}

/* ---- of a device's unpooled memory ---- */

/* "beside the pool, at most: cuMemCreate 3.0 GiB, arrays 1.0 MiB"; member: the offset of a number
 * in struct report_unpooled_kind. Leaves a kind out whose number is 0. */
static bool kinds_line(const struct report_unpooled *unpooled, const char *begins, size_t member,
                       void (*readable)(uint64_t number, char cell[READABLE_BYTES]),
                       char text[REPORT_LINE_BYTES])
{
    bool any = false;
    int length = snprintf(text, REPORT_LINE_BYTES, "%s:", begins);
    for (enum unpooled_kind kind = 0; kind < UNPOOLED_KINDS; kind++) {
        char number[READABLE_BYTES];
        uint64_t value = *(const uint64_t *)((const char *)&unpooled->kinds[kind] + member);
        if (value == 0)
            continue;
        readable(value, number);
        length += snprintf(text + length, (size_t)(REPORT_LINE_BYTES - length), "%s %s %s",
                           any ? "," : "", report_unpooled_names[kind], number);
        any = true;
    }
    return any;
}

#define UNPOOLED_MEMBER(name) offsetof(struct report_unpooled_kind, name)

static bool device_line(const struct report_device *device, unsigned number,
                        char text[REPORT_LINE_BYTES])
{
    const struct report_neighbours *neighbours = &device->neighbours;
    switch (number) {
    case 0:
        return limit_line(device, text);
    case 1:
        return exchange_line(&neighbours->given, "gave", "to other processes", text);
    case 2:
        return exchange_line(&neighbours->got, "got", "from other processes", text);
    case 3:
        return exchange_line(&neighbours->left, "left", "free for processes without the pool",
                             text);
    case 4:
        return silence_line(neighbours, text);
    case 5:
        return segments_line(&device->segments, text);
    case 6:
        return refused_exports_line(&device->segments, text);
    case 7:
        return stalled_line(device, text);
    case 8:
        return kinds_line(&device->unpooled, "beside the pool, at most",
                          UNPOOLED_MEMBER(peak_bytes), readable_bytes, text);
    case 9:
        return kinds_line(&device->unpooled, "beside the pool, at the end",
                          UNPOOLED_MEMBER(live_bytes), readable_bytes, text);
    case 10:
        return kinds_line(&device->unpooled, "requests beside the pool that a limit refused",
                          UNPOOLED_MEMBER(refused), readable_count, text);
    default:
        return false;
    }
}

bool report_device_line(const struct report_device *device, unsigned number,
                        char text[REPORT_LINE_BYTES])
{
    bool said = device_line(device, number, text);
    if (said)
        make_printable(text, REPORT_LINE_BYTES);
    return said;
}

/* ---- of a process ---- */

static bool was_much(uint64_t cached, uint64_t pending)
{
    return saturating_sum(cached, pending) > MUCH;
}

bool report_kept_much(const struct report_device *devices, size_t count)
{
    bool much = false;
    for (size_t i = 0; i < count; i++) {
        const struct report_device *device = &devices[i];
        for (size_t j = 0; j < device->sample_count; j++)
            much |= was_much(device->samples[j].cached_bytes, device->samples[j].pending_bytes);
        for (size_t j = 0; j < device->kind_count; j++)
            much |= report_kind_is_of_device(&device->kinds[j]) &&
                    was_much(device->kinds[j].totals.cached_bytes,
                             device->kinds[j].totals.pending_bytes);
    }
    return much;
}

bool report_is_grouped(const struct report_device *devices, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (devices[i].limits.group_from[0] != '\0')
            return true;
    return false;
}

bool report_process_line(const struct report_aloneness *of, unsigned number,
                         char text[REPORT_LINE_BYTES])
{
    const struct report_housekeeper *housekeeper = of->housekeeper;
    bool matters = of->kept_much || of->grouped;
    bool said = false;
    switch (number) {
    case 0:
        said = of->enabled && housekeeper->state == HOUSEKEEPER_CANNOT;
        snprintf(text, REPORT_LINE_BYTES,
                 "no thread of the pool's own could be made: what was idle went back only when the "
                 "program called, and other processes got nothing of it");
        break;
    case 1:
        said = of->enabled && housekeeper->board == BOARD_REFUSED && matters;
        snprintf(text, REPORT_LINE_BYTES, "other processes were neither asked nor heard%s: %s",
                 of->grouped ? ", and a limit of a group held for this one alone" : "",
                 housekeeper->board_why);
        break;
    case 2:
        said = !of->enabled && matters;
        snprintf(text, REPORT_LINE_BYTES,
                 "other processes were neither asked nor heard, and what was idle went back only "
                 "when the program called: neighbours.enabled is false");
        break;
    }
    if (said)
        make_printable(text, REPORT_LINE_BYTES);
    return said;
}
