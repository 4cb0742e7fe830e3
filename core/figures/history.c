/*
 * A history of samples in a fixed number of places (history.h). When the places are full, every
 * second sample is dropped.
 *
 * Part of the preload object: libc only.
 */
#include "history.h"

static void copy_counter(counter *to, const counter *from)
{
    counter_set(to, counter_get(from));
}

static void copy_sample(struct history_sample *to, const struct history_sample *from)
{
    counter_set(&to->at, 0);
    copy_counter(&to->live_bytes, &from->live_bytes);
    copy_counter(&to->cached_bytes, &from->cached_bytes);
    copy_counter(&to->pending_bytes, &from->pending_bytes);
    copy_counter(&to->peak_bytes, &from->peak_bytes);
    for (int i = 0; i < HIT_KINDS; i++)
        copy_counter(&to->hits[i], &from->hits[i]);
    copy_counter(&to->misses, &from->misses);
    copy_counter(&to->given_bytes, &from->given_bytes);
    copy_counter(&to->got_bytes, &from->got_bytes);
    copy_counter(&to->at, &from->at);
}

static uint64_t held_at(const struct history_sample *sample)
{
    return counter_get(&sample->live_bytes) + counter_get(&sample->cached_bytes) +
           counter_get(&sample->pending_bytes);
}

static uint64_t interval_of(const struct history *history)
{
    uint64_t interval = counter_get(&history->interval);
    return interval ? interval : HISTORY_INTERVAL;
}

static void drop_every_second(struct history *history)
{
    for (unsigned i = 1; 2 * i < HISTORY_SAMPLES; i++) {
        uint64_t peak_before = counter_get(&history->samples[2 * i - 1].peak_bytes);
        copy_sample(&history->samples[i], &history->samples[2 * i]);
        counter_raise_to(&history->samples[i].peak_bytes, peak_before);
    }
    counter_set(&history->count, HISTORY_SAMPLES / 2);
    counter_set(&history->interval, 2 * interval_of(history));
}

void history_add(struct history *history, const struct history_sample *sample)
{
    if (counter_get(&history->count) >= HISTORY_SAMPLES)
        drop_every_second(history);
    uint64_t count = counter_get(&history->count);
    copy_sample(&history->samples[count], sample);
    /* Blocks that were held at the last sample and released since have raised no peak. The peak is
     * therefore at least what was held at the last sample. */
    if (count > 0)
        counter_raise_to(&history->samples[count].peak_bytes,
                         held_at(&history->samples[count - 1]));
    counter_set(&history->count, count + 1);
}

uint64_t history_next(const struct history *history, uint64_t at)
{
    return at + interval_of(history);
}
