/*
 * Writes numbers for people (readable.h).
 *
 * This file is part of the preload object and of the tools, so it calls only libc.
 */
#include "readable.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t worth;
};

static const struct unit byte_units[] = {
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"PiB", 1ull << 50},
    {"EiB", 1ull << 60},
};
#define BYTE_UNITS (sizeof(byte_units) / sizeof(byte_units[0]))

static const struct unit time_units[] = {
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000000},
    {"s", 1000000000},
};
#define TIME_UNITS (sizeof(time_units) / sizeof(time_units[0]))

static const struct unit count_units[] = {
    {"", 1},
    {"M", 1000000},
    {"G", 1000000000},
    {"T", 1000000000000},
    {"P", 1000000000000000},
    {"E", 1000000000000000000},
};
#define COUNT_UNITS (sizeof(count_units) / sizeof(count_units[0]))

/* Sets *thousandths to what value has beyond whole units, in thousandths of the unit, rounded down.
 * Returns whether the rounding lost nothing. */
static bool in_thousandths(uint64_t value, const struct unit *unit, unsigned *thousandths)
{
    unsigned __int128 scaled = (unsigned __int128)(value % unit->worth) * 1000;

    *thousandths = (unsigned)(scaled / unit->worth);
    return scaled % unit->worth == 0;
}

/* Writes value in unit with one decimal, rounded down. Prints two integers and a point of its own,
 * since printf takes the decimal point of a fraction from the locale. */
static void write_tenths(uint64_t value, const struct unit *unit, char cell[READABLE_BYTES])
{
    unsigned thousandths;

    in_thousandths(value, unit, &thousandths);
    snprintf(cell, READABLE_BYTES, "%llu.%u %s", (unsigned long long)(value / unit->worth),
             thousandths / 100, unit->name);
}

static const struct unit *largest_unit_within(uint64_t value, const struct unit *units,
                                              size_t count)
{
    size_t i = count - 1;

    while (i > 0 && units[i].worth > value)
        i--;
    return &units[i];
}

void readable_bytes(uint64_t bytes, char cell[READABLE_BYTES])
{
    const struct unit *unit = largest_unit_within(bytes, byte_units, BYTE_UNITS);

    if (unit->worth == 1)
        snprintf(cell, READABLE_BYTES, "%llu B", (unsigned long long)bytes);
    else
        write_tenths(bytes, unit, cell);
}

void readable_exact_bytes(uint64_t bytes, char cell[READABLE_BYTES])
{
    const struct unit *unit = largest_unit_within(bytes, byte_units, BYTE_UNITS);
    unsigned thousandths;

    /* Ends with the unit B at the latest, which loses nothing. */
    while (!in_thousandths(bytes, unit, &thousandths))
        unit--;
    int length = snprintf(cell, READABLE_BYTES, "%llu.%03u",
                          (unsigned long long)(bytes / unit->worth), thousandths);
    while (cell[length - 1] == '0')
        length--;
    if (cell[length - 1] == '.')
        length--;
    snprintf(cell + length, READABLE_BYTES - (size_t)length, " %s", unit->name);
}

/* A time of a minute or more is written in two of these units, the larger one first. */
static const struct unit long_units[] = {
    {"s", 1},
    {"m", 60},
    {"h", 3600},
    {"d", 86400},
};
#define LONG_UNITS (sizeof(long_units) / sizeof(long_units[0]))

/* seconds >= 60, so the unit is not the first of long_units. */
static void write_long_time(uint64_t seconds, char cell[READABLE_BYTES])
{
    const struct unit *unit = largest_unit_within(seconds, long_units, LONG_UNITS);

    snprintf(cell, READABLE_BYTES, "%llu%s %llu%s", (unsigned long long)(seconds / unit->worth),
             unit->name, (unsigned long long)(seconds % unit->worth / unit[-1].worth),
             unit[-1].name);
}

void readable_time(uint64_t nanoseconds, char cell[READABLE_BYTES])
{
    const struct unit *unit = largest_unit_within(nanoseconds, time_units, TIME_UNITS);

    if (nanoseconds >= UINT64_C(60000000000))
        write_long_time(nanoseconds / 1000000000, cell);
    else if (nanoseconds == 0)
        snprintf(cell, READABLE_BYTES, "0 s");
    else if (unit->worth == 1)
        snprintf(cell, READABLE_BYTES, "%llu ns", (unsigned long long)nanoseconds);
    else
        write_tenths(nanoseconds, unit, cell);
}

/* Finds the date this many days after 1970-01-01, in the Gregorian calendar. */
static void date_of_day(unsigned days, unsigned *year, unsigned *month, unsigned *day)
{
    /* Counts days and years from 0000-03-01, which is 719468 days before 1970-01-01. Years begin in
     * March here, so that the leap day is the last day of a year. An era is 400 years, which have
     * 146097 days. of_era is the day in its era, of_years the year in the era, and of_year the day
     * in that year. Every 1461st day is a leap day, except at the end of a century of 36524 days
     * that does not end the era. Five months from March on have 153 days. */
    unsigned shifted = days + 719468, era = shifted / 146097, of_era = shifted % 146097;
    unsigned of_years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    unsigned of_year = of_era - (365 * of_years + of_years / 4 - of_years / 100);
    unsigned from_march = (5 * of_year + 2) / 153;

    *day = of_year - (153 * from_march + 2) / 5 + 1;
    *month = from_march < 10 ? from_march + 3 : from_march - 9;
    *year = of_years + era * 400 + (*month <= 2);
}

void readable_date(uint64_t nanoseconds, char cell[READABLE_BYTES])
{
    uint64_t seconds = nanoseconds / 1000000000;
    unsigned of_day = (unsigned)(seconds % 86400), year, month, day;

    date_of_day((unsigned)(seconds / 86400), &year, &month, &day);
    /* The remainders change nothing, but show the compiler that the text fits. */
    snprintf(cell, READABLE_BYTES, "%04u-%02u-%02u %02u:%02u:%02u UTC", year % 10000, month % 100,
             day % 100, of_day / 3600, of_day / 60 % 60, of_day % 60);
}

void readable_count(uint64_t count, char cell[READABLE_BYTES])
{
    if (count < 10000000)
        snprintf(cell, READABLE_BYTES, "%llu", (unsigned long long)count);
    else
        write_tenths(count, largest_unit_within(count, count_units, COUNT_UNITS), cell);
}

void readable_seconds(double seconds, char cell[READABLE_BYTES])
{
    /* Nanoseconds of this range fit in 64 bits. NaN is not in the range. */
    readable_time(seconds > 0 && seconds < 1e10 ? (uint64_t)(seconds * 1e9) : 0, cell);
}
