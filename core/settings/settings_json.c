/*
 * The settings, described once (settings_json.h).
 *
 * Part of libcudapool_config.so and the command.
 */
#include "settings_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file_pattern.h"
#include "core/base/one_line.h"
#include "quantity_json.h"

/* --- the description ----------------------------------------------------------------------------
 */

#define GIB (1ull << 30)
#define TIB (1ull << 40)

/* 1 PiB: more than a device has, and every sum of a few of them fits 64 bits. */
#define SIZE_MOST            (1024 * TIB)
#define BUCKET_SMALLEST_MOST GIB
#define TIME_MOST            (365ull * 24 * 3600 * 1000000000)
#define COUNT_MOST           UINT32_MAX

static const struct setting_value policies[] = {
    {"geometric", BUCKETS_GEOMETRIC,
     "Sizes are rounded up to steps that divide each doubling evenly."},
    {"pow2", BUCKETS_POW2, "Sizes are rounded up to powers of two."},
    {"exact", BUCKETS_EXACT, "A block serves requests of its own size only."},
    {0},
};

static const struct setting_value evictions[] = {
    {"largest_first", EVICT_LARGEST_FIRST, "Over a cap, the largest free blocks go back first."},
    {"least_recently_used", EVICT_LEAST_RECENTLY_USED,
     "Over a cap, the free blocks unused for the longest time go back first."},
    {0},
};

static const struct setting_value endings[] = {
    {"none", REPORT_NONE, "Nothing is written when the program ends."},
    {"table", REPORT_TABLE, "A readable table is written when the program ends."},
    {"json", REPORT_JSON, "A report in JSON is written when the program ends."},
    {0},
};

/* FLAG(name, what true means, what false means) */
#define FLAG(name, when_true, when_false)                                                          \
    static const struct setting_value name[] = {                                                   \
        {"true", 1, when_true}, {"false", 0, when_false}, {0}}

FLAG(device_enabled, "The pool serves device memory.",
     "Device memory comes straight from the driver.");
FLAG(device_barriers,
     "An allocation may have the GPU wait for a freed block's last work, rather than the program.",
     "An allocation that needs a freed block waits for its last work itself.");
FLAG(device_waits, "A free waits for the whole context, as the driver's own does.",
     "A free does not wait for the GPU; the block is reused when the GPU is done with it.");
FLAG(stream_enabled, "The pool serves stream-ordered memory.",
     "Stream-ordered memory comes straight from the driver.");
FLAG(stream_follow,
     "A block freed on one stream serves another that waited for an event recorded after the free.",
     "Events between streams do not make a freed block reusable.");
FLAG(stream_opportunistic,
     "A block freed on one stream serves another once the GPU is seen to have passed the free.",
     "A block freed on one stream serves another only where the program ordered the two.");
FLAG(stream_internal,
     "A stream may be made to wait for another, so that it can have a block freed there.",
     "No stream is made to wait for another for the sake of a block.");

FLAG(figures_enabled,
     "The counters are in a small mapped file: `cudapool top` sees them, and a kill leaves them.",
     "The counters are the process's own: nobody sees them before its report.");
FLAG(figures_keep, "The file with the counters stays when the process ends.",
     "The file with the counters goes when the process ends; one that was killed leaves it.");

/* The macros' arguments are members, which bear no parentheses. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
/* clang-format off */
#define AT(field) offsetof(struct settings, field)

#define BUCKETS_AND_CAPS(part)                                                                     \
    {.path = #part ".buckets.policy", .type = SETTING_WORD, .offset = AT(part.buckets.policy),     \
     .values = policies},                                                                          \
    {.path = #part ".buckets.steps_per_doubling", .type = SETTING_COUNT32,                         \
     .offset = AT(part.buckets.steps_per_doubling), .least = 1, .most = 64,                        \
     .means = "The geometric policy has %s block sizes to each doubling."},                        \
    {.path = #part ".buckets.smallest", .type = SETTING_BYTES,                                     \
     .offset = AT(part.buckets.smallest), .least = 1, .most = BUCKET_SMALLEST_MOST,                \
     .means = "The smallest block is %s, or a 64th of the device where that is less."},            \
    {.path = #part ".buckets.largest", .type = SETTING_SIZE, .offset = AT(part.buckets.largest),   \
     .most = SIZE_MOST, .means = "Requests over %s are not kept for reuse.",                       \
     .means_if_zero = "No request is kept for reuse."},                                            \
    {.path = #part ".caps.cached", .type = SETTING_SIZE, .offset = AT(part.caps.cached),           \
     .most = SIZE_MOST, .means = "Free blocks are kept up to %s, on each device.",             \
     .means_if_zero = "No free block is kept."},                                                   \
    {.path = #part ".caps.blocks_per_bucket", .type = SETTING_COUNT64,                             \
     .offset = AT(part.caps.blocks_per_bucket), .most = COUNT_MOST,                                \
     .means = "At most %s free blocks of one size are kept.",                                      \
     .means_if_zero = "No free block is kept."},                                                   \
    {.path = #part ".caps.reserve_ratio", .type = SETTING_RATIO,                                   \
     .offset = AT(part.caps.reserve_ratio), .least = 1, .most = 100,                               \
     .means = "Before more memory is taken from the driver, free blocks go back while the pool "   \
              "would hold over %s times the most that the program itself held, plus the growth "   \
              "budget."}

#define EVICT_AND_IDLE(part)                                                                       \
    {.path = #part ".evict", .type = SETTING_WORD, .offset = AT(part.evict),                       \
     .values = evictions},                                                                         \
    {.path = #part ".release_after_idle", .type = SETTING_TIME,                                    \
     .offset = AT(part.release_after_idle_ns), .most = TIME_MOST,                                  \
     .means = "Free blocks unused for %s go back to the driver.",                                  \
     .means_if_zero = "Free blocks do not go back for being unused."}

#define FLAG_SETTING(name, field, meanings)                                                        \
    {.path = name, .type = SETTING_FLAG, .offset = AT(field), .values = meanings}

const struct setting settings_table[] = {
    FLAG_SETTING("device.enabled", device.enabled, device_enabled),
    BUCKETS_AND_CAPS(device),
    {.path = "device.growth_budget", .type = SETTING_SIZE, .offset = AT(device.growth_budget),
     .most = SIZE_MOST,
     .means = "New blocks are taken while the freed ones that the GPU may still be using come to "
              "at most %s; past that, an allocation waits for such a block or inserts a barrier.",
     .means_if_zero = "An allocation waits for a freed block, or inserts a barrier, rather than "
                      "take a new one while the GPU may still be using any."},
    EVICT_AND_IDLE(device),
    FLAG_SETTING("device.barriers", device.barriers, device_barriers),
    FLAG_SETTING("device.free_synchronizes", device.free_synchronizes, device_waits),

    FLAG_SETTING("stream_ordered.enabled", stream_ordered.enabled, stream_enabled),
    BUCKETS_AND_CAPS(stream_ordered),
    FLAG_SETTING("stream_ordered.reuse.follow_event_dependencies",
                 stream_ordered.reuse.follow_event_dependencies, stream_follow),
    FLAG_SETTING("stream_ordered.reuse.opportunistic",
                 stream_ordered.reuse.opportunistic, stream_opportunistic),
    FLAG_SETTING("stream_ordered.reuse.internal_dependencies",
                 stream_ordered.reuse.internal_dependencies, stream_internal),
    EVICT_AND_IDLE(stream_ordered),
    {.path = "stream_ordered.driver_release_threshold", .type = SETTING_SIZE,
     .offset = AT(stream_ordered.driver_release_threshold), .most = SIZE_MOST,
     .may_be_null = true,
     .means = "The driver's own memory pool keeps up to %s when a stream is synchronised.",
     .means_if_null = "The driver's own memory pool is left as it is."},

    {.path = "limits.device_bytes", .type = SETTING_SIZE, .offset = AT(limits.device_bytes),
     .least = 1, .most = SIZE_MOST, .may_be_null = true,
     .means = "The process may hold %s on each device; past that it is out of memory.",
     .means_if_null = "The process may hold as much as the driver gives."},

    {.path = "report.at_exit", .type = SETTING_WORD, .offset = AT(report.at_exit),
     .values = endings},
    {.path = "report.file", .type = SETTING_FILE, .offset = AT(report.file), .may_be_null = true,
     .means = "The report goes to the file %s.",
     .means_if_null = "The report goes to stderr."},

    FLAG_SETTING("figures.enabled", figures.enabled, figures_enabled),
    {.path = "figures.directory", .type = SETTING_FILE, .offset = AT(figures.directory),
     .may_be_null = true,
     .means = "The file with the counters is in the directory %s.",
     .means_if_null = "The file with the counters is in memory, below the user's runtime "
                      "directory, /dev/shm, $TMPDIR or /tmp; if none of them is, there is none."},
    FLAG_SETTING("figures.keep", figures.keep, figures_keep),
};
/* clang-format on */
/* NOLINTEND(bugprone-macro-parentheses) */

const size_t settings_table_length = sizeof(settings_table) / sizeof(settings_table[0]);
_Static_assert(sizeof(settings_table) / sizeof(settings_table[0]) <= SETTINGS_MOST,
               "each setting has room for how it was spelled");

const struct setting_group setting_groups[] = {
    {"device", "device memory (cuMemAlloc and its relatives)"},
    {"stream_ordered", "stream-ordered memory (cuMemAllocAsync and its relatives)"},
    {"limits", "limits"},
    {"report", "the report"},
    {"figures", "the counters while the program runs, and after it was killed"},
    {0},
};

/* --- one value ----------------------------------------------------------------------------------
 */

static uint8_t spelling_of(const struct setting *setting, const struct settings *settings)
{
    return settings->spelled[setting - settings_table];
}

static void *field_of(const struct setting *setting, struct settings *settings)
{
    return (char *)settings + setting->offset;
}

static const void *const_field_of(const struct setting *setting, const struct settings *settings)
{
    return (const char *)settings + setting->offset;
}

/* Copies rather than casts: an enum's own type need not be int's. */
static int word_value(const struct setting *setting, const struct settings *settings)
{
    const void *field = const_field_of(setting, settings);
    int value;

    if (setting->type == SETTING_FLAG)
        return *(const bool *)field ? 1 : 0;
    _Static_assert(sizeof(enum bucket_policy) == sizeof(value), "enums are as wide as int");
    memcpy(&value, field, sizeof(value));
    return value;
}

static void list_words(const struct setting *setting, char *text, size_t bytes)
{
    size_t length = (size_t)snprintf(text, bytes, "one of");

    for (const struct setting_value *value = setting->values; value->word != NULL; value++) {
        if (length >= bytes)
            return;
        length += (size_t)snprintf(text + length, bytes - length, "%s \"%s\"",
                                   value == setting->values ? "" : ",", value->word);
    }
}

/* "1" for 1, "1GiB" for the number of bytes. */
static void bound_to_text(const struct setting *setting, uint64_t bound, char *text)
{
    if (setting->type == SETTING_BYTES || setting->type == SETTING_SIZE)
        bytes_to_text(bound, "", text);
    else if (setting->type == SETTING_TIME)
        time_to_text(bound, "", text);
    else
        snprintf(text, QUANTITY_TEXT_BYTES, "%llu", (unsigned long long)bound);
}

static const char *kind_of_value(enum setting_type type)
{
    switch (type) {
    case SETTING_COUNT32:
    case SETTING_COUNT64:
        return "an integer";
    case SETTING_BYTES:
        return "a size such as 512 or \"2MiB\" (" SIZE_UNITS ")";
    case SETTING_SIZE:
        return "a size such as 512 or \"2MiB\" (" SIZE_UNITS ") or a share such as \"50%\"";
    case SETTING_RATIO:
        return "a number";
    case SETTING_TIME:
        return "a time such as \"10s\" (" TIME_UNITS ")";
    case SETTING_FLAG:
        return "true or false";
    case SETTING_FILE:
        return "a file name, in which %p, %h, %r and %% may stand";
    case SETTING_WORD:
        break;
    }
    return "";
}

void setting_allowed(const struct setting *setting, char *text, size_t bytes)
{
    const char *or_null = setting->may_be_null ? ", or null" : "";
    char least[QUANTITY_TEXT_BYTES], most[QUANTITY_TEXT_BYTES];

    switch (setting->type) {
    case SETTING_WORD:
        list_words(setting, text, bytes);
        return;
    case SETTING_FLAG:
    case SETTING_FILE:
        snprintf(text, bytes, "%s%s", kind_of_value(setting->type), or_null);
        return;
    default:
        bound_to_text(setting, setting->least, least);
        bound_to_text(setting, setting->most, most);
        snprintf(text, bytes, "%s from %s to %s%s", kind_of_value(setting->type), least, most,
                 or_null);
    }
}

static bool in_range(const struct setting *setting, uint64_t value)
{
    return value >= setting->least && value <= setting->most;
}

static bool count_from_json(const json_t *value, uint64_t *count)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *count = (uint64_t)json_integer_value(value);
    return true;
}

static bool size_from_json(const struct setting *setting, const json_t *value,
                           struct byte_size *result)
{
    struct byte_size size = {0};

    if (json_is_string(value)) {
        if (!size_from_text(json_string_value(value), &size))
            return false;
    } else if (!count_from_json(value, &size.bytes)) {
        return false;
    }
    /* A share that is not 0 is within every range. */
    if (!(size.percent > 0) && !in_range(setting, size.bytes))
        return false;
    *result = size;
    return true;
}

static bool bytes_from_json(const struct setting *setting, const json_t *value, uint64_t *result)
{
    uint64_t bytes;
    bool read = json_is_string(value) ? bytes_from_text(json_string_value(value), &bytes)
                                      : count_from_json(value, &bytes);

    if (!read || !in_range(setting, bytes))
        return false;
    *result = bytes;
    return true;
}

static bool time_from_json(const struct setting *setting, const json_t *value, uint64_t *result)
{
    uint64_t nanoseconds;

    if (!json_is_string(value) || !time_from_text(json_string_value(value), &nanoseconds) ||
        !in_range(setting, nanoseconds))
        return false;
    *result = nanoseconds;
    return true;
}

static bool ratio_from_json(const struct setting *setting, const json_t *value, double *result)
{
    double ratio = json_number_value(value);

    if (!json_is_number(value) ||
        !(ratio >= (double)setting->least && ratio <= (double)setting->most))
        return false;
    *result = ratio;
    return true;
}

static bool word_from_json(const struct setting *setting, const json_t *value, void *field)
{
    if (!json_is_string(value))
        return false;
    for (const struct setting_value *known = setting->values; known->word != NULL; known++) {
        if (strcmp(known->word, json_string_value(value)) != 0)
            continue;
        memcpy(field, &known->value, sizeof(known->value));
        return true;
    }
    return false;
}

static bool file_from_json(const json_t *value, char *field)
{
    if (!json_is_string(value) || json_string_length(value) >= SETTINGS_PATH_MAX ||
        !file_pattern_is_valid(json_string_value(value)))
        return false;
    memset(field, 0, SETTINGS_PATH_MAX);
    memcpy(field, json_string_value(value), json_string_length(value));
    return true;
}

static void set_null(const struct setting *setting, void *field)
{
    if (setting->type == SETTING_SIZE)
        *(struct byte_size *)field = (struct byte_size){.unlimited = true};
    else
        memset(field, 0, SETTINGS_PATH_MAX);
}

static bool value_from_json(const struct setting *setting, const json_t *value, void *field)
{
    uint64_t count;

    if (setting->may_be_null && json_is_null(value)) {
        set_null(setting, field);
        return true;
    }
    switch (setting->type) {
    case SETTING_FLAG:
        if (json_is_boolean(value))
            *(bool *)field = json_is_true(value);
        return json_is_boolean(value);
    case SETTING_WORD:
        return word_from_json(setting, value, field);
    case SETTING_COUNT32:
    case SETTING_COUNT64:
        if (!count_from_json(value, &count) || !in_range(setting, count))
            return false;
        if (setting->type == SETTING_COUNT32)
            *(uint32_t *)field = (uint32_t)count;
        else
            *(uint64_t *)field = count;
        return true;
    case SETTING_BYTES:
        return bytes_from_json(setting, value, field);
    case SETTING_SIZE:
        return size_from_json(setting, value, field);
    case SETTING_RATIO:
        return ratio_from_json(setting, value, field);
    case SETTING_TIME:
        return time_from_json(setting, value, field);
    case SETTING_FILE:
        return file_from_json(value, field);
    }
    return false;
}

static uint8_t spelling_of_json(const struct setting *setting, const json_t *value)
{
    if (setting->type != SETTING_BYTES && setting->type != SETTING_SIZE &&
        setting->type != SETTING_TIME)
        return SPELLED_AS_USUAL;
    if (!json_is_string(value))
        return json_is_integer(value) ? SPELLED_AS_INTEGER : SPELLED_AS_USUAL;
    const char *text = json_string_value(value);
    return setting->type == SETTING_TIME ? time_spelling(text) : size_spelling(text);
}

int setting_from_json(const struct document *document, const char *place,
                      const struct setting *setting, const json_t *value, struct settings *settings)
{
    char allowed[SETTING_ALLOWED_BYTES];

    if (value_from_json(setting, value, field_of(setting, settings))) {
        settings->spelled[setting - settings_table] = spelling_of_json(setting, value);
        return 0;
    }
    setting_allowed(setting, allowed, sizeof(allowed));
    return document_refuse(document, place, value, allowed);
}

/* As it came, or else an integer where no unit divides it, as in "smallest": 512. */
static json_t *bytes_to_json(uint64_t bytes, uint8_t spelling)
{
    char text[QUANTITY_TEXT_BYTES];

    if (bytes_to_text_as(bytes, spelling, text))
        return json_string(text);
    if (spelling == SPELLED_AS_INTEGER || bytes == 0 || bytes % 1024 != 0)
        return json_integer((json_int_t)bytes);
    bytes_to_text(bytes, "", text);
    return json_string(text);
}

static json_t *size_to_json(const struct byte_size *size, uint8_t spelling)
{
    char text[QUANTITY_TEXT_BYTES];

    if (size->unlimited)
        return json_null();
    if (!(size->percent > 0))
        return bytes_to_json(size->bytes, spelling);
    size_to_text(size, "", text);
    return json_string(text);
}

static json_t *time_to_json(uint64_t nanoseconds, uint8_t spelling)
{
    char text[QUANTITY_TEXT_BYTES];

    if (!time_to_text_as(nanoseconds, spelling, text))
        time_to_text(nanoseconds, "", text);
    return json_string(text);
}

static const struct setting_value *current_value(const struct setting *setting,
                                                 const struct settings *settings)
{
    const struct setting_value *value = setting->values;

    while (value->word != NULL && value->value != word_value(setting, settings))
        value++;
    return value;
}

json_t *setting_to_json(const struct setting *setting, const struct settings *settings)
{
    const void *field = const_field_of(setting, settings);

    switch (setting->type) {
    case SETTING_FLAG:
        return json_boolean(*(const bool *)field);
    case SETTING_WORD:
        return json_string(current_value(setting, settings)->word);
    case SETTING_COUNT32:
        return json_integer(*(const uint32_t *)field);
    case SETTING_COUNT64:
        return json_integer((json_int_t) * (const uint64_t *)field);
    case SETTING_BYTES:
        return bytes_to_json(*(const uint64_t *)field, spelling_of(setting, settings));
    case SETTING_SIZE:
        return size_to_json(field, spelling_of(setting, settings));
    case SETTING_RATIO:
        return json_real(*(const double *)field);
    case SETTING_TIME:
        return time_to_json(*(const uint64_t *)field, spelling_of(setting, settings));
    case SETTING_FILE:
        return *(const char *)field == '\0' ? json_null() : json_string_of_any_bytes(field);
    }
    return NULL;
}

/* Spelled the same way, what is the same is the same text. */
bool setting_is_equal(const struct setting *setting, const struct settings *one,
                      const struct settings *other)
{
    size_t place = (size_t)(setting - settings_table);
    struct settings *same = malloc(sizeof(*same));
    bool equal = false;

    if (same == NULL)
        return false;
    *same = *other;
    same->spelled[place] = one->spelled[place];
    json_t *first = setting_to_json(setting, one), *second = setting_to_json(setting, same);
    equal = first != NULL && second != NULL && json_equal(first, second);
    json_decref(first);
    json_decref(second);
    free(same);
    return equal;
}

/* --- in words -----------------------------------------------------------------------------------
 */

static bool is_null(const struct setting *setting, const struct settings *settings)
{
    const void *field = const_field_of(setting, settings);

    if (setting->type == SETTING_SIZE)
        return ((const struct byte_size *)field)->unlimited;
    return setting->type == SETTING_FILE && *(const char *)field == '\0';
}

static bool is_zero(const struct setting *setting, const struct settings *settings)
{
    const void *field = const_field_of(setting, settings);

    switch (setting->type) {
    case SETTING_COUNT32:
        return *(const uint32_t *)field == 0;
    case SETTING_COUNT64:
    case SETTING_BYTES:
    case SETTING_TIME:
        return *(const uint64_t *)field == 0;
    case SETTING_SIZE:
        return !(((const struct byte_size *)field)->percent > 0) &&
               ((const struct byte_size *)field)->bytes == 0;
    default:
        return false;
    }
}

static void size_in_words(const struct byte_size *size, uint8_t spelling, char *text, size_t bytes)
{
    char number[QUANTITY_TEXT_BYTES];

    if (size->percent > 0)
        size_to_text(size, " ", number);
    else
        bytes_in_words(size->bytes, spelling, number);
    snprintf(text, bytes, "%s%s", number, size->percent > 0 ? " of the device's memory" : "");
}

static void value_in_words(const struct setting *setting, const struct settings *settings,
                           char *text, size_t bytes)
{
    const void *field = const_field_of(setting, settings);
    char number[QUANTITY_TEXT_BYTES] = "";

    switch (setting->type) {
    case SETTING_SIZE:
        size_in_words(field, spelling_of(setting, settings), text, bytes);
        return;
    case SETTING_FILE:
        snprintf(text, bytes, "%s", (const char *)field);
        return;
    case SETTING_COUNT32:
        snprintf(number, sizeof(number), "%u", *(const uint32_t *)field);
        break;
    case SETTING_COUNT64:
        snprintf(number, sizeof(number), "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case SETTING_BYTES:
        bytes_in_words(*(const uint64_t *)field, spelling_of(setting, settings), number);
        break;
    case SETTING_TIME:
        time_to_text(*(const uint64_t *)field, " ", number);
        break;
    case SETTING_RATIO:
        real_to_text(*(const double *)field, number);
        break;
    case SETTING_FLAG:
    case SETTING_WORD:
        break;
    }
    snprintf(text, bytes, "%s", number);
}

/* The sentence with the value where it says %s. The table's sentences have one such place. */
static void fill_in(const char *sentence, const char *value, char *text, size_t bytes)
{
    const char *gap = strstr(sentence, "%s");

    snprintf(text, bytes, "%.*s%s%s", (int)(gap - sentence), sentence, value, gap + 2);
}

void setting_to_words(const struct setting *setting, const struct settings *settings,
                      char text[SETTING_TEXT_BYTES])
{
    char value[SETTINGS_PATH_MAX];

    if (setting->values != NULL) {
        snprintf(text, SETTING_TEXT_BYTES, "%s", current_value(setting, settings)->means);
    } else if (is_null(setting, settings)) {
        snprintf(text, SETTING_TEXT_BYTES, "%s", setting->means_if_null);
    } else if (setting->means_if_zero != NULL && is_zero(setting, settings)) {
        snprintf(text, SETTING_TEXT_BYTES, "%s", setting->means_if_zero);
    } else {
        value_in_words(setting, settings, value, sizeof(value));
        fill_in(setting->means, value, text, SETTING_TEXT_BYTES);
    }
    replace_control_characters(text);
}

/* --- unknown keys -------------------------------------------------------------------------------
 */

/* One step of the edit distance: the cheapest of deleting, inserting and replacing. */
static size_t cheapest(size_t deleted, size_t inserted, size_t replaced)
{
    size_t least = deleted < inserted ? deleted : inserted;

    return replaced < least ? replaced : least;
}

/* How many characters must change to make one text of the other; only the first 63 count. */
static size_t edit_distance(const char *from, const char *to)
{
    size_t row[64];
    size_t from_length = strnlen(from, 63), to_length = strnlen(to, 63);

    for (size_t j = 0; j <= to_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= from_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= to_length; j++) {
            size_t above = row[j];
            row[j] = cheapest(above + 1, row[j - 1] + 1, diagonal + (from[i - 1] != to[j - 1]));
            diagonal = above;
        }
    }
    return row[to_length];
}

/* How far an unknown key is from the path that ends with length: mostly how its own name is
 * spelled, and then whether it stands in the right object. */
static size_t distance_to(const char *parent, const char *key, const char *path, size_t length)
{
    char known[128];

    snprintf(known, sizeof(known), "%.*s", (int)length, path);
    char *name = strrchr(known, '.');
    size_t distance = edit_distance(key, name == NULL ? known : name + 1) * 2;
    if (name != NULL)
        *name = '\0';
    return distance + (strcmp(parent, name == NULL ? "" : known) != 0);
}

/* Weighs every path that a path of the table passes through: a.b.c, a.b and a. */
static void nearest_of_path(const char *parent, const char *key, const char *path, size_t *least,
                            char nearest[128])
{
    for (size_t length = strcspn(path, "."); length != 0;) {
        size_t distance = distance_to(parent, key, path, length);
        if (distance < *least) {
            *least = distance;
            snprintf(nearest, 128, "%.*s", (int)length, path);
        }
        if (path[length] == '\0')
            break;
        length += 1 + strcspn(path + length + 1, ".");
    }
}

static void nearest_known_key(const char *parent, const char *key, char nearest[128])
{
    size_t least = SIZE_MAX;

    nearest_of_path(parent, key, "version", &least, nearest);
    nearest_of_path(parent, key, "$schema", &least, nearest);
    for (size_t i = 0; i < settings_table_length; i++)
        nearest_of_path(parent, key, settings_table[i].path, &least, nearest);
}

/* Where path stands directly in the object parent, the length of its own name; 0 otherwise. */
static size_t name_in(const char *parent, const char *path, const char **name)
{
    size_t length = strlen(parent);

    if (length != 0 && (strncmp(path, parent, length) != 0 || path[length] != '.'))
        return 0;
    *name = path + (length == 0 ? 0 : length + 1);
    return strcspn(*name, ".");
}

static void list_keys_of(const char *parent, char *text, size_t bytes)
{
    const char *previous = NULL, *name;
    size_t previous_length = 0, used = 0;

    text[0] = '\0';
    if (parent[0] == '\0')
        used = (size_t)snprintf(text, bytes, "$schema, version");
    for (size_t i = 0; i < settings_table_length && used < bytes; i++) {
        size_t length = name_in(parent, settings_table[i].path, &name);
        /* The settings of one object stand together in the table. */
        if (length == 0 || (length == previous_length && strncmp(previous, name, length) == 0))
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%.*s", used == 0 ? "" : ", ",
                                 (int)length, name);
        previous = name;
        previous_length = length;
    }
}

static int refuse_unknown_key(const struct document *document, const char *place,
                              const char *parent, const char *key)
{
    char nearest[128], known[256];

    nearest_known_key(parent, key, nearest);
    list_keys_of(parent, known, sizeof(known));
    return document_fail(document, place,
                         "unknown key; the nearest known one is %s; allowed here "
                         "are %s",
                         nearest, known);
}

/* --- the whole object ---------------------------------------------------------------------------
 */

static const struct setting *setting_at(const char *path)
{
    for (size_t i = 0; i < settings_table_length; i++)
        if (strcmp(settings_table[i].path, path) == 0)
            return &settings_table[i];
    return NULL;
}

static bool is_group(const char *path)
{
    size_t length = strlen(path);

    for (size_t i = 0; i < settings_table_length; i++)
        if (strncmp(settings_table[i].path, path, length) == 0 &&
            settings_table[i].path[length] == '.')
            return true;
    return false;
}

/* The two keys of a file that are not settings: 1 where key is neither, otherwise 0 or -1. */
static int read_file_key(const struct document *document, const char *place, const char *key,
                         const json_t *value)
{
    if (strcmp(key, "$schema") == 0)
        return json_is_string(value) ? 0 : document_refuse(document, place, value, "a string");
    if (strcmp(key, "version") != 0)
        return 1;
    if (json_is_integer(value) && json_integer_value(value) == SETTINGS_VERSION)
        return 0;
    return document_refuse(document, place, value, "the version that this cudapool reads, 1");
}

/* Reads one object of the settings. path is its path in the settings, place that in the document;
 * they differ where the settings are a part of it. */
static int read_object(const struct document *document, const char *place, const char *path,
                       const json_t *object, struct settings *settings)
{
    char key_place[PLACE_BYTES], key_path[PLACE_BYTES];
    const char *key;
    json_t *value;
    int failed = 0;

    if (!json_is_object(object))
        return document_refuse(document, place, object, "an object");
    json_object_foreach((json_t *)object, key, value)
    {
        place_of_key(key_place, place, key);
        place_of_key(key_path, path, key);
        const struct setting *setting = setting_at(key_path);
        /* A key with a point in it is not a path. */
        bool plain = strchr(key, '.') == NULL;
        int status = 1;
        if (path[0] == '\0')
            status = read_file_key(document, key_place, key, value);
        if (status == 1 && plain && setting != NULL)
            status = setting_from_json(document, key_place, setting, value, settings);
        else if (status == 1 && plain && is_group(key_path))
            status = read_object(document, key_place, key_path, value, settings);
        else if (status == 1)
            status = refuse_unknown_key(document, key_place, path, key);
        failed |= status;
        if (failed != 0 && document->each == NULL)
            return -1;
    }
    return failed == 0 ? 0 : -1;
}

/* Buckets that end before they begin are a mistake; 0 means that nothing is kept. */
static int check_buckets(const struct document *document, const char *place, const char *group,
                         const struct bucket_settings *buckets)
{
    char group_place[PLACE_BYTES], largest[PLACE_BYTES];
    const struct byte_size *size = &buckets->largest;

    if (size->percent > 0 || size->bytes == 0 || size->bytes >= buckets->smallest)
        return 0;
    place_of_key(group_place, place, group);
    place_of_key(largest, group_place, "buckets.largest");
    return document_fail(document, largest,
                         "found %llu, allowed is 0 or at least buckets.smallest, %llu",
                         (unsigned long long)size->bytes, (unsigned long long)buckets->smallest);
}

int settings_check(const struct document *document, const char *place,
                   const struct settings *settings)
{
    int failed = check_buckets(document, place, "device", &settings->device.buckets);

    if (failed != 0 && document->each == NULL)
        return -1;
    return failed |
           check_buckets(document, place, "stream_ordered", &settings->stream_ordered.buckets);
}

int settings_from_json(const struct document *document, const char *place, const json_t *object,
                       struct settings *settings)
{
    struct settings read;

    settings_defaults(&read);
    int failed = read_object(document, place, "", object, &read);
    if (failed == 0 || document->each != NULL)
        failed |= settings_check(document, place, &read);
    if (failed != 0)
        return -1;
    *settings = read;
    return 0;
}

static int refuse_path(const struct document *document, const char *path)
{
    char parent[PLACE_BYTES], known[256];
    const char *key = strrchr(path, '.');

    if (is_group(path)) {
        list_keys_of(path, known, sizeof(known));
        return document_fail(document, path, "is a group of settings; allowed in it are %s", known);
    }
    snprintf(parent, sizeof(parent), "%.*s", key == NULL ? 0 : (int)(key - path), path);
    return refuse_unknown_key(document, path, is_group(parent) ? parent : "",
                              key == NULL ? path : key + 1);
}

int settings_assign(const struct document *document, const char *path, const json_t *value,
                    struct settings *settings)
{
    const struct setting *setting = setting_at(path);

    if (setting == NULL)
        return refuse_path(document, path);
    return setting_from_json(document, path, setting, value, settings);
}

/* The object at name in parent, made where it is missing. A borrowed reference. */
static json_t *object_in(json_t *parent, const char *name)
{
    json_t *object = json_object_get(parent, name);

    if (object == NULL && json_object_set_new(parent, name, json_object()) == 0)
        object = json_object_get(parent, name);
    return object;
}

/* Puts a new reference at a path such as a.b.c. */
static int set_at_path(json_t *root, const char *path, json_t *value)
{
    char name[64];
    size_t length;
    json_t *object = root;

    while (path[length = strcspn(path, ".")] == '.' && object != NULL) {
        snprintf(name, sizeof(name), "%.*s", (int)length, path);
        object = object_in(object, name);
        path += length + 1;
    }
    if (object == NULL) {
        json_decref(value);
        return -1;
    }
    return json_object_set_new(object, path, value);
}

json_t *settings_to_json(const struct settings *settings)
{
    json_t *root = json_object();
    int status = json_object_set_new(root, "version", json_integer(SETTINGS_VERSION));

    for (size_t i = 0; i < settings_table_length && status == 0; i++)
        status = set_at_path(root, settings_table[i].path,
                             setting_to_json(&settings_table[i], settings));
    return json_unless_failed(root, status);
}
