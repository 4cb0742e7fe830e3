/*
 * Which frees on a stream are done, and what of its blocks is clean because of that. stream_order.h
 * says how it becomes known.
 *
 * Locking: the caller holds the stream's lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_DONE_H
#define CUDAPOOL_CORE_STREAM_DONE_H

#include <stdint.h>

#include "stream.h"

/* All work before the frees stamped up to here has completed: makes their blocks clean. */
void stream_done_raise(struct stream *stream, uint64_t stamp);

/* The same, with what is known of the stream's context. */
void stream_done_apply(struct stream *stream);

/* The newest stamp of what is not done; 0: everything is. */
uint64_t stream_newest_unclean(const struct stream *stream);

#endif
