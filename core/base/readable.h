/*
 * Writes numbers for people: sizes, times, dates and counts in few characters.
 *
 * Integers throughout, because a locale's decimal point may differ. All rounding is down. No state,
 * no locks, any thread.
 */
#ifndef CUDAPOOL_CORE_READABLE_H
#define CUDAPOOL_CORE_READABLE_H

#include <stdint.h>

/* Enough for everything that this module writes. */
#define READABLE_BYTES 32

/* Returns a + b, or UINT64_MAX if that is less: for counters of a hostile file, or of a very long
 * run. */
static inline uint64_t saturating_sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* A size: "1.5 GiB". */
void readable_bytes(uint64_t bytes, char cell[READABLE_BYTES]);

/* A bucket's size, exactly, so that no two look alike: "1.125 MiB", "1040 KiB", "1048577 B". */
void readable_exact_bytes(uint64_t bytes, char cell[READABLE_BYTES]);

/* A time: "3.2 s", "12m 30s", "1d 2h". */
void readable_time(uint64_t nanoseconds, char cell[READABLE_BYTES]);

/* A time from a file, which may be no valid time. A number out of range is written as 0. */
void readable_seconds(double seconds, char cell[READABLE_BYTES]);

/* A date, from nanoseconds since 1970: "2026-11-22 11:54:13 UTC". Does not use the time zone's
 * files and locks, which a process that is ending had better leave alone. */
void readable_date(uint64_t nanoseconds, char cell[READABLE_BYTES]);

/* A count: up to seven digits as they are, then "12.3 M". */
void readable_count(uint64_t count, char cell[READABLE_BYTES]);

#endif
