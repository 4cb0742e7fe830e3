/*
 * Serves requests out of segments (stream_parts.h): cuts what can be cut already, and decides what
 * the driver is asked for if nothing can.
 */
#ifndef CUDAPOOL_CORE_STREAM_CUT_H
#define CUDAPOOL_CORE_STREAM_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream_search.h"
#include "stream_shelf.h"

/* The caller holds the stream's lock. Takes a block for the bucket that the stream's order allows
 * to hand out: one from the lists, or a new part. It is in no list. anywhere: see segments_find. */
struct stream_block *stream_cut_own(struct stream *stream, struct shelf *shelf,
                                    struct bucket *bucket, bool anywhere);

/* The caller holds no lock. Takes such a block and hands it out to the program: a hit. */
bool stream_cut_for(const struct search *search, struct shelf *shelf, struct bucket *bucket,
                    CUdeviceptr *address, size_t bytes, bool anywhere);

/* Tries stream_cut_for after waiting parts were merged into their segments. If the stream's order
 * is not enough, its context's fences are asked about first. */
bool stream_cut_after_asking(const struct search *search, struct shelf *shelf,
                             struct bucket *bucket, CUdeviceptr *address, size_t bytes);

/* The caller holds no lock. stream_cut_search_segment: makes the search one for a segment that a
 * block of the bucket can be cut from. stream_cut_aim_for_driver: makes the search ask for what the
 * driver is to give, which may be the block alone, in whole pages. */
void stream_cut_search_segment(struct search *search, struct shelf *shelf, struct bucket *bucket);
void stream_cut_aim_for_driver(struct search *search);

/* The caller holds the stream's lock. The whole block is counted on the shelf, and in no list.
 * Returns the part of it that serves the request, or else the whole block. *bucket: the bucket that
 * counts what is returned. */
struct stream_block *stream_cut_new(struct shelf *shelf, struct stream_block *block,
                                    struct bucket **bucket);

#endif
