/*
 * Which free blocks go back to the driver: by the settings' order, of one context at a time.
 *
 * Parts, of which the driver knows nothing, are never chosen (stream_aside.h).
 *
 * What is chosen is taken off its shelf and out of the table, chained through its heap links
 * (links[LINK_HEAP].next), and away from its stream (stream_block_is_detached) until somebody has
 * seen to it.
 */
#ifndef CUDAPOOL_CORE_STREAM_CHOICE_H
#define CUDAPOOL_CORE_STREAM_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "streams.h"

/* What goes back. */
struct choice {
    struct pool *pool;
    struct context *context;
    uint64_t generation;
    const struct mempool *mempool; /* NULL: any */
    uint64_t older_than;           /* freed_at; UINT64_MAX: any */
    uint64_t at_least;             /* bytes of each block; 0: any */
    bool oldest_first;             /* else the largest first */
    bool pending_too;              /* not only what is known to be over */
    bool hastily; /* of many streams only some are looked at, and what is not known to be over yet
                     is left out */
};

/* Any block that is known to be over, in the order of the settings; the context is to be set. */
struct choice choice_any(const struct pool *pool);

/* No lock held. When the block was freed that would go first; UINT64_MAX: there is none. */
uint64_t choice_freed_at(const struct choice *choice);

/* No lock held. Blocks of at least so many bytes together, if there are so many; NULL: none. They
 * count as returning (core/contexts/pool_state.h) until stream_release.c has settled them. */
struct block *choice_collect(const struct choice *choice, uint64_t wanted);

/* ---- the stream's lock is held ---- */

/* Whether the stream is one of the choice's context. */
bool choice_is_of(const struct choice *choice, const struct stream *stream);

/* Takes the block out of everything but its shelf's count of driver calls. */
void choice_detach(struct pool *pool, struct stream *stream, struct block *found);

/* The stream's oldest pending blocks up to that stamp, so many bytes of them, the newest first.
 * They count as returning, too. */
struct block *choice_take_pending(struct pool *pool, struct stream *stream, uint64_t stamp,
                                  uint64_t bytes);

/* A free block of the stream, or a part, if that is of the context; it stays where it is. NULL:
 * none. */
struct block *choice_find_any(struct stream *stream, const struct context *context);

#endif
