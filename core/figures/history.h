/*
 * A coarse history: what a device's memory was used for, at about a hundred moments.
 *
 * The history's size is fixed, whatever the run's length. When it is full, every second sample is
 * dropped and the interval doubles. Each sample carries the peak since the sample before. A sample
 * that is dropped passes its peak on to the next, so that no peak is lost. The pool stores a
 * history in the figures (figures.h), and a program that watches figures may record one of its own.
 *
 * One thread writes at a time. A reader may find the history in the middle of a change, for good
 * where the writer was killed. A sample's time is 0 while the rest of the sample is written. A
 * sample whose time is not later than the one before is a leftover. Readers skip both.
 */
#ifndef CUDAPOOL_CORE_HISTORY_H
#define CUDAPOOL_CORE_HISTORY_H

#include <stdint.h>

#include "stats.h"

#define HISTORY_SAMPLES 128u

/* Nanoseconds between samples at first. */
#define HISTORY_INTERVAL UINT64_C(10000000)

struct history_sample {
    counter at; /* nanoseconds of the monotonic clock; 0: none */
    counter live_bytes, cached_bytes, pending_bytes;
    counter peak_bytes;      /* the most that these three came to since the sample before */
    counter hits[HIT_KINDS]; /* since the start, as are the misses */
    counter misses;
    counter given_bytes, got_bytes; /* to and from other processes, since the start */
};

struct history {
    counter interval; /* nanoseconds; 0: HISTORY_INTERVAL */
    counter count;
    struct history_sample samples[HISTORY_SAMPLES];
};

/* Adds a sample. Readers see it only where its time is later than that of the one before. */
void history_add(struct history *history, const struct history_sample *sample);

/* The time when the next sample is due after one at the time at. */
uint64_t history_next(const struct history *history, uint64_t at);

#endif
