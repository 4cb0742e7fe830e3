/*
 * Writes numbers for people: sizes, times, dates and counts in few characters.
 *
 * The text is made from integers, because a locale's decimal point may differ. All rounding is
 * down. The functions have no state and take no lock, so any thread may call them.
 */
#ifndef CUDAPOOL_CORE_READABLE_H
#define CUDAPOOL_CORE_READABLE_H

#include "core/base/numbers.h"

/* Enough for everything that this module writes. */
#define READABLE_BYTES 32

/* A size: "1.5 GiB". */
void readable_bytes(uint64_t bytes, char cell[READABLE_BYTES]);

/* A bucket's exact size, so that two sizes never look alike: "1.125 MiB", "1040 KiB",
 * "1048577 B". */
void readable_exact_bytes(uint64_t bytes, char cell[READABLE_BYTES]);

/* A time: "3.2 s", "12m 30s", "1d 2h". */
void readable_time(uint64_t nanoseconds, char cell[READABLE_BYTES]);

/* A time that was read from a file, in seconds. A number that is out of range, and so no valid
 * time, is written as 0. */
void readable_seconds(double seconds, char cell[READABLE_BYTES]);

/* A date, from nanoseconds since 1970: "2026-11-22 11:54:13 UTC". The function reads no time zone
 * file and takes no lock, because a process that is ending calls it. */
void readable_date(uint64_t nanoseconds, char cell[READABLE_BYTES]);

/* A count: up to seven digits as they are, then "12.3 M". */
void readable_count(uint64_t count, char cell[READABLE_BYTES]);

#endif
