/*
 * The curves of a page: what each device's memory was used for over time, and how requests were
 * answered.
 *
 * Each curve is a drawing for the eye with its numbers in a table below it, which is folded up. A
 * sample holds until the next one, so areas have steps.
 */
#include "html.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/readable.h"

/* Of more devices only those that held most are shown: a page is for reading. */
#define DEVICES_SHOWN 16u

/* The drawing's own units; it is stretched to the page's width. */
#define WIDTH  1000u
#define HEIGHT 200u

/* Up to so many layers, one on the other. */
#define LAYERS_MOST 5u

struct curves {
    const struct summary_device *device;
    size_t index; /* of the device in the summary */
    const struct report_sample *samples;
    size_t count;
};

/* The value of a layer at the sample with this index. */
typedef uint64_t layer_value(const struct curves *curves, size_t index);

struct layer {
    const char *class;
    layer_value *value;
};

/* --- layers: bytes ------------------------------------------------------------------------------
 */

static uint64_t live_at(const struct curves *curves, size_t i)
{
    return curves->samples[i].live_bytes;
}

static uint64_t cached_at(const struct curves *curves, size_t i)
{
    return curves->samples[i].cached_bytes;
}

static uint64_t pending_at(const struct curves *curves, size_t i)
{
    return curves->samples[i].pending_bytes;
}

static const struct layer memory_layers[] = {
    {"live", live_at}, {"cached", cached_at}, {"pending", pending_at}, {0}};

/* --- layers: requests a second until this sample
 * --------------------------------------------------
 */

static uint64_t rate(const struct curves *curves, size_t i, uint64_t now, uint64_t before)
{
    uint64_t since = i == 0 ? 0 : curves->samples[i - 1].nanoseconds;
    uint64_t nanoseconds = curves->samples[i].nanoseconds - since;

    if (now <= before || nanoseconds == 0)
        return 0;
    double each_second = (double)(now - before) * 1e9 / (double)nanoseconds;
    return each_second < 1e18 ? (uint64_t)each_second : UINT64_C(1000000000000000000);
}

#define RATE_OF(name, member)                                                                      \
    static uint64_t name(const struct curves *curves, size_t i)                                    \
    {                                                                                              \
        const struct report_sample *samples = curves->samples;                                     \
        return rate(curves, i, samples[i].member, i == 0 ? 0 : samples[i - 1].member);             \
    }

RATE_OF(clean_at, hits.clean)
RATE_OF(queried_at, hits.queried)
RATE_OF(barrier_at, hits.barrier)
RATE_OF(waited_at, hits.waited)
RATE_OF(missed_at, misses)

static const struct layer rate_layers[] = {{"clean", clean_at},     {"queried", queried_at},
                                           {"barrier", barrier_at}, {"waited", waited_at},
                                           {"missed", missed_at},   {0}};

/* --- drawing ------------------------------------------------------------------------------------
 */

static uint64_t sum_up_to(const struct curves *curves, const struct layer *layers, size_t last,
                          size_t i)
{
    uint64_t sum = 0;

    for (size_t layer = 0; layer <= last && layers[layer].class != NULL; layer++)
        sum = saturating_sum(sum, layers[layer].value(curves, i));
    return sum;
}

static uint64_t highest(const struct curves *curves, const struct layer *layers)
{
    uint64_t most = 0;

    for (size_t i = 0; i < curves->count; i++) {
        uint64_t sum = sum_up_to(curves, layers, LAYERS_MOST, i);
        most = sum > most ? sum : most;
    }
    return most;
}

/* In tenths of the drawing's units. */
static unsigned scaled(uint64_t value, uint64_t whole, unsigned units)
{
    if (whole == 0)
        return 0;
    value = value > whole ? whole : value;
    return (unsigned)((unsigned __int128)value * units * 10 / whole);
}

static void put_point(FILE *out, unsigned x, unsigned y)
{
    fprintf(out, "%u.%u,%u.%u ", x / 10, x % 10, y / 10, y % 10);
}

static unsigned x_of(const struct curves *curves, size_t i)
{
    return scaled(curves->samples[i].nanoseconds, curves->samples[curves->count - 1].nanoseconds,
                  WIDTH);
}

/* From the bottom up to the sum of the layers so far; the layers below are drawn over it. Each
 * sample is a step: memory is so from its sample on, a rate is of the time before its sample. */
static void put_area(FILE *out, const struct curves *curves, const struct layer *layers,
                     size_t layer, uint64_t top, bool is_rate)
{
    fprintf(out, "<polygon class=\"%s\" points=\"0,%u ", layers[layer].class, HEIGHT);
    unsigned x_before = 0, y_before = HEIGHT * 10;
    for (size_t i = 0; i < curves->count; i++) {
        unsigned x = x_of(curves, i);
        unsigned y = HEIGHT * 10 - scaled(sum_up_to(curves, layers, layer, i), top, HEIGHT);
        put_point(out, is_rate ? x_before : x, is_rate ? y : y_before);
        put_point(out, x, y);
        x_before = x;
        y_before = y;
    }
    fprintf(out, "%u,%u\"/>", WIDTH, HEIGHT);
}

static size_t count_layers(const struct layer *layers)
{
    size_t count = 0;

    while (layers[count].class != NULL)
        count++;
    return count;
}

/* --- a drawing with its frame -------------------------------------------------------------------
 */

static void open_drawing(FILE *out, const char *top)
{
    fprintf(out,
            "<figure><figcaption class=\"top\">%s</figcaption>\n<svg aria-hidden=\"true\" "
            "viewBox=\"0 0 %u %u\" preserveAspectRatio=\"none\">",
            top, WIDTH, HEIGHT);
}

static void close_drawing(FILE *out, const struct curves *curves)
{
    char end[READABLE_BYTES];

    readable_time(curves->samples[curves->count - 1].nanoseconds, end);
    fprintf(out,
            "</svg>\n<div class=\"axis\" aria-hidden=\"true\"><span>0 s</span><span>%s</span>"
            "</div></figure>\n",
            end);
}

/* The drawing's top: the device's size where a good part of it was used. */
static uint64_t top_of_memory(const struct curves *curves, char *text, size_t bytes)
{
    uint64_t most = highest(curves, memory_layers), whole = curves->device->device.total_bytes;
    char used[READABLE_BYTES], size[READABLE_BYTES];

    readable_bytes(most, used);
    readable_bytes(whole, size);
    if (whole > most && most > whole / 4) {
        snprintf(text, bytes, "top: the device's %s; most: %s", size, used);
        return whole;
    }
    snprintf(text, bytes, "top: %s, of the device's %s", used, size);
    return most;
}

static void draw_memory(FILE *out, const struct curves *curves)
{
    char text[3 * READABLE_BYTES];
    uint64_t top = top_of_memory(curves, text, sizeof(text));

    open_drawing(out, text);
    for (size_t layer = count_layers(memory_layers); layer-- > 0;)
        put_area(out, curves, memory_layers, layer, top, false);
    close_drawing(out, curves);
}

static void draw_rates(FILE *out, const struct curves *curves)
{
    char text[3 * READABLE_BYTES], most[READABLE_BYTES];
    uint64_t top = highest(curves, rate_layers);

    readable_count(top, most);
    snprintf(text, sizeof(text), "top: %s requests a second", most);
    open_drawing(out, text);
    for (size_t layer = count_layers(rate_layers); layer-- > 0;)
        put_area(out, curves, rate_layers, layer, top, true);
    close_drawing(out, curves);
}

/* --- the numbers --------------------------------------------------------------------------------
 */

static void put_sample(FILE *out, const struct curves *curves, size_t index)
{
    const struct report_sample *sample = &curves->samples[index];
    struct place place;

    snprintf(place.text, sizeof(place.text), "devices/%zu/history/%zu", curves->index, index);
    fputs("<tr>", out);
    put_time(out, &place, "nanoseconds", sample->nanoseconds);
    put_bytes(out, &place, "live_bytes", sample->live_bytes);
    put_bytes(out, &place, "cached_bytes", sample->cached_bytes);
    put_bytes(out, &place, "pending_bytes", sample->pending_bytes);
    put_count(out, &place, "hits_clean", sample->hits.clean);
    put_count(out, &place, "hits_queried", sample->hits.queried);
    put_count(out, &place, "hits_barrier", sample->hits.barrier);
    put_count(out, &place, "hits_waited", sample->hits.waited);
    put_count(out, &place, "misses", sample->misses);
    fputs("</tr>\n", out);
}

static void put_numbers(FILE *out, const struct curves *curves)
{
    static const char *const head[] = {"time",    "in use",  "cached", "pending", "clean",
                                       "queried", "barrier", "waited", "misses",  NULL};

    fputs("<details><summary>The numbers</summary>\n", out);
    open_scroller(out, "The device over time");
    put_head(out, "The device at each sample; hits and misses since the start.", 0, head);
    for (size_t i = 0; i < curves->count; i++)
        put_sample(out, curves, i);
    close_scroller(out);
    fputs("</details>\n", out);
}

static void put_curves(FILE *out, const struct curves *curves)
{
    static const char *const memory[] = {"live", "cached", "pending", NULL};
    static const char *const memory_names[] = {"in use", "cached", "pending", NULL};
    static const char *const rates[] = {"clean", "queried", "barrier", "waited", "missed", NULL};

    fprintf(out, "<h3>device %d on ", curves->device->device.ordinal);
    put_text(out, curves->device->host);
    fputs(", ", out);
    put_text(out, curves->device->device.name);
    fputs("</h3>\n", out);
    put_legend(out, memory, memory_names);
    draw_memory(out, curves);
    put_legend(out, rates, rates);
    draw_rates(out, curves);
    put_numbers(out, curves);
}

/* --- all devices --------------------------------------------------------------------------------
 */

static uint64_t held_by(const struct summary_device *device)
{
    return device_totals(&device->device).peak.reserved_bytes;
}

/* Whether fewer devices than are shown held more, or as much and come before it. */
static bool is_shown(const struct summary *summary, size_t index)
{
    size_t before = 0;

    for (size_t i = 0; i < summary->device_count; i++) {
        const struct summary_device *other = &summary->devices[i];
        uint64_t held = held_by(other), own = held_by(&summary->devices[index]);
        if (other->device.sample_count > 1 && (held > own || (held == own && i < index)))
            before++;
    }
    return before < DEVICES_SHOWN;
}

static size_t count_devices(const struct summary *summary)
{
    size_t count = 0;

    for (size_t i = 0; i < summary->device_count; i++)
        count += summary->devices[i].device.sample_count > 1;
    return count;
}

void put_history(FILE *out, const struct summary *summary)
{
    size_t count = count_devices(summary);

    if (count == 0)
        return;
    fputs("<section aria-labelledby=\"history\"><h2 id=\"history\">Over time</h2>\n", out);
    if (count > DEVICES_SHOWN)
        fprintf(out, "<p>The %u of %zu devices that held most.</p>\n", DEVICES_SHOWN, count);
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct report_device *device = &summary->devices[i].device;
        struct curves curves = {&summary->devices[i], i, device->samples, device->sample_count};
        if (device->sample_count > 1 && is_shown(summary, i))
            put_curves(out, &curves);
    }
    fputs("</section>\n", out);
}
