/*
 * Chooses which free blocks of one context are released to the driver, and in which order.
 *
 * A block that choice_collect or choice_take_pending returns is off its shelf and out of the table.
 * It is chained through links[LINK_HEAP].next. It counts as detached from its stream
 * (stream_block_is_detached) until the driver has it or it is back on its shelf.
 */
#ifndef CUDAPOOL_CORE_STREAM_CHOICE_H
#define CUDAPOOL_CORE_STREAM_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "streams.h"

/* Which blocks may be chosen, and in which order. */
struct choice {
    struct pool *pool;
    struct context *context;
    uint64_t generation;
    const struct mempool *mempool; /* NULL: any */
    uint64_t older_than;           /* only blocks with freed_at <= this; UINT64_MAX: any */
    uint64_t at_least;             /* bytes of each block; 0: any */
    bool oldest_first;             /* otherwise the largest first */
    bool pending_too;              /* pending blocks too; otherwise only clean ones */
    bool hastily; /* of many streams only some are looked at, and streams without clean blocks
                     are skipped */
};

/* Returns a choice of any clean block, in the order of the settings. The caller sets pool, context
 * and generation; stream_release_in does so by itself. */
struct choice choice_any(const struct pool *pool);

/* The caller holds no lock. Returns when the block that would be chosen first was freed;
 * UINT64_MAX: there is none. */
uint64_t choice_freed_at(const struct choice *choice);

/* The caller holds no lock. Takes blocks until they have so many bytes together, or none is left.
 * It stops early if another thread takes the best block first. Returns NULL if it took none. The
 * blocks count as returning (struct device) until stream_release.c has called returning_end. */
struct block *choice_collect(const struct choice *choice, uint64_t wanted);

/* ---- the caller holds the stream's lock ---- */

/* Whether the stream belongs to the choice's context. */
bool choice_is_of(const struct choice *choice, const struct stream *stream);

/* Removes the block from the table and from all lists, and counts its bytes nowhere on the stream.
 * The record keeps its shelf and bucket, where its release is counted later. */
void choice_detach(struct pool *pool, struct stream *stream, struct block *found);

/* Takes the stream's oldest pending blocks with a stamp up to this one, until they have so many
 * bytes. Returns them in a chain, the newest first; NULL: there are none. They count as returning,
 * as those of choice_collect do. */
struct block *choice_take_pending(struct pool *pool, struct stream *stream, uint64_t stamp,
                                  uint64_t bytes);

/* Returns any free block of the stream, if the stream belongs to the context. The block stays in
 * its lists. NULL: there is none. */
struct block *choice_find_any(struct stream *stream, const struct context *context);

#endif
