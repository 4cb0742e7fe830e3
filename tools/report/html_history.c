/*
 * The curves of a page: what each device's memory was used for over time, and how requests were
 * answered.
 *
 * Each curve is a drawing. Its numbers are shown under the pointer, and in a collapsed table below
 * it. A sample holds until the next one, so areas have steps. The last sample is drawn on for a
 * moment. A separate line shows the most that was held between two samples, and its highest point
 * is marked.
 */
#include "html.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/base/readable.h"

/* The most devices that are shown: those that held most. A page with more would be hard to read. */
#define DEVICES_SHOWN 16u

/* The drawing's size in its own units. It is stretched to the page's width. */
#define WIDTH  1000u
#define HEIGHT 200u

/* The most layers of a drawing, stacked. */
#define LAYERS_MOST 5u

struct curves {
    const struct summary_device *device;
    size_t index; /* of the device in the summary */
    const struct report_sample *samples;
    size_t count;
    uint64_t end; /* of the drawing, in nanoseconds: a moment after the last sample */
};

/* Returns the value of a layer at the sample with this index. */
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

/* --- layers: requests per second, up to a sample ------------------------------------------------
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

/* Scales a value out of whole to the drawing's units. Returns tenths of units. */
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
    return scaled(curves->samples[i].nanoseconds, curves->end, WIDTH);
}

/* The most that was held since the sample before, including the moment of this sample. */
static uint64_t peak_at(const struct curves *curves, size_t i)
{
    uint64_t held = sum_up_to(curves, memory_layers, LAYERS_MOST, i);

    return curves->samples[i].peak_bytes > held ? curves->samples[i].peak_bytes : held;
}

static size_t find_peak(const struct curves *curves)
{
    size_t highest_at = 0;

    for (size_t i = 1; i < curves->count; i++)
        if (peak_at(curves, i) > peak_at(curves, highest_at))
            highest_at = i;
    return highest_at;
}

/* Draws the area from the bottom up to the sum of layers 0 to layer. Lower layers are drawn later,
 * over it. Each sample is a step: memory holds from its sample on, a rate holds for the time before
 * its sample. */
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
    put_point(out, WIDTH * 10, is_rate ? HEIGHT * 10 : y_before);
    fprintf(out, "%u,%u\"/>", WIDTH, HEIGHT);
}

/* Draws the line of peaks. Each sample is a step that starts at the sample before. */
static void put_peaks(FILE *out, const struct curves *curves, uint64_t top)
{
    unsigned x_before = 0;

    fputs("<polyline class=\"peaks\" points=\"", out);
    for (size_t i = 0; i < curves->count; i++) {
        unsigned x = x_of(curves, i), y = HEIGHT * 10 - scaled(peak_at(curves, i), top, HEIGHT);
        put_point(out, x_before, y);
        put_point(out, x, y);
        x_before = x;
    }
    fputs("\"/>", out);
}

/* Opens an area that shows a sample's numbers under the pointer. With before (for rates), the area
 * is the time before the sample, else the time from it on. */
static void open_spot(FILE *out, const struct curves *curves, size_t i, bool before)
{
    unsigned from = before ? i == 0 ? 0 : x_of(curves, i - 1) : x_of(curves, i);
    unsigned to = before                  ? x_of(curves, i)
                  : i + 1 < curves->count ? x_of(curves, i + 1)
                                          : WIDTH * 10;

    fprintf(out, "<rect class=\"spot\" x=\"%u.%u\" y=\"0\" width=\"%u.%u\" height=\"%u\"><title>",
            from / 10, from % 10, (to - from) / 10, (to - from) % 10, HEIGHT);
}

static void put_memory_spot(FILE *out, const struct curves *curves, size_t i)
{
    const struct report_sample *sample = &curves->samples[i];
    char time[READABLE_BYTES], live[READABLE_BYTES], cached[READABLE_BYTES],
        pending[READABLE_BYTES], peak[READABLE_BYTES];

    readable_time(sample->nanoseconds, time);
    readable_bytes(sample->live_bytes, live);
    readable_bytes(sample->cached_bytes, cached);
    readable_bytes(sample->pending_bytes, pending);
    readable_bytes(peak_at(curves, i), peak);
    open_spot(out, curves, i, false);
    fprintf(out, "from %s: %s in use, %s cached, %s pending; at most %s before</title></rect>",
            time, live, cached, pending, peak);
}

static void put_rate_spot(FILE *out, const struct curves *curves, size_t i)
{
    char time[READABLE_BYTES], number[READABLE_BYTES];

    readable_time(curves->samples[i].nanoseconds, time);
    open_spot(out, curves, i, true);
    fprintf(out, "until %s, a second:", time);
    for (const struct layer *layer = rate_layers; layer->class != NULL; layer++) {
        readable_count(layer->value(curves, i), number);
        fprintf(out, " %s %s", number, layer->class);
    }
    fputs("</title></rect>", out);
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

#define TICKS 4u

typedef void tick_writer(uint64_t value, char cell[READABLE_BYTES]);

/* Opens a drawing with ticks on its left, from the top down. put_grid draws a line across for each
 * tick. */
static void open_drawing(FILE *out, const char *text, uint64_t top, tick_writer *write)
{
    char tick[READABLE_BYTES];

    fprintf(out,
            "<figure><figcaption>%s</figcaption>\n<div class=\"plot\">"
            "<div class=\"ticks\" aria-hidden=\"true\">",
            text);
    for (unsigned i = TICKS; i > 0; i--) {
        write((uint64_t)((unsigned __int128)top * i / TICKS), tick);
        fprintf(out, "<span>%s</span>", tick);
    }
    fprintf(out,
            "<span>0</span></div>\n<svg aria-hidden=\"true\" viewBox=\"0 0 %u %u\" "
            "preserveAspectRatio=\"none\">",
            WIDTH, HEIGHT);
}

static void put_grid(FILE *out)
{
    for (unsigned i = 1; i < TICKS; i++)
        fprintf(out, "<line class=\"grid\" x1=\"0\" x2=\"%u\" y1=\"%u\" y2=\"%u\"/>", WIDTH,
                HEIGHT * i / TICKS, HEIGHT * i / TICKS);
}

static void close_drawing(FILE *out, const struct curves *curves)
{
    char tick[READABLE_BYTES];

    fputs("</svg></div>\n<div class=\"axis\" aria-hidden=\"true\">", out);
    for (unsigned i = 0; i <= TICKS; i++) {
        readable_time((uint64_t)((unsigned __int128)curves->end * i / TICKS), tick);
        fprintf(out, "<span>%s</span>", tick);
    }
    fputs("</div></figure>\n", out);
}

/* Marks where the most was held, by a vertical line. The number is in the caption, because text in
 * the drawing would be stretched. */
static void put_peak_mark(FILE *out, const struct curves *curves, uint64_t top)
{
    size_t at = find_peak(curves);
    unsigned x = x_of(curves, at), y = HEIGHT * 10 - scaled(peak_at(curves, at), top, HEIGHT);

    fprintf(out, "<path class=\"mark\" d=\"M%u.%u %u.%uv%u\"/>", x / 10, x % 10, y / 10, y % 10,
            HEIGHT - y / 10);
}

/* Returns the value at the drawing's top, and writes the caption. The top is the device's size if
 * more than a quarter of it was used, else the peak. */
static uint64_t top_of_memory(const struct curves *curves, char *text, size_t bytes)
{
    size_t at = find_peak(curves);
    uint64_t most = peak_at(curves, at), whole = curves->device->device.total_bytes;
    char used[READABLE_BYTES], size[READABLE_BYTES], time[READABLE_BYTES];
    bool is_much = whole > most && most > whole / 4;

    readable_bytes(most, used);
    readable_bytes(whole, size);
    readable_time(curves->samples[at].nanoseconds, time);
    snprintf(text, bytes, "peak: %s, by %s; the device's %s%s", used, time, size,
             is_much ? " are the top" : "");
    return is_much ? whole : most;
}

static void draw_memory(FILE *out, const struct curves *curves)
{
    char text[6 * READABLE_BYTES];
    uint64_t top = top_of_memory(curves, text, sizeof(text));

    open_drawing(out, text, top, readable_bytes);
    for (size_t layer = count_layers(memory_layers); layer-- > 0;)
        put_area(out, curves, memory_layers, layer, top, false);
    put_peaks(out, curves, top);
    put_grid(out);
    put_peak_mark(out, curves, top);
    for (size_t i = 0; i < curves->count; i++)
        put_memory_spot(out, curves, i);
    close_drawing(out, curves);
}

static void draw_rates(FILE *out, const struct curves *curves)
{
    uint64_t top = highest(curves, rate_layers);

    open_drawing(out, "requests a second", top, readable_count);
    for (size_t layer = count_layers(rate_layers); layer-- > 0;)
        put_area(out, curves, rate_layers, layer, top, true);
    put_grid(out);
    for (size_t i = 0; i < curves->count; i++)
        put_rate_spot(out, curves, i);
    close_drawing(out, curves);
}

/* --- the numbers --------------------------------------------------------------------------------
 */

/* Whether any memory went from process to process. The counters only grow, so the last sample has
 * the most. */
static bool has_exchanges(const struct curves *curves)
{
    const struct report_sample *last = &curves->samples[curves->count - 1];

    return last->given_bytes != 0 || last->got_bytes != 0;
}

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
    put_bytes(out, &place, "peak_bytes", sample->peak_bytes);
    put_count(out, &place, "hits_clean", sample->hits.clean);
    put_count(out, &place, "hits_queried", sample->hits.queried);
    put_count(out, &place, "hits_barrier", sample->hits.barrier);
    put_count(out, &place, "hits_waited", sample->hits.waited);
    put_count(out, &place, "misses", sample->misses);
    if (has_exchanges(curves)) {
        put_bytes(out, &place, "given_bytes", sample->given_bytes);
        put_bytes(out, &place, "got_bytes", sample->got_bytes);
    }
    fputs("</tr>\n", out);
}

static void put_numbers(FILE *out, const struct curves *curves)
{
    static const char *const head[] = {
        "time",    "in use", "cached", "pending",         "peak before",     "clean", "queried",
        "barrier", "waited", "misses", "given to others", "got from others", NULL};
    static const char *const head_alone[] = {"time",        "in use", "cached",  "pending",
                                             "peak before", "clean",  "queried", "barrier",
                                             "waited",      "misses", NULL};

    fputs("<details><summary>The numbers</summary>\n", out);
    open_scroller(out, "The device over time");
    put_head(out, "The device at each sample; hits and misses since the start.", 0,
             has_exchanges(curves) ? head : head_alone);
    for (size_t i = 0; i < curves->count; i++)
        put_sample(out, curves, i);
    close_scroller(out);
    fputs("</details>\n", out);
}

static void put_curves(FILE *out, const struct curves *curves)
{
    static const char *const memory[] = {"live", "cached", "pending", "peaks", NULL};
    static const char *const memory_names[] = {"in use", "cached", "pending",
                                               "the most between two samples", NULL};
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

/* Whether the device is among the DEVICES_SHOWN that held most. Of equals, the first ones are
 * shown. */
static bool is_shown(const struct summary *summary, size_t index)
{
    size_t before = 0;

    for (size_t i = 0; i < summary->device_count; i++) {
        const struct summary_device *other = &summary->devices[i];
        uint64_t held = held_by(other), own = held_by(&summary->devices[index]);
        if (other->device.sample_count > 0 && (held > own || (held == own && i < index)))
            before++;
    }
    return before < DEVICES_SHOWN;
}

static size_t count_devices(const struct summary *summary)
{
    size_t count = 0;

    for (size_t i = 0; i < summary->device_count; i++)
        count += summary->devices[i].device.sample_count > 0;
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
        struct curves curves = {&summary->devices[i], i, device->samples, device->sample_count, 0};
        if (device->sample_count == 0 || !is_shown(summary, i))
            continue;
        curves.end = device->samples[device->sample_count - 1].nanoseconds;
        curves.end = saturating_sum(curves.end, curves.end / 50 + 1);
        put_curves(out, &curves);
    }
    fputs("</section>\n", out);
}
