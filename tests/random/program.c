/*
 * From a seed to a profile and to programs.
 */
#include "program.h"

#include <stdlib.h>
#include <string.h>

const char *const step_names[STEP_KINDS] = {
#define STEP(name, weight) #name,
#include "steps.def"
#undef STEP
};

static const unsigned int weights[STEP_KINDS] = {
#define STEP(name, weight) weight,
#include "steps.def"
#undef STEP
};

/* splitmix64 */
uint32_t random_next(struct random *random)
{
    uint64_t z = random->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

uint32_t random_below(struct random *random, uint32_t count)
{
    return (uint32_t)(((uint64_t)random_next(random) * count) >> 32);
}

static bool one_in(struct random *random, uint32_t count)
{
    return random_below(random, count) == 0;
}

/* One of the words, which a blank ends. */
static const char *choose(struct random *random, const char *const *words)
{
    uint32_t count = 0;
    while (words[count])
        count++;
    return words[random_below(random, count)];
}

/* Where threads take turns there is no thread of the pool's own, which would take none. */
static void make_settings(struct profile *profile, struct random *r)
{
    static const char *const policies[] = {"geometric", "pow2", "exact"};
    static const unsigned int steps[] = {1, 2, 4, 8, 8, 64};
    static const uint32_t smallest[] = {1, 512, 512, 1000, 4096};
    static const char *const largest[] = {"\"50%\"", "\"50%\"",  "\"100%\"",
                                          "4096",    "\"1MiB\"", NULL};
    static const char *const cached[] = {"\"50%\"", "\"50%\"", "\"100%\"", "0", "\"2MiB\"", NULL};
    static const char *const blocks[] = {"1024", "1024", "0", "1", "4", NULL};
    static const char *const ratios[] = {"1.15", "1.15", "1.0", "2.0", "100.0", NULL};
    static const char *const budgets[] = {"\"128MiB\"", "\"1MiB\"", "\"8MiB\"", "0",
                                          "0",          "65536",    "\"100%\"", NULL};
    static const char *const orders[] = {"largest_first", "least_recently_used", NULL};
    static const char *const idle[] = {"10s", "10s", "0s", "1ms", "100ms", NULL};
    static const char *const limits[] = {"\"50%\"", "\"8MiB\"", "\"30MiB\"", NULL};
    static const char *const flags[] = {"true", "true", "true", "false", NULL};
    static const char *const thresholds[] = {"\"512MiB\"", "0", "null", NULL};
    static const char *const hot[] = {"0", "null", "4096", "65536", "\"1MiB\"", NULL};
    struct random of_hot = {r->state * UINT64_C(0x9FB21C651E98DF25) + 7};
    unsigned int policy = profile->full ? 2 : random_below(r, 3), step = steps[random_below(r, 6)];
    profile->smallest = profile->full ? 1 : smallest[random_below(r, 5)];
    profile->rounding = policy == 0 ? step : 1;
    int written = snprintf(
        profile->settings, sizeof profile->settings,
        "{\"version\": 1, \"device\": {\"enabled\": %s, \"buckets\": {\"policy\": \"%s\", "
        "\"steps_per_doubling\": %u, \"smallest\": %u, \"largest\": %s}, \"caps\": {\"cached\": "
        "%s, "
        "\"blocks_per_bucket\": %s, \"reserve_ratio\": %s}, \"growth_budget\": %s, \"hot_bytes\": "
        "%s, "
        "\"evict\": "
        "\"%s\", \"release_after_idle\": \"%s\", \"free_synchronizes\": %s}, \"stream_ordered\": "
        "{\"enabled\": %s, \"buckets\": "
        "{\"policy\": \"%s\", \"steps_per_doubling\": %u, \"smallest\": %u, \"largest\": %s}, "
        "\"caps\": {\"cached\": %s, \"blocks_per_bucket\": %s, \"reserve_ratio\": %s}, "
        "\"reuse\": {\"opportunistic\": %s, "
        "\"internal_dependencies\": %s}, \"evict\": \"%s\", \"release_after_idle\": \"%s\", "
        "\"driver_release_threshold\": %s}, \"neighbours\": {\"enabled\": %s}, \"limits\": "
        "{\"device_bytes\": %s}, \"report\": {\"at_exit\": \"none\"}}",
        one_in(r, 40) ? "false" : "true", policies[policy], step, profile->smallest,
        choose(r, largest), choose(r, cached), choose(r, blocks), choose(r, ratios),
        choose(r, budgets), choose(&of_hot, hot), choose(r, orders), choose(r, idle),
        profile->free_synchronizes ? "true" : "false", one_in(r, 20) ? "false" : "true",
        policies[policy], step, profile->smallest, choose(r, largest), choose(r, cached),
        choose(r, blocks), choose(r, ratios),
        /* Two draws for one flag, so that seeds keep their meaning. */
        (choose(r, flags), choose(r, flags)), choose(r, flags), choose(r, orders), choose(r, idle),
        choose(r, thresholds), profile->free ? "true" : "false",
        profile->limited ? choose(r, limits) : "null");
    if (written >= (int)sizeof profile->settings)
        profile->settings[0] = '\0';
}

/* In place of the policy of a kind's section, and before the object that it is in. */
static bool split_blocks_of(struct profile *profile, const char *kind, const char *segments)
{
    char *section = strstr(profile->settings, kind);
    char *buckets = section ? strstr(section, "\"buckets\"") : NULL;
    char *policy = buckets ? strstr(buckets, "\"policy\": \"") : NULL;
    char made[sizeof profile->settings];
    if (!policy)
        return false;
    const char *behind = strchr(policy + strlen("\"policy\": \""), '"');
    int written = snprintf(made, sizeof made, "%.*s\"segments\": {%s}, %.*s\"policy\": \"split%s",
                           (int)(buckets - profile->settings), profile->settings, segments,
                           (int)(policy - buckets), buckets, behind);
    if (written >= (int)sizeof made)
        return false;
    memcpy(profile->settings, made, sizeof made);
    return true;
}

/* Blocks that are cut out of larger ones, in one seed of four. A full device may have no room for
 * them that is in one piece, and on a small one what a context's segments have spare may be missing
 * to another context, so that there what succeeds without the pool may fail. */
static void split_blocks(struct profile *profile, uint64_t seed)
{
    static const char *const segments[] = {"\"small\": 2097152, \"large\": 20971520",
                                           "\"small\": 2097152, \"large\": 2097152",
                                           "\"small\": 4194304, \"large\": 67108864", NULL};
    struct random r = {seed * UINT64_C(0x9E6C63D0876A9A47) + 7};
    const char *wanted = getenv("RANDOM_SPLIT");
    bool has_room = !profile->full && profile->device_bytes >= (uint64_t)1 << 30;
    if (!wanted && !(has_room && one_in(&r, 4)))
        return;
    profile->splits = split_blocks_of(profile, "\"device\"", choose(&r, segments));
    split_blocks_of(profile, "\"stream_ordered\"", choose(&r, segments));
    profile->rounding = 1;
}

/* Of pinned host memory. Its own numbers, so that the rest of a seed is the same without. */
static void add_host_settings(struct profile *profile, uint64_t seed)
{
    static const char *const policies[] = {"geometric", "geometric", "pow2", "exact", NULL};
    static const char *const smallest[] = {"512", "512", "4096", NULL};
    static const char *const largest[] = {"\"1GiB\"", "\"1GiB\"", "\"1MiB\"", "4096", NULL};
    static const char *const cached[] = {"\"6%\"", "\"6%\"", "0", "\"4MiB\"", NULL};
    static const char *const blocks[] = {"1024", "1024", "0", "1", "4", NULL};
    static const char *const ratios[] = {"1.15", "1.0", "100.0", NULL};
    static const char *const budgets[] = {"\"32MiB\"", "\"1MiB\"", "0", NULL};
    static const char *const orders[] = {"largest_first", "least_recently_used", NULL};
    static const char *const idle[] = {"10s", "0s", "1ms", NULL};
    struct random r = {seed * UINT64_C(0xDA942042E4DD58B5) + 3};
    size_t length = strlen(profile->settings);
    if (length == 0)
        return;
    /* In place of the last brace. */
    snprintf(
        profile->settings + length - 1, sizeof profile->settings - length + 1,
        ", \"host\": {\"enabled\": %s, \"buckets\": {\"policy\": \"%s\", "
        "\"steps_per_doubling\": %u, \"smallest\": %s, \"largest\": %s}, \"caps\": {\"cached\": "
        "%s, \"blocks_per_bucket\": %s, \"reserve_ratio\": %s}, \"growth_budget\": %s, "
        "\"evict\": \"%s\", \"release_after_idle\": \"%s\", \"free_synchronizes\": %s, "
        "\"large\": \"%s\"}}",
        one_in(&r, 40) ? "false" : "true", choose(&r, policies), 1u << random_below(&r, 4),
        choose(&r, smallest), choose(&r, largest), choose(&r, cached), choose(&r, blocks),
        choose(&r, ratios), choose(&r, budgets), choose(&r, orders), choose(&r, idle),
        one_in(&r, 6) ? "true" : "false", one_in(&r, 3) ? "huge_pages" : "driver");
}

/* Of captures that may allocate: in a few seeds of those that capture, or (wanted) in all. What a
 * free waits for is then not what it waits for without: the programs do not lean on it. */
static void add_capture_settings(struct profile *profile, uint64_t seed, bool wanted)
{
    struct random r = {seed * UINT64_C(0xA0761D6478BD642F) + 5};
    size_t length = strlen(profile->settings);
    bool some = one_in(&r, 6) && profile->captures;
    if (length == 0 || !strstr(profile->settings, "\"device\": {\"enabled\": true") ||
        !(wanted || some))
        return;
    profile->allocates = profile->captures = true;
    snprintf(profile->settings + length - 1, sizeof profile->settings - length + 1,
             ", \"captures\": {\"allocate\": true, \"memory_nodes\": \"%s\"}}",
             one_in(&r, 2) ? "driver" : "pool");
}

/* Odd sizes, and programs that hold nearly all of it. */
static void fill_up(struct profile *profile, struct random *r)
{
    profile->device_bytes = (uint64_t)(16 + random_below(r, 120)) << 21;
    profile->largest = profile->device_bytes >> (1 + random_below(r, 4));
    profile->limited = false;
    profile->full_of_streams = profile->device_bytes >= (uint64_t)96 << 20 && one_in(r, 2);
}

/* Threads that run freely have the device's memory together, and are several. */
static void let_run_freely(struct profile *profile, struct random *r)
{
    static const uint64_t memories[] = {512, 1024, 1024, 4096};
    profile->free = true;
    profile->threads = 2 + random_below(r, THREADS - 1);
    profile->races = !one_in(r, 3);
    if (profile->full)
        return;
    profile->device_bytes = memories[random_below(r, 4)] << 20;
    if (profile->largest > profile->device_bytes / 64)
        profile->largest = profile->device_bytes / 64;
}

void make_profile(struct profile *profile, uint64_t seed, unsigned int ways)
{
    static const uint64_t memories[] = {32, 64, 128, 256, 1024, 1024};
    struct random r = {seed * UINT64_C(0x5851F42D4C957F2D) + 1};
    memset(profile, 0, sizeof *profile);
    profile->several_contexts = !one_in(&r, 2);
    profile->devices = profile->several_contexts ? 1 + random_below(&r, DEVICES) : 1;
    profile->threads = one_in(&r, 2) ? 1 : 1 + random_below(&r, THREADS);
    profile->steps = 50 + random_below(&r, 600);
    profile->device_bytes = memories[random_below(&r, 6)] << 20;
    profile->largest =
        one_in(&r, 3) ? profile->device_bytes / 2 : (uint64_t)4096 << random_below(&r, 12);
    profile->captures = one_in(&r, 2);
    profile->flags = one_in(&r, 2);
    profile->free_synchronizes = one_in(&r, 6);
    profile->limited = one_in(&r, 12);
    profile->full = one_in(&r, 5);
    profile->races = one_in(&r, 3);
    if (profile->full)
        fill_up(profile, &r);
    if (ways & FREELY)
        let_run_freely(profile, &r);
    profile->judged_waits = profile->races && !profile->free && !profile->full &&
                            !profile->limited && profile->device_bytes >= (uint64_t)128 << 20 &&
                            profile->largest <= profile->device_bytes / 128;
    make_settings(profile, &r);
    split_blocks(profile, seed);
    add_host_settings(profile, seed);
    add_capture_settings(profile, seed, ways & ALLOCATING);
    profile->locks = one_in(&r, 2);
}

static bool is_wanted(const struct profile *profile, unsigned int kind)
{
    switch (kind) {
    case STEP_CONTEXT_CREATE:
    case STEP_CONTEXT_DESTROY:
    case STEP_COPY_ABROAD:
        return profile->several_contexts;
    case STEP_CAPTURE_BEGIN:
    case STEP_CAPTURE_END:
    case STEP_CAPTURE_ALLOC:
    case STEP_CAPTURE_MODE:
        return profile->captures;
    case STEP_CAPTURE_WHOLE:
    case STEP_GRAPH_REPLAY:
    case STEP_GRAPH_COPY:
    case STEP_GRAPH_UPDATE:
        return profile->allocates;
    case STEP_WAIT_FLAG:
    case STEP_SET_FLAGS:
        return profile->flags;
    case STEP_LOCKED:
        return profile->locks;
    case STEP_ALLOC_ASYNC:
        return !profile->full || profile->full_of_streams;
    case STEP_BURST_ASYNC:
    case STEP_MEMPOOL:
    case STEP_ALLOC_PITCH:
    case STEP_ARRAY:
        return !profile->full;
    case STEP_FREE_THEN_READ:
        return profile->free_synchronizes && !profile->allocates;
    case STEP_PRIMARY_RESET:
    case STEP_THREAD_RESTART:
        return !profile->free;
    case STEP_GIVE:
    case STEP_TAKE:
        return profile->free;
    default:
        return true;
    }
}

/* Programs that fill memory free little: nearly all of it is theirs. */
static unsigned int weight_of(const struct profile *profile, unsigned int kind)
{
    bool less = profile->full && (kind == STEP_FREE || kind == STEP_FREE_ASYNC);
    bool more = profile->full && (kind == STEP_ALLOC || kind == STEP_ALLOC_MANAGED ||
                                  kind == STEP_PHYSICAL || kind == STEP_HOST_MEMORY);
    unsigned int weight = is_wanted(profile, kind) ? weights[kind] : 0;
    return less ? weight / 3 : more ? 2 * weight : weight;
}

/* Small and large sizes alike, and often the same ones, so that blocks are used again. */
static uint32_t random_size(struct random *r, uint64_t largest)
{
    uint32_t bits = 1;
    while (((uint64_t)2 << bits) <= largest && bits < 30)
        bits++;
    uint32_t top = (uint32_t)1 << (3 + random_below(r, bits > 3 ? bits - 2 : 1));
    switch (random_below(r, 4)) {
    case 0:
        return top;
    case 1:
        return top - random_below(r, top / 8 + 1);
    case 2:
        return top / 2 + 1 + random_below(r, top / 2);
    default:
        return (uint32_t)4096 << random_below(r, bits > 12 ? (bits < 20 ? bits - 11 : 9) : 1);
    }
}

void make_program(const struct profile *profile, uint64_t seed, uint64_t nth, struct step *steps)
{
    struct random r = {(seed << 24) ^ (nth * UINT64_C(0xD1342543DE82EF95))};
    unsigned int total = 0, thread = 0;
    for (unsigned int kind = 0; kind < STEP_KINDS; kind++)
        total += weight_of(profile, kind);
    uint64_t largest = one_in(&r, 2) ? profile->largest : profile->largest / 16 + 64;
    unsigned int slots = one_in(&r, 2) ? 255 : 1 + random_below(&r, 8);
    uint32_t page = profile->full ? (uint32_t)1 << 21 : 1;
    for (unsigned int i = 0; i < profile->steps; i++) {
        unsigned int at = random_below(&r, total), kind = 0;
        for (;; kind++) {
            unsigned int weight = weight_of(profile, kind);
            if (at < weight)
                break;
            at -= weight;
        }
        if (profile->free || one_in(&r, 10))
            thread = random_below(&r, profile->threads);
        steps[i] = (struct step){.kind = (uint8_t)kind,
                                 .thread = (uint8_t)thread,
                                 .a = (uint8_t)random_below(&r, slots),
                                 .b = (uint8_t)random_below(&r, 256),
                                 .c = (uint8_t)random_below(&r, 256),
                                 .d = (uint8_t)random_below(&r, 256),
                                 .x = (random_size(&r, largest) + page - 1) / page * page,
                                 .y = random_next(&r)};
    }
}
