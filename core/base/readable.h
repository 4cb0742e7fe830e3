/*
 * Numbers for people: sizes, times, counts and shares in few characters.
 *
 * Integers throughout, because a locale's decimal point may differ. What is rounded, is rounded
 * down. No state, no locks, any thread.
 */
#ifndef CUDAPOOL_CORE_READABLE_H
#define CUDAPOOL_CORE_READABLE_H

#include <stdint.h>

/* Enough for everything written by this module. */
#define READABLE_BYTES 32

/* Counters of a hostile file, or of a very long run, stop at the largest number. */
static inline uint64_t saturating_sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* "1.5 GiB" */
void readable_bytes(uint64_t bytes, char cell[READABLE_BYTES]);

/* A bucket's size exactly, so that no two look alike: "1.125 MiB", "1040 KiB", "1048577 B". */
void readable_exact_bytes(uint64_t bytes, char cell[READABLE_BYTES]);

/* "3.2 s", "12m 30s", "1d 2h" */
void readable_time(uint64_t nanoseconds, char cell[READABLE_BYTES]);

/* The same for what may be no such number, as in a file: what is out of range is 0. */
void readable_seconds(double seconds, char cell[READABLE_BYTES]);

/* Of nanoseconds since 1970: "2026-11-22 11:54:13 UTC". Without the time zone's own files and
 * locks, which a process that ends had better leave alone. */
void readable_date(uint64_t nanoseconds, char cell[READABLE_BYTES]);

/* Up to seven digits as they are, then "12.3 M". */
void readable_count(uint64_t count, char cell[READABLE_BYTES]);

#endif
