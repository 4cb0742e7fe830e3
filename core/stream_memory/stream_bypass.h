/*
 * Cases in which caching a freed block does not pay, so that the driver frees it, for one call.
 *
 * Both cases are found by counting. In one, blocks of other streams are freed on a stream that is
 * far behind. In the other, blocks are released before anyone asks for their size again, because
 * the reserve is at its limit. stream_heap.h says what follows from each; this file says what is
 * counted.
 */
#ifndef CUDAPOOL_CORE_STREAM_BYPASS_H
#define CUDAPOOL_CORE_STREAM_BYPASS_H

#include <stdbool.h>

#include "stream.h"
#include "stream_block.h"

/* No lock held. Notes that a miss on the stream has evicted other blocks from the reserve. */
void bypass_note_at_bound(struct stream *stream);

/* Lock held. Whether the driver is to free this block of another stream. True while the stream is
 * so far behind that nobody can reuse such blocks in time. A few are cached all the same, to notice
 * when that changes. */
bool bypass_is_too_far_behind(struct stream *stream, const struct stream_block *block);

/* Lock held. Whether the driver is to free a block that is being freed on the stream. True while
 * such blocks are released before anyone asks for that size again, and evict others. An operation
 * in the stream for each free would then cost as much as the driver's free. One call for each
 * free. */
bool bypass_is_for_driver(struct stream *stream);

/* Lock held. The stream's record now belongs to another stream. */
void bypass_has_new_owner(struct stream *stream);

#endif
