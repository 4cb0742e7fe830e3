/*
 * Requests that are served out of segments (stream_parts.h): what can be cut already, and what the
 * driver is asked for where nothing can.
 */
#ifndef CUDAPOOL_CORE_STREAM_CUT_H
#define CUDAPOOL_CORE_STREAM_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream_search.h"
#include "stream_shelf.h"

/* Lock held. A block of the bucket in the stream's order, in no list: one that is there, or a part.
 * anywhere: see segments_find. */
struct stream_block *stream_cut_own(struct stream *stream, struct shelf *shelf,
                                    struct bucket *bucket, bool anywhere);

/* No lock held. The same, and it is the program's from then on: a hit. */
bool stream_cut_for(const struct search *search, struct shelf *shelf, struct bucket *bucket,
                    CUdeviceptr *address, size_t bytes, bool anywhere);

/* The same after what is aside has gone home; and, where the stream's order is not enough, after
 * its own events have been asked. */
bool stream_cut_after_asking(const struct search *search, struct shelf *shelf,
                             struct bucket *bucket, CUdeviceptr *address, size_t bytes);

/* No lock held. Makes the search one for a segment of which a block of the bucket could be cut; and
 * for what the driver is asked for: perhaps the block alone, in whole pages. */
void stream_cut_search_segment(struct search *search, struct shelf *shelf, struct bucket *bucket);
void stream_cut_aim_for_driver(struct search *search);

/* Lock held. What is counted on the shelf as a block of bucket whole, and in no list: the part of
 * it that serves the request, or else all of it. *bucket: where that is counted. */
struct stream_block *stream_cut_new(struct shelf *shelf, struct stream_block *block,
                                    struct bucket **bucket);

#endif
