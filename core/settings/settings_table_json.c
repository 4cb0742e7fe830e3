/*
 * The table of settings, out of their declarations (settings.def).
 *
 * Part of libcudapool_config.so and the command.
 */
#include "settings_table_json.h"

static const struct setting_value bucket_policy_words[] = {
    {"geometric", BUCKETS_GEOMETRIC,
     "Sizes are rounded up to steps that divide each doubling evenly."},
    {"pow2", BUCKETS_POW2, "Sizes are rounded up to powers of two."},
    {"exact", BUCKETS_EXACT, "A block serves requests of its own size only."},
    {"split", BUCKETS_SPLIT,
     "Blocks are cut out of larger ones as requests want them, and merged again."},
    {0},
};

static const struct setting_value evict_policy_words[] = {
    {"largest_first", EVICT_LARGEST_FIRST, "Over a cap, the largest free blocks go back first."},
    {"least_recently_used", EVICT_LEAST_RECENTLY_USED,
     "Over a cap, the free blocks unused for the longest time go back first."},
    {0},
};

static const struct setting_value host_large_words[] = {
    {"driver", HOST_LARGE_DRIVER, "Blocks of 2 MiB and more are made by the driver's own call."},
    {"huge_pages", HOST_LARGE_HUGE_PAGES,
     "Blocks of 2 MiB and more are mappings with huge pages, touched by several threads and "
     "registered."},
    {0},
};

static const struct setting_value memory_nodes_words[] = {
    {"driver", MEMORY_NODES_DRIVER,
     "What a captured stream allocates is a node of the graph, and comes from the driver at each "
     "launch."},
    {"pool", MEMORY_NODES_POOL,
     "What a captured stream allocates comes from a pool of the capture's own, and stays the "
     "graph's."},
    {0},
};

static const struct setting_value tell_total_words[] = {
    {"scheduler", TELL_TOTAL_SCHEDULER,
     "A device's total memory is the limit that a scheduler has set for the container, if it has."},
    {"always", TELL_TOTAL_ALWAYS, "A device's total memory is the limit, whoever has set it."},
    {"never", TELL_TOTAL_NEVER, "A device's total memory is its own, whatever the limits are."},
    {0},
};

static const struct setting_value report_at_exit_words[] = {
    {"none", REPORT_NONE, "Nothing is written when the program ends."},
    {"table", REPORT_TABLE, "A readable table is written when the program ends."},
    {"json", REPORT_JSON, "A report in JSON is written when the program ends."},
    {0},
};

/* The macros' arguments are members, which bear no parentheses. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
/* clang-format off */
#define ENTRY(in, name, field, kind, ...)                                                          \
    {.path = #in "." #name, .type = kind, .offset = offsetof(struct settings, in.field), __VA_ARGS__},

#define GROUP(tag, in, name, description, ...) __VA_ARGS__
#define FLAG(in, name, value, description, when_true, when_false)                                  \
    ENTRY(in, name, name, SETTING_FLAG, .values = (const struct setting_value[]){                  \
        {"true", 1, when_true}, {"false", 0, when_false}, {0}})
#define WORD(in, name, tag, value, description)                                                    \
    ENTRY(in, name, name, SETTING_WORD, .values = tag##_words)
#define COUNT32(in, name, value, description, ...) ENTRY(in, name, name, SETTING_COUNT32, __VA_ARGS__)
#define COUNT64(in, name, value, description, ...) ENTRY(in, name, name, SETTING_COUNT64, __VA_ARGS__)
#define BYTES(in, name, value, description, ...) ENTRY(in, name, name, SETTING_BYTES, __VA_ARGS__)
#define SIZE(in, name, value, description, ...) ENTRY(in, name, name, SETTING_SIZE, __VA_ARGS__)
#define RATIO(in, name, value, description, ...) ENTRY(in, name, name, SETTING_RATIO, __VA_ARGS__)
#define TIME(in, name, value, description, ...) ENTRY(in, name, name##_ns, SETTING_TIME, __VA_ARGS__)
#define FILE_NAME(in, name, description, ...)                                                      \
    ENTRY(in, name, name, SETTING_FILE, .may_be_null = true, __VA_ARGS__)
#define NAME(in, name, description, ...)                                                           \
    ENTRY(in, name, name, SETTING_NAME, .may_be_null = true, __VA_ARGS__)

const struct setting settings_table[] = {
#include "settings.def"
};

const size_t settings_table_length = sizeof(settings_table) / sizeof(settings_table[0]);
_Static_assert(sizeof(settings_table) / sizeof(settings_table[0]) <= SETTINGS_MOST,
               "each setting has room for how it was spelled");

const struct setting_group setting_groups[] = {
#define SECTION(section, title, description) {#section, title},
#include "settings.def"
    {0},
};
/* clang-format on */
/* NOLINTEND(bugprone-macro-parentheses) */
