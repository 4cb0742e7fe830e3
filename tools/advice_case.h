/*
 * What the rules of advice look at, what they find, and what they share.
 */
#ifndef CUDAPOOL_TOOLS_ADVICE_CASE_H
#define CUDAPOOL_TOOLS_ADVICE_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/figures/report.h"
#include "core/settings/config.h"

#define ADVICE_TEXT_BYTES 640

struct advice {
    const char *rule; /* its name, for programs */
    char setting[64]; /* "device.growth_budget"; empty: no setting helps */
    char from[64];    /* the value in force, and the one to try, as a settings file spells them */
    char to[64];      /* without quotation marks */
    char text[ADVICE_TEXT_BYTES];
};

#define MIB    (1ull << 20)
#define SECOND 1000000000ull

/* One kind of memory, in one run. */
struct case_at_hand {
    const struct report_kind *kind;
    uint64_t device_bytes; /* of the smallest device */
    uint64_t memory_bytes; /* of what the kind's memory is taken from: the same; or what a setting
                              may say at most, where no report says how much that is */
    bool is_of_device;     /* memory_kind_is_of_device */
    const struct bucket_settings *buckets;
    const struct cap_settings *caps;
    const struct byte_size *growth_budget; /* NULL where the kind has none */
    bool free_synchronizes;
    uint64_t release_after_idle_ns;
    const struct settings *settings;
    const struct device_limits *limits; /* of the first device that names any; NULL: none does */
    uint64_t others_held_bytes;         /* the most that was held elsewhere when memory ran out */
    uint64_t
        wall_ns; /* of all processes together: from the first one's start to the last one's end */
    uint64_t captured; /* requests that came while captures went on; counted for device memory */
    size_t found;      /* by the rules before, of this kind */
};

/* What went on beside the processes of one run, on all of its devices. */
struct case_of_neighbours {
    struct report_neighbours neighbours;
    uint64_t device_bytes; /* of the smallest device */
    const struct settings *settings;
};

static inline bool is_a_tenth(uint64_t part, uint64_t whole)
{
    return part > 0 && part >= whole / 10;
}

/* Frees have waited for long, or often. */
static inline bool frees_have_waited(const struct case_at_hand *at_hand)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    return totals->waits.frees > 0 && (is_a_tenth(totals->waits.frees, totals->frees) ||
                                       is_a_tenth(totals->waits.nanoseconds, at_hand->wall_ns));
}

static inline bool misses_most(const struct report_counters *counters)
{
    return counters->misses > counters->requests / 2;
}

/* Whether anybody knows how many bytes a size of the kind's is. A report does not say how much
 * memory its machine has. */
static inline bool is_known(const struct case_at_hand *at_hand, const struct byte_size *size)
{
    return at_hand->is_of_device || !(size->percent > 0);
}

/* A value as a settings file spells it, without quotation marks. */
void spell_size(const struct byte_size *size, char text[64]);
void spell_bytes(uint64_t bytes, char text[64]);

#endif
