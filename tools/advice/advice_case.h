/*
 * The types that the rules of advice work on, and the helpers that they share. A rule reads one
 * struct case_at_hand, or struct case_of_neighbours, and fills one struct advice. Sizes are bytes.
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
    const char *rule; /* the rule's name, for programs that read the advice */
    char setting[64]; /* "device.growth_budget"; empty: no setting helps */
    char from[64];    /* the value in force, spelled as in a settings file, */
    char to[64];      /* and the value to try; both without quotation marks */
    char text[ADVICE_TEXT_BYTES];
};

#define MIB    (1ull << 20)
#define SECOND 1000000000ull

/* One kind of memory in one run, with the settings that apply to it. */
struct case_at_hand {
    const struct report_kind *kind;
    uint64_t device_bytes; /* of the smallest device */
    uint64_t memory_bytes; /* of the memory that the kind is taken from. For host memory, whose size
                              no report has, the most that a setting allows */
    bool is_of_device;     /* memory_kind_is_of_device */
    const struct bucket_settings *buckets;
    const struct cap_settings *caps;
    const struct byte_size *growth_budget; /* NULL if the kind has none */
    bool free_synchronizes;
    uint64_t release_after_idle_ns;
    const struct settings *settings;
    const struct device_limits *limits; /* of the first device that has any; NULL: none has */
    uint64_t others_held_bytes;         /* the most held outside the pool when memory ran out */
    uint64_t wall_ns;  /* from the start of the first process to the end of the last */
    uint64_t captured; /* requests during stream captures; counted for device memory only */
    size_t found;      /* rules that have applied to this kind so far */
};

/* What the processes of one run and other processes did to each other, on all devices. */
struct case_of_neighbours {
    struct report_neighbours neighbours;
    uint64_t device_bytes; /* of the smallest device */
    const struct settings *settings;
};

static inline bool is_a_tenth(uint64_t part, uint64_t whole)
{
    return part > 0 && part >= whole / 10;
}

/* Whether frees waited for the GPU often or long: a tenth of the frees, or of the wall time. */
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

/* Whether the size can be converted to bytes. A percentage of host memory cannot, because a report
 * does not say how much memory its machine has. */
static inline bool is_known(const struct case_at_hand *at_hand, const struct byte_size *size)
{
    return at_hand->is_of_device || !(size->percent > 0);
}

/* Write a value as a settings file spells it, without quotation marks. */
void spell_size(const struct byte_size *size, char text[64]);
void spell_bytes(uint64_t bytes, char text[64]);

#endif
