/*
 * A coarse history: what a device's memory was used for, at some hundred moments.
 *
 * Its size is fixed whatever the run's length: when it is full, every second sample goes and the
 * interval doubles. Each sample carries the peak of the time before it, and the one that goes
 * leaves its peak to the next, so that no peak is missed between two samples. It is kept in the
 * figures (figures.h), and by whoever samples those.
 *
 * One thread writes at a time. A reader may find the history in the middle of that, for good where
 * the writer was killed: a sample's time is 0 while the rest of it is written, and samples that do
 * not follow the one before in time are remains. Whoever reads leaves out both.
 */
#ifndef CUDAPOOL_CORE_HISTORY_H
#define CUDAPOOL_CORE_HISTORY_H

#include <stdint.h>

#include "stats.h"

#define HISTORY_SAMPLES 128u

/* Nanoseconds between the first samples. */
#define HISTORY_INTERVAL UINT64_C(10000000)

struct history_sample {
    counter at; /* nanoseconds of the monotonic clock; 0: none */
    counter live_bytes, cached_bytes, pending_bytes;
    counter peak_bytes;      /* the most that these were together since the sample before */
    counter hits[HIT_KINDS]; /* since the start, like the misses */
    counter misses;
    counter given_bytes, got_bytes; /* to and from neighbours, since the start */
};

struct history {
    counter interval; /* nanoseconds; 0: HISTORY_INTERVAL */
    counter count;
    struct history_sample samples[HISTORY_SAMPLES];
};

/* Adds a sample. A reader sees it where its time is later than that of the one before. */
void history_add(struct history *history, const struct history_sample *sample);

/* When the next sample is due after one at this time. */
uint64_t history_next(const struct history *history, uint64_t at);

#endif
