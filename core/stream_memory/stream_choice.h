/*
 * Chooses which free blocks are released to the driver: in the order of the settings, from one
 * context at a time.
 *
 * Parts are never chosen (stream_merge.h), because the driver does not know of them.
 *
 * A chosen block is off its shelf and out of the table. It is chained through
 * links[LINK_HEAP].next, and detached from its stream (stream_block_is_detached) until somebody has
 * dealt with it.
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
    uint64_t older_than;           /* freed_at; UINT64_MAX: any */
    uint64_t at_least;             /* bytes of each block; 0: any */
    bool oldest_first;             /* otherwise the largest first */
    bool pending_too;              /* pending blocks too; otherwise only clean ones */
    bool hastily; /* of many streams only some are looked at, and streams without clean blocks
                     are skipped */
};

/* Any clean block, in the order of the settings. The caller sets the context. */
struct choice choice_any(const struct pool *pool);

/* The caller holds no lock. When the block that would be chosen first was freed; UINT64_MAX: there
 * is none. */
uint64_t choice_freed_at(const struct choice *choice);

/* The caller holds no lock. Takes blocks of at least so many bytes together, or all that there are;
 * NULL: there are none. They count as returning (core/contexts/pool_state.h) until stream_release.c
 * has dealt with them. */
struct block *choice_collect(const struct choice *choice, uint64_t wanted);

/* ---- the caller holds the stream's lock ---- */

/* Whether the stream belongs to the choice's context. */
bool choice_is_of(const struct choice *choice, const struct stream *stream);

/* Removes the block from the table, from all lists and from all counts but its shelf's count of
 * driver calls. */
void choice_detach(struct pool *pool, struct stream *stream, struct block *found);

/* Takes the stream's oldest pending blocks with a stamp up to this one, until they have so many
 * bytes. The newest is the first of the chain. They count as returning too. */
struct block *choice_take_pending(struct pool *pool, struct stream *stream, uint64_t stamp,
                                  uint64_t bytes);

/* A free block or a clean part of the stream, if the stream belongs to the context. It stays where
 * it is. NULL: there is none. */
struct block *choice_find_any(struct stream *stream, const struct context *context);

#endif
