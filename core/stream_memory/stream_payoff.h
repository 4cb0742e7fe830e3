/*
 * Where keeping what is freed does not pay: the driver has it then, for the price of one call.
 *
 * Two cases, each known by counting: blocks of other streams that are freed on a stream which is
 * far behind them, and blocks that go back before they are asked for again because the reserve is
 * at its bound. stream_heap.h says when; here is what is counted.
 */
#ifndef CUDAPOOL_CORE_STREAM_PAYOFF_H
#define CUDAPOOL_CORE_STREAM_PAYOFF_H

#include <stdbool.h>

#include "stream.h"
#include "stream_block.h"

/* No lock held. A miss on the stream has cost other blocks their place in the reserve. */
void payoff_note_at_bound(struct stream *stream);

/* Lock held. Where blocks of other streams are freed on a stream that is far behind them, they come
 * back to nobody in time: while that is so the driver has them, but for some by which it is seen
 * when that has changed. */
bool payoff_comes_too_late(struct stream *stream, const struct stream_block *block);

/* Lock held. What is freed on the stream goes back before it is asked for again, and other blocks
 * for it: to put an operation into the stream for each costs as much as the driver's free. Each
 * call is for one free. */
bool payoff_is_for_driver(struct stream *stream);

/* Lock held. The stream's record is another one's from now on. */
void payoff_has_new_owner(struct stream *stream);

#endif
